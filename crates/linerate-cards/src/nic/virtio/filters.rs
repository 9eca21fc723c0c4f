//! The device's filters of received packets, which commands on the control queue set (5.1.6.5).

use std::collections::BTreeSet;

use linerate_core::error::{Error, Result};
use linerate_core::port::MacAddress;
use linerate_spec::virtio::{control as command, feature};

use super::hardware::{Hardware, State};
use crate::nic::filters::{Filters, HIGHEST_VLAN};

/// The most unicast addresses, and the most multicast addresses: as many as a command has room for. A device with fewer
/// entries receives more than it was asked to (5.1.6.5.2).
const MOST_ADDRESSES: usize = 128;

impl Hardware {
    /// Sets promiscuous mode. A device without `CTRL_RX` is always promiscuous (5.1.6.5.1).
    pub fn set_promiscuous(&self, on: bool) -> Result<()> {
        self.change_filters(|filters| Ok(Filters { promiscuous: on, ..filters.clone() }))
    }

    /// Sets whether all multicast packets are received.
    pub fn set_all_multicast(&self, on: bool) -> Result<()> {
        self.change_filters(|filters| Ok(Filters { all_multicast: on, ..filters.clone() }))
    }

    /// Sets the addresses that are received beside the device's own.
    pub fn set_addresses(&self, addresses: &[MacAddress]) -> Result<()> {
        let name = &self.config.name;
        self.change_filters(|filters| filters.with_addresses(name, addresses, MOST_ADDRESSES, MOST_ADDRESSES))
    }

    /// Sets the VLANs that are received; `None` for all.
    pub fn set_vlans(&self, vlans: Option<&[u16]>) -> Result<()> {
        if vlans.is_some() && self.features & feature::CTRL_VLAN == 0 {
            let why = "the device has no command for it, and receives all";
            return Err(Error::unsupported(&self.config.name, "filter of VLANs", why));
        }
        self.change_filters(|filters| filters.with_vlans(&self.config.name, vlans))
    }

    /// Changes the filters, or none of them if the device rejects a command.
    fn change_filters(&self, change: impl FnOnce(&Filters) -> Result<Filters>) -> Result<()> {
        let mut state = self.state();
        let wanted = change(&state.filters)?;
        let present = std::mem::replace(&mut state.filters, wanted);
        self.write_filters(&mut state, &present).inspect_err(|_| {
            let wanted = std::mem::replace(&mut state.filters, present);
            let _ = self.write_filters(&mut state, &wanted);
        })
    }

    /// Writes the filters to a device that was reset.
    pub(super) fn restore_filters(&self, state: &mut State) -> Result<()> {
        state.known_vlans.clear();
        // Its modes are set in any case: a device starts promiscuous, but not with all multicast packets.
        let Filters { promiscuous, all_multicast, .. } = state.filters;
        let others = Filters { promiscuous: !promiscuous, all_multicast: !all_multicast, ..Filters::default() };
        self.write_filters(state, &others)
    }

    /// Writes the differences to `present`, the state of the device.
    fn write_filters(&self, state: &mut State, present: &Filters) -> Result<()> {
        let wanted = state.filters.clone();
        if self.features & feature::CTRL_RX == 0 {
            return match wanted.promiscuous {
                true => Ok(()),
                false => {
                    let why = "the device has no command for it, and is always promiscuous";
                    Err(Error::unsupported(&self.config.name, "promiscuous mode", why))
                }
            };
        }
        let addresses = |filters: &Filters| -> [Vec<MacAddress>; 2] {
            [filters.unicast.iter().copied().flatten().collect(), filters.multicast.clone()]
        };
        if addresses(&wanted) != addresses(present) {
            let mut data = Vec::new();
            for list in addresses(&wanted) {
                data.extend((list.len() as u32).to_le_bytes());
                data.extend(list.iter().flat_map(|address| address.0));
            }
            self.command(command::MAC_TABLE_SET, &data, "filter of addresses")?;
        }
        let vlans = self.vlans_to_know(state);
        // Before promiscuous mode ends, the device must know all VLANs.
        for id in vlans.difference(&state.known_vlans).copied().collect::<Vec<_>>() {
            self.command(command::VLAN_ADD, &id.to_le_bytes(), "filter of VLANs")?;
            state.known_vlans.insert(id);
        }
        if wanted.modes() != present.modes() {
            let [promiscuous, multicast] = wanted.modes().map(u8::from);
            self.command(command::RX_PROMISC, &[promiscuous], "promiscuous mode")?;
            self.command(command::RX_ALLMULTI, &[multicast], "all multicast")?;
        }
        for id in state.known_vlans.difference(&vlans).copied().collect::<Vec<_>>() {
            self.command(command::VLAN_DEL, &id.to_le_bytes(), "filter of VLANs")?;
            state.known_vlans.remove(&id);
        }
        Ok(())
    }

    /// Returns the VLANs that the device must know. A device with the feature knows none at first, and drops the packets
    /// of the others. In promiscuous mode it receives all, so if all are wanted, it need not know them.
    fn vlans_to_know(&self, state: &State) -> BTreeSet<u16> {
        match &state.filters.vlans {
            _ if self.features & feature::CTRL_VLAN == 0 => BTreeSet::new(),
            Some(vlans) => vlans.clone(),
            None if state.filters.promiscuous => state.known_vlans.clone(),
            None => (0..=HIGHEST_VLAN).collect(),
        }
    }
}
