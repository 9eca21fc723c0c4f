//! Flows with published hashes, for cards that report hashes.

use std::net::{IpAddr, SocketAddr};

use linerate::offload::Offload;

/// A flow of Microsoft's "Verifying the RSS hash calculation": source, destination, and the hashes of the addresses, and
/// of addresses and ports.
pub type Flow = (&'static str, &'static str, u32, u32);

/// The flows.
pub const FLOWS: [Flow; 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
    ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61_e985, 0x02d1_feef),
];

/// TCP's number.
pub const TCP: u8 = 6;
/// UDP's number.
pub const UDP: u8 = 17;
/// A protocol for experiments.
pub const OTHER: u8 = 253;

/// Returns a frame whose checksums are right and whose last byte is its number.
pub fn frame_of(source: SocketAddr, destination: SocketAddr, protocol: u8, number: u8) -> Vec<u8> {
    let mut payload = vec![0; 40];
    payload[..2].copy_from_slice(&source.port().to_be_bytes());
    payload[2..4].copy_from_slice(&destination.port().to_be_bytes());
    match protocol {
        TCP => payload[12..14].copy_from_slice(&[0x50, 0x10]),
        UDP => payload[4..6].copy_from_slice(&[0, 40]),
        _ => payload[..4].fill(0),
    }
    payload[39] = number;
    let mut frame = vec![2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 9];
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            header.extend([source.octets(), destination.octets()].concat());
            let sum: u32 = header[2..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let folded = (sum & 0xFFFF) + (sum >> 16);
            header[12..14].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            frame.extend(header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xDD, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
            frame.extend([source.octets(), destination.octets()].concat());
        }
        _ => unreachable!("a flow has one version of IP"),
    }
    frame.extend(payload);
    let len = frame.len();
    if let Some(offload) = Offload::leave(&mut frame, len, None) {
        assert!(offload.finish_bytes(&mut frame));
    }
    frame
}
