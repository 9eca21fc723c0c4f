//! Groups of eight, with AVX-512. Words that the device may be writing are read by instructions of their own, so that the
//! compiler takes nothing for granted about them; a word says all there is to know of its descriptor.
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

const GROUP: usize = 8;
const ALL: __mmask8 = u8::MAX;
const LINE: u32 = Placement::LINE_SHIFT;

/// As [`Groups::take`](super::Groups::take).
#[target_feature(enable = "avx512f")]
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
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let (header, most) = (word(rule.header as u64), word(rule.longest as u64));
    let (shift, lines) = rule.placement.bits();
    let (shift, lines, one) = (_mm_cvtsi32_si128(shift as i32), word(lines.into()), word(1));
    let (offset, base) = (word(((HEADROOM + rule.header) as u64) << Slot::OFFSET), word(rule.base + HEADROOM as u64));
    let (mut expected, mut second) = (finished.expected::<R>(), offered.second::<R>());
    let (step, next) = (word(if R::is_packed() { 8 << 32 } else { 8 }), word(if R::is_packed() { 8 << 32 } else { 0 }));
    let (mut done, mut bytes) = (0, _mm512_setzero_si512());
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above. `bufs` and `fresh` are buffers of the
        // view's region.
        unsafe {
            let (key, written) = finished.load::<R>(done);
            let length = _mm512_sub_epi64(written, header);
            let is_next = _mm512_cmpeq_epi64_mask(key, expected);
            // A length of less than nothing is a very large one.
            if _mm512_mask_cmplt_epu64_mask(is_next, _mm512_sub_epi64(length, one), most) != ALL {
                break;
            }
            // The packets' bytes are read after the device's words that they are there.
            fence(Acquire);
            let own = bufs.as_mut_ptr().add(done).cast();
            let buffers = _mm512_cvtepu32_epi64(_mm256_loadu_si256(own));
            let behind = _mm512_slli_epi64::<LINE>(_mm512_and_si512(buffers, lines));
            if rule.mergeable {
                let mut places = [0u64; GROUP];
                let place = _mm512_add_epi64(_mm512_sll_epi64(buffers, shift), behind);
                _mm512_storeu_si512(places.as_mut_ptr().cast(), place);
                if !are_single(places, view) {
                    break;
                }
            }
            let offset = _mm512_add_epi64(_mm512_slli_epi64::<{ Slot::OFFSET }>(behind), offset);
            let taken = _mm512_or_si512(_mm512_or_si512(buffers, _mm512_slli_epi64::<32>(length)), offset);
            _mm512_storeu_si512(slots.as_mut_ptr().add(done).cast(), taken);
            let new = _mm256_loadu_si256(fresh.as_ptr().add(done).cast());
            _mm256_storeu_si256(own, new);
            let new = _mm512_cvtepu32_epi64(new);
            let data = _mm512_add_epi64(_mm512_slli_epi64::<LINE>(_mm512_and_si512(new, lines)), base);
            let address = _mm512_add_epi64(_mm512_sll_epi64(new, shift), data);
            offered.store::<R>(done, address, second, expected);
            bytes = _mm512_add_epi64(bytes, length);
        }
        (expected, second) = (_mm512_add_epi64(expected, step), _mm512_add_epi64(second, next));
        done += GROUP;
    }
    (done, _mm512_reduce_add_epi64(bytes) as usize)
}

/// As [`Groups::fill`](super::Groups::fill).
#[target_feature(enable = "avx512f")]
pub fn fill<R: Ring>(
    offered: Offered<'_>,
    bufs: &mut [u32],
    packets: &mut [u32],
    slots: &[Slot],
    rule: &Rule,
    view: View<'_>,
) -> usize {
    let all = offered.len::<R>().min(bufs.len()).min(packets.len()).min(slots.len());
    let word = |value: u64| _mm512_set1_epi64(value as i64);
    let (header, most, one) = (word(rule.header as u64), word(rule.longest as u64), word(1));
    let (length_mask, buffer_mask) = (word(Slot::WHOLE_LEN), word(u32::MAX.into()));
    let (shift, base) = (_mm_cvtsi32_si128(rule.placement.bits().0 as i32), word(rule.base));
    let single = word(sent::SINGLE.into());
    let (mut id, mut second) = (offered.ids(), offered.second::<R>());
    let next = word(if R::is_packed() { 8 << 32 } else { 0 });
    let mut done = 0;
    while done + GROUP <= all {
        // SAFETY: a group lies inside each of the slices, by the condition above; a slot's data lies in its buffer, with room
        // for the header in front of it, which is looked at.
        unsafe {
            let slot = _mm512_loadu_si512(slots.as_ptr().add(done).cast());
            let length = _mm512_and_si512(_mm512_srli_epi64::<32>(slot), length_mask);
            let offset = _mm512_srli_epi64::<{ Slot::OFFSET }>(slot);
            let has_room = _mm512_cmpge_epu64_mask(offset, header);
            if _mm512_mask_cmplt_epu64_mask(has_room, _mm512_sub_epi64(length, one), most) != ALL {
                break;
            }
            let buffer = _mm512_sll_epi64(_mm512_and_si512(slot, buffer_mask), shift);
            let place = _mm512_sub_epi64(_mm512_add_epi64(buffer, offset), header);
            let mut places = [0u64; GROUP];
            _mm512_storeu_si512(places.as_mut_ptr().cast(), place);
            for at in places {
                let header = view.base().as_ptr().add(at as usize);
                header.cast::<u64>().write_unaligned(0);
                header.add(rule.header - 4).cast::<u32>().write_unaligned(0);
            }
            let address = _mm512_add_epi64(place, base);
            let len = _mm512_add_epi64(length, header);
            offered.store::<R>(done, address, _mm512_add_epi64(second, len), id);
            _mm256_storeu_si256(bufs.as_mut_ptr().add(done).cast(), _mm512_cvtepi64_epi32(slot));
            let packet = _mm512_cvtepi64_epi32(_mm512_or_si512(length, single));
            _mm256_storeu_si256(packets.as_mut_ptr().add(done).cast(), packet);
        }
        (id, second) = (_mm512_add_epi64(id, word(8)), _mm512_add_epi64(second, next));
        done += GROUP;
    }
    done
}

/// As [`Groups::reclaim`](super::Groups::reclaim).
#[target_feature(enable = "avx512f")]
pub fn reclaim<R: Ring>(finished: Finished<'_>, packets: &mut [u32]) -> (usize, usize) {
    let all = finished.len().min(packets.len());
    let mut expected = finished.expected::<R>();
    let step = _mm512_set1_epi64(if R::is_packed() { 8 << 32 } else { 8 });
    let single = _mm256_set1_epi32(sent::SINGLE as i32);
    let (mut done, mut bytes) = (0, _mm512_setzero_si512());
    while done + GROUP <= all {
        // SAFETY: a group lies inside both, by the condition above.
        unsafe {
            let (key, _) = finished.load::<R>(done);
            let own = packets.as_mut_ptr().add(done).cast();
            // Of a packet in one descriptor nothing is left above its bytes.
            let length = _mm256_xor_si256(_mm256_loadu_si256(own), single);
            let others = _mm256_srli_epi32::<{ sent::COUNT as i32 }>(length);
            if _mm512_cmpeq_epi64_mask(key, expected) != ALL || _mm256_testz_si256(others, others) == 0 {
                break;
            }
            _mm256_storeu_si256(own, _mm256_setzero_si256());
            bytes = _mm512_add_epi64(bytes, _mm512_cvtepu32_epi64(length));
        }
        expected = _mm512_add_epi64(expected, step);
        done += GROUP;
    }
    (done, _mm512_reduce_add_epi64(bytes) as usize)
}

#[target_feature(enable = "avx512f")]
fn lanes() -> __m512i {
    _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)
}

impl Finished<'_> {
    /// What the first eight keys have to be.
    #[target_feature(enable = "avx512f")]
    fn expected<R: Ring>(&self) -> __m512i {
        let ids = _mm512_add_epi64(lanes(), _mm512_set1_epi64(self.first as i64));
        if R::is_packed() {
            _mm512_or_si512(_mm512_slli_epi64::<32>(ids), _mm512_set1_epi64(self.done as i64))
        } else {
            ids
        }
    }

    /// Eight keys from `at` on, which tell whether they are done and their ids, and how much was written to each.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx512f")]
    unsafe fn load<R: Ring>(&self, at: usize) -> (__m512i, __m512i) {
        let low = _mm512_set1_epi64(u32::MAX.into());
        // SAFETY: inside the ring, as the caller says. Others write there at the same time, so it is read by `asm`.
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
                let words = _mm512_permutex2var_epi64(first, second_words, second);
                (_mm512_and_si512(words, _mm512_set1_epi64(KEY as i64)), _mm512_and_si512(words, low))
            } else {
                let entries: __m512i;
                asm!(
                    "vmovdqu64 {entries}, [{at}]",
                    at = in(reg) self.entries.as_ptr().add(at),
                    entries = out(zmm_reg) entries,
                    options(nostack, preserves_flags, readonly)
                );
                (_mm512_and_si512(entries, low), _mm512_srli_epi64::<32>(entries))
            }
        }
    }
}

impl Offered<'_> {
    #[target_feature(enable = "avx512f")]
    fn ids(&self) -> __m512i {
        _mm512_add_epi64(lanes(), _mm512_set1_epi64(self.first as i64))
    }

    /// The first eight second words.
    #[target_feature(enable = "avx512f")]
    fn second<R: Ring>(&self) -> __m512i {
        let second = _mm512_set1_epi64(self.second as i64);
        if R::is_packed() { _mm512_or_si512(_mm512_slli_epi64::<32>(self.ids()), second) } else { second }
    }

    /// Writes eight descriptors from `at` on; where others say which of them are offered, also their ids.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx512f")]
    unsafe fn store<R: Ring>(&self, at: usize, address: __m512i, second: __m512i, ids: __m512i) {
        let low = _mm512_permutex2var_epi64(address, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), second);
        let high = _mm512_permutex2var_epi64(address, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), second);
        // SAFETY: inside the ring, as the caller says. With a packed queue's second word the device has the descriptor: it
        // must see both words at once, and does, since no processor tears the 16 aligned bytes of one out of a vector that
        // it stores; DPDK's vector paths rely on that, too.
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
