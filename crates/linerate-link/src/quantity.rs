//! Quantities with units: durations, rates, probabilities and amounts of data.
//!
//! A unit is required where a number alone would be ambiguous. Each parser returns what it expects as its error.

/// The longest duration that can be configured: one hour.
pub const LONGEST: u64 = 3_600_000_000_000;

/// Splits a text into its number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    // An exponent: `e`, a sign, digits.
    if let Some(exponent) = text[end..].strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        let count = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if count > 0 {
            end = text.len() - digits.len() + count;
        }
    }
    let number = text[..end].parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, text[end..].trim_start()))
}

/// Parses a duration of at most one hour, in nanoseconds: `20ms`, `1.5s`, `100us`, `80ns`. Only 0 needs no unit.
pub fn duration(text: &str) -> Result<u64, &'static str> {
    const WANTED: &str = "it must be a time with a unit, as 20ms, 100us or 1.5s, at most one hour";
    let (number, unit) = split(text).ok_or(WANTED)?;
    let unit = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "" if number == 0.0 => 1.0,
        _ => return Err(WANTED),
    };
    let nanoseconds = (number * unit).round();
    if nanoseconds <= LONGEST as f64 { Ok(nanoseconds as u64) } else { Err(WANTED) }
}

/// Parses a rate in bits per second, from 1 bit/s to 1 Tbit/s: `50Mbit`, `1.5Gbit`, `800kbit`, `10M`.
pub fn rate(text: &str) -> Result<u64, &'static str> {
    const WANTED: &str = "it must be a rate in bits per second, as 50Mbit or 1.5Gbit, from 1bit to 1000Gbit";
    let (number, unit) = split(text).ok_or(WANTED)?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    // `bps` is not accepted: tc(8) means bytes by it, others bits.
    let scale = match unit.strip_suffix("bit").unwrap_or(unit) {
        "" if unit == "bit" => 1.0,
        "k" | "K" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        _ => return Err(WANTED),
    };
    let bits = (number * scale).round();
    if (1.0..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(WANTED) }
}

/// Parses a probability: `1%`, `0.01`, `1e-6`.
pub fn probability(text: &str) -> Result<f64, &'static str> {
    const WANTED: &str = "it must be a probability such as 1% or 0.01";
    let (number, unit) = split(text).ok_or(WANTED)?;
    let probability = match unit {
        "" => number,
        "%" => number / 100.0,
        _ => return Err(WANTED),
    };
    if (0.0..=1.0).contains(&probability) { Ok(probability) } else { Err(WANTED) }
}

/// The limit of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Packets.
    Packets(u64),
    /// The time that the link needs to transmit the queue, in nanoseconds.
    Time(u64),
}

/// Parses the limit of a queue: `100kB`, `1MB`, `64KiB`, `1000p`, `50ms`.
pub fn amount(text: &str) -> Result<Amount, &'static str> {
    const WANTED: &str = "it must be a size as 100kB, a count of packets as 1000p, or a time as 50ms";
    let (number, unit) = split(text).ok_or(WANTED)?;
    let bytes = |scale: f64| match (number * scale).round() {
        bytes if (1.0..=1e12).contains(&bytes) => Ok(Amount::Bytes(bytes as u64)),
        _ => Err(WANTED),
    };
    match unit {
        "B" => bytes(1.0),
        "kB" | "KB" => bytes(1e3),
        "MB" => bytes(1e6),
        "GB" => bytes(1e9),
        "KiB" => bytes(1024.0),
        "MiB" => bytes(1024.0 * 1024.0),
        "p" | "packets" if number.fract() == 0.0 && (1.0..=1e9).contains(&number) => Ok(Amount::Packets(number as u64)),
        "ns" | "us" | "µs" | "ms" | "s" => match duration(text) {
            Ok(time @ 1..) => Ok(Amount::Time(time)),
            _ => Err(WANTED),
        },
        _ => Err(WANTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        for (text, nanoseconds) in [
            ("20ms", 20_000_000),
            ("1.5s", 1_500_000_000),
            ("100us", 100_000),
            ("80 ns", 80),
            ("0", 0),
            ("1e-3s", 1_000_000),
        ] {
            assert_eq!(duration(text), Ok(nanoseconds), "{text}");
        }
        for (text, bits) in
            [("50Mbit", 50_000_000), ("1.5Gbit/s", 1_500_000_000), ("800kbit", 800_000), ("10M", 10_000_000)]
        {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for (text, wanted) in [("1%", 0.01), ("0.25", 0.25), ("1e-6", 1e-6), ("100%", 1.0), ("0", 0.0)] {
            assert_eq!(probability(text), Ok(wanted), "{text}");
        }
        for (text, wanted) in [
            ("100kB", Amount::Bytes(100_000)),
            ("64KiB", Amount::Bytes(65_536)),
            ("1000p", Amount::Packets(1000)),
            ("50ms", Amount::Time(50_000_000)),
        ] {
            assert_eq!(amount(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn absurd_quantities_are_errors() {
        for text in ["", "20", "-1ms", "1e99s", "2h1", "ms", "NaN", "inf", "1.2.3ms", "61m", "1ems", "١ms"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["", "0", "100", "0.4bit", "-1M", "10Mbps", "1e13bit", "5MB", "Mbit", "1e400"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "101%", "-1%", "1.01", "%", "1ms", "1e-9999x"] {
            assert!(probability(text).is_err(), "{text}");
        }
        for text in ["", "0B", "100", "0p", "1.5p", "0ms", "1e30GB", "10kbit"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }
}
