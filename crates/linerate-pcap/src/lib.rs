//! `liblinerate_pcap.so`: libpcap for every port.
//!
//! The shared object has libpcap's name (`libpcap.so.0.8`) and exports all its functions. Use it with `LD_PRELOAD`, or
//! put it before the system's in `LD_LIBRARY_PATH`. It opens port names (`sim:0`, `vale0:a+rt`) itself. All other
//! names, capture files, filters and tables go to the system's libpcap, which it opens by path. Preloaded, it also
//! implements packet sockets on ports.
//!
//! - `calls`: the functions that take a handle
//! - `handle`: a handle (`pcap_t`): its settings, and its port once it is activated
//! - `active`: the receiving side of a handle's port; `side`: the sending side and the counters, for all threads;
//!   `latch`: the lock of both; `longest`: the maximum frame length
//! - `read`: `pcap_dispatch` and the other functions that deliver frames to the program
//! - `sleep`: the sleep of a thread that waits for frames
//! - `devices`: `pcap_findalldevs`, which also lists served ports
//! - `socket`: packet sockets on ports, for programs that do not send through libpcap
//! - `filter`: a program's filter
//! - `entire`: functions passed to the system's libpcap unchanged
//! - `mixed`: programs that load both libraries; `detector`: a trap for handles passed to the wrong library
//! - `real`: the system's libpcap
//! - `abi`: the structures and constants of `pcap/pcap.h`
//!
//! [`linerate_preload`] holds what this library shares with the one for netmap programs: the C library's functions, the
//! descriptor table, access to the program's memory, and the threading rules.

mod abi;
mod active;
mod calls;
mod detector;
mod devices;
mod entire;
mod filter;
mod handle;
mod latch;
mod longest;
mod mixed;
mod read;
mod real;
mod side;
mod sleep;
mod socket;
