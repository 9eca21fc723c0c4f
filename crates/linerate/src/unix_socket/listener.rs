//! Sockets that a process listens at.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::error::{Error, Result};

/// The longest path of a socket, in bytes (unix(7)).
const LONGEST_PATH: usize = 107;

/// Creates a socket at `path`, replacing one without a server.
///
/// # Errors
/// [`Error::Serve`] if the path cannot be used.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let fail = |why: String, mend: &str| Error::Serve { path: path.to_path_buf(), why, mend: mend.into() };
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(fail(
                "a server is listening there already".to_string(),
                "choose another path, or stop that server",
            ));
        }
        std::fs::remove_file(path)
            .map_err(|e| fail(format!("an old socket is there and cannot be removed: {e}"), "remove it"))?;
    }
    let listener = UnixListener::bind(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            fail("a file that is no socket is there".to_string(), "choose another path, or remove the file")
        }
        // unix(7): `sun_path` has 108 bytes, of which the last is 0.
        _ if path.as_os_str().len() > LONGEST_PATH => fail(
            format!("its path has {} bytes, and that of a socket at most {LONGEST_PATH}", path.as_os_str().len()),
            "choose a shorter path",
        ),
        _ => fail(e.to_string(), "choose a path in a folder that you may write to"),
    })?;
    listener.set_nonblocking(true).map_err(|e| Error::system("fcntl", e))?;
    Ok(listener)
}
