//! An interface of Linux: what it is, and how it is now (netdevice(7), ethtool's ioctl).
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::error::{Error, Result};
use crate::port::{Link, MacAddress};

/// One of the kernel's interfaces, in the network namespace that the process is in.
pub struct Interface {
    name: String,
    index: u32,
    socket: OwnedFd,
}

// From linux/ethtool.h.
const GET_DRIVER: u32 = 0x03;
const GET_CHANNELS: u32 = 0x3C;

/// `struct ethtool_drvinfo`
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

impl Interface {
    /// Looks it up.
    ///
    /// # Errors
    /// [`Error::NoInterface`].
    pub fn open(name: &str) -> Result<Interface> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Error::system("socket(AF_INET)", error))?;
        let index = netdevice::name_to_index(&socket, name)
            .map_err(|_| Error::NoInterface { name: name.to_string(), known: netdevice_names(&socket).join(", ") })?;
        Ok(Interface { name: name.to_string(), index, socket })
    }

    /// All there are, but the loopback.
    pub fn all() -> Vec<Interface> {
        let Ok(socket) = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None) else {
            return Vec::new();
        };
        netdevice_names(&socket)
            .iter()
            .filter(|name| *name != "lo")
            .filter_map(|name| Interface::open(name).ok())
            .collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Calls an ioctl of netdevice(7).
    fn ask(&self, request: libc::c_ulong, argument: libc::__c_anonymous_ifr_ifru) -> io::Result<libc::ifreq> {
        let mut ask = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: argument };
        for (to, from) in ask.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the kernel reads and writes one `ifreq`; what ethtool's points to outlives the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, &raw mut ask) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(ask) }
    }

    /// Calls ethtool's ioctl with one of its structures, which begin with the command.
    fn ethtool<T>(&self, part: &mut T) -> io::Result<()> {
        let argument = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut *part).cast() };
        self.ask(libc::SIOCETHTOOL, argument).map(drop)
    }

    fn number(value: i32) -> libc::__c_anonymous_ifr_ifru {
        libc::__c_anonymous_ifr_ifru { ifru_metric: value }
    }

    /// Fails if it is gone, also if another has its name now.
    pub fn check(&self) -> Result<()> {
        match netdevice::name_to_index(&self.socket, &self.name) {
            Ok(index) if index == self.index => Ok(()),
            _ => Err(Error::InterfaceGone { name: self.name.clone() }),
        }
    }

    /// The longest payload of a frame.
    pub fn mtu(&self) -> Result<usize> {
        let answer = self.ask(libc::SIOCGIFMTU, Self::number(0)).map_err(|_| self.gone())?;
        // SAFETY: the kernel has filled in this part.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu }.max(0) as usize)
    }

    /// Changes the longest payload.
    pub fn set_mtu(&self, mtu: usize) -> Result<()> {
        let argument = libc::__c_anonymous_ifr_ifru { ifru_mtu: mtu as i32 };
        self.ask(libc::SIOCSIFMTU, argument).map(drop).map_err(|error| self.refused("change the MTU", &error))
    }

    /// Sets it up.
    pub fn set_up(&self) -> Result<()> {
        let refused = |error| self.refused("set it up", &error);
        let answer = self.ask(libc::SIOCGIFFLAGS, Self::number(0)).map_err(refused)?;
        // SAFETY: the kernel has filled in this part.
        let flags = unsafe { answer.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
        let argument = libc::__c_anonymous_ifr_ifru { ifru_flags: flags };
        self.ask(libc::SIOCSIFFLAGS, argument).map(drop).map_err(refused)
    }

    /// Its address.
    pub fn mac(&self) -> Result<MacAddress> {
        let answer = self.ask(libc::SIOCGIFHWADDR, Self::number(0)).map_err(|_| self.gone())?;
        // SAFETY: the kernel has filled in this part.
        let bytes = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(MacAddress(std::array::from_fn(|n| bytes[n] as u8)))
    }

    /// Changes its address.
    pub fn set_mac(&self, mac: MacAddress) -> Result<()> {
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        address.sa_data.iter_mut().zip(mac.0).for_each(|(to, from)| *to = from as libc::c_char);
        self.ask(libc::SIOCSIFHWADDR, libc::__c_anonymous_ifr_ifru { ifru_hwaddr: address })
            .map(drop)
            .map_err(|error| self.refused("change the address", &error))
    }

    /// Frames for others are received, too, until this is dropped.
    pub fn promiscuous(&self) -> Result<OwnedFd> {
        let refused = |error: io::Error| self.refused("receive frames for others", &error);
        // SAFETY: a plain call; the descriptor is ours alone. It receives nothing: no protocol is named.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        // SAFETY: as above.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let all = libc::packet_mreq {
            mr_ifindex: self.index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let length = size_of_val(&all) as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of plain data.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const all).cast(),
                length,
            )
        };
        if result < 0 { Err(refused(io::Error::last_os_error())) } else { Ok(socket) }
    }

    /// Whether it has a carrier.
    pub fn link(&self) -> Result<Link> {
        self.check()?;
        let answer = self.ask(libc::SIOCGIFFLAGS, Self::number(0)).map_err(|_| self.gone())?;
        // SAFETY: the kernel has filled in this part.
        let flags = i32::from(unsafe { answer.ifr_ifru.ifru_flags });
        let up = flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0;
        Ok(if up { Link::Up { mbits: 0 } } else { Link::Down })
    }

    /// The addresses that the kernel has on it, for which it is used; those of its own link only are none.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let ours = all.filter(|entry| entry.interface_name == self.name).filter_map(|entry| entry.address);
        let addresses = ours.filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or(address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        });
        addresses.filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())).collect()
    }

    /// Which driver of the kernel's has it.
    pub fn driver(&self) -> String {
        let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
        match self.ethtool(&mut info) {
            Ok(()) => String::from_utf8_lossy(&info.driver).trim_end_matches('\0').to_string(),
            Err(_) => "no driver's name".to_string(),
        }
    }

    /// How many receive queues it has now.
    pub fn queues(&self) -> u32 {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        // Those that cannot say have one.
        match self.ethtool(&mut channels) {
            Ok(()) => (channels.receive + channels.combined).max(1),
            Err(_) => 1,
        }
    }

    fn gone(&self) -> Error {
        Error::InterfaceGone { name: self.name.clone() }
    }

    /// Something that the kernel did not let us do.
    pub fn refused(&self, what: &str, error: &io::Error) -> Error {
        let mend = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "run it as root, or with the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF".to_string()
            }
            Some(libc::ENETDOWN) => format!("set it up: sudo ip link set {} up", self.name),
            _ => format!("see what the kernel says of it: ip -d link show {}; dmesg", self.name),
        };
        Error::Interface { name: self.name.clone(), why: format!("cannot {what}: {error}"), mend }
    }
}

/// The names of all interfaces.
fn netdevice_names(socket: &OwnedFd) -> Vec<String> {
    // Each has an entry of its own for its link, beside those of its addresses.
    let mut names: Vec<String> =
        nix::ifaddrs::getifaddrs().into_iter().flatten().map(|entry| entry.interface_name).collect();
    names.sort_by_key(|name| netdevice::name_to_index(socket, name).unwrap_or(u32::MAX));
    names.dedup();
    names
}
