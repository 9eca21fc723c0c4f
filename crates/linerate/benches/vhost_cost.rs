//! The cost of one crossing between `virtio-user:` and `vhost:`, both sides together: one sends, the other receives, in one
//! process and on one thread, 32 packets at a time. TSC cycles per packet, the best of many rounds.
//! `cargo bench --bench vhost_cost`; docs/bench.md has the command for DPDK's figure.

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Port, RxQueue, TxQueue};
use linerate::{Batch, Options};

const BATCH: usize = 32;
/// Crossings in one round, and rounds.
const CROSSINGS: usize = 64;
const ROUNDS: usize = 2000;

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    for ring in ["split", "packed"] {
        let socket = folder.path().join(ring);
        let packed = if ring == "packed" { "on" } else { "off" };
        let mut back = open(&format!("vhost:{}?packed={packed}", socket.display()));
        let mut front = open(&format!("virtio-user:{}?ring=1024&packed={packed}", socket.display()));
        assert!(front.info().description.contains(&format!("{ring} queues")), "{}", front.info().description);
        let mut ways = [Way::new(&mut front, &mut back), Way::new(&mut back, &mut front)];
        for size in [64, 1500] {
            // Without CRC.
            ways[0].batch.alloc(front.pool(), BATCH, size - 4);
            let mut best = [u64::MAX; 2];
            let clock = quanta::Clock::new();
            for _ in 0..ROUNDS {
                let mut spent = [0; 2];
                for _ in 0..CROSSINGS {
                    for (n, spent) in spent.iter_mut().enumerate() {
                        let [there, back] = ways.get_disjoint_mut([n, 1 - n]).expect("both are there");
                        let start = clock.raw();
                        there.cross(&mut back.batch);
                        *spent += clock.raw() - start;
                    }
                }
                (0..2).for_each(|n| best[n] = best[n].min(spent[n]));
            }
            let [to_back, to_front] = best.map(|cycles| cycles as f64 / (CROSSINGS * BATCH) as f64);
            println!("ring={ring} size={size} to_back={to_back:.1} to_front={to_front:.1}");
            ways[0].batch.clear();
        }
    }
}

/// A port with memory of its own, as one of another process has.
fn open(name: &str) -> Port {
    let pool = Pool::new(Region::new(&RegionOptions { buffers: 8192, ..RegionOptions::default() }).expect("memory"));
    let [port] = Options { pool: Some(pool), ..Options::default() }.open([name]).expect(name);
    port
}

/// The queues from one port to the other, and the packets that wait to cross.
struct Way {
    tx: TxQueue,
    rx: RxQueue,
    batch: Batch,
}

impl Way {
    fn new(from: &mut Port, to: &mut Port) -> Way {
        let (tx, rx) = (from.tx(0).expect("a queue"), to.rx(0).expect("a queue"));
        Way { tx, rx, batch: Batch::with_capacity(BATCH) }
    }

    /// Sends the packets, and receives them at the other side.
    fn cross(&mut self, arrived: &mut Batch) {
        while !self.batch.is_empty() {
            self.tx.send(&mut self.batch);
        }
        while arrived.len() < BATCH {
            self.rx.recv(arrived);
        }
    }
}
