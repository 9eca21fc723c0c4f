//! Names of ports, and of the sockets that they are served at.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Returns where the port's name is served: at a socket in `folder` which has the name of its switch or interface.
///
/// # Errors
/// [`Error::BadName`] where that would be no file of the folder's own.
pub fn socket_of(folder: &Path, name: &str) -> Result<PathBuf> {
    let base = base(name);
    if base.is_empty() || base.starts_with('.') || !base.chars().all(|c| c.is_ascii_graphic() && c != '/') {
        let why =
            "a switch or an interface has a name of letters, digits and signs, without '/' and without '.' in front";
        return Err(Error::BadName { name: name.escape_default().to_string(), why: why.to_string() });
    }
    Ok(folder.join(base))
}

/// Tells whether a name is of a pipe's end.
pub fn is_pipe(name: &str) -> bool {
    name.contains(['{', '}'])
}

/// A pipe's own name, and which end a name is of.
pub fn pipe_of(name: &str) -> (String, usize) {
    (name.replace('}', "{"), usize::from(name.contains('}')))
}

/// The name that a port's socket has: its switch, or its interface.
pub fn base(name: &str) -> &str {
    let end = |c: char| if name.starts_with("vale") { c == ':' } else { "{}^/*+".contains(c) };
    name.split(end).next().unwrap_or(name)
}
