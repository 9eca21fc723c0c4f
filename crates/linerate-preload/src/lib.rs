//! Building blocks for shared libraries that replace functions of the C library in a running program (`LD_PRELOAD`).
//!
//! `liblinerate_netmap.so` and `liblinerate_pcap.so` use this crate. Such a library defines the exported functions
//! (`#[unsafe(no_mangle)]`); this crate exports none. Libraries do not share state: each has its own copy of the crate.
//!
//! A replaced function runs in the program's threads: in signal handlers, in children after fork(2) and vfork(2), and
//! in threads that are cancelled. These are the rules:
//!
//! - A call that does not concern the library goes to the C library's function unchanged ([`functions!`]).
//! - An exported function has nothing to drop. Its work runs in [`deferred`]; inside it, everything that does not wait
//!   runs in [`guarded`]. `src/cancel.rs` explains why.
//! - A descriptor number does not identify a file, because the program may close it with a system call. [`Table`]
//!   compares the socket's cookie at each use.
//! - Only the process that owns the memory changes it ([`owns_memory`]). A child of vfork(2) borrows its parent's
//!   memory.
//! - A child of fork(2) has one thread, so locks that other threads held must be free ([`hold_at_fork!`]).
//! - An invalid pointer of the program returns `EFAULT`, and does not end the program ([`memory`]).
//! - errno(3) belongs to the program: a call that succeeds does not change it ([`keeping_errno`]).
//! - stderr may be a different file now: [`report`] checks it before writing.
//!
//! A library calls [`start`] from its `.init_array`, before the program has threads and children.

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
/// Used by the macros of this crate.
#[doc(hidden)]
pub use libc;
pub use message::report;
pub use process::{owner, owns_memory};
pub use signals::without_signals;
pub use table::{EntryRef, Table};

/// Initializes this crate when the preloaded library is loaded: records stderr, and makes this process the owner of its
/// memory.
pub fn start() {
    message::start();
    process::start();
}
