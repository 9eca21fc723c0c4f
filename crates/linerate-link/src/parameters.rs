//! The parameters of one direction of a link, and the options that set them.

use std::sync::Arc;

use linerate_core::batch::MAX_CHAIN;

use crate::codel::Codel;
use crate::delay::{Delay, Distribution};
use crate::file::read;
use crate::loss::Loss;
use crate::play::Recording;
use crate::quantity::{Amount, amount, duration, probability, rate};
use crate::schedule::Schedule;
use crate::transmitter::{LONGEST_FRAME, Opportunities, Pace};

/// Packets per second of 10 Gbit/s Ethernet, at most.
pub const OF_CARDS: u64 = 14_880_952;

/// Packets per second that the kernel's ports, and those of other processes, are expected to carry at most.
pub const OF_OTHERS: u64 = 2_000_000;

/// The most packets that a line holds unless it is told otherwise; 512 MiB of buffers.
const MOST_BY_DEFAULT: usize = 262_144;

/// The most packets that a line can hold; 8 GiB of buffers.
const MOST: usize = 1 << 22;

/// The fewest packets that a line can hold.
const FEWEST: usize = MAX_CHAIN;

/// The shortest frame, without its CRC.
const SHORTEST_FRAME: usize = 60;

/// The bytes of a frame that count for the rate and the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overhead {
    /// The frame without its CRC, as in captures.
    #[default]
    None,
    /// With this number of bytes.
    Bytes(u64),
    /// As on Ethernet: padding to 60 bytes, CRC, preamble, and the gap to the next frame, 24 bytes.
    Ethernet,
}

impl Overhead {
    /// Returns the bytes of a frame of `len` bytes.
    #[inline]
    pub fn of(self, len: usize) -> u64 {
        match self {
            Overhead::None => len as u64,
            Overhead::Bytes(bytes) => len as u64 + bytes,
            Overhead::Ethernet => len.max(SHORTEST_FRAME) as u64 + 24,
        }
    }
}

/// The behaviour of one direction of a link. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// How long packets travel.
    pub delay: Delay,
    /// Whether packets arrive in order: a packet with a shorter delay waits for those before it.
    pub keeps_order: bool,
    /// Which packets are lost.
    pub loss: Loss,
    /// The probability that a bit is wrong. Frames with a wrong bit are lost.
    pub bit_errors: f64,
    /// The probability that one bit of a packet is inverted; the packet arrives.
    pub corrupt: f64,
    /// The probability that a packet's end is cut off.
    pub truncate: f64,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The probability that the next packet overtakes a packet, at most one half.
    pub reorder: f64,
    /// The rate; `None` for a link that is as fast as its ports.
    pub pace: Option<Pace>,
    /// The bytes that count for the rate in addition to the frame.
    pub overhead: Overhead,
    /// The longest queue, in addition to the packet that is being sent; `None` for no limit, if there is no rate.
    pub queue: Option<Amount>,
    /// Drops packets that wait too long.
    pub codel: Option<Codel>,
    /// Changes of rate, delay and loss.
    pub schedule: Option<Arc<Schedule>>,
    /// The seed of random decisions.
    pub seed: u64,
    /// Decisions that are repeated instead of all of that.
    pub play: Option<Recording>,
    /// The most slots that the line holds; `None` to compute it, see [`capacity`](Parameters::capacity).
    pub packets: Option<usize>,
}

/// The reason why an option was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The option.
    pub option: &'static str,
    /// The error in its value.
    pub why: String,
}

/// The names of all options, with those that need another one after the colon.
pub(crate) const NEEDS: [(&str, &str); 10] = [
    ("jitter", "delay"),
    ("distribution", "jitter"),
    ("order", "jitter"),
    ("burst", "loss"),
    ("overhead", "rate"),
    ("queue", "rate"),
    ("aqm", "rate"),
    ("target", "aqm"),
    ("interval", "aqm"),
    ("ecn", "aqm"),
];

impl Parameters {
    /// Returns the parameters that options set; docs/link.md lists them.
    ///
    /// # Errors
    /// The first option whose value cannot be used.
    pub fn of<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Parameters, Refused> {
        let options: Vec<(&str, &str)> = options.into_iter().collect();
        let get = |name: &str| options.iter().rev().find(|(option, _)| *option == name).map(|(_, value)| *value);
        let refused = |option, why: String| Err(Refused { option, why });
        // Parses an option if it is set.
        fn parsed<T, E: ToString>(
            option: &'static str,
            value: Option<&str>,
            parse: impl Fn(&str) -> Result<T, E>,
        ) -> Result<Option<T>, Refused> {
            let refused = |why: E| Refused { option, why: why.to_string() };
            value.map(|value| parse(value).map_err(refused)).transpose()
        }
        let chance = |option| Ok(parsed(option, get(option), part)?.unwrap_or(0.0));
        let is_on = |option| match get(option) {
            None | Some("off") => Ok(false),
            Some("on") => Ok(true),
            Some(_) => Err(Refused { option, why: "it is on or off".to_string() }),
        };

        let schedule = parsed("schedule", get("schedule"), |path| read(path, Schedule::parse))?.map(Arc::new);
        let trace = parsed("trace", get("trace"), |path| read(path, Opportunities::parse))?;
        let has_rate = schedule.iter().any(|schedule| schedule.steps().iter().any(|step| step.rate.is_some()));
        let has_delay = schedule.iter().any(|schedule| schedule.steps().iter().any(|step| step.delay.is_some()));
        for (option, needed) in NEEDS {
            let is_there = get(needed).is_some()
                || needed == "rate" && (trace.is_some() || has_rate)
                || needed == "delay" && has_delay;
            if get(option).is_some() && !is_there {
                return refused(option, format!("it needs {needed}, too"));
            }
        }

        let mean = parsed("delay", get("delay"), duration)?.unwrap_or(0);
        let jitter = parsed("jitter", get("jitter"), duration)?.filter(|jitter| *jitter > 0);
        let distribution = parsed("distribution", get("distribution"), Distribution::of_name)?;
        let jitter = jitter.map(|jitter| (jitter, distribution.unwrap_or_else(Distribution::uniform)));
        let keeps_order = get("order").is_none() || is_on("order")?;

        let loss = Parameters::loss_of(&get)?;
        let bit_errors = chance("ber")?;
        if bit_errors >= 0.5 {
            return refused("ber", "it is below 0.5: with half of the bits wrong, nothing is left".to_string());
        }
        let (corrupt, truncate, duplicate) = (chance("corrupt")?, chance("truncate")?, chance("duplicate")?);
        let reorder = chance("reorder")?;
        if reorder > 0.5 {
            return refused("reorder", "it is at most 50 %".to_string());
        }

        let pace = match (parsed("rate", get("rate"), rate)?, trace) {
            (Some(_), Some(_)) => return refused("trace", "the link has a rate already; keep one of both".to_string()),
            (rate, trace) => rate.map(Pace::Rate).or(trace.map(Pace::Opportunities)),
        };
        let overhead = match get("overhead") {
            None | Some("none") => Overhead::None,
            Some("ethernet") => Overhead::Ethernet,
            Some(bytes) => match bytes.parse::<u16>() {
                Ok(bytes) => Overhead::Bytes(bytes.into()),
                Err(_) => return refused("overhead", "it is ethernet, none, or a number of bytes below 65536".into()),
            },
        };
        let queue = parsed("queue", get("queue"), amount)?;
        if (pace.is_some() || has_rate) && queue.is_none() {
            let option = ["rate", "trace"].into_iter().find(|option| get(option).is_some()).unwrap_or("schedule");
            let why = "a rate needs the length of its queue, as queue=100kB, 1000p or 50ms: packets that arrive faster \
                       have to wait somewhere, and the length decides how long they wait, and which are dropped";
            return refused(option, why.to_string());
        }
        let codel = match get("aqm") {
            None | Some("none") => None,
            Some("codel") => {
                let default = Codel::default();
                let target = parsed("target", get("target"), duration)?.unwrap_or(default.target);
                let interval = parsed("interval", get("interval"), duration)?.unwrap_or(default.interval);
                if target == 0 || interval < target {
                    let option = if interval < default.target { "interval" } else { "target" };
                    return refused(option, "the target is above 0, and at most the interval".to_string());
                }
                Some(Codel { target, interval, ecn: is_on("ecn")? })
            }
            Some(_) => return refused("aqm", "it is codel or none".to_string()),
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| "it is a number below 2^64");
        let seed = parsed("seed", get("seed"), number)?.unwrap_or(1);
        let packets = |text: &str| match linerate_core::port::count(text).map(|count| count as usize) {
            Some(packets @ FEWEST..=MOST) => Ok(packets),
            _ => Err(format!("it is a number from {FEWEST} to {MOST}")),
        };
        let packets = parsed("packets", get("packets"), packets)?;
        let parameters = Parameters {
            delay: Delay { mean, jitter },
            keeps_order,
            loss,
            bit_errors,
            corrupt,
            truncate,
            duplicate,
            reorder,
            pace,
            overhead,
            queue,
            codel,
            schedule,
            seed,
            play: None,
            packets,
        };
        if let Some(needed) = parameters.needed().filter(|needed| packets.is_none() && *needed > MOST) {
            let option = ["delay", "queue"][usize::from(parameters.longest_delay() == 0)];
            let gib = needed as f64 * 2048.0 / f64::from(1 << 30);
            let why = format!(
                "with the rate, it can be {needed} of the shortest packets, which need {gib:.1} GiB; the most are \
                 {MOST}: set packets=N if packets are longer"
            );
            return refused(option, why);
        }
        Ok(parameters)
    }

    /// Returns the model of loss that options set.
    fn loss_of<'a>(get: &impl Fn(&str) -> Option<&'a str>) -> Result<Loss, Refused> {
        let refused = |option, why: &str| Refused { option, why: why.to_string() };
        let given: Vec<&str> = ["loss", "gilbert", "pattern"].into_iter().filter(|name| get(name).is_some()).collect();
        match given[..] {
            [] => Ok(Loss::None),
            ["loss"] => {
                let loss = part(get("loss").unwrap_or_default()).map_err(|why| refused("loss", why))?;
                let Some(burst) = get("burst") else { return Ok(Loss::Independent(loss)) };
                let burst = burst.parse::<f64>().unwrap_or(f64::NAN);
                match Loss::in_bursts(loss, burst).filter(|_| burst <= 1e6) {
                    Some(loss) => Ok(loss),
                    None => Err(refused(
                        "burst",
                        "it is the mean number of packets lost in a row, at least 1, and so long that between two \
                         bursts a packet arrives",
                    )),
                }
            }
            ["gilbert"] => {
                const WANTED: &str = "it is P,R or P,R,H or P,R,H,K: the probabilities to become bad, to become good, \
                                      and to arrive while bad (0) and while good (1)";
                let text = get("gilbert").unwrap_or_default();
                let values: Option<Vec<f64>> = text.split(',').map(|value| probability(value).ok()).collect();
                match values.as_deref() {
                    Some(&[p, r]) => Ok(Loss::GilbertElliott { p, r, h: 0.0, k: 1.0 }),
                    Some(&[p, r, h]) => Ok(Loss::GilbertElliott { p, r, h, k: 1.0 }),
                    Some(&[p, r, h, k]) => Ok(Loss::GilbertElliott { p, r, h, k }),
                    _ => Err(refused("gilbert", WANTED)),
                }
            }
            ["pattern"] => match Loss::pattern(get("pattern").unwrap_or_default()) {
                Some(pattern) => Ok(pattern),
                None => {
                    Err(refused("pattern", "it is a text as ...x: a point for a packet that arrives, x for a lost one"))
                }
            },
            _ => Err(refused("loss", "of loss, gilbert and pattern, there can be only one")),
        }
    }

    /// Returns the longest delay, in nanoseconds.
    pub fn longest_delay(&self) -> u64 {
        let steps = self.schedule.iter().flat_map(|schedule| schedule.steps());
        let jitter = self.delay.longest() - self.delay.mean.min(self.delay.longest());
        let longest = steps.filter_map(|step| step.delay).fold(self.delay.mean, u64::max).saturating_add(jitter);
        longest.max(self.play.as_ref().map_or(0, Recording::longest_delay))
    }

    /// Returns the highest rate in bits per second.
    pub fn highest_rate(&self) -> Option<u64> {
        let steps = self.schedule.iter().flat_map(|schedule| schedule.steps());
        steps.filter_map(|step| step.rate).chain(self.pace.as_ref().map(Pace::mean_rate)).max()
    }

    /// Returns the longest time that a packet can wait in the queue, in nanoseconds; `None` without a rate, or if the
    /// queue is limited by packets.
    pub fn longest_wait(&self) -> Option<u64> {
        let rate = self.pace.as_ref()?.mean_rate();
        match self.queue? {
            Amount::Time(time) => Some(time),
            Amount::Bytes(bytes) => Some((u128::from(bytes) * 8_000_000_000 / u128::from(rate)) as u64),
            Amount::Packets(packets) => {
                let bits = u128::from(packets) * u128::from(self.overhead.of(1514)) * 8;
                Some((bits * 1_000_000_000 / u128::from(rate)).min(u64::MAX.into()) as u64)
            }
        }
    }

    /// Returns how many of the shortest packets fit into the delay and the queue, if there is a rate.
    fn needed(&self) -> Option<usize> {
        let rate = u128::from(self.highest_rate()?);
        let shortest = u128::from(self.overhead.of(SHORTEST_FRAME).clamp(1, LONGEST_FRAME));
        let of_time = |time: u64| (rate * u128::from(time)).div_ceil(8_000_000_000 * shortest);
        let queued = match self.queue {
            None => 0,
            Some(Amount::Bytes(bytes)) => u128::from(bytes).div_ceil(shortest),
            Some(Amount::Packets(packets)) => packets.into(),
            Some(Amount::Time(time)) => of_time(time),
        };
        Some((queued + of_time(self.longest_delay())).try_into().unwrap_or(usize::MAX))
    }

    /// Returns the most slots that the line holds: `packets` if it is set; for a link with a rate, as many of the
    /// shortest packets as fit into its delay and its queue; otherwise those of the delay at `packets_per_second`, at
    /// most 262,144.
    pub fn capacity_at(&self, packets_per_second: u64) -> usize {
        let without_rate = || {
            let packets = u128::from(self.longest_delay()) * u128::from(packets_per_second) / 1_000_000_000;
            usize::try_from(packets).unwrap_or(usize::MAX).min(MOST_BY_DEFAULT)
        };
        let needed = || self.needed().unwrap_or_else(without_rate).saturating_add(FEWEST);
        self.packets.unwrap_or_else(needed).clamp(FEWEST, MOST + FEWEST)
    }

    /// Returns whether any decision is random, so that the seed matters.
    pub fn has_chances(&self) -> bool {
        let faults = [self.bit_errors, self.corrupt, self.truncate, self.duplicate, self.reorder];
        let is_lossy = matches!(self.loss, Loss::Independent(_) | Loss::GilbertElliott { .. });
        self.play.is_none() && (is_lossy || self.delay.jitter.is_some() || faults.iter().any(|chance| *chance > 0.0))
    }

    /// Returns whether packets stay in the line.
    pub fn holds_packets(&self) -> bool {
        self.longest_delay() > 0 || self.highest_rate().is_some()
    }

    /// As [`capacity_at`](Parameters::capacity_at), for ports of the kernel.
    pub fn capacity(&self) -> usize {
        self.capacity_at(OF_OTHERS)
    }
}

/// Parses the probability of a loss or fault. `1` is refused, as its author may mean one of a hundred.
fn part(text: &str) -> Result<f64, &'static str> {
    match text {
        "1" => Err("1 would be every packet: write 1% or 100%"),
        _ => probability(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &[(&'static str, &str)]) -> Refused {
        Parameters::of(options.iter().copied()).map(|_| ()).unwrap_err()
    }

    #[test]
    fn options_set_parameters() {
        let options = [("delay", "20ms"), ("jitter", "2ms"), ("rate", "50Mbit"), ("queue", "100kB"), ("loss", "1%")];
        let parameters = Parameters::of(options).unwrap();
        assert_eq!((parameters.delay.mean, parameters.longest_delay() / 10_000), (20_000_000, 2199));
        assert_eq!(
            (parameters.pace.clone(), parameters.queue),
            (Some(Pace::Rate(50_000_000)), Some(Amount::Bytes(100_000)))
        );
        assert_eq!((&parameters.loss, parameters.keeps_order), (&Loss::Independent(0.01), true));
        assert_eq!(parameters.longest_wait(), Some(16_000_000));
        // 100 kB of 60 bytes, and 50 Mbit/s for 22 ms.
        assert_eq!(parameters.needed(), Some(1667 + 2292));
        let codel =
            Parameters::of([("rate", "1Mbit"), ("queue", "1s"), ("aqm", "codel"), ("ecn", "on")]).unwrap().codel;
        assert_eq!(codel, Some(Codel { ecn: true, ..Codel::default() }));
        assert_eq!(Parameters::of([]).unwrap(), Parameters { keeps_order: true, seed: 1, ..Parameters::default() });
    }

    #[test]
    fn refused_options_say_why() {
        for (options, option, why) in [
            (&[("delay", "20")][..], "delay", "unit"),
            (&[("rate", "10Mbit")], "rate", "needs the length of its queue"),
            (&[("queue", "10kB")], "queue", "needs rate"),
            (&[("jitter", "1ms")], "jitter", "needs delay"),
            (&[("delay", "1ms"), ("distribution", "normal")], "distribution", "needs jitter"),
            (&[("delay", "1ms"), ("jitter", "1ms"), ("distribution", "gauss")], "distribution", "normal"),
            (&[("loss", "2")], "loss", "probability"),
            (&[("loss", "99%"), ("burst", "2")], "burst", "mean number"),
            (&[("loss", "1%"), ("burst", "x")], "burst", "mean number"),
            (&[("loss", "1%"), ("pattern", "..x")], "loss", "only one"),
            (&[("gilbert", "1%")], "gilbert", "P,R"),
            (&[("gilbert", "1%,2%,3%,4%,5%")], "gilbert", "P,R"),
            (&[("pattern", "-")], "pattern", "point"),
            (&[("ber", "0.5")], "ber", "below"),
            (&[("reorder", "51%")], "reorder", "at most"),
            (&[("rate", "1M"), ("queue", "1ms"), ("aqm", "red")], "aqm", "codel"),
            (&[("rate", "1M"), ("queue", "1ms"), ("aqm", "codel"), ("target", "1s")], "target", "at most the interval"),
            (&[("rate", "1M"), ("queue", "1ms"), ("overhead", "lots")], "overhead", "ethernet"),
            (&[("trace", "/nonexistent")], "trace", "No such file"),
            (&[("packets", "3")], "packets", "from 64"),
            (&[("seed", "x")], "seed", "it is a number"),
            (&[("loss", "1")], "loss", "write 1% or 100%"),
            (&[("rate", "100Gbit"), ("queue", "1ms"), ("delay", "10s")], "delay", "GiB"),
        ] {
            let found = refused(options);
            assert_eq!(found.option, option, "{options:?}: {found:?}");
            assert!(found.why.contains(why), "{options:?}: {found:?}");
        }
    }

    #[test]
    fn memory_follows_from_rate_and_delay() {
        let capacity = |options: &[(&'static str, &'static str)], rate| {
            Parameters::of(options.iter().copied()).unwrap().capacity_at(rate) - FEWEST
        };
        assert_eq!(capacity(&[("delay", "10ms")], OF_CARDS), 148_809);
        assert_eq!(capacity(&[("delay", "10ms")], OF_OTHERS), 20_000);
        assert_eq!(capacity(&[("delay", "10s")], OF_CARDS), MOST_BY_DEFAULT);
        assert_eq!(capacity(&[("rate", "1Gbit"), ("queue", "1000p"), ("delay", "80ms")], OF_CARDS), 166_667 + 1000);
        assert_eq!(capacity(&[("delay", "10s"), ("packets", "1024")], OF_CARDS), 1024 - FEWEST);
    }
}
