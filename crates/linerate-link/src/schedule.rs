//! Schedules: rates, delays and losses that change at given times.

use crate::quantity::{duration, probability, rate};

/// The shortest period of a schedule, in nanoseconds.
const SHORTEST_PERIOD: u64 = 1_000_000;

/// The values of a link from one time on. `None` leaves a value as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The time since the start of the schedule, in nanoseconds.
    pub time: u64,
    /// Bits per second.
    pub rate: Option<u64>,
    /// Nanoseconds.
    pub delay: Option<u64>,
    /// The probability that a packet is lost.
    pub loss: Option<f64>,
}

/// Steps in the order of their times.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    steps: Vec<Step>,
    /// After this time the schedule starts again, in nanoseconds.
    period: Option<u64>,
}

impl Schedule {
    /// Parses comma-separated values. The first line names the columns: `time`, and any of `rate`, `delay` and `loss`.
    /// An empty value leaves what was. A last line with a time only is the period, after which the schedule starts
    /// again. Lines that start with `#` are comments.
    ///
    /// ```
    /// use linerate_link::Schedule;
    ///
    /// let schedule = Schedule::parse("time,rate,delay,loss\n0s,10Mbit,20ms,\n1s,2Mbit,,1%\n2s,,,\n")?;
    /// let second = schedule.step(1).unwrap();
    /// assert_eq!((second.time, second.rate, second.delay), (1_000_000_000, Some(2_000_000), None));
    /// assert_eq!(schedule.step(2).unwrap().time, 2_000_000_000); // the first again
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// The number of a line, and its error.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(n, line)| (n + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let cells = |line: &'_ str| line.split(',').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
        let (_, header) = lines.next().ok_or("it is empty")?;
        let columns = cells(header);
        if let Some(unknown) = columns.iter().find(|name| !["time", "rate", "delay", "loss"].contains(&name.as_str())) {
            return Err(format!("there is no column `{}`, only time, rate, delay and loss", unknown.escape_debug()));
        }
        if columns.iter().enumerate().any(|(n, name)| columns[..n].contains(name)) || !columns.contains(&"time".into())
        {
            return Err("its first line needs the names of the columns, each once: time,rate,delay,loss".to_string());
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut period = None;
        for (number, line) in lines {
            let wrong = |why: &str| format!("line {number}: {why}");
            let cells = cells(line);
            if cells.len() != columns.len() {
                return Err(wrong(&format!("it has {} values for {} columns", cells.len(), columns.len())));
            }
            if period.is_some() {
                return Err(wrong("only the last line may have no value but its time"));
            }
            let mut step = Step::default();
            for (name, cell) in columns.iter().zip(&cells).filter(|(name, cell)| *name == "time" || !cell.is_empty()) {
                let wrong = |why: &str| wrong(&format!("{name}: {why}"));
                match name.as_str() {
                    "time" => step.time = duration(cell).map_err(wrong)?,
                    "rate" => step.rate = Some(rate(cell).map_err(wrong)?),
                    "delay" => step.delay = Some(duration(cell).map_err(wrong)?),
                    _ => step.loss = Some(probability(cell).map_err(wrong)?),
                }
            }
            if steps.last().is_some_and(|last| last.time > step.time) {
                return Err(wrong("it is before the last time"));
            }
            match step {
                Step { rate: None, delay: None, loss: None, time } => period = Some(time),
                _ => steps.push(step),
            }
        }
        match (steps.is_empty(), period) {
            (true, _) => Err("it has no steps".to_string()),
            // A line that was idle makes up for all periods since.
            (_, Some(..SHORTEST_PERIOD)) => Err("its last time, the period, is below 1 ms".to_string()),
            _ => Ok(Schedule { steps, period }),
        }
    }

    /// Returns step `number`, counted from 0 over all periods; `None` after the last.
    pub fn step(&self, number: u64) -> Option<Step> {
        let count = self.steps.len() as u64;
        let (round, at) = (number / count, (number % count) as usize);
        let begin = match self.period {
            Some(period) => period.checked_mul(round)?,
            None if round > 0 => return None,
            None => 0,
        };
        let step = self.steps[at];
        Some(Step { time: begin.checked_add(step.time)?, ..step })
    }

    /// Returns the steps of one period.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_end_or_repeat() {
        let once = Schedule::parse("# a comment\ntime, loss\n0, 1%\n\n10ms, 0\n").unwrap();
        assert_eq!(once.step(1), Some(Step { time: 10_000_000, loss: Some(0.0), ..Step::default() }));
        assert_eq!(once.step(2), None);
        let repeated = Schedule::parse("time,rate\n0,1Mbit\n5ms,2Mbit\n8ms,\n").unwrap();
        assert_eq!(repeated.steps().len(), 2);
        assert_eq!(repeated.step(5).map(|step| (step.time, step.rate)), Some((21_000_000, Some(2_000_000))));
        assert_eq!(repeated.step(u64::MAX), None);
    }

    #[test]
    fn bad_schedules_are_errors_with_their_line() {
        for (text, why) in [
            ("", "empty"),
            ("rate\n1Mbit", "time"),
            ("time,time\n0,0", "each once"),
            ("time,speed\n0,1", "speed"),
            ("time,rate\n0", "line 2: it has 1 values for 2 columns"),
            ("time,rate\n0,fast", "line 2: rate:"),
            ("time,rate\n,1Mbit", "line 2: time:"),
            ("time,rate\n5,1Mbit", "line 2: time:"),
            ("time,rate\n5ms,1Mbit\n4ms,2Mbit", "line 3: it is before"),
            ("time,rate\n0,1Mbit\n1ms,\n2ms,1Mbit", "line 4: only the last"),
            ("time,rate\n1ms,", "no steps"),
            ("time,rate\n0,1Mbit\n0,", "period"),
            ("time,rate\n0,1Mbit\n999us,", "period"),
        ] {
            let error = Schedule::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
