//! `vfio-user:PATH`: a card that another process serves.
#![allow(unsafe_code)]

use super::card::DRIVER;
use crate::error::Result;
use crate::nic;
use crate::port::{Address, Behind, Config, Description, Device, Maturity, Opening, PortKind};
use crate::vfio_user::VfioUser;

/// `vfio-user:PATH`
pub static VFIO_USER: PortKind = PortKind {
    about: Description {
        options: DRIVER,
        feature: "vfio-user",
        example: "vfio-user:/tmp/a",
        what: "a card that another process serves, as linerate sim does",
        page: "model.md",
        no_link: "is the wire of the served card plugged in?",
        maturity: Maturity::Others,
        behind: Behind::ServedCard,
        ..Description::new("vfio-user", Address::Socket)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let (name, config) = (opening.name, opening.config);
    let device = VfioUser::connect(name.rest())?;
    let (vendor, number) = device.identity()?;
    let (what, driver) = nic::known(name.short(), vendor, number)?;
    let config = Config { description: format!("{what} (vfio-user)"), device: number, ..config };
    // SAFETY: `device` goes to this driver alone, and its server has one client at a time.
    unsafe { nic::drive_served(driver, device, config) }
}
