//! Capture files: reads packets that other programs recorded, and writes recordings that they can read.
//!
//! - [`Reader`]: reads the packets of pcap and pcapng, which `pcap` and `pcapng` parse; `source`: the file's bytes, also
//!   of compressed files (`compression`)
//! - [`Frames`]: the Ethernet frames of a file or a pipe, as a port delivers them; `ethernet`: the packets that they
//!   are; [`LinkType`]: other link types; `link_header`: their headers as Ethernet headers; [`Speed`]: the replay speed
//! - [`Writer`]: writes both, with nanosecond timestamps; [`Format`]: the encoding of records; [`Output`]: the output
//!   file
//! - [`Compressor`]: compresses what is written to a file
//! - [`Rewriter`]: copies a file into another, with its packets edited or left out
//! - [`CapturePort`]: a file as a port, `pcap:FILE`; `stream`: the same for a pipe
//! - [`Recorded`]: a recorder around a port, `recorded:PORT?to=FILE`
//!
//! The parser is our own, because an untrusted file must neither hang nor mislead a program. pcap-file 2.0 repeats a
//! malformed packet forever, and scales times of pcapng wrongly. pcap-parser 0.17 rejects every resolution that is a
//! power of two, and reads `if_tsoffset` in the wrong byte order.
//!
//! Formats: the IETF drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; comments cite their sections.
#![forbid(unsafe_code)]
#![warn(rustdoc::broken_intra_doc_links)]

mod compression;
mod compressor;
mod ethernet;
mod format;
mod frames;
mod link;
mod link_header;
mod output;
mod pcap;
mod pcapng;
mod port;
mod reader;
mod recorded;
mod rewrite;
mod source;
mod speed;
mod stream;
mod writer;

pub use compressor::Compressor;
pub use format::{Counts, Format, ParsedRecord, SNAPLEN};
pub use frames::{FramePoll, Frames};
pub use link::LinkType;
pub use output::{Extent, Output};
pub use port::{CAPTURE, CapturePort};
pub use reader::Reader;
pub use recorded::{RECORDED, Recorded, Recorder};
pub use rewrite::{Changes, RewriteCounts, RewriteFrame, Rewriter};
pub use source::Record;
pub use speed::Speed;
pub use writer::TryWriter;
pub use writer::Writer;

/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;

/// The entry point of the fuzz target of capture files.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::Reader;

    /// Reads a capture file: it must end, and yield no more bytes than the file has.
    pub fn capture(data: &[u8]) {
        let Ok(mut reader) = Reader::new(std::io::Cursor::new(data.to_vec()), "fuzzed") else { return };
        let (mut bytes, mut total, mut frames) = (Vec::new(), 0, 0);
        while let Ok(Some(mut record)) = reader.next(&mut bytes) {
            (total, frames) = (total + bytes.len(), frames + 1);
            assert!(reader.is_compressed() || total + 16 * frames <= data.len(), "more than the file has");
            let _ = super::link_header::to_ethernet(record.link, &mut bytes, &mut record.original_len);
        }
        assert!(matches!(reader.next(&mut bytes), Ok(None)), "the reader begins again");
    }
}
