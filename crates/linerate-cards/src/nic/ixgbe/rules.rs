//! Rules in the card's tables of filters (section 7.1.2): by ethertype, by five-tuple, and the flow director's perfect
//! filters.
//!
//! A rule gets the first table that can express it:
//!
//! | table | entries | compares | actions |
//! |---|---|---|---|
//! | ethertype filters (7.1.2.3) | 7 | an ethertype other than IP | queue |
//! | five-tuple filters (7.1.2.5) | 128 | addresses, ports and protocol of IPv4; each entry has its own mask | queue |
//! | flow director (7.1.2.7) | 2,047 | also prefixes and VLAN; all entries have one mask | queue, drop, mark |
//!
//! The card asks the tables in this order, and five-tuple filters by their priority. Entries of the flow director have
//! one mask, so no packet matches two of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use linerate_core::error::Result;
use linerate_core::filter::{IPV4, IPV6, Match, Prefix, TAGS, WITH_PORTS};
use linerate_core::port::{Action, RuleId};
use linerate_spec::x82599::*;

use super::X82599;
use crate::nic::intel::{Entries, Hardware, Refused};
use crate::pci::Bar;

/// The numbers of entries of the tables. The last of 8 ethertype filters is for the packets of IEEE 1588.
pub(super) const ETHERTYPES: usize = 7;
const TUPLES: usize = 128;
/// With 64 KiB of the packet buffer: 2K - 1 (8.2.3.21.1).
const DIRECTED: u16 = 2047;

/// The memory that the flow director takes from the packet buffer, in KiB (`PBALLOC_64K`).
pub(super) const DIRECTOR_KIB: u32 = 64;

/// The highest priority of a five-tuple filter (8.2.3.7.19).
const FIRST: u32 = 7;

/// The key of the flow director's hash: that of Linux's and DPDK's drivers (8.2.3.21.2).
const HASH_KEY: u32 = 0x3DAD_14E2;
const SIGNATURE_KEY: u32 = 0x174D_3614;

/// The queue number that the flow director uses for packets to drop.
const DROP_QUEUE: u32 = 127;

/// The rules' entries in the card's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// By index in the card's table.
    ethertypes: BTreeMap<u16, Entry<u16>>,
    tuples: BTreeMap<u16, Entry<Tuple>>,
    director: BTreeMap<u16, Entry<Fields>>,
}

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry<T> {
    rule: RuleId,
    action: Action,
    value: T,
}

/// A five-tuple filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple {
    fields: Fields,
    priority: u32,
}

/// The fields of an IPv4 packet that an entry compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    protocol: Option<u8>,
    /// Address and mask.
    from: Option<(u32, u32)>,
    to: Option<(u32, u32)>,
    from_port: Option<u16>,
    to_port: Option<u16>,
    vlan: Option<u16>,
}

/// Returns a refusal that names a part.
fn part<T>(why: impl Into<String>) -> std::result::Result<T, Refused> {
    Err(Refused::Part(why.into()))
}

impl Fields {
    /// Returns the fields of a match.
    fn of(one: &Match) -> std::result::Result<Fields, Refused> {
        match one.ethertype {
            Some(IPV4) => {}
            Some(IPV6) => return part("IPv6: the card's filters compare IPv4 only"),
            // `udp:53` also matches IPv6.
            None => return part("IPv6, which the filter includes: the card's filters compare IPv4 only; add ip"),
            Some(_) => return part("conditions in addition to an ethertype other than ip"),
        }
        if let Some(protocol) = one.protocol.filter(|protocol| !WITH_PORTS.contains(protocol)) {
            return part(format!("protocol {protocol}: the card knows TCP, UDP and SCTP"));
        }
        let port = |ports: &Option<RangeInclusive<u16>>| match ports {
            Some(ports) if ports.start() != ports.end() => part("port ranges: the card compares single ports"),
            ports => Ok(ports.as_ref().map(|ports| *ports.start())),
        };
        let fields = Fields {
            protocol: one.protocol,
            from: one.from.and_then(masked),
            to: one.to.and_then(masked),
            from_port: port(&one.from_port)?,
            to_port: port(&one.to_port)?,
            vlan: one.vlan,
        };
        match fields {
            Fields { vlan: Some(0), .. } => part("vlan:0: the card cannot tell it from a packet without a tag"),
            fields if fields == Fields::default() => part("all packets of IPv4: add an address, a port or a protocol"),
            fields => Ok(fields),
        }
    }

    /// Returns the fields as an entry compares them: ports belong to a protocol.
    fn of_each_protocol(self) -> Vec<Fields> {
        match self {
            Fields { protocol: None, from_port: None, to_port: None, .. } | Fields { protocol: Some(_), .. } => {
                vec![self]
            }
            _ => WITH_PORTS.map(|protocol| Fields { protocol: Some(protocol), ..self }).to_vec(),
        }
    }

    /// Returns whether a five-tuple filter can compare these fields: there are no prefixes, and no VLAN.
    fn is_tuple(&self) -> bool {
        let is_whole = |address: Option<(u32, u32)>| address.is_none_or(|(_, mask)| mask == u32::MAX);
        self.vlan.is_none() && is_whole(self.from) && is_whole(self.to)
    }

    /// Returns whether a packet can match both.
    fn overlaps(&self, other: &Fields) -> bool {
        fn agree<T: PartialEq>(ours: Option<T>, theirs: Option<T>) -> bool {
            ours.is_none() || theirs.is_none() || ours == theirs
        }
        let meet = |ours: Option<(u32, u32)>, theirs: Option<(u32, u32)>| match (ours, theirs) {
            (Some((a, mask_a)), Some((b, mask_b))) => (a ^ b) & mask_a & mask_b == 0,
            _ => true,
        };
        agree(self.protocol, other.protocol)
            && meet(self.from, other.from)
            && meet(self.to, other.to)
            && agree(self.from_port, other.from_port)
            && agree(self.to_port, other.to_port)
            && agree(self.vlan, other.vlan)
    }

    /// Returns the parts that are compared. These must be the same for all entries of the flow director.
    fn mask(&self) -> Mask {
        let bits = |address: Option<(u32, u32)>| address.map_or(0, |(_, mask)| mask);
        Mask {
            protocol: self.protocol.is_some(),
            from: bits(self.from),
            to: bits(self.to),
            from_port: self.from_port.is_some(),
            to_port: self.to_port.is_some(),
            vlan: self.vlan.is_some(),
        }
    }

    /// Returns the addresses, ports and VLAN as numbers; a field that is not compared is 0.
    fn values(&self) -> (u32, u32, u32, u32) {
        let address = |address: Option<(u32, u32)>| address.map_or(0, |(address, _)| address);
        let ports = u32::from(self.to_port.unwrap_or(0)) << FDIRPORT::DESTINATION_SHIFT
            | u32::from(self.from_port.unwrap_or(0));
        (address(self.from), address(self.to), ports, self.vlan.unwrap_or(0).into())
    }

    /// Returns `FDIRCMD.L4TYPE`.
    fn layer_4(&self) -> u32 {
        match self.protocol {
            Some(17) => 1,
            Some(6) => 2,
            Some(132) => 3,
            _ => 0,
        }
    }

    /// Returns the hash that selects the filter's bucket (7.1.2.7): 13 bits, from the masked fields. For each set bit of
    /// the key, 32 bits of the fields are added, shifted by the bit's number.
    fn bucket(&self) -> u32 {
        let (from, to, ports, vlan) = self.values();
        let first = self.layer_4() << 16 | vlan;
        // The source port comes first in the hash's input.
        let high = from ^ to ^ ports.rotate_left(16);
        let low = high.rotate_left(16);
        let high = high ^ first ^ first >> 16;
        let with_first = low ^ first ^ first << 16;
        let mut hash = 0;
        for bit in 0..16 {
            // The tag and the protocol are added after bit 0.
            let low = if bit == 0 { low } else { with_first };
            if HASH_KEY >> bit & 1 != 0 {
                hash ^= low >> bit;
            }
            if HASH_KEY >> (bit + 16) & 1 != 0 {
                hash ^= high >> bit;
            }
        }
        hash & 0x1FFF
    }
}

/// Returns an address and its mask; `None` if it compares no bits.
fn masked(prefix: Prefix) -> Option<(u32, u32)> {
    let IpAddr::V4(address) = prefix.address else { return None };
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.bits)).filter(|mask| *mask != 0)?;
    Some((address.to_bits() & mask, mask))
}

/// The parts that all entries of the flow director compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mask {
    protocol: bool,
    from: u32,
    to: u32,
    from_port: bool,
    to_port: bool,
    vlan: bool,
}

impl Entries<X82599> for Tables {
    const MARKS: usize = DIRECTED as usize;

    fn add(&mut self, rule: RuleId, one: &Match, action: Action) -> std::result::Result<(), Refused> {
        if action == Action::Kernel {
            return part("the action kernel: the card is not shared with Linux");
        }
        if one.inner {
            return part("inner: the card compares the outer headers");
        }
        if let Some(ethertype) = one.ethertype
            && *one == (Match { ethertype: Some(ethertype), ..Match::default() })
            && ![IPV4, IPV6].contains(&ethertype)
        {
            return self.add_ethertype(rule, ethertype, action);
        }
        Fields::of(one)?.of_each_protocol().into_iter().try_for_each(|fields| match action {
            Action::Queue(_) if fields.is_tuple() && self.tuples.len() < TUPLES => self.add_tuple(rule, fields, action),
            _ => self.add_directed(rule, fields, action),
        })
    }

    fn remove(&mut self, rule: RuleId) {
        self.ethertypes.retain(|_, entry| entry.rule != rule);
        self.tuples.retain(|_, entry| entry.rule != rule);
        self.director.retain(|_, entry| entry.rule != rule);
    }

    fn with_queues(&self, is_started: impl Fn(u16) -> bool) -> Tables {
        let is_active = |action: Action| !matches!(action, Action::Queue(queue) if !is_started(queue));
        let mut tables = self.clone();
        tables.ethertypes.retain(|_, entry| is_active(entry.action));
        tables.tuples.retain(|_, entry| is_active(entry.action));
        tables.director.retain(|_, entry| is_active(entry.action));
        tables
    }

    fn write<B: Bar>(&self, present: &Tables, hardware: &Hardware<B, X82599>) -> Result<()> {
        for n in changed(&present.ethertypes, &self.ethertypes) {
            hardware.write(ETQF(n), 0);
            if let Some(entry) = self.ethertypes.get(&n) {
                hardware.write(ETQS(n), ETQS::ENABLE | queue(entry.action) << ETQS::QUEUE_SHIFT);
                hardware.write(ETQF(n), ETQF::ENABLE | u32::from(entry.value));
            }
        }
        for n in changed(&present.tuples, &self.tuples) {
            hardware.write(FTQF(n), 0);
            if let Some(entry) = self.tuples.get(&n) {
                write_tuple(hardware, n, entry);
            }
        }
        self.write_director(present, hardware)
    }
}

/// Returns the indices at which two tables differ.
fn changed<T: PartialEq>(present: &BTreeMap<u16, T>, wanted: &BTreeMap<u16, T>) -> Vec<u16> {
    let gone = present.keys().filter(|n| !wanted.contains_key(n));
    let new = wanted.iter().filter(|(n, entry)| present.get(n) != Some(entry)).map(|(n, _)| n);
    gone.chain(new).copied().collect()
}

/// Returns the lowest index that a table does not use.
fn free<T>(table: &BTreeMap<u16, T>) -> u16 {
    (0..).zip(table.keys()).find(|(n, used)| n != *used).map_or(table.len() as u16, |(n, _)| n)
}

/// Returns the queue number of an action in the card's registers.
fn queue(action: Action) -> u32 {
    match action {
        Action::Queue(queue) => queue.into(),
        _ => DROP_QUEUE,
    }
}

impl Tables {
    fn add_ethertype(&mut self, rule: RuleId, ethertype: u16, action: Action) -> std::result::Result<(), Refused> {
        if !matches!(action, Action::Queue(_)) {
            return part(format!("the action {action} for an ethertype: the card can only choose a queue"));
        }
        // Below 0x600 it is a length (IEEE 802.3, 3.2.6); tags come before the ethertype.
        if ethertype < 0x600 || TAGS.contains(&ethertype) {
            return part(format!("type:{ethertype:#06x}: the card compares the ethertype after a tag"));
        }
        if let Some(same) = self.ethertypes.values().find(|entry| entry.value == ethertype) {
            return Err(Refused::Same(same.rule));
        }
        if self.ethertypes.len() == ETHERTYPES {
            return Err(Refused::Full { table: "ethertype filters", entries: ETHERTYPES });
        }
        self.ethertypes.insert(free(&self.ethertypes), Entry { rule, action, value: ethertype });
        Ok(())
    }

    fn add_tuple(&mut self, rule: RuleId, fields: Fields, action: Action) -> std::result::Result<(), Refused> {
        let earlier = self.director.values().filter(|entry| entry.action != action && entry.rule != rule);
        if let Some(earlier) = earlier.into_iter().find(|entry| entry.value.overlaps(&fields)) {
            return part(format!(
                "it overlaps rule {}, which was added before: the card would apply the later rule first",
                earlier.rule
            ));
        }
        // Of several filters with different queues, the card must choose the first.
        let earlier =
            self.tuples.values().filter(|entry| entry.action != action && entry.value.fields.overlaps(&fields));
        let lowest = earlier.map(|entry| entry.value.priority).min();
        let priority = lowest.map_or(FIRST, |lowest| lowest - 1);
        if priority == 0 {
            return part(format!("it overlaps {FIRST} earlier rules: the card has as many priorities"));
        }
        self.tuples.insert(free(&self.tuples), Entry { rule, action, value: Tuple { fields, priority } });
        Ok(())
    }

    fn add_directed(&mut self, rule: RuleId, fields: Fields, action: Action) -> std::result::Result<(), Refused> {
        let present = self.director.values().next().map(|entry| (entry.rule, entry.value.mask()));
        if let Some((other, mask)) = present
            && mask != fields.mask()
        {
            return part(format!(
                "other fields or prefix lengths than those of rule {other}: the flow director compares the same ones for all \
                 of its rules"
            ));
        }
        // With one mask, entries that overlap are equal.
        if let Some(same) = self.director.values().find(|entry| entry.value == fields) {
            // `host:` and `port:` can yield the same entry twice.
            return if same.rule == rule { Ok(()) } else { Err(Refused::Same(same.rule)) };
        }
        if self.director.len() == usize::from(DIRECTED) {
            return Err(Refused::Full { table: "flow director filters", entries: DIRECTED.into() });
        }
        self.director.insert(free(&self.director), Entry { rule, action, value: fields });
        Ok(())
    }

    fn write_director<B: Bar>(&self, present: &Tables, hardware: &Hardware<B, X82599>) -> Result<()> {
        let indices = changed(&present.director, &self.director);
        for (n, entry) in indices.iter().filter_map(|n| Some((n, present.director.get(n)?))) {
            remove_filter(hardware, *n, entry)?;
            hardware.set_mark(*n, None);
        }
        let added: Vec<_> = indices.iter().filter_map(|n| Some((*n, self.director.get(n)?))).collect();
        let Some((_, first)) = added.first() else { return Ok(()) };
        if hardware.read(FDIRCTRL) & FDIRCTRL::PBALLOC_MASK == 0 {
            start_director(hardware)?;
        }
        let is_new = |(n, _): (&u16, _)| added.iter().any(|(added, _)| added == n);
        if self.director.iter().all(is_new) {
            write_mask(hardware, &first.value.mask());
        }
        added.into_iter().try_for_each(|(n, entry)| add_filter(hardware, n, entry))
    }
}

/// Writes a five-tuple filter, the enable bit last (8.2.3.7.16 to 8.2.3.7.19). A set bit excludes its field.
fn write_tuple<B: Bar>(hardware: &Hardware<B, X82599>, n: u16, entry: &Entry<Tuple>) {
    let Tuple { fields, priority } = entry.value;
    let (from, to, ports, _) = fields.values();
    // Addresses and ports are in network order.
    let ports = (ports & 0xFFFF_0000).swap_bytes() << 16 | (ports & 0xFFFF).swap_bytes() >> 16;
    hardware.write(SAQF(n), from.swap_bytes());
    hardware.write(DAQF(n), to.swap_bytes());
    hardware.write(SDPQF(n), ports);
    // Reserved bits of this register must be 1000000b (8.2.3.5.16).
    hardware.write(L34TIMIR(n), L34TIMIR::BITS_13_TO_19 | queue(entry.action) << L34TIMIR::RX_QUEUE_SHIFT);
    let (protocol, no_protocol) = match fields.protocol {
        Some(6) => (0, 0),
        Some(17) => (1, 0),
        Some(132) => (2, 0),
        _ => (3, FTQF::PROTOCOL),
    };
    let unless = |is_compared: bool, bit: u32| if is_compared { 0 } else { bit };
    let mask = no_protocol
        | unless(fields.from.is_some(), FTQF::SOURCE)
        | unless(fields.to.is_some(), FTQF::DESTINATION)
        | unless(fields.from_port.is_some(), FTQF::SOURCE_PORT)
        | unless(fields.to_port.is_some(), FTQF::DESTINATION_PORT);
    hardware.write(FTQF(n), FTQF::ENABLE | FTQF::POOL | mask | priority << FTQF::PRIORITY_SHIFT | protocol);
}

/// Initializes the flow director for perfect filters. As Linux's driver does, holds back received packets meanwhile:
/// they wait in the packet buffer.
fn start_director<B: Bar>(hardware: &Hardware<B, X82599>) -> Result<()> {
    hardware.set(SECRXCTRL, SECRXCTRL::RX_DIS);
    hardware.wait_set(SECRXSTAT, SECRXSTAT::SECRX_RDY)?;
    hardware.write(FDIRHKEY, HASH_KEY);
    hardware.write(FDIRSKEY, SIGNATURE_KEY);
    // The longest list of a bucket before the card reports it, and the number of free filters (64) at which it would
    // interrupt: as in Linux's driver.
    let limits = 0xA << FDIRCTRL::MAX_LENGTH_SHIFT | 4 << FDIRCTRL::FULL_THRESH_SHIFT;
    let control = FDIRCTRL::PBALLOC_64K | FDIRCTRL::PERFECT_MATCH | DROP_QUEUE << FDIRCTRL::DROP_Q_SHIFT | limits;
    // Marks need the filter in the descriptor, where it replaces the hash.
    let report = if hardware.config.options.metadata { FDIRCTRL::REPORT_STATUS } else { 0 };
    hardware.write(FDIRCTRL, control | report);
    let done = hardware.wait_set(FDIRCTRL, FDIRCTRL::INIT_DONE);
    hardware.clear(SECRXCTRL, SECRXCTRL::RX_DIS);
    done
}

/// Writes the fields that all filters compare (8.2.3.21.4 to 8.2.3.21.9). A set bit excludes its field.
fn write_mask<B: Bar>(hardware: &Hardware<B, X82599>, mask: &Mask) {
    let unless = |is_compared: bool, bits: u32| if is_compared { 0 } else { bits };
    hardware.write(
        FDIRM,
        FDIRM::DIPV6
            | FDIRM::POOL
            | FDIRM::FLEX
            | FDIRM::VLANP
            | unless(mask.vlan, FDIRM::VLANID)
            | unless(mask.protocol, FDIRM::L4P),
    );
    hardware.write(FDIRSIP4M, !mask.from);
    hardware.write(FDIRDIP4M, !mask.to);
    let ports = unless(mask.to_port, 0xFFFF << FDIRPORT::DESTINATION_SHIFT) | unless(mask.from_port, 0xFFFF);
    hardware.write(FDIRTCPM, ports);
    hardware.write(FDIRUDPM, ports);
    hardware.write(FDIRSCTPM, ports);
}

/// Removes a filter from the flow director, if it has it, as Linux's and DPDK's drivers do.
fn remove_filter<B: Bar>(hardware: &Hardware<B, X82599>, n: u16, entry: &Entry<Fields>) -> Result<()> {
    for command in [FDIRCMD::CMD_QUERY, FDIRCMD::CMD_REMOVE] {
        hardware.write(FDIRHASH, u32::from(n) << FDIRHASH::INDEX_SHIFT | entry.value.bucket());
        hardware.write(FDIRCMD, command);
        hardware.wait_clear(FDIRCMD, FDIRCMD::CMD_MASK)?;
        if command == FDIRCMD::CMD_QUERY && hardware.read(FDIRCMD) & FDIRCMD::VALID == 0 {
            break;
        }
    }
    Ok(())
}

/// Adds a filter to the flow director (8.2.3.21.14 to 8.2.3.21.20).
fn add_filter<B: Bar>(hardware: &Hardware<B, X82599>, n: u16, entry: &Entry<Fields>) -> Result<()> {
    let (from, to, ports, vlan) = entry.value.values();
    (0..3).for_each(|word| hardware.write(FDIRSIPV6(word), 0));
    hardware.write(FDIRIPSA, from);
    hardware.write(FDIRIPDA, to);
    hardware.write(FDIRPORT, ports);
    hardware.write(FDIRVLAN, vlan);
    hardware.write(FDIRHASH, u32::from(n) << FDIRHASH::INDEX_SHIFT | entry.value.bucket());
    let action = match entry.action {
        Action::Mark(mark) => {
            hardware.set_mark(n, Some(mark));
            0
        }
        action => {
            let drop = if action == Action::Drop { FDIRCMD::DROP } else { 0 };
            FDIRCMD::QUEUE_EN | drop | queue(action) << FDIRCMD::RX_QUEUE_SHIFT
        }
    };
    let kind = entry.value.layer_4() << FDIRCMD::L4TYPE_SHIFT;
    let command = FDIRCMD::CMD_ADD | FDIRCMD::FILTER_UPDATE | FDIRCMD::LAST;
    hardware.write(FDIRCMD, command | kind | action);
    hardware.wait_clear(FDIRCMD, FDIRCMD::CMD_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of DPDK's `ixgbe_atr_compute_perfect_hash_82599` (version 22.11).
    #[test]
    fn a_filter_is_in_the_bucket_of_other_drivers() {
        for (protocol, vlan, from, to, from_port, to_port, bucket) in [
            (Some(17), 0, 0x0A00_0001, 0x0A00_0002, 1000, 2000, 0x0710),
            (Some(6), 0, 0xC0A8_0105, 0x0808_0808, 54321, 443, 0x0D79),
            (None, 77, 0x0A00_0000, 0, 0, 0, 0x048E),
            (Some(17), 0, 0, 0, 0, 4321, 0x0B0D),
            (Some(132), 4095, 0xFFFF_FFFF, 1, 1, 65535, 0x194B),
            (Some(17), 0, 0, 0, 1, 0, 0x0E51),
            (Some(17), 1, 0, 0, 0, 0, 0x0B78),
        ] {
            let fields = Fields {
                protocol,
                from: Some((from, u32::MAX)),
                to: Some((to, u32::MAX)),
                from_port: Some(from_port),
                to_port: Some(to_port),
                vlan: Some(vlan),
            };
            assert_eq!(fields.bucket(), bucket, "{fields:?}");
        }
    }

    fn add(tables: &mut Tables, rule: u32, text: &str, action: Action) -> std::result::Result<(), Refused> {
        let filter: linerate_core::filter::Filter = text.parse().unwrap();
        filter.any().iter().try_for_each(|one| tables.add(RuleId(rule), one, action))
    }

    #[test]
    fn a_part_that_the_card_lacks_is_named() {
        for (text, action, why) in [
            ("udp:53", Action::Drop, "add ip"),
            ("ip6+udp:53", Action::Drop, "IPv6"),
            ("to:fd00::1", Action::Queue(0), "IPv6"),
            ("all", Action::Drop, "add ip"),
            ("ip", Action::Drop, "all packets of IPv4"),
            ("icmp", Action::Queue(0), "protocol 1"),
            ("ip+udp:1-2", Action::Queue(0), "port ranges"),
            ("ip+udp+inner", Action::Queue(0), "inner"),
            ("ip+udp:53", Action::Kernel, "the action kernel"),
            ("arp", Action::Drop, "the action drop"),
            ("arp+vlan:7", Action::Queue(0), "in addition to an ethertype"),
            ("vlan:7", Action::Queue(0), "add ip"),
            ("ip+vlan:0", Action::Drop, "vlan:0"),
            ("type:0x8100", Action::Queue(0), "type:0x8100"),
            ("host:10.0.0.1", Action::Drop, "other fields or prefix lengths than those of rule 0"),
        ] {
            match add(&mut Tables::default(), 0, text, action) {
                Err(Refused::Part(part)) => assert!(part.contains(why), "{text} {action}: {part}"),
                other => panic!("{text} {action}: {other:?}"),
            }
        }
    }

    #[test]
    fn full_tables_and_equal_rules_are_refused() {
        let mut tables = Tables::default();
        for n in 0..7 {
            add(&mut tables, n, &format!("type:{}", 0x8000 + n), Action::Queue(0)).unwrap();
        }
        let full = Refused::Full { table: "ethertype filters", entries: 7 };
        assert_eq!(add(&mut tables, 8, "arp", Action::Queue(0)), Err(full));
        assert_eq!(add(&mut tables, 8, "type:0x8003", Action::Queue(1)), Err(Refused::Same(RuleId(3))));
        // 128 five-tuple filters; then the flow director.
        for n in 0..128 + 2047 {
            add(&mut tables, 10 + n, &format!("ip+udp:{n}"), Action::Queue(0)).unwrap();
        }
        assert_eq!((tables.tuples.len(), tables.director.len()), (128, 2047));
        let full = Refused::Full { table: "flow director filters", entries: 2047 };
        assert_eq!(add(&mut tables, 5000, "ip+udp:9999", Action::Queue(0)), Err(full));
        assert_eq!(add(&mut tables, 5000, "ip+udp:1000", Action::Drop), Err(Refused::Same(RuleId(1010))));
        tables.remove(RuleId(1010));
        add(&mut tables, 5000, "ip+udp:9999", Action::Drop).unwrap();
        assert_eq!(tables.director.iter().find(|(_, entry)| entry.action == Action::Drop).unwrap().0, &(1000 - 128));
    }

    #[test]
    fn the_first_rule_decides_or_the_later_one_is_refused() {
        let mut tables = Tables::default();
        for (n, port) in (1..=7).enumerate() {
            // Each overlaps all earlier ones.
            add(&mut tables, port, &format!("from:10.0.0.{n},to:10.0.0.{n}"), Action::Queue(n as u16)).unwrap();
        }
        let priorities = |tables: &Tables| tables.tuples.values().map(|entry| entry.value.priority).collect::<Vec<_>>();
        assert_eq!(priorities(&tables), [7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]);
        assert!(matches!(add(&mut tables.clone(), 8, "from:10.0.0.9", Action::Queue(9)), Err(Refused::Part(_))));
        add(&mut tables.clone(), 8, "from:10.0.0.6", Action::Queue(6)).unwrap();
        let mut tables = Tables::default();
        add(&mut tables, 1, "from:10.0.0.0/8", Action::Drop).unwrap();
        let later = add(&mut tables, 2, "ip+udp:53", Action::Queue(0));
        assert!(matches!(later, Err(Refused::Part(part)) if part.contains("overlaps rule 1")));
        add(&mut tables, 2, "from:11.0.0.1", Action::Queue(0)).unwrap();
    }
}
