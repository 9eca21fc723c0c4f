//! A back end as the driver's device: register accesses become messages, and doorbells become events.
//!
//! All rings are described to the back end when the driver sets `DRIVER_OK`, and stopped when it resets the device.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_cards::nic::virtio::{Notify, QueueAddresses, Transport};
use linerate_cards::pci::{Bus, Interrupt};
use linerate_core::error::{Error, Result};
use linerate_core::event::PEER_TIMEOUT;
use linerate_core::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping};
use linerate_core::port::span_of;
use linerate_spec::virtio::{feature, status};

use super::Forms;
use super::link::Link;
use crate::vhost::message::{
    ByteValued, MemoryRegion, MemoryTable, PROTOCOL_FEATURES, Protocol, Request, VringAddr, VringState,
};

/// The properties that a port requests from its back ends.
pub struct Wanted {
    /// The port's name.
    pub port: String,
    /// Queue pairs.
    pub pairs: u16,
    /// The requested forms of queues.
    pub forms: Forms,
    pub mtu: u64,
    /// One for each receive queue, or none.
    pub interrupts: Vec<Interrupt>,
}

/// The device of one connection.
pub struct BackEnd {
    pub link: Link,
    wanted: Arc<Wanted>,
    /// The virtio features that the back end offers.
    offered: u64,
    /// The negotiated protocol features.
    protocol: Protocol,
    /// The back end's maximum number of queue pairs.
    pairs: u16,
    /// The doorbells, by queue.
    kicks: Vec<Arc<Interrupt>>,
    /// The event of polled queues, which is never read. It exists because QEMU's libvhost-user fails without an event.
    unread: Interrupt,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The accepted features.
    features: u64,
    status: u8,
    rings: Vec<RingSetup>,
    /// The back end has been given the rings.
    is_started: bool,
    /// The next free device address.
    next: DeviceAddress,
    maps: Vec<(DeviceAddress, Arc<Mapping>)>,
}

/// A ring, as set up by the driver.
struct RingSetup {
    queue: u16,
    size: u16,
    addresses: VringAddr,
    vector: Option<u16>,
}

impl BackEnd {
    /// The protocol features that this side supports.
    const USED: Protocol = Protocol::MQ.union(Protocol::REPLY_ACK).union(Protocol::MTU).union(Protocol::STATUS);
    /// Features of the device configuration and the control queue, which the front end implements itself.
    const FRONT_END_FEATURES: u64 = feature::MAC
        | feature::STATUS
        | feature::CTRL_VQ
        | feature::CTRL_RX
        | feature::CTRL_VLAN
        | feature::CTRL_MAC_ADDR
        | feature::SPEED_DUPLEX
        | feature::MTU
        | feature::MQ
        | feature::ACCESS_PLATFORM
        | PROTOCOL_FEATURES;

    /// Wraps a connection, and requests the back end's features. The back end gets no memory yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable);
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if there are no descriptors left.
    pub fn new(socket: UnixStream, wanted: &Arc<Wanted>) -> Result<Arc<BackEnd>> {
        let link = Link::new(socket, PEER_TIMEOUT).map_err(|error| Error::system("setsockopt", error))?;
        let kicks = (0..2 * wanted.pairs).map(|_| Interrupt::shared().map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let unread = Interrupt::shared()?;
        let found = (|| {
            let offered = query_u64(&link, Request::GET_FEATURES)?;
            let (mut protocol, mut pairs) = (Protocol::empty(), 1);
            if offered & PROTOCOL_FEATURES != 0 {
                let all = query_u64(&link, Request::GET_PROTOCOL_FEATURES)?;
                protocol = Protocol::from_bits_truncate(all) & BackEnd::USED;
                link.send_request(Request::SET_PROTOCOL_FEATURES, protocol.bits().as_slice(), &[], false)?;
            }
            send_checked(&link, Request::SET_OWNER, &[], &[], protocol.contains(Protocol::REPLY_ACK)).then_some(())?;
            if protocol.contains(Protocol::MQ) && offered & feature::MQ != 0 {
                pairs = query_u64(&link, Request::GET_QUEUE_NUM)?;
            }
            Some((offered, protocol, pairs))
        })();
        let Some((offered, protocol, pairs)) = found else { return Err(failed(&link, &wanted.port)) };
        let (pairs, state) = (u16::try_from(pairs).unwrap_or(u16::MAX).min(0x7FFF), Mutex::default());
        Ok(Arc::new(BackEnd { link, wanted: wanted.clone(), offered, protocol, pairs, kicks, unread, state }))
    }

    /// Fails if a request has failed.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable).
    pub fn check(&self) -> Result<()> {
        self.link.failure().map_or(Ok(()), |_| Err(failed(&self.link, &self.wanted.port)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request. Returns false if it has failed.
    fn send_request(&self, request: Request, payload: &[u8]) -> bool {
        self.send_request_with(request, payload, &[])
    }

    /// Like [`send_request`](BackEnd::send_request), with descriptors.
    fn send_request_with(&self, request: Request, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        send_checked(&self.link, request, payload, descriptors, self.acknowledges())
    }

    fn acknowledges(&self) -> bool {
        self.protocol.contains(Protocol::REPLY_ACK)
    }

    /// Sends memory and rings to the back end. Returns false at the first request that fails.
    fn start(&self, state: &mut State) -> bool {
        let mtu = self.wanted.mtu;
        if self.protocol.contains(Protocol::MTU)
            && self.offered & feature::MTU != 0
            && self.link.send_request(Request::NET_SET_MTU, mtu.as_slice(), &[], self.acknowledges()) != Some(true)
        {
            let mend = "a smaller MTU here, or a larger one at the back end";
            self.link.fail_with(format!("the back end refuses an MTU of {mtu}"), mend);
            return false;
        }
        // From here on, the back end may have memory and rings.
        state.is_started = true;
        let table = MemoryTable::new(state.maps.len() as u32);
        let mut payload = table.as_slice().to_vec();
        let mut files = Vec::new();
        for (address, memory) in &state.maps {
            // The requests give rings by addresses of this process, and descriptors give buffers by device addresses.
            // Here, both addresses are the same.
            let region = MemoryRegion::new(*address, memory.len() as u64, *address, 0);
            payload.extend(region.as_slice());
            files.push(memory.file());
        }
        self.send_request_with(Request::SET_MEM_TABLE, &payload, &files)
            && state.rings.iter().all(|ring| self.start_ring(ring, state.features))
            // Without acknowledgements, this reply shows that all requests have been processed.
            && (self.acknowledges() || self.link.query(Request::GET_FEATURES, &[]).is_some())
    }

    fn start_ring(&self, ring: &RingSetup, features: u64) -> bool {
        let index = u32::from(ring.queue);
        let value = |value: u32| VringState::new(index, value);
        // No descriptor is available or used yet; a packed ring's wrap counters begin with 1 (2.8.1).
        let base = if features & feature::RING_PACKED != 0 { 1 << 31 | 1 << 15 } else { 0 };
        let call = ring.vector.and_then(|vector| self.wanted.interrupts.get(usize::from(vector)));
        let event =
            |request, event: &Interrupt| self.send_request_with(request, u64::from(index).as_slice(), &[event.as_fd()]);
        self.send_request(Request::SET_VRING_NUM, value(ring.size.into()).as_slice())
            && self.send_request(Request::SET_VRING_BASE, value(base).as_slice())
            && self.send_request(Request::SET_VRING_ADDR, ring.addresses.as_slice())
            && event(Request::SET_VRING_CALL, call.unwrap_or(&self.unread))
            && event(Request::SET_VRING_KICK, &self.kicks[usize::from(ring.queue)])
            && (self.offered & PROTOCOL_FEATURES == 0
                || self.send_request(Request::SET_VRING_ENABLE, value(1).as_slice()))
    }

    /// Stops the rings; once the back end has replied, it no longer uses them.
    fn stop(&self, state: &mut State) {
        let _of_port = span_of(&self.wanted.port).entered();
        let rings = std::mem::take(&mut state.rings);
        if std::mem::take(&mut state.is_started) {
            let was_alive = self.link.is_alive();
            for ring in rings {
                let stopped = VringState::new(ring.queue.into(), 0);
                let _ = self.link.query(Request::GET_VRING_BASE, stopped.as_slice());
            }
            if was_alive && !self.link.is_alive() && !self.link.is_gone() {
                let why = self.link.failure().unwrap_or_default();
                tracing::warn!("{why}: its rings may still be running, so their memory is not reused");
            }
        }
    }
}

/// Sends a request that has no specific reply. Returns false if it has failed.
fn send_checked(
    link: &Link,
    request: Request,
    payload: &[u8],
    descriptors: &[BorrowedFd<'_>],
    acknowledged: bool,
) -> bool {
    let outcome = link.send_request(request, payload, descriptors, acknowledged);
    if outcome == Some(false) {
        link.fail(format!("the back end refuses request {request:?} of vhost-user"));
    }
    outcome == Some(true)
}

/// Requests a number.
fn query_u64(link: &Link, request: Request) -> Option<u64> {
    let reply = link.query(request, &[])?;
    let number = <[u8; 8]>::try_from(&*reply).ok().map(u64::from_le_bytes);
    if number.is_none() {
        link.fail(format!("the back end's reply to request {request:?} of vhost-user is {} bytes long", reply.len()));
    }
    number
}

/// Returns the error for an unusable back end.
fn failed(link: &Link, card: &str) -> Error {
    let why = link.failure().unwrap_or("the back end cannot be used").to_string();
    Error::card(card, why, link.remedy())
}

impl Transport for BackEnd {
    fn kind(&self) -> &'static str {
        "vhost-user"
    }

    fn wanted(&self) -> u64 {
        let Forms { packed, in_order, .. } = self.wanted.forms;
        let packed = if packed { feature::RING_PACKED } else { 0 };
        let in_order = if in_order { feature::IN_ORDER } else { 0 };
        feature::VERSION_1 | feature::ANY_LAYOUT | feature::ORDER_PLATFORM | packed | in_order
    }

    /// A back end can only use the addresses that it is given.
    fn bypasses_bus(&self, _: u64) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        self.link.is_gone()
    }

    fn status(&self) -> u8 {
        let shadow = self.lock().status;
        let is_asked = shadow & (status::FEATURES_OK | status::DRIVER_OK) == status::FEATURES_OK;
        match self.link.is_alive() {
            // A device that is gone counts as reset; a silent device may still use the memory.
            false if shadow == 0 && self.link.is_gone() => 0,
            false => u8::MAX,
            true if is_asked && self.protocol.contains(Protocol::STATUS) => {
                query_u64(&self.link, Request::GET_STATUS).map_or(u8::MAX, |status| status as u8)
            }
            true => shadow,
        }
    }

    fn set_status(&self, status: u8) {
        let mut state = self.lock();
        state.status = status;
        if status == 0 {
            self.stop(&mut state);
        }
        if status & status::DRIVER_OK != 0 && !self.start(&mut state) {
            return;
        }
        if self.protocol.contains(Protocol::STATUS) {
            self.send_request(Request::SET_STATUS, u64::from(status).as_slice());
        }
    }

    fn features(&self) -> u64 {
        let unwanted = if self.wanted.forms.mergeable { 0 } else { feature::MRG_RXBUF };
        self.offered & !BackEnd::FRONT_END_FEATURES & !unwanted
    }

    fn accept(&self, features: u64) {
        let mut all = features | self.offered & PROTOCOL_FEATURES;
        if self.protocol.contains(Protocol::MTU) {
            all |= self.offered & feature::MTU;
        }
        if self.wanted.pairs > 1 {
            all |= self.offered & feature::MQ;
        }
        self.lock().features = features;
        self.send_request(Request::SET_FEATURES, all.as_slice());
    }

    fn most_pairs(&self, _: u64) -> u16 {
        self.pairs
    }

    fn queue_size(&self, queue: u16, wanted: u16) -> u16 {
        if usize::from(queue) < self.kicks.len() { wanted } else { 0 }
    }

    fn start_queue(&self, queue: u16, size: u16, addresses: &QueueAddresses, vector: Option<u16>) -> bool {
        let QueueAddresses { descriptors, driver, device } = *addresses;
        let index = u32::from(queue);
        let addresses =
            VringAddr { index, descriptor: descriptors, used: device, available: driver, ..VringAddr::default() };
        self.lock().rings.push(RingSetup { queue, size, addresses, vector });
        true
    }

    fn notify(&self, queue: u16) -> Result<Notify> {
        Ok(Notify::Event(self.kicks[usize::from(queue)].clone()))
    }

    fn take_interrupt(&self) -> u8 {
        0
    }

    fn config_8(&self, _: u32) -> u8 {
        0
    }

    fn config_16(&self, _: u32) -> u16 {
        0
    }

    fn config_32(&self, _: u32) -> u32 {
        0
    }
}

// SAFETY: the back end is a device: it accesses only memory that the driver gives it.
unsafe impl DmaSpace for BackEnd {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        // Gaps between mappings reveal accesses beyond an end.
        const FIRST: DeviceAddress = 1 << 32;
        const GAP: DeviceAddress = 1 << 30;
        let mut state = self.lock();
        let address = state.next.max(FIRST);
        state.next = address + (memory.len() as u64).next_multiple_of(GAP) + GAP;
        state.maps.push((address, memory.clone()));
        Ok(Addresses::Contiguous(Contiguous(address)))
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        self.lock().maps.retain(|(start, _)| *start != address);
    }
}

impl Bus for BackEnd {
    fn interrupts(&self, _: u16) -> Result<Vec<Interrupt>> {
        self.wanted.interrupts.iter().map(Interrupt::try_clone).collect()
    }

    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }
}
