//! The words of a descriptor, shared by the driver and the model.
//!
//! Section numbers are those of the 82599's datasheet; the 82576 has the same descriptors but for one
//! bit.
//!
//! A descriptor is two 64-bit words: the driver writes them (read format), the card writes its
//! answer over them (write-back format).

/// Advanced receive descriptors (datasheet section 7.1.6).
///
/// Read format: the packet buffer's address, then the header buffer's address (0: none).
/// Write-back format:
///
/// ```text
///           63               48 47             32 31        20 19                     0
///  word 0  |              RSS hash               | SPH ... header length, packet type  |
///  word 1  |     VLAN tag      |     length      |   errors   |         status         |
/// ```
pub mod receive {
    /// Word 1: descriptor done, the card has finished with it.
    pub const DD: u64 = 1 << 0;
    /// Word 1: end of packet, the packet does not continue in the next descriptor.
    pub const EOP: u64 = 1 << 1;
    /// Word 1: the MAC found an error; only with `FCTRL.SBP`.
    pub const RXE_82599: u64 = 1 << 29;
    /// Word 1: the same on the 82576 (its datasheet, section 7.1.5.2), only with `RCTL.SBP`.
    pub const RXE_82576: u64 = 1 << 31;
    /// Word 1: bytes in this buffer, 16 bits from here on.
    pub const LENGTH_SHIFT: u32 = 32;
    /// Word 1: the length in its place.
    pub const LENGTH_MASK: u64 = 0xFFFF << LENGTH_SHIFT;
    /// Word 0: the packet type's bits (section 7.1.6.2).
    pub const TYPE_IPV4: u64 = 1 << 4;
    /// Word 0: IPv6.
    pub const TYPE_IPV6: u64 = 1 << 6;
    /// Word 0: TCP.
    pub const TYPE_TCP: u64 = 1 << 8;
    /// Word 0: UDP.
    pub const TYPE_UDP: u64 = 1 << 9;
    /// Word 0: which fields the hash is of (section 7.1.2.8), 4 bits.
    pub const RSS_TYPE_MASK: u64 = 0xF;
    /// Word 0: the RSS hash, 32 bits from here on.
    pub const RSS_HASH_SHIFT: u32 = 32;
}

/// Legacy receive descriptors (section 7.1.5): word 1 of the write-back is `VLAN, errors, status,
/// checksum, length` in 16, 8, 8, 16 and 16 bits.
pub mod legacy_receive {
    /// Word 1: descriptor done.
    pub const DD: u64 = 1 << 32;
    /// Word 1: end of packet.
    pub const EOP: u64 = 1 << 33;
    /// Word 1: the MAC found an error.
    pub const RXE: u64 = 1 << 47;
}

/// Advanced transmit data descriptors (section 7.2.3.2.4): the buffer's address, then
///
/// ```text
///           63        46 45    40  39 38 36 35 32 31    24 23  20 19   16 15        0
///  word 1  |   PAYLEN   | POPTS  |CC| IDX | STA |  DCMD  | DTYP | MAC ..|  DTALEN   |
/// ```
pub mod transmit {
    /// DTYP: a data descriptor.
    pub const DTYP_DATA: u64 = 0b0011 << 20;
    /// All bits of DTYP.
    pub const DTYP_MASK: u64 = 0xF << 20;
    /// DCMD: end of packet.
    pub const EOP: u64 = 1 << 24;
    /// DCMD: insert the frame check sequence; valid where EOP is.
    pub const IFCS: u64 = 1 << 25;
    /// DCMD: report status, that is, set DD when done; valid where EOP is.
    pub const RS: u64 = 1 << 27;
    /// DCMD: an advanced descriptor.
    pub const DEXT: u64 = 1 << 29;
    /// DCMD: insert a VLAN tag.
    pub const VLE: u64 = 1 << 30;
    /// DCMD: segment a large TCP or UDP packet.
    pub const TSE: u64 = 1 << 31;
    /// STA: descriptor done, written by the card.
    pub const DD: u64 = 1 << 32;
    /// Bytes in this buffer.
    pub const DTALEN_MASK: u64 = 0xFFFF;
    /// The length of the whole packet, 18 bits from here on; in its first descriptor.
    pub const PAYLEN_SHIFT: u32 = 46;
    /// Bits that must be 0: 16 and 17, and in DCMD bits 26 and 28.
    pub const RESERVED: u64 = 0b11 << 16 | 1 << 26 | 1 << 28;
    /// The shortest packet that hardware can pad by itself.
    pub const SHORTEST: usize = 17;
    /// The most descriptors that a packet may have.
    pub const MOST_DESCRIPTORS: usize = 40;
}

/// Legacy transmit descriptors (section 7.2.3.2.2): word 1 is `VLAN, CSS, reserved, STA, CMD, CSO,
/// length` in 16, 8, 4, 4, 8, 8 and 16 bits. CMD and STA have EOP, IFCS, RS, DEXT, VLE and DD where
/// advanced descriptors have them.
pub mod legacy_transmit {
    /// CMD: insert a checksum.
    pub const IC: u64 = 1 << 26;
}
