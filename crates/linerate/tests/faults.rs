//! External faults cause a clear error or a counted drop, and everything works afterwards.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::{Config, Ixgbe};
use linerate::port::{Device, Link, MacAddress, Pause, Rss};
use linerate::sim82599::{Cable, Card, CardBar, Frame, Traffic, from_fn};
use linerate::spec::x82599::{CTRL, RXDCTL, TXDCTL};
use linerate::{Batch, Error, Options};
use linerate_testkit::Deadline;

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

fn pool(buffers: usize, buffer_size: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size, pages, numa_node: None }).unwrap())
}

/// Makes a card that receives the frames it sends.
fn looped(name: &str) -> Arc<Card> {
    let frames = Frames::default();
    let (sent, back) = (frames.clone(), frames);
    Card::new(
        name,
        from_fn(
            move |frame| sent.lock().unwrap().push_back(frame.bytes.clone()),
            move |frame| back.lock().unwrap().pop_front().map(|bytes| frame.bytes = bytes).is_some(),
        ),
    )
}

fn open(card: &Arc<Card>, config: Config) -> Result<Ixgbe<CardBar>, Error> {
    linerate::drive_model(card, None, config)
}

fn message<T>(result: Result<T, Error>) -> String {
    result.map(drop).expect_err("this must fail").with_hint()
}

/// Sends 100 frames through the card and back, and checks them.
fn works(card: &Arc<Card>, device: &mut Ixgbe<CardBar>) {
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let (mut batch, mut came) = (Batch::new(), 0u8);
    for number in 0..100u8 {
        assert!(batch.push(device.pool(), &[number; 100]));
        assert_eq!(tx.send(&mut batch), 1);
        card.step(8);
        card.step(8);
        rx.recv(&mut batch);
        for bytes in &mut batch {
            assert_eq!(*bytes, [came; 100]);
            came += 1;
        }
        batch.clear();
    }
    assert_eq!(came, 100);
}

#[test]
fn an_exhausted_pool_keeps_packets_waiting_and_counts_it() {
    let pool = pool(64 + 40, 2048);
    let card = looped("exhausted");
    let mut device =
        open(&card, Options { ring: Some(64), ..Options::default() }.of_port("sim:exhausted", pool.clone()).unwrap())
            .unwrap();
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let (mut hoard, mut batch) = (Batch::with_capacity(200), Batch::new());
    for _ in 0..8 {
        assert!(batch.push(&pool, &[7; 60]));
    }
    assert_eq!(tx.send(&mut batch), 8);
    drop(batch);
    // Take all remaining buffers.
    assert_eq!(hoard.alloc(&pool, 200, 60), 40 - 8);
    card.step(8);
    card.step(8);
    let mut batch = Batch::new();
    assert_eq!(rx.recv(&mut batch), 0);
    assert_eq!(device.statistics().unwrap().drops.no_buffer, 1);
    hoard.clear();
    drop(hoard);
    assert_eq!(rx.recv(&mut batch), 8);
    assert_eq!(card.breaches(), []);
}

#[test]
fn a_pool_too_small_for_its_queues_is_refused() {
    let mut device = open(&looped("small"), Config::new("sim:small", pool(512, 2048))).unwrap();
    let text = message(device.rx(0));
    assert!(text.contains("512 buffers") && text.contains("more buffers"), "{text}");
    let config = Options { ring: Some(256), ..Options::default() }.of_port("sim:small2", pool(512, 2048)).unwrap();
    let mut device = open(&looped("small2"), config).unwrap();
    let _rx = device.rx(0).unwrap();
    device.tx(0).unwrap();
}

#[test]
fn buffers_kept_by_a_program_are_named_in_the_error() {
    let pool = pool(256, 2048);
    let card = looped("kept");
    let mut device =
        open(&card, Options { ring: Some(128), ..Options::default() }.of_port("sim:kept", pool.clone()).unwrap())
            .unwrap();
    let mut hoard = Batch::with_capacity(200);
    hoard.alloc(&pool, 200, 60);
    let text = message(device.rx(0));
    assert!(text.contains("exhausted") && text.contains("drop the batches"), "{text}");
    drop(hoard);
    works(&card, &mut device);
    assert_eq!(pool.available(), 256);
}

#[test]
fn an_unplugged_wire_holds_packets_until_it_is_back() {
    let card = looped("cable");
    let pool = pool(2048, 2048);
    let mut device = open(&card, Config::new("sim:cable", pool.clone())).unwrap();
    assert_eq!(device.link().unwrap(), Link::Up { mbits: 10_000 });
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    card.set_cable(false);
    assert_eq!(device.link().unwrap(), Link::Down);
    let mut batch = Batch::with_capacity(600);
    for _ in 0..600 {
        assert!(batch.push(&pool, &[1; 60]));
    }
    // A ring of 512 holds 511; the rest stays in the batch.
    assert_eq!(tx.send(&mut batch), 511);
    assert_eq!(batch.len(), 89);
    assert_eq!(card.step(1000), 0);
    card.set_cable(true);
    card.step(1000);
    assert_eq!(tx.send(&mut batch), 89);
    let mut came = 0;
    for _ in 0..20 {
        card.step(1000);
        came += rx.recv(&mut batch);
        batch.clear();
    }
    assert_eq!(came, 600);
    let port = open(&Card::new("nothing", Box::new(Cable::unplugged())), Config::new("sim:nothing", pool)).unwrap();
    assert_eq!(port.link().unwrap(), Link::Down);
}

fn unplugged(name: &str) -> Arc<Card> {
    let card = looped(name);
    card.unplug();
    card
}

#[test]
fn a_card_that_is_pulled_out_gives_errors_and_works_when_it_is_back() {
    let pool = pool(2048, 2048);
    let card = looped("gone");
    let mut device = open(&card, Config::new("sim:gone", pool.clone())).unwrap();
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let mut batch = Batch::new();
    assert!(batch.push(&pool, &[1; 60]));
    tx.send(&mut batch);
    card.unplug();
    assert_eq!(rx.recv(&mut batch), 0);
    for text in [
        message(device.link()),
        message(device.statistics()),
        message(device.set_promiscuous(true)),
        message(device.register_counters()),
        message(device.set_mac(MacAddress([2, 0, 0, 0, 0, 1]))),
        message(device.set_addresses(&[MacAddress([2, 0, 0, 0, 0, 2])])),
        message(device.set_all_multicast(true)),
        message(device.set_vlans(Some(&[1]))),
        message(device.set_pause(Pause::default())),
        message(device.set_rss(&Rss::evenly(1))),
        message(open(&unplugged("gone"), Config::new("sim:gone", pool.clone()))),
        message(rx.stop()),
        message(tx.stop()),
        message(device.reset()),
    ] {
        assert!(text.contains("sim:gone") && text.contains("the card is gone"), "{text}");
    }
    // The card may still use the queues' buffers, so they stay quarantined.
    drop(batch);
    assert_eq!(pool.available(), 2048 - 512 - 1);
    card.plug_in();
    device.reset().unwrap();
    assert_eq!(pool.available(), 2048);
    works(&card, &mut device);
    assert_eq!(card.breaches(), []);
}

#[test]
fn memory_is_leaked_rather_than_freed_under_a_card_that_does_not_answer() {
    let pool = pool(1024, 2048);
    let card = looped("leak");
    let mut device = open(&card, Config::new("sim:leak", pool.clone())).unwrap();
    let rx = device.rx(0).unwrap();
    card.unplug();
    drop(rx);
    // SAFETY: no bytes of the mapping are read or written.
    let mapping = Arc::downgrade(unsafe { pool.region().mapping() });
    drop((device, pool));
    assert!(mapping.upgrade().is_some());
}

#[test]
fn a_card_that_stops_answering_fails_within_its_bound() {
    let pool = pool(2048, 2048);
    for (stuck, register, section) in [
        (CTRL::OFFSET, "CTRL.LRST|RST=0", CTRL::SECTION),
        (RXDCTL::at(0), "RXDCTL[0].ENABLE", RXDCTL::SECTION),
        (TXDCTL::at(0), "TXDCTL[0].ENABLE", TXDCTL::SECTION),
    ] {
        let card = looped("stuck");
        let mut device = open(&card, Config::new("sim:stuck", pool.clone())).unwrap();
        card.set_stuck(Some(stuck));
        let text = match stuck {
            CTRL::OFFSET => message(device.reset()),
            offset if offset == RXDCTL::at(0) => message(device.rx(0)),
            _ => message(device.tx(0)),
        };
        assert!(text.contains(register) && text.contains(section) && text.contains("200ms"), "{text}");
        card.set_stuck(None);
        device.reset().unwrap();
        works(&card, &mut device);
    }
    assert_eq!(pool.available(), 2048);
}

#[test]
fn a_queue_has_one_owner_at_a_time() {
    let card = looped("owner");
    let config =
        Options { rx_queues: 2, tx_queues: 2, ..Options::default() }.of_port("sim:owner", pool(4096, 2048)).unwrap();
    let mut device = open(&card, config).unwrap();
    let (rx, tx) = (device.rx(1).unwrap(), device.tx(1).unwrap());
    assert!(message(device.rx(1)).contains("sim:owner: receive queue 1 is taken"));
    assert!(message(device.tx(1)).contains("sim:owner: transmit queue 1 is taken"));
    assert!(message(device.rx(2)).contains("no receive queue 2") && message(device.tx(9)).contains("queues=10"));
    assert!(message(device.reset()).contains("2 of its queues"));
    drop((rx, tx));
    let _again = (device.rx(1).unwrap(), device.tx(1).unwrap());
}

#[test]
fn invalid_sizes_are_explained() {
    let card = looped("sizes");
    let with = |options: Options| options.of_port("sim:sizes", pool(2048, 2048)).unwrap();
    let good = || with(Options::default());
    for ring in [0, 1, 32, 100, 8192] {
        let text = message(open(&card, with(Options { ring: Some(ring), ..Options::default() })));
        assert!(text.contains(&format!("ring of {ring}")) && text.contains("64 to 4096"), "{text}");
    }
    assert!(message(open(&card, with(Options { max_frame: 20_000, ..Options::default() }))).contains("60 to 9728"));
    for name in ["sim:long", "valeL:a", "long{1", "null:"] {
        for max_frame in [0, 13, 17, 63, 20_000_000, usize::MAX, usize::MAX - 17] {
            let text = message(Options { max_frame, ..Options::default() }.open([name]));
            assert!(text.contains("mtu") && text.contains("a number from 46 to"), "{text}");
        }
        for (rx, tx) in [(0, 1), (1, 0), (65, 1), (1, u16::MAX)] {
            let text = message(Options { rx_queues: rx, tx_queues: tx, ..Options::default() }.open([name]));
            assert!(text.contains("queues=") && text.contains("from 1 to 64"), "{text}");
        }
    }
    let text = message(open(&card, Config::new("sim:sizes", pool(2048, 1024))));
    assert!(text.contains("buffers of 1024 bytes") && text.contains("2048"), "{text}");
    works(&card, &mut open(&card, good()).unwrap());
}

#[test]
fn invalid_rss_tables_are_explained() {
    let config = Options { rx_queues: 4, ..Options::default() }.of_port("sim:rss", pool(4096, 2048)).unwrap();
    let mut device = open(&looped("rss"), config).unwrap();
    let mut rss = Rss::evenly(4);
    device.set_rss(&rss).unwrap();
    rss.table = vec![0, 4];
    assert!(message(device.set_rss(&rss)).contains("queue 4"));
    rss.table.clear();
    assert!(message(device.set_rss(&rss)).contains("0 entries"));
    rss.table = vec![0; 129];
    assert!(message(device.set_rss(&rss)).contains("129 entries"));
}

#[test]
fn names_are_checked_before_anything_is_opened() {
    assert!(message(linerate::open(["sim:names-a", "eth0"])).contains("eth0: no port"));
    let text = message(linerate::open(["pcap:nothing"]));
    assert!(text.contains("nothing: cannot read it"), "{text}");
    assert!(
        message(linerate::open(["pcap:x?write&speed=2x"]))
            .contains("loop, speed and ethernet apply only to files that are read")
    );
    assert!(message(linerate::open(["pcap:x?speed=fast"])).contains("a factor such as 1x"));
    let text = message(linerate::open(["ffff:1f:1f.7"]));
    assert!(text.contains("no PCI device at this address") && text.contains("pci::network_cards"), "{text}");
    assert!(message(linerate::open(["sim:names-a?ring=100"])).starts_with("sim:names-a: a ring of 100"));
    assert!(message(linerate::open(["sim:names-a?wire=string"])).contains("wire=string"));
    assert!(message(linerate::open(["sim:names-a?rate=fast"])).contains("not a rate"));
    assert!(message(linerate::open(["sim:names-a?wire=pcap:/nowhere"])).contains("/nowhere"));
    let [first] = linerate::open(["sim:names-a"]).unwrap();
    assert!(message(linerate::open(["sim:names-a"])).contains("open already"));
    drop(first);
    // Keep another model open, so that the thread that runs models continues.
    let _other = linerate::open(["sim:names-b"]).unwrap();
    for _ in 0..50 {
        linerate::open(["sim:names-a"]).expect("the name is free once its port is closed");
    }
}

#[test]
fn bad_frames_are_counted_by_cause() {
    let frames: Vec<Frame> = vec![
        Frame { bytes: vec![2; 60], bad_crc: false },
        Frame { bytes: vec![2; 60], bad_crc: true },
        Frame { bytes: vec![2; 59], bad_crc: false },
        Frame { bytes: vec![2; 1519], bad_crc: false },
        Frame { bytes: vec![2; 1518], bad_crc: false },
    ];
    let mut frames = frames.into_iter();
    let card = Card::new("bad", from_fn(|_| {}, move |frame| frames.next().map(|next| *frame = next).is_some()));
    let mut device = open(&card, Config::new("sim:bad", pool(1024, 2048))).unwrap();
    let mut rx = device.rx(0).unwrap();
    card.step(10);
    let mut batch = Batch::new();
    rx.recv(&mut batch);
    assert_eq!((&mut batch).into_iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [60, 1518]);
    let statistics = device.statistics().unwrap();
    assert_eq!((statistics.rx_packets, statistics.rx_bytes), (2, 1578));
    let drops = statistics.drops;
    assert_eq!((drops.bad_crc, drops.undersize, drops.oversize, drops.no_descriptor), (1, 1, 1, 0));
    // Reading has cleared the card's counters, but not the driver's totals.
    assert_eq!(device.statistics().unwrap(), statistics);
    assert_eq!(card.breaches(), []);
}

#[test]
fn a_sender_that_does_not_wait_overruns_the_card_and_every_frame_is_accounted_for() {
    let traffic = Traffic::new(linerate::traffic::Generator::default(), "1G".parse().ok(), Some(100_000));
    let card = Card::new("overrun", Box::new(traffic));
    let mut device = open(&card, Config::new("sim:overrun", pool(1024, 2048))).unwrap();
    let mut rx = device.rx(0).unwrap();
    let deadline = Deadline::begin();
    while card.wire_report().unwrap().sent < 100_000 {
        deadline.check(|| format!("100,000 frames of the wire: {:?}", card.wire_report()));
        card.step(1000);
    }
    let (mut batch, mut received) = (Batch::new(), 0);
    loop {
        let now = rx.recv(&mut batch) as u64;
        batch.clear();
        if now + card.step(1000) as u64 == 0 {
            break;
        }
        received += now;
    }
    let statistics = device.statistics().unwrap();
    assert!(statistics.drops.no_descriptor > 0);
    assert_eq!((received, received + statistics.drops.no_descriptor), (statistics.rx_packets, 100_000));
    assert_eq!(card.breaches(), []);
}

#[test]
fn frames_longer_than_the_port_allows_are_counted_and_not_sent() {
    let card = looped("long");
    let pool = pool(1024, 2048);
    let mut device = open(&card, Config::new("sim:long", pool.clone())).unwrap();
    let mut tx = device.tx(0).unwrap();
    let mut batch = Batch::new();
    for len in [60, 1523, 4000, 61] {
        assert!(batch.push(&pool, &vec![1; len]));
    }
    assert_eq!(tx.send(&mut batch), 1 + 1 + 3 + 1);
    card.step(10);
    let statistics = device.statistics().unwrap();
    assert_eq!((statistics.tx_packets, statistics.drops.tx_too_long), (2, 2));
    assert_eq!(card.breaches(), []);
}

#[test]
fn ports_of_different_regions_copy() {
    let (card, other) = (looped("copy-a"), looped("copy-b"));
    let (pool_a, pool_b) = (pool(1024, 2048), pool(1024, 4096));
    let mut a =
        open(&card, Options { max_frame: 9000, ..Options::default() }.of_port("sim:copy-a", pool_a.clone()).unwrap())
            .unwrap();
    let mut b =
        open(&other, Options { max_frame: 9000, ..Options::default() }.of_port("sim:copy-b", pool_b.clone()).unwrap())
            .unwrap();
    let (mut rx, mut tx) = (b.rx(0).unwrap(), b.tx(0).unwrap());
    let mut batch = Batch::new();
    let frames: Vec<Vec<u8>> = [60, 1500, 9000, 70].iter().map(|&len| vec![len as u8; len]).collect();
    frames.iter().for_each(|frame| assert!(batch.push(&pool_a, frame)));
    // Packets of region a are sent through b, and received into a batch that holds a packet of region a.
    assert_eq!(tx.send(&mut batch), 8);
    other.step(10);
    other.step(10);
    assert!(batch.push(&pool_a, &[9; 64]));
    while rx.recv(&mut batch) > 0 {}
    let mut came = Vec::new();
    for packet in batch.packets() {
        let mut bytes = Vec::new();
        packet.append_to(&mut bytes);
        came.push(bytes);
    }
    assert_eq!(came[0], [9; 64]);
    assert_eq!(came[1..], frames);
    drop((batch, rx, tx));
    assert_eq!((pool_a.available(), pool_b.available()), (1024, 1024));
    works(&card, &mut a);
}

#[test]
fn options_in_a_name_have_priority() {
    let options = Options { ring: Some(128), max_frame: 9018, ..Options::default() }.with_queues(2);
    let [a, b] = options.open(["sim:options-a", "sim:options-b?queues=4&ring=256&mtu=1500"]).unwrap();
    let (a, b) = (a.info(), b.info());
    assert_eq!((a.rx_queues, a.ring, a.max_frame), (2, 128, 9018));
    assert_eq!((b.tx_queues, b.ring, b.max_frame), (4, 256, 1518));
}
