//! The default server of ports for other processes.

use std::sync::Arc;
use std::time::Duration;

use linerate_core::error::Result;
use linerate_core::offload::LONGEST;
use linerate_kernel::Interface;
use linerate_vale::share::{RingCounts, Server};

use crate::memory::{Pool, Region, RegionOptions};
use crate::port::{CLUSTER, DEFAULT_FRAME, Options, is_pipe, is_vale};

/// Creates a server of ports for other processes. It opens ports under their names: `vale0:a`, or `eth0`, which means
/// `netmap:eth0`. It serves ports only once it [listens](Server::listen).
pub fn server() -> Server {
    let open = |name: &str, rings: &RingCounts| {
        let short = name.split('?').next().unwrap_or(name);
        let is_memory = is_vale(short) || is_pipe(short);
        // A card or any other port that is attached to a switch.
        let is_whole = is_memory || short.contains(':');
        let mut port = crate::parse(&if is_whole { name.to_string() } else { format!("netmap:{name}") })?;
        let there = if is_whole { 1 } else { port.interface().map_or(1, queues_of) };
        // netmap takes all packets of an interface away from Linux, and programs that use netmap's names expect that.
        let is_card = !short.contains(['^', '/']);
        if is_card && !is_whole {
            port = port.with_option("flow", "all")?.with_option("alone", "on")?;
        }
        // The server adds this option to a port whose packets are distributed among several clients.
        let is_shared = port.option(CLUSTER.name).is_some();
        // Packets of several slots pass a switch or a pipe unchanged.
        let max_frame = if is_memory { LONGEST } else { DEFAULT_FRAME };
        // The server's threads sleep while they have no work.
        let interrupts = Some(Duration::ZERO);
        let ring = rings.rx_slots.clamp(64, 4096).next_power_of_two() as usize;
        // Each port has its own pool, so a program that does not receive its packets cannot use up the others' buffers.
        // A card needs memory that it can access, and only managers may attach one.
        let pool = if is_memory || !is_whole { Some(served_pool(rings, ring, there)?) } else { None };
        let options = Options {
            rx_queues: if is_shared { there as u16 } else { rings.rx.max(1) },
            tx_queues: rings.tx.max(1),
            ring: Some(ring),
            max_frame,
            interrupts,
            local: true,
            // Packets of monitors and shares wait here. Packets of a switch's port get their timestamp in the client's
            // ring.
            timestamps: is_shared || !is_card,
            pool,
            ..Options::default()
        };
        let [device] = options.open([port.as_str()])?;
        Ok(device)
    };
    Server::new(Box::new(open))
}

/// Returns the number of an interface's queues; 1 if there is no such interface.
fn queues_of(name: &str) -> usize {
    Interface::open(name).map_or(1, |interface| interface.queues() as usize)
}

/// Creates the pool of a served port, with twice as many buffers as its rings and its interface's queues hold.
fn served_pool(rings: &RingCounts, ring: usize, queues: usize) -> Result<Arc<Pool>> {
    let queues = usize::from(rings.rx).max(queues) + usize::from(rings.tx).max(queues);
    let buffers = (2 * queues * ring).max(4096);
    Ok(Pool::new(Region::lazy(&RegionOptions { buffers, ..RegionOptions::default() })?))
}
