//! The format of transmit descriptors: extended descriptors (7.2.10, 7.2.11).
//!
//! Everything else of receive and send is in `intel/queue.rs`. An extended receive descriptor (7.1.5) has the same two
//! words as an advanced one: the driver writes an address and 0, and the card writes back hash, status and length. Only
//! bits of word 0 that are for cards with more features differ, and [`X82574`](super::X82574) has constants for them.

use linerate_core::offload::Headers;
use linerate_spec::descriptor::{extended, transmit};

use crate::nic::intel::TransmitFormat;

/// Extended transmit descriptors.
pub struct Extended;

impl TransmitFormat for Extended {
    const COMMAND: u64 = extended::DTYP_DATA | transmit::DEXT | transmit::IFCS | transmit::EOP;
    /// Only contexts for segmentation have it.
    const HAS_PAYLEN: bool = false;
    const TIME: u64 = 0;

    /// Checksums whose offset fits 8 bits. The card could also segment TCP, but Linux does without at 10 and 100 Mbit/s,
    /// because of "hardware issues" (`e1000_watchdog_task`), and the link's speed can change at any time.
    fn supports(headers: &Headers) -> bool {
        headers.size == 0 && checksum_offset(headers) <= usize::from(u8::MAX)
    }

    /// `TUCSE` stays 0: the checksummed data ends with the packet, so packets of all lengths share the context.
    fn context(headers: &Headers) -> [u64; 2] {
        let offset = (checksum_offset(headers) as u64) << extended::TUCSO_SHIFT;
        let first = (headers.transport as u64) << extended::TUCSS_SHIFT | offset;
        [first, transmit::DEXT | if headers.is_tcp { extended::TCP } else { 0 }]
    }
}

/// Returns the offset of the packet's TCP or UDP checksum.
fn checksum_offset(headers: &Headers) -> usize {
    headers.transport + if headers.is_tcp { 16 } else { 6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_whose_offset_has_eight_bits_are_for_the_card() {
        let headers =
            |transport, size, is_tcp| Headers { network: 14, transport, len: transport, size, is_v4: true, is_tcp };
        assert!(Extended::supports(&headers(239, 0, true)) && !Extended::supports(&headers(240, 0, true)));
        assert!(Extended::supports(&headers(249, 0, false)) && !Extended::supports(&headers(250, 0, false)));
        assert!(!Extended::supports(&headers(34, 1448, true)));
        assert_eq!(Extended::context(&headers(34, 0, true)), [34 << 32 | 50 << 40, 1 << 29 | 1 << 24]);
        assert_eq!(Extended::context(&headers(38, 0, false)), [38 << 32 | 44 << 40, 1 << 29]);
    }
}
