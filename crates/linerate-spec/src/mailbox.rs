//! Messages between the driver of a virtual function and the driver of its physical function, in a mailbox of 16 words.
//!
//! The datasheets define the mailbox (82599 section 8.3.5.1.5, 82576 section 8.14). Intel's drivers define the messages;
//! their numbers are in Linux's ixgbe (`ixgbe_mbx.h`) and igb (`e1000_mbx.h`).

/// Words of a mailbox.
pub const WORDS: usize = 16;

// Bits of the virtual function's mailbox register, the same on all cards. A read clears PFSTS, PFACK and RSTD.

/// The physical function has a message to read.
pub const REQ: u32 = 1 << 0;
/// The message of the physical function was read.
pub const ACK: u32 = 1 << 1;
/// The virtual function uses the mailbox.
pub const VFU: u32 = 1 << 2;
/// The physical function uses the mailbox.
pub const PFU: u32 = 1 << 3;
/// The physical function has written a message.
pub const PFSTS: u32 = 1 << 4;
/// The physical function has read the message.
pub const PFACK: u32 = 1 << 5;
/// The physical function is being reset.
pub const RSTI: u32 = 1 << 6;
/// The physical function was reset.
pub const RSTD: u32 = 1 << 7;

// The first word of a message: its kind, bits of it from `INFO_SHIFT` on, and how it was answered.

pub const RESET: u32 = 0x01;
pub const SET_ADDRESS: u32 = 0x02;
pub const SET_MULTICAST: u32 = 0x03;
pub const SET_VLAN: u32 = 0x04;
pub const SET_LENGTH: u32 = 0x05;
/// From the physical function: its state has changed.
pub const CONTROL: u32 = 0x0100;
pub const KIND_MASK: u32 = 0xFFFF;
pub const INFO_SHIFT: u32 = 16;
pub const CLEAR_TO_SEND: u32 = 1 << 29;
pub const FAILURE: u32 = 1 << 30;
pub const SUCCESS: u32 = 1 << 31;
/// The most hashes of multicast addresses in a message.
pub const MOST_MULTICAST: usize = 30;

/// More messages of the 82599 and its successors.
pub mod x82599 {
    pub const SET_MORE_ADDRESSES: u32 = 0x06;
    pub const NEGOTIATE: u32 = 0x08;
    pub const GET_QUEUES: u32 = 0x09;
    pub const UPDATE_MODE: u32 = 0x0C;
    /// Versions of the protocol, as numbers in messages: 1.0 is 0, 1.1 is 2, 1.2 is 3, 1.3 is 4, 1.4 is 5, 1.5 is 6.
    pub const VERSION_1_0: u32 = 0;
    pub const VERSION_1_1: u32 = 2;
    pub const VERSION_1_2: u32 = 3;
    pub const VERSION_1_3: u32 = 4;
    pub const VERSION_1_4: u32 = 5;
    pub const VERSION_1_5: u32 = 6;
    /// Modes of [`UPDATE_MODE`]: the addresses of the tables; also all multicast; also all unicast packets.
    pub const MODE_MULTICAST: u32 = 1;
    pub const MODE_ALL_MULTICAST: u32 = 2;
    pub const MODE_PROMISCUOUS: u32 = 3;
}

/// More messages of the 82576.
pub mod x82576 {
    pub const SET_PROMISCUOUS: u32 = 0x06;
    /// Bits of [`SET_PROMISCUOUS`].
    pub const UNICAST: u32 = 1 << super::INFO_SHIFT;
    pub const MULTICAST: u32 = 2 << super::INFO_SHIFT;
    /// Bits of [`SET_ADDRESS`](super::SET_ADDRESS): remove all further addresses, or add one.
    pub const CLEAR_ADDRESSES: u32 = 1 << super::INFO_SHIFT;
    pub const ADD_ADDRESS: u32 = 2 << super::INFO_SHIFT;
}
