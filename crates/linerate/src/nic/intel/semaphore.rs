//! Semaphores that a driver shares with the card's firmware and the card's other ports: one bit of `SW_FW_SYNC` for
//! each shared resource.

use std::time::Duration;

use super::{Controller, Hardware};
use crate::error::{Error, Result};
use crate::pci::Bar;

/// The registers of a card's semaphores.
pub(in crate::nic) struct Semaphores {
    /// The offset of `SWSM`.
    pub swsm: u32,
    /// The offset of `SW_FW_SYNC`.
    pub sync: u32,
    /// Bit 31 of `SW_FW_SYNC` takes the place of `SWESMBI`.
    pub has_regsmp: bool,
    pub section: &'static str,
}

/// SWSM.SMBI: this driver, of several, may write `SW_FW_SYNC`. Reading takes it if it is free.
const SMBI: u32 = 1 << 0;
/// SWSM.SWESMBI: the driver may, firmware may not.
const SWESMBI: u32 = 1 << 1;
/// SW_FW_SYNC.REGSMP: as `SWESMBI`, but taken by reading.
const REGSMP: u32 = 1 << 31;
/// The shift from a driver's semaphore bit to the firmware's.
const FIRMWARE_SHIFT: u32 = 5;

/// Attempts and pause before a semaphore's owner counts as dead: firmware may take one from a driver after a second.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Runs `work` with the semaphores `bits`. An owner that keeps them too long was killed, and loses them.
    pub(in crate::nic) fn with_semaphore<T>(
        &self,
        semaphores: &Semaphores,
        bits: u32,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let all = bits | bits << FIRMWARE_SHIFT;
        for attempt in 0.. {
            self.lock(semaphores)?;
            let owned = self.bar.read(semaphores.sync) & all != 0;
            if !owned || attempt == ATTEMPTS {
                self.change(semaphores.sync, all, bits);
                self.unlock(semaphores);
                break;
            }
            self.unlock(semaphores);
            self.bar.wait(PAUSE);
        }
        let outcome = work();
        self.lock(semaphores)?;
        self.change(semaphores.sync, bits, 0);
        self.unlock(semaphores);
        outcome
    }

    /// Takes the locks on `SW_FW_SYNC`: against other drivers, then against firmware.
    fn lock(&self, &Semaphores { swsm, sync, has_regsmp, section }: &Semaphores) -> Result<()> {
        match self.wait_for(swsm, SMBI, 0, "SWSM", format_args!(".SMBI"), section) {
            Err(Error::Timeout { .. }) => {
                // Its owner is dead: release for it, then take.
                self.bar.write(swsm, 0);
                self.bar.read(swsm);
            }
            other => other?,
        }
        if has_regsmp {
            // A dead owner's lock is taken over, too.
            return match self.wait_for(sync, REGSMP, 0, "SW_FW_SYNC", format_args!(".REGSMP"), section) {
                Err(Error::Timeout { .. }) => Ok(()),
                other => other,
            };
        }
        self.change(swsm, SWESMBI, SWESMBI);
        self.wait_for(swsm, SWESMBI, SWESMBI, "SWSM", format_args!(".SWESMBI"), section)
    }

    fn unlock(&self, semaphores: &Semaphores) {
        if semaphores.has_regsmp {
            self.change(semaphores.sync, REGSMP, 0);
        }
        self.bar.write(semaphores.swsm, 0);
    }
}
