//! Any port of this library as the other end of the cable: it sends the card's frames, and the card receives its
//! packets.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::batch::{Batch, Finished};
use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{FRAME_HEADERS, Link, PortClass, RxQueue, TxQueue};
use linerate_core::slot::Slot;

use super::{Frame, Report, Unsent, Wire};

/// A wire to a port's first receive and transmit queues.
pub struct PortWire {
    device: linerate_core::port::Port,
    queues: Queues,
    pool: Arc<Pool>,
    received: Batch,
    /// Packets waiting for room in the port.
    sending: Batch,
    /// The port's link, and when it was read. The model reads it in each step, which could cost a system call.
    link: Cell<(bool, Instant)>,
    is_finished: bool,
    /// Counts of frames from the port, and to it.
    frames: [u64; 2],
    /// The port's longest payload in bytes, and the count of frames to the port with a longer payload.
    mtu: usize,
    long: u64,
    /// Frames for which no buffer was free.
    no_buffer: u64,
    /// Pad frames from the port: Linux does not pad frames that it sends internally, as a card would.
    pads: bool,
}

/// The shortest frame on a wire, without CRC.
const SHORTEST: usize = 60;

/// How long the link's state is cached.
const LINK: Duration = Duration::from_millis(10);

impl PortWire {
    /// Creates a wire to `device`, whose first queues must be free.
    pub fn new(device: linerate_core::port::Port) -> PortWire {
        let (pool, link) = (device.pool().clone(), Cell::new((is_up(&device), Instant::now())));
        let (received, sending) = (Batch::new(), Batch::new());
        let info = device.info();
        let mtu = match info.class {
            PortClass::Capture | PortClass::Nothing => usize::MAX,
            _ => info.max_frame.saturating_sub(FRAME_HEADERS),
        };
        let (queues, is_finished, frames, long, no_buffer) = (Queues::Unclaimed, false, [0; 2], 0, 0);
        let pads = matches!(info.class, PortClass::Packet | PortClass::Xdp);
        PortWire { device, queues, pool, received, sending, link, is_finished, frames, mtu, long, no_buffer, pads }
    }
}

/// The port's queues, claimed when the card first receives or sends. Claiming them truncates a recording's file. So if
/// a run fails earlier, because another port cannot be opened, the file is unchanged.
enum Queues {
    Unclaimed,
    Claimed(Box<(RxQueue, TxQueue)>),
    Failed(Error),
}

impl Queues {
    /// Returns the queues, claiming them first; `None` if they are in use or cannot be started.
    fn of(&mut self, device: &mut linerate_core::port::Port) -> Option<(&mut RxQueue, &mut TxQueue)> {
        if let Queues::Unclaimed = self {
            *self = match device.rx(0).and_then(|rx| Ok((rx, device.tx(0)?))) {
                Ok((rx, tx)) => Queues::Claimed(Box::new((rx, tx))),
                Err(error) => Queues::Failed(error),
            };
        }
        match self {
            Queues::Claimed(queues) => Some((&mut queues.0, &mut queues.1)),
            _ => None,
        }
    }

    fn check(&self) -> Result<()> {
        match self {
            Queues::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

fn is_up(device: &linerate_core::port::Port) -> bool {
    // A failed capture file does not take the link down.
    device.link().map_or_else(|error| error.kind() == ErrorKind::File, |link| link != Link::Down)
}

impl PortWire {
    /// Sends waiting packets, as far as there is room.
    fn send(&mut self) {
        if let Some((_, tx)) = self.queues.of(&mut self.device) {
            tx.send(&mut self.sending);
        }
    }
}

impl Wire for PortWire {
    fn link(&self) -> bool {
        let (link, read) = self.link.get();
        if read.elapsed() < LINK {
            return link;
        }
        self.link.set((is_up(&self.device), Instant::now()));
        self.link.get().0
    }

    fn ready(&mut self) -> bool {
        if self.sending.is_empty() {
            return true;
        }
        self.send();
        self.sending.is_empty()
    }

    fn transmit(&mut self, frame: &Frame) {
        self.frames[1] += 1;
        self.long += u64::from(payload(&frame.bytes) > self.mtu);
        // Without a free buffer, the frame is lost, as on a real wire.
        match self.sending.push(&self.pool, &frame.bytes) {
            true => self.send(),
            false => self.no_buffer += 1,
        }
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        if self.is_finished {
            return false;
        }
        if self.received.is_empty() {
            let Some((rx, _)) = self.queues.of(&mut self.device) else { return false };
            rx.recv(&mut self.received);
        }
        // A wire carries no offloads. A packet that cannot be finished gets a wrong CRC, which the card counts.
        let is_unfinished = self.received.first().is_some_and(Slot::is_unfinished);
        let is_finished = !is_unfinished || self.received.finish_packet(0) == Finished::Done;
        let Some(mut packet) = self.received.take() else { return false };
        frame.bytes.clear();
        packet.packet().append_to(&mut frame.bytes);
        if self.pads && frame.bytes.len() < SHORTEST {
            frame.bytes.resize(SHORTEST, 0);
        }
        frame.bad_crc = !is_finished;
        self.frames[0] += 1;
        true
    }

    fn check(&self) -> Result<()> {
        self.queues.check()?;
        self.device.link().map(drop)
    }

    fn finish(&mut self) {
        // Claim the queues, so that a recording without frames is also written.
        self.queues.of(&mut self.device);
        self.is_finished = true;
    }

    /// Returns the counts of a capture file; other ports have no report.
    fn report(&self) -> Option<Report> {
        if self.device.info().class != PortClass::Capture {
            return None;
        }
        let [sent, received] = self.frames;
        let capture = self.device.capture_counts();
        let too_long = self.device.statistics().map_or(0, |statistics| statistics.drops.oversize);
        Some(Report { sent, received, capture, too_long, ..Report::default() })
    }

    fn unsent(&mut self) -> Unsent {
        // While there is a link, frames waiting for room can still be sent.
        let to_go = if self.link() { self.sending.packets().count() as u64 } else { 0 };
        // It is unknown how many frames a port that is gone has sent.
        let Ok(statistics) = self.device.statistics() else { return Unsent::default() };
        let mut left = self.frames[1].saturating_sub(statistics.tx_packets.saturating_add(to_go));
        // Limit each cause to the frames that are left: the port's counts of faults include both directions.
        let mut take = |count: u64| {
            let taken = count.min(left);
            left -= taken;
            taken
        };
        let no_buffer = take(self.no_buffer);
        let too_long = take(self.long.min(statistics.drops.tx_too_long));
        let refused = take(statistics.drops.tx_too_long - too_long);
        let injected = take(statistics.drops.injected);
        Unsent { too_long, refused, injected, no_buffer, waiting: left }
    }
}

/// Returns the number of bytes after the Ethernet header and a VLAN tag.
fn payload(frame: &[u8]) -> usize {
    let is_tagged = matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xA8]));
    frame.len().saturating_sub(if is_tagged { FRAME_HEADERS } else { FRAME_HEADERS - 4 })
}
