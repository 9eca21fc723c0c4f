//! Copies a capture into another file, with its packets edited or left out.

use std::path::Path;

use linerate_core::error::Result;

use super::link_header::to_ethernet;
use super::pcapng::SECTION;
use super::source::{Record, word};
use super::writer::refuse_compressed;
use super::{Format, LinkType, Output, Reader, SNAPLEN};

/// Bytes that are buffered before they are written.
const BUFFER: usize = 64 << 10;

/// Copies a capture into another file, with its packets edited or left out. All else is kept, byte for byte: times,
/// lengths, interfaces, comments and other options, unknown blocks, packets of other link types, order, and the byte
/// order. Only the lengths of pcapng's sections become unspecified.
///
/// If [`Changes`] ask for another format or for Ethernet headers, the records are written anew: with times in
/// nanoseconds and their lengths, but without interfaces, comments and options.
///
/// ```no_run
/// # fn main() -> linerate::Result<()> {
/// use linerate::capture::{Changes, Rewriter};
/// // Leaves out short frames, and removes everything after the Ethernet headers of the others.
/// let changes = Changes { growth: Some(0), ..Changes::default() };
/// let mut rewriter = Rewriter::open("in.pcapng".as_ref(), "out.pcapng".as_ref(), changes)?;
/// while rewriter.next(|frame, each| {
///     if frame.len > 100 {
///         each(&frame.bytes[..frame.bytes.len().min(14)], frame.len);
///     }
/// })? {}
/// rewriter.finish()?;
/// # Ok(()) }
/// ```
pub struct Rewriter {
    reader: Reader,
    output: Output,
    growth: Option<u32>,
    /// The records are written anew; `None` if they are copied.
    anew: Option<Anew>,
    has_begun: bool,
    is_swapped: bool,
    /// The snap length of the section's first interface, to which simple packets belong; `None` before it.
    first_snap_len: Option<u32>,
    /// The last packet's record and the blocks before it; its Ethernet frame, and the packet of another link type.
    copied: Vec<u8>,
    frame: Vec<u8>,
    packet: Vec<u8>,
    buffer: Vec<u8>,
    counts: RewriteCounts,
    /// Packets that are in the file, not only in the buffer.
    flushed: u64,
}

/// The changes of a [`Rewriter`]. The default copies packets or leaves them out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// The format of the copy; `None`: that of the capture.
    pub format: Option<Format>,
    /// Packets get Ethernet headers, as from [`Frames::with_headers`](super::Frames::with_headers).
    pub adds_headers: bool,
    /// Frames are edited, and may become this many bytes longer, by which the snap length of a pcap file grows. Frame
    /// check sequences are removed, as an edit invalidates them, and hashes of edited packets (`epb_hash`).
    pub growth: Option<u32>,
}

/// A packet of a [`Rewriter`].
pub struct RewriteFrame<'a> {
    /// The captured bytes as an Ethernet frame; empty if it is not a packet that Ethernet carries.
    pub bytes: &'a mut Vec<u8>,
    /// The length of the frame before it was cut.
    pub len: usize,
    /// The frame may be edited. Any other packet is kept as it is.
    pub is_editable: bool,
}

/// The packets of a [`Rewriter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteCounts {
    /// Packets that were read, and their bytes.
    pub read: [u64; 2],
    /// Packets that were written, and their bytes.
    pub written: [u64; 2],
    /// Packets that the caller left out.
    pub rejected: u64,
    /// Packets that Ethernet does not carry: left out if headers are added, and otherwise not edited.
    pub not_ethernet: u64,
    /// Edited frames of which the file has more bytes than their length; those were removed.
    pub surplus: u64,
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

// Blocks and options of pcapng (draft-ietf-opsawg-pcapng, section 4).
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const FCS_LEN: u16 = 13; // if_fcslen
const FLAGS: u16 = 2; // epb_flags
const HASH: u16 = 3; // epb_hash

impl Rewriter {
    /// Opens the capture `input`, then the file `output`.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if a file cannot be opened, or the first is not a capture.
    pub fn open(input: &Path, output: &Path, changes: Changes) -> Result<Rewriter> {
        Rewriter::start(input, changes, || {
            refuse_compressed(output)?;
            Output::create(output)
        })
    }

    /// Opens a capture that is copied to `output`.
    ///
    /// # Errors
    /// See [`Reader::open`].
    pub fn to(input: &Path, output: Output, changes: Changes) -> Result<Rewriter> {
        Rewriter::start(input, changes, || Ok(output))
    }

    fn start(input: &Path, changes: Changes, output: impl FnOnce() -> Result<Output>) -> Result<Rewriter> {
        let Changes { format, adds_headers, growth } = changes;
        let reader = Reader::open_copied(input)?;
        let format = format.unwrap_or(reader.format());
        let is_anew = adds_headers || reader.format() != format;
        let [copied, frame, packet, buffer] = [const { Vec::new() }; 4];
        Ok(Rewriter {
            output: output()?,
            growth,
            anew: is_anew.then_some(Anew { format, adds_headers, link: None, time: 0 }),
            has_begun: false,
            is_swapped: reader.pcap().is_some_and(|pcap| pcap.is_swapped),
            first_snap_len: None,
            copied,
            frame,
            packet,
            buffer,
            counts: RewriteCounts::default(),
            flushed: 0,
            reader,
        })
    }

    /// Returns whether interfaces, comments and options are left out.
    pub fn drops_options(&self) -> bool {
        self.anew.is_some() && self.reader.format() == Format::Pcapng
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> RewriteCounts {
        self.counts
    }

    /// Copies up to the next packet, and writes what `edit` makes of it. `edit` calls its last argument for each frame
    /// of the copy, with the captured bytes and the frame's length; without a call, the packet is left out. Returns
    /// false after the last packet.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the position if the capture is malformed or cut; also
    /// if the other file cannot be written. Packets before it are in the file after [`finish`](Rewriter::finish).
    pub fn next(&mut self, mut edit: impl FnMut(RewriteFrame<'_>, &mut dyn FnMut(&[u8], usize))) -> Result<bool> {
        let [mut frame, mut copied] = [&mut self.frame, &mut self.copied].map(std::mem::take);
        let found = self.reader.next(&mut frame);
        let at = self.reader.take_copied(&mut copied);
        if self.anew.is_none() {
            if self.growth.is_some() {
                self.adapt(&mut copied[..at]);
            }
            self.buffer.extend_from_slice(&copied[..at]);
        }
        let Some(record) = found? else {
            self.reader.check_end()?;
            return Ok(false);
        };
        let [packets, bytes] = self.counts.read;
        self.counts.read = [packets + 1, bytes + frame.len() as u64];
        let mut len = record.original_len;
        if record.link != LinkType::ETHERNET {
            self.packet.clone_from(&frame);
        }
        let carries = to_ethernet(record.link, &mut frame, &mut len).is_some();
        if !carries {
            frame.clear();
        }
        let adds_headers = self.anew.as_ref().is_some_and(|anew| anew.adds_headers);
        let is_frame = carries && (adds_headers || record.link == LinkType::ETHERNET);
        let (mut copies, mut outcome) = (0, Ok(()));
        let is_editable = is_frame && self.growth.is_some();
        edit(RewriteFrame { bytes: &mut frame, len, is_editable }, &mut |bytes, len| {
            copies += 1;
            // A packet that is not edited is written once.
            let is_written = is_editable || copies == 1;
            if is_written && outcome.is_ok() {
                let new = is_frame.then_some((bytes, len));
                outcome = self.write(&record, &copied[at..], new, copies == 1);
            }
        });
        self.counts.rejected += u64::from(copies == 0);
        (self.frame, self.copied) = (frame, copied);
        outcome?;
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(true)
    }

    /// Writes a frame, with its captured bytes and its length, or a packet of another link type. `raw` is its record.
    fn write(&mut self, record: &Record, raw: &[u8], frame: Option<(&[u8], usize)>, is_first: bool) -> Result<()> {
        let written = match (&self.anew, frame) {
            (Some(anew), None) if anew.adds_headers => {
                self.counts.not_ethernet += 1;
                return Ok(());
            }
            (Some(anew), Some((bytes, len))) => {
                let link = if anew.adds_headers { LinkType::ETHERNET } else { record.link };
                self.append_anew(Record { link, original_len: len, ..*record }, bytes)?;
                bytes.len()
            }
            (Some(_), None) => {
                let packet = std::mem::take(&mut self.packet);
                self.append_anew(*record, &packet)?;
                self.packet = packet;
                self.packet.len()
            }
            (None, Some((bytes, len))) if self.growth.is_some() => {
                self.counts.surplus += u64::from(is_first && record.surplus > 0);
                self.append(raw, bytes, len, is_first);
                bytes.len()
            }
            (None, _) => {
                self.buffer.extend_from_slice(raw);
                frame.map_or(self.packet.len(), |(bytes, _)| bytes.len())
            }
        };
        self.counts.not_ethernet += u64::from(frame.is_none() && self.growth.is_some());
        let [packets, bytes] = self.counts.written;
        self.counts.written = [packets + 1, bytes + written as u64];
        Ok(())
    }

    /// Appends a packet of a record that is written anew.
    fn append_anew(&mut self, record: Record, packet: &[u8]) -> Result<()> {
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
        anew.format.append_cut(&mut self.buffer, 0, anew.time, packet, record.original_len);
        Ok(())
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
        self.output.begin().map_err(|error| self.output.error(&error, 0))?;
        if let Err((error, written)) = self.output.write_all_counted(&self.buffer) {
            // `finish` tries the rest again, so that its outcome is the file's.
            self.buffer.drain(..written);
            return Err(self.output.error(&error, format_args!("at least {}", self.flushed)));
        }
        self.buffer.clear();
        self.flushed = self.counts.written[0];
        Ok(())
    }

    /// Adapts headers and blocks that are copied: frames may be longer, and have no check sequence.
    fn adapt(&mut self, copied: &mut [u8]) {
        let is_header = !std::mem::replace(&mut self.has_begun, true);
        if self.reader.format() == Format::Pcapng {
            let mut at = 0;
            while copied.len() - at >= 12 {
                at += self.adapt_block(&mut copied[at..]).clamp(12, copied.len() - at);
            }
        } else if is_header && copied.len() >= 24 {
            let (snap_len, link) = (self.field(copied, 16) as u32, self.field(copied, 20) as u32);
            if (1..SNAPLEN).contains(&snap_len) {
                self.put(copied, 16, (snap_len + self.growth.unwrap_or(0)).min(SNAPLEN));
            }
            // Without a frame check sequence.
            self.put(copied, 20, link & 0xFFFF);
        }
    }

    /// Adapts the first block of `raw`, and returns its length.
    fn adapt_block(&mut self, raw: &mut [u8]) -> usize {
        match word(self.is_swapped, raw, 0) {
            // The same in both byte orders.
            SECTION => {
                self.is_swapped = word(false, raw, 8) != 0x1A2B_3C4D;
                self.first_snap_len = None;
            }
            INTERFACE => {
                let snap_len = word(self.is_swapped, raw, 12);
                self.first_snap_len.get_or_insert(if snap_len == 0 { u32::MAX } else { snap_len });
                let end = (word(self.is_swapped, raw, 4) as usize - 4).min(raw.len());
                for (code, value) in self.options(&raw[16..end]) {
                    if code == FCS_LEN && !value.is_empty() {
                        raw[16 + value.start] = 0;
                    }
                }
            }
            _ => {}
        }
        word(self.is_swapped, raw, 4) as usize
    }

    /// Appends a frame with the header and the options of `record`. The options belong to the first frame.
    fn append(&mut self, record: &[u8], bytes: &[u8], len: usize, is_first: bool) {
        let mut output = std::mem::take(&mut self.buffer);
        self.append_to(&mut output, record, bytes, len, is_first);
        self.buffer = output;
    }

    fn append_to(&self, output: &mut Vec<u8>, record: &[u8], bytes: &[u8], len: usize, is_first: bool) {
        let start = output.len();
        let [captured, original] = [bytes.len() as u32, len as u32];
        if is_first && self.is_same(record, bytes, len) {
            return output.extend_from_slice(record);
        }
        if let Some(pcap) = self.reader.pcap() {
            output.extend_from_slice(&record[..pcap.header]);
            for (at, len) in pcap.lengths_at().into_iter().zip([captured, original]) {
                self.put(&mut output[start..], at, len);
            }
            output.extend_from_slice(bytes);
            return;
        }
        if word(self.is_swapped, record, 0) == SIMPLE_PACKET {
            // It has no captured length: that is the length of the frame, or the snap length.
            let bytes = &bytes[..bytes.len().min(self.first_snap_len.unwrap_or(u32::MAX) as usize)];
            let is_whole = bytes.len() as u32 == original.min(self.first_snap_len.unwrap_or(u32::MAX));
            output.extend_from_slice(&record[..12]);
            self.put(&mut output[start..], 8, if is_whole { original } else { bytes.len() as u32 });
            output.extend_from_slice(bytes);
            output.resize(start + (output.len() - start).next_multiple_of(4), 0);
        } else {
            output.extend_from_slice(&record[..28]);
            self.put(&mut output[start..], 20, captured);
            self.put(&mut output[start..], 24, original);
            output.extend_from_slice(bytes);
            output.resize(start + (output.len() - start).next_multiple_of(4), 0);
            if is_first {
                self.append_options(output, record);
            }
        }
        let total = (output.len() - start + 4) as u32;
        self.put(&mut output[start..], 4, total);
        output.extend_from_slice(&self.bytes(total));
    }

    /// Returns whether a record has this frame.
    fn is_same(&self, record: &[u8], bytes: &[u8], len: usize) -> bool {
        let ([captured_at, len_at], data) = match self.reader.pcap() {
            Some(pcap) => (pcap.lengths_at(), pcap.header),
            None if word(self.is_swapped, record, 0) == SIMPLE_PACKET => {
                return record[12..].starts_with(bytes) && self.field(record, 8) == len;
            }
            None => ([20, 24], 28),
        };
        record[data..].starts_with(bytes)
            && (self.field(record, captured_at), self.field(record, len_at)) == (bytes.len(), len)
    }

    fn field(&self, record: &[u8], at: usize) -> usize {
        word(self.is_swapped, record, at) as usize
    }

    /// Appends the options of an enhanced packet: without its hash, and without the length of a frame check sequence.
    fn append_options(&self, output: &mut Vec<u8>, record: &[u8]) {
        let options_at = 28 + (word(self.is_swapped, record, 20) as usize).next_multiple_of(4);
        let options = record.get(options_at..record.len() - 4).unwrap_or_default();
        let (mut kept, mut end) = (0, 0);
        for (code, value) in self.options(options) {
            let option = &options[value.start - 4..value.end.next_multiple_of(4).min(options.len())];
            end = value.start - 4 + option.len();
            if code == HASH {
                continue;
            }
            let at = output.len();
            output.extend_from_slice(option);
            kept += 1;
            if code == FLAGS && value.len() == 4 {
                let flags = word(self.is_swapped, option, 4);
                self.put(&mut output[at..], 4, flags & !(0xF << 5));
            }
        }
        // The end of the options.
        if kept > 0 {
            output.extend_from_slice(options.get(end..).unwrap_or_default());
        }
    }

    /// Returns the codes of options, and where their values are.
    fn options(&self, options: &[u8]) -> Vec<(u16, std::ops::Range<usize>)> {
        let half = |at: usize| {
            let half = options.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)?;
            Some(if self.is_swapped { half.swap_bytes() } else { half })
        };
        let (mut all, mut at) = (Vec::new(), 0);
        while let (Some(code @ 1..), Some(len)) = (half(at), half(at + 2)) {
            let value = at + 4..at + 4 + usize::from(len);
            if value.end > options.len() {
                break;
            }
            at = value.end.next_multiple_of(4);
            all.push((code, value));
        }
        all
    }

    fn bytes(&self, word: u32) -> [u8; 4] {
        if self.is_swapped { word.swap_bytes() } else { word }.to_ne_bytes()
    }

    /// Writes 32 bits in the file's byte order.
    fn put(&self, bytes: &mut [u8], at: usize, word: u32) {
        bytes[at..at + 4].copy_from_slice(&self.bytes(word));
    }
}
