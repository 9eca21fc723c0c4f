//! Capture files in pcap's format, to replay and to record.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use super::{Frame, Report, Wire};
use crate::error::{Error, Result};

/// Replays a capture file once, as fast as the card takes it. Frames that leave the card are
/// counted and vanish.
pub struct Replay {
    reader: PcapReader<BufReader<File>>,
    sent: u64,
    received: u64,
    finished: bool,
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
        let reader = PcapReader::new(BufReader::new(file))
            .map_err(|e| fail(path, format!("not a pcap file: {e}; convert pcapng with editcap -F pcap")))?;
        if reader.header().datalink != DataLink::ETHERNET {
            return Err(fail(path, format!("it holds {:?}, not Ethernet frames", reader.header().datalink)));
        }
        Ok(Replay { reader, sent: 0, received: 0, finished: false })
    }
}

impl Wire for Replay {
    fn transmit(&mut self, _: &Frame) {
        self.received += 1;
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        // A file cut short in the middle of a packet ends there.
        let next = if self.finished { None } else { self.reader.next_packet().and_then(|packet| packet.ok()) };
        let Some(packet) = next else {
            self.finished = true;
            return false;
        };
        frame.bytes.clear();
        frame.bytes.extend_from_slice(&packet.data);
        frame.bad_crc = false;
        self.sent += 1;
        true
    }

    fn finish(&mut self) {
        self.finished = true;
    }

    fn report(&self) -> Option<Report> {
        Some(Report { sent: self.sent, received: self.received, ..Report::default() })
    }
}

/// Records the frames that leave the card, in front of another wire. The file is complete when this
/// value is dropped.
pub struct Record {
    writer: PcapWriter<BufWriter<File>>,
    inner: Box<dyn Wire>,
    recorded: u64,
}

impl Record {
    /// Creates the file, replacing one that is there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, inner: Box<dyn Wire>) -> Result<Record> {
        let file = File::create(path).map_err(|e| fail(path, format!("cannot write it: {e}")))?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            snaplen: 65_535,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|e| fail(path, format!("cannot write it: {e}")))?;
        Ok(Record { writer, inner, recorded: 0 })
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let packet = PcapPacket::new(now, frame.bytes.len() as u32, &frame.bytes);
        self.recorded += u64::from(self.writer.write_packet(&packet).is_ok());
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
        self.inner.finish();
    }

    fn report(&self) -> Option<Report> {
        Some(Report { received: self.recorded, ..self.inner.report().unwrap_or_default() })
    }
}
