//! memif, FD.io's shared memory packet interface: packets between two processes on one machine, compatible with VPP,
//! libmemif and DPDK's net_memif. A port can be either side.
//!
//! The client connects to the server over a socket, and creates and sends all memory: rings of descriptors, and
//! buffers. Packets are copied between these buffers and slots; a client may instead lend the slots' buffers.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - `zero_copy`: the same for a client that lends its buffers; `lent`: the buffers of one ring
//! - `ring`: a ring of descriptors, from either side
//! - `connected`: a connection's rings, shared without a lock by the control thread and the queues
//! - `control`: the control thread; `message`: the protocol
//! - `regions`: the connection's memory, which may go away at any time
//! - here: the port, [`Memif`]
#![allow(unsafe_code)]

mod connected;
mod control;
mod lent;
mod message;
mod queue;
mod regions;
mod ring;
#[cfg(test)]
mod tests;
mod zero_copy;

use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use connected::{QueueRing, Shared};
use control::{ConnectionOptions, Role};
use linerate_core::batch::MAX_CHAIN;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::{Placement, Pool, Reservation};
use linerate_core::port::{
    Address, Config, Description, Device, Drops, Link, MTU, Maturity, Opening, PortClass, PortKind, PortName,
    PortOption, QUEUES, QueueCounters, RING, Receive, Rx, SoftwareDevice, SoftwarePort, Transmit, Tx, Value,
};
use linerate_core::unix_socket::ControlThread;
use message::Secret;
use queue::{Copied, Limits, MemifRx, MemifTx};
use regions::Regions;
use ring::{BUFFER, Direction};
use zero_copy::{LendingTx, Lends};

/// The maximum number of queues of a port, in each direction.
pub const MAX_QUEUES: u16 = 64;

/// A port connected to a peer over memif.
pub struct Memif {
    shared: Arc<Shared>,
    role: Role,
    id: u32,
    path: String,
    /// The pool whose buffers a client lends, and the placement of packets in them.
    lends: Option<(Arc<Pool>, Placement)>,
    _reservation: Option<Reservation>,
    _control: ControlThread,
}

/// `memif:PATH`
pub static KIND: PortKind = PortKind {
    description: Description {
        options: &[
            QUEUES,
            RING,
            MTU,
            PortOption {
                name: "role",
                value: Value::Word(&["client", "server"]),
                default: "client",
                help: "connect to the socket, or wait there for a client",
            },
            PortOption {
                name: "id",
                value: Value::Number(0, u32::MAX as usize),
                default: "0",
                help: "the number of the interface at the socket",
            },
            PortOption {
                name: "secret",
                value: Value::Text("TEXT"),
                default: "",
                help: "a secret of both sides, at most 24 bytes",
            },
            PortOption::switch("zero-copy", "a client lends the memory of its packets"),
        ],
        feature: "memif",
        example: "memif:/run/vpp/memif.sock",
        summary: "a peer over shared memory: VPP, DPDK, libmemif",
        page: "machines.md",
        no_link: "is the other side running, with the same id and secret?",
        maturity: Maturity::Others,
        class: PortClass::Peer,
        large_buffers: Some(("zero-copy", 4096)),
        ..Description::new("memif", Address::Socket)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    Ok(Box::new(Memif::open(opening.name, opening.config)?))
}

impl Memif {
    /// Listens at the socket of the name, or as a client keeps connecting to it. Peers may connect and disconnect at
    /// any time.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`]; [`BadName`](ErrorKind::BadName) if no socket can be at the path;
    /// [`ErrorKind::Unusable`] if the path cannot be used, or this user may not use the server's socket;
    /// [`ErrorKind::Exhausted`], [`ErrorKind::System`].
    pub fn open(name: &PortName, config: Config) -> Result<SoftwarePort<Memif>> {
        let role = match name.option("role") {
            None | Some("client") => Role::Client,
            Some("server") => Role::Server,
            Some(_) => return Err(name.bad_option("role", "it must be client or server")),
        };
        let id = name.number("id", 0, 0..=u32::MAX as usize)? as u32;
        let (mut secret, text) = (Secret::default(), name.option("secret").unwrap_or_default().as_bytes());
        match secret.get_mut(..text.len()) {
            Some(place) => place.copy_from_slice(text),
            None => return Err(name.bad_option("secret", "it has at most 24 bytes")),
        }
        if role == Role::Server && name.option("ring").is_some() {
            return Err(name.bad_option("ring", "the client decides the size of its rings: give it the option"));
        }
        config.check_ring()?;
        let (rx_queues, tx_queues) = (config.options.rx_queues, config.options.tx_queues);
        let queues = rx_queues.max(tx_queues);
        if queues > MAX_QUEUES {
            return Err(Error::too_many_queues(config.name, "pairs of", queues, MAX_QUEUES));
        }
        let log2_size = config.ring().ilog2() as u8;
        let (pool, longest) = (&config.pool, config.options.max_frame);
        // SAFETY: no bytes are read or written.
        let can_lend = role == Role::Client && Regions::can_lend(unsafe { pool.region().mapping() });
        let lends = match name.switch("zero-copy", false)? {
            true if can_lend => {
                let placement = Placement::new(pool.region(), longest.max(BUFFER));
                if placement.room() < BUFFER {
                    return Err(Error::buffer_too_small(
                        config.name,
                        pool.region().buffer_size(),
                        BUFFER,
                        "servers of memif expect room for 2,048 bytes, and the headroom is in front",
                        "choose buffers of 4,096 bytes (RegionOptions::buffer_size), or zero-copy=off",
                    ));
                }
                Some((pool.clone(), placement))
            }
            true => {
                return Err(name.bad_option("zero-copy", "only a client lends its packets' memory, of at most 4 GiB"));
            }
            false => None,
        };
        // Each receive ring holds its buffers, and exchanges more for the longest packet.
        let held = usize::from(rx_queues) * ((1 << log2_size) + MAX_CHAIN);
        let reservation = lends.as_ref().map(|(pool, _)| pool.reserve(held)).transpose()?;
        let options = ConnectionOptions {
            role,
            id,
            secret,
            rx_queues,
            tx_queues,
            log2_size,
            lends: lends.clone(),
            name: config.name.clone(),
        };
        let shared = Arc::new(Shared::new(rx_queues)?);
        let control = control::start(Path::new(name.address()), options, shared.clone())?;
        let path = name.address().to_string();
        Ok(SoftwarePort::new(
            config,
            Memif { shared, role, id, path, lends, _reservation: reservation, _control: control },
        ))
    }
}

impl SoftwareDevice for Memif {
    const DRIVER: &'static str = "memif";
    const CLASS: PortClass = PortClass::Peer;

    fn description(&self) -> String {
        let role = match self.role {
            Role::Server => "server",
            Role::Client => "client",
        };
        let peer = match self.shared.connected() {
            Some(connected) => format!("connected to {}", connected.peer),
            None => "not connected".to_string(),
        };
        let copies = if self.lends.is_some() { ", zero copy" } else { "" };
        format!("memif {role} at {}, id {}{copies}, {peer}", self.path, self.id)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let longest = config.options.max_frame;
        if let Some((pool, placement)) = &self.lends {
            return Ok(Box::new(Rx::new(MemifRx {
                queue_ring: QueueRing::new(&self.shared, Direction::Receive, queue),
                limits: Limits { longest, longest_single: longest.min(BUFFER), placement: *placement },
                pool: pool.clone(),
                counters,
                parts: Vec::new(),
                sleeps: config.options.interrupts.is_some(),
                buffers: PhantomData::<Lends>,
            })));
        }
        let placement = Placement::new(config.pool.region(), longest);
        Ok(Box::new(Rx::new(MemifRx {
            queue_ring: QueueRing::new(&self.shared, Direction::Receive, queue),
            limits: Limits { longest, longest_single: longest.min(placement.room()), placement },
            pool: config.pool.clone(),
            counters,
            parts: Vec::new(),
            sleeps: config.options.interrupts.is_some(),
            buffers: PhantomData::<Copied>,
        })))
    }

    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        if let Some((pool, _)) = &self.lends {
            return Ok(Box::new(Tx::new(LendingTx {
                queue_ring: QueueRing::new(&self.shared, Direction::Send, queue),
                pool: pool.clone(),
                counters,
                longest: config.options.max_frame,
            })));
        }
        Ok(Box::new(MemifTx {
            queue_ring: QueueRing::new(&self.shared, Direction::Send, queue),
            counters,
            longest: config.options.max_frame,
            parts: Vec::new(),
        }))
    }

    /// Counts connections with invalid rings as malformed.
    fn drops(&self) -> Drops {
        Drops { malformed: self.shared.breaches(), ..Drops::default() }
    }

    /// The link is up while a peer is connected. A server that refuses the secret is an error, since waiting does not
    /// help.
    fn link(&self) -> Result<Link> {
        if self.shared.connected().is_some() {
            return Ok(Link::Up { mbits: 0 });
        }
        match self.shared.refusal() {
            None => Ok(Link::Down),
            Some(words) => {
                let path = &self.path;
                let remedy = Remedy::Step("give both sides the same secret=TEXT".into());
                Err(Error::new(ErrorKind::Denied, path, format!("the server refuses this client: {words}"))
                    .with_remedy(remedy))
            }
        }
    }
}
