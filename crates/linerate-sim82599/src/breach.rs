//! The oracle: records driver actions that the datasheet forbids.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::Direction;

/// A breach of the device's contract by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the fields are clear
pub enum Breach {
    /// An access to an offset without a register in this model.
    NoRegister { offset: u32, write: bool },
    /// A write to a read-only register.
    ReadOnly { register: &'static str, value: u32 },
    /// A reserved bit changed.
    ReservedBits { register: &'static str, value: u32, reserved: u32, section: &'static str },
    /// A write that is forbidden in the current state of the queue or card.
    WrongTime { register: &'static str, queue: u16, why: &'static str },
    /// A queue was enabled without a ring, or with a ring of an invalid length.
    NoRing { direction: Direction, queue: u16, len: u32 },
    /// A tail beyond the ring's end.
    TailOutOfRange { direction: Direction, queue: u16, tail: u32, len: u32 },
    /// A tail that takes back descriptors owned by the card.
    TailMovedBack { direction: Direction, queue: u16, from: u32, to: u32 },
    /// A descriptor was written while the card owned it.
    DescriptorChanged { direction: Direction, queue: u16, index: u32 },
    /// A buffer was written while the card owned it.
    BufferChanged { direction: Direction, queue: u16, index: u32 },
    /// A receive buffer was given to the card, which already owned it.
    BufferGivenTwice { queue: u16, index: u32, address: u64 },
    /// DMA to an address that was not mapped.
    Unmapped { direction: Direction, queue: u16, address: u64, len: usize },
    /// Memory was unmapped that contained an enabled queue's ring.
    UnmappedInUse { direction: Direction, queue: u16 },
    /// A descriptor that the datasheet does not allow.
    BadDescriptor { direction: Direction, queue: u16, index: u32, word: u64, why: &'static str },
    /// Packet buffers that together exceed the card's packet buffer memory.
    PacketBuffer { kib: u32, most: u32 },
    /// A register that firmware also writes was written without its semaphore.
    NoSemaphore { register: &'static str, section: &'static str },
    /// A feature of the card that is not modelled.
    NotModelled { what: &'static str },
}

impl Breach {
    /// Returns a human-readable name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Breach::NoRegister { .. } => "accesses where there is no register",
            Breach::ReadOnly { .. } => "writes to read-only registers",
            Breach::ReservedBits { .. } => "changes of reserved bits",
            Breach::WrongTime { .. } => "writes at the wrong time",
            Breach::NoRing { .. } => "queues without a ring",
            Breach::TailOutOfRange { .. } => "tails beyond the ring",
            Breach::TailMovedBack { .. } => "tails that moved back",
            Breach::DescriptorChanged { .. } => "descriptors changed while the card owned them",
            Breach::BufferChanged { .. } => "buffers changed while the card owned them",
            Breach::BufferGivenTwice { .. } => "buffers given twice",
            Breach::Unmapped { .. } => "accesses to memory that is not mapped",
            Breach::UnmappedInUse { .. } => "rings unmapped while in use",
            Breach::BadDescriptor { .. } => "invalid descriptors",
            Breach::PacketBuffer { .. } => "packet buffers larger than the memory",
            Breach::NoSemaphore { .. } => "writes without a semaphore",
            Breach::NotModelled { .. } => "requests for functions that are not modelled",
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The list of breaches. The first 1,000 are kept; all are counted by kind.
#[derive(Default)]
pub(super) struct Oracle(Mutex<(BTreeMap<&'static str, u64>, Vec<Breach>)>);

impl Oracle {
    #[cold]
    pub fn note(&self, breach: Breach) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *list.0.entry(breach.kind()).or_default() += 1;
        if list.1.len() < 1000 {
            list.1.push(breach);
        }
    }

    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.values().sum()
    }

    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.iter().map(|(&kind, &count)| (kind, count)).collect()
    }

    pub fn list(&self) -> Vec<Breach> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}
