//! Blocking signals in the program's threads.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// The signals that a thread had blocked before. Dropping this value restores them.
struct Blocked(libc::sigset_t);

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the thread's previous set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// Runs `work` with all signals blocked in this thread. In threads that `work` starts they stay blocked, because the
/// program's handlers must run in the program's threads.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: there is room for both sets; each is initialized before it is used.
    let _blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Blocked(before.assume_init())
    };
    work()
}
