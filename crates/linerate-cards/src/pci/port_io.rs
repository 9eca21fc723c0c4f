//! I/O port BARs, accessed through the kernel: sysfs's resource files, or vfio's regions.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// I/O ports of a card. Each access is one system call with exactly the register's width.
#[derive(Clone)]
pub struct IoPorts {
    file: Arc<File>,
    /// The file offset of port 0.
    start: u64,
}

impl IoPorts {
    /// Wraps the ports that begin at byte `start` of `file`.
    ///
    /// # Safety
    /// As for [`MappedBar::new`](super::MappedBar::new): ports determine the memory that a device reads and writes.
    pub unsafe fn new(file: File, start: u64) -> IoPorts {
        IoPorts { file: Arc::new(file), start }
    }

    /// Reads 1, 2 or 4 bytes; all ones if the card is gone.
    pub fn read<const WIDTH: usize>(&self, port: u16) -> [u8; WIDTH] {
        let mut bytes = [0xFF; WIDTH];
        match self.file.read_exact_at(&mut bytes, self.start + u64::from(port)) {
            Ok(()) => bytes,
            Err(_) => [0xFF; WIDTH],
        }
    }

    /// Writes 1, 2 or 4 bytes; ignored if the card is gone.
    pub fn write<const WIDTH: usize>(&self, port: u16, bytes: [u8; WIDTH]) {
        let _ = self.file.write_all_at(&bytes, self.start + u64::from(port));
    }
}
