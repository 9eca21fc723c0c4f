//! Which frames a card accepts, and what it sees in their headers.

use super::registers::Registers;
use crate::nic::ixgbe::descriptor::receive::{TYPE_IPV4, TYPE_IPV6, TYPE_TCP, TYPE_UDP};
use crate::nic::ixgbe::registers::{FCTRL, MCSTCTRL, MRQC, MTA, RAH, RAL};

/// Whether a frame's destination address is let in (section 7.1.1.1).
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

/// An exact match with one of the receive addresses.
fn is_own(registers: &Registers, mac: [u8; 6]) -> bool {
    let low = u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]);
    let high = u16::from_le_bytes([mac[4], mac[5]]) as u32;
    (0..128).any(|n| {
        let entry = registers.get(RAH::at(n));
        entry & RAH::AV != 0 && entry & 0xFFFF == high && registers.get(RAL::at(n)) == low
    })
}

/// The 12 bits of the address that select a bit of the multicast table, by `MCSTCTRL.MO`
/// (section 8.2.3.7.3: bits 47:36, 46:35, 45:34 or 43:32 of the address).
fn multicast_hash(mac: [u8; 6], offset: u32) -> u16 {
    let top = u16::from_le_bytes([mac[4], mac[5]]);
    (top >> [4, 3, 2, 0][offset as usize & 3]) & 0xFFF
}

/// What the card sees in a frame's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headers {
    /// The bits of a receive descriptor's packet type (section 7.1.6.2).
    pub packet_type: u64,
    /// Addresses in the frame: where, and how many bytes of both together.
    addresses: (usize, usize),
    /// Source and destination port in the frame, if any.
    ports: Option<usize>,
}

impl Headers {
    /// Looks into a frame, as far as it goes; one VLAN tag is stepped over.
    pub fn parse(frame: &[u8]) -> Headers {
        Self::network(frame).unwrap_or_default()
    }

    fn network(frame: &[u8]) -> Option<Headers> {
        let ethertype = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let mut at = 14;
        let mut kind = ethertype(12)?;
        if kind == 0x8100 {
            kind = ethertype(16)?;
            at = 18;
        }
        let header = frame.get(at..)?;
        let (packet_type, addresses, protocol, transport) = match kind {
            0x0800 => {
                let length = (header.get(20 - 1).and(header.first())? & 0xF) as usize * 4;
                // A fragment other than the first has no ports.
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0;
                (TYPE_IPV4, (at + 12, 8), header[9], (!fragment).then_some(at + length))
            }
            0x86DD => (TYPE_IPV6, (at + 8, 32), *header.get(40 - 1).and(header.get(6))?, Some(at + 40)),
            _ => return None,
        };
        let kind = match protocol {
            6 => TYPE_TCP,
            17 => TYPE_UDP,
            _ => 0,
        };
        let ports = transport.filter(|&at| kind != 0 && frame.len() >= at + 4);
        let packet_type = packet_type | if ports.is_some() { kind } else { 0 };
        Some(Headers { packet_type, addresses, ports })
    }

    /// What is hashed, by the fields that `MRQC` enables: its RSS type (section 7.1.2.8.1) and
    /// bytes; `None` where no enabled field fits.
    pub fn hash_input(&self, frame: &[u8], mrqc: u32) -> Option<(u64, [u8; 36], usize)> {
        let (with_ports, kind) = match (self.packet_type & TYPE_IPV6 != 0, self.packet_type & (TYPE_TCP | TYPE_UDP)) {
            _ if self.addresses.1 == 0 => return None,
            (false, TYPE_TCP) if mrqc & MRQC::TCP_IPV4 != 0 => (true, 0x1),
            (false, TYPE_UDP) if mrqc & MRQC::UDP_IPV4 != 0 => (true, 0x7),
            (false, _) if mrqc & MRQC::IPV4 != 0 => (false, 0x2),
            (true, TYPE_TCP) if mrqc & MRQC::TCP_IPV6 != 0 => (true, 0x3),
            (true, TYPE_UDP) if mrqc & MRQC::UDP_IPV6 != 0 => (true, 0x8),
            (true, _) if mrqc & MRQC::IPV6 != 0 => (false, 0x5),
            _ => return None,
        };
        let mut input = [0; 36];
        let (start, len) = self.addresses;
        input[..len].copy_from_slice(&frame[start..start + len]);
        let mut total = len;
        if let (true, Some(ports)) = (with_ports, self.ports) {
            input[len..len + 4].copy_from_slice(&frame[ports..ports + 4]);
            total += 4;
        }
        Some((kind, input, total))
    }
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
    fn headers_of_any_bytes_do_not_panic() {
        let mut frame = [0; 100];
        for kind in [[0x08, 0x00], [0x86, 0xDD], [0x81, 0x00]] {
            frame[12..14].copy_from_slice(&kind);
            frame[16..18].copy_from_slice(&[0x08, 0x00]);
            frame[14] = 0x4F;
            frame[23] = 17;
            for len in 0..frame.len() {
                let headers = Headers::parse(&frame[..len]);
                let _ = headers.hash_input(&frame[..len], u32::MAX);
            }
        }
    }
}
