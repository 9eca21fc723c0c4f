//! The shortfalls of a run, and its bottleneck.

use std::sync::atomic::Ordering;

use super::{Measured, Run};
use crate::notes::rejecting_port;
use crate::shortfall::{MIN_PACKETS, MIN_SECONDS, Shortfall};
use crate::wire::wire_rate;

/// The bottleneck of a sender that waits for its port.
const NO_ROOM: &str = "the port, which has no room";

/// A run and its measurements.
pub struct Bounds<'a> {
    pub run: &'a Run,
    pub measured: &'a Measured,
}

impl Bounds<'_> {
    /// Returns the port that is gone, the link that is down, or the port that does not accept packets.
    pub fn stopped_by(&self) -> Option<String> {
        let ports = self.run.ports.devices.iter().zip(&self.measured.statistics);
        let refused = || ports.into_iter().find_map(|(device, statistics)| rejecting_port(device, statistics));
        self.gone_end().or_else(|| self.link()).or_else(refused)
    }

    /// Returns the bottleneck of a run without a requested rate.
    pub fn fastest(&self) -> Option<String> {
        let Measured { seconds, in_time, moved, used, .. } = self.measured;
        let is_paced = self.run.live.is_controlled()
            || self.run.asked.is_some()
            || self.run.ports.names.iter().any(|name| wire_rate(name).is_some());
        let fastest = || {
            let no_room = || (self.held_back() > 0.0).then(|| NO_ROOM.to_string());
            // No bottleneck if the source ended early.
            let is_continuous = in_time.seconds() >= 0.9 * seconds;
            used.bound_of_fastest(self.busy()).filter(|_| is_continuous).or_else(no_room)
        };
        let is_judged = !is_paced && *seconds >= MIN_SECONDS && moved.packets > 0;
        self.gone_end().or_else(|| fastest().filter(|_| is_judged))
    }

    /// Returns the shortfalls of the count, of the threads' rate, and of the rates of the models' wires.
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        self.count().into_iter().chain(self.rate()).chain(self.wires()).collect()
    }

    fn count(&self) -> Option<Shortfall> {
        let asked = self.run.clock.count.filter(|_| !self.is_counted() && self.measured.failure.is_none())?;
        let bound = self.stopped_by().or_else(|| self.ended_by());
        Some(Shortfall::Count { asked, moved: self.measured.moved.packets, bound })
    }

    fn rate(&self) -> Option<Shortfall> {
        let Measured { seconds, in_time, moved, used, .. } = self.measured;
        let active = if self.is_counted() { moved.seconds() } else { *seconds };
        let is_long = active >= MIN_SECONDS || moved.packets >= MIN_PACKETS;
        let asked = self.run.asked.filter(|_| !self.run.live.is_controlled())?;
        if (self.is_counted() || self.measured.is_ended) && !is_long {
            return None;
        }
        let held_back = self.held_back();
        let bound = self.stopped_by().or_else(|| match used.bound() {
            _ if held_back == 0.0 => Some(used.bound_of_sender(self.busy())),
            // The port had no room for a significant part of the time.
            Some(other) if held_back > 0.1 * seconds * self.threads() => Some(format!("{NO_ROOM}, and {other}")),
            other => other.or(Some(NO_ROOM.to_string())),
        });
        let sent = if self.is_counted() { moved.after_first() } else { in_time.packets };
        Shortfall::of("the rate", asked, sent, active, bound)
    }

    fn wires(&self) -> Vec<Shortfall> {
        let Measured { seconds, used, .. } = self.measured;
        let asked = self.run.ports.asked_of_wires(true);
        let all = self.run.ports.names.iter().zip(asked).zip(&self.measured.wires);
        let all = all.filter_map(|((name, asked), sent)| Some((name, asked?, (*sent)?[0])));
        let judged = all.filter(|&(_, _, sent)| *seconds >= MIN_SECONDS || sent >= MIN_PACKETS);
        judged
            .filter_map(|(name, asked, sent)| {
                Shortfall::of(&format!("{}'s wire", name.short()), asked, sent, *seconds, used.bound())
            })
            .collect()
    }

    /// Returns whether the requested count was moved. The sender then ends before the run does, and its peer's later
    /// state does not matter.
    fn is_counted(&self) -> bool {
        self.run.clock.is_counted(self.measured.moved.packets)
    }

    fn threads(&self) -> f64 {
        self.run.threads.works.len().max(1) as f64
    }

    /// Returns the fraction of the time in which the threads moved packets.
    fn busy(&self) -> f64 {
        self.measured.in_time.busy_seconds() / (self.measured.seconds * self.threads())
    }

    /// Returns the seconds for which the threads found a port without room, summed over all threads.
    fn held_back(&self) -> f64 {
        self.run.threads.held_back.load(Ordering::Relaxed) as f64 / 1e9
    }

    fn gone_end(&self) -> Option<String> {
        let gone = self.measured.is_port_gone.iter().position(|&gone| gone)?;
        Some(format!("the end of {}", self.run.ports.devices[gone].name()))
    }

    fn link(&self) -> Option<String> {
        match self.is_counted() || self.measured.links_up_at_end {
            true => self.run.ports.was_down.get().then(|| "the link, which was down for some time".to_string()),
            false => Some("the link, which is down".to_string()),
        }
    }

    /// Returns what ended the run early, apart from its ports.
    fn ended_by(&self) -> Option<String> {
        let why = match (self.measured.is_ended, self.measured.interrupted) {
            (true, true) => "an interrupt",
            (true, false) if self.run.live.is_stopped() => "a request to stop",
            (true, false) => "standard output, which cannot be written any more",
            (false, _) if self.run.clock.seconds.is_some_and(|most| self.measured.seconds >= most.as_secs_f64()) => {
                "the end of --seconds"
            }
            (false, _) => return None,
        };
        Some(why.to_string())
    }
}
