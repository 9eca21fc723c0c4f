//! The sleep of a thread that waits for frames.
#![allow(unsafe_code)]

use std::ffi::c_int;

unsafe extern "C-unwind" {
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Two descriptors to wait for, and how long. A negative descriptor is none.
#[derive(Clone, Copy)]
pub struct Sleep {
    pub descriptors: [c_int; 2],
    pub longest: libc::timespec,
}

impl Sleep {
    /// Waits until a descriptor is readable, a signal comes, or the time is over. It is a cancellation point: the callers
    /// have nothing to drop, and no locks.
    pub fn sleep(self) {
        let mut events = self.descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: the two events; a signal mask of null changes nothing.
        unsafe { ppoll(events.as_mut_ptr(), 2, &raw const self.longest, std::ptr::null()) };
    }
}
