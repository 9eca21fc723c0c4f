//! The registers of the 82574 that linerate uses, one per line.
//!
//! Names, bits and sections are those of Intel's "82574 GbE Controller Family Datasheet" (revision 3.4).

use super::{Access, Counter, Register, registers};

registers! {
    // 10.2.2 General
    CTRL       0x00000 RW "10.2.2" "Device Control" { GIO_MASTER_DISABLE = 1 << 2, SLU = 1 << 6, FRCSPD = 1 << 11, FRCDPLX = 1 << 12, RST = 1 << 26, RFCE = 1 << 27, TFCE = 1 << 28, VME = 1 << 30 };
    STATUS     0x00008 RO "10.2.2" "Device Status" { LU = 1 << 1, SPEED_MASK = 0x3 << 6, SPEED_10 = 0, SPEED_100 = 0x1 << 6, GIO_MASTER_ENABLE = 1 << 19 };
    EECD       0x00010 RW "10.2.2" "EEPROM Control" { AUTO_RD = 1 << 9 };
    CTRL_EXT   0x00018 RW "10.2.2" "Extended Device Control" { EIAME = 1 << 24, IAME = 1 << 27, DRV_LOAD = 1 << 28, PBA_SUPPORT = 1 << 31 };
    MDIC       0x00020 RW "10.2.2" "MDI Control" { REGADD_SHIFT = 16, PHYADD_SHIFT = 21, OP_WRITE = 1 << 26, R = 1 << 28 };
    FCAL       0x00028 RW "10.2.2" "Flow Control Address Low";
    FCAH       0x0002C RW "10.2.2" "Flow Control Address High";
    FCT        0x00030 RW "10.2.2" "Flow Control Type";
    VET        0x00038 RW "10.2.2" "VLAN EtherType";
    FCTTV      0x00170 RW "10.2.2" "Flow Control Transmit Timer Value";
    EXTCNF_CTRL 0x00F00 RW "10.2.2" "Extended Configuration Control" { MDIO_SW_OWNERSHIP = 1 << 5 };
    FCRTV      0x05F40 RW "10.2.2" "Flow Control Refresh Threshold Value";

    // 10.2.3 PCIe
    GCR        0x05B00 RW "10.2.3" "PCIe Control";
    GCR2       0x05B64 RW "10.2.3" "PCIe Control 2";

    // 10.2.4 Interrupts
    ICR        0x000C0 W1C "10.2.4" "Interrupt Cause" { RXT0 = 1 << 7, RXQ0 = 1 << 20 };
    ITR        0x000C4 RW "10.2.4" "Interrupt Throttling" { INTERVAL_MASK = 0xFFFF };
    IMS        0x000D0 RW "10.2.4" "Interrupt Mask Set";
    IMC        0x000D8 WO "10.2.4" "Interrupt Mask Clear" { ALL_CAUSES = 0xFFFF_FFFF };
    EIAC       0x000DC RW "10.2.4" "Extended Interrupt Auto Clear";
    IAM        0x000E0 RW "10.2.4" "Interrupt Acknowledge Auto Mask";
    IVAR       0x000E4 RW "10.2.4" "Interrupt Vector Allocation" { VALID = 1 << 3 };
    EITR       0x000E8 [5 x 4] RW "10.2.4" "Extended Interrupt Throttle";

    // 10.2.5 Receive
    RCTL       0x00100 RW "10.2.5" "Receive Control" { EN = 1 << 1, UPE = 1 << 3, MPE = 1 << 4, LPE = 1 << 5, BAM = 1 << 15, VFE = 1 << 18, SECRC = 1 << 26, FLXBUF_SHIFT = 27 };
    FCRTL      0x02160 RW "10.2.5" "Flow Control Receive Threshold Low" { XONE = 1 << 31, MASK = 0x0000_FFF8 };
    FCRTH      0x02168 RW "10.2.5" "Flow Control Receive Threshold High" { MASK = 0x0000_FFF8 };
    RDBAL      0x02800 [2 x 0x100] RW "10.2.5" "Receive Descriptor Base Address Low";
    RDBAH      0x02804 [2 x 0x100] RW "10.2.5" "Receive Descriptor Base Address High";
    RDLEN      0x02808 [2 x 0x100] RW "10.2.5" "Receive Descriptor Length";
    RDH        0x02810 [2 x 0x100] RW "10.2.5" "Receive Descriptor Head";
    RDT        0x02818 [2 x 0x100] RW "10.2.5" "Receive Descriptor Tail";
    RDTR       0x02820 RW "10.2.5" "Receive Interrupt Packet Delay Timer";
    RXDCTL     0x02828 [2 x 0x100] RW "10.2.5" "Receive Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, GRAN = 1 << 24 };
    RXCSUM     0x05000 RW "10.2.5" "Receive Checksum Control" { IPOFL = 1 << 8, TUOFL = 1 << 9, PCSD = 1 << 13 };
    RFCTL      0x05008 RW "10.2.5" "Receive Filter Control" { NFSW_DIS = 1 << 6, NFSR_DIS = 1 << 7, EXSTEN = 1 << 15 };
    MTA        0x05200 [128 x 4] RW "10.2.5" "Multicast Table Array";
    RAL        0x05400 [15 x 8] RW "10.2.5" "Receive Address Low";
    RAH        0x05404 [15 x 8] RW "10.2.5" "Receive Address High" { AV = 1 << 31 };
    VFTA       0x05600 [128 x 4] RW "10.2.5" "VLAN Filter Table Array";
    MRQC       0x05818 RW "10.2.5" "Multiple Receive Queues Command" { RSS = 0x1, TCP_IPV4 = 1 << 16, IPV4 = 1 << 17, TCP_IPV6 = 1 << 18, IPV6_EX = 1 << 19, IPV6 = 1 << 20 };
    RETA       0x05C00 [32 x 4] RW "10.2.5" "Redirection Table" { QUEUE_SHIFT = 7 };
    RSSRK      0x05C80 [10 x 4] RW "10.2.5" "RSS Random Key";

    // 10.2.6 Transmit
    TCTL       0x00400 RW "10.2.6" "Transmit Control" { EN = 1 << 1, PSP = 1 << 3, CT_SHIFT = 4, COLD_SHIFT = 12 };
    TDBAL      0x03800 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Base Address Low";
    TDBAH      0x03804 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Base Address High";
    TDLEN      0x03808 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Length";
    TDH        0x03810 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Head";
    TDT        0x03818 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Tail";
    TXDCTL     0x03828 [2 x 0x100] RW "10.2.6" "Transmit Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, GRAN = 1 << 24 };
    TARC       0x03840 [2 x 0x100] RW "10.2.6" "Transmit Arbitration Count" { ENABLE = 1 << 10 };

    // 10.2.7 Statistics: 32 bits, cleared by reading
    CRCERRS    0x04000 RC "10.2.7" "CRC Error Count";
    ALGNERRC   0x04004 RC "10.2.7" "Alignment Error Count";
    RXERRC     0x0400C RC "10.2.7" "Receive Error Count";
    MPC        0x04010 RC "10.2.7" "Missed Packets Count";
    RLEC       0x04040 RC "10.2.7" "Receive Length Error Count";
    XONRXC     0x04048 RC "10.2.7" "XON Received Count";
    XONTXC     0x0404C RC "10.2.7" "XON Transmitted Count";
    XOFFRXC    0x04050 RC "10.2.7" "XOFF Received Count";
    XOFFTXC    0x04054 RC "10.2.7" "XOFF Transmitted Count";
    FCRUC      0x04058 RC "10.2.7" "Flow Control Received Unsupported Count";
    PRC        0x0405C [6 x 4] RC "10.2.7" "Packets Received of 64, 127, 255, 511, 1023 and more bytes";
    GPRC       0x04074 RC "10.2.7" "Good Packets Received Count";
    BPRC       0x04078 RC "10.2.7" "Broadcast Packets Received Count";
    MPRC       0x0407C RC "10.2.7" "Multicast Packets Received Count";
    GPTC       0x04080 RC "10.2.7" "Good Packets Transmitted Count";
    GORCL      0x04088 RC "10.2.7" "Good Octets Received Count Low";
    GORCH      0x0408C RC "10.2.7" "Good Octets Received Count High";
    GOTCL      0x04090 RC "10.2.7" "Good Octets Transmitted Count Low";
    GOTCH      0x04094 RC "10.2.7" "Good Octets Transmitted Count High";
    RNBC       0x040A0 RC "10.2.7" "Receive No Buffers Count";
    RUC        0x040A4 RC "10.2.7" "Receive Undersize Count";
    RFC        0x040A8 RC "10.2.7" "Receive Fragment Count";
    ROC        0x040AC RC "10.2.7" "Receive Oversize Count";
    RJC        0x040B0 RC "10.2.7" "Receive Jabber Count";
    TPR        0x040D0 RC "10.2.7" "Total Packets Received";
    TPT        0x040D4 RC "10.2.7" "Total Packets Transmitted";
    PTC        0x040D8 [6 x 4] RC "10.2.7" "Packets Transmitted of 64, 127, 255, 511, 1023 and more bytes";
    MPTC       0x040F0 RC "10.2.7" "Multicast Packets Transmitted Count";
    BPTC       0x040F4 RC "10.2.7" "Broadcast Packets Transmitted Count";
}

/// Returns the counters.
pub fn counters() -> impl Iterator<Item = Counter> {
    Counter::all(MAP, |_| true)
}

/// Returns the registers of the counters.
pub fn statistics() -> impl Iterator<Item = Register> {
    MAP.iter().filter(|definition| definition.access == Access::RC).flat_map(|definition| definition.registers())
}
