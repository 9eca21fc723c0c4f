//! The table of packet sockets, by number.
//!
//! A number has a word, which is read without a lock: calls on other descriptors, and most calls on packet sockets of
//! ports, go to the kernel at once. All else is behind a lock.
//!
//! A program may close a number without the functions of `calls`, so that the number becomes another file's. So each use
//! compares the number's socket with the table's, by its cookie (`SO_COOKIE`), which no other socket ever has.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::HEADER;
use super::link::{self, Link};
use super::member::Settings;
use super::mover;
use super::names::Name;
use super::system::{call, errno, fail, option, set_option};
use crate::cancel::guarded;

/// A packet socket that the program has opened.
#[derive(Clone)]
pub struct Socket {
    /// The same for all duplicates.
    identity: u64,
    cookie: u64,
    pub settings: Arc<Settings>,
    /// The kernel has refused it (`EPERM`): a socket of another kind has its number until it is bound to a port.
    pub is_placeholder: bool,
    /// The link of the port that it is bound to.
    pub link: Option<Arc<Link>>,
    /// Its way to another port, which it has sent to by address.
    pub sender: Option<Arc<Sender>>,
}

/// A member of a link that only sends.
pub struct Sender {
    pub link: Arc<Link>,
    pub end: OwnedFd,
}

/// Numbers that can be packet sockets of ports: as many as Linux gives a process by default.
const NUMBERS: usize = 1 << 20;
/// Bits of a word: the number is a packet socket; it is a port's; it is `SOCK_DGRAM`; it has auxiliary data.
const PRESENT: u32 = 1;
pub const BOUND: u32 = 2;
pub const DGRAM: u32 = 4;
pub const AUXILIARY: u32 = 8;
/// It is no packet socket, but one of rtnetlink(7).
pub const NETLINK: u32 = 16;
/// It is no packet socket, but the descriptor of a libpcap handle, which is one on Linux.
pub const HANDLE: u32 = 32;
/// The longest frame that needs no look at the socket is in the bits above.
const LONGEST: u32 = 8;

static WORDS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

pub type Sockets = BTreeMap<c_int, Socket>;

static SOCKETS: Mutex<Sockets> = Mutex::new(BTreeMap::new());

/// The locked table.
pub type Locked = MutexGuard<'static, Sockets>;

/// Locks the table.
pub fn lock() -> MutexGuard<'static, Sockets> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the word of a number; 0: no packet socket.
#[inline]
pub fn word(fd: c_int) -> u32 {
    usize::try_from(fd).ok().and_then(|fd| WORDS.get(fd)).map_or(0, |word| word.load(Acquire))
}

/// Notes what a number is that is no packet socket: `NETLINK`, `HANDLE`, or zero.
pub fn set_word(fd: c_int, kind: u32) {
    if !is_owner() {
        return;
    }
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| WORDS.get(fd)) {
        word.store(kind, Release);
    }
}

fn word_of(socket: &Socket) -> u32 {
    let mut word = PRESENT;
    for (bit, is_set) in [
        (BOUND, socket.link.is_some()),
        (DGRAM, socket.settings.is_dgram),
        (AUXILIARY, socket.settings.has_auxiliary.load(Relaxed)),
    ] {
        word |= if is_set { bit } else { 0 };
    }
    let plain = socket.link.as_ref().filter(|link| link.about.can_send && !socket.settings.is_dgram);
    let longest = plain.map_or(0, |link| link.about.mtu() + HEADER).min((u32::MAX >> LONGEST) as usize);
    word | (longest as u32) << LONGEST
}

/// Returns whether a frame of this length, sent without an address, is the kernel's to pass on: the number's word suffices.
#[inline]
pub fn is_plain(word: u32, len: usize) -> bool {
    word & BOUND != 0 && len >= HEADER && len <= (word >> LONGEST) as usize
}

/// Returns the cookie of a number's socket; `None` if it is no socket. Keeps errno(3).
pub fn cookie_of(fd: c_int) -> Option<u64> {
    let (before, mut cookie, mut len) = (errno(), 0u64, size_of::<u64>() as libc::socklen_t);
    let (cookie_at, len_at) = (&raw mut cookie, &raw mut len);
    let found = call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, cookie_at, len_at) == 0;
    fail::<c_int>(before);
    found.then_some(cookie)
}

/// The process that owns the table. A child that borrows its parent's memory (vfork(2)) must not change it.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Makes this process the table's owner: when the object is loaded, and in a child with memory of its own.
pub fn begin_process() {
    OWNER.store(std::process::id(), Relaxed);
}

/// Returns the process whose memory this is, without a system call.
pub fn owner() -> u32 {
    OWNER.load(Relaxed)
}

/// Returns whether this process is the table's owner.
pub fn is_owner() -> bool {
    owner() == std::process::id()
}

/// Returns whether a number, whose word says so, still is a packet socket. Keeps errno(3).
pub fn is_current(fd: c_int) -> bool {
    guarded(false, || get(fd).is_some())
}

/// Returns the packet socket that a number stands for.
pub fn get(fd: c_int) -> Option<Socket> {
    if word(fd) == 0 {
        return None;
    }
    let found = lock().get(&fd).cloned()?;
    if cookie_of(fd) == Some(found.cookie) {
        return Some(found);
    }
    // The number was closed without the functions of `calls`.
    remove(fd);
    None
}

/// Removes a number that is about to be closed, or was closed. Dropping the result may end links.
pub fn remove(fd: c_int) -> Option<Socket> {
    if word(fd) == 0 || !is_owner() {
        return None;
    }
    let mut sockets = lock();
    WORDS[fd as usize].store(0, Release);
    sockets.remove(&fd)
}

fn put(fd: c_int, socket: Socket) {
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| WORDS.get(fd)) else { return };
    if !is_owner() {
        return;
    }
    let before = {
        let mut sockets = lock();
        word.store(word_of(&socket), Release);
        sockets.insert(fd, socket)
    };
    // Not under the lock, since it may close a descriptor.
    drop(before);
}

/// Adds a packet socket that was opened now.
pub fn add(fd: c_int, settings: Settings, is_placeholder: bool) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let identity = NEXT.fetch_add(1, Relaxed);
    let Some(cookie) = cookie_of(fd) else { return };
    put(fd, Socket { identity, cookie, settings: Arc::new(settings), is_placeholder, link: None, sender: None });
}

/// Records that the kernel has made `to` the same as `from`.
pub fn duplicate(from: c_int, to: c_int) {
    if to < 0 || from == to {
        return;
    }
    let before = remove(to);
    if let Some(socket) = get(from) {
        put(to, socket);
    }
    if let Some(socket) = before {
        closed(socket);
    }
}

/// Waits until frames of a socket, a number of which was closed, are on the wire, and ends what it alone had.
pub fn closed(socket: Socket) {
    let links: Vec<_> = [socket.link.clone(), socket.sender.as_ref().map(|sender| sender.link.clone())].into();
    drop(socket);
    links.iter().flatten().for_each(|link| link.settle());
}

/// Makes the change to a socket under all its numbers, which are returned.
fn change(socket: &Socket, change: impl Fn(&mut Socket)) -> Vec<c_int> {
    let (mut numbers, mut before) = (Vec::new(), Vec::new());
    for (&fd, other) in lock().iter_mut().filter(|(_, other)| other.identity == socket.identity) {
        before.push(other.clone());
        change(other);
        WORDS[fd as usize].store(word_of(other), Release);
        numbers.push(fd);
    }
    // Not under the lock, since it may close a descriptor.
    drop(before);
    numbers
}

/// Brings the words of a socket up to date with its settings.
pub fn settings_changed(socket: &Socket) {
    change(socket, |_| {});
}

/// Binds a socket to a port: under all its numbers it is an end of a pair from now on.
///
/// # Errors
/// Those of the port and of system calls, as numbers of errno(3).
pub fn bind(fd: c_int, socket: &Socket, name: &Arc<Name>) -> Result<(), linerate::Error> {
    let (link, end) = link::join(name, &socket.settings, true, mover::run)?;
    let end_number = end.as_raw_fd();
    let flags = call!(libc::SYS_fcntl, fd, libc::F_GETFL, 0);
    call!(libc::SYS_fcntl, end_number, libc::F_SETFL, flags);
    copy_options(fd, end_number);
    let cookie = cookie_of(end_number).unwrap_or_default();
    let before = socket.cookie;
    let numbers = change(socket, |socket| {
        (socket.cookie, socket.link, socket.is_placeholder) = (cookie, Some(link.clone()), false);
    });
    for number in numbers.into_iter().filter(|&number| cookie_of(number) == Some(before)) {
        let is_closed_on_exec = call!(libc::SYS_fcntl, number, libc::F_GETFD, 0) & libc::FD_CLOEXEC as i64 != 0;
        call!(libc::SYS_dup3, end_number, number, if is_closed_on_exec { libc::O_CLOEXEC } else { 0 });
    }
    drop(end);
    // The port that it was bound to before.
    if let Some(before) = &socket.link {
        before.settle();
    }
    Ok(())
}

/// Gives a new socket the options that a program has set on the one whose number it gets.
fn copy_options(from: c_int, to: c_int) {
    for name in [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS] {
        if option(from, libc::SOL_SOCKET, name).is_some_and(|value| value != 0) {
            set_option(to, libc::SOL_SOCKET, name, 1);
        }
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let mut len = size_of::<libc::timeval>() as libc::socklen_t;
        let time_at = &raw mut time;
        if call!(libc::SYS_getsockopt, from, libc::SOL_SOCKET, name, time_at, &raw mut len) == 0 {
            call!(libc::SYS_setsockopt, to, libc::SOL_SOCKET, name, time_at, len);
        }
    }
}

/// Returns the way of a socket to a port that it is not bound to.
///
/// # Errors
/// As [`bind`].
pub fn sender(socket: &Socket, name: &Arc<Name>) -> Result<Arc<Sender>, linerate::Error> {
    if let Some(sender) = socket.sender.as_ref().filter(|sender| sender.link.name.index == name.index) {
        return Ok(sender.clone());
    }
    let (link, end) = link::join(name, &Arc::new(Settings::default()), false, mover::run)?;
    let sender = Arc::new(Sender { link, end });
    change(socket, |socket| socket.sender = Some(sender.clone()));
    // The frames that went to another port before.
    if let Some(before) = &socket.sender {
        before.link.settle();
    }
    Ok(sender)
}
