//! Management: ports attached to a switch, persistent ports, and a list of all ports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_core::batch::Batch;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{Port, RxQueue, TxQueue, Wait, Waiter, Waker, is_vale};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::State;
use super::served::{Served, clamp_rings, state_of};
use crate::netmap::{LONGEST_NAME, Switch};
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::message::PortState;
use crate::share::protocol::name::base;

/// Interval at which attached ports are checked.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// A port of this machine that is attached to a switch.
pub(super) struct Attached {
    switch: String,
    /// The port's name on the switch.
    name: String,
    pub(super) port: String,
    stop: Arc<AtomicBool>,
    /// Wakes the threads, so that they see `stop`.
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
    /// The ports, and the number of packets that each had no room for.
    devices: Vec<(Port, Arc<AtomicU64>)>,
}

/// A persistent port (`vale-ctl -n`): a port named like an interface, which exists without a client.
pub(super) struct PersistentPort {
    pub(super) rings: RingCounts,
    /// The switches that the port is attached to, and its ports on them. The persistent port's own name refers to the
    /// first of these ports.
    pub(super) attached: Vec<(String, Arc<Served>)>,
}

/// Returns a port's name without its options.
fn address(port: &str) -> &str {
    port.split('?').next().unwrap_or(port)
}

/// Returns a port's name on a switch, without characters that are invalid there (`0000:03:00.0`: `0000_03_00_0`). For a
/// path, only the file name is used; of a name that is too long, only the end.
fn port_name_on_switch(port: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name = address(port).rsplit('/').next().unwrap_or_default();
    let excess = name.chars().count().saturating_sub(LONGEST_NAME);
    name.chars().skip(excess).map(allowed).collect()
}

/// Returns whether a port may have this name, as an interface could.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain)
}

impl State {
    /// Attaches a port; `switch` names a switch, or the new port on it.
    pub(super) fn attach(self: &Arc<Self>, switch: &str, port: &str, host: bool, rings: &RingCounts) -> Result<u32> {
        let bad = |name: &str, why: &str| Err(Error::bad_name(name, why.to_string()));
        let (switch, chosen) = switch.split_once(':').map_or((switch, None), |(switch, name)| (switch, Some(name)));
        if let Some(name) = chosen.filter(|name| !is_plain(name)) {
            return bad(name, "a port of a switch has at most 15 letters, digits and '_'");
        }
        if host && port.contains('/') {
            return bad(port, "only an interface has the kernel's stack, and this is not an interface");
        }
        let name = format!("{switch}:{}", chosen.map_or_else(|| port_name_on_switch(port), str::to_string));
        if let Some(persistent) = lock(&self.persistent).get_mut(port) {
            if persistent.attached.iter().any(|(there, _)| there == switch) {
                return Err(Error::port_in_use(name));
            }
            let device = (self.open)(&name, &clamp_rings(&persistent.rings))?;
            let user = rustix::process::geteuid().as_raw();
            let served = Served::new(&name, device, clamp_rings(&persistent.rings).of_card(), None, user);
            lock(&self.ports).insert(name.clone(), Arc::downgrade(&served));
            persistent.attached.push((switch.to_string(), served));
            return Ok(number_of(switch, &name));
        }
        // An interface of this name may have been deleted and created again, which was not noticed yet.
        self.end_gone(|_| true);
        if lock(&self.attached).iter().any(|there| address(&there.port) == address(port)) {
            return Err(Error::port_in_use(port));
        }
        let mut attached = Attached {
            switch: switch.to_string(),
            name: name.clone(),
            port: port.to_string(),
            stop: Arc::default(),
            waker: Waker::new()?,
            threads: Vec::new(),
            devices: Vec::new(),
        };
        let mut begin = || -> Result<()> {
            let open = |name: &str| (self.open)(name, &clamp_rings(rings));
            let mut device = open(port)?;
            // The port must also receive packets for hosts that are reached through the other ports.
            device.set_promiscuous(true)?;
            attached.join(device, open(&name)?)?;
            if host {
                attached.join(open(&format!("{port}^"))?, open(&format!("{name}^"))?)?;
            }
            Ok(())
        };
        if let Err(error) = begin() {
            attached.end();
            return Err(error);
        }
        let mut all = lock(&self.attached);
        if let Err(error) = attached.watch(self) {
            drop(all);
            attached.end();
            return Err(error);
        }
        all.push(attached);
        Ok(number_of(switch, &name))
    }

    /// Detaches the chosen ports that no longer exist, such as deleted interfaces, and logs a warning for each.
    fn end_gone(&self, is_chosen: impl Fn(&Attached) -> bool) {
        let mut gone = Vec::new();
        let mut all = lock(&self.attached);
        while let Some(at) = all.iter().position(|attached| is_chosen(attached) && attached.is_gone()) {
            gone.push(all.swap_remove(at));
        }
        drop(all);
        for attached in gone {
            let switch = &attached.switch;
            tracing::warn!(port = attached.port, "{} is gone: it is detached from {switch}", attached.port);
            attached.end();
        }
    }

    pub(super) fn detach(&self, switch: &str, port: &str) -> Result<u32> {
        let name = format!("{switch}:{}", port_name_on_switch(port));
        let number = number_of(switch, &name);
        // The error names a path as given, because a port with the same file name may be attached from another folder.
        let given = if port.contains(['/', ':']) { format!("{switch}:{port}") } else { name.clone() };
        let absent = || Error::not_served(&given, "it is not attached");
        if let Some(persistent) = lock(&self.persistent).get_mut(port) {
            let at = persistent.attached.iter().position(|(there, _)| there == switch).ok_or_else(absent)?;
            if persistent.attached[at].1.is_used() {
                return Err(Error::port_in_use(name));
            }
            persistent.attached.remove(at);
            return Ok(number);
        }
        let mut all = lock(&self.attached);
        // The port can be given by its own name, or by its listed name on the switch.
        let here =
            |is_it: &dyn Fn(&Attached) -> bool| all.iter().position(|there| there.switch == switch && is_it(there));
        let by_name = here(&|there| there.name == format!("{switch}:{port}"));
        let by_address = || here(&|there| address(&there.port) == address(port));
        let by_plain = || here(&|there| !port.contains(['/', ':']) && there.name == name);
        let at = by_name.or_else(by_address).or_else(by_plain).ok_or_else(absent)?;
        let attached = all.swap_remove(at);
        drop(all);
        attached.end();
        Ok(number)
    }

    pub(super) fn create(&self, name: &str, rings: &RingCounts) -> Result<()> {
        let bad = |why: &str| Error::bad_name(name, why.to_string());
        if !is_plain(name) || is_vale(name) {
            return Err(bad(
                "a persistent port is named like an interface: at most 15 letters, digits and '_', and not 'vale'",
            ));
        }
        let mut persistent = lock(&self.persistent);
        if persistent.contains_key(name) || linerate_kernel::Interface::open(name).is_ok() {
            let remedy = "choose another name, or remove it: linerate switch destroy";
            return Err(
                Error::new(ErrorKind::Exists, name, "it exists already").with_remedy(Remedy::Step(remedy.into()))
            );
        }
        persistent.insert(name.to_string(), PersistentPort { rings: *rings, attached: Vec::new() });
        Ok(())
    }

    pub(super) fn destroy(&self, name: &str) -> Result<()> {
        let mut persistent = lock(&self.persistent);
        match persistent.get(name) {
            None => Err(Error::not_served(name, "there is no such persistent port")),
            Some(port) => {
                if let Some((switch, _)) = port.attached.first() {
                    let remedy = format!("detach it first: linerate switch detach {switch}:{name}");
                    return Err(Error::new(ErrorKind::InUse, name, format!("it is attached to {switch}"))
                        .with_remedy(Remedy::Step(remedy.into())));
                }
                persistent.remove(name);
                Ok(())
            }
        }
    }

    /// Returns how many ports of a switch belong to attached ports.
    pub(super) fn attached_to(&self, switch: &str) -> usize {
        let attached = lock(&self.attached);
        let devices = attached.iter().flat_map(|attached| &attached.devices);
        devices.filter(|(device, _)| base(device.name()) == switch).count()
    }

    /// Returns the rings that an attached port has on its switch.
    pub(super) fn attached_rings(&self, name: &str) -> Option<RingCounts> {
        let attached = lock(&self.attached);
        let (device, _) = attached.iter().flat_map(|attached| &attached.devices).find(|(it, _)| it.name() == name)?;
        let info = device.info();
        Some(RingCounts { tx: info.tx_queues, rx: info.rx_queues, ..clamp_rings(&RingCounts::default()).of_card() })
    }

    /// Lists all ports, with their numbers on their switches.
    pub(super) fn list(&self, only: Option<&str>) -> Vec<PortState> {
        let mut list: Vec<PortState> = Vec::new();
        let names: Vec<String> = lock(&self.ports).keys().cloned().collect();
        for name in names {
            if let Some(served) = self.served(&name) {
                list.push(served.state(number_of(base(&name), &name) as u8));
            }
        }
        for attached in &*lock(&self.attached) {
            for (device, refused) in &attached.devices {
                let number = number_of(&attached.switch, device.name()) as u8;
                let statistics = device.statistics().unwrap_or_default();
                let mut state = state_of(device.name(), number, &statistics);
                // Packets that the port had no room for, and packets that were too long for it.
                state.drops += refused.load(Ordering::Relaxed) + statistics.drops.tx_too_long;
                list.push(state);
            }
        }
        for (name, _) in lock(&self.persistent).iter().filter(|(_, persistent)| persistent.attached.is_empty()) {
            list.push(PortState { name: name.clone(), number: 0, rx_packets: 0, tx_packets: 0, drops: 0 });
        }
        list.retain(|port| only.is_none_or(|only| base(&port.name) == only));
        list.sort_by(|a, b| (base(&a.name), a.number, &a.name).cmp(&(base(&b.name), b.number, &b.name)));
        list
    }
}

/// Returns a port's number on its switch; 0 if it has none.
fn number_of(switch: &str, name: &str) -> u32 {
    let port = name.split(':').nth(1).unwrap_or_default();
    let ports = if is_vale(switch) { Switch::named(switch).ports() } else { Vec::new() };
    ports.iter().find(|(_, there)| there == port).map_or(0, |(number, _)| u32::from(*number))
}

impl Attached {
    /// Connects a port of this machine to a port of the switch, with one thread per queue of the switch's port. All
    /// receive queues of the machine's port are polled. Packets to the machine's port go to that port's first queues
    /// only, because a peer may not use the others.
    fn join(&mut self, mut port: Port, mut switched: Port) -> Result<()> {
        let queues = port.info().rx_queues.min(switched.info().rx_queues);
        // Indexed by the switch's port, then the machine's port.
        let refused = [(); 2].map(|()| Arc::<AtomicU64>::default());
        for queue in 0..queues {
            let all = (queue..port.info().rx_queues).step_by(usize::from(queues));
            let mut from_port = all.map(|queue| port.rx(queue)).collect::<Result<Vec<_>>>()?;
            let (mut to_switch, mut from_switch, mut to_port) =
                (switched.tx(queue)?, switched.rx(queue)?, port.tx(queue)?);
            let (stop, waker, refused) = (self.stop.clone(), self.waker.clone(), refused.clone());
            let forward = move || {
                let mut batches = [Batch::new(), Batch::new()];
                let mut waiter = Waiter::new(Wait::Adaptive).woken_by(waker);
                while !stop.load(Ordering::Relaxed) {
                    let mut moved = forward_once(&mut from_switch, &mut to_port, &mut batches[1], &refused[1]);
                    for rx in &mut from_port {
                        moved += forward_once(rx, &mut to_switch, &mut batches[0], &refused[0]);
                    }
                    waiter.turn(moved, &mut from_port.iter_mut().chain([&mut from_switch]).collect::<Vec<_>>());
                }
            };
            let thread = std::thread::Builder::new().name("linerate-attached".to_string()).spawn(forward);
            self.threads.push(thread.map_err(Error::thread)?);
        }
        self.devices.extend([switched, port].into_iter().zip(refused));
        Ok(())
    }

    /// Starts the thread that checks whether the port still exists.
    fn watch(&mut self, state: &Arc<State>) -> Result<()> {
        let (state, stop, waker) = (Arc::downgrade(state), self.stop.clone(), self.waker.clone());
        let longest = Timespec { tv_sec: 0, tv_nsec: WATCH_INTERVAL.as_nanos() as _ };
        let watch = move || {
            loop {
                let _ = poll(&mut [PollFd::new(&waker, PollFlags::IN)], Some(&longest));
                // A watch thread ends only its own port, so two of them cannot wait for each other.
                match Weak::upgrade(&state).filter(|_| !stop.load(Ordering::Relaxed)) {
                    Some(state) => state.end_gone(|attached| Arc::ptr_eq(&attached.stop, &stop)),
                    None => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("linerate-watch".to_string()).spawn(watch);
        self.threads.push(thread.map_err(Error::thread)?);
        Ok(())
    }

    /// Returns whether the port, or its host stack, no longer exists.
    fn is_gone(&self) -> bool {
        let gone = |port: &Port| port.link().is_err_and(|error| error.kind() == ErrorKind::Gone);
        self.devices.iter().any(|(port, _)| gone(port))
    }

    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        // If the watch thread calls this, it cannot join itself; it ends afterwards.
        let here = std::thread::current().id();
        for thread in self.threads.into_iter().filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

/// Moves packets once. Packets that do not fit are dropped, because a switch does not wait. Returns the number of slots
/// received.
fn forward_once(rx: &mut RxQueue, tx: &mut TxQueue, batch: &mut Batch, refused: &AtomicU64) -> usize {
    let received = rx.recv(batch);
    if received > 0 || tx.unsent() > 0 {
        tx.send(batch);
        if !batch.is_empty() {
            refused.fetch_add(batch.packets().count() as u64, Ordering::Relaxed);
            batch.clear();
        }
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::server::served::MOST_RINGS;
    use crate::share::server::tests::server;

    /// The watch threads may check for missing ports at the same time.
    #[test]
    fn a_server_with_attached_ports_ends() {
        let server = server();
        for n in 0..8 {
            server.state.attach("vale98", &format!("pipe98_{n}{{1"), false, &RingCounts::default()).unwrap();
        }
        let looks = std::thread::spawn({
            let state = Arc::downgrade(&server.state);
            move || {
                while let Some(state) = Weak::upgrade(&state) {
                    state.end_gone(|_| true);
                }
            }
        });
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            let _ = ended.send(());
        });
        end.recv_timeout(Duration::from_secs(60)).expect("the server ends within a minute");
        looks.join().unwrap();
    }

    /// Found by the fuzz target `netmap`: each pair of rings has a thread.
    #[test]
    fn an_attached_port_has_at_most_the_rings_of_a_port() {
        let server = server();
        let rings = RingCounts { tx: u16::MAX, rx: u16::MAX, ..RingCounts::default() };
        server.state.attach("vale99", "pipe99{1", false, &rings).unwrap();
        assert_eq!(
            lock(&server.state.attached)[0].threads.len(),
            usize::from(MOST_RINGS) + 1,
            "with the one that looks"
        );
        server.state.detach("vale99", "pipe99{1").unwrap();
    }
}
