//! The queues that programs use. They wrap a port's own queues and copy packets to the port's monitors.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::monitors::{Mirror, Monitored};
use super::{Receive, Transmit};
use crate::batch::Batch;
use crate::error::Result;

/// A receive queue, owned by the thread that polls it. Dropping it stops it.
pub struct RxQueue {
    queue: Box<dyn Receive>,
    mirror: Mirror,
    _trace: QueueTrace,
}

/// A transmit queue, owned by the thread that fills it. Dropping it stops it.
pub struct TxQueue {
    queue: Box<dyn Transmit>,
    mirror: Mirror,
    _trace: QueueTrace,
}

/// Traces a queue's start, and its stop when dropped.
struct QueueTrace {
    port: Arc<Monitored>,
    direction: &'static str,
    queue: u16,
}

impl QueueTrace {
    fn new(port: &Arc<Monitored>, direction: &'static str, queue: u16) -> QueueTrace {
        tracing::debug!(port = port.name, "{direction} queue {queue} started");
        QueueTrace { port: port.clone(), direction, queue }
    }
}

impl Drop for QueueTrace {
    fn drop(&mut self) {
        tracing::debug!(port = self.port.name, "{} queue {} stopped", self.direction, self.queue);
    }
}

impl RxQueue {
    pub(super) fn new(queue: Box<dyn Receive>, port: &Arc<Monitored>, number: u16) -> RxQueue {
        RxQueue { queue, mirror: Mirror::new(port, number), _trace: QueueTrace::new(port, "receive", number) }
    }

    /// Appends received packets to `batch`, up to its capacity; never blocks. Returns the count of slots appended,
    /// which is the number of packets unless a frame is longer than a buffer. Packets are never split between calls.
    #[inline]
    pub fn recv(&mut self, batch: &mut Batch) -> usize {
        let count = self.queue.recv(batch);
        if count > 0 && self.mirror.is_wanted() {
            self.mirror.received(batch, count);
        }
        count
    }

    /// Returns the count of buffers in the queue: those given to the card, and those of an incomplete packet.
    pub fn buffers(&self) -> usize {
        self.queue.buffers()
    }

    /// Arms an interrupt for the next packet. Returns the descriptor that becomes readable then (poll(2), epoll(7));
    /// `None` if the port was opened without interrupts, or does not support them.
    ///
    /// A packet that arrives while the interrupt is being armed may not raise it. Receive once more before you sleep.
    /// [`Waiter`](super::Waiter) does all this.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.queue.arm()
    }

    /// Disarms the interrupt. The queue is then polled.
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }

    /// Stops the queue and returns all its buffers to the pool, as dropping it does. If the card does not answer, it
    /// may still write to the buffers, so they are quarantined until the port is [reset](super::Port::reset).
    ///
    /// # Errors
    /// [`Timeout`](crate::ErrorKind::Timeout), [`Gone`](crate::ErrorKind::Gone).
    pub fn stop(self) -> Result<()> {
        self.queue.stop()
    }
}

impl TxQueue {
    pub(super) fn new(queue: Box<dyn Transmit>, port: &Arc<Monitored>, number: u16) -> TxQueue {
        TxQueue { queue, mirror: Mirror::new(port, number), _trace: QueueTrace::new(port, "transmit", number) }
    }

    /// Sends packets from the front of `batch`, as many as fit; never blocks. Returns the count of slots accepted; the
    /// rest stay in the batch.
    ///
    /// Every call, also with an empty batch, reclaims the buffers that the card has sent.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() || !self.mirror.is_wanted() {
            return self.queue.send(batch);
        }
        let before = self.mirror.sending(batch);
        let count = self.queue.send(batch);
        self.mirror.sent(batch, before);
        count
    }

    /// Sends all packets of `batch`, and waits for room at most `longest`. Returns the count of slots accepted; the rest
    /// stay in the batch. A loop that forwards calls [`send`](TxQueue::send) instead, and receives meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["null:"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// assert_eq!(tx.send_all(&mut batch, Duration::from_secs(1)), 1);
    /// # Ok(()) }
    /// ```
    pub fn send_all(&mut self, batch: &mut Batch, longest: Duration) -> usize {
        let begin = Instant::now();
        let mut accepted = 0;
        loop {
            accepted += self.send(batch);
            if batch.is_empty() && self.unsent() == 0 || begin.elapsed() >= longest {
                return accepted;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the count of buffers in the queue: those that the card has not yet reported as sent.
    pub fn buffers(&self) -> usize {
        self.queue.buffers()
    }

    /// Returns the count of slots accepted by [`send`](TxQueue::send) but not yet handed on. Call `send` again (an
    /// empty batch will do) before sleeping. Always 0 for cards.
    pub fn unsent(&self) -> usize {
        self.queue.unsent()
    }

    /// Returns whether the queue had a peer at the last [`send`](TxQueue::send); without one, `send` accepts no
    /// packets. A queue to another process or virtual machine has no peer while that is not connected or does not use
    /// the queue. For example, a machine with few processors may use fewer queues. All other queues always have a peer.
    pub fn has_peer(&self) -> bool {
        self.queue.has_peer()
    }

    /// As [`RxQueue::stop`]. Packets that the card has not fetched yet are not sent.
    ///
    /// # Errors
    /// As [`RxQueue::stop`].
    pub fn stop(self) -> Result<()> {
        self.queue.stop()
    }
}

/// A queue without monitors.
impl<Q: Receive + 'static> From<Q> for RxQueue {
    fn from(queue: Q) -> RxQueue {
        RxQueue::new(Box::new(queue), &Monitored::unnamed(), 0)
    }
}

/// A queue without monitors.
impl<Q: Transmit + 'static> From<Q> for TxQueue {
    fn from(queue: Q) -> TxQueue {
        TxQueue::new(Box::new(queue), &Monitored::unnamed(), 0)
    }
}
