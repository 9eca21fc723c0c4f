//! `linerate fwd`: what comes in here goes out there, both ways; `linerate filter`: not all of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate::filter::Filter;
use linerate::port::{RxQueue, TxQueue};
use linerate::traffic::{Report, touch};
use linerate::{Batch, Error};

use crate::Common;
use crate::run::{Outcome, Run, send};

/// Which packets are forwarded.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Rules {
    /// Forward only these packets, for example udp:4321 or tcp:80+from:10.0.0.0/8,icmp
    #[arg(long)]
    pub only: Option<Filter>,
    /// Forward all but these packets
    #[arg(long)]
    pub drop: Option<Filter>,
}

impl Rules {
    fn keep(&self, frame: &[u8]) -> bool {
        self.only.as_ref().is_none_or(|filter| filter.matches(frame))
            && self.drop.as_ref().is_none_or(|filter| !filter.matches(frame))
    }

    /// Takes what is not kept out of a batch, and counts those packets; tells how many it were.
    fn apply(&self, batch: &mut Batch, filtered: &AtomicU64) -> usize {
        if self.only.is_none() && self.drop.is_none() {
            return 0;
        }
        let mut dropped = 0;
        batch.retain(|frame| {
            let keep = self.keep(frame);
            dropped += usize::from(!keep);
            keep
        });
        if dropped > 0 {
            filtered.fetch_add(dropped as u64, Ordering::Relaxed);
        }
        dropped
    }
}

/// One direction between two queues.
struct Way {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    batch: Batch,
    chains: bool,
    rules: Rules,
    filtered: Arc<AtomicU64>,
}

impl Way {
    /// Receives, touches a byte of each packet, and sends; tells how many packets were sent. What does
    /// not fit stays in the batch, so that what comes too fast waits, and at last is dropped, at the
    /// card and not here.
    fn turn(&mut self) -> usize {
        if self.batch.is_empty() {
            self.rx.recv(&mut self.batch);
            self.rules.apply(&mut self.batch, &self.filtered);
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
pub fn run(a: &str, b: &str, count: Option<u64>, rules: &Rules, common: &Common) -> Result<ExitCode, Error> {
    let mut run = Run::open("fwd", &[a, b], common)?;
    let filtered = Arc::<AtomicU64>::default();
    for queue in 0..run.queues() {
        let chains = run.devices().iter().any(|device| device.info().max_frame > device.pool().region().room());
        let [a, b] = run.devices() else { unreachable!("two ports were opened") };
        let batch = || Batch::with_capacity(common.batch.into());
        let way = |rx, tx| Way { rx, tx, batch: batch(), chains, rules: rules.clone(), filtered: filtered.clone() };
        let (mut forth, mut back) = (way(a.rx(queue)?, b.tx(queue)?), way(b.rx(queue)?, a.tx(queue)?));
        let mut waiter = run.waiter();
        run.spawn(move || {
            let packets = forth.turn() + back.turn();
            // What could not be sent yet is tried again, not slept over.
            let waiting = || [&forth, &back].map(|way| way.batch.len() + way.tx.unsent()).iter().sum::<usize>();
            let waiting = if packets == 0 { waiting() } else { 0 };
            waiter.turn(packets + waiting, &mut [&mut *forth.rx, &mut *back.rx]);
            packets
        });
    }
    run.finish(
        |packets| count.is_some_and(|count| packets >= count),
        |reports| {
            let (outcome, filtered) = (judge(reports), filtered.load(Ordering::Relaxed));
            Outcome { lost: outcome.lost.saturating_sub(filtered), filtered, ..outcome }
        },
    )
}

/// `linerate filter` with one port: receives, and tells what the rules say of it. Nothing is sent anywhere.
pub fn discard(port: &str, count: Option<u64>, rules: &Rules, common: &Common) -> Result<ExitCode, Error> {
    let mut run = Run::open("filter", &[port], common)?;
    let filtered = Arc::<AtomicU64>::default();
    for queue in 0..run.queues() {
        let mut rx = run.devices()[0].rx(queue)?;
        let mut batch = Batch::with_capacity(common.batch.into());
        let (rules, filtered, mut waiter) = (rules.clone(), filtered.clone(), run.waiter());
        run.spawn(move || {
            rx.recv(&mut batch);
            let dropped = rules.apply(&mut batch, &filtered);
            let packets = dropped + batch.packets().count();
            batch.clear();
            waiter.turn(packets, &mut [&mut *rx]);
            packets
        });
    }
    run.finish(
        |packets| count.is_some_and(|count| packets >= count),
        |_| Outcome { filtered: filtered.load(Ordering::Relaxed), ..Outcome::default() },
    )
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
