//! Requests to a run, from keys and programs.

use linerate::Error;
use serde_json::{Value, json};

use super::Run;
use crate::live::PendingRequest;
use crate::rates::{Counters, Rates};
use crate::terminal::note;

/// The shortest time over which a requested rate is measured.
const SHORTEST: f64 = 1e-3;

impl Run {
    /// Answers a program while the run waits for its links.
    pub(super) fn answer_before_start(&self, PendingRequest { request, answer }: PendingRequest) -> Result<(), Error> {
        let now = self.ports.counters()?;
        let done = match request.rate {
            Some(_) => Err("the run is waiting for its links: the rate can change once it has started".to_string()),
            None => self.live.apply(&request, 0.0, &self.ports.devices[0], || 0.0),
        };
        let state = |_| self.state(0.0, [now.as_slice(); 3], SHORTEST);
        // The client may be gone.
        let _ = answer.map(|answer| answer.send(done.map_or_else(refused, state)));
        Ok(())
    }

    /// Executes a request, prints a note, and answers with the run's state.
    pub(super) fn execute(&self, PendingRequest { request, answer }: PendingRequest) -> Result<(), Error> {
        let (now, mut intervals) = (self.ports.counters()?, self.intervals.borrow_mut());
        let over = intervals.before.0.elapsed().as_secs_f64().max(SHORTEST);
        let sent = || now[0].port.tx_packets.saturating_sub(intervals.before.1[0].port.tx_packets) as f64 / over;
        let seconds = self.clock.elapsed();
        let done = self.live.apply(&request, seconds, &self.ports.devices[0], sent);
        match &done {
            Ok(done) => done.iter().for_each(|done| note(&format!("at {seconds:.1} s: {done}"))),
            // A program gets the reason as its answer.
            Err(why) if answer.is_none() => note(why),
            Err(_) => {}
        }
        if request.reset && done.is_ok() {
            intervals.zero.clone_from(&now);
        }
        let state = |_| self.state(seconds, [&intervals.zero, &intervals.before.1, &now], over);
        let _ = answer.map(|answer| answer.send(done.map_or_else(refused, state)));
        Ok(())
    }

    /// Returns the run's state for programs. The counters are as for [`rates`](super::Ports::rates).
    fn state(&self, at: f64, [zero, before, now]: [&[Counters]; 3], over: f64) -> Value {
        let mut state = json!({
            "seconds": (at * 1000.0).round() / 1000.0,
            "paused": self.live.is_paused(),
            "asked_mpps": self.live.asked().map(|rate| rate / 1e6),
            "ports": self.ports.rates(zero, before, now, over).iter().map(Rates::json).collect::<Vec<_>>(),
        });
        if let Some(link) = self.live.link() {
            state["link"] = link.json();
        }
        state
    }
}

/// Returns the answer to a rejected request.
fn refused(why: String) -> Value {
    json!({ "error": why })
}
