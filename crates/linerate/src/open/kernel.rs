//! Opening ports on the kernel's interfaces.

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::kernel::{Copying, Interface, PacketPort, Steer, Tap, Xdp, XdpOptions, open_stack};
use crate::port::{Config, Device, Kind, PortName};

pub(super) fn open(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    match name.kind() {
        Kind::Packet => {
            let interface = Interface::open(name.rest())?;
            interface.check_ethernet()?;
            Ok(Box::new(PacketPort::open(interface, flow(name)?, config)?))
        }
        // The kernel chooses a name.
        Kind::Host if name.rest().is_empty() => Ok(Box::new(Tap::open("linerate%d", config)?)),
        Kind::Host | Kind::Tap => Ok(Box::new(Tap::open(name.rest(), config)?)),
        Kind::Stack => Ok(Box::new(open_stack(&Interface::open(name.rest().trim_end_matches('^'))?, config)?)),
        _ => open_xdp(name, config),
    }
}

/// Returns the filter of `?flow=`.
fn flow(name: &PortName) -> Result<Option<Filter>> {
    name.option("flow").map(str::parse).transpose()
}

fn open_xdp(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let (interface, queue) = Interface::open_queue(name.rest())?;
    interface.check_ethernet()?;
    let copying = match name.option("copy") {
        None => Copying::Auto,
        Some("on") => Copying::Copy,
        Some("off") => Copying::Never,
        Some(_) => return Err(name.bad_option("copy", "it must be on or off")),
    };
    let busy = name.switch("busy", false)?;
    let steer = match name.option("steer") {
        None | Some("auto") => Steer::Auto,
        Some("on") => Steer::Always,
        Some("off") => Steer::Never,
        Some(_) => return Err(name.bad_option("steer", "it must be auto, on or off")),
    };
    let alone = name.switch("alone", false)?;
    let options = XdpOptions { queue, flow: flow(name)?, copying, busy, steer, alone };
    let interface_name = interface.name().to_string();
    match Xdp::open(interface, &options, config.clone()) {
        // Packet sockets receive the same packets, only slower; a program that asked for more gets the error.
        Err(Error::NoXdp { why, .. }) if queue.is_none() && copying != Copying::Never && !busy => {
            let description = format!("without AF_XDP ({why}): each packet is copied, and Linux receives it, too");
            let config = Config { description, ..config };
            Ok(Box::new(PacketPort::open(Interface::open(&interface_name)?, options.flow, config)?))
        }
        opened => Ok(Box::new(opened?)),
    }
}
