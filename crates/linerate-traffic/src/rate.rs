//! Rates, and pacing.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use linerate_core::error::Error;
use linerate_core::port::Random;

/// A send rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits per second on the wire: including CRC, preamble and gap.
    Bits(f64),
    /// A fraction of the line rate, up to 1.0; see [`for_line_rate`](Rate::for_line_rate).
    Line(f64),
}

/// Bytes on the wire in addition to a frame without CRC: CRC 4, preamble and start 8, gap 12 (IEEE 802.3).
const FRAMING: f64 = 24.0;

impl Rate {
    /// The line rate of an 82599 in bits per second, which [`Rate::Line`] refers to unless another line is given.
    pub const TEN_GIGABIT: f64 = 10e9;

    /// Returns packets per second for frames of `len` bytes on average, without CRC.
    pub fn packets_per_second(self, len: f64) -> f64 {
        let per_second = |bits: f64| bits / ((len + FRAMING) * 8.0);
        match self {
            Rate::Packets(packets) => packets,
            Rate::Bits(bits) => per_second(bits),
            Rate::Line(part) => per_second(part * Rate::TEN_GIGABIT),
        }
    }

    /// Returns the rate on a line of `bits` per second: a fraction of the line becomes bits, other rates stay.
    pub fn for_line_rate(self, bits: f64) -> Rate {
        match self {
            Rate::Line(part) => Rate::Bits(part * bits),
            rate => rate,
        }
    }

    /// Returns this fraction of the rate.
    pub fn times(self, part: f64) -> Rate {
        match self {
            Rate::Packets(value) => Rate::Packets(value * part),
            Rate::Bits(value) => Rate::Bits(value * part),
            Rate::Line(value) => Rate::Line(value * part),
        }
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Parses packets per second, such as `14.88M`, `1e6`, `14.88Mpps`; bits per second, such as `10G`, `10Gbit`,
    /// `10Gbit/s`, `10Gbps`; and fractions of the line rate, such as `50%`. The prefixes are `k`, `M` and `G`; `G`
    /// alone means bits, since no wire carries that many packets.
    fn from_str(text: &str) -> std::result::Result<Rate, Error> {
        parse(text).map_err(Error::bad_value)
    }
}

fn parse(text: &str) -> std::result::Result<Rate, String> {
    let bad = || {
        format!("'{text}' is not a rate; write packets per second as 14.88M, bits as 10Gbit, a part of the line as 50%")
    };
    // An exponent belongs to the number: 1e6.
    let bytes = text.as_bytes();
    let is_part = |at: usize| match bytes[at] {
        b'0'..=b'9' | b'.' | b'-' | b'+' => true,
        b'e' | b'E' => bytes.get(at + 1).is_some_and(|next| next.is_ascii_digit() || b"+-".contains(next)),
        _ => false,
    };
    let digits = (0..bytes.len()).find(|&at| !is_part(at)).unwrap_or(bytes.len());
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<f64>().map_err(|_| bad())?;
    let (factor, unit) = match unit.as_bytes().first() {
        Some(b'k' | b'K') => (1e3, &unit[1..]),
        Some(b'M') => (1e6, &unit[1..]),
        Some(b'G' | b'g') => (1e9, &unit[1..]),
        _ => (1.0, unit),
    };
    let value = number * factor;
    let rate = match unit.to_ascii_lowercase().as_str() {
        "" if factor == 1e9 => Rate::Bits(value),
        "" | "pps" | "p/s" => Rate::Packets(value),
        "bit" | "bit/s" | "bits" | "bits/s" | "bps" => Rate::Bits(value),
        "%" if factor == 1.0 && number > 100.0 => {
            return Err(format!("'{text}' is more than the line carries: at most 100%"));
        }
        "%" if factor == 1.0 => Rate::Line(number / 100.0),
        _ => return Err(bad()),
    };
    match value {
        _ if value > 1e13 => Err(format!("'{text}' is too large a number for a rate; full speed is without a rate")),
        _ if value > 0.0 => Ok(rate),
        _ => Err(format!("'{text}' is not above 0: a rate is positive")),
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Packets(value) => write!(f, "{} packets/s", Scaled(*value)),
            Rate::Bits(value) => write!(f, "{}bit/s", Scaled(*value).with_space()),
            Rate::Line(part) => write!(f, "{} % of the line rate", (part * 1e4).round() / 1e2),
        }
    }
}

/// A number with four significant digits and an SI prefix: 14.88M.
struct Scaled(f64);

impl Scaled {
    /// Returns the number and its prefix, with a space between them, as SI writes them before a unit.
    fn with_space(&self) -> String {
        let text = self.to_string();
        let digits = text.trim_end_matches(['k', 'M', 'G']);
        format!("{digits} {}", &text[digits.len()..])
    }
}

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = |value: f64| {
            let digits = 10f64.powi(3 - value.abs().max(1e-9).log10().floor() as i32);
            (value * digits).round() / digits
        };
        let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
        let (factor, prefix) = steps.into_iter().find(|(factor, _)| rounded(self.0) >= *factor).unwrap_or((1.0, ""));
        write!(f, "{}{prefix}", rounded(self.0 / factor))
    }
}

/// The gaps between frames, or between bursts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gaps {
    /// All equal.
    #[default]
    Even,
    /// The gaps of a Poisson process, from random numbers with this seed: exponentially distributed, as from many
    /// independent senders.
    Poisson(u64),
}

/// Decides when the next frame may be sent. After a pause, up to [`Pacer::SLACK`] frames are sent back to back. The
/// rest is skipped, since a wire cannot go faster after a delay, or [made up for](Pacer::making_up). Time starts with
/// the first request.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// The mean time from frame to frame, in seconds.
    gap: f64,
    origin: Option<Instant>,
    /// The time of the last clock reading, and the time when the next frame is due, in seconds since the origin.
    now: f64,
    due: f64,
    /// The maximum number of frames sent back to back after a pause.
    slack: f64,
    /// Seconds of pauses not yet made up for, and their maximum.
    owed: f64,
    most_owed: f64,
    /// The number of frames in a burst, and those of the current burst not yet sent.
    burst: usize,
    left: usize,
    /// For random gaps.
    random: Option<Random>,
}

impl Pacer {
    /// The maximum number of frames sent back to back after a pause. On a busy machine, any time slice of a thread may
    /// follow one.
    pub const SLACK: f64 = 64.0;

    /// While a pause is [made up for](Pacer::making_up), the rate is increased by the owed time divided by this. For
    /// example, by 14 % after 7 ms, a typical preemption on a busy machine.
    pub const MAKE_UP: Duration = Duration::from_millis(50);

    /// Paces frames of `len` bytes on average, without CRC, at `rate`.
    pub fn new(rate: Rate, len: f64) -> Pacer {
        let gap = 1.0 / rate.packets_per_second(len);
        let slack = Pacer::SLACK;
        Pacer {
            gap,
            origin: None,
            now: 0.0,
            due: gap,
            slack,
            owed: 0.0,
            most_owed: 0.0,
            burst: 1,
            left: 1,
            random: None,
        }
    }

    /// Makes up for pauses over a few [`Pacer::MAKE_UP`] periods instead of skipping their frames. This keeps the mean
    /// rate, and no buffer after the port must hold the frames of a pause. At most twice that period is owed: a port
    /// that was slower for longer gets no more when it recovers.
    pub fn making_up(self) -> Pacer {
        Pacer { most_owed: 2.0 * Pacer::MAKE_UP.as_secs_f64(), ..self }
    }

    /// Allows up to `frames` frames back to back after a pause, for ports that are not wires.
    pub fn with_slack(self, frames: usize) -> Pacer {
        Pacer { slack: frames.max(1) as f64, ..self }
    }

    /// Starts with a fraction of a frame, from 0 to 1, so that several queues do not all wait for their first frame.
    pub fn with_credit(self, frames: f64) -> Pacer {
        Pacer { due: self.gap * (1.0 - frames.clamp(0.0, 1.0)), ..self }
    }

    /// Sends frames in back-to-back bursts of this length, at the same rate.
    pub fn with_bursts(self, frames: usize) -> Pacer {
        let burst = frames.max(1);
        // In a long burst, the last frames are late when the first have been sent.
        let slack = if burst > 1 { self.slack.max(burst as f64 + Pacer::SLACK) } else { self.slack };
        Pacer { burst, left: burst, slack, ..self }
    }

    /// Sets the distribution of the gaps between frames, or bursts.
    pub fn with_gaps(self, gaps: Gaps) -> Pacer {
        let random = match gaps {
            Gaps::Even => None,
            Gaps::Poisson(seed) => Some(Random::new(seed, 0)),
        };
        let mut pacer = Pacer { random, ..self };
        if pacer.random.is_some() {
            pacer.due = pacer.next_gap();
        }
        pacer
    }

    /// Changes the rate from now on, for frames of `len` bytes on average; bursts and random gaps remain. The rest of
    /// the current gap is scaled as all gaps are. The numbers of late and owed frames stay the same.
    pub fn set_rate(&mut self, rate: Rate, len: f64) {
        let now = self.origin.map_or(0.0, |origin| origin.elapsed().as_secs_f64());
        self.change_at(now, 1.0 / rate.packets_per_second(len));
    }

    fn change_at(&mut self, now: f64, gap: f64) {
        self.set_time(now);
        let longer = gap / self.gap;
        (self.due, self.gap) = (now + (self.due - now) * longer, gap);
        self.owed = (self.owed * longer).min(self.most_owed);
    }

    /// Resumes after an intended pause: the time since the last request for frames does not count.
    pub fn resume(&mut self) {
        if let Some(origin) = self.origin {
            self.resume_at(origin.elapsed().as_secs_f64());
        }
    }

    fn resume_at(&mut self, now: f64) {
        (self.due, self.now) = (self.due + now - self.now, now);
    }

    /// Returns whether a frame may be sent now, and counts it as sent.
    pub fn take(&mut self) -> bool {
        self.take_up_to(1, 1) == 1
    }

    /// Returns the number of frames that may be sent now, from `least` to `most`, or 0, and counts them as sent.
    /// `least` must not exceed the slack. Bursts and random gaps ignore it.
    pub fn take_up_to(&mut self, least: usize, most: usize) -> usize {
        self.take_at(least, most, |origin| origin.elapsed().as_secs_f64())
    }

    fn take_at(&mut self, least: usize, most: usize, clock: impl Fn(Instant) -> f64) -> usize {
        if self.burst == 1 && self.random.is_none() {
            // If enough frames were due at the last reading, the clock is not read again.
            if self.ready() < most {
                self.read_clock(clock);
            }
            let go = self.ready().min(most);
            if go < least {
                return 0;
            }
            self.advance(go as f64 * self.gap);
            return go;
        }
        let (mut go, mut has_read_clock) = (0, false);
        while go < most {
            if self.now < self.due {
                if has_read_clock {
                    break;
                }
                self.read_clock(&clock);
                has_read_clock = true;
                continue;
            }
            let some = self.left.min(most - go);
            (go, self.left) = (go + some, self.left - some);
            if self.left == 0 {
                self.left = self.burst;
                let gap = self.next_gap();
                self.advance(gap);
            }
        }
        go
    }

    /// Returns the number of frames that are due.
    fn ready(&self) -> usize {
        if self.now < self.due { 0 } else { 1 + ((self.now - self.due) / self.gap) as usize }
    }

    /// Reads the clock.
    fn read_clock(&mut self, clock: impl Fn(Instant) -> f64) {
        let origin = *self.origin.get_or_insert_with(Instant::now);
        self.set_time(clock(origin));
    }

    /// Sets the current time. Frames that would be too late are skipped, or their time is owed.
    fn set_time(&mut self, now: f64) {
        self.now = now;
        let late = self.now - self.due - (self.slack - 0.5) * self.gap;
        if late > 0.0 {
            self.due += late;
            self.owed = (self.owed + late).min(self.most_owed);
        }
    }

    /// Advances the schedule by frames that take `time` seconds.
    fn advance(&mut self, time: f64) {
        // The payment for a long gap is limited to the owed time.
        let paid = (time * self.owed / (self.owed + Pacer::MAKE_UP.as_secs_f64())).min(self.owed);
        (self.due, self.owed) = (self.due + time - paid, self.owed - paid);
    }

    /// Returns the seconds from one burst to the next.
    fn next_gap(&mut self) -> f64 {
        let mean = self.gap * self.burst as f64;
        match &mut self.random {
            None => mean,
            // 53 random bits give less than 1, so the logarithm is finite.
            Some(random) => -mean * (1.0 - (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64).ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_packets_or_bits() {
        for (text, rate) in [
            ("14.88M", Rate::Packets(14.88e6)),
            ("5kpps", Rate::Packets(5e3)),
            ("1e6", Rate::Packets(1e6)),
            ("2.5E+3", Rate::Packets(2500.0)),
            ("10G", Rate::Bits(10e9)),
            ("10Gbit", Rate::Bits(10e9)),
            ("10gbit", Rate::Bits(10e9)),
            ("10Gbps", Rate::Bits(10e9)),
            ("50%", Rate::Line(0.5)),
        ] {
            assert_eq!(text.parse().ok(), Some(rate), "{text}");
        }
        for (bad, why) in [
            ("", "not a rate"),
            ("fast", "not a rate"),
            ("10Gbyte", "not a rate"),
            ("1.2.3", "not a rate"),
            ("M", "not a rate"),
            ("1e", "not a rate"),
            ("-1", "a rate is positive"),
            ("0", "a rate is positive"),
            ("-0%", "a rate is positive"),
            ("1e-400", "'1e-400' is not above 0: a rate is positive"),
            ("-1e400", "a rate is positive"),
            ("1e400", "'1e400' is too large a number for a rate"),
            ("1e308M", "too large a number for a rate"),
            ("10001Gbit", "too large a number for a rate"),
            ("1e400Gbit", "too large a number for a rate"),
            ("inf", "not a rate"),
            ("nan", "not a rate"),
            ("1e400%", "at most 100%"),
            ("101%", "at most 100%"),
            ("1é", "not a rate"),
        ] {
            let said = bad.parse::<Rate>().unwrap_err();
            assert!(said.why().contains(why), "{bad}: {said}");
        }
        // The usual figure: 64-byte frames at 10 Gbit/s.
        assert_eq!(Rate::Bits(10e9).packets_per_second(60.0).round(), 14_880_952.0);
        assert_eq!(Rate::Line(0.5).packets_per_second(60.0).round(), 7_440_476.0);
        assert_eq!(Rate::Line(0.5).for_line_rate(1e9), Rate::Bits(5e8));
    }

    #[test]
    fn rates_are_shown_with_a_prefix() {
        for (rate, shown) in [
            (Rate::Packets(14_880_952.0), "14.88M packets/s"),
            (Rate::Packets(100e3), "100k packets/s"),
            (Rate::Packets(0.5), "0.5 packets/s"),
            (Rate::Bits(10e9), "10 Gbit/s"),
            (Rate::Bits(12.0), "12 bit/s"),
            (Rate::Line(0.125), "12.5 % of the line rate"),
        ] {
            assert_eq!(rate.to_string(), shown);
        }
    }

    /// Takes the frames due at a time.
    fn take_at(pacer: &mut Pacer, seconds: f64, most: usize) -> usize {
        pacer.take_at(1, most, |_| seconds)
    }

    #[test]
    fn a_pacer_gives_the_rate_and_no_more_than_its_slack_at_once() {
        let pacer = Pacer::new(Rate::Packets(1e6), 60.0);
        assert_eq!(take_at(&mut pacer.clone(), 50.5e-6, 1000), 50);
        assert_eq!(take_at(&mut pacer.clone(), 10.0, 1000), 64);
        assert_eq!(take_at(&mut pacer.with_slack(500), 10.0, 1000), 500);
        // The due frames are either enough for `least`, or none is sent.
        let mut slow = Pacer { now: 40.5, due: 1.0, ..Pacer::new(Rate::Packets(1.0), 60.0) };
        let mut take = |least, most| slow.take_at(least, most, |_| 40.5);
        assert_eq!((take(41, 64), take(32, 32), take(9, 64)), (0, 32, 0), "40 frames are due");
        assert_eq!((take(1, 64), take(1, 1)), (8, 0));
    }

    /// A thread without a processor for 7 ms of each 100, as on a busy machine, or for half of its time. The mean is
    /// kept, and no millisecond has more frames than the owed time allows.
    #[test]
    fn pauses_are_made_up_for_without_a_burst() {
        for (gaps, period, pause, allowed) in
            [(Gaps::Even, 100, 7, 1250), (Gaps::Poisson(2), 100, 7, 1400), (Gaps::Even, 8, 4, 2200)]
        {
            let (mut pacer, mut sent, mut most) =
                (Pacer::new(Rate::Packets(1e6), 60.0).making_up().with_gaps(gaps), 0, 0);
            for milli in (0..2000u32).filter(|milli| milli % period >= pause) {
                let steps = (1..=1000u32).map(|micro| f64::from(milli * 1000 + micro) * 1e-6 + 1e-9);
                let taken: usize = steps.map(|now| take_at(&mut pacer, now, 1000)).sum();
                (sent, most) = (sent + taken, taken.max(most));
            }
            // Frames that are still owed are missing, and random gaps deviate from the mean.
            let missing = (2e6 - pacer.owed * 1e6 - sent as f64).abs();
            assert!(
                missing <= if gaps == Gaps::Even { 65.0 } else { 5000.0 },
                "{gaps:?}, {pause} of {period}: {missing} missing"
            );
            assert!(pacer.owed < 0.06, "{} owed", pacer.owed);
            assert!(
                (allowed - 200..=allowed).contains(&most),
                "{gaps:?}, {pause} of {period}: {most} in a millisecond"
            );
        }
        // For a port that accepted no frames for an hour, only a tenth of a second is owed.
        let mut pacer = Pacer::new(Rate::Packets(1e6), 60.0).making_up();
        let times = (0..2_000_000u32).map(|micro| 3600.0 + f64::from(micro) * 1e-6);
        let sent: usize = times.map(|now| take_at(&mut pacer, now, 1000)).sum();
        assert!(sent.abs_diff(2_100_064) <= 2, "{sent}");
    }

    /// Over a million frames, the mean is the rate, whatever the gaps and the times of requests.
    #[test]
    fn bursts_and_random_gaps_keep_the_rate() {
        for (burst, gaps, deviation) in [(1, Gaps::Even, 1e-5), (32, Gaps::Even, 1e-4), (1, Gaps::Poisson(3), 3e-3)] {
            let pacer = Pacer::new(Rate::Packets(1e6), 60.0).with_bursts(burst).with_gaps(gaps);
            let (mut pacer, mut sent, mut now) = (pacer, 0, 0.0);
            let mut random = Random::new(1, 0);
            while now < 1.0 {
                now += random.below(3000) as f64 * 1e-9;
                sent += take_at(&mut pacer, now, 1000);
            }
            assert!((sent as f64 - 1e6).abs() < 1e6 * deviation + 1.0, "{burst}, {gaps:?}: {sent}");
        }
        // A burst is sent back to back, and the next one when it is due; also a burst longer than the slack.
        let mut pacer = Pacer::new(Rate::Packets(1e6), 60.0).with_bursts(1000);
        let taken: Vec<usize> = (1..=3000).map(|turn| take_at(&mut pacer, f64::from(turn) * 1e-6 + 1e-9, 32)).collect();
        assert_eq!(taken.iter().sum::<usize>(), 3000);
        assert_eq!(taken.iter().filter(|count| **count == 8).count(), 3, "each burst has 31 full batches and one of 8");
    }

    /// After a rate with a gap of an hour, the new rate starts immediately; frames due before are not made up for.
    #[test]
    fn a_rate_that_changes_begins_at_once() {
        let mut pacer = Pacer::new(Rate::Packets(1.0 / 3600.0), 60.0);
        assert_eq!(take_at(&mut pacer, 1.0, 1000), 0);
        pacer.change_at(1.0, 1e-3);
        assert_eq!((1..=21).map(|half| take_at(&mut pacer, 1.0 + f64::from(half) * 0.5e-3, 1000)).sum::<usize>(), 10);
        pacer.change_at(5.0, 1.0);
        assert_eq!(take_at(&mut pacer, 5.0, 1000), 64, "as many are late as before");
        // An intended pause delays the next frame by its length.
        let mut pacer = Pacer::new(Rate::Packets(1.0), 60.0);
        assert_eq!((take_at(&mut pacer, 0.75, 1000), pacer.resume_at(50.75)), (0, ()));
        assert_eq!((take_at(&mut pacer, 50.9, 1000), take_at(&mut pacer, 51.1, 1000)), (0, 1));
        // However often the rate changes, the mean is kept, even by a thread that rarely has a processor.
        for (rates, step, each) in [([2.0, 2.2], 0.001, 200), ([1000.0, 1050.0], 0.005, 2), ([1e6, 1.1e6], 0.004, 3)] {
            let mut pacer = Pacer::new(Rate::Packets(rates[0]), 60.0).making_up();
            let mut sent = 0;
            for turn in 1..=20_000u32 {
                let now = f64::from(turn) * step;
                if turn % each == 0 {
                    pacer.change_at(now, 1.0 / rates[(turn / each) as usize % 2]);
                }
                // It has a processor for half of the time.
                let looks = if step > 0.001 { 1000 } else { 1 };
                sent += (0..looks)
                    .map(|look| take_at(&mut pacer, now + step / 2000.0 * f64::from(look), 1000))
                    .sum::<usize>();
            }
            let due = (rates[0] + rates[1]) / 2.0 * 20_000.0 * step;
            let missing = (due - sent as f64).abs() / due;
            assert!(missing < 0.03, "{rates:?}: {sent} of {due}");
        }
    }

    /// For any change of rate, and any late or owed frames: each second has at least the frames of the rate. It has at
    /// most those, plus late frames, a burst, and the owed tenth of a second.
    #[test]
    fn no_change_of_rate_floods() {
        let mut random = Random::new(24, 0);
        for (burst, gaps) in [(1, Gaps::Even), (8, Gaps::Even), (1, Gaps::Poisson(5)), (500, Gaps::Even)] {
            let mut now = 0.0;
            let mut pacer = Pacer::new(Rate::Packets(1e6), 60.0).making_up().with_bursts(burst).with_gaps(gaps);
            for _ in 0..300 {
                // From one frame in 100 s to ten million per second.
                let rate = 10f64.powf(random.below(9000) as f64 / 1000.0 - 2.0);
                pacer.change_at(now, 1.0 / rate);
                // Pauses of up to a second, some of them intended.
                now += random.below(1_000_000) as f64 * 1e-6;
                if random.below(4) == 0 {
                    pacer.resume_at(now);
                }
                let (mut sent, step) = (0, 1e-3);
                for _ in 0..1000 {
                    now += step;
                    sent += take_at(&mut pacer, now, 100_000);
                }
                assert!(pacer.owed >= 0.0 && pacer.due.is_finite(), "{} owed", pacer.owed);
                // 7 standard deviations of random gaps.
                let chance = if gaps == Gaps::Even { 0.0 } else { 7.0 * rate.sqrt() + 20.0 };
                let most = 1.1 * rate + 64.0 + 2.0 * burst as f64 + chance;
                // With a slack of 64 frames per millisecond, faster frames are skipped or owed.
                let least = rate.min(60e3) - 1.0 - burst as f64 - chance;
                assert!((sent as f64) <= most && sent as f64 >= least, "{sent} at {rate}, bursts of {burst}, {gaps:?}");
            }
        }
    }

    /// The gaps of a Poisson process, by a Kolmogorov-Smirnov test at the 0.1 % level.
    #[test]
    fn random_gaps_are_exponential() {
        for seed in 1000..1020 {
            let mut pacer = Pacer::new(Rate::Packets(1.0), 60.0).with_gaps(Gaps::Poisson(seed));
            let mut gaps: Vec<f64> = (0..10_000).map(|_| pacer.next_gap()).collect();
            gaps.sort_by(f64::total_cmp);
            let distance = |(n, gap): (usize, &f64)| {
                let expected = 1.0 - (-gap).exp();
                (expected - n as f64 / 1e4).abs().max((expected - (n + 1) as f64 / 1e4).abs())
            };
            let distance = gaps.iter().enumerate().map(distance).fold(0.0, f64::max);
            assert!(distance < 1.95 / 100.0, "seed {seed}: {distance}");
        }
    }

    /// The sum over queues with few frames each is the rate.
    #[test]
    fn queues_do_not_all_wait_for_their_first_frame() {
        for (per_second, queues, seconds) in [(1000.0, 64, 1), (100.0, 8, 1), (3.0, 4, 2), (5.0, 64, 3)] {
            let frames = (0..queues).map(|queue| {
                let rate = Rate::Packets(per_second / f64::from(queues));
                let mut pacer = Pacer::new(rate, 60.0).with_credit(f64::from(queue) / f64::from(queues));
                let times = (1..=seconds * 100).map(|turn| f64::from(turn) / 100.0);
                times.map(|now| take_at(&mut pacer, now, usize::MAX) as u64).sum::<u64>()
            });
            let (sent, due) = (frames.sum::<u64>(), per_second as u64 * seconds as u64);
            assert!(sent.abs_diff(due) <= 1, "{sent} of {due} by {queues} queues");
        }
    }
}
