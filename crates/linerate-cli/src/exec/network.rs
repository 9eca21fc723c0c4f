//! The network of the namespace: addresses, routes (rtnetlink(7)) and name servers.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use linerate::Error;
use linerate::kernel::Interface;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::channel::{Network, Step};

/// Configures the interfaces with these names.
///
/// # Errors
/// The step that failed.
pub fn configure(network: &Network, interfaces: &[String]) -> Result<(), (Step, io::Error)> {
    let index = |number: usize| {
        let interface = interfaces.get(number).and_then(|name| Interface::open(name).ok());
        interface.map(|interface| interface.index()).ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    for (number, addresses) in network.addresses.iter().enumerate() {
        for &(address, length) in addresses {
            index(number).and_then(|index| add_address(index, address, length)).map_err(|why| (Step::Address, why))?;
        }
    }
    for &(number, gateway) in &network.gateways {
        index(number).and_then(|index| add_default_route(index, gateway)).map_err(|why| (Step::Route, why))?;
    }
    Ok(())
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn add_address(index: u32, address: IpAddr, length: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    (message.header.family, message.header.prefix_len, message.header.index) = (family(address), length, index);
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    match address {
        IpAddr::V4(address) if length < 31 => {
            let broadcast = address.to_bits() | u32::MAX.checked_shr(length.into()).unwrap_or(0);
            message.attributes.push(AddressAttribute::Broadcast(Ipv4Addr::from_bits(broadcast)));
        }
        IpAddr::V4(_) => {}
        // Usable without a delay: otherwise the command's first connections would fail.
        IpAddr::V6(_) => message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad)),
    }
    request(RouteNetlinkMessage::NewAddress(message))
}

fn add_default_route(index: u32, gateway: IpAddr) -> io::Result<()> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(gateway);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    (message.header.protocol, message.header.scope) = (RouteProtocol::Static, RouteScope::Universe);
    message.header.kind = RouteType::Unicast;
    // The gateway may be outside of the interface's networks, as some providers have it.
    message.header.flags = RouteFlags::Onlink;
    let gateway = match gateway {
        IpAddr::V4(gateway) => RouteAddress::Inet(gateway),
        IpAddr::V6(gateway) => RouteAddress::Inet6(gateway),
    };
    message.attributes = vec![RouteAttribute::Gateway(gateway), RouteAttribute::Oif(index)];
    request(RouteNetlinkMessage::NewRoute(message))
}

/// Sends a request to the kernel, and waits for its acknowledgement.
fn request(message: RouteNetlinkMessage) -> io::Result<()> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    // NETLINK_ROUTE is protocol 0.
    let kind = rustix::net::AddressFamily::NETLINK;
    let socket = socket_with(kind, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &bytes, SendFlags::empty())?;
    let mut reply = vec![0; 4096];
    let (len, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
    let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply[..len]);
    match reply.map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) => match error.code {
            None => Ok(()),
            Some(_) => Err(error.to_io()),
        },
        other => Err(io::Error::other(format!("the kernel replied {other:?}"))),
    }
}

/// An empty file system is mounted here for a moment, to get files and folders that are mounted over others. The folder
/// exists on every system.
const STAGE: &str = "/proc";

/// The file with the name servers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Sockets of daemons of the machine that resolve names, in the machine's network.
const RESOLVERS: [&str; 3] =
    ["/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve", "/run/systemd/resolve/io.systemd.Resolve.Monitor"];

/// Mounts a file with these name servers over `/etc/resolv.conf`, unless there are none, and hides the machine's daemons
/// that resolve names. Must be called within a mount namespace.
pub fn set_name_servers(servers: &[String]) -> io::Result<()> {
    let daemons: Vec<&str> = RESOLVERS.into_iter().filter(|path| Path::new(path).exists()).collect();
    if servers.is_empty() && daemons.is_empty() {
        return Ok(());
    }
    mount("tmpfs", STAGE, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    let bound = (|| {
        let [list, empty] = ["resolv.conf", "empty"].map(|name| format!("{STAGE}/{name}"));
        if !servers.is_empty() {
            let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
            fs::write(&list, lines)?;
            mount_bind(&*list, RESOLV_CONF)?;
        }
        fs::write(&empty, "")?;
        // A program whose daemon does not listen asks the name servers itself.
        daemons.iter().try_for_each(|daemon| mount_bind(&*empty, *daemon))?;
        Ok(())
    })();
    unmount(STAGE, UnmountFlags::DETACH)?;
    bound
}

/// Mounts the namespace's interfaces in `/sys`, where the machine's are shown otherwise.
pub fn show_interfaces() -> io::Result<()> {
    mount("sysfs", STAGE, "sysfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    let shown = ["class/net", "devices/virtual/net"]
        .iter()
        .try_for_each(|folder| mount_bind(format!("{STAGE}/{folder}"), format!("/sys/{folder}")));
    unmount(STAGE, UnmountFlags::DETACH)?;
    Ok(shown?)
}

/// The length of the queue between the command and the port, in packets. The command's TCP does not notice that packets
/// wait there, and sends its whole window; with TAP's own length of 500, a part of it was dropped.
const QUEUE: u32 = 10_000;

/// Not by an ioctl, which needs a capability in the machine's user namespace.
fn set_queue_length(index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::TxQueueLen(QUEUE)];
    request(RouteNetlinkMessage::SetLink(message))
}

/// Sets an interface up; one with an MTU is a TAP.
pub fn set_up(name: &str, mtu: Option<usize>) -> linerate::Result<()> {
    let interface = Interface::open(name)?;
    if let Some(mtu) = mtu {
        interface.set_mtu(mtu)?;
        set_queue_length(interface.index()).map_err(|error| Error::system("setting txqueuelen", error))?;
    }
    // Without IPv6's search for duplicates, which lasts a second; fails without IPv6, or in a container.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
    interface.set_up()
}

/// The counters of the interfaces in another process's network namespace, also after its end.
pub struct Counters(File);

impl Counters {
    /// Opens the counters of a process's namespace.
    pub fn of(pid: u32) -> io::Result<Counters> {
        File::open(format!("/proc/{pid}/net/dev")).map(Counters)
    }

    /// Returns the packets that the command has sent on an interface and that were dropped, as the queue was full.
    pub fn overflows(&mut self, interface: &str) -> Option<u64> {
        /// The number of the column of dropped packets that were sent.
        const TX_DROPPED: usize = 11;
        let mut table = String::new();
        self.0.rewind().and_then(|()| self.0.read_to_string(&mut table)).ok()?;
        let row = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
        row.split_whitespace().nth(TX_DROPPED)?.parse().ok()
    }
}

/// The number of TCP connections of this network namespace with data that the peer has not confirmed, though their
/// program has closed them, and the number of such bytes; the end of a connection (FIN) counts as one.
pub fn unsent() -> (usize, u64) {
    /// The numbers of FIN_WAIT1, LAST_ACK and CLOSING (net/tcp_states.h).
    const CLOSED: [&str; 3] = ["04", "09", "0B"];
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let mut sum = (0, 0);
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let mut fields = line.split_whitespace();
        let [state, queues] = [3, 0].map(|skipped| fields.nth(skipped).unwrap_or(""));
        if CLOSED.contains(&state) {
            let sent = queues.split(':').next().and_then(|bytes| u64::from_str_radix(bytes, 16).ok());
            sum = (sum.0 + 1, sum.1 + sent.unwrap_or(0));
        }
    }
    sum
}
