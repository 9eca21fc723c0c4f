//! A TAP interface of Linux as the other end: frames that the kernel sends there arrive at the card.

use tappers::{Interface, Tap as Device};

use super::{Frame, Wire};
use crate::error::{Error, Result};
use crate::nic::ixgbe::MAX_FRAME;

/// A TAP interface. The kernel's end is an ordinary interface; give it an address and use it.
pub struct Tap {
    device: Device,
    bytes: Box<[u8]>,
}

/// The shortest frame on Ethernet without CRC; the kernel hands over shorter ones unpadded.
const SHORTEST: usize = 60;

impl Tap {
    /// Opens TAP interface `name` and sets it up. An interface that it creates is removed with this value.
    ///
    /// # Errors
    /// Without `/dev/net/tun` or the capability CAP_NET_ADMIN, or if the name is invalid.
    pub fn open(name: &str) -> Result<Tap> {
        let fail = |what: &str, e: std::io::Error| {
            let hint = match e.kind() {
                std::io::ErrorKind::PermissionDenied => "; run it as root, or with the capability CAP_NET_ADMIN",
                std::io::ErrorKind::NotFound => "; load the module: sudo modprobe tun",
                _ => "",
            };
            Error::Wire { wire: format!("tap:{name}"), why: format!("{what}: {e}{hint}") }
        };
        let interface = Interface::new(name).map_err(|e| fail("not an interface's name", e))?;
        let mut device = Device::new_named(interface).map_err(|e| fail("cannot open it", e))?;
        device.set_nonblocking(true).map_err(|e| fail("cannot poll it", e))?;
        device.set_up().map_err(|e| fail("cannot set it up", e))?;
        Ok(Tap { device, bytes: vec![0; MAX_FRAME].into() })
    }
}

impl Wire for Tap {
    fn transmit(&mut self, frame: &Frame) {
        // An interface that is down, or whose queue is full, drops frames as any other does.
        let _ = self.device.send(&frame.bytes);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let Ok(len) = self.device.recv(&mut self.bytes) else { return false };
        frame.bytes.clear();
        frame.bytes.extend_from_slice(&self.bytes[..len]);
        frame.bytes.resize(len.max(SHORTEST), 0);
        frame.bad_crc = false;
        true
    }
}
