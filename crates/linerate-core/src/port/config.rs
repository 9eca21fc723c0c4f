//! The configuration of a port, and the options that ports of many kinds have.

use std::sync::Arc;
use std::time::Duration;

use super::device::{DEFAULT_FRAME, FRAME_HEADERS};
use super::kind::{Behind, PortOption, Value};
use crate::error::{Error, Result};
use crate::memory::Pool;

/// Descriptors in a ring by default.
const DEFAULT_RING: usize = 512;

/// The least that `linerate::Options::max_frame` can be: Ethernet's least payload of 46 bytes, and [`FRAME_HEADERS`].
pub const SHORTEST_MAX_FRAME: usize = 46 + FRAME_HEADERS;

/// The most queues of a port in each direction.
pub const MAX_QUEUES: u16 = 64;

/// The longest frame that a name can ask for: that of Intel's cards.
const LONGEST_OF_NAME: usize = 9728;

/// Queues in each direction.
pub const QUEUES: PortOption = PortOption {
    name: "queues",
    value: Value::Number(1, MAX_QUEUES as usize),
    default: "",
    help: "queues in each direction",
};
/// Descriptors in each ring.
pub const RING: PortOption = PortOption {
    name: "ring",
    value: Value::Number(0, usize::MAX),
    default: "",
    help: "descriptors in each ring, a power of two from 64 to 4096",
};
/// The longest payload.
pub const MTU: PortOption = PortOption {
    name: "mtu",
    value: Value::Number(SHORTEST_MAX_FRAME - FRAME_HEADERS, LONGEST_OF_NAME - FRAME_HEADERS),
    default: "",
    help: "the longest payload of a frame, in bytes",
};
/// Checksums and segmentation are left to the packets' destination.
pub const OFFLOADS: PortOption =
    PortOption::switch("offloads", "leave checksums and segmentation to the packets' destination");
/// Packets are stamped.
pub const TIMESTAMPS: PortOption = PortOption::switch("timestamps", "note when each packet arrived");
/// Instructions that read and write descriptors.
pub const VECTORS: PortOption = PortOption {
    name: "vectors",
    value: Value::Word(&["best", "scalar", "avx2", "avx512"]),
    default: "best",
    help: "the instructions that read and write descriptors",
};

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

/// The configuration of one port: its name, its memory, and the options that it is opened with, which were checked by
/// `linerate::Options::of_port`.
#[derive(Clone)]
pub struct Config {
    /// The port's name, for messages.
    pub name: String,
    /// Driver and device, for display.
    pub description: String,
    /// PCI's device number, for differences within a family; 0 for ports that are not cards.
    pub device: u16,
    /// The port's category, where its driver does not know: a card, or one that is served, or a model.
    pub behind: Behind,
    /// Where packets live.
    pub pool: Arc<Pool>,
    /// The options, among them those of the name.
    pub options: Settings,
}

/// The options of one port: what `linerate::Options` and the port's name say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors in each ring; `None`: the kind's usual number.
    pub ring: Option<usize>,
    /// The longest frame, in bytes without CRC.
    pub max_frame: usize,
    /// Interrupts at most once per interval; `None`: polled only.
    pub interrupts: Option<Duration>,
    /// Checksums and segmentation are left to the packets' destination.
    pub offloads: bool,
    /// Note when each packet arrived.
    pub timestamps: bool,
    /// Instructions that read and write descriptors.
    pub vectors: Vectors,
    /// Open the port in this process, also where another one serves it.
    pub local: bool,
    /// Take a card that the kernel has.
    pub take: Option<Take>,
}

impl Default for Settings {
    /// One queue each way, frames of [`DEFAULT_FRAME`], no interrupts.
    fn default() -> Settings {
        Settings {
            rx_queues: 1,
            tx_queues: 1,
            ring: None,
            max_frame: DEFAULT_FRAME,
            interrupts: None,
            offloads: false,
            timestamps: false,
            vectors: Vectors::Best,
            local: false,
            take: None,
        }
    }
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
    /// Returns those of [`VECTORS`] that this word means; `None` if the processor does not have them.
    pub fn of_word(word: &str) -> Option<Vectors> {
        let vectors = match word {
            "best" => Vectors::Best,
            "scalar" => Vectors::Scalar,
            "avx2" => Vectors::Avx2,
            _ => Vectors::Avx512,
        };
        vectors.is_there().then_some(vectors)
    }

    /// Of those that are meant, the widest that this processor has; `None`: one at a time.
    pub fn widest(self) -> Option<Vectors> {
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
        let options = Settings::default();
        Config { name: name.to_string(), description: String::new(), device: 0, behind: Behind::Program, pool, options }
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
    pub fn options(&self) -> &Settings {
        &self.options
    }

    /// Returns the count of descriptors in each ring.
    pub fn ring(&self) -> usize {
        self.options.ring.unwrap_or(DEFAULT_RING)
    }

    /// Checks the size of the rings.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption).
    pub fn check_ring(&self) -> Result<()> {
        let size = self.ring();
        match size.is_power_of_two() && (64..=4096).contains(&size) {
            true => Ok(()),
            false => Err(Error::ring_size(size)),
        }
    }
}
