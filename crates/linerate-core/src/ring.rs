//! Common parts of rings between two sides: positions, and violations of a ring's rules.

use std::fmt;

/// One side's position in a ring: its own index, and the other side's index as last read. Indices increase without
/// bound, modulo 2^16 or 2^32. The entry of an index is the index modulo the ring's length.
///
/// The other side's index is read again only when the cached value does not suffice. So its cache line usually moves
/// once per batch.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<I> {
    own: I,
    other: I,
}

/// A free-running index.
pub trait Index: Copy + Ord {
    /// Returns the index plus `count`.
    fn plus(self, count: Self) -> Self;
    /// Returns the distance from an earlier index.
    fn minus(self, earlier: Self) -> Self;
}

macro_rules! index {
    ($($index:ty),*) => { $(
        impl Index for $index {
            #[inline(always)]
            fn plus(self, count: Self) -> Self {
                self.wrapping_add(count)
            }
            #[inline(always)]
            fn minus(self, earlier: Self) -> Self {
                self.wrapping_sub(earlier)
            }
        }
    )* };
}
index!(u16, u32);

impl<I: Index> Cursor<I> {
    /// Creates a cursor with this side's index and the other side's index.
    pub fn new(own: I, other: I) -> Cursor<I> {
        Cursor { own, other }
    }

    /// Returns this side's index.
    #[inline(always)]
    pub fn own(&self) -> I {
        self.own
    }

    /// Returns the other side's index, as last read.
    #[inline(always)]
    pub fn other(&self) -> I {
        self.other
    }

    /// Advances this side's index by `count`, and returns it.
    #[inline(always)]
    pub fn advance(&mut self, count: I) -> I {
        self.own = self.own.plus(count);
        self.own
    }

    /// For the consumer: reads the other side's index, and returns the count of available entries.
    #[inline(always)]
    pub fn refresh_available(&mut self, read: impl FnOnce() -> I) -> I {
        self.other = read();
        self.other.minus(self.own)
    }

    /// As [`refresh_available`](Cursor::refresh_available), but reads the other side's index only if no entry is known
    /// to be available.
    #[inline(always)]
    pub fn available(&mut self, read: impl FnOnce() -> I) -> I {
        if self.other == self.own {
            return self.refresh_available(read);
        }
        self.other.minus(self.own)
    }

    /// For the producer of a ring of `len` entries: returns the count of free entries, which exceeds `len` if the other
    /// side's index is invalid. Reads that index only if fewer than `wanted` entries are known to be free.
    #[inline(always)]
    pub fn free(&mut self, len: I, wanted: I, read: impl FnOnce() -> I) -> I {
        let free = |cursor: &Cursor<I>| len.minus(cursor.own.minus(cursor.other));
        if free(self) < wanted {
            self.other = read();
        }
        free(self)
    }
}

/// A violation of a ring's rules by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A number exceeds its limit.
    Beyond {
        /// A description of the number.
        what: &'static str,
        /// The value that the other side has written.
        is: u64,
        /// The limit.
        most: u64,
    },
    /// Bytes are outside the memory that the other side has shared.
    Outside {
        /// A description of the bytes.
        what: &'static str,
        /// The address, or the offset in a region.
        at: u64,
        /// The count of bytes.
        len: u64,
    },
    /// Anything else.
    Other(&'static str),
}

impl Breach {
    /// The other side has truncated a file of its memory.
    pub const TRUNCATED: Breach = Breach::Other("its memory was truncated");
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breach::Beyond { what, is, most } => write!(f, "{what} is {is}; the maximum is {most}"),
            Breach::Outside { what, at, len } => write!(f, "{what}, {len} bytes at {at:#x}, is outside its memory"),
            Breach::Other(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_only_where_the_known_one_does_not_suffice() {
        let mut consumer = Cursor::new(u16::MAX, u16::MAX);
        assert_eq!(consumer.available(|| 2), 3);
        assert_eq!(consumer.advance(2), 1);
        assert_eq!(consumer.available(|| unreachable!("one is known")), 1);
        assert_eq!(consumer.refresh_available(|| 5), 4);
        let mut producer = Cursor::new(0u32, 0);
        assert_eq!(producer.free(8, 8, || unreachable!("all are free")), 8);
        producer.advance(6);
        assert_eq!(producer.free(8, 2, || unreachable!("two are known")), 2);
        assert_eq!(producer.free(8, 3, || 5), 7);
        assert!(producer.free(8, 8, || 100) > 8, "more than there can be");
    }
}
