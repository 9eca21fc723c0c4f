//! The packets of a capture as Ethernet frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::port::CaptureCounts;

use super::link_header::to_ethernet;
use super::{LinkType, Reader};

/// The shortest frame without CRC.
const SHORTEST: usize = 60;
/// The length of an Ethernet header.
const HEADER: usize = 14;

/// Counts of packets that are not delivered, or not as they are in the file.
#[derive(Debug, Default)]
pub(super) struct Defects {
    not_ethernet: AtomicU64,
    too_short: AtomicU64,
    surplus: AtomicU64,
}

impl Defects {
    /// Returns the counts, with `snapped`, which only the receiver of the frames knows.
    pub fn counts(&self, snapped: u64) -> CaptureCounts {
        let [not_ethernet, too_short, surplus] =
            [&self.not_ethernet, &self.too_short, &self.surplus].map(|count| count.load(Ordering::Relaxed));
        CaptureCounts { not_ethernet, too_short, surplus, snapped }
    }
}

/// Reads the packets of a capture as Ethernet frames.
pub(super) struct EthernetReader {
    reader: Reader,
    /// Packets of other link types get an Ethernet header; otherwise they are skipped.
    adds_headers: bool,
    /// The number of frames so far, and the link type of the first skipped packet.
    count: u64,
    skipped: Option<LinkType>,
    defects: Arc<Defects>,
}

impl EthernetReader {
    /// Fails if all packets would be skipped.
    pub fn new(reader: Reader, adds_headers: bool, defects: Arc<Defects>) -> Result<EthernetReader> {
        match reader.link_type() {
            Some(link) if link != LinkType::ETHERNET && !adds_headers => Err(not_ethernet(&reader, link, false)),
            _ => Ok(EthernetReader { reader, adds_headers, count: 0, skipped: None, defects }),
        }
    }

    /// Reads the next frame into `bytes`. Returns its time, and its captured and its original length.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<(Option<u64>, [usize; 2])>> {
        while let Some(mut record) = self.reader.next(bytes)? {
            let is_ethernet = match self.adds_headers {
                true => to_ethernet(record.link, bytes, &mut record.original_len).is_some(),
                false => record.link == LinkType::ETHERNET,
            };
            if !is_ethernet {
                self.skipped.get_or_insert(record.link);
                self.defects.not_ethernet.fetch_add(1, Ordering::Relaxed);
            } else if bytes.len() < HEADER {
                self.defects.too_short.fetch_add(1, Ordering::Relaxed);
            } else {
                if record.surplus > 0 {
                    self.defects.surplus.fetch_add(1, Ordering::Relaxed);
                }
                self.count += 1;
                let lens = [bytes.len(), record.original_len];
                bytes.resize(bytes.len().max(SHORTEST), 0);
                return Ok(Some((record.nanoseconds, lens)));
            }
        }
        self.reader.check_end()?;
        match self.skipped.filter(|_| self.count == 0) {
            Some(link) => Err(not_ethernet(&self.reader, link, self.adds_headers)),
            None => Ok(None),
        }
    }
}

/// Returns the error for a capture without Ethernet frames, whose first packet has this link type.
fn not_ethernet(reader: &Reader, link: LinkType, adds_headers: bool) -> Error {
    match adds_headers {
        true => reader.error(format!("its packets cannot be sent as Ethernet: {link}")),
        false => reader.error(format!("its packets are not Ethernet: {link}")).with_remedy(Remedy::AddHeaders),
    }
}
