//! Rates, and pacing.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// A send rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits per second on the wire: including CRC, preamble and gap.
    Bits(f64),
    /// A part of the line rate, up to 1.0; see [`on_line`](Rate::on_line).
    Line(f64),
}

/// Bytes on the wire beside a frame without CRC: CRC 4, preamble and start 8, gap 12 (IEEE 802.3).
const FRAMING: usize = 24;

impl Rate {
    /// The line rate of an 82599, in bits per second: what [`Rate::Line`] is a part of, unless another line is named.
    pub const TEN_GIGABIT: f64 = 10e9;

    /// Returns packets per second for frames of `len` bytes without CRC.
    pub fn packets_per_second(self, len: usize) -> f64 {
        let per_second = |bits: f64| bits / ((len as f64 + FRAMING as f64) * 8.0);
        match self {
            Rate::Packets(packets) => packets,
            Rate::Bits(bits) => per_second(bits),
            Rate::Line(part) => per_second(part * Rate::TEN_GIGABIT),
        }
    }

    /// Returns the rate on a line of `bits` per second: a part of the line becomes bits, others stay.
    pub fn on_line(self, bits: f64) -> Rate {
        match self {
            Rate::Line(part) => Rate::Bits(part * bits),
            rate => rate,
        }
    }

    /// Returns this part of the rate.
    pub fn times(self, part: f64) -> Rate {
        match self {
            Rate::Packets(value) => Rate::Packets(value * part),
            Rate::Bits(value) => Rate::Bits(value * part),
            Rate::Line(value) => Rate::Line(value * part),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Parses packets per second, as `14.88M`, `1e6`, `14.88Mpps`; bits per second, as `10G`, `10Gbit`, `10Gbit/s`,
    /// `10Gbps`; and parts of the line rate, as `50%`. The prefixes are `k`, `M` and `G`; `G` alone means bits, since no
    /// wire carries as many packets.
    fn from_str(text: &str) -> Result<Rate, String> {
        let bad = || {
            format!(
                "'{text}' is not a rate; write packets per second as 14.88M, bits as 10Gbit, a part of the line as 50%"
            )
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
            f64::INFINITY => Err(format!("'{text}' is too large a number for a rate; full speed is without a rate")),
            _ if value > 0.0 => Ok(rate),
            _ => Err(format!("'{text}' is not above 0: a rate is positive")),
        }
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

/// A number with four significant digits and a prefix: 14.88M.
struct Scaled(f64);

impl Scaled {
    /// Returns the number and its prefix, with a space between them, as SI writes them in front of a unit.
    fn with_space(&self) -> String {
        let text = self.to_string();
        let digits = text.trim_end_matches(['k', 'M', 'G']);
        format!("{digits} {}", &text[digits.len()..])
    }
}

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
        let (factor, prefix) = steps.into_iter().find(|(factor, _)| self.0 >= *factor).unwrap_or((1.0, ""));
        let value = self.0 / factor;
        let digits = 10f64.powi(3 - value.abs().max(1e-9).log10().floor() as i32);
        write!(f, "{}{prefix}", (value * digits).round() / digits)
    }
}

/// Decides when the next frame may leave. It makes up for short pauses only, up to [`Pacer::BURST`] frames, since a
/// wire cannot go faster after a delay.
#[derive(Clone, Debug)]
pub struct Pacer {
    per_second: f64,
    last: Instant,
    credit: f64,
    burst: f64,
}

impl Pacer {
    /// The most frames back to back after a pause.
    pub const BURST: f64 = 64.0;

    /// Paces frames of `len` bytes without CRC at `rate`.
    pub fn new(rate: Rate, len: usize) -> Pacer {
        Pacer { per_second: rate.packets_per_second(len), last: Instant::now(), credit: 0.0, burst: Pacer::BURST }
    }

    /// Makes up for pauses of up to `frames` frames, for ports that are not wires.
    pub fn with_burst(self, frames: usize) -> Pacer {
        Pacer { burst: frames.max(1) as f64, ..self }
    }

    /// Begins with a part of a frame, from 0 to 1, so that several queues do not all wait for their first one.
    pub fn with_credit(self, frames: f64) -> Pacer {
        Pacer { credit: frames.clamp(0.0, 1.0), ..self }
    }

    /// Returns whether a frame may leave now, and counts it as sent.
    pub fn take(&mut self) -> bool {
        self.take_some(1, 1) == 1
    }

    /// Returns the count of frames that may leave now, from `least` to `most`, or 0, and counts them as sent. `least`
    /// must not exceed the burst.
    pub fn take_some(&mut self, least: usize, most: usize) -> usize {
        if self.credit < least as f64 {
            self.refill(Instant::now());
        }
        let go = (self.credit as usize).min(most);
        if go < least {
            return 0;
        }
        self.credit -= go as f64;
        go
    }

    fn refill(&mut self, now: Instant) {
        self.credit += now.duration_since(self.last).as_secs_f64() * self.per_second;
        self.credit = self.credit.min(self.burst);
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
            assert_eq!(text.parse(), Ok(rate), "{text}");
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
            ("1e400Gbit", "too large a number for a rate"),
            ("inf", "not a rate"),
            ("nan", "not a rate"),
            ("1e400%", "at most 100%"),
            ("101%", "at most 100%"),
            ("1é", "not a rate"),
        ] {
            let said = bad.parse::<Rate>().unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
        // The usual figure: 64-byte frames at 10 Gbit/s.
        assert_eq!(Rate::Bits(10e9).packets_per_second(60).round(), 14_880_952.0);
        assert_eq!(Rate::Line(0.5).packets_per_second(60).round(), 7_440_476.0);
        assert_eq!(Rate::Line(0.5).on_line(1e9), Rate::Bits(5e8));
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

    #[test]
    fn a_pacer_gives_the_rate_and_no_more_than_a_burst() {
        let mut pacer = Pacer::new(Rate::Packets(1e6), 60);
        let start = pacer.last;
        pacer.refill(start + Duration::from_micros(50));
        assert_eq!(pacer.credit.round(), 50.0);
        pacer.refill(start + Duration::from_secs(10));
        assert_eq!(pacer.credit, Pacer::BURST);
        let mut pacer = pacer.with_burst(500);
        pacer.refill(start + Duration::from_secs(20));
        assert_eq!(pacer.credit, 500.0);
        // Credit suffices for all of `least`, or for none.
        let mut slow = Pacer { per_second: 1e-9, last: start, credit: 40.0, burst: 64.0 };
        assert_eq!((slow.take_some(41, 64), slow.take_some(32, 32), slow.take_some(9, 64)), (0, 32, 0));
        assert_eq!((slow.take_some(1, 64), slow.take()), (8, false));
    }

    /// The sum of queues with few frames each is the rate.
    #[test]
    fn queues_do_not_all_wait_for_their_first_frame() {
        for (per_second, queues, seconds) in [(1000.0, 64, 1), (100.0, 8, 1), (3.0, 4, 2), (5.0, 64, 3)] {
            let frames = (0..queues).map(|queue| {
                let rate = Rate::Packets(per_second / f64::from(queues));
                let mut pacer = Pacer::new(rate, 60).with_credit(f64::from(queue) / f64::from(queues));
                pacer.refill(pacer.last + Duration::from_secs(seconds));
                pacer.credit as u64
            });
            let (sent, due) = (frames.sum::<u64>(), per_second as u64 * seconds);
            assert!(sent.abs_diff(due) <= 1, "{sent} of {due} by {queues} queues");
        }
    }
}
