//! Groups of four, with AVX2: two descriptors fit a vector of 32 bytes.
//!
//! Words that the card may be writing are read by instructions of their own, so that the compiler takes nothing for granted
//! about them. Each 64-bit word of such a read is whole, as DPDK's vector paths rely on, too; and a word says all there is
//! to know of its descriptor, so that it does not matter which of several is read first.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU64, fence};

use super::super::descriptor::{receive, transmit};
use super::Rule;
use crate::memory::Placement;
use crate::slot::{HEADROOM, Slot};

const GROUP: usize = 4;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx2")]
pub fn take(
    ring: &[[AtomicU64; 2]],
    bufs: &mut [u32],
    slots: &mut [Slot],
    fresh: &[u32],
    errors: u64,
    rule: &Rule,
) -> usize {
    const WHOLE: u64 = receive::DD | receive::EOP;
    const { assert!(receive::LENGTH_SHIFT == 32, "lengths stand where a slot has them") };
    let all = ring.len().min(bufs.len()).min(slots.len()).min(fresh.len());
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (whole, looked_at) = (word(WHOLE), word(WHOLE | errors));
    let (length_mask, longest) = (word(receive::LENGTH_MASK), word((rule.longest as u64) << receive::LENGTH_SHIFT));
    let (headroom, base) = (word((HEADROOM as u64) << Slot::OFFSET), word(rule.base + HEADROOM as u64));
    let (shift, lines) = rule.placement.bits();
    let (shift, lines, none) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()), _mm256_setzero_si256());
    let mut done = 0;
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above. The ring's memory is written by others
        // at the same time, so it is read by `asm`; what is stored there is the card's only at the next doorbell.
        unsafe {
            let descriptors = ring.as_ptr().add(done);
            let (first, second): (__m256i, __m256i);
            asm!(
                "vmovdqu {first}, [{at}]",
                "vmovdqu {second}, [{at} + 32]",
                at = in(reg) descriptors,
                first = out(ymm_reg) first,
                second = out(ymm_reg) second,
                options(nostack, preserves_flags, readonly)
            );
            let status = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpackhi_epi64(first, second));
            let length = _mm256_and_si256(status, length_mask);
            let is_whole = _mm256_cmpeq_epi64(_mm256_and_si256(status, looked_at), whole);
            let is_taken = _mm256_andnot_si256(_mm256_cmpgt_epi64(length, longest), is_whole);
            if _mm256_movemask_pd(_mm256_castsi256_pd(is_taken)) != 0b1111 {
                break;
            }
            // The packets' bytes are read after the card's words that they are there.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm256_cvtepu32_epi64(_mm_loadu_si128(own));
            const LINE: i32 = Placement::LINE_SHIFT as i32;
            const OFFSET: i32 = Slot::OFFSET as i32 + LINE;
            let offset = _mm256_add_epi64(_mm256_slli_epi64::<OFFSET>(_mm256_and_si256(buffers, lines)), headroom);
            let taken = _mm256_or_si256(_mm256_or_si256(buffers, length), offset);
            _mm256_storeu_si256(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm_loadu_si128(fresh.as_ptr().add(done).cast());
            _mm_storeu_si128(own, new);
            let new = _mm256_cvtepu32_epi64(new);
            let data = _mm256_add_epi64(_mm256_slli_epi64::<LINE>(_mm256_and_si256(new, lines)), base);
            let address = _mm256_add_epi64(_mm256_sll_epi64(new, shift), data);
            let address = _mm256_permute4x64_epi64::<0b11_01_10_00>(address);
            let target = descriptors.cast::<__m256i>().cast_mut();
            _mm256_storeu_si256(target, _mm256_unpacklo_epi64(address, none));
            _mm256_storeu_si256(target.add(1), _mm256_unpackhi_epi64(address, none));
        }
        done += GROUP;
    }
    done
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx2")]
pub fn fill(ring: &[[AtomicU64; 2]], bufs: &mut [u32], slots: &[Slot], command: u64, rule: &Rule) -> usize {
    let all = ring.len().min(bufs.len()).min(slots.len());
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let length_mask = word(Slot::WHOLE_LEN);
    let (shortest, longest) = (word(transmit::SHORTEST as u64 - 1), word(rule.longest as u64));
    let (base, low, command) = (word(rule.base), word(u32::MAX.into()), word(command));
    let shift = _mm_cvtsi32_si128(rule.placement.bits().0 as i32);
    let buffers_first = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    let mut done = 0;
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above; these descriptors are ours until the
        // next doorbell.
        unsafe {
            let slot = _mm256_loadu_si256(slots.as_ptr().add(done).cast());
            let length = _mm256_and_si256(_mm256_srli_epi64::<32>(slot), length_mask);
            let is_long = _mm256_cmpgt_epi64(length, longest);
            let is_sent = _mm256_andnot_si256(is_long, _mm256_cmpgt_epi64(length, shortest));
            if _mm256_movemask_pd(_mm256_castsi256_pd(is_sent)) != 0b1111 {
                break;
            }
            const OFFSET: i32 = Slot::OFFSET as i32;
            let offset = _mm256_srli_epi64::<OFFSET>(slot);
            let buffer = _mm256_sll_epi64(_mm256_and_si256(slot, low), shift);
            let address = _mm256_add_epi64(_mm256_add_epi64(buffer, offset), base);
            const PAYLEN: i32 = transmit::PAYLEN_SHIFT as i32;
            let lengths = _mm256_or_si256(length, _mm256_slli_epi64::<PAYLEN>(length));
            let command = _mm256_add_epi64(lengths, command);
            let (even, odd) = (_mm256_unpacklo_epi64(address, command), _mm256_unpackhi_epi64(address, command));
            let target = ring.as_ptr().add(done).cast::<__m256i>().cast_mut();
            _mm256_storeu_si256(target, _mm256_permute2x128_si256::<0x20>(even, odd));
            _mm256_storeu_si256(target.add(1), _mm256_permute2x128_si256::<0x31>(even, odd));
            let buffers = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(slot, buffers_first));
            _mm_storeu_si128(bufs.as_mut_ptr().add(done).cast(), buffers);
        }
        done += GROUP;
    }
    done
}
