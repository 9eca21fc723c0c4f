//! Link types: which headers the packets of a capture begin with.

use std::fmt;

/// A link type of a capture: a `LINKTYPE_` value of <https://www.tcpdump.org/linktypes.html>.
///
/// ```
/// use linerate::capture::LinkType;
/// assert_eq!(LinkType(113).to_string(), "LINUX_SLL (link type 113)");
/// assert_eq!(LinkType(999).to_string(), "link type 999");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub u16);

/// The names of link types, without `LINKTYPE_`. 12 and 14 are the values of `DLT_RAW` on most systems and on OpenBSD.
const NAMES: [(u16, &str); 43] = [
    (0, "NULL"),
    (1, "ETHERNET"),
    (6, "IEEE802_5"),
    (9, "PPP"),
    (10, "FDDI"),
    (12, "RAW"),
    (14, "RAW"),
    (50, "PPP_HDLC"),
    (51, "PPP_ETHER"),
    (101, "RAW"),
    (104, "C_HDLC"),
    (105, "IEEE802_11"),
    (107, "FRELAY"),
    (108, "LOOP"),
    (113, "LINUX_SLL"),
    (117, "PFLOG"),
    (119, "IEEE802_11_PRISM"),
    (127, "IEEE802_11_RADIOTAP"),
    (147, "USER0"),
    (163, "IEEE802_11_AVS"),
    (166, "PPP_PPPD"),
    (177, "LINUX_LAPD"),
    (187, "BLUETOOTH_HCI_H4"),
    (189, "USB_LINUX"),
    (192, "PPI"),
    (195, "IEEE802_15_4_WITHFCS"),
    (197, "ERF"),
    (201, "BLUETOOTH_HCI_H4_WITH_PHDR"),
    (204, "PPP_WITH_DIR"),
    (220, "USB_LINUX_MMAPPED"),
    (227, "CAN_SOCKETCAN"),
    (228, "IPV4"),
    (229, "IPV6"),
    (230, "IEEE802_15_4_NOFCS"),
    (239, "NFLOG"),
    (240, "NETANALYZER"),
    (247, "INFINIBAND"),
    (249, "USBPCAP"),
    (252, "WIRESHARK_UPPER_PDU"),
    (253, "NETLINK"),
    (254, "BLUETOOTH_LINUX_MONITOR"),
    (274, "ETHERNET_MPACKET"),
    (276, "LINUX_SLL2"),
];

impl LinkType {
    /// Ethernet frames, without preamble and frame check sequence.
    pub const ETHERNET: LinkType = LinkType(1);

    /// Returns the name without `LINKTYPE_`, if it is a common type.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name)
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (link type {})", self.0),
            None => write!(f, "link type {}", self.0),
        }
    }
}
