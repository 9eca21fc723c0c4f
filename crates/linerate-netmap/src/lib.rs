//! `liblinerate_netmap.so`: netmap's programs without its kernel module.
//!
//! Preloaded (or linked before the C library), it answers what a program asks of `/dev/netmap` (netmap(4)); all else goes
//! on to the kernel. Ports are served by [`linerate::share`]: by `linerate serve`, or by a process that this object starts.
//!
//! A descriptor of `/dev/netmap` is a socket that is connected to the server. It means the same in each process that has it:
//! a child, a program that it was passed to, one that was executed.
//!
//! - `calls`: the functions of the C library that are answered here, and which of their calls are for us
//! - `table`: which numbers of descriptors are ours
//! - `descriptor`: what a descriptor of `/dev/netmap` is bound to
//! - `server`: starts a server where there is none, and is it
//! - `control`: `NIOCCTRL` and its requests; `legacy`: `NIOCREGIF` and `NIOCGINFO` of the API before it
//! - `csb`: programs that keep head, cur and tail in memory of their own, and the loop that syncs for them
//! - `waiting`: poll(2), select(2) and epoll(7) with such descriptors among others
//! - `header`: the structures and numbers of `net/netmap.h`
//! - `real`: the C library and the kernel behind the functions that are answered here, and the program's memory

mod calls;
mod control;
mod csb;
mod descriptor;
mod header;
mod legacy;
mod real;
mod server;
mod table;
mod waiting;
