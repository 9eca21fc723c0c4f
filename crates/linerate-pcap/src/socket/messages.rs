//! Sending and receiving where the kernel's call on a pair's end is not the packet socket's: addresses, sockets without
//! Ethernet headers, lengths.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{iovec, mmsghdr, msghdr, sockaddr, sockaddr_ll, ssize_t, timespec};

use super::frame::{self, HEADER, fits};
use super::names;
use super::system::{errno, fail, guarded, next, report};
use super::table;

/// `SOL_PACKET` and its `PACKET_AUXDATA`.
const SOL_PACKET: c_int = 263;
const PACKET_AUXDATA: c_int = 8;
/// The state of a frame for the program (`TP_STATUS_USER`).
const TP_STATUS_USER: u32 = 1;
/// `struct sockaddr_ll` without its address's bytes.
const ADDRESS: usize = std::mem::offset_of!(sockaddr_ll, sll_addr);
/// The most parts of a message (`UIO_MAXIOV`).
const PARTS: usize = 1024;

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

/// Returns the parts of a message.
///
/// # Safety
/// The program's message.
unsafe fn parts<'a>(message: &msghdr) -> &'a [iovec] {
    if message.msg_iov.is_null() {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

fn len_of(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len))
}

/// Copies the first bytes of a message; returns their number.
///
/// # Safety
/// The parts are the program's, and can be read.
unsafe fn first(parts: &[iovec], bytes: &mut [u8]) -> usize {
    let mut at = 0;
    for part in parts {
        let len = part.iov_len.min(bytes.len() - at);
        if len > 0 {
            // SAFETY: as the caller says.
            unsafe { bytes[at..].as_mut_ptr().copy_from_nonoverlapping(part.iov_base.cast(), len) };
        }
        at += len;
    }
    at
}

/// Returns the parts of a message with an Ethernet header in front.
fn with_header(header: &mut [u8; HEADER], parts: &[iovec]) -> Vec<iovec> {
    let mut all = Vec::with_capacity(parts.len() + 1);
    all.push(iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER });
    all.extend_from_slice(parts);
    all
}

/// Returns the address of a message; `None` if there is none.
///
/// # Safety
/// `name` is null, or has `len` bytes.
unsafe fn address(name: *const c_void, len: usize) -> Result<Option<sockaddr_ll>, c_int> {
    if name.is_null() || len == 0 {
        return Ok(None);
    }
    if len < ADDRESS {
        return Err(libc::EINVAL);
    }
    // SAFETY: all fields are integers.
    let mut address = unsafe { std::mem::zeroed::<sockaddr_ll>() };
    let len = len.min(size_of::<sockaddr_ll>());
    // SAFETY: the program's address has as many bytes.
    unsafe { (&raw mut address).cast::<u8>().copy_from_nonoverlapping(name.cast(), len) };
    if len < ADDRESS + usize::from(address.sll_halen) {
        return Err(libc::EINVAL);
    }
    Ok(Some(address))
}

/// Sends a message; `None` if it is the kernel's.
///
/// A thread that is cancelled meanwhile (pthreads(7)) drops nothing here.
///
/// # Safety
/// The program's message.
pub unsafe fn send(fd: c_int, message: &msghdr, flags: c_int) -> Option<ssize_t> {
    if table::word(fd) == 0 {
        return None;
    }
    // SAFETY: as the caller says.
    let parts = unsafe { parts(message) };
    let mut plain =
        msghdr { msg_name: null_mut(), msg_namelen: 0, msg_control: null_mut(), msg_controllen: 0, ..*message };
    let flags = flags & !libc::MSG_OOB | libc::MSG_NOSIGNAL;
    // SAFETY: as the caller says.
    let prepared = guarded(Some(Err(libc::EIO)), || unsafe { prepare(fd, message) });
    let mut prepared = match prepared? {
        Ok(prepared) => ManuallyDrop::new(prepared),
        Err(errno) => return Some(fail(errno)),
    };
    let mut all = ManuallyDrop::new(Vec::new());
    let mut skipped = 0;
    if let Some(header) = &mut prepared.header {
        *all = with_header(header, parts);
        (plain.msg_iov, plain.msg_iovlen) = (all.as_mut_ptr(), all.len());
        skipped = HEADER as ssize_t;
    }
    let sent = next!(sendmsg(prepared.through, &raw const plain, flags));
    let sent = if sent < 0 { failed(fd, sent) } else { sent - skipped };
    let before = errno();
    drop((ManuallyDrop::into_inner(all), ManuallyDrop::into_inner(prepared)));
    Some(if sent < 0 { fail(before) } else { sent })
}

/// Where a message goes.
struct Prepared {
    /// The descriptor to send through.
    through: c_int,
    /// The header that the program leaves to the socket.
    header: Option<[u8; HEADER]>,
    /// Keeps the descriptor open.
    _sender: Option<Arc<table::Sender>>,
}

/// Finds the port of a message, and checks its length; `None` if the message is the kernel's.
///
/// # Safety
/// The program's message.
unsafe fn prepare(fd: c_int, message: &msghdr) -> Option<Result<Prepared, c_int>> {
    let socket = table::get(fd)?;
    // SAFETY: as the caller says.
    let address = match unsafe { address(message.msg_name, message.msg_namelen as usize) } {
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
    // SAFETY: as the caller says.
    let parts = unsafe { parts(message) };
    let len = len_of(parts);
    let header = match (socket.settings.is_dgram, address) {
        (false, _) => None,
        // The kernel makes no header without an address, either.
        (true, None) => return Some(Err(libc::EINVAL)),
        (true, Some(address)) => {
            let mut header = [0; HEADER];
            header[..6].copy_from_slice(&address.sll_addr[..6]);
            header[6..12].copy_from_slice(&link.about.address);
            header[12..].copy_from_slice(&address.sll_protocol.to_ne_bytes());
            Some(header)
        }
    };
    let mut begin = header.unwrap_or_default();
    if header.is_none() {
        // SAFETY: as the caller says.
        unsafe { first(parts, &mut begin) };
    }
    let whole = len.saturating_add(header.map_or(0, |header| header.len()));
    if parts.len() >= PARTS || !fits(&begin, whole, link.about.mtu()) {
        return Some(Err(libc::EMSGSIZE));
    }
    if whole < HEADER {
        return Some(Err(libc::EINVAL));
    }
    if !link.about.can_send {
        return Some(Err(libc::EOPNOTSUPP));
    }
    Some(Ok(Prepared { through, header, _sender: sender }))
}

/// Gives an error of sending the number that a packet socket has, if the port is gone: the interface is down.
pub fn failed(fd: c_int, answer: ssize_t) -> ssize_t {
    let is_gone = answer < 0 && matches!(errno(), libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN);
    if is_gone && table::is_current(fd) { fail(libc::ENETDOWN) } else { answer }
}

/// Makes the end of a pair, whose other end is closed, an error as of an interface that is down.
pub fn ended(fd: c_int, word: u32, answer: ssize_t, len: usize) -> ssize_t {
    let is_gone = answer == 0 && len > 0 && word & table::BOUND != 0;
    if is_gone && table::is_current(fd) { fail(libc::ENETDOWN) } else { answer }
}

/// Reports an error on stderr; returns its number.
pub fn refuse(error: &linerate::Error) -> c_int {
    report(&error.with_hint());
    match linerate::share::netmap_object::errno(error) {
        // The interface that the name denotes is missing.
        libc::ENXIO => libc::ENODEV,
        errno => errno,
    }
}

/// Sends messages one after the other; `None` if they are the kernel's.
///
/// # Safety
/// The program's messages.
pub unsafe fn send_all(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    if table::word(fd) == 0 {
        return None;
    }
    for at in 0..count as usize {
        // SAFETY: as the caller says.
        let message = unsafe { &mut *messages.add(at) };
        // SAFETY: as the caller says.
        let sent = unsafe { send(fd, &message.msg_hdr, flags) };
        match sent {
            // The first message decides: all have the same kind of socket.
            None if at == 0 => return None,
            None => return Some(at as c_int),
            Some(sent) if sent < 0 => return Some(if at == 0 { -1 } else { at as c_int }),
            Some(sent) => message.msg_len = sent as c_uint,
        }
    }
    Some(count as c_int)
}

/// Receives a message of a port's socket; `None` if the number is another file's meanwhile.
///
/// A thread that is cancelled meanwhile (pthreads(7)) drops nothing here.
///
/// # Safety
/// The program's message; `word` is the number's, and has the bit of a port.
pub unsafe fn receive(fd: c_int, word: u32, message: &mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !table::is_current(fd) {
        return None;
    }
    let is_dgram = word & table::DGRAM != 0;
    // SAFETY: as the caller says.
    let parts = unsafe { parts(message) };
    let room = len_of(parts);
    let wants_address = !message.msg_name.is_null();
    let mut header = [0; HEADER];
    if !is_dgram && wants_address && room < HEADER {
        // The header does not fit the program's buffer.
        let flags = flags & libc::MSG_DONTWAIT | libc::MSG_PEEK;
        if next!(recv(fd, header.as_mut_ptr().cast(), HEADER, flags)) < 0 {
            return Some(-1);
        }
    }
    let mut all = ManuallyDrop::new(Vec::new());
    let mut plain = msghdr { msg_name: null_mut(), msg_namelen: 0, ..*message };
    if is_dgram {
        *all = with_header(&mut header, parts);
        (plain.msg_iov, plain.msg_iovlen) = (all.as_mut_ptr(), all.len());
    }
    let received = next!(recvmsg(fd, &raw mut plain, flags));
    let before = errno();
    drop(ManuallyDrop::into_inner(all));
    if received < 0 {
        return Some(fail(before));
    }
    if received == 0 {
        // The other end is closed.
        return Some(fail(libc::ENETDOWN));
    }
    let len = received as usize;
    if !is_dgram && room >= HEADER {
        // SAFETY: the kernel has just written there.
        unsafe { first(parts, &mut header[..HEADER.min(len)]) };
    }
    let skipped = if is_dgram { HEADER.min(len) } else { 0 };
    let space = message.msg_controllen;
    (message.msg_flags, message.msg_controllen) = (plain.msg_flags, plain.msg_controllen);
    if word & table::AUXILIARY != 0 {
        let auxiliary = Auxiliary {
            status: TP_STATUS_USER,
            // A filter may have cut the frame before: its whole length is not known.
            len: (len - skipped) as u32,
            captured: (len - skipped) as u32,
            link_layer: 0,
            network: if is_dgram { 0 } else { HEADER as u16 },
            vlan: 0,
            vlan_protocol: 0,
        };
        // SAFETY: the program's message, which has this space.
        unsafe { append(message, space, &auxiliary) };
    }
    if wants_address && let Some(link) = guarded(None, || table::get(fd)?.link) {
        let from = frame::sender(&header, link.name.index, &link.about);
        let room = (message.msg_namelen as usize).min(size_of::<sockaddr_ll>());
        // SAFETY: the program's memory for the address.
        unsafe { message.msg_name.cast::<u8>().copy_from_nonoverlapping((&raw const from).cast(), room) };
        message.msg_namelen = size_of::<sockaddr_ll>() as u32;
    }
    Some((len - skipped) as ssize_t)
}

/// Appends auxiliary data to a received message's control data.
///
/// # Safety
/// The program's message, whose control data have this space.
unsafe fn append(message: &mut msghdr, space: usize, auxiliary: &Auxiliary) {
    let len = size_of::<Auxiliary>() as c_uint;
    // SAFETY: they only calculate.
    let (needed, whole) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len) as usize) };
    let at = message.msg_controllen;
    if message.msg_control.is_null() || at + needed > space {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    // SAFETY: there is room for it, as the caller says; what the kernel has written before is aligned.
    unsafe {
        let control = message.msg_control.cast::<u8>().add(at).cast::<libc::cmsghdr>();
        control.write_unaligned(libc::cmsghdr {
            cmsg_len: whole as _,
            cmsg_level: SOL_PACKET,
            cmsg_type: PACKET_AUXDATA,
        });
        libc::CMSG_DATA(control).cast::<Auxiliary>().write_unaligned(*auxiliary);
    }
    message.msg_controllen = at + needed;
}

/// Receives a message into one buffer; the answer of recvfrom(2), `None` as of [`receive`].
///
/// # Safety
/// The program's memory; `word` is the number's, and has the bit of a port.
pub unsafe fn receive_from(
    fd: c_int,
    word: u32,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut libc::socklen_t,
) -> Option<ssize_t> {
    let mut part = iovec { iov_base: buffer, iov_len: len };
    // SAFETY: all fields are integers or pointers.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if !name.is_null() && !name_len.is_null() {
        message.msg_name = name.cast();
        // SAFETY: the program's memory.
        message.msg_namelen = unsafe { name_len.read() };
    }
    // SAFETY: as the caller says.
    let received = unsafe { receive(fd, word, &mut message, flags) }?;
    if received >= 0 && !message.msg_name.is_null() {
        // SAFETY: the program's memory.
        unsafe { name_len.write(message.msg_namelen) };
    }
    Some(received)
}

/// Receives messages one after the other; the answer of recvmmsg(2), `None` as of [`receive`].
///
/// # Safety
/// The program's messages; `word` is the number's, and has the bit of a port.
pub unsafe fn receive_all(
    fd: c_int,
    word: u32,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    let begin = Instant::now();
    // SAFETY: null, or the program's time.
    let longest = (!timeout.is_null()).then(|| unsafe { timeout.read() });
    let longest =
        longest.map(|time| Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32));
    let mut flags = flags;
    for at in 0..count as usize {
        // SAFETY: as the caller says.
        let message = unsafe { &mut *messages.add(at) };
        // SAFETY: as the caller says.
        let received = unsafe { receive(fd, word, &mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if at == 0 && received.is_none() {
            return None;
        }
        let received = received.unwrap_or(-1);
        if received < 0 {
            return Some(if at == 0 { -1 } else { at as c_int });
        }
        message.msg_len = received as c_uint;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if longest.is_some_and(|longest| begin.elapsed() >= longest) {
            return Some(at as c_int + 1);
        }
    }
    Some(count as c_int)
}
