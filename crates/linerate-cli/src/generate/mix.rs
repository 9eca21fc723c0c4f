//! Streams that share one rate.

use super::source::Source;

/// The frames of several streams, interleaved in proportion to the streams' own rates.
pub struct Mix {
    parts: Vec<Part>,
    /// The part of the next frame.
    next: usize,
}

struct Part {
    source: Source,
    /// Its part of all frames.
    share: f64,
    /// The frames that it is behind its share.
    due: f64,
}

impl Mix {
    /// Mixes streams, given with their weights, of which at least one is above 0.
    pub fn new(streams: Vec<(Source, f64)>) -> Mix {
        let sum: f64 = streams.iter().map(|(_, weight)| weight).sum();
        let part = |(source, weight)| Part { source, share: weight / sum, due: 0.0 };
        let mut mix = Mix { parts: streams.into_iter().map(part).collect(), next: 0 };
        mix.choose();
        mix
    }

    /// Returns the length of the next frame in bytes, without CRC.
    pub fn next_len(&self) -> usize {
        self.parts[self.next].source.next_len()
    }

    /// Returns the length of the longest frame in bytes, without CRC.
    pub fn longest(&self) -> usize {
        self.parts.iter().map(|part| part.source.longest()).max().unwrap_or(0)
    }

    /// Returns the mean length of the frames in bytes, without CRC.
    pub fn mean_len(&self) -> f64 {
        self.parts.iter().map(|part| part.source.mean_len() * part.share).sum()
    }

    /// Writes the next frame to `bytes`, which must have its length.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.parts[self.next].source.fill(bytes);
        if self.parts.len() > 1 {
            self.choose();
        }
    }

    /// Returns the first frame of each stream.
    pub fn first_frames(&self) -> Vec<Vec<u8>> {
        let first = |part: &Part| {
            let (mut source, mut frame) = (part.source.clone(), vec![0; part.source.next_len()]);
            source.fill(&mut frame);
            frame
        };
        self.parts.iter().map(first).collect()
    }

    /// Chooses the part that is furthest behind its share.
    fn choose(&mut self) {
        let mut most = f64::NEG_INFINITY;
        for (number, part) in self.parts.iter_mut().enumerate() {
            part.due += part.share;
            if part.due > most {
                (self.next, most) = (number, part.due);
            }
        }
        self.parts[self.next].due -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use linerate::traffic::Generator;

    use super::*;

    #[test]
    fn streams_have_their_shares_in_any_part_of_the_time() {
        let source = |size| Source::from(Generator::new(size, 1));
        let mut mix = Mix::new(vec![(source(64), 7.0), (source(594), 4.0), (source(1518), 1.0)]);
        assert_eq!((mix.longest(), mix.mean_len()), (1514, 4342.0 / 12.0 - 4.0));
        assert_eq!(mix.first_frames().iter().map(Vec::len).collect::<Vec<_>>(), [60, 590, 1514]);
        let mut counts = [0i32; 3];
        for n in 1..=1200 {
            let len = mix.next_len();
            mix.fill(&mut vec![0; len]);
            counts[[60, 590, 1514].iter().position(|known| *known == len).unwrap()] += 1;
            for (count, weight) in counts.iter().zip([7, 4, 1]) {
                assert!((count * 12 - n * weight).abs() <= 12, "{counts:?} of {n}");
            }
        }
        assert_eq!(counts, [700, 400, 100]);
    }
}
