//! The configuration of a port, and the options that many kinds of ports share.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::device::{DEFAULT_FRAME, FRAME_HEADERS};
use super::kind::{PortClass, PortOption, Value};
use crate::error::{Error, Result};
use crate::memory::Pool;

/// The default number of descriptors in a ring.
const DEFAULT_RING: usize = 512;

/// The smallest and the largest ring.
const RING_SIZES: RangeInclusive<usize> = 64..=4096;

/// The minimum of `linerate::Options::max_frame`: Ethernet's minimum payload of 46 bytes plus [`FRAME_HEADERS`].
pub const SHORTEST_MAX_FRAME: usize = 46 + FRAME_HEADERS;

/// The maximum number of queues per direction.
pub const MAX_QUEUES: u16 = 64;

/// The maximum frame length that a name can request: that of Intel's cards.
const LONGEST_OF_NAME: usize = 9728;

/// The option for the number of queues per direction.
pub const QUEUES: PortOption = PortOption {
    name: "queues",
    value: Value::Number(1, MAX_QUEUES as usize),
    default: "",
    help: "queues in each direction",
};
/// The option for the number of descriptors in each ring.
pub const RING: PortOption = PortOption {
    name: "ring",
    value: Value::Number(*RING_SIZES.start(), *RING_SIZES.end()),
    default: "",
    help: "descriptors in each ring, a power of two from 64 to 4096",
};
/// The option for the longest payload.
pub const MTU: PortOption = PortOption {
    name: "mtu",
    value: Value::Number(SHORTEST_MAX_FRAME - FRAME_HEADERS, LONGEST_OF_NAME - FRAME_HEADERS),
    default: "",
    help: "the longest payload of a frame, in bytes",
};
/// The option that leaves checksums and segmentation to the packets' destination.
pub const OFFLOADS: PortOption =
    PortOption::switch("offloads", "leave checksums and segmentation to the packets' destination");
/// The option for a descriptor of the process that the port uses, instead of opening one.
pub const DESCRIPTOR: PortOption = PortOption {
    name: "fd",
    value: Value::Number(0, i32::MAX as usize),
    default: "",
    help: "use this open descriptor of the process",
};
/// The option that records when each packet arrived.
pub const TIMESTAMPS: PortOption = PortOption::switch("timestamps", "note when each packet arrived");
/// The option that records what the port found out about each packet.
pub const METADATA: PortOption = PortOption::switch("metadata", "note checksums, hashes and headers of each packet");
/// The option for the instructions that read and write descriptors.
pub const VECTORS: PortOption = PortOption {
    name: "vectors",
    value: Value::Word(&["best", "scalar", "avx2", "avx512"]),
    default: "best",
    help: "the instructions that read and write descriptors",
};

/// How to take a card away from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeFromKernel {
    /// The kernel interface to use.
    pub access: Access,
    /// Take the card even if Linux is using it.
    pub force: bool,
}

/// A kernel interface through which a program gets access to a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// vfio if the card has an IOMMU, otherwise uio.
    #[default]
    Either,
    /// vfio, which needs an IOMMU.
    Vfio,
    /// uio, which needs root.
    Uio,
}

/// The configuration of one port: its name, memory and options. `linerate::Options::of_port` has checked the options.
#[derive(Clone)]
pub struct Config {
    /// The port's name, for messages.
    pub name: String,
    /// Driver and device, for display.
    pub description: String,
    /// The PCI device ID, for differences within a family of cards; 0 for other ports.
    pub device: u16,
    /// The port's category, for drivers that cannot know it: a card, a card that another process serves, or a model.
    pub class: PortClass,
    /// The pool of the packet buffers.
    pub pool: Arc<Pool>,
    /// The options, including those of the name.
    pub options: Settings,
}

/// The options of one port, from `linerate::Options` and the port's name.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors in each ring; `None` for the default of the kind.
    pub ring: Option<usize>,
    /// The longest frame, in bytes without CRC.
    pub max_frame: usize,
    /// The minimum interval between interrupts; `None` to poll only.
    pub interrupts: Option<Duration>,
    /// Leave checksums and segmentation to the packets' destination.
    pub offloads: bool,
    /// Record when each packet arrived.
    pub timestamps: bool,
    /// Record what the port found out about each packet.
    pub metadata: bool,
    /// Instructions that read and write descriptors.
    pub vectors: Vectors,
    /// Open the port in this process, even if another process serves it.
    pub local: bool,
    /// Take a card away from the kernel.
    pub take: Option<TakeFromKernel>,
}

impl Default for Settings {
    /// Returns one queue per direction, frames of [`DEFAULT_FRAME`], and no interrupts.
    fn default() -> Settings {
        Settings {
            rx_queues: 1,
            tx_queues: 1,
            ring: None,
            max_frame: DEFAULT_FRAME,
            interrupts: None,
            offloads: false,
            timestamps: false,
            metadata: false,
            vectors: Vectors::Best,
            local: false,
            take: None,
        }
    }
}

/// Instructions that read and write descriptors. They do not change a port's behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors {
    /// The widest that the processor supports and that the driver benefits from.
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
    /// Parses a value of [`VECTORS`]; `None` if the processor does not support these instructions.
    pub fn of_word(word: &str) -> Option<Vectors> {
        let vectors = match word {
            "best" => Vectors::Best,
            "scalar" => Vectors::Scalar,
            "avx2" => Vectors::Avx2,
            _ => Vectors::Avx512,
        };
        vectors.is_supported().then_some(vectors)
    }

    /// Returns the widest selected instructions that this processor supports; `None` for one descriptor at a time.
    pub fn widest(self) -> Option<Vectors> {
        let mut widths = [Vectors::Avx512, Vectors::Avx2].into_iter();
        widths.find(|&width| (self == Vectors::Best || self == width) && width.is_supported())
    }

    /// Returns whether this processor supports the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Vectors::Best | Vectors::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => Vectors::Avx2.is_supported() && std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Vectors::Avx2 | Vectors::Avx512 => false,
        }
    }
}

impl Config {
    /// Returns the configuration of a port with the default options.
    pub fn new(name: &str, pool: Arc<Pool>) -> Config {
        let options = Settings::default();
        Config {
            name: name.to_string(),
            description: String::new(),
            device: 0,
            class: PortClass::Program,
            pool,
            options,
        }
    }

    /// Sets the description of driver and device, for display.
    pub fn with_description(self, description: &str) -> Config {
        Config { description: description.to_string(), ..self }
    }

    /// Sets the PCI device ID, for differences within a family of cards.
    pub fn with_device(self, device: u16) -> Config {
        Config { device, ..self }
    }

    /// Returns the port's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool of the port's packet buffers.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the options, including those of the name.
    pub fn options(&self) -> &Settings {
        &self.options
    }

    /// Returns the number of descriptors in each ring.
    pub fn ring(&self) -> usize {
        self.options.ring.unwrap_or(DEFAULT_RING)
    }

    /// Checks the size of the rings.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption).
    pub fn check_ring(&self) -> Result<()> {
        let size = self.ring();
        match size.is_power_of_two() && RING_SIZES.contains(&size) {
            true => Ok(()),
            false => Err(Error::ring_size(&self.name, size)),
        }
    }
}
