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

/// Two descriptors to wait for, and a timeout. A negative descriptor is ignored.
#[derive(Clone, Copy)]
pub struct Sleep {
    pub descriptors: [c_int; 2],
    pub longest: libc::timespec,
}

impl Sleep {
    /// Waits until a descriptor is readable, a signal arrives, or the timeout expires. A cancellation point: callers
    /// must have nothing to drop and hold no locks.
    pub fn sleep(self) {
        let mut events = self.descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: there are two events; a null signal mask leaves the mask unchanged.
        unsafe { ppoll(events.as_mut_ptr(), 2, &raw const self.longest, std::ptr::null()) };
    }
}
