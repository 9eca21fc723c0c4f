//! The links of a run's ports: the wait for them before it begins, and changes while it runs.

use std::path::Path;
use std::time::{Duration, Instant};

use linerate::Error;
use linerate::port::{Address, Link, Port, PortName};

use super::{Moment, Observer, Run};
use crate::line_rate::{is_up, model};
use crate::signals::interrupts;
use crate::terminal::note;

/// The longest time to wait for links; 1 and 10 Gbit/s on copper need some seconds.
const LONGEST: Duration = Duration::from_secs(10);
/// How often a link is polled during the wait. It is short because a peer's TCP repeats its first segment after 200 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Whether each port has a link, and whether it ever had one.
pub struct Links(Vec<(bool, bool)>);

impl Links {
    /// Waits for the links of cards, which negotiate after each reset, and prints the opened ports. Calls `serve` while
    /// it waits.
    pub fn wait(run: &Run, mut serve: impl FnMut() -> Result<(), Error>) -> Result<Links, Error> {
        let start = Instant::now();
        let mut links = Vec::new();
        for (device, name) in run.ports.devices.iter().zip(&run.ports.names) {
            if model(device).is_some() {
                links.push(is_up(device));
                note_model(device, name);
                continue;
            }
            let mut link = device.link()?;
            if !run.mode.awaits_link_of(device.info().class) {
                links.push(link != Link::Down);
                continue;
            }
            if link == Link::Down {
                let (name, look_at) = (device.name().trim_end_matches(':'), look_at(device, name));
                note(&format!("{name}: waiting for the link, at most {} s; {look_at}", LONGEST.as_secs()));
            }
            while link == Link::Down && start.elapsed() < LONGEST && !interrupts().wait(POLL_INTERVAL) {
                serve()?;
                link = device.link()?;
            }
            links.push(link != Link::Down);
            if !run.mode.is_measurement() || link == Link::Down {
                note_port(device, link, start.elapsed());
            }
        }
        Ok(Links(links.into_iter().map(|is_up| (is_up, is_up)).collect()))
    }
}

impl Observer for Links {
    fn see(&mut self, run: &Run, moment: &Moment) {
        // Once the count is moved, the peer may end.
        let is_counted = run.clock.is_counted(moment.moved.packets);
        for (device, (was_up, was_ever_up)) in run.ports.devices.iter().zip(&mut self.0) {
            let is_up = is_up(device);
            if is_up != std::mem::replace(was_up, is_up) && !is_counted {
                let how = match is_up {
                    true if *was_ever_up => "is up again",
                    true => "is up",
                    false => "is down; no traffic on this port",
                };
                *was_ever_up |= is_up;
                note(&format!("note: {}: the link {how}", device.name()));
                run.ports.was_down.set(true);
            }
        }
    }
}

/// Prints a note for a model without a link.
fn note_model(device: &Port, name: &PortName) {
    match name.option("wire") {
        Some("none") => note(&format!("note: {}: no link, because of wire=none", device.name())),
        Some(wire) if !is_up(device) => {
            note(&format!("note: {}: no link: is {wire}, the port behind its wire, up?", device.name()));
        }
        _ => {}
    }
}

/// Returns what may keep a link down.
fn look_at(device: &Port, name: &PortName) -> String {
    match name.interface() {
        // This file cannot be read while the interface is down.
        Some(interface) if std::fs::read(format!("/sys/class/net/{interface}/carrier")).is_ok() => {
            format!("{interface} is up and has no carrier: is its other end up?")
        }
        Some(interface) => format!("is the interface up? sudo ip link set dev {interface} up"),
        None if matches!(name.kind().address, Address::Socket) && !Path::new(name.address()).exists() => {
            format!("there is no socket {}: is its server running?", name.address())
        }
        None if std::ptr::eq(name.kind(), &linerate::vhost::KIND.description) => {
            format!("{} see: linerate vm {}", name.kind().no_link, device.name())
        }
        None => name.kind().no_link.to_string(),
    }
}

/// Prints a note on an opened port, with the state of its link after the wait.
fn note_port(device: &Port, link: Link, wait: Duration) {
    let link = match link {
        Link::Up { mbits: 0 } => "link up".to_string(),
        Link::Up { mbits } => format!("link up at {mbits} Mbit/s"),
        Link::Down => format!("no link after {} s", wait.as_secs()),
    };
    let name = device.name().trim_end_matches(':');
    let mac = Some(device.mac()).filter(|mac| mac.0 != [0; 6]).map_or(String::new(), |mac| format!(", {mac}"));
    note(&format!("{name}: {}{mac}, {link}", device.info().description));
}
