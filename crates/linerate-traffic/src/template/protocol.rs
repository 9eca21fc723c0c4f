//! The headers that a template can have: their bytes, their fields, and the numbers that identify the next layer.

use super::values::Notation;

/// A kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Eth,
    Vlan,
    Qinq,
    Mpls,
    Arp,
    Ip,
    Ip6,
    Udp,
    Tcp,
    Icmp,
    Icmp6,
    Gre,
    Vxlan,
    /// Incrementing bytes, as many as the frame's size leaves.
    Payload,
    /// Like a payload, with a sequence number that a [`Checker`](crate::Checker) reads.
    Stamp,
    /// Any bytes.
    Hex,
    /// Any text.
    Text,
}

/// A field of a header: its first bit, and its size in bits.
#[derive(Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub bit: usize,
    pub bits: u8,
    pub notation: Notation,
}

const fn field(name: &'static str, bit: usize, bits: u8) -> Field {
    Field { name, bit, bits, notation: Notation::Number }
}

const fn written(name: &'static str, bit: usize, bits: u8, notation: Notation) -> Field {
    Field { name, bit, bits, notation }
}

/// The EtherType of other payloads: the first for local experiments (IEEE 802).
const EXPERIMENTAL_TYPE: u16 = 0x88B5;
/// The protocol number of other payloads: the first for experiments (RFC 3692).
const EXPERIMENTAL_NUMBER: u8 = 253;

impl Protocol {
    pub const ALL: [Protocol; 17] = [
        Protocol::Eth,
        Protocol::Vlan,
        Protocol::Qinq,
        Protocol::Mpls,
        Protocol::Arp,
        Protocol::Ip,
        Protocol::Ip6,
        Protocol::Udp,
        Protocol::Tcp,
        Protocol::Icmp,
        Protocol::Icmp6,
        Protocol::Gre,
        Protocol::Vxlan,
        Protocol::Payload,
        Protocol::Stamp,
        Protocol::Hex,
        Protocol::Text,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Eth => "eth",
            Protocol::Vlan => "vlan",
            Protocol::Qinq => "qinq",
            Protocol::Mpls => "mpls",
            Protocol::Arp => "arp",
            Protocol::Ip => "ip",
            Protocol::Ip6 => "ip6",
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Icmp => "icmp",
            Protocol::Icmp6 => "icmp6",
            Protocol::Gre => "gre",
            Protocol::Vxlan => "vxlan",
            Protocol::Payload => "payload",
            Protocol::Stamp => "stamp",
            Protocol::Hex => "hex",
            Protocol::Text => "text",
        }
    }

    /// Returns the default header. Lengths, checksums, and the number of the next layer are 0.
    ///
    /// MAC addresses are locally administered; IP addresses are reserved for benchmarks (RFC 2544 and RFC 5180).
    pub fn header(self) -> &'static [u8] {
        match self {
            Protocol::Eth => &[2, 0x6C, 0x72, 0, 0, 2, 2, 0x6C, 0x72, 0, 0, 1, 0, 0],
            Protocol::Vlan => &[0, 1, 0, 0],
            Protocol::Qinq => &[0, 1, 0, 0],
            Protocol::Mpls => &[0, 1, 0, 64],
            // A request for 198.19.0.1.
            Protocol::Arp => {
                &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0x6C, 0x72, 0, 0, 1, 198, 18, 0, 1, 0, 0, 0, 0, 0, 0, 198, 19, 0, 1]
            }
            Protocol::Ip => &[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1],
            Protocol::Ip6 => &[
                0x60, 0, 0, 0, 0, 0, 0, 64, 0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20, 1, 0, 2, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 2,
            ],
            // From port 1024 to 9, "discard".
            Protocol::Udp => &[4, 0, 0, 9, 0, 0, 0, 0],
            // SYN, with a window of 8,192 bytes.
            Protocol::Tcp => &[4, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0],
            // Echo requests.
            Protocol::Icmp => &[8, 0, 0, 0, 0, 0, 0, 0],
            Protocol::Icmp6 => &[128, 0, 0, 0, 0, 0, 0, 0],
            // Checksum, key and sequence number are removed unless they are given.
            Protocol::Gre => &[0; 16],
            Protocol::Vxlan => &[8, 0, 0, 0, 0, 0, 1, 0],
            Protocol::Payload | Protocol::Stamp | Protocol::Hex | Protocol::Text => &[],
        }
    }

    /// Returns the header's fields.
    pub fn fields(self) -> &'static [Field] {
        use Notation::{Flags, Ip4, Ip6, Mac};
        const ETH: [Field; 3] = [written("dst", 0, 48, Mac), written("src", 48, 48, Mac), field("type", 96, 16)];
        const VLAN: [Field; 4] = [field("pcp", 0, 3), field("dei", 3, 1), field("id", 4, 12), field("type", 16, 16)];
        const MPLS: [Field; 4] =
            [field("label", 0, 20), field("tc", 20, 3), field("bottom", 23, 1), field("ttl", 24, 8)];
        const ARP: [Field; 5] = [
            field("op", 48, 16),
            written("sha", 64, 48, Mac),
            written("spa", 112, 32, Ip4),
            written("tha", 144, 48, Mac),
            written("tpa", 192, 32, Ip4),
        ];
        const IP: [Field; 13] = [
            field("tos", 8, 8),
            field("dscp", 8, 6),
            field("ecn", 14, 2),
            field("len", 16, 16),
            field("id", 32, 16),
            field("df", 49, 1),
            field("mf", 50, 1),
            field("offset", 51, 13),
            field("ttl", 64, 8),
            field("proto", 72, 8),
            field("checksum", 80, 16),
            written("src", 96, 32, Ip4),
            written("dst", 128, 32, Ip4),
        ];
        const IP6: [Field; 9] = [
            field("tc", 4, 8),
            field("dscp", 4, 6),
            field("ecn", 10, 2),
            field("flow", 12, 20),
            field("len", 32, 16),
            field("next", 48, 8),
            field("hop", 56, 8),
            written("src", 64, 128, Ip6),
            written("dst", 192, 128, Ip6),
        ];
        const UDP: [Field; 4] =
            [field("sport", 0, 16), field("dport", 16, 16), field("len", 32, 16), field("checksum", 48, 16)];
        const TCP: [Field; 8] = [
            field("sport", 0, 16),
            field("dport", 16, 16),
            field("seq", 32, 32),
            field("ack", 64, 32),
            written("flags", 104, 8, Flags),
            field("window", 112, 16),
            field("checksum", 128, 16),
            field("urgent", 144, 16),
        ];
        const ICMP: [Field; 5] = [
            field("type", 0, 8),
            field("code", 8, 8),
            field("checksum", 16, 16),
            field("id", 32, 16),
            field("seq", 48, 16),
        ];
        const GRE: [Field; 4] =
            [field("proto", 16, 16), field("checksum", 32, 16), field("key", 64, 32), field("seq", 96, 32)];
        const VXLAN: [Field; 1] = [field("vni", 32, 24)];
        match self {
            Protocol::Eth => &ETH,
            Protocol::Vlan | Protocol::Qinq => &VLAN,
            Protocol::Mpls => &MPLS,
            Protocol::Arp => &ARP,
            Protocol::Ip => &IP,
            Protocol::Ip6 => &IP6,
            Protocol::Udp => &UDP,
            Protocol::Tcp => &TCP,
            Protocol::Icmp | Protocol::Icmp6 => &ICMP,
            Protocol::Gre => &GRE,
            Protocol::Vxlan => &VXLAN,
            Protocol::Payload | Protocol::Stamp | Protocol::Hex | Protocol::Text => &[],
        }
    }

    /// Returns the name of the field that identifies the next layer.
    pub fn next_field(self) -> Option<&'static str> {
        match self {
            Protocol::Eth | Protocol::Vlan | Protocol::Qinq => Some("type"),
            Protocol::Ip | Protocol::Gre => Some("proto"),
            Protocol::Ip6 => Some("next"),
            Protocol::Udp => Some("dport"),
            _ => None,
        }
    }

    /// Returns the number that identifies the next layer, if the two fit together; 0 if this layer has no such field.
    /// `None` as `next` stands for the frame's end.
    pub fn number_of(self, next: Option<Protocol>) -> Option<u16> {
        let is_free = matches!(next, None | Some(Protocol::Payload | Protocol::Stamp | Protocol::Hex | Protocol::Text));
        match self {
            Protocol::Eth | Protocol::Vlan | Protocol::Qinq => match next {
                Some(Protocol::Vlan) => Some(0x8100),
                Some(Protocol::Qinq) => Some(0x88A8),
                Some(Protocol::Mpls) => Some(0x8847),
                Some(Protocol::Arp) => Some(0x0806),
                Some(Protocol::Ip) => Some(0x0800),
                Some(Protocol::Ip6) => Some(0x86DD),
                _ => is_free.then_some(EXPERIMENTAL_TYPE),
            },
            Protocol::Gre => match next {
                Some(Protocol::Eth) => Some(0x6558),
                Some(Protocol::Mpls) => Some(0x8847),
                Some(Protocol::Ip) => Some(0x0800),
                Some(Protocol::Ip6) => Some(0x86DD),
                _ => is_free.then_some(EXPERIMENTAL_TYPE),
            },
            Protocol::Ip | Protocol::Ip6 => match next {
                Some(Protocol::Icmp) if self == Protocol::Ip => Some(1),
                Some(Protocol::Ip) => Some(4),
                Some(Protocol::Tcp) => Some(6),
                Some(Protocol::Udp) => Some(17),
                Some(Protocol::Ip6) => Some(41),
                Some(Protocol::Gre) => Some(47),
                Some(Protocol::Icmp6) if self == Protocol::Ip6 => Some(58),
                _ => is_free.then_some(EXPERIMENTAL_NUMBER.into()),
            },
            Protocol::Udp => match next {
                Some(Protocol::Vxlan) => Some(4789),
                Some(Protocol::Mpls) => Some(6635),
                _ => is_free.then_some(9),
            },
            Protocol::Mpls => {
                let carried = matches!(next, Some(Protocol::Mpls | Protocol::Eth | Protocol::Ip | Protocol::Ip6));
                (is_free || carried).then_some(0)
            }
            Protocol::Vxlan => (is_free || next == Some(Protocol::Eth)).then_some(0),
            Protocol::Hex | Protocol::Text => Some(0),
            Protocol::Arp | Protocol::Tcp | Protocol::Icmp | Protocol::Icmp6 => is_free.then_some(0),
            Protocol::Payload | Protocol::Stamp => next.is_none().then_some(0),
        }
    }

    /// Returns whether the checksum covers the addresses of the preceding IP header (RFC 768, RFC 9293, RFC 4443).
    pub fn covers_addresses(self) -> bool {
        matches!(self, Protocol::Udp | Protocol::Tcp | Protocol::Icmp6)
    }
}
