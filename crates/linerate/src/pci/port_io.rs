//! A BAR of I/O ports, reached through the kernel: sysfs's resource files, or vfio's regions.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// I/O ports of a card. Each access is one system call of exactly the register's width, as the
/// device sees it.
#[derive(Clone)]
pub struct IoPorts {
    file: Arc<File>,
    /// Where port 0 lies in the file.
    start: u64,
}

impl IoPorts {
    /// The ports that begin at byte `start` of `file`.
    ///
    /// # Safety
    /// As for [`MappedBar::new`](super::MappedBar::new): ports tell a device where to read and write.
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

    /// Writes 1, 2 or 4 bytes; a card that is gone takes none.
    pub fn write<const WIDTH: usize>(&self, port: u16, bytes: [u8; WIDTH]) {
        let _ = self.file.write_all_at(&bytes, self.start + u64::from(port));
    }
}
