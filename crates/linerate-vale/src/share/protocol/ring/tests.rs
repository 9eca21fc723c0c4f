//! Tests of a ring, from both ends.

use std::time::Instant;

use super::*;
use crate::share::protocol::layout::{Objects, Offsets, Plan, RingCounts};
use crate::share::server::netmap_memory::NetmapMemory;

/// Creates memory with a port that has one ring of `slots` slots in each direction, and `left` buffers outside rings.
pub fn rings(slots: u32, left: usize, offsets: Offsets) -> (Arc<NetmapMemory>, [SharedRing; 2]) {
    let mut plan = Plan::default();
    plan.ports.count = 1;
    plan.rings = Objects { count: 2, size: 4096 };
    plan.buffers.count = 2 + 2 * slots as usize + left;
    let memory = Arc::new(NetmapMemory::new(plan).unwrap());
    let rings = RingCounts { tx: 1, rx: 1, tx_slots: slots, rx_slots: slots, ..RingCounts::default() };
    let layout = memory.place("a", &rings, |_| true, |_| true, offsets).unwrap();
    let rings = [layout.tx[0], layout.rx[0]].map(|place| SharedRing {
        offset_mask: offsets.mask,
        ..SharedRing::new(&memory.shared, place.unwrap()).unwrap()
    });
    (memory, rings)
}

#[test]
fn a_ring_outside_its_memory_is_refused() {
    let memory = NetmapMemory::new(Plan::default()).unwrap();
    let len = memory.shared.mapping.len();
    let last = len - SLOTS - 2 * SLOT;
    assert!(SharedRing::new(&memory.shared, RingAt { at: last & !63, slots: 2, zone: 0 }).is_ok());
    let beyond = (last + 64) & !63;
    for at in [beyond, len, len + 64, usize::MAX & !63, usize::MAX - SLOTS, STATE - 64, 0, 32, 1] {
        assert!(SharedRing::new(&memory.shared, RingAt { at, slots: 2, zone: 0 }).is_err(), "at {at}");
    }
    // A zone that is partly outside the memory.
    assert!(SharedRing::new(&memory.shared, RingAt { at: STATE, slots: 2, zone: len - 2 * ZONE }).is_ok());
    for zone in [len - 2 * ZONE + 64, len, usize::MAX & !63, 1] {
        assert!(SharedRing::new(&memory.shared, RingAt { at: STATE, slots: 2, zone }).is_err(), "zone {zone}");
    }
    for slots in [0, 1, 65_537, usize::MAX / SLOT, usize::MAX] {
        assert!(SharedRing::new(&memory.shared, RingAt { at: STATE, slots, zone: 0 }).is_err(), "{slots} slots");
    }
}

const OFFSETS: Offsets = Offsets { mask: 0xFFFF_0000, first: 0x1234_5678 };

#[test]
fn an_offset_is_the_masked_part_of_a_pointer() {
    let (_memory, [mut ring, _]) = rings(8, 0, Offsets { mask: 0xFFF0, first: 0x1_2345 });
    assert_eq!((ring.pointer(1), ring.offset(1)), (0x2340, 0x2340), "at first");
    ring.words(1)[1].store(0xABCD_EF01_2345_6789, Relaxed);
    assert_eq!(ring.offset(1), 0x6780);
    ring.set_offset(1, 0x1_2345);
    assert_eq!(ring.pointer(1), 0xABCD_EF01_2345_2349, "the rest is the program's");
    ring.offset_mask = 0;
    assert_eq!(ring.offset(1), 0);
}

#[test]
fn a_slot_that_reaches_beyond_its_buffer_is_refused() {
    let (memory, [mut ring, _]) = rings(8, 0, Offsets { mask: u64::MAX, first: 0 });
    let size = memory.shared.buffers.size;
    let bytes = |ring: &SharedRing, buffer: u32, len: usize, offset: usize| {
        ring.set_offset(0, offset);
        ring.bytes(0, Slot { buffer, len: len as u16, flags: 0 })
    };
    let at = memory.shared.buffer(3).unwrap();
    assert_eq!(bytes(&ring, 3, size, 0), Some((at, size)));
    assert_eq!(bytes(&ring, 3, size - 100, 100), Some((at + 100, size - 100)));
    assert_eq!(bytes(&ring, 3, 0, size), Some((at + size, 0)));
    for (buffer, len, offset) in
        [(3, size + 1, 0), (3, size, 1), (3, 0, size + 1), (3, 1, usize::MAX), (1, 1, 0), (18, 1, 0)]
    {
        assert_eq!(bytes(&ring, buffer, len, offset), None, "{len} at {offset} of buffer {buffer}");
    }
    ring.offset_mask = 0;
    assert_eq!(bytes(&ring, 3, size, 1), Some((at, size)), "without a mask a pointer is no offset");
}

#[test]
fn a_packet_outside_buffers_is_in_its_slot_s_zone() {
    let (_memory, [mut ring, _]) = rings(8, 0, Offsets::default());
    let bytes = |ring: &SharedRing, flags: u16| ring.bytes_or_zone(3, Slot { buffer: 3, len: 65_535, flags });
    assert_eq!(bytes(&ring, NS_INDIRECT), None, "it has none");
    ring.place.zone = 64;
    assert_eq!(bytes(&ring, NS_INDIRECT), Some((64 + 3 * ZONE, 65_535)));
    assert_eq!(bytes(&ring, 0), None, "without the mark it is one buffer");
}

#[test]
fn indices_wrap() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    assert_eq!([0, 6, 7].map(|slot| ring.next(slot)), [1, 7, 0]);
    assert_eq!([(0, 0), (2, 5), (5, 2), (7, 0), (0, 7)].map(|(from, to)| ring.distance(from, to)), [0, 3, 5, 1, 7]);
}

#[test]
fn a_slot_keeps_its_contents() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    let pointer = ring.pointer(3);
    ring.set_slot(3, Slot { buffer: 0xFFFF_FFFE, len: 0xFFFD, flags: 0xFFFC });
    let slot = ring.slot(3);
    assert_eq!((slot.buffer, slot.len, slot.flags, ring.pointer(3)), (0xFFFF_FFFE, 0xFFFD, 0xFFFC, pointer));
    ring.set_time(Duration::new(5, 7_000_999));
    let times = [0, 8].map(|at| {
        let mut bytes = [0; 8];
        ring.memory.mapping.read(ring.place.at + TS + at, &mut bytes);
        u64::from_ne_bytes(bytes)
    });
    assert_eq!(times, [5, 7000]);
}

/// Returns the client's end of a transmit ring that is free, at slot 5 of 8.
fn client(ring: &SharedRing) -> ClientRing {
    ring.state(CLIENT_HEAD).store(5, Relaxed);
    ring.free_up_to(5);
    let client = ClientRing::begin(ring.clone());
    assert_eq!((client.head(), client.tail()), (5, 4));
    client
}

#[test]
fn an_invalid_head_or_cur_is_set_back() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    let client = client(&ring);
    // Slot 4 is the tail, which the head may reach but not pass: slots 3 and 2 are beyond it.
    for (head, cur) in [(5, 5), (5, 4), (7, 1), (1, 1), (1, 4), (4, 4)] {
        client.set(head, cur);
        assert_eq!(client.program_head(), head as usize);
        assert_eq!(client.released(), ring.distance(5, head as usize));
        assert_eq!(client.publish_head().unwrap(), head != 5, "{head} and {cur}");
        assert_eq!(ring.state(CLIENT_HEAD).load(Relaxed), head);
        ring.state(CLIENT_HEAD).store(5, Relaxed);
    }
    client.free_up_to(1);
    client.update_tail();
    assert_eq!(client.tail(), 0);
    for (head, cur) in
        [(1, 1), (4, 4), (5, 1), (5, 4), (7, 6), (7, 5), (0, 7), (8, 5), (5, 8), (8, 8), (u32::MAX, u32::MAX)]
    {
        client.set(head, cur);
        ring.word(TAIL).store(77, Relaxed);
        assert_eq!(client.released(), if [5, 7, 0].contains(&head) { ring.distance(5, head as usize) } else { 0 });
        assert!(client.publish_head().is_err(), "{head} and {cur}");
        assert_eq!([HEAD, CUR, TAIL].map(|field| ring.word(field).load(Relaxed)), [5, 5, 0]);
    }
    assert!(!client.publish_head().unwrap(), "it has not moved");
}

#[test]
fn an_index_outside_the_ring_is_ignored() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    let client = client(&ring);
    for said in [8, 9, u32::MAX] {
        ring.state(SERVER_TAIL).store(said, Relaxed);
        client.update_tail();
        assert_eq!(client.tail(), 4);
    }
    ring.state(SERVER_TAIL).store(7, Relaxed);
    client.update_tail();
    assert_eq!((client.tail(), ring.word(TAIL).load(Relaxed)), (7, 7));
    client.set(7, 7);
    assert!(!client.is_ready());
    client.set(7, 6);
    assert!(client.is_ready());
    // The first head must be a valid index too.
    ring.state(CLIENT_HEAD).store(8, Relaxed);
    assert_eq!(ClientRing::begin(ring.clone()).head(), 0);
    ring.state(CLIENT_TAIL).store(9, Relaxed);
    assert_eq!(client.tail(), client.head(), "and so is where it was");
    assert_eq!(ServerTxRing::new(ring.clone()).cur, 0);
}

fn front(consumer: &mut ServerTxRing) -> (char, usize) {
    match consumer.front() {
        Front::None => ('-', 0),
        Front::Packet { len, .. } => ('p', len),
        Front::Invalid { slots } => ('n', slots),
    }
}

#[test]
fn packets_of_a_transmit_ring_are_whole() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    let mut consumer = ServerTxRing::new(ring.clone());
    let set = |slot: usize, len: u16, flags: u16| ring.set_slot(slot, Slot { len, flags, ..ring.slot(slot) });
    assert_eq!(ring.state(SERVER_TAIL).load(Relaxed), 7, "all is free");
    set(0, 100, NS_MOREFRAG | NS_NO_LEARN);
    set(1, 50, NS_MOREFRAG | NS_FORWARD);
    set(2, 25, 0);
    for head in [0, 1, 2, 8] {
        ring.state(CLIENT_HEAD).store(head, Relaxed);
        assert_eq!(front(&mut consumer), ('-', 0), "up to {head}");
    }
    ring.state(CLIENT_HEAD).store(3, Relaxed);
    assert!(matches!(consumer.front(), Front::Packet { len: 175, flags } if flags == NS_MOREFRAG | NS_NO_LEARN));
    assert_eq!(consumer.parts.len(), 3);
    // One part outside its buffer makes the whole packet invalid.
    set(1, 2049, NS_MOREFRAG);
    assert_eq!(front(&mut consumer), ('n', 3));
    consumer.advance(3);
    consumer.publish_tail();
    assert_eq!(ring.state(SERVER_TAIL).load(Relaxed), 2);
    // A packet is given up only if its beginning fills the ring.
    (0..8).for_each(|slot| set(slot, 10, NS_MOREFRAG));
    for (head, expected) in [(1, ('-', 0)), (2, ('n', 7))] {
        ring.state(CLIENT_HEAD).store(head, Relaxed);
        assert_eq!(front(&mut consumer), expected, "up to {head}");
    }
    consumer.advance(7);
    assert_eq!((consumer.cur, front(&mut consumer)), (2, ('-', 0)));
}

#[test]
fn a_packet_of_more_than_64_slots_is_invalid() {
    let (_memory, [ring, _]) = rings(128, 0, Offsets::default());
    let mut consumer = ServerTxRing::new(ring.clone());
    for (count, expected) in [(MAX_FRAGS, ('p', 64)), (MAX_FRAGS + 1, ('n', 65))] {
        for slot in 0..count {
            let flags = if slot + 1 < count { NS_MOREFRAG } else { 0 };
            ring.set_slot(slot, Slot { len: 1, flags, ..ring.slot(slot) });
        }
        ring.state(CLIENT_HEAD).store(count as u32, Relaxed);
        assert_eq!(front(&mut consumer), expected);
        assert!(consumer.parts.len() <= MAX_FRAGS);
    }
}

#[test]
fn a_receive_ring_is_filled_up_to_the_client_s_head() {
    let (_memory, [_, ring]) = rings(8, 0, OFFSETS);
    let mut producer = ServerRxRing::new(ring.clone());
    assert_eq!(producer.free(), 7);
    producer.advance(6);
    producer.publish_tail();
    assert_eq!((producer.free(), ring.state(SERVER_TAIL).load(Relaxed)), (1, 6));
    ring.state(CLIENT_HEAD).store(3, Relaxed);
    assert_eq!(producer.free(), 4);
    producer.advance(3);
    producer.publish_all_but(2);
    assert_eq!((producer.tail(), ring.state(SERVER_TAIL).load(Relaxed)), (1, 7));
    assert_eq!(ServerRxRing::new(ring.clone()).tail(), 7, "it goes on where the ring is");
    // An invalid index: no slot is free, and a ring starts at 0.
    ring.state(CLIENT_HEAD).store(8, Relaxed);
    ring.state(SERVER_TAIL).store(8, Relaxed);
    assert_eq!((producer.free(), ServerRxRing::new(ring.clone()).tail()), (0, 0));
}

#[test]
fn short_packets_are_taken_up_to_the_first_other_one() {
    let (_memory, [ring, _]) = rings(16, 0, Offsets::default());
    let mut consumer = ServerTxRing::new(ring.clone());
    let write = |n: usize, len: usize, flags: u16| {
        let slot = Slot { len: len as u16, flags, ..ring.slot(n) };
        ring.memory.mapping.write(ring.memory.buffer(slot.buffer).unwrap(), &vec![n as u8; len.min(2048)]);
        ring.set_slot(n, slot);
    };
    let take = |consumer: &mut ServerTxRing| {
        let mut target = [0xEE; 100];
        consumer.take_short(&mut target).map(|(len, flags)| {
            assert!(target[..len].iter().all(|byte| usize::from(*byte) == consumer.cur - 1), "{target:?}");
            assert!(target[len..].iter().all(|byte| *byte == 0xEE), "behind the packet");
            (len, flags)
        })
    };
    write(0, 60, 0);
    write(1, 100, NS_NO_LEARN);
    write(2, 101, 0);
    assert_eq!(take(&mut consumer), None, "the ring is empty");
    ring.state(CLIENT_HEAD).store(2, Relaxed);
    assert_eq!([0; 3].map(|_| take(&mut consumer)), [Some((60, 0)), Some((100, NS_NO_LEARN)), None]);
    ring.state(CLIENT_HEAD).store(3, Relaxed);
    assert_eq!(take(&mut consumer), None, "longer than the target");
    // A chain, a packet outside all buffers, an empty packet, a buffer that does not exist: `front` handles them.
    for (len, flags) in [(60, NS_MOREFRAG), (60, NS_INDIRECT), (0, 0), (2049, 0)] {
        write(2, len, flags);
        assert_eq!(take(&mut consumer), None, "{len} bytes, flags {flags:#x}");
    }
    ring.set_slot(2, Slot { buffer: u32::MAX, len: 60, flags: 0 });
    assert_eq!((take(&mut consumer), consumer.cur), (None, 2));
    // The rest of a chain arrives later.
    let buffer = ring.slot(3).buffer;
    ring.set_slot(2, Slot { buffer, len: 60, flags: NS_MOREFRAG });
    assert!(take(&mut consumer).is_none() && matches!(consumer.front(), Front::None));
    write(3, 40, 0);
    ring.state(CLIENT_HEAD).store(4, Relaxed);
    assert!(take(&mut consumer).is_none() && matches!(consumer.front(), Front::Packet { len: 100, .. }));
}

#[test]
fn short_packets_are_put_where_there_is_room() {
    let (_memory, [_, ring]) = rings(8, 0, Offsets::default());
    let mut producer = ServerRxRing::new(ring.clone());
    let before = ring.slot(0);
    assert!(producer.put_short(&[7; 60]) && producer.put_short(&[8; 2048]));
    assert!(!producer.put_short(&[9; 2049]), "longer than a buffer");
    let [first, second] = [0, 1].map(|n| ring.slot(n));
    assert_eq!((first.buffer, first.len, first.flags), (before.buffer, 60, 1 << 8));
    let mut bytes = [0; 60];
    ring.memory.mapping.read(ring.memory.buffer(second.buffer).unwrap(), &mut bytes);
    assert_eq!((second.len, bytes), (2048, [8; 60]));
    assert_eq!([0; 6].map(|_| producer.put_short(&[1])), [true, true, true, true, true, false]);
    // The client's head is reread, but not used if it is invalid.
    ring.state(CLIENT_HEAD).store(1, Relaxed);
    assert_eq!([0; 2].map(|_| producer.put_short(&[2])), [true, false]);
    ring.state(CLIENT_HEAD).store(8, Relaxed);
    assert!(!producer.put_short(&[3]));
    ring.state(CLIENT_HEAD).store(2, Relaxed);
    ring.set_slot(0, Slot { buffer: u32::MAX, ..before });
    assert!(!producer.put_short(&[3]), "the slot has no buffer");
    let (_memory, [_, ring]) = rings(8, 0, OFFSETS);
    assert!(!ServerRxRing::new(ring).put_short(&[1]), "`put` looks at offsets");
}

#[test]
fn an_end_that_sleeps_is_woken_once() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    let client = client(&ring);
    assert!(!ring.must_wake_client() && !client.must_notify());
    client.arm();
    assert!(!client.must_notify(), "the client sleeps");
    assert!(ring.is_armed() && !client.has_token());
    assert!(ring.must_wake_client() && !ring.must_wake_client());
    assert!(client.has_token() && !ring.is_armed());
    client.arm();
    assert!(!ring.is_armed(), "the last token is not read yet");
    assert!(client.forget_token() && !client.forget_token());
    client.arm();
    assert!(ring.must_wake_client());
    ring.arm_server();
    assert!(!ring.must_wake_client());
    assert!(client.must_notify() && !client.must_notify());
    // An invalid value is not a request.
    ring.state(CLIENT_TOKEN).store(77, Relaxed);
    assert!(!ring.must_wake_client() && !client.has_token());
}

#[test]
fn threads_take_turns_and_one_that_has_died_loses_its_turn() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    const ROUNDS: u32 = if cfg!(miri) { 50 } else { 1000 };
    let (client, count) = (client(&ring), std::cell::UnsafeCell::new(0));
    struct Count(std::cell::UnsafeCell<u32>);
    // SAFETY: the count is changed only during a turn.
    unsafe impl Sync for Count {}
    let count = Count(count);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (client, count) = (&client, &count);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let _turn = client.turn().unwrap();
                    // SAFETY: as above.
                    unsafe { *count.0.get() += 1 };
                }
            });
        }
    });
    assert_eq!(count.0.into_inner(), 4 * ROUNDS);
    if cfg!(miri) {
        return; // nothing is killed in this build
    }
    // A process that was killed during its turn.
    std::mem::forget(client.turn());
    assert!(client.turn().is_some());
    // A stopped thread that continues after another has taken over its turn ends only its own turn.
    let stopped = client.turn().unwrap();
    let after = client.turn().unwrap();
    drop(stopped);
    let begin = Instant::now();
    let next = client.turn();
    assert!(next.is_some() && begin.elapsed() >= SYNC_TIME, "the turn is still the second one's");
    drop((after, next));
    assert!(client.turn().is_some());
}

#[test]
fn packets_are_published_whole_but_for_one_that_fills_the_ring() {
    let (_memory, [_, ring]) = rings(8, 0, Offsets::default());
    let set = |slot: usize, flags: u16| ring.set_slot(slot, Slot { flags, ..ring.slot(slot) });
    for (slot, flags) in [0, NS_MOREFRAG, NS_MOREFRAG, 0, NS_MOREFRAG, 0, NS_MOREFRAG, 0].into_iter().enumerate() {
        set(slot, flags);
    }
    for (head, published) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 6), (7, 6)] {
        ring.publish_packets(head);
        assert_eq!(ring.published(), published, "up to {head}");
    }
    (0..8).for_each(|slot| set(slot, NS_MOREFRAG));
    ring.publish_packets(4);
    assert_eq!(ring.published(), 6);
    ring.publish_packets(5);
    assert_eq!(ring.published(), 5, "all of the ring");
}

#[test]
fn a_monitor_s_ring_is_in_the_memory() {
    let (_memory, [ring, other]) = rings(8, 0, Offsets::default());
    assert!(ring.monitor().is_none());
    ring.set_monitor(Some(&other));
    assert_eq!(ring.monitor().unwrap().place, other.place);
    for nonsense in [1, u32::MAX] {
        ring.state(SERVER_MONITOR).store(nonsense, Relaxed);
        assert!(ring.monitor().is_none_or(|there| there.place.slots >= 2));
    }
    ring.set_monitor(None);
    assert!(ring.monitor().is_none());
}

#[test]
fn the_other_end_sees_shadows_and_losses() {
    let (_memory, [ring, _]) = rings(8, 0, Offsets::default());
    assert_eq!((ring.shadow(), ring.shadow_drops()), (0, 0));
    ring.set_shadow(7);
    ring.count_shadow_drop();
    ring.count_shadow_drop();
    assert_eq!((ring.shadow(), ring.shadow_drops()), (7, 2));
}
