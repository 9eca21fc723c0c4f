//! The client's end: a program that uses ports of a server.
//!
//! - `requests`: [`Client`](requests::Client): asks the server; `open`: opens ports
//! - `shared_port`: [`SharedPort`](shared_port::SharedPort): a served port in netmap's form; `rings`: its rings, and
//!   what a sync does to each
//! - `served_port`: [`ServedPort`](served_port::ServedPort): a served port as one of this process's ports
//! - `forward`: packets that pass between a card and the host's stack by a mark; `indirect`: packets outside all
//!   buffers
//! - `copier`: copies of packets sent into a pipe, for the pipe's monitors

pub mod copier;
pub mod forward;
pub mod indirect;
pub mod open;
pub mod requests;
pub mod rings;
pub mod served_port;
pub mod shared_port;
