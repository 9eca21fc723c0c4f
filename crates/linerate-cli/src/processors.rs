//! The processors: which ones exist, which ones the threads use, and how long the threads had to wait for one.

use std::collections::BTreeMap;
use std::time::Instant;

use rustix::thread::sched_getaffinity;
use serde_json::{Value, json};

/// The kernel's name of the thread that runs the models.
const MODEL: &str = "82599 model";
/// The fraction of the time without a processor above which the machine counts as busy.
const WAITED: f64 = 0.05;
/// The same for the fraction of processor time that a hypervisor gave to other machines.
const STOLEN: f64 = 0.01;

/// Returns the processors that this process may use.
pub fn allowed() -> Vec<u16> {
    match sched_getaffinity(None) {
        Ok(set) => (0..1024).filter(|&core| set.is_set(core.into())).collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from) as u16).collect(),
    }
}

/// Parses a processor, or a range such as `0-3`.
pub fn parse(text: &str) -> Result<Vec<u16>, String> {
    let bad = || format!("'{text}' is not a processor, and not a range such as 0-3");
    let allowed = allowed();
    let absent = |core: &str| format!("there is no processor {core}; there {}", there_are(&allowed));
    let number = |text: &str| match text.parse::<u16>() {
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => Err(absent(text)),
        number => number.map_err(|_| bad()),
    };
    let cores: Vec<u16> = match text.split_once('-') {
        Some((first, last)) => (number(first)?..=number(last)?).collect(),
        None => vec![number(text)?],
    };
    if cores.is_empty() {
        return Err(bad());
    }
    match cores.iter().find(|core| !allowed.contains(core)) {
        Some(other) => Err(absent(&other.to_string())),
        None => Ok(cores),
    }
}

/// Returns "are 0 and 1", "is 0" or "are 0 to 31, 40 to 47".
fn there_are(cores: &[u16]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let shown: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first} and {last}"),
            _ => format!("{first} to {last}"),
        })
        .collect();
    format!("{} {}", if cores.len() == 1 { "is" } else { "are" }, shown.join(", "))
}

/// Returns a warning if other programs kept at least half of the processors busy in the last minute.
pub fn busy_before() -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    busy_with(&load, std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns the warning for the contents of `/proc/loadavg`.
fn busy_with(load: &str, processors: usize) -> Option<String> {
    let load: f64 = load.split_whitespace().next()?.parse().ok()?;
    (load >= processors as f64 / 2.0).then(|| {
        format!("other programs used processors: the load was {load} in the minute before, with {processors} of them")
    })
}

/// A thread's times.
struct Thread {
    name: String,
    /// Nanoseconds on a processor, and ready but without one (`/proc/PID/schedstat`).
    ran: u64,
    waited: u64,
    /// The processor that it used last.
    processor: u16,
}

/// The times of all threads of this process, and of the machine's processors, at a moment.
pub struct Snapshot {
    time: Instant,
    threads: BTreeMap<u32, Thread>,
    /// Time of all processors: stolen by a hypervisor for other machines, and in total (`/proc/stat`).
    stolen: u64,
    all: u64,
}

impl Snapshot {
    /// Takes a snapshot. Values that the kernel does not provide are 0.
    pub fn take() -> Snapshot {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let threads = tasks.filter_map(|task| {
            let number = task.file_name().to_str()?.parse().ok()?;
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
            let stat = read("stat")?;
            let (before, after) = stat.rsplit_once(')')?;
            let name = before.split_once('(')?.1.to_string();
            // The fields of proc_pid_stat(5) from the third on; the processor is the 39th.
            let processor = after.split_whitespace().nth(36)?.parse().ok()?;
            let schedule = read("schedstat").unwrap_or_default();
            let mut times = schedule.split_whitespace().map(|time| time.parse().unwrap_or(0));
            let (ran, waited) = (times.next().unwrap_or(0), times.next().unwrap_or(0));
            Some((number, Thread { name, ran, waited, processor }))
        });
        let threads = threads.collect();
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; user includes guest time.
        let times: Vec<u64> = line.split_whitespace().skip(1).take(8).map(|time| time.parse().unwrap_or(0)).collect();
        Snapshot { time: Instant::now(), threads, stolen: times.get(7).copied().unwrap_or(0), all: times.iter().sum() }
    }

    /// Returns the processors of the threads that move packets.
    pub fn processors(&self) -> Vec<u16> {
        let mut all: Vec<u16> =
            self.threads.values().filter(|thread| moves_packets(&thread.name)).map(|thread| thread.processor).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the use of processors since an earlier snapshot, by the threads for which `is_meant` is true.
    pub fn since(&self, before: &Snapshot, is_meant: impl Fn(&str) -> bool) -> Use {
        let seconds = (self.time - before.time).as_secs_f64().max(1e-9);
        let mut result = Use { seconds, processors: self.processors(), ..Use::default() };
        for (number, thread) in self.threads.iter().filter(|(_, thread)| is_meant(&thread.name)) {
            // A thread may have started in between.
            let old = before.threads.get(number);
            let of = |now: u64, then: fn(&Thread) -> u64| now.saturating_sub(old.map_or(0, then));
            let part = |time: u64| (time as f64 / 1e9 / seconds).min(1.0);
            result.waited = result.waited.max(part(of(thread.waited, |thread| thread.waited)));
            if thread.name == MODEL {
                result.model = Some((part(of(thread.ran, |thread| thread.ran)), thread.processor));
            }
        }
        let all = self.all.saturating_sub(before.all);
        result.stolen = self.stolen.saturating_sub(before.stolen) as f64 / all.max(1) as f64;
        result
    }
}

/// Returns whether a thread moves packets: the threads of a run, and the models' thread.
pub fn moves_packets(name: &str) -> bool {
    name.starts_with("linerate ") || name == MODEL
}

/// The shortest time that is judged by fractions of it, as threads wait for their first processor when they start.
const MIN_SECONDS: f64 = 0.2;

/// The use of processors over a time.
#[derive(Clone, Default)]
pub struct Use {
    /// The duration.
    pub seconds: f64,
    /// The processors used at its end.
    pub processors: Vec<u16>,
    /// The largest fraction of the time for which a thread was ready but had no processor.
    pub waited: f64,
    /// The fraction of all processor time that a hypervisor gave to other machines.
    pub stolen: f64,
    /// The fraction of a processor that the models' thread used, and the processor's number.
    pub model: Option<(f64, u16)>,
}

impl Use {
    /// Returns the worse values of both.
    pub fn worse(self, other: Use) -> Use {
        Use {
            seconds: self.seconds.max(other.seconds),
            waited: self.waited.max(other.waited),
            stolen: self.stolen.max(other.stolen),
            ..other
        }
    }

    /// Returns the bottleneck of a paced run: the models' thread, or other programs.
    pub fn bound(&self) -> Option<String> {
        let Some((part, core)) = self.model else {
            return (self.waited > WAITED).then(|| "the processors, which other programs use, too".to_string());
        };
        let others = if part < 0.9 && self.waited > WAITED { ", which other programs use, too" } else { "" };
        Some(format!("the model's thread: {:.0} % of processor {core}{others}", part * 100.0))
    }

    /// Returns the bottleneck of threads that pace themselves: their own work, or, if they have time to spare, other
    /// programs. `busy` is the fraction of the time in which they moved packets.
    pub fn bound_of_sender(&self, busy: f64) -> String {
        match self.waited > WAITED && busy < 0.9 {
            true => "the processors, which other programs use, too".to_string(),
            false => "the sending threads".to_string(),
        }
    }

    /// Returns the bottleneck of a run at full speed: its own threads, or a model's. `busy` is the fraction of the time
    /// in which its threads moved packets.
    pub fn bound_of_fastest(&self, busy: f64) -> Option<String> {
        let percent = (busy.min(1.0) * 100.0).round();
        if busy >= 0.9 {
            let others = if self.waited > WAITED { ", on processors that other programs use, too" } else { "" };
            return Some(format!("the run's threads: they moved packets {percent} % of the time{others}"));
        }
        self.model?;
        self.bound().map(|model| format!("{model} (the run's threads moved packets {percent} % of the time)"))
    }

    /// Returns whether a busy machine can be told from the threads' start: the time is long enough, or a thread waited
    /// so long that it would matter in a longer time.
    fn is_judged(&self) -> bool {
        self.seconds >= MIN_SECONDS || self.waited * self.seconds > WAITED * MIN_SECONDS
    }

    fn has_waited(&self) -> bool {
        self.waited > WAITED || self.stolen > STOLEN
    }

    /// Returns a warning if the threads lacked processors: times and rates are then those of a busy machine.
    pub fn warning(&self) -> Option<String> {
        let percent = |part: f64| (part * 100.0).round();
        match self.is_judged() && self.has_waited() {
            true => Some(format!(
                "processors were taken away: a thread waited for one for {} % of the time, and a \
                 hypervisor took {} %; these are results of a busy machine",
                percent(self.waited),
                percent(self.stolen),
            )),
            false => None,
        }
    }

    /// Returns the same as JSON. `taken_away` is null if the time is too short to tell.
    pub fn json(&self) -> Value {
        let is_taken_away = (self.is_judged() || !self.has_waited()).then(|| self.has_waited());
        let percent = |part: f64| (part * 1000.0).round() / 10.0;
        json!({
            "used": self.processors, "waited_percent": percent(self.waited),
            "stolen_percent": percent(self.stolen), "taken_away": is_taken_away,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_numbers_and_ranges() {
        let first = allowed()[0];
        assert_eq!(parse(&first.to_string()), Ok(vec![first]));
        assert_eq!(parse(&format!("{first}-{first}")), Ok(vec![first]));
        for bad in ["", "-1", "1-0", "a", "0-", "0--1"] {
            assert!(parse(bad).unwrap_err().contains("not a processor"), "{bad}");
        }
        assert!(parse("0-100000").unwrap_err().contains("there is no processor 100000; there "));
        let said = parse("65535").unwrap_err();
        assert!(said.contains("there is no processor 65535; there ") && said.contains(&first.to_string()), "{said}");
        assert_eq!(there_are(&[0]), "is 0");
        assert_eq!(there_are(&[0, 1]), "are 0 and 1");
        assert_eq!(there_are(&[0, 1, 2, 5, 7, 8]), "are 0 to 2, 5, 7 and 8");
    }

    /// Waiting threads and stolen time are reported; a quiet machine is not.
    #[test]
    fn processors_that_are_taken_away_are_reported() {
        let thread = |ran, waited| Thread { name: MODEL.to_string(), ran, waited, processor: 1 };
        let time = Instant::now();
        let snapshot = |after: u64, thread: Thread, stolen, all| Snapshot {
            time: time + std::time::Duration::from_secs(after),
            threads: [(7, thread)].into(),
            stolen,
            all,
        };
        let before = || snapshot(0, thread(5_000_000_000, 9_000_000_000), 50, 1000);
        let quiet = snapshot(2, thread(6_980_000_000, 9_020_000_000), 51, 1400).since(&before(), moves_packets);
        assert_eq!((quiet.warning(), quiet.model), (None, Some((0.99, 1))));
        assert_eq!(quiet.bound().unwrap(), "the model's thread: 99 % of processor 1");
        let bound = "the model's thread: 99 % of processor 1 (the run's threads moved packets 20 % of the time)";
        assert_eq!(quiet.bound_of_fastest(0.2).unwrap(), bound);
        assert!(quiet.bound_of_fastest(0.95).unwrap().starts_with("the run's threads"));
        assert_eq!(Use::default().bound_of_fastest(0.2), None);
        let waited = snapshot(2, thread(6_000_000_000, 10_000_000_000), 50, 1400).since(&before(), moves_packets);
        let said = waited.warning().unwrap();
        assert!(said.contains("for 50 % of the time, and"), "{said}");
        assert!(waited.bound().unwrap().ends_with("50 % of processor 1, which other programs use, too"));
        let stolen = snapshot(2, thread(7_000_000_000, 9_000_000_000), 90, 1400).since(&before(), moves_packets);
        assert!(stolen.warning().unwrap().contains("took 10 %"));
        assert_eq!(stolen.json()["taken_away"], true);
        let short = snapshot(0, thread(0, u64::MAX), 90, 1400).since(&before(), moves_packets);
        assert_eq!((short.warning(), &short.json()["taken_away"]), (None, &Value::Null), "a start");
        // A busy machine is recognised even in a short time.
        for (seconds, waited, taken_away) in [
            (0.05, 0.95, json!(true)),
            (0.05, 0.1, Value::Null),
            (0.05, 0.04, json!(false)),
            (0.2, 0.04, json!(false)),
            (0.2, 0.06, json!(true)),
        ] {
            let used = Use { seconds, waited, ..Use::default() };
            assert_eq!(used.json()["taken_away"], taken_away, "{waited} of {seconds} s");
            assert_eq!(used.warning().is_some(), taken_away == json!(true), "{waited} of {seconds} s");
        }
        assert!(snapshot(2, thread(0, 0), 50, 1400).since(&before(), |_| false).model.is_none());
    }

    #[test]
    fn the_load_of_other_programs_is_reported() {
        assert_eq!(busy_with("0.99 3.00 5.00 1/200 77", 2), None);
        let said = busy_with("1.00 0.00 0.00 1/200 77", 2).unwrap();
        assert!(said.ends_with("the load was 1 in the minute before, with 2 of them"), "{said}");
        assert_eq!(busy_with("", 2), None);
    }

    #[test]
    fn this_process_is_seen() {
        let before = Snapshot::take();
        assert!(before.threads.values().any(|thread| thread.ran > 0), "the kernel has schedstat");
        assert!(before.all > 0 && before.stolen <= before.all);
        assert!(before.threads.values().all(|thread| allowed().contains(&thread.processor)));
    }
}
