//! The registers of the 82599 used here: one line each, shared by the driver and the model.
//!
//! Names, bits and sections are those of Intel's "82599 10 GbE Controller Datasheet" (331520). A register is a type:
//! `RXDCTL::at(3)` is the offset of queue 3's register, `RXDCTL::ENABLE` one of its bits. The model reads the same
//! lines through [`MAP`]: access mode, reset value, and the bits that a driver may write.
#![allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)] // the datasheet documents them

/// The effect of reading and writing a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    RW,
    /// Read only; writes are ignored.
    RO,
    /// Read to clear: the statistics (section 8.2.3.23).
    RC,
    /// Write 1 to clear.
    W1C,
    /// Write only; reads as 0.
    WO,
}

/// One line of the register map.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    pub name: &'static str,
    pub offset: u32,
    /// The offset of number 0: `offset`, except for the second range of a register.
    pub kind: u32,
    /// The number of the register at `offset`.
    pub first: u32,
    pub count: u32,
    pub stride: u32,
    pub access: Access,
    pub reset: u32,
    /// Bits that a driver may change; all others must be written as they were read.
    pub writable: u32,
    pub section: &'static str,
}

const ALL: u32 = u32::MAX;

macro_rules! registers {
    ($($name:ident $offset:literal [$count:literal x $stride:literal $(then $more:literal at $upper:literal)?]
       $access:ident reset $reset:literal writable $writable:ident $section:literal
       { $($bit:ident = $value:expr),* } $title:literal;)*) => {
        $(
            #[doc = concat!($title, " (section ", $section, ").")]
            pub struct $name;

            impl $name {
                /// The offset of number 0 in BAR 0.
                pub const OFFSET: u32 = $offset;

                /// Returns the offset of number `n`.
                pub const fn at(n: u16) -> u32 {
                    $(if n as u32 >= $count {
                        assert!((n as u32) < $count + $more);
                        return $upper + (n as u32 - $count) * $stride;
                    })?
                    assert!((n as u32) < $count);
                    $offset + n as u32 * $stride
                }

                $(pub const $bit: u32 = $value;)*
            }
        )*

        /// All registers; one in two ranges has two lines.
        pub const MAP: &[Register] = &[$(
            Register {
                name: stringify!($name),
                offset: $offset,
                kind: $offset,
                first: 0,
                count: $count,
                stride: $stride,
                access: Access::$access,
                reset: $reset,
                writable: $writable,
                section: $section,
            },
            $(Register {
                name: stringify!($name),
                offset: $upper,
                kind: $offset,
                first: $count,
                count: $more,
                stride: $stride,
                access: Access::$access,
                reset: $reset,
                writable: $writable,
                section: $section,
            },)?
        )*];
    };
}

// Bits that a driver may write in registers with reserved bits.
const CTRL_BITS: u32 = CTRL::MASTER_DISABLE | CTRL::LRST | CTRL::RST;
const RXDCTL_BITS: u32 = RXDCTL::RLPML_MASK | RXDCTL::RLPML_EN | RXDCTL::ENABLE | RXDCTL::SWFLSH | RXDCTL::VME;
const TXDCTL_BITS: u32 = 0x007F_7F7F | TXDCTL::ENABLE | TXDCTL::SWFLSH;
const SRRCTL_BITS: u32 = 0x1F | 0x3F << 8 | 0x7 << 22 | 0x7 << 25 | SRRCTL::DROP_EN;
const RXCTRL_BITS: u32 = RXCTRL::RXEN | RXCTRL::DMBYPS;
const INDEX_BITS: u32 = 0xFFFF;

/// Aliases of registers, kept for drivers of the 82598: offset, count and stride; then offset and stride of the
/// registers they stand for.
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
    (0x07214, 1, 0, 0x0614C, 0),
    (0x0721C, 1, 0, 0x061CC, 0),
    (0x07220, 2, 4, 0x0620C, 0x40),
    (0x0722C, 3, 4, 0x062CC, 0x40),
];

registers! {
    // 8.2.3.1 General control
    CTRL       0x00000 [1 x 0]    RW  reset 0x0000_0000 writable CTRL_BITS "8.2.3.1.1" { MASTER_DISABLE = 1 << 2, LRST = 1 << 3, RST = 1 << 26 } "Device Control";
    STATUS     0x00008 [1 x 0]    RW  reset 0x0008_0000 writable ALL "8.2.3.1.2" { LAN_ID_SHIFT = 2, MASTER_ENABLE_STATUS = 1 << 19 } "Device Status";
    CTRL_EXT   0x00018 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.1.3" { NS_DIS = 1 << 16, DRV_LOAD = 1 << 28 } "Extended Device Control";
    ESDP       0x00020 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.1.4" { SDP2 = 1 << 2, SDP3 = 1 << 3, SDP3_IODIR = 1 << 11 } "Extended SDP Control";
    I2CCTL     0x00028 [1 x 0]    RW  reset 0x0000_000F writable ALL "8.2.3.1.5" { CLK_IN = 1 << 0, CLK_OUT = 1 << 1, DATA_IN = 1 << 2, DATA_OUT = 1 << 3 } "I2C Control";
    LEDCTL     0x00200 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.1.6" {} "LED Control";
    EXVET      0x05078 [1 x 0]    RW  reset 0x8100_0000 writable ALL "8.2.3.1.7" { VET_EXT_SHIFT = 16 } "Extended VLAN Ether Type";
    CORECTL    0x14F00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Core Analog Configuration";
    TCPTIMER   0x0004C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.15" {} "TCP Timer";
    FRTIMER    0x00048 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.15" {} "Free Running Timer";

    // 8.2.3.2 EEPROM
    EEC        0x10010 [1 x 0]    RW  reset 0x0000_3300 writable ALL "8.2.3.2.1" { REQ = 1 << 6, GNT = 1 << 7, PRES = 1 << 8, ARD = 1 << 9, SIZE_MASK = 0xF << 11 } "EEPROM Control";
    EERD       0x10014 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.2" { START = 1 << 0, DONE = 1 << 1, ADDR_SHIFT = 2, DATA_SHIFT = 16 } "EEPROM Read";
    EEWR       0x10018 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.2" {} "EEPROM Write";
    FLA        0x1001C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.3" {} "Flash Access";
    EEMNGCTL   0x10110 [1 x 0]    RW  reset 0x000C_0000 writable ALL "8.2.3.2.4" { CFG_DONE0 = 1 << 18, CFG_DONE1 = 1 << 19 } "Manageability EEPROM Control";
    EEMNGDATA  0x10114 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.5" {} "Manageability EEPROM Data";
    FLMNGCTL   0x10118 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.6" {} "Manageability Flash Control";
    FLMNGDATA  0x1011C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.7" {} "Manageability Flash Data";
    FLMNGCNT   0x10120 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.7" {} "Manageability Flash Read Counter";
    FLOP       0x1013C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.2.8" {} "Flash Opcode";
    GRC        0x10200 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.2.9" {} "General Receive Control";

    // 8.2.3.3 Flow control
    PFCTOP     0x03008 [1 x 0]    RW  reset 0x0001_8808 writable ALL "8.2.3.3.1" {} "Priority Flow Control Type Opcode";
    FCTTV      0x03200 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.3.2" {} "Flow Control Transmit Timer Value";
    FCRTL      0x03220 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.3.3" { XONE = 1 << 31, MASK = 0x0007_FFE0 } "Flow Control Receive Threshold Low";
    FCRTH      0x03260 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.3.4" { FCEN = 1 << 31, MASK = 0x0007_FFE0 } "Flow Control Receive Threshold High";
    FCRTV      0x032A0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.3.5" {} "Flow Control Refresh Threshold";
    TFCS       0x0CE00 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.3.6" { TXOFF = 1 << 0 } "Transmit Flow Control Status";
    FCCFG      0x03D00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.3.7" { TFCE_SHIFT = 3, TFCE_MASK = 0x3 << 3, TFCE_LINK = 1 << 3 } "Flow Control Configuration";

    // 8.2.3.4 PCIe and semaphores
    SWSM       0x10140 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" { SMBI = 1 << 0, SWESMBI = 1 << 1 } "Software Semaphore";
    FWSM       0x10148 [1 x 0]    RO  reset 0x0000_8000 writable ALL "8.2.3.4" { VALID = 1 << 15 } "Firmware Semaphore";
    SW_FW_SYNC 0x10160 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" { SW_EEP_SM = 1 << 0, SW_PHY_SM0 = 1 << 1, SW_MAC_CSR_SM = 1 << 3, FW_SHIFT = 5, REGSMP = 1 << 31 } "Software-Firmware Synchronization";
    GCR        0x11000 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.1" {} "PCIe Control";
    FUNCTAG    0x11008 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" {} "Function Tag";
    GLT        0x1100C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4" {} "Latency Timer";
    GSCL       0x11010 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.2" {} "PCIe Statistic Control";
    GSCN       0x11020 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.5" {} "PCIe Counters";
    PHYADR     0x11040 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.8" {} "PCIe PHY Address";
    PHYDAT     0x11044 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.9" {} "PCIe PHY Data";
    GCR_EXT    0x11050 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.11" { BUFFERS_CLEAR_FUNC = 1 << 30 } "PCIe Control Extended";
    MREVID     0x11064 [1 x 0]    RO  reset 0x0000_0001 writable ALL "8.2.3.4.12" {} "Mirrored Revision ID";
    PICAUSE    0x110B0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.13" {} "PCIe Interrupt Cause";
    PIENA      0x110B8 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.4.14" {} "PCIe Interrupt Enable";
    FACTPS     0x10150 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.4.10" {} "Function Active and Power State";
    PCIE_DIAG  0x11090 [8 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.4" {} "PCIe Diagnostics";

    // 8.2.3.5 Interrupts
    EICR       0x00800 [1 x 0]    W1C reset 0x0000_0000 writable ALL "8.2.3.5.1" { FLOW_DIRECTOR = 1 << 16, MAILBOX = 1 << 19, LSC = 1 << 20, TIMESYNC = 1 << 24, TCP_TIMER = 1 << 30, OTHER = 1 << 31 } "Extended Interrupt Cause";
    EICS       0x00808 [1 x 0]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.2" {} "Extended Interrupt Cause Set";
    EIMS       0x00880 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.3" {} "Extended Interrupt Mask Set";
    EIMC       0x00888 [1 x 0]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.4" { ALL_CAUSES = 0x7FFF_FFFF } "Extended Interrupt Mask Clear";
    EIAC       0x00810 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.5" {} "Extended Interrupt Auto Clear";
    EIAM       0x00890 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.6" {} "Extended Interrupt Auto Mask Enable";
    EITR       0x00820 [24 x 4 then 105 at 0x12300] RW  reset 0x0000_0000 writable ALL "8.2.3.5.12" { INTERVAL_SHIFT = 3, INTERVAL_MASK = 0x1FF, CNT_WDIS = 1 << 31 } "Extended Interrupt Throttle";
    IVAR       0x00900 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.5" { VALID = 1 << 7 } "Interrupt Vector Allocation";
    IVAR_MISC  0x00A00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5" {} "Miscellaneous Interrupt Vector Allocation";
    GPIE       0x00898 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.18" { MULTIPLE_MSIX = 1 << 4, OCD = 1 << 5, RSC_DELAY_SHIFT = 11, EIAME = 1 << 30, PBA_SUPPORT = 1 << 31 } "General Purpose Interrupt Enable";
    EICS_EX    0x00A90 [2 x 4]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.7" {} "Extended Interrupt Cause Set, vectors";
    EIMS_EX    0x00AA0 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.8" {} "Extended Interrupt Mask Set, vectors";
    EIMC_EX    0x00AB0 [2 x 4]    WO  reset 0x0000_0000 writable ALL "8.2.3.5.9" {} "Extended Interrupt Mask Clear, vectors";
    EIAM_EX    0x00AD0 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.10" {} "Extended Interrupt Auto Mask Enable, vectors";
    EITRSEL    0x00894 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.11" {} "MSI-X to EITR Select";
    L34TIMIR   0x0E800 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.5.16" { RX_QUEUE_SHIFT = 21 } "L3 L4 Tuples Immediate Interrupt Rx";
    LLITHRESH  0x0EC90 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.5.17" {} "Low Latency Interrupt Threshold";
    PBACL      0x110C0 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.6.1" {} "MSI-X PBA Clear";

    // 8.2.3.7 Receive filters and receive-side scaling
    FCTRL      0x05080 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.1" { SBP = 1 << 1, MPE = 1 << 8, UPE = 1 << 9, BAM = 1 << 10 } "Filter Control";
    VLNCTRL    0x05088 [1 x 0]    RW  reset 0x0000_8100 writable ALL "8.2.3.7.2" { VET_MASK = 0xFFFF, CFI = 1 << 28, CFIEN = 1 << 29, VFE = 1 << 30 } "VLAN Control";
    MCSTCTRL   0x05090 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.3" { MO_MASK = 0x3, MFE = 1 << 2 } "Multicast Control";
    RXCSUM     0x05000 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.5" { IPPCSE = 1 << 12, PCSD = 1 << 13 } "Receive Checksum Control";
    RFCTL      0x05008 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.6" { RSC_DIS = 1 << 5 } "Receive Filter Control";
    MTA        0x05200 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.7" {} "Multicast Table Array";
    RAL        0x0A200 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.8" {} "Receive Address Low";
    RAH        0x0A204 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.9" { AV = 1 << 31, BITS = 0x8000_FFFF } "Receive Address High";
    MPSAR_LO   0x0A600 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.10" {} "MAC Pool Select Array, pools 31 to 0";
    MPSAR_HI   0x0A604 [128 x 8]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.10" {} "MAC Pool Select Array, pools 63 to 32";
    VFTA       0x0A000 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.11" {} "VLAN Filter Table Array";
    PFUTA      0x0F400 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.27" {} "PF Unicast Table Array";
    MRQC       0x0EC80 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.12" { MRQE_MASK = 0xF, MRQE_RSS = 0x1, TCP_IPV4 = 1 << 16, IPV4 = 1 << 17, IPV6 = 1 << 20, TCP_IPV6 = 1 << 21, UDP_IPV4 = 1 << 22, UDP_IPV6 = 1 << 23 } "Multiple Receive Queues Command";
    RSSRK      0x0EB80 [10 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.7.14" {} "RSS Random Key";
    RETA       0x0EB00 [32 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.7.15" {} "Redirection Table";
    PSRTYPE    0x0EA00 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.7.4" { TCP = 1 << 4, UDP = 1 << 5, IPV4 = 1 << 8, IPV6 = 1 << 9, L2 = 1 << 12 } "Packet Split Receive Type";
    RQTC       0x0EC70 [1 x 0]    RW  reset 0x7777_7777 writable ALL "8.2.3.7.13" {} "RSS Queues Per Traffic Class";
    SAQF       0x0E000 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.16" {} "Source Address Queue Filter";
    DAQF       0x0E200 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.17" {} "Destination Address Queue Filter";
    SDPQF      0x0E400 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.18" {} "Source Destination Port Queue Filter";
    FTQF       0x0E600 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.7.19" { PRIORITY_SHIFT = 2, POOL_MASK_SHIFT = 25, SOURCE = 1 << 25, DESTINATION = 1 << 26, SOURCE_PORT = 1 << 27, DESTINATION_PORT = 1 << 28, PROTOCOL = 1 << 29, POOL = 1 << 30, ENABLE = 1 << 31 } "Five Tuple Queue Filter";
    SYNQF      0x0EC30 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.20" { ENABLE = 1 << 0, QUEUE_SHIFT = 1, PRIORITY = 1 << 31 } "SYN Packet Queue Filter";
    ETQF       0x05128 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.21" { FCOE = 1 << 27, IEEE_1588 = 1 << 30, ENABLE = 1 << 31 } "EType Queue Filter";
    ETQS       0x0EC00 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.7.22" { QUEUE_SHIFT = 16, LLI = 1 << 29, ENABLE = 1 << 31 } "EType Queue Select";

    // 8.2.3.7.23 on: flow director
    FDIRCTRL   0x0EE00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.1" { PBALLOC_MASK = 0x3, INIT_DONE = 1 << 3, PERFECT_MATCH = 1 << 4, REPORT_STATUS = 1 << 5, REPORT_STATUS_ALWAYS = 1 << 7, DROP_Q_SHIFT = 8, DROP_Q_MASK = 0x7F << 8, FLEX_SHIFT = 16, FLEX_MASK = 0x1F << 16, MAX_LENGTH_SHIFT = 24, FULL_THRESH_SHIFT = 28 } "Flow Director Filters Control";
    FDIRSIPV6  0x0EE0C [3 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.14" {} "Flow Director Filters Source IPv6";
    FDIRIPSA   0x0EE18 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.15" {} "Flow Director Filters IP Source Address";
    FDIRIPDA   0x0EE1C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.16" {} "Flow Director Filters IP Destination Address";
    FDIRPORT   0x0EE20 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.17" { DESTINATION_SHIFT = 16 } "Flow Director Filters Port";
    FDIRVLAN   0x0EE24 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.18" { FLEX_SHIFT = 16 } "Flow Director Filters VLAN and Flex Bytes";
    FDIRHASH   0x0EE28 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.19" { VALID = 1 << 15, INDEX_SHIFT = 16 } "Flow Director Filters Hash Signature";
    FDIRCMD    0x0EE2C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.20" { CMD_MASK = 0x3, CMD_ADD = 1, CMD_REMOVE = 2, CMD_QUERY = 3, VALID = 1 << 2, FILTER_UPDATE = 1 << 3, IPV6 = 1 << 7, CLEARHT = 1 << 8, DROP = 1 << 9, INT = 1 << 10, LAST = 1 << 11, COLLISION = 1 << 12, QUEUE_ENABLE = 1 << 15, L4TYPE_MASK = 0x3 << 5, L4TYPE_SHIFT = 5, RX_QUEUE_SHIFT = 16, POOL_SHIFT = 24 } "Flow Director Filters Command";
    FDIRFREE   0x0EE38 [1 x 0]    RW  reset 0x0000_8000 writable ALL "8.2.3.21.10" {} "Flow Director Filters Free";
    FDIRDIP4M  0x0EE3C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.4" {} "Flow Director Filters Destination IPv4 Mask";
    FDIRSIP4M  0x0EE40 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.5" {} "Flow Director Filters Source IPv4 Mask";
    FDIRTCPM   0x0EE44 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.6" {} "Flow Director Filters TCP Mask";
    FDIRUDPM   0x0EE48 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.7" {} "Flow Director Filters UDP Mask";
    FDIRLEN    0x0EE4C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.21.11" {} "Flow Director Filters Length";
    FDIRUSTAT  0x0EE50 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.21.12" { REMOVE_SHIFT = 16 } "Flow Director Filters Usage Statistics";
    FDIRFSTAT  0x0EE54 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.21.13" { REMOVE_SHIFT = 8 } "Flow Director Filters Failed Usage Statistics";
    FDIRMATCH  0x0EE58 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.21.13" {} "Flow Director Filters Match Statistics";
    FDIRMISS   0x0EE5C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.21.13" {} "Flow Director Filters Miss Match Statistics";
    FDIRHKEY   0x0EE68 [1 x 0]    RW  reset 0x8000_0001 writable ALL "8.2.3.21.2" {} "Flow Director Filters Lookup Table Hash Key";
    FDIRSKEY   0x0EE6C [1 x 0]    RW  reset 0x8080_0101 writable ALL "8.2.3.21.3" {} "Flow Director Filters Signature Hash Key";
    FDIRM      0x0EE70 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.9" { VLANID = 1 << 0, VLANP = 1 << 1, POOL = 1 << 2, L4P = 1 << 3, FLEX = 1 << 4, DIPV6 = 1 << 5 } "Flow Director Filters Other Mask";
    FDIRIP6M   0x0EE74 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.21.8" {} "Flow Director Filters IPv6 Mask";
    FDIRSCTPM  0x0EE78 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.3.21" {} "Flow Director Filters SCTP Mask";

    // 8.2.3.8 Receive DMA
    RDBAL      0x01000 [64 x 0x40 then 64 at 0x0D000] RW reset 0x0000_0000 writable ALL "8.2.3.8.1" { BITS = 0xFFFF_FF80 } "Receive Descriptor Base Address Low";
    RDBAH      0x01004 [64 x 0x40 then 64 at 0x0D004] RW reset 0x0000_0000 writable ALL "8.2.3.8.2" {} "Receive Descriptor Base Address High";
    RDLEN      0x01008 [64 x 0x40 then 64 at 0x0D008] RW reset 0x0000_0000 writable ALL "8.2.3.8.3" { BITS = 0x000F_FF80 } "Receive Descriptor Length";
    DCA_RXCTRL 0x0100C [64 x 0x40 then 64 at 0x0D00C] RW reset 0x0000_1000 writable ALL "8.2.3.11.1" { BIT_12 = 1 << 12 } "Receive DCA Control";
    RDH        0x01010 [64 x 0x40 then 64 at 0x0D010] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.8.4" {} "Receive Descriptor Head";
    SRRCTL     0x01014 [64 x 0x40 then 64 at 0x0D014] RW reset 0x0000_0402 writable SRRCTL_BITS "8.2.3.8.7" { BSIZEPACKET_MASK = 0x1F, DESCTYPE_SHIFT = 25, DESCTYPE_ADVANCED = 1 << 25, DROP_EN = 1 << 28 } "Split Receive Control";
    RDT        0x01018 [64 x 0x40 then 64 at 0x0D018] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.8.5" {} "Receive Descriptor Tail";
    RXDCTL     0x01028 [64 x 0x40 then 64 at 0x0D028] RW reset 0x0000_0000 writable RXDCTL_BITS "8.2.3.8.6" { RLPML_MASK = 0x3FFF, RLPML_EN = 1 << 15, ENABLE = 1 << 25, SWFLSH = 1 << 26, VME = 1 << 30 } "Receive Descriptor Control";
    RDRXCTL    0x02F00 [1 x 0]    RW  reset 0x0010_0008 writable ALL "8.2.3.8.8" { CRC_STRIP = 1 << 1, DMAIDONE = 1 << 3, RSCFRSTSIZE_MASK = 0x1F << 17, BIT_25 = 1 << 25, BIT_26 = 1 << 26 } "Receive DMA Control";
    RXPBSIZE   0x03C00 [8 x 4]    RW  reset 0x0008_0000 writable ALL "8.2.3.8.9" { KIB_SHIFT = 10 } "Receive Packet Buffer Size";
    RXCTRL     0x03000 [1 x 0]    RW  reset 0x0000_0000 writable RXCTRL_BITS "8.2.3.8.10" { RXEN = 1 << 0, DMBYPS = 1 << 1 } "Receive Control";
    RSCCTL     0x0102C [64 x 0x40 then 64 at 0x0D02C] RW  reset 0x0000_0000 writable ALL "8.2.3.8.13" { RSCEN = 1 << 0, MAXDESC_SHIFT = 2 } "RSC Control";
    RSCDBU     0x03028 [1 x 0]    RW  reset 0x0000_0020 writable ALL "8.2.3.8.14" { RSCSMALDIS = 1 << 7, RSCACKDIS = 1 << 8 } "RSC Data Buffer Control";
    RDDCC      0x02F20 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.8" {} "Receive Descriptor Done Cache Control";
    RXMEMWRAP  0x03190 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.8" {} "Receive Packet Buffer Flush Detect";
    DROPEN     0x03D04 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.8" {} "Drop Enable";
    QDE        0x02F04 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.14" { WRITE = 1 << 16, INDEX_SHIFT = 8 } "PF Queue Drop Enable";

    // 8.2.3.9 Transmit
    DTXMXSZRQ  0x08100 [1 x 0]    RW  reset 0x0000_0010 writable ALL "8.2.3.9.1" {} "DMA Transmit Maximum Allowed Size Requests";
    DMATXCTL   0x04A80 [1 x 0]    RW  reset 0x8100_0000 writable ALL "8.2.3.9.2" { TE = 1 << 0 } "DMA Transmit Control";
    TDBAL      0x06000 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.5" { BITS = 0xFFFF_FF80 } "Transmit Descriptor Base Address Low";
    TDBAH      0x06004 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.6" {} "Transmit Descriptor Base Address High";
    TDLEN      0x06008 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.7" { BITS = 0x000F_FF80 } "Transmit Descriptor Length";
    DCA_TXCTRL 0x0600C [128 x 0x40] RW reset 0x0000_0800 writable ALL "8.2.3.11.2" { DESC_WRO_EN = 1 << 11 } "Transmit DCA Control";
    TDH        0x06010 [128 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.9.8" {} "Transmit Descriptor Head";
    TDT        0x06018 [128 x 0x40] RW reset 0x0000_0000 writable INDEX_BITS "8.2.3.9.9" {} "Transmit Descriptor Tail";
    TXDCTL     0x06028 [128 x 0x40] RW reset 0x0000_0000 writable TXDCTL_BITS "8.2.3.9.10" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, ENABLE = 1 << 25, SWFLSH = 1 << 26 } "Transmit Descriptor Control";
    TDWBAL     0x06038 [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.11" {} "Transmit Descriptor Completion Write Back Address Low";
    TDWBAH     0x0603C [128 x 0x40] RW reset 0x0000_0000 writable ALL "8.2.3.9.12" {} "Transmit Descriptor Completion Write Back Address High";
    TXPBSIZE   0x0CC00 [8 x 4]    RW  reset 0x0002_8000 writable ALL "8.2.3.9.13" { KIB_SHIFT = 10 } "Transmit Packet Buffer Size";
    TXPBTHRESH 0x04950 [8 x 4]    RW  reset 0x0000_0096 writable ALL "8.2.3.9.16" {} "Transmit Packet Buffer Threshold";
    MTQC       0x08120 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.9.15" {} "Multiple Transmit Queues Command";
    RTTDCS     0x04900 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.2" { ARBDIS = 1 << 6 } "DCB Transmit Descriptor Plane Control and Status";
    DTXTCPFLGL 0x04A88 [1 x 0]    RW  reset 0x0FF6_0FF6 writable ALL "8.2.3.9.3" {} "DMA Transmit TCP Flags Control Low";
    DTXTCPFLGH 0x04A8C [1 x 0]    RW  reset 0x0000_0F7F writable ALL "8.2.3.9.4" {} "DMA Transmit TCP Flags Control High";

    // 8.2.3.10 Data centre bridging
    RTRPCS     0x02430 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.1" {} "DCB Receive Packet Plane Control and Status";
    RTTPCS     0x0CD00 [1 x 0]    RW  reset 0x0100_0000 writable ALL "8.2.3.10.3" {} "DCB Transmit Packet Plane Control and Status";
    RTRUP2TC   0x03020 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.4" {} "DCB Receive User Priority to Traffic Class";
    RTTUP2TC   0x0C800 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.5" {} "DCB Transmit User Priority to Traffic Class";
    RTRPT4C    0x02140 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.6" {} "DCB Receive Packet Plane T4 Config";
    RTRPT4S    0x02160 [8 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.10.7" {} "DCB Receive Packet Plane T4 Status";
    RTTDT2C    0x04910 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.8" {} "DCB Transmit Descriptor Plane T2 Config";
    RTTDT2S    0x04930 [8 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.10.10" {} "DCB Transmit Descriptor Plane T2 Status";
    RTTPT2C    0x0CD20 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.9" {} "DCB Transmit Packet Plane T2 Config";
    RTTPT2S    0x0CD40 [8 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.10.11" {} "DCB Transmit Packet Plane T2 Status";
    RTTDQSEL   0x04904 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.12" {} "DCB Transmit Descriptor Plane Queue Select";
    RTTDT1C    0x04908 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.13" {} "DCB Transmit Descriptor Plane T1 Config";
    RTTDT1S    0x0490C [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.10.14" {} "DCB Transmit Descriptor Plane T1 Status";
    RTTBCNRM   0x04980 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.15" {} "DCB Transmit Rate-Scheduler MMW";
    RTTBCNRC   0x04984 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.16" {} "DCB Transmit Rate-Scheduler Config";
    RTTBCNRD   0x0498C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.10.17" {} "DCB Transmit Rate-Scheduler Status";
    MNGTXMAP   0x0CD10 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.9" {} "Manageability Transmit TC Mapping";
    TIPG       0x0CB00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.9" {} "Transmit Inter Packet Gap";

    // 8.2.3.11 Direct cache access
    DCA_ID     0x11070 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.11.3" {} "DCA Requester ID";
    DCA_CTRL   0x11074 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.11.4" {} "DCA Control";

    // 8.2.3.12 Security
    SECTXCTRL  0x08800 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.12" { TX_DIS = 1 << 1 } "Security Transmit Control";
    SECTXSTAT  0x08804 [1 x 0]    RO  reset 0x0000_0002 writable ALL "8.2.3.12" { SECTX_RDY = 1 << 0, SECTX_OFF_DIS = 1 << 1 } "Security Transmit Status";
    SECRXCTRL  0x08D00 [1 x 0]    RW  reset 0x0000_0001 writable ALL "8.2.3.12" { RX_DIS = 1 << 1 } "Security Receive Control";
    SECRXSTAT  0x08D04 [1 x 0]    RO  reset 0x0000_0002 writable ALL "8.2.3.12" { SECRX_RDY = 1 << 0, SECRX_OFF_DIS = 1 << 1 } "Security Receive Status";
    SECTXBUFFAF 0x08808 [1 x 0]    RW  reset 0x0000_0250 writable ALL "8.2.3.12.3" {} "Security Transmit Buffer Almost Full";
    SECTXMINIFG 0x08810 [1 x 0]    RW  reset 0x0010_0010 writable ALL "8.2.3.12.4" {} "Security Transmit Buffer Minimum IFG";
    LSECTXCAP  0x08A00 [1 x 0]    RW  reset 0x0001_0016 writable ALL "8.2.3.13.1" {} "LinkSec Transmit Capabilities";
    LSECRXCAP  0x08F00 [1 x 0]    RW  reset 0x0001_0014 writable ALL "8.2.3.13.2" {} "LinkSec Receive Capabilities";
    LSECTXCTRL 0x08A04 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.13.3" {} "LinkSec Transmit Control";
    LSECRXCTRL 0x08F04 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.13.4" {} "LinkSec Receive Control";
    LSECTXSTATS 0x08A3C [5 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.13.14" {} "LinkSec Transmit Counters";
    LSECRXSTATS 0x08F40 [17 x 4]   RC  reset 0x0000_0000 writable ALL "8.2.3.13.22" {} "LinkSec Receive Counters";
    IPSTXIDX   0x08900 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.1" {} "IPsec Transmit Index";
    IPSTXSALT  0x08904 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.3" {} "IPsec Transmit Salt";
    IPSTXKEY   0x08908 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.2" {} "IPsec Transmit Key";
    IPSRXIDX   0x08E00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.4" {} "IPsec Receive Index";
    IPSRXIPADDR 0x08E04 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.5" {} "IPsec Receive IP Address";
    IPSRXSPI   0x08E14 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.6" {} "IPsec Receive SPI";
    IPSRXIPIDX 0x08E18 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.7" {} "IPsec Receive IP Index";
    IPSRXKEY   0x08E1C [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.8" {} "IPsec Receive Key";
    IPSRXSALT  0x08E2C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.9" {} "IPsec Receive Salt";
    IPSRXMOD   0x08E30 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.14.10" {} "IPsec Receive Mode";

    // 8.2.3.16 Fibre Channel over Ethernet
    FCPTRL     0x02410 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC User Descriptor Pointer Low";
    FCPTRH     0x02414 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC User Descriptor Pointer High";
    FCBUFF     0x02418 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Buffer Control";
    FCDMARW    0x02420 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Receive DMA RW";
    FCINVST    0x03FC0 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Invalid DMA Context Status";
    FCFLT      0x05108 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC FLT Context";
    FCFLTRW    0x05110 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Filter RW Control";
    FCPARAM    0x051D8 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Offset Parameter";
    FCRXCTRL   0x05100 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Receive Control";
    FCRECTL    0x0ED00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Redirection Control";
    FCRETA     0x0ED10 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "FC Redirection Table";
    TEOFF      0x04A94 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "Transmit FC EOF";
    TSOFF      0x04A98 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "Transmit FC SOF";
    REOFF      0x05158 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "Receive FC EOF";
    RSOFF      0x051F8 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.16" {} "Receive FC SOF";

    // 8.2.3.22 MAC and link
    HLREG0     0x04240 [1 x 0]    RW  reset 0x0801_2C0B writable ALL "8.2.3.22.8" { TXCRCEN = 1 << 0, RXCRCSTRP = 1 << 1, JUMBOEN = 1 << 2, TXPADEN = 1 << 10, LPBK = 1 << 15 } "MAC Core Control 0";
    MAXFRS     0x04268 [1 x 0]    RW  reset 0x05EE_0000 writable ALL "8.2.3.22" { MFS_SHIFT = 16 } "Max Frame Size";
    AUTOC      0x042A0 [1 x 0]    RW  reset 0x0000_6000 writable ALL "8.2.3.22.19" { FLU = 1 << 0, RESTART_AN = 1 << 12, LMS_MASK = 0x7 << 13, LMS_1G = 0, LMS_1G_AN = 0x2 << 13, LMS_10G_SERIAL = 0x3 << 13, LMS_KX4_KX_KR = 0x4 << 13, LMS_KX4_KX_KR_1G_AN = 0x6 << 13, LMS_KX4_KX_KR_SGMII = 0x7 << 13, KR_SUPP = 1 << 16, KX_SUPP = 1 << 30, KX4_SUPP = 1 << 31 } "Auto Negotiation Control";
    LINKS      0x042A4 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.20" { SPEED_MASK = 0x3 << 28, SPEED_100M = 0x1 << 28, SPEED_1G = 0x2 << 28, SPEED_10G = 0x3 << 28, UP = 1 << 30, KX_AN_COMP = 1 << 31 } "Link Status";
    PCS1GCFIG  0x04200 [1 x 0]    RW  reset 0x0000_0008 writable ALL "8.2.3.22.1" {} "PCS 1G Global Config";
    PCS1GLCTL  0x04208 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.2" {} "PCS 1G Link Control";
    PCS1GLSTA  0x0420C [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.3" {} "PCS 1G Link Status";
    PCS1GDBG   0x04210 [2 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.22" {} "PCS 1G Debug";
    PCS1GANA   0x04218 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.4" {} "PCS 1G Auto Negotiation Advanced";
    PCS1GANLP  0x0421C [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.5" {} "PCS 1G AN Link Partner Ability";
    PCS1GANNP  0x04220 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.6" {} "PCS 1G AN Next Page Transmit";
    PCS1GANLPNP 0x04224 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.7" {} "PCS 1G AN Link Partner Next Page";
    HLREG1     0x04244 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.9" {} "MAC Core Status 1";
    PAP        0x04248 [1 x 0]    RW  reset 0x0000_FFFF writable ALL "8.2.3.22.10" {} "Pause and Pace";
    MACA       0x0424C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "MDI Auto Scan Command and Address";
    APAE       0x04250 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Auto Scan PHY Address Enable";
    ARD        0x04254 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Auto Scan Read Data";
    AIS        0x04258 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Auto Scan Interrupt Status";
    MSCA       0x0425C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.11" { ADDRESS_MASK = 0xFFFF, DEVICE_SHIFT = 16, PHY_SHIFT = 21, OP_SHIFT = 26, MDICMD = 1 << 30 } "MDI Single Command and Address";
    MSRWD      0x04260 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.12" { READ_SHIFT = 16 } "MDI Single Read and Write Data";
    MLADD      0x04264 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "MAC Address Low";
    MACS       0x0429C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "FIFO Status";
    MFLCN      0x04294 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.34" { PMCF = 1 << 0, DPF = 1 << 1, RPFCE = 1 << 2, RFCE = 1 << 3 } "MAC Flow Control";
    SERDESC    0x04298 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22" {} "SerDes Interface Control";
    PCSS       0x04288 [2 x 4]    RO  reset 0x0000_0000 writable ALL "8.2.3.22" {} "XGXS Status";
    XPCSS      0x04290 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22" {} "10GBASE-X PCS Status";
    TREG       0x0426C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Test Register";
    AUTOC2     0x042A8 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.21" { LINK_DISABLE = 0x7 << 28 } "Auto Negotiation Control 2";
    AUTOC3     0x042AC [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Auto Negotiation Control 3";
    ANLP1      0x042B0 [1 x 0]    RO  reset 0x0001_0C03 writable ALL "8.2.3.22.22" { AN_STATE = 0xF << 16 } "Auto Negotiation Link Partner, control word 1";
    ANLP2      0x042B4 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.23" {} "Auto Negotiation Link Partner, control word 2";
    MMNGC      0x042D0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22.24" {} "MAC Manageability Control";
    LINKS2     0x04324 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.22.25" {} "Link Status 2";
    MACC       0x04330 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.22" { FLU = 1 << 0 } "MAC Control";
    ATLASCTL   0x04800 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.22" {} "Analog Configuration";

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
    MSPDC      0x04010 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "MAC Short Packet Discard Count";
    MLFC       0x04034 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "MAC Local Fault Count";
    MRFC       0x04038 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "MAC Remote Fault Count";
    LXONTXC    0x03F60 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XON Transmitted Count";
    LXOFFTXC   0x03F68 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XOFF Transmitted Count";
    LXONRXC    0x0CF60 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XON Received Count, 82598's place";
    LXOFFRXC   0x0CF68 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XOFF Received Count, 82598's place";
    LXONRXCNT  0x041A4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XON Received Count";
    LXOFFRXCNT 0x041A8 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Link XOFF Received Count";
    PXONRXCNT  0x04140 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XON Received Count";
    PXOFFRXCNT 0x04160 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XOFF Received Count";
    PXONTXC    0x03F00 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XON Transmitted Count";
    PXOFFTXC   0x03F20 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XOFF Transmitted Count";
    PXON2OFFCNT 0x03240 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XON to XOFF Count";
    PXONRXC    0x0CF00 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XON Received Count, 82598's place";
    PXOFFRXC   0x0CF20 [8 x 4]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Priority XOFF Received Count, 82598's place";
    MNGPRC     0x040B4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Management Packets Received Count";
    MNGPDC     0x040B8 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Management Packets Dropped Count";
    MNGPTC     0x0CF90 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Management Packets Transmitted Count";
    XEC        0x04120 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "XSUM Error Count";
    RXDGPC     0x02F50 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Receive Packet Counter";
    RXDGBCL    0x02F54 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Receive Byte Counter Low";
    RXDGBCH    0x02F58 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Receive Byte Counter High";
    TXDGPC     0x087A0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Transmit Packet Counter";
    TXDGBCL    0x087A4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Transmit Byte Counter Low";
    TXDGBCH    0x087A8 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "DMA Good Transmit Byte Counter High";
    SSVPC      0x08780 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "Switch Security Violation Packet Count";
    FCCRC      0x05118 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FC CRC Error Count";
    FCOERPDC   0x0241C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FCoE Receive Packets Dropped Count";
    FCLAST     0x02424 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FC Last Error Count";
    FCOEPRC    0x02428 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FCoE Packets Received Count";
    FCOEDWRC   0x0242C [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FCoE DWord Received Count";
    FCOEPTC    0x08784 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FCoE Packets Transmitted Count";
    FCOEDWTC   0x08788 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "FCoE DWord Transmitted Count";
    O2BGPTC    0x041C4 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "OS to BMC Packets Transmitted Count, of the X540";
    B2OSPC     0x041C0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "BMC to OS Packets Sent Count, of the X540";
    O2BSPC     0x087B0 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "OS to BMC Packets Transmitted by Host, of the X540";
    B2OGPRC    0x02F90 [1 x 0]    RC  reset 0x0000_0000 writable ALL "8.2.3.23" {} "BMC to OS Packets Received by Host, of the X540";

    // 8.2.3.24 Wake up, 8.2.3.25 manageability
    WUC        0x05800 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.1" {} "Wake Up Control";
    WUFC       0x05808 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.2" {} "Wake Up Filter Control";
    WUS        0x05810 [1 x 0]    W1C reset 0x0000_0000 writable ALL "8.2.3.24.3" {} "Wake Up Status";
    IPAV       0x05838 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.4" {} "IP Address Valid";
    IP4AT      0x05840 [4 x 8]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.5" {} "IPv4 Address Table";
    IP6AT      0x05880 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.6" {} "IPv6 Address Table";
    WUPL       0x05900 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.24.7" {} "Wake Up Packet Length";
    WUPM       0x05A00 [32 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.24.8" {} "Wake Up Packet Memory";
    FHFT       0x09000 [256 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.24.9" {} "Flexible Host Filter Table";
    MANC       0x05820 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.25.4" {} "Management Control";
    MFVAL      0x05824 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.25.5" {} "Manageability Filters Valid";

    // 8.2.3.26 Time sync
    TSYNCRXCTL 0x05188 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.1" { VALID = 1 << 0, TYPE_SHIFT = 1, ENABLE = 1 << 4 } "Rx Time Sync Control";
    RXSTMPL    0x051E8 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.2" {} "Rx Timestamp Low";
    RXSTMPH    0x051A4 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.3" {} "Rx Timestamp High";
    RXSATRL    0x051A0 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.4" {} "Rx Timestamp Attributes Low";
    RXSATRH    0x051A8 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.5" {} "Rx Timestamp Attributes High";
    RXMTRL     0x05120 [1 x 0]    RW  reset 0x013F_0000 writable ALL "8.2.3.26.6" { MESSAGE_SHIFT = 8, PORT_SHIFT = 16 } "Rx Message Type Low";
    TSYNCTXCTL 0x08C00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.7" { VALID = 1 << 0, ENABLE = 1 << 4 } "Tx Time Sync Control";
    TXSTMPL    0x08C04 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.8" {} "Tx Timestamp Low";
    TXSTMPH    0x08C08 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.9" {} "Tx Timestamp High";
    SYSTIML    0x08C0C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.10" {} "System Time Low";
    SYSTIMH    0x08C10 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.11" {} "System Time High";
    TIMINCA    0x08C14 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.12" { VALUE_MASK = 0x00FF_FFFF, PERIOD_SHIFT = 24, NEGATIVE = 1 << 31 } "Increment Attributes";
    TIMADJL    0x08C18 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.13" {} "Time Adjustment Offset Low";
    TIMADJH    0x08C1C [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.14" {} "Time Adjustment Offset High";
    TSAUXC     0x08C20 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.15" { DISABLE_SYSTIME = 1 << 31 } "TimeSync Auxiliary Control";
    TRGTTIML   0x08C24 [2 x 8]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.16" {} "Target Time Low";
    TRGTTIMH   0x08C28 [2 x 8]    RW  reset 0x0000_0000 writable ALL "8.2.3.26.17" {} "Target Time High";
    CLKTIML    0x08C34 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.26" {} "Clock Out Time Low";
    CLKTIMH    0x08C38 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.26" {} "Clock Out Time High";
    AUXSTMPL   0x08C3C [2 x 8]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.20" {} "Auxiliary Time Stamp Low";
    AUXSTMPH   0x08C40 [2 x 8]    RO  reset 0x0000_0000 writable ALL "8.2.3.26.21" {} "Auxiliary Time Stamp High";
    TSSDP      0x0003C [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.26" {} "TimeSync SDP Configuration";

    // 8.2.3.27 Virtualization
    PFVTCTL    0x051B0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.1" { VT_ENA = 1 << 0, DEF_PL_SHIFT = 7, DIS_DEF_PL = 1 << 29, REPLEN = 1 << 30 } "VT Control";
    PFMAILBOX  0x04B00 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.27.2" { STS = 1 << 0, ACK = 1 << 1, VFU = 1 << 2, PFU = 1 << 3, RVFU = 1 << 4 } "PF Mailbox";
    PFMBMEM    0x13000 [1024 x 4] RW  reset 0x0000_0000 writable ALL "8.2.3.27.3" {} "PF Mailbox Memory";
    PFMBICR    0x00710 [4 x 4]    W1C reset 0x0000_0000 writable ALL "8.2.3.27.4" {} "PF Mailbox Causes";
    PFMBIMR    0x00720 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.5" {} "PF Mailbox Interrupt Mask";
    PFVFLRE    0x00600 [1 x 0]    RO  reset 0x0000_0000 writable ALL "8.2.3.27.6" {} "PF VFLR Events Indication";
    PFVFLREC   0x00700 [2 x 4]    W1C reset 0x0000_0000 writable ALL "8.2.3.27.7" {} "PF VFLR Event Clear";
    PFVFRE     0x051E0 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.8" {} "PF VF Receive Enable";
    PFVFTE     0x08110 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.9" {} "PF VF Transmit Enable";
    PFVMTXSW   0x05180 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.10" {} "PF VM Tx Switch Loopback Enable";
    PFVFSPOOF  0x08200 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.12" {} "PF VF Anti Spoof Control";
    PFDTXGSWC  0x08220 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.13" { LBE = 1 << 0 } "PF DMA Tx General Switch Control";
    PFVMVIR    0x08000 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.27.15" {} "PF VM VLAN Insert";
    PFVML2FLT  0x0F000 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.27.16" {} "PF VM L2 Control";
    PFVLVF     0x0F100 [64 x 4]   RW  reset 0x0000_0000 writable ALL "8.2.3.27.17" {} "PF VM VLAN Pool Filter";
    PFVLVFB    0x0F200 [128 x 4]  RW  reset 0x0000_0000 writable ALL "8.2.3.27.18" {} "PF VM VLAN Pool Filter Bitmap";
    PFMRCTL    0x0F600 [4 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.20" {} "PF Mirror Rule Control";
    PFMRVLAN   0x0F610 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.21" {} "PF Mirror Rule VLAN";
    PFMRVM     0x0F630 [8 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27.22" {} "PF Mirror Rule Pool";
    VMECM      0x08790 [2 x 4]    RW  reset 0x0000_0000 writable ALL "8.2.3.27" {} "DMA Tx Switch Security Error";
    PFFLPL     0x050B0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.27" {} "PF Flow Low";
    PFFLPH     0x050B4 [1 x 0]    RW  reset 0x0000_0000 writable ALL "8.2.3.27" {} "PF Flow High";

    // Not in the datasheet, but read by Linux's `ethtool -d`
    MSIXPBA    0x02000 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "MSI-X Pending Bits";
    PBACL_0    0x11068 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "MSI-X PBA Clear, 82598's place";
    RDSTAT     0x02C00 [8 x 4]    RO  reset 0x0000_0000 writable ALL "-" {} "Receive DMA Statistics";
    RDSTATCTL  0x02C20 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive DMA Statistics Control";
    RDHMPN     0x02F08 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Descriptor Handler Memory Page";
    RIC_DW     0x02F10 [4 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Descriptor Handler Memory";
    PBRXECC    0x03300 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Packet Buffer ECC";
    RXBUFCTRL  0x03600 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Buffer Access Control";
    RXBUFDATA  0x03610 [4 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Buffer Data";
    MDFTC1     0x042B8 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "MAC Test Control 1";
    MDFTC2     0x042C0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "MAC Test Control 2";
    MDFTFIFO   0x042C4 [2 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "MAC Test FIFO";
    MDFTS      0x042CC [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "MAC Test Status";
    RTTQCNTG   0x04A90 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "DCB Congestion Notification Tag, of the X540";
    RTTQCNCR   0x08B00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "DCB Congestion Notification Control, of the X540";
    TXLLQ      0x082E0 [4 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Strict Low Latency Queues";
    RFVAL      0x050A4 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Receive Filter Validation";
    VMD_CTL    0x0581C [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "VMDq Control, of the 82598";
    IMIR       0x05A80 [8 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Immediate Interrupt Receive, of the 82598";
    IMIREXT    0x05AA0 [8 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Immediate Interrupt Receive Extended, of the 82598";
    IMIRVP     0x05AC0 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Immediate Interrupt Receive VLAN Priority, of the 82598";
    TDSTAT_5   0x07C14 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit DMA Statistics, of the 82598";
    TDSTAT_7   0x07C1C [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit DMA Statistics, of the 82598";
    TDSTATCTL  0x07C20 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit DMA Statistics Control, of the 82598";
    TIC_DW_1   0x07F14 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit Descriptor Handler Memory, of the 82598";
    TIC_DW_3   0x07F1C [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit Descriptor Handler Memory, of the 82598";
    TDPROBE    0x07F20 [1 x 0]    RO  reset 0x0000_0000 writable ALL "-" {} "Transmit Probe, of the 82598";
    PBTXECC    0x0C300 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Transmit Packet Buffer ECC";
    TXBUFCTRL  0x0C600 [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "Transmit Buffer Access Control";
    TXBUFDATA  0x0C610 [4 x 4]    RW  reset 0x0000_0000 writable ALL "-" {} "Transmit Buffer Data";
    PCIEECCCTL 0x1106C [1 x 0]    RW  reset 0x0000_0000 writable ALL "-" {} "PCIe ECC Control";

    // X550 only
    X550_I2CCTL 0x15F5C [1 x 0]   RW  reset 0x0000_5000 writable ALL "X550 8.2.2.1" { DATA_IN = 1 << 12, CLK_IN = 1 << 14 } "I2C Control, of the X550";
    ETAG_ETYPE 0x05084 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X550 8.2.2.7" {} "EtherType of E-tags";
    VXLANCTRL  0x0507C [1 x 0]    RW  reset 0x0000_0000 writable ALL "X550 8.2.2.7" {} "VXLAN Control";
    ERETA      0x0EE80 [96 x 4]   RW  reset 0x0000_0000 writable ALL "X550 8.2.2.8.24" {} "Extended Redirection Table";
    SYSTIMR    0x08C58 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X550 8.2.2.21.24" {} "System Time Residue";
    TSICR      0x08C60 [1 x 0]    W1C reset 0x0000_0000 writable ALL "X550 8.2.2.21.25" { TXTS = 1 << 1 } "Time Sync Interrupt Cause";
    TSIM       0x08C68 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X550 8.2.2.21.26" { TXTS = 1 << 1 } "Time Sync Interrupt Mask";

    // The X540's and X550's host interface to the firmware (X540 datasheet, section 10.6.4)
    HICR       0x15F00 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.4" { EN = 1 << 0, C = 1 << 1, SV = 1 << 2 } "Host Interface Control";
    FWSTS      0x15F0C [1 x 0]    RW  reset 0x0000_0001 writable ALL "X540 8.2.2.4" {} "Firmware Status";
    SWSR       0x15F10 [1 x 0]    RW  reset 0x0000_0000 writable ALL "X540 8.2.2.4" {} "Software Status";
    FLEX_MNG   0x15800 [448 x 4]  RW  reset 0x0000_0000 writable ALL "X540 8.2.2.4" {} "Host Interface Memory";
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
        for (offset, count, stride, ..) in ALIASES {
            for offset in (0..*count).map(|n| offset + n * stride) {
                if let Some(other) = seen.insert(offset, "an alias") {
                    panic!("an alias and {other} are both at {offset:#x}");
                }
            }
        }
    }
}
