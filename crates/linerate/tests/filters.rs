//! Filters of addresses and VLANs: which of random frames arrive at a card, for random sets of filters.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::{Config, Ixgbe};
use linerate::port::{Device, Feature, MacAddress, Random, Receive, Support};
use linerate::sim82599::{Card, CardBar, Frame, from_fn};
use linerate::{Batch, ErrorKind};

/// Frames of a round, as many as a ring has room for.
const FRAMES: usize = 256;

/// The filters of a port, as a program asked for them.
#[derive(Clone, Debug, Default)]
struct Wanted {
    promiscuous: bool,
    all_multicast: bool,
    addresses: Vec<MacAddress>,
    vlans: Option<BTreeSet<u16>>,
}

/// Whether a frame is received.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Received,
    NotReceived,
    /// A group that was not asked for, with the hash of one that was.
    Either,
}

impl Wanted {
    fn random(random: &mut Random) -> Wanted {
        let count = [0, 1, 5, 127][random.below(4) as usize];
        let mut addresses: Vec<MacAddress> = (0..count).map(|_| unicast(random)).collect();
        addresses.extend((0..random.below(20)).map(|_| group(random)));
        let vlans = (0..random.below(30)).map(|_| random.below(4095) as u16).collect();
        Wanted {
            promiscuous: random.below(8) == 0,
            all_multicast: random.below(4) == 0,
            addresses,
            vlans: (random.below(3) > 0).then_some(vlans),
        }
    }

    fn apply(&self, port: &mut Ixgbe<CardBar>) {
        let vlans: Option<Vec<u16>> = self.vlans.as_ref().map(|vlans| vlans.iter().copied().collect());
        port.set_addresses(&self.addresses).unwrap();
        port.set_vlans(vlans.as_deref()).unwrap();
        port.set_all_multicast(self.all_multicast).unwrap();
        port.set_promiscuous(self.promiscuous).unwrap();
    }

    /// The statement of the documentation about a frame to `to`, with a tag of VLAN `vlan`.
    fn verdict(&self, own: MacAddress, to: MacAddress, vlan: Option<u16>) -> Verdict {
        if vlan.zip(self.vlans.as_ref()).is_some_and(|(vlan, vlans)| !vlans.contains(&vlan)) {
            return Verdict::NotReceived;
        }
        let hash = |address: MacAddress| u16::from(address.0[5]) << 4 | u16::from(address.0[4]) >> 4;
        let has_hash = |asked: &MacAddress| asked.is_group() && hash(*asked) == hash(to);
        match () {
            () if self.promiscuous || to == own || to == MacAddress::BROADCAST => Verdict::Received,
            () if self.addresses.contains(&to) || self.all_multicast && to.is_group() => Verdict::Received,
            () if to.is_group() && self.addresses.iter().any(has_hash) => Verdict::Either,
            () => Verdict::NotReceived,
        }
    }
}

fn unicast(random: &mut Random) -> MacAddress {
    MacAddress([2, 0, 0, 0, random.below(3) as u8, 1 + random.below(255) as u8])
}

fn group(random: &mut Random) -> MacAddress {
    MacAddress([1, 0, 0x5E, random.below(3) as u8, random.below(0x40) as u8, random.below(256) as u8])
}

/// A card with a queue, and the frames that arrive at it.
struct Bench {
    card: Arc<Card>,
    port: Ixgbe<CardBar>,
    arriving: Arc<Mutex<VecDeque<Frame>>>,
    random: Random,
}

impl Bench {
    fn new() -> Bench {
        let pages = Pages::Only(PageSize::Ordinary);
        let region = Region::new(&RegionOptions { buffers: 4096, buffer_size: 2048, pages, numa_node: None }).unwrap();
        let arriving = Arc::<Mutex<VecDeque<Frame>>>::default();
        let from = arriving.clone();
        let next = move |frame: &mut Frame| from.lock().unwrap().pop_front().map(|next| *frame = next).is_some();
        let card = Card::new("filters", from_fn(|_| {}, next));
        let port = linerate::drive_model(&card, None, Config::new("filters", Pool::new(region))).unwrap();
        Bench { card, port, arriving, random: Random::new(11, 0) }
    }

    /// Lets random frames arrive, and compares each with the filters' verdict. Returns the number of frames received and
    /// not received.
    fn check(&mut self, rx: &mut dyn Receive, wanted: &Wanted) -> [usize; 2] {
        let (own, random) = (self.port.mac(), &mut self.random);
        let mut frames = Vec::new();
        for number in 0..FRAMES {
            let asked = |random: &mut Random| wanted.addresses.get(random.below(150) as usize).copied();
            let to = match random.below(6) {
                0 => own,
                1 => MacAddress::BROADCAST,
                2 => group(random),
                3 => unicast(random),
                _ => asked(random).unwrap_or_else(|| group(random)),
            };
            // Half of the tags are those of VLANs that may have been asked for.
            let known = wanted.vlans.as_ref().and_then(|vlans| vlans.iter().nth(random.below(30) as usize).copied());
            let vlan = match random.below(3) {
                0 => None,
                1 => known,
                _ => Some(random.below(4095) as u16),
            };
            let mut bytes = [&to.0[..], &[2; 6]].concat();
            // With a random priority.
            vlan.inspect(|vlan| {
                bytes.extend([0x81, 0x00, (vlan >> 8) as u8 | (random.below(8) as u8) << 5, *vlan as u8])
            });
            bytes.extend([0x88, 0xB5]);
            bytes.resize(64, 0);
            bytes[60..].copy_from_slice(&(number as u32).to_be_bytes());
            self.arriving.lock().unwrap().push_back(Frame { bytes, bad_crc: false });
            frames.push((to, vlan));
        }
        while self.card.step(64) > 0 {}
        let (mut batch, mut received) = (Batch::new(), vec![false; FRAMES]);
        while rx.recv(&mut batch) > 0 {
            for packet in &mut batch {
                received[u32::from_be_bytes(*packet[60..].first_chunk().unwrap()) as usize] = true;
            }
            batch.clear();
        }
        for ((to, vlan), received) in frames.into_iter().zip(&received) {
            let expected = match received {
                true => Verdict::Received,
                false => Verdict::NotReceived,
            };
            let verdict = wanted.verdict(own, to, vlan);
            assert!(
                [&expected, &Verdict::Either].contains(&&verdict),
                "to {to}, VLAN {vlan:?}: {verdict:?}; {wanted:?}"
            );
        }
        assert_eq!(self.card.breaches(), []);
        let count = received.iter().filter(|received| **received).count();
        [count, FRAMES - count]
    }
}

#[test]
fn frames_arrive_as_the_filters_say_also_after_a_reset() {
    let mut bench = Bench::new();
    let mut rx = bench.port.rx(0).unwrap();
    let mut sums = [0, 0];
    // A port begins promiscuous, and receives all VLANs.
    let begin = Wanted { promiscuous: true, ..Wanted::default() };
    assert_eq!(bench.check(&mut *rx, &begin), [FRAMES, 0]);
    for round in 0..200 {
        let wanted = Wanted::random(&mut bench.random);
        wanted.apply(&mut bench.port);
        let counts = bench.check(&mut *rx, &wanted);
        (0..2).for_each(|n| sums[n] += counts[n]);
        if round % 10 == 0 {
            drop(rx);
            bench.port.reset().unwrap();
            rx = bench.port.rx(0).unwrap();
            bench.check(&mut *rx, &wanted);
        }
    }
    assert!(sums.iter().all(|count| *count > 5000), "received and not: {sums:?}");
    // Without filters, the card is as before.
    begin.apply(&mut bench.port);
    assert_eq!(bench.check(&mut *rx, &begin), [FRAMES, 0]);
}

#[test]
fn impossible_filters_change_nothing() {
    let mut bench = Bench::new();
    let mut rx = bench.port.rx(0).unwrap();
    let wanted = Wanted {
        addresses: vec![MacAddress([2, 0, 0, 0, 0, 9])],
        vlans: Some(BTreeSet::from([7])),
        ..Wanted::default()
    };
    wanted.apply(&mut bench.port);
    let many: Vec<MacAddress> = (0..128).map(|n| MacAddress([2, 0, 0, 0, 1, n])).collect();
    let error = bench.port.set_addresses(&many).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.why().contains("127 unicast addresses") && error.why().contains("128 are given"), "{error}");
    assert_eq!(bench.port.set_addresses(&[MacAddress::default()]).unwrap_err().kind(), ErrorKind::BadOption);
    for vlan in [4095, 4096, u16::MAX] {
        assert_eq!(bench.port.set_vlans(Some(&[vlan])).unwrap_err().kind(), ErrorKind::BadOption);
    }
    bench.check(&mut *rx, &wanted);
}

/// Ports in memory receive all that is sent to them; wrappers pass the filters on.
#[test]
fn other_ports_succeed_or_tell_why_not() {
    let names = ["echo:", "link:sim:filters-inner?wire=none", "sim:filters-other?wire=none", "vale0:filters"];
    let [mut echo, mut wrapped, mut card, mut switch] = linerate::open(names).unwrap();
    let addresses = [MacAddress([2, 0, 0, 0, 0, 7])];
    for port in [&mut echo, &mut switch] {
        port.set_addresses(&addresses).unwrap();
        port.set_all_multicast(true).unwrap();
        port.set_vlans(None).unwrap();
        assert_eq!(port.set_vlans(Some(&[1])).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(port.capabilities().of(Feature::AddressFilter), Support::None);
    }
    for port in [&mut wrapped, &mut card] {
        port.set_addresses(&addresses).unwrap();
        port.set_vlans(Some(&[1])).unwrap();
        assert_eq!(port.set_vlans(Some(&[4095])).unwrap_err().kind(), ErrorKind::BadOption);
        assert_eq!(port.capabilities().of(Feature::VlanFilter), Support::Offloaded);
        let error = port.set_mac(MacAddress([1, 0, 0x5E, 0, 0, 1])).unwrap_err();
        assert!(error.kind() == ErrorKind::BadOption && error.why().contains("group address"), "{error}");
    }
}
