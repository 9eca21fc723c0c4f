//! `liblinerate_netmap.so`: netmap's programs without its kernel module.
//!
//! Preloaded, or linked before the C library, it answers a program's calls for `/dev/netmap` (netmap(4)). All other
//! calls go to the kernel. Ports are served by [`linerate::share`]: by `linerate serve`, or by a process that this
//! object starts.
//!
//! A descriptor of `/dev/netmap` is a socket that is connected to the server. It means the same in each process that
//! has it: in a child, in a program that it was passed to, and in a program that was executed.
//!
//! - `calls`: the functions of the C library that this object replaces
//! - `table`: the numbers that are descriptors of `/dev/netmap`
//! - `descriptor`: the port that a descriptor is bound to
//! - `server`: starts a server if there is none, and is that server
//! - `control`: `NIOCCTRL` and its requests; `legacy`: `NIOCREGIF` and `NIOCGINFO` of the older API
//! - `request`: requests and options in the program's memory
//! - `csb`: programs that keep head, cur and tail in memory of their own (`entries`), and the loop that syncs for them
//! - `waiting`: poll(2), select(2) and epoll(7) with such descriptors among others
//! - `header`: the structures and numbers of `net/netmap.h`
//! - `real`: the replaced functions of the C library
//!
//! [`linerate_preload`] has what it shares with libpcap's object: the real functions, the table of numbers, access to the
//! program's memory, and the rules for its threads.

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
