//! Both sides of this implementation against each other, and peers of each role that violate the protocol.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use linerate::{ErrorKind, Options};
use linerate_core::batch::Batch;
use linerate_core::event::Interrupt;
use linerate_core::memory::{Descriptors, DmaArray, Mapping, PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::{Link, Port, RxQueue, TxQueue};
use linerate_core::unix_socket::{connect_as, listen_as};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{Shutdown, SocketType, shutdown};

use super::message::*;
use super::regions::Regions;
use super::ring::{BUFFER, Buffers, MemifRing, NEXT, RingLocation, STRIDE};
use crate::peer::{socket, until, until_link};

const BUFFERS: usize = 1024;
/// A client's options, copying and lending.
const COPIES: [&str; 2] = ["zero-copy=off", "zero-copy=on"];

fn pool(name: &str) -> Arc<Pool> {
    let buffer_size = linerate::parse(name).map_or(2048, |name| name.buffer_size());
    pool_of(buffer_size)
}

fn pool_of(buffer_size: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size, pages, numa_node: None }).unwrap())
}

/// Opens a port with a separate pool, whose queues can sleep.
fn open(path: &Path, options: &str) -> Port {
    let name = format!("memif:{}?{options}", path.display());
    let ports = Options { pool: Some(pool(&name)), interrupts: Some(Duration::ZERO), ..Options::default() };
    let [port] = ports.open([&*name]).unwrap();
    port
}

fn frames(len: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| (0..len).map(|byte| (n * 31 + byte) as u8).collect()).collect()
}

/// Sends frames from one queue to another, and returns those that arrive.
fn cross(tx: &mut TxQueue, pool: &Arc<Pool>, rx: &mut RxQueue, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut batch, mut back, mut arrived, mut sent) = (Batch::new(), Batch::new(), Vec::new(), 0);
    until(|| {
        while sent < frames.len() && batch.push(pool, &frames[sent]) {
            sent += 1;
        }
        let before = batch.len();
        assert_eq!(tx.send(&mut batch), before - batch.len());
        rx.recv(&mut back);
        for packet in &mut back {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            arrived.push(bytes);
        }
        back.clear();
        arrived.len() >= frames.len()
    });
    arrived
}

fn is_readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn packets_of_all_sizes_cross_in_both_directions_on_two_queues() {
    COPIES.into_iter().for_each(packets_of_all_sizes_cross);
}

fn packets_of_all_sizes_cross(copies: &str) {
    let (_folder, path) = socket();
    let mut server = open(&path, "role=server&queues=2&mtu=9000&secret=word&id=7");
    let mut client = open(&path, &format!("queues=2&mtu=9000&ring=64&secret=word&id=7&{copies}"));
    until_link(&client, true);
    until_link(&server, true);
    let (at_server, at_client) = (server.pool().clone(), client.pool().clone());
    for queue in 0..2 {
        let mut there = (client.tx(queue).unwrap(), server.rx(queue).unwrap());
        let mut back = (server.tx(queue).unwrap(), client.rx(queue).unwrap());
        // Several rounds of the ring; a round of the 16-bit indexes would take too long.
        for len in [60, 124, 252, 508, 1020, 1514, 2048, 2049, 9014] {
            let sent = frames(len, 200);
            assert_eq!(cross(&mut there.0, &at_client, &mut there.1, &sent), sent, "{queue} {len}");
            assert_eq!(cross(&mut back.0, &at_server, &mut back.1, &sent), sent, "{queue} {len}");
        }
    }
    for port in [&server, &client] {
        let statistics = port.statistics().unwrap();
        assert_eq!((statistics.rx_packets, statistics.tx_packets), (3600, 3600));
        let bytes = 400 * (60 + 124 + 252 + 508 + 1020 + 1514 + 2048 + 2049 + 9014);
        assert_eq!((statistics.rx_bytes, statistics.tx_bytes), (bytes, bytes));
        assert_eq!((statistics.drops.malformed, statistics.drops.tx_too_long), (0, 0));
        let queues = port.queue_statistics();
        assert!(queues.rx_slots.iter().chain(&queues.tx_slots).all(|slots| *slots >= 1800), "{queues:?}");
    }
    assert_eq!(client.info().description.contains("zero copy"), copies.ends_with("on"));
    let described = server.info().description;
    assert!(described.contains("server at") && described.contains("connected to linerate"), "{described}");
    drop((client, server));
    assert_eq!((at_server.available(), at_client.available()), (BUFFERS, BUFFERS), "{copies}");
}

/// A queue that is closed and reopened continues where the last queue stopped.
#[test]
fn a_ring_goes_on_with_its_next_queue() {
    COPIES.into_iter().for_each(goes_on_with_its_next_queue);
}

fn goes_on_with_its_next_queue(copies: &str) {
    let (_folder, path) = socket();
    let (mut server, mut client) = (open(&path, "role=server"), open(&path, &format!("ring=64&{copies}")));
    until_link(&client, true);
    let pools = (server.pool().clone(), client.pool().clone());
    let lent = if copies.ends_with("on") { 64 } else { 0 };
    assert_eq!(pools.1.available(), BUFFERS - lent, "the buffers to receive");
    for _ in 0..3 {
        let (mut tx, mut rx) = (client.tx(0).unwrap(), server.rx(0).unwrap());
        assert_eq!(cross(&mut tx, &pools.1, &mut rx, &frames(60, 50)), frames(60, 50));
        let (mut tx, mut rx) = (server.tx(0).unwrap(), client.rx(0).unwrap());
        assert_eq!(cross(&mut tx, &pools.0, &mut rx, &frames(60, 50)), frames(60, 50));
    }
}

#[test]
fn what_has_no_room_stays_and_what_never_fits_is_counted() {
    COPIES.into_iter().for_each(has_no_room);
}

fn has_no_room(copies: &str) {
    let (_folder, path) = socket();
    let (mut server, mut client) =
        (open(&path, "role=server&mtu=1500"), open(&path, &format!("ring=64&mtu=9000&{copies}")));
    until_link(&client, true);
    let pool = client.pool().clone();
    let (mut tx, mut rx) = (client.tx(0).unwrap(), server.rx(0).unwrap());
    let mut batch = Batch::with_capacity(256);
    batch.alloc(&pool, 100, 60);
    assert_eq!((tx.send(&mut batch), tx.send(&mut batch), batch.len()), (64, 0, 36));
    let mut back = Batch::with_capacity(256);
    assert_eq!((rx.recv(&mut back), tx.send(&mut batch)), (64, 36));
    back.clear();
    assert_eq!(rx.recv(&mut back), 36);
    // Too long for this port, and for the peer.
    batch.push(&pool, &[1; 9100]);
    batch.push(&pool, &[2; 9000]);
    batch.push(&pool, &[3; 60]);
    assert!(tx.send(&mut batch) > 2 && batch.is_empty());
    back.clear();
    assert_eq!(rx.recv(&mut back), 1);
    let (near, far) = (client.statistics().unwrap(), server.statistics().unwrap());
    assert_eq!((near.tx_packets, near.drops.tx_too_long), (102, 1));
    assert_eq!((far.drops.oversize, far.drops.malformed), (1, 0));
}

#[test]
fn a_queue_that_sleeps_is_woken_and_one_that_polls_is_not() {
    let (_folder, path) = socket();
    let (mut server, mut client) = (open(&path, "role=server"), open(&path, ""));
    let mut at_server = server.rx(0).unwrap();
    until_link(&client, true);
    until_link(&server, true);
    let mut at_client = client.rx(0).unwrap();
    let (mut to_server, mut to_client) = (client.tx(0).unwrap(), server.tx(0).unwrap());
    let ways = [
        (&mut to_server, &mut at_server, client.pool().clone()),
        (&mut to_client, &mut at_client, server.pool().clone()),
    ];
    for (tx, rx, pool) in ways {
        let (mut batch, mut back) = (Batch::new(), Batch::new());
        // Adopts the connection, as a poll does.
        assert_eq!(rx.recv(&mut back), 0);
        for _ in 0..2 {
            assert!(!is_readable(&rx.arm().unwrap()));
            batch.push(&pool, &[1; 60]);
            assert_eq!(tx.send(&mut batch), 1);
            assert!(is_readable(&rx.arm().unwrap()), "a queue that sleeps");
            rx.disarm();
            assert_eq!(rx.recv(&mut back), 1);
            batch.push(&pool, &[1; 60]);
            assert_eq!((tx.send(&mut batch), rx.recv(&mut back)), (1, 1));
        }
        // The queue's event was not raised in between.
        assert!(!is_readable(&rx.arm().unwrap()), "a queue that polls");
    }
    // The end of the connection, and the next connection, wake the queue as well.
    let event = at_server.arm().unwrap().try_clone_to_owned().unwrap();
    drop((to_server, at_client, client));
    until(|| is_readable(&event));
    until_link(&server, false);
    at_server.recv(&mut Batch::new());
    at_server.disarm();
    let event = at_server.arm().unwrap().try_clone_to_owned().unwrap();
    assert!(!is_readable(&event));
    let _client = open(&path, "");
    until(|| is_readable(&event));
}

#[test]
fn either_side_goes_and_comes_back() {
    let (_folder, path) = socket();
    // The client waits for its server.
    let mut client = open(&path, "ring=64");
    let (mut client_rx, mut client_tx) = (client.rx(0).unwrap(), client.tx(0).unwrap());
    let at_client = client.pool().clone();
    for _ in 0..2 {
        let mut server = open(&path, "role=server");
        let at_server = server.pool().clone();
        let (mut rx, mut tx) = (server.rx(0).unwrap(), server.tx(0).unwrap());
        assert_eq!(cross(&mut client_tx, &at_client, &mut rx, &frames(60, 70)), frames(60, 70));
        assert_eq!(cross(&mut tx, &at_server, &mut client_rx, &frames(60, 70)), frames(60, 70));
        until_link(&client, true);
        drop((rx, tx, server));
        assert_eq!(at_server.available(), BUFFERS);
        until_link(&client, false);
    }
    let mut batch = Batch::new();
    batch.push(&at_client, &[1; 60]);
    assert_eq!((client_tx.send(&mut batch), client_rx.recv(&mut Batch::new())), (0, 0));
    drop((batch, client_rx, client_tx, client));
    assert_eq!(at_client.available(), BUFFERS);
    // The server accepts one client after another.
    let mut server = open(&path, "role=server");
    let (mut rx, at_server) = (server.rx(0).unwrap(), server.pool().clone());
    for _ in 0..3 {
        let mut client = open(&path, "ring=64");
        let (mut tx, pool) = (client.tx(0).unwrap(), client.pool().clone());
        assert_eq!(cross(&mut tx, &pool, &mut rx, &frames(60, 70)), frames(60, 70));
        drop((tx, client));
        until_link(&server, false);
    }
    drop((rx, server));
    assert_eq!(at_server.available(), BUFFERS);
    assert!(!path.exists(), "the socket goes with its port");
}

/// The sender closes with a full ring, before its packets are received: all of them arrive, and the next connection
/// follows.
#[test]
fn what_a_peer_has_sent_before_its_end_arrives() {
    for copies in COPIES {
        let client = format!("ring=64&{copies}");
        arrives_after_the_end("role=server", &client);
        arrives_after_the_end(&client, "role=server");
    }
}

fn arrives_after_the_end(receiver: &str, sender: &str) {
    let (_folder, path) = socket();
    let mut receiver = open(&path, receiver);
    let (mut rx, at_receiver) = (receiver.rx(0).unwrap(), receiver.pool().clone());
    let mut batch = Batch::new();
    for _ in 0..3 {
        let mut sender = open(&path, sender);
        let (mut tx, pool) = (sender.tx(0).unwrap(), sender.pool().clone());
        until_link(&sender, true);
        until_link(&receiver, true);
        // A queue adopts a connection only when it polls.
        assert_eq!(rx.recv(&mut batch), 0);
        let mut full = Batch::with_capacity(100);
        full.alloc(&pool, 100, 60);
        assert_eq!(tx.send(&mut full), 64);
        drop((tx, sender));
        until_link(&receiver, false);
        assert_eq!((rx.recv(&mut batch), rx.recv(&mut batch), batch.len()), (32, 0, 32), "the batch is full");
        batch.clear();
        assert_eq!(rx.recv(&mut batch), 32);
        batch.clear();
        assert_eq!(rx.recv(&mut batch), 0);
    }
    drop((batch, rx, receiver));
    assert_eq!(at_receiver.available(), BUFFERS);
}

#[test]
fn wrong_names_are_explained() {
    let (_folder, path) = socket();
    let error = |options: &str| {
        let name = format!("memif:{}?{options}", path.display());
        Options { pool: Some(pool(&name)), ..Options::default() }.open([&*name]).map(drop).unwrap_err()
    };
    assert!(error("role=master").with_hint().contains("it must be client or server"));
    assert!(error("secret=0123456789012345678901234").with_hint().contains("at most 24 bytes"));
    assert!(error("role=server&zero-copy=on").with_hint().contains("only a client lends"));
    assert!(error("role=server&ring=64").with_hint().contains("the client decides"));
    assert!(error("ring=1024&zero-copy=on").kind() == ErrorKind::Exhausted);
    assert!(error("id=4294967296").with_hint().contains("0 to 4294967295"));
    assert!(error("ring=100").kind() == ErrorKind::BadOption);
    let _server = open(&path, "role=server");
    assert!(error("role=server").with_hint().contains("a server is listening there already"));
    // A server of another protocol counts, too.
    let other = path.with_extension("stream");
    let _listener = UnixListener::bind(&other).unwrap();
    let name = format!("memif:{}?role=server", other.display());
    assert!(Options::default().open([&*name]).map(drop).unwrap_err().kind() == ErrorKind::Unusable);
}

/// Some servers fill 2,048 bytes whatever the length in the descriptor, so a lent buffer must have that room.
#[test]
fn lent_buffers_have_room_for_a_server_s_usual_length() {
    let (_folder, path) = socket();
    let name = format!("memif:{}?ring=64&zero-copy=on", path.display());
    let error = Options { pool: Some(pool_of(2048)), ..Options::default() }.open([&*name]).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::BadOption, "{error}");
    // Without a pool from the program, ports opened together share one with such buffers.
    let other = format!("pipe-{}{{1", std::process::id());
    let [port, pipe] = Options::default().open([&*name, &*other.replace('-', "_")]).unwrap();
    assert_eq!(port.pool().region().buffer_size(), 4096);
    assert!(Arc::ptr_eq(port.pool(), pipe.pool()));
    let [inner] = Options::default().open([&*format!("faulty:{name}")]).unwrap();
    assert_eq!(inner.pool().region().buffer_size(), 4096);
}

/// The rings of a hostile peer: the client sends on the first, and receives on the second.
const TO_SERVER: usize = 0;
const TO_CLIENT: usize = 1;
const LOG2: u8 = 4;
const SIZE: u16 = 1 << LOG2;
const LEN: usize = 1 << 18;
const RING: usize = 4096;
const ROOMS: usize = 1 << 16;

/// A peer that can send and write anything.
struct Peer {
    connection: Connection,
    file: OwnedFd,
    memory: Arc<Mapping>,
    /// The memory of packets.
    packets: Arc<Mapping>,
    events: [Interrupt; 2],
}

impl Peer {
    /// Creates a client with its own memory.
    fn client(path: &Path) -> Peer {
        let mut socket = None;
        until(|| {
            socket = connect_as(SocketType::SEQPACKET, path).ok();
            socket.is_some()
        });
        let file = memfd_create("client", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LEN as u64).unwrap();
        // SAFETY: the test does not shorten the file while it is mapped.
        let memory = Arc::new(unsafe { Mapping::of_device(file.try_clone().unwrap(), 0, LEN) }.unwrap());
        for ring in 0..2 {
            MemifRing::create(&memory, Peer::at(ring));
        }
        let events = [Interrupt::new().unwrap(), Interrupt::new().unwrap()];
        Peer { connection: Connection::new(socket.unwrap()), file, packets: memory.clone(), memory, events }
    }

    fn at(ring: usize) -> RingLocation {
        let buffers = Buffers::Own((ROOMS + ring * usize::from(SIZE) * STRIDE) as u32);
        RingLocation { region: 0, offset: (ring * RING) as u32, log2_size: LOG2, buffers }
    }

    fn say(&self, kind: u16, body: &(impl zerocopy::IntoBytes + zerocopy::Immutable), fds: &[BorrowedFd<'_>]) {
        // The port may have ended the connection.
        let _ = self.connection.send(Header::new(kind, body), &[], fds);
    }

    /// Returns the next message; `None` at the connection's end.
    fn hear(&mut self) -> Option<(u16, Header, Vec<OwnedFd>)> {
        hear(&mut self.connection)
    }

    fn init(&self) -> Init {
        Init { version: VERSION.into(), id: 0.into(), mode: ETHERNET, secret: field("word"), name: field("a peer") }
    }

    fn region(&self) -> AddRegion {
        AddRegion { index: 0.into(), size: (LEN as u64).into() }
    }

    fn ring(&self, ring: usize) -> AddRing {
        AddRing {
            flags: if ring == TO_SERVER { CLIENT_TO_SERVER } else { 0 }.into(),
            index: 0.into(),
            region: 0.into(),
            offset: ((ring * RING) as u32).into(),
            log2_size: LOG2,
            private_header: 0.into(),
        }
    }

    /// Sends all messages of a client, without reading replies.
    fn connect(&self) {
        self.say(kind::INIT, &self.init(), &[]);
        self.say(kind::ADD_REGION, &self.region(), &[self.file.as_fd()]);
        for ring in 0..2 {
            self.say(kind::ADD_RING, &self.ring(ring), &[self.events[ring].as_fd()]);
        }
        self.say(kind::CONNECT, &[0u8; 32], &[]);
    }

    /// Reads until the connection's end; returns the types of the messages, and the last reason.
    fn end(&mut self) -> (Vec<u16>, String) {
        let (mut kinds, mut reason) = (Vec::new(), String::new());
        while let Some((kind, message, _)) = self.hear() {
            kinds.push(kind);
            if kind == kind::DISCONNECT {
                reason = text(&message.body::<Disconnect>().reason);
            }
        }
        (kinds, reason)
    }

    fn words(&self, ring: usize) -> DmaArray<AtomicU16> {
        // SAFETY: this memory is never lent as a slice.
        unsafe { DmaArray::new(&self.memory, ring * RING, 33) }
    }

    fn set_head(&self, ring: usize, head: u16) {
        self.words(ring)[3].store(head, Release);
    }

    fn describe(&self, ring: usize, number: u16, flags: u16, region: u16, len: u32, offset: u32) {
        // SAFETY: this memory is never lent as a slice.
        let table: Descriptors = unsafe { DmaArray::new(&self.memory, ring * RING + 128, SIZE.into()) };
        let [first, second] = &table[usize::from(number % SIZE)];
        first.store(u64::from(flags) | u64::from(region) << 16 | u64::from(len) << 32, Relaxed);
        second.store(offset.into(), Relaxed);
    }
}

fn hear(connection: &mut Connection) -> Option<(u16, Header, Vec<OwnedFd>)> {
    loop {
        match connection.receive() {
            Ok(message) => {
                let message = message.expect("each is one packet");
                return Some((message.header.kind.get(), message.header, message.descriptors));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let late = Timespec { tv_sec: linerate_testkit::TIME_LIMIT.as_secs() as i64, tv_nsec: 0 };
                let events = &mut [PollFd::new(connection.socket(), PollFlags::IN)];
                assert_eq!(poll(events, Some(&late)), Ok(1), "the port says nothing");
            }
            Err(_) => return None,
        }
    }
}

/// Each message violates the protocol: the client is told why, its connection ends, and the next client is served.
#[test]
fn a_client_that_breaks_the_protocol_hears_why_and_loses_its_connection_alone() {
    type Violation = fn(&Peer);
    let violations: [(&str, Violation); 20] = [
        ("unsupported version", |peer| peer.say(kind::INIT, &Init { version: 0x300.into(), ..peer.init() }, &[])),
        ("the id is not found", |peer| peer.say(kind::INIT, &Init { id: 1.into(), ..peer.init() }, &[])),
        ("unsupported mode", |peer| peer.say(kind::INIT, &Init { mode: 1, ..peer.init() }, &[])),
        ("the secret is wrong", |peer| peer.say(kind::INIT, &Init { secret: field("wor"), ..peer.init() }, &[])),
        ("the secret is wrong", |peer| peer.say(kind::INIT, &Init { secret: field(""), ..peer.init() }, &[])),
        ("the secret is wrong", |peer| peer.say(kind::INIT, &Init { secret: field("words"), ..peer.init() }, &[])),
        ("unexpected", |peer| peer.say(kind::CONNECT, &[0u8; 32], &[])),
        ("unexpected", |peer| peer.say(99, &[0u8; 32], &[])),
        ("a descriptor is missing", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_REGION, &peer.region(), &[]);
        }),
        ("not in its file", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(
                kind::ADD_REGION,
                &AddRegion { size: (LEN as u64 + 1).into(), ..peer.region() },
                &[peer.file.as_fd()],
            );
        }),
        ("not the next", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_REGION, &AddRegion { index: 1.into(), ..peer.region() }, &[peer.file.as_fd()]);
        }),
        ("not in its file", |peer| {
            let (pipe, _other) = std::io::pipe().unwrap();
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_REGION, &peer.region(), &[pipe.as_fd()]);
        }),
        ("not an eventfd", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_RING, &peer.ring(0), &[peer.file.as_fd()]);
        }),
        ("exceeds the port's queues", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_RING, &AddRing { index: 1.into(), ..peer.ring(0) }, &[peer.events[0].as_fd()]);
        }),
        ("or is already in use", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::ADD_RING, &peer.ring(0), &[peer.events[0].as_fd()]);
            peer.say(kind::ADD_RING, &peer.ring(0), &[peer.events[0].as_fd()]);
        }),
        ("there is no ring", |peer| {
            peer.say(kind::INIT, &peer.init(), &[]);
            peer.say(kind::CONNECT, &[0u8; 32], &[]);
        }),
        ("not in its region", |peer| lying_ring(peer, AddRing { offset: (LEN as u32 - 300).into(), ..peer.ring(0) })),
        ("not in its region", |peer| lying_ring(peer, AddRing { region: 1.into(), ..peer.ring(0) })),
        ("not in its region", |peer| lying_ring(peer, AddRing { log2_size: 255, ..peer.ring(0) })),
        ("no cookie", |peer| lying_ring(peer, AddRing { offset: 8.into(), ..peer.ring(0) })),
    ];
    let (_folder, path) = socket();
    let server = open(&path, "role=server&secret=word");
    for (n, (why, violation)) in violations.into_iter().enumerate() {
        let mut peer = Peer::client(&path);
        violation(&peer);
        let (kinds, reason) = peer.end();
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), (kind::HELLO, kind::DISCONNECT), "{n}: {why}");
        assert!(reason.contains(why), "{n}: {reason} is not {why}");
    }
    // A packet of another length, and a disconnection during the handshake.
    let peer = Peer::client(&path);
    rustix::net::send(peer.connection.socket(), &[0; 100], rustix::net::SendFlags::NOSIGNAL).unwrap();
    let mut peer = peer;
    assert!(peer.end().1.contains("short"));
    let peer = Peer::client(&path);
    peer.say(kind::INIT, &peer.init(), &[]);
    drop(peer);
    let peer = Peer::client(&path);
    peer.connect();
    until_link(&server, true);
}

/// `max_s2c_ring` and `max_c2s_ring` are last indexes; some clients read them as counts, and create no more rings.
#[test]
fn a_client_that_reads_last_indices_as_counts_connects() {
    for queues in [1u16, 3] {
        let (_folder, path) = socket();
        let server = open(&path, &format!("role=server&secret=word&queues={queues}"));
        let mut peer = Peer::client(&path);
        let (kind, message, _) = peer.hear().unwrap();
        assert_eq!(kind, kind::HELLO);
        let hello: Hello = message.body();
        peer.say(kind::INIT, &peer.init(), &[]);
        peer.say(kind::ADD_REGION, &peer.region(), &[peer.file.as_fd()]);
        for (ring, most) in [(TO_SERVER, hello.max_c2s_ring.get()), (TO_CLIENT, hello.max_s2c_ring.get())] {
            let count = queues.min(most);
            assert_eq!(count, queues, "as many rings as the server has queues");
            for index in 0..count {
                let ring = AddRing { index: index.into(), ..peer.ring(ring) };
                peer.say(kind::ADD_RING, &ring, &[peer.events[0].as_fd()]);
            }
        }
        peer.say(kind::CONNECT, &[0u8; 32], &[]);
        until_link(&server, true);
    }
}

/// A server announces more rings than it has queues, as DPDK's does, so a client finds out by requesting them.
#[test]
fn a_client_uses_the_rings_that_its_server_has() {
    for copies in COPIES {
        let (_folder, path) = socket();
        let mut client = open(&path, &format!("ring=64&queues=3&{copies}"));
        // The last server has more queues than its predecessor; they are used, too.
        for queues in [1, 2, 3] {
            let mut server = open(&path, &format!("role=server&queues={queues}"));
            until_link(&client, true);
            let (near, far) = (client.pool().clone(), server.pool().clone());
            for queue in 0..queues {
                let mut there = (client.tx(queue).unwrap(), server.rx(queue).unwrap());
                assert_eq!(cross(&mut there.0, &near, &mut there.1, &frames(60, 70)), frames(60, 70), "{queue}");
                let mut back = (server.tx(queue).unwrap(), client.rx(queue).unwrap());
                assert_eq!(cross(&mut back.0, &far, &mut back.1, &frames(60, 70)), frames(60, 70), "{queue}");
            }
            drop(server);
            until_link(&client, false);
        }
    }
}

/// Since waiting does not help, the port reports it as an error, until a server accepts the secret.
#[test]
fn a_server_that_refuses_the_secret_is_an_error_of_the_link() {
    let (_folder, path) = socket();
    let mut client = open(&path, "secret=wrong&id=3");
    assert_eq!(client.link().unwrap(), Link::Down, "there is no server yet");
    #[track_caller]
    fn refused(client: &Port, why: &str) {
        until(|| client.link().is_err_and(|error| error.with_hint().contains(why)));
    }
    let server = open(&path, "role=server&secret=right&id=3");
    refused(&client, "the secret is wrong");
    drop(server);
    // The messages of VPP and DPDK. An unknown id is not final, because it may be added.
    let listener = listen_as(SocketType::SEQPACKET, &path).unwrap();
    for (words, is_final) in [("incorrect secret", true), ("ID not found", false), ("Secret required", true)] {
        let mut connection = accepted(&listener);
        connection.send(Header::new(kind::HELLO, &hello()), &[], &[]).unwrap();
        assert_eq!(hear(&mut connection).unwrap().0, kind::INIT);
        let reason = Disconnect { code: 0.into(), reason: field(words) };
        connection.send(Header::new(kind::DISCONNECT, &reason), &[], &[]).unwrap();
        match is_final {
            true => refused(&client, words),
            false => until(|| client.link().is_ok_and(|link| link == Link::Down)),
        }
    }
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    let mut server = open(&path, "role=server&secret=wrong&id=3");
    until(|| client.link().is_ok_and(|link| link != Link::Down));
    let (pool, mut tx, mut rx) = (client.pool().clone(), client.tx(0).unwrap(), server.rx(0).unwrap());
    assert_eq!(cross(&mut tx, &pool, &mut rx, &frames(60, 70)), frames(60, 70));
}

fn lying_ring(peer: &Peer, ring: AddRing) {
    peer.say(kind::INIT, &peer.init(), &[]);
    peer.say(kind::ADD_REGION, &peer.region(), &[peer.file.as_fd()]);
    peer.say(kind::ADD_RING, &ring, &[peer.events[0].as_fd()]);
    peer.say(kind::CONNECT, &[0u8; 32], &[]);
}

/// A client writes invalid contents to its rings: the connection ends, the breach is counted, and no buffer is lost.
#[test]
fn a_ring_of_a_lying_client_is_given_up() {
    type Violation = fn(&Peer);
    let violations: [(&str, Violation); 9] = [
        ("a head beyond the ring", |peer| peer.set_head(TO_SERVER, SIZE + 2)),
        ("a head that goes back", |peer| peer.set_head(TO_SERVER, 0)),
        ("a region that is not there", |peer| {
            peer.describe(TO_SERVER, 1, 0, 1, 60, 0);
            peer.set_head(TO_SERVER, 2);
        }),
        ("an offset beyond the region", |peer| {
            peer.describe(TO_SERVER, 1, 0, 0, 60, LEN as u32 - 59);
            peer.set_head(TO_SERVER, 2);
        }),
        ("a length that wraps around", |peer| {
            peer.describe(TO_SERVER, 1, 0, 0, u32::MAX, u32::MAX);
            peer.set_head(TO_SERVER, 2);
        }),
        ("a packet without an end", |peer| {
            (0..SIZE).for_each(|number| peer.describe(TO_SERVER, number, NEXT, 0, 60, 0));
            peer.set_head(TO_SERVER, 1 + SIZE);
        }),
        ("a buffer that is not there", |peer| {
            peer.describe(TO_CLIENT, 0, 0, 9, 2048, 0);
            peer.set_head(TO_CLIENT, 1);
        }),
        ("a buffer without a byte", |peer| {
            peer.describe(TO_CLIENT, 0, 0, 0, 0, 0);
            peer.set_head(TO_CLIENT, 1);
        }),
        ("more buffers than the ring has", |peer| peer.set_head(TO_CLIENT, SIZE + 1)),
    ];
    let (_folder, path) = socket();
    let mut server = open(&path, "role=server&secret=word");
    let (mut rx, mut tx, pool) = (server.rx(0).unwrap(), server.tx(0).unwrap(), server.pool().clone());
    for (n, (what, violation)) in violations.into_iter().enumerate() {
        let mut peer = Peer::client(&path);
        peer.connect();
        until_link(&server, true);
        let mut batch = Batch::new();
        peer.describe(TO_SERVER, 0, 0, 0, 60, ROOMS as u32);
        peer.set_head(TO_SERVER, 1);
        until(|| rx.recv(&mut batch) == 1);
        batch.clear();
        violation(&peer);
        rx.recv(&mut batch);
        assert!(batch.is_empty(), "{what}");
        batch.push(&pool, &[1; 60]);
        tx.send(&mut batch);
        let (_, reason) = peer.end();
        assert!(reason.contains("violates the protocol"), "{what}: {reason}");
        // The rule, and the value that the peer has written.
        let is_named = reason.ends_with(&format!("is {}; the maximum is {SIZE}", SIZE + 1));
        let is_beyond = ["a head beyond the ring", "a packet without an end", "more buffers than the ring has"];
        assert_eq!(is_named, is_beyond.contains(&what), "{what}: {reason}");
        let drops = server.statistics().unwrap().drops;
        assert_eq!(drops.malformed + drops.tx_too_long, n as u64 + 1, "{what}");
    }
    drop((rx, tx));
    assert_eq!(pool.available(), BUFFERS);
}

/// The end of a packet may arrive later, as programs with libmemif may send it.
#[test]
fn a_packet_waits_for_its_end_and_one_of_no_valid_length_is_dropped() {
    let (_folder, path) = socket();
    let mut server = open(&path, "role=server&secret=word");
    let mut rx = server.rx(0).unwrap();
    let peer = Peer::client(&path);
    peer.connect();
    until_link(&server, true);
    let mut batch = Batch::new();
    peer.memory.write(ROOMS, &[7; 30]);
    peer.memory.write(ROOMS + 100, &[8; 30]);
    peer.describe(TO_SERVER, 0, 0, 0, 13, ROOMS as u32);
    peer.describe(TO_SERVER, 1, 0, 0, 1519, ROOMS as u32);
    peer.describe(TO_SERVER, 2, NEXT, 0, 30, ROOMS as u32);
    peer.describe(TO_SERVER, 3, 0, 0, 30, ROOMS as u32 + 100);
    peer.set_head(TO_SERVER, 3);
    until(|| {
        rx.recv(&mut batch);
        peer.words(TO_SERVER)[32].load(Acquire) == 2
    });
    assert!(batch.is_empty());
    peer.set_head(TO_SERVER, 4);
    assert_eq!(rx.recv(&mut batch), 1);
    let mut bytes = Vec::new();
    batch.packets().for_each(|packet| packet.append_to(&mut bytes));
    assert_eq!(bytes, [vec![7; 30], vec![8; 30]].concat());
    let drops = server.statistics().unwrap().drops;
    assert_eq!((drops.malformed, drops.oversize), (1, 1));
}

/// Room that a client has not provided yet does not count as a packet that it has not taken.
#[test]
fn what_a_client_has_not_taken_is_known() {
    let (_folder, path) = socket();
    let _server = open(&path, "role=server");
    let peer = Peer::client(&path);
    let mut regions = Regions::default();
    regions.add(0, LEN as u64, peer.file.try_clone().unwrap()).unwrap();
    let location = RingLocation { buffers: Buffers::Named, ..Peer::at(TO_CLIENT) };
    let ring = MemifRing::new(&Arc::new(regions), location, 0).unwrap();
    for (head, tail, pending) in
        [(0, 0, 0), (SIZE, 0, 0), (SIZE, 5, 5), (SIZE + 3, 5, 2), (SIZE + 5, 5, 0), (SIZE, SIZE, SIZE)]
    {
        peer.set_head(TO_CLIENT, head);
        peer.words(TO_CLIENT)[32].store(tail, Release);
        assert_eq!(ring.pending(), pending, "{head} {tail}");
    }
}

/// A disconnected client that keeps sending does not block the next client. Neither does the beginning of a packet
/// without an end.
#[test]
fn a_client_that_has_ended_does_not_keep_the_next_one_out() {
    for (flags, expected, malformed) in [(0, vec![60, 60, 100], 0), (NEXT, vec![60, 100], 1)] {
        let (_folder, path) = socket();
        let mut server = open(&path, "role=server&secret=word");
        let mut rx = server.rx(0).unwrap();
        let (mut batch, mut lens) = (Batch::with_capacity(1), Vec::new());
        let peer = Peer::client(&path);
        peer.connect();
        until_link(&server, true);
        assert_eq!(rx.recv(&mut batch), 0);
        peer.describe(TO_SERVER, 0, 0, 0, 60, ROOMS as u32);
        peer.describe(TO_SERVER, 1, flags, 0, 60, ROOMS as u32);
        peer.set_head(TO_SERVER, 2);
        shutdown(peer.connection.socket(), Shutdown::Both).unwrap();
        until_link(&server, false);
        let next = Peer::client(&path);
        next.connect();
        until_link(&server, true);
        next.describe(TO_SERVER, 0, 0, 0, 100, ROOMS as u32);
        next.set_head(TO_SERVER, 1);
        for turn in 2..10 {
            rx.recv(&mut batch);
            lens.extend(batch.packets().map(|packet| packet.len()));
            batch.clear();
            peer.describe(TO_SERVER, turn, 0, 0, 60, ROOMS as u32);
            peer.set_head(TO_SERVER, if flags == 0 { turn + 1 } else { 2 });
        }
        assert_eq!((lens, server.statistics().unwrap().drops.malformed), (expected, malformed));
    }
}

/// The client truncates its memory while both queues use it.
#[test]
fn memory_that_goes_away_ends_the_connection_and_not_the_process() {
    let (_folder, path) = socket();
    let mut server = open(&path, "role=server&secret=word");
    let (mut rx, mut tx, pool) = (server.rx(0).unwrap(), server.tx(0).unwrap(), server.pool().clone());
    for _ in 0..3 {
        let mut peer = Peer::client(&path);
        peer.connect();
        until_link(&server, true);
        peer.describe(TO_SERVER, 0, 0, 0, 60, ROOMS as u32);
        peer.set_head(TO_SERVER, 1);
        let mut batch = Batch::new();
        until(|| rx.recv(&mut batch) == 1);
        ftruncate(&peer.file, 0).unwrap();
        until(|| {
            rx.recv(&mut batch);
            batch.clear();
            batch.push(&pool, &[1; 60]);
            tx.send(&mut batch);
            server.link().unwrap() == Link::Down
        });
        assert!(peer.end().1.contains("memory was truncated"));
    }
    drop((rx, tx));
    assert_eq!(pool.available(), BUFFERS);
}

fn accepted(listener: &UnixListener) -> Connection {
    let mut socket: Option<UnixStream> = None;
    until(|| {
        socket = listener.accept().map(|(socket, _)| socket).ok();
        socket.is_some()
    });
    let socket = socket.unwrap();
    socket.set_nonblocking(true).unwrap();
    Connection::new(socket)
}

/// Accepts a connection from a linerate port, as the port's server.
fn lying_server(listener: &UnixListener, hello: Hello) -> Peer {
    let mut connection = accepted(listener);
    connection.send(Header::new(kind::HELLO, &hello), &[], &[]).unwrap();
    let (mut memory, mut events) = (Vec::new(), Vec::new());
    while let Some((kind, message, mut fds)) = hear(&mut connection) {
        match kind {
            kind::INIT => assert_eq!(message.body::<Init>().id.get(), 3),
            kind::ADD_REGION => memory.extend(fds.pop()),
            kind::ADD_RING => {
                assert_eq!(message.body::<AddRing>().log2_size, hello.max_log2_size.min(6));
                events.push(Interrupt::of_peer(fds.pop().unwrap()).unwrap());
            }
            kind::CONNECT => break,
            kind => panic!("{kind}"),
        }
        connection.send(Header::new(kind::ACK, &[0u8; 0]), &[], &[]).unwrap();
    }
    connection.send(Header::new(kind::CONNECTED, &[0u8; 32]), &[], &[]).unwrap();
    // The memory cannot be truncated.
    assert!(memory.iter().all(|file| ftruncate(file, 0).is_err()));
    let map = |file: &OwnedFd| Arc::new(Mapping::of_peer(file.try_clone().unwrap()).unwrap());
    let (packets, file) = (map(memory.last().unwrap()), memory.swap_remove(0));
    Peer { connection, memory: map(&file), file, packets, events: events.try_into().ok().unwrap() }
}

fn hello() -> Hello {
    Hello {
        name: field("a server"),
        min_version: VERSION.into(),
        max_version: VERSION.into(),
        max_region: 1.into(),
        max_s2c_ring: 0.into(),
        max_c2s_ring: 0.into(),
        max_log2_size: 14,
    }
}

/// The length of a ring of 64 descriptors in a client's memory.
const CLIENT_RING: usize = 128 + 16 * 64;

impl Peer {
    fn client_words(&self, ring: usize) -> DmaArray<AtomicU16> {
        // SAFETY: this memory is never lent as a slice.
        unsafe { DmaArray::new(&self.memory, ring * CLIENT_RING, 33) }
    }

    fn client_table(&self, ring: usize) -> Descriptors {
        // SAFETY: this memory is never lent as a slice.
        unsafe { DmaArray::new(&self.memory, ring * CLIENT_RING + 128, 64) }
    }
}

/// A server writes invalid contents: the connection ends, the breach is counted, no buffer is lost, and the client
/// reconnects.
#[test]
fn a_lying_server_ends_its_connection_alone() {
    COPIES.into_iter().for_each(a_lying_server_ends_its_connection);
}

fn a_lying_server_ends_its_connection(copies: &str) {
    type Violation = fn(&Peer);
    let violations: [(&str, Violation); 5] = [
        ("a tail beyond the head, to receive", |peer| peer.client_words(1)[32].store(66, Release)),
        ("a tail that goes back, to receive", |peer| peer.client_words(1)[32].store(0, Release)),
        ("a tail beyond the head, to send", |peer| peer.client_words(0)[32].store(2, Release)),
        ("a length beyond the buffer", |peer| {
            peer.client_table(1)[1][0].store((BUFFER as u64 + 1) << 32, Relaxed);
            peer.client_words(1)[32].store(2, Release);
        }),
        ("a packet without an end", |peer| {
            peer.client_table(1).iter().for_each(|[first, _]| first.store(1 | 60 << 32, Relaxed));
            peer.client_words(1)[32].store(65, Release);
        }),
    ];
    let (_folder, path) = socket();
    let listener = listen_as(SocketType::SEQPACKET, &path).unwrap();
    let mut client = open(&path, &format!("ring=64&id=3&{copies}"));
    let (mut rx, mut tx, pool) = (client.rx(0).unwrap(), client.tx(0).unwrap(), client.pool().clone());
    for (n, (what, violation)) in violations.into_iter().enumerate() {
        let mut peer = lying_server(&listener, hello());
        until_link(&client, true);
        let mut batch = Batch::new();
        assert_eq!(rx.recv(&mut batch), 0);
        assert_eq!(peer.client_words(1)[3].load(Acquire), 64, "all buffers are the server's");
        let offered = |number: usize| peer.client_table(1)[number][0].load(Relaxed) >> 32;
        assert!((0..64).all(|number| offered(number) == BUFFER as u64), "{copies}: {} bytes are offered", offered(0));
        // If the server changes descriptors, the client still uses its own buffers.
        let [first, second] = &peer.client_table(1)[0];
        let offset = second.swap(u64::MAX, Relaxed) as usize;
        first.store(60 << 32 | 0xFFFF << 16, Relaxed);
        peer.packets.write(offset, &[n as u8 + 1; 60]);
        peer.client_words(1)[32].store(1, Release);
        until(|| rx.recv(&mut batch) == 1);
        batch.packets().for_each(|packet| assert!(packet.iter().all(|byte| *byte == n as u8 + 1)));
        batch.clear();
        batch.push(&pool, &[9; 60]);
        assert_eq!(tx.send(&mut batch), 1);
        violation(&peer);
        rx.recv(&mut batch);
        assert!(batch.is_empty(), "{what}");
        batch.push(&pool, &[9; 60]);
        tx.send(&mut batch);
        assert!(peer.end().1.contains("violates the protocol"), "{what}");
        let drops = client.statistics().unwrap().drops;
        assert_eq!(drops.malformed + drops.tx_too_long, n as u64 + 1, "{what}");
    }
    drop((rx, tx, client));
    assert_eq!(pool.available(), BUFFERS);
}

/// A server may continue to use the buffers that a client has lent to it.
#[test]
fn what_is_lent_comes_back_when_its_server_is_gone_or_never() {
    let (_folder, path) = socket();
    let listener = listen_as(SocketType::SEQPACKET, &path).unwrap();
    let mut client = open(&path, "ring=64&id=3&zero-copy=on");
    let (mut rx, mut tx, pool) = (client.rx(0).unwrap(), client.tx(0).unwrap(), client.pool().clone());
    let mut batch = Batch::new();
    let mut send = |tx: &mut TxQueue| {
        batch.push(&pool, &[7; 60]);
        assert_eq!(tx.send(&mut batch), 1);
        batch = Batch::new();
    };
    // The server violates a rule, and keeps the connection.
    let mut peer = lying_server(&listener, hello());
    until_link(&client, true);
    send(&mut tx);
    peer.client_words(1)[32].store(66, Release);
    rx.recv(&mut Batch::new());
    tx.send(&mut Batch::new());
    assert!(peer.end().1.contains("violates the protocol"));
    assert_eq!(pool.available(), BUFFERS - 65);
    drop(peer);
    // Each queue must poll, too.
    until(|| {
        tx.send(&mut Batch::new());
        pool.available() == BUFFERS
    });
    // A buffer of a waiting packet is lent until the server has taken it.
    let peer = lying_server(&listener, hello());
    until_link(&client, true);
    send(&mut tx);
    assert_eq!((tx.buffers(), pool.available()), (1, BUFFERS - 65));
    peer.client_words(0)[32].store(1, Release);
    tx.send(&mut Batch::new());
    assert_eq!(tx.buffers(), 0);
    send(&mut tx);
    drop((rx, tx, client));
    assert_eq!(pool.available(), BUFFERS - 65, "they are the server's for ever");
    drop(peer);
}

#[test]
fn a_client_hears_its_server_s_bounds() {
    let (_folder, path) = socket();
    let listener = listen_as(SocketType::SEQPACKET, &path).unwrap();
    let client = open(&path, "ring=64&id=3&queues=2&zero-copy=on");
    let mut connection = accepted(&listener);
    let newer = Hello { min_version: 0x201.into(), max_version: 0x300.into(), ..hello() };
    connection.send(Header::new(kind::HELLO, &newer), &[], &[]).unwrap();
    let (kind, message, _) = hear(&mut connection).unwrap();
    assert_eq!(kind, kind::DISCONNECT);
    assert!(text(&message.body::<Disconnect>().reason).contains("only 2.0 is supported"));
    drop(connection);
    // The server has no second region, for packets.
    let mut connection = accepted(&listener);
    connection.send(Header::new(kind::HELLO, &Hello { max_region: 0.into(), ..hello() }), &[], &[]).unwrap();
    assert_eq!(hear(&mut connection).unwrap().0, kind::INIT);
    connection.send(Header::new(kind::ACK, &[0u8; 0]), &[], &[]).unwrap();
    let (_, message, _) = hear(&mut connection).unwrap();
    assert!(text(&message.body::<Disconnect>().reason).contains("without zero-copy=on"));
    drop(connection);
    // One queue of two, and rings of 16 descriptors.
    let peer = lying_server(&listener, Hello { max_log2_size: 4, ..hello() });
    until_link(&client, true);
    assert_eq!(client.info().description.split(", ").last(), Some("connected to a server"));
    drop(peer);
    until_link(&client, false);
}

/// Clients that do not answer the server's greeting do not block others.
#[test]
fn silent_clients_keep_no_other_out() {
    let (_folder, path) = socket();
    let server = open(&path, "role=server&secret=word");
    let connect = || {
        let mut socket = None;
        // The kernel's queue may be full briefly.
        until(|| {
            socket = connect_as(SocketType::SEQPACKET, &path).ok();
            socket.is_some()
        });
        socket
    };
    let _silent: Vec<_> = (0..100).map(|_| connect()).collect();
    let peer = Peer::client(&path);
    peer.connect();
    until_link(&server, true);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any contents of both rings, in either role, each call ends, and no buffer is lost.
    #[test]
    fn any_ring_is_survived(
        role in prop::sample::select(vec!["role=server", "ring=64&id=3&zero-copy=off", "ring=64&id=3&zero-copy=on"]),
        descriptors in prop::collection::vec((0..4usize, 0..3000u32, 0..4u16, 0..2u16), 64),
        indices in prop::array::uniform4(0..70u16),
    ) {
        let (_folder, path) = socket();
        let is_server = role == "role=server";
        let listener = (!is_server).then(|| listen_as(SocketType::SEQPACKET, &path).unwrap());
        let mut port = open(&path, &format!("{role}&mtu=9000"));
        let peer = match &listener {
            Some(listener) => lying_server(listener, hello()),
            None => Peer::client(&path),
        };
        if is_server {
            peer.connect();
        }
        until_link(&port, true);
        let (mut rx, mut tx, pool) = (port.rx(0).unwrap(), port.tx(0).unwrap(), port.pool().clone());
        let mut batch = Batch::with_capacity(64);
        rx.recv(&mut batch);
        let offsets = [ROOMS as u32, 0, LEN as u32 - 100, u32::MAX - 50];
        for (n, (base, len, flags, region)) in descriptors.into_iter().enumerate() {
            let offset = offsets[base].wrapping_add(len % 3);
            match is_server {
                true => peer.describe(n % 2, n as u16 / 2, flags, region, len, offset),
                false => peer.client_table(n % 2)[n / 2][0].store(u64::from(flags) | u64::from(len) << 32, Relaxed),
            }
        }
        for ring in 0..2 {
            let words = if is_server { peer.words(ring) } else { peer.client_words(ring) };
            words[3].store(indices[ring], Release);
            words[32].store(indices[2 + ring], Release);
        }
        for _ in 0..4 {
            rx.recv(&mut batch);
            for packet in batch.packets() {
                prop_assert!((14..=9018).contains(&packet.len()));
            }
            tx.send(&mut batch);
            batch.clear();
        }
        // Lent buffers return when the peer is gone.
        drop((rx, tx, batch, peer, listener, port));
        prop_assert_eq!(pool.available(), BUFFERS);
    }
}
