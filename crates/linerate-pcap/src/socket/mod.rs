//! Packet sockets (packet(7)) on ports: programs that send by `AF_PACKET` instead of libpcap.
//!
//! A packet socket that is bound to a port is one end of a socket pair under the program's number. So the kernel's own
//! calls send, receive and wait, and duplicates and children have the same socket. A thread moves frames between the
//! other end and the port.
//!
//! - `calls`: the functions of the C library that this object replaces
//! - `interfaces`: the same for names of interfaces
//! - `control`: ioctl(2) and options; `messages`: sending and receiving with addresses
//! - `netlink`: dumps of links
//! - `table`: the numbers that are packet sockets
//! - `shared`: a libpcap handle's port where this process has packet sockets on the same port
//! - `mover`: the thread of a link; `link`: an open port and its members; `member`: one end of a pair
//! - `frame`: what packet(7) says about a frame; `names`: indexes of ports
//! - `system`: the replaced functions of the C library

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
