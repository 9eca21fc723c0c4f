//! Bringing up the device, the area that it shares with the driver, and the state that queues share.
//!
//! The device activates all its queues together, and cannot stop one. So all queues are activated with empty rings, and
//! a queue starts by filling them. The buffers of a dropped queue are quarantined until the last queue is dropped, which
//! resets the device.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::memory::{Addresses, Descriptors, DeviceAddress, DmaMap, DmaSpace, Placement};
use linerate_core::port::{Counters, FRAME_HEADERS, MacAddress, QueueCounters, Rss};
use linerate_spec::Register;
use linerate_spec::vmxnet3::{command, descriptor, pt, queue, rss, shared, vd};

use crate::nic::filters::Filters;
use crate::nic::{Config, check_bus};
use crate::pci::{Bar, Bus, Interrupt};

/// The most multicast addresses.
pub(super) const MOST_GROUPS: usize = 128;
/// Parts of the shared memory, by offset. The rings of all queues follow.
const RSS: usize = 1024;
const GROUPS: usize = 2048;
const QUEUES: usize = 4096;
const RINGS: usize = QUEUES + 2 * shared::MAX_QUEUES as usize * queue::LEN;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// One device, shared by its [`Vmxnet3`](super::Vmxnet3) and its queues. Dropping the last reference resets the device
/// before its memory is freed.
pub(super) struct Hardware<B: Bar> {
    pub pt: B,
    pub vd: B,
    pub config: Config,
    pub counters: Counters,
    /// The interrupt of each receive queue, or none.
    pub interrupts: Box<[Arc<Interrupt>]>,
    shared: DmaMap,
    packets: DmaMap,
    state: Mutex<State>,
    /// Dropped last: this may give the card back to the kernel.
    bus: Arc<dyn Bus>,
}

/// The state of the device. Its lock is held during commands.
pub(super) struct State {
    pub mac: Option<MacAddress>,
    pub filters: Filters,
    pub rss: Rss,
    pub in_use: usize,
    is_active: bool,
    /// Queues that were dropped since the device's reset. Their counters have an owner here, so they cannot start.
    dropped: Vec<Arc<QueueCounters>>,
    /// Their buffers.
    quarantined: Vec<u32>,
    /// The receive queues that have started, one bit each.
    started: u64,
    /// All queues of the table have started, so the device receives.
    is_receiving: bool,
    /// The device's counters when they were last read, and their sums since the port was opened.
    counted: Vec<u64>,
    sums: Vec<u64>,
}

impl<B: Bar> Hardware<B> {
    /// Checks the configuration and maps the memory, without accessing the device.
    pub fn new(pt: B, vd: B, bus: Arc<dyn Bus>, config: Config) -> Result<Hardware<B>> {
        check(&config)?;
        let dma: &Arc<dyn DmaSpace> = &(bus.clone() as _);
        let (rx_queues, region) = (config.options.rx_queues, config.pool.region());
        let bytes = Rings::tx(&config, config.options.tx_queues).first;
        let interrupts = match config.options.interrupts {
            Some(_) => bus.interrupts(rx_queues)?.into_iter().map(Arc::new).collect(),
            None => Box::default(),
        };
        let state = State {
            mac: None,
            filters: Filters { promiscuous: true, ..Filters::default() },
            rss: Rss::evenly(rx_queues),
            in_use: 0,
            is_active: false,
            dropped: Vec::new(),
            quarantined: Vec::new(),
            started: 0,
            is_receiving: false,
            counted: Vec::new(),
            sums: vec![0; 10 * usize::from(rx_queues + config.options.tx_queues)],
        };
        Ok(Hardware {
            pt,
            vd,
            counters: Counters::new(&config),
            interrupts,
            shared: DmaMap::of_rings(dma, bytes, region.pages())?,
            // SAFETY: the mapping is for the device; only its addresses are used here.
            packets: DmaMap::new(dma, unsafe { region.mapping() })?,
            state: Mutex::new(state),
            bus,
            config,
        })
    }

    /// Brings the device up from any state, with empty queues. It receives once they have started.
    pub fn bring_up(&self, state: &mut State) -> Result<()> {
        self.reset(state)?;
        // SAFETY: the device is reset.
        unsafe { self.bus.allow_dma()? };
        for (register, version) in
            [(Register::from(vd::VRRS), vd::VRRS::REVISION_1), (vd::UVRS.into(), vd::UVRS::VERSION_1)]
        {
            if self.read_live(register)? & version == 0 {
                return Err(Error::bad_device(format!("{register} does not offer version 1")));
            }
            self.vd.write(register.offset, version);
        }
        self.describe(state);
        let address = self.shared.addresses().at(0);
        self.vd.write(vd::DSAL::OFFSET, address as u32);
        self.vd.write(vd::DSAH::OFFSET, (address >> 32) as u32);
        self.change("ACTIVATE_DEV", command::ACTIVATE_DEV)?;
        state.is_active = true;
        for interrupt in 0..=self.quiet_interrupt() {
            self.pt.write(pt::IMR::at(interrupt), pt::IMR::MASKED);
        }
        self.write_mac(state);
        self.write_filters(state);
        state.counted = self.read_counters()?;
        Ok(())
    }

    /// Resets the device, so that it holds no addresses.
    fn reset(&self, state: &mut State) -> Result<()> {
        self.read_live(vd::VRRS)?;
        if std::mem::take(&mut state.is_active) {
            // The reset may clear the counters. A device that does not answer is noticed below.
            let _ = self.count(state);
        }
        self.change("QUIESCE_DEV", command::QUIESCE_DEV)?;
        self.change("RESET_DEV", command::RESET_DEV)?;
        // SAFETY: the queues that held them are gone, and the device was reset, so nothing uses them.
        unsafe { self.config.pool.give(&std::mem::take(&mut state.quarantined)) };
        state.dropped.clear();
        (state.started, state.is_receiving) = (0, false);
        Ok(())
    }

    /// Writes all that the device reads when it is activated.
    fn describe(&self, state: &State) {
        let (memory, options) = (self.shared.memory(), &self.config.options);
        let (rx_queues, tx_queues) = (options.rx_queues, options.tx_queues);
        // SAFETY: no slices of this memory are lent out.
        let words = unsafe { memory.words(0, Rings::tx(&self.config, tx_queues).first / 8) };
        words.iter().for_each(|word| word.store(0, Relaxed));
        let put = |at: usize, value: u32| memory.write(at, &value.to_le_bytes());
        let put_64 = |at: usize, value: u64| memory.write(at, &value.to_le_bytes());
        let address = |at: usize| self.shared.addresses().at(at);
        put(shared::MAGIC, shared::REV1_MAGIC);
        for (at, value) in [
            (shared::DRIVER_VERSION, 1),
            (shared::DRIVER_GOS, shared::GOS_LINUX_64),
            (shared::REVISION, 1),
            (shared::UPT_VERSION, 1),
            (shared::QUEUE_DESC_LEN, u32::from(rx_queues + tx_queues) * queue::LEN as u32),
            (shared::MTU, (options.max_frame - FRAME_HEADERS).max(shared::MIN_MTU) as u32),
            (shared::RSS_VERSION, 1),
            (shared::RSS_LEN, rss::LEN as u32),
        ] {
            put(at, value);
        }
        let has_hash = if self.has_hash() { shared::F_RSS } else { 0 };
        let checksums = if options.metadata { shared::F_RXCSUM } else { 0 };
        put_64(shared::FEATURES, has_hash | checksums);
        put_64(shared::DRIVER_DATA, u64::MAX);
        put_64(shared::QUEUE_DESC, address(QUEUES));
        put_64(shared::MULTICAST, address(GROUPS));
        put_64(shared::RSS, address(RSS));
        let most_buffers = options.max_frame.div_ceil(self.room()) as u8;
        memory.write(shared::MAX_RX_BUFFERS, &[most_buffers, 0, tx_queues as u8, rx_queues as u8]);
        let quiet = self.quiet_interrupt();
        memory.write(shared::AUTO_MASK, &[1, quiet as u8 + 1, quiet as u8]);
        if options.interrupts.is_some_and(|interval| !interval.is_zero()) {
            memory.write(shared::MODERATION, &[shared::IML_ADAPTIVE; shared::MAX_QUEUES as usize]);
        }
        self.write_rss(&state.rss);
        let of_rx = (0..rx_queues).map(|queue| {
            let interrupt = if self.has_vectors() { queue } else { 0 };
            (Rings::rx(&self.config, queue), tx_queues + queue, interrupt)
        });
        let of_tx = (0..tx_queues).map(|queue| (Rings::tx(&self.config, queue), queue, quiet));
        for (rings, number, interrupt) in of_rx.chain(of_tx) {
            let at = QUEUES + usize::from(number) * queue::LEN;
            for (n, (offset, len)) in [rings.ring(), rings.second(), rings.completions()].into_iter().enumerate() {
                put_64(at + queue::RING + 8 * n, if len > 0 { address(offset) } else { u64::MAX });
                put(at + queue::RING_LEN + 4 * n, len as u32);
            }
            put_64(at + queue::DRIVER_DATA, u64::MAX);
            memory.write(at + queue::INTERRUPT, &[interrupt as u8]);
        }
    }

    fn write_rss(&self, settings: &Rss) {
        let table = &settings.table;
        let entries: Vec<u8> = (0..rss::MAX_TABLE).map(|entry| table[entry % table.len()] as u8).collect();
        let head = [rss::ALL_TYPES, rss::TOEPLITZ, settings.key.len() as u16, rss::MAX_TABLE as u16];
        let bytes = [&head.map(u16::to_le_bytes).concat()[..], &settings.key, &entries].concat();
        self.shared.memory().write(RSS, &bytes);
    }

    /// Writes the filters: the device receives nothing until all queues of the table have started.
    pub fn write_filters(&self, state: &State) {
        let (memory, filters) = (self.shared.memory(), &state.filters);
        let groups: Vec<u8> = filters.multicast.iter().flat_map(|group| group.0).collect();
        memory.write(GROUPS, &groups);
        memory.write(shared::MULTICAST_LEN, &(groups.len() as u16).to_le_bytes());
        let mut vlans = if filters.vlans.is_some() { filters.vlan_table() } else { [u32::MAX; 128] };
        vlans[0] |= 1; // untagged packets (Linux's `vmxnet3_restore_vlan`)
        memory.write(shared::VLANS, vlans.map(u32::to_le_bytes).as_flattened());
        let [promiscuous, all_groups] = filters.modes();
        let own = shared::RXM_UCAST | shared::RXM_BCAST | shared::RXM_MCAST;
        let promiscuous = if promiscuous { shared::RXM_PROMISC } else { 0 };
        let all_groups = if all_groups { shared::RXM_ALL_MULTI } else { 0 };
        let modes = if state.is_receiving { own | promiscuous | all_groups } else { 0 };
        memory.write(shared::RX_MODE, &modes.to_le_bytes());
        for update in [command::UPDATE_MAC_FILTERS, command::UPDATE_VLAN_FILTERS, command::UPDATE_RX_MODE] {
            self.vd.write(vd::CMD::OFFSET, update);
        }
    }

    /// Writes the address that the program has chosen. Activating QEMU's device sets the permanent one.
    pub fn write_mac(&self, state: &State) {
        if let Some(MacAddress([a, b, c, d, e, f])) = state.mac {
            self.vd.write(vd::MACL::OFFSET, u32::from_le_bytes([a, b, c, d]));
            self.vd.write(vd::MACH::OFFSET, u32::from_le_bytes([e, f, 0, 0]));
        }
    }

    /// Directs packets to the queues that have started, once all queues of the table have.
    pub fn steer(&self, state: &mut State) {
        let is_ready = state.rss.table.iter().all(|&queue| state.started >> queue & 1 != 0);
        if state.started != 0 && (state.is_receiving || is_ready) && self.has_hash() {
            self.write_rss(&state.rss.among(state.started));
            self.vd.write(vd::CMD::OFFSET, command::UPDATE_RSSIDT);
        }
        let is_receiving = state.started != 0 && (state.is_receiving || is_ready);
        if std::mem::replace(&mut state.is_receiving, is_receiving) != is_receiving {
            self.write_filters(state);
        }
    }

    /// Records that a receive queue has started or stops.
    pub fn set_started(&self, queue: u16, is_started: bool) {
        let mut state = self.state();
        state.started = state.started & !(1 << queue) | u64::from(is_started) << queue;
        if state.is_active {
            self.steer(&mut state);
        }
    }

    /// Starts a queue with `start`, which may fill its rings only if it succeeds.
    pub fn claim<Q>(&self, start: impl FnOnce() -> Result<Q>) -> Result<Q> {
        self.check_alive()?;
        let mut state = self.state();
        if !state.is_active {
            return Err(Error::needs_reset(&self.config.name));
        }
        let queue = start()?;
        state.in_use += 1;
        Ok(queue)
    }

    /// Releases a queue with its buffers, which the device may use until it is reset: when the last queue is released.
    pub fn release(&self, counters: &Arc<QueueCounters>, held: &[u32]) -> Result<()> {
        let mut state = self.state();
        state.in_use -= 1;
        state.dropped.push(counters.clone());
        state.quarantined.extend_from_slice(held);
        if state.in_use == 0 { self.bring_up(&mut state) } else { Ok(()) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the region's device addresses.
    pub fn packets(&self) -> &Addresses {
        self.packets.addresses()
    }

    /// Returns where the device writes in a buffer.
    pub fn placement(&self) -> Placement {
        Placement::new(self.config.pool.region(), self.config.options.max_frame)
    }

    /// Returns the most bytes that the device may write to a buffer.
    pub fn room(&self) -> usize {
        self.placement().room().min(descriptor::MAX_LEN)
    }

    /// Returns a ring's descriptors. A ring's length is a power of two, so it crosses no page boundary.
    pub fn ring(&self, (offset, len): (usize, usize)) -> Descriptors {
        // SAFETY: no slices of this memory are lent out.
        unsafe { Descriptors::new(self.shared.memory(), offset, len) }
    }

    /// Returns whether the device asks for the producer indices of a receive queue.
    pub fn wants_producer(&self, queue: u16) -> bool {
        let at = QUEUES + usize::from(self.config.options.tx_queues + queue) * queue::LEN;
        self.shared.memory().word(at + queue::UPDATE_RX_PROD).load(Relaxed) & 0xFF != 0
    }

    fn has_vectors(&self) -> bool {
        self.interrupts.first().is_some_and(|interrupt| !interrupt.is_line())
    }

    /// Returns the interrupt of transmit queues and events. It stays masked, except that a device without vectors has
    /// only one.
    fn quiet_interrupt(&self) -> u16 {
        if self.has_vectors() { self.config.options.rx_queues } else { 0 }
    }

    /// Returns whether the device computes hashes: for several queues, or for the metadata.
    fn has_hash(&self) -> bool {
        self.config.options.rx_queues > 1 || self.config.options.metadata
    }

    /// Reads a register of BAR 1; fails if it reads all ones, which it does only if the device is gone.
    fn read_live(&self, register: impl Into<Register>) -> Result<u32> {
        let register = register.into();
        match self.vd.read(register.offset) {
            u32::MAX => {
                let gone = Error::card_gone(&self.config.name, register.definition.name, self.bus.gone_remedy());
                // If the device is being unplugged, report the unplugging instead.
                self.check_bus().and(Err(gone))
            }
            value => Ok(value),
        }
    }

    /// Sends a command and returns its result; the caller holds the state.
    pub fn ask(&self, command: u32) -> Result<u32> {
        self.vd.write(vd::CMD::OFFSET, command);
        self.read_live(vd::CMD)
    }

    /// Sends a command that the device must confirm.
    fn change(&self, name: &str, command: u32) -> Result<()> {
        match self.ask(command)? {
            0 => Ok(()),
            result => Err(Error::bad_device(format!("it answers command {name} with {result:#x} instead of 0"))),
        }
    }

    fn check_bus(&self) -> Result<()> {
        check_bus(&*self.bus, &self.config.name, |address| self.queue_of(address))
    }

    /// Fails if the device is gone, or has stopped a queue because of an error.
    pub fn check_alive(&self) -> Result<()> {
        self.check_bus()?;
        self.read_live(vd::VRRS)?;
        match self.shared.memory().word(shared::EVENTS).load(Relaxed) & (shared::ECR_RQERR | shared::ECR_TQERR) {
            0 => Ok(()),
            _ => Err(Error::needs_reset(&self.config.name)),
        }
    }

    /// Returns the queue whose rings or descriptors contain a device address.
    fn queue_of(&self, address: DeviceAddress) -> Option<(&'static str, usize)> {
        const PAGE: DeviceAddress = !0xFFF;
        let is_of = |rings: Rings| {
            let base = self.shared.addresses().at(rings.first);
            let is_in = |(offset, len): (usize, usize)| {
                self.ring((offset, len)).iter().any(|words| words[0].load(Relaxed) & PAGE == address & PAGE)
            };
            (base..base + rings.bytes() as u64).contains(&address) || is_in(rings.ring()) || is_in(rings.second())
        };
        let (rx, tx) = (self.config.options.rx_queues, self.config.options.tx_queues);
        let rx = (0..rx).find(|&queue| is_of(Rings::rx(&self.config, queue))).map(|queue| ("receive", queue.into()));
        rx.or_else(|| Some(("transmit", (0..tx).find(|&queue| is_of(Rings::tx(&self.config, queue)))?.into())))
    }

    /// Makes the device write its counters, and returns them: ten for each transmit queue, then for each receive queue.
    fn read_counters(&self) -> Result<Vec<u64>> {
        self.vd.write(vd::CMD::OFFSET, command::GET_STATS);
        self.read_live(vd::VRRS)?;
        let queues = usize::from(self.config.options.rx_queues + self.config.options.tx_queues);
        // SAFETY: no slices of this memory are lent out.
        let of = |queue: usize| unsafe { self.shared.memory().words(QUEUES + queue * queue::LEN + queue::STATS, 10) };
        Ok((0..queues).flat_map(of).map(|counter| counter.load(Relaxed)).collect())
    }

    /// Adds what was counted since the last call.
    fn count(&self, state: &mut State) -> Result<()> {
        let now = self.read_counters()?;
        for ((sum, now), last) in state.sums.iter_mut().zip(&now).zip(&state.counted) {
            *sum = sum.wrapping_add(now.wrapping_sub(*last));
        }
        state.counted = now;
        Ok(())
    }

    /// Returns the sums of the counters over all transmit queues, and over all receive queues.
    pub fn count_by_direction(&self) -> Result<[[u64; 10]; 2]> {
        let counters = self.sums()?;
        let (tx, rx) = counters.split_at(10 * usize::from(self.config.options.tx_queues));
        let sum =
            |of: &[u64], n: usize| of.iter().skip(n).step_by(10).fold(0u64, |sum, count| sum.wrapping_add(*count));
        Ok([tx, rx].map(|of| std::array::from_fn(|n| sum(of, n))))
    }

    /// Returns all counters with their names and queues.
    pub fn named_counters(&self) -> Result<Vec<(String, u64)>> {
        let (rx, tx) = (self.config.options.rx_queues, self.config.options.tx_queues);
        let of = |names: [&'static str; 10], queues| (0..queues).flat_map(move |queue| names.map(|name| (name, queue)));
        let names = of(queue::TX_STATS, tx).chain(of(queue::RX_STATS, rx));
        Ok(names.map(|(name, queue)| format!("{name}[{queue}]")).zip(self.sums()?).collect())
    }

    fn sums(&self) -> Result<Vec<u64>> {
        self.check_alive()?;
        let mut state = self.state();
        if state.is_active {
            self.count(&mut state)?;
        }
        Ok(state.sums.clone())
    }
}

impl<B: Bar> Drop for Hardware<B> {
    fn drop(&mut self) {
        if self.reset(&mut self.state()).is_err() {
            // A device that does not answer may still write: leak the memory rather than free it.
            std::mem::forget(self.shared.memory().clone());
            std::mem::forget(self.packets.memory().clone());
        }
    }
}

/// The place of a queue's rings in the shared memory: a receive queue has completions, which are twice as many as
/// descriptors in a ring, then its two rings; a transmit queue has its ring, then completions.
#[derive(Clone, Copy)]
pub(super) struct Rings {
    first: usize,
    len: usize,
    is_rx: bool,
}

impl Rings {
    /// Returns the rings of a receive queue.
    pub fn rx(config: &Config, queue: u16) -> Rings {
        let len = config.ring();
        let bytes = 4 * len * DESCRIPTOR;
        Rings { first: bytes.max(RINGS) + usize::from(queue) * bytes, len, is_rx: true }
    }

    /// Returns the rings of a transmit queue.
    pub fn tx(config: &Config, queue: u16) -> Rings {
        let Rings { first, len, .. } = Rings::rx(config, config.options.rx_queues);
        Rings { first: first + usize::from(queue) * 2 * len * DESCRIPTOR, len, is_rx: false }
    }

    /// Returns the offset of the first ring, and its length in descriptors.
    pub fn ring(self) -> (usize, usize) {
        (self.first + if self.is_rx { 2 * self.len * DESCRIPTOR } else { 0 }, self.len)
    }

    /// As [`ring`](Rings::ring), for ring 1 of a receive queue.
    pub fn second(self) -> (usize, usize) {
        if self.is_rx { (self.first + 3 * self.len * DESCRIPTOR, self.len) } else { (self.first, 0) }
    }

    /// As [`ring`](Rings::ring), for the completions.
    pub fn completions(self) -> (usize, usize) {
        if self.is_rx { (self.first, 2 * self.len) } else { (self.first + self.len * DESCRIPTOR, self.len) }
    }

    fn bytes(self) -> usize {
        (if self.is_rx { 4 } else { 2 }) * self.len * DESCRIPTOR
    }
}

/// Checks the configuration.
fn check(config: &Config) -> Result<()> {
    /// The smallest buffer that begins a packet (`VMXNET3_MIN_T0_BUF_SIZE`).
    const SMALLEST: usize = 128;
    config.check_ring()?;
    let (name, options, region) = (&config.name, &config.options, config.pool.region());
    for (direction, queues) in [("receive", options.rx_queues), ("transmit", options.tx_queues)] {
        if !(1..=shared::MAX_QUEUES).contains(&queues) {
            return Err(Error::too_many_queues(name, direction, queues, shared::MAX_QUEUES));
        }
        if !queues.is_power_of_two() {
            let why = format!("{queues} {direction} queues are not possible: 1, 2, 4 or 8");
            return Err(Error::new(ErrorKind::BadOption, name, why));
        }
    }
    let (frame, most) = (options.max_frame, shared::MAX_MTU + FRAME_HEADERS);
    if !(FRAME_HEADERS..=most).contains(&frame) {
        let why = format!("frames of {frame} bytes are not possible: at most {most} without CRC");
        return Err(Error::new(ErrorKind::BadOption, name, why));
    }
    let room = Placement::new(region, frame).room();
    if room < SMALLEST || frame.div_ceil(room) > linerate_core::batch::MAX_CHAIN {
        let (size, remedy) = (region.buffer_size(), "give the region larger buffers");
        return Err(Error::buffer_too_small(name, size, frame, "a frame would need too many", remedy));
    }
    Ok(())
}
