//! A simple program, written from the manual: packet sockets with many packets per system call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Packets per call.
const BATCH: usize = 32;
/// Bytes per packet.
const ROOM: usize = 2048;

/// The action of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    Receive,
    Send,
    /// Forwards from the first interface to the second.
    Forward,
}

fn open(interface: &str, receives: bool) -> io::Result<OwnedFd> {
    let protocol = if receives { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
    // SAFETY: a plain call; the descriptor is new and not owned elsewhere.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain data, for which all zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = rustix::net::netdevice::name_to_index(&socket, interface)? as i32;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads one address of the given length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    let on: libc::c_int = 1;
    for option in [libc::PACKET_QDISC_BYPASS, libc::PACKET_IGNORE_OUTGOING] {
        // SAFETY: the kernel reads one int of the given length.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const on).cast(), 4) };
    }
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Runs until `stop`, and counts packets.
pub fn run(what: Loop, interfaces: &[String], frame: &[u8], stop: &AtomicBool, count: &AtomicU64) -> io::Result<()> {
    let first = open(&interfaces[0], what != Loop::Send)?;
    let second = if what == Loop::Forward { Some(open(&interfaces[1], false)?) } else { None };
    println!("ready");
    let mut bytes = vec![[0u8; ROOM]; BATCH];
    bytes.iter_mut().for_each(|bytes| bytes[..frame.len()].copy_from_slice(frame));
    let mut parts: Vec<libc::iovec> =
        bytes.iter_mut().map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: ROOM }).collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: plain data, for which all zeros are valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
            message
        })
        .collect();
    while !stop.load(Relaxed) {
        let mut found = BATCH;
        if what != Loop::Send {
            parts.iter_mut().for_each(|part| part.iov_len = ROOM);
            let (socket, flags) = (first.as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: each message refers to one part, and each part to its own bytes, which outlive the loop.
            let result =
                unsafe { libc::recvmmsg(socket, messages.as_mut_ptr(), BATCH as u32, flags, std::ptr::null_mut()) };
            found = result.max(0) as usize;
            parts.iter_mut().zip(&messages).for_each(|(part, message)| part.iov_len = message.msg_len as usize);
        } else {
            parts.iter_mut().for_each(|part| part.iov_len = frame.len());
        }
        let mut done = found;
        if what != Loop::Receive && found > 0 {
            let socket = second.as_ref().unwrap_or(&first).as_raw_fd();
            // SAFETY: as above.
            done = unsafe { libc::sendmmsg(socket, messages.as_mut_ptr(), found as u32, 0) }.max(0) as usize;
        }
        count.fetch_add(done as u64, Relaxed);
    }
    Ok(())
}
