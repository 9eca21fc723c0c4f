//! Random decisions about packets: independent ones, and loss in bursts, in a pattern, or by bit errors.

use std::sync::Arc;

use linerate_core::port::Random;

/// A probability, for decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chance(u64);

impl Chance {
    /// Creates a chance of this probability, from 0 to 1.
    pub fn new(probability: f64) -> Chance {
        // 2^64 as a float; `as` limits the result to u64::MAX.
        Chance((probability * 18_446_744_073_709_551_616.0) as u64)
    }

    /// Decides. Draws no number if the probability is 0, so that unused decisions cost nothing.
    #[inline(always)]
    pub fn occurs(self, random: &mut Random) -> bool {
        self.0 > 0 && random.next_u64() <= self.0
    }

    /// Returns whether the probability is not 0.
    pub fn is_possible(self) -> bool {
        self.0 > 0
    }
}

/// How packets are lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet is lost with this probability, independently of others.
    Independent(f64),
    /// The model of Gilbert (1960) and Elliott (1963): a line is good or bad, and changes before each packet with
    /// probability `p` (good to bad) or `r` (bad to good). A packet arrives with probability `k` while the line is
    /// good, and `h` while it is bad.
    GilbertElliott {
        /// Good to bad.
        p: f64,
        /// Bad to good.
        r: f64,
        /// A packet arrives while the line is bad.
        h: f64,
        /// A packet arrives while the line is good.
        k: f64,
    },
    /// Packets are lost where the repeated pattern is true.
    Pattern(Arc<[bool]>),
}

impl Loss {
    /// Returns the model of Gilbert that loses a proportion `loss` of the packets in bursts of `burst` packets on
    /// average; `None` if that is not possible.
    pub fn in_bursts(loss: f64, burst: f64) -> Option<Loss> {
        let r = 1.0 / burst;
        let p = r * loss / (1.0 - loss);
        (burst >= 1.0 && p <= 1.0).then_some(Loss::GilbertElliott { p, r, h: 0.0, k: 1.0 })
    }

    /// Parses a pattern: `.` is a packet that arrives, `x` one that is lost.
    pub fn pattern(text: &str) -> Option<Loss> {
        let is_valid = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'.' | b'x'));
        is_valid.then(|| Loss::Pattern(text.bytes().map(|byte| byte == b'x').collect()))
    }
}

/// Decides which packets are lost.
pub struct Losses {
    model: Model,
    /// The probability that a bit arrives.
    bit_arrives: f64,
    /// The chance of losing a frame of the last length, because most frames have few lengths.
    last_length: (usize, Chance),
}

enum Model {
    Independent(Chance),
    GilbertElliott { p: Chance, r: Chance, lost_if_good: Chance, lost_if_bad: Chance, is_bad: bool },
    Pattern { lost: Arc<[bool]>, at: usize },
}

impl Losses {
    /// Starts a loss model. `bit_errors` is the probability that a bit is wrong; a frame with a wrong bit is lost.
    pub fn new(loss: &Loss, bit_errors: f64, random: &mut Random) -> Losses {
        let model = match loss {
            Loss::None => Model::Independent(Chance::default()),
            Loss::Independent(probability) => Model::Independent(Chance::new(*probability)),
            &Loss::GilbertElliott { p, r, h, k } => Model::GilbertElliott {
                p: Chance::new(p),
                r: Chance::new(r),
                lost_if_good: Chance::new(1.0 - k),
                lost_if_bad: Chance::new(1.0 - h),
                // The proportion of time in the bad state.
                is_bad: Chance::new(if p + r > 0.0 { p / (p + r) } else { 0.0 }).occurs(random),
            },
            Loss::Pattern(lost) => Model::Pattern { lost: lost.clone(), at: 0 },
        };
        Losses { model, bit_arrives: 1.0 - bit_errors, last_length: (0, Chance::default()) }
    }

    /// Decides whether a frame of `len` bytes is lost.
    #[inline]
    pub fn occurs(&mut self, len: usize, random: &mut Random) -> bool {
        let is_lost = match &mut self.model {
            Model::Independent(chance) => chance.occurs(random),
            Model::GilbertElliott { p, r, lost_if_good, lost_if_bad, is_bad } => {
                let change = if *is_bad { *r } else { *p };
                *is_bad ^= change.occurs(random);
                let chance = if *is_bad { *lost_if_bad } else { *lost_if_good };
                chance.occurs(random)
            }
            Model::Pattern { lost, at } => {
                let is_lost = lost[*at];
                *at = (*at + 1) % lost.len();
                is_lost
            }
        };
        // Both decide on every packet, so that the decisions of one do not depend on the other.
        is_lost | (self.bit_arrives < 1.0 && self.has_bit_error(len, random))
    }

    fn has_bit_error(&mut self, len: usize, random: &mut Random) -> bool {
        if self.last_length.0 != len {
            // With the CRC, whose bits can be wrong, too.
            let bits = 8.0 * (len + 4) as f64;
            self.last_length = (len, Chance::new(-(bits * self.bit_arrives.ln()).exp_m1()));
        }
        self.last_length.1.occurs(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 1_000_000;

    fn decisions(loss: &Loss, bit_errors: f64, len: usize) -> Vec<bool> {
        let mut random = Random::new(1, 2);
        let mut losses = Losses::new(loss, bit_errors, &mut random);
        (0..PACKETS).map(|_| losses.occurs(len, &mut random)).collect()
    }

    fn lost(decisions: &[bool]) -> usize {
        decisions.iter().filter(|lost| **lost).count()
    }

    /// Four standard deviations of a count of independent events.
    fn four_sigma(probability: f64) -> f64 {
        4.0 * (PACKETS as f64 * probability * (1.0 - probability)).sqrt()
    }

    #[test]
    fn independent_loss_has_its_probability() {
        for probability in [0.0, 1e-4, 0.01, 0.5, 1.0] {
            let lost = lost(&decisions(&Loss::Independent(probability), 0.0, 60)) as f64;
            let wanted = PACKETS as f64 * probability;
            assert!((lost - wanted).abs() <= four_sigma(probability), "{probability}: {lost}");
        }
        assert_eq!(lost(&decisions(&Loss::None, 0.0, 60)), 0);
    }

    #[test]
    fn bit_errors_lose_longer_frames_more_often() {
        for (errors, len) in [(1e-6, 60), (1e-6, 1514), (1e-4, 1514)] {
            let probability = 1.0 - (1.0f64 - errors).powi(8 * (len as i32 + 4));
            let lost = lost(&decisions(&Loss::None, errors, len)) as f64;
            assert!((lost - PACKETS as f64 * probability).abs() < four_sigma(probability), "{errors} {len}: {lost}");
        }
    }

    #[test]
    fn bursts_have_their_mean_length_and_rate() {
        for (rate, burst) in [(0.01, 4.0), (0.2, 10.0), (0.1, 1.0)] {
            let decisions = decisions(&Loss::in_bursts(rate, burst).unwrap(), 0.0, 60);
            let lost = lost(&decisions) as f64;
            let starts = decisions.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
            // Bursts are geometric: their lengths deviate by sqrt(burst * (burst - 1)).
            let sigma = (burst * (burst - 1.0) / starts).sqrt();
            assert!(
                (lost / starts - burst).abs() < (4.0 * sigma).max(0.02 * burst),
                "{rate} {burst}: {}",
                lost / starts
            );
            let deviation = four_sigma(rate) * (2.0 * burst - 1.0).sqrt();
            assert!((lost - PACKETS as f64 * rate).abs() < deviation, "{rate} {burst}: {lost}");
        }
        // With a burst of at least one packet, more than half cannot be lost in bursts of one.
        assert!(Loss::in_bursts(0.9, 1.0).is_none() && Loss::in_bursts(0.1, 0.5).is_none());
        assert!(Loss::in_bursts(1.0, 10.0).is_none());
    }

    #[test]
    fn the_four_parameters_of_gilbert_and_elliott_hold() {
        let (p, r, h, k) = (0.02, 0.1, 0.3, 0.99);
        let lost = lost(&decisions(&Loss::GilbertElliott { p, r, h, k }, 0.0, 60)) as f64;
        let bad = p / (p + r);
        let rate = bad * (1.0 - h) + (1.0 - bad) * (1.0 - k);
        // Consecutive states are correlated by 1 - p - r, which widens the deviation.
        let deviation = four_sigma(rate) * ((2.0 - p - r) / (p + r)).sqrt();
        assert!((lost - PACKETS as f64 * rate).abs() < deviation, "{lost} {rate}");
    }

    #[test]
    fn patterns_repeat() {
        let decisions = decisions(&Loss::pattern("..x.").unwrap(), 0.0, 60);
        assert!(decisions.iter().enumerate().all(|(n, lost)| *lost == (n % 4 == 2)));
        assert!(Loss::pattern("").is_none() && Loss::pattern("..y").is_none());
    }
}
