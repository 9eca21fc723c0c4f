//! Unix sockets for protocols that pass file descriptors: vfio-user, vhost-user and memif.
//!
//! - `connect`: the socket of a client
//! - `listener`: the socket of a server; `lobby`: accepted connections that have not sent a complete message yet
//! - `peers`: accepts or establishes connections, one after the other; `control_thread`: the thread that handles them
//! - `connection`: reassembles messages that arrive in parts

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
pub use lobby::{FirstMessage, Lobby, RETRY_INTERVAL};
pub use peers::Peers;
