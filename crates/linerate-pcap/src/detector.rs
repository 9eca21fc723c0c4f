//! A trap for the system's libpcap, if a program passes a handle of this object to it.
#![allow(unsafe_code)]

use linerate_preload::report;

/// As many words of this are in front of a handle as the system's `struct pcap` has, which begins with functions: whichever of them
/// it calls. Calls that only read a number from it are not detected.
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
