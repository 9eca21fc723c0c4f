//! Feature bits, registers and structures of VirtIO network devices.
//!
//! Names and sections are those of "Virtual I/O Device (VIRTIO) Version 1.2" (OASIS, 2022).

/// Device status (2.1).
pub mod status {
    #![allow(missing_docs)]
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const DEVICE_NEEDS_RESET: u8 = 64;
    pub const FAILED: u8 = 128;
}

/// Feature bits of network devices (5.1.3), and of all devices: 24 to 40 (6, and 6.3 for legacy devices).
pub mod feature {
    #![allow(missing_docs)]
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const MAC: u64 = 1 << 5;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const HOST_ECN: u64 = 1 << 13;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const CTRL_VQ: u64 = 1 << 17;
    pub const CTRL_RX: u64 = 1 << 18;
    pub const CTRL_VLAN: u64 = 1 << 19;
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    pub const MQ: u64 = 1 << 22;
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
    /// This bit and the next three are from VIRTIO 1.3, section 5.1.3.
    pub const NOTF_COAL: u64 = 1 << 53;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const HOST_USO: u64 = 1 << 56;
    pub const HASH_REPORT: u64 = 1 << 57;
    pub const RSS: u64 = 1 << 60;
    pub const SPEED_DUPLEX: u64 = 1 << 63;
    pub const ANY_LAYOUT: u64 = 1 << 27;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    pub const RING_PACKED: u64 = 1 << 34;
    pub const IN_ORDER: u64 = 1 << 35;
    pub const ORDER_PLATFORM: u64 = 1 << 36;
    pub const RING_RESET: u64 = 1 << 40;
}

/// The common configuration of modern devices (4.1.4.3), by offset.
pub mod common {
    #![allow(missing_docs)]
    pub const DEVICE_FEATURE_SELECT: u32 = 0;
    pub const DEVICE_FEATURE: u32 = 4;
    pub const DRIVER_FEATURE_SELECT: u32 = 8;
    pub const DRIVER_FEATURE: u32 = 12;
    pub const DEVICE_STATUS: u32 = 20;
    pub const QUEUE_SELECT: u32 = 22;
    pub const QUEUE_SIZE: u32 = 24;
    pub const QUEUE_MSIX_VECTOR: u32 = 26;
    pub const QUEUE_ENABLE: u32 = 28;
    pub const QUEUE_NOTIFY_OFF: u32 = 30;
    pub const QUEUE_DESC: u32 = 32;
    pub const QUEUE_DRIVER: u32 = 40;
    pub const QUEUE_DEVICE: u32 = 48;
    pub const QUEUE_RESET: u32 = 58;
    /// The end of the last of these fields.
    pub const END: u32 = 60;
}

/// The I/O ports of legacy devices (4.1.4.10), by offset.
pub mod legacy {
    #![allow(missing_docs)]
    pub const DEVICE_FEATURES: u16 = 0;
    pub const DRIVER_FEATURES: u16 = 4;
    pub const QUEUE_ADDRESS: u16 = 8;
    pub const QUEUE_SIZE: u16 = 12;
    pub const QUEUE_SELECT: u16 = 14;
    pub const QUEUE_NOTIFY: u16 = 16;
    pub const DEVICE_STATUS: u16 = 18;
    pub const ISR_STATUS: u16 = 19;
    /// Present only if MSI-X is enabled. The device configuration then starts after it.
    pub const QUEUE_VECTOR: u16 = 22;
    pub const CONFIG: u16 = 20;
    pub const CONFIG_MSIX: u16 = 24;
    /// The unit of `QUEUE_ADDRESS`, and the alignment of a ring's parts (2.7.2).
    pub const PAGE: u64 = 4096;
}

/// No interrupt for this queue (4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xFFFF;

/// The device-specific configuration of network devices (5.1.4), by offset.
pub mod config {
    #![allow(missing_docs)]
    pub const MAC: u32 = 0;
    pub const STATUS: u32 = 6;
    pub const STATUS_LINK_UP: u16 = 1;
    pub const MAX_VIRTQUEUE_PAIRS: u32 = 8;
    pub const SPEED: u32 = 12;
    /// In bytes, at least 40.
    pub const RSS_MAX_KEY_SIZE: u32 = 17;
    /// In entries, at least 128.
    pub const RSS_MAX_INDIRECTION_TABLE_LENGTH: u32 = 18;
    pub const SUPPORTED_HASH_TYPES: u32 = 20;
    /// The end of the last of these fields.
    pub const END: u32 = 24;
}

/// The header before every frame (5.1.6): `struct virtio_net_hdr`, little-endian.
///
/// | byte | 0 | 1 | 2 | 4 | 6 | 8 | 10 | 12 | 16 |
/// |---|---|---|---|---|---|---|---|---|---|
/// | | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset | num_buffers | hash_value | hash_report |
pub mod header {
    #![allow(missing_docs)]
    pub const FLAGS: usize = 0;
    /// A flag: the device has validated the checksum.
    pub const DATA_VALID: u8 = 2;
    pub const NUM_BUFFERS: usize = 10;
    /// The length with `num_buffers`: modern devices, and legacy devices with mergeable buffers.
    pub const LEN: usize = 12;
    /// The length without `num_buffers`: other legacy devices.
    pub const SHORT_LEN: usize = 10;
    pub const HASH_VALUE: usize = 12;
    pub const HASH_REPORT: usize = 16;
    /// The length with a hash (`HASH_REPORT`), the longest.
    pub const HASH_LEN: usize = 20;
}

/// The types of hashes (5.1.6.4.3): bit `n` of the sets of types, and the value `n + 1` of a header's `hash_report`
/// (5.1.6.4.4).
pub mod hash {
    #![allow(missing_docs)]
    pub const IPV4: u16 = 0;
    pub const TCPV4: u16 = 1;
    pub const UDPV4: u16 = 2;
    pub const IPV6: u16 = 3;
    pub const TCPV6: u16 = 4;
    pub const UDPV6: u16 = 5;
    /// This and the next two are for packets with extension headers. They cover the addresses in these headers.
    pub const IP_EX: u16 = 6;
    pub const TCP_EX: u16 = 7;
    pub const UDP_EX: u16 = 8;
}

/// Commands on the control queue (5.1.6.5): class and command.
pub mod control {
    #![allow(missing_docs)]
    pub const RX_PROMISC: [u8; 2] = [0, 0];
    pub const RX_ALLMULTI: [u8; 2] = [0, 1];
    pub const MAC_TABLE_SET: [u8; 2] = [1, 0];
    pub const MAC_ADDR_SET: [u8; 2] = [1, 1];
    pub const VLAN_ADD: [u8; 2] = [2, 0];
    pub const VLAN_DEL: [u8; 2] = [2, 1];
    pub const MQ_VQ_PAIRS_SET: [u8; 2] = [4, 0];
    pub const MQ_RSS_CONFIG: [u8; 2] = [4, 1];
    pub const MQ_HASH_CONFIG: [u8; 2] = [4, 2];
    /// VIRTIO 1.3, 5.1.6.5.9.
    pub const NOTF_COAL_RX_SET: [u8; 2] = [6, 1];
    pub const OK: u8 = 0;
}

/// Flags of descriptors (2.7.5, 2.8.7), and of the rings of a split queue (2.7.6, 2.7.8).
pub mod ring {
    /// Descriptor: the chain continues.
    pub const NEXT: u16 = 1;
    /// Descriptor: the device writes to the buffer.
    pub const WRITE: u16 = 2;
    /// Descriptor: the buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// In the available ring: no interrupts. In the used ring: no notifications.
    pub const QUIET: u16 = 1;

    /// Returns whether an event is due, because the index has moved past `event` on its way from `old` to `new`
    /// (2.7.10).
    #[inline(always)]
    pub fn passes(event: u16, old: u16, new: u16) -> bool {
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    }
}

/// Packed queues: flags of descriptors (2.8.1), and event suppression (2.8.10).
pub mod packed {
    /// Descriptor: if this bit equals the wrap counter, the driver has made the descriptor available.
    pub const AVAILABLE: u16 = 1 << 7;
    /// Descriptor: differs from [`AVAILABLE`] if the descriptor is available, and equals it if the descriptor is used.
    pub const USED: u16 = 1 << 15;

    /// The mode of event suppression, in the high half.
    pub const MODE: u32 = 3 << 16;
    /// All events.
    pub const ENABLE: u32 = 0 << 16;
    /// No events.
    pub const DISABLE: u32 = 1 << 16;
    /// One event, at the descriptor in the low half: its index, and the wrap counter in bit 15. Needs `EVENT_IDX`.
    pub const DESC: u32 = 2 << 16;
}

#[cfg(test)]
mod tests {
    use super::ring::passes;

    #[test]
    fn an_event_is_passed_when_the_index_goes_beyond_it() {
        assert!(passes(5, 5, 6) && passes(5, 0, 6) && passes(u16::MAX, u16::MAX, 0));
        assert!(!passes(5, 6, 9) && !passes(5, 0, 5) && !passes(5, 3, 3));
    }
}
