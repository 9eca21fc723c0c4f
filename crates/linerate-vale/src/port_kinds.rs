//! In-memory ports, and interfaces under netmap's names, in this process or served by another process.

use linerate_core::error::{ErrorKind, Remedy, Result};
use linerate_core::port::{
    Address, Description, Device, Form, MTU, Maturity, OFFLOADS, Opening, PortClass, PortKind, QUEUES, RING, TIMESTAMPS,
};
use linerate_kernel::XDP;

use crate::netmap::open_cluster;
use crate::netmap::{Monitor, Pipe, Side, ValePort, cluster_of};
use crate::share::{self, ClusterRequest, OpenRequest, RingCounts, ServedPort};

/// `X{N` and `X}N`
pub static PIPE: PortKind = PortKind {
    description: Description {
        form: Form::PIPE,
        options: &[QUEUES, RING, MTU, OFFLOADS],
        feature: "netmap",
        example: "X{1",
        summary: "an end of a pipe; X}1 is the other",
        page: "netmap.md",
        no_link: "is the pipe's other end open?",
        class: PortClass::Memory,
        may_be_served: true,
        ..Description::new("pipe", Address::Checked(check_pipe))
    },
    open: &open_pipe,
};

fn check_pipe(name: &str) -> std::result::Result<(), &'static str> {
    let is_number = |id: &str| !id.is_empty() && id.len() <= 5 && id.bytes().all(|c| c.is_ascii_digit());
    match name.split_once(['{', '}']).is_some_and(|(parent, id)| !parent.is_empty() && is_number(id)) {
        true => Ok(()),
        false => Err("an end of a pipe is called X{N or X}N, where N is a number"),
    }
}

fn open_pipe(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name.short();
    // The ends of a pipe exchange packets directly, so no server can record times.
    let untimed = OpenRequest { timestamps: false, ..request(&opening, name) };
    if let Some(port) = find_served(&opening, untimed)? {
        return Ok(port);
    }
    let side = if name.contains('{') { Side::Master } else { Side::Slave };
    Ok(Box::new(Pipe::open(&name.replace('}', "{"), side, opening.config)?))
}

/// `valeS:P`
pub static VALE: PortKind = PortKind {
    description: Description {
        form: Form::VALE,
        options: DELIVERED,
        example: "vale0:a",
        summary: "a port of a switch (netmap's VALE)",
        address: Address::Text,
        maturity: Maturity::Others,
        distributes: true,
        prefix: "vale",
        ..PIPE.description
    },
    open: &open_vale,
};

fn open_vale(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    // A switch drops packets while the receiver does not run, so the default ring is longer.
    let is_usual = opening.config.options.ring.is_none();
    let rings = RingCounts { rx_slots: if is_usual { RECEIVED } else { 0 }, ..RingCounts::default() };
    let wanted = OpenRequest { rings, cluster: cluster(&opening)?, ..request(&opening, name.short()) };
    if let Some(port) = find_served(&opening, wanted)? {
        return Ok(port);
    }
    if let Some(port) = open_cluster(&opening)? {
        return Ok(port);
    }
    let switch = name.short().split(':').next().unwrap_or_default();
    Ok(Box::new(ValePort::open(switch, name.rest(), opening.config)?))
}

/// `netmap:IF` and `netmap:IF-Q`
pub static NETMAP: PortKind = PortKind {
    description: Description {
        example: "netmap:eth0",
        summary: "an interface under netmap's name",
        page: "netmap.md",
        form: Form::NETMAP,
        address: Address::Checked(check_interface),
        prefix: "netmap",
        feature: "netmap",
        may_be_served: true,
        distributes: true,
        ..XDP.description
    },
    open: &open_netmap,
};

fn check_interface(name: &str) -> std::result::Result<(), &'static str> {
    let name = name.trim_start_matches("netmap:");
    if name.ends_with('*') {
        return Err("that is two ports: netmap:IF, and netmap:IF^ for the host's stack");
    }
    match name.is_empty() || name.contains('/') || name.contains(char::is_whitespace) {
        true => Err("it needs the name of an interface, as netmap:eth0"),
        false => Ok(()),
    }
}

fn open_netmap(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let wanted = OpenRequest { cluster: cluster(&opening)?, ..request(&opening, opening.name.rest()) };
    if let Some(port) = find_served(&opening, wanted)? {
        return Ok(port);
    }
    match open_cluster(&opening)? {
        Some(port) => Ok(port),
        None => (XDP.open)(opening),
    }
}

/// `X+r`, `X+t` and `X+rt`
pub static MONITOR: PortKind = PortKind {
    description: Description {
        form: Form::Monitor,
        options: DELIVERED,
        example: "vale0:a+rt",
        summary: "a monitor: copies of what another port receives and sends",
        address: Address::Text,
        may_be_served: false,
        prefix: "monitor",
        ..PIPE.description
    },
    open: &open_monitor,
};

fn open_monitor(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    let (receive, transmit) =
        name.monitored().map_or((true, true), |monitored| (monitored.receive, monitored.transmit));
    if name.monitors_served() {
        let port = name.rest().trim_start_matches("netmap:");
        let wanted = OpenRequest { monitor_rx: receive, monitor_tx: transmit, ..request(&opening, port) };
        if let Some(port) = find_served(&opening, wanted)? {
            return Ok(port);
        }
    }
    match Monitor::open(name.rest(), receive, transmit, opening.config) {
        Err(error) if error.kind() == ErrorKind::NotServed && !name.monitors_served() => {
            Err(error.with_remedy(Remedy::Step("open it in this process first".into())))
        }
        monitor => Ok(Box::new(monitor?)),
    }
}

/// The options of ports to which senders deliver packets.
const DELIVERED: &[linerate_core::port::PortOption] = &[QUEUES, RING, MTU, OFFLOADS, TIMESTAMPS];

/// The default length of a receive ring at another process's switch, which drops packets that do not fit. The scheduler
/// may suspend a receiver for two ticks, 8 ms at 250 Hz: at 1 Mpps that is 8,000 packets.
const RECEIVED: u32 = 8192;

/// Returns a request for a server's port of this name.
fn request(opening: &Opening<'_>, name: &str) -> OpenRequest {
    let timestamps = opening.config.options.timestamps;
    OpenRequest { name: name.to_string(), timestamps, ..OpenRequest::default() }
}

fn cluster(opening: &Opening<'_>) -> Result<Option<ClusterRequest>> {
    Ok(cluster_of(opening.name)?.map(|(shares, by)| ClusterRequest { shares, by: by.name().to_string() }))
}

/// Opens a port if another process serves it.
fn find_served(opening: &Opening<'_>, wanted: OpenRequest) -> Result<Option<Box<dyn Device>>> {
    if opening.config.options.local {
        return Ok(None);
    }
    let port = ServedPort::find(&share::folder(), wanted, opening.config.clone())?;
    Ok(port.map(|port| Box::new(port) as Box<dyn Device>))
}
