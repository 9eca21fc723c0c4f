//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng).

use super::source::{End, Record, Source, fcs_len, word};
use super::{LinkType, SECOND};

/// A section: its byte order, and its interfaces (section 4.1).
pub(super) struct Section {
    is_swapped: bool,
    interfaces: Vec<Interface>,
}

/// An interface of a section (section 4.2).
struct Interface {
    link: LinkType,
    /// The maximum length of a packet in the file; 0: unlimited.
    snap_len: u32,
    /// `if_tsresol`.
    resolution: u8,
    /// `if_tsoffset`, in seconds.
    offset: u64,
    /// `if_fcslen`, in bytes.
    fcs: usize,
}

// Types of blocks (sections 4.1 to 4.4), and the obsolete packet block.
pub(super) const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
// Options of interfaces (section 4.2) and packets (section 4.3) that change how packets are read.
const IF_TSRESOL: usize = 9;
const IF_FCSLEN: usize = 13;
const IF_TSOFFSET: usize = 14;
const EPB_FLAGS: usize = 2;
/// The magic number that reveals a section's byte order.
const BYTE_ORDER: u32 = 0x1A2B_3C4D;
/// Type and length before a block's body, and the length after it.
const AROUND: u32 = 12;
/// The maximum length of an interface's block and of a packet's options, and the maximum number of interfaces.
const LONGEST: u32 = 1 << 20;
const MOST_INTERFACES: usize = 1 << 16;

type Read<T> = std::result::Result<T, End>;

impl Section {
    /// Reads the file's first section header, after its type.
    pub fn begin(source: &mut Source) -> Read<Section> {
        let mut section = Section { is_swapped: false, interfaces: Vec::new() };
        section.restart(source, 0)?;
        Ok(section)
    }

    /// Reads a section header, after its type, of the block at `begin`.
    fn restart(&mut self, source: &mut Source, begin: u64) -> Read<()> {
        let mut head = [0; 8];
        source.need(&mut head)?;
        self.is_swapped = match word(false, &head, 4) {
            BYTE_ORDER => false,
            swapped if swapped == BYTE_ORDER.swap_bytes() => true,
            _ => return Err(End::Malformed(begin, "a section without a byte order".to_string())),
        };
        self.interfaces.clear();
        let len = self.check_len(word(self.is_swapped, &head, 0), begin)?;
        if len < AROUND + 16 {
            return Err(End::Malformed(begin, "a section header that is too short".to_string()));
        }
        let mut version = [0; 4];
        source.need(&mut version)?;
        let (major, minor) = (self.half(&version, 0), self.half(&version, 2));
        // 1.2 is the same as 1.0 (section 4.1).
        if major != 1 || !matches!(minor, 0 | 2) {
            return Err(End::Malformed(begin, format!("a section of version {major}.{minor}")));
        }
        // The section's length is not used, as the blocks have lengths, too. A copy can have another length: -1 means
        // that it is not specified.
        let mut section_len = [0; 8];
        source.need(&mut section_len)?;
        source.replace_in_copy(&[0xFF; 8]);
        source.skip(u64::from(len - AROUND - 16))?;
        self.end(source, len, begin)
    }

    /// Reads up to the next packet.
    pub fn next(&mut self, source: &mut Source, bytes: &mut Vec<u8>) -> Read<Option<Record>> {
        loop {
            let (begin, mut head) = (source.begin_record(), [0; 4]);
            if !source.fill(&mut head)? {
                return Ok(None);
            }
            let kind = word(self.is_swapped, &head, 0);
            // The type of a section header is the same in both byte orders.
            if kind == SECTION {
                self.restart(source, begin)?;
                continue;
            }
            source.need(&mut head)?;
            let len = self.check_len(word(self.is_swapped, &head, 0), begin)?;
            let body = len - AROUND;
            let record = match kind {
                INTERFACE => {
                    self.add_interface(source, body, begin)?;
                    None
                }
                SIMPLE_PACKET | ENHANCED_PACKET | OBSOLETE_PACKET => {
                    Some(self.packet(source, kind, body, begin, bytes)?)
                }
                _ => {
                    source.skip(body.into())?;
                    None
                }
            };
            self.end(source, len, begin)?;
            if record.is_some() {
                return Ok(record);
            }
        }
    }

    /// Checks a block's length.
    fn check_len(&self, len: u32, begin: u64) -> Read<u32> {
        match len.is_multiple_of(4) && (AROUND..1 << 31).contains(&len) {
            true => Ok(len),
            false => Err(End::Malformed(begin, format!("a block of length {len}"))),
        }
    }

    /// Reads the length at a block's end.
    fn end(&self, source: &mut Source, len: u32, begin: u64) -> Read<()> {
        let mut tail = [0; 4];
        source.need(&mut tail)?;
        match word(self.is_swapped, &tail, 0) {
            same if same == len => Ok(()),
            other => Err(End::Malformed(begin, format!("the lengths of a block differ: {len} and {other}"))),
        }
    }

    fn add_interface(&mut self, source: &mut Source, len: u32, begin: u64) -> Read<()> {
        if !(8..=LONGEST).contains(&len) || self.interfaces.len() == MOST_INTERFACES {
            return Err(End::Malformed(begin, format!("an interface's block of {len} bytes")));
        }
        let mut body = vec![0; len as usize];
        source.need(&mut body)?;
        let link = LinkType(self.half(&body, 0) as u16);
        let mut interface =
            Interface { link, snap_len: word(self.is_swapped, &body, 4), resolution: 6, offset: 0, fcs: 0 };
        let bad =
            |what: &str, value: &[u8]| Err(End::Malformed(begin, format!("an interface with {what} of {value:02x?}")));
        let mut seen = [false; IF_TSOFFSET + 1];
        for (code, value) in self.options(&body[8..], begin)? {
            if matches!(code, IF_TSRESOL | IF_FCSLEN | IF_TSOFFSET) && std::mem::replace(&mut seen[code], true) {
                return bad(&format!("two options {code}, the second"), value);
            }
            match (code, value) {
                (IF_TSRESOL, &[resolution]) => interface.resolution = resolution,
                (IF_TSOFFSET, value) if value.len() == 8 => {
                    let offset = value.first_chunk().copied().map_or(0, u64::from_ne_bytes);
                    interface.offset = if self.is_swapped { offset.swap_bytes() } else { offset };
                }
                // The draft has bits (section 4.2), its example and other programs have bytes.
                (IF_FCSLEN, &[len]) => match fcs_len(if len >= 8 { u32::from(len) / 8 } else { len.into() }) {
                    Some(fcs) => interface.fcs = fcs,
                    None => return bad("if_fcslen", value),
                },
                (IF_TSRESOL, _) => return bad("if_tsresol", value),
                (IF_TSOFFSET, _) => return bad("if_tsoffset", value),
                (IF_FCSLEN, _) => return bad("if_fcslen", value),
                _ => {}
            }
        }
        if interface.units().is_none() {
            let resolution = interface.resolution;
            return Err(End::Malformed(begin, format!("an interface with times of resolution {resolution:#04x}")));
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Reads a packet's block, whose body has `len` bytes, into `bytes`.
    fn packet(&self, source: &mut Source, kind: u32, len: u32, begin: u64, bytes: &mut Vec<u8>) -> Read<Record> {
        let mut fixed = [0; 20];
        let fixed = &mut fixed[..if kind == SIMPLE_PACKET { 4 } else { 20 }];
        let Some(room) = (len as usize).checked_sub(fixed.len()) else {
            return Err(End::Malformed(begin, "a packet's block that is too short".to_string()));
        };
        source.need(fixed)?;
        let field = |at: usize| word(self.is_swapped, fixed, at);
        let number = match kind {
            ENHANCED_PACKET => field(0) as usize,
            OBSOLETE_PACKET => self.half(fixed, 0),
            _ => 0,
        };
        let Some(interface) = self.interfaces.get(number) else {
            return Err(End::Malformed(begin, format!("a packet of interface {number}, which is not described")));
        };
        let (original, included) = match kind {
            SIMPLE_PACKET => {
                let snapped = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
                (field(0), field(0).min(snapped))
            }
            _ => (field(16), field(12)),
        };
        if included as usize > room {
            return Err(End::Malformed(begin, format!("a packet of {included} bytes, longer than its block")));
        }
        source.packet(included as usize, begin, bytes)?;
        let rest = room as u32 - included;
        let time = || {
            let nanoseconds = interface.nanoseconds(u64::from(field(4)) << 32 | u64::from(field(8)));
            nanoseconds
                .ok_or_else(|| End::Malformed(begin, "a packet with a time before 1970 or after 2554".to_string()))
        };
        if kind == SIMPLE_PACKET {
            source.skip(rest.into())?;
            let mut record = Record::new(None, interface.link, original as usize, interface.fcs, bytes);
            // No more than padding may follow the packet.
            record.surplus = (rest & !3) as usize;
            return Ok(record);
        }
        let fcs = self.fcs_of_packet(source, rest, included, begin)?.unwrap_or(interface.fcs);
        Ok(Record::new(Some(time()?), interface.link, original as usize, fcs, bytes))
    }

    /// Reads the rest of a packet's block, of `len` bytes: padding after `included` bytes, and options. Returns the
    /// length of the frame check sequence, if the options give it (`epb_flags`, section 4.3.1).
    fn fcs_of_packet(&self, source: &mut Source, len: u32, included: u32, begin: u64) -> Read<Option<usize>> {
        let padding = included.next_multiple_of(4) - included;
        if len <= padding {
            source.skip(len.into())?;
            return Ok(None);
        }
        if len > LONGEST {
            return Err(End::Malformed(begin, format!("a packet with {len} bytes of options")));
        }
        let mut rest = vec![0; len as usize];
        source.need(&mut rest)?;
        let mut fcs = None;
        for (_, value) in self.options(&rest[padding as usize..], begin)?.filter(|(code, _)| *code == EPB_FLAGS) {
            let Some(flags) = value.first_chunk::<4>().filter(|_| value.len() == 4) else {
                return Err(End::Malformed(begin, format!("a packet with epb_flags of {value:02x?}")));
            };
            let len = word(self.is_swapped, flags, 0) >> 5 & 0xF;
            match fcs_len(len) {
                // The length is not known.
                Some(0) => {}
                Some(len) => fcs = Some(len),
                None => {
                    return Err(End::Malformed(begin, format!("a packet with a frame check sequence of {len} bytes")));
                }
            }
        }
        Ok(fcs)
    }

    /// Returns the options' codes and values (section 3.5), if all are inside their block. The end of options may be
    /// missing.
    fn options<'a>(&self, options: &'a [u8], begin: u64) -> Read<impl Iterator<Item = (usize, &'a [u8])>> {
        let (is_swapped, mut rest) = (self.is_swapped, options);
        let next = move |rest: &mut &'a [u8]| {
            let (code, len) = (half(is_swapped, rest.get(..2)?, 0), half(is_swapped, rest.get(2..4)?, 0));
            let value = rest.get(4..4 + len).filter(|_| code != 0)?;
            *rest = rest.get(4 + len.next_multiple_of(4)..)?;
            Some((code, value))
        };
        let mut end = options;
        while next(&mut end).is_some() {}
        match end.len() >= 4 && half(is_swapped, end, 0) != 0 {
            true => Err(End::Malformed(begin, "an option that is longer than its block".to_string())),
            false => Ok(std::iter::from_fn(move || next(&mut rest))),
        }
    }

    fn half(&self, bytes: &[u8], at: usize) -> usize {
        half(self.is_swapped, bytes, at)
    }
}

/// Reads 16 bits in the section's byte order.
fn half(is_swapped: bool, bytes: &[u8], at: usize) -> usize {
    let half = bytes[at..].first_chunk().copied().map_or(0, u16::from_ne_bytes);
    usize::from(if is_swapped { half.swap_bytes() } else { half })
}

impl Interface {
    /// Returns the units per second (section 4.2: a power of 10, or of 2 if the highest bit is set); `None` on
    /// overflow.
    fn units(&self) -> Option<u64> {
        let exponent = u32::from(self.resolution & 0x7F);
        match self.resolution & 0x80 {
            0 => 10u64.checked_pow(exponent),
            _ => 1u64.checked_shl(exponent),
        }
    }

    /// Converts a time to nanoseconds since 1970; `None` if it does not fit 64 bits.
    fn nanoseconds(&self, time: u64) -> Option<u64> {
        let since_offset = u128::from(time) * u128::from(SECOND) / u128::from(self.units()?);
        let offset = i128::from(self.offset.cast_signed()) * i128::from(SECOND);
        u64::try_from(i128::try_from(since_offset).ok()? + offset).ok()
    }
}
