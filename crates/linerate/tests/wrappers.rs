//! Ports that wrap other ports: random faults, and recordings.

use std::sync::Arc;

use linerate::capture::Reader;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Port, RxQueue, TxQueue};
use linerate::{Batch, Options};
use linerate_testkit::Deadline;
use proptest::prelude::*;
use proptest::test_runner::Config;

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 1024, pages, ..RegionOptions::default() }).unwrap())
}

/// Both ends of a pipe; the first end is wrapped.
struct Ends {
    pool: Arc<Pool>,
    ports: [Port; 2],
    queues: [(RxQueue, TxQueue); 2],
}

impl Ends {
    fn new(names: [&str; 2]) -> Ends {
        let pool = pool();
        let options = Options { pool: Some(pool.clone()), ring: Some(64), local: true, ..Options::default() };
        let mut ports = options.open(names).unwrap();
        let queues = ports.each_mut().map(|port| (port.rx(0).unwrap(), port.tx(0).unwrap()));
        Ends { pool, ports, queues }
    }

    /// Sends frames through one end; returns the frames that the other end receives.
    fn cross(&mut self, from: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        let mut batch = Batch::new();
        for frames in frames.chunks(8) {
            frames.iter().for_each(|frame| assert!(batch.push(&self.pool, frame)));
            let deadline = Deadline::begin();
            while !batch.is_empty() {
                deadline.check(|| format!("{} packets cannot be sent", batch.len()));
                self.queues[from].1.send(&mut batch);
                self.receive(1 - from, &mut received);
            }
        }
        // Send the packets that are held back.
        let deadline = Deadline::begin();
        while self.queues[from].1.unsent() > 0 {
            deadline.check(|| format!("{} packets are unsent", self.queues[from].1.unsent()));
            self.queues[from].1.send(&mut batch);
            self.receive(1 - from, &mut received);
        }
        while self.receive(1 - from, &mut received) {}
        // A thread that is about to sleep also gets the last packet, although no other packet has overtaken it.
        self.queues[1 - from].0.arm();
        while self.receive(1 - from, &mut received) {}
        received
    }

    fn receive(&mut self, at: usize, received: &mut Vec<Vec<u8>>) -> bool {
        let mut batch = Batch::new();
        let count = self.queues[at].0.recv(&mut batch);
        assert_eq!(count, batch.len());
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            received.push(bytes);
        }
        count > 0
    }
}

fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| vec![n as u8; 60 + n]).collect()
}

/// Returns frames that are longer than a buffer.
fn long_frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| vec![n as u8; 5_000 + 100 * n]).collect()
}

#[test]
fn each_fault_is_what_its_name_says() {
    let faults = ["drop", "corrupt", "truncate", "duplicate", "reorder"];
    for ((fault, direction), sent) in faults
        .iter()
        .flat_map(|fault| [0, 1].map(|n| (*fault, n)))
        .flat_map(|case| [frames(8), long_frames(8)].map(|sent| (case, sent)))
    {
        let most = if fault == "reorder" { 50 } else { 100 };
        let name = format!("faulty:f{fault}{direction}{{1?{fault}={most}%");
        let mut ends = Ends::new([&name, &format!("f{fault}{direction}}}1")]);
        let received = ends.cross(direction, &sent);
        match fault {
            "drop" => {
                assert!(received.is_empty());
                assert_eq!(ends.ports[0].statistics().unwrap().drops.injected, 8);
            }
            "corrupt" => {
                let bits =
                    |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
                assert!(received.len() == 8 && received.iter().zip(&sent).all(|pair| bits(pair) == 1));
            }
            "truncate" => {
                let is_cut = |(a, b): (&Vec<u8>, &Vec<u8>)| a.len() < b.len() && b.starts_with(a);
                assert!(received.len() == 8 && received.iter().zip(&sent).all(is_cut));
            }
            "duplicate" => {
                assert_eq!(received, sent.iter().flat_map(|frame| [frame.clone(), frame.clone()]).collect::<Vec<_>>())
            }
            _ => {
                let order: Vec<u8> = received.iter().map(|frame| frame[0]).collect();
                assert_eq!(order, [1, 0, 3, 2, 5, 4, 7, 6]);
            }
        }
    }
}

#[test]
fn packets_are_overtaken_at_the_rate_asked_for() {
    for percent in [1, 10, 30, 50] {
        let mut ends = Ends::new([&format!("faulty:o{percent}{{1?reorder={percent}%"), &format!("o{percent}}}1")]);
        let sent: Vec<Vec<u8>> = (0..10_000u32).map(|n| [&n.to_be_bytes()[..], &[0; 56]].concat()).collect();
        let received = ends.cross(0, &sent);
        assert_eq!(received.len(), sent.len());
        let overtaken = received.iter().zip(&sent).filter(|(received, sent)| received > sent).count();
        assert!((percent * 90..=percent * 110).contains(&overtaken), "{overtaken} of 10,000 for {percent} %");
    }
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let sent = frames(200);
    let faults = "drop=10%&corrupt=0.1&truncate=5%&duplicate=10%&reorder=10%";
    let cross = |name: &str, seed: u32| {
        let wrapped = format!("faulty:{name}{{1?{faults}&seed={seed}&ring=64");
        Ends::new([&wrapped, &format!("{name}}}1")]).cross(0, &sent)
    };
    let (first, again, other) = (cross("sa", 7), cross("sb", 7), cross("sc", 8));
    assert_eq!(first, again);
    assert!(first != other && first != sent && first.len() > 150);
}

#[test]
fn wrong_faults_are_explained() {
    let error = |name: &str| linerate::open([name]).map(drop).unwrap_err().with_hint();
    assert!(error("faulty:null:?drop=2").contains("a probability such as 1%"));
    assert!(error("faulty:null:?drop=x%").contains("a probability such as 1%"));
    assert!(error("faulty:null:?lose=1%").contains("no such option"), "the inner port does not know it either");
    assert!(error("faulty:nothing").contains("begin with a kind"));
    assert!(error("recorded:null:").contains("recorded:PORT?to=FILE"));
    assert!(error("recorded:null:?to=/nowhere/x").contains("cannot write it"));
}

#[test]
fn a_recorded_port_s_packets_are_in_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = format!("faulty:recorded:r{{1?to={}&duplicate=100%", file.path().display());
    let mut ends = Ends::new([&name, "r}1"]);
    assert!(ends.ports[0].info().description.contains("recorded to"));
    let (there, back) = (ends.cross(0, &frames(20)), ends.cross(1, &frames(3)));
    assert_eq!((there.len(), back.len()), (40, 6), "the recorder is inside: it sees each received packet once");
    ends.ports[0].link().unwrap();
    drop(ends);
    let (mut reader, mut bytes, mut recorded) = (Reader::open(file.path()).unwrap(), Vec::new(), Vec::new());
    let mut last = 0;
    while let Some(record) = reader.next(&mut bytes).unwrap() {
        let time = record.nanoseconds.unwrap();
        assert!(time >= last && record.original_len == bytes.len());
        last = time;
        recorded.push(bytes.clone());
    }
    assert_eq!(recorded, [&there[..], &frames(3)[..]].concat());
    let mut full = Ends::new(["recorded:q{1?to=/dev/full", "q}1"]);
    assert_eq!(full.cross(0, &frames(50)).len(), 50, "packets go on");
    assert!(full.ports[0].link().unwrap_err().to_string().contains("No space left"));
}

proptest! {
    #![proptest_config(Config { cases: 200, failure_persistence: None, ..Config::default() })]

    /// All packets are accounted for, and all buffers are freed.
    #[test]
    fn faults_lose_no_buffer(rates in proptest::array::uniform5(0..=100u32), seed: u32, counts in proptest::collection::vec(0..60usize, 1..6)) {
        let [drop, corrupt, truncate, duplicate, reorder] = rates;
        let reorder = reorder.min(50);
        let name = format!("faulty:p{{1?drop={drop}%&corrupt={corrupt}%&truncate={truncate}%&duplicate={duplicate}%&reorder={reorder}%&seed={seed}");
        let mut ends = Ends::new([&name, "p}1"]);
        let pool = ends.pool.clone();
        for count in counts {
            for from in [0, 1] {
                let before = ends.ports[0].statistics().unwrap().drops.injected;
                let received = ends.cross(from, &frames(count));
                let dropped = (ends.ports[0].statistics().unwrap().drops.injected - before) as usize;
                let kept = count - dropped;
                prop_assert!((kept..=2 * kept).contains(&received.len()), "{kept} of {count}, {} received", received.len());
                if duplicate == 0 {
                    prop_assert_eq!(received.len(), kept);
                }
            }
        }
        std::mem::drop(ends);
        prop_assert_eq!(pool.available(), 1024);
    }
}
