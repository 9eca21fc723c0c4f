//! The card's address and VLAN filters.

use linerate_spec::x82599::{FCTRL, MCSTCTRL, MTA, RAH, RAL, VFTA, VLNCTRL};

use super::registers::Registers;

/// Returns whether a frame's destination address is accepted (section 7.1.1.1).
pub(super) fn accepts(registers: &Registers, destination: [u8; 6]) -> bool {
    let filter = registers.get(FCTRL::OFFSET);
    let multicast = destination[0] & 1 != 0;
    if destination == [0xFF; 6] {
        return filter & (FCTRL::BAM | FCTRL::MPE) != 0;
    }
    if filter & if multicast { FCTRL::MPE } else { FCTRL::UPE } != 0 || is_own(registers, destination) {
        return true;
    }
    let control = registers.get(MCSTCTRL::OFFSET);
    multicast && control & MCSTCTRL::MFE != 0 && {
        let hash = multicast_hash(destination, control & MCSTCTRL::MO_MASK);
        registers.get(MTA::at(hash >> 5)) >> (hash & 31) & 1 != 0
    }
}

/// Returns whether the address equals one of the receive addresses.
pub(super) fn is_own(registers: &Registers, mac: [u8; 6]) -> bool {
    let low = u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]);
    let high = u16::from_le_bytes([mac[4], mac[5]]) as u32;
    (0..128).any(|n| {
        let entry = registers.get(RAH::at(n));
        entry & RAH::AV != 0 && entry & 0xFFFF == high && registers.get(RAL::at(n)) == low
    })
}

/// Returns the 12 bits of the address that select a bit of the multicast table, by `MCSTCTRL.MO` (section
/// 8.2.3.7.3: bits 47:36, 46:35, 45:34 or 43:32 of the address).
pub(super) fn multicast_hash(mac: [u8; 6], offset: u32) -> u16 {
    let top = u16::from_le_bytes([mac[4], mac[5]]);
    (top >> [4, 3, 2, 0][offset as usize & 3]) & 0xFFF
}

/// Returns whether a frame's VLAN is accepted (section 7.4.4). Frames without a tag always are.
pub(super) fn accepts_vlan(registers: &Registers, tag: Option<u16>) -> bool {
    let control = registers.get(VLNCTRL::OFFSET);
    let Some(tag) = tag.filter(|_| control & VLNCTRL::VFE != 0) else { return true };
    let canonical = control & VLNCTRL::CFIEN == 0 || (tag >> 12 & 1 != 0) == (control & VLNCTRL::CFI != 0);
    let vlan = tag & 0xFFF;
    canonical && registers.get(VFTA::at(vlan >> 5)) >> (vlan & 31) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_broadcast_multicast_and_promiscuous() {
        let registers = Registers::new();
        let own = [2, 0, 0, 0, 0, 7];
        assert!(!accepts(&registers, own));
        registers.set(RAL::at(3), 0x0000_0002);
        registers.set(RAH::at(3), 0x0700 | RAH::AV);
        assert!(accepts(&registers, own));
        assert!(!accepts(&registers, [2, 0, 0, 0, 0, 8]));
        assert!(!accepts(&registers, [0xFF; 6]));
        registers.set(FCTRL::OFFSET, FCTRL::BAM);
        assert!(accepts(&registers, [0xFF; 6]));

        let group = [0x01, 0, 0x5E, 0, 0xAB, 0xCD];
        assert!(!accepts(&registers, group));
        registers.set(MCSTCTRL::OFFSET, MCSTCTRL::MFE);
        let hash = 0xCDA;
        assert_eq!(multicast_hash(group, 0), hash);
        registers.set(MTA::at(hash >> 5), 1 << (hash & 31));
        assert!(accepts(&registers, group));

        registers.set(FCTRL::OFFSET, FCTRL::UPE);
        assert!(accepts(&registers, [2, 0, 0, 0, 0, 8]));
        assert!(!accepts(&registers, [0x01, 0, 0x5E, 0, 0, 1]));
    }

    #[test]
    fn vlans_are_let_in_by_the_table() {
        let registers = Registers::new();
        assert!(accepts_vlan(&registers, Some(77)));
        registers.set(VLNCTRL::OFFSET, 0x8100 | VLNCTRL::VFE);
        assert!(!accepts_vlan(&registers, Some(77)) && accepts_vlan(&registers, None));
        registers.set(VFTA::at(2), 1 << 13);
        assert!(accepts_vlan(&registers, Some(77)) && accepts_vlan(&registers, Some(0xE000 | 77)));
        assert!(!accepts_vlan(&registers, Some(78)));
    }
}
