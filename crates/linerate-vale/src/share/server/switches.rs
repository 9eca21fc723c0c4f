//! Management: ports of this machine that are attached to a switch, persistent ports, and a list of all ports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_core::batch::Batch;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{Port, RxQueue, TxQueue, Wait, Waiter, Waker, is_vale};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::State;
use super::served::{Served, state_of, usual};
use crate::netmap::{LONGEST_NAME, Switch};
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::message::PortState;
use crate::share::protocol::name::base;

/// The time between two looks at an attached port.
const LOOK: Duration = Duration::from_millis(250);

/// A port of this machine that is attached to a switch.
pub(super) struct Attached {
    switch: String,
    /// Its name on the switch.
    name: String,
    pub(super) port: String,
    stop: Arc<AtomicBool>,
    /// Wakes the threads, so that they see `stop`.
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
    /// The ports, and the packets that each had no room for.
    devices: Vec<(Port, Arc<AtomicU64>)>,
}

/// A persistent port (`vale-ctl -n`): a port with the name of an interface, which exists without a client.
pub(super) struct PersistentPort {
    pub(super) rings: RingCounts,
    /// The switches that it is attached to, and its ports there. Its own name means the first of them.
    pub(super) attached: Vec<(String, Arc<Served>)>,
}

/// Returns a port's name without options.
fn address(port: &str) -> &str {
    port.split('?').next().unwrap_or(port)
}

/// Returns a port's name on a switch, without characters that names there cannot have (`0000:03:00.0`: `0000_03_00_0`). Of one
/// with a path it is that of its file; of one that is too long, the end.
fn plain(port: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name = address(port).rsplit('/').next().unwrap_or_default();
    let excess = name.chars().count().saturating_sub(LONGEST_NAME);
    name.chars().skip(excess).map(allowed).collect()
}

/// Returns whether a name is one that a port may be given: as an interface's.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain)
}

impl State {
    /// Attaches a port; `switch` is a switch, or the name of the new port on one.
    pub(super) fn attach(self: &Arc<Self>, switch: &str, port: &str, host: bool, rings: &RingCounts) -> Result<u32> {
        let bad = |name: &str, why: &str| Err(Error::bad_name(name, why.to_string()));
        let (switch, chosen) = switch.split_once(':').map_or((switch, None), |(switch, name)| (switch, Some(name)));
        if let Some(name) = chosen.filter(|name| !is_plain(name)) {
            return bad(name, "a port of a switch has at most 15 letters, digits and '_'");
        }
        if host && port.contains('/') {
            return bad(port, "the kernel's stack is behind an interface, and this is none");
        }
        let name = format!("{switch}:{}", chosen.map_or_else(|| plain(port), str::to_string));
        if let Some(persistent) = lock(&self.persistent).get_mut(port) {
            if persistent.attached.iter().any(|(there, _)| there == switch) {
                return Err(Error::port_in_use(name));
            }
            let device = (self.open)(&name, &usual(&persistent.rings))?;
            let user = rustix::process::geteuid().as_raw();
            let served = Served::new(&name, device, usual(&persistent.rings).of_card(), None, user);
            lock(&self.ports).insert(name.clone(), Arc::downgrade(&served));
            persistent.attached.push((switch.to_string(), served));
            return Ok(number_of(switch, &name));
        }
        // The next interface of a deleted one's name, which was not noticed yet.
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
            let open = |name: &str| (self.open)(name, &usual(rings));
            let mut device = open(port)?;
            // Packets for the hosts behind the other ports must come in as well.
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

    /// Ends those of the chosen attached ports that are gone, as an interface that was deleted, with a message each.
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
        let name = format!("{switch}:{}", plain(port));
        let number = number_of(switch, &name);
        // A path is named as it was given: the same last part may be attached from another folder.
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
        // By its own name, or by that on the switch, which is listed.
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
                Error::new(ErrorKind::Exists, name, "it is there already").with_remedy(Remedy::Do(remedy.into()))
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
                        .with_remedy(Remedy::Do(remedy.into())));
                }
                persistent.remove(name);
                Ok(())
            }
        }
    }

    /// Returns how many ports of a switch are of attached ports.
    pub(super) fn attached_to(&self, switch: &str) -> usize {
        let attached = lock(&self.attached);
        let devices = attached.iter().flat_map(|attached| &attached.devices);
        devices.filter(|(device, _)| base(device.name()) == switch).count()
    }

    /// Returns the rings of an attached port on its switch.
    pub(super) fn attached_rings(&self, name: &str) -> Option<RingCounts> {
        let attached = lock(&self.attached);
        let (device, _) = attached.iter().flat_map(|attached| &attached.devices).find(|(it, _)| it.name() == name)?;
        let info = device.info();
        Some(RingCounts { tx: info.tx_queues, rx: info.rx_queues, ..usual(&RingCounts::default()).of_card() })
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
                // Packets that the port had no room for, and those that are too long for it.
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
    /// Connects a port of this machine with a port of the switch, by a thread for each queue of that. All queues of the machine's port
    /// are received from; packets to it go to its first ones, since a peer may not use the others.
    fn join(&mut self, mut port: Port, mut switched: Port) -> Result<()> {
        let queues = port.info().rx_queues.min(switched.info().rx_queues);
        // By the switch's port, and by the other one.
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

    /// Starts the thread that looks whether the port is gone.
    fn watch(&mut self, state: &Arc<State>) -> Result<()> {
        let (state, stop, waker) = (Arc::downgrade(state), self.stop.clone(), self.waker.clone());
        let longest = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as _ };
        let watch = move || {
            loop {
                let _ = poll(&mut [PollFd::new(&waker, PollFlags::IN)], Some(&longest));
                // Others end their own: two threads must not wait for each other.
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

    /// Returns whether the port, or the host's stack behind it, does not exist any more.
    fn is_gone(&self) -> bool {
        let gone = |port: &Port| port.link().is_err_and(|error| error.kind() == ErrorKind::Gone);
        self.devices.iter().any(|(port, _)| gone(port))
    }

    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        // The thread that has found the port gone ends after this.
        let here = std::thread::current().id();
        for thread in self.threads.into_iter().filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

/// Moves packets once; a switch does not wait for a port without room. Returns the number of slots received.
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

    /// The threads that look for ports that are gone may look at that moment.
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
