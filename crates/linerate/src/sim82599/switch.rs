//! The switch between the card's functions and the wire (section 7.10.3).

use super::headers::Headers;
use super::wire::Frame;
use super::{Card, Core, filter};

/// A frame's source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Wire,
    Physical,
    Virtual(usize),
}

impl Card {
    /// Forwards a frame that a function sent: to the functions of this card that accept it, and to the wire unless
    /// it was for one of them alone.
    pub(super) fn leave(&self, core: &mut Core, from: Place, frame: &Frame) {
        if self.board.loops_back() && from == Place::Physical {
            return core.receive.arriving.push_back((from, Place::Physical, frame.clone()));
        }
        if let Some(destination) = frame.destination().filter(|_| !core.virtual_functions.is_empty()) {
            let vlan = Headers::parse(&frame.bytes).vlan;
            let is_unicast = destination[0] & 1 == 0;
            let mut found = false;
            for (number, function) in core.virtual_functions.iter().enumerate() {
                let wanted =
                    if is_unicast { function.is_own(destination) } else { function.accepts(destination, vlan) };
                if wanted && from != Place::Virtual(number) {
                    core.receive.arriving.push_back((from, Place::Virtual(number), frame.clone()));
                    found = true;
                }
            }
            if from != Place::Physical {
                let own = filter::is_own(&self.board.registers, destination);
                if if is_unicast { own } else { filter::accepts(&self.board.registers, destination) } {
                    core.receive.arriving.push_back((from, Place::Physical, frame.clone()));
                    found = true;
                }
            }
            if found && is_unicast {
                return;
            }
        }
        if self.board.has_link() {
            core.frames.1 += 1;
            core.wire.transmit(frame);
        }
    }

    /// Copies a frame from the wire to each virtual function that accepts it.
    pub(super) fn replicate(&self, core: &mut Core, frame: &Frame) {
        let Some(destination) = frame.destination().filter(|_| !core.virtual_functions.is_empty()) else { return };
        let vlan = Headers::parse(&frame.bytes).vlan;
        for number in 0..core.virtual_functions.len() {
            if core.virtual_functions[number].accepts(destination, vlan) {
                core.receive.arriving.push_back((Place::Wire, Place::Virtual(number), frame.clone()));
            }
        }
    }
}
