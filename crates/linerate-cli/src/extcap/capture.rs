//! Writes a port's packets to Wireshark's pipe, until Wireshark closes it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use linerate::capture::Format;
use linerate::filter::Filter;
use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Drops, Port, RxQueue, Wait, Waiter, Waker};
use linerate::{Batch, Error, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::names::Interface;
use crate::error::with_hint;
use crate::signals::interrupts;
use crate::terminal::note;

/// Packets per batch.
const BATCH: usize = 256;
/// Slots of a receive ring, unless the port's name has the option `ring`.
const RING: usize = 4096;
/// The number of buffered bytes at which the buffer is written.
const BUFFER: usize = 64 << 10;
/// The longest time for which bytes are buffered while packets arrive. In a pause they are written immediately.
const FLUSH_AFTER: Duration = Duration::from_millis(100);
/// The longest time to wait for the pipe's reader, and how often to check for it.
const READER: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The longest sleep while the pipe is full, after which the thread checks whether it is to end.
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// The sleep if a port cannot wake a thread.
const TICK: Duration = Duration::from_millis(1);

/// Captures from a port until a signal, the end of the pipe's reader, or the end of the port's packets.
pub fn capture(name: &str, filter: Option<&Filter>, snaplen: u32, pipe: File) -> Result<(), String> {
    let cannot = |error: Error| explain(&error, name);
    let mut port = open(name).map_err(cannot)?;
    let waker = Waker::new().map_err(cannot)?;
    let ended = waker.clone();
    std::thread::spawn(move || {
        interrupts().wait_for_end(None);
        ended.wake();
    });
    let dropped = |port: &Port| port.statistics().map(|statistics| missed(&statistics.drops));
    let before = dropped(&port).map_err(cannot)?;
    let queues = (0..port.info().rx_queues).map(|queue| port.rx(queue)).collect::<Result<_, Error>>();
    let stream = Stream::new(pipe, snaplen, waker.clone());
    let mut capture = Capture { queues: queues.map_err(cannot)?, filter, stream, bytes: Vec::new(), last: 0 };
    let outcome = capture.run(&port, waker);
    // If the card is gone, its counters cannot be read.
    let missing = dropped(&port).map_or(0, |after| after.saturating_sub(before));
    if missing > 0 {
        note(&format!(
            "linerate: {name} dropped {missing} packets, which arrived faster than they were captured; a capture filter or a \
             shorter snap length helps"
        ));
    }
    outcome
}

/// Returns an error with a remedy for captures.
fn explain(error: &Error, name: &str) -> String {
    let is_taken = matches!(error.kind(), linerate::ErrorKind::QueueTaken | linerate::ErrorKind::InUse);
    match linerate::parse(name) {
        Ok(port) if is_taken && port.may_be_served() => {
            let copies = Interface::of(&format!("{}+rt", port.short()));
            format!("another program uses port '{name}'\n  to capture copies of its packets: {copies}")
        }
        _ => with_hint(error),
    }
}

fn open(name: &str) -> Result<Port, Error> {
    // The length of a served port's ring is the library's choice.
    let ring = (!linerate::parse(name)?.may_be_served()).then_some(RING);
    let buffers = RegionOptions { buffers: 4 * RING, ..RegionOptions::default() };
    let pool = Some(Pool::new(Region::new(&buffers)?));
    let options = Options { ring, pool, interrupts: Some(Duration::ZERO), timestamps: true, ..Options::default() };
    let [mut port] = options.open([name])?;
    match port.set_promiscuous(true) {
        // A port in memory has no addresses to filter by.
        Err(error) if error.kind() != linerate::ErrorKind::Unsupported => Err(error),
        _ => Ok(port),
    }
}

/// Returns the number of packets that arrived but were not delivered. Packets that wait for a buffer do not count.
fn missed(drops: &Drops) -> u64 {
    drops.no_descriptor + drops.oversize + drops.malformed
}

/// Opens the pipe once it has a reader, which Wireshark starts after this program; `None` if a signal arrives first.
pub fn open_pipe(path: &Path) -> Result<Option<File>, String> {
    let start = Instant::now();
    loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(pipe) => return Ok(Some(pipe)),
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => {
                return Err(format!("{}: cannot write to it: {error}\n  create a pipe: mkfifo(1)", path.display()));
            }
            Err(_) if start.elapsed() > READER => {
                return Err(format!(
                    "{}: no program has opened this pipe for reading within {} s\n  start its reader",
                    path.display(),
                    READER.as_secs()
                ));
            }
            Err(_) => {}
        }
        if interrupts().wait(POLL_INTERVAL) {
            return Ok(None);
        }
    }
}

struct Capture<'a> {
    queues: Vec<RxQueue>,
    filter: Option<&'a Filter>,
    stream: Stream,
    /// Room for a packet of several slots.
    bytes: Vec<u8>,
    /// The last time that was assigned to a packet.
    last: u64,
}

impl Capture<'_> {
    fn run(&mut self, port: &Port, waker: Waker) -> Result<(), String> {
        let can_wake = self.queues.iter_mut().filter_map(|queue| queue.arm()).count() == self.queues.len();
        self.queues.iter_mut().for_each(RxQueue::disarm);
        let (mut batch, mut waiter) = (Batch::with_capacity(BATCH), Waiter::new(Wait::Adaptive).woken_by(waker));
        let mut has_reader = self.stream.flush()?;
        while has_reader && !interrupts().should_end() {
            let packets = self.turn(&mut batch);
            if packets > 0 {
                has_reader = !self.stream.is_due() || self.stream.flush()?;
                waiter.turn(packets, &mut []);
                continue;
            }
            has_reader = self.stream.flush()? && self.stream.has_reader();
            if port.is_exhausted() {
                break;
            }
            port.link().map_err(|error| with_hint(&error))?;
            match can_wake {
                true => waiter.turn(0, &mut self.queues.iter_mut().collect::<Vec<_>>()),
                false => std::thread::sleep(TICK),
            }
        }
        Ok(())
    }

    /// Receives a batch from each queue, and returns the number of packets.
    fn turn(&mut self, batch: &mut Batch) -> usize {
        let mut packets = 0;
        for queue in &mut self.queues {
            queue.recv(batch);
            // Packets without their own time get increasing times, so that programs can tell them apart.
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
            let first = now.max(self.last + 1);
            for (packet, n) in batch.packets().zip(0..) {
                packets += 1;
                let frame = if packet.slots() == 1 {
                    &packet
                } else {
                    self.bytes.clear();
                    packet.append_to(&mut self.bytes);
                    &self.bytes[..]
                };
                if self.filter.is_none_or(|filter| filter.matches(frame)) {
                    self.stream.write(packet.timestamp().unwrap_or(first + n), frame);
                }
                self.last = first + n;
            }
            batch.clear();
        }
        packets
    }
}

/// A pipe to which a capture is written: pcap with times in nanoseconds. If its reader is too slow, this blocks, and
/// the port drops packets.
struct Stream {
    pipe: File,
    snaplen: u32,
    buffer: Vec<u8>,
    flushed: Instant,
    waker: Waker,
}

impl Stream {
    fn new(pipe: File, snaplen: u32, waker: Waker) -> Stream {
        let mut buffer = Vec::new();
        Format::Pcap.begin(&mut buffer, snaplen, &[]);
        Stream { pipe, snaplen, buffer, flushed: Instant::now(), waker }
    }

    /// Appends a frame that arrived at `time`, in nanoseconds since 1970.
    fn write(&mut self, time: u64, frame: &[u8]) {
        Format::Pcap.append(&mut self.buffer, 0, time, frame, self.snaplen as usize);
    }

    /// Returns whether buffered frames must be written even while packets arrive.
    fn is_due(&self) -> bool {
        self.buffer.len() >= BUFFER || self.flushed.elapsed() >= FLUSH_AFTER
    }

    /// Writes all buffered frames; false if the pipe has no reader any more, or if a signal arrived first.
    fn flush(&mut self) -> Result<bool, String> {
        self.flushed = Instant::now();
        let mut written = 0;
        while written < self.buffer.len() {
            match self.pipe.write(&self.buffer[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let pipe = PollFd::new(&self.pipe, PollFlags::OUT);
                    let _ = poll(&mut [pipe, PollFd::new(&self.waker, PollFlags::IN)], Some(&LONGEST_SLEEP));
                    if interrupts().should_end() {
                        return Ok(false);
                    }
                }
                Err(error) => {
                    return Err(format!("cannot write to the pipe: {error}\n  start the capture again"));
                }
            }
        }
        self.buffer.clear();
        Ok(true)
    }

    /// Returns whether the pipe still has a reader.
    fn has_reader(&self) -> bool {
        let mut pipe = [PollFd::new(&self.pipe, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !(poll(&mut pipe, Some(&now)).is_ok_and(|count| count > 0) && pipe[0].revents().contains(PollFlags::ERR))
    }
}
