//! What is at the card's outside.
//!
//! A [`Wire`] takes the frames that the card sends and gives those that it receives, without CRC.
//! [`Cable`] leads to another model, [`Traffic`] to a generator and a checking sink, [`Tap`] to an
//! interface of Linux, [`Port`] to any port of ours, [`Replay`] and [`Record`] to capture files, [`from_fn`] to a
//! test; [`Timed`] goes around any of them.

mod cable;
mod capture;
mod port;
mod tap;
mod timed;
mod traffic;

pub use cable::Cable;
#[cfg(fuzzing)]
pub use capture::fuzzing::capture as fuzz_capture;
pub use capture::{Record, Replay};
pub use port::Port;
pub use tap::Tap;
pub use timed::Timed;
pub use traffic::Traffic;

pub use crate::traffic::Report;

/// A frame on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// From the destination address to the last byte before the CRC.
    pub bytes: Vec<u8>,
    /// Its CRC is wrong.
    pub bad_crc: bool,
}

impl Frame {
    /// Where it goes to; `None` if it is too short to say.
    pub(super) fn destination(&self) -> Option<[u8; 6]> {
        self.bytes.first_chunk().copied()
    }
}

/// The other end of a card's cable.
pub trait Wire: Send {
    /// True if there is a signal.
    fn link(&self) -> bool {
        true
    }

    /// The card's laser or PHY sends a signal from now on, for so many Mbit/s, or none (0): without one the other end
    /// has no link.
    fn signal(&mut self, _mbits: u32) {}

    /// The most Mbit/s that the other end can; any number if it does not matter.
    fn speed(&self) -> u32 {
        u32::MAX
    }

    /// True if it can take a frame now; while it cannot, the card keeps its frames, as it does
    /// when it receives pause frames.
    fn ready(&mut self) -> bool {
        true
    }

    /// A frame leaves the card.
    fn transmit(&mut self, frame: &Frame);

    /// Puts the next frame for the card into `frame`; false if there is none now.
    fn receive(&mut self, frame: &mut Frame) -> bool;

    /// True if it holds frames back while the card has no room, as a sender that honours pause
    /// frames does. Otherwise they are lost.
    fn holds_back(&self) -> bool {
        true
    }

    /// True if frames come also while nobody listens: they are lost then. Otherwise they begin when somebody does.
    fn comes_unasked(&self) -> bool {
        false
    }

    /// Brings no new frames from now on.
    fn finish(&mut self) {}

    /// What it has counted and checked; `None` if it does not.
    fn report(&self) -> Option<Report> {
        None
    }
}

/// A wire made of two functions: `transmit` is called with each frame that leaves the card,
/// `receive` fills in the next one that comes and answers whether there is one.
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
