//! What the rings between two sides have in common: where a side is, and what the other one may not do.

use std::fmt;

/// One side's place in a ring: its own index, and the other side's as it was read last. Indices count for ever, modulo 2^16 or
/// 2^32; an entry is found by the index modulo the ring's length.
///
/// The other side's index is read again only where the known one does not suffice, so that its cache line normally moves once a
/// batch.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<I> {
    own: I,
    other: I,
}

/// An index that counts for ever.
pub trait Index: Copy + Ord {
    /// Returns the index `count` behind it.
    fn plus(self, count: Self) -> Self;
    /// Returns how far it is behind an earlier one.
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
    /// Begins at the side's own index, and the other side's.
    pub fn new(own: I, other: I) -> Cursor<I> {
        Cursor { own, other }
    }

    /// Returns the side's own index.
    #[inline(always)]
    pub fn own(&self) -> I {
        self.own
    }

    /// Returns the other side's index, as it was read last.
    #[inline(always)]
    pub fn other(&self) -> I {
        self.other
    }

    /// Moves the side's own index; returns it.
    #[inline(always)]
    pub fn advance(&mut self, count: I) -> I {
        self.own = self.own.plus(count);
        self.own
    }

    /// As the side that takes entries out: returns how many there are. Reads the other side's index.
    #[inline(always)]
    pub fn look(&mut self, read: impl FnOnce() -> I) -> I {
        self.other = read();
        self.other.minus(self.own)
    }

    /// The same. Reads the other side's index only if none is known.
    #[inline(always)]
    pub fn available(&mut self, read: impl FnOnce() -> I) -> I {
        if self.other == self.own {
            return self.look(read);
        }
        self.other.minus(self.own)
    }

    /// As the side that puts entries into a ring of `len`: returns how many are free, more than `len` if the other side lies.
    /// Reads its index only if fewer than `wanted` are known to be.
    #[inline(always)]
    pub fn free(&mut self, len: I, wanted: I, read: impl FnOnce() -> I) -> I {
        let free = |cursor: &Cursor<I>| len.minus(cursor.own.minus(cursor.other));
        if free(self) < wanted {
            self.other = read();
        }
        free(self)
    }
}

/// A rule of a ring that the other side has broken, with what it has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A number is beyond its limit.
    Beyond {
        /// What it is the number of.
        what: &'static str,
        /// What the other side has written.
        is: u64,
        /// The limit.
        most: u64,
    },
    /// Bytes are outside the memory that it has shared.
    Outside {
        /// What is there.
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
    /// The other side has made a file of its memory shorter.
    pub const TAKEN_AWAY: Breach = Breach::Other("its memory was taken away");
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breach::Beyond { what, is, most } => write!(f, "{what} is {is}, and the most is {most}"),
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
        assert_eq!(consumer.look(|| 5), 4);
        let mut producer = Cursor::new(0u32, 0);
        assert_eq!(producer.free(8, 8, || unreachable!("all are free")), 8);
        producer.advance(6);
        assert_eq!(producer.free(8, 2, || unreachable!("two are known")), 2);
        assert_eq!(producer.free(8, 3, || 5), 7);
        assert!(producer.free(8, 8, || 100) > 8, "more than there can be");
    }
}
