//! vhost-user: the card of a virtual machine, or of any program that connects as a virtual machine does.
//!
//! The other side, the front end (QEMU, DPDK's virtio-user), shares its memory and the addresses of its virtqueues.
//! This side, the back end, moves packets between them and buffers. It receives what the front end transmits.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - `ring`: the device's side of a virtqueue, in two formats: `split` and `packed`; the driver's side is in
//!   `linerate_cards::nic::virtio`
//! - `vring`: a virtqueue, shared without a lock by the control thread and the queue
//! - `session`: the control thread; `message`: the protocol
//! - `memory`: the front end's memory, which may go away at any time; `log`: its pages written during a migration
//! - `positions`: the positions of packed virtqueues, for the next process
//! - here: the port, [`Vhost`]

mod log;
mod memory;
pub(crate) mod message;
mod packed;
mod positions;
mod queue;
mod ring;
mod session;
mod split;
#[cfg(test)]
mod tests;
mod vring;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use linerate_core::error::{Error, Result};
use linerate_core::offload::LONGEST;
use linerate_core::port::{
    Address, Config, Description, Device, Drops, Link, MTU, Maturity, OFFLOADS, Opening, PortClass, PortKind,
    PortOption, QUEUES, QueueCounters, Receive, Rx, SoftwareDevice, SoftwarePort, Transmit,
};
use linerate_core::unix_socket::ControlThread;
use linerate_spec::virtio::feature;
use positions::{PositionFile, Record};
use queue::{Chain, Sleep, VhostRx, VhostTx};
use session::{Shared, offered};
use vring::{QueueRing, Vring};

/// The maximum number of queue pairs of a port.
pub const MAX_QUEUES: u16 = 64;

/// A port connected to a front end.
pub struct Vhost {
    shared: Arc<Shared>,
    path: String,
    _control: ControlThread,
}

impl Vhost {
    /// Listens at the socket `path`, or as a client keeps connecting to it. Front ends may connect and disconnect at
    /// any time. With `has_packed`, it offers packed virtqueues, and keeps their positions in a file next to the
    /// socket, `PATH.rings`.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if no socket can be at the path,
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the path cannot be used,
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption),
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System).
    pub fn open(path: &str, is_client: bool, has_packed: bool, config: Config) -> Result<SoftwarePort<Vhost>> {
        let queues = config.options.rx_queues.max(config.options.tx_queues);
        if queues > MAX_QUEUES {
            return Err(Error::too_many_queues(config.name, "pairs of", queues, MAX_QUEUES));
        }
        let file = has_packed.then(|| PositionFile::open(Path::new(path)).map(Arc::new)).transpose()?;
        let vring = |number| {
            let record = file.clone().map(|file| Record::new(file, number));
            Vring::new(&config.name, record).map(Arc::new)
        };
        let vrings = (0..2 * usize::from(queues)).map(vring).collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            vrings,
            offered: offered(config.options.offloads, queues > 1, has_packed),
            is_connected: AtomicBool::new(false),
            features: AtomicU64::new(0),
            longest: config.options.max_frame,
        });
        let control = session::start(&config.name, Path::new(path), is_client, shared.clone())?;
        Ok(SoftwarePort::new(config, Vhost { shared, path: path.to_string(), _control: control }))
    }
}

/// `vhost:PATH`
pub static KIND: PortKind = PortKind {
    description: Description {
        options: &[
            QUEUES,
            MTU,
            OFFLOADS,
            PortOption::switch("client", "connect to the socket; without it, the port listens there"),
            PortOption::switch("packed", "offer packed queues"),
        ],
        feature: "vhost",
        example: "vhost:/tmp/vm",
        summary: "the card of a virtual machine",
        page: "machines.md",
        no_link: "is the machine running, and its driver loaded?",
        maturity: Maturity::Others,
        class: PortClass::Peer,
        ..Description::new("vhost", Address::Socket)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    let (is_client, has_packed) = (name.switch("client", false)?, name.switch("packed", false)?);
    Ok(Box::new(Vhost::open(name.address(), is_client, has_packed, opening.config)?))
}

impl SoftwareDevice for Vhost {
    const DRIVER: &'static str = "vhost";
    const CLASS: PortClass = PortClass::Peer;
    const QUEUE_SELECTOR: &'static str = "the front end selects the queue";
    const OFFLOADS: bool = true;

    fn description(&self) -> String {
        let Shared { is_connected, features, .. } = &*self.shared;
        let features = features.load(Relaxed);
        let state = match is_connected.load(Relaxed) {
            false => "no front end".to_string(),
            // QEMU negotiates features itself before the driver does.
            true if !self.shared.vrings.iter().any(|vring| vring.is_ready()) => {
                "a front end without a driver".to_string()
            }
            true if features & feature::VERSION_1 == 0 => "a front end with legacy split queues".to_string(),
            true if features & feature::RING_PACKED != 0 => "a front end with packed queues".to_string(),
            true => "a front end with split queues".to_string(),
        };
        format!("vhost-user at {}, {state}", self.path)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let vring = self.shared.receives(queue);
        let longest = if config.options.offloads { LONGEST } else { config.options.max_frame };
        Ok(Box::new(Rx::new(VhostRx {
            queue_ring: QueueRing::new(vring.clone()),
            longest,
            longest_single: longest.min(config.pool.region().room()),
            pool: config.pool.clone(),
            counters,
            parts: Chain::default(),
            sleep: config.options.interrupts.map(|_| Sleep::new(vring)).transpose()?,
        })))
    }

    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(VhostTx {
            queue_ring: QueueRing::new(self.shared.transmits(queue).clone()),
            counters,
            longest: if config.options.offloads { LONGEST } else { config.options.max_frame },
            parts: Chain::default(),
        }))
    }

    /// Counts invalid rings as malformed.
    fn drops(&self) -> Drops {
        Drops { malformed: self.shared.vrings.iter().map(|vring| vring.breaches()).sum(), ..Drops::default() }
    }

    /// The link is up while both queues of the first pair are running.
    fn link(&self) -> Result<Link> {
        let is_up = [self.shared.receives(0), self.shared.transmits(0)].iter().all(|vring| vring.is_ready());
        Ok(if is_up { Link::Up { mbits: 0 } } else { Link::Down })
    }
}
