//! Counts of packets that a link dropped or changed, by cause.

use std::sync::atomic::{AtomicU64, Ordering};

/// A cause for which a link counts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// Lost, as configured.
    Lost,
    /// Dropped because the queue of the rate was full.
    QueueFull,
    /// Dropped by CoDel.
    Codel,
    /// Marked by CoDel instead of dropped.
    Marked,
    /// One bit was inverted.
    Corrupted,
    /// The end was cut off.
    Truncated,
    /// Repeated.
    Duplicated,
    /// Overtaken by the next packet.
    Reordered,
    /// Not in the recording that is played.
    BeyondRecording,
    /// How often the link held as many packets as it can, and accepted no more until one left.
    Stalled,
    /// Still in the link when its queue stopped.
    InFlight,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 11] = [
        Event::Lost,
        Event::QueueFull,
        Event::Codel,
        Event::Marked,
        Event::Corrupted,
        Event::Truncated,
        Event::Duplicated,
        Event::Reordered,
        Event::BeyondRecording,
        Event::Stalled,
        Event::InFlight,
    ];

    /// Returns the event's name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Event::Lost => "lost",
            Event::QueueFull => "queue_full",
            Event::Codel => "codel",
            Event::Marked => "marked",
            Event::Corrupted => "corrupted",
            Event::Truncated => "truncated",
            Event::Duplicated => "duplicated",
            Event::Reordered => "reordered",
            Event::BeyondRecording => "beyond_recording",
            Event::Stalled => "stalled",
            Event::InFlight => "in_flight",
        }
    }

    /// Returns the words that follow a count of the event, for people.
    pub fn phrase(self) -> &'static str {
        match self {
            Event::Lost => "lost as configured",
            Event::QueueFull => "dropped by a full queue",
            Event::Codel => "dropped by CoDel",
            Event::Marked => "marked by CoDel",
            Event::Corrupted => "with an inverted bit",
            Event::Truncated => "truncated",
            Event::Duplicated => "duplicated",
            Event::Reordered => "overtaken",
            Event::BeyondRecording => "not in the recording",
            Event::Stalled => "times without room for more packets (raise packets=N)",
            Event::InFlight => "in the link at the end",
        }
    }

    /// Returns whether the packets of this event were dropped.
    pub fn is_drop(self) -> bool {
        matches!(self, Event::Lost | Event::QueueFull | Event::Codel)
    }
}

/// The counters of one or more lines, and what they hold. Any thread may read them.
#[derive(Default)]
pub struct Counters {
    events: [AtomicU64; Event::ALL.len()],
    held: AtomicU64,
    queued_bytes: AtomicU64,
    /// The present rate of a line in bits per second, 0 without one; and its mean delay in nanoseconds.
    rate: AtomicU64,
    delay: AtomicU64,
}

impl Counters {
    /// Counts an event.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    pub(crate) fn add(&self, event: Event, count: u64) {
        self.events[event as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Replaces what one line holds.
    #[inline]
    pub(crate) fn hold(&self, [held_before, held]: [u64; 2], [queued_before, queued]: [u64; 2]) {
        if held != held_before {
            self.held.fetch_add(held.wrapping_sub(held_before), Ordering::Relaxed);
        }
        if queued != queued_before {
            self.queued_bytes.fetch_add(queued.wrapping_sub(queued_before), Ordering::Relaxed);
        }
    }

    /// Replaces the present rate and the mean delay.
    pub(crate) fn set_present(&self, rate: Option<u64>, delay: u64) {
        self.rate.store(rate.unwrap_or(0), Ordering::Relaxed);
        self.delay.store(delay, Ordering::Relaxed);
    }

    /// Returns how often an event occurred.
    pub fn get(&self, event: Event) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }

    /// Returns the count of packets that were dropped, for any cause.
    pub fn dropped(&self) -> u64 {
        Event::ALL.iter().filter(|event| event.is_drop()).map(|event| self.get(*event)).sum()
    }

    /// Returns the count of slots that wait in queues and delays.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the present rate in bits per second, with the changes of a schedule; `None` without a rate. A trace has
    /// its mean rate.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Returns the present mean delay in nanoseconds, with the changes of a schedule.
    pub fn delay(&self) -> u64 {
        self.delay.load(Ordering::Relaxed)
    }

    /// Returns how long a packet that enters now would wait in the queue, in nanoseconds; `None` without a rate.
    pub fn queueing_delay(&self) -> Option<u64> {
        let bits = u128::from(self.queued_bytes()) * 8;
        Some((bits * 1_000_000_000 / u128::from(self.rate()?)).try_into().unwrap_or(u64::MAX))
    }

    /// Returns the bytes that wait in queues.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }
}
