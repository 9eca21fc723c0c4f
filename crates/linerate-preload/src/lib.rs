//! Parts of shared objects that replace functions of the C library in a running program (`LD_PRELOAD`).
//!
//! `liblinerate_netmap.so` and `liblinerate_pcap.so` are made of this. An object defines the exported functions
//! (`#[unsafe(no_mangle)]`), and this crate exports none. Objects do not share state: each has its own copy of the
//! crate.
//!
//! A replaced function runs in the program's threads: in signal handlers, in children after fork(2) and vfork(2), and in
//! threads that are cancelled. These are the rules:
//!
//! - A call that is not for the object goes to the C library's own function unchanged ([`functions!`]).
//! - An exported function has nothing to drop. Its work runs in [`deferred`]; all of it that does not wait runs in
//!   [`guarded`] there. `src/cancel.rs` has the reasons.
//! - A number is not a descriptor's identity: the program may close it by a system call. [`Table`] compares the socket's
//!   cookie at each use.
//! - Only the process that owns the memory changes it ([`owns_memory`]): a child of vfork(2) borrows its parent's.
//! - A child of fork(2) has one thread: locks that others had must be free ([`hold_at_fork!`]).
//! - A pointer of the program may be wrong, which is `EFAULT` and not the end of the program ([`memory`]).
//! - errno(3) is the program's: a call that succeeds leaves it as it is ([`keeping_errno`]).
//! - stderr may be another file by now: [`report`] checks it before it writes.
//!
//! An object calls [`start`] from its `.init_array`, before the program has threads and children.

mod cancel;
mod descriptor;
mod errno;
mod fork;
mod function;
pub mod memory;
mod message;
mod process;
mod signals;
mod system;
mod table;

pub use cancel::{cancellation_point, deferred, guarded};
pub use descriptor::{cookie_of, copy_status, option, replace, set_option};
pub use errno::{errno, fail, keeping_errno, set_errno};
pub use function::Function;
/// For the macros of this crate.
#[doc(hidden)]
pub use libc;
pub use message::report;
pub use process::{owner, owns_memory};
pub use signals::without_signals;
pub use table::{Held, Table};

/// Prepares this crate when the object is loaded: remembers stderr, and makes this process the owner of its memory.
pub fn start() {
    message::start();
    process::start();
}
