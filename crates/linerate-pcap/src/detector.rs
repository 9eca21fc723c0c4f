//! A trap for programs that pass a handle of this library to the system's libpcap.
#![allow(unsafe_code)]

use linerate_preload::report;

/// The function that fills the first `WORDS` words of a handle. The system's `struct pcap` begins with function
/// pointers, so any of them that the system's library calls is this one. Calls that only read a number from the handle
/// are not detected.
pub const DETECTOR: unsafe extern "C" fn() -> ! = detected;
pub const WORDS: usize = 128;

unsafe extern "C" fn detected() -> ! {
    report(
        "the program has passed a handle of linerate's libpcap to the system's libpcap, which it has opened by its path; \
         open libpcap.so.0.8",
    );
    // SAFETY: it has no requirements.
    unsafe { libc::abort() }
}
