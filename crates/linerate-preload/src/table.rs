//! A table of the program's descriptor numbers that a preloaded library handles.
//!
//! A program may close a number without the library's functions, and the number may then refer to another file. So each
//! use compares the number's socket with the table's, by its cookie (`SO_COOKIE`), which is unique.
//!
//! The table has no lock, so that close(2) and dup2(2) remain async-signal-safe, and safe in the children of programs
//! with threads. Each slot of the table is one word, a pointer to an entry. Entries are reused but never freed, so
//! that a thread can access an entry while another thread closes it. The uses of an entry are counted.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::{cookie_of, owns_memory};

/// A preloaded library's record of one socket: free, or in use. Several numbers may refer to it.
struct Entry<T> {
    /// The entry that was allocated before this one.
    next: AtomicPtr<Entry<T>>,
    /// How many numbers refer to the entry, plus how many calls are using it. 0 if it is free.
    uses: AtomicU32,
    cookie: AtomicU64,
    word: AtomicU32,
    /// Initialized while there are uses.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: only a thread with exclusive access to the entry writes or drops the value; otherwise the value is only
// shared.
unsafe impl<T: Send + Sync> Sync for Entry<T> {}

/// A value of `uses`: one thread has exclusive access, to create or end the entry.
const EXCLUSIVE: u32 = u32::MAX;

/// A use of an entry, through one of its numbers. Dropping the last use drops the value.
pub struct EntryRef<T: 'static> {
    entry: &'static Entry<T>,
    /// The number.
    pub fd: c_int,
}

impl<T> Entry<T> {
    /// Adds a use, unless the entry is free.
    fn hold(&'static self, fd: c_int) -> Option<EntryRef<T>> {
        let one_more = |uses| if uses == 0 || uses >= EXCLUSIVE - 1 { None } else { Some(uses + 1) };
        self.uses.fetch_update(AcqRel, Acquire, one_more).ok().map(|_| EntryRef { entry: self, fd })
    }
}

impl<T> EntryRef<T> {
    /// Returns the socket's cookie; 0 if the file is not a socket.
    pub fn cookie(&self) -> u64 {
        self.entry.cookie.load(Relaxed)
    }

    /// Sets the cookie of the entry's new socket. The caller replaces the socket of its numbers.
    pub fn set_cookie(&self, cookie: u64) {
        self.entry.cookie.store(cookie, Relaxed);
    }

    /// Sets the entry's word, which must not be 0 ([`Table::word`]).
    pub fn set_word(&self, word: u32) {
        debug_assert_ne!(word, 0);
        self.entry.word.store(word, Release);
    }
}

impl<T> Deref for EntryRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this use keeps the value initialized, and it is only shared while there are uses.
        unsafe { (*self.entry.value.get()).assume_init_ref() }
    }
}

impl<T> Drop for EntryRef<T> {
    fn drop(&mut self) {
        let one_less = |uses| if uses == 1 { Some(EXCLUSIVE) } else { Some(uses - 1) };
        if self.entry.uses.fetch_update(AcqRel, Acquire, one_less) == Ok(1) {
            self.entry.cookie.store(0, Relaxed);
            // SAFETY: this thread has exclusive access: there is no other use, and none can be added.
            unsafe { (*self.entry.value.get()).assume_init_drop() };
            self.entry.uses.store(0, Release);
        }
    }
}

/// Numbers per page of a table, and number of pages: 1,048,576 numbers, the default maximum of a process on Linux.
const PAGE: usize = 1024;

type Slot<T> = AtomicPtr<Entry<T>>;

/// The descriptor numbers that a preloaded library handles. Tables are statics.
///
/// A value is dropped with the last number of its socket, in any process. After fork(2), the value's type decides which
/// resources a child must leave to its parent.
pub struct Table<T: 'static> {
    pages: [AtomicPtr<[Slot<T>; PAGE]>; PAGE],
    /// All entries, the newest first.
    all: AtomicPtr<Entry<T>>,
    /// The count of numbers in the table.
    count: AtomicUsize,
}

impl<T: Send + Sync> Table<T> {
    /// Creates an empty table.
    pub const fn new() -> Table<T> {
        Table {
            pages: [const { AtomicPtr::new(null_mut()) }; PAGE],
            all: AtomicPtr::new(null_mut()),
            count: AtomicUsize::new(0),
        }
    }

    /// Returns whether the table has any numbers. If not, no call concerns this library.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    fn page(&self, number: usize) -> Option<&'static [Slot<T>; PAGE]> {
        // SAFETY: null, or a pointer to a page, which is never freed.
        unsafe { self.pages.get(number)?.load(Acquire).as_ref() }
    }

    fn slot(&self, fd: c_int) -> Option<&'static Slot<T>> {
        let fd = usize::try_from(fd).ok()?;
        self.page(fd / PAGE)?.get(fd % PAGE)
    }

    /// As [`slot`](Table::slot); allocates the page of the table if it is missing.
    fn slot_or_alloc(&self, fd: c_int) -> Option<&'static Slot<T>> {
        let pointer = self.pages.get(usize::try_from(fd).ok()? / PAGE)?;
        if pointer.load(Acquire).is_null() {
            let page = Box::into_raw(Box::new([const { AtomicPtr::new(null_mut()) }; PAGE]));
            if pointer.compare_exchange(null_mut(), page, AcqRel, Acquire).is_err() {
                // SAFETY: the page was made from a box above, and was not stored: another thread has stored its page.
                drop(unsafe { Box::from_raw(page) });
            }
        }
        self.slot(fd)
    }

    /// Returns the word of a number's entry without a system call; 0 if there is no entry. The entry may be out of
    /// date.
    #[inline]
    pub fn word(&self, fd: c_int) -> u32 {
        // SAFETY: null, or an entry, which is never freed.
        let entry = self.slot(fd).and_then(|slot| unsafe { slot.load(Acquire).as_ref() });
        entry.map_or(0, |entry| entry.word.load(Acquire))
    }

    /// Claims a free entry for a new value, or allocates one. The entry has one use.
    fn hold(&self, fd: c_int, cookie: u64, word: u32, value: T) -> EntryRef<T> {
        // SAFETY: null, or an entry, which is never freed.
        let mut free = unsafe { self.all.load(Acquire).as_ref() };
        while let Some(entry) = free {
            if entry.uses.compare_exchange(0, EXCLUSIVE, Acquire, Relaxed).is_ok() {
                break;
            }
            // SAFETY: as above.
            free = unsafe { entry.next.load(Acquire).as_ref() };
        }
        let entry: &'static Entry<T> = free.unwrap_or_else(|| {
            let entry: &'static Entry<T> = Box::leak(Box::new(Entry {
                next: AtomicPtr::new(null_mut()),
                uses: AtomicU32::new(EXCLUSIVE),
                cookie: AtomicU64::new(0),
                word: AtomicU32::new(0),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            }));
            let itself = std::ptr::from_ref(entry).cast_mut();
            let push = |newest| {
                entry.next.store(newest, Relaxed);
                Some(itself)
            };
            let _ = self.all.fetch_update(AcqRel, Acquire, push);
            entry
        });
        entry.cookie.store(cookie, Relaxed);
        // SAFETY: this thread has exclusive access to the entry.
        unsafe { (*entry.value.get()).write(value) };
        let held = EntryRef { entry, fd };
        held.set_word(word);
        entry.uses.store(1, Release);
        held
    }

    /// Returns the entry of a number; `None` if it has none. Keeps errno(3).
    pub fn get(&self, fd: c_int) -> Option<EntryRef<T>> {
        if !self.any() {
            return None;
        }
        let slot = self.slot(fd)?;
        let found = slot.load(Acquire);
        // SAFETY: null, or an entry, which is never freed.
        let held = unsafe { found.as_ref() }?.hold(fd)?;
        if cookie_of(fd).unwrap_or(0) == held.cookie() {
            return Some(held);
        }
        // The number was closed without the library's functions.
        if owns_memory() && slot.compare_exchange(found, null_mut(), AcqRel, Relaxed).is_ok() {
            self.count.fetch_sub(1, Relaxed);
            drop(EntryRef { entry: held.entry, fd });
        }
        None
    }

    /// Takes over the use of an entry that a slot of the table had.
    fn take_over_use(&self, before: *mut Entry<T>, fd: c_int) -> Option<EntryRef<T>> {
        // SAFETY: null, or an entry, which is never freed.
        let entry = unsafe { before.as_ref() }?;
        self.count.fetch_sub(1, Relaxed);
        Some(EntryRef { entry, fd })
    }

    /// Removes a number that is about to be closed, without a system call. If this was the last use, dropping the
    /// result drops the value.
    pub fn forget(&self, fd: c_int) -> Option<EntryRef<T>> {
        let slot = self.slot(fd)?;
        if slot.load(Relaxed).is_null() || !owns_memory() {
            return None;
        }
        self.take_over_use(slot.swap(null_mut(), AcqRel), fd)
    }

    /// Sets the entry of a number; returns the use of its previous entry.
    fn set(&self, fd: c_int, held: EntryRef<T>) -> Option<EntryRef<T>> {
        let slot = self.slot_or_alloc(fd)?;
        self.count.fetch_add(1, Relaxed);
        let before = slot.swap(std::ptr::from_ref(held.entry).cast_mut(), AcqRel);
        // The table now owns the use.
        std::mem::forget(held);
        self.take_over_use(before, fd)
    }

    /// Adds a number that was just opened, with its socket's cookie, or 0 if it is not a socket. `word` must not be 0.
    /// Returns false if the number is too large, or the process borrows its memory.
    pub fn insert(&self, fd: c_int, cookie: u64, word: u32, value: T) -> bool {
        if !owns_memory() || self.slot_or_alloc(fd).is_none() {
            return false;
        }
        drop(self.set(fd, self.hold(fd, cookie, word, value)));
        true
    }

    /// As [`insert`](Table::insert), for a number that another process has opened, or this process before exec. If
    /// another thread has added the number meanwhile, it stays unchanged. Returns the number's entry.
    pub fn adopt(&self, fd: c_int, cookie: u64, word: u32, value: T) -> Option<EntryRef<T>> {
        if !owns_memory() {
            return None;
        }
        let slot = self.slot_or_alloc(fd)?;
        let held = self.hold(fd, cookie, word, value);
        let adopted = std::ptr::from_ref(held.entry).cast_mut();
        if slot.compare_exchange(null_mut(), adopted, AcqRel, Relaxed).is_ok() {
            self.count.fetch_add(1, Relaxed);
            // The table now owns the use.
            std::mem::forget(held);
        }
        self.get(fd)
    }

    /// Records that `to` is now a duplicate of `from`. Returns the previous entry of `to`.
    pub fn duplicate(&self, from: c_int, to: c_int) -> Option<EntryRef<T>> {
        if !self.any() || to < 0 || from == to || !owns_memory() {
            return None;
        }
        match self.get(from).filter(|held| cookie_of(to).unwrap_or(0) == held.cookie()) {
            Some(held) => self.set(to, held),
            None => self.forget(to),
        }
    }

    /// Iterates over the numbers in the table, and their slots.
    fn filled(&self) -> impl Iterator<Item = (c_int, &'static Slot<T>)> {
        let pages = (0..PAGE).filter_map(|number| Some((number * PAGE, self.page(number)?)));
        let slots = pages.flat_map(|(at, page)| (at as c_int..).zip(page));
        slots.filter(|(_, slot)| !slot.load(Relaxed).is_null())
    }

    /// Returns the numbers that refer to an entry. The list may be out of date.
    pub fn numbers(&self, held: &EntryRef<T>) -> Vec<c_int> {
        let is_same = |slot: &Slot<T>| std::ptr::eq(slot.load(Relaxed), held.entry);
        self.filled().filter(|(_, slot)| is_same(slot)).map(|(fd, _)| fd).collect()
    }

    /// Removes all numbers that were closed without the library's functions.
    pub fn sweep(&self) {
        if self.any() {
            self.filled().for_each(|(fd, _)| drop(self.get(fd)));
        }
    }
}

impl<T: Send + Sync> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}
