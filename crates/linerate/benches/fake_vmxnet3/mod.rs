//! A vmxnet3 that consists only of memory: commands are noted and answered, and the test acts as the device on its
//! rings. It allows testing the driver with a device that violates its specification.
#![allow(unsafe_code)]
#![allow(dead_code)] // each test uses only a part

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping, PageSize, Pool};
use linerate::nic::vmxnet3::Vmxnet3;
use linerate::pci::{Bar, Bus, Interrupt, MappedBar, MappedDoorbell};
use linerate::spec::vmxnet3::descriptor::{completion, receive, transmit};
use linerate::spec::vmxnet3::{command, queue, shared, vd};
use linerate::{Options, Result};

/// Returns 64-bit words of memory shared with a device.
pub fn words(memory: &Mapping, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: the memory holds rings, or packets that the device owns, so there are no slices of it.
    unsafe { memory.words(offset, count) }
}

/// The device's side: its memory, and what it was told.
#[derive(Default)]
pub struct Device {
    maps: Mutex<Vec<Arc<Mapping>>>,
    /// The commands since the last call of [`commands`](Device::commands).
    commands: Mutex<Vec<u32>>,
    answers: Mutex<Answers>,
}

/// Wrong answers of the device, and its link.
#[derive(Clone, Copy, Default)]
pub struct Answers {
    /// All registers read all ones.
    pub is_gone: bool,
    /// The result of this command is 1 instead of 0.
    pub refused: Option<u32>,
    /// The result of `GET_LINK`.
    pub link: u32,
    /// Bits of the versions that are missing.
    pub missing_versions: u32,
}

/// Registers of a BAR.
#[derive(Clone)]
pub struct Registers {
    device: Arc<Device>,
    memory: MappedBar,
    is_vd: bool,
}

impl Bar for Registers {
    type Doorbell = MappedDoorbell;

    fn read(&self, offset: u32) -> u32 {
        let answers = *self.device.answers.lock().unwrap();
        match offset {
            _ if answers.is_gone => u32::MAX,
            vd::VRRS::OFFSET | vd::UVRS::OFFSET if self.is_vd => 1 & !answers.missing_versions,
            vd::CMD::OFFSET if self.is_vd => match self.memory.read(offset) {
                command::GET_LINK => answers.link,
                command => u32::from(answers.refused == Some(command)),
            },
            _ => self.memory.read(offset),
        }
    }

    fn write(&self, offset: u32, value: u32) {
        if self.is_vd && offset == vd::CMD::OFFSET {
            self.device.commands.lock().unwrap().push(value);
        }
        self.memory.write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> MappedDoorbell {
        self.memory.doorbell(offset)
    }

    fn wait(&self, _: Duration) {}
}

// SAFETY: it only assigns addresses, and does not access memory.
unsafe impl DmaSpace for Device {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.maps.lock().unwrap();
        maps.push(memory.clone());
        Ok(Addresses::Contiguous(Contiguous((maps.len() as DeviceAddress) << 40)))
    }

    unsafe fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for Device {
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        (0..count).map(|_| Interrupt::new()).collect()
    }
}

/// Opens a driver for the device. Returns also its registers.
pub fn open(device: &Arc<Device>, options: Options, pool: Arc<Pool>) -> Result<(Vmxnet3<Registers>, [Registers; 2])> {
    let registers = [false, true].map(|is_vd| {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        // SAFETY: the memory belongs to this device alone, and there are no slices of it.
        Registers { device: device.clone(), memory: unsafe { MappedBar::new(memory) }, is_vd }
    });
    let [pt, vd] = registers.clone();
    Ok((Vmxnet3::open(pt, vd, device.clone(), options.of_port("fake", pool)?)?, registers))
}

impl Device {
    pub fn answer(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }

    pub fn commands(&self) -> Vec<u32> {
        std::mem::take(&mut self.commands.lock().unwrap())
    }

    /// Returns the memory that holds the shared area and all rings.
    pub fn memory(&self) -> Arc<Mapping> {
        self.maps.lock().unwrap()[0].clone()
    }

    pub fn packets(&self) -> Arc<Mapping> {
        self.maps.lock().unwrap()[1].clone()
    }

    /// Reads bytes of the memory at this offset.
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory().read(offset, &mut bytes);
        bytes
    }

    /// Reads the offset that an address of the shared area refers to.
    pub fn offset(&self, at: usize) -> usize {
        u64::from_le_bytes(self.bytes(at)) as u32 as usize
    }

    /// Returns the device's end of a queue, by its number among all queues: transmit queues are first.
    pub fn queue(self: &Arc<Device>, number: usize) -> Queue {
        let at = self.offset(shared::QUEUE_DESC) + number * queue::LEN;
        let ring = |n: usize| {
            let len = u32::from_le_bytes(self.bytes(at + queue::RING_LEN + 4 * n)) as usize;
            Ring { offset: self.offset(at + queue::RING + 8 * n), len, next: 0 }
        };
        Queue { device: self.clone(), rings: [ring(0), ring(1)], completions: ring(2) }
    }
}

#[derive(Clone, Copy)]
pub struct Ring {
    pub offset: usize,
    pub len: usize,
    next: usize,
}

impl Ring {
    fn words<'a>(&self, memory: &'a Mapping) -> &'a [AtomicU64] {
        words(memory, self.offset + self.next % self.len * 16, 2)
    }

    fn is_odd_round(&self) -> bool {
        (self.next / self.len).is_multiple_of(2)
    }
}

/// The device's end of a queue.
pub struct Queue {
    device: Arc<Device>,
    pub rings: [Ring; 2],
    pub completions: Ring,
}

impl Queue {
    /// Writes a completion, with the generation that is due.
    pub fn complete(&mut self, first: u64, second: u64) {
        let memory = self.device.memory();
        let generation = if self.completions.is_odd_round() { completion::GENERATION } else { 0 };
        let words = self.completions.words(&memory);
        words[0].store(first, Relaxed);
        words[1].store(second & !completion::GENERATION | generation, Release);
        self.completions.next += 1;
    }

    /// Returns the index and the buffer's offset and length of the next receive descriptor, if the driver has given it.
    pub fn pop(&mut self, which: usize) -> Option<(u64, usize, usize)> {
        let (memory, ring) = (self.device.memory(), &mut self.rings[which]);
        let words = ring.words(&memory);
        let word = words[1].load(Acquire);
        ((word & receive::GENERATION != 0) == ring.is_odd_round() && word != 0).then_some(())?;
        let offset = words[0].load(Relaxed) as u32 as usize;
        let popped = ((ring.next % ring.len) as u64, offset, (word & 0x3FFF) as usize);
        ring.next += 1;
        Some(popped)
    }

    /// Receives a packet of these bytes, as receive queue `number` of `queues`. Returns false if the descriptors do not
    /// suffice; the end of the packet is then missing.
    pub fn receive(&mut self, number: u64, queues: u64, bytes: &[u8]) -> bool {
        let (mut at, packets) = (0, self.device.packets());
        while at < bytes.len() {
            let which = usize::from(at > 0);
            let Some((index, offset, room)) = self.pop(which) else { return false };
            let part = &bytes[at..bytes.len().min(at + room)];
            packets.write(offset, part);
            let begin = if at == 0 { completion::SOP } else { 0 };
            at += part.len();
            let end = if at == bytes.len() { completion::EOP } else { 0 };
            let number = (number + which as u64 * queues) << completion::QUEUE_SHIFT;
            self.complete(index | number | begin | end, part.len() as u64);
        }
        true
    }

    /// Sends the next packet. Returns its bytes and word 1 of its first descriptor, if there is one.
    pub fn send(&mut self) -> Option<(Vec<u8>, u64)> {
        let (mut bytes, mut first) = (Vec::new(), None);
        loop {
            let (memory, ring) = (self.device.memory(), &mut self.rings[0]);
            let words = ring.words(&memory);
            let word = words[1].load(Acquire);
            let is_given = (word & transmit::GENERATION != 0) == ring.is_odd_round() && word != 0;
            assert!(is_given || first.is_none(), "a packet without an end");
            is_given.then_some(())?;
            let (before, index) = (bytes.len(), ring.next % ring.len);
            bytes.resize(before + (word & 0x3FFF) as usize, 0);
            self.device.packets().read(words[0].load(Relaxed) as u32 as usize, &mut bytes[before..]);
            ring.next += 1;
            let first = *first.get_or_insert(word);
            if word & transmit::EOP != 0 {
                self.complete(index as u64, 0);
                return Some((bytes, first));
            }
        }
    }
}
