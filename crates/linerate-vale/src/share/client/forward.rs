//! Passes packets between a card and the host's stack if the program has marked them (netmap(4), `NS_FORWARD`), on
//! rings where marks are enabled (`NR_FORWARD`). The next sync swaps the buffers without a copy.

use std::sync::atomic::Ordering::Relaxed;

use crate::share::protocol::ring::{ClientRing, FLAGS, NS_BUF_CHANGED, NS_FORWARD, Slot};

/// `NR_FORWARD`: marks are enabled on this ring.
const NR_FORWARD: u32 = 4;

/// Moves packets that the program has marked and released on a receive ring to the end of a transmit ring. Packets that
/// do not fit are dropped. Returns whether any packet was moved.
pub fn forward(from: &ClientRing, to: &ClientRing) -> bool {
    if from.ring.word(FLAGS).load(Relaxed) & NR_FORWARD == 0 {
        return false;
    }
    let (source, target) = (&from.ring, &to.ring);
    let (mut at, mut left, begin) = (from.head(), from.released(), to.program_head());
    let mut end = begin;
    while left > 0 {
        let mut count = 1;
        let first = source.slot(at);
        let mut last = at;
        while source.slot(last).has_more() && count < left {
            (last, count) = (source.next(last), count + 1);
        }
        let has_room = target.distance(end, to.tail()) >= count;
        for _ in 0..count {
            if first.flags & NS_FORWARD != 0 && has_room {
                let (mut ours, mut theirs) = (source.slot(at), target.slot(end));
                std::mem::swap(&mut ours.buffer, &mut theirs.buffer);
                let flags = ours.flags & !NS_FORWARD | NS_BUF_CHANGED;
                target.set_slot(end, Slot { buffer: theirs.buffer, len: ours.len, flags });
                if target.offset_mask != 0 {
                    target.set_offset(end, source.offset(at));
                }
                source.set_slot(at, Slot { flags: NS_BUF_CHANGED, ..ours });
                end = target.next(end);
            }
            at = source.next(at);
        }
        left -= count;
    }
    if end != begin {
        to.set(end as u32, end as u32);
    }
    end != begin
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::protocol::layout::Offsets;
    use crate::share::protocol::ring::tests::rings;
    use crate::share::protocol::ring::{NS_MOREFRAG, ServerRxRing, SharedRing};

    const OFFSETS: Offsets = Offsets { mask: 0xFF, first: 8 };

    /// Returns a receive ring on which packets with these flags and of lengths 100, 101 and so on were received and
    /// released.
    fn released(ring: &SharedRing, flags: &[u16]) -> ClientRing {
        let mut producer = ServerRxRing::new(ring.clone());
        for (n, flags) in flags.iter().enumerate() {
            ring.set_slot(n, Slot { len: 100 + n as u16, flags: *flags, ..ring.slot(n) });
            ring.set_offset(n, 16 + n);
        }
        // One more packet is received but not released.
        let marked = ring.slot(flags.len());
        ring.set_slot(flags.len(), Slot { flags: NS_FORWARD, ..marked });
        producer.advance(flags.len() + 1);
        producer.publish_tail();
        let client = ClientRing::begin(ring.clone());
        client.set(flags.len() as u32, flags.len() as u32);
        client
    }

    /// Returns a transmit ring with `slots` free slots.
    fn free(ring: &SharedRing, slots: usize) -> ClientRing {
        let client = ClientRing::begin(ring.clone());
        client.free_up_to((slots + 1) % ring.place.slots);
        client.update_tail();
        client
    }

    #[test]
    fn marked_packets_change_places_and_others_stay() {
        let (_memory, [to, from]) = rings(16, 0, OFFSETS);
        from.word(FLAGS).store(NR_FORWARD | 2, Relaxed);
        // The first slot of a packet decides; the end of the last packet is missing.
        let marks = [NS_FORWARD, 0, NS_FORWARD | NS_MOREFRAG, 0, NS_MOREFRAG, NS_FORWARD, NS_FORWARD | NS_MOREFRAG];
        let (receive, transmit) = (released(&from, &marks), free(&to, 10));
        let buffers = |ring: &SharedRing| (0..16).map(|n| ring.slot(n).buffer).collect::<Vec<_>>();
        let (ours, theirs) = (buffers(&from), buffers(&to));
        assert!(forward(&receive, &transmit));
        assert_eq!(transmit.program_head(), 4);
        for (at, n) in [0, 2, 3, 6].into_iter().enumerate() {
            let (there, here) = (to.slot(at), from.slot(n));
            let more = marks[n] & NS_MOREFRAG;
            assert_eq!((there.buffer, there.len), (ours[n], 100 + n as u16));
            assert_eq!(there.flags, NS_BUF_CHANGED | more);
            assert_eq!(to.offset(at), 16 + n);
            assert_eq!((here.buffer, here.flags), (theirs[at], NS_BUF_CHANGED));
        }
        for n in [1, 4, 5, 7] {
            assert_eq!(from.slot(n).buffer, ours[n], "slot {n}");
        }
        assert_eq!(buffers(&to)[4..], theirs[4..]);
    }

    #[test]
    fn packets_without_room_are_dropped_whole() {
        let (_memory, [to, from]) = rings(16, 0, Offsets::default());
        from.word(FLAGS).store(NR_FORWARD, Relaxed);
        let marks = [NS_FORWARD, NS_FORWARD | NS_MOREFRAG, NS_MOREFRAG, 0, NS_FORWARD, NS_FORWARD];
        let (receive, transmit) = (released(&from, &marks), free(&to, 2));
        assert!(forward(&receive, &transmit));
        assert_eq!((transmit.program_head(), to.slot(0).len, to.slot(1).len), (2, 100, 104));
        assert_eq!(to.pointer(0), 0, "without offsets a pointer is the program's");
        // No packet is moved to a full ring.
        let full = free(&to, 0);
        full.set(0, 0);
        assert!(!forward(&receive, &full));
        assert_eq!(full.program_head(), 0);
    }

    #[test]
    fn marks_count_only_where_they_are_enabled() {
        let (_memory, [to, from]) = rings(16, 0, OFFSETS);
        let (receive, transmit) = (released(&from, &[NS_FORWARD, NS_FORWARD]), free(&to, 10));
        from.word(FLAGS).store(!NR_FORWARD, Relaxed);
        assert!(!forward(&receive, &transmit));
        from.word(FLAGS).store(NR_FORWARD, Relaxed);
        assert!(forward(&receive, &transmit));
    }
}
