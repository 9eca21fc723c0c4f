//! The words of descriptors.
//!
//! Section numbers are those of the 82599's datasheet, except in [`extended`]; the 82576's descriptors differ in one bit.
//!
//! A descriptor has two 64-bit words. The driver writes them (read format), and the card overwrites them (write-back
//! format).

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
    /// Word 1: descriptor done. The card has written it back.
    pub const DD: u64 = 1 << 0;
    /// Word 1: end of packet. The packet does not continue in the next descriptor.
    pub const EOP: u64 = 1 << 1;
    /// Word 1: the MAC found an error; only with `FCTRL.SBP`.
    pub const RXE_82599: u64 = 1 << 29;
    /// Word 1: as [`RXE_82599`], on the 82576 (its datasheet, section 7.1.5.2); only with `RCTL.SBP`.
    pub const RXE_82576: u64 = 1 << 31;
    /// Word 1: shift of the length of the data in this buffer (16 bits).
    pub const LENGTH_SHIFT: u32 = 32;
    /// Word 1: the mask of the length.
    pub const LENGTH_MASK: u64 = 0xFFFF << LENGTH_SHIFT;
    /// Word 1: a flow director filter matched.
    pub const FLM: u64 = 1 << 2;
    /// Word 1: the packet had a VLAN tag. If the card has stripped the tag, it is in the VLAN field.
    pub const VP: u64 = 1 << 3;
    /// Word 1: the layer-4 checksum was verified.
    pub const L4CS: u64 = 1 << 5;
    /// Word 1: the IPv4 header checksum was verified.
    pub const IPCS: u64 = 1 << 6;
    /// Word 1: the packet was timestamped.
    pub const TS: u64 = 1 << 16;
    /// Word 1: the packet came from another function of this card.
    pub const LB: u64 = 1 << 18;
    /// Word 1: the layer-4 checksum is wrong; valid with [`L4CS`].
    pub const L4E_82599: u64 = 1 << 30;
    /// Word 1: as [`L4E_82599`], on the 82576.
    pub const L4E_82576: u64 = 1 << 29;
    /// Word 1: the IPv4 header checksum is wrong; valid with [`IPCS`].
    pub const IPE_82599: u64 = 1 << 31;
    /// Word 1: as [`IPE_82599`], on the 82576.
    pub const IPE_82576: u64 = 1 << 30;
    /// Word 1: shift of the next descriptor of a coalesced packet (16 bits), instead of its status; only without EOP.
    pub const NEXTP_SHIFT: u32 = 4;
    /// Word 1: shift of the VLAN tag (16 bits).
    pub const VLAN_SHIFT: u32 = 48;
    /// Word 0: shift of one more than the count of coalesced segments that begin in this buffer (4 bits); 0 for other
    /// packets.
    pub const RSCCNT_SHIFT: u32 = 17;
    /// Word 0, packet type (section 7.1.6.2): IPv4.
    pub const TYPE_IPV4: u64 = 1 << 4;
    /// Word 0: IPv4 with options.
    pub const TYPE_IPV4_OPTIONS: u64 = 1 << 5;
    /// Word 0: IPv6.
    pub const TYPE_IPV6: u64 = 1 << 6;
    /// Word 0: IPv6 with extension headers.
    pub const TYPE_IPV6_OPTIONS: u64 = 1 << 7;
    /// Word 0: TCP.
    pub const TYPE_TCP: u64 = 1 << 8;
    /// Word 0: UDP.
    pub const TYPE_UDP: u64 = 1 << 9;
    /// Word 0: SCTP.
    pub const TYPE_SCTP: u64 = 1 << 10;
    /// Word 0: an ethertype filter matched; its number is in bits 6 to 4.
    pub const TYPE_ETQF: u64 = 1 << 15;
    /// Word 0: shift of the packet type.
    pub const TYPE_SHIFT: u32 = 4;
    /// Word 0: the headers in the packet type, from IPv4 to SCTP, without [`TYPE_ETQF`].
    pub const TYPE_HEADERS: u64 = 0x7F << TYPE_SHIFT;
    /// Word 0: the mask of the RSS type, the fields that the hash covers (section 7.1.2.8).
    pub const RSS_TYPE_MASK: u64 = 0xF;
    /// Word 0, RSS type: the hash field has the number of the flow director's filter that matched, in its low 15 bits.
    pub const RSS_TYPE_FILTER: u64 = 0xF;
    /// The mask of that number.
    pub const FILTER_MASK: u16 = 0x7FFF;
    /// Word 0: shift of the RSS hash (32 bits).
    pub const RSS_HASH_SHIFT: u32 = 32;
}

/// Legacy receive descriptors (section 7.1.5): word 1 of the write-back is `VLAN, errors, status,
/// checksum, length` in 16, 8, 8, 16 and 16 bits.
pub mod legacy_receive {
    /// Word 1: descriptor done.
    pub const DD: u64 = 1 << 32;
    /// Word 1: end of packet.
    pub const EOP: u64 = 1 << 33;
    /// Word 1: the packet had a VLAN tag.
    pub const VP: u64 = 1 << 35;
    /// Word 1: the layer-4 checksum was verified.
    pub const L4CS: u64 = 1 << 37;
    /// Word 1: the IPv4 header checksum was verified.
    pub const IPCS: u64 = 1 << 38;
    /// Word 1: the layer-4 checksum is wrong.
    pub const L4E: u64 = 1 << 46;
    /// Word 1: an error in the IPv4 header checksum, or a MAC error.
    pub const RXE: u64 = 1 << 47;
}

/// Advanced transmit data descriptors (section 7.2.3.2.4). Word 0 is the buffer's address.
///
/// ```text
///           63        46 45    40  39 38 36 35 32 31    24 23  20 19   16 15        0
///  word 1  |   PAYLEN   | POPTS  |CC| IDX | STA |  DCMD  | DTYP | MAC ..|  DTALEN   |
/// ```
pub mod transmit {
    /// DTYP: a context descriptor.
    pub const DTYP_CONTEXT: u64 = 0b0010 << 20;
    /// MAC: timestamp the packet when it leaves.
    pub const TSTAMP: u64 = 1 << 19;
    /// CC: check the context.
    pub const CC: u64 = 1 << 39;
    /// IDX: shift of the number of the context, one of two (1 bit).
    pub const IDX_SHIFT: u32 = 36;
    /// POPTS: insert the IPv4 header checksum.
    pub const IXSM: u64 = 1 << 40;
    /// POPTS: insert the layer-4 checksum.
    pub const TXSM: u64 = 1 << 41;
    /// DTYP: a data descriptor.
    pub const DTYP_DATA: u64 = 0b0011 << 20;
    /// All bits of DTYP.
    pub const DTYP_MASK: u64 = 0xF << 20;
    /// DCMD: end of packet.
    pub const EOP: u64 = 1 << 24;
    /// DCMD: insert the frame check sequence; valid with EOP.
    pub const IFCS: u64 = 1 << 25;
    /// DCMD: report status, that is, set DD when done; valid with EOP.
    pub const RS: u64 = 1 << 27;
    /// DCMD: an advanced descriptor.
    pub const DEXT: u64 = 1 << 29;
    /// DCMD: insert a VLAN tag.
    pub const VLE: u64 = 1 << 30;
    /// DCMD: segment a large TCP or UDP packet.
    pub const TSE: u64 = 1 << 31;
    /// STA: descriptor done, written by the card.
    pub const DD: u64 = 1 << 32;
    /// The mask of the length of the data in this buffer.
    pub const DTALEN_MASK: u64 = 0xFFFF;
    /// Shift of the packet's total length (18 bits), in its first descriptor.
    pub const PAYLEN_SHIFT: u32 = 46;
    /// Bits that must be 0: 16 and 17, and in DCMD bits 26 and 28.
    pub const RESERVED: u64 = 0b11 << 16 | 1 << 26 | 1 << 28;
    /// The shortest packet that hardware can pad.
    pub const SHORTEST: usize = 17;
    /// The most descriptors per packet.
    pub const MOST_DESCRIPTORS: usize = 40;
}

/// Advanced transmit context descriptors (section 7.2.3.2.3): the context of later data descriptors.
///
/// ```text
///           63      48 47    40 39 38 36  32 31    24 23  20 19    9 8           0
///  word 0  |  ...                 | VLAN (31 to 16)        | MACLEN |   IPLEN     |
///  word 1  |   MSS   | L4LEN  |  | IDX | ... |  DEXT | DTYP | TUCMD  |            |
/// ```
pub mod context {
    /// Word 0: the bit position of MACLEN, the number of bytes before the IP header (7 bits).
    pub const MACLEN_SHIFT: u32 = 9;
    /// Word 0: the width of MACLEN.
    pub const MACLEN_BITS: u32 = 7;
    /// Word 0: the width of IPLEN, the length of the IP header, in the lowest bits.
    pub const IPLEN_BITS: u32 = 9;
    /// Word 0: the bit position of the VLAN tag (16 bits).
    pub const VLAN_SHIFT: u32 = 16;
    /// Word 1, TUCMD: the packet is IPv4.
    pub const IPV4: u64 = 1 << 10;
    /// Word 1, TUCMD: shift of the layer-4 type: UDP, TCP or SCTP (2 bits).
    pub const L4T_SHIFT: u32 = 11;
    /// Word 1, TUCMD: IPsec, and Fibre Channel.
    pub const OTHERS: u64 = 0b111 << 13;
    /// Word 1: shift of the length of the layer-4 header (8 bits).
    pub const L4LEN_SHIFT: u32 = 40;
    /// Word 1: the width of L4LEN.
    pub const L4LEN_BITS: u32 = 8;
    /// Word 1: shift of the payload length of each segment (16 bits).
    pub const MSS_SHIFT: u32 = 48;
}

/// Extended descriptors, where they differ from advanced descriptors (82574 datasheet, 7.1.5 and 7.2.10). The 82574
/// receives and sends with them.
///
/// ```text
///                          63               48 47    40 39    32 31    24 23  20 19             0
///  received, word 0       |            RSS hash or checksum     |   queue and RSS type         |
///  received, word 1       |     VLAN tag      |     length      |   errors   |     status      |
///  data, word 1           |     VLAN tag      | POPTS  | STA .. |  DCMD  | DTYP |    DTALEN    |
///  context, word 0        |       TUCSE       | TUCSO  | TUCSS  |   IPCSE  ...  IPCSO  | IPCSS |
///  context, word 1        |        MSS        | HDRLEN | STA .. | TUCMD  | DTYP |    PAYLEN    |
/// ```
pub mod extended {
    /// Received, word 1: ignore the bits for checksums (IXSM).
    pub const IXSM: u64 = 1 << 2;
    /// Received, word 1: errors of symbol, sequence, carrier extension, CRC or data; only with `RCTL.SBP`.
    pub const MAC_ERRORS: u64 = 1 << 24 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 31;
    /// Received, word 1: the layer-4 checksum is wrong.
    pub const TCPE: u64 = 1 << 29;
    /// Received, word 1: the IPv4 header checksum is wrong.
    pub const IPE: u64 = 1 << 30;
    /// DTYP: a data descriptor; a context descriptor has 0.
    pub const DTYP_DATA: u64 = 0b0001 << 20;
    /// Context, word 0: shift of TUCSS, where the checksummed data begins (8 bits).
    pub const TUCSS_SHIFT: u32 = 32;
    /// Context, word 0: shift of TUCSO, the checksum's offset (8 bits).
    pub const TUCSO_SHIFT: u32 = 40;
    /// Context, TUCMD: the packet is TCP.
    pub const TCP: u64 = 1 << 24;
}

/// Legacy transmit descriptors (section 7.2.3.2.2): word 1 is `VLAN, CSS, reserved, STA, CMD, CSO, length` in 16, 8,
/// 4, 4, 8, 8 and 16 bits. EOP, IFCS, RS, DEXT, VLE and DD are at the same bits as in advanced descriptors.
pub mod legacy_transmit {
    /// CMD: insert a checksum.
    pub const IC: u64 = 1 << 26;
    /// Shift of the checksum's offset (8 bits).
    pub const CSO_SHIFT: u32 = 16;
    /// Shift of the offset where the checksummed data begins (8 bits).
    pub const CSS_SHIFT: u32 = 40;
    /// Shift of the VLAN tag (16 bits).
    pub const VLAN_SHIFT: u32 = 48;
}
