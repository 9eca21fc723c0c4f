//! The port that a handle captures from: receiving frames and waiting for them.
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
use crate::side::{SendingSide, system};
use crate::sleep::Sleep;
use crate::socket::system::opening;
use crate::socket::{names, shared};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Maximum number of packets per receive call.
const BATCH: usize = 64;
/// Slots of the receive ring, unless the name or the program's buffer size sets them.
const RING: usize = 4096;
/// Bytes of a slot's buffer.
const SLOT: usize = 2048;
/// How long a waiting thread polls before it sleeps.
const POLL_TIME: Duration = Duration::from_micros(100);
/// The longest sleep, and the interval between checks of the port's link.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);
/// The longest sleep on a port that cannot wake a thread.
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

/// Received frames that the program has not read yet. The handle owns them, so that reading a frame does not borrow
/// [`ReceivingSide`].
pub struct UnreadFrames {
    frames: Box<[Cell<Frame>; BATCH]>,
    /// The address of the first unread frame, and the address after the last.
    next: Cell<*const Frame>,
    end: Cell<*const Frame>,
}

impl UnreadFrames {
    pub fn new() -> UnreadFrames {
        let none = Frame { header: PacketHeader::EMPTY, bytes: std::ptr::null() };
        let frames = Box::new(std::array::from_fn(|_| Cell::new(none)));
        UnreadFrames { frames, next: Cell::new(std::ptr::null()), end: Cell::new(std::ptr::null()) }
    }

    /// Takes the next frame. The pointer is valid until frames are received again.
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

    /// Marks the first `count` frames as unread.
    fn set(&self, count: usize) {
        let begin = self.frames.as_ptr().cast::<Frame>();
        self.next.set(begin);
        self.end.set(begin.wrapping_add(count));
    }

    /// Drops the frames for which `keep` returns false. `keep` may change a frame.
    fn retain(&self, mut keep: impl FnMut(&mut Frame) -> bool) {
        let index = |frame: *const Frame| frame.addr().wrapping_sub(self.frames.as_ptr().addr()) / size_of::<Frame>();
        let unread = if self.is_empty() { 0..0 } else { index(self.next.get())..index(self.end.get()) };
        let mut end = 0;
        for n in unread {
            let mut frame = self.frames[n].get();
            if keep(&mut frame) {
                self.frames[end].set(frame);
                end += 1;
            }
        }
        self.set(end);
    }
}

/// A handle's event (eventfd(2)), readable while the handle has unread frames.
pub struct Ready {
    event: OwnedFd,
    is_ready: AtomicBool,
}

impl Ready {
    pub fn new() -> Result<Ready, Error> {
        Ok(Ready { event: event()?, is_ready: AtomicBool::new(false) })
    }

    /// Makes the event readable; any thread may call it. The receiving thread corrects the event with its next call.
    pub fn raise(&self) {
        // Write before the flag is set, so that `set` finds the event readable when it reads it.
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

/// Returns how long the kernel may hold back frames of slow traffic: zero in immediate mode, otherwise the handle's
/// timeout. The library limits the value.
fn max_buffering_delay(settings: &Settings) -> Duration {
    let timeout = u64::try_from(settings.timeout.get()).ok().filter(|timeout| *timeout > 0).unwrap_or(u64::MAX);
    Duration::from_millis(if settings.immediate.get() { 0 } else { timeout })
}

/// The receiving side of an open port.
pub struct ReceivingSide {
    /// The port's name with its options.
    name: String,
    rx: RxQueue,
    /// The port is a capture file, which has an end.
    is_file: bool,
    batch: Batch,
    /// Contiguous copies of frames that span several buffers.
    long: Vec<Box<[u8]>>,
    filter: Option<Box<[Instruction]>>,
    snaplen: u32,
    clock: Clock,
    /// The descriptor that programs wait for (epoll(7)): it watches the handle's [`Ready`] and the queue's event or
    /// `tick`.
    watch: OwnedFd,
    is_armed: bool,
    /// A timer that is readable every millisecond, for a port that cannot wake a thread.
    tick: Option<OwnedFd>,
    /// The time of the first empty poll since the last frame.
    quiet_since: Option<Instant>,
    /// The time of the last link check.
    link_since: Instant,
    /// The program has been told that the port is gone.
    is_gone: bool,
}

impl ReceivingSide {
    pub fn open(name: &str, settings: &Settings, ready: &Ready) -> Result<(ReceivingSide, SendingSide), Error> {
        let parsed = linerate::parse(name)?;
        // The server has the ring of a served card, and the library chooses the length of a switch port's ring.
        let asked = settings.buffer_size.get().cast_unsigned() as usize / SLOT;
        let ring = match asked {
            0 if parsed.may_be_served() => None,
            0 => Some(RING),
            asked => Some(asked.clamp(64, RING).next_power_of_two()),
        };
        // Only a port of this process uses the memory permanently, so a served port's is allocated on first use.
        let memory = RegionOptions::default();
        let longest = LongestOfInterface::of(&parsed);
        let mut port = match shared::port(name, || Ok(Pool::new(Region::lazy(&memory)?)))? {
            Some(port) => port,
            None => {
                let region = if parsed.may_be_served() { Region::lazy(&memory) } else { Region::new(&memory) }?;
                let pool = Some(Pool::new(region));
                // A file's timestamps are from another day; its frames get them only if its name asks for them.
                let timestamps = !parsed.is_capture_to_read();
                let interrupts = Some(if parsed.is_packet() { max_buffering_delay(settings) } else { Duration::ZERO });
                let max_frame = longest.to_receive();
                let options = Options { ring, pool, interrupts, timestamps, max_frame, ..Options::default() };
                let [port] = opening(|| options.open([name]))?;
                names::report_private_port(&port);
                // While this handle has the port, the program may ask for the port's address through a packet socket.
                if let Some(name) = names::of_handle(name) {
                    name.set_properties(names::PortProperties::of(&port, longest.to_send(&port), true));
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
            // Ports in memory do not filter by address.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Ok(()) => {}
            Err(error) => return Err(error),
        }
        let mut rx = port.rx(0)?;
        // A program may drop its privileges, or lose access to the server's path, before it sends its first frame. The
        // transmit queue stays free for other programs until then.
        let _ = port.prepare_tx();
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(|error| system("epoll_create1", error))?;
        add(&watch, ready.event.as_fd())?;
        let tick = watch_queue(&watch, &mut rx)?;
        let active = ReceivingSide {
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
        Ok((active, SendingSide::new(port, longest)))
    }

    /// Returns the receive queue, and a function that rebuilds the receiving side on another queue. Descriptor, filter
    /// and unread frames are kept.
    pub fn give_up(mut self) -> (RxQueue, impl FnOnce(RxQueue) -> Result<ReceivingSide, Error>) {
        let _ = match (&self.tick, self.rx.arm()) {
            (Some(tick), _) => epoll::delete(&self.watch, tick),
            (None, Some(event)) => epoll::delete(&self.watch, event),
            (None, None) => Ok(()),
        };
        self.rx.disarm();
        let ReceivingSide { name, rx, is_file, batch, long, filter, snaplen, clock, watch, .. } = self;
        let with = move |mut rx| {
            Ok(ReceivingSide {
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

    /// Switches the capture to another port, with the same filter; unread frames are dropped. Returns the old receiving
    /// side and the new port's [`SendingSide`], or `None` if the name is unchanged. Drop the old receiving side before
    /// the old `SendingSide`.
    ///
    /// # Errors
    /// As [`open`](ReceivingSide::open); the capture is then unchanged.
    pub fn open_again(
        &mut self,
        name: &str,
        settings: &Settings,
        unread: &UnreadFrames,
        ready: &Ready,
    ) -> Result<Option<(ReceivingSide, SendingSide)>, Error> {
        if self.name == name {
            return Ok(None);
        }
        let (mut other, side) = ReceivingSide::open(name, settings, ready)?;
        // The program may know the descriptor, so its number is kept.
        rustix::io::dup2(&other.watch, &mut self.watch).map_err(|error| system("dup2", error))?;
        unread.set(0);
        std::mem::swap(self, &mut other);
        self.filter = other.filter.take();
        std::mem::swap(&mut self.watch, &mut other.watch);
        Ok(Some((other, side)))
    }

    /// Receives frames, and drops those that the filter rejects. They replace the last batch. Returns false if none
    /// arrived.
    pub fn receive(&mut self, unread: &UnreadFrames) -> bool {
        self.long.clear();
        unread.set(0);
        self.batch.clear();
        // Read the clock before the poll, which may take as long as a packet's transit. Its packets arrived since the
        // last poll.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let received = self.rx.recv(&mut self.batch);
        if received == 0 {
            return false;
        }
        self.quiet_since = None;
        let (mut clock, snaplen) = (self.clock, self.snaplen);
        clock.first = now.saturating_sub(received as u64 - 1);
        let (mut cells, long) = (unread.frames.iter(), &mut self.long);
        self.batch.packets().for_each(|packet| {
            let Some(cell) = cells.next() else { return };
            let time = clock.time_of(packet.timestamp());
            let (bytes, len) = match packet.slots() {
                1 => (packet.as_ptr(), packet.len()),
                _ => joined(packet, long),
            };
            let header = PacketHeader { time, captured: snaplen.min(len as u32), len: len as u32 };
            cell.set(Frame { header, bytes });
        });
        self.clock = clock;
        unread.set(BATCH - cells.len());
        self.filter_frames(unread);
        true
    }

    /// Drops the frames that the filter rejects, and truncates the others to the length that it returns.
    fn filter_frames(&self, unread: &UnreadFrames) {
        let Some(filter) = &self.filter else { return };
        unread.retain(|Frame { header, bytes }| {
            // SAFETY: the frame's bytes stay until the next batch is received.
            let wanted = unsafe { filter::run(filter, *bytes, header.len) };
            header.captured = header.len.min(self.snaplen).min(wanted);
            wanted > 0
        });
    }

    /// Returns what the thread must wait for: frames or `waker`. `None` if it has to poll again first.
    pub fn sleep(&mut self, waker: BorrowedFd<'_>) -> Option<Sleep> {
        if self.quiet_since.get_or_insert_with(Instant::now).elapsed() < POLL_TIME {
            std::hint::spin_loop();
            return None;
        }
        if !self.is_armed && self.tick.is_none() {
            self.rx.arm();
            self.is_armed = true;
            // A frame may have arrived before the queue was armed: poll once more.
            return None;
        }
        // The event of a port that is gone stays readable. Programs that continue nevertheless (ngrep) must still
        // sleep.
        let event = self.rx.arm().filter(|_| self.tick.is_none() && !self.is_gone);
        let longest = if event.is_some() || self.is_gone { LONGEST_SLEEP } else { TICK };
        let longest = libc::timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        Some(Sleep { descriptors: [waker.as_raw_fd(), event.map_or(-1, |event| event.as_raw_fd())], longest })
    }

    /// Returns to polling after a sleep, and checks the port's link.
    ///
    /// # Errors
    /// As [`check_link`](ReceivingSide::check_link).
    pub fn wake(
        &mut self,
        waker: BorrowedFd<'_>,
        side: &Latch<Option<SendingSide>>,
        unread: &UnreadFrames,
    ) -> Result<(), Error> {
        let _ = rustix::io::read(waker, &mut [0; 8]);
        self.disarm();
        self.check_link(side, unread)
    }

    /// Checks the port's link, at most once per `LONGEST_SLEEP`. It is needed because the event of a port that is gone
    /// stays readable.
    ///
    /// # Errors
    /// The link's error, once all frames that arrived before it are received.
    pub fn check_link(&mut self, side: &Latch<Option<SendingSide>>, unread: &UnreadFrames) -> Result<(), Error> {
        if self.link_since.elapsed() < LONGEST_SLEEP {
            return Ok(());
        }
        self.link_since = Instant::now();
        // A sending thread, which holds the lock, notices the error itself.
        let Some(side) = side.try_lock() else { return Ok(()) };
        match side.as_ref().map(|side| side.port.link()) {
            Some(Err(error)) if !self.receive(unread) => {
                self.is_gone = true;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Disarms the queue's interrupt.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.rx.disarm();
        }
    }

    /// Makes the program's descriptor readable if there are unread frames; otherwise arms the queue to make it so.
    pub fn keep_watch(&mut self, unread: &UnreadFrames, ready: &Ready) {
        while unread.is_empty() && self.tick.is_none() {
            // An interrupt for frames already received would leave the descriptor readable.
            self.disarm();
            // Packets that arrived earlier do not interrupt, so poll after arming; each poll requires arming again.
            self.rx.arm();
            self.is_armed = true;
            if !self.receive(unread) {
                break;
            }
        }
        ready.set(!unread.is_empty());
        if let Some(tick) = &self.tick {
            let _ = rustix::io::read(tick, &mut [0; 8]);
        }
    }

    /// Returns whether the program's descriptor is readable.
    pub fn is_readable(&self) -> bool {
        let mut events = [PollFd::new(&self.watch, PollFlags::IN)];
        poll(&mut events, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Returns the program's descriptor, which is readable while there are frames.
    pub fn descriptor(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// Returns whether the port, a capture file, is at its end.
    ///
    /// # Errors
    /// The file is truncated or malformed.
    pub fn is_exhausted(&self, side: &Latch<Option<SendingSide>>) -> Result<bool, Error> {
        if !self.is_file {
            return Ok(false);
        }
        // While another thread sends, the end is not known yet.
        let Some(side) = side.try_lock() else { return Ok(false) };
        let Some(SendingSide { port, .. }) = &*side else { return Ok(false) };
        if port.is_exhausted() { port.link().map(|_| true) } else { Ok(false) }
    }

    /// Sets the filter, and applies it to unread frames.
    pub fn set_filter(&mut self, filter: Box<[Instruction]>, unread: &UnreadFrames) {
        self.filter = Some(filter);
        self.filter_frames(unread);
    }
}

/// Adds `fd` to an epoll(7) descriptor.
fn add(watch: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Error> {
    epoll::add(watch, fd, EventData::new_u64(0), EventFlags::IN).map_err(|error| system("epoll_ctl", error))
}

/// Adds the queue's event to an epoll(7) descriptor. For a queue that cannot wake a thread, adds a timer and returns
/// it.
fn watch_queue(watch: &OwnedFd, rx: &mut RxQueue) -> Result<Option<OwnedFd>, Error> {
    let can_wake = rx.arm().map(|event| add(watch, event)).transpose()?.is_some();
    rx.disarm();
    let tick = if can_wake { None } else { Some(ticking()?) };
    tick.as_ref().map(|tick| add(watch, tick.as_fd())).transpose()?;
    Ok(tick)
}

/// Copies a packet's buffers into one contiguous buffer, which `long` keeps.
#[cold]
fn joined(packet: Packet<'_>, long: &mut Vec<Box<[u8]>>) -> (*const u8, usize) {
    let mut whole = Vec::with_capacity(packet.len());
    packet.append_to(&mut whole);
    long.push(whole.into());
    long.last().map_or((std::ptr::null(), 0), |whole| (whole.as_ptr(), whole.len()))
}

/// Assigns timestamps to frames. They never decrease.
#[derive(Clone, Copy)]
struct Clock {
    /// Frame headers contain nanoseconds, not microseconds.
    is_nano: bool,
    /// The time of the last frame, in nanoseconds since 1970.
    last: u64,
    /// The earliest time for a batch's frames without timestamps. They are spaced one nanosecond apart so that the last
    /// gets the time of the poll.
    first: u64,
    /// The second of the last frame, and the nanosecond at which it begins.
    second: (u64, u64),
    /// Timestamps come unchanged from a file. A port's are made at least a nanosecond apart: copies of a frame have the
    /// same timestamp, and so may frames from the kernel.
    is_of_file: bool,
}

impl Clock {
    fn new(precision: c_int, is_of_file: bool) -> Clock {
        Clock { is_nano: precision == PCAP_TSTAMP_PRECISION_NANO, last: 0, first: 0, second: (0, 0), is_of_file }
    }

    /// Returns the time of the next frame; `own` is the frame's timestamp, if it has one.
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

/// Creates a timer that is readable every millisecond.
fn ticking() -> Result<OwnedFd, Error> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|error| system("timerfd_create", error))?;
    let each = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: each, it_value: each })
        .map_err(|error| system("timerfd_settime", error))?;
    Ok(timer)
}

/// Creates an event (eventfd(2)) that is not readable yet.
pub fn event() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| system("eventfd", error))
}
