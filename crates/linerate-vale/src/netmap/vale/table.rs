//! Maps each address to the port where it was last seen.
//!
//! An entry is a single word, so threads need no lock: 48 bits of address, the port, and the time. An address can be
//! stored in any of four entries, which share half a cache line. A fifth address replaces the least recently seen.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use nix::time::{ClockId, clock_gettime};

/// 4,096 entries; VALE's table has 1,024.
const BUCKETS: usize = 1024;
const WAYS: usize = 4;
/// Seconds per tick. Ticks wrap at 256.
const TICK: i64 = 4;
/// Ticks after which an address is forgotten: 300 seconds, as in IEEE 802.1D.
const MAX_AGE: u8 = 75;

/// An address as a number below 2^48, in the byte order of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(u64);

impl Address {
    /// Returns the destination and source address of a frame.
    #[inline(always)]
    pub fn of(header: &[u8; 12]) -> (Address, Address) {
        // Two 8-byte loads that overlap.
        let (Some(first), Some(last)) = (header.first_chunk(), header.last_chunk()) else { unreachable!("12 bytes") };
        (Address(u64::from_le_bytes(*first) & 0xFFFF_FFFF_FFFF), Address(u64::from_le_bytes(*last) >> 16))
    }

    /// Returns whether this is a multicast address; broadcast is one too.
    #[inline(always)]
    pub fn is_multicast(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns the index of the address's first possible entry.
    #[inline(always)]
    fn bucket(self) -> usize {
        (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BUCKETS.ilog2())) as usize * WAYS
    }
}

/// The addresses that a switch has learned.
pub struct Table {
    entries: Box<[AtomicU64]>,
    /// The time of the last sweep.
    swept: AtomicU8,
}

const PORT: u32 = 48;
const TIME: u32 = 56;

fn age(entry: u64, now: u8) -> u8 {
    now.wrapping_sub((entry >> TIME) as u8)
}

impl Table {
    pub fn new() -> Table {
        Table { entries: (0..BUCKETS * WAYS).map(|_| AtomicU64::new(0)).collect(), swept: AtomicU8::new(0) }
    }

    /// Returns the time in ticks, and removes old entries once per tick.
    pub fn now(&self) -> u8 {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, |time| (time.tv_sec() / TICK) as u8);
        if self.swept.load(Relaxed) != now {
            self.sweep(now);
        }
        now
    }

    /// Removes old entries. Ticks wrap at 256, so an entry that is never swept would seem new again.
    #[cold]
    pub fn sweep(&self, now: u8) {
        self.swept.store(now, Relaxed);
        for entry in &self.entries {
            let value = entry.load(Relaxed);
            if value != 0 && age(value, now) > MAX_AGE {
                // The exchange fails if the address was seen in the meantime, which is intended.
                let _ = entry.compare_exchange(value, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Forgets the addresses of a port.
    pub fn forget(&self, port: u8) {
        for entry in &self.entries {
            let value = entry.load(Relaxed);
            if value != 0 && (value >> PORT) as u8 == port {
                let _ = entry.compare_exchange(value, 0, Relaxed, Relaxed);
            }
        }
    }

    #[inline(always)]
    fn candidates(&self, address: Address) -> &[AtomicU64; WAYS] {
        self.entries[address.bucket()..].first_chunk().expect("a bucket is whole")
    }

    /// Returns the port of an address.
    #[inline(always)]
    pub fn find(&self, address: Address) -> Option<u8> {
        let same = |entry: &AtomicU64| {
            let value = entry.load(Relaxed);
            (value != 0 && (value ^ address.0) << 16 == 0).then_some((value >> PORT) as u8)
        };
        self.candidates(address).iter().find_map(same)
    }

    /// Records that an address was seen at a port.
    #[inline(always)]
    pub fn learn(&self, address: Address, port: u8, now: u8) {
        let value = address.0 | u64::from(port) << PORT | u64::from(now) << TIME;
        let candidates = self.candidates(address);
        for entry in candidates {
            let there = entry.load(Relaxed);
            if (there ^ address.0) << 16 == 0 && there != 0 {
                // Usually the entry does not change, and the cache line stays shared.
                if there != value {
                    entry.store(value, Relaxed);
                }
                return;
            }
        }
        self.learn_new(candidates, value, now);
    }

    #[cold]
    fn learn_new(&self, candidates: &[AtomicU64; WAYS], value: u64, now: u8) {
        // The address zero at port 0 at time 0 would look like an empty entry, but no host has that address.
        let oldest = candidates.iter().max_by_key(|entry| match entry.load(Relaxed) {
            0 => 256,
            there => u16::from(age(there, now)),
        });
        oldest.expect("there are four").store(value, Relaxed);
    }

    /// Returns the number of known addresses.
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.load(Relaxed) != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u64) -> Address {
        Address(n << 1 & 0xFFFF_FFFF_FFFF)
    }

    #[test]
    fn addresses_are_read_from_a_frame() {
        let mut header = [0; 12];
        header[..6].copy_from_slice(&[0xFF; 6]);
        header[6..].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let (to, from) = Address::of(&header);
        assert!(to.is_multicast() && !from.is_multicast());
        assert_eq!((to.0, from.0), (0xFFFF_FFFF_FFFF, 0x0900_0000_0002));
    }

    #[test]
    fn a_host_that_moves_is_found_where_it_is() {
        let table = Table::new();
        assert_eq!(table.find(address(7)), None);
        table.learn(address(7), 3, 10);
        assert_eq!(table.find(address(7)), Some(3));
        table.learn(address(7), 200, 10);
        assert_eq!((table.find(address(7)), table.find(address(8)), table.len()), (Some(200), None, 1));
        table.forget(3);
        assert_eq!(table.len(), 1);
        table.forget(200);
        assert_eq!(table.find(address(7)), None);
    }

    #[test]
    fn old_addresses_are_forgotten_also_when_the_time_wraps() {
        let table = Table::new();
        table.learn(address(1), 1, 250);
        table.learn(address(2), 2, 251);
        table.sweep(69);
        assert_eq!((table.find(address(1)), table.find(address(2))), (Some(1), Some(2)));
        table.sweep(70);
        assert_eq!((table.find(address(1)), table.find(address(2))), (None, Some(2)));
        table.learn(address(2), 2, 70);
        table.sweep(100);
        assert_eq!(table.find(address(2)), Some(2), "it was seen again");
    }

    #[test]
    fn a_full_table_forgets_the_oldest() {
        let table = Table::new();
        // Addresses of one bucket.
        let bucket = address(1).bucket();
        let mut same = (1..).map(address).filter(|address| address.bucket() == bucket);
        for (now, one) in same.by_ref().take(WAYS).enumerate() {
            table.learn(one, 1, now as u8);
        }
        table.learn(address(1), 1, 9);
        let new = same.next().unwrap();
        table.learn(new, 1, 10);
        assert_eq!((table.find(new), table.find(address(1)), table.len()), (Some(1), Some(1), WAYS));
        // With more addresses than entries, nearly all entries fill up, and the last address is always found.
        for n in 0..100_000 {
            table.learn(address(n), 5, 10);
            assert!(n == 0 || table.find(address(n)) == Some(5));
        }
        assert!(table.len() > BUCKETS * WAYS * 9 / 10);
    }
}
