//! How a driver reaches a card's registers.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::memory::Mapping;

/// The registers behind a base address register, 32 bits each.
///
/// A driver is generic over it: mapped memory for a real card ([`MappedBar`], where a register
/// access is one load or store), a function call for the [model](crate::model).
pub trait Bar: Clone + Send + Sync + 'static {
    /// A register that is written once per batch.
    type Doorbell: Doorbell;

    /// Reads the register at byte `offset`.
    fn read(&self, offset: u32) -> u32;

    /// Writes the register at byte `offset`.
    fn write(&self, offset: u32, value: u32);

    /// The register at byte `offset` as a doorbell, looked up once so that ringing it is one store.
    fn doorbell(&self, offset: u32) -> Self::Doorbell;

    /// Waits: for a real card in real time, for a model in its own.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A queue's tail register.
pub trait Doorbell: Send {
    /// Tells the card how far it may go. All writes to memory before it are visible to the card first.
    fn ring(&self, tail: u32);
}

/// A BAR as mapped memory.
#[derive(Clone)]
pub struct MappedBar {
    memory: Arc<Mapping>,
}

impl MappedBar {
    /// The registers that `memory` maps.
    pub fn new(memory: Arc<Mapping>) -> MappedBar {
        MappedBar { memory }
    }

    fn register(&self, offset: u32) -> NonNull<u32> {
        let words: &[AtomicU64] = self.memory.words(offset as usize & !7, 1);
        assert!(offset.is_multiple_of(4), "register {offset:#x} is not aligned to 4 bytes");
        // SAFETY: the word was checked to lie in the mapping; its upper half is 4 bytes in.
        unsafe { NonNull::from(&words[0]).cast::<u32>().add(offset as usize % 8 / 4) }
    }
}

impl Bar for MappedBar {
    type Doorbell = MappedDoorbell;

    fn read(&self, offset: u32) -> u32 {
        // SAFETY: `register` checked that it is mapped and aligned; device memory is read volatile.
        let value = unsafe { self.register(offset).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    fn write(&self, offset: u32, value: u32) {
        fence(Ordering::Release);
        // SAFETY: as in `read`.
        unsafe { self.register(offset).write_volatile(value) }
    }

    fn doorbell(&self, offset: u32) -> MappedDoorbell {
        MappedDoorbell { register: self.register(offset), _memory: self.memory.clone() }
    }
}

/// A doorbell of a [`MappedBar`]; it keeps the BAR mapped.
pub struct MappedDoorbell {
    register: NonNull<u32>,
    _memory: Arc<Mapping>,
}

// SAFETY: it points into the mapping that it keeps alive, and is only written, volatile.
unsafe impl Send for MappedDoorbell {}

impl Doorbell for MappedDoorbell {
    #[inline(always)]
    fn ring(&self, tail: u32) {
        // Nothing on x86, where stores stay in order; a barrier on processors weaker than that.
        fence(Ordering::Release);
        // SAFETY: checked by `MappedBar::register`, mapped as long as `_memory` is held.
        unsafe { self.register.write_volatile(tail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PageSize;

    #[test]
    fn registers_are_32_bits_at_their_offsets() {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        let bar = MappedBar::new(memory.clone());
        bar.write(8, 1);
        bar.doorbell(12).ring(2);
        assert_eq!((bar.read(8), bar.read(12), bar.read(16)), (1, 2, 0));
        assert_eq!(memory.words(8, 1)[0].load(Ordering::Relaxed), 2 << 32 | 1);
    }
}
