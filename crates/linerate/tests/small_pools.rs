//! Queues that share a pool with few more buffers than their rings hold.

#[path = "../benches/fake/mod.rs"]
mod fake;

use std::sync::Arc;

use fake::{Fake, RING};
use linerate::Batch;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::Vectors;

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

/// The rings of two cards may hold all buffers of the pool. Each card sends half a ring before any packet is completed.
#[test]
fn two_queues_exchange_nothing_with_a_pool_that_is_large_enough() {
    for size in [1, 32, 256] {
        let pool = pool(4 * RING);
        let mut forwarders =
            [0, 1].map(|_| (Fake::sharing(Vectors::Best, pool.clone(), None), Batch::with_capacity(size)));
        // Returns the minimum and maximum number of free buffers in the pool meanwhile.
        let mut round = || {
            let mut free = (usize::MAX, 0);
            for (fake, batch) in &mut forwarders {
                fake.card.complete_receive(RING / 2);
                for _ in 0..RING / 2 / size {
                    fake.forward(batch);
                    free = (free.0.min(pool.available()), free.1.max(pool.available()));
                }
                assert_eq!(fake.card.complete_transmit(), RING / 2, "no packet waits for a buffer");
            }
            free
        };
        // Rings and caches fill first.
        let rounds: Vec<_> = (0..100).map(|_| round()).collect();
        let (least, most) = rounds[99];
        assert_eq!(least, most, "in batches of {size}");
        assert!(rounds[10..].iter().all(|free| *free == (least, least)), "in batches of {size}: {rounds:?}");
    }
}

/// The pool is large enough for the receive rings of three cards, but not also for their transmit rings. So no transmit
/// ring may keep sent buffers that another card needs. Packets are sent from other batches than the receiving ones, so
/// the sending batches have more free buffers than they need.
#[test]
fn rings_keep_no_sent_buffers_of_a_pool_that_is_too_small_for_all() {
    let pool = pool(4 * RING);
    let mut cards = [0, 1, 2].map(|_| (Fake::sharing(Vectors::Best, pool.clone(), None), Batch::with_capacity(32)));
    let mut batch = Batch::with_capacity(32);
    for turn in 0..300 {
        let (from, to) = (turn % 3, turn / 3 % 3);
        cards[from].0.card.complete_receive(32);
        assert_eq!(cards[from].0.rx.recv(&mut batch), 32, "turn {turn}: the pool has {}", pool.available());
        let (fake, sender) = &mut cards[to];
        while let Some(packet) = batch.take() {
            assert!(sender.push_packet(packet).is_ok());
        }
        assert_eq!(fake.tx.send(sender), 32);
        assert_eq!(fake.tx.buffers(), 32, "turn {turn}: those that were sent before are taken back");
        cards[to].0.card.complete_transmit();
    }
}
