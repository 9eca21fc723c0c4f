//! Groups of eight, with AVX-512. Words that the device may write concurrently are read by `asm`, so that the
//! compiler makes no assumptions about them. One word contains all the state of its descriptor.
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

const GROUP: usize = 8;
const LINE: u32 = Placement::LINE_SHIFT;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx512f")]
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
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let (mut expected, mut second) = (used.expected::<R>(params.header + 1), available.second::<R>());
    let (step, next) = (word(GROUP as u64 * key_step::<R>()), word(GROUP as u64 * second_step::<R>()));
    let (most, mask) = (word(ring_word::<R>(params.longest as u64 - 1, 0)), word(ring_word::<R>(LENGTH, key::<R>())));
    let (shift, lines) = params.placement.bits();
    let (shift, lines) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()));
    let data = word((HEADROOM as u64) << Slot::OFFSET | 1 << 32);
    let header = word((HEADROOM - params.header) as u64);
    let (mut done, mut bytes) = (0, _mm512_setzero_si512());
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. `bufs` and `fresh` are
        // buffers of the view's region.
        unsafe {
            // The difference is 0 where the key is the expected one, and the packet's length minus one.
            let left = _mm512_and_si512(_mm512_sub_epi32(used.load::<R>(done), expected), mask);
            if _mm512_cmpneq_epi32_mask(left, _mm512_min_epu32(left, most)) != 0 {
                break;
            }
            let length = if R::is_packed() { left } else { _mm512_srli_epi64::<32>(left) };
            // Acquire: the packets' bytes are read after the device's used words.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm512_cvtepu32_epi64(_mm256_loadu_si256(own));
            let behind = _mm512_slli_epi64::<LINE>(_mm512_and_si512(buffers, lines));
            let mut places = [0u64; GROUP];
            let place = _mm512_add_epi64(_mm512_sll_epi64(buffers, shift), _mm512_add_epi64(behind, header));
            _mm512_storeu_si512(places.as_mut_ptr().cast(), place);
            if !are_single(places, view) && params.mergeable {
                break;
            }
            let offset = _mm512_add_epi64(_mm512_slli_epi64::<{ Slot::OFFSET }>(behind), data);
            let taken = _mm512_add_epi64(_mm512_or_si512(buffers, _mm512_slli_epi64::<32>(length)), offset);
            _mm512_storeu_si512(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm256_loadu_si256(fresh.as_ptr().add(done).cast());
            _mm256_storeu_si256(own, new);
            let new = _mm512_cvtepu32_epi64(new);
            let behind = _mm512_add_epi64(_mm512_slli_epi64::<LINE>(_mm512_and_si512(new, lines)), header);
            let address = params.addresses.locate_8(_mm512_add_epi64(_mm512_sll_epi64(new, shift), behind));
            available.store::<R>(done, address, second, expected);
            bytes = _mm512_add_epi64(bytes, length);
        }
        (expected, second) = (_mm512_add_epi64(expected, step), _mm512_add_epi64(second, next));
        done += GROUP;
    }
    (done, done + _mm512_reduce_add_epi64(bytes) as usize)
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx512f")]
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
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let (header, longest, one) = (word(params.header as u64), word(params.longest as u64), word(1));
    let (length_mask, buffer_mask) = (word(Slot::WHOLE_LEN), word(u32::MAX.into()));
    let shift = _mm_cvtsi32_si128(params.placement.bits().0 as i32);
    let single = word(sent_word::SINGLE.into());
    let (mut id, mut second) = (available.ids(), _mm512_add_epi64(available.second::<R>(), header));
    let next = word(GROUP as u64 * second_step::<R>());
    // SAFETY: a header has more than four bytes, and the region is longer than a header.
    let (starts, ends) = unsafe { (view.base(), view.base().add(params.header - 4)) };
    let mut done = 0;
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of each slice, by the condition above. A slot's data is in its
        // buffer; the room for the header before it is checked here.
        unsafe {
            let slot = _mm512_loadu_si512(slots.as_ptr().add(done).cast());
            let length = _mm512_and_si512(_mm512_srli_epi64::<32>(slot), length_mask);
            let offset = _mm512_sub_epi64(_mm512_srli_epi64::<{ Slot::OFFSET }>(slot), header);
            // A negative value means no room for the header, an empty packet, or a packet that is too long.
            let (short, long) = (_mm512_sub_epi64(length, one), _mm512_sub_epi64(longest, length));
            let wrong = _mm512_or_si512(offset, _mm512_or_si512(short, long));
            if _mm512_cmplt_epi64_mask(wrong, _mm512_setzero_si512()) != 0 {
                break;
            }
            let place = _mm512_add_epi64(_mm512_sll_epi64(_mm512_and_si512(slot, buffer_mask), shift), offset);
            let mut places = [0u64; GROUP];
            _mm512_storeu_si512(places.as_mut_ptr().cast(), place);
            for at in places {
                starts.add(at as usize).cast::<u64>().write_unaligned(0);
                ends.add(at as usize).cast::<u32>().write_unaligned(0);
            }
            available.store::<R>(done, params.addresses.locate_8(place), _mm512_add_epi64(second, length), id);
            _mm256_storeu_si256(bufs.as_mut_ptr().add(done).cast(), _mm512_cvtepi64_epi32(slot));
            let packet = _mm512_cvtepi64_epi32(_mm512_or_si512(length, single));
            _mm256_storeu_si256(packets.as_mut_ptr().add(done).cast(), packet);
        }
        (id, second) = (_mm512_add_epi64(id, word(GROUP as u64)), _mm512_add_epi64(second, next));
        done += GROUP;
    }
    done
}

/// As [`Groups::reclaim`](super::Groups::reclaim).
#[target_feature(enable = "avx512f")]
pub fn reclaim<R: DriverRing>(used: UsedRun<'_>, packets: &mut [u32]) -> (usize, usize) {
    let all = used.len::<R>().min(packets.len());
    let all = all - all % GROUP; // whole groups
    let mut expected = used.expected::<R>(0);
    let step = _mm512_set1_epi64((GROUP as u64 * key_step::<R>()) as i64);
    let (key, single) =
        (_mm512_set1_epi64(ring_word::<R>(0, key::<R>()) as i64), _mm256_set1_epi32(sent_word::SINGLE as i32));
    let (mut done, mut bytes) = (0, _mm512_setzero_si512());
    while done < all {
        // SAFETY: `done + GROUP` is at most the length of both, by the condition above.
        unsafe {
            let own = packets.as_mut_ptr().add(done).cast();
            let left = _mm512_and_si512(_mm512_sub_epi32(used.load::<R>(done), expected), key);
            // For a packet in one descriptor, the bits above its byte count become 0.
            let length = _mm512_cvtepu32_epi64(_mm256_xor_si256(_mm256_loadu_si256(own), single));
            let wrong = _mm512_or_si512(left, _mm512_srli_epi64::<{ sent_word::COUNT }>(length));
            if _mm512_test_epi64_mask(wrong, wrong) != 0 {
                break;
            }
            _mm256_storeu_si256(own, _mm256_setzero_si256());
            bytes = _mm512_add_epi64(bytes, length);
        }
        expected = _mm512_add_epi64(expected, step);
        done += GROUP;
    }
    (done, _mm512_reduce_add_epi64(bytes) as usize)
}

/// Returns eight words that count up from `first` by `step`.
#[inline]
#[target_feature(enable = "avx512f")]
fn count(first: u64, step: u64) -> __m512i {
    let step = step as i64;
    let steps = _mm512_setr_epi64(0, step, 2 * step, 3 * step, 4 * step, 5 * step, 6 * step, 7 * step);
    _mm512_add_epi64(steps, _mm512_set1_epi64(first as i64))
}

impl UsedRun<'_> {
    /// Returns the words expected for the first eight entries, with `length` in their length halves.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn expected<R: DriverRing>(&self, length: usize) -> __m512i {
        count(self.key + ring_word::<R>(length as u64, 0), key_step::<R>())
    }

    /// Loads the words of eight used entries from entry `at` on, each with a length and a [key](UsedRun::key).
    ///
    /// # Safety
    /// There are eight entries from `at` on.
    #[target_feature(enable = "avx512f")]
    unsafe fn load<R: DriverRing>(&self, at: usize) -> __m512i {
        // SAFETY: the entries are in the ring, as the caller promises. The device writes them concurrently, so `asm`
        // reads them.
        unsafe {
            if R::is_packed() {
                let (first, second): (__m512i, __m512i);
                asm!(
                    "vmovdqu64 {first}, [{at}]",
                    "vmovdqu64 {second}, [{at} + 64]",
                    at = in(reg) self.descriptors.as_ptr().add(at),
                    first = out(zmm_reg) first,
                    second = out(zmm_reg) second,
                    options(nostack, preserves_flags, readonly)
                );
                let second_words = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
                _mm512_permutex2var_epi64(first, second_words, second)
            } else {
                let entries: __m512i;
                asm!(
                    "vmovdqu64 {entries}, [{at}]",
                    at = in(reg) self.entries.as_ptr().add(at),
                    entries = out(zmm_reg) entries,
                    options(nostack, preserves_flags, readonly)
                );
                entries
            }
        }
    }
}

impl AvailableRun<'_> {
    #[target_feature(enable = "avx512f")]
    fn ids(&self) -> __m512i {
        count(self.first as u64, 1)
    }

    /// Returns the second words of the first eight descriptors.
    #[target_feature(enable = "avx512f")]
    fn second<R: DriverRing>(&self) -> __m512i {
        count(self.second, second_step::<R>())
    }

    /// Writes eight descriptors from `at` on; for a split queue, also their ids to the available ring.
    ///
    /// # Safety
    /// There are eight entries from `at` on.
    #[target_feature(enable = "avx512f")]
    unsafe fn store<R: DriverRing>(&self, at: usize, address: __m512i, second: __m512i, ids: __m512i) {
        let low = _mm512_permutex2var_epi64(address, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), second);
        let high = _mm512_permutex2var_epi64(address, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), second);
        // SAFETY: the entries are in the ring, as the caller promises. A packed queue's second word makes the
        // descriptor available, so the device must see both words together. It does: processors do not tear the 16
        // aligned bytes of a descriptor in a vector store. DPDK's vector paths also rely on that.
        unsafe {
            let target = self.descriptors.as_ptr().add(at).cast::<__m512i>().cast_mut();
            _mm512_storeu_si512(target, low);
            _mm512_storeu_si512(target.add(1), high);
            if !R::is_packed() {
                let places = self.available.as_ptr().add(at).cast::<__m128i>().cast_mut();
                _mm_storeu_si128(places, _mm512_cvtepi64_epi16(ids));
            }
        }
    }
}
