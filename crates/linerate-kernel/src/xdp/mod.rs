//! AF_XDP: all packets of an interface, or some flows, without the kernel's network stack.
//!
//! - `socket`: a socket on one queue, with the region as its UMEM
//! - `ring`: the four rings shared with the kernel
//! - `queue`: receive and send
//! - `metadata`: what the driver knows about each packet (`metadata=on`)
//! - `program`: the XDP program that selects packets; a new one replaces it when rules change
//!
//! The kernel runs an XDP program for each packet. The program redirects the selected packets to the sockets and passes
//! all others. It is detached when the process ends for any reason.

mod metadata;
mod program;
mod queue;
mod ring;
mod socket;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::filter::Filter;
use linerate_core::port::{
    Action, Address, Capabilities, Config, Described, Description, Device, Drops, FRAME_HEADERS, Feature, METADATA,
    MTU, Maturity, Opening, PortClass, PortKind, PortOption, QUEUES, QueueCounters, RING, Receive, Rule, RuleId, Rules,
    Rx, Transmit, Tx, Value, escaped,
};
use metadata::Hints;
use program::Verdict;
use queue::{XdpRx, XdpTx};
pub use socket::Copying;
use socket::{RELEASE, Socket, retry_until_released};

use super::bpf::{self, Kind, Mode, Program, SocketMap};
use super::capabilities;
use super::flow::{FLOW, flow_of};
use super::host::Exclusive;
use super::interface::Interface;
use super::packet::PacketPort;
use super::port::{KernelPort, OnInterface, Sockets, Target};
use super::steering::{Steering, delete_orphaned_rules};

/// The options of an AF_XDP port, in addition to those of all ports.
#[derive(Clone, Debug, Default)]
pub struct XdpOptions {
    /// The interface's queue to use; all queues if `None`.
    pub queue: Option<u32>,
    /// The packets to receive; all if `None`.
    pub flow: Option<Filter>,
    /// Whether the kernel may copy.
    pub copying: Copying,
    /// Runs the driver's receive work on the polling thread instead of in interrupts on any processor (busy polling;
    /// kernel documentation networking/af_xdp.rst, socket(7) `SO_BUSY_POLL`).
    pub busy: bool,
    /// Whether the card steers the flow to a separate queue.
    pub steer: Steer,
    /// Whether the port has the interface exclusively. If so, it sets the interface up, and drops the packets that
    /// Linux sends to it (Linux 6.6), until the port is dropped.
    pub alone: bool,
}

/// Whether the card steers a flow (ethtool(8) `-N`) to the chosen queue, or by default to the last queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steer {
    /// If the card supports steering. Without steering, the XDP program still finds the flow on all queues of the port.
    #[default]
    Auto,
    /// Always; opening fails if the card cannot.
    Always,
    /// Never.
    Never,
}

/// `xdp:IF` and `xdp:IF-Q`
pub static XDP: PortKind = PortKind {
    description: Description {
        options: &[
            QUEUES,
            RING,
            MTU,
            FLOW,
            PortOption {
                name: "copy",
                value: Value::Switch,
                default: "",
                help: "let the kernel copy; off: fail where it must",
            },
            PortOption::switch("busy", "run the driver's receive work on the polling thread"),
            PortOption {
                name: "steer",
                value: Value::Word(&["auto", "on", "off"]),
                default: "auto",
                help: "let the card steer the flow to a separate queue",
            },
            PortOption::switch("alone", "take the interface from Linux as long as the port is open"),
            METADATA,
        ],
        feature: "kernel",
        example: "xdp:eth0?flow=udp:4321",
        summary: "some flows of an interface of Linux (AF_XDP); the rest stays with Linux",
        page: "kernel.md",
        maturity: Maturity::Others,
        class: PortClass::Xdp,
        ..Description::new("xdp", Address::Interface)
    },
    open: &open,
};

/// Opens an interface; falls back to packet sockets if AF_XDP is unsupported.
fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let (name, config) = (opening.name, opening.config);
    let (interface, queue) = Interface::open_queue(name.address())?;
    interface.check_ethernet()?;
    let copying = match name.option("copy") {
        None => Copying::Auto,
        Some("on") => Copying::Copy,
        Some("off") => Copying::Never,
        Some(_) => return Err(name.bad_option("copy", "it must be on or off")),
    };
    let busy = name.switch("busy", false)?;
    let steer = match name.option("steer") {
        None | Some("auto") => Steer::Auto,
        Some("on") => Steer::Always,
        Some("off") => Steer::Never,
        Some(_) => return Err(name.bad_option("steer", "it must be auto, on or off")),
    };
    let alone = name.switch("alone", false)?;
    let options = XdpOptions { queue, flow: flow_of(name)?, copying, busy, steer, alone };
    let interface_name = interface.name().to_string();
    match Xdp::prepare(interface, &options, config.clone()) {
        // Packet sockets receive the same packets, only slower. If the name requires AF_XDP, the error is returned.
        Err(error)
            if error.kind() == ErrorKind::Unsupported
                && queue.is_none()
                && copying != Copying::Never
                && !(busy || config.options.metadata) =>
        {
            let why = error.why();
            let description = format!("without AF_XDP ({why}): each packet is copied, and Linux receives it, too");
            let config = Config { description, ..config };
            Ok(Box::new(PacketPort::open(Interface::find(&interface_name)?, options.flow, config)?))
        }
        opened => Ok(Box::new(opened?)),
    }
}

/// An interface shared with the kernel.
pub struct Xdp {
    /// Removed first when the port is dropped: that of the flow, and of rules.
    steering: Option<Steering>,
    rule_steering: BTreeMap<RuleId, Steering>,
    rules: Rules,
    options: XdpOptions,
    /// Sockets by queue of the interface: opened with the port, closed with their queues, reopened for new queues.
    sockets: Vec<QueueSocket>,
    shared: Arc<Shared>,
    past: Arc<Mutex<Drops>>,
    /// The card's drop count when the port was opened; only in zero-copy mode, where the socket does not count frames
    /// that found no descriptor.
    missed: Option<u64>,
    /// With `metadata=on`.
    hints: Option<Hints>,
    program: Program,
    /// The program's attachment to the interface, and where it runs; see [`Xdp::attach`].
    attached: Option<(bpf::Link, Mode)>,
    exclusive: Option<Exclusive>,
}

/// The socket of an interface's queue.
struct QueueSocket {
    queue: u32,
    socket: Weak<Socket>,
    /// Holds the socket until a queue takes it.
    waiting: Option<Arc<Socket>>,
}

/// State changed by queues as they start and stop.
struct Shared {
    map: SocketMap,
    /// The sockets of each started receive queue of the port.
    started: Mutex<Vec<Option<Vec<Arc<Socket>>>>>,
}

impl Shared {
    /// Records a started queue. Packets are directed to the sockets once all queues have started, so that none is lost
    /// in a queue without an owner.
    fn start(&self, queue: u16, sockets: Vec<Arc<Socket>>) -> std::io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started[usize::from(queue)] = Some(sockets);
        if started.iter().all(Option::is_some) {
            for socket in started.iter().flatten().flatten() {
                self.map.set(socket.queue, Some(socket.fd()))?;
            }
        }
        Ok(())
    }

    /// Records a stopped queue, whose packets go to the kernel again.
    fn stopped(&self, queue: u16) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in started[usize::from(queue)].take().into_iter().flatten() {
            let _ = self.map.set(socket.queue, None);
        }
    }
}

/// Bytes that the kernel reserves before a frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// The maximum number of buffers of a frame (`MAX_SKB_FRAGS`).
const MOST_BUFFERS: usize = 17;

impl Xdp {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`], [`ErrorKind::BadOption`], [`ErrorKind::Unusable`], [`ErrorKind::Exhausted`] and others.
    pub fn open(interface: Interface, options: &XdpOptions, config: Config) -> Result<KernelPort<Xdp>> {
        let mut port = Xdp::prepare(interface, options, config)?;
        port.start()?;
        Ok(port)
    }

    /// Opens an interface up to [`start`](Sockets::start): makes all checks, and does not change the interface.
    fn prepare(interface: Interface, options: &XdpOptions, config: Config) -> Result<KernelPort<Xdp>> {
        let name = interface.name().to_string();
        let cannot = |why: String, mend: String| Error::interface(&name, why, mend);
        let size = config.pool.region().buffer_size();
        if !(2048..=4096).contains(&size) {
            let why = format!("AF_XDP needs buffers of 2048 or 4096 bytes, and the region's have {size}");
            return Err(cannot(why, "open it in a region with such buffers".to_string()));
        }
        config.check_ring()?;
        if let Some(flow) = options.flow.as_ref().filter(|flow| flow.has_inner()) {
            let why = format!("its program in the kernel cannot match inside tunnels, as flow={flow} needs");
            return Err(cannot(
                why,
                format!("packet:{}?flow={flow}, or flow=udp and a filter in the program", escaped(&name)),
            ));
        }
        Socket::check_kernel(&name)?;
        let hints = config.options.metadata.then(|| Hints::of(&interface)).transpose()?;
        Xdp::prepare_with(interface, options, config, hints)
    }

    /// The second part of [`prepare`](Xdp::prepare), after the checks of the options.
    fn prepare_with(
        interface: Interface,
        options: &XdpOptions,
        config: Config,
        hints: Option<Hints>,
    ) -> Result<KernelPort<Xdp>> {
        let size = config.pool.region().buffer_size();
        delete_orphaned_rules();
        let there = interface.queues();
        let queues: Vec<u32> = match options.queue {
            Some(queue) if queue >= there => {
                let name = interface.name();
                let why = format!("{name} has no queue {queue}: its queues are 0 to {}", there.saturating_sub(1));
                return Err(Error::bad_name(config.name, why));
            }
            Some(queue) => vec![queue],
            None => (0..there).collect(),
        };
        if usize::from(config.options.rx_queues) > queues.len() {
            let (queues, most) = (config.options.rx_queues, queues.len() as u16);
            let remedy = format!("open it with fewer, or: sudo ethtool -L {} combined {queues}", interface.name());
            return Err(
                Error::too_many_queues(config.name, "receive", queues, most).with_remedy(Remedy::Step(remedy.into()))
            );
        }

        let map = SocketMap::new(there)
            .map_err(|error| interface.refused("create a map of sockets", capabilities::XDP, &error))?;
        let program = load(&interface, options.flow.as_ref(), &[], &map, hints)?;
        let (past, target) = (Arc::default(), Target { interface, config });
        let interface = &target.interface;
        let mut sockets = Vec::new();
        for &queue in &queues {
            let socket = Socket::bind(&target, queue, options, &past)?;
            sockets.push(QueueSocket { queue, socket: Arc::downgrade(&socket), waiting: Some(socket) });
        }
        let first = sockets.first().and_then(|socket| socket.waiting.as_ref());
        let (zero_copy, chains) = first.map_or((false, false), |socket| (socket.zero_copy, socket.chains));
        check_mtu(interface, size, chains)?;
        let started = Mutex::new(vec![None; target.config.options.rx_queues.into()]);
        let xdp = Xdp {
            steering: None,
            rule_steering: BTreeMap::new(),
            rules: Rules::default(),
            options: options.clone(),
            sockets,
            shared: Arc::new(Shared { map, started }),
            past,
            missed: zero_copy.then(|| interface.missed()),
            hints,
            program,
            attached: None,
            exclusive: None,
        };
        OnInterface::port(target, xdp, false)
    }
}

/// Loads the program for a flow, after rules. Kernels before 5.18 do not support programs for long frames.
fn load(
    interface: &Interface,
    flow: Option<&Filter>,
    rules: &[Rule],
    map: &SocketMap,
    hints: Option<Hints>,
) -> Result<Program> {
    let verdict = |action| match action {
        Action::Drop => Verdict::Drop,
        Action::Kernel => Verdict::Pass,
        Action::Mark(number) => Verdict::Mark(number),
        _ => Verdict::Take,
    };
    let rules: Vec<_> = rules.iter().map(|rule| (&rule.filter, verdict(rule.action))).collect();
    let to_socket = program::Action::ToSocket(map.as_fd().as_raw_fd(), hints);
    let Some(code) = program::program(flow, &rules, to_socket) else {
        let why = if rules.is_empty() { "the flows need" } else { "the rules need" };
        let why = format!("{why} a program that is too long");
        let remedy = Remedy::Step("use fewer, or wider filters".into());
        return Err(Error::new(ErrorKind::Exhausted, interface.name(), why).with_remedy(remedy));
    };
    let bound = hints.filter(Hints::has_functions).map(|_| interface.index());
    let what = match bound {
        Some(_) => "load a program that asks its driver for metadata into the kernel",
        None => "load a program into the kernel",
    };
    Program::load(&code, Kind::Xdp { fragments: true, interface: bound })
        .or_else(|_| Program::load(&code, Kind::Xdp { fragments: false, interface: bound }))
        .map_err(|error| interface.refused(what, capabilities::XDP, &error))
}

/// Fails if the interface's frames are longer than the buffers of a packet.
fn check_mtu(interface: &Interface, buffer_size: usize, chains: bool) -> Result<()> {
    let mtu = interface.mtu()?;
    // The first buffer of a frame contains the kernel's headroom, and the other buffers may contain it.
    let most = (buffer_size - KERNEL_HEADROOM) * if chains { MOST_BUFFERS } else { 1 };
    if mtu + FRAME_HEADERS <= most {
        return Ok(());
    }
    let how = if chains { "the most buffers of a frame have" } else { "a buffer has" };
    let why = format!("its MTU of {mtu} makes frames longer than {how} room for: {most} bytes");
    let name = interface.name();
    Err(Error::interface(name, why, format!("sudo ip link set dev {name} mtu {}", most - FRAME_HEADERS)))
}

impl Xdp {
    /// Attaches the program and steers the flow, unless that is done. With `alone`, takes the interface from Linux first.
    ///
    /// Attaching resets the queues of some cards (ixgbe, i40e, mlx5), which interrupts all traffic. So this is the last
    /// step of opening, after all checks. A port that Linux's use of the interface prevents from receiving attaches
    /// only when a zero-copy queue starts to send: drivers have no queues for that without a program. What only the
    /// kernel can tell is an error of this step: whether another program is attached, and whether the driver supports
    /// programs.
    fn attach(&mut self, target: &Target) -> Result<()> {
        if self.attached.is_none() {
            if self.options.alone && self.exclusive.is_none() {
                self.exclusive = Some(Exclusive::new(&target.interface)?);
            }
            let needs_driver = self.hints.as_ref().is_some_and(Hints::has_functions);
            self.attached = Some(attach(&target.interface, &self.program, needs_driver)?);
            self.steering = steer(target, &self.options)?;
        }
        Ok(())
    }

    /// Fails if the port would receive all packets of an interface that has an address: traffic to the machine would be
    /// lost. `flow=all` permits it.
    fn check_unused(&self, interface: &Interface) -> Result<()> {
        let addresses = interface.addresses();
        let Some(address) = addresses.first().filter(|_| self.options.flow.is_none()) else { return Ok(()) };
        let name = interface.name();
        Err(Error::interface(
            name,
            format!("Linux uses it, with the address {address}; without a flow, all its packets would be taken"),
            format!("select some: xdp:{0}?flow=udp:4321; or all: xdp:{0}?flow=all", escaped(name)),
        ))
    }

    /// Returns whether packets may arrive without checksums: the other end of a veth pair, and any sender before the
    /// generic path, may leave them to a card.
    fn may_lack_checksums(&self, interface: &Interface) -> bool {
        !matches!(self.attached, Some((_, Mode::Driver))) || interface.driver() == "veth"
    }

    /// Replaces the program by that of these rules. The kernel exchanges an attached program without losing packets.
    fn replace_program(&mut self, interface: &Interface, rules: &[Rule]) -> Result<()> {
        let program = load(interface, self.options.flow.as_ref(), rules, &self.shared.map, self.hints)?;
        if let Some((link, _)) = &self.attached {
            link.replace(&program)
                .map_err(|error| interface.refused("replace its program", capabilities::XDP, &error))?;
        }
        self.program = program;
        Ok(())
    }

    /// Makes the card steer the packets of a rule to the port's only queue of the interface, if that has others.
    fn steer_rule(&self, target: &Target, rule: &Rule) -> Result<Option<Steering>> {
        let refused = |part: &str| Err(Error::rule_part(target.config.name.clone(), &rule.filter, rule.action, part));
        let queue = match rule.action {
            Action::Queue(queue) => queue,
            Action::Mark(_) if self.hints.is_none() => {
                let why = "marks are in the packets' metadata";
                return Err(Error::needs_metadata(target.config.name.clone(), why));
            }
            _ => return Ok(None),
        };
        match (target.config.options.rx_queues, self.options.queue) {
            (queues, _) if queue >= queues => {
                Err(Error::no_such_queue(target.config.name.clone(), "receive", queue, queues))
            }
            (2.., _) => refused("the action queue, of a port with several: the interface's driver selects the queue"),
            (_, Some(own)) if target.interface.queues() > 1 => match self.options.steer {
                Steer::Never => refused("the action queue: steer=off keeps the card from steering"),
                _ => Steering::steer(&target.interface, &rule.filter, own, true).map(Some),
            },
            _ => Ok(None),
        }
    }

    /// Returns the socket at an index, reopened if it was closed.
    fn socket(&mut self, target: &Target, index: usize) -> Result<Arc<Socket>> {
        let Xdp { options, past, .. } = &*self;
        let QueueSocket { queue, socket, waiting } = &self.sockets[index];
        let socket = match waiting.clone().or_else(|| socket.upgrade()) {
            Some(socket) => socket,
            None => Socket::bind(target, *queue, options, past)?,
        };
        self.sockets[index] = QueueSocket { queue: socket.queue, socket: Arc::downgrade(&socket), waiting: None };
        Ok(socket)
    }
}

/// Makes the card steer the flow to a queue. Does nothing if the port has several queues, among which the flow is
/// spread, or if the interface has only one.
fn steer(target: &Target, options: &XdpOptions) -> Result<Option<Steering>> {
    let queues = target.interface.queues();
    let flow = options.flow.as_ref().filter(|_| queues > 1 && target.config.options.rx_queues == 1);
    let Some(flow) = flow.filter(|_| options.steer != Steer::Never) else { return Ok(None) };
    let queue = options.queue.unwrap_or(queues - 1);
    match Steering::steer(&target.interface, flow, queue, options.steer == Steer::Always) {
        Ok(steering) => Ok(Some(steering)),
        Err(_) if options.steer == Steer::Auto => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether the error means that another program is attached.
fn is_taken(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Attaches the program in the driver if possible, otherwise in the kernel's generic path. A program that asks the
/// driver for metadata runs only in the driver.
fn attach(interface: &Interface, program: &Program, needs_driver: bool) -> Result<(bpf::Link, Mode)> {
    let refused = |error: std::io::Error| match is_taken(&error) {
        true => Error::interface(
            interface.name().to_string(),
            "another XDP program is attached to it".to_string(),
            format!(
                "see which: bpftool net; detach it if it is not needed: sudo ip link set dev {} xdp off",
                interface.name()
            ),
        ),
        false => interface.refused("attach a program to it", capabilities::XDP, &error),
    };
    let is_impossible = |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL));
    let until = Instant::now() + RELEASE;
    let attach_in = |mode| retry_until_released(until, is_taken, || program.attach(interface.index(), mode));
    match attach_in(Mode::Driver) {
        Ok(link) => Ok((link, Mode::Driver)),
        Err(error) if is_impossible(&error) && needs_driver => {
            let driver = interface.driver();
            let why = format!("metadata=on is not possible: its driver, {driver}, does not run the program: {error}");
            let mend = "try an MTU of at most 1500, or open it without metadata=on";
            Err(Error::interface(interface.name(), why, mend))
        }
        Err(error) if is_impossible(&error) => match attach_in(Mode::Generic) {
            Ok(link) => Ok((link, Mode::Generic)),
            Err(error) if is_impossible(&error) => {
                let why = format!("its driver, {}, does not support XDP programs: {error}", interface.driver());
                Err(no_xdp(interface.name(), why))
            }
            Err(error) => Err(refused(error)),
        },
        Err(error) => Err(refused(error)),
    }
}

impl Sockets for Xdp {
    const DRIVER: &'static str = "xdp";
    const CLASS: PortClass = PortClass::Xdp;
    const QUEUE_SELECTOR: &'static str = "the interface's driver spreads packets: ethtool -X";
    const OFFLOADS: bool = false;

    fn description(&self, interface: &Interface) -> String {
        let zero_copy = self.missed.is_some();
        let mut description = format!(
            "{} interface, AF_XDP {}, {}{}",
            interface.driver(),
            if zero_copy { "without copies" } else { "with copies" },
            match self.attached {
                Some((_, Mode::Driver)) => "in the driver",
                Some((_, Mode::Generic)) => "in the kernel's generic path",
                None => "only to send",
            },
            if self.options.busy { ", busy polling" } else { "" },
        );
        if let Some((rules, wanted)) = self.steering.as_ref().map(Steering::rules) {
            description += &format!(", steered by {rules} of {wanted} rules in the card");
        }
        description
    }

    fn start(&mut self, target: &Target) -> Result<Option<OwnedFd>> {
        let interface = &target.interface;
        // A port without a flow may only send if Linux uses the interface.
        if self.check_unused(interface).is_err() {
            return Ok(None);
        }
        // A port that receives all packets also receives packets for other addresses.
        let promiscuous = if self.options.flow.is_none() { self.promiscuous(interface)? } else { None };
        if self.options.steer == Steer::Always {
            // A rehearsal: the card may reject a rule, and may lose its rules when the program is attached (ixgbe).
            drop(steer(target, &self.options)?);
        }
        self.attach(target)?;
        Ok(promiscuous)
    }

    fn capabilities(&self, config: &Config) -> Capabilities {
        let has_checksums = |one: &QueueSocket| one.socket.upgrade().is_some_and(|socket| socket.checksums);
        Capabilities::default()
            .with_if(self.sockets.iter().any(has_checksums), &[Feature::SendChecksum])
            .with(&[Feature::RuleToDrop, Feature::RuleToKernel])
            .with_if(self.hints.is_some(), &[Feature::RuleToMark])
            .with_if(self.hints.as_ref().is_some_and(Hints::has_hash), &[Feature::ReceiveHash])
            .with_if(config.options.rx_queues == 1, &[Feature::RuleToQueue])
    }

    fn rx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        self.check_unused(&target.interface)?;
        // The addresses that prevented it may have been removed since.
        self.attach(target)?;
        // If the port has fewer queues than the interface, each has several sockets.
        let indices: Vec<usize> =
            (usize::from(queue)..self.sockets.len()).step_by(target.config.options.rx_queues.into()).collect();
        let mut sockets = Vec::new();
        for index in indices {
            let socket = self.socket(target, index)?;
            let end = socket.take_receiving();
            sockets.push((socket, end));
        }
        let any = XdpRx::watch(&sockets)?;
        let started = sockets.iter().map(|(socket, _)| socket.clone()).collect();
        let rx = XdpRx {
            sockets,
            turn: 0,
            partial: Vec::new(),
            pool: target.config.pool.clone(),
            counters,
            any,
            queue,
            busy: self.options.busy,
            may_lack_checksums: self.may_lack_checksums(&target.interface),
            hints: self.hints,
            shared: self.shared.clone(),
        };
        self.shared
            .start(queue, started)
            .map_err(|error| target.interface.refused("direct packets to a socket", capabilities::XDP, &error))?;
        Ok(match self.hints {
            Some(_) => Box::new(Rx::new(Described(rx))),
            None => Box::new(Rx::new(rx)),
        })
    }

    fn tx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let socket = self.socket(target, usize::from(queue) % self.sockets.len())?;
        let Some(end) = socket.take_sending() else {
            // Another queue of the port already sends on this queue of the interface.
            return Err(Error::queue_taken(&target.config.name, "transmit", queue));
        };
        if socket.zero_copy || self.options.alone {
            self.attach(target)?;
        }
        Ok(Box::new(Tx::new(XdpTx {
            socket,
            end: Some(end),
            pool: target.config.pool.clone(),
            counters,
            longest: target.interface.longest_frame(target.config.options.max_frame)?,
        })))
    }

    fn add_rule(&mut self, target: &Target, filter: &Filter, action: Action) -> Result<RuleId> {
        let rule = self.rules.numbered(filter, action);
        if filter.has_inner() {
            let part = "inner: its program in the kernel cannot match inside tunnels";
            return Err(Error::rule_part(target.config.name.clone(), filter, action, part));
        }
        let steering = self.steer_rule(target, &rule)?;
        self.replace_program(&target.interface, &[self.rules.list(), std::slice::from_ref(&rule)].concat())?;
        let id = rule.id;
        self.rule_steering.extend(steering.map(|steering| (id, steering)));
        self.rules.push(rule);
        Ok(id)
    }

    fn remove_rule(&mut self, target: &Target, id: RuleId) -> Result<()> {
        let others: Vec<Rule> = self.rules.list().iter().filter(|rule| rule.id != id).cloned().collect();
        if others.len() < self.rules.list().len() {
            self.replace_program(&target.interface, &others)?;
        }
        self.rules.remove(&target.config.name, id)?;
        self.rule_steering.remove(&id);
        Ok(())
    }

    fn rules(&self) -> Vec<Rule> {
        self.rules.list().to_vec()
    }

    fn drops(&self, interface: &Interface) -> Drops {
        let mut drops = *self.past.lock().unwrap_or_else(PoisonError::into_inner);
        // A driver may reset its counters.
        drops.no_descriptor += self.missed.map_or(0, |before| interface.missed().saturating_sub(before));
        for socket in self.sockets.iter().filter_map(|socket| socket.socket.upgrade()) {
            drops += socket.drops();
        }
        drops
    }
}

#[cfg(fuzzing)]
pub fn fuzz_program(filter: &linerate_core::filter::Filter) -> Option<usize> {
    program::program(Some(filter), &[], program::Action::ToSocket(0, None)).map(|code| code.len())
}

/// Returns the error for a kernel or an interface without AF_XDP.
fn no_xdp(interface: &str, why: impl Into<Cow<'static, str>>) -> Error {
    let remedy = format!("packet:{}, which works with any driver but copies each packet", escaped(interface));
    Error::new(ErrorKind::Unsupported, interface, why).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use linerate_core::batch::Batch;
    use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
    use linerate_testkit::Deadline;

    use super::*;

    fn run(words: &str) {
        let mut words = words.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Marks arrive with their packets through the kernel's copy, on the thread's network.
    fn receive_marks() {
        run("ip link add v0 type veth peer name v1");
        for interface in ["v0", "v1"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1").unwrap();
            run(&format!("ip link set {interface} up"));
        }
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 4096, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        let interface = |name: &str| Interface::open(name).unwrap();
        let (hints, config) = (Hints::none(0x5EA1), Config::new("xdp:v0", pool.clone()));
        let mut port = Xdp::prepare_with(interface("v0"), &XdpOptions::default(), config, Some(hints)).unwrap();
        port.start().unwrap();
        assert!(matches!(port.add_rule(&"arp".parse().unwrap(), Action::Mark(7)), Ok(RuleId(0))));
        let mut rx = port.rx(0).unwrap();
        let mut sender = PacketPort::open(interface("v1"), None, Config::new("packet:v1", pool.clone())).unwrap();
        let (mut tx, mut batch) = (sender.tx(0).unwrap(), Batch::new());
        // More packets than the pool has buffers, so that each is used again.
        let mut received = 0u32;
        while received < 10_000 {
            for n in received..received + 16 {
                let kind = if n.is_multiple_of(3) { [8, 6] } else { [8, 0] };
                assert!(batch.push(&pool, &[&[2; 12][..], &kind, &n.to_ne_bytes(), &[0; 60]].concat()));
            }
            let (deadline, all) = (Deadline::begin(), received + 16);
            while !batch.is_empty() {
                deadline.check(|| "room to send");
                tx.send(&mut batch);
            }
            while received < all {
                deadline.check(|| format!("packet {received}"));
                rx.recv(&mut batch);
                for packet in batch.packets() {
                    let expected = if received.is_multiple_of(3) { Some(7) } else { None };
                    assert_eq!((&packet[14..18], packet.metadata().mark), (&received.to_ne_bytes()[..], expected));
                    received += 1;
                }
                batch.clear();
            }
        }
    }

    /// Needs root.
    #[test]
    fn marks_arrive_with_their_packets() {
        let in_a_separate_network = || {
            // SAFETY: this thread has no file that depends on the shared namespace.
            #[allow(unsafe_code)]
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("root may");
            receive_marks();
        };
        std::thread::spawn(in_a_separate_network).join().unwrap();
    }
}
