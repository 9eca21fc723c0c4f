//! The packets of a batch, for reading and writing.
#![allow(unsafe_code)]

use std::num::NonZeroU16;
use std::ops::{Deref, DerefMut};
use std::time::SystemTime;

use crate::error::{Error, ErrorKind, Remedy, Result};
use crate::memory::View;
use crate::metadata::{self, HAS_TIME, Metadata, PRESENCE};
use crate::offload::{MOST_OFFSET, Offload, network_offset};
use crate::slot::Slot;

/// Iterates over the bytes of each slot of a batch ([`Batch::slots_mut`](crate::Batch::slots_mut)).
pub struct SlotsMut<'a> {
    slots: std::slice::IterMut<'a, Slot>,
    view: View<'a>,
}

impl<'a> SlotsMut<'a> {
    /// Iterates over these slots, which belong to the view's region.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # use linerate::SlotsMut;
    /// # batch.push(port.pool(), &[7; 5000]);
    /// // SAFETY: the view is only used with slots of this pool. The slots stay in the batch.
    /// let (view, slots) = unsafe { (port.pool().region().view(), batch.raw_slots()) };
    /// let lens: Vec<usize> = SlotsMut::new(slots, view).map(|bytes| bytes.len()).collect();
    /// assert_eq!(lens, [1920, 1920, 1160]);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn new(slots: &'a mut [Slot], view: View<'a>) -> SlotsMut<'a> {
        SlotsMut { slots: slots.iter_mut(), view }
    }
}

impl<'a> Iterator for SlotsMut<'a> {
    type Item = &'a mut [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        let view = self.view;
        self.slots.next().map(|slot| view.bytes_mut(slot))
    }
}

/// Iterates over the packets of a batch.
pub struct Packets<'a> {
    slots: std::slice::IterMut<'a, Slot>,
    view: View<'a>,
    has_chains: bool,
}

impl<'a> Packets<'a> {
    /// Iterates over the packets in these slots, which belong to the view's region. Without `has_chains` each packet is
    /// one slot.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # use linerate::Packets;
    /// # batch.push(port.pool(), &[7; 5000]);
    /// // SAFETY: the view is only used with slots of this pool. The slots stay in the batch.
    /// let (view, slots) = unsafe { (port.pool().region().view(), batch.raw_slots()) };
    /// let lens: Vec<usize> = Packets::new(slots, view, true).map(|packet| packet.len()).collect();
    /// assert_eq!(lens, [5000]);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn new(slots: &'a mut [Slot], view: View<'a>, has_chains: bool) -> Packets<'a> {
        Packets { slots: slots.iter_mut(), view, has_chains }
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Packet<'a>> {
        let slots = match self.has_chains {
            false => std::slice::from_mut(self.slots.next()?),
            true => {
                let (packet, rest) = split(std::mem::take(&mut self.slots).into_slice());
                self.slots = rest.iter_mut();
                packet
            }
        };
        if slots.is_empty() { None } else { Some(Packet { slots, view: self.view }) }
    }

    /// Checks `has_chains` once for the loop. `for_each` uses this; a `for` loop checks per packet, unless the compiler
    /// hoists the check out of the loop.
    #[inline(always)]
    fn fold<B, F: FnMut(B, Packet<'a>) -> B>(self, init: B, mut f: F) -> B {
        let view = self.view;
        if !self.has_chains {
            return self.slots.fold(init, |so_far, slot| f(so_far, Packet { slots: std::slice::from_mut(slot), view }));
        }
        let mut so_far = init;
        for packet in self {
            so_far = f(so_far, packet);
        }
        so_far
    }
}

/// Splits the slots after the first packet.
#[inline(always)]
fn split(slots: &mut [Slot]) -> (&mut [Slot], &mut [Slot]) {
    slots.split_at_mut(Slot::first_packet(slots))
}

/// The offset of a packet's timestamp in its buffer. Its [`Origin`] is before it, and the [`Offload`] before that.
const STAMP: usize = ORIGIN + Origin::LEN;
const ORIGIN: usize = Offload::LEN;

/// Where a packet with a timestamp was captured, and by whose clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// At the port, complete. The program's driver has noted the time.
    #[default]
    Port,
    /// At the port, complete. The kernel has noted the time.
    Kernel,
    /// At the port, complete. The card has noted the time with its [clock](crate::port::Clock).
    Card,
    /// At this interface of a port on several: the kernel's index. The kernel has noted the time.
    Interface(u32),
    /// In a capture file.
    File {
        /// The length before the packet was cut to the capture's snap length, in bytes.
        original_len: u32,
        /// Bytes at the packet's end that the capture does not have: padding to the shortest frame.
        padding: u8,
    },
}

impl Origin {
    /// Returns the captured part of a packet's bytes, and the length of the packet before it was cut.
    ///
    /// ```
    /// use linerate_core::packet::Origin;
    ///
    /// let padded = Origin::File { original_len: 42, padding: 18 };
    /// assert_eq!(padded.captured(&[0; 60]), (&[0; 42][..], 42));
    /// assert_eq!(Origin::Port.captured(&[0; 60]), (&[0; 60][..], 60));
    /// ```
    pub fn captured(self, bytes: &[u8]) -> (&[u8], usize) {
        match self {
            Origin::File { original_len, padding } => {
                let captured = &bytes[..bytes.len().saturating_sub(padding.into())];
                (captured, captured.len().max(original_len as usize))
            }
            _ => (bytes, bytes.len()),
        }
    }

    /// Its bytes in a buffer.
    const LEN: usize = 6;

    fn to_bytes(self) -> [u8; Origin::LEN] {
        let (kind, padding, number) = match self {
            Origin::Port => (0, 0, 0),
            Origin::Interface(index) => (1, 0, index),
            Origin::File { original_len, padding } => (2, padding, original_len),
            Origin::Kernel => (3, 0, 0),
            Origin::Card => (4, 0, 0),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, padding, a, b, c, d]
    }

    fn from_bytes([kind, padding, a, b, c, d]: [u8; Origin::LEN]) -> Origin {
        let number = u32::from_ne_bytes([a, b, c, d]);
        match kind {
            1 => Origin::Interface(number),
            2 => Origin::File { original_len: number, padding },
            3 => Origin::Kernel,
            4 => Origin::Card,
            _ => Origin::Port,
        }
    }
}

/// Strictly increasing arrival times for a receiver's packets, in nanoseconds since 1970 (system time).
#[derive(Default)]
pub struct Times {
    next: u64,
}

impl Times {
    /// Returns the time of the first of `count` packets that arrive now. The packets' times are a nanosecond apart, so
    /// that programs can tell the packets apart.
    pub fn take(&mut self, count: usize) -> u64 {
        let first = now().max(self.next);
        self.next = first.saturating_add(count as u64);
        first
    }
}

/// Returns the system time, in nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64
}

/// Records when and where a packet with this first slot arrived.
pub fn stamp(first: &mut Slot, view: View<'_>, nanoseconds: u64, origin: Origin) {
    let presence = if first.is_described() { metadata::presence(&view.notes(first)) } else { 0 };
    first.set_described();
    let mut bytes = [0; PRESENCE + 4 - ORIGIN];
    bytes[..Origin::LEN].copy_from_slice(&origin.to_bytes());
    bytes[STAMP - ORIGIN..PRESENCE - ORIGIN].copy_from_slice(&nanoseconds.to_ne_bytes());
    bytes[PRESENCE - ORIGIN..].copy_from_slice(&(presence | HAS_TIME).to_le_bytes());
    view.note(first, ORIGIN, &bytes);
}

/// Returns when the packet with this first slot arrived, if it was recorded.
#[inline(always)]
pub fn timestamp(first: &Slot, view: View<'_>) -> Option<u64> {
    if !first.is_described() {
        return None;
    }
    let notes = view.notes(first);
    let time = notes[STAMP..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    time.filter(|_| metadata::presence(&notes) & HAS_TIME != 0)
}

/// The length of a frame's two addresses, after which a VLAN tag follows (IEEE 802.3, 3.1.1; IEEE 802.1Q, 9.3).
const ADDRESSES: usize = 12;
/// The length of a VLAN tag.
const TAG: usize = 4;
/// A VLAN tag's first two bytes (IEEE 802.1Q, table 9-1: customer VLAN).
const VLAN: u16 = 0x8100;

/// One packet of a batch. Its bytes are in one slot or, if it is longer than a buffer, in a chain of slots.
///
/// A packet dereferences to the bytes of its first slot, which contains the headers. [`len`](Packet::len),
/// [`segments`](Packet::segments) and [`append_to`](Packet::append_to) cover all slots.
///
/// For typed headers, use a parser of slices, such as etherparse: `examples/headers.rs` of the crate `linerate`.
///
/// Headers can be added and removed at the front without copying: a received packet has a [headroom](Packet::headroom)
/// of at least 88 bytes.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// # let [mut port] = linerate::open(["sim:packet?count=32"])?;
/// # let mut rx = port.rx(0)?;
/// # let mut batch = linerate::Batch::new();
/// rx.recv(&mut batch);
/// for mut packet in &mut batch {
///     let len = packet.len();
///     packet.push(4)?.copy_from_slice(&[1, 2, 3, 4]); // before the Ethernet header
///     assert_eq!(packet.len(), len + 4);
///     packet.pull(4 + 14)?; // removes the Ethernet header, too
///     packet[0] = 0x45;
/// }
/// # Ok(()) }
/// ```
pub struct Packet<'a> {
    slots: &'a mut [Slot],
    view: View<'a>,
}

impl Deref for Packet<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.view.bytes(&self.slots[0])
    }
}

impl DerefMut for Packet<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.view.bytes_mut(&mut self.slots[0])
    }
}

impl<'a> Packet<'a> {
    /// Creates a packet from its slots. There must be at least one.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # use linerate::Packet;
    /// # batch.push(port.pool(), &[7; 60]);
    /// // SAFETY: the view is only used with slots of this pool. The slots stay in the batch.
    /// let (view, slots) = unsafe { (port.pool().region().view(), batch.raw_slots()) };
    /// let packet = Packet::new(&mut slots[..1], view);
    /// assert_eq!((packet.len(), packet[0]), (60, 7));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn new(slots: &'a mut [Slot], view: View<'a>) -> Packet<'a> {
        Packet { slots, view }
    }
}

impl Packet<'_> {
    /// Returns the number of bytes in all slots.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 5000]); // more than a buffer of 2 KiB
    /// let packet = batch.packets().next().unwrap();
    /// assert_eq!(packet.len(), 5000);
    /// assert!(packet[..].len() < 2048); // only the first slot
    /// # Ok(()) }
    /// ```
    #[allow(clippy::len_without_is_empty)] // a frame is never empty
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.iter().map(Slot::len).sum()
    }

    /// Returns the number of slots.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 60]);
    /// batch.push(port.pool(), &[2; 5000]); // more than a buffer of 2 KiB
    /// let slots: Vec<usize> = batch.packets().map(|packet| packet.slots()).collect();
    /// assert_eq!(slots, [1, 3]);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over the bytes of each slot.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 5000]);
    /// let packet = batch.packets().next().unwrap();
    /// let lens: Vec<usize> = packet.segments().map(|bytes| bytes.len()).collect();
    /// assert_eq!(lens, [1920, 1920, 1160]); // buffers of 2,048 bytes with a headroom of 128
    /// # Ok(()) }
    /// ```
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.iter().map(|slot| self.view.bytes(slot))
    }

    /// Iterates over the bytes of each slot, for writing.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 5000]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.segments_mut().for_each(|bytes| bytes.fill(7)); // the whole packet, also if it has several slots
    /// assert!(packet.segments().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
    /// # Ok(()) }
    /// ```
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let view = self.view;
        self.slots.iter_mut().map(move |slot| view.bytes_mut(slot))
    }

    /// Appends all bytes to `bytes`.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 5000]);
    /// let (packet, mut bytes) = (batch.packets().next().unwrap(), Vec::new());
    /// packet.append_to(&mut bytes);
    /// assert_eq!(bytes, [1; 5000]);
    /// # Ok(()) }
    /// ```
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.segments().for_each(|segment| bytes.extend_from_slice(segment));
    }

    /// Returns the number of bytes that [`push`](Packet::push) can add.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// let headroom = packet.headroom();
    /// packet.push(8)?;
    /// assert_eq!((headroom, packet.headroom()), (88, 80));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        let first = &self.slots[0];
        first.offset().saturating_sub(View::NOTES).min(usize::from(u16::MAX) - first.len())
    }

    /// Returns the number of bytes that [`extend`](Packet::extend) can add.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// let tailroom = packet.tailroom();
    /// packet.extend(4)?;
    /// assert_eq!((tailroom, packet.tailroom()), (1860, 1856)); // a buffer of 2,048 bytes, a headroom of 128
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn tailroom(&self) -> usize {
        let last = &self.slots[self.slots.len() - 1];
        (self.view.buffer_size() - last.offset() - last.len()).min(usize::from(u16::MAX) - last.len())
    }

    /// Adds `count` bytes at the front, and returns them. Their contents are unspecified.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.push(4)?.copy_from_slice(&[9, 8, 7, 6]);
    /// assert_eq!((packet.len(), &packet[..6]), (64, &[9, 8, 7, 6, 1, 1][..]));
    /// assert_eq!(packet.push(1000).unwrap_err().kind(), linerate::ErrorKind::NoRoom);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if `count` exceeds the [`headroom`](Packet::headroom), [`ErrorKind::Unfinished`] if the
    /// packet must be segmented first. The packet is then unchanged.
    #[inline]
    pub fn push(&mut self, count: usize) -> Result<&mut [u8]> {
        if count > self.headroom() {
            return Err(no_room(count, "in front: its headroom", self.headroom()));
        }
        self.finish()?;
        let first = &mut self.slots[0];
        // SAFETY: the bytes before the data are the headroom, which is in the buffer.
        unsafe { first.set_data(first.offset() - count, first.len() + count) };
        Ok(&mut self[..count])
    }

    /// Returns the number of bytes that [`pull`](Packet::pull) can remove.
    #[inline(always)]
    fn removable(&self) -> usize {
        let first = &self.slots[0];
        first.len().saturating_sub(1).min(Slot::MAX_OFFSET - first.offset())
    }

    /// Removes `count` bytes from the front.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[&[1; 14][..], &[0x45; 46]].concat());
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.pull(14)?; // the Ethernet header
    /// assert_eq!((packet.len(), packet[0]), (46, 0x45));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if the first slot would become empty, or the offset of its data would exceed 4,095;
    /// [`ErrorKind::Unfinished`] as for [`push`](Packet::push). The packet is then unchanged.
    #[inline]
    pub fn pull(&mut self, count: usize) -> Result<()> {
        if count > self.removable() {
            return Err(too_short(count, self.removable()));
        }
        self.finish()?;
        let first = &mut self.slots[0];
        // SAFETY: the end stays where it is.
        unsafe { first.set_data(first.offset() + count, first.len() - count) };
        Ok(())
    }

    /// Inserts `count` bytes before byte `at`, and returns them. Their contents are unspecified. The bytes before `at`
    /// move towards the front, so this is cheap for headers.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["sim:insert?wire=none"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.insert(12, 4)?.copy_from_slice(&[0x81, 0, 0, 7]); // a tag of VLAN 7, after the addresses
    /// assert_eq!((packet.len(), &packet[10..18]), (64, &[1, 1, 0x81, 0, 0, 7, 1, 1][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if `at` is after the first slot's end, or `count` exceeds the
    /// [`headroom`](Packet::headroom); [`ErrorKind::Unfinished`] as for [`push`](Packet::push). The packet is then
    /// unchanged.
    #[inline]
    pub fn insert(&mut self, at: usize, count: usize) -> Result<&mut [u8]> {
        let first_len = self.slots[0].len();
        if at > first_len {
            return Err(not_in_first_slot(at, first_len));
        }
        self.push(count)?;
        self.copy_within(count..count + at, 0);
        Ok(&mut self[at..at + count])
    }

    /// Removes `count` bytes from byte `at` on. The bytes before `at` move towards the end.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["sim:remove?wire=none"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 64]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.remove(12, 4)?; // the VLAN tag
    /// assert_eq!(packet.len(), 60);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if the bytes are not all in the first slot, or as for [`pull`](Packet::pull);
    /// [`ErrorKind::Unfinished`] as for [`push`](Packet::push). The packet is then unchanged.
    #[inline]
    pub fn remove(&mut self, at: usize, count: usize) -> Result<()> {
        let first_len = self.slots[0].len();
        let end = at.checked_add(count).filter(|end| *end <= first_len);
        end.ok_or_else(|| not_in_first_slot(at.saturating_add(count), first_len))?;
        if count > self.removable() {
            return Err(too_short(count, self.removable()));
        }
        self.finish()?;
        self.copy_within(..at, count);
        self.pull(count)
    }

    /// Inserts a VLAN tag (0x8100) after the addresses of a frame. `tci` is the tag's content: priority (3 bits), drop
    /// eligible indicator, and the VLAN's number (12 bits; IEEE 802.1Q, 9.6). Pending offloads stay pending: the segments
    /// will have the tag.
    ///
    /// This is done in software on all ports, at the cost of a few cycles. A card would need a descriptor more for each
    /// packet with another tag.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.insert_vlan(77)?;
    /// assert_eq!((packet.len(), &packet[10..18]), (64, &[1, 1, 0x81, 0, 0, 77, 1, 1][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if the first slot is shorter than the addresses, or the
    /// [`headroom`](Packet::headroom) than the tag; [`ErrorKind::Unfinished`] if the packet is still to be segmented and
    /// already has two tags. The packet is then unchanged.
    pub fn insert_vlan(&mut self, tci: u16) -> Result<()> {
        let Some(addresses) = self.first_chunk::<ADDRESSES>().copied() else {
            return Err(not_in_first_slot(ADDRESSES, self.slots[0].len()));
        };
        if self.slots[0].is_unfinished() && network_offset(self) == MOST_OFFSET {
            self.finish()?;
        }
        self.with_pending(TAG as i16, |packet| packet.push(TAG).map(drop))?;
        let [a, b] = VLAN.to_be_bytes();
        let [high, low] = tci.to_be_bytes();
        // One copy of constant size, unlike `insert`'s.
        let mut start = [0; ADDRESSES + TAG];
        start[..ADDRESSES].copy_from_slice(&addresses);
        start[ADDRESSES..].copy_from_slice(&[a, b, high, low]);
        self[..ADDRESSES + TAG].copy_from_slice(&start);
        Ok(())
    }

    /// Removes the outermost VLAN tag (0x8100) of a frame, and returns its content. Returns `None` for a frame without a
    /// tag. Pending offloads stay pending.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 60]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.insert_vlan(77)?;
    /// assert_eq!((packet.remove_vlan()?, packet.remove_vlan()?, packet.len()), (Some(77), None, 60));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] as for [`pull`](Packet::pull). The packet is then unchanged.
    pub fn remove_vlan(&mut self) -> Result<Option<u16>> {
        let tag: Option<&[u8; TAG]> = self.get(ADDRESSES..).and_then(<[u8]>::first_chunk);
        let Some(&[a, b, high, low]) = tag else { return Ok(None) };
        if u16::from_be_bytes([a, b]) != VLAN {
            return Ok(None);
        }
        self.with_pending(-(TAG as i16), |packet| packet.remove(ADDRESSES, TAG))?;
        Ok(Some(u16::from_be_bytes([high, low])))
    }

    /// Changes the packet by `change`, which inserts or removes `by` bytes before the network header, without finishing
    /// its pending offloads.
    #[inline(always)]
    fn with_pending(&mut self, by: i16, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if !self.slots[0].is_unfinished() {
            return change(self);
        }
        let pending = self.offload();
        self.slots[0].set_unfinished(false);
        let changed = change(self);
        if let Some(mut pending) = pending {
            if changed.is_ok() {
                pending.moved(by);
            }
            pending.note(&mut self.slots[0], self.view);
        }
        changed
    }

    /// Adds `count` bytes at the end, in the last slot, and returns them. Their contents are unspecified.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 50]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// let missing = 60 - packet.len();
    /// packet.extend(missing)?.fill(0); // padding to Ethernet's minimum
    /// assert_eq!((packet.len(), packet[49], packet[50]), (60, 1, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if `count` exceeds the [`tailroom`](Packet::tailroom), [`ErrorKind::Unfinished`] as for
    /// [`push`](Packet::push). The packet is then unchanged.
    #[inline]
    pub fn extend(&mut self, count: usize) -> Result<&mut [u8]> {
        if count > self.tailroom() {
            return Err(no_room(count, "at the end: its last buffer", self.tailroom()));
        }
        self.finish()?;
        let last = self.slots.len() - 1;
        let slot = &mut self.slots[last];
        let len = slot.len();
        // SAFETY: the bytes after the data are the tailroom, which is in the buffer.
        unsafe { slot.set_data(slot.offset(), len + count) };
        Ok(&mut self.view.bytes_mut(slot)[len..])
    }

    /// Shortens the packet to `len` bytes; a shorter packet stays unchanged.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # batch.push(port.pool(), &[1; 64]);
    /// # let mut packet = batch.packets().next().unwrap();
    /// packet.truncate(60)?; // without the CRC
    /// packet.truncate(1000)?; // changes nothing
    /// assert_eq!(packet.len(), 60);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if the last slot would become empty, [`ErrorKind::Unfinished`] as for
    /// [`push`](Packet::push). The packet is then unchanged.
    #[inline]
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let Some(count) = self.len().checked_sub(len).filter(|count| *count > 0) else { return Ok(()) };
        let last = self.slots.len() - 1;
        let most = self.slots[last].len().saturating_sub(1);
        if count > most {
            return Err(too_short(count, most));
        }
        self.finish()?;
        let slot = &mut self.slots[last];
        // SAFETY: the slot becomes shorter.
        unsafe { slot.set_data(slot.offset(), slot.len() - count) };
        Ok(())
    }

    /// Computes a pending checksum before the packet changes, since its offset counts from the packet's first byte.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate_core::offload::Offload;
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// // The sender has left a checksum of the bytes from 34 on, at byte 34 + 16.
    /// let offload = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
    /// batch.push_parts(port.pool(), 60, [&[0; 60][..]].into_iter(), Some(offload));
    /// let mut packet = batch.packets().next().unwrap();
    /// packet.finish()?;
    /// assert!(packet.offload().is_none());
    /// assert_eq!(packet[50..52], [0xFF, 0xFF]); // the checksum of zeros
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn finish(&mut self) -> Result<()> {
        if self.slots[0].is_unfinished() { self.finish_checksum() } else { Ok(()) }
    }

    /// Leaves the TCP or UDP checksum to the port that sends the packet: its card, the receiver in another machine, or
    /// the port's software. The checksum field may contain anything.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// # let mut udp = Vec::new();
    /// # let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    /// # headers.udp(80, 4321).write(&mut udp, &[7; 100]).unwrap();
    /// batch.push(port.pool(), &udp);
    /// let mut packet = batch.packets().next().unwrap();
    /// packet[50] = 8; // changes the payload
    /// packet.leave_checksum()?;
    /// assert!(packet.offload().is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the packet is not TCP or UDP over the outermost IP header, is a fragment, has a
    /// routing header, or has another length than in its IP header; [`ErrorKind::Unfinished`] as for
    /// [`push`](Packet::push). The packet is then unchanged.
    pub fn leave_checksum(&mut self) -> Result<()> {
        self.leave(None)
    }

    /// Leaves segmentation and checksums to the port that sends the packet: it becomes several packets with at most
    /// `size` bytes of TCP or UDP payload each. The packet may have up to 65,553 bytes, without the limit of the port's
    /// longest frame.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:left?wire=sink"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// # let mut tcp = Vec::new();
    /// # let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    /// # headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &[7; 10_000]).unwrap();
    /// batch.push(port.pool(), &tcp); // with 10,000 bytes of payload
    /// batch.packets().next().unwrap().leave_segments(1448.try_into().unwrap())?;
    /// let slots = batch.len();
    /// assert_eq!(tx.send(&mut batch), slots); // the card makes 7 frames of them
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`leave_checksum`](Packet::leave_checksum).
    pub fn leave_segments(&mut self, size: NonZeroU16) -> Result<()> {
        self.leave(Some(size))
    }

    fn leave(&mut self, size: Option<NonZeroU16>) -> Result<()> {
        self.finish()?;
        let (len, view) = (self.len(), self.view);
        let Some(first) = self.slots.first_mut() else { return Ok(()) };
        let Some(left) = Offload::leave(view.bytes_mut(first), len, size) else {
            let why = "the packet has no checksum that can be left: it is not TCP or UDP, a fragment, has a routing \
                       header, more than two VLAN tags or 2,048 segments, or another length than in its IP header";
            return Err(Error::new(ErrorKind::Unsupported, "", why));
        };
        left.note(first, view);
        Ok(())
    }

    /// Requests that the card notes when the packet leaves: [`Clock::sent`](crate::port::Clock::sent) returns the time.
    /// A port without a clock, or with segments to cut, notes nothing.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// batch.push(port.pool(), &[7; 60]);
    /// batch.packets().next().unwrap().request_timestamp();
    /// # Ok(()) }
    /// ```
    pub fn request_timestamp(&mut self) {
        let (is_left, view) = (self.offload().is_some(), self.view);
        let Some(first) = self.slots.first_mut() else { return };
        if !is_left {
            // A queue reads only the notes of packets with this flag.
            Offload::default().note(first, view);
        }
        Metadata::request_time(first, view);
    }

    #[cold]
    fn finish_checksum(&mut self) -> Result<()> {
        match self.offload() {
            // Only a timestamp is requested.
            Some(offload) if !offload.is_needed() => Ok(()),
            Some(offload) if !offload.finish(self.slots, self.view) => {
                Err(Error::new(ErrorKind::Unfinished, "", "the packet must be segmented first")
                    .with_remedy(Remedy::Step("open the port without offloads".into())))
            }
            _ => Ok(()),
        }
    }

    /// Returns the arrival time in nanoseconds since 1970, if the port was opened with timestamps (`?timestamps=on`):
    /// system time, or the time of a card's clock if [`origin`](Packet::origin) is [`Origin::Card`].
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let mut batch = linerate::Batch::new();
    /// let [mut port, mut sender] = linerate::open(["valeST:a?timestamps=on", "valeST:b"])?;
    /// # let (mut rx, mut tx) = (port.rx(0)?, sender.tx(0)?);
    /// batch.push(sender.pool(), &[0xFF; 60]);
    /// tx.send(&mut batch);
    /// rx.recv(&mut batch);
    /// assert!(batch.packets().next().unwrap().timestamp().is_some());
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        timestamp(self.slots.first()?, self.view)
    }

    /// Returns where the packet was captured, if it has a [`timestamp`](Packet::timestamp); otherwise
    /// [`Origin::Port`].
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// use linerate_core::packet::Origin;
    ///
    /// batch.push(port.pool(), &[0; 60]);
    /// batch.stamp_last_of(1_000_000_000, Origin::File { original_len: 1514, padding: 0 });
    /// let origin = batch.packets().next().unwrap().origin();
    /// assert_eq!(origin, Origin::File { original_len: 1514, padding: 0 });
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn origin(&self) -> Origin {
        match self.slots.first() {
            Some(first) if timestamp(first, self.view).is_some() => {
                let notes = self.view.notes(first);
                notes[ORIGIN..].first_chunk().map_or(Origin::Port, |bytes| Origin::from_bytes(*bytes))
            }
            _ => Origin::Port,
        }
    }

    /// Returns whether the packet has a timestamp or other metadata.
    pub(crate) fn is_described(&self) -> bool {
        self.slots.first().is_some_and(Slot::is_described)
    }

    /// Returns what the port found out about the packet when it arrived, if it was opened with metadata
    /// (`?metadata=on`).
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// use linerate::metadata::Metadata;
    ///
    /// batch.push(port.pool(), &[0; 60]);
    /// let metadata = batch.packets().next().unwrap().metadata();
    /// assert_eq!(metadata, Metadata::default()); // the program made the packet
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn metadata(&self) -> Metadata {
        self.slots.first().map_or(Metadata::default(), |first| Metadata::of(first, self.view))
    }

    /// Returns the pending offloads.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// use linerate_core::offload::Offload;
    ///
    /// let checksum = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]); // a sender with `?offloads=on` has left it
    /// batch.push_parts(port.pool(), 60, [&[0; 60][..]].into_iter(), Some(checksum));
    /// batch.push(port.pool(), &[0; 60]);
    /// let pending: Vec<_> = batch.packets().map(|packet| packet.offload()).collect();
    /// assert_eq!(pending, [Some(checksum), None]);
    /// # Ok(()) }
    /// ```
    pub fn offload(&self) -> Option<Offload> {
        Offload::of(&self.slots[0], self.view)
    }
}

#[cold]
fn no_room(count: usize, whence: &str, room: usize) -> Error {
    Error::new(ErrorKind::NoRoom, "", format!("the packet has no room for {count} bytes {whence} has {room}"))
}

#[cold]
fn not_in_first_slot(at: usize, len: usize) -> Error {
    Error::new(ErrorKind::NoRoom, "", format!("byte {at} is outside the packet's first slot, which has {len} bytes"))
}

#[cold]
fn too_short(count: usize, most: usize) -> Error {
    let why = format!("cannot remove {count} bytes of the packet: its slot can lose at most {most}");
    Error::new(ErrorKind::NoRoom, "", why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::Batch;
    use crate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
    use crate::slot::HEADROOM;

    const SIZE: usize = 2048;
    /// Bytes of a full slot.
    const FULL: usize = SIZE - HEADROOM;

    fn pool(buffer_size: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size, pages, numa_node: None }).unwrap())
    }

    /// Creates a batch with one packet of the bytes 0, 1, 2, ...
    fn batch(len: usize) -> Batch {
        let (mut batch, bytes) = (Batch::new(), (0..len).map(|n| n as u8).collect::<Vec<_>>());
        assert!(batch.push(&pool(SIZE), &bytes));
        batch
    }

    fn whole(packet: &Packet<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        packet.append_to(&mut bytes);
        bytes
    }

    #[test]
    fn bytes_are_inserted_and_removed_within_a_packet() {
        let mut batch = batch(60);
        let mut packet = batch.packets().next().unwrap();
        let before = whole(&packet);
        packet.insert(12, 4).unwrap().copy_from_slice(&[9, 8, 7, 6]);
        assert_eq!(whole(&packet), [&before[..12], &[9, 8, 7, 6], &before[12..]].concat());
        packet.remove(12, 4).unwrap();
        assert_eq!(whole(&packet), before);
        packet.insert(60, 1).unwrap()[0] = 5;
        packet.insert(0, 1).unwrap()[0] = 4;
        assert_eq!(whole(&packet), [&[4], &before[..], &[5]].concat());
        packet.remove(61, 1).unwrap();
        packet.remove(0, 1).unwrap();
        let impossible = [packet.insert(61, 1).err(), packet.insert(12, 200).err()];
        assert!(impossible.iter().all(|error| error.as_ref().unwrap().kind() == ErrorKind::NoRoom));
        for (at, count) in [(0, 60), (59, 2), (1, usize::MAX), (61, 0)] {
            assert_eq!(packet.remove(at, count).unwrap_err().kind(), ErrorKind::NoRoom, "{at}, {count}");
        }
        assert_eq!(whole(&packet), before);
    }

    #[test]
    fn headers_come_and_go_in_front() {
        let mut batch = batch(60);
        let mut packet = batch.packets().next().unwrap();
        packet.push(4).unwrap().copy_from_slice(&[9, 8, 7, 6]);
        assert_eq!((packet.len(), &packet[..6]), (64, &[9, 8, 7, 6, 0, 1][..]));
        packet.pull(5).unwrap();
        assert_eq!((packet.len(), &packet[..2]), (59, &[1, 2][..]));
        packet[0] = 77;
        let packet = batch.packets().next().unwrap();
        assert_eq!((packet.len(), packet[0], packet[58]), (59, 77, 59), "the batch has it as it was left");
    }

    #[test]
    fn bytes_come_and_go_at_the_end() {
        for len in [60, FULL + 10] {
            let mut batch = batch(len);
            let mut packet = batch.packets().next().unwrap();
            packet.extend(3).unwrap().copy_from_slice(&[9, 8, 7]);
            let bytes = whole(&packet);
            assert_eq!((packet.len(), &bytes[len - 1..]), (len + 3, &[(len - 1) as u8, 9, 8, 7][..]));
            packet.truncate(len - 1).unwrap();
            packet.truncate(len + 100).unwrap();
            assert_eq!(whole(&packet), bytes[..len - 1]);
        }
    }

    #[test]
    fn a_packet_of_several_slots_is_one() {
        let mut batch = batch(2 * FULL + 5);
        assert_eq!((batch.packets().count(), batch.slots_mut().count()), (1, 3));
        let mut packet = batch.packets().next().unwrap();
        assert_eq!((packet.len(), packet.slots(), packet[..].len()), (2 * FULL + 5, 3, FULL));
        packet.segments_mut().for_each(|segment| segment[0] = 0xEE);
        let bytes = whole(&packet);
        assert_eq!([0, FULL, 2 * FULL, 1].map(|at| bytes[at]), [0xEE, 0xEE, 0xEE, 1]);
        packet.push(1).unwrap()[0] = 0xDD;
        assert_eq!((whole(&packet)[0], &whole(&packet)[1..]), (0xDD, &bytes[..]));
    }

    /// Changes that exceed a buffer or empty a slot fail, and leave the packet unchanged.
    #[test]
    fn no_packet_leaves_its_buffers() {
        let mut batch = batch(FULL + 5);
        let mut packet = batch.packets().next().unwrap();
        let before = whole(&packet);
        let headroom = HEADROOM - View::NOTES;
        assert_eq!((packet.headroom(), packet.tailroom()), (headroom, FULL - 5));
        assert!(packet.push(headroom + 1).is_err_and(|error| error.why().ends_with("its headroom has 88")));
        assert!(packet.push(usize::MAX).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert!(packet.extend(FULL - 4).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert!(packet.extend(usize::MAX).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert!(packet.pull(FULL).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert!(packet.pull(usize::MAX).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert!(
            packet.truncate(FULL).is_err_and(|error| error.why().contains(" 5 bytes") && error.why().ends_with(" 4"))
        );
        assert!(packet.truncate(0).is_err_and(|error| error.kind() == ErrorKind::NoRoom));
        assert_eq!(whole(&packet), before);
        packet.push(headroom).unwrap();
        assert_eq!((packet.headroom(), packet.push(0).unwrap().len()), (0, 0));
        packet.extend(FULL - 5).unwrap();
        packet.pull(headroom + FULL - 1).unwrap();
        packet.truncate(2).unwrap();
        assert_eq!((packet.len(), packet[0], packet.tailroom()), (2, before[FULL - 1], FULL - 1));
    }

    /// A slot's offset is at most 4,095, its length at most 65,535.
    #[test]
    fn long_buffers_have_their_bounds() {
        let (mut batch, pool) = (Batch::new(), pool(65_536));
        assert!(batch.push(&pool, &[7; 65_000]));
        let mut packet = batch.packets().next().unwrap();
        assert!(packet.pull(4096 - HEADROOM).is_err_and(|error| error.why().ends_with(" 3967")));
        packet.pull(3967).unwrap();
        assert_eq!((packet.len(), packet.headroom()), (65_000 - 3967, 4095 - View::NOTES));
        packet.push(packet.headroom()).unwrap();
        assert_eq!(packet.tailroom(), 65_536 - View::NOTES - packet.len());
        packet.extend(packet.tailroom()).unwrap();
        assert_eq!((packet.len(), packet.tailroom()), (65_536 - View::NOTES, 0));
    }

    #[test]
    fn a_checksum_is_computed_before_its_place_moves() {
        for change in [
            (|packet| packet.push(4).map(drop)) as fn(&mut Packet<'_>) -> Result<()>,
            |packet| packet.pull(4),
            |packet| packet.extend(4).map(drop),
            |packet| packet.truncate(packet.len() - 4),
        ] {
            let mut batch = Batch::new();
            let pool = pool(SIZE);
            assert!(batch.push(&pool, &[1; 60]));
            // A checksum of the bytes from 34 on, stored at byte 34 + 16.
            batch.set_offload(0, Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]));
            let mut packet = batch.packets().next().unwrap();
            change(&mut packet).unwrap();
            assert!(packet.offload().is_none());
            assert!(whole(&packet).iter().any(|byte| *byte != 1), "the checksum is there");
            // TCP to be cut into segments of 100 bytes. A change cannot apply to the headers of each segment.
            batch.set_offload(0, Offload([0, 1, 54, 0, 100, 0, 0, 0, 0, 0]));
            let mut packet = batch.packets().next().unwrap();
            let before = whole(&packet);
            assert!(change(&mut packet).is_err_and(|error| error.kind() == ErrorKind::Unfinished));
            assert_eq!(whole(&packet), before);
        }
    }
}
