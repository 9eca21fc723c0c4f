//! What a sender has left to the hardware: a packet's checksum, or cutting it into segments.
//!
//! The first slot of such a packet is [`unfinished`](Slot::is_unfinished), and what is to be done stands
//! at its buffer's very beginning, in the form of VirtIO's header (VIRTIO 1.2, 5.1.6), which Linux uses
//! on TAP interfaces, too. A queue that can hand it on does so; any other finishes the checksum by
//! itself, and cannot send what must be cut.

use crate::memory::{Region, View};
use crate::slot::Slot;

/// The first 10 bytes of VirtIO's header: flags, kind of segmentation, length of the headers, size of a
/// segment, where the checksum begins, and where behind that it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offload(pub [u8; Offload::LEN]);

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segmentation {
    None,
    TcpIpv4,
    TcpIpv6,
    /// UDP, or what is not known here.
    Other,
}

impl Offload {
    pub const LEN: usize = 10;
    const NEEDS_CHECKSUM: u8 = 1;
    /// Beside the kind of segmentation: the packet has ECN bits.
    const ECN: u8 = 0x80;

    /// What is still to be done, if anything is.
    pub fn of(slot: &Slot, region: &Region) -> Option<Offload> {
        slot.is_unfinished().then(|| {
            let mut bytes = [0; Offload::LEN];
            region.mapping().read((slot.buf() as usize) << region.shift(), &mut bytes);
            Offload(bytes)
        })
    }

    /// Notes it in the first slot of a packet.
    pub fn note(self, slot: &mut Slot, region: &Region) {
        slot.set_unfinished(true);
        region.mapping().write((slot.buf() as usize) << region.shift(), &self.0);
    }

    /// True if there is anything to be done.
    pub fn is_needed(self) -> bool {
        self.needs_checksum() || self.segmentation() != Segmentation::None
    }

    pub fn needs_checksum(self) -> bool {
        self.0[0] & Offload::NEEDS_CHECKSUM != 0
    }

    pub fn segmentation(self) -> Segmentation {
        match self.0[1] & !Offload::ECN {
            0 => Segmentation::None,
            1 => Segmentation::TcpIpv4,
            4 => Segmentation::TcpIpv6,
            _ => Segmentation::Other,
        }
    }

    /// Writes the packet's checksum: the sum of all from its start on, where the place of the checksum
    /// itself holds that of the pseudo header. False, and nothing is changed, if the places are not
    /// inside the packet's first slot.
    pub fn finish_checksum(self, slots: &mut [Slot], view: View<'_>) -> bool {
        let start = usize::from(u16::from_le_bytes([self.0[6], self.0[7]]));
        let place = start + usize::from(u16::from_le_bytes([self.0[8], self.0[9]]));
        let Some(first) = slots.first_mut().filter(|slot| place + 2 <= slot.len() && start <= place) else {
            return false;
        };
        first.set_unfinished(false);
        // An odd byte at a slot's end belongs to the next one's first.
        let (mut sum, mut odd) = (0u64, false);
        for (index, slot) in slots.iter().enumerate() {
            let skipped = if index == 0 { start } else { 0 };
            for byte in &view.bytes(slot)[skipped..] {
                sum += u64::from(*byte) << if odd { 0 } else { 8 };
                odd = !odd;
            }
        }
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        // 0 would mean "none" to UDP.
        let checksum = match !(sum as u16) {
            0 => u16::MAX,
            sum => sum,
        };
        view.bytes_mut(&mut slots[0])[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::memory::{Pages, Pool, RegionOptions};

    #[test]
    fn a_checksum_is_finished_over_all_slots() {
        let options = RegionOptions { buffers: 8, buffer_size: 512, pages: Pages::default(), numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        // RFC 1071's example, an odd number of zeros in front of it, and so many behind that it goes on in a
        // second slot.
        let mut bytes = vec![0; 501];
        bytes[375..383].copy_from_slice(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]);
        let mut batch = Batch::new();
        batch.push(&pool, &bytes);
        assert_eq!(batch.len(), 2);
        let mut offload = Offload([0; Offload::LEN]);
        assert!(!offload.is_needed());
        offload.0[0] = 1;
        offload.0[6..8].copy_from_slice(&301u16.to_le_bytes());
        offload.0[8..10].copy_from_slice(&10u16.to_le_bytes());
        offload.note(&mut batch.slots()[0], pool.region());
        assert_eq!(Offload::of(&batch.slots()[0], pool.region()), Some(offload));
        assert!(offload.finish_checksum(batch.slots(), pool.region().view()));
        assert_eq!(Offload::of(&batch.slots()[0], pool.region()), None);
        let first = (&mut batch).into_iter().next().unwrap();
        assert_eq!(first[311..313], [0x22, 0x0D], "the complement of ddf2");
        offload.0[8..10].copy_from_slice(&200u16.to_le_bytes());
        assert!(!offload.finish_checksum(batch.slots(), pool.region().view()), "outside the first slot");
    }
}
