//! Groups of four, with AVX2: two descriptors fit a vector of 32 bytes.
//!
//! Words that the card may write concurrently are read by `asm`, so that the compiler makes no assumptions about them.
//! Each 64-bit word of such a read is not torn; DPDK's vector paths also rely on that. One word contains all the state
//! of its descriptor, so the order of reads does not matter.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU64, fence};

use linerate_core::memory::{Locate, Placement};
use linerate_core::slot::{HEADROOM, Slot};
use linerate_spec::descriptor::{receive, transmit};

use super::PacketParams;

const GROUP: usize = 4;
/// The order of four words in which one unpack instruction combines them into vectors of two descriptors each.
const INTERLEAVED: i32 = 0b11_01_10_00;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx2")]
pub fn take<L: Locate>(
    ring: &[[AtomicU64; 2]],
    bufs: &mut [u32],
    slots: &mut [Slot],
    fresh: &[u32],
    errors: u64,
    params: &PacketParams<L>,
) -> usize {
    const WHOLE: u64 = receive::DD | receive::EOP;
    const { assert!(receive::LENGTH_SHIFT == 32, "lengths stand where a slot has them") };
    let all = ring.len().min(bufs.len()).min(slots.len()).min(fresh.len());
    let all = all - all % GROUP; // whole groups
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (whole, mask) = (word(WHOLE), word(WHOLE | errors | receive::LENGTH_MASK));
    let most = word((params.longest as u64) << receive::LENGTH_SHIFT);
    let (data, headroom) = (word(params.placement.whole_word()), word(HEADROOM as u64));
    let (shift, lines) = params.placement.bits();
    let (shift, lines, none) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()), _mm256_setzero_si256());
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. The card writes the ring
        // concurrently, so `asm` reads it; descriptors stored there belong to the card only after the next doorbell.
        // `fresh` are buffers of the region, which is mapped for the card.
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
            // For a whole packet without errors, only the length is left.
            let status = _mm256_unpackhi_epi64(first, second);
            let length = _mm256_and_si256(_mm256_xor_si256(status, whole), mask);
            let wrong = _mm256_xor_si256(length, _mm256_min_epu32(length, most));
            if _mm256_testz_si256(wrong, wrong) == 0 {
                break;
            }
            let length = _mm256_permute4x64_epi64::<INTERLEAVED>(length);
            // Acquire: the packets' bytes are read after the DD bits.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm256_cvtepu32_epi64(_mm_loadu_si128(own));
            const LINE: i32 = Placement::LINE_SHIFT as i32;
            const OFFSET: i32 = Slot::OFFSET as i32 + LINE;
            let offset = _mm256_add_epi64(_mm256_slli_epi64::<OFFSET>(_mm256_and_si256(buffers, lines)), data);
            let taken = _mm256_or_si256(_mm256_or_si256(buffers, length), offset);
            _mm256_storeu_si256(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm_loadu_si128(fresh.as_ptr().add(done).cast());
            _mm_storeu_si128(own, new);
            let new = _mm256_cvtepu32_epi64(_mm_shuffle_epi32::<INTERLEAVED>(new));
            let data = _mm256_add_epi64(_mm256_slli_epi64::<LINE>(_mm256_and_si256(new, lines)), headroom);
            let address = params.addresses.locate_4(_mm256_add_epi64(_mm256_sll_epi64(new, shift), data));
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
pub fn fill<L: Locate>(
    ring: &[[AtomicU64; 2]],
    bufs: &mut [u32],
    slots: &[Slot],
    command: u64,
    params: &PacketParams<L>,
) -> usize {
    let all = ring.len().min(bufs.len()).min(slots.len());
    let all = all - all % GROUP; // whole groups
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let length_mask = word(Slot::WHOLE_LEN);
    let (shortest, longest) = (word(transmit::SHORTEST as u64), word(params.longest as u64));
    let (low, command) = (word(u32::MAX.into()), word(command));
    let shift = _mm_cvtsi32_si128(params.placement.bits().0 as i32);
    let buffers_first = _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6);
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. These descriptors belong
        // to the driver until the next doorbell. A slot's data is in its buffer, which is mapped for the card.
        unsafe {
            let slot = _mm256_loadu_si256(slots.as_ptr().add(done).cast());
            let slot = _mm256_permute4x64_epi64::<INTERLEAVED>(slot);
            let length = _mm256_and_si256(_mm256_srli_epi64::<32>(slot), length_mask);
            // A negative value means that a packet is too short or too long.
            let wrong = _mm256_or_si256(_mm256_sub_epi64(length, shortest), _mm256_sub_epi64(longest, length));
            let wrong = _mm256_castsi256_pd(wrong);
            if _mm256_testz_pd(wrong, wrong) == 0 {
                break;
            }
            const OFFSET: i32 = Slot::OFFSET as i32;
            let offset = _mm256_srli_epi64::<OFFSET>(slot);
            let buffer = _mm256_sll_epi64(_mm256_and_si256(slot, low), shift);
            let address = params.addresses.locate_4(_mm256_add_epi64(buffer, offset));
            const PAYLEN: i32 = transmit::PAYLEN_SHIFT as i32;
            let lengths = _mm256_or_si256(length, _mm256_slli_epi64::<PAYLEN>(length));
            let command = _mm256_add_epi64(lengths, command);
            let target = ring.as_ptr().add(done).cast::<__m256i>().cast_mut();
            _mm256_storeu_si256(target, _mm256_unpacklo_epi64(address, command));
            _mm256_storeu_si256(target.add(1), _mm256_unpackhi_epi64(address, command));
            let buffers = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(slot, buffers_first));
            _mm_storeu_si128(bufs.as_mut_ptr().add(done).cast(), buffers);
        }
        done += GROUP;
    }
    done
}
