//! A firewall in a switch: from its first port only answers to flows that other ports began, known by their five
//! tuple, and packets that match a filter are let through.
//!
//! `cargo run -p linerate --example firewall`

use std::collections::HashSet;
use std::sync::{Arc, RwLock};

use linerate::Batch;
use linerate::filter::Filter;
use linerate::netmap::{Destination, Forward, Frames, Learning, Switch};
use linerate::traffic::Generator;

/// Protocol, addresses and ports, as seen from the inside.
type FiveTuple = (u8, [u8; 4], [u8; 4], [u8; 2], [u8; 2]);

struct Firewall {
    /// Packets that may come in without a flow.
    allowed: Filter,
    begun: RwLock<HashSet<FiveTuple>>,
    learning: Learning,
}

const OUTSIDE: u8 = 0;

/// Returns the five tuple of TCP and UDP over IPv4 without options, reversed for packets from outside.
fn five_tuple(frame: &[u8], turned: bool) -> Option<FiveTuple> {
    let header: &[u8; 38] = frame.first_chunk()?;
    let is_known = header[12..14] == [8, 0] && header[14] == 0x45 && [6, 17].contains(&header[23]);
    let [from, to] = [26, 30].map(|at| [header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let [from_port, to_port] = [34, 36].map(|at| [header[at], header[at + 1]]);
    let forth = (header[23], from, to, from_port, to_port);
    let back = (header[23], to, from, to_port, from_port);
    is_known.then_some(if turned { back } else { forth })
}

impl Forward for Firewall {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        self.learning.forward(source, packets, to);
        for (packet, to) in packets.iter().zip(to) {
            let tuple = five_tuple(packet, source == OUTSIDE);
            let known = tuple.is_some_and(|tuple| self.begun.read().is_ok_and(|begun| begun.contains(&tuple)));
            if source == OUTSIDE && !known && !self.allowed.matches(packet) {
                *to = Destination::Drop;
            } else if source != OUTSIDE
                && !known
                && let (Some(tuple), Ok(mut begun)) = (tuple, self.begun.write())
            {
                begun.insert(tuple);
            }
        }
    }

    fn forget(&self, port: u8) {
        self.learning.forget(port);
    }
}

fn main() -> linerate::Result<()> {
    let firewall =
        Firewall { allowed: "arp,icmp,udp:53".parse()?, begun: RwLock::default(), learning: Learning::new() };
    let switch = Switch::named("vale1");
    switch.set_forward(Arc::new(firewall));
    let [mut outside, mut inside] = linerate::open(["vale1:outside", "vale1:inside"])?;
    let (mut outside_rx, mut outside_tx) = (outside.rx(0)?, outside.tx(0)?);
    let (mut inside_rx, mut inside_tx) = (inside.rx(0)?, inside.tx(0)?);
    let mut question = [0u8; 60];
    Generator::new(64, 1).fill(&mut question);
    let mut answer = question;
    answer[26..30].copy_from_slice(&question[30..34]);
    answer[30..34].copy_from_slice(&question[26..30]);
    answer[34..36].copy_from_slice(&question[36..38]);
    answer[36..38].copy_from_slice(&question[34..36]);

    let mut batch = Batch::new();
    let mut say = |what: &str| {
        batch.push(outside.pool(), &answer);
        outside_tx.send(&mut batch);
        println!("{what}: {} frames received", inside_rx.recv(&mut batch));
        batch.clear();
    };
    say("an unsolicited answer");
    let mut batch = Batch::new();
    batch.push(inside.pool(), &question);
    inside_tx.send(&mut batch);
    outside_rx.recv(&mut batch);
    say("an answer to a question");
    Ok(())
}
