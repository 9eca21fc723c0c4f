//! Maximum frame lengths of ports on kernel interfaces.

use linerate::kernel::Interface;
use linerate::port::{DEFAULT_FRAME, FRAME_HEADERS, Port, PortName};

/// Upper limit for frames from an interface. It exceeds the jumbo frames of cards; a loopback's MTU (65,536) would need
/// too large a ring.
const LONGEST: usize = 9728;

/// The maximum frame length, with a VLAN tag, of the interface under a port, if the port is on one.
#[derive(Clone, Copy)]
pub struct LongestOfInterface(Option<usize>);

impl LongestOfInterface {
    pub fn of(name: &PortName) -> LongestOfInterface {
        let on = name.interface().filter(|_| name.is_packet());
        let mtu = on.and_then(|on| Interface::open(on).and_then(|interface| interface.mtu()).ok());
        LongestOfInterface(mtu.map(|mtu| (mtu + FRAME_HEADERS).min(LONGEST)))
    }

    /// Returns the maximum frame length to open the port with: the default, or more for a large MTU.
    pub fn to_receive(self) -> usize {
        self.0.unwrap_or(0).max(DEFAULT_FRAME)
    }

    /// Returns the maximum length of frames to send through the open port.
    pub fn to_send(self, port: &Port) -> usize {
        port.info().max_frame.min(self.0.unwrap_or(usize::MAX))
    }
}
