//! A server of ports for other processes.

use std::sync::Arc;
use std::time::Duration;

use linerate_core::error::Result;
use linerate_core::offload::LONGEST;
use linerate_kernel::Interface;
use linerate_vale::share::{RingCounts, Server};

use crate::memory::{Pool, Region, RegionOptions};
use crate::port::{CLUSTER, DEFAULT_FRAME, Options, is_pipe, is_vale};

/// A server of ports for other processes, which are opened here under their names: `vale0:a`, or `eth0`, which is
/// `netmap:eth0`. It serves nothing before it [listens](Server::listen).
pub fn server() -> Server {
    let open = |name: &str, rings: &RingCounts| {
        let short = name.split('?').next().unwrap_or(name);
        let is_memory = is_vale(short) || is_pipe(short);
        // A card, or any other port, as part of a switch.
        let is_whole = is_memory || short.contains(':');
        let there = if is_whole { 1 } else { queues_of(short) };
        let mut port = crate::parse(&if is_whole { name.to_string() } else { format!("netmap:{name}") })?;
        // netmap takes all packets of an interface away from Linux; a program that uses its name expects that.
        let is_card = !short.contains(['^', '/']);
        if is_card && !is_whole {
            port = port.with_option("flow", "all")?.with_option("alone", "on")?;
        }
        // The server adds the option to a port that is handed out to several clients.
        let is_shared = port.option(CLUSTER.name).is_some();
        // Packets of several slots pass a switch as they are, and a pipe.
        let max_frame = if is_memory { LONGEST } else { DEFAULT_FRAME };
        // The server's threads sleep while there is no work.
        let interrupts = Some(Duration::ZERO);
        let ring = rings.rx_slots.clamp(64, 4096).next_power_of_two() as usize;
        // A pool for each: a program that does not take its packets leaves the others theirs. A card needs memory that it
        // can reach, and is for managers only.
        let pool = if is_memory || !is_whole { Some(served_pool(rings, ring, there)?) } else { None };
        let options = Options {
            rx_queues: if is_shared { there as u16 } else { rings.rx.max(1) },
            tx_queues: rings.tx.max(1),
            ring: Some(ring),
            max_frame,
            interrupts,
            local: true,
            // Packets of monitors and of shares wait here; those of a switch's port get their time in the client's ring.
            timestamps: is_shared || !is_card,
            pool,
            ..Options::default()
        };
        let [device] = options.open([port.as_str()])?;
        Ok(device)
    };
    Server::new(Box::new(open))
}

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
