//! The entries of CSB mode, in the program's memory.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;

/// The program's part of an entry: `struct nm_csb_atok`.
#[repr(C)]
pub struct Atok {
    pub head: AtomicU32,
    pub cur: AtomicU32,
    pub need_kick: AtomicU32,
    _sync_flags: AtomicU32,
    _pad: [AtomicU32; 12],
}

/// The kernel's part of an entry: `struct nm_csb_ktoa`.
#[repr(C)]
pub struct Ktoa {
    pub hwcur: AtomicU32,
    pub hwtail: AtomicU32,
    pub need_kick: AtomicU32,
    _pad: [AtomicU32; 13],
}

/// The program's entries, one per bound ring, transmit rings first.
#[derive(Clone, Copy)]
pub struct Entries {
    pub atok: u64,
    pub ktoa: u64,
    pub count: usize,
}

impl Entries {
    pub fn atok(&self, n: usize) -> &Atok {
        assert!(n < self.count);
        // SAFETY: the program keeps this memory mapped while the port is bound; `enable_at` has checked address and
        // alignment. All fields are atomic.
        unsafe { &*(self.atok as *const Atok).add(n) }
    }

    pub fn ktoa(&self, n: usize) -> &Ktoa {
        assert!(n < self.count);
        // SAFETY: as above.
        unsafe { &*(self.ktoa as *const Ktoa).add(n) }
    }
}
