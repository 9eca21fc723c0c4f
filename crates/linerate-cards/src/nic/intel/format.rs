//! The formats of transmit descriptors: advanced (82576, 82599, X540, X550), and the extended format of earlier cards.

use linerate_core::offload::Headers;
use linerate_spec::descriptor::{context, transmit};

/// A format of transmit descriptors, as far as formats differ. DEXT, EOP, IFCS, RS, TXSM, DD and the length of a buffer
/// have the same bits in all of them.
pub trait TransmitFormat: 'static {
    /// The command for a packet in one buffer: a data descriptor, end of packet, insert the CRC.
    const COMMAND: u64;
    /// Data descriptors also have the length of the whole packet (PAYLEN).
    const HAS_PAYLEN: bool;
    /// The bit that asks the card to note when the packet leaves; 0 if the card has no clock.
    const TIME: u64;

    /// Returns whether the card can do the pending offloads of a packet with these headers.
    fn supports(headers: &Headers) -> bool;

    /// Returns the words of the context descriptor of a packet with these headers.
    fn context(headers: &Headers) -> [u64; 2];
}

/// Advanced descriptors (82599 datasheet, section 7.2.3.2).
pub struct Advanced;

impl TransmitFormat for Advanced {
    const COMMAND: u64 = transmit::DTYP_DATA | transmit::DEXT | transmit::IFCS | transmit::EOP;
    const HAS_PAYLEN: bool = true;
    const TIME: u64 = transmit::TSTAMP;

    fn supports(&Headers { network, transport, len, .. }: &Headers) -> bool {
        network < 1 << context::MACLEN_BITS
            && transport - network < 1 << context::IPLEN_BITS
            && len - transport < 1 << context::L4LEN_BITS
    }

    /// Context 0 of the queue's two.
    fn context(&Headers { network, transport, len, size, is_v4, is_tcp }: &Headers) -> [u64; 2] {
        let first = (network as u64) << context::MACLEN_SHIFT | (transport - network) as u64;
        let version = if is_v4 { context::IPV4 } else { 0 };
        let second = transmit::DEXT | transmit::DTYP_CONTEXT | version | u64::from(is_tcp) << context::L4T_SHIFT;
        let lengths = ((len - transport) as u64) << context::L4LEN_SHIFT | (size as u64) << context::MSS_SHIFT;
        [first, second | lengths]
    }
}
