//! The table of descriptor numbers: it matches the kernel's state, and drops each value with its last number.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use linerate_preload::{Table, cookie_of, owner, owns_memory, replace, start};

/// A value that counts its drops.
struct Counted(&'static AtomicUsize);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn socket() -> OwnedFd {
    UnixDatagram::unbound().unwrap().into()
}

/// Closes a number without the table's knowledge.
fn close(fd: c_int) {
    // SAFETY: the test's own number.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

fn duplicate(fd: c_int) -> c_int {
    // SAFETY: the call takes no addresses.
    let other = unsafe { libc::dup(fd) };
    assert!(other >= 0);
    other
}

fn add(table: &Table<Counted>, fd: c_int, drops: &'static AtomicUsize) {
    assert!(table.insert(fd, cookie_of(fd).unwrap_or(0), 1, Counted(drops)));
}

#[test]
fn a_value_lives_as_long_as_its_last_number() {
    static TABLE: Table<Counted> = Table::new();
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    start();
    let first = socket().into_raw_fd();
    assert!(!TABLE.any() && TABLE.get(first).is_none());
    add(&TABLE, first, &DROPS);
    let second = duplicate(first);
    assert!(TABLE.duplicate(first, second).is_none());
    let held = TABLE.get(second).expect("a duplicate stands for the same");
    let mut numbers = TABLE.numbers(&held);
    numbers.sort();
    assert_eq!(numbers, [first.min(second), first.max(second)]);
    drop(TABLE.forget(first));
    close(first);
    assert_eq!((TABLE.word(first), TABLE.word(second), DROPS.load(SeqCst)), (0, 1, 0));
    drop(TABLE.forget(second));
    close(second);
    assert_eq!(DROPS.load(SeqCst), 0, "a call still uses it");
    drop(held);
    assert!(DROPS.load(SeqCst) == 1 && !TABLE.any());
}

#[test]
fn a_number_that_was_closed_by_a_system_call_is_forgotten() {
    static TABLE: Table<Counted> = Table::new();
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    start();
    let fd = socket().into_raw_fd();
    add(&TABLE, fd, &DROPS);
    // The number now refers to another socket.
    let other = socket();
    // SAFETY: the test's own number.
    assert!(unsafe { replace(fd, other.as_raw_fd()) });
    assert!(TABLE.word(fd) == 1 && TABLE.get(fd).is_none());
    assert_eq!((TABLE.word(fd), DROPS.load(SeqCst)), (0, 1));
    // The number is closed.
    add(&TABLE, fd, &DROPS);
    close(fd);
    TABLE.sweep();
    assert!(!TABLE.any() && DROPS.load(SeqCst) == 2);
}

#[test]
fn an_entry_may_be_of_no_socket() {
    static TABLE: Table<Counted> = Table::new();
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    start();
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    let fd = file.as_raw_fd();
    add(&TABLE, fd, &DROPS);
    assert_eq!(TABLE.get(fd).map(|held| held.cookie()), Some(0));
    // SAFETY: the test's own number.
    assert!(unsafe { replace(fd, socket().as_raw_fd()) });
    assert!(TABLE.get(fd).is_none());
    for out in [-1, c_int::MAX, c_int::MIN] {
        assert!(TABLE.get(out).is_none() && TABLE.forget(out).is_none() && TABLE.word(out) == 0);
        assert!(!TABLE.insert(out, 0, 1, Counted(&DROPS)));
    }
    assert_eq!(DROPS.load(SeqCst), 4, "of the file, and of the numbers that are none");
}

#[test]
fn threads_open_duplicate_and_close_at_the_same_time() {
    static TABLE: Table<Counted> = Table::new();
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    const THREADS: usize = 4;
    const ROUNDS: usize = 2000;
    start();
    let begin = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let begin = begin.clone();
            std::thread::spawn(move || {
                begin.wait();
                for n in 0..ROUNDS {
                    let fd = socket().into_raw_fd();
                    add(&TABLE, fd, &DROPS);
                    let other = duplicate(fd);
                    drop(TABLE.duplicate(fd, other));
                    // Look up other threads' numbers while they are opened and closed.
                    (0..64).for_each(|fd| drop(TABLE.get(fd)));
                    for fd in [fd, other] {
                        assert!(TABLE.get(fd).is_some(), "in round {n}");
                        drop(TABLE.forget(fd));
                        close(fd);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(DROPS.load(SeqCst) == THREADS * ROUNDS && !TABLE.any());
}

/// Runs `work` in a child as of fork(2), or of vfork(2) if `borrows_memory`; returns its exit code.
fn in_child(borrows_memory: bool, work: impl FnOnce() -> bool) -> i32 {
    let flags = if borrows_memory { libc::CLONE_VM | libc::CLONE_VFORK } else { 0 };
    extern "C" fn run<F: FnOnce() -> bool>(work: *mut libc::c_void) -> c_int {
        // SAFETY: the parent waits for the child, and the value is only taken once.
        c_int::from(!unsafe { (*work.cast::<Option<F>>()).take() }.is_some_and(|work| work()))
    }
    fn pointer<F: FnOnce() -> bool>(_: &Option<F>) -> extern "C" fn(*mut libc::c_void) -> c_int {
        run::<F>
    }
    let mut work = Some(work);
    let mut stack = vec![0u128; 16 << 10];
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the child uses a stack and a closure that the parent keeps until the child ends.
    let child = unsafe { libc::clone(pointer(&work), top, flags | libc::SIGCHLD, (&raw mut work).cast()) };
    let mut status = 0;
    // SAFETY: `status` has room for the result.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_owns_its_memory_unless_it_borrows_it() {
    static TABLE: Table<Counted> = Table::new();
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    start();
    let fd = socket().into_raw_fd();
    add(&TABLE, fd, &DROPS);
    let parent = std::process::id();
    assert!(owns_memory() && owner() == parent);
    // A child that borrows memory does not change its parent's table.
    let borrows = || !owns_memory() && owner() == parent && TABLE.forget(fd).is_none();
    assert_eq!(in_child(true, borrows), 0);
    assert!(TABLE.get(fd).is_some());
    // A child of fork(2) has a copy of the table.
    let owns = || owner() == std::process::id() && owns_memory() && TABLE.forget(fd).is_some() && !TABLE.any();
    assert_eq!(in_child(false, owns), 0);
    assert!(TABLE.get(fd).is_some() && DROPS.load(SeqCst) == 0);
    drop(TABLE.forget(fd));
    close(fd);
}
