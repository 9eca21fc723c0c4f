//! The longest frames of ports on interfaces.

use linerate::kernel::Interface;
use linerate::port::{DEFAULT_FRAME, FRAME_HEADERS, Port, PortName};

/// The longest frame that a handle takes from an interface: more than cards have, and less than the ring of a loopback's would need.
const LONGEST: usize = 9728;

/// The longest frame, with a VLAN tag, of the interface that a port is on, if it is on one.
#[derive(Clone, Copy)]
pub struct LongestOfInterface(Option<usize>);

impl LongestOfInterface {
    pub fn of(name: &PortName) -> LongestOfInterface {
        let on = name.is_packet().then(|| name.rest());
        let mtu = on.and_then(|on| Interface::open(on).and_then(|interface| interface.mtu()).ok());
        LongestOfInterface(mtu.map(|mtu| (mtu + FRAME_HEADERS).min(LONGEST)))
    }

    /// Returns the longest frame that a port is opened for: with a large MTU it is longer than usual.
    pub fn to_receive(self) -> usize {
        self.0.unwrap_or(0).max(DEFAULT_FRAME)
    }

    /// Returns the longest frame that the open port sends.
    pub fn to_send(self, port: &Port) -> usize {
        port.info().max_frame.min(self.0.unwrap_or(usize::MAX))
    }
}
