//! Reads capture files: `pcap` and `pcapng` parse their formats.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use linerate_core::error::{Error, Result};
use rustix::fs::FlockOperation;

use super::LinkType;
use super::pcap::Pcap;
use super::pcapng::{SECTION, Section};
use super::source::{End, Record, Source};

/// Reads the packets of a pcap or pcapng file, in either byte order, with times in any resolution, as the file has
/// them: with their own link headers, but without frame check sequences. [`Frames`](super::Frames) reads Ethernet
/// frames.
///
/// After the last packet, or an error, it returns no more packets.
///
/// ```no_run
/// # fn main() -> linerate::Result<()> {
/// let mut reader = linerate::capture::Reader::open("in.pcapng".as_ref())?;
/// let mut bytes = Vec::new();
/// while let Some(record) = reader.next(&mut bytes)? {
///     println!("{:?} ns: {} of {} bytes of {}", record.nanoseconds, bytes.len(), record.original_len, record.link);
/// }
/// # Ok(()) }
/// ```
pub struct Reader {
    source: Source,
    format: Format,
    /// The number of packets read.
    packets: u64,
    is_cut: bool,
    is_over: bool,
}

/// The format of the file.
enum Format {
    Pcap(Pcap),
    Pcapng(Section),
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be read, or is not a capture.
    pub fn open(path: &Path) -> Result<Reader> {
        Reader::open_with(path, None)
    }

    /// Opens a file whose bytes are copied: see [`take_copied`](Reader::take_copied).
    pub(super) fn open_copied(path: &Path) -> Result<Reader> {
        Reader::open_with(path, Some(Vec::new()))
    }

    fn open_with(path: &Path, copied: Option<Vec<u8>>) -> Result<Reader> {
        let name = path.display().to_string();
        let cannot = |error: std::io::Error| Error::file(&name, format!("cannot read it: {error}"));
        let file = File::open(path).map_err(cannot)?;
        // Prevents a recording from emptying it meanwhile.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            let why = "a recording is writing it; read it when that has ended".to_string();
            return Err(Error::file(name, why));
        }
        let len = file.metadata().map_or(0, |file| file.len());
        let mut reader = Reader::start(Box::new(BufReader::with_capacity(64 << 10, file)), &name, copied)?;
        if reader.source.compression.is_none() {
            reader.source.len = len;
        }
        Ok(reader)
    }

    /// Reads from `reader`; `name` is for messages.
    ///
    /// # Errors
    /// See [`open`](Reader::open).
    pub fn new(reader: impl Read + Send + 'static, name: &str) -> Result<Reader> {
        Reader::start(Box::new(reader), name, None)
    }

    fn start(reader: Box<dyn Read + Send>, name: &str, copied: Option<Vec<u8>>) -> Result<Reader> {
        let (name, compression) = (name.to_string(), None);
        let mut source = Source { reader, name, offset: 0, begin: 0, len: 0, copied, copied_from: 0, compression };
        let mut magic = [0; 4];
        let begun = source.need(&mut magic).and_then(|()| source.unpack(&mut magic));
        let format = begun.and_then(|()| Format::begin(&mut source, magic));
        match format {
            Ok(format) => Ok(Reader { source, format, packets: 0, is_cut: false, is_over: false }),
            Err(End::Cut) => Err(source.error("it is too short for a capture file".to_string())),
            Err(End::Malformed(_, why)) => Err(source.error(why)),
            Err(End::Failed(error)) => Err(source.error(format!("cannot read it: {error}"))),
            Err(End::NotBuilt(error)) => Err(error),
        }
    }

    /// Returns the link type of all packets of a pcap file; `None` for pcapng, whose packets can have different types.
    pub fn link_type(&self) -> Option<LinkType> {
        match &self.format {
            Format::Pcap(pcap) => Some(pcap.link),
            Format::Pcapng(_) => None,
        }
    }

    /// Reads the next packet into `bytes`; `None` after the last complete packet.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the offset of a malformed record. A file that ends
    /// within a record is not an error: see [`check_end`](Reader::check_end).
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Record>> {
        if self.is_over {
            return Ok(None);
        }
        let next = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.source, bytes),
            Format::Pcapng(section) => section.next(&mut self.source, bytes),
        };
        self.is_over = !matches!(next, Ok(Some(_)));
        match next {
            Ok(record) => {
                self.packets += u64::from(record.is_some());
                // Another program has truncated it at the end of a record.
                self.is_cut = record.is_none() && self.source.offset < self.source.len;
                Ok(record)
            }
            Err(End::Cut) => {
                self.is_cut = true;
                Ok(None)
            }
            Err(End::Malformed(at, why)) => {
                Err(self.source.error(format!("malformed at {}: {why}", self.source.position(at))))
            }
            Err(End::Failed(error)) => {
                let position = self.source.position(self.source.begin);
                Err(self.source.error(format!("cannot read it after frame {}, at {position}: {error}", self.packets)))
            }
            Err(End::NotBuilt(error)) => Err(error),
        }
    }

    /// Returns whether the file is compressed.
    #[cfg(fuzzing)]
    pub(super) fn is_compressed(&self) -> bool {
        self.source.compression.is_some()
    }

    /// Returns the properties of a pcap file; `None` for pcapng.
    pub(super) fn pcap(&self) -> Option<&Pcap> {
        match &self.format {
            Format::Pcap(pcap) => Some(pcap),
            Format::Pcapng(_) => None,
        }
    }

    /// Returns the file's format.
    pub fn format(&self) -> super::Format {
        match &self.format {
            Format::Pcap(_) => super::Format::Pcap,
            Format::Pcapng(_) => super::Format::Pcapng,
        }
    }

    /// Swaps `bytes` for the bytes that were read since the last call: blocks without packets, then the last packet's
    /// record. Returns the record's position in them.
    pub(super) fn take_copied(&mut self, bytes: &mut Vec<u8>) -> usize {
        bytes.clear();
        if let Some(copied) = &mut self.source.copied {
            std::mem::swap(copied, bytes);
        }
        let from = std::mem::replace(&mut self.source.copied_from, self.source.offset);
        self.source.begin.saturating_sub(from) as usize
    }

    /// Returns an error about the file.
    pub(super) fn error(&self, why: String) -> Error {
        self.source.error(why)
    }

    /// Returns whether the file ended within a record, or is shorter than when it was opened.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Checks that the file did not end within a record.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the position.
    pub fn check_end(&self) -> Result<()> {
        if !self.is_cut {
            return Ok(());
        }
        let (begin, name) = (self.source.begin, &self.source.name);
        // A pipe cannot be read again.
        let mend = match std::fs::metadata(name).is_ok_and(|file| file.is_file()) {
            true => format!("; to keep the complete frames: {} >NEW.pcap", self.source.head(begin)),
            false => String::new(),
        };
        let position = self.source.position(begin);
        Err(self.source.error(format!("it is cut after frame {}, in the record at {position}{mend}", self.packets)))
    }
}

impl Format {
    /// Reads the file's header after its first four bytes.
    fn begin(source: &mut Source, magic: [u8; 4]) -> std::result::Result<Format, End> {
        if u32::from_ne_bytes(magic) == SECTION {
            return Section::begin(source).map(Format::Pcapng);
        }
        match Pcap::begin(source, magic)? {
            Some(pcap) => Ok(Format::Pcap(pcap)),
            None => Err(End::Malformed(0, "it is neither pcap nor pcapng".to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SECOND;
    use super::*;

    /// Records of versions before 2.3 have their lengths in the other order, records of 2.3 in either.
    #[test]
    fn lengths_of_old_versions_are_in_their_order() {
        for (minor, records) in
            [(2, [(1514, 60), (60, 60)]), (3, [(1514, 60), (60, 1514)]), (4, [(60, 1514), (60, 60)])]
        {
            let mut file =
                pcap(0xA1B2_C3D4, false, &records.map(|(included, original)| (included, original, &FRAME[..])));
            file[6] = minor;
            let (all, said) = read(file);
            let lens: Vec<_> = all.iter().map(|&(len, original, _)| (len, original)).collect();
            assert_eq!(lens, records.map(|(a, b): (u32, u32)| (60, a.max(b) as usize)), "{said}");
        }
    }

    /// Builds a pcap file in either byte order.
    fn pcap(magic: u32, is_big: bool, records: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let order = |word: u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        let mut file = Vec::new();
        for word in [magic, if is_big { 2 << 16 | 4 } else { 4 << 16 | 2 }, 0, 0, 65_535, 1] {
            file.extend(order(word));
        }
        for (included, original, data) in records {
            [3, 7, *included, *original].iter().for_each(|word: &u32| file.extend(order(*word)));
            file.extend(*data);
        }
        file
    }

    /// Reads a complete file: the frames' lengths, their original lengths and times, and the end.
    fn read(file: Vec<u8>) -> (Vec<(usize, usize, u64)>, String) {
        let mut reader = match Reader::new(std::io::Cursor::new(file), "test.pcap") {
            Ok(reader) => reader,
            Err(error) => return (Vec::new(), error.to_string()),
        };
        let (mut all, mut bytes) = (Vec::new(), Vec::new());
        let end = loop {
            match reader.next(&mut bytes) {
                Ok(Some(record)) => all.push((bytes.len(), record.original_len, record.nanoseconds.unwrap_or(0))),
                Ok(None) if reader.is_cut() => break reader.check_end().unwrap_err().to_string(),
                Ok(None) => break "end".to_string(),
                Err(error) => break error.to_string(),
            }
        };
        (0..3).for_each(|_| assert!(matches!(reader.next(&mut bytes), Ok(None)), "it begins again"));
        (all, end)
    }

    const FRAME: [u8; 60] = [0x55; 60];

    #[test]
    fn pcap_is_read_in_both_orders_and_resolutions() {
        for (magic, fraction) in [(0xA1B2_C3D4, 7_000), (0xA1B2_3C4D, 7)] {
            for is_big in [false, true] {
                let (all, end) = read(pcap(magic, is_big, &[(60, 60, &FRAME), (60, 1514, &FRAME)]));
                let time = 3_000_000_000 + fraction;
                assert_eq!(all, [(60, 60, time), (60, 1514, time)], "a snapped frame is no error");
                assert_eq!(end, "end");
            }
        }
        // With a frame check sequence of four bytes.
        let mut file = pcap(0xA1B2_C3D4, false, &[(60, 60, &FRAME), (40, 60, &FRAME[..40])]);
        file[20..24].copy_from_slice(&(1u32 | 1 << 26 | 2 << 28).to_le_bytes());
        assert_eq!(read(file).0.iter().map(|frame| frame.0).collect::<Vec<_>>(), [56, 40]);
    }

    #[test]
    fn a_malformed_pcap_ends_with_its_offset() {
        let good: (u32, u32, &[u8]) = (60, 60, &FRAME);
        for (file, frames, end) in [
            (
                pcap(0xA1B2_C3D4, false, &[good, (70_000, 70_000, &FRAME)]),
                1,
                "cut after frame 1, in the record at byte 100",
            ),
            (pcap(0xA1B2_C3D4, false, &[good, (u32::MAX, 60, &FRAME), good]), 1, "malformed at byte 100:"),
            (pcap(0xA1B2_C3D4, false, &[good, (60, 60, &FRAME[..59])]), 1, "cut"),
            (pcap(0xA1B2_C3D4, false, &[good])[..30].to_vec(), 0, "cut after frame 0, in the record at byte 24"),
            (pcap(0xA1B2_C3D4, false, &[])[..20].to_vec(), 0, "too short"),
            (b"\x1F\x8B\x08\x00".to_vec(), 0, "too short"),
            (b"\x28\xB5\x2F\xFD".to_vec(), 0, "too short"),
            (b"\x04\x22\x4D\x18".to_vec(), 0, "too short"),
            (b"nonsense".to_vec(), 0, "neither pcap nor pcapng"),
            (Vec::new(), 0, "too short"),
        ] {
            let (all, said) = read(file);
            assert_eq!(all.len(), frames, "{said}");
            assert!(said.contains(end), "{said}");
        }
        for (at, value, why) in [
            (4, 3, "pcap version 3.4 is unknown"),
            (6, 5, "pcap version 2.5 is unknown"),
            (22, 0x24, "reserved bits 0x00240000 of the link type are set: 0x00240001"),
            (23, 0x20, "reserved bits 0x20000000 of the link type are set"),
            (23, 0x34, "frame check sequences of 6 bytes"),
        ] {
            let mut file = pcap(0xA1B2_C3D4, false, &[good]);
            file[at] = value;
            let (all, said) = read(file);
            assert!(all.is_empty() && said.contains(why), "{said}");
        }
    }

    /// A pcapng file under construction.
    struct Blocks(Vec<u8>, bool);

    impl Blocks {
        fn word(&self, word: u32) -> [u8; 4] {
            if self.1 { word.to_be_bytes() } else { word.to_le_bytes() }
        }

        fn half(&self, half: u16) -> [u8; 2] {
            if self.1 { half.to_be_bytes() } else { half.to_le_bytes() }
        }

        fn add(&mut self, kind: u32, body: &[u8]) -> &mut Blocks {
            let padded = body.len().next_multiple_of(4);
            let len = self.word(12 + padded as u32);
            self.0.extend(self.word(kind));
            self.0.extend(len);
            self.0.extend(body);
            self.0.resize(self.0.len() + padded - body.len(), 0);
            self.0.extend(len);
            self
        }

        fn section(&mut self, is_big: bool) -> &mut Blocks {
            self.1 = is_big;
            let mut body = self.word(0x1A2B_3C4D).to_vec();
            body.extend(self.word(if is_big { 1 << 16 } else { 1 }));
            body.extend([0xFF; 8]);
            self.add(0x0A0D_0D0A, &body)
        }

        fn interface(&mut self, link: u16, snap: u32, options: &[(u16, &[u8])]) -> &mut Blocks {
            let mut body = [self.half(link), self.half(0)].concat();
            body.extend(self.word(snap));
            for (code, value) in options {
                body.extend([self.half(*code), self.half(value.len() as u16)].concat());
                body.extend(*value);
                body.resize(body.len().next_multiple_of(4), 0);
            }
            self.add(1, &body)
        }

        fn packet(&mut self, interface: u32, time: u64, original: u32, data: &[u8]) -> &mut Blocks {
            let words = [interface, (time >> 32) as u32, time as u32, data.len() as u32, original];
            let mut body: Vec<u8> = words.iter().flat_map(|&word| self.word(word)).collect();
            body.extend(data);
            self.add(6, &body)
        }
    }

    #[test]
    fn pcapng_is_read_with_all_its_interfaces_and_sections() {
        for is_big in [false, true] {
            let mut file = Blocks(Vec::new(), is_big);
            let offset = |seconds: u64| if is_big { seconds.to_be_bytes() } else { seconds.to_le_bytes() };
            file.section(is_big).interface(1, 96, &[(2, b"eth0"), (1, b"a comment")]);
            file.interface(1, 0, &[(9, &[9]), (14, &offset(100)), (0, b"")]);
            file.interface(113, 0, &[]).interface(1, 0, &[(9, &[0x80 | 10])]);
            file.add(5, &[0; 12]).add(0xBAD, b"a custom block!");
            file.packet(0, 1_500_000, 1514, &FRAME).packet(1, 1_500_000_000, 60, &FRAME);
            file.packet(2, 5, 60, &FRAME).packet(3, 1024 + 512, 60, &FRAME);
            // A simple packet belongs to the first interface, is cut to its snap length, and has no time.
            let original = file.word(1514);
            file.add(3, &[&original[..], &[0x55; 96]].concat());
            let (all, end) = read(file.0.clone());
            let (long, half) = (1514, 1_500_000_000);
            let frames =
                [(60, long, half), (60, 60, 100 * SECOND + half), (60, 60, 5000), (60, 60, half), (96, long, 0)];
            assert_eq!((&all[..], &*end), (&frames[..], "end"));
            // The next section has its own byte order and interfaces.
            file.section(!is_big).interface(1, 0, &[]).packet(0, 2, 60, &FRAME);
            assert_eq!(read(file.0.clone()).0[5], (60, 60, 2000));
            let cut = file.0.len() - 7;
            let (all, said) = read(file.0[..cut].to_vec());
            let place = format!("cut after frame 5, in the record at byte {}", file.0.len() - 92);
            assert!(all.len() == 5 && said.ends_with(&place), "{said}");
            // The last packet's flags announce a frame check sequence of four bytes.
            let packet: Vec<u8> = [0, 0, 2000, 59, 59].iter().flat_map(|&word| file.word(word)).collect();
            let flags = [file.half(2), file.half(4)].concat();
            file.add(6, &[&packet[..], &FRAME, &flags, &file.word(4 << 5)].concat());
            assert_eq!(read(file.0.clone()).0[6], (55, 55, 2_000_000));
        }
    }

    #[test]
    fn malformed_pcapng_ends_with_its_offset() {
        let begun = || {
            let mut file = Blocks(Vec::new(), false);
            file.section(false).interface(1, 0, &[]);
            file
        };
        let at = begun().0.len();
        // Up to a word longer than the data, which the block's trailing length follows.
        let longer = |bytes: u32| {
            let mut file = begun();
            let words: Vec<u8> = [0, 0, 0, 60 + bytes, 64].iter().flat_map(|&word| file.word(word)).collect();
            file.add(6, &[&words[..], &FRAME].concat()).0.clone()
        };
        let with_options = |options: &[u8]| {
            let words = [0, 0, 0, 60, 60].map(u32::to_le_bytes);
            begun().add(6, &[words.as_flattened(), &FRAME, options].concat()).0.clone()
        };
        let described = |bytes: usize| begun().add(1, &[&[1, 0, 0, 0][..], &vec![0; bytes - 4]].concat()).0.clone();
        assert_eq!(read(described(1 << 20)).1, "end");
        let bad = [
            (longer(1), "a packet of 61 bytes, longer than its block"),
            (longer(4), "a packet of 64 bytes, longer than its block"),
            (described((1 << 20) + 4), "an interface's block of 1048580 bytes"),
            (begun().packet(1, 0, 60, &FRAME).0.clone(), "interface 1"),
            (begun().add(6, &[0; 8]).0.clone(), "too short"),
            ([&begun().0[..], &[6, 0, 0, 0, 13, 0, 0, 0]].concat(), "length 13"),
            ([&begun().0[..], &[6, 0, 0, 0, 0, 0, 0, 0]].concat(), "length 0"),
            ([&begun().0[..], &[6, 0, 0, 0, 0xFC, 0xFF, 0xFF, 0xFF]].concat(), "length"),
            (begun().add(6, &[[0; 12], [0xFF; 12]].concat()).0.clone(), "longer than its block"),
            (begun().add(1, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 5, 0, 1, 2, 3, 4]).0.clone(), "longer than its block"),
            (begun().interface(1, 0, &[(9, &[20])]).0.clone(), "resolution 0x14"),
            (begun().interface(1, 0, &[(9, &[9, 0])]).0.clone(), "if_tsresol of [09, 00]"),
            (begun().interface(1, 0, &[(9, &[])]).0.clone(), "if_tsresol of []"),
            (begun().interface(1, 0, &[(9, &[9]), (9, &[6])]).0.clone(), "two options 9"),
            (begun().interface(1, 0, &[(14, &[1, 0, 0, 0])]).0.clone(), "if_tsoffset of"),
            (begun().interface(1, 0, &[(13, &[8])]).0.clone(), "if_fcslen of [08]"),
            (with_options(&[2, 0, 2, 0, 0, 0, 0, 0]), "epb_flags of [00, 00]"),
            (with_options(&[2, 0, 4, 0, 0x60, 0, 0, 0]), "a frame check sequence of 3 bytes"),
            (with_options(&[1, 0, 9, 0, 0, 0, 0, 0]), "an option that is longer than its block"),
            (begun().interface(1, 0, &[(9, &[0xC0])]).0.clone(), "resolution 0xc0"),
            (
                begun()
                    .add(0x0A0D_0D0A, &[&0x1A2B_3C4Du32.to_le_bytes()[..], &[2, 0, 0, 0], &[0xFF; 8]].concat())
                    .0
                    .clone(),
                "version 2",
            ),
        ];
        for (file, why) in bad {
            let (all, said) = read(file);
            assert!(
                all.is_empty() && said.contains(&format!("malformed at byte {at}:")) && said.contains(why),
                "{said}"
            );
        }
        // The lengths at the beginning and the end of a block must match.
        let mut file = begun();
        file.packet(0, 0, 60, &FRAME).packet(0, 0, 60, &FRAME);
        let len = file.0.len();
        file.0[len - 4] += 4;
        assert_eq!(read(file.0.clone()).0.len(), 1);
        assert!(read(file.0).1.contains("differ"));
    }

    /// Frame check sequences have the length that `if_fcslen` gives, in bits or bytes, or `epb_flags`. Bytes of a simple
    /// packet beyond its length are surplus.
    #[test]
    fn lengths_of_pcapng_are_kept_apart() {
        for (fcs, left) in [(0, 60), (2, 58), (4, 56), (16, 58), (32, 56)] {
            let mut file = Blocks(Vec::new(), false);
            file.section(false).interface(1, 0, &[(13, &[fcs])]).packet(0, 0, 60, &FRAME).packet(0, 0, 1514, &FRAME);
            assert_eq!(read(file.0).0, [(left, left, 0), (60, 1454 + left, 0)]);
        }
        let mut file = Blocks(Vec::new(), false);
        file.section(false).interface(1, 40, &[]).packet(0, 0, 50, &FRAME);
        let original = file.word(57);
        file.add(3, &[&original[..], &FRAME[..57]].concat()).add(3, &[&original[..], &FRAME[..33]].concat());
        let mut reader = Reader::new(std::io::Cursor::new(file.0), "memory").unwrap();
        let mut bytes = Vec::new();
        for (len, original_len, surplus) in [(50, 50, 10), (40, 57, 20)] {
            let record = reader.next(&mut bytes).unwrap().unwrap();
            assert_eq!((bytes.len(), record.original_len, record.surplus), (len, original_len, surplus));
        }
        let said = reader.next(&mut bytes).unwrap_err().to_string();
        assert!(said.contains("a packet of 40 bytes, longer than its block"), "{said}");
    }

    /// A file that is truncated at a record's end while it is read counts as cut.
    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_cut() {
        let path = std::env::temp_dir().join(format!("linerate-shorter-{}.pcap", std::process::id()));
        let frame: (u32, u32, &[u8]) = (60, 60, &FRAME);
        // More than one read returns.
        std::fs::write(&path, pcap(0xA1B2_C3D4, false, &[frame; 2000])).unwrap();
        for (left, is_cut) in [(2000, false), (1500, true)] {
            let (mut reader, mut bytes) = (Reader::open(&path).unwrap(), Vec::new());
            reader.next(&mut bytes).unwrap().unwrap();
            File::options().write(true).open(&path).unwrap().set_len(24 + 76 * left).unwrap();
            let rest = std::iter::from_fn(|| reader.next(&mut bytes).unwrap()).count();
            assert_eq!((rest as u64 + 1, reader.is_cut()), (left, is_cut));
            let end = reader.check_end().map_err(|error| error.to_string());
            assert!(end.is_ok() != is_cut, "{end:?}");
            assert!(end.err().is_none_or(|end| end.contains("cut after frame 1500")));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn times_and_versions_that_cannot_be_read_are_malformed() {
        let seconds = |offset: i64| {
            let mut file = Blocks(Vec::new(), false);
            file.section(false).interface(1, 0, &[(9, &[0]), (14, &offset.to_le_bytes())]);
            file
        };
        let latest = i64::try_from(u64::MAX / SECOND).unwrap();
        for (offset, time, found) in [
            (-5, 5, Some(0)),
            (-5, 4, None),
            (5, latest as u64 - 5, Some(latest as u64)),
            (5, latest as u64 - 4, None),
            (i64::MIN, 5, None),
            (i64::MAX, u64::MAX, None),
            (0, u64::MAX, None),
        ] {
            let (all, said) = read(seconds(offset).packet(0, time, 60, &FRAME).0.clone());
            let expected: Vec<_> = found.into_iter().map(|second| (60, 60, second * SECOND)).collect();
            assert_eq!(all, expected, "{offset} {time}");
            assert!(found.is_some() || said.contains("a time before 1970 or after 2554"), "{said}");
        }
        for (minor, is_read) in [(0, true), (1, false), (2, true), (9, false)] {
            let mut file = seconds(0);
            file.0[14] = minor;
            let (all, said) = read(file.packet(0, 1, 60, &FRAME).0.clone());
            assert!(
                all.len() == usize::from(is_read) && said.contains(&format!("version 1.{minor}")) != is_read,
                "{said}"
            );
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 2000, failure_persistence: None, ..Default::default() })]

        /// Any bytes come to an end, and yield no more than the file has.
        #[test]
        fn mutated_files_end(is_ng: bool, is_big: bool, changes in proptest::collection::vec((0..600usize, 0..=255u8), 0..12), len in 0..600usize) {
            let mut file = match is_ng {
                false => pcap(0xA1B2_C3D4, is_big, &[(60, 60, &FRAME), (60, 1514, &FRAME), (40, 60, &FRAME[..40])]),
                true => {
                    let mut file = Blocks(Vec::new(), is_big);
                    file.section(is_big).interface(1, 96, &[(9, &[9]), (2, b"eth0")]).interface(113, 0, &[]);
                    file.packet(0, 5, 60, &FRAME).packet(1, 5, 60, &FRAME).packet(0, 7, 1514, &FRAME).section(!is_big);
                    file.0
                }
            };
            for (at, byte) in changes {
                if let Some(place) = file.get_mut(at) {
                    *place = byte;
                }
            }
            file.truncate(len.max(file.len() / 2));
            let size = file.len();
            let (all, _) = read(file);
            proptest::prop_assert!(all.iter().map(|(len, ..)| len + 16).sum::<usize>() <= size);
        }
    }
}
