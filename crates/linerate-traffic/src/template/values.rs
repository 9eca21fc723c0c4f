//! The values of a template's field, and their notation.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The notation of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// Decimal, or hexadecimal after `0x`.
    Number,
    /// `02:00:00:00:00:01`.
    Mac,
    /// `198.18.0.1`.
    Ip4,
    /// `2001:2::1`.
    Ip6,
    /// TCP flags as letters: `SA`.
    Flags,
}

/// The values of a field, one for each frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Constant(u128),
    /// `first`, `first + step` and so on up to `last`, then again from `first`; each value is used `times` times.
    Range {
        first: u128,
        last: u128,
        step: u64,
        times: u64,
    },
    /// In turn, then again from the first; each value is used `times` times.
    List {
        values: Vec<u128>,
        times: u64,
    },
    /// From `first` to `last`, uniformly distributed.
    Random {
        first: u128,
        last: u128,
    },
}

/// The TCP flags, starting with the lowest bit (RFC 9293, section 3.1).
const FLAGS: &str = "FSRPAUEC";

impl Values {
    /// Parses the values of a field of `bits` bits.
    ///
    /// # Errors
    /// The problem, worded to follow the field's name.
    pub fn parse(text: &str, notation: Notation, bits: u8) -> Result<Values, String> {
        let text = text.trim();
        let most = u128::MAX >> (128 - u32::from(bits));
        if text == "random" {
            return Ok(Values::Random { first: 0, last: most });
        }
        if let Some(inner) = text.strip_prefix("random(").and_then(|rest| rest.strip_suffix(')')) {
            return match Values::parse(inner, notation, bits)? {
                Values::Range { first, last, step: 1, times: 1 } => {
                    check_halves(notation, first, last, false).map(|()| Values::Random { first, last })
                }
                _ => Err(format!("'{inner}' is not a range to choose from at random; write random(FIRST-LAST)")),
            };
        }
        let (values, times) = match text.split_once('*') {
            Some((values, times)) => (values.trim(), parse_uint(times, u64::MAX, "a number of times")?),
            None => (text, 1),
        };
        if values.starts_with("random") {
            return Err(format!("random values are not repeated: write '{values}'"));
        }
        if values.contains('|') {
            let values = values.split('|').map(|value| number(value, notation, most));
            return Ok(Values::List { values: values.collect::<Result<_, _>>()?, times });
        }
        if let Some((address, prefix)) = values.split_once('/') {
            let (prefix, step) = stepped(prefix)?;
            let (first, last) = prefixed(address, prefix, notation, most)?;
            return Ok(Values::Range { first, last, step, times });
        }
        // A leading sign does not make a range.
        let Some((first, last)) = values.split_once('-').filter(|(first, _)| !first.trim().is_empty()) else {
            let value = number(values, notation, most)?;
            return if text.contains('*') {
                Ok(Values::List { values: vec![value], times })
            } else {
                Ok(Values::Constant(value))
            };
        };
        let (last, step) = stepped(last)?;
        let (first, last) = (number(first, notation, most)?, number(last, notation, most)?);
        if first > last {
            return Err(format!("'{values}' ends before it begins"));
        }
        check_halves(notation, first, last, true)?;
        Ok(Values::Range { first, last, step, times })
    }
}

/// Splits a step off the end of a range; the default is 1.
fn stepped(end: &str) -> Result<(&str, u64), String> {
    match end.split_once('+') {
        Some((end, step)) => Ok((end, parse_uint(step, u64::MAX, "a step")?)),
        None => Ok((end, 1)),
    }
}

/// Parses `ADDRESS/PREFIX`, and returns its first and last address.
fn prefixed(address: &str, prefix: &str, notation: Notation, most: u128) -> Result<(u128, u128), String> {
    let bits = match notation {
        Notation::Ip4 => 32,
        Notation::Ip6 => 128,
        _ => return Err("only IP addresses have a prefix".to_string()),
    };
    let prefix = prefix.trim().parse::<u32>().ok().filter(|prefix| *prefix <= bits);
    let prefix = prefix.ok_or_else(|| format!("a prefix has 0 to {bits} bits"))?;
    let host = 1u128.checked_shl(bits - prefix).map_or(u128::MAX, |count| count - 1) & most;
    let first = number(address, notation, most)? & !host;
    Ok((first, first | host))
}

/// Checks that both halves of a range of IPv6 addresses can be counted, or drawn, separately.
fn check_halves(notation: Notation, first: u128, last: u128, counts: bool) -> Result<(), String> {
    let (first_low, last_low) = (first as u64, last as u64);
    let is_whole = first_low == 0 && last_low == u64::MAX;
    if notation == Notation::Ip6 && first >> 64 != last >> 64 && !is_whole {
        let how = if counts { "counts in" } else { "is drawn from" };
        return Err(format!("a range of IPv6 addresses {how} their last 64 bits; the first 64 of both ends differ"));
    }
    Ok(())
}

/// Parses a value of at most `most`.
fn number(text: &str, notation: Notation, most: u128) -> Result<u128, String> {
    let text = text.trim();
    let value = match notation {
        Notation::Number => {
            return parse_uint(text, u64::try_from(most).unwrap_or(u64::MAX), "a number").map(u128::from);
        }
        Notation::Mac => parse_mac(text),
        Notation::Ip4 => text.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
        Notation::Ip6 => text.parse::<Ipv6Addr>().ok().map(u128::from),
        Notation::Flags => {
            let of = |letter: char| FLAGS.find(letter).map(|bit| 1 << bit);
            match parse_uint(text, u64::try_from(most).unwrap_or(u64::MAX), "a number") {
                Ok(value) => Some(value.into()),
                Err(_) => text.chars().try_fold(0, |all, letter| Some(all | of(letter)?)),
            }
        }
    };
    value.ok_or_else(|| {
        let (kind, example) = match notation {
            Notation::Mac => ("a MAC address", "02:00:00:00:00:01"),
            Notation::Ip4 => ("an IPv4 address", "198.18.0.1"),
            Notation::Ip6 => ("an IPv6 address", "2001:2::1"),
            _ => ("flags of TCP", "SA, of the letters FSRPAUEC"),
        };
        format!("'{text}' is not {kind}, such as {example}")
    })
}

/// Parses a MAC address of six bytes.
pub(crate) fn parse_mac(text: &str) -> Option<u128> {
    let bytes: Vec<u8> = text.split(':').map(byte).collect::<Option<_>>()?;
    (bytes.len() == 6).then(|| bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// Parses one or two hexadecimal digits.
fn byte(text: &str) -> Option<u8> {
    let is_hex = (1..=2).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(text, 16).ok())?
}

/// Parses a natural number of at most `most`, decimal, or hexadecimal after `0x`.
pub(super) fn parse_uint(text: &str, most: u64, what: &str) -> Result<u64, String> {
    let text = text.trim();
    let value = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        _ => text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit())),
    };
    match value {
        Some(0) if what != "a number" => Err(format!("{what} is at least 1")),
        Some(value) if value <= most => Ok(value),
        Some(_) => Err(format!("'{text}' is too large: at most {most}")),
        None => Err(format!("'{text}' is not {what}; write it in decimal, or in hexadecimal with 0x")),
    }
}

/// Parses bytes in hexadecimal; spaces, colons and a leading `0x` are allowed.
pub(super) fn hex(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    let digits: String = text.strip_prefix("0x").unwrap_or(text).chars().filter(|c| !matches!(c, ' ' | ':')).collect();
    if digits.is_empty() || digits.len() % 2 == 1 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!("'{text}' is not hexadecimal, two digits a byte"));
    }
    Ok((0..digits.len()).step_by(2).filter_map(|at| byte(&digits[at..at + 2])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_constants_ranges_lists_and_random() {
        let range = |first, last, step, times| Values::Range { first, last, step, times };
        let address = |text: &str| u128::from(u32::from(text.parse::<Ipv4Addr>().unwrap()));
        for (text, notation, bits, values) in [
            ("53", Notation::Number, 16, Values::Constant(53)),
            ("0xFFFF", Notation::Number, 16, Values::Constant(0xFFFF)),
            ("1-9", Notation::Number, 16, range(1, 9, 1, 1)),
            (" 1 - 9 + 2 * 3 ", Notation::Number, 16, range(1, 9, 2, 3)),
            ("53|80|443", Notation::Number, 16, Values::List { values: vec![53, 80, 443], times: 1 }),
            ("53|80*4", Notation::Number, 16, Values::List { values: vec![53, 80], times: 4 }),
            ("random", Notation::Number, 12, Values::Random { first: 0, last: 4095 }),
            ("random(1024-65535)", Notation::Number, 16, Values::Random { first: 1024, last: 65_535 }),
            ("10.0.0.1", Notation::Ip4, 32, Values::Constant(address("10.0.0.1"))),
            ("10.0.0.1-10.0.1.0", Notation::Ip4, 32, range(address("10.0.0.1"), address("10.0.1.0"), 1, 1)),
            ("10.0.0.9/24", Notation::Ip4, 32, range(address("10.0.0.0"), address("10.0.0.255"), 1, 1)),
            ("10.0.0.0/24+2*3", Notation::Ip4, 32, range(address("10.0.0.0"), address("10.0.0.255"), 2, 3)),
            ("0.0.0.0/0", Notation::Ip4, 32, range(0, u32::MAX.into(), 1, 1)),
            ("random(10.0.0.0/8)", Notation::Ip4, 32, Values::Random { first: 10 << 24, last: (11 << 24) - 1 }),
            ("02:00:00:00:00:0a", Notation::Mac, 48, Values::Constant(0x0200_0000_000A)),
            ("::1-::9", Notation::Ip6, 128, range(1, 9, 1, 1)),
            ("2001:2::/32", Notation::Ip6, 128, range(0x2001_0002 << 96, (0x2001_0003 << 96) - 1, 1, 1)),
            ("::/0", Notation::Ip6, 128, range(0, u128::MAX, 1, 1)),
            ("SA", Notation::Flags, 8, Values::Constant(0x12)),
            ("0x02", Notation::Flags, 8, Values::Constant(2)),
        ] {
            assert_eq!(Values::parse(text, notation, bits), Ok(values), "{text}");
        }
    }

    #[test]
    fn bad_values_say_why() {
        for (text, notation, bits, why) in [
            ("4096", Notation::Number, 12, "'4096' is too large: at most 4095"),
            ("", Notation::Number, 16, "'' is not a number"),
            ("+5", Notation::Number, 16, "'+5' is not a number"),
            ("0x+5", Notation::Number, 16, "'0x+5' is not a number"),
            ("-5", Notation::Number, 16, "'-5' is not a number"),
            ("9-1", Notation::Number, 16, "'9-1' ends before it begins"),
            ("1-9+0", Notation::Number, 16, "a step is at least 1"),
            ("1-9*0", Notation::Number, 16, "a number of times is at least 1"),
            ("1|x", Notation::Number, 16, "'x' is not a number"),
            ("random(1-3)*2", Notation::Number, 16, "random values are not repeated: write 'random(1-3)'"),
            ("random*2", Notation::Number, 16, "random values are not repeated: write 'random'"),
            ("80/8", Notation::Number, 16, "only IP addresses have a prefix"),
            ("random(53)", Notation::Number, 16, "is not a range"),
            ("random(1-9+2)", Notation::Number, 16, "is not a range"),
            ("10.0.0.256", Notation::Ip4, 32, "is not an IPv4 address"),
            ("10.0.0.0/33", Notation::Ip4, 32, "0 to 32 bits"),
            ("02:00:00:00:00", Notation::Mac, 48, "is not a MAC address"),
            ("02:00:00:00:00:+1", Notation::Mac, 48, "is not a MAC address"),
            ("::1-1::2", Notation::Ip6, 128, "counts in their last 64 bits"),
            ("random(::1-1::2)", Notation::Ip6, 128, "last 64 bits"),
            ("SX", Notation::Flags, 8, "is not flags of TCP"),
        ] {
            let said = Values::parse(text, notation, bits).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert_eq!(hex("0x00:ff a1"), Ok(vec![0, 255, 0xA1]));
        assert!(hex("0").is_err() && hex("").is_err() && hex("é0").is_err());
    }
}
