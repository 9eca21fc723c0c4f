//! The wait for frames in flight at a run's end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate::port::Statistics;
use linerate::traffic::Report;

use super::ports::gone;
use super::{Outcome, POLL_INTERVAL, Run, Sums};
use crate::line_rate::model;
use crate::notes::undelivered;

/// After this time without any movement, missing frames count as lost.
const DRAIN: Duration = Duration::from_secs(2);
/// The longest time to wait for frames that are still moving.
const LONGEST_DRAIN: Duration = Duration::from_secs(5);
/// The longest interval between two remaining frames of a port that is gone: a server's thread sleeps for 250 ms.
const REMAINING_INTERVAL: Duration = Duration::from_millis(300);

impl Run {
    /// Stops the models' wires and lets the threads continue until the ports have sent the `moved` packets and all
    /// frames of testers have arrived, or nothing has moved for [`DRAIN`].
    pub(super) fn drain(&self, judge: &impl Fn(&[Option<Report>], Sums) -> Outcome, moved: u64) {
        self.ports.models().iter().for_each(|card| card.finish_wire());
        // Other senders do not stop: frames that arrive now were sent after the end.
        let is_own = self.ports.devices.iter().all(|device| model(device).is_some() || device.is_exhausted());
        let is_settled = || self.is_settled(judge, moved, is_own);
        let (mut last, mut since) = ((0, Vec::new()), Instant::now());
        let is_gone = self.ports.devices.iter().any(|device| gone(device).is_some());
        let (mut before, mut changed) = (self.arrived(), Instant::now());
        let mut is_still = !is_gone && self.ports.models().is_empty();
        let begin = Instant::now();
        while !(is_still && self.is_received() && is_settled())
            && since.elapsed() < DRAIN
            && begin.elapsed() < LONGEST_DRAIN
        {
            // Leave the processors to the threads that move the frames.
            std::thread::sleep(POLL_INTERVAL);
            let now = self.arrived();
            if now != std::mem::replace(&mut before, now) {
                changed = Instant::now();
            }
            is_still = changed.elapsed() >= if is_gone { REMAINING_INTERVAL } else { POLL_INTERVAL };
            let now = (self.threads.moved().packets, self.ports.reports());
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Returns the number of frames that have arrived at models, or in the ring of a port that is gone. The threads may
    /// still have to receive and forward some of them.
    fn arrived(&self) -> u64 {
        let (statistics, gone) = self.ports.known_statistics();
        let all = self.ports.devices.iter().zip(statistics.iter().zip(gone));
        let are_left = all.filter(|(device, (_, gone))| *gone || model(device).is_some());
        are_left.map(|(_, (statistics, _))| statistics.rx_packets).sum()
    }

    /// Returns whether the threads have received all frames that arrived at models, as a thread without a processor may
    /// be late. With a count, no more frames are received after it.
    fn is_received(&self) -> bool {
        let all = self.ports.devices.iter().zip(self.ports.known_statistics().0);
        self.clock.count.is_some()
            || all.filter(|(device, _)| model(device).is_some()).all(|(device, statistics)| {
                device.queue_statistics().rx_slots.iter().sum::<u64>() >= statistics.rx_packets
            })
    }

    /// Returns whether the ports have sent all packets, and no frame is missing. With other senders, missing frames do
    /// not count.
    fn is_settled(&self, judge: &impl Fn(&[Option<Report>], Sums) -> Outcome, moved: u64, is_own: bool) -> bool {
        // Do not wait for frames that the ports have dropped. Drops of other senders' frames are not taken into
        // account.
        let statistics = self.ports.known_statistics().0;
        let undelivered = if is_own { undelivered(&statistics) } else { 0 };
        let now = self.threads.moved().packets;
        let sums = Sums { undelivered, moved: now.min(self.sent(&statistics).unwrap_or(0)) };
        let is_awaited = is_own || self.mode.generates() || self.mode.is_measurement();
        self.has_sent(now.max(moved)) && (!is_awaited || judge(&self.ports.reports(), sums).lost <= undelivered)
    }

    /// Returns whether the ports have sent this many packets.
    fn has_sent(&self, moved: u64) -> bool {
        let Ok(statistics) = self.ports.statistics() else { return true };
        let too_long: u64 = statistics.iter().map(|port| port.drops.tx_too_long).sum();
        self.sent(&statistics).is_none_or(|sent| sent + too_long >= moved)
    }

    /// Returns the number of packets that the ports have sent, or that `faulty:` has dropped instead; `None` if packets
    /// do not count by being sent (`Mode::moves_by_sending`).
    pub(super) fn sent(&self, statistics: &[Statistics]) -> Option<u64> {
        let given: u64 = self.ports.devices.iter().flat_map(|device| device.queue_statistics().tx_slots).sum();
        let refused: u64 = statistics.iter().map(|port| port.drops.tx_too_long).sum();
        let sent: u64 = statistics.iter().map(|port| port.tx_packets + port.drops.injected).sum();
        let answered = self.threads.answered.load(Ordering::Relaxed);
        self.mode.moves_by_sending(given + refused).then(|| sent.saturating_sub(answered))
    }
}
