//! Ports at back ends: `vhost:` of this process, and a back end that violates the protocol.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate::{Error, Options, Result};
use linerate_core::batch::Batch;
use linerate_core::memory::{Mapping, PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::{Port, RxQueue, TxQueue, Vectors};
use linerate_spec::virtio::packed::{AVAILABLE, USED};
use linerate_spec::virtio::{feature, header, status};
use linerate_testkit::TIME_LIMIT;
use linerate_traffic::{Checker, Generator, Report};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

use super::link::Link as Requests;
use crate::peer::{accepted, socket, until, until_link};
use crate::vhost::message::*;

const BUFFERS: usize = 2048;

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn options(pool: &Arc<Pool>) -> Options {
    Options { pool: Some(pool.clone()), ..Options::default() }
}

fn open(pool: &Arc<Pool>, name: &str) -> Result<Port> {
    options(pool).open([name]).map(|[port]| port)
}

#[track_caller]
fn refused(pool: &Arc<Pool>, name: &str) -> Error {
    open(pool, name).map(drop).unwrap_err()
}

/// Sends `count` packets of `size` bytes with checksums, and checks that all arrive once, in order and intact.
#[track_caller]
fn cross(pool: &Arc<Pool>, tx: &mut TxQueue, rx: &mut RxQueue, size: usize, count: u64) {
    let (mut generator, mut checker) = (Generator::new(size, 8), Checker::default());
    let (mut batch, mut back, mut sent) = (Batch::new(), Batch::new(), 0);
    until(|| {
        if batch.is_empty() && sent < count {
            batch.alloc(pool, 32.min((count - sent) as usize), size - 4);
            batch.packets().for_each(|mut packet| generator.fill(&mut packet));
            sent += batch.len() as u64;
        }
        tx.send(&mut batch);
        rx.recv(&mut back);
        back.packets().for_each(|packet| checker.check(&packet));
        back.clear();
        checker.report().received >= count
    });
    let Report { received, lost, corrupted, reordered, .. } = checker.report();
    assert_eq!((received, lost, corrupted, reordered), (count, 0, 0, 0), "{size}");
}

/// The same for packets of several buffers.
#[track_caller]
fn cross_long(pool: &Arc<Pool>, tx: &mut TxQueue, rx: &mut RxQueue) {
    let (mut batch, mut back) = (Batch::new(), Batch::new());
    for n in 0..300 {
        let bytes: Vec<u8> = (0..9000 - n).map(|at| (at / 251 + n) as u8).collect();
        assert!(batch.push(pool, &bytes));
        until(|| {
            tx.send(&mut batch);
            rx.recv(&mut back) > 0
        });
        let received: Vec<Vec<u8>> =
            back.packets().map(|packet| packet.segments().flatten().copied().collect()).collect();
        assert_eq!(received, [bytes]);
        back.clear();
    }
}

#[test]
fn every_packet_crosses_in_both_directions() {
    for (vectors, back_options, front_options) in [
        (Vectors::Best, "", ""),
        (Vectors::Scalar, "", ""),
        (Vectors::Best, "?offloads=on", ""),
        (Vectors::Best, "?mtu=9000", ""),
        (Vectors::Best, "?packed=on", ""),
        (Vectors::Scalar, "?packed=on&mtu=9000&offloads=on", ""),
        (Vectors::Best, "", "?in_order=on"),
        (Vectors::Best, "", "?metadata=on"),
        (Vectors::Scalar, "", "?mergeable=off"),
        (Vectors::Best, "?packed=on", "&in_order=on&mergeable=off"),
        (Vectors::Best, "?packed=on", "&in_order=on"),
        (Vectors::Best, "?packed=on", "&mergeable=off"),
        (Vectors::Best, "", "?in_order=on&mergeable=off"),
        (Vectors::Best, "", "?mergeable=off"),
    ] {
        let (_folder, path) = socket();
        let (theirs, ours) = (pool(), pool());
        let mut back = open(&theirs, &format!("vhost:{}{back_options}", path.display())).unwrap();
        let name = format!("virtio-user:{}{back_options}{front_options}", path.display());
        let [mut front] = Options { vectors, ..options(&ours) }.open([&*name]).unwrap();
        let ring = if back_options.contains("packed") { "packed" } else { "split" };
        let description = front.info().description;
        assert!(description.contains(&format!("a back end with {ring} queues")), "{description}");
        let (mut front_rx, mut front_tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
        let (mut back_rx, mut back_tx) = (back.rx(0).unwrap(), back.tx(0).unwrap());
        until_link(&back, true);
        for size in [64, 128, 256, 512, 1024, 1518] {
            cross(&ours, &mut front_tx, &mut back_rx, size, 10_000);
            cross(&theirs, &mut back_tx, &mut front_rx, size, 10_000);
        }
        if back_options.contains("9000") {
            cross_long(&ours, &mut front_tx, &mut back_rx);
            cross_long(&theirs, &mut back_tx, &mut front_rx);
        }
        // Sent packets are counted when their buffers return.
        until(|| {
            front_tx.send(&mut Batch::new());
            front.statistics().unwrap().tx_packets == back.statistics().unwrap().rx_packets
        });
        let (front_counts, back_counts) = (front.statistics().unwrap(), back.statistics().unwrap());
        assert_eq!(back_counts.tx_packets, front_counts.rx_packets);
        assert!(front_counts.drops.tx_too_long == 0 && front_counts.drops.malformed == 0);
        drop((front_rx, front_tx));
        assert_eq!(ours.available(), BUFFERS);
    }
}

/// The back end sends longer frames than the front end accepts: they are counted as oversize, not as malformed.
#[test]
fn frames_that_are_too_long_for_the_receiver_are_counted_as_that() {
    for packed in ["off", "on"] {
        let (_folder, path) = socket();
        let (theirs, ours) = (pool(), pool());
        let name = |kind: &str, mtu: u32| format!("{kind}:{}?mtu={mtu}&packed={packed}", path.display());
        let mut back = open(&theirs, &name("vhost", 9000)).unwrap();
        let mut front = open(&ours, &name("virtio-user", 1500)).unwrap();
        let (mut rx, mut tx) = (front.rx(0).unwrap(), back.tx(0).unwrap());
        until_link(&back, true);
        let (mut batch, mut received) = (Batch::new(), Batch::new());
        for len in [4000, 1514, 1800, 1600, 60] {
            assert!(batch.push(&theirs, &vec![1; len]));
        }
        until(|| {
            tx.send(&mut batch);
            rx.recv(&mut received);
            received.packets().count() == 2
        });
        let drops = front.statistics().unwrap().drops;
        assert_eq!((drops.oversize, drops.malformed), (3, 0), "packed={packed}");
    }
}

#[test]
fn each_of_several_queues_has_its_packets() {
    let (_folder, path) = socket();
    let (theirs, ours) = (pool(), pool());
    let mut back = open(&theirs, &format!("vhost:{}?queues=3", path.display())).unwrap();
    let too_many = refused(&ours, &format!("virtio-user:{}?queues=4", path.display()));
    assert!(too_many.to_string().contains("4"), "{too_many}");
    let mut front = open(&ours, &format!("virtio-user:{}?queues=3&ring=64", path.display())).unwrap();
    for queue in 0..3 {
        let (mut front_rx, mut front_tx) = (front.rx(queue).unwrap(), front.tx(queue).unwrap());
        let (mut back_rx, mut back_tx) = (back.rx(queue).unwrap(), back.tx(queue).unwrap());
        cross(&ours, &mut front_tx, &mut back_rx, 64 + usize::from(queue) * 100, 1000);
        cross(&theirs, &mut back_tx, &mut front_rx, 64 + usize::from(queue) * 100, 1000);
        // As with other virtio devices, queues remain in use until the last one ends.
        std::mem::forget((front_rx, front_tx));
    }
    assert_eq!(front.queue_statistics().rx_slots, [1000; 3]);
}

/// A back end disconnects and returns several times: no buffer is lost, and packets pass again.
#[test]
fn a_back_end_comes_and_goes() {
    for (front_options, back_options) in [("", ""), ("?server=on", "?client=on")] {
        let (_folder, path) = socket();
        let (theirs, ours) = (pool(), pool());
        let back_name = format!("vhost:{}{back_options}", path.display());
        let front_name = format!("virtio-user:{}{front_options}", path.display());
        let mut back = open(&theirs, &back_name).unwrap();
        let mut front = open(&ours, &front_name).unwrap();
        until_link(&front, true);
        let (mut front_rx, mut front_tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
        let mut batch = Batch::new();
        for _ in 0..3 {
            let (mut back_rx, mut back_tx) = (back.rx(0).unwrap(), back.tx(0).unwrap());
            cross(&ours, &mut front_tx, &mut back_rx, 64, 500);
            cross(&theirs, &mut back_tx, &mut front_rx, 64, 500);
            // Some packets that the back end does not take.
            batch.alloc(&ours, 32, 60);
            front_tx.send(&mut batch);
            drop((back_rx, back_tx, back));
            until_link(&front, false);
            batch.alloc(&ours, 8, 60);
            assert_eq!((front_tx.send(&mut batch), front_rx.recv(&mut Batch::new())), (0, 0));
            assert_eq!((batch.len(), front_rx.buffers(), front_tx.buffers()), (8, 0, 0));
            batch.clear();
            assert_eq!(ours.available() + batch.cached(), BUFFERS);
            back = open(&theirs, &back_name).unwrap();
            until_link(&front, true);
        }
        assert_eq!(front.statistics().unwrap().rx_packets, 1500, "counters go on");
        drop((front_rx, front_tx, batch));
        assert_eq!(ours.available(), BUFFERS);
        drop(front);
        assert_eq!(path.exists(), front_options.is_empty(), "a server's socket goes with it");
    }
}

/// A back end disconnects with sent packets in the ring: all of them arrive, and the next back end follows.
#[test]
fn what_a_back_end_has_sent_before_its_end_arrives() {
    for packed in ["", "&packed=on"] {
        let (_folder, path) = socket();
        let ours = pool();
        let mut front = open(&ours, &format!("virtio-user:{}?server=on{packed}", path.display())).unwrap();
        let mut rx = front.rx(0).unwrap();
        let mut back = Batch::new();
        for _ in 0..3 {
            let theirs = pool();
            let mut sender = open(&theirs, &format!("vhost:{}?client=on{packed}", path.display())).unwrap();
            let mut tx = sender.tx(0).unwrap();
            until_link(&front, true);
            // The queue switches to the new device, and offers its buffers.
            let mut batch = Batch::with_capacity(100);
            batch.alloc(&theirs, 100, 60);
            until(|| rx.recv(&mut back) == 0 && tx.send(&mut batch) > 0);
            assert!(batch.is_empty(), "{packed}");
            drop((tx, sender));
            until_link(&front, false);
            for expected in [32, 0, 32, 32, 4, 0] {
                if expected > 0 {
                    back.clear();
                }
                assert_eq!(rx.recv(&mut back), expected, "{packed}");
            }
        }
        drop((back, rx));
        assert_eq!(ours.available(), BUFFERS);
    }
}

/// The front end disconnects and returns to the same back end.
#[test]
fn a_front_end_comes_and_goes() {
    let (_folder, path) = socket();
    let (theirs, ours) = (pool(), pool());
    let mut back = open(&theirs, &format!("vhost:{}", path.display())).unwrap();
    let (mut back_rx, mut back_tx) = (back.rx(0).unwrap(), back.tx(0).unwrap());
    for _ in 0..3 {
        let mut front = open(&ours, &format!("virtio-user:{}?ring=128", path.display())).unwrap();
        // Queues stop and restart while the back end is connected.
        for _ in 0..2 {
            let (mut rx, mut tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
            cross(&ours, &mut tx, &mut back_rx, 64, 500);
            cross(&theirs, &mut back_tx, &mut rx, 64, 500);
            rx.stop().unwrap();
            tx.stop().unwrap();
            assert_eq!(ours.available(), BUFFERS);
        }
        drop(front);
        until_link(&back, false);
    }
}

#[test]
fn a_receiver_sleeps_until_packets_or_back_ends_come() {
    let (_folder, path) = socket();
    let (theirs, ours) = (pool(), pool());
    let sleeping = Options { interrupts: Some(Duration::ZERO), ..options(&ours) };
    let [mut front] = sleeping.open([&*format!("virtio-user:{}?server=on", path.display())]).unwrap();
    let (mut rx, mut batch) = (front.rx(0).unwrap(), Batch::new());
    let is_woken = |rx: &mut RxQueue, patience: i64| {
        let event = rx.arm().unwrap();
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec { tv_sec: patience, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(!is_woken(&mut rx, 0));
    let mut back = open(&theirs, &format!("vhost:{}?client=on", path.display())).unwrap();
    assert!(is_woken(&mut rx, 10), "a back end wakes it");
    // The queue's event stays armed. The back end raises the event when it receives it, and again when the link is up.
    until(|| rx.recv(&mut batch) == 0 && rx.buffers() > 0);
    until(|| {
        rx.disarm();
        !is_woken(&mut rx, 0)
    });
    let mut back_tx = back.tx(0).unwrap();
    until_link(&back, true);
    let mut sent = Batch::new();
    sent.alloc(&theirs, 3, 60);
    until(|| back_tx.send(&mut sent) == 3 || sent.is_empty());
    assert!(is_woken(&mut rx, 10), "a packet wakes it");
    until(|| rx.recv(&mut batch) > 0);
    rx.disarm();
    assert!(!is_woken(&mut rx, 0));
    drop((back_tx, back));
    assert!(is_woken(&mut rx, 10), "the end of a back end wakes it");
}

#[test]
fn a_path_without_a_back_end_is_an_error_that_says_what_to_do() {
    let (_folder, path) = socket();
    let name = format!("virtio-user:{}", path.display());
    let message = refused(&pool(), &name).with_hint();
    for words in ["no back end can be reached", "No such file", "fwd vhost:", "?server=on"] {
        assert!(message.contains(words), "{message}");
    }
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(refused(&pool(), &name).with_hint().contains("Connection refused"));
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    assert!(refused(&pool(), &name).with_hint().contains("it is not a socket"));
    let folder = format!("virtio-user:{}", path.parent().unwrap().display());
    assert!(refused(&pool(), &folder).with_hint().contains("it is not a socket"));
    assert!(refused(&pool(), &format!("{name}?server=on")).to_string().contains("not a socket"));
    assert!(open(&pool(), &format!("{name}?ring=100")).is_err());
}

/// Modifies the answers of a test's back end, by the request's number.
type Change = Box<dyn FnMut(usize, &Header, &mut Answer) + Send>;

/// A back end's answer to one request, initially correct.
struct Answer {
    request: u32,
    flags: u32,
    payload: Option<Vec<u8>>,
    /// The number of descriptors to send.
    descriptors: usize,
    /// Close the connection instead.
    close: bool,
}

/// A back end on a separate thread that serves one connection.
struct BackEnd {
    path: PathBuf,
    /// The front end's memory: the region, then its rings.
    memory: mpsc::Receiver<Vec<OwnedFd>>,
    thread: JoinHandle<Vec<Request>>,
    /// The features that the front end has last accepted.
    accepted: Arc<AtomicU64>,
    _folder: Option<TempDir>,
}

const FEATURES: u64 = feature::VERSION_1 | feature::MRG_RXBUF | feature::EVENT_IDX | feature::MQ | feature::MTU;

impl BackEnd {
    fn start(features: u64, protocol: u64, change: Change) -> BackEnd {
        let (folder, path) = socket();
        BackEnd { _folder: Some(folder), ..BackEnd::start_at(&path, features, protocol, change) }
    }

    fn start_at(path: &Path, features: u64, protocol: u64, mut change: Change) -> BackEnd {
        let listener = UnixListener::bind(path).unwrap();
        let accepted = Arc::new(AtomicU64::new(0));
        let answered = accepted.clone();
        let (sender, memory) = mpsc::channel();
        let serve = move || {
            let mut requests = Vec::new();
            let mut connection = Connection::new(crate::peer::accepted(&listener));
            drop(listener); // the next connection is refused
            let mut last_status = 0;
            loop {
                let message = match connection.receive() {
                    Ok(Some(message)) => message,
                    Ok(None) => continue,
                    Err(_) => return requests,
                };
                let flags = message.header.flags;
                let request = Request::try_from(message.header.request).unwrap();
                let number = |number: u64| Some(number.as_bytes().to_vec());
                let payload = match request {
                    Request::GET_FEATURES => number(features),
                    Request::GET_PROTOCOL_FEATURES => number(protocol),
                    Request::GET_QUEUE_NUM => number(2),
                    Request::GET_STATUS => number(last_status),
                    Request::GET_VRING_BASE => Some(message.payload.clone()),
                    _ => (flags & flag::NEED_REPLY != 0).then(|| vec![0; 8]),
                };
                match request {
                    Request::SET_FEATURES => answered.store(u64::read_from_bytes(&message.payload).unwrap(), Relaxed),
                    Request::SET_STATUS => last_status = u64::read_from_bytes(&message.payload).unwrap(),
                    Request::SET_MEM_TABLE => drop(sender.send(message.descriptors)),
                    // Polled queues have an event, too.
                    Request::SET_VRING_CALL | Request::SET_VRING_KICK => assert_eq!(message.descriptors.len(), 1),
                    _ => {}
                }
                let flags = flag::VERSION | flag::REPLY;
                let mut answer = Answer { request: request.into(), flags, payload, descriptors: 0, close: false };
                change(requests.len(), &message.header, &mut answer);
                requests.push(request);
                if answer.close {
                    return requests;
                }
                let header = Header { request: answer.request, flags: answer.flags, size: 0 };
                let stderr = std::io::stderr();
                let files = vec![stderr.as_fd(); answer.descriptors];
                if let Some(payload) = &answer.payload
                    && connection.send(header, &[payload], &files).is_err()
                {
                    return requests;
                }
            }
        };
        BackEnd { path: path.to_path_buf(), memory, thread: std::thread::spawn(serve), accepted, _folder: None }
    }

    fn name(&self, options: &str) -> String {
        format!("virtio-user:{}{options}", self.path.display())
    }
}

const PROTOCOL: u64 = Protocol::MQ.bits() | Protocol::REPLY_ACK.bits() | Protocol::MTU.bits() | Protocol::STATUS.bits();

fn good() -> Change {
    Box::new(|_, _, _| {})
}

/// Back ends with few features, and with more than are used.
#[test]
fn a_back_end_is_asked_for_what_it_has() {
    use Request::*;
    let ring = [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_KICK];
    for (features, protocol, options) in [
        (feature::VERSION_1, 0, ""),
        (0, 0, ""),
        (FEATURES | PROTOCOL_FEATURES, 0, ""),
        (FEATURES | PROTOCOL_FEATURES, PROTOCOL, ""),
        (!feature::RING_PACKED, u64::MAX, "?queues=2"),
        (u64::MAX, u64::MAX, "?packed=on"),
    ] {
        let back = BackEnd::start(features, protocol, good());
        let ours = pool();
        let mut front = open(&ours, &back.name(options)).unwrap();
        let kind = if options.contains("packed") { "packed" } else { "split" };
        assert!(front.info().description.contains(kind));
        let queues = (front.rx(0).unwrap(), front.tx(0).unwrap());
        // Without ANY_LAYOUT, legacy devices need two descriptors for each buffer.
        let is_legacy = features & (feature::VERSION_1 | feature::ANY_LAYOUT) == 0;
        assert_eq!(ours.available(), BUFFERS - if is_legacy { 256 } else { 512 });
        drop(queues);
        assert_eq!(ours.available(), BUFFERS);
        drop(front);
        let requests = back.thread.join().unwrap();
        let count = |request| requests.iter().filter(|&&it| it == request).count();
        let rings = if options.contains("queues") { 4 } else { 2 };
        // The requests are sent twice: when the port starts, and when all its queues have stopped.
        for request in ring {
            assert_eq!(count(request), 2 * rings, "{request:?}");
        }
        assert_eq!(count(GET_VRING_BASE), 2 * rings, "{requests:?}");
        assert_eq!(count(SET_MEM_TABLE), 2);
        let has = |bit: u64| features & PROTOCOL_FEATURES != 0 && protocol & bit != 0;
        assert_eq!(count(SET_VRING_ENABLE) == 2 * rings, features & PROTOCOL_FEATURES != 0);
        assert_eq!(count(SET_STATUS) > 0, has(Protocol::STATUS.bits()));
        assert_eq!(count(NET_SET_MTU) == 2, has(Protocol::MTU.bits()));
        assert_eq!(count(GET_QUEUE_NUM), usize::from(has(Protocol::MQ.bits())));
    }
}

/// The features that a port's options request are negotiated if the back end has them, and no others.
#[test]
fn what_the_options_say_is_negotiated() {
    let always = feature::VERSION_1 | feature::ANY_LAYOUT | feature::ORDER_PLATFORM | PROTOCOL_FEATURES | feature::MTU;
    let (mergeable, suppresses) = (feature::MRG_RXBUF, feature::EVENT_IDX);
    let offloads = feature::CSUM
        | feature::GUEST_CSUM
        | feature::HOST_TSO4
        | feature::HOST_TSO6
        | feature::HOST_ECN
        | feature::HOST_USO;
    let segments =
        feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::GUEST_ECN | feature::GUEST_USO4 | feature::GUEST_USO6;
    for (options, expected) in [
        ("", mergeable | suppresses),
        ("?mergeable=off", suppresses),
        ("?in_order=on", mergeable | suppresses | feature::IN_ORDER),
        ("?packed=on", mergeable | feature::RING_PACKED),
        ("?packed=on&in_order=on&mergeable=off", feature::RING_PACKED | feature::IN_ORDER),
        ("?queues=2", mergeable | suppresses | feature::MQ),
        ("?offloads=on", mergeable | suppresses | offloads | segments),
        ("?offloads=on&mergeable=off", suppresses | offloads),
        ("?metadata=on", mergeable | suppresses | feature::GUEST_CSUM),
    ] {
        let back = BackEnd::start(u64::MAX, PROTOCOL, good());
        drop(open(&pool(), &back.name(options)).unwrap());
        let accepted = back.accepted.load(Relaxed);
        assert_eq!(accepted, always | expected, "{options}: {:#x}", accepted ^ (always | expected));
        back.thread.join().unwrap();
    }
}

/// Back ends that disconnect at any request do not block the next back end, which may have other features.
#[test]
fn a_back_end_that_fails_is_followed_by_the_next() {
    let (_folder, path) = socket();
    let ours = pool();
    let vhost = |options: &str| open(&pool(), &format!("vhost:{}{options}", path.display())).unwrap();
    let mut back = vhost("");
    let mut front = open(&ours, &format!("virtio-user:{}?packed=on", path.display())).unwrap();
    let (mut rx, mut tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
    let mut batch = Batch::new();
    for at in 0..=24 {
        let theirs = back.pool().clone();
        let (mut back_rx, mut back_tx) = (back.rx(0).unwrap(), back.tx(0).unwrap());
        cross(&ours, &mut tx, &mut back_rx, 64, 100);
        cross(&theirs, &mut back_tx, &mut rx, 64, 100);
        let kind = if at % 2 == 0 { "split" } else { "packed" };
        assert!(front.info().description.contains(kind), "{at}: {}", front.info().description);
        drop((back_rx, back_tx, back));
        until_link(&front, false);
        let change = move |n: usize, _: &Header, answer: &mut Answer| answer.close = n >= at;
        let failing = BackEnd::start_at(&path, FEATURES | PROTOCOL_FEATURES, PROTOCOL, Box::new(change));
        assert_eq!(failing.thread.join().unwrap().len(), at + 1);
        // No packet passes, whichever requests the failing back end has received.
        assert_eq!((rx.recv(&mut batch), tx.send(&mut batch)), (0, 0));
        std::fs::remove_file(&path).unwrap();
        back = vhost(if at % 2 == 0 { "?packed=on" } else { "" });
        until_link(&front, true);
    }
    drop((back, rx, tx, front, batch));
    assert_eq!(ours.available(), BUFFERS);
}

/// Each case is an error, whatever the request: no panic, no lost buffer, no remaining thread.
#[test]
fn a_back_end_that_breaks_the_protocol_is_an_error() {
    let all = BackEnd::start(FEATURES | PROTOCOL_FEATURES, PROTOCOL, good());
    drop(open(&pool(), &all.name("")).unwrap());
    // Leave out the requests at the port's end.
    let requests = all.thread.join().unwrap();
    let begun = requests.iter().rposition(|&request| request == Request::SET_STATUS).unwrap() - 2;
    type Violation = fn(&mut Answer);
    let violations: [(&str, Violation); 8] = [
        ("it closes the connection", |answer| answer.close = true),
        ("a reply to another request", |answer| answer.request += 1),
        ("a reply that is none", |answer| answer.flags = flag::VERSION),
        ("another version", |answer| answer.flags = flag::REPLY | 2),
        ("a descriptor", |answer| answer.descriptors = 1),
        ("a short reply", |answer| answer.payload.iter_mut().for_each(|payload| payload.truncate(7))),
        ("a long reply", |answer| answer.payload.iter_mut().for_each(|payload| payload.resize(4000, 0))),
        ("a refusal", |answer| {
            if let Some(payload) = &mut answer.payload {
                *payload = vec![1; 8];
            }
        }),
    ];
    for (what, violation) in violations {
        for (at, &request) in requests.iter().enumerate().take(begun) {
            let change = move |n: usize, _: &Header, answer: &mut Answer| {
                if n == at {
                    violation(answer);
                }
            };
            let back = BackEnd::start(FEATURES | PROTOCOL_FEATURES, PROTOCOL, Box::new(change));
            let ours = pool();
            let outcome = open(&ours, &back.name(""));
            // A request without a reply cannot be answered wrongly, and any number is valid.
            let is_number = [Request::GET_FEATURES, Request::GET_PROTOCOL_FEATURES, Request::GET_QUEUE_NUM];
            let is_harmless = what != "it closes the connection" && request == Request::SET_PROTOCOL_FEATURES
                || what == "a refusal" && (is_number.contains(&request) || request == Request::GET_STATUS);
            match &outcome {
                Err(error) => assert!(error.to_string().contains("back end") || is_harmless, "{what}, {at}: {error}"),
                Ok(_) => assert!(is_harmless, "{what}, {at}: request {request:?}"),
            }
            drop(outcome);
            back.thread.join().unwrap();
            assert_eq!(ours.available(), BUFFERS);
        }
    }
}

#[test]
fn impossible_counts_and_features_are_refused() {
    let answers = |request: Request, number: u64| -> Change {
        Box::new(move |_, header, answer| {
            if header.request == u32::from(request) {
                answer.payload = Some(number.as_bytes().to_vec());
            }
        })
    };
    for (request, number, why) in [
        (Request::GET_QUEUE_NUM, 0, "count of queue pairs"),
        (Request::GET_QUEUE_NUM, 1, "queues"),
        (Request::GET_STATUS, u64::from(status::DRIVER), "rejects features"),
        (Request::NET_SET_MTU, 1, "MTU of 1500\n  try: a smaller MTU here"),
        (Request::SET_MEM_TABLE, 1, "refuses request SET_MEM_TABLE"),
    ] {
        let back = BackEnd::start(FEATURES | PROTOCOL_FEATURES, PROTOCOL, answers(request, number));
        let error = refused(&pool(), &back.name("?queues=2"));
        assert!(error.with_hint().contains(why), "{request:?}: {}", error.with_hint());
    }
    let back = BackEnd::start(FEATURES | PROTOCOL_FEATURES, PROTOCOL, answers(Request::GET_QUEUE_NUM, u64::MAX));
    open(&pool(), &back.name("?queues=2")).unwrap();
}

/// The port tries to find another back end.
#[test]
fn a_back_end_that_speaks_unasked_is_ended() {
    let back = BackEnd::start(FEATURES | PROTOCOL_FEATURES, PROTOCOL, {
        Box::new(|_, header, answer| {
            if header.request == u32::from(Request::SET_VRING_ENABLE) {
                answer.payload = Some(vec![0; 9]);
            }
        })
    });
    assert!(open(&pool(), &back.name("")).is_err());
    drop(back);
    let (_folder, path) = socket();
    let listener = UnixListener::bind(&path).unwrap();
    let (theirs, ours) = (pool(), pool());
    let relay = std::thread::spawn({
        let path = path.clone();
        move || relay_then_speak(&listener, &path)
    });
    let back = open(&theirs, &format!("vhost:{}.real", path.display())).unwrap();
    let front = open(&ours, &format!("virtio-user:{}", path.display())).unwrap();
    until_link(&back, true);
    relay.join().unwrap();
    until_link(&front, false);
    until_link(&back, false);
}

/// Relays a session to the back end at `path`.real, then sends an unrequested message, and waits for the end.
fn relay_then_speak(listener: &UnixListener, path: &Path) {
    let front = accepted(listener);
    let real = PathBuf::from(format!("{}.real", path.display()));
    until(|| UnixStream::connect(&real).is_ok());
    let back = UnixStream::connect(&real).unwrap();
    back.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let (mut from_front, mut from_back) = (Connection::new(front), Connection::new(back));
    let mut enabled = 0;
    while enabled < 2 {
        let Some(message) = from_front.receive().unwrap() else { continue };
        let files: Vec<_> = message.descriptors.iter().map(AsFd::as_fd).collect();
        from_back.send(message.header, &[&message.payload], &files).unwrap();
        let flags = message.header.flags;
        let request = Request::try_from(message.header.request).unwrap();
        let asks = [
            Request::GET_FEATURES,
            Request::GET_PROTOCOL_FEATURES,
            Request::GET_QUEUE_NUM,
            Request::GET_STATUS,
            Request::GET_VRING_BASE,
        ];
        if asks.contains(&request) || flags & flag::NEED_REPLY != 0 {
            let reply = loop {
                if let Some(reply) = from_back.receive().unwrap() {
                    break reply;
                }
            };
            from_front.send(reply.header, &[&reply.payload], &[]).unwrap();
        }
        enabled += usize::from(request == Request::SET_STATUS && message.payload[0] & status::DRIVER_OK != 0) * 2;
    }
    from_front.send(Header { request: 9, flags: flag::VERSION, size: 0 }, &[&[1]], &[]).unwrap();
    while from_front.receive().is_ok() {}
}

#[test]
fn a_back_end_that_does_not_answer_is_given_up() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let link = Requests::new(ours, Duration::from_millis(5)).unwrap();
    assert_eq!(link.query(Request::GET_FEATURES, &[]), None);
    assert!(!link.is_alive() && !link.is_gone() && link.failure().unwrap().contains("does not answer"));
    assert_eq!(link.send_request(Request::SET_OWNER, &[], &[], false), None, "nothing more is sent");
    drop(theirs);
    // Data that the back end sends before its end is not read.
    until(|| {
        link.check_socket();
        link.is_gone()
    });
}

/// A back end that answers each request just in time still exceeds the limit for all of them together.
#[test]
fn a_back_end_that_is_always_slow_is_given_up() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let link = Requests::new(ours, Duration::from_millis(40)).unwrap();
    let back = std::thread::spawn(move || {
        let mut connection = Connection::new(theirs);
        while let Ok(message) = connection.receive() {
            let Some(Message { header, .. }) = message else { continue };
            std::thread::sleep(Duration::from_millis(20));
            let header = Header { flags: flag::VERSION | flag::REPLY, ..header };
            let _ = connection.send(header, &[&[0; 8]], &[]);
        }
    });
    assert!((0..100).any(|_| link.query(Request::GET_FEATURES, &[]).is_none()));
    assert!(!link.is_alive() && link.failure().unwrap().contains("does not answer"));
    drop(link);
    back.join().unwrap();
}

/// For several rounds, the back end reports several received packets by the last one (2.7.9, 2.8.9). Then it reports
/// more than possible.
#[test]
fn packets_reported_by_the_last_one_are_all_received() {
    const RING: usize = 64;
    const HEADER: usize = header::LEN;
    for (packed, vectors) in
        [(false, Vectors::Best), (false, Vectors::Scalar), (true, Vectors::Best), (true, Vectors::Scalar)]
    {
        let features = feature::VERSION_1 | PROTOCOL_FEATURES | feature::IN_ORDER;
        let back = BackEnd::start(features | if packed { feature::RING_PACKED } else { 0 }, PROTOCOL, good());
        let ours = pool();
        let name = back.name("?ring=64&packed=on&in_order=on&mtu=1902");
        let [mut front] = Options { vectors, ..options(&ours) }.open([&*name]).unwrap();
        let (mut rx, tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
        rx.recv(&mut Batch::new()); // its buffers are in the ring
        let rings = Mapping::of_peer(back.memory.recv_timeout(TIME_LIMIT).unwrap().pop().unwrap()).unwrap();
        // SAFETY: the front end uses the memory only by atomics and copies.
        let words = unsafe { rings.words(0, rings.len() / 8) };
        // The first ring is the receive ring; its first word is an address.
        let ring = words.iter().position(|word| word.load(Relaxed) != 0).unwrap() * 8;
        let used = ring + 4096;
        let report = |first: usize, last: usize, written: u32| {
            let id = last % RING;
            if packed {
                let flags = if (first / RING).is_multiple_of(2) { u64::from(AVAILABLE | USED) } else { 0 };
                let word = u64::from(written) | (id as u64) << 32 | flags << 48;
                rings.write(ring + first % RING * 16 + 8, &word.to_le_bytes());
            } else {
                let entry = [(id as u32).to_le_bytes(), written.to_le_bytes()];
                rings.write(used + 4 + first % RING * 8, entry.as_flattened());
                rings.write(used + 2, &(last as u16 + 1).to_le_bytes());
            }
        };
        let (mut batch, mut next) = (Batch::new(), 0);
        // The MTU allows a packet to fill a buffer.
        for count in [1, 5, 2, 40, 1, 1, 64, 33, 8, 7, 64, 1, 63].into_iter().cycle().take(60) {
            report(next, next + count - 1, (HEADER + 100) as u32);
            next += count;
            let mut lens = Vec::new();
            // A call receives at most one batch.
            until(|| {
                rx.recv(&mut batch);
                lens.extend(batch.packets().map(|packet| packet.len()));
                batch.clear();
                lens.len() == count
            });
            assert_eq!(lens.pop(), Some(100), "{packed}, {vectors:?}, {count}");
            assert!(lens.iter().all(|&len| len == front.info().max_frame), "{lens:?}");
        }
        assert_eq!(front.statistics().unwrap().drops.malformed, 0);
        if packed {
            report(next, 10_000, 100); // an id that no buffer has
            rings.write(ring + next % RING * 16 + 12, &[0xFF; 2]);
        } else {
            report(next, next + 1, 100);
            rings.write(used + 4 + next % RING * 8, &((next + 2) % RING).to_le_bytes());
        }
        assert_eq!((rx.recv(&mut batch), rx.recv(&mut batch)), (0, 0), "{packed}");
        assert_eq!(front.statistics().unwrap().drops.malformed, 1, "{packed}");
        drop((rx, tx, batch));
        assert_eq!(ours.available(), BUFFERS);
        drop(front);
        back.thread.join().unwrap();
    }
}

/// Fills all memory that a back end has, including the rings, with arbitrary words.
fn scribble(files: Vec<OwnedFd>, words: &[u64], region_too: bool) {
    for (n, file) in files.into_iter().enumerate() {
        let mapping = Mapping::of_peer(file).unwrap();
        let len = if n == 0 { if region_too { 64 * 256 } else { 0 } } else { mapping.len() / 8 };
        // SAFETY: meanwhile, this test's front end uses the memory only by atomics and copies.
        let memory = unsafe { mapping.words(0, len) };
        memory.iter().zip(words.iter().cycle()).for_each(|(word, value)| word.store(*value, Relaxed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any contents of both rings, each call ends, and no buffer is lost.
    #[test]
    fn any_ring_is_survived(
        words in prop::collection::vec(
            prop_oneof![
                any::<u64>(),
                (0..600u64, 0..3000u64).prop_map(|(id, len)| id | len << 32),
                (0..600u64, 0..3000u64, 0..2u64).prop_map(|(id, len, wrap)| len | id << 32 | wrap << 55 | wrap << 63),
            ],
            1..37,
        ),
        packed in any::<bool>(),
        mergeable in any::<bool>(),
        scalar in any::<bool>(),
        in_order in any::<bool>(),
        region_too in any::<bool>(),
    ) {
        let features = feature::VERSION_1 | PROTOCOL_FEATURES | if mergeable { feature::MRG_RXBUF } else { 0 }
            | if packed { feature::RING_PACKED } else { feature::EVENT_IDX }
            | if in_order { feature::IN_ORDER } else { 0 };
        let back = BackEnd::start(features, PROTOCOL, good());
        let ours = pool();
        let name = back.name("?ring=64&packed=on&in_order=on");
        let vectors = if scalar { Vectors::Scalar } else { Vectors::Best };
        let [mut front] = Options { vectors, ..options(&ours) }.open([&*name]).unwrap();
        let files = back.memory.recv_timeout(TIME_LIMIT).unwrap();
        let (mut rx, mut tx) = (front.rx(0).unwrap(), front.tx(0).unwrap());
        let (mut batch, mut back_batch) = (Batch::new(), Batch::new());
        batch.alloc(&ours, 32, 60);
        tx.send(&mut batch);
        scribble(files, &words, region_too);
        for _ in 0..6 {
            rx.recv(&mut back_batch);
            for packet in back_batch.packets() {
                prop_assert!((1..=1518).contains(&packet.len()));
            }
            back_batch.clear();
            batch.alloc(&ours, 8, 60);
            tx.send(&mut batch);
            batch.clear();
        }
        drop((rx, tx, batch, back_batch));
        prop_assert_eq!(ours.available(), BUFFERS);
        drop(front);
        back.thread.join().unwrap();
    }
}
