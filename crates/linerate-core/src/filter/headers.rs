//! The headers of a frame, for filters and flow hashes: VLAN tags, IP, IPv6 extension headers, and tunnels.

use std::net::IpAddr;

use super::{EXTENSIONS, IPV4, IPV6, MOST_EXTENSIONS, MOST_TAGS, TAGS};

/// The most IP layers that are parsed: a packet in 4 tunnels.
pub const MOST_LAYERS: usize = 5;

/// IP protocol numbers.
const IPV4_INSIDE: u8 = 4;
pub(super) const UDP: u8 = 17;
const IPV6_INSIDE: u8 = 41;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const AUTHENTICATION: u8 = 51;

/// UDP ports of tunnels.
const VXLAN: u16 = 4789;
const GTP_U: u16 = 2152;
/// The GRE protocol type of Ethernet frames.
const TRANSPARENT_ETHERNET: u16 = 0x6558;

/// The start of a layer of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// An Ethernet header at this offset.
    Frame(usize),
    /// A header of this ethertype at this offset.
    Packet(u16, usize),
    /// A layer that the frame does not contain: its tunnel's header is truncated, or in another fragment.
    Cut,
}

/// The tags and the ethertype of an Ethernet header.
pub(super) struct Tagged {
    /// The VLAN IDs of the tags, outermost first.
    pub vlans: [Option<u16>; MOST_TAGS],
    /// The ethertype after the tags; `None` if there are more tags, or the frame is truncated.
    pub ethertype: Option<u16>,
    /// The offset of the next header.
    pub next: usize,
}

impl Tagged {
    /// Parses an Ethernet header at an offset.
    pub fn at(frame: &[u8], at: usize) -> Tagged {
        let mut tagged = Tagged { vlans: [None; MOST_TAGS], ethertype: word(frame, at + 12), next: at + 14 };
        for vlan in &mut tagged.vlans {
            if !tagged.ethertype.is_some_and(|ethertype| TAGS.contains(&ethertype)) {
                return tagged;
            }
            tagged.ethertype = word(frame, tagged.next + 2);
            *vlan = tagged.ethertype.and(word(frame, tagged.next)).map(|tag| tag & 0xFFF);
            tagged.next += 4;
        }
        tagged.ethertype = tagged.ethertype.filter(|ethertype| !TAGS.contains(ethertype));
        tagged
    }
}

/// An IP packet.
pub(super) struct Packet {
    pub from: IpAddr,
    pub to: IpAddr,
    /// This is a fragment of a packet, perhaps the first.
    pub is_fragment: bool,
    /// The extension headers that are present: bit n for `EXTENSIONS[n]`.
    pub extensions: u8,
    /// The protocol after the extension headers; `None` if those are truncated, too many, or in another fragment.
    pub protocol: Option<u8>,
    /// The offset of the protocol's header, if it is known.
    pub transport: Option<usize>,
}

impl Packet {
    /// Parses the headers at an offset; `None` if this is not IP, or the IP header is truncated.
    pub fn at(frame: &[u8], ethertype: u16, at: usize) -> Option<Packet> {
        let packet = |from, to| Packet { from, to, is_fragment: false, extensions: 0, protocol: None, transport: None };
        match ethertype {
            IPV4 => {
                let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
                let (from, to) = (header[12..16].first_chunk::<4>()?, header[16..20].first_chunk::<4>()?);
                let mut packet = packet(IpAddr::from(*from), IpAddr::from(*to));
                let length = usize::from(header[0] & 0xF) * 4;
                let fragment = word(header, 6)?;
                // The "more fragments" flag, or an offset.
                packet.is_fragment = fragment & 0x3FFF != 0;
                if length < 20 || fragment & 0x1FFF != 0 {
                    packet.end_before_transport(header[9]);
                } else {
                    packet.skip_extensions(frame, header[9], at + length);
                }
                Some(packet)
            }
            IPV6 => {
                let header: &[u8; 40] = frame.get(at..)?.first_chunk()?;
                let (from, to) = (header[8..24].first_chunk::<16>()?, header[24..40].first_chunk::<16>()?);
                let mut packet = packet(IpAddr::from(*from), IpAddr::from(*to));
                packet.skip_extensions(frame, header[6], at + 40);
                Some(packet)
            }
            _ => None,
        }
    }

    /// Skips extension headers up to the protocol's header.
    fn skip_extensions(&mut self, frame: &[u8], protocol: u8, at: usize) {
        let mut walk = ExtensionHeaders::new(frame, protocol, at);
        for header in &mut walk {
            self.extensions |= extension_bit(header.protocol).unwrap_or(0);
            self.is_fragment |= header.is_fragment();
        }
        match walk.is_cut {
            // The header itself is present.
            true => self.extensions |= extension_bit(walk.protocol).unwrap_or(0),
            false => self.end_before_transport(walk.protocol),
        }
        self.transport = walk.transport().map(|(_, at)| at);
    }

    /// Sets the protocol, unless it is an extension header: the protocol after that is unknown.
    fn end_before_transport(&mut self, protocol: u8) {
        self.protocol = Some(protocol).filter(|&protocol| extension_bit(protocol).is_none());
    }

    /// Returns the inner layer, if this is a tunnel's packet.
    pub fn inside(&self, frame: &[u8]) -> Option<Layer> {
        let protocol = self.protocol?;
        match self.transport {
            Some(at) => Layer::inside(frame, protocol, at),
            None => [IPV4_INSIDE, IPV6_INSIDE, GRE].contains(&protocol).then_some(Layer::Cut),
        }
    }
}

impl Layer {
    /// Returns the layer inside a tunnel: GRE, VXLAN, GTP-U or IP in IP, whose header of IP protocol `protocol` is at an
    /// offset of the frame. `None` if it is no such header.
    ///
    /// ```
    /// use linerate::filter::Layer;
    ///
    /// let gre = [0, 0, 0x08, 0x00, 0x45];
    /// assert_eq!(Layer::inside(&gre, 47, 0), Some(Layer::Packet(0x0800, 4)));
    /// assert_eq!(Layer::inside(&gre, 6, 0), None);
    /// ```
    pub fn inside(frame: &[u8], protocol: u8, at: usize) -> Option<Layer> {
        match protocol {
            IPV4_INSIDE => Some(Layer::Packet(IPV4, at)),
            IPV6_INSIDE => Some(Layer::Packet(IPV6, at)),
            GRE => inside_gre(frame, at).unwrap_or(Some(Layer::Cut)),
            UDP => match word(frame, at + 2)? {
                VXLAN => inside_vxlan(frame, at + 8).unwrap_or(Some(Layer::Cut)),
                GTP_U => inside_gtp(frame, at + 8).unwrap_or(Some(Layer::Cut)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Iterates over the extension headers of an IPv6 packet (RFC 8200, section 4), and the authentication headers of either
/// IP version (RFC 4302): at most [`MOST_EXTENSIONS`], up to what the frame lacks.
///
/// ```
/// use linerate::filter::ExtensionHeaders;
///
/// // Hop-by-hop options, then UDP.
/// let packet = [17, 0, 1, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 53];
/// let mut headers = ExtensionHeaders::new(&packet, 0, 0);
/// assert_eq!(headers.by_ref().map(|header| (header.protocol, header.len)).collect::<Vec<_>>(), [(0, 8)]);
/// assert_eq!(headers.transport(), Some((17, 8)));
/// ```
pub struct ExtensionHeaders<'a> {
    frame: &'a [u8],
    /// The number and the offset of the next header.
    protocol: u8,
    at: usize,
    left: usize,
    /// The frame ends within the next header.
    is_cut: bool,
    /// The next header is in another fragment.
    is_elsewhere: bool,
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionHeader {
    /// Its number, one of [`EXTENSIONS`].
    pub protocol: u8,
    /// Its offset and its length in bytes. The frame may end before it does.
    pub at: usize,
    /// See `at`.
    pub len: usize,
    /// The offset and the flag of a fragment header.
    fragment: u16,
}

impl ExtensionHeader {
    /// Returns whether this is the header of a fragment, and not of a complete packet (RFC 6946).
    pub fn is_fragment(&self) -> bool {
        self.fragment & 0xFFF9 != 0
    }
}

impl<'a> ExtensionHeaders<'a> {
    /// Begins at an offset of a frame, with the number of the header there.
    pub fn new(frame: &'a [u8], protocol: u8, at: usize) -> ExtensionHeaders<'a> {
        ExtensionHeaders { frame, protocol, at, left: MOST_EXTENSIONS, is_cut: false, is_elsewhere: false }
    }

    /// Returns the protocol and the offset of the header after the extension headers, once those were iterated over.
    /// `None` if it is in another fragment, or after more headers, or if those are cut.
    pub fn transport(&self) -> Option<(u8, usize)> {
        let is_reached = !self.is_cut && !self.is_elsewhere && extension_bit(self.protocol).is_none();
        is_reached.then_some((self.protocol, self.at))
    }
}

impl Iterator for ExtensionHeaders<'_> {
    type Item = ExtensionHeader;

    #[inline]
    fn next(&mut self) -> Option<ExtensionHeader> {
        if self.is_cut || self.is_elsewhere || self.left == 0 || extension_bit(self.protocol).is_none() {
            return None;
        }
        let (protocol, at) = (self.protocol, self.at);
        self.is_cut = true;
        let &[next, units] = self.frame.get(at..)?.first_chunk()?;
        let fragment = if protocol == FRAGMENT { word(self.frame, at + 2)? } else { 0 };
        self.is_cut = false;
        let len = 8 + usize::from(units) * extension_unit(protocol);
        (self.protocol, self.at, self.left) = (next, at + len, self.left - 1);
        self.is_elsewhere = fragment & 0xFFF8 != 0;
        Some(ExtensionHeader { protocol, at, len, fragment })
    }
}

/// Returns the bit of an extension header in [`Packet::extensions`]; `None` for other protocols.
pub(super) fn extension_bit(protocol: u8) -> Option<u8> {
    EXTENSIONS.iter().position(|&extension| extension == protocol).map(|n| 1 << n)
}

/// Returns the unit of the length in an extension header, in bytes. A fragment header has no length.
fn extension_unit(protocol: u8) -> usize {
    match protocol {
        FRAGMENT => 0,
        AUTHENTICATION => 4,
        _ => 8,
    }
}

/// Returns the layer after a GRE header (RFC 2784, RFC 2890); `None` if the header is truncated.
fn inside_gre(frame: &[u8], at: usize) -> Option<Option<Layer>> {
    let (flags, ethertype) = (word(frame, at)?, word(frame, at + 2)?);
    // Checksum, key and sequence number have 4 bytes each. Source routing and version 1 (PPTP) have other formats.
    let next = at + 4 + (flags & 0xB000).count_ones() as usize * 4;
    Some(match ethertype {
        _ if flags & 0x4007 != 0 => None,
        TRANSPARENT_ETHERNET => Some(Layer::Frame(next)),
        IPV4 | IPV6 => Some(Layer::Packet(ethertype, next)),
        _ => None,
    })
}

/// Returns the frame after a VXLAN header (RFC 7348, 5); `None` if the header is truncated.
fn inside_vxlan(frame: &[u8], at: usize) -> Option<Option<Layer>> {
    // The flag for a valid network identifier is set.
    let is_valid = frame.get(at)? & 8 != 0;
    Some(is_valid.then_some(Layer::Frame(at + 8)))
}

/// Returns the packet after a GTP-U header (3GPP TS 29.281, 5.1); `None` if the header is truncated.
fn inside_gtp(frame: &[u8], at: usize) -> Option<Option<Layer>> {
    let (flags, kind) = (*frame.get(at)?, *frame.get(at + 1)?);
    // Version 1, and a message that carries a packet.
    if flags & 0xF0 != 0x30 || kind != 0xFF {
        return Some(None);
    }
    let mut next = at + if flags & 7 != 0 { 12 } else { 8 };
    if flags & 4 != 0 {
        // The last byte of each header is the type of the next; 0 means no further header.
        for _ in 0..=MOST_EXTENSIONS {
            if *frame.get(next - 1)? == 0 {
                break;
            }
            next += usize::from(*frame.get(next)?).max(1) * 4;
        }
    }
    Some(match frame.get(next)? >> 4 {
        4 => Some(Layer::Packet(IPV4, next)),
        6 => Some(Layer::Packet(IPV6, next)),
        _ => None,
    })
}

/// Returns 16 bits in network byte order.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
