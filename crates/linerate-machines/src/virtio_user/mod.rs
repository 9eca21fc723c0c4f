//! virtio-user: a port at a vhost-user back end, used like a virtual machine's card. The back end is OVS-DPDK, DPDK's
//! vhost, passt, Snabb, or [`vhost:`](crate::vhost) of another process.
//!
//! This side, the front end, shares its packet memory with the back end, and drives the device behind the socket with
//! the driver of [`nic::virtio`](linerate_cards::nic::virtio). Back ends may disconnect and return: each is a new
//! device, which the port's queues switch to.
//!
//! - `queue`: receive and send, on the current device
//! - `back_end`: the device, as the driver's third transport
//! - `link`: requests and replies
//! - `control`: the thread that attaches to back ends
//! - here: the port, [`VirtioUser`]

mod back_end;
mod control;
mod link;
mod queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use control::Shared;
use linerate_cards::nic::virtio::MAX_QUEUES;
use linerate_core::error::{Error, Result};
use linerate_core::port::{
    Address, Config, Description, Device, Link, METADATA, MTU, Maturity, OFFLOADS, Opening, PortClass, PortKind,
    PortOption, QUEUES, QueueCounters, RING, Receive, SoftwareDevice, SoftwarePort, Transmit, VECTORS, Value,
};
use linerate_core::unix_socket::ControlThread;
use queue::{UserRx, UserTx};

/// A port connected to a back end.
pub struct VirtioUser {
    shared: Arc<Shared>,
    _control: ControlThread,
}

/// The requested forms of a port's queues. Each is used if the back end supports it.
#[derive(Clone, Copy, Debug)]
pub struct Forms {
    /// Packed virtqueues (VIRTIO 1.2, 2.8).
    pub packed: bool,
    /// The back end uses buffers in order, and may report several buffers by the last buffer (`IN_ORDER`, 2.7.9 and
    /// 2.8.9).
    pub in_order: bool,
    /// Received packets may span several buffers (`MRG_RXBUF`, 5.1.6.4). Otherwise, each packet must fit one buffer.
    pub mergeable: bool,
}

impl Default for Forms {
    /// Split queues with mergeable buffers, in any order.
    fn default() -> Self {
        Forms { packed: false, in_order: false, mergeable: true }
    }
}

impl VirtioUser {
    /// Connects to the back end that listens at the socket `path`, and reconnects when the back end is gone. As a
    /// server, listens at the path for back ends.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if no back end listens there, or if the back end or
    /// the path cannot be used; [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if no socket can be at the
    /// path; [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption), and errors of the driver.
    pub fn open(path: &str, is_server: bool, forms: Forms, config: Config) -> Result<SoftwarePort<VirtioUser>> {
        config.check_ring()?;
        let queues = config.options.rx_queues.max(config.options.tx_queues);
        if queues > MAX_QUEUES {
            return Err(Error::too_many_queues(config.name, "pairs of", queues, MAX_QUEUES));
        }
        let shared = Arc::new(Shared::new(path, forms, &config)?);
        let control = control::start(is_server, shared.clone())?;
        Ok(SoftwarePort::new(config, VirtioUser { shared, _control: control }))
    }
}

/// `virtio-user:PATH`
pub static KIND: PortKind = PortKind {
    description: Description {
        options: &[
            QUEUES,
            RING,
            MTU,
            OFFLOADS,
            METADATA,
            VECTORS,
            PortOption::switch("packed", "ask for packed queues"),
            PortOption::switch("server", "wait for the back end at the socket; without it, the port connects there"),
            PortOption::switch("in_order", "ask for descriptors that are used in order"),
            PortOption {
                name: "mergeable",
                value: Value::Switch,
                default: "on",
                help: "ask for received packets of several buffers",
            },
        ],
        feature: "vhost",
        example: "virtio-user:/tmp/vm",
        summary: "a card at a vhost-user back end",
        page: "machines.md",
        no_link: "is its back end running?",
        maturity: Maturity::Others,
        class: PortClass::Peer,
        ..Description::new("virtio-user", Address::Socket)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    let forms = Forms {
        packed: name.switch("packed", false)?,
        in_order: name.switch("in_order", false)?,
        mergeable: name.switch("mergeable", true)?,
    };
    Ok(Box::new(VirtioUser::open(name.address(), name.switch("server", false)?, forms, opening.config)?))
}

impl SoftwareDevice for VirtioUser {
    const DRIVER: &'static str = "virtio-user";
    const CLASS: PortClass = PortClass::Peer;
    const QUEUE_SELECTOR: &'static str = "the back end selects the queue";
    const OFFLOADS: bool = true;

    fn description(&self) -> String {
        let state = match &*self.shared.device.lock() {
            None => "no back end",
            Some(device) if device.is_packed() => "a back end with packed queues",
            Some(_) => "a back end with split queues",
        };
        format!("vhost-user at {}, {state}", self.shared.path)
    }

    fn rx(&mut self, _: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(UserRx::start(&self.shared, queue, counters)?))
    }

    fn tx(&mut self, _: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(UserTx::start(&self.shared, queue, counters)?))
    }

    /// The link is up while there is a back end; vhost-user has no message for link state.
    fn link(&self) -> Result<Link> {
        Ok(self.shared.device.lock().as_ref().map_or(Link::Down, |_| Link::Up { mbits: 0 }))
    }
}
