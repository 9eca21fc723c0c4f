//! A card's counters. Reading a register clears it, or it wraps around; so its counts are summed by register, and all views
//! of the counters are sums.

use std::sync::MutexGuard;

use linerate_core::error::Result;
use linerate_core::port::{Drops, Statistics};
use linerate_spec::{Access, Counter, Register};

use super::Controller;
use super::hardware::{Hardware, Sum, Sums};
use crate::pci::Bar;

/// Reads the card's counters and adds them to their sums.
pub struct CardCounters<'a, B: Bar, C: Controller> {
    pub(in crate::nic) hardware: &'a Hardware<B, C>,
    sums: MutexGuard<'a, Sums>,
}

impl<B: Bar, C: Controller> CardCounters<'_, B, C> {
    /// Reads a counter, and returns its sum since the card was opened.
    pub(in crate::nic) fn sum(&mut self, register: impl Into<Register>) -> u64 {
        self.sum_of(Counter { low: register.into(), high: None })
    }

    /// As [`sum`](Self::sum), for a counter of two registers.
    pub(in crate::nic) fn wide_sum(&mut self, low: impl Into<Register>, high: impl Into<Register>) -> u64 {
        self.sum_of(Counter { low: low.into(), high: Some(high.into()) })
    }

    fn sum_of(&mut self, Counter { low, high }: Counter) -> u64 {
        let read = |register| u64::from(self.hardware.read(register));
        let count = read(low) | high.map_or(0, |high| read(high) << 32);
        let Sum { sum, last } = self.sums.entry(low.offset).or_default();
        // A card that lies could overflow a counter of two registers.
        *sum = sum.saturating_add(match low.definition.access {
            Access::RC => count,
            // The counter wraps around: at 32 bits, or at 36.
            _ => count.wrapping_sub(*last) & if high.is_some() { (1 << 36) - 1 } else { u64::from(u32::MAX) },
        });
        *last = count;
        *sum
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    fn card_counters(&self) -> Result<CardCounters<'_, B, C>> {
        self.check_alive()?;
        Ok(CardCounters { hardware: self, sums: self.sums() })
    }

    /// Takes the present state of counters that reading does not clear as their start.
    pub(super) fn skip_counts(&self) -> Result<()> {
        let mut counters = self.card_counters()?;
        for counter in C::counters(self.config.options.rx_queues) {
            let before = counters.sums.get(&counter.low.offset).map_or(0, |sum| sum.sum);
            counters.sum_of(counter);
            counters.sums.entry(counter.low.offset).and_modify(|sum| sum.sum = before);
        }
        Ok(())
    }

    /// Returns the card's and the queues' counters.
    ///
    /// Most of the card's counters have 32 bits and stop at their maximum, which takes at least 288 s at 10 Gbit/s. So
    /// the caller calls this more often.
    pub(super) fn statistics(&self) -> Result<Statistics> {
        let counted = C::count(&mut self.card_counters()?);
        self.free_stale_time();
        let queues = self.counters.sum().drops;
        let drops = Drops {
            no_buffer: queues.no_buffer,
            malformed: queues.malformed,
            tx_too_long: queues.tx_too_long,
            in_flight: self.lost(),
            oversize: counted.drops.oversize + queues.oversize,
            ..counted.drops
        };
        Ok(Statistics { drops, ..counted })
    }

    /// Returns the name and the sum of each of the card's counters.
    pub(super) fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        let mut counters = self.card_counters()?;
        let all = C::counters(self.config.options.rx_queues).into_iter();
        Ok(all.map(|counter| (counter.to_string(), counters.sum_of(counter))).collect())
    }
}
