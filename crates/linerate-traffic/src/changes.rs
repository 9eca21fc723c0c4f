//! Which header fields changed on the way, such as at a router: compares headers as they were
//! sent and as they arrived.

use std::ops::AddAssign;

use super::checksum::checksum;
use super::generator::FIRST_PORT;
use super::stamp;

/// A header field that a device on the way may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderField {
    /// The destination MAC address.
    DestinationMac,
    /// The source MAC address.
    SourceMac,
    /// The VLAN tags: one was added, removed or changed.
    Vlan,
    /// The differentiated services code point and ECN (RFC 2474, RFC 3168).
    Dscp,
    /// The time to live, or IPv6's hop limit.
    Ttl,
    /// The source IP address.
    SourceAddress,
    /// The destination IP address.
    DestinationAddress,
    /// The UDP source port.
    SourcePort,
    /// The UDP destination port.
    DestinationPort,
    /// Other headers were added or removed in front of the IP header, for example of a tunnel.
    Encapsulation,
    /// Any other field, such as IPv4's identification, or the version of IP.
    Other,
}

impl HeaderField {
    /// All fields.
    pub const ALL: [HeaderField; 11] = [
        HeaderField::DestinationMac,
        HeaderField::SourceMac,
        HeaderField::Vlan,
        HeaderField::Dscp,
        HeaderField::Ttl,
        HeaderField::SourceAddress,
        HeaderField::DestinationAddress,
        HeaderField::SourcePort,
        HeaderField::DestinationPort,
        HeaderField::Encapsulation,
        HeaderField::Other,
    ];

    /// Returns the field's name, as in the command's JSON.
    pub fn name(self) -> &'static str {
        match self {
            HeaderField::DestinationMac => "destination_mac",
            HeaderField::SourceMac => "source_mac",
            HeaderField::Vlan => "vlan",
            HeaderField::Dscp => "dscp",
            HeaderField::Ttl => "ttl",
            HeaderField::SourceAddress => "source_address",
            HeaderField::DestinationAddress => "destination_address",
            HeaderField::SourcePort => "source_port",
            HeaderField::DestinationPort => "destination_port",
            HeaderField::Encapsulation => "encapsulation",
            HeaderField::Other => "other",
        }
    }
}

/// Intact frames whose headers differ from those sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The number of such frames.
    pub frames: u64,
    /// Frames among these whose headers as sent are not known, so that no field is counted.
    pub unknown: u64,
    by_field: [u64; HeaderField::ALL.len()],
}

impl Changes {
    /// Returns the number of frames in which a field changed.
    pub fn of(&self, field: HeaderField) -> u64 {
        self.by_field[field as usize]
    }

    /// Returns the fields that changed, with the number of frames of each.
    pub fn fields(&self) -> impl Iterator<Item = (HeaderField, u64)> {
        HeaderField::ALL.into_iter().zip(self.by_field).filter(|(_, frames)| *frames > 0)
    }
}

impl AddAssign for Changes {
    fn add_assign(&mut self, other: Changes) {
        self.frames += other.frames;
        self.unknown += other.unknown;
        self.by_field.iter_mut().zip(other.by_field).for_each(|(sum, frames)| *sum += frames);
    }
}

impl Changes {
    /// Counts a frame whose stamp is at `at`, and has another digest of the headers: that of the headers as sent. They
    /// are in the frame, or it was sent like one of `senders`.
    #[cold]
    pub(super) fn count(&mut self, senders: &[Vec<u8>], frame: &[u8], at: usize, flow: u16, digest: u16) {
        self.frames += 1;
        let copy = stamp::copy_of_headers(frame, at).map(<[u8]>::to_vec);
        let candidates = copy.into_iter().chain(senders.iter().map(|headers| of_len(headers, frame.len() - at)));
        let candidates = candidates.flat_map(|headers| [with_flow(&headers, flow), headers]);
        let Some(sent) = candidates.into_iter().find(|headers| stamp::digest(headers) == digest) else {
            self.unknown += 1;
            return;
        };
        let before = self.by_field;
        let mut changed = |field: HeaderField, is_changed: bool| self.by_field[field as usize] += u64::from(is_changed);
        if let (Some(sent), Some(arrived)) = (Fields::of(&sent), Fields::of(&frame[..at])) {
            sent.compare(&arrived, &mut changed);
        }
        self.by_field[HeaderField::Other as usize] += u64::from(self.by_field == before);
    }
}

/// Returns the headers of a flow of a [`Generator`](crate::Generator), which differ in UDP's source port.
fn with_flow(headers: &[u8], flow: u16) -> Vec<u8> {
    let mut headers = headers.to_vec();
    if let Some(udp) = headers.last_chunk_mut::<8>() {
        udp[..2].copy_from_slice(&FIRST_PORT.wrapping_add(flow).to_be_bytes());
    }
    headers
}

/// Returns headers that end with IPv4 and UDP, for a payload of `len` bytes.
fn of_len(headers: &[u8], len: usize) -> Vec<u8> {
    let mut headers = headers.to_vec();
    if let Some(ip) = headers.last_chunk_mut::<28>().filter(|ip| ip[0] == 0x45) {
        ip[2..4].copy_from_slice(&(len as u16 + 28).to_be_bytes());
        ip[24..26].copy_from_slice(&(len as u16 + 8).to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(0, &ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    headers
}

/// The fields of headers that end with UDP, after IPv4 without options or IPv6 without extension headers.
#[derive(PartialEq, Eq)]
struct Fields<'a> {
    macs: [&'a [u8]; 2],
    /// VLAN tags after the MAC addresses.
    tags: &'a [u8],
    /// The number of bytes between the MAC addresses and the IP header, without VLAN tags.
    others: usize,
    is_ipv4: bool,
    dscp: u16,
    ttl: u8,
    addresses: [&'a [u8]; 2],
    ports: [&'a [u8]; 2],
}

impl<'a> Fields<'a> {
    fn of(headers: &'a [u8]) -> Option<Fields<'a>> {
        let (front, udp) = headers.split_last_chunk::<8>()?;
        let ipv4 = front.last_chunk::<20>().filter(|ip| ip[0] == 0x45 && ip[9] == 17);
        let ipv6 = front.last_chunk::<40>().filter(|ip| ip[0] >> 4 == 6 && ip[6] == 17);
        let (ip, mask, ttl, addresses) = match (ipv4, ipv6) {
            (Some(ip), _) => (&ip[..], 0xFF, ip[8], ip[12..].split_at(4)),
            (None, Some(ip)) => (&ip[..], 0xFF0, ip[7], ip[8..].split_at(16)),
            (None, None) => return None,
        };
        let (macs, rest) = front[..front.len() - ip.len()].split_at_checked(12)?;
        let is_tag = |tag: &&[u8]| matches!(tag, [0x81, 0, ..] | [0x88, 0xA8, ..]);
        let tags = rest.chunks_exact(4).take_while(is_tag).count() * 4;
        Some(Fields {
            macs: [&macs[..6], &macs[6..]],
            tags: &rest[..tags],
            others: rest.len() - tags,
            is_ipv4: ipv4.is_some(),
            dscp: u16::from_be_bytes([ip[0], ip[1]]) & mask,
            ttl,
            addresses: addresses.into(),
            ports: [&udp[..2], &udp[2..4]],
        })
    }

    /// Reports each field, and whether it changed.
    fn compare(&self, after: &Fields, mut changed: impl FnMut(HeaderField, bool)) {
        changed(HeaderField::DestinationMac, self.macs[0] != after.macs[0]);
        changed(HeaderField::SourceMac, self.macs[1] != after.macs[1]);
        changed(HeaderField::Vlan, self.tags != after.tags);
        changed(HeaderField::Dscp, self.dscp != after.dscp);
        changed(HeaderField::Ttl, self.ttl != after.ttl);
        changed(HeaderField::SourceAddress, self.addresses[0] != after.addresses[0]);
        changed(HeaderField::DestinationAddress, self.addresses[1] != after.addresses[1]);
        changed(HeaderField::SourcePort, self.ports[0] != after.ports[0]);
        changed(HeaderField::DestinationPort, self.ports[1] != after.ports[1]);
        changed(HeaderField::Encapsulation, self.others != after.others);
        changed(HeaderField::Other, self.is_ipv4 != after.is_ipv4);
    }
}
