//! Virtual functions: their registers (section 8.3), the mailbox, and the answers of the physical function's driver
//! (section 7.10).
//!
//! A host that cannot create virtual functions, because the layer between it and the card hides their control, gets
//! each as a card of its own. The mailbox then has no driver of a physical function, so the model answers.

use std::sync::Arc;

use super::dma::Dma;
use super::filter::multicast_hash;
use super::{Card, Core, Direction};
use crate::port::MacAddress;
use crate::spec::virtual_function::{self as spec, *};
use crate::spec::x82599::{LINKS, QUEUES, RDBAL, STATUS, TDBAL};

/// Queues each way of a virtual function.
pub(super) const QUEUES_EACH: u16 = spec::QUEUES;
/// The most virtual functions of a card here; they get its last queues, so that the physical function keeps its 64.
pub(super) const MOST: usize = 32;

/// The state of one virtual function.
#[derive(Default)]
pub(super) struct VirtualFunction {
    pub dma: Arc<Dma>,
    /// Its own bus mastering.
    pub bus_master: bool,
    pub mac: MacAddress,
    /// Further addresses, by the index that its driver gave them.
    more_addresses: Vec<MacAddress>,
    multicast: Vec<u16>,
    promiscuous: bool,
    all_multicast: bool,
    vlans: Vec<u16>,
    /// Set once its driver has requested a reset; only then does it work.
    clear_to_send: bool,
    causes: u32,
    masks: u32,
    told: u32,
    auto_clear: u32,
    auto_mask: u32,
    /// `VTIVAR` and `VTIVAR_MISC`.
    allocation: [u32; VTIVAR::COUNT as usize],
    misc_allocation: u32,
    mailbox: u32,
    message: [u32; VFMBMEM::COUNT as usize],
    /// The mailbox holds our message, not yet acknowledged by the driver.
    unread: bool,
    /// Another message is to follow it.
    news: bool,
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
/// Bits of the mailbox that a read clears (section 8.3.5.1.5).
const READ_CLEARS: u32 = VFMAILBOX::PFSTS | VFMAILBOX::PFACK | VFMAILBOX::RSTD;

impl VirtualFunction {
    pub fn new(mac: MacAddress) -> VirtualFunction {
        VirtualFunction { mac, ..VirtualFunction::default() }
    }

    /// True if its driver is running.
    pub fn listens(&self) -> bool {
        self.clear_to_send && self.bus_master
    }

    /// Returns whether it accepts frames for this address, of this VLAN.
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

    /// Returns whether this is one of its own addresses.
    pub fn is_own(&self, destination: [u8; 6]) -> bool {
        self.clear_to_send
            && (self.mac.0 == destination || self.more_addresses.iter().any(|more| more.0 == destination))
    }

    pub fn count_received(&mut self, octets: usize, multicast: bool) {
        self.received.0 += 1;
        self.received.1 += octets as u64;
        self.received.2 += u64::from(multicast);
    }

    pub fn count_sent(&mut self, octets: usize) {
        self.sent.0 += 1;
        self.sent.1 += octets as u64;
    }
}

impl Card {
    /// Returns the first queue of a virtual function.
    pub(super) fn first_queue(number: usize) -> u16 {
        QUEUES - QUEUES_EACH * (number as u16 + 1)
    }

    pub(super) fn read_virtual(&self, number: usize, offset: u32) -> u32 {
        if let Some(physical) = Self::queue_register(number, offset) {
            return self.read(physical);
        }
        let core = &mut *self.core();
        if offset == VFLINKS::OFFSET {
            self.update_link(core);
        }
        let function = &mut core.virtual_functions[number];
        match offset {
            VFLINKS::OFFSET => self.board.registers.get(LINKS::OFFSET),
            VFSTATUS::OFFSET => self.board.registers.get(STATUS::OFFSET),
            VTEICR::OFFSET => {
                let causes = std::mem::take(&mut function.causes);
                function.told = 0;
                causes
            }
            VTEICS::OFFSET => function.causes,
            VTEIMS::OFFSET | VTEIMC::OFFSET => function.masks,
            VTEIAC::OFFSET => function.auto_clear,
            VTEIAM::OFFSET => function.auto_mask,
            IVAR_FIRST..=IVAR_LAST => function.allocation[(offset - IVAR_FIRST) as usize / 4],
            VTIVAR_MISC::OFFSET => function.misc_allocation,
            MESSAGE_FIRST..=MESSAGE_LAST => function.message[(offset - MESSAGE_FIRST) as usize / 4],
            VFMAILBOX::OFFSET => {
                let value = function.mailbox;
                function.mailbox &= !READ_CLEARS;
                value
            }
            VFPSRTYPE::OFFSET => function.packet_split,
            VFGPRC::OFFSET => function.received.0 as u32,
            VFGORC_LSB::OFFSET => function.received.1 as u32,
            VFGORC_MSB::OFFSET => (function.received.1 >> 32) as u32 & 0xF,
            VFMPRC::OFFSET => function.received.2 as u32,
            VFGPTC::OFFSET => function.sent.0 as u32,
            VFGOTC_LSB::OFFSET => function.sent.1 as u32,
            VFGOTC_MSB::OFFSET => (function.sent.1 >> 32) as u32 & 0xF,
            _ => 0,
        }
    }

    pub(super) fn write_virtual(&self, number: usize, offset: u32, value: u32) {
        if let Some(physical) = Self::queue_register(number, offset) {
            return self.write_any(physical, value);
        }
        let core = &mut *self.core();
        let function = &mut core.virtual_functions[number];
        match offset {
            VFCTRL::OFFSET if value & VFCTRL::RST != 0 => self.reset_virtual(core, number),
            VTEICR::OFFSET => function.causes &= !value,
            VTEICS::OFFSET => function.causes |= value,
            VTEIMS::OFFSET => function.masks |= value,
            VTEIMC::OFFSET => function.masks &= !value,
            VTEIAC::OFFSET => function.auto_clear = value,
            VTEIAM::OFFSET => function.auto_mask = value,
            IVAR_FIRST..=IVAR_LAST => function.allocation[(offset - IVAR_FIRST) as usize / 4] = value,
            VTIVAR_MISC::OFFSET => function.misc_allocation = value,
            MESSAGE_FIRST..=MESSAGE_LAST => function.message[(offset - MESSAGE_FIRST) as usize / 4] = value,
            VFPSRTYPE::OFFSET => function.packet_split = value,
            VFMAILBOX::OFFSET => {
                function.mailbox = function.mailbox & !VFMAILBOX::VFU | value & VFMAILBOX::VFU;
                function.unread &= value & (VFMAILBOX::ACK | VFMAILBOX::REQ) == 0;
                if value & VFMAILBOX::REQ != 0 {
                    self.answer(core, number);
                }
                if core.virtual_functions[number].news {
                    self.tell_change(core, number);
                }
            }
            _ => {}
        }
        self.interrupt_virtual(core, number);
    }

    /// Returns the physical function's offset of a virtual function's queue register.
    pub(super) fn queue_register(number: usize, offset: u32) -> Option<u32> {
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

    /// Resets a virtual function: its queues stop, and its driver has to set everything up anew.
    pub(super) fn reset_virtual(&self, core: &mut Core, number: usize) {
        let first = Self::first_queue(number);
        for queue in first..first + QUEUES_EACH {
            core.rx[queue as usize].disable();
            core.tx[queue as usize].disable();
            core.receive.forget(Direction::Receive, queue);
            core.transmit.forget(queue);
            self.board.registers.reset_queue(queue);
        }
        let old = &core.virtual_functions[number];
        let (dma, bus_master) = (old.dma.clone(), old.bus_master);
        // Its counters wrap, and are never cleared (section 8.3.5.8).
        let (received, sent) = (old.received, old.sent);
        let new = VirtualFunction { dma, bus_master, received, sent, ..VirtualFunction::new(self.virtual_mac(number)) };
        core.virtual_functions[number] = new;
    }

    /// Returns the initial address of a virtual function.
    pub(super) fn virtual_mac(&self, number: usize) -> MacAddress {
        super::address_of(&format!("{} {number}", self.board.name))
    }

    /// Answers a message as the physical function's driver would.
    fn answer(&self, core: &mut Core, number: usize) {
        let function = &mut core.virtual_functions[number];
        let [kind, first, second, ..] = function.message;
        let mac = MacAddress::from_words(first, second);
        let info = (kind >> message::INFO_SHIFT & 0xFF) as usize;
        let is_unicast = |mac: MacAddress| mac.0[0] & 1 == 0 && mac.0 != [0; 6];
        let done = match kind & 0xFFFF {
            message::RESET => {
                *function = VirtualFunction {
                    dma: function.dma.clone(),
                    bus_master: function.bus_master,
                    clear_to_send: true,
                    // The driver's settings stay.
                    masks: function.masks,
                    auto_clear: function.auto_clear,
                    auto_mask: function.auto_mask,
                    allocation: function.allocation,
                    misc_allocation: function.misc_allocation,
                    received: function.received,
                    sent: function.sent,
                    ..VirtualFunction::new(function.mac)
                };
                (function.message[1], function.message[2]) = function.mac.words();
                function.message[3] = 0; // multicast addresses are hashed by bits 47 to 36
                // Without "clear to send" yet.
                function.message[0] = message::RESET | message::SUCCESS;
                function.mailbox |= VFMAILBOX::PFSTS | VFMAILBOX::PFACK;
                return self.tell(core, number);
            }
            _ if !function.clear_to_send => false,
            message::SET_ADDRESS => {
                if is_unicast(mac) {
                    function.mac = mac;
                }
                is_unicast(mac)
            }
            message::SET_MULTICAST => {
                let words = function.message[1..].iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
                function.multicast = words.take(info.min(30)).map(|hash| hash & 0xFFF).collect();
                true
            }
            message::SET_VLAN => {
                let vlan = first as u16 & 0xFFF;
                function.vlans.retain(|known| *known != vlan);
                if info != 0 {
                    function.vlans.push(vlan);
                }
                true
            }
            message::SET_LENGTH => (64..=9728).contains(&first),
            message::SET_MORE_ADDRESSES => {
                // Index 0 removes them all.
                match info {
                    0 => function.more_addresses.clear(),
                    _ if is_unicast(mac) && function.more_addresses.len() < 16 => function.more_addresses.push(mac),
                    _ => {}
                }
                info == 0 || is_unicast(mac)
            }
            message::NEGOTIATE => first <= message::NEWEST,
            message::GET_QUEUES => {
                function.message[1] = QUEUES_EACH.into();
                function.message[2] = QUEUES_EACH.into();
                function.message[3] = 0;
                function.message[4] = 0;
                true
            }
            message::UPDATE_MODE => {
                function.all_multicast = first >= 2;
                function.promiscuous = first >= 3;
                first <= 3
            }
            _ => false,
        };
        let outcome = if done { message::SUCCESS } else { message::FAILURE };
        let clear = if function.clear_to_send { message::CLEAR_TO_SEND } else { 0 };
        function.message[0] = kind | outcome | clear;
        function.mailbox |= VFMAILBOX::PFSTS | VFMAILBOX::PFACK;
        self.tell(core, number);
    }

    /// Notifies a virtual function's driver of a message in its mailbox.
    fn tell(&self, core: &mut Core, number: usize) {
        let function = &mut core.virtual_functions[number];
        function.unread = true;
        if function.misc_allocation & VTIVAR::VALID != 0 {
            function.causes |= 1 << (function.misc_allocation & VTIVAR::VECTOR_MASK);
        }
        self.interrupt_virtual(core, number);
    }

    /// Notifies every driver that the link has changed.
    pub(super) fn tell_all(&self, core: &mut Core) {
        for number in 0..core.virtual_functions.len() {
            if core.virtual_functions[number].clear_to_send {
                self.tell_change(core, number);
            }
        }
    }

    /// Notifies one driver of a change, but never overwrites a message that is being written or is unread. The
    /// driver would take this one for its answer, and wait for the real answer until it gives up.
    fn tell_change(&self, core: &mut Core, number: usize) {
        let function = &mut core.virtual_functions[number];
        function.news = function.unread || function.mailbox & VFMAILBOX::VFU != 0;
        if !function.news {
            function.message[0] = message::CONTROL | message::CLEAR_TO_SEND;
            function.mailbox |= VFMAILBOX::PFSTS;
            self.tell(core, number);
        }
    }

    /// Sets the cause of one of its queues.
    pub(super) fn cause_virtual(&self, core: &mut Core, number: usize, direction: Direction, queue: u16) {
        let function = &mut core.virtual_functions[number];
        let local = queue - Self::first_queue(number);
        let shift = 16 * (u32::from(local) & 1) + if direction == Direction::Transmit { 8 } else { 0 };
        let entry = function.allocation[local as usize / 2] >> shift;
        if entry & VTIVAR::VALID != 0 {
            function.causes |= 1 << (entry & VTIVAR::VECTOR_MASK);
        }
        self.interrupt_virtual(core, number);
    }

    /// Raises the causes that are set and enabled (section 7.3.4, as for the physical function).
    fn interrupt_virtual(&self, core: &mut Core, number: usize) {
        let function = &mut core.virtual_functions[number];
        function.told &= function.causes & function.masks;
        let vectors = function.causes & function.masks & !function.told;
        let dma = function.dma.clone();
        let receivers = dma.receivers();
        for vector in (0..VECTORS).filter(|vector| vectors >> vector & 1 != 0) {
            let bit = 1 << vector;
            let Some(receiver) = receivers.vector(vector as usize) else { continue };
            function.told |= bit;
            function.causes &= !(function.auto_clear & bit);
            function.masks &= !(function.auto_mask & bit);
            function.told &= function.causes & function.masks;
            receiver.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cable, Kind};
    use super::*;
    use crate::spec::x82599::TXDCTL;

    /// Linux's ixgbe disables all 128 queues when its interface goes down.
    #[test]
    fn the_physical_function_does_not_stop_queues_of_virtual_functions() {
        let card = Card::of_kind(Kind::X82599Sfp, 1, "queues", Box::new(Cable::unplugged()));
        let own = TRANSMIT + (TXDCTL::OFFSET - TDBAL::OFFSET);
        card.write_virtual(0, own, TXDCTL::ENABLE);
        (0..QUEUES).for_each(|queue| card.write(TXDCTL::at(queue), TXDCTL::SWFLSH));
        assert_eq!(card.read_virtual(0, own), TXDCTL::ENABLE);
        assert_eq!(card.breaches(), []);
    }

    /// Section 8.3.5.8: a driver continues from its last reading, also after a reset.
    #[test]
    fn a_reset_does_not_clear_the_counters() {
        let card = Card::of_kind(Kind::X82599Sfp, 1, "counters", Box::new(Cable::unplugged()));
        card.core().virtual_functions[0].count_sent(100);
        card.core().virtual_functions[0].count_received(60, true);
        card.write_virtual(0, VFCTRL::OFFSET, VFCTRL::RST);
        card.write_virtual(0, VFMBMEM::OFFSET, message::RESET);
        card.write_virtual(0, VFMAILBOX::OFFSET, VFMAILBOX::REQ);
        let counters = [VFGPTC::OFFSET, VFGOTC_LSB::OFFSET, VFGPRC::OFFSET, VFGORC_LSB::OFFSET, VFMPRC::OFFSET];
        assert_eq!(counters.map(|counter| card.read_virtual(0, counter)), [1, 100, 1, 60, 1]);
    }
}
