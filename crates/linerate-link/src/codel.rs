//! CoDel, which drops packets from the head of a queue when they have waited too long for too long (RFC 8289).

/// The parameters of CoDel, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    /// The acceptable waiting time. RFC 8289, 4.2: 5 ms.
    pub target: u64,
    /// How long packets may wait longer than that before one is dropped: about the longest usual round-trip time. RFC
    /// 8289, 4.3: 100 ms.
    pub interval: u64,
    /// Marks packets of transports that support it instead of dropping them (RFC 3168).
    pub ecn: bool,
}

impl Default for Codel {
    fn default() -> Codel {
        Codel { target: 5_000_000, interval: 100_000_000, ecn: false }
    }
}

/// The state of one queue; the names are those of RFC 8289, 5.
#[derive(Default)]
pub struct CodelState {
    first_above_time: Option<u64>,
    drop_next: u64,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

impl CodelState {
    /// The bytes that a queue may always have: one packet.
    const MAXPACKET: u64 = 1514;

    /// Decides whether to drop or mark the packet that leaves the queue at `now` after waiting for `sojourn`, while
    /// `backlog` bytes wait after it. All times are in nanoseconds.
    pub fn drops(&mut self, codel: &Codel, now: u64, sojourn: u64, backlog: u64) -> bool {
        let ok_to_drop = self.is_too_late(codel, now, sojourn, backlog);
        if self.dropping {
            self.dropping = ok_to_drop;
            if ok_to_drop && now >= self.drop_next {
                self.count += 1;
                self.drop_next = self.control_law(codel, self.drop_next);
                return true;
            }
            return false;
        }
        if ok_to_drop {
            self.dropping = true;
            // If dropping ended recently, the rate that controlled the queue then is a good start.
            let delta = self.count.saturating_sub(self.lastcount);
            let is_recent = now.saturating_sub(self.drop_next) < 16 * codel.interval;
            self.count = if delta > 1 && is_recent { delta } else { 1 };
            self.drop_next = self.control_law(codel, now);
            self.lastcount = self.count;
        }
        ok_to_drop
    }

    /// Returns whether packets have waited for more than the target during a whole interval.
    fn is_too_late(&mut self, codel: &Codel, now: u64, sojourn: u64, backlog: u64) -> bool {
        if sojourn < codel.target || backlog <= CodelState::MAXPACKET {
            self.first_above_time = None;
            return false;
        }
        now >= *self.first_above_time.get_or_insert(now + codel.interval)
    }

    /// Returns the time of the next drop: the more were dropped, the sooner.
    fn control_law(&self, codel: &Codel, time: u64) -> u64 {
        time + (codel.interval as f64 / f64::from(self.count).sqrt()) as u64
    }
}

/// Sets "congestion experienced" in the IP header of a frame (RFC 3168, 5). Returns false if the packet's transport
/// does not support that.
pub fn mark(frame: &mut [u8]) -> bool {
    try_mark(frame).is_some()
}

fn try_mark(frame: &mut [u8]) -> Option<()> {
    let word = |frame: &[u8], at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let mut at = 12;
    // Up to two VLAN tags.
    while at < 20 && matches!(word(frame, at)?, 0x8100 | 0x88A8) {
        at += 4;
    }
    let (kind, at) = (word(frame, at)?, at + 2);
    match kind {
        0x0800 => {
            let old = word(frame, at)?;
            if old & 3 == 0 {
                return None;
            }
            let new = old | 3;
            frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
            // The header's checksum, changed by the difference (RFC 1624, equation 3).
            let sum = u32::from(!word(frame, at + 10)?) + u32::from(!old) + u32::from(new);
            let sum = (sum & 0xFFFF) + (sum >> 16);
            let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
            frame.get_mut(at + 10..at + 12)?.copy_from_slice(&sum.to_be_bytes());
        }
        0x86DD => {
            // Bits 4 to 11 are the traffic class; its last two bits are ECN.
            let class = frame.get_mut(at + 1)?;
            if *class & 0x30 == 0 {
                return None;
            }
            *class |= 0x30;
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue that always has 20 ms of packets: the first drop is after one interval, the following come at intervals
    /// divided by the square root of their number (RFC 8289, 3.3).
    #[test]
    fn a_standing_queue_has_drops_at_the_times_of_the_control_law() {
        let (codel, mut state) = (Codel::default(), CodelState::default());
        let mut drops = Vec::new();
        for ms in 0..600 {
            // A dropped packet is followed by another one at the same time.
            while state.drops(&codel, ms * 1_000_000, 20_000_000, 100_000) {
                drops.push(ms);
            }
        }
        // 100, then 100 + 100/sqrt(1), + 100/sqrt(2), + 100/sqrt(3), …
        let mut wanted = vec![100];
        let mut next = 100.0;
        for count in 1.. {
            next += 100.0 / f64::from(count).sqrt();
            if next >= 599.0 {
                break;
            }
            wanted.push(next.ceil() as u64);
        }
        assert_eq!(drops, wanted);
        // One packet in time ends it.
        assert!(!state.drops(&codel, 600_000_000, 1_000_000, 100_000));
        assert!((601..690).all(|ms| !state.drops(&codel, ms * 1_000_000, 20_000_000, 100_000)));
    }

    #[test]
    fn short_queues_have_no_drops() {
        let (codel, mut state) = (Codel::default(), CodelState::default());
        assert!((0..1000).all(|ms| !state.drops(&codel, ms * 1_000_000, 4_999_999, 100_000)));
        assert!((1000..2000).all(|ms| !state.drops(&codel, ms * 1_000_000, 50_000_000, 1514)));
    }

    #[test]
    fn frames_are_marked_and_keep_their_checksum() {
        use etherparse::{IpNumber, Ipv4Header, Ipv6Header};

        for (tos, marked) in [(0u8, false), (1, true), (0x42, true), (0xFF, true)] {
            for tags in 0..3 {
                let mut header = Ipv4Header::new(8, 64, IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
                header.dscp = (tos >> 2).try_into().unwrap();
                header.ecn = (tos & 3).try_into().unwrap();
                header.header_checksum = header.calc_header_checksum();
                let mut frame = vec![0; 12];
                (0..tags).for_each(|_| frame.extend([0x81, 0x00, 0, 7]));
                frame.extend([8, 0]);
                frame.extend(header.to_bytes());
                frame.extend([0; 8]);
                assert_eq!(mark(&mut frame), marked, "{tos:#x} {tags}");
                let (header, _) = Ipv4Header::from_slice(&frame[14 + 4 * tags..]).unwrap();
                assert_eq!(header.header_checksum, header.calc_header_checksum(), "{tos:#x}");
                assert_eq!(header.ecn.value(), if marked { 3 } else { tos & 3 });
            }
            let header = Ipv6Header { traffic_class: tos, ..Ipv6Header::default() };
            let mut frame = [&[0; 12][..], &[0x86, 0xDD], &header.to_bytes()].concat();
            assert_eq!(mark(&mut frame), marked);
            let (header, _) = Ipv6Header::from_slice(&frame[14..]).unwrap();
            assert_eq!(header.traffic_class, if marked { tos | 3 } else { tos });
        }
    }

    #[test]
    fn short_and_other_frames_have_no_mark() {
        for len in 0..34 {
            let mut frame = [0xFFu8; 34];
            frame[12..14].copy_from_slice(&[8, 0]);
            mark(&mut frame[..len]);
        }
        assert!(!mark(&mut [0; 60]));
        assert!(!mark(&mut [0x81; 60]));
    }
}
