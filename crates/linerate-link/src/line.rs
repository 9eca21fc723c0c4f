//! One direction of a link: packets enter, and leave late, or not at all.
//!
//! ```text
//! accept -> losses -> bit errors, truncation, repetition -> queue -> transmitter -> delay -> release
//!                                                           (CoDel)  (rate)        (reordering)
//! ```
//!
//! All random decisions about a packet are made when it enters, each from a separate sequence of numbers. So the same
//! seed gives the same decisions for the same packets, whenever these arrive and whatever else is configured.
//!
//! Times are nanoseconds since the start of the line. They are computed, not measured: a line that is polled late
//! releases packets late, but the following packets are not delayed by that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use linerate_core::batch::MAX_CHAIN;
use linerate_core::memory::Pool;
use linerate_core::port::Random;
use linerate_core::slot::Slot;
use linerate_core::{Batch, Fifo, Store, Stored, Taken};

use crate::codel::{CodelState, mark};
use crate::counts::{Counters, Event};
use crate::decision::{Damage, Decision};
use crate::loss::{Chance, Loss, Losses};
use crate::parameters::Parameters;
use crate::play::Player;
use crate::quantity::Amount;
use crate::record::{Log, Recorder};
use crate::transmitter::{Pace, Transmitter};

/// How long a packet waits to be overtaken.
const OVERTAKEN_WITHIN: u64 = 10_000_000;

/// One direction of a link.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::Batch;
/// use linerate::link::{Line, Parameters};
///
/// # let [port] = linerate::open(["null:"])?;
/// # let (mut batch, mut arrived) = (Batch::new(), Batch::new());
/// # (1..=2).for_each(|n| assert!(batch.push(port.pool(), &[n; 1000])));
/// let options = [("delay", "20ms"), ("rate", "8Mbit"), ("queue", "100kB")];
/// let parameters = Parameters::of(options).unwrap();
/// let mut line = Line::new(&parameters, port.pool(), 0);
/// line.accept(0, &mut batch);
/// assert_eq!(line.next_event(), Some(21_000_000)); // 1 ms for the 1,000 bytes, and 20 ms
/// line.release(21_000_000, &mut arrived);
/// assert_eq!((arrived.len(), line.held()), (1, 1));
/// # Ok(()) }
/// ```
pub struct Line {
    parameters: Parameters,
    losses: Losses,
    faults: Faults,
    transmitter: Option<Transmitter>,
    codel: CodelState,
    random: Sequences,
    /// Waiting for the transmitter. The first is being sent, if its time has come.
    queue: VecDeque<Queued>,
    queued_bytes: u64,
    /// Whether CoDel has decided about the first packet of the queue.
    is_decided: bool,
    /// In the order of arrival at the other end.
    flight: VecDeque<Flying>,
    /// Packets that arrive before others that left earlier.
    early: BinaryHeap<Reverse<Flying>>,
    last_due: u64,
    /// The number of the next packet in flight.
    number: u64,
    /// A packet that the next one overtakes.
    overtaken: Option<Flying>,
    store: Store,
    /// The packets of `runs`, which are neither in `flight` nor in `early`.
    fifo: Fifo,
    /// Packets that entered together while nothing but a constant delay was configured, in the order of arrival.
    runs: VecDeque<Run>,
    /// Whether nothing but a constant delay is configured.
    is_plain: bool,
    /// Packets that have entered, but wait for room in the store.
    ready: Batch,
    pool: Arc<Pool>,
    /// The next step of the schedule.
    next_step: u64,
    is_stalled: bool,
    counters: Arc<Counters>,
    /// Decides instead of chance, rate and queue.
    player: Option<Player>,
    log: Option<Box<Log>>,
    /// The slots and bytes that the counters include for this line.
    reported: [u64; 2],
}

/// A sequence of random numbers for each kind of decision.
struct Sequences {
    loss: Random,
    faults: Random,
    delay: Random,
}

/// The chances of faults.
#[derive(Clone, Copy, Default)]
struct Faults {
    corrupt: Chance,
    truncate: Chance,
    duplicate: Chance,
    reorder: Chance,
}

struct Queued {
    stored: Stored,
    /// Bytes on the wire.
    len: u64,
    entered: u64,
    delay: u64,
    is_overtaken: bool,
}

/// A packet that arrives at the time `due`. Of two packets with the same time, the one with the lower number is first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    due: u64,
    number: u64,
    stored: Stored,
}

/// Consecutive packets of the queue that arrive at the time `due`. `number` is that of the first.
struct Run {
    due: u64,
    number: u64,
    count: usize,
}

impl Line {
    /// Creates a line at time 0 for packets of a pool. Lines with the same seed and other `stream` numbers make other
    /// decisions.
    pub fn new(parameters: &Parameters, pool: &Arc<Pool>, stream: u64) -> Line {
        Line::with_counters(parameters, pool, stream, Arc::default())
    }

    /// As [`new`](Line::new), with counters that other lines may share.
    pub fn with_counters(parameters: &Parameters, pool: &Arc<Pool>, stream: u64, counters: Arc<Counters>) -> Line {
        let sequence = |number: u64| Random::new(parameters.seed, 4 * stream + number);
        let mut random = Sequences { loss: sequence(1), faults: sequence(2), delay: sequence(3) };
        let capacity = parameters.capacity();
        counters.set_present(parameters.pace.as_ref().map(Pace::mean_rate), parameters.delay.mean);
        let mut ready = Batch::with_capacity(2 * MAX_CHAIN);
        ready.bind_if_unbound(pool);
        Line {
            losses: Losses::new(&parameters.loss, parameters.bit_errors, &mut random.loss),
            faults: Faults::of(parameters),
            transmitter: parameters.pace.clone().map(Transmitter::new),
            codel: CodelState::default(),
            random,
            queue: VecDeque::with_capacity(if parameters.pace.is_some() { capacity } else { 0 }),
            queued_bytes: 0,
            is_decided: false,
            flight: VecDeque::with_capacity(capacity),
            early: BinaryHeap::with_capacity(if parameters.keeps_order && parameters.play.is_none() {
                0
            } else {
                capacity
            }),
            last_due: 0,
            number: 0,
            overtaken: None,
            store: Store::new(pool, capacity + MAX_CHAIN),
            fifo: Fifo::new(pool, capacity),
            runs: VecDeque::with_capacity(capacity),
            is_plain: is_plain(parameters),
            ready,
            pool: pool.clone(),
            next_step: 0,
            is_stalled: false,
            counters,
            player: parameters.play.clone().map(Player::new),
            log: None,
            reported: [0, 0],
            parameters: parameters.clone(),
        }
    }

    /// Records the decisions about packets. `start` is the line's time 0.
    pub fn record(&mut self, recorder: Recorder, start: Instant) {
        self.log = Some(Box::new(Log::new(recorder, start, &self.parameters)));
        self.is_plain = false;
    }

    /// Takes packets from the front of `batch`, as many as there is room for. Returns the count of slots taken.
    pub fn accept(&mut self, now: u64, batch: &mut Batch) -> usize {
        self.advance(now);
        let before = batch.len();
        self.enter_ready(now);
        if self.is_plain && self.ready.is_empty() && self.overtaken.is_none() {
            self.accept_run(now, batch);
        }
        let is_of_pool = batch.is_already_of(&self.pool);
        while self.ready.is_empty() {
            if !self.has_room() {
                break;
            }
            // A checksum that is computed later would hide a fault. What cannot be finished is dropped, and counted, by
            // the port that sends it.
            if batch.first().is_some_and(Slot::is_unfinished) && (self.faults.change_packets() || self.player.is_some())
            {
                batch.finish_packet(0);
            }
            let Some(mut packet) = batch.take() else { break };
            let len = packet.packet().len();
            if self.log.is_some() || self.player.is_some() {
                self.begin(now, len);
            }
            if let Some(cause) = self.drop_at_entry(len) {
                self.drop_entering(cause, 0);
                self.end();
                continue;
            }
            if is_of_pool && !self.may_change_packet() {
                if let Err(packet) = self.enter(now, len, packet) {
                    packet.put_back(); // impossible: there is room
                    break;
                }
                self.end();
                continue;
            }
            if let Err(packet) = self.ready.push_packet(packet) {
                // No buffer for a copy of a packet of another region. The decision about its loss is repeated.
                packet.put_back();
                break;
            }
            self.inject(len);
            self.end();
            self.enter_ready(now);
        }
        self.report();
        before - batch.len()
    }

    /// Takes packets that have nothing but a constant delay, as many as there is room for.
    #[inline]
    fn accept_run(&mut self, now: u64, batch: &mut Batch) {
        let room = self.fifo.capacity().saturating_sub(self.store.len() + self.fifo.len());
        let count = self.fifo.put(batch, room);
        if count == 0 {
            return;
        }
        let due = now.saturating_add(self.parameters.delay.mean).max(self.last_due);
        let number = self.number + 1;
        self.last_due = due;
        self.number += count as u64;
        match self.runs.back_mut() {
            Some(last) if last.due == due && last.number + last.count as u64 == number => last.count += count,
            _ => self.runs.push_back(Run { due, number, count }),
        }
    }

    /// Moves the packets of `runs` to `batch` that have arrived until `now`, and before the others in flight. Returns
    /// whether there may be more of both.
    #[inline]
    fn release_runs(&mut self, now: u64, batch: &mut Batch) -> bool {
        let other = |due: u64, number: u64| move |other: &Flying| (other.due, other.number) < (due, number);
        while let Some(run) = self.runs.front_mut().filter(|run| run.due <= now) {
            let is_before = other(run.due, run.number);
            if self.flight.front().is_some_and(&is_before) || self.early.peek().is_some_and(|early| is_before(&early.0))
            {
                return true;
            }
            let count = self.fifo.move_to(run.count, batch);
            run.count -= count;
            run.number += count as u64;
            if run.count > 0 {
                return false; // the batch is full
            }
            self.runs.pop_front();
        }
        true
    }

    /// Appends the packets that have arrived at the other end until `now` to `batch`, as many as fit. Returns the count
    /// of slots.
    pub fn release(&mut self, now: u64, batch: &mut Batch) -> usize {
        self.advance(now);
        let before = batch.len();
        while self.release_runs(now, batch) {
            let in_order = self.flight.front().map(|first| first.due);
            let is_early = match (self.early.peek(), in_order) {
                (Some(Reverse(early)), Some(due)) => early.due < due,
                (early, _) => early.is_some(),
            };
            let due = if is_early { self.early.peek().map(|early| early.0.due) } else { in_order };
            if due.is_none_or(|due| due > now) {
                break;
            }
            let next = if is_early { self.early.pop().map(|early| early.0) } else { self.flight.pop_front() };
            let Some(Flying { due, number, stored }) = next else { break };
            if let Err(stored) = self.store.move_to(stored, batch) {
                // The batch is full. The packet stays the first.
                self.flight.push_front(Flying { due, number, stored });
                break;
            }
        }
        if self.has_room() {
            self.is_stalled = false;
        }
        self.report();
        batch.len() - before
    }

    /// Returns the time at which the next packet arrives at the other end, if none enters before.
    pub fn next_event(&self) -> Option<u64> {
        let sent = self.transmitter.as_ref().zip(self.queue.front()).map(|(transmitter, first)| {
            transmitter.end(transmitter.start(first.entered), first.len).saturating_add(first.delay)
        });
        let flight = self.flight.front().map(|first| first.due);
        let early = self.early.peek().map(|early| early.0.due);
        let overtaken = self.overtaken.as_ref().map(|overtaken| overtaken.due.saturating_add(OVERTAKEN_WITHIN));
        let run = self.runs.front().map(|run| run.due);
        [sent, flight, early, overtaken, run].into_iter().flatten().min()
    }

    /// Lets a packet arrive at its time that waits for another packet to overtake it.
    pub fn stop_waiting_to_be_overtaken(&mut self) {
        self.release_overtaken(0);
    }

    /// Changes the parameters at `now`. The rest of a queue is sent at the new rate. Packets in the line keep their
    /// delays, but none has longer to travel than the new delay. The seed and the memory stay as they were.
    pub fn change(&mut self, parameters: &Parameters, now: u64) {
        self.advance(now);
        let (seed, packets) = (self.parameters.seed, self.parameters.packets);
        if parameters.loss != self.parameters.loss || parameters.bit_errors != self.parameters.bit_errors {
            self.losses = Losses::new(&parameters.loss, parameters.bit_errors, &mut self.random.loss);
        }
        self.faults = Faults::of(parameters);
        if parameters.play != self.parameters.play {
            self.player = parameters.play.clone().map(Player::new);
        }
        if parameters.schedule != self.parameters.schedule {
            self.next_step = 0;
        }
        self.set_pace(parameters.pace.clone(), now);
        self.parameters = Parameters { seed, packets, ..parameters.clone() };
        self.is_plain = is_plain(parameters) && self.log.is_none();
        self.shorten_delays(now);
        self.note_change(now);
        self.advance(now);
        self.report();
    }

    /// Counts and records the parameters after a change.
    fn note_change(&self, now: u64) {
        let Parameters { pace, delay, .. } = &self.parameters;
        self.counters.set_present(pace.as_ref().map(Pace::mean_rate), delay.mean);
        if let Some(log) = &self.log {
            log.changed(now, &self.parameters);
        }
    }

    /// Limits the delays of packets in the line to the longest possible one. Otherwise a link with a very long delay
    /// would not transport anything after a change, since packets keep their order.
    fn shorten_delays(&mut self, now: u64) {
        let longest = self.parameters.longest_delay();
        let latest = now.saturating_add(longest);
        self.queue.iter_mut().for_each(|queued| queued.delay = queued.delay.min(longest));
        self.flight.iter_mut().for_each(|flying| flying.due = flying.due.min(latest));
        self.runs.iter_mut().for_each(|run| run.due = run.due.min(latest));
        self.overtaken.iter_mut().for_each(|flying| flying.due = flying.due.min(latest));
        let shortened = |Reverse(flying): Reverse<Flying>| Reverse(Flying { due: flying.due.min(latest), ..flying });
        self.early = std::mem::take(&mut self.early).into_iter().map(shortened).collect();
        self.last_due = self.last_due.min(latest);
    }

    /// Returns the current parameters, with the changes of the schedule.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns the count of slots in the line.
    pub fn held(&self) -> usize {
        self.store.len() + self.fifo.len() + self.ready.len()
    }

    /// Returns the count of buffers in the line, including free ones that have not been returned to the pool.
    pub fn buffers(&self) -> usize {
        self.store.buffers() + self.fifo.len() + self.ready.len() + self.ready.cached()
    }

    /// Returns whether there is room for any packet and its duplicate.
    fn has_room(&mut self) -> bool {
        let has_room = self.store.capacity().saturating_sub(self.store.len() + self.fifo.len()) >= MAX_CHAIN;
        if !has_room && !self.is_stalled {
            self.is_stalled = true;
            self.counters.count(Event::Stalled);
        }
        has_room
    }

    /// Begins with a packet that is recorded, or decided by a recording.
    #[cold]
    fn begin(&mut self, now: u64, len: usize) {
        self.log.iter_mut().for_each(|log| log.begin(now, len));
        self.player.iter_mut().for_each(Player::begin);
    }

    /// Ends with a packet: it is in the line or in `ready`, or dropped.
    #[inline]
    fn end(&mut self) {
        if let Some(log) = &mut self.log {
            log.accept();
        }
        if let Some(player) = &mut self.player
            && !player.advance()
        {
            self.counters.count(Event::BeyondRecording);
        }
    }

    /// Returns the cause for which the packet of `len` bytes is dropped before the queue.
    #[inline]
    fn drop_at_entry(&mut self, len: usize) -> Option<Event> {
        match &self.player {
            None => self.losses.occurs(len, &mut self.random.loss).then_some(Event::Lost),
            Some(player) => player.current().dropped.filter(|cause| *cause == Event::Lost),
        }
    }

    /// Counts a packet that is dropped when it enters, or was dropped in the recorded queue after `queued`.
    fn drop_entering(&mut self, cause: Event, queued: u64) {
        self.counters.count(cause);
        if let Some(log) = &mut self.log {
            log.drop_entering(cause, queued);
        }
    }

    /// Returns whether the bytes or the number of packets may change.
    #[inline]
    fn may_change_packet(&self) -> bool {
        match &self.player {
            None => self.faults.change_packets(),
            Some(player) => player.changes_packet(),
        }
    }

    /// Decides how the packet of `len` bytes in `ready` is damaged, and whether it is duplicated.
    fn damage(&mut self, len: usize) -> (Damage, bool) {
        if let Some(player) = &self.player {
            let Damage { corrupted, truncated } = player.current().damage;
            // For a packet of another length than the recorded one.
            let corrupted = corrupted.map(|(at, bit)| (at % len.max(1) as u32, bit));
            let truncated = truncated.filter(|short| (*short as usize) < len);
            return (Damage { corrupted, truncated }, player.is_duplicated());
        }
        let (faults, random) = (self.faults, &mut self.random.faults);
        let corrupted = faults.corrupt.occurs(random).then(|| (random.below(len as u64) as u32, random.below(8) as u8));
        let is_truncated = len > 1 && faults.truncate.occurs(random);
        let truncated = is_truncated.then(|| 1 + random.below(len as u64 - 1) as u32);
        (Damage { corrupted, truncated }, faults.duplicate.occurs(random))
    }

    /// Injects faults into the packet of `len` bytes in `ready`.
    fn inject(&mut self, len: usize) {
        let (damage, is_duplicated) = self.damage(len);
        if let Some(log) = &mut self.log {
            log.damage(damage);
        }
        if let Some((at, bit)) = damage.corrupted {
            invert(self.ready.slots_mut(), at as usize, 1 << bit);
            self.counters.count(Event::Corrupted);
        }
        if damage.truncated.is_none() && !is_duplicated {
            return;
        }
        let (mut bytes, mut offload, mut time) = (Vec::with_capacity(len), None, None);
        for packet in self.ready.packets() {
            packet.append_to(&mut bytes);
            (offload, time) = (packet.offload(), packet.timestamp());
        }
        let (ready, pool) = (&mut self.ready, &self.pool);
        let push = |ready: &mut Batch, bytes: &[u8]| {
            let is_pushed = ready.push_parts(pool, bytes.len(), std::iter::once(bytes), offload);
            time.filter(|_| is_pushed).into_iter().for_each(|time| ready.stamp_last(time));
            is_pushed
        };
        if let Some(short) = damage.truncated {
            bytes.truncate(short as usize);
            ready.clear();
            if !push(ready, &bytes) {
                // Without a free buffer, the packet is lost.
                self.drop_entering(Event::Lost, 0);
                return;
            }
            self.counters.count(Event::Truncated);
        }
        if is_duplicated && push(ready, &bytes) {
            self.counters.count(Event::Duplicated);
        }
    }

    /// Lets the packets of `ready` enter.
    fn enter_ready(&mut self, now: u64) {
        if self.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        while self.has_room()
            && let Some(mut packet) = ready.take()
        {
            let len = packet.packet().len();
            if let Err(packet) = self.enter(now, len, packet) {
                packet.put_back();
                break;
            }
        }
        self.ready = ready;
    }

    /// Puts a packet of `len` bytes into the queue, or into flight if there is no rate.
    fn enter<'a>(&mut self, now: u64, len: usize, packet: Taken<'a>) -> Result<(), Taken<'a>> {
        if self.player.is_some() {
            return self.enter_as_recorded(now, packet);
        }
        // Drawn for each packet, also for one that finds the queue full.
        let delay = self.parameters.delay.sample(&mut self.random.delay);
        let is_overtaken = self.faults.reorder.occurs(&mut self.random.faults);
        let is_unordered = !self.parameters.keeps_order;
        let decision = || Decision { delay, is_overtaken, is_unordered, ..Decision::default() };
        if self.transmitter.is_none() {
            let stored = self.store.put(packet)?;
            if let Some(log) = &mut self.log {
                log.pass(decision());
            }
            self.fly(now, stored, delay, is_overtaken, is_unordered);
            return Ok(());
        }
        let len = self.parameters.overhead.of(len);
        if !self.queue_has_room(len) {
            self.drop_entering(Event::QueueFull, 0);
            drop(packet);
            return Ok(());
        }
        let stored = self.store.put(packet)?;
        if let Some(log) = &mut self.log {
            log.enter_queue(decision());
        }
        self.queued_bytes += len;
        self.queue.push_back(Queued { stored, len, entered: now, delay, is_overtaken });
        Ok(())
    }

    /// Lets a packet enter with a recorded decision.
    #[cold]
    fn enter_as_recorded<'a>(&mut self, now: u64, packet: Taken<'a>) -> Result<(), Taken<'a>> {
        let Some(decision) = self.player.as_mut().map(Player::entering) else { return Err(packet) };
        if let Some(cause) = decision.dropped {
            self.drop_entering(cause, decision.queued);
            drop(packet);
            return Ok(());
        }
        let stored = self.store.put(packet)?;
        if decision.is_marked && self.store.first_bytes(&stored).is_some_and(mark) {
            self.counters.count(Event::Marked);
        }
        if let Some(log) = &mut self.log {
            log.pass(decision);
        }
        let Decision { queued, delay, is_overtaken, is_unordered, .. } = decision;
        self.fly(now.saturating_add(queued), stored, delay, is_overtaken, is_unordered);
        Ok(())
    }

    /// Returns whether a packet of `len` bytes fits into the queue, in addition to the packet that is being sent.
    fn queue_has_room(&self, len: u64) -> bool {
        let Some(sending) = self.queue.front().map(|first| first.len) else { return true };
        let (packets, bytes) = (self.queue.len() as u64 - 1, self.queued_bytes - sending);
        match self.parameters.queue {
            None => true,
            Some(Amount::Packets(most)) => packets < most,
            Some(Amount::Bytes(most)) => bytes + len <= most,
            Some(Amount::Time(most)) => {
                let rate = self.transmitter.as_ref().map_or(1, |transmitter| transmitter.pace().mean_rate());
                u128::from(bytes + len) * 8_000_000_000 <= u128::from(most) * u128::from(rate)
            }
        }
    }

    /// Sends packets of the queue until `now`, and makes the changes of the schedule at their times.
    #[inline]
    fn advance(&mut self, now: u64) {
        while let Some(step) = self.parameters.schedule.as_ref().and_then(|schedule| schedule.step(self.next_step))
            && step.time <= now
        {
            self.transmit(step.time);
            self.next_step += 1;
            if let Some(rate) = step.rate {
                self.parameters.pace = Some(Pace::Rate(rate));
                self.set_pace(self.parameters.pace.clone(), step.time);
            }
            if let Some(delay) = step.delay {
                self.parameters.delay.mean = delay;
            }
            if let Some(loss) = step.loss {
                self.parameters.loss = Loss::Independent(loss);
                self.losses = Losses::new(&self.parameters.loss, self.parameters.bit_errors, &mut self.random.loss);
            }
            self.note_change(step.time);
        }
        self.transmit(now);
        if self.overtaken.as_ref().is_some_and(|overtaken| overtaken.due.saturating_add(OVERTAKEN_WITHIN) <= now) {
            self.release_overtaken(0);
        }
    }

    /// Sends packets of the queue until `now`.
    #[inline]
    fn transmit(&mut self, now: u64) {
        while let (Some(transmitter), Some(first)) = (&mut self.transmitter, self.queue.front()) {
            let (start, len) = (transmitter.start(first.entered), first.len);
            if start > now {
                return;
            }
            if let Some(codel) = self.parameters.codel.filter(|_| !self.is_decided) {
                self.is_decided = true;
                let (sojourn, backlog) = (start - first.entered, self.queued_bytes - len);
                if self.codel.drops(&codel, start, sojourn, backlog) && !self.mark_first(codel.ecn) {
                    self.counters.count(Event::Codel);
                    if let Some(first) = self.leave_queue(start, Some(Event::Codel)) {
                        self.store.drop_packet(first.stored);
                    }
                    continue;
                }
            }
            let Some(transmitter) = &mut self.transmitter else { return };
            let Some(sent) = transmitter.send(start, len, now) else { return };
            if let Some(Queued { stored, delay, is_overtaken, .. }) = self.leave_queue(sent, None) {
                self.fly(sent, stored, delay, is_overtaken, !self.parameters.keeps_order);
            }
        }
    }

    /// Marks the first packet of the queue if that is wanted and possible.
    fn mark_first(&mut self, is_wanted: bool) -> bool {
        let first = self.queue.front().filter(|_| is_wanted).and_then(|first| self.store.first_bytes(&first.stored));
        let is_marked = first.is_some_and(mark);
        if is_marked {
            self.counters.count(Event::Marked);
            if let Some(log) = &mut self.log {
                log.mark_first();
            }
        }
        is_marked
    }

    /// Removes the first packet of the queue, which was sent completely at `at`, or is dropped then.
    #[inline]
    fn leave_queue(&mut self, at: u64, dropped: Option<Event>) -> Option<Queued> {
        self.is_decided = false;
        let first = self.queue.pop_front()?;
        self.queued_bytes -= first.len;
        if let Some(log) = &mut self.log {
            log.leave_queue(at.saturating_sub(first.entered), dropped);
        }
        Some(first)
    }

    /// Lets a packet fly that was sent at `sent`.
    #[inline]
    fn fly(&mut self, sent: u64, stored: Stored, delay: u64, is_overtaken: bool, is_unordered: bool) {
        let mut due = sent.saturating_add(delay);
        if !is_unordered {
            due = due.max(self.last_due);
        }
        self.number += 1;
        let flying = Flying { due, number: self.number, stored };
        if is_overtaken && self.overtaken.is_none() {
            self.overtaken = Some(flying);
            return;
        }
        self.arrive(flying);
        if self.overtaken.is_some() {
            self.counters.count(Event::Reordered);
            self.release_overtaken(due);
        }
    }

    /// Lets the overtaken packet arrive, not before `after`.
    fn release_overtaken(&mut self, after: u64) {
        if let Some(flying) = self.overtaken.take() {
            self.number += 1;
            self.arrive(Flying { due: flying.due.max(after), number: self.number, ..flying });
        }
    }

    /// Appends a packet to those in flight, or to the early ones if it arrives before them.
    #[inline]
    fn arrive(&mut self, flying: Flying) {
        self.last_due = self.last_due.max(flying.due);
        match self.flight.back() {
            Some(last) if last.due > flying.due => self.early.push(Reverse(flying)),
            _ => self.flight.push_back(flying),
        }
    }

    fn set_pace(&mut self, pace: Option<Pace>, now: u64) {
        let sending = self.transmitter.as_ref().zip(self.queue.front());
        let sending = sending.map(|(transmitter, first)| (transmitter.start(first.entered), first.len));
        match (pace, &mut self.transmitter) {
            (Some(pace), Some(transmitter)) if *transmitter.pace() != pace => transmitter.change(pace, now, sending),
            (Some(pace), none @ None) => *none = Some(Transmitter::new(pace)),
            (Some(_), Some(_)) => {}
            (None, _) => {
                self.transmitter = None;
                // Without a rate, the queue is empty.
                while let Some(Queued { stored, delay, is_overtaken, .. }) = self.leave_queue(now, None) {
                    self.fly(now, stored, delay, is_overtaken, !self.parameters.keeps_order);
                }
            }
        }
    }

    /// Updates what the counters say that the line holds.
    #[inline]
    fn report(&mut self) {
        let [held_before, queued_before] = self.reported;
        let (held, queued) = (self.held() as u64, self.queued_bytes);
        self.counters.hold([held_before, held], [queued_before, queued]);
        self.reported = [held, queued];
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let [held, queued] = self.reported;
        self.counters.hold([held, 0], [queued, 0]);
        let flying = self.flight.len() + self.early.len() + self.fifo.len() + usize::from(self.overtaken.is_some());
        let waiting = self.queue.len() + flying;
        self.counters.add(Event::InFlight, (waiting + self.ready.packets().count()) as u64);
    }
}

impl Faults {
    fn of(parameters: &Parameters) -> Faults {
        let Parameters { corrupt, truncate, duplicate, reorder, .. } = *parameters;
        Faults {
            corrupt: Chance::new(corrupt),
            truncate: Chance::new(truncate),
            duplicate: Chance::new(duplicate),
            reorder: Chance::new(of_candidates(reorder)),
        }
    }

    /// Returns whether the bytes or the number of packets may change.
    fn change_packets(&self) -> bool {
        [self.corrupt, self.truncate, self.duplicate].iter().any(|chance| chance.is_possible())
    }
}

/// Returns whether nothing but a constant delay is configured, so that packets need no decisions.
fn is_plain(parameters: &Parameters) -> bool {
    let Parameters { delay, keeps_order, loss, bit_errors, pace, schedule, play, .. } = parameters;
    let is_lossless = *loss == Loss::None && *bit_errors == 0.0;
    let faults = Faults::of(parameters);
    let is_faultless = !faults.change_packets() && !faults.reorder.is_possible();
    let is_fast = pace.is_none() && schedule.is_none() && play.is_none();
    is_lossless && is_faultless && is_fast && *keeps_order && delay.jitter.is_none()
}

/// Returns the probability of holding a packet back so that `wanted` of all packets are overtaken. At most half can be,
/// since the overtaking packet is not held back itself.
fn of_candidates(wanted: f64) -> f64 {
    if wanted >= 0.5 { 1.0 } else { wanted / (1.0 - wanted) }
}

/// Inverts `bits` of the byte at offset `at`.
fn invert<'a>(segments: impl Iterator<Item = &'a mut [u8]>, mut at: usize, bits: u8) {
    for segment in segments {
        match segment.get_mut(at) {
            Some(byte) => return *byte ^= bits,
            None => at -= segment.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};

    use super::*;

    const MS: u64 = 1_000_000;

    fn pool(buffers: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 512, pages, numa_node: None }).unwrap())
    }

    fn line(pool: &Arc<Pool>, options: &[(&'static str, &'static str)]) -> Line {
        Line::new(&Parameters::of(options.iter().copied()).unwrap(), pool, 0)
    }

    /// Lets packets of these numbers, with 100 bytes each, enter at `now`.
    fn enter(line: &mut Line, now: u64, numbers: impl IntoIterator<Item = u32>) {
        let pool = line.pool.clone();
        let mut batch = Batch::new();
        for number in numbers {
            let bytes = [&number.to_be_bytes()[..], &[0; 96]].concat();
            assert!(batch.push(&pool, &bytes));
            line.accept(now, &mut batch);
            assert!(batch.is_empty(), "{number} does not enter");
        }
    }

    /// Returns the numbers and times of the packets that arrive until `end`, polled whenever something happens.
    fn arrivals(line: &mut Line, end: u64) -> Vec<(u32, u64)> {
        let (mut batch, mut arrivals) = (Batch::with_capacity(3), Vec::new());
        while let Some(now) = line.next_event().filter(|now| *now <= end) {
            line.release(now, &mut batch);
            for packet in batch.packets() {
                arrivals.push((u32::from_be_bytes(packet[..4].try_into().unwrap()), now));
            }
            batch.clear();
        }
        arrivals
    }

    fn numbers(arrivals: &[(u32, u64)]) -> Vec<u32> {
        arrivals.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn packets_arrive_after_rate_and_delay() {
        let pool = pool(1024);
        let mut line = line(&pool, &[("delay", "20ms"), ("rate", "800kbit"), ("queue", "10p")]);
        enter(&mut line, 0, 0..3);
        enter(&mut line, 10 * MS, 3..5);
        let wanted = [(0, 21 * MS), (1, 22 * MS), (2, 23 * MS), (3, 31 * MS), (4, 32 * MS)];
        assert_eq!(arrivals(&mut line, u64::MAX), wanted);
        // A late poll does not delay the following packets.
        enter(&mut line, 100 * MS, 5..7);
        let mut batch = Batch::new();
        assert_eq!((line.release(120 * MS, &mut batch), line.release(150 * MS, &mut batch)), (0, 2));
        drop((line, batch));
        assert_eq!(pool.available(), 1024);
    }

    #[test]
    fn a_full_queue_drops_its_tail() {
        for (queue, accepted) in [("10p", 11), ("1kB", 11), ("1050B", 11), ("10ms", 11), ("1p", 2)] {
            let pool = pool(1024);
            let mut line = line(&pool, &[("rate", "800kbit"), ("queue", queue)]);
            enter(&mut line, 0, 0..100);
            assert_eq!(line.counters().queued_bytes(), 100 * accepted);
            assert_eq!(line.counters().queueing_delay(), Some(accepted * MS));
            // The packet that is sent makes room for the next.
            enter(&mut line, MS, 100..102);
            let found = numbers(&arrivals(&mut line, u64::MAX));
            let wanted: Vec<u32> = (0..accepted as u32).chain([100]).collect();
            assert_eq!(found, wanted, "{queue}");
            let counters = line.counters().clone();
            assert_eq!(counters.get(Event::QueueFull), 102 - wanted.len() as u64, "{queue}");
            assert_eq!([counters.held(), counters.queued_bytes()], [0, 0]);
        }
    }

    #[test]
    fn order_is_kept_unless_it_is_not_wanted() {
        for (order, is_kept) in [("on", true), ("off", false)] {
            let pool = pool(4096);
            let mut line = line(&pool, &[("delay", "20ms"), ("jitter", "10ms"), ("order", order)]);
            (0..1000).for_each(|n| enter(&mut line, u64::from(n) * 10_000, [n]));
            let arrivals = arrivals(&mut line, u64::MAX);
            assert!(arrivals.is_sorted_by_key(|(_, time)| *time));
            let mut found = numbers(&arrivals);
            assert_eq!(found.is_sorted(), is_kept);
            found.sort_unstable();
            assert_eq!(found, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_next_packet_overtakes() {
        let pool = pool(1024);
        let mut line = line(&pool, &[("reorder", "50%")]);
        enter(&mut line, 0, 0..3);
        assert_eq!(numbers(&arrivals(&mut line, 9 * MS)), [1, 0]);
        // No other packet comes.
        assert_eq!(arrivals(&mut line, u64::MAX), [(2, 10 * MS)]);
        assert_eq!(line.counters().get(Event::Reordered), 1);
    }

    #[test]
    fn repeated_and_damaged_packets_are_counted() {
        let pool = pool(4096);
        let faults = [("duplicate", "10%"), ("truncate", "10%"), ("corrupt", "10%"), ("loss", "10%")];
        let options = [&faults[..], &[("packets", "2000")]].concat();
        let mut line = line(&pool, &options);
        enter(&mut line, 0, 0..1000);
        let (mut batch, mut lens, mut damaged) = (Batch::with_capacity(2000), Vec::new(), 0);
        line.release(0, &mut batch);
        for packet in batch.packets() {
            lens.push(packet.len());
            damaged += usize::from(packet.iter().skip(4).any(|byte| *byte != 0));
        }
        let [lost, corrupted, truncated, duplicated] =
            [Event::Lost, Event::Corrupted, Event::Truncated, Event::Duplicated]
                .map(|event| line.counters().get(event));
        assert_eq!(lens.len() as u64, 1000 - lost + duplicated);
        assert!([lost, corrupted, truncated, duplicated].iter().all(|count| (50..200).contains(count)));
        // A truncated packet may be repeated, and the inverted bit may be in the number or in the part cut off.
        assert!(lens.iter().filter(|len| **len < 100).count() as u64 >= truncated && damaged > 50);
        drop((line, batch));
        assert_eq!(pool.available(), 4096);
    }

    /// The times of packets, and faults that are added, do not change the other decisions of a seed.
    #[test]
    fn decisions_depend_only_on_the_seed() {
        let run = |options: &[(&'static str, &'static str)], step: u64| {
            let pool = pool(4096);
            let mut line = line(&pool, &[options, &[("packets", "2000")]].concat());
            (0..1000).for_each(|n| enter(&mut line, u64::from(n) * step, [n]));
            numbers(&arrivals(&mut line, u64::MAX))
        };
        let first = run(&[("loss", "10%")], 0);
        assert_eq!(run(&[("loss", "10%"), ("delay", "5ms"), ("jitter", "5ms")], 777), first);
        assert_eq!(run(&[("loss", "10%"), ("corrupt", "0%"), ("rate", "1Gbit"), ("queue", "1000p")], 5), first);
        assert_ne!(run(&[("loss", "10%"), ("seed", "2")], 0), first);
    }

    /// A line that holds as many packets as it can leaves the others to the caller.
    #[test]
    fn a_full_line_loses_nothing() {
        let pool = pool(4096);
        let mut line = line(&pool, &[("delay", "1s"), ("packets", "64")]);
        let mut batch = Batch::with_capacity(1000);
        (0..1000).for_each(|_| assert!(batch.push(&pool, &[0; 60])));
        line.accept(0, &mut batch);
        let held = line.held();
        assert_eq!((held + batch.len(), line.counters().get(Event::Stalled)), (1000, 1));
        assert!(held >= 64);
        let mut arrived = Batch::with_capacity(1000);
        line.release(1000 * MS, &mut arrived);
        line.accept(1000 * MS, &mut batch);
        assert_eq!((arrived.len(), line.counters().dropped()), (held, 0));
        let counters = line.counters().clone();
        let in_line = line.held() as u64;
        drop(line);
        assert_eq!((in_line > 0, counters.get(Event::InFlight)), (true, in_line));
        drop((batch, arrived));
        assert_eq!(pool.available(), 4096);
    }

    #[test]
    fn a_schedule_changes_the_line_at_its_times() {
        let pool = pool(1024);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "time,rate,delay,loss\n0,800kbit,10ms,\n5ms,80kbit,,\n100ms,,0,100%\n").unwrap();
        let path = file.path().to_str().unwrap();
        let parameters = Parameters::of([("schedule", path), ("queue", "10p")]).unwrap();
        let mut line = Line::new(&parameters, &pool, 0);
        enter(&mut line, 2 * MS, 0..4);
        // 1 ms each, until 5 ms; the last has 10 ms.
        assert_eq!(arrivals(&mut line, 50 * MS), [(0, 13 * MS), (1, 14 * MS), (2, 15 * MS), (3, 25 * MS)]);
        assert_eq!((line.counters().rate(), line.counters().delay()), (Some(80_000), 10 * MS));
        enter(&mut line, 101 * MS, 4..6);
        assert_eq!((arrivals(&mut line, u64::MAX).len(), line.counters().get(Event::Lost)), (0, 2));
    }

    #[test]
    fn parameters_change_while_packets_wait() {
        let pool = pool(1024);
        let mut line = line(&pool, &[("rate", "800kbit"), ("queue", "10p"), ("delay", "1ms")]);
        enter(&mut line, 0, 0..4);
        let faster = Parameters::of([("rate", "8Mbit"), ("queue", "10p"), ("delay", "0")]).unwrap();
        line.change(&faster, MS + MS / 2);
        // Half of the second packet is left, which takes 50 us. No packet travels longer than the new delay.
        let us = MS / 1000;
        let wanted = [(0, 1500 * us), (1, 1550 * us), (2, 1650 * us), (3, 1750 * us)];
        assert_eq!(arrivals(&mut line, u64::MAX), wanted);
        enter(&mut line, 10 * MS, 4..6);
        line.change(&Parameters::of([]).unwrap(), 10 * MS); // no rate: the queue is empty at once
        assert_eq!(arrivals(&mut line, u64::MAX), [(4, 10 * MS), (5, 10 * MS)]);
    }

    /// A load of 2 % more than the rate for 20 s: CoDel drops as much, after it has found how often.
    #[test]
    fn codel_keeps_the_queue_short() {
        let last_wait = |options: &[(&'static str, &'static str)]| {
            let pool = pool(8192);
            let mut line = line(&pool, &[&[("rate", "8Mbit"), ("queue", "1MB")], options].concat());
            let (mut batch, mut wait) = (Batch::with_capacity(64), 0);
            for n in 0..204_000u32 {
                let now = u64::from(n) * 98_039;
                enter(&mut line, now, [n]);
                line.release(now, &mut batch);
                for packet in batch.packets() {
                    wait = now - u64::from(u32::from_be_bytes(packet[..4].try_into().unwrap())) * 98_039;
                }
                batch.clear();
            }
            (wait / MS, line.counters().get(Event::Codel))
        };
        let (wait, drops) = last_wait(&[]);
        assert!(wait > 350 && drops == 0, "{wait} ms, {drops}");
        let (wait, drops) = last_wait(&[("aqm", "codel")]);
        assert!(wait < 60 && drops > 1000, "{wait} ms, {drops}");
    }

    /// 10,000 random changes of the parameters under load: each packet arrives, was dropped for a counted cause, or is
    /// in the line; and all buffers return.
    #[test]
    fn changes_under_load_lose_nothing_that_is_not_counted() {
        let pool = pool(8192);
        let mut random = Random::new(1, 9);
        let mut line = line(&pool, &[("packets", "2000")]);
        let (mut entering, mut leaving) = (Batch::with_capacity(64), Batch::with_capacity(64));
        let (mut entered, mut arrived, mut now) = (0u64, 0u64, 0u64);
        for _ in 0..if cfg!(miri) { 50 } else { 10_000 } {
            let mut pick = |values: &[&'static str]| values[random.below(values.len() as u64) as usize];
            let mut options = vec![
                ("delay", pick(&["0", "1ms", "30ms"])),
                ("jitter", pick(&["0", "1ms", "10ms"])),
                ("loss", pick(&["0", "10%"])),
                ("reorder", pick(&["0", "0", "20%"])),
                ("duplicate", pick(&["0", "0", "20%"])),
                ("truncate", pick(&["0", "0", "20%"])),
                ("order", pick(&["on", "off"])),
            ];
            match pick(&["no", "rate", "codel"]) {
                "rate" => {
                    options.extend([("rate", pick(&["1Mbit", "100Mbit"])), ("queue", pick(&["5p", "1ms", "50kB"]))])
                }
                "codel" => options.extend([("rate", pick(&["1Mbit", "9Mbit"])), ("queue", "1s"), ("aqm", "codel")]),
                _ => {}
            }
            line.change(&Parameters::of(options).unwrap(), now);
            for _ in 0..random.below(20) {
                now += random.below(2 * MS);
                for _ in 0..random.below(20) {
                    entered += u64::from(entering.push(&pool, &vec![1; 60 + random.below(1000) as usize]));
                }
                let before = entering.packets().count();
                line.accept(now, &mut entering);
                assert!(entering.packets().count() <= before);
                line.release(now, &mut leaving);
                arrived += leaving.packets().count() as u64;
                leaving.clear();
            }
        }
        line.change(&Parameters::of([]).unwrap(), now);
        while let Some(next) = line.next_event() {
            now = now.max(next);
            line.accept(now, &mut entering);
            line.release(now, &mut leaving);
            arrived += leaving.packets().count() as u64;
            leaving.clear();
        }
        let counters = line.counters().clone();
        let waiting = entering.packets().count() as u64;
        assert_eq!(entered - waiting + counters.get(Event::Duplicated), arrived + counters.dropped());
        assert!(
            cfg!(miri) || arrived > 100_000 && counters.get(Event::Codel) > 0 && counters.get(Event::QueueFull) > 0
        );
        assert_eq!(line.held(), 0);
        drop((line, entering, leaving));
        assert_eq!((pool.available(), counters.held(), counters.queued_bytes()), (8192, 0, 0));
    }
}
