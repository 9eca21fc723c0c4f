//! A port that a handle captures from: frames and waiting.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::RxQueue;
use linerate::{Batch, Error, ErrorKind, Options, Packet};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::abi::*;
use crate::filter;
use crate::latch::Latch;
use crate::longest::LongestOfInterface;
use crate::side::{Side, system};
use crate::sleep::Sleep;
use crate::socket::system::opening;
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

/// The settings of a handle before it is activated.
pub struct Settings {
    pub snaplen: Cell<c_int>,
    pub promiscuous: Cell<bool>,
    pub monitor_mode: Cell<bool>,
    /// Milliseconds.
    pub timeout: Cell<c_int>,
    pub immediate: Cell<bool>,
    pub buffer_size: Cell<c_int>,
    pub precision: Cell<c_int>,
}

/// A received frame. Its bytes are in a buffer of the batch, or in `long`, until the next batch is received.
#[derive(Clone, Copy)]
pub struct Frame {
    pub header: PacketHeader,
    pub bytes: *const u8,
}

/// Received frames that wait for the program. They are the handle's, so that a frame needs no borrow of the receiving side.
pub struct Waiting {
    frames: Box<[Cell<Frame>; BATCH]>,
    /// The address of the first that waits, and that behind the last.
    next: Cell<*const Frame>,
    end: Cell<*const Frame>,
}

impl Waiting {
    pub fn new() -> Waiting {
        let none = Frame { header: PacketHeader::EMPTY, bytes: std::ptr::null() };
        let frames = Box::new(std::array::from_fn(|_| Cell::new(none)));
        Waiting { frames, next: Cell::new(std::ptr::null()), end: Cell::new(std::ptr::null()) }
    }

    /// Takes the next frame, which stays where it is until frames are received.
    #[inline(always)]
    pub fn take(&self) -> Option<*const Frame> {
        let next = self.next.get();
        if self.is_empty() {
            return None;
        }
        self.next.set(next.wrapping_add(1));
        Some(next)
    }

    pub fn is_empty(&self) -> bool {
        self.next.get() >= self.end.get()
    }

    /// Makes the first `count` frames wait.
    fn set(&self, count: usize) {
        let begin = self.frames.as_ptr().cast::<Frame>();
        self.next.set(begin);
        self.end.set(begin.wrapping_add(count));
    }

    /// Forgets the frames for which `keep`, which may change them, returns false.
    fn retain(&self, mut keep: impl FnMut(&mut Frame) -> bool) {
        let index = |frame: *const Frame| frame.addr().wrapping_sub(self.frames.as_ptr().addr()) / size_of::<Frame>();
        let waiting = if self.is_empty() { 0..0 } else { index(self.next.get())..index(self.end.get()) };
        let mut end = 0;
        for n in waiting {
            let mut frame = self.frames[n].get();
            if keep(&mut frame) {
                self.frames[end].set(frame);
                end += 1;
            }
        }
        self.set(end);
    }
}

/// The event (eventfd(2)) of a handle that is readable while frames wait in its [`Active`].
pub struct Ready {
    event: OwnedFd,
    is_ready: AtomicBool,
}

impl Ready {
    pub fn new() -> Result<Ready, Error> {
        Ok(Ready { event: event()?, is_ready: AtomicBool::new(false) })
    }

    /// Makes the event readable, from any thread: the receiving one sets it right with its next call.
    pub fn raise(&self) {
        // In this order, so that `set` sees what it has to read.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        self.is_ready.store(true, Ordering::Release);
    }

    pub fn set(&self, is_ready: bool) {
        if self.is_ready.swap(is_ready, Ordering::AcqRel) != is_ready {
            let _ = match is_ready {
                true => rustix::io::write(&self.event, &1u64.to_ne_bytes()),
                false => rustix::io::read(&self.event, &mut [0; 8]),
            };
        }
    }
}

/// Returns how long Linux may keep frames of slow traffic before it hands them over, of which the library has a longest: in immediate
/// mode not at all, otherwise for the timeout.
fn patience(settings: &Settings) -> Duration {
    let timeout = u64::try_from(settings.timeout.get()).ok().filter(|timeout| *timeout > 0).unwrap_or(u64::MAX);
    Duration::from_millis(if settings.immediate.get() { 0 } else { timeout })
}

/// The receiving side of an open port.
pub struct Active {
    /// The port's name with its options.
    name: String,
    rx: RxQueue,
    /// The port is a file, which has an end.
    is_file: bool,
    batch: Batch,
    /// Frames of several buffers, in one piece.
    long: Vec<Box<[u8]>>,
    filter: Option<Box<[Instruction]>>,
    snaplen: u32,
    clock: Clock,
    /// The descriptor that programs wait for: it contains the queue's event, and the handle's [`Ready`] or `tick`.
    watch: OwnedFd,
    is_armed: bool,
    /// For a port that cannot wake a thread: readable each millisecond.
    tick: Option<OwnedFd>,
    /// Since when no frame has come.
    quiet_since: Option<Instant>,
    /// When the port's link was looked at.
    link_since: Instant,
    /// The program was told that the port is gone.
    is_gone: bool,
}

impl Active {
    pub fn open(name: &str, settings: &Settings, ready: &Ready) -> Result<(Active, Side), Error> {
        let parsed = linerate::parse(name)?;
        // A card that another process serves has its ring there; the length of a switch's is the library's choice.
        let asked = settings.buffer_size.get().cast_unsigned() as usize / SLOT;
        let ring = match asked {
            0 if parsed.may_be_served() => None,
            0 => Some(RING),
            asked => Some(asked.clamp(64, RING).next_power_of_two()),
        };
        // Only a port of this process has its packets there for long.
        let memory = RegionOptions::default();
        let longest = LongestOfInterface::of(&parsed);
        let mut port = match shared::port(name, || Ok(Pool::new(Region::lazy(&memory)?)))? {
            Some(port) => port,
            None => {
                let region = if parsed.may_be_served() { Region::lazy(&memory) } else { Region::new(&memory) }?;
                let pool = Some(Pool::new(region));
                // Those of a file are of another day, unless its name asks for them.
                let timestamps = !parsed.is_capture_to_read();
                let interrupts = Some(if parsed.is_packet() { patience(settings) } else { Duration::ZERO });
                let max_frame = longest.to_receive();
                let options = Options { ring, pool, interrupts, timestamps, max_frame, ..Options::default() };
                let [port] = opening(|| options.open([name]))?;
                names::note_alone(&port);
                // A program asks for the port's address by packet sockets while this handle has the port.
                if let Some(name) = names::of_handle(name) {
                    name.note(names::About::of(&port, longest.to_send(&port), true));
                }
                port
            }
        };
        if port.info().rx_queues > 1 {
            return Err(Error::unsupported(
                port.name().to_string(),
                "capture of several receive queues",
                "a libpcap handle reads one, and packets of the others would be lost; open it with queues=1",
            ));
        }
        match port.set_promiscuous(settings.promiscuous.get()) {
            // A port in memory has no addresses to filter by.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Ok(()) => {}
            Err(error) => return Err(error),
        }
        let mut rx = port.rx(0)?;
        // A program may give up its privileges, or the path to the server, before it sends its first frame. The transmit queue stays free
        // for other programs until then.
        let _ = port.prepare_tx();
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(|error| system("epoll_create1", error))?;
        add(&watch, ready.event.as_fd())?;
        let tick = watch_queue(&watch, &mut rx)?;
        let active = Active {
            name: name.to_string(),
            rx,
            is_file: parsed.is_capture_to_read(),
            batch: Batch::with_capacity(BATCH),
            long: Vec::new(),
            filter: None,
            snaplen: settings.snaplen.get().cast_unsigned(),
            clock: Clock::new(settings.precision.get(), parsed.is_capture_to_read()),
            watch,
            is_armed: false,
            tick,
            quiet_since: None,
            link_since: Instant::now(),
            is_gone: false,
        };
        let longest = longest.to_send(&port);
        Ok((active, Side::new(port, longest)))
    }

    /// Gives its queue up. The returned function makes it one of another queue with the same descriptor and filter; frames that wait
    /// stay as they are.
    pub fn give_up(mut self) -> (RxQueue, impl FnOnce(RxQueue) -> Result<Active, Error>) {
        let _ = match (&self.tick, self.rx.arm()) {
            (Some(tick), _) => epoll::delete(&self.watch, tick),
            (None, Some(event)) => epoll::delete(&self.watch, event),
            (None, None) => Ok(()),
        };
        self.rx.disarm();
        let Active { name, rx, is_file, batch, long, filter, snaplen, clock, watch, .. } = self;
        let with = move |mut rx| {
            Ok(Active {
                tick: watch_queue(&watch, &mut rx)?,
                name,
                rx,
                is_file,
                batch,
                long,
                filter,
                snaplen,
                clock,
                watch,
                is_armed: false,
                quiet_since: None,
                link_since: Instant::now(),
                is_gone: false,
            })
        };
        (rx, with)
    }

    /// Captures from another port from now on, with the same filter; frames that wait are forgotten. Returns the other side of
    /// the new port, if it is not this one; the old one must be dropped after the old receiving side, which is returned, too.
    ///
    /// # Errors
    /// As [`open`](Active::open); then nothing has changed.
    pub fn open_again(
        &mut self,
        name: &str,
        settings: &Settings,
        waiting: &Waiting,
        ready: &Ready,
    ) -> Result<Option<(Active, Side)>, Error> {
        if self.name == name {
            return Ok(None);
        }
        let (mut other, side) = Active::open(name, settings, ready)?;
        // The program may have the descriptor's number.
        rustix::io::dup2(&other.watch, &mut self.watch).map_err(|error| system("dup2", error))?;
        waiting.set(0);
        std::mem::swap(self, &mut other);
        self.filter = other.filter.take();
        std::mem::swap(&mut self.watch, &mut other.watch);
        Ok(Some((other, side)))
    }

    /// Receives frames in place of the last ones, those that the filter lets pass. Returns false if none came.
    pub fn receive(&mut self, waiting: &Waiting) -> bool {
        self.long.clear();
        waiting.set(0);
        self.batch.clear();
        // Before the poll, which may take as long as a packet's way: what it finds has come since the last one.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let received = self.rx.recv(&mut self.batch);
        if received == 0 {
            return false;
        }
        self.quiet_since = None;
        let (mut clock, snaplen) = (self.clock, self.snaplen);
        clock.first = now.saturating_sub(received as u64 - 1);
        let (mut places, long) = (waiting.frames.iter(), &mut self.long);
        self.batch.packets().for_each(|packet| {
            let Some(place) = places.next() else { return };
            let time = clock.time_of(packet.timestamp());
            let (bytes, len) = match packet.slots() {
                1 => (packet.as_ptr(), packet.len()),
                _ => joined(packet, long),
            };
            let header = PacketHeader { time, captured: snaplen.min(len as u32), len: len as u32 };
            place.set(Frame { header, bytes });
        });
        self.clock = clock;
        waiting.set(BATCH - places.len());
        self.filter_frames(waiting);
        true
    }

    /// Forgets the frames that the filter refuses, and cuts the others to the length that it wants.
    fn filter_frames(&self, waiting: &Waiting) {
        let Some(filter) = &self.filter else { return };
        waiting.retain(|Frame { header, bytes }| {
            // SAFETY: the frame's bytes stay until the next batch is received.
            let wanted = unsafe { filter::run(filter, *bytes, header.len) };
            header.captured = header.len.min(self.snaplen).min(wanted);
            wanted > 0
        });
    }

    /// Returns what a thread is to wait for: frames that may have come, or `waker`. `None`: the port is polled for a while before.
    pub fn sleep(&mut self, waker: BorrowedFd<'_>) -> Option<Sleep> {
        if self.quiet_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            std::hint::spin_loop();
            return None;
        }
        if !self.is_armed && self.tick.is_none() {
            self.rx.arm();
            self.is_armed = true;
            // A frame may have come before; there is one more poll.
            return None;
        }
        // That of a port that is gone stays readable: a program that goes on nevertheless (ngrep) sleeps.
        let event = self.rx.arm().filter(|_| self.tick.is_none() && !self.is_gone);
        let longest = if event.is_some() || self.is_gone { LONGEST_SLEEP } else { TICK };
        let longest = libc::timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        Some(Sleep { descriptors: [waker.as_raw_fd(), event.map_or(-1, |event| event.as_raw_fd())], longest })
    }

    /// Polls again after a sleep.
    ///
    /// # Errors
    /// Those of the port's link.
    pub fn wake(&mut self, waker: BorrowedFd<'_>, side: &Latch<Option<Side>>, waiting: &Waiting) -> Result<(), Error> {
        let _ = rustix::io::read(waker, &mut [0; 8]);
        self.disarm();
        self.check_link(side, waiting)
    }

    /// Looks at the port's link, if that is long ago. The event of a port that is gone is readable for good.
    ///
    /// # Errors
    /// Those of the link, once all frames that came before its end are received.
    pub fn check_link(&mut self, side: &Latch<Option<Side>>, waiting: &Waiting) -> Result<(), Error> {
        if self.link_since.elapsed() < LONGEST_SLEEP {
            return Ok(());
        }
        self.link_since = Instant::now();
        // A thread that sends notices the end itself.
        let Some(side) = side.try_lock() else { return Ok(()) };
        match side.as_ref().map(|side| side.port.link()) {
            Some(Err(error)) if !self.receive(waiting) => {
                self.is_gone = true;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Polls from now on.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.rx.disarm();
        }
    }

    /// Makes the program's descriptor readable while frames wait, or once they come.
    pub fn keep_watch(&mut self, waiting: &Waiting, ready: &Ready) {
        while waiting.is_empty() && self.tick.is_none() {
            // An interrupt for frames that are received would leave the descriptor readable.
            self.disarm();
            // Earlier packets do not interrupt, and each look at the ring asks for the next interrupt anew.
            self.rx.arm();
            self.is_armed = true;
            if !self.receive(waiting) {
                break;
            }
        }
        ready.set(!waiting.is_empty());
        if let Some(tick) = &self.tick {
            let _ = rustix::io::read(tick, &mut [0; 8]);
        }
    }

    /// Returns whether the program's descriptor is readable.
    pub fn is_readable(&self) -> bool {
        let mut events = [PollFd::new(&self.watch, PollFlags::IN)];
        poll(&mut events, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Returns the descriptor that is readable while there are frames.
    pub fn descriptor(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// Returns whether the port gives no more frames: the end of a capture file.
    ///
    /// # Errors
    /// That of a file which is cut or malformed.
    pub fn is_exhausted(&self, side: &Latch<Option<Side>>) -> Result<bool, Error> {
        if !self.is_file {
            return Ok(false);
        }
        // While another thread sends, the end is not known yet.
        let Some(side) = side.try_lock() else { return Ok(false) };
        let Some(Side { port, .. }) = &*side else { return Ok(false) };
        if port.is_exhausted() { port.link().map(|_| true) } else { Ok(false) }
    }

    /// Filters from now on, frames that wait for the program, too.
    pub fn set_filter(&mut self, filter: Box<[Instruction]>, waiting: &Waiting) {
        self.filter = Some(filter);
        self.filter_frames(waiting);
    }
}

/// Makes a descriptor readable while another one is.
fn add(watch: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Error> {
    epoll::add(watch, fd, EventData::new_u64(0), EventFlags::IN).map_err(|error| system("epoll_ctl", error))
}

/// Makes a descriptor readable when frames may have come. Returns the timer of a queue that cannot wake a thread.
fn watch_queue(watch: &OwnedFd, rx: &mut RxQueue) -> Result<Option<OwnedFd>, Error> {
    let can_wake = rx.arm().map(|event| add(watch, event)).transpose()?.is_some();
    rx.disarm();
    let tick = if can_wake { None } else { Some(ticking()?) };
    tick.as_ref().map(|tick| add(watch, tick.as_fd())).transpose()?;
    Ok(tick)
}

/// Copies a packet's buffers into one piece, which stays in `long`.
#[cold]
fn joined(packet: Packet<'_>, long: &mut Vec<Box<[u8]>>) -> (*const u8, usize) {
    let mut whole = Vec::with_capacity(packet.len());
    packet.append_to(&mut whole);
    long.push(whole.into());
    long.last().map_or((std::ptr::null(), 0), |whole| (whole.as_ptr(), whole.len()))
}

/// The times that frames get, which never decrease.
#[derive(Clone, Copy)]
struct Clock {
    /// Headers have nanoseconds, not microseconds.
    is_nano: bool,
    /// The time of the last frame, in nanoseconds since 1970.
    last: u64,
    /// The time of the first received frame without one of its own: those of a batch have times one after the other, of which
    /// the last is that of the poll.
    first: u64,
    /// The second of the last frame, and its begin.
    second: (u64, u64),
    /// Frames have the times of a file, as they are there. Those of a port are a nanosecond apart at least: a copy of a frame has its
    /// time, and the kernel's may be the same.
    is_of_file: bool,
}

impl Clock {
    fn new(precision: c_int, is_of_file: bool) -> Clock {
        Clock { is_nano: precision == PCAP_TSTAMP_PRECISION_NANO, last: 0, first: 0, second: (0, 0), is_of_file }
    }

    /// Returns the time of the next frame, which may have one of its own.
    #[inline]
    fn time_of(&mut self, own: Option<u64>) -> libc::timeval {
        self.last = match own {
            Some(time) => time.max(self.last + u64::from(!self.is_of_file)),
            None => self.first.max(self.last + 1),
        };
        if self.last.wrapping_sub(self.second.1) >= SECOND {
            let second = self.last / SECOND;
            self.second = (second, second * SECOND);
        }
        let nanoseconds = (self.last - self.second.1) as u32;
        let fraction = if self.is_nano { nanoseconds } else { nanoseconds / 1000 };
        libc::timeval { tv_sec: self.second.0 as _, tv_usec: fraction.into() }
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
