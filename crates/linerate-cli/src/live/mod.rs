//! Live control of a run, by keys and by programs.
//!
//! - `speed`: the variable rate of senders; `control`: the socket for programs
//! - `screen`: the terminal and its keys; `view`: the drawing of the full screen; `lines`: instead of both in builds
//!   without the feature `live`

mod control;
#[cfg(not(feature = "live"))]
mod lines;
#[cfg(feature = "live")]
mod screen;
mod speed;
#[cfg(feature = "live")]
mod view;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

pub use control::Control;
use linerate::filter::Filter;
use linerate::port::{Action, Port};
use linerate::traffic::Rate;
#[cfg(not(feature = "live"))]
pub use lines::Screen;
#[cfg(feature = "live")]
pub use screen::Screen;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Value, json};
pub use speed::{Follower, Speed};

use crate::line_rate::{beyond_line, on_line};
use crate::run::Mode;
use crate::signals::interrupts;

/// Options of commands that can be controlled while they run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Steering {
    /// Accept requests from programs at this socket, one line of JSON each: {"pause":true}, {"rate":"1M"}; see
    /// docs/wires.md
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Print lines even on a terminal, instead of the full-screen view with its keys
    #[arg(long)]
    pub plain: bool,
}

/// A request to a run, by a key or from a program. An empty request only asks for the state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Pause, or resume.
    #[serde(default, deserialize_with = "read_some")]
    pub pause: Option<bool>,
    #[serde(default, deserialize_with = "read_rate")]
    pub rate: Option<NewRate>,
    /// Change options of an emulated link; an empty value removes one.
    #[serde(default)]
    pub link: Option<BTreeMap<String, String>>,
    /// Multiply an option of an emulated link by a factor.
    #[serde(skip)]
    pub link_times: Option<(&'static str, f64)>,
    /// Change the rules of a port. A request with this field has no other.
    #[serde(default)]
    pub rule: Option<RuleChange>,
    /// Reset the counters of the view and of answers.
    #[serde(default)]
    pub reset: bool,
    /// End the run, as Ctrl-C does.
    #[serde(default)]
    pub stop: bool,
    /// The process was suspended for some time, as by the shell with Ctrl-Z.
    #[serde(skip)]
    pub was_suspended: bool,
}

impl Request {
    /// Returns a request that changes a rule only.
    pub fn of_rule(change: RuleChange) -> Request {
        Request { rule: Some(change), ..Request::default() }
    }
}

/// A change of a port's rules. The port has the name by which the run opened it, with or without options.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum RuleChange {
    /// Add a rule.
    Add {
        port: String,
        #[serde(deserialize_with = "read_text")]
        filter: Filter,
        #[serde(deserialize_with = "read_text")]
        action: Action,
    },
    /// Remove the rule with this number.
    Remove { port: String, rule: u32 },
}

impl RuleChange {
    /// Returns the change as in a request.
    pub fn json(&self) -> Value {
        match self {
            RuleChange::Add { port, filter, action } => {
                json!({ "add": { "port": port, "filter": filter.to_string(), "action": action.to_string() } })
            }
            RuleChange::Remove { port, rule } => json!({ "remove": { "port": port, "rule": rule } }),
        }
    }
}

/// A request to a run, and the sender of its answer if a program waits for one.
pub struct PendingRequest {
    pub request: Request,
    pub answer: Option<Sender<Value>>,
}

/// A requested rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NewRate {
    Full,
    Exactly(Rate),
    /// The present rate times this factor.
    #[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only keys request it"))]
    Times(f64),
}

/// Reads a value that must not be null.
fn read_some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Reads a value of the library from its text.
fn read_text<'de, D: Deserializer<'de>, T: FromStr<Err = linerate::Error>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(|error: linerate::Error| D::Error::custom(error.why()))
}

fn read_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NewRate>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "full" => Ok(Some(NewRate::Full)),
        text => text.parse().map(|rate| Some(NewRate::Exactly(rate))).map_err(D::Error::custom),
    }
}

/// The state of a run at a moment, for the full-screen view.
#[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only the full-screen view shows it"))]
pub struct State {
    /// Seconds since the beginning.
    pub seconds: f64,
    /// The run's duration, if it is limited.
    pub of: Option<f64>,
    pub is_paused: bool,
    /// The requested packets per second, of senders that have a rate.
    pub asked: Option<f64>,
    /// The present state of an emulated link.
    pub link: Vec<String>,
}

/// The options of an emulated link that keys raise and lower. Any other is typed.
#[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only keys request it"))]
pub const LINK_KEYS: [&str; 5] = ["delay", "rate", "loss", "jitter", "queue"];

/// The most changes that a summary lists.
const MAX_CHANGES: usize = 1000;
/// The lowest and the highest rate that keys can set below full speed, in packets per second.
const MIN_RATE: f64 = 1.0;
const MAX_RATE: f64 = 1e9;

/// How a run can be controlled, and how it was.
pub struct LiveControl {
    mode: &'static dyn Mode,
    is_paused: Arc<AtomicBool>,
    /// The variable rate of the senders, and the mean length of their frames, without CRC.
    speed: Option<(Arc<Speed>, f64)>,
    /// Why the rate cannot change, if there is no `speed`.
    pub no_rate: String,
    /// The run was paused or its rate was changed, so the initially requested rate does not apply.
    is_controlled: Cell<bool>,
    is_stopped: Cell<bool>,
    changes: RefCell<Vec<Value>>,
    link: Option<Box<dyn VariableLink>>,
}

/// An emulated link whose options change while a run lasts.
pub trait VariableLink {
    /// Changes options, all or none; an empty value removes one. The error says why.
    fn change(&self, changes: &BTreeMap<String, String>) -> Result<(), String>;

    /// Returns the value of an option that is set.
    fn value(&self, option: &str) -> Option<String>;

    /// Returns lines with the present state of each direction, and its drops by cause.
    fn lines(&self) -> Vec<String>;

    /// Returns the present state of each direction, for programs.
    fn json(&self) -> Value;
}

impl LiveControl {
    pub fn new(mode: &'static dyn Mode) -> LiveControl {
        LiveControl {
            mode,
            is_paused: Arc::default(),
            speed: None,
            no_rate: format!("{} has no rate that can change; gen has", mode.name()),
            is_controlled: Cell::default(),
            is_stopped: Cell::default(),
            changes: RefCell::default(),
            link: None,
        }
    }

    /// Returns the flag that the run's threads check: they move nothing while it is set.
    pub fn paused(&self) -> Arc<AtomicBool> {
        self.is_paused.clone()
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Resumes a paused run, so that it can end.
    pub fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Makes the rate of the run's senders variable. It is `packets_per_second` now, or full speed; frames have
    /// `mean_len` bytes.
    pub fn make_rate_variable(&mut self, packets_per_second: Option<f64>, mean_len: f64) -> Arc<Speed> {
        let speed = Arc::new(Speed::new(packets_per_second));
        self.speed = Some((speed.clone(), mean_len));
        speed
    }

    /// Makes the options of the run's emulated link variable.
    pub fn make_link_variable(&mut self, link: impl VariableLink + 'static) {
        self.link = Some(Box::new(link));
    }

    /// Returns the run's emulated link.
    pub fn link(&self) -> Option<&dyn VariableLink> {
        self.link.as_deref()
    }

    /// Returns the presently requested packets per second; `None` at full speed, and for other commands.
    pub fn asked(&self) -> Option<f64> {
        self.speed.as_ref().and_then(|(speed, _)| speed.get())
    }

    /// Returns whether the rate can change.
    pub fn has_rate(&self) -> bool {
        self.speed.is_some()
    }

    /// Returns whether the run was paused or its rate was changed.
    pub fn is_controlled(&self) -> bool {
        self.is_controlled.get()
    }

    /// Returns whether the run was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// Returns whether the run can pause.
    pub fn can_pause(&self) -> bool {
        self.mode.no_pause().is_none()
    }

    /// Returns the first [`MAX_CHANGES`] changes, with the time of each.
    pub fn changes(&self) -> Vec<Value> {
        self.changes.borrow().clone()
    }

    /// Executes a request `seconds` after the beginning, completely or not at all, and returns descriptions of the
    /// changes. The run's `port` sends `measured()` packets per second at present.
    ///
    /// # Errors
    /// Why the request is rejected.
    pub fn apply(
        &self,
        request: &Request,
        seconds: f64,
        port: &Port,
        measured: impl FnOnce() -> f64,
    ) -> Result<Vec<String>, String> {
        let rate = request.rate.map(|rate| self.checked(rate, port, measured)).transpose()?;
        if let (Some(_), Some(why)) = (request.pause, self.mode.no_pause()) {
            return Err(why.to_string());
        }
        let (mut done, mut change) = (Vec::new(), json!({}));
        if request.link.is_some() || request.link_times.is_some() {
            let Some(present) = &self.link else {
                return Err(format!("{} has no link; linerate link has", self.mode.name()));
            };
            let mut link = request.link.clone().unwrap_or_default();
            if let Some((option, factor)) = request.link_times {
                let Some(value) = present.value(option) else {
                    return Err(format!("the link has no {option} to change; e sets one"));
                };
                link.insert(option.to_string(), multiplied(&value, factor));
            }
            present.change(&link)?;
            change["link"] = json!(link);
            done.push(link.iter().map(|(option, value)| format!("{option}={value}")).collect::<Vec<_>>().join(", "));
        }
        if let Some(rate) = rate
            && let Some((speed, _)) = &self.speed
        {
            self.is_controlled.set(self.is_controlled() || speed.get() != rate);
            speed.set(rate);
            change["rate_mpps"] = rate.map_or(json!("full"), |rate| json!(rate / 1e6));
            done.push(rate.map_or("full speed".to_string(), |rate| format!("the rate is {}", Rate::Packets(rate))));
        }
        if let Some(pause) = request.pause.filter(|pause| *pause != self.is_paused()) {
            if let Some((speed, _)) = self.speed.as_ref().filter(|_| !pause) {
                speed.end_pause();
            }
            self.is_paused.store(pause, Ordering::Relaxed);
            self.is_controlled.set(true);
            change["pause"] = pause.into();
            done.push(if pause { "paused" } else { "resumed" }.to_string());
        }
        if request.reset {
            change["reset"] = true.into();
            done.push("counters reset; the summary counts from the start".to_string());
        }
        if request.stop {
            change["stop"] = true.into();
            self.is_stopped.set(true);
            interrupts().end();
        }
        if request.was_suspended {
            self.is_controlled.set(true);
            change["suspended"] = true.into();
            done.push("was suspended; no packets moved".to_string());
        }
        if change != json!({}) {
            self.record(change, seconds);
        }
        Ok(done)
    }

    /// Adds a change to the summary.
    pub fn record(&self, mut change: Value, seconds: f64) {
        if self.changes.borrow().len() < MAX_CHANGES {
            change["seconds"] = json!((seconds * 1000.0).round() / 1000.0);
            self.changes.borrow_mut().push(change);
        }
    }

    /// Returns the packets per second of a requested rate; `None`: full speed.
    fn checked(&self, rate: NewRate, port: &Port, measured: impl FnOnce() -> f64) -> Result<Option<f64>, String> {
        let Some((speed, mean_len)) = &self.speed else {
            return Err(self.no_rate.clone());
        };
        let rate = match (rate, speed.get()) {
            (NewRate::Full, _) => return Ok(None),
            (NewRate::Exactly(rate), _) => rate,
            (NewRate::Times(factor), Some(present)) if present * factor < MIN_RATE && factor < 1.0 => {
                return Err(format!("keys cannot set a rate below {MIN_RATE} packet/s"));
            }
            (NewRate::Times(factor), Some(present)) if present * factor > MAX_RATE && factor > 1.0 => return Ok(None),
            (NewRate::Times(factor), Some(present)) => Rate::Packets(present * factor),
            (NewRate::Times(factor), None) if factor > 1.0 => return Err("already at full speed".to_string()),
            (NewRate::Times(factor), None) => match measured() {
                0.0 => return Err("nothing has been sent yet".to_string()),
                measured => Rate::Packets(measured * factor),
            },
        };
        let rate = on_line(rate, port)?;
        // A rate above the line rate means full speed.
        Ok(beyond_line(rate, *mean_len, port).is_none().then(|| rate.packets_per_second(*mean_len)))
    }
}

/// Multiplies the numbers of an option's value, as of `20ms/5ms`, and keeps their units. Three digits are kept, but
/// whole numbers change by at least one.
fn multiplied(value: &str, factor: f64) -> String {
    let one = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(part.len());
        let (number, unit) = part.split_at(end);
        let Ok(number) = number.parse::<f64>() else { return part.to_string() };
        let is_whole = matches!(unit.trim(), "p" | "packets" | "B" | "bit");
        let new = number * factor;
        let new = match is_whole {
            true if factor > 1.0 => new.round().max(number + 1.0),
            true => new.round().min(number - 1.0).max(1.0),
            false => {
                let digits = 10f64.powf(2.0 - new.abs().max(1e-12).log10().floor());
                (new * digits).round() / digits
            }
        };
        format!("{new}{unit}")
    };
    value.split('/').map(one).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_options_are_multiplied() {
        for (value, factor, wanted) in [
            ("20ms", 1.1, "22ms"),
            ("20ms/5ms", 2.0, "40ms/10ms"),
            ("1%/", 0.5, "0.5%/"),
            ("0.01", 1.1, "0.011"),
            ("1.5Gbit", 1.1, "1.65Gbit"),
            ("5p", 1.1, "6p"),
            ("1p", 0.9, "1p"),
            ("0", 1.1, "0"),
            ("12345kbit", 1.0, "12300kbit"),
        ] {
            assert_eq!(multiplied(value, factor), wanted, "{value} {factor}");
        }
    }

    #[test]
    fn requests_are_objects_with_known_keys() {
        let read = |text: &str| serde_json::from_str::<Request>(text).map_err(|error| error.to_string());
        assert_eq!(read("{}"), Ok(Request::default()));
        let asked = Request { pause: Some(false), rate: Some(NewRate::Full), reset: true, ..Request::default() };
        assert_eq!(read(r#"{"pause":false,"rate":"full","reset":true}"#), Ok(asked));
        let rate = read(r#"{"rate":"10Gbit"}"#).unwrap().rate;
        assert_eq!(rate, Some(NewRate::Exactly(Rate::Bits(10e9))));
        for (text, why) in [
            (r#"{"rat":"1M"}"#, "unknown field `rat`"),
            (r#"{"rate":"fast"}"#, "'fast' is not a rate"),
            (r#"{"rate":5}"#, "expected a string"),
            (r#"{"rule":{"add":{"port":"sim:0","filter":"quic","action":"drop"}}}"#, "there is no 'quic'"),
            (r#"{"rule":{"add":{"port":"sim:0","filter":"arp","action":"eat"}}}"#, "'eat' is not an action"),
            (r#"{"rule":{"add":{"port":"sim:0","filter":"arp"}}}"#, "missing field `action`"),
            (r#"{"rule":{"remove":{"port":"sim:0","rule":0,"now":1}}}"#, "unknown field `now`"),
            (r#"{"pause":1}"#, "expected a boolean"),
            ("pause", "expected"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
