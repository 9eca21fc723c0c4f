//! The card as the driver sees it: its registers, what its queues share, and waiting with a bound.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Controller;
use crate::error::{Error, Result};
use crate::memory::{Addresses, DeviceAddress, DmaMap, DmaSpace, Mapping, Placement};
use crate::nic::{Config, check_bus};
use crate::pci::{Bar, Bus, Interrupt};
use crate::port::{QueueCounters, Rss, Statistics};

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The status register, on all of them; it never reads all ones.
const STATUS: u32 = 0x00008;

/// One card, shared by its [`Intel`](super::Intel) and its queues; the last of them stops the card
/// before the memory that the card can reach goes away.
pub struct Hardware<B: Bar, C: Controller> {
    pub(in crate::nic) bar: B,
    pub(in crate::nic) config: Config,
    pub(super) rx: Box<[QueuePlace]>,
    pub(super) tx: Box<[QueuePlace]>,
    /// One for each receive queue, or none.
    pub(super) interrupts: Box<[Arc<Interrupt>]>,
    /// What the card has counted so far; sent bytes with their CRCs.
    counted: Mutex<Statistics>,
    /// Descriptor rings: all receive queues', then all transmit queues'.
    rings: DmaMap,
    packets: DmaMap,
    receiving: Mutex<Receiving>,
    /// Buffers of queues that the card did not let go; free again once it has been reset.
    aside: Mutex<Vec<u32>>,
    /// The last to go: it may give the card back to the kernel.
    bus: Arc<dyn Bus>,
    _controller: PhantomData<C>,
}

/// When the card may begin to receive: once every queue that RSS can choose is there, so that
/// nothing is lost to a queue that nobody polls yet. From then on nothing is directed to one that is stopped.
#[derive(Default)]
struct Receiving {
    /// Between which queues packets are spread.
    rss: Option<Rss>,
    /// Queues that are there, by bits.
    started: u64,
    on: bool,
}

impl Receiving {
    fn is_started(&self, queue: u16) -> bool {
        self.started >> queue & 1 != 0
    }

    /// True once all queues that packets are spread between are there.
    fn is_ready(&self) -> bool {
        self.started != 0 && self.rss.as_ref().is_none_or(|rss| rss.table.iter().all(|&queue| self.is_started(queue)))
    }

    /// The table as it is while the card receives: others of the queues take the part of those that are stopped.
    fn directed(&self) -> Option<Rss> {
        let mut rss = self.rss.clone()?;
        let started: Vec<u16> = (0..64).filter(|&queue| self.is_started(queue)).collect();
        if self.on && !started.is_empty() {
            for (place, queue) in rss.table.iter_mut().enumerate().filter(|(_, queue)| !self.is_started(**queue)) {
                *queue = started[place % started.len()];
            }
        }
        Some(rss)
    }
}

/// What remains of a queue when its owner drops it.
#[derive(Default)]
pub(super) struct QueuePlace {
    pub taken: AtomicBool,
    pub counters: Arc<QueueCounters>,
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Checks the configuration and maps the memory. The card is not touched yet.
    pub(super) fn new(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Hardware<B, C>> {
        check::<C>(&config)?;
        let dma: &Arc<dyn DmaSpace> = &(bus.clone() as _);
        let region = config.pool.region();
        let pages = region.mapping().pages();
        let bytes = (config.rx_queues + config.tx_queues) as usize * config.ring * DESCRIPTOR;
        let rings = DmaMap::new(dma, &Arc::new(Mapping::new(bytes, pages, None)?))?;
        let packets = DmaMap::new(dma, region.mapping())?;
        let interrupts = match config.interrupts {
            Some(_) => bus.interrupts(config.rx_queues)?.into_iter().map(Arc::new).collect(),
            None => Box::default(),
        };
        let places = |queues: u16| (0..queues).map(|_| QueuePlace::default()).collect();
        Ok(Hardware {
            bar,
            rx: places(config.rx_queues),
            tx: places(config.tx_queues),
            interrupts,
            counted: Mutex::default(),
            rings,
            packets,
            receiving: Mutex::default(),
            aside: Mutex::default(),
            bus,
            _controller: PhantomData,
            config,
        })
    }

    /// Where ring number `ring` lies (transmit queues come after receive queues): its memory, the
    /// byte offset therein, and the device's address of it.
    ///
    /// A ring is as long as a power of two, so that it lies in one page of any size.
    pub(in crate::nic) fn ring(&self, ring: u16) -> (&Arc<Mapping>, usize, DeviceAddress) {
        let offset = ring as usize * self.config.ring * DESCRIPTOR;
        (self.rings.memory(), offset, self.rings.addresses().at(offset))
    }

    /// True where the card has an interrupt line instead of vectors.
    pub(in crate::nic) fn has_line(&self) -> bool {
        self.interrupts.first().is_some_and(|interrupt| interrupt.is_line())
    }

    /// Where the card sees the region.
    pub(super) fn packets(&self) -> &Addresses {
        self.packets.addresses()
    }

    /// What the card has counted so far.
    pub(super) fn counted(&self) -> MutexGuard<'_, Statistics> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that the card may write into one buffer, in the whole KiB that `SRRCTL.BSIZEPACKET`
    /// has (section 8.2.3.8.7).
    ///
    /// A frame that fits behind the headroom is never cut: the card drops what is longer than
    /// `MAXFRS`, so rounding up cannot make it write beyond the buffer. Otherwise it is rounded
    /// down, and long frames become chains.
    pub(in crate::nic) fn buffer_kib(&self) -> u32 {
        let room = self.config.pool.region().room();
        let kib = if self.longest_written() <= room { self.longest_written().div_ceil(1024) } else { room / 1024 };
        kib.min(16) as u32
    }

    /// The most that the card writes for one frame: the MAC lets a VLAN tag more through than
    /// `MAXFRS` says (section 8.2.3.22).
    pub(in crate::nic) fn longest_written(&self) -> usize {
        self.config.max_frame + 4
    }

    /// Where in a buffer the card writes.
    pub(in crate::nic) fn placement(&self) -> Placement {
        Placement::new(self.config.pool.region(), self.longest_written())
    }

    /// Bytes that a receive descriptor may report.
    pub(in crate::nic) fn longest_slot(&self) -> usize {
        (self.buffer_kib() as usize * 1024).min(self.placement().room())
    }

    /// Sets the bits of `mask` to those of `value`.
    pub(in crate::nic) fn change(&self, offset: u32, mask: u32, value: u32) {
        self.bar.write(offset, self.bar.read(offset) & !mask | value);
    }

    /// Reads a register of which all ones means that nobody is there.
    pub(in crate::nic) fn read_live(&self, offset: u32, register: &'static str) -> Result<u32> {
        match self.bar.read(offset) {
            // It may be leaving.
            u32::MAX => self.check_bus().and(Err(Error::CardGone { port: self.config.name.clone(), register })),
            value => Ok(value),
        }
    }

    /// The card has been reset: it may reach memory from now on.
    pub(in crate::nic) fn allow_dma(&self) -> Result<()> {
        // SAFETY: as its name says, drivers call this behind their reset.
        unsafe { self.bus.allow_dma() }
    }

    fn check_bus(&self) -> Result<()> {
        check_bus(&*self.bus, &self.config.name, |address| self.queue_of(address))
    }

    /// An error if the card is gone.
    pub(in crate::nic) fn check_alive(&self) -> Result<()> {
        self.check_bus()?;
        self.read_live(STATUS, "STATUS").map(drop)
    }

    /// Whose ring or descriptors an address of the card's belongs to.
    fn queue_of(&self, address: DeviceAddress) -> Option<(&'static str, usize)> {
        const PAGE: DeviceAddress = !0xFFF;
        let (rx, queues) = (self.config.rx_queues, self.config.rx_queues + self.config.tx_queues);
        let is_of = |ring: u16| {
            let (memory, offset, base) = self.ring(ring);
            // SAFETY: memory of rings, of which no slices are lent.
            let words = unsafe { memory.words(offset, self.config.ring * 2) };
            let ring = base..base + (self.config.ring * DESCRIPTOR) as u64;
            ring.contains(&address)
                || words.iter().step_by(2).any(|word| word.load(Ordering::Relaxed) & PAGE == address & PAGE)
        };
        let ring = (0..queues).find(|&ring| is_of(ring))?;
        Some(if ring < rx { ("receive", ring.into()) } else { ("transmit", (ring - rx).into()) })
    }

    /// Waits until the bits of `mask` are `want`, for 200 ms at most; on cards that work it is
    /// some microseconds, 10 ms after a reset.
    pub(in crate::nic) fn wait_for(
        &self,
        offset: u32,
        mask: u32,
        want: u32,
        register: &'static str,
        what: std::fmt::Arguments<'_>,
        section: &'static str,
    ) -> Result<()> {
        const STEP: Duration = Duration::from_micros(100);
        const BOUND: Duration = Duration::from_millis(200);
        let mut waited = Duration::ZERO;
        while self.read_live(offset, register)? & mask != want {
            if waited >= BOUND {
                let register = format!("{register}{what}");
                return Err(Error::Timeout { port: self.config.name.clone(), register, section, waited });
            }
            self.bar.wait(STEP);
            waited += STEP;
        }
        Ok(())
    }

    /// The card has been reset and does not receive.
    pub(in crate::nic) fn forget_queues(&self) {
        *self.receiving.lock().unwrap_or_else(PoisonError::into_inner) = Receiving::default();
    }

    /// Spreads packets over queues.
    pub(super) fn spread(&self, rss: &Rss) -> Result<()> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.rss = Some(rss.clone());
        if let Some(directed) = receiving.directed() {
            C::set_rss(self, &directed);
        }
        self.receive_if_ready(&mut receiving)
    }

    /// A receive queue has been started.
    pub(super) fn queue_started(&self, queue: u16) -> Result<()> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.started |= 1 << queue;
        if receiving.on {
            self.direct(&receiving);
        }
        self.receive_if_ready(&mut receiving)
    }

    /// A receive queue is about to be stopped: no more packets are directed to it, and none are received when there
    /// is no other.
    pub(super) fn queue_stops(&self, queue: u16) {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.started &= !(1 << queue);
        match (receiving.on, receiving.started) {
            (false, _) => {}
            (true, 0) => {
                C::disable_receive(self);
                receiving.on = false;
                self.direct(&receiving);
            }
            (true, _) => self.direct(&receiving),
        }
    }

    fn direct(&self, receiving: &Receiving) {
        if let Some(directed) = receiving.directed().filter(|_| self.config.rx_queues > 1) {
            C::set_table(self, &directed);
        }
    }

    fn receive_if_ready(&self, receiving: &mut Receiving) -> Result<()> {
        if !receiving.on && receiving.is_ready() {
            C::enable_receive(self)?;
            receiving.on = true;
        }
        Ok(())
    }

    /// Keeps buffers away from the pool because the card may still write to them.
    pub(in crate::nic) fn set_aside(&self, bufs: &[u32]) {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bufs);
    }

    /// The card has been reset and has forgotten all addresses.
    pub(in crate::nic) fn free_aside(&self) {
        let bufs = std::mem::take(&mut *self.aside.lock().unwrap_or_else(PoisonError::into_inner));
        self.config.pool.give(&bufs);
    }
}

/// Whether a card can be opened like this.
///
/// # Errors
/// What is not possible, and what is.
pub(super) fn check<C: Controller>(config: &Config) -> Result<()> {
    let port = || config.name.clone();
    config.check_ring()?;
    for (direction, queues) in [("receive", config.rx_queues), ("transmit", config.tx_queues)] {
        if !(1..=C::MAX_QUEUES).contains(&queues) {
            return Err(Error::TooManyQueues { port: port(), direction, queues, most: C::MAX_QUEUES });
        }
    }
    if config.interrupts.is_some() && config.rx_queues > C::MAX_INTERRUPTS {
        let queues = config.rx_queues;
        return Err(Error::TooManyQueues { port: port(), direction: "interrupting", queues, most: C::MAX_INTERRUPTS });
    }
    if !(60..=C::MAX_FRAME).contains(&config.max_frame) {
        return Err(Error::FrameLength { port: port(), frame: config.max_frame, most: C::MAX_FRAME });
    }
    let region = config.pool.region();
    if region.room() < config.max_frame.min(1024) {
        return Err(Error::BufferTooSmall {
            port: port(),
            buffer_size: region.buffer_size(),
            frame: config.max_frame,
            why: "the card writes whole KiB; give the region buffers of 2048 bytes or more",
        });
    }
    Ok(())
}

impl<B: Bar, C: Controller> Drop for Hardware<B, C> {
    fn drop(&mut self) {
        if C::halt(self).is_ok() {
            self.free_aside();
        } else {
            // A card that does not answer may still write: leak the memory rather than free it.
            std::mem::forget(self.rings.memory().clone());
            std::mem::forget(self.packets.memory().clone());
        }
    }
}
