//! The capture formats for writing, with nanosecond timestamps.

use std::path::Path;

use super::{LinkType, SECOND};

/// The maximum length of a frame in a capture: libpcap's `MAXIMUM_SNAPLEN`.
pub const SNAPLEN: u32 = 256 << 10;

/// A format of capture files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// draft-ietf-opsawg-pcap.
    Pcap,
    /// draft-ietf-opsawg-pcapng: interfaces have names and drop counts.
    Pcapng,
}

/// An interface's counts since the capture began, for the file's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The first and the last time of the capture, in nanoseconds since 1970.
    pub times: [u64; 2],
    /// Packets that the interface received (`isb_ifrecv`).
    pub received: u64,
    /// Packets that the interface dropped, if known (`isb_ifdrop`).
    pub dropped_by_port: Option<u64>,
    /// Packets that a filter accepted (`isb_filteraccept`).
    pub accepted: u64,
    /// Packets that the capturing program dropped, for lack of memory for them. Files have them as `isb_osdrop`,
    /// although it was not the operating system that dropped them.
    pub dropped: u64,
    /// Packets in the file or files (`isb_usrdeliv`).
    pub written: u64,
}

/// A record appended by a [`Format`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedRecord<'a> {
    /// The record's length in bytes.
    pub len: usize,
    /// The interface's number.
    pub interface: u32,
    /// When the frame passed, in nanoseconds since 1970.
    pub nanoseconds: u64,
    /// The frame's bytes in the record.
    pub frame: &'a [u8],
    /// The frame's length before it was cut to the snap length.
    pub original: usize,
}

// Types of blocks (draft-ietf-opsawg-pcapng, section 4).
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

impl Format {
    /// Returns the format for a file name: pcapng if it ends with `.pcapng` or `.ntar`, otherwise pcap. A trailing
    /// `.zst` is ignored.
    pub fn of(path: &Path) -> Format {
        let is = |path: &Path, ending: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
        let plain = if is(path, "zst") { path.with_extension("") } else { path.to_path_buf() };
        if is(&plain, "pcapng") || is(&plain, "ntar") { Format::Pcapng } else { Format::Pcap }
    }

    /// Appends a file's header, with the maximum length of its frames and the names of its interfaces. A pcap file has
    /// one interface, without a name.
    pub fn begin(self, bytes: &mut Vec<u8>, snaplen: u32, interfaces: &[&str]) {
        self.begin_with(bytes, snaplen, LinkType::ETHERNET, interfaces);
    }

    /// Like [`begin`](Format::begin), for packets of any link type.
    pub(super) fn begin_with(self, bytes: &mut Vec<u8>, snaplen: u32, link: LinkType, interfaces: &[&str]) {
        let link = u32::from(link.0);
        match self {
            Format::Pcap => {
                for word in [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, snaplen, link] {
                    bytes.extend(word.to_le_bytes());
                }
            }
            Format::Pcapng => {
                block(bytes, SECTION, |bytes| {
                    // The byte order, version 1.0, and a section of unknown length.
                    words(bytes, &[0x1A2B_3C4D, 1, u32::MAX, u32::MAX]);
                    option(bytes, 4, concat!("linerate ", env!("CARGO_PKG_VERSION")).as_bytes()); // shb_userappl
                    option(bytes, 0, &[]);
                });
                interfaces.iter().for_each(|name| interface(bytes, snaplen, link, name));
            }
        }
    }

    /// Appends an interface that appeared after the file's beginning; its number is the next one. A pcap file has no
    /// room for it, so nothing is appended.
    pub fn add_interface(self, bytes: &mut Vec<u8>, snaplen: u32, name: &str) {
        if self == Format::Pcapng {
            interface(bytes, snaplen, LinkType::ETHERNET.0.into(), name);
        }
    }

    /// Returns the latest time that a record can have, in nanoseconds since 1970; later times are clamped to it.
    pub const fn latest(self) -> u64 {
        match self {
            Format::Pcap => u32::MAX as u64 * SECOND + SECOND - 1,
            Format::Pcapng => u64::MAX,
        }
    }

    /// Appends the first `snaplen` bytes of a frame that passed this interface at `nanoseconds` since 1970.
    #[inline]
    pub fn append(self, bytes: &mut Vec<u8>, interface: u32, nanoseconds: u64, frame: &[u8], snaplen: usize) {
        self.append_cut(bytes, interface, nanoseconds, &frame[..frame.len().min(snaplen)], frame.len());
    }

    /// Appends `kept`, the first bytes of a packet of `original_len` bytes.
    #[inline]
    pub fn append_cut(self, bytes: &mut Vec<u8>, interface: u32, nanoseconds: u64, kept: &[u8], original_len: usize) {
        let [len, original] = [kept.len() as u32, original_len as u32];
        let nanoseconds = nanoseconds.min(self.latest());
        match self {
            Format::Pcap => {
                words(bytes, &[(nanoseconds / SECOND) as u32, (nanoseconds % SECOND) as u32, len, original]);
                bytes.extend_from_slice(kept);
            }
            Format::Pcapng => {
                let all = len.next_multiple_of(4) + 32;
                let [high, low] = [nanoseconds >> 32, nanoseconds].map(|part| part as u32);
                words(bytes, &[PACKET, all, interface, high, low, len, original]);
                bytes.extend_from_slice(kept);
                bytes.extend_from_slice(&[0; 3][..(all - 32 - len) as usize]);
                bytes.extend_from_slice(&all.to_le_bytes());
            }
        }
    }

    /// Appends an interface's statistics at the end of the file. A pcap file has no room for them, so nothing is
    /// appended.
    pub fn end(self, bytes: &mut Vec<u8>, interface: u32, counts: &Counts) {
        if self == Format::Pcap {
            return;
        }
        block(bytes, STATISTICS, |bytes| {
            let time = |time: u64| [(time >> 32) as u32, time as u32];
            let [high, low] = time(counts.times[1]);
            words(bytes, &[interface, high, low]);
            for (code, at) in [(2, counts.times[0]), (3, counts.times[1])] {
                option(bytes, code, time(at).map(u32::to_le_bytes).as_flattened());
            }
            let Counts { received, dropped_by_port, accepted, dropped, written, .. } = *counts;
            let counts = [
                (4, Some(received)),
                (5, dropped_by_port),
                (6, Some(accepted)),
                (7, Some(dropped)),
                (8, Some(written)),
            ];
            for (code, count) in counts {
                count.into_iter().for_each(|count| option(bytes, code, &count.to_le_bytes()));
            }
            option(bytes, 0, &[]);
        });
    }

    /// Returns the first record of `bytes`, as written by [`append`](Format::append), if it is complete.
    pub fn first(self, bytes: &[u8]) -> Option<ParsedRecord<'_>> {
        let word = |n: usize| Some(u32::from_le_bytes(*bytes.get(4 * n..)?.first_chunk()?));
        let (len, interface, nanoseconds, header, kept, original) = match self {
            Format::Pcap => {
                let kept = word(2)?;
                (16 + kept, 0, u64::from(word(0)?) * SECOND + u64::from(word(1)?), 16, kept, word(3)?)
            }
            Format::Pcapng => {
                (word(1)?, word(2)?, u64::from(word(3)?) << 32 | u64::from(word(4)?), 28, word(5)?, word(6)?)
            }
        };
        let record = bytes.get(..len as usize)?;
        let frame = record.get(header..header + kept as usize)?;
        Some(ParsedRecord { len: record.len(), interface, nanoseconds, frame, original: original as usize })
    }

    /// Iterates over the complete records at the beginning of `bytes`.
    pub fn records(self, mut bytes: &[u8]) -> impl Iterator<Item = ParsedRecord<'_>> {
        std::iter::from_fn(move || {
            let found = self.first(bytes)?;
            bytes = &bytes[found.len..];
            Some(found)
        })
    }
}

fn words(bytes: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
}

/// Appends a pcapng block (section 3.1).
fn block(bytes: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    words(bytes, &[kind, 0]);
    body(bytes);
    let len = (bytes.len() - start + 4) as u32;
    bytes[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    words(bytes, &[len]);
}

/// Appends the block of an interface (section 4.2).
fn interface(bytes: &mut Vec<u8>, snaplen: u32, link: u32, name: &str) {
    block(bytes, INTERFACE, |bytes| {
        words(bytes, &[link, snaplen]);
        if !name.is_empty() {
            option(bytes, 2, name.as_bytes()); // if_name
        }
        option(bytes, 9, &[9]); // if_tsresol: 10^-9 s
        option(bytes, 0, &[]);
    });
}

/// Appends an option to a block (section 3.5); code 0 ends the options.
fn option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    words(bytes, &[u32::from(code) | (value.len() as u32) << 16]);
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;

    const FORMATS: [Format; 2] = [Format::Pcap, Format::Pcapng];

    /// Writes frames of lengths 0 to 69 with a snap length of 64, and the end.
    fn written(format: Format) -> (Vec<u8>, usize, usize) {
        let mut bytes = Vec::new();
        format.begin(&mut bytes, 64, &["one", ""]);
        let start = bytes.len();
        for n in 0..70 {
            format.append(&mut bytes, u32::from(n % 2), u64::from(n) * 2_000_000_001, &vec![n; n.into()], 64);
        }
        let end = bytes.len();
        format.end(&mut bytes, 1, &Counts { received: 70, ..Counts::default() });
        (bytes, start, end)
    }

    #[test]
    fn a_time_that_a_record_cannot_have_is_its_last() {
        for format in FORMATS {
            let (mut bytes, time) = (Vec::new(), (1 << 32) * SECOND + 5);
            format.begin(&mut bytes, 64, &["one"]);
            format.append(&mut bytes, 0, time, &[0; 60], 64);
            let mut reader = Reader::new(std::io::Cursor::new(bytes), "memory").unwrap();
            let record = reader.next(&mut Vec::new()).unwrap().expect("a record");
            assert_eq!(record.nanoseconds, Some(time.min(format.latest())), "{format:?}");
        }
        assert_eq!(Format::Pcap.latest(), (1 << 32) * SECOND - 1);
    }

    #[test]
    fn what_is_written_is_read() {
        for format in FORMATS {
            let (bytes, ..) = written(format);
            let mut reader = Reader::new(std::io::Cursor::new(bytes), "memory").unwrap();
            let mut frame = Vec::new();
            for n in 0..70u8 {
                let record = reader.next(&mut frame).unwrap().expect("a record");
                assert_eq!(record.nanoseconds, Some(u64::from(n) * 2_000_000_001), "{format:?}");
                let whole = vec![n; n.into()];
                assert_eq!(
                    (&frame[..], record.original_len),
                    (&whole[..whole.len().min(64)], whole.len()),
                    "{format:?}"
                );
            }
            assert!(reader.next(&mut frame).unwrap().is_none());
            reader.check_end().unwrap();
        }
    }

    #[test]
    fn records_are_found_where_they_are() {
        for format in FORMATS {
            let (bytes, start, end) = written(format);
            let (mut at, mut n) = (start, 0);
            for found in format.records(&bytes[start..end]) {
                assert_eq!((found.nanoseconds, found.frame.len()), (n * 2_000_000_001, (n as usize).min(64)));
                assert_eq!(found.original, n as usize);
                assert!(found.frame.iter().all(|&byte| u64::from(byte) == n));
                assert!(format.first(&bytes[at..at + found.len - 1]).is_none(), "a part of a record is none");
                (at, n) = (at + found.len, n + 1);
            }
            assert_eq!((at, n), (end, 70));
        }
    }

    #[test]
    fn a_name_stands_for_a_format() {
        let names =
            [("a.pcap", 0), ("a.pcapng", 1), ("a.PCAPNG.zst", 1), ("a.ntar", 1), ("a", 0), ("pcapng", 0), ("a.zst", 0)];
        for (name, format) in names {
            assert_eq!(Format::of(Path::new(name)), FORMATS[format], "{name}");
        }
    }
}
