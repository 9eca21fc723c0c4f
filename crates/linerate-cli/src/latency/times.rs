//! The results of a load: counts and latencies of each pair of ports, and their sum.

use hdrhistogram::Histogram;
use linerate::traffic::{Changes, FrameTime};
use serde_json::{Map, Value, json};

use super::probes::ProbeCounts;
use crate::processors::Use;
use crate::quantiles::{microseconds, quantile, row};
use crate::rates::per_second;
use crate::shortfall::Shortfall;
use crate::show::time as in_words;

/// Latencies in nanoseconds, and their variation.
#[derive(Clone)]
pub struct Delays {
    /// The latency of each timed frame.
    pub histogram: Histogram<u64>,
    /// How much a frame's latency differs from that of the frame before: less, and the same or more.
    less: Histogram<u64>,
    more: Histogram<u64>,
    /// The last timed frame of each flow.
    last: Vec<Option<FrameTime>>,
    /// The distance of two timed frames.
    every: u64,
}

impl Delays {
    /// Creates an empty histogram for one in `every` frames of each flow.
    pub fn new(every: u64) -> Delays {
        let empty = || Histogram::new(3).expect("three digits are possible");
        Delays { histogram: empty(), less: empty(), more: empty(), last: Vec::new(), every }
    }

    /// Adds a frame.
    pub fn add(&mut self, time: FrameTime) {
        let flow = usize::from(time.flow);
        if self.last.len() <= flow {
            self.last.resize(flow + 1, None);
        }
        let record = |histogram: &mut Histogram<u64>, time| histogram.record(time).expect("it grows with what comes");
        record(&mut self.histogram, time.nanoseconds);
        // Not across a lost or late frame (RFC 5481, section 4.1).
        if let Some(before) = self.last[flow].replace(time)
            && before.sequence + self.every == time.sequence
        {
            match time.nanoseconds.checked_sub(before.nanoseconds) {
                Some(more) => record(&mut self.more, more),
                None => record(&mut self.less, before.nanoseconds - time.nanoseconds),
            }
        }
    }

    /// Adds the latencies of another pair.
    fn add_all(&mut self, other: &Delays) {
        for (sum, other) in
            [(&mut self.histogram, &other.histogram), (&mut self.less, &other.less), (&mut self.more, &other.more)]
        {
            sum.add(other).expect("it grows with what comes");
        }
    }

    /// Returns the packet delay variation in nanoseconds: the 99.9th percentile of the latency minus the minimum (RFC
    /// 8219, section 7.3.1). `None` without any latency.
    pub fn pdv(&self) -> Option<u64> {
        Some(quantile(&self.histogram, 0.999)?.saturating_sub(self.histogram.min()))
    }

    /// Returns the least, the median and the greatest difference of two successive frames' latencies, in nanoseconds
    /// (RFC 8219, section 7.3.2). `None` without two successive frames.
    pub fn ipdv(&self) -> Option<[f64; 3]> {
        let (less, more) = (self.less.len(), self.more.len());
        if less + more == 0 {
            return None;
        }
        let value = |time: u64| time as f64;
        let least = if less > 0 { -value(self.less.max()) } else { value(self.more.min()) };
        let most = if more > 0 { value(self.more.max()) } else { -value(self.less.min()) };
        // The difference with as many below it as above.
        let middle = (less + more).div_ceil(2);
        let median = match middle.checked_sub(less).filter(|above| *above > 0) {
            Some(above) => value(self.more.value_at_quantile(value(above) / value(more))),
            // Of `less`, the greatest decrease is the least difference.
            None => -value(self.less.value_at_quantile(value(less - middle + 1) / value(less))),
        };
        Some([least, median, most])
    }

    /// Returns the variation as JSON, in microseconds; null without any.
    fn variation(&self) -> Value {
        let [least, median, most] = self.ipdv().map_or([None; 3], |ipdv| ipdv.map(Some));
        let micro = |time: Option<f64>| json!(time.map(|time| time / 1e3));
        json!({
            "pdv": micro(self.pdv().map(|time| time as f64)),
            "ipdv": { "min": micro(least), "median": micro(median), "max": micro(most) },
        })
    }
}

/// The counts and latencies of a pair of ports, or of all.
#[derive(Clone)]
pub struct Counts {
    /// Packets that were sent and received in the run's time.
    pub sent: u64,
    pub arrived: u64,
    /// Packets that were sent and received after that time.
    pub after: [u64; 2],
    pub lost: u64,
    pub corrupted: u64,
    /// Intact packets with changed headers.
    pub changed: Changes,
    /// Duplicates, packets without a stamp, and those of another pair; none of them count as received.
    pub duplicated: u64,
    pub unstamped: u64,
    pub misdelivered: u64,
    /// The frames whose times the cards have noted, if they were asked to.
    pub probes: Option<ProbeCounts>,
    pub delays: Delays,
    /// The longest time without an arrival in one of the directions, in nanoseconds, and whether packets arrived again.
    pub pause: Option<Pause>,
}

/// A time without an arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pause {
    pub nanoseconds: u64,
    /// Packets arrived after it.
    pub is_over: bool,
}

impl Counts {
    pub fn new(every: u64) -> Counts {
        Counts {
            sent: 0,
            arrived: 0,
            after: [0; 2],
            lost: 0,
            corrupted: 0,
            changed: Changes::default(),
            duplicated: 0,
            unstamped: 0,
            misdelivered: 0,
            probes: None,
            delays: Delays::new(every),
            pause: None,
        }
    }

    /// Adds the counts of another pair.
    pub fn add(&mut self, other: &Counts) {
        self.sent += other.sent;
        self.arrived += other.arrived;
        self.after = [0, 1].map(|n| self.after[n] + other.after[n]);
        self.lost += other.lost;
        self.corrupted += other.corrupted;
        self.changed += other.changed;
        self.duplicated += other.duplicated;
        self.unstamped += other.unstamped;
        self.misdelivered += other.misdelivered;
        if let Some(probes) = other.probes {
            self.probes.get_or_insert_default().add(probes);
        }
        self.delays.add_all(&other.delays);
        self.pause = self.pause.max(other.pause);
    }

    /// Returns the packets that were sent at any time.
    pub fn total_sent(&self) -> u64 {
        self.sent + self.after[0]
    }

    /// Returns the fraction of the packets that was lost or damaged.
    pub fn loss(&self) -> f64 {
        match self.total_sent() {
            0 => 0.0,
            sent => (self.lost + self.corrupted) as f64 / sent as f64,
        }
    }

    fn json(&self, seconds: f64) -> Map<String, Value> {
        let [sent, arrived] = [self.sent, self.arrived].map(|packets| packets as f64 / seconds / 1e6);
        let fields: Map<String, Value> =
            self.changed.fields().map(|(field, frames)| (field.name().into(), frames.into())).collect();
        let Value::Object(mut json) = json!({
            "offered_mpps": sent, "arrived_mpps": arrived, "sent": self.sent, "arrived": self.arrived,
            "after_end": {"sent": self.after[0], "arrived": self.after[1]},
            "lost": self.lost, "corrupted": self.corrupted,
            "changed": {"frames": self.changed.frames, "fields": fields, "unknown": self.changed.unknown},
            "duplicated": self.duplicated, "unstamped": self.unstamped, "misdelivered": self.misdelivered,
            "looked_at": self.delays.histogram.len(), "microseconds": microseconds(&self.delays.histogram),
            "variation": self.delays.variation(),
        }) else {
            unreachable!("it is an object")
        };
        if let Some(ProbeCounts { sent, lost, unnoted, error }) = self.probes {
            let probes = json!({"sent": sent, "lost": lost, "unnoted": unnoted, "clock_error_ns": error});
            json.insert("by_card".to_string(), probes);
        }
        json
    }

    fn line(&self, seconds: f64) -> String {
        let times = row(&microseconds(&self.delays.histogram));
        let lost = if self.lost < 10_000 { self.lost.to_string() } else { per_second(self.lost as f64) };
        let [sent, arrived] = [self.sent, self.arrived].map(|packets| per_second(packets as f64 / seconds));
        format!("{sent:>5} {arrived:>5} {lost:>5}{times}")
    }
}

/// The results of one load.
pub struct Times {
    /// Requested packets per second, of all senders.
    pub asked: f64,
    /// The line rate in packets per second, if more was requested: a model's line can exceed it.
    pub line: Option<f64>,
    /// The measured time.
    pub seconds: f64,
    /// The number of ports that sent.
    pub senders: u64,
    /// The sum of all pairs.
    pub sum: Counts,
    /// The pairs of ports, by name.
    pub pairs: Vec<(String, Counts)>,
    /// The rate that was not reached, if any.
    pub shortfall: Option<Shortfall>,
    pub used: Use,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
}

impl Times {
    /// Returns the sent and the received packets per second.
    pub fn rates(&self) -> [f64; 2] {
        [self.sum.sent, self.sum.arrived].map(|packets| packets as f64 / self.seconds)
    }

    /// Returns the name of the pair with the highest value; `None` if there is only one pair, or no value.
    pub fn worst(&self, value: impl Fn(&Counts) -> Option<f64>) -> Option<&str> {
        let all = self.pairs.iter().filter_map(|(name, counts)| Some((name, value(counts)?)));
        let worst = all.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (self.pairs.len() > 1).then_some(worst.0)
    }

    pub fn json(&self) -> Value {
        let mut json = self.sum.json(self.seconds);
        let Value::Object(rest) = json!({
            "asked_mpps": self.asked / 1e6, "seconds": self.seconds,
            "unreached": self.shortfall.as_ref().map(Shortfall::json), "processors": self.used.json(),
            "interrupted": self.interrupted,
        }) else {
            unreachable!("it is an object")
        };
        json.extend(rest);
        if self.pairs.len() > 1 {
            let pair = |(name, counts): &(String, Counts)| {
                let mut json = counts.json(self.seconds);
                json.insert("pair".to_string(), json!(name));
                Value::Object(json)
            };
            json.insert("pairs".to_string(), self.pairs.iter().map(pair).collect());
        }
        Value::Object(json)
    }

    /// Returns lines on corrupted, duplicated and unstamped packets.
    pub fn defects(&self) -> Vec<String> {
        let changed: Vec<String> = self.sum.changed.fields().map(|(field, _)| field.name().replace('_', " ")).collect();
        let changed = format!("note: with changed headers ({}): ", changed.join(", "));
        let all = [
            (self.sum.corrupted, "error: corrupted on the way: "),
            (self.sum.duplicated, "note: duplicated, and counted once: "),
            (self.sum.unstamped, "note: arrived without a stamp, and not counted: "),
            (self.sum.misdelivered, "note: arrived at the port of another pair, and not counted: "),
            (self.sum.changed.frames, changed.as_str()),
        ];
        let all = all.into_iter().filter(|(count, _)| *count > 0);
        all.map(|(count, what)| format!("{what}{count} packets")).collect()
    }

    /// Returns the lines of the table: the pairs, if there are several, and their sum; then the variation.
    pub fn lines(&self) -> String {
        let mut lines = String::new();
        if self.pairs.len() > 1 {
            for (name, counts) in &self.pairs {
                lines += &format!("{name}\n{}\n", counts.line(self.seconds));
            }
            lines += "all\n";
        }
        lines += &format!("{}\n", self.sum.line(self.seconds));
        if let (Some(pdv), Some([least, median, most])) = (self.sum.delays.pdv(), self.sum.delays.ipdv()) {
            let signed = |time: f64| format!("{}{}", if time < 0.0 { "-" } else { "" }, in_words(time.abs() / 1e9));
            let [pdv, least, median, most] = [pdv as f64, least, median, most].map(signed);
            lines += &format!("   PDV {pdv}; IPDV from {least} to {most}, median {median}\n");
        }
        if let Some(ProbeCounts { sent, lost, unnoted, error }) = self.sum.probes {
            lines += &format!(
                "   timed by the cards: {sent} frames, {lost} lost, {unnoted} not noted; clocks compared to {error} ns\n"
            );
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_is_between_successive_frames_of_a_flow() {
        let mut delays = Delays::new(2);
        assert!(delays.pdv().is_none() && delays.ipdv().is_none());
        let mut add = |flow, sequence, nanoseconds| delays.add(FrameTime { flow, sequence, nanoseconds });
        // Differences: 200, -100; not across the lost frame 6; and those of another flow: 0.
        [(0, 500), (2, 700), (4, 600), (8, 1900)].iter().for_each(|&(sequence, time)| add(1, sequence, time));
        [(0, 90), (2, 90)].iter().for_each(|&(sequence, time)| add(0, sequence, time));
        assert_eq!(delays.ipdv(), Some([-100.0, 0.0, 200.0]));
        // The histogram has three digits.
        assert_eq!(delays.pdv().map(|pdv| (pdv + 1) / 10), Some(181));
        let mut only = Delays::new(1);
        for (sequence, nanoseconds) in [900, 800, 500, 500 - 40].into_iter().enumerate() {
            only.add(FrameTime { flow: 0, sequence: sequence as u64, nanoseconds });
        }
        assert_eq!(only.ipdv(), Some([-300.0, -100.0, -40.0]));
        only.add_all(&delays);
        assert_eq!(only.ipdv(), Some([-300.0, -100.0, 200.0]));
    }

    #[test]
    fn the_worst_pair_has_the_highest_value() {
        let pair = |name: &str, lost| (name.to_string(), Counts { sent: 100, lost, ..Counts::new(1) });
        let mut times = Times {
            asked: 0.0,
            line: None,
            seconds: 1.0,
            senders: 2,
            sum: Counts::new(1),
            pairs: vec![pair("a -> b", 1), pair("c -> d", 2)],
            shortfall: None,
            used: Use::default(),
            interrupted: false,
        };
        assert_eq!(times.worst(|counts| Some(counts.loss())), Some("c -> d"));
        assert_eq!(times.worst(|_| None), None);
        times.pairs.pop();
        assert_eq!(times.worst(|counts| Some(counts.loss())), None);
    }
}
