//! The counters of a card by register: they agree with what was on the wire, and with the statistics of the port.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::{Config, Ixgbe};
use linerate::port::{Device, Random, Statistics};
use linerate::sim82599::{Card, CardBar, Frame, from_fn};
use linerate::{Batch, spec};

fn counters(port: &Ixgbe<CardBar>) -> HashMap<String, u64> {
    let list = port.register_counters().unwrap();
    let counters: HashMap<String, u64> = list.iter().cloned().collect();
    assert_eq!(counters.len(), list.len(), "a name occurs twice: {list:?}");
    counters
}

/// Checks the statistics against the registers that they are made of. Nothing may move meanwhile.
fn check_agreement(port: &Ixgbe<CardBar>) {
    let (counters, statistics) = (counters(port), port.statistics().unwrap());
    let Statistics { rx_packets, rx_bytes, tx_packets, tx_bytes, drops } = statistics;
    let of = |name: &str| counters[name];
    assert_eq!((of("QPRC[0]"), of("QBRC[0]")), (rx_packets, rx_bytes));
    assert_eq!((of("GPTC"), of("GOTC")), (tx_packets, tx_bytes + 4 * tx_packets));
    assert_eq!(of("RXMPC[0]") + of("QPRDC[0]"), drops.no_descriptor);
    assert_eq!((of("CRCERRS"), of("RUC"), of("ROC")), (drops.bad_crc, drops.undersize, drops.oversize));
}

/// Lets random frames pass, reads the counters in a random order meanwhile, and resets the port.
#[test]
fn registers_agree_with_the_wire_and_the_statistics() {
    let pages = Pages::Only(PageSize::Ordinary);
    let region = Region::new(&RegionOptions { buffers: 4096, buffer_size: 2048, pages, numa_node: None }).unwrap();
    let (pool, arriving) = (Pool::new(region), Arc::<Mutex<VecDeque<Frame>>>::default());
    let from = arriving.clone();
    let next = move |frame: &mut Frame| from.lock().unwrap().pop_front().map(|next| *frame = next).is_some();
    let card = Card::new("counters", from_fn(|_| {}, next));
    let mut port = linerate::drive_model(&card, None, Config::new("counters", pool.clone())).unwrap();
    let (mut random, mut batch) = (Random::new(7, 0), Batch::new());
    let mut expected = HashMap::<&str, u64>::new();
    const SIZES: [(&str, &str, usize); 6] = [
        ("PRC64", "PTC64", 64),
        ("PRC127", "PTC127", 127),
        ("PRC255", "PTC255", 255),
        ("PRC511", "PTC511", 511),
        ("PRC1023", "PTC1023", 1023),
        ("PRC1522", "PTC1522", usize::MAX),
    ];
    for _ in 0..3 {
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        for _ in 0..200 {
            let len = 60 + random.below(1455) as usize;
            let size = SIZES.iter().find(|size| len + 4 <= size.2).unwrap();
            let mut bytes = vec![2; len];
            let kind = random.below(5);
            // To the card, to a group, to all; with a wrong CRC; too short.
            bytes[0] = if kind == 1 { 3 } else { 2 };
            if kind == 2 {
                bytes[..6].fill(0xFF);
            }
            if random.below(2) == 0 {
                assert!(batch.push(&pool, &bytes));
                assert_eq!(tx.send(&mut batch), 1);
                ["GPTC", "TPT", "QPTC[0]", size.1].into_iter().for_each(|name| *expected.entry(name).or_default() += 1);
                *expected.entry("GOTC").or_default() += len as u64 + 4;
                *expected.entry(["", "MPTC", "BPTC", "", ""][kind as usize]).or_default() += 1;
            } else {
                if kind == 4 {
                    bytes.truncate(50);
                }
                let name = match kind {
                    3 => "CRCERRS",
                    4 => "RUC",
                    _ => {
                        for name in ["GPRC", "QPRC[0]", size.0] {
                            *expected.entry(name).or_default() += 1;
                        }
                        *expected.entry("GORC").or_default() += len as u64 + 4;
                        ["", "MPRC", "BPRC"][kind as usize]
                    }
                };
                ["TPR", name].into_iter().for_each(|name| *expected.entry(name).or_default() += 1);
                arriving.lock().unwrap().push_back(Frame { bytes, bad_crc: kind == 3 });
            }
            card.step(16);
            rx.recv(&mut batch);
            batch.clear();
            match random.below(4) {
                0 => drop(port.statistics().unwrap()),
                1 => drop(counters(&port)),
                2 => check_agreement(&port),
                _ => {}
            }
        }
        drop((rx, tx));
        // A reset clears the registers, and the sums remain.
        port.reset().unwrap();
        let counted = counters(&port);
        for (name, count) in expected.iter().filter(|(name, _)| !name.is_empty()) {
            assert_eq!(counted[*name], *count, "{name}");
        }
        check_agreement(&port);
    }
    assert_eq!(card.breaches(), []);
}

#[test]
fn counters_have_the_datasheets_names() {
    let names = |counters: &mut dyn Iterator<Item = spec::Counter>| -> Vec<String> {
        counters.map(|counter| counter.to_string()).collect()
    };
    let x82599 = names(&mut spec::x82599::counters());
    for name in ["CRCERRS", "PRC64", "PTC1522", "GORC", "TOR", "QBRC[0]", "LXOFFTXC", "LXOFFRXCNT", "FDIRMISS"] {
        assert!(x82599.iter().any(|other| other == name), "{name} is not in {x82599:?}");
    }
    let x82576 = names(&mut spec::x82576::counters(2));
    for name in ["CRCERRS", "PRC64", "PTC1522", "GORC", "GOTC", "XOFFTXC", "RQDPC[0]", "RQDPC[1]"] {
        assert!(x82576.iter().any(|other| other == name), "{name} is not in {x82576:?}");
    }
    for name in ["GORCL", "GORCH", "QBRC_L[0]", "PRC[0]", "QPRC[1]", "RQDPC[2]"] {
        assert!(!x82599.iter().chain(&x82576).any(|other| other == name), "{name}");
    }
}
