//! VirtIO devices that hang or write malformed data. A device is emulated by memory, whose contents each test sets.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_virtio::{
    COMMON, CTRL_RX, CTRL_VLAN, CTRL_VQ, DEVICE, HASH_REPORT, HEADER, MERGEABLE, MQ, Memory, NOTF_COAL, PACKED, Queue,
    RING_RESET, RSS, SPLIT, set_buffers, words,
};
use linerate::memory::{Mapping, PageSize, Pages, Pool, Region, RegionOptions};
use linerate::metadata::{Checksum, Hash, HashFields, Metadata};
use linerate::nic::virtio::Virtio;
use linerate::pci::IoPorts;
use linerate::port::{Device, Feature, Link, MacAddress, Receive, Rss, Support, Vectors};
use linerate::{Batch, Error, ErrorKind, Options};
use linerate_testkit::Deadline;
use proptest::prelude::*;

#[path = "../benches/fake_virtio/mod.rs"]
mod fake_virtio;

fn pool() -> Arc<Pool> {
    pool_of(1024, 2048)
}

fn pool_of(buffers: usize, buffer_size: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size, pages, numa_node: None }).unwrap())
}

fn open(device: &Arc<Memory>, pool: &Arc<Pool>) -> Result<Virtio, Error> {
    fake_virtio::open(device, Options { ring: Some(64), ..Options::default() }.of_port("liar", pool.clone()).unwrap())
}

fn message<T>(outcome: Result<T, Error>) -> String {
    outcome.err().expect("it must fail").with_hint()
}

#[test]
fn a_device_that_behaves_is_opened() {
    for (features, kind) in [(SPLIT, "split"), (PACKED, "packed")] {
        let (device, pool) = (Memory::new(features), pool());
        let mut port = open(&device, &pool).unwrap();
        assert!(port.info().description.contains(&format!("modern with {kind} queues")), "{:?}", port.info());
        assert_eq!((port.info().ring, port.link().unwrap()), (64, Link::Up { mbits: 0 }));
        let (rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        assert_eq!(pool.available(), 1024 - 64);
        assert!(message(port.rx(0)).contains("taken already"));
        assert!(message(port.reset()).contains("2 of its queues"));
        // This device cannot stop one queue: buffers return when the last queue is dropped.
        drop(rx);
        assert_eq!(pool.available(), 1024 - 64);
        assert!(message(port.rx(0)).contains("taken already"));
        drop(tx);
        assert_eq!(pool.available(), 1024);
        port.rx(0).unwrap();
        assert!(message(port.start_rx(1, Arc::default())).contains("no receive queue 1"));
        assert!(message(port.start_tx(u16::MAX, Arc::default())).contains("no transmit queue 65535"));
        assert!(message(port.set_promiscuous(false)).contains("always promiscuous"));
    }
}

/// The word that contains the device status byte.
const STATUS: usize = COMMON + 16;
const STATUS_BIT: u64 = 1 << 32;

#[test]
fn a_queue_that_starts_during_a_reset_has_one_owner() {
    for _ in 0..200 {
        let (device, pool) = (Memory::new(SPLIT), pool());
        let mut port = open(&device, &pool).unwrap();
        let rx = port.rx(0).unwrap();
        let status = &words(&device.bar, STATUS, 1)[0];
        let (resetting, claimed) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The device's reset takes until the other queue has started, but at most five milliseconds.
                let begin = Instant::now();
                while !claimed.load(Ordering::Acquire) && begin.elapsed() < Duration::from_millis(5) {
                    status.fetch_or(STATUS_BIT, Ordering::Relaxed);
                    resetting.store(true, Ordering::Release);
                }
                status.fetch_and(!STATUS_BIT, Ordering::Relaxed);
            });
            let deadline = Deadline::begin();
            while !resetting.load(Ordering::Acquire) {
                deadline.check(|| "the reset of the other queue");
                std::hint::spin_loop();
            }
            let stopping = scope.spawn(|| drop(rx));
            let deadline = Deadline::begin();
            while status.load(Ordering::Relaxed) >> 32 & 0xE != 0 && !stopping.is_finished() {
                deadline.check(|| "the reset, or the end of the queue");
                std::hint::spin_loop();
            }
            let first = port.tx(0);
            claimed.store(true, Ordering::Release);
            stopping.join().unwrap();
            assert!(first.is_err() || port.tx(0).is_err(), "two owners have a queue");
        });
    }
}

/// Delivers a packet as a device does, with a header of zeros and the number of buffers (5.1.6.4). Calls `between`
/// before each part of `PART` bytes except the first.
fn arrive(packets: &Mapping, queue: &mut Queue, bytes: &[u8], buffers: u16, between: impl FnMut()) {
    arrive_with(&[0; HEADER], packets, queue, bytes, buffers, between);
}

/// As [`arrive`], with a header.
fn arrive_with(
    header: &[u8],
    packets: &Mapping,
    queue: &mut Queue,
    bytes: &[u8],
    buffers: u16,
    mut between: impl FnMut(),
) {
    let all = [header, bytes].concat();
    for (n, part) in all.chunks(PART).enumerate() {
        if n > 0 {
            between();
        }
        let chain = queue.accept().expect("the device has buffers");
        let at = chain.address as u32 as usize;
        for (at, byte) in (at..).zip(part) {
            let (word, shift) = (&words(packets, at & !7, 1)[0], at % 8 * 8);
            word.store(word.load(Ordering::Relaxed) & !(0xFF << shift) | u64::from(*byte) << shift, Ordering::Relaxed);
        }
        if n == 0 {
            set_buffers(packets, at, buffers);
        }
        queue.finish(chain, part.len() as u32);
    }
}

const PART: usize = 1500;

fn parts(len: usize) -> u16 {
    (HEADER + len).div_ceil(PART) as u16
}

fn taken(rx: &mut dyn Receive, batch: &mut Batch) -> Vec<Vec<u8>> {
    rx.recv(batch);
    let packets = batch.packets().map(|packet| packet.segments().flatten().copied().collect()).collect();
    batch.clear();
    packets
}

#[test]
fn a_packet_has_the_bytes_written_to_any_number_of_buffers() {
    const LONGEST: usize = 9018;
    let bytes = |len: usize| (0..len).map(|n| (n / 251 + n) as u8).collect::<Vec<_>>();
    for (features, vectors) in
        [SPLIT, PACKED].into_iter().flat_map(|one| [(one, Vectors::Scalar), (one, Vectors::Best)])
    {
        let (device, pool) = (Memory::new(features | MERGEABLE), pool());
        let config = Options { ring: Some(64), max_frame: LONGEST, vectors, ..Options::default() }
            .of_port("merged", pool.clone())
            .unwrap();
        let mut port = fake_virtio::open(&device, config).unwrap();
        let (mut rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [mut queue, _] = Queue::pair(&device, 64, features == PACKED);
        let packets = device.mapped.lock().unwrap()[0].clone();
        let mut batch = Batch::new();
        let lens = [1, 60, PART - 13, PART - 12, PART - 11, 1514, 2 * PART - 12, 2 * PART - 11, 9000, LONGEST, 60];
        for len in lens {
            let nothing = || assert!(taken(&mut *rx, &mut batch).is_empty());
            arrive(&packets, &mut queue, &bytes(len), parts(len), nothing);
            assert_eq!(taken(&mut *rx, &mut batch), [bytes(len)], "{len} bytes");
        }
        let at_once = [60, 3000, 1, 1514, 4000, 60];
        at_once.iter().for_each(|&len| arrive(&packets, &mut queue, &bytes(len), parts(len), || ()));
        assert_eq!(taken(&mut *rx, &mut batch), at_once.map(bytes));
        // Packets that are too long, have only a header, or claim more buffers than a chain may have. The following
        // packet must be intact.
        for (len, buffers) in [(LONGEST + 1, parts(LONGEST + 1)), (0, 1), (60, 65)] {
            arrive(&packets, &mut queue, &bytes(len), buffers, || ());
            for _ in parts(len)..buffers {
                assert!(taken(&mut *rx, &mut batch).is_empty());
                let chain = queue.accept().expect("the device has buffers");
                queue.finish(chain, 1);
            }
            arrive(&packets, &mut queue, &bytes(77), 1, || ());
            assert_eq!(taken(&mut *rx, &mut batch), [bytes(77)], "{len} bytes in {buffers} buffers");
        }
        let statistics = port.statistics().unwrap();
        let octets = lens.iter().chain(&at_once).sum::<usize>() + 3 * 77;
        assert_eq!((statistics.rx_packets, statistics.rx_bytes), (20, octets as u64));
        assert_eq!((statistics.drops.malformed, statistics.drops.oversize), (2, 1));
        drop((rx, tx));
        drop(batch);
        assert_eq!(pool.available(), 1024);
    }
}

/// Returns the flags of some headers (5.1.6), and the verdict of each.
const VERDICTS: [(u8, Checksum); 4] =
    [(0, Checksum::Unknown), (1, Checksum::Left), (2, Checksum::Good), (3, Checksum::Left)];

#[test]
fn a_header_s_flags_are_the_verdict_on_the_checksum() {
    for (is_packed, vectors, metadata) in product() {
        let (device, pool) = (Memory::new(if is_packed { PACKED } else { SPLIT } | MERGEABLE), pool());
        let options = Options { ring: Some(64), max_frame: 9018, vectors, metadata, ..Options::default() };
        let mut port = fake_virtio::open(&device, options.of_port("described", pool.clone()).unwrap()).unwrap();
        let (mut rx, _tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [mut queue, _] = Queue::pair(&device, 64, is_packed);
        let packets = device.mapped.lock().unwrap()[0].clone();
        let mut batch = Batch::new();
        // One packet, a few, and groups of the vector loops; then also packets of several buffers.
        for lens in [&[60][..], &[60; 3], &[60; 24], &[60, 60, 3000, 60, 1514, 9000, 60]] {
            for (n, &len) in lens.iter().enumerate() {
                let mut header = [0; HEADER];
                // The checksum of the bytes from 34 on is at byte 40.
                (header[0], header[6], header[8]) = (VERDICTS[n % 4].0, 34, 6);
                arrive_with(&header, &packets, &mut queue, &vec![n as u8; len], parts(len), || ());
            }
            rx.recv(&mut batch);
            let all: Vec<_> = batch.packets().map(|packet| (packet.len(), packet[0], packet.metadata())).collect();
            let expected = lens.iter().enumerate().map(|(n, &len)| {
                let checksum = if metadata { VERDICTS[n % 4].1 } else { Checksum::Unknown };
                (len, n as u8, Metadata { checksum, ..Metadata::default() })
            });
            assert_eq!(all, expected.collect::<Vec<_>>(), "{is_packed}, {vectors:?}, metadata={metadata}");
            batch.clear();
        }
        drop((rx, _tx, batch));
        assert_eq!(pool.available(), 1024);
    }
}

/// A device's end of the control queue: a thread that answers commands, and records them. `answer` returns the
/// acknowledgement and the count of bytes that the device claims to have written.
struct Controller {
    commands: Arc<Mutex<Vec<Vec<u8>>>>,
    is_ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Controller {
    /// Starts for a device with `queues` queues, the last of which is the control queue.
    fn start(
        device: &Arc<Memory>,
        queues: usize,
        is_packed: bool,
        answer: impl Fn(&[u8]) -> (u8, u32) + Send + 'static,
    ) -> Controller {
        let (commands, is_ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (device, recorded, ended) = (device.clone(), commands.clone(), is_ended.clone());
        let thread = std::thread::spawn(move || {
            let mut queue = None;
            while !ended.load(Ordering::Relaxed) {
                std::thread::yield_now();
                let is_up = words(&device.bar, STATUS, 1)[0].load(Ordering::Acquire) >> 32 & 4 != 0;
                let Some(rings) = device.mapped.lock().unwrap().get(1).cloned().filter(|_| is_up) else { continue };
                // The driver writes zeros to all of the memory during a reset, also to this unused word.
                let is_known = words(&rings, 4088, 1)[0].swap(1, Ordering::AcqRel) != 0;
                let queue = match queue.take().filter(|_| is_known) {
                    Some(known) => queue.insert(known),
                    None => queue.insert(Queue::at(&device, queues - 1, queues, 64, is_packed)),
                };
                let Some(chain) = queue.accept() else { continue };
                let parts = queue.parts(&chain);
                let read = |&(address, len): &(u64, u32)| {
                    let mut bytes = vec![0; len as usize];
                    rings.read(address as u32 as usize, &mut bytes);
                    bytes
                };
                let command: Vec<u8> = parts[..parts.len() - 1].iter().flat_map(read).collect();
                let (acknowledgement, written) = answer(&command);
                recorded.lock().unwrap().push(command);
                rings.write(parts[parts.len() - 1].0 as u32 as usize, &[acknowledgement]);
                queue.finish(chain, written);
            }
        });
        Controller { commands, is_ended, thread: Some(thread) }
    }

    /// Returns the commands since the last call.
    fn commands(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.commands.lock().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        let outcome = self.thread.take().expect("it runs").join();
        assert!(outcome.is_ok() || std::thread::panicking(), "the device's end has panicked");
    }
}

/// An acknowledgement without an error.
const ACCEPTED: (u8, u32) = (0, 1);

/// The configuration of hashes with the default key: the types, zeros, and the key.
fn hash_config(types: u8) -> Vec<u8> {
    [&[4, 2, types, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40][..], &Rss::DEFAULT_KEY].concat()
}

#[test]
fn a_header_s_hash_is_reported() {
    for (is_packed, vectors, is_mergeable) in product() {
        let mergeable = if is_mergeable { MERGEABLE } else { 0 };
        let device = Memory::new(if is_packed { PACKED } else { SPLIT } | mergeable | CTRL_VQ | HASH_REPORT);
        device.set_hash_limits(40, 0, 0x1FF);
        let (pool, controller) = (pool(), Controller::start(&device, 3, is_packed, |_| ACCEPTED));
        let options = Options { ring: Some(64), vectors, metadata: true, ..Options::default() };
        let mut port = fake_virtio::open(&device, options.of_port("hashes", pool.clone()).unwrap()).unwrap();
        assert_eq!(controller.commands(), [hash_config(0x3F)]);
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [mut rx_end, mut tx_end] = [0, 1].map(|index| Queue::at(&device, index, 3, 64, is_packed));
        let packets = device.mapped.lock().unwrap()[0].clone();
        let mut batch = Batch::new();
        for count in [1, 3, 24] {
            for n in 0..count {
                let mut header = [0; HEADER + 8];
                header[12..16].copy_from_slice(&(0xABCD_0000u32 + n).to_le_bytes());
                header[16] = n as u8 % 12;
                arrive_with(&header, &packets, &mut rx_end, &[n as u8; 60], 1, || ());
            }
            assert_eq!(rx.recv(&mut batch), count as usize);
            for (n, packet) in (0..).zip(batch.packets()) {
                let fields = [
                    HashFields::Ipv4,
                    HashFields::TcpIpv4,
                    HashFields::UdpIpv4,
                    HashFields::Ipv6,
                    HashFields::TcpIpv6,
                    HashFields::UdpIpv6,
                    // With the addresses of extension headers.
                    HashFields::Ipv6,
                    HashFields::TcpIpv6,
                    HashFields::UdpIpv6,
                ];
                // 0 is for no hash, 10 and 11 are unknown.
                let fields = (n as usize % 12).checked_sub(1).and_then(|type_| fields.get(type_));
                let hash = fields.map(|&fields| Hash { value: 0xABCD_0000 + n, fields });
                assert_eq!((packet.metadata().hash, &packet[..]), (hash, &[n as u8; 60][..]), "{n} of {count}");
            }
            // A device reads headers of the same length.
            assert_eq!(tx.send(&mut batch), count as usize);
            for n in 0..count {
                let (chain, read) = leave(&packets, &mut tx_end).expect("a packet");
                assert!(read[..HEADER + 8] == [0; HEADER + 8] && read[HEADER + 8..] == [n as u8; 60], "{read:?}");
                tx_end.finish(chain, 0);
            }
            tx.send(&mut batch);
        }
        drop((rx, tx, batch));
        assert_eq!(pool.available(), 1024);
    }
}

#[test]
fn hashes_of_a_device_that_violates_its_limits_are_errors() {
    let open = |key, types, answer: (u8, u32), metadata| {
        let device = Memory::new(SPLIT | CTRL_VQ | HASH_REPORT);
        device.set_hash_limits(key, 0, types);
        let _controller = Controller::start(&device, 3, false, move |_| answer);
        let options = Options { ring: Some(64), metadata, ..Options::default() };
        fake_virtio::open(&device, options.of_port("liar", pool()).unwrap())
    };
    let said = |key, types, answer| message(open(key, types, answer, true));
    assert!(said(39, 0x3F, ACCEPTED).contains("its rss_max_key_size is 39"));
    assert!(said(40, 0x1C0, ACCEPTED).contains("its supported_hash_types has none"));
    assert!(said(40, 0x3F, (1, 1)).contains("it has no hash report: the device rejected the command"));
    assert!(said(40, 0x3F, (0xFF, 0)).contains("does not acknowledge a command"));
    // Without metadata, the limits do not matter.
    open(0, 0, (1, 1), false).unwrap();
    // A device whose configuration ends before the limits.
    let device = Memory::new(SPLIT | CTRL_VQ | HASH_REPORT);
    device.set_config(0x40 + 0x18 * 3 + 12, 20);
    device.set_config(0x40 + 0x18 * 3 + 13, 0);
    let options = Options { ring: Some(64), metadata: true, ..Options::default() };
    fake_virtio::open(&device, options.of_port("short", pool()).unwrap()).unwrap();
}

#[test]
fn a_device_gets_the_interval_of_interrupts() {
    let open = |features, interval: Option<u64>, answer: (u8, u32)| {
        let device = Memory::new(features);
        let controller = Controller::start(&device, 3, features & PACKED == PACKED, move |_| answer);
        let interrupts = interval.map(Duration::from_nanos);
        let options = Options { ring: Some(64), interrupts, ..Options::default() };
        fake_virtio::open(&device, options.of_port("throttled", pool()).unwrap()).map(|_port| controller.commands())
    };
    let expected = |micros| vec![vec![6, 1, 32, 0, 0, 0, micros, 0, 0, 0]];
    for format in [SPLIT, PACKED] {
        let all = format | CTRL_VQ | NOTF_COAL;
        assert_eq!(open(all, Some(50_000), ACCEPTED).unwrap(), expected(50));
        assert_eq!(open(all, Some(1), ACCEPTED).unwrap(), expected(1));
        // A device may interrupt more often, but must answer.
        assert_eq!(open(all, Some(50_000), (1, 1)).unwrap(), expected(50));
        assert!(message(open(all, Some(50_000), (0xFF, 0))).contains("does not acknowledge"));
        for (features, interval) in [(all, Some(0)), (all, None), (format | CTRL_VQ, Some(50_000))] {
            assert_eq!(open(features, interval, ACCEPTED).unwrap(), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn a_device_gets_the_filters_and_gets_them_again_after_a_reset() {
    let filters = CTRL_VQ | CTRL_RX | CTRL_VLAN;
    let (unicast, group) = (MacAddress([2, 0, 0, 0, 0, 7]), MacAddress([1, 0, 0x5E, 0, 0, 0xFB]));
    let addresses = [&[1, 0, 1, 0, 0, 0][..], &unicast.0, &[1, 0, 0, 0], &group.0].concat();
    let vlan = |command: u8, id: u16| [[2, command], id.to_le_bytes()].concat();
    let modes = |promiscuous: u8, multicast: u8| [vec![0, 0, promiscuous], vec![0, 1, multicast]];
    for (format, is_packed) in [(SPLIT, false), (PACKED, true)] {
        let device = Memory::new(format | filters);
        // One id is refused.
        let refuse = |command: &[u8]| if *command == [2, 0, 0xFF, 0] { (1, 1) } else { ACCEPTED };
        let controller = Controller::start(&device, 3, is_packed, refuse);
        let mut port = open(&device, &pool()).unwrap();
        let capabilities = port.info().capabilities;
        assert_eq!(
            [Feature::AddressFilter, Feature::VlanFilter].map(|one| capabilities.of(one)),
            [Support::Offloaded; 2]
        );
        assert_eq!(controller.commands(), modes(1, 1));
        port.set_addresses(&[group, unicast, MacAddress::BROADCAST, unicast]).unwrap();
        assert_eq!(controller.commands(), [&addresses[..]]);
        port.set_vlans(Some(&[5, 7])).unwrap();
        assert_eq!(controller.commands(), [vlan(0, 5), vlan(0, 7)]);
        port.set_promiscuous(false).unwrap();
        assert_eq!(controller.commands(), modes(0, 0));
        port.set_all_multicast(true).unwrap();
        assert_eq!(controller.commands(), modes(0, 1));
        port.reset().unwrap();
        let all = [&[addresses.clone(), vlan(0, 5), vlan(0, 7)][..], &modes(0, 1)].concat();
        assert_eq!(controller.commands(), all);
        // A refusal changes nothing.
        assert_eq!(port.set_vlans(Some(&[5, 6, 0xFF])).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(controller.commands(), [vlan(0, 6), vlan(0, 0xFF), vlan(1, 6)]);
        port.set_vlans(Some(&[7, 9])).unwrap();
        assert_eq!(controller.commands(), [vlan(0, 9), vlan(1, 5)]);
        assert!(message(port.set_vlans(Some(&[4095]))).contains("0 to 4094"));
        let many: Vec<MacAddress> = (1..=129).map(|n| MacAddress([2, 0, 0, 0, 0, n])).collect();
        assert!(message(port.set_addresses(&many)).contains("128 unicast addresses"));
        port.set_addresses(&many[..128]).unwrap();
        assert_eq!(controller.commands()[0].len(), 2 + 4 + 128 * 6 + 4);
        // Without promiscuous mode, a device must be told all VLANs.
        port.set_promiscuous(true).unwrap();
        port.set_vlans(None).unwrap();
        controller.commands();
        assert_eq!(port.set_promiscuous(false).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(controller.commands().iter().filter(|command| command[..2] == [2, 0]).count(), 254);
    }

    let device = Memory::new(SPLIT | CTRL_VQ | CTRL_RX);
    let controller = Controller::start(&device, 3, false, |_| ACCEPTED);
    let mut port = open(&device, &pool()).unwrap();
    port.set_promiscuous(false).unwrap();
    assert_eq!(controller.commands(), [modes(1, 1), modes(0, 0)].concat());
    assert!(message(port.set_vlans(Some(&[5]))).contains("no command for it"));
    port.set_vlans(None).unwrap();
    // Without `CTRL_RX`, a device receives all packets.
    let mut port = open(&Memory::new(SPLIT | CTRL_VLAN), &pool()).unwrap();
    port.set_addresses(&[unicast]).unwrap();
    port.set_all_multicast(true).unwrap();
    assert_eq!(port.info().capabilities.of(Feature::AddressFilter), Support::None);
}

/// Runs `stop` while the device completes a reset of a queue. Returns the queue.
fn with_queue_reset<T>(device: &Memory, stop: impl FnOnce() -> T) -> u16 {
    std::thread::scope(|scope| {
        let resetting = scope.spawn(|| {
            let deadline = Deadline::begin();
            // `queue_reset` is the half at offset 58; `queue_enable`, at 28, must also be 0 after the reset.
            while words(&device.bar, COMMON + 56, 1)[0].load(Ordering::Acquire) >> 16 & 0xFFFF == 0 {
                deadline.check(|| "the reset of a queue");
                std::thread::yield_now();
            }
            device.set_32(COMMON + 28, 0);
            let queue = words(&device.bar, COMMON + 16, 1)[0].load(Ordering::Acquire) >> 48;
            device.set_32(COMMON + 56, 0);
            queue as u16
        });
        stop();
        resetting.join().unwrap()
    })
}

#[test]
fn a_queue_that_is_reset_returns_its_buffers_and_starts_again() {
    for (features, is_packed) in [(SPLIT, false), (PACKED, true)] {
        let (device, pool) = (Memory::new(features | RING_RESET), pool());
        let mut port = open(&device, &pool).unwrap();
        let (rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [packets, rings] = [0, 1].map(|index: usize| device.mapped.lock().unwrap()[index].clone());
        // A reset of the device would write zeros to this unused word.
        words(&rings, 4088, 1)[0].store(1, Ordering::Relaxed);
        let [mut rx_end, _] = Queue::pair(&device, 64, is_packed);
        let mut batch = Batch::new();
        for _ in 0..3 {
            arrive(&packets, &mut rx_end, &[1; 60], 1, || ());
            batch.push(&pool, &[2; 60]);
        }
        assert_eq!(tx.send(&mut batch), 3);
        drop(batch);
        assert_eq!(pool.available(), 1024 - 64 - 3);
        assert_eq!(with_queue_reset(&device, || rx.stop().unwrap()), 0);
        assert_eq!((pool.available(), tx.buffers()), (1024 - 3, 3), "the other queue continues");
        let mut rx = port.rx(0).unwrap();
        assert_eq!(with_queue_reset(&device, || drop(tx)), 1);
        assert_eq!(pool.available(), 1024 - 64);
        let mut tx = port.tx(0).unwrap();
        // Both begin with empty rings, whose old packets do not return.
        let [mut rx_end, mut tx_end] = Queue::pair(&device, 64, is_packed);
        let mut batch = Batch::new();
        assert_eq!(rx.recv(&mut batch), 0);
        arrive(&packets, &mut rx_end, &[3; 60], 1, || ());
        assert_eq!((rx.recv(&mut batch), batch.packets().next().unwrap()[0], tx.send(&mut batch)), (1, 3, 1));
        assert_eq!(leave(&packets, &mut tx_end).unwrap().1[HEADER..], [3; 60]);
        assert_eq!(words(&rings, 4088, 1)[0].load(Ordering::Relaxed), 1, "the device was not reset");
        drop(batch);

        // A queue whose reset never completes keeps its buffers until the device is reset.
        if is_packed {
            continue;
        }
        let said = message(rx.stop());
        assert!(said.contains("queue_reset = 0") && said.contains("2.6.1"), "{said}");
        assert_eq!(pool.available(), 1024 - 64 - 1);
        assert!(message(port.rx(0)).contains("taken already"));
        drop(tx);
        assert_eq!(pool.available(), 1024);
        port.rx(0).unwrap();
    }
    // A device whose registers end before `queue_reset`.
    let device = Memory::new(SPLIT | RING_RESET);
    device.set_config(0x40 + 12, 58);
    device.set_config(0x40 + 13, 0);
    let mut port = open(&device, &pool()).unwrap();
    port.rx(0).unwrap().stop().unwrap();
}

/// The configuration of two queue pairs for a table, and the key.
fn rss_config(table: &[u16], key: &[u8; 40]) -> Vec<u8> {
    let entries = (0..128).map(|entry| table[entry % table.len()]);
    let words = [127, table[0]].into_iter().chain(entries).chain([2]).flat_map(u16::to_le_bytes);
    [&[4, 1, 0x3F, 0, 0, 0][..], &words.collect::<Vec<u8>>(), &[40], key].concat()
}

/// Opens a port with two queue pairs.
fn open_with_two_queues(device: &Arc<Memory>, pool: &Arc<Pool>) -> Result<Virtio, Error> {
    device.set_32(DEVICE + 8, 2);
    let options = Options { ring: Some(64), rx_queues: 2, tx_queues: 2, ..Options::default() };
    fake_virtio::open(device, options.of_port("scaled", pool.clone()).unwrap())
}

#[test]
fn a_device_selects_queues_by_the_table_among_those_started() {
    let evenly = |table: &[u16]| [rss_config(table, &Rss::DEFAULT_KEY)];
    for is_packed in [false, true] {
        let device = Memory::new(if is_packed { PACKED } else { SPLIT } | CTRL_VQ | MQ | RSS);
        device.set_hash_limits(40, 128, 0x1FF);
        let (pool, controller) = (pool(), Controller::start(&device, 5, is_packed, |_| ACCEPTED));
        let mut port = open_with_two_queues(&device, &pool).unwrap();
        let first = port.rx(0).unwrap();
        assert!(controller.commands().is_empty(), "a queue of the table has not started");
        let second = port.rx(1).unwrap();
        assert_eq!(controller.commands(), evenly(&[0, 1]));
        let other = Rss { key: [0x5A; 40], table: vec![1, 0, 1] };
        port.set_rss(&other).unwrap();
        assert_eq!(controller.commands(), [rss_config(&[1, 0, 1], &[0x5A; 40])]);
        for (table, why) in [(vec![0, 2], "queue 2"), (vec![], "0 entries"), (vec![0; 129], "129 entries")] {
            assert!(message(port.set_rss(&Rss { table, ..other.clone() })).contains(why));
        }
        drop(first);
        assert_eq!(controller.commands(), [rss_config(&[1, 1, 1], &[0x5A; 40])]);
        drop(second);
        assert!(controller.commands().is_empty(), "no queue is left");
        // A reset keeps the table, and one without a queue does not wait for it.
        port.set_rss(&Rss { table: vec![1], ..Rss::evenly(2) }).unwrap();
        port.reset().unwrap();
        let _second = port.rx(1).unwrap();
        assert_eq!(controller.commands(), evenly(&[1]));
        let _first = port.rx(0).unwrap();
        assert_eq!(controller.commands(), evenly(&[1]));
    }
}

#[test]
fn receive_side_scaling_that_is_not_possible_is_an_error() {
    let pool = pool();
    let said = |features, table, answer: (u8, u32)| {
        let device = Memory::new(SPLIT | CTRL_VQ | MQ | features);
        device.set_hash_limits(40, table, 0x3F);
        let _controller = Controller::start(&device, 5, false, move |_| answer);
        let mut port = match open_with_two_queues(&device, &pool) {
            Ok(port) => port,
            Err(error) => return error.with_hint(),
        };
        let queues = (0..2).map(|queue| port.rx(queue)).collect::<Result<Vec<_>, _>>();
        message(queues.and_then(|_started| port.set_rss(&Rss::evenly(2))))
    };
    assert!(said(0, 128, ACCEPTED).contains("no receive-side scaling: the device does not offer it"));
    assert!(said(RSS, 127, ACCEPTED).contains("rss_max_indirection_table_length is 127"));
    assert!(said(RSS, 128, (1, 1)).contains("no receive-side scaling: the device rejected the command"));
    let mut port = open(&Memory::new(SPLIT | CTRL_VQ | RSS), &pool).unwrap();
    assert!(message(port.set_rss(&Rss::evenly(1))).contains("the port has one receive queue"));
    assert_eq!(pool.available(), 1024);
}

/// Returns both formats of queues, scalar and vector loops, with and without metadata.
fn product() -> impl Iterator<Item = (bool, Vectors, bool)> {
    let loops = [Vectors::Scalar, Vectors::Avx2, Vectors::Best].into_iter().filter(|vectors| vectors.is_supported());
    loops.flat_map(|vectors| [(false, false), (false, true), (true, false), (true, true)].map(|(a, b)| (a, vectors, b)))
}

/// Reads the next available packet, as a device does.
fn leave(packets: &Mapping, queue: &mut Queue) -> Option<(fake_virtio::Chain, Vec<u8>)> {
    let chain = queue.accept()?;
    let mut bytes = Vec::new();
    for (address, len) in queue.parts(&chain) {
        let (at, len) = (address as u32 as usize, len as usize);
        let whole = words(packets, at & !7, (at % 8 + len).div_ceil(8));
        let read = whole.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.extend(read.skip(at % 8).take(len));
    }
    Some((chain, bytes))
}

#[test]
fn a_device_reads_a_header_of_zeros_and_the_bytes_of_each_packet() {
    const LONGEST: usize = 9018;
    let bytes = |n: usize, len: usize| (0..len).map(|at| (at / 251 + at + n) as u8).collect::<Vec<_>>();
    for (features, vectors) in
        [SPLIT, PACKED].into_iter().flat_map(|one| [(one, Vectors::Scalar), (one, Vectors::Best)])
    {
        let (device, pool) = (Memory::new(features | MERGEABLE), pool());
        let config = Options { ring: Some(64), max_frame: LONGEST, vectors, ..Options::default() }
            .of_port("sends", pool.clone())
            .unwrap();
        let mut port = fake_virtio::open(&device, config).unwrap();
        let (rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [_, mut queue] = Queue::pair(&device, 64, features == PACKED);
        let packets = device.mapped.lock().unwrap()[0].clone();
        let mut batch = Batch::with_capacity(256);
        // Fill the buffers: their old contents must not appear as a header.
        batch.alloc(&pool, 200, 1800);
        batch.into_iter().for_each(|mut packet| packet.fill(0xA5));
        batch.clear();
        let (mut all, mut octets, mut dropped) = (0, 0, 0);
        let mut check = |lens: &[usize]| {
            for (n, &len) in lens.iter().enumerate() {
                assert!(batch.push(&pool, &bytes(n, len)), "{n}");
            }
            let mut seen = 0;
            let fit = lens.iter().enumerate().filter(|(_, len)| **len <= LONGEST).map(|(n, &len)| (n, len));
            let mut fit = fit.peekable();
            while fit.peek().is_some() {
                tx.send(&mut batch);
                let before = seen;
                while let Some((chain, read)) = leave(&packets, &mut queue) {
                    let (n, len) = fit.next().expect("nothing is sent twice");
                    assert!(read[..HEADER] == [0; HEADER] && read[HEADER..] == bytes(n, len), "packet {n} of {lens:?}");
                    assert_eq!(chain.count, len.div_ceil(pool.region().room()), "{len}");
                    queue.finish(chain, 0);
                    seen += 1;
                    (all, octets) = (all + 1, octets + len);
                }
                assert!(seen > before, "no progress at packet {seen} of {lens:?}");
            }
            dropped += lens.len() - seen;
            tx.send(&mut batch);
            assert!(batch.is_empty() && tx.buffers() == 0, "{} and {}", batch.len(), tx.buffers());
        };
        check(&[60]);
        check(&[1, 1514, 60, 61, 62, 63, 64]);
        check(&[60; 33]);
        check(&[60; 150]);
        check(&[9000, 60, 3000, 1514, LONGEST, 60, 2 * 1500, 1]);
        check(&[4000; 60]);
        check(&[60, 60, LONGEST + 1, 60]);
        check(&[[60; 9].as_slice(), &[5000], &[60; 9]].concat());
        // A batch of another region is copied.
        let other = pool_of(64, 512);
        let mut copied = Batch::new();
        assert!(copied.push(&other, &bytes(7, 1000)) && copied.push(&other, &bytes(8, 60)));
        assert_eq!(tx.send(&mut copied), 1000_usize.div_ceil(other.region().room()) + 1);
        for (n, len) in [(7, 1000), (8, 60)] {
            let (chain, read) = leave(&packets, &mut queue).expect("a copy");
            assert!(read[HEADER..] == bytes(n, len));
            queue.finish(chain, 0);
        }
        let statistics = port.statistics().unwrap();
        assert_eq!((statistics.tx_packets, statistics.tx_bytes), (all, octets as u64));
        assert_eq!((statistics.drops.tx_too_long, dropped), (1, 1));
        drop((rx, tx, batch, copied));
        assert_eq!((pool.available(), other.available()), (1024, 64));
    }
}

#[test]
fn a_device_that_never_completes_its_reset_gives_an_error_within_its_bound() {
    // I/O ports in a read-only file: the status cannot change.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[0x0F; 64]).unwrap();
    let mut device = Memory::new(SPLIT);
    let legacy = Arc::get_mut(&mut device).unwrap();
    legacy.set_config(0x06, 0);
    // SAFETY: writes to a file start no DMA.
    legacy.ports = Some(unsafe { IoPorts::new(File::open(file.path()).unwrap(), 0) });
    let said = message(open(&device, &pool()));
    assert!(said.contains("device_status = 0") && said.contains("2.4.1") && said.contains("500"), "{said}");
}

#[test]
fn a_device_that_is_gone_or_needs_a_reset_is_an_error() {
    let device = Memory::new(SPLIT);
    let mut port = open(&device, &pool()).unwrap();
    device.set_32(COMMON + 20, 0x4F);
    assert!(message(port.statistics()).contains("needs a reset"));
    assert!(message(port.rx(0)).contains("needs a reset"));
    port.reset().unwrap();
    port.statistics().unwrap();
    device.set_32(COMMON + 20, 0xFF);
    assert!(message(port.link()).contains("the card is gone"));
    device.set_32(COMMON + 20, 0);
}

#[test]
fn a_device_without_access_platform_is_refused_behind_the_iommu() {
    let said = message(open(&Memory::new(0b001), &pool()));
    assert!(said.contains("bypasses the IOMMU") && said.contains("iommu_platform=on"), "{said}");
}

#[test]
fn invalid_capabilities_and_sizes_are_refused() {
    let pool = pool();
    let lie = |what: &dyn Fn(&Memory)| {
        let device = Memory::new(SPLIT);
        what(&device);
        message(open(&device, &pool))
    };
    assert!(lie(&|device| device.set_config(0x40 + 10, 1)).contains("outside its BARs"), "an offset");
    assert!(lie(&|device| device.set_config(0x40 + 8, 1)).contains("outside its BARs"), "an odd offset");
    assert!(lie(&|device| device.set_config(0x40 + 13, 0)).contains("outside its BARs"), "a length");
    assert!(lie(&|device| device.set_config(0x41 + 0x18, 0)).contains("lacks some"), "the list ends early");
    assert!(lie(&|device| device.set_config(0x43, 9)).contains("no I/O ports"), "no registers at all");
    for size in [0, 2, 3, 63] {
        assert!(lie(&|device| device.set_32(COMMON + 24, size)).contains("not a power of two from 4"), "{size}");
    }
    // A capability list with a loop.
    let device = Memory::new(SPLIT);
    device.set_config(0x40 + 0x18 * 3 + 1, 0x40);
    open(&device, &pool).unwrap();
    // Doorbells beyond the BAR.
    let device = Memory::new(SPLIT);
    device.set_config(0x40 + 0x18 + 17, 0x40);
    device.set_32(COMMON + 28, 0xFFFF << 16);
    let mut port = open(&device, &pool).unwrap();
    assert!(message(port.rx(0)).contains("outside their BAR"));
    assert_eq!(pool.available(), 1024);
}

#[test]
fn a_device_that_returns_buffers_it_never_had_gets_no_more() {
    for features in [SPLIT, PACKED] {
        let (device, pool) = (Memory::new(features), pool());
        let mut port = open(&device, &pool).unwrap();
        let (_rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [_, mut end] = Queue::pair(&device, 64, features == PACKED);
        let mut batch = Batch::new();
        batch.alloc(&pool, 8, 60);
        assert_eq!(tx.send(&mut batch), 8);
        let mut chain = end.accept().unwrap();
        chain.id = 8;
        end.finish(chain, 0);
        batch.alloc(&pool, 8, 60);
        assert_eq!((tx.send(&mut batch), tx.buffers()), (0, 8));
        let statistics = port.statistics().unwrap();
        assert_eq!((statistics.tx_packets, statistics.drops.tx_too_long), (0, 1));
    }
}

#[test]
fn a_device_that_enables_notifications_late_is_notified() {
    for features in [SPLIT, PACKED] {
        let (device, pool) = (Memory::new(features), pool());
        let config = Options { ring: Some(64), interrupts: Some(Default::default()), ..Options::default() }
            .of_port("sleeper", pool.clone())
            .unwrap();
        let mut port = fake_virtio::open(&device, config).unwrap();
        let (mut rx, _tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [mut end, _] = Queue::pair(&device, 64, features == PACKED);
        let mut batch = Batch::new();
        for sleeps in [false, true] {
            end.want_notifications(false);
            assert_eq!(end.finish_in_turn(4, 72, |_| ()), 4);
            device.doorbell();
            assert_eq!((rx.recv(&mut batch), device.doorbell()), (4, None), "it polls itself");
            // The device polled for the last time before these buffers were visible.
            end.want_notifications(true);
            if sleeps {
                assert!(rx.arm().is_some());
            } else {
                assert_eq!(rx.recv(&mut batch), 0);
            }
            assert_eq!(device.doorbell(), Some(0));
            assert_eq!((rx.recv(&mut batch), device.doorbell()), (0, None), "one notification suffices");
            batch.clear();
        }
        // A device that has enabled notifications is notified immediately, and only once.
        assert_eq!(end.finish_in_turn(4, 72, |_| ()), 4);
        assert_eq!((rx.recv(&mut batch), device.doorbell()), (4, Some(0)));
        assert_eq!((rx.recv(&mut batch), device.doorbell()), (0, None));
        // A device that polled after the last packet has seen all buffers.
        end.want_notifications(false);
        assert_eq!(end.finish_in_turn(4, 72, |_| ()), 4);
        assert_eq!((rx.recv(&mut batch), rx.recv(&mut batch)), (4, 0));
        end.want_notifications(true);
        assert_eq!((rx.recv(&mut batch), device.doorbell()), (0, None));
    }
}

/// Devices that violate the specification (5.1.4.1, 5.1.3.1) are used as far as possible.
#[test]
fn contradictory_features_are_handled() {
    let pool = pool();
    // An invalid number of queue pairs: the control queue's number would not fit in 16 bits.
    for pairs in [0, 0x8000, 0xFFFF] {
        let device = Memory::new(SPLIT | CTRL_VQ | MQ);
        device.set_32(DEVICE + 8, pairs);
        let said = message(open(&device, &pool));
        assert!(said.contains("queue pairs"), "{pairs}: {said}");
    }
    // Commands without a control queue, as in QEMU's devices with ctrl_vq=off.
    let device = Memory::new(SPLIT | CTRL_RX);
    let mut port = open(&device, &pool).unwrap();
    port.set_promiscuous(true).unwrap();
    assert!(message(port.set_promiscuous(false)).contains("always promiscuous"));
}

/// 4.1.4.1: a driver uses the first capability of a type that it supports (QEMU's modern-pio-notify=on).
#[test]
fn doorbells_in_io_ports_are_skipped() {
    let device = Memory::new(SPLIT);
    // Insert a fifth capability before the others: doorbells in BAR 2, which is not memory.
    for (at, byte) in [0x09, 0x40, 20, 2, 2].into_iter().enumerate() {
        device.set_config(0x40 + 0x18 * 4 + at, byte);
    }
    device.set_config(0x40 + 0x18 * 4 + 12, 4);
    device.set_config(0x34, 0x40 + 0x18 * 4);
    let mut port = open(&device, &pool()).unwrap();
    port.tx(0).unwrap();
}

/// Returns the words that the device writes into the rings between two calls.
fn scribbles() -> impl Strategy<Value = Vec<(usize, u64)>> {
    // Small numbers are valid ids, indexes and lengths; large ones are not.
    let value = prop_oneof![0..64u64, any::<u64>(), (0..64u64, 0..2100u64).prop_map(|(id, len)| len << 32 | id)];
    // Positions in all of the rings' memory, including the descriptors, which only the driver should write.
    prop::collection::vec((0..8192usize, value), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_device_that_overwrites_its_rings_loses_no_buffer(
        packed in any::<bool>(),
        metadata in any::<bool>(),
        rounds in prop::collection::vec((scribbles(), 0..40usize), 1..12),
    ) {
        let (device, pool) = (Memory::new(if packed { PACKED } else { SPLIT }), pool());
        let options = Options { ring: Some(64), metadata, ..Options::default() };
        let mut port = fake_virtio::open(&device, options.of_port("liar", pool.clone()).unwrap()).unwrap();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [memory, rings] = [0, 1].map(|index: usize| device.mapped.lock().unwrap()[index].clone());
        let mut batch = Batch::new();
        for (scribbles, packets) in rounds {
            for (place, value) in scribbles {
                let ring_words = words(&rings, 0, rings.len() / 8);
                ring_words[place % ring_words.len()].store(value, Ordering::Relaxed);
                // Headers are at several offsets, at most 320 bytes after the buffer's start.
                let buffer = words(&memory, place % 1024 * 2048 + 96, 28);
                buffer.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            }
            rx.recv(&mut batch);
            for packet in batch.packets() {
                assert!(packet.len() <= 1518 && packet.slots() == 1);
                assert!(metadata || (packet.offload().is_none() && packet.metadata() == Metadata::default()));
            }
            (0..packets).for_each(|_| { batch.push(&pool, &[0x55; 60]); });
            tx.send(&mut batch);
            let held = pool.available() + batch.len() + batch.cached() + rx.buffers() + tx.buffers();
            prop_assert_eq!(held, 1024);
        }
        drop((rx, tx, batch));
        prop_assert_eq!(pool.available(), 1024);
    }
}
