//! How a packet passes between two ports of a switch, top-down. This file decides the destination; `netmap/delivery.rs`
//! does the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_core::batch::Batch;
use linerate_core::memory::Pool;
use linerate_core::port::{QueueCounters, Transmit};
use linerate_core::slot::Slot;

use super::forward::HEADER;
use super::{Destination, MAX_PORTS, Snapshot, Switch};
use crate::netmap::frames::{CHUNK, Frames, Starts};

/// Sends a port's packets into the switch.
pub struct ValeTx {
    switch: Arc<Switch>,
    snapshot: Snapshot,
    source: u8,
    queue: usize,
    counters: Arc<QueueCounters>,
    /// For each destination port, a bit mask of its packets. All zeros between batches.
    wanted: Box<[u64; MAX_PORTS]>,
    starts: Starts,
    /// The destination of each packet of a chunk, and the ports that get packets.
    to: [Destination; CHUNK],
    used: [u8; MAX_PORTS],
    /// Destinations that have packets, and whose receivers must still be woken.
    asleep: Vec<u8>,
    /// Chunks sent since the first port was added to `asleep`.
    chunks: usize,
}

/// Chunks after which sleeping receivers are woken while their sender has more packets. Fewer wake-ups save CPU time on
/// both sides.
const WAKE_CHUNKS: usize = 4;

impl ValeTx {
    pub fn new(switch: &Arc<Switch>, source: u8, queue: u16, counters: Arc<QueueCounters>) -> ValeTx {
        let (wanted, switch) = (Box::new([0; MAX_PORTS]), switch.clone());
        ValeTx {
            snapshot: switch.snapshot(),
            switch,
            source,
            queue: queue.into(),
            counters,
            wanted,
            starts: [0; CHUNK + 1],
            to: [Destination::Drop; CHUNK],
            used: [0; MAX_PORTS],
            asleep: Vec::new(),
            chunks: 0,
        }
    }

    /// Decides on up to [`CHUNK`] packets from the front, and delivers them; returns the number of slots and packets.
    fn switch_some(&mut self, slots: &[Slot], pool: &Arc<Pool>) -> (usize, usize) {
        let frames = Frames::new(slots, pool, &mut self.starts);
        let to = &mut self.to[..frames.len()];
        to.fill(Destination::Drop);
        self.snapshot.forward.forward(self.source, &frames, to);
        let (mut everywhere, mut grouped, mut ports, mut too_short) = (0u64, false, 0, 0);
        for (packet, to) in to.iter().enumerate() {
            let bit = 1 << packet;
            match to {
                Destination::Port(port) if usize::from(*port) < self.snapshot.ports.len() && *port != self.source => {
                    let wanted = &mut self.wanted[usize::from(*port)];
                    if *wanted == 0 {
                        self.used[ports] = *port;
                        ports += 1;
                    }
                    *wanted |= bit;
                }
                Destination::Broadcast => everywhere |= bit,
                Destination::Group(_) => grouped = true,
                // A packet shorter than an Ethernet header has no destination.
                _ => too_short += u64::from(frames.get(packet).len() < HEADER),
            }
        }
        if grouped {
            let ValeTx { snapshot, wanted, used, source, .. } = self;
            ports = mark_groups(to, snapshot, *source, wanted, used, ports);
        }
        if too_short > 0
            && let Some(source) = &self.snapshot.ports[usize::from(self.source)]
        {
            source.delivery.count_too_short(too_short);
        }
        // Delivers the packets whose bits are set to a port, if it exists, and notes whether its receiver sleeps.
        let ValeTx { snapshot, asleep, wanted, used, queue, .. } = self;
        let mut deliver = |port: u8, wanted: u64| {
            if let Some(there) = &snapshot.ports[usize::from(port)]
                && there.delivery.deliver(&frames, wanted, *queue)
                && !asleep.contains(&port)
            {
                asleep.push(port);
            }
        };
        if everywhere == 0 {
            for &port in &used[..ports] {
                deliver(port, std::mem::take(&mut wanted[usize::from(port)]));
            }
        } else {
            for number in 0..snapshot.ports.len() {
                let wanted = std::mem::take(&mut wanted[number]) | everywhere;
                if number != usize::from(self.source) {
                    deliver(number as u8, wanted);
                }
            }
        }
        let switched = (frames.slot_count(), frames.len());
        if !self.asleep.is_empty() {
            self.chunks += 1;
            if self.chunks >= WAKE_CHUNKS {
                self.wake();
            }
        }
        switched
    }

    /// Wakes the receivers that sleep and have packets.
    #[cold]
    fn wake(&mut self) {
        self.chunks = 0;
        for port in self.asleep.drain(..) {
            if let Some(port) = &self.snapshot.ports[usize::from(port)] {
                port.delivery.wake(self.queue);
            }
        }
    }
}

/// Marks the packets for groups at each port of their group. `used` already lists `ports` ports that get packets;
/// returns the new number.
#[cold]
fn mark_groups(
    to: &[Destination],
    snapshot: &Snapshot,
    source: u8,
    wanted: &mut [u64; MAX_PORTS],
    used: &mut [u8; MAX_PORTS],
    mut ports: usize,
) -> usize {
    for (packet, to) in to.iter().enumerate() {
        let Destination::Group(group) = to else { continue };
        for &port in snapshot.groups.get(group).into_iter().flatten() {
            if usize::from(port) < snapshot.ports.len() && port != source {
                let wanted = &mut wanted[usize::from(port)];
                if *wanted == 0 {
                    used[ports] = port;
                    ports += 1;
                }
                *wanted |= 1 << packet;
            }
        }
    }
    ports
}

impl Transmit for ValeTx {
    /// Accepts all packets. Packets that do not fit at their destination are dropped there. A call without packets
    /// wakes the receivers of earlier packets.
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            self.wake();
            return 0;
        }
        if self.switch.changes.load(Ordering::Acquire) != self.snapshot.changes {
            self.wake();
            self.snapshot = self.switch.snapshot();
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

    /// Returns the number of receivers that must still be woken.
    fn unsent(&self) -> usize {
        self.asleep.len()
    }
}

impl Drop for ValeTx {
    fn drop(&mut self) {
        self.wake();
    }
}
