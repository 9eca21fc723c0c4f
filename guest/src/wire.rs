//! The other end of a card's cable: each datagram is a frame.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cable that ends in the test.
pub struct Wire {
    socket: UnixDatagram,
    card: PathBuf,
    received: Cell<u64>,
}

/// How long a frame may take; a guest without a processor's help is slow, but not that slow.
const PATIENCE: Duration = Duration::from_secs(30);

impl Wire {
    pub(crate) fn new(folder: &Path, number: usize) -> Wire {
        let socket = UnixDatagram::bind(folder.join(format!("test{number}"))).expect("a socket in a folder of ours");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Wire { socket, card: folder.join(format!("card{number}")), received: Cell::new(0) }
    }

    /// Sends a frame, without CRC; waits while the card has no room for it.
    pub fn send(&self, frame: &[u8]) {
        if let Err(error) = self.socket.send_to(frame, &self.card) {
            panic!("the card takes no frame: {error}");
        }
    }

    /// The next frame that the card sent.
    pub fn receive(&self) -> Vec<u8> {
        self.receive_within(PATIENCE)
            .unwrap_or_else(|| panic!("no frame came after {} in {PATIENCE:?}", self.received.get()))
    }

    /// The next frame that the card sent, if it comes in time.
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

    /// Takes away what the card has sent so far, as a kernel's own packets.
    pub fn drain(&self) {
        while self.receive_within(Duration::from_millis(1)).is_some() {}
    }
}

/// Sends `count` frames into `from`, of sizes from 60 to `longest` bytes in turn, and checks that exactly these come
/// out of `to`, in order, touched once in byte 48 as a forwarder does.
///
/// At most 64 are on their way at a time, so that nothing but the guest sets the rate.
pub fn cross(from: &Wire, to: &Wire, count: usize, longest: usize) {
    use linerate::traffic::Generator;
    let sizes: Vec<usize> = (60..=longest).step_by(7).chain([longest]).collect();
    let mut generators: Vec<Generator> = sizes
        .iter()
        .enumerate()
        .map(|(flow, size)| Generator::new(size + 4, 1).with_flows(flow as u16..flow as u16 + 1))
        .collect();
    let mut sent: std::collections::VecDeque<Vec<u8>> = Default::default();
    let (mut made, mut seen) = (0, 0);
    while seen < count {
        while made < count && sent.len() < 64 {
            let generator = &mut generators[made % sizes.len()];
            let mut frame = vec![0; generator.frame_len()];
            generator.fill(&mut frame);
            from.send(&frame);
            sent.push_back(frame);
            made += 1;
        }
        let frame = to.receive();
        let mut expected = sent.pop_front().expect("one is on its way");
        expected[48] = expected[48].wrapping_add(1);
        assert!(
            frame == expected,
            "frame {seen} of {count}: {} bytes came where {} were sent",
            frame.len(),
            expected.len()
        );
        seen += 1;
    }
}
