//! Registers of a virtual function of the 82576, by their offsets in the function's BAR 0.
//!
//! Names, bits and sections are those of Intel's "82576EB Gigabit Ethernet Controller Datasheet" (revision 2.63), section
//! 8.26. [`mailbox`](super::mailbox) has the messages.

use super::{Counter, registers};

registers! {
    // 8.26.2 General
    VTCTRL      0x00000 WO "8.26.2" "Control" { RST = 1 << 26 };
    VTSTATUS    0x00008 RO "8.26.2" "Status" { LU = 1 << 1, SPEED_MASK = 0x3 << 6, SPEED_10 = 0, SPEED_100 = 0x1 << 6 };
    VMBMEM      0x00800 [16 x 4] RW "8.14.3" "Virtual Machine Mailbox Memory";
    V2PMAILBOX  0x00C40 RW "8.14.1" "Virtual Mailbox";

    // 8.26.2 Interrupts
    VTEICS      0x01520 WO "8.26.2" "Extended Interrupt Cause Set";
    VTEIMS      0x01524 RW "8.26.2" "Extended Interrupt Mask Set";
    VTEIMC      0x01528 WO "8.26.2" "Extended Interrupt Mask Clear" { ALL_CAUSES = 0x7 };
    VTEIAC      0x0152C RW "8.26.2" "Extended Interrupt Auto Clear";
    VTEIAM      0x01530 RW "8.26.2" "Extended Interrupt Auto Mask Enable";
    VTEICR      0x01580 W1C "8.26.2" "Extended Interrupt Cause";
    VTEITR      0x01680 [3 x 4] RW "8.26.2" "Extended Interrupt Throttle" { INTERVAL_SHIFT = 2, INTERVAL_MASK = 0x1FFF, CNT_INGR = 1 << 31 };
    VTIVAR      0x01700 RW "8.26.2" "Interrupt Vector Allocation" { VALID = 1 << 7 };

    // 8.26.2 Receive and transmit queues
    PSRTYPE     0x00F0C RW "8.10.3" "Packet Split Receive Type" { RQPL_SHIFT = 29 };
    RDBAL       0x02800 [2 x 0x100] RW "8.10.5" "Receive Descriptor Base Address Low";
    RDBAH       0x02804 [2 x 0x100] RW "8.10.6" "Receive Descriptor Base Address High";
    RDLEN       0x02808 [2 x 0x100] RW "8.10.7" "Receive Descriptor Length";
    SRRCTL      0x0280C [2 x 0x100] RW "8.10.2" "Split and Replication Receive Control" { DESCTYPE_ADVANCED = 1 << 25, DROP_EN = 1 << 31 };
    RDH         0x02810 [2 x 0x100] RW "8.10.8" "Receive Descriptor Head";
    RDT         0x02818 [2 x 0x100] RW "8.10.9" "Receive Descriptor Tail";
    RXDCTL      0x02828 [2 x 0x100] RW "8.10.10" "Receive Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, ENABLE = 1 << 25 };
    RQDPC       0x02830 [2 x 0x100] RC "8.18.58" "Receive Queue Drop Packet Count";
    TDBAL       0x03800 [2 x 0x100] RW "8.12.6" "Transmit Descriptor Base Address Low";
    TDBAH       0x03804 [2 x 0x100] RW "8.12.7" "Transmit Descriptor Base Address High";
    TDLEN       0x03808 [2 x 0x100] RW "8.12.8" "Transmit Descriptor Length";
    TDH         0x03810 [2 x 0x100] RW "8.12.9" "Transmit Descriptor Head";
    TDT         0x03818 [2 x 0x100] RW "8.12.10" "Transmit Descriptor Tail";
    TXDCTL      0x03828 [2 x 0x100] RW "8.12.11" "Transmit Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, ENABLE = 1 << 25 };

    // 8.26.3 Statistics: they wrap around and are never cleared
    VFGPRC      0x00F10 RO "8.26.3" "Good Packets Received Count";
    VFGPTC      0x00F14 RO "8.26.3" "Good Packets Transmitted Count";
    VFGORC      0x00F18 RO "8.26.3" "Good Octets Received Count";
    VFGOTC      0x00F34 RO "8.26.3" "Good Octets Transmitted Count";
    VFMPRC      0x00F3C RO "8.26.3" "Multicast Packets Received Count";
}

/// Returns the counters of the function, and of its receive queues below `queues`. Those of the function wrap around, and
/// reading does not clear them.
pub fn counters(queues: u16) -> impl Iterator<Item = Counter> {
    let of_function = [VFGPRC.into(), VFGORC.into(), VFMPRC.into(), VFGPTC.into(), VFGOTC.into()];
    let of_queues = (0..queues.min(RQDPC::COUNT)).map(|queue| RQDPC(queue).into());
    of_function.into_iter().chain(of_queues).map(|low| Counter { low, high: None })
}
