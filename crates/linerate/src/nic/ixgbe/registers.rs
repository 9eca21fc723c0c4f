//! The 82599's registers that are used here: one line each, shared by the driver and the model.
//!
//! Names, bits and sections are those of Intel's "82599 10 GbE Controller Datasheet" (331520). A
//! register is a type: `RXDCTL::at(3)` is the offset of queue 3's, `RXDCTL::ENABLE` one of its
//! bits. The model reads the same lines through [`MAP`]: access mode, reset value, bits that a
//! driver may write.
#![allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)] // the datasheet documents them

/// What reading and writing a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    RW,
    /// Read only; writes are ignored.
    RO,
    /// Read to clear: the statistics (section 8.2.3.23).
    RC,
    /// Written bits of 1 clear the register's.
    W1C,
    /// Write only; reads as 0.
    WO,
}

/// One line of the register map.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    pub name: &'static str,
    pub offset: u32,
    pub count: u32,
    pub stride: u32,
    pub access: Access,
    pub reset: u32,
    /// Bits that a driver may change; a 1 elsewhere must be what the register held before.
    pub writable: u32,
    pub section: &'static str,
}

const ALL: u32 = u32::MAX;

macro_rules! registers {
    ($($name:ident $offset:literal [$count:literal x $stride:literal] $access:ident reset $reset:literal
       writable $writable:ident $section:literal { $($bit:ident = $value:expr),* } $title:literal;)*) => {
        $(
            #[doc = concat!($title, " (section ", $section, ").")]
            pub struct $name;

            impl $name {
                /// The first one's offset in BAR 0.
                pub const OFFSET: u32 = $offset;

                /// The offset of number `n`.
                pub const fn at(n: u16) -> u32 {
                    assert!((n as u32) < $count);
                    $offset + n as u32 * $stride
                }

                $(pub const $bit: u32 = $value;)*
            }
        )*

        /// All of them.
        pub const MAP: &[Register] = &[$(Register {
            name: stringify!($name),
            offset: $offset,
            count: $count,
            stride: $stride,
            access: Access::$access,
            reset: $reset,
            writable: $writable,
            section: $section,
        }),*];
    };
}

// Bits that a driver may write, where the datasheet reserves others.
const CTRL_BITS: u32 = CTRL::MASTER_DISABLE | CTRL::LRST | CTRL::RST;
const RXDCTL_BITS: u32 = RXDCTL::ENABLE | RXDCTL::VME;
const TXDCTL_BITS: u32 = 0x007F_7F7F | TXDCTL::ENABLE | TXDCTL::SWFLSH;
const SRRCTL_BITS: u32 = 0x1F | 0x3F << 8 | 0x7 << 22 | 0x7 << 25 | SRRCTL::DROP_EN;
const RXCTRL_BITS: u32 = RXCTRL::RXEN;
const RDLEN_BITS: u32 = 0x000F_FF80;
const BASE_BITS: u32 = 0xFFFF_FF80;
const INDEX_BITS: u32 = 0xFFFF;

registers! {
    // 8.2.3.1 General control
    CTRL       0x00000 [1 x 0]    RW  reset 0x0000_0000 writable CTRL_BITS "8.2.3.1.1" { MASTER_DISABLE = 1 << 2, LRST = 1 << 3, RST = 1 << 26 } "Device Control";
    STATUS     0x00008 [1 x 0]    RO  reset 0x0008_0000 writable ALL "8.2.3.1.2" { MASTER_ENABLE_STATUS = 1 << 19 } "Device Status";
    CTRL_EXT   0x00018 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.1.3" { NS_DIS = 1 << 16, DRV_LOAD = 1 << 28 } "Extended Device Control";

    // 8.2.3.2 EEPROM
    EEC        0x10010 [1 x 0]    RO  reset 0x0000_0300 writable ALL "8.2.3.2.1" { PRES = 1 << 8, ARD = 1 << 9 } "EEPROM Control";
    EERD       0x10014 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.2" { START = 1 << 0, DONE = 1 << 1, ADDR_SHIFT = 2, DATA_SHIFT = 16 } "EEPROM Read";

    // 8.2.3.4 Semaphores
    SWSM       0x10140 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" { SMBI = 1 << 0, SWESMBI = 1 << 1 } "Software Semaphore";
    FWSM       0x10148 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.4" {} "Firmware Semaphore";
    SW_FW_SYNC 0x10160 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" {} "Software-Firmware Synchronization";

    // 8.2.3.5 Interrupts
    EICR       0x00800 [1 x 0]    W1C reset 0x0000_0000 writable ALL "8.2.3.5.1" { LSC = 1 << 20 } "Extended Interrupt Cause";
    EICS       0x00808 [1 x 0]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.2" {} "Extended Interrupt Cause Set";
    EIMS       0x00880 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.3" {} "Extended Interrupt Mask Set";
    EIMC       0x00888 [1 x 0]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.4" { ALL_CAUSES = 0x7FFF_FFFF } "Extended Interrupt Mask Clear";
    EIAC       0x00810 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.5" {} "Extended Interrupt Auto Clear";
    EIAM       0x00890 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.6" {} "Extended Interrupt Auto Mask Enable";
    EITR       0x00820 [24 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.5.12" { INTERVAL_SHIFT = 3, INTERVAL_MASK = 0x1FF, CNT_WDIS = 1 << 31 } "Extended Interrupt Throttle";
    IVAR       0x00900 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.5" { VALID = 1 << 7 } "Interrupt Vector Allocation";
    IVAR_MISC  0x00A00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5" {} "Miscellaneous Interrupt Vector Allocation";
    GPIE       0x00898 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.18" { MULTIPLE_MSIX = 1 << 4, EIAME = 1 << 30, PBA_SUPPORT = 1 << 31 } "General Purpose Interrupt Enable";

    // 8.2.3.7 Receive filters and receive-side scaling
    FCTRL      0x05080 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.1" { SBP = 1 << 1, MPE = 1 << 8, UPE = 1 << 9, BAM = 1 << 10 } "Filter Control";
    VLNCTRL    0x05088 [1 x 0]    RW  reset 0x0000_8100 writable ALL "8.2.3.7.2" { VFE = 1 << 30 } "VLAN Control";
    MCSTCTRL   0x05090 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.3" { MO_MASK = 0x3, MFE = 1 << 2 } "Multicast Control";
    RXCSUM     0x05000 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.5" { PCSD = 1 << 13 } "Receive Checksum Control";
    RFCTL      0x05008 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.6" { RSC_DIS = 1 << 5 } "Receive Filter Control";
    MTA        0x05200 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.7" {} "Multicast Table Array";
    RAL        0x0A200 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.8" {} "Receive Address Low";
    RAH        0x0A204 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.9" { AV = 1 << 31 } "Receive Address High";
    MPSAR_LO   0x0A600 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.10" {} "MAC Pool Select Array, pools 31 to 0";
    MPSAR_HI   0x0A604 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.10" {} "MAC Pool Select Array, pools 63 to 32";
    VFTA       0x0A000 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.11" {} "VLAN Filter Table Array";
    PFUTA      0x0F400 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.27" {} "PF Unicast Table Array";
    MRQC       0x0EC80 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.12" { MRQE_MASK = 0xF, MRQE_RSS = 0x1, TCP_IPV4 = 1 << 16, IPV4 = 1 << 17, IPV6 = 1 << 20, TCP_IPV6 = 1 << 21, UDP_IPV4 = 1 << 22, UDP_IPV6 = 1 << 23 } "Multiple Receive Queues Command";
    RSSRK      0x0EB80 [10 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.7.14" {} "RSS Random Key";
    RETA       0x0EB00 [32 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.7.15" {} "Redirection Table";

    // 8.2.3.8 Receive DMA
    RDBAL      0x01000 [64 x 0x40] RW reset 0x0000_0000 writable BASE_BITS "8.2.3.8.1" {} "Receive Descriptor Base Address Low";
    RDBAH      0x01004 [64 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.8.2" {} "Receive Descriptor Base Address High";
    RDLEN      0x01008 [64 x 0x40] RW reset 0x0000_0000 writable RDLEN_BITS "8.2.3.8.3" {} "Receive Descriptor Length";
    DCA_RXCTRL 0x0100C [64 x 0x40] RW reset 0x0000_1000 writable ALL "8.2.3.11.1" { BIT_12 = 1 << 12 } "Receive DCA Control";
    RDH        0x01010 [64 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.8.4" {} "Receive Descriptor Head";
    SRRCTL     0x01014 [64 x 0x40] RW reset 0x0000_0402 writable SRRCTL_BITS "8.2.3.8.7" { BSIZEPACKET_MASK = 0x1F, DESCTYPE_SHIFT = 25, DESCTYPE_ADVANCED = 1 << 25, DROP_EN = 1 << 28 } "Split Receive Control";
    RDT        0x01018 [64 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.8.5" {} "Receive Descriptor Tail";
    RXDCTL     0x01028 [64 x 0x40] RW reset 0x0000_0000 writable RXDCTL_BITS "8.2.3.8.6" { ENABLE = 1 << 25, VME = 1 << 30 } "Receive Descriptor Control";
    RSCCTL     0x0102C [64 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.8.13" {} "RSC Control";
    RDRXCTL    0x02F00 [1 x 0]    RW  reset 0x0010_0008 writable ALL "8.2.3.8.8" { CRC_STRIP = 1 << 1, DMAIDONE = 1 << 3, RSCFRSTSIZE_MASK = 0x1F << 17, BIT_25 = 1 << 25, BIT_26 = 1 << 26 } "Receive DMA Control";
    RXPBSIZE   0x03C00 [8 x 4]    RW  reset 0x0008_0000 writable ALL "8.2.3.8.9" { KIB_SHIFT = 10 } "Receive Packet Buffer Size";
    RXCTRL     0x03000 [1 x 0]    RW  reset 0x0000_0000 writable RXCTRL_BITS "8.2.3.8.10" { RXEN = 1 << 0 } "Receive Control";

    // 8.2.3.9 Transmit
    DTXMXSZRQ  0x08100 [1 x 0]    RW  reset 0x0000_0010 writable ALL "8.2.3.9.1" {} "DMA Transmit Maximum Allowed Size Requests";
    DMATXCTL   0x04A80 [1 x 0]    RW  reset 0x8100_0000 writable ALL "8.2.3.9.2" { TE = 1 << 0 } "DMA Transmit Control";
    TDBAL      0x06000 [128 x 0x40] RW reset 0x0000_0000 writable BASE_BITS "8.2.3.9.5" {} "Transmit Descriptor Base Address Low";
    TDBAH      0x06004 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.6" {} "Transmit Descriptor Base Address High";
    TDLEN      0x06008 [128 x 0x40] RW reset 0x0000_0000 writable RDLEN_BITS "8.2.3.9.7" {} "Transmit Descriptor Length";
    DCA_TXCTRL 0x0600C [128 x 0x40] RW reset 0x0000_0800 writable ALL "8.2.3.11.2" {} "Transmit DCA Control";
    TDH        0x06010 [128 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.9.8" {} "Transmit Descriptor Head";
    TDT        0x06018 [128 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.9.9" {} "Transmit Descriptor Tail";
    TXDCTL     0x06028 [128 x 0x40] RW reset 0x0000_0000 writable TXDCTL_BITS "8.2.3.9.10" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, ENABLE = 1 << 25, SWFLSH = 1 << 26 } "Transmit Descriptor Control";
    TDWBAL     0x06038 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.11" {} "Transmit Descriptor Completion Write Back Address Low";
    TDWBAH     0x0603C [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.12" {} "Transmit Descriptor Completion Write Back Address High";
    TXPBSIZE   0x0CC00 [8 x 4]    RW  reset 0x0002_8000 writable ALL "8.2.3.9.13" { KIB_SHIFT = 10 } "Transmit Packet Buffer Size";
    TXPBTHRESH 0x04950 [8 x 4]    RW  reset 0x0000_0096 writable ALL "8.2.3.9.16" {} "Transmit Packet Buffer Threshold";
    MTQC       0x08120 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.9.15" {} "Multiple Transmit Queues Command";
    RTTDCS     0x04900 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.2" { ARBDIS = 1 << 6 } "DCB Transmit Descriptor Plane Control and Status";

    // 8.2.3.12 Security
    SECTXCTRL  0x08800 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.12" { TX_DIS = 1 << 1 } "Security Transmit Control";
    SECTXSTAT  0x08804 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.12" { SECTX_RDY = 1 << 0 } "Security Transmit Status";
    SECRXCTRL  0x08D00 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.12" { RX_DIS = 1 << 1 } "Security Receive Control";
    SECRXSTAT  0x08D04 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.12" { SECRX_RDY = 1 << 0 } "Security Receive Status";

    // 8.2.3.22 MAC and link
    HLREG0     0x04240 [1 x 0]    RW  reset 0x0801_2C0B writable ALL "8.2.3.22.8" { TXCRCEN = 1 << 0, RXCRCSTRP = 1 << 1, JUMBOEN = 1 << 2, TXPADEN = 1 << 10 } "MAC Core Control 0";
    MAXFRS     0x04268 [1 x 0]    RW  reset 0x05EE_0000 writable ALL "8.2.3.22" { MFS_SHIFT = 16 } "Max Frame Size";
    AUTOC      0x042A0 [1 x 0]    RW  reset 0x0000_6000 writable ALL "8.2.3.22.19" { RESTART_AN = 1 << 12, LMS_MASK = 0x7 << 13, LMS_10G_SERIAL = 0x3 << 13 } "Auto Negotiation Control";
    LINKS      0x042A4 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.20" { SPEED_MASK = 0x3 << 28, SPEED_100M = 0x1 << 28, SPEED_1G = 0x2 << 28, SPEED_10G = 0x3 << 28, UP = 1 << 30 } "Link Status";

    // 8.2.3.23 Statistics
    CRCERRS    0x04000 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "CRC Error Count";
    ILLERRC    0x04004 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Illegal Byte Error Count";
    ERRBC      0x04008 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Error Byte Count";
    RLEC       0x04040 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Length Error Count";
    RXMPC      0x03FA0 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Missed Packets Count";
    PRC        0x0405C [6 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Packets Received of 64, 127, 255, 511, 1023 and more bytes";
    GPRC       0x04074 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Packets Received Count";
    BPRC       0x04078 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Broadcast Packets Received Count";
    MPRC       0x0407C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Multicast Packets Received Count";
    GPTC       0x04080 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Packets Transmitted Count";
    GORCL      0x04088 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Octets Received Count Low";
    GORCH      0x0408C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Octets Received Count High";
    GOTCL      0x04090 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Octets Transmitted Count Low";
    GOTCH      0x04094 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Good Octets Transmitted Count High";
    RUC        0x040A4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Undersize Count";
    RFC        0x040A8 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Fragment Count";
    ROC        0x040AC [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Oversize Count";
    RJC        0x040B0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Jabber Count";
    TORL       0x040C0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Total Octets Received Low";
    TORH       0x040C4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Total Octets Received High";
    TPR        0x040D0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Total Packets Received";
    TPT        0x040D4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Total Packets Transmitted";
    PTC        0x040D8 [6 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Packets Transmitted of 64, 127, 255, 511, 1023 and more bytes";
    MPTC       0x040F0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Multicast Packets Transmitted Count";
    BPTC       0x040F4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Broadcast Packets Transmitted Count";
    QPRC       0x01030 [16 x 0x40] RC reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Packets Received Count";
    QBRC_L     0x01034 [16 x 0x40] RC reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Bytes Received Count Low";
    QBRC_H     0x01038 [16 x 0x40] RC reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Bytes Received Count High";
    QPRDC      0x01430 [16 x 0x40] RC reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Packets Received Drop Count";
    QPTC       0x08680 [16 x 4]   RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Packets Transmitted Count";
    QBTC_L     0x08700 [16 x 8]   RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Bytes Transmitted Count Low";
    QBTC_H     0x08704 [16 x 8]   RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Queue Bytes Transmitted Count High";
    RQSMR      0x02300 [32 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Receive Queue Statistic Mapping";
    TQSM       0x08600 [32 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Transmit Queue Statistic Mapping";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn no_two_registers_share_an_offset() {
        let mut seen = HashMap::new();
        for register in MAP {
            for n in 0..register.count {
                let offset = register.offset + n * register.stride;
                if let Some(other) = seen.insert(offset, register.name) {
                    panic!("{} and {other} are both at {offset:#x}", register.name);
                }
                assert!(offset % 4 == 0 && offset < 0x20000);
            }
        }
    }
}
