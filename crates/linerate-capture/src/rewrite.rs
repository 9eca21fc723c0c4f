//! Copies a capture with its frames edited.

use std::path::Path;

use linerate_core::error::Result;

use super::pcapng::SECTION;
use super::source::word;
use super::{Format, LinkType, Reader, SNAPLEN};

/// A capture that is copied: its Ethernet frames are edited, and all else is kept. These are times, interfaces,
/// comments and other options, blocks, packets of other link types, and the byte order.
///
/// Frame check sequences are removed, as an edit invalidates them, and hashes of edited packets (`epb_hash`).
///
/// ```no_run
/// # fn main() -> linerate::Result<()> {
/// // Removes everything after the Ethernet headers.
/// let mut rewriter = linerate::capture::Rewriter::open("in.pcapng".as_ref(), 0)?;
/// let mut copy = Vec::new();
/// while rewriter.next(&mut copy, |frame, len, each| each(&frame[..frame.len().min(14)], len))? {}
/// std::fs::write("out.pcapng", copy).unwrap();
/// # Ok(()) }
/// ```
pub struct Rewriter {
    reader: Reader,
    growth: u32,
    has_begun: bool,
    is_swapped: bool,
    /// The snap length of the section's first interface, to which simple packets belong; `None` before it.
    first_snap_len: Option<u32>,
    frame: Vec<u8>,
    copied: Vec<u8>,
    /// Packets of other link types, and frames with more bytes than their length.
    not_ethernet: u64,
    surplus: u64,
}

// Blocks and options of pcapng (draft-ietf-opsawg-pcapng, section 4).
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const FCS_LEN: u16 = 13; // if_fcslen
const FLAGS: u16 = 2; // epb_flags
const HASH: u16 = 3; // epb_hash

impl Rewriter {
    /// Opens a capture. Frames may become `growth` bytes longer, by which the snap length of a pcap file grows.
    ///
    /// # Errors
    /// See [`Reader::open`].
    pub fn open(path: &Path, growth: u32) -> Result<Rewriter> {
        let reader = Reader::open_copied(path)?;
        let is_swapped = reader.pcap().is_some_and(|pcap| pcap.is_swapped);
        let [frame, copied] = [const { Vec::new() }; 2];
        Ok(Rewriter {
            reader,
            growth,
            has_begun: false,
            is_swapped,
            first_snap_len: None,
            frame,
            copied,
            not_ethernet: 0,
            surplus: 0,
        })
    }

    /// Returns the file's format, which the copy has, too.
    pub fn format(&self) -> Format {
        if self.reader.is_pcapng() { Format::Pcapng } else { Format::Pcap }
    }

    /// Returns the number of packets that were copied without an edit, as they are not Ethernet.
    pub fn not_ethernet(&self) -> u64 {
        self.not_ethernet
    }

    /// Returns the number of frames of which the file has more bytes than their length; those were removed.
    pub fn surplus(&self) -> u64 {
        self.surplus
    }

    /// Copies up to the next packet, and appends to `output` what `edit` makes of it. `edit` gets the captured bytes and
    /// the frame's length, and calls its last argument with both for each frame of the copy. Returns false after the
    /// last packet.
    ///
    /// # Errors
    /// See [`Reader::next`] and [`Reader::check_end`]. `output` then has all before the malformed or cut record.
    pub fn next(
        &mut self,
        output: &mut Vec<u8>,
        mut edit: impl FnMut(&mut Vec<u8>, usize, &mut dyn FnMut(&[u8], usize)),
    ) -> Result<bool> {
        let [mut frame, mut copied] = [&mut self.frame, &mut self.copied].map(std::mem::take);
        let next = self.reader.next(&mut frame);
        let at = self.reader.take_copied(&mut copied);
        self.adapt(&mut copied[..at]);
        output.extend_from_slice(&copied[..at]);
        let record = &copied[at..];
        let found = next?;
        match found {
            None => self.reader.check_end()?,
            Some(found) if found.link != LinkType::ETHERNET => {
                self.not_ethernet += 1;
                output.extend_from_slice(record);
            }
            Some(found) => {
                self.surplus += u64::from(found.surplus > 0);
                let mut is_first = true;
                edit(&mut frame, found.original_len, &mut |bytes, len| {
                    self.append(output, record, bytes, len, std::mem::take(&mut is_first));
                });
            }
        }
        (self.frame, self.copied) = (frame, copied);
        Ok(found.is_some())
    }

    /// Adapts headers and blocks that are copied: frames may be longer, and have no check sequence.
    fn adapt(&mut self, copied: &mut [u8]) {
        let is_header = !std::mem::replace(&mut self.has_begun, true);
        if self.reader.is_pcapng() {
            let mut at = 0;
            while copied.len() - at >= 12 {
                at += self.adapt_block(&mut copied[at..]).clamp(12, copied.len() - at);
            }
        } else if is_header && copied.len() >= 24 {
            let (snap_len, link) = (self.field(copied, 16) as u32, self.field(copied, 20) as u32);
            if (1..SNAPLEN).contains(&snap_len) {
                self.put(copied, 16, (snap_len + self.growth).min(SNAPLEN));
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
    fn append(&self, output: &mut Vec<u8>, record: &[u8], bytes: &[u8], len: usize, is_first: bool) {
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
