//! The client's end: a program that uses ports of a server.
//!
//! - `requests`: [`Client`](requests::Client): sends requests to the server; `open`: opens ports
//! - `shared_port`: [`SharedPort`](shared_port::SharedPort): netmap's view of a served port; `rings`: its rings, and
//!   how each is synced
//! - `served_port`: [`ServedPort`](served_port::ServedPort): a served port as a port of this process
//! - `forward`: passes marked packets between a card and the host's stack; `indirect`: packets outside all buffers
//! - `copier`: copies packets sent into a pipe for the pipe's monitors

pub mod copier;
pub mod forward;
pub mod indirect;
pub mod open;
pub mod requests;
pub mod rings;
pub mod served_port;
pub mod shared_port;
