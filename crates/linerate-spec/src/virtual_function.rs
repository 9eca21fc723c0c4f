//! Registers of a virtual function of the 82599 (datasheet section 8.3), by their offsets in the function's BAR 0, and
//! the messages in its mailbox.

use super::registers;

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
    VFLINKS     0x00010 RO "8.3.5.1.3" "Link Status";
    VFMAILBOX   0x002FC RW "8.3.5.1.5" "Mailbox" { REQ = 1 << 0, ACK = 1 << 1, VFU = 1 << 2, PFSTS = 1 << 4, PFACK = 1 << 5, RSTD = 1 << 7 };
    VFMBMEM     0x00200 [16 x 4] RW "8.3.5.1.6" "Mailbox Memory";

    // 8.3.5.2 Interrupts
    VTEICR      0x00100 W1C "8.3.5.2" "Extended Interrupt Cause";
    VTEICS      0x00104 RW "8.3.5.2" "Extended Interrupt Cause Set";
    VTEIMS      0x00108 RW "8.3.5.2" "Extended Interrupt Mask Set";
    VTEIMC      0x0010C RW "8.3.5.2" "Extended Interrupt Mask Clear";
    VTEIAC      0x00110 RW "8.3.5.2" "Extended Interrupt Auto Clear";
    VTEIAM      0x00114 RW "8.3.5.2" "Extended Interrupt Auto Mask Enable";
    VTIVAR      0x00120 [4 x 4] RW "8.3.5.2" "Interrupt Vector Allocation" { VALID = 1 << 7, VECTOR_MASK = 0x3 };
    VTIVAR_MISC 0x00140 RW "8.3.5.2" "Miscellaneous Interrupt Vector Allocation";

    VFPSRTYPE   0x00300 RW "8.3.5" "Packet Split Receive Type";

    // 8.3.5.8 Statistics: they wrap around and are never cleared
    VFGPRC      0x0101C RO "8.3.5.8" "Good Packets Received Count";
    VFGORC_LSB  0x01020 RO "8.3.5.8" "Good Octets Received Count Low";
    VFGORC_MSB  0x01024 RO "8.3.5.8" "Good Octets Received Count High";
    VFMPRC      0x01034 RO "8.3.5.8" "Multicast Packets Received Count";
    VFGPTC      0x0201C RO "8.3.5.8" "Good Packets Transmitted Count";
    VFGOTC_LSB  0x02020 RO "8.3.5.8" "Good Octets Transmitted Count Low";
    VFGOTC_MSB  0x02024 RO "8.3.5.8" "Good Octets Transmitted Count High";
}

/// The first word of a message, as defined by Intel's drivers of physical and virtual functions.
pub mod message {
    pub const RESET: u32 = 0x01;
    pub const SET_ADDRESS: u32 = 0x02;
    pub const SET_MULTICAST: u32 = 0x03;
    pub const SET_VLAN: u32 = 0x04;
    pub const SET_LENGTH: u32 = 0x05;
    pub const SET_MORE_ADDRESSES: u32 = 0x06;
    pub const NEGOTIATE: u32 = 0x08;
    pub const GET_QUEUES: u32 = 0x09;
    pub const UPDATE_MODE: u32 = 0x0C;
    /// From the physical function: its state has changed.
    pub const CONTROL: u32 = 0x0100;
    pub const SUCCESS: u32 = 1 << 31;
    pub const FAILURE: u32 = 1 << 30;
    pub const CLEAR_TO_SEND: u32 = 1 << 29;
    pub const INFO_SHIFT: u32 = 16;
    /// The newest supported version of the mailbox protocol: 1.4.
    pub const NEWEST: u32 = 5;
}
