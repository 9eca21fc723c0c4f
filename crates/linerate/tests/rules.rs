//! Rules that a program adds to a port while it runs: each packet's queue is that of the filter language.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use linerate::filter::Filter;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::Ixgbe;
use linerate::port::{Action, Device, Random, Receive, Rss, Rule, RuleId};
use linerate::sim82599::{Card, CardBar, Frame, from_fn};
use linerate::{Batch, ErrorKind, Options};
use linerate_testkit::Deadline;

/// Queue 0 gets the packets that no rule matches; rules choose others.
const QUEUES: u16 = 5;
/// The offset of a packet's number, after all headers.
const NUMBER: usize = 100;

/// A card whose queues are started, and the frames that arrive at it.
struct Bench {
    card: Arc<Card>,
    port: Ixgbe<CardBar>,
    queues: BTreeMap<u16, Box<dyn Receive>>,
    arriving: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Bench {
    fn new() -> Bench {
        let pages = Pages::Only(PageSize::Ordinary);
        let region = Region::new(&RegionOptions { buffers: 8192, buffer_size: 2048, pages, numa_node: None }).unwrap();
        let arriving = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
        let from = arriving.clone();
        let next = move |frame: &mut Frame| match from.lock().unwrap().pop_front() {
            Some(bytes) => {
                *frame = Frame { bytes, bad_crc: false };
                true
            }
            None => false,
        };
        let card = Card::new("rules", from_fn(|_| {}, next));
        let options = Options { rx_queues: QUEUES, metadata: true, ..Options::default() };
        let config = options.of_port("rules", Pool::new(region)).unwrap();
        let mut port = linerate::drive_model(&card, None, config).unwrap();
        port.set_rss(&Rss { table: vec![0], ..Rss::evenly(1) }).unwrap();
        let mut bench = Bench { card, port, queues: BTreeMap::new(), arriving };
        (0..QUEUES).for_each(|queue| bench.start(queue));
        bench
    }

    fn start(&mut self, queue: u16) {
        self.queues.insert(queue, self.port.rx(queue).unwrap());
    }

    fn add(&mut self, filter: &str, action: Action) -> linerate::Result<RuleId> {
        self.port.add_rule(&filter.parse().unwrap(), action)
    }

    /// Lets frames arrive, and returns the queue of each; `None` if it was dropped.
    fn queues_of(&mut self, frames: &[Vec<u8>]) -> Vec<Option<u16>> {
        self.arrive(frames).into_iter().map(|found| found.map(|(queue, _)| queue)).collect()
    }

    /// Lets frames arrive, and returns the queue and mark of each; `None` if it was dropped.
    fn arrive(&mut self, frames: &[Vec<u8>]) -> Vec<Option<(u16, Option<u32>)>> {
        let mut found = vec![None; frames.len()];
        let (mut batch, deadline) = (Batch::new(), Deadline::begin());
        // A queue has room for this many.
        for (first, part) in frames.chunks(64).enumerate() {
            let numbered = (first * 64..).zip(part).map(|(number, frame)| {
                let mut frame = frame.clone();
                frame[NUMBER..NUMBER + 4].copy_from_slice(&(number as u32).to_be_bytes());
                frame
            });
            self.arriving.lock().unwrap().extend(numbered);
            while !self.arriving.lock().unwrap().is_empty() || self.card.step(64) > 0 {
                deadline.check(|| "frames that wait at the card's wire");
                self.card.step(64);
            }
            for (queue, rx) in &mut self.queues {
                while rx.recv(&mut batch) > 0 {
                    for packet in batch.packets() {
                        let number = u32::from_be_bytes(*packet[NUMBER..].first_chunk().unwrap()) as usize;
                        let place = (*queue, packet.metadata().mark);
                        assert_eq!(found[number].replace(place), None, "packet {number} arrived twice");
                        assert_eq!(packet[..NUMBER], frames[number][..NUMBER]);
                    }
                    batch.clear();
                }
            }
        }
        found
    }

    /// Checks the queue and mark of each frame against the filters' verdict. Returns the number of frames that a rule
    /// matched.
    fn check(&mut self, frames: &[Vec<u8>]) -> usize {
        let places = self.arrive(frames);
        let rules = self.port.rules();
        let active: Vec<&Rule> = rules.iter().filter(|rule| self.is_active(rule)).collect();
        let mut matched = 0;
        for (frame, place) in frames.iter().zip(places) {
            let rule = active.iter().find(|rule| matches(rule, frame));
            matched += usize::from(rule.is_some());
            let expected = match rule.map(|rule| rule.action) {
                Some(Action::Queue(queue)) => Some((queue, None)),
                Some(Action::Mark(mark)) => Some((0, Some(mark))),
                Some(_) => None,
                None => Some((0, None)),
            };
            assert_eq!(place, expected, "{rule:?} of {active:#?}\n{:02x?}", &frame[..64]);
        }
        assert_eq!(self.card.breaches(), []);
        matched
    }

    /// A rule for a queue that has not started has no effect.
    fn is_active(&self, rule: &Rule) -> bool {
        !matches!(rule.action, Action::Queue(queue) if !self.queues.contains_key(&queue))
    }
}

/// Returns the verdict of a rule's filter, except for the packets that docs/offloads.md excludes: their headers are not
/// recognised by the card.
fn matches(rule: &Rule, frame: &[u8]) -> bool {
    let tags = (0..).take_while(|n| [[0x81, 0x00], [0x88, 0xA8]].contains(&[frame[12 + 4 * n], frame[13 + 4 * n]]));
    let (tags, has_other_tag) = (tags.count(), frame[12] == 0x88 && frame[13] == 0xA8);
    if tags > 1 || has_other_tag {
        return false;
    }
    let network = 14 + 4 * tags;
    let is_ipv4 = frame[network - 2..network] == [0x08, 0x00];
    let is_fragment = is_ipv4 && (frame[network + 6] & 0x3F != 0 || frame[network + 7] != 0);
    let has_no_ports = is_fragment || is_ipv4 && frame[network + 9] == 51;
    // A rule that only a five-tuple filter can express: it matches no fragments.
    let is_directed = |one: &linerate::filter::Match| {
        let prefix = |prefix: &Option<linerate::filter::Prefix>| prefix.is_some_and(|prefix| prefix.bits < 32);
        !matches!(rule.action, Action::Queue(_)) || one.vlan.is_some() || prefix(&one.from) || prefix(&one.to)
    };
    if has_no_ports {
        let by_address = rule.filter.any().iter().any(|one| {
            one.protocol.is_none()
                && one.from_port.is_none()
                && one.to_port.is_none()
                && (!is_fragment || is_directed(one))
        });
        return by_address && rule.filter.matches(frame);
    }
    rule.filter.matches(frame)
}

/// Generates filters and frames from few values, so that many match.
struct Chance(Random);

impl Chance {
    fn below(&mut self, count: u64) -> u64 {
        self.0.below(count)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn address(&mut self) -> [u8; 4] {
        self.one(&[[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 3, 1], [10, 9, 0, 1], [192, 168, 0, 1]])
    }

    fn port(&mut self) -> u16 {
        self.one(&[0, 53, 80, 4321, 65_535])
    }

    /// Returns a rule's filter and action. All rules of a batch that need the flow director have one `shape`.
    fn rule(&mut self, shape: u64) -> (String, Action) {
        let address = |chance: &mut Chance| chance.address().map(|byte| byte.to_string()).join(".");
        let queue = Action::Queue(self.below(u64::from(QUEUES)) as u16);
        let mut parts = Vec::new();
        match self.below(10) {
            0 => return (self.one(&["arp", "type:0x88f7", "type:0x88cc", "type:0x1234"]).to_string(), queue),
            1..=4 => {
                // The flow director.
                if shape & 1 != 0 {
                    parts.push(self.one(&["tcp", "udp", "sctp"]).to_string());
                }
                if shape & 2 != 0 {
                    parts.push(format!("from:{}/{}", address(self), 8 + shape));
                }
                if shape & 4 != 0 {
                    parts.push(format!("to-port:{}", self.port()));
                }
                if shape & 8 != 0 || shape == 0 {
                    parts.push(format!("vlan:{}", self.one(&[5, 77, 4095])));
                }
                let mark = Action::Mark(self.below(1 << 32) as u32);
                let action = self.one(&[Action::Drop, queue, mark]);
                parts.push("ip".to_string());
                return (parts.join("+"), action);
            }
            5 => parts.push(format!("host:{}", address(self))),
            6 => parts.push(format!("port:{}", self.port())),
            _ => {}
        }
        let any = |chance: &mut Chance| chance.below(2) == 0;
        if any(self) {
            parts.push(self.one(&["tcp", "udp", "sctp"]).to_string());
        }
        if any(self) && !parts.iter().any(|part| part.starts_with("host")) {
            parts.push(format!("from:{}", address(self)));
        }
        if any(self) && !parts.iter().any(|part| part.starts_with("host")) {
            parts.push(format!("to:{}", address(self)));
        }
        if any(self) && !parts.iter().any(|part| part.starts_with("port")) {
            parts.push(format!("from-port:{}", self.port()));
        }
        if parts.is_empty() {
            parts.push(format!("to-port:{}", self.port()));
        }
        parts.push("ip".to_string());
        (parts.join("+"), queue)
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for _ in 0..self.one(&[0, 0, 0, 1, 1, 2]) {
            let kind: u16 = self.one(&[0x8100, 0x8100, 0x8100, 0x88A8]);
            let tag = self.one(&[5u16, 77, 4095, 0]) | self.one(&[0u16, 0xA000]);
            frame.extend([kind.to_be_bytes(), tag.to_be_bytes()].concat());
        }
        let ethertype: u16 =
            self.one(&[0x0800, 0x0800, 0x0800, 0x0800, 0x0800, 0x86DD, 0x0806, 0x88F7, 0x88CC, 0x1234]);
        frame.extend(ethertype.to_be_bytes());
        let (from, to) = (self.address(), self.address());
        let protocol = self.one(&[6u8, 6, 17, 17, 17, 132, 1, 51]);
        match ethertype {
            0x0800 => {
                let options = self.one(&[0usize, 0, 4]);
                let fragment = self.one(&[0u16, 0, 0, 0, 0, 0x4000, 0x2000, 0x2005, 0x0007]);
                frame.extend([0x45 + options as u8 / 4, 0, 0, 80]);
                frame.extend([[0, 0], fragment.to_be_bytes()].concat());
                frame.extend([64, protocol, 0, 0]);
                frame.extend([from, to].concat());
                frame.extend(vec![1; options]);
            }
            0x86DD => {
                frame.extend([0x60, 0, 0, 0, 0, 40, protocol, 64]);
                frame.extend([from; 4].concat());
                frame.extend([to; 4].concat());
            }
            _ => {}
        }
        if protocol == 51 {
            // An authentication header before UDP.
            frame.extend([17, 0, 0, 0, 0, 0, 0, 1]);
        }
        frame.extend([self.port().to_be_bytes(), self.port().to_be_bytes()].concat());
        frame.resize(NUMBER + 20, 0);
        frame
    }

    fn frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.frame()).collect()
    }
}

/// 1,000 random rules and 10,000 random packets. Rules are removed, and the port is reset, in between.
#[test]
fn the_card_decides_as_the_filters_do() {
    let mut bench = Bench::new();
    let mut chance = Chance(Random::new(54, 1));
    let (mut added, mut matched, mut batches) = (0, 0, 0);
    let add = |bench: &mut Bench, chance: &mut Chance, shape: u64, count: usize| {
        let added = (0..count).filter_map(|_| {
            let (filter, action) = chance.rule(shape);
            let refused = |error: &linerate::Error| {
                // The same packets, or an order that the card cannot keep; the card can express each part.
                let is_order = error.why().contains("overlaps") || error.why().contains("other fields");
                assert!(error.kind() == ErrorKind::Exists || is_order, "{filter} {action}: {error}");
            };
            bench.add(&filter, action).inspect_err(refused).ok()
        });
        added.collect::<Vec<_>>()
    };
    while added < 1000 {
        let shape = batches % 16;
        batches += 1;
        let mut ids = add(&mut bench, &mut chance, shape, 60);
        added += ids.len();
        matched += bench.check(&chance.frames(250));
        ids.retain(|_| chance.below(2) == 0);
        for id in &ids {
            bench.port.remove_rule(*id).unwrap();
        }
        // New rules get the free entries, and are still the last.
        added += add(&mut bench, &mut chance, shape, 20).len();
        matched += bench.check(&chance.frames(150));
        if batches % 4 == 0 {
            // The next rule, or none, decides about the packets of a stopped queue.
            drop(bench.queues.remove(&3));
            matched += bench.check(&chance.frames(100));
            bench.queues.clear();
            bench.port.reset().unwrap();
            (0..QUEUES).for_each(|queue| bench.start(queue));
            matched += bench.check(&chance.frames(100));
        }
        for rule in bench.port.rules() {
            bench.port.remove_rule(rule.id).unwrap();
        }
        assert_eq!(bench.check(&chance.frames(10)), 0);
    }
    assert!(batches * 410 >= 10_000, "only {batches} batches");
    assert!(matched > 2000, "only {matched} packets were those of a rule");
}

#[test]
fn the_first_rule_decides() {
    let mut bench = Bench::new();
    let frame = |protocol: u8, to_port: u16| {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 80, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
        frame.extend(to_port.to_be_bytes());
        frame.resize(NUMBER + 20, 0);
        frame
    };
    let frames = [frame(17, 53), frame(17, 54), frame(6, 53)];
    let narrow = bench.add("ip+udp:53", Action::Queue(1)).unwrap();
    let wide = bench.add("from:10.0.0.1", Action::Queue(2)).unwrap();
    let drop = bench.add("from:10.0.0.0/24", Action::Drop).unwrap();
    assert_eq!(bench.queues_of(&frames), [Some(1), Some(2), Some(2)]);
    bench.port.remove_rule(narrow).unwrap();
    let narrow = bench.add("to:10.0.0.2", Action::Queue(1)).unwrap_err();
    assert!(narrow.why().contains(&format!("overlaps rule {drop}")), "{narrow}");
    assert_eq!(bench.queues_of(&frames), [Some(2); 3]);
    bench.port.remove_rule(wide).unwrap();
    assert_eq!(bench.queues_of(&frames), [None; 3]);
    // A rule holds after a reset, and none is left of a port that was closed.
    bench.queues.clear();
    bench.port.reset().unwrap();
    bench.start(0);
    assert_eq!(bench.queues_of(&frames), [None; 3]);
    bench.port.remove_rule(drop).unwrap();
    assert_eq!(bench.queues_of(&frames), [Some(0); 3]);
}

#[test]
fn a_mark_needs_metadata() -> linerate::Result<()> {
    let [mut without] = linerate::open(["sim:no-marks?wire=none"])?;
    let filter: Filter = "ip+udp:53".parse()?;
    let refused = without.add_rule(&filter, Action::Mark(7)).unwrap_err();
    assert_eq!((refused.kind(), without.rules()), (ErrorKind::BadOption, vec![]));
    assert!(refused.remedy().is_some_and(|remedy| remedy.to_string().contains("metadata=on")));
    Ok(())
}

/// Wrappers pass rules on to the port that they wrap; kinds of ports without rules refuse them.
#[test]
fn rules_of_a_wrapped_port_are_those_of_its_card() -> linerate::Result<()> {
    let [mut wrapped, mut other] = linerate::open(["link:sim:wrapped?wire=none&queues=2&delay=1ms", "echo:"])?;
    let filter: Filter = "ip+udp:53".parse()?;
    let id = wrapped.add_rule(&filter, Action::Queue(1))?;
    assert_eq!(wrapped.rules(), [Rule { id, filter: filter.clone(), action: Action::Queue(1) }]);
    assert_eq!(wrapped.add_rule(&filter, Action::Kernel).unwrap_err().kind(), ErrorKind::Unsupported);
    wrapped.remove_rule(id)?;
    assert_eq!((wrapped.rules(), other.rules()), (vec![], vec![]));
    assert_eq!(other.add_rule(&filter, Action::Drop).unwrap_err().kind(), ErrorKind::Unsupported);
    Ok(())
}

#[test]
fn a_rule_is_added_as_a_whole_or_not_at_all() {
    let mut bench = Bench::new();
    let filter = |text: &str| text.parse::<Filter>().unwrap();
    // The second alternative is not possible.
    let error = bench.port.add_rule(&filter("ip+udp:1,ip+udp:5-6"), Action::Queue(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("'ip+udp:1,ip+udp:5-6 queue:1'") && error.why().contains("port ranges"),
        "{error}"
    );
    assert_eq!(bench.port.rules(), []);
    assert_eq!(bench.add("ip+udp:1", Action::Queue(9)).unwrap_err().kind(), ErrorKind::NotFound);
    let all: Vec<String> = (0..2047 + 128).map(|port| format!("ip+udp:{port}")).collect();
    let id = bench.port.add_rule(&filter(&all.join(",")), Action::Queue(1)).unwrap();
    let full = bench.add("ip+udp:9999", Action::Queue(1)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Exhausted);
    assert!(full.why().contains("it has 2047 entries"), "{full}");
    bench.port.remove_rule(id).unwrap();
    bench.add("ip+udp:9999", Action::Queue(1)).unwrap();
    assert_eq!(bench.card.breaches(), []);
}
