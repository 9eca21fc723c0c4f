//! Ports: a [`Port`] to control it, and queues that move to the threads that poll them. `linerate-core` defines how
//! kinds of ports are implemented.

pub use linerate_core::port::*;

pub use crate::options::Options;
