//! Pause frames (IEEE 802.3, annex 31B): a receiver that is too slow loses no packet of a sender that pauses.

use std::collections::HashMap;
use std::sync::Arc;

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::Ixgbe;
use linerate::port::{Device, Feature, Pause, Receive, Support, Transmit};
use linerate::sim82599::{Cable, Card, CardBar};
use linerate::{Batch, ErrorKind, Options};
use linerate_testkit::Deadline;

/// More than a ring and the card's packet buffer hold.
const COUNT: u32 = 20_000;

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 8192, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

/// Two cards on a cable.
struct Bench {
    cards: [Arc<Card>; 2],
    ports: [Ixgbe<CardBar>; 2],
    pool: Arc<Pool>,
}

/// The packets that arrived, and the counters of both ports.
struct Passed {
    received: u32,
    /// By register, of sender and receiver, since the bench began.
    counters: [HashMap<String, u64>; 2],
}

impl Bench {
    fn new(queues: u16) -> Bench {
        let (end, other) = Cable::pair();
        let cards = [Card::new("sender", Box::new(end)), Card::new("receiver", Box::new(other))];
        let pool = pool();
        let ports = cards.each_ref().map(|card| {
            let options = Options { rx_queues: queues, ..Options::default() };
            linerate::drive_model(card, None, options.of_port(card.name(), pool.clone()).unwrap()).unwrap()
        });
        Bench { cards, ports, pool }
    }

    fn set(&mut self, [receive, send]: [bool; 2]) {
        let [sender, receiver] = &mut self.ports;
        sender.set_pause(Pause { receive, send: false }).unwrap();
        receiver.set_pause(Pause { receive: false, send }).unwrap();
    }

    /// Sends packets to a port that reads none of them until the sender makes no progress, or is done. Then reads all.
    fn pass(&mut self) -> Passed {
        let [sender, receiver] = &mut self.ports;
        let mut tx: Box<dyn Transmit> = sender.tx(0).unwrap();
        let queues = receiver.info().rx_queues;
        // A card that does not receive sees no pause frames.
        let _to_sender: Vec<Box<dyn Receive>> = (0..queues).map(|queue| sender.rx(queue).unwrap()).collect();
        let mut rx: Vec<Box<dyn Receive>> = (0..queues).map(|queue| receiver.rx(queue).unwrap()).collect();
        let (mut batch, mut arrived, deadline) = (Batch::new(), Batch::new(), Deadline::begin());
        let (mut sent, mut stalled, mut received, mut last) = (0, 0, 0, None);
        let mut is_reading = false;
        while sent < COUNT || stalled < 100 {
            deadline.check(|| format!("{COUNT} packets: {sent} are sent, {received} received"));
            while batch.len() < 8 && sent + (batch.len() as u32) < COUNT {
                let number = sent + batch.len() as u32;
                assert!(batch.push(&self.pool, &[&[2; 56][..], &number.to_be_bytes()].concat()));
            }
            let now = tx.send(&mut batch) as u32;
            sent += now;
            // Few frames at a time: a pause may end before this thread runs again.
            let moved: usize = self.cards.each_ref().map(|card| card.step(8)).iter().sum();
            stalled = if now == 0 && moved == 0 { stalled + 1 } else { 0 };
            is_reading |= stalled >= 100;
            if !is_reading {
                continue;
            }
            for rx in &mut rx {
                rx.recv(&mut arrived);
            }
            for packet in &mut arrived {
                let number = u32::from_be_bytes(*packet[56..].first_chunk().unwrap());
                assert!(last.replace(number).is_none_or(|last| last < number), "in order");
                received += 1;
                stalled = 0;
            }
            arrived.clear();
        }
        let counters = self.ports.each_ref().map(|port| port.register_counters().unwrap().into_iter().collect());
        assert_eq!(self.cards.each_ref().map(|card| card.breaches()), [const { Vec::new() }; 2]);
        Passed { received, counters }
    }
}

#[test]
fn a_sender_that_pauses_loses_no_packet() {
    for queues in [1, 2] {
        let mut bench = Bench::new(queues);
        bench.set([true, true]);
        let mut before = 0;
        for _ in 0..2 {
            let Passed { received, counters: [sender, receiver] } = bench.pass();
            assert_eq!((received, receiver["RXMPC[0]"], receiver["QPRDC[0]"]), (COUNT, 0, 0));
            assert!(receiver["LXOFFTXC"] > before && receiver["LXONTXC"] > 0, "{receiver:?}");
            assert_eq!((sender["LXOFFRXCNT"], sender["LXONRXCNT"]), (receiver["LXOFFTXC"], receiver["LXONTXC"]));
            // A reset keeps the setting.
            before = receiver["LXOFFTXC"];
            bench.ports.iter_mut().for_each(|port| port.reset().unwrap());
        }
    }
}

#[test]
fn without_pauses_packets_are_lost_and_counted() {
    // No end, or only one, uses pauses.
    for (pause, queues) in [([false, false], 1), ([true, false], 1), ([false, true], 1), ([false, false], 2)] {
        let mut bench = Bench::new(queues);
        bench.set([true, true]);
        bench.set(pause);
        let Passed { received, counters: [sender, receiver] } = bench.pass();
        let lost = receiver["RXMPC[0]"] + receiver["QPRDC[0]"];
        assert!(
            lost > 0 && u64::from(received) + lost == u64::from(COUNT),
            "{pause:?}: {received} received, {lost} lost"
        );
        assert_eq!(receiver["LXOFFTXC"] > 0, pause[1]);
        assert_eq!(sender["LXOFFRXCNT"], 0, "the sender knows of no pauses, or none was asked for");
    }
}

#[test]
fn other_ports_have_no_pauses() {
    let [mut card, mut wrapped, mut switch] =
        linerate::open(["sim:pauses?wire=none", "link:sim:pauses-inner?wire=none", "vale0:pauses"]).unwrap();
    for port in [&mut card, &mut wrapped] {
        port.set_pause(Pause { receive: true, send: true }).unwrap();
        assert_eq!(port.capabilities().of(Feature::Pause), Support::Offloaded);
    }
    assert_eq!(switch.set_pause(Pause::default()).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The longest frames leave room for what arrives after the card has asked for a pause.
#[test]
fn thresholds_fit_the_packet_buffer() {
    use linerate::spec::x82599::{FCRTH, FCRTL, RXPBSIZE};

    for (frame, most) in [(1518, 448 * 1024), (9728, 448 * 1024)] {
        let card = Card::new("thresholds", Box::new(Cable::unplugged()));
        let config = Options { max_frame: frame, ..Options::default() }.of_port("thresholds", pool()).unwrap();
        let mut port = linerate::drive_model(&card, None, config).unwrap();
        port.set_pause(Pause { receive: true, send: true }).unwrap();
        let (high, low) = (card.register(FCRTH::at(0)) & FCRTH::MASK, card.register(FCRTL::at(0)) & FCRTL::MASK);
        assert_eq!(card.register(RXPBSIZE::at(0)), most);
        assert!(low > frame as u32 && high > low && high + 64 * 1024 + 4 * frame as u32 <= most, "{low} {high}");
    }
}
