//! VALE: a switch in memory (vale(4); Rizzo and Lettieri, "VALE, a Switched Ethernet for Virtual Machines", CoNEXT
//! 2012).
//!
//! - `table`: the port of each address
//! - `forward`: where packets go, as learned or as a program decides
//! - `port`: a port's queues: a packet's way through the switch, top-down; read this next
//! - here: switches and their ports
//!
//! A switch has no thread. The sender decides for a whole batch where each packet goes. Then, for each destination, it
//! copies the packets into the destination's buffers and hands their slots over. Packets without room are dropped, and
//! counted at the port that had none, so that a slow port does not delay others.

mod forward;
mod port;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

pub use forward::{Destination, Forward, Learning};
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{
    Behind, Config, Drops, QueueCounters, Receive, SoftwareDevice, SoftwarePort, Transmit, is_vale,
};
use port::ValeTx;

use super::delivery::{Delivery, DeliveryRx};

/// The most ports of a switch, as in netmap.
pub const MAX_PORTS: usize = 254;
/// The longest name of a switch or of its port: `IFNAMSIZ` without the zero.
pub const LONGEST_NAME: usize = 15;

/// A switch. It is dropped, with its forwarding, when it has no port and no other owner.
pub struct Switch {
    name: String,
    /// The ports, by number. Each sender has a copy, and checks whether it is the newest.
    ports: Mutex<Arc<Ports>>,
    changes: AtomicU64,
    forward: RwLock<Arc<dyn Forward>>,
    groups: Mutex<Arc<Groups>>,
}

/// By number.
type Ports = Vec<Option<Plugged>>;

/// The ports of each group.
type Groups = HashMap<u16, Vec<u8>>;

/// A port, as its switch has it.
#[derive(Clone)]
struct Plugged {
    name: String,
    delivery: Arc<Delivery>,
}

/// The switches of this process.
static SWITCHES: Mutex<Vec<Weak<Switch>>> = Mutex::new(Vec::new());

impl Switch {
    /// Returns the switch with this name, such as `vale0`, or makes it. Keep it until it has a port.
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

    /// Sets the decision where packets go.
    pub fn set_forward(&self, forward: Arc<dyn Forward>) {
        let before = std::mem::replace(&mut *self.forward.write().unwrap_or_else(PoisonError::into_inner), forward);
        self.changes.fetch_add(1, Ordering::Release);
        // It is the program's, and may use this switch when it is dropped, so no lock is held.
        drop(before);
    }

    /// Sets the ports of a group, such as a VLAN, for [`Destination::Group`]; without ports there is no such group. A port that was
    /// removed stays in its groups, as the next one of its number.
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

    /// Returns numbers and names of its ports.
    pub fn ports(&self) -> Vec<(u8, String)> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let there = ports.iter().enumerate().filter_map(|(n, port)| Some((n as u8, port.as_ref()?.name.clone())));
        there.collect()
    }

    /// Returns the ports and the forwarding, for a sender.
    fn snapshot(&self) -> Snapshot {
        let changes = self.changes.load(Ordering::Acquire);
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let forward = self.forward.read().unwrap_or_else(PoisonError::into_inner).clone();
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Snapshot { changes, ports, forward, groups }
    }

    /// Gives a port the lowest number that is free.
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
                format!("the switch has {MAX_PORTS} ports, the most possible"),
            )
            .with_remedy(Remedy::Do("close some, or use another switch".into())));
        }
        let delivery = Arc::new(delivery);
        ports.resize(ports.len().max(number + 1), None);
        ports[number] = Some(Plugged { name: name.to_string(), delivery: delivery.clone() });
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

/// Returns the delivery of a port of this process by its name, such as `vale0:a`.
pub(crate) fn delivery_of(name: &str) -> Option<Arc<Delivery>> {
    let (switch, port) = name.split_once(':')?;
    let all = SWITCHES.lock().unwrap_or_else(PoisonError::into_inner);
    let switch = all.iter().filter_map(Weak::upgrade).find(|there| there.name == switch)?;
    drop(all);
    let ports = switch.ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.iter().flatten().find(|there| there.name == port).map(|port| port.delivery.clone())
}

/// A switch's ports and forwarding, as a sender has read them last.
struct Snapshot {
    changes: u64,
    ports: Arc<Ports>,
    forward: Arc<dyn Forward>,
    groups: Arc<Groups>,
}

/// A port of a switch. Its place is free again when it is dropped.
pub struct ValePort {
    switch: Arc<Switch>,
    number: u8,
    delivery: Arc<Delivery>,
}

impl ValePort {
    /// Makes a port on a switch, such as `vale0` and `a`. The switch is made if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], [`ErrorKind::Exhausted`], [`ErrorKind::BadName`], [`ErrorKind::BadOption`].
    pub fn open(switch: &str, port: &str, config: Config) -> Result<SoftwarePort<ValePort>> {
        config.check_ring()?;
        let name = format!("{switch}:{port}");
        let bad = |why: &str| Err(Error::bad_name(&name, why).with_remedy("vale0:a"));
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        // The port of an attached host's stack has its interface's name with a mark behind it.
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
    const BEHIND: Behind = Behind::Memory;

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
