//! A receive queue that also reads the header of each packet (5.1.6.4): pending offloads, and what the device found out
//! about the packet ([`Metadata`]).
//!
//! The header stays before the packet in its buffer. So it is read after the loops of `queue` have taken the packets,
//! and these loops stay as they are.
#![allow(unsafe_code)]

use linerate_core::batch::Batch;
use linerate_core::memory::Locate;
use linerate_core::metadata::{Checksum, Hash, HashFields, Metadata};
use linerate_core::offload::Offload;
use linerate_core::port::{Describe, RegionRx};
use linerate_spec::virtio::{feature, hash, header};

use super::queue::VirtioRx;
use super::ring::DriverRing;

/// Returns whether the headers of received packets contain more than a count of buffers, with these features.
pub(super) fn are_needed(features: u64) -> bool {
    features & (feature::GUEST_CSUM | feature::HASH_REPORT) != 0
}

impl<R: DriverRing, L: Locate> Describe for VirtioRx<R, L> {
    fn recv_described(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let received = self.recv(batch);
        self.describe(batch, before);
        received
    }
}

impl<R: DriverRing, L: Locate> VirtioRx<R, L> {
    /// Notes offloads and metadata of the packets after the first `before` slots.
    fn describe(&self, batch: &mut Batch, before: usize) {
        let (region, len) = (self.pool.region(), self.layout.len as usize);
        let has_metadata = self.hardware.config.options.metadata;
        // SAFETY: only used to read the headers of received packets, and to write their notes.
        let (memory, view) = unsafe { (region.mapping(), region.view()) };
        // SAFETY: each entry keeps its slot; only flags change.
        let slots = unsafe { batch.raw_slots() };
        let mut is_first = true;
        for slot in &mut slots[before..] {
            if std::mem::replace(&mut is_first, !slot.has_more()) {
                let mut header = [0; header::HASH_LEN];
                memory.read(((slot.buf() as usize) << region.shift()) + slot.offset() - len, &mut header[..len]);
                let offload = Offload(std::array::from_fn(|at| header[at]));
                if offload.is_needed() {
                    offload.note(slot, view);
                }
                let found = metadata(header);
                if has_metadata && found != Metadata::default() {
                    found.describe(slot, view);
                }
            }
        }
    }
}

/// Returns the metadata in a header; without a hash, the rest of the header is 0.
fn metadata(header: [u8; header::HASH_LEN]) -> Metadata {
    let checksum = match header[header::FLAGS] & header::DATA_VALID {
        0 => Checksum::Unknown,
        _ => Checksum::Good,
    };
    let [value @ .., low, high] = [0, 1, 2, 3, 4, 5].map(|at| header[header::HASH_VALUE + at]);
    let fields = u16::from_le_bytes([low, high]).checked_sub(1).and_then(|reported| match reported {
        hash::IPV4 => Some(HashFields::Ipv4),
        hash::TCPV4 => Some(HashFields::TcpIpv4),
        hash::UDPV4 => Some(HashFields::UdpIpv4),
        hash::IPV6 | hash::IP_EX => Some(HashFields::Ipv6),
        hash::TCPV6 | hash::TCP_EX => Some(HashFields::TcpIpv6),
        hash::UDPV6 | hash::UDP_EX => Some(HashFields::UdpIpv6),
        _ => None,
    });
    let hash = fields.map(|fields| Hash { value: u32::from_le_bytes(value), fields });
    Metadata { checksum, hash, ..Metadata::default() }
}
