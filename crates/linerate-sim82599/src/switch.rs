//! The switch between the card's functions and the wire (section 7.10.3).

use std::collections::VecDeque;

use super::board::Board;
use super::filter;
use super::functions::Functions;
use super::headers::Headers;
use super::mac::Mac;
use super::wire::Frame;

/// A frame's source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Wire,
    Physical,
    Virtual(usize),
}

/// Frames waiting to be received by functions of this card: source, destination, frame.
#[derive(Default)]
pub(super) struct Switch {
    arriving: VecDeque<(Endpoint, Endpoint, Frame)>,
}

impl Switch {
    /// Removes and returns the next frame for a function.
    pub fn next(&mut self) -> Option<(Endpoint, Endpoint, Frame)> {
        self.arriving.pop_front()
    }

    /// Forwards a frame sent by a function: to the functions of this card that accept it, and to the wire unless it was
    /// for one of them alone.
    #[inline]
    pub fn forward(&mut self, board: &Board, functions: &Functions, mac: &mut Mac, from: Endpoint, frame: &Frame) {
        if board.loops_back() && from == Endpoint::Physical {
            return self.arriving.push_back((from, Endpoint::Physical, frame.clone()));
        }
        if let Some(destination) = frame.destination().filter(|_| !functions.is_empty()) {
            let vlan = Headers::parse(&frame.bytes).vlan;
            let is_unicast = destination[0] & 1 == 0;
            let mut found = false;
            for (number, function) in functions.iter().enumerate() {
                let wanted =
                    if is_unicast { function.is_own(destination) } else { function.accepts(destination, vlan) };
                if wanted && from != Endpoint::Virtual(number) {
                    self.arriving.push_back((from, Endpoint::Virtual(number), frame.clone()));
                    found = true;
                }
            }
            if from != Endpoint::Physical {
                let own = filter::is_own(&board.registers, destination);
                if if is_unicast { own } else { filter::accepts(&board.registers, destination) } {
                    self.arriving.push_back((from, Endpoint::Physical, frame.clone()));
                    found = true;
                }
            }
            if found && is_unicast {
                return;
            }
        }
        if board.has_link() {
            mac.transmit(frame);
        }
    }

    /// Copies a frame from the wire to each virtual function that accepts it.
    #[inline]
    pub fn replicate(&mut self, functions: &Functions, frame: &Frame) {
        let Some(destination) = frame.destination().filter(|_| !functions.is_empty()) else { return };
        let vlan = Headers::parse(&frame.bytes).vlan;
        for (number, function) in functions.iter().enumerate() {
            if function.accepts(destination, vlan) {
                self.arriving.push_back((Endpoint::Wire, Endpoint::Virtual(number), frame.clone()));
            }
        }
    }
}
