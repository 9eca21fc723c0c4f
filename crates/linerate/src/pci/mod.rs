//! Reaching a PCI device. So far: its registers, as a [`Bar`].
//!
//! Finding devices, uio, vfio and interrupts come with real cards. Drivers are generic over
//! [`Bar`] and see nothing else of this room; read [`Bar`], then [`crate::nic`].

mod bar;
mod sysfs;

pub use bar::{Bar, Doorbell, MappedBar, MappedDoorbell};
pub use sysfs::{NetworkCard, network_cards};
