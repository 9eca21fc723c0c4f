//! Ports: a [`Port`] is the control side; its queues move to the threads that poll them.
//!
//! Programs open ports with `linerate::open`. Each kind of port implements [`Device`]. This module depends on memory
//! and batches, but not on any kind of port.

mod capabilities;
mod clock;
mod config;
mod counters;
mod described;
mod device;
mod finishing;
mod grammar;
mod kind;
mod monitors;
mod name;
mod opening;
mod queue;
mod random;
mod regions;
mod rule;
mod software;
mod statistics;
mod trace;
mod wait;
mod wrapper;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

pub use capabilities::{Capabilities, Feature, Support};
pub use clock::{CardClock, Clock, Scale};
pub use config::{
    Access, Config, DESCRIPTOR, MAX_QUEUES, METADATA, MTU, OFFLOADS, QUEUES, RING, SHORTEST_MAX_FRAME, Settings,
    TIMESTAMPS, TakeFromKernel, VECTORS, Vectors,
};
pub use counters::Counters;
pub use described::{Describe, Described};
pub use device::{DEFAULT_FRAME, Device, FRAME_HEADERS, Info, Receive, Transmit};
pub use finishing::SendFinished;
pub use grammar::is_pipe;
pub use grammar::{count, escaped, is_vale, switch_and_port};
pub use kind::{Address, Description, Form, HeldBuffers, Maturity, PortClass, PortOption, Value};
pub use monitors::{Mirror, MonitorEntry, MonitorSink, Monitored};
pub use name::{BY, CLUSTER, PortName};
pub use opening::PortOpener;
pub use opening::{OpenPort, Opening, PortKind};
pub use queue::{RxQueue, TxQueue};
pub use random::Random;
pub use regions::{RegionRx, RegionTx, Rx, Tx};
pub use rule::{Action, Rule, RuleId, Rules};
pub use software::{SoftwareDevice, SoftwarePort};
pub use statistics::{CaptureCounts, Drops, QueueCounters, QueueStatistics, Statistics};
pub use trace::span_of;
pub use wait::{Wait, Waiter};
pub use wrapper::{RxWrapper, TxWrapper, Wrapped, Wrapper, rx_around, tx_around};

use crate::error::{Error, Result};
pub use crate::event::{Waker, YieldWait};
use crate::filter::Filter;
use crate::memory::Pool;

/// The control side of an open port.
///
/// It never touches packets, so one thread can use it while other threads send and receive.
pub struct Port {
    device: Box<dyn Device>,
    /// The link state at the last read, to trace changes.
    link: Mutex<Option<Link>>,
    seen: Arc<Monitored>,
}

impl Port {
    /// Creates a port from a device, and registers its name for monitors.
    ///
    /// ```
    /// use linerate::netmap::Echo;
    /// use linerate::port::{Config, Port};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// # let [other] = linerate::open(["null:"])?;
    /// let config = Config::new("echo:mine", other.pool().clone()); // in the region of another port
    /// let port = Port::new(Echo::open(config)?);
    /// assert_eq!(port.name(), "echo:mine");
    /// # Ok(()) }
    /// ```
    pub fn new(device: impl Device + 'static) -> Port {
        Port::of(Box::new(device))
    }

    /// As [`new`](Port::new), for a boxed device.
    ///
    /// ```
    /// use linerate::port::{Config, Device, Port};
    ///
    /// # use linerate::netmap::{Echo, Null};
    /// # fn main() -> linerate::Result<()> {
    /// # let ([other], echoes) = (linerate::open(["null:"])?, true);
    /// # let config = Config::new("own:", other.pool().clone());
    /// let device: Box<dyn Device> = match echoes {
    ///     true => Box::new(Echo::open(config)?),
    ///     false => Box::new(Null::open(config)?),
    /// };
    /// assert_eq!(Port::of(device).info().driver, "echo");
    /// # Ok(()) }
    /// ```
    pub fn of(device: Box<dyn Device>) -> Port {
        let info = device.info();
        tracing::debug!(port = device.name(), driver = info.driver, "opened: {}", info.description);
        let seen = Monitored::new(device.name().to_string());
        Port { device, link: Mutex::default(), seen }
    }

    /// Completes the opening of a port: see [`Device::start`]. `linerate::open` has done this; a program does it for a
    /// device that it opened itself.
    ///
    /// # Errors
    /// As [`Device::start`].
    pub fn start(&mut self) -> Result<()> {
        self.device.start()
    }

    /// Wraps the port, which keeps its name. No queue may have been started.
    ///
    /// ```
    /// use linerate::link::{Link, Parameters};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [port] = linerate::open(["echo:"])?;
    /// let slow = Parameters::of([("delay", "20ms"), ("packets", "1000")]).unwrap();
    /// let port = port.wrapped(Link::new([slow, Parameters::default()]));
    /// assert!(port.info().description.ends_with("over a link"));
    /// # Ok(()) }
    /// ```
    pub fn wrapped(mut self, wrapper: impl Wrapper + 'static) -> Port {
        let name = self.device.name().to_string();
        let absent = Box::new(wrapper::Absent(self.device.pool().clone()));
        let device = std::mem::replace(&mut self.device, absent);
        Port::of(Box::new(Wrapped::new(&name, device, wrapper)))
    }

    /// Returns the name that the port was opened with.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [port] = linerate::open(["sim:name?wire=none"])?;
    /// assert_eq!(port.name(), "sim:name"); // without the options
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns the port's driver, device and options.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [port] = linerate::open(["sim:info?wire=none&queues=4"])?;
    /// let info = port.info();
    /// assert_eq!((info.driver, info.rx_queues, info.tx_queues), ("ixgbe", 4, 4));
    /// assert_eq!((info.max_frame, info.mbits), (1518, 10_000));
    /// # Ok(()) }
    /// ```
    pub fn info(&self) -> Info {
        self.device.info()
    }

    /// Returns the pool of the port's packet buffers. Ports that share a pool exchange packets without copying.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [card, echo] = linerate::open(["sim:pool?wire=none", "echo:"])?;
    /// assert!(Arc::ptr_eq(card.pool(), echo.pool()));
    /// let mut batch = linerate::Batch::new();
    /// assert!(batch.push(card.pool(), &[0; 60])); // both ports send this packet without a copy
    /// # Ok(()) }
    /// ```
    pub fn pool(&self) -> &Arc<Pool> {
        self.device.pool()
    }

    /// Starts receive queue `queue` and returns it.
    ///
    /// A port begins to receive when every queue in its [`Rss`] table has been started (by default, all queues). So no
    /// packet is lost to a queue that is not polled yet.
    ///
    /// ```
    /// use linerate::ErrorKind;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["echo:?queues=2"])?;
    /// let queues = [port.rx(0)?, port.rx(1)?]; // each can move to a thread
    /// assert_eq!(port.rx(1).err().unwrap().kind(), ErrorKind::QueueTaken);
    /// assert_eq!(port.rx(2).err().unwrap().kind(), ErrorKind::NotFound);
    /// # drop(queues);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`QueueTaken`](crate::ErrorKind::QueueTaken),
    /// [`Exhausted`](crate::ErrorKind::Exhausted), or the card does not answer.
    pub fn rx(&mut self, queue: u16) -> Result<RxQueue> {
        Ok(RxQueue::new(self.device.rx(queue)?, &self.seen, queue))
    }

    /// Starts transmit queue `queue` and returns it.
    ///
    /// ```
    /// use linerate::{Batch, ErrorKind};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["null:"])?;
    /// let (mut tx, mut batch) = (port.tx(0)?, Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// assert_eq!(tx.send(&mut batch), 1);
    /// assert_eq!(port.tx(0).err().unwrap().kind(), ErrorKind::QueueTaken);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`rx`](Port::rx).
    pub fn tx(&mut self, queue: u16) -> Result<TxQueue> {
        Ok(TxQueue::new(self.device.tx(queue)?, &self.seen, queue))
    }

    /// Prepares one later call of [`tx`](Port::tx), which then needs no access to paths and no privileges. Claims no
    /// queue. A port that another process serves connects to its server; for other ports this does nothing.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["null:"])?;
    /// port.prepare_tx()?; // connects to the port's server, if it has one
    /// // The process can give up its privileges here.
    /// let tx = port.tx(0)?;
    /// assert!(tx.has_peer());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Unusable`](crate::ErrorKind::Unusable), [`NotServed`](crate::ErrorKind::NotServed); `tx` then connects by
    /// itself.
    pub fn prepare_tx(&mut self) -> Result<()> {
        self.device.prepare_tx()
    }

    /// Returns the counters since the port was opened.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["echo:"])?;
    /// # let (mut tx, mut rx, mut batch) = (port.tx(0)?, port.rx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[0; 60]);
    /// tx.send(&mut batch);
    /// rx.recv(&mut batch);
    /// let counters = port.statistics()?;
    /// assert_eq!((counters.tx_packets, counters.rx_packets, counters.rx_bytes), (1, 1, 60));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    pub fn statistics(&self) -> Result<Statistics> {
        self.device.statistics()
    }

    /// Returns the counters in the card's registers since the port was opened, under the datasheet's names (82599
    /// section 8.2.3.23, 82576 section 8.18). A counter of two registers has the part that their names share: `GORC`.
    /// Ports without such registers return an empty list.
    ///
    /// These registers have 32 bits and stop at their maximum. At 10 Gbit/s, call this at least every 4 minutes if you
    /// need all counts.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:registers?wire=sink"])?;
    /// # let (mut tx, mut batch) = (port.tx(0)?, linerate::Batch::new());
    /// batch.push(port.pool(), &[7; 60]);
    /// tx.send(&mut batch);
    /// # let start = std::time::Instant::now();
    /// # while port.statistics()?.tx_packets < 1 && start.elapsed().as_secs() < 10 {}
    /// // After the card has sent the packet:
    /// let counters = port.register_counters()?;
    /// assert!(counters.contains(&("PTC64".to_string(), 1)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    pub fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        self.device.register_counters()
    }

    /// Returns the counters of each queue. Reading them does not slow the queues.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["null:?queues=2"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[0; 60]);
    /// port.tx(1)?.send(&mut batch);
    /// assert_eq!(port.queue_statistics().tx_slots, [0, 1]);
    /// # Ok(()) }
    /// ```
    pub fn queue_statistics(&self) -> QueueStatistics {
        self.device.queue_statistics()
    }

    /// Returns the current state of the link.
    ///
    /// ```
    /// use linerate::port::Link;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [left] = linerate::open(["link{1"])?;
    /// assert_eq!(left.link()?, Link::Down); // the other end of the pipe is not open
    /// let [right] = linerate::open(["link}1"])?;
    /// assert_eq!(left.link()?, Link::Up { mbits: 0 });
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    pub fn link(&self) -> Result<Link> {
        let link = self.device.link()?;
        let mut last = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if last.replace(link) != Some(link) {
            tracing::info!(port = self.name(), "link {link:?}");
        }
        Ok(link)
    }

    /// Returns whether the port will never receive again: it is send-only, or a capture file that was read to its end.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [null, echo] = linerate::open(["null:", "echo:"])?;
    /// assert!(null.is_exhausted()); // it only sends
    /// assert!(!echo.is_exhausted());
    /// # Ok(()) }
    /// ```
    pub fn is_exhausted(&self) -> bool {
        self.device.is_exhausted()
    }

    /// Returns how many packets of the capture file could not be delivered, or only in part; zeros for other ports.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let file = tempfile::NamedTempFile::new().unwrap();
    /// # // A capture with microseconds and a snap length of 40: a frame of 60 bytes of which it has 40.
    /// # let words = [0xA1B2_C3D4u32, 4 << 16 | 2, 0, 0, 40, 1, 0, 0, 40, 60];
    /// # std::fs::write(&file, [&words.map(u32::to_ne_bytes).concat()[..], &[0; 40]].concat()).unwrap();
    /// # let (name, mut batch) = (format!("pcap:{}", file.path().display()), linerate::Batch::new());
    /// let [mut port] = linerate::open([&name])?; // recorded with a snap length of 40 bytes
    /// assert_eq!(port.rx(0)?.recv(&mut batch), 1);
    /// assert_eq!((port.capture_counts().snapped, port.capture_counts().not_ethernet), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn capture_counts(&self) -> CaptureCounts {
        self.device.capture_counts()
    }

    /// Returns the port's MAC address.
    ///
    /// ```
    /// use linerate::port::MacAddress;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [port] = linerate::open(["echo:a"])?;
    /// assert_eq!(port.mac(), MacAddress::of_name("echo:a")); // a card has its own address
    /// # Ok(()) }
    /// ```
    pub fn mac(&self) -> MacAddress {
        self.device.mac()
    }

    /// Sets the port's MAC address, a unicast address.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:set-mac?wire=none"])?;
    /// port.set_mac("02:00:00:00:00:07".parse()?)?;
    /// assert_eq!(port.mac().to_string(), "02:00:00:00:00:07");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](crate::ErrorKind::BadOption): a group address. [`Unsupported`](crate::ErrorKind::Unsupported),
    /// [`Gone`](crate::ErrorKind::Gone).
    pub fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        if mac.is_group() {
            let why = format!("{mac} is a group address, which no port can have as its own");
            return Err(Error::new(crate::ErrorKind::BadOption, self.name(), why));
        }
        self.device.set_mac(mac)
    }

    /// Turns promiscuous mode on or off. When off, the port receives only frames addressed to it. Ports start
    /// promiscuous.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::Batch;
    /// # let names = ["sim:promiscuous-a?wire=sim:promiscuous-b", "sim:promiscuous-b?wire=sim:promiscuous-a"];
    /// # let [mut other, mut port] = linerate::open(names)?;
    /// # let (mut tx, mut rx, mut batch) = (other.tx(0)?, port.rx(0)?, Batch::new());
    /// port.set_promiscuous(false)?;
    /// batch.push(other.pool(), &[2; 60]); // to 02:02:02:02:02:02
    /// batch.push(other.pool(), &[&port.mac().0[..], &[0; 54]].concat());
    /// # let mut received = 0;
    /// # tx.send_all(&mut batch, std::time::Duration::from_secs(10));
    /// // After the other port has sent both:
    /// # while received < 1 {
    /// #     received += rx.recv(&mut batch);
    /// # }
    /// assert_eq!(batch.packets().next().unwrap()[..6], port.mac().0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    pub fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.device.set_promiscuous(on)
    }

    /// Sets the addresses that the port receives in addition to its own and to broadcast, while promiscuous mode is off.
    /// Replaces the earlier list; a reset keeps it. Packets to addresses of both lists keep arriving meanwhile.
    ///
    /// Intel's cards compare a hash of a multicast address, of 12 bits. So they also receive other groups with the same
    /// hash. Ports in memory receive all packets sent to them, with any list.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:addresses?wire=none"])?;
    /// port.set_addresses(&["02:00:00:00:00:07".parse()?, "01:00:5e:00:00:fb".parse()?])?;
    /// port.set_promiscuous(false)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Exhausted`](crate::ErrorKind::Exhausted): more unicast addresses than the card has entries; nothing changes.
    /// [`BadOption`](crate::ErrorKind::BadOption): an address is zero. [`Unsupported`](crate::ErrorKind::Unsupported):
    /// an interface of Linux. [`Gone`](crate::ErrorKind::Gone).
    pub fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        self.device.set_addresses(addresses)
    }

    /// Sets whether the port receives all multicast packets while promiscuous mode is off. A reset keeps this.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:multicast?wire=none"])?;
    /// port.set_promiscuous(false)?;
    /// port.set_all_multicast(true)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported): an interface of Linux. [`Gone`](crate::ErrorKind::Gone).
    pub fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.device.set_all_multicast(on)
    }

    /// Sets the VLANs of which the port receives packets. With `Some`, it receives untagged packets, and packets whose
    /// outer tag has one of these ids. With `None`, the default, it receives all. A reset keeps this.
    ///
    /// Tags of priority only have id 0. In promiscuous mode, a VirtIO device may receive packets of all VLANs.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:vlans?wire=none"])?;
    /// port.set_vlans(Some(&[10, 4094]))?;
    /// assert!(port.set_vlans(Some(&[4095])).unwrap_err().why().contains("0 to 4094"));
    /// port.set_vlans(None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](crate::ErrorKind::BadOption): an id above 4094. [`Unsupported`](crate::ErrorKind::Unsupported): the
    /// port does not filter VLANs. [`Gone`](crate::ErrorKind::Gone).
    pub fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        self.device.set_vlans(vlans)
    }

    /// Sets the use of pause frames (IEEE 802.3, annex 31B), with which a card asks its peer to stop sending for a time. A
    /// port begins with none, and a reset keeps the setting. The link does not negotiate it: set both ends.
    ///
    /// A card sees pause frames only while it receives: after all receive queues have been started.
    ///
    /// With [`send`](Pause::send), a receive queue without free descriptors holds up the other queues of the port.
    ///
    /// ```
    /// use linerate::port::Pause;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let names = ["sim:pause-a?wire=sim:pause-b", "sim:pause-b?wire=sim:pause-a", "vale0:pause"];
    /// let [mut sender, mut receiver, mut other] = linerate::open(names)?;
    /// sender.set_pause(Pause { receive: true, send: false })?;
    /// receiver.set_pause(Pause { receive: false, send: true })?;
    /// assert!(other.set_pause(Pause::default()).is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported): not an Intel card. [`Gone`](crate::ErrorKind::Gone).
    pub fn set_pause(&mut self, pause: Pause) -> Result<()> {
        self.device.set_pause(pause)
    }

    /// Makes the card remove the VLAN tags (0x8100) of received packets. The tag is then in
    /// [`Metadata::vlan`](crate::metadata::Metadata::vlan); a program that forwards such a packet puts it back with
    /// [`Packet::insert_vlan`](crate::Packet::insert_vlan). The port must have no queues yet, or none any more. A reset
    /// keeps the setting.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:strip?metadata=on&wire=none"])?;
    /// port.strip_vlan_tags(true)?;
    /// let mut rx = port.rx(0)?;
    /// # let mut batch = linerate::Batch::new();
    /// rx.recv(&mut batch);
    /// for mut packet in &mut batch {
    ///     if let Some(tag) = packet.metadata().vlan {
    ///         println!("VLAN {}", tag & 0xFFF);
    ///         packet.insert_vlan(tag)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](crate::ErrorKind::BadOption) without `?metadata=on`: the tags would be lost.
    /// [`InUse`](crate::ErrorKind::InUse), [`Gone`](crate::ErrorKind::Gone),
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn strip_vlan_tags(&mut self, on: bool) -> Result<()> {
        self.device.strip_vlan_tags(on)
    }

    /// Spreads flows over the receive queues.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::{Batch, port::Rss};
    /// # let mut batch = Batch::new();
    /// let [mut port] = linerate::open(["sim:rss?queues=2&flows=8&count=32"])?;
    /// port.set_rss(&Rss { table: vec![1], ..Rss::evenly(2) })?; // all flows to queue 1
    /// let (mut rx, mut received) = (port.rx(1)?, 0);
    /// while received < 32 {
    ///     received += rx.recv(&mut batch);
    /// }
    /// assert_eq!(port.queue_statistics().rx_slots, [0, 32]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](crate::ErrorKind::BadOption) if the card does not support the table,
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        self.device.set_rss(rss)
    }

    /// Adds a rule: the card, or the kernel, treats the packets that match the filter in this way, until the rule is
    /// removed or the port is closed. A reset keeps it.
    ///
    /// Of several rules that match a packet, the one that was added first decides. Packets that no rule matches are
    /// received as before. A rule for a queue has no effect until that queue is started.
    ///
    /// All of the filter's alternatives are added, or none. `docs/offloads.md` lists the filters of each kind of port.
    ///
    /// ```
    /// use linerate::port::{Action, Rule};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:rules?wire=none&queues=4"])?;
    /// let filter = "ip+udp:4321+from:10.0.0.7".parse()?;
    /// let id = port.add_rule(&filter, Action::Queue(3))?;
    /// assert_eq!(port.rules(), [Rule { id, filter, action: Action::Queue(3) }]);
    /// let ranges = port.add_rule(&"ip+udp:1-9".parse()?, Action::Drop);
    /// assert!(ranges.unwrap_err().why().contains("port ranges"));
    /// port.remove_rule(id)?;
    /// assert!(port.rules().is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported): the port cannot express the rule; the error names the part.
    /// [`Exhausted`](crate::ErrorKind::Exhausted): the card's table is full.
    /// [`Exists`](crate::ErrorKind::Exists): a rule for the same packets exists.
    /// [`NotFound`](crate::ErrorKind::NotFound): the port has no such queue. [`Gone`](crate::ErrorKind::Gone).
    pub fn add_rule(&mut self, filter: &Filter, action: Action) -> Result<RuleId> {
        let id = self.device.add_rule(filter, action)?;
        tracing::debug!(port = self.name(), "rule {id}: {filter} {action}");
        Ok(id)
    }

    /// Removes a rule that [`add_rule`](Port::add_rule) has added.
    ///
    /// ```
    /// use linerate::ErrorKind;
    /// use linerate::port::{Action, RuleId};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:remove-rule?wire=none"])?;
    /// let id = port.add_rule(&"from:192.0.2.0/24".parse()?, Action::Drop)?;
    /// port.remove_rule(id)?;
    /// assert_eq!(port.remove_rule(id).unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): the port has no rule with this number.
    /// [`Gone`](crate::ErrorKind::Gone), [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn remove_rule(&mut self, id: RuleId) -> Result<()> {
        self.device.remove_rule(id)
    }

    /// Returns the port's rules, in the order in which they were added.
    ///
    /// ```
    /// use linerate::port::Action;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:list-rules?wire=none&queues=2"])?;
    /// port.add_rule(&"arp".parse()?, Action::Queue(1))?;
    /// port.add_rule(&"ip+udp:53".parse()?, Action::Drop)?;
    /// assert_eq!(port.rules().iter().map(|rule| rule.filter.to_string()).collect::<Vec<_>>(), ["arp", "ip+udp:53"]);
    /// # Ok(()) }
    /// ```
    pub fn rules(&self) -> Vec<Rule> {
        self.device.rules()
    }

    /// Returns which features the port has, and which of them its card, the kernel or the receiver provides.
    ///
    /// ```
    /// use linerate::port::{Feature, Support};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [card, switch] = linerate::open(["sim:capabilities?wire=none", "vale0:capabilities"])?;
    /// assert_eq!(card.capabilities().of(Feature::SendTcpSegments), Support::Offloaded);
    /// assert_eq!(switch.capabilities().of(Feature::SendTcpSegments), Support::Software);
    /// # Ok(()) }
    /// ```
    pub fn capabilities(&self) -> Capabilities {
        self.device.info().capabilities
    }

    /// Returns the clock of the port's card.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// let [card, switch] = linerate::open(["sim:port-clock?wire=none", "vale0:clock"])?;
    /// card.clock()?.set(0)?;
    /// assert!(switch.clock().is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn clock(&self) -> Result<Clock> {
        self.device.clock()
    }

    /// Resets the card and brings it up again. All queues must have been dropped.
    ///
    /// ```
    /// use linerate::ErrorKind;
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let [mut port] = linerate::open(["sim:reset?wire=none"])?;
    /// let rx = port.rx(0)?;
    /// assert_eq!(port.reset().unwrap_err().kind(), ErrorKind::InUse);
    /// drop(rx);
    /// port.reset()?;
    /// assert!(port.rx(0).is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InUse`](crate::ErrorKind::InUse), or the card does not answer.
    pub fn reset(&mut self) -> Result<()> {
        self.device.reset()?;
        tracing::debug!(port = self.name(), "reset");
        Ok(())
    }
}

/// Traces the number of dropped packets by cause.
impl Drop for Port {
    fn drop(&mut self) {
        // Reading a card's counters is slow, so they are read only if the trace is enabled.
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Ok(Statistics { drops, .. }) = self.device.statistics()
        {
            let reasons = drops.by_cause().into_iter().filter(|(_, count)| *count > 0);
            tracing::debug!(port = self.name(), "closed; dropped: {:?}", reasons.collect::<Vec<_>>());
        }
    }
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No signal, or still negotiating.
    Down,
    /// Up, at this many megabits per second.
    Up {
        /// 100, 1,000, 10,000; 0 if the card does not report it.
        mbits: u32,
    },
}

/// The use of pause frames; see [`Port::set_pause`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The card stops sending while its peer asks for a pause.
    pub receive: bool,
    /// The card asks its peer to pause when its receive buffer fills.
    pub send: bool,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of packets to all stations.
    pub const BROADCAST: MacAddress = MacAddress([0xFF; 6]);

    /// Returns whether this is the address of a group: multicast or broadcast.
    ///
    /// ```
    /// use linerate::port::MacAddress;
    ///
    /// assert!(MacAddress([0x01, 0, 0x5E, 0, 0, 0xFB]).is_group() && MacAddress::BROADCAST.is_group());
    /// assert!(!MacAddress([2, 0, 0, 0, 0, 7]).is_group());
    /// ```
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Derives an address from a name (FNV-1a): locally administered, unicast, and the same in every process.
    pub fn of_name(name: &str) -> MacAddress {
        let hash = name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        let [a, b, c, d, e, ..] = hash.to_be_bytes();
        MacAddress([0x02, a, b, c, d, e])
    }

    /// Converts the register pair of Intel's cards to an address. The first byte is the lowest.
    pub fn from_words(low: u32, high: u32) -> MacAddress {
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        MacAddress([a, b, c, d, e, f])
    }

    /// Returns the register pair for [`from_words`](MacAddress::from_words), low word first.
    pub fn words(self) -> (u32, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
    }
}

impl FromStr for MacAddress {
    type Err = Error;

    /// Parses six bytes in hexadecimal, as in `02:00:00:00:00:01`.
    fn from_str(text: &str) -> std::result::Result<MacAddress, Error> {
        parse(text).map_err(Error::bad_value)
    }
}

fn parse(text: &str) -> std::result::Result<MacAddress, String> {
    let are_digits = |digits: &str| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| are_digits(digits));
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map(MacAddress).ok_or_else(|| format!("'{text}' is not an Ethernet address; write it as 02:00:00:00:00:01"))
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Receive-side scaling. A Toeplitz hash of each packet's addresses and ports, modulo the size of `table`, selects the
/// queue. So all packets of a flow go to the same thread.
///
/// The fields are those of Microsoft's specification ("Introduction to Receive Side Scaling").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The hash key.
    pub key: [u8; 40],
    /// Queue numbers, at most 128. A card's table has 128 entries; a shorter table is repeated to fill them.
    pub table: Vec<u16>,
}

impl Rss {
    /// The key of Microsoft's published verification suite, which most drivers use.
    pub const DEFAULT_KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, //
        0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, //
        0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Spreads flows evenly over queues 0 to `queues` - 1.
    pub fn evenly(queues: u16) -> Rss {
        Rss { key: Rss::DEFAULT_KEY, table: (0..queues.max(1)).collect() }
    }

    /// Checks the table of a port with `queues` receive queues.
    ///
    /// ```
    /// use linerate::port::Rss;
    ///
    /// Rss::evenly(2).check("0000:03:00.0", 2)?;
    /// assert!(Rss::evenly(2).check("0000:03:00.0", 1).is_err());
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`BadOption`](crate::ErrorKind::BadOption) if the table does not have 1 to 128 entries, or contains another queue.
    pub fn check(&self, port: &str, queues: u16) -> Result<()> {
        let why = match self.table.iter().find(|&&queue| queue >= queues) {
            _ if !(1..=128).contains(&self.table.len()) => {
                format!("the table has {} entries; it must have 1 to 128", self.table.len())
            }
            Some(queue) => format!("the table contains queue {queue}; this port can use queues 0 to {}", queues - 1),
            None => return Ok(()),
        };
        Err(Error::new(crate::ErrorKind::BadOption, port, format!("receive-side scaling: {why}")))
    }

    /// Returns a copy whose table contains only queues of the set `started` (one bit each), in place of others. Returns
    /// the same table if the set is empty.
    ///
    /// ```
    /// use linerate::port::Rss;
    ///
    /// assert_eq!(Rss::evenly(4).among(0b1010).table, [1, 1, 1, 3]);
    /// ```
    pub fn among(&self, started: u64) -> Rss {
        let is_started = |queue: u16| started >> queue & 1 != 0;
        let queues: Vec<u16> = (0..64).filter(|&queue| is_started(queue)).collect();
        let mut rss = self.clone();
        if !queues.is_empty() {
            for (place, queue) in rss.table.iter_mut().enumerate().filter(|(_, queue)| !is_started(**queue)) {
                *queue = queues[place % queues.len()];
            }
        }
        rss
    }

    /// Returns the value of register `register` of an Intel card's redirection table: four entries of 8 bits.
    pub fn register(&self, register: u16) -> u32 {
        let entry = |n: usize| self.table[(register as usize * 4 + n) % self.table.len()] as u8;
        u32::from_le_bytes(std::array::from_fn(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let mac = MacAddress([2, 0, 0xAB, 0xCD, 0xEF, 9]);
        assert_eq!(mac.to_string().parse().ok(), Some(mac));
        assert_eq!("02:00:aB:Cd:EF:09".parse().ok(), Some(mac));
        for text in
            ["", "02:00:ab:cd:ef", "02:00:ab:cd:ef:09:11", "2:0:ab:cd:ef:9", "02:00:ab:cd:ef:+9", "020:0:ab:cd:ef:09"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
