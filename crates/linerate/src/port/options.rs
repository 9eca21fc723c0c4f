//! How ports are opened.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{DEFAULT_FRAME, Device, FRAME_HEADERS, PortName};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::offload::LONGEST;

/// Descriptors in a ring by default.
const DEFAULT_RING: usize = 512;

/// The least that [`Options::max_frame`] can be: Ethernet's least payload of 46 bytes, and [`FRAME_HEADERS`].
pub const SHORTEST_MAX_FRAME: usize = 46 + FRAME_HEADERS;

/// The most queues of a port in each direction.
pub const MAX_QUEUES: u16 = 64;

/// How ports are opened. Options in a port's name (`?queues=4&ring=1024&mtu=9000`) have priority.
#[derive(Clone)]
pub struct Options {
    /// Receive queues, 1 to [`MAX_QUEUES`].
    pub rx_queues: u16,
    /// Transmit queues, 1 to [`MAX_QUEUES`].
    pub tx_queues: u16,
    /// Descriptors in each ring, a power of two from 64 to 4,096; `None`: 512, or 8,192 to receive from a switch of another
    /// process.
    pub ring: Option<usize>,
    /// The longest frame, in bytes without CRC: its MTU and [`FRAME_HEADERS`](super::FRAME_HEADERS); from
    /// [`SHORTEST_MAX_FRAME`] to 65,553. A frame longer than a buffer arrives as a chain.
    pub max_frame: usize,
    /// Interrupts, one for each receive queue, at most one per interval, so that a thread can sleep until packets arrive
    /// ([`Waiter`](super::Waiter)); `None`: polled only.
    pub interrupts: Option<Duration>,
    /// Leave checksums and segmentation to the packets' destination, where the port can (`?offloads=on`). Received packets
    /// may then be unfinished, and up to 65,553 bytes long. Packets of virtual machines, which never cross a wire, need neither;
    /// a port that cannot leave them to its other end does both when it sends them.
    pub offloads: bool,
    /// Note when each packet arrived ([`Packet::timestamp`](crate::Packet::timestamp)), where the port can
    /// (`?timestamps=on`): `packet:`; ports of a switch and monitors, when the sender's thread copies a packet; ports that another
    /// process serves, but pipes; and `pcap:`, with the times of the file.
    pub timestamps: bool,
    /// Instructions that read and write descriptors (`?vectors=best`, `scalar`, `avx2` or `avx512`): Intel's cards, `sim:` and
    /// VirtIO.
    pub vectors: Vectors,
    /// Where packets live; `None`: the process's default region.
    pub pool: Option<Arc<Pool>>,
    /// Open ports in memory, and interfaces under netmap's names, in this process, also where another process
    /// [serves](crate::share) them.
    pub local: bool,
    /// Take a card that the kernel has, and give it back at the end; `None`: such a card is an error.
    pub take: Option<Take>,
    /// The program's own kinds of ports: [`with_port_kind`](Options::with_port_kind).
    pub kinds: PortKinds,
}

/// The program's own kinds of ports, by the text in front of their names' colon.
#[derive(Clone, Default)]
pub struct PortKinds(HashMap<String, Arc<OpenKind>>);

type OpenKind = dyn Fn(&PortName, Config) -> Result<Box<dyn Device>> + Send + Sync;

impl PortKinds {
    pub(crate) fn get(&self, kind: &str) -> Option<&OpenKind> {
        self.0.get(kind).map(|open| &**open)
    }

    /// Returns the kinds that a name can have.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).filter(|kind| !kind.is_empty()).collect();
        names.sort_unstable();
        names
    }
}

/// How to take a card from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The kernel interface to use.
    pub access: Access,
    /// Take the card even if Linux is using it.
    pub force: bool,
}

/// A kernel interface that gives a program a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// vfio if the card has an IOMMU, else uio.
    #[default]
    Either,
    /// vfio, which needs an IOMMU.
    Vfio,
    /// uio, which needs root.
    Uio,
}

impl Default for Options {
    /// One queue each way, frames of [`DEFAULT_FRAME`], no interrupts.
    fn default() -> Options {
        Options {
            rx_queues: 1,
            tx_queues: 1,
            ring: None,
            max_frame: DEFAULT_FRAME,
            interrupts: None,
            offloads: false,
            timestamps: false,
            vectors: Vectors::Best,
            pool: None,
            local: false,
            take: None,
            kinds: PortKinds::default(),
        }
    }
}

impl Options {
    /// Sets the count of receive and of transmit queues.
    pub fn with_queues(self, queues: u16) -> Options {
        Options { rx_queues: queues, tx_queues: queues, ..self }
    }

    /// Adds a kind of port: names that begin with `kind` and a colon are opened by `open`, which gets the name and the
    /// options. It takes precedence over a kind of the library of the same name. No name begins with a kind that is
    /// empty, or that has a colon or a question mark: it is never opened.
    ///
    /// ```
    /// # use linerate::{Options, Result, port::Device};
    /// # fn open(options: Options) -> Result<()> {
    /// let options = options.with_port_kind("quiet", |name, config| {
    ///     name.allow(&["queues", "ring"])?;
    ///     Ok(Box::new(linerate::netmap::Null::open(config)?) as Box<dyn Device>)
    /// });
    /// let [quiet, card] = options.open(["quiet:x?queues=2", "sim:own"])?;
    /// # assert_eq!(quiet.info().rx_queues, 2);
    /// # Ok(()) }
    /// # open(Options::default()).unwrap();
    /// ```
    pub fn with_port_kind(
        mut self,
        kind: &str,
        open: impl Fn(&PortName, Config) -> Result<Box<dyn Device>> + Send + Sync + 'static,
    ) -> Options {
        self.kinds.0.insert(kind.to_string(), Arc::new(open));
        self
    }

    /// Returns the configuration of one port. Every kind of port can rely on the bounds that are checked here; most kinds have
    /// closer ones.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a count of queues that is not from 1 to [`MAX_QUEUES`], or a longest frame below [`SHORTEST_MAX_FRAME`] or above 65,553 bytes.
    pub fn of_port(self, name: &str, pool: Arc<Pool>) -> Result<Config> {
        let bad = |option: &str, value: String, why: String| {
            Err(Error::BadOption { name: name.to_string(), option: option.to_string(), value, why })
        };
        let Options { rx_queues, tx_queues, max_frame, .. } = self;
        if [rx_queues, tx_queues].iter().any(|queues| !(1..=MAX_QUEUES).contains(queues)) {
            let why =
                format!("{rx_queues} receive and {tx_queues} transmit queues: each must be from 1 to {MAX_QUEUES}");
            let wrong = if (1..=MAX_QUEUES).contains(&rx_queues) { tx_queues } else { rx_queues };
            return bad("queues", wrong.to_string(), why);
        }
        if !(SHORTEST_MAX_FRAME..=LONGEST).contains(&max_frame) {
            let (least, most) = (SHORTEST_MAX_FRAME - FRAME_HEADERS, LONGEST - FRAME_HEADERS);
            let mtu = max_frame as i128 - FRAME_HEADERS as i128;
            return bad("mtu", mtu.to_string(), format!("it must be a number from {least} to {most}"));
        }
        Ok(Config { name: name.to_string(), description: String::new(), device: 0, pool, options: self })
    }
}

/// The configuration of one port: its name, its memory, and the options that it is opened with, which were checked by
/// [`Options::of_port`].
#[derive(Clone)]
pub struct Config {
    /// The port's name, for messages.
    pub(crate) name: String,
    /// Driver and device, for display.
    pub(crate) description: String,
    /// PCI's device number, for differences within a family; 0 for ports that are not cards.
    pub(crate) device: u16,
    /// Where packets live.
    pub(crate) pool: Arc<Pool>,
    /// The options, among them those of the name.
    pub(crate) options: Options,
}

/// Instructions that read and write descriptors. What a port does is the same with all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors {
    /// The widest that the processor has, and that are worth it.
    #[default]
    Best,
    /// One descriptor at a time, on any processor.
    Scalar,
    /// Four at a time.
    Avx2,
    /// Eight at a time.
    Avx512,
}

impl Vectors {
    /// Of those that are meant, the widest that this processor has; `None`: one at a time.
    pub(crate) fn widest(self) -> Option<Vectors> {
        let mut widths = [Vectors::Avx512, Vectors::Avx2].into_iter();
        widths.find(|&width| (self == Vectors::Best || self == width) && width.is_there())
    }

    /// Whether this processor has them.
    pub fn is_there(self) -> bool {
        match self {
            Vectors::Best | Vectors::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => Vectors::Avx2.is_there() && std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Vectors::Avx2 | Vectors::Avx512 => false,
        }
    }
}

impl Config {
    /// Returns the configuration of a port with the default options.
    pub fn new(name: &str, pool: Arc<Pool>) -> Config {
        let options = Options::default();
        Config { name: name.to_string(), description: String::new(), device: 0, pool, options }
    }

    /// Sets the description of driver and device, for display.
    pub fn with_description(self, description: &str) -> Config {
        Config { description: description.to_string(), ..self }
    }

    /// Sets PCI's device number, for differences within a family of cards.
    pub fn with_device(self, device: u16) -> Config {
        Config { device, ..self }
    }

    /// Returns the port's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool whose buffers the port's packets are in.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the options, among them those of the name.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the count of descriptors in each ring.
    pub fn ring(&self) -> usize {
        self.options.ring.unwrap_or(DEFAULT_RING)
    }

    /// Checks the size of the rings.
    ///
    /// # Errors
    /// [`Error::RingSize`].
    pub fn check_ring(&self) -> Result<()> {
        let size = self.ring();
        match size.is_power_of_two() && (64..=4096).contains(&size) {
            true => Ok(()),
            false => Err(Error::RingSize { size }),
        }
    }
}
