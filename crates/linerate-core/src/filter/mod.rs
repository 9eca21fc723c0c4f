//! Packet filters: a small language that selects the flows that a port receives, and the packets to forward.
//!
//! ```text
//! udp:4321                        UDP to port 4321
//! tcp:80,tcp:443,icmp             alternatives, separated by commas
//! udp:5000-5999+from:10.0.0.0/8   conditions that must all match, joined by a plus
//! ```
//!
//! | part | matches |
//! |---|---|
//! | `arp`, `ip`, `ip6` | the ethertype; `type:0x88f7` any other |
//! | `icmp`, `icmp6`, `tcp`, `udp`, `sctp` | the IP protocol; `proto:47` any other |
//! | `tcp:80`, `udp:5000-5999`, `sctp:7` | also the destination port |
//! | `from-port:53`, `to-port:1024-65535`, `port:53` | ports of TCP, UDP or SCTP; `port:` matches either end |
//! | `from:10.0.0.0/8`, `to:fd00::1`, `host:10.1.2.3` | IPv4 or IPv6 addresses; `host:` matches either end |
//! | `vlan:77` | the VLAN ID |
//! | `all` | everything |
//!
//! One VLAN tag is skipped; IPv6 extension headers are not. Fragments other than the first have no ports.
//!
//! [`FlowKey`] hashes frames by their flows.

mod flow;
mod parse;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

pub use flow::FlowKey;

/// A filter: matches packets that match at least one of several [`Match`]es.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::filter::Filter;
///
/// let filter: Filter = "arp,udp:5000-5999".parse()?;
/// let mut arp = [0; 60];
/// arp[12..14].copy_from_slice(&[0x08, 0x06]);
/// assert!(filter.matches(&arp) && !filter.matches(&[0; 60]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: String,
    any: Vec<Match>,
}

/// Conditions that a packet must all meet; `None` is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The ethertype, after the addresses or the VLAN tag.
    pub ethertype: Option<u16>,
    /// The VLAN ID, 12 bits.
    pub vlan: Option<u16>,
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// The source address.
    pub from: Option<Prefix>,
    /// The destination address.
    pub to: Option<Prefix>,
    /// The source port.
    pub from_port: Option<RangeInclusive<u16>>,
    /// The destination port.
    pub to_port: Option<RangeInclusive<u16>>,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The first address of the prefix.
    pub address: IpAddr,
    /// The length of the prefix in bits.
    pub bits: u8,
}

/// The ethertype of IP version 4.
pub const IPV4: u16 = 0x0800;
/// The ethertype of IP version 6.
pub const IPV6: u16 = 0x86DD;
/// The ethertype of ARP.
pub const ARP: u16 = 0x0806;
/// The ethertypes of VLAN tags: customer and provider.
pub const TAGS: [u16; 2] = [0x8100, 0x88A8];

/// The IP protocols with ports: TCP, UDP and SCTP.
pub const WITH_PORTS: [u8; 3] = [6, 17, 132];

impl Filter {
    /// Returns the matches. A packet must match at least one.
    pub fn any(&self) -> &[Match] {
        &self.any
    }

    /// Returns whether each match of this filter is contained in a match of `other`. Then `other` matches all packets
    /// that this filter matches.
    ///
    /// ```
    /// # use linerate::filter::Filter;
    /// let filter = |text: &str| text.parse::<Filter>().unwrap();
    /// assert!(filter("udp:53,icmp").is_within(&filter("ip,udp:1-100")));
    /// assert!(!filter("udp").is_within(&filter("udp:53")));
    /// ```
    pub fn is_within(&self, other: &Filter) -> bool {
        self.any.iter().all(|one| other.any.iter().any(|other| one.is_within(other)))
    }

    /// Returns whether a frame matches.
    pub fn matches(&self, frame: &[u8]) -> bool {
        let fields = Fields::in_frame(frame);
        self.any.iter().any(|one| one.matches(&fields))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The fields of a frame that can be matched.
#[derive(Default)]
struct Fields {
    ethertype: Option<u16>,
    vlan: Option<u16>,
    protocol: Option<u8>,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
}

impl Fields {
    fn in_frame(frame: &[u8]) -> Fields {
        let mut fields = Fields::default();
        // A truncated frame leaves the remaining fields empty.
        let _ = fields.parse(frame);
        fields
    }

    fn parse(&mut self, frame: &[u8]) -> Option<()> {
        let mut network = 14;
        let mut ethertype = word(frame, 12)?;
        if TAGS.contains(&ethertype) {
            ethertype = word(frame, 16)?;
            self.vlan = Some(word(frame, 14)? & 0xFFF);
            network = 18;
        }
        self.ethertype = Some(ethertype);
        let (protocol, transport) = match ethertype {
            IPV4 => {
                let header: &[u8; 20] = frame.get(network..)?.first_chunk()?;
                self.addresses = Some((address(&header[12..16])?, address(&header[16..20])?));
                self.protocol = Some(header[9]);
                let length = usize::from(header[0] & 0xF) * 4;
                let is_later_fragment = word(header, 6)? & 0x1FFF != 0;
                if length < 20 || is_later_fragment {
                    return None;
                }
                (header[9], network + length)
            }
            IPV6 => {
                let header: &[u8; 40] = frame.get(network..)?.first_chunk()?;
                self.addresses = Some((address(&header[8..24])?, address(&header[24..40])?));
                self.protocol = Some(header[6]);
                (header[6], network + 40)
            }
            _ => return None,
        };
        if WITH_PORTS.contains(&protocol) {
            self.ports = Some((word(frame, transport)?, word(frame, transport + 2)?));
        }
        Some(())
    }
}

/// Returns 16 bits in network byte order.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        _ => bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
    }
}

impl Match {
    fn is_within(&self, other: &Match) -> bool {
        /// No condition contains every condition; otherwise `within` decides.
        fn part<T>(ours: &Option<T>, theirs: &Option<T>, within: impl Fn(&T, &T) -> bool) -> bool {
            theirs.as_ref().is_none_or(|theirs| ours.as_ref().is_some_and(|ours| within(ours, theirs)))
        }
        let prefix = |ours: &Prefix, theirs: &Prefix| theirs.bits <= ours.bits && theirs.contains(ours.address);
        let ports = |ours: &RangeInclusive<u16>, theirs: &RangeInclusive<u16>| {
            theirs.contains(ours.start()) && theirs.contains(ours.end())
        };
        part(&self.ethertype, &other.ethertype, u16::eq)
            && part(&self.vlan, &other.vlan, u16::eq)
            && part(&self.protocol, &other.protocol, u8::eq)
            && part(&self.from, &other.from, prefix)
            && part(&self.to, &other.to, prefix)
            && part(&self.from_port, &other.from_port, ports)
            && part(&self.to_port, &other.to_port, ports)
    }

    fn matches(&self, fields: &Fields) -> bool {
        let fits = |prefix: &Option<Prefix>, address: Option<IpAddr>| {
            prefix.is_none_or(|prefix| address.is_some_and(|address| prefix.contains(address)))
        };
        let within = |ports: &Option<RangeInclusive<u16>>, port: Option<u16>| {
            ports.as_ref().is_none_or(|ports| port.is_some_and(|port| ports.contains(&port)))
        };
        let same = |wanted: Option<u16>, there: Option<u16>| wanted.is_none() || wanted == there;
        same(self.ethertype, fields.ethertype)
            && same(self.vlan, fields.vlan)
            && (self.protocol.is_none() || self.protocol == fields.protocol)
            && fits(&self.from, fields.addresses.map(|(from, _)| from))
            && fits(&self.to, fields.addresses.map(|(_, to)| to))
            && within(&self.from_port, fields.ports.map(|(from, _)| from))
            && within(&self.to_port, fields.ports.map(|(_, to)| to))
    }
}

impl Prefix {
    /// Returns whether the prefix contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        // A prefix with more bits than the address compares all bits.
        let same = |a: u128, b: u128, width: u32| {
            (a ^ b).checked_shr(width.saturating_sub(self.bits.into())).unwrap_or(0) == 0
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => same(ours.to_bits().into(), theirs.to_bits().into(), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_within_those_that_match_all_of_its_packets() {
        let filter = |text: &str| text.parse::<Filter>().unwrap();
        for (ours, theirs, is_within) in [
            ("udp", "udp", true),
            ("udp:1-100", "udp", true),
            ("udp", "udp:1-100", false),
            ("udp:50-60", "udp:1-100", true),
            ("udp:50-101", "udp:1-100", false),
            ("udp:0-60", "udp:1-100", false),
            ("udp+port:53", "from-port:53,to-port:1-99", true),
            ("udp,tcp", "udp", false),
            ("udp,tcp", "all", true),
            ("all", "udp", false),
            ("from:10.1.0.0/16", "from:10.0.0.0/8", true),
            ("from:10.0.0.0/8", "from:10.1.0.0/16", false),
            ("from:10.0.0.0/8", "to:10.0.0.0/8", false),
            ("from:10.0.0.0/8", "from:11.0.0.0/8", false),
            ("from:fd00::1", "ip6", true),
            ("icmp", "ip", true),
            ("vlan:7+arp", "arp", true),
            ("arp", "vlan:7+arp", false),
            ("udp", "tcp", false),
        ] {
            assert_eq!(filter(ours).is_within(&filter(theirs)), is_within, "{ours} in {theirs}");
        }
    }
}

#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    use super::{Fields, Filter};

    /// Input: a filter's text, a zero byte, a frame. Checks that parsing and matching terminate, and that the displayed
    /// filter is equivalent.
    pub fn filter(data: &[u8]) -> Option<Filter> {
        let at = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
        let (text, frame) = (&data[..at], data.get(at + 1..).unwrap_or_default());
        let _ = Fields::in_frame(frame);
        let _ = super::FlowKey::Inner.hash(frame);
        let Ok(Ok(filter)) = std::str::from_utf8(text).map(str::parse::<Filter>) else { return None };
        assert!(!filter.any().is_empty());
        let is_meant = filter.matches(frame);
        let again: Filter = filter.to_string().parse().expect("it was parsed before");
        assert_eq!((again.any(), again.matches(frame)), (filter.any(), is_meant));
        // The filter matches if any alternative matches.
        let each = text.split(|&byte| byte == b',').map(|one| String::from_utf8_lossy(one).parse::<Filter>().unwrap());
        assert_eq!(each.map(|one| one.matches(frame)).filter(|&is| is).count() > 0, is_meant);
        Some(filter)
    }
}
