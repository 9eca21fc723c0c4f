//! Pipes: two ports; packets sent into either are received from the other, without a copy.
//!
//! Send and receive move 8-byte slots from a batch into a channel, and out of it again. The buffers move along.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use linerate_core::batch::Batch;
use linerate_core::error::{Error, Result};
use linerate_core::event::ArmedEvent;
use linerate_core::memory::Pool;
use linerate_core::port::{
    Config, Link, PortClass, QueueCounters, Receive, RegionRx, RegionTx, Rx, Settings, SoftwareDevice, SoftwarePort,
    Transmit, Tx,
};

use super::slot_channel::{SlotReceiver, SlotSender, slot_channel};

/// Selects an end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `X{N`
    Master,
    /// `X}N`
    Slave,
}

/// One end of a pipe.
pub struct Pipe {
    pipe: Arc<PipeState>,
    side: Side,
}

/// The state that both ends share.
struct PipeState {
    name: String,
    pool: Arc<Pool>,
    ring: usize,
    /// Indexed by receiving side, then by queue.
    lanes: [Vec<Arc<Lane>>; 2],
    open: Mutex<[bool; 2]>,
    /// The ends that accept packets with pending offloads.
    accepts_offloads: [Arc<AtomicBool>; 2],
}

/// One direction of a queue. It stores the ends of the channel while no queue uses them.
struct Lane {
    sender: Mutex<Option<SlotSender>>,
    receiver: Mutex<Option<SlotReceiver>>,
    wake: ArmedEvent,
}

/// The pipes of this process, by name.
static PIPES: Mutex<Vec<(String, Weak<PipeState>)>> = Mutex::new(Vec::new());

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn give<T>(to: &Mutex<Option<T>>, value: T) {
    *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

impl Pipe {
    /// Opens one end of the pipe with this name. The first end creates the pipe: its queues, rings and pool also apply
    /// to the other end.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](linerate_core::ErrorKind::InUse) if this end is already open,
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption) for an invalid ring size or more queues than the
    /// other end has.
    pub fn open(name: &str, side: Side, config: Config) -> Result<SoftwarePort<Pipe>> {
        config.check_ring()?;
        let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.retain(|(_, pipe)| pipe.strong_count() > 0);
        let there = pipes.iter().find(|(there, _)| there == name).and_then(|(_, pipe)| pipe.upgrade());
        let pipe = match there {
            Some(pipe) => pipe,
            None => {
                let pipe = Arc::new(PipeState::new(name, &config)?);
                pipes.push((name.to_string(), Arc::downgrade(&pipe)));
                pipe
            }
        };
        let most = pipe.lanes[0].len() as u16;
        let queues = config.options.rx_queues.max(config.options.tx_queues);
        if queues > most {
            return Err(Error::too_many_queues(config.name, "pairs of", queues, most));
        }
        let open = &mut pipe.open.lock().unwrap_or_else(PoisonError::into_inner)[side as usize];
        if *open {
            return Err(Error::port_in_use(config.name));
        }
        *open = true;
        pipe.accepts_offloads[side as usize].store(config.options.offloads, Relaxed);
        let options = Settings { ring: Some(pipe.ring), ..config.options };
        let config = Config { pool: pipe.pool.clone(), options, ..config };
        Ok(SoftwarePort::new(config, Pipe { pipe: pipe.clone(), side }))
    }
}

impl PipeState {
    fn new(name: &str, config: &Config) -> Result<PipeState> {
        let accepts_offloads = [0; 2].map(|_| Arc::<AtomicBool>::default());
        let lanes = |side: usize| -> Result<Vec<Arc<Lane>>> {
            (0..config.options.rx_queues.max(config.options.tx_queues))
                .map(|_| {
                    let (mut sender, receiver) = slot_channel(&config.pool, config.ring());
                    sender.set_accepts_offloads(&accepts_offloads[side]);
                    let (sender, receiver) = (Mutex::new(Some(sender)), Mutex::new(Some(receiver)));
                    Ok(Arc::new(Lane { sender, receiver, wake: ArmedEvent::new()? }))
                })
                .collect()
        };
        let (name, pool, ring) = (name.to_string(), config.pool.clone(), config.ring());
        let lanes = [lanes(0)?, lanes(1)?];
        Ok(PipeState { name, pool, ring, lanes, open: Mutex::default(), accepts_offloads })
    }
}

impl Drop for PipeState {
    fn drop(&mut self) {
        // Frees packets that were not received. Every queue keeps the pipe alive, so no queue exists any more.
        for lane in self.lanes.iter().flatten() {
            if let Some(mut receiver) = take(&lane.receiver) {
                receiver.drain();
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.pipe.accepts_offloads[self.side as usize].store(false, Relaxed);
        self.pipe.open.lock().unwrap_or_else(PoisonError::into_inner)[self.side as usize] = false;
    }
}

impl SoftwareDevice for Pipe {
    const DRIVER: &'static str = "pipe";
    const CLASS: PortClass = PortClass::Memory;
    const OFFLOADS: bool = true;

    fn description(&self) -> String {
        format!("an end of pipe {}, without copies", self.pipe.name)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let taken = || Error::queue_taken(&config.name, "receive", queue);
        let (pipe, lane) = (self.pipe.clone(), self.pipe.lanes[self.side as usize][usize::from(queue)].clone());
        let receiver = Some(take(&lane.receiver).ok_or_else(taken)?);
        lane.wake.want(config.options.interrupts.is_some());
        Ok(Box::new(Rx::new(PipeRx { pipe, lane, receiver, counters })))
    }

    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let taken = || Error::queue_taken(&config.name, "transmit", queue);
        let (pipe, lane) = (self.pipe.clone(), self.pipe.lanes[1 - self.side as usize][usize::from(queue)].clone());
        let sender = Some(take(&lane.sender).ok_or_else(taken)?);
        let longest = config.options.max_frame;
        Ok(Box::new(Tx::new(PipeTx { pipe, lane, sender, counters, longest })))
    }

    fn link(&self) -> Result<Link> {
        let open = self.pipe.open.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(if open[1 - self.side as usize] { Link::Up { mbits: 0 } } else { Link::Down })
    }
}

/// Receives packets from the other end.
struct PipeRx {
    pipe: Arc<PipeState>,
    lane: Arc<Lane>,
    /// Returned to the lane on drop.
    receiver: Option<SlotReceiver>,
    counters: Arc<QueueCounters>,
}

impl RegionRx for PipeRx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pipe.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let Some(receiver) = &mut self.receiver else { return 0 };
        receiver.receive_counted(&self.counters, batch)
    }

    fn buffers(&self) -> usize {
        self.receiver.as_ref().map_or(0, SlotReceiver::waiting)
    }

    fn arm(&mut self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.lane.wake.arm()
    }

    fn disarm(&mut self) {
        self.lane.wake.disarm();
    }
}

impl Drop for PipeRx {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            give(&self.lane.receiver, receiver);
        }
    }
}

/// Sends packets to the other end.
struct PipeTx {
    pipe: Arc<PipeState>,
    lane: Arc<Lane>,
    /// Returned to the lane on drop.
    sender: Option<SlotSender>,
    counters: Arc<QueueCounters>,
    longest: usize,
}

impl PipeTx {
    /// Wakes the receiver if it sleeps. Returns `count`, so that the caller need not save it across the call.
    #[cold]
    #[inline(never)]
    fn notify(&self, count: usize) -> usize {
        self.lane.wake.notify();
        count
    }
}

impl RegionTx for PipeTx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pipe.pool
    }

    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        let Some(sender) = &mut self.sender else { return 0 };
        let count = sender.send_counted(&self.counters, batch);
        if self.lane.wake.is_wanted() {
            return self.notify(count);
        }
        count
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

impl Drop for PipeTx {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            give(&self.lane.sender, sender);
        }
    }
}
