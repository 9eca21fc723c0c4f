//! The cost of ports in memory: nanoseconds per packet on one processor, the best of many rounds, and bounds measured
//! in the same run. Published results of netmap: 8 to 10 ns for a pipe; for VALE 50 ns at 64 bytes and 250 ns at 1,500
//! bytes (Rizzo and Lettieri, CoNEXT 2012, and netmap's README).
//!
//! Small batches and crossings between two processors are compared with DPDK's rte_ring, as measured by DPDK's test
//! (`dpdk-test`, Debian's package dpdk). The switch is compared with Open vSwitch with DPDK (Debian's package
//! openvswitch-switch-dpdk).
//!
//! `cargo bench -p linerate --bench memory_ports`

mod open_vswitch;

use std::hint::black_box;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use linerate::Batch;
use linerate::memory::{Pages, Pool, Region, RegionOptions};
use linerate::netmap::{Pipe, Side, ValePort};
use linerate::port::{Config, Device, Receive, SoftwarePort, Transmit};

const BATCH: usize = 32;
/// Batches per round, and rounds.
const CALLS: usize = 64;
const ROUNDS: usize = 2000;

fn pool() -> Arc<Pool> {
    let options = RegionOptions { buffers: 2048, buffer_size: 2048, pages: Pages::Auto, numa_node: None };
    Pool::new(Region::new(&options).unwrap())
}

/// Returns the nanoseconds per packet of the fastest round; each call handles `batch_size` packets.
fn measure(batch_size: usize, mut call: impl FnMut()) -> f64 {
    let calls = CALLS * BATCH / batch_size;
    let round = |_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / (calls * batch_size) as f64
    };
    (0..ROUNDS).map(round).fold(f64::MAX, f64::min)
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0x55; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

/// Returns the cost of sending packets into a pipe and receiving them immediately.
fn pipe(batch_size: usize) -> f64 {
    let pool = pool();
    let config = Config::new("bench", pool.clone());
    let (mut a, mut b) =
        (Pipe::open("bench", Side::Master, config.clone()).unwrap(), Pipe::open("bench", Side::Slave, config).unwrap());
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let mut batch = Batch::with_capacity(batch_size);
    (0..batch_size).for_each(|_| assert!(batch.push(&pool, &[1; 60])));
    let cost = measure(batch_size, || {
        tx.send(&mut batch);
        rx.recv(&mut batch);
    });
    assert_eq!(batch.len(), batch_size);
    cost
}

/// Compares a pipe with its bound: a loop that only moves slots into a ring and out of it.
fn pipe_beside_its_bound() {
    let (mut ring, mut slots, mut at) = ([0u64; 512], [7u64; BATCH], 0);
    let pipe = pipe(BATCH);
    let bare = measure(BATCH, || {
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

/// A port of a switch, with its own region.
struct Port {
    pool: Arc<Pool>,
    rx: Box<dyn Receive>,
    tx: Box<dyn Transmit>,
    batch: Batch,
    _device: SoftwarePort<ValePort>,
}

impl Port {
    fn new(name: String) -> Port {
        let pool = pool();
        let mut device = ValePort::open("vale0", &name, Config::new(&name, pool.clone())).unwrap();
        let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        Port { pool, rx, tx, batch: Batch::with_capacity(BATCH), _device: device }
    }
}

/// Returns the cost of copying frames of this length between two regions.
fn copies(len: usize) -> f64 {
    let (from, mut to, mut at) = (vec![1u8; 2048 * 2048], vec![0u8; 2048 * 2048], 0);
    measure(BATCH, || {
        for _ in 0..BATCH {
            let place = at % 64 * 2048 + 128;
            to[place..place + len].copy_from_slice(black_box(&from[place..place + len]));
            at += 1;
        }
        black_box(&mut to);
    })
}

/// Measures packets from one port to `others` other ports: unicast to each in turn, or broadcast.
fn vale(len: usize, others: usize, broadcast: bool, batch_size: usize) -> f64 {
    let mut source = Port::new("s".to_string());
    let mut sinks: Vec<Port> = (0..others).map(|n| Port::new(format!("d{n}"))).collect();
    let host = |n: usize| [2, 0, 0, 0, 1, n as u8];
    // Let the switch learn the addresses.
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
    let mut batch = Batch::with_capacity(batch_size);
    let mut next = 0;
    measure(batch_size, || {
        batch.alloc(&source.pool, batch_size, len);
        for mut bytes in &mut batch {
            let to = if broadcast { [0xFF; 6] } else { host(next) };
            next = if next + 1 == others { 0 } else { next + 1 };
            // Write the headers in one piece, as a program does.
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

/// Pins the thread to this processor.
fn stay_on(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Returns the cycles of the time stamp counter per nanosecond.
fn cycles() -> f64 {
    let (clock, start) = (quanta::Clock::new(), Instant::now());
    let begin = clock.raw();
    while start.elapsed().as_millis() < 50 {}
    (clock.raw() - begin) as f64 / start.elapsed().as_nanos() as f64
}

/// Passes slots back and forth between two threads through a pipe; returns the nanoseconds per crossing.
fn pipe_between_processors() -> f64 {
    const CROSSINGS: usize = 20_000_000;
    let pool = pool();
    let config = Config::new("cores", pool.clone());
    let (mut a, mut b) =
        (Pipe::open("cores", Side::Master, config.clone()).unwrap(), Pipe::open("cores", Side::Slave, config).unwrap());
    let (mut out, mut back) = (a.tx(0).unwrap(), a.rx(0).unwrap());
    let (mut rx, mut tx) = (b.rx(0).unwrap(), b.tx(0).unwrap());
    let done = AtomicBool::new(false);
    let mut best = f64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(1);
            let mut batch = Batch::with_capacity(BATCH);
            while !done.load(Ordering::Relaxed) {
                rx.recv(&mut batch);
                tx.send(&mut batch);
            }
        });
        stay_on(0);
        let mut batch = Batch::with_capacity(BATCH);
        for _ in 0..8 {
            (0..BATCH).for_each(|_| assert!(batch.push(&pool, &[1; 60])));
            out.send(&mut batch);
        }
        for _ in 0..5 {
            let (start, mut returned) = (Instant::now(), 0);
            while returned < CROSSINGS / 2 {
                returned += back.recv(&mut batch);
                out.send(&mut batch);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / returned as f64 / 2.0);
        }
        done.store(true, Ordering::Relaxed);
    });
    best
}

/// Returns the output of DPDK's test of rte_ring.
fn rte_ring() -> Option<String> {
    let mut test = Command::new("dpdk-test");
    test.args(["--no-pci", "--no-huge", "-m", "64", "-l", "0,1", "--file-prefix=linerate-bench"]);
    let mut test = test.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    test.stdin.take()?.write_all(b"ring_perf_autotest\nquit\n").ok()?;
    Some(String::from_utf8_lossy(&test.wait_with_output().ok()?.stdout).into_owned())
}

/// Returns the test's figure for `what` after `heading`, for one producer and one consumer.
fn figure(said: &str, heading: &str, what: &str) -> Option<f64> {
    let behind = &said[said.find(heading)?..];
    let line = behind.lines().find(|line| line.contains("SP/SC") && line.contains(what))?;
    line.split(':').next_back()?.trim().parse().ok()
}

/// Compares cycles per packet that one thread sends and receives, with small and large batches.
fn few_packets() {
    let (cycles, said) = (cycles(), rte_ring().unwrap_or_default());
    for batch_size in [1, 8, 32] {
        let (pipe, vale) = (pipe(batch_size) * cycles, vale(60, 1, false, batch_size) * cycles);
        let theirs = match batch_size {
            1 => figure(&said, "Testing single element", "single"),
            size => figure(&said, "Testing bulk enq/deq", &format!("(size: {size})")).map(|bulk| bulk / size as f64),
        };
        let theirs =
            theirs.map_or("(no dpdk-test here: apt install dpdk)".to_string(), |theirs| format!("{theirs:.1}"));
        println!(
            "one thread, {batch_size:>2} at a time, cycles     pipe {pipe:>6.1}    VALE {vale:>6.1}    rte_ring {theirs}"
        );
    }
}

/// Returns the packets per second through a switch with two threads, each between two separate ports, or with one
/// thread.
fn two_senders(alone: bool) -> f64 {
    const PACKETS: usize = 5_000_000;
    let start = std::sync::Barrier::new(if alone { 1 } else { 2 });
    let run = |n: usize| {
        stay_on(n);
        let (mut source, mut sink) = (Port::new(format!("s{n}")), Port::new(format!("d{n}")));
        let to = [2, 0, 0, 0, 2, n as u8];
        sink.batch.push(&sink.pool, &frame([0xFF; 6], to, 60));
        sink.tx.send(&mut sink.batch);
        start.wait();
        let (mut sent, time) = (0, Instant::now());
        while sent < PACKETS {
            source.batch.alloc(&source.pool, BATCH, 60);
            for mut bytes in &mut source.batch {
                let [a, b, c, d, e, f] = to;
                bytes[..16].copy_from_slice(&[a, b, c, d, e, f, 2, 0, 0, 0, 1, n as u8, 8, 0, 0x45, 0]);
            }
            source.tx.send(&mut source.batch);
            sink.rx.recv(&mut sink.batch);
            sent += BATCH;
            sink.batch.clear();
        }
        sent as f64 / time.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let other = (!alone).then(|| scope.spawn(|| run(1)));
        run(0) + other.map_or(0.0, |other| other.join().unwrap())
    })
}

fn between_processors() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return println!("two processors are needed for the rest");
    }
    // Alternate, and take the best of each: on a virtual machine, the distance between two processors keeps changing.
    let (mut crossing, mut theirs, cycles) = (f64::MAX, None, cycles());
    for _ in 0..4 {
        crossing = pipe_between_processors().min(crossing);
        let said = rte_ring().unwrap_or_default();
        let now = ["using two physical cores", "using two hyperthreads"]
            .into_iter()
            .find_map(|heading| figure(&said, heading, "(size: 32)"));
        theirs = now.into_iter().chain(theirs).reduce(f64::min);
    }
    print!("pipe, between two processors        {crossing:>6.2} ns    {:.1} cycles for each slot", crossing * cycles);
    match theirs {
        Some(theirs) => println!("    rte_ring {theirs:.1}    ratio {:.2}", crossing * cycles / theirs),
        None => println!("    (no dpdk-test here: apt install dpdk)"),
    }
    let [one, two] = [true, false].map(|alone| two_senders(alone) / 1e6);
    println!("VALE, senders on 1 and 2 processors  {one:.1} and {two:.1} Mpps    ratio {:.2}", two / one);
}

/// Compares the cycles per packet of 60 bytes from port to port: receive, look up, copy, send.
fn beside_open_vswitch() {
    let cost = vale(60, 1, false, BATCH) * cycles();
    match open_vswitch::cycles() {
        Some(theirs) => println!(
            "VALE, 60 bytes, cycles of a packet  {cost:>6.0}       Open vSwitch {theirs:.0}    ratio {:.2}",
            cost / theirs
        ),
        None => println!("(no Open vSwitch here: apt install openvswitch-switch-dpdk, and run as root)"),
    }
}

fn main() {
    pipe_beside_its_bound();
    few_packets();
    for len in [60, 252, 508, 1020, 1500] {
        let (cost, copy) = (vale(len, 1, false, BATCH), copies(len));
        println!(
            "VALE, two ports, {len:>5} bytes         {cost:>6.2} ns    memcpy    {copy:>6.2} ns    ratio {:.2}",
            cost / copy
        );
    }
    for others in 1..=7 {
        let (unicast, broadcast) = (vale(60, others, false, BATCH), vale(60, others, true, BATCH));
        println!(
            "VALE, to {others} of {} ports, 60 bytes     {unicast:>6.2} ns    broadcast {broadcast:>6.2} ns    {:.2} for each copy",
            others + 1,
            broadcast / others as f64
        );
    }
    between_processors();
    beside_open_vswitch();
}
