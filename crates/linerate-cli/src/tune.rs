//! `--batch auto`: finds the batch size with the lowest cost per packet.

/// The sizes to try.
const SIZES: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// The number of packets after which a size is judged.
const PERIOD: u64 = 1 << 15;
/// The number of periods between two trials of another size.
const PERIODS_BETWEEN_TRIALS: u32 = 16;
/// The relative cost below which another size is preferred to the present one.
const GAIN: f64 = 0.98;

/// Moves to neighbouring sizes as long as packets become cheaper.
pub struct Tuner {
    /// The best size so far, and its cost per packet.
    best: usize,
    cost: f64,
    /// The index of the neighbouring size that is being tried.
    tried: Option<usize>,
    up: bool,
    periods: u32,
    packets: u64,
    cycles: u64,
}

impl Default for Tuner {
    fn default() -> Tuner {
        Tuner { best: 2, cost: f64::MAX, tried: None, up: true, periods: 0, packets: 0, cycles: 0 }
    }
}

impl Tuner {
    /// Returns the present batch size.
    pub fn size(&self) -> usize {
        SIZES[self.tried.unwrap_or(self.best)]
    }

    /// Records a turn that moved `packets` in `cycles`. Turns without packets do not count.
    pub fn moved(&mut self, packets: usize, cycles: u64) {
        if packets == 0 {
            return;
        }
        (self.packets, self.cycles) = (self.packets + packets as u64, self.cycles + cycles);
        if self.packets < PERIOD {
            return;
        }
        let cost = self.cycles as f64 / self.packets as f64;
        (self.packets, self.cycles) = (0, 0);
        match self.tried.take() {
            Some(tried) if cost < self.cost * GAIN => (self.best, self.cost) = (tried, cost),
            Some(_) => self.up = !self.up,
            None => {
                self.cost = cost;
                self.periods += 1;
                if self.periods.is_multiple_of(PERIODS_BETWEEN_TRIALS) {
                    let next = if self.up { self.best + 1 } else { self.best.wrapping_sub(1) };
                    self.up ^= next >= SIZES.len();
                    self.tried = (next < SIZES.len()).then_some(next);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size that is found for a cost per packet by size.
    fn settle(cost: impl Fn(usize) -> f64) -> usize {
        let mut tuner = Tuner::default();
        for _ in 0..1_000_000 {
            let size = tuner.size();
            tuner.moved(size, (cost(size) * size as f64) as u64);
        }
        SIZES[tuner.best]
    }

    #[test]
    fn it_finds_the_size_with_the_lowest_cost() {
        for best in SIZES {
            let away = |size: usize| (size as f64 / best as f64).log2().abs();
            assert_eq!(settle(|size| 20.0 + 4.0 * away(size)), best);
        }
        assert_eq!(settle(|_| 20.0), 32, "equal costs change nothing");
    }
}
