//! The driver's control functions: address, filters, link, memory, and statistics while queues are in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use linerate::Batch;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::{Config, Ixgbe};
use linerate::port::{Device, Link, MacAddress};
use linerate::sim82599::{Cable, Card, CardBar, Frame, Runner, Traffic, from_fn};
use linerate::traffic::Generator;
use linerate_testkit::Deadline;

fn pool() -> Arc<Pool> {
    pool_of(4096)
}

fn pool_of(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn open(card: &Arc<Card>, pool: &Arc<Pool>) -> Ixgbe<CardBar> {
    linerate::drive_model(card, None, Config::new(card.name(), pool.clone())).unwrap()
}

#[test]
fn a_port_that_is_not_promiscuous_receives_its_own_address_and_broadcast() {
    let to = |mac: [u8; 6]| Frame { bytes: [&mac[..], &[0; 60]].concat(), bad_crc: false };
    let (first, second, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    let frames = [first, second, other, [0xFF; 6]].map(to);
    let mut frames = frames.into_iter().cycle();
    let wire = from_fn(|_| {}, move |frame| frames.next().map(|next| *frame = next).is_some());
    let card = Card::new("filters", wire);
    let mut device = open(&card, &pool());
    let mut rx = device.rx(0).unwrap();
    let mut arrived = || {
        let mut batch = Batch::new();
        card.step(4);
        rx.recv(&mut batch);
        (&mut batch).into_iter().map(|bytes| bytes[5]).collect::<Vec<_>>()
    };
    assert_eq!(arrived(), [1, 2, 3, 0xFF]);
    device.set_promiscuous(false).unwrap();
    assert_eq!(arrived(), [0xFF]);
    for mac in [first, second] {
        device.set_mac(MacAddress(mac)).unwrap();
        assert_eq!(device.mac(), MacAddress(mac));
        assert_eq!(arrived(), [mac[5], 0xFF]);
    }
    device.set_promiscuous(true).unwrap();
    assert_eq!(arrived(), [1, 2, 3, 0xFF]);
    assert_eq!(card.breaches(), []);
    assert_eq!(device.mac().to_string(), "02:00:00:00:00:02");
}

#[test]
fn each_model_has_an_address_of_its_own() {
    let pool = pool();
    let macs = ["a", "b"].map(|name| open(&Card::new(name, Box::new(Cable::unplugged())), &pool).mac());
    assert_ne!(macs[0], macs[1]);
    // The addresses are locally administered and unicast.
    assert!(macs.iter().all(|mac| mac.0[0] & 3 == 2));
}

#[test]
fn a_cable_joins_two_cards_and_its_link_is_down_when_one_is_gone() {
    let pool = pool_of(256);
    let (end, other) = Cable::pair();
    let (card, peer) = (Card::new("end", Box::new(end)), Card::new("other", Box::new(other)));
    let open = |card: &Arc<Card>| {
        let options = linerate::Options { ring: Some(64), ..Default::default() };
        linerate::drive_model(card, None, options.of_port(card.name(), pool.clone()).unwrap()).unwrap()
    };
    let (mut a, mut b) = (open(&card), open(&peer));
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let mut batch = Batch::new();
    batch.push(&pool, &[5; 200]);
    tx.send(&mut batch);
    card.step(1);
    peer.step(1);
    assert_eq!(rx.recv(&mut batch), 1);
    assert_eq!(a.link().unwrap(), Link::Up { mbits: 10_000 });
    drop((rx, b, peer));
    assert_eq!(a.link().unwrap(), Link::Down);
}

/// Uses one card, a small pool and short rings: bringing up a card takes Miri a minute.
#[test]
fn a_frame_returns_to_the_card_that_sent_it() {
    let pool = pool_of(256);
    let (sender, receiver) = mpsc::channel();
    let wire = from_fn(
        move |frame| sender.send(frame.bytes.clone()).unwrap(),
        move |frame| receiver.try_recv().map(|bytes| frame.bytes = bytes).is_ok(),
    );
    let card = Card::new("mirror", wire);
    let options = linerate::Options { ring: Some(64), ..Default::default() };
    let mut device = linerate::drive_model(&card, None, options.of_port("mirror", pool.clone()).unwrap()).unwrap();
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let mut batch = Batch::new();
    for round in 0..3 {
        batch.push(&pool, &[round; 200]);
        tx.send(&mut batch);
        card.step(2);
        assert_eq!(rx.recv(&mut batch), 1);
        assert_eq!((&mut batch).into_iter().map(|packet| packet.to_vec()).collect::<Vec<_>>(), [[round; 200]]);
        batch.clear();
    }
    assert_eq!(card.breaches(), []);
}

#[test]
fn statistics_can_be_read_while_queues_are_at_work_and_only_grow() {
    let pool = pool();
    let card = Card::new("counting", Box::new(Traffic::new(Generator::default(), None, None)));
    let runner = Arc::new(Runner::start().unwrap());
    runner.run(&card);
    let config = Config::new("counting", pool.clone());
    let mut device = linerate::drive_model(&card, Some(runner), config).unwrap();
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let worker = std::thread::spawn(move || {
        let mut batch = Batch::new();
        let deadline = Deadline::begin();
        while !stopped.load(Ordering::Relaxed) {
            deadline.check(|| "the end of the test");
            rx.recv(&mut batch);
            tx.send(&mut batch);
            batch.clear();
            std::thread::yield_now();
        }
    });
    let (mut last, mut slots) = (device.statistics().unwrap(), 0);
    let deadline = Deadline::begin();
    while last.tx_packets < 100_000 {
        deadline.check(|| format!("100,000 sent packets: {last:?}"));
        let now = device.statistics().unwrap();
        assert!(now.rx_packets >= last.rx_packets && now.tx_packets >= last.tx_packets);
        assert!(now.rx_bytes >= last.rx_bytes);
        assert!(device.queue_statistics().rx_slots[0] >= slots);
        slots = device.queue_statistics().rx_slots[0];
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().unwrap();
    // The queues were dropped with the thread. After the card's last step, all counters agree.
    card.finish_wire();
    let end = device.statistics().unwrap();
    assert_eq!((end.rx_bytes, end.tx_bytes), (60 * end.rx_packets, 60 * end.tx_packets));
    let queues = device.queue_statistics();
    assert!(end.rx_packets >= queues.rx_slots[0] && queues.rx_slots[0] >= queues.tx_slots[0]);
    assert!(queues.tx_slots[0] >= end.tx_packets);
    drop(device);
    assert_eq!(card.breaches(), []);
    assert_eq!(pool.available(), 4096);
}

/// Hugepages are available, or the error explains how to reserve them. `./test` reserves 2 MiB pages.
#[test]
fn regions_of_hugepages_work_or_report_missing_pages() {
    for (pages, bytes) in [(PageSize::Huge2M, 2 << 20), (PageSize::Huge1G, 1 << 30)] {
        let options = RegionOptions { buffers: 1024, pages: Pages::Only(pages), ..RegionOptions::default() };
        let free = pages.free();
        match Region::new(&options) {
            Ok(region) => {
                assert_eq!((region.pages(), region.buffers() * region.buffer_size()), (pages, bytes));
                let pool = Pool::new(region);
                let mut batch = Batch::new();
                assert!(batch.push(&pool, &[1; 1500]));
                // The rings use pages of the same size.
                if pages.free() > 0 {
                    let card = Card::new("huge", Box::new(Cable::unplugged()));
                    open(&card, &pool).rx(0).unwrap();
                }
            }
            Err(error) => {
                let text = error.with_hint();
                assert!(free < 2, "{free} are free, and still: {text}");
                assert!(
                    error.kind() == linerate::ErrorKind::Exhausted
                        && text.starts_with("1 ")
                        && text.contains("nr_hugepages"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn a_numa_node_is_chosen_or_the_error_lists_the_nodes() {
    let region = |node| Region::new(&RegionOptions { buffers: 64, numa_node: Some(node), ..RegionOptions::default() });
    assert!(region(0).is_ok());
    let text = region(77).map(drop).unwrap_err().with_hint();
    assert!(
        text.contains("no NUMA node 77") && (text.contains("one node only") || text.contains("its nodes are")),
        "{text}"
    );
}
