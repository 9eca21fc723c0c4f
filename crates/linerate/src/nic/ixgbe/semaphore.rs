//! Semaphores that the driver shares with the card's firmware and with its other port (section 10.5.4).

use std::time::Duration;

use super::X82599;
use super::registers::*;
use crate::error::{Error, Result};
use crate::nic::intel::Hardware;
use crate::pci::Bar;

/// How often and how long apart a semaphore is asked for before its owner is taken for dead.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

impl<B: Bar> Hardware<B, X82599> {
    /// Runs `work` with the semaphores `bits` of `SW_FW_SYNC`. An owner that does not give them back was killed, and
    /// loses them.
    pub(super) fn with_semaphore<T>(&self, bits: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let firmwares = bits << SW_FW_SYNC::FW_SHIFT;
        for attempt in 0.. {
            self.lock_sync()?;
            let sync = self.bar.read(SW_FW_SYNC::OFFSET) & !SW_FW_SYNC::REGSMP;
            let free = sync & (bits | firmwares) == 0;
            if free || attempt == ATTEMPTS {
                self.bar.write(SW_FW_SYNC::OFFSET, sync & !firmwares | bits | self.registers_semaphore());
                self.unlock_sync();
                break;
            }
            self.unlock_sync();
            self.bar.wait(PAUSE);
        }
        let outcome = work();
        self.lock_sync()?;
        self.change(SW_FW_SYNC::OFFSET, bits, 0);
        self.unlock_sync();
        outcome
    }

    /// Of the two ports' PHYs, this one's.
    pub(super) fn phy_semaphore(&self) -> u32 {
        SW_FW_SYNC::SW_PHY_SM0 << (self.bar.read(STATUS::OFFSET) >> STATUS::LAN_ID_SHIFT & 1)
    }

    /// Takes what protects `SW_FW_SYNC`: `SMBI` against other drivers, by reading it, and then `SWESMBI` against
    /// firmware. An X540 or X550 has `REGSMP` for that, which is taken by reading, too.
    fn lock_sync(&self) -> Result<()> {
        let smbi = self.wait_for(SWSM::OFFSET, SWSM::SMBI, 0, "SWSM", format_args!(".SMBI"), "10.5.4");
        match smbi {
            Err(Error::Timeout { .. }) => {
                // Its owner is dead: given back in its place, and taken.
                self.bar.write(SWSM::OFFSET, 0);
                self.bar.read(SWSM::OFFSET);
            }
            other => other?,
        }
        if self.registers_semaphore() != 0 {
            let regsmp = SW_FW_SYNC::REGSMP;
            let taken = self.wait_for(SW_FW_SYNC::OFFSET, regsmp, 0, "SW_FW_SYNC", format_args!(".REGSMP"), "10.5.4");
            return match taken {
                Err(Error::Timeout { .. }) => Ok(()),
                other => other,
            };
        }
        let swesmbi = SWSM::SWESMBI;
        self.change(SWSM::OFFSET, swesmbi, swesmbi);
        self.wait_for(SWSM::OFFSET, swesmbi, swesmbi, "SWSM", format_args!(".SWESMBI"), "10.5.4")
    }

    fn unlock_sync(&self) {
        if self.registers_semaphore() != 0 {
            self.change(SW_FW_SYNC::OFFSET, SW_FW_SYNC::REGSMP, 0);
        }
        self.bar.write(SWSM::OFFSET, 0);
    }

    /// `SW_FW_SYNC`'s own semaphore, of cards that have one.
    fn registers_semaphore(&self) -> u32 {
        if self.is_copper() { SW_FW_SYNC::REGSMP } else { 0 }
    }
}
