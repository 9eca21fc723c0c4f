//! Packets that are not in a port's buffers but elsewhere in the program's memory (netmap(4), `NS_INDIRECT`). They are
//! fetched into the slot's own buffer, or if they are longer than that, into buffers side by side, of which the slot names
//! the first until it is the program's again.

use std::sync::Arc;

use super::area::Area;
use super::ring::{NS_INDIRECT, Program, Slot};

/// The longest packet of one slot.
const LONGEST: usize = 65_535;

/// What a transmit ring has elsewhere.
#[derive(Default)]
pub struct Fetched {
    away: Vec<Away>,
    /// Runs of buffers that were used before, by their first one.
    spare: Vec<u32>,
}

/// A slot that names a run of buffers.
struct Away {
    slot: usize,
    /// The slot's own.
    buffer: u32,
    run: u32,
}

impl Fetched {
    /// Fetches what the program has released since the last sync: `read` copies from an address of the program's. What
    /// cannot be read, and a long packet without buffers for it, is not sent.
    pub fn fetch(&mut self, program: &Program, area: &Area, mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>) {
        let (ring, memory) = (&program.ring, &program.ring.memory);
        let mut at = program.head();
        for _ in 0..program.released() {
            let slot = ring.slot(at);
            if slot.flags & NS_INDIRECT != 0 {
                let bytes = read(ring.pointer(at), slot.len.into()).unwrap_or_default();
                let is_long = bytes.len() > memory.buffers.size;
                let run = if is_long { self.run(area) } else { Some(slot.buffer) };
                let place = run.and_then(|run| memory.buffer(run));
                let len = if let Some(place) = place {
                    memory.mapping.write(place, &bytes);
                    bytes.len()
                } else {
                    0
                };
                match run {
                    Some(run) if is_long => {
                        self.away.push(Away { slot: at, buffer: slot.buffer, run });
                        ring.set_slot(at, Slot { buffer: run, len: len as u16, flags: slot.flags });
                    }
                    _ => ring.set_slot(at, Slot { len: len as u16, flags: slot.flags & !NS_INDIRECT, ..slot }),
                }
            }
            at = ring.next(at);
        }
    }

    fn run(&mut self, area: &Area) -> Option<u32> {
        self.spare.pop().or_else(|| area.take_run(buffers(area)))
    }

    /// Slots that are done have their own buffers again.
    pub fn put_back(&mut self, program: &Program) {
        let spare = &mut self.spare;
        self.away.retain(|away| {
            let is_done = program.is_done(away.slot);
            if is_done {
                put_back(program, away);
                spare.push(away.run);
            }
            !is_done
        });
    }

    /// The port is closed: nobody reads from its slots any more.
    pub fn end(&mut self, program: &Program, area: &Arc<Area>) {
        self.away.iter().for_each(|away| put_back(program, away));
        let runs = self.away.drain(..).map(|away| away.run).chain(self.spare.drain(..));
        runs.for_each(|run| area.give_run(run, buffers(area)));
    }
}

fn put_back(program: &Program, away: &Away) {
    let slot = program.ring.slot(away.slot);
    program.ring.set_slot(away.slot, Slot { buffer: away.buffer, flags: slot.flags & !NS_INDIRECT, ..slot });
}

/// Buffers of a run.
fn buffers(area: &Area) -> usize {
    LONGEST.div_ceil(area.memory.buffers.size)
}
