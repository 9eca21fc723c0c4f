//! Frame sizes: a single one, a range, or a mix.

use std::str::FromStr;

use linerate_core::error::Error;

/// Frame sizes in bytes, CRC included, and their order.
///
/// Parsed from `64`; `64-1518` (all sizes in turn); `64:7,594:4,1518:1` (seven frames of 64 bytes per four of 594 and
/// one of 1,518, interleaved as evenly as possible); `imix`, which is this mix: the "simple IMIX" of Internet traffic.
///
/// ```
/// use linerate::traffic::Sizes;
/// assert_eq!("imix".parse::<Sizes>().unwrap().mean(), 4342.0 / 12.0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The distinct sizes, and the number of frames of each per round.
    mix: Vec<(u16, u32)>,
}

/// The simple IMIX, in Ethernet frame sizes.
const IMIX: &str = "64:7,594:4,1518:1";

impl Sizes {
    /// The smallest size, Ethernet's minimum.
    pub const LEAST: u16 = 64;
    /// The largest size, the maximum of this library's cards.
    pub const MOST: u16 = 9732;
    /// The maximum number of frames per round.
    const ROUND: u64 = 10_000;

    /// Returns the size, if there is only one.
    pub fn only(&self) -> Option<u16> {
        if self.mix.len() == 1 { Some(self.mix[0].0) } else { None }
    }

    /// Returns the largest size.
    pub fn largest(&self) -> u16 {
        self.mix.iter().map(|(size, _)| *size).max().unwrap_or(Sizes::LEAST)
    }

    /// Returns the mean size.
    pub fn mean(&self) -> f64 {
        let (sum, count) = self.mix.iter().fold((0, 0), |(sum, count), &(size, weight)| {
            (sum + u64::from(size) * u64::from(weight), count + u64::from(weight))
        });
        sum as f64 / count as f64
    }

    /// Iterates over the distinct sizes.
    pub(super) fn each(&self) -> impl Iterator<Item = usize> {
        self.mix.iter().map(|(size, _)| usize::from(*size))
    }

    /// Returns the indexes of the sizes in the order of a round's frames, each spread as evenly as possible.
    pub(super) fn order(&self) -> Vec<u32> {
        // Frame k of n of a size is due at (k + 1/2) / n of the round.
        let due = |(number, &(_, weight)): (usize, &(u16, u32))| {
            (0..weight).map(move |frame| ((f64::from(frame) + 0.5) / f64::from(weight), number as u32))
        };
        let mut order: Vec<(f64, u32)> = self.mix.iter().enumerate().flat_map(due).collect();
        order.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        order.into_iter().map(|(_, number)| number).collect()
    }
}

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> std::result::Result<Sizes, Error> {
        parse(text).map_err(Error::bad_value)
    }
}

fn parse(text: &str) -> std::result::Result<Sizes, String> {
    if text == "imix" {
        return parse(IMIX);
    }
    if let Some((first, last)) = text.split_once('-').filter(|_| !text.contains(':')) {
        if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>())
            && first > last
        {
            return Err(format!("'{text}' ends before it begins"));
        }
        let (first, last) = (size(first)?, size(last)?);
        return Ok(Sizes { mix: (first..=last).map(|size| (size, 1)).collect() });
    }
    if !text.contains(':') && !text.contains(',') {
        return Ok(Sizes { mix: vec![(size(text)?, 1)] });
    }
    let mut mix: Vec<(u16, u32)> = Vec::new();
    for part in text.split(',') {
        let (text, weight) = part.split_once(':').unwrap_or((part, "1"));
        let weight = weight.parse::<u32>().ok().filter(|weight| (1..=Sizes::ROUND).contains(&u64::from(*weight)));
        let weight = weight.ok_or_else(|| format!("'{part}' is not a size and a number of frames, such as 64:7"))?;
        let size = size(text)?;
        match mix.iter_mut().find(|(known, _)| *known == size) {
            Some((_, known)) => *known = known.saturating_add(weight),
            None => mix.push((size, weight)),
        }
    }
    match mix.iter().map(|(_, weight)| u64::from(*weight)).sum() {
        0..=Sizes::ROUND => Ok(Sizes { mix }),
        sum => Err(format!("a round of this mix has {sum} frames: at most {}", Sizes::ROUND)),
    }
}

/// Parses a size.
fn size(text: &str) -> Result<u16, String> {
    const RANGE: std::ops::RangeInclusive<u16> = Sizes::LEAST..=Sizes::MOST;
    match text.parse::<u16>() {
        Ok(size) if RANGE.contains(&size) => Ok(size),
        Ok(size @ 60..64) => Err(format!("it must be 64 to 9732, CRC included ({text} + 4 = {})", size + 4)),
        Ok(_) => Err("it must be 64 to 9732, CRC included".to_string()),
        Err(_) => Err(format!(
            "'{text}' is not a size: it must be 64 to 9732, CRC included, a range as 64-1518, a mix as {IMIX}, or imix"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Vec<usize> {
        let sizes: Sizes = text.parse().unwrap();
        let each: Vec<usize> = sizes.each().collect();
        sizes.order().iter().map(|number| each[*number as usize]).collect()
    }

    #[test]
    fn sizes_come_evenly() {
        assert_eq!(order("64"), [64]);
        assert_eq!(order("64-67"), [64, 65, 66, 67]);
        assert_eq!(order("64:2,128,64"), [64, 64, 128, 64]);
        let imix = order("imix");
        assert_eq!(imix.len(), 12);
        assert_eq!(imix.iter().filter(|size| **size == 594).count(), 4);
        // No two of the four are adjacent.
        assert!(imix.windows(2).all(|pair| pair != [594, 594]), "{imix:?}");
        assert_eq!("imix".parse::<Sizes>().unwrap().largest(), 1518);
        assert_eq!("128".parse::<Sizes>().unwrap().only(), Some(128));
    }

    #[test]
    fn bad_sizes_say_why() {
        for (text, why) in [
            ("60", "(60 + 4 = 64)"),
            ("12", "64 to 9732"),
            ("9733", "64 to 9732"),
            ("", "not a size"),
            ("128-64", "ends before it begins"),
            ("64:0", "not a size and a number of frames"),
            ("64:x,128:1", "not a size and a number of frames"),
            ("64:9999,128:9", "at most 10000"),
            ("64:4294967295,65:4294967295", "not a size"),
            ("1m", "not a size"),
        ] {
            let said = text.parse::<Sizes>().unwrap_err();
            assert!(said.why().contains(why), "{text}: {said}");
        }
    }
}
