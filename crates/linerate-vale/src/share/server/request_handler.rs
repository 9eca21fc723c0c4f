//! Answers the requests of a connection without a port. Once it opens a port, it becomes the port's descriptor
//! (`session`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::event::PEER_TIMEOUT;
use linerate_core::packet::Times;
use linerate_core::port::{Address, Description, Form, Port, PortName, is_pipe, is_vale};

use super::State;
use super::quota::MAX_EXTRA_PER_PORT;
use super::served::{MOST_RINGS, SWITCH_SLOTS, Served, clamp_rings, reword_for_clients};
use super::session::{Running, Session};
use crate::netmap::{RxMirror, delivery_of};
use crate::share::protocol::connection::{Connection, Message};
use crate::share::protocol::layout::{Plan, PortLayout, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::message::{
    ClusterRequest, MemoryChoice, OpenRequest, Opened, Reply, Request, RingSelection,
};
use crate::share::protocol::name::{base, pipe_of};
use crate::share::protocol::ring::{RingAt, ServerRxRing, ServerTxRing, SharedRing};
use crate::share::protocol::socket::is_trusted;
use crate::share::server::netmap_memory::{Lease, NetmapMemory};
use crate::share::server::pump::{Pump, RxPump, TxPump};
use crate::share::server::recipient::{DeliveredRing, RingRecipient, Yields};

/// The names of a switch's ports.
static VALE_NAMES: Description = Description { form: Form::VALE, ..Description::new("vale", Address::Text) };

/// The longest time to look for a descriptor's session.
const PROOF_TIME: Duration = Duration::from_secs(2);

/// Pipes that fit into a port's own memory. A program that uses the port and its pipes can then swap their buffers
/// (netmap has room for 2).
const PIPES: usize = 16;

/// A connection without a port, and its client.
pub struct RequestHandler {
    pub state: Arc<State>,
    pub connection: Arc<Connection>,
    /// The connection's number.
    pub number: u64,
    pub user: u32,
    pub process: u32,
    /// The only name that the connection's socket serves.
    pub only: Option<String>,
}

/// An opened port, with its description for this connection.
pub enum Begun {
    /// A new session.
    New { running: Box<Running>, layout: PortLayout, description: Lease },
    /// An existing session.
    Joined { session: Arc<Session>, layout: PortLayout, description: Lease },
}

/// A reply and the descriptors it carries.
type Answer = (Reply, Vec<OwnedFd>);

impl RequestHandler {
    /// Answers requests until the connection opens a port, then serves the port.
    pub fn serve(self) {
        while !self.state.is_stopping() {
            let (bytes, descriptors) = match self.connection.wait() {
                Ok(Message::Request(bytes, descriptors)) => (bytes, descriptors),
                Ok(Message::Proof(proof)) => {
                    self.state.record_proof(proof, None);
                    continue;
                }
                Ok(Message::Token) => continue,
                Err(_) => break,
            };
            // After a malformed message, the next messages cannot be understood either.
            let Ok(request) = serde_json::from_slice::<Request>(&bytes) else { break };
            self.state.wait_for_leaving(self.user);
            let answer = match request {
                Request::Open { wanted, memory } => match self.open_for(&wanted, &memory) {
                    Ok(running) => return running.into_iter().for_each(Running::run),
                    Err(error) => Err(error),
                },
                request => self.answer(request, descriptors),
            };
            let refused = |error: Error| (Reply::Refused(error), Vec::new());
            let (reply, descriptors) = answer.unwrap_or_else(refused);
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            if self.connection.send(&reply, &descriptors).is_err() {
                break;
            }
        }
        self.state.forget(self.number);
    }

    /// Opens a port and makes the connection its descriptor. Returns the session if it is new; the caller must run it.
    pub fn open_for(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Option<Running>> {
        // Retried because a session to join may end at the same time.
        let grant = self.state.extra.grant(self.user, choice.extra, is_trusted(self.user));
        let choice = &MemoryChoice { extra: grant.count, ..choice.clone() };
        let mut grant = Some(grant);
        for _ in 0..16 {
            let (session, running, layout, mut description) = match self.open(wanted, choice)? {
                Begun::New { running, layout, description } => {
                    (running.session.clone(), Some(*running), layout, description)
                }
                Begun::Joined { session, layout, description } => (session, None, layout, description),
            };
            // The extra buffers are linked here and not when they are allocated: linking may take long, and locks may
            // be held during the allocation.
            description.chain_extra();
            description.grant = grant.take_if(|_| running.is_some());
            if !session.join(self.number, &self.connection, description) {
                continue;
            }
            let extra = if running.is_some() { session.opened.extra } else { 0 };
            let number = self.state.number_in(self.user, self.process(choice.process), session.opened.number);
            let opened = Opened { layout, extra, number, ..session.opened.clone() };
            // The session notices if the client is gone.
            let _ = self.connection.send(&Reply::Opened(Box::new(opened)), &[session.memory.shared.as_fd()]);
            if running.is_some() {
                lock(&self.state.sessions).push(Arc::downgrade(&session));
            }
            return Ok(running);
        }
        Err(Error::port_in_use(&wanted.name))
    }

    pub fn answer(&self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Answer> {
        let plain = |reply| Ok((reply, Vec::new()));
        match request {
            Request::Open { .. } => Err(Error::bad_peer("it has opened a port already")),
            Request::Adopt => self.state.find(&descriptors)?.describe(),
            Request::Shadow => self.shadow(&descriptors),
            Request::Pools { number, process } => {
                let (number, plan) = self.state.plan(self.user, self.process(process), number)?;
                plain(Reply::Pools { number, plan })
            }
            Request::Info { name } => {
                self.check(&name)?;
                plain(Reply::Info { rings: self.info(&name)? })
            }
            Request::Header { name, set } => {
                self.check(&name)?;
                plain(Reply::Done { number: self.header(&name, set)? })
            }
            Request::Attach { switch, port, host, rings } => {
                self.check_manager(&switch)?;
                plain(Reply::Done { number: self.state.attach(&switch, &port, host, &rings)? })
            }
            Request::Detach { switch, port } => {
                self.check_manager(&switch)?;
                let number = self.state.take_after_others(|| self.state.detach(&switch, &port))?;
                plain(Reply::Done { number })
            }
            Request::Create { name, rings } => {
                self.check_manager(&name)?;
                self.state.create(&name, &rings)?;
                plain(Reply::Done { number: 0 })
            }
            Request::Destroy { name } => {
                self.check_manager(&name)?;
                self.state.destroy(&name)?;
                plain(Reply::Done { number: 0 })
            }
            Request::List => plain(Reply::List(self.state.list(self.only.as_deref()))),
        }
    }

    /// Refuses names that the socket does not serve, and ports that cannot be served to clients.
    fn check(&self, name: &str) -> Result<()> {
        if name.contains(':') && !is_vale(name) {
            let why = "only ports of switches have a ':' in their names";
            return Err(Error::not_served(name, why));
        }
        // Options would apply to the server's own port, and could exceed a client's limits.
        if name.contains('?') {
            let why = "a name has no options here: the request has fields for rings and slots";
            return Err(Error::not_served(name, why));
        }
        match &self.only {
            Some(only) if only != base(name) => Err(Error::not_served(name, "this socket is for another name")),
            _ => Ok(()),
        }
    }

    /// Refuses management to users other than root and the server's own, because attaching an interface to a switch
    /// affects all users of the switch.
    fn check_manager(&self, name: &str) -> Result<()> {
        self.check(name)?;
        match is_trusted(self.user) {
            true => Ok(()),
            false => {
                let why = "only root and the server's own user may manage it";
                Err(Error::new(ErrorKind::Denied, name, why).with_remedy("sudo"))
            }
        }
    }

    /// Refuses an interface of the machine, because Linux would lose its packets. At the interface's own socket, the
    /// socket's permissions decide. At the socket for all names, only managers may open interfaces.
    fn check_interface(&self, name: &str) -> Result<()> {
        if self.is_in_memory(name) || self.only.is_some() || is_trusted(self.user) {
            return Ok(());
        }
        let remedy = format!("to let others have it: sudo linerate serve {}", base(name));
        Err(Error::new(ErrorKind::Denied, name, "the interface is for root and the server's own user")
            .with_remedy(Remedy::Step(remedy.into())))
    }

    /// Returns whether a port is in memory: a port of a switch, a pipe, or a persistent port.
    fn is_in_memory(&self, name: &str) -> bool {
        is_vale(name) || is_pipe(name) || lock(&self.state.persistent).contains_key(name)
    }

    /// Refuses monitors of other users' ports, except to managers, because a monitor gets all packets of the port.
    fn check_monitor(&self, name: &str) -> Result<()> {
        let owner = match is_pipe(name) {
            true => lock(&self.state.pipes).get(&pipe_of(name).0).map(|pipe| pipe.user),
            false => self.state.served(name).map(|served| served.user),
        };
        let (pipe, side) = pipe_of(name);
        let is_open = !is_pipe(name) || lock(&self.state.pipes).get(&pipe).is_some_and(|pipe| pipe.is_open(side));
        if owner.map_or(is_trusted(self.user), |owner| self.state.may_use(owner, self.user)) {
            let closed = || Error::new(ErrorKind::BadOption, name, "it is not open: there is nothing to monitor");
            return if is_open { Ok(()) } else { Err(closed()) };
        }
        let why = format!("a monitor sees all packets, and this is not a port of user {}", self.user);
        Err(Error::new(ErrorKind::Denied, name, why).with_remedy(Remedy::JoinUsers))
    }

    /// Returns the rings that a port has, or would have, without opening it.
    fn info(&self, name: &str) -> Result<RingCounts> {
        let unasked = RingCounts::default();
        if is_pipe(name) {
            return Ok(match lock(&self.state.pipes).get(&pipe_of(name).0) {
                Some(pipe) => pipe.rings(pipe_of(name).1),
                None => clamp_rings(&unasked).of_card(),
            });
        }
        if let Some(persistent) = lock(&self.state.persistent).get(name) {
            return Ok(clamp_rings(&persistent.rings).of_card());
        }
        match self.state.served(name) {
            Some(served) => Ok(served.rings),
            None if is_vale(name) => {
                PortName::parse_among(name, &[&VALE_NAMES])?;
                Ok(clamp_rings(&self.rings(name, &unasked)).of_card())
            }
            None => linerate_kernel::Interface::open(base(name)).map(|_| clamp_rings(&self.rings(name, &unasked))),
        }
    }

    /// Returns the requested rings. If their number is 0, an interface gets one per queue, as in netmap.
    fn rings(&self, name: &str, asked: &RingCounts) -> RingCounts {
        let is_left = asked.tx == 0 || asked.rx == 0;
        let interface =
            (is_left && !self.is_in_memory(name)).then(|| linerate_kernel::Interface::open(base(name)).ok()).flatten();
        let queues = interface.map_or(1, |interface| interface.queues().min(MOST_RINGS.into()) as u16);
        let count = |asked: u16| if asked == 0 { queues } else { asked };
        let rx_slots = if asked.rx_slots == 0 && is_vale(name) { SWITCH_SLOTS } else { asked.rx_slots };
        RingCounts { tx: count(asked.tx), rx: count(asked.rx), rx_slots, ..*asked }
    }

    /// Returns the rings of a copying monitor, as in netmap: one for each ring of the port, by number, and a transmit
    /// ring that sends nothing. They have as many slots as the port's rings, unless the request sets another number.
    /// The host stack's rings are included on request. If a program asks for all rings but for a smaller number, each
    /// ring gets the packets of several.
    fn rings_of_monitor(&self, name: &str, wanted: &OpenRequest) -> RingCounts {
        // A monitor of a port that is not open is refused later, with the error for a missing port and not because of
        // its rings.
        let unasked = || clamp_rings(&self.rings(name, &RingCounts::default()));
        let there = match is_pipe(name) {
            true => lock(&self.state.pipes).get(&pipe_of(name).0).map(|pipe| pipe.rings(pipe_of(name).1)),
            false => self.state.served(name).map(|served| served.rings).or_else(|| self.state.attached_rings(name)),
        };
        let (there, asked) = (there.unwrap_or_else(unasked), &wanted.rings);
        let slots = |asked: u32, there: u32| if asked == 0 { there } else { asked };
        let host = if wanted.selection.has_host() { there.host_tx.max(there.host_rx) } else { 0 };
        let all = there.tx.max(there.rx);
        let is_folded = wanted.selection == RingSelection::All && (1..all).contains(&asked.rx);
        RingCounts {
            tx: 1,
            rx: if is_folded { asked.rx } else { all },
            host_tx: host.min(1),
            host_rx: host,
            tx_slots: slots(asked.tx_slots, there.tx_slots),
            rx_slots: slots(asked.rx_slots, there.rx_slots),
        }
    }

    /// Returns the number that identifies the memory of the client's process.
    fn process(&self, number: u64) -> u64 {
        if number == 0 { self.process.into() } else { number }
    }

    /// Refuses a memory number that is not the port's, as netmap does.
    pub fn check_memory(&self, name: &str, choice: &MemoryChoice, number: u16) -> Result<()> {
        let there = self.state.number_in(self.user, self.process(choice.process), number);
        if choice.number == 0 || choice.plan.is_some() || choice.number == there {
            return Ok(());
        }
        let why = format!("its memory has number {there}, not {}", choice.number);
        Err(Error::new(ErrorKind::BadOption, name, why))
    }

    /// Returns the memory that the client has chosen.
    pub fn choose(&self, choice: &MemoryChoice) -> Result<(u16, Arc<NetmapMemory>)> {
        match choice.plan {
            Some(plan) => self.state.make_memory(self.user, plan),
            None => self.state.memory(self.user, self.process(choice.process), choice.number),
        }
    }

    /// Opens a port, or joins a session that has it open.
    pub fn open(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Begun> {
        if wanted.selection == RingSelection::Memory {
            return self.open_memory(wanted, choice);
        }
        self.check(&wanted.name)?;
        let name = self.state.resolved(&wanted.name);
        let is_monitor = wanted.is_monitor();
        let rings = match (wanted.zero_copy, is_monitor) {
            // A zero-copy monitor's rings are as long as its port's, which are not known yet.
            (true, _) => wanted.rings,
            (false, true) => self.rings_of_monitor(&name, wanted),
            (false, false) => self.rings(&name, &wanted.rings),
        };
        let wanted = &OpenRequest { rings, name, ..wanted.clone() };
        wanted.check_own_cluster()?;
        if is_pipe(&wanted.name) && !is_monitor {
            return self.state.take_after_others(|| self.open_pipe(wanted, choice));
        }
        self.check_interface(&wanted.name)?;
        if is_monitor {
            self.check_monitor(&wanted.name)?;
        }
        if wanted.zero_copy {
            return self.open_zero_copy(wanted, choice);
        }
        if let Some(joined) = self.join(wanted, choice)? {
            return Ok(joined);
        }
        self.state.make_room(self.number, &clamp_rings(&wanted.rings))?;
        let opened = self.state.retry_after_others(|| self.open_port(wanted, choice));
        opened.map_err(|error| match (error.kind(), &wanted.cluster) {
            (ErrorKind::QueueTaken, Some(ClusterRequest { shares, .. })) => {
                let why = format!("all {shares} queues are taken, with cluster={shares}");
                Error::new(ErrorKind::InUse, &wanted.name, why)
                    .with_remedy(Remedy::Step("end a program that has one".into()))
            }
            _ => reword_for_clients(error),
        })
    }

    /// Opens memory without a port (`NR_REG_NULL`).
    fn open_memory(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Begun> {
        let rings = RingCounts { host_tx: 0, host_rx: 0, ..wanted.rings };
        let (number, memory) = self.choose(choice)?;
        let rings = RingCounts { tx: rings.tx.min(MOST_RINGS), rx: rings.rx.min(MOST_RINGS), ..rings };
        self.begin(wanted, choice, number, memory, rings, [0; 6], None, None)
    }

    /// Joins a session that opened the port in the same way.
    fn join(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Option<Begun>> {
        let is_alone = wanted.exclusive || wanted.is_monitor() || wanted.cluster.is_some();
        let is_alone = is_alone || wanted.selection == RingSelection::None;
        if !wanted.shares || is_alone {
            return Ok(None);
        }
        let sessions: Vec<_> = lock(&self.state.sessions).iter().filter_map(std::sync::Weak::upgrade).collect();
        let served = self.state.served(&wanted.full_name());
        if served.as_ref().is_some_and(|served| served.is_deleted()) {
            let of_port = sessions.iter().filter(|session| session.opened.request.name == wanted.name);
            of_port.for_each(|session| session.notify_closed());
            return Ok(None);
        }
        let Some(session) = sessions.into_iter().find(|session| session.can_share(wanted, self.user)) else {
            return Ok(None);
        };
        let Opened { rings, layout, .. } = &session.opened;
        self.check_memory(&wanted.name, choice, session.opened.number)?;
        if let Some(served) = served {
            wanted.check_header(&served)?;
        }
        let layout = session.memory.describe(&wanted.full_name(), rings, layout)?;
        let description = Lease::of_description(&session.memory, layout.at, Vec::new());
        Ok(Some(Begun::Joined { session, layout, description }))
    }

    /// Opens a zero-copy monitor in its port's memory.
    fn open_zero_copy(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Begun> {
        let sessions: Vec<_> = lock(&self.state.sessions).iter().filter_map(std::sync::Weak::upgrade).collect();
        let is_it = |session: &Arc<Session>| {
            let there = &session.opened.request;
            there.name == wanted.name && !there.is_monitor() && there.selection != RingSelection::Memory
        };
        let why = "no client has it open: there are no buffers to monitor";
        let port = sessions.into_iter().find(is_it);
        let port = port.ok_or_else(|| Error::new(ErrorKind::BadOption, &wanted.name, why))?;
        let there = port.opened.rings;
        // The port's memory has room for a monitor whose rings are as long as the port's longest.
        let longest = there.tx_slots.max(there.rx_slots);
        let rx_slots = match wanted.rings.rx_slots {
            0 => there.rx_slots,
            asked => asked.max(2).min(longest),
        };
        let rings =
            RingCounts { tx: 1, rx: there.all_tx().max(there.all_rx()), host_tx: 0, host_rx: 0, rx_slots, ..there };
        let (number, memory) = (port.opened.number, port.memory.clone());
        self.check_memory(&wanted.name, choice, number)?;
        let Begun::New { mut running, layout, description } =
            self.begin(wanted, choice, number, memory, rings, port.opened.mac, None, None)?
        else {
            return Err(Error::bad_peer("a monitor needs a separate session"));
        };
        port.add_monitor(&running.session)?;
        running.monitors = Some(port);
        Ok(Begun::New { running, layout, description })
    }

    fn open_port(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Begun> {
        let name = wanted.full_name();
        let (mut shadow, is_monitor) = (None, wanted.is_monitor());
        let served = match is_monitor {
            // Each monitor opens its own port.
            true => {
                let RingCounts { host_tx, host_rx, .. } = wanted.rings;
                let rings = RingCounts { host_tx, host_rx, ..clamp_rings(&wanted.rings) };
                let device = (self.state.open)(&name, &rings)?;
                if is_pipe(&wanted.name) {
                    shadow = Some(self.state.shadow(&wanted.name, device.pool())?);
                }
                Served::new(&name, device, rings, None, self.user)
            }
            false => self.state.port(wanted, self.user)?,
        };
        wanted.check_header(&served)?;
        wanted.check(&served.rings_of_client())?;
        if wanted.selection.has_host() {
            let mut host = lock(&served.host);
            if host.is_none() {
                let rings = served.rings.of_host();
                let of_host = OpenRequest { name: format!("{}^", wanted.name), ..wanted.clone() };
                *host = Some((self.state.open)(&of_host.full_name(), &rings)?);
            }
        }
        let (mac, rings) = (lock(&served.device).mac().0, served.rings_of_client());
        let is_memory = is_vale(&wanted.name) || is_monitor || lock(&self.state.persistent).contains_key(&wanted.name);
        let (number, memory) = match choice {
            MemoryChoice { number: 0, plan: None, .. } if is_memory => {
                // Reserves room for a zero-copy monitor.
                let most = rings.all_tx().max(rings.all_rx());
                let room = RingCounts { tx: most, rx: most, host_tx: 0, host_rx: 0, ..rings };
                let plan = Plan::of_ports(if is_monitor { 1 } else { 2 }, &room, choice.extra.min(MAX_EXTRA_PER_PORT));
                let zones = if is_monitor { 0 } else { usize::from(rings.all_tx()) * rings.tx_slots as usize };
                // Descriptors that share the port have their own descriptions.
                let ports = crate::share::protocol::layout::Objects { count: 16, ..plan.ports };
                let pipes = Plan::of_ports(2 * PIPES, &RingCounts { tx: 1, rx: 1, ..room }, 0);
                let plan = Plan { zones, ports, ..plan };
                self.state.make_memory(self.user, if is_monitor { plan } else { plan.and(pipes) })?
            }
            _ => self.choose(choice)?,
        };
        served.join();
        let result = self.begin(wanted, choice, number, memory, rings, mac, Some(&served), shadow);
        if result.is_err() {
            served.leave();
        }
        result
    }

    /// Creates the rings and the session.
    #[allow(clippy::too_many_arguments)]
    fn begin(
        &self,
        wanted: &OpenRequest,
        choice: &MemoryChoice,
        number: u16,
        memory: Arc<NetmapMemory>,
        rings: RingCounts,
        mac: [u8; 6],
        served: Option<&Arc<Served>>,
        shadow: Option<Arc<crate::share::server::shadow::Shadow>>,
    ) -> Result<Begun> {
        let (selection, is_monitor) = (wanted.selection, wanted.is_monitor());
        // Some programs access all rings. A monitor's transmit rings stay empty for them, because nothing frees their
        // slots.
        let has_tx = |n| is_monitor || selection.has(n, rings.tx) && !wanted.receive_only;
        let has_rx = |n| selection.has(n, rings.rx) && !wanted.transmit_only;
        let places = memory.place_rings(&rings, has_tx, has_rx, choice.offsets)?;
        let lease = Lease::of_rings(&memory, vec![places.clone()]);
        let layout = memory.describe(&wanted.full_name(), &rings, &places)?;
        let description = Lease::of_description(&memory, layout.at, memory.take_extra(choice.extra));
        let extra = description.extra.len();
        let opened = Opened { mac, ..memory.opened(wanted, rings, number, layout.clone(), extra) };
        let session = Session::new(opened, self.user, memory)?;
        let pump = match served {
            Some(served) => Some(self.pump(served, &session)?),
            None => None,
        };
        let (served, lease) = (served.cloned(), Some(lease));
        let running = Running { pump, served, shadow, lease, ..Running::new(&self.state, session) };
        Ok(Begun::New { running: Box::new(running), layout, description })
    }

    fn pump(&self, served: &Arc<Served>, session: &Arc<Session>) -> Result<Pump> {
        let (Opened { request, layout, .. }, memory) = (&session.opened, &session.memory);
        // Senders to a port of a switch copy into a client's ring, unless the packets are distributed among clients.
        let is_distributed = served.cluster.is_some();
        let delivery = if is_distributed { None } else { delivery_of(&served.name) };
        let mut share = None;
        let mut pump = Pump::default();
        let device = &mut *lock(&served.device);
        let (longest, pool) = (device.info().max_frame, device.pool().clone());
        let offset_mask = layout.offset_mask;
        let times = || request.timestamps.then(Times::default);
        let ring =
            |place: &RingAt| SharedRing::new(&memory.shared, *place).map(|ring| SharedRing { offset_mask, ..ring });
        let sending = layout.tx.iter().enumerate().filter(|_| !request.is_monitor());
        for (n, place) in sending.filter_map(|(n, place)| Some((n as u16, place.as_ref()?))) {
            let queue = match is_distributed {
                true => served.free_queue(served.rings.tx, |number| device.tx(number))?.1,
                false => served.queue(device, request, n, served.rings.tx, |device, n| device.tx(n))?,
            };
            pump.sending.push(TxPump::new(ServerTxRing::new(ring(place)?), queue, &pool, longest, &served.header));
        }
        for (n, place) in layout.rx.iter().enumerate().filter_map(|(n, place)| Some((n as u16, place.as_ref()?))) {
            let mut queue = match is_distributed {
                true => {
                    let (number, queue) = served.free_queue(served.rings.rx, |number| device.rx(number))?;
                    share = Some(usize::from(number));
                    queue
                }
                false => served.queue(device, request, n, served.rings.rx, |device, n| device.rx(n))?,
            };
            let (ring, header) = (ring(place)?, &served.header);
            let Some(delivery) = &delivery else {
                pump.receiving.push(RxPump { times: times(), ..RxPump::new(ServerRxRing::new(ring), queue, header) });
                continue;
            };
            // Senders to a port of a switch copy packets into the client's ring.
            let received = RxMirror::new(&served.name, n);
            let producer = ServerRxRing::new(ring.clone());
            let recipient = RingRecipient {
                ring: producer,
                header: header.clone(),
                times: times(),
                received,
                notifier: session.clone(),
                yields: Yields::default(),
            };
            delivery.redirect_queue(n, &mut queue, Box::new(recipient));
            pump.delivered.push(DeliveredRing { ring, _queue: queue });
        }
        if request.is_monitor() || delivery.is_none() {
            let served = served.clone();
            pump.is_closed = Some(Box::new(move || lock(&served.device).link().is_err()));
        }
        if delivery.is_none() {
            let mut before = drops_of(device, share);
            let served = served.clone();
            pump.dropped = Some(Box::new(move || {
                let now = drops_of(&lock(&served.device), share);
                let (full, too_long) = std::mem::replace(&mut before, now);
                (now.0.saturating_sub(full), now.1.saturating_sub(too_long))
            }));
        }
        Ok(pump)
    }

    /// Replies where to put copies of packets that a descriptor sends into a pipe.
    fn shadow(&self, descriptors: &[OwnedFd]) -> Result<Answer> {
        let session = self.state.find(descriptors)?;
        let side = pipe_of(&session.opened.request.name).1;
        match self.state.shadow_of(&session) {
            Some(shadow) => shadow.answer(side),
            None => {
                let buffers = crate::share::protocol::mapping::Buffers { at: 0, size: 0, count: 0 };
                Ok((Reply::Shadow { buffers, places: Vec::new() }, Vec::new()))
            }
        }
    }

    /// Returns the length of the header in front of a port's packets. Only the port's user and managers may set it.
    fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        if set.is_none() && lock(&self.state.pipes).contains_key(&pipe_of(name).0) {
            return Ok(0);
        }
        let served = self.state.served(name).ok_or(Error::not_served(name, "no client has it open"))?;
        if let Some(len) = set {
            if !is_vale(name) {
                let why = "only ports of switches have a header in front of packets";
                return Err(Error::unsupported(name, "header", why));
            }
            if ![0, 10, 12].contains(&len) {
                let why = format!("a virtio-net header has 10 or 12 bytes, not {len} (VIRTIO 1.2, 5.1.6)");
                return Err(Error::new(ErrorKind::BadOption, name, why));
            }
            if served.user != self.user && !is_trusted(self.user) {
                return Err(Error::new(ErrorKind::Denied, name, "it belongs to another user"));
            }
            served.header.store(len, Ordering::Relaxed);
        }
        Ok(served.header.load(Ordering::Relaxed) as u32)
    }
}

/// Returns how many packets a port dropped because they did not fit, and because they were too long. For a share, only
/// its own packets.
fn drops_of(device: &Port, share: Option<usize>) -> (u64, u64) {
    if let Some(share) = share {
        return (device.queue_statistics().rx_no_descriptor.get(share).copied().unwrap_or_default(), 0);
    }
    let drops = device.statistics().unwrap_or_default().drops;
    (drops.no_descriptor, drops.oversize)
}

impl State {
    /// Finds the session of a descriptor by sending a proof, which arrives only where the descriptor is connected.
    ///
    /// # Errors
    /// `ENXIO` if the descriptor is not a port of this server.
    fn find(&self, descriptors: &[OwnedFd]) -> Result<Arc<Session>> {
        let [descriptor] = descriptors else { return Err(Error::bad_peer("a descriptor is missing")) };
        let mut proof = [0; 16];
        rustix::rand::getrandom(&mut proof[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::system("getrandom", error))?;
        lock(&self.proofs).insert(proof, None);
        let until = Instant::now() + PROOF_TIME.min(PEER_TIMEOUT);
        let mut is_sent = false;
        let found = loop {
            // The proof may not fit until the session has read its messages.
            is_sent = is_sent
                || match Connection::new(descriptor).send_proof(proof) {
                    Ok(()) => true,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
                    Err(_) => break None,
                };
            let proofs = lock(&self.proofs);
            if let Some(Some(found)) = proofs.get(&proof) {
                break found.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            let short = left.min(Duration::from_millis(if is_sent { 1000 } else { 1 }));
            drop(self.proved.wait_timeout(proofs, short).unwrap_or_else(PoisonError::into_inner));
        };
        lock(&self.proofs).remove(&proof);
        found.ok_or_else(|| Error::new(ErrorKind::NotServed, "", "the descriptor is not a port of this server"))
    }

    /// Records where a proof arrived.
    pub(super) fn record_proof(&self, proof: [u8; 16], session: Option<Arc<Session>>) {
        if let Some(place) = lock(&self.proofs).get_mut(&proof) {
            *place = Some(session);
            self.proved.notify_all();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
