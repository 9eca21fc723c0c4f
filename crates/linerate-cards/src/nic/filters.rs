//! The filters of received packets by address and VLAN that a program has chosen. A driver writes them again after each
//! reset of its card.

use std::collections::BTreeSet;

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::port::MacAddress;

/// The highest VLAN id (IEEE 802.1Q, table 9-2).
pub(super) const HIGHEST_VLAN: u16 = 4094;

/// The filters of a card. [`Filters::default`] is the state after a reset of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters {
    /// All packets are received, except packets of other VLANs.
    pub promiscuous: bool,
    /// All multicast packets are received.
    pub all_multicast: bool,
    /// The unicast addresses beside the card's own, each at its entry in the card's table. Entries may be free.
    pub unicast: Vec<Option<MacAddress>>,
    /// The multicast addresses.
    pub multicast: Vec<MacAddress>,
    /// The ids of the received VLANs; `None` for all.
    pub vlans: Option<BTreeSet<u16>>,
}

impl Filters {
    /// Returns whether all unicast packets are received, and all multicast packets.
    pub fn modes(&self) -> [bool; 2] {
        [self.promiscuous, self.promiscuous || self.all_multicast]
    }

    /// Returns the filters with other addresses: at most `most` unicast addresses, and at most `most_groups` multicast
    /// addresses. An address that was received before keeps its entry, so the card never stops receiving its packets.
    ///
    /// # Errors
    /// An address is zero, or there are too many.
    pub fn with_addresses(
        &self,
        port: &str,
        addresses: &[MacAddress],
        most: usize,
        most_groups: usize,
    ) -> Result<Filters> {
        if addresses.contains(&MacAddress::default()) {
            let why = "00:00:00:00:00:00 is not an address that packets can be sent to";
            return Err(Error::new(ErrorKind::BadOption, port, why));
        }
        let mut unicast: Vec<MacAddress> = Vec::new();
        let mut multicast: Vec<MacAddress> = Vec::new();
        // Broadcast packets are always received.
        for &address in addresses.iter().filter(|address| **address != MacAddress::BROADCAST) {
            let list = if address.is_group() { &mut multicast } else { &mut unicast };
            if !list.contains(&address) {
                list.push(address);
            }
        }
        if unicast.len() > most {
            let why = format!("it can filter {most} unicast addresses beside its own, and {} are given", unicast.len());
            return Err(Error::new(ErrorKind::Exhausted, port, why));
        }
        if multicast.len() > most_groups {
            let why = format!("it can filter {most_groups} multicast addresses, and {} are given", multicast.len());
            return Err(Error::new(ErrorKind::Exhausted, port, why));
        }
        let mut added = unicast.iter().copied().filter(|address| !self.unicast.contains(&Some(*address)));
        let kept = |entry: &Option<MacAddress>| entry.filter(|address| unicast.contains(address));
        let mut entries: Vec<_> = self.unicast.iter().map(|entry| kept(entry).or_else(|| added.next())).collect();
        entries.extend(added.map(Some));
        Ok(Filters { unicast: entries, multicast, ..self.clone() })
    }

    /// Returns the filters with other VLANs.
    ///
    /// # Errors
    /// An id is above 4094.
    pub fn with_vlans(&self, port: &str, vlans: Option<&[u16]>) -> Result<Filters> {
        if let Some(id) = vlans.into_iter().flatten().find(|id| **id > HIGHEST_VLAN) {
            let why = format!("VLAN id {id} is not possible: 0 to {HIGHEST_VLAN}");
            return Err(Error::new(ErrorKind::BadOption, port, why));
        }
        Ok(Filters { vlans: vlans.map(|ids| ids.iter().copied().collect()), ..self.clone() })
    }

    /// Returns an Intel card's multicast table: one bit for each hash of an address, which is its 12 highest bits
    /// (82599 section 8.2.3.7.3, 82576 section 8.10.17).
    pub fn multicast_table(&self) -> [u32; 128] {
        table(self.multicast_hashes())
    }

    /// Returns these hashes.
    pub fn multicast_hashes(&self) -> impl ExactSizeIterator<Item = u16> {
        self.multicast.iter().map(|MacAddress([.., high, highest])| u16::from_le_bytes([*high, *highest]) >> 4)
    }

    /// Returns an Intel card's table of VLANs: one bit for each id (82599 section 8.2.3.7.11, 82576 section 8.10.20).
    pub fn vlan_table(&self) -> [u32; 128] {
        table(self.vlans.iter().flatten().copied())
    }
}

/// Returns a table of 4096 bits.
fn table(bits: impl Iterator<Item = u16>) -> [u32; 128] {
    let mut words = [0; 128];
    bits.for_each(|bit| words[usize::from(bit / 32)] |= 1 << (bit % 32));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn addresses_keep_their_entries() {
        let with = |filters: &Filters, list: &[u8]| {
            filters.with_addresses("card", &list.iter().copied().map(address).collect::<Vec<_>>(), 3, 9).unwrap()
        };
        let entries = |list: &[u8]| list.iter().map(|&n| (n > 0).then(|| address(n))).collect::<Vec<_>>();
        let first = with(&Filters::default(), &[1, 2, 2, 3]);
        assert_eq!(first.unicast, entries(&[1, 2, 3]));
        let second = with(&first, &[3, 4]);
        assert_eq!(second.unicast, entries(&[4, 0, 3]));
        assert_eq!(with(&second, &[5, 6, 3]).unicast, entries(&[5, 6, 3]));
    }

    #[test]
    fn impossible_filters_are_refused() {
        let filters = Filters::default();
        let all: Vec<MacAddress> = (1..=4).map(address).collect();
        let error = filters.with_addresses("card", &all, 3, 9).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Exhausted && error.why().contains("3 unicast") && error.why().contains("4 are")
        );
        let group = MacAddress([1, 0, 0x5E, 0, 0xAB, 0xCD]);
        let filters =
            filters.with_addresses("card", &[&all[..3], &[group, MacAddress::BROADCAST]].concat(), 3, 1).unwrap();
        assert_eq!(filters.multicast, [group]);
        assert_eq!(filters.multicast_table()[0xCDA / 32], 1 << (0xCDA % 32));
        assert!(filters.with_addresses("card", &[MacAddress::default()], 3, 9).is_err());
        assert!(filters.with_vlans("card", Some(&[1, 4095])).unwrap_err().why().contains("4095"));
        assert!(filters.with_vlans("card", Some(&[0, 4094])).is_ok());
    }
}
