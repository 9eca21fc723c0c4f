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
//! | `vlan:77` | the VLAN ID of either tag |
//! | `inner` | the other conditions are about the packet inside tunnels: GRE, VXLAN, GTP-U or IP in IP |
//! | `all` | everything |
//!
//! Up to 2 VLAN tags and 16 extension headers are skipped: hop-by-hop and destination options, routing, fragment, and
//! authentication. `proto:` also matches the number of an extension header, such as `proto:44`. `inner` skips up to 4
//! tunnels.
//!
//! # Undecided packets
//!
//! A fragment other than the first has a protocol but no ports, and none of what is inside a tunnel. The same applies
//! to frames that are truncated or have more headers than are skipped. If the result depends on such a field, the
//! packet is undecided: [`Filter::decide`] returns `None`, and [`Filter::matches`] returns false.
//!
//! [`FlowKey`] hashes frames by their flows.

mod flow;
mod headers;
mod parse;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

pub use flow::FlowKey;
pub use headers::{ExtensionHeader, ExtensionHeaders, Layer, MOST_LAYERS};
use headers::{Packet, Tagged, UDP, extension_bit, word};

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
    has_inner: bool,
}

/// Conditions that a packet must all meet; `None` is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The conditions are about the packet inside tunnels.
    pub inner: bool,
    /// The ethertype, after the addresses or the VLAN tags.
    pub ethertype: Option<u16>,
    /// The VLAN ID of one of the tags, 12 bits.
    pub vlan: Option<u16>,
    /// The IP protocol: of an extension header, or after those.
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
/// The ethertypes of VLAN tags: customer, provider, and older equipment of providers.
pub const TAGS: [u16; 3] = [0x8100, 0x88A8, 0x9100];
/// The most VLAN tags that are skipped.
pub const MOST_TAGS: usize = 2;

/// The IP protocols that are extension headers: hop-by-hop options, routing, fragment, authentication, destination
/// options.
pub const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
/// The most extension headers that are skipped.
pub const MOST_EXTENSIONS: usize = 16;

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

    /// Returns whether a frame matches. Undecided frames do not match; see [`decide`](Filter::decide).
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.decide(frame) == Some(true)
    }

    /// Returns whether a frame matches; `None` if this depends on a field that the frame does not contain.
    ///
    /// Such fields are in another fragment, after too many headers, or cut off.
    ///
    /// ```
    /// # use linerate::filter::Filter;
    /// let filter: Filter = "udp:53".parse().unwrap();
    /// let mut fragment = [0; 60];
    /// fragment[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 9, 64, 17]); // the offset is 9 * 8 bytes
    /// assert_eq!(filter.decide(&fragment), None);
    /// fragment[23] = 6;                                                          // TCP
    /// assert_eq!(filter.decide(&fragment), Some(false));
    /// ```
    pub fn decide(&self, frame: &[u8]) -> Option<bool> {
        let outer = Fields::in_frame(frame);
        let inner = self.has_inner.then(|| Fields::inside(frame)).flatten();
        let any = |unknown| {
            let fields = |one: &Match| if one.inner { inner.as_ref() } else { Some(&outer) };
            self.any.iter().any(|one| fields(one).is_some_and(|fields| one.matches(fields, unknown)))
        };
        let is_complete = outer.is_complete && inner.as_ref().is_none_or(|inner| inner.is_complete);
        if any(false) {
            Some(true)
        } else if is_complete || !any(true) {
            Some(false)
        } else {
            None
        }
    }

    /// Returns whether a match is about packets inside tunnels.
    pub fn has_inner(&self) -> bool {
        self.has_inner
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The fields of a packet that can be matched.
#[derive(Default)]
struct Fields {
    ethertype: Option<u16>,
    vlans: [Option<u16>; MOST_TAGS],
    extensions: u8,
    protocol: Option<u8>,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
    /// Every field is known. Otherwise the fields after the last known are in another fragment, after more headers
    /// than are skipped, or cut off.
    is_complete: bool,
}

impl Fields {
    fn in_frame(frame: &[u8]) -> Fields {
        Fields::in_layer(frame, Layer::Frame(0)).0
    }

    /// Returns the fields of the packet inside the tunnels; `None` if there is no tunnel.
    fn inside(frame: &[u8]) -> Option<Fields> {
        let (mut fields, mut inside) = (None, Fields::in_layer(frame, Layer::Frame(0)).1);
        for _ in 1..MOST_LAYERS {
            let Some(layer) = inside else { return fields };
            let (inner, next) = Fields::in_layer(frame, layer);
            (fields, inside) = (Some(inner), next);
        }
        // The packet inside too many tunnels is unknown.
        if inside.is_some() { Some(Fields::default()) } else { fields }
    }

    /// Returns the fields of a layer, and the layer inside.
    fn in_layer(frame: &[u8], layer: Layer) -> (Fields, Option<Layer>) {
        let mut fields = Fields::default();
        // A truncated frame leaves the remaining fields empty.
        let inside = fields.parse(frame, layer);
        fields.is_complete = inside.is_some();
        let may_be_tunnel = fields.protocol.is_none_or(|protocol| protocol == UDP);
        (fields, inside.unwrap_or(may_be_tunnel.then_some(Layer::Cut)))
    }

    /// Returns the layer inside; `None` if not all fields are reached.
    fn parse(&mut self, frame: &[u8], layer: Layer) -> Option<Option<Layer>> {
        let (ethertype, at) = match layer {
            Layer::Cut => return None,
            Layer::Packet(ethertype, at) => (ethertype, at),
            Layer::Frame(at) => {
                let tagged = Tagged::at(frame, at);
                self.vlans = tagged.vlans;
                (tagged.ethertype?, tagged.next)
            }
        };
        self.ethertype = Some(ethertype);
        if ![IPV4, IPV6].contains(&ethertype) {
            return Some(None);
        }
        let packet = Packet::at(frame, ethertype, at)?;
        self.addresses = Some((packet.from, packet.to));
        (self.extensions, self.protocol) = (packet.extensions, packet.protocol);
        if WITH_PORTS.contains(&packet.protocol?) {
            let at = packet.transport?;
            self.ports = Some((word(frame, at)?, word(frame, at + 2)?));
        }
        Some(packet.inside(frame))
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
        if *other == Match::default() {
            return true;
        }
        self.inner == other.inner
            && part(&self.ethertype, &other.ethertype, u16::eq)
            && part(&self.vlan, &other.vlan, u16::eq)
            && part(&self.protocol, &other.protocol, u8::eq)
            && part(&self.from, &other.from, prefix)
            && part(&self.to, &other.to, prefix)
            && part(&self.from_port, &other.from_port, ports)
            && part(&self.to_port, &other.to_port, ports)
    }

    /// Returns whether the fields match; a condition on an unknown field is met if `unknown` is set.
    fn matches(&self, fields: &Fields, unknown: bool) -> bool {
        let missing = unknown && !fields.is_complete;
        // Whether there is a tunnel is unknown, too.
        if self.inner && fields.ethertype.is_none() && !unknown {
            return false;
        }
        let fits = |prefix: &Option<Prefix>, address: Option<IpAddr>| {
            prefix.is_none_or(|prefix| address.map_or(missing, |address| prefix.contains(address)))
        };
        let within = |ports: &Option<RangeInclusive<u16>>, port: Option<u16>| {
            ports.as_ref().is_none_or(|ports| port.map_or(missing, |port| ports.contains(&port)))
        };
        let tagged = |vlan: u16| fields.vlans.contains(&Some(vlan)) || missing && fields.ethertype.is_none();
        let protocol = |wanted: u8| {
            extension_bit(wanted).is_some_and(|bit| fields.extensions & bit != 0)
                || fields.protocol.map_or(missing, |protocol| protocol == wanted)
        };
        self.ethertype.is_none_or(|wanted| fields.ethertype.map_or(missing, |ethertype| ethertype == wanted))
            && self.vlan.is_none_or(tagged)
            && self.protocol.is_none_or(protocol)
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
            ("inner+udp:53", "inner+udp", true),
            ("inner+udp", "udp", false),
            ("udp", "inner+udp", false),
            ("inner+udp", "all", true),
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
