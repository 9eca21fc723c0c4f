//! Packet sockets (packet(7)): opening one, its options, and membership.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use linerate_core::error::Result;

use super::interface::Interface;
use super::{capabilities, option};

/// Sets an option of a packet socket.
pub fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    option::set(fd, libc::SOL_PACKET, option, value)
}

/// Opens a socket that receives nothing until it is bound.
pub fn open() -> io::Result<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Also receives frames for other addresses, until the returned value is dropped.
pub fn promiscuous(interface: &Interface) -> Result<OwnedFd> {
    let join = || {
        let socket = open()?;
        let all = libc::packet_mreq {
            mr_ifindex: interface.index() as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&socket, libc::PACKET_ADD_MEMBERSHIP, &all).map(|()| socket)
    };
    join().map_err(|error| interface.refused("receive frames for others", capabilities::PACKET, &error))
}
