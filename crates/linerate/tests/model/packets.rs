//! Packets made by another library, including checksums.

use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader, TcpOptionElement, UdpHeader};

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
}

/// The transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP with this sequence number and flags, and a timestamp option.
    Tcp {
        sequence: u32,
        flags: u8,
    },
    Udp,
}

pub const TO: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub const SOURCE: [u8; 4] = [10, 1, 2, 3];
pub const DESTINATION: [u8; 4] = [10, 9, 8, 7];
pub const FROM_PORT: u16 = 4321;
pub const TO_PORT: u16 = 80;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const PUSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const CWR: u8 = 0x80;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

impl Ip {
    pub fn header(self) -> usize {
        if self == Ip::V4 { 20 } else { 40 }
    }
}

impl Transport {
    pub fn header(self) -> usize {
        if self == Transport::Udp { 8 } else { 32 }
    }

    /// Returns the offset of the checksum in the transport header.
    pub fn checksum(self) -> usize {
        if self == Transport::Udp { 6 } else { 16 }
    }
}

/// Returns a frame; `identification` is for IPv4.
pub fn frame(ip: Ip, identification: u16, transport: Transport, payload: &[u8]) -> Vec<u8> {
    let headers = match ip {
        Ip::V4 => IpHeaders::Ipv4(
            Ipv4Header {
                identification,
                dont_fragment: true,
                time_to_live: 64,
                source: SOURCE,
                destination: DESTINATION,
                ..Ipv4Header::default()
            },
            Default::default(),
        ),
        Ip::V6 => IpHeaders::Ipv6(
            Ipv6Header { hop_limit: 64, source: [0xFD; 16], destination: [0xFE; 16], ..Ipv6Header::default() },
            Default::default(),
        ),
    };
    let builder = PacketBuilder::ethernet2([0x02, 0, 0, 0, 0, 2], TO).ip(headers);
    let mut bytes = Vec::new();
    match transport {
        Transport::Tcp { sequence, flags } => {
            let mut header = TcpHeader::new(FROM_PORT, TO_PORT, sequence, 0x2000);
            header.acknowledgment_number = 77;
            let stamp = TcpOptionElement::Timestamp(1000, 2000);
            header.set_options(&[TcpOptionElement::Noop, TcpOptionElement::Noop, stamp]).unwrap();
            let bits = [&mut header.fin, &mut header.syn, &mut header.rst, &mut header.psh, &mut header.ack];
            bits.into_iter().enumerate().for_each(|(n, bit)| *bit = flags >> n & 1 != 0);
            header.cwr = flags & CWR != 0;
            builder.tcp_header(header).write(&mut bytes, payload).unwrap();
        }
        Transport::Udp => builder.udp(FROM_PORT, TO_PORT).write(&mut bytes, payload).unwrap(),
    }
    bytes
}

/// Returns the pseudo-header sum, as drivers write it to the checksum field. For segmentation, `length` is 0.
pub fn pseudo(ip: Ip, transport: Transport, length: usize) -> [u8; 2] {
    let protocol = if transport == Transport::Udp { 17 } else { 6 };
    let addresses = match ip {
        Ip::V4 => [SOURCE, DESTINATION].concat(),
        Ip::V6 => [[0xFD; 16], [0xFE; 16]].concat(),
    };
    let words = addresses.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = words.sum::<u32>() + protocol + length as u32;
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (sum as u16).to_be_bytes()
}

/// Returns an IPv4 frame with SCTP and `data`. Its checksum is computed bit by bit (RFC 9260, appendix A).
pub fn sctp(data: &[u8]) -> Vec<u8> {
    let mut packet = [&FROM_PORT.to_be_bytes()[..], &TO_PORT.to_be_bytes(), &[1, 2, 3, 4], &[0; 4], data].concat();
    let crc = packet.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0x82F6_3B78 } else { 0 })
    });
    packet[8..12].copy_from_slice(&(!crc).to_le_bytes());
    let header = Ipv4Header::new(packet.len() as u16, 64, IpNumber::SCTP, SOURCE, DESTINATION).unwrap();
    let mut bytes = frame(Ip::V4, 0, Transport::Udp, &[]);
    bytes.truncate(ETHERNET);
    header.write(&mut bytes).unwrap();
    bytes.extend_from_slice(&packet);
    bytes
}

/// Inserts a VLAN tag after the addresses.
pub fn tagged(mut frame: Vec<u8>, tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

/// Returns a packet whose UDP checksum is 0, and is therefore sent as all ones.
pub fn udp_that_sums_to_zero(ip: Ip) -> Vec<u8> {
    let with_zeros = frame(ip, 0, Transport::Udp, &[0, 0, 1, 2]);
    let at = ETHERNET + ip.header() + 6;
    let sum = &with_zeros[at..at + 2];
    let bytes = frame(ip, 0, Transport::Udp, &[sum[0], sum[1], 1, 2]);
    assert_eq!(UdpHeader::from_slice(&bytes[at - 6..]).unwrap().0.checksum, 0xFFFF);
    bytes
}
