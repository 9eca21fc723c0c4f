//! The measurements of a run, and its summary.

use linerate::Error;
use linerate::port::Statistics;
use linerate::traffic::Changes;
use serde_json::{Map, Value, json};

use crate::moved::MovedPackets;
use crate::processors::Use;
use crate::profile::Parts;
use crate::shortfall::Shortfall;

/// The measurements of a run.
#[derive(Default)]
pub struct Measured {
    /// The run's duration.
    pub seconds: f64,
    /// Packets moved in this time, from which the rate is computed. `moved` includes packets that were in flight at its
    /// end.
    pub in_time: MovedPackets,
    pub moved: MovedPackets,
    pub outcome: Outcome,
    /// Rates and counts that were not reached.
    pub shortfalls: Vec<Shortfall>,
    /// The bottleneck of a run without a requested rate.
    pub bound: Option<String>,
    /// Packets that each port's wire sent and received in the run's time, if it counts them.
    pub wires: Vec<Option<[u64; 2]>>,
    pub used: Use,
    /// A warning that the threads lacked processors, which affects the results.
    pub warning: Option<String>,
    /// All links were up at the end of the run's time.
    pub links_up_at_end: bool,
    /// The command had been asked to end by then.
    pub is_ended: bool,
    /// The port that is gone, the link that is down, or the port that does not accept packets.
    pub stopped_by: Option<String>,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
    /// The error that ended the run.
    pub failure: Option<Error>,
    /// Breaches of the datasheet by drivers of the models.
    pub breaches: u64,
    /// The ports' counters, and whether each port is gone.
    pub statistics: Vec<Statistics>,
    pub is_port_gone: Vec<bool>,
    /// The ports' parts of the summary.
    pub ports: Vec<Value>,
    /// Cycles by part, if a profile was requested.
    pub parts: Option<Parts>,
    /// A thread has panicked.
    pub panicked: bool,
    /// A capture file behind a port could not be read or written completely.
    pub has_cut_capture: bool,
    /// The run was paused, or its rate was changed.
    pub is_controlled: bool,
    /// Requests during the run, with the time of each.
    pub changes: Vec<Value>,
}

impl Measured {
    /// Returns whether nothing was lost or damaged.
    pub fn is_good(&self) -> bool {
        let Outcome { lost, corrupted, .. } = self.outcome;
        lost == 0 && corrupted == 0 && self.breaches == 0 && !self.panicked && !self.has_cut_capture
    }

    /// Returns the rate; `None` if too few packets moved to compute one.
    pub fn mpps(&self) -> Option<f64> {
        self.in_time.per_second().map(|rate| rate / 1e6)
    }

    pub fn cycles_per_packet(&self) -> Option<f64> {
        self.moved.cycles_per_packet()
    }

    /// Returns the summary of a command, with the command's own `part`.
    pub fn summary(&self, command: &str, part: Value) -> Value {
        let Measured { seconds, in_time, moved, ports, breaches, .. } = self;
        let Outcome { lost, corrupted, changed, reordered, duplicated, filtered, undecided, held } = self.outcome;
        let mut summary = json!({
            "command": command, "seconds": seconds, "interrupted": self.interrupted, "ports": ports,
            "packets": moved.packets, "after_end": moved.packets - in_time.packets, "active_seconds": in_time.seconds(),
            "first_batch": in_time.first,
            "lost": lost, "corrupted": corrupted, "changed": in_json(changed), "reordered": reordered, "duplicated": duplicated, "filtered": filtered,
            "undecided": undecided, "held": held,
            "breaches": breaches,
            "mpps": self.mpps(),
            // Three decimals are enough.
            "cycles_per_packet": self.cycles_per_packet().map(|cycles| (cycles * 1000.0).round() / 1000.0),
            "bounded_by": self.bound,
            "unreached": self.shortfalls.iter().map(Shortfall::json).collect::<Vec<_>>(),
            "processors": self.used.json(),
        });
        if let Some(parts) = &self.parts {
            summary["profile"] = parts.json();
        }
        if !self.changes.is_empty() {
            summary["changes"] = self.changes.clone().into();
        }
        if !part.is_null() {
            summary[command] = part;
        }
        json!({ "summary": summary })
    }
}

/// Returns the numbers of frames with changed headers, by field.
fn in_json(changed: Changes) -> Value {
    let fields: Map<String, Value> =
        changed.fields().map(|(field, frames)| (field.name().into(), frames.into())).collect();
    json!({ "frames": changed.frames, "fields": fields, "unknown": changed.unknown })
}

/// The counts of threads and ports that a judge compares with the reports of their wires.
#[derive(Clone, Copy)]
pub struct Sums {
    /// Frames that arrived but that the ports did not deliver.
    pub undelivered: u64,
    /// Packets that the threads have moved, and that the ports have sent or `faulty:` has dropped instead.
    pub moved: u64,
}

/// The counts that decide whether a run was good.
#[derive(Default)]
pub struct Outcome {
    /// Frames that were sent and never arrived, where both are counted.
    pub lost: u64,
    /// Frames whose payload differs from what was sent.
    pub corrupted: u64,
    /// Intact frames with headers that a router, or another device on the way, has changed.
    pub changed: Changes,
    /// Frames that arrived after a later one of their flow.
    pub reordered: u64,
    /// Frames that arrived again.
    pub duplicated: u64,
    /// Frames that a filter dropped.
    pub filtered: u64,
    /// Frames without a field that decides the rules; [`filtered`](Outcome::filtered) includes the dropped part of them.
    pub undecided: u64,
    /// Packets that were received but that no port has accepted.
    pub held: u64,
}
