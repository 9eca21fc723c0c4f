//! Entries of the fuzz targets in `fuzz/` (`docs/testing.md`). Each takes bytes that an untrusted side has chosen, and panics
//! where an invariant does not hold. They are there with `--cfg fuzzing` only, which `cargo fuzz` sets.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::memory::{Pool, Region, RegionOptions};
use crate::port::Options;
use crate::share::RingCounts;

pub use crate::capture::fuzzing::capture;
pub use crate::filter::fuzzing::filter;
pub use crate::offload::fuzzing::offload;
pub use crate::sim82599::fuzzing::{headers, vfio_user};

/// Serves a hostile program: its requests, and its memory. See `share/server/fuzzing.rs`.
pub fn shared(data: &[u8]) {
    // One pool for all, as small as rings and packets on their way allow, so that ports cost little.
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| {
        Pool::new(Region::new(&RegionOptions { buffers: 4096, ..RegionOptions::default() }).expect("memory"))
    });
    let open = |name: &str, rings: &RingCounts| {
        let options = Options {
            rx_queues: rings.rx,
            tx_queues: rings.tx,
            ring: Some(64),
            max_frame: 60_000,
            interrupts: Some(Duration::ZERO),
            local: true,
            pool: Some(POOL.clone()),
            ..Options::default()
        };
        let [device] = options.open([name])?;
        Ok(device)
    };
    crate::share::fuzz(open, data);
    assert_eq!(POOL.available(), POOL.region().buffers(), "buffers");
}

/// Reads a target's bytes from front to back. Behind the end there are zeros.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next `count` bytes, or fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        front
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns one of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }
}
