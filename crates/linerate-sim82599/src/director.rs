//! Filters that choose a queue (or drop) before receive-side scaling: by ethertype, SYN, five tuples, and the flow
//! director's perfect filters (sections 7.1.2.3 to 7.1.2.7).

use linerate_spec::Register;
use linerate_spec::descriptor::receive::TYPE_ETQF;
use linerate_spec::x82599::*;

use super::headers::{Headers, SCTP, TCP, UDP};
use super::registers::Registers;

/// The flow director's filters.
#[derive(Default)]
pub(super) struct Director {
    filters: Vec<Filter>,
    /// Whether any of `ETQF`, `SYNQF`, `FTQF` or the flow director is enabled; frames are checked only then.
    pub active: bool,
}

/// A perfect filter (section 7.1.2.7.5), with the register values at the time when it was added.
struct Filter {
    /// Bucket and software index, which identify the filter.
    hash: u32,
    source: u32,
    destination: u32,
    ports: u32,
    vlan: u16,
    flex: u16,
    kind: u32,
    /// The queue; `None` if the packet's hash selects it (`FDIRCMD.QUEUE_EN` is 0).
    queue: Option<u16>,
    drops: bool,
}

/// The filters' decision on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The queue, unless receive-side scaling chooses it; bits for word 0 of the descriptor; and the name of the flow
    /// director's filter, if one matches.
    Pass(Option<u16>, u64, Option<u32>),
    Drop,
}

/// Bits of `FDIRHASH` that identify a filter: the bucket, 13 bits, and the software index, 15 bits.
const NAME: u32 = 0x7FFF_1FFF;

impl Director {
    pub fn write(&mut self, registers: &Registers, Register { offset, definition, .. }: Register, value: u32) {
        match definition.offset {
            FDIRCTRL::OFFSET => {
                // A write clears the table of filters, and completes immediately.
                registers.set(offset, value | FDIRCTRL::INIT_DONE);
                self.filters.clear();
                registers.set(FDIRFREE::OFFSET, room(value));
            }
            FDIRCMD::OFFSET => self.command(registers, value),
            _ => registers.set(offset, value),
        }
        self.active = registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::PBALLOC_MASK != 0
            || registers.get(SYNQF::OFFSET) & SYNQF::ENABLE != 0
            || (0..8).any(|n| registers.get(ETQF::at(n)) & ETQF::ENABLE != 0)
            || (0..128).any(|n| registers.get(FTQF::at(n)) & FTQF::ENABLE != 0);
    }

    /// Executes FDIRCMD immediately: adds, removes or queries a filter (section 8.2.3.21.20).
    fn command(&mut self, registers: &Registers, value: u32) {
        let name = registers.get(FDIRHASH::OFFSET) & NAME;
        let filters = &mut self.filters;
        if value & FDIRCMD::CLEARHT != 0 {
            filters.clear();
        }
        let found = filters.iter().position(|filter| filter.hash == name);
        let mut valid = 0;
        // Signature filters (7.1.2.7.4) are accepted, but match no frame.
        let perfect = registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::PERFECT_MATCH != 0;
        match value & FDIRCMD::CMD_MASK {
            FDIRCMD::CMD_ADD if perfect => {
                let vlan = registers.get(FDIRVLAN::OFFSET);
                let filter = Filter {
                    hash: name,
                    source: registers.get(FDIRIPSA::OFFSET),
                    destination: registers.get(FDIRIPDA::OFFSET),
                    ports: registers.get(FDIRPORT::OFFSET),
                    vlan: vlan as u16,
                    flex: (vlan >> FDIRVLAN::FLEX_SHIFT) as u16,
                    kind: value & (FDIRCMD::L4TYPE_MASK | FDIRCMD::IPV6),
                    queue: (value & FDIRCMD::QUEUE_EN != 0).then_some((value >> FDIRCMD::RX_QUEUE_SHIFT & 0x7F) as u16),
                    drops: value & FDIRCMD::DROP != 0,
                };
                match found {
                    Some(at) => filters[at] = filter,
                    None if filters.len() >= room(registers.get(FDIRCTRL::OFFSET)) as usize => {
                        registers.count(FDIRFSTAT::OFFSET, 1);
                    }
                    None => {
                        filters.push(filter);
                        registers.set(FDIRFREE::OFFSET, registers.get(FDIRFREE::OFFSET).saturating_sub(1));
                        registers.count(FDIRUSTAT::OFFSET, 1);
                    }
                }
            }
            FDIRCMD::CMD_REMOVE => match found {
                Some(at) => {
                    filters.remove(at);
                    registers.set(FDIRFREE::OFFSET, registers.get(FDIRFREE::OFFSET).saturating_add(1));
                    registers.count(FDIRUSTAT::OFFSET, 1 << FDIRUSTAT::REMOVE_SHIFT);
                }
                None if perfect => registers.count(FDIRFSTAT::OFFSET, 1 << FDIRFSTAT::REMOVE_SHIFT),
                None => {}
            },
            FDIRCMD::CMD_QUERY if found.is_some() => valid = FDIRCMD::VALID,
            _ => {}
        }
        registers.set(FDIRCMD::OFFSET, value & !(FDIRCMD::CMD_MASK | FDIRCMD::VALID) | valid);
    }

    /// Returns the filters' decision on a frame, in the datasheet's order (figure 7-5: ethertype, SYN or five
    /// tuples, flow director).
    pub fn direct(&self, registers: &Registers, frame: &[u8], headers: &Headers) -> Verdict {
        let by_type = |n: &u16| {
            let filter = registers.get(ETQF::at(*n));
            filter & ETQF::ENABLE != 0 && filter as u16 == headers.ethertype
        };
        if let Some(n) = (0..8).find(by_type) {
            let bits = TYPE_ETQF | u64::from(n) << 4;
            let select = registers.get(ETQS::at(n));
            let queue = (select & ETQS::ENABLE != 0).then_some((select >> ETQS::QUEUE_SHIFT & 0x7F) as u16);
            return Verdict::Pass(queue, bits, None);
        }
        let syn = registers.get(SYNQF::OFFSET);
        let is_syn = headers.protocol == TCP
            && headers.transport.and_then(|at| frame.get(at + 13)).is_some_and(|flags| flags & 0x12 == 0x02);
        let by_syn = (syn & SYNQF::ENABLE != 0 && is_syn).then_some((syn >> SYNQF::QUEUE_SHIFT & 0x7F) as u16);
        let by_tuple = five_tuple(registers, frame, headers);
        let both = if syn & SYNQF::PRIORITY != 0 { by_syn.or(by_tuple) } else { by_tuple.or(by_syn) };
        if both.is_some() {
            return Verdict::Pass(both, 0, None);
        }
        let control = registers.get(FDIRCTRL::OFFSET);
        if control & FDIRCTRL::PBALLOC_MASK == 0 || control & FDIRCTRL::PERFECT_MATCH == 0 {
            return Verdict::Pass(None, 0, None);
        }
        match self.filters.iter().find(|filter| filter.matches(registers, frame, headers)) {
            Some(filter) => {
                registers.count(FDIRMATCH::OFFSET, 1);
                match filter.drops {
                    true => Verdict::Drop,
                    false => Verdict::Pass(filter.queue, 0, Some(filter.hash)),
                }
            }
            None => {
                registers.count(FDIRMISS::OFFSET, 1);
                Verdict::Pass(None, 0, None)
            }
        }
    }
}

impl Filter {
    fn matches(&self, registers: &Registers, frame: &[u8], headers: &Headers) -> bool {
        let mask = registers.get(FDIRM::OFFSET);
        // Perfect filters cannot match IPv6 addresses.
        if !headers.is_ipv4() || self.kind & FDIRCMD::IPV6 != 0 {
            return false;
        }
        let (source, destination) = ipv4_addresses(frame, headers);
        if (source ^ self.source) & !registers.get(FDIRSIP4M::OFFSET) != 0
            || (destination ^ self.destination) & !registers.get(FDIRDIP4M::OFFSET) != 0
        {
            return false;
        }
        let protocol = match headers.protocol {
            _ if headers.transport.is_none() => 0,
            UDP => 1,
            TCP => 2,
            SCTP => 3,
            _ => 0,
        };
        if mask & FDIRM::L4P == 0 && protocol != self.kind >> FDIRCMD::L4TYPE_SHIFT & 0x3 {
            return false;
        }
        if let Some((from, to)) = headers.ports(frame) {
            let port_mask = match headers.protocol {
                TCP => registers.get(FDIRTCPM::OFFSET),
                UDP => registers.get(FDIRUDPM::OFFSET),
                _ => registers.get(FDIRSCTPM::OFFSET),
            };
            // The bits of each half are reversed (section 8.2.3.21.6).
            let ignored = u32::from(((port_mask >> 16) as u16).reverse_bits()) << 16
                | u32::from((port_mask as u16).reverse_bits());
            let ports = u32::from(to) << FDIRPORT::DESTINATION_SHIFT | u32::from(from);
            if (ports ^ self.ports) & !ignored != 0 {
                return false;
            }
        }
        let tag = headers.vlan.unwrap_or(0);
        let ignored =
            if mask & FDIRM::VLANID != 0 { 0x0FFF } else { 0 } | if mask & FDIRM::VLANP != 0 { 0xE000 } else { 0 };
        if (tag ^ self.vlan) & !(ignored | 0x1000) != 0 {
            return false;
        }
        mask & FDIRM::FLEX != 0 || {
            let at = (registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::FLEX_MASK) >> FDIRCTRL::FLEX_SHIFT;
            super::headers::word(frame, 2 * at as usize) == Some(self.flex)
        }
    }
}

/// Returns the queue of the matching five-tuple filter with the highest priority (section 7.1.2.5).
fn five_tuple(registers: &Registers, frame: &[u8], headers: &Headers) -> Option<u16> {
    if !headers.is_ipv4() || headers.fragment {
        return None;
    }
    let (source, destination) = ipv4_addresses(frame, headers);
    let (from, to) = headers.ports(frame).unwrap_or_default();
    let protocol = match headers.protocol {
        TCP => 0,
        UDP => 1,
        SCTP => 2,
        _ => 3,
    };
    let matching = (0..128u16).filter(|&n| {
        let filter = registers.get(FTQF::at(n));
        let ports = registers.get(SDPQF::at(n));
        // Registers are in network order: the first byte of an address is the lowest.
        filter & FTQF::ENABLE != 0
            && (filter & FTQF::PROTOCOL != 0 || filter & 0x3 == protocol)
            && (filter & FTQF::SOURCE != 0 || registers.get(SAQF::at(n)).swap_bytes() == source)
            && (filter & FTQF::DESTINATION != 0 || registers.get(DAQF::at(n)).swap_bytes() == destination)
            && (filter & FTQF::SOURCE_PORT != 0 || (ports as u16).swap_bytes() == from)
            && (filter & FTQF::DESTINATION_PORT != 0 || ((ports >> 16) as u16).swap_bytes() == to)
    });
    let best = matching.max_by_key(|&n| (registers.get(FTQF::at(n)) >> FTQF::PRIORITY_SHIFT & 0x7, 128 - n))?;
    Some((registers.get(L34TIMIR::at(best)) >> L34TIMIR::RX_QUEUE_SHIFT & 0x7F) as u16)
}

/// Returns the number of filters that fit into the memory allocated by FDIRCTRL: of 64 KiB, 2K - 1 perfect or 8K - 1
/// signature filters.
fn room(control: u32) -> u32 {
    let each = if control & FDIRCTRL::PERFECT_MATCH != 0 { 0x400 } else { 0x1000 };
    match control & FDIRCTRL::PBALLOC_MASK {
        0 => 0,
        memory => (each << memory) - 1,
    }
}

fn ipv4_addresses(frame: &[u8], headers: &Headers) -> (u32, u32) {
    match headers.addresses(frame) {
        &[a, b, c, d, e, f, g, h] => (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Card, from_fn};

    /// Adds a filter for each number in `names`; `more` has further bits of FDIRCMD.
    fn add(card: &Card, names: std::ops::Range<u32>, more: u32) {
        for name in names {
            card.write(FDIRHASH::OFFSET, name & 0x1FFF | (name >> 13) << FDIRHASH::INDEX_SHIFT);
            card.write(FDIRCMD::OFFSET, FDIRCMD::CMD_ADD | more);
        }
    }

    #[test]
    fn clearing_the_table_and_adding_at_once_is_adding_to_an_empty_table() {
        let card = Card::new("cleared", from_fn(|_| (), |_| false));
        card.write(FDIRCTRL::OFFSET, FDIRCTRL::PERFECT_MATCH | 1);
        add(&card, 0..3, 0);
        for command in [FDIRCMD::CMD_ADD, FDIRCMD::CMD_REMOVE, FDIRCMD::CMD_QUERY] {
            card.write(FDIRHASH::OFFSET, 2);
            card.write(FDIRCMD::OFFSET, command | FDIRCMD::CLEARHT);
        }
        assert_eq!(card.blocks().director.filters.len(), 0);
    }

    #[test]
    fn a_full_table_takes_no_more_filters() {
        let card = Card::new("full", from_fn(|_| (), |_| false));
        card.write(FDIRCTRL::OFFSET, FDIRCTRL::PERFECT_MATCH | 1);
        let most = card.register(FDIRFREE::OFFSET);
        add(&card, 0..most + 2, 0);
        assert_eq!(card.blocks().director.filters.len(), most as usize);
        assert_eq!((card.register(FDIRFREE::OFFSET), card.register(FDIRFSTAT::OFFSET)), (0, 2));
    }
}
