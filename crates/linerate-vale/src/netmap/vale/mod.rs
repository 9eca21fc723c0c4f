//! VALE: an in-memory switch (vale(4); Rizzo and Lettieri, "VALE, a Switched Ethernet for Virtual Machines", CoNEXT
//! 2012).
//!
//! - `table`: maps addresses to ports
//! - `forward`: decides where packets go, by learned addresses or by the program
//! - `port`: a port's queues, and how a packet passes the switch; read this next
//! - this file: switches and their ports
//!
//! A switch has no thread. The sender decides where each packet of a batch goes. Then, for each destination, it copies
//! the packets into the destination's buffers and passes their slots on. Packets that do not fit are dropped, and
//! counted at the destination, so a slow port does not delay the others.

mod forward;
mod port;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

pub use forward::{Destination, Forward, Learning};
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{
    Config, Drops, PortClass, QueueCounters, Receive, SoftwareDevice, SoftwarePort, Transmit, is_vale,
};
use port::ValeTx;

use super::delivery::{Delivery, DeliveryRx};

/// The most ports of a switch, as in netmap.
pub const MAX_PORTS: usize = 254;
/// The longest name of a switch or of a port of it: `IFNAMSIZ` without the terminating zero.
pub const LONGEST_NAME: usize = 15;

/// A switch. It is dropped, with its forwarding, once it has no ports and no other owners.
pub struct Switch {
    name: String,
    /// The ports, indexed by number. Each sender has a snapshot, and uses `changes` to check that it is current.
    ports: Mutex<Arc<Ports>>,
    changes: AtomicU64,
    forward: RwLock<Arc<dyn Forward>>,
    groups: Mutex<Arc<Groups>>,
}

/// Indexed by port number.
type Ports = Vec<Option<PortEntry>>;

/// The port numbers of each group.
type Groups = HashMap<u16, Vec<u8>>;

/// A switch's entry for one of its ports.
#[derive(Clone)]
struct PortEntry {
    name: String,
    delivery: Arc<Delivery>,
}

/// The switches of this process.
static SWITCHES: Mutex<Vec<Weak<Switch>>> = Mutex::new(Vec::new());

impl Switch {
    /// Returns the switch with this name, such as `vale0`, or creates it. Keep the result until the switch has a port.
    pub fn named(name: &str) -> Arc<Switch> {
        let mut all = SWITCHES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|switch| switch.strong_count() > 0);
        if let Some(switch) = all.iter().filter_map(Weak::upgrade).find(|switch| switch.name == name) {
            return switch;
        }
        let switch = Arc::new(Switch {
            name: name.to_string(),
            ports: Mutex::default(),
            changes: AtomicU64::new(0),
            forward: RwLock::new(Arc::new(Learning::new())),
            groups: Mutex::default(),
        });
        all.push(Arc::downgrade(&switch));
        switch
    }

    /// Returns the switch's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how the switch decides where packets go.
    pub fn set_forward(&self, forward: Arc<dyn Forward>) {
        let before = std::mem::replace(&mut *self.forward.write().unwrap_or_else(PoisonError::into_inner), forward);
        self.changes.fetch_add(1, Ordering::Release);
        // Dropped without locks held: it belongs to the program, and its destructor may use this switch.
        drop(before);
    }

    /// Sets the port numbers of a group, such as a VLAN, for [`Destination::Group`]; an empty list removes the group.
    /// Removing a port does not change groups, so the next port with its number joins them.
    pub fn set_group(&self, group: u16, ports: &[u8]) {
        let mut all = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let mut groups = Groups::clone(&all);
        match ports.is_empty() {
            true => drop(groups.remove(&group)),
            false => drop(groups.insert(group, ports.to_vec())),
        }
        *all = Arc::new(groups);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number and name of each port.
    pub fn ports(&self) -> Vec<(u8, String)> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let there = ports.iter().enumerate().filter_map(|(n, port)| Some((n as u8, port.as_ref()?.name.clone())));
        there.collect()
    }

    /// Returns a snapshot of the ports, groups and forwarding, for a sender.
    fn snapshot(&self) -> Snapshot {
        let changes = self.changes.load(Ordering::Acquire);
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let forward = self.forward.read().unwrap_or_else(PoisonError::into_inner).clone();
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Snapshot { changes, ports, forward, groups }
    }

    /// Adds a port with the lowest free number.
    fn add(&self, name: &str, delivery: Delivery) -> Result<(u8, Arc<Delivery>)> {
        let mut all = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if all.iter().flatten().any(|port| port.name == name) {
            return Err(Error::port_in_use(format!("{}:{name}", self.name)));
        }
        let mut ports = Ports::clone(&all);
        let number = ports.iter().position(Option::is_none).unwrap_or(ports.len());
        if number >= MAX_PORTS {
            return Err(Error::new(
                ErrorKind::Exhausted,
                &self.name,
                format!("the switch has {MAX_PORTS} ports, the maximum"),
            )
            .with_remedy(Remedy::Step("close some, or use another switch".into())));
        }
        let delivery = Arc::new(delivery);
        ports.resize(ports.len().max(number + 1), None);
        ports[number] = Some(PortEntry { name: name.to_string(), delivery: delivery.clone() });
        *all = Arc::new(ports);
        self.changes.fetch_add(1, Ordering::Release);
        Ok((number as u8, delivery))
    }

    fn remove(&self, number: u8) {
        let mut all = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ports = Ports::clone(&all);
        ports[usize::from(number)] = None;
        *all = Arc::new(ports);
        self.changes.fetch_add(1, Ordering::Release);
        drop(all);
        let forward = self.forward.read().unwrap_or_else(PoisonError::into_inner).clone();
        forward.forget(number);
    }
}

/// Returns the delivery of a port in this process by its name, such as `vale0:a`.
pub(crate) fn delivery_of(name: &str) -> Option<Arc<Delivery>> {
    let (switch, port) = name.split_once(':')?;
    let all = SWITCHES.lock().unwrap_or_else(PoisonError::into_inner);
    let switch = all.iter().filter_map(Weak::upgrade).find(|there| there.name == switch)?;
    drop(all);
    let ports = switch.ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.iter().flatten().find(|there| there.name == port).map(|port| port.delivery.clone())
}

/// A sender's snapshot of the switch: its ports, groups and forwarding.
struct Snapshot {
    changes: u64,
    ports: Arc<Ports>,
    forward: Arc<dyn Forward>,
    groups: Arc<Groups>,
}

/// A port of a switch. Dropping it frees its number.
pub struct ValePort {
    switch: Arc<Switch>,
    number: u8,
    delivery: Arc<Delivery>,
}

impl ValePort {
    /// Opens a port on a switch, for example `a` on `vale0`. Creates the switch if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], [`ErrorKind::Exhausted`], [`ErrorKind::BadName`], [`ErrorKind::BadOption`].
    pub fn open(switch: &str, port: &str, config: Config) -> Result<SoftwarePort<ValePort>> {
        config.check_ring()?;
        let name = format!("{switch}:{port}");
        let bad = |why: &str| Err(Error::bad_name(&name, why).with_remedy("vale0:a"));
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        // The port of an attached interface's host stack is named after the interface, with a trailing `^`.
        let own = port.strip_suffix('^').unwrap_or(port);
        if switch.len() > LONGEST_NAME || own.len() > LONGEST_NAME {
            return bad("a switch and a port of it have names of 15 characters each at most (netmap(4))");
        }
        if !is_vale(switch) || !plain(switch) || !plain(own) {
            let why = "a port of a switch is named valeS:P, where S and P are letters, digits and '_', and its monitors valeS:P/r, /t, /rt \
                       or /z";
            return bad(why);
        }
        let switch = Switch::named(switch);
        let (number, delivery) = switch.add(port, Delivery::new(&config)?)?;
        Ok(SoftwarePort::new(config, ValePort { switch, number, delivery }))
    }

    /// Returns the port's switch: `port.kind().switch()`.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }
}

impl Drop for ValePort {
    fn drop(&mut self) {
        self.switch.remove(self.number);
    }
}

impl SoftwareDevice for ValePort {
    const DRIVER: &'static str = "vale";
    const CLASS: PortClass = PortClass::Memory;
    const TIMESTAMPS: bool = true;

    fn description(&self) -> String {
        format!("port {} of switch {}", self.number, self.switch.name)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(DeliveryRx::new(&self.delivery, config, queue, counters)?))
    }

    fn tx(&mut self, _: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(ValeTx::new(&self.switch, self.number, queue, counters)))
    }

    fn drops(&self) -> Drops {
        self.delivery.drops()
    }
}
