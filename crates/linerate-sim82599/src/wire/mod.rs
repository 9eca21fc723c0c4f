//! The other end of the card's cable.
//!
//! A [`Wire`] takes the frames that the card sends, and supplies the frames that it receives, without CRC:
//!
//! - [`Cable`] connects another model
//! - [`Traffic`] is a generator and a checking sink
//! - [`PortWire`] connects any port of this library: a TAP interface, a capture file, another card
//! - [`from_fn`] calls two functions, for tests
//! - [`Record`] and [`Timed`] wrap another wire; `watched`: what they have in common
//! - `broken`: the wire after a panic of its code

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
pub use port::PortWire;
pub use record::Record;
pub use timed::Timed;
pub use traffic::Traffic;
pub use watched::{Watch, Watched};

/// A frame on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The bytes from the destination address up to the CRC, which is not included.
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

/// Frames that the card sent but the wire did not deliver, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Too long for the port at the cable's other end.
    pub too_long: u64,
    /// Refused by that port for another reason: for example its interface is down, or its file cannot be written.
    pub refused: u64,
    /// Dropped by `faulty:`.
    pub injected: u64,
    /// No buffer was free in that port's memory.
    pub no_buffer: u64,
    /// Accepted by that port but not sent: it has no link, or no room.
    pub waiting: u64,
}

impl Unsent {
    /// Returns the sum of all counts.
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
    /// Returns whether the other end sends a signal.
    fn link(&self) -> bool {
        true
    }

    /// Reports the signal of the card's laser or PHY, in Mbit/s. With 0 there is no signal, and the other end has no
    /// link.
    fn signal(&mut self, _mbits: u32) {}

    /// Returns the highest speed that the other end supports, in Mbit/s; `u32::MAX` if it supports any.
    fn speed(&self) -> u32 {
        u32::MAX
    }

    /// Returns whether the wire can take a frame now. Otherwise the card keeps its frames, as after a pause frame.
    fn ready(&mut self) -> bool {
        true
    }

    /// Takes a frame sent by the card.
    fn transmit(&mut self, frame: &Frame);

    /// Writes the next frame for the card to `frame`; returns false if there is none now.
    fn receive(&mut self, frame: &mut Frame) -> bool;

    /// Returns whether the wire holds frames back while the card has no room, like a sender that honours pause frames.
    /// Otherwise the frames are lost.
    fn has_backpressure(&self) -> bool {
        true
    }

    /// Returns whether frames also arrive while the card does not receive, and are lost. Otherwise they wait until it
    /// receives.
    fn is_lossy_when_idle(&self) -> bool {
        false
    }

    /// Fails if the other end of the cable is gone or has failed.
    ///
    /// # Errors
    /// The errors of [`Port::link`](linerate_core::port::Port::link), and
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Stops supplying new frames.
    fn finish(&mut self) {}

    /// Returns the wire's counts and checks; `None` if it has none.
    fn report(&self) -> Option<Report> {
        None
    }

    /// Returns how many frames the card sent but the wire did not deliver, as far as the wire knows.
    fn unsent(&mut self) -> Unsent {
        Unsent::default()
    }
}

/// Creates a wire from two functions. `transmit` is called with each frame that the card sends. `receive` writes the
/// next frame for the card, and returns whether there is one.
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
