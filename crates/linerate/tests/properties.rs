//! Random schedules on the model in strict mode: every frame arrives once, in order and intact; all buffers are
//! accounted for at every step; the datasheet is never violated.
//!
//! One card receives (`a`), another sends (`b`). Frames from the wire of `a` are compared with those that `recv`
//! returns, and frames that `send` accepts with those on the wire of `b`. So each half is checked exactly. The last
//! property has a fault injector between driver and program, whose counts account for each difference.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use linerate::link::{Direction, Event, Link, LinkPort};
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::Ixgbe;
use linerate::pci::PciDevice;
use linerate::port::{Device, RxQueue, TxQueue, Vectors, Wrapped};
use linerate::sim82599::{Card, Frame, Function, Wire};
use linerate::spec::x82599::TDH;
use linerate::vfio_user::{Server, VfioUser};
use linerate::{Batch, Options};
use linerate_testkit::Deadline;
use proptest::prelude::*;
use tempfile::TempDir;

/// Frames on the test's wire, and whether the wire is stalled.
#[derive(Default)]
struct Hub {
    to_card: VecDeque<Vec<u8>>,
    from_card: VecDeque<Vec<u8>>,
    stalled: bool,
}

struct HubWire(Arc<Mutex<Hub>>);

impl Wire for HubWire {
    fn ready(&mut self) -> bool {
        !self.0.lock().unwrap().stalled
    }
    fn transmit(&mut self, frame: &Frame) {
        assert!(!frame.bad_crc);
        self.0.lock().unwrap().from_card.push_back(frame.bytes.clone());
    }
    fn receive(&mut self, frame: &mut Frame) -> bool {
        let next = self.0.lock().unwrap().to_card.pop_front();
        next.map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some()
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Frames arrive on the wire: their count and length.
    Arrive(u8, u16),
    /// The program makes frames: their count and length.
    Make(u8, u16),
    StepA(u8),
    StepB(u8),
    Receive,
    Send,
    /// The program keeps received packets, or frees the kept ones.
    Keep,
    Release,
    Stall(bool),
    CableA(bool),
    CableB(bool),
    /// Stops a queue and starts it again.
    RestartRx,
    RestartTx,
    /// Resets a card after stopping its queues.
    ResetA,
    ResetB,
}

fn ops() -> impl Strategy<Value = Op> {
    let length = || prop_oneof![4 => 60u16..=128, 2 => 129u16..=1518, 1 => 1519u16..=9800];
    prop_oneof![
        8 => (1u8..=80, length()).prop_map(|(n, len)| Op::Arrive(n, len)),
        4 => (1u8..=40, prop_oneof![3 => 1u16..=100, 2 => length()]).prop_map(|(n, len)| Op::Make(n, len)),
        8 => (1u8..=80).prop_map(Op::StepA),
        8 => (1u8..=80).prop_map(Op::StepB),
        12 => Just(Op::Receive),
        12 => Just(Op::Send),
        2 => Just(Op::Keep),
        3 => Just(Op::Release),
        2 => any::<bool>().prop_map(Op::Stall),
        2 => any::<bool>().prop_map(Op::CableA),
        2 => any::<bool>().prop_map(Op::CableB),
        1 => Just(Op::RestartRx),
        1 => Just(Op::RestartTx),
        1 => Just(Op::ResetA),
        1 => Just(Op::ResetB),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    ring: usize,
    spare: usize,
    buffer_size: usize,
    max_frame: usize,
    batch: usize,
    vectors: Vectors,
}

fn setups() -> impl Strategy<Value = Setup> {
    let ring = prop_oneof![120 => Just(64usize), 60 => Just(128usize), 20 => Just(256usize), 6 => Just(512usize), 1 => Just(4096usize)];
    let buffer_size = prop_oneof![5 => Just(2048usize), 2 => Just(4096usize), 1 => Just(16_384usize)];
    let max_frame = prop_oneof![3 => Just(1518usize), 3 => Just(9728usize), 1 => 64usize..=9728];
    let batch = prop_oneof![1 => Just(1usize), 4 => 2usize..=64, 1 => 100usize..=300];
    let vectors = prop_oneof![Just(Vectors::Scalar), Just(Vectors::Best)];
    (ring, 48usize..=200, buffer_size, max_frame, batch, vectors).prop_map(
        |(ring, spare, buffer_size, max_frame, batch, vectors)| Setup {
            ring,
            spare,
            buffer_size,
            max_frame,
            batch,
            vectors,
        },
    )
}

/// A port of the test: a card, its driver and its wire.
struct Port {
    card: Arc<Card>,
    device: linerate::port::Port,
    hub: Arc<Mutex<Hub>>,
    /// Set if the card is served as a PCI device; the fields are in drop order.
    served: Option<(Arc<VfioUser>, Server, TempDir)>,
}

impl Port {
    fn open(name: &str, pool: &Arc<Pool>, setup: &Setup, is_served: bool) -> Port {
        let hub = Arc::<Mutex<Hub>>::default();
        let card = Card::new(name, Box::new(HubWire(hub.clone())));
        let config = Options {
            ring: Some(setup.ring),
            max_frame: setup.max_frame,
            vectors: setup.vectors,
            ..Options::default()
        }
        .of_port(name, pool.clone())
        .unwrap();
        if !is_served {
            let device = linerate::port::Port::new(linerate::drive_model(&card, None, config).unwrap());
            return Port { card, device, hub, served: None };
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let server = Server::start(&path, Box::new(Function::new(card.clone()).unwrap())).unwrap();
        let client = VfioUser::connect(path.to_str().unwrap()).unwrap();
        // SAFETY: this driver is the card's only one.
        let bar = unsafe { client.bar(0) }.unwrap();
        let device = linerate::port::Port::new(Ixgbe::open(bar, client.clone().bus(), config).unwrap());
        Port { card, device, hub, served: Some((client, server, folder)) }
    }

    /// Steps the card after all register writes have arrived.
    fn step(&self, budget: usize) -> usize {
        if let Some((client, ..)) = &self.served {
            client.identity().unwrap();
        }
        self.card.step(budget)
    }
}

/// Returns frame number `id`, which begins with the number, followed by a pattern derived from it.
fn frame(id: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u64).map(|i| (id.wrapping_mul(31) + i * 7) as u8).collect();
    let head = id.to_be_bytes();
    let fits = len.min(8);
    bytes[..fits].copy_from_slice(&head[8 - fits..]);
    // Avoid a VLAN tag, for which the card accepts four more bytes.
    if len > 13 {
        bytes[12] = 0x08;
    }
    bytes
}

fn whole(batch: &mut Batch, from: usize) -> Vec<Vec<u8>> {
    let mut slots = 0;
    let mut frames = Vec::new();
    for packet in batch.packets() {
        if slots >= from {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            frames.push(bytes);
        }
        slots += packet.slots();
    }
    frames
}

/// The state of a schedule.
struct World {
    setup: Setup,
    total: usize,
    pool: Arc<Pool>,
    a: Port,
    b: Port,
    rx: Option<RxQueue>,
    tx: Option<TxQueue>,
    batch: Batch,
    kept: Vec<Batch>,
    next_id: u64,
    /// Frames from the wire that `recv` has not returned yet.
    due_in: VecDeque<Vec<u8>>,
    /// Frames accepted by `send` that are not on the wire yet.
    due_out: VecDeque<Vec<u8>>,
    /// Frames may be missing because their queue was stopped.
    may_miss_in: bool,
    may_miss_out: bool,
    /// Quarantined buffers of transmit queues that were stopped while the card could not send: it may send them until
    /// it is reset.
    quarantined: usize,
}

impl World {
    fn new(setup: Setup, is_served: bool) -> World {
        let total = setup.ring + setup.spare;
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: total, buffer_size: setup.buffer_size, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        let (mut a, mut b) = (Port::open("a", &pool, &setup, is_served), Port::open("b", &pool, &setup, is_served));
        let (rx, tx) = (a.device.rx(0).unwrap(), b.device.tx(0).unwrap());
        World {
            batch: Batch::with_capacity(setup.batch),
            setup,
            total,
            pool,
            a,
            b,
            rx: Some(rx),
            tx: Some(tx),
            kept: Vec::new(),
            next_id: 0,
            due_in: VecDeque::new(),
            due_out: VecDeque::new(),
            may_miss_in: false,
            may_miss_out: false,
            quarantined: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive(count, len) => {
                for _ in 0..count {
                    let bytes = self.make(len.into());
                    if bytes.len() <= self.setup.max_frame {
                        self.due_in.push_back(bytes.clone());
                    }
                    self.a.hub.lock().unwrap().to_card.push_back(bytes);
                }
            }
            Op::Make(count, len) => {
                for _ in 0..count {
                    let bytes = self.make(len.into());
                    if !self.batch.push(&self.pool, &bytes) {
                        break;
                    }
                }
            }
            Op::StepA(budget) => {
                self.a.step(budget.into());
            }
            Op::StepB(budget) => {
                self.b.step(budget.into());
                self.look_at_wire();
            }
            Op::Receive => self.receive(),
            Op::Send => self.send(),
            Op::Keep => self.kept.push(std::mem::replace(&mut self.batch, Batch::with_capacity(self.setup.batch))),
            Op::Release => self.kept.clear(),
            Op::Stall(on) => self.b.hub.lock().unwrap().stalled = on,
            Op::CableA(on) => self.a.card.set_cable(on),
            Op::CableB(on) => self.b.card.set_cable(on),
            Op::RestartRx => {
                self.may_miss_in |= self.rx.is_some();
                self.end_rx();
                self.start_rx();
            }
            Op::RestartTx => {
                self.may_miss_out |= self.tx.is_some();
                self.end_tx();
                self.start_tx();
            }
            Op::ResetA => {
                self.may_miss_in = true;
                if self.rx.is_some() {
                    assert!(self.a.device.reset().is_err_and(|error| error.kind() == linerate::ErrorKind::InUse));
                }
                self.end_rx();
                self.a.device.reset().unwrap();
                self.start_rx();
            }
            Op::ResetB => {
                self.may_miss_out = true;
                self.reset_b();
            }
        }
        self.check();
    }

    fn make(&mut self, len: usize) -> Vec<u8> {
        self.next_id += 1;
        frame(self.next_id, len)
    }

    fn end_rx(&mut self) {
        if let Some(rx) = self.rx.take() {
            rx.stop().unwrap();
        }
    }

    fn end_tx(&mut self) {
        let Some(tx) = self.tx.take() else { return };
        let held = tx.buffers();
        match tx.stop() {
            Ok(()) => {}
            // The card may still send what it has fetched, so these buffers are not free (4.6.8.2).
            Err(error) if error.kind() == linerate::ErrorKind::Timeout && error.why().contains(TDH::SECTION) => {
                let more = self.total - self.sum();
                assert!((1..=held).contains(&more), "{more} buffers are set aside, of {held}");
                self.quarantined += more;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn reset_b(&mut self) {
        self.end_tx();
        self.b.device.reset().unwrap();
        self.quarantined = 0;
        self.start_tx();
    }

    /// Returns the total number of buffers in the pool, batches and queues.
    fn sum(&self) -> usize {
        let kept: usize = self.kept.iter().map(|batch| batch.len() + batch.cached()).sum();
        let rx = self.rx.as_ref().map_or(0, |rx| rx.buffers());
        let tx = self.tx.as_ref().map_or(0, |tx| tx.buffers());
        self.pool.available() + self.batch.len() + self.batch.cached() + kept + rx + tx + self.quarantined
    }

    /// Starts the receive queue, unless too many buffers are kept elsewhere to fill its ring.
    fn start_rx(&mut self) {
        match self.a.device.rx(0) {
            Ok(rx) => self.rx = Some(rx),
            Err(error) if error.kind() == linerate::ErrorKind::Exhausted => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn start_tx(&mut self) {
        self.tx = Some(self.b.device.tx(0).unwrap());
    }

    fn receive(&mut self) {
        let Some(rx) = &mut self.rx else { return self.start_rx() };
        let before = self.batch.len();
        let slots = rx.recv(&mut self.batch);
        assert_eq!(self.batch.len(), before + slots);
        for bytes in whole(&mut self.batch, before) {
            Self::expect(&mut self.due_in, &bytes, self.may_miss_in);
        }
    }

    fn send(&mut self) {
        let Some(tx) = &mut self.tx else { return };
        let frames = whole(&mut self.batch, 0);
        let taken = tx.send(&mut self.batch);
        let left = self.batch.packets().count();
        assert!(taken > 0 || left == frames.len());
        for mut bytes in frames.into_iter().rev().skip(left).rev() {
            // A frame with a VLAN tag may have four more bytes; the driver does not check for a tag.
            if bytes.len() <= self.setup.max_frame + 4 {
                bytes.resize(bytes.len().max(60), 0);
                self.due_out.push_back(bytes);
            }
        }
    }

    fn look_at_wire(&mut self) {
        let seen: Vec<_> = self.b.hub.lock().unwrap().from_card.drain(..).collect();
        for bytes in seen {
            Self::expect(&mut self.due_out, &bytes, self.may_miss_out);
        }
    }

    /// Checks that `bytes` is the next frame due, or a later one if some may be missing.
    fn expect(due: &mut VecDeque<Vec<u8>>, bytes: &[u8], may_miss: bool) {
        while let Some(next) = due.pop_front() {
            if next == bytes {
                return;
            }
            assert!(may_miss, "a frame is missing or not intact: {:02x?} came for {:02x?}", head(bytes), head(&next));
        }
        panic!("a frame came that was not due: {:02x?}", head(bytes));
    }

    /// Checks the invariants after every step.
    fn check(&self) {
        assert_eq!(self.sum(), self.total, "buffers, of which {} aside", self.quarantined);
        assert_eq!(self.a.card.breaches(), []);
        assert_eq!(self.b.card.breaches(), []);
    }

    /// Lets all frames in flight arrive; afterwards none may be due.
    fn finish(mut self) {
        self.kept.clear();
        self.b.hub.lock().unwrap().stalled = false;
        for card in [&self.a.card, &self.b.card] {
            card.set_cable(true);
        }
        if self.quarantined > 0 {
            self.may_miss_out = true;
            self.reset_b();
        }
        if self.rx.is_none() {
            self.batch.clear();
            self.start_rx();
        }
        // Stop only after several idle rounds: a round that moves no frames may still free buffers by a write-back.
        let mut idle = 0;
        while idle < 3 {
            let mut moved = self.a.step(64) + self.b.step(64);
            self.look_at_wire();
            let before = self.batch.len();
            self.receive();
            moved += self.batch.len() - before;
            let before = self.batch.len();
            self.send();
            moved += before - self.batch.len();
            self.check();
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
        assert!(self.batch.is_empty(), "{} slots could not be sent", self.batch.len());
        assert!(self.a.hub.lock().unwrap().to_card.is_empty(), "the wire could not deliver all");
        assert!(self.may_miss_in || self.due_in.is_empty(), "{} frames never arrived", self.due_in.len());
        assert!(self.may_miss_out || self.due_out.is_empty(), "{} frames never left", self.due_out.len());
        self.end_rx();
        self.end_tx();
        drop(self.batch);
        assert_eq!(self.pool.available(), self.total);
    }
}

fn head(bytes: &[u8]) -> (&[u8], usize) {
    (&bytes[..bytes.len().min(16)], bytes.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_schedules_lose_nothing(setup in setups(), ops in prop::collection::vec(ops(), 1..60)) {
        run(World::new(setup, false), &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same with register accesses, maps and resets as messages. Bringing up a card takes thousands of them, so
    /// there are fewer cases.
    #[test]
    fn random_schedules_lose_nothing_on_a_served_card(setup in setups(), ops in prop::collection::vec(ops(), 1..60)) {
        run(World::new(setup, true), &ops);
    }
}

/// Returns the name of a port with random fault rates in percent, and a seed.
fn faults() -> impl Strategy<Value = String> {
    let rate = || prop_oneof![2 => Just(0u32), 3 => 1u32..=30, 1 => Just(100u32)];
    (rate(), rate(), rate(), rate(), rate(), any::<u32>()).prop_map(|(drop, corrupt, truncate, duplicate, reorder, seed)| {
        let reorder = reorder.min(50);
        format!("faulty:null:?drop={drop}%&corrupt={corrupt}%&truncate={truncate}%&duplicate={duplicate}%&reorder={reorder}%&seed={seed}")
    })
}

/// Wraps a device in a fault injector.
fn faulty(device: impl Device + 'static, faults: &str) -> LinkPort {
    Wrapped::new("faulty", Box::new(device), Link::of(&linerate::parse(faults).unwrap()).unwrap())
}

/// Counts of dropped, corrupted, truncated, duplicated and reordered packets.
type Injected = [u64; 5];

/// Returns the counts of injected faults in both directions.
fn injected(port: &LinkPort) -> Injected {
    [Event::Lost, Event::Corrupted, Event::Truncated, Event::Duplicated, Event::Reordered].map(|event| {
        [Direction::FromPort, Direction::ToPort].iter().map(|way| port.wrapper().counters(*way).get(event)).sum()
    })
}

/// Checks the frames that passed an injector: all are accounted for, and frames without a fault are intact and in
/// order.
fn account(sent: &[Vec<u8>], seen: &[Vec<u8>], counts: Injected) {
    let [dropped, corrupted, truncated, duplicated, reordered] = counts;
    assert_eq!(seen.len() as u64, sent.len() as u64 - dropped + duplicated, "{counts:?}");
    let places: HashMap<&[u8], usize> = sent.iter().enumerate().map(|(n, frame)| (&frame[..], n)).collect();
    let intact: Vec<usize> = seen.iter().filter_map(|frame| places.get(&frame[..]).copied()).collect();
    let damaged = (seen.len() - intact.len()) as u64;
    let once = if duplicated == 0 { 1 } else { 2 };
    assert!((corrupted.max(truncated)..=once * (corrupted + truncated)).contains(&damaged), "{damaged}: {counts:?}");
    let mut each = vec![0; sent.len()];
    intact.iter().for_each(|&n| each[n] += 1);
    assert!(each.iter().all(|&count| count <= once), "{counts:?}");
    let absent = each.iter().filter(|&&count| count == 0).count() as u64;
    assert!((dropped..=dropped + corrupted + truncated).contains(&absent), "{absent} are absent: {counts:?}");
    // Only an overtaken packet arrives after one of its successors.
    let steps_back = intact.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
    assert!(steps_back <= reordered, "{steps_back} steps back: {counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Both directions of the driver pass a fault injector, which delays, truncates and copies packets between the
    /// queue and the program's batches.
    #[test]
    fn what_arrives_is_what_was_sent_but_for_the_faults(
        setup in setups(),
        faults in faults(),
        bursts in prop::collection::vec((1usize..=60, 60usize..=9728, 1usize..=64), 1..12),
    ) {
        let total = setup.ring * 2 + 600;
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: total, buffer_size: setup.buffer_size, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        let [mut a, mut b] = ["a", "b"].map(|name| {
            let hub = Arc::<Mutex<Hub>>::default();
            let card = Card::new(name, Box::new(HubWire(hub.clone())));
            let options = Options { ring: Some(setup.ring), max_frame: setup.max_frame, vectors: setup.vectors, ..Options::default() };
            let device = linerate::drive_model(&card, None, options.of_port(name, pool.clone()).unwrap()).unwrap();
            (card, hub, faulty(device, &faults))
        });
        let (mut rx, mut tx) = (a.2.rx(0).unwrap(), b.2.tx(0).unwrap());
        let (mut brought, mut received, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        // A call returns 0 if all its packets are dropped, or held back to be overtaken. An armed queue holds none
        // back.
        let mut receive_all = |batch: &mut Batch| {
            let mut idle = 0;
            while idle < 3 {
                let before = injected(&a.2);
                let mut moved = a.0.step(64) + rx.recv(batch);
                if moved == 0 {
                    rx.arm();
                    moved = rx.recv(batch);
                    rx.disarm();
                }
                received.extend(whole(batch, 0));
                batch.clear();
                idle = if moved == 0 && injected(&a.2) == before { idle + 1 } else { 0 };
            }
        };
        for (count, len, batch) in bursts {
            let (mut batch, len) = (Batch::with_capacity(batch), len.min(setup.max_frame));
            for _ in 0..count {
                let mut frame = frame((brought.len() + 1) as u64, len);
                frame[len - 1] = 1; // so that padding after truncation differs from the original byte
                frame.copy_within(0..8, 20); // so that one inverted bit does not turn it into another frame
                a.1.lock().unwrap().to_card.push_back(frame.clone());
                brought.push(frame.clone());
                if batch.push(&pool, &frame) {
                    sent.push(frame);
                }
            }
            let deadline = Deadline::begin();
            while !batch.is_empty() {
                deadline.check(|| format!("{} packets cannot be sent", batch.len()));
                tx.send(&mut batch);
                b.0.step(64);
            }
            receive_all(&mut batch);
        }
        // A held-back packet without a successor is sent with an empty batch.
        let mut batch = Batch::with_capacity(setup.batch);
        let deadline = Deadline::begin();
        while tx.unsent() + b.0.step(64) > 0 {
            deadline.check(|| format!("{} packets are unsent", tx.unsent()));
            tx.send(&mut batch);
        }
        receive_all(&mut batch);
        account(&brought, &received, injected(&a.2));
        let seen: Vec<_> = b.1.lock().unwrap().from_card.drain(..).collect();
        account(&sent, &seen, injected(&b.2));
        prop_assert_eq!((a.0.breaches(), b.0.breaches()), (vec![], vec![]));
        prop_assert_eq!(pool.available() + rx.buffers() + tx.buffers() + batch.cached(), total);
        rx.stop().unwrap();
        tx.stop().unwrap();
        drop(batch);
        prop_assert_eq!(pool.available(), total);
    }
}

fn run(mut world: World, ops: &[Op]) {
    for op in ops {
        world.apply(op);
    }
    world.finish();
}
