//! Opening ports in memory, in this process or where another one serves them; and a server of ports.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::kernel::Interface;
use crate::memory::{Pool, Region, RegionOptions};
use crate::netmap::{Monitor, Null, Pipe, Side, ValePort, cluster_of};
use crate::offload::LONGEST;
use crate::port::{Config, DEFAULT_FRAME, Device, Kind, Options, PortName, is_pipe, is_vale};
use crate::share::{self, ClusterRequest, OpenRequest, RingCounts, ServedPort, Server};

pub(super) fn open(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    match name.kind() {
        Kind::Monitor { receive, transmit } => Ok(Box::new(Monitor::open(name.rest(), receive, transmit, config)?)),
        Kind::Pipe => {
            let side = if name.short().contains('{') { Side::Master } else { Side::Slave };
            Ok(Box::new(Pipe::open(&name.short().replace('}', "{"), side, config)?))
        }
        Kind::Vale => {
            let switch = name.short().split(':').next().unwrap_or_default();
            Ok(Box::new(ValePort::open(switch, name.rest(), config)?))
        }
        _ => Ok(Box::new(Null::open(config)?)),
    }
}

/// Opens a port that another process serves, if one does.
pub(super) fn find_served(options: &Options, name: &PortName, pool: &Arc<Pool>) -> Result<Option<Box<dyn Device>>> {
    let (port, monitor_rx, monitor_tx) = match name.kind() {
        Kind::Pipe | Kind::Vale | Kind::Netmap => (name.short(), false, false),
        Kind::Monitor { receive, transmit } => (name.rest(), receive, transmit),
        _ => return Ok(None),
    };
    let is_served = PortName::parse(port).is_ok_and(|port| port.may_be_served());
    let cluster = cluster_of(name)?.map(|(shares, by)| ClusterRequest { shares, by: by.name().to_string() });
    // Packets of a pipe's end or a monitor are handed out in this process.
    let is_own = cluster.is_some() && !matches!(name.kind(), Kind::Vale | Kind::Netmap);
    if options.local || !is_served || is_own {
        return Ok(None);
    }
    let theirs = port.trim_start_matches("netmap:").to_string();
    // A switch drops packets while a receiver has no processor, so its ring is longer.
    let config = options.config(name, pool)?;
    let is_usual = config.options.ring.is_none() && name.kind() == Kind::Vale;
    let rings = RingCounts { rx_slots: if is_usual { RECEIVED } else { 0 }, ..RingCounts::default() };
    // Between a pipe's ends is no server.
    let timestamps = config.options.timestamps && name.kind() != Kind::Pipe;
    let wanted =
        OpenRequest { name: theirs, monitor_rx, monitor_tx, rings, cluster, timestamps, ..OpenRequest::default() };
    let port = ServedPort::find(&share::folder(), wanted, config)?;
    Ok(port.map(|port| Box::new(port) as Box<dyn Device>))
}

/// A server of ports for other processes, which are opened here under their names: `vale0:a`, or `eth0`, which is
/// `netmap:eth0`. It serves nothing before it [listens](Server::listen).
pub fn server() -> Server {
    let open = |name: &str, rings: &RingCounts| {
        // The server adds the options of a port that is handed out to several clients.
        let (name, cluster) = name.split_once('?').map_or((name, None), |(name, options)| (name, Some(options)));
        let is_memory = is_vale(name) || is_pipe(name);
        // A card, or any other port, as part of a switch.
        let is_whole = is_memory || name.contains(':');
        let there = if is_whole { 1 } else { queues_of(name) };
        // netmap takes all packets of an interface away from Linux; a program that uses its name expects that.
        let is_card = !name.contains(['^', '/']);
        let name = match (is_whole, is_card) {
            (true, _) => name.to_string(),
            (false, true) => format!("netmap:{name}?flow=all&alone=on"),
            (false, false) => format!("netmap:{name}"),
        };
        let joint = if name.contains('?') { '&' } else { '?' };
        let name = name + &cluster.map_or_else(String::new, |options| format!("{joint}{options}"));
        // Packets of several slots pass a switch as they are, and a pipe.
        let max_frame = if is_memory { LONGEST } else { DEFAULT_FRAME };
        // The server's threads sleep while there is no work.
        let interrupts = Some(Duration::ZERO);
        let ring = rings.rx_slots.clamp(64, 4096).next_power_of_two() as usize;
        // A pool for each: a program that does not take its packets leaves the others theirs. A card needs memory that it
        // can reach, and is for managers only.
        let pool = if is_memory || !is_whole { Some(served_pool(rings, ring, there)?) } else { None };
        let options = Options {
            rx_queues: if cluster.is_some() { there as u16 } else { rings.rx.max(1) },
            tx_queues: rings.tx.max(1),
            ring: Some(ring),
            max_frame,
            interrupts,
            local: true,
            // Packets of monitors and of shares wait here; those of a switch's port get their time in the client's ring.
            timestamps: cluster.is_some() || !is_card,
            pool,
            ..Options::default()
        };
        let [device] = options.open([&*name])?;
        Ok(device)
    };
    Server::new(Box::new(open))
}

/// Default length of a receive ring at a switch of another process, which drops what does not fit. A scheduler may take
/// the processor for two ticks, 8 ms at 250 Hz: at 1 Mpps that are 8,000 packets.
const RECEIVED: u32 = 8192;

/// Returns the count of an interface's queues; 1 if there is no such interface.
fn queues_of(name: &str) -> usize {
    Interface::open(name).map_or(1, |interface| interface.queues() as usize)
}

/// Creates the pool of one served port: the capacity of its rings and of its interface's queues, twice.
fn served_pool(rings: &RingCounts, ring: usize, queues: usize) -> Result<Arc<Pool>> {
    let queues = usize::from(rings.rx).max(queues) + usize::from(rings.tx).max(queues);
    let buffers = (2 * queues * ring).max(4096);
    Ok(Pool::new(Region::lazy(&RegionOptions { buffers, ..RegionOptions::default() })?))
}
