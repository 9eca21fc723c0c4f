//! Capture files in pcap's format, to replay and to record.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapParser};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::{Frame, Report, Wire};
use crate::error::{Error, Result};

/// Replays a capture file once, as fast as the card takes it. Frames that leave the card are counted and dropped.
pub struct Replay {
    source: Source,
    parser: PcapParser,
    sent: u64,
    received: u64,
    unreadable: u64,
    finished: bool,
}

/// Bytes of a file that were read and not yet parsed. The crate's own reader buffers eight million bytes per file,
/// and repeats an error for ever.
struct Source {
    reader: Box<dyn Read + Send>,
    bytes: Vec<u8>,
    begin: usize,
}

/// Bytes read at once; and the longest record, larger than any frame (libpcap's MAXIMUM_SNAPLEN), with its header.
const CHUNK: u64 = 64 << 10;
const LONGEST: usize = (256 << 10) + 16;

impl Source {
    /// Parses the next item; `None` at the end of the file.
    fn parse<T>(
        &mut self,
        mut parse: impl FnMut(&[u8]) -> std::result::Result<(&[u8], T), PcapError>,
    ) -> std::result::Result<Option<T>, PcapError> {
        loop {
            let bytes = &self.bytes[self.begin..];
            match parse(bytes) {
                Ok((rest, parsed)) => {
                    self.begin = self.bytes.len() - rest.len();
                    return Ok(Some(parsed));
                }
                Err(PcapError::IncompleteBuffer) if bytes.len() < LONGEST => {}
                Err(error) => return Err(error),
            }
            self.bytes.drain(..self.begin);
            self.begin = 0;
            let chunk = (&mut self.reader).take(CHUNK).read_to_end(&mut self.bytes).map_err(PcapError::IoError)?;
            if chunk == 0 {
                return if self.bytes.is_empty() { Ok(None) } else { Err(PcapError::IncompleteBuffer) };
            }
        }
    }
}

fn fail(path: &Path, why: String) -> Error {
    Error::Wire { wire: format!("pcap:{}", path.display()), why }
}

impl Replay {
    /// Opens the file.
    ///
    /// # Errors
    /// If it cannot be read, or is not a capture of Ethernet frames.
    pub fn open(path: &Path) -> Result<Replay> {
        let file = File::open(path).map_err(|e| fail(path, format!("cannot read it: {e}")))?;
        Replay::of(Box::new(file), path)
    }

    /// Replays the bytes of `reader`.
    fn of(reader: Box<dyn Read + Send>, path: &Path) -> Result<Replay> {
        let mut source = Source { reader, bytes: Vec::new(), begin: 0 };
        let parser = source.parse(PcapParser::new).and_then(|parser| parser.ok_or(PcapError::IncompleteBuffer));
        let parser =
            parser.map_err(|e| fail(path, format!("not a pcap file: {e}; convert pcapng with editcap -F pcap")))?;
        if parser.header().datalink != DataLink::ETHERNET {
            return Err(fail(path, format!("it holds {:?}, not Ethernet frames", parser.header().datalink)));
        }
        Ok(Replay { source, parser, sent: 0, received: 0, unreadable: 0, finished: false })
    }
}

impl Wire for Replay {
    fn transmit(&mut self, _: &Frame) {
        self.received += 1;
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        if self.finished {
            return false;
        }
        frame.bytes.clear();
        frame.bad_crc = false;
        let next = self.source.parse(|bytes| {
            let (rest, packet) = self.parser.next_packet(bytes)?;
            frame.bytes.extend_from_slice(&packet.data);
            Ok((rest, ()))
        });
        let Ok(Some(())) = next else {
            self.unreadable = next.is_err().into();
            self.finished = true;
            return false;
        };
        self.sent += 1;
        true
    }

    fn finish(&mut self) {
        self.finished = true;
    }

    fn report(&self) -> Option<Report> {
        let Replay { sent, received, unreadable, .. } = *self;
        Some(Report { sent, received, unreadable, ..Report::default() })
    }
}

/// Records the frames that leave the card, in front of another wire. The file is complete when the wire is
/// finished, or this value is dropped. Recording ends at the first frame that cannot be written, as the [`Report`]
/// shows; the frames go on.
pub struct Record {
    file: BufWriter<File>,
    inner: Box<dyn Wire>,
    sent: u64,
    /// The file ends before the last frame.
    is_cut: bool,
    is_finished: bool,
}

impl Record {
    /// Creates the file, or replaces an existing one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, inner: Box<dyn Wire>) -> Result<Record> {
        let cannot = |error: String| fail(path, format!("cannot write it: {error}"));
        let mut file = BufWriter::new(File::create(path).map_err(|error| cannot(error.to_string()))?);
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            snaplen: 65_535,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        header.write_to(&mut file).map_err(|error| cannot(error.to_string()))?;
        Ok(Record { file, inner, sent: 0, is_cut: false, is_finished: false })
    }

    /// Writes seconds, nanoseconds, and the length in the file and of the frame.
    fn write(&mut self, frame: &[u8]) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = frame.len() as u32;
        for word in [now.as_secs() as u32, now.subsec_nanos(), len, len] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(frame)?;
        if self.is_finished { self.file.flush() } else { Ok(()) }
    }
}

impl Wire for Record {
    fn link(&self) -> bool {
        self.inner.link()
    }

    fn signal(&mut self, mbits: u32) {
        self.inner.signal(mbits);
    }

    fn speed(&self) -> u32 {
        self.inner.speed()
    }

    fn ready(&mut self) -> bool {
        self.inner.ready()
    }

    fn transmit(&mut self, frame: &Frame) {
        self.sent += 1;
        self.is_cut = self.is_cut || self.write(&frame.bytes).is_err();
        self.inner.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        self.inner.receive(frame)
    }

    fn holds_back(&self) -> bool {
        self.inner.holds_back()
    }

    fn comes_unasked(&self) -> bool {
        self.inner.comes_unasked()
    }

    fn finish(&mut self) {
        self.is_cut = self.is_cut || self.file.flush().is_err();
        self.is_finished = true;
        self.inner.finish();
    }

    fn report(&self) -> Option<Report> {
        let unrecorded = self.is_cut.into();
        Some(Report { received: self.sent, unrecorded, ..self.inner.report().unwrap_or_default() })
    }
}

#[cfg(fuzzing)]
pub(crate) mod fuzzing {
    use std::path::Path;

    use super::{Frame, Replay, Wire};

    /// Reads a capture file: it ends, and yields no more bytes than it has.
    pub fn capture(data: &[u8]) {
        let Ok(mut replay) = Replay::of(Box::new(std::io::Cursor::new(data.to_vec())), Path::new("fuzzed")) else {
            return;
        };
        let (mut frame, mut frames, mut bytes) = (Frame::default(), 0, 0);
        while replay.receive(&mut frame) {
            frames += 1;
            bytes += frame.bytes.len();
            assert!(24 + 16 * frames + bytes <= data.len(), "more than the file has");
        }
        assert!(!replay.receive(&mut frame), "the replay begins again");
        let report = replay.report().unwrap_or_default();
        assert_eq!(report.sent, frames as u64);
        assert_eq!(report.unreadable == 0, 24 + 16 * frames + bytes == data.len(), "an end without an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xA1B2_C3D4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
            file.extend(word.to_le_bytes());
        }
        for (included, original, data) in packets {
            [0, 0, *included, *original].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
            file.extend(*data);
        }
        file
    }

    #[test]
    fn a_corrupt_capture_ends_and_is_reported() {
        let good: (u32, u32, &[u8]) = (60, 60, &[0x55; 60]);
        for (file, frames, unreadable) in [
            (capture(&[good, good]), 2, 0),
            (capture(&[good, (60, 59, &[0; 60]), good]), 1, 1),
            (capture(&[good, (70_000, 70_000, &[0; 60])]), 1, 1),
            (capture(&[(u32::MAX, u32::MAX, &[])]), 0, 1),
            (capture(&[good, (60, 60, &[0; 59])]), 1, 1),
            (capture(&[good])[..30].to_vec(), 0, 1),
        ] {
            let mut replay = Replay::of(Box::new(std::io::Cursor::new(file)), Path::new("corrupt.pcap")).unwrap();
            let mut frame = Frame::default();
            (0..frames).for_each(|_| assert!(replay.receive(&mut frame) && frame.bytes.len() == 60));
            (0..3).for_each(|_| assert!(!replay.receive(&mut frame)));
            let report = replay.report().unwrap();
            assert_eq!((report.sent, report.unreadable), (frames, unreadable));
        }
    }
}
