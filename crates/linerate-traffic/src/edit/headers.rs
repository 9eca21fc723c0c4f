//! Finds the headers of a frame.

use linerate_core::filter::{ARP, ExtensionHeaders, IPV4, IPV6, Layer, MOST_LAYERS};

use crate::template::Protocol;

// IP protocol numbers.
pub(super) const HOP_BY_HOP: u8 = 0;
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const DCCP: u8 = 33;
pub(super) const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const GRE: u8 = 47;
pub(super) const ICMP6: u8 = 58;
pub(super) const SCTP: u8 = 132;
pub(super) const UDP_LITE: u8 = 136;

/// The most VLAN tags and MPLS labels that are parsed.
const MOST_TAGS: usize = 4;
const MOST_LABELS: usize = 8;

/// The headers of a frame, or of a packet inside a tunnel, as far as they are known and captured.
#[derive(Default)]
pub(super) struct Headers {
    /// The Ethernet header.
    pub ethernet: Option<usize>,
    /// Kinds and offsets, from the outermost to the innermost, without an embedded packet's headers.
    pub layers: Vec<(Protocol, usize)>,
    /// The offset of the header after Ethernet and its tags.
    pub network: usize,
    pub arp: Option<usize>,
    pub packet: Option<IpPacket>,
    /// The packet that an ICMP error contains.
    pub embedded: Option<IpPacket>,
    /// The frame ends within its headers.
    pub is_cut: bool,
}

/// An IP packet.
#[derive(Clone, Debug)]
pub(super) struct IpPacket {
    pub at: usize,
    pub is_v6: bool,
    /// The length of the packet according to its header; 0 if the header has none.
    pub len: usize,
    /// The end of the IPv4 header, or of those IPv6 headers that each fragment has, and the offset of the number that
    /// identifies what follows them.
    pub fixed_end: usize,
    pub next_at: usize,
    /// The IPv6 fragment header.
    pub fragment_at: Option<usize>,
    pub is_fragment: bool,
    /// The addresses of an IPv6 routing header.
    pub route: std::ops::Range<usize>,
    /// The address to which the checksum of TCP, UDP and ICMPv6 refers.
    pub final_destination: usize,
    /// The protocol and the offset of its header; `None` for later fragments, and if the headers are cut or unknown.
    pub transport: Option<(u8, usize)>,
}

impl Headers {
    /// Finds the headers in the captured bytes of a frame of `original_len` bytes.
    pub fn of(frame: &[u8], original_len: usize) -> Headers {
        Headers::at(frame, original_len, Layer::Frame(0))
    }

    /// Finds the headers of a frame, and those of the packets inside its tunnels, outermost first.
    pub fn with_tunnels(frame: &[u8], original_len: usize) -> Vec<Headers> {
        let mut all = vec![Headers::of(frame, original_len)];
        while all.len() < MOST_LAYERS
            && let Some(inside) = all.last().and_then(|outer| outer.inside(frame))
        {
            all.push(Headers::at(frame, original_len, inside));
        }
        all
    }

    /// Returns the layer inside a tunnel.
    fn inside(&self, frame: &[u8]) -> Option<Layer> {
        let packet = self.packet.as_ref().filter(|packet| !packet.is_fragment)?;
        let (protocol, at) = packet.transport?;
        Layer::inside(frame, protocol, at)
    }

    /// Finds the headers from a layer on.
    fn at(frame: &[u8], original_len: usize, layer: Layer) -> Headers {
        let mut headers = Headers::default();
        let found = match layer {
            Layer::Frame(at) => headers.find(frame, at),
            Layer::Packet(ethertype, at) => {
                headers.network = at;
                headers.find_network(frame, ethertype, at)
            }
            Layer::Cut => None,
        };
        headers.is_cut = found.is_none();
        if let Some(embedded) = &headers.embedded {
            // Its checksum changes, and so does that of the message. Many errors contain only 8 bytes of it.
            let end = embedded.transport.map_or(embedded.fixed_end, |(protocol, at)| match protocol {
                TCP => at + 18,
                _ => at + 8,
            });
            headers.is_cut |= frame.len() < end.min(original_len);
        }
        headers
    }

    /// Adds all headers from an Ethernet header on; `None` if the frame ends before they do.
    fn find(&mut self, frame: &[u8], start: usize) -> Option<()> {
        let mut ethertype = word(frame, start + 12)?;
        self.layers.push((Protocol::Eth, start));
        self.ethernet = Some(start);
        self.network = start + 14;
        for _ in 0..MOST_TAGS {
            let Some(tag) = tag_of(ethertype) else { break };
            ethertype = word(frame, self.network + 2)?;
            self.layers.push((tag, self.network));
            self.network += 4;
        }
        let mut at = self.network;
        if matches!(ethertype, 0x8847 | 0x8848) {
            ethertype = self.find_labels(frame, &mut at)?;
        }
        self.find_network(frame, ethertype, at)
    }

    /// Adds the headers of ARP or IP.
    fn find_network(&mut self, frame: &[u8], ethertype: u16, at: usize) -> Option<()> {
        match ethertype {
            ARP => {
                frame.get(at..at + 28)?;
                // Ethernet and IPv4, with addresses of 6 and 4 bytes.
                if frame[at..at + 6] == [0, 1, 8, 0, 6, 4] {
                    self.layers.push((Protocol::Arp, at));
                    self.arp = Some(at);
                }
                Some(())
            }
            IPV4 | IPV6 => self.find_packet(frame, at, ethertype == IPV6),
            _ => Some(()),
        }
    }

    /// Skips MPLS labels; returns the ethertype that the next header seems to have (RFC 4928).
    fn find_labels(&mut self, frame: &[u8], at: &mut usize) -> Option<u16> {
        for _ in 0..MOST_LABELS {
            frame.get(*at..*at + 4)?;
            self.layers.push((Protocol::Mpls, *at));
            *at += 4;
            if frame[*at - 2] & 1 == 1 {
                return match frame.get(*at)? >> 4 {
                    4 => Some(IPV4),
                    6 => Some(IPV6),
                    _ => Some(0),
                };
            }
        }
        Some(0)
    }

    fn find_packet(&mut self, frame: &[u8], at: usize, is_v6: bool) -> Option<()> {
        let packet = IpPacket::at(frame, at, is_v6)?;
        self.layers.push((if is_v6 { Protocol::Ip6 } else { Protocol::Ip }, at));
        let is_complete = packet.is_fragment || frame.len() >= at + packet.len;
        let transport = packet.transport;
        self.packet = Some(packet);
        let Some((protocol, at)) = transport else { return is_complete.then_some(()) };
        let (layer, len) = match protocol {
            ICMP if !is_v6 => (Protocol::Icmp, 8),
            ICMP6 if is_v6 => (Protocol::Icmp6, 8),
            TCP => (Protocol::Tcp, 20),
            UDP => (Protocol::Udp, 8),
            _ => return Some(()),
        };
        self.layers.push((layer, at));
        let header = frame.get(at..at + len)?;
        let is_error = match layer {
            Protocol::Icmp => matches!(header[0], 3 | 4 | 5 | 11 | 12),
            Protocol::Icmp6 => matches!(header[0], 1..=4),
            _ => false,
        };
        if is_error {
            self.embedded = Some(IpPacket::at(frame, at + 8, is_v6)?);
        }
        Some(())
    }
}

impl IpPacket {
    /// Parses an IP packet; `None` if its header is cut or is not of this version.
    fn at(frame: &[u8], at: usize, is_v6: bool) -> Option<IpPacket> {
        match is_v6 {
            false => IpPacket::at_v4(frame, at),
            true => IpPacket::at_v6(frame, at),
        }
    }

    fn at_v4(frame: &[u8], at: usize) -> Option<IpPacket> {
        let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
        let header_len = usize::from(header[0] & 0xF) * 4;
        if header[0] >> 4 != 4 || header_len < 20 {
            return None;
        }
        let (fragment, end) = (word(header, 6)?, at + header_len);
        let mut packet = IpPacket {
            at,
            is_v6: false,
            len: word(header, 2)?.into(),
            fixed_end: end,
            next_at: at + 9,
            fragment_at: None,
            is_fragment: fragment & 0x3FFF != 0,
            route: 0..0,
            final_destination: at + 16,
            transport: None,
        };
        if fragment & 0x1FFF == 0 {
            packet.transport = packet.skip_extensions(frame, header[9], end);
        }
        Some(packet)
    }

    fn at_v6(frame: &[u8], at: usize) -> Option<IpPacket> {
        let header: &[u8; 40] = frame.get(at..)?.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let payload = usize::from(word(header, 4)?);
        let mut packet = IpPacket {
            at,
            is_v6: true,
            len: if payload > 0 { 40 + payload } else { 0 },
            fixed_end: at + 40,
            next_at: at + 6,
            fragment_at: None,
            is_fragment: false,
            route: 0..0,
            final_destination: at + 24,
            transport: None,
        };
        packet.transport = packet.skip_extensions(frame, header[6], at + 40);
        Some(packet)
    }

    /// Skips extension headers.
    fn skip_extensions(&mut self, frame: &[u8], protocol: u8, at: usize) -> Option<(u8, usize)> {
        let mut walk = ExtensionHeaders::new(frame, protocol, at);
        for header in &mut walk {
            let bytes = frame.get(header.at..header.at + header.len)?;
            if !self.is_v6 {
                continue;
            }
            match header.protocol {
                // The first fragment header only: the others are part of what is fragmented.
                FRAGMENT => {
                    self.fragment_at.get_or_insert(header.at);
                    self.is_fragment |= header.is_fragment();
                }
                ROUTING => self.add_route(bytes, header.at),
                _ => {}
            }
            if matches!(header.protocol, HOP_BY_HOP | ROUTING) && self.fragment_at.is_none() {
                (self.fixed_end, self.next_at) = (header.at + header.len, header.at);
            }
        }
        walk.transport()
    }

    /// Adds the addresses of a routing header: of type 0 (RFC 2460), 2 (RFC 6275) and 4 (RFC 8754).
    fn add_route(&mut self, header: &[u8], at: usize) {
        let (count, is_segments) = match header[2] {
            0 | 2 => (usize::from(header[1]) / 2, false),
            4 => (usize::from(header[4]) + 1, true),
            _ => return,
        };
        if count == 0 || 8 + count * 16 > header.len() {
            return;
        }
        self.route = at + 8..at + 8 + count * 16;
        if header[3] > 0 {
            // Segments are in reverse order.
            self.final_destination = if is_segments { self.route.start } else { self.route.end - 16 };
        }
    }

    /// Returns the offsets of the addresses, and their length.
    pub fn addresses(&self) -> (impl Iterator<Item = usize> + use<>, usize) {
        let (first, len) = if self.is_v6 { (self.at + 8, 16) } else { (self.at + 12, 4) };
        ([first, first + len].into_iter().chain(self.route.clone().step_by(16)), len)
    }
}

/// Returns the kind of a VLAN tag.
fn tag_of(ethertype: u16) -> Option<Protocol> {
    match ethertype {
        0x8100 | 0x9100 => Some(Protocol::Vlan),
        0x88A8 => Some(Protocol::Qinq),
        _ => None,
    }
}

/// Returns 16 bits in network byte order.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
