//! The control thread: it serves front ends, one at a time, and carries out their requests.
//!
//! A front end is untrusted. An invalid message ends its connection, and everything that it has shared is released.
//! Then the next front end may connect.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use linerate_core::error::Result;
use linerate_core::event::{Interrupt, PEER_TIMEOUT};
use linerate_core::port::{FRAME_HEADERS, span_of};
use linerate_core::unix_socket::{ControlThread, FirstMessage, Peers};
use linerate_spec::virtio::feature;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::log::Log;
use super::memory::{GuestMemory, MOST_REGIONS, RegionDescription};
use super::message::*;
use super::ring::Addresses;
use super::vring::{Announcement, Setup, Stalled, Vring};

/// The maximum number of descriptors of a virtqueue (VIRTIO 1.2, 2.7).
const MOST_DESCRIPTORS: u32 = 32_768;

/// The state shared by the control thread and the port.
pub struct Shared {
    /// The port's name.
    pub name: String,
    /// Virtqueues in the front end's order: for each pair its receive queue, then its transmit queue.
    pub vrings: Vec<Arc<Vring>>,
    /// The offered virtio features.
    pub offered: u64,
    pub is_connected: AtomicBool,
    /// The negotiated features.
    pub features: AtomicU64,
    /// The longest frame that the port accepts.
    pub longest: usize,
}

impl Shared {
    /// Returns the virtqueue of this receive queue: the front end's transmit queue.
    pub fn receives(&self, queue: u16) -> &Arc<Vring> {
        &self.vrings[usize::from(queue) * 2 + 1]
    }

    /// Returns the virtqueue of this transmit queue.
    pub fn transmits(&self, queue: u16) -> &Arc<Vring> {
        &self.vrings[usize::from(queue) * 2]
    }
}

/// Starts the control thread, which listens at `path`, or keeps connecting to it.
///
/// # Errors
/// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if no socket can be at the path.
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the path cannot be used, or this user may not use the
/// front end's socket. [`ErrorKind::System`](linerate_core::ErrorKind::System) without a thread.
pub fn start(port: &str, path: &Path, is_client: bool, shared: Arc<Shared>) -> Result<ControlThread> {
    let peers = match is_client {
        true => Peers::connect_to(port, path)?,
        false => Peers::listen(path, FirstMessage::of_client::<Header>())?,
    };
    ControlThread::start("vhost-user", peers, move |peers, stop| {
        let _of_port = span_of(&shared.name).entered();
        run(peers, stop, &shared);
    })
}

/// Serves one front end after another.
fn run(peers: &Peers, stop: &Interrupt, shared: &Arc<Shared>) {
    let mut is_noted = false;
    while let Some(socket) = peers.next(stop) {
        tracing::debug!("a front end is connected");
        shared.is_connected.store(true, SeqCst);
        let end = Session::new(shared.clone(), Connection::new(socket)).run(stop);
        // QEMU repeats this; the warning appears once.
        if end == End::Early && !std::mem::replace(&mut is_noted, true) {
            tracing::warn!(
                "the front end disconnected after asking for the port's features: it may need more; a running machine needs \
                 the options (packed, offloads, queues, mtu) that its port had before"
            );
        }
        is_noted &= end == End::Early;
        tracing::debug!("the front end has disconnected");
        shared.is_connected.store(false, SeqCst);
        peers.pause(stop);
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The front end has asked for features, but has shared no memory.
    Early,
    Other,
}

/// Why a message was refused.
enum Refused {
    /// The message violates the protocol, or cannot be carried out.
    Message(&'static str),
    /// A queue still uses what the message changes, so the front end must not be told that the change is done.
    Stalled,
}

impl From<Stalled> for Refused {
    fn from(_: Stalled) -> Refused {
        Refused::Stalled
    }
}

/// A reply's payload; `None` if the request has none.
type Reply = std::result::Result<Option<Vec<u8>>, Refused>;

/// One connection.
pub(super) struct Session {
    connection: Connection,
    shared: Arc<Shared>,
    memory: Arc<GuestMemory>,
    log: Option<Arc<Log>>,
    features: u64,
    protocol: Protocol,
    status: u8,
    /// The front end has asked for the features.
    has_asked: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, connection: Connection) -> Session {
        Session {
            connection,
            shared,
            memory: Arc::default(),
            log: None,
            features: 0,
            protocol: Protocol::empty(),
            status: 0,
            has_asked: false,
        }
    }

    /// Serves the front end until it disconnects, or the port is closed. A front end that sends no message, or stops
    /// within one, times out, so that the next front end can be served. Between messages, a front end may be idle for
    /// any time.
    pub(super) fn run(mut self, stop: &Interrupt) -> End {
        let mut expected_since = Some(Instant::now());
        loop {
            let left = expected_since.map(|since| PEER_TIMEOUT.saturating_sub(since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                tracing::warn!(
                    "closing the front end's connection: no complete message arrived within {PEER_TIMEOUT:?}"
                );
                return End::Other;
            }
            let longest = left.and_then(|left| Timespec::try_from(left).ok());
            let mut events = [PollFd::new(stop, PollFlags::IN), PollFd::new(self.connection.socket(), PollFlags::IN)];
            match poll(&mut events, longest.as_ref()) {
                // A signal, or the timeout.
                Err(_) | Ok(0) => continue,
                Ok(_) => {}
            }
            if !events[0].revents().is_empty() {
                return End::Other;
            }
            match self.connection.receive() {
                Ok(None) => expected_since = expected_since.or_else(|| Some(Instant::now())),
                Ok(Some(message)) => {
                    expected_since = None;
                    let request = name(message.header.request);
                    if let Err(why) = self.handle(message) {
                        tracing::warn!("request {request} of the front end ends its connection: {why}");
                        return End::Other;
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!("a message of the front end ends its connection: {error}");
                    return End::Other;
                }
                Err(error) => {
                    tracing::debug!("the front end's connection has ended: {error}");
                    return if self.has_asked && self.memory.is_empty() { End::Early } else { End::Other };
                }
            }
        }
    }

    /// Carries out a request, and replies.
    fn handle(&mut self, mut message: Message) -> io::Result<()> {
        let Header { request, flags, .. } = message.header;
        if flags & (flag::VERSION_BITS | flag::REPLY) != flag::VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is a reply, or its version is not 1"));
        }
        let descriptors = std::mem::take(&mut message.descriptors);
        let answer = match Request::try_from(request) {
            Ok(request) => self.answer(request, &message, descriptors),
            Err(()) => Err(Refused::Message("there is no such request")),
        };
        let header = Header { request, flags: flag::VERSION | flag::REPLY, size: 0 };
        let wants_reply = flags & flag::NEED_REPLY != 0 && self.protocol.contains(Protocol::REPLY_ACK);
        match answer {
            Ok(Some(payload)) => {
                self.connection.send(header, &[&payload], &[])?;
                // Forget the position only after the reply: if this process is killed before that, the front end does
                // not know the position.
                if request == u32::from(Request::GET_VRING_BASE) {
                    let stopped = self.state(&message).and_then(|state| self.vring(state.index));
                    stopped.iter().for_each(|vring| vring.forget_position());
                }
                Ok(())
            }
            Ok(None) if wants_reply => self.connection.send(header, &[0u64.as_slice()], &[]),
            Ok(None) => Ok(()),
            Err(Refused::Stalled) => Err(io::Error::new(io::ErrorKind::TimedOut, "the thread of a queue is stopped")),
            Err(Refused::Message(why)) if wants_reply => {
                tracing::warn!("request {} of the front end is refused: {why}", name(request));
                self.connection.send(header, &[1u64.as_slice()], &[])
            }
            Err(Refused::Message(why)) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        }
    }

    fn answer(&mut self, request: Request, message: &Message, descriptors: Vec<OwnedFd>) -> Reply {
        let number =
            || parse::<u64>(&message.payload).map(|(number, _)| number).ok_or(Refused::Message("it has no number"));
        let reply = |number: u64| Ok(Some(number.as_slice().to_vec()));
        match request {
            Request::GET_FEATURES => {
                self.has_asked = true;
                reply(self.shared.offered | LOG_ALL | PROTOCOL_FEATURES)
            }
            Request::SET_FEATURES => self.set_features(number()?),
            Request::GET_PROTOCOL_FEATURES => reply(Session::OFFERED.bits()),
            Request::SET_PROTOCOL_FEATURES => {
                self.protocol = Protocol::from_bits_truncate(number()?) & Session::OFFERED;
                Ok(None)
            }
            // No front end waits for the log's event; each reads the log when it needs to.
            Request::SET_OWNER | Request::RESET_OWNER | Request::SET_VRING_ERR | Request::SET_LOG_FD => Ok(None),
            Request::SET_LOG_BASE => self.set_log(message, descriptors),
            Request::SEND_RARP => self.announce(number()?),
            Request::GET_QUEUE_NUM => reply(self.shared.vrings.len() as u64 / 2),
            Request::SET_MEM_TABLE => self.set_memory(message, descriptors),
            Request::GET_MAX_MEM_SLOTS => reply(MOST_REGIONS as u64),
            Request::ADD_MEM_REG => self.add_memory(message, descriptors),
            Request::REM_MEM_REG => self.remove_memory(message),
            Request::SET_VRING_NUM => {
                let state = self.state(message)?;
                // The size of a packed ring need not be a power of two (VIRTIO 1.2, 2.8).
                let is_possible = state.num.is_power_of_two() || self.features & feature::RING_PACKED != 0;
                if !is_possible || !(1..=MOST_DESCRIPTORS).contains(&{ state.num }) {
                    return Err(Refused::Message("a ring's size is a power of two up to 32,768"));
                }
                self.change(state.index, |setup| setup.size = state.num as u16)
            }
            Request::SET_VRING_ADDR => {
                let (at, _) = parse::<VringAddr>(&message.payload).ok_or(Refused::Message("it is too short"))?;
                let VringAddr { descriptor: descriptors, available, used, .. } = at;
                self.change(at.index, |setup| {
                    setup.addresses = Addresses { descriptors, available, used };
                    setup.logged_used = (at.flags & RING_LOGGED != 0).then_some(at.log);
                })
            }
            // A split ring's position is read from its used index when it is first polled. Chains are used in order, so
            // no other position can be right. The base is used for rings that are stopped before they are polled, and
            // for packed rings. A packed ring's base has two positions: where chains are read (bits 0 to 15), and where
            // they are used. Both are the same, since this side uses chains in order. DPDK's virtio-user leaves the
            // second one empty.
            Request::SET_VRING_BASE => {
                let state = self.state(message)?;
                self.vring(state.index)?.reset();
                self.change(state.index, |setup| setup.base = state.num as u16)
            }
            Request::GET_VRING_BASE => self.stop(message),
            Request::SET_VRING_KICK => self.set_kick(number()?, descriptors),
            Request::SET_VRING_CALL => {
                let number = number()?;
                let call = event(number, descriptors)?;
                // A previous back end may have used buffers, and died before it raised the interrupt.
                call.iter().for_each(|call| call.raise());
                self.change(number as u32 & 0xFF, |setup| setup.call = call)
            }
            Request::SET_VRING_ENABLE => {
                let state = self.state(message)?;
                self.change(state.index, |setup| setup.is_enabled = state.num != 0)
            }
            Request::NET_SET_MTU => {
                match number()?.saturating_add(FRAME_HEADERS as u64) <= self.shared.longest as u64 {
                    true => Ok(None),
                    false => Err(Refused::Message("the port's MTU is smaller: open it with a larger one")),
                }
            }
            Request::SET_STATUS => {
                self.status = number()? as u8;
                Ok(None)
            }
            Request::GET_STATUS => reply(self.status.into()),
            _ => Err(Refused::Message("there is no such request")),
        }
    }

    /// The offered protocol features.
    const OFFERED: Protocol = Protocol::MQ
        .union(Protocol::LOG_SHMFD)
        .union(Protocol::RARP)
        .union(Protocol::REPLY_ACK)
        .union(Protocol::MTU)
        .union(Protocol::CONFIGURE_MEM_SLOTS)
        .union(Protocol::STATUS);

    fn vring(&self, index: u32) -> std::result::Result<&Arc<Vring>, Refused> {
        self.shared.vrings.get(index as usize).ok_or(Refused::Message("there is no such virtqueue"))
    }

    fn state(&self, message: &Message) -> std::result::Result<VringState, Refused> {
        parse::<VringState>(&message.payload).map(|(state, _)| state).ok_or(Refused::Message("it is too short"))
    }

    fn change(&self, index: u32, change: impl FnOnce(&mut Setup)) -> Reply {
        self.vring(index)?.change(change)?;
        Ok(None)
    }

    fn change_all(&self, change: impl Fn(&mut Setup)) -> Reply {
        // Change all virtqueues, even after one whose thread is stopped.
        let changed: Vec<_> = self.shared.vrings.iter().map(|vring| vring.change(&change)).collect();
        changed.into_iter().collect::<std::result::Result<(), _>>()?;
        Ok(None)
    }

    fn set_features(&mut self, features: u64) -> Reply {
        if features & !(self.shared.offered | LOG_ALL | PROTOCOL_FEATURES) != 0 {
            return Err(Refused::Message("it has features that were not offered"));
        }
        self.features = features;
        self.shared.features.store(features, Relaxed);
        // Without protocol features, no message enables a ring.
        let is_enabled = features & PROTOCOL_FEATURES == 0;
        let log = self.active_log();
        self.change_all(|setup| {
            setup.features = features;
            setup.log.clone_from(&log);
            setup.is_enabled |= is_enabled;
        })
    }

    fn set_memory(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Reply {
        let (table, mut rest) = parse::<MemoryTable>(&message.payload).ok_or(Refused::Message("it is too short"))?;
        if table.num_regions as usize != descriptors.len() {
            return Err(Refused::Message("each region needs a descriptor"));
        }
        let mut memory = GuestMemory::default();
        for file in descriptors {
            let (region, behind) = parse::<MemoryRegion>(rest).ok_or(Refused::Message("it is too short"))?;
            rest = behind;
            memory
                .add(region.into(), file)
                .ok_or(Refused::Message("a region is not in its file, or overlaps another"))?;
        }
        self.use_memory(memory)
    }

    fn add_memory(&mut self, message: &Message, mut descriptors: Vec<OwnedFd>) -> Reply {
        let (single, _) = parse::<SingleRegion>(&message.payload).ok_or(Refused::Message("it is too short"))?;
        let file = descriptors.pop().ok_or(Refused::Message("a region needs a descriptor"))?;
        let mut memory = GuestMemory::clone(&self.memory);
        memory
            .add((*single).into(), file)
            .ok_or(Refused::Message("the region is not in its file, or overlaps another"))?;
        self.use_memory(memory)
    }

    fn remove_memory(&mut self, message: &Message) -> Reply {
        let (single, _) = parse::<SingleRegion>(&message.payload).ok_or(Refused::Message("it is too short"))?;
        let mut memory = GuestMemory::clone(&self.memory);
        memory.remove((*single).into()).ok_or(Refused::Message("there is no such region"))?;
        self.use_memory(memory)
    }

    /// Gives all virtqueues a new memory table. When this returns, none of them uses the old one.
    fn use_memory(&mut self, memory: GuestMemory) -> Reply {
        self.memory = Arc::new(memory);
        self.change_all(|setup| setup.memory = self.memory.clone())
    }

    /// Gives all virtqueues a new log. The reply confirms that none of them uses the old one.
    fn set_log(&mut self, message: &Message, mut descriptors: Vec<OwnedFd>) -> Reply {
        let (LogBase { mmap_size, mmap_offset }, _) =
            parse(&message.payload).ok_or(Refused::Message("it is too short"))?;
        let file = descriptors.pop().ok_or(Refused::Message("the log needs a descriptor"))?;
        let log = Log::new(file, mmap_size, mmap_offset).ok_or(Refused::Message("the log is not in its file"))?;
        self.log = Some(Arc::new(log));
        let log = self.active_log();
        self.change_all(|setup| setup.log.clone_from(&log))?;
        Ok(Some(0u64.as_slice().to_vec()))
    }

    /// Returns the log, if the front end has enabled logging.
    fn active_log(&self) -> Option<Arc<Log>> {
        self.log.clone().filter(|_| self.features & LOG_ALL != 0)
    }

    /// Announces the guest's address, the first six bytes of the number, after a migration. A driver that has
    /// negotiated announcements sends better announcements, because it knows its VLANs.
    fn announce(&self, address: u64) -> Reply {
        let [address @ .., _, _] = address.to_le_bytes();
        match self.features & feature::GUEST_ANNOUNCE {
            0 => self.change(1, |setup| setup.announcement = Some(rarp(address))),
            _ => Ok(None),
        }
    }

    /// Starts a virtqueue, whose setup is complete.
    fn set_kick(&mut self, number: u64, descriptors: Vec<OwnedFd>) -> Reply {
        let kick = event(number, descriptors)?;
        let vring = self.vring(number as u32 & 0xFF)?;
        vring.change(|setup| {
            setup.kick = kick;
            setup.is_started = true;
        })?;
        Ok(None)
    }

    /// Stops a virtqueue, and replies with its position.
    fn stop(&mut self, message: &Message) -> Reply {
        let state = self.state(message)?;
        let vring = self.vring(state.index)?;
        let setup = vring.change(|setup| {
            setup.is_started = false;
            (setup.kick, setup.call) = (None, None);
            setup.clone()
        })?;
        let position = u32::from(vring.stop_position(&setup));
        let value = if setup.is_packed() { position | position << 16 } else { position };
        Ok(Some(VringState { num: value, ..state }.as_slice().to_vec()))
    }
}

/// Releases everything that the front end has shared.
impl Drop for Session {
    fn drop(&mut self) {
        for vring in &self.shared.vrings {
            // A queue that still uses the old setup was reported by `change`.
            let _ = vring.change(|setup| *setup = Setup::default());
            vring.reset();
        }
        self.shared.features.store(0, Relaxed);
    }
}

impl From<MemoryRegion> for RegionDescription {
    fn from(region: MemoryRegion) -> RegionDescription {
        let MemoryRegion { guest_phys_addr: guest, memory_size: len, user_addr: user, mmap_offset: offset } = region;
        RegionDescription { guest, len, user, offset }
    }
}

/// Returns a reverse ARP request for a hardware address (RFC 903), from which switches learn its location.
fn rarp(address: [u8; 6]) -> Announcement {
    const BROADCAST: [u8; 6] = [0xFF; 6];
    let mut frame = [0; 60];
    // EtherType; hardware type Ethernet, protocol IPv4, their address lengths, and the operation: reverse request.
    let rest = [0x80, 0x35, 0, 1, 0x08, 0, 6, 4, 0, 3];
    for (at, bytes) in [(0, &BROADCAST[..]), (6, &address), (12, &rest), (22, &address), (32, &address)] {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
    }
    frame
}

/// Returns the event sent with a message about a virtqueue; `None` if there is none.
fn event(number: u64, mut descriptors: Vec<OwnedFd>) -> std::result::Result<Option<Arc<Interrupt>>, Refused> {
    if number & NO_DESCRIPTOR != 0 {
        return Ok(None);
    }
    let descriptor = descriptors.pop().ok_or(Refused::Message("it needs a descriptor"))?;
    let event = Interrupt::of_peer(descriptor).map_err(|_| Refused::Message("its descriptor is not an eventfd"))?;
    Ok(Some(Arc::new(event)))
}

/// Returns the virtio features that a port offers.
pub fn offered(has_offloads: bool, has_queues: bool, has_packed: bool) -> u64 {
    let always = feature::VERSION_1
        | feature::ANY_LAYOUT
        | feature::MRG_RXBUF
        | feature::INDIRECT_DESC
        | feature::EVENT_IDX
        | feature::IN_ORDER
        | feature::STATUS
        | feature::MTU
        | feature::GUEST_ANNOUNCE;
    let offloads = feature::CSUM
        | feature::GUEST_CSUM
        | feature::GUEST_TSO4
        | feature::GUEST_TSO6
        | feature::GUEST_ECN
        | feature::GUEST_USO4
        | feature::GUEST_USO6
        | feature::HOST_TSO4
        | feature::HOST_TSO6
        | feature::HOST_ECN
        | feature::HOST_USO;
    [(has_offloads, offloads), (has_queues, feature::MQ), (has_packed, feature::RING_PACKED)]
        .into_iter()
        .fold(always, |all, (is_there, features)| if is_there { all | features } else { all })
}
