//! Registers, shared structures and descriptors of VMware's paravirtual network card, vmxnet3.
//!
//! There is no public datasheet. The names are those of Linux's driver; where a comment names no source, the fact is in
//! `vmxnet3_defs.h` or `upt1_defs.h` of Linux's `drivers/net/vmxnet3`. FreeBSD's `if_vmxreg.h`, DPDK's `net/vmxnet3` and
//! QEMU's `hw/net/vmxnet3.h` have the same layout. All of this is revision 1, which every such device has.
//!
//! Structures are listed by the byte offsets of their fields. Numbers are little-endian.

/// The registers of BAR 0, "PT": doorbells and interrupt masks.
pub mod pt {
    use crate::registers;

    registers! {
        IMR      0x000 [25 x 8] RW reset 1 "vmxnet3_defs.h" "Interrupt Mask" { MASKED = 1 };
        TXPROD   0x600 [8 x 8]  WO "vmxnet3_defs.h" "Transmit Producer Index";
        RXPROD   0x800 [8 x 8]  WO "vmxnet3_defs.h" "Receive Producer Index of Ring 0";
        RXPROD2  0xA00 [8 x 8]  WO "vmxnet3_defs.h" "Receive Producer Index of Ring 1";
    }
}

/// The registers of BAR 1, "VD": versions, commands and the own address.
pub mod vd {
    use crate::registers;

    registers! {
        VRRS  0x00 RW "vmxnet3_defs.h" "Revision Report and Selection" { REVISION_1 = 1 };
        UVRS  0x08 RW "vmxnet3_defs.h" "UPT Version Report and Selection" { VERSION_1 = 1 };
        DSAL  0x10 RW "vmxnet3_defs.h" "Driver Shared Address Low";
        DSAH  0x18 RW "vmxnet3_defs.h" "Driver Shared Address High";
        CMD   0x20 RW "vmxnet3_defs.h" "Command; its result when read";
        MACL  0x28 RW "vmxnet3_defs.h" "MAC Address Low";
        MACH  0x30 RW "vmxnet3_defs.h" "MAC Address High";
        ICR   0x38 RO "vmxnet3_defs.h" "Interrupt Cause; a read releases the interrupt line";
        ECR   0x40 WO "vmxnet3_defs.h" "Event Cause; acknowledges events";
    }
}

/// Values of `CMD`. A read of the register then returns the result: for commands that change the device, 0 is success.
pub mod command {
    pub const ACTIVATE_DEV: u32 = 0xCAFE_0000;
    pub const QUIESCE_DEV: u32 = 0xCAFE_0001;
    pub const RESET_DEV: u32 = 0xCAFE_0002;
    pub const UPDATE_RX_MODE: u32 = 0xCAFE_0003;
    pub const UPDATE_MAC_FILTERS: u32 = 0xCAFE_0004;
    pub const UPDATE_VLAN_FILTERS: u32 = 0xCAFE_0005;
    pub const UPDATE_RSSIDT: u32 = 0xCAFE_0006;
    /// Writes the counters to the queue descriptors.
    pub const GET_STATS: u32 = 0xF00D_0001;
    /// Returns the state of the link: bit 0 is "up", and the high half the speed in Mbit/s.
    pub const GET_LINK: u32 = 0xF00D_0002;
}

/// The area that driver and device share, `Vmxnet3_DriverShared`, by offset. The device reads the fields up to
/// [`PM_CONF`](shared::PM_CONF) during a command.
pub mod shared {
    pub const MAGIC: usize = 0;
    /// The value of `MAGIC`.
    pub const REV1_MAGIC: u32 = 0xBABE_FEE1;
    /// `driverInfo`: the driver's version, its operating system, and the revision and UPT version that it supports.
    pub const DRIVER_VERSION: usize = 8;
    pub const DRIVER_GOS: usize = 12;
    /// A 64-bit Linux: the device may put a packet into several buffers (QEMU's `vmxnet3_adjust_by_guest_type`).
    pub const GOS_LINUX_64: u32 = 1 << 2 | 2;
    pub const REVISION: usize = 16;
    pub const UPT_VERSION: usize = 20;
    /// `uptFeatures`, 64 bits: the constants `F_`.
    pub const FEATURES: usize = 24;
    pub const F_RXCSUM: u64 = 1;
    pub const F_RSS: u64 = 2;
    /// `ddPA` and `ddLen`, for the driver's own use. Without such data, the address is all ones (OpenBSD's `if_vmx.c`).
    pub const DRIVER_DATA: usize = 32;
    pub const QUEUE_DESC: usize = 40;
    pub const QUEUE_DESC_LEN: usize = 52;
    pub const MTU: usize = 56;
    pub const MIN_MTU: usize = 60;
    pub const MAX_MTU: usize = 9000;
    /// `maxNumRxSG`, 16 bits: the most buffers of a received packet.
    pub const MAX_RX_BUFFERS: usize = 60;
    /// `numTxQueues` and `numRxQueues`, a byte each.
    pub const TX_QUEUES: usize = 62;
    pub const RX_QUEUES: usize = 63;
    /// Of revision 1, both counts must be powers of two (Linux's `vmxnet3_probe_device`).
    pub const MAX_QUEUES: u16 = 8;
    /// `intrConf`: a byte each for automatic masking, the count of interrupts and the interrupt of events. Then a level of
    /// moderation for each interrupt, a byte each.
    pub const AUTO_MASK: usize = 80;
    pub const INTERRUPTS: usize = 81;
    pub const EVENT_INTERRUPT: usize = 82;
    pub const MODERATION: usize = 83;
    /// A level: the device adapts the rate of interrupts.
    pub const IML_ADAPTIVE: u8 = 8;
    /// `rxFilterConf`: the modes `RXM_`, the bytes and the address of the list of multicast addresses (6 bytes each), and
    /// a bit for each VLAN.
    pub const RX_MODE: usize = 120;
    pub const RXM_UCAST: u32 = 0x01;
    pub const RXM_MCAST: u32 = 0x02;
    pub const RXM_BCAST: u32 = 0x04;
    pub const RXM_ALL_MULTI: u32 = 0x08;
    pub const RXM_PROMISC: u32 = 0x10;
    pub const MULTICAST_LEN: usize = 124;
    pub const MULTICAST: usize = 128;
    pub const VLANS: usize = 136;
    /// `rssConfDesc`: version (1), length and address of the structure [`rss`](super::rss).
    pub const RSS_VERSION: usize = 648;
    pub const RSS_LEN: usize = 652;
    pub const RSS: usize = 656;
    pub const PM_CONF: usize = 664;
    /// `ecr`: the events that the device has seen, the constants `ECR_`.
    pub const EVENTS: usize = 696;
    pub const ECR_RQERR: u32 = 1;
    pub const ECR_TQERR: u32 = 2;
    pub const LEN: usize = 720;
}

/// The configuration of receive-side scaling, `UPT1_RSSConf`, by offset.
pub mod rss {
    /// 16 bits each: the types of hashes, the function, the bytes of the key, and the entries of the table.
    pub const HASH_TYPES: usize = 0;
    pub const HASH_FUNCTION: usize = 2;
    pub const KEY_LEN: usize = 4;
    pub const TABLE_LEN: usize = 6;
    pub const KEY: usize = 8;
    /// A byte for each entry.
    pub const TABLE: usize = 48;
    pub const MAX_TABLE: usize = 128;
    pub const LEN: usize = 176;
    /// All types of hashes: IPv4, TCP over IPv4, IPv6, TCP over IPv6. Revision 1 has none over UDP ports.
    pub const ALL_TYPES: u16 = 0xF;
    pub const TOEPLITZ: u16 = 1;
}

/// A queue descriptor, `Vmxnet3_TxQueueDesc` or `Vmxnet3_RxQueueDesc`, by offset. The transmit queues are first.
pub mod queue {
    /// The length, and the alignment of the first one is half of it.
    pub const LEN: usize = 256;
    /// A byte of a receive queue, written by the device: it wants to be told producer indices (`updateRxProd`).
    pub const UPDATE_RX_PROD: usize = 0;
    /// The addresses of a receive queue's two rings, or of a transmit queue's ring and data ring; then of the ring of
    /// completions. They are multiples of 512.
    pub const RING: usize = 16;
    pub const RING_2: usize = 24;
    pub const COMPLETIONS: usize = 32;
    pub const DRIVER_DATA: usize = 40;
    /// 32 bits each: the lengths of these rings in descriptors, multiples of 32.
    pub const RING_LEN: usize = 56;
    pub const RING_2_LEN: usize = 60;
    pub const COMPLETIONS_LEN: usize = 64;
    /// A byte.
    pub const INTERRUPT: usize = 72;
    /// Ten counters of 64 bits, written by `GET_STATS`.
    pub const STATS: usize = 88;
    /// The names of a transmit queue's counters.
    pub const TX_STATS: [&str; 10] = [
        "TSOPktsTxOK",
        "TSOBytesTxOK",
        "ucastPktsTxOK",
        "ucastBytesTxOK",
        "mcastPktsTxOK",
        "mcastBytesTxOK",
        "bcastPktsTxOK",
        "bcastBytesTxOK",
        "pktsTxError",
        "pktsTxDiscard",
    ];
    /// The names of a receive queue's counters.
    pub const RX_STATS: [&str; 10] = [
        "LROPktsRxOK",
        "LROBytesRxOK",
        "ucastPktsRxOK",
        "ucastBytesRxOK",
        "mcastPktsRxOK",
        "mcastBytesRxOK",
        "bcastPktsRxOK",
        "bcastBytesRxOK",
        "pktsRxOutOfBuf",
        "pktsRxError",
    ];
}

/// Descriptors: two words of 64 bits. Word 0 of a command is the buffer's address.
///
/// A generation bit tells whose a descriptor is. The producer of a ring writes 1 in its first round, 0 in the next, and
/// so on.
pub mod descriptor {
    /// The longest buffer that fits the 14 bits of a length. In a transmit descriptor, 0 stands for one byte more.
    pub const MAX_LEN: usize = (1 << 14) - 1;

    /// Word 1 of a transmit descriptor (`Vmxnet3_TxDesc`); the length is in bits 0 to 13.
    pub mod transmit {
        pub const GENERATION: u64 = 1 << 14;
        /// 14 bits: the segments' size, or the offset of the checksum.
        pub const MSS_SHIFT: u32 = 18;
        pub const CHECKSUM_SHIFT: u32 = MSS_SHIFT;
        /// 10 bits: the headers' length, or the offset at which the checksum begins.
        pub const HEADERS_SHIFT: u32 = 32;
        pub const MAX_HEADERS: usize = (1 << 10) - 1;
        pub const OM_CSUM: u64 = 2 << 42;
        pub const OM_TSO: u64 = 3 << 42;
        pub const EOP: u64 = 1 << 44;
        /// Report the packet with a completion.
        pub const CQ: u64 = 1 << 45;
        /// The most descriptors of a packet, and of a packet that the device segments (`VMXNET3_MAX_TSO_TXD_PER_PKT`).
        pub const MAX_DESCRIPTORS: usize = 16;
        pub const MAX_TSO_DESCRIPTORS: usize = 24;
    }

    /// Word 1 of a receive descriptor (`Vmxnet3_RxDesc`); the length is in bits 0 to 13.
    pub mod receive {
        /// The buffer continues a packet; without this bit, it begins one.
        pub const BODY: u64 = 1 << 14;
        pub const GENERATION: u64 = 1 << 31;
    }

    /// A completion: bits of both words.
    pub mod completion {
        /// Word 0: the descriptor's index; of a transmit queue, that of the packet's last descriptor.
        pub const INDEX_MASK: u64 = 0xFFF;
        /// Word 0 of a received buffer (`Vmxnet3_RxCompDesc`), from here on.
        pub const EOP: u64 = 1 << 14;
        pub const SOP: u64 = 1 << 15;
        /// The queue; plus the count of receive queues, if the descriptor is of ring 1.
        pub const QUEUE_SHIFT: u32 = 16;
        pub const QUEUE_MASK: u64 = 0x3FF;
        /// 1: IPv4, 2: TCP over IPv4, 3: IPv6, 4: TCP over IPv6; 0 without a hash.
        pub const RSS_TYPE_SHIFT: u32 = 26;
        pub const RSS_TYPE_MASK: u64 = 0xF;
        /// No checksum was calculated.
        pub const CNC: u64 = 1 << 30;
        pub const RSS_HASH_SHIFT: u32 = 32;
        /// Word 1, from here on.
        pub const LEN_MASK: u64 = 0x3FFF;
        pub const ERR: u64 = 1 << 14;
        /// TCP's or UDP's checksum is right.
        pub const TUC: u64 = 1 << 48;
        pub const UDP: u64 = 1 << 49;
        pub const TCP: u64 = 1 << 50;
        /// IPv4's checksum is right.
        pub const IPC: u64 = 1 << 51;
        pub const V4: u64 = 1 << 53;
        pub const FRG: u64 = 1 << 54;
        pub const GENERATION: u64 = 1 << 63;
    }
}
