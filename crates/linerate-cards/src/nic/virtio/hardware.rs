//! A device's negotiated features, the queues' memory, bringing the device up, and releasing queues.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::{Addresses, DeviceAddress, DmaMap, DmaSpace, Placement};
use linerate_core::offload::LONGEST;
use linerate_core::port::{Counters, Rss, span_of};
use linerate_spec::virtio::{config as device_config, control as command, feature, hash, status};

use super::control::{Control, ROOM};
use super::packed::Packed;
use super::ring::{DriverRing, HeaderLayout, Layout};
use super::split::Split;
use super::transport::{BY_HASH, QueueAddresses, Transport, wait_until};
use crate::nic::filters::Filters;
use crate::nic::{Config, check_bus};
use crate::pci::{Bus, Interrupt};

/// One device, shared by its [`Virtio`](super::Virtio) and its queues. Dropping the last reference resets the device
/// before its memory is freed.
pub(super) struct Hardware {
    pub transport: Arc<dyn Transport>,
    pub config: Config,
    /// The negotiated features.
    pub features: u64,
    pub layout: HeaderLayout,
    /// The types of hashes that the device computes for this driver, one bit each ([`hash`](linerate_spec::virtio::hash)).
    pub(super) hash_types: u32,
    pub(super) rx: Box<[QueueMemory]>,
    pub(super) tx: Box<[QueueMemory]>,
    pub counters: Counters,
    pub(super) interrupts: Box<[Arc<Interrupt>]>,
    control: Mutex<Option<Control>>,
    control_queue: Option<QueueMemory>,
    /// A header of zeros and the command, then all virtqueues.
    pub(super) rings: DmaMap,
    packets: DmaMap,
    state: Mutex<State>,
    /// Dropped last: this may give the card back to the kernel.
    bus: Arc<dyn Bus>,
}

/// The location of a virtqueue in the rings' memory.
#[derive(Clone, Copy)]
pub(super) struct QueueMemory {
    /// The queue's number in the device.
    pub number: u16,
    offset: usize,
    pub size: u16,
}

/// The queues in use. A device without `RING_RESET` cannot stop one queue, only all of them: it keeps dropped queues
/// until no queue is in use.
pub(super) struct State {
    /// Queues in use, or used since their last reset; receive queues have even numbers.
    pub(super) claimed: Vec<u16>,
    /// Queues that have been reset since the device was brought up, and not started again.
    pub(super) disabled: Vec<u16>,
    /// The count of queues in use.
    pub(super) in_use: usize,
    /// Buffers of dropped queues that were not reset; they return to the pool after the device's reset.
    quarantined: Vec<u32>,
    /// The receive queues that have started, one bit each.
    pub(super) started: u64,
    /// The device has been told to use all queues that have started.
    pub(super) is_receiving: bool,
    /// The selection of queues, if the device can do that.
    pub(super) rss: Rss,
    pub(super) filters: Filters,
    /// The VLANs that were added to the device's filter since its last reset.
    pub(super) known_vlans: BTreeSet<u16>,
}

/// Features negotiated only for a port with offloads.
const OFFLOADS: u64 = feature::CSUM
    | feature::GUEST_CSUM
    | GUEST_SEGMENTATION
    | feature::HOST_TSO4
    | feature::HOST_TSO6
    | feature::HOST_ECN
    | feature::HOST_USO;

/// Features negotiated only for a port with metadata.
const METADATA: u64 = feature::GUEST_CSUM | feature::HASH_REPORT;

/// Features with which the device may pass unsegmented packets to the driver.
const GUEST_SEGMENTATION: u64 =
    feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::GUEST_ECN | feature::GUEST_USO4 | feature::GUEST_USO6;

/// The entries of the table, which every device with RSS must accept (5.1.4.1). Intel's cards have as many.
pub(super) const TABLE: u16 = 128;

/// The types of hashes that this driver uses. Intel's cards have the same types.
const HASH_TYPES: u32 =
    1 << hash::IPV4 | 1 << hash::TCPV4 | 1 << hash::UDPV4 | 1 << hash::IPV6 | 1 << hash::TCPV6 | 1 << hash::UDPV6;

/// The offset of a header of zeros.
pub(super) const ZEROS: usize = 0;
const COMMAND: usize = ZEROS + 64;
const FIRST_RING: usize = (COMMAND + ROOM).next_multiple_of(4096);

impl Hardware {
    /// Resets the device, negotiates features and ring sizes, and maps the memory. `interrupts` has one for each
    /// receive queue, or none.
    pub fn new(
        transport: Arc<dyn Transport>,
        bus: Arc<dyn Bus>,
        interrupts: Box<[Arc<Interrupt>]>,
        mut config: Config,
    ) -> Result<Hardware> {
        reset(&*transport, &*bus, &config.name)?;
        let offered = transport.features();
        let offloads = if config.options.offloads { OFFLOADS } else { 0 };
        let metadata = if config.options.metadata { METADATA } else { 0 };
        // Ignore features that depend on the control queue if there is none (5.1.3.1), even if offered.
        let needs_control =
            feature::CTRL_RX | feature::CTRL_VLAN | feature::CTRL_MAC_ADDR | feature::MQ | feature::NOTF_COAL | BY_HASH;
        let offered = if offered & feature::CTRL_VQ == 0 { offered & !needs_control } else { offered };
        // A device without `CTRL_RX` receives all packets, also of all VLANs.
        let offered = if offered & feature::CTRL_RX == 0 { offered & !feature::CTRL_VLAN } else { offered };
        // With one queue, the hash is only for the metadata.
        let steering = if config.options.rx_queues > 1 || config.options.metadata { feature::RSS } else { 0 };
        let has_interval = config.options.interrupts.is_some_and(|interval| !interval.is_zero());
        let throttle = if has_interval { feature::NOTF_COAL } else { 0 };
        let features = match offered & (wanted(&*transport) | offloads | metadata | steering | throttle) {
            packed if is_packed(packed) => packed & !feature::EVENT_IDX,
            split => split,
        };
        // No IN_ORDER for legacy devices, whose buffers may have two descriptors each.
        let features = if features & feature::VERSION_1 == 0 { features & !feature::IN_ORDER } else { features };
        // Segmentation depends on the checksum and on mergeable buffers (5.1.3.1, 5.1.6.3.1).
        let features = match features & (feature::GUEST_CSUM | feature::MRG_RXBUF) {
            both if both == feature::GUEST_CSUM | feature::MRG_RXBUF => features,
            _ => features & !GUEST_SEGMENTATION,
        };
        if features & GUEST_SEGMENTATION != 0 {
            config.options.max_frame = config.options.max_frame.max(LONGEST);
        }
        let pairs = config.options.rx_queues.max(config.options.tx_queues);
        let most = transport.most_pairs(features);
        // 5.1.4.1. The control queue follows the pairs, and its number must also fit 16 bits.
        if !(1..0x8000).contains(&most) {
            return Err(Error::bad_device("its count of queue pairs is not between 1 and 32767"));
        }
        if pairs > most {
            return Err(Error::too_many_queues(config.name, "pairs of", pairs, most));
        }
        let layout = HeaderLayout::new(features);
        let hash_types = hash_types(&*transport, features)?;
        let region = config.pool.region();
        if !layout.mergeable && region.room() < config.options.max_frame {
            return Err(Error::buffer_too_small(
                config.name,
                region.buffer_size(),
                config.options.max_frame,
                "this device has no mergeable buffers",
                "give the region larger buffers",
            ));
        }

        // The features must be known first: the set of queues depends on them.
        negotiate(&*transport, features)?;
        let mut end = FIRST_RING;
        let mut place = |number: u16| -> Result<QueueMemory> {
            // Both formats need a power of two.
            let size = transport.queue_size(number, config.ring() as u16);
            if size < 4 || !size.is_power_of_two() || size > 1 << 15 {
                return Err(Error::bad_device("the size of a queue is not a power of two from 4 to 32768"));
            }
            let len = ring_layout(features, size).len;
            // Aligned to its size, so that it crosses no page boundary, and to a legacy device's page.
            let step = len.next_power_of_two().max(4096);
            let offset = end.next_multiple_of(step);
            end = offset + step;
            Ok(QueueMemory { number, offset, size })
        };
        let mut places = |queues: u16, direction: u16| -> Result<Box<[QueueMemory]>> {
            (0..queues).map(|queue| place(2 * queue + direction)).collect()
        };
        let (rx, tx) = (places(config.options.rx_queues, 0)?, places(config.options.tx_queues, 1)?);
        let control_queue = match features & feature::CTRL_VQ {
            0 => None,
            _ => Some(place(2 * most)?),
        };

        let dma: &Arc<dyn DmaSpace> = &(bus.clone() as _);
        // SAFETY: the mapping is for the device; only its addresses are used here.
        let packets = DmaMap::new(dma, unsafe { region.mapping() })?;
        if matches!(packets.addresses(), Addresses::Contiguous(_)) && transport.bypasses_bus(features) {
            return Err(Error::card(
                config.name.clone(),
                "this device bypasses the IOMMU (it does not offer VIRTIO_F_ACCESS_PLATFORM), so over vfio \
                      it would write into memory outside this process"
                    .to_string(),
                Remedy::TakeOverUio {
                    address: config.name,
                    step: "start the machine with iommu_platform=on for it".into(),
                },
            ));
        }
        let rings = DmaMap::of_rings(dma, end, region.pages())?;
        let state = Mutex::new(State {
            claimed: Vec::new(),
            disabled: Vec::new(),
            in_use: 0,
            quarantined: Vec::new(),
            started: 0,
            is_receiving: false,
            rss: Rss::evenly(config.options.rx_queues),
            filters: Filters { promiscuous: true, ..Filters::default() },
            known_vlans: BTreeSet::new(),
        });
        Ok(Hardware {
            transport,
            features,
            layout,
            hash_types,
            rx,
            tx,
            counters: Counters::new(&config),
            interrupts,
            control: Mutex::default(),
            control_queue,
            rings,
            packets,
            state,
            bus,
            config,
        })
    }

    /// Brings the device up from any state, with empty queues (3.1.1).
    pub fn bring_up(&self) -> Result<()> {
        self.bring_up_alone(&mut self.state())
    }

    /// As [`bring_up`](Hardware::bring_up), with the state locked: no queue can be claimed until the device works.
    fn bring_up_alone(&self, state: &mut State) -> Result<()> {
        let transport = &*self.transport;
        reset(transport, &*self.bus, &self.config.name)?;
        // SAFETY: the device is reset.
        unsafe { self.bus.allow_dma()? };
        // SAFETY: the queues that held them are gone, and the device was reset, so nothing uses them.
        unsafe { self.config.pool.give(&std::mem::take(&mut state.quarantined)) };
        state.claimed.clear();
        state.disabled.clear();
        (state.started, state.is_receiving) = (0, false);

        let reached = negotiate(transport, self.features)?;

        let memory = self.rings.memory();
        // SAFETY: no slices of the rings' memory are lent out.
        unsafe { memory.words(0, memory.len() / 8) }.iter().for_each(|word| word.store(0, Relaxed));
        for queue in self.rx.iter().chain(&self.tx) {
            self.start_queue(*queue)?;
        }
        let mut control = None;
        if let Some(queue) = self.control_queue {
            self.start_queue(queue)?;
            control = Some(Control {
                ring: if is_packed(self.features) { self.boxed::<Packed>(queue) } else { self.boxed::<Split>(queue) },
                doorbell: transport.notify(queue.number)?,
                memory: memory.clone(),
                offset: COMMAND,
                address: self.rings.addresses().at(COMMAND),
                port: self.config.name.clone(),
            });
        }
        *self.control() = control;
        transport.set_status(reached | status::DRIVER_OK);
        self.restore_filters(state)?;
        self.throttle_interrupts()?;
        self.configure_hash()
    }

    fn start_queue(&self, queue: QueueMemory) -> Result<()> {
        let QueueMemory { number, offset, size } = queue;
        let has_vectors = self.interrupts.first().is_some_and(|interrupt| !interrupt.is_line());
        let is_receive = self.rx.iter().any(|queue| queue.number == number);
        let vector = (has_vectors && is_receive).then_some(number / 2);
        let layout = ring_layout(self.features, size);
        let base = self.rings.addresses().at(offset);
        let addresses = QueueAddresses {
            descriptors: base,
            driver: base + layout.driver as u64,
            device: base + layout.device as u64,
        };
        match self.transport.start_queue(number, size, &addresses, vector) {
            true => Ok(()),
            false => Err(Error::bad_device("it rejects an MSI-X vector that it has")),
        }
    }

    /// Starts a queue again that was reset.
    pub(super) fn restart_queue(&self, queue: QueueMemory) -> Result<()> {
        let words = ring_layout(self.features, queue.size).len.div_ceil(8);
        // SAFETY: no slices of the rings' memory are lent out.
        unsafe { self.rings.memory().words(queue.offset, words) }.iter().for_each(|word| word.store(0, Relaxed));
        self.start_queue(queue)
    }

    /// Resets a queue (2.6.1). Then the device does not use its buffers.
    fn reset_queue(&self, number: u16) -> Result<()> {
        self.transport.reset_queue(number);
        wait_until(&self.config.name, "queue_reset = 0", "2.6.1", || {
            self.check_alive()?;
            Ok(self.transport.is_queue_reset(number))
        })
    }

    pub fn ring<R: DriverRing>(&self, queue: QueueMemory) -> R {
        R::new(self.rings.memory(), queue.offset, queue.size, self.features & feature::EVENT_IDX != 0)
    }

    fn boxed<R: DriverRing>(&self, queue: QueueMemory) -> Box<dyn DriverRing> {
        Box::new(self.ring::<R>(queue))
    }

    /// Returns the region's device addresses.
    pub fn packets(&self) -> &Addresses {
        self.packets.addresses()
    }

    /// Returns the count of descriptors in the receive rings.
    pub fn ring_size(&self) -> usize {
        self.rx.first().map_or(0, |queue| queue.size.into())
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command on the control queue.
    pub fn command(&self, number: [u8; 2], data: &[u8], what: &'static str) -> Result<()> {
        match &mut *self.control() {
            // A device that the IOMMU blocks does not answer either: report the blocked access instead of the timeout.
            Some(control) => {
                let outcome = control.command(number, data, what);
                outcome.map_err(|error| self.check_alive().err().unwrap_or(error))
            }
            None => Err(Error::unsupported(&self.config.name, what, "the device has no control queue")),
        }
    }

    /// Sets the longest delay of an interrupt (VIRTIO 1.3, 5.1.6.5.9). The device must not wait until the ring is full.
    fn throttle_interrupts(&self) -> Result<()> {
        let Some(interval) = self.config.options.interrupts.filter(|_| self.features & feature::NOTF_COAL != 0) else {
            return Ok(());
        };
        let max_packets = self.ring_size() as u32 / u32::from(self.layout.descriptors()) / 2;
        let max_usecs = interval.as_micros().clamp(1, u32::MAX.into()) as u32;
        let data = [max_packets.to_le_bytes(), max_usecs.to_le_bytes()].concat();
        match self.command(command::NOTF_COAL_RX_SET, &data, "interval of interrupts") {
            // A device may interrupt more often than it was asked to.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let _of_port = span_of(&self.config.name).entered();
                tracing::warn!("the device rejects an interval of {max_usecs} µs between interrupts");
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn check_bus(&self) -> Result<()> {
        check_bus(&*self.bus, &self.config.name, |address| self.queue_of(address))
    }

    /// Fails if the device is gone, or needs a reset.
    pub fn check_alive(&self) -> Result<()> {
        self.check_bus()?;
        let port = || self.config.name.clone();
        match self.transport.status() {
            // The device may be being unplugged since the first check: report that instead.
            u8::MAX => self.check_bus().and(Err(Error::card_gone(port(), "device_status", self.bus.gone_remedy()))),
            status if status & status::DEVICE_NEEDS_RESET != 0 => Err(Error::needs_reset(port())),
            _ => Ok(()),
        }
    }

    /// Returns the queue whose ring or descriptors contain a device address.
    fn queue_of(&self, address: DeviceAddress) -> Option<(&'static str, usize)> {
        const PAGE: DeviceAddress = !0xFFF;
        let is_of = |&QueueMemory { offset, size, .. }: &QueueMemory| {
            let layout = ring_layout(self.features, size);
            let base = self.rings.addresses().at(offset);
            // Both formats begin with descriptors, whose first word is the address.
            // SAFETY: no slices of the rings' memory are lent out.
            let words = unsafe { self.rings.memory().words(offset, 2 * usize::from(size)) };
            (base..base + layout.len as u64).contains(&address)
                || words.iter().step_by(2).any(|word| word.load(Relaxed) & PAGE == address & PAGE)
        };
        let found = |direction, queues: &[QueueMemory]| Some((direction, queues.iter().position(is_of)?));
        found("receive", &self.rx).or_else(|| found("transmit", &self.tx))
    }

    /// Returns where the device writes a packet in a buffer, after its header.
    pub fn placement(&self) -> Placement {
        Placement::new(self.config.pool.region(), self.config.options.max_frame)
    }

    /// Releases a queue. Its buffers return to the pool if the device can reset the queue, or has ended. Otherwise they
    /// are quarantined until the last queue is released and the device is reset.
    ///
    /// QEMU (11.1) does not read from the TAP queue that belongs to a receive queue after its reset. Packets there wait
    /// until the receive queue starts again, also if the table directs them to another queue.
    pub fn release(&self, number: u16, held: &[u32]) -> Result<()> {
        let mut state = self.state();
        state.in_use -= 1;
        let mut outcome = Ok(());
        if self.features & feature::RING_RESET != 0 {
            outcome = self.reset_queue(number);
            if outcome.is_ok() {
                state.claimed.retain(|claimed| *claimed != number);
                state.disabled.push(number);
            }
        }
        match self.transport.has_ended() || !state.claimed.contains(&number) {
            // SAFETY: the queue that held them gives them up, and the device does not use them: the queue was reset, or
            // the device has ended.
            true => unsafe { self.config.pool.give(held) },
            false => state.quarantined.extend_from_slice(held),
        }
        if state.in_use > 0 || state.claimed.is_empty() {
            return outcome;
        }
        self.bring_up_alone(&mut state)
    }

    /// Logs that the device returned a buffer that it was not given.
    #[cold]
    pub fn report_invalid_id(&self, direction: &str) {
        let _of_port = span_of(&self.config.name).entered();
        tracing::warn!(
            "the device returned a buffer that it does not own: a {direction} queue is stopped until the device is reset"
        );
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        if reset(&*self.transport, &*self.bus, &self.config.name).is_ok() {
            let quarantined = std::mem::take(&mut self.state().quarantined);
            // SAFETY: the queues that held them are gone, and the device was reset, so nothing uses them.
            unsafe { self.config.pool.give(&quarantined) };
        } else {
            // A device that does not answer may still write: leak the memory rather than free it.
            std::mem::forget(self.rings.memory().clone());
            std::mem::forget(self.packets.memory().clone());
        }
    }
}

fn is_packed(features: u64) -> bool {
    features & feature::RING_PACKED != 0
}

fn ring_layout(features: u64, size: u16) -> Layout {
    if is_packed(features) { Packed::layout(size) } else { Split::layout(size) }
}

/// Returns the features to negotiate.
fn wanted(transport: &dyn Transport) -> u64 {
    let always = feature::MAC
        | feature::STATUS
        | feature::MRG_RXBUF
        | feature::CTRL_VQ
        | feature::CTRL_RX
        | feature::CTRL_VLAN
        | feature::CTRL_MAC_ADDR
        | feature::MQ
        | feature::EVENT_IDX;
    always | transport.wanted()
}

/// Returns the types of hashes that the device computes with these features, and that this driver uses.
///
/// # Errors
/// The device's limits violate the specification (5.1.4.1).
fn hash_types(transport: &dyn Transport, features: u64) -> Result<u32> {
    if features & BY_HASH == 0 {
        return Ok(0);
    }
    let key = transport.config_8(device_config::RSS_MAX_KEY_SIZE);
    if usize::from(key) < Rss::DEFAULT_KEY.len() {
        return Err(Error::bad_device(format!("its rss_max_key_size is {key}, and must be at least 40")));
    }
    let table = transport.config_16(device_config::RSS_MAX_INDIRECTION_TABLE_LENGTH);
    if features & feature::RSS != 0 && table < TABLE {
        let why = format!("its rss_max_indirection_table_length is {table}, and must be at least {TABLE}");
        return Err(Error::bad_device(why));
    }
    match transport.config_32(device_config::SUPPORTED_HASH_TYPES) & HASH_TYPES {
        0 => Err(Error::bad_device("it offers hashes, and its supported_hash_types has none for IP, TCP or UDP")),
        types => Ok(types),
    }
}

/// Acknowledges the device and accepts features (3.1.1, steps 2 to 6). Returns the status reached.
fn negotiate(transport: &dyn Transport, features: u64) -> Result<u8> {
    transport.set_status(status::ACKNOWLEDGE);
    let mut reached = status::ACKNOWLEDGE | status::DRIVER;
    transport.set_status(reached);
    transport.accept(features);
    if features & feature::VERSION_1 != 0 {
        reached |= status::FEATURES_OK;
        transport.set_status(reached);
        if transport.status() & status::FEATURES_OK == 0 {
            transport.set_status(status::FAILED);
            return Err(Error::bad_device("it rejects features that it has offered"));
        }
    }
    Ok(reached)
}

/// Resets the device, and waits until the reset is complete (2.4.1). Then the device holds no addresses.
fn reset(transport: &dyn Transport, bus: &dyn Bus, port: &str) -> Result<()> {
    transport.set_status(0);
    wait_until(port, "device_status = 0", "2.4.1", || match transport.status() {
        u8::MAX => Err(Error::card_gone(port, "device_status", bus.gone_remedy())),
        status => Ok(status == 0),
    })
}
