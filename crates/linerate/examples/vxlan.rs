//! The end of a VXLAN tunnel (RFC 7348): frames of one port travel in UDP packets through the other. Headers are
//! added and removed in front of a packet, so that no byte of the frame is copied.
//!
//! `vxlan INNER OUTER VNI LOCAL REMOTE NEXT_HOP`: `vxlan xdp:eth1 xdp:eth2 42 10.9.0.1 10.9.0.2 02:00:00:00:00:02`

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use linerate::port::{MacAddress, Wait, Waiter};
use linerate::{Batch, Options, Packet};

/// Ethernet, IPv4, UDP and VXLAN headers.
const HEADERS: usize = 14 + 20 + 8 + 8;
/// Offsets of fields in them.
const TOTAL: usize = 16;
const IP_CHECKSUM: usize = 24;
const SOURCE_PORT: usize = 34;

/// Returns the headers of a tunnel; lengths, IP checksum and source port are missing.
fn headers(vni: u32, [local, remote]: [Ipv4Addr; 2], own: MacAddress, next_hop: MacAddress) -> [u8; HEADERS] {
    let ethernet = [&next_hop.0[..], &own.0, &[8, 0]].concat();
    let ip = [&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0][..], &local.octets(), &remote.octets()].concat();
    let udp = [0, 0, 0x12, 0xB5, 0, 0, 0, 0]; // to port 4789, without a checksum
    let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat();
    [&ethernet, &ip, &udp[..], &vxlan].concat().try_into().expect("50 bytes")
}

/// Puts a tunnel's headers in front of a frame. False if there is no room for them.
fn encapsulate(packet: &mut Packet<'_>, headers: &[u8; HEADERS]) -> bool {
    // The network between the ends distinguishes flows by their source port.
    let hash = packet.iter().take(34).fold(0u16, |hash, byte| hash.rotate_left(5) ^ u16::from(*byte));
    let Ok(total) = u16::try_from(packet.len() + HEADERS - 14) else { return false };
    let Ok(outer) = packet.push(HEADERS) else { return false };
    outer.copy_from_slice(headers);
    outer[TOTAL..][..2].copy_from_slice(&total.to_be_bytes());
    outer[SOURCE_PORT + 4..][..2].copy_from_slice(&(total - 20).to_be_bytes());
    outer[SOURCE_PORT..][..2].copy_from_slice(&(0xC000 | hash).to_be_bytes());
    let sum: u32 = outer[14..34].chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    outer[IP_CHECKSUM..][..2].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
    true
}

/// Removes the outer headers. False if they are not those of this tunnel, as sent by its other end.
fn decapsulate(packet: &mut Packet<'_>, headers: &[u8; HEADERS]) -> bool {
    let Some(outer) = packet.first_chunk::<HEADERS>() else { return false };
    let is_ours = outer[12..15] == headers[12..15] && outer[23] == 17 && outer[36..38] == headers[36..38];
    let addresses = outer[26..30] == headers[30..34] && outer[30..34] == headers[26..30];
    is_ours && addresses && outer[42] == 8 && outer[46..49] == headers[46..49] && packet.pull(HEADERS).is_ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [inner, outer, vni, local, remote, next_hop] = &arguments[..] else {
        return Err("vxlan INNER OUTER VNI LOCAL REMOTE NEXT_HOP".into());
    };
    let options = Options { interrupts: Some(Duration::ZERO), ..Options::default() };
    let [mut inner, mut outer] = options.open([inner, outer])?;
    let headers = headers(vni.parse()?, [local.parse()?, remote.parse()?], outer.mac(), next_hop.parse()?);
    let [mut inner_rx, mut outer_rx] = [inner.rx(0)?, outer.rx(0)?];
    let [mut inner_tx, mut outer_tx] = [inner.tx(0)?, outer.tx(0)?];
    println!("tunnelling");
    let (mut batch, mut done, mut waiter) = (Batch::new(), Batch::new(), Waiter::new(Wait::Adaptive));
    loop {
        let mut received = 0;
        for (rx, tx, is_out) in [(&mut inner_rx, &mut outer_tx, true), (&mut outer_rx, &mut inner_tx, false)] {
            received += rx.recv(&mut batch);
            while let Some(mut packet) = batch.take() {
                let change = if is_out { encapsulate } else { decapsulate };
                if change(&mut packet.packet(), &headers) {
                    let _is_full = done.push_packet(packet).is_err(); // then the packet is dropped
                }
            }
            tx.send(&mut done);
            done.clear(); // packets without room are dropped
        }
        waiter.turn(received, &mut [&mut inner_rx, &mut outer_rx]);
    }
}
