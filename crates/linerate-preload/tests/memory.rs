//! Access to the program's memory: missing memory is a fault, at any length and position in a page.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

use linerate_preload::memory::{
    Fault, is_text, read, read_all, read_bytes, read_duration, read_optional, write, write_bytes, write_each,
};
use linerate_preload::{errno, fail, keeping_errno, set_errno};

const PAGE: usize = 4096;

/// Readable and writable pages, followed by a read-only page, followed by an unmapped page.
struct Pages(*mut u8);

/// An address that is never mapped.
fn wrong<T>() -> *mut T {
    std::ptr::without_provenance_mut(16)
}

/// The number of writable bytes.
const WRITABLE: usize = 8 * PAGE;

impl Pages {
    fn new() -> Pages {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, which only this test uses.
        unsafe {
            let at = libc::mmap(null_mut(), WRITABLE + 2 * PAGE, protection, flags, -1, 0).cast::<u8>();
            assert_ne!(at.cast(), libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.add(WRITABLE).cast(), PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::munmap(at.add(WRITABLE + PAGE).cast(), PAGE), 0);
            Pages(at)
        }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.0.wrapping_add(offset).cast()
    }
}

/// Lengths of copies that end at a border or cross it: short lengths, pages, and more than is copied directly.
const LENGTHS: [usize; 10] = [1, 4, 7, 8, 16, 100, PAGE, PAGE + 1, 4 * PAGE, 5 * PAGE];

#[test]
fn memory_is_read_up_to_the_page_that_is_not_there() {
    let (pages, end) = (Pages::new(), WRITABLE + PAGE);
    for len in LENGTHS {
        let mut bytes = vec![1; len];
        for begin in [end - len, end - len - 1] {
            assert_eq!(read_bytes(pages.at(begin), &mut bytes), Ok(()), "{len}");
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        for beyond in [1, len.div_ceil(2), len] {
            assert_eq!(read_bytes(pages.at(end - len + beyond), &mut bytes), Err(Fault), "{len}, {beyond} beyond");
        }
    }
}

#[test]
fn memory_is_written_up_to_the_page_that_is_read_only() {
    let (pages, end) = (Pages::new(), WRITABLE);
    for len in LENGTHS {
        let (bytes, mut seen) = (vec![0xA5; len], vec![0; len]);
        // SAFETY: the test's own memory, to which there are no references.
        assert_eq!(unsafe { write_bytes(pages.at(end - len), &bytes) }, Ok(()), "{len}");
        assert_eq!(read_bytes(pages.at(end - len), &mut seen), Ok(()));
        assert_eq!(seen, bytes);
        for beyond in [1, len.div_ceil(2), len] {
            // SAFETY: as above.
            let written = unsafe { write_bytes(pages.at(end - len + beyond), &bytes) };
            assert_eq!(written, Err(Fault), "{len}, {beyond} beyond");
        }
    }
    let (near, far) = (pages.at(8).cast::<u32>(), pages.at(end).cast::<u32>());
    // SAFETY: as above.
    assert_eq!(unsafe { write_each(&[(near, 7), (near.wrapping_add(1), 8)]) }, Ok(()));
    assert_eq!(read_all(near, 2), Ok(vec![7, 8]));
    // SAFETY: as above.
    assert_eq!(unsafe { write_each(&[(near, 9), (far, 9)]) }, Err(Fault));
}

#[test]
fn pointers_may_be_anything() {
    for address in [0, 1, PAGE - 1, 0x7FFF_FFFF_F000, 1 << 47, usize::MAX - 7, usize::MAX] {
        let at = address as *mut u64;
        assert_eq!(read(at), Err(Fault), "{address:#x}");
        assert_eq!((read_all(at, 2), read_all(at, usize::MAX)), (Err(Fault), Err(Fault)), "{address:#x}");
        assert_eq!(read_bytes(at.cast(), &mut []), Ok(()));
        // SAFETY: the address is not mapped.
        assert_eq!(unsafe { (write(at, 1), write_bytes(at.cast(), &[])) }, (Err(Fault), Ok(())), "{address:#x}");
        assert!(!is_text(at.cast(), b"text\0"));
    }
    assert_eq!(read_optional::<u64>(null()), Ok(None));
    assert_eq!(fail::<c_int>(Fault), -1);
    assert_eq!(errno(), libc::EFAULT);
}

#[test]
fn a_text_may_end_where_memory_does() {
    let (pages, text) = (Pages::new(), b"/dev/netmap\0");
    let end = WRITABLE + PAGE;
    // SAFETY: the test's own memory, which is written before it becomes read-only again.
    unsafe {
        assert_eq!(libc::mprotect(pages.at(WRITABLE), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
        pages.0.add(end - text.len()).copy_from(text.as_ptr(), text.len());
    }
    assert!(is_text(pages.at(end - text.len()).cast(), text));
    assert!(!is_text(pages.at(end - text.len() + 1).cast(), text));
    assert!(!is_text(pages.at(end - text.len() - 1).cast(), text));
    // A string that is shorter than `text` ends at the last mapped byte.
    assert!(!is_text(pages.at(end - 1).cast(), text));
}

#[test]
fn durations_are_checked() {
    let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
    assert_eq!(read_duration(&time(1, 5)), Ok(Some(Duration::new(1, 5))));
    assert_eq!(read_duration(null()), Ok(None));
    for wrong in [time(-1, 0), time(0, -1), time(0, 1_000_000_000)] {
        assert_eq!(read_duration(&wrong), Err(libc::EINVAL));
    }
    assert_eq!(read_duration(wrong()), Err(libc::EFAULT));
}

#[test]
fn errno_is_kept() {
    set_errno(libc::EXDEV);
    assert_eq!(read(wrong::<u64>()), Err(Fault));
    // SAFETY: the address is not mapped.
    assert_eq!(unsafe { write(wrong::<u32>(), 1) }, Err(Fault));
    assert_eq!(read_bytes(wrong(), &mut [0; 5 * PAGE]), Err(Fault));
    // SAFETY: as above.
    assert_eq!(unsafe { write_each(&[(wrong::<u32>(), 1)]) }, Err(Fault));
    assert_eq!(linerate_preload::cookie_of(-1), None);
    assert_eq!(linerate_preload::option(-1, libc::SOL_SOCKET, libc::SO_TYPE), None);
    keeping_errno(|| set_errno(libc::EIO));
    assert_eq!(errno(), libc::EXDEV);
}
