//! Virtual functions: their registers (section 8.3), the mailbox, and the answers of the physical function's driver
//! (section 7.10).
//!
//! A host cannot create virtual functions itself, because the layer between host and card hides their control. It gets
//! each as a separate card instead. Then no physical function's driver answers the mailbox, so the model does.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use linerate_core::port::MacAddress;
use linerate_spec::mailbox as message;
use linerate_spec::x82599::{LINKS, QUEUES, RDBAL, STATUS, TDBAL};
use linerate_spec::x82599_vf::{QUEUES as QUEUES_EACH, *};

use super::Direction;
use super::board::Board;
use super::dma::Dma;
use super::filter::multicast_hash;
use super::interrupt::Interrupts;

/// The most virtual functions of a model. They use its last queues, so that the physical function keeps 64.
pub(super) const MOST: usize = 32;

/// The state of one virtual function.
#[derive(Default)]
pub(super) struct VirtualFunction {
    pub dma: Arc<Dma>,
    /// The function's own bus mastering.
    pub bus_master: bool,
    pub mac: MacAddress,
    /// Further MAC addresses, in the order in which the driver added them.
    more_addresses: Vec<MacAddress>,
    multicast: Vec<u16>,
    promiscuous: bool,
    all_multicast: bool,
    vlans: Vec<u16>,
    /// Set once the driver has requested a reset; until then the function does not work.
    clear_to_send: bool,
    causes: u32,
    masks: u32,
    signalled: u32,
    auto_clear: u32,
    auto_mask: u32,
    /// `VTIVAR` and `VTIVAR_MISC`.
    allocation: [u32; VTIVAR::COUNT as usize],
    misc_allocation: u32,
    mailbox: u32,
    message: [u32; VFMBMEM::COUNT as usize],
    /// The mailbox holds a message to the driver that is not yet acknowledged.
    unread: bool,
    /// A notification of a change is to follow.
    change_pending: bool,
    packet_split: u32,
    received: (u64, u64, u64),
    sent: (u64, u64),
}

const IVAR_FIRST: u32 = VTIVAR::OFFSET;
const IVAR_LAST: u32 = VTIVAR::at(VTIVAR::COUNT - 1);
const MESSAGE_FIRST: u32 = VFMBMEM::OFFSET;
const MESSAGE_LAST: u32 = VFMBMEM::at(VFMBMEM::COUNT - 1);
const RECEIVE_END: u32 = RECEIVE + QUEUES_EACH as u32 * QUEUE_BYTES;
const TRANSMIT_END: u32 = TRANSMIT + QUEUES_EACH as u32 * QUEUE_BYTES;
/// Bits of the mailbox register that a read clears (section 8.3.5.1.5).
const READ_CLEARS: u32 = VFMAILBOX::PFSTS | VFMAILBOX::PFACK | VFMAILBOX::RSTD;

impl VirtualFunction {
    pub fn new(mac: MacAddress) -> VirtualFunction {
        VirtualFunction { mac, ..VirtualFunction::default() }
    }

    /// Returns whether the function's driver is running.
    pub fn is_running(&self) -> bool {
        self.clear_to_send && self.bus_master
    }

    /// Returns whether the function accepts frames to this address in this VLAN.
    pub fn accepts(&self, destination: [u8; 6], vlan: Option<u16>) -> bool {
        if !self.clear_to_send || vlan.is_some_and(|tag| !self.vlans.contains(&(tag & 0xFFF)) && !self.promiscuous) {
            return false;
        }
        self.promiscuous
            || self.is_own(destination)
            || destination == [0xFF; 6]
            || destination[0] & 1 != 0
                && (self.all_multicast || self.multicast.contains(&multicast_hash(destination, 0)))
    }

    /// Returns whether this is one of the function's own addresses.
    pub fn is_own(&self, destination: [u8; 6]) -> bool {
        self.clear_to_send
            && (self.mac.0 == destination || self.more_addresses.iter().any(|more| more.0 == destination))
    }

    /// Counts a frame of this length with CRC, which the octets of the card's other counters include, too.
    pub fn count_received(&mut self, octets: usize, multicast: bool) {
        self.received.0 += 1;
        self.received.1 += octets as u64;
        self.received.2 += u64::from(multicast);
    }

    pub fn count_sent(&mut self, octets: usize) {
        self.sent.0 += 1;
        self.sent.1 += octets as u64;
    }

    pub fn read(&mut self, Board { registers, .. }: &Board, offset: u32) -> u32 {
        match offset {
            VFLINKS::OFFSET => registers.get(LINKS::OFFSET),
            VFSTATUS::OFFSET => registers.get(STATUS::OFFSET),
            VTEICR::OFFSET => {
                let causes = std::mem::take(&mut self.causes);
                self.signalled = 0;
                causes
            }
            VTEICS::OFFSET => self.causes,
            VTEIMS::OFFSET | VTEIMC::OFFSET => self.masks,
            VTEIAC::OFFSET => self.auto_clear,
            VTEIAM::OFFSET => self.auto_mask,
            IVAR_FIRST..=IVAR_LAST => self.allocation[(offset - IVAR_FIRST) as usize / 4],
            VTIVAR_MISC::OFFSET => self.misc_allocation,
            MESSAGE_FIRST..=MESSAGE_LAST => self.message[(offset - MESSAGE_FIRST) as usize / 4],
            VFMAILBOX::OFFSET => {
                let value = self.mailbox;
                self.mailbox &= !READ_CLEARS;
                value
            }
            VFPSRTYPE::OFFSET => self.packet_split,
            VFGPRC::OFFSET => self.received.0 as u32,
            VFGORC_LSB::OFFSET => self.received.1 as u32,
            VFGORC_MSB::OFFSET => (self.received.1 >> 32) as u32 & 0xF,
            VFMPRC::OFFSET => self.received.2 as u32,
            VFGPTC::OFFSET => self.sent.0 as u32,
            VFGOTC_LSB::OFFSET => self.sent.1 as u32,
            VFGOTC_MSB::OFFSET => (self.sent.1 >> 32) as u32 & 0xF,
            _ => 0,
        }
    }

    /// Writes a register. Returns whether the driver requests a reset.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        match offset {
            VFCTRL::OFFSET => return value & VFCTRL::RST != 0,
            VTEICR::OFFSET => self.causes &= !value,
            VTEICS::OFFSET => self.causes |= value,
            VTEIMS::OFFSET => self.masks |= value,
            VTEIMC::OFFSET => self.masks &= !value,
            VTEIAC::OFFSET => self.auto_clear = value,
            VTEIAM::OFFSET => self.auto_mask = value,
            IVAR_FIRST..=IVAR_LAST => self.allocation[(offset - IVAR_FIRST) as usize / 4] = value,
            VTIVAR_MISC::OFFSET => self.misc_allocation = value,
            MESSAGE_FIRST..=MESSAGE_LAST => self.message[(offset - MESSAGE_FIRST) as usize / 4] = value,
            VFPSRTYPE::OFFSET => self.packet_split = value,
            VFMAILBOX::OFFSET => {
                self.mailbox = self.mailbox & !VFMAILBOX::VFU | value & VFMAILBOX::VFU;
                self.unread &= value & (VFMAILBOX::ACK | VFMAILBOX::REQ) == 0;
                if value & VFMAILBOX::REQ != 0 {
                    self.answer();
                }
                if self.change_pending {
                    self.notify_change();
                }
            }
            _ => {}
        }
        self.raise();
        false
    }

    /// Answers a message as the physical function's driver would.
    fn answer(&mut self) {
        let [kind, first, second, ..] = self.message;
        let mac = MacAddress::from_words(first, second);
        let info = (kind >> message::INFO_SHIFT & 0xFF) as usize;
        let is_unicast = |mac: MacAddress| mac.0[0] & 1 == 0 && mac.0 != [0; 6];
        let done = match kind & 0xFFFF {
            message::RESET => {
                *self = VirtualFunction {
                    dma: self.dma.clone(),
                    bus_master: self.bus_master,
                    clear_to_send: true,
                    // Keep the driver's settings.
                    masks: self.masks,
                    auto_clear: self.auto_clear,
                    auto_mask: self.auto_mask,
                    allocation: self.allocation,
                    misc_allocation: self.misc_allocation,
                    received: self.received,
                    sent: self.sent,
                    ..VirtualFunction::new(self.mac)
                };
                (self.message[1], self.message[2]) = self.mac.words();
                self.message[3] = 0; // multicast addresses are hashed by bits 47 to 36
                // The answer does not yet contain "clear to send".
                self.message[0] = message::RESET | message::SUCCESS;
                self.mailbox |= VFMAILBOX::PFSTS | VFMAILBOX::PFACK;
                return self.notify();
            }
            _ if !self.clear_to_send => false,
            message::SET_ADDRESS => {
                if is_unicast(mac) {
                    self.mac = mac;
                }
                is_unicast(mac)
            }
            message::SET_MULTICAST => {
                let words = self.message[1..].iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
                self.multicast = words.take(info.min(30)).map(|hash| hash & 0xFFF).collect();
                true
            }
            message::SET_VLAN => {
                let vlan = first as u16 & 0xFFF;
                self.vlans.retain(|known| *known != vlan);
                if info != 0 {
                    self.vlans.push(vlan);
                }
                true
            }
            message::SET_LENGTH => (64..=9728).contains(&first),
            message::x82599::SET_MORE_ADDRESSES => {
                // Index 0 removes all further addresses.
                match info {
                    0 => self.more_addresses.clear(),
                    _ if is_unicast(mac) && self.more_addresses.len() < 16 => self.more_addresses.push(mac),
                    _ => {}
                }
                info == 0 || is_unicast(mac)
            }
            message::x82599::NEGOTIATE => first <= message::x82599::VERSION_1_4,
            message::x82599::GET_QUEUES => {
                self.message[1] = QUEUES_EACH.into();
                self.message[2] = QUEUES_EACH.into();
                self.message[3] = 0;
                self.message[4] = 0;
                true
            }
            message::x82599::UPDATE_MODE => {
                self.all_multicast = first >= 2;
                self.promiscuous = first >= 3;
                first <= 3
            }
            _ => false,
        };
        let outcome = if done { message::SUCCESS } else { message::FAILURE };
        let clear = if self.clear_to_send { message::CLEAR_TO_SEND } else { 0 };
        self.message[0] = kind | outcome | clear;
        self.mailbox |= VFMAILBOX::PFSTS | VFMAILBOX::PFACK;
        self.notify();
    }

    /// Notifies the driver of a message in the mailbox.
    fn notify(&mut self) {
        self.unread = true;
        if self.misc_allocation & VTIVAR::VALID != 0 {
            self.causes |= 1 << (self.misc_allocation & VTIVAR::VECTOR_MASK);
        }
        self.raise();
    }

    /// Notifies the driver of a change. Defers this while a message is being written or is unread: the driver would
    /// take the notification for the answer, and wait for the real answer until it times out.
    fn notify_change(&mut self) {
        self.change_pending = self.unread || self.mailbox & VFMAILBOX::VFU != 0;
        if !self.change_pending {
            self.message[0] = message::CONTROL | message::CLEAR_TO_SEND;
            self.mailbox |= VFMAILBOX::PFSTS;
            self.notify();
        }
    }

    /// Sets the cause of the function's queue number `local`.
    fn cause(&mut self, direction: Direction, local: u16) {
        let shift = 16 * (u32::from(local) & 1) + if direction == Direction::Transmit { 8 } else { 0 };
        let entry = self.allocation[local as usize / 2] >> shift;
        if entry & VTIVAR::VALID != 0 {
            self.causes |= 1 << (entry & VTIVAR::VECTOR_MASK);
        }
        self.raise();
    }

    /// Raises the interrupts whose causes are set and not masked (section 7.3.4, as for the physical function).
    fn raise(&mut self) {
        self.signalled &= self.causes & self.masks;
        let vectors = self.causes & self.masks & !self.signalled;
        let dma = self.dma.clone();
        let receivers = dma.receivers();
        for vector in (0..VECTORS).filter(|vector| vectors >> vector & 1 != 0) {
            let bit = 1 << vector;
            let Some(receiver) = receivers.vector(vector as usize) else { continue };
            self.signalled |= bit;
            self.causes &= !(self.auto_clear & bit);
            self.masks &= !(self.auto_mask & bit);
            self.signalled &= self.causes & self.masks;
            receiver.raise();
        }
    }
}

/// A card's virtual functions, by number.
pub(super) struct Functions(Vec<VirtualFunction>);

impl Deref for Functions {
    type Target = [VirtualFunction];

    fn deref(&self) -> &[VirtualFunction] {
        &self.0
    }
}

impl DerefMut for Functions {
    fn deref_mut(&mut self) -> &mut [VirtualFunction] {
        &mut self.0
    }
}

/// Returns the initial MAC address of a virtual function.
fn initial_address(board: &Board, number: usize) -> MacAddress {
    super::address_of(&format!("{} {number}", board.name))
}

impl Functions {
    pub fn new(board: &Board) -> Functions {
        Functions((0..board.functions).map(|n| VirtualFunction::new(initial_address(board, n))).collect())
    }

    /// Returns the first queue of a virtual function.
    pub fn first_queue(number: usize) -> u16 {
        QUEUES - QUEUES_EACH * (number as u16 + 1)
    }

    /// Returns the physical function's offset of a virtual function's queue register.
    pub fn queue_register(number: usize, offset: u32) -> Option<u32> {
        let first = Self::first_queue(number);
        match offset {
            VFGPRC::OFFSET | VFGORC_LSB::OFFSET | VFGORC_MSB::OFFSET | VFMPRC::OFFSET => None,
            VFGPTC::OFFSET | VFGOTC_LSB::OFFSET | VFGOTC_MSB::OFFSET => None,
            RECEIVE..RECEIVE_END => {
                let queue = first + ((offset - RECEIVE) / QUEUE_BYTES) as u16;
                Some(RDBAL::at(queue) + offset % QUEUE_BYTES)
            }
            TRANSMIT..TRANSMIT_END => {
                let queue = first + ((offset - TRANSMIT) / QUEUE_BYTES) as u16;
                Some(TDBAL::at(queue) + offset % QUEUE_BYTES)
            }
            _ => None,
        }
    }

    /// Resets the registers of a virtual function.
    pub fn reset(&mut self, board: &Board, number: usize) {
        let old = &self[number];
        let (dma, bus_master) = (old.dma.clone(), old.bus_master);
        // The counters wrap, and are never cleared (section 8.3.5.8).
        let (received, sent) = (old.received, old.sent);
        let new = VirtualFunction::new(initial_address(board, number));
        self[number] = VirtualFunction { dma, bus_master, received, sent, ..new };
    }

    /// Returns whether a queue's function may read and write memory.
    pub fn may_dma(&self, board: &Board, queue: u16) -> bool {
        board.owner(queue).map_or_else(|| board.may_dma(), |number| self[number].bus_master)
    }

    /// Returns the address space of a queue's function.
    pub fn space(&self, board: &Board, queue: u16) -> Arc<Dma> {
        board.owner(queue).map_or(&board.dma, |number| &self[number].dma).clone()
    }

    /// Sets the cause of a queue, in its virtual function or in the physical function.
    pub fn cause(&mut self, board: &Board, interrupts: &mut Interrupts, direction: Direction, queue: u16) {
        match board.owner(queue) {
            Some(number) => self[number].cause(direction, queue - Functions::first_queue(number)),
            None => interrupts.cause(board, direction, queue),
        }
    }

    /// Notifies every driver that the link has changed.
    pub fn notify_link_change(&mut self) {
        self.iter_mut().filter(|function| function.clear_to_send).for_each(VirtualFunction::notify_change);
    }
}

#[cfg(test)]
mod tests {
    use linerate_spec::x82599::TXDCTL;

    use super::super::{Cable, Card, CardKind};
    use super::*;

    /// Linux's ixgbe disables all 128 queues when its interface goes down.
    #[test]
    fn the_physical_function_does_not_stop_queues_of_virtual_functions() {
        let card = Card::of_kind(CardKind::X82599Sfp, 1, "queues", Box::new(Cable::unplugged()));
        let own = TRANSMIT + (TXDCTL::OFFSET - TDBAL::OFFSET);
        card.write_virtual(0, own, TXDCTL::ENABLE);
        (0..QUEUES).for_each(|queue| card.write(TXDCTL::at(queue), TXDCTL::SWFLSH));
        assert_eq!(card.read_virtual(0, own), TXDCTL::ENABLE);
        assert_eq!(card.breaches(), []);
    }

    /// Section 8.3.5.8: a driver continues from the last value that it read, also after a reset.
    #[test]
    fn a_reset_does_not_clear_the_counters() {
        let card = Card::of_kind(CardKind::X82599Sfp, 1, "counters", Box::new(Cable::unplugged()));
        card.blocks().functions[0].count_sent(100);
        card.blocks().functions[0].count_received(60, true);
        card.write_virtual(0, VFCTRL::OFFSET, VFCTRL::RST);
        card.write_virtual(0, VFMBMEM::OFFSET, message::RESET);
        card.write_virtual(0, VFMAILBOX::OFFSET, VFMAILBOX::REQ);
        let counters = [VFGPTC::OFFSET, VFGOTC_LSB::OFFSET, VFGPRC::OFFSET, VFGORC_LSB::OFFSET, VFMPRC::OFFSET];
        assert_eq!(counters.map(|counter| card.read_virtual(0, counter)), [1, 100, 1, 60, 1]);
    }
}
