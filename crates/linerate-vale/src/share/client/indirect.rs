//! Packets outside a port's buffers, elsewhere in the program's memory (netmap(4), `NS_INDIRECT`). A sync copies them
//! into their slot's zone, where the server reads them.

use crate::share::protocol::ring::{ClientRing, NS_INDIRECT, Slot};

/// Copies the packets that the program has released since the last sync; `read` copies from an address in the program.
/// Packets that cannot be read, or have no zone, are not sent.
pub fn fetch(client: &ClientRing, mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>) {
    let ring = &client.ring;
    let mut at = client.head();
    for _ in 0..client.released() {
        let slot = ring.slot(at);
        if slot.flags & NS_INDIRECT != 0 {
            let bytes = read(ring.pointer(at), slot.len.into());
            let len = match (bytes, ring.zone(at)) {
                (Some(bytes), Some(zone)) => {
                    ring.memory.mapping.write(zone, &bytes);
                    slot.len
                }
                _ => 0,
            };
            ring.set_slot(at, Slot { len, ..slot });
        }
        at = ring.next(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::protocol::layout::{Offsets, Plan, RingCounts};
    use crate::share::protocol::ring::{SLOT, SLOTS, SharedRing};
    use crate::share::server::netmap_memory::NetmapMemory;

    fn set(ring: &SharedRing, number: usize, len: u16, address: Option<u64>) {
        let flags = if address.is_some() { NS_INDIRECT } else { 0 };
        ring.set_slot(number, Slot { len, flags, ..ring.slot(number) });
        let pointer = ring.place.at + SLOTS + number * SLOT + 8;
        ring.memory.mapping.write(pointer, &address.unwrap_or_default().to_ne_bytes());
    }

    #[test]
    fn packets_outside_buffers_are_copied_into_their_slots_zones() {
        let rings = RingCounts { tx: 1, rx: 1, tx_slots: 16, rx_slots: 16, ..RingCounts::default() };
        let memory = NetmapMemory::new(Plan { zones: 16, ..Plan::of_ports(1, &rings, 0) }).unwrap();
        let layout = memory.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        let ring = SharedRing::new(&memory.shared, layout.tx[0].unwrap()).unwrap();
        let client = ClientRing::begin(ring.clone());
        client.free_up_to(0);
        client.update_tail();
        let own = [0, 1, 2, 3, 4, 5].map(|n| ring.slot(n).buffer);
        // Short; in its buffer; of maximum length; at an invalid address.
        let packets = [(100, Some(1)), (50, None), (65_535, Some(2)), (60, Some(0))];
        packets.iter().enumerate().for_each(|(n, (len, address))| set(&ring, n, *len, *address));
        // A packet that is not yet released.
        set(&ring, 4, 70, Some(5));
        client.set(4, 4);
        let asked = std::cell::RefCell::new(Vec::new());
        fetch(&client, |address, len| {
            asked.borrow_mut().push((address, len));
            (address != 0).then(|| vec![address as u8; len])
        });
        assert_eq!(*asked.borrow(), [(1, 100), (2, 65_535), (0, 60)]);
        let slots = [0, 1, 2, 3, 4].map(|n| (ring.slot(n).len, ring.slot(n).flags));
        assert_eq!(slots, [(100, NS_INDIRECT), (50, 0), (65_535, NS_INDIRECT), (0, NS_INDIRECT), (70, NS_INDIRECT)]);
        let bytes = |slot: usize, count: usize| {
            let mut bytes = vec![0; count];
            memory.shared.mapping.read(ring.zone(slot).unwrap(), &mut bytes);
            bytes
        };
        assert_eq!(bytes(0, 101), [vec![1; 100], vec![0]].concat());
        assert_eq!(bytes(2, 65_535), [2; 65_535]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| ring.slot(n).buffer), own, "each slot keeps its buffer");
        // Without zones, such packets are not sent.
        let ring = SharedRing { place: crate::share::protocol::ring::RingAt { zone: 0, ..ring.place }, ..ring };
        fetch(&ClientRing { ring: ring.clone() }, |_, len| Some(vec![1; len]));
        assert_eq!(ring.slot(0).len, 0);
    }
}
