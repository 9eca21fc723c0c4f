//! Requests to a run, from keys and programs.

use linerate::Error;
use linerate::port::{Port, Rule, RuleId};
use serde_json::{Value, json};

use super::Run;
use crate::live::{PendingRequest, Request, RuleChange};
use crate::rates::{Counters, Rates};
use crate::terminal::note;

/// The shortest time over which a requested rate is measured.
const SHORTEST: f64 = 1e-3;

impl Run {
    /// Answers a program while the run waits for its links.
    pub(super) fn answer_before_start(&self, PendingRequest { request, answer }: PendingRequest) -> Result<(), Error> {
        let now = self.ports.counters()?;
        let waits = |what| Err(format!("the run is waiting for its links: {what} can change once it has started"));
        let done = match request {
            Request { rate: Some(_), .. } => waits("the rate"),
            Request { rule: Some(_), .. } => waits("rules"),
            _ => self.live.apply(&request, 0.0, &self.ports.devices[0], || 0.0),
        };
        let state = |_| self.state(0.0, [now.as_slice(); 3], SHORTEST);
        // The client may be gone.
        let _ = answer.map(|answer| answer.send(done.map_or_else(refused, state)));
        Ok(())
    }

    /// Executes a request, prints a note, and answers with the run's state.
    pub(super) fn execute(&mut self, PendingRequest { request, answer }: PendingRequest) -> Result<(), Error> {
        let rule = request.rule.as_ref().map(|change| match request == Request::of_rule(change.clone()) {
            true => self.change_rule(change),
            false => Err("a change of a rule is a request without other fields".to_string()),
        });
        let (now, mut intervals) = (self.ports.counters()?, self.intervals.borrow_mut());
        let over = intervals.before.0.elapsed().as_secs_f64().max(SHORTEST);
        let sent = || now[0].port.tx_packets.saturating_sub(intervals.before.1[0].port.tx_packets) as f64 / over;
        let seconds = self.clock.elapsed();
        let done = match &rule {
            Some(rule) => rule.clone().map(|(done, _)| vec![done]),
            None => self.live.apply(&request, seconds, &self.ports.devices[0], sent),
        };
        match &done {
            Ok(done) => done.iter().for_each(|done| note(&format!("at {seconds:.1} s: {done}"))),
            // A program gets the reason as its answer.
            Err(why) if answer.is_none() => note(why),
            Err(_) => {}
        }
        if request.reset && done.is_ok() {
            intervals.zero.clone_from(&now);
        }
        if let (Some(change), Ok(_)) = (&request.rule, &done) {
            self.live.record(json!({ "rule": change.json() }), seconds);
        }
        let state = |_| {
            let mut state = self.state(seconds, [&intervals.zero, &intervals.before.1, &now], over);
            if let Some(Ok((_, Some(id)))) = rule {
                state["rule"] = id.0.into();
            }
            state
        };
        let _ = answer.map(|answer| answer.send(done.map_or_else(refused, state)));
        Ok(())
    }

    /// Adds or removes a rule. Returns what was done, and the number of a new rule.
    fn change_rule(&mut self, change: &RuleChange) -> Result<(String, Option<RuleId>), String> {
        let name = match change {
            RuleChange::Add { port, .. } | RuleChange::Remove { port, .. } => port,
        };
        let short = linerate::parse(name).map_err(|error| error.to_string())?.short().to_string();
        let names = self.ports.devices.iter().map(Port::name).collect::<Vec<_>>().join(", ");
        let Some(port) = self.ports.devices.iter_mut().find(|port| port.name() == short) else {
            return Err(format!("the run has no port {short}; it has {names}"));
        };
        let done = match change {
            RuleChange::Add { filter, action, .. } => {
                port.add_rule(filter, *action).map(|id| (format!("{name}: rule {id}: {filter} {action}"), Some(id)))
            }
            RuleChange::Remove { rule, .. } => {
                port.remove_rule(RuleId(*rule)).map(|()| (format!("{name}: rule {rule} removed"), None))
            }
        };
        done.map_err(|error| error.to_string())
    }

    /// Returns the run's state for programs. The counters are as for [`rates`](super::Ports::rates).
    fn state(&self, at: f64, [zero, before, now]: [&[Counters]; 3], over: f64) -> Value {
        let mut state = json!({
            "seconds": (at * 1000.0).round() / 1000.0,
            "paused": self.live.is_paused(),
            "asked_mpps": self.live.asked().map(|rate| rate / 1e6),
            "ports": self.ports.rates(zero, before, now, over).iter().map(Rates::json).collect::<Vec<_>>(),
        });
        for (port, state) in self.ports.devices.iter().zip(state["ports"].as_array_mut().into_iter().flatten()) {
            let rules = port.rules();
            let rule = |rule: &Rule| {
                let Rule { id, filter, action } = rule;
                json!({ "rule": id.0, "filter": filter.to_string(), "action": action.to_string() })
            };
            if !rules.is_empty() {
                state["rules"] = rules.iter().map(rule).collect::<Vec<_>>().into();
            }
        }
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
