//! Copies packets that a client sends into a pipe, for the pipe's monitors.

use std::os::fd::OwnedFd;

use linerate_core::error::Result;

use crate::share::protocol::mapping::{Buffers, SharedMapping};
use crate::share::protocol::ring::{ClientRing, NS_MOREFRAG, RingAt, SharedRing, Slot};

/// The sender's end of a ring of the shadow (`server/shadow.rs`), into which it copies packets.
pub struct Copier {
    client: ClientRing,
    /// The slot for the next copy, and the first slot of its packet.
    next: usize,
    begin: usize,
    /// The packet did not fit, so its remaining slots are skipped.
    skips: bool,
    bytes: Vec<u8>,
}

impl Copier {
    /// Opens the sender's end of a ring of the shadow.
    ///
    /// # Errors
    /// [`ErrorKind::BadPeer`](linerate_core::ErrorKind::BadPeer) if the ring is outside its memory.
    pub fn new(memory: OwnedFd, buffers: Buffers, place: RingAt) -> Result<Copier> {
        let client = ClientRing::begin(SharedRing::new(&SharedMapping::of_peer(memory, buffers)?, place)?);
        let head = client.head();
        Ok(Copier { client, next: head, begin: head, skips: false, bytes: Vec::new() })
    }

    /// Skips the rest of a packet whose first slots were not copied.
    pub fn skip(&mut self) {
        self.skips = true;
    }

    /// Copies the bytes of a slot of ring `from`.
    pub fn copy(&mut self, from: &SharedRing, number: usize, slot: Slot) {
        let has_more = slot.has_more();
        let ring = &self.client.ring;
        if !self.skips && self.next == self.client.tail() {
            self.skips = true;
            self.next = self.begin;
            ring.count_shadow_drop();
        }
        let place = if self.skips { None } else { ring.memory.buffer(ring.slot(self.next).buffer) };
        if let (Some(at), Some((source, len))) = (place, from.bytes(number, slot)) {
            self.bytes.resize(len.min(ring.memory.buffers.size), 0);
            from.memory.mapping.read(source, &mut self.bytes);
            ring.memory.mapping.write(at, &self.bytes);
            let copy = Slot { len: self.bytes.len() as u16, flags: slot.flags & NS_MOREFRAG, ..ring.slot(self.next) };
            ring.set_slot(self.next, copy);
            self.next = ring.next(self.next);
        }
        if !has_more {
            (self.skips, self.begin) = (false, self.next);
        }
    }

    /// Publishes the complete packets, and reads the shadow's tail. Returns whether the server must be woken with a
    /// token.
    pub fn hand_over(&mut self) -> bool {
        self.client.set(self.begin as u32, self.begin as u32);
        // The head is between the last head and tail, so this cannot fail.
        let must_notify = self.client.publish_head().unwrap_or(false) && self.client.must_notify();
        self.client.update_tail();
        must_notify
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::share::protocol::layout::Offsets;
    use crate::share::protocol::ring::tests::rings;
    use crate::share::protocol::ring::{Front, ServerTxRing};

    /// Returns a ring with packets, and both ends of a shadow's ring.
    fn copier(slots: u32) -> (SharedRing, Copier, ServerTxRing) {
        let (_memory, [source, _]) = rings(16, 0, Offsets::default());
        let (memory, [ring, _]) = rings(slots, 0, Offsets::default());
        let consumer = ServerTxRing::new(ring.clone());
        let file = memory.shared.as_fd().try_clone_to_owned().unwrap();
        let copier = Copier::new(file, memory.shared.buffers, ring.place).unwrap();
        for n in 0..16 {
            let at = source.memory.buffer(source.slot(n).buffer).unwrap();
            source.memory.mapping.write(at, &[n as u8 + 1; 100]);
        }
        (source, copier, consumer)
    }

    /// Copies slots with these flags, from `first` on.
    fn copy(copier: &mut Copier, source: &SharedRing, first: usize, flags: &[u16]) -> bool {
        for (n, flags) in flags.iter().enumerate() {
            let slot = Slot { len: 100, flags: *flags, ..source.slot(first + n) };
            copier.copy(source, first + n, slot);
        }
        copier.hand_over()
    }

    /// Returns the received packets, each as the first byte of each of its slots.
    fn seen(consumer: &mut ServerTxRing) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Front::Packet { len, .. } = consumer.front() {
            let parts = consumer.parts.clone();
            assert_eq!(len, 100 * parts.len());
            let byte = |at: usize| {
                let mut byte = [0];
                consumer.ring.memory.mapping.read(at, &mut byte);
                byte[0]
            };
            packets.push(parts.iter().map(|(at, _)| byte(*at)).collect());
            consumer.advance(parts.len());
        }
        consumer.publish_tail();
        packets
    }

    const MORE: u16 = NS_MOREFRAG;

    #[test]
    fn a_shadow_gets_whole_packets_in_order() {
        let (source, mut copier, mut consumer) = copier(16);
        copy(&mut copier, &source, 0, &[0, MORE, 0, MORE]);
        assert_eq!(seen(&mut consumer), [vec![1], vec![2, 3]]);
        copy(&mut copier, &source, 4, &[0, 0x18]);
        assert_eq!(seen(&mut consumer), [vec![4, 5], vec![6]]);
        assert!(matches!(consumer.front(), Front::None));
    }

    #[test]
    fn packets_without_room_in_a_shadow_are_dropped_whole_and_counted() {
        let (source, mut copier, mut consumer) = copier(4);
        copy(&mut copier, &source, 0, &[0, 0, MORE, MORE, 0, 0]);
        // Three slots are free. After two packets of one slot, a packet of three slots is dropped, and the last packet
        // fits.
        assert_eq!(seen(&mut consumer), [vec![1], vec![2], vec![6]]);
        assert_eq!(consumer.ring.shadow_drops(), 1);
        copier.hand_over();
        copy(&mut copier, &source, 7, &[MORE, MORE, MORE, 0, 0]);
        assert_eq!(consumer.ring.shadow_drops(), 2, "a packet is counted once");
        copier.hand_over();
        copy(&mut copier, &source, 12, &[0]);
        assert_eq!(seen(&mut consumer).last().unwrap(), &[13]);
    }

    #[test]
    fn the_rest_of_a_begun_packet_is_skipped() {
        let (source, mut copier, mut consumer) = copier(16);
        copier.skip();
        copy(&mut copier, &source, 0, &[MORE, 0, 0]);
        assert_eq!(seen(&mut consumer), [[3]]);
        assert_eq!(consumer.ring.shadow_drops(), 0);
    }

    #[test]
    fn the_thread_of_a_shadow_is_woken_if_it_sleeps() {
        let (source, mut copier, consumer) = copier(16);
        assert!(!copy(&mut copier, &source, 0, &[0]));
        consumer.ring.arm_server();
        assert!(!copier.hand_over(), "nothing has come");
        assert!(copy(&mut copier, &source, 1, &[0]));
    }
}
