//! Opening ports by name.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::capture::{CapturePort, Recorder};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::kernel::{Copying, Interface, PacketPort, Steer, Tap, Xdp, XdpOptions, open_stack};
use crate::memory::{Pool, Region, RegionOptions};
use crate::netmap::{Monitor, Null, Pipe, Side, ValePort};
use crate::nic::ixgbe::{Ixgbe, MAX_FRAME, MAX_QUEUES};
use crate::nic::{self, Config};
use crate::offload::LONGEST;
use crate::pci::vfio_user::VfioUser;
use crate::pci::{self, NetworkCard};
use crate::port::{
    DEFAULT_FRAME, Device, FRAME_HEADERS, Faults, Kind, Options, Port, PortName, Vectors, Wrapped, Wrapper,
};
use crate::share::{self, OpenRequest, RingCounts, ServedPort, Server};
use crate::sim82599::{self, Card, CardBar, Runner};

/// Opens ports by name, in the process's default region: they exchange packets without a copy.
///
/// See [`PortName`] for the names, [`Options`] to choose queues, rings and memory.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// let [a, b] = linerate::open(["sim:left?wire=none", "sim:right?wire=none"])?;
/// assert!(std::sync::Arc::ptr_eq(a.pool(), b.pool()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// What a name, an option, memory or a card can have wrong: see [`Error`].
pub fn open<const N: usize>(names: [&str; N]) -> Result<[Port; N]> {
    Options::default().open(names)
}

/// A server of ports for other processes, which are opened here under their names: `vale0:a`, or `eth0`, which is
/// `netmap:eth0`. It serves nothing before it [listens](Server::listen).
pub fn server() -> Server {
    let open = |name: &str, rings: &RingCounts| {
        let is_memory = name.starts_with("vale") || name.contains(['{', '}']);
        // A card, or any port of ours, as part of a switch.
        let is_whole = is_memory || name.contains(':');
        let there = if is_whole { 1 } else { queues_of(name) };
        // netmap takes all packets of an interface away from Linux; who asks for that name means it.
        let is_card = !name.contains(['^', '/']);
        let name = match (is_whole, is_card) {
            (true, _) => name.to_string(),
            (false, true) => format!("netmap:{name}?flow=all&alone=on"),
            (false, false) => format!("netmap:{name}"),
        };
        // Packets of several slots pass a switch as they are, and a pipe.
        let max_frame = if is_memory { LONGEST } else { DEFAULT_FRAME };
        // A thread that has nothing to do shall sleep.
        let interrupts = Some(Duration::ZERO);
        let ring = rings.rx_slots.max(64).next_power_of_two() as usize;
        // A pool for each: a program that does not take its packets leaves the others theirs. A card needs memory that it
        // can reach, and is for managers only.
        let pool = if is_memory || !is_whole { Some(served_pool(rings, ring, there)?) } else { None };
        let options = Options {
            rx_queues: rings.rx.max(1),
            tx_queues: rings.tx.max(1),
            ring: Some(ring),
            max_frame,
            interrupts,
            local: true,
            pool,
            ..Options::default()
        };
        let [device] = options.open([&*name])?;
        Ok(device)
    };
    Server::new(Box::new(open))
}

/// Default length of a receive ring at a switch of another process.
const RECEIVED: u32 = 4096;

/// Returns the number of queues that an interface has; 1 of what is none.
fn queues_of(name: &str) -> usize {
    Interface::open(name).map_or(1, |interface| interface.queues() as usize)
}

/// A pool for one served port: what its rings, and the queues of its interface, can hold, and as much again on its way.
fn served_pool(rings: &RingCounts, ring: usize, queues: usize) -> Result<Arc<Pool>> {
    let queues = usize::from(rings.rx).max(queues) + usize::from(rings.tx).max(queues);
    let buffers = (2 * queues * ring).max(4096);
    Ok(Pool::new(Region::lazy(&RegionOptions { buffers, ..RegionOptions::default() })?))
}

/// Buffers of a port at a model's outside: rings of 512 each way, and as many on their way.
const OUTSIDE: usize = 2048;
/// PCI's number of the vendor that the models are of.
const INTEL: u16 = 0x8086;

impl Options {
    /// Opens ports with these options.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open<const N: usize>(&self, names: [&str; N]) -> Result<[Port; N]> {
        let devices = self.open_all(&names)?;
        Ok(devices.try_into().unwrap_or_else(|_| unreachable!("one device a name")))
    }

    /// As [`open`](Options::open), for any number of names.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open_all(&self, names: &[&str]) -> Result<Vec<Port>> {
        let is_own = |kind: &str| self.kinds.get(kind).is_some();
        let names = names.iter().map(|name| PortName::parse_among(name, &is_own)).collect::<Result<Vec<_>>>()?;
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => default_pool()?,
        };
        let open = |name: &PortName| self.open_device(name, &pool).map(Port::of);
        let mut devices = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        // Linux has the first other port's address: what is for that is for Linux.
        let is_host = |at: &usize| names[*at].kind() == Kind::Host;
        if let Some(mac) = (0..names.len()).find(|at| !is_host(at)).map(|at| devices[at].mac()) {
            (0..names.len()).filter(is_host).try_for_each(|at| devices[at].set_mac(mac))?;
        }
        Ok(devices)
    }

    fn open_device(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Box<dyn Device>> {
        if let Some(device) = self.find(name, pool)? {
            return Ok(device);
        }
        match name.kind() {
            Kind::Pci => self.open_card(name, self.config(name, pool)?),
            Kind::VfioUser => open_served(name, self.config(name, pool)?),
            Kind::Packet => open_packet(name, self.config(name, pool)?),
            Kind::Host => open_host(name, self.config(name, pool)?),
            Kind::Tap => open_tap(name, self.config(name, pool)?),
            Kind::Xdp | Kind::Netmap => open_xdp(name, self.config(name, pool)?),
            Kind::Stack => {
                let interface = Interface::open(name.rest().trim_end_matches('^'))?;
                Ok(Box::new(open_stack(&interface, self.config(name, pool)?)?) as Box<dyn Device>)
            }
            Kind::Null => Ok(Box::new(Null::open(self.config(name, pool)?)?) as Box<dyn Device>),
            Kind::Monitor { receive, transmit } => {
                let config = self.config(name, pool)?;
                Ok(Box::new(Monitor::open(name.rest(), receive, transmit, config)?) as Box<dyn Device>)
            }
            Kind::Capture => Ok(Box::new(CapturePort::open(name, self.config(name, pool)?)?) as Box<dyn Device>),
            Kind::Pipe => open_pipe(name, self.config(name, pool)?),
            Kind::Vale => open_vale(name, self.config(name, pool)?),
            Kind::Own => self.open_own(name, self.config(name, pool)?),
            Kind::Faulty => self.wrap(name, pool, Faults::of(name)?),
            Kind::Recorded => self.wrap(name, pool, Recorder::of(name)?),
            Kind::Sim => self.open_model(name, self.config(name, pool)?),
        }
    }

    /// Opens a port around another, whose name has the options that are not the wrapper's.
    fn wrap<W: Wrapper + 'static>(&self, name: &PortName, pool: &Arc<Pool>, wrapper: W) -> Result<Box<dyn Device>> {
        let is_own = |kind: &str| self.kinds.get(kind).is_some();
        let inner = PortName::parse_among(&Wrapped::<W>::inner_name(name), &is_own)?;
        Ok(Box::new(Wrapped::new(name.short(), self.open_device(&inner, pool)?, wrapper)))
    }

    /// A port that another process serves, if one does.
    fn find(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Option<Box<dyn Device>>> {
        let (port, monitor_rx, monitor_tx) = match name.kind() {
            Kind::Pipe | Kind::Vale | Kind::Netmap => (name.short(), false, false),
            Kind::Monitor { receive, transmit } => (name.rest(), receive, transmit),
            _ => return Ok(None),
        };
        let is_served =
            PortName::parse(port).is_ok_and(|port| matches!(port.kind(), Kind::Pipe | Kind::Vale | Kind::Netmap));
        if self.local || !is_served {
            return Ok(None);
        }
        let theirs = port.trim_start_matches("netmap:").to_string();
        // A switch drops packets while a receiver has no processor, so its ring is longer.
        let config = self.config(name, pool)?;
        let is_usual = config.options.ring.is_none() && name.kind() == Kind::Vale;
        let rings = RingCounts { rx_slots: if is_usual { RECEIVED } else { 0 }, ..RingCounts::default() };
        let wanted = OpenRequest { name: theirs, monitor_rx, monitor_tx, rings, ..OpenRequest::default() };
        let port = ServedPort::find(&share::folder(), wanted, config)?;
        Ok(port.map(|port| Box::new(port) as Box<dyn Device>))
    }

    /// Returns the configuration of a port: these options, and those of its name.
    fn config(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Config> {
        let most = MAX_FRAME - FRAME_HEADERS;
        let mut options = self.clone();
        if name.option("queues").is_some() {
            options = options.with_queues(name.number("queues", 1, 1..=MAX_QUEUES.into())? as u16);
        }
        if name.option("ring").is_some() {
            options.ring = Some(name.number("ring", 0, 0..=usize::MAX)?);
        }
        if name.option("mtu").is_some() {
            options.max_frame = name.number("mtu", 0, 46..=most)? + FRAME_HEADERS;
        }
        if options.max_frame > LONGEST {
            let (option, value) = ("mtu".to_string(), (options.max_frame - FRAME_HEADERS).to_string());
            let why = format!("it must be a number from 46 to {most}");
            return Err(Error::BadOption { name: name.short().to_string(), option, value, why });
        }
        options.offloads = name.switch("offloads", self.offloads)?;
        options.timestamps = name.switch("timestamps", self.timestamps)?;
        options.vectors = self.vectors_of(name)?;
        Ok(options.of_port(name.short(), pool.clone()))
    }

    /// What a name's own option says, or these.
    fn vectors_of(&self, name: &PortName) -> Result<Vectors> {
        let vectors = match name.option("vectors") {
            None => return Ok(self.vectors),
            Some("best") => Vectors::Best,
            Some("scalar") => Vectors::Scalar,
            Some("avx2") => Vectors::Avx2,
            Some("avx512") => Vectors::Avx512,
            Some(_) => return Err(name.bad_option("vectors", "it must be best, scalar, avx2 or avx512")),
        };
        match vectors.is_there() {
            true => Ok(vectors),
            false => Err(name.bad_option("vectors", "this processor does not have them")),
        }
    }

    fn open_own(&self, name: &PortName, config: Config) -> Result<Box<dyn Device>> {
        let kind = name.short().split(':').next().and_then(|kind| self.kinds.get(kind));
        kind.expect("a name of this kind is parsed only where there is one")(name, config)
    }

    fn open_model(&self, name: &PortName, config: Config) -> Result<Box<dyn Device>> {
        Ixgbe::<CardBar>::check(&config)?;
        let (card, runner) = sim82599::open_named(name, &|wire| self.open_outside(wire))?;
        let what = nic::recognise(INTEL, card.kind().device()).map_or("", |(what, _)| what);
        let config = Config { description: format!("{what}, a model inside this process"), ..config };
        Ok(Box::new(drive_model(&card, Some(runner), config)?))
    }

    /// Opens a port for the outside of a model, with memory of its own, which no driver of the model can reach.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open_outside(&self, name: &str) -> Result<Port> {
        let pool = Pool::new(Region::lazy(&RegionOptions { buffers: OUTSIDE, ..RegionOptions::default() })?);
        let options = Options { pool: Some(pool), kinds: self.kinds.clone(), local: self.local, ..Options::default() };
        let [port] = options.open([name])?;
        Ok(port)
    }

    fn open_card(&self, name: &PortName, config: Config) -> Result<Box<dyn Device>> {
        let card = NetworkCard::find(name.short())?;
        let Some((what, driver)) = nic::recognise(card.vendor, card.device) else {
            return Err(nic::no_driver(&card.address, card.vendor, card.device));
        };
        let (device, through) = pci::open(&card, self.take)?;
        let config = Config { description: format!("{what} ({through})"), device: card.device, ..config };
        // SAFETY: `device` goes to this driver alone, and nobody else has the card: vfio opens a card once, uio's is locked.
        unsafe { nic::drive(driver, device, config) }
    }
}

fn open_served(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let device = VfioUser::connect(name.rest())?;
    let (vendor, number) = device.identity()?;
    let Some((what, driver)) = nic::recognise(vendor, number) else {
        return Err(nic::no_driver(name.short(), vendor, number));
    };
    let config = Config { description: format!("{what} (vfio-user)"), device: number, ..config };
    // SAFETY: `device` goes to this driver alone, and its server has one client at a time.
    unsafe { nic::drive_served(driver, device, config) }
}

fn open_tap(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    Ok(Box::new(Tap::open(name.rest(), config)?))
}

fn open_host(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let interface = if name.rest().is_empty() { "linerate%d" } else { name.rest() };
    Ok(Box::new(Tap::open(interface, config)?))
}

fn open_packet(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    Ok(Box::new(PacketPort::open(Interface::open(name.rest())?, flow(name)?, config)?))
}

/// Which packets a name asks for.
fn flow(name: &PortName) -> Result<Option<Filter>> {
    name.option("flow").map(str::parse).transpose()
}

fn open_xdp(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    // "eth0-2" is a queue of eth0, unless it is an interface.
    let (interface, queue) = match (Interface::open(name.rest()), name.rest().rsplit_once('-')) {
        (Err(error), Some((interface, queue))) => match queue.parse() {
            Ok(queue) => (Interface::open(interface)?, Some(queue)),
            Err(_) => return Err(error),
        },
        (interface, _) => (interface?, None),
    };
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
        // What comes in by packet sockets is the same, only slower; who asked for more than that is told.
        Err(Error::NoXdp { why, .. }) if queue.is_none() && copying != Copying::Never && !busy => {
            let description = format!("without AF_XDP ({why}): each packet is copied, and Linux receives it, too");
            let config = Config { description, ..config };
            Ok(Box::new(PacketPort::open(Interface::open(&interface_name)?, options.flow, config)?))
        }
        opened => Ok(Box::new(opened?)),
    }
}

fn open_pipe(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let side = if name.short().contains('{') { Side::Master } else { Side::Slave };
    Ok(Box::new(Pipe::open(&name.short().replace('}', "{"), side, config)?))
}

fn open_vale(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let switch = name.short().split(':').next().unwrap_or_default();
    Ok(Box::new(ValePort::open(switch, name.rest(), config)?))
}

/// Drives a model that the program has made, as the kind of card that it is; `runner` is kept at work as long as the port or
/// one of its queues is there.
///
/// # Errors
/// [`Error::PortInUse`] while another driver has the card, or it is served; all that [`Ixgbe::open`] answers.
pub fn drive_model(card: &Arc<Card>, runner: Option<Arc<Runner>>, config: Config) -> Result<Ixgbe<CardBar>> {
    let bar = card.claim(runner).ok_or_else(|| Error::PortInUse { name: config.name.clone() })?;
    Ixgbe::open(bar, card.bus(), Config { device: card.kind().device(), ..config })
}

/// The region that a process has if it does not choose: 16,384 buffers of 2 KiB. It goes when the
/// last port, queue and batch of it are gone.
fn default_pool() -> Result<Arc<Pool>> {
    static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pool.upgrade() {
        return Ok(pool);
    }
    let new = Pool::new(Region::new(&RegionOptions::default())?);
    *pool = Arc::downgrade(&new);
    Ok(new)
}
