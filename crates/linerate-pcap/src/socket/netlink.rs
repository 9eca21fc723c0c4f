//! Netlink (rtnetlink(7)): adds the ports to dumps of all links, for programs that list interfaces this way.
//!
//! The kernel answers a request itself, and its answer ends the dump. So the program receives the ports' messages
//! first. The socket stays readable meanwhile: the kernel's first message is queued when the request has been sent.
//! Ports have no IP addresses, so dumps of addresses are left unchanged.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::{iovec, sockaddr_nl, ssize_t};
use linerate_preload::{call, fail, keeping_errno, memory};

use super::control::FLAGS;
use super::frame::ETHERNET;
use super::link;
use super::messages::parts;
use super::names::{self, Name};
use super::table::with_answers;

/// Sizes of `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER: usize = 16;
const LINK: usize = 16;
/// Number of bytes of a request that are examined.
const LONGEST: usize = 4096;
/// Maximum length of an answer: programs have buffers of at least a page.
const ANSWER: usize = 4096 - 512;
/// `IF_OPER_UP`.
const OPERATIONAL: u8 = 6;

/// Queues the answers to a request that the kernel has accepted. Keeps errno(3).
pub fn sent(fd: c_int, parts: &[iovec]) {
    keeping_errno(|| {
        let mut request = Vec::new();
        for part in parts {
            let mut bytes = vec![0; part.iov_len.min(LONGEST - request.len())];
            if memory::read_bytes(part.iov_base, &mut bytes).is_err() {
                break;
            }
            request.extend(bytes);
        }
        if let Some(sequence) = dump_of_links(&request) {
            let answers = answers(sequence, port_of(fd));
            with_answers(fd, |waiting| waiting.extend(answers));
        }
    });
}

/// Returns the sequence number of the first request for all links among these messages.
fn dump_of_links(mut request: &[u8]) -> Option<u32> {
    while let Some(header) = request.first_chunk::<HEADER>() {
        let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (len, kind) = (number(0) as usize, u16::from_ne_bytes([header[4], header[5]]));
        let flags = c_int::from(u16::from_ne_bytes([header[6], header[7]]));
        let family = request.get(HEADER).map(|family| c_int::from(*family));
        if kind == libc::RTM_GETLINK
            && flags & libc::NLM_F_DUMP == libc::NLM_F_DUMP
            && matches!(family, Some(libc::AF_UNSPEC | libc::AF_PACKET))
        {
            return Some(number(8));
        }
        request = request.get(len.max(HEADER).next_multiple_of(4)..)?;
    }
    None
}

/// Returns the socket's netlink port ID, which the kernel has assigned.
fn port_of(fd: c_int) -> u32 {
    // SAFETY: all fields are integers.
    let mut own = unsafe { std::mem::zeroed::<sockaddr_nl>() };
    let mut len = size_of::<sockaddr_nl>() as libc::socklen_t;
    let (own_at, len_at) = (&raw mut own, &raw mut len);
    // SAFETY: the address has this length.
    unsafe { call!(libc::SYS_getsockname, fd, own_at, len_at) };
    own.nl_pid
}

fn answers(sequence: u32, port: u32) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    let in_arguments = names::in_arguments();
    for name in names::listed() {
        // Programs read a port's address from this message. For a port in memory that the arguments name, open the port
        // to get it, as `SIOCGIFHWADDR` does.
        let is_in_memory =
            linerate::parse(&name.text).is_ok_and(|parsed| parsed.may_be_served() || parsed.model().is_some());
        if is_in_memory && in_arguments.contains(&name.text) {
            let _ = link::properties(&name);
        }
        let message = about_link(&name, sequence, port);
        match all.last_mut() {
            Some(last) if last.len() + message.len() <= ANSWER => last.extend(message),
            _ => all.push(message),
        }
    }
    all.retain(|answer| !answer.is_empty());
    all
}

/// Returns the `RTM_NEWLINK` message of a port.
fn about_link(name: &Name, sequence: u32, port: u32) -> Vec<u8> {
    let mut message = vec![0; HEADER + LINK];
    message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_MULTI as u16).to_ne_bytes());
    message[8..12].copy_from_slice(&sequence.to_ne_bytes());
    message[12..16].copy_from_slice(&port.to_ne_bytes());
    message[18..20].copy_from_slice(&ETHERNET.to_ne_bytes());
    message[20..24].copy_from_slice(&name.index.to_ne_bytes());
    message[24..28].copy_from_slice(&(FLAGS | libc::IFF_LOWER_UP).to_ne_bytes());
    let mut attribute = |kind: u16, value: &[u8]| {
        message.extend((value.len() as u16 + 4).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    };
    let properties = name.properties();
    let mtu = properties.map_or(1500, |properties| properties.mtu() as u32);
    attribute(libc::IFLA_IFNAME, &[name.text.as_bytes(), &[0]].concat());
    attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
    attribute(libc::IFLA_OPERSTATE, &[OPERATIONAL]);
    attribute(libc::IFLA_ADDRESS, &properties.map_or([0; 6], |properties| properties.address));
    attribute(libc::IFLA_BROADCAST, &[0xFF; 6]);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

/// Receives a queued answer; returns its length and message flags, or `None` if there is none.
///
/// # Errors
/// `EFAULT` for invalid addresses.
pub fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Result<(ssize_t, c_int), c_int>> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return None;
    }
    with_answers(fd, |answers| {
        let answer = answers.front()?;
        let mut left = &answer[..];
        for part in parts {
            let (bytes, rest) = left.split_at(part.iov_len.min(left.len()));
            // SAFETY: the program passed the address for the result.
            if let Err(fault) = unsafe { memory::write_bytes(part.iov_base, bytes) } {
                return Some(Err(fault.into()));
            }
            left = rest;
        }
        let whole = flags & libc::MSG_TRUNC != 0;
        let len = if whole { answer.len() } else { answer.len() - left.len() };
        let is_cut = if left.is_empty() { 0 } else { libc::MSG_TRUNC };
        if flags & libc::MSG_PEEK == 0 {
            answers.pop_front();
        }
        Some(Ok((len as ssize_t, is_cut)))
    })?
}

/// As [`receive`]; also writes the kernel's address.
pub fn receive_from(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    name: *mut libc::sockaddr,
    name_len: *mut libc::socklen_t,
) -> Option<ssize_t> {
    let received = receive(fd, parts, flags)?;
    let put = |(len, _)| match name.is_null() {
        true => Ok(len),
        false => {
            let room = memory::read(name_len)?;
            put_address(name.cast(), room as usize)?;
            // SAFETY: the program passed the address for the result.
            unsafe { memory::write(name_len, size_of::<sockaddr_nl>() as libc::socklen_t)? };
            Ok(len)
        }
    };
    Some(received.and_then(put).unwrap_or_else(fail))
}

fn put_address(to: *mut std::ffi::c_void, room: usize) -> Result<(), memory::Fault> {
    let mut address = [0; size_of::<sockaddr_nl>()];
    address[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    // SAFETY: the program passed the address for the result.
    unsafe { memory::write_bytes(to, &address[..room.min(address.len())]) }
}

/// As [`receive`], for a message in the program's memory.
pub fn receive_message(fd: c_int, at: *mut libc::msghdr, flags: c_int) -> Option<ssize_t> {
    if with_answers(fd, |answers| answers.is_empty()) != Some(false) {
        return None;
    }
    let read = || {
        let message = memory::read(at)?;
        Ok::<_, c_int>((message, parts(message.msg_iov, message.msg_iovlen)?))
    };
    let (mut message, parts) = match read() {
        Ok(read) => read,
        Err(errno) => return Some(fail(errno)),
    };
    let put = |(len, is_cut)| {
        if !message.msg_name.is_null() {
            put_address(message.msg_name, message.msg_namelen as usize)?;
            message.msg_namelen = size_of::<sockaddr_nl>() as libc::socklen_t;
        }
        (message.msg_flags, message.msg_controllen) = (is_cut, 0);
        // SAFETY: the program passed the message for the result.
        unsafe { memory::write(at, message)? };
        Ok(len)
    };
    Some(receive(fd, &parts, flags)?.and_then(put).unwrap_or_else(fail))
}
