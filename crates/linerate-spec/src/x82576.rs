//! The registers of the 82576 that linerate uses, one per line.
//!
//! Names, bits and sections are those of Intel's "82576EB Gigabit Ethernet Controller Datasheet" (revision 2.63).

use super::{Access, Counter, Definition, Register, registers};

registers! {
    // 8.2 General
    CTRL       0x00000 RW "8.2.1" "Device Control" { GIO_MASTER_DISABLE = 1 << 2, SLU = 1 << 6, FRCSPD = 1 << 11, FRCDPLX = 1 << 12, RST = 1 << 26, RFCE = 1 << 27, TFCE = 1 << 28, VME = 1 << 30 };
    STATUS     0x00008 RO "8.2.2" "Device Status" { LU = 1 << 1, LAN_ID_SHIFT = 2, SPEED_MASK = 0x3 << 6, SPEED_10 = 0, SPEED_100 = 0x1 << 6, GIO_MASTER_ENABLE = 1 << 19 };
    CTRL_EXT   0x00018 RW "8.2.3" "Extended Device Control" { SDP7_DATA = 1 << 7, LINK_MODE_MASK = 0x3 << 22, LINK_MODE_COPPER = 0, LINK_MODE_SERDES = 0x3 << 22, DRV_LOAD = 1 << 28 };
    MDIC       0x00020 RW "8.2.4" "MDI Control" { REGADD_SHIFT = 16, PHYADD_SHIFT = 21, OP_WRITE = 1 << 26, R = 1 << 28 };

    SWSM       0x05B50 RS "8.6.14" "Software Semaphore";
    SW_FW_SYNC 0x05B5C RW "8.6.16" "Software-Firmware Synchronization" { SW_PHY_SM0 = 1 << 1 };

    // 8.17 Physical coding sublayer of SerDes
    PCS_CFG    0x04200 RW "8.17.1" "PCS Configuration" { PCS_EN = 1 << 3 };
    PCS_LCTL   0x04208 RW "8.17.2" "PCS Link Control" { FORCE_LINK = 1 << 5, AN_ENABLE = 1 << 16, AN_RESTART = 1 << 17, AN_TIMEOUT_EN = 1 << 18 };

    // 8.5 Flow control
    FCTTV      0x00170 RW "8.5.4" "Flow Control Transmit Timer Value";
    FCRTL0     0x02160 RW "8.5.5" "Flow Control Receive Threshold Low" { XONE = 1 << 31, MASK = 0x0000_FFF0 };
    FCRTH0     0x02168 RW "8.5.6" "Flow Control Receive Threshold High" { MASK = 0x0000_FFF0 };
    FCRTV      0x02460 RW "8.5.7" "Flow Control Refresh Threshold Value";

    // 8.8 Interrupts
    GPIE       0x01514 RW "8.8.17" "General Purpose Interrupt Enable" { NSICR = 1 << 0, MULTIPLE_MSIX = 1 << 4, EIAME = 1 << 30, PBA_SUPPORT = 1 << 31 };
    EIMS       0x01524 RW "8.8.3" "Extended Interrupt Mask Set";
    EIMC       0x01528 WO "8.8.4" "Extended Interrupt Mask Clear" { ALL_CAUSES = 0xC1FF_FFFF };
    EIAC       0x0152C RW "8.8.5" "Extended Interrupt Auto Clear";
    EIAM       0x01530 RW "8.8.6" "Extended Interrupt Auto Mask Enable";
    EICR       0x01580 W1C "8.8.1" "Extended Interrupt Cause";
    EITR       0x01680 [25 x 4] RW "8.8.14" "Extended Interrupt Throttle" { INTERVAL_SHIFT = 2, INTERVAL_MASK = 0x1FFF, CNT_INGR = 1 << 31 };
    IVAR       0x01700 [8 x 4] RW "8.8.15" "Interrupt Vector Allocation" { VALID = 1 << 7 };
    ICR        0x000C0 W1C "8.8.8" "Interrupt Cause" { RXDW = 1 << 7 };
    IMS        0x000D0 RW "8.8.10" "Interrupt Mask Set";
    IMC        0x000D8 WO "8.8.11" "Interrupt Mask Clear" { ALL_CAUSES = 0xFFFF_FFFF };

    // 8.10 Receive
    RCTL       0x00100 RW "8.10.1" "Receive Control" { RXEN = 1 << 1, UPE = 1 << 3, MPE = 1 << 4, LPE = 1 << 5, BAM = 1 << 15, VFE = 1 << 18, SECRC = 1 << 26 };
    SRRCTL     0x0C00C [16 x 0x40] RW "8.10.2" "Split and Replication Receive Control" { DESCTYPE_ADVANCED = 1 << 25, DROP_EN = 1 << 31 };
    RDBAL      0x0C000 [16 x 0x40] RW "8.10.5" "Receive Descriptor Base Address Low";
    RDBAH      0x0C004 [16 x 0x40] RW "8.10.6" "Receive Descriptor Base Address High";
    RDLEN      0x0C008 [16 x 0x40] RW "8.10.7" "Receive Descriptor Length";
    RDH        0x0C010 [16 x 0x40] RW "8.10.8" "Receive Descriptor Head";
    RDT        0x0C018 [16 x 0x40] RW "8.10.9" "Receive Descriptor Tail";
    RXDCTL     0x0C028 [16 x 0x40] RW "8.10.10" "Receive Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, ENABLE = 1 << 25 };
    RXCSUM     0x05000 RW "8.10.14" "Receive Checksum Control" { PCSD = 1 << 13 };
    RLPML      0x05004 RW "8.10.15" "Receive Long Packet Maximum Length";
    MTA        0x05200 [128 x 4] RW "8.10.17" "Multicast Table Array";
    RAL        0x05400 [16 x 8 then 8 at 0x054E0] RW "8.10.18" "Receive Address Low";
    RAH        0x05404 [16 x 8 then 8 at 0x054E4] RW "8.10.19" "Receive Address High" { AV = 1 << 31 };
    VFTA       0x05600 [128 x 4] RW "8.10.20" "VLAN Filter Table Array";
    MRQC       0x05818 RW "8.10.21" "Multiple Receive Queues Command" { RSS = 0x2, TCP_IPV4 = 1 << 16, IPV4 = 1 << 17, IPV6 = 1 << 20, TCP_IPV6 = 1 << 21, UDP_IPV4 = 1 << 22, UDP_IPV6 = 1 << 23 };
    RETA       0x05C00 [32 x 4] RW "8.10.23" "Redirection Table";
    RSSRK      0x05C80 [10 x 4] RW "8.10.22" "RSS Random Key";
    UTA        0x0A000 [128 x 4] RW "8.10.25" "Unicast Table Array";

    // 8.12 Transmit
    TCTL       0x00400 RW "8.12.1" "Transmit Control" { EN = 1 << 1, PSP = 1 << 3 };
    DTXTCPFLGL 0x0359C RW "8.12.4" "DMA Transmit TCP Flags Control Low" { FIRST_SEGMENT = 0xFF6, MIDDLE_SEGMENTS = 0xF76 << 16 };
    TDBAL      0x0E000 [16 x 0x40] RW "8.12.6" "Transmit Descriptor Base Address Low";
    TDBAH      0x0E004 [16 x 0x40] RW "8.12.7" "Transmit Descriptor Base Address High";
    TDLEN      0x0E008 [16 x 0x40] RW "8.12.8" "Transmit Descriptor Length";
    TDH        0x0E010 [16 x 0x40] RW "8.12.9" "Transmit Descriptor Head";
    TDT        0x0E018 [16 x 0x40] RW "8.12.10" "Transmit Descriptor Tail";
    TXDCTL     0x0E028 [16 x 0x40] RW "8.12.11" "Transmit Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, ENABLE = 1 << 25 };

    // 8.11 Filters
    ETQF       0x05CB0 [8 x 4] RW "8.11" "EType Queue Filter" { ENABLE = 1 << 26, TIME_STAMP = 1 << 30 };

    // 8.16 Time sync
    TSYNCRXCFG 0x05F50 RW "8.16" "Time Sync Rx Configuration" { MESSAGE_SHIFT = 8 };
    SYSTIML    0x0B600 RW "8.16" "System Time Low";
    SYSTIMH    0x0B604 RW "8.16" "System Time High";
    TIMINCA    0x0B608 RW "8.16" "Increment Attributes" { PERIOD_SHIFT = 24 };
    TSYNCTXCTL 0x0B614 RW "8.16" "Tx Time Sync Control" { VALID = 1 << 0, ENABLE = 1 << 4 };
    TXSTMPL    0x0B618 RO "8.16" "Tx Timestamp Low";
    TXSTMPH    0x0B61C RO "8.16" "Tx Timestamp High";
    TSYNCRXCTL 0x0B620 RW "8.16" "Rx Time Sync Control" { VALID = 1 << 0, TYPE_EVENTS = 5 << 1, ENABLE = 1 << 4 };
    RXSTMPL    0x0B624 RO "8.16" "Rx Timestamp Low";
    RXSTMPH    0x0B628 RO "8.16" "Rx Timestamp High";
    RXSATRH    0x0B630 RO "8.16" "Rx Timestamp Attributes High";

    // 8.18 Statistics: 32 bits, cleared by reading
    CRCERRS    0x04000 RC "8.18.1" "CRC Error Count";
    RXERRC     0x0400C RC "8.18.4" "Receive Error Count";
    MPC        0x04010 RC "8.18.5" "Missed Packets Count";
    RLEC       0x04040 RC "8.18.13" "Receive Length Error Count";
    XONRXC     0x04048 RC "8.18.14" "XON Received Count";
    XONTXC     0x0404C RC "8.18.15" "XON Transmitted Count";
    XOFFRXC    0x04050 RC "8.18.16" "XOFF Received Count";
    XOFFTXC    0x04054 RC "8.18.17" "XOFF Transmitted Count";
    FCRUC      0x04058 RC "8.18.18" "Flow Control Received Unsupported Count";
    PRC        0x0405C [6 x 4] RC "8.18.19" "Packets Received of 64, 127, 255, 511, 1023 and more bytes";
    GPRC       0x04074 RC "8.18.25" "Good Packets Received Count";
    BPRC       0x04078 RC "8.18.26" "Broadcast Packets Received Count";
    MPRC       0x0407C RC "8.18.27" "Multicast Packets Received Count";
    GPTC       0x04080 RC "8.18.28" "Good Packets Transmitted Count";
    GORCL      0x04088 RC "8.18.29" "Good Octets Received Count Low";
    GORCH      0x0408C RC "8.18.29" "Good Octets Received Count High";
    GOTCL      0x04090 RC "8.18.30" "Good Octets Transmitted Count Low";
    GOTCH      0x04094 RC "8.18.30" "Good Octets Transmitted Count High";
    RNBC       0x040A0 RC "8.18.31" "Receive No Buffers Count";
    RUC        0x040A4 RC "8.18.32" "Receive Undersize Count";
    RFC        0x040A8 RC "8.18.33" "Receive Fragment Count";
    ROC        0x040AC RC "8.18.34" "Receive Oversize Count";
    RJC        0x040B0 RC "8.18.35" "Receive Jabber Count";
    TPR        0x040D0 RC "8.18" "Total Packets Received";
    TPT        0x040D4 RC "8.18" "Total Packets Transmitted";
    PTC        0x040D8 [6 x 4] RC "8.18" "Packets Transmitted of 64, 127, 255, 511, 1023 and more bytes";
    MPTC       0x040F0 RC "8.18" "Multicast Packets Transmitted Count";
    BPTC       0x040F4 RC "8.18" "Broadcast Packets Transmitted Count";
    RQDPC      0x0C030 [16 x 0x40] RC "8.18.58" "Receive Queue Drop Packet Count";
}

/// Returns the counters of the card, without those of its queues.
pub fn statistics() -> impl Iterator<Item = Register> {
    let is_of_card = |definition: &&&Definition| definition.access == Access::RC && definition.name != RQDPC::NAME;
    MAP.iter().filter(is_of_card).flat_map(|definition| definition.registers())
}

/// Returns the counters of the card, and of its receive queues below `queues`.
pub fn counters(queues: u16) -> impl Iterator<Item = Counter> {
    let is_used = move |counter: &Counter| counter.low.definition.name != RQDPC::NAME || counter.low.number < queues;
    Counter::all(MAP, |_| true).filter(is_used)
}
