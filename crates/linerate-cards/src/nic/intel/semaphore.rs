//! Semaphores shared with the card's firmware and its other ports: one bit of `SW_FW_SYNC` for each resource.

use std::time::Duration;

use linerate_core::error::{ErrorKind, Result};
use linerate_spec::Register;
// The bits are the same on all cards.
use linerate_spec::x82599::{SW_FW_SYNC, SWSM};

use super::{Controller, Hardware};
use crate::pci::Bar;

/// The registers of a card's semaphores.
pub(in crate::nic) struct Semaphores {
    /// `SWSM`. SMBI locks `SW_FW_SYNC` against other drivers; reading the register acquires SMBI if it is free. SWESMBI
    /// locks `SW_FW_SYNC` against firmware.
    pub swsm: Register,
    /// `SW_FW_SYNC`.
    pub sync: Register,
    /// `SW_FW_SYNC.REGSMP` replaces `SWESMBI`; reading the register acquires it.
    pub has_regsmp: bool,
}

/// Attempts, and the pause between them, before a semaphore's owner is considered dead. Firmware may take a semaphore
/// from a driver after 1 s.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Runs `work` while holding the semaphores `bits`. Takes them over from an owner that holds them too long, because
    /// such an owner was killed.
    pub(in crate::nic) fn with_semaphore<T>(
        &self,
        semaphores: &Semaphores,
        bits: u32,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let all = bits | bits << SW_FW_SYNC::FW_SHIFT;
        for attempt in 0.. {
            self.lock(semaphores)?;
            let owned = self.read(semaphores.sync) & all != 0;
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
        self.clear(semaphores.sync, bits);
        self.unlock(semaphores);
        outcome
    }

    /// Locks `SW_FW_SYNC`: against other drivers, then against firmware.
    fn lock(&self, &Semaphores { swsm, sync, has_regsmp }: &Semaphores) -> Result<()> {
        match self.wait_clear(swsm, SWSM::SMBI) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                // The owner is dead: release its lock, then take it.
                self.write(swsm, 0);
                self.read(swsm);
            }
            other => other?,
        }
        if has_regsmp {
            // A dead owner's lock is taken over.
            return match self.wait_clear(sync, SW_FW_SYNC::REGSMP) {
                Err(error) if error.kind() == ErrorKind::Timeout => Ok(()),
                other => other,
            };
        }
        self.set(swsm, SWSM::SWESMBI);
        self.wait_set(swsm, SWSM::SWESMBI)
    }

    fn unlock(&self, semaphores: &Semaphores) {
        if semaphores.has_regsmp {
            self.clear(semaphores.sync, SW_FW_SYNC::REGSMP);
        }
        self.write(semaphores.swsm, 0);
    }
}
