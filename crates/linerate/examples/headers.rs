//! Typed headers: etherparse's slices read and change the bytes of received packets in place.
//!
//! `cargo run --example headers`

use etherparse::{Ipv4HeaderSlice, NetSlice, SlicedPacket, TransportSlice};
use linerate::Batch;

/// The length of an Ethernet header without a VLAN tag.
const ETHERNET: usize = 14;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [mut port] = linerate::open(["sim:headers?count=1000&flows=4"])?;
    let (mut rx, mut batch) = (port.rx(0)?, Batch::new());
    let (mut received, mut datagrams, mut ports) = (0, 0, std::collections::BTreeSet::new());
    while received < 1000 {
        received += rx.recv(&mut batch);
        for mut packet in &mut batch {
            let Some(port) = source_port(&packet)? else { continue };
            datagrams += 1;
            ports.insert(port);
            let mut ip = Ipv4HeaderSlice::from_slice(&packet[ETHERNET..])?.to_header();
            ip.time_to_live -= 1;
            ip.header_checksum = ip.calc_header_checksum();
            packet[ETHERNET..ETHERNET + ip.header_len()].copy_from_slice(&ip.to_bytes());
        }
        batch.clear();
    }
    println!("{received} packets, {datagrams} UDP datagrams, {} source ports", ports.len());
    Ok(())
}

/// Returns the source port of a UDP datagram over IPv4. The slices borrow the packet, which can be written afterwards.
fn source_port(packet: &[u8]) -> Result<Option<u16>, etherparse::err::packet::SliceError> {
    let headers = SlicedPacket::from_ethernet(packet)?;
    Ok(match (headers.net, headers.transport) {
        (Some(NetSlice::Ipv4(_)), Some(TransportSlice::Udp(udp))) => Some(udp.source_port()),
        _ => None,
    })
}
