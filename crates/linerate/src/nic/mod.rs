//! Drivers for network cards, generic over how the registers are reached
//! ([`Bar`](crate::pci::Bar)). They know memory, ports and PCI; nothing in them knows whether a
//! card is real or the [model](crate::model). Read [`ixgbe`] next.

pub mod ixgbe;
