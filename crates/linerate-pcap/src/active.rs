//! A port that a handle captures from: frames, waiting, sending.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant, SystemTime};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Port, PortName, RxQueue, TxQueue};
use linerate::{Batch, Error, Options};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::abi::*;
use crate::filter;
use crate::socket::{names, shared};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Packets that are received at once.
const BATCH: usize = 64;
/// Slots of the receive ring, unless the name or the program's buffer size says otherwise.
const RING: usize = 4096;
/// Bytes of a slot's buffer.
const SLOT: usize = 2048;
/// A thread that waits polls for this time before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);
/// The longest sleep, and how often the port's link is looked at.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);
/// The longest sleep where a port cannot wake a thread.
const TICK: Duration = Duration::from_millis(1);
/// How long a program's frame may wait for room, and for its way to the wire when the handle is closed.
const ROOM: Duration = Duration::from_secs(1);

/// What a handle is set to before it is activated.
pub struct Settings {
    pub snaplen: Cell<c_int>,
    pub promiscuous: Cell<bool>,
    pub monitor_mode: Cell<bool>,
    pub buffer_size: Cell<c_int>,
    pub precision: Cell<c_int>,
}

/// A received frame. Its bytes are in a buffer of the batch, or in `long`, until the next batch is received.
pub struct Frame {
    pub bytes: *const u8,
    pub len: u32,
    /// Its time since 1970.
    pub nanoseconds: u32,
    pub seconds: u64,
}

/// An open port.
pub struct Active {
    /// The port's name with its options.
    name: String,
    // Dropped in this order: queues before their port.
    rx: RxQueue,
    tx: Option<TxQueue>,
    port: Port,
    batch: Batch,
    frames: Vec<Frame>,
    /// The next frame to give to the program.
    next: usize,
    /// Frames of several buffers, in one piece.
    long: Vec<Box<[u8]>>,
    filter: Option<Box<[Instruction]>>,
    snaplen: u32,
    /// The time of the last frame.
    last: u64,
    /// Frames that the filter let pass.
    passed: u64,
    /// Frames that were sent.
    sent: u64,
    /// The descriptor that programs wait for: it contains the queue's event, and `ready` or `tick`.
    watch: OwnedFd,
    /// Readable while frames wait in `frames`.
    ready: OwnedFd,
    is_ready: bool,
    is_armed: bool,
    /// For a port that cannot wake a thread: readable each millisecond.
    tick: Option<OwnedFd>,
    /// Since when no frame has come.
    quiet_since: Option<Instant>,
    /// When the port's link was looked at.
    link_since: Instant,
}

fn system(call: &'static str, error: rustix::io::Errno) -> Error {
    Error::System { call, source: error.into() }
}

impl Active {
    pub fn open(name: &str, settings: &Settings) -> Result<Active, Error> {
        let parsed = PortName::parse(name)?;
        // A card that another process serves has its ring there; the length of a switch's is the library's choice.
        let asked = settings.buffer_size.get().cast_unsigned() as usize / SLOT;
        let ring = match asked {
            0 if parsed.may_be_served() => None,
            0 => Some(RING),
            asked => Some(asked.clamp(64, RING).next_power_of_two()),
        };
        // Only a port of this process has its packets there for long.
        let memory = RegionOptions::default();
        let mut port = match shared::port(name, || Ok(Pool::new(Region::lazy(&memory)?)))? {
            Some(port) => port,
            None => {
                let region = if parsed.may_be_served() { Region::lazy(&memory) } else { Region::new(&memory) }?;
                let pool = Some(Pool::new(region));
                let options = Options { ring, pool, interrupts: Some(Duration::ZERO), ..Options::default() };
                let [port] = options.open([name])?;
                // A program asks for the port's address by packet sockets while this handle has the port.
                if let Some(name) = names::of_text(name) {
                    let max_frame = port.info().max_frame;
                    name.note(names::About { address: port.mac().0, max_frame, can_send: true });
                }
                port
            }
        };
        match port.set_promiscuous(settings.promiscuous.get()) {
            // A port in memory has no addresses to filter by.
            Ok(()) | Err(Error::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut rx = port.rx(0)?;
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(|error| system("epoll_create1", error))?;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(&watch, fd, EventData::new_u64(0), EventFlags::IN).map_err(|error| system("epoll_ctl", error))
        };
        let ready = event()?;
        add(ready.as_fd())?;
        let can_wake = rx.arm().map(add).transpose()?.is_some();
        rx.disarm();
        let tick = if can_wake { None } else { Some(ticking()?) };
        tick.as_ref().map(|tick| add(tick.as_fd())).transpose()?;
        Ok(Active {
            name: name.to_string(),
            rx,
            tx: None,
            port,
            batch: Batch::with_capacity(BATCH),
            frames: Vec::with_capacity(BATCH),
            next: 0,
            long: Vec::new(),
            filter: None,
            snaplen: settings.snaplen.get().cast_unsigned(),
            last: 0,
            passed: 0,
            sent: 0,
            watch,
            ready,
            is_ready: false,
            is_armed: false,
            tick,
            quiet_since: None,
            link_since: Instant::now(),
        })
    }

    /// Captures from another port from now on, with the same filter.
    ///
    /// # Errors
    /// As [`open`](Active::open); then nothing has changed.
    pub fn open_again(&mut self, name: &str, settings: &Settings) -> Result<(), Error> {
        if self.name != name {
            let mut other = Active::open(name, settings)?;
            std::mem::swap(self, &mut other);
            self.filter = other.filter.take();
            // The program may have the descriptor's number.
            rustix::io::dup2(&self.watch, &mut other.watch).map_err(|error| system("dup2", error))?;
            std::mem::swap(&mut self.watch, &mut other.watch);
        }
        Ok(())
    }

    /// Returns the next frame that the filter lets pass, of those that were received, with the count of its bytes to give.
    #[inline]
    pub fn next(&mut self) -> Option<(&Frame, u32)> {
        let wanted = self.skip()?;
        let frame = &self.frames[self.next];
        self.next += 1;
        self.passed += 1;
        Some((frame, wanted.min(frame.len)))
    }

    /// Goes to the next frame that the filter lets pass, and returns how many bytes of it are wanted.
    #[inline]
    fn skip(&mut self) -> Option<u32> {
        while let Some(frame) = self.frames.get(self.next) {
            let wanted = match &self.filter {
                None => self.snaplen,
                // SAFETY: the frame's bytes stay until the next batch is received.
                Some(filter) => unsafe { filter::run(filter, frame.bytes, frame.len) }.min(self.snaplen),
            };
            if wanted > 0 {
                return Some(wanted);
            }
            self.next += 1;
        }
        None
    }

    /// Receives frames in place of the last ones. Returns false if there are none.
    pub fn receive(&mut self) -> bool {
        self.frames.clear();
        self.long.clear();
        self.next = 0;
        self.batch.clear();
        if self.rx.recv(&mut self.batch) == 0 {
            return false;
        }
        self.quiet_since = None;
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        // A frame without a time of its own came between the last poll and this one. Those of a batch have times one after
        // the other, of which the last is about that of this poll.
        let first = (now - self.batch.len() as u64).max(self.last + 1);
        let (mut seconds, mut nanoseconds) = (first / SECOND, (first % SECOND) as u32);
        for packet in self.batch.packets() {
            let (bytes, len) = match packet.slots() {
                1 => (packet.as_ptr(), packet.len()),
                _ => {
                    let mut whole = Vec::with_capacity(packet.len());
                    packet.append_to(&mut whole);
                    self.long.push(whole.into());
                    self.long.last().map_or((std::ptr::null(), 0), |whole| (whole.as_ptr(), whole.len()))
                }
            };
            if let Some(time) = packet.timestamp() {
                let time = time.max(self.last);
                (seconds, nanoseconds) = (time / SECOND, (time % SECOND) as u32);
                self.last = time;
            }
            self.frames.push(Frame { bytes, len: len as u32, nanoseconds, seconds });
            nanoseconds += 1;
            if nanoseconds == SECOND as u32 {
                (seconds, nanoseconds) = (seconds + 1, 0);
            }
        }
        self.last = self.last.max(seconds * SECOND + u64::from(nanoseconds) - 1);
        true
    }

    /// Sleeps until frames may have come, or `waker` is written to. The port is polled for a while before.
    ///
    /// # Errors
    /// Those of the port's link.
    pub fn wait(&mut self, waker: BorrowedFd<'_>) -> Result<(), Error> {
        if self.quiet_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            std::hint::spin_loop();
            return Ok(());
        }
        if !self.is_armed && self.tick.is_none() {
            self.rx.arm();
            self.is_armed = true;
            // A frame may have come before; there is one more poll.
            return Ok(());
        }
        let event = self.rx.arm().filter(|_| self.tick.is_none());
        let longest = if event.is_some() { LONGEST_SLEEP } else { TICK };
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        let mut events = vec![PollFd::from_borrowed_fd(waker, PollFlags::IN)];
        events.extend(event.as_ref().map(|event| PollFd::new(event, PollFlags::IN)));
        let _ = poll(&mut events, Some(&longest));
        drop(events);
        let _ = rustix::io::read(waker, &mut [0; 8]);
        self.disarm();
        // The event of a port that is gone is readable for good.
        if self.link_since.elapsed() >= LONGEST_SLEEP {
            self.link_since = Instant::now();
            self.port.link()?;
        }
        Ok(())
    }

    /// Polls from now on.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.rx.disarm();
        }
    }

    /// Makes the program's descriptor readable while frames wait, or once they come.
    pub fn keep_watch(&mut self) {
        while self.skip().is_none() && self.tick.is_none() {
            // What came before does not interrupt, and each look at the ring asks for the next interrupt anew.
            self.rx.arm();
            self.is_armed = true;
            if !self.receive() {
                break;
            }
        }
        let is_ready = self.skip().is_some();
        if is_ready != self.is_ready {
            let _ = match is_ready {
                true => rustix::io::write(&self.ready, &1u64.to_ne_bytes()),
                false => rustix::io::read(&self.ready, &mut [0; 8]),
            };
            self.is_ready = is_ready;
        }
        if let Some(tick) = &self.tick {
            let _ = rustix::io::read(tick, &mut [0; 8]);
        }
    }

    /// Returns the descriptor that is readable while there are frames.
    pub fn descriptor(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// Returns whether the port gives no more frames: the end of a capture file.
    pub fn is_exhausted(&self) -> bool {
        self.port.is_exhausted()
    }

    /// Filters from now on.
    pub fn set_filter(&mut self, filter: Box<[Instruction]>) {
        self.filter = Some(filter);
    }

    /// Returns the program's statistics since the port was opened.
    ///
    /// # Errors
    /// Those of the port.
    pub fn statistics(&self) -> Result<Stat, Error> {
        let drops = self.port.statistics()?.drops;
        let of_frames = drops.bad_crc + drops.undersize + drops.oversize + drops.bad_frame + drops.malformed;
        Ok(Stat {
            received: self.passed as c_uint,
            dropped: drops.no_descriptor as c_uint,
            interface_dropped: of_frames as c_uint,
        })
    }

    /// Sends a frame. Returns false if there was no room for it for a second.
    ///
    /// # Errors
    /// Those of the port; a frame that is too long.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let most = self.port.info().max_frame;
        if bytes.len() > most {
            return Err(system("send", rustix::io::Errno::MSGSIZE));
        }
        let mut batch = Batch::new();
        if !batch.push(self.port.pool(), bytes) {
            return Ok(false);
        }
        let tx = match &mut self.tx {
            Some(tx) => tx,
            None => self.tx.insert(self.port.tx(0)?),
        };
        let begin = Instant::now();
        loop {
            tx.send(&mut batch);
            if batch.is_empty() && tx.unsent() == 0 {
                self.sent += 1;
                return Ok(true);
            }
            if begin.elapsed() > ROOM {
                self.port.link()?;
                return Ok(batch.is_empty());
            }
            std::thread::yield_now();
        }
    }

    /// Lets sent frames reach the wire: closing a card forgets those in its ring.
    fn finish(&mut self) {
        let begin = Instant::now();
        while self.tx.is_some()
            && self.port.statistics().is_ok_and(|statistics| statistics.tx_packets < self.sent)
            && begin.elapsed() < ROOM
        {
            std::thread::yield_now();
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Creates a timer that is readable each millisecond.
fn ticking() -> Result<OwnedFd, Error> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|error| system("timerfd_create", error))?;
    let each = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: each, it_value: each })
        .map_err(|error| system("timerfd_settime", error))?;
    Ok(timer)
}

/// Creates an event (eventfd(2)) that has not happened.
pub fn event() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| system("eventfd", error))
}
