//! The numbers that are descriptors of `/dev/netmap`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

use linerate_preload::{Table, call, cookie_of, copy_status, fail, keeping_errno, option, owns_memory, replace};

use crate::descriptor::Bound;
use crate::real::borrow;

/// A socket that stands for `/dev/netmap`: free, or bound to a port.
pub struct Descriptor {
    /// The events that an epoll(7) waits for, as bits of poll(2). The server sends a token whenever one of them is
    /// there.
    pub watched: AtomicU32,
    is_binding: AtomicBool,
    bound: OnceLock<Bound>,
    /// The process that has opened it.
    process: u32,
}

/// A use of a descriptor, by one of its numbers.
pub type Held = linerate_preload::Held<Descriptor>;

/// All descriptors of the program.
pub static TABLE: Table<Descriptor> = Table::new();

/// The word of all entries.
const PRESENT: u32 = 1;

impl Drop for Descriptor {
    /// The server closes the port when the kernel has closed the last descriptor of all processes. A child only leaves
    /// what it has inherited: in the child of a program with threads memory cannot be freed.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.bound.take());
        }
    }
}

impl Descriptor {
    fn new() -> Descriptor {
        let (watched, is_binding) = (AtomicU32::new(0), AtomicBool::new(false));
        Descriptor { watched, is_binding, bound: OnceLock::new(), process: std::process::id() }
    }

    /// Returns the port that it is bound to.
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.get()
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
            None => Some(bind().map(|bound| self.bound.get_or_init(|| bound))),
        };
        self.is_binding.store(false, Release);
        result
    }
}

/// Returns whether the table has an entry for a number. The entry may be out of date.
pub fn may_be_ours(fd: c_int) -> bool {
    TABLE.word(fd) != 0
}

/// Makes a socket for a descriptor. A socket has an identity, epoll(7) accepts it, and it will be connected to the
/// port's server.
fn socket(closes_on_exec: bool) -> c_int {
    let close = if closes_on_exec { libc::SOCK_CLOEXEC } else { 0 };
    // SAFETY: the call has no addresses.
    unsafe { call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | close, 0) as c_int }
}

/// Closes a socket of [`socket`].
fn close(socket: c_int) {
    // SAFETY: the caller's own socket.
    unsafe { call!(libc::SYS_close, socket) };
}

/// Opens a descriptor; returns -1 as open(2) does. `None` in a child that borrows its parent's memory, which cannot
/// have one.
pub fn open(closes_on_exec: bool) -> Option<c_int> {
    if !owns_memory() {
        return None;
    }
    TABLE.sweep();
    let fd = socket(closes_on_exec);
    if fd < 0 {
        return Some(fd);
    }
    let is_added = cookie_of(fd).is_some_and(|cookie| TABLE.insert(fd, cookie, PRESENT, Descriptor::new()));
    if !is_added {
        close(fd);
        return Some(fail(libc::EMFILE));
    }
    Some(fd)
}

/// Adds a descriptor that another process has opened, or this process before exec. `None` if it is no descriptor of
/// `/dev/netmap`. Keeps errno(3).
pub fn adopt(fd: c_int) -> Option<Held> {
    let is_of = |name, value| option(fd, libc::SOL_SOCKET, name) == Some(value);
    if fd < 0 || !owns_memory() || !is_of(libc::SO_DOMAIN, libc::AF_UNIX) || !is_of(libc::SO_TYPE, libc::SOCK_SEQPACKET)
    {
        return None;
    }
    keeping_errno(|| {
        let (cookie, descriptor) = (cookie_of(fd)?, Descriptor::new());
        // A socket that is not connected is not bound yet.
        if linerate::share::netmap_object::server_of(borrow(fd)).is_some() {
            let port = linerate::share::netmap_object::adopt(borrow(fd)).ok()??;
            descriptor.bind(|| Ok::<_, ()>(Bound::new(port)))?.ok()?;
        }
        TABLE.adopt(fd, cookie, PRESENT, descriptor)
    })
}

/// Replaces the socket of a number by a new one without a port; the server closes the port of the old one.
pub fn renew(held: &Held) {
    let socket = socket(true);
    if socket < 0 {
        return;
    }
    copy_status(held.fd, socket);
    // SAFETY: the program's number: this object has its number only.
    if unsafe { replace(held.fd, socket) } {
        held.set_cookie(cookie_of(held.fd).unwrap_or_default());
    }
    close(socket);
}
