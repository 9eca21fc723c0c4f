//! Packet sockets (packet(7)) on ports, for programs that send through `AF_PACKET` instead of libpcap.
//!
//! When a packet socket is bound to a port, one end of a socket pair replaces it under the program's descriptor. The
//! kernel's own calls then send, receive and wait, and duplicates and child processes share the socket. A thread moves
//! frames between the other end and the port.
//!
//! - `calls`: the functions of the C library that this library replaces
//! - `interfaces`: the same for interface names
//! - `control`: ioctl(2) and socket options; `messages`: sending and receiving with addresses
//! - `netlink`: dumps of links
//! - `table`: the descriptors that are packet sockets
//! - `shared`: a libpcap handle on a port on which this process has packet sockets too
//! - `mover`: the thread of a link; `link`: an open port and its members; `member`: one end of a pair
//! - `frame`: the addresses of packet(7); `names`: interface indexes of ports
//! - `system`: the C library's own versions of the replaced functions

mod calls;
mod control;
pub mod frame;
mod interfaces;
pub mod link;
pub mod member;
mod messages;
mod mover;
pub mod names;
mod netlink;
pub mod shared;
pub mod system;
pub mod table;
