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

#[cfg(test)]
mod tests {
    use super::super::area::Offsets;
    use super::super::ring::tests::rings;
    use super::super::ring::{Ring, SLOT, SLOTS};
    use super::*;

    /// Buffers of a run, where each has 2 KiB.
    const RUN: usize = 32;
    const LEFT: usize = 10;

    fn set(ring: &Ring, number: usize, len: u16, address: Option<u64>) {
        let flags = if address.is_some() { NS_INDIRECT } else { 0 };
        ring.set_slot(number, Slot { len, flags, ..ring.slot(number) });
        let pointer = ring.place.at + SLOTS + number * SLOT + 8;
        ring.memory.mapping.write(pointer, &address.unwrap_or_default().to_ne_bytes());
    }

    fn bytes(ring: &Ring, number: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        ring.memory.mapping.read(ring.memory.buffer(ring.slot(number).buffer).unwrap(), &mut bytes);
        bytes
    }

    #[test]
    fn packets_elsewhere_are_fetched_and_runs_come_back() {
        let (area, [ring, _]) = rings(16, RUN + LEFT, Offsets::default());
        let mut program = Program::new(ring.clone());
        program.all_free();
        let (own, mut fetched) = ([0, 1, 2, 3, 4, 5, 6].map(|n| ring.slot(n).buffer), Fetched::default());
        // Short; in its buffer; as long as a buffer; longer; nowhere; long, without a run for it.
        let packets = [(100, Some(1)), (50, None), (2048, Some(2)), (2049, Some(3)), (60, Some(0)), (5000, Some(4))];
        packets.iter().enumerate().for_each(|(n, (len, address))| set(&ring, n, *len, *address));
        // It is not released.
        set(&ring, 6, 70, Some(5));
        program.set(6, 6);
        let mut asked = Vec::new();
        fetched.fetch(&program, &area, |address, len| {
            asked.push((address, len));
            (address != 0).then(|| vec![address as u8; len])
        });
        assert_eq!(asked, [(1, 100), (2, 2048), (3, 2049), (0, 60), (4, 5000)]);
        let slots = [0, 1, 2, 3, 4, 5, 6].map(|n| (ring.slot(n).len, ring.slot(n).flags));
        assert_eq!(slots, [(100, 0), (50, 0), (2048, 0), (2049, NS_INDIRECT), (0, 0), (0, 0), (70, NS_INDIRECT)]);
        assert_eq!(bytes(&ring, 0, 101), [vec![1; 100], vec![0]].concat());
        assert_eq!(bytes(&ring, 2, 2048), [2; 2048]);
        assert_eq!(bytes(&ring, 3, 2049), [3; 2049]);
        assert_eq!([0, 1, 2, 4, 5, 6].map(|n| ring.slot(n).buffer), [0, 1, 2, 4, 5, 6].map(|n| own[n]));
        assert_ne!(ring.slot(3).buffer, own[3]);
        assert_eq!(area.free_buffers(), LEFT, "one run is taken");

        // Done is what is in front of the first slot that is not.
        assert!(program.tell().unwrap());
        let run = ring.slot(3).buffer;
        for (done, buffer) in [(0, run), (3, run), (4, own[3])] {
            program.done(done);
            program.learn();
            fetched.put_back(&program);
            assert_eq!(ring.slot(3).buffer, buffer, "up to {done}");
        }
        assert_eq!((ring.slot(3).len, ring.slot(3).flags), (2049, 0));

        // The same run serves the next one, and all of it is free at the end.
        set(&ring, 6, 4000, Some(6));
        program.set(7, 7);
        fetched.fetch(&program, &area, |address, len| Some(vec![address as u8; len]));
        assert_eq!(ring.slot(6).buffer, run);
        fetched.end(&program, &area);
        assert_eq!((ring.slot(6).buffer, ring.slot(6).flags), (own[6], 0));
        assert_eq!(area.free_buffers(), RUN + LEFT);
        let again = area.take_run(RUN).unwrap();
        assert_eq!((again, area.free_buffers()), (run, LEFT), "they are side by side again");
    }
}
