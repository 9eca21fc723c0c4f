//! Histograms of times: in JSON, as a row of a table, and in the text form of HdrHistogram.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::show::time;

/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 7] =
    [("min", 0.0), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999), ("max", 1.0)];

/// Returns a quantile in nanoseconds; `None` without any time.
pub fn quantile(histogram: &Histogram<u64>, part: f64) -> Option<u64> {
    match part {
        _ if histogram.is_empty() => None,
        // The highest equivalent value, as for the other quantiles.
        0.0 => Some(histogram.highest_equivalent(histogram.min())),
        part => Some(histogram.value_at_quantile(part)),
    }
}

/// Returns the quantiles of a histogram of nanoseconds, in microseconds; null without any time.
pub fn microseconds(histogram: &Histogram<u64>) -> Value {
    let of = |part| quantile(histogram, part).map(|time| time as f64 / 1000.0);
    Value::Object(QUANTILES.map(|(name, part)| (name.to_string(), json!(of(part)))).into_iter().collect::<Map<_, _>>())
}

/// Returns the titles of the columns of [`row`].
pub fn titles() -> String {
    QUANTILES.map(|(name, _)| format!(" {:>8}", name.replace('_', "."))).concat()
}

/// Returns quantiles in microseconds as columns.
pub fn row(microseconds: &Value) -> String {
    let shown = |name: &str| microseconds[name].as_f64().map_or("-".to_string(), |value| time(value / 1e6));
    QUANTILES.map(|(name, _)| format!(" {:>8}", shown(name))).concat()
}

/// Returns a histogram of nanoseconds as HdrHistogram's percentile distribution in text form, in microseconds, for
/// HdrHistogram's plotter.
pub fn distribution(histogram: &Histogram<u64>) -> String {
    let mut text = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut below = 0;
    // Five points for each halving of the rest, as HdrHistogram's own programs print.
    for step in histogram.iter_quantiles(5) {
        below += step.count_since_last_iteration();
        let (value, part) = (step.value_iterated_to() as f64 / 1e3, step.quantile_iterated_to());
        text += &match part < 1.0 {
            true => format!("{value:12.3} {part:14.12} {below:10} {:14.2}\n", 1.0 / (1.0 - part)),
            false => format!("{value:12.3} {part:14.12} {below:10}\n"),
        };
    }
    let [mean, deviation, most] = [histogram.mean(), histogram.stdev(), histogram.max() as f64].map(|time| time / 1e3);
    text += &format!("#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]\n");
    text += &format!("#[Max     = {most:12.3}, Total count    = {:12}]\n", histogram.len());
    // HdrHistogram's resolution: the number of values in the first bucket, and of buckets with twice the range each.
    text + &format!("#[Buckets = {:12}, SubBuckets     = {:12}]\n", histogram.buckets(), 2048)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_all_times() {
        let mut histogram = Histogram::new(3).unwrap();
        (1..=1000u64).for_each(|time| histogram.record(time * 1000).unwrap());
        let text = distribution(&histogram);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_whitespace().map(|word| word.parse().ok()).collect())
            .filter(|row: &Vec<f64>| !row.is_empty())
            .collect();
        // The first row is the minimum, the last counts all times; a row's time fits its percentile, within the
        // histogram's 0.1 %.
        assert_eq!((rows[0][1], rows[0][2]), (0.0, 1.0));
        assert_eq!((rows[rows.len() - 1][1], rows[rows.len() - 1][2]), (1.0, 1000.0));
        assert!(rows.iter().all(|row| (row[0] - (row[1] * 1000.0).ceil()).abs() <= 1.0 + row[0] * 1e-3 && row[0] >= row[2] * 0.999), "{text}");
        assert!(text.contains("#[Mean    =      500.") && text.contains("Total count    =         1000]"), "{text}");
    }
}
