//! Copies packets from one capture file into another.

use std::path::Path;

use linerate_core::error::{Error, Result};

use super::link_header::to_ethernet;
use super::writer::refuse_compressed;
use super::{Format, LinkType, Output, Reader, Record, SNAPLEN};

/// Bytes that are buffered before they are written.
const BUFFER: usize = 64 << 10;

/// Copies the records of a capture file into another file of the same format, byte for byte: times, lengths,
/// interfaces, comments, options, unknown blocks and order are kept. Only the lengths of pcapng's sections become
/// unspecified, as packets can be left out.
///
/// If the formats differ, or packets get Ethernet headers, the records are written anew: with times in nanoseconds and
/// their lengths, but without interfaces, comments and options.
///
/// ```no_run
/// # fn main() -> linerate::Result<()> {
/// use linerate::capture::Copier;
/// let mut copier = Copier::open("in.pcapng".as_ref(), "out.pcapng".as_ref(), false)?;
/// while copier.next(|frame| frame.len() > 100)?.is_some() {}
/// copier.finish()?;
/// # Ok(()) }
/// ```
pub struct Copier {
    reader: Reader,
    output: Output,
    /// The records are written anew; `None` if they are copied.
    anew: Option<Anew>,
    buffer: Vec<u8>,
    /// The last packet's record and the blocks before it; its bytes, and its Ethernet frame.
    copied: Vec<u8>,
    packet: Vec<u8>,
    frame: Vec<u8>,
    counts: CopyCounts,
    /// Packets that are in the file, not only in the buffer.
    flushed: u64,
}

/// Records that are written anew.
struct Anew {
    format: Format,
    adds_headers: bool,
    /// The link type of all packets, once the file's header is written.
    link: Option<LinkType>,
    /// The time of the last packet, for packets without a time.
    time: u64,
}

/// The packets of a [`Copier`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Packets that were read, and their bytes.
    pub read: [u64; 2],
    /// Packets that were written, and their bytes.
    pub written: [u64; 2],
    /// Packets that `keep` did not accept.
    pub rejected: u64,
    /// Packets that were left out because they cannot get an Ethernet header.
    pub not_ethernet: u64,
}

impl Copier {
    /// Opens both files. The second file gets the format of its [name](Format::of). With `adds_headers`, packets get
    /// Ethernet headers, as from [`Frames::with_headers`](super::Frames::with_headers).
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if a file cannot be opened, or the first is not a capture.
    pub fn open(input: &Path, output: &Path, adds_headers: bool) -> Result<Copier> {
        let (reader, format) = (Reader::open_copied(input)?, Format::of(output));
        let is_same = reader.is_pcapng() == (format == Format::Pcapng);
        let anew = (adds_headers || !is_same).then_some(Anew { format, adds_headers, link: None, time: 0 });
        refuse_compressed(output)?;
        let output = Output::create(output)?;
        let [buffer, copied, packet, frame] = [const { Vec::new() }; 4];
        Ok(Copier { reader, output, anew, buffer, copied, packet, frame, counts: CopyCounts::default(), flushed: 0 })
    }

    /// Returns whether interfaces, comments and options are left out.
    pub fn drops_options(&self) -> bool {
        self.anew.is_some() && self.reader.is_pcapng()
    }

    /// Reads the next packet, and writes it if `keep` accepts its Ethernet frame. If the packet is not one that
    /// Ethernet carries, the frame is empty. Returns whether the packet was kept; `None` at the end.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the position if the file is malformed or cut; also if
    /// the other file cannot be written. Packets before it are in the file after [`finish`](Copier::finish).
    pub fn next(&mut self, keep: impl FnOnce(&[u8]) -> bool) -> Result<Option<bool>> {
        let record = self.reader.next(&mut self.packet);
        let begin = self.reader.take_copied(&mut self.copied);
        if self.anew.is_none() {
            self.buffer.extend_from_slice(&self.copied[..begin]);
        }
        let Some(record) = record? else {
            self.reader.check_end()?;
            return Ok(None);
        };
        self.counts.read = [self.counts.read[0] + 1, self.counts.read[1] + self.packet.len() as u64];
        self.frame.clear();
        self.frame.extend_from_slice(&self.packet);
        let mut original_len = record.original_len;
        let is_ethernet = to_ethernet(record.link, &mut self.frame, &mut original_len).is_some();
        if !keep(if is_ethernet { &self.frame } else { &[] }) {
            self.counts.rejected += 1;
            return Ok(Some(false));
        }
        match &mut self.anew {
            None => self.buffer.extend_from_slice(&self.copied[begin..]),
            Some(Anew { adds_headers: true, .. }) if !is_ethernet => {
                self.counts.not_ethernet += 1;
                return Ok(Some(false));
            }
            Some(Anew { adds_headers: true, .. }) => {
                std::mem::swap(&mut self.packet, &mut self.frame);
                self.append(Record { link: LinkType::ETHERNET, original_len, ..record })?;
            }
            Some(_) => self.append(record)?,
        }
        self.counts.written = [self.counts.written[0] + 1, self.counts.written[1] + self.packet.len() as u64];
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(Some(true))
    }

    /// Writes the packet anew.
    fn append(&mut self, record: Record) -> Result<()> {
        let Some(anew) = &mut self.anew else { return Ok(()) };
        let link = match anew.link {
            Some(link) => link,
            None => {
                anew.format.begin_with(&mut self.buffer, SNAPLEN, record.link, &[""]);
                *anew.link.insert(record.link)
            }
        };
        if link != record.link {
            let why =
                format!("its packets have several link types, {link} and {}, and a pcap file has one", record.link);
            return Err(self.reader.error(why).with_remedy("a name that ends with .pcapng"));
        }
        anew.time = record.nanoseconds.unwrap_or(anew.time);
        anew.format.append_cut(&mut self.buffer, 0, anew.time, &self.packet, record.original_len);
        Ok(())
    }

    /// Returns the counts.
    pub fn counts(&self) -> CopyCounts {
        self.counts
    }

    /// Writes what is still in the buffer. A capture without packets becomes a capture without packets.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written.
    pub fn finish(mut self) -> Result<()> {
        if let Some(Anew { format, link: None, adds_headers, .. }) = self.anew {
            let link = self.reader.link_type().filter(|_| !adds_headers).unwrap_or(LinkType::ETHERNET);
            format.begin_with(&mut self.buffer, SNAPLEN, link, &[""]);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        let failed = |output: &Output, error: std::io::Error, flushed: u64| -> Error {
            output.error(&error, format_args!("at least {flushed}"))
        };
        self.output.begin().map_err(|error| failed(&self.output, error, 0))?;
        let outcome = self.output.write_all_counted(&self.buffer);
        self.buffer.clear();
        outcome.map_err(|(error, _)| failed(&self.output, error, self.flushed))?;
        self.flushed = self.counts.written[0];
        Ok(())
    }
}
