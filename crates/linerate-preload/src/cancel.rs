//! Cancellation of the program's threads (pthread_cancel(3)), and panics.
//!
//! A cancelled thread unwinds its stack through this library's functions. Rust defines this only for functions that
//! have no destructor to run and no `catch_unwind` at that moment, and whose calls are `C-unwind`. So there are three
//! kinds of code:
//!
//! - An exported function has nothing to drop. If the program has chosen this (`PTHREAD_CANCEL_ASYNCHRONOUS`), it may
//!   be cancelled at any instruction. All its work is in [`deferred`], in a function that is not inlined: a function
//!   with destructors has a table of its calls, and unwinding from any other instruction ends the program.
//! - In [`deferred`] a thread is cancelled only in C library calls that are cancellation points, that is, that wait. At
//!   these calls there must be nothing to drop, and no lock may be held.
//! - All other code runs in [`guarded`], where a thread is not cancelled. A wait there cannot be cancelled.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::set_errno;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

/// Runs the work of an exported function. The thread is cancelled only at cancellation points. `Copy` ensures that
/// neither the result nor `work` has a destructor.
#[inline(always)]
pub fn deferred<T: Copy>(work: impl FnOnce() -> T + Copy) -> T {
    let mut before = 0;
    // SAFETY: `before` has room for the previous type.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut before) };
    let result = outlined(work);
    // SAFETY: the thread's previous type.
    unsafe { pthread_setcanceltype(before, null_mut()) };
    result
}

#[inline(never)]
fn outlined<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Runs this library's code in a thread of the program, with cancellation disabled. A panic is caught: sets errno(3) to
/// `EIO` and returns `panicked`.
pub fn guarded<T>(panicked: T, work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: `before` has room for the previous state.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        set_errno(libc::EIO);
        panicked
    });
    // SAFETY: the thread's previous state.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}

/// Ends the thread if it is cancelled.
///
/// # Safety
/// The callers, up to the program's own functions, have nothing to drop and no `catch_unwind` at this moment.
pub unsafe fn cancellation_point() {
    // SAFETY: by the caller's promise.
    unsafe { pthread_testcancel() };
}
