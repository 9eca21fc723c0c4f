//! Metadata of received packets: what the interface's driver knows about them.
//!
//! The program in the kernel asks the driver (kernel documentation networking/xdp-rx-metadata.rst), and stores the
//! answers in the packet's buffer, directly before its data:
//!
//! ```text
//!   byte  0      8      12          16         18    20     24         28     32
//!        | time | hash | hash kind | tag type | tag | mark | presence | seal | data
//! ```
//!
//! The seal is a random number of the port. Without it, bytes that an earlier packet left in the buffer might pass for
//! metadata if the driver has no room for any.
#![allow(unsafe_code)]

use linerate_core::batch::Batch;
use linerate_core::error::{Error, Result};
use linerate_core::filter::TAGS;
use linerate_core::memory::{Pool, View};
use linerate_core::metadata::{Hash, HashFields, Metadata};
use linerate_core::packet::{Origin, stamp};

use crate::instructions::{Assembler, If, R, Width};
use crate::interface::Interface;
use crate::{btf, netlink};

/// The length of the metadata; the maximum of kernels before 6.5 (`xdp_metalen_invalid`).
const LEN: usize = 32;
const TIME: usize = 0;
const HASH: usize = 8;
const HASH_KIND: usize = 12;
const TAG_TYPE: usize = 16;
const TAG: usize = 18;
const MARK: usize = 20;
const PRESENCE: usize = 24;
const SEAL: usize = 28;

// Bits of the presence word.
const HAS_TIME: u32 = 1 << 0;
const HAS_HASH: u32 = 1 << 1;
const HAS_TAG: u32 = 1 << 2;
/// The packet has a mark, which [`Hints::store`] finds on the stack.
pub const HAS_MARK: u32 = 1 << 3;

/// The driver's functions, in the order of the bits of `enum netdev_xdp_rx_metadata` and of the presence word. All have
/// the context as their first argument, return 0 if they have a result, and write it where the others point.
const FUNCTIONS: [&str; 3] =
    ["bpf_xdp_metadata_rx_timestamp", "bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_vlan_tag"];
const RESULTS: [(u32, &[usize]); 3] =
    [(HAS_TIME, &[TIME]), (HAS_HASH, &[HASH, HASH_KIND]), (HAS_TAG, &[TAG_TYPE, TAG])];

/// `bpf_xdp_adjust_meta`
const ADJUST_META: i32 = 54;
// `struct xdp_md`: the frame's start, and that of its metadata.
const DATA: i16 = 0;
const DATA_META: i16 = 8;

/// The driver's functions that a port's program calls for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// The numbers of [`FUNCTIONS`] in the kernel's types; `None` if the driver does not have the function.
    functions: [Option<u32>; 3],
    seal: u32,
}

impl Hints {
    /// Finds the driver's functions.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): the kernel or the driver has no metadata.
    pub fn of(interface: &Interface) -> Result<Hints> {
        let missing = |why: String, mend: &str| {
            let mend = format!("{mend}, or open it without metadata=on");
            Error::interface(interface.name(), format!("metadata=on is not possible: {why}"), mend)
        };
        let types = std::fs::read(btf::KERNEL).map_err(|error| {
            let why = format!("the kernel does not provide its types (BTF): {}: {error}", btf::KERNEL);
            missing(why, "use a kernel with CONFIG_DEBUG_INFO_BTF=y")
        })?;
        let mut functions = btf::functions(&types, FUNCTIONS);
        if functions == [None; 3] {
            let why = format!("the kernel does not have {}", FUNCTIONS.join(", "));
            return Err(missing(why, "use Linux 6.3 or newer"));
        }
        // Kernels before 6.7 do not tell what a driver has.
        let features = netlink::xdp_metadata_of(interface).unwrap_or(u64::MAX);
        for (n, function) in functions.iter_mut().enumerate() {
            function.take_if(|_| features >> n & 1 == 0);
        }
        if functions == [None; 3] {
            let why = format!("its driver, {}, does not tell programs about packets", interface.driver());
            return Err(missing(why, "use a card whose driver does (xdp-rx-metadata.rst of the kernel)"));
        }
        let mut seal = [0; 4];
        rustix::rand::getrandom(&mut seal, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::system("getrandom(2)", error))?;
        Ok(Hints { functions, seal: u32::from_ne_bytes(seal) })
    }

    /// Returns hints that ask nothing, and store only marks.
    #[cfg(test)]
    pub fn none(seal: u32) -> Hints {
        Hints { functions: [None; 3], seal }
    }

    /// Returns whether the program calls functions of the driver.
    pub fn has_functions(&self) -> bool {
        self.functions != [None; 3]
    }

    /// Returns whether packets may have a hash.
    pub fn has_hash(&self) -> bool {
        self.functions[1].is_some()
    }

    /// Assembles the code that stores a packet's metadata. Register 6 contains the context, and 9 the presence word,
    /// with `HAS_MARK` if the word at `mark` of the stack is valid. Registers 0 to 5, 7 and 9 are changed.
    pub fn store(&self, code: &mut Assembler, mark: i16) {
        const CONTEXT: R = R(6);
        const AREA: R = R(7);
        const HAS: R = R(9);
        const STACK: R = R(10);
        let without = code.label();
        code.copy(R(1), CONTEXT);
        code.set(R(2), -(LEN as i32));
        code.call(ADJUST_META);
        // The driver has no room. The packet is delivered without metadata.
        code.jump_if(If::NotEqual, R(0), 0, without);
        code.load(Width::Word, AREA, CONTEXT, DATA_META);
        code.load(Width::Word, R(1), CONTEXT, DATA);
        code.copy(R(2), AREA);
        code.add(R(2), LEN as i32);
        code.jump_if_register(If::Greater, R(2), R(1), without);
        // The time is first: igc's is in the 16 bytes before the data until the driver is asked for it.
        for (function, (bit, results)) in self.functions.iter().zip(RESULTS) {
            let Some(function) = function else { continue };
            let absent = code.label();
            code.copy(R(1), CONTEXT);
            for (register, result) in (2..).zip(results) {
                code.copy(R(register), AREA);
                code.add(R(register), *result as i32);
            }
            code.call_by_type(*function);
            code.jump_if(If::NotEqual, R(0), 0, absent);
            code.add(HAS, bit as i32);
            code.place(absent);
        }
        code.load(Width::Word, R(1), STACK, mark);
        code.store(Width::Word, AREA, MARK as i16, R(1));
        code.store(Width::Word, AREA, PRESENCE as i16, HAS);
        code.set(R(1), self.seal as i32);
        code.store(Width::Word, AREA, SEAL as i16, R(1));
        code.place(without);
    }

    /// Notes the metadata of the packets after the first `before` slots of a batch of this pool.
    pub fn note(&self, pool: &Pool, batch: &mut Batch, before: usize) {
        let region = pool.region();
        // SAFETY: used for slots of the batch, whose pool this is: for the bytes before their data, which no packet
        // contains, and for their notes. Each entry keeps its slot.
        let (memory, view, slots) = unsafe { (region.mapping(), region.view(), batch.raw_slots()) };
        let (old, new) = slots.split_at_mut(before);
        let mut other_tags = Vec::new();
        for (number, packet) in new.chunk_by_mut(|slot, _| slot.has_more()).enumerate() {
            let first = &mut packet[0];
            // The notes are at the buffer's start, before all of this.
            let Some(start) = first.offset().checked_sub(LEN).filter(|start| *start >= View::NOTES) else { continue };
            let place = ((first.buf() as usize) << region.shift()) + start;
            let mut bytes = [0; LEN];
            memory.read(place, &mut bytes);
            let Some(found) = self.parse(&bytes) else { continue };
            // Each seal is for one packet.
            memory.write(place + SEAL, &[0; 4]);
            if found.metadata != Metadata::default() {
                found.metadata.describe(first, view);
            }
            if found.time > 0 {
                stamp(first, view, found.time, Origin::Card);
            }
            other_tags.extend(found.other_tag.map(|tag| (number, tag)));
        }
        if other_tags.is_empty() {
            return;
        }
        // The program's metadata has only tags of type 0x8100. Any other tag returns to the packet.
        let old = old.iter().filter(|slot| !slot.has_more()).count();
        let mut packets = batch.packets().skip(old).enumerate();
        for (wanted, tag) in other_tags {
            if let Some((_, mut packet)) = packets.find(|(number, _)| *number == wanted)
                && let Ok(room) = packet.insert(ADDRESSES, tag.len())
            {
                room.copy_from_slice(&tag);
            }
        }
    }

    /// Parses the bytes before a packet; `None` if they are no metadata.
    fn parse(&self, bytes: &[u8; LEN]) -> Option<Found> {
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        if word(SEAL) != self.seal {
            return None;
        }
        let has = |bit: u32| word(PRESENCE) & bit != 0;
        let tag_type = u16::from_be_bytes([bytes[TAG_TYPE], bytes[TAG_TYPE + 1]]);
        let tag = u16::from_ne_bytes([bytes[TAG], bytes[TAG + 1]]);
        let (has_tag, [first, second], [high, low]) = (has(HAS_TAG), tag_type.to_be_bytes(), tag.to_be_bytes());
        let metadata = Metadata {
            hash: has(HAS_HASH).then(|| Hash { value: word(HASH), fields: fields(word(HASH_KIND)) }),
            vlan: (has_tag && tag_type == VLAN).then_some(tag),
            mark: has(HAS_MARK).then(|| word(MARK)),
            ..Metadata::default()
        };
        let time = bytes[TIME..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        Some(Found {
            metadata,
            time: if has(HAS_TIME) { time } else { 0 },
            other_tag: (has_tag && tag_type != VLAN && TAGS.contains(&tag_type)).then_some([first, second, high, low]),
        })
    }
}

/// The ethertype of the tags in [`Metadata::vlan`].
const VLAN: u16 = 0x8100;
/// The length of a frame's addresses, after which a tag follows.
const ADDRESSES: usize = 12;

/// The metadata of a packet.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    metadata: Metadata,
    /// Nanoseconds of the card's clock; 0 if it has noted none.
    time: u64,
    /// A removed tag that is not [`VLAN`], as in a frame.
    other_tag: Option<[u8; 4]>,
}

/// Returns the fields that a hash covers (`enum xdp_rss_hash_type`).
fn fields(kind: u32) -> HashFields {
    const IPV4: u32 = 1 << 0;
    const IPV6: u32 = 1 << 1;
    /// IPv4 options, or IPv6 extension headers.
    const OPTIONS: u32 = 1 << 2;
    const TRANSPORT: u32 = 1 << 3;
    const TCP: u32 = TRANSPORT | 1 << 4;
    const UDP: u32 = TRANSPORT | 1 << 5;
    match (kind & (IPV4 | IPV6), kind & !(IPV4 | IPV6 | OPTIONS)) {
        (IPV4, 0) => HashFields::Ipv4,
        (IPV4, TCP) => HashFields::TcpIpv4,
        (IPV4, UDP) => HashFields::UdpIpv4,
        (IPV6, 0) => HashFields::Ipv6,
        (IPV6, TCP) => HashFields::TcpIpv6,
        (IPV6, UDP) => HashFields::UdpIpv6,
        _ => HashFields::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};
    use proptest::prelude::*;

    use super::*;

    const OURS: Hints = Hints { functions: [None; 3], seal: 0x5EA1_5EA1 };

    fn pool() -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None }).unwrap())
    }

    /// Returns metadata of all kinds, as the program stores it.
    fn stored(presence: u32, hash_kind: u32, tag_type: u16) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[TIME..][..8].copy_from_slice(&1_700_000_000_123_456_789u64.to_ne_bytes());
        bytes[HASH..][..4].copy_from_slice(&0xABCD_1234u32.to_ne_bytes());
        bytes[HASH_KIND..][..4].copy_from_slice(&hash_kind.to_ne_bytes());
        bytes[TAG_TYPE..][..2].copy_from_slice(&tag_type.to_be_bytes());
        bytes[TAG..][..2].copy_from_slice(&0xA04Du16.to_ne_bytes());
        bytes[MARK..][..4].copy_from_slice(&7u32.to_ne_bytes());
        bytes[PRESENCE..][..4].copy_from_slice(&presence.to_ne_bytes());
        bytes[SEAL..].copy_from_slice(&OURS.seal.to_ne_bytes());
        bytes
    }

    /// Writes metadata before the last packet of a batch, which begins at slot `at`.
    fn store(pool: &Pool, batch: &Batch, at: usize, bytes: &[u8; LEN]) {
        let (first, region) = (&batch.slots()[at], pool.region());
        let place = ((first.buf() as usize) << region.shift()) + first.offset() - LEN;
        // SAFETY: the bytes are before the packet's data.
        unsafe { region.mapping() }.write(place, bytes);
    }

    const ALL: u32 = HAS_TIME | HAS_HASH | HAS_TAG | HAS_MARK;

    #[test]
    fn metadata_is_noted_once() {
        let (pool, mut batch) = (pool(), Batch::new());
        let frame: Vec<u8> = (0..60).collect();
        // An old packet, a chain, and then four packets.
        assert!(batch.push(&pool, &frame) && batch.push(&pool, &[9; 3000]));
        (0..4).for_each(|_| assert!(batch.push(&pool, &frame)));
        let at = [0, 1, 3, 4, 5, 6];
        store(&pool, &batch, at[0], &stored(ALL, 0, VLAN));
        store(&pool, &batch, at[1], &stored(ALL, 0x19, VLAN));
        store(&pool, &batch, at[2], &stored(HAS_HASH, 8, VLAN));
        store(&pool, &batch, at[3], &stored(HAS_TAG, 0, 0x88A8));
        store(&pool, &batch, at[4], &stored(HAS_TAG, 0, 0x1234));
        // The last packet has the metadata of another port.
        store(&pool, &batch, at[5], &stored(ALL, 0, VLAN).map(|byte| byte ^ 1));
        OURS.note(&pool, &mut batch, 1);
        let hash = |fields| Some(Hash { value: 0xABCD_1234, fields });
        let none = Metadata::default();
        let found: Vec<_> = batch.packets().map(|packet| (packet.metadata(), packet.timestamp())).collect();
        let all = Metadata { hash: hash(HashFields::TcpIpv4), vlan: Some(0xA04D), mark: Some(7), ..none };
        let only_hash = Metadata { hash: hash(HashFields::Unknown), ..none };
        let time = Some(1_700_000_000_123_456_789);
        assert_eq!(found, [(none, None), (all, time), (only_hash, None), (none, None), (none, None), (none, None)]);
        assert_eq!(batch.packets().nth(1).unwrap().origin(), Origin::Card);
        // A tag of another type is part of the packet again; one of an unknown type is not.
        let bytes: Vec<Vec<u8>> = batch.packets().map(|packet| packet.to_vec()).collect();
        assert_eq!(bytes[3], [&frame[..12], &[0x88, 0xA8, 0xA0, 0x4D], &frame[12..]].concat());
        assert!([0, 2, 4, 5].iter().all(|n| bytes[*n] == frame));
        // The next packet in the same buffer has no metadata.
        let first = &batch.slots()[1];
        let mut seal = [1; 4];
        let place = ((first.buf() as usize) << pool.region().shift()) + first.offset() - LEN + SEAL;
        // SAFETY: as in `store`.
        unsafe { pool.region().mapping() }.read(place, &mut seal);
        assert_eq!(seal, [0; 4]);
    }

    #[test]
    fn notes_and_metadata_do_not_overlap() {
        let (pool, mut batch) = (pool(), Batch::new());
        assert!(batch.push(&pool, &[0; 60]) && batch.push(&pool, &[0; 60]));
        for (at, offset) in [(0, View::NOTES + LEN), (1, View::NOTES + LEN - 1)] {
            // SAFETY: the entry keeps its buffer, and the bytes are inside.
            unsafe { batch.raw_slots()[at].set_data(offset, 60) };
            store(&pool, &batch, at, &stored(ALL, 0, VLAN));
        }
        OURS.note(&pool, &mut batch, 0);
        assert_eq!(batch.packets().map(|packet| packet.metadata().mark).collect::<Vec<_>>(), [Some(7), None]);
        assert_eq!(batch.packets().next().unwrap().timestamp(), Some(1_700_000_000_123_456_789));
    }

    #[test]
    fn the_kernel_s_bits_tell_which_fields_a_hash_covers() {
        let expected = [
            (0x01, HashFields::Ipv4),
            (0x05, HashFields::Ipv4),
            (0x19, HashFields::TcpIpv4),
            (0x29, HashFields::UdpIpv4),
            (0x02, HashFields::Ipv6),
            (0x06, HashFields::Ipv6),
            (0x1A, HashFields::TcpIpv6),
            (0x2E, HashFields::UdpIpv6),
            // Nothing, ports of an unknown protocol, SCTP, two versions, two protocols, and a future bit.
            (0, HashFields::Unknown),
            (0x08, HashFields::Unknown),
            (0x09, HashFields::Unknown),
            (0x49, HashFields::Unknown),
            (0x03, HashFields::Unknown),
            (0x39, HashFields::Unknown),
            (0x8000_0001, HashFields::Unknown),
        ];
        expected.into_iter().for_each(|(kind, covered)| assert_eq!(fields(kind), covered, "{kind:#x}"));
    }

    proptest! {
        /// Any bytes before a packet are metadata or not, and only a tag changes the packet.
        #[test]
        fn any_bytes_are_parsed(mut bytes in any::<[u8; LEN]>(), is_sealed in any::<bool>(), len in 1..2000usize) {
            let (pool, mut batch) = (pool(), Batch::new());
            assert!(batch.push(&pool, &vec![5; len]));
            if is_sealed {
                bytes[SEAL..].copy_from_slice(&OURS.seal.to_ne_bytes());
            }
            store(&pool, &batch, 0, &bytes);
            OURS.note(&pool, &mut batch, 0);
            let after = batch.packets().next().unwrap().len();
            prop_assert!(after == len || is_sealed && after == len + 4);
        }
    }
}
