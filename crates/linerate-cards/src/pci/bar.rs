//! Access to a card's registers.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use linerate_core::memory::Mapping;

/// The 32-bit registers of a BAR (base address register).
///
/// Drivers are generic over this trait. A real card's registers are mapped memory ([`MappedBar`], one load or store per
/// access); the model's are function calls.
pub trait Bar: Clone + Send + Sync + 'static {
    /// A register written once per batch.
    type Doorbell: Doorbell;

    /// Reads the register at byte `offset`.
    fn read(&self, offset: u32) -> u32;

    /// Writes the register at byte `offset`.
    fn write(&self, offset: u32, value: u32);

    /// Returns the register at byte `offset` as a doorbell. It is looked up once, so that ringing it is one store.
    fn doorbell(&self, offset: u32) -> Self::Doorbell;

    /// Waits; a model advances its own clock instead.
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
    /// `memory` is a BAR, or memory of which no slice is lent out. Registers tell a device where to read and write. The
    /// caller, also through clones, must not write registers that make the device access memory that is lent out as a
    /// slice, or that the program does not own. So only one driver may use a card at a time.
    pub unsafe fn new(memory: Arc<Mapping>) -> MappedBar {
        MappedBar { memory }
    }

    /// Reads a register of 8, 16 or 32 bits.
    ///
    /// # Panics
    /// If the register is not inside the BAR, or not aligned to its size.
    pub fn load<T: Width>(&self, offset: u32) -> T {
        // SAFETY: `register` checked that the register is mapped and aligned; device memory needs volatile reads.
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

// SAFETY: the pointer is into the mapping that `_memory` keeps alive, and is only used for volatile writes.
unsafe impl<T> Send for MappedDoorbell<T> {}

impl<T: Width> MappedDoorbell<T> {
    /// Writes the register. All earlier writes to memory are visible to the card first.
    #[inline(always)]
    pub fn write(&self, value: T) {
        before_device();
        // SAFETY: `MappedBar::register` checked the pointer, and `_memory` keeps it mapped.
        unsafe { self.register.write_volatile(value) }
    }
}

/// Orders all earlier writes to memory before later writes to a device.
///
/// Rust's fences order accesses among processors (the inner shareable domain on aarch64). A device that reads memory is
/// outside this domain, so the barrier must cover the outer shareable domain (Arm Architecture Reference Manual,
/// B2.3.12). On x86, which keeps stores in order, no instruction is needed.
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
        // SAFETY: this memory belongs to no device, and no slice of it is lent out.
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
