//! The transmit side of forwarding: a port's transmit queues, and the packets that wait for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use linerate::port::{Port, PortClass, TxQueue};
use linerate::{Batch, Error};

use crate::run::send;
use crate::terminal::note;

/// How long packets wait for an absent peer. A restarted process is back sooner; Linux complains about a transmit queue
/// that is stuck for five seconds.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How long packets wait before a thread that may sleep retries less often.
const STALLED_AFTER: Duration = Duration::from_millis(1);

/// A port may delay packets for other ports for 1/`SHARE` of the time.
const SHARE: u32 = 10;

/// A thread's transmit queue of a port.
pub struct Output {
    queues: Queues,
    port: Arc<Name>,
    /// Packets that the port does not accept are dropped, as other ports must not wait for it.
    drops: bool,
}

enum Queues {
    Own(TxQueue),
    /// All queues of a port whose peer may use fewer, and the number of the thread's own one.
    Shared(Arc<[Mutex<TxQueue>]>, usize),
}

/// A port's name, and which notes about it were printed.
struct Name {
    name: String,
    wait_noted: Once,
    drop_noted: Once,
}

fn lock(queue: &Mutex<TxQueue>) -> MutexGuard<'_, TxQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    /// Claims the transmit queues of a port, one for each thread.
    pub fn of(port: &mut Port, queues: u16, drops: bool) -> Result<std::vec::IntoIter<Output>, Error> {
        let name = Name { name: port.name().to_string(), wait_noted: Once::new(), drop_noted: Once::new() };
        // A virtual machine may have fewer processors than its port has queues, and use only some of them.
        let may_use_fewer = queues > 1 && port.info().class == PortClass::Peer;
        let queues = (0..queues).map(|queue| port.tx(queue)).collect::<Result<Vec<_>, Error>>()?;
        let queues: Vec<Queues> = if may_use_fewer {
            let all: Arc<[_]> = queues.into_iter().map(Mutex::new).collect();
            (0..all.len()).map(|own| Queues::Shared(all.clone(), own)).collect()
        } else {
            queues.into_iter().map(Queues::Own).collect()
        };
        let port = Arc::new(name);
        let outputs: Vec<Output> =
            queues.into_iter().map(|queues| Output { queues, port: port.clone(), drops }).collect();
        Ok(outputs.into_iter())
    }

    /// Sends what fits on a queue that the peer uses, and returns the number of packets.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch, chains: bool) -> usize {
        match &mut self.queues {
            Queues::Own(tx) => send(tx, batch, chains),
            Queues::Shared(all, own) => send_by_any(all, *own, batch, chains),
        }
    }

    fn has_peer(&self) -> bool {
        match &self.queues {
            Queues::Own(tx) => tx.has_peer(),
            Queues::Shared(all, _) => all.iter().any(|queue| lock(queue).has_peer()),
        }
    }

    /// Returns the number of accepted packets that the queue has not handed on yet.
    pub fn unsent(&self) -> usize {
        match &self.queues {
            Queues::Own(tx) => tx.unsent(),
            Queues::Shared(all, own) => lock(&all[*own]).unsent(),
        }
    }
}

/// Sends on the thread's own queue or, if the peer does not use it, on the first one that it uses.
fn send_by_any(all: &[Mutex<TxQueue>], own: usize, batch: &mut Batch, chains: bool) -> usize {
    let mut sent = 0;
    for queue in std::iter::once(own).chain((0..all.len()).filter(|&other| other != own)) {
        let mut tx = lock(&all[queue]);
        sent += send(&mut tx, batch, chains);
        if batch.is_empty() || tx.has_peer() {
            break;
        }
    }
    sent
}

/// How long packets may still wait for a port: at most [`MAX_WAIT`]. It recovers by a tenth of the time without a wait.
struct WaitBudget {
    left: Duration,
    /// The end of the last wait.
    last: Instant,
}

impl WaitBudget {
    /// Begins a wait.
    fn begin(&mut self, now: Instant) {
        self.left = MAX_WAIT.min(self.left + now.saturating_duration_since(self.last) / SHARE);
    }

    /// Ends a wait that began at `since`.
    fn end(&mut self, since: Instant, now: Instant) {
        self.left = self.left.saturating_sub(now.saturating_duration_since(since));
        self.last = now;
    }
}

/// Packets that wait to be sent to a port.
pub struct Pending {
    pub batch: Batch,
    chains: bool,
    /// When the port stopped accepting packets.
    stalled_since: Option<Instant>,
    /// How long they may still wait.
    budget: WaitBudget,
    /// Packets that the port does not accept are dropped.
    is_dropping: bool,
    /// Packets were dropped since the last call of [`reasons_to_stay_awake`](Pending::reasons_to_stay_awake).
    has_dropped: bool,
    /// Counts the packets that no port has accepted.
    held: Arc<AtomicU64>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.count_held();
    }
}

impl Pending {
    pub fn new(batch: Batch, chains: bool, held: Arc<AtomicU64>) -> Pending {
        let budget = WaitBudget { left: MAX_WAIT, last: Instant::now() };
        Pending { batch, chains, stalled_since: None, budget, is_dropping: false, has_dropped: false, held }
    }

    /// Returns the number of reasons not to sleep: the packets that wait, plus one if some were dropped since the last
    /// call, as more may follow them.
    pub fn reasons_to_stay_awake(&mut self) -> usize {
        self.batch.len() + usize::from(std::mem::take(&mut self.has_dropped))
    }

    /// Returns whether packets have waited so long that a thread need not retry at each turn.
    pub fn is_stalled(&self) -> bool {
        !self.batch.is_empty() && self.stalled_since.is_some_and(|since| since.elapsed() >= STALLED_AFTER)
    }

    /// Sends what the port accepts, and returns the number of packets. The others wait, so that the receiving card
    /// drops the overload.
    #[inline]
    pub fn send(&mut self, output: &mut Output) -> usize {
        let sent = output.send(&mut self.batch, self.chains);
        if sent > 0 {
            if self.stalled_since.is_some() {
                self.end_wait(output.drops);
            }
        } else if !self.batch.is_empty() {
            self.wait(output);
        }
        sent
    }

    /// Ends the wait: the port has accepted packets. A port that makes others wait repeatedly gets less time for each
    /// wait.
    #[cold]
    fn end_wait(&mut self, others_wait: bool) {
        self.is_dropping = false;
        if let Some(since) = self.stalled_since.take().filter(|_| others_wait) {
            self.budget.end(since, Instant::now());
        }
    }

    /// Drops and counts the packets if the port has not accepted any for too long, and has no peer or must not delay
    /// other ports.
    #[cold]
    fn wait(&mut self, output: &Output) {
        let now = Instant::now();
        let since = *self.stalled_since.get_or_insert_with(|| {
            self.budget.begin(now);
            now
        });
        if now - since < self.budget.left {
            return;
        }
        let Name { name, wait_noted, drop_noted } = &*output.port;
        let has_peer = output.has_peer();
        if has_peer && !output.drops {
            // A peer that has just connected gets its full time, too.
            if std::mem::take(&mut self.is_dropping) {
                self.stalled_since = Some(Instant::now());
                return;
            }
            return wait_noted.call_once(|| {
                note(&format!("note: {name} has not accepted packets for 1 s; packets are queued until it does"));
            });
        }
        self.count_held();
        self.batch.clear();
        (self.is_dropping, self.has_dropped) = (true, true);
        drop_noted.call_once(|| {
            let why = match has_peer {
                true => "it accepts them too slowly, which would delay packets for other ports",
                false => "it has not accepted any for 1 s; its peer is absent or down",
            };
            note(&format!("note: dropping packets to {name}: {why}"));
        });
    }

    /// Counts the waiting packets as not accepted by any port.
    fn count_held(&mut self) {
        self.held.fetch_add(self.batch.packets().count() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that accepts a few packets whenever its time is nearly over gets less and less time.
    #[test]
    fn a_slow_port_lets_others_wait_for_a_tenth_of_the_time() {
        let begin = Instant::now();
        let (mut now, mut waited) = (begin, Duration::ZERO);
        let mut budget = WaitBudget { left: MAX_WAIT, last: begin };
        let (stands, goes) = (Duration::from_millis(850), Duration::from_millis(3));
        for _ in 0..100 {
            budget.begin(now);
            let wait = stands.min(budget.left);
            waited += wait;
            now += stands;
            budget.end(now - stands, now);
            now += goes;
        }
        let most = MAX_WAIT + (now - begin) / SHARE;
        assert!(waited > MAX_WAIT && waited <= most, "{waited:?} of {:?}", now - begin);
        // Once it keeps up again, it gets its full time back.
        budget.begin(now + SHARE * MAX_WAIT);
        assert_eq!(budget.left, MAX_WAIT);
    }
}
