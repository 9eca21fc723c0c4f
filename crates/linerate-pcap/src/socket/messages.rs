//! Sending and receiving where the kernel's call on a socket pair behaves differently from one on a packet socket:
//! addresses, sockets without Ethernet headers, lengths.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use libc::{iovec, mmsghdr, msghdr, sockaddr, sockaddr_ll, ssize_t, timespec};
use linerate_preload::{cancellation_point, errno, fail, guarded, memory, report, set_errno};

use super::frame::{self, HEADER, fits};
use super::names;
use super::system::next;
use super::table::{self, TABLE};

/// `SOL_PACKET` and its `PACKET_AUXDATA`.
const SOL_PACKET: c_int = 263;
const PACKET_AUXDATA: c_int = 8;
/// The status of a received frame (`TP_STATUS_USER`).
const TP_STATUS_USER: u32 = 1;
/// Length of a `struct sockaddr_ll` without its hardware address.
const ADDRESS: usize = std::mem::offset_of!(sockaddr_ll, sll_addr);

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Auxiliary {
    status: u32,
    len: u32,
    captured: u32,
    link_layer: u16,
    network: u16,
    vlan: u16,
    vlan_protocol: u16,
}

/// Maximum number of parts of a message (`UIO_MAXIOV`).
pub const PARTS: usize = 1024;

/// Reads the parts of a message; too many of them are `EMSGSIZE`, before any is read.
pub fn parts(from: *const iovec, count: usize) -> Result<Vec<iovec>, c_int> {
    if count > PARTS { Err(libc::EMSGSIZE) } else { Ok(memory::read_all(from, count)?) }
}

fn len_of(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len))
}

/// Reads the first bytes of a message, which must be at least as long as `bytes`.
fn first(parts: &[iovec], bytes: &mut [u8]) -> Result<(), memory::Fault> {
    let mut at = 0;
    for part in parts {
        let len = part.iov_len.min(bytes.len() - at);
        memory::read_bytes(part.iov_base, &mut bytes[at..at + len])?;
        at += len;
    }
    Ok(())
}

/// Returns the parts of a message, preceded by an Ethernet header.
fn with_header(header: &mut [u8; HEADER], parts: &[iovec]) -> Vec<iovec> {
    let mut all = Vec::with_capacity(parts.len() + 1);
    all.push(iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER });
    all.extend_from_slice(parts);
    all
}

/// Reads the address of a message; `None` if there is none.
fn address(name: *const c_void, len: usize) -> Result<Option<sockaddr_ll>, c_int> {
    if name.is_null() || len == 0 {
        return Ok(None);
    }
    if !(ADDRESS..=size_of::<libc::sockaddr_storage>()).contains(&len) {
        return Err(libc::EINVAL);
    }
    let mut bytes = [0; size_of::<sockaddr_ll>()];
    let len = len.min(bytes.len());
    memory::read_bytes(name, &mut bytes[..len])?;
    // SAFETY: all fields are integers.
    let address = unsafe { bytes.as_ptr().cast::<sockaddr_ll>().read_unaligned() };
    if len < ADDRESS + usize::from(address.sll_halen) {
        return Err(libc::EINVAL);
    }
    Ok(Some(address))
}

/// Sends a message of these parts; `None` if the kernel must do it.
///
/// If the thread is cancelled meanwhile (pthreads(7)), nothing here is dropped.
pub fn send(fd: c_int, message: &msghdr, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    if TABLE.word(fd) == 0 {
        return None;
    }
    // The kernel's call is a cancellation point even if it fails, so this one must be too.
    // SAFETY: neither this function nor its callers have anything to drop at this point.
    unsafe { cancellation_point() };
    let flags = flags & !libc::MSG_OOB | libc::MSG_NOSIGNAL;
    let prepared = guarded(Some(Err(libc::EIO)), || prepare(fd, message, parts));
    let mut prepared = match prepared? {
        Ok(prepared) => ManuallyDrop::new(prepared),
        Err(errno) => return Some(fail(errno)),
    };
    let mut all = ManuallyDrop::new(Vec::new());
    // SAFETY: all fields are integers or pointers.
    let mut plain = unsafe { std::mem::zeroed::<msghdr>() };
    (plain.msg_iov, plain.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
    let mut skipped = 0;
    if let Some(header) = &mut prepared.header {
        *all = with_header(header, parts);
        (plain.msg_iov, plain.msg_iovlen) = (all.as_mut_ptr(), all.len() as _);
        skipped = HEADER as ssize_t;
    }
    let sent = next!(sendmsg(prepared.through, &raw const plain, flags));
    let sent = if sent < 0 { failed(fd, sent) } else { sent - skipped };
    let before = errno();
    drop((ManuallyDrop::into_inner(all), ManuallyDrop::into_inner(prepared)));
    Some(if sent < 0 { fail(before) } else { sent })
}

/// As [`send`], for a message in the program's memory.
pub fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if TABLE.word(fd) == 0 {
        return None;
    }
    let read = guarded(Err(libc::EIO), || {
        let message = memory::read(message)?;
        Ok((message, parts(message.msg_iov, message.msg_iovlen)?))
    });
    let (message, parts) = match read {
        Ok((message, parts)) => (message, ManuallyDrop::new(parts)),
        Err(errno) => return table::is_current(fd).then(|| fail(errno)),
    };
    let sent = send(fd, &message, &parts, flags);
    let before = errno();
    drop(ManuallyDrop::into_inner(parts));
    set_errno(before);
    sent
}

/// The destination of a message.
struct Prepared {
    /// The descriptor to send through.
    through: c_int,
    /// The Ethernet header of a `SOCK_DGRAM` socket's message.
    header: Option<[u8; HEADER]>,
    /// Keeps the descriptor open.
    _sender: Option<Arc<table::Sender>>,
}

/// Finds the port for a message, and checks its length; `None` if the kernel must send it.
fn prepare(fd: c_int, message: &msghdr, parts: &[iovec]) -> Option<Result<Prepared, c_int>> {
    let socket = table::get(fd)?;
    let address = match address(message.msg_name, message.msg_namelen as usize) {
        Ok(address) => address,
        Err(errno) => return Some(Err(errno)),
    };
    let index = address.map(|address| address.sll_ifindex as u32);
    let name = index.and_then(names::of_index);
    let (through, link, sender) = match (&socket.link, &name) {
        (Some(link), None) if index.is_none() => (fd, link.clone(), None),
        (Some(link), Some(name)) if link.name.index == name.index => (fd, link.clone(), None),
        (_, Some(name)) => match table::sender(&socket, name) {
            Ok(sender) => (sender.end.as_raw_fd(), sender.link.clone(), Some(sender)),
            Err(error) => return Some(Err(refuse(&error))),
        },
        (Some(_), None) => return Some(Err(libc::ENXIO)),
        (None, None) if socket.is_placeholder => {
            return Some(Err(if index.is_some() { libc::EPERM } else { libc::ENXIO }));
        }
        (None, None) => return None,
    };
    let len = len_of(parts);
    let header = match (socket.settings.is_dgram, address) {
        (false, _) => None,
        // As in the kernel, a header needs an address.
        (true, None) => return Some(Err(libc::EINVAL)),
        (true, Some(address)) => {
            let mut header = [0; HEADER];
            header[..6].copy_from_slice(&address.sll_addr[..6]);
            header[6..12].copy_from_slice(&link.properties.address);
            header[12..].copy_from_slice(&address.sll_protocol.to_ne_bytes());
            Some(header)
        }
    };
    let whole = len.saturating_add(header.map_or(0, |header| header.len()));
    let mut begin = header.unwrap_or_default();
    // Only the longest frames need a check for a VLAN tag.
    let mtu = link.properties.mtu();
    if header.is_none()
        && (mtu + HEADER + 1..=mtu + linerate::port::FRAME_HEADERS).contains(&whole)
        && let Err(fault) = first(parts, &mut begin)
    {
        return Some(Err(fault.into()));
    }
    if parts.len() + usize::from(header.is_some()) > PARTS || !fits(&begin, whole, mtu) {
        return Some(Err(libc::EMSGSIZE));
    }
    if whole < HEADER {
        return Some(Err(libc::EINVAL));
    }
    if !link.properties.can_send {
        return Some(Err(libc::EOPNOTSUPP));
    }
    Some(Ok(Prepared { through, header, _sender: sender }))
}

/// Converts a send error that means the port is gone to a packet socket's error for an interface that is down
/// (`ENETDOWN`).
pub fn failed(fd: c_int, answer: ssize_t) -> ssize_t {
    let is_gone = answer < 0 && matches!(errno(), libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN);
    if is_gone && table::is_current(fd) { fail(libc::ENETDOWN) } else { answer }
}

/// Converts the end of input, which means the other end is closed, to the error for an interface that is down
/// (`ENETDOWN`).
pub fn ended(fd: c_int, answer: ssize_t, len: usize) -> ssize_t {
    let is_gone = answer == 0 && len > 0;
    if is_gone && table::is_current(fd) { fail(libc::ENETDOWN) } else { answer }
}

/// Reports an error on stderr; returns its errno(3).
pub fn refuse(error: &linerate::Error) -> c_int {
    report(&error.with_command_hint());
    match error.errno() {
        // The port does not exist: for the program, its interface is missing.
        libc::ENXIO => libc::ENODEV,
        errno => errno,
    }
}

/// Sends messages one after the other; `None` if the kernel must do it.
pub fn send_all(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    if TABLE.word(fd) == 0 {
        return None;
    }
    let count = (count as usize).min(PARTS);
    for at in 0..count {
        let message = messages.wrapping_add(at);
        match send_message(fd, message.cast(), flags) {
            // All messages use the same socket, so the first one decides.
            None if at == 0 => return None,
            None => return Some(at as c_int),
            Some(sent) if sent < 0 => return Some(if at == 0 { -1 } else { at as c_int }),
            Some(sent) => {
                if let Err(errno) = put_len(message, sent) {
                    return Some(if at == 0 { fail(errno) } else { at as c_int });
                }
            }
        }
    }
    Some(count as c_int)
}

/// Writes the length of a sent or received message.
fn put_len(message: *mut mmsghdr, len: ssize_t) -> Result<(), memory::Fault> {
    let at = message.cast::<u8>().wrapping_add(std::mem::offset_of!(mmsghdr, msg_len));
    // SAFETY: the program passed the message for the result.
    unsafe { memory::write(at.cast::<c_uint>(), len as c_uint) }
}

/// Receives a message of these parts from a port's socket; `None` if the descriptor has become another file's. Sets the
/// lengths and flags of `message`; the parts and the other addresses in it point at the program's memory.
///
/// If the thread is cancelled meanwhile (pthreads(7)), nothing here is dropped.
pub fn receive(fd: c_int, word: u32, message: &mut msghdr, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    if !table::is_current(fd) {
        return None;
    }
    if let Some(answer) = refused(flags) {
        return Some(answer);
    }
    let is_dgram = word & table::DGRAM != 0;
    let room = len_of(parts);
    let wants_address = !message.msg_name.is_null();
    let mut header = [0; HEADER];
    if !is_dgram && wants_address && room < HEADER {
        // The Ethernet header does not fit in the program's buffer: peek at it for the address.
        let flags = flags & libc::MSG_DONTWAIT | libc::MSG_PEEK;
        if next!(recv(fd, header.as_mut_ptr().cast(), HEADER, flags)) < 0 {
            return Some(-1);
        }
    }
    let mut all = ManuallyDrop::new(Vec::new());
    let mut plain = msghdr { msg_name: null_mut(), msg_namelen: 0, ..*message };
    (plain.msg_iov, plain.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
    if is_dgram {
        *all = with_header(&mut header, parts);
        (plain.msg_iov, plain.msg_iovlen) = (all.as_mut_ptr(), all.len() as _);
    }
    let received = next!(recvmsg(fd, &raw mut plain, flags | libc::MSG_TRUNC));
    let before = errno();
    drop(ManuallyDrop::into_inner(all));
    if received < 0 {
        return Some(fail(before));
    }
    if received == 0 {
        // Frames are never empty: the other end is closed.
        return Some(fail(libc::ENETDOWN));
    }
    let whole = received as usize;
    let skipped = if is_dgram { HEADER.min(whole) } else { 0 };
    // Bytes that do not fit are lost; `MSG_TRUNC` asks for the full length.
    let len = if flags & libc::MSG_TRUNC != 0 { whole - skipped } else { room.min(whole - skipped) };
    if wants_address && !is_dgram && room >= HEADER {
        // Cannot fail: the kernel has just written there.
        let _ = first(parts, &mut header[..HEADER.min(whole)]);
    }
    let space = message.msg_controllen;
    (message.msg_flags, message.msg_controllen) = (plain.msg_flags, plain.msg_controllen);
    if word & table::AUXILIARY != 0 {
        let auxiliary = Auxiliary {
            status: TP_STATUS_USER,
            // The filter may have truncated the frame, so its original length is unknown.
            len: (whole - skipped) as u32,
            captured: (whole - skipped) as u32,
            link_layer: 0,
            network: if is_dgram { 0 } else { HEADER as u16 },
            vlan: 0,
            vlan_protocol: 0,
        };
        append(message, space, &auxiliary);
    }
    if wants_address && let Some(link) = guarded(None, || table::get(fd)?.link) {
        let from = frame::sender(&header, link.name.index, &link.properties);
        let room = (message.msg_namelen as usize).min(size_of::<sockaddr_ll>());
        // SAFETY: `from` has at least `room` bytes; the program passed the message for the result.
        let written = unsafe {
            let bytes = std::slice::from_raw_parts((&raw const from).cast::<u8>(), room);
            memory::write_bytes(message.msg_name, bytes)
        };
        if let Err(errno) = written {
            return Some(fail(errno));
        }
        message.msg_namelen = size_of::<sockaddr_ll>() as u32;
    }
    Some(len as ssize_t)
}

/// Returns the answer to `MSG_ERRQUEUE`: a port's socket has no error queue.
pub fn refused(flags: c_int) -> Option<ssize_t> {
    (flags & libc::MSG_ERRQUEUE != 0).then(|| fail(libc::EAGAIN))
}

/// Appends auxiliary data to a received message's control buffer of `space` bytes.
fn append(message: &mut msghdr, space: usize, auxiliary: &Auxiliary) {
    const LEN: usize = size_of::<Auxiliary>();
    // SAFETY: these functions only calculate.
    let (needed, whole) = unsafe { (libc::CMSG_SPACE(LEN as c_uint) as usize, libc::CMSG_LEN(LEN as c_uint) as usize) };
    let at = message.msg_controllen;
    if message.msg_control.is_null() || at + needed > space {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let header = libc::cmsghdr { cmsg_len: whole as _, cmsg_level: SOL_PACKET, cmsg_type: PACKET_AUXDATA };
    let control = message.msg_control.wrapping_byte_add(at);
    // SAFETY: the program passed the message for the result.
    let is_written = unsafe {
        memory::write(control.cast(), header)
            .and_then(|()| memory::write(control.wrapping_byte_add(whole - LEN).cast(), *auxiliary))
    };
    if is_written.is_ok() {
        message.msg_controllen = (at + needed) as _;
    }
}

/// Receives a message into one buffer; returns recvfrom(2)'s result, or `None` as [`receive`].
pub fn receive_from(
    fd: c_int,
    word: u32,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut libc::socklen_t,
) -> Option<ssize_t> {
    let part = iovec { iov_base: buffer, iov_len: len };
    // SAFETY: all fields are integers or pointers.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    if !name.is_null() {
        message.msg_name = name.cast();
        match memory::read(name_len) {
            Ok(len) if len as c_int >= 0 => message.msg_namelen = len,
            Ok(_) => return Some(fail(libc::EINVAL)),
            Err(errno) => return Some(fail(errno)),
        }
    }
    let received = receive(fd, word, &mut message, &[part], flags)?;
    if received >= 0
        && !name.is_null()
        // SAFETY: the program passed the address for the result.
        && let Err(errno) = unsafe { memory::write(name_len, message.msg_namelen) }
    {
        return Some(fail(errno));
    }
    Some(received)
}

/// Receives into the program's parts; `None` as [`receive`].
pub fn receive_parts(fd: c_int, word: u32, parts: *const iovec, count: usize) -> Option<ssize_t> {
    let parts = match guarded(Err(libc::EIO), || self::parts(parts, count)) {
        Ok(parts) => ManuallyDrop::new(parts),
        Err(errno) => return Some(fail(errno)),
    };
    // SAFETY: all fields are integers or pointers.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    let received = receive(fd, word, &mut message, &parts, 0);
    let before = errno();
    drop(ManuallyDrop::into_inner(parts));
    set_errno(before);
    received
}

/// As [`receive`], for a message in the program's memory.
pub fn receive_message(fd: c_int, word: u32, at: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !table::is_current(fd) {
        return None;
    }
    let read = guarded(Err(libc::EIO), || {
        let message = memory::read(at)?;
        Ok((message, parts(message.msg_iov, message.msg_iovlen)?))
    });
    let (mut message, parts) = match read {
        Ok((message, parts)) => (message, ManuallyDrop::new(parts)),
        Err(errno) => return Some(fail(errno)),
    };
    let received = receive(fd, word, &mut message, &parts, flags);
    let before = errno();
    drop(ManuallyDrop::into_inner(parts));
    set_errno(before);
    // Only lengths and flags have changed, so writing the whole structure is safe.
    match received {
        Some(received) if received >= 0 => {
            // SAFETY: the program passed the message for the result.
            Some(unsafe { memory::write(at, message) }.map_or_else(fail, |()| received))
        }
        received => received,
    }
}

/// Receives messages one after the other; returns recvmmsg(2)'s result, or `None` as [`receive`].
pub fn receive_all(
    fd: c_int,
    word: u32,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    let begin = Instant::now();
    let longest = match memory::read_duration(timeout) {
        Ok(longest) => longest,
        Err(errno) => return Some(fail(errno)),
    };
    let count = (count as usize).min(PARTS);
    let mut flags = flags;
    for at in 0..count {
        let message = messages.wrapping_add(at);
        let received = receive_message(fd, word, message.cast(), flags & !libc::MSG_WAITFORONE);
        if at == 0 && received.is_none() {
            return None;
        }
        let received = received.unwrap_or(-1);
        if received < 0 {
            return Some(if at == 0 { -1 } else { at as c_int });
        }
        if let Err(errno) = put_len(message, received) {
            return Some(if at == 0 { fail(errno) } else { at as c_int });
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if longest.is_some_and(|longest| begin.elapsed() >= longest) {
            return Some(at as c_int + 1);
        }
    }
    Some(count as c_int)
}
