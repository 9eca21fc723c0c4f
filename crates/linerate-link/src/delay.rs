//! Delays of packets: constant, or random with a distribution.

use std::sync::Arc;

use linerate_core::port::Random;

use crate::file::read;
use crate::quantity::LONGEST;

/// The intervals of a quantile table. The error of the distribution function is below one interval, 1/4,096.
const INTERVALS: usize = 4096;

/// A distribution of delays: its quantile function, in units of the jitter, around the mean.
///
/// All distributions are tables, as in netem, so that a random delay costs the same for each. Values between two
/// entries are interpolated.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution(Arc<[f32]>);

impl Distribution {
    /// Every delay from mean minus jitter to mean plus jitter is equally likely.
    pub fn uniform() -> Distribution {
        Distribution::of(|quantile| 2.0 * quantile - 1.0)
    }

    /// A normal distribution whose standard deviation is the jitter.
    pub fn normal() -> Distribution {
        // Integrates the density in small steps: the standard library has no inverse of the error function.
        const STEP: f64 = 1.0 / 8192.0;
        let density = |z: f64| (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (mut z, mut below) = (-6.0, 0.0);
        Distribution::of(|quantile| {
            while below < quantile {
                below += density(z + STEP / 2.0) * STEP;
                z += STEP;
            }
            z
        })
    }

    /// A Pareto distribution of shape 3 whose standard deviation is the jitter: most delays are a little shorter than
    /// the mean, few are much longer.
    pub fn pareto() -> Distribution {
        const MEAN: f64 = 1.5;
        let deviation = 0.75f64.sqrt();
        Distribution::of(|quantile| ((1.0 - quantile).powf(-1.0 / 3.0) - MEAN) / deviation)
    }

    /// Returns the distribution of this name, or of a file in netem's format: see [`parse`](Distribution::parse).
    ///
    /// # Errors
    /// A description of the error in the name or the file.
    pub fn of_name(name: &str) -> Result<Distribution, String> {
        match name {
            "uniform" => Ok(Distribution::uniform()),
            "normal" => Ok(Distribution::normal()),
            "pareto" => Ok(Distribution::pareto()),
            path if path.contains('/') => read(path, Distribution::parse),
            _ => Err("it is uniform, normal, pareto, or the path of one of netem's files, with a /".to_string()),
        }
    }

    /// Parses a table of netem (tc-netem(8); `/usr/lib/tc/*.dist`): whole numbers in units of 1/8,192 of the jitter.
    ///
    /// # Errors
    /// A description of the error in the text.
    pub fn parse(text: &str) -> Result<Distribution, String> {
        const SCALE: f32 = 8192.0;
        let words = text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(str::split_whitespace);
        let number = |word: &str| match word.parse::<i16>() {
            Ok(number) => Ok(f32::from(number) / SCALE),
            Err(_) => Err(format!("`{}` is not a whole number from -32768 to 32767", word.escape_debug())),
        };
        let mut table = words.take(65_537).map(number).collect::<Result<Vec<f32>, _>>()?;
        if !(2..=65_536).contains(&table.len()) {
            return Err(format!("it has {} numbers, and needs 2 to 65,536", table.len()));
        }
        table.sort_by(f32::total_cmp);
        Ok(Distribution(table.into()))
    }

    /// Tabulates a quantile function, which is called with increasing quantiles. The first and the last are inside
    /// (0, 1), where every function is finite.
    fn of(mut quantile: impl FnMut(f64) -> f64) -> Distribution {
        let end = 1.0 / (16 * INTERVALS) as f64;
        let at = |n: usize| (n as f64 / INTERVALS as f64).clamp(end, 1.0 - end);
        Distribution((0..=INTERVALS).map(|n| quantile(at(n)) as f32).collect())
    }

    /// Returns the value at a random place of the table.
    #[inline]
    fn sample(&self, random: &mut Random) -> f64 {
        let table = &self.0;
        // The upper 64 bits are the index, the lower 64 bits the place between two entries.
        let place = u128::from(random.next_u64()) * (table.len() - 1) as u128;
        let (at, between) = ((place >> 64) as usize, place as u64 as f64 / 2f64.powi(64));
        let (low, high) = (f64::from(table[at]), f64::from(table[at + 1]));
        low + (high - low) * between
    }
}

/// The delay of packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delay {
    /// The mean, in nanoseconds.
    pub mean: u64,
    /// The jitter in nanoseconds, with the distribution of delays; `None` if the delay is constant.
    pub jitter: Option<(u64, Distribution)>,
}

impl Delay {
    /// Returns a packet's delay in nanoseconds. A delay that would be negative is 0.
    #[inline]
    pub fn sample(&self, random: &mut Random) -> u64 {
        match &self.jitter {
            None => self.mean,
            Some((jitter, distribution)) => {
                // `as` makes negative delays 0.
                let delay = (self.mean as f64 + *jitter as f64 * distribution.sample(random)).round() as u64;
                delay.min(LONGEST)
            }
        }
    }

    /// Returns the longest delay, in nanoseconds.
    pub fn longest(&self) -> u64 {
        let jitter = self
            .jitter
            .as_ref()
            .map_or(0.0, |(jitter, distribution)| *jitter as f64 * f64::from(*distribution.0.last().unwrap_or(&0.0)));
        ((self.mean as f64 + jitter) as u64).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: usize = 1_000_000;

    /// Returns a million delays with a mean of 100 ms and a jitter of 10 ms, sorted, in units of the jitter around the
    /// mean.
    fn samples(distribution: Distribution) -> Vec<f64> {
        let delay = Delay { mean: 100_000_000, jitter: Some((10_000_000, distribution)) };
        let mut random = Random::new(7, 1);
        let mut samples: Vec<f64> = (0..SAMPLES).map(|_| (delay.sample(&mut random) as f64 - 100e6) / 10e6).collect();
        samples.sort_by(f64::total_cmp);
        samples
    }

    /// Kolmogorov-Smirnov: the greatest distance between the distribution function of sorted samples and the wanted
    /// one. At a million samples, p > 0.01 below 1.63 / sqrt(1,000,000).
    fn distance(samples: &[f64], wanted: impl Fn(f64) -> f64) -> f64 {
        let count = samples.len() as f64;
        let distance = |(n, sample): (usize, &f64)| {
            let wanted = wanted(*sample);
            (wanted - n as f64 / count).abs().max(((n + 1) as f64 / count - wanted).abs())
        };
        samples.iter().enumerate().map(distance).fold(0.0, f64::max)
    }

    /// The normal distribution function, by its continued fraction and series (Abramowitz and Stegun 26.2.10): another
    /// way than the table's.
    fn normal(z: f64) -> f64 {
        let (mut term, mut sum, mut n) = (z, z, 0.0);
        while term.abs() > 1e-17 && n < 400.0 {
            n += 1.0;
            term *= -z * z / (2.0 * n) * (2.0 * n - 1.0) / (2.0 * n + 1.0);
            sum += term;
        }
        0.5 + sum / (2.0 * std::f64::consts::PI).sqrt()
    }

    const LIMIT: f64 = 1.63e-3;

    #[test]
    fn delays_have_their_distribution() {
        let uniform = distance(&samples(Distribution::uniform()), |z| f64::midpoint(z, 1.0).clamp(0.0, 1.0));
        assert!(uniform < LIMIT, "{uniform}");
        let normal = distance(&samples(Distribution::normal()), normal);
        assert!(normal < LIMIT, "{normal}");
        let pareto = |z: f64| 1.0 - (1.5 + z * 0.75f64.sqrt()).max(1.0).powi(-3);
        let distance_of_pareto = distance(&samples(Distribution::pareto()), pareto);
        assert!(distance_of_pareto < LIMIT, "{distance_of_pareto}");
        // Another distribution has another distance: the test can fail.
        assert!(distance(&samples(Distribution::uniform()), normal_of_the_same_deviation) > LIMIT);
    }

    fn normal_of_the_same_deviation(z: f64) -> f64 {
        normal(z * 3f64.sqrt())
    }

    #[test]
    fn mean_and_deviation_are_as_configured() {
        for (distribution, deviation) in
            [(Distribution::uniform(), 1.0 / 3f64.sqrt()), (Distribution::normal(), 1.0), (Distribution::pareto(), 1.0)]
        {
            let samples = samples(distribution);
            let mean = samples.iter().sum::<f64>() / SAMPLES as f64;
            let found = (samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / SAMPLES as f64).sqrt();
            assert!(mean.abs() < 0.01, "{mean}");
            // The fourth moment of a Pareto distribution of shape 3 is infinite, so its deviation varies.
            assert!((found / deviation - 1.0).abs() < 0.1, "{found}");
        }
    }

    #[test]
    fn tables_of_netem_are_read() {
        let table = Distribution::parse("# a comment\n 8192 0\n-8192\n").unwrap();
        assert_eq!(table, Distribution([-1.0, 0.0, 1.0].into()));
        let uniform = distance(&samples(table), |z| f64::midpoint(z, 1.0).clamp(0.0, 1.0));
        assert!(uniform < LIMIT, "{uniform}");
        for bad in ["", "1", "# 1 2 3", "1 two", "1 99999", "1 2.5"] {
            assert!(Distribution::parse(bad).is_err(), "{bad}");
        }
        assert!(Distribution::parse(&"1 ".repeat(65_537)).unwrap_err().contains("65537"));
        assert!(Distribution::of_name("gamma").is_err() && Distribution::of_name("/nonexistent.dist").is_err());
    }

    #[test]
    fn delays_are_never_negative_or_endless() {
        let delay = Delay { mean: 5, jitter: Some((LONGEST, Distribution::normal())) };
        let mut random = Random::new(1, 1);
        let samples: Vec<u64> = (0..1000).map(|_| delay.sample(&mut random)).collect();
        assert!(samples.contains(&0) && samples.contains(&LONGEST));
    }
}
