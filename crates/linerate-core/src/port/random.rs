//! Random numbers for faults and for traffic. They are reproducible: a seed gives the same numbers in every version.

/// A generator of random numbers (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// Creates a generator from a seed. Generators with the same seed and different `stream` numbers return different
    /// sequences.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(if stream == 0 { seed } else { seed ^ mix(stream) })
    }

    /// Returns the next number.
    #[inline(always)]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `count`; any number if that is 0.
    #[inline(always)]
    pub fn below(&mut self, count: u64) -> u64 {
        let random = self.next_u64();
        match count {
            0 => random,
            count => ((u128::from(random) * u128::from(count)) >> 64) as u64,
        }
    }
}

/// Mixes the bits of a number.
#[inline(always)]
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the first numbers of the authors' reference program for the seed 1234567.
    #[test]
    fn numbers_are_those_of_the_publication() {
        let mut random = Random::new(1_234_567, 0);
        let first = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_ne!(Random::new(1, 0).next_u64(), Random::new(1, 1).next_u64());
    }
}
