//! Ports: a [`Port`] to control it, and queues that move to the threads that poll them. How ports are made is `linerate-core`.

pub use linerate_core::port::*;

pub use crate::options::Options;
