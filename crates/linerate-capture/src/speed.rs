//! How fast the times of a capture pass.

use std::str::FromStr;

use linerate_core::error::Error;

/// A factor by which a capture's times pass: `1x` or `1` keeps them, `2x` is twice as fast.
///
/// ```
/// use linerate::capture::Speed;
/// let speed: Speed = "2x".parse().unwrap();
/// assert_eq!(speed.scale(1_000_000_000), 500_000_000);
/// assert!("0".parse::<Speed>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(f64);

impl Speed {
    /// Returns how long this many nanoseconds of the capture take. It is exact to a nanosecond in the first 100 days: times
    /// are measured from the beginning, so that no error adds up.
    pub fn scale(self, nanoseconds: u64) -> u64 {
        if self.0 == 1.0 { nanoseconds } else { (nanoseconds as f64 / self.0) as u64 }
    }
}

/// The capture's own times.
impl Default for Speed {
    fn default() -> Speed {
        Speed(1.0)
    }
}

impl FromStr for Speed {
    type Err = Error;

    fn from_str(text: &str) -> std::result::Result<Speed, Error> {
        parse(text).map_err(Error::bad_value)
    }
}

fn parse(text: &str) -> std::result::Result<Speed, String> {
    match text.strip_suffix('x').unwrap_or(text).parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(Speed(speed)),
        _ => Err("it must be a factor such as 1x or 0.5x".to_string()),
    }
}
