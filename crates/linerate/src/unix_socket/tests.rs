//! Waiting for the other side, in the tests of the rooms that have one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::port::{Link, Port};

/// A folder for a socket, and the socket's path.
pub fn socket() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    (folder, path)
}

/// Waits until something is so that another thread does; fails after ten seconds.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not happen");
        std::thread::yield_now();
    }
}

#[track_caller]
pub fn until_link(port: &Port, is_up: bool) {
    until(|| (port.link().unwrap() != Link::Down) == is_up);
}
