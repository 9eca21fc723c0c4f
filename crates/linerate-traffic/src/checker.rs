//! Checks arriving frames.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Range};

use linerate_core::port::CaptureCounts;

use super::changes::Changes;
use super::generator::Generator;
use super::stamp::{self, Read};

/// Checks stamped frames, for example of a [`Generator`]: each must arrive once, in the order of its flow, with its payload
/// intact. Headers may change on the way; this is counted separately.
#[derive(Clone, Debug)]
pub struct Checker {
    /// The offset of the last frame's stamp.
    at: usize,
    /// The headers of known senders, up to the stamp.
    senders: Vec<Vec<u8>>,
    /// The flows that are sent to this checker; `None`: all.
    expected: Option<Range<u16>>,
    flows: Vec<Flow>,
    /// Corrupted frames not yet matched with a skipped sequence number.
    unmatched_corrupted: u64,
    /// The skipped sequence numbers as ranges: from flow and first number to the number after the last.
    missing: BTreeMap<(u16, u64), u64>,
    /// The sum of `corrupted_before_first` over all flows.
    corrupted_before_first: u64,
    report: Report,
}

impl Default for Checker {
    /// Knows the headers of a [`Generator::new`].
    fn default() -> Checker {
        Checker {
            at: stamp::USUAL,
            senders: vec![Generator::headers()],
            expected: None,
            flows: Vec::new(),
            unmatched_corrupted: 0,
            missing: BTreeMap::new(),
            corrupted_before_first: 0,
            report: Report::default(),
        }
    }
}

/// The state of a flow.
#[derive(Clone, Debug)]
struct Flow {
    /// The smallest sequence number received.
    first: u64,
    /// The next expected sequence number; `ANY` before the first frame.
    next: u64,
    /// Corrupted frames with this flow number before its first intact frame: the number may be damaged.
    corrupted_before_first: u64,
}

const ANY: u64 = u64::MAX;

/// The maximum number of stored ranges of missing sequence numbers. The oldest is forgotten then; a late frame of a
/// forgotten range counts as a duplicate.
const MOST_MISSING: usize = 1 << 16;

/// Counts of a generator and a checker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames sent.
    pub sent: u64,
    /// Frames that arrived, of any kind.
    pub received: u64,
    /// Sequence numbers that were skipped, minus those that arrived late. Frames sent before a flow's first number are
    /// not counted. A corrupted frame has arrived: it replaces one skipped number of a later gap in any flow, because
    /// its own number is not trusted. A frame without the magic number whose other bytes match the stamp is corrupted.
    /// All others without a stamp are foreign, and their numbers count as skipped.
    pub lost: u64,
    /// Frames that arrived after a later one of their flow.
    pub reordered: u64,
    /// Frames whose sequence number has arrived before.
    pub duplicated: u64,
    /// Frames whose stamp or payload after it differ from those sent.
    pub corrupted: u64,
    /// Intact frames whose headers differ from those sent, as after a router.
    pub changed: Changes,
    /// Intact frames by the number of forwarders that have [touched](super::touch) them: none, one, or more.
    pub touched: [u64; 3],
    /// Frames without a stamp.
    pub foreign: u64,
    /// Intact frames of flows that are sent to [another checker](Checker::with_flows), such as copies that a switch
    /// floods. They count in `received`, `changed` and `touched` only.
    pub misdelivered: u64,
    /// Packets of a capture file that were not sent, or not as they are in the file.
    pub capture: CaptureCounts,
    /// Frames that arrived at the port that acts as a wire, but were too long for it.
    pub too_long: u64,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.changed += other.changed;
        self.touched.iter_mut().zip(other.touched).for_each(|(sum, frames)| *sum += frames);
        self.foreign += other.foreign;
        self.misdelivered += other.misdelivered;
        self.capture += other.capture;
        self.too_long += other.too_long;
    }
}

impl Report {
    /// Returns the number of frames that arrived, without duplicates.
    pub fn arrived(&self) -> u64 {
        self.received - self.duplicated
    }

    /// Returns the counts corrected by what is known of the path. If all frames of the sender `are_stamped`, a frame
    /// without a stamp is corrupted, not lost.
    pub fn by_sender(self, are_stamped: bool) -> Report {
        let foreign = if are_stamped { self.foreign } else { 0 };
        let (lost, corrupted) = (self.lost.saturating_sub(foreign), self.corrupted + foreign);
        Report { lost, corrupted, foreign: self.foreign - foreign, ..self }
    }
}

impl Checker {
    /// Also knows the headers of a sender, from one of its frames, so that their changes are counted by field. Longer
    /// frames carry a copy of their headers, so this is for short ones.
    pub fn with_headers_of(mut self, frame: &[u8]) -> Checker {
        if let Some((at, Read::Stamped { .. })) = stamp::search(frame) {
            self.senders.push(frame[..at].to_vec());
        }
        self
    }

    /// Expects only these flows. Intact frames of others are counted as [misdelivered](Report::misdelivered).
    ///
    /// ```
    /// use linerate::traffic::{Checker, Generator};
    /// let (mut checker, mut other) = (Checker::default().with_flows(1..3), Generator::new(64, 1));
    /// let mut frame = vec![0; other.frame_len()];
    /// other.fill(&mut frame);
    /// checker.check(&frame);
    /// assert_eq!(checker.report().misdelivered, 1);
    /// ```
    pub fn with_flows(mut self, flows: Range<u16>) -> Checker {
        self.expected = Some(flows);
        self
    }

    /// Checks one frame, given without CRC.
    #[inline]
    pub fn check(&mut self, frame: &[u8]) {
        self.report.received += 1;
        match stamp::read(frame, self.at) {
            found @ Read::Stamped { .. } => self.count(frame, found),
            found => self.check_elsewhere(frame, found),
        }
    }

    /// Checks a frame without an intact stamp at the last offset.
    #[cold]
    fn check_elsewhere(&mut self, frame: &[u8], found: Read) {
        match stamp::search(frame) {
            Some((at, elsewhere)) => {
                self.at = at;
                self.count(frame, elsewhere);
            }
            None => self.count(frame, found),
        }
    }

    /// Counts a frame with a stamp at the offset `self.at`.
    #[inline]
    fn count(&mut self, frame: &[u8], found: Read) {
        match found {
            Read::Foreign => self.report.foreign += 1,
            Read::Corrupted { flow } => {
                self.report.corrupted += 1;
                // Before a flow's first intact frame, no number is skipped.
                let flow = self.flow(flow);
                let is_before_first = flow.next == ANY;
                flow.corrupted_before_first += u64::from(is_before_first);
                self.corrupted_before_first += u64::from(is_before_first);
                self.unmatched_corrupted += u64::from(!is_before_first);
            }
            Read::Stamped { flow: number, sequence, touched, headers } => {
                self.report.touched[usize::from(touched.min(2))] += 1;
                if stamp::digest(&frame[..self.at]) != headers {
                    self.report.changed.count(&self.senders, frame, self.at, number, headers);
                }
                if self.expected.as_ref().is_some_and(|expected| !expected.contains(&number)) {
                    self.report.misdelivered += 1;
                    return;
                }
                let flow = self.flow(number);
                let next = flow.next;
                let sequence = stamp::extended(sequence, if next == ANY { 0 } else { next });
                if sequence >= next || next == ANY {
                    flow.next = sequence + 1;
                }
                match next {
                    next if sequence == next => {}
                    ANY => self.begin(number, sequence),
                    next if sequence > next => self.skip(number, next, sequence),
                    _ => self.classify_late(number, sequence),
                }
            }
        }
    }

    /// Returns the state of a flow.
    #[inline]
    fn flow(&mut self, number: u16) -> &mut Flow {
        if self.flows.len() <= number.into() {
            self.flows.resize(usize::from(number) + 1, Flow { first: ANY, next: ANY, corrupted_before_first: 0 });
        }
        &mut self.flows[usize::from(number)]
    }

    /// Records a flow's first intact frame.
    #[cold]
    fn begin(&mut self, number: u16, sequence: u64) {
        let flow = self.flow(number);
        flow.first = sequence;
        self.corrupted_before_first -= std::mem::take(&mut flow.corrupted_before_first);
    }

    /// Records that the numbers from `first` to `end`, exclusive, have not arrived.
    #[cold]
    fn skip(&mut self, flow: u16, first: u64, end: u64) {
        let corrupted = (end - first).min(self.unmatched_corrupted);
        self.unmatched_corrupted -= corrupted;
        self.report.lost += end - first - corrupted;
        self.missing.insert((flow, first), end);
        if self.missing.len() > MOST_MISSING {
            self.missing.pop_first();
        }
    }

    /// Classifies a frame whose number is not above its flow's highest: late or duplicate.
    #[cold]
    fn classify_late(&mut self, flow: u16, sequence: u64) {
        let known = self.flow(flow);
        let first = known.first;
        known.first = first.min(sequence);
        if sequence < first {
            self.report.reordered += 1;
            if sequence + 1 < first {
                self.skip(flow, sequence + 1, first);
            }
            return;
        }
        let range = self.missing.range(..=(flow, sequence)).next_back().map(|(&(of, first), &end)| (of, first, end));
        match range.filter(|&(of, _, end)| of == flow && sequence < end) {
            Some((_, first, end)) => {
                self.missing.remove(&(flow, first));
                for (first, end) in [(first, sequence), (sequence + 1, end)] {
                    if first < end {
                        self.missing.insert((flow, first), end);
                    }
                }
                self.report.reordered += 1;
                self.report.lost = self.report.lost.saturating_sub(1);
            }
            None => self.report.duplicated += 1,
        }
    }

    /// Returns the counts so far, without `sent`.
    pub fn report(&self) -> Report {
        // A flow without an intact frame does not exist: its number is damaged, and its frames replace those of other
        // flows.
        Report { lost: self.report.lost.saturating_sub(self.corrupted_before_first), ..self.report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderField;

    #[test]
    fn counts_loss_reordering_and_corruption() {
        let mut generator = Generator::new(64, 2);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 10];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        let mut checker = Checker::default();
        // Flow 0 has 0, 1, 3, 2; flow 1 has 0, 4.
        for index in [0, 1, 2, 6, 4, 9] {
            checker.check(&frames[index]);
        }
        let expected = Report { received: 6, lost: 3, reordered: 1, touched: [6, 0, 0], ..Report::default() };
        assert_eq!(checker.report(), expected);
        frames[8][50] ^= 1;
        checker.check(&frames[8]);
        checker.check(&[0; 60]);
        assert_eq!(checker.report(), Report { received: 8, corrupted: 1, foreign: 1, ..expected });
    }

    /// Damage to any bit of the payload makes a frame corrupted, not lost; other headers are counted.
    #[test]
    fn damage_anywhere_is_found() {
        let mut generator = Generator::new(64, 1);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 482];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        let mut checker = Checker::default();
        checker.check(&frames[0]);
        for (bit, frame) in frames[1..481].iter_mut().enumerate() {
            frame[bit / 8] ^= 1 << (bit % 8);
            checker.check(frame);
        }
        checker.check(&frames[481]);
        let report = checker.report();
        assert_eq!((report.lost, report.foreign, report.corrupted), (0, 0, 18 * 8));
        // The checksums of IPv4 and UDP are not counted as fields; the latter is not covered.
        let changed = report.changed;
        assert_eq!((changed.frames, changed.unknown), (40 * 8, 0));
        let counts = HeaderField::ALL.map(|field| changed.of(field) / 8);
        assert_eq!(counts, [6, 6, 0, 1, 1, 4, 4, 2, 2, 0, 14]);
    }

    /// A router, a tag and a tunnel change headers, not payloads.
    #[test]
    fn changed_headers_are_counted_by_field() {
        let mut generator = Generator::new(100, 2);
        let mut next = || {
            let mut frame = vec![0; generator.frame_len()];
            generator.fill(&mut frame);
            frame
        };
        let mut checker = Checker::default();
        let mut routed = next();
        routed[..12].fill(2);
        routed[22] -= 1;
        checker.check(&routed);
        let mut tagged = next();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        checker.check(&tagged);
        let mut tunnelled = next();
        let outer = tunnelled[14..34].to_vec();
        tunnelled.splice(14..14, outer);
        checker.check(&tunnelled);
        checker.check(&next());
        let report = checker.report();
        assert_eq!((report.lost, report.corrupted, report.changed.frames), (0, 0, 3));
        use HeaderField::{DestinationMac, Encapsulation, SourceMac, Ttl, Vlan};
        let fields: Vec<_> = report.changed.fields().collect();
        assert_eq!(fields, [(DestinationMac, 1), (SourceMac, 1), (Vlan, 1), (Ttl, 1), (Encapsulation, 1)]);
        // The headers of short frames of another sender are not known, unless a frame of it is given.
        let template: crate::Template = "eth/ip6/udp(sport=7)/stamp".parse().unwrap();
        let mut frames = template.frames().unwrap();
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        let known = Checker::default().with_headers_of(&frame);
        frame[21] = 3;
        for (mut checker, unknown) in [(Checker::default(), 1), (known, 0)] {
            checker.check(&frame);
            let changed = checker.report().changed;
            assert_eq!((changed.frames, changed.unknown, changed.of(Ttl)), (1, unknown, 1 - unknown));
        }
    }

    /// Sequence numbers have 40 bits in a frame.
    #[test]
    fn numbers_continue_after_40_bits() {
        let mut checker = Checker::default();
        let mut frame = vec![0; 60];
        for sequence in (1 << 40) - 2..(1 << 40) + 3 {
            stamp::write_over(&mut frame, stamp::USUAL, 0, sequence);
            checker.check(&frame);
        }
        stamp::write_over(&mut frame, stamp::USUAL, 0, 1 << 40);
        checker.check(&frame);
        let Report { lost, duplicated, reordered, .. } = checker.report();
        assert_eq!((lost, duplicated, reordered), (0, 1, 0));
    }

    /// A duplicate does not hide the loss of another frame.
    #[test]
    fn duplicates_are_neither_late_nor_in_place_of_others() {
        let mut generator = Generator::new(64, 1);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 12];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        let mut checker = Checker::default();
        let mut check = |arrived: &[usize]| {
            arrived.iter().for_each(|&index| checker.check(&frames[index]));
            let Report { lost, reordered, duplicated, .. } = checker.report();
            (lost, reordered, duplicated)
        };
        assert_eq!(check(&[0, 1, 6, 6, 0]), (4, 0, 2), "2 to 5 are missing");
        assert_eq!(check(&[4, 4]), (3, 1, 3));
        assert_eq!(check(&[2, 5, 5, 2]), (1, 3, 5));
        assert_eq!(check(&[11, 3, 3, 7]), (3, 5, 6));
        assert_eq!(check(&[8, 10, 9, 9]), (0, 8, 7));
        // Numbers before the first one received exist, too.
        let mut checker = Checker::default();
        [5, 2, 3, 3, 1].iter().for_each(|&index| checker.check(&frames[index]));
        let Report { lost, reordered, duplicated, .. } = checker.report();
        assert_eq!((lost, reordered, duplicated), (1, 3, 1));
    }

    /// A corrupted frame with a damaged flow number is not lost, either.
    #[test]
    fn a_corrupted_number_of_a_flow_takes_the_frames_place() {
        let mut generator = Generator::new(64, 2);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 8];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        // Flow 0 has the even frames. Byte 47 is the lower half of the flow number.
        frames[2][47] ^= 0x40;
        frames[1][50] ^= 1;
        let mut checker = Checker::default();
        [0, 1, 2, 4].iter().for_each(|&index| checker.check(&frames[index]));
        assert_eq!((checker.report().lost, checker.report().corrupted), (0, 2));
        // The first frame of flow 1 was corrupted; before a flow's first intact frame, no number is skipped.
        [3, 7].iter().for_each(|&index| checker.check(&frames[index]));
        assert_eq!(checker.report().lost, 1, "5 is lost");
    }

    /// A corrupted frame is not lost, but the lost frames next to it are.
    #[test]
    fn a_corrupted_frame_is_not_lost() {
        let mut generator = Generator::new(64, 1);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 12];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        let mut checker = Checker::default();
        let mut check = |arrived: &[(usize, bool)]| {
            for &(index, is_intact) in arrived {
                let mut frame = frames[index].clone();
                frame[50] ^= u8::from(!is_intact);
                checker.check(&frame);
            }
            (checker.report().lost, checker.report().corrupted)
        };
        assert_eq!(check(&[(0, true), (1, false), (2, true)]), (0, 1));
        assert_eq!(check(&[(5, false), (7, true)]), (3, 2), "3, 4 and 6 are lost");
        assert_eq!(check(&[(8, true), (10, true)]), (4, 2), "nothing arrived in place of 9");
        assert_eq!(check(&[(11, false)]), (4, 3));
        let mut checker = Checker::default();
        frames[0][50] ^= 1;
        for index in [0, 1, 3] {
            checker.check(&frames[index]);
        }
        assert_eq!(checker.report().lost, 1, "the first frame of a flow takes no other's place");
    }
}
