//! Unix sockets of protocols whose messages carry descriptors: vfio-user's, vhost-user's and memif's.
//!
//! - `connect`: the socket of a client
//! - `listener`: the socket that a server creates
//! - `peers`: the other side, which comes and goes
//! - `connection`: messages in whatever parts they arrive

mod connect;
mod connection;
mod listener;
#[cfg(any(feature = "memif", feature = "vhost"))]
mod peers;

pub use connect::{connect, connect_as};
pub use connection::{Connection, MOST_DESCRIPTORS, Message, MessageHeader};
pub use listener::{listen, listen_as};
#[cfg(any(feature = "memif", feature = "vhost"))]
pub use peers::{AGAIN, Peers};
