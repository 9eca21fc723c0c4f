//! A port that another process serves, as a port of this process. Each packet is copied between the port's region and
//! the memory that both processes share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{
    Config, Link, MacAddress, PortClass, QueueCounters, Receive, SendFinished, Settings, SoftwareDevice, SoftwarePort,
    Transmit, is_pipe, is_vale,
};

use crate::share::client::requests::Client;
use crate::share::client::shared_port::{SharedPort, is_served};
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::mapping::Cursor;
use crate::share::protocol::message::{MemoryChoice, OpenRequest, RingSelection};

/// A port that another process serves.
pub struct ServedPort {
    /// For a pipe or a monitor, the port with its rings. For any other port only its description, because each queue
    /// has its own connection.
    port: Arc<OpenedRings>,
    connect: Box<dyn Fn() -> Result<Client> + Send>,
    /// The request that opened the port.
    wanted: OpenRequest,
    is_whole: bool,
    /// A connection reserved for the next transmit queue.
    prepared: Option<Client>,
}

/// Rings and their descriptor, which is the connection to the server.
struct OpenedRings {
    descriptor: OwnedFd,
    port: SharedPort,
}

impl OpenedRings {
    fn new((descriptor, port): (OwnedFd, SharedPort)) -> OpenedRings {
        OpenedRings { descriptor, port }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl ServedPort {
    /// Opens a port if there is a server for it; otherwise returns `None`. The configuration sets the number and length
    /// of its rings; `wanted` may request longer receive rings.
    ///
    /// # Errors
    /// An error of the server, [`ErrorKind::Unusable`] if it does not admit this user, [`ErrorKind::BadOption`].
    pub fn find(folder: &Path, wanted: OpenRequest, config: Config) -> Result<Option<SoftwarePort<ServedPort>>> {
        let Some(first) = Client::find(folder, &wanted.name)? else { return Ok(None) };
        config.check_ring()?;
        let is_whole = is_pipe(&wanted.name) || wanted.monitor_rx || wanted.monitor_tx;
        let slots = config.ring() as u32;
        let rx_slots = slots.max(wanted.rings.rx_slots);
        let rings = RingCounts {
            tx: config.options.tx_queues,
            rx: config.options.rx_queues,
            tx_slots: slots,
            rx_slots,
            ..RingCounts::default()
        };
        let wanted = OpenRequest { rings, ..wanted };
        let selection = if is_whole { RingSelection::All } else { RingSelection::None };
        let opened =
            OpenedRings::new(first.open(OpenRequest { selection, ..wanted.clone() }, MemoryChoice::default())?);
        let folder = folder.to_path_buf();
        let name = wanted.name.clone();
        let connect = move || Client::find(&folder, &name)?.ok_or_else(|| Error::no_server(&name, &folder));
        let rings = opened.port.rings();
        let options = Settings { tx_queues: rings.tx, rx_queues: rings.rx, ..config.options };
        let config = Config { options, ..config };
        let mac = opened.port.mac();
        let (port, connect) = (Arc::new(opened), Box::new(connect));
        Ok(Some(SoftwarePort::with_mac(config, mac, ServedPort { port, connect, wanted, is_whole, prepared: None })))
    }
}

impl ServedPort {
    fn queue(&mut self, queue: u16, receives: bool) -> Result<Arc<OpenedRings>> {
        if self.is_whole {
            return Ok(self.port.clone());
        }
        let prepared = if receives { None } else { self.prepared.take() };
        let client = prepared.filter(Client::is_connected).map_or_else(&self.connect, Ok)?;
        let selection = RingSelection::One(queue);
        let wanted = OpenRequest { selection, receive_only: receives, transmit_only: !receives, ..self.wanted.clone() };
        match client.request(wanted, MemoryChoice::default()) {
            Ok(port) => Ok(Arc::new(OpenedRings { descriptor: client.into_fd(), port })),
            Err(error) => {
                if !receives {
                    // Another program may hold the queue for now, so the connection is kept for a later attempt.
                    self.prepared = Some(client);
                }
                Err(error)
            }
        }
    }
}

impl SoftwareDevice for ServedPort {
    const DRIVER: &'static str = "served";
    const CLASS: PortClass = PortClass::Server;
    const TIMESTAMPS: bool = true;

    fn description(&self) -> String {
        "a port that another process serves".to_string()
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let (opened, pool) = (self.queue(queue, true)?, config.pool.clone());
        let (sleeps, longest) = (config.options.interrupts.is_some(), config.options.max_frame);
        let (queue, parts, timestamps) = (queue.into(), Vec::new(), opened.port.request().timestamps);
        Ok(Box::new(ServedRx { opened, queue, pool, counters, sleeps, longest, timestamps, parts, dropped: [0; 2] }))
    }

    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        if self.port.port.request().is_monitor() {
            let why = "a monitor only receives; send on the port itself";
            return Err(Error::unsupported(&config.name, "sending", why));
        }
        let (opened, longest) = (self.queue(queue, false)?, config.options.max_frame);
        Ok(Box::new(ServedTx { opened, queue: queue.into(), counters, longest }))
    }

    fn prepare_tx(&mut self) -> Result<()> {
        if !self.is_whole {
            self.prepared = Some((self.connect)()?);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.link().map(drop)
    }

    /// Returns that the link is up while the port is served; for a pipe, while its other end is also open.
    fn link(&self) -> Result<Link> {
        match is_served(self.port.socket()) {
            true if !self.port.port.is_other_end_open() => Ok(Link::Down),
            true => Ok(Link::Up { mbits: 0 }),
            false => {
                let wanted = self.port.port.request();
                let name = &wanted.name;
                tracing::debug!(port = name, "the server has ended it");
                let why = match wanted.is_monitor() {
                    true => "the port of the monitor is closed, or the process that served both is gone",
                    false if is_vale(name) || is_pipe(name) => "the process that served it is gone",
                    false => "the interface is deleted or renamed, or the process that served it is gone",
                };
                Err(Error::new(ErrorKind::Gone, name, why).with_remedy(Remedy::Step("open it again".into())))
            }
        }
    }

    fn set_mac(&mut self, config: &Config, _: MacAddress) -> Result<()> {
        let why = "its server chooses the address";
        Err(Error::unsupported(&config.name, "address to be set", why))
    }
}

struct ServedRx {
    opened: Arc<OpenedRings>,
    queue: usize,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    sleeps: bool,
    longest: usize,
    /// The server reports when packets arrived.
    timestamps: bool,
    /// Offset and length of each part of the current packet.
    parts: Vec<(usize, usize)>,
    /// The ring's counts of dropped packets when they were last read.
    dropped: [u32; 2],
}

impl ServedRx {
    /// Counts the packets that the server has dropped since the last call.
    fn count_dropped(&mut self) {
        let now = self.opened.port.dropped(self.queue);
        let before = std::mem::replace(&mut self.dropped, now);
        if now != before {
            self.counters.missed(now[0].wrapping_sub(before[0]), now[1].wrapping_sub(before[1]));
        }
    }
}

impl Drop for ServedRx {
    fn drop(&mut self) {
        self.count_dropped();
    }
}

impl Receive for ServedRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, mut packets, mut total) = (batch.len(), 0, 0);
        let ServedRx { opened, queue, pool, longest, counters, parts, timestamps, .. } = self;
        opened.port.take(opened.socket(), *queue, parts, |memory, parts, time| {
            let len: usize = parts.iter().map(|(_, len)| len).sum();
            if len > *longest {
                counters.missed(0, 1);
                return true;
            }
            if len == 0 {
                counters.dropped();
                return true;
            }
            if batch.len() >= batch.capacity() {
                return false;
            }
            let mut from = Cursor::new(parts);
            let is_pushed = batch.push_filled(pool, len, None, |_, target| from.read(&memory.mapping, target));
            if is_pushed {
                (packets, total) = (packets + 1, total + len);
                if *timestamps {
                    batch.stamp_last(time);
                }
            } else if batch.can_hold(pool, len) {
                counters.found_no_buffer();
            } else {
                counters.dropped();
                return true;
            }
            is_pushed
        });
        self.counters.moved_packets(packets, batch.len() - before, total);
        self.count_dropped();
        batch.len() - before
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.sleeps {
            return None;
        }
        self.opened.port.arm_ring(self.opened.socket(), self.queue);
        Some(self.opened.socket())
    }
}

struct ServedTx {
    opened: Arc<OpenedRings>,
    queue: usize,
    counters: Arc<QueueCounters>,
    longest: usize,
}

impl Transmit for ServedTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }
}

/// netmap's slots cannot describe checksum and segmentation offloads.
impl SendFinished for ServedTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut slots, mut packets, mut total, mut is_to_be_finished) = (0, 0, 0, false);
        let count = batch.len();
        let mut waiting = batch.packets();
        let mut next = waiting.next();
        let opened = &self.opened;
        opened.port.put(opened.socket(), self.queue, count, |room| {
            while let Some(packet) = next.take() {
                let len = packet.len();
                if packet.offload().is_some() {
                    is_to_be_finished = true;
                    return None;
                }
                if len > self.longest {
                    self.counters.dropped();
                } else if len.max(1) <= room {
                    (packets, total) = (packets + 1, total + len);
                } else {
                    next = Some(packet);
                    return None;
                }
                slots += packet.slots();
                next = waiting.next();
                if len <= self.longest {
                    return Some(packet);
                }
            }
            None
        });
        batch.drop_front(slots);
        self.counters.moved_packets(packets, slots, total);
        (slots, is_to_be_finished)
    }
}
