//! A hostile VirtIO device: its writes into the rings, its lengths and ids, and its writes into packets.
#![no_main]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fake_virtio::{COMMON, Chain, MERGEABLE, Memory, PACKED, Queue, SPLIT, set_buffers, words};
use linerate::Batch;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::Options;
use linerate::port::{Device, Vectors};

#[path = "../../crates/linerate/benches/fake_virtio/mod.rs"]
mod fake_virtio;

const BUFFERS: usize = 512;
const RING: usize = 64;

thread_local! {
    static POOL: Arc<Pool> = {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None }).unwrap())
    };
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let kind = input.u8();
    let packed = kind & 1 != 0;
    let mergeable = if kind & 2 != 0 { MERGEABLE } else { 0 };
    // CSUM, GUEST_CSUM, GUEST_TSO and similar features, without RING_RESET: this device cannot reset a queue.
    let others = if kind & 4 != 0 { 0x3FFF << 7 & 0x7E83 } else { 0 };
    let vectors = [Vectors::Scalar, Vectors::Best, Vectors::Avx2, Vectors::Avx512][usize::from(kind >> 3 & 3)];
    let vectors = if vectors.is_supported() { vectors } else { Vectors::Scalar };
    let pool = POOL.with(Arc::clone);
    let device = Memory::new(if packed { PACKED } else { SPLIT } | mergeable | others);
    device.set_32(COMMON + 24, RING as u32);
    let (offloads, metadata) = (kind & 0x20 != 0, kind & 0x40 != 0);
    let options = Options { ring: Some(RING), vectors, offloads, metadata, ..Options::default() };
    let config = options.of_port("fuzzed", pool.clone()).unwrap();
    let mut port = fake_virtio::open(&device, config).expect("a device that behaves so far");
    let (mut rx, mut tx) = (port.rx(0).expect("a queue"), port.tx(0).expect("a queue"));
    let mut ends = Queue::pair(&device, RING, packed);
    let rings = device.mapped.lock().unwrap()[1].clone();
    // SAFETY: the fake device writes into packets on this thread, while no packet is borrowed as a slice.
    let packets = unsafe { pool.region().mapping() }.clone();
    let mut batch = Batch::with_capacity(1 + usize::from(input.u8() % 64));
    let longest = port.info().max_frame;
    while !input.0.is_empty() {
        let operation = input.u8();
        match operation % 8 {
            // Overwrites any word of the rings.
            0 => {
                let words = words(&rings, 0, rings.len() / 8);
                words[usize::from(input.u16()) % words.len()].store(input.u64(), Relaxed);
            }
            // Returns a chain as used, whether the driver has made it available or not.
            1 | 2 => {
                let (end, id, written) = (usize::from(operation >> 7), input.u8(), input.u16());
                let chain = Chain { id: id.into(), count: 1 + usize::from(operation >> 3 & 3), address: 0 };
                ends[end].finish(chain, written.into());
            }
            // Returns several consecutive ids.
            3 => {
                let (end, first, count, written) =
                    (usize::from(operation >> 7), input.u8(), input.u8() % 32, input.u16());
                for n in 0..count {
                    let id = u16::from(first.wrapping_add(n)) % RING as u16;
                    ends[end].finish(Chain { id, count: 1, address: 0 }, written.into());
                }
            }
            // Overwrites a buffer where its header may be, with the fields of mergeable buffers and offloads.
            4 => {
                let buffer = usize::from(input.u16()) % BUFFERS;
                for at in (0..2048 - 16).step_by(2).skip(32).take(64) {
                    set_buffers(&packets, buffer * 2048 + at, input.u8().into());
                }
            }
            5 => {
                rx.recv(&mut batch);
                let mut places = HashSet::new();
                for packet in batch.packets() {
                    let _ = packet.metadata();
                    assert!(packet.len() <= longest.max(65_553), "{} bytes", packet.len());
                    for bytes in packet.segments() {
                        assert!(bytes.len() <= pool.region().room());
                        assert!(bytes.is_empty() || places.insert(bytes.as_ptr()), "a buffer came twice");
                    }
                }
                for bytes in batch.slots_mut() {
                    bytes.fill(0x55);
                }
            }
            6 => {
                let (count, len) = (operation >> 3, usize::from(input.u16()) % 4096);
                for _ in 0..count {
                    batch.push(&pool, &[0x55; 4096][..len]);
                }
                tx.send(&mut batch);
            }
            _ if operation & 0x80 != 0 => batch.clear(),
            _ => {
                let _ = (tx.send(&mut batch), rx.arm().is_some());
                rx.disarm();
            }
        }
        let held = rx.buffers() + tx.buffers() + batch.len() + batch.cached();
        assert_eq!(held + pool.available(), BUFFERS);
    }
    drop((rx, tx, batch, port));
    assert_eq!(pool.available(), BUFFERS);
});
