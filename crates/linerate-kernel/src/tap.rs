//! A TAP interface: Linux at one end, the program at the other (kernel documentation, networking/tuntap.rst).
//!
//! The port receives the frames that Linux sends, and vice versa. A virtio header before each frame describes its
//! pending offloads. With offloads, frames of up to 64 KiB pass unsegmented and without a checksum.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::descriptor::duplicate;
use linerate_core::error::{Error, ErrorKind, MORE_DESCRIPTORS, Result};
use linerate_core::memory::Pool;
use linerate_core::offload::{LONGEST, Offload, Segmentation};
use linerate_core::port::{
    self, Address, Capabilities, Config, DESCRIPTOR, Description, Device, Drops, FRAME_HEADERS, Feature, Link, MTU,
    MacAddress, Maturity, Opening, PortClass, PortKind, PortOption, QUEUES, QueueCounters, RING, Receive, SendFinished,
    Transmit,
};
use rustix::fs::OFlags;

use super::bpf::Link as BpfLink;
use super::capabilities;
use super::interface::{Interface, mac_of, number, request_for};
use super::interface_drops::TransmitDrops;
use super::port::{KernelPort, OnInterface, Sockets, Target};

/// `tap:NAME`
pub static TAP: PortKind = PortKind {
    description: Description {
        options: &[QUEUES, RING, MTU, port::OFFLOADS, DESCRIPTOR],
        feature: "kernel",
        example: "tap:t0",
        summary: "an interface of Linux, made for the port",
        page: "kernel.md",
        maturity: Maturity::Others,
        class: PortClass::Stack,
        ..Description::new("tap", Address::Interface)
    },
    open: &|opening| {
        let (name, config) = (opening.name.address(), opening.config);
        Ok(match opening.name.option(DESCRIPTOR.name) {
            Some(number) => Box::new(Tap::inherited(name, number.parse().unwrap_or(-1), config)?),
            None => Box::new(Tap::open(name, config)?),
        })
    },
};

/// The options of the kernel's network stack as a port.
pub(super) const OF_STACK: &[PortOption] = &[QUEUES, RING, MTU, port::OFFLOADS];

/// `host:` and `host:NAME`
pub static HOST: PortKind = PortKind {
    description: Description {
        copies_peer_mac: true,
        options: OF_STACK,
        example: "host:",
        summary: "Linux's stack, as the other side of a card",
        address: Address::Text,
        prefix: "host",
        ..TAP.description
    },
    open: &open_host,
};

fn open_host(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = match opening.name.address() {
        // The kernel chooses the number.
        "" => "linerate%d",
        name => name,
    };
    Ok(Box::new(Tap::open(name, opening.config)?))
}

/// A TAP interface of Linux.
pub struct Tap {
    queues: Vec<Arc<File>>,
    /// The kernel segments UDP datagrams (since Linux 6.2).
    supports_udp_segmentation: bool,
    attached: Option<[BpfLink; 2]>,
    /// Packets for which the queue to the program had no room.
    overflows: TransmitDrops,
}

/// The bits of `TUNSETOFFLOAD` that the port supports (linux/if_tun.h).
const OFFLOADS: libc::c_ulong =
    (libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN) as libc::c_ulong;
/// The bits of UDP segmentation, which Linux supports since 6.2.
const DATAGRAMS: libc::c_ulong = 0x20 | 0x40;
/// The shortest Ethernet frame without CRC; the kernel delivers shorter ones unpadded.
const SHORTEST: usize = 60;

impl Tap {
    /// Opens TAP interface `name` and sets it up. If it does not exist, it is created, and removed when the port is
    /// dropped. In a name, `%d` stands for the first free number.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): no `/dev/net/tun`, no capability CAP_NET_ADMIN, an
    /// invalid name, or not a TAP interface.
    pub fn open(name: &str, config: Config) -> Result<KernelPort<Tap>> {
        if name.len() >= libc::IFNAMSIZ || name.contains(|c: char| c.is_whitespace() || "/:".contains(c)) {
            let why = "the kernel's names of interfaces have up to 15 bytes, without spaces, '/' and ':'".to_string();
            return Err(Error::bad_name(config.name, why));
        }
        let (interface, files) = Tap::make(name, &config)?;
        interface.set_up()?;
        OnInterface::port(Target { interface, config }, files, true)
    }

    /// Creates an interface to which Linux itself sends no packets; `attach` runs before it is set up.
    pub(super) fn hidden(
        config: Config,
        attach: impl FnOnce(&Interface) -> Result<[BpfLink; 2]>,
    ) -> Result<KernelPort<Tap>> {
        let (interface, mut files) = Tap::make("linerate%d", &config)?;
        let quiet = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", interface.name());
        // Fails on kernels without IPv6, which send no IPv6 packets.
        let _ = std::fs::write(quiet, "1");
        files.attached = Some(attach(&interface)?);
        interface.set_up()?;
        OnInterface::port(Target { interface, config }, files, true)
    }

    /// Creates a TAP interface in this network namespace for a port `tap:NAME?fd=N` of another process, which receives
    /// the descriptor and may be in another namespace. The interface is removed when the descriptor is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable), as [`open`](Tap::open).
    pub fn create(name: &str) -> Result<OwnedFd> {
        attach(name, false).map(|(file, _)| file.into()).map_err(|error| refused(name, &error))
    }

    /// Opens the TAP interface of a descriptor that the process has inherited or received, as QEMU's
    /// `-netdev tap,fd=`. The descriptor remains open; both are nonblocking then.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): it is not that of a TAP interface whose packets
    /// begin with a virtio header.
    fn inherited(name: &str, descriptor: libc::c_int, config: Config) -> Result<KernelPort<Tap>> {
        let refused = |error: &dyn fmt::Display| {
            Error::interface(
                name,
                format!("descriptor {descriptor} is not an open TAP interface: {error}"),
                "open /dev/net/tun, and call TUNSETIFF with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR".to_string(),
            )
        };
        if config.options.rx_queues.max(config.options.tx_queues) > 1 {
            return Err(Error::new(ErrorKind::BadOption, config.name, "a descriptor is one queue: leave out queues="));
        }
        let file = File::from(duplicate(descriptor).map_err(|error| refused(&error))?);
        let mut ifreq = request_for(b"", number(0));
        call(&file, libc::TUNGETIFF, (&raw mut ifreq) as libc::c_ulong).map_err(|error| refused(&error))?;
        // SAFETY: the kernel has filled in this variant.
        let flags = i32::from(unsafe { ifreq.ifr_ifru.ifru_flags });
        let [needed, others] = [libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR, libc::IFF_MULTI_QUEUE];
        if flags & (needed | others) != needed {
            return Err(refused(&format!("its flags are {flags:#06x}, and must be {needed:#06x}")));
        }
        let supports_udp_segmentation = configure(&file, config.options.offloads).map_err(|error| refused(&error))?;
        rustix::fs::fcntl_setfl(&file, OFlags::NONBLOCK).map_err(|error| refused(&error))?;
        let queues = vec![Arc::new(file)];
        let interface = Interface::elsewhere(name)?;
        let overflows = TransmitDrops::unknown();
        let tap = Tap { queues, supports_udp_segmentation, attached: None, overflows };
        OnInterface::port(Target { interface, config }, tap, true)
    }

    fn make(name: &str, config: &Config) -> Result<(Interface, Tap)> {
        let several = config.options.rx_queues.max(config.options.tx_queues);
        let mut name = name.to_string();
        let (mut queues, mut supports_udp_segmentation) = (Vec::new(), true);
        for _ in 0..several {
            let opened =
                open_queue(&name, several > 1, config.options.offloads).map_err(|error| refused(&name, &error))?;
            name = opened.name;
            supports_udp_segmentation &= opened.supports_udp_segmentation;
            queues.push(Arc::new(opened.file));
        }
        let interface = Interface::open(&name)?;
        interface.set_mtu(config.options.max_frame.saturating_sub(FRAME_HEADERS).max(68))?;
        let overflows = TransmitDrops::new(&interface);
        Ok((interface, Tap { queues, supports_udp_segmentation, attached: None, overflows }))
    }
}

impl Tap {
    /// Calls a tun ioctl with an `ifreq`; the interface may be in another network namespace by now.
    fn ioctl(&self, interface: &Interface, request: libc::Ioctl) -> Result<libc::ifreq> {
        let mut ifreq = request_for(b"", number(0));
        // SAFETY: the kernel writes one `ifreq`, which outlives the call.
        let result = unsafe { libc::ioctl(self.queues[0].as_raw_fd(), request, &raw mut ifreq) };
        if result < 0 { Err(interface.gone()) } else { Ok(ifreq) }
    }
}

/// An opened queue.
struct Opened {
    file: File,
    /// The interface's name.
    name: String,
    supports_udp_segmentation: bool,
}

fn open_queue(name: &str, several: bool, offloads: bool) -> io::Result<Opened> {
    let (file, name) = attach(name, several)?;
    let supports_udp_segmentation = configure(&file, offloads)?;
    Ok(Opened { file, name, supports_udp_segmentation })
}

/// Calls a tun ioctl, whose argument is a number, or the address of a structure that outlives the call.
fn call(file: &File, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the callers pass what this request reads and writes: one `ifreq`, an int, or a number.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches a queue to an interface, which is created if it does not exist. Returns the interface's name, too.
fn attach(name: &str, several: bool) -> io::Result<(File, String)> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let several = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as libc::c_short;
    let mut ifreq = request_for(name.as_bytes(), libc::__c_anonymous_ifr_ifru { ifru_flags: flags });
    call(&file, libc::TUNSETIFF, (&raw mut ifreq) as libc::c_ulong)?;
    let name = ifreq.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    Ok((file, String::from_utf8(name).unwrap_or_default()))
}

/// Sets the length of the headers before packets, and which offloads Linux may leave pending. Returns whether Linux
/// segments UDP datagrams.
fn configure(file: &File, offloads: bool) -> io::Result<bool> {
    let length = Offload::LEN as libc::c_int;
    call(file, libc::TUNSETVNETHDRSZ, (&raw const length) as libc::c_ulong)?;
    // Probed even if the port was opened without offloads, an option that concerns only reception: Linux still segments
    // large packets that the port sends.
    let supports_udp_segmentation = call(file, libc::TUNSETOFFLOAD, OFFLOADS | DATAGRAMS).is_ok();
    if !offloads {
        call(file, libc::TUNSETOFFLOAD, 0)?;
    } else if !supports_udp_segmentation {
        call(file, libc::TUNSETOFFLOAD, OFFLOADS)?;
    }
    Ok(supports_udp_segmentation)
}

fn refused(name: &str, error: &io::Error) -> Error {
    let mend = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => {
            "load the module: sudo modprobe tun; a container needs the device /dev/net/tun".to_string()
        }
        Some(libc::EPERM | libc::EACCES) => capabilities::remedy(capabilities::INTERFACE),
        Some(libc::EMFILE) => format!("try: {MORE_DESCRIPTORS}"),
        Some(libc::EBUSY) => "end the program that has it, or choose another name".to_string(),
        Some(libc::ENOTTY) => {
            "/dev/net/tun is another device: its numbers are 10, 200 (ls -l /dev/net/tun); mount the machine's"
                .to_string()
        }
        _ => format!(
            "an existing interface must be a TAP interface with the same queues and without packet information: ip -d tuntap; or remove it: sudo ip link delete {name}"
        ),
    };
    Error::interface(name, format!("cannot open it as a TAP interface (/dev/net/tun): {error}"), mend)
}

/// Receives the packets that Linux sends.
struct TapRx {
    file: Arc<File>,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    /// Header and frame, as read from the file.
    bytes: Box<[u8]>,
    /// The length of a packet in `bytes` that found no buffer; the next call delivers it.
    pending_len: Option<usize>,
}

impl Receive for TapRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, mut packets, mut total) = (batch.len(), 0, 0);
        while batch.len() < batch.capacity() {
            let len = match self.pending_len.take() {
                Some(len) => len,
                // No packet, or the interface is gone; `link` tells the difference.
                None => match (&*self.file).read(&mut self.bytes) {
                    Ok(len) if len > Offload::LEN => len,
                    _ => break,
                },
            };
            let header = self.bytes.first_chunk().copied().map(Offload);
            let end = len.max(Offload::LEN + SHORTEST);
            self.bytes[len..end].fill(0);
            let frame = &self.bytes[Offload::LEN..end];
            let pool = &self.pool;
            if !batch.push_parts(pool, frame.len(), std::iter::once(frame), header.filter(|header| header.is_needed()))
            {
                if !batch.can_hold(pool, frame.len()) {
                    self.counters.dropped();
                    continue;
                }
                self.counters.found_no_buffer();
                self.pending_len = Some(len);
                break;
            }
            packets += 1;
            total += frame.len();
        }
        self.counters.moved_packets(packets, batch.len() - before, total);
        batch.len() - before
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// Sends packets to Linux.
struct TapTx {
    file: Arc<File>,
    counters: Arc<QueueCounters>,
    longest: usize,
    supports_udp_segmentation: bool,
}

impl Transmit for TapTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }
}

impl SendFinished for TapTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut slots, mut packets, mut total, mut is_to_be_finished) = (0, 0, 0, false);
        for packet in batch.packets() {
            let header = packet.offload();
            if !self.supports_udp_segmentation && header.is_some_and(|left| left.segmentation() == Segmentation::Udp) {
                is_to_be_finished = true;
                break;
            }
            let len = packet.len();
            let bytes = header.map_or([0; Offload::LEN], |header| header.0);
            let parts: Vec<IoSlice<'_>> =
                std::iter::once(IoSlice::new(&bytes)).chain(packet.segments().map(IoSlice::new)).collect();
            let is_too_long = len > if header.is_some() { LONGEST } else { self.longest };
            match if is_too_long {
                Err(io::ErrorKind::InvalidInput.into())
            } else {
                (&*self.file).write_vectored(&parts)
            } {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The interface is down, and drops the frame as a card's would; or the frame is invalid, and is dropped
                // here.
                Err(_) => self.counters.dropped(),
                Ok(_) => {
                    packets += 1;
                    total += len;
                }
            }
            slots += packet.slots();
        }
        batch.drop_front(slots);
        self.counters.moved_packets(packets, slots, total);
        (slots, is_to_be_finished)
    }
}

impl Sockets for Tap {
    const DRIVER: &'static str = "tap";
    const CLASS: PortClass = PortClass::Stack;
    const QUEUE_SELECTOR: &'static str = "Linux selects the queue: a flow arrives at the queue that last sent it";
    const OFFLOADS: bool = true;

    fn description(&self, interface: &Interface) -> String {
        match self.attached {
            None => format!("TAP interface {} of Linux", interface.name()),
            Some(_) => format!("the kernel's network stack, detached from its interface, via {}", interface.name()),
        }
    }

    fn capabilities(&self, config: &Config) -> Capabilities {
        Capabilities::default()
            .with(&[Feature::SendChecksum, Feature::SendTcpSegments])
            .with_if(self.supports_udp_segmentation, &[Feature::SendUdpSegments])
            .with_if(config.options.offloads, &[Feature::ReceiveSegments])
    }

    fn rx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(TapRx {
            file: self.queues[usize::from(queue)].clone(),
            pool: target.config.pool.clone(),
            counters,
            bytes: vec![0; Offload::LEN + LONGEST].into(),
            pending_len: None,
        }))
    }

    fn tx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let (file, supports_udp_segmentation) =
            (self.queues[usize::from(queue)].clone(), self.supports_udp_segmentation);
        Ok(Box::new(TapTx { file, counters, longest: target.config.options.max_frame, supports_udp_segmentation }))
    }

    /// Counts the packets that Linux could not queue for the program. Those of an interface in another namespace are not
    /// known.
    fn drops(&self, interface: &Interface) -> Drops {
        Drops { no_descriptor: self.overflows.count(interface), ..Drops::default() }
    }

    fn check(&self, interface: &Interface) -> Result<()> {
        self.ioctl(interface, libc::TUNGETIFF).map(drop)
    }

    fn link(&self, interface: &Interface) -> Result<Link> {
        self.check(interface)?;
        // The state of an interface in another namespace cannot be read.
        Ok(interface.link().unwrap_or(Link::Up { mbits: 0 }))
    }

    fn mac(&self, interface: &Interface) -> Result<MacAddress> {
        self.ioctl(interface, libc::SIOCGIFHWADDR as libc::Ioctl).map(|answer| mac_of(&answer))
    }

    /// A TAP interface always receives everything that Linux sends.
    fn promiscuous(&self, _: &Interface) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}
