//! The table of descriptors of `/dev/netmap`, by number.
//!
//! A program may close a number without the functions of `calls`, so that the number becomes another file's. So each
//! use compares the number's socket with the table's, by its cookie (`SO_COOKIE`), which no other socket ever has.
//!
//! The table has no lock, so that close(2) and dup2(2) remain async-signal-safe, and safe in the children of programs
//! with threads. A place of the table is one word. The descriptor that it points at is reused, but never freed, so that
//! a thread can look at it while another thread closes it. Its uses are counted.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::descriptor::Bound;
use crate::real::{borrow, call, errno, fail};

/// A socket that stands for `/dev/netmap`: free, or bound to a port.
pub struct Descriptor {
    /// The descriptor that was allocated before this one.
    next: AtomicPtr<Descriptor>,
    /// Number of numbers that stand for it, and of calls that use it now.
    uses: AtomicU32,
    cookie: AtomicU64,
    /// The process that has opened it.
    process: AtomicU32,
    is_binding: AtomicBool,
    /// The events that an epoll(7) waits for, as bits of poll(2). The server sends a token whenever one of them is
    /// there.
    pub watched: AtomicU32,
    bound: AtomicPtr<Bound>,
}

/// A value of `uses`: one thread is making or ending the descriptor. 0: the descriptor is free.
const ALONE: u32 = u32::MAX;

/// All descriptors, the newest first.
static ALL: AtomicPtr<Descriptor> = AtomicPtr::new(null_mut());

/// A use of a descriptor, by one of its numbers. Dropping the last use ends the descriptor.
pub struct Held {
    descriptor: &'static Descriptor,
    /// The number.
    pub fd: c_int,
}

impl Held {
    /// Takes a free descriptor for a new socket, or allocates one.
    fn new(fd: c_int, cookie: u64) -> Held {
        // SAFETY: null, or a descriptor, which is never freed.
        let mut free = unsafe { ALL.load(Acquire).as_ref() };
        while let Some(descriptor) = free {
            if descriptor.uses.compare_exchange(0, ALONE, Acquire, Relaxed).is_ok() {
                break;
            }
            // SAFETY: as above.
            free = unsafe { descriptor.next.load(Acquire).as_ref() };
        }
        let descriptor: &'static Descriptor = free.unwrap_or_else(|| {
            let descriptor: &'static Descriptor = Box::leak(Box::new(Descriptor {
                next: AtomicPtr::new(null_mut()),
                uses: AtomicU32::new(ALONE),
                cookie: AtomicU64::new(0),
                process: AtomicU32::new(0),
                is_binding: AtomicBool::new(false),
                watched: AtomicU32::new(0),
                bound: AtomicPtr::new(null_mut()),
            }));
            let itself = std::ptr::from_ref(descriptor).cast_mut();
            let push = |newest| {
                descriptor.next.store(newest, Relaxed);
                Some(itself)
            };
            let _ = ALL.fetch_update(AcqRel, Acquire, push);
            descriptor
        });
        descriptor.cookie.store(cookie, Relaxed);
        descriptor.process.store(std::process::id(), Relaxed);
        descriptor.is_binding.store(false, Relaxed);
        descriptor.watched.store(0, Relaxed);
        descriptor.uses.store(1, Release);
        Held { descriptor, fd }
    }
}

impl Deref for Held {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        self.descriptor
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let one_less = |uses| if uses == 1 { Some(ALONE) } else { Some(uses - 1) };
        if self.uses.fetch_update(AcqRel, Acquire, one_less) == Ok(1) {
            self.end();
        }
    }
}

impl Descriptor {
    /// Adds a use, unless the descriptor is free.
    fn hold(&'static self, fd: c_int) -> Option<Held> {
        let one_more = |uses| if uses == 0 || uses >= ALONE - 1 { None } else { Some(uses + 1) };
        self.uses.fetch_update(AcqRel, Acquire, one_more).ok().map(|_| Held { descriptor: self, fd })
    }

    /// Drops the port. The server closes it when the kernel has closed the last descriptor of all processes. A child
    /// only leaves what it has inherited: in the child of a program with threads memory cannot be freed.
    fn end(&self) {
        if self.process.load(Relaxed) != std::process::id() {
            return;
        }
        self.cookie.store(0, Relaxed);
        let bound = self.bound.swap(null_mut(), AcqRel);
        if !bound.is_null() {
            // SAFETY: it was made from a box in `bind`; the descriptor has no use, so that there is no reference to it.
            drop(unsafe { Box::from_raw(bound) });
        }
        self.uses.store(0, Release);
    }

    /// Returns its socket's cookie, which no other socket ever has.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Relaxed)
    }

    /// Returns the port that it is bound to.
    pub fn bound(&self) -> Option<&Bound> {
        // SAFETY: null, or made from a box, which is freed after the last use of the descriptor; the caller has a use.
        unsafe { self.bound.load(Acquire).as_ref() }
    }

    /// Binds it, once. `None` if it is bound already, or another thread is binding it.
    ///
    /// # Errors
    /// Those of `bind`.
    pub fn bind<E>(&self, bind: impl FnOnce() -> Result<Bound, E>) -> Option<Result<&Bound, E>> {
        if self.bound().is_some() || self.is_binding.swap(true, Acquire) {
            return None;
        }
        let result = match self.bound() {
            Some(_) => None,
            None => Some(bind().map(|bound| {
                let bound = Box::into_raw(Box::new(bound));
                self.bound.store(bound, Release);
                // SAFETY: as in `bound`.
                unsafe { &*bound }
            })),
        };
        self.is_binding.store(false, Release);
        result
    }
}

impl Held {
    /// Replaces the socket of this number by a new one without a port; the server closes the port of the old one.
    pub fn renew(&self) {
        let status = call!(libc::SYS_fcntl, self.fd, libc::F_GETFL, 0);
        let closes_on_exec = call!(libc::SYS_fcntl, self.fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as i64 != 0;
        let socket = socket(true);
        if socket < 0 {
            return;
        }
        call!(libc::SYS_fcntl, socket, libc::F_SETFL, status);
        if call!(libc::SYS_dup3, socket, self.fd, if closes_on_exec { libc::O_CLOEXEC } else { 0 }) >= 0 {
            self.cookie.store(cookie_of(self.fd).unwrap_or_default(), Relaxed);
        }
        call!(libc::SYS_close, socket);
    }
}

/// Makes a socket for a descriptor. A socket has an identity, epoll(7) accepts it, and it will be connected to the
/// port's server.
fn socket(closes_on_exec: bool) -> c_int {
    let close = if closes_on_exec { libc::SOCK_CLOEXEC } else { 0 };
    call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | close, 0) as c_int
}

/// Numbers in a page of the table, and pages: 1,048,576 numbers, the most that Linux gives a process by default.
const PAGE: usize = 1024;

type Place = AtomicPtr<Descriptor>;

static PAGES: [AtomicPtr<[Place; PAGE]>; PAGE] = [const { AtomicPtr::new(null_mut()) }; PAGE];

/// The count of numbers in the table.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the table has a number. If not, no call is for this object.
pub fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

fn page(number: usize) -> Option<&'static [Place; PAGE]> {
    // SAFETY: null, or a page, which is never freed.
    unsafe { PAGES.get(number)?.load(Acquire).as_ref() }
}

fn place(fd: c_int) -> Option<&'static Place> {
    let fd = usize::try_from(fd).ok()?;
    page(fd / PAGE)?.get(fd % PAGE)
}

/// As [`place`]; allocates the page of the table if it is missing.
fn place_to_be(fd: c_int) -> Option<&'static Place> {
    let to_be = PAGES.get(usize::try_from(fd).ok()? / PAGE)?;
    if to_be.load(Acquire).is_null() {
        let page = Box::into_raw(Box::new([const { AtomicPtr::new(null_mut()) }; PAGE]));
        if to_be.compare_exchange(null_mut(), page, AcqRel, Acquire).is_err() {
            // SAFETY: it was made from a box, and another thread's page is in its place.
            drop(unsafe { Box::from_raw(page) });
        }
    }
    place(fd)
}

/// Returns whether the table has an entry for a number. The entry may be out of date.
pub fn may_be_ours(fd: c_int) -> bool {
    place(fd).is_some_and(|place| !place.load(Relaxed).is_null())
}

/// Returns the cookie of a number's socket; `None` if it is no socket. Keeps errno(3).
fn cookie_of(fd: c_int) -> Option<u64> {
    let (before, mut cookie, mut len) = (errno(), 0u64, size_of::<u64>() as libc::socklen_t);
    let (cookie_at, len_at) = (&raw mut cookie, &raw mut len);
    let found = call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, cookie_at, len_at) == 0;
    fail(before);
    found.then_some(cookie)
}

/// Returns the descriptor that a number stands for; `None` if it stands for none.
pub fn get(fd: c_int) -> Option<Held> {
    if !any() {
        return None;
    }
    let place = place(fd)?;
    let found = place.load(Acquire);
    // SAFETY: null, or a descriptor, which is never freed.
    let held = unsafe { found.as_ref() }?.hold(fd)?;
    if cookie_of(fd) == Some(held.cookie()) {
        return Some(held);
    }
    // The number was closed without the functions of `calls`.
    if is_ours_to_change() && place.compare_exchange(found, null_mut(), AcqRel, Relaxed).is_ok() {
        COUNT.fetch_sub(1, Relaxed);
        drop(Held { descriptor: held.descriptor, fd });
    }
    None
}

/// Takes over the use that a place of the table had.
fn taken(before: *mut Descriptor, fd: c_int) -> Option<Held> {
    // SAFETY: null, or a descriptor, which is never freed.
    let before = unsafe { before.as_ref() }?;
    COUNT.fetch_sub(1, Relaxed);
    Some(Held { descriptor: before, fd })
}

/// Removes a number that is about to be closed, without asking the kernel. If that was the last use, the port is
/// dropped with the result.
pub fn forget(fd: c_int) -> Option<Held> {
    let place = place(fd)?;
    if place.load(Relaxed).is_null() || !is_ours_to_change() {
        return None;
    }
    taken(place.swap(null_mut(), AcqRel), fd)
}

fn put(fd: c_int, descriptor: Held) -> bool {
    let Some(place) = place_to_be(fd) else { return false };
    COUNT.fetch_add(1, Relaxed);
    let before = place.swap(std::ptr::from_ref(descriptor.descriptor).cast_mut(), AcqRel);
    // The table has the use now.
    std::mem::forget(descriptor);
    drop(taken(before, fd));
    true
}

/// Returns the numbers in the table, and their places.
fn filled() -> impl Iterator<Item = (usize, &'static Place)> {
    let pages = (0..PAGE).filter_map(|number| Some((number * PAGE, page(number)?)));
    pages.flat_map(|(at, page)| (at..).zip(page)).filter(|(_, place)| !place.load(Relaxed).is_null())
}

/// Opens a descriptor; returns -1 as open(2) does. `None` in a child that borrows its parent's memory, which cannot
/// have one.
pub fn open(closes_on_exec: bool) -> Option<c_int> {
    if !is_ours_to_change() {
        return None;
    }
    sweep();
    let fd = socket(closes_on_exec);
    if fd < 0 {
        return Some(fd);
    }
    let is_put = cookie_of(fd).is_some_and(|cookie| put(fd, Held::new(fd, cookie)));
    if !is_put {
        call!(libc::SYS_close, fd);
        return Some(fail(libc::EMFILE));
    }
    Some(fd)
}

/// Returns an option of a socket; `None` if it is no socket.
fn option_of(fd: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    let (value_at, len_at) = (&raw mut value, &raw mut len);
    let found = call!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, value_at, len_at) == 0;
    found.then_some(value)
}

/// Adds a descriptor that another process has opened, or this process before exec. `None` if it is no descriptor of
/// `/dev/netmap`. Keeps errno(3).
pub fn adopt(fd: c_int) -> Option<Held> {
    if fd < 0 || !is_ours_to_change() {
        return None;
    }
    let before = errno();
    let is_socket = option_of(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && option_of(fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET);
    let adopted = if is_socket { adopt_socket(fd) } else { None };
    fail(before);
    adopted
}

fn adopt_socket(fd: c_int) -> Option<Held> {
    let descriptor = Held::new(fd, cookie_of(fd)?);
    // A socket that is not connected is not bound yet.
    if linerate::share::netmap_object::server_of(borrow(fd)).is_some() {
        let port = linerate::share::netmap_object::adopt(borrow(fd)).ok()??;
        descriptor.bind(|| Ok::<_, ()>(Bound::new(port)))?.ok()?;
    }
    // A thread that has opened or duplicated the number meanwhile has entered it.
    let place = place_to_be(fd)?;
    let adopted = std::ptr::from_ref(descriptor.descriptor).cast_mut();
    if place.compare_exchange(null_mut(), adopted, AcqRel, Relaxed).is_ok() {
        COUNT.fetch_add(1, Relaxed);
        std::mem::forget(descriptor);
    }
    get(fd)
}

/// Records that the kernel has made `to` the same as `from`.
pub fn duplicate(from: c_int, to: c_int) {
    if !any() || to < 0 || from == to || !is_ours_to_change() {
        return;
    }
    let same = get(from).filter(|held| cookie_of(to) == Some(held.cookie()));
    let before = match same {
        Some(held) => {
            put(to, held);
            None
        }
        None => forget(to),
    };
    drop(before);
}

/// Removes all numbers that were closed without the functions of `calls`.
pub fn sweep() {
    if !any() {
        return;
    }
    filled().for_each(|(n, _)| drop(get(n as c_int)));
}

/// The process that owns the table, in a page that is zero in a child with memory of its own (`MADV_WIPEONFORK`). A
/// child that borrows its parent's memory, by vfork(2) or posix_spawn(3), sees the parent there.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Returns whether this process owns the table. A child that borrows its parent's memory must not change it.
fn is_ours_to_change() -> bool {
    // SAFETY: null, or a word of a page that is never unmapped.
    let Some(owner) = (unsafe { OWNER.load(Acquire).as_ref() }) else { return false };
    let own = std::process::id();
    match owner.compare_exchange(0, own, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == own,
    }
}

/// Prepares the table when the object is loaded, before the process has children.
pub fn start() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let page = call!(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0);
    if page > 0 && call!(libc::SYS_madvise, page, 4096, libc::MADV_WIPEONFORK) == 0 {
        OWNER.store(page as *mut AtomicU32, Release);
    }
    is_ours_to_change();
    // SAFETY: the function has no arguments and accesses one word.
    unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
}

/// Makes a child the table's owner after fork(2), before it can have children that borrow its memory.
unsafe extern "C" fn begin_child() {
    is_ours_to_change();
}
