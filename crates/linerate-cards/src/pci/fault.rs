//! Accesses blocked by the IOMMU, read from the kernel's log (ABI/testing/dev-kmsg in the kernel's documentation): the
//! kernel reports them nowhere else.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, PoisonError};

use linerate_core::memory::DeviceAddress;

/// A card's access that the IOMMU blocked, because no memory is mapped at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address of the page, or of the byte.
    pub address: DeviceAddress,
    /// Whether the access was a write; otherwise it was a read.
    pub write: bool,
}

/// The kernel's log, from the moment it was opened.
pub(super) struct FaultLog {
    log: Mutex<File>,
    /// The card's address.
    card: String,
}

impl FaultLog {
    /// Opens the log. Returns `None` if this user may not read it; faults are not reported then.
    pub fn open(address: &str) -> Option<FaultLog> {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut log = OpenOptions::new().read(true).custom_flags(nonblocking).open("/dev/kmsg").ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        Some(FaultLog { log: Mutex::new(log), card: address.to_string() })
    }

    /// Returns the next fault of this card, if any.
    pub fn next(&self) -> Option<Fault> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = [0; 8192];
        loop {
            match log.read(&mut record) {
                Ok(len) if len > 0 => {
                    if let Some(fault) = parse(&String::from_utf8_lossy(&record[..len]), &self.card) {
                        return Some(fault);
                    }
                }
                // EPIPE: records were overwritten before they were read. Continue with the next.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => return None,
            }
        }
    }
}

/// Parses a record. For a card in domain 0, Intel's IOMMU driver logs `[01:00.0]`, and AMD's the full address first.
fn parse(record: &str, card: &str) -> Option<Fault> {
    let short = card.strip_prefix("0000:").unwrap_or(card);
    let hex = |key: &str| {
        let digits = record.split(key).nth(1)?.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        DeviceAddress::from_str_radix(digits, 16).ok()
    };
    if record.contains("[DMA ") && record.contains(&format!("device [{short}]")) {
        return Some(Fault { address: hex("fault addr 0x")?, write: record.contains("[DMA Write") });
    }
    if record.contains("IO_PAGE_FAULT") && record.contains(card) {
        const WRITE: u64 = 0x20;
        return Some(Fault { address: hex("address=0x")?, write: hex("flags=0x")? & WRITE != 0 });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_both_vendors_are_parsed() {
        let intel = "3,100,2000,-;DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0x1c0000000 \
                     [fault reason 0x05] PTE Write access is not set";
        assert_eq!(parse(intel, "0000:01:00.0"), Some(Fault { address: 0x1_C000_0000, write: true }));
        assert_eq!(parse(intel, "0000:02:00.0"), None);
        let amd = "2,1,1,-;vfio-pci 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000a \
                   address=0xfffffffdf8000000 flags=0x0000]";
        assert_eq!(parse(amd, "0000:01:00.0"), Some(Fault { address: 0xFFFF_FFFD_F800_0000, write: false }));
        assert_eq!(parse("6,1,1,-;igb 0000:01:00.0: added PHC on eth0", "0000:01:00.0"), None);
        assert_eq!(parse("[DMA Read] Request device [01:00.0] fault addr", "0000:01:00.0"), None);
    }
}
