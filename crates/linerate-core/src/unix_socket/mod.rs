//! Unix sockets of protocols whose messages carry descriptors: vfio-user's, vhost-user's and memif's.
//!
//! - `connect`: the socket of a client
//! - `listener`: the socket that a server creates; `lobby`: connections there that have not said anything yet
//! - `peers`: the other side, which comes and goes; `control_thread`: the thread that meets it
//! - `connection`: messages in whatever parts they arrive

mod connect;
mod connection;
mod control_thread;
mod listener;
mod lobby;
mod peers;

pub use connect::{connect, connect_as};
pub use connection::{Connection, MOST_DESCRIPTORS, Message, MessageHeader};
pub use control_thread::ControlThread;
pub use listener::{SocketFile, listen, listen_as};
pub use lobby::{AGAIN, FirstMessage, Lobby};
pub use peers::Peers;
