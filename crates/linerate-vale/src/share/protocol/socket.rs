//! The sockets that serve ports: where they are, and how server and client verify each other.
//!
//! On a machine with other users, a path alone proves nothing about the server. So every part of the path must belong
//! to root or to this user, and must not be writable by others. The client also asks the kernel for the server's user
//! (`SO_PEERCRED`, unix(7)). Every wait here is bounded.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::event::PEER_TIMEOUT;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getpeername, listen, socket_with,
    sockopt::socket_peercred,
};

/// The most connections waiting to be accepted.
const BACKLOG: i32 = 128;
/// Interval between retries where a thread cannot sleep: for another process's lock, or while the backlog is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The name of the socket for ports whose switch or interface has no socket of its own.
pub const ANY: &str = "any";

/// Returns the folder of the sockets: `$LINERATE_PORTS` if it is set. The default is `/run/linerate/ports` for root.
/// For other users it is `$XDG_RUNTIME_DIR/linerate/ports`, or `/tmp/linerate-UID/ports` if that variable is not set.
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("LINERATE_PORTS") {
        return folder.into();
    }
    match (rustix::process::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR")) {
        (true, _) => "/run/linerate/ports".into(),
        (false, Some(folder)) => Path::new(&folder).join("linerate/ports"),
        (false, None) => format!("/tmp/linerate-{}/ports", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Returns the socket of the server that this user's first netmap program starts. Each network namespace has its own
/// server, because it has other interfaces, as with netmap.
///
/// # Errors
/// [`ErrorKind::System`](linerate_core::ErrorKind::System) without `/proc`.
pub fn own_socket() -> Result<PathBuf> {
    own_socket_in(&folder())
}

pub fn own_socket_in(folder: &Path) -> Result<PathBuf> {
    let namespace =
        fs::metadata("/proc/self/ns/net").map_err(|error| Error::system("stat of /proc/self/ns/net", error))?;
    Ok(folder.join(format!("any.{}", namespace.ino())))
}

fn refused(path: &Path, why: impl Into<String>, mend: impl Into<Remedy>) -> Error {
    Error::socket(path, why.into(), mend)
}

/// Returns whether a user may serve and manage ports: root, or the user of this process.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Checks that every component of `folder` belongs to root or to this user, and that others cannot replace it.
///
/// A folder that others may write to is accepted only as a parent, and only with the sticky bit, like `/tmp`. Only
/// owners can then change its entries. The last component contains the sockets, so others must not write to it.
fn check(folder: &Path) -> Result<()> {
    let stranger = |path: &Path, user: u32| {
        let why = format!("{} belongs to user {user}, neither to root nor to you", path.display());
        Err(refused(folder, why, "name a folder of your own: LINERATE_PORTS=PATH"))
    };
    let failed = |path: &Path, error: io::Error| refused(folder, format!("{}: {error}", path.display()), "create it");
    // First the path as written, to check symbolic links on the way; then the resolved path.
    let written = std::path::absolute(folder).map_err(|error| failed(folder, error))?;
    for path in written.ancestors() {
        let found = fs::symlink_metadata(path).map_err(|error| failed(path, error))?;
        if !is_trusted(found.uid()) {
            return stranger(path, found.uid());
        }
    }
    let real = fs::canonicalize(folder).map_err(|error| failed(folder, error))?;
    for (depth, path) in real.ancestors().enumerate() {
        let found = fs::symlink_metadata(path).map_err(|error| failed(path, error))?;
        if !is_trusted(found.uid()) {
            return stranger(path, found.uid());
        }
        let is_open = found.mode() & 0o022 != 0;
        if is_open && (depth == 0 || found.mode() & 0o1000 == 0) {
            let why = format!("others may write to {} (mode {:04o})", path.display(), found.mode() & 0o7777);
            // Other users need a folder such as /tmp unchanged.
            let mend = match found.mode() & 0o1000 {
                0 => format!("chmod go-w {}, or name another folder: LINERATE_PORTS=PATH", path.display()),
                _ => "name a folder of your own: LINERATE_PORTS=PATH".to_string(),
            };
            return Err(refused(folder, why, mend));
        }
    }
    Ok(())
}

/// Creates the folder, private to this user. Root's folder is accessible to all, because its sockets may admit others.
fn create_folder(folder: &Path) -> Result<()> {
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(folder);
    made.map_err(|error| {
        refused(folder, format!("cannot create it: {error}"), "name another folder: LINERATE_PORTS=PATH")
    })?;
    check(folder)
}

/// Locks the folder against changes by other servers until the file is dropped.
pub fn lock(folder: &Path) -> Result<fs::File> {
    let path = folder.join(".lock");
    let failed = |why: String| refused(&path, why, "remove it, or name another folder: LINERATE_PORTS=PATH");
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
    let file = file.map_err(|error| failed(error.to_string()))?;
    let found = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !found.is_file() || !is_trusted(found.uid()) {
        return Err(failed("it is not a file of root's or yours".to_string()));
    }
    let until = Instant::now() + PEER_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            Err(fs::TryLockError::WouldBlock) => {
                let why = format!("another process has held this lock for {} s", PEER_TIMEOUT.as_secs());
                return Err(refused(&path, why, "end that process; `fuser` on this file names it"));
            }
            Err(fs::TryLockError::Error(error)) => return Err(failed(error.to_string())),
        }
    }
}

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::system("socket", error))
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        let why = format!("a socket's path has at most 107 bytes, not {}", path.as_os_str().len());
        refused(path, why, "name a shorter folder: LINERATE_PORTS=PATH")
    })
}

/// Creates a listening socket at `path`, for users that `mode` and `group` admit.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the path is already served, belongs to another user,
/// or cannot be created.
pub fn listen_at(path: &Path, mode: u32, group: Option<u32>) -> Result<OwnedFd> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    create_folder(folder)?;
    let _lock = lock(folder)?;
    match connect_to(path) {
        Ok(None) => {}
        // A server that does not answer, or is not trusted, still owns the path.
        Ok(Some(_)) => return Err(refused(path, "another process serves it", "end that one first")),
        Err(error) => return Err(error),
    }
    // An old socket is replaced. Any other file belongs to something else and is kept.
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(refused(path, "it is not a socket", "remove it, or name another folder: LINERATE_PORTS=PATH"));
        }
        Ok(_) => drop(fs::remove_file(path)),
        Err(_) => {}
    }
    let socket = socket()?;
    let mend = "name another folder: LINERATE_PORTS=PATH";
    // An absolute path, so that clients in other working directories find the server.
    let absolute = std::path::absolute(path).map_err(|error| refused(path, error.to_string(), mend))?;
    bind(&socket, &address(&absolute)?)
        .map_err(|error| refused(path, format!("cannot listen there: {error}"), mend))?;
    // Clients are admitted only just before the socket listens.
    let allow = || {
        if group.is_some() {
            std::os::unix::fs::lchown(path, None, group)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    allow().map_err(|error| {
        refused(path, format!("cannot set its group or mode: {error}"), "choose a group that you are in")
    })?;
    listen(&socket, BACKLOG).map_err(|error| Error::system("listen", error))?;
    Ok(socket)
}

/// Connects to the server at `path`; `None` if there is none.
///
/// # Errors
/// As [`connect_socket`].
pub fn connect_to(path: &Path) -> Result<Option<OwnedFd>> {
    let socket = socket()?;
    Ok(connect_socket(socket.as_fd(), path)?.then_some(socket))
}

/// Connects a socket to the server at `path`; returns false if there is no server.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the server does not admit this user, does not answer,
/// or belongs to another user, who could withhold the ports and read the packets. Also if other users can replace the
/// socket.
pub fn connect_socket(socket: BorrowedFd<'_>, path: &Path) -> Result<bool> {
    let address = address(path)?;
    let failed = |error: Errno| Error::system("fcntl", error);
    rustix::io::ioctl_fionbio(socket, true).map_err(failed)?;
    let until = Instant::now() + PEER_TIMEOUT;
    loop {
        match connect(socket, &address) {
            Ok(()) => break,
            // A socket of another type belongs to something else, such as a port for a virtual machine.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::PROTOTYPE) => return Ok(false),
            // The backlog is full.
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::AGAIN) => {
                let why = format!("its server has accepted no connection for {} s", PEER_TIMEOUT.as_secs());
                return Err(refused(path, why, "resume it, or end it and start another server"));
            }
            Err(error) => {
                let why = format!("cannot connect: {}", io::Error::from(error));
                return Err(refused(path, why, Remedy::Admit));
            }
        }
    }
    let server = socket_peercred(socket).map_err(|error| Error::system("getsockopt(SO_PEERCRED)", error))?;
    if !is_trusted(server.uid.as_raw()) {
        let why =
            format!("it is served by process {} of user {}, neither root nor you", server.pid, server.uid.as_raw());
        return Err(refused(
            path,
            why,
            "let root serve it, or serve it yourself; LINERATE_PORTS=PATH names another folder",
        ));
    }
    check(path.parent().unwrap_or(Path::new("/")))?;
    rustix::io::ioctl_fionbio(socket, false).map_err(failed)?;
    Ok(true)
}

/// Returns the path of the server that a socket is connected to.
pub fn server_of(socket: BorrowedFd<'_>) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(getpeername(socket).ok()??).ok()?;
    Some(Path::new(std::ffi::OsStr::from_bytes(address.path_bytes()?)).to_path_buf())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ports");
        (folder, path)
    }

    fn message<T>(outcome: Result<T>) -> String {
        outcome.map(drop).unwrap_err().with_hint()
    }

    #[test]
    fn a_lock_that_is_a_link_harms_no_other_file() {
        let (keep, path) = folder();
        fs::create_dir(&path).unwrap();
        let victim = keep.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, path.join(".lock")).unwrap();
        assert!(message(listen_at(&path.join("any"), 0o600, None)).contains(".lock"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // The contents of a regular file are kept as well.
        fs::remove_file(path.join(".lock")).unwrap();
        fs::write(path.join(".lock"), "kept").unwrap();
        listen_at(&path.join("any"), 0o600, None).unwrap();
        assert_eq!(fs::read_to_string(path.join(".lock")).unwrap(), "kept");
    }

    #[test]
    fn a_file_that_is_no_socket_is_kept() {
        let (keep, path) = folder();
        fs::create_dir(&path).unwrap();
        let any = path.join("any");
        fs::write(&any, "precious").unwrap();
        assert!(message(listen_at(&any, 0o600, None)).contains("it is not a socket"));
        assert_eq!(fs::read_to_string(&any).unwrap(), "precious");
        fs::rename(&any, keep.path().join("elsewhere")).unwrap();
        symlink(keep.path().join("elsewhere"), &any).unwrap();
        assert!(listen_at(&any, 0o600, None).is_err() && any.is_symlink());
        // A socket left over from a server that exited is replaced.
        fs::remove_file(&any).unwrap();
        drop(listen_at(&any, 0o600, None).unwrap());
        assert!(any.exists());
        listen_at(&any, 0o600, None).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused() {
        let (keep, path) = folder();
        let _server = listen_at(&path.join("any"), 0o600, None).unwrap();
        assert_eq!(fs::metadata(path.join(".lock")).unwrap().mode() & 0o777, 0o600);
        for (folder, mode, is_fit) in [
            (&*path, 0o777, false),
            (&*path, 0o1777, false),
            (&*path, 0o775, false),
            (&*path, 0o755, true),
            (keep.path(), 0o777, false),
            (keep.path(), 0o1777, true),
        ] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
            let outcomes =
                [connect_to(&path.join("any")).map(drop), listen_at(&path.join("again"), 0o600, None).map(drop)];
            for outcome in outcomes {
                assert_eq!(outcome.is_ok(), is_fit, "{} {mode:o}: {outcome:?}", folder.display());
                let mend = match mode {
                    0o1777 => "name a folder of your own".to_string(),
                    _ => format!("chmod go-w {}", folder.display()),
                };
                assert!(is_fit || message(outcome).contains(&mend));
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
            let _ = fs::remove_file(path.join("again"));
        }
    }

    #[test]
    fn another_users_folder_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return; // only root can give a folder to another user
        }
        let (keep, path) = folder();
        fs::create_dir(&path).unwrap();
        let own = |path: &Path, user| std::os::unix::fs::lchown(path, Some(user), None).unwrap();
        own(&path, 12_345);
        assert!(message(listen_at(&path.join("any"), 0o600, None)).contains("belongs to user 12345"));
        own(&path, 0);
        // A link that another user owns, pointing to a folder of this user.
        let link = keep.path().join("link");
        symlink(&path, &link).unwrap();
        own(&link, 12_345);
        assert!(message(listen_at(&link.join("any"), 0o600, None)).contains("belongs to user 12345"));
    }
}
