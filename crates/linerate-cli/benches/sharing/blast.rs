//! A source of frames that is faster than the programs under test: the kernel runs a program that redirects a frame
//! to an interface (`BPF_PROG_TEST_RUN` with live frames, since Linux 5.18).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

// From linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const PROG_TYPE_XDP: u32 = 6;
const LIVE_FRAMES: u32 = 1 << 1;
/// Frames that the kernel sends per call; before and after each call it pauses for some milliseconds.
const AT_ONCE: u32 = 1 << 18;

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 10],
}

#[repr(C)]
#[derive(Default)]
struct Run {
    program: u32,
    answer: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_sizes: [u32; 2],
    contexts: [u64; 2],
    flags: u32,
    processor: u32,
    batch: u32,
    pad: u32,
}

fn bpf<T>(command: libc::c_long, part: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of plain data, whose pointers outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(part), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Sends `frame` through interface `index` for the given time, from the caller's processor and network namespace.
/// Returns the number of frames.
pub fn blast(index: u32, frame: &[u8], time: Duration) -> io::Result<u64> {
    // r1 = index; r2 = 0; call redirect; exit (RFC 9669).
    let code = |operation: u8, registers: u8, immediate: u32| {
        u64::from(operation) | u64::from(registers) << 8 | u64::from(immediate) << 32
    };
    let program = [code(0xB7, 1, index), code(0xB7, 2, 0), code(0x85, 0, 23), code(0x95, 0, 0)];
    let (kind, count) = (PROG_TYPE_XDP, program.len() as u32);
    let (instructions, license) = (program.as_ptr() as u64, c"GPL".as_ptr() as u64);
    let number = bpf(PROG_LOAD, &mut Load { kind, count, instructions, license, ..Load::default() })?;
    // SAFETY: the descriptor is new and not owned elsewhere.
    let program = unsafe { OwnedFd::from_raw_fd(number) };
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        let mut run = Run {
            program: program.as_raw_fd() as u32,
            size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: AT_ONCE,
            flags: LIVE_FRAMES,
            batch: 64,
            ..Run::default()
        };
        bpf(PROG_TEST_RUN, &mut run)?;
        sent += u64::from(AT_ONCE);
    }
    Ok(sent)
}
