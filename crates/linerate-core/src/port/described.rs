//! Rings that note what the card found out about each packet ([`Metadata`](crate::metadata::Metadata)).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::RegionRx;
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// A ring that can note its findings.
pub trait Describe: RegionRx {
    /// As [`recv`](RegionRx::recv), and notes the findings about the packets.
    fn recv_described(&mut self, batch: &mut Batch) -> usize;
}

/// A ring that notes its findings. A separate type, so that the loops of other rings have no branch for them.
pub struct Described<Q>(pub Q);

impl<Q: Describe> RegionRx for Described<Q> {
    fn pool(&self) -> &Arc<Pool> {
        self.0.pool()
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        self.0.recv_described(batch)
    }

    fn buffers(&self) -> usize {
        self.0.buffers()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn stop(&mut self) -> Result<()> {
        self.0.stop()
    }
}
