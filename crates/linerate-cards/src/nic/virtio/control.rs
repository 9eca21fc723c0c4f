//! The control queue (5.1.6.5): one command at a time, each answered by one byte.

use std::sync::Arc;

use linerate_core::error::{Error, Result};
use linerate_core::memory::{DeviceAddress, Mapping};
use linerate_spec::virtio::control;

use super::ring::{DriverRing, Part};
use super::transport::{Notify, wait_until};

/// Bytes reserved for a command: class and command, data, acknowledgement.
pub(super) const ROOM: usize = 2048;
const DATA: usize = 2;
const ANSWER: usize = ROOM - 1;
/// The acknowledgement that no device writes.
const NONE: u8 = 0xFF;

/// The control queue.
pub(super) struct Control {
    pub ring: Box<dyn DriverRing>,
    pub doorbell: Notify,
    pub memory: Arc<Mapping>,
    /// The command's offset in `memory`.
    pub offset: usize,
    pub address: DeviceAddress,
    /// The port's name, for messages.
    pub port: String,
}

impl Control {
    /// Sends a command, and waits for the acknowledgement. `what` names the command in error messages.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`](linerate_core::ErrorKind::Timeout), or
    /// [`ErrorKind::Unsupported`](linerate_core::ErrorKind::Unsupported) if the device rejects the command.
    pub fn command(&mut self, command: [u8; 2], data: &[u8], what: &'static str) -> Result<()> {
        self.memory.write(self.offset, &command);
        self.memory.write(self.offset + DATA, data);
        self.memory.write(self.offset + ANSWER, &[NONE]);
        let part = |descriptor, at: usize, len: usize, writable| Part {
            descriptor,
            address: self.address + at as u64,
            len: len as u32,
            writable,
        };
        let parts = [part(0, 0, DATA, false), part(1, DATA, data.len(), false), part(2, ANSWER, 1, true)];
        self.ring.add(&parts);
        if self.ring.publish(false) {
            self.doorbell.ring();
        }
        let mut written = 0;
        let used = || Ok(self.ring.peek_used().inspect(|&(_, bytes)| written = bytes).is_some());
        wait_until(&self.port, &format!("control queue: {what}"), "5.1.6.5", used)?;
        self.ring.pop_used(parts.len() as u16);
        let mut answer = [NONE];
        self.memory.read(self.offset + ANSWER, &mut answer);
        match answer[0] {
            control::OK => Ok(()),
            NONE if written == 0 => {
                Err(Error::bad_device(format!("it does not acknowledge a command on its control queue: {what}")))
            }
            _ => Err(Error::unsupported(&self.port, what, "the device rejected the command")),
        }
    }
}
