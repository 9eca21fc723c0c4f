//! The program's descriptors of `/dev/netmap`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

use linerate_preload::{Table, call, cookie_of, copy_status, fail, keeping_errno, option, owns_memory, replace};

use crate::descriptor::Bound;
use crate::real::borrow;

/// A socket that stands for `/dev/netmap`, bound to a port or not.
pub struct Descriptor {
    /// The events that epoll(7) instances wait for, as bits of poll(2). When one of them occurs, the server makes the
    /// descriptor readable by sending a token.
    pub watched: AtomicU32,
    is_binding: AtomicBool,
    bound: OnceLock<Bound>,
    /// The process that opened the descriptor.
    process: u32,
}

/// A reference to a descriptor.
pub type DescriptorRef = linerate_preload::EntryRef<Descriptor>;

/// All descriptors of the program.
pub static TABLE: Table<Descriptor> = Table::new();

/// The word of every entry ([`Table::word`]): only its presence matters.
const PRESENT: u32 = 1;

impl Drop for Descriptor {
    /// A child does not free a port inherited from its parent: a child of a program with threads cannot free memory.
    /// The server closes the port when the last descriptor of all processes is closed.
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

    /// Returns the port that the descriptor is bound to.
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// Binds the descriptor. `None` if it is already bound, or another thread is binding it.
    ///
    /// # Errors
    /// Errors of `bind`.
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

/// Returns whether the table has an entry for a descriptor. The entry may be out of date.
pub fn may_be_ours(fd: c_int) -> bool {
    TABLE.word(fd) != 0
}

/// Makes a socket for a descriptor. A socket has a unique cookie, epoll(7) accepts it, and it can be connected to the
/// port's server.
fn socket(closes_on_exec: bool) -> c_int {
    let close = if closes_on_exec { libc::SOCK_CLOEXEC } else { 0 };
    // SAFETY: the call has no addresses.
    unsafe { call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | close, 0) as c_int }
}

/// Closes a socket made by [`socket`].
fn close(socket: c_int) {
    // SAFETY: the caller owns the socket.
    unsafe { call!(libc::SYS_close, socket) };
}

/// Opens a descriptor; returns -1 on errors, as open(2). `None` in a child of vfork(2), which must not change the table
/// in its parent's memory.
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

/// Adds a descriptor that was opened by another process, or by this process before execve(2). `None` if it is not one
/// of `/dev/netmap`. Keeps errno(3).
pub fn adopt(fd: c_int) -> Option<DescriptorRef> {
    let is_of = |name, value| option(fd, libc::SOL_SOCKET, name) == Some(value);
    if fd < 0 || !owns_memory() || !is_of(libc::SO_DOMAIN, libc::AF_UNIX) || !is_of(libc::SO_TYPE, libc::SOCK_SEQPACKET)
    {
        return None;
    }
    keeping_errno(|| {
        let (cookie, descriptor) = (cookie_of(fd)?, Descriptor::new());
        // An unconnected socket is a descriptor that is not bound yet.
        if linerate::share::netmap_object::server_of(borrow(fd)).is_some() {
            let port = linerate::share::netmap_object::adopt(borrow(fd)).ok()??;
            descriptor.bind(|| Ok::<_, ()>(Bound::new(port)))?.ok()?;
        }
        TABLE.adopt(fd, cookie, PRESENT, descriptor)
    })
}

/// Replaces the socket of a descriptor by a new, unbound one; the server closes the port of the old socket.
pub fn renew(held: &DescriptorRef) {
    let socket = socket(true);
    if socket < 0 {
        return;
    }
    copy_status(held.fd, socket);
    // SAFETY: the program's descriptor; this library does not own it.
    if unsafe { replace(held.fd, socket) } {
        held.set_cookie(cookie_of(held.fd).unwrap_or_default());
    }
    close(socket);
}
