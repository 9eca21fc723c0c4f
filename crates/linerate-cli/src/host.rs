//! The addresses of a port: `--address`, `--gateway`, `--vlan` and `--reply`. With them, a port is a host of its network.
//! It answers requests while packets are sent or received, and finds the next hop before the first packet. `lease`
//! takes addresses from the network.

mod lease;

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use linerate::memory::Pool;
use linerate::port::{MacAddress, Port, RxQueue, TxQueue};
use linerate::traffic::{Host, Template};
use linerate::{Batch, Error, ErrorKind, Remedy};

use self::lease::Granted;
use crate::grammar::usage;
use crate::options::whole;
use crate::signals::interrupts;

/// Options of a port's addresses.
#[derive(Args, Clone, Default)]
pub struct HostOptions {
    /// The port's addresses, for example 10.0.0.2/24,fd00::2/64: answers ARP and pings, and sends to the next hop's MAC
    /// address; without a prefix length, only answers --reply. dhcp and auto ask the network (DHCP; IPv6 router)
    #[arg(long, value_name = "ADDRESS/LENGTH", value_delimiter = ',')]
    address: Vec<AddressSource>,
    /// The router for all other networks
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "address", value_parser = host_address)]
    gateway: Vec<IpAddr>,
    /// Send and answer with this VLAN tag
    #[arg(long, value_name = "ID", requires = "address", value_parser = whole::<u16>(1, 4094))]
    vlan: Option<u16>,
    /// Answer these requests for --address: arp, ping (both for IPv6, too); both are the default with a prefix length
    #[arg(long, value_enum, value_delimiter = ',', requires = "address")]
    reply: Vec<Request>,
    /// Addresses that the network has granted
    #[arg(skip)]
    granted: Granted,
    /// The name servers of the networks that granted them
    #[arg(skip)]
    name_servers: Vec<IpAddr>,
    /// Granted addresses are not shown
    #[arg(skip)]
    is_quiet: bool,
}

/// The source of a port's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    Fixed(Address),
    Dhcp,
    /// IPv6's autoconfiguration.
    Auto,
}

impl FromStr for AddressSource {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressSource, String> {
        match text {
            "dhcp" => Ok(AddressSource::Dhcp),
            "auto" => Ok(AddressSource::Auto),
            text => text.parse().map(AddressSource::Fixed),
        }
    }
}

impl AddressSource {
    /// Returns a given address that has no prefix length.
    pub fn without_length(self) -> Option<IpAddr> {
        match self {
            AddressSource::Fixed(Address { address, length: None }) => Some(address),
            _ => None,
        }
    }

    /// Returns a given IPv4 address that is that of its network, or the broadcast address there.
    pub fn of_no_host(self) -> Option<IpAddr> {
        let AddressSource::Fixed(Address { address: IpAddr::V4(address), length: Some(length @ 0..31) }) = self else {
            return None;
        };
        let host = address.to_bits() & (u32::MAX >> length);
        (host == 0 || host == u32::MAX >> length).then_some(address.into())
    }

    /// Returns whether it is an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        match self {
            AddressSource::Fixed(own) => own.address.is_ipv4(),
            AddressSource::Dhcp => true,
            AddressSource::Auto => false,
        }
    }
}

/// A port's address, and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    address: IpAddr,
    length: Option<u8>,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address = host_address(address)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let wrong = |_| format!("the prefix length is a number from 0 to {most}");
        let length = length.map(|length| length.parse::<u8>().map_err(wrong)).transpose()?;
        match length {
            Some(length) if length > most => Err(format!("the prefix length is a number from 0 to {most}")),
            length => Ok(Address { address, length }),
        }
    }
}

impl Address {
    /// Creates an address in a network whose prefix has this length.
    pub fn new(address: IpAddr, length: u8) -> Address {
        Address { address, length: Some(length) }
    }

    /// Returns whether another address is in the same network.
    pub fn reaches(self, other: IpAddr) -> bool {
        let length = u32::from(self.length.unwrap_or(0));
        let differs = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()).checked_shr(32 - length),
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differs = (own.to_bits() ^ other.to_bits()).checked_shr(128 - length);
                differs.map(|differs| u32::from(differs != 0))
            }
            _ => Some(1),
        };
        self.length.is_some() && differs.unwrap_or(0) == 0
    }
}

/// Parses an address that a host on a network can have (RFC 1122, section 3.2.1.3; RFC 4291).
pub fn host_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "it is not an IPv4 or IPv6 address".to_string())?;
    let is_broadcast = address == IpAddr::from([255; 4]);
    match address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast {
        true => Err("a host on a network cannot have this address".to_string()),
        false => Ok(address),
    }
}

/// Requests that a port answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Request {
    /// ARP requests, and IPv6's neighbour solicitations
    Arp,
    /// Echo requests
    Ping,
}

/// The number of requests for a MAC address, and the time to wait for a reply to each (RFC 4861, section 10).
const REQUESTS: u32 = 3;
const WAIT: Duration = Duration::from_secs(1);
/// The time between looks for a reply.
const POLL: Duration = Duration::from_millis(1);

impl HostOptions {
    /// Returns the options of a host whose addresses come from these sources.
    pub fn with(address: Vec<AddressSource>, is_quiet: bool) -> HostOptions {
        HostOptions { address, is_quiet, ..HostOptions::default() }
    }

    /// Returns the addresses that are given or granted, with the lengths of their prefixes.
    pub fn with_lengths(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.fixed().filter_map(|own| Some((own.address, own.length?)))
    }

    /// Returns the gateways that are given or granted.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.gateway
    }

    /// Returns the granted name servers.
    pub fn name_servers(&self) -> &[IpAddr] {
        &self.name_servers
    }

    /// Ends the program if the options contradict each other.
    pub fn check(&self) {
        let Some(bare) = self.fixed().find(|address| address.length.is_none()) else {
            // The network of an address that is not known yet may be any.
            let may_reach = |gateway: &IpAddr| {
                self.address.iter().any(|own| match own {
                    AddressSource::Fixed(own) => own.reaches(*gateway),
                    source => source.is_ipv4() == gateway.is_ipv4(),
                })
            };
            if let Some(far) = self.gateway.iter().find(|gateway| !may_reach(gateway)) {
                usage(&format!("--gateway {far} is in none of the networks of --address"));
            }
            return;
        };
        if self.reply.is_empty() || !self.gateway.is_empty() {
            let length = if bare.address.is_ipv4() { 24 } else { 64 };
            usage(&format!(
                "--address {} has no prefix length: append /{length}, for example; or only answer requests: --reply arp,ping",
                bare.address
            ));
        }
    }

    /// Returns whether the port is a host that can find the next hop.
    pub fn is_host(&self) -> bool {
        self.fixed().any(|address| address.length.is_some()) || !self.is_configured()
    }

    /// Returns the addresses that are given or granted.
    fn fixed(&self) -> impl Iterator<Item = Address> {
        self.address.iter().filter_map(|source| match source {
            AddressSource::Fixed(address) => Some(*address),
            AddressSource::Dhcp | AddressSource::Auto => None,
        })
    }

    /// Returns whether all addresses are known.
    pub fn is_configured(&self) -> bool {
        self.fixed().count() == self.address.len()
    }

    /// Returns whether requests are answered.
    pub fn answers(&self) -> bool {
        !self.address.is_empty()
    }

    /// Gives frames the port's IP address and VLAN, unless their text has others.
    pub fn complete(&self, packet: Template) -> Result<Template, Error> {
        let Some(to) = packet.destination() else { return Ok(packet) };
        let own = self.fixed().map(|own| own.address).find(|own| own.is_ipv4() == to.is_ipv4());
        let ip = if to.is_ipv4() { "ip" } else { "ip6" };
        let packet = own.map_or(Ok(packet.clone()), |own| packet.with_default(ip, "src", &own.to_string()))?;
        self.with_tag(packet)
    }

    /// Gives frames the port's VLAN tag, unless their text has another.
    pub fn with_tag(&self, packet: Template) -> Result<Template, Error> {
        self.vlan.map_or(Ok(packet.clone()), |id| packet.with_vlan(id))
    }

    /// Returns whether a port is an IPv6 host.
    pub fn is_ipv6(&self) -> bool {
        self.address.iter().any(|source| !source.is_ipv4())
    }

    /// Gives frames their MAC addresses, unless their text has others: the port's own, and the next hop's, which
    /// `resolve` finds.
    pub fn with_next_hop(
        &self,
        packet: Template,
        own: MacAddress,
        resolve: impl FnOnce(IpAddr) -> Result<[u8; 6], Error>,
    ) -> Result<Template, Error> {
        let Some(destination) = packet.destination().filter(|_| !packet.sets("eth", "dst")) else { return Ok(packet) };
        let next_hop = MacAddress(resolve(self.next_hop(destination)?)?);
        packet.with_default("eth", "src", &own.to_string())?.with_default("eth", "dst", &next_hop.to_string())
    }

    /// Returns the port's first address.
    pub fn first_address(&self) -> Option<IpAddr> {
        self.fixed().next().map(|own| own.address)
    }

    /// Returns the options of each of several ports, from one address and at most one gateway for each, in their order.
    pub fn of_ports(&self, ports: usize) -> Vec<HostOptions> {
        let has_gateways = self.gateway.is_empty() || self.gateway.len() == ports;
        if self.answers() && (self.address.len() != ports || !has_gateways) {
            let addresses: Vec<String> = (0..ports).map(|port| format!("10.0.{port}.2/24")).collect();
            let count = if ports == 2 { "two".to_string() } else { ports.to_string() };
            let addresses = addresses.join(",");
            usage(&format!("{count} ports have {count} addresses: --address {addresses}, and {count} or no gateways"));
        }
        let of_port = |port: usize| {
            let address = self.address.get(port).copied().into_iter().collect();
            let gateway = self.gateway.get(port).copied().into_iter().collect();
            let options = HostOptions { address, gateway, ..self.clone() };
            options.check();
            options
        };
        (0..ports).map(of_port).collect()
    }

    /// Asks the gateways for their MAC addresses, so that they know the port's: a router that must ask for it first loses
    /// frames.
    pub fn greet_gateways(
        &self,
        responder: &mut Responder,
        port: &str,
        tx: &mut TxQueue,
        rx: &mut [RxQueue],
    ) -> Result<(), Error> {
        self.gateway.iter().try_for_each(|gateway| responder.resolve(*gateway, port, tx, rx).map(drop))
    }

    fn host(&self, port: &Port) -> Host {
        let host = Host::new(port.mac().0, self.fixed().map(|own| own.address));
        self.tagged(host)
    }

    /// Puts a host into the port's VLAN.
    fn tagged(&self, host: Host) -> Host {
        self.vlan.map_or(host.clone(), |id| host.with_vlan(id))
    }

    /// Returns a queue's responder, which counts its answers in `answered`; `None` without addresses.
    pub fn responder(&self, port: &Port, answered: &Arc<AtomicU64>) -> Option<Responder> {
        let has = |request: Request| self.reply.is_empty() || self.reply.contains(&request);
        self.answers().then(|| Responder {
            arp: has(Request::Arp),
            ping: has(Request::Ping),
            ..Responder::new(self.host(port), port.pool().clone(), answered.clone())
        })
    }

    /// Returns the address whose MAC address frames to `destination` get.
    fn next_hop(&self, destination: IpAddr) -> Result<IpAddr, Error> {
        if self.fixed().any(|own| own.reaches(destination)) {
            return Ok(destination);
        }
        let gateway = self.gateway.iter().find(|gateway| gateway.is_ipv4() == destination.is_ipv4());
        gateway.copied().ok_or_else(|| {
            let why = format!("{destination} is in none of the networks of --address");
            Error::new(ErrorKind::BadOption, "", why)
                .with_remedy(Remedy::Step("give the router's address: --gateway ADDRESS".into()))
        })
    }
}

/// Answers the requests of one receive queue.
pub struct Responder {
    host: Host,
    arp: bool,
    ping: bool,
    pool: Arc<Pool>,
    answers: Batch,
    bytes: Vec<u8>,
    answered: Arc<AtomicU64>,
}

impl Responder {
    pub fn new(host: Host, pool: Arc<Pool>, answered: Arc<AtomicU64>) -> Responder {
        Responder { host, arp: true, ping: true, pool, answers: Batch::new(), bytes: Vec::new(), answered }
    }

    /// Answers a frame if it is a request, and returns whether it did. The answer is queued for
    /// [`send`](Responder::send). If the queue is full, the request is treated as an ordinary frame.
    pub fn answers(&mut self, frame: &[u8]) -> bool {
        // Check this first, as most frames are not requests.
        let is_request = match frame.get(12..14) {
            Some([8, 0]) => frame.get(23) == Some(&1),
            kind => matches!(kind, Some([8, 6] | [0x86, 0xDD] | [0x81, 0])),
        };
        if !is_request || self.answers.len() == self.answers.capacity() {
            return false;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(frame);
        let is_answered =
            self.arp && self.host.answer_arp(&mut self.bytes) || self.ping && self.host.answer_ping(&mut self.bytes);
        is_answered && self.answers.push(&self.pool, &self.bytes)
    }

    /// Receives frames only to answer requests, and returns their number.
    pub fn receive(&mut self, rx: &mut RxQueue, batch: &mut Batch) -> usize {
        rx.recv(batch);
        let mut packets = 0;
        for packet in &mut *batch {
            self.answers(&packet);
            packets += 1;
        }
        batch.clear();
        packets
    }

    /// Sends the queued answers; those for which the port has no room remain queued.
    pub fn send(&mut self, tx: &mut TxQueue) {
        if !self.answers.is_empty() {
            let before = self.answers.packets().count();
            tx.send(&mut self.answers);
            let sent = before - self.answers.packets().count();
            self.answered.fetch_add(sent as u64, Ordering::Relaxed);
        }
    }

    /// Asks for the MAC address of another host in the same network, and waits for its reply, which may arrive at any of
    /// the queues. Answers requests meanwhile; other packets that arrive are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`] if it does not answer.
    pub fn resolve(
        &mut self,
        target: IpAddr,
        port: &str,
        tx: &mut TxQueue,
        rx: &mut [RxQueue],
    ) -> Result<[u8; 6], Error> {
        let failed = |why: String| Error::new(ErrorKind::Unusable, port, why);
        let request = self.host.ask(target).ok_or_else(|| {
            let family = if target.is_ipv4() { "IPv4" } else { "IPv6" };
            failed(format!("the port has no {family} address to ask {target} from"))
        })?;
        let waiting = format!("the MAC address of {target}");
        for _ in 0..REQUESTS {
            let learn = |host: &Host, frame: &[u8]| host.learn(frame, target);
            if let Some(mac) = self.exchange(&request, WAIT, (port, &waiting), (tx, rx), learn)? {
                return Ok(mac);
            }
        }
        let what = if target.is_ipv4() { "ARP requests" } else { "neighbour solicitations" };
        let remedy = Remedy::Step("check the address, the cable and the VLAN".into());
        Err(failed(format!("{target} did not answer {REQUESTS} {what}")).with_remedy(remedy))
    }

    /// Sends a request, and waits for its reply, which may arrive at any of the queues: the first frame for which
    /// `reply` returns a value. Answers requests meanwhile; other packets that arrive are dropped. Returns `None` if
    /// there is no reply within `wait`.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`] if a signal arrived first.
    pub fn exchange<T>(
        &mut self,
        request: &[u8],
        wait: Duration,
        (port, waiting): (&str, &str),
        (tx, rx): (&mut TxQueue, &mut [RxQueue]),
        mut reply: impl FnMut(&Host, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let (mut asking, mut arrived) = (Batch::new(), Batch::new());
        asking.push(&self.pool, request);
        let since = Instant::now();
        while since.elapsed() < wait {
            tx.send(&mut asking);
            let mut found = None;
            for rx in &mut *rx {
                rx.recv(&mut arrived);
                for mut packet in &mut arrived {
                    // With offloads, a reply may come without its checksum; a packet to be segmented is not a reply.
                    if packet.finish().is_err() {
                        continue;
                    }
                    found = found.or_else(|| reply(&self.host, &packet));
                    self.answers(&packet);
                }
                arrived.clear();
            }
            self.send(tx);
            if found.is_some() {
                return Ok(found);
            }
            if interrupts().wait(POLL) {
                return Err(Error::new(ErrorKind::Unusable, port, format!("interrupted while waiting for {waiting}")));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_reach_their_addresses() {
        for (own, other, is_near) in [
            ("10.0.0.2/24", "10.0.0.200", true),
            ("10.0.0.2/24", "10.0.1.2", false),
            ("10.0.0.2/0", "99.0.1.2", true),
            ("10.0.0.2/32", "10.0.0.3", false),
            ("10.0.0.2/24", "fd00::1", false),
            ("fd00::2/64", "fd00::ffff:0:0:1", true),
            ("fd00::2/64", "fd00:0:0:1::1", false),
            ("fd00::2/0", "2001::1", true),
            ("fd00::2/128", "fd00::2", true),
        ] {
            assert_eq!(own.parse::<Address>().unwrap().reaches(other.parse().unwrap()), is_near, "{own} {other}");
        }
        assert_eq!("dhcp".parse(), Ok(AddressSource::Dhcp));
        assert_eq!("auto".parse(), Ok(AddressSource::Auto));
        for bad in ["10.0.0.2/33", "fd00::2/129", "10.0.0.2/", "10.0.0/24", "224.0.0.1/24", "10.0.0.2/-1"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
