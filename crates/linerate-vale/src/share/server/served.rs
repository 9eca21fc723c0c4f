//! Ports that clients have open, and the rings that they may request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{Port, Statistics, is_pipe, is_vale};
use rustix::io::Errno;

use super::State;
use super::quota::has_room;
use crate::netmap::{Distribution, MAX_CONSUMERS, MAX_PORTS};
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::message::{ClusterRequest, OpenRequest, PortState, RingSelection};
use crate::share::protocol::name::base;
use crate::share::protocol::socket::is_trusted;

/// The most rings and slots that a client may request.
pub(super) const MOST_RINGS: u16 = 32;
pub(super) const MOST_SLOTS: u32 = 8192;
pub(super) const SLOTS: u32 = 1024;
/// The slots of a receive ring at a switch. Longer than usual, because a switch drops packets while the receiver does
/// not run.
pub(super) const SWITCH_SLOTS: u32 = 2048;
/// A port that one or more clients have open.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) device: Mutex<Port>,
    /// The port of the host's stack, if a client requested it.
    pub(super) host: Mutex<Option<Port>>,
    pub(super) rings: RingCounts,
    /// How the port's packets are distributed among clients.
    pub(super) cluster: Option<ClusterRequest>,
    /// The user of the client that opened the port.
    pub(super) user: u32,
    /// The number of connections.
    users: AtomicUsize,
    /// The length of the virtio-net header in front of each packet.
    pub(super) header: Arc<AtomicUsize>,
}

impl Served {
    pub(super) fn new(
        name: &str,
        device: Port,
        rings: RingCounts,
        cluster: Option<ClusterRequest>,
        user: u32,
    ) -> Arc<Served> {
        Arc::new(Served {
            name: name.to_string(),
            device: Mutex::new(device),
            host: Mutex::default(),
            rings,
            cluster,
            user,
            users: AtomicUsize::new(0),
            header: Arc::default(),
        })
    }

    /// Returns whether this is an interface that was deleted. Clients may still use it; the next client opens its
    /// successor.
    pub(super) fn is_deleted(&self) -> bool {
        !is_vale(&self.name) && lock(&self.device).link().is_err()
    }

    /// Counts a connection. The device's queues ensure that each ring has one connection.
    pub(super) fn join(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether a connection has the port open.
    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }
}

impl State {
    pub(super) fn served(&self, name: &str) -> Option<Arc<Served>> {
        lock(&self.ports).get(name).and_then(Weak::upgrade)
    }

    /// Returns the name that an attached persistent port has on its switch; other names are returned unchanged.
    pub(super) fn resolved(&self, name: &str) -> String {
        let persistent = lock(&self.persistent);
        let attached = persistent.get(name).and_then(|persistent| persistent.attached.first());
        attached.map_or_else(|| name.to_string(), |(_, served)| served.name.clone())
    }

    /// Returns a port, which is opened unless a client already has it open.
    pub(super) fn port(&self, wanted: &OpenRequest, user: u32) -> Result<Arc<Served>> {
        let OpenRequest { name, rings, cluster, .. } = wanted;
        let persistent = lock(&self.persistent);
        if persistent.contains_key(name) {
            return Err(Error::not_served(name, "it is not attached to a switch"));
        }
        let is_persistent = persistent.values().flat_map(|port| &port.attached).any(|(_, there)| there.name == *name);
        drop(persistent);
        let mut ports = lock(&self.ports);
        ports.retain(|_, port| port.strong_count() > 0);
        if let Some(port) = ports.get(name).and_then(Weak::upgrade).filter(|port| !port.is_deleted()) {
            // An interface is protected by its socket's permissions, and a persistent port is open to all clients.
            if is_vale(name) && !is_persistent {
                self.check_user(&port, user)?;
            }
            wanted.check_cluster(port.cluster.as_ref())?;
            return Ok(port);
        }
        if is_vale(name) {
            self.check_switch(&ports, base(name), user)?;
        }
        let mut rings = clamp_rings(rings);
        let device = match cluster {
            None => (self.open)(name, &rings)?,
            Some(ClusterRequest { shares, by }) => {
                // At a switch, each client also gets a transmit queue. An interface keeps its own queues.
                let tx = if is_vale(name) { *shares } else { rings.tx };
                rings = clamp_rings(&RingCounts { tx, rx: *shares, ..rings });
                (self.open)(&format!("{name}?cluster={shares}&by={by}"), &rings)?
            }
        };
        let info = device.info();
        // An interface has a host stack, which is opened when a client requests it.
        rings = RingCounts { tx: info.tx_queues, rx: info.rx_queues, ..rings };
        if is_vale(name) {
            rings = rings.of_card();
        }
        let port = Served::new(name, device, rings, cluster.clone(), user);
        ports.insert(name.clone(), Arc::downgrade(&port));
        Ok(port)
    }
}

impl State {
    /// Returns whether a user may get the packets of a port whose user is `owner`.
    pub(super) fn may_use(&self, owner: u32, user: u32) -> bool {
        owner == user || is_trusted(user) || self.joins_users.load(Ordering::Relaxed)
    }

    /// Refuses a port that another user's client has open, except to managers, because its packets belong to that user.
    fn check_user(&self, port: &Served, user: u32) -> Result<()> {
        if self.may_use(port.user, user) {
            return Ok(());
        }
        let why = format!("it is open, and not a port of user {user}");
        Err(Error::new(ErrorKind::Denied, &port.name, why).with_remedy(Remedy::JoinUsers))
    }

    /// Refuses a port to users that have half of the switch's ports. The last eighth is reserved for managers.
    fn check_switch(&self, ports: &HashMap<String, Weak<Served>>, switch: &str, user: u32) -> Result<()> {
        let there = ports.values().filter_map(Weak::upgrade).filter(|port| base(&port.name) == switch);
        let (mut count, mut of_user) = (self.attached_to(switch), 0);
        for port in there {
            count += 1;
            of_user += usize::from(port.user == user);
        }
        if has_room(MAX_PORTS, 1, count, of_user, is_trusted(user)) {
            return Ok(());
        }
        let why = format!(
            "the switch has {count} of {MAX_PORTS} ports, {of_user} of them of user {user}: half are for one user, and an eighth \
             only for managers"
        );
        Err(Error::new(ErrorKind::Exhausted, switch, why)
            .with_remedy(Remedy::Step("close ports, or use another switch".into())))
    }
}

/// Returns the rings that a client requested, limited to the maximum. Where the request has zeros, returns one ring and
/// the default number of slots.
pub(super) fn clamp_rings(rings: &RingCounts) -> RingCounts {
    let count = |asked: u16| asked.clamp(1, MOST_RINGS);
    let slots = |asked: u32| if asked == 0 { SLOTS } else { asked.clamp(2, MOST_SLOTS) };
    RingCounts {
        tx: count(rings.tx),
        rx: count(rings.rx),
        host_tx: count(rings.host_tx),
        host_rx: count(rings.host_rx),
        tx_slots: slots(rings.tx_slots),
        rx_slots: slots(rings.rx_slots),
    }
}

/// The remedy for a port that another program uses.
const END_OR_CHOOSE: &str = "end the program that has it, or choose another port";

impl OpenRequest {
    /// Refuses a port with a header in front of packets if the client does not expect a header.
    pub(super) fn check_header(&self, served: &Served) -> Result<()> {
        if served.header.load(Ordering::Relaxed) == 0 || self.takes_header {
            return Ok(());
        }
        let why = "its packets have a header in front, which the client does not expect";
        Err(Error::new(ErrorKind::Unusable, &served.name, why).with_source(Errno::IO))
    }

    /// Refuses an invalid cluster before a port is opened for it.
    pub(super) fn check_own_cluster(&self) -> Result<()> {
        let Some(ClusterRequest { shares, by }) = &self.cluster else { return Ok(()) };
        let is_known = Distribution::named(by).is_some() && (1..=MAX_CONSUMERS).contains(&usize::from(*shares));
        let is_port = !is_pipe(&self.name) && !self.is_monitor() && !self.selection.has_host();
        let why = match (is_known, is_port) {
            (true, true) => return Ok(()),
            (false, _) => format!("it cannot be distributed to {shares} clients by {by:?}"),
            (true, false) => {
                "pipes, monitors and the host's stack cannot be distributed to several clients".to_string()
            }
        };
        Err(Error::new(ErrorKind::BadOption, &self.name, why))
    }

    /// Refuses a port whose packets are distributed differently, or not at all.
    fn check_cluster(&self, there: Option<&ClusterRequest>) -> Result<()> {
        if self.cluster.as_ref() == there {
            return Ok(());
        }
        let (why, remedy) = match there {
            Some(ClusterRequest { shares, by }) => {
                (format!("it is distributed with cluster={shares}&by={by}"), "open it in the same way")
            }
            None => ("it is open, and not distributed to several clients".to_string(), END_OR_CHOOSE),
        };
        Err(Error::new(ErrorKind::InUse, &self.name, why).with_remedy(Remedy::Step(remedy.into())))
    }

    /// Checks that a port with these rings has the selected rings.
    pub(super) fn check(&self, rings: &RingCounts) -> Result<()> {
        let is_there = match self.selection {
            RingSelection::One(one) => one < rings.tx.max(rings.rx),
            RingSelection::OneOfHost(one) => one < rings.host_tx.max(rings.host_rx),
            _ => !self.selection.has_host() || rings.host_tx > 0,
        };
        match is_there {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::BadOption, &self.name, "it has no such rings")),
        }
    }
}

impl RingCounts {
    /// Returns these rings without the host stack's rings.
    pub(super) fn of_card(self) -> RingCounts {
        RingCounts { host_tx: 0, host_rx: 0, ..self }
    }

    /// Returns the host stack's rings as those of a separate port.
    pub(super) fn of_host(self) -> RingCounts {
        RingCounts { tx: self.host_tx, rx: self.host_rx, ..self.of_card() }
    }
}

impl Served {
    /// Opens the queue of the client's ring `n`. The first `cards` rings are the card's, the other rings the host
    /// stack's.
    pub(super) fn queue<Q>(
        &self,
        device: &mut Port,
        wanted: &OpenRequest,
        n: u16,
        cards: u16,
        take: impl Fn(&mut Port, u16) -> Result<Q>,
    ) -> Result<Q> {
        if !wanted.selection.has(n, cards) {
            return Err(Error::bad_peer("it starts a ring that it did not request"));
        }
        if n < cards {
            return take(device, n);
        }
        match &mut *lock(&self.host) {
            Some(host) => take(host, n - cards),
            None => Err(Error::bad_peer("it starts a ring that it did not request")),
        }
    }

    /// Returns the rings that a client sees: one in each direction if the port's packets are distributed.
    pub(super) fn rings_of_client(&self) -> RingCounts {
        match self.cluster {
            Some(_) => RingCounts { tx: 1, rx: 1, ..self.rings.of_card() },
            None => self.rings,
        }
    }

    /// Opens the first free queue of a port, for a client that can use any queue. Also returns the queue's number.
    pub(super) fn free_queue<Q>(&self, queues: u16, mut take: impl FnMut(u16) -> Result<Q>) -> Result<(u16, Q)> {
        let mut taken = Error::port_in_use(&self.name);
        for number in 0..queues {
            match take(number) {
                Err(error) if error.kind() == ErrorKind::QueueTaken => taken = error,
                result => return result.map(|queue| (number, queue)),
            }
        }
        Err(taken)
    }

    pub(super) fn state(&self, number: u8) -> PortState {
        let statistics = lock(&self.device).statistics().unwrap_or_default();
        state_of(&self.name, number, &statistics)
    }
}

pub(super) fn state_of(name: &str, number: u8, statistics: &Statistics) -> PortState {
    PortState {
        name: name.to_string(),
        number,
        rx_packets: statistics.rx_packets,
        tx_packets: statistics.tx_packets,
        drops: statistics.drops.no_descriptor + statistics.drops.oversize,
    }
}

/// Rewords the error for programs, which do not know the queue's owner.
pub(super) fn reword_for_clients(taken: Error) -> Error {
    match taken.kind() {
        ErrorKind::QueueTaken => taken.with_remedy(Remedy::Step(END_OR_CHOOSE.into())),
        _ => taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_a_port_does_not_have_are_refused() {
        let rings = RingCounts { tx: 2, rx: 3, host_tx: 1, host_rx: 2, ..RingCounts::default() };
        let check = |selection: RingSelection, rings: &RingCounts| {
            OpenRequest { selection, ..OpenRequest::default() }.check(rings).is_ok()
        };
        assert_eq!([0, 2, 3].map(|n| check(RingSelection::One(n), &rings)), [true, true, false]);
        assert_eq!([0, 1, 2].map(|n| check(RingSelection::OneOfHost(n), &rings)), [true, true, false]);
        for selection in [RingSelection::Host, RingSelection::AllAndHost] {
            assert!(check(selection, &rings) && !check(selection, &rings.of_card()));
        }
        for selection in [RingSelection::All, RingSelection::None] {
            assert!(check(selection, &rings) && check(selection, &rings.of_card()));
        }
        assert_eq!(rings.of_card(), RingCounts { tx: 2, rx: 3, ..RingCounts::default() });
        assert_eq!(rings.of_host(), RingCounts { tx: 1, rx: 2, ..RingCounts::default() });
    }

    #[test]
    fn requested_rings_are_kept_within_limits() {
        let one = RingCounts { tx: 1, rx: 1, host_tx: 1, host_rx: 1, tx_slots: SLOTS, rx_slots: SLOTS };
        assert_eq!(clamp_rings(&RingCounts::default()), one);
        let many = u16::MAX;
        let asked = RingCounts { tx: many, rx: many, host_tx: many, host_rx: many, tx_slots: u32::MAX, rx_slots: 1 };
        let (most, slots) = (MOST_RINGS, MOST_SLOTS);
        let given = RingCounts { tx: most, rx: most, host_tx: most, host_rx: most, tx_slots: slots, rx_slots: 2 };
        assert_eq!(clamp_rings(&asked), given);
    }

    #[test]
    fn drops_of_both_kinds_are_listed() {
        let mut statistics = linerate_core::port::Statistics { rx_packets: 1, tx_packets: 2, ..Default::default() };
        (statistics.drops.no_descriptor, statistics.drops.oversize) = (30, 400);
        let state = state_of("a", 5, &statistics);
        assert_eq!((state.number, state.rx_packets, state.tx_packets, state.drops), (5, 1, 2, 430));
    }
}
