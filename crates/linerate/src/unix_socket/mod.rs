//! Unix sockets of protocols whose messages carry descriptors: vfio-user's and vhost-user's.
//!
//! - `listener`: the socket that a server creates
//! - `peers`: the other side, which comes and goes
//! - `connection`: messages in whatever parts they arrive

mod connection;
mod listener;
#[cfg(feature = "vhost")]
mod peers;

pub use connection::{Connection, MOST_DESCRIPTORS, Message, MessageHeader};
pub use listener::listen;
#[cfg(feature = "vhost")]
pub use peers::{AGAIN, Peers, connect};
