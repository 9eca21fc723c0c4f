//! Groups of four, with AVX2; otherwise as [`avx512`](super::avx512).
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use linerate_core::memory::{Locate, Placement, View};
use linerate_core::slot::{HEADROOM, Slot};

use super::super::ring::{AvailableRun, DriverRing, LENGTH, UsedRun, key, key_step, ring_word, second_step};
use super::super::sent_word;
use super::{PacketParams, are_single};

const GROUP: usize = 4;
/// The order of four words in which one unpack instruction combines them into vectors of two descriptors each. Words
/// in this order are "interleaved".
const INTERLEAVED: i32 = 0b11_01_10_00;
const LINE: i32 = Placement::LINE_SHIFT as i32;
const OFFSET: i32 = Slot::OFFSET as i32;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx2")]
pub fn take<R: DriverRing, L: Locate>(
    used: UsedRun<'_>,
    available: AvailableRun<'_>,
    bufs: &mut [u32],
    slots: &mut [Slot],
    fresh: &[u32],
    params: &PacketParams<L>,
    view: View<'_>,
) -> (usize, usize) {
    let all = used.len::<R>().min(available.len::<R>()).min(bufs.len()).min(slots.len()).min(fresh.len());
    let all = all - all % GROUP; // whole groups
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (mut expected, mut second) = (used.expected_4::<R>(params.header + 1), available.second_4::<R>());
    let (step, next) = (word(GROUP as u64 * key_step::<R>()), word(GROUP as u64 * second_step::<R>()));
    let (most, mask) = (word(ring_word::<R>(params.longest as u64 - 1, 0)), word(ring_word::<R>(LENGTH, key::<R>())));
    let (shift, lines) = params.placement.bits();
    let (shift, lines) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()));
    let data = word((HEADROOM as u64) << OFFSET | 1 << 32);
    let header = word((HEADROOM - params.header) as u64);
    let (mut done, mut bytes) = (0, _mm256_setzero_si256());
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. `bufs` and `fresh` are
        // buffers of the view's region.
        unsafe {
            // The difference is 0 where the key is the expected one, and the packet's length minus one.
            let left = _mm256_and_si256(_mm256_sub_epi32(used.load_4::<R>(done), expected), mask);
            let wrong = _mm256_xor_si256(left, _mm256_min_epu32(left, most));
            if _mm256_testz_si256(wrong, wrong) == 0 {
                break;
            }
            let length = if R::is_packed() {
                _mm256_permute4x64_epi64::<INTERLEAVED>(left)
            } else {
                _mm256_srli_epi64::<32>(left)
            };
            // Acquire: the packets' bytes are read after the device's used words.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm256_cvtepu32_epi64(_mm_loadu_si128(own));
            let behind = _mm256_slli_epi64::<LINE>(_mm256_and_si256(buffers, lines));
            let mut places = [0u64; GROUP];
            let place = _mm256_add_epi64(_mm256_sll_epi64(buffers, shift), _mm256_add_epi64(behind, header));
            _mm256_storeu_si256(places.as_mut_ptr().cast(), place);
            if !are_single(places, view) && params.mergeable {
                break;
            }
            let offset = _mm256_add_epi64(_mm256_slli_epi64::<OFFSET>(behind), data);
            let taken = _mm256_add_epi64(_mm256_or_si256(buffers, _mm256_slli_epi64::<32>(length)), offset);
            _mm256_storeu_si256(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm_loadu_si128(fresh.as_ptr().add(done).cast());
            _mm_storeu_si128(own, new);
            let new = _mm256_cvtepu32_epi64(_mm_shuffle_epi32::<INTERLEAVED>(new));
            let behind = _mm256_add_epi64(_mm256_slli_epi64::<LINE>(_mm256_and_si256(new, lines)), header);
            let address = params.addresses.locate_4(_mm256_add_epi64(_mm256_sll_epi64(new, shift), behind));
            available.store_4::<R>(done, address, second);
            bytes = _mm256_add_epi64(bytes, length);
        }
        (expected, second) = (_mm256_add_epi64(expected, step), _mm256_add_epi64(second, next));
        done += GROUP;
    }
    (done, done + sum(bytes))
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx2")]
pub fn fill<R: DriverRing, L: Locate>(
    available: AvailableRun<'_>,
    bufs: &mut [u32],
    packets: &mut [u32],
    slots: &[Slot],
    params: &PacketParams<L>,
    view: View<'_>,
) -> usize {
    let all = available.len::<R>().min(bufs.len()).min(packets.len()).min(slots.len());
    let all = all - all % GROUP; // whole groups
    let word = |value: u64| _mm256_set1_epi64x(value as i64);
    let (header, longest, one) = (word(params.header as u64), word(params.longest as u64), word(1));
    let (length_mask, low) = (word(Slot::WHOLE_LEN), word(u32::MAX.into()));
    let shift = _mm_cvtsi32_si128(params.placement.bits().0 as i32);
    const { assert!(sent_word::SINGLE as u16 == 0, "below it is the length") };
    const UPPER: i32 = 0b1010_1010;
    let (single, in_halves) = (_mm_set1_epi32(sent_word::SINGLE as i32), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    let (second, next) = (available.second_4::<R>(), word(GROUP as u64 * second_step::<R>()));
    let mut second = _mm256_add_epi64(second, header);
    // SAFETY: a header has more than four bytes, and the region is longer than a header.
    let (starts, ends) = unsafe { (view.base(), view.base().add(params.header - 4)) };
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. A slot's data is in its
        // buffer; the room for the header before it is checked here.
        unsafe {
            let slot = _mm256_loadu_si256(slots.as_ptr().add(done).cast());
            let length = _mm256_and_si256(_mm256_srli_epi64::<32>(slot), length_mask);
            let offset = _mm256_sub_epi64(_mm256_srli_epi64::<OFFSET>(slot), header);
            // A negative value means no room for the header, an empty packet, or a packet that is too long.
            let (short, long) = (_mm256_sub_epi64(length, one), _mm256_sub_epi64(longest, length));
            let wrong = _mm256_castsi256_pd(_mm256_or_si256(offset, _mm256_or_si256(short, long)));
            if _mm256_testz_pd(wrong, wrong) == 0 {
                break;
            }
            let place = _mm256_add_epi64(_mm256_sll_epi64(_mm256_and_si256(slot, low), shift), offset);
            let mut places = [0u64; GROUP];
            _mm256_storeu_si256(places.as_mut_ptr().cast(), place);
            for at in places {
                starts.add(at as usize).cast::<u64>().write_unaligned(0);
                ends.add(at as usize).cast::<u32>().write_unaligned(0);
            }
            let address = params.addresses.locate_4(_mm256_permute4x64_epi64::<INTERLEAVED>(place));
            let len = _mm256_add_epi64(_mm256_permute4x64_epi64::<INTERLEAVED>(length), second);
            available.store_4::<R>(done, address, len);
            let halves = _mm256_permutevar8x32_epi32(slot, in_halves);
            _mm_storeu_si128(bufs.as_mut_ptr().add(done).cast(), _mm256_castsi256_si128(halves));
            let packet = _mm_blend_epi16::<UPPER>(_mm256_extracti128_si256::<1>(halves), single);
            _mm_storeu_si128(packets.as_mut_ptr().add(done).cast(), packet);
        }
        second = _mm256_add_epi64(second, next);
        done += GROUP;
    }
    done
}

/// As [`Groups::reclaim`](super::Groups::reclaim).
#[target_feature(enable = "avx2")]
pub fn reclaim<R: DriverRing>(used: UsedRun<'_>, packets: &mut [u32]) -> (usize, usize) {
    let all = used.len::<R>().min(packets.len());
    let all = all - all % GROUP; // whole groups
    let mut expected = used.expected_4::<R>(0);
    let step = _mm256_set1_epi64x((GROUP as u64 * key_step::<R>()) as i64);
    let (key, single) =
        (_mm256_set1_epi64x(ring_word::<R>(0, key::<R>()) as i64), _mm_set1_epi32(sent_word::SINGLE as i32));
    let (mut done, mut bytes) = (0, _mm256_setzero_si256());
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of both, by the condition above.
        unsafe {
            let own = packets.as_mut_ptr().add(done).cast();
            let left = _mm256_and_si256(_mm256_sub_epi32(used.load_4::<R>(done), expected), key);
            // For a packet in one descriptor, the bits above its byte count become 0.
            let length = _mm256_cvtepu32_epi64(_mm_xor_si128(_mm_loadu_si128(own), single));
            let others = _mm256_srli_epi64::<{ sent_word::COUNT as i32 }>(length);
            let wrong = _mm256_or_si256(left, others);
            if _mm256_testz_si256(wrong, wrong) == 0 {
                break;
            }
            _mm_storeu_si128(own, _mm_setzero_si128());
            bytes = _mm256_add_epi64(bytes, length);
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

/// Returns four words that count up from `first` by `step`, in order or interleaved.
#[inline]
#[target_feature(enable = "avx2")]
fn count(first: u64, step: u64, interleaved: bool) -> __m256i {
    let step = step as i64;
    let (second, third) = if interleaved { (2 * step, step) } else { (step, 2 * step) };
    _mm256_add_epi64(_mm256_setr_epi64x(0, second, third, 3 * step), _mm256_set1_epi64x(first as i64))
}

impl UsedRun<'_> {
    /// Returns the words expected for the first four entries, with `length` in their length halves. In a packed queue
    /// the words are interleaved.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn expected_4<R: DriverRing>(&self, length: usize) -> __m256i {
        count(self.key + ring_word::<R>(length as u64, 0), key_step::<R>(), R::is_packed())
    }

    /// Loads the words of four used entries from entry `at` on, each with a length and a [key](UsedRun::key). In a
    /// packed queue the words are interleaved.
    ///
    /// # Safety
    /// There are four entries from `at` on.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load_4<R: DriverRing>(&self, at: usize) -> __m256i {
        // SAFETY: the entries are in the ring, as the caller promises. The device writes them concurrently, so `asm`
        // reads them.
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
                _mm256_unpackhi_epi64(first, second)
            } else {
                let entries: __m256i;
                asm!(
                    "vmovdqu {entries}, [{at}]",
                    at = in(reg) self.entries.as_ptr().add(at),
                    entries = out(ymm_reg) entries,
                    options(nostack, preserves_flags, readonly)
                );
                entries
            }
        }
    }
}

impl AvailableRun<'_> {
    /// Returns the second words of the first four descriptors, interleaved.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn second_4<R: DriverRing>(&self) -> __m256i {
        count(self.second, second_step::<R>(), true)
    }

    /// Writes four descriptors of interleaved words from `at` on; for a split queue, also their ids to the available
    /// ring.
    ///
    /// # Safety
    /// There are four entries from `at` on.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store_4<R: DriverRing>(&self, at: usize, address: __m256i, second: __m256i) {
        // SAFETY: the entries are in the ring, as the caller promises. The device sees both words of a descriptor
        // together, as in `avx512`.
        unsafe {
            let target = self.descriptors.as_ptr().add(at).cast::<__m256i>().cast_mut();
            _mm256_storeu_si256(target, _mm256_unpacklo_epi64(address, second));
            _mm256_storeu_si256(target.add(1), _mm256_unpackhi_epi64(address, second));
            if !R::is_packed() {
                let first = (self.first + at) as u64;
                let ids = first.wrapping_mul(0x1_0001_0001_0001).wrapping_add(0x3_0002_0001_0000);
                self.available.as_ptr().add(at).cast::<u64>().cast_mut().write_unaligned(ids);
            }
        }
    }
}
