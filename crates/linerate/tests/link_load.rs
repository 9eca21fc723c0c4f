//! Links between two models at full load: no packet is lost without a cause, and every buffer returns.
//!
//! `LINERATE_SECONDS` sets how long the first test lasts (default: 1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate::link::{Direction, Event, Link, Parameters};
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Port, Random};
use linerate::sim82599::{self, Card};
use linerate::{Batch, Options};
use linerate_testkit::Deadline;

const BUFFERS: usize = 60_000;

/// Two models that send frames as fast as they are received, and a link between their cards in each direction.
struct Bench {
    pool: Arc<Pool>,
    cards: [Arc<Card>; 2],
    links: [Link; 2],
    ports: [Port; 2],
}

impl Bench {
    fn new(name: &str, parameters: &Parameters) -> Bench {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, ..RegionOptions::default() };
        let pool = Pool::new(Region::new(&options).unwrap());
        let options = Options { pool: Some(pool.clone()), local: true, ..Options::default() };
        let names = ["a", "b"].map(|end| format!("{name}{end}"));
        let ports = names.each_ref().map(|name| format!("sim:{name}"));
        let ports = options.open(ports.each_ref().map(String::as_str)).unwrap();
        let cards = names.map(|name| sim82599::named(&name).unwrap());
        // Each link delays the packets that are received from its port.
        let links = [0, 1].map(|_| Link::new([parameters.clone(), Parameters::default()]));
        let mut wrapped = ports.into_iter().zip(&links).map(|(port, link)| port.wrapped(link.clone()));
        let ports = [wrapped.next().unwrap(), wrapped.next().unwrap()];
        Bench { pool, cards, links, ports }
    }

    /// Forwards in a thread until the wires have ended and every frame was delivered or dropped for a counted cause.
    /// `load` runs meanwhile, with a count of the thread's turns.
    fn run(mut self, load: impl FnOnce(&[Link; 2], &AtomicU64)) -> Counts {
        let (turns, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut queues = self.ports.each_mut().map(|port| (port.rx(0).unwrap(), port.tx(0).unwrap()));
        let links = &self.links;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut batches = [Batch::new(), Batch::new()];
                let [(a_rx, a_tx), (b_rx, b_tx)] = &mut queues;
                while !is_over.load(Ordering::Relaxed) {
                    for (rx, tx, batch) in [(&mut *a_rx, &mut *b_tx, 0), (&mut *b_rx, &mut *a_tx, 1)] {
                        let batch = &mut batches[batch];
                        rx.recv(batch);
                        tx.send(batch);
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                assert!(batches.iter().all(Batch::is_empty), "the thread ends with packets");
            });
            let _end = EndOnDrop(&is_over);
            load(links, &turns);
            self.cards.iter().for_each(|card| card.finish_wire());
            let deadline = Deadline::begin();
            // The thread has to see the end of the wires, so that it ends without packets.
            let mut still_since = turns.load(Ordering::Relaxed);
            let mut last = Counts::default();
            while turns.load(Ordering::Relaxed) < still_since + 3 || last.unaccounted() != 0 {
                let now = Counts::of(&self.cards, links, &self.ports);
                deadline.check(|| format!("the end of all packets: {now:?}"));
                if now != last {
                    (last, still_since) = (now, turns.load(Ordering::Relaxed));
                }
                std::thread::yield_now();
            }
        });
        let counts = Counts::of(&self.cards, &self.links, &self.ports);
        for (card, (rx, tx)) in self.cards.iter().zip(queues) {
            assert_eq!(card.breach_count(), 0, "{:?}", card.breaches());
            rx.stop().unwrap();
            tx.stop().unwrap();
        }
        drop(self.ports);
        assert_eq!(self.pool.available(), BUFFERS, "buffers are missing");
        counts
    }
}

/// Ends the forwarding thread, also if a check fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The counts of both directions.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    /// Sent by the wires.
    sent: u64,
    /// Arrived at the other wires.
    received: u64,
    /// Dropped or added by the links, by event.
    events: BTreeMap<&'static str, u64>,
    /// Dropped by the links.
    dropped: u64,
    duplicated: u64,
    /// Dropped by the cards: the thread was too slow.
    by_cards: u64,
}

impl Counts {
    fn of(cards: &[Arc<Card>; 2], links: &[Link; 2], ports: &[Port; 2]) -> Counts {
        let mut counts = Counts::default();
        for (card, (link, port)) in cards.iter().zip(links.iter().zip(ports)) {
            let report = card.wire_report().unwrap();
            counts.sent += report.sent;
            counts.received += report.received;
            let counters = link.counters(Direction::FromPort);
            for event in Event::ALL {
                *counts.events.entry(event.name()).or_default() += counters.get(event);
            }
            counts.dropped += counters.dropped();
            counts.duplicated += counters.get(Event::Duplicated);
            let drops = port.statistics().unwrap().drops;
            counts.by_cards += drops.by_cause().iter().map(|(_, count)| count).sum::<u64>() - drops.injected;
        }
        counts
    }

    /// Returns the packets that are still under way, or were lost without a cause.
    fn unaccounted(&self) -> i64 {
        (self.sent + self.duplicated) as i64 - (self.received + self.dropped + self.by_cards) as i64
    }
}

fn seconds() -> Duration {
    Duration::from_secs(std::env::var("LINERATE_SECONDS").map_or(1, |text| text.parse().unwrap()))
}

/// 10 ms of delay at full load: the link itself drops nothing.
#[test]
fn a_delay_at_full_load_loses_nothing() {
    let parameters = Parameters::of([("delay", "10ms"), ("packets", "25000")]).unwrap();
    let counts = Bench::new("load", &parameters).run(|links, _| {
        let begin = Instant::now();
        while begin.elapsed() < seconds() {
            assert!(links.iter().all(|link| link.counters(Direction::FromPort).held() <= 25_100));
            std::thread::yield_now();
        }
    });
    println!("{counts:?}");
    let dropping: u64 = counts.events.iter().filter(|(name, _)| **name != "stalled").map(|(_, count)| count).sum();
    assert_eq!((dropping, counts.by_cards, counts.unaccounted()), (0, 0, 0), "{counts:?}");
    assert!(counts.sent > 10_000, "{counts:?}");
}

/// 10,000 random changes of the parameters while packets flow.
#[test]
fn changes_at_full_load_lose_nothing_that_is_not_counted() {
    let small = [("packets", "25000")];
    let parameters = Parameters::of(small).unwrap();
    let counts = Bench::new("changed", &parameters).run(|links, turns| {
        let mut random = Random::new(1, 77);
        let deadline = Deadline::begin();
        for _ in 0..5_000 {
            for link in links {
                let mut pick = |values: &[&'static str]| values[random.below(values.len() as u64) as usize];
                let mut options = vec![
                    ("delay", pick(&["0", "1ms", "10ms"])),
                    ("jitter", pick(&["0", "100us", "5ms"])),
                    ("loss", pick(&["0", "0", "10%"])),
                    ("reorder", pick(&["0", "0", "20%"])),
                    ("duplicate", pick(&["0", "0", "20%"])),
                    ("order", pick(&["on", "off"])),
                ];
                match pick(&["no", "rate", "codel"]) {
                    "rate" => options.extend([("rate", pick(&["10Mbit", "1Gbit"])), ("queue", pick(&["5p", "1ms"]))]),
                    "codel" => {
                        let rate = pick(&["10Mbit", "1Gbit"]);
                        options.extend([("rate", rate), ("queue", "10ms"), ("aqm", "codel"), ("target", "1ms")]);
                        options.push(("interval", "2ms"));
                    }
                    _ => {}
                }
                link.set_parameters(Direction::FromPort, Parameters::of(options).unwrap());
            }
            // The thread has seen the change before the next.
            let seen = turns.load(Ordering::Relaxed) + 2;
            while turns.load(Ordering::Relaxed) < seen {
                deadline.check(|| "a turn of the forwarding thread");
                std::thread::yield_now();
            }
        }
        links.iter().for_each(|link| link.set_parameters(Direction::FromPort, parameters.clone()));
    });
    println!("{counts:?}");
    assert_eq!((counts.unaccounted(), counts.by_cards), (0, 0), "{counts:?}");
    for event in ["lost", "queue_full", "codel", "duplicated", "reordered"] {
        assert!(counts.events[event] > 0, "{event}: {counts:?}");
    }
}
