//! The clock of a card (IEEE 1588).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// The clock of a card, which notes when packets leave and arrive at the cable. No delay of the program is in these
/// times.
///
/// It begins with the system's time, in nanoseconds since 1970, and then runs by itself. Queues and clones of the clock
/// keep the card open.
///
/// The card notes one sent packet at a time: the next one after [`sent`](Clock::sent) has returned the time of the last.
/// [`Packet::request_timestamp`](crate::Packet::request_timestamp) selects the packet. Times of received packets are
/// [`Packet::timestamp`](crate::Packet::timestamp), on ports with `?metadata=on`.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// let [port] = linerate::open(["sim:clock?wire=none"])?;
/// let clock = port.clock()?;
/// let before = clock.now()?;
/// clock.adjust(-1_000_000_000)?; // a second back
/// assert!(clock.now()? < before);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Clock(Arc<dyn CardClock>);

/// The part of a clock that differs by driver.
pub trait CardClock: Send + Sync {
    /// Returns the card's counter, in nanoseconds.
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    fn count(&self) -> Result<u64>;

    /// Returns the counter at the time of the last sent packet that was noted, and lets the card note the next one.
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    fn take_sent(&self) -> Result<Option<u64>>;

    /// Returns the relation between the counter and the time.
    fn scale(&self) -> &Mutex<Scale>;
}

/// The relation between a card's counter and the time. Changing the time changes only this: the counter runs freely, so
/// all cards can be adjusted in the same way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale {
    /// This counter value was this time.
    count: u64,
    time: u64,
    /// How much faster the time runs than the counter.
    parts_per_billion: i64,
}

/// The most that a clock's rate can be changed by, as Linux's `adjtimex(2)` allows a tick to change: 10 %.
const MOST_PARTS: i64 = 100_000_000;

impl Scale {
    /// Returns the time at a value of the counter.
    pub fn time(&self, count: u64) -> u64 {
        let passed = i128::from(count.wrapping_sub(self.count) as i64);
        let time = i128::from(self.time) + passed + passed * i128::from(self.parts_per_billion) / 1_000_000_000;
        time.clamp(0, u64::MAX.into()) as u64
    }

    /// Sets the time at a value of the counter.
    pub fn set(&mut self, count: u64, time: u64) {
        (self.count, self.time) = (count, time);
    }
}

impl Clock {
    /// Creates the clock of a card.
    pub fn new(card: Arc<dyn CardClock>) -> Clock {
        Clock(card)
    }

    /// Returns the time, in nanoseconds.
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    pub fn now(&self) -> Result<u64> {
        let scale = self.scale();
        Ok(scale.time(self.0.count()?))
    }

    /// Sets the time, in nanoseconds.
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    pub fn set(&self, nanoseconds: u64) -> Result<()> {
        self.change(|_, _| nanoseconds)
    }

    /// Adds nanoseconds to the time.
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    pub fn adjust(&self, nanoseconds: i64) -> Result<()> {
        self.change(|_, now| now.saturating_add_signed(nanoseconds))
    }

    /// Lets the time run faster, or slower if negative, than the card's counter, in parts per billion. Another call
    /// replaces the value.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [port] = linerate::open(["sim:clock-rate?wire=none"])?;
    /// port.clock()?.set_rate(-2_500)?; // 2.5 µs less per second
    /// assert!(port.clock()?.set_rate(1_000_000_000).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](ErrorKind::BadOption): more than 100,000,000. [`Gone`](ErrorKind::Gone).
    pub fn set_rate(&self, parts_per_billion: i64) -> Result<()> {
        if parts_per_billion.unsigned_abs() > MOST_PARTS as u64 {
            let why =
                format!("a clock's rate can change by {MOST_PARTS} parts per billion, not by {parts_per_billion}");
            return Err(Error::new(ErrorKind::BadOption, "", why));
        }
        self.change(|scale, now| {
            scale.parts_per_billion = parts_per_billion;
            now
        })
    }

    /// Returns when the packet left that has [requested it](crate::Packet::request_timestamp), if the card has noted a
    /// time since the last call.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::Batch;
    /// let [mut port] = linerate::open(["sim:sent?wire=sink"])?;
    /// let (mut tx, mut batch, clock) = (port.tx(0)?, Batch::new(), port.clock()?);
    /// let before = clock.now()?;
    /// batch.push(port.pool(), &[7; 60]);
    /// batch.packets().next().unwrap().request_timestamp();
    /// tx.send(&mut batch);
    /// # let mut sent = clock.sent()?;
    /// // When the card has sent it:
    /// # let start = std::time::Instant::now();
    /// # while sent.is_none() && start.elapsed().as_secs() < 10 {
    /// #     std::thread::yield_now();
    /// #     sent = clock.sent()?;
    /// # }
    /// assert!(sent.unwrap() >= before);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Gone`](ErrorKind::Gone).
    pub fn sent(&self) -> Result<Option<u64>> {
        let scale = self.scale();
        Ok(self.0.take_sent()?.map(|count| scale.time(count)))
    }

    /// Sets the time to what `change` makes of the present time.
    fn change(&self, change: impl FnOnce(&mut Scale, u64) -> u64) -> Result<()> {
        let mut scale = self.scale();
        let count = self.0.count()?;
        let now = scale.time(count);
        let time = change(&mut scale, now);
        scale.set(count, time);
        Ok(())
    }

    /// Locks the scale. It also keeps two threads from reading the halves of the counter at the same time.
    fn scale(&self) -> MutexGuard<'_, Scale> {
        self.0.scale().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    /// A counter that the test sets.
    #[derive(Default)]
    struct Counter {
        count: AtomicU64,
        scale: Mutex<Scale>,
    }

    impl CardClock for Counter {
        fn count(&self) -> Result<u64> {
            Ok(self.count.load(Relaxed))
        }

        fn take_sent(&self) -> Result<Option<u64>> {
            Ok(Some(self.count.load(Relaxed).wrapping_sub(500)))
        }

        fn scale(&self) -> &Mutex<Scale> {
            &self.scale
        }
    }

    #[test]
    fn the_time_is_set_and_its_rate_changes_without_a_step() {
        let counter = Arc::new(Counter::default());
        let clock = Clock::new(counter.clone());
        let count = |value: u64| counter.count.store(value, Relaxed);
        count(u64::MAX - 999);
        clock.set(1_000_000).unwrap();
        assert_eq!(clock.sent().unwrap(), Some(999_500), "before the time was set");
        count(1_000); // 2,000 later, with an overflow
        assert_eq!(clock.now().unwrap(), 1_002_000);
        clock.set_rate(-100_000_000).unwrap();
        assert_eq!(clock.now().unwrap(), 1_002_000);
        count(11_000);
        assert_eq!(clock.now().unwrap(), 1_011_000);
        clock.set_rate(1).unwrap();
        clock.adjust(-11_000).unwrap();
        count(2_000_011_000);
        assert_eq!(clock.now().unwrap(), 2_001_000_002);
        clock.adjust(i64::MIN).unwrap();
        assert_eq!(clock.now().unwrap(), 0);
        assert_eq!(clock.set_rate(i64::MIN).unwrap_err().kind(), ErrorKind::BadOption);
    }
}
