//! Compares Linux's driver, DPDK's and the library's on the same cards by their register accesses and their order. The
//! results are recorded for `guest/registers`. If both others write a register and the library does not, there must be
//! a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use linerate::Batch;
use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Device, Link};
use linerate::sim82599::{Cable, Card, CardKind, RegisterAccess};
use linerate_guest::{Guest, Machine, Program, Served, has_reason, record_registers};

/// The phases of each driver's run, in order.
const PHASES: [&str; 7] = ["probe", "up", "traffic", "queue stop", "queue start", "down", "remove"];

/// A driver's accesses in each phase.
struct Recorded {
    driver: &'static str,
    phases: Vec<Vec<RegisterAccess>>,
}

impl Recorded {
    fn of(driver: &'static str, card: &Card) -> Recorded {
        card.record_accesses(true);
        Recorded { driver, phases: Vec::new() }
    }

    fn phase(&mut self, card: &Card) {
        self.phases.push(card.record_accesses(true));
    }

    fn written(&self) -> BTreeSet<&'static str> {
        self.phases.iter().flat_map(|phase| written(phase)).collect()
    }
}

/// Returns the names of the written registers, in order.
fn written(accesses: &[RegisterAccess]) -> impl Iterator<Item = &'static str> {
    accesses.iter().filter(|access| access.written.is_some()).map(|access| access.name)
}

/// Returns the written registers with their counts. With traffic, the order depends on the packets.
fn counts(accesses: &[RegisterAccess]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    written(accesses).for_each(|name| *counts.entry(name).or_default() += 1);
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} ×{count}")).collect();
    counts.join(", ")
}

/// Returns the written registers in order. A repeated sequence is listed once, with its count.
fn order(accesses: &[RegisterAccess]) -> String {
    const LONGEST: usize = 24;
    let names: Vec<&str> = written(accesses).collect();
    let (mut text, mut at) = (String::new(), 0);
    while at < names.len() {
        let rest = &names[at..];
        let times = |len: usize| 1 + rest[len..].chunks(len).take_while(|part| *part == &rest[..len]).count();
        let possible = (1..=LONGEST.min(rest.len())).map(|len| (len, times(len))).filter(|(_, times)| *times > 1);
        let (len, times) = possible.max_by_key(|(len, times)| (len * times, usize::MAX - len)).unwrap_or((1, 1));
        let separator = if at == 0 { "" } else { ", " };
        let part = rest[..len].join(" ");
        match (len, times) {
            (_, 1) => write!(text, "{separator}{part}"),
            (1, _) => write!(text, "{separator}{part} ×{times}"),
            _ => write!(text, "{separator}({part}) ×{times}"),
        }
        .expect("a string takes all");
        at += len * times;
    }
    text
}

/// Runs ixgbe, from loading to removal. It stops single queues only for AF_XDP, so the test changes the ring size, for
/// which it restarts all queues.
fn linux(guest: &mut Guest, served: &Served) -> Recorded {
    let card = &served.cards[0];
    let mut recorded = Recorded::of("Linux", card);
    guest.run("modprobe ixgbe");
    recorded.phase(card);
    let far = guest.move_to_own_network("eth1", "10.84.0.2/24");
    guest.run("ip addr add 10.84.0.1/24 dev eth0 && ip link set eth0 up");
    guest.wait_for_link("", "eth0");
    guest.wait_for_link(&far, "eth1");
    recorded.phase(card);
    guest.run("ping -c 3 -i 0.2 -W 5 10.84.0.2");
    recorded.phase(card);
    guest.run("ethtool -G eth0 rx 256");
    recorded.phase(card);
    guest.wait_for_link("", "eth0");
    recorded.phase(card);
    guest.run("ip link set eth0 down");
    recorded.phase(card);
    guest.run("rmmod ixgbe");
    recorded.phase(card);
    recorded
}

/// testpmd with interactive commands.
struct Testpmd {
    program: Program,
    orders: usize,
}

impl Testpmd {
    fn start(guest: &mut Guest, command: &str) -> Testpmd {
        guest.run("mkfifo /tmp/orders");
        let arguments = "--interactive --disable-device-start --total-num-mbufs=4096";
        let program = guest.start(&format!("{command} -l 0,1 --in-memory -- {arguments} <>/tmp/orders"));
        let mut testpmd = Testpmd { program, orders: 0 };
        testpmd.order(guest, &[]);
        testpmd
    }

    /// Runs commands, and returns when testpmd has done all: it echoes each command that it reads.
    fn order(&mut self, guest: &mut Guest, orders: &[&str]) {
        self.orders += 1;
        let end = format!("done{}", self.orders);
        for order in orders.iter().chain(&[end.as_str()]) {
            guest.run(&format!("echo '{order}' >/tmp/orders"));
        }
        guest.wait_for(&self.program, &end);
    }
}

fn dpdk(guest: &mut Guest, served: &Served, command: &str, device: &str) -> Recorded {
    let card = &served.cards[0];
    guest.prepare_dpdk(device);
    let mut recorded = Recorded::of("DPDK", card);
    let mut testpmd = Testpmd::start(guest, command);
    recorded.phase(card);
    testpmd.order(guest, &["port start all"]);
    recorded.phase(card);
    let before = card.frames().0;
    testpmd.order(guest, &["set link-up port 0", "set link-up port 1", "start tx_first"]);
    assert!(guest.wait_until(|| card.frames().0 > before), "nothing comes to DPDK");
    testpmd.order(guest, &["stop"]);
    recorded.phase(card);
    testpmd.order(guest, &["port 0 rxq 0 stop", "port 0 txq 0 stop"]);
    recorded.phase(card);
    testpmd.order(guest, &["port 0 rxq 0 start", "port 0 txq 0 start"]);
    recorded.phase(card);
    testpmd.order(guest, &["port stop all"]);
    recorded.phase(card);
    testpmd.order(guest, &["port close all"]);
    recorded.phase(card);
    guest.run("echo quit >/tmp/orders");
    recorded
}

fn steps(cards: &[Arc<Card>; 2]) {
    for card in cards.iter().chain(cards) {
        card.step(8);
    }
}

/// Runs the library's driver, which brings a card up on open.
fn ours(kind: CardKind) -> Recorded {
    let options = RegionOptions { buffers: 4096, pages: Pages::Only(PageSize::Ordinary), ..RegionOptions::default() };
    let pool = Pool::new(Region::new(&options).unwrap());
    let (end, other) = Cable::pair();
    let cards = [("ours", end), ("other", other)].map(|(name, end)| Card::of_kind(kind, 0, name, Box::new(end)));
    let open = |card: &Arc<Card>| {
        // The other drivers use interrupts to wait for packets.
        let interrupts = Some(Duration::from_micros(20));
        let config = Options { interrupts, ..Options::default() }.of_port(card.name(), pool.clone()).unwrap();
        linerate::drive_model(card, None, config).unwrap()
    };
    let card = &cards[0];
    let mut recorded = Recorded::of("ours", card);
    let mut device = open(card);
    recorded.phase(card);
    let mut other = open(&cards[1]);
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let (mut far_rx, mut far_tx) = (other.rx(0).unwrap(), other.tx(0).unwrap());
    // Backplane links auto-negotiate.
    assert!((0..1000).any(|_| {
        steps(&cards);
        matches!(device.link().unwrap(), Link::Up { .. })
    }));
    recorded.phase(card);
    assert!(rx.arm().is_some());
    let mut batch = Batch::new();
    for _ in 0..3 {
        assert!(batch.push(&pool, &[0xFF; 60]));
        assert_eq!(tx.send(&mut batch), 1);
        steps(&cards);
        assert_eq!((far_rx.recv(&mut batch), far_tx.send(&mut batch)), (1, 1));
        steps(&cards);
        assert_eq!(rx.recv(&mut batch), 1);
        batch.clear();
    }
    recorded.phase(card);
    rx.stop().unwrap();
    tx.stop().unwrap();
    recorded.phase(card);
    let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    recorded.phase(card);
    drop((rx, tx));
    recorded.phase(card);
    drop(device);
    recorded.phase(card);
    assert_eq!(card.breaches(), []);
    recorded
}

fn each_does_it(kind: CardKind, name: &str, device: &str) {
    let served = Served::pair(kind, 0);
    let mut machine = Machine::new().iommu_for_served().processors(2).kernel_argument("ipv6.disable=1");
    machine.program("ethtool");
    let testpmd = machine.testpmd();
    served.plug(&mut machine, &["a", "b"]);
    let mut guest = machine.boot();
    let all = [linux(&mut guest, &served), dpdk(&mut guest, &served, &testpmd, device), ours(kind)];
    drop(guest);

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guest/order");
    std::fs::create_dir_all(folder).unwrap();
    let mut text = String::new();
    for (n, phase) in PHASES.iter().enumerate() {
        for Recorded { driver, phases } in &all {
            let written = if *phase == "traffic" { counts(&phases[n]) } else { order(&phases[n]) };
            writeln!(text, "{phase}|{driver}|{}|{written}", phases[n].len()).unwrap();
        }
    }
    std::fs::write(format!("{folder}/{name}"), text).unwrap();

    for card in &served.cards {
        let breaches = card.breaches();
        assert!(breaches.is_empty(), "{} breaches: {:#?}", card.breach_count(), &breaches[..breaches.len().min(5)]);
    }
    for recorded in &all {
        let accesses = recorded.phases.iter().flatten();
        record_registers(recorded.driver, accesses.map(|one| (one.name, one.written.is_none(), one.written.is_some())));
    }
    let [linux, dpdk, ours] = all.each_ref().map(Recorded::written);
    let both = linux.intersection(&dpdk).filter(|name| !ours.contains(*name));
    let unexplained: Vec<_> = both.filter(|name| !has_reason(name)).collect();
    assert!(unexplained.is_empty(), "{name}: written by Linux and DPDK, and not by this library: {unexplained:?}");
}

#[test]
fn three_drivers_on_an_82599_on_a_backplane() {
    each_does_it(CardKind::X82599Kx4, "82599-kx4", "10f7");
}

#[test]
fn three_drivers_on_an_82599_with_a_module() {
    each_does_it(CardKind::X82599Sfp, "82599-sfp", "10fb");
}

#[test]
fn three_drivers_on_an_x540() {
    each_does_it(CardKind::X540, "x540", "1528");
}

#[test]
fn three_drivers_on_an_x550() {
    each_does_it(CardKind::X550, "x550", "1563");
}
