//! The state of a changing field, which produces the value of each frame.

use linerate_core::port::Random;

use super::values::Values;

/// A share of the frames: every `stride`-th one, beginning with `first`, so that several queues share the values of a
/// field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub first: u64,
    pub stride: u64,
}

/// The number of frames whose changing bytes are computed together, field by field. So the kind of a field is decided
/// once per block instead of once per frame.
pub(super) const BLOCK: usize = 32;

/// The values of a field, one for each frame of a block.
pub(super) type Block = [u64; BLOCK];

/// Produces the values of up to 64 bits of a field.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Range { index: CyclicIndex, first: u64, step: u64 },
    List { index: CyclicIndex, values: Box<[u64]> },
    Random { random: Random, first: u64, count: u64 },
}

impl Source {
    /// Creates the sources of a field: for the bits above the 64th, and for the lower bits. Bits that do not change
    /// have no source. Random values depend on the `seed` and this `field`.
    pub fn new(values: &Values, share: Share, seed: u64, field: u64) -> [Option<Source>; 2] {
        let low = |value: &u128| *value as u64;
        let high = |value: &u128| (*value >> 64) as u64;
        match values {
            Values::Constant(_) => [None, None],
            Values::Range { first, last, step, times } => {
                let span = match first >> 64 == last >> 64 {
                    true => low(last) - low(first),
                    // For a prefix shorter than 64 bits, the end is never reached.
                    false => u64::MAX,
                };
                let index = CyclicIndex::new(span / step, *times, share);
                [None, Some(Source::Range { index, first: low(first), step: *step })]
            }
            Values::List { values, times } => {
                let index = CyclicIndex::new(values.len() as u64 - 1, *times, share);
                let list = |half: &dyn Fn(&u128) -> u64| {
                    Some(Source::List { index: index.clone(), values: values.iter().map(half).collect() })
                };
                let is_wide = values.iter().any(|value| high(value) != 0);
                [if is_wide { list(&high) } else { None }, list(&low)]
            }
            Values::Random { first, last } => {
                let random = |first: u64, last: u64, half: u64| {
                    let random = Random::new(seed, 1 + (field << 32 | share.first << 1 | half));
                    Some(Source::Random { random, first, count: (last - first).wrapping_add(1) })
                };
                let is_wide = first >> 64 != last >> 64;
                [if is_wide { random(high(first), high(last), 1) } else { None }, random(low(first), low(last), 0)]
            }
        }
    }

    /// Adds the bits of the next frames' values to `block`, shifted left by `shift`.
    pub fn add_to(&mut self, block: &mut Block, shift: u32) {
        match self {
            Source::Range { index, first, step } => match index.run() {
                // The range does not wrap within this block: a loop without branches.
                Some((start, index_step)) => {
                    let (mut next, distance) = (*first + start * *step, index_step * *step);
                    for value in block {
                        *value |= next << shift;
                        next = next.wrapping_add(distance);
                    }
                }
                None => block.iter_mut().for_each(|value| *value |= (*first + index.next() * *step) << shift),
            },
            Source::List { index, values } => {
                block.iter_mut().for_each(|value| *value |= values[index.next() as usize] << shift);
            }
            Source::Random { random, first, count } => {
                block.iter_mut().for_each(|value| *value |= first.wrapping_add(random.below(*count)) << shift);
            }
        }
    }
}

/// Counts 0, 1, 2, … `last`, each `times` times, then from 0 again; yields only the values of a share.
#[derive(Clone, Debug)]
pub(super) struct CyclicIndex {
    index: u64,
    last: u64,
    /// The step of the index for each frame, if each value is used once.
    index_step: u64,
    /// The number of uses of the current value so far.
    used: u64,
    times: u64,
    /// The distance between two frames of the share.
    stride: u64,
}

impl CyclicIndex {
    pub fn new(last: u64, times: u64, share: Share) -> CyclicIndex {
        let index = wrapped(share.first / times, last);
        CyclicIndex {
            index,
            last,
            index_step: wrapped(share.stride, last),
            used: share.first % times,
            times,
            stride: share.stride,
        }
    }

    #[inline(always)]
    pub fn next(&mut self) -> u64 {
        let now = self.index;
        match self.times {
            1 => self.advance(self.index_step),
            times => {
                self.used += self.stride;
                if self.used >= times {
                    self.advance(wrapped(self.used / times, self.last));
                    self.used %= times;
                }
            }
        }
        now
    }

    /// Takes a block of indexes if none of them wraps: returns the first index, and the distance between indexes.
    fn run(&mut self) -> Option<(u64, u64)> {
        let index = self.index;
        let next = index
            .checked_add(self.index_step.checked_mul(BLOCK as u64)?)
            .filter(|next| self.times == 1 && *next <= self.last)?;
        self.index = next;
        Some((index, self.index_step))
    }

    /// Adds `by`, which is at most `last`, with wrap-around.
    #[inline(always)]
    fn advance(&mut self, by: u64) {
        let left = self.last - self.index;
        self.index = if by > left { by - left - 1 } else { self.index + by };
    }
}

/// Returns the remainder of a division by `last + 1`.
fn wrapped(index: u64, last: u64) -> u64 {
    last.checked_add(1).map_or(index, |count| index % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Share = Share { first: 0, stride: 1 };

    fn first(values: &Values, share: Share, count: usize) -> Vec<u64> {
        let [_, source] = Source::new(values, share, 7, 0);
        let mut source = source.expect("a source");
        let mut blocks = Vec::new();
        while blocks.len() < count {
            let mut block = [0; BLOCK];
            source.add_to(&mut block, 0);
            blocks.extend(block);
        }
        blocks.truncate(count);
        blocks
    }

    #[test]
    fn ranges_and_lists_begin_again() {
        let range = |first, last, step, times| Values::Range { first, last, step, times };
        assert_eq!(first(&range(5, 7, 1, 1), ALL, 7), [5, 6, 7, 5, 6, 7, 5]);
        assert_eq!(first(&range(0, 9, 4, 1), ALL, 4), [0, 4, 8, 0]);
        assert_eq!(first(&range(1, 2, 1, 3), ALL, 8), [1, 1, 1, 2, 2, 2, 1, 1]);
        assert_eq!(first(&range(9, 9, 1, 1), ALL, 3), [9, 9, 9]);
        let end = u128::from(u64::MAX);
        assert_eq!(first(&range(end - 1, end, 1, 1), ALL, 3), [u64::MAX - 1, u64::MAX, u64::MAX - 1]);
        assert_eq!(first(&Values::List { values: vec![8, 3], times: 2 }, ALL, 5), [8, 8, 3, 3, 8]);
    }

    /// Queues that share a template together send the frames of one queue.
    #[test]
    fn shares_make_the_whole() {
        for values in [
            Values::Range { first: 10, last: 16, step: 1, times: 1 },
            Values::Range { first: 10, last: 16, step: 1, times: 2 },
            Values::Range { first: 0, last: 1, step: 1, times: 7 },
            Values::Range { first: 0, last: u128::from(u64::MAX), step: 1, times: 1 },
            Values::List { values: vec![4, 5, 9], times: 3 },
        ] {
            let whole = first(&values, ALL, 120);
            for stride in [2, 3, 8] {
                for lane in 0..stride {
                    let part = first(&values, Share { first: lane, stride }, 120 / stride as usize);
                    let expected: Vec<u64> =
                        whole.iter().copied().skip(lane as usize).step_by(stride as usize).collect();
                    assert_eq!(part, expected, "{values:?}, {lane} of {stride}");
                }
            }
        }
    }

    #[test]
    fn random_values_are_of_the_range_and_of_their_seed() {
        let values = Values::Random { first: 100, last: 103 };
        let drawn = first(&values, ALL, 4000);
        for value in 100..104 {
            let count = drawn.iter().filter(|drawn| **drawn == value).count();
            assert!((900..1100).contains(&count), "{value}: {count} of 4000");
        }
        assert_eq!(drawn, first(&values, ALL, 4000));
        assert_ne!(drawn, first(&values, Share { first: 1, stride: 2 }, 4000));
        let all = first(&Values::Random { first: 0, last: u128::from(u64::MAX) }, ALL, 64);
        assert!(all.iter().fold(0, |bits, value| bits | value) == u64::MAX);
    }
}
