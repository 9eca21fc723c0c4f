//! The input of fuzz targets (`docs/testing.md`). Built only with `--cfg fuzzing`, which `cargo fuzz` sets.
#![allow(missing_docs)]

/// Reads a target's bytes from front to back. After the end it returns zeros.
pub struct Input<'a> {
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

    /// Returns all remaining bytes.
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

    /// Returns one of the values in `all`.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }
}
