//! Tools of the tests of all crates. Whatever goes wrong ends the test, with a message.
//!
//! It uses no other crate of the workspace, so that the library's own tests can use it.
//!
//! - `wait`: waits that end
//! - `process`: programs that end with their test
//! - `namespace`: network namespaces that end with their test
//! - `debian`: the Debians whose programs tests run
//! - `build`: files that were built with a test, and programs in C

mod build;
mod debian;
mod namespace;
mod process;
mod wait;

pub use build::{built, compiled};
pub use debian::Debian;
pub use namespace::Namespace;
pub use process::{POLL, Process, ended_with, expect, is_in_state, text};
pub use wait::{Deadline, InTime, MOST, Timely, end_of, output_of, until};
