//! A record of drivers' register accesses, for tests that compare drivers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use linerate_spec::Register;

/// A driver's access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterAccess {
    /// The register's name.
    pub name: &'static str,
    /// The index in its array of registers.
    pub n: u16,
    /// The value that the driver wrote; `None` for a read.
    pub written: Option<u32>,
}

/// The most accesses that are recorded.
const MOST: usize = 1 << 20;

/// The accesses recorded while recording is on.
#[derive(Default)]
pub(super) struct Trace {
    is_on: AtomicBool,
    list: Mutex<Vec<RegisterAccess>>,
}

impl Trace {
    #[inline]
    pub fn note(&self, register: Register, written: Option<u32>) {
        if self.is_on.load(Ordering::Relaxed) {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            if list.len() < MOST {
                list.push(RegisterAccess { name: register.definition.name, n: register.number, written });
            }
        }
    }

    /// Starts or stops recording; returns the previous list.
    pub fn record(&self, on: bool) -> Vec<RegisterAccess> {
        self.is_on.store(on, Ordering::Relaxed);
        std::mem::take(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
