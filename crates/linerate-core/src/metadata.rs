//! Metadata: the findings of a port about a received packet, beside its bytes.
//!
//! A port writes it only if it was opened with `?metadata=on`, to the packet's headroom:
//!
//! ```text
//!   byte  0         10       16     24         28     32     34     36     40
//!        | offload | origin | time | presence | hash | kind | vlan | mark |
//! ```
//!
//! The presence word tells which fields are valid, and contains the small fields. It is valid itself if the packet's
//! first slot is [described](crate::slot::Slot::is_described).

use crate::filter::ExtensionHeader;
use crate::memory::View;
use crate::offload::{IpPayload, Offload, checksum, network_header};
use crate::slot::Slot;

/// The offset of the presence word in the headroom.
pub(crate) const PRESENCE: usize = 24;
/// The bytes from the presence word to the end of the metadata.
const LEN: usize = View::NOTES - PRESENCE;

/// Bits of the presence word.
pub(crate) const HAS_TIME: u32 = 1 << 0;
const HAS_HASH: u32 = 1 << 1;
const HAS_KIND: u32 = 1 << 2;
/// The program requests the time at which the packet leaves.
const WANTS_TIME: u32 = 1 << 3;
const HAS_VLAN: u32 = 1 << 4;
const HAS_MARK: u32 = 1 << 5;
/// The shift of the checksum's verdict, 2 bits.
const CHECKSUM_SHIFT: u32 = 8;
/// The shift of the fields that the hash covers, 4 bits.
const FIELDS_SHIFT: u32 = 12;
/// The shift of the count of coalesced segments, 8 bits.
const SEGMENTS_SHIFT: u32 = 16;

/// The findings of a port about a received packet. They describe the packet as it arrived: changes by the program do not
/// change it.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::metadata::{HashFields, PacketKind};
///
/// let [mut port] = linerate::open(["sim:metadata?metadata=on&flows=64&count=32"])?;
/// # let (mut rx, mut batch) = (port.rx(0)?, linerate::Batch::new());
/// rx.recv(&mut batch);
/// for packet in batch.packets() {
///     let metadata = packet.metadata();
///     assert_eq!(metadata.kind.unwrap().0, PacketKind::IPV4 | PacketKind::UDP);
///     assert_eq!(metadata.hash.unwrap().fields, HashFields::UdpIpv4);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The verdict on the packet's checksums.
    pub checksum: Checksum,
    /// The hash of the packet's flow, by which the card chooses a queue.
    pub hash: Option<Hash>,
    /// The packet's headers.
    pub kind: Option<PacketKind>,
    /// The VLAN tag that the card has removed from the packet
    /// ([`Port::strip_vlan_tags`](crate::port::Port::strip_vlan_tags)), or the driver of an `xdp:` port: priority
    /// (3 bits), drop eligible indicator, and the VLAN's number (12 bits; IEEE 802.1Q, 9.6).
    /// [`Packet::insert_vlan`](crate::Packet::insert_vlan) puts it back.
    pub vlan: Option<u16>,
    /// The number in the rule that matched the packet ([`Action::Mark`](crate::port::Action::Mark)).
    pub mark: Option<u32>,
    /// The number of received TCP segments that the card has coalesced into this packet, with `?offloads=on`. 0 or 1: it
    /// is as it arrived.
    pub segments: u8,
}

/// The verdict on a packet's IPv4 header checksum, and on its TCP, UDP or SCTP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Not verified: the packet is a fragment, has another protocol or no checksum, or the port cannot verify any.
    #[default]
    Unknown,
    /// All that the packet has are right.
    Good,
    /// One is wrong.
    Bad,
    /// The sender has left the transport checksum to the port that sends the packet on a wire. The data is as the
    /// sender wrote it, since it has not been on a wire ([`Packet::offload`](crate::packet::Packet::offload)).
    Left,
}

impl Checksum {
    /// Verifies a frame in software: the checksums of the outermost IPv4 header, and of TCP or UDP after it. `frame`
    /// begins with the Ethernet header.
    ///
    /// ```
    /// use linerate::metadata::Checksum;
    ///
    /// let mut udp = Vec::new();
    /// let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    /// headers.udp(80, 4321).write(&mut udp, &[7; 100]).unwrap();
    /// assert_eq!(Checksum::of_frame(&udp), Checksum::Good);
    /// udp[60] = 8;
    /// assert_eq!(Checksum::of_frame(&udp), Checksum::Bad);
    /// ```
    pub fn of_frame(frame: &[u8]) -> Checksum {
        Checksum::of_whole_frame(frame).unwrap_or(Checksum::Unknown)
    }

    /// As [`of_frame`](Checksum::of_frame). Returns `None` for a fragment, another protocol, no checksum, or a frame
    /// that is cut off.
    fn of_whole_frame(frame: &[u8]) -> Option<Checksum> {
        if let Some((network, true)) = network_header(frame) {
            let transport = network + usize::from(frame[network] & 0xF) * 4;
            let header = frame.get(network..transport).filter(|header| header.len() >= 20)?;
            if checksum([header]) != 0 {
                return Some(Checksum::Bad);
            }
        }
        // A routing header with segments left: the sum covers another destination (RFC 8200, 8.1).
        let is_routed = |header: &ExtensionHeader| header.protocol == 43 && frame.get(header.at + 3) != Some(&0);
        let payload = IpPayload::of(frame, |header| header.is_fragment() || is_routed(header))?;
        let IpPayload { protocol, transport, end, addresses, .. } = payload;
        let bytes = frame.get(transport..end)?;
        match protocol {
            6 if bytes.len() >= 20 => {}
            // UDP's checksum 0 means that there is none.
            17 if bytes.len() >= 8 && bytes[6..8] != [0, 0] => {}
            _ => return None,
        }
        let sum = checksum([&frame[addresses], &[0, protocol], &(bytes.len() as u16).to_be_bytes(), bytes]);
        Some(if sum == 0 { Checksum::Good } else { Checksum::Bad })
    }
}

/// A hash of a packet's flow, computed by the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    /// The hash (for cards, Toeplitz with the key of [`Rss`](crate::port::Rss)).
    pub value: u32,
    /// The fields that it covers.
    pub fields: HashFields,
}

/// The fields that a [`Hash`](struct@Hash) covers: the addresses and, for TCP and UDP, the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFields {
    /// The IPv4 addresses.
    Ipv4 = 1,
    /// The IPv4 addresses and TCP ports.
    TcpIpv4,
    /// The IPv4 addresses and UDP ports.
    UdpIpv4,
    /// The IPv6 addresses.
    Ipv6,
    /// The IPv6 addresses and TCP ports.
    TcpIpv6,
    /// The IPv6 addresses and UDP ports.
    UdpIpv6,
    /// The port does not know which.
    Unknown,
}

impl HashFields {
    const ALL: [HashFields; 7] = [
        HashFields::Ipv4,
        HashFields::TcpIpv4,
        HashFields::UdpIpv4,
        HashFields::Ipv6,
        HashFields::TcpIpv6,
        HashFields::UdpIpv6,
        HashFields::Unknown,
    ];
}

/// The headers of a packet, as far as the card has parsed them: the bits of the packet type in Intel's receive
/// descriptors (82599 datasheet, section 7.1.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketKind(pub u16);

impl PacketKind {
    /// An IPv4 header.
    pub const IPV4: u16 = 1 << 0;
    /// An IPv4 header with options.
    pub const IPV4_OPTIONS: u16 = 1 << 1;
    /// An IPv6 header.
    pub const IPV6: u16 = 1 << 2;
    /// An IPv6 header with extension headers.
    pub const IPV6_EXTENSIONS: u16 = 1 << 3;
    /// A TCP header.
    pub const TCP: u16 = 1 << 4;
    /// A UDP header.
    pub const UDP: u16 = 1 << 5;
    /// An SCTP header.
    pub const SCTP: u16 = 1 << 6;

    /// Returns whether the packet has any of these headers.
    ///
    /// ```
    /// use linerate::metadata::PacketKind;
    ///
    /// let kind = PacketKind(PacketKind::IPV6 | PacketKind::UDP);
    /// assert!(kind.has(PacketKind::UDP) && !kind.has(PacketKind::IPV4 | PacketKind::IPV4_OPTIONS));
    /// ```
    pub fn has(self, headers: u16) -> bool {
        self.0 & headers != 0
    }
}

impl Metadata {
    /// Writes the metadata to the headroom of a packet's first slot, and marks the slot. A timestamp stays.
    #[inline(always)]
    pub fn describe(&self, first: &mut Slot, view: View<'_>) {
        let time = if first.is_described() { presence(&view.notes(first)) & HAS_TIME } else { 0 };
        first.set_described();
        view.note(first, PRESENCE, &self.to_bytes(time));
    }

    /// Notes that the card is to note when the packet with this first slot leaves.
    pub(crate) fn request_time(first: &mut Slot, view: View<'_>) {
        let presence = if first.is_described() { presence(&view.notes(first)) } else { 0 };
        first.set_described();
        view.note(first, PRESENCE, &(presence | WANTS_TIME).to_le_bytes());
    }

    /// Returns whether the card is to note when the packet with this first slot leaves.
    pub fn wants_time(first: &Slot, view: View<'_>) -> bool {
        first.is_described() && presence(&view.notes(first)) & WANTS_TIME != 0
    }

    /// Returns the metadata of the packet with this first slot.
    pub fn of(first: &Slot, view: View<'_>) -> Metadata {
        let notes = if first.is_described() { view.notes(first) } else { [0; View::NOTES] };
        let metadata = Metadata::from_bytes(&notes);
        match Offload::of(first, view).is_some_and(Offload::needs_checksum) {
            true => Metadata { checksum: Checksum::Left, ..metadata },
            false => metadata,
        }
    }

    #[inline(always)]
    fn to_bytes(self, time: u32) -> [u8; LEN] {
        let Metadata { checksum, hash, kind, vlan, mark, segments } = self;
        let verdict = (checksum as u32) << CHECKSUM_SHIFT;
        let fields = hash.map_or(0, |hash| (hash.fields as u32) << FIELDS_SHIFT | HAS_HASH);
        let flag = |is_present: bool, bit: u32| if is_present { bit } else { 0 };
        let others = flag(kind.is_some(), HAS_KIND) | flag(vlan.is_some(), HAS_VLAN) | flag(mark.is_some(), HAS_MARK);
        let presence = time | verdict | fields | others | u32::from(segments) << SEGMENTS_SHIFT;
        // Two words, in the order of the layout above.
        let low = u64::from(presence) | u64::from(hash.map_or(0, |hash| hash.value)) << 32;
        let tag = u64::from(vlan.unwrap_or(0)) << 16;
        let high = u64::from(kind.unwrap_or_default().0) | tag | u64::from(mark.unwrap_or(0)) << 32;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        bytes
    }

    fn from_bytes(notes: &[u8; View::NOTES]) -> Metadata {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| notes[PRESENCE + at + n]));
        let half = |at: usize| u16::from_le_bytes([0, 1].map(|n| notes[PRESENCE + at + n]));
        let presence = word(0);
        let has = |bit: u32| presence & bit != 0;
        let fields = HashFields::ALL.get(((presence >> FIELDS_SHIFT & 0xF) as usize).wrapping_sub(1));
        Metadata {
            checksum: match presence >> CHECKSUM_SHIFT & 3 {
                1 => Checksum::Good,
                2 => Checksum::Bad,
                3 => Checksum::Left,
                _ => Checksum::Unknown,
            },
            hash: fields.filter(|_| has(HAS_HASH)).map(|&fields| Hash { value: word(4), fields }),
            kind: has(HAS_KIND).then(|| PacketKind(half(8))),
            vlan: has(HAS_VLAN).then(|| half(10)),
            mark: has(HAS_MARK).then(|| word(12)),
            segments: (presence >> SEGMENTS_SHIFT) as u8,
        }
    }
}

/// Returns the presence word.
#[inline(always)]
pub(crate) fn presence(notes: &[u8; View::NOTES]) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|n| notes[PRESENCE + n]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routed_packet_is_not_verified() {
        let mut udp = Vec::new();
        let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 9);
        headers.udp(80, 4321).write(&mut udp, &[7; 100]).unwrap();
        assert_eq!(Checksum::of_frame(&udp), Checksum::Good);
        // A routing header before UDP's, with a number of segments left.
        (udp[19], udp[20]) = (udp[19] + 8, 43);
        for (left, verdict) in [(0, Checksum::Good), (1, Checksum::Unknown)] {
            let routed = [&udp[..54], &[17, 0, 4, left, 0, 0, 0, 0], &udp[54..]].concat();
            assert_eq!(Checksum::of_frame(&routed), verdict);
        }
    }
}
