//! Cancellation of the program's threads (pthread_cancel(3)), and panics.
//!
//! A cancelled thread unwinds its stack through this object's functions. Rust defines that only for functions that have no
//! destructor to run and no `catch_unwind` at that moment, and whose calls are `C-unwind`. So there are three kinds of code:
//!
//! - An exported function has nothing to drop. It may be cancelled at any instruction, if the program has chosen that
//!   (`PTHREAD_CANCEL_ASYNCHRONOUS`). All of its work is in [`deferred`], which the compiler does not inline: a function with
//!   destructors has a table of its calls, and unwinding from any other instruction ends the program.
//! - In [`deferred`] a thread is cancelled only in calls of the C library that are cancellation points: those that wait. Nothing is
//!   to be dropped there, and no lock is held.
//! - Everything else runs in [`guarded`], where a thread is not cancelled. A wait there cannot be cancelled.
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

/// Runs the work of an exported function: the thread is cancelled at cancellation points only. That neither the result nor
/// `work` has a destructor is checked by the compiler.
#[inline(always)]
pub fn deferred<T: Copy>(work: impl FnOnce() -> T + Copy) -> T {
    let mut before = 0;
    // SAFETY: there is room for the type.
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

/// Runs this object's code in a thread of the program. The thread is not cancelled meanwhile. A panic ends here, as
/// `EIO`.
pub fn guarded<T>(panicked: T, work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: there is room for the state.
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
    // SAFETY: as the caller says.
    unsafe { pthread_testcancel() };
}
