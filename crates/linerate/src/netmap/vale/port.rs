//! What happens to a packet between two ports of a switch, top-down: where it goes is decided here; the rest of its way is
//! `netmap/delivery.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Destination, MAX_PORTS, Now, Switch};
use crate::batch::Batch;
use crate::memory::Pool;
use crate::netmap::frames::{CHUNK, Frames};
use crate::port::{QueueCounters, Transmit};
use crate::slot::Slot;

/// What the program sends into the switch.
pub struct ValeTx {
    switch: Arc<Switch>,
    now: Now,
    source: u8,
    queue: usize,
    counters: Arc<QueueCounters>,
    /// By port: which packets go there. All zeros between two batches.
    wanted: Box<[u64; MAX_PORTS]>,
}

impl ValeTx {
    pub fn new(switch: &Arc<Switch>, source: u8, queue: u16, counters: Arc<QueueCounters>) -> ValeTx {
        let (wanted, switch) = (Box::new([0; MAX_PORTS]), switch.clone());
        ValeTx { now: switch.now(), switch, source, queue: queue.into(), counters, wanted }
    }

    /// Decides on up to [`CHUNK`] packets from the front, and delivers them; tells how many slots and packets.
    fn switch_some(&mut self, slots: &[Slot], pool: &Arc<Pool>) -> (usize, usize) {
        let frames = Frames::new(slots, pool);
        let mut to = [Destination::Drop; CHUNK];
        let to = &mut to[..frames.len()];
        self.now.forward.forward(self.source, &frames, to);
        let (mut everywhere, mut used, mut ports) = (0u64, [0u8; CHUNK], 0);
        for (packet, to) in to.iter().enumerate() {
            let bit = 1 << packet;
            match to {
                Destination::Port(port) if usize::from(*port) < self.now.ports.len() && *port != self.source => {
                    let wanted = &mut self.wanted[usize::from(*port)];
                    if *wanted == 0 {
                        used[ports] = *port;
                        ports += 1;
                    }
                    *wanted |= bit;
                }
                Destination::Broadcast => everywhere |= bit,
                _ => {}
            }
        }
        if everywhere == 0 {
            for &port in &used[..ports] {
                let wanted = std::mem::take(&mut self.wanted[usize::from(port)]);
                if let Some(port) = &self.now.ports[usize::from(port)] {
                    port.delivery.deliver(&frames, wanted, self.queue);
                }
            }
        } else {
            for (number, port) in self.now.ports.iter().enumerate() {
                let wanted = std::mem::take(&mut self.wanted[number]) | everywhere;
                if let Some(port) = port.as_ref().filter(|_| number != usize::from(self.source)) {
                    port.delivery.deliver(&frames, wanted, self.queue);
                }
            }
        }
        (frames.slot_count(), frames.len())
    }
}

impl Transmit for ValeTx {
    /// All are taken: what finds no room at its destination is dropped there.
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        if self.switch.changes.load(Ordering::Acquire) != self.now.changes {
            self.now = self.switch.now();
        }
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        if let Some((slots, pool)) = batch.contents() {
            bytes = slots.iter().map(Slot::len).sum();
            while taken < slots.len() {
                let some = self.switch_some(&slots[taken..], pool);
                (taken, packets) = (taken + some.0, packets + some.1);
            }
        }
        batch.drop_front(taken);
        self.counters.moved_packets(packets, taken, bytes);
        taken
    }

    fn buffers(&self) -> usize {
        0
    }
}
