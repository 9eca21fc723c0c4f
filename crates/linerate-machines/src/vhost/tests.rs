//! A front end that follows the protocol, or violates it.
#![allow(unsafe_code)]

mod concurrent;
mod negotiation;

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};

use linerate::{ErrorKind, Options};
use linerate_core::batch::Batch;
use linerate_core::event::Interrupt;
use linerate_core::memory::{Descriptors, DmaArray, Mapping, PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::{Link, Port, RxQueue, TxQueue};
use linerate_spec::virtio::packed::{AVAILABLE, DESC, DISABLE, ENABLE, USED};
use linerate_spec::virtio::ring::{INDIRECT, NEXT, WRITE};
use linerate_spec::virtio::{feature, header};
use linerate_testkit::{Deadline, TIME_LIMIT};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

use super::message::*;
use crate::peer::{accepted, until};

const SIZE: u16 = 16;
/// The features of a front end with packed virtqueues.
const PACKED: u64 = feature::VERSION_1 | feature::RING_PACKED;
/// The front end's memory: two rings, each part on a separate page, then buffers.
const LEN: usize = 1 << 20;
const BUFFERS: usize = 1 << 16;
/// The addresses of the memory in the guest and in the front end.
const GUEST: u64 = 0x1_0000_0000;
const USER: u64 = 0x7F00_0000_0000;

const HEADER: usize = header::LEN;
/// The front end's receive queue and transmit queue.
const RECEIVES: u32 = 0;
const TRANSMITS: u32 = 1;

/// A virtqueue from its driver's side.
struct Driver {
    table: Descriptors,
    available: DmaArray<AtomicU16>,
    used: DmaArray<AtomicU16>,
    used_ring: DmaArray<[AtomicU32; 2]>,
    kick: Interrupt,
    call: Interrupt,
    /// The number of chains made available; of descriptors in a packed ring.
    added: u16,
    /// The number of descriptors returned in a packed ring.
    popped: u16,
}

struct FrontEnd {
    connection: Connection,
    memory: std::sync::Arc<Mapping>,
    file: OwnedFd,
    rings: [Driver; 2],
    /// The rings' size and base.
    size: u16,
    base: u32,
    /// The front end's own address of the memory.
    user: u64,
}

/// A port, and the path where it listens.
struct TestPort {
    port: Port,
    path: PathBuf,
    pool: std::sync::Arc<Pool>,
    folder: TempDir,
}

fn pool() -> std::sync::Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 256, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn listening(options: &str) -> TestPort {
    listening_in(TempDir::new().unwrap(), options)
}

fn listening_in(folder: TempDir, options: &str) -> TestPort {
    let path = folder.path().join("socket");
    let pool = pool();
    let ports = Options { pool: Some(pool.clone()), ..Options::default() };
    let [port] = ports.open([&*format!("vhost:{}{options}", path.display())]).unwrap();
    TestPort { port, path, pool, folder }
}

impl FrontEnd {
    /// Connects, and sets up both virtqueues with these features.
    fn connect(test: &TestPort, features: u64) -> FrontEnd {
        FrontEnd::new(UnixStream::connect(&test.path).unwrap()).up(test, features)
    }

    /// Like `connect`, with packed virtqueues of this size.
    fn connect_packed(test: &TestPort, size: u16, features: u64) -> FrontEnd {
        let front = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
        FrontEnd { size, base: 1 << 15, ..front }.up(test, PACKED | features)
    }

    /// Connects to another back end with the same rings.
    fn connect_again(self, test: &TestPort, features: u64) -> FrontEnd {
        drop(self.connection); // front ends are served one after the other
        let socket = UnixStream::connect(&test.path).unwrap();
        socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        FrontEnd { connection: Connection::new(socket), ..self }.up(test, features)
    }

    fn up(mut self, test: &TestPort, features: u64) -> FrontEnd {
        self.set_up(features);
        until(|| test.port.link().unwrap() != Link::Down);
        self
    }

    fn new(socket: UnixStream) -> FrontEnd {
        socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LEN as u64).unwrap();
        // SAFETY: the test does not shorten the file while it is mapped.
        let memory = std::sync::Arc::new(unsafe { Mapping::of_device(file.try_clone().unwrap(), 0, LEN) }.unwrap());
        let ring = |number: usize| {
            let (at, count) = (number * 3 * 4096, usize::from(SIZE));
            // SAFETY: this memory is never lent as a slice.
            unsafe {
                Driver {
                    table: DmaArray::new(&memory, at, count),
                    available: DmaArray::new(&memory, at + 4096, 3 + count),
                    used: DmaArray::new(&memory, at + 8192, 2),
                    used_ring: DmaArray::new(&memory, at + 8192 + 4, count),
                    kick: Interrupt::new().unwrap(),
                    call: Interrupt::new().unwrap(),
                    added: 0,
                    popped: 0,
                }
            }
        };
        FrontEnd {
            connection: Connection::new(socket),
            rings: [ring(0), ring(1)],
            file,
            memory,
            size: SIZE,
            base: 0,
            user: USER,
        }
    }

    fn say(&self, request: impl Into<u32>, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let header = Header { request: request.into(), flags: flag::VERSION, size: 0 };
        // The back end may have ended the connection.
        let _ = self.connection.send(header, &[payload], descriptors);
    }

    /// Sends a request that every back end accepts, with these flags.
    fn say_with(&mut self, flags: u32) {
        let _ = self.connection.send(Header { request: Request::SET_OWNER.into(), flags, size: 0 }, &[], &[]);
    }

    fn ask(&mut self, request: Request, payload: &[u8]) -> Vec<u8> {
        self.say(request, payload, &[]);
        self.reply(request)
    }

    /// Waits until the back end closes the connection.
    fn until_end(&mut self) {
        let is_late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        until(|| self.connection.receive().is_err_and(|error| !is_late(&error)));
    }

    fn reply(&mut self, request: Request) -> Vec<u8> {
        loop {
            let received = self.connection.receive();
            if let Some(message) = received.unwrap_or_else(|error| panic!("no reply to {request:?}: {error}")) {
                assert_eq!(
                    (message.header.request, message.header.flags),
                    (request.into(), flag::VERSION | flag::REPLY)
                );
                return message.payload;
            }
        }
    }

    fn number(&mut self, request: Request) -> u64 {
        u64::read_from_bytes(&self.ask(request, &[])).unwrap()
    }

    fn set_up(&mut self, features: u64) {
        let offered = self.number(Request::GET_FEATURES);
        assert_eq!(offered & features, features);
        self.say(Request::SET_FEATURES, features.as_bytes(), &[]);
        self.share();
        for number in [RECEIVES, TRANSMITS] {
            self.start(number);
        }
    }

    /// Shares a log, and enables logging.
    fn log(&mut self, log: &OwnedFd, (size, offset): (u64, u64), features: u64) {
        self.say(Request::SET_LOG_BASE, LogBase::new(size, offset).as_slice(), &[log.as_fd()]);
        assert_eq!(self.reply(Request::SET_LOG_BASE), [0; 8]);
        self.set_features(features | LOG_ALL);
    }

    /// Changes the features, and waits until the back end has applied them.
    fn set_features(&mut self, features: u64) {
        self.say(Request::SET_FEATURES, features.as_bytes(), &[]);
        self.number(Request::GET_FEATURES);
    }

    /// Makes a receive buffer available in a ring of either format.
    fn offer_buffer(&mut self, number: u16, address: u64, len: u32, features: u64) {
        if features & feature::RING_PACKED != 0 {
            return self.offer_packed(RECEIVES, number, &[(address, len, WRITE)]);
        }
        self.describe(RECEIVES, number, address, len, WRITE, 0);
        self.offer(RECEIVES, number);
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.memory.read(0, &mut bytes);
        bytes
    }

    /// Returns the pages that have changed.
    fn changed(&self, before: &[u8]) -> Vec<usize> {
        let now = self.contents();
        let pages = now.chunks(4096).zip(before.chunks(4096)).enumerate();
        pages.filter(|(_, (now, before))| now != before).map(|(page, _)| page).collect()
    }

    /// Shares the memory.
    fn share(&self) {
        let region = MemoryRegion::new(GUEST, LEN as u64, self.user, 0);
        let table = MemoryTable::new(1);
        self.say(Request::SET_MEM_TABLE, &[table.as_slice(), region.as_slice()].concat(), &[self.file.as_fd()]);
    }

    fn start(&self, number: u32) {
        self.describe_ring(number);
        self.kick(number);
    }

    /// Sends a ring's size, addresses and base.
    fn describe_ring(&self, number: u32) {
        self.describe_ring_as(number, |_| {});
    }

    /// Like `describe_ring`, with changed addresses.
    fn describe_ring_as(&self, number: u32, change: impl FnOnce(&mut VringAddr)) {
        let state = |value: u32| VringState::new(number, value);
        let at = self.user + u64::from(number) * 3 * 4096;
        let log = at + 8192 - self.user + GUEST;
        let mut addresses =
            VringAddr { index: number, flags: RING_LOGGED, descriptor: at, available: at + 4096, used: at + 8192, log };
        change(&mut addresses);
        self.say(Request::SET_VRING_NUM, state(self.size.into()).as_slice(), &[]);
        self.say(Request::SET_VRING_ADDR, addresses.as_slice(), &[]);
        self.say(Request::SET_VRING_BASE, state(self.base).as_slice(), &[]);
    }

    /// Sends a ring's events, which starts it.
    fn kick(&self, number: u32) {
        let [kick, call] =
            [&self.rings[number as usize].kick, &self.rings[number as usize].call].map(|event| event.as_fd());
        self.say(Request::SET_VRING_CALL, u64::from(number).as_bytes(), &[call]);
        self.say(Request::SET_VRING_KICK, u64::from(number).as_bytes(), &[kick]);
    }

    fn stop(&mut self, number: u32) -> u32 {
        let reply = self.ask(Request::GET_VRING_BASE, VringState::new(number, 0).as_slice());
        parse::<VringState>(&reply).unwrap().0.num
    }

    /// Writes a descriptor of a ring.
    fn describe(&self, ring: u32, number: u16, address: u64, len: u32, flags: u16, next: u16) {
        let [first, second] = &self.rings[ring as usize].table[usize::from(number)];
        first.store(address, Relaxed);
        second.store(u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48, Relaxed);
    }

    /// Makes a chain available.
    fn offer(&mut self, ring: u32, head: u16) {
        let driver = &mut self.rings[ring as usize];
        driver.available[2 + usize::from(driver.added % SIZE)].store(head, Relaxed);
        driver.added = driver.added.wrapping_add(1);
        driver.available[1].store(driver.added, Release);
    }

    fn used(&self, ring: u32) -> u16 {
        self.rings[ring as usize].used[1].load(Acquire)
    }

    /// Writes a frame after a header of zeros, `at` bytes into the buffers, and returns its address.
    fn write(&self, at: usize, frame: &[u8]) -> u64 {
        self.memory.write(BUFFERS + at, &[0; HEADER]);
        self.memory.write(BUFFERS + at + HEADER, frame);
        GUEST + (BUFFERS + at) as u64
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(BUFFERS + at, &mut bytes);
        bytes
    }

    /// Makes a chain available in a packed ring: address, length and flags of each part. The first part is written
    /// last.
    fn offer_packed(&mut self, ring: u32, id: u16, parts: &[(u64, u32, u16)]) {
        let (size, driver) = (self.size, &mut self.rings[ring as usize]);
        for (n, &(address, len, flags)) in parts.iter().enumerate().rev() {
            let at = driver.added + n as u16;
            let owner = if (at / size).is_multiple_of(2) { AVAILABLE } else { USED };
            let next = if n + 1 < parts.len() { NEXT } else { 0 };
            let [first, second] = &driver.table[usize::from(at % size)];
            first.store(address, Relaxed);
            second.store(u64::from(len) | u64::from(id) << 32 | u64::from(flags | next | owner) << 48, Release);
        }
        driver.added += parts.len() as u16;
    }

    /// Resets a packed ring, as a driver does. DPDK writes the ids of its descriptors in advance.
    fn reset(&mut self, ring: u32) {
        for (id, [address, second]) in self.rings[ring as usize].table.iter().enumerate() {
            address.store(0, Relaxed);
            second.store((id as u64) << 32, Relaxed);
        }
        (self.rings[ring as usize].added, self.rings[ring as usize].popped, self.base) = (0, 0, 1 << 15);
    }

    /// Drops a chain of the transmit queue, as QEMU does while its back end is gone: it knows only the base.
    fn drop_as_qemu(&mut self) {
        let position = self.base as u16;
        let (at, owner) = (position & 0x7FFF, if position >> 15 == 1 { AVAILABLE } else { USED });
        let mut descriptors = 0;
        let mut id = None;
        loop {
            let word = &self.rings[1].table[usize::from((at + descriptors) % self.size)][1];
            let flags = (word.load(Acquire) >> 48) as u16;
            if descriptors == 0 && flags & (AVAILABLE | USED) != owner {
                return;
            }
            id.get_or_insert(word.load(Acquire) >> 32 & 0xFFFF);
            descriptors += 1;
            if flags & NEXT == 0 {
                break;
            }
        }
        let used = if position >> 15 == 1 { AVAILABLE | USED } else { 0 };
        self.rings[1].table[usize::from(at)][1].store(id.unwrap() << 32 | u64::from(used) << 48, Release);
        let to = at + descriptors;
        let position =
            u32::from(if to < self.size { position + descriptors } else { (to - self.size) | !position & 0x8000 });
        self.base = position | position << 16;
    }

    /// Pops a returned chain of a packed ring: its id and length.
    fn pop_packed(&mut self, ring: u32, descriptors: u16) -> Option<(u16, u32)> {
        let (size, driver) = (self.size, &mut self.rings[ring as usize]);
        let word = driver.table[usize::from(driver.popped % size)][1].load(Acquire);
        let used = if (driver.popped / size).is_multiple_of(2) { AVAILABLE | USED } else { 0 };
        let is_used = (word >> 48) as u16 & (AVAILABLE | USED) == used;
        driver.popped += if is_used { descriptors } else { 0 };
        is_used.then_some(((word >> 32) as u16, word as u32))
    }

    /// Sends frames of one descriptor each over a packed ring, with ids that are not indexes.
    fn transmit_packed(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let number = self.rings[1].added;
            let address = self.write(usize::from(number % self.size) * 4096, frame);
            self.offer_packed(TRANSMITS, 0xFF00 | number, &[(address, (HEADER + frame.len()) as u32, 0)]);
        }
    }

    /// Sends frames, receives them, and pops their chains.
    #[track_caller]
    fn exchange_packed(&mut self, rx: &mut RxQueue, frames: &[Vec<u8>]) {
        let first = self.rings[1].added;
        self.transmit_packed(frames);
        assert_eq!(receive(rx, frames.len()), frames);
        for n in 0..frames.len() as u16 {
            assert_eq!(self.pop_packed(TRANSMITS, 1), Some((0xFF00 | (first + n), 0)));
        }
    }

    /// Sends frames of one descriptor each.
    fn transmit(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let number = self.rings[1].added % SIZE;
            let address = self.write(usize::from(number) * 4096, frame);
            self.describe(TRANSMITS, number, address, (HEADER + frame.len()) as u32, 0, 0);
            self.offer(TRANSMITS, number);
        }
    }
}

fn is_raised(event: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| (0..60 + n * 17).map(|byte| (n + byte) as u8).collect()).collect()
}

/// Receives until there are `count` packets.
fn receive(rx: &mut RxQueue, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut frames) = (Batch::new(), Vec::new());
    until(|| {
        rx.recv(&mut batch);
        for packet in &mut batch {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            frames.push(bytes);
        }
        batch.clear();
        frames.len() >= count
    });
    frames
}

fn send(tx: &mut TxQueue, pool: &std::sync::Arc<Pool>, frame: &[u8]) -> usize {
    let mut batch = Batch::new();
    assert!(batch.push(pool, frame));
    tx.send(&mut batch)
}

#[test]
fn packets_cross_in_both_directions() {
    let mut test = listening("");
    let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
    assert_eq!((test.port.link().unwrap(), send(&mut tx, &test.pool, &[1; 60])), (Link::Down, 0));
    let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::MRG_RXBUF);
    for _ in 0..5 {
        let sent = frames(10);
        front.transmit(&sent);
        assert_eq!(receive(&mut rx, 10), sent);
    }
    assert_eq!(front.used(TRANSMITS), 50);
    front.memory.write(BUFFERS, &[255; 1 << 16]);
    for n in 0..SIZE {
        front.describe(RECEIVES, n, GUEST + (BUFFERS + usize::from(n) * 4096) as u64, 100, WRITE, 0);
        front.offer(RECEIVES, n);
    }
    assert_eq!(send(&mut tx, &test.pool, &[7; 60]), 1);
    assert_eq!(front.read(0, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 7]);
    // In three buffers of 100 bytes, as counted in the header.
    assert_eq!(send(&mut tx, &test.pool, &[8; 250]), 1);
    assert_eq!(front.read(4096, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 8]);
    assert_eq!((front.read(2 * 4096, 100), front.read(3 * 4096, 63)), (vec![8; 100], [&[8; 62][..], &[255]].concat()));
    let used = |n: usize| front.rings[0].used_ring[n].each_ref().map(|word| word.load(Relaxed));
    assert_eq!([used(0), used(1), used(2), used(3)], [[0, 72], [1, 100], [2, 100], [3, 62]]);
    // 12 buffers are left: 1,200 bytes.
    assert_eq!(send(&mut tx, &test.pool, &[9; 1300]), 0, "it may have room later");
    let statistics = test.port.statistics().unwrap();
    assert_eq!((statistics.rx_packets, statistics.tx_packets, statistics.tx_bytes), (50, 2, 310));
    drop((rx, tx));
    assert_eq!(test.pool.available(), 256);
}

#[test]
fn chains_of_any_kind_are_packets() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::INDIRECT_DESC);
    let frame: Vec<u8> = (0..200).map(|byte| byte as u8).collect();
    // The header alone, then the data in two parts.
    let address = front.write(0, &frame);
    front.describe(TRANSMITS, 0, address, HEADER as u32, NEXT, 5);
    front.describe(TRANSMITS, 5, address + HEADER as u64, 50, NEXT, 2);
    front.describe(TRANSMITS, 2, address + HEADER as u64 + 50, 150, 0, 0);
    front.offer(TRANSMITS, 0);
    // The same in a table.
    let table = GUEST + (BUFFERS + 8192) as u64;
    for (n, (at, len, next)) in [(0, 5u32, 2u16), (110, 102, 0), (5, 105, 1)].into_iter().enumerate() {
        let words = [address + at, u64::from(len) | u64::from(u16::from(next > 0)) << 32 | u64::from(next) << 48];
        front.memory.write(BUFFERS + 8192 + 16 * n, words.as_bytes());
    }
    front.describe(TRANSMITS, 7, table, 48, INDIRECT, 0);
    front.offer(TRANSMITS, 7);
    // The header in a descriptor, then the data in a table (2.7.5.3.2).
    for (n, (at, next)) in [(0, 1u64), (100, 0)].into_iter().enumerate() {
        let words = [address + HEADER as u64 + at, 100 | u64::from(next > 0) << 32 | next << 48];
        front.memory.write(BUFFERS + 8192 + 64 + 16 * n, words.as_bytes());
    }
    front.describe(TRANSMITS, 3, address, HEADER as u32, NEXT, 4);
    front.describe(TRANSMITS, 4, table + 64, 32, INDIRECT, 0);
    front.offer(TRANSMITS, 3);
    assert_eq!(receive(&mut rx, 3), [frame.clone(), frame.clone(), frame]);
}

/// If a driver has not negotiated checksums, packets are complete, whatever their headers request.
#[test]
fn a_checksum_that_was_not_negotiated_is_ignored() {
    let mut test = listening("?offloads=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    let address = front.write(0, &[3; 60]);
    let mut bytes = [0; HEADER];
    (bytes[0], bytes[6]) = (1, 0xFF);
    front.memory.write(BUFFERS, &bytes);
    // In one descriptor, and in two.
    front.describe(TRANSMITS, 0, address, 72, 0, 0);
    front.offer(TRANSMITS, 0);
    front.describe(TRANSMITS, 1, address, HEADER as u32, NEXT, 2);
    front.describe(TRANSMITS, 2, address + HEADER as u64, 60, 0, 0);
    front.offer(TRANSMITS, 1);
    let mut batch = Batch::new();
    until(|| {
        rx.recv(&mut batch);
        batch.len() == 2
    });
    assert!(batch.packets().all(|packet| packet.len() == 60 && packet.offload().is_none()));
}

/// Linux uses checksum and segmentation offloads, which a port without offloads does not offer.
#[test]
fn what_a_checksum_needs_is_inside_the_packet() {
    let mut test = listening("?offloads=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::CSUM);
    for (start, is_valid) in [(34u16, true), (0xFFF0, false), (60, false), (53, false), (52, true)] {
        let address = front.write(0, &[3; 60]);
        let mut bytes = [0; HEADER];
        (bytes[0], bytes[8]) = (1, 6);
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        front.memory.write(BUFFERS, &bytes);
        front.describe(TRANSMITS, 0, address, 72, 0, 0);
        front.offer(TRANSMITS, 0);
        let mut batch = Batch::new();
        let before = front.used(TRANSMITS);
        until(|| {
            rx.recv(&mut batch);
            front.used(TRANSMITS) != before
        });
        assert_eq!(batch.len(), usize::from(is_valid), "{start}");
        for packet in &mut batch {
            assert!(packet.offload().is_some());
        }
    }
    assert_eq!(test.port.statistics().unwrap().drops.malformed, 3);
}

/// Ring states of vhost-user: stopped or started, disabled or enabled.
#[test]
fn a_ring_that_is_disabled_is_emptied_and_a_stopped_one_says_where_it_is() {
    let mut test = listening("");
    let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
    // Frames that were available before the connection are not lost.
    let mut front = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
    front.transmit(&frames(3));
    front.set_up(feature::VERSION_1 | PROTOCOL_FEATURES);
    front.describe(RECEIVES, 0, GUEST + BUFFERS as u64 + 8192, 2000, WRITE, 0);
    front.offer(RECEIVES, 0);
    let mut batch = Batch::new();
    until(|| {
        rx.recv(&mut batch);
        front.used(TRANSMITS) == 3
    });
    assert_eq!((batch.len(), send(&mut tx, &test.pool, &[1; 60])), (0, 0), "they are discarded, and none is sent");
    for number in [RECEIVES, TRANSMITS] {
        front.say(Request::SET_VRING_ENABLE, VringState::new(number, 1).as_slice(), &[]);
    }
    until(|| test.port.link().unwrap() != Link::Down);
    front.transmit(&frames(4));
    assert_eq!(receive(&mut rx, 4), frames(4));
    assert_eq!(send(&mut tx, &test.pool, &[1; 60]), 1);
    assert_eq!((front.stop(TRANSMITS), front.stop(RECEIVES)), (7, 1));
    // No chain is read from a stopped ring; it resumes at its position, whatever base is set.
    front.transmit(&frames(2));
    assert_eq!((rx.recv(&mut batch), front.used(TRANSMITS)), (0, 7));
    front.start(TRANSMITS);
    assert_eq!(receive(&mut rx, 2), frames(2));
    assert_eq!(test.port.statistics().unwrap().rx_packets, 6);
}

/// QEMU stops rings that no program has polled, and restarts them at the same position.
#[test]
fn a_ring_that_nobody_has_looked_at_stops_where_it_began() {
    let test = listening("");
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    front.say(Request::SET_VRING_BASE, VringState::new(TRANSMITS, 7).as_slice(), &[]);
    assert_eq!((front.stop(TRANSMITS), front.stop(RECEIVES)), (7, 0));
}

#[test]
fn an_mtu_beyond_the_port_s_is_refused() {
    let test = listening("?mtu=2000");
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    assert_ne!(front.number(Request::GET_PROTOCOL_FEATURES) & Protocol::MTU.bits(), 0);
    front.say(Request::SET_PROTOCOL_FEATURES, Protocol::REPLY_ACK.bits().as_bytes(), &[]);
    for (mtu, is_refused) in [(1500u64, 0), (2000, 0), (2001, 1u64), (u64::MAX, 1)] {
        let flags = flag::VERSION | flag::NEED_REPLY;
        let header = Header { request: Request::NET_SET_MTU.into(), flags, size: 0 };
        front.connection.send(header, &[mtu.as_bytes()], &[]).unwrap();
        let reply = loop {
            if let Some(message) = front.connection.receive().unwrap() {
                break message.payload;
            }
        };
        assert_eq!(reply, is_refused.as_bytes(), "{mtu}");
    }
}

#[test]
fn memory_is_added_and_removed_while_packets_pass() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    assert_eq!(front.number(Request::GET_MAX_MEM_SLOTS), 64);
    let more = memfd_create("more", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&more, 4096).unwrap();
    let single = SingleRegion::new(GUEST + LEN as u64, 4096, USER + LEN as u64, 0);
    for round in 0..50 {
        front.say(Request::ADD_MEM_REG, single.as_slice(), &[more.as_fd()]);
        front.transmit(&frames(2));
        // A buffer that crosses both regions.
        let end = LEN - BUFFERS - 40;
        front.write(end, &[round; 28]);
        rustix::io::pwrite(&more, &[round; 32], 0).unwrap();
        let number = front.rings[1].added % SIZE;
        front.describe(TRANSMITS, number, GUEST + LEN as u64 - 40, 72, 0, 0);
        front.number(Request::GET_FEATURES); // by now the region is there
        front.offer(TRANSMITS, number);
        assert_eq!(receive(&mut rx, 3), [frames(2), vec![vec![round; 60]]].concat());
        front.say(Request::REM_MEM_REG, single.as_slice(), &[]);
    }
    assert_eq!(test.port.statistics().unwrap().drops.malformed, 0);
}

/// A machine whose MTU is larger than the port's.
#[test]
fn a_frame_that_is_too_long_is_counted_as_that() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    // The header has 12 bytes, and the longest frame 1,518.
    for (n, len) in [12 + 1519, 12 + 13].into_iter().enumerate() {
        front.describe(TRANSMITS, n as u16, GUEST, len, 0, 0);
        front.offer(TRANSMITS, n as u16);
    }
    let (mut batch, drops) = (Batch::new(), || test.port.statistics().unwrap().drops);
    until(|| {
        rx.recv(&mut batch);
        drops().malformed > 0
    });
    assert_eq!((batch.len(), drops().oversize, drops().malformed), (0, 1, 1));
}

/// Each case violates a rule of rings or chains: the ring is no longer read, and nothing else is affected.
#[test]
fn a_ring_that_breaks_the_rules_is_given_up() {
    type Violation = fn(&mut FrontEnd);
    let violations: [(&str, Violation); 11] = [
        ("more is available than the ring has", |front| front.rings[1].available[1].store(2 + 17, Release)),
        ("a head beyond the table", |front| front.offer(TRANSMITS, SIZE)),
        ("a next one beyond the table", |front| {
            front.describe(TRANSMITS, 0, GUEST, 20, NEXT, SIZE);
            front.offer(TRANSMITS, 0);
        }),
        ("a loop", |front| {
            front.describe(TRANSMITS, 0, GUEST, 1, NEXT, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("an address outside", |front| {
            front.describe(TRANSMITS, 0, GUEST - 1, 100, 0, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("a length beyond the end", |front| {
            front.describe(TRANSMITS, 0, GUEST + LEN as u64 - 71, 72, 0, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("an address that wraps around", |front| {
            front.describe(TRANSMITS, 0, u64::MAX - 10, 72, 0, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("a buffer to be written", |front| {
            front.describe(TRANSMITS, 0, GUEST, 72, WRITE, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("a table of half a descriptor", |front| {
            front.describe(TRANSMITS, 0, GUEST, 24, INDIRECT, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("an empty table", |front| {
            front.describe(TRANSMITS, 0, GUEST, 0, INDIRECT, 0);
            front.offer(TRANSMITS, 0);
        }),
        ("a table in a table", |front| {
            front.memory.write(BUFFERS, [GUEST, 16 | u64::from(INDIRECT) << 32].as_bytes());
            front.describe(TRANSMITS, 0, GUEST + BUFFERS as u64, 16, INDIRECT, 0);
            front.offer(TRANSMITS, 0);
        }),
    ];
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    for (n, (what, violation)) in violations.into_iter().enumerate() {
        let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::INDIRECT_DESC);
        front.transmit(&frames(2));
        assert_eq!(receive(&mut rx, 2), frames(2), "{what}");
        violation(&mut front);
        let mut batch = Batch::new();
        until(|| {
            rx.recv(&mut batch);
            test.port.link().unwrap() == Link::Down
        });
        assert_eq!((batch.len(), test.port.statistics().unwrap().drops.malformed), (0, n as u64 + 1), "{what}");
        front.transmit(&frames(2));
        assert_eq!(rx.recv(&mut batch), 0, "{what}");
        drop(front);
        until(|| test.port.info().description.contains("no front end"));
    }
    drop(rx);
    assert_eq!(test.pool.available(), 256);
}

/// The front end truncates its memory while both queues use it.
#[test]
fn memory_that_goes_away_ends_the_connection_and_not_the_process() {
    for _ in 0..3 {
        let mut test = listening("");
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let mut front = FrontEnd::connect(&test, feature::VERSION_1);
        front.transmit(&frames(5));
        assert_eq!(receive(&mut rx, 5), frames(5));
        ftruncate(&front.file, 0).unwrap();
        let mut batch = Batch::new();
        until(|| {
            rx.recv(&mut batch);
            send(&mut tx, &test.pool, &[1; 60]);
            test.port.link().unwrap() == Link::Down
        });
        drop(front.connection);
        std::mem::forget(front.rings); // the test's own mapping of the memory would fault as well
        // The next front end is not affected.
        let mut front = FrontEnd::connect(&test, feature::VERSION_1);
        front.transmit(&frames(5));
        assert_eq!(receive(&mut rx, 5), frames(5));
        drop((rx, tx));
        assert_eq!(test.pool.available() + batch.cached() + batch.len(), 256);
    }
}

/// The log's offset in its file, and the bytes needed for the memory's pages: their guest address is high.
const LOG_AT: u64 = 64;
const LOG_LEN: u64 = (GUEST + LEN as u64) / 4096 / 8;

fn new_log() -> OwnedFd {
    let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, LOG_AT + LOG_LEN).unwrap();
    file
}

/// Returns the memory's pages that are marked in a log, and clears it. No other page may be marked.
fn logged(log: &OwnedFd) -> Vec<usize> {
    let mut bytes = vec![0; (LOG_AT + LOG_LEN) as usize];
    rustix::io::pread(log, &mut bytes[..], 0).unwrap();
    rustix::io::pwrite(log, &vec![0; bytes.len()], 0).unwrap();
    let (others, pages) = bytes.split_at((LOG_AT + GUEST / 4096 / 8) as usize);
    assert!(others.iter().all(|&byte| byte == 0));
    (0..LEN / 4096).filter(|page| pages[page / 8] & 1 << (page % 8) != 0).collect()
}

/// During a migration, each page that the back end writes is logged: rings, buffers, and writes that cross pages.
#[test]
fn a_log_has_every_page_that_is_written() {
    for features in [feature::VERSION_1, feature::VERSION_1 | feature::RING_PACKED] {
        let features = features | feature::MRG_RXBUF;
        let mut test = listening("?packed=on");
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let mut front = match features & feature::RING_PACKED {
            0 => FrontEnd::connect(&test, features),
            _ => FrontEnd::connect_packed(&test, SIZE, features),
        };
        front.memory.write(BUFFERS, &[0x55; LEN - BUFFERS]);
        let log = new_log();
        for n in 0..SIZE {
            // 96 bytes before the end of a page.
            front.offer_buffer(n, GUEST + (BUFFERS + usize::from(n) * 8192 + 4000) as u64, 300, features);
        }
        assert_eq!(send(&mut tx, &test.pool, &[1; 60]), 1);
        front.log(&log, (LOG_LEN, LOG_AT), features);
        assert!(logged(&log).is_empty(), "nothing is written");
        // In one page, in two pages, and in three buffers; the buffers begin at page 16.
        let before = front.contents();
        for len in [60, 90, 700] {
            assert_eq!(send(&mut tx, &test.pool, &vec![1; len]), 1);
        }
        let (pages, changed) = (logged(&log), front.changed(&before));
        let buffers: Vec<_> = [18].into_iter().chain(20..28).collect();
        assert!(changed.iter().all(|page| pages.contains(page)), "{changed:?} was written, logged is {pages:?}");
        assert_eq!(pages.iter().filter(|&&page| page >= BUFFERS / 4096).copied().collect::<Vec<_>>(), buffers);
        // Receiving writes only to the ring.
        let frame = vec![7; 60];
        if features & feature::RING_PACKED != 0 {
            front.transmit_packed(std::slice::from_ref(&frame));
        } else {
            front.transmit(std::slice::from_ref(&frame));
        }
        let before = front.contents();
        assert_eq!(receive(&mut rx, 1), [frame]);
        let (pages, changed) = (logged(&log), front.changed(&before));
        assert!(!changed.is_empty() && changed.iter().all(|page| pages.contains(page)), "{changed:?}, {pages:?}");
        assert!(pages.iter().all(|page| (3..6).contains(page)), "{pages:?}");
        // The migration is cancelled.
        front.set_features(features);
        logged(&log);
        assert_eq!(send(&mut tx, &test.pool, &[1; 60]), 1);
        assert!(logged(&log).is_empty());
        assert_eq!(test.port.statistics().unwrap().drops.malformed, 0);
    }
}

/// A log that is too short for an address is not written for it. A truncated log ends the queues, not the process.
#[test]
fn a_log_is_not_trusted() {
    for (what, size, used, is_truncated) in [
        ("a log that is too short", 8, GUEST, false),
        ("a used ring that is nowhere", LOG_LEN, u64::MAX - 3, false),
        ("a log that is truncated", LOG_LEN, GUEST, true),
    ] {
        let mut test = listening("");
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let mut front = FrontEnd::connect(&test, feature::VERSION_1);
        let log = new_log();
        front.log(&log, (size, LOG_AT), feature::VERSION_1);
        for index in [RECEIVES, TRANSMITS] {
            let at = USER + u64::from(index) * 3 * 4096;
            let (available, flags) = (at + 4096, RING_LOGGED);
            let addresses = VringAddr { index, flags, descriptor: at, available, used: at + 8192, log: used };
            front.say(Request::SET_VRING_ADDR, addresses.as_slice(), &[]);
        }
        front.number(Request::GET_FEATURES);
        if is_truncated {
            ftruncate(&log, 0).unwrap();
        }
        for n in 0..SIZE {
            front.offer_buffer(n, GUEST + (BUFFERS + usize::from(n) * 4096) as u64, 1600, 0);
        }
        front.transmit(&frames(5));
        assert_eq!(receive(&mut rx, 5), frames(5), "{what}");
        assert_eq!(send(&mut tx, &test.pool, &[1; 60]), 1, "{what}");
        let state = test.port.link().unwrap();
        assert_eq!(state == Link::Down, is_truncated, "{what}");
        // The next front end is not affected.
        drop(front);
        let mut front = FrontEnd::connect(&test, feature::VERSION_1);
        front.transmit(&frames(5));
        assert_eq!(receive(&mut rx, 5), frames(5), "{what}");
    }
}

/// A client waits for its server, but a path where no server can ever listen is an immediate error.
#[test]
fn a_path_where_no_server_can_be_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = folder.path().join("x".repeat(108));
    for (path, why) in
        [(&file, "it is not a socket"), (&folder.path().into(), "it is not a socket"), (&long, "too long")]
    {
        for name in [format!("vhost:{}?client=on", path.display()), format!("memif:{}", path.display())] {
            let error = Options { pool: Some(pool()), ..Options::default() }.open([&*name]).map(drop).unwrap_err();
            assert!(error.kind() == ErrorKind::Unusable && error.to_string().contains(why), "{name}: {error}");
        }
    }
}

/// Front ends that send nothing, or stop within their first message, do not block others. One that stops within a later
/// message is disconnected after ten seconds.
#[test]
fn a_silent_front_end_does_not_keep_the_next_one_out() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut socket = UnixStream::connect(&test.path).unwrap();
        socket.write_all(&[1, 0, 0][..n % 2 * 3]).unwrap();
        silent.push(socket);
    }
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    front.transmit(&frames(3));
    assert_eq!(receive(&mut rx, 3), frames(3));
    drop(silent);

    let mut socket: &UnixStream = front.connection.socket();
    socket.write_all(&[1, 0, 0]).unwrap();
    let begin = std::time::Instant::now();
    let mut events = [PollFd::new(front.connection.socket(), PollFlags::HUP)];
    // The port must end the connection.
    while poll(&mut events, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })) != Ok(1) {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "it keeps the connection");
    }
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    front.transmit(&frames(3));
    assert_eq!(receive(&mut rx, 3), frames(3));
}

/// After a migration, the front end requests an announcement of the guest's address, unless the guest sends it.
#[test]
fn a_guest_that_has_moved_is_announced() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let address = [0x52, 0x54, 0, 1, 2, 3];
    let number = u64::from_le_bytes([0x52, 0x54, 0, 1, 2, 3, 0, 0]);
    for (features, count) in [(0, 1), (feature::GUEST_ANNOUNCE, 0)] {
        let features = feature::VERSION_1 | features;
        let mut front = FrontEnd::connect(&test, features);
        front.say(Request::SEND_RARP, number.as_bytes(), &[]);
        // A change of the setup does not repeat the announcement.
        front.set_features(features);
        let announced = receive(&mut rx, count);
        front.set_features(features);
        front.transmit(&frames(3));
        assert_eq!(receive(&mut rx, 3), frames(3));
        assert_eq!(announced.len(), count);
        for frame in announced {
            let fields = [&[0xFF; 6][..], &address, &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3], &address, &[0; 4], &address];
            assert_eq!(frame, [&fields.concat()[..], &[0; 22]].concat());
        }
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn lie_of_log(front: &mut FrontEnd, size: u64, offset: u64) {
    front.say(Request::SET_LOG_BASE, LogBase::new(size, offset).as_slice(), &[new_log().as_fd()]);
}

/// Each message violates the protocol: the connection ends, and the next front end is served.
#[test]
fn a_message_that_breaks_the_protocol_ends_its_connection_alone() {
    type Violation = fn(&mut FrontEnd);
    let violations: [(&str, Violation); 20] = [
        ("an unknown request", |front| front.say(99u32, &[], &[])),
        ("a reply", |front| front.say_with(flag::VERSION | flag::REPLY)),
        ("another version", |front| front.say_with(2)),
        ("a queue that is not there", |front| {
            front.say(Request::SET_VRING_NUM, VringState::new(2, 16).as_slice(), &[]);
        }),
        ("a queue that is not there, by its event", |front| {
            let kick = Interrupt::new().unwrap();
            front.say(Request::SET_VRING_KICK, 200u64.as_bytes(), &[kick.as_fd()]);
        }),
        ("a size that is no power of two", |front| {
            front.say(Request::SET_VRING_NUM, VringState::new(0, 17).as_slice(), &[]);
        }),
        ("a size of nothing", |front| {
            front.say(Request::SET_VRING_NUM, VringState::new(0, 0).as_slice(), &[]);
        }),
        ("a size beyond 16 bits", |front| {
            front.say(Request::SET_VRING_NUM, VringState::new(0, 1 << 16).as_slice(), &[]);
        }),
        ("no event", |front| front.say(Request::SET_VRING_KICK, 0u64.as_bytes(), &[])),
        ("an event that is none", |front| {
            let file = front.file.try_clone().unwrap();
            front.say(Request::SET_VRING_KICK, 0u64.as_bytes(), &[file.as_fd()]);
        }),
        ("features that were not offered", |front| front.say(Request::SET_FEATURES, u64::MAX.as_bytes(), &[])),
        ("a short message", |front| front.say(Request::SET_FEATURES, &[1], &[])),
        ("memory without its file", |front| {
            let table = MemoryTable::new(1);
            front.say(Request::SET_MEM_TABLE, &[table.as_slice(), &[0; 32]].concat(), &[]);
        }),
        ("memory beyond its file", |front| {
            let region = MemoryRegion::new(GUEST, LEN as u64, USER, 4096);
            let table = MemoryTable::new(1);
            let file = front.file.try_clone().unwrap();
            front.say(Request::SET_MEM_TABLE, &[table.as_slice(), region.as_slice()].concat(), &[file.as_fd()]);
        }),
        ("a log without its file", |front| front.say(Request::SET_LOG_BASE, &[8; 16], &[])),
        ("a log that is longer than its file", |front| lie_of_log(front, LOG_LEN + 8, LOG_AT)),
        ("a log that ends behind all files", |front| lie_of_log(front, 8, u64::MAX - 7)),
        ("a log between words", |front| lie_of_log(front, 8, 4)),
        ("a log of nothing", |front| lie_of_log(front, 0, 0)),
        ("memory that is a pipe", |front| {
            let (pipe, _other) = std::io::pipe().unwrap();
            let region = MemoryRegion::new(GUEST, LEN as u64, USER, 0);
            let table = MemoryTable::new(1);
            front.say(Request::SET_MEM_TABLE, &[table.as_slice(), region.as_slice()].concat(), &[pipe.as_fd()]);
        }),
    ];
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    for (what, violation) in violations {
        let mut front = FrontEnd::connect(&test, feature::VERSION_1);
        front.transmit(&frames(2));
        assert_eq!(receive(&mut rx, 2), frames(2), "{what}");
        violation(&mut front);
        let end = loop {
            match front.connection.receive() {
                Ok(None) => {}
                Ok(Some(message)) => panic!("{what}: {message:?}"),
                Err(error) => break error.kind(),
            }
        };
        // Unread bytes turn the end of the connection into a reset.
        assert!([std::io::ErrorKind::UnexpectedEof, std::io::ErrorKind::ConnectionReset].contains(&end), "{what}");
    }
}

/// A client keeps connecting until its server is there, and reconnects when the server is gone.
#[test]
fn a_client_connects_whenever_it_can() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    let pool = pool();
    let options = Options { pool: Some(pool.clone()), ..Options::default() };
    let [mut port] = options.open([&*format!("vhost:{}?client=on", path.display())]).unwrap();
    let mut rx = port.rx(0).unwrap();
    for _ in 0..3 {
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut front = FrontEnd::new(accepted(&listener));
        front.set_up(feature::VERSION_1);
        until(|| port.link().unwrap() != Link::Down);
        front.transmit(&frames(3));
        assert_eq!(receive(&mut rx, 3), frames(3));
        std::fs::remove_file(&path).unwrap();
    }
    let [again, free] = ["again", "free"].map(|name| folder.path().join(name));
    std::fs::write(&again, "").unwrap();
    let taken = Options::default().open([&*format!("vhost:{}", again.display())]).map(drop).unwrap_err();
    assert!(taken.kind() == ErrorKind::BadName, "{taken}");
    drop(Options::default().open([&*format!("vhost:{}", free.display())]).unwrap());
    assert!(!free.exists(), "the socket goes with its port");
}

/// A server may accept any client, and a server with a full backlog accepts none.
#[test]
fn a_client_ends_whatever_its_server_does() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let name = format!("vhost:{}?client=on", path.display());
    let [port] = Options { pool: Some(pool()), ..Options::default() }.open([&*name]).unwrap();
    drop(accepted(&listener));
    drop(port);
    let [port] = Options { pool: Some(pool()), ..Options::default() }.open([&*name]).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = accepted(&listener);
    let others: Vec<_> = std::iter::from_fn(|| linerate_core::unix_socket::connect(&path).ok()).take(1000).collect();
    assert!(others.len() < 1000);
    drop((first, port));
}

#[test]
fn a_front_end_that_comes_and_goes_leaves_nothing_behind() {
    let test = listening("");
    drop(FrontEnd::connect(&test, feature::VERSION_1));
    until(|| test.port.info().description.contains("no front end"));
    let before = open_files();
    for _ in 0..50 {
        drop(FrontEnd::connect(&test, feature::VERSION_1));
        until(|| test.port.info().description.contains("no front end"));
    }
    // Other tests may open files at the same time.
    until(|| open_files() <= before + 20);
}

/// All kinds of chains, over several rounds of rings of various sizes.
#[test]
fn packed_rings_carry_packets_in_both_directions() {
    for size in [SIZE, 11] {
        let mut test = listening("?packed=on");
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let mut front = FrontEnd::connect_packed(&test, size, feature::MRG_RXBUF | feature::INDIRECT_DESC);
        assert!(test.port.info().description.contains("packed"));
        let frame: Vec<u8> = (0..200).map(|byte| byte as u8).collect();
        for round in 0..20u16 {
            front.exchange_packed(&mut rx, &frames(2));
            let address = front.write(0, &frame);
            let rest = address + HEADER as u64;
            front.offer_packed(TRANSMITS, 900 + round, &[(address, 12, 0), (rest, 50, 0), (rest + 50, 150, 0)]);
            // All descriptors of a table, in order, whatever their flags.
            for (n, (at, len)) in [(0, 5u32), (5, 105), (110, 102)].into_iter().enumerate() {
                front.memory.write(BUFFERS + 8192 + 16 * n, [address + at, u64::from(len) | 7 << 32].as_bytes());
            }
            front.offer_packed(TRANSMITS, round, &[(GUEST + (BUFFERS + 8192) as u64, 48, INDIRECT)]);
            assert_eq!(receive(&mut rx, 2), [frame.clone(), frame.clone()]);
            let popped =
                [front.pop_packed(TRANSMITS, 3), front.pop_packed(TRANSMITS, 1), front.pop_packed(TRANSMITS, 1)];
            assert_eq!(popped, [Some((900 + round, 0)), Some((round, 0)), None]);
        }
        let mut number = 0;
        for round in 0..20 {
            while front.rings[0].added - front.rings[0].popped < size {
                let address = GUEST + (BUFFERS + usize::from(front.rings[0].added % size) * 4096) as u64;
                front.offer_packed(RECEIVES, 0x8000 | number, &[(address, 100, WRITE)]);
                number += 1;
            }
            let first = front.rings[0].popped;
            let at = |n: u16| usize::from((first + n) % size) * 4096;
            assert_eq!(send(&mut tx, &test.pool, &[round; 60]), 1);
            assert_eq!(front.read(at(0), 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, round]);
            // In three buffers of 100 bytes, as counted in the header.
            assert_eq!(send(&mut tx, &test.pool, &[round; 250]), 1);
            assert_eq!(front.read(at(1), 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, round]);
            assert_eq!((front.read(at(2), 100), front.read(at(3), 62)), (vec![round; 100], vec![round; 62]));
            for (n, len) in [72, 100, 100, 62].into_iter().enumerate() {
                assert_eq!(front.pop_packed(RECEIVES, 1), Some((0x8000 | (first + n as u16), len)));
            }
            assert_eq!(front.pop_packed(RECEIVES, 1), None);
            assert_eq!(send(&mut tx, &test.pool, &[9; 1400]), 0, "it may have room later");
        }
        // The packet is longer than all buffers that the ring can hold.
        while front.rings[0].added - front.rings[0].popped < size {
            front.offer_packed(RECEIVES, 0, &[(GUEST + BUFFERS as u64, 40, WRITE)]);
        }
        let deadline = Deadline::begin();
        while test.port.statistics().unwrap().drops.tx_too_long == 0 {
            deadline.check(|| format!("a packet that is too long: {:?}", test.port.statistics()));
            assert_eq!(send(&mut tx, &test.pool, &[9; 1400]), 1);
        }
        drop((rx, tx));
        assert_eq!(test.pool.available(), 256);
    }
}

/// The driver's event suppression (VIRTIO 1.2, 2.8.10).
#[test]
fn a_packed_ring_s_driver_chooses_its_interrupts() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, feature::EVENT_IDX);
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    assert_eq!(rx.recv(&mut Batch::new()), 0);
    front.rings[1].call.clear(); // raised at the connection's start
    let mut exchange = |event: u32, count: usize| {
        // The driver's structure is on the second page of the ring.
        front.memory.write(4 * 4096, &event.to_le_bytes());
        front.exchange_packed(&mut rx, &frames(count));
        let is_raised = is_raised(&front.rings[1].call);
        front.rings[1].call.clear();
        is_raised
    };
    const FIRST_ROUND: u32 = 1 << 15;
    assert_eq!((exchange(DISABLE, 2), exchange(ENABLE, 2)), (false, true)); // 4 are used
    assert!(exchange(DESC | FIRST_ROUND | 4, 2) && !exchange(DESC | FIRST_ROUND | 4, 2)); // 8
    assert!(!exchange(DESC | FIRST_ROUND | 10, 2) && exchange(DESC | FIRST_ROUND | 11, 2)); // 12
    assert!(!exchange(DESC | 1, 4) && !exchange(DESC | 2, 2) && exchange(DESC | 2, 1), "in the second round");
    assert!(!exchange(DESC | FIRST_ROUND | 3, 1), "an index of the first round");
    assert!(!exchange(DESC | 0x7FFF, 1) && exchange(3 << 16, 1), "what is not defined");
}

/// Like [`a_ring_that_breaks_the_rules_is_given_up`]. Descriptors that are not marked available are not read.
#[test]
fn a_packed_ring_that_breaks_the_rules_is_given_up() {
    type Violation = fn(&mut FrontEnd);
    fn one(front: &mut FrontEnd, address: u64, len: u32, flags: u16) {
        front.offer_packed(TRANSMITS, 0, &[(address, len, flags)]);
    }
    let violations: [(&str, Violation); 12] = [
        ("a chain that goes on where nothing is available", |front| one(front, GUEST, 20, NEXT)),
        ("a chain that is longer than the ring", |front| {
            front.offer_packed(TRANSMITS, 0, &[(GUEST, 20, NEXT); SIZE as usize]);
        }),
        ("a chain whose rest is of the other round", |front| {
            front.offer_packed(TRANSMITS, 0, &[(GUEST, 20, 0), (GUEST, 60, AVAILABLE | USED)]);
        }),
        ("an address outside", |front| one(front, GUEST - 1, 100, 0)),
        ("a length beyond the end", |front| one(front, GUEST + LEN as u64 - 71, 72, 0)),
        ("an address that wraps around", |front| one(front, u64::MAX - 10, 72, 0)),
        ("a buffer to be written", |front| one(front, GUEST, 72, WRITE)),
        ("a table of half a descriptor", |front| one(front, GUEST, 24, INDIRECT)),
        ("an empty table", |front| one(front, GUEST, 0, INDIRECT)),
        ("a table beyond the end", |front| one(front, GUEST + LEN as u64 - 16, 32, INDIRECT)),
        ("a table in a table", |front| {
            front.memory.write(BUFFERS, [GUEST, 16 | u64::from(INDIRECT) << 48].as_bytes());
            one(front, GUEST + BUFFERS as u64, 16, INDIRECT);
        }),
        ("a table behind a descriptor", |front| {
            front.offer_packed(TRANSMITS, 0, &[(GUEST, 20, 0), (GUEST, 16, INDIRECT)]);
        }),
    ];
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    for (n, (what, violation)) in violations.into_iter().enumerate() {
        let mut front = FrontEnd::connect_packed(&test, SIZE, feature::INDIRECT_DESC);
        front.exchange_packed(&mut rx, &frames(2));
        let mut batch = Batch::new();
        for owner in [0, AVAILABLE | USED, USED] {
            front.rings[1].table[2][1].store(100 | u64::from(owner) << 48, Release);
            assert_eq!(rx.recv(&mut batch), 0);
        }
        assert_ne!(test.port.link().unwrap(), Link::Down, "{what}");
        violation(&mut front);
        until(|| {
            rx.recv(&mut batch);
            test.port.link().unwrap() == Link::Down
        });
        assert_eq!((batch.len(), test.port.statistics().unwrap().drops.malformed), (0, n as u64 + 1), "{what}");
        drop(front);
        until(|| test.port.info().description.contains("no front end"));
    }
    drop(rx);
    assert_eq!(test.pool.available(), 256);
}

/// A base outside the ring, which QEMU never sends.
#[test]
fn a_packed_ring_that_begins_outside_is_given_up() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    front.stop(TRANSMITS);
    front.base = 1 << 15 | u32::from(SIZE);
    front.start(TRANSMITS);
    until(|| {
        rx.recv(&mut Batch::new());
        test.port.link().unwrap() == Link::Down
    });
}

/// QEMU stops rings when its machine pauses or resets. It restarts them at the reported position, or at the beginning.
#[test]
fn a_packed_ring_that_is_stopped_says_where_it_is() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    front.exchange_packed(&mut rx, &frames(7));
    assert_eq!((front.stop(TRANSMITS), front.stop(RECEIVES)), (0x8007_8007, 0x8000_8000));
    for (base, end) in [(0x8007_8007, 0x000D_000D), (0x000D, 0x0003_0003)] {
        front.base = base;
        front.start(TRANSMITS);
        front.exchange_packed(&mut rx, &frames(11));
        front.exchange_packed(&mut rx, &frames(11));
        assert_eq!(front.stop(TRANSMITS), end);
    }
    front.reset(TRANSMITS);
    front.start(TRANSMITS);
    front.exchange_packed(&mut rx, &frames(11));
}

/// The front end sends the same base as to the killed process, because that process never reported another base.
#[test]
fn packed_rings_go_on_after_a_kill() {
    let mut test = listening("?packed=on");
    let rings = test.folder.path().join("socket.rings");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    front.exchange_packed(&mut rx, &frames(13));
    let killed = |test: TestPort, rx: RxQueue| {
        let TestPort { port, folder, .. } = test;
        drop((rx, port));
        let mut test = listening_in(folder, "?packed=on");
        let rx = test.port.rx(0).unwrap();
        (test, rx)
    };
    for _ in 0..2 {
        // Chains available at a kill are not lost, nor are chains at the end of a connection.
        for is_kill in [true, false] {
            front.transmit_packed(&frames(2));
            if is_kill {
                (test, rx) = killed(test, rx);
            }
            front = front.connect_again(&test, PACKED);
            assert_eq!(receive(&mut rx, 2), frames(2));
            assert!(front.pop_packed(TRANSMITS, 1).is_some() && front.pop_packed(TRANSMITS, 1).is_some());
            front.exchange_packed(&mut rx, &frames(9));
        }
    }
    // The process was killed after it exposed the last of three chains, but not the first two.
    let at = front.rings[1].added % SIZE;
    let address = front.write(0, &[1; 60]);
    for parts in [&[(address, 72, 0)][..], &[(address, 40, 0), (address, 32, 0)], &[(address, 72, 0)]] {
        front.offer_packed(TRANSMITS, 7, parts);
    }
    (test, rx) = killed(test, rx);
    let mut file = std::fs::read(&rings).unwrap();
    let recorded = u64::from_le_bytes(file[72..80].try_into().unwrap());
    assert_eq!(((recorded & 0x7FFF) as u16, recorded >> 48), (at, 0x8000));
    let is_first_round = recorded & 0x8000 != 0;
    file[72..80].copy_from_slice(
        &(recorded & !0xFFFF_FFFF | (recorded & 0xFFFF) << 16 | ((recorded & 0xFFFF) + 4)).to_le_bytes(),
    );
    std::fs::write(&rings, file).unwrap();
    let used = if is_first_round { AVAILABLE | USED } else { 0 };
    front.rings[1].table[usize::from(at) + 3][1].store(60 | 7 << 32 | u64::from(used) << 48, Relaxed);
    front = front.connect_again(&test, PACKED);
    front.number(Request::GET_FEATURES);
    front.rings[1].call.clear(); // raised at the connection's start
    let mut batch = Batch::new();
    until(|| {
        rx.recv(&mut batch);
        front.pop_packed(TRANSMITS, 1) == Some((7, 0))
    });
    assert!(is_raised(&front.rings[1].call), "the driver may wait for them");
    assert_eq!(
        [front.pop_packed(TRANSMITS, 2), front.pop_packed(TRANSMITS, 1)],
        [Some((7, 0)); 2],
        "they come back empty"
    );
    assert!(batch.is_empty());
    front.exchange_packed(&mut rx, &frames(9));
    // The driver resets its rings while there is no back end: the base is the same, but the rings are new.
    (test, rx) = killed(test, rx);
    front.reset(TRANSMITS);
    front = front.connect_again(&test, PACKED);
    front.exchange_packed(&mut rx, &frames(9));
    // A front end that has stopped its rings knows their positions, so the file is removed with the port.
    assert_eq!((front.stop(RECEIVES), front.stop(TRANSMITS)), (0x8000_8000, 0x8009_8009));
    assert!(rings.exists());
    drop((rx, test.port));
    assert!(!rings.exists());
}

/// A ring resumes after the chains that QEMU dropped while there was no back end.
#[test]
fn packed_rings_go_on_behind_what_qemu_has_dropped() {
    // Frames before the kill, descriptors of each waiting chain, number of chains returned empty, and what QEMU drops.
    // In odd rounds, QEMU drops the chain at index 0, if there is one.
    for (before, waiting, empty, what) in [
        (0, &[1, 1, 1][..], 1, "what is next"),
        (32, &[1, 1], 1, "what is next, in a later round"),
        (29, &[1, 1, 1, 1, 1], 4, "what is behind three chains"),
        (29, &[1, 1, 3, 1], 3, "the last two of a chain's descriptors"),
        (31, &[3], 1, "the last two of the only chain's descriptors"),
        (29, &[1, 1], 0, "nothing: index 0 is not available"),
        (37, &[1, 1], 0, "nothing: index 0 is used"),
    ] {
        let mut test = listening("?packed=on");
        let mut rx = test.port.rx(0).unwrap();
        let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
        for _ in 0..before {
            front.exchange_packed(&mut rx, &frames(1));
        }
        for (n, &descriptors) in waiting.iter().enumerate() {
            let address = front.write(4096 * n, &[n as u8; 60]);
            let parts = match descriptors {
                3 => &[(address, 40, 0), (address + 40, 20, 0), (address + 60, 12, 0)][..],
                _ => &[(address, 72, 0)],
            };
            front.offer_packed(TRANSMITS, 7 + n as u16, parts);
        }
        let TestPort { port, folder, .. } = test;
        drop((rx, port));
        front.drop_as_qemu();
        let mut test = listening_in(folder, "?packed=on");
        let mut rx = test.port.rx(0).unwrap();
        front = front.connect_again(&test, PACKED);
        let left = waiting.len() - empty;
        let expected: Vec<_> = (empty..waiting.len()).map(|n| vec![n as u8; 60]).collect();
        assert_eq!(receive(&mut rx, left), expected, "{what}");
        for (n, &descriptors) in waiting.iter().enumerate() {
            until(|| {
                rx.recv(&mut Batch::new());
                front.pop_packed(TRANSMITS, descriptors) == Some((7 + n as u16, 0))
            });
        }
        for _ in 0..40 {
            front.exchange_packed(&mut rx, &frames(1));
        }
    }
}

/// At its base, QEMU may find the rest of a chain of an earlier round, and drop it.
#[test]
fn what_qemu_drops_behind_a_packed_ring_s_place_is_nothing() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    (0..31).for_each(|_| front.exchange_packed(&mut rx, &frames(1)));
    let address = front.write(0, &[1; 60]);
    front.offer_packed(TRANSMITS, 7, &[(address, 40, 0), (address + 40, 32, 0)]);
    assert_eq!(receive(&mut rx, 1), [vec![1; 60]]);
    assert_eq!(front.pop_packed(TRANSMITS, 2), Some((7, 0)));
    (0..4).for_each(|_| front.exchange_packed(&mut rx, &frames(1)));
    front.drop_as_qemu();
    assert_eq!(front.base, 0x8001_8001);
    let first = front.rings[1].added;
    front.transmit_packed(&frames(3));
    front = front.connect_again(&test, PACKED);
    assert_eq!(receive(&mut rx, 3), frames(3));
    (0..3).for_each(|n| assert_eq!(front.pop_packed(TRANSMITS, 1), Some((0xFF00 | (first + n), 0))));
    (0..40).for_each(|_| front.exchange_packed(&mut rx, &frames(1)));
}

/// A machine that migrates here has other rings; the record belongs to the previous rings.
#[test]
fn another_front_end_s_packed_rings_begin_where_it_names() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    front.exchange_packed(&mut rx, &frames(7));
    drop(front);
    until(|| test.port.info().description.contains("no front end"));
    let other = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
    let mut other = FrontEnd { user: USER + LEN as u64, base: 0x0003_0003, ..other };
    // The other machine has used three descriptors in the second round.
    for n in 0..SIZE {
        let used = if n < 3 { 0 } else { AVAILABLE | USED };
        other.rings[1].table[usize::from(n)][1].store(u64::from(used) << 48, Relaxed);
    }
    (other.rings[1].added, other.rings[1].popped) = (SIZE + 3, SIZE + 3);
    other = other.up(&test, PACKED);
    (0..40).for_each(|_| other.exchange_packed(&mut rx, &frames(1)));
}

/// A back end killed between using buffers and raising the interrupt leaves a waiting driver.
#[test]
fn a_new_back_end_interrupts_the_driver_once() {
    let test = listening("");
    let front = FrontEnd::connect(&test, feature::VERSION_1);
    assert!(front.rings.iter().all(|ring| is_raised(&ring.call)));
}

/// A stopped ring's position is right even if no queue has polled it since the kill.
#[test]
fn a_packed_ring_that_nobody_has_looked_at_stops_where_it_was() {
    let mut test = listening("?packed=on");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect_packed(&test, SIZE, 0);
    front.exchange_packed(&mut rx, &frames(5));
    front = front.connect_again(&test, PACKED);
    assert_eq!((front.stop(RECEIVES), front.stop(TRANSMITS)), (0x8000_8000, 0x8005_8005));
}

/// A file of another user, or a file with another purpose, is rejected.
#[test]
fn the_position_file_is_this_user_s_own() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let folder = TempDir::new().unwrap();
    let [socket, rings, other] = ["socket", "socket.rings", "other"].map(|name| folder.path().join(name));
    let name = format!("vhost:{}?packed=on", socket.display());
    let open = || Options { pool: Some(pool()), ..Options::default() }.open([&*name]);
    let first = open().unwrap();
    assert_eq!(std::fs::metadata(&rings).unwrap().permissions().mode() & 0o777, 0o600);
    let contents = std::fs::read(&rings).unwrap();
    let refused = |what: &str| {
        let error = open().map(drop).expect_err(what);
        assert!(error.subject() == rings.display().to_string(), "{what}: {error}");
    };
    std::fs::remove_file(&socket).unwrap();
    refused("it is in use");
    drop(first);
    std::fs::write(&other, &contents).unwrap();
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).unwrap();
    symlink(&other, &rings).unwrap();
    refused("a symbolic link");
    std::fs::remove_file(&rings).unwrap();
    std::fs::hard_link(&other, &rings).unwrap();
    refused("a second name");
    std::fs::remove_file(&other).unwrap();
    for wrong in [&contents[1..], &[0; 4096], &[contents.clone(), vec![0]].concat()] {
        std::fs::write(&rings, wrong).unwrap();
        refused("other contents");
    }
    std::fs::write(&rings, &contents).unwrap();
    std::fs::set_permissions(&rings, PermissionsExt::from_mode(0o660)).unwrap();
    refused("others may write it");
    std::fs::set_permissions(&rings, PermissionsExt::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&rings, Some(1), None).unwrap();
        refused("another user's");
        chown(&rings, Some(0), None).unwrap();
    }
    drop(open().unwrap());
    std::fs::write(&rings, []).unwrap();
    std::fs::set_permissions(&rings, PermissionsExt::from_mode(0o600)).unwrap();
    drop(open().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any contents of both rings, each call ends, and no buffer is lost.
    #[test]
    fn any_ring_is_survived(
        descriptors in prop::collection::vec((0..6u64, 0..3000u32, 0..8u16, 0..20u16), 2 * SIZE as usize),
        heads in prop::collection::vec(0..20u16, 2 * SIZE as usize),
        more in 0..20u16,
        features in prop::sample::select(vec![0, feature::MRG_RXBUF, feature::CSUM, feature::INDIRECT_DESC]),
    ) {
        let mut test = listening("?offloads=on&mtu=9000");
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let front = FrontEnd::connect(&test, feature::VERSION_1 | features);
        for (n, (base, len, flags, next)) in descriptors.into_iter().enumerate() {
            let (ring, number) = (n as u32 / u32::from(SIZE), n as u16 % SIZE);
            // Buffers, the rings themselves, the end of the memory, and addresses outside it.
            let address = [GUEST + BUFFERS as u64, GUEST, GUEST + LEN as u64 - 100, GUEST + 3 * 4096, 0, u64::MAX - 50];
            front.describe(ring, number, address[base as usize] + u64::from(len) % 3, len, flags, next);
            front.rings[ring as usize].available[2 + usize::from(number)].store(heads[n], Relaxed);
        }
        let mut batch = Batch::with_capacity(64);
        for driver in &front.rings {
            driver.available[1].store(more, Release);
        }
        for _ in 0..4 {
            rx.recv(&mut batch);
            for packet in batch.packets() {
                prop_assert!((14..=65_553).contains(&packet.len()));
            }
            tx.send(&mut batch);
            batch.clear();
        }
        drop((rx, tx, batch));
        prop_assert_eq!(test.pool.available(), 256);
    }

    /// The same for packed rings, with arbitrary positions recorded by a previous process.
    #[test]
    fn any_packed_ring_is_survived(
        descriptors in prop::collection::vec((0..6u64, 0..3000u32, 0..8u16, 0..4u16), 2 * SIZE as usize),
        size in 1..=SIZE,
        position_left in prop::option::of([any::<u16>(), any::<u16>()]),
        features in prop::sample::select(vec![0, feature::MRG_RXBUF, feature::CSUM, feature::INDIRECT_DESC]),
    ) {
        let folder = TempDir::new().unwrap();
        let mut test = listening_in(folder, "?offloads=on&mtu=9000&packed=on");
        if let Some([from, to]) = position_left {
            let rings = test.folder.path().join("socket.rings");
            let mut file = std::fs::read(&rings).unwrap();
            let last = u64::from((size - 1) | 0x8000);
            let recorded = u64::from(to % 32) | u64::from(from % 32) << 16 | last << 32 | 0x8000 << 48;
            let recorded = recorded | u64::from(to & 0x8000) | u64::from(from & 0x8000) << 16;
            file[64..72].copy_from_slice(&recorded.to_le_bytes());
            file[72..80].copy_from_slice(&recorded.to_le_bytes());
            std::fs::write(&rings, file).unwrap();
        }
        let (mut rx, mut tx) = (test.port.rx(0).unwrap(), test.port.tx(0).unwrap());
        let mut front = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
        for (n, (base, len, flags, owner)) in descriptors.into_iter().enumerate() {
            let address = [GUEST + BUFFERS as u64, GUEST, GUEST + LEN as u64 - 100, GUEST + 3 * 4096, 0, u64::MAX - 50];
            // Mostly available in the first round.
            let owner = [AVAILABLE, AVAILABLE, USED, AVAILABLE | USED][usize::from(owner)];
            let [first, second] = &front.rings[n / usize::from(SIZE)].table[n % usize::from(SIZE)];
            first.store(address[base as usize] + u64::from(len) % 3, Relaxed);
            second.store(u64::from(len) | (n as u64) << 32 | u64::from(flags | owner) << 48, Release);
        }
        (front.size, front.base) = (size, 0x8000);
        front = front.up(&test, PACKED | features);
        let mut batch = Batch::with_capacity(64);
        for _ in 0..4 {
            rx.recv(&mut batch);
            for packet in batch.packets() {
                prop_assert!((14..=65_553).contains(&packet.len()));
            }
            tx.send(&mut batch);
            batch.clear();
        }
        drop((rx, tx, batch, front));
        prop_assert_eq!(test.pool.available(), 256);
    }
}
