//! Hostile safe code: it panics in closures, swaps values, mixes regions, and replaces values lent to it.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::netmap::{NetmapPort, Pipe, RxRing, Side, TxRing};
use linerate::port::{Address, Description, Device, Info, PortKind, Receive, Transmit};
use linerate::{Batch, Options, sim82599};
use linerate_testkit::Deadline;

/// Buffers of a large region: most of its buffer numbers are invalid in a small one. Miri would take minutes for more.
const LARGE: usize = if cfg!(miri) { 256 } else { 4096 };

fn pool(buffers: usize) -> Arc<Pool> {
    pool_of(buffers, 512)
}

fn pool_of(buffers: usize, buffer_size: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size, pages, numa_node: None }).unwrap())
}

/// Allocates all buffers of a pool, fills each with a different value, and checks the values: no buffer may be missing
/// or duplicated.
fn check_whole(pool: &Arc<Pool>, buffers: usize) {
    let mut batch = Batch::with_capacity(2 * buffers);
    assert_eq!(batch.alloc(pool, 2 * buffers, 100), buffers, "buffers are free more than once, or missing");
    batch.into_iter().enumerate().for_each(|(n, mut packet)| packet.fill(n as u8));
    assert!(batch.into_iter().enumerate().all(|(n, bytes)| bytes.iter().all(|byte| *byte == n as u8)));
}

#[test]
fn a_closure_that_panics_frees_nothing_twice() {
    for at in 0..8 {
        let pool = pool(64);
        let (mut batch, mut rest) = (Batch::new(), Batch::new());
        (0..8u8).for_each(|n| assert!(batch.push(&pool, &[n; 700])));
        let mut asked = 0;
        let mut keep = |bytes: &[u8]| {
            asked += 1;
            assert!(asked <= at, "the program's own panic");
            bytes[0].is_multiple_of(2)
        };
        assert!(catch_unwind(AssertUnwindSafe(|| batch.split(&mut rest, &mut keep))).is_err());
        let seen = |batch: &mut Batch| {
            let all = batch.packets().map(|packet| (packet.len(), packet[0]));
            all.collect::<Vec<_>>()
        };
        let is_kept = |n: &u8| usize::from(*n) >= at || n.is_multiple_of(2);
        let (kept, others): (Vec<u8>, Vec<u8>) = (0..8).partition(is_kept);
        assert_eq!(seen(&mut batch), kept.iter().map(|&n| (700, n)).collect::<Vec<_>>());
        assert_eq!(seen(&mut rest), others.iter().map(|&n| (700, n)).collect::<Vec<_>>());
        drop((batch, rest));
        check_whole(&pool, 64);
    }
}

#[test]
fn a_taken_packet_is_freed_once() {
    let pool = pool(64);
    let (mut batch, mut other) = (Batch::new(), Batch::new());
    (0..6u8).for_each(|n| assert!(batch.push(&pool, &[n; 700])));
    let held = |batch: &mut Batch| {
        let _packet = batch.take();
        panic!("the program's own panic");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| held(&mut batch))).is_err());
    std::mem::forget(batch.take());
    // Swap two taken packets, and then their batches.
    other.push(&pool, &[9; 700]);
    let (mut first, mut second) = (batch.take().unwrap(), other.take().unwrap());
    std::mem::swap(&mut first, &mut second);
    assert_eq!((first.packet()[0], second.packet()[0]), (9, 1));
    drop((first, second));
    std::mem::swap(&mut batch, &mut other);
    let seen = |batch: &mut Batch| batch.packets().map(|packet| (packet[0], packet.len())).collect::<Vec<_>>();
    assert_eq!((seen(&mut batch), seen(&mut other)), (vec![], (2..6).map(|n| (n, 700)).collect()));
    drop((batch, other));
    check_whole(&pool, 64);
}

/// A program's own queue, with its own region.
struct Own {
    pool: Arc<Pool>,
    sent: Vec<Vec<u8>>,
    /// The queue replaces the batch lent to it.
    replaces: bool,
    panics: bool,
}

impl Own {
    fn new(pool: &Arc<Pool>) -> Own {
        Own { pool: pool.clone(), sent: Vec::new(), replaces: false, panics: false }
    }
}

impl Receive for Own {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if self.replaces {
            *batch = Batch::with_capacity(1);
        }
        (0..5).filter(|&n| batch.push(&self.pool, &[n; 300])).count()
    }
    fn buffers(&self) -> usize {
        0
    }
}

impl Transmit for Own {
    fn send(&mut self, batch: &mut Batch) -> usize {
        assert!(!self.panics || batch.is_empty(), "the program's own panic");
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            self.sent.push(bytes);
        }
        let slots = batch.len();
        batch.drop_front(slots);
        if self.replaces {
            *batch = Batch::with_capacity(1);
            batch.push(&self.pool, &[0xEE; 1000]);
        }
        slots
    }
    fn buffers(&self) -> usize {
        0
    }
}

#[test]
fn a_receive_ring_takes_no_slot_of_another_region() {
    for replaces in [false, true] {
        // The queue's region is larger, so its buffer numbers are invalid in the ring's region.
        let (small, large) = (pool(16), pool(LARGE));
        let mut hold = Batch::with_capacity(LARGE);
        hold.alloc(&large, LARGE / 2, 60);
        let queue = Own { replaces, ..Own::new(&large) };
        let mut rx = RxRing::new(queue.into(), &small, 8);
        for _ in 0..10 {
            rx.sync();
            assert!(rx.ring.space() > 0);
            for n in 0..rx.ring.space() {
                let slot = (rx.ring.head() + n) % rx.ring.slots();
                let bytes = rx.ring.bytes_mut(slot);
                assert!(bytes.len() == 300 && bytes.iter().all(|byte| *byte == bytes[0]));
                bytes.fill(0xFF);
            }
            rx.ring.advance(rx.ring.space());
        }
        drop(rx);
        check_whole(&small, 16);
        drop(hold);
        check_whole(&large, LARGE);
    }
}

#[test]
fn a_transmit_ring_survives_a_queue_that_replaces_its_batch() {
    let (ours, theirs) = (pool(32), pool(LARGE));
    let mut hold = Batch::with_capacity(LARGE);
    hold.alloc(&theirs, LARGE / 2, 60);
    let mut tx = TxRing::new(Own { replaces: true, ..Own::new(&theirs) }.into(), &ours, 8);
    for _ in 0..20 {
        let count = tx.ring.space();
        for n in 0..count {
            let slot = (tx.ring.head() + n) % tx.ring.slots();
            tx.ring.set_len(slot, 200, n + 1 < count);
            tx.ring.bytes_mut(slot).fill(1);
        }
        tx.ring.advance(count);
        tx.sync();
        tx.sync();
    }
    drop(tx);
    check_whole(&ours, 32);
    drop(hold);
    check_whole(&theirs, LARGE);
}

/// A program's own port, whose queues put packets of other regions into the batch lent to them.
static FOREIGN: PortKind = PortKind {
    description: Description::new("foreign", Address::Text),
    open: &|opening| {
        let (others, replaces) = OTHERS.lock().unwrap_or_else(PoisonError::into_inner).take().expect("a test sets it");
        Ok(Box::new(Foreign { pool: opening.config.pool().clone(), others, replaces }))
    },
};

/// The regions of the next port's packets, and whether its queue replaces its batch.
static OTHERS: Mutex<Option<(Vec<Arc<Pool>>, bool)>> = Mutex::new(None);

struct Foreign {
    pool: Arc<Pool>,
    /// The regions of its packets, used in turn.
    others: Vec<Arc<Pool>>,
    replaces: bool,
}

/// The receive queue of [`Foreign`].
struct ForeignRx {
    others: Vec<Arc<Pool>>,
    replaces: bool,
    next: usize,
    panics: usize,
}

impl Device for Foreign {
    fn name(&self) -> &str {
        "foreign"
    }
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
    fn info(&self) -> Info {
        Info { rx_queues: 1, tx_queues: 1, ..Info::default() }
    }
    fn rx(&mut self, _: u16) -> linerate::Result<Box<dyn Receive>> {
        Ok(Box::new(ForeignRx { others: self.others.clone(), replaces: self.replaces, next: 0, panics: 7 }))
    }
    fn tx(&mut self, _: u16) -> linerate::Result<Box<dyn Transmit>> {
        Ok(Box::new(Own::new(&self.others[0])))
    }
}

impl Receive for ForeignRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        self.next += 1;
        let pool = &self.others[self.next % self.others.len()];
        if self.replaces {
            *batch = Batch::with_capacity(1 + self.next * 37 % 200);
        }
        // The longest frames take several slots.
        let frames = if cfg!(miri) { 6 } else { 150 };
        let count = (0..frames).filter(|&n| batch.push(pool, &vec![n; 60 + usize::from(n) * 7])).count();
        assert!(!self.next.is_multiple_of(self.panics), "the program's own panic");
        count
    }
}

/// Consumers of a cluster get only packets of their own region, whatever the port's queue puts into its batch.
#[test]
fn a_cluster_takes_no_slot_of_another_region() {
    // Each packet takes Miri a tenth of a second.
    const TURNS: usize = if cfg!(miri) { 4 } else { 200 };
    for replaces in [false, true] {
        for by in if cfg!(miri) { &["turn"][..] } else { &["flow", "turn"] } {
            let (ours, large) = (pool(512), pool(LARGE));
            let mut hold = Batch::with_capacity(LARGE);
            hold.alloc(&large, LARGE / 2, 60);
            *OTHERS.lock().unwrap() = Some((vec![ours.clone(), large.clone()], replaces));
            let options = Options { pool: Some(ours.clone()), ring: Some(64), local: true, ..Options::default() }
                .with_port_kind(&FOREIGN);
            let [mut port] = options.open([&format!("foreign:x?cluster=2&by={by}")]).unwrap();
            let mut queues = [port.rx(0).unwrap(), port.rx(1).unwrap()];
            let (mut batch, mut received) = (Batch::new(), 0);
            for turn in 0..TURNS {
                let queue = &mut queues[turn % 2];
                let _ = catch_unwind(AssertUnwindSafe(|| queue.recv(&mut batch)));
                for mut packet in &mut batch {
                    let first = packet[0];
                    assert!(packet.iter().all(|byte| *byte == first), "a packet has another's bytes");
                    packet.fill(0xFF);
                    received += 1;
                }
                batch.clear();
            }
            assert!(received > TURNS, "{received} packets arrived");
            drop((queues, port, batch));
            check_whole(&ours, 512);
            drop(hold);
            check_whole(&large, LARGE);
        }
    }
}

#[test]
fn a_queue_that_panics_loses_no_buffer() {
    let pool = pool(32);
    let mut tx = TxRing::new(Own { panics: true, ..Own::new(&pool) }.into(), &pool, 8);
    // Two complete packets, and the beginning of a third.
    (0..5).for_each(|slot| tx.ring.set_len(slot, 60, slot % 2 == 0));
    tx.ring.advance(5);
    assert!(catch_unwind(AssertUnwindSafe(|| tx.sync())).is_err());
    drop(tx);
    check_whole(&pool, 32);
}

/// No length wraps, however large. With overflow checks it would panic anyway, so `./test` also runs this with
/// `--release`.
#[test]
fn a_length_beyond_its_buffer_is_refused() {
    let pool = pool(64);
    let mut tx = TxRing::new(Own::new(&pool).into(), &pool, 8);
    for len in [usize::MAX, usize::MAX - 70, usize::MAX - 127, 1 << 32 | 60, 1 << 16 | 60, 65_535, 513, 512, 385] {
        let said = catch_unwind(AssertUnwindSafe(|| tx.ring.set_len(0, len, false)))
            .map_err(|panic| *panic.downcast().unwrap());
        let said: String = said.unwrap_err();
        assert!(said.contains("do not fit a buffer of 512"), "{len}: {said}");
        assert!(tx.ring.bytes_mut(0).len() < 512);
    }
    tx.ring.set_len(0, 384, false);
    assert_eq!(tx.ring.bytes_mut(0).len(), 384);
    // Neither does a duration.
    let options = linerate::Options { pool: Some(pool), ring: Some(64), local: true, ..Default::default() };
    let [port] = options.open(["null:"]).unwrap();
    assert!(NetmapPort::new(port).unwrap().poll(true, std::time::Duration::MAX));
}

#[test]
fn exchanged_rings_keep_their_regions() {
    let (a, b) = (pool(64), pool(LARGE));
    let mut hold = Batch::with_capacity(LARGE);
    hold.alloc(&b, LARGE / 2, 60);
    let mut tx = TxRing::new(Own::new(&a).into(), &a, 8);
    let mut rx = RxRing::new(Own::new(&b).into(), &b, 32);
    let mut other = TxRing::new(Own::new(&b).into(), &b, 64);
    for round in 0..20 {
        match round % 3 {
            0 => std::mem::swap(&mut tx.ring, &mut rx.ring),
            1 => std::mem::swap(&mut rx.ring, &mut other.ring),
            _ => std::mem::swap(&mut other.ring, &mut tx.ring),
        }
        for tx in [&mut tx, &mut other] {
            let count = tx.ring.space().min(5);
            for n in 0..count {
                let slot = (tx.ring.head() + n) % tx.ring.slots();
                tx.ring.set_len(slot, 60, false);
                tx.ring.bytes_mut(slot).fill(9);
            }
            tx.ring.advance(count);
            tx.sync();
        }
        rx.sync();
        for n in 0..rx.ring.space() {
            let slot = (rx.ring.head() + n) % rx.ring.slots();
            rx.ring.bytes_mut(slot).fill(7);
        }
        rx.ring.advance(rx.ring.space() / 2);
    }
    drop((tx, rx, other));
    check_whole(&a, 64);
    drop(hold);
    check_whole(&b, LARGE);
}

#[test]
fn rings_of_real_ports_can_be_exchanged_across_regions() {
    let open = |buffers, name| {
        let options =
            linerate::Options { pool: Some(pool(buffers)), ring: Some(64), local: true, ..Default::default() };
        let [port] = options.open([name]).unwrap();
        NetmapPort::new(port).unwrap()
    };
    let (mut small, mut large) = (open(512, "exchanged{1"), open(1024, "exchanged{2"));
    for _ in 0..10 {
        std::mem::swap(&mut small.tx[0].ring, &mut large.tx[0].ring);
        for rings in [&mut small, &mut large] {
            let half = rings.tx[0].ring.space() / 2;
            rings.tx[0].ring.advance(half);
            rings.tx[0].sync();
            rings.rx[0].sync();
        }
    }
}

/// With any values in `Options`, opening a port either fails or gives a port that works with frames of any length.
#[test]
#[cfg(not(miri))]
fn any_options_open_a_working_port_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let names = [
        ["options{1".to_string(), "options}1".to_string()],
        ["vale7:a".to_string(), "vale7:b".to_string()],
        [format!("vhost:{a}"), format!("virtio-user:{a}")],
        [format!("vhost:{a}?packed=on"), format!("virtio-user:{a}?packed=on")],
        [format!("memif:{b}"), format!("memif:{b}?role=client")],
        [format!("memif:{b}"), format!("memif:{b}?role=client&zero-copy=on")],
        ["sim:options-a?wire=none".to_string(), "null:".to_string()],
    ];
    let (mut state, mut opened) = (1u64, [0; 7]);
    let mut pick = |choices: &[usize]| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        choices[(state >> 33) as usize % choices.len()]
    };
    for round in 0..700 {
        let queues = [1, 1, 1, 1, 1, 1, 2, 64, 0, 65, 65_535];
        let ours = pool_of(pick(&[16, 512, 4096]), pick(&[512, 2048, 4096]));
        let options = Options {
            rx_queues: pick(&queues) as u16,
            tx_queues: pick(&queues) as u16,
            ring: Some(pick(&[64, 64, 64, 64, 256, 4096, 0, 1, 1000, 1 << 20, usize::MAX])),
            max_frame: pick(&[
                64,
                64,
                65,
                80,
                1518,
                1518,
                9000,
                65_553,
                0,
                1,
                12,
                13,
                14,
                17,
                18,
                60,
                63,
                65_554,
                usize::MAX,
            ]),
            interrupts: [None, Some(std::time::Duration::ZERO), Some(std::time::Duration::MAX)][pick(&[0, 1, 2])],
            offloads: pick(&[0, 1]) == 1,
            timestamps: pick(&[0, 1]) == 1,
            pool: Some(ours.clone()),
            local: true,
            ..Options::default()
        };
        let [first, second] = &names[round % names.len()];
        let Ok([mut first, mut second]) = options.open([first.as_str(), second.as_str()]) else { continue };
        let Options { rx_queues, tx_queues, max_frame, .. } = options;
        let counts = [rx_queues, tx_queues].map(|queues| (1..=64).contains(&queues));
        assert!(counts == [true; 2] && (64..=65_553).contains(&max_frame), "{counts:?}, {max_frame} bytes");
        opened[round % names.len()] += 1;
        let queues = (first.tx(0), first.rx(0), second.tx(0), second.rx(0));
        let (Ok(mut tx), Ok(mut own), Ok(mut back), Ok(mut rx)) = queues else { continue };
        let (mut batch, mut received) = (Batch::new(), Batch::new());
        for len in [1, 13, 14, 46, 60, 61, 64, 300, 1514, 1518, 9000, 60_000] {
            batch.push(&ours, &vec![7; len]);
            batch.push(&ours, &vec![8; len]);
            for _ in 0..8 {
                tx.send(&mut batch);
                back.send(&mut batch);
                rx.recv(&mut received);
                own.recv(&mut received);
                for packet in &mut received {
                    let first = packet[0];
                    assert!(packet.segments().flatten().all(|byte| *byte == first), "{} bytes", packet.len());
                }
                received.clear();
            }
            batch.clear();
        }
    }
    assert!(opened.iter().all(|count| *count > 0), "{opened:?} of each pair of names were opened");
}

#[test]
fn a_packet_that_never_fits_is_dropped_and_later_ones_arrive() {
    // 16 buffers with 384 bytes after the headroom; the packet would need 24.
    let (small, large) = (pool(16), pool(256));
    let config = |name: &str| Options { max_frame: 9018, ..Options::default() }.of_port(name, small.clone()).unwrap();
    let mut ends = [Side::Master, Side::Slave].map(|side| Pipe::open("narrow{1", side, config("narrow")).unwrap());
    let mut tx = ends[0].tx(0).unwrap();
    let mut rx = ends[1].rx(0).unwrap();
    let mut batch = Batch::new();
    assert!(batch.push(&large, &[1; 9000]) && batch.push(&large, &[2; 60]));
    assert_eq!(tx.send(&mut batch), 25);
    assert_eq!(ends[0].statistics().unwrap().drops.tx_too_long, 1);
    let mut received = Batch::new();
    assert_eq!(rx.recv(&mut received), 1);
    assert!(received.into_iter().all(|packet| *packet == [2; 60]));
}

/// A modelled card has one user: a driver in this process, or the process to which it is served.
#[test]
fn a_card_has_one_user() {
    let card = sim82599::Card::new("one", sim82599::from_fn(|_| {}, |_| false));
    let pool = pool_of(256, 2048);
    let config = || Options { ring: Some(64), ..Options::default() }.of_port("one", pool.clone()).unwrap();
    let port = linerate::drive_model(&card, None, config()).unwrap();
    assert!(sim82599::Function::new(card.clone()).is_err() && sim82599::Function::of_virtual(card.clone(), 0).is_err());
    drop(port);
    let function = sim82599::Function::new(card.clone()).unwrap();
    assert!(linerate::drive_model(&card, None, config()).is_err());
    drop(function);
    assert!(linerate::drive_model(&card, None, config()).is_err(), "its host may return");
}

/// The wire behind a card is the program's code: its panic takes down only that card's link.
#[test]
fn a_wire_that_panics_takes_only_its_card_s_link() {
    let panicking = sim82599::Card::new("panics", sim82599::from_fn(|_| panic!("a wire"), |_| panic!("a wire")));
    let traffic = sim82599::Traffic::new(linerate::traffic::Generator::default(), None, None);
    let other = sim82599::Card::new("goes on", Box::new(traffic));
    let runner = Arc::new(sim82599::Runner::start().unwrap());
    [&panicking, &other].into_iter().for_each(|card| runner.run(card));
    let config = |name| Options { ring: Some(64), ..Options::default() }.of_port(name, pool_of(512, 2048)).unwrap();
    let drive = |card: &Arc<sim82599::Card>, runner| linerate::drive_model(card, runner, config("wires")).unwrap();
    let (mut port, mut neighbour) = (drive(&panicking, Some(runner.clone())), drive(&other, Some(runner.clone())));
    let (rx, mut received) = (port.rx(0).unwrap(), neighbour.rx(0).unwrap());
    let (mut batch, mut count) = (Batch::new(), 0);
    let deadline = Deadline::begin();
    while panicking.check_wire().is_ok() {
        deadline.check(|| "the panic of the wire");
        std::thread::yield_now();
    }
    let most = if cfg!(miri) { 64 } else { 1000 };
    let deadline = Deadline::begin();
    while count < most {
        deadline.check(|| format!("{count} of {most} packets were received, {:?}", neighbour.statistics()));
        count += received.recv(&mut batch);
        batch.clear();
    }
    assert!(panicking.check_wire().is_err_and(|error| error.kind() == linerate::ErrorKind::WirePanicked));
    assert_eq!(port.link().unwrap(), linerate::port::Link::Down);
    drop((rx, port, received, neighbour, runner));

    // In the driver's thread, the panic reaches the caller once; dropping the queue does not panic again.
    let card = sim82599::Card::new("by hand", sim82599::from_fn(|_| panic!("a wire"), |_| false));
    let pool = pool(512);
    let mut device = linerate::drive_model(&card, None, config("by hand")).unwrap();
    let mut tx = device.tx(0).unwrap();
    assert!(batch.push(&pool, &[2; 60]));
    tx.send(&mut batch);
    let outcome = catch_unwind(AssertUnwindSafe(|| card.step(64)));
    assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"a wire"));
    assert_eq!(card.step(64), 0);
}

/// netmap(4): a packet has at most 64 slots. Longer and endless packets are dropped at the ring.
#[test]
fn a_packet_of_too_many_slots_is_dropped_and_counted() {
    let options = Options { pool: Some(pool(2048)), ring: Some(256), local: true, ..Options::default() };
    let [a, mut b] = options.open(["chain{1", "chain}1"]).unwrap();
    let (mut rx, mut a) = (b.rx(0).unwrap(), NetmapPort::new(a).unwrap());
    let mut batch = Batch::new();
    let mut lengths = |a: &mut NetmapPort, slots: &[usize]| {
        let ring = &mut a.tx[0].ring;
        for &count in slots {
            for n in 0..count {
                let slot = ring.head();
                ring.set_len(slot, 60, n + 1 < count);
                ring.advance(1);
            }
        }
        a.tx[0].sync();
        let mut received = Vec::new();
        while rx.recv(&mut batch) > 0 {
            received.extend(batch.packets().map(|packet| packet.slots()));
            batch.clear();
        }
        received
    };
    assert_eq!(lengths(&mut a, &[1, 64, 65, 2, 120, 1]), [1, 64, 2, 1]);
    assert_eq!(a.tx[0].too_long(), 2);
    // An endless packet, sent in parts: its slots become free again.
    for _ in 0..20 {
        let ring = &mut a.tx[0].ring;
        for _ in 0..40 {
            let slot = ring.head();
            ring.set_len(slot, 60, true);
            ring.advance(1);
        }
        a.tx[0].sync();
    }
    assert_eq!((a.tx[0].too_long(), a.tx[0].ring.space() >= 128), (3, true));
    assert_eq!(lengths(&mut a, &[1, 3]), [3], "the first is the end of the dropped packet");
}
