//! `linerate fwd`: what comes in here goes out there, both ways.

use std::process::ExitCode;

use linerate::port::{RxQueue, TxQueue};
use linerate::traffic::{Report, touch};
use linerate::{Batch, Error};

use crate::Common;
use crate::run::{Outcome, Run, send};

/// One direction between two queues.
struct Way {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    batch: Batch,
    chains: bool,
}

impl Way {
    /// Receives, touches a byte of each packet, and sends; tells how many packets were sent. What does
    /// not fit stays in the batch, so that what comes too fast waits, and at last is dropped, at the
    /// card and not here.
    fn turn(&mut self) -> usize {
        if self.batch.is_empty() {
            self.rx.recv(&mut self.batch);
            if self.chains {
                self.batch.packets().for_each(|mut packet| touch(packet.first_mut()));
            } else {
                (&mut self.batch).into_iter().for_each(touch);
            }
        }
        send(&mut *self.tx, &mut self.batch, self.chains)
    }
}

/// Runs until its end.
pub fn run(a: &str, b: &str, count: Option<u64>, common: &Common) -> Result<ExitCode, Error> {
    let mut run = Run::open("fwd", &[a, b], common)?;
    for queue in 0..run.queues() {
        let chains = run.devices().iter().any(|device| device.info().max_frame > device.pool().region().room());
        let [a, b] = run.devices() else { unreachable!("two ports were opened") };
        let batch = || Batch::with_capacity(common.batch.into());
        let mut forth = Way { rx: a.rx(queue)?, tx: b.tx(queue)?, batch: batch(), chains };
        let mut back = Way { rx: b.rx(queue)?, tx: a.tx(queue)?, batch: batch(), chains };
        let mut waiter = run.waiter();
        run.spawn(move || {
            let packets = forth.turn() + back.turn();
            // What could not be sent yet is tried again, not slept over.
            let waiting = [&forth, &back].map(|way| way.batch.len() + way.tx.unsent()).iter().sum::<usize>();
            waiter.turn(packets + waiting, &mut [&mut *forth.rx, &mut *back.rx]);
            packets
        });
    }
    run.finish(|packets| count.is_some_and(|count| packets >= count), judge)
}

/// What the tester at one port sent must have arrived, touched, at the tester of the other.
fn judge(reports: &[Option<Report>]) -> Outcome {
    let mut outcome = Outcome::default();
    let [a, b] = reports else { return outcome };
    for (sender, receiver) in [(a, b), (b, a)] {
        let Some(receiver) = receiver else { continue };
        outcome.corrupted += receiver.corrupted + receiver.untouched;
        outcome.reordered += receiver.reordered;
        outcome.lost += match sender {
            Some(sender) => sender.sent.saturating_sub(receiver.received),
            None => receiver.lost,
        };
    }
    outcome
}
