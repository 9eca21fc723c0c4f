//! The queues that a program gets: which kind of receive queue the options ask for, and how addresses are found.

use std::sync::Arc;

use linerate_core::error::Result;
use linerate_core::memory::{Addresses, Locate};
use linerate_core::port::{Described, Receive, Rx, Transmit, Tx};

use super::Controller;
use super::coalesced::CoalescedRx;
use super::hardware::Hardware;
use super::queue::{IntelRx, IntelTx};
use crate::pci::Bar;

/// Starts a receive queue.
pub(super) fn rx<B: Bar, C: Controller>(hardware: &Arc<Hardware<B, C>>, queue: u16) -> Result<Box<dyn Receive>> {
    match hardware.packets() {
        Addresses::Contiguous(range) => start(hardware, queue, range.clone()),
        Addresses::Paged(pages) => start(hardware, queue, pages.clone()),
    }
}

fn start<B: Bar, C: Controller, L: Locate>(
    hardware: &Arc<Hardware<B, C>>,
    queue: u16,
    addresses: L,
) -> Result<Box<dyn Receive>> {
    let rx = IntelRx::start(hardware, queue, addresses)?;
    if hardware.is_coalescing() {
        return Ok(Box::new(Rx::new(CoalescedRx::new(rx))));
    }
    Ok(match hardware.config.options.metadata {
        false => Box::new(Rx::new(rx)),
        true => Box::new(Rx::new(Described(rx))),
    })
}

/// Starts a transmit queue.
pub(super) fn tx<B: Bar, C: Controller>(hardware: &Arc<Hardware<B, C>>, queue: u16) -> Result<Box<dyn Transmit>> {
    Ok(match hardware.packets() {
        Addresses::Contiguous(range) => Box::new(Tx::new(IntelTx::start(hardware, queue, range.clone())?)),
        Addresses::Paged(pages) => Box::new(Tx::new(IntelTx::start(hardware, queue, pages.clone())?)),
    })
}
