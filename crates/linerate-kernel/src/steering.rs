//! Steering by the card: a flow's packets arrive in a chosen queue (ethtool(8) `-N`, "ntuple" rules).
//!
//! The card keeps its rules when a process ends. So each process records its rules in a locked file under [`RECORDS`].
//! The kernel unlocks the file when the process ends for any reason. The next process that opens a port removes the
//! rules of unlocked files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linerate_core::error::{Error, Result};
use linerate_core::filter::{Filter, IPV4, IPV6, Match, Prefix};
use rustix::fs::{FlockOperation, flock};

use super::capabilities;
use super::interface::Interface;

/// The directory of the processes' records.
const RECORDS: &str = "/run/linerate/steering";

// From linux/ethtool.h.
const GET_RULE: u32 = 0x2F;
const GET_LOCATIONS: u32 = 0x30;
const DELETE_RULE: u32 = 0x31;
const INSERT_RULE: u32 = 0x32;
const TCP_V4: u32 = 0x01;
const UDP_V4: u32 = 0x02;
const SCTP_V4: u32 = 0x03;
const TCP_V6: u32 = 0x05;
const UDP_V6: u32 = 0x06;
const SCTP_V6: u32 = 0x07;
const ANY_V4: u32 = 0x0D;
/// A flag of the flow type: the extension is used.
const EXTENDED: u32 = 0x8000_0000;
/// The offset of the VLAN tag in an extension.
const TAG: usize = 10;
/// The offset in [`ANY_V4`] of the IP version.
const VERSION: usize = 13;
const IS_V4: u8 = 1;

/// The maximum number of rules of a card.
const MOST: usize = 8192;

/// `struct ethtool_rx_flow_spec`: a packet's fields, masks of the bits that are compared, and the queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule {
    kind: u32,
    values: [u8; 52],
    extension: [u8; 20],
    masks: [u8; 52],
    extension_masks: [u8; 20],
    queue: u64,
    location: u32,
}

/// `struct ethtool_rxnfc`, with room for the locations of all rules.
#[repr(C)]
struct Request {
    command: u32,
    kind: u32,
    /// The card's capacity of rules.
    data: u64,
    rule: Rule,
    count: u32,
    locations: [u32; MOST],
}

impl Rule {
    const NONE: Rule = Rule {
        kind: 0,
        values: [0; 52],
        extension: [0; 20],
        masks: [0; 52],
        extension_masks: [0; 20],
        queue: 0,
        location: 0,
    };

    /// Returns the rules of a match: one each for IPv4 and IPv6 if it includes both; none if no rule can express it.
    fn of(one: &Match) -> Vec<Rule> {
        let family =
            |address: &Option<Prefix>| address.map(|prefix| if prefix.address.is_ipv4() { IPV4 } else { IPV6 });
        let wanted = [one.ethertype, family(&one.from), family(&one.to)];
        [IPV4, IPV6]
            .into_iter()
            .filter(|family| wanted.iter().flatten().all(|wanted| wanted == family))
            .filter_map(|family| Rule::over(one, family == IPV4))
            .collect()
    }

    fn over(one: &Match, is_v4: bool) -> Option<Rule> {
        if one.inner {
            return None;
        }
        let kind = match (one.protocol, is_v4) {
            (Some(6), true) => TCP_V4,
            (Some(17), true) => UDP_V4,
            (Some(132), true) => SCTP_V4,
            (Some(6), false) => TCP_V6,
            (Some(17), false) => UDP_V6,
            (Some(132), false) => SCTP_V6,
            (None, true) if one.from_port.is_none() && one.to_port.is_none() => ANY_V4,
            _ => return None,
        };
        let mut rule = Rule { kind, ..Rule::NONE };
        // Both addresses, then both ports.
        let width = if is_v4 { 4 } else { 16 };
        rule.set_address(0, &one.from);
        rule.set_address(width, &one.to);
        rule.set_port(2 * width, &one.from_port)?;
        rule.set_port(2 * width + 2, &one.to_port)?;
        if kind == ANY_V4 {
            if one.from.is_none() && one.to.is_none() {
                return None;
            }
            rule.values[VERSION] = IS_V4;
        }
        if let Some(vlan) = one.vlan {
            rule.kind |= EXTENDED;
            rule.extension[TAG..TAG + 2].copy_from_slice(&vlan.to_be_bytes());
            rule.extension_masks[TAG..TAG + 2].copy_from_slice(&0x0FFFu16.to_be_bytes());
        }
        Some(rule)
    }

    fn set_address(&mut self, at: usize, prefix: &Option<Prefix>) {
        let Some(Prefix { address, bits }) = prefix else { return };
        let bytes = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        for (n, byte) in bytes.into_iter().enumerate() {
            let set = usize::from(*bits).saturating_sub(n * 8).min(8);
            let mask = !(0xFFu32 >> set) as u8;
            (self.values[at + n], self.masks[at + n]) = (byte & mask, mask);
        }
    }

    /// Returns `None` for a range: cards match single ports only.
    fn set_port(&mut self, at: usize, ports: &Option<RangeInclusive<u16>>) -> Option<()> {
        let Some(ports) = ports else { return Some(()) };
        if ports.start() != ports.end() {
            return None;
        }
        self.values[at..at + 2].copy_from_slice(&ports.start().to_be_bytes());
        self.masks[at..at + 2].fill(0xFF);
        Some(())
    }

    /// Returns whether the card's rule is this rule. Drivers may set more fields than they were given.
    fn is(&self, answer: &Rule) -> bool {
        let same = |ours: &[u8], masks: &[u8], theirs: &[u8]| {
            ours.iter().zip(masks).zip(theirs).all(|((ours, mask), theirs)| ours & mask == theirs & mask)
        };
        self.kind & !EXTENDED == answer.kind & !EXTENDED
            && self.queue == answer.queue
            && same(&self.values, &self.masks, &answer.values)
            && same(&self.extension, &self.extension_masks, &answer.extension)
    }

    /// Formats the rule for a record: location, queue, type, values and masks.
    fn record_line(&self) -> String {
        let parts = [&self.values[..], &self.masks, &self.extension, &self.extension_masks];
        let hex = parts.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        format!("rule={} {} {} {}", self.location, self.queue, self.kind, hex.join(" "))
    }

    fn from_record(text: &str) -> Option<Rule> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (location, queue, kind) = (number()? as u32, number()?, number()? as u32);
        let mut rule = Rule { location, queue, kind, ..Rule::NONE };
        let parts = [&mut rule.values[..], &mut rule.masks, &mut rule.extension, &mut rule.extension_masks];
        for part in parts {
            let word = words.next()?;
            for (n, byte) in part.iter_mut().enumerate() {
                *byte = u8::from_str_radix(word.get(2 * n..2 * n + 2)?, 16).ok()?;
            }
        }
        Some(rule)
    }
}

/// Calls ethtool's ioctl, and returns its answer.
fn call(interface: &Interface, command: u32, rule: Rule) -> io::Result<Box<Request>> {
    let count = if command == GET_LOCATIONS { MOST as u32 } else { 0 };
    let mut request = Box::new(Request { command, kind: 0, data: 0, rule, count, locations: [0; MOST] });
    interface.ethtool(&mut *request).map(|()| request)
}

/// Rules of a card, removed when this value is dropped.
pub struct Steering {
    interface: Interface,
    rules: Vec<Rule>,
    /// The number of rules that the flow needs.
    wanted: usize,
    record: Record,
}

impl Steering {
    /// Steers these flows to `queue` as far as rules can express them. With `all`, any rejected rule is an error.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): the card or the kernel rejected a rule; the error
    /// is that of the first rejected rule.
    pub fn steer(interface: &Interface, filter: &Filter, queue: u32, all: bool) -> Result<Steering> {
        let wanted: Vec<Vec<Rule>> = filter.any().iter().map(Rule::of).collect();
        // A match that no rule can express counts as one missing rule.
        let missing = wanted.iter().filter(|rules| rules.is_empty()).count();
        let wanted: Vec<Rule> = wanted.into_iter().flatten().collect();
        let refused = |what: &str, error: &io::Error| refused(interface, what, error);
        let places = call(interface, GET_LOCATIONS, Rule::NONE).map_err(|error| refused("list its rules", &error))?;
        let taken = &places.locations[..(places.count as usize).min(MOST)];
        // From the end, as ethtool does: the first locations have the highest priority on some cards.
        let mut free = (0..places.data.min(u64::from(u32::MAX)) as u32).rev().filter(|place| !taken.contains(place));

        let record =
            Record::new(interface).map_err(|error| refused(&format!("record its rules in {RECORDS}"), &error))?;
        let own = Interface::find(interface.name())?;
        let mut steering = Steering { interface: own, rules: Vec::new(), wanted: missing + wanted.len(), record };
        let mut first = (missing > 0).then(|| io::Error::from_raw_os_error(libc::EINVAL));
        for rule in wanted {
            let Some(location) = free.next() else {
                first = first.or(Some(io::Error::from_raw_os_error(libc::ENOSPC)));
                break;
            };
            let rule = Rule { queue: queue.into(), location, ..rule };
            // Recorded first: a process killed in between leaves a record without a rule, which is harmless.
            let done = steering.record.add(&rule).and_then(|()| call(interface, INSERT_RULE, rule).map(drop));
            match done {
                Ok(()) => steering.rules.push(rule),
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) if all || steering.rules.is_empty() => Err(refused("add a rule", &error)),
            _ => Ok(steering),
        }
    }

    /// Returns the number of rules in the card, and the number that the flow needs.
    pub fn rules(&self) -> (usize, usize) {
        (self.rules.len(), self.wanted)
    }
}

fn refused(interface: &Interface, what: &str, error: &io::Error) -> Error {
    let name = interface.name().to_string();
    let mend = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            format!("if the card can steer, sudo ethtool -K {name} ntuple on; or do without: steer=off")
        }
        Some(libc::EINVAL) => {
            "cards match exact ports, few match IPv6, and some have one mask for all rules: try ip+udp:4321, or steer=auto"
                .to_string()
        }
        _ => return interface.refused(what, capabilities::INTERFACE, error),
    };
    Error::interface(name, format!("the card cannot steer the flow: cannot {what}: {error}"), mend)
}

impl Drop for Steering {
    fn drop(&mut self) {
        delete_rules(&self.interface, &self.rules);
        self.record.remove();
    }
}

/// Deletes the rules that are still unchanged in the card.
fn delete_rules(interface: &Interface, rules: &[Rule]) {
    for rule in rules {
        let asked = call(interface, GET_RULE, Rule { location: rule.location, ..Rule::NONE });
        if asked.is_ok_and(|answer| rule.is(&answer.rule)) {
            // Harmless if the interface is gone, or another process deleted the rule.
            let _ = call(interface, DELETE_RULE, *rule);
        }
    }
}

/// A process's record of its rules, in a locked file.
struct Record {
    path: PathBuf,
    file: File,
}

/// Returns this process's network namespace.
fn namespace() -> io::Result<u64> {
    fs::metadata("/proc/thread-self/ns/net").map(|namespace| namespace.ino())
}

impl Record {
    fn new(interface: &Interface) -> io::Result<Record> {
        fs::create_dir_all(RECORDS)?;
        let process = std::process::id();
        for attempt in 0.. {
            let path = Path::new(RECORDS).join(format!("{process}-{}-{attempt}", interface.index()));
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // Another process may have mistaken the still unlocked file for an orphan and removed it; then a new one is
            // created.
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && path.exists() {
                let mut record = Record { path, file };
                let (name, index) = (interface.name(), interface.index());
                record.line(&format!("interface={name} {index} {} {process}", namespace()?))?;
                return Ok(record);
            }
        }
        unreachable!("there is no last attempt")
    }

    fn add(&mut self, rule: &Rule) -> io::Result<()> {
        self.line(&rule.record_line())
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(format!("{text}\n").as_bytes())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Steering rules in a card whose owning process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// The interface's name.
    pub interface: String,
    /// The process that added the rules.
    pub process: u32,
    /// The number of rules.
    pub rules: usize,
}

/// Returns rules that ended processes left behind on interfaces of this network namespace.
pub fn left_behind() -> Vec<LeftBehind> {
    orphans().into_iter().map(|orphan| orphan.left).collect()
}

/// Removes rules that ended processes left behind.
pub fn delete_orphaned_rules() {
    for orphan in orphans() {
        // The name may belong to another interface now.
        if let Ok(interface) = Interface::find(&orphan.left.interface)
            && interface.index() == orphan.index
        {
            delete_rules(&interface, &orphan.rules);
        }
        orphan.record.remove();
    }
}

/// A record that no process had locked; this process has locked it.
struct Orphan {
    left: LeftBehind,
    index: u32,
    rules: Vec<Rule>,
    record: Record,
}

fn orphans() -> Vec<Orphan> {
    let entries = fs::read_dir(RECORDS).into_iter().flatten().flatten();
    entries.filter_map(|entry| Orphan::read(entry.path())).collect()
}

impl Orphan {
    fn read(path: PathBuf) -> Option<Orphan> {
        let mut file = File::open(&path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let mut words = text.lines().next()?.strip_prefix("interface=")?.split(' ');
        let interface = words.next()?.to_string();
        let (index, there, process) = (words.next()?.parse().ok()?, words.next()?, words.next()?.parse().ok()?);
        if there.parse().ok() != namespace().ok() {
            return None;
        }
        let rules: Vec<Rule> = text.lines().filter_map(|line| Rule::from_record(line.strip_prefix("rule=")?)).collect();
        let left = LeftBehind { interface, process, rules: rules.len() };
        Some(Orphan { left, index, rules, record: Record { path, file } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<Rule> {
        let filter: Filter = text.parse().unwrap();
        filter.any().iter().flat_map(Rule::of).collect()
    }

    /// Offsets and sizes are those of linux/ethtool.h.
    #[test]
    fn the_kernel_has_the_same_structures() {
        assert_eq!(
            (size_of::<Rule>(), std::mem::offset_of!(Rule, queue), std::mem::offset_of!(Rule, masks)),
            (168, 152, 76)
        );
        assert_eq!(std::mem::offset_of!(Request, count), 184);
        assert_eq!(std::mem::offset_of!(Request, locations), 188);
    }

    #[test]
    fn a_match_becomes_rules() {
        let both = rules("udp:4321");
        assert_eq!(both.iter().map(|rule| rule.kind).collect::<Vec<_>>(), [UDP_V4, UDP_V6]);
        assert_eq!(
            (&both[0].values[..12], &both[0].masks[..12]),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0xE1][..], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF][..])
        );
        assert_eq!(both[1].values[34..36], [0x10, 0xE1]);
        let one = rules("tcp+from:10.1.2.3/12+vlan:77+from-port:80");
        assert_eq!(one.len(), 1);
        assert_eq!(
            (one[0].kind, &one[0].values[..10], &one[0].masks[..10]),
            (TCP_V4 | EXTENDED, &[10, 0, 0, 0, 0, 0, 0, 0, 0, 80][..], &[255, 240, 0, 0, 0, 0, 0, 0, 255, 255][..])
        );
        assert_eq!((&one[0].extension[10..12], &one[0].extension_masks[10..12]), (&[0, 77][..], &[0x0F, 0xFF][..]));
        assert_eq!(rules("to:10.0.0.1")[0].kind, ANY_V4);
        assert_eq!(rules("sctp+ip6")[0].kind, SCTP_V6);
        for nothing in ["arp", "all", "udp:1-2", "icmp", "ip", "to:fd00::1"] {
            assert!(rules(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn a_rule_is_recognised_from_its_record() {
        let rule = Rule { queue: 3, location: 2045, ..rules("udp:9+from:10.0.0.0/8+vlan:5")[0] };
        let record = rule.record_line();
        let mut again = Rule::from_record(record.strip_prefix("rule=").unwrap()).unwrap();
        assert!(again == rule && rule.is(&again));
        again.values[1] = 7;
        assert!(rule.is(&again), "a driver may set more fields than it was given");
        again.values[0] = 11;
        assert!(!rule.is(&again));
        for len in 0..record.len() {
            assert!(record.get(5..len).is_none_or(|part| Rule::from_record(part).is_none()));
        }
    }
}
