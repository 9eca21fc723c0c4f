//! `liblinerate_netmap.so`: runs netmap programs without its kernel module.
//!
//! Preloaded, or linked before the C library, it handles a program's calls for `/dev/netmap` (netmap(4)). All other
//! calls go to the kernel. Ports are served by [`linerate::share`]: by `linerate serve`, or by a server process that
//! this library starts.
//!
//! A descriptor of `/dev/netmap` is a socket connected to the server. It works in every process that has it: in a
//! child, in a program that it was passed to, and after execve(2).
//!
//! - `calls`: the functions of the C library that this library replaces
//! - `table`: the descriptors of `/dev/netmap`
//! - `descriptor`: the port that a descriptor is bound to
//! - `server`: starts a server if there is none; also the server's main function
//! - `control`: `NIOCCTRL` and its requests; `legacy`: `NIOCREGIF` and `NIOCGINFO` of the older API
//! - `request`: requests and options in the program's memory
//! - `csb`: CSB mode, with head, cur and tail in the program's own memory (`entries`), and the loop that syncs for it
//! - `waiting`: poll(2), select(2) and epoll(7) on sets that include such descriptors
//! - `header`: the structures and constants of `net/netmap.h`
//! - `real`: the C library's own versions of the replaced functions
//!
//! [`linerate_preload`] holds what this library shares with libpcap's: the C library's functions, the descriptor table,
//! access to the program's memory, and the threading rules.

mod calls;
mod control;
mod csb;
mod descriptor;
mod entries;
mod header;
mod legacy;
mod real;
mod request;
mod server;
mod table;
mod waiting;
