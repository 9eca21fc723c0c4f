//! `--batch auto`: the batch size at which a packet costs least.

/// Sizes that are tried.
const SIZES: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// Packets after which a size is judged.
const PERIOD: u64 = 1 << 15;
/// Periods between two tries of another size.
const PATIENCE: u32 = 16;
/// How much less a packet must cost for a change.
const GAIN: f64 = 0.98;

/// Climbs from size to size, as long as packets become cheaper.
pub struct Tuner {
    /// The size that has been the best, and what a packet costs there.
    best: usize,
    cost: f64,
    /// The neighbour that is being tried.
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
    /// How many packets at a time.
    pub fn size(&self) -> usize {
        SIZES[self.tried.unwrap_or(self.best)]
    }

    /// A turn moved so many packets in so many cycles; turns without packets do not count.
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
                if self.periods.is_multiple_of(PATIENCE) {
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

    /// Where it ends if a packet costs so much at a size.
    fn settle(cost: impl Fn(usize) -> f64) -> usize {
        let mut tuner = Tuner::default();
        for _ in 0..1_000_000 {
            let size = tuner.size();
            tuner.moved(size, (cost(size) * size as f64) as u64);
        }
        SIZES[tuner.best]
    }

    #[test]
    fn it_finds_where_a_packet_costs_least() {
        for best in SIZES {
            let away = |size: usize| (size as f64 / best as f64).log2().abs();
            assert_eq!(settle(|size| 20.0 + 4.0 * away(size)), best);
        }
        assert_eq!(settle(|_| 20.0), 32, "nothing to gain, nothing changed");
    }
}
