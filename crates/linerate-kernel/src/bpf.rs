//! bpf(2): loading a program and its map, and attaching it to an interface.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::instructions::Instruction;

// From linux/bpf.h: commands, map and program types, and attach types.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_long = 10;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const ATTACH_TCX_INGRESS: u32 = 46;
const ATTACH_TCX_EGRESS: u32 = 47;

/// Calls bpf(2) with one variant of its union; the kernel zero-extends it.
fn bpf<T>(command: libc::c_long, part: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads, and for some commands writes, `size_of::<T>()` bytes of `part`, which is plain data.
    // Callers keep the memory that it points to alive during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *part, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Wraps the descriptor that a command returned.
fn descriptor(number: i32) -> OwnedFd {
    // SAFETY: a new descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A map of AF_XDP sockets by queue (BPF_MAP_TYPE_XSKMAP).
pub struct SocketMap(OwnedFd);

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl SocketMap {
    /// Creates a map with `queues` empty entries.
    pub fn new(queues: u32) -> io::Result<SocketMap> {
        let mut create = MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
        bpf(MAP_CREATE, &mut create).map(|number| SocketMap(descriptor(number)))
    }

    /// Directs packets of `queue` to `socket`; with `None`, removes the entry.
    pub fn set(&self, queue: u32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let value = socket.map_or(0, |socket| socket.as_raw_fd() as u32);
        let mut element = MapElement {
            map: self.0.as_raw_fd() as u32,
            _pad: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        let command = if socket.is_some() { MAP_UPDATE_ELEM } else { MAP_DELETE_ELEM };
        bpf(command, &mut element).map(drop)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A program in the kernel.
pub struct Program(OwnedFd);

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// `BPF_F_XDP_HAS_FRAGS`: the program supports frames longer than a page.
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY`: the program may call functions of the interface's driver, and runs only there.
const FOR_INTERFACE: u32 = 1 << 6;

/// The type of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// XDP, with or without frames longer than a page. With an interface's index, the program may call functions of its
    /// driver (Linux 6.3).
    Xdp { fragments: bool, interface: Option<u32> },
    /// Traffic control: packets that enter or leave the stack through an interface.
    Traffic,
}

/// `BPF_F_BEFORE`
const BEFORE: u32 = 1 << 3;

/// A program's position among the programs at the same hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    First,
    Last,
}

/// The direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficDirection {
    In,
    Out,
}

impl Program {
    /// Loads a program; the error contains the verifier's message.
    pub fn load(instructions: &[Instruction], kind: Kind) -> io::Result<Program> {
        let mut name = [0; 16];
        name[..8].copy_from_slice(b"linerate");
        let (flags, interface) = match kind {
            Kind::Traffic => (0, None),
            Kind::Xdp { fragments, interface } => (
                if fragments { HAS_FRAGMENTS } else { 0 } | if interface.is_some() { FOR_INTERFACE } else { 0 },
                interface,
            ),
        };
        let mut load = ProgramLoad {
            kind: if kind == Kind::Traffic { PROG_TYPE_SCHED_CLS } else { PROG_TYPE_XDP },
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags,
            name,
            interface: interface.unwrap_or(0),
            attach_type: if kind == Kind::Traffic { ATTACH_TCX_INGRESS } else { ATTACH_XDP },
        };
        let refused = match bpf(PROG_LOAD, &mut load) {
            Ok(number) => return Ok(Program(descriptor(number))),
            Err(error) => error,
        };
        // Load again, with the verifier's log.
        let mut log = vec![0u8; 64 << 10];
        (load.log_level, load.log_size, load.log) = (1, log.len() as u32, log.as_mut_ptr() as u64);
        if let Ok(number) = bpf(PROG_LOAD, &mut load) {
            return Ok(Program(descriptor(number)));
        }
        // The log's last line is statistics, and the line before it is the cause.
        let said = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        Err(match said.trim_end().lines().rev().nth(1) {
            Some(cause) => io::Error::new(refused.kind(), format!("{refused}: {cause}")),
            None => refused,
        })
    }

    /// Returns the program's result for a frame, such as `XDP_PASS`, without an interface.
    #[cfg(test)]
    pub fn test(&self, frame: &[u8]) -> io::Result<u32> {
        self.test_with_output(frame).map(|(answer, _)| answer)
    }

    /// As [`test`](Program::test). Also returns the frame after the program, with its metadata before it.
    #[cfg(test)]
    pub fn test_with_output(&self, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let mut output = vec![0; frame.len() + 256];
        let mut run = TestRun {
            size_out: output.len() as u32,
            data_out: output.as_mut_ptr() as u64,
            program: self.0.as_raw_fd() as u32,
            size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            ..TestRun::default()
        };
        bpf(PROG_TEST_RUN, &mut run)?;
        output.truncate(run.size_out as usize);
        Ok((run.answer, output))
    }

    /// Attaches the program to an interface's traffic until the link is dropped or the process ends.
    pub fn attach_to_traffic(&self, interface: u32, direction: TrafficDirection, order: Order) -> io::Result<Link> {
        let flags = if order == Order::First { BEFORE } else { 0 };
        let attach_type = if direction == TrafficDirection::In { ATTACH_TCX_INGRESS } else { ATTACH_TCX_EGRESS };
        self.link(interface, attach_type, flags)
    }

    /// Attaches the program to an interface until the link is dropped or the process ends.
    pub fn attach(&self, interface: u32, mode: Mode) -> io::Result<Link> {
        self.link(interface, ATTACH_XDP, if mode == Mode::Driver { 1 << 2 } else { 1 << 1 })
    }

    fn link(&self, interface: u32, attach_type: u32, flags: u32) -> io::Result<Link> {
        let mut create = LinkCreate { program: self.0.as_raw_fd() as u32, interface, attach_type, flags };
        bpf(LINK_CREATE, &mut create).map(|number| Link(descriptor(number)))
    }
}

#[cfg(test)]
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    answer: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the interface's driver (`XDP_FLAGS_DRV_MODE`).
    Driver,
    /// In the kernel's generic path, after the driver; slower, but on any interface (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

/// An attached program.
pub struct Link(OwnedFd);

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

impl Link {
    /// Replaces the attached program by another of the same kind. Each packet meets one of the two.
    pub fn replace(&self, program: &Program) -> io::Result<()> {
        let (link, program) = (self.0.as_raw_fd() as u32, program.0.as_raw_fd() as u32);
        bpf(LINK_UPDATE, &mut LinkUpdate { link, program, flags: 0, old_program: 0 }).map(drop)
    }
}
