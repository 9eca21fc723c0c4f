//! The stamp: a flow and a sequence number in the payload of a frame, and their check.
//!
//! A stamp is 18 bytes, at the beginning of the payload. Its position in the frame may change on the way, by VLAN tags
//! and tunnels.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | the magic number |
//! | 4, 5 | the flow, big-endian |
//! | 6 | the number of forwarders that [touched](touch) the frame |
//! | 7 | bits 32 to 39 of the sequence number |
//! | 8, 9 | a hash of the headers before it, as sent, without their last two bytes: UDP's checksum |
//! | 10 to 13 | the check, little-endian: a hash of the stamp and the bytes after it, plus byte 6 |
//! | 14 to 17 | bits 0 to 31 of the sequence number, big-endian |
//!
//! If there is room, a copy of the headers as sent follows: their length, big-endian in two bytes, and their bytes.

/// The length of a stamp.
pub(super) const LEN: usize = 18;
/// The usual offset of a stamp: after Ethernet without a tag, IPv4 without options, and UDP.
pub(super) const USUAL: usize = 42;
/// The shortest frame with a stamp at the usual offset, without CRC.
pub(super) const SHORTEST: usize = USUAL + LEN;
/// Stamps are searched up to this offset.
pub(super) const LAST: usize = 256;

const MAGIC: [u8; 4] = *b"lrat";

/// Adds a forwarder to bytes 6 to 13 of a stamp: to the count, and to the check.
const FORWARDER: u64 = 1 << 32 | 1;

/// Modifies a packet, as ixy's forwarder does: a stamp at the usual offset counts its forwarders, up to 255. Other
/// frames are only read, so that real traffic keeps valid checksums.
#[inline(always)]
pub fn touch(frame: &mut [u8]) {
    if let Some(stamp) = frame.get_mut(USUAL..).and_then(|bytes| bytes.first_chunk_mut::<LEN>())
        && stamp[..4] == MAGIC
        && let Some(bytes) = stamp[6..].first_chunk_mut::<8>()
    {
        *bytes = u64::from_le_bytes(*bytes).wrapping_add(FORWARDER).to_le_bytes();
    }
}

/// The words that stamps change in frames of one template, without the changes, and the hash of the headers before
/// them.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    headers: Hash,
    ports: u64,
    checksum: u64,
}

impl Stamp {
    /// Prepares stamps for frames like `template`, of at least 60 bytes.
    pub fn new(template: &[u8]) -> Stamp {
        let mut headers = Hash::new(USUAL);
        headers.add_all(&template[..32]);
        let ports = word(&template[32..]) & !0xFFFF_0000;
        Stamp { headers, ports, checksum: word(&template[40..]) & 0xFFFF }
    }

    /// Writes a frame like `template`, with another source port, and a stamp over its payload.
    ///
    /// The hashes are computed from the changed words: loads of bytes just stored would stall.
    #[inline]
    pub fn write(&self, frame: &mut [u8], template: &[u8], source_port: u16, flow: u16, sequence: u64) {
        let ports = self.ports | u64::from(source_port.swap_bytes()) << 16;
        let mut headers = self.headers;
        headers.add(ports, 0);
        let name = Name { flow, sequence, headers: headers.digest() };
        let check = name.check(template.len() - USUAL, template.get(SHORTEST..).unwrap_or_default());
        let mark = u64::from(u32::from_le_bytes(MAGIC)) << 16;
        // No byte is stored twice: later loads of the frame would stall.
        let (Some((start, rest)), Some((template, end))) =
            (frame.split_first_chunk_mut::<32>(), template.split_first_chunk::<32>())
        else {
            return;
        };
        *start = *template;
        let (changed, rest) = rest.split_at_mut(SHORTEST - 32);
        changed[..8].copy_from_slice(&ports.to_le_bytes());
        changed[8..16].copy_from_slice(&(self.checksum | mark | u64::from(flow.swap_bytes()) << 48).to_le_bytes());
        changed[16..24].copy_from_slice(&name.word(check).to_le_bytes());
        changed[24..].copy_from_slice(&(sequence as u32).to_be_bytes());
        rest.copy_from_slice(&end[SHORTEST - 32..]);
    }
}

/// Writes a stamp over the payload that begins at `at`, and a copy of the headers after it if there is room. The frame
/// has at least 18 bytes from `at` on.
#[inline]
pub(super) fn write_over(frame: &mut [u8], at: usize, flow: u16, sequence: u64) {
    let (headers, payload) = frame.split_at_mut(at);
    let len = payload.len();
    let Some((stamp, rest)) = payload.split_first_chunk_mut::<LEN>() else { return };
    write_copy(headers, rest);
    let name = Name { flow, sequence, headers: digest(headers) };
    let check = name.check(len, rest);
    stamp[..4].copy_from_slice(&MAGIC);
    stamp[4..6].copy_from_slice(&flow.to_be_bytes());
    stamp[6..14].copy_from_slice(&name.word(check).to_le_bytes());
    stamp[14..].copy_from_slice(&(sequence as u32).to_be_bytes());
}

/// Writes a copy of the headers to the beginning of the payload after a stamp, if there is room: their length, then
/// their bytes. So a receiver knows which of them changed on the way.
#[inline]
pub(super) fn write_copy(headers: &[u8], rest: &mut [u8]) {
    if let Some((len, copy)) = rest.split_first_chunk_mut::<2>()
        && let Some(copy) = copy.get_mut(..headers.len())
    {
        *len = (headers.len() as u16).to_be_bytes();
        copy.copy_from_slice(headers);
    }
}

/// Returns the length of what [`write_over`] writes to a payload of `len` bytes.
pub(super) fn written(at: usize, len: usize) -> usize {
    if len >= LEN + 2 + at { LEN + 2 + at } else { LEN }
}

/// Returns the copy of the headers after a stamp at the offset `at`. It may be any bytes: check its [`digest`].
pub(super) fn copy_of_headers(frame: &[u8], at: usize) -> Option<&[u8]> {
    let (len, copy) = frame.get(at + LEN..)?.split_first_chunk::<2>()?;
    copy.get(..u16::from_be_bytes(*len).into())
}

/// The content of a stamp.
#[derive(Clone, Copy)]
struct Name {
    flow: u16,
    sequence: u64,
    headers: u16,
}

impl Name {
    /// Returns bytes 6 to 13 of the stamp, untouched.
    #[inline(always)]
    fn word(self, check: u32) -> u64 {
        (self.sequence >> 32 & 0xFF) << 8 | u64::from(self.headers) << 16 | u64::from(check) << 32
    }

    /// Returns the check of a payload of `len` bytes: the stamp, and `rest`.
    #[inline(always)]
    fn check(self, len: usize, rest: &[u8]) -> u32 {
        let mut hash = Hash::new(len);
        hash.add(u64::from(self.flow) << 16 | u64::from(self.headers), self.sequence & 0xFF_FFFF_FFFF);
        hash.add_all(rest);
        hash.finish()
    }
}

/// Returns a frame's flow and sequence number, unchecked, if it has a stamp at the offset `at`.
#[inline]
pub(super) fn name(frame: &[u8], at: usize) -> Option<(u16, u64)> {
    let stamp = frame.get(at..)?.first_chunk::<LEN>()?;
    let sequence =
        u64::from(stamp[7]) << 32 | u64::from(u32::from_be_bytes([stamp[14], stamp[15], stamp[16], stamp[17]]));
    (stamp[..4] == MAGIC).then_some((u16::from_be_bytes([stamp[4], stamp[5]]), sequence))
}

/// Returns the offset of a frame's stamp, unchecked.
#[inline]
pub(super) fn offset(frame: &[u8]) -> Option<usize> {
    if frame.get(USUAL..USUAL + 4) == Some(&MAGIC) { Some(USUAL) } else { search(frame).map(|(at, _)| at) }
}

/// Returns the number with these lower 40 bits that is nearest to `near`.
#[inline(always)]
pub(super) fn extended(sequence: u64, near: u64) -> u64 {
    let difference = (sequence.wrapping_sub(near) << 24) as i64 >> 24;
    near.checked_add_signed(difference).unwrap_or(sequence)
}

/// The result of reading a stamp.
#[derive(Clone, Copy)]
pub(super) enum Read {
    /// No stamp.
    Foreign,
    /// A stamp that does not match the bytes after it; the flow number may be damaged, too.
    Corrupted { flow: u16 },
    /// Intact. `headers` is the digest of the headers as they were sent.
    Stamped { flow: u16, sequence: u64, touched: u8, headers: u16 },
}

/// Reads and checks the stamp at the offset `at`. If only the magic number is damaged, the frame was stamped.
#[inline]
pub(super) fn read(frame: &[u8], at: usize) -> Read {
    let Some(payload) = frame.get(at..) else { return Read::Foreign };
    let Some((stamp, rest)) = payload.split_first_chunk::<LEN>() else { return Read::Foreign };
    let flow = u16::from_be_bytes([stamp[4], stamp[5]]);
    let bytes = word(&stamp[6..]);
    let low = u32::from_be_bytes([stamp[14], stamp[15], stamp[16], stamp[17]]);
    let (sequence, touched, headers) = ((bytes >> 8 & 0xFF) << 32 | u64::from(low), bytes as u8, (bytes >> 16) as u16);
    let check = Name { flow, sequence, headers }.check(payload.len(), rest).wrapping_add(touched.into());
    match (stamp[..4] == MAGIC, check == (bytes >> 32) as u32) {
        (true, true) => Read::Stamped { flow, sequence, touched, headers },
        (false, false) => Read::Foreign,
        _ => Read::Corrupted { flow },
    }
}

/// Searches a stamp at all offsets; returns the offset and the stamp. Also bytes after the packet, which some devices
/// add, are tolerated: the payload then has the length of UDP's header.
#[cold]
pub(super) fn search(frame: &[u8]) -> Option<(usize, Read)> {
    let mut corrupted = None;
    for at in 0..=frame.len().checked_sub(LEN)?.min(LAST) {
        if frame[at..at + 4] == MAGIC {
            match read(frame, at) {
                Read::Corrupted { .. } => {}
                found => return Some((at, found)),
            }
            match read(without_trailer(frame, at), at) {
                Read::Stamped { flow, sequence, touched, headers } => {
                    return Some((at, Read::Stamped { flow, sequence, touched, headers }));
                }
                found => corrupted = corrupted.or(Some((at, found))),
            }
        }
    }
    corrupted
}

/// Returns a frame without the bytes after the UDP datagram whose payload begins at `at`.
fn without_trailer(frame: &[u8], at: usize) -> &[u8] {
    let len = at.checked_sub(8).and_then(|udp| frame[udp + 4..].first_chunk().copied()).map(u16::from_be_bytes);
    len.and_then(|len| frame.get(..at - 8 + usize::from(len))).unwrap_or(frame)
}

/// Returns the digest of the headers before a stamp, without UDP's checksum: over IPv6, it depends on the stamp.
#[inline(always)]
pub(super) fn digest(headers: &[u8]) -> u16 {
    let mut hash = Hash::new(headers.len());
    hash.add_all(headers.get(..headers.len().saturating_sub(2)).unwrap_or_default());
    hash.digest()
}

/// A hash of bytes as words of 8: two lanes of multiply and rotate. It detects accidental damage, not attacks.
#[derive(Clone, Copy, Debug)]
struct Hash {
    even: u64,
    odd: u64,
}

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hash {
    #[inline(always)]
    fn new(len: usize) -> Hash {
        Hash { even: len as u64, odd: ODD }
    }

    #[inline(always)]
    fn add(&mut self, even: u64, odd: u64) {
        let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(ODD).rotate_left(29);
        (self.even, self.odd) = (mix(self.even, even), mix(self.odd, odd));
    }

    /// Adds bytes in pairs of words; the last pair is filled with zeros.
    #[inline(always)]
    fn add_all(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(16) {
            self.add(word(pair), pair.get(8..).map_or(0, word));
        }
    }

    #[inline(always)]
    fn mixed(self) -> u64 {
        (self.even ^ self.odd.rotate_left(32)).wrapping_mul(ODD)
    }

    #[inline(always)]
    fn finish(self) -> u32 {
        (self.mixed() >> 32) as u32
    }

    #[inline(always)]
    fn digest(self) -> u16 {
        (self.mixed() >> 48) as u16
    }
}

/// Returns the first 8 bytes as a word; missing bytes are 0.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => partial_word(bytes),
    }
}

/// Returns fewer than 8 bytes as a word.
#[inline(always)]
fn partial_word(bytes: &[u8]) -> u64 {
    let (start, rest) =
        bytes.split_first_chunk::<4>().map_or((0, bytes), |(start, rest)| (u32::from_le_bytes(*start), rest));
    let shift = (bytes.len() - rest.len()) * 8;
    rest.iter().enumerate().fold(start.into(), |word, (n, byte)| word | u64::from(*byte) << (shift + n * 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: u64 = 0x12_3456_789A;

    #[test]
    fn every_changed_byte_of_the_payload_is_found() {
        for len in [60, 61, 67, 128] {
            let (mut template, mut frame) = ((0..len).map(|i| i as u8).collect::<Vec<_>>(), vec![0; len]);
            let (headers, payload) = template.split_at_mut(SHORTEST);
            write_copy(&headers[..USUAL], payload);
            Stamp::new(&template).write(&mut frame, &template, 1031, 7, SEQUENCE);
            let sent = digest(&frame[..USUAL]);
            for at in 0..frame.len() {
                frame[at] = frame[at].wrapping_add(1);
                match read(&frame, USUAL) {
                    Read::Stamped { flow: 7, sequence: SEQUENCE, touched: 0, headers } => {
                        assert!(at < USUAL && headers == sent);
                        // The last two bytes are the checksum.
                        assert_eq!(digest(&frame[..USUAL]) == sent, at >= 40, "byte {at}");
                    }
                    // Even if the magic number is damaged.
                    Read::Corrupted { flow } => assert!(at >= USUAL && (flow == 7 || (46..48).contains(&at))),
                    Read::Foreign | Read::Stamped { .. } => panic!("a change of byte {at} of {len} was not found"),
                }
                frame[at] = frame[at].wrapping_sub(1);
            }
        }
    }

    /// A stamp written over a frame equals that of a prepared frame with the same bytes.
    #[test]
    fn a_stamp_over_a_frame_is_read() {
        for len in [60, 61, 67, 128, 1514] {
            let mut template = (0..len).map(|i| i as u8).collect::<Vec<_>>();
            template[34..36].copy_from_slice(&1031u16.to_be_bytes());
            let (mut prepared, mut over) = (vec![0; len], template.clone());
            let (headers, payload) = template.split_at_mut(SHORTEST);
            write_copy(&headers[..USUAL], payload);
            Stamp::new(&template).write(&mut prepared, &template, 1031, 7, SEQUENCE);
            write_over(&mut over, USUAL, 7, SEQUENCE);
            assert_eq!(over, prepared);
            let is_read = |frame: &[u8], forwarders: u8| {
                let found = read(frame, USUAL);
                matches!(found, Read::Stamped { flow: 7, sequence: SEQUENCE, touched, .. } if touched == forwarders)
            };
            assert!(is_read(&over, 0));
            (0..3).for_each(|_| touch(&mut over));
            assert!(is_read(&over, 3));
            // The count itself cannot change unnoticed.
            over[48] ^= 2;
            assert!(matches!(read(&over, USUAL), Read::Corrupted { flow: 7 }));
        }
        write_over(&mut [0; 59], USUAL, 7, 1);
    }

    #[test]
    fn a_stamp_is_found_where_a_router_moved_it() {
        let mut frame: Vec<u8> = (0..100).collect();
        frame[38..40].copy_from_slice(&66u16.to_be_bytes());
        write_over(&mut frame, USUAL, 7, SEQUENCE);
        for (moved, trailer) in [(0, 0), (4, 0), (50, 0), (0, 4), (4, 9)] {
            let mut arrived = frame[..12].to_vec();
            arrived.extend(vec![0; moved]);
            arrived.extend(&frame[12..]);
            arrived.extend(vec![0xFF; trailer]);
            let found = search(&arrived);
            assert!(matches!(found, Some((at, Read::Stamped { sequence: SEQUENCE, .. })) if at == USUAL + moved));
            *arrived.get_mut(USUAL + moved + 30).unwrap() ^= 1;
            assert!(matches!(search(&arrived), Some((_, Read::Corrupted { flow: 7 }))));
        }
        assert!(search(&[0; 300]).is_none() && search(&[]).is_none());
    }
}
