//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng).

use super::source::{End, Record, Source, word};
use super::{ETHERNET, SECOND};

/// A section: its byte order, and its interfaces (section 4.1).
pub(super) struct Section {
    is_swapped: bool,
    interfaces: Vec<Interface>,
}

/// An interface of a section (section 4.2).
struct Interface {
    is_ethernet: bool,
    /// The maximum length of a packet in the file; 0: unlimited.
    snap_len: u32,
    /// `if_tsresol`.
    resolution: u8,
    /// `if_tsoffset`, in seconds.
    offset: u64,
    /// `if_fcslen`, in bytes.
    crc: usize,
}

// Types of blocks (sections 4.1 to 4.4), and the obsolete packet block.
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
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
        source.skip(u64::from(len - AROUND - 8))?;
        self.end(source, len, begin)
    }

    /// Reads up to the next Ethernet packet.
    pub fn next(&mut self, source: &mut Source, skipped: &mut u64, bytes: &mut Vec<u8>) -> Read<Option<Record>> {
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
                    let record = self.packet(source, kind, body, begin, bytes)?;
                    *skipped += u64::from(record.is_none());
                    record
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
        if !self.are_complete(&body[8..]) {
            return Err(End::Malformed(begin, "an interface's option that is longer than its block".to_string()));
        }
        let is_ethernet = self.half(&body, 0) == ETHERNET as usize;
        let snap_len = word(self.is_swapped, &body, 4);
        let mut interface = Interface { is_ethernet, snap_len, resolution: 6, offset: 0, crc: 0 };
        for option in self.options(&body[8..]) {
            match option {
                (9, &[resolution]) => interface.resolution = resolution,
                (13, &[crc]) => interface.crc = crc.into(),
                (14, value) => {
                    let offset = value.first_chunk().copied().map_or(0, u64::from_ne_bytes);
                    interface.offset = if self.is_swapped { offset.swap_bytes() } else { offset };
                }
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

    /// Reads a packet's block into `bytes`; `None` if its interface is not Ethernet.
    fn packet(
        &self,
        source: &mut Source,
        kind: u32,
        len: u32,
        begin: u64,
        bytes: &mut Vec<u8>,
    ) -> Read<Option<Record>> {
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
        if !interface.is_ethernet {
            source.skip(room as u64)?;
            return Ok(None);
        }
        source.frame(included as usize, begin, bytes)?;
        let crc = self.crc(source, room - included as usize, included)?.unwrap_or(interface.crc);
        let original_len = (original as usize).max(bytes.len()).saturating_sub(crc);
        bytes.truncate(original_len);
        let time = || {
            let nanoseconds = interface.nanoseconds(u64::from(field(4)) << 32 | u64::from(field(8)));
            nanoseconds
                .ok_or_else(|| End::Malformed(begin, "a packet with a time before 1970 or after 2554".to_string()))
        };
        let nanoseconds = if kind == SIMPLE_PACKET { None } else { Some(time()?) };
        Ok(Some(Record { nanoseconds, original_len }))
    }

    /// Reads the rest of a packet's block, of `len` bytes: padding after `included` bytes, and options. Returns the
    /// length of the frame check sequence that the options give (`epb_flags`, section 4.3.1).
    fn crc(&self, source: &mut Source, len: usize, included: u32) -> Read<Option<usize>> {
        let padding = (included.next_multiple_of(4) - included) as usize;
        if !(padding + 8..LONGEST as usize).contains(&len) {
            source.skip(len as u64)?;
            return Ok(None);
        }
        let mut rest = vec![0; len];
        source.need(&mut rest)?;
        let flags = self.options(&rest[padding..]).find(|(code, _)| *code == 2);
        let flags = flags.and_then(|(_, value)| value.first_chunk::<4>()).map(|flags| word(self.is_swapped, flags, 0));
        Ok(flags.map(|flags| (flags >> 5 & 0xF) as usize).filter(|&crc| crc > 0))
    }

    /// Iterates over the options' codes and values (section 3.5).
    fn options<'a>(&self, mut options: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
        std::iter::from_fn(move || {
            let (code, len) = (self.half(options.get(..2)?, 0), self.half(options.get(2..4)?, 0));
            let value = options.get(4..4 + len).filter(|_| code != 0)?;
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
            Some((code, value))
        })
    }

    /// Returns whether all options are inside their block: only the end of options may follow the readable ones.
    fn are_complete(&self, options: &[u8]) -> bool {
        let read: usize = self.options(options).map(|(_, value)| 4 + value.len().next_multiple_of(4)).sum();
        options.get(read..).is_some_and(|rest| rest.len() < 4 || self.half(rest, 0) == 0)
    }

    fn half(&self, bytes: &[u8], at: usize) -> usize {
        let half = bytes[at..].first_chunk().copied().map_or(0, u16::from_ne_bytes);
        usize::from(if self.is_swapped { half.swap_bytes() } else { half })
    }
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
