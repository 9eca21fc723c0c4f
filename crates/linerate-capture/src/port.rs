//! A capture file as a port: `pcap:FILE` replays its frames, `pcap:FILE?write` records the packets sent to it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::batch::Batch;
use linerate_core::error::{Error, Result};
use linerate_core::memory::Pool;
use linerate_core::packet::{Origin, Times, now};
use linerate_core::port::{
    Address, CaptureCounts, Config, Description, Device, Link, Maturity, Opening, PortClass, PortKind, PortName,
    PortOption, QueueCounters, Receive, SendFinished, SoftwareDevice, SoftwarePort, TIMESTAMPS, Transmit, Value, Waker,
};

use super::ethernet::Defects;
use super::{FramePoll, Frames, Speed, Writer};

/// A port on a capture file.
///
/// Frames shorter than 60 bytes are padded, as a card pads them. Options of its name: `loop=N` reads the file N times
/// (0: forever); `speed=1x` keeps the file's timing, `speed=2x` is twice as fast. Without a speed, frames are delivered
/// as fast as they are received. If the file is malformed or truncated, or the disk is full,
/// [`Port::link`](linerate_core::port::Port::link) fails from then on.
pub struct CapturePort {
    path: PathBuf,
    /// Taken by the receive queue.
    reader: Option<Replay>,
    /// Taken by the transmit queue.
    writer: Option<Writer>,
    is_written: bool,
    failure: Arc<Failure>,
    /// True once no more frames will be read.
    exhausted: Arc<AtomicBool>,
    defects: Arc<Defects>,
    /// Frames that were delivered without their ends.
    snapped: Arc<AtomicU64>,
}

/// The error that ended reading or writing.
#[derive(Default)]
struct Failure(Mutex<Option<Error>>);

impl Failure {
    fn note(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

const ETHERNET: PortOption =
    PortOption::switch("ethernet", "packets of other link types get an Ethernet header; without it, they are skipped");

/// `pcap:FILE`
pub static CAPTURE: PortKind = PortKind {
    description: Description {
        options: &[
            PortOption::switch("write", "record into the file; without it, the file is read"),
            PortOption {
                name: "loop",
                value: Value::Number(0, usize::MAX),
                default: "1",
                help: "how often the file is read; 0: without end",
            },
            PortOption {
                name: "speed",
                value: Value::Text("SPEED"),
                default: "",
                help: "the file's pace: 1x, 2x and so on; without it, as fast as it goes",
            },
            ETHERNET,
            TIMESTAMPS,
        ],
        feature: "capture",
        example: "pcap:in.pcap",
        summary: "a capture file; pcap:out.pcap?write is written",
        page: "capture.md",
        maturity: Maturity::Others,
        class: PortClass::Capture,
        ..Description::new("pcap", Address::File)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    Ok(Box::new(CapturePort::open(opening.name, opening.config)?))
}

impl CapturePort {
    /// Opens the file of a port's name.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be read or written;
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption), also for more than one queue.
    pub fn open(name: &PortName, config: Config) -> Result<SoftwarePort<CapturePort>> {
        for (direction, queues) in [("receive", config.options.rx_queues), ("transmit", config.options.tx_queues)] {
            if queues > 1 {
                return Err(Error::too_many_queues(config.name, direction, queues, 1));
            }
        }
        let path = PathBuf::from(name.address());
        let is_written = name.switch("write", false)?;
        let passes = name.number("loop", 1, 0..=usize::MAX)?;
        let speed = name.option("speed").map(str::parse::<Speed>).transpose();
        let speed = speed.map_err(|error: linerate_core::Error| name.bad_option("speed", error.why()))?;
        if is_written && ["speed", "loop", "ethernet"].iter().any(|option| name.option(option).is_some()) {
            return Err(name.bad_option("write", "loop, speed and ethernet apply only to files that are read"));
        }
        if passes != 1 && std::fs::metadata(&path).is_ok_and(|file| !file.is_file()) {
            return Err(name.bad_option("loop", "only a regular file can be read again"));
        }
        let (defects, adds_headers) = (Arc::<Defects>::default(), name.switch("ethernet", false)?);
        let (reader, writer) = match is_written {
            true => (None, Some(Writer::create(&path)?)),
            false => (Some(Replay::open(&path, passes, speed, adds_headers, defects.clone())?), None),
        };
        let (failure, exhausted, snapped) = (Arc::default(), Arc::new(AtomicBool::new(is_written)), Arc::default());
        let port = CapturePort { path, reader, writer, is_written, failure, exhausted, defects, snapped };
        Ok(SoftwarePort::new(config, port))
    }
}

impl SoftwareDevice for CapturePort {
    const DRIVER: &'static str = "pcap";
    const CLASS: PortClass = PortClass::Capture;
    const TIMESTAMPS: bool = true;

    fn description(&self) -> String {
        let does = if self.is_written { "records into" } else { "replays" };
        format!("{does} {}", self.path.display())
    }

    fn rx(&mut self, config: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let (replay, failure, exhausted) = (self.reader.take(), self.failure.clone(), self.exhausted.clone());
        let (pool, timestamps) = (config.pool.clone(), config.options.timestamps);
        // A file that is written delivers no packets.
        let sleeps = config.options.interrupts.filter(|_| self.is_written);
        let idle_event = sleeps.map(|_| Waker::new()).transpose()?;
        let snapped = self.snapped.clone();
        Ok(Box::new(CaptureRx { replay, pool, timestamps, counters, failure, exhausted, snapped, idle_event }))
    }

    fn tx(&mut self, _: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let (mut writer, failure) = (self.writer.take(), self.failure.clone());
        writer.as_mut().map_or(Ok(()), Writer::begin)?;
        let (is_written, times, bytes) = (self.is_written, Times::default(), Vec::new());
        Ok(Box::new(CaptureTx { writer, is_written, times, bytes, counters, failure }))
    }

    fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    fn capture_counts(&self) -> CaptureCounts {
        self.defects.counts(self.snapped.load(Ordering::Relaxed))
    }

    fn link(&self) -> Result<Link> {
        let failure = self.failure.0.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(Link::Up { mbits: 0 }), Err)
    }
}

/// A file that is read once or several times, at a given speed.
struct Replay {
    path: PathBuf,
    frames: Frames,
    /// The number of passes after this one; `None`: endless.
    passes: Option<usize>,
    speed: Option<Speed>,
    adds_headers: bool,
    /// The first frame of this pass: when it was delivered, and its time in the file.
    begun: Option<(Instant, u64)>,
    /// The next frame's time in the file, if it has one; `None` before it is read.
    next: Option<Option<u64>>,
    bytes: Vec<u8>,
    /// The frame was cut to the snap length.
    is_snapped: bool,
    origin: Origin,
    /// The last pass has ended.
    is_over: bool,
    defects: Arc<Defects>,
}

impl Replay {
    fn open(
        path: &Path,
        passes: usize,
        speed: Option<Speed>,
        adds_headers: bool,
        defects: Arc<Defects>,
    ) -> Result<Replay> {
        Ok(Replay {
            path: path.to_path_buf(),
            frames: Frames::counting(path, adds_headers, defects.clone())?,
            passes: passes.checked_sub(1),
            speed,
            adds_headers,
            begun: None,
            next: None,
            bytes: Vec::new(),
            is_snapped: false,
            origin: Origin::Port,
            is_over: false,
            defects,
        })
    }

    /// Reads the next frame into `bytes` unless it is already there, and returns whether it is due.
    fn is_due(&mut self) -> Result<bool> {
        let time = match self.next {
            Some(time) => time,
            None => match self.read()? {
                Some(time) => time,
                None => return Ok(false),
            },
        };
        // A frame without a time is due immediately.
        let (Some(speed), Some(time)) = (self.speed, time) else { return Ok(true) };
        let (start, first) = *self.begun.get_or_insert_with(|| (Instant::now(), time));
        // Measured from the first frame, so that errors do not add up.
        let due = Duration::from_nanos(speed.scale(time.saturating_sub(first)));
        Ok(start.elapsed() >= due)
    }

    /// Reads the next frame, from the next pass if this one has ended. Returns its time; `None` if there is no frame,
    /// or not yet.
    fn read(&mut self) -> Result<Option<Option<u64>>> {
        loop {
            match self.frames.next(&mut self.bytes)? {
                FramePoll::Frame { nanoseconds, captured_len, original_len } => {
                    self.is_snapped = captured_len < original_len;
                    let original_len = original_len.try_into().unwrap_or(u32::MAX);
                    let padding = (self.bytes.len() - captured_len).try_into().unwrap_or(u8::MAX);
                    self.origin = Origin::File { original_len, padding };
                    self.next = Some(nanoseconds);
                    return Ok(self.next);
                }
                FramePoll::Pending => return Ok(None),
                FramePoll::End => {}
            }
            match &mut self.passes {
                // A file without frames is not read again.
                Some(0) => self.is_over = true,
                _ if self.frames.count() == 0 => self.is_over = true,
                Some(passes) => *passes -= 1,
                None => {}
            }
            if self.is_over {
                return Ok(None);
            }
            self.frames = Frames::counting(&self.path, self.adds_headers, self.defects.clone())?;
            self.begun = None;
        }
    }
}

struct CaptureRx {
    replay: Option<Replay>,
    pool: Arc<Pool>,
    /// Packets are stamped with their times in the file.
    timestamps: bool,
    counters: Arc<QueueCounters>,
    failure: Arc<Failure>,
    exhausted: Arc<AtomicBool>,
    snapped: Arc<AtomicU64>,
    /// Lets a thread sleep while its other ports have no packets either.
    idle_event: Option<Waker>,
}

impl Receive for CaptureRx {
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.idle_event.as_ref().map(Waker::as_fd)
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, mut packets, mut bytes) = (batch.len(), 0, 0);
        while batch.len() < batch.capacity() {
            let Some(replay) = &mut self.replay else { break };
            match replay.is_due() {
                Ok(true) => {}
                Ok(false) if replay.is_over => {
                    self.replay = None;
                    self.exhausted.store(true, Ordering::Relaxed);
                    break;
                }
                Ok(false) => break,
                Err(error) => {
                    // The number of frames left in the file is unknown.
                    self.failure.note(error);
                    self.replay = None;
                    self.exhausted.store(true, Ordering::Relaxed);
                    break;
                }
            }
            if !batch.push(&self.pool, &replay.bytes) {
                if batch.can_hold(&self.pool, replay.bytes.len()) {
                    self.counters.found_no_buffer();
                    break;
                }
                self.counters.missed(0, 1);
            } else {
                if self.timestamps {
                    // A simple packet of pcapng has no time.
                    batch.stamp_last_of(replay.next.flatten().unwrap_or_else(now), replay.origin);
                }
                if replay.is_snapped {
                    self.snapped.fetch_add(1, Ordering::Relaxed);
                }
                (packets, bytes) = (packets + 1, bytes + replay.bytes.len());
            }
            replay.next = None;
        }
        self.counters.moved_packets(packets, batch.len() - before, bytes);
        batch.len() - before
    }
}

struct CaptureTx {
    writer: Option<Writer>,
    /// Packets are recorded, not only counted.
    is_written: bool,
    /// The times of packets without a timestamp.
    times: Times,
    bytes: Vec<u8>,
    counters: Arc<QueueCounters>,
    failure: Arc<Failure>,
}

impl Transmit for CaptureTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }
}

/// A file has the frames as they would be on a wire.
impl SendFinished for CaptureTx {
    /// Accepts all finished packets. Those that cannot be written are dropped and counted. After an error, so are
    /// accepted packets that are not in the file.
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut slots, mut packets, mut total, mut unwritten) = (0, 0, 0, (0, 0));
        let first = self.times.take(batch.len());
        for (packet, time) in batch.packets().take_while(|packet| packet.offload().is_none()).zip(first..) {
            slots += packet.slots();
            self.bytes.clear();
            packet.append_to(&mut self.bytes);
            let (frame, original_len) = packet.origin().captured(&self.bytes);
            if let Some(writer) = &mut self.writer
                && let Err(error) = writer.write_cut(packet.timestamp().unwrap_or(time), frame, original_len)
            {
                self.failure.note(error);
                unwritten = writer.unwritten();
                self.writer = None;
            }
            if self.is_written && self.writer.is_none() {
                self.counters.dropped();
                continue;
            }
            (packets, total) = (packets + 1, total + packet.len());
        }
        batch.drop_front(slots);
        self.counters.moved_packets(packets, slots, total);
        self.counters.recount_as_dropped(unwritten);
        (slots, !batch.is_empty())
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

impl Drop for CaptureTx {
    fn drop(&mut self) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.flush()
        {
            self.failure.note(error);
            self.counters.recount_as_dropped(writer.unwritten());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use linerate::Options;

    use super::*;
    use crate::Writer;

    /// A frame that is not due yet does not end the capture.
    #[test]
    fn a_capture_at_its_speed_waits_for_its_frames() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow.pcapng");
        let mut writer = Writer::create(&path).unwrap();
        for number in 0..3 {
            writer.write(number * 30_000_000, &[number as u8; 60]).unwrap();
        }
        drop(writer);
        let [mut port] = Options::default().open([&*format!("pcap:{}?speed=1x", path.display())]).unwrap();
        let (mut rx, mut batch) = (port.rx(0).unwrap(), Batch::new());
        let begin = Instant::now();
        while !port.is_exhausted() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} of three frames, and no end", batch.len());
            rx.recv(&mut batch);
        }
        assert_eq!(batch.len(), 3);
    }
}
