//! netmap's view of a port that another process serves: its rings, in memory that both processes share.
//!
//! All state is in that memory, so threads and processes can share the port. Server and client wake each other through
//! the port's descriptor. The caller owns it, because a program may close it or pass it on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_core::error::{Error, Result};
use linerate_core::memory::Mapping;
use linerate_core::packet::Packet;
use linerate_core::port::{MacAddress, is_pipe};

use crate::share::client::copier::Copier;
use crate::share::client::forward::forward;
use crate::share::client::indirect;
use crate::share::client::requests::shadow_of;
use crate::share::client::rings::{ClientRings, ClientRx, ClientTx, PipeLink, stamp};
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::{DESCRIPTION, PortLayout, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::{Segments, SharedMapping};
use crate::share::protocol::message::{OpenRequest, Opened, RingSelection};
use crate::share::protocol::ring::{ClientRing, MAX_FRAGS, NS_MOREFRAG, SharedRing, Slot};

/// The most buffers that are prefetched together.
const AHEAD: usize = 32;

/// A port that another process serves.
pub struct SharedPort {
    opened: Opened,
    memory: Arc<SharedMapping>,
    client_rings: ClientRings,
}

impl SharedPort {
    /// Opens a port in this memory. With `is_opener`, this process opened the port; otherwise it received the port from
    /// another process.
    pub(super) fn new(opened: Opened, memory: Arc<SharedMapping>, is_opener: bool) -> Result<SharedPort> {
        let client_rings = ClientRings::new(&memory, &opened.layout, opened.other.as_ref(), is_opener)?;
        let end = opened.layout.at.checked_add(DESCRIPTION);
        if end.is_none_or(|end| end > memory.mapping.len()) {
            return Err(Error::bad_peer("its description is outside its memory"));
        }
        Ok(SharedPort { opened, memory, client_rings })
    }

    /// Returns the request that opened the port.
    pub fn request(&self) -> &OpenRequest {
        &self.opened.request
    }

    /// Returns the number of the port's rings. This descriptor may not have all of them.
    pub fn rings(&self) -> &RingCounts {
        &self.opened.rings
    }

    /// Returns the port's address.
    pub fn mac(&self) -> MacAddress {
        MacAddress(self.opened.mac)
    }

    /// Returns whether a client has opened the pipe's other end; true if this is not a pipe.
    pub fn is_other_end_open(&self) -> bool {
        let rings = (self.client_rings.tx.iter().flatten().map(|tx| &tx.client.ring))
            .chain(self.client_rings.rx.iter().flatten().map(|rx| &rx.client.ring));
        !is_pipe(&self.request().name)
            || self.request().is_monitor()
            || rings.take(1).all(SharedRing::is_other_end_open)
    }

    /// Returns the memory that contains the rings and packets.
    pub fn memory(&self) -> &Arc<SharedMapping> {
        &self.memory
    }

    /// Returns the number of the memory, and how many bytes of it the program maps.
    pub fn region(&self) -> (u16, usize) {
        (self.opened.number, self.opened.len)
    }

    /// Returns the locations of the port's description and rings.
    pub fn layout(&self) -> &PortLayout {
        &self.opened.layout
    }

    /// Returns the number of buffers outside all rings. The port's description holds the first of their list.
    pub fn extra_buffers(&self) -> u32 {
        self.opened.extra
    }

    /// Passes on the slots that the program has released on transmit rings, and shows it the free slots (`NIOCTXSYNC`).
    /// `read` copies packets outside all buffers (`NS_INDIRECT`) from an address in the program.
    ///
    /// # Errors
    /// [`ErrorKind::BadRing`](linerate_core::ErrorKind::BadRing) if head or cur is outside the program's slots.
    pub fn sync_tx(&self, socket: BorrowedFd<'_>, read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Result<()> {
        let mut result = Ok(());
        for (number, transmit) in self.client_rings.tx.iter().enumerate() {
            let Some(transmit) = transmit else { continue };
            let Some(_turn) = transmit.client.turn() else { continue };
            if transmit.client.ring.place.zone != 0 {
                indirect::fetch(&transmit.client, &read);
            }
            self.update_copier(socket, number, transmit);
            result = transmit.hand_over(socket).and(result);
            transmit.update_tail(socket);
            stamp(&transmit.client.ring);
        }
        result
    }

    /// Replaces the copier if monitors of the pipe were opened or closed.
    #[inline(always)]
    fn update_copier(&self, socket: BorrowedFd<'_>, number: usize, transmit: &ClientTx) {
        let Some(PipeLink { copies, other }) = &transmit.pipe else { return };
        let shadow = transmit.client.ring.shadow();
        let copies = &mut *lock(copies);
        if shadow != copies.shadow {
            copies.shadow = shadow;
            copies.copier = self.shadow(socket, number);
            let is_inside = other.published() != transmit.client.head();
            copies.copier.iter_mut().filter(|_| is_inside).for_each(Copier::skip);
        }
    }

    #[cold]
    fn shadow(&self, socket: BorrowedFd<'_>, number: usize) -> Option<Copier> {
        let (buffers, places, mut memory) = shadow_of(socket).ok()?;
        Copier::new(memory.pop()?, buffers, *places.get(number)?).ok()
    }

    /// Moves packets that the program has marked and released between the card and the host's stack, if this descriptor
    /// has the rings of both.
    fn forward(&self, socket: BorrowedFd<'_>) {
        if self.request().selection != RingSelection::AllAndHost {
            return;
        }
        // A card has at least one receive ring; the server's number is not trusted.
        let (cards, hosts) = (usize::from(self.rings().rx).max(1), self.rings().tx.into());
        for (number, receive) in self.client_rings.rx.iter().enumerate() {
            // Ring n forwards to ring n of the other side, modulo the number of its rings.
            let targets = if number < cards { hosts..self.client_rings.tx.len() } else { 0..hosts };
            let target = targets.start + (number % cards) % targets.len().max(1);
            let (Some(receive), Some(Some(transmit))) = (receive, self.client_rings.tx.get(target)) else { continue };
            let (Some(_from), Some(_to)) = (receive.client.turn(), transmit.client.turn()) else { continue };
            transmit.update_tail(socket);
            if forward(&receive.client, &transmit.client) {
                // The head is between the last head and tail, so this cannot fail.
                let _ = transmit.hand_over(socket);
            }
        }
    }

    /// Returns the slots that the program has released on receive rings, and shows it the received slots
    /// (`NIOCRXSYNC`).
    ///
    /// # Errors
    /// As [`sync_tx`](SharedPort::sync_tx).
    pub fn sync_rx(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let mut result = Ok(());
        self.forward(socket);
        for receive in self.client_rings.rx.iter().flatten() {
            let Some(_turn) = receive.client.turn() else { continue };
            result = receive.give_back(socket).and(result);
            receive.client.update_tail();
            stamp(&receive.client.ring);
        }
        result
    }

    /// Calls `each` with the parts of each received packet of a ring, until it returns false for lack of room. Returns
    /// the number of packets for which it returned true. `parts` must be empty.
    pub(super) fn take(
        &self,
        socket: BorrowedFd<'_>,
        number: usize,
        parts: &mut Vec<(usize, usize)>,
        mut each: impl FnMut(&SharedMapping, &[(usize, usize)], u64) -> bool,
    ) -> usize {
        let Some(Some(receive)) = self.client_rings.rx.get(number) else { return 0 };
        let client = &receive.client;
        let Some(_turn) = client.turn() else { return 0 };
        client.update_tail();
        let (ring, mut taken) = (&client.ring, 0);
        let (mut at, mut head, tail) = (client.head(), client.head(), client.tail());
        ring.prefetch(at, tail, AHEAD, Mapping::prefetch);
        while at != tail {
            let slot = ring.slot(at);
            parts.extend(ring.bytes(at, slot));
            at = ring.next(at);
            if slot.has_more() {
                continue;
            }
            if !each(&self.memory, parts, ring.pointer(head)) {
                break;
            }
            parts.clear();
            (head, taken) = (at, taken + 1);
        }
        parts.clear();
        if taken > 0 {
            client.set(head as u32, head as u32);
            // The head is between the last head and tail, so this cannot fail.
            let _ = receive.give_back(socket);
        }
        taken
    }

    /// Returns the number of packets that did not fit into a receive ring, and of those that were too long, each modulo
    /// 2^32.
    #[inline(always)]
    pub(super) fn dropped(&self, number: usize) -> [u32; 2] {
        self.client_rings
            .rx
            .get(number)
            .and_then(Option::as_ref)
            .map_or([0; 2], |receive| receive.client.ring.dropped())
    }

    /// Puts packets with about `count` slots in total on a transmit ring. `next` gets the free room in bytes, and
    /// returns the next packet, or `None` if no packet is left or the next does not fit.
    pub(super) fn put<'a>(
        &self,
        socket: BorrowedFd<'_>,
        number: usize,
        count: usize,
        mut next: impl FnMut(usize) -> Option<Packet<'a>>,
    ) {
        let Some(Some(transmit)) = self.client_rings.tx.get(number) else { return };
        let client = &transmit.client;
        let Some(_turn) = client.turn() else { return };
        self.update_copier(socket, number, transmit);
        transmit.update_tail(socket);
        let (ring, memory) = (&client.ring, &self.memory);
        let (mut head, tail) = (client.head(), client.tail());
        ring.prefetch(head, tail, count.min(AHEAD), Mapping::prefetch_write);
        while let Some(packet) = next(ring.distance(head, tail).min(MAX_FRAGS) * memory.buffers.size) {
            head = fill(ring, head, &packet);
        }
        client.set(head as u32, head as u32);
        // The head is between the last head and tail, so this cannot fail.
        let _ = transmit.hand_over(socket);
    }

    /// Returns the head and tail of a ring at its last sync.
    ///
    /// # Panics
    /// If this descriptor does not have the ring.
    #[track_caller]
    pub fn indices(&self, receives: bool, number: usize) -> (u32, u32) {
        let client = self.client(receives, number);
        (client.head() as u32, client.tail() as u32)
    }

    /// Sets head and cur of a ring, as the program would.
    ///
    /// # Panics
    /// If this descriptor does not have the ring.
    #[track_caller]
    pub fn set_head(&self, receives: bool, number: usize, head: u32, cur: u32) {
        self.client(receives, number).set(head, cur);
    }

    #[track_caller]
    fn client(&self, receives: bool, number: usize) -> &ClientRing {
        let absent = "the ring is there";
        match receives {
            true => &self.client_rings.rx[number].as_ref().expect(absent).client,
            false => &self.client_rings.tx[number].as_ref().expect(absent).client,
        }
    }

    fn sending(&self) -> impl Iterator<Item = &ClientRing> {
        self.client_rings.tx.iter().flatten().map(|transmit| &transmit.client)
    }

    fn receiving(&self) -> impl Iterator<Item = &ClientRing> {
        self.client_rings.rx.iter().flatten().map(|receive: &ClientRx| &receive.client)
    }

    /// Returns whether a transmit ring has a free slot at cur.
    pub fn can_send(&self) -> bool {
        self.sending().any(ClientRing::is_ready)
    }

    /// Returns whether a receive ring has a packet at cur.
    pub fn can_receive(&self) -> bool {
        self.receiving().any(ClientRing::is_ready)
    }

    /// Asks the server to make the descriptor readable once a slot is free (`send`) or a packet has arrived
    /// (`receive`). The caller must sync and check the rings again before it sleeps. After a wake-up without a packet
    /// or free slot, set `is_in_vain` to read all pending tokens.
    pub fn arm(&self, socket: BorrowedFd<'_>, send: bool, receive: bool, is_in_vain: bool) {
        let all = || self.sending().chain(self.receiving());
        if is_in_vain || all().any(ClientRing::has_token) {
            Connection::new(socket).read_tokens();
            for transmit in self.client_rings.tx.iter().flatten() {
                // If other threads sync all the time, they also update the tail.
                if let Some(_turn) = transmit.client.turn() {
                    transmit.update_tail(socket);
                }
            }
            // Another thread or process may wait for these rings, so the server must check them again.
            let with_token: Vec<&ClientRing> = all().filter(|client| client.forget_token()).collect();
            with_token.iter().for_each(|client| client.arm());
            if with_token.iter().any(|client| client.tail_past_cur()) {
                Connection::new(socket).notify();
            }
        }
        self.sending().filter(|_| send).for_each(ClientRing::arm);
        self.receiving().filter(|_| receive).for_each(ClientRing::arm);
    }

    /// Keeps a token pending in the descriptor, which is thus readable, whenever a slot is free (`send`) or a packet
    /// has arrived (`receive`). So the kernel always knows the descriptor's state.
    pub fn keep_armed(&self, socket: BorrowedFd<'_>, send: bool, receive: bool) {
        let sending = self.sending().filter(|_| send);
        let mut needs_notify = false;
        for client in sending.chain(self.receiving().filter(|_| receive)).filter(|client| !client.has_token()) {
            client.arm();
            needs_notify |= client.tail_past_cur();
        }
        if needs_notify {
            Connection::new(socket).notify();
        }
    }

    /// As [`arm`](SharedPort::arm), but for a single receive ring, for ports with one waiting thread per ring.
    pub(super) fn arm_ring(&self, socket: BorrowedFd<'_>, number: usize) {
        self.arm(socket, false, false, false);
        if let Some(Some(receive)) = self.client_rings.rx.get(number) {
            receive.client.arm();
        }
    }
}

/// Copies a packet into the slots from `slot` on, which must have room for it. Returns the slot after the packet.
#[inline(always)]
fn fill(ring: &SharedRing, mut slot: usize, packet: &Packet<'_>) -> usize {
    let (memory, mut left) = (&ring.memory, packet.len());
    let mut from = Segments { begun: &[], segments: packet.segments() };
    loop {
        let (buffer, len) = (ring.slot(slot).buffer, left.min(memory.buffers.size));
        left -= len;
        let flags = if left > 0 { NS_MOREFRAG } else { 0 };
        // Another process that uses the port may have written an invalid buffer number.
        if let Some(at) = memory.buffer(buffer) {
            from.write(&memory.mapping, at, len);
        }
        ring.set_slot(slot, Slot { buffer, len: len as u16, flags });
        slot = ring.next(slot);
        if left == 0 {
            return slot;
        }
    }
}

/// Returns whether a descriptor is still connected to its port's server.
pub fn is_served(socket: BorrowedFd<'_>) -> bool {
    !Connection::new(socket).has_ended()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    use linerate_core::batch::Batch;

    use super::*;
    use crate::share::protocol::connection::Connection;
    use crate::share::protocol::connection::tests::was_notified;
    use crate::share::protocol::layout::{Offsets, Plan};
    use crate::share::protocol::ring::{FLAGS, NS_FORWARD, ServerRxRing};
    use crate::share::server::netmap_memory::NetmapMemory;
    use crate::share::server::pump::tests::pool;

    /// A port with all its rings, its descriptor, and the server's end of the connection.
    struct Bench {
        port: SharedPort,
        descriptor: Connection,
        server: Connection,
    }

    impl std::ops::Deref for Bench {
        type Target = SharedPort;

        fn deref(&self) -> &SharedPort {
            &self.port
        }
    }

    impl Bench {
        fn new(rings: RingCounts, selection: RingSelection) -> Bench {
            let rings = RingCounts { tx_slots: 16, rx_slots: 16, ..rings };
            let memory = NetmapMemory::new(Plan::of_ports(1, &rings, 0)).unwrap();
            let layout = memory.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
            for place in layout.tx.iter().flatten() {
                ClientRing { ring: SharedRing::new(&memory.shared, *place).unwrap() }.free_up_to(0);
            }
            let opened = Opened {
                request: OpenRequest { name: "a".to_string(), selection, rings, ..OpenRequest::default() },
                rings,
                mac: [0; 6],
                number: 7,
                len: memory.plan.len(),
                buffers: memory.shared.buffers,
                layout,
                other: None,
                extra: 0,
            };
            let port = SharedPort::new(opened, memory.shared.clone(), true).unwrap();
            let [descriptor, server] = Connection::pair().unwrap();
            Bench { port, descriptor, server }
        }

        fn socket(&self) -> BorrowedFd<'_> {
            self.descriptor.as_fd()
        }

        fn ring(&self, receives: bool, number: usize) -> SharedRing {
            self.port.client(receives, number).ring.clone()
        }

        fn sync(&self) {
            self.port.sync_tx(self.socket(), |_, _| None).unwrap();
            self.port.sync_rx(self.socket()).unwrap();
        }

        /// Publishes `slots` slots of a receive ring, as the server does.
        fn fill(&self, number: usize, slots: usize) {
            let mut producer = ServerRxRing::new(self.ring(true, number));
            producer.advance(slots);
            producer.publish_tail();
        }

        /// Sends a token as the server does, if the client has asked to be woken.
        fn answer(&self, receives: bool, number: usize) -> bool {
            let ring = self.ring(receives, number);
            let is_woken = ring.must_notify_client();
            if is_woken {
                self.server.notify();
            }
            is_woken
        }
    }

    #[test]
    fn marked_packets_pass_ring_by_ring() {
        let rings = RingCounts { tx: 2, rx: 3, host_tx: 2, host_rx: 3, ..RingCounts::default() };
        // From the card to rings 2 and 3 of the host's stack; from the host's stack to rings 0 and 1 of the card.
        let expected = [2, 3, 2, 0, 1, 0];
        for (selection, passes) in [(RingSelection::AllAndHost, true), (RingSelection::All, false)] {
            for (from, to) in expected.into_iter().enumerate() {
                let port = Bench::new(rings, selection);
                let ring = port.ring(true, from);
                ring.word(FLAGS).store(4, Relaxed); // NR_FORWARD
                ring.set_slot(0, Slot { len: 60, flags: NS_FORWARD, ..ring.slot(0) });
                port.fill(from, 1);
                port.sync();
                port.set_head(true, from, 1, 1);
                port.sync_rx(port.socket()).unwrap();
                let heads = [0, 1, 2, 3].map(|n| port.indices(false, n).0);
                let moved = [0, 1, 2, 3].map(|n| u32::from(passes && n == to));
                assert_eq!(heads, moved, "from ring {from}");
            }
        }
    }

    #[test]
    fn tokens_are_requested_for_the_awaited_direction() {
        let port = Bench::new(RingCounts { tx: 1, rx: 1, ..RingCounts::default() }, RingSelection::All);
        let (tx, rx) = (port.ring(false, 0), port.ring(true, 0));
        let wakes = || (tx.must_wake_client(), rx.must_wake_client());
        let arm = |send: bool, receive: bool| {
            port.arm(port.socket(), send, receive, false);
            let armed = wakes();
            for ring in [&tx, &rx] {
                ClientRing { ring: ring.clone() }.forget_token();
            }
            armed
        };
        assert_eq!(arm(false, false), (false, false));
        assert_eq!(arm(true, false), (true, false));
        assert_eq!(arm(false, true), (false, true));
        assert_eq!(arm(true, true), (true, true));
        port.sync();
        assert!(port.can_send() && !port.can_receive());
        port.set_head(false, 0, 0, port.indices(false, 0).1);
        assert!(!port.can_send());
        port.fill(0, 1);
        port.sync();
        assert!(port.can_receive());
    }

    /// A token that woke a thread in vain is read, although another thread or process may still wait for it.
    #[test]
    fn a_token_that_is_read_is_requested_again() {
        let port = Bench::new(RingCounts { tx: 1, rx: 2, ..RingCounts::default() }, RingSelection::All);
        port.arm(port.socket(), false, true, false);
        port.fill(1, 1);
        assert!(port.answer(true, 1) && port.descriptor.has_news());
        // A thread that waits to send reads the token of a thread that receives.
        port.arm(port.socket(), true, false, false);
        assert!(was_notified(&port.server), "the server is to look again");
        assert!(port.answer(true, 1) && port.descriptor.has_news());
        // Packets that were received but not released do not need another check.
        port.sync();
        port.set_head(true, 1, 0, 1);
        port.arm(port.socket(), true, false, false);
        assert!(!was_notified(&port.server) && !port.descriptor.has_news());
        // Tokens that no ring requested are read once they have woken a thread in vain.
        port.server.notify();
        port.arm(port.socket(), false, true, false);
        assert!(port.descriptor.has_news());
        port.arm(port.socket(), false, true, true);
        assert!(!port.descriptor.has_news() && port.ring(true, 0).is_armed());
    }

    #[test]
    fn the_kernel_knows_the_state_of_a_descriptor_that_is_kept_armed() {
        let port = Bench::new(RingCounts { tx: 1, rx: 1, ..RingCounts::default() }, RingSelection::All);
        port.keep_armed(port.socket(), false, true);
        assert!(!was_notified(&port.server) && port.ring(true, 0).is_armed() && !port.ring(false, 0).is_armed());
        port.fill(0, 1);
        assert!(port.answer(true, 0));
        port.sync();
        port.keep_armed(port.socket(), false, true);
        assert!(port.descriptor.has_news() && !was_notified(&port.server), "a token is there");
        // Another thread reads the token while a packet is available.
        port.arm(port.socket(), false, false, true);
        let _ = was_notified(&port.server);
        ClientRing { ring: port.ring(true, 0) }.forget_token();
        port.ring(true, 0).must_wake_client();
        ClientRing { ring: port.ring(true, 0) }.forget_token();
        port.keep_armed(port.socket(), false, true);
        assert!(was_notified(&port.server), "the server is to look");
    }

    #[test]
    fn the_end_of_the_server_is_seen() {
        let port = Bench::new(RingCounts { tx: 1, rx: 1, ..RingCounts::default() }, RingSelection::All);
        assert!(is_served(port.socket()));
        port.server.end();
        assert!(!is_served(port.socket()));
    }

    #[test]
    fn packets_are_taken_and_put_up_to_the_room() {
        let port = Bench::new(RingCounts { tx: 1, rx: 1, ..RingCounts::default() }, RingSelection::All);
        let (tx, rx) = (port.ring(false, 0), port.ring(true, 0));
        let size = port.memory().buffers.size;
        // 15 slots are free: packets of two and three slots, and ten slots for the last packet.
        let (pool, mut batch, mut rooms) = (pool(64), Batch::new(), Vec::new());
        for len in [size + 1, 2 * size + 1, 10 * size] {
            assert!(batch.push(&pool, &vec![7; len]));
        }
        let mut packets = batch.packets();
        tx.arm_server();
        port.put(port.socket(), 0, 3, |room| {
            rooms.push(room / size);
            packets.next()
        });
        assert_eq!(rooms, [15, 13, 10, 0]);
        assert!(was_notified(&port.server), "the other side is told");
        let slots =
            |range: std::ops::Range<usize>| range.map(|n| (tx.slot(n).len, tx.slot(n).has_more())).collect::<Vec<_>>();
        let full = size as u16;
        assert_eq!(slots(0..5), [(full, true), (1, false), (full, true), (full, true), (1, false)]);
        assert_eq!(slots(13..15), [(full, true), (full, false)]);
        assert_eq!(port.indices(false, 0).0, 15);

        let lens = [(100, NS_MOREFRAG), (50, 0), (60, 0), (70, NS_MOREFRAG)];
        lens.iter()
            .enumerate()
            .for_each(|(n, (len, flags))| rx.set_slot(n, Slot { len: *len, flags: *flags, ..rx.slot(n) }));
        let mut producer = ServerRxRing::new(rx.clone());
        producer.advance(4);
        producer.publish_tail();
        let take = |most: usize| {
            let mut seen = Vec::new();
            let taken = port.take(port.socket(), 0, &mut Vec::new(), |_, parts, _| {
                let has_room = seen.len() < most;
                if has_room {
                    seen.push(parts.iter().map(|(_, len)| *len).collect::<Vec<_>>());
                }
                has_room
            });
            (taken, seen)
        };
        assert_eq!(take(0), (0, vec![]));
        assert_eq!(port.indices(true, 0).0, 0);
        assert_eq!(take(1), (1, vec![vec![100, 50]]));
        assert_eq!(port.indices(true, 0).0, 2);
        assert_eq!(take(9), (1, vec![vec![60]]), "the last packet has no end yet");
        assert_eq!(port.indices(true, 0).0, 3);
        port.put(port.socket(), 1, 3, |_| unreachable!("there is no such ring"));
        assert_eq!(port.take(port.socket(), 1, &mut Vec::new(), |_, _, _| true), 0);
    }
}
