//! What the card is plugged into: memory that was mapped for it, under addresses of its own, and who waits
//! for its interrupts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping};
use crate::pci::{Bus, Interrupt};

/// The card's address space.
///
/// Device addresses are deliberately not pointers, and mappings do not touch each other, so that a
/// mix-up of the two, or a step beyond a mapping, is found.
#[derive(Default)]
pub(super) struct Dma {
    maps: RwLock<Maps>,
    interrupts: Mutex<Interrupts>,
}

/// By vector: its eventfd, and when it was raised last.
pub(super) type Interrupts = Vec<(Interrupt, Option<Instant>)>;

/// Vectors of the card (section 7.3.1).
const VECTORS: u16 = 64;

#[derive(Default)]
pub(super) struct Maps {
    ranges: Vec<(DeviceAddress, Arc<Mapping>)>,
    next: DeviceAddress,
}

/// The first address given out: 64 GiB, so that both halves of an address matter.
const FIRST: DeviceAddress = 0x10_0000_0000;
/// Unmapped bytes after each mapping.
const GAP: DeviceAddress = 1 << 30;

impl Dma {
    pub fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn interrupts(&self) -> MutexGuard<'_, Interrupts> {
        self.interrupts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    /// The memory that holds `len` bytes from `address` on, and where in it; `None` if any of them
    /// is not mapped.
    #[inline]
    pub fn find(&self, address: DeviceAddress, len: usize) -> Option<(&Arc<Mapping>, usize)> {
        self.ranges.iter().find_map(|(start, memory)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            (offset.checked_add(len)? <= memory.len()).then_some((memory, offset))
        })
    }
}

impl DmaSpace for Dma {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let address = maps.next.max(FIRST);
        maps.next = address + (memory.len() as u64).next_multiple_of(GAP) + GAP;
        maps.ranges.push((address, memory.clone()));
        Ok(Addresses::Contiguous(Contiguous(address)))
    }

    fn unmap(&self, address: DeviceAddress) {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        maps.ranges.retain(|(start, _)| *start != address);
    }
}

impl Bus for Dma {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        if count > VECTORS {
            return Err(Error::Card {
                card: "the model".to_string(),
                why: format!("it has {VECTORS} interrupts, and {count} are needed, one for each queue"),
                mend: "use fewer queues, or poll: --wait poll".to_string(),
            });
        }
        let ours = (0..count).map(|_| Interrupt::new()).collect::<Result<Vec<_>>>()?;
        let theirs = ours.iter().map(Interrupt::try_clone).collect::<Result<Vec<_>>>()?;
        *Dma::interrupts(self) = ours.into_iter().map(|interrupt| (interrupt, None)).collect();
        Ok(theirs)
    }
}
