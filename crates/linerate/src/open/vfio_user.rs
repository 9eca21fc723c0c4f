//! Opening cards that another process serves.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::nic;
use crate::port::{Config, Device, PortName};
use crate::vfio_user::VfioUser;

pub(super) fn open(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let device = VfioUser::connect(name.rest())?;
    let (vendor, number) = device.identity()?;
    let (what, driver) = nic::known(name.short(), vendor, number)?;
    let config = Config { description: format!("{what} (vfio-user)"), device: number, ..config };
    // SAFETY: `device` goes to this driver alone, and its server has one client at a time.
    unsafe { nic::drive_served(driver, device, config) }
}
