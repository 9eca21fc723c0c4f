//! A run while it lasts: what keys and programs ask of it.
//!
//! - `speed`: the rate of senders, which may change; `control`: the socket for programs
//! - `screen`: the terminal and its keys; `view`: what is drawn there

mod control;
mod screen;
mod speed;
mod view;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

pub use control::Control;
use linerate::port::Port;
use linerate::traffic::Rate;
pub use screen::Screen;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Value, json};
pub use speed::{Follower, Speed};
pub use view::State;

use crate::line_rate::{beyond_line, on_line};
use crate::run::Mode;
use crate::signals::interrupts;

/// Options of commands that can be steered while they run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Steering {
    /// Take requests from programs at this socket, a line of JSON each: {"pause":true}, {"rate":"1M"}; see docs/wires.md
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Print lines also on a terminal, instead of the full-screen view with its keys
    #[arg(long)]
    pub plain: bool,
}

/// A request to a run, by a key or from a program; without anything it asks for the state only.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Move nothing, or go on.
    #[serde(default, deserialize_with = "read_some")]
    pub pause: Option<bool>,
    #[serde(default, deserialize_with = "read_rate")]
    pub rate: Option<NewRate>,
    /// Count from zero, in the view and in answers.
    #[serde(default)]
    pub reset: bool,
    /// End the run, as Ctrl-C does.
    #[serde(default)]
    pub stop: bool,
    /// The process was stopped for a time, as the shell does with Ctrl-Z.
    #[serde(skip)]
    pub was_suspended: bool,
}

/// A request to a run, and the sender of its answer if a program waits for one.
pub struct Asked {
    pub request: Request,
    pub answer: Option<Sender<Value>>,
}

/// A rate that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NewRate {
    Full,
    Exactly(Rate),
    /// The present one times this.
    Times(f64),
}

/// Reads a value that is there: not null.
fn read_some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

fn read_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NewRate>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "full" => Ok(Some(NewRate::Full)),
        text => text.parse().map(|rate| Some(NewRate::Exactly(rate))).map_err(D::Error::custom),
    }
}

/// The most changes that a summary has.
const MOST: usize = 1000;
/// The lowest rate to which keys go, and the highest one below full speed, in packets per second.
const LEAST: f64 = 1.0;
const HIGHEST: f64 = 1e9;

/// How a run can be steered, and how it was.
pub struct Live {
    mode: &'static dyn Mode,
    is_paused: Arc<AtomicBool>,
    /// Of senders whose rate can change, and their frames' length on average, without CRC.
    speed: Option<(Arc<Speed>, f64)>,
    /// Why the rate cannot change without them.
    pub no_rate: String,
    /// A pause, or another rate: what was asked at the beginning is not reached.
    is_steered: Cell<bool>,
    is_stopped: Cell<bool>,
    changes: RefCell<Vec<Value>>,
}

impl Live {
    pub fn new(mode: &'static dyn Mode) -> Live {
        Live {
            mode,
            is_paused: Arc::default(),
            speed: None,
            no_rate: format!("{} has no rate of its own: gen has", mode.name()),
            is_steered: Cell::default(),
            is_stopped: Cell::default(),
            changes: RefCell::default(),
        }
    }

    /// Returns the flag that the run's threads look at: they move nothing while it is set.
    pub fn paused(&self) -> Arc<AtomicBool> {
        self.is_paused.clone()
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Lets a paused run go on, for its end.
    pub fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Makes the rate of the run's senders one that can change: it is `packets_per_second` now, or full speed, of frames of
    /// `mean_len` bytes.
    pub fn paces(&mut self, packets_per_second: Option<f64>, mean_len: f64) -> Arc<Speed> {
        let speed = Arc::new(Speed::new(packets_per_second));
        self.speed = Some((speed.clone(), mean_len));
        speed
    }

    /// Returns the packets per second that the senders are asked for at present; `None` at full speed, and for other commands.
    pub fn asked(&self) -> Option<f64> {
        self.speed.as_ref().and_then(|(speed, _)| speed.get())
    }

    /// Returns whether the rate can change.
    pub fn has_rate(&self) -> bool {
        self.speed.is_some()
    }

    /// Returns whether a pause or another rate was asked for.
    pub fn is_steered(&self) -> bool {
        self.is_steered.get()
    }

    /// Returns whether the run was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// Returns whether the run can pause.
    pub fn can_pause(&self) -> bool {
        self.mode.no_pause().is_none()
    }

    /// Returns what was asked, with the time of each, the first [`MOST`].
    pub fn changes(&self) -> Vec<Value> {
        self.changes.borrow().clone()
    }

    /// Does what is asked `seconds` after the beginning, or nothing of it, and returns what was done in words. The run's `port`
    /// sends `measured()` packets per second at present.
    ///
    /// # Errors
    /// Why it cannot be done.
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
        if let Some(rate) = rate
            && let Some((speed, _)) = &self.speed
        {
            self.is_steered.set(self.is_steered() || speed.get() != rate);
            speed.set(rate);
            change["rate_mpps"] = rate.map_or(json!("full"), |rate| json!(rate / 1e6));
            done.push(rate.map_or("full speed".to_string(), |rate| format!("the rate is {}", Rate::Packets(rate))));
        }
        if let Some(pause) = request.pause.filter(|pause| *pause != self.is_paused()) {
            if let Some((speed, _)) = self.speed.as_ref().filter(|_| !pause) {
                speed.go_on();
            }
            self.is_paused.store(pause, Ordering::Relaxed);
            self.is_steered.set(true);
            change["pause"] = pause.into();
            done.push(if pause { "paused" } else { "goes on" }.to_string());
        }
        if request.reset {
            change["reset"] = true.into();
            done.push("counters begin at zero here; the summary has all".to_string());
        }
        if request.stop {
            change["stop"] = true.into();
            self.is_stopped.set(true);
            interrupts().end();
        }
        if request.was_suspended {
            self.is_steered.set(true);
            change["suspended"] = true.into();
            done.push("was suspended: nothing moved".to_string());
        }
        if change != json!({}) && self.changes.borrow().len() < MOST {
            change["seconds"] = json!((seconds * 1000.0).round() / 1000.0);
            self.changes.borrow_mut().push(change);
        }
        Ok(done)
    }

    /// Returns the packets per second of a rate that is asked for; `None`: full speed.
    fn checked(&self, rate: NewRate, port: &Port, measured: impl FnOnce() -> f64) -> Result<Option<f64>, String> {
        let Some((speed, mean_len)) = &self.speed else {
            return Err(self.no_rate.clone());
        };
        let rate = match (rate, speed.get()) {
            (NewRate::Full, _) => return Ok(None),
            (NewRate::Exactly(rate), _) => rate,
            (NewRate::Times(factor), Some(present)) if present * factor < LEAST && factor < 1.0 => {
                return Err(format!("the rate has no less than {LEAST} packet/s by keys"));
            }
            (NewRate::Times(factor), Some(present)) if present * factor > HIGHEST && factor > 1.0 => return Ok(None),
            (NewRate::Times(factor), Some(present)) => Rate::Packets(present * factor),
            (NewRate::Times(factor), None) if factor > 1.0 => return Err("it is at full speed".to_string()),
            (NewRate::Times(factor), None) => match measured() {
                0.0 => return Err("nothing is sent yet".to_string()),
                measured => Rate::Packets(measured * factor),
            },
        };
        let rate = on_line(rate, port)?;
        // Beyond the line it is as fast as it goes.
        Ok(beyond_line(rate, *mean_len, port).is_none().then(|| rate.packets_per_second(*mean_len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (r#"{"pause":1}"#, "expected a boolean"),
            ("pause", "expected"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
