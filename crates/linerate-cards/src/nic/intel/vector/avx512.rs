//! Groups of eight, with AVX-512: four descriptors fit a vector of 64 bytes, which is a cache line. Masks for the
//! last few packets of a batch were tried. They slowed everything down, since a masked store is not forwarded to a
//! later load.
//!
//! Words that the card may write concurrently are read by `asm`, as in [`avx2`](super::avx2).
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU64, fence};

use linerate_core::memory::{Locate, Placement};
use linerate_core::slot::{HEADROOM, Slot};
use linerate_spec::descriptor::{receive, transmit};

use super::PacketParams;

pub const GROUP: usize = 8;
const ALL: __mmask8 = u8::MAX;
/// The first words in a vector of four descriptors.
const FIRST_WORDS: __mmask8 = 0b0101_0101;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx512f")]
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
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let (whole, mask) = (word(WHOLE), word(WHOLE | errors | receive::LENGTH_MASK));
    let most = word((params.longest as u64) << receive::LENGTH_SHIFT);
    let (data, headroom) = (word(params.placement.whole_word()), word(HEADROOM as u64));
    let (shift, lines) = params.placement.bits();
    let (shift, lines) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()));
    let second_words = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    let (low, high) = (_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_setr_epi64(4, 4, 5, 5, 6, 6, 7, 7));
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. The card writes the ring
        // concurrently, so `asm` reads it; descriptors stored there belong to the card only after the next doorbell.
        // `fresh` are buffers of the region, which is mapped for the card.
        unsafe {
            let descriptors = ring.as_ptr().add(done);
            let (first, second): (__m512i, __m512i);
            asm!(
                "vmovdqu64 {first}, [{at}]",
                "vmovdqu64 {second}, [{at} + 64]",
                at = in(reg) descriptors,
                first = out(zmm_reg) first,
                second = out(zmm_reg) second,
                options(nostack, preserves_flags, readonly)
            );
            let status = _mm512_permutex2var_epi64(first, second_words, second);
            // For a whole packet without errors, only the length is left.
            let length = _mm512_and_si512(_mm512_xor_si512(status, whole), mask);
            if _mm512_cmpneq_epi32_mask(length, _mm512_min_epu32(length, most)) != 0 {
                break;
            }
            // Acquire: the packets' bytes are read after the DD bits.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm512_cvtepu32_epi64(_mm256_loadu_si256(own));
            const LINE: u32 = Placement::LINE_SHIFT;
            const OFFSET: u32 = Slot::OFFSET + LINE;
            let offset = _mm512_add_epi64(_mm512_slli_epi64::<OFFSET>(_mm512_and_si512(buffers, lines)), data);
            let taken = _mm512_or_si512(_mm512_or_si512(buffers, length), offset);
            _mm512_storeu_si512(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm256_loadu_si256(fresh.as_ptr().add(done).cast());
            _mm256_storeu_si256(own, new);
            let new = _mm512_cvtepu32_epi64(new);
            let data = _mm512_add_epi64(_mm512_slli_epi64::<LINE>(_mm512_and_si512(new, lines)), headroom);
            let address = params.addresses.locate_8(_mm512_add_epi64(_mm512_sll_epi64(new, shift), data));
            let target = descriptors.cast::<__m512i>().cast_mut();
            _mm512_storeu_si512(target, _mm512_maskz_permutexvar_epi64(FIRST_WORDS, low, address));
            _mm512_storeu_si512(target.add(1), _mm512_maskz_permutexvar_epi64(FIRST_WORDS, high, address));
        }
        done += GROUP;
    }
    done
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx512f")]
pub fn fill<L: Locate>(
    ring: &[[AtomicU64; 2]],
    bufs: &mut [u32],
    slots: &[Slot],
    command: u64,
    params: &PacketParams<L>,
) -> usize {
    let all = ring.len().min(bufs.len()).min(slots.len());
    let all = all - all % GROUP; // whole groups
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let length_mask = word(Slot::WHOLE_LEN);
    let (shortest, longest) = (word(transmit::SHORTEST as u64), word(params.longest as u64));
    let (buffer_mask, command) = (word(u32::MAX.into()), word(command));
    let shift = _mm_cvtsi32_si128(params.placement.bits().0 as i32);
    let low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    let high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. These descriptors belong
        // to the driver until the next doorbell. A slot's data is in its buffer, which is mapped for the card.
        unsafe {
            let slot = _mm512_loadu_si512(slots.as_ptr().add(done).cast());
            let length = _mm512_and_si512(_mm512_srli_epi64::<32>(slot), length_mask);
            let is_long_enough = _mm512_cmpge_epu64_mask(length, shortest);
            if _mm512_mask_cmple_epu64_mask(is_long_enough, length, longest) != ALL {
                break;
            }
            let offset = _mm512_srli_epi64::<{ Slot::OFFSET }>(slot);
            let buffer = _mm512_sll_epi64(_mm512_and_si512(slot, buffer_mask), shift);
            let address = params.addresses.locate_8(_mm512_add_epi64(buffer, offset));
            const PAYLEN: u32 = transmit::PAYLEN_SHIFT;
            let lengths = _mm512_or_si512(length, _mm512_slli_epi64::<PAYLEN>(length));
            let command = _mm512_add_epi64(lengths, command);
            let target = ring.as_ptr().add(done).cast::<__m512i>().cast_mut();
            _mm512_storeu_si512(target, _mm512_permutex2var_epi64(address, low, command));
            _mm512_storeu_si512(target.add(1), _mm512_permutex2var_epi64(address, high, command));
            _mm256_storeu_si256(bufs.as_mut_ptr().add(done).cast(), _mm512_cvtepi64_epi32(slot));
        }
        done += GROUP;
    }
    done
}
