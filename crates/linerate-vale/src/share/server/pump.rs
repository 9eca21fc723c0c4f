//! Moves packets between a client's rings and a port, top-down. Each packet is copied once, before it is parsed,
//! because the client can change its memory at any time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use linerate_core::batch::Batch;
use linerate_core::memory::{Mapping, Pool};
use linerate_core::offload::{LONGEST, Offload};
use linerate_core::packet::Times;
use linerate_core::port::{RxQueue, TxQueue, YieldWait};
use rustix::event::Timespec;

use crate::share::protocol::mapping::Cursor;
use crate::share::protocol::ring::{Front, NS_NO_LEARN, ServerRxRing, ServerTxRing};
use crate::share::server::recipient::{DeliveredRing, HEADERS, Notifier, Put, put};

/// The most packets moved in one direction before the other direction's turn.
const BATCH: usize = 64;
/// How long the thread polls before it sleeps.
const POLLED: Duration = Duration::from_micros(20);
/// Turns with packets after which the connections are read.
const TURNS: u32 = 128;

/// The most turns for packets that a client sent before it ended; enough for the longest ring.
const LAST_TURNS: u32 = 1024;

/// The clients at the other end of the rings.
pub trait Clients: Notifier {
    /// Reads the clients' messages.
    fn listen(&self) -> Signals;
    /// Sleeps until a client sends a message, one of `others` is readable, or the time is up.
    fn sleep(&self, others: &[BorrowedFd<'_>], longest: Timespec);
    /// Tells the clients that the port has ended.
    fn notify_closed(&self) {}
}

/// What the clients' messages say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals {
    /// No clients are left.
    pub is_over: bool,
    /// A client sent a token: the thread must check the client's rings.
    pub token: bool,
}

/// Moves packets from a client's transmit ring to a queue.
pub struct TxPump {
    pub ring: ServerTxRing,
    pub queue: TxQueue,
    pub pool: Arc<Pool>,
    pub longest: usize,
    pub header: Arc<AtomicUsize>,
    pub batch: Batch,
}

/// Moves packets from a queue to a client's receive ring.
pub struct RxPump {
    pub ring: ServerRxRing,
    pub queue: RxQueue,
    pub header: Arc<AtomicUsize>,
    pub batch: Batch,
    /// Set if the client wants to know when packets arrived.
    pub times: Option<Times>,
}

impl TxPump {
    /// `header`: length of the virtio-net header in front of each packet.
    pub fn new(
        ring: ServerTxRing,
        queue: TxQueue,
        pool: &Arc<Pool>,
        longest: usize,
        header: &Arc<AtomicUsize>,
    ) -> TxPump {
        let mut batch = Batch::with_capacity(BATCH);
        batch.bind_if_unbound(pool);
        TxPump { ring, queue, pool: pool.clone(), longest, header: header.clone(), batch }
    }

    /// Makes one pass over the rings; returns the number of slots moved.
    fn turn(&mut self, notifier: &impl Notifier) -> usize {
        let mut slots = self.take_short();
        // Bounded, so that a client that keeps moving its head cannot hold the thread with packets that are dropped.
        let most = self.ring.ring.place.slots;
        while self.batch.len() < BATCH && slots < most {
            let done = match self.ring.front() {
                Front::None => break,
                Front::Packet { len, flags } if self.take(len, flags) => self.ring.parts.len(),
                // No buffer is free.
                Front::Packet { .. } => break,
                Front::Invalid { slots } => slots,
            };
            self.ring.advance(done);
            slots += done;
        }
        let waiting = self.batch.len();
        if waiting > 0 || self.queue.unsent() > 0 {
            self.queue.send(&mut self.batch);
        }
        if slots > 0 {
            self.ring.publish_tail();
            // A client that waits for room is woken once half the ring is free, or earlier if there is no more work.
            if self.ring.is_half_free() && self.ring.ring.must_wake_client() {
                notifier.notify();
            }
        }
        slots + (waiting - self.batch.len())
    }

    /// Copies packets of one slot without a header, up to the first packet of another kind. Returns their number.
    #[inline(always)]
    fn take_short(&mut self) -> usize {
        let TxPump { ring, pool, longest, header, batch, .. } = self;
        if header.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        ring.prefetch(BATCH);
        batch.push_short(pool, *longest, |target| {
            let (len, flags) = ring.take_short(target)?;
            Some((len, flags & NS_NO_LEARN != 0))
        })
    }

    /// Copies the packet at the front; drops it if it is empty or too long. Returns false if no buffer is free yet.
    #[inline(always)]
    fn take(&mut self, len: usize, flags: u16) -> bool {
        let header = self.header.load(Ordering::Relaxed);
        if !(header + 1..=header + LONGEST).contains(&len) {
            return true;
        }
        let mut from = Cursor::new(&self.ring.parts);
        let memory = &self.ring.ring.memory.mapping;
        let (offload, len) = (offload(&mut from, memory, header), len - header);
        if len > if offload.is_some() { LONGEST } else { self.longest } {
            return true;
        }
        if !self.batch.push_filled(&self.pool, len, offload, |_, target| from.read(memory, target)) {
            return !self.batch.can_hold(&self.pool, len);
        }
        if flags & NS_NO_LEARN != 0 {
            self.batch.unlearn_last();
        }
        true
    }

    /// Returns whether packets are waiting to be sent.
    fn is_pending(&self) -> bool {
        !self.batch.is_empty() || self.queue.unsent() > 0
    }
}

/// Reads a header of `header` bytes in front of a packet; returns the offloads that it requests.
#[inline(always)]
fn offload(from: &mut Cursor<'_>, memory: &Mapping, header: usize) -> Option<Offload> {
    if header == 0 {
        return None;
    }
    let mut bytes = [0; HEADERS];
    from.read(memory, &mut bytes[..header]);
    bytes.first_chunk().copied().map(Offload).filter(|offload| offload.is_needed())
}

impl RxPump {
    /// `header`: length of the virtio-net header in front of each packet.
    pub fn new(ring: ServerRxRing, queue: RxQueue, header: &Arc<AtomicUsize>) -> RxPump {
        RxPump { ring, queue, header: header.clone(), batch: Batch::with_capacity(BATCH), times: None }
    }

    /// Returns whether the queue may be polled. A full ring waits for its client.
    fn has_room(&self) -> bool {
        self.batch.is_empty() && self.ring.free() > 0
    }

    /// Makes one pass over the rings; returns the number of slots moved.
    fn turn(&mut self, notifier: &impl Notifier) -> usize {
        if self.has_room() {
            self.queue.recv(&mut self.batch);
            if let Some(times) = &mut self.times {
                self.batch.stamp_from(times.take(self.batch.len()));
            }
        }
        if self.batch.is_empty() {
            return 0;
        }
        let (mut taken, mut is_filled) = (0, false);
        let header = self.header.load(Ordering::Relaxed);
        for packet in self.batch.packets() {
            let first = self.ring.tail();
            match put(&mut self.ring, header, packet.len(), packet.segments()) {
                Put::NoRoom => break,
                Put::Never => {}
                Put::Whole => {
                    is_filled = true;
                    if self.times.is_some() {
                        packet.timestamp().into_iter().for_each(|time| self.ring.ring.set_time_of(first, time));
                    }
                }
            }
            taken += packet.slots();
        }
        self.batch.drop_front(taken);
        if is_filled {
            self.ring.publish_tail();
            if self.ring.ring.must_wake_client() {
                notifier.notify();
            }
        }
        taken
    }
}

/// Moves packets between a client's rings and a port.
#[derive(Default)]
pub struct Pump {
    pub sending: Vec<TxPump>,
    pub receiving: Vec<RxPump>,
    pub delivered: Vec<DeliveredRing>,
    /// Returns whether the port has ended: the interface is gone, or the monitored port is closed. The client is told
    /// once, and can still receive packets that are left.
    pub is_closed: Option<Box<dyn Fn() -> bool + Send>>,
    /// Returns how many packets the port dropped since the last call: those that did not fit, and those that were too
    /// long. The count is passed to the client in the first receive ring. For a port of a switch,
    /// [`RingRecipient`](super::recipient::RingRecipient) does that.
    pub dropped: Option<Box<dyn FnMut() -> (u64, u64) + Send>>,
}

impl Pump {
    /// Moves packets in both directions once; returns the number of slots.
    pub(super) fn turn(&mut self, clients: &impl Clients) -> usize {
        let sent: usize = self.sending.iter_mut().map(|sending| sending.turn(clients)).sum();
        let received: usize = self.receiving.iter_mut().map(|receiving| receiving.turn(clients)).sum();
        sent + received
    }

    /// Moves packets until no clients are left.
    pub fn run(&mut self, clients: &impl Clients) {
        let (mut yield_wait, mut turns, mut has_moved) = (YieldWait::new(POLLED), 0, false);
        loop {
            if self.turn(clients) > 0 {
                yield_wait.reset();
                has_moved = true;
                turns += 1;
                if turns >= TURNS {
                    turns = 0;
                    if self.listen(clients) {
                        return;
                    }
                }
                continue;
            }
            if std::mem::take(&mut has_moved)
                && self.sending.iter().filter(|sending| sending.ring.ring.must_notify_client()).count() > 0
            {
                clients.notify();
            }
            if yield_wait.wait() {
                continue;
            }
            // The rings are armed before the last turn, so that it finds packets that arrive in between.
            self.sending.iter().for_each(|sending| sending.ring.ring.arm_server());
            self.receiving.iter().for_each(|receiving| receiving.ring.ring.arm_server());
            // A ring without room is not armed: it would consume the event of another consumer of the same port.
            for receiving in self.receiving.iter_mut().filter(|receiving| receiving.has_room()) {
                receiving.queue.arm();
            }
            if self.turn(clients) > 0 {
                yield_wait.reset();
                has_moved = true;
            } else {
                // A client's message ends the sleep, but only moved packets restart polling.
                self.sleep(clients);
                if self.listen(clients) {
                    return;
                }
            }
            self.receiving.iter_mut().for_each(|receiving| receiving.queue.disarm());
        }
    }

    /// Tells the client how many packets the port has dropped.
    fn report_drops(&mut self) {
        if let (Some(dropped), Some(first)) = (&mut self.dropped, self.receiving.first())
            && let (full, too_long) = dropped()
            && full + too_long > 0
        {
            first.ring.ring.add_dropped(full, too_long);
        }
    }

    /// Reads the clients' messages; returns whether no clients are left.
    fn listen(&mut self, clients: &impl Clients) -> bool {
        self.report_drops();
        let signals = clients.listen();
        if signals.token {
            // A client thread that has read another thread's token has asked for it again, so check all rings.
            let free = self.sending.iter().map(|sending| &sending.ring.ring);
            let there = self.receiving.iter().map(|receiving| &receiving.ring.ring);
            let delivered = self.delivered.iter().map(|delivered| &delivered.ring);
            if free.chain(there).chain(delivered).filter(|ring| ring.must_notify_client()).count() > 0 {
                clients.notify();
            }
        }
        if self.is_closed.take_if(|is_closed| is_closed()).is_some() {
            clients.notify_closed();
        }
        signals.is_over
    }

    fn sleep(&mut self, clients: &impl Clients) {
        // A queue with unsent packets, or a port without interrupts, must be polled again soon.
        let mut soon = self.sending.iter().any(TxPump::is_pending);
        let mut events = Vec::new();
        for receiving in self.receiving.iter_mut().filter(|receiving| receiving.has_room()) {
            match receiving.queue.arm() {
                Some(event) => events.push(event),
                None => soon = true,
            }
        }
        clients.sleep(&events, Timespec { tv_sec: 0, tv_nsec: if soon { 50_000 } else { 250_000_000 } });
    }

    /// Sends the packets that a client sent before it ended, as many as the port accepts.
    pub fn finish(&mut self, clients: &impl Clients) {
        // A hostile client may have closed the connection but still be writing to the ring, so the loop is bounded.
        for _ in 0..LAST_TURNS {
            if self.sending.iter_mut().map(|sending| sending.turn(clients)).sum::<usize>() == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};
    use linerate_core::port::{Receive, Transmit};
    use rustix::event::Timespec;

    use super::*;
    use crate::share::protocol::connection::Connection;
    use crate::share::protocol::connection::tests::was_notified;
    use crate::share::protocol::layout::Offsets;
    use crate::share::protocol::ring::tests::rings;
    use crate::share::protocol::ring::{ClientRing, MAX_FRAGS, NS_MOREFRAG, SharedRing, Slot};

    const SIZE: usize = 2048;
    const MORE: u16 = NS_MOREFRAG;

    pub fn pool(buffers: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size: SIZE, pages, numa_node: None }).unwrap())
    }

    impl Notifier for Connection {
        fn notify(&self) {
            Connection::notify(self);
        }
    }

    impl Clients for Connection {
        fn listen(&self) -> Signals {
            Signals::default()
        }

        fn sleep(&self, _: &[BorrowedFd<'_>], _: Timespec) {}
    }

    /// The bytes of sent packets, and whether they requested offloads.
    type Sent = Arc<Mutex<Vec<(Vec<u8>, bool)>>>;

    /// Records sent packets while it is open.
    struct Sink {
        sent: Sent,
        is_open: Arc<AtomicUsize>,
    }

    impl Transmit for Sink {
        fn send(&mut self, batch: &mut Batch) -> usize {
            if self.is_open.load(Ordering::Relaxed) == 0 {
                return 0;
            }
            let mut slots = 0;
            for packet in batch.packets() {
                let bytes = packet.segments().flatten().copied().collect();
                let is_left = packet.offload().is_some();
                self.sent.lock().unwrap().push((bytes, is_left));
                slots += packet.slots();
            }
            batch.drop_front(slots);
            slots
        }
    }

    struct Bench {
        sending: TxPump,
        client: ClientRing,
        sent: Sent,
        is_open: Arc<AtomicUsize>,
        sockets: [Connection; 2],
        /// The first bytes of the packet, if they should not count up.
        first: Option<[u8; 2]>,
    }

    impl Bench {
        fn new(pool: &Arc<Pool>, header: usize) -> Bench {
            let (_memory, [ring, _]) = rings(128, 0, Offsets::default());
            let consumer = ServerTxRing::new(ring.clone());
            let client = ClientRing::begin(ring);
            let (sent, is_open) = (Sent::default(), Arc::new(AtomicUsize::new(1)));
            let queue = TxQueue::from(Sink { sent: sent.clone(), is_open: is_open.clone() });
            let sending = TxPump::new(consumer, queue, pool, 5000, &Arc::new(AtomicUsize::new(header)));
            Bench { sending, client, sent, is_open, sockets: Connection::pair().unwrap(), first: None }
        }

        /// As the client, sends slots with bytes that count up; as the server, moves them once.
        fn send(&mut self, slots: &[(usize, u16)]) -> usize {
            let ring = self.client.ring.clone();
            let (mut head, mut byte) = (self.client.head(), 0u8);
            for &(len, flags) in slots {
                let slot = Slot { len: len as u16, flags, ..ring.slot(head) };
                let mut bytes: Vec<u8> = (0..len.min(SIZE)).map(|n| byte.wrapping_add(n as u8)).collect();
                if let Some(first) = self.first.take() {
                    bytes[..2].copy_from_slice(&first);
                }
                byte = byte.wrapping_add(len as u8);
                ring.memory.mapping.write(ring.memory.buffer(slot.buffer).unwrap(), &bytes);
                ring.set_slot(head, slot);
                head = ring.next(head);
            }
            self.client.set(head as u32, head as u32);
            self.client.publish_head().unwrap();
            let done = self.sending.turn(&self.sockets[0]);
            self.client.update_tail();
            done
        }

        fn lens(&self) -> Vec<usize> {
            self.sent.lock().unwrap().drain(..).map(|(bytes, _)| bytes.len()).collect()
        }
    }

    pub fn counting(from: usize, len: usize) -> Vec<u8> {
        (from..from + len).map(|n| n as u8).collect()
    }

    #[test]
    fn packets_of_a_client_are_sent_whole_and_in_order() {
        let mut bench = Bench::new(&pool(512), 0);
        assert_eq!(bench.send(&[]), 0);
        let slots = [(60, 0), (2048, MORE), (1, MORE), (100, 0), (3, MORE), (70, 0)];
        // Six slots are moved, and then four buffers of the batch, because one packet has two.
        assert_eq!(bench.send(&slots), 6 + 4);
        let sent: Vec<_> = bench.sent.lock().unwrap().drain(..).map(|(bytes, _)| bytes).collect();
        assert_eq!(sent, [counting(0, 60), counting(60, 2149), counting(2209, 73)]);
        assert_eq!(bench.client.tail(), 5, "all slots are free again");
    }

    #[test]
    fn invalid_packets_are_dropped() {
        let mut bench = Bench::new(&pool(512), 0);
        bench.send(&[
            (0, 0),
            (1, 0),
            (2048, MORE),
            (2048, MORE),
            (904, 0),
            (2048, MORE),
            (2048, MORE),
            (905, 0),
            (2049, 0),
        ]);
        assert_eq!(bench.lens(), [1, 5000]);
        bench.send(&[(2, 0)]);
        assert_eq!((bench.lens(), bench.client.tail()), (vec![2], 9));
        // A packet with more slots than allowed.
        let mut long = vec![(1, MORE); MAX_FRAGS];
        long.push((1, 0));
        bench.send(&long);
        bench.send(&[(3, 0)]);
        assert_eq!(bench.lens(), [3]);
        // A packet with more bytes than the pool's buffers hold.
        let mut bench = Bench::new(&pool(2), 0);
        bench.send(&[(2048, MORE), (2048, MORE), (900, 0), (60, 0)]);
        assert_eq!(bench.lens(), [60]);
    }

    #[test]
    fn a_header_in_front_asks_for_offloads() {
        let mut bench = Bench::new(&pool(512), 12);
        // A header alone is not a packet. With at least one byte after it, it is, even if parts end inside the header.
        bench.send(&[(12, 0), (13, 0), (5, MORE), (7, MORE), (60, 0), (5, MORE), (8, MORE), (9, 0)]);
        let sent: Vec<_> = bench.sent.lock().unwrap().drain(..).map(|(bytes, _)| bytes).collect();
        assert_eq!(sent, [counting(24, 1), counting(25 + 12, 60), counting(97 + 12, 10)]);
        // A packet without offloads is limited by the port, one with offloads by the maximum length.
        for (flags, len, is_sent) in
            [(0, 5000, true), (0, 5001, false), (1, 5001, true), (1, 60_000, true), (0, 60_000, false)]
        {
            let mut bench = Bench::new(&pool(512), 12);
            let mut slots = vec![(12, MORE)];
            slots.extend((0..len / SIZE).map(|_| (SIZE, MORE)));
            slots.push((len % SIZE, 0));
            bench.first = Some([flags, 0]);
            bench.send(&slots);
            let sent: Vec<_> = bench.sent.lock().unwrap().drain(..).map(|(bytes, left)| (bytes.len(), left)).collect();
            assert_eq!(sent, if is_sent { vec![(len, flags == 1)] } else { vec![] }, "{len} with flags {flags}");
        }
    }

    #[test]
    fn packets_wait_for_buffers_and_for_the_port() {
        let pool = pool(100);
        let mut bench = Bench::new(&pool, 0);
        bench.is_open.store(0, Ordering::Relaxed);
        assert_eq!(bench.send(&[(60, 0); 70]), BATCH, "no more than a turn");
        assert!(bench.sending.is_pending() && bench.lens().is_empty());
        assert_eq!(bench.send(&[]), 0, "nothing more is taken meanwhile");
        assert_eq!(bench.client.tail(), BATCH - 1);
        bench.is_open.store(1, Ordering::Relaxed);
        assert_eq!(bench.send(&[]), BATCH);
        assert!(!bench.sending.is_pending());
        assert_eq!(bench.send(&[]), 6 + 6);
        assert_eq!(bench.lens().len(), 70);
    }

    #[test]
    fn a_packet_stays_in_its_ring_while_no_buffer_is_free() {
        let pool = pool(100);
        let mut other = Batch::with_capacity(100);
        assert_eq!(other.alloc(&pool, 100, 60), 100);
        let mut bench = Bench::new(&pool, 0);
        assert_eq!((bench.send(&[(61, 0)]), bench.lens()), (0, vec![]));
        drop(other);
        bench.send(&[]);
        assert_eq!(bench.lens(), [61]);
    }

    #[test]
    fn a_client_that_sleeps_is_woken_when_slots_are_free() {
        let mut bench = Bench::new(&pool(512), 0);
        bench.send(&[(60, 0)]);
        assert!(!was_notified(&bench.sockets[1]));
        bench.client.arm();
        bench.send(&[]);
        assert!(!was_notified(&bench.sockets[1]), "nothing was done");
        bench.send(&[(60, 0)]);
        assert!(was_notified(&bench.sockets[1]));
    }

    /// Receives packets of these lengths.
    struct Source(Arc<Pool>, VecDeque<usize>);

    impl Receive for Source {
        fn recv(&mut self, batch: &mut Batch) -> usize {
            let before = batch.len();
            while let Some(len) = self.1.pop_front() {
                assert!(batch.push(&self.0, &counting(len, len)));
            }
            batch.len() - before
        }
    }

    fn receiving(ring: &SharedRing, header: usize, lens: &[usize]) -> RxPump {
        let queue = RxQueue::from(Source(pool(512), lens.iter().copied().collect()));
        RxPump::new(ServerRxRing::new(ring.clone()), queue, &Arc::new(AtomicUsize::new(header)))
    }

    /// Returns the length and flags of each received slot, and all bytes.
    pub fn come(ring: &SharedRing) -> (Vec<(u16, u16)>, Vec<u8>) {
        let client = ClientRing::begin(ring.clone());
        client.update_tail();
        let (mut slots, mut all) = (Vec::new(), Vec::new());
        let mut at = client.head();
        while at != client.tail() {
            let slot = ring.slot(at);
            slots.push((slot.len, slot.flags));
            let mut bytes = vec![0; slot.len.into()];
            ring.memory.mapping.read(ring.memory.buffer(slot.buffer).unwrap() + ring.offset(at), &mut bytes);
            all.extend(bytes);
            at = ring.next(at);
        }
        (slots, all)
    }

    #[test]
    fn packets_fill_slots_one_after_the_other() {
        let [socket, _other] = Connection::pair().unwrap();
        let (_memory, [_, ring]) = rings(16, 0, Offsets::default());
        let mut pump = receiving(&ring, 0, &[60, 2048, 5000, 61]);
        // The returned number counts the batch's buffers.
        assert_eq!(pump.turn(&socket), 1 + 2 + 3 + 1);
        let (slots, bytes) = come(&ring);
        let last = 1 << 8;
        let expected =
            [(60, last), (2048, last), (2048, MORE | 3 << 8), (2048, MORE | 2 << 8), (904, last), (61, last)];
        assert_eq!(slots, expected);
        assert_eq!(bytes, [counting(60, 60), counting(2048, 2048), counting(5000, 5000), counting(61, 61)].concat());
        assert_eq!(pump.turn(&socket), 0);
    }

    #[test]
    fn packets_come_behind_a_header_of_zeros() {
        let [socket, _other] = Connection::pair().unwrap();
        let (_memory, [_, ring]) = rings(16, 0, Offsets::default());
        assert!(receiving(&ring, 12, &[60, 2036, 2037]).turn(&socket) > 0);
        let (slots, bytes) = come(&ring);
        assert_eq!(slots.iter().map(|(len, _)| *len).collect::<Vec<_>>(), [72, 2048, 2048, 1]);
        let zeros = || vec![0; 12];
        assert_eq!(
            bytes,
            [zeros(), counting(60, 60), zeros(), counting(2036, 2036), zeros(), counting(2037, 2037)].concat()
        );
    }

    #[test]
    fn packets_wait_for_room_and_those_that_never_fit_do_not() {
        let [socket, _other] = Connection::pair().unwrap();
        let (_memory, [_, ring]) = rings(4, 0, Offsets::default());
        // At most three slots are free, so packets of four slots never fit.
        let mut pump = receiving(&ring, 0, &[60, 3 * SIZE + 1, 61, 2 * SIZE, 62]);
        assert!(pump.turn(&socket) > 0);
        let lens = |ring: &SharedRing| come(ring).0.iter().map(|(len, _)| *len).collect::<Vec<_>>();
        assert_eq!(lens(&ring), [60, 61]);
        assert_eq!(pump.turn(&socket), 0, "for two slots there is no room");
        let client = ClientRing::begin(ring.clone());
        client.update_tail();
        client.set(2, 2);
        client.publish_head().unwrap();
        assert!(pump.turn(&socket) > 0);
        assert_eq!(lens(&ring), [2048, 2048, 62]);
    }

    #[test]
    fn slots_with_invalid_buffers_or_offsets_get_nothing() {
        let [socket, _other] = Connection::pair().unwrap();
        for (buffer, offset, len, is_put) in [
            (None, 0, 60, true),
            (Some(1), 0, 60, false),
            (Some(u32::MAX), 0, 60, false),
            (None, 2047, 1, true),
            (None, 2047, 2, true),
            (None, 2047, 7, true),
            (None, 2047, 8, false),
            (None, 2048, 1, false),
            (None, 0xFFFF, 1, false),
            (None, 64, 1984, true),
            (None, 64, 1985, true),
            (None, 64, 7 * 1984, true),
            (None, 64, 7 * 1984 + 1, false),
        ] {
            let (_memory, [_, ring]) = rings(8, 0, Offsets { mask: 0xFFFF, first: 0 });
            (0..8).for_each(|n| ring.set_offset(n, offset));
            let own = ring.slot(0);
            ring.set_slot(0, Slot { buffer: buffer.unwrap_or(own.buffer), ..own });
            assert!(receiving(&ring, 0, &[len]).turn(&socket) > 0, "it is taken, and dropped if it does not fit");
            let expected = if is_put { counting(len, len) } else { vec![] };
            assert_eq!(come(&ring).1, expected, "{len} at {offset} of {buffer:?}");
        }
    }

    #[test]
    fn a_client_that_waits_is_woken_for_packets() {
        let (_memory, [_, ring]) = rings(16, 0, Offsets::default());
        let [socket, other] = Connection::pair().unwrap();
        receiving(&ring, 0, &[60]).turn(&socket);
        assert!(!was_notified(&other));
        ClientRing::begin(ring.clone()).arm();
        receiving(&ring, 0, &[]).turn(&socket);
        receiving(&ring, 0, &[17 * SIZE]).turn(&socket);
        assert!(!was_notified(&other), "nothing has come");
        receiving(&ring, 0, &[60]).turn(&socket);
        assert!(was_notified(&other));
    }
}
