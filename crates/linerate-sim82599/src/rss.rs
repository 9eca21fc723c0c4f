//! The Toeplitz hash of receive-side scaling (section 7.1.2.8).

use linerate_spec::Register;
use linerate_spec::x82599::*;

use super::CardKind;
use super::board::Board;
use super::headers::Headers;

/// The RSS hash of a card.
#[derive(Default)]
pub(super) struct Rss {
    /// The key in `RSSRK`, expanded on first use.
    key: Option<Toeplitz>,
}

impl Rss {
    /// Writes the key.
    pub fn write(&mut self, board: &Board, register: Register, value: u32) {
        board.registers.write(register, value);
        self.key_changed();
    }

    /// Drops the expanded key after the registers have changed.
    pub fn key_changed(&mut self) {
        self.key = None;
    }

    /// Returns the RSS type, and the hash (section 7.1.2.8); `None` if no enabled field fits.
    pub fn hash(&mut self, Board { registers, .. }: &Board, frame: &[u8], headers: &Headers) -> Option<(u64, u32)> {
        let (kind, input, len) = headers.hash_input(frame, registers.get(MRQC::OFFSET))?;
        let toeplitz = self.key.get_or_insert_with(|| {
            let mut key = [0; 40];
            for (n, bytes) in key.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&registers.get(RSSRK::at(n as u16)).to_le_bytes());
            }
            Toeplitz::new(&key)
        });
        Some((kind, toeplitz.hash(&input[..len])))
    }

    /// Returns a hash's queue in the redirection table. The table has 128 entries of 4 bits (section 8.2.3.7.15), or on
    /// an X550 512 entries of 6 bits.
    pub fn redirection(board: &Board, hash: u32) -> u16 {
        let (entries, bits) = if board.kind == CardKind::X550 { (512, 0x3F) } else { (128, 0xF) };
        let entry = hash as u16 % entries;
        let register = if entry < 128 { RETA::at(entry / 4) } else { ERETA::at(entry / 4 - 32) };
        (board.registers.get(register) >> (entry % 4 * 8)) as u16 & bits
    }
}

/// A key, expanded so that hashing needs one table lookup per byte of input.
pub(super) struct Toeplitz {
    /// `table[i][b]`: the contribution of byte `b` at position `i` to the hash.
    table: Box<[[u32; 256]]>,
}

/// The longest input: IPv6 addresses and ports.
const LONGEST: usize = 36;

impl Toeplitz {
    pub fn new(key: &[u8; 40]) -> Toeplitz {
        // The 32 bits of the key that begin at bit `bit`.
        let window = |bit: usize| -> u32 {
            let bytes: [u8; 8] = std::array::from_fn(|i| key.get(bit / 8 + i).copied().unwrap_or(0));
            (u64::from_be_bytes(bytes) << (bit % 8) >> 32) as u32
        };
        let entry = |position: usize, byte: usize| -> u32 {
            (0..8).filter(|bit| byte & (0x80 >> bit) != 0).fold(0, |hash, bit| hash ^ window(position * 8 + bit))
        };
        Toeplitz { table: (0..LONGEST).map(|position| std::array::from_fn(|byte| entry(position, byte))).collect() }
    }

    /// Returns the hash of the first 36 bytes of `input`.
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.table.iter().zip(input).fold(0, |hash, (entries, &byte)| hash ^ entries[byte as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use linerate_core::port::Rss;

    use super::*;

    /// Microsoft's "Verifying the RSS Hash Calculation": destination and source with ports, hash over addresses, hash
    /// including ports.
    #[test]
    fn agrees_with_microsofts_published_vectors() {
        let toeplitz = Toeplitz::new(&Rss::DEFAULT_KEY);
        let v4 = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2),
        ];
        for (destination, to, source, from, addresses, ports) in v4 {
            let mut input = Vec::new();
            input.extend(source.parse::<Ipv4Addr>().unwrap().octets());
            input.extend(destination.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(toeplitz.hash(&input), addresses);
            input.extend(u16::to_be_bytes(from));
            input.extend(u16::to_be_bytes(to));
            assert_eq!(toeplitz.hash(&input), ports);
        }
        let v6 = [
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf),
            ("fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61e985, 0x02d1feef),
        ];
        for (destination, to, source, from, addresses, ports) in v6 {
            let mut input = Vec::new();
            input.extend(source.parse::<Ipv6Addr>().unwrap().octets());
            input.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!(toeplitz.hash(&input), addresses);
            input.extend(u16::to_be_bytes(from));
            input.extend(u16::to_be_bytes(to));
            assert_eq!(toeplitz.hash(&input), ports);
        }
    }
}
