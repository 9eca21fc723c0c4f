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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:recv?count=100"])?;
    /// # let (mut rx, mut batch) = (port.rx(0)?, linerate::Batch::new());
    /// let mut received = 0;
    /// while received < 100 {
    ///     received += rx.recv(&mut batch); // 0 if no packet has arrived
    ///     batch.clear();
    /// }
    /// assert_eq!(port.queue_statistics().rx_slots, [100]);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn recv(&mut self, batch: &mut Batch) -> usize {
        let count = self.queue.recv(batch);
        if count > 0 && self.mirror.is_wanted() {
            self.mirror.received(batch, count);
        }
        count
    }

    /// Returns the count of buffers in the queue: those given to the card, and those of an incomplete packet.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:rx-buffers?wire=none&ring=64"])?;
    /// let rx = port.rx(0)?;
    /// assert_eq!(rx.buffers(), 64); // in the card's ring
    /// # Ok(()) }
    /// ```
    pub fn buffers(&self) -> usize {
        self.queue.buffers()
    }

    /// Arms an interrupt for the next packet. Returns the descriptor that becomes readable then (poll(2), epoll(7));
    /// `None` if the port was opened without interrupts, or does not support them.
    ///
    /// A packet that arrives while the interrupt is being armed may not raise it. Receive once more before you sleep.
    /// [`Waiter`](super::Waiter) does all this.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use std::time::Duration;
    /// # use linerate::{Batch, port::Options};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// # let [mut port] = Options { interrupts: Some(Duration::ZERO), ..Options::default() }.open(["echo:"])?;
    /// # let (mut tx, mut rx, mut batch) = (port.tx(0)?, port.rx(0)?, Batch::new());
    /// let event = rx.arm().expect("the port has interrupts");
    /// # batch.push(port.pool(), &[0; 60]);
    /// tx.send(&mut batch); // `echo:` returns the packet
    /// let ready = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
    /// assert_eq!(ready, Ok(1));
    /// rx.disarm();
    /// assert_eq!(rx.recv(&mut batch), 1);
    /// # Ok(()) }
    /// ```
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.queue.arm()
    }

    /// Disarms the interrupt. The queue is then polled.
    ///
    /// The example of [`arm`](RxQueue::arm) disarms the interrupt, too.
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }

    /// Stops the queue and returns all its buffers to the pool, as dropping it does. If the card does not answer, it
    /// may still write to the buffers, so they are quarantined until the port is [reset](super::Port::reset).
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:rx-stop?wire=none"])?;
    /// let rx = port.rx(0)?;
    /// rx.stop()?;
    /// assert!(port.rx(0).is_ok()); // the queue can be started again
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["echo:?ring=64"])?;
    /// # let (mut tx, mut rx, mut back) = (port.tx(0)?, port.rx(0)?, linerate::Batch::with_capacity(100));
    /// let mut batch = linerate::Batch::with_capacity(100);
    /// batch.alloc(port.pool(), 100, 60);
    /// assert_eq!((tx.send(&mut batch), batch.len()), (64, 36)); // as many as the ring has room for
    /// rx.recv(&mut back);
    /// assert_eq!((tx.send(&mut batch), batch.len()), (36, 0));
    /// # Ok(()) }
    /// ```
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

    /// Sends all packets of `batch`, and waits for room at most `longest`. Returns the count of slots accepted; the
    /// rest stay in the batch. A loop that forwards calls [`send`](TxQueue::send) instead, and receives meanwhile.
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:tx-buffers?wire=sink"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// tx.send(&mut batch);
    /// assert_eq!(tx.buffers(), 1); // until a later `send` finds that the card has sent it
    /// # Ok(()) }
    /// ```
    pub fn buffers(&self) -> usize {
        self.queue.buffers()
    }

    /// Returns the count of slots accepted by [`send`](TxQueue::send) but not yet handed on. Call `send` again (an
    /// empty batch will do) before sleeping. A card's queue holds only copies of packets of another region.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["null:"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// tx.send(&mut batch);
    /// if tx.unsent() > 0 {
    ///     tx.send(&mut batch); // the batch may be empty
    /// }
    /// assert_eq!(tx.unsent(), 0); // the thread can sleep
    /// # Ok(()) }
    /// ```
    pub fn unsent(&self) -> usize {
        self.queue.unsent()
    }

    /// Returns whether the queue had a peer at the last [`send`](TxQueue::send); without one, `send` accepts no
    /// packets. A queue to another process or virtual machine has no peer while that is not connected or does not use
    /// the queue. For example, a machine with few processors may use fewer queues. All other queues always have a peer.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["null:"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// tx.send(&mut batch);
    /// if !tx.has_peer() {
    ///     batch.clear(); // no peer will receive them
    /// }
    /// assert!(tx.has_peer() && batch.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn has_peer(&self) -> bool {
        self.queue.has_peer()
    }

    /// As [`RxQueue::stop`]. Packets that the card has not fetched yet are not sent.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:tx-stop?wire=sink"])?;
    /// let tx = port.tx(0)?;
    /// tx.stop()?;
    /// assert!(port.tx(0).is_ok()); // the queue can be started again
    /// # Ok(()) }
    /// ```
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
