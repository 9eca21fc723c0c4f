//! The card's filters by address and VLAN: its modes, and its tables.

use linerate_core::port::MacAddress;
use linerate_spec::x82599::RAH;

use super::PhysicalFunction;
use super::hardware::Hardware;
use crate::nic::filters::Filters;
use crate::pci::Bar;

impl<B: Bar, C: PhysicalFunction> Hardware<B, C> {
    /// Writes the differences between `present`, the state of the card, and `wanted`. No packet is lost that both accept.
    pub(super) fn write_filters(&self, present: &Filters, wanted: &Filters) {
        if present.modes() != wanted.modes() {
            let [unicast, multicast] = wanted.modes();
            C::set_promiscuous(self, unicast, multicast);
        }

        let entries = present.unicast.len().max(wanted.unicast.len());
        for entry in 0..entries {
            let of = |filters: &Filters| filters.unicast.get(entry).copied().flatten();
            let number = entry as u16 + 1;
            match (of(present), of(wanted)) {
                (present, wanted) if present == wanted => {}
                // An entry is invalid while one half of its address is that of another address.
                (Some(_), wanted) => {
                    self.write(C::address_registers(number).1, 0);
                    wanted.into_iter().for_each(|address| self.write_address(number, address));
                }
                (None, wanted) => wanted.into_iter().for_each(|address| self.write_address(number, address)),
            }
        }

        let is_used = |filters: &Filters| !filters.multicast.is_empty();
        self.write_table(C::multicast_register, present.multicast_table(), wanted.multicast_table());
        if is_used(present) != is_used(wanted) {
            C::use_multicast_table(self, is_used(wanted));
        }

        // An empty table would drop all packets with a tag.
        if present.vlans.is_some() && wanted.vlans.is_none() {
            C::use_vlan_table(self, false);
        }
        self.write_table(C::vlan_register, present.vlan_table(), wanted.vlan_table());
        if present.vlans.is_none() && wanted.vlans.is_some() {
            C::use_vlan_table(self, true);
        }
    }

    /// Writes an entry of the table of unicast addresses. The valid bit (AV) is the same on all cards.
    pub(super) fn write_address(&self, entry: u16, address: MacAddress) {
        let ((low, high), (first, last)) = (C::address_registers(entry), address.words());
        self.write(low, first);
        self.write(high, last | RAH::AV);
    }

    fn write_table(&self, register: fn(u16) -> linerate_spec::Register, present: [u32; 128], wanted: [u32; 128]) {
        for (number, (present, wanted)) in present.into_iter().zip(wanted).enumerate() {
            if present != wanted {
                self.write(register(number as u16), wanted);
            }
        }
    }
}
