//! Registers of a virtual function of the 82599 (datasheet section 8.3), by their offsets in the function's BAR 0. Those
//! of the X540 and X550 are the same. [`mailbox`](super::mailbox) has the messages.

use super::{Counter, registers};

/// Queues per direction.
pub const QUEUES: u16 = 2;
/// MSI-X vectors.
pub const VECTORS: u32 = 3;

/// The start of the registers of receive queues. They have the layout of the physical function's queues, from `RDBAL`
/// on (from `TDBAL` on at [`TRANSMIT`]), with `QUEUE_BYTES` per queue.
pub const RECEIVE: u32 = 0x1000;
pub const TRANSMIT: u32 = 0x2000;
pub const QUEUE_BYTES: u32 = 0x40;

registers! {
    // 8.3.5.1 General control and mailbox
    VFCTRL      0x00000 WO "8.3.5.1.1" "Control" { RST = 1 << 26 };
    VFSTATUS    0x00008 RO "8.3.5.1.2" "Status";
    VFLINKS     0x00010 RO "8.3.5.1.3" "Link Status" { UP = 1 << 30, SPEED_MASK = 0x3 << 28, SPEED_100M = 0x1 << 28, SPEED_1G = 0x2 << 28, SPEED_10G = 0x3 << 28 };
    VFMAILBOX   0x002FC RW "8.3.5.1.5" "Mailbox" { REQ = 1 << 0, ACK = 1 << 1, VFU = 1 << 2, PFU = 1 << 3, PFSTS = 1 << 4, PFACK = 1 << 5, RSTI = 1 << 6, RSTD = 1 << 7 };
    VFMBMEM     0x00200 [16 x 4] RW "8.3.5.1.6" "Mailbox Memory";

    // 8.3.5.2 Interrupts
    VTEICR      0x00100 W1C "8.3.5.2" "Extended Interrupt Cause";
    VTEICS      0x00104 RW "8.3.5.2" "Extended Interrupt Cause Set";
    VTEIMS      0x00108 RW "8.3.5.2" "Extended Interrupt Mask Set";
    VTEIMC      0x0010C RW "8.3.5.2" "Extended Interrupt Mask Clear";
    VTEIAC      0x00110 RW "8.3.5.2" "Extended Interrupt Auto Clear";
    VTEIAM      0x00114 RW "8.3.5.2" "Extended Interrupt Auto Mask Enable";
    VTEITR      0x00820 [3 x 4] RW "8.3.5.2" "Extended Interrupt Throttle" { INTERVAL_SHIFT = 3, INTERVAL_MASK = 0x1FF, CNT_WDIS = 1 << 31 };
    VTIVAR      0x00120 [4 x 4] RW "8.3.5.2" "Interrupt Vector Allocation" { VALID = 1 << 7, VECTOR_MASK = 0x3 };
    VTIVAR_MISC 0x00140 RW "8.3.5.2" "Miscellaneous Interrupt Vector Allocation";

    VFPSRTYPE   0x00300 RW "8.3.5" "Packet Split Receive Type";

    // 8.3.5.3 Receive queues. A function has 2 queues each way; its physical function may give it up to 8.
    VFRDBAL     0x01000 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Base Address Low";
    VFRDBAH     0x01004 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Base Address High";
    VFRDLEN     0x01008 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Length";
    VFRDH       0x01010 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Head";
    VFSRRCTL    0x01014 [8 x 0x40] RW "8.3.5.3" "Split Receive Control" { DESCTYPE_ADVANCED = 0x1 << 25, DROP_EN = 1 << 28 };
    VFRDT       0x01018 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Tail";
    VFRXDCTL    0x01028 [8 x 0x40] RW "8.3.5.3" "Receive Descriptor Control" { RLPML_MASK = 0x3FFF, RLPML_EN = 1 << 15, ENABLE = 1 << 25, VME = 1 << 30 };

    // 8.3.5.4 Transmit queues
    VFTDBAL     0x02000 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Base Address Low";
    VFTDBAH     0x02004 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Base Address High";
    VFTDLEN     0x02008 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Length";
    VFTDH       0x02010 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Head";
    VFTDT       0x02018 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Tail";
    VFTXDCTL    0x02028 [8 x 0x40] RW "8.3.5.4" "Transmit Descriptor Control" { PTHRESH_SHIFT = 0, HTHRESH_SHIFT = 8, WTHRESH_SHIFT = 16, ENABLE = 1 << 25 };

    // 8.3.5.8 Statistics: they wrap around and are never cleared
    VFGPRC      0x0101C RO "8.3.5.8" "Good Packets Received Count";
    VFGORC_LSB  0x01020 RO "8.3.5.8" "Good Octets Received Count Low";
    VFGORC_MSB  0x01024 RO "8.3.5.8" "Good Octets Received Count High";
    VFMPRC      0x01034 RO "8.3.5.8" "Multicast Packets Received Count";
    VFGPTC      0x0201C RO "8.3.5.8" "Good Packets Transmitted Count";
    VFGOTC_LSB  0x02020 RO "8.3.5.8" "Good Octets Transmitted Count Low";
    VFGOTC_MSB  0x02024 RO "8.3.5.8" "Good Octets Transmitted Count High";
}

/// Returns the counters of the function. They wrap around, and reading does not clear them.
pub fn counters() -> [Counter; 5] {
    [
        Counter { low: VFGPRC.into(), high: None },
        Counter { low: VFGORC_LSB.into(), high: Some(VFGORC_MSB.into()) },
        Counter { low: VFMPRC.into(), high: None },
        Counter { low: VFGPTC.into(), high: None },
        Counter { low: VFGOTC_LSB.into(), high: Some(VFGOTC_MSB.into()) },
    ]
}
