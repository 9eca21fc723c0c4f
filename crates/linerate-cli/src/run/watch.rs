//! A run until its end: rates, links, and what keys and programs ask.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use linerate::Error;
use linerate::port::Statistics;
use serde_json::{Value, json};

use super::{Run, SHOWN, TICK};
use crate::line_rate::is_up;
use crate::live::{Event, Request, State};
use crate::moved::Moved;
use crate::processors::Snapshot;
use crate::rates::{Counters, Rates, Tick};
use crate::show::Show;
use crate::signals::interrupts;
use crate::terminal::note;

/// The shortest time over which a rate that is asked for is measured.
const SHORTEST: f64 = 1e-3;

/// The counters of a run at moments that rates are computed from.
struct Seen {
    start: Instant,
    /// Packets and drops are those since then.
    zero: Vec<Counters>,
    /// At the beginning of the last interval but one.
    before: (Instant, Vec<Counters>),
    /// When rates were last shown.
    last: (Instant, Vec<Counters>, Moved),
}

impl Run {
    /// Shows the rates every second, until the end. The ports' counters were `first` before it, and their links `links`.
    pub(super) fn watch(
        &self,
        start: Instant,
        first: Vec<Statistics>,
        mut links: Vec<bool>,
        look: impl Fn(u64, f64),
        show: &mut Option<&mut Show>,
    ) -> Result<(), Error> {
        let interrupts = interrupts();
        // A time beyond the clock's range never ends.
        let end = self.options.seconds.and_then(|seconds| start.checked_add(seconds));
        let first: Vec<Counters> = first.into_iter().map(|port| Counters { port, ..Counters::default() }).collect();
        let zero = vec![Counters::default(); first.len()];
        let mut seen = Seen { start, zero, before: (start, first.clone()), last: (start, first, Moved::default()) };
        let mut next = start + Duration::from_secs(1);
        let mut ever_up = links.clone();
        // The packets moved when all ports were exhausted: what a thread still holds moves after that.
        let mut at_end = None;
        let set_metrics = |moved: &Moved| self.metrics.iter().for_each(|metrics| metrics.set(self.counters(moved)));
        set_metrics(&Moved::default());
        loop {
            if let Some(screen) = show.as_mut().and_then(|show| show.screen()) {
                screen.draw(State {
                    seconds: start.elapsed().as_secs_f64(),
                    of: self.options.seconds.map(|seconds| seconds.as_secs_f64()),
                    is_paused: self.live.is_paused(),
                    asked: self.live.asked(),
                });
            }
            let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            let interrupted = interrupts.wait(TICK.min(left).min(next.saturating_duration_since(Instant::now())));
            self.hear(&mut seen, show)?;
            let (now, moved) = (Instant::now(), self.moved());
            look(moved.packets, (now - start).as_secs_f64());
            set_metrics(&moved);
            let has_failed = self.has_failed();
            let is_exhausted = self.is_exhausted() && at_end.replace(moved.packets) == Some(moved.packets);
            if is_exhausted {
                note("note: all ports are at their end: nothing more will be received");
            }
            let is_over = interrupted
                || end.is_some_and(|end| now >= end)
                || self.count.is_some_and(|count| moved.packets >= count)
                || self.threads.iter().any(|(_, thread)| thread.is_finished())
                || self.is_spent.load(Ordering::Relaxed)
                || is_exhausted
                || has_failed;
            if let Some(show) = show
                && (now >= next || is_over && now - seen.last.0 >= SHOWN)
            {
                let counters = self.read()?;
                let rates = self.rates(&seen.zero, &seen.last.1, &counters, (now - seen.last.0).as_secs_f64());
                show.tick(Tick {
                    seconds: (now - start).as_secs_f64(),
                    ports: rates,
                    held: self.held.load(Ordering::Relaxed),
                    cycles_per_packet: moved.cycles_since(&seen.last.2),
                    parts: self.profile.as_ref().map(|profile| profile.parts()),
                    processors: Snapshot::take().processors(),
                });
                *self.last.borrow_mut() = counters.iter().map(|counters| counters.port).collect();
                let (time, last, _) = std::mem::replace(&mut seen.last, (now, counters, moved));
                seen.before = (time, last);
            }
            for (device, (was_up, was_ever_up)) in self.devices.iter().zip(links.iter_mut().zip(&mut ever_up)) {
                let is_up = is_up(device);
                // After a count was moved, the peer may end.
                let is_counted = self.count.is_some_and(|count| moved.packets >= count);
                if is_up != std::mem::replace(was_up, is_up) && !is_counted {
                    let how = match is_up {
                        true if *was_ever_up => "is up again",
                        true => "is up",
                        false => "is down: nothing comes and goes here",
                    };
                    *was_ever_up |= is_up;
                    note(&format!("note: {}: the link {how}", device.name()));
                    self.was_down.set(true);
                }
            }
            while next <= now {
                next += Duration::from_secs(1);
            }
            if is_over {
                return Ok(());
            }
        }
    }

    /// Does what keys and programs have asked.
    fn hear(&self, seen: &mut Seen, show: &mut Option<&mut Show>) -> Result<(), Error> {
        while let Some(event) = self.live.next_event() {
            match event {
                Event::Resized => {}
                Event::Asked(request, answer) => self.grant(&request, Some(answer), seen)?,
                Event::Key(key) => {
                    let screen = show.as_mut().and_then(|show| show.screen());
                    if let Some(request) = screen.and_then(|screen| screen.key(key, self.live.is_paused())) {
                        self.grant(&request, None, seen)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Answers programs while the run waits for its links.
    pub(super) fn hear_before(&self) -> Result<(), Error> {
        while let Some(event) = self.live.next_event() {
            let Event::Asked(request, answer) = event else { continue };
            let now = self.read()?;
            let done = match request.rate {
                Some(_) => Err("the run waits for its links: its rate can change when it has begun".to_string()),
                None => self.live.apply(&request, 0.0, &self.devices[0], || 0.0),
            };
            let _ = answer.send(done.map_or_else(refused, |_| self.state(0.0, [now.as_slice(); 3], SHORTEST)));
        }
        Ok(())
    }

    /// Does what is asked, notes it, and answers with the run's state.
    fn grant(&self, request: &Request, answer: Option<Sender<Value>>, seen: &mut Seen) -> Result<(), Error> {
        let now = self.read()?;
        let over = seen.before.0.elapsed().as_secs_f64().max(SHORTEST);
        let sent = || (now[0].port.tx_packets.saturating_sub(seen.before.1[0].port.tx_packets)) as f64 / over;
        let seconds = seen.start.elapsed().as_secs_f64();
        let done = self.live.apply(request, seconds, &self.devices[0], sent);
        match &done {
            Ok(done) => done.iter().for_each(|done| note(&format!("at {seconds:.1} s: {done}"))),
            // A program has it as its answer.
            Err(why) if answer.is_none() => note(why),
            Err(_) => {}
        }
        if request.reset && done.is_ok() {
            seen.zero.clone_from(&now);
        }
        let Some(answer) = answer else { return Ok(()) };
        let state = |_| self.state(seconds, [&seen.zero, &seen.before.1, &now], over);
        // A client that is gone needs no answer.
        let _ = answer.send(done.map_or_else(refused, state));
        Ok(())
    }

    /// Returns the run's state for programs; the counters are those of [`rates`](Run::rates).
    fn state(&self, at: f64, [zero, before, now]: [&[Counters]; 3], over: f64) -> Value {
        json!({
            "seconds": (at * 1000.0).round() / 1000.0,
            "paused": self.live.is_paused(),
            "asked_mpps": self.live.asked().map(|rate| rate / 1e6),
            "ports": self.rates(zero, before, now, over).iter().map(Rates::json).collect::<Vec<_>>(),
        })
    }

    /// Reads the counters of all ports.
    fn read(&self) -> Result<Vec<Counters>, Error> {
        let ports = self.statistics()?.into_iter().zip(&self.devices);
        Ok(ports.map(|(port, device)| Counters { port, queues: device.queue_statistics() }).collect())
    }

    /// Returns the ports' rates from `before` to `now`.
    fn rates(&self, zero: &[Counters], before: &[Counters], now: &[Counters], seconds: f64) -> Vec<Rates> {
        let counters = zero.iter().zip(before).zip(now);
        let ports = self.devices.iter().zip(counters);
        ports
            .map(|(device, ((zero, before), now))| {
                Rates::new(device.name(), is_up(device), [zero, before, now], seconds)
            })
            .collect()
    }
}

/// The answer to a request that cannot be done.
fn refused(why: String) -> Value {
    json!({ "error": why })
}
