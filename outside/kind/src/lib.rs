//! A kind of port that a program outside linerate's repository adds: `unix:PATH?peer=OTHER`.
//!
//! Two processes exchange packets as datagrams of Unix sockets (unix(7)), one datagram per packet. Each process binds
//! its own path, and sends to the path of its peer. QEMU's `-netdev dgram` with `local.type=unix` is such a peer, too.
//!
//! ```
//! use linerate::{Batch, Options};
//!
//! # fn main() -> linerate::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = |name: &str| folder.path().join(name).display().to_string();
//! # let (a, b) = (path("a"), path("b"));
//! let names = [format!("unix:{a}?peer={b}"), format!("unix:{b}?peer={a}")];
//! let options = Options::default().with_port_kind(&outside_kind::UNIX);
//! let [mut left, mut right] = options.open([&names[0], &names[1]])?;
//! let (mut tx, mut rx, mut batch) = (left.tx(0)?, right.rx(0)?, Batch::new());
//! batch.push(left.pool(), &[7; 60]);
//! assert_eq!(tx.send(&mut batch), 1);
//! assert_eq!(rx.recv(&mut batch), 1);
//! assert_eq!(batch.packets().next().unwrap()[..], [7; 60]);
//! # Ok(()) }
//! ```
//!
//! Every process with write permission to the socket's file can send to the port. The file is removed when the port and
//! its queues are dropped. A file that a killed process left is replaced.
//!
//! - this file: the kind's declaration, and how a port is opened
//! - `socket`: binds a path; `queues`: receives and sends
#![forbid(unsafe_code)]

mod queues;
mod socket;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate::port::{
    Address, Config, Description, Device, Link, MTU, Opening, PortClass, PortKind, PortOption, QueueCounters, Receive,
    SoftwareDevice, SoftwarePort, Transmit, Value,
};
use linerate::{Error, Remedy, Result};
use queues::{UnixRx, UnixTx};
use socket::Socket;

/// `unix:PATH?peer=OTHER`, for [`linerate::Options::with_port_kind`].
pub static UNIX: PortKind = PortKind {
    description: Description {
        options: &[
            PortOption {
                name: "peer",
                value: Value::Text("PATH"),
                default: "",
                help: "the path of the peer's socket; required",
            },
            MTU,
        ],
        example: "unix:/run/a.sock?peer=/run/b.sock",
        summary: "packets as datagrams between two processes",
        no_link: "is the peer running?",
        class: PortClass::Peer,
        ..Description::new("unix", Address::Socket)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let (name, config) = (opening.name, opening.config);
    let options = config.options();
    for (direction, queues) in [("receive", options.rx_queues), ("transmit", options.tx_queues)] {
        if queues != 1 {
            return Err(Error::too_many_queues(config.name(), direction, queues, 1));
        }
    }
    let path = Path::new(name.rest());
    let peer = match name.option("peer") {
        None | Some("") => {
            let why = "the path of the peer's socket is missing";
            let remedy = format!("{name}?peer={}-peer", path.display());
            return Err(name.bad_option("peer", why).with_remedy(remedy));
        }
        Some(peer) => Path::new(peer),
    };
    if peer == path {
        let remedy = Remedy::Step("each of the two ports needs its own path".into());
        return Err(name.bad_option("peer", "it is the port's own path").with_remedy(remedy));
    }
    for path in [path, peer] {
        socket::check(config.name(), path)?;
    }
    let socket = Arc::new(Socket::bind(config.name(), path)?);
    Ok(Box::new(SoftwarePort::new(config, UnixPort { socket, peer: peer.to_path_buf() })))
}

/// The control side of a port. [`SoftwarePort`] adds the name, the counters and the owners of queues.
struct UnixPort {
    socket: Arc<Socket>,
    peer: PathBuf,
}

impl SoftwareDevice for UnixPort {
    const DRIVER: &'static str = "unix";
    const CLASS: PortClass = PortClass::Peer;
    const QUEUE_SELECTOR: &'static str = "it has one queue";

    fn description(&self) -> String {
        format!("datagrams to {}", self.peer.display())
    }

    fn rx(&mut self, config: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(UnixRx::new(self.socket.clone(), config, counters)))
    }

    fn tx(&mut self, config: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(UnixTx::new(self.socket.clone(), &self.peer, config, counters)?))
    }

    /// Returns whether a process has bound the peer's path.
    fn link(&self) -> Result<Link> {
        Ok(if socket::is_bound(&self.peer) { Link::Up { mbits: 0 } } else { Link::Down })
    }
}
