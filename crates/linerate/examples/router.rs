//! An IPv4 router with static routes. A packet moves from the port that receives it to the port of its route without a
//! copy.
//!
//! A route is a port, a prefix, and the Ethernet address of the next hop:
//! `router xdp:eth1 10.1.0.0/16 02:00:00:00:01:01 xdp:eth2 0.0.0.0/0 02:00:00:00:02:01`
//!
//! Packets with options, with a TTL that ends here, and without a route are dropped; no ICMP is sent.

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use linerate::port::{MacAddress, Wait, Waiter};
use linerate::{Batch, Options, Packet};

struct Route {
    prefix: u32,
    len: u32,
    next_hop: MacAddress,
    /// The port's address.
    own: MacAddress,
}

/// Returns the one's complement sum of a header's words (RFC 1071): 0xFFFF if its checksum is right.
fn sum(header: &[u8]) -> u16 {
    let add = |sum: u16, word: u16| sum.checked_add(word).unwrap_or_else(|| sum.wrapping_add(word) + 1);
    header.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]])).fold(0, add)
}

/// Prepares a packet for its next hop, and returns the number of its route (RFC 1812, 5.2.1).
fn route(packet: &mut Packet<'_>, own: MacAddress, routes: &[Route]) -> Option<usize> {
    let len = packet.len();
    let (ethernet, ip) = packet.first_chunk_mut::<34>()?.split_at_mut(14);
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let is_valid = ip[0] == 0x45 && sum(ip) == 0xFFFF && (20..=len - 14).contains(&total);
    if ethernet[..6] != own.0 || ethernet[12..] != [8, 0] || !is_valid || ip[8] < 2 {
        return None;
    }
    let destination = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
    let covers = |route: &Route| (destination ^ route.prefix).checked_shr(32 - route.len).unwrap_or(0) == 0;
    let covering = routes.iter().enumerate().filter(|(_, route)| covers(route));
    let (number, route) = covering.max_by_key(|(_, route)| route.len)?;
    ip[8] -= 1;
    ip[10..12].fill(0);
    let checksum = !sum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    ethernet[..6].copy_from_slice(&route.next_hop.0);
    ethernet[6..12].copy_from_slice(&route.own.0);
    packet.truncate(14 + total).ok()?; // without the padding of a short frame
    Some(number)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = Options { interrupts: Some(Duration::ZERO), ..Options::default() };
    let mut ports = options.open_all(&arguments.iter().step_by(3).map(String::as_str).collect::<Vec<_>>())?;
    let (mut routes, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for (port, route) in ports.iter_mut().zip(arguments.chunks(3)) {
        let [_, prefix, next_hop] = route else { return Err("a route is PORT PREFIX NEXT_HOP".into()) };
        let (address, len) = prefix.split_once('/').ok_or("a prefix is written as 10.1.0.0/16")?;
        let (prefix, len) = (address.parse::<Ipv4Addr>()?.to_bits(), len.parse::<u32>()?.min(32));
        routes.push(Route { prefix, len, next_hop: next_hop.parse()?, own: port.mac() });
        inputs.push(port.rx(0)?);
        outputs.push((port.tx(0)?, Batch::new()));
    }
    println!("routing");
    let (mut batch, mut waiter) = (Batch::new(), Waiter::new(Wait::Adaptive));
    loop {
        let mut received = 0;
        for (rx, from) in inputs.iter_mut().zip(&routes) {
            received += rx.recv(&mut batch);
            while let Some(mut packet) = batch.take() {
                let Some(number) = route(&mut packet.packet(), from.own, &routes) else { continue };
                let _is_full = outputs[number].1.push_packet(packet).is_err(); // then the packet is dropped
            }
        }
        outputs.iter_mut().for_each(|(tx, batch)| _ = tx.send(batch));
        waiter.turn(received, &mut inputs.iter_mut().collect::<Vec<_>>());
    }
}
