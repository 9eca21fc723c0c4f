//! The cost of one crossing between `virtio-user:` and `vhost:`, both sides together, compared with DPDK's: in one
//! process and one thread, with 256 packets in flight per direction and batches of at most 32. Results are TSC cycles
//! per packet, the best of alternating rounds. DPDK's testpmd does the same with its own ports, if it is installed and
//! 500 hugepages of 2 MiB are free.
//!
//! The same is measured between both roles of `memif:`, with a copy on each side, and with a zero-copy client. Last,
//! cost and rates between two processes are measured, including linerate with DPDK.
//!
//! `cargo bench --bench vhost_cost`

mod processes;
mod testpmd;

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Link, Port, RxQueue, TxQueue};
use linerate::{Batch, Options};
use processes::Kind;
use testpmd::Testpmd;

const BATCH: usize = 32;
/// Packets in flight per direction, as with testpmd's `start tx_first 8`.
const IN_FLIGHT: usize = 8 * BATCH;
/// Turns per round, of two batches each.
const TURNS: usize = 40_000;
const ROUNDS: usize = 12;

fn main() {
    if let Some(name) = std::env::args().skip_while(|arg| arg != processes::FORWARD).nth(1) {
        return processes::forward(&name);
    }
    let folder = tempfile::tempdir().expect("a folder");
    for ring in ["split", "packed"] {
        for size in [64, 1500] {
            let socket = folder.path().join(format!("{ring}{size}"));
            let mut ours = Crossing::of_vhost(&socket.display().to_string(), ring == "packed", size);
            let theirs = Testpmd::of_vhost(&format!("{}-dpdk", socket.display()), ring == "packed", size);
            compare(&format!("ring={ring} size={size}"), &mut ours, theirs);
        }
    }
    for (copies, zero_copy) in [("two", false), ("one", true)] {
        for size in [64, 1500] {
            let socket = folder.path().join(format!("memif-{copies}-{size}"));
            let mut ours = Crossing::of_memif(&socket.display().to_string(), zero_copy, size);
            let theirs = Testpmd::of_memif(&format!("{}-dpdk", socket.display()), zero_copy, size);
            compare(&format!("memif copies={copies} size={size}"), &mut ours, theirs);
        }
    }
    for kind in [Kind::Split, Kind::Packed, Kind::Memif] {
        processes::compare(folder.path(), kind);
    }
}

/// Prints the cycles of linerate and DPDK, and their ratio.
fn compare(what: &str, ours: &mut Crossing, mut theirs: Option<Testpmd>) {
    let (mut own, mut dpdk) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.iter().for_each(|theirs| theirs.pause(true));
        own.push(ours.round());
        theirs.iter().for_each(|theirs| theirs.pause(false));
        dpdk.extend(theirs.as_mut().and_then(Testpmd::round));
    }
    let own = best(&own);
    let beside = match dpdk.is_empty() {
        true => "dpdk=absent".to_string(),
        false => format!("dpdk={:.1} ratio={:.2}", best(&dpdk), own / best(&dpdk)),
    };
    println!("{what} cycles={own:.1} {beside}");
}

/// Returns the minimum: other load on the processor makes a round longer, never shorter.
fn best(cycles: &[f64]) -> f64 {
    cycles.iter().copied().fold(f64::MAX, f64::min)
}

/// Two ports of linerate, and the queues that forward from each to the other.
struct Crossing {
    ways: [(RxQueue, TxQueue); 2],
    batch: Batch,
    clock: quanta::Clock,
    _ports: [Port; 2],
}

impl Crossing {
    fn of_vhost(socket: &str, packed: bool, size: usize) -> Crossing {
        let packed = if packed { "on" } else { "off" };
        let names =
            [format!("vhost:{socket}?packed={packed}"), format!("virtio-user:{socket}?ring=1024&packed={packed}")];
        let crossing = Crossing::new(names, size);
        assert!(packed == "off" || crossing._ports[1].info().description.contains("packed queues"));
        crossing
    }

    fn of_memif(socket: &str, zero_copy: bool, size: usize) -> Crossing {
        let copies = if zero_copy { "on" } else { "off" };
        let names = [format!("memif:{socket}?role=server"), format!("memif:{socket}?ring=1024&zero-copy={copies}")];
        Crossing::new(names, size)
    }

    /// Opens both ports, waits until they are connected, and sends the packets in flight.
    fn new(names: [String; 2], size: usize) -> Crossing {
        let needed = names.each_ref().map(|name| linerate::parse(name).expect("a name").buffer_size());
        let [buffer_size, other] = needed;
        let buffer_size = buffer_size.max(other);
        let region = RegionOptions { buffers: 16_384, buffer_size, ..RegionOptions::default() };
        let region = Region::new(&region).expect("memory");
        let pool = Pool::new(region);
        let open = |name: &str| {
            let [port] = Options { pool: Some(pool.clone()), ..Options::default() }.open([name]).expect(name);
            port
        };
        let [mut back, mut front] = names.each_ref().map(|name| open(name));
        let mut ways = [
            (back.rx(0).expect("a queue"), front.tx(0).expect("a queue")),
            (front.rx(0).expect("a queue"), back.tx(0).expect("a queue")),
        ];
        let mut batch = Batch::with_capacity(BATCH);
        // A memif client provides its buffers at its first poll.
        while [&back, &front].iter().any(|port| port.link().is_ok_and(|link| link == Link::Down)) {}
        ways.iter_mut().for_each(|(rx, _)| _ = rx.recv(&mut batch));
        for (_, tx) in &mut ways {
            for _ in 0..IN_FLIGHT / BATCH {
                // Without CRC.
                batch.alloc(&pool, BATCH, size - 4);
                while !batch.is_empty() {
                    tx.send(&mut batch);
                }
            }
        }
        Crossing { ways, batch, clock: quanta::Clock::new(), _ports: [back, front] }
    }

    /// Forwards packets from each port to the other; returns the cycles per packet.
    fn round(&mut self) -> f64 {
        let (start, mut packets) = (self.clock.raw(), 0);
        for _ in 0..TURNS {
            for (rx, tx) in &mut self.ways {
                packets += rx.recv(&mut self.batch);
                while !self.batch.is_empty() {
                    tx.send(&mut self.batch);
                }
            }
        }
        (self.clock.raw() - start) as f64 / packets as f64
    }
}
