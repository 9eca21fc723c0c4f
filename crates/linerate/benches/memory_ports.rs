//! What ports in memory cost: nanoseconds per packet on one processor, the best of many rounds, and beside them bounds of the
//! same run. Published for netmap: a pipe 8 to 10 ns, VALE 50 ns at 64 bytes and 250 ns at 1,500 (Rizzo and Lettieri, CoNEXT
//! 2012, and netmap's own README).
//!
//! `cargo bench -p linerate --bench memory_ports`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use linerate::Batch;
use linerate::memory::{Pages, Pool, Region, RegionOptions};
use linerate::netmap::{Pipe, Side, ValePort};
use linerate::port::{Config, Device, RxQueue, TxQueue};

const BATCH: usize = 32;
/// Batches in a round, and rounds.
const CALLS: usize = 64;
const ROUNDS: usize = 2000;

fn pool() -> Arc<Pool> {
    let options = RegionOptions { buffers: 2048, buffer_size: 2048, pages: Pages::Auto, numa_node: None };
    Pool::new(Region::new(&options).unwrap())
}

/// Nanoseconds per packet, of the fastest round.
fn measure(mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / (CALLS * BATCH) as f64
    };
    (0..ROUNDS).map(round).fold(f64::MAX, f64::min)
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0x55; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

fn pipe() {
    let pool = pool();
    let config = Config::new("bench", pool.clone());
    let (mut a, mut b) =
        (Pipe::open("bench", Side::Master, config.clone()).unwrap(), Pipe::open("bench", Side::Slave, config).unwrap());
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let mut batch = Batch::with_capacity(BATCH);
    (0..BATCH).for_each(|_| assert!(batch.push(&pool, &[1; 60])));
    let pipe = measure(|| {
        tx.send(&mut batch);
        rx.recv(&mut batch);
    });
    assert_eq!(batch.len(), BATCH);

    // The bound: slots into a ring and out of it, one after the other, with nothing else.
    let (mut ring, mut slots, mut at) = ([0u64; 512], [7u64; BATCH], 0);
    let bare = measure(|| {
        for slot in &slots {
            ring[at % 512] = black_box(*slot);
            at += 1;
        }
        for (n, slot) in slots.iter_mut().enumerate() {
            *slot = black_box(ring[(at - BATCH + n) % 512]);
        }
    });
    println!(
        "pipe, batches of {BATCH}               {pipe:>6.2} ns    bare loop {bare:>6.2} ns    ratio {:.2}",
        pipe / bare
    );
}

/// A port of a switch, in a region of its own.
struct Port {
    pool: Arc<Pool>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    batch: Batch,
    _device: ValePort,
}

impl Port {
    fn new(name: String) -> Port {
        let pool = pool();
        let mut device = ValePort::open("vale0", &name, Config::new(&name, pool.clone())).unwrap();
        let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        Port { pool, rx, tx, batch: Batch::with_capacity(BATCH), _device: device }
    }
}

/// Copies of such frames between two regions of the same size, and nothing else.
fn copies(len: usize) -> f64 {
    let (from, mut to, mut at) = (vec![1u8; 2048 * 2048], vec![0u8; 2048 * 2048], 0);
    measure(|| {
        for _ in 0..BATCH {
            let place = at % 64 * 2048 + 128;
            to[place..place + len].copy_from_slice(black_box(&from[place..place + len]));
            at += 1;
        }
        black_box(&mut to);
    })
}

/// From one port to `others`, each packet to one of them or to all.
fn vale(len: usize, others: usize, broadcast: bool) -> f64 {
    let mut source = Port::new("s".to_string());
    let mut sinks: Vec<Port> = (0..others).map(|n| Port::new(format!("d{n}"))).collect();
    let host = |n: usize| [2, 0, 0, 0, 1, n as u8];
    // They make themselves known.
    for (n, sink) in sinks.iter_mut().enumerate() {
        sink.batch.push(&sink.pool, &frame([0xFF; 6], host(n), 60));
        sink.tx.send(&mut sink.batch);
    }
    let mut batch = Batch::with_capacity(2048);
    source.rx.recv(&mut batch);
    batch.clear();
    sinks.iter_mut().for_each(|sink| {
        sink.rx.recv(&mut sink.batch);
        sink.batch.clear();
    });
    let mut batch = Batch::with_capacity(BATCH);
    let mut next = 0;
    measure(|| {
        batch.alloc(&source.pool, BATCH, len);
        for bytes in &mut batch {
            let to = if broadcast { [0xFF; 6] } else { host(next) };
            next = if next + 1 == others { 0 } else { next + 1 };
            // In one piece, as a frame is written by who makes it.
            let [a, b, c, d, e, f] = to;
            bytes[..16].copy_from_slice(&[a, b, c, d, e, f, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
        }
        source.tx.send(&mut batch);
        for sink in &mut sinks {
            sink.rx.recv(&mut sink.batch);
            sink.batch.clear();
        }
    })
}

fn main() {
    pipe();
    for len in [60, 252, 508, 1020, 1500] {
        let (cost, copy) = (vale(len, 1, false), copies(len));
        println!(
            "VALE, two ports, {len:>5} bytes         {cost:>6.2} ns    memcpy    {copy:>6.2} ns    ratio {:.2}",
            cost / copy
        );
    }
    for others in 1..=7 {
        let (unicast, broadcast) = (vale(60, others, false), vale(60, others, true));
        println!(
            "VALE, to {others} of {} ports, 60 bytes     {unicast:>6.2} ns    broadcast {broadcast:>6.2} ns    {:.2} for each copy",
            others + 1,
            broadcast / others as f64
        );
    }
}
