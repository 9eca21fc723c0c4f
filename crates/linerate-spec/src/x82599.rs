//! The registers of the 82599, X540 and X550 that linerate uses, one per line.
//!
//! Names, bits and sections are those of Intel's "82599 10 GbE Controller Datasheet" (331520). Sections that begin with
//! "X540" or "X550" are those of that card's datasheet.

use super::{Access, Counter, Register, registers};

/// Queues per direction.
pub const QUEUES: u16 = 128;
/// The size of the receive packet buffer, in KiB (8.2.3.8.9).
pub const PACKET_BUFFER_KIB: u32 = 512;
/// The size of the receive packet buffer of the X540 and X550, in KiB (X540 datasheet, 8.2.4.9.9).
pub const X540_PACKET_BUFFER_KIB: u32 = 384;

// Bits that a driver may write in registers with reserved bits.
const CTRL_BITS: u32 = CTRL::MASTER_DISABLE | CTRL::LRST | CTRL::RST;
const RXDCTL_BITS: u32 = RXDCTL::RLPML_MASK | RXDCTL::RLPML_EN | RXDCTL::ENABLE | RXDCTL::SWFLSH | RXDCTL::VME;
const TXDCTL_BITS: u32 = 0x007F_7F7F | TXDCTL::ENABLE | TXDCTL::SWFLSH;
const SRRCTL_BITS: u32 = 0x1F | 0x3F << 8 | 0x7 << 22 | 0x7 << 25 | SRRCTL::DROP_EN;
const RXCTRL_BITS: u32 = RXCTRL::RXEN | RXCTRL::DMBYPS;
const INDEX_BITS: u32 = 0xFFFF;

/// Aliases of registers, for drivers of the 82598: offset, count and stride; then offset and stride of the
/// aliased registers.
#[rustfmt::skip]
pub const ALIASES: &[(u32, u32, u32, u32, u32)] = &[
    (0x05400, 16, 8, RAL::OFFSET, 8),
    (0x05404, 16, 8, RAH::OFFSET, 8),
    (0x02100, 16, 4, SRRCTL::OFFSET, 0x40),
    (0x02200, 16, 4, DCA_RXCTRL::OFFSET, 0x40),
    (0x05480, 16, 4, PSRTYPE::OFFSET, 4),
    (0x05818, 1, 0, MRQC::OFFSET, 0),
    (0x05C00, 32, 4, RETA::OFFSET, 4),
    (0x05C80, 10, 4, RSSRK::OFFSET, 4),
    (0x06030, 16, 0x40, QPTC::OFFSET, 4),
    (0x06034, 16, 0x40, QBTC_L::OFFSET, 8),
    // DCA_TXCTRL, between the registers of transmit queue 72.
    (0x07214, 1, 0, DCA_TXCTRL::at(5), 0),
    (0x0721C, 1, 0, DCA_TXCTRL::at(7), 0),
    (0x07220, 2, 4, DCA_TXCTRL::at(8), 0x40),
    (0x0722C, 3, 4, DCA_TXCTRL::at(11), 0x40),
];

registers! {
    // 8.2.3.1 General control
    CTRL        0x00000 RW writable CTRL_BITS "8.2.3.1.1" "Device Control" { MASTER_DISABLE = 1 << 2, LRST = 1 << 3, RST = 1 << 26 };
    STATUS      0x00008 RW reset 0x0008_0000 "8.2.3.1.2" "Device Status" { LAN_ID_SHIFT = 2, MASTER_ENABLE_STATUS = 1 << 19 };
    CTRL_EXT    0x00018 RW "8.2.3.1.3" "Extended Device Control" { NS_DIS = 1 << 16, DRV_LOAD = 1 << 28 };
    ESDP        0x00020 RW "8.2.3.1.4" "Extended SDP Control" { SDP3 = 1 << 3, SDP3_IODIR = 1 << 11 };
    I2CCTL      0x00028 RW reset 0x0000_000F "8.2.3.1.5" "I2C Control" { CLK_IN = 1 << 0, CLK_OUT = 1 << 1, DATA_IN = 1 << 2, DATA_OUT = 1 << 3 };
    LEDCTL      0x00200 RW "8.2.3.1.6" "LED Control";
    EXVET       0x05078 RW reset 0x8100_0000 "8.2.3.1.7" "Extended VLAN Ether Type";
    CORECTL     0x14F00 RW "8.2.3.22" "Core Analog Configuration";
    TCPTIMER    0x0004C RW "8.2.3.15" "TCP Timer";
    FRTIMER     0x00048 RO "8.2.3.15" "Free Running Timer";

    // 8.2.3.2 EEPROM
    EEC         0x10010 RW reset 0x0000_3300 "8.2.3.2.1" "EEPROM Control" { REQ = 1 << 6, GNT = 1 << 7, PRES = 1 << 8, ARD = 1 << 9, SIZE_MASK = 0xF << 11 };
    EERD        0x10014 RW "8.2.3.2.2" "EEPROM Read" { START = 1 << 0, DONE = 1 << 1, ADDR_SHIFT = 2, DATA_SHIFT = 16 };
    EEWR        0x10018 RW "X540 8.2.2.2" "EEPROM Write";
    FLA         0x1001C RW "8.2.3.2.3" "Flash Access";
    EEMNGCTL    0x10110 RW reset 0x000C_0000 "8.2.3.2.4" "Manageability EEPROM Control";
    EEMNGDATA   0x10114 RW "8.2.3.2.5" "Manageability EEPROM Data";
    FLMNGCTL    0x10118 RW "8.2.3.2.6" "Manageability Flash Control";
    FLMNGDATA   0x1011C RW "8.2.3.2.7" "Manageability Flash Data";
    FLMNGCNT    0x10120 RW "8.2.3.2.7" "Manageability Flash Read Counter";
    FLOP        0x1013C RW "8.2.3.2.8" "Flash Opcode";
    GRC         0x10200 RW reset 0x0000_0001 "8.2.3.2.9" "General Receive Control";

    // 8.2.3.3 Flow control
    PFCTOP      0x03008 RW reset 0x0001_8808 "8.2.3.3.1" "Priority Flow Control Type Opcode";
    FCTTV       0x03200 [4 x 4] RW "8.2.3.3.2" "Flow Control Transmit Timer Value";
    FCRTL       0x03220 [8 x 4] RW "8.2.3.3.3" "Flow Control Receive Threshold Low" { XONE = 1 << 31, MASK = 0x0007_FFE0 };
    FCRTH       0x03260 [8 x 4] RW "8.2.3.3.4" "Flow Control Receive Threshold High" { FCEN = 1 << 31, MASK = 0x0007_FFE0 };
    FCRTV       0x032A0 RW "8.2.3.3.5" "Flow Control Refresh Threshold";
    TFCS        0x0CE00 RO "8.2.3.3.6" "Transmit Flow Control Status";
    FCCFG       0x03D00 RW "8.2.3.3.7" "Flow Control Configuration" { TFCE_MASK = 0x3 << 3, TFCE_LINK = 1 << 3 };

    // 8.2.3.4 PCIe and semaphores
    SWSM        0x10140 RS "8.2.3.4" "Software Semaphore" { SMBI = 1 << 0, SWESMBI = 1 << 1 };
    FWSM        0x10148 RO reset 0x0000_8000 "8.2.3.4" "Firmware Semaphore";
    SW_FW_SYNC  0x10160 RW "8.2.3.4" "Software-Firmware Synchronization" { SW_PHY_SM0 = 1 << 1, SW_MAC_CSR_SM = 1 << 3, FW_SHIFT = 5, REGSMP = 1 << 31 };
    GCR         0x11000 RW "8.2.3.4.1" "PCIe Control";
    FUNCTAG     0x11008 RW "8.2.3.4" "Function Tag";
    GLT         0x1100C RW "8.2.3.4" "Latency Timer";
    GSCL        0x11010 [4 x 4] RW "8.2.3.4.2" "PCIe Statistic Control";
    GSCN        0x11020 [4 x 4] RW "8.2.3.4.5" "PCIe Counters";
    PHYADR      0x11040 RW "8.2.3.4.8" "PCIe PHY Address";
    PHYDAT      0x11044 RW "8.2.3.4.9" "PCIe PHY Data";
    GCR_EXT     0x11050 RW "8.2.3.4.11" "PCIe Control Extended" { BUFFERS_CLEAR_FUNC = 1 << 30 };
    MREVID      0x11064 RO reset 0x0000_0001 "8.2.3.4.12" "Mirrored Revision ID";
    PICAUSE     0x110B0 RW "8.2.3.4.13" "PCIe Interrupt Cause";
    PIENA       0x110B8 RW "8.2.3.4.14" "PCIe Interrupt Enable";
    FACTPS      0x10150 RO "8.2.3.4.10" "Function Active and Power State";
    PCIE_DIAG   0x11090 [8 x 4] RO "8.2.3.4" "PCIe Diagnostics";

    // 8.2.3.5 Interrupts
    EICR        0x00800 W1C "8.2.3.5.1" "Extended Interrupt Cause" { LSC = 1 << 20 };
    EICS        0x00808 WO "8.2.3.5.2" "Extended Interrupt Cause Set";
    EIMS        0x00880 RW "8.2.3.5.3" "Extended Interrupt Mask Set";
    EIMC        0x00888 WO "8.2.3.5.4" "Extended Interrupt Mask Clear" { ALL_CAUSES = 0x7FFF_FFFF };
    EIAC        0x00810 RW "8.2.3.5.5" "Extended Interrupt Auto Clear";
    EIAM        0x00890 RW "8.2.3.5.6" "Extended Interrupt Auto Mask Enable";
    EITR        0x00820 [24 x 4 then 105 at 0x12300] RW "8.2.3.5.12" "Extended Interrupt Throttle" { INTERVAL_SHIFT = 3, INTERVAL_MASK = 0x1FF, CNT_WDIS = 1 << 31 };
    IVAR        0x00900 [64 x 4] RW "8.2.3.5" "Interrupt Vector Allocation" { VALID = 1 << 7 };
    IVAR_MISC   0x00A00 RW "8.2.3.5" "Miscellaneous Interrupt Vector Allocation";
    GPIE        0x00898 RW "8.2.3.5.18" "General Purpose Interrupt Enable" { MULTIPLE_MSIX = 1 << 4, OCD = 1 << 5, EIAME = 1 << 30, PBA_SUPPORT = 1 << 31 };
    EICS_EX     0x00A90 [2 x 4] WO "8.2.3.5.7" "Extended Interrupt Cause Set, vectors";
    EIMS_EX     0x00AA0 [2 x 4] RW "8.2.3.5.8" "Extended Interrupt Mask Set, vectors";
    EIMC_EX     0x00AB0 [2 x 4] WO "8.2.3.5.9" "Extended Interrupt Mask Clear, vectors";
    EIAM_EX     0x00AD0 [2 x 4] RW "8.2.3.5.10" "Extended Interrupt Auto Mask Enable, vectors";
    EITRSEL     0x00894 RW "8.2.3.5.11" "MSI-X to EITR Select";
    L34TIMIR    0x0E800 [128 x 4] RW "8.2.3.5.16" "L3 L4 Tuples Immediate Interrupt Rx" { BITS_13_TO_19 = 0x40 << 13, RX_QUEUE_SHIFT = 21 };
    LLITHRESH   0x0EC90 RW "8.2.3.5.17" "Low Latency Interrupt Threshold";
    PBACL       0x110C0 [8 x 4] RW "8.2.3.6.1" "MSI-X PBA Clear";

    // 8.2.3.7 Receive filters and receive-side scaling
    FCTRL       0x05080 RW "8.2.3.7.1" "Filter Control" { SBP = 1 << 1, MPE = 1 << 8, UPE = 1 << 9, BAM = 1 << 10 };
    VLNCTRL     0x05088 RW reset 0x0000_8100 "8.2.3.7.2" "VLAN Control" { VET_MASK = 0xFFFF, CFI = 1 << 28, CFIEN = 1 << 29, VFE = 1 << 30 };
    MCSTCTRL    0x05090 RW "8.2.3.7.3" "Multicast Control" { MO_MASK = 0x3, MFE = 1 << 2 };
    RXCSUM      0x05000 RW "8.2.3.7.5" "Receive Checksum Control" { PCSD = 1 << 13 };
    RFCTL       0x05008 RW "8.2.3.7.6" "Receive Filter Control" { RSC_DIS = 1 << 5, NFSW_DIS = 1 << 6, NFSR_DIS = 1 << 7 };
    MTA         0x05200 [128 x 4] RW "8.2.3.7.7" "Multicast Table Array";
    RAL         0x0A200 [128 x 8] RW "8.2.3.7.8" "Receive Address Low";
    RAH         0x0A204 [128 x 8] RW "8.2.3.7.9" "Receive Address High" { AV = 1 << 31, BITS = 0x8000_FFFF };
    MPSAR_LO    0x0A600 [128 x 8] RW "8.2.3.7.10" "MAC Pool Select Array, pools 31 to 0";
    MPSAR_HI    0x0A604 [128 x 8] RW "8.2.3.7.10" "MAC Pool Select Array, pools 63 to 32";
    VFTA        0x0A000 [128 x 4] RW "8.2.3.7.11" "VLAN Filter Table Array";
    PFUTA       0x0F400 [128 x 4] RW "8.2.3.27" "PF Unicast Table Array";
    MRQC        0x0EC80 RW "8.2.3.7.12" "Multiple Receive Queues Command" { MRQE_MASK = 0xF, MRQE_RSS = 0x1, TCP_IPV4 = 1 << 16, IPV4 = 1 << 17, IPV6 = 1 << 20, TCP_IPV6 = 1 << 21, UDP_IPV4 = 1 << 22, UDP_IPV6 = 1 << 23 };
    RSSRK       0x0EB80 [10 x 4] RW "8.2.3.7.14" "RSS Random Key";
    RETA        0x0EB00 [32 x 4] RW "8.2.3.7.15" "Redirection Table";
    PSRTYPE     0x0EA00 [64 x 4] RW "8.2.3.7.4" "Packet Split Receive Type" { TCPHDR = 1 << 4 };
    RQTC        0x0EC70 RW reset 0x7777_7777 "8.2.3.7.13" "RSS Queues Per Traffic Class";
    SAQF        0x0E000 [128 x 4] RW "8.2.3.7.16" "Source Address Queue Filter";
    DAQF        0x0E200 [128 x 4] RW "8.2.3.7.17" "Destination Address Queue Filter";
    SDPQF       0x0E400 [128 x 4] RW "8.2.3.7.18" "Source Destination Port Queue Filter";
    FTQF        0x0E600 [128 x 4] RW "8.2.3.7.19" "Five Tuple Queue Filter" { PRIORITY_SHIFT = 2, SOURCE = 1 << 25, DESTINATION = 1 << 26, SOURCE_PORT = 1 << 27, DESTINATION_PORT = 1 << 28, PROTOCOL = 1 << 29, POOL = 1 << 30, ENABLE = 1 << 31 };
    SYNQF       0x0EC30 RW "8.2.3.7.20" "SYN Packet Queue Filter" { ENABLE = 1 << 0, QUEUE_SHIFT = 1, PRIORITY = 1 << 31 };
    ETQF        0x05128 [8 x 4] RW "8.2.3.7.21" "EType Queue Filter" { TIME_STAMP = 1 << 30, ENABLE = 1 << 31 };
    ETQS        0x0EC00 [8 x 4] RW "8.2.3.7.22" "EType Queue Select" { QUEUE_SHIFT = 16, ENABLE = 1 << 31 };

    // 8.2.3.7.23 on: flow director
    FDIRCTRL    0x0EE00 RW "8.2.3.21.1" "Flow Director Filters Control" { PBALLOC_MASK = 0x3, PBALLOC_64K = 0x1, INIT_DONE = 1 << 3, PERFECT_MATCH = 1 << 4, REPORT_STATUS = 1 << 5, DROP_Q_SHIFT = 8, FLEX_SHIFT = 16, FLEX_MASK = 0x1F << 16, MAX_LENGTH_SHIFT = 24, FULL_THRESH_SHIFT = 28 };
    FDIRSIPV6   0x0EE0C [3 x 4] RW "8.2.3.21.14" "Flow Director Filters Source IPv6";
    FDIRIPSA    0x0EE18 RW "8.2.3.21.15" "Flow Director Filters IP Source Address";
    FDIRIPDA    0x0EE1C RW "8.2.3.21.16" "Flow Director Filters IP Destination Address";
    FDIRPORT    0x0EE20 RW "8.2.3.21.17" "Flow Director Filters Port" { DESTINATION_SHIFT = 16 };
    FDIRVLAN    0x0EE24 RW "8.2.3.21.18" "Flow Director Filters VLAN and Flex Bytes" { FLEX_SHIFT = 16 };
    FDIRHASH    0x0EE28 RW "8.2.3.21.19" "Flow Director Filters Hash Signature" { INDEX_SHIFT = 16 };
    FDIRCMD     0x0EE2C RW "8.2.3.21.20" "Flow Director Filters Command" { CMD_MASK = 0x3, CMD_ADD = 1, CMD_REMOVE = 2, CMD_QUERY = 3, VALID = 1 << 2, FILTER_UPDATE = 1 << 3, IPV6 = 1 << 7, CLEARHT = 1 << 8, DROP = 1 << 9, LAST = 1 << 11, QUEUE_EN = 1 << 15, L4TYPE_MASK = 0x3 << 5, L4TYPE_SHIFT = 5, RX_QUEUE_SHIFT = 16 };
    FDIRFREE    0x0EE38 RW reset 0x0000_8000 "8.2.3.21.10" "Flow Director Filters Free";
    FDIRDIP4M   0x0EE3C RW "8.2.3.21.4" "Flow Director Filters Destination IPv4 Mask";
    FDIRSIP4M   0x0EE40 RW "8.2.3.21.5" "Flow Director Filters Source IPv4 Mask";
    FDIRTCPM    0x0EE44 RW "8.2.3.21.6" "Flow Director Filters TCP Mask";
    FDIRUDPM    0x0EE48 RW "8.2.3.21.7" "Flow Director Filters UDP Mask";
    FDIRLEN     0x0EE4C RC "8.2.3.21.11" "Flow Director Filters Length";
    FDIRUSTAT   0x0EE50 RC "8.2.3.21.12" "Flow Director Filters Usage Statistics" { REMOVE_SHIFT = 16 };
    FDIRFSTAT   0x0EE54 RC "8.2.3.21.13" "Flow Director Filters Failed Usage Statistics" { REMOVE_SHIFT = 8 };
    FDIRMATCH   0x0EE58 RC "8.2.3.21.13" "Flow Director Filters Match Statistics";
    FDIRMISS    0x0EE5C RC "8.2.3.21.13" "Flow Director Filters Miss Match Statistics";
    FDIRHKEY    0x0EE68 RW reset 0x8000_0001 "8.2.3.21.2" "Flow Director Filters Lookup Table Hash Key";
    FDIRSKEY    0x0EE6C RW reset 0x8080_0101 "8.2.3.21.3" "Flow Director Filters Signature Hash Key";
    FDIRM       0x0EE70 RW "8.2.3.21.9" "Flow Director Filters Other Mask" { VLANID = 1 << 0, VLANP = 1 << 1, POOL = 1 << 2, L4P = 1 << 3, FLEX = 1 << 4, DIPV6 = 1 << 5 };
    FDIRIP6M    0x0EE74 RW "8.2.3.21.8" "Flow Director Filters IPv6 Mask";
    FDIRSCTPM   0x0EE78 RW "X540 8.2.3.21" "Flow Director Filters SCTP Mask";

    // 8.2.3.8 Receive DMA
    RDBAL       0x01000 [64 x 0x40 then 64 at 0x0D000] RW "8.2.3.8.1" "Receive Descriptor Base Address Low" { BITS = 0xFFFF_FF80 };
    RDBAH       0x01004 [64 x 0x40 then 64 at 0x0D004] RW "8.2.3.8.2" "Receive Descriptor Base Address High";
    RDLEN       0x01008 [64 x 0x40 then 64 at 0x0D008] RW "8.2.3.8.3" "Receive Descriptor Length" { BITS = 0x000F_FF80 };
    DCA_RXCTRL  0x0100C [64 x 0x40 then 64 at 0x0D00C] RW reset 0x0000_1000 "8.2.3.11.1" "Receive DCA Control" { BIT_12 = 1 << 12 };
    RDH         0x01010 [64 x 0x40 then 64 at 0x0D010] RW writable INDEX_BITS "8.2.3.8.4" "Receive Descriptor Head";
    SRRCTL      0x01014 [64 x 0x40 then 64 at 0x0D014] RW reset 0x0000_0402 writable SRRCTL_BITS "8.2.3.8.7" "Split Receive Control" { BSIZEPACKET_MASK = 0x1F, BSIZEHEADER_SHIFT = 8, BSIZEHEADER_MASK = 0x3F << 8, BSIZEHEADER_128 = 2 << 8, DESCTYPE_SHIFT = 25, DESCTYPE_ADVANCED = 1 << 25, DROP_EN = 1 << 28 };
    RDT         0x01018 [64 x 0x40 then 64 at 0x0D018] RW writable INDEX_BITS "8.2.3.8.5" "Receive Descriptor Tail";
    RXDCTL      0x01028 [64 x 0x40 then 64 at 0x0D028] RW writable RXDCTL_BITS "8.2.3.8.6" "Receive Descriptor Control" { RLPML_MASK = 0x3FFF, RLPML_EN = 1 << 15, ENABLE = 1 << 25, SWFLSH = 1 << 26, VME = 1 << 30 };
    RDRXCTL     0x02F00 RW reset 0x0010_0008 "8.2.3.8.8" "Receive DMA Control" { CRC_STRIP = 1 << 1, DMAIDONE = 1 << 3, RSCFRSTSIZE_MASK = 0x1F << 17, BIT_25 = 1 << 25, BIT_26 = 1 << 26 };
    RXPBSIZE    0x03C00 [8 x 4] RW reset 0x0008_0000 "8.2.3.8.9" "Receive Packet Buffer Size" { KIB_SHIFT = 10 };
    RXCTRL      0x03000 RW writable RXCTRL_BITS "8.2.3.8.10" "Receive Control" { RXEN = 1 << 0, DMBYPS = 1 << 1 };
    RSCCTL      0x0102C [64 x 0x40 then 64 at 0x0D02C] RW "8.2.3.8.13" "RSC Control" { RSCEN = 1 << 0, MAXDESC_SHIFT = 2, MAXDESC_MASK = 0x3 << 2 };
    RSCDBU      0x03028 RW reset 0x0000_0020 "8.2.3.8.14" "RSC Data Buffer Control" { RSCACKDIS = 1 << 7 };
    RDDCC       0x02F20 RW "8.2.3.8" "Receive Descriptor Done Cache Control";
    RXMEMWRAP   0x03190 RO "8.2.3.8" "Receive Packet Buffer Flush Detect";
    DROPEN      0x03D04 RW "8.2.3.8" "Drop Enable";
    QDE         0x02F04 RW "8.2.3.27.14" "PF Queue Drop Enable";

    // 8.2.3.9 Transmit
    DTXMXSZRQ   0x08100 RW reset 0x0000_0010 "8.2.3.9.1" "DMA Transmit Maximum Allowed Size Requests";
    DMATXCTL    0x04A80 RW reset 0x8100_0000 "8.2.3.9.2" "DMA Transmit Control" { TE = 1 << 0 };
    TDBAL       0x06000 [128 x 0x40] RW "8.2.3.9.5" "Transmit Descriptor Base Address Low" { BITS = 0xFFFF_FF80 };
    TDBAH       0x06004 [128 x 0x40] RW "8.2.3.9.6" "Transmit Descriptor Base Address High";
    TDLEN       0x06008 [128 x 0x40] RW "8.2.3.9.7" "Transmit Descriptor Length" { BITS = 0x000F_FF80 };
    DCA_TXCTRL  0x0600C [128 x 0x40] RW reset 0x0000_0800 "8.2.3.11.2" "Transmit DCA Control" { DESC_WRO_EN = 1 << 11 };
    TDH         0x06010 [128 x 0x40] RW writable INDEX_BITS "8.2.3.9.8" "Transmit Descriptor Head";
    TDT         0x06018 [128 x 0x40] RW writable INDEX_BITS "8.2.3.9.9" "Transmit Descriptor Tail";
    TXDCTL      0x06028 [128 x 0x40] RW writable TXDCTL_BITS "8.2.3.9.10" "Transmit Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, ENABLE = 1 << 25, SWFLSH = 1 << 26 };
    TDWBAL      0x06038 [128 x 0x40] RW "8.2.3.9.11" "Transmit Descriptor Completion Write Back Address Low";
    TDWBAH      0x0603C [128 x 0x40] RW "8.2.3.9.12" "Transmit Descriptor Completion Write Back Address High";
    TXPBSIZE    0x0CC00 [8 x 4] RW reset 0x0002_8000 "8.2.3.9.13" "Transmit Packet Buffer Size" { KIB_SHIFT = 10 };
    TXPBTHRESH  0x04950 [8 x 4] RW reset 0x0000_0096 "8.2.3.9.16" "Transmit Packet Buffer Threshold";
    MTQC        0x08120 RW "8.2.3.9.15" "Multiple Transmit Queues Command";
    RTTDCS      0x04900 RW "8.2.3.10.2" "DCB Transmit Descriptor Plane Control and Status" { ARBDIS = 1 << 6 };
    DTXTCPFLGL  0x04A88 RW reset 0x0FF6_0FF6 "8.2.3.9.3" "DMA Transmit TCP Flags Control Low" { FIRST_SEGMENT = 0xFF6, MIDDLE_SEGMENTS = 0xF76 << 16 };
    DTXTCPFLGH  0x04A8C RW reset 0x0000_0F7F "8.2.3.9.4" "DMA Transmit TCP Flags Control High";

    // 8.2.3.10 Data centre bridging
    RTRPCS      0x02430 RW "8.2.3.10.1" "DCB Receive Packet Plane Control and Status";
    RTTPCS      0x0CD00 RW reset 0x0100_0000 "8.2.3.10.3" "DCB Transmit Packet Plane Control and Status";
    RTRUP2TC    0x03020 RW "8.2.3.10.4" "DCB Receive User Priority to Traffic Class";
    RTTUP2TC    0x0C800 RW "8.2.3.10.5" "DCB Transmit User Priority to Traffic Class";
    RTRPT4C     0x02140 [8 x 4] RW "8.2.3.10.6" "DCB Receive Packet Plane T4 Config";
    RTRPT4S     0x02160 [8 x 4] RO "8.2.3.10.7" "DCB Receive Packet Plane T4 Status";
    RTTDT2C     0x04910 [8 x 4] RW "8.2.3.10.8" "DCB Transmit Descriptor Plane T2 Config";
    RTTDT2S     0x04930 [8 x 4] RO "8.2.3.10.10" "DCB Transmit Descriptor Plane T2 Status";
    RTTPT2C     0x0CD20 [8 x 4] RW "8.2.3.10.9" "DCB Transmit Packet Plane T2 Config";
    RTTPT2S     0x0CD40 [8 x 4] RO "8.2.3.10.11" "DCB Transmit Packet Plane T2 Status";
    RTTDQSEL    0x04904 RW "8.2.3.10.12" "DCB Transmit Descriptor Plane Queue Select";
    RTTDT1C     0x04908 RW "8.2.3.10.13" "DCB Transmit Descriptor Plane T1 Config";
    RTTDT1S     0x0490C RO "8.2.3.10.14" "DCB Transmit Descriptor Plane T1 Status";
    RTTBCNRM    0x04980 RW "8.2.3.10.15" "DCB Transmit Rate-Scheduler MMW";
    RTTBCNRC    0x04984 RW "8.2.3.10.16" "DCB Transmit Rate-Scheduler Config";
    RTTBCNRD    0x0498C RW "8.2.3.10.17" "DCB Transmit Rate-Scheduler Status";
    MNGTXMAP    0x0CD10 RW "8.2.3.9" "Manageability Transmit TC Mapping";
    TIPG        0x0CB00 RW "8.2.3.9" "Transmit Inter Packet Gap";

    // 8.2.3.11 Direct cache access
    DCA_ID      0x11070 RO "8.2.3.11.3" "DCA Requester ID";
    DCA_CTRL    0x11074 RW reset 0x0000_0001 "8.2.3.11.4" "DCA Control";

    // 8.2.3.12 Security
    SECTXCTRL   0x08800 RW reset 0x0000_0001 "8.2.3.12" "Security Transmit Control" { TX_DIS = 1 << 1 };
    SECTXSTAT   0x08804 RO reset 0x0000_0002 "8.2.3.12" "Security Transmit Status" { SECTX_RDY = 1 << 0, SECTX_OFF_DIS = 1 << 1 };
    SECRXCTRL   0x08D00 RW reset 0x0000_0001 "8.2.3.12" "Security Receive Control" { RX_DIS = 1 << 1 };
    SECRXSTAT   0x08D04 RO reset 0x0000_0002 "8.2.3.12" "Security Receive Status" { SECRX_RDY = 1 << 0, SECRX_OFF_DIS = 1 << 1 };
    SECTXBUFFAF 0x08808 RW reset 0x0000_0250 "8.2.3.12.3" "Security Transmit Buffer Almost Full";
    SECTXMINIFG 0x08810 RW reset 0x0010_0010 "8.2.3.12.4" "Security Transmit Buffer Minimum IFG";
    LSECTXCAP   0x08A00 RW reset 0x0001_0016 "8.2.3.13.1" "LinkSec Transmit Capabilities";
    LSECRXCAP   0x08F00 RW reset 0x0001_0014 "8.2.3.13.2" "LinkSec Receive Capabilities";
    LSECTXCTRL  0x08A04 RW "8.2.3.13.3" "LinkSec Transmit Control";
    LSECRXCTRL  0x08F04 RW "8.2.3.13.4" "LinkSec Receive Control";
    LSECTXSTATS 0x08A3C [5 x 4] RC "8.2.3.13.14" "LinkSec Transmit Counters";
    LSECRXSTATS 0x08F40 [17 x 4] RC "8.2.3.13.22" "LinkSec Receive Counters";
    IPSTXIDX    0x08900 RW "8.2.3.14.1" "IPsec Transmit Index";
    IPSTXSALT   0x08904 RW "8.2.3.14.3" "IPsec Transmit Salt";
    IPSTXKEY    0x08908 [4 x 4] RW "8.2.3.14.2" "IPsec Transmit Key";
    IPSRXIDX    0x08E00 RW "8.2.3.14.4" "IPsec Receive Index";
    IPSRXIPADDR 0x08E04 [4 x 4] RW "8.2.3.14.5" "IPsec Receive IP Address";
    IPSRXSPI    0x08E14 RW "8.2.3.14.6" "IPsec Receive SPI";
    IPSRXIPIDX  0x08E18 RW "8.2.3.14.7" "IPsec Receive IP Index";
    IPSRXKEY    0x08E1C [4 x 4] RW "8.2.3.14.8" "IPsec Receive Key";
    IPSRXSALT   0x08E2C RW "8.2.3.14.9" "IPsec Receive Salt";
    IPSRXMOD    0x08E30 RW "8.2.3.14.10" "IPsec Receive Mode";

    // 8.2.3.16 Fibre Channel over Ethernet
    FCPTRL      0x02410 RW "8.2.3.16" "FC User Descriptor Pointer Low";
    FCPTRH      0x02414 RW "8.2.3.16" "FC User Descriptor Pointer High";
    FCBUFF      0x02418 RW "8.2.3.16" "FC Buffer Control";
    FCDMARW     0x02420 RW "8.2.3.16" "FC Receive DMA RW";
    FCINVST     0x03FC0 [8 x 4] RC "8.2.3.16" "FC Invalid DMA Context Status";
    FCFLT       0x05108 RW "8.2.3.16" "FC FLT Context";
    FCFLTRW     0x05110 RW "8.2.3.16" "FC Filter RW Control";
    FCPARAM     0x051D8 RW "8.2.3.16" "FC Offset Parameter";
    FCRXCTRL    0x05100 RW "8.2.3.16" "FC Receive Control";
    FCRECTL     0x0ED00 RW "8.2.3.16" "FC Redirection Control";
    FCRETA      0x0ED10 [8 x 4] RW "8.2.3.16" "FC Redirection Table";
    TEOFF       0x04A94 RW "8.2.3.16" "Transmit FC EOF";
    TSOFF       0x04A98 RW "8.2.3.16" "Transmit FC SOF";
    REOFF       0x05158 RW "8.2.3.16" "Receive FC EOF";
    RSOFF       0x051F8 RW "8.2.3.16" "Receive FC SOF";

    // 8.2.3.22 MAC and link
    HLREG0      0x04240 RW reset 0x0801_2C0B "8.2.3.22.8" "MAC Core Control 0" { TXCRCEN = 1 << 0, RXCRCSTRP = 1 << 1, JUMBOEN = 1 << 2, TXPADEN = 1 << 10, LPBK = 1 << 15 };
    MAXFRS      0x04268 RW reset 0x05EE_0000 "8.2.3.22" "Max Frame Size" { MFS_SHIFT = 16 };
    AUTOC       0x042A0 RW reset 0x0000_6000 "8.2.3.22.19" "Auto Negotiation Control" { FLU = 1 << 0, RESTART_AN = 1 << 12, LMS_MASK = 0x7 << 13, LMS_1G = 0, LMS_1G_AN = 0x2 << 13, LMS_10G_SERIAL = 0x3 << 13, LMS_KX4_KX_KR = 0x4 << 13, LMS_KX4_KX_KR_1G_AN = 0x6 << 13, LMS_KX4_KX_KR_SGMII = 0x7 << 13, KX_SUPP = 1 << 30, KX4_SUPP = 1 << 31 };
    LINKS       0x042A4 RO "8.2.3.22.20" "Link Status" { SPEED_MASK = 0x3 << 28, SPEED_100M = 0x1 << 28, SPEED_1G = 0x2 << 28, SPEED_10G = 0x3 << 28, UP = 1 << 30, KX_AN_COMP = 1 << 31 };
    PCS1GCFIG   0x04200 RW reset 0x0000_0008 "8.2.3.22.1" "PCS 1G Global Config";
    PCS1GLCTL   0x04208 RW "8.2.3.22.2" "PCS 1G Link Control";
    PCS1GLSTA   0x0420C RO "8.2.3.22.3" "PCS 1G Link Status";
    PCS1GDBG    0x04210 [2 x 4] RO "8.2.3.22" "PCS 1G Debug";
    PCS1GANA    0x04218 RW "8.2.3.22.4" "PCS 1G Auto Negotiation Advanced";
    PCS1GANLP   0x0421C RO "8.2.3.22.5" "PCS 1G AN Link Partner Ability";
    PCS1GANNP   0x04220 RW "8.2.3.22.6" "PCS 1G AN Next Page Transmit";
    PCS1GANLPNP 0x04224 RO "8.2.3.22.7" "PCS 1G AN Link Partner Next Page";
    HLREG1      0x04244 RO "8.2.3.22.9" "MAC Core Status 1";
    PAP         0x04248 RW reset 0x0000_FFFF "8.2.3.22.10" "Pause and Pace";
    MACA        0x0424C RW "8.2.3.22" "MDI Auto Scan Command and Address";
    APAE        0x04250 RW "8.2.3.22" "Auto Scan PHY Address Enable";
    ARD         0x04254 RO "8.2.3.22" "Auto Scan Read Data";
    AIS         0x04258 RW "8.2.3.22" "Auto Scan Interrupt Status";
    MSCA        0x0425C RW "8.2.3.22.11" "MDI Single Command and Address" { ADDRESS_MASK = 0xFFFF, DEVICE_SHIFT = 16, PHY_SHIFT = 21, OP_SHIFT = 26, MDICMD = 1 << 30 };
    MSRWD       0x04260 RW "8.2.3.22.12" "MDI Single Read and Write Data" { READ_SHIFT = 16 };
    MLADD       0x04264 RW "8.2.3.22" "MAC Address Low";
    MACS        0x0429C RW "8.2.3.22" "FIFO Status";
    MFLCN       0x04294 RW "8.2.3.22.34" "MAC Flow Control" { PMCF = 1 << 0, DPF = 1 << 1, RFCE = 1 << 3 };
    SERDESC     0x04298 RO "8.2.3.22" "SerDes Interface Control";
    PCSS        0x04288 [2 x 4] RO "8.2.3.22" "XGXS Status";
    XPCSS       0x04290 RO "8.2.3.22" "10GBASE-X PCS Status";
    TREG        0x0426C RW "8.2.3.22" "Test Register";
    AUTOC2      0x042A8 RW "8.2.3.22.21" "Auto Negotiation Control 2" { LINK_DISABLE = 0x7 << 28 };
    AUTOC3      0x042AC RW "8.2.3.22" "Auto Negotiation Control 3";
    ANLP1       0x042B0 RO reset 0x0001_0C03 "8.2.3.22.22" "Auto Negotiation Link Partner, control word 1";
    ANLP2       0x042B4 RO "8.2.3.22.23" "Auto Negotiation Link Partner, control word 2";
    MMNGC       0x042D0 RW "8.2.3.22.24" "MAC Manageability Control";
    LINKS2      0x04324 RO "8.2.3.22.25" "Link Status 2";
    MACC        0x04330 RW "X540 8.2.2.22" "MAC Control" { FLU = 1 << 0 };
    ATLASCTL    0x04800 RW "8.2.3.22" "Analog Configuration";

    // 8.2.3.23 Statistics
    CRCERRS     0x04000 RC "8.2.3.23" "CRC Error Count";
    ILLERRC     0x04004 RC "8.2.3.23" "Illegal Byte Error Count";
    ERRBC       0x04008 RC "8.2.3.23" "Error Byte Count";
    RLEC        0x04040 RC "8.2.3.23" "Receive Length Error Count";
    RXMPC       0x03FA0 [8 x 4] RC "8.2.3.23" "Receive Missed Packets Count";
    PRC         0x0405C [6 x 4] RC "8.2.3.23" "Packets Received of 64, 127, 255, 511, 1023 and more bytes";
    GPRC        0x04074 RC "8.2.3.23" "Good Packets Received Count";
    BPRC        0x04078 RC "8.2.3.23" "Broadcast Packets Received Count";
    MPRC        0x0407C RC "8.2.3.23" "Multicast Packets Received Count";
    GPTC        0x04080 RC "8.2.3.23" "Good Packets Transmitted Count";
    GORCL       0x04088 RC "8.2.3.23" "Good Octets Received Count Low";
    GORCH       0x0408C RC "8.2.3.23" "Good Octets Received Count High";
    GOTCL       0x04090 RC "8.2.3.23" "Good Octets Transmitted Count Low";
    GOTCH       0x04094 RC "8.2.3.23" "Good Octets Transmitted Count High";
    RUC         0x040A4 RC "8.2.3.23" "Receive Undersize Count";
    RFC         0x040A8 RC "8.2.3.23" "Receive Fragment Count";
    ROC         0x040AC RC "8.2.3.23" "Receive Oversize Count";
    RJC         0x040B0 RC "8.2.3.23" "Receive Jabber Count";
    TORL        0x040C0 RC "8.2.3.23" "Total Octets Received Low";
    TORH        0x040C4 RC "8.2.3.23" "Total Octets Received High";
    TPR         0x040D0 RC "8.2.3.23" "Total Packets Received";
    TPT         0x040D4 RC "8.2.3.23" "Total Packets Transmitted";
    PTC         0x040D8 [6 x 4] RC "8.2.3.23" "Packets Transmitted of 64, 127, 255, 511, 1023 and more bytes";
    MPTC        0x040F0 RC "8.2.3.23" "Multicast Packets Transmitted Count";
    BPTC        0x040F4 RC "8.2.3.23" "Broadcast Packets Transmitted Count";
    QPRC        0x01030 [16 x 0x40] RC "8.2.3.23" "Queue Packets Received Count";
    QBRC_L      0x01034 [16 x 0x40] RC "8.2.3.23" "Queue Bytes Received Count Low";
    QBRC_H      0x01038 [16 x 0x40] RC "8.2.3.23" "Queue Bytes Received Count High";
    QPRDC       0x01430 [16 x 0x40] RC "8.2.3.23" "Queue Packets Received Drop Count";
    QPTC        0x08680 [16 x 4] RC "8.2.3.23" "Queue Packets Transmitted Count";
    QBTC_L      0x08700 [16 x 8] RC "8.2.3.23" "Queue Bytes Transmitted Count Low";
    QBTC_H      0x08704 [16 x 8] RC "8.2.3.23" "Queue Bytes Transmitted Count High";
    RQSMR       0x02300 [32 x 4] RW "8.2.3.23" "Receive Queue Statistic Mapping";
    TQSM        0x08600 [32 x 4] RW "8.2.3.23" "Transmit Queue Statistic Mapping";
    MSPDC       0x04010 RC "8.2.3.23" "MAC Short Packet Discard Count";
    MLFC        0x04034 RC "8.2.3.23" "MAC Local Fault Count";
    MRFC        0x04038 RC "8.2.3.23" "MAC Remote Fault Count";
    LXONTXC     0x03F60 RC "8.2.3.23" "Link XON Transmitted Count";
    LXOFFTXC    0x03F68 RC "8.2.3.23" "Link XOFF Transmitted Count";
    LXONRXC     0x0CF60 RC "8.2.3.23" "Link XON Received Count, 82598's place";
    LXOFFRXC    0x0CF68 RC "8.2.3.23" "Link XOFF Received Count, 82598's place";
    LXONRXCNT   0x041A4 RC "8.2.3.23" "Link XON Received Count";
    LXOFFRXCNT  0x041A8 RC "8.2.3.23" "Link XOFF Received Count";
    PXONRXCNT   0x04140 [8 x 4] RC "8.2.3.23" "Priority XON Received Count";
    PXOFFRXCNT  0x04160 [8 x 4] RC "8.2.3.23" "Priority XOFF Received Count";
    PXONTXC     0x03F00 [8 x 4] RC "8.2.3.23" "Priority XON Transmitted Count";
    PXOFFTXC    0x03F20 [8 x 4] RC "8.2.3.23" "Priority XOFF Transmitted Count";
    PXON2OFFCNT 0x03240 [8 x 4] RC "8.2.3.23" "Priority XON to XOFF Count";
    PXONRXC     0x0CF00 [8 x 4] RC "8.2.3.23" "Priority XON Received Count, 82598's place";
    PXOFFRXC    0x0CF20 [8 x 4] RC "8.2.3.23" "Priority XOFF Received Count, 82598's place";
    MNGPRC      0x040B4 RC "8.2.3.23" "Management Packets Received Count";
    MNGPDC      0x040B8 RC "8.2.3.23" "Management Packets Dropped Count";
    MNGPTC      0x0CF90 RC "8.2.3.23" "Management Packets Transmitted Count";
    XEC         0x04120 RC "8.2.3.23" "XSUM Error Count";
    RXDGPC      0x02F50 RC "8.2.3.23" "DMA Good Receive Packet Counter";
    RXDGBCL     0x02F54 RC "8.2.3.23" "DMA Good Receive Byte Counter Low";
    RXDGBCH     0x02F58 RC "8.2.3.23" "DMA Good Receive Byte Counter High";
    TXDGPC      0x087A0 RC "8.2.3.23" "DMA Good Transmit Packet Counter";
    TXDGBCL     0x087A4 RC "8.2.3.23" "DMA Good Transmit Byte Counter Low";
    TXDGBCH     0x087A8 RC "8.2.3.23" "DMA Good Transmit Byte Counter High";
    SSVPC       0x08780 RC "8.2.3.23" "Switch Security Violation Packet Count";
    FCCRC       0x05118 RC "8.2.3.23" "FC CRC Error Count";
    FCOERPDC    0x0241C RC "8.2.3.23" "FCoE Receive Packets Dropped Count";
    FCLAST      0x02424 RC "8.2.3.23" "FC Last Error Count";
    FCOEPRC     0x02428 RC "8.2.3.23" "FCoE Packets Received Count";
    FCOEDWRC    0x0242C RC "8.2.3.23" "FCoE DWord Received Count";
    FCOEPTC     0x08784 RC "8.2.3.23" "FCoE Packets Transmitted Count";
    FCOEDWTC    0x08788 RC "8.2.3.23" "FCoE DWord Transmitted Count";
    O2BGPTC     0x041C4 RC "8.2.3.23" "OS to BMC Packets Transmitted Count, of the X540";
    B2OSPC      0x041C0 RC "8.2.3.23" "BMC to OS Packets Sent Count, of the X540";
    O2BSPC      0x087B0 RC "8.2.3.23" "OS to BMC Packets Transmitted by Host, of the X540";
    B2OGPRC     0x02F90 RC "8.2.3.23" "BMC to OS Packets Received by Host, of the X540";

    // 8.2.3.24 Wake up, 8.2.3.25 manageability
    WUC         0x05800 RW "8.2.3.24.1" "Wake Up Control";
    WUFC        0x05808 RW "8.2.3.24.2" "Wake Up Filter Control";
    WUS         0x05810 W1C "8.2.3.24.3" "Wake Up Status";
    IPAV        0x05838 RW "8.2.3.24.4" "IP Address Valid";
    IP4AT       0x05840 [4 x 8] RW "8.2.3.24.5" "IPv4 Address Table";
    IP6AT       0x05880 [4 x 4] RW "8.2.3.24.6" "IPv6 Address Table";
    WUPL        0x05900 RW "8.2.3.24.7" "Wake Up Packet Length";
    WUPM        0x05A00 [32 x 4] RW "8.2.3.24.8" "Wake Up Packet Memory";
    FHFT        0x09000 [256 x 4] RW "8.2.3.24.9" "Flexible Host Filter Table";
    MANC        0x05820 RW "8.2.3.25.4" "Management Control";
    MFVAL       0x05824 RW "8.2.3.25.5" "Manageability Filters Valid";

    // 8.2.3.26 Time sync
    TSYNCRXCTL  0x05188 RW "8.2.3.26.1" "Rx Time Sync Control" { VALID = 1 << 0, TYPE_SHIFT = 1, TYPE_EVENTS = 5 << 1, ENABLE = 1 << 4 };
    RXSTMPL     0x051E8 RO "8.2.3.26.2" "Rx Timestamp Low";
    RXSTMPH     0x051A4 RO "8.2.3.26.3" "Rx Timestamp High";
    RXSATRL     0x051A0 RO "8.2.3.26.4" "Rx Timestamp Attributes Low";
    RXSATRH     0x051A8 RO "8.2.3.26.5" "Rx Timestamp Attributes High";
    RXMTRL      0x05120 RW reset 0x013F_0000 "8.2.3.26.6" "Rx Message Type Low" { MESSAGE_SHIFT = 8, PORT_SHIFT = 16 };
    TSYNCTXCTL  0x08C00 RW "8.2.3.26.7" "Tx Time Sync Control" { VALID = 1 << 0, ENABLE = 1 << 4 };
    TXSTMPL     0x08C04 RO "8.2.3.26.8" "Tx Timestamp Low";
    TXSTMPH     0x08C08 RO "8.2.3.26.9" "Tx Timestamp High";
    SYSTIML     0x08C0C RW "8.2.3.26.10" "System Time Low";
    SYSTIMH     0x08C10 RW "8.2.3.26.11" "System Time High";
    TIMINCA     0x08C14 RW "8.2.3.26.12" "Increment Attributes" { VALUE_MASK = 0x00FF_FFFF, PERIOD_SHIFT = 24, NEGATIVE = 1 << 31 };
    TIMADJL     0x08C18 RW "8.2.3.26.13" "Time Adjustment Offset Low";
    TIMADJH     0x08C1C RW "8.2.3.26.14" "Time Adjustment Offset High";
    TSAUXC      0x08C20 RW "8.2.3.26.15" "TimeSync Auxiliary Control" { DISABLE_SYSTIME = 1 << 31 };
    TRGTTIML    0x08C24 [2 x 8] RW "8.2.3.26.16" "Target Time Low";
    TRGTTIMH    0x08C28 [2 x 8] RW "8.2.3.26.17" "Target Time High";
    CLKTIML     0x08C34 RW "X540 8.2.2.26" "Clock Out Time Low";
    CLKTIMH     0x08C38 RW "X540 8.2.2.26" "Clock Out Time High";
    AUXSTMPL    0x08C3C [2 x 8] RO "8.2.3.26.20" "Auxiliary Time Stamp Low";
    AUXSTMPH    0x08C40 [2 x 8] RO "8.2.3.26.21" "Auxiliary Time Stamp High";
    TSSDP       0x0003C RW "X540 8.2.2.26" "TimeSync SDP Configuration";

    // 8.2.3.27 Virtualization
    PFVTCTL     0x051B0 RW "8.2.3.27.1" "VT Control";
    PFMAILBOX   0x04B00 [64 x 4] RW "8.2.3.27.2" "PF Mailbox";
    PFMBMEM     0x13000 [1024 x 4] RW "8.2.3.27.3" "PF Mailbox Memory";
    PFMBICR     0x00710 [4 x 4] W1C "8.2.3.27.4" "PF Mailbox Causes";
    PFMBIMR     0x00720 [2 x 4] RW "8.2.3.27.5" "PF Mailbox Interrupt Mask";
    PFVFLRE     0x00600 RO "8.2.3.27.6" "PF VFLR Events Indication";
    PFVFLREC    0x00700 [2 x 4] W1C "8.2.3.27.7" "PF VFLR Event Clear";
    PFVFRE      0x051E0 [2 x 4] RW "8.2.3.27.8" "PF VF Receive Enable";
    PFVFTE      0x08110 [2 x 4] RW "8.2.3.27.9" "PF VF Transmit Enable";
    PFVMTXSW    0x05180 [2 x 4] RW "8.2.3.27.10" "PF VM Tx Switch Loopback Enable";
    PFVFSPOOF   0x08200 [8 x 4] RW "8.2.3.27.12" "PF VF Anti Spoof Control";
    PFDTXGSWC   0x08220 RW "8.2.3.27.13" "PF DMA Tx General Switch Control";
    PFVMVIR     0x08000 [64 x 4] RW "8.2.3.27.15" "PF VM VLAN Insert";
    PFVML2FLT   0x0F000 [64 x 4] RW "8.2.3.27.16" "PF VM L2 Control";
    PFVLVF      0x0F100 [64 x 4] RW "8.2.3.27.17" "PF VM VLAN Pool Filter";
    PFVLVFB     0x0F200 [128 x 4] RW "8.2.3.27.18" "PF VM VLAN Pool Filter Bitmap";
    PFMRCTL     0x0F600 [4 x 4] RW "8.2.3.27.20" "PF Mirror Rule Control";
    PFMRVLAN    0x0F610 [8 x 4] RW "8.2.3.27.21" "PF Mirror Rule VLAN";
    PFMRVM      0x0F630 [8 x 4] RW "8.2.3.27.22" "PF Mirror Rule Pool";
    VMECM       0x08790 [2 x 4] RW "8.2.3.27" "DMA Tx Switch Security Error";
    PFFLPL      0x050B0 RW "8.2.3.27" "PF Flow Low";
    PFFLPH      0x050B4 RW "8.2.3.27" "PF Flow High";

    // Not in the datasheet, but read by `ethtool -d` on Linux
    MSIXPBA     0x02000 RO "-" "MSI-X Pending Bits";
    PBACL_0     0x11068 RO "-" "MSI-X PBA Clear, 82598's place";
    RDSTAT      0x02C00 [8 x 4] RO "-" "Receive DMA Statistics";
    RDSTATCTL   0x02C20 RW "-" "Receive DMA Statistics Control";
    RDHMPN      0x02F08 RW "-" "Receive Descriptor Handler Memory Page";
    RIC_DW      0x02F10 [4 x 4] RW "-" "Receive Descriptor Handler Memory";
    PBRXECC     0x03300 RW "-" "Receive Packet Buffer ECC";
    RXBUFCTRL   0x03600 RW "-" "Receive Buffer Access Control";
    RXBUFDATA   0x03610 [4 x 4] RW "-" "Receive Buffer Data";
    MDFTC1      0x042B8 RW "-" "MAC Test Control 1";
    MDFTC2      0x042C0 RW "-" "MAC Test Control 2";
    MDFTFIFO    0x042C4 [2 x 4] RW "-" "MAC Test FIFO";
    MDFTS       0x042CC RO "-" "MAC Test Status";
    RTTQCNTG    0x04A90 RW "-" "DCB Congestion Notification Tag, of the X540";
    RTTQCNCR    0x08B00 RW "-" "DCB Congestion Notification Control, of the X540";
    TXLLQ       0x082E0 [4 x 4] RW "-" "Strict Low Latency Queues";
    RFVAL       0x050A4 RW "-" "Receive Filter Validation";
    VMD_CTL     0x0581C RW "-" "VMDq Control, of the 82598";
    IMIR        0x05A80 [8 x 4] RW "-" "Immediate Interrupt Receive, of the 82598";
    IMIREXT     0x05AA0 [8 x 4] RW "-" "Immediate Interrupt Receive Extended, of the 82598";
    IMIRVP      0x05AC0 RW "-" "Immediate Interrupt Receive VLAN Priority, of the 82598";
    TDSTAT_5    0x07C14 RO "-" "Transmit DMA Statistics, of the 82598";
    TDSTAT_7    0x07C1C RO "-" "Transmit DMA Statistics, of the 82598";
    TDSTATCTL   0x07C20 RO "-" "Transmit DMA Statistics Control, of the 82598";
    TIC_DW_1    0x07F14 RO "-" "Transmit Descriptor Handler Memory, of the 82598";
    TIC_DW_3    0x07F1C RO "-" "Transmit Descriptor Handler Memory, of the 82598";
    TDPROBE     0x07F20 RO "-" "Transmit Probe, of the 82598";
    PBTXECC     0x0C300 RW "-" "Transmit Packet Buffer ECC";
    TXBUFCTRL   0x0C600 RW "-" "Transmit Buffer Access Control";
    TXBUFDATA   0x0C610 [4 x 4] RW "-" "Transmit Buffer Data";
    PCIEECCCTL  0x1106C RW "-" "PCIe ECC Control";

    // X550 only
    X550_I2CCTL 0x15F5C RW reset 0x0000_5000 "X550 8.2.2.1" "I2C Control, of the X550" { DATA_IN = 1 << 12, CLK_IN = 1 << 14 };
    ETAG_ETYPE  0x05084 RW "X550 8.2.2.7" "EtherType of E-tags";
    VXLANCTRL   0x0507C RW "X550 8.2.2.7" "VXLAN Control";
    ERETA       0x0EE80 [96 x 4] RW "X550 8.2.2.8.24" "Extended Redirection Table";
    SYSTIMR     0x08C58 RW "X550 8.2.2.21.24" "System Time Residue";
    TSICR       0x08C60 W1C "X550 8.2.2.21.25" "Time Sync Interrupt Cause";
    TSIM        0x08C68 RW "X550 8.2.2.21.26" "Time Sync Interrupt Mask";

    // The host interface of the X540 and X550 to the firmware (X540 datasheet, section 10.6.4)
    HICR        0x15F00 RW "X540 8.2.2.4" "Host Interface Control" { EN = 1 << 0, C = 1 << 1, SV = 1 << 2 };
    FWSTS       0x15F0C RW reset 0x0000_0001 "X540 8.2.2.4" "Firmware Status";
    SWSR        0x15F10 RW "X540 8.2.2.4" "Software Status";
    FLEX_MNG    0x15800 [448 x 4] RW "X540 8.2.2.4" "Host Interface Memory";
}

/// Returns the registers that a read clears: statistics (8.2.3.23), and the statistics of the flow director.
pub fn statistics() -> impl Iterator<Item = Register> {
    let counters = MAP.iter().filter(|definition| definition.access == Access::RC);
    counters.flat_map(|definition| definition.registers())
}

/// Returns the counters of section 8.2.3.23 and the flow director's matches. Of counters by queue, only the first
/// counts if `RQSMR` and `TQSM` are 0; of counters by traffic class, only the first without DCB.
pub fn counters() -> impl Iterator<Item = Counter> {
    /// The 82598's places of registers, and registers of the X540 alone.
    const OTHERS: [&str; 8] = ["LXONRXC", "LXOFFRXC", "PXONRXC", "PXOFFRXC", "O2BGPTC", "B2OSPC", "O2BSPC", "B2OGPRC"];
    let counters = Counter::all(MAP, |definition| {
        let is_statistic = definition.section == "8.2.3.23" && !OTHERS.contains(&definition.name);
        is_statistic || [FDIRMATCH::NAME, FDIRMISS::NAME].contains(&definition.name)
    });
    counters.filter(|counter| counter.low.number == 0 || counter.is_by_length())
}
