//! The other end of the card's cable.
//!
//! A [`Wire`] takes the frames that the card sends and supplies those that it receives, without CRC. [`Cable`]
//! leads to another model, [`Traffic`] to a generator and a checking sink, [`Port`] to any port of this library: a
//! TAP interface, a capture file, another card; [`from_fn`] to a test. [`Record`] and [`Timed`] wrap any of them.

mod broken;
mod cable;
mod port;
mod record;
mod timed;
mod traffic;
mod watched;

pub(super) use broken::Broken;
pub use cable::Cable;
use linerate_core::error::Result;
pub use linerate_traffic::Report;
pub use port::Port;
pub use record::Record;
pub use timed::Timed;
pub use traffic::Traffic;
pub use watched::{Watch, Watched};

/// A frame on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// From the destination address to the last byte before the CRC.
    pub bytes: Vec<u8>,
    /// The CRC is wrong.
    pub bad_crc: bool,
}

impl Frame {
    /// Returns the destination address; `None` if the frame is too short.
    pub(super) fn destination(&self) -> Option<[u8; 6]> {
        self.bytes.first_chunk().copied()
    }
}

/// Frames that left the card and went no further, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Longer than the port at the cable's other end takes.
    pub too_long: u64,
    /// Refused by that port for another reason, as when its interface is down or its file cannot be written.
    pub refused: u64,
    /// Dropped by `faulty:`.
    pub injected: u64,
    /// Without a free buffer in that port's memory.
    pub no_buffer: u64,
    /// Taken by that port and not sent: it has no link, or no room.
    pub waiting: u64,
}

impl Unsent {
    /// Returns the count of all of them.
    pub fn total(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }

    /// Returns the counts with the names of their causes.
    pub fn by_cause(&self) -> [(&'static str, u64); 5] {
        let Unsent { too_long, refused, injected, no_buffer, waiting } = *self;
        [
            ("too_long", too_long),
            ("refused", refused),
            ("injected", injected),
            ("no_buffer", no_buffer),
            ("waiting", waiting),
        ]
    }
}

/// The other end of a card's cable.
pub trait Wire: Send {
    /// True if there is a signal.
    fn link(&self) -> bool {
        true
    }

    /// Takes note of the signal that the card's laser or PHY sends, in Mbit/s, or that there is none (0): then the
    /// other end has no link.
    fn signal(&mut self, _mbits: u32) {}

    /// Returns the most Mbit/s that the other end supports; `u32::MAX` if it does not matter.
    fn speed(&self) -> u32 {
        u32::MAX
    }

    /// True if the wire can take a frame now; otherwise the card keeps its frames, as it does after a pause frame.
    fn ready(&mut self) -> bool {
        true
    }

    /// Takes a frame that leaves the card.
    fn transmit(&mut self, frame: &Frame);

    /// Puts the next frame for the card into `frame`; false if there is none now.
    fn receive(&mut self, frame: &mut Frame) -> bool;

    /// True if it holds frames back while the card has no room, as a sender that honours pause frames does.
    /// Otherwise they are lost.
    fn holds_back(&self) -> bool {
        true
    }

    /// True if frames come also while the card does not receive, and are then lost. Otherwise they begin when it
    /// receives.
    fn comes_unasked(&self) -> bool {
        false
    }

    /// Fails if what the cable leads to is gone, or has failed.
    ///
    /// # Errors
    /// Those of [`Port::link`](linerate_core::port::Port::link), and [`ErrorKind::File`](linerate_core::ErrorKind::File).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Stops bringing new frames.
    fn finish(&mut self) {}

    /// Returns what the wire has counted and checked; `None` if it does neither.
    fn report(&self) -> Option<Report> {
        None
    }

    /// Returns the frames that left the card and went no further, as far as the wire knows.
    fn unsent(&mut self) -> Unsent {
        Unsent::default()
    }
}

/// Makes a wire of two functions: `transmit` is called with each frame that leaves the card; `receive` fills in the
/// next one for it and returns whether there is one.
pub fn from_fn(
    transmit: impl FnMut(&Frame) + Send + 'static,
    receive: impl FnMut(&mut Frame) -> bool + Send + 'static,
) -> Box<dyn Wire> {
    struct Functions<T, R>(T, R);
    impl<T: FnMut(&Frame) + Send, R: FnMut(&mut Frame) -> bool + Send> Wire for Functions<T, R> {
        fn transmit(&mut self, frame: &Frame) {
            (self.0)(frame);
        }
        fn receive(&mut self, frame: &mut Frame) -> bool {
            (self.1)(frame)
        }
    }
    Box::new(Functions(transmit, receive))
}
