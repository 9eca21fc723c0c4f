//! A program's filter, which the system's libpcap validates and runs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use crate::abi::{Instruction, Program};
use crate::real::real;

/// Runs a filter on a frame; returns the number of bytes to keep, 0 if it rejects the frame.
///
/// # Safety
/// The frame has `len` bytes, all of which can be read.
#[inline]
pub unsafe fn run(filter: &[Instruction], frame: *const u8, len: u32) -> u32 {
    real!(bpf_filter(
        filter.as_ptr() => *const Instruction, frame => *const u8, len => c_uint, len => c_uint
    ) -> c_uint | 0)
}

/// Returns a copy of a program's filter; `None` if it is not valid.
///
/// # Safety
/// `program.instructions` is null, or points at `program.len` readable instructions.
pub unsafe fn copied(program: &Program) -> Option<Box<[Instruction]>> {
    let len = program.len as usize;
    if len == 0 || program.instructions.is_null() {
        return None;
    }
    // SAFETY: as the caller promises; the read is unaligned, since they may be at any address.
    let copy: Box<[Instruction]> =
        (0..len).map(|at| unsafe { program.instructions.add(at).read_unaligned() }).collect();
    let is_valid = real!(bpf_validate(copy.as_ptr() => *const Instruction, len as c_int => c_int) -> c_int | 0);
    (is_valid != 0).then_some(copy)
}
