//! Streams and signals as the process has inherited them, before Rust's runtime changes them: it opens `/dev/null` in
//! place of closed standard streams, and ignores SIGPIPE.

use std::sync::atomic::{AtomicBool, Ordering};

/// The standard streams that were closed (`<&- >&-`).
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Signals that the runtime or this program changes, and whether they were ignored.
const CHANGED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGCHLD];
static IGNORED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

#[allow(unsafe_code)]
// SAFETY: the C library calls the functions of this section once each, with arguments that this one ignores, before
// `main`; it uses neither Rust's runtime nor memory.
#[unsafe(link_section = ".init_array")]
#[used]
static RECORD: extern "C" fn() = {
    extern "C" fn record() {
        for (stream, is_closed) in CLOSED.iter().enumerate() {
            // SAFETY: the call only reads a descriptor's flags, and fails if it is not open.
            let flags = unsafe { libc::fcntl(stream as libc::c_int, libc::F_GETFD) };
            is_closed.store(flags < 0, Ordering::Relaxed);
        }
        for (signal, is_ignored) in CHANGED.into_iter().zip(&IGNORED) {
            // SAFETY: all zeros is a value of the structure, which the call fills in.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the call reads a signal's action into a structure that outlives it.
            let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            is_ignored.store(result == 0 && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        }
    }
    record
};

/// Returns the numbers of the standard streams that were closed.
pub fn closed_streams() -> impl Iterator<Item = i32> {
    (0..).zip(&CLOSED).filter(|(_, is_closed)| is_closed.load(Ordering::Relaxed)).map(|(stream, _)| stream)
}

/// Returns SIGPIPE and SIGCHLD, and whether each was ignored.
pub fn signal_actions() -> impl Iterator<Item = (i32, bool)> {
    CHANGED.into_iter().zip(&IGNORED).map(|(signal, is_ignored)| (signal, is_ignored.load(Ordering::Relaxed)))
}
