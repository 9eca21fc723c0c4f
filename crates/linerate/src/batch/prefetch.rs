//! Prefetching packets that are about to be read.

use super::Batch;

impl Batch {
    /// Prefetches the first cache line of each slot's data. It pays between receiving and reading, for a program with
    /// other work to do meanwhile, or that reads packets in no order. A loop over all packets does not need it.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:prefetch?count=32"])?;
    /// # let mut rx = port.rx(0)?;
    /// # let mut batch = linerate::Batch::new();
    /// rx.recv(&mut batch);
    /// batch.prefetch();
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn prefetch(&self) {
        if let Some((slots, pool)) = self.contents() {
            let view = pool.region().view();
            slots.iter().for_each(|slot| view.prefetch(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PageSize, Pages, Pool, Region, RegionOptions};

    #[test]
    fn changes_nothing() {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        let mut batch = Batch::new();
        batch.prefetch();
        assert!(batch.push(&pool, &[7; 60]));
        batch.prefetch();
        assert!((&mut batch).into_iter().all(|packet| *packet == [7; 60]));
    }
}
