//! A card's registers, the state that its queues share, and bounded waits.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::memory::{Addresses, DeviceAddress, DmaMap, DmaSpace, Mapping, Placement};
use linerate_core::metadata::Metadata;
use linerate_core::port::{Counters, Pause, Rss, Scale};
use linerate_spec::Register;
use linerate_spec::descriptor::receive;
use linerate_spec::x82599::STATUS;

use super::chains::MOST_PACKETS;
use super::metadata::{filter, metadata};
use super::{Controller, Entries, PhysicalFunction};
use crate::nic::{Config, check_bus};
use crate::pci::{Bar, Bus, Interrupt};

/// Length of a VLAN tag in bytes.
pub(super) const TAG: usize = 4;

/// Length of a descriptor in bytes.
const DESCRIPTOR: usize = 16;

/// The bit of an entry of `marks` that has a mark.
const HAS_MARK: u64 = 1 << 32;

/// A counter since the card was opened.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub sum: u64,
    /// The register's last value, for a counter that reading does not clear.
    pub last: u64,
}

/// The sums of the counters, by the offset of the low register.
pub(super) type Sums = HashMap<u32, Sum>;

/// One card, shared by its [`Intel`](super::Intel) and its queues. Dropping the last reference stops the card before
/// its memory is freed.
pub struct Hardware<B: Bar, C: Controller> {
    pub(in crate::nic) bar: B,
    pub(in crate::nic) config: Config,
    pub(super) counters: Counters,
    /// The interrupt of each receive queue, or none.
    pub(super) interrupts: Box<[Arc<Interrupt>]>,
    /// The card's counters so far.
    sums: Mutex<Sums>,
    /// Descriptor rings: all receive queues', then all transmit queues'.
    rings: DmaMap,
    packets: DmaMap,
    receiving: Mutex<Receiving<C::Entries>>,
    pause: Mutex<Pause>,
    /// Buffers of queues that did not stop; free again after a reset.
    quarantined: Mutex<Vec<u32>>,
    /// How often a physical function has reset this virtual function, after which its queues start again.
    resets: AtomicU32,
    /// Packets in transmit queues at such a reset.
    lost: AtomicU64,
    pub(in crate::nic) state: C::State,
    pub(super) scale: Mutex<Scale>,
    /// The time of a received packet was noted, but no queue has read it yet.
    pub(super) is_time_stale: AtomicBool,
    /// The card removes VLAN tags. Constant while receive queues exist.
    strips_tags: AtomicBool,
    /// The mark of each filter of the flow director, with [`HAS_MARK`].
    marks: Box<[AtomicU64]>,
    /// Dropped last: this may give the card back to the kernel.
    bus: Arc<dyn Bus>,
    _controller: PhantomData<C>,
}

/// Decides when the card may receive: once every queue in the RSS table has started, so that no packet is lost in a
/// queue without an owner. From then on, no packets are directed to a stopped queue.
///
/// Rules also need their queue to be started.
#[derive(Default)]
struct Receiving<E> {
    /// The entries of all rules.
    entries: E,
    /// The RSS settings.
    rss: Option<Rss>,
    /// The started queues, one bit each.
    started: u64,
    on: bool,
}

impl<E> Receiving<E> {
    fn is_started(&self, queue: u16) -> bool {
        self.started >> queue & 1 != 0
    }

    /// Returns whether the started queues are enough for the card to receive.
    fn can_receive<C: Controller>(&self) -> bool {
        self.started != 0 && (!C::NEEDS_QUEUE_0 || self.is_started(0))
    }

    /// Returns whether all queues in the RSS table have started.
    fn is_ready(&self) -> bool {
        self.rss.as_ref().is_none_or(|rss| rss.table.iter().all(|&queue| self.is_started(queue)))
    }

    /// Returns the table in effect while the card receives: started queues replace stopped ones.
    fn effective_rss(&self) -> Option<Rss> {
        let rss = self.rss.as_ref()?;
        Some(if self.on { rss.among(self.started) } else { rss.clone() })
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Checks the configuration and maps the memory, without accessing the card.
    pub(super) fn new(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Hardware<B, C>> {
        check::<C>(&config)?;
        let dma: &Arc<dyn DmaSpace> = &(bus.clone() as _);
        let region = config.pool.region();
        let pages = region.pages();
        let bytes = (config.options.rx_queues + config.options.tx_queues) as usize * config.ring() * DESCRIPTOR;
        let rings = DmaMap::of_rings(dma, bytes, pages)?;
        // SAFETY: the mapping is for the card; only its addresses are used here.
        let packets = DmaMap::new(dma, unsafe { region.mapping() })?;
        let interrupts = match config.options.interrupts {
            Some(_) => bus.interrupts(config.options.rx_queues)?.into_iter().map(Arc::new).collect(),
            None => Box::default(),
        };
        Ok(Hardware {
            bar,
            counters: Counters::new(&config),
            interrupts,
            sums: Mutex::default(),
            rings,
            packets,
            receiving: Mutex::default(),
            pause: Mutex::default(),
            quarantined: Mutex::default(),
            resets: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            state: C::State::default(),
            scale: Mutex::default(),
            is_time_stale: AtomicBool::new(false),
            strips_tags: AtomicBool::new(false),
            marks: std::iter::repeat_with(AtomicU64::default).take(C::Entries::MARKS).collect(),
            bus,
            _controller: PhantomData,
            config,
        })
    }

    /// Returns the memory of ring number `ring` (transmit queues follow receive queues), its byte offset, and its
    /// device address.
    ///
    /// A ring's length is a power of two, so it crosses no page boundary, whatever the page size.
    pub(in crate::nic) fn ring(&self, ring: u16) -> (&Arc<Mapping>, usize, DeviceAddress) {
        let offset = ring as usize * self.config.ring() * DESCRIPTOR;
        (self.rings.memory(), offset, self.rings.addresses().at(offset))
    }

    /// Returns whether the card has an interrupt line instead of vectors.
    pub(in crate::nic) fn has_line(&self) -> bool {
        self.interrupts.first().is_some_and(|interrupt| interrupt.is_line())
    }

    /// Returns the region's device addresses.
    pub(super) fn packets(&self) -> &Addresses {
        self.packets.addresses()
    }

    /// Returns the card's counters so far.
    pub(super) fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the buffer size to write to `SRRCTL.BSIZEPACKET`, in KiB (section 8.2.3.8.7).
    ///
    /// If the longest frame fits after the headroom, the size is rounded up: the card drops frames longer than
    /// `MAXFRS`, so it cannot write beyond the buffer. Otherwise the size is rounded down, and long frames become
    /// chains. Coalesced packets fill buffers to any length, so the size is also rounded down.
    pub(in crate::nic) fn buffer_kib(&self) -> u32 {
        let room = self.config.pool.region().room();
        let kib = match self.longest_written() <= room && !self.is_coalescing() {
            true => self.longest_written().div_ceil(1024),
            false => room / 1024,
        };
        kib.min(16) as u32
    }

    /// Returns the most bytes that the card writes for a frame.
    pub(in crate::nic) fn longest_written(&self) -> usize {
        C::longest_written(self.config.device, self.config.options.max_frame)
    }

    /// Returns the length of the longest frame with a VLAN tag, which the card may receive beside `max_frame`.
    pub(in crate::nic) fn longest_frame(&self) -> usize {
        self.config.options.max_frame + TAG
    }

    /// Returns whether the card drops all longer frames.
    pub(super) fn is_frame_limited(&self) -> bool {
        self.longest_written() <= self.longest_frame()
    }

    /// Returns whether a receive queue drops frames for which it has no descriptor. Otherwise they wait in the card's
    /// packet buffer. With several queues, a full queue must not hold up the others (82599 section 8.2.3.8.7, 82576
    /// section 8.10.2). Only a card that sends pause frames keeps them: without a full buffer, it would send none.
    pub(in crate::nic) fn drops_at_queues(&self) -> bool {
        self.config.options.rx_queues > 1 && !self.pause().send
    }

    fn pause(&self) -> MutexGuard<'_, Pause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the card writes in a buffer.
    pub(in crate::nic) fn placement(&self) -> Placement {
        let region = self.config.pool.region();
        let longest = if self.is_coalescing() { self.buffer_kib() as usize * 1024 } else { self.longest_written() };
        Placement::new(region, longest)
    }

    /// Returns whether the card coalesces received TCP segments.
    pub(in crate::nic) fn is_coalescing(&self) -> bool {
        C::COALESCES && self.config.options.offloads
    }

    /// Returns the most buffers of a coalesced packet: 16, 8, 4 or 1. Together they have at most 64 KiB minus one
    /// (4.6.7.2.2).
    pub(in crate::nic) fn most_coalesced(&self) -> usize {
        let fits = |count: &usize| count * (self.buffer_kib() as usize) < 64;
        [16, 8, 4].into_iter().find(fits).unwrap_or(1)
    }

    /// Returns the most slots of a received packet.
    pub(super) fn most_slots(&self) -> usize {
        let of_frame = self.longest_written().div_ceil(self.longest_slot());
        if self.is_coalescing() { of_frame.max(self.most_coalesced()) } else { of_frame }
    }

    /// Returns the most slots of a queue's incomplete packets.
    pub(super) fn most_partial(&self) -> usize {
        self.most_slots() * if self.is_coalescing() { MOST_PACKETS } else { 1 }
    }

    /// Returns the largest valid length in a receive descriptor.
    pub(in crate::nic) fn longest_slot(&self) -> usize {
        let room = (self.buffer_kib() as usize * 1024).min(self.placement().room());
        if self.is_frame_limited() { room } else { room.min(self.longest_frame()) }
    }

    pub(in crate::nic) fn read(&self, register: impl Into<Register>) -> u32 {
        self.bar.read(register.into().offset)
    }

    pub(in crate::nic) fn write(&self, register: impl Into<Register>, value: u32) {
        self.bar.write(register.into().offset, value);
    }

    /// Sets bits of a register.
    pub(in crate::nic) fn set(&self, register: impl Into<Register>, bits: u32) {
        self.change(register, bits, bits);
    }

    /// Clears bits of a register.
    pub(in crate::nic) fn clear(&self, register: impl Into<Register>, bits: u32) {
        self.change(register, bits, 0);
    }

    /// Replaces the bits in `mask` with the bits of `value`.
    pub(in crate::nic) fn change(&self, register: impl Into<Register>, mask: u32, value: u32) {
        let register = register.into();
        self.write(register, self.read(register) & !mask | value);
    }

    /// Reads a register; fails if it reads all ones, which it does only if the card is gone.
    pub(in crate::nic) fn read_live(&self, register: impl Into<Register>) -> Result<u32> {
        let register = register.into();
        match self.read(register) {
            u32::MAX => {
                let (port, register) = (self.config.name.clone(), register.definition.name);
                // If the card is being unplugged, report the unplugging instead.
                self.check_bus().and(Err(Error::card_gone(port, register, self.bus.gone_remedy())))
            }
            value => Ok(value),
        }
    }

    /// Allows DMA; the card must have been reset.
    pub(in crate::nic) fn allow_dma(&self) -> Result<()> {
        // SAFETY: drivers call this only after resetting the card, as documented.
        unsafe { self.bus.allow_dma() }
    }

    fn check_bus(&self) -> Result<()> {
        check_bus(&*self.bus, &self.config.name, |address| self.queue_of(address))
    }

    /// Fails if the card is gone.
    pub(in crate::nic) fn check_alive(&self) -> Result<()> {
        self.check_bus()?;
        // All these cards have STATUS at the same offset, and it never reads all ones.
        self.read_live(STATUS).map(drop)
    }

    /// Returns the queue whose ring or descriptors contain a device address.
    fn queue_of(&self, address: DeviceAddress) -> Option<(&'static str, usize)> {
        const PAGE: DeviceAddress = !0xFFF;
        let (rx, queues) =
            (self.config.options.rx_queues, self.config.options.rx_queues + self.config.options.tx_queues);
        let is_of = |ring: u16| {
            let (memory, offset, base) = self.ring(ring);
            // SAFETY: no slices of the rings' memory are lent out.
            let words = unsafe { memory.words(offset, self.config.ring() * 2) };
            let ring = base..base + (self.config.ring() * DESCRIPTOR) as u64;
            ring.contains(&address)
                || words.iter().step_by(2).any(|word| word.load(Ordering::Relaxed) & PAGE == address & PAGE)
        };
        let ring = (0..queues).find(|&ring| is_of(ring))?;
        Some(if ring < rx { ("receive", ring.into()) } else { ("transmit", (ring - rx).into()) })
    }

    /// Waits until all `bits` of a register are set; see [`wait`](Self::wait).
    pub(in crate::nic) fn wait_set(&self, register: impl Into<Register>, bits: u32) -> Result<()> {
        self.wait(register.into(), bits, bits, |register| register.with_bits(bits))
    }

    /// Waits until all `bits` of a register are clear.
    pub(in crate::nic) fn wait_clear(&self, register: impl Into<Register>, bits: u32) -> Result<()> {
        self.wait(register.into(), bits, 0, |register| format!("{}=0", register.with_bits(bits)))
    }

    /// Waits until a register equals `value`.
    pub(in crate::nic) fn wait_equal(&self, register: impl Into<Register>, value: u32) -> Result<()> {
        self.wait(register.into(), u32::MAX, value, |register| format!("{register}={value}"))
    }

    /// Waits until the bits in `mask` equal `want`, at most 200 ms. A working card needs microseconds, or 10 ms after a
    /// reset. `describe` returns the condition for the error message.
    fn wait(&self, register: Register, mask: u32, want: u32, describe: impl Fn(&Register) -> String) -> Result<()> {
        const STEP: Duration = Duration::from_micros(100);
        const BOUND: Duration = Duration::from_millis(200);
        let mut waited = Duration::ZERO;
        while self.read_live(register)? & mask != want {
            if waited >= BOUND {
                let (port, section) = (self.config.name.clone(), register.definition.section);
                return Err(Error::timeout(port, describe(&register), section, waited));
            }
            self.bar.wait(STEP);
            waited += STEP;
        }
        Ok(())
    }

    /// Makes the card remove VLAN tags, or keep them.
    ///
    /// # Errors
    /// The port has queues, or its packets have no metadata.
    pub(super) fn set_strip_tags(&self, on: bool) -> Result<()> {
        self.counters.check_free(&self.config)?;
        if on && !self.config.options.metadata {
            let why = "tags that the card strips are in the packets' metadata";
            return Err(Error::needs_metadata(&self.config.name, why));
        }
        self.check_alive()?;
        C::strip_vlan_tags(self, on);
        self.strips_tags.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether the card removes VLAN tags.
    pub(in crate::nic) fn strips_tags(&self) -> bool {
        self.strips_tags.load(Ordering::Relaxed)
    }

    /// Makes a card that was reset remove VLAN tags again.
    pub(super) fn restore_tags(&self) {
        if self.strips_tags() {
            C::strip_vlan_tags(self, true);
        }
    }

    /// Sets the mark of the packets that match a filter of the flow director.
    pub(in crate::nic) fn set_mark(&self, filter: u16, mark: Option<u32>) {
        if let Some(entry) = self.marks.get(usize::from(filter)) {
            entry.store(mark.map_or(0, |mark| HAS_MARK | u64::from(mark)), Ordering::Relaxed);
        }
    }

    /// Returns the bits of a descriptor's word 1 with which a packet has a mark, a time or a tag in its metadata.
    pub(super) fn rare_metadata(&self) -> u64 {
        C::RARE_METADATA | if self.strips_tags() { receive::VP } else { 0 }
    }

    /// Returns all metadata of the packet whose last descriptor has these words.
    pub(super) fn metadata(&self, words: [u64; 2]) -> Metadata {
        let has_tag = words[1] & receive::VP & self.rare_metadata() != 0;
        let vlan = has_tag.then_some((words[1] >> receive::VLAN_SHIFT) as u16);
        let entry = filter(words).and_then(|filter| self.marks.get(usize::from(filter)));
        let entry = entry.map_or(0, |entry| entry.load(Ordering::Relaxed));
        let mark = (entry & HAS_MARK != 0).then_some(entry as u32);
        Metadata { vlan, mark, ..metadata::<C>(words) }
    }

    /// Resets the state of queues, but keeps the rules; the card must have been reset, and must not receive.
    pub(in crate::nic) fn forget_queues(&self) {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = std::mem::take(&mut receiving.entries);
        *receiving = Receiving { entries, ..Receiving::default() };
    }

    /// Changes the entries of rules, and the card's tables. Changes nothing if `change` fails.
    pub(super) fn change_entries(&self, change: impl FnOnce(&mut C::Entries) -> Result<()>) -> Result<()> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = receiving.entries.clone();
        change(&mut entries)?;
        let active = |entries: &C::Entries| entries.with_queues(|queue| receiving.is_started(queue));
        let (present, wanted) = (active(&receiving.entries), active(&entries));
        wanted.write(&present, self).inspect_err(|_| {
            let _ = present.write(&wanted, self);
        })?;
        receiving.entries = entries;
        Ok(())
    }

    /// Writes the entries of rules into the empty tables of a card that was reset. The entries for a queue follow when
    /// it starts.
    pub(super) fn restore_entries(&self) -> Result<()> {
        let receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.entries.with_queues(|_| false).write(&C::Entries::default(), self)
    }

    /// Runs `work` while nothing else enables or disables receive. `work` gets whether the card is to receive.
    pub(in crate::nic) fn exclusively<T>(&self, work: impl FnOnce(bool) -> T) -> T {
        work(self.receiving.lock().unwrap_or_else(PoisonError::into_inner).on)
    }

    /// Records that a queue has started or stops, and adds or removes the entries for it.
    fn set_started(&self, receiving: &mut Receiving<C::Entries>, queue: u16, is_started: bool) -> Result<()> {
        let present = receiving.entries.with_queues(|queue| receiving.is_started(queue));
        receiving.started = receiving.started & !(1 << queue) | u64::from(is_started) << queue;
        receiving.entries.with_queues(|queue| receiving.is_started(queue)).write(&present, self)
    }

    /// Applies RSS settings.
    pub(super) fn apply_rss(&self, rss: &Rss) -> Result<()> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.rss = Some(rss.clone());
        if let Some(effective) = receiving.effective_rss() {
            C::set_rss(self, &effective);
        }
        self.receive_if_ready(&mut receiving)
    }

    /// Records a started receive queue. Enables receive once all queues in the RSS table have started.
    pub(super) fn queue_started(&self, queue: u16) -> Result<()> {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_started(&mut receiving, queue, true)?;
        if receiving.on {
            self.write_effective_table(&receiving);
        }
        self.receive_if_ready(&mut receiving)
    }

    /// Directs packets away from a receive queue that is about to stop. Disables receive if no started queue is left.
    pub(super) fn queue_stops(&self, queue: u16) {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        // A card that does not answer is noticed when the queue is stopped.
        let _ = self.set_started(&mut receiving, queue, false);
        match (receiving.on, receiving.can_receive::<C>()) {
            (false, _) => {}
            (true, false) => {
                C::disable_receive(self);
                receiving.on = false;
                self.write_effective_table(&receiving);
            }
            (true, true) => self.write_effective_table(&receiving),
        }
    }

    fn write_effective_table(&self, receiving: &Receiving<C::Entries>) {
        if let Some(effective) = receiving.effective_rss().filter(|_| self.config.options.rx_queues > 1) {
            C::set_table(self, &effective);
        }
    }

    fn receive_if_ready(&self, receiving: &mut Receiving<C::Entries>) -> Result<()> {
        if !receiving.on && receiving.can_receive::<C>() && receiving.is_ready() {
            C::enable_receive(self)?;
            receiving.on = true;
        }
        Ok(())
    }

    /// Returns how often a physical function has reset this virtual function.
    #[inline(always)]
    pub(super) fn resets(&self) -> u32 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Lets the queues start again: the virtual function was reset, and is up again.
    pub(super) fn count_reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts packets that were in a transmit queue at such a reset.
    pub(super) fn count_lost(&self, packets: usize) {
        self.lost.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Returns the count of these packets.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Keeps buffers that the card may still write to from returning to the pool.
    pub(in crate::nic) fn quarantine(&self, bufs: &[u32]) {
        self.quarantined.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bufs);
    }

    /// Returns quarantined buffers to the pool; the card must have been reset, so that it holds no addresses.
    pub(in crate::nic) fn free_quarantined(&self) {
        let bufs = std::mem::take(&mut *self.quarantined.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the queues that held them are gone, and the card was reset, so nothing uses them.
        unsafe { self.config.pool.give(&bufs) };
    }
}

impl<B: Bar, C: PhysicalFunction> Hardware<B, C> {
    /// Sets the use of pause frames.
    pub(super) fn set_pause(&self, pause: Pause) {
        *self.pause() = pause;
        C::set_pause(self, pause);
    }

    /// Writes the use of pause frames to a card that was reset.
    pub(super) fn restore_pause(&self) {
        let pause = *self.pause();
        if pause != Pause::default() {
            C::set_pause(self, pause);
        }
    }
}

/// Checks the configuration for a card of this kind.
///
/// # Errors
/// A setting is not possible; the message gives the valid range.
pub(super) fn check<C: Controller>(config: &Config) -> Result<()> {
    let port = || config.name.clone();
    config.check_ring()?;
    for (direction, queues) in [("receive", config.options.rx_queues), ("transmit", config.options.tx_queues)] {
        let most = C::most_queues(config.device);
        if !(1..=most).contains(&queues) {
            return Err(Error::too_many_queues(port(), direction, queues, most));
        }
    }
    if config.options.interrupts.is_some() && config.options.rx_queues > C::MAX_INTERRUPTS {
        let queues = config.options.rx_queues;
        return Err(Error::too_many_queues(port(), "interrupting", queues, C::MAX_INTERRUPTS));
    }
    if !(60..=C::MAX_FRAME).contains(&config.options.max_frame) {
        let (frame, most) = (config.options.max_frame, C::MAX_FRAME);
        let why = format!("frames of {frame} bytes are not possible: 60 to {most} without CRC");
        return Err(Error::new(ErrorKind::BadOption, port(), why));
    }
    let region = config.pool.region();
    let is_coalescing = C::COALESCES && config.options.offloads;
    if region.room()
        < if is_coalescing { 1024 } else { C::longest_written(config.device, config.options.max_frame).min(1024) }
    {
        return Err(Error::buffer_too_small(
            port(),
            region.buffer_size(),
            config.options.max_frame,
            "the card's buffer sizes are multiples of 1 KiB",
            "give the region buffers of 2048 bytes or more",
        ));
    }
    Ok(())
}

impl<B: Bar, C: Controller> Drop for Hardware<B, C> {
    fn drop(&mut self) {
        if C::halt(self).is_ok() {
            self.free_quarantined();
        } else {
            // A card that does not answer may still write: leak the memory rather than free it.
            std::mem::forget(self.rings.memory().clone());
            std::mem::forget(self.packets.memory().clone());
        }
    }
}
