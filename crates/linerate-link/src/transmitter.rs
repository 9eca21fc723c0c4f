//! The transmitter of a link: when the frames of a queue have been sent, at a rate or at the times of a trace.

use std::sync::Arc;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The longest frame with its overhead. So a frame's bits, in billionths, fit 64 bits.
pub const LONGEST_FRAME: u64 = 1 << 20;

/// The bytes of one delivery opportunity in a trace of mahimahi.
const OPPORTUNITY: u64 = 1504;

/// Times at which 1,504 bytes can be sent, in nanoseconds; repeated after the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Opportunities(Arc<[u64]>);

impl Opportunities {
    /// Parses a trace of mahimahi (mm-link(1)): each line has the time of one opportunity in milliseconds, in order.
    /// The last time is the period.
    ///
    /// # Errors
    /// A description of the error in the text.
    pub fn parse(text: &str) -> Result<Opportunities, String> {
        let mut times = Vec::new();
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |why: &str| format!("line {}: {why}", n + 1);
            let time = line.trim().parse::<u32>().map_err(|_| wrong("it is not a whole number of milliseconds"))?;
            let time = u64::from(time) * 1_000_000;
            if times.last().is_some_and(|last| *last > time) {
                return Err(wrong("it is before the last time"));
            }
            times.push(time);
        }
        match times.last() {
            None => Err("it has no opportunities".to_string()),
            Some(0) => Err("its last time, the period, is 0".to_string()),
            Some(_) => Ok(Opportunities(times.into())),
        }
    }

    /// Returns the mean rate in bits per second, at least 1.
    pub fn mean_rate(&self) -> u64 {
        let bits = self.0.len() as u128 * u128::from(OPPORTUNITY) * 8;
        (bits * u128::from(SECOND) / u128::from(self.period())).clamp(1, u64::MAX.into()) as u64
    }

    fn period(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// Returns the number of the first opportunity at `time` or later, counted over all periods.
    fn first_at(&self, time: u64) -> u64 {
        // The last time of a period is also time 0 of the next.
        let (round, rest) = (time / self.period(), time % self.period());
        let count = self.0.len() as u64;
        match rest == 0 && round > 0 {
            true => (round - 1) * count + self.0.partition_point(|at| *at < self.period()) as u64,
            false => round * count + self.0.partition_point(|at| *at < rest) as u64,
        }
    }

    fn time(&self, number: u64) -> u64 {
        let count = self.0.len() as u64;
        (number / count) * self.period() + self.0[(number % count) as usize]
    }
}

/// The pace of a transmitter.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Bits per second.
    Rate(u64),
    /// The opportunities of a trace.
    Opportunities(Opportunities),
}

impl Pace {
    /// Returns the mean rate in bits per second.
    pub fn mean_rate(&self) -> u64 {
        match self {
            Pace::Rate(rate) => *rate,
            Pace::Opportunities(opportunities) => opportunities.mean_rate(),
        }
    }
}

/// Sends one frame after the other. All times are in nanoseconds since the start of the link.
pub struct Transmitter {
    pace: Pace,
    sent: Sent,
}

/// The state after a frame.
#[derive(Clone, Copy, Default)]
struct Sent {
    /// When the frame had been sent.
    at: u64,
    /// The part of the following frame that has been sent already. At a rate: in bits multiplied by [`SECOND`], so that
    /// no rounding error remains. In a trace: the bytes left of the last opportunity.
    credit: u64,
    /// The next opportunity.
    next: u64,
}

impl Transmitter {
    /// Creates an idle transmitter.
    pub fn new(pace: Pace) -> Transmitter {
        Transmitter { pace, sent: Sent::default() }
    }

    /// Returns when the transmitter begins with a frame that is ready at `ready`.
    #[inline(always)]
    pub fn start(&self, ready: u64) -> u64 {
        ready.max(self.sent.at)
    }

    /// Returns when a frame of `len` bytes, the next one, will have been sent if it is started at `start`.
    pub fn end(&self, start: u64, len: u64) -> u64 {
        self.after(start, len).at
    }

    /// Sends the frame if that is possible until `now`; returns when it had been sent.
    #[inline]
    pub fn send(&mut self, start: u64, len: u64, now: u64) -> Option<u64> {
        let after = self.after(start, len);
        (after.at <= now).then(|| {
            self.sent = after;
            after.at
        })
    }

    /// Returns the state after the frame.
    #[inline]
    fn after(&self, start: u64, len: u64) -> Sent {
        let len = len.min(LONGEST_FRAME);
        // A frame that is late cannot use what was left at the end of the last.
        let credit = if start == self.sent.at { self.sent.credit } else { 0 };
        match &self.pace {
            Pace::Rate(rate) => {
                let Some(left) = (len * 8 * SECOND).checked_sub(credit) else {
                    return Sent { credit: credit - len * 8 * SECOND, ..self.sent };
                };
                let time = left.div_ceil(*rate);
                Sent { at: start.saturating_add(time), credit: time * rate - left, next: 0 }
            }
            Pace::Opportunities(opportunities) => {
                let Some(left) = len.checked_sub(credit + 1) else {
                    return Sent { at: start, credit: credit - len, ..self.sent };
                };
                // As mahimahi: an opportunity without a frame is lost; a frame may need several.
                let first = opportunities.first_at(start).max(self.sent.next);
                let last = first + left / OPPORTUNITY;
                let credit = OPPORTUNITY - 1 - left % OPPORTUNITY;
                Sent { at: opportunities.time(last), credit, next: last + 1 }
            }
        }
    }

    /// Changes the pace at `now`, while the frame of `len` bytes that was started at `start` is being sent, if there is
    /// one. What was sent of it remains sent.
    pub fn change(&mut self, pace: Pace, now: u64, sending: Option<(u64, u64)>) {
        if let (Some((start, len)), Pace::Rate(old), Pace::Rate(_)) = (sending, &self.pace, &pace)
            && start < now
        {
            let credit = if start == self.sent.at { self.sent.credit } else { 0 };
            let sent = u128::from(credit) + u128::from(now - start) * u128::from(*old);
            let credit = sent.min(u128::from(len.min(LONGEST_FRAME) * 8 * SECOND)) as u64;
            self.sent = Sent { at: now, credit, next: 0 };
        } else if std::mem::discriminant(&self.pace) != std::mem::discriminant(&pace) {
            self.sent = Sent { at: self.sent.at.max(now), ..Sent::default() };
        }
        self.pace = pace;
    }

    /// Returns the pace.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames of these lengths back to back, and returns when each had been sent.
    fn ends(transmitter: &mut Transmitter, lens: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let send = |len| {
            let start = transmitter.start(0);
            let end = transmitter.end(start, len);
            assert!(end == 0 || transmitter.send(start, len, end - 1).is_none());
            assert_eq!(transmitter.send(start, len, end), Some(end));
            end
        };
        lens.into_iter().map(send).collect()
    }

    /// A million frames take exactly as long as their bits, at rates that no nanosecond divides; and no window of 1 ms
    /// has more than the rate and one frame.
    #[test]
    fn rates_are_exact() {
        for rate in [1_000_000_007, 9_999_991, 3, 999_999_999_989] {
            let count = if rate < 1000 { 100 } else { 1_000_000 };
            let lens = |n: u64| 60 + n * 7919 % 1455;
            let ends = ends(&mut Transmitter::new(Pace::Rate(rate)), (0..count).map(lens));
            let bits = (0..count).map(|n| 8 * u128::from(lens(n))).sum::<u128>();
            assert_eq!(u128::from(*ends.last().unwrap()), (bits * u128::from(SECOND)).div_ceil(rate.into()), "{rate}");
            let (mut first, mut in_window) = (0, 0);
            for (n, end) in ends.iter().enumerate() {
                in_window += 8 * lens(n as u64);
                while end - ends[first] >= 1_000_000 {
                    in_window -= 8 * lens(first as u64);
                    first += 1;
                }
                let longest = 8 * 1514 + 1;
                assert!(u128::from(in_window) <= u128::from(rate) / 1000 + longest, "{rate}: {in_window} at {end}");
            }
        }
    }

    #[test]
    fn an_idle_transmitter_starts_at_once() {
        let mut transmitter = Transmitter::new(Pace::Rate(8_000_000)); // a byte per microsecond
        assert_eq!(ends(&mut transmitter, [100]), [100_000]);
        assert_eq!(transmitter.start(50_000), 100_000);
        assert_eq!(transmitter.start(250_000), 250_000);
        assert_eq!(transmitter.end(250_000, 100), 350_000);
    }

    #[test]
    fn a_change_of_rate_applies_to_the_rest_of_a_frame() {
        let mut transmitter = Transmitter::new(Pace::Rate(8_000_000));
        // 400 of 1,000 bytes in 400 us; the others take 10 us each.
        transmitter.change(Pace::Rate(800_000), 400_000, Some((0, 1000)));
        let start = transmitter.start(0);
        assert_eq!((start, transmitter.end(start, 1000)), (400_000, 6_400_000));
        // Back at the same time: as if nothing had changed.
        transmitter.change(Pace::Rate(8_000_000), 400_000, Some((start, 1000)));
        assert_eq!(ends(&mut transmitter, [1000, 100]), [1_000_000, 1_100_000]);
    }

    #[test]
    fn traces_deliver_1504_bytes_at_their_times() {
        let trace = Opportunities::parse("0\n5\n5\n\n10\n").unwrap();
        assert_eq!(trace.mean_rate(), 4 * 1504 * 8 * 100);
        let mut transmitter = Transmitter::new(Pace::Opportunities(trace));
        let ms = |times: Vec<u64>| times.iter().map(|time| time / 1_000_000).collect::<Vec<_>>();
        // Opportunities: 0, 5, 5, 10, 10 (0 of the next period), 15, 15, 20, …
        assert_eq!(ms(ends(&mut transmitter, [1504, 752, 752, 1504, 1505, 1503, 1])), [0, 5, 5, 5, 10, 10, 15]);
        // After a pause, what was missed is lost.
        let start = transmitter.start(31_000_000);
        assert_eq!(transmitter.end(start, 100), 35_000_000);
        assert!(transmitter.send(start, 100, u64::MAX).is_some());
        let start = transmitter.start(35_000_000);
        assert_eq!(transmitter.end(start, 1404), 35_000_000);
        for bad in ["", "x", "5\n4", "-1", "0", "0\n0", "1.5", "99999999999"] {
            assert!(Opportunities::parse(bad).is_err(), "{bad}");
        }
    }
}
