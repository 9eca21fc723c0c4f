//! The functions of the C library that this library replaces for packet sockets. A call on any other descriptor goes to
//! the C library's function unchanged after a check of one word. It thus remains async-signal-safe and a cancellation
//! point.
//!
//! A thread that is cancelled or ends in the C library unwinds through the functions of this file (`cancel`). They are
//! therefore `C-unwind`, and have nothing to drop where they call the C library.
//!
//! `fcntl` and `ioctl` are variadic in C. Linux ABIs pass variadic arguments in the same registers as named ones, so
//! functions with named arguments are equivalent.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::{iovec, mmsghdr, msghdr, sockaddr, sockaddr_ll, socklen_t, ssize_t, timespec};
use linerate_preload::{call, deferred, errno, fail, guarded, hold_at_fork, memory, option, report, set_errno};

use super::member::Settings;
use super::messages::{self, PARTS, refuse};
use super::system::{answered, is_opening_port, next};
use super::table::{self, BOUND, DGRAM, HANDLE, NETLINK, TABLE};
use super::{control, link, names, netlink, system};
use crate::handle;

// Runs when the library is loaded.
#[used]
// SAFETY: the section is an array of functions that the loader calls.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    guarded((), || {
        system::find_all();
        linerate_preload::start();
        names::keep_arguments();
        hold_at_fork!(Locks, lock, |(_, _, _, links): &mut Locks| links.begin_child());
        // SAFETY: the function has no arguments, and the library is not unloaded before the program exits.
        unsafe { libc::atexit(end) };
    });
}

/// Waits at exit until the program's sent frames are on the wire.
extern "C" fn end() {
    deferred(|| guarded((), link::end_all));
}

/// The locks that are held while a process forks.
type Locks = (
    std::sync::MutexGuard<'static, Vec<handle::ExclusiveHandle>>,
    std::sync::MutexGuard<'static, Vec<std::sync::Arc<names::Name>>>,
    table::Locked,
    std::sync::MutexGuard<'static, link::Links>,
);

fn lock() -> Locks {
    (handle::exclusive_handles(), names::lock(), table::lock(), link::lock())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_ROUTE && !is_opening_port() {
        let fd = next!(socket(domain, kind, protocol));
        if fd >= 0 {
            deferred(|| guarded((), || table::add_netlink(fd)));
        }
        return fd;
    }
    let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    if domain != libc::AF_PACKET || plain != libc::SOCK_RAW && plain != libc::SOCK_DGRAM || is_opening_port() {
        return next!(socket(domain, kind, protocol));
    }
    let before = errno();
    let opened = next!(socket(domain, kind, protocol));
    let fd = deferred(|| {
        guarded(-1, || {
            let is_placeholder = opened < 0 && errno() == libc::EPERM;
            let fd = match is_placeholder {
                // SAFETY: the call has no addresses.
                true => unsafe { call!(libc::SYS_socket, libc::AF_UNIX, kind & !0xF | libc::SOCK_DGRAM, 0) as c_int },
                false => opened,
            };
            if fd >= 0 {
                let (is_dgram, protocol) = (plain == libc::SOCK_DGRAM, u16::from_be(protocol as u16));
                table::add(fd, Settings::new(is_dgram, protocol), is_placeholder);
            }
            fd
        })
    });
    answered(before, fd)
}

/// Reads the program's address; `None` if its family is not `AF_PACKET`.
fn packet_address(address: *const sockaddr, len: socklen_t) -> Result<Option<sockaddr_ll>, c_int> {
    if len == 0 || (len as usize) < size_of::<sockaddr_ll>() && !address.is_null() {
        return Ok(None);
    }
    let address = memory::read(address.cast::<sockaddr_ll>())?;
    Ok((c_int::from(address.sll_family) == libc::AF_PACKET).then_some(address))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if TABLE.word(fd) == 0 {
        return next!(bind(fd, address, len));
    }
    let before = errno();
    let answer = deferred(|| guarded(Some(-1), || bound(fd, packet_address(address, len))));
    answered(before, answer.unwrap_or_else(|| next!(bind(fd, address, len))))
}

/// Binds a packet socket; `None` if the kernel must do it.
fn bound(fd: c_int, address: Result<Option<sockaddr_ll>, c_int>) -> Option<c_int> {
    let socket = table::get(fd)?;
    let is_kernels = socket.link.is_none() && !socket.is_placeholder;
    let address = match address {
        Ok(Some(address)) => address,
        Ok(None) => return (!is_kernels).then(|| fail(libc::EINVAL)),
        Err(errno) => return (!is_kernels).then(|| fail(errno)),
    };
    let protocol = u16::from_be(address.sll_protocol);
    let Some(name) = names::of_index(address.sll_ifindex as u32) else {
        // Not a port. Return the kernel's error for its own interfaces, or for an unknown one.
        let index = address.sll_ifindex as c_uint;
        let mut name = [0; libc::IFNAMSIZ];
        let found = next!(if_indextoname(index, name.as_mut_ptr()) | std::ptr::null_mut());
        return (!is_kernels).then(|| match index == 0 || !found.is_null() {
            true if socket.is_placeholder => fail(libc::EPERM),
            true => fail(libc::EINVAL),
            false => fail(libc::ENODEV),
        });
    };
    let settings = &socket.settings;
    for (has, what) in [(&settings.has_ring, "rings"), (&settings.has_kernel_filter, "filters of the kernel's data")] {
        if is_kernels && has.load(Relaxed) {
            let why = format!("a packet socket of a port has no {what}; give the program a kernel interface");
            report(&format!("{}: {why}: tap: or host:", name.text));
            return Some(fail(libc::EOPNOTSUPP));
        }
    }
    if protocol != 0 {
        settings.protocol.store(protocol, Relaxed);
    }
    if socket.link.as_ref().is_some_and(|link| link.name.index == name.index && link.is_here()) {
        return Some(0);
    }
    Some(match table::bind(fd, &socket, &name) {
        Ok(()) => 0,
        Err(error) => fail(refuse(&error)),
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if TABLE.word(fd) == 0 {
        return next!(getsockname(fd, address, len));
    }
    let before = errno();
    let answer = deferred(|| guarded(Some(-1), || control::own_address(fd).map(|own| put_address(&own, address, len))));
    answered(before, answer.unwrap_or_else(|| next!(getsockname(fd, address, len))))
}

/// Writes a socket's address to the program's memory.
fn put_address(own: &sockaddr_ll, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let put = || {
        let whole = std::mem::offset_of!(sockaddr_ll, sll_addr) + usize::from(own.sll_halen);
        let room = memory::read(len)?;
        if (room as c_int) < 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: `own` has at least `whole` bytes; the program passed both addresses for the result.
        unsafe {
            let bytes = std::slice::from_raw_parts(std::ptr::from_ref(own).cast::<u8>(), whole.min(room as usize));
            memory::write_bytes(address.cast(), bytes)?;
            Ok(memory::write(len, whole as socklen_t)?)
        }
    };
    put().map_or_else(fail, |()| 0)
}

/// Returns whether a descriptor is a port's socket, or a placeholder for one that the kernel refused. For the kernel it
/// is a socket of another kind, so it must not see the call.
fn is_ours(fd: c_int) -> bool {
    let is_of_port = || table::get(fd).is_some_and(|socket| socket.link.is_some() || socket.is_placeholder);
    TABLE.word(fd) != 0 && deferred(|| guarded(false, is_of_port))
}

/// Defines functions that packet sockets do not support (`EOPNOTSUPP`).
macro_rules! without {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C-unwind" fn $name(fd: c_int $(, $argument: $type)*) -> c_int {
                if is_ours(fd) { fail(libc::EOPNOTSUPP) } else { next!($name(fd $(, $argument)*)) }
            }
        )*
    };
}

without! {
    connect(address: *const sockaddr, len: socklen_t);
    listen(backlog: c_int);
    accept(address: *mut sockaddr, len: *mut socklen_t);
    accept4(address: *mut sockaddr, len: *mut socklen_t, flags: c_int);
    getpeername(address: *mut sockaddr, len: *mut socklen_t);
    shutdown(how: c_int);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    if TABLE.word(fd) == 0 {
        return next!(close(fd));
    }
    let before = errno();
    let result = deferred(|| {
        guarded(-1, || {
            let socket = table::get(fd);
            // Forget it first: another thread may get the number as soon as it is closed.
            let forgotten = TABLE.forget(fd);
            // SAFETY: the program closes its own descriptor.
            let result = unsafe { call!(libc::SYS_close, fd) } as c_int;
            let errno = errno();
            drop(forgotten);
            if let Some(socket) = socket {
                table::closed(socket);
            }
            if result < 0 { fail(errno) } else { result }
        })
    });
    answered(before, result)
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    if TABLE.word(from) | TABLE.word(to) != 0 {
        let errno = errno();
        deferred(|| guarded((), || table::duplicate(from, to)));
        set_errno(errno);
    }
    to
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup(fd: c_int) -> c_int {
    duplicated(fd, next!(dup(fd)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    duplicated(fd, next!(dup2(fd, to)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    duplicated(fd, next!(dup3(fd, to, flags)))
}

fn controlled(fd: c_int, command: c_int, answer: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, answer),
        _ => answer,
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    controlled(fd, command, next!(fcntl(fd, command, argument)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    controlled(fd, command, next!(fcntl64(fd, command, argument)))
}

/// Sends parts to an address, which may be null; `None` if the kernel must do it.
fn sent(fd: c_int, parts: &[iovec], flags: c_int, name: *const sockaddr, name_len: socklen_t) -> Option<ssize_t> {
    // SAFETY: all fields are integers or pointers.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    (message.msg_name, message.msg_namelen) = (name.cast_mut().cast(), name_len);
    messages::send(fd, &message, parts, flags)
}

/// Records a request to rtnetlink(7) after it was sent; `sent` is the kernel's result.
fn requested<T: Copy + PartialOrd + From<i8>>(fd: c_int, parts: &[iovec], sent: T) -> T {
    if sent >= T::from(0) {
        deferred(|| guarded((), || netlink::sent(fd, parts)));
    }
    sent
}

/// Sends one buffer without an address. `$next` is the C library's call.
macro_rules! send {
    ($fd:ident, $buffer:ident, $len:ident, $flags:expr, $next:expr) => {{
        let word = TABLE.word($fd);
        if word == 0 {
            return $next;
        }
        if word & NETLINK != 0 {
            return requested($fd, &[iovec { iov_base: $buffer.cast_mut(), iov_len: $len }], $next);
        }
        deferred(|| {
            if table::is_plain(word, $len) {
                return messages::failed($fd, $next);
            }
            let part = iovec { iov_base: $buffer.cast_mut(), iov_len: $len };
            sent($fd, &[part], $flags, std::ptr::null(), 0).unwrap_or_else(|| $next)
        })
    }};
}

#[unsafe(no_mangle)]
extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> ssize_t {
    send!(fd, buffer, len, flags, next!(send(fd, buffer, len, flags)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, len: usize) -> ssize_t {
    send!(fd, buffer, len, 0, next!(write(fd, buffer, len)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // For an invalid count or pointer, the kernel returns the error.
    if TABLE.word(fd) != 0 && (0..=PARTS as c_int).contains(&count) && !parts.is_null() {
        // SAFETY: all fields are integers or pointers.
        let mut message = unsafe { std::mem::zeroed::<msghdr>() };
        (message.msg_iov, message.msg_iovlen) = (parts.cast_mut(), count as _);
        let at = &raw const message;
        if let Some(answer) = deferred(|| messages::send_message(fd, at, 0)) {
            return answer;
        }
    }
    next!(writev(fd, parts, count))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    if TABLE.word(fd) != 0 {
        let part = iovec { iov_base: buffer.cast_mut(), iov_len: len };
        if TABLE.word(fd) & NETLINK != 0 {
            return requested(fd, &[part], next!(sendto(fd, buffer, len, flags, name, name_len)));
        }
        if let Some(answer) = deferred(|| sent(fd, &[part], flags, name, name_len)) {
            return answer;
        }
    }
    next!(sendto(fd, buffer, len, flags, name, name_len))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if TABLE.word(fd) & NETLINK != 0 {
        let sent = next!(sendmsg(fd, message, flags));
        if sent >= 0 {
            // SAFETY: the program's message is readable: the kernel has just read it.
            let parts = || unsafe { messages::parts((*message).msg_iov, (*message).msg_iovlen) };
            deferred(|| guarded((), || parts().into_iter().for_each(|parts| netlink::sent(fd, &parts))));
        }
        return sent;
    }
    if TABLE.word(fd) != 0
        && let Some(answer) = deferred(|| messages::send_message(fd, message, flags))
    {
        return answer;
    }
    next!(sendmsg(fd, message, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sendmmsg(fd: c_int, all: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if TABLE.word(fd) != 0
        && let Some(answer) = deferred(|| messages::send_all(fd, all, count, flags))
    {
        return answer;
    }
    next!(sendmmsg(fd, all, count, flags))
}

/// Receives a pending message about a port from a socket of rtnetlink(7).
fn link_from(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> Option<ssize_t> {
    let parts = &[iovec { iov_base: buffer, iov_len: len }];
    deferred(|| guarded(None, || netlink::receive_from(fd, parts, flags, name, name_len)))
}

/// Receives into one buffer, without an address. `$next` is the C library's call.
macro_rules! receive {
    ($fd:ident, $buffer:ident, $len:ident, $flags:expr, $next:expr) => {{
        let word = TABLE.word($fd);
        if word & BOUND == 0 {
            if word & NETLINK != 0
                && let Some(answer) = link_from($fd, $buffer, $len, $flags, std::ptr::null_mut(), std::ptr::null_mut())
            {
                return answer;
            }
            return $next;
        }
        deferred(|| {
            if word & DGRAM != 0 || $flags & libc::MSG_ERRQUEUE != 0 {
                let (name, len) = (std::ptr::null_mut(), std::ptr::null_mut());
                if let Some(answer) = messages::receive_from($fd, word, $buffer, $len, $flags, name, len) {
                    return answer;
                }
            }
            messages::ended($fd, $next, $len)
        })
    }};
}

#[unsafe(no_mangle)]
extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, len: usize) -> ssize_t {
    receive!(fd, buffer, len, 0, next!(read(fd, buffer, len)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> ssize_t {
    if len > room {
        return next!(__read_chk(fd, buffer, len, room));
    }
    receive!(fd, buffer, len, 0, next!(__read_chk(fd, buffer, len, room)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    receive!(fd, buffer, len, flags, next!(recv(fd, buffer, len, flags)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recv_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize, flags: c_int) -> ssize_t {
    if len > room {
        return next!(__recv_chk(fd, buffer, len, room, flags));
    }
    receive!(fd, buffer, len, flags, next!(__recv_chk(fd, buffer, len, room, flags)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let word = TABLE.word(fd);
    if word & (BOUND | DGRAM) != BOUND | DGRAM || parts.is_null() || !(0..PARTS as c_int).contains(&count) {
        return next!(readv(fd, parts, count));
    }
    deferred(|| messages::receive_parts(fd, word, parts, count as usize))
        .unwrap_or_else(|| next!(readv(fd, parts, count)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    let word = TABLE.word(fd);
    if word & NETLINK != 0
        && let Some(answer) = link_from(fd, buffer, len, flags, name, name_len)
    {
        return answer;
    }
    if word & BOUND == 0 {
        return next!(recvfrom(fd, buffer, len, flags, name, name_len));
    }
    deferred(|| messages::receive_from(fd, word, buffer, len, flags, name, name_len))
        .unwrap_or_else(|| next!(recvfrom(fd, buffer, len, flags, name, name_len)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        return next!(__recvfrom_chk(fd, buffer, len, room, flags, name, name_len));
    }
    recvfrom(fd, buffer, len, flags, name, name_len)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let word = TABLE.word(fd);
    if word & NETLINK != 0
        && let Some(answer) = deferred(|| guarded(None, || netlink::receive_message(fd, message, flags)))
    {
        return answer;
    }
    if word & BOUND == 0 {
        return next!(recvmsg(fd, message, flags));
    }
    deferred(|| messages::receive_message(fd, word, message, flags))
        .unwrap_or_else(|| next!(recvmsg(fd, message, flags)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recvmmsg(
    fd: c_int,
    all: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let word = TABLE.word(fd);
    if word & BOUND == 0 {
        return next!(recvmmsg(fd, all, count, flags, timeout));
    }
    deferred(|| messages::receive_all(fd, word, all, count, flags, timeout))
        .unwrap_or_else(|| next!(recvmmsg(fd, all, count, flags, timeout)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    if TABLE.word(fd) == 0 {
        return next!(setsockopt(fd, level, name, value, len));
    }
    let before = errno();
    let answer = deferred(|| guarded(Some(-1), || control::set(fd, level, name, value, len)));
    answered(before, answer.unwrap_or_else(|| next!(setsockopt(fd, level, name, value, len))))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if TABLE.word(fd) == 0 {
        return next!(getsockopt(fd, level, name, value, len));
    }
    let before = errno();
    let answer = deferred(|| guarded(Some(-1), || control::get(fd, level, name, value, len)));
    answered(before, answer.unwrap_or_else(|| next!(getsockopt(fd, level, name, value, len))))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let before = errno();
    if request as u32 as c_ulong == libc::FIONREAD
        && TABLE.word(fd) & BOUND != 0
        && let Some(answer) = deferred(|| guarded(None, || control::next_len(fd, argument)))
    {
        return answered(before, answer);
    }
    // A libpcap handle's descriptor is a socket on Linux, so programs send interface requests to it.
    let is_of_handle = TABLE.word(fd) & HANDLE != 0 && control::is_of_sockets(request);
    let answer = match is_of_handle {
        true => deferred(|| guarded(-1, || control::by_socket(request, argument))),
        false => next!(ioctl(fd, request, argument)),
    };
    // The kernel rejects unknown interface names; on this library's sockets it may not support the request at all.
    let is_refused = answer < 0 && matches!(errno(), libc::ENODEV | libc::ENXIO | libc::ENOTTY | libc::EINVAL);
    if !is_refused || argument.is_null() || !control::is_about_interfaces(request) {
        return answered(before, answer);
    }
    let refused = errno();
    let ours = deferred(|| {
        guarded(Some(-1), || match is_of_handle || option(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_some() {
            // SAFETY: the program's `struct ifreq`, which is not null, and which the kernel has read.
            true => unsafe { control::answer(fd, request, argument) },
            false => None,
        })
    });
    answered(before, ours.unwrap_or_else(|| fail(refused)))
}
