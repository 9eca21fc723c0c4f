//! Counters that survive the card's: those are 32 bits wide and cleared by reading (8.2.3.23).
//!
//! They are added up whenever somebody asks. A card at line rate counts to 2^32 in 288 s; asked
//! less often, its counters stop there.

use std::sync::PoisonError;

use super::hardware::Hardware;
use super::registers::*;
use crate::error::Result;
use crate::pci::Bar;
use crate::port::{Drops, Statistics};

impl<B: Bar> Hardware<B> {
    /// Adds what the card has counted since the last time, and what the queues have.
    pub fn statistics(&self) -> Result<Statistics> {
        self.check_alive()?;
        let mut sum = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |offset: u32| self.bar.read(offset) as u64;
        // The low half first: reading it holds the high half.
        let read_wide = |low: u32, high: u32| read(low) | read(high) << 32;
        const CRC: u64 = 4;

        // RQSMR is left 0, so that all queues' packets, bytes and drops are in the first of each.
        // QPRC counts what reached memory; GPRC would count what was dropped for want of a
        // descriptor, too. QBRC has no CRC in it where that is stripped.
        sum.rx_packets += read(QPRC::at(0));
        sum.rx_bytes += read_wide(QBRC_L::at(0), QBRC_H::at(0));
        // GOTC counts the CRCs. Those of frames sent between the two reads are taken off next time,
        // so the sum is kept as the card counts.
        sum.tx_packets += read(GPTC::OFFSET);
        sum.tx_bytes += read_wide(GOTCL::OFFSET, GOTCH::OFFSET);

        sum.drops.no_descriptor += read(RXMPC::at(0)) + read(QPRDC::at(0));
        sum.drops.bad_crc += read(CRCERRS::OFFSET);
        sum.drops.undersize += read(RUC::OFFSET);
        sum.drops.oversize += read(ROC::OFFSET);
        sum.drops.bad_frame += read(RLEC::OFFSET) + read(ILLERRC::OFFSET) + read(RFC::OFFSET) + read(RJC::OFFSET);

        let drops = Drops {
            no_buffer: self.rx.iter().map(|place| place.counters.no_buffers()).sum(),
            malformed: self.rx.iter().map(|place| place.counters.drops()).sum(),
            tx_too_long: self.tx.iter().map(|place| place.counters.drops()).sum(),
            ..sum.drops
        };
        Ok(Statistics { tx_bytes: sum.tx_bytes.saturating_sub(sum.tx_packets * CRC), drops, ..*sum })
    }

    /// 4.6.5: what was counted before the reset is not ours.
    pub fn clear_statistics(&self) {
        for register in MAP.iter().filter(|register| register.access == Access::RC) {
            for n in 0..register.count {
                self.bar.read(register.offset + n * register.stride);
            }
        }
    }
}
