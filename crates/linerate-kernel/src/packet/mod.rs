//! AF_PACKET: receives a copy of every packet of an interface, and sends on it alongside the kernel. It needs no
//! support in the driver, but costs a copy and a longer path through the kernel than AF_XDP.
//!
//! - `socket`: a packet socket with its rings
//! - `queue`: receive and send
//!
//! The kernel receives the same packets, too. An interface from which a program forwards should have no address.

mod queue;
mod socket;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::filter::Filter;
use linerate_core::offload::LONGEST;
use linerate_core::port::{
    Address, Capabilities, Config, Description, Device, Drops, Feature, MTU, Maturity, OFFLOADS, Opening, PortClass,
    PortKind, QUEUES, QueueCounters, RING, Receive, TIMESTAMPS, Transmit,
};
use queue::{PacketRx, PacketTx, Retry};
use socket::Socket;

use super::flow::{FLOW, flow_of};
use super::interface::Interface;
use super::packet_socket;
use super::port::{KernelPort, OnInterface, Sockets, Target};

/// `packet:IF`, and `packet:any` for all interfaces
pub static PACKET: PortKind = PortKind {
    description: Description {
        options: &[QUEUES, RING, MTU, OFFLOADS, FLOW, TIMESTAMPS],
        feature: "kernel",
        example: "packet:eth0",
        summary: "an interface of Linux, by packet sockets",
        page: "kernel.md",
        maturity: Maturity::Others,
        class: PortClass::Packet,
        ..Description::new("packet", Address::Interface)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let interface = match (Interface::find(opening.name.address()), opening.name.address()) {
        (Err(error), "any") if error.kind() == ErrorKind::NotFound => Interface::any()?,
        (interface, _) => interface?,
    };
    if !interface.is_any() {
        interface.check_ethernet()?;
    }
    Ok(Box::new(PacketPort::open(interface, flow_of(opening.name)?, opening.config)?))
}

/// An interface used through packet sockets.
pub struct PacketPort {
    description: String,
    /// The packets to deliver; all if `None`.
    flow: Option<Filter>,
    sockets: Vec<Arc<Socket>>,
    /// Whether each receive queue has been taken; packets arrive once all have been taken.
    started: Vec<bool>,
    /// Packets that the kernel has dropped; it reports only new drops.
    dropped: AtomicU64,
}

impl PacketPort {
    /// Opens an interface, for the packets of a flow, or for all. The configuration's
    /// [description](Config::with_description) is appended to the port's.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): the operation that the kernel refused.
    pub fn open(interface: Interface, flow: Option<Filter>, config: Config) -> Result<KernelPort<PacketPort>> {
        config.check_ring()?;
        let longest = if config.options.offloads { LONGEST } else { config.options.max_frame };
        let count = config.options.rx_queues.max(config.options.tx_queues);
        let patience = config.options.interrupts.unwrap_or_default();
        let sockets = (0..count).map(|_| Socket::open(&interface, config.ring(), longest, patience).map(Arc::new));
        let sockets = sockets.collect::<Result<Vec<_>>>()?;
        let started = vec![false; config.options.rx_queues.into()];
        let mut description = match interface.is_any() {
            true => "all interfaces, AF_PACKET rings".to_string(),
            false => format!("{} interface, AF_PACKET rings", interface.driver()),
        };
        if !config.description.is_empty() {
            description += &format!(", {}", config.description);
        }
        let sockets = PacketPort { description, flow, sockets, started, dropped: AtomicU64::new(0) };
        let is_any = interface.is_any();
        OnInterface::port(Target { interface, config }, sockets, !is_any)
    }
}

impl PacketPort {
    /// Marks a receive queue as taken. Packets arrive once all are taken.
    fn start(&mut self, interface: &Interface, queue: u16) -> Result<()> {
        let before = self.started.iter().all(|started| *started);
        self.started[usize::from(queue)] = true;
        if before || !self.started.iter().all(|started| *started) {
            return Ok(());
        }
        let sockets = &self.sockets[..self.started.len()];
        let (first, others) = sockets.split_first().expect("a port has a queue");
        first.start(interface, None)?;
        if !others.is_empty() {
            let group = first.new_group(interface)?;
            others.iter().try_for_each(|socket| socket.start(interface, Some(group)))?;
        }
        Ok(())
    }
}

impl Sockets for PacketPort {
    const DRIVER: &'static str = "packet";
    const CLASS: PortClass = PortClass::Packet;
    const QUEUE_SELECTOR: &'static str = "the kernel spreads flows over the sockets by its own hash";
    const OFFLOADS: bool = true;
    const TIMESTAMPS: bool = true;

    fn description(&self, _: &Interface) -> String {
        self.description.clone()
    }

    fn capabilities(&self, config: &Config) -> Capabilities {
        Capabilities::default()
            .with(&[Feature::SendChecksum])
            .with_if(config.options.offloads, &[Feature::SendTcpSegments, Feature::ReceiveSegments])
    }

    fn rx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        let socket = self.sockets[usize::from(queue)].clone();
        let position = *socket.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let rx = PacketRx {
            socket,
            position,
            pool: target.config.pool.clone(),
            counters,
            flow: self.flow.clone(),
            offloads: target.config.options.offloads,
            timestamps: target.config.options.timestamps,
            longest: target.config.options.max_frame,
            is_any: target.interface.is_any(),
            segments: VecDeque::new(),
        };
        self.start(&target.interface, queue)?;
        Ok(Box::new(rx))
    }

    fn tx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        if target.interface.is_any() {
            let why = "it receives from all interfaces; to send, name one";
            return Err(Error::interface(target.interface.name(), why, "linerate ports"));
        }
        let socket = self.sockets[usize::from(queue)].clone();
        // A socket that only sends must be bound, too.
        if self.started.iter().any(|started| !*started) {
            socket.bind_for_sending(&target.interface)?;
        }
        let position = *socket.transmitting.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = target.interface.longest_frame(target.config.options.max_frame)?;
        Ok(Box::new(PacketTx { socket, position, counters, longest, retry: Retry::default() }))
    }

    /// Membership in promiscuous mode needs an interface.
    fn promiscuous(&self, interface: &Interface) -> Result<Option<OwnedFd>> {
        if interface.is_any() { Ok(None) } else { packet_socket::promiscuous(interface).map(Some) }
    }

    fn drops(&self, _: &Interface) -> Drops {
        let new: u64 = self.sockets.iter().map(|socket| socket.drops()).sum();
        let no_descriptor = self.dropped.fetch_add(new, Ordering::Relaxed) + new;
        Drops { no_descriptor, ..Drops::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;
    use std::time::Duration;

    use linerate::Options;
    use linerate_core::batch::Batch;
    use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
    use linerate_core::port::Device;

    use super::*;

    /// Runs `work` in a separate network namespace, where `lo` is up.
    fn apart(work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            // SAFETY: this thread has no file that depends on the shared namespace.
            #[allow(unsafe_code)]
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("root may");
            assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
            work();
        });
        thread.join().unwrap();
    }

    #[test]
    fn interfaces_without_ethernet_headers_are_refused() {
        apart(|| {
            let made = Command::new("ip").args(["tuntap", "add", "mode", "tun", "name", "l3"]).status();
            assert!(made.unwrap().success());
            for kind in ["packet", "xdp"] {
                let error = linerate::open([&format!("{kind}:l3")]).map(drop).unwrap_err().to_string();
                assert!(error.contains("no Ethernet headers"), "{error}");
            }
            linerate::open(["packet:lo"]).unwrap();
        });
    }

    /// A number is an index only where a port is opened, as it may be the name of something else.
    #[test]
    fn an_interface_has_an_index() {
        apart(|| {
            assert!(Interface::open("1").is_err());
            assert_eq!((Interface::find("1").unwrap().name(), Interface::name_of(1).as_deref()), ("lo", Some("lo")));
            linerate::open(["packet:1"]).unwrap();
            let error = linerate::open(["packet:1000000"]).map(drop).unwrap_err().to_string();
            assert!(error.contains("there is no such interface; there are lo"), "{error}");
        });
    }

    #[test]
    fn rings_have_room_for_the_requested_packets() {
        apart(|| {
            let lo = Interface::open("lo").unwrap();
            // Packets per ring, longest frame; receive blocks, bytes of a send frame, and of the send ring.
            for (ring, longest, blocks, frame, to_send) in [
                (64, 1518, 128, 2048, 64 * 2048),
                (512, 1990, 128, 2048, 512 * 2048),
                (512, 1991, 128, 4096, 512 * 4096),
                (4096, 1518, 256, 2048, 4096 * 2048),
                (16_384, 1518, 256, 2048, 16_384 * 2048),
                // Frames that do not fill a block waste the rest of it.
                (65, 1518, 128, 2048, 128 * 2048),
                (64, LONGEST, 128, 131_072, 64 * 131_072),
            ] {
                let socket = Socket::open(&lo, ring, longest, Duration::ZERO).unwrap();
                assert_eq!((socket.blocks, socket.frames, socket.frame), (blocks, ring, frame), "{ring} of {longest}");
                assert_eq!(socket.sending, blocks * socket::BLOCK);
                assert_eq!(socket.memory.len(), socket.sending + to_send, "{ring} of {longest}");
            }
        });
    }

    /// The kernel reports only new drops.
    #[test]
    fn packets_without_room_in_the_kernel_s_ring_are_counted_once() {
        apart(|| {
            let pages = Pages::Only(PageSize::Ordinary);
            let options = RegionOptions { buffers: 1024, buffer_size: 2048, pages, numa_node: None };
            let pool = Pool::new(Region::new(&options).unwrap());
            let config = Options { ring: Some(64), ..Options::default() }.of_port("packet:lo", pool).unwrap();
            let mut port = PacketPort::open(Interface::open("lo").unwrap(), None, config).unwrap();
            let _rx = port.rx(0).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            // 16 MiB of blocks hold fewer than 300 of these datagrams.
            let send = |count: usize| {
                for _ in 0..count {
                    socket.send_to(&[0; 60_000], "127.0.0.1:9").unwrap();
                }
            };
            send(400);
            let drops = |port: &KernelPort<PacketPort>| port.statistics().unwrap().drops.no_descriptor;
            let first = drops(&port);
            assert!((100..=800).contains(&first), "{first}");
            assert_eq!(drops(&port), first);
            send(1);
            let second = drops(&port);
            assert!(second > first && second <= first + 2, "{second} after {first}");
        });
    }

    #[test]
    fn sent_packets_and_bytes_are_counted() {
        apart(|| {
            let pages = Pages::Only(PageSize::Ordinary);
            let options = RegionOptions { buffers: 1024, buffer_size: 2048, pages, numa_node: None };
            let pool = Pool::new(Region::new(&options).unwrap());
            let config = Options { ring: Some(64), ..Options::default() }.of_port("packet:lo", pool.clone()).unwrap();
            let mut port = PacketPort::open(Interface::open("lo").unwrap(), None, config).unwrap();
            let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
            for len in [60, 100, 1000] {
                assert!(batch.push(&pool, &vec![0xFF; len]));
            }
            assert_eq!(tx.send(&mut batch), 3);
            let statistics = port.statistics().unwrap();
            assert_eq!((statistics.tx_packets, statistics.tx_bytes), (3, 1160));
        });
    }
}
