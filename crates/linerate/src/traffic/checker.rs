//! Checking the frames that arrive.

use super::stamp::{self, Read};

/// Checks frames of a [`Generator`](super::Generator): each arrives once, in the order of its flow, with its bytes
/// intact.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    /// The next sequence number of each flow; `ANY` before its first frame.
    next: Vec<u64>,
    /// Corrupted frames that have not yet taken the place of a skipped sequence number.
    unplaced: u64,
    report: Report,
}

const ANY: u64 = u64::MAX;

/// Counts of a generator and a checker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames sent.
    pub sent: u64,
    /// Frames that arrived, of any kind.
    pub received: u64,
    /// Sequence numbers that were skipped, minus those that arrived late. Frames sent before a flow's first arrival
    /// are not counted. A corrupted frame has arrived: it takes the place of one skipped number, of a later gap in
    /// any flow, because its own number is not trusted. A frame whose stamp is no longer one is foreign, and its
    /// number is skipped.
    pub lost: u64,
    /// Frames with a smaller sequence number than an earlier one of their flow.
    pub reordered: u64,
    /// Frames whose bytes differ from those sent.
    pub corrupted: u64,
    /// Intact frames whose byte 48 was not changed on the way.
    pub untouched: u64,
    /// Frames without a stamp.
    pub foreign: u64,
    /// Packets of a capture file that are not of Ethernet, and were not sent.
    pub not_ethernet: u64,
    /// Frames sent from a capture file that had cut them to its snap length: their ends are missing.
    pub snapped: u64,
    /// 1 if the rest of a capture file could not be read: it is malformed, or ends within a packet.
    pub unreadable: u64,
    /// 1 if not all frames could be written to a capture file (disk full or broken). The file ends before them.
    pub unrecorded: u64,
}

impl Checker {
    /// Checks one frame, given without CRC.
    #[inline]
    pub fn check(&mut self, frame: &[u8]) {
        self.report.received += 1;
        match stamp::read(frame) {
            Read::Foreign => self.report.foreign += 1,
            Read::Corrupted => {
                self.report.corrupted += 1;
                // Before a flow's first arrival no number is skipped.
                let flow = stamp::name(frame).and_then(|(flow, _)| self.next.get(usize::from(flow)));
                self.unplaced += u64::from(flow.is_some_and(|&next| next != ANY));
            }
            Read::Stamped { flow, sequence, touched } => {
                self.report.untouched += u64::from(touched == 0);
                if self.next.len() <= flow as usize {
                    self.next.resize(flow as usize + 1, ANY);
                }
                let next = &mut self.next[flow as usize];
                if *next == ANY {
                    *next = sequence + 1;
                } else if sequence >= *next {
                    let skipped = sequence - *next;
                    let corrupted = skipped.min(self.unplaced);
                    self.unplaced -= corrupted;
                    self.report.lost += skipped - corrupted;
                    *next = sequence + 1;
                } else {
                    self.report.reordered += 1;
                    self.report.lost = self.report.lost.saturating_sub(1);
                }
            }
        }
    }

    /// Returns the counts so far; `sent` is not known here.
    pub fn report(&self) -> Report {
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Generator;

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
        let expected = Report { received: 6, lost: 3, reordered: 1, untouched: 6, ..Report::default() };
        assert_eq!(checker.report(), expected);
        frames[8][20] ^= 1;
        checker.check(&frames[8]);
        checker.check(&[0; 60]);
        assert_eq!(checker.report(), Report { received: 8, corrupted: 1, foreign: 1, ..expected });
    }

    /// A corrupted frame is not lost, and the frames that are lost beside it are.
    #[test]
    fn a_corrupted_frame_is_not_lost() {
        let mut generator = Generator::new(64, 1);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 12];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        let mut checker = Checker::default();
        let mut check = |arrived: &[(usize, bool)]| {
            for &(index, is_intact) in arrived {
                let mut frame = frames[index].clone();
                frame[20] ^= u8::from(!is_intact);
                checker.check(&frame);
            }
            (checker.report().lost, checker.report().corrupted)
        };
        assert_eq!(check(&[(0, true), (1, false), (2, true)]), (0, 1));
        assert_eq!(check(&[(5, false), (7, true)]), (3, 2), "3, 4 and 6 are lost");
        assert_eq!(check(&[(8, true), (10, true)]), (4, 2), "nothing arrived in place of 9");
        assert_eq!(check(&[(11, false)]), (4, 3));
        let mut checker = Checker::default();
        frames[0][20] ^= 1;
        for index in [0, 1, 3] {
            checker.check(&frames[index]);
        }
        assert_eq!(checker.report().lost, 1, "the first frame of a flow takes no other's place");
    }
}
