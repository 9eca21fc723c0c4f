//! Groups of four, with AVX2; otherwise as [`avx512`](super::avx512).
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use super::super::ring::{Finished, KEY, Offered, Ring};
use super::super::sent;
use super::{Rule, are_single};
use crate::memory::{Placement, View};
use crate::slot::{HEADROOM, Slot};

const GROUP: usize = 4;
const ALL: i32 = 0b1111;
const LINE: i32 = Placement::LINE_SHIFT as i32;
const OFFSET: i32 = Slot::OFFSET as i32;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx2")]
pub fn take<R: Ring>(
    finished: Finished<'_>,
    offered: Offered<'_>,
    bufs: &mut [u32],
    slots: &mut [Slot],
    fresh: &[u32],
    rule: &Rule,
    view: View<'_>,
) -> (usize, usize) {
    let all = finished.len().min(offered.len::<R>()).min(bufs.len()).min(slots.len()).min(fresh.len());
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (header, longest, none) = (word(rule.header as u64), word(rule.longest as u64), _mm256_setzero_si256());
    let (shift, lines) = rule.placement.bits();
    let (shift, lines) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()));
    let (offset, base) = (word(((HEADROOM + rule.header) as u64) << OFFSET), word(rule.base + HEADROOM as u64));
    let (mut expected, mut second) = (finished.expected_4::<R>(), offered.second_4::<R>());
    let (step, next) = (word(if R::is_packed() { 4 << 32 } else { 4 }), word(if R::is_packed() { 4 << 32 } else { 0 }));
    let (mut done, mut bytes) = (0, none);
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above. `bufs` and `fresh` are buffers of the
        // view's region.
        unsafe {
            let (key, written) = finished.load_4::<R>(done);
            let length = _mm256_sub_epi64(written, header);
            let is_next = _mm256_cmpeq_epi64(key, expected);
            let fits = _mm256_andnot_si256(_mm256_cmpgt_epi64(length, longest), _mm256_cmpgt_epi64(length, none));
            if _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_and_si256(is_next, fits))) != ALL {
                break;
            }
            // The packets' bytes are read after the device's words that they are there.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm256_cvtepu32_epi64(_mm_loadu_si128(own));
            let behind = _mm256_slli_epi64::<LINE>(_mm256_and_si256(buffers, lines));
            if rule.mergeable {
                let mut places = [0u64; GROUP];
                let place = _mm256_add_epi64(_mm256_sll_epi64(buffers, shift), behind);
                _mm256_storeu_si256(places.as_mut_ptr().cast(), place);
                if !are_single(places, view) {
                    break;
                }
            }
            let offset = _mm256_add_epi64(_mm256_slli_epi64::<OFFSET>(behind), offset);
            let taken = _mm256_or_si256(_mm256_or_si256(buffers, _mm256_slli_epi64::<32>(length)), offset);
            _mm256_storeu_si256(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm_loadu_si128(fresh.as_ptr().add(done).cast());
            _mm_storeu_si128(own, new);
            let new = _mm256_cvtepu32_epi64(new);
            let data = _mm256_add_epi64(_mm256_slli_epi64::<LINE>(_mm256_and_si256(new, lines)), base);
            offered.store_4::<R>(done, _mm256_add_epi64(_mm256_sll_epi64(new, shift), data), second);
            bytes = _mm256_add_epi64(bytes, length);
        }
        (expected, second) = (_mm256_add_epi64(expected, step), _mm256_add_epi64(second, next));
        done += GROUP;
    }
    (done, sum(bytes))
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx2")]
pub fn fill<R: Ring>(
    offered: Offered<'_>,
    bufs: &mut [u32],
    packets: &mut [u32],
    slots: &[Slot],
    rule: &Rule,
    view: View<'_>,
) -> usize {
    let all = offered.len::<R>().min(bufs.len()).min(packets.len()).min(slots.len());
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (header, longest, none) = (word(rule.header as u64), word(rule.longest as u64), _mm256_setzero_si256());
    let (length_mask, low) = (word(Slot::WHOLE_LEN), word(u32::MAX.into()));
    let (shift, base) = (_mm_cvtsi32_si128(rule.placement.bits().0 as i32), word(rule.base));
    let (single, halves) = (_mm_set1_epi32(sent::SINGLE as i32), _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    let (mut second, next) = (offered.second_4::<R>(), word(if R::is_packed() { 4 << 32 } else { 0 }));
    let mut done = 0;
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above; a slot's data lies in its buffer, with room
        // for the header in front of it, which is looked at.
        unsafe {
            let slot = _mm256_loadu_si256(slots.as_ptr().add(done).cast());
            let length = _mm256_and_si256(_mm256_srli_epi64::<32>(slot), length_mask);
            let offset = _mm256_srli_epi64::<OFFSET>(slot);
            let is_wrong = _mm256_or_si256(_mm256_cmpgt_epi64(length, longest), _mm256_cmpgt_epi64(header, offset));
            let fits = _mm256_andnot_si256(is_wrong, _mm256_cmpgt_epi64(length, none));
            if _mm256_movemask_pd(_mm256_castsi256_pd(fits)) != ALL {
                break;
            }
            let buffer = _mm256_sll_epi64(_mm256_and_si256(slot, low), shift);
            let place = _mm256_sub_epi64(_mm256_add_epi64(buffer, offset), header);
            let mut places = [0u64; GROUP];
            _mm256_storeu_si256(places.as_mut_ptr().cast(), place);
            for at in places {
                let header = view.base().as_ptr().add(at as usize);
                header.cast::<u64>().write_unaligned(0);
                header.add(rule.header - 4).cast::<u32>().write_unaligned(0);
            }
            let len = _mm256_add_epi64(length, header);
            offered.store_4::<R>(done, _mm256_add_epi64(place, base), _mm256_add_epi64(second, len));
            let four = |words| _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(words, halves));
            _mm_storeu_si128(bufs.as_mut_ptr().add(done).cast(), four(slot));
            _mm_storeu_si128(packets.as_mut_ptr().add(done).cast(), _mm_or_si128(four(length), single));
        }
        second = _mm256_add_epi64(second, next);
        done += GROUP;
    }
    done
}

/// As [`Groups::reclaim`](super::Groups::reclaim).
#[target_feature(enable = "avx2")]
pub fn reclaim<R: Ring>(finished: Finished<'_>, packets: &mut [u32]) -> (usize, usize) {
    let all = finished.len().min(packets.len());
    let mut expected = finished.expected_4::<R>();
    let step = _mm256_set1_epi64x(if R::is_packed() { 4 << 32 } else { 4 });
    let single = _mm_set1_epi32(sent::SINGLE as i32);
    let (mut done, mut bytes) = (0, _mm256_setzero_si256());
    while done + GROUP <= all {
        // SAFETY: a group lies inside both, by the condition above.
        unsafe {
            let (key, _) = finished.load_4::<R>(done);
            let own = packets.as_mut_ptr().add(done).cast();
            // Of a packet in one descriptor nothing is left above its bytes.
            let length = _mm_xor_si128(_mm_loadu_si128(own), single);
            let others = _mm_srli_epi32::<{ sent::COUNT as i32 }>(length);
            let is_next = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(key, expected)));
            if is_next != ALL || _mm_testz_si128(others, others) == 0 {
                break;
            }
            _mm_storeu_si128(own, _mm_setzero_si128());
            bytes = _mm256_add_epi64(bytes, _mm256_cvtepu32_epi64(length));
        }
        expected = _mm256_add_epi64(expected, step);
        done += GROUP;
    }
    (done, sum(bytes))
}

#[target_feature(enable = "avx2")]
fn sum(words: __m256i) -> usize {
    let halves = _mm_add_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    (_mm_cvtsi128_si64(halves) + _mm_extract_epi64::<1>(halves)) as usize
}

#[target_feature(enable = "avx2")]
fn ids(first: usize) -> __m256i {
    _mm256_add_epi64(_mm256_setr_epi64x(0, 1, 2, 3), _mm256_set1_epi64x(first as i64))
}

impl Finished<'_> {
    /// What the first four keys have to be.
    #[target_feature(enable = "avx2")]
    fn expected_4<R: Ring>(&self) -> __m256i {
        let (ids, done) = (ids(self.first), _mm256_set1_epi64x(self.done as i64));
        if R::is_packed() { _mm256_or_si256(_mm256_slli_epi64::<32>(ids), done) } else { ids }
    }

    /// Four keys from `at` on, which tell whether they are done and their ids, and how much was written to each.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx2")]
    unsafe fn load_4<R: Ring>(&self, at: usize) -> (__m256i, __m256i) {
        let low = _mm256_set1_epi64x(u32::MAX.into());
        // SAFETY: inside the ring, as the caller says. Others write there at the same time, so it is read by `asm`.
        unsafe {
            if R::is_packed() {
                let (first, second): (__m256i, __m256i);
                asm!(
                    "vmovdqu {first}, [{at}]",
                    "vmovdqu {second}, [{at} + 32]",
                    at = in(reg) self.descriptors.as_ptr().add(at),
                    first = out(ymm_reg) first,
                    second = out(ymm_reg) second,
                    options(nostack, preserves_flags, readonly)
                );
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpackhi_epi64(first, second));
                (_mm256_and_si256(words, _mm256_set1_epi64x(KEY as i64)), _mm256_and_si256(words, low))
            } else {
                let entries: __m256i;
                asm!(
                    "vmovdqu {entries}, [{at}]",
                    at = in(reg) self.entries.as_ptr().add(at),
                    entries = out(ymm_reg) entries,
                    options(nostack, preserves_flags, readonly)
                );
                (_mm256_and_si256(entries, low), _mm256_srli_epi64::<32>(entries))
            }
        }
    }
}

impl Offered<'_> {
    /// The first four second words.
    #[target_feature(enable = "avx2")]
    fn second_4<R: Ring>(&self) -> __m256i {
        let second = _mm256_set1_epi64x(self.second as i64);
        if R::is_packed() { _mm256_or_si256(_mm256_slli_epi64::<32>(ids(self.first)), second) } else { second }
    }

    /// Writes four descriptors from `at` on; where others say which of them are offered, also their ids.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx2")]
    unsafe fn store_4<R: Ring>(&self, at: usize, address: __m256i, second: __m256i) {
        let (even, odd) = (_mm256_unpacklo_epi64(address, second), _mm256_unpackhi_epi64(address, second));
        // SAFETY: inside the ring, as the caller says. A descriptor's two words are seen at once, as in `avx512`.
        unsafe {
            let target = self.descriptors.as_ptr().add(at).cast::<__m256i>().cast_mut();
            _mm256_storeu_si256(target, _mm256_permute2x128_si256::<0x20>(even, odd));
            _mm256_storeu_si256(target.add(1), _mm256_permute2x128_si256::<0x31>(even, odd));
            if !R::is_packed() {
                let first = (self.first + at) as u64;
                let ids = first.wrapping_mul(0x1_0001_0001_0001).wrapping_add(0x3_0002_0001_0000);
                self.available.as_ptr().add(at).cast::<u64>().cast_mut().write_unaligned(ids);
            }
        }
    }
}
