//! The replay speed of a capture.

use std::str::FromStr;

use linerate_core::error::Error;

/// A factor for a capture's timing: `1x` or `1` keeps it, `2x` is twice as fast.
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
    /// Returns how long this many nanoseconds of the capture take. The result is exact to a nanosecond for the first
    /// 100 days. Times are measured from the beginning, so errors do not accumulate.
    pub fn scale(self, nanoseconds: u64) -> u64 {
        if self.0 == 1.0 { nanoseconds } else { (nanoseconds as f64 / self.0) as u64 }
    }

    /// Returns the nanoseconds of the capture that take this long: the opposite of [`scale`](Speed::scale).
    pub fn unscale(self, nanoseconds: u64) -> u64 {
        Speed(1.0 / self.0).scale(nanoseconds)
    }
}

/// The capture's original timing.
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
