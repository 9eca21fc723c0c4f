//! ioctl(2) for port names, and the options of packet sockets.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use linerate::Error;
use linerate_preload::memory::{self, Plain};
use linerate_preload::{call, errno, fail};

use super::frame::ETHERNET;
use super::messages::refuse;
use super::names::{self, Name, PortProperties};
use super::table::{self, Socket};
use super::{frame, link};
use crate::abi::{Instruction, Program};
use crate::filter;

const SOL_PACKET: c_int = 263;
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_DROP_MEMBERSHIP: c_int = 2;
const PACKET_RX_RING: c_int = 5;
const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const PACKET_TX_RING: c_int = 13;
const PACKET_QDISC_BYPASS: c_int = 20;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const PACKET_MR_MULTICAST: u16 = 0;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_MR_ALLMULTI: u16 = 2;

/// Flags of an interface that is up and connected.
pub const FLAGS: c_int = libc::IFF_UP | libc::IFF_BROADCAST | libc::IFF_RUNNING | libc::IFF_MULTICAST;

/// `struct ifreq`: an interface name, and a union of values.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    name: [c_char; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl Request {
    /// Replaces the beginning of the value.
    fn put(&mut self, bytes: &[u8]) {
        self.value[..bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns whether a request is about an interface given by name.
fn is_by_name(request: c_ulong) -> bool {
    matches!(
        request as u32 as c_ulong,
        libc::SIOCGIFINDEX
            | libc::SIOCGIFHWADDR
            | libc::SIOCGIFFLAGS
            | libc::SIOCSIFFLAGS
            | libc::SIOCGIFMTU
            | libc::SIOCGIFADDR
            | libc::SIOCGIFDSTADDR
            | libc::SIOCGIFBRDADDR
            | libc::SIOCGIFNETMASK
    )
}

/// Returns whether a request that the kernel has rejected may be about a port.
pub fn is_about_interfaces(request: c_ulong) -> bool {
    is_by_name(request) || request as u32 as c_ulong == libc::SIOCGIFNAME
}

/// Returns whether a request is one that all sockets accept (`SIOCADDRT` to `SIOCGIFCONF` and the like).
pub fn is_of_sockets(request: c_ulong) -> bool {
    (0x8900..0x8a00).contains(&(request as u32))
}

/// Makes a request through a temporary kernel socket.
pub fn by_socket(request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the arguments are the program's own, and only this function uses the socket.
    let (answer, before) = unsafe {
        let socket = call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) as c_int;
        let answer = if socket < 0 { -1 } else { call!(libc::SYS_ioctl, socket, request, argument) as c_int };
        let before = errno();
        call!(libc::SYS_close, socket);
        (answer, before)
    };
    if answer < 0 { fail(before) } else { answer }
}

/// Answers a request about an interface; `None` if it is not about a port.
///
/// # Safety
/// `argument` points at a readable and writable `struct ifreq`, at any alignment.
pub unsafe fn answer(fd: c_int, request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    let (request, at) = (request as u32 as c_ulong, argument.cast::<Request>());
    // SAFETY: as the caller promises. Unaligned, since Python programs, for example, pass any address.
    let mut asked = unsafe { at.read_unaligned() };
    let done = if request == libc::SIOCGIFNAME {
        let [a, b, c, d, ..] = asked.value;
        put_name(&mut asked.name, &*names::of_index(u32::from_ne_bytes([a, b, c, d]))?);
        Ok(())
    } else {
        // SAFETY: the name has `IFNAMSIZ` bytes.
        let name = unsafe { names::of_pointer(asked.name.as_ptr()) }?;
        let properties = || properties(fd, &name).map_err(|error| refuse(&error));
        match request {
            libc::SIOCGIFINDEX => {
                asked.put(&name.index.to_ne_bytes());
                Ok(())
            }
            libc::SIOCGIFFLAGS => {
                asked.put(&(FLAGS as u16).to_ne_bytes());
                Ok(())
            }
            // Programs set promiscuous mode by this flag; a port has its own setting, so it is ignored.
            libc::SIOCSIFFLAGS => Ok(()),
            libc::SIOCGIFMTU => properties().map(|properties| asked.put(&(properties.mtu() as c_int).to_ne_bytes())),
            libc::SIOCGIFHWADDR => properties().map(|properties| {
                asked.put(&ETHERNET.to_ne_bytes());
                asked.value[2..8].copy_from_slice(&properties.address);
            }),
            // A port has no IPv4 address.
            _ => Err(libc::EADDRNOTAVAIL),
        }
    };
    // SAFETY: as the caller promises.
    Some(done.map_or_else(fail, |()| unsafe {
        at.write_unaligned(asked);
        0
    }))
}

/// Answers `FIONREAD` for a port's socket with the length of the next frame. The kernel would return that of all
/// frames.
pub fn next_len(fd: c_int, argument: *mut c_void) -> Option<c_int> {
    let socket = table::get(fd).filter(|socket| socket.link.is_some())?;
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the call has no addresses.
    let len = unsafe { call!(libc::SYS_recvfrom, fd, 0, 0, flags, 0, 0) };
    let skipped = if socket.settings.is_dgram { frame::HEADER as i64 } else { 0 };
    // SAFETY: the program passed the address for the result.
    let written = unsafe { memory::write(argument.cast(), (len - skipped).max(0) as c_int) };
    Some(written.map_or_else(fail, |()| 0))
}

/// Returns the properties of a port. If a packet socket asks, the port stays open until that socket is closed: the
/// program may no longer have the right to open it when it sends.
fn properties(fd: c_int, name: &Arc<Name>) -> Result<PortProperties, Error> {
    match table::get(fd) {
        // A handle that has the port exclusively answers for it, and keeps it exclusively.
        Some(socket) if socket.link.is_none() && !link::is_exclusive(&name.text) => {
            table::sender(&socket, name).map(|sender| sender.link.properties)
        }
        _ => link::properties(name),
    }
}

/// Writes a name, padded with zeros.
pub fn put_name(to: &mut [c_char; libc::IFNAMSIZ], name: &Name) {
    to.fill(0);
    for (to, byte) in to.iter_mut().zip(name.text.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = byte as c_char;
    }
}

/// Reads an option's value, after checking its length.
fn given<T: Plain>(value: *const c_void, len: libc::socklen_t) -> Result<T, c_int> {
    if (len as usize) < size_of::<T>() {
        return Err(libc::EINVAL);
    }
    Ok(memory::read(value.cast())?)
}

/// Sets an option of a packet socket; `None` if the kernel must do it.
pub fn set(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: libc::socklen_t) -> Option<c_int> {
    let socket = table::get(fd)?;
    let done = match (level, name) {
        (SOL_PACKET, PACKET_ADD_MEMBERSHIP | PACKET_DROP_MEMBERSHIP) => match given::<libc::packet_mreq>(value, len) {
            Ok(request) => member(&socket, name == PACKET_ADD_MEMBERSHIP, &request)?,
            Err(errno) => return socket.link.is_some().then(|| fail(errno)),
        },
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF | libc::SO_DETACH_FILTER)
            if socket.settings.is_locked.load(Relaxed) =>
        {
            Err(libc::EPERM)
        }
        (libc::SOL_SOCKET, libc::SO_LOCK_FILTER) => match given::<c_int>(value, len) {
            Ok(on) => match socket.settings.is_locked.fetch_or(on != 0, Relaxed) {
                true if on == 0 => Err(libc::EPERM),
                _ => Ok(()),
            },
            Err(errno) => Err(errno),
        },
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => {
            let attached = given(value, len).and_then(|program| attach(&socket, &program));
            socket.settings.has_kernel_filter.store(attached.is_err(), Relaxed);
            attached
        }
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF) => {
            socket.settings.has_kernel_filter.store(true, Relaxed);
            Err(libc::ENOPROTOOPT)
        }
        (libc::SOL_SOCKET, libc::SO_DETACH_FILTER) => {
            let had = socket.settings.filter().is_some();
            socket.settings.set_filter(None);
            socket.settings.has_kernel_filter.store(false, Relaxed);
            if had { Ok(()) } else { Err(libc::ENOENT) }
        }
        (SOL_PACKET, PACKET_AUXDATA) => match given::<c_int>(value, len) {
            Ok(on) => {
                socket.settings.has_auxiliary.store(on != 0, Relaxed);
                table::settings_changed(&socket);
                Ok(())
            }
            Err(errno) => Err(errno),
        },
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            if let (Some(link), Ok(bytes)) = (&socket.link, given::<c_int>(value, len)) {
                link.resize(&socket.settings, name == libc::SO_RCVBUFFORCE, bytes);
            }
            return None;
        }
        (SOL_PACKET, PACKET_QDISC_BYPASS | PACKET_IGNORE_OUTGOING) => Ok(()),
        (SOL_PACKET, PACKET_RX_RING | PACKET_TX_RING) => {
            // The structure begins with the block size; zeros remove a ring.
            let size = given::<u32>(value, len);
            socket.settings.has_ring.store(size.is_ok_and(|size| size != 0), Relaxed);
            Err(libc::ENOPROTOOPT)
        }
        (libc::SOL_SOCKET, _) => return None,
        // Ring and fanout options of packet sockets, and options of other protocols, which packet sockets do not have.
        _ => Err(libc::ENOPROTOOPT),
    };
    // The kernel must also set the option of an unbound socket: it may be bound to an interface later.
    let is_kernels = socket.link.is_none() && !socket.is_placeholder;
    let is_about_port = level == SOL_PACKET && matches!(name, PACKET_ADD_MEMBERSHIP | PACKET_DROP_MEMBERSHIP);
    if is_kernels && !is_about_port {
        return None;
    }
    Some(done.map_or_else(fail, |()| 0))
}

/// Handles `PACKET_ADD_MEMBERSHIP` and `PACKET_DROP_MEMBERSHIP` for a port; `None` if the kernel must do it.
fn member(socket: &Socket, joins: bool, request: &libc::packet_mreq) -> Option<Result<(), c_int>> {
    let name = names::of_index(request.mr_ifindex as u32);
    if name.is_none() {
        return (socket.link.is_some() || socket.is_placeholder).then_some(Err(libc::ENODEV));
    }
    Some(match request.mr_type {
        PACKET_MR_PROMISC | PACKET_MR_ALLMULTI => {
            socket.settings.is_promiscuous.store(joins, Relaxed);
            if let Some(link) = &socket.link {
                link.wake();
            }
            Ok(())
        }
        PACKET_MR_MULTICAST => Ok(()),
        _ => Err(libc::EINVAL),
    })
}

/// Attaches a filter.
fn attach(socket: &Socket, program: &libc::sock_fprog) -> Result<(), c_int> {
    if socket.link.as_ref().is_some_and(|link| !link.is_here()) {
        // The link's thread is in the parent process.
        return Err(libc::EOPNOTSUPP);
    }
    if program.filter.is_null() || program.len == 0 {
        return Err(libc::EINVAL);
    }
    let mut bytes = vec![0; usize::from(program.len) * size_of::<Instruction>()];
    memory::read_bytes(program.filter.cast(), &mut bytes)?;
    let program = Program { len: program.len.into(), instructions: bytes.as_ptr().cast::<Instruction>() };
    // SAFETY: `bytes` holds `len` instructions.
    let filter = unsafe { filter::copied(&program) }.ok_or(libc::EINVAL)?;
    if filter.iter().any(Instruction::loads_from_kernel) {
        return Err(libc::EINVAL);
    }
    socket.settings.set_filter(Some(Arc::from(filter)));
    Ok(())
}

/// Gets an option of a packet socket; `None` if the kernel must do it.
pub fn get(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut libc::socklen_t) -> Option<c_int> {
    let socket = table::get(fd)?;
    let is_kernels = socket.link.is_none() && !socket.is_placeholder;
    let settings = &socket.settings;
    if is_kernels {
        return None;
    }
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_PACKET,
        (libc::SOL_SOCKET, libc::SO_TYPE) => {
            if settings.is_dgram {
                libc::SOCK_DGRAM
            } else {
                libc::SOCK_RAW
            }
        }
        (libc::SOL_SOCKET, libc::SO_LOCK_FILTER) => settings.is_locked.load(Relaxed).into(),
        // The kernel returns 0 as well: it keeps a packet socket's protocol elsewhere.
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => 0,
        // The send buffer of the link's end of the pair holds this socket's received frames.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.link.as_ref()?.size(settings)?,
        (SOL_PACKET, PACKET_AUXDATA) => settings.has_auxiliary.load(Relaxed).into(),
        (SOL_PACKET, PACKET_STATISTICS) => {
            let (received, dropped) = socket.link.as_ref().map_or((0, 0), |link| link.statistics(settings));
            return Some(put(value, len, [received as u32, dropped as u32]));
        }
        (libc::SOL_SOCKET, _) => return None,
        _ => return Some(fail(libc::ENOPROTOOPT)),
    };
    Some(put(value, len, number))
}

/// Writes an option's value, truncated to the program's buffer.
fn put<T: Copy>(value: *mut c_void, len: *mut libc::socklen_t, from: T) -> c_int {
    let put = || {
        let room = memory::read(len)?;
        if (room as c_int) < 0 {
            return Err(libc::EINVAL);
        }
        let count = (room as usize).min(size_of::<T>());
        // SAFETY: the value has at least `count` bytes and no padding; the program passed both addresses for the
        // result.
        unsafe {
            memory::write_bytes(value, std::slice::from_raw_parts((&raw const from).cast(), count))?;
            Ok(memory::write(len, count as libc::socklen_t)?)
        }
    };
    put().map_or_else(fail, |()| 0)
}

/// Returns the address of a packet socket (getsockname(2)); `None` if the kernel must do it.
pub fn own_address(fd: c_int) -> Option<libc::sockaddr_ll> {
    let socket = table::get(fd)?;
    let protocol = socket.settings.protocol.load(Relaxed);
    match &socket.link {
        Some(link) => Some(frame::address(link.name.index, protocol, link.properties.address)),
        None if socket.is_placeholder => {
            Some(libc::sockaddr_ll { sll_halen: 0, sll_hatype: 0, ..frame::address(0, protocol, [0; 6]) })
        }
        None => None,
    }
}
