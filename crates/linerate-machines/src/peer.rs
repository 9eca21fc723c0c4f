//! Test tools for ports with a peer: waiting for the other side.

use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Instant;

use linerate_core::port::{Link, Port};
use linerate_testkit::TIME_LIMIT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// Makes a folder for a socket; returns it and the socket's path.
pub fn socket() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    (folder, path)
}

/// Waits until another thread makes `is_so` true. On a timeout, the test fails with the source of this call.
#[track_caller]
pub fn until(is_so: impl FnMut() -> bool) {
    let caller = Location::caller();
    linerate_testkit::until(std::fmt::from_fn(|f| f.write_str(&source_of(caller))), is_so);
}

/// Returns the source lines of a call, up to the first line that is indented like the call and ends with a semicolon.
fn source_of(caller: &Location) -> String {
    // File paths are relative to the workspace's folder, in which the compiler was started.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let source = std::fs::read_to_string(workspace.join(caller.file())).unwrap_or_default();
    let lines: Vec<&str> = source.lines().skip(caller.line() as usize - 1).collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let own = lines.first().map_or(0, |line| indentation(line));
    let end = lines.iter().position(|line| indentation(line) == own && line.ends_with(';'));
    lines[..end.map_or(0, |end| end + 1)].join("\n")
}

#[track_caller]
pub fn until_link(port: &Port, is_up: bool) {
    let what = format!("the link of {} to be up: {is_up}", port.name());
    linerate_testkit::until(what, || (port.link().unwrap() != Link::Down) == is_up);
}

/// Accepts the next connection, and sets a timeout for reads.
#[track_caller]
pub fn accepted(listener: &UnixListener) -> UnixStream {
    let most = Timespec { tv_sec: TIME_LIMIT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&most)), Ok(1), "nothing connects");
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

#[test]
fn a_wait_says_what_it_waits_for() {
    #[track_caller]
    fn source(_: impl Fn() -> bool) -> String {
        source_of(Location::caller())
    }
    let said = source(|| {
        Instant::now() == Instant::now() // two lines
    });
    assert!(said.starts_with("    let said = source(|| {\n") && said.ends_with("// two lines\n    });"), "{said}");
    let said = source(|| false);
    assert_eq!(said, "    let said = source(|| false);");
}
