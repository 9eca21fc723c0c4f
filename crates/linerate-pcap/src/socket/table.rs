//! The packet sockets of the program, and the other descriptors that this object answers for.
//!
//! An entry of the table has a word, which is read without a lock: calls on other descriptors, and most calls on packet
//! sockets of ports, go to the kernel at once. What a packet socket is bound to is behind a lock.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_preload::{Held, Table, call, cookie_of, copy_status, guarded, option, replace, set_option};

use super::frame::HEADER;
use super::link::{self, Link};
use super::member::Settings;
use super::mover;
use super::names::Name;

/// A descriptor that this object answers for.
pub enum Entry {
    /// A packet socket. [`Sockets`] has what changes of it, by this number.
    Packet(u64, Arc<Settings>),
    /// A socket of rtnetlink(7). [`Sockets`] has its answers, by this number.
    Netlink(u64),
    /// The descriptor of a libpcap handle, which is a packet socket on Linux.
    Handle,
}

/// A packet socket that the program has opened, as it is at this moment.
pub struct Socket {
    held: Held<Entry>,
    pub settings: Arc<Settings>,
    /// The kernel has refused it (`EPERM`): a socket of another kind has its number until it is bound to a port.
    pub is_placeholder: bool,
    /// The link of the port that it is bound to.
    pub link: Option<Arc<Link>>,
    /// Its way to another port, which it has sent to by address.
    pub sender: Option<Arc<Sender>>,
}

/// The parts of a packet socket that change, as in [`Socket`].
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

/// All descriptors.
pub static TABLE: Table<Entry> = Table::new();

/// Bits of an entry's word: it is a packet socket; it is a port's; it is `SOCK_DGRAM`; it has auxiliary data.
const PRESENT: u32 = 1;
pub const BOUND: u32 = 2;
pub const DGRAM: u32 = 4;
pub const AUXILIARY: u32 = 8;
/// It is no packet socket, but one of rtnetlink(7).
pub const NETLINK: u32 = 16;
/// It is no packet socket, but the descriptor of a libpcap handle.
pub const HANDLE: u32 = 32;
/// The longest frame that needs no look at the socket is in the bits above.
const LONGEST: u32 = 8;

/// The changing parts of sockets, by the numbers of their entries.
pub struct Sockets {
    packets: BTreeMap<u64, State>,
    /// The answers that a socket of rtnetlink(7) has not received yet.
    answers: BTreeMap<u64, VecDeque<Vec<u8>>>,
}

static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets { packets: BTreeMap::new(), answers: BTreeMap::new() });

/// The locked sockets.
pub type Locked = MutexGuard<'static, Sockets>;

/// Locks the sockets. No use of an entry may be dropped meanwhile.
pub fn lock() -> Locked {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a number that no other entry has.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl Drop for Entry {
    fn drop(&mut self) {
        match self {
            Entry::Packet(number, _) => {
                let state = lock().packets.remove(number);
                // Not under the lock, since it may close a descriptor.
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
    let plain = state.link.as_ref().filter(|link| link.about.can_send && !settings.is_dgram);
    let longest = plain.map_or(0, |link| link.about.mtu() + HEADER).min((u32::MAX >> LONGEST) as usize);
    word | (longest as u32) << LONGEST
}

/// Returns whether a frame of this length, sent without an address, is the kernel's to pass on: the number's word suffices.
#[inline]
pub fn is_plain(word: u32, len: usize) -> bool {
    word & BOUND != 0 && len >= HEADER && len <= (word >> LONGEST) as usize
}

/// Returns whether a number, whose word says so, still is a packet socket. Keeps errno(3).
pub fn is_current(fd: c_int) -> bool {
    guarded(false, || get(fd).is_some())
}

/// Returns the packet socket that a number stands for.
pub fn get(fd: c_int) -> Option<Socket> {
    at_this_moment(TABLE.get(fd)?)
}

fn at_this_moment(held: Held<Entry>) -> Option<Socket> {
    let Entry::Packet(number, settings) = &*held else { return None };
    let settings = settings.clone();
    let State { is_placeholder, link, sender } = lock().packets.get(number).cloned()?;
    Some(Socket { held, settings, is_placeholder, link, sender })
}

/// Adds a packet socket that was opened now.
pub fn add(fd: c_int, settings: Settings, is_placeholder: bool) {
    let Some(cookie) = cookie_of(fd) else { return };
    let (number, state) = (number(), State { is_placeholder, ..State::default() });
    let word = word_of(&settings, &state);
    lock().packets.insert(number, state);
    TABLE.insert(fd, cookie, word, Entry::Packet(number, Arc::new(settings)));
}

/// Adds a socket of rtnetlink(7) that was opened now.
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

/// Calls `work` with the answers that wait for a socket of rtnetlink(7); `None` if the number is no such socket.
pub fn with_answers<T>(fd: c_int, work: impl FnOnce(&mut VecDeque<Vec<u8>>) -> T) -> Option<T> {
    let held = TABLE.get(fd)?;
    let Entry::Netlink(number) = &*held else { return None };
    let mut sockets = lock();
    sockets.answers.get_mut(number).map(work)
}

/// Records that the kernel has made `to` the same as `from`.
pub fn duplicate(from: c_int, to: c_int) {
    if let Some(before) = TABLE.duplicate(from, to).and_then(at_this_moment) {
        closed(before);
    }
}

/// Waits until frames of a socket, a number of which was closed, are on the wire, and ends what it alone had.
pub fn closed(socket: Socket) {
    let links: Vec<_> = [socket.link.clone(), socket.sender.as_ref().map(|sender| sender.link.clone())].into();
    drop(socket);
    links.iter().flatten().for_each(|link| link.settle());
}

/// Makes the change to a socket.
fn change(socket: &Socket, change: impl FnOnce(&mut State)) {
    let Entry::Packet(number, settings) = &*socket.held else { return };
    let mut sockets = lock();
    let Some(state) = sockets.packets.get_mut(number) else { return };
    let before = state.clone();
    change(state);
    socket.held.set_word(word_of(settings, state));
    drop(sockets);
    // Not under the lock, since it may close a descriptor.
    drop(before);
}

/// Brings the word of a socket up to date with its settings.
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
    copy_status(fd, end_number);
    copy_options(fd, end_number);
    let before = socket.held.cookie();
    let numbers = TABLE.numbers(&socket.held);
    change(socket, |state| {
        (state.link, state.is_placeholder) = (Some(link.clone()), false);
        socket.held.set_cookie(cookie_of(end_number).unwrap_or_default());
    });
    for number in numbers.into_iter().filter(|&number| cookie_of(number) == Some(before)) {
        // SAFETY: the program's number: this object has its number only.
        unsafe { replace(number, end_number) };
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
        // SAFETY: the time has this length.
        unsafe {
            if call!(libc::SYS_getsockopt, from, libc::SOL_SOCKET, name, time_at, &raw mut len) == 0 {
                call!(libc::SYS_setsockopt, to, libc::SOL_SOCKET, name, time_at, len);
            }
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
    change(socket, |state| state.sender = Some(sender.clone()));
    // The frames that went to another port before.
    if let Some(before) = &socket.sender {
        before.link.settle();
    }
    Ok(sender)
}
