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
}

/// Bytes on the wire beside a frame without CRC: CRC 4, preamble and start 8, gap 12 (IEEE 802.3).
const FRAMING: usize = 24;

impl Rate {
    /// Returns packets per second for frames of `len` bytes without CRC.
    pub fn packets_per_second(self, len: usize) -> f64 {
        match self {
            Rate::Packets(packets) => packets,
            Rate::Bits(bits) => bits / ((len + FRAMING) * 8) as f64,
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Parses `14.88M`, `14.88Mpps`, `10Gbit`, `10Gbit/s`, `10Gbps`: a number, `k`, `M` or `G`, and `pps` (the
    /// default) or bits.
    fn from_str(text: &str) -> Result<Rate, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (factor, unit) = match unit.chars().next() {
            Some('k' | 'K') => (1e3, &unit[1..]),
            Some('M') => (1e6, &unit[1..]),
            Some('G') => (1e9, &unit[1..]),
            _ => (1.0, unit),
        };
        let value = number.parse::<f64>().ok().map(|number| number * factor).filter(|&value| value > 0.0);
        match (value, unit) {
            (Some(value), "" | "pps") => Ok(Rate::Packets(value)),
            (Some(value), "bit" | "bit/s" | "bps") => Ok(Rate::Bits(value)),
            _ => Err(format!("'{text}' is not a rate; write packets per second as 14.88M, or bits as 10Gbit")),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Packets(value) => write!(f, "{value} packets/s"),
            Rate::Bits(value) => write!(f, "{value} bit/s"),
        }
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
        assert_eq!("14.88M".parse(), Ok(Rate::Packets(14.88e6)));
        assert_eq!("5kpps".parse(), Ok(Rate::Packets(5e3)));
        assert_eq!("10Gbit".parse(), Ok(Rate::Bits(10e9)));
        assert_eq!("10Gbps".parse(), Ok(Rate::Bits(10e9)));
        for bad in ["", "fast", "-1", "0", "10Gbyte", "1.2.3", "M"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        // The usual figure: 64-byte frames at 10 Gbit/s.
        assert_eq!(Rate::Bits(10e9).packets_per_second(60).round(), 14_880_952.0);
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
}
