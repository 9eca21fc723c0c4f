//! Unix sockets of protocols whose messages carry descriptors: vfio-user's and vhost-user's.
//!
//! - `listener`: the socket that a server creates
//! - `connection`: messages in whatever parts they arrive

mod connection;
mod listener;

pub use connection::{Connection, MOST_DESCRIPTORS, Message, MessageHeader};
pub use listener::listen;
