//! When each frame of a replay is due.

use linerate::capture::Speed;
use linerate::traffic::Rate;

/// How the due times of frames are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The capture's original times, at a speed.
    Times(Speed),
    /// At a constant rate, in packets or bits per second.
    Rate(Rate),
    /// As fast as the port accepts them.
    Top,
}

impl Pace {
    /// Returns the pace's name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Pace::Times(_) => "times",
            Pace::Rate(_) => "rate",
            Pace::Top => "top",
        }
    }
}

/// The frames before a frame, on all ports, and their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub frames: u64,
    pub wire_bytes: u64,
}

impl Position {
    /// Continues after a frame of `len` bytes.
    pub fn advance(&mut self, len: usize) {
        self.frames += 1;
        self.wire_bytes += len as u64 + FRAMING;
    }

    /// Returns the position that is this one after the frames before `other`.
    pub fn after(self, other: Position) -> Position {
        let frames = self.frames.saturating_add(other.frames);
        Position { frames, wire_bytes: self.wire_bytes.saturating_add(other.wire_bytes) }
    }
}

/// The due times of frames, in nanoseconds since the start. Each is computed from the start, not from the frame before,
/// so that rounding errors do not add up.
pub struct Schedule {
    pace: Pace,
    position: Position,
}

/// Bytes that a wire adds to a frame: CRC, preamble and gap.
const FRAMING: u64 = 24;

impl Schedule {
    pub fn new(pace: Pace) -> Schedule {
        Schedule { pace, position: Position::default() }
    }

    /// Returns when the next frame is due. It has `len` bytes, and was captured `time` nanoseconds after the first
    /// frame. `position` is its position among the frames of several ports.
    pub fn next(&mut self, time: u64, len: usize, position: Option<Position>) -> u64 {
        self.position = position.unwrap_or(self.position);
        let due = match self.pace {
            Pace::Times(speed) => speed.scale(time),
            Pace::Rate(Rate::Packets(per_second)) => (self.position.frames as f64 * 1e9 / per_second) as u64,
            Pace::Rate(rate) => {
                let Rate::Bits(bits) = rate.for_line_rate(Rate::TEN_GIGABIT) else { return 0 };
                (self.position.wire_bytes as f64 * 8e9 / bits) as u64
            }
            Pace::Top => 0,
        };
        self.position.advance(len);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of ten million frames is due at its exact time, rounded down to a nanosecond at most twice.
    #[test]
    fn ten_million_frames_are_due_at_their_times() {
        let packets = 14_880_952.38;
        let bits = 9_999_999_937.0;
        let mut by_rate = Schedule::new(Pace::Rate(Rate::Packets(packets)));
        let mut by_bits = Schedule::new(Pace::Rate(Rate::Bits(bits)));
        let mut by_time = Schedule::new(Pace::Times("3x".parse().unwrap()));
        let (mut time, mut wire) = (0u64, 0u64);
        for frame in 0..10_000_000u64 {
            let len = 60 + (frame * 7919 % 1455) as usize;
            // In integers of 128 bits, as the rates have at most two decimals.
            let exact = u128::from(frame) * 100_000_000_000 / 1_488_095_238;
            assert!(u128::from(by_rate.next(time, len, None)).abs_diff(exact) <= 1, "frame {frame}");
            let exact = u128::from(wire) * 8_000_000_000 / 9_999_999_937;
            assert!(u128::from(by_bits.next(time, len, None)).abs_diff(exact) <= 1, "frame {frame}");
            assert!(by_time.next(time, len, None).abs_diff(time / 3) <= 1, "frame {frame}");
            wire += len as u64 + 24;
            time += 333 + frame * 104_729 % 10_007;
        }
    }

    #[test]
    fn paces_have_their_times() {
        let frames = [(5, 60), (5, 1514), (1_000_000, 60)];
        for (pace, due) in [
            (Pace::Times(Speed::default()), [5, 5, 1_000_000]),
            (Pace::Times("0.5".parse().unwrap()), [10, 10, 2_000_000]),
            (Pace::Rate(Rate::Packets(1e6)), [0, 1_000, 2_000]),
            // 84 and 1,538 bytes on the wire.
            (Pace::Rate(Rate::Bits(1e9)), [0, 672, 672 + 12_304]),
            (Pace::Top, [0, 0, 0]),
        ] {
            let mut schedule = Schedule::new(pace);
            assert_eq!(frames.map(|(time, len)| schedule.next(time, len, None)), due, "{pace:?}");
        }
    }
}
