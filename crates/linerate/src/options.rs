//! Options for opening ports.

use std::sync::Arc;
use std::time::Duration;

use linerate_core::error::{Error, Result};
use linerate_core::offload::LONGEST;
use linerate_core::port::{
    Config, DEFAULT_FRAME, FRAME_HEADERS, MAX_QUEUES, METADATA, MTU, OFFLOADS, PortKind, PortName, PortOption, QUEUES,
    RING, SHORTEST_MAX_FRAME, Settings, TIMESTAMPS, TakeFromKernel, VECTORS, Value, Vectors,
};

use crate::memory::Pool;

/// Options for opening ports. Options in a port's name (`?queues=4&ring=1024&mtu=9000`) take precedence.
#[derive(Clone)]
pub struct Options {
    /// Receive queues, 1 to [`MAX_QUEUES`].
    pub rx_queues: u16,
    /// Transmit queues, 1 to [`MAX_QUEUES`].
    pub tx_queues: u16,
    /// Descriptors per ring, a power of two from 64 to 4,096. `None`: 512, or 8,192 for receiving from another
    /// process's switch.
    pub ring: Option<usize>,
    /// The longest frame in bytes, without CRC: the MTU plus [`FRAME_HEADERS`](FRAME_HEADERS). At least
    /// [`SHORTEST_MAX_FRAME`], at most 65,553. A frame longer than a buffer arrives as a chain.
    pub max_frame: usize,
    /// Enables interrupts, one per receive queue, so that a thread can sleep until packets arrive
    /// ([`Waiter`](crate::port::Waiter)). The value is the minimum interval between two interrupts. `None`: polling
    /// only.
    pub interrupts: Option<Duration>,
    /// Leaves checksums and segmentation to the packets' destination, where the port can (`?offloads=on`). Received
    /// packets may then be unfinished, and up to 65,553 bytes long. Packets between virtual machines never reach a wire
    /// and need neither. A port that cannot leave them to its other end does both when it sends.
    pub offloads: bool,
    /// Records when each packet arrived ([`Packet::timestamp`](crate::Packet::timestamp)), where the port can
    /// (`?timestamps=on`). `packet:` can, `pcap:` with the file's times, and ports that another process serves, except
    /// pipes. Ports of a switch and monitors record when the sender's thread copies a packet.
    pub timestamps: bool,
    /// Records what the port found out about each received packet ([`Packet::metadata`](crate::Packet::metadata)), where
    /// the port can (`?metadata=on`): Intel's and VirtIO's cards, `sim:` and `virtio-user:`. Opening `xdp:` with it fails
    /// if the kernel or the interface's driver cannot.
    pub metadata: bool,
    /// Instructions for reading and writing descriptors (`?vectors=best`, `scalar`, `avx2` or `avx512`), for Intel's
    /// cards, `sim:` and VirtIO.
    pub vectors: Vectors,
    /// The pool for packets; `None`: the process's default region.
    pub pool: Option<Arc<Pool>>,
    /// Opens in-memory ports, and interfaces under netmap's names, in this process even if another process
    /// [serves](crate::share) them.
    pub local: bool,
    /// Takes a card that the kernel uses, and returns it on close; `None`: such a card is an error.
    pub take: Option<TakeFromKernel>,
    /// Kinds of ports that the program defines: see [`with_port_kind`](Options::with_port_kind).
    pub kinds: Vec<&'static PortKind>,
}

impl Default for Options {
    /// One queue in each direction, frames of [`DEFAULT_FRAME`], no interrupts.
    fn default() -> Options {
        Options {
            rx_queues: 1,
            tx_queues: 1,
            ring: None,
            max_frame: DEFAULT_FRAME,
            interrupts: None,
            offloads: false,
            timestamps: false,
            metadata: false,
            vectors: Vectors::Best,
            pool: None,
            local: false,
            take: None,
            kinds: Vec::new(),
        }
    }
}

impl Options {
    /// Sets the number of receive queues and of transmit queues.
    pub fn with_queues(self, queues: u16) -> Options {
        Options { rx_queues: queues, tx_queues: queues, ..self }
    }

    /// Adds a kind of port. It takes precedence over the library's kind with the same prefix.
    pub fn with_port_kind(mut self, kind: &'static PortKind) -> Options {
        self.kinds.insert(0, kind);
        self
    }

    /// Returns the configuration of the port with this name: these options, overridden by those in the name.
    ///
    /// # Errors
    /// As [`of_port`](Options::of_port).
    pub fn of_name(self, name: &PortName, pool: Arc<Pool>) -> Result<Config> {
        let config = self.with_options_of(name)?.of_port(name.short(), pool)?;
        Ok(Config { class: name.kind().class, ..config })
    }

    /// Returns these options, overridden by those in a port's name.
    fn with_options_of(mut self, name: &PortName) -> Result<Options> {
        let number = |option: &PortOption| match option.value {
            Value::Number(least, most) if name.option(option.name).is_some() => {
                name.number(option.name, least, least..=most).map(Some)
            }
            _ => Ok(None),
        };
        if let Some(queues) = number(&QUEUES)? {
            self = self.with_queues(queues as u16);
        }
        self.ring = number(&RING)?.or(self.ring);
        self.max_frame = number(&MTU)?.map_or(self.max_frame, |mtu| mtu + FRAME_HEADERS);
        self.offloads = name.switch(OFFLOADS.name, self.offloads)?;
        self.timestamps = name.switch(TIMESTAMPS.name, self.timestamps)?;
        self.metadata = name.switch(METADATA.name, self.metadata)?;
        self.vectors = match name.option(VECTORS.name) {
            None => self.vectors,
            Some(word) => Vectors::of_word(word)
                .ok_or_else(|| name.bad_option(VECTORS.name, "this processor does not have them"))?,
        };
        Ok(self)
    }

    /// Returns the configuration of one port. Every kind of port can rely on the limits checked here; most kinds have
    /// stricter limits.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) if a number of queues is not from 1 to [`MAX_QUEUES`], or
    /// the longest frame is below [`SHORTEST_MAX_FRAME`] or above 65,553 bytes.
    pub fn of_port(self, name: &str, pool: Arc<Pool>) -> Result<Config> {
        let bad = |option: &str, value: String, why: String| {
            Err(Error::bad_option(name.to_string(), option.to_string(), value, why))
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
        let options = Settings {
            rx_queues,
            tx_queues,
            ring: self.ring,
            max_frame,
            interrupts: self.interrupts,
            offloads: self.offloads,
            timestamps: self.timestamps,
            metadata: self.metadata,
            vectors: self.vectors,
            local: self.local,
            take: self.take,
        };
        Ok(Config { options, ..Config::new(name, pool) })
    }
}
