//! The header and the records of a pcap file (draft-ietf-opsawg-pcap).

use super::source::{End, Record, Source, fcs_len, word};
use super::{LinkType, SECOND};

/// The magic numbers: microseconds, nanoseconds, and microseconds with longer records ("modified").
const MAGIC: [u32; 3] = [0xA1B2_C3D4, 0xA1B2_3C4D, 0xA1B2_CD34];

/// A file's properties, from its header.
pub(super) struct Pcap {
    pub is_swapped: bool,
    /// The word that has the version.
    version: u32,
    minor: u32,
    /// Nanoseconds per unit of the fraction.
    unit: u64,
    /// The length of a record's header: 16, or 24 in the "modified" format.
    pub header: usize,
    pub link: LinkType,
    /// The length of the frame check sequence at each packet's end.
    fcs: usize,
}

impl Pcap {
    /// Reads the file's header after its first four bytes; `None` if these are not a magic number of pcap.
    pub fn begin(source: &mut Source, magic: [u8; 4]) -> Result<Option<Pcap>, End> {
        let orders = [false, true].map(|is_swapped| (is_swapped, word(is_swapped, &magic, 0)));
        let Some((is_swapped, magic)) = orders.into_iter().find(|(_, magic)| MAGIC.contains(magic)) else {
            return Ok(None);
        };
        let (unit, header) = match magic {
            0xA1B2_3C4D => (1, 16),
            0xA1B2_CD34 => (1000, 24),
            _ => (1000, 16),
        };
        let mut rest = [0; 20];
        source.need(&mut rest)?;
        let bad = |why| Err(End::Malformed(0, why));
        let version = word(is_swapped, &rest, 0);
        let halves = [version & 0xFFFF, version >> 16];
        let [major, minor] = if is_big_endian(is_swapped) { [halves[1], halves[0]] } else { halves };
        // As libpcap: no other version was ever written.
        if major != 2 || minor > 4 {
            return bad(format!("pcap version {major}.{minor} is unknown; 2.4 is the latest"));
        }
        let link = word(is_swapped, &rest, 16);
        // Section 4: the upper 4 bits are the length of the frame check sequence in units of 2 bytes, if bit 26 is set.
        let (fcs, reserved) = match link & 1 << 26 {
            0 => (0, link & 0xFBFF_0000),
            _ => ((link >> 28) * 2, link & 0x0BFF_0000),
        };
        if reserved != 0 {
            return bad(format!("reserved bits {reserved:#010x} of the link type are set: {link:#010x}"));
        }
        let Some(fcs) = fcs_len(fcs) else {
            return bad(format!("the link type announces frame check sequences of {fcs} bytes: {link:#010x}"));
        };
        let link = LinkType((link & 0xFFFF) as u16);
        Ok(Some(Pcap { is_swapped, version, minor, unit, header, link, fcs }))
    }

    /// Returns the offsets of the captured and the original length in a record.
    pub fn lengths_at(&self) -> [usize; 2] {
        if self.minor < 3 { [12, 8] } else { [8, 12] }
    }

    /// Reads the next packet into `bytes`.
    pub fn next(&self, source: &mut Source, bytes: &mut Vec<u8>) -> Result<Option<Record>, End> {
        let (begin, mut words) = (source.begin_record(), [0; 24]);
        if !source.fill(&mut words[..self.header])? {
            return Ok(None);
        }
        let field = |at: usize| word(self.is_swapped, &words, at);
        let (seconds, fraction, mut included, mut original) = (field(0), field(4), field(8), field(12));
        if MAGIC.contains(&seconds) && [fraction, included] == [self.version, 0] {
            let why = "the header of another capture follows: two files were joined".to_string();
            return Err(End::Malformed(begin, why));
        }
        // Programs before version 2.3 wrote the lengths in the other order, and those of 2.3 in either (libpcap's
        // sf-pcap.c).
        if self.minor < 3 || self.minor == 3 && included > original {
            std::mem::swap(&mut included, &mut original);
        }
        source.packet(included as usize, begin, bytes)?;
        let nanoseconds = u64::from(seconds) * SECOND + u64::from(fraction) * self.unit;
        Ok(Some(Record::new(Some(nanoseconds), self.link, original as usize, self.fcs, bytes)))
    }
}

/// Returns whether the file's byte order is big-endian.
fn is_big_endian(is_swapped: bool) -> bool {
    is_swapped != cfg!(target_endian = "big")
}
