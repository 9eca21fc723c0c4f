//! `linerate exec`: runs a command in a network namespace whose interfaces are ports.
//!
//! - `inside`: the process in the namespaces; `init`: their first process, which starts the command
//! - `channel`: the messages between this process and that one; `relay`: signals and the command's end
//! - `network`: addresses, routes and name servers; `claim`: a free address of a small private network
//! - `uplink`: the network around, for a command without a port
//! - `refused`: what prevents namespaces and interfaces, and the remedies

mod channel;
mod claim;
mod init;
pub mod inside;
mod network;
mod refused;
mod relay;
mod uplink;

use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use linerate::link::{LINK, Link, of_direction, reserved};
use linerate::port::{PortClass, PortName, switch_and_port};
use linerate::{Error, ErrorKind, Remedy};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, capabilities};

use self::channel::{Channel, Inherited, MOST_INTERFACES, Network, Reply, Setup, UserIds};
use self::claim::Subnet;
use self::network::{Counters, RESOLV_CONF};
use self::relay::{End, Relay, die_of, set_ignored};
use self::uplink::Uplink;
use crate::error::with_hint;
use crate::fwd;
use crate::grammar::usage;
use crate::host::{AddressSource, HostOptions, host_address};
use crate::inherited::{closed_streams, signal_actions};
use crate::link::{WAYS, in_words};
use crate::options::{LONGEST_MTU, RunOptions, Wait, whole};
use crate::run::{Mode, Run};
use crate::signals::{ignore_file_size, interrupts};
use crate::terminal::keep_quiet;
use crate::user::User;

/// The exit codes of env(1): the command was not started, cannot be executed, or does not exist.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long packets that the command has sent may wait in ports after its end, without any movement; in addition to the
/// delays of links.
const LAST_PACKETS: Duration = Duration::from_secs(3);
/// After this time without movement, no packet is left.
const STILL: Duration = Duration::from_millis(10);

/// `linerate exec`.
#[derive(Args)]
pub struct Exec {
    /// The port at the other end of the command's interface eth0; more ports are eth1 and so on. Without it, passt
    /// connects the command to the network around it
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options of a command's place in the network.
#[derive(Args, Clone, Default)]
pub struct Place {
    /// Addresses of an interface, for example 10.0.0.2/24,fd00::2/64; or dhcp, or auto (IPv6 router). The first --address
    /// is for eth0, the second for eth1
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    address: Vec<Addresses>,
    /// The router for all other networks
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = host_address)]
    gateway: Vec<IpAddr>,
    /// Name servers, for a resolv.conf that only the command sees
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = host_address)]
    dns: Vec<IpAddr>,
    /// Take the first address of this network that no other host has, for an interface without --address
    #[arg(long, value_name = "NETWORK", num_args = 0..=1, require_equals = true, default_missing_value = "10.53.0.0/24")]
    net: Option<Subnet>,
    /// The interfaces' MTU
    #[arg(long, default_value_t = 1500, value_parser = whole::<u16>(68, LONGEST_MTU))]
    mtu: u16,
    /// Run the command as this user, for linerate as root
    #[arg(long)]
    user: Option<User>,
    /// Print addresses, packets and drops on standard error
    #[arg(long, short)]
    verbose: bool,
}

/// The addresses of one interface.
#[derive(Clone)]
struct Addresses(Vec<AddressSource>);

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Addresses, String> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Addresses)
    }
}

/// The run of a command.
struct Commanded;

impl Mode for Commanded {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn forwards(&self) -> bool {
        true
    }

    /// The peer's process may start later, and the command's programs repeat their packets.
    fn awaits_link_of(&self, class: PortClass) -> bool {
        class == PortClass::Card
    }

    /// Prints nothing: standard error is the command's.
    fn is_measurement(&self) -> bool {
        true
    }
}

/// Runs the command of `linerate exec`.
pub fn run(asked: &Exec) -> ExitCode {
    run_at(&asked.ports, &asked.place, &asked.command, None)
}

/// Runs a command over a link, with an address as by `--net`. Without a port, passt is at the far end, and grants the
/// address.
pub fn run_over(link: Link, port: Option<&str>, verbose: bool, command: &[OsString]) -> ExitCode {
    let net = port.map(|_| Subnet::default());
    let place = Place { net, verbose, mtu: 1500, ..Place::default() };
    run_at(&port.map(str::to_string).into_iter().collect::<Vec<_>>(), &place, command, Some(link))
}

/// Runs a command with interfaces at these ports, or, without any, at the network around it; over a link, if given.
/// Returns, or ends by, what ended the command.
fn run_at(ports: &[String], place: &Place, command: &[OsString], link: Option<Link>) -> ExitCode {
    let mut place = place.clone();
    if ports.is_empty() && place.address.is_empty() && place.net.is_none() {
        place.address = vec![Addresses(vec![AddressSource::Dhcp])];
    }
    let fail = |error: &Error| {
        say(&format!("linerate exec: {}", with_hint(error)));
        ExitCode::from(FAILED)
    };
    place.check(ports.len());
    if !place.verbose {
        keep_quiet();
    }
    // Children are awaited, whatever the process has inherited.
    set_ignored(Signal::SIGCHLD, false);
    let (mut ports, mut uplink) = (ports.to_vec(), None);
    if ports.is_empty() {
        match Uplink::start(place.verbose) {
            Ok(started) => ports.push(uplink.insert(started).port()),
            Err(error) => return fail(&error),
        }
    }
    let (ports, place) = (&ports.iter().map(String::as_str).collect::<Vec<_>>()[..], &place);
    let mut session = match Session::enter(ports, place, command) {
        Ok(session) => session,
        Err(error) => return fail(&error),
    };
    let mut socket = None;
    let mut watched = Ok(());
    if let Some(Uplink { mut passt, socket: ours }) = uplink {
        // The descriptor, because the process is awaited in a thread and its number may then be another's.
        let process = pidfd_open(Pid::from_child(&passt), PidfdFlags::empty()).ok();
        socket = Some((ours, process));
        let relay = session.relay.clone();
        let wait = move || {
            let status = passt.wait();
            relay.uplink_ended(status.map_or_else(|error| error.to_string(), |status| status.to_string()));
        };
        watched = std::thread::Builder::new().spawn(wait).map(drop).map_err(Error::thread);
    }
    let outcome = watched.and_then(|()| session.serve(ports, place, link));
    // passt ends by itself, but that of Debian 12 may read for ever from a connection that was closed.
    if let Some((ours, process)) = socket {
        drop(ours);
        let _ = process.map(|process| pidfd_send_signal(process, rustix::process::Signal::KILL));
    }
    let Session { relay, mut child, .. } = session;
    relay.take_terminal_back();
    let end = relay.end();
    relay.close();
    // As a zombie it would remain.
    let _ = child.wait();
    for text in relay.take_notes().into_iter().filter(|_| place.verbose) {
        say(&format!("note: {text}"));
    }
    match (outcome, end) {
        (Err(error), None) => fail(&error),
        (_, Some(End::Failed(step, error))) => fail(&refused::explain(*step, error, place.user.is_some())),
        (_, Some(End::NotStarted(error))) => {
            say(&format!("linerate exec: {}: {error}", command[0].display()));
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })
        }
        (_, Some(End::Status(status))) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitCode::from(code as u8),
            (None, signal) => end_by(signal.unwrap_or(libc::SIGKILL)),
        },
        (_, Some(End::Interrupted(signal))) => end_by(*signal),
        (_, Some(End::NoUplink(status))) => {
            let route = if status.contains("exit") { ": does this network have a default route?" } else { "" };
            let why = format!("passt has ended ({status}){route}");
            let remedy = "see its message: passt --foreground; or give a port: --port PORT";
            fail(&Error::new(ErrorKind::Unusable, "", why).with_remedy(Remedy::Step(remedy.into())))
        }
        (_, Some(End::Killed)) => end_by(libc::SIGKILL),
        (Ok(()), None) => ExitCode::from(FAILED),
    }
}

/// Prints a line on standard error, which is also the command's.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Ends this process by a signal; returns the code that a shell gives to that, if the signal does not end it.
fn end_by(signal: i32) -> ExitCode {
    die_of(signal);
    ExitCode::from(128 + signal as u8)
}

impl Place {
    /// Ends the program if the options contradict each other.
    fn check(&self, ports: usize) {
        if self.net.is_some() && ports == 0 {
            usage("--net needs a --port: without one, passt grants the address of the network around");
        }
        let ports = ports.max(1);
        if ports > MOST_INTERFACES {
            usage(&format!("a command has at most {MOST_INTERFACES} interfaces"));
        }
        if self.address.len() > ports {
            usage(&format!("{} times --address is too many: it is one for each --port", self.address.len()));
        }
        if self.net.is_some() && ports == self.address.len() {
            usage("--net finds an address for an interface without --address, and all have one");
        }
        if self.net.is_some() && ports - self.address.len() != 1 {
            usage("--net is for one interface: give the others an --address, in the order of the ports");
        }
        if self.user.is_some() && !rustix::process::geteuid().is_root() {
            usage("--user needs root; without it, the command runs as you");
        }
        let all = || self.address.iter().flat_map(|Addresses(all)| all);
        if let Some(bare) = all().find_map(|source| source.without_length()) {
            usage(&format!("--address {bare} has no prefix length: append /24, for example, or /64 for IPv6"));
        }
        if let Some(wrong) = all().find_map(|source| source.of_no_host()) {
            usage(&format!("--address {wrong} is the network's address, or its broadcast address"));
        }
        if self.mtu < 1280 && all().any(|source| !source.is_ipv4()) {
            usage("IPv6 needs --mtu 1280 or more (RFC 8200, section 5)");
        }
    }
}

/// A command and its namespaces.
struct Session {
    relay: std::sync::Arc<Relay>,
    child: Child,
    /// The interfaces, from outside; their ports have descriptors, too.
    taps: Vec<OwnedFd>,
    /// Unknown where `/proc` shows no processes.
    counters: Option<Counters>,
}

impl Session {
    /// Creates the namespaces and the interfaces. No port is open yet.
    fn enter(ports: &[&str], place: &Place, command: &[OsString]) -> Result<Session, Error> {
        let failed = |what: &str| {
            let what = what.to_string();
            move |error: std::io::Error| Error::system(&what, error)
        };
        let [ours, theirs] = Channel::pair().map_err(failed("socketpair"))?;
        let number = theirs.inheritable().map_err(failed("fcntl"))?;
        let mut again = Command::new("/proc/self/exe");
        again.arg0(inside::PROGRAM).arg(number.to_string()).args(command);
        let mut child = again.spawn().map_err(failed("starting /proc/self/exe (/proc must be mounted)"))?;
        drop(theirs);
        // Not for the command: a file that cannot grow is an error here.
        ignore_file_size();
        let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let setup = Setup {
            has_user_namespace: !has.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN),
            interfaces: (0..ports.len()).map(|number| format!("eth{number}")).collect(),
            mtu: place.mtu.into(),
            inherited: inherited(),
        };
        ours.send(&setup, &[]).map_err(failed("sendmsg"))?;
        let taps = match ours.receive::<Reply>().map_err(failed("recvmsg"))? {
            Some((Reply::Ready, taps)) => taps,
            Some((Reply::Failed(step, errno, text), _)) => {
                let _ = child.wait();
                return Err(refused::explain(step, &relay::error_of(errno, text), place.user.is_some()));
            }
            _ => {
                let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                let why = format!("the process in the namespaces has ended ({status})");
                return Err(Error::new(ErrorKind::System, "", why));
            }
        };
        let relay = Relay::start(ours).map_err(failed("signalfd"))?;
        let counters = Counters::of(child.id()).ok();
        Ok(Session { relay, child, taps, counters })
    }

    /// Opens the ports, starts the command, and forwards packets until it ends.
    fn serve(&mut self, ports: &[&str], place: &Place, link: Option<Link>) -> Result<(), Error> {
        // A link decides about each packet, so it gets none that stands for several.
        let is_link =
            link.is_some() || ports.iter().any(|port| linerate::parse(port).is_ok_and(|port| port.is_wrapper()));
        let options = RunOptions {
            mtu: place.mtu.max(RunOptions::default().mtu),
            wait: Some(Wait::Adaptive),
            offloads: !is_link,
            held_buffers: link.iter().flat_map(Link::parameters).map(|parameters| reserved(&parameters)).sum(),
            ..RunOptions::default()
        };
        let taps: Vec<String> =
            self.taps.iter().enumerate().map(|(n, tap)| format!("tap:eth{n}?fd={}", tap.as_raw_fd())).collect();
        let names: Vec<&str> =
            taps.iter().map(String::as_str).zip(ports.iter().copied()).flat_map(<[_; 2]>::from).collect();
        let mut run = Run::open(&Commanded, &names, None, &options)?;
        check_switches(&run)?;
        let network = place.network(&mut run, ports)?;
        let delay = link.iter().flat_map(Link::parameters).map(|parameters| parameters.longest_delay()).sum();
        let delay = Duration::from_nanos(delay) + ports.iter().map(|port| delay_of(port)).max().unwrap_or_default();
        let own = link.clone();
        // Only now: the packets of DHCP are not the command's.
        if let Some(link) = link
            && let Some(port) = run.ports.devices.pop()
        {
            run.ports.devices.push(port.wrapped(link));
        }
        fwd::start_unchanged(&mut run, &options)?;
        let sleeps_when_idle = run.sleeps_when_idle();
        run.threads.start(&options, &run.ports, sleeps_when_idle, &run.live.paused())?;
        if self.relay.end().is_none() {
            self.relay.start_command(network).map_err(|error| Error::system("sendmsg", error))?;
        }
        self.wait(&run, delay);
        if run.threads.join() {
            say("linerate exec: a thread that forwards packets has panicked, which is a bug");
        }
        run.ports.cut_captures().iter().for_each(|failure| say(&format!("linerate exec: {failure}")));
        if place.verbose {
            self.print_counts(&run, ports, own.as_ref());
        }
        Ok(())
    }

    /// Prints the packets of the interfaces, of the ports and of the command's link. All queues have been stopped, so
    /// packets that remain in links are counted.
    fn print_counts(&mut self, run: &Run, ports: &[&str], link: Option<&Link>) {
        let mut counts = run.ports.known_statistics().0;
        for (n, (port, pair)) in ports.iter().zip(counts.chunks_mut(2)).enumerate() {
            let interface = format!("eth{n}");
            let queue = self.counters.as_mut().and_then(|counters| counters.overflows(&interface));
            if let Some(tap) = pair.first_mut() {
                tap.drops.no_descriptor = queue.unwrap_or(tap.drops.no_descriptor);
            }
            for (name, count) in [&*interface, port].into_iter().zip(pair) {
                let drops = serde_json::to_string(&crate::show::drops(&count.drops)).unwrap_or_default();
                let (received, sent) = (count.rx_packets, count.tx_packets);
                say(&format!("{name}: {received} packets received, {sent} sent; dropped: {drops}"));
            }
        }
        let held = run.threads.unsent.load(Ordering::Relaxed);
        if held > 0 {
            say(&format!("{held} packets from the command's interfaces were still on their way to the ports"));
        }
        for (way, name) in WAYS.into_iter().zip(["to", "from"]) {
            if let Some(link) = link {
                say(&format!("link, {name} the command: {}", in_words(link.counters(way))));
            }
        }
    }

    /// Waits for the command's end, and for the packets that it has sent last, which links may delay by `delay`.
    fn wait(&self, run: &Run, delay: Duration) {
        let mut is_noted = false;
        while self.relay.end().is_none() {
            interrupts().wait(Duration::from_secs(1));
            if let Some(error) = run.ports.statistics().err().filter(|_| !is_noted && self.relay.end().is_none()) {
                say(&format!("linerate exec: {}\n  the command continues without this network", with_hint(&error)));
                is_noted = true;
            }
        }
        // Packets from the interfaces, and packets that have left the links.
        let moved = || {
            let counts = run.ports.known_statistics().0;
            let pairs = counts.chunks(2).filter_map(|pair| pair.first_chunk());
            pairs.fold([0; 2], |[from, to], [tap, port]| [from + tap.rx_packets, to + port.tx_packets])
        };
        let held = || run.threads.unsent.load(Ordering::Relaxed) as u64;
        let (mut last, mut since, mut end) = (moved(), Instant::now(), None);
        while since.elapsed() < LAST_PACKETS + delay {
            if since.elapsed() >= STILL && !self.has_packets() {
                end.get_or_insert(last[0]);
            }
            // Once the interfaces have been still for a moment, all packets from them are the kernel's own, which may
            // continue for ever.
            if end.is_some_and(|end| held() <= last[0] - end) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            let now = moved();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Returns whether packets wait in the interfaces for a thread, which may not have had a processor.
    fn has_packets(&self) -> bool {
        let mut polled: Vec<PollFd<'_>> = self.taps.iter().map(|tap| PollFd::new(tap, PollFlags::IN)).collect();
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// Returns the longest delay of the links in a port's name, in both directions together.
fn delay_of(port: &str) -> Duration {
    let Ok(name) = linerate::parse(port) else { return Duration::ZERO };
    if !name.is_wrapper() {
        return Duration::ZERO;
    }
    let options: Vec<(&str, &str)> = name.options().filter(|(option, _)| LINK.option(option).is_some()).collect();
    let parameters = WAYS.map(|way| of_direction(&options, way, name.class()).ok());
    let sum = parameters.iter().flatten().map(|parameters| parameters.longest_delay()).sum();
    Duration::from_nanos(sum) + delay_of(&name.inner_name())
}

/// Returns the state that the command inherits.
fn inherited() -> Inherited {
    let blocked =
        SigSet::thread_get_mask().map_or_else(|_| Vec::new(), |set| set.iter().map(|signal| signal as i32).collect());
    Inherited { blocked, actions: signal_actions().collect(), closed_streams: closed_streams().collect() }
}

/// Refuses a port of a switch that no server has: another process could not reach it, and the command would be alone.
fn check_switches(run: &Run) -> Result<(), Error> {
    let names = run.ports.names.iter().zip(&run.ports.devices);
    let alone = names.filter(|(_, device)| device.info().class != PortClass::Server);
    let switches: Vec<(String, &str)> =
        alone.filter_map(|(name, device)| Some((switch_of(name)?, device.name()))).collect();
    for (n, (switch, name)) in switches.iter().enumerate() {
        if !switches.iter().enumerate().any(|(other, (of_other, _))| other != n && of_other == switch) {
            let why = format!("no server has the switch {switch}, so no other program can be connected to it");
            return Err(Error::new(ErrorKind::NotServed, *name, why)
                .with_remedy(Remedy::Step("start one first, as the same user: linerate serve &".into())));
        }
    }
    Ok(())
}

/// Returns the switch that a port, or the port within it, belongs to.
fn switch_of(name: &PortName) -> Option<String> {
    match name.is_wrapper() {
        true => switch_of(&linerate::parse(&name.inner_name()).ok()?),
        false => switch_and_port(name.short()).map(|(switch, _)| switch.to_string()),
    }
}

impl Place {
    /// Returns the network of the command; asks the ports' networks for addresses.
    fn network(&self, run: &mut Run, ports: &[&str]) -> Result<Network, Error> {
        let mut network =
            Network { name_servers: self.dns.iter().map(IpAddr::to_string).collect(), ..Network::default() };
        network.user =
            self.user.as_ref().map(|user| UserIds { user: user.id(), group: user.group(), groups: user.groups() });
        for (n, port) in ports.iter().enumerate() {
            let mac = run.ports.devices[2 * n].mac();
            let device = &mut run.ports.devices[2 * n + 1];
            let sources = self.address.get(n).map_or(&[][..], |Addresses(all)| all);
            let mut host = HostOptions::with(sources.to_vec(), !self.verbose);
            if !host.is_configured() {
                let (mut rx, mut tx) = ([device.rx(0)?], device.tx(0)?);
                let pool = device.pool().clone();
                host.configure(mac, &pool, port, &mut tx, &mut rx)?;
            }
            let mut addresses: Vec<(IpAddr, u8)> = host.with_lengths().collect();
            if let Some(net) = self.net.as_ref().filter(|_| sources.is_empty()) {
                let (mut rx, mut tx) = ([device.rx(0)?], device.tx(0)?);
                addresses.push(net.claim(mac, device.pool(), (port, delay_of(port)), &mut tx, &mut rx)?);
            }
            if self.verbose {
                let list: Vec<String> =
                    addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
                say(&format!("eth{n}: {mac}, {port}, addresses: {}", list.join(" ")));
            }
            network.gateways.extend(host.gateways().iter().map(|gateway| (n, *gateway)));
            if self.dns.is_empty() {
                let with_interface = |server: &IpAddr| match server {
                    IpAddr::V6(address) if address.is_unicast_link_local() => format!("{address}%eth{n}"),
                    address => address.to_string(),
                };
                network.name_servers.extend(host.name_servers().iter().map(with_interface));
            }
            network.addresses.push(addresses);
        }
        if !self.gateway.is_empty() {
            network.gateways = self.gateway.iter().map(|gateway| (network.interface_to(*gateway), *gateway)).collect();
        }
        if !network.name_servers.is_empty() && !Path::new(RESOLV_CONF).exists() {
            if !self.dns.is_empty() {
                let why = format!("name servers need a file {RESOLV_CONF}, over which the command's is mounted");
                let remedy = Remedy::Step(format!("sudo touch {RESOLV_CONF}").into());
                return Err(Error::new(ErrorKind::Unusable, "", why).with_remedy(remedy));
            }
            if self.verbose {
                say(&format!("note: the command has no name servers, because this machine has no {RESOLV_CONF}"));
            }
            network.name_servers.clear();
        }
        Ok(network)
    }
}
