//! Names of ports, and of the sockets that serve them.

use std::path::{Path, PathBuf};

use linerate_core::error::{Error, Result};
use linerate_core::port::is_vale;

/// Returns the socket that serves a port: a file in `folder` named after the port's switch or interface.
///
/// # Errors
/// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if that is not the name of a file directly in the folder.
pub fn socket_of(folder: &Path, name: &str) -> Result<PathBuf> {
    let base = base(name);
    if base.is_empty() || base.starts_with('.') || !base.chars().all(|c| c.is_ascii_graphic() && c != '/') {
        let why =
            "a switch or an interface has a name of letters, digits and signs, without '/', and not beginning with '.'";
        return Err(Error::bad_name(name.escape_default().to_string(), why.to_string()));
    }
    Ok(folder.join(base))
}

/// Returns the name of the pipe that a name belongs to, and the index of its end.
pub fn pipe_of(name: &str) -> (String, usize) {
    (name.replace('}', "{"), usize::from(name.contains('}')))
}

/// Returns the name of a port's socket: its switch or its interface.
pub fn base(name: &str) -> &str {
    let end = |c: char| if is_vale(name) { c == ':' } else { "{}^/*+".contains(c) };
    name.split(end).next().unwrap_or(name)
}
