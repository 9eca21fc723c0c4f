//! How a port shall be opened.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::Pool;

/// Bytes of a frame around its payload: Ethernet's header and a VLAN tag, without CRC.
pub const FRAME_HEADERS: usize = 18;
/// The longest frame where none is asked for: an MTU of 1,500.
pub const DEFAULT_FRAME: usize = 1500 + FRAME_HEADERS;

/// How a port shall be opened.
#[derive(Clone)]
pub struct Config {
    /// The port's name, for messages.
    pub name: String,
    /// What drives what, for people.
    pub description: String,
    /// PCI's number of the device, for what differs within a family; 0 if there is none.
    pub device: u16,
    /// Receive queues; at least 1.
    pub rx_queues: u16,
    /// Transmit queues; at least 1.
    pub tx_queues: u16,
    /// Descriptors in each ring: a power of two from 64 to 4,096.
    pub ring: usize,
    /// The longest frame, in bytes without CRC; longer than a buffer has room for, it arrives as a
    /// chain.
    pub max_frame: usize,
    /// With interrupts, one for each receive queue, not more often than this; `None`: polled only.
    pub interrupts: Option<Duration>,
    /// Leave checksums and segmentation to whom the packets go to, where it can: received packets
    /// may then be unfinished, and up to 65,553 bytes long.
    pub offloads: bool,
    /// Note when each packet came, where the port can.
    pub timestamps: bool,
    /// With which instructions descriptors are read and written, where the driver has several.
    pub vectors: Vectors,
    /// Where packets live.
    pub pool: Arc<Pool>,
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
    /// One queue each way, rings of 512, frames of [`DEFAULT_FRAME`], no interrupts.
    pub fn new(name: &str, pool: Arc<Pool>) -> Config {
        Config {
            name: name.to_string(),
            description: String::new(),
            device: 0,
            rx_queues: 1,
            tx_queues: 1,
            ring: 512,
            max_frame: DEFAULT_FRAME,
            interrupts: None,
            offloads: false,
            timestamps: false,
            vectors: Vectors::Best,
            pool,
        }
    }

    /// Whether rings can be so long.
    ///
    /// # Errors
    /// [`Error::RingSize`].
    pub fn check_ring(&self) -> Result<()> {
        match self.ring.is_power_of_two() && (64..=4096).contains(&self.ring) {
            true => Ok(()),
            false => Err(Error::RingSize { size: self.ring }),
        }
    }
}
