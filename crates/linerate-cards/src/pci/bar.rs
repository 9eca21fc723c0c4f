//! Access to a card's registers.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use linerate_core::memory::Mapping;

/// The registers behind a base address register, 32 bits each.
///
/// A driver is generic over it: mapped memory for a real card ([`MappedBar`], one load or store per access), a
/// function call for the model in `linerate-sim82599`.
pub trait Bar: Clone + Send + Sync + 'static {
    /// A register written once per batch.
    type Doorbell: Doorbell;

    /// Reads the register at byte `offset`.
    fn read(&self, offset: u32) -> u32;

    /// Writes the register at byte `offset`.
    fn write(&self, offset: u32, value: u32);

    /// Returns the register at byte `offset` as a doorbell, looked up once, so that ringing it is one store.
    fn doorbell(&self, offset: u32) -> Self::Doorbell;

    /// Waits: a real card in real time, a model in its own time.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A queue's tail register.
pub trait Doorbell: Send {
    /// Writes the tail. All earlier writes to memory are visible to the card first.
    fn ring(&self, tail: u32);
}

/// A BAR as mapped memory.
#[derive(Clone)]
pub struct MappedBar {
    memory: Arc<Mapping>,
}

impl MappedBar {
    /// Wraps the registers that `memory` maps.
    ///
    /// # Safety
    /// `memory` is a BAR, or memory of which nothing is lent as a slice. Registers tell a device where to read and
    /// write: the caller, also through clones, must write no register by which the device accesses memory that is
    /// lent as a slice, or that is not the program's. So only one driver at a time uses a card.
    pub unsafe fn new(memory: Arc<Mapping>) -> MappedBar {
        MappedBar { memory }
    }

    /// Reads a register of 8, 16 or 32 bits.
    ///
    /// # Panics
    /// If the register is not inside the BAR, or not aligned to its size.
    pub fn load<T: Width>(&self, offset: u32) -> T {
        // SAFETY: `register` checked that it is mapped and aligned; device memory needs volatile reads.
        let value = unsafe { self.register::<T>(offset).read_volatile() };
        after_device();
        value
    }

    /// Writes a register of 8, 16 or 32 bits.
    ///
    /// # Panics
    /// As [`load`](MappedBar::load).
    pub fn store<T: Width>(&self, offset: u32, value: T) {
        before_device();
        // SAFETY: as in `load`.
        unsafe { self.register::<T>(offset).write_volatile(value) }
    }

    /// Returns the register of 8, 16 or 32 bits at byte `offset` as a doorbell.
    ///
    /// # Panics
    /// As [`load`](MappedBar::load).
    pub fn doorbell_of<T: Width>(&self, offset: u32) -> MappedDoorbell<T> {
        MappedDoorbell { register: self.register(offset), _memory: self.memory.clone() }
    }

    /// Returns the length of the BAR in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    fn register<T: Width>(&self, offset: u32) -> NonNull<T> {
        assert!((offset as usize).is_multiple_of(size_of::<T>()), "register {offset:#x} is not aligned to its size");
        self.memory.range(offset as usize, size_of::<T>()).cast()
    }
}

/// The type of a register, by its width.
pub trait Width: Copy + sealed::Sealed {}
impl Width for u8 {}
impl Width for u16 {}
impl Width for u32 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
}

impl Bar for MappedBar {
    type Doorbell = MappedDoorbell;

    fn read(&self, offset: u32) -> u32 {
        self.load(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.store(offset, value);
    }

    fn doorbell(&self, offset: u32) -> MappedDoorbell {
        self.doorbell_of(offset)
    }
}

/// A doorbell of a [`MappedBar`], which keeps the BAR mapped.
pub struct MappedDoorbell<T = u32> {
    register: NonNull<T>,
    _memory: Arc<Mapping>,
}

// SAFETY: it points into the mapping that it keeps alive, and is only written, volatile.
unsafe impl<T> Send for MappedDoorbell<T> {}

impl<T: Width> MappedDoorbell<T> {
    /// Writes the register. All earlier writes to memory are visible to the card first.
    #[inline(always)]
    pub fn write(&self, value: T) {
        before_device();
        // SAFETY: checked by `MappedBar::register`, mapped as long as `_memory` is held.
        unsafe { self.register.write_volatile(value) }
    }
}

/// Orders all earlier writes to memory before later writes to a device.
///
/// A fence of the language orders processors, which share their caches ("inner shareable" on aarch64). A device that
/// reads memory is an observer beyond them, so the barrier must reach the outer shareable domain (Arm Architecture
/// Reference Manual, B2.3.12). On x86, where stores stay in order, it is nothing.
#[inline(always)]
fn before_device() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier; it changes no register and no memory.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders an earlier read of a device before all later reads of memory.
#[inline(always)]
fn after_device() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

impl Doorbell for MappedDoorbell {
    #[inline(always)]
    fn ring(&self, tail: u32) {
        self.write(tail);
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::PageSize;

    use super::*;

    #[test]
    fn registers_are_32_bits_at_their_offsets() {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        // SAFETY: no device is behind it, and no slice is lent of it.
        let bar = unsafe { MappedBar::new(memory.clone()) };
        bar.write(8, 1);
        bar.doorbell(12).ring(2);
        assert_eq!((bar.read(8), bar.read(12), bar.read(16)), (1, 2, 0));
        bar.store(18, 3u16);
        bar.store(23, 4u8);
        assert_eq!((bar.load::<u8>(18), bar.load::<u16>(22), bar.read(16)), (3, 0x400, 3 << 16));
        // SAFETY: as above.
        assert_eq!(unsafe { memory.words(8, 1) }[0].load(Ordering::Relaxed), 2 << 32 | 1);
    }
}
