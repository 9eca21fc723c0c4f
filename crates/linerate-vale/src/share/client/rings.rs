//! A client's rings: how each is synced, and how packets pass a pipe (`protocol/pipe.rs`).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use linerate_core::error::{Error, Result};

use crate::share::client::copier::Copier;
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::PortLayout;
use crate::share::protocol::lock;
use crate::share::protocol::mapping::SharedMapping;
use crate::share::protocol::pipe::reclaim;
use crate::share::protocol::ring::{ClientRing, NS_BUF_CHANGED, NS_TXMON, RingAt, ServerRxRing, SharedRing, Slot};

/// A port's rings: first the card's, then the host stack's.
pub struct ClientRings {
    pub tx: Vec<Option<ClientTx>>,
    pub rx: Vec<Option<ClientRx>>,
}

/// A transmit ring. In a pipe, it leads to the other end's receive ring.
pub struct ClientTx {
    pub client: ClientRing,
    pub pipe: Option<PipeLink>,
}

/// The other end of a pipe's transmit ring.
pub struct PipeLink {
    pub other: SharedRing,
    /// Where to put copies for the pipe's monitors.
    pub copies: Mutex<Copies>,
}

/// The copies for a pipe's monitors.
#[derive(Default)]
pub struct Copies {
    /// The version of the pipe's shadow when it was last checked.
    pub shadow: u32,
    pub copier: Option<Copier>,
}

/// A receive ring. In a pipe, its packets come from the other end's transmit ring.
pub struct ClientRx {
    pub client: ClientRing,
    pub pipe: Option<SharedRing>,
}

impl ClientRings {
    /// Opens the rings of a port; for a pipe, also those of its `other` end. With `is_opener`, head and cur continue
    /// where the port's last client left them. Otherwise another process also uses the port, and its state is not
    /// changed.
    ///
    /// # Errors
    /// [`ErrorKind::BadPeer`](linerate_core::ErrorKind::BadPeer) if a ring is outside the memory, or a pipe's ring has
    /// no counterpart at the other end.
    pub fn new(
        memory: &Arc<SharedMapping>,
        mine: &PortLayout,
        other: Option<&PortLayout>,
        is_opener: bool,
    ) -> Result<ClientRings> {
        let ring = |place: &RingAt| {
            let offset_mask = mine.offset_mask;
            SharedRing::new(memory, *place).map(|ring| SharedRing { offset_mask, ..ring })
        };
        let client = |place: &RingAt| {
            ring(place).map(|ring| if is_opener { ClientRing::begin(ring) } else { ClientRing { ring } })
        };
        let other_end = |places: Option<&Vec<Option<RingAt>>>, n: usize, slots: usize| {
            let Some(places) = places else { return Ok(None) };
            match places.get(n) {
                Some(Some(place)) if place.slots == slots => ring(place).map(Some),
                _ => Err(Error::bad_peer("its pipe has no other end")),
            }
        };
        let transmit = |(n, place): (usize, &Option<RingAt>)| {
            let Some(place) = place else { return Ok(None) };
            let other = other_end(other.map(|other| &other.rx), n, place.slots)?;
            let client = client(place)?;
            let pipe = other.map(|other| PipeLink { other, copies: Mutex::default() });
            if is_opener && let Some(pipe) = &pipe {
                // The last client may have been killed while sending.
                client.reset_head(pipe.other.published());
                pipe.reclaim(&client);
                client.update_tail();
            }
            Ok(Some(ClientTx { client, pipe }))
        };
        let receive = |(n, place): (usize, &Option<RingAt>)| {
            let Some(place) = place else { return Ok(None) };
            let pipe = other_end(other.map(|other| &other.tx), n, place.slots)?;
            Ok(Some(ClientRx { client: client(place)?, pipe }))
        };
        Ok(ClientRings {
            tx: mine.tx.iter().enumerate().map(transmit).collect::<Result<_>>()?,
            rx: mine.rx.iter().enumerate().map(receive).collect::<Result<_>>()?,
        })
    }
}

impl ClientTx {
    /// Passes on the slots that the program has released, and wakes the server with a token if the server has asked for
    /// that.
    ///
    /// # Errors
    /// [`ErrorKind::BadRing`](linerate_core::ErrorKind::BadRing).
    #[inline(always)]
    pub fn hand_over(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let client = &self.client;
        let must_notify = match &self.pipe {
            Some(pipe) => {
                let before = client.head();
                client.publish_head()? && pipe.pass(&client.ring, before, client.head())
            }
            None => client.publish_head()? && client.must_notify(),
        };
        if must_notify {
            Connection::new(socket).notify();
        }
        Ok(())
    }

    /// Reclaims the free slots and shows the program the new tail.
    #[inline(always)]
    pub fn update_tail(&self, socket: BorrowedFd<'_>) {
        let ring = &self.client.ring;
        if let Some(pipe) = &self.pipe {
            pipe.reclaim(&self.client);
        }
        // The server may publish more slots in the meantime. The program must see only slots that the monitor has
        // already received.
        let tail = ring.published();
        if let Some(monitor) = ring.monitor() {
            let (from, to) = (ring.next(self.client.tail()), ring.next(tail));
            give_to_monitor(ring, from, to, &monitor, NS_TXMON, socket);
        }
        self.client.show_tail(tail);
    }
}

impl ClientRx {
    /// Returns the slots that the program has released, and sends a token if the server, or the sender of a pipe, has
    /// asked to be woken.
    ///
    /// # Errors
    /// [`ErrorKind::BadRing`](linerate_core::ErrorKind::BadRing).
    #[inline(always)]
    pub fn give_back(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let (ring, head) = (&self.client.ring, self.client.checked_head()?);
        if let Some(monitor) = ring.monitor() {
            give_to_monitor(ring, self.client.head(), head, &monitor, 0, socket);
        }
        let must_notify = self.client.publish(head)
            && match &self.pipe {
                Some(sender) => sender.is_armed(),
                None => self.client.must_notify(),
            };
        if must_notify {
            Connection::new(socket).notify();
        }
        Ok(())
    }
}

impl PipeLink {
    /// Copies these slots to the other end, and publishes the whole packets among them. Returns whether the receiver
    /// must be woken with a token.
    #[inline(always)]
    fn pass(&self, ring: &SharedRing, from: usize, head: usize) -> bool {
        let (other, mut at) = (&self.other, from);
        let mut copies = lock(&self.copies);
        while at != head {
            let slot = ring.slot(at);
            if ring.bytes(at, slot).is_some() {
                if let Some(copier) = &mut copies.copier {
                    copier.copy(ring, at, slot);
                }
                other.copy_slot(ring, at);
            } else {
                // A slot with an invalid buffer number becomes an empty packet.
                other.set_slot(at, Slot { len: 0, flags: 0, ..other.slot(at) });
            }
            if slot.flags & NS_BUF_CHANGED != 0 {
                ring.set_slot(at, Slot { flags: slot.flags & !NS_BUF_CHANGED, ..slot });
            }
            at = ring.next(at);
        }
        let is_copied = copies.copier.as_mut().is_some_and(Copier::hand_over);
        other.publish_packets(head);
        other.is_armed() || is_copied
    }

    /// Reclaims the slots that the other end has released, with the buffers that the program at the other end put
    /// there.
    #[inline(always)]
    fn reclaim(&self, client: &ClientRing) {
        let released = self.other.released();
        reclaim(&client.ring, &self.other, released);
        client.free_up_to(released);
    }
}

/// Swaps the buffers of slots that a port is done with for buffers of its zero-copy monitor. If the monitor lacks room
/// for all slots, it gets the last buffers, as in netmap (netmap_monitor.c).
#[cold]
fn give_to_monitor(port: &SharedRing, from: usize, to: usize, monitor: &SharedRing, flag: u16, socket: BorrowedFd<'_>) {
    let client = ClientRing { ring: monitor.clone() };
    let Some(_turn) = client.turn() else { return };
    // The monitor may be closed by now, and another ring may be at its location.
    if port.monitor().is_none_or(|there| there.place != monitor.place) {
        return;
    }
    let mut producer = ServerRxRing::new(monitor.clone());
    let count = port.distance(from, to);
    let fits = count.min(producer.free());
    let (mut at, mut next) = ((from + count - fits) % port.place.slots, producer.tail());
    for _ in 0..fits {
        let (ours, theirs) = (port.slot(at), monitor.slot(next));
        let flags = ours.flags & !(NS_TXMON | NS_BUF_CHANGED) | flag;
        monitor.set_slot(next, Slot { flags, ..ours });
        port.set_slot(at, Slot { buffer: theirs.buffer, len: theirs.len, flags: ours.flags | NS_BUF_CHANGED });
        (at, next) = (port.next(at), monitor.next(next));
    }
    producer.advance(fits);
    producer.publish_tail();
    if fits > 0 && monitor.is_armed() {
        Connection::new(socket).notify();
    }
}

/// Stores the time of a sync.
#[inline(always)]
pub fn stamp(ring: &SharedRing) {
    ring.set_time(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use linerate_testkit::{Deadline, until};

    use super::*;
    use crate::share::protocol::connection::Connection;
    use crate::share::protocol::connection::tests::was_notified;
    use crate::share::protocol::layout::{Offsets, Plan, RingCounts};
    use crate::share::protocol::pipe::end_pipe;
    use crate::share::protocol::ring::{NS_FORWARD, NS_MOREFRAG};
    use crate::share::server::netmap_memory::NetmapMemory;

    const SLOTS: u32 = 8;

    /// A pipe's transmit ring, the receive ring at the other end, and both ends of a descriptor.
    struct Bench {
        memory: NetmapMemory,
        ends: [PortLayout; 2],
        transmit: ClientTx,
        receive: ClientRx,
        ours: Connection,
        server: Connection,
    }

    impl Bench {
        fn new(offsets: Offsets) -> Bench {
            let rings = RingCounts { tx: 1, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..RingCounts::default() };
            let memory = NetmapMemory::new(Plan::of_ports(3, &rings, 0)).unwrap();
            let ends = memory.place_pipe(&[rings; 2], offsets).unwrap();
            let [a, b] = &ends;
            let client_rings = |mine, other| ClientRings::new(&memory.shared, mine, Some(other), true).unwrap();
            let (mut near, mut far) = (client_rings(a, b), client_rings(b, a));
            let (transmit, receive) = (near.tx.remove(0).unwrap(), far.rx.remove(0).unwrap());
            let [ours, server] = Connection::pair().unwrap();
            Bench { memory, ends, transmit, receive, ours, server }
        }

        fn send(&self, slots: &[(u16, u16)]) {
            let client = &self.transmit.client;
            let mut head = client.head();
            for &(len, flags) in slots {
                client.ring.set_slot(head, Slot { len, flags, ..client.ring.slot(head) });
                head = client.ring.next(head);
            }
            client.set(head as u32, head as u32);
            self.transmit.hand_over(self.ours.as_fd()).unwrap();
            self.transmit.update_tail(self.ours.as_fd());
        }

        fn tail(&self) -> usize {
            self.receive.client.update_tail();
            self.receive.client.tail()
        }

        fn release(&self, head: u32) {
            self.receive.client.set(head, head);
            self.receive.give_back(self.ours.as_fd()).unwrap();
            self.transmit.update_tail(self.ours.as_fd());
        }

        fn rings(&self) -> (SharedRing, SharedRing) {
            (self.transmit.client.ring.clone(), self.receive.client.ring.clone())
        }
    }

    fn buffers(ring: &SharedRing) -> Vec<u32> {
        (0..SLOTS as usize).map(|n| ring.slot(n).buffer).collect()
    }

    /// As in netmap (netmap_pipe.c): a slot passes with all its contents, and returns as the receiver left it.
    #[test]
    fn slots_pass_a_pipe_and_come_back() {
        let bench = Bench::new(Offsets { mask: 0xFFF, first: 64 });
        let (near, far) = bench.rings();
        let ours = buffers(&near);
        (0..4).for_each(|n| near.set_offset(n, 100 + n));
        bench.send(&[(60, NS_FORWARD), (70, NS_MOREFRAG | NS_BUF_CHANGED), (80, 0)]);
        assert_eq!(bench.tail(), 3);
        let there = [0, 1, 2].map(|n| (far.slot(n).len, far.slot(n).flags, far.offset(n), far.slot(n).buffer));
        let changed = NS_BUF_CHANGED;
        assert_eq!(
            there,
            [(60, NS_FORWARD, 100, ours[0]), (70, changed | NS_MOREFRAG, 101, ours[1]), (80, 0, 102, ours[2])]
        );
        assert_eq!([0, 1, 2].map(|n| near.slot(n).flags), [NS_FORWARD, NS_MOREFRAG, 0]);
        // The receiver keeps a buffer, and puts another buffer into the slot.
        let spare = bench.memory.take_extra(1)[0];
        far.set_slot(1, Slot { buffer: spare, len: 7, flags: changed });
        far.set_offset(1, 9);
        bench.release(2);
        assert_eq!((near.slot(1).buffer, near.slot(1).len, near.offset(1)), (spare, 7, 9));
        assert_eq!((near.slot(0).buffer, near.slot(2).len), (ours[0], 80));
    }

    /// The next sender continues after the last packet that was passed on, wherever the last sender was killed.
    #[test]
    fn a_sender_begins_behind_packets_that_were_handed_over() {
        let bench = Bench::new(Offsets::default());
        bench.send(&[(60, 0), (61, NS_MOREFRAG)]);
        let (near, far) = bench.rings();
        far.set_slot(0, Slot { len: 9, ..far.slot(0) });
        let begun = ClientRing::begin(near.clone());
        assert_eq!(begun.head(), 2);
        bench.tail();
        bench.receive.client.set(1, 1);
        bench.receive.client.publish_head().unwrap();
        let [a, b] = [&bench.ends[0], &bench.ends[1]];
        let client_rings = ClientRings::new(&bench.memory.shared, a, Some(b), true).unwrap();
        let client = &client_rings.tx[0].as_ref().unwrap().client;
        assert_eq!((client.head(), client.tail(), near.slot(0).len), (1, 0, 9));
    }

    #[test]
    fn at_the_end_of_a_pipe_each_buffer_is_in_one_slot() {
        let bench = Bench::new(Offsets::default());
        let (near, far) = bench.rings();
        let spare = bench.memory.take_extra(1)[0];
        bench.send(&[(60, 0), (61, 0), (62, NS_MOREFRAG)]);
        bench.tail();
        let mut all = buffers(&near);
        // The receiver has swapped the buffer of a slot that it has not released.
        all[1] = spare;
        far.set_slot(1, Slot { buffer: spare, ..far.slot(1) });
        end_pipe(&near, &far);
        assert_eq!((buffers(&near), buffers(&far)), (all, vec![0; SLOTS as usize]));
    }

    /// A pipe has room for one ring of packets, including those that are not received yet.
    #[test]
    fn released_slots_return_to_the_sender() {
        let bench = Bench::new(Offsets::default());
        let tail = || bench.transmit.client.tail();
        assert_eq!(tail(), 7, "all of it is free");
        bench.send(&[(60, 0); 5]);
        assert_eq!((bench.tail(), tail()), (5, 7), "five of seven are on their way");
        bench.release(2);
        assert_eq!(tail(), 1);
        bench.send(&[(61, 0); 4]);
        assert_eq!((bench.tail(), bench.transmit.client.head(), tail()), (1, 1, 1), "and there is room for no more");
        bench.transmit.client.set(2, 2);
        assert!(bench.transmit.hand_over(bench.ours.as_fd()).is_err());
        bench.release(1);
        assert_eq!(tail(), 0);
    }

    #[test]
    fn slots_with_invalid_buffers_are_empty_packets() {
        let bench = Bench::new(Offsets::default());
        let (near, far) = bench.rings();
        near.set_slot(0, Slot { buffer: 1, ..near.slot(0) });
        let before = (buffers(&near), buffers(&far));
        bench.send(&[(60, NS_FORWARD), (2049, 0), (70, 0)]);
        assert_eq!((bench.tail(), [0, 1, 2].map(|n| far.slot(n).len)), (3, [0, 0, 70]));
        assert_eq!((buffers(&near), buffers(&far)), before);
        // If the other end releases an invalid buffer number, the sender keeps its own buffer.
        let own = near.slot(2).buffer;
        far.set_slot(2, Slot { buffer: u32::MAX, ..far.slot(2) });
        bench.release(3);
        assert_eq!(near.slot(2).buffer, own);
    }

    #[test]
    fn a_token_is_sent_if_it_is_wanted_and_something_has_changed() {
        let bench = Bench::new(Offsets::default());
        bench.send(&[(60, 0)]);
        assert!(!was_notified(&bench.server), "the other end is awake");
        bench.receive.client.arm();
        bench.send(&[]);
        assert!(!was_notified(&bench.server), "nothing has come");
        bench.send(&[(60, NS_MOREFRAG)]);
        assert!(was_notified(&bench.server));
        // The other direction: tokens wake a sender that waits for free slots.
        bench.tail();
        bench.release(1);
        assert!(!was_notified(&bench.server));
        bench.transmit.client.arm();
        bench.release(1);
        assert!(!was_notified(&bench.server), "it has not moved");
        bench.send(&[(60, 0)]);
        bench.tail();
        bench.release(3);
        assert!(was_notified(&bench.server));
    }

    #[test]
    fn a_server_that_waits_gets_a_token_for_sent_and_released_slots() {
        let rings = RingCounts { tx: 1, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..RingCounts::default() };
        let memory = NetmapMemory::new(Plan::of_ports(1, &rings, 0)).unwrap();
        let layout = memory.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        let client_rings = ClientRings::new(&memory.shared, &layout, None, true).unwrap();
        let [ours, server] = Connection::pair().unwrap();
        let (transmit, receive) = (client_rings.tx[0].as_ref().unwrap(), client_rings.rx[0].as_ref().unwrap());
        transmit.client.free_up_to(0);
        transmit.update_tail(ours.as_fd());
        let mut head = 0;
        let mut send = || {
            head += 1;
            transmit.client.set(head, head);
            transmit.hand_over(ours.as_fd()).unwrap();
            was_notified(&server)
        };
        assert!(!send());
        transmit.client.ring.arm_server();
        assert!(send() && !send(), "once");
        let mut producer = ServerRxRing::new(receive.client.ring.clone());
        producer.advance(3);
        producer.publish_tail();
        receive.client.update_tail();
        let release = |head: u32| {
            receive.client.set(head, head);
            receive.give_back(ours.as_fd()).unwrap();
            was_notified(&server)
        };
        assert!(!release(1));
        receive.client.ring.arm_server();
        assert!(!release(1) && release(2) && !release(3));
    }

    /// As in netmap: a zero-copy monitor gets received or sent buffers once the port is done with them.
    #[test]
    fn a_monitor_gets_buffers_that_the_port_is_done_with() {
        let bench = Bench::new(Offsets::default());
        let (near, far) = bench.rings();
        let slots = RingCounts { rx: 1, tx_slots: 4, rx_slots: 4, ..RingCounts::default() };
        let layout = bench.memory.place("m", &slots, |_| false, |_| true, Offsets::default()).unwrap();
        let monitor = ClientRing::begin(SharedRing::new(&bench.memory.shared, layout.rx[0].unwrap()).unwrap());
        let seen = |from: usize| {
            monitor.update_tail();
            let count = monitor.ring.distance(from, monitor.tail());
            (0..count).map(|n| monitor.ring.slot((from + n) % 4)).map(|slot| (slot.len, slot.flags)).collect::<Vec<_>>()
        };
        // A monitor of the receiver.
        far.set_monitor(Some(&monitor.ring));
        bench.send(&[(60, 0), (61, NS_MOREFRAG), (62, 0)]);
        let (there, free) = (buffers(&far), [0, 1].map(|n| monitor.ring.slot(n).buffer));
        assert_eq!((bench.tail(), seen(0)), (3, vec![]), "it has not released them yet");
        monitor.arm();
        bench.release(2);
        assert_eq!(seen(0), [(60, 0), (61, NS_MOREFRAG)]);
        assert!(was_notified(&bench.server), "the monitor is to be woken");
        assert_eq!([0, 1].map(|n| monitor.ring.slot(n).buffer), [there[0], there[1]]);
        assert_eq!([0, 1].map(|n| far.slot(n).buffer), [free[0], free[1]]);
        // The monitor has room for one more slot, and gets the last buffer.
        bench.send(&[(63, 0), (64, 0)]);
        bench.tail();
        bench.release(5);
        assert_eq!(seen(2), [(64, 0)]);
        far.set_monitor(None);
        monitor.set(3, 3);
        monitor.publish_head().unwrap();
        // A monitor of the sender gets sent buffers once the other end has released them.
        near.set_monitor(Some(&monitor.ring));
        bench.send(&[(65, 0), (66, 0)]);
        bench.tail();
        assert_eq!(seen(3), []);
        bench.release(7);
        assert_eq!(seen(3), [(65, NS_TXMON), (66, NS_TXMON)]);
        // Each buffer is in one slot.
        end_pipe(&near, &far);
        let mut all = [buffers(&near), (0..4).map(|n| monitor.ring.slot(n).buffer).collect()].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8 + 4);
    }

    /// Slots that the server frees during a sync reach the monitor in the next sync.
    #[test]
    fn a_monitor_misses_nothing_that_is_freed_during_a_sync() {
        const FREED: usize = if cfg!(miri) { 50 } else { 20_000 };
        let rings = RingCounts { tx: 1, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..RingCounts::default() };
        let memory = NetmapMemory::new(Plan::of_ports(2, &rings, 0)).unwrap();
        let layout = memory.place("a", &rings, |_| true, |_| false, Offsets::default()).unwrap();
        let client_rings = ClientRings::new(&memory.shared, &layout, None, true).unwrap();
        let layout = memory.place("m", &rings, |_| false, |_| true, Offsets::default()).unwrap();
        let monitor = ClientRing::begin(SharedRing::new(&memory.shared, layout.rx[0].unwrap()).unwrap());
        let (transmit, [ours, _server]) = (client_rings.tx[0].as_ref().unwrap(), Connection::pair().unwrap());
        let ring = &transmit.client.ring;
        ring.set_monitor(Some(&monitor.ring));
        transmit.client.free_up_to(0);
        transmit.client.update_tail();
        let (mut shown, mut seen) = (0, 0);
        std::thread::scope(|scope| {
            // The server frees each slot as soon as the client has sent it.
            scope.spawn(|| {
                let mut free = 0;
                for n in 0..FREED {
                    until(format_args!("slot {n} to be sent"), || free != transmit.client.head());
                    free = ring.next(free);
                    transmit.client.free_up_to(free);
                }
            });
            let deadline = Deadline::begin();
            while shown < FREED {
                deadline.check(|| format!("{FREED} slots to be shown; {shown} were"));
                let (head, before) = (transmit.client.tail() as u32, transmit.client.tail());
                transmit.client.set(head, head);
                transmit.client.publish_head().unwrap();
                transmit.update_tail(ours.as_fd());
                shown += ring.distance(before, transmit.client.tail());
                monitor.update_tail();
                seen += monitor.ring.distance(monitor.head(), monitor.tail());
                monitor.set(monitor.tail() as u32, monitor.tail() as u32);
                monitor.publish_head().unwrap();
            }
        });
        assert_eq!(seen, shown);
    }

    #[test]
    fn the_time_of_a_sync_is_recorded() {
        let bench = Bench::new(Offsets::default());
        let (ring, _) = bench.rings();
        stamp(&ring);
        let mut bytes = [0; 8];
        ring.memory.mapping.read(ring.place.at + crate::share::protocol::ring::TS, &mut bytes);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((now - 1..=now).contains(&u64::from_ne_bytes(bytes)));
    }

    #[test]
    fn a_pipe_without_its_other_end_is_refused() {
        let rings = RingCounts { tx: 2, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..RingCounts::default() };
        let memory = NetmapMemory::new(Plan::of_ports(2, &rings, 0)).unwrap();
        let layout = memory.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        assert!(ClientRings::new(&memory.shared, &layout, None, true).is_ok());
        let refused = ClientRings::new(&memory.shared, &layout, Some(&layout), true).map(drop);
        assert!(refused.is_err_and(|error| error.kind() == linerate_core::ErrorKind::BadPeer));
        // The paired rings of a pipe have the same number of slots.
        let rings = RingCounts { tx: 1, rx: 1, tx_slots: SLOTS, rx_slots: 4, ..RingCounts::default() };
        let memory = NetmapMemory::new(Plan::of_ports(1, &rings, 0)).unwrap();
        let layout = memory.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        assert!(ClientRings::new(&memory.shared, &layout, Some(&layout), true).is_err());
    }
}
