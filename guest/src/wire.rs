//! The other end of a card's cable, frame by frame.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_testkit::TIME_LIMIT;

/// A cable that ends in the test. Each datagram, or each message of a packet socket, is a frame.
pub struct Wire {
    /// May also be a packet socket, which also sends and receives one frame per call.
    socket: UnixDatagram,
    /// The path of QEMU's end of a datagram socket.
    card: Option<PathBuf>,
    received: Cell<u64>,
}

/// The longest wait for a frame.
const TIMEOUT: Duration = TIME_LIMIT;

impl Wire {
    pub(crate) fn new(folder: &Path, number: usize) -> Wire {
        let socket = UnixDatagram::bind(folder.join(format!("test{number}"))).expect("a socket in the test's folder");
        Wire::over(socket, Some(folder.join(format!("card{number}"))))
    }

    pub(crate) fn of_socket(socket: OwnedFd) -> Wire {
        Wire::over(socket.into(), None)
    }

    fn over(socket: UnixDatagram, card: Option<PathBuf>) -> Wire {
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        socket.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
        Wire { socket, card, received: Cell::new(0) }
    }

    /// Sends a frame without CRC. Waits while the card has no room for it.
    pub fn send(&self, frame: &[u8]) {
        let sent = match &self.card {
            Some(card) => self.socket.send_to(frame, card),
            None => self.socket.send(frame),
        };
        if let Err(error) = sent {
            panic!("the card accepts no frame: {error}");
        }
    }

    /// Returns the next frame that the card sent.
    pub fn receive(&self) -> Vec<u8> {
        self.receive_within(TIMEOUT)
            .unwrap_or_else(|| panic!("no frame came after {} in {TIMEOUT:?}", self.received.get()))
    }

    /// Returns the next frame that the card sent, or `None` after `time`.
    pub fn receive_within(&self, time: Duration) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        self.socket.set_read_timeout(Some(time)).expect("a timeout");
        match self.socket.recv(&mut frame) {
            Ok(len) => {
                frame.truncate(len);
                self.received.set(self.received.get() + 1);
                Some(frame)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("receiving from the card: {error}"),
        }
    }

    /// Discards the frames that the card has sent so far, such as a kernel's packets.
    pub fn drain(&self) {
        while self.receive_within(Duration::from_millis(1)).is_some() {}
    }
}
