//! The control thread: it keeps connecting to the server, or accepts clients, one at a time.
//!
//! ```text
//!   server                        client
//!     HELLO      ------------->           bounds of the server
//!                <-------------   INIT    id, secret
//!                <-------------   ADD_REGION, ADD_RING   with descriptors
//!                <-------------   CONNECT
//!     CONNECTED  ------------->           packets pass
//! ```
//!
//! The server acknowledges each message before `CONNECT`. Peers are untrusted: a protocol violation, or a peer that
//! does not finish within [`PEER_TIMEOUT`], ends the connection.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::error::{Error, Result};
use linerate_core::event::{Interrupt, PEER_TIMEOUT};
use linerate_core::memory::{Placement, Pool};
use linerate_core::port::span_of;
use linerate_core::ring::Breach;
use linerate_core::unix_socket::{ControlThread, FirstMessage, Peers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, Shutdown, SocketType, send, shutdown};
use zerocopy::IntoBytes;

use super::connected::{ConnectionRings, RingSlot, Shared};
use super::lent::Lent;
use super::message::*;
use super::regions::{MOST_REGIONS, Regions};
use super::ring::{Buffers, Direction, LENT, MOST_LOG2, MemifRing, RingLocation, STRIDE, bytes_of};

/// How long a closing port waits for its peer to take sent packets; the peer may drop its rings with the connection.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a closing port waits for its server to close the connection.
const GRACE: Duration = Duration::from_secs(1);
/// The last ring index that a server announces in each direction, whatever the number of its queues. libmemif and DPDK
/// use the same value (VPP: 256). Some clients read this index as a count, and would read 0 as no ring at all.
const MOST_RING: u16 = 255;

/// This side's role in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens, and uses the client's memory.
    Server,
    /// Connects, and creates the memory.
    Client,
}

/// The requested properties of a connection.
pub struct ConnectionOptions {
    pub role: Role,
    pub id: u32,
    /// All zeros if there is none.
    pub secret: Secret,
    pub rx_queues: u16,
    pub tx_queues: u16,
    /// The size of a client's rings, as a power of two.
    pub log2_size: u8,
    /// The pool whose buffers a client lends, and the placement of packets in them; `None` if it copies.
    pub lends: Option<(Arc<Pool>, Placement)>,
    /// The port's name.
    pub name: String,
}

/// Starts the control thread, which listens at `path`, or keeps connecting to it.
///
/// # Errors
/// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if no socket can be at the path.
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the path cannot be used, or this user may not use the
/// server's socket. [`ErrorKind::System`](linerate_core::ErrorKind::System) without a thread.
pub fn start(path: &Path, options: ConnectionOptions, shared: Arc<Shared>) -> Result<ControlThread> {
    let peers = match options.role {
        Role::Client => Peers::connect_to_as(SocketType::SEQPACKET, &options.name, path)?,
        Role::Server => Peers::listen_as(SocketType::SEQPACKET, path, greeting())?,
    };
    ControlThread::start("memif", peers, move |peers, stop| run(peers, stop, &options, &shared))
}

/// Returns a server's first message with its limits. A client that does not answer does not block others.
fn greeting() -> FirstMessage {
    let hello = Hello {
        name: field("linerate"),
        min_version: VERSION.into(),
        max_version: VERSION.into(),
        max_region: (MOST_REGIONS as u16 - 1).into(),
        max_s2c_ring: MOST_RING.into(),
        max_c2s_ring: MOST_RING.into(),
        max_log2_size: MOST_LOG2,
    };
    let message = Header::new(kind::HELLO, &hello);
    FirstMessage::packet_after(move |socket| Ok(send(socket, message.as_bytes(), SendFlags::NOSIGNAL).map(drop)?))
}

/// Serves one peer after another.
fn run(peers: &Peers, stop: &Interrupt, options: &ConnectionOptions, shared: &Shared) {
    let _of_port = span_of(&options.name).entered();
    let mut last_end = String::new();
    let mut limits = NO_LIMIT;
    while let Some(socket) = peers.next(stop) {
        let mut session = Session { connection: Connection::new(socket), options, shared, stop, limits };
        let end = session.run();
        limits = session.limits;
        let last = shared.change(None);
        shared.set_refusal(match &end {
            End::Secret(why) => Some(why.clone()),
            _ => None,
        });
        if let Some(reason) = end.reason() {
            let _ =
                session.send_message(kind::DISCONNECT, &Disconnect { code: 1.into(), reason: field(&reason) }, None);
        }
        // A peer that always fails is reported only once.
        let text = end.to_string();
        match end {
            End::Stopped | End::Gone => tracing::debug!("{text}"),
            _ if text == last_end => tracing::debug!("{text}"),
            _ => tracing::warn!("{text}"),
        }
        last_end = text;
        if let Some(pending @ 1..) = last.as_ref().map(|last| last.pending()).filter(|_| !matches!(end, End::Stopped)) {
            tracing::warn!("the peer left {pending} descriptors with packets unread: they are lost");
        }
        if let Some(last) = last.filter(|last| last.lends())
            && !session.is_gone()
        {
            tracing::warn!("the server keeps the connection open, so the buffers lent to it are not reused");
            last.leak_lent_buffers();
        }
        if matches!(end, End::Stopped) {
            return;
        }
        // A client that reconnects at once would find its server busy, and be refused again.
        peers.pause(stop);
    }
}

/// Why a connection has ended.
enum End {
    /// The port is closed.
    Stopped,
    /// The peer has closed the connection, or the kernel reports an error.
    Gone,
    /// The peer has sent a disconnect message.
    Disconnected(String),
    /// The server has refused this client's secret, with this message.
    Secret(String),
    /// The peer violates the protocol, or asks for something unsupported.
    Refused(&'static str),
    /// A ring is invalid.
    Broken(Breach),
    /// The peer exceeds [`PEER_TIMEOUT`].
    Late,
    /// This side has no memory.
    Failed(Error),
}

impl End {
    /// Returns the reason sent to the peer; `None` if the peer has ended the connection itself.
    fn reason(&self) -> Option<String> {
        match self {
            End::Stopped => Some("the port is closed".to_string()),
            End::Refused(why) => Some(why.to_string()),
            End::Broken(breach) => Some(format!("a ring violates the protocol: {breach}")),
            End::Late => Some("the connection was not complete in time".to_string()),
            End::Failed(_) => Some("no memory".to_string()),
            End::Gone | End::Disconnected(_) | End::Secret(_) => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Stopped => f.write_str("the port is closed"),
            End::Gone => f.write_str("the peer has closed the connection"),
            End::Disconnected(why) | End::Secret(why) => write!(f, "the peer ends the connection: {why}"),
            End::Refused(why) => write!(f, "the peer is refused: {why}"),
            End::Broken(breach) => write!(f, "the peer is refused: a ring violates the protocol: {breach}"),
            End::Late => write!(f, "the peer did not connect within {} s", PEER_TIMEOUT.as_secs()),
            End::Failed(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Failed(error)
    }
}

/// A ring whose region may be added later.
type AddedRing = Option<(RingLocation, Interrupt)>;

/// The maximum number of rings that a client requests, to send and to receive.
type RingLimits = [u16; 2];
const NO_LIMIT: RingLimits = [u16::MAX; 2];

/// One connection.
struct Session<'a> {
    connection: Connection,
    options: &'a ConnectionOptions,
    shared: &'a Shared,
    stop: &'a Interrupt,
    /// The limits of this connection; once it has ended, the limits for the next connection.
    limits: RingLimits,
}

impl Session<'_> {
    /// Connects, and serves the connection until its end.
    fn run(&mut self) -> End {
        let connected = match self.options.role {
            Role::Server => self.accept(),
            Role::Client => self.connect(),
        };
        match connected {
            Ok(()) => self.watch(),
            Err(end) => end,
        }
    }

    /// Performs the server's handshake, from the client's answer to the greeting up to `CONNECTED`.
    fn accept(&mut self) -> std::result::Result<(), End> {
        let (deadline, options) = (Instant::now() + PEER_TIMEOUT, self.options);
        let (init, _) = self.receive_kind(deadline, kind::INIT)?;
        let init: Init = init.body();
        self.check(&init)?;
        self.send_message(kind::ACK, &[0u8; 0], None)?;
        let mut regions = Regions::default();
        let mut receives: Vec<AddedRing> = (0..options.rx_queues).map(|_| None).collect();
        let mut sends: Vec<AddedRing> = (0..options.tx_queues).map(|_| None).collect();
        loop {
            let (message, file) = self.next(deadline)?;
            match (message.kind.get(), file) {
                (kind::ADD_REGION, Some(file)) => {
                    let AddRegion { index, size } = message.body();
                    regions
                        .add(index.get(), size.get(), file)
                        .ok_or(End::Refused("the region is not in its file, or its index is not the next"))?;
                }
                (kind::ADD_RING, Some(file)) => add_ring(&message.body(), file, &mut receives, &mut sends)?,
                (kind::ADD_REGION | kind::ADD_RING, None) => return Err(End::Refused("a descriptor is missing")),
                (kind::CONNECT, _) => {
                    let regions = Arc::new(regions);
                    let receives = check_rings(receives, &regions, Direction::Receive)?;
                    let sends = check_rings(sends, &regions, Direction::Send)?;
                    if receives.iter().all(Option::is_none) && sends.iter().all(Option::is_none) {
                        return Err(End::Refused("there is no ring"));
                    }
                    // The queues get the rings before `CONNECTED` is sent, that is, before the client can fill them.
                    self.shared.change(Some(ConnectionRings::new(regions, receives, sends, text(&init.name))));
                    return Ok(self.send_message(kind::CONNECTED, &field::<32>(&options.name), None)?);
                }
                (kind::DISCONNECT, _) => return Err(disconnected(&message)),
                _ => return Err(End::Refused("an unexpected message")),
            }
            self.send_message(kind::ACK, &[0u8; 0], None)?;
        }
    }

    /// Checks that the client requests this port.
    fn check(&self, init: &Init) -> std::result::Result<(), End> {
        let none = Secret::default();
        let why = if init.version.get() != VERSION {
            "unsupported version; only 2.0 is supported"
        } else if init.id.get() != self.options.id {
            "the id is not found; both sides need the same id=N"
        } else if init.mode != ETHERNET {
            "unsupported mode; only ethernet is supported"
        } else if self.options.secret != none && text_of(&init.secret) != text_of(&self.options.secret) {
            "the secret is wrong; both sides need the same secret=TEXT"
        } else {
            return Ok(());
        };
        Err(End::Refused(why))
    }

    /// Performs the client's handshake, up to `CONNECTED`.
    fn connect(&mut self) -> std::result::Result<(), End> {
        let (deadline, options) = (Instant::now() + PEER_TIMEOUT, self.options);
        let limits = std::mem::replace(&mut self.limits, NO_LIMIT);
        let (hello, _) = self.receive_kind(deadline, kind::HELLO)?;
        let hello: Hello = hello.body();
        if !(hello.min_version.get()..=hello.max_version.get()).contains(&VERSION) {
            return Err(End::Refused("unsupported version; only 2.0 is supported"));
        }
        let sends = options.tx_queues.min(hello.max_c2s_ring.get().saturating_add(1)).min(limits[0]);
        let receives = options.rx_queues.min(hello.max_s2c_ring.get().saturating_add(1)).min(limits[1]);
        if (sends, receives) != (options.tx_queues, options.rx_queues) {
            let (tx, rx) = (options.tx_queues, options.rx_queues);
            tracing::warn!("the server has {receives} of {rx} receive and {sends} of {tx} transmit queues");
        }
        let init = Init {
            version: VERSION.into(),
            id: options.id.into(),
            mode: ETHERNET,
            secret: options.secret,
            name: field("linerate"),
        };
        self.request(deadline, kind::INIT, &init, None).map_err(|end| match end {
            // VPP, libmemif and DPDK say "incorrect secret" or "secret required".
            End::Disconnected(why) if why.to_ascii_lowercase().contains("secret") => End::Secret(why),
            end => end,
        })?;
        // All rings, followed by the buffers of each.
        let log2_size = options.log2_size.min(hello.max_log2_size);
        let (rings, size) = (usize::from(sends + receives), 1usize << log2_size);
        let copied = if options.lends.is_some() { 0 } else { size * STRIDE };
        // SAFETY: the mapping is for the peer, which accesses only the buffers lent to it.
        let lent = options.lends.as_ref().map(|(pool, _)| unsafe { pool.region().mapping() });
        if lent.is_some() && hello.max_region.get() < LENT {
            return Err(End::Refused("the server accepts only one region; open the port without zero-copy=on"));
        }
        let regions = Arc::new(Regions::own(rings * (bytes_of(size) + copied), lent)?);
        for (index, (mapping, len)) in (0u16..).zip(regions.shared()) {
            let body = AddRegion { index: index.into(), size: len.into() };
            self.request(deadline, kind::ADD_REGION, &body, Some(mapping.file()))?;
        }
        let mut slots = [Vec::new(), Vec::new()];
        for ring in 0..sends + receives {
            let (direction, index) =
                if ring < sends { (Direction::Send, ring) } else { (Direction::Receive, ring - sends) };
            let number = usize::from(ring);
            let buffers = match lent {
                Some(_) => Buffers::Lent,
                None => Buffers::Own((rings * bytes_of(size) + number * copied) as u32),
            };
            let offset = (number * bytes_of(size)) as u32;
            let location = RingLocation { region: 0, offset, log2_size, buffers };
            regions.shared().take(1).for_each(|(mapping, _)| MemifRing::create(mapping, location));
            let lent = match &options.lends {
                Some((pool, placement)) => Some(lend(&regions, location, direction, pool, *placement)?),
                None => None,
            };
            let event = Interrupt::shared()?;
            let body = AddRing {
                flags: if direction == Direction::Send { CLIENT_TO_SERVER } else { 0 }.into(),
                index: index.into(),
                region: 0.into(),
                offset: offset.into(),
                log2_size,
                private_header: 0.into(),
            };
            let added = self.request(deadline, kind::ADD_RING, &body, Some(event.as_fd()));
            if matches!(added, Err(End::Disconnected(_))) && index > 0 {
                // A server may announce more rings than it has queues. It has just refused this ring, so the next
                // connection requests fewer.
                self.limits = limits;
                self.limits[usize::from(direction == Direction::Receive)] = index;
            }
            added?;
            slots[usize::from(direction == Direction::Send)]
                .push(Some(RingSlot::new(location, direction, event, lent)));
        }
        self.send_message(kind::CONNECT, &field::<32>(&options.name), None)?;
        self.receive_kind(deadline, kind::CONNECTED)?;
        let [receives, sends] = slots;
        self.shared.change(Some(ConnectionRings::new(regions, receives, sends, text(&hello.name))));
        Ok(())
    }

    /// Waits for the end of a connection.
    fn watch(&mut self) -> End {
        tracing::debug!("{}: connected", self.options.name);
        loop {
            let mut events = [
                PollFd::new(self.stop, PollFlags::IN),
                PollFd::new(self.shared.broken(), PollFlags::IN),
                PollFd::new(self.connection.socket(), PollFlags::IN),
            ];
            if poll(&mut events, None).is_err() {
                continue; // a signal
            }
            let [stop, broken, _] = events.map(|event| !event.revents().is_empty());
            if stop {
                self.wait_for_last();
                return End::Stopped;
            }
            // A queue may report the ring of an earlier connection.
            if broken && let Some(breach) = self.shared.breach() {
                return End::Broken(breach);
            }
            match self.receive() {
                Ok(None) => {}
                Ok(Some((message, _))) if message.kind.get() == kind::DISCONNECT => return disconnected(&message),
                Ok(Some(_)) => return End::Refused("an unexpected message"),
                Err(end) => return end,
            }
        }
    }

    /// Waits until the peer has taken all sent packets, at most [`DRAIN_TIMEOUT`].
    fn wait_for_last(&self) {
        let begun = Instant::now();
        let pending = || self.shared.connected().map_or(0, |connected| connected.pending());
        while pending() > 0 {
            if begun.elapsed() > DRAIN_TIMEOUT {
                let pending = pending();
                tracing::warn!(
                    "the peer has not taken {pending} descriptors with packets within {} ms of the port's end; it may \
                     still do so, or drop them",
                    DRAIN_TIMEOUT.as_millis()
                );
                return;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let socket: &UnixStream = self.connection.socket();
            // A message or an end of file from the peer means that the connection ends.
            if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) == Ok(1) {
                return;
            }
        }
    }

    /// Ends the connection, and waits until the server has ended it, too. From then on the server no longer uses lent
    /// buffers. Returns false if the server does not end the connection within [`GRACE`] of the port's end.
    fn is_gone(&mut self) -> bool {
        let mut stopped = None;
        let _ = shutdown(self.connection.socket(), Shutdown::Write);
        loop {
            let left = stopped.map(|at: Instant| GRACE.saturating_sub(at.elapsed()));
            let timeout =
                left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() });
            let socket: &UnixStream = self.connection.socket();
            let mut events = vec![PollFd::new(socket, PollFlags::IN)];
            if stopped.is_none() {
                events.push(PollFd::new(self.stop, PollFlags::IN));
            }
            match poll(&mut events, timeout.as_ref()) {
                _ if left == Some(Duration::ZERO) => return false,
                Ok(_) if events.get(1).is_some_and(|stop| !stop.revents().is_empty()) => stopped = Some(Instant::now()),
                // Remaining messages are dropped.
                Ok(_) if matches!(self.receive(), Err(End::Gone)) => return true,
                _ => {}
            }
        }
    }

    /// Sends a message.
    fn send_message(
        &self,
        kind: u16,
        body: &(impl zerocopy::IntoBytes + zerocopy::Immutable),
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.connection.send(Header::new(kind, body), &[], descriptor.as_slice())
    }

    /// Sends a message, and waits until it is acknowledged.
    fn request(
        &mut self,
        deadline: Instant,
        kind: u16,
        body: &(impl zerocopy::IntoBytes + zerocopy::Immutable),
        descriptor: Option<BorrowedFd<'_>>,
    ) -> std::result::Result<(), End> {
        self.send_message(kind, body, descriptor)?;
        self.receive_kind(deadline, kind::ACK).map(|_| ())
    }

    /// Waits for a message of this type.
    fn receive_kind(&mut self, deadline: Instant, kind: u16) -> std::result::Result<(Header, Option<OwnedFd>), End> {
        let (message, file) = self.next(deadline)?;
        match message.kind.get() {
            found if found == kind => Ok((message, file)),
            kind::DISCONNECT => Err(disconnected(&message)),
            _ => Err(End::Refused("an unexpected message")),
        }
    }

    /// Waits for the next message.
    fn next(&mut self, deadline: Instant) -> std::result::Result<(Header, Option<OwnedFd>), End> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let socket: &UnixStream = self.connection.socket();
            let mut events = [PollFd::new(self.stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut events, Some(&timeout)) {
                Ok(0) => return Err(End::Late),
                Ok(_) if !events[0].revents().is_empty() => return Err(End::Stopped),
                Ok(_) => {}
                Err(_) => continue, // a signal
            }
            if let Some(message) = self.receive()? {
                return Ok(message);
            }
        }
    }

    /// Receives a message, and its descriptor if any; `None` if no message has arrived.
    fn receive(&mut self) -> std::result::Result<Option<(Header, Option<OwnedFd>)>, End> {
        match self.connection.receive() {
            Ok(Some(mut message)) => Ok(Some((message.header, message.descriptors.pop()))),
            // Each message is one packet.
            Ok(None) => Err(End::Refused("a short message")),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(End::Refused("too many descriptors")),
            Err(_) => Err(End::Gone),
        }
    }
}

/// Prepares a ring that refers to the pool's buffers.
fn lend(
    regions: &Arc<Regions>,
    location: RingLocation,
    direction: Direction,
    pool: &Arc<Pool>,
    placement: Placement,
) -> std::result::Result<Lent, End> {
    let ring = MemifRing::new(regions, location, MemifRing::first(location, direction)).expect("it was created here");
    let lent = match direction {
        Direction::Send => Some(Lent::none(pool, ring.size())),
        Direction::Receive => Lent::to_receive(&ring, pool, placement),
    };
    lent.ok_or_else(|| Error::pool_exhausted(pool.available(), ring.size().into()).into())
}

fn disconnected(message: &Header) -> End {
    End::Disconnected(text(&message.body::<Disconnect>().reason))
}

/// Records a ring that the client adds.
fn add_ring(
    ring: &AddRing,
    file: OwnedFd,
    receives: &mut [AddedRing],
    sends: &mut [AddedRing],
) -> std::result::Result<(), End> {
    let rings = if ring.flags.get() & CLIENT_TO_SERVER != 0 { receives } else { sends };
    let slot = rings.get_mut(usize::from(ring.index.get())).filter(|slot| slot.is_none());
    let slot = slot.ok_or(End::Refused("the ring's index exceeds the port's queues, or is already in use"))?;
    let event = Interrupt::of_peer(file).map_err(|_| End::Refused("the ring's descriptor is not an eventfd"))?;
    let location = RingLocation {
        region: ring.region.get(),
        offset: ring.offset.get(),
        log2_size: ring.log2_size,
        buffers: Buffers::Named,
    };
    *slot = Some((location, event));
    Ok(())
}

/// Checks that each ring is inside the memory.
fn check_rings(
    rings: Vec<AddedRing>,
    regions: &Arc<Regions>,
    direction: Direction,
) -> std::result::Result<Vec<Option<RingSlot>>, End> {
    let slot = |ring: AddedRing| match ring {
        Some((location, event)) if MemifRing::new(regions, location, 0).is_some() => {
            Ok(Some(RingSlot::new(location, direction, event, None)))
        }
        Some(_) => Err(End::Refused("a ring is not in its region, or has no cookie")),
        None => Ok(None),
    };
    rings.into_iter().map(slot).collect()
}
