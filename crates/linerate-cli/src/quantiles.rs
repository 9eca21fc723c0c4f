//! Histograms of times, in JSON and as a row of a table.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::show::time;

/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 7] =
    [("min", 0.0), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999), ("max", 1.0)];

/// Returns the nanoseconds within which this part of all times is; `None` if there is no time.
pub fn quantile(histogram: &Histogram<u64>, part: f64) -> Option<u64> {
    match part {
        _ if histogram.is_empty() => None,
        // As for the others, the highest time that counts as the same.
        0.0 => Some(histogram.highest_equivalent(histogram.min())),
        part => Some(histogram.value_at_quantile(part)),
    }
}

/// Returns the quantiles of a histogram of nanoseconds, in microseconds; null without a time.
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
