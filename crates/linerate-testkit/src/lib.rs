//! Tools for the tests of all crates. Any failure ends the test with a message.
//!
//! This crate does not depend on other crates of the workspace, so that the library's own tests can use it.
//!
//! - `wait`: waits with a time limit
//! - `process`: programs that end with their test
//! - `namespace`: network namespaces that are deleted with their test
//! - `debian`: the Debian releases whose programs tests run
//! - `exchange`: data that crosses a network in both directions
//! - `build`: files that cargo built for a test, and C programs

mod build;
mod debian;
mod exchange;
mod namespace;
mod process;
mod wait;

pub use build::{built, compiled};
pub use debian::Debian;
pub use exchange::{exchange, mebibytes};
pub use namespace::Namespace;
pub use process::{POLL, Process, ended_with, expect, is_in_state, text};
pub use wait::{Deadline, OutputTimeout, TIME_LIMIT, Timely, end_of, output_of, until};
