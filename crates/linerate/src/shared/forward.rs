//! Packets that a program lets pass between a card and the host's stack by marking them (netmap(4), `NS_FORWARD`), on rings
//! where it has asked for that (`NR_FORWARD`): their buffers change places at the next sync, and nothing is copied.

use std::sync::atomic::Ordering::Relaxed;

use super::ring::{FLAGS, NS_BUF_CHANGED, NS_FORWARD, Program, Slot};

/// `NR_FORWARD`: marks count on this ring.
const NR_FORWARD: u32 = 4;

/// Moves what is marked of the packets that the program has released of a receive ring to the end of a transmit ring. What
/// finds no room there is dropped. True if anything was moved.
pub fn forward(from: &Program, to: &Program) -> bool {
    if from.ring.word(FLAGS).load(Relaxed) & NR_FORWARD == 0 {
        return false;
    }
    let (source, target) = (&from.ring, &to.ring);
    let (mut at, mut left, begin) = (from.head(), from.released(), to.wanted_head());
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
