//! A program can make ports of its own: the traits need nothing that is not public.

use std::sync::Arc;

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{RxQueue, TxQueue};
use linerate::{Batch, Result};

/// What is sent comes back.
#[derive(Default)]
struct Loopback {
    frames: Vec<Vec<u8>>,
}

impl TxQueue for Loopback {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let slots = batch.len();
        for packet in batch.packets() {
            let mut frame = Vec::new();
            packet.append_to(&mut frame);
            self.frames.push(frame);
        }
        batch.drop_front(slots);
        slots
    }
    fn buffers(&self) -> usize {
        0
    }
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Receiver(Loopback, Arc<Pool>);

impl RxQueue for Receiver {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let taken = self.0.frames.iter().take_while(|frame| batch.push(&self.1, frame)).count();
        self.0.frames.drain(..taken);
        batch.len() - before
    }
    fn buffers(&self) -> usize {
        0
    }
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn packets_cross_a_port_of_ones_own() {
    let pages = Pages::Only(PageSize::Ordinary);
    let region = RegionOptions { buffers: 64, buffer_size: 512, pages, numa_node: None };
    let pool = Pool::new(Region::new(&region).unwrap());
    let mut tx = Loopback::default();
    let mut batch = Batch::with_capacity(8);
    (1..=3).for_each(|n| assert!(batch.push(&pool, &vec![n as u8; n * 300])));
    assert_eq!(tx.send(&mut batch), 1 + 2 + 3);
    assert!(batch.is_empty());
    let mut rx = Receiver(tx, pool.clone());
    assert_eq!(rx.recv(&mut batch), 6);
    let lengths: Vec<_> = batch.packets().map(|packet| packet.len()).collect();
    assert_eq!(lengths, [300, 600, 900]);
    drop(batch);
    assert_eq!(pool.available(), 64);
}
