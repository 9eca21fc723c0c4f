//! Sockets that a process listens at.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::connect_as;
use crate::error::{Error, ErrorKind, Result};

/// The longest path of a socket, in bytes (unix(7)).
const LONGEST_PATH: usize = 107;
/// The most clients that may wait to be accepted; the kernel's limit may be lower.
const WAITING: i32 = 128;

/// Listens at `path`, and replaces a socket without a server.
///
/// # Errors
/// [`ErrorKind::BadName`](crate::ErrorKind::BadName) if no socket can be created at the path,
/// [`ErrorKind::Unusable`](crate::ErrorKind::Unusable) if it cannot be used.
pub fn listen(path: &Path) -> Result<UnixListener> {
    listen_as(SocketType::STREAM, path)
}

/// The file of a socket at which this process listens. Dropping this value removes the file, unless another file has
/// replaced it: another server may have created one after this file was moved or removed.
pub struct SocketFile {
    path: PathBuf,
    /// The device and inode number of the file.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Records the file that was created at `path`.
    pub fn at(path: &Path) -> SocketFile {
        SocketFile { path: path.to_path_buf(), identity: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
}

/// As [`listen`], with a socket of this type.
///
/// # Errors
/// As [`listen`].
pub fn listen_as(kind: SocketType, path: &Path) -> Result<UnixListener> {
    let fail = |why: String, mend: &'static str| Error::socket(path, why, mend);
    let bad_path = |why: String, mend: &'static str| {
        Error::new(ErrorKind::BadName, path.display().to_string(), why).with_remedy(mend)
    };
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        match connect_as(kind, path).map_err(|error| (Errno::from_io_error(&error), error)) {
            // The socket has no server.
            Err((Some(Errno::CONNREFUSED), _)) => {}
            // A socket of another type, or with a full queue, also has a server.
            Ok(_) | Err((Some(Errno::PROTOTYPE | Errno::AGAIN), _)) => {
                return Err(fail(
                    "a server is listening there already".to_string(),
                    "choose another path, or stop that server",
                ));
            }
            Err((Some(Errno::ACCESS), _)) => {
                return Err(fail(
                    "a socket that this user may not access exists there, and a server may be using it".to_string(),
                    "choose another path",
                ));
            }
            // For example, no descriptor is free. Do not remove the socket of a running server.
            Err((_, error)) => {
                return Err(fail(
                    format!("a socket exists there, and it is not known whether a server is using it: {error}"),
                    "choose another path, or remove the socket if no server listens there",
                ));
            }
        }
        std::fs::remove_file(path)
            .map_err(|e| fail(format!("an old socket exists there and cannot be removed: {e}"), "remove it"))?;
    }
    let bind = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, WAITING)?;
        Ok(UnixListener::from(socket))
    };
    bind().map_err(|e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            bad_path("a file that is not a socket exists there".to_string(), "choose another path, or remove the file")
        }
        // unix(7): `sun_path` has 108 bytes, of which the last is 0.
        _ if path.as_os_str().len() > LONGEST_PATH => bad_path(
            format!("its path has {} bytes; a socket's path has at most {LONGEST_PATH}", path.as_os_str().len()),
            "choose a shorter path",
        ),
        _ => fail(format!("cannot listen there: {e}"), "choose a path in a folder that you may write to"),
    })
}
