//! Clusters: flow hashes, and ports distributed to several consumers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use linerate::filter::FlowKey;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Device, Port, Receive, RxQueue, SoftwarePort, TxQueue};
use linerate::share::{ClusterRequest, OpenRequest, ServedPort, Server};
use linerate::{Batch, Options};
use linerate_testkit::Deadline;
use proptest::prelude::*;
use proptest::test_runner::Config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const KEYS: [FlowKey; 3] = [FlowKey::Flow, FlowKey::Inner, FlowKey::Addresses];

/// A packet's headers.
#[derive(Clone, Debug)]
struct Headers {
    tags: usize,
    is_v6: bool,
    extensions: usize,
    protocol: u8,
    addresses: [[u8; 16]; 2],
    ports: [u16; 2],
    /// The offset of a fragment in units of 8 bytes; `None` if the packet is not fragmented.
    fragment: Option<u16>,
}

impl Headers {
    /// Returns headers of UDP over IPv4 from 10.0.0.1 to 10.0.0.2.
    fn udp(from: u16, to: u16) -> Headers {
        let address = |last| [10, 0, 0, last, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let addresses = [address(1), address(2)];
        Headers { tags: 0, is_v6: false, extensions: 0, protocol: 17, addresses, ports: [from, to], fragment: None }
    }

    /// Returns the headers of the opposite direction.
    fn back(&self) -> Headers {
        let ([a, b], [c, d]) = (self.addresses, self.ports);
        Headers { addresses: [b, a], ports: [d, c], ..self.clone() }
    }

    /// Returns the packet without an Ethernet header.
    fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let mut inside = Vec::new();
        let is_first = self.fragment.unwrap_or(0) == 0;
        if is_first && matches!(self.protocol, 6 | 17 | 132) {
            self.ports.iter().for_each(|port| inside.extend(port.to_be_bytes()));
            inside.extend([0; 4]);
        }
        inside.extend(payload);
        let [from, to] = &self.addresses;
        if !self.is_v6 {
            let flags = self.fragment.map_or(0x4000, |offset| 0x2000 | offset).to_be_bytes();
            let mut packet = vec![0x45, 0, 0, 0, 0, 7, flags[0], flags[1], 64, self.protocol, 0, 0];
            packet.extend([&from[..4], &to[..4], &inside].concat());
            return packet;
        }
        let mut kinds = vec![0, 43, 60, 51][..self.extensions].to_vec();
        kinds.extend(self.fragment.map(|_| 44));
        kinds.push(self.protocol);
        let mut packet = [&[0x60, 0, 0, 0, 0, 0, kinds[0], 64], &from[..], &to[..]].concat();
        for pair in kinds.windows(2) {
            let offset = (self.fragment.unwrap_or(0) << 3 | 1).to_be_bytes();
            packet.extend(match pair[0] {
                44 => vec![pair[1], 0, offset[0], offset[1], 0, 0, 0, 7],
                51 => [&[pair[1], 4], &[0; 22][..]].concat(),
                _ => [&[pair[1], 1], &[0; 14][..]].concat(),
            });
        }
        packet.extend(inside);
        packet
    }

    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let ethertype: [u8; 2] = if self.is_v6 { [0x86, 0xDD] } else { [0x08, 0x00] };
        let tags: [&[u8]; 3] = [&[], &[0x81, 0, 0, 5], &[0x88, 0xA8, 0, 9, 0x81, 0, 0, 5]];
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tags[self.tags], &ethertype, &self.packet(payload)].concat()
    }
}

fn headers() -> impl Strategy<Value = Headers> {
    let protocol = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), Just(58), Just(50)];
    let ends = (any::<[[u8; 16]; 2]>(), any::<[u16; 2]>());
    (0..3usize, any::<bool>(), 0..5usize, protocol, ends).prop_map(
        |(tags, is_v6, extensions, protocol, (addresses, ports))| Headers {
            tags,
            is_v6,
            extensions,
            protocol,
            addresses,
            ports,
            fragment: None,
        },
    )
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn both_directions_have_one_hash(there in headers(), fragment in proptest::option::of(0..9u16), payload: [u8; 40]) {
        let there = Headers { fragment, ..there };
        for key in KEYS {
            prop_assert_eq!(key.hash(&there.frame(&payload)), key.hash(&there.back().frame(&[])), "{:?}", key);
        }
    }

    #[test]
    fn tags_and_extension_headers_do_not_matter(headers in headers(), fragment in proptest::option::of(0..9u16)) {
        let headers = Headers { fragment, ..headers };
        let bare = Headers { tags: 0, extensions: 0, ..headers.clone() };
        for key in KEYS {
            prop_assert_eq!(key.hash(&headers.frame(&[1; 20])), key.hash(&bare.frame(&[2; 20])));
        }
    }

    /// Only the first fragment contains the ports, so all fragments get the hash of the addresses.
    #[test]
    fn fragments_of_a_packet_have_one_hash(headers in headers(), offset in 1..9000u16 >> 3, payload: [u8; 40]) {
        let hash = |key: FlowKey, fragment| key.hash(&Headers { fragment, ..headers.clone() }.frame(&payload));
        for key in KEYS {
            prop_assert_eq!(hash(key, Some(0)), hash(key, Some(offset)));
            prop_assert_eq!(hash(key, Some(0)), hash(FlowKey::Addresses, None));
        }
        let has_ports = matches!(headers.protocol, 6 | 17 | 132);
        prop_assert_eq!(hash(FlowKey::Flow, None) == hash(FlowKey::Addresses, None), !has_ports);
    }

    /// Any bytes have a hash, wherever a frame is truncated.
    #[test]
    fn cut_frames_have_a_hash(headers in headers(), mut noise: Vec<u8>, cut in 0..200usize) {
        let frame = headers.frame(&[0x45; 60]);
        noise.splice(0..0, frame[..cut.min(frame.len())].iter().copied());
        KEYS.iter().for_each(|key| assert_eq!(key.hash(&noise), key.hash(&noise.clone())));
        let at = frame.len() - 60 - if matches!(headers.protocol, 6 | 17 | 132) { 8 } else { 0 };
        // Truncated before the ports, and before the addresses.
        prop_assert_eq!(FlowKey::Flow.hash(&frame[..at]), FlowKey::Addresses.hash(&frame));
        prop_assert_eq!(FlowKey::Flow.hash(&frame[..at.min(30)]), FlowKey::Flow.hash(&[&frame[..12], &[0x08, 0x06, 0, 1]].concat()));
    }
}

#[test]
fn tunnels_are_looked_into_where_that_is_asked_for() {
    let inner = Headers::udp(1000, 53);
    let v6 = Headers { is_v6: true, ..inner.clone() };
    let udp = |port: u16, header: &[u8], inside: &[u8]| {
        // The outer source port varies.
        let outer = Headers { addresses: inner.back().addresses, ..Headers::udp(inside.len() as u16 ^ 0x4321, port) };
        outer.frame(&[header, inside].concat())
    };
    let over = |protocol: u8, header: &[u8], inside: &[u8]| {
        let addresses = [[9; 16], [8; 16]];
        Headers { protocol, addresses, ..inner.clone() }.frame(&[header, inside].concat())
    };
    type Tunnel<'a> = Box<dyn Fn(&Headers) -> Vec<u8> + 'a>;
    let tunnels: [(&str, Tunnel<'_>); 7] = [
        ("VXLAN", Box::new(|inside| udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &inside.frame(&[])))),
        (
            "GRE",
            Box::new(|inside| over(47, &[0xB0, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &inside.packet(&[]))),
        ),
        ("GRE with Ethernet", Box::new(|inside| over(47, &[0x20, 0, 0x65, 0x58, 1, 2, 3, 4], &inside.frame(&[])))),
        ("IP in IP", Box::new(|inside| over(4, &[], &inside.packet(&[])))),
        ("GTP-U", Box::new(|inside| udp(2152, &[0x30, 255, 0, 0, 0, 0, 0, 1], &inside.packet(&[])))),
        (
            "GTP-U with an extension",
            Box::new(|inside| {
                udp(2152, &[0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 0, 0], &inside.packet(&[]))
            }),
        ),
        (
            "IP in IP in GRE",
            Box::new(|inside| {
                let ip = Headers { protocol: 4, ..inner.clone() }.packet(&inside.packet(&[]));
                over(47, &[0, 0, 8, 0], &ip)
            }),
        ),
    ];
    let hash = |headers: &Headers| FlowKey::Flow.hash(&headers.frame(&[]));
    for (name, tunnel) in &tunnels {
        for (inside, other) in [(inner.clone(), Headers::udp(1001, 53)), (inner.back(), Headers::udp(53, 1002))] {
            assert_eq!(FlowKey::Inner.hash(&tunnel(&inside)), hash(&inner), "{name}");
            assert_ne!(FlowKey::Inner.hash(&tunnel(&other)), hash(&inner), "{name}");
            // `Flow` uses the outer headers.
            assert_eq!(FlowKey::Flow.hash(&tunnel(&inside)), FlowKey::Flow.hash(&tunnel(&other)), "{name}");
        }
    }
    // IPv6 inside IPv4.
    assert_eq!(FlowKey::Inner.hash(&over(41, &[], &v6.packet(&[]))), hash(&v6));
    // A fragment of a tunnel packet, a tunnel with unknown contents, and UDP to a tunnel's port without its header.
    let cut = Headers { fragment: Some(0), protocol: 4, ..inner.clone() };
    assert_eq!(FlowKey::Inner.hash(&cut.frame(&inner.back().packet(&[]))), FlowKey::Addresses.hash(&cut.frame(&[])));
    for outer in
        [over(47, &[0, 0, 0x88, 0x47], &[0; 40]), udp(4789, &[0; 8], &[0; 60]), udp(2152, &[0x32; 8], &[0; 60])]
    {
        assert_eq!(FlowKey::Inner.hash(&outer), FlowKey::Flow.hash(&outer));
    }
    // ARP inside VXLAN.
    let arp = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6][..], &[0; 28]].concat();
    assert_eq!(FlowKey::Inner.hash(&udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &arp)), FlowKey::Flow.hash(&arp));
}

#[test]
fn other_frames_are_hashed_by_their_ethernet_addresses() {
    let frame =
        |from: u8, to: u8, kind: u8| [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, kind][..], &[0; 46]].concat();
    for key in KEYS {
        assert_eq!(key.hash(&frame(1, 2, 0x47)), key.hash(&frame(2, 1, 0xCC)));
        assert_ne!(key.hash(&frame(1, 2, 0x47)), key.hash(&frame(1, 3, 0x47)));
        assert_eq!(key.hash(&[1; 11]), 0);
    }
}

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, pages, ..RegionOptions::default() }).unwrap())
}

/// A pipe, one end of which is distributed to a cluster.
struct Bench {
    pool: Arc<Pool>,
    port: Port,
    sender: TxQueue,
    _sending: Port,
}

impl Bench {
    fn new(name: &str, options: &str) -> Bench {
        let pool = pool(4096);
        let (ring, interrupts) = (Some(64), Some(Duration::ZERO));
        let opening = Options { pool: Some(pool.clone()), ring, interrupts, local: true, ..Options::default() };
        let [port, mut sending] = opening.open([&format!("{name}{{1?{options}"), &format!("{name}}}1")]).unwrap();
        let sender = sending.tx(0).unwrap();
        Bench { pool, port, sender, _sending: sending }
    }

    fn consumers<const N: usize>(&mut self) -> [RxQueue; N] {
        std::array::from_fn(|n| self.port.rx(n as u16).unwrap())
    }

    /// Sends frames, which must fit in the pipe.
    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut batch = Batch::with_capacity(4 * frames.len());
        frames.iter().for_each(|frame| assert!(batch.push(&self.pool, frame)));
        self.sender.send(&mut batch);
        assert!(batch.is_empty());
    }

    fn drops(&self) -> u64 {
        self.port.statistics().unwrap().drops.no_descriptor
    }
}

/// Returns a numbered frame of a UDP flow, padded to `len` bytes.
fn numbered(flow: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = Headers::udp(flow, 53).frame(&number.to_be_bytes());
    frame.resize(len.max(60), 0);
    frame
}

/// Returns a frame's flow and number.
fn numbers(frame: &[u8]) -> (u16, u32) {
    (u16::from_be_bytes([frame[34], frame[35]]), u32::from_be_bytes(*frame[42..].first_chunk().unwrap()))
}

/// Receives until the queue is empty; returns flows and numbers.
fn receive(rx: &mut RxQueue) -> Vec<(u16, u32)> {
    let (mut batch, mut all) = (Batch::new(), Vec::new());
    while rx.recv(&mut batch) > 0 {
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            all.push(numbers(&bytes));
        }
        batch.clear();
    }
    all
}

/// Returns which of `consumers` gets a flow.
fn consumer(flow: u16, consumers: u64) -> usize {
    ((u64::from(FlowKey::Flow.hash(&numbered(flow, 0, 60))) * consumers) >> 32) as usize
}

#[test]
fn consumers_get_every_frame_once_and_in_the_order_of_its_flow() {
    // Frames of one slot and of three slots.
    for (len, name) in [(60, "one"), (5000, "three")] {
        let mut bench = Bench::new(name, "cluster=4&by=flow");
        assert_eq!(bench.port.info().rx_queues, 4);
        assert!(bench.port.info().description.contains("distributed to 4 by flow"));
        let mut consumers = bench.consumers::<4>();
        let mut next = HashMap::<u16, u32>::new();
        for round in 0..50u32 {
            let frames: Vec<_> =
                (0..16).map(|n| numbered((round as u16 * 7 + n) % 40, round * 16 + u32::from(n), len)).collect();
            bench.send(&frames);
            // A different consumer is first in each round.
            for n in 0..4 {
                let number = (round as usize + n) % 4;
                for (flow, sequence) in receive(&mut consumers[number]) {
                    assert_eq!(consumer(flow, 4), number);
                    assert!(next.insert(flow, sequence + 1).is_none_or(|next| next <= sequence), "in order");
                }
            }
        }
        assert_eq!(bench.drops(), 0);
        let slots = if len > 60 { 3 } else { 1 };
        assert_eq!(bench.port.queue_statistics().rx_slots.iter().sum::<u64>(), 50 * 16 * slots);
        assert!(bench.port.queue_statistics().rx_slots.iter().all(|&slots| slots > 0));
        let pool = bench.pool.clone();
        drop((consumers, bench));
        assert_eq!(pool.available(), 4096);
    }
}

#[test]
fn threads_get_every_frame_once_and_in_order() {
    const FRAMES: usize = 200_000;
    let mut bench = Bench::new("threads", "cluster=3&by=flow&ring=512");
    let consumers = bench.consumers::<3>();
    let received = AtomicUsize::new(0);
    let all: Vec<Vec<(u16, u32)>> = std::thread::scope(|scope| {
        let consume = |mut rx: RxQueue| {
            let received = &received;
            scope.spawn(move || {
                let mut all = Vec::new();
                let deadline = Deadline::begin();
                while received.load(Ordering::Relaxed) < FRAMES {
                    deadline
                        .check(|| format!("{} of {FRAMES} packets were received", received.load(Ordering::Relaxed)));
                    let mut some = receive(&mut rx);
                    received.fetch_add(some.len(), Ordering::Relaxed);
                    if some.is_empty() {
                        std::thread::yield_now();
                    }
                    all.append(&mut some);
                }
                (all, rx)
            })
        };
        let threads = consumers.map(consume);
        let mut batch = Batch::new();
        let mut sent = 0;
        let deadline = Deadline::begin();
        while sent < FRAMES {
            deadline.check(|| format!("{sent} of {FRAMES} packets were sent"));
            // Limit the packets in flight, so that no consumer's ring is full.
            let deadline = Deadline::begin();
            while sent - received.load(Ordering::Relaxed) > 256 {
                deadline.check(|| format!("of {sent} packets {} were received", received.load(Ordering::Relaxed)));
                std::thread::yield_now();
            }
            let count = (FRAMES - sent).min(32);
            (sent..sent + count)
                .for_each(|n| assert!(batch.push(&bench.pool, &numbered((n % 50) as u16, n as u32, 60))));
            sent += count;
            let deadline = Deadline::begin();
            while !batch.is_empty() {
                deadline.check(|| format!("{} packets cannot be sent", batch.len()));
                bench.sender.send(&mut batch);
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap().0).collect()
    });
    assert_eq!((all.iter().map(Vec::len).sum::<usize>(), bench.drops()), (FRAMES, 0));
    for (number, all) in all.iter().enumerate() {
        let mut next = HashMap::new();
        for &(flow, sequence) in all {
            assert_eq!((consumer(flow, 3), sequence % 50), (number, u32::from(flow)));
            assert_eq!(sequence, next.insert(flow, sequence + 50).unwrap_or(u32::from(flow)), "each one in order");
        }
    }
}

#[test]
fn a_consumer_that_does_not_receive_drops_its_own() {
    let mut bench = Bench::new("slow", "cluster=2");
    let [mut slow, mut quick] = bench.consumers::<2>();
    let mut counts = [0, 0];
    for round in 0..100 {
        let frames: Vec<_> = (0..32).map(|n| numbered(n, round * 32 + u32::from(n), 60)).collect();
        frames.iter().for_each(|frame| counts[consumer(numbers(frame).0, 2)] += 1);
        bench.send(&frames);
        assert_eq!(receive(&mut quick).len(), (0..32).filter(|n| consumer(*n, 2) == 1).count());
    }
    assert!(counts.iter().all(|&count| count > 64));
    // The slow consumer's ring has 64 slots.
    assert_eq!(bench.drops(), counts[0] - 64);
    let queues = bench.port.queue_statistics();
    assert_eq!((queues.rx_no_descriptor, queues.rx_slots), (vec![counts[0] - 64, 0], vec![0, counts[1]]));
    let received = |bench: &Bench| bench.port.statistics().unwrap().rx_packets;
    assert_eq!(received(&bench), counts[1]);
    assert_eq!((slow.buffers(), receive(&mut slow).len(), slow.buffers()), (64, 64, 0));
    assert_eq!(received(&bench) + bench.drops(), counts[0] + counts[1], "all that came");
}

#[test]
fn a_consumer_that_is_gone_drops_its_own_until_another_takes_its_place() {
    let mut bench = Bench::new("gone", "cluster=2");
    let [first, mut second] = bench.consumers::<2>();
    let frames: Vec<_> = (0..32).map(|n| numbered(n, n.into(), 60)).collect();
    let of_second = (0..32).filter(|n| consumer(*n, 2) == 1).count();
    assert!(of_second > 0 && of_second < 32);
    bench.send(&frames);
    assert_eq!(receive(&mut second).len(), of_second);
    assert!(bench.port.rx(0).map(drop).is_err_and(|error| error.kind() == linerate::ErrorKind::QueueTaken));
    assert!(bench.port.rx(2).map(drop).is_err_and(|error| error.kind() == linerate::ErrorKind::NotFound));
    assert!(bench.port.reset().is_err_and(|error| error.kind() == linerate::ErrorKind::InUse));
    // Packets that wait for a stopped consumer are dropped, and so are later ones.
    first.stop().unwrap();
    assert_eq!(bench.drops(), 32 - of_second as u64);
    bench.send(&frames);
    assert_eq!(receive(&mut second).len(), of_second);
    assert_eq!(bench.drops(), 2 * (32 - of_second as u64));
    let mut first = bench.port.rx(0).unwrap();
    bench.send(&frames);
    assert_eq!(receive(&mut first).len(), 32 - of_second);
    assert_eq!(bench.drops(), 2 * (32 - of_second as u64));
    // Without consumers the port can be reset, and then works with new ones.
    drop((first, second));
    bench.port.reset().unwrap();
    let mut consumers = bench.consumers::<2>();
    bench.send(&frames);
    assert_eq!(
        consumers.iter_mut().flat_map(receive).count() + bench.drops() as usize - 2 * (32 - of_second),
        32 + of_second
    );
}

#[test]
fn packets_in_turn_are_spread_evenly() {
    let mut bench = Bench::new("turn", "cluster=4&by=turn");
    let mut consumers = bench.consumers::<4>();
    bench.send(&(0..40).map(|n| numbered(7, n, 60)).collect::<Vec<_>>());
    let each: Vec<_> = consumers.iter_mut().map(receive).collect();
    assert!(each.iter().all(|all| all.len() == 10 && all.is_sorted()));
}

/// Consumers must return free buffers: otherwise their batches together could keep all of them.
#[test]
fn many_consumers_leave_buffers_to_the_port() {
    let mut bench = Bench::new("many", "cluster=32&by=turn");
    let mut consumers = bench.consumers::<32>().map(|rx| (rx, Batch::new()));
    for round in 0..1000 {
        bench.send(&vec![numbered(1, round, 60); 16]);
        let received = consumers.iter_mut().map(|(rx, batch)| {
            let count = rx.recv(batch);
            batch.clear();
            count
        });
        assert_eq!(received.sum::<usize>(), 16, "round {round}");
    }
}

#[test]
fn headers_in_several_slots_are_found() {
    let mut bench = Bench::new("parts", "cluster=2");
    let mut consumers = bench.consumers::<2>();
    for flow in 0..16 {
        // Only 20 bytes of the frame are in the first slot.
        let front = bench.pool.region().room() - 20;
        let mut batch = Batch::new();
        assert!(batch.push(&bench.pool, &[vec![0; front], numbered(flow, 0, 60)].concat()));
        batch.packets().next().unwrap().pull(front).unwrap();
        assert_eq!(batch.len(), 2);
        bench.sender.send(&mut batch);
        assert_eq!(receive(&mut consumers[consumer(flow, 2)]), [(flow, 0)]);
    }
}

/// Returns whether the queue's descriptor is readable.
fn is_readable(rx: &mut RxQueue) -> bool {
    let event = rx.arm().expect("it can sleep");
    poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn sleeping_consumers_are_woken() {
    let mut bench = Bench::new("sleep", "cluster=2");
    let [mut a, mut b] = bench.consumers::<2>();
    let (for_a, for_b) = ((0..).find(|n| consumer(*n, 2) == 0).unwrap(), (0..).find(|n| consumer(*n, 2) == 1).unwrap());
    assert!(!is_readable(&mut a) && !is_readable(&mut b));
    // The port wakes both consumers: either may distribute its packets.
    bench.send(&[numbered(for_a, 1, 60)]);
    assert!(is_readable(&mut a) && is_readable(&mut b));
    b.disarm();
    assert_eq!(receive(&mut b), []);
    // `b` is awake and has distributed the packet, which wakes `a`.
    assert!(is_readable(&mut a));
    a.disarm();
    assert_eq!(receive(&mut a), [(for_a, 1)]);
    // `a` continues to sleep while `b` is woken and works; then the port itself wakes `a`.
    let of_a = a.arm().unwrap().try_clone_to_owned().unwrap();
    assert!(!is_readable(&mut b));
    b.disarm();
    bench.send(&[numbered(for_b, 2, 60)]);
    assert_eq!(poll(&mut [PollFd::new(&of_a, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
    a.disarm();
    assert_eq!((receive(&mut a), receive(&mut b)), (vec![], vec![(for_b, 2)]));
    // A consumer that is dropped while it sleeps does not wake the others.
    assert!(!is_readable(&mut a) && !is_readable(&mut b));
    drop(b);
    assert!(!is_readable(&mut a));
    bench.send(&[numbered(for_a, 3, 60)]);
    assert!(is_readable(&mut a));
}

#[test]
fn wrong_options_are_refused() {
    let error = |name: &str| linerate::open([name]).map(drop).unwrap_err().with_hint();
    for count in ["0", "65", "x", ""] {
        let message = error(&format!("null:?cluster={count}"));
        assert!(
            message.contains(&format!("cluster={count}")) && message.contains("a number from 1 to 64"),
            "{message}"
        );
    }
    let message = error("sim:0?cluster=2&by=x");
    assert!(message.contains("by=x: it must be one of flow, inner, addresses, turn"), "{message}");
    let message = error("sim:0?by=flow");
    assert!(message.contains("add cluster=N"), "{message}");
    assert!(error("sim:0?cluster=2&clusters=2").contains("no such option"), "an option of neither");
    // Rings of 64 slots for 64 consumers need half of 8,192 buffers.
    let options = |buffers| Options { pool: Some(pool(buffers)), ..Options::default() };
    let message = options(4096).open(["null:?cluster=64"]).map(drop).unwrap_err().with_hint();
    assert!(message.contains("8192"), "{message}");
    let [port] = options(8192).open(["null:?cluster=64"]).unwrap();
    assert_eq!((port.info().rx_queues, port.info().ring), (64, 64));
}

#[test]
fn cards_and_capture_files_are_handed_out() {
    let [mut port] = linerate::open(["sim:cluster?cluster=3&by=flow&count=3000&flows=64&queues=2"]).unwrap();
    let mut consumers: Vec<RxQueue> = (0..3).map(|n| port.rx(n).unwrap()).collect();
    let mut batch = Batch::new();
    let mut counts = [0; 3];
    let deadline = Deadline::begin();
    while counts.iter().sum::<usize>() < 3000 {
        deadline.check(|| format!("of 3000 packets {counts:?} were received, {:?}", port.statistics()));
        for (rx, count) in consumers.iter_mut().zip(&mut counts) {
            *count += rx.recv(&mut batch);
            batch.clear();
        }
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
    assert_eq!((port.statistics().unwrap().rx_packets, port.statistics().unwrap().drops.no_descriptor), (3000, 0));

    let file = tempfile::NamedTempFile::new().unwrap();
    let [mut write] = linerate::open([&format!("pcap:{}?write", file.path().display())]).unwrap();
    let mut tx = write.tx(0).unwrap();
    (0..20).for_each(|n| assert!(batch.push(write.pool(), &numbered(n, 0, 60))));
    tx.send(&mut batch);
    drop((tx, write));
    let [mut port] = linerate::open([&format!("pcap:{}?cluster=2", file.path().display())]).unwrap();
    let (mut a, mut b) = (port.rx(0).unwrap(), port.rx(1).unwrap());
    let of_a = receive(&mut a).len();
    assert!(!port.is_exhausted(), "packets wait for the other consumer");
    assert_eq!((of_a + receive(&mut b).len(), port.is_exhausted()), (20, true));
}

/// A server, and a sender on a port of its switch.
struct Served {
    folder: tempfile::TempDir,
    /// The switch's name; each test has its own, since tests of a process share switches.
    switch: &'static str,
    pool: Arc<Pool>,
    sender: Box<dyn linerate::port::Transmit>,
    _server: Server,
    _sending: SoftwarePort<ServedPort>,
}

impl Served {
    fn new(switch: &'static str) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let mut server = linerate::server();
        server.listen(&folder.path().join("any"), None, 0o600, None).unwrap();
        let mut sending = open(folder.path(), &format!("{switch}:sender"), None).unwrap();
        let (pool, sender) = (sending.pool().clone(), sending.tx(0).unwrap());
        Served { folder, switch, pool, sender, _server: server, _sending: sending }
    }

    fn client(&self, shares: u16, by: &str) -> linerate::Result<SoftwarePort<ServedPort>> {
        self.open("a", Some(ClusterRequest { shares, by: by.to_string() }))
    }

    fn open(&self, port: &str, cluster: Option<ClusterRequest>) -> linerate::Result<SoftwarePort<ServedPort>> {
        open(self.folder.path(), &format!("{}:{port}", self.switch), cluster)
    }

    fn send(&mut self, flows: impl IntoIterator<Item = u16>, number: u32) {
        let mut batch = Batch::with_capacity(64);
        flows.into_iter().for_each(|flow| assert!(batch.push(&self.pool, &numbered(flow, number, 60))));
        let deadline = Deadline::begin();
        while !batch.is_empty() {
            deadline.check(|| format!("{} packets cannot be sent", batch.len()));
            self.sender.send(&mut batch);
        }
    }
}

fn open(
    folder: &std::path::Path,
    name: &str,
    cluster: Option<ClusterRequest>,
) -> linerate::Result<SoftwarePort<ServedPort>> {
    let wanted = OpenRequest { name: name.to_string(), cluster, ..OpenRequest::default() };
    let config = Options { ring: Some(64), ..Options::default() }.of_port(name, pool(512)).unwrap();
    ServedPort::find(folder, wanted, config).map(|port| port.expect("it is served"))
}

/// Receives `count` packets; returns flows and numbers.
fn receive_from(rx: &mut dyn Receive, count: usize) -> Vec<(u16, u32)> {
    let mut all = Vec::new();
    let deadline = Deadline::begin();
    while all.len() < count {
        deadline.check(|| format!("{} of {count} packets were received", all.len()));
        all.extend(receive_some(rx));
    }
    all
}

fn receive_some(rx: &mut dyn Receive) -> Vec<(u16, u32)> {
    let mut batch = Batch::new();
    rx.recv(&mut batch);
    std::thread::yield_now();
    batch.packets().map(|packet| numbers(&packet)).collect()
}

/// Returns the flows of consumer `number` of two.
fn flows_of(number: usize) -> impl Iterator<Item = u16> {
    (0..32).filter(move |flow| consumer(*flow, 2) == number)
}

#[test]
fn clients_of_a_server_share_a_port() {
    let mut served = Served::new("valeshare");
    let [mut a, mut b] = [0, 1].map(|_| served.client(2, "flow").unwrap());
    assert_eq!((a.info().rx_queues, a.info().tx_queues), (1, 1));
    let (mut rx_a, mut rx_b) = (a.rx(0).unwrap(), b.rx(0).unwrap());
    let counts = [0, 1].map(|number| flows_of(number).count());
    for round in 0..200 {
        served.send(0..32, round);
        // The other client does not receive, so its packets are dropped.
        let received = receive_from(&mut *rx_a, counts[0]);
        assert_eq!(received, flows_of(0).map(|flow| (flow, round)).collect::<Vec<_>>());
    }
    let (mut received, mut last) = (0, None);
    let deadline = Deadline::begin();
    let dropped = loop {
        deadline.check(|| format!("{received} of {} packets were received, {:?}", 200 * counts[1], b.statistics()));
        for (flow, round) in receive_some(&mut *rx_b) {
            assert!(consumer(flow, 2) == 1 && last.is_none_or(|last| last <= round));
            (last, received) = (Some(round), received + 1);
        }
        let dropped = b.statistics().unwrap().drops.no_descriptor;
        if received + dropped >= 200 * counts[1] as u64 {
            break dropped;
        }
    };
    assert_eq!(received + dropped, 200 * counts[1] as u64);
    assert!(dropped > 0 && received >= 64);
    assert_eq!(a.statistics().unwrap().drops.no_descriptor, 0);
    // Each client may send to the other ports of the switch.
    for port in [&mut a, &mut b] {
        let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
        assert!(batch.push(port.pool(), &numbered(1, 2, 60)));
        assert_eq!(tx.send(&mut batch), 1);
    }
    // When a client ends, the packets of its share are dropped until another client takes it over.
    drop((rx_b, b));
    served.send(0..32, 200);
    assert_eq!(receive_from(&mut *rx_a, counts[0]).len(), counts[0]);
    let mut c = served.client(2, "flow").unwrap();
    let mut rx_c = c.rx(0).unwrap();
    served.send(0..32, 201);
    assert_eq!(receive_from(&mut *rx_a, counts[0]).len(), counts[0]);
    assert_eq!(receive_from(&mut *rx_c, counts[1]), flows_of(1).map(|flow| (flow, 201)).collect::<Vec<_>>());
}

#[test]
fn clients_that_ask_for_another_cluster_are_refused() {
    let served = Served::new("valerefuse");
    let message = |result: linerate::Result<SoftwarePort<ServedPort>>| result.map(drop).unwrap_err().with_hint();
    for (shares, by) in [(0, "flow"), (65, "flow"), (2, "x"), (2, "flow&flow=all")] {
        assert!(message(served.client(shares, by)).contains(&format!("distributed to {shares} clients by {by:?}")));
    }
    let mut ports = [0, 1, 2].map(|_| served.client(2, "flow").unwrap());
    for (shares, by) in [(3, "flow"), (2, "inner")] {
        let message = message(served.client(shares, by));
        assert!(message.contains("valerefuse:a: it is distributed with cluster=2&by=flow"), "{message}");
    }
    let plain = message(served.open("a", None));
    assert!(plain.contains("is distributed with cluster=2&by=flow"), "{plain}");
    let _queues = [ports[0].rx(0).unwrap(), ports[1].rx(0).unwrap()];
    let full = ports[2].rx(0).map(drop).unwrap_err().with_hint();
    assert!(full.contains("valerefuse:a: all 2 queues are taken, with cluster=2"), "{full}");
    let _whole = served.open("b", None).unwrap();
    let cluster = || Some(ClusterRequest { shares: 2, by: "flow".to_string() });
    assert!(
        message(served.open("b", cluster()))
            .contains("valerefuse:b: it is open, and not distributed to several clients")
    );
    assert!(message(open(served.folder.path(), "x{1", cluster())).contains("pipes, monitors"));
}
