//! The program's packet sockets, and the other descriptors that this library handles.
//!
//! Each entry of the table has a word that is read without a lock. By this word, calls on other descriptors and most
//! calls on packet sockets of ports go straight to the kernel. A lock protects what a packet socket is bound to.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_preload::{EntryRef, Table, call, cookie_of, copy_status, guarded, option, replace, set_option};

use super::frame::HEADER;
use super::link::{self, Link};
use super::member::Settings;
use super::mover;
use super::names::Name;

/// A descriptor that this library handles.
pub enum Entry {
    /// A packet socket. [`Sockets`] has its [`State`] under this number.
    Packet(u64, Arc<Settings>),
    /// A socket of rtnetlink(7). [`Sockets`] has its answers under this number.
    Netlink(u64),
    /// The descriptor of a libpcap handle, which is a packet socket on Linux.
    Handle,
}

/// A snapshot of one of the program's packet sockets.
pub struct Socket {
    held: EntryRef<Entry>,
    pub settings: Arc<Settings>,
    /// The kernel refused the packet socket (`EPERM`): a socket of another kind has its descriptor until it is bound to
    /// a port.
    pub is_placeholder: bool,
    /// The link of the port that the socket is bound to.
    pub link: Option<Arc<Link>>,
    /// The sender for the other port to which the socket last sent by address.
    pub sender: Option<Arc<Sender>>,
}

/// The mutable state of a packet socket; the fields are as in [`Socket`].
#[derive(Clone, Default)]
pub struct State {
    is_placeholder: bool,
    link: Option<Arc<Link>>,
    sender: Option<Arc<Sender>>,
}

/// A member of a link that only sends.
pub struct Sender {
    pub link: Arc<Link>,
    pub end: OwnedFd,
}

/// All descriptors that this library handles.
pub static TABLE: Table<Entry> = Table::new();

/// Bits of an entry's word: it is a packet socket; it is bound to a port; it is `SOCK_DGRAM`; it has auxiliary data.
const PRESENT: u32 = 1;
pub const BOUND: u32 = 2;
pub const DGRAM: u32 = 4;
pub const AUXILIARY: u32 = 8;
/// The entry is a socket of rtnetlink(7).
pub const NETLINK: u32 = 16;
/// The entry is the descriptor of a libpcap handle.
pub const HANDLE: u32 = 32;
/// The position of the maximum frame length that can be sent by the word alone, in the remaining high bits.
const LONGEST: u32 = 8;

/// The mutable state of all sockets, by the numbers of their entries.
pub struct Sockets {
    packets: BTreeMap<u64, State>,
    /// The answers that a socket of rtnetlink(7) has not received yet.
    answers: BTreeMap<u64, VecDeque<Vec<u8>>>,
}

static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets { packets: BTreeMap::new(), answers: BTreeMap::new() });

/// The locked sockets.
pub type Locked = MutexGuard<'static, Sockets>;

/// Locks the sockets. Do not drop an [`EntryRef`] while they are locked: dropping it locks them too.
pub fn lock() -> Locked {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a unique number for an entry.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl Drop for Entry {
    fn drop(&mut self) {
        match self {
            Entry::Packet(number, _) => {
                let state = lock().packets.remove(number);
                // Drop it after unlocking, since that may close a descriptor.
                drop(state);
            }
            Entry::Netlink(number) => drop(lock().answers.remove(number)),
            Entry::Handle => {}
        }
    }
}

fn word_of(settings: &Settings, state: &State) -> u32 {
    let mut word = PRESENT;
    for (bit, is_set) in
        [(BOUND, state.link.is_some()), (DGRAM, settings.is_dgram), (AUXILIARY, settings.has_auxiliary.load(Relaxed))]
    {
        word |= if is_set { bit } else { 0 };
    }
    let plain = state.link.as_ref().filter(|link| link.properties.can_send && !settings.is_dgram);
    let longest = plain.map_or(0, |link| link.properties.mtu() + HEADER).min((u32::MAX >> LONGEST) as usize);
    word | (longest as u32) << LONGEST
}

/// Returns whether the kernel can send a frame of this length, without an address, by the word alone.
#[inline]
pub fn is_plain(word: u32, len: usize) -> bool {
    word & BOUND != 0 && len >= HEADER && len <= (word >> LONGEST) as usize
}

/// Returns whether a descriptor still is a packet socket, as its word says. Keeps errno(3).
pub fn is_current(fd: c_int) -> bool {
    guarded(false, || get(fd).is_some())
}

/// Returns the packet socket of a descriptor.
pub fn get(fd: c_int) -> Option<Socket> {
    at_this_moment(TABLE.get(fd)?)
}

fn at_this_moment(held: EntryRef<Entry>) -> Option<Socket> {
    let Entry::Packet(number, settings) = &*held else { return None };
    let settings = settings.clone();
    let State { is_placeholder, link, sender } = lock().packets.get(number).cloned()?;
    Some(Socket { held, settings, is_placeholder, link, sender })
}

/// Adds a new packet socket.
pub fn add(fd: c_int, settings: Settings, is_placeholder: bool) {
    let Some(cookie) = cookie_of(fd) else { return };
    let (number, state) = (number(), State { is_placeholder, ..State::default() });
    let word = word_of(&settings, &state);
    lock().packets.insert(number, state);
    TABLE.insert(fd, cookie, word, Entry::Packet(number, Arc::new(settings)));
}

/// Adds a new socket of rtnetlink(7).
pub fn add_netlink(fd: c_int) {
    let Some(cookie) = cookie_of(fd) else { return };
    let number = number();
    lock().answers.insert(number, VecDeque::new());
    TABLE.insert(fd, cookie, NETLINK, Entry::Netlink(number));
}

/// Adds the descriptor of a libpcap handle.
pub fn add_handle(fd: c_int) {
    TABLE.insert(fd, 0, HANDLE, Entry::Handle);
}

/// Removes the descriptor of a libpcap handle.
pub fn remove_handle(fd: c_int) {
    if TABLE.get(fd).is_some_and(|held| matches!(*held, Entry::Handle)) {
        drop(TABLE.forget(fd));
    }
}

/// Calls `work` with the queued answers of a socket of rtnetlink(7); `None` if the descriptor is not such a socket.
pub fn with_answers<T>(fd: c_int, work: impl FnOnce(&mut VecDeque<Vec<u8>>) -> T) -> Option<T> {
    let held = TABLE.get(fd)?;
    let Entry::Netlink(number) = &*held else { return None };
    let mut sockets = lock();
    sockets.answers.get_mut(number).map(work)
}

/// Records that the kernel has made `to` a duplicate of `from`.
pub fn duplicate(from: c_int, to: c_int) {
    if let Some(before) = TABLE.duplicate(from, to).and_then(at_this_moment) {
        closed(before);
    }
}

/// Drops a socket after one of its descriptors was closed, and waits until its frames are on the wire.
pub fn closed(socket: Socket) {
    let links: Vec<_> = [socket.link.clone(), socket.sender.as_ref().map(|sender| sender.link.clone())].into();
    drop(socket);
    links.iter().flatten().for_each(|link| link.settle());
}

/// Changes the state of a socket.
fn change(socket: &Socket, change: impl FnOnce(&mut State)) {
    let Entry::Packet(number, settings) = &*socket.held else { return };
    let mut sockets = lock();
    let Some(state) = sockets.packets.get_mut(number) else { return };
    let before = state.clone();
    change(state);
    socket.held.set_word(word_of(settings, state));
    drop(sockets);
    // Drop it after unlocking, since that may close a descriptor.
    drop(before);
}

/// Updates the word of a socket after a change of its settings.
pub fn settings_changed(socket: &Socket) {
    change(socket, |_| {});
}

/// Binds a socket to a port: replaces it by the program's end of a pair, under all its descriptors.
///
/// # Errors
/// Errors of the port and of system calls.
pub fn bind(fd: c_int, socket: &Socket, name: &Arc<Name>) -> Result<(), linerate::Error> {
    let (link, end) = link::join(name, &socket.settings, true, mover::run)?;
    let end_number = end.as_raw_fd();
    copy_status(fd, end_number);
    copy_options(fd, end_number);
    let before = socket.held.cookie();
    let numbers = TABLE.numbers(&socket.held);
    change(socket, |state| {
        (state.link, state.is_placeholder) = (Some(link.clone()), false);
        socket.held.set_cookie(cookie_of(end_number).unwrap_or_default());
    });
    for number in numbers.into_iter().filter(|&number| cookie_of(number) == Some(before)) {
        // SAFETY: the program's descriptor; this library does not own it.
        unsafe { replace(number, end_number) };
    }
    drop(end);
    // Wait for the frames to the port that the socket was bound to before.
    if let Some(before) = &socket.link {
        before.settle();
    }
    Ok(())
}

/// Copies the options that the program has set to the socket that replaces its own.
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
        // SAFETY: `time` has this length.
        unsafe {
            if call!(libc::SYS_getsockopt, from, libc::SOL_SOCKET, name, time_at, &raw mut len) == 0 {
                call!(libc::SYS_setsockopt, to, libc::SOL_SOCKET, name, time_at, len);
            }
        }
    }
}

/// Returns the sender of a socket to a port that it is not bound to.
///
/// # Errors
/// As [`bind`].
pub fn sender(socket: &Socket, name: &Arc<Name>) -> Result<Arc<Sender>, linerate::Error> {
    if let Some(sender) = socket.sender.as_ref().filter(|sender| sender.link.name.index == name.index) {
        return Ok(sender.clone());
    }
    let (link, end) = link::join(name, &Arc::new(Settings::default()), false, mover::run)?;
    let sender = Arc::new(Sender { link, end });
    change(socket, |state| state.sender = Some(sender.clone()));
    // Wait for the frames to the port that the socket sent to before.
    if let Some(before) = &socket.sender {
        before.link.settle();
    }
    Ok(sender)
}
