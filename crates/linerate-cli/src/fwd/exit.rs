//! The way out: a port that packets are forwarded to, and the packets that wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use linerate::port::{Port, TxQueue};
use linerate::{Batch, Error};

use crate::run::send;
use crate::terminal::note;

/// How long packets wait for a peer that is not there. A process is back sooner; Linux complains of a queue that stands still for
/// five seconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread's transmit queue of a port.
pub struct Exit {
    queues: Queues,
    port: Arc<Name>,
    /// Another port must not wait for this one: what it does not take is dropped.
    drops: bool,
}

enum Queues {
    Own(TxQueue),
    /// All queues of a port whose peer may use fewer, and the thread's number.
    Shared(Arc<[Mutex<TxQueue>]>, usize),
}

/// A port's name, and what was noted of it.
struct Name {
    name: String,
    waits: Once,
    dropped: Once,
}

fn lock(queue: &Mutex<TxQueue>) -> MutexGuard<'_, TxQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exit {
    /// Takes the transmit queues of a port, one for each thread.
    pub fn of(port: &mut Port, queues: u16, drops: bool) -> Result<std::vec::IntoIter<Exit>, Error> {
        let name = Name { name: port.name().to_string(), waits: Once::new(), dropped: Once::new() };
        // A machine may have fewer processors than its port has queues.
        let may_use_fewer = queues > 1 && matches!(port.info().driver, "vhost" | "virtio-user" | "memif");
        let queues = (0..queues).map(|queue| port.tx(queue)).collect::<Result<Vec<_>, Error>>()?;
        let queues: Vec<Queues> = if may_use_fewer {
            let all: Arc<[_]> = queues.into_iter().map(Mutex::new).collect();
            (0..all.len()).map(|own| Queues::Shared(all.clone(), own)).collect()
        } else {
            queues.into_iter().map(Queues::Own).collect()
        };
        let port = Arc::new(name);
        let exits: Vec<Exit> = queues.into_iter().map(|queues| Exit { queues, port: port.clone(), drops }).collect();
        Ok(exits.into_iter())
    }

    /// Sends what fits, by a queue that the peer uses, and returns the number of packets.
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

    /// Returns the count of packets that the queue has not handed on.
    pub fn unsent(&self) -> usize {
        match &self.queues {
            Queues::Own(tx) => tx.unsent(),
            Queues::Shared(all, own) => lock(&all[*own]).unsent(),
        }
    }
}

/// Sends by the thread's own queue, or, if the peer does not use that one, by the first that it uses.
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

/// Packets on their way to a port.
pub struct Waiting {
    pub batch: Batch,
    chains: bool,
    /// Since when the port has taken none of them.
    since: Option<Instant>,
    /// Packets are dropped because the port has no peer.
    is_dropping: bool,
    /// Packets were dropped, and [`has_dropped`](Waiting::has_dropped) has not told yet.
    has_dropped: bool,
    /// Counts the packets that no port has taken.
    held: Arc<AtomicU64>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Waiting {
    pub fn new(batch: Batch, chains: bool, held: Arc<AtomicU64>) -> Waiting {
        Waiting { batch, chains, since: None, is_dropping: false, has_dropped: false, held }
    }

    /// Returns whether packets were dropped since the last call: as after those that were sent, more may be there.
    pub fn has_dropped(&mut self) -> bool {
        std::mem::take(&mut self.has_dropped)
    }

    /// Sends what the port takes, and returns the number of packets. The others wait, so that overload is dropped at the card.
    #[inline]
    pub fn send(&mut self, exit: &mut Exit) -> usize {
        let sent = exit.send(&mut self.batch, self.chains);
        if sent > 0 {
            (self.since, self.is_dropping) = (None, false);
        } else if !self.batch.is_empty() {
            self.wait(exit);
        }
        sent
    }

    /// Drops packets, and counts them, if the port has taken none for a while because it has no peer, or others must not wait for
    /// it.
    #[cold]
    fn wait(&mut self, exit: &Exit) {
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return;
        }
        let Name { name, waits, dropped } = &*exit.port;
        let has_peer = exit.has_peer();
        if has_peer && !exit.drops {
            // One that has just come has its time, too.
            if std::mem::take(&mut self.is_dropping) {
                self.since = Some(Instant::now());
                return;
            }
            return waits.call_once(|| {
                note(&format!("note: {name} has taken nothing for a second: packets wait until it does"));
            });
        }
        self.leave();
        self.batch.clear();
        (self.is_dropping, self.has_dropped) = (true, true);
        dropped.call_once(|| {
            let why = if has_peer { "" } else { ": its other side is not there, or down" };
            note(&format!("note: packets to {name} are dropped, since it has taken nothing for a second{why}"));
        });
    }

    /// Counts the packets that no port takes.
    fn leave(&mut self) {
        self.held.fetch_add(self.batch.packets().count() as u64, Ordering::Relaxed);
    }
}
