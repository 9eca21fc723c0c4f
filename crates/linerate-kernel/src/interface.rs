//! An interface of Linux and its current state (netdevice(7), ethtool's ioctl).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::{FRAME_HEADERS, Link, MacAddress, escaped};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use rustix::thread::CapabilitySet;

use super::capabilities::{self, INTERFACE};

/// A network interface of the kernel, in the process's network namespace.
pub struct Interface {
    /// The name that [`find`](Interface::find) accepts: the index, if the kernel's name is not UTF-8.
    name: String,
    /// The kernel's name.
    raw: CString,
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

/// The longest frames that an interface sends. Ports drop longer frames themselves: otherwise only the interface would
/// count them, and the kernel would retry those of a packet socket forever.
#[derive(Clone, Copy, Debug)]
pub struct LongestFrame {
    untagged: usize,
    /// With a VLAN tag.
    pub tagged: usize,
}

/// The length of an untagged Ethernet header.
const ETHERNET_HEADER: usize = 14;

impl LongestFrame {
    /// Returns the same limit for all frames.
    #[cfg(test)]
    pub fn any(len: usize) -> LongestFrame {
        LongestFrame { untagged: len, tagged: len }
    }

    /// Returns whether the interface sends a frame of `len` bytes that begins with `first`.
    #[inline(always)]
    pub fn fits(self, len: usize, first: &[u8]) -> bool {
        len <= self.untagged || len <= self.tagged && matches!(first.get(12..14), Some([0x81, 0x00] | [0x88, 0xA8]))
    }
}

impl Interface {
    /// Looks up an interface by its name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn open(name: &str) -> Result<Interface> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Error::system("socket(AF_INET)", error))?;
        if let Ok(index) = netdevice::name_to_index(&socket, name)
            && let Ok(raw) = CString::new(name)
        {
            return Ok(Interface { name: name.to_string(), raw, index, socket });
        }
        let described = |(index, name): &(u32, CString)| match name.to_str() {
            Ok(name) => escaped(name),
            Err(_) => format!("{index} (its name is not UTF-8)"),
        };
        let names: Vec<String> = netdevice_names().iter().map(described).collect();
        let why = format!("there is no such interface; there are {}", names.join(", "));
        Err(Error::new(ErrorKind::NotFound, name, why).with_remedy(Remedy::Step("see: ip link".into())))
    }

    /// Looks up an interface by its name, or by its index if no interface has that number as its name. Linux accepts
    /// names of any bytes; if they are not UTF-8, only the index can be given.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn find(name: &str) -> Result<Interface> {
        Interface::open(name).or_else(|error| {
            let Some((index, raw)) = name.parse().ok().and_then(|index| Some((index, raw_name(index)?))) else {
                return Err(error);
            };
            let name = raw.to_str().unwrap_or(name).to_string();
            Ok(Interface { name, raw, index, ..Interface::any()? })
        })
    }

    /// Returns the name of the interface with this index; `None` if there is none. Bytes that are not UTF-8 are
    /// replaced.
    pub fn name_of(index: u32) -> Option<String> {
        raw_name(index).map(|name| name.to_string_lossy().into_owned())
    }

    /// Returns a value for all interfaces, also if they appear later. It has no MAC address and no MTU.
    ///
    /// # Errors
    /// [`ErrorKind::System`].
    pub(super) fn any() -> Result<Interface> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Error::system("socket(AF_INET)", error))?;
        // The kernel's number for "any" in addresses of packet sockets (packet(7)).
        Ok(Interface { name: "any".to_string(), raw: c"any".to_owned(), index: 0, socket })
    }

    /// Returns a value for an interface of another network namespace. It is like an interface that is gone: nothing can
    /// be asked or changed by its name, which an interface of this namespace may have, too.
    ///
    /// # Errors
    /// [`ErrorKind::System`].
    pub(super) fn elsewhere(name: &str) -> Result<Interface> {
        Ok(Interface { name: name.to_string(), raw: CString::default(), index: u32::MAX, ..Interface::any()? })
    }

    /// Returns whether this is [all interfaces](Interface::any).
    pub(super) fn is_any(&self) -> bool {
        self.index == 0
    }

    /// Looks up an interface, or one of its queues: `eth0-2` is a queue of `eth0`, unless it is an interface.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn open_queue(name: &str) -> Result<(Interface, Option<u32>)> {
        match (Interface::find(name), name.rsplit_once('-')) {
            (Err(error), Some((interface, queue))) => match queue.parse() {
                Ok(queue) => Ok((Interface::find(interface)?, Some(queue))),
                Err(_) => Err(error),
            },
            (interface, _) => Ok((interface?, None)),
        }
    }

    /// Returns all interfaces except the loopback.
    pub fn all() -> Vec<Interface> {
        let others = netdevice_names().into_iter().filter(|(_, name)| name.as_c_str() != c"lo");
        let open = |(index, name): (u32, CString)| match name.to_str() {
            Ok(name) => Interface::open(name).ok(),
            Err(_) => Interface::find(&index.to_string()).ok(),
        };
        others.filter_map(open).collect()
    }

    /// Returns the name; if the kernel's name is not UTF-8, the index.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Calls an ioctl of netdevice(7).
    fn ioctl(&self, request: libc::c_ulong, argument: libc::__c_anonymous_ifr_ifru) -> io::Result<libc::ifreq> {
        let mut ifreq = request_for(self.raw.to_bytes(), argument);
        // SAFETY: the kernel reads and writes one `ifreq`; the memory to which ethtool's `ifreq` points outlives the
        // call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request as libc::Ioctl, &raw mut ifreq) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(ifreq) }
    }

    /// Calls ethtool's ioctl with one of its structures, all of which begin with the command.
    pub(super) fn ethtool<T>(&self, part: &mut T) -> io::Result<()> {
        let argument = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut *part).cast() };
        self.ioctl(libc::SIOCETHTOOL, argument).map(drop)
    }

    /// Returns flags such as `IFF_UP`.
    fn flags(&self) -> io::Result<libc::c_short> {
        let answer = self.ioctl(libc::SIOCGIFFLAGS, number(0))?;
        // SAFETY: the kernel has filled in this variant.
        Ok(unsafe { answer.ifr_ifru.ifru_flags })
    }

    /// Fails if the interface is gone, even if another interface has its name now.
    pub fn check(&self) -> Result<()> {
        if self.is_any() {
            return Ok(());
        }
        // Over the interface's own socket: the program may not be allowed to open another.
        let answer = self.ioctl(libc::SIOCGIFINDEX, libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 });
        // SAFETY: the kernel has written the index.
        match answer.map(|answer| unsafe { answer.ifr_ifru.ifru_ifindex }) {
            Ok(index) if index as u32 == self.index => Ok(()),
            _ => Err(Error::interface_gone(&self.name)),
        }
    }

    /// Fails if the interface's packets have no Ethernet headers (tun, WireGuard, ppp).
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`], [`ErrorKind::Gone`].
    pub fn check_ethernet(&self) -> Result<()> {
        let answer = self.ioctl(libc::SIOCGIFHWADDR, number(0)).map_err(|_| self.gone())?;
        // SAFETY: the kernel has filled in this variant.
        match unsafe { answer.ifr_ifru.ifru_hwaddr }.sa_family {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(()),
            kind => Err(Error::interface(
                &self.name,
                format!("its packets have no Ethernet headers (link type {kind} of linux/if_arp.h)"),
                "use an Ethernet interface; tcpdump can read packets of other interfaces".to_string(),
            )),
        }
    }

    /// Returns the MTU, the longest payload of a frame.
    pub fn mtu(&self) -> Result<usize> {
        let answer = self.ioctl(libc::SIOCGIFMTU, number(0)).map_err(|_| self.gone())?;
        // SAFETY: the kernel has filled in this variant.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu }.max(0) as usize)
    }

    /// Returns the longest frames that the interface sends, limited to `most` bytes.
    pub fn longest_frame(&self, most: usize) -> Result<LongestFrame> {
        let mtu = self.mtu()?;
        Ok(LongestFrame { untagged: most.min(mtu + ETHERNET_HEADER), tagged: most.min(mtu + FRAME_HEADERS) })
    }

    /// Sets the MTU.
    pub fn set_mtu(&self, mtu: usize) -> Result<()> {
        let argument = libc::__c_anonymous_ifr_ifru { ifru_mtu: mtu as i32 };
        self.ioctl(libc::SIOCSIFMTU, argument)
            .map(drop)
            .map_err(|error| self.refused("change the MTU", INTERFACE, &error))
    }

    /// Returns whether the interface is set up; it may have no carrier.
    pub fn is_up(&self) -> Result<bool> {
        Ok(i32::from(self.flags().map_err(|_| self.gone())?) & libc::IFF_UP != 0)
    }

    /// Sets the interface up.
    pub fn set_up(&self) -> Result<()> {
        self.set_flags(|flags| flags | libc::IFF_UP as libc::c_short)
            .map_err(|error| self.refused("set it up", INTERFACE, &error))
    }

    /// Sets the interface down.
    pub fn set_down(&self) -> Result<()> {
        let down = |flags| flags & !(libc::IFF_UP as libc::c_short);
        self.set_flags(down).map_err(|error| self.refused("set it down", INTERFACE, &error))
    }

    fn set_flags(&self, change: impl Fn(libc::c_short) -> libc::c_short) -> io::Result<()> {
        let argument = libc::__c_anonymous_ifr_ifru { ifru_flags: change(self.flags()?) };
        self.ioctl(libc::SIOCSIFFLAGS, argument).map(drop)
    }

    /// Returns the MAC address.
    pub fn mac(&self) -> Result<MacAddress> {
        self.ioctl(libc::SIOCGIFHWADDR, number(0)).map(|answer| mac_of(&answer)).map_err(|_| self.gone())
    }

    /// Sets the MAC address.
    pub fn set_mac(&self, mac: MacAddress) -> Result<()> {
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        address.sa_data.iter_mut().zip(mac.0).for_each(|(to, from)| *to = from as libc::c_char);
        self.ioctl(libc::SIOCSIFHWADDR, libc::__c_anonymous_ifr_ifru { ifru_hwaddr: address })
            .map(drop)
            .map_err(|error| self.refused("change the address", INTERFACE, &error))
    }

    /// Returns whether the interface has a carrier.
    pub fn link(&self) -> Result<Link> {
        self.check()?;
        if self.is_any() {
            return Ok(Link::Up { mbits: 0 });
        }
        let flags = i32::from(self.flags().map_err(|_| self.gone())?);
        let up = flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0;
        Ok(if up { Link::Up { mbits: 0 } } else { Link::Down })
    }

    /// Returns the interface's IP addresses, except link-local addresses, which do not mean that the interface is in
    /// use.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let name = self.raw.to_string_lossy();
        let ours = all.filter(|entry| entry.interface_name == name).filter_map(|entry| entry.address);
        let addresses = ours.filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or(address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        });
        addresses.filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())).collect()
    }

    /// Returns the name of the kernel driver; the loopback interface has none.
    pub fn driver(&self) -> String {
        let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
        match self.ethtool(&mut info) {
            Ok(()) => String::from_utf8_lossy(&info.driver).trim_end_matches('\0').to_string(),
            Err(_) => "kernel's own".to_string(),
        }
    }

    /// Returns the current number of receive queues.
    pub fn queues(&self) -> u32 {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        // Drivers that do not report the count have one queue.
        match self.ethtool(&mut channels) {
            Ok(()) => (channels.receive + channels.combined).max(1),
            Err(_) => 1,
        }
    }

    /// Returns the number of frames that the card has dropped for lack of a free descriptor, over all queues. It is
    /// `rx_missed_errors` of `struct rtnl_link_stats64`, or 0 if the driver does not count them.
    pub fn missed(&self) -> u64 {
        let count = std::fs::read_to_string(format!("/sys/class/net/{}/statistics/rx_missed_errors", self.name));
        count.ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns the error for an interface that is gone.
    pub fn gone(&self) -> Error {
        Error::interface_gone(&self.name)
    }

    /// Returns the error for an operation that needs these capabilities, and that the kernel refused.
    pub fn refused(&self, what: &str, needed: CapabilitySet, error: &io::Error) -> Error {
        let mend = match error.kind() {
            io::ErrorKind::PermissionDenied => capabilities::remedy(needed),
            io::ErrorKind::NetworkDown => format!("set it up: sudo ip link set dev {} up", self.name),
            _ => format!("see: ip -d link show {}; dmesg", self.name),
        };
        Error::interface(&self.name, format!("cannot {what}: {error}"), mend)
    }
}

/// Returns the argument of an ioctl of netdevice(7) for an interface.
pub(super) fn request_for(name: &[u8], argument: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: argument };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request
}

/// Returns a number as an ioctl's argument; 0 if none is needed.
pub(super) fn number(value: i32) -> libc::__c_anonymous_ifr_ifru {
    libc::__c_anonymous_ifr_ifru { ifru_metric: value }
}

/// Returns the address in an answer to `SIOCGIFHWADDR`.
pub(super) fn mac_of(answer: &libc::ifreq) -> MacAddress {
    // SAFETY: all variants of the union are plain data, of which any bytes are valid.
    let bytes = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
    MacAddress(std::array::from_fn(|n| bytes[n] as u8))
}

/// Returns the kernel's name of the interface with this index.
fn raw_name(index: u32) -> Option<CString> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the C library writes at most IF_NAMESIZE bytes, with a zero at the end.
    let is_found = unsafe { !libc::if_indextoname(index, name.as_mut_ptr().cast()).is_null() };
    CStr::from_bytes_until_nul(&name).ok().filter(|_| is_found).map(CStr::to_owned)
}

/// Returns the indexes and the names of all interfaces, sorted by index.
fn netdevice_names() -> Vec<(u32, CString)> {
    let mut all = Vec::new();
    // SAFETY: the C library returns entries up to one with index 0, whose names are valid until they are freed.
    unsafe {
        let entries = libc::if_nameindex();
        let mut entry = entries;
        while !entry.is_null() && (*entry).if_index != 0 {
            all.push(((*entry).if_index, CStr::from_ptr((*entry).if_name).to_owned()));
            entry = entry.add(1);
        }
        if !entries.is_null() {
            libc::if_freenameindex(entries);
        }
    }
    all.sort();
    all
}
