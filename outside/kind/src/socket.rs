//! A datagram socket that is bound to a path.

use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use linerate::{Error, ErrorKind, Remedy, Result};

/// A bound socket, which does not block. Dropping it removes its file.
pub struct Socket {
    pub socket: UnixDatagram,
    path: PathBuf,
    /// The file's number, to recognise another file at the same path.
    file: Option<u64>,
}

impl Socket {
    /// Binds `path`, for the port `port`. Replaces a socket's file that no process has bound any more. If two processes
    /// do this at the same moment, the peer reaches only the later of them.
    pub fn bind(port: &str, path: &Path) -> Result<Socket> {
        let bound = match UnixDatagram::bind(path) {
            Err(error) if error.kind() == Io::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path).and_then(|()| UnixDatagram::bind(path))
            }
            bound => bound,
        };
        let socket = bound.map_err(|error| explain(port, path, error))?;
        // From here on, an error removes the file.
        let socket = Socket { socket, path: path.to_path_buf(), file: number(path) };
        socket.socket.set_nonblocking(true).map_err(|error| Error::system("fcntl", error))?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.file.is_some() && number(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the number of the file at a path.
fn number(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|file| file.ino())
}

/// Returns an error if a path is too long for a socket.
pub fn check(port: &str, path: &Path) -> Result<()> {
    // The kernel allows one byte more, but the standard library does not.
    if path.as_os_str().len() <= 107 {
        return Ok(());
    }
    let why = format!("a socket's path has at most 107 bytes: {}", path.display());
    let remedy = Remedy::Step("use a shorter path, for example in /run or /tmp".into());
    Err(Error::new(ErrorKind::BadName, port, why).with_remedy(remedy))
}

/// Returns whether a process has bound a datagram socket to this path.
pub fn is_bound(path: &Path) -> bool {
    probe(path).is_ok()
}

/// Returns whether the path is a socket's file whose process has ended.
fn is_abandoned(path: &Path) -> bool {
    // Other files refuse connections, too.
    is_socket(path) && probe(path).is_err_and(|error| error.kind() == Io::ConnectionRefused)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Connects another socket to a path; the process there does not notice it.
fn probe(path: &Path) -> io::Result<()> {
    UnixDatagram::unbound()?.connect(path)
}

/// Returns the error of a path that cannot be bound.
fn explain(port: &str, path: &Path, error: io::Error) -> Error {
    let path_text = path.display();
    let (kind, why, remedy) = match error.kind() {
        // Also a socket of another type, or of a user that this process may not connect to.
        Io::AddrInUse if is_socket(path) => {
            (ErrorKind::InUse, format!("another port or program has the socket {path_text}"), "close it, or choose")
        }
        Io::AddrInUse => (ErrorKind::Exists, format!("there is another file at {path_text}"), "remove it, or choose"),
        Io::NotFound => (ErrorKind::Unusable, format!("there is no folder for {path_text}"), "create it, or choose"),
        Io::PermissionDenied => {
            let why = format!("this user may not create {path_text}");
            (ErrorKind::Denied, why, "change the folder's permissions, or choose")
        }
        _ => return Error::system("bind", error),
    };
    Error::new(kind, port, why).with_remedy(Remedy::Step(format!("{remedy} another path").into())).with_source(error)
}
