//! Cards and their driver on one thread.

use std::sync::Arc;

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Device, Receive, Transmit};
use linerate::sim82599::{Card, Traffic};
use linerate::traffic::Generator;
use linerate::{Error, Options};

/// Packets per batch.
pub const BATCH: usize = 32;

/// Two cards and their queues on one thread, which is card and forwarder in turn, so that no cache line comes from
/// another processor and every batch is full.
pub struct Alone {
    pub rx: Box<dyn Receive>,
    pub tx: Box<dyn Transmit>,
    _devices: [Box<dyn Device>; 2],
    cards: [Arc<Card>; 2],
}

impl Alone {
    pub fn new(ring: usize) -> Result<Alone, Error> {
        let pool = Pool::new(Region::new(&RegionOptions::default())?);
        let wires = [Traffic::new(Generator::new(64, 1), None, None), Traffic::sink()];
        let cards = wires.map(|wire| Card::new("bench", Box::new(wire)));
        cards.iter().for_each(|card| card.disable_strict());
        let config = Options { ring: Some(ring), ..Options::default() }.of_port("bench", pool).unwrap();
        let open = |card: &Arc<Card>| linerate::drive_model(card, None, config.clone());
        let (mut a, mut b) = (open(&cards[0])?, open(&cards[1])?);
        let (rx, tx) = (a.rx(0)?, b.tx(0)?);
        Ok(Alone { rx, tx, _devices: [Box::new(a), Box::new(b)], cards })
    }

    /// Lets both cards move up to `count` packets.
    pub fn step(&self, count: usize) {
        for card in &self.cards {
            card.step(count);
        }
    }
}
