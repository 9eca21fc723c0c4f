//! Copies from and to memory that another thread, process or device may access at the same time.
//!
//! For a Rust load or store, such an access would be a data race, which the compiler assumes not to exist. Assembly is
//! opaque to the compiler, so these copies behave like relaxed atomic accesses to each byte. Rust's own atomics have
//! no copy of more than eight bytes, and these must be aligned. Volatile accesses would be 5 % faster, but Rust counts
//! them as data races, too.
#![allow(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use self::bytewise::copy_long;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use self::x86_64::copy_long;

/// Copies `len` bytes from memory that others may write to.
///
/// # Safety
/// The bytes at `from` can be read. Those at `to` can be written, and only the caller accesses them.
#[inline(always)]
pub(super) unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { copy::<Read>(from, to, len) }
}

/// Copies `len` bytes to memory that others may read and write.
///
/// # Safety
/// The bytes at `from` can be read, and do not change. Those at `to` can be written.
#[inline(always)]
pub(super) unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by the caller's promise.
    unsafe { copy::<Write>(from, to, len) }
}

/// One direction of a copy.
trait Direction {
    /// Copies the `N` bytes at offset `at`; `N` is a power of two up to 16.
    ///
    /// # Safety
    /// As [`read`] or [`write`].
    unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8, at: usize);
}

struct Read;
struct Write;

/// Copies up to 64 bytes in blocks that do not overlap, unlike memcpy. So later loads of single words can be forwarded
/// from the store buffer instead of waiting until the stores complete.
///
/// # Safety
/// As [`read`] or [`write`].
#[inline(always)]
unsafe fn copy<D: Direction>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the blocks are parts of the `len` bytes.
    unsafe {
        if len > 64 {
            return copy_long::<D>(from, to, len);
        }
        let mut at = 0;
        while at + 16 <= len {
            D::copy::<16>(from, to, at);
            at += 16;
        }
        if len & 8 != 0 {
            D::copy::<8>(from, to, at);
            at += 8;
        }
        if len & 4 != 0 {
            D::copy::<4>(from, to, at);
            at += 4;
        }
        if len & 2 != 0 {
            D::copy::<2>(from, to, at);
            at += 2;
        }
        if len & 1 != 0 {
            D::copy::<1>(from, to, at);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;
    use std::arch::x86_64::__m128i;

    use super::{Direction, Read, Write};

    macro_rules! load {
        ($class:ident, $word:ty, $instruction:literal, $from:expr, $to:expr, $at:expr) => {{
            let word: $word;
            asm!($instruction, word = out($class) word, from = in(reg) $from, at = in(reg) $at,
                options(nostack, preserves_flags, readonly));
            $to.add($at).cast::<$word>().write_unaligned(word);
        }};
    }

    macro_rules! store {
        ($class:ident, $word:ty, $instruction:literal, $from:expr, $to:expr, $at:expr) => {
            asm!($instruction, word = in($class) $from.add($at).cast::<$word>().read_unaligned(), to = in(reg) $to,
                at = in(reg) $at, options(nostack, preserves_flags))
        };
    }

    impl Direction for Read {
        #[inline(always)]
        unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
            // SAFETY: each arm copies `N` bytes, by the caller's promise. No instruction needs alignment.
            unsafe {
                match N {
                    1 => load!(reg_byte, u8, "mov {word}, [{from} + {at}]", from, to, at),
                    2 => load!(reg, u16, "mov {word:x}, [{from} + {at}]", from, to, at),
                    4 => load!(reg, u32, "mov {word:e}, [{from} + {at}]", from, to, at),
                    8 => load!(reg, u64, "mov {word}, [{from} + {at}]", from, to, at),
                    _ => load!(xmm_reg, __m128i, "movups {word}, [{from} + {at}]", from, to, at),
                }
            }
        }
    }

    impl Direction for Write {
        #[inline(always)]
        unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
            // SAFETY: as above.
            unsafe {
                match N {
                    1 => store!(reg_byte, u8, "mov [{to} + {at}], {word}", from, to, at),
                    2 => store!(reg, u16, "mov [{to} + {at}], {word:x}", from, to, at),
                    4 => store!(reg, u32, "mov [{to} + {at}], {word:e}", from, to, at),
                    8 => store!(reg, u64, "mov [{to} + {at}], {word}", from, to, at),
                    _ => store!(xmm_reg, __m128i, "movups [{to} + {at}], {word}", from, to, at),
                }
            }
        }
    }

    /// Copies `len` bytes in either direction, by the C library's memcpy.
    ///
    /// # Safety
    /// As [`read`](super::read) or [`write`](super::write).
    #[inline(always)]
    pub unsafe fn copy_long<D: Direction>(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the call follows the System V ABI; the ranges are valid by the caller's promise.
        unsafe {
            asm!("call {memcpy}", memcpy = sym libc::memcpy, inout("rdi") to => _, inout("rsi") from => _,
                inout("rdx") len => _, clobber_abi("C"));
        }
    }
}

/// For Miri and other processors: an atomic access to each byte.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod bytewise {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::{Direction, Read, Write};

    impl Direction for Read {
        unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
            // SAFETY: by the caller's promise; an atomic load does not write.
            (at..at + N)
                .for_each(|at| unsafe { to.add(at).write(AtomicU8::from_ptr(from.add(at).cast_mut()).load(Relaxed)) });
        }
    }

    impl Direction for Write {
        unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
            // SAFETY: by the caller's promise.
            (at..at + N).for_each(|at| unsafe { AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Relaxed) });
        }
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As [`read`](super::read) or [`write`](super::write).
    pub unsafe fn copy_long<D: Direction>(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: by the caller's promise.
        (0..len).for_each(|at| unsafe { D::copy::<1>(from, to, at) });
    }
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    #[test]
    fn each_length_is_copied_exactly() {
        let source: Vec<u8> = (0..300u32).map(|n| n as u8 | 1).collect();
        for len in (0..=130).chain([255, 256, 300]) {
            for copy in [read, write] {
                let mut target = vec![0; 302];
                // SAFETY: both ranges are inside their vectors.
                unsafe { copy(source.as_ptr(), target[1..].as_mut_ptr(), len) };
                assert_eq!(target[1..1 + len], source[..len], "{len} bytes");
                assert!(target[0] == 0 && target[1 + len..].iter().all(|&byte| byte == 0), "{len} bytes");
            }
        }
    }

    /// Two threads may write and read the same bytes. Miri reports a data race if the copies are not atomic.
    #[test]
    fn two_threads_may_access_the_same_bytes() {
        let mapping = crate::memory::Mapping::lazy(4096).unwrap();
        std::thread::scope(|scope| {
            for value in [1u8, 2] {
                let mapping = &mapping;
                scope.spawn(move || {
                    let mut bytes = [0; 100];
                    for _ in 0..10 {
                        mapping.write(8, &[value; 100]);
                        mapping.read(8, &mut bytes);
                    }
                    assert!(bytes.iter().all(|byte| [1, 2].contains(byte)));
                });
            }
        });
    }
}
