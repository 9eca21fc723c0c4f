//! `liblinerate_pcap.so`: libpcap's programs on every port.
//!
//! The object has libpcap's name (`libpcap.so.0.8`) and all its functions. Preloaded, or found in front of the system's
//! by `LD_LIBRARY_PATH`, it opens names of ports (`sim:0`, `vale0:a+rt`); all other names, capture files, filters and
//! tables are the system's libpcap's, which it opens by its path. Preloaded, it also has packet sockets on ports.
//!
//! - `calls`: the functions that programs call with a handle
//! - `handle`: a handle (`pcap_t`): what it is set to, and its port once it is activated
//! - `active`: a port that a handle captures from: frames and waiting; `side`: its counters and its sending side, for all
//!   threads; `latch`: their lock; `longest`: how long its frames may be
//! - `read`: `pcap_dispatch` and the like: frames go to the program
//! - `sleep`: the sleep of a thread that waits for frames
//! - `devices`: `pcap_findalldevs`: ports that are served are listed, too
//! - `socket`: packet sockets on ports, for programs that do not send by libpcap
//! - `filter`: a program's filter
//! - `entire`: the functions that are the system's alone
//! - `mixed`: programs that have both libraries; `detector`: what the system's finds in a handle of this one
//! - `real`: the system's libpcap
//! - `abi`: the structures and numbers of `pcap/pcap.h`
//!
//! [`linerate_preload`] has what it shares with netmap's object: the real functions of the C library, the table of numbers,
//! access to the program's memory, and the rules for its threads.

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
