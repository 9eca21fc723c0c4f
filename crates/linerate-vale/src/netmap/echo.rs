//! `echo:`: a port that returns what it is sent. Receive queue N receives the packets of transmit queue N.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::event::ArmedEvent;
use linerate_core::memory::Pool;
use linerate_core::port::{
    Address, Config, Description, MTU, PortClass, PortKind, QUEUES, QueueCounters, RING, Receive, RegionRx, RegionTx,
    Rx, SendFinished, SoftwareDevice, SoftwarePort, Transmit, Tx,
};
use linerate_core::slot::Slot;

/// `echo:NAME`
pub static ECHO: PortKind = PortKind {
    description: Description {
        options: &[QUEUES, RING, MTU],
        feature: "netmap",
        example: "echo:",
        summary: "returns what it is sent",
        page: "netmap.md",
        class: PortClass::Memory,
        ..Description::new("echo", Address::Text)
    },
    open: &|opening| Ok(Box::new(Echo::open(opening.config)?)),
};

/// The port `echo:`.
pub struct Echo {
    queues: Vec<Arc<Queue>>,
}

/// Packets between a transmit queue and the receive queue of the same number.
struct Queue {
    waiting: Mutex<Batch>,
    event: ArmedEvent,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Batch> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Echo {
    /// Opens an echo port. A process may have any number of them.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption).
    pub fn open(config: Config) -> Result<SoftwarePort<Echo>> {
        config.check_ring()?;
        let queue = |_| {
            let waiting = Mutex::new(Batch::with_capacity(config.ring()));
            Ok(Arc::new(Queue { waiting, event: ArmedEvent::new()? }))
        };
        let count = config.options.rx_queues.max(config.options.tx_queues);
        let queues = (0..count).map(queue).collect::<Result<_>>()?;
        Ok(SoftwarePort::new(config, Echo { queues }))
    }
}

impl SoftwareDevice for Echo {
    const DRIVER: &'static str = "echo";
    const CLASS: PortClass = PortClass::Memory;

    fn description(&self) -> String {
        "returns what it is sent".to_string()
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let queue = self.queues[usize::from(queue)].clone();
        queue.event.want(config.options.interrupts.is_some());
        Ok(Box::new(Rx::new(EchoRx { queue, pool: config.pool.clone(), counters })))
    }

    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let queue = self.queues[usize::from(queue)].clone();
        let (pool, longest) = (config.pool.clone(), config.options.max_frame);
        Ok(Box::new(Tx::new(EchoTx { queue, pool, counters, longest })))
    }
}

/// Moves packets until `to` is full, or one has pending offloads. Returns the count of slots.
fn move_packets(from: &mut Batch, to: &mut Batch, counters: &QueueCounters) -> usize {
    let (mut packets, mut slots, mut bytes) = (0, 0, 0);
    while from.first().is_some_and(|slot| !slot.is_unfinished())
        && let Some(mut packet) = from.take()
    {
        let moved = (packet.packet().slots(), packet.packet().len());
        if let Err(packet) = to.push_packet(packet) {
            packet.put_back();
            break;
        }
        (packets, slots, bytes) = (packets + 1, slots + moved.0, bytes + moved.1);
    }
    if packets > 0 {
        counters.moved_packets(packets, slots, bytes);
    }
    slots
}

struct EchoRx {
    queue: Arc<Queue>,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
}

impl RegionRx for EchoRx {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        move_packets(&mut self.queue.waiting(), batch, &self.counters)
    }

    fn buffers(&self) -> usize {
        self.queue.waiting().len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.queue.event.arm()
    }

    fn disarm(&mut self) {
        self.queue.event.disarm();
    }
}

struct EchoTx {
    queue: Arc<Queue>,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    longest: usize,
}

impl RegionTx for EchoTx {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        let slots = self.finish_and_send(batch);
        if slots > 0 {
            self.queue.event.notify();
        }
        slots
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

impl SendFinished for EchoTx {
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let slots = move_packets(batch, &mut self.queue.waiting(), &self.counters);
        (slots, batch.first().is_some_and(Slot::is_unfinished))
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate::Options;
    use linerate_core::memory::{Region, RegionOptions};
    use linerate_core::port::{Port, Wait, Waiter};
    use linerate_testkit::Deadline;

    use super::*;

    fn port(options: Options) -> Port {
        let pool = Pool::new(Region::new(&RegionOptions { buffers: 1024, ..RegionOptions::default() }).unwrap());
        Port::new(Echo::open(options.of_port("echo:", pool).unwrap()).unwrap())
    }

    #[test]
    fn packets_return_in_order_and_the_ring_bounds_them() {
        let mut port = port(Options { ring: Some(64), ..Options::default().with_queues(2) });
        let pool = port.pool().clone();
        let (mut tx, mut rx, mut other) = (port.tx(1).unwrap(), port.rx(1).unwrap(), port.rx(0).unwrap());
        let (mut batch, mut back) = (Batch::with_capacity(100), Batch::with_capacity(100));
        // The last frame is longer than a buffer.
        (0..99u8).for_each(|n| assert!(batch.push(&pool, &[n; 60])));
        assert!(batch.push(&pool, &[99; 5000]));
        assert_eq!(tx.send(&mut batch), 64);
        assert_eq!((rx.recv(&mut back), other.recv(&mut Batch::new())), (64, 0));
        assert_eq!(tx.send_all(&mut batch, Duration::from_secs(10)), 35 + 3);
        assert_eq!(rx.recv(&mut back), 35 + 3);
        let seen: Vec<_> = back.packets().map(|packet| (packet[0], packet.len())).collect();
        let expected = (0..100u8).map(|n| (n, if n < 99 { 60 } else { 5000 }));
        assert_eq!(seen, expected.collect::<Vec<_>>());
        drop((batch, back));
        assert_eq!(pool.available(), 1024);
        let statistics = port.statistics().unwrap();
        assert_eq!((statistics.tx_packets, statistics.rx_packets, statistics.rx_bytes), (100, 100, 99 * 60 + 5000));
    }

    /// Copies of packets of another region wait in the queue while the ring is full, which `unsent` reports.
    #[test]
    fn packets_of_another_region_are_not_lost() {
        let mut port = port(Options { ring: Some(64), ..Options::default() });
        let other = Pool::new(Region::new(&RegionOptions { buffers: 1024, ..RegionOptions::default() }).unwrap());
        let (mut tx, mut rx) = (port.tx(0).unwrap(), port.rx(0).unwrap());
        let (mut batch, mut back) = (Batch::with_capacity(90), Batch::with_capacity(90));
        (0..90).for_each(|n| assert!(batch.push(&other, &[n; 60])));
        assert_eq!(tx.send(&mut batch), 90);
        assert_eq!((tx.unsent(), rx.recv(&mut back)), (26, 64));
        tx.send(&mut batch);
        assert_eq!((tx.unsent(), rx.recv(&mut back)), (0, 26));
        assert!(back.packets().map(|packet| packet[0]).eq(0..90));
    }

    #[test]
    fn a_receiver_sleeps_until_a_packet_returns() {
        let mut port = port(Options { interrupts: Some(Duration::ZERO), ..Options::default() });
        let pool = port.pool().clone();
        let (mut tx, mut rx) = (port.tx(0).unwrap(), port.rx(0).unwrap());
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let (mut waiter, mut batch) = (Waiter::new(Wait::Interrupt), Batch::new());
                let deadline = Deadline::begin();
                while rx.recv(&mut batch) == 0 {
                    deadline.check(|| "a packet to return");
                    waiter.turn(0, &mut [&mut rx]);
                }
                batch.packets().next().unwrap()[0]
            });
            let mut batch = Batch::new();
            batch.push(&pool, &[7; 60]);
            tx.send(&mut batch);
            assert_eq!(receiver.join().unwrap(), 7);
        });
    }
}
