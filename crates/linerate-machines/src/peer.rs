//! Waiting for the other side, in the tests of the rooms that have one.

use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Instant;

use linerate_core::port::{Link, Port};
use linerate_testkit::MOST;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// A folder for a socket, and the socket's path.
pub fn socket() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    (folder, path)
}

/// Waits until something is so that another thread does. If it does not happen, the test fails with the source of this call.
#[track_caller]
pub fn until(is_so: impl FnMut() -> bool) {
    let caller = Location::caller();
    linerate_testkit::until(std::fmt::from_fn(|f| f.write_str(&source_of(caller))), is_so);
}

/// Returns the lines of a call in this crate's source: to the first line that is indented as the call is, and ends.
fn source_of(caller: &Location) -> String {
    // The compiler was started in the workspace's folder.
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

/// Accepts the next connection, each read of which has an end.
#[track_caller]
pub fn accepted(listener: &UnixListener) -> UnixStream {
    let most = Timespec { tv_sec: MOST.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&most)), Ok(1), "nothing connects");
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(MOST)).unwrap();
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
