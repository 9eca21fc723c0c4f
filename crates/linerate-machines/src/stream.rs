//! QEMU's socket protocol: Ethernet frames over a stream socket, each after its length (QEMU's `-netdev stream`; passt(1),
//! gvproxy and libkrun have it, too). It copies each frame twice, and needs neither shared memory nor privileges.

use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate_core::batch::Batch;
use linerate_core::descriptor::duplicate;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::packet::Packet;
use linerate_core::port::{
    Address, Config, DESCRIPTOR, Description, Device, Link, MTU, Maturity, Opening, PortClass, PortKind, QueueCounters,
    Receive, SendFinished, SoftwareDevice, SoftwarePort, Transmit,
};
use linerate_core::unix_socket::connect;

/// `stream:PATH`
pub static KIND: PortKind = PortKind {
    description: Description {
        options: &[MTU, DESCRIPTOR],
        feature: "vhost",
        example: "stream:/tmp/net.socket",
        summary: "a program that listens at a socket with QEMU's protocol",
        page: "machines.md",
        no_link: "is its program running?",
        maturity: Maturity::Others,
        class: PortClass::Peer,
        ..Description::new("stream", Address::Socket)
    },
    open: &|opening: Opening<'_>| {
        let descriptor = opening.name.option(DESCRIPTOR.name).map(|number| number.parse().unwrap_or(-1));
        Ok(Box::new(Stream::open(opening.name.address(), descriptor, opening.config)?) as Box<dyn Device>)
    },
};

/// The bytes of a frame's length.
const PREFIX: usize = 4;
/// The longest frame that a peer may announce: a larger length is not one of this protocol.
const LONGEST: usize = 256 << 10;
/// The bytes that are read or written with one system call.
const CHUNK: usize = 64 << 10;

/// A port over a stream socket.
pub struct Stream {
    path: String,
    socket: Arc<UnixStream>,
    /// The peer has closed the socket, or violates the protocol.
    is_closed: Arc<AtomicBool>,
}

impl Stream {
    /// Connects to the program that listens at the socket `path`, or uses a connected socket, whose descriptor remains
    /// open.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`] if no program listens there, or if the descriptor is not a socket.
    pub fn open(path: &str, descriptor: Option<i32>, config: Config) -> Result<SoftwarePort<Stream>> {
        let failed = |error: &dyn std::fmt::Display, remedy: &'static str| {
            let why = format!("cannot connect to it: {error}");
            Error::new(ErrorKind::Unusable, config.name.clone(), why).with_remedy(Remedy::Step(remedy.into()))
        };
        let socket = match descriptor {
            Some(number) => {
                let socket = duplicate(number).map(UnixStream::from);
                socket
                    .and_then(|socket| socket.peer_addr().map(|_| socket))
                    .map_err(|error| failed(&error, "pass a connected socket"))?
            }
            None => connect(Path::new(path))
                .map_err(|error| failed(&error, "start its program first, for example: passt -s PATH"))?,
        };
        socket.set_nonblocking(true).map_err(|error| Error::system("fcntl(O_NONBLOCK)", error))?;
        let stream = Stream { path: path.to_string(), socket: Arc::new(socket), is_closed: Arc::default() };
        Ok(SoftwarePort::new(config, stream))
    }
}

impl SoftwareDevice for Stream {
    const DRIVER: &'static str = "stream";
    const CLASS: PortClass = PortClass::Peer;
    const QUEUE_SELECTOR: &'static str = "there is one queue";

    fn description(&self) -> String {
        format!("QEMU's protocol at {}", self.path)
    }

    fn rx(&mut self, config: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(StreamRx {
            socket: self.socket.clone(),
            is_closed: self.is_closed.clone(),
            pool: config.pool.clone(),
            counters,
            bytes: vec![0; LONGEST + CHUNK].into(),
            begin: 0,
            end: 0,
        }))
    }

    fn tx(&mut self, config: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(StreamTx {
            socket: self.socket.clone(),
            is_closed: self.is_closed.clone(),
            counters,
            longest: config.options.max_frame,
            bytes: Vec::with_capacity(2 * CHUNK),
            written: 0,
        }))
    }

    fn check(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Gone,
                format!("stream:{}", self.path),
                "its program has ended, or violates the protocol",
            )
            .with_remedy(Remedy::Step("start it again, and open the port again".into()))),
        }
    }

    fn link(&self) -> Result<Link> {
        self.check().map(|()| Link::Up { mbits: 0 })
    }
}

/// Receives frames.
struct StreamRx {
    socket: Arc<UnixStream>,
    is_closed: Arc<AtomicBool>,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    /// The bytes from `begin` to `end` were read, and not delivered yet.
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl StreamRx {
    /// Returns the length of the frame at the front, if it is there completely. Reads at most once.
    fn next_len(&mut self, has_read: &mut bool) -> Option<usize> {
        loop {
            if let Some(prefix) = self.bytes[self.begin..self.end].first_chunk::<PREFIX>() {
                let len = u32::from_be_bytes(*prefix) as usize;
                if len > LONGEST - PREFIX {
                    self.is_closed.store(true, Ordering::Relaxed);
                    return None;
                }
                if self.end - self.begin >= PREFIX + len {
                    return Some(len);
                }
            }
            if std::mem::replace(has_read, true) || self.is_closed.load(Ordering::Relaxed) || !self.read() {
                return None;
            }
        }
    }

    /// Reads what has arrived; false if nothing has.
    fn read(&mut self) -> bool {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        match (&*self.socket).read(&mut self.bytes[self.end..]) {
            Ok(0) => self.is_closed.store(true, Ordering::Relaxed),
            Ok(len) => {
                self.end += len;
                return true;
            }
            Err(error) if matches!(error.kind(), IoErrorKind::WouldBlock | IoErrorKind::Interrupted) => {}
            Err(_) => self.is_closed.store(true, Ordering::Relaxed),
        }
        false
    }
}

impl Receive for StreamRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, mut packets, mut total, mut has_read) = (batch.len(), 0, 0, false);
        while batch.len() < batch.capacity() {
            let Some(len) = self.next_len(&mut has_read) else { break };
            let frame = &self.bytes[self.begin + PREFIX..self.begin + PREFIX + len];
            if !batch.push(&self.pool, frame) {
                if batch.can_hold(&self.pool, len) {
                    self.counters.found_no_buffer();
                    break;
                }
                self.counters.dropped();
                self.begin += PREFIX + len;
                continue;
            }
            self.begin += PREFIX + len;
            packets += 1;
            total += len;
        }
        self.counters.moved_packets(packets, batch.len() - before, total);
        batch.len() - before
    }

    /// The bytes in the buffer do not make the socket readable.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let is_complete = self.next_len(&mut true).is_some();
        (!is_complete && !self.is_closed.load(Ordering::Relaxed)).then(|| self.socket.as_fd())
    }
}

/// Sends frames.
struct StreamTx {
    socket: Arc<UnixStream>,
    is_closed: Arc<AtomicBool>,
    counters: Arc<QueueCounters>,
    longest: usize,
    /// Accepted frames with their lengths, of which the first bytes are `written`.
    bytes: Vec<u8>,
    written: usize,
}

impl StreamTx {
    /// Writes accepted frames; false if some are left.
    fn flush(&mut self) -> bool {
        while self.written < self.bytes.len() {
            match (&*self.socket).write(&self.bytes[self.written..]) {
                Ok(len) => self.written += len,
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.is_closed.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.bytes.clear();
        self.written = 0;
        true
    }
}

impl Transmit for StreamTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }

    fn unsent(&self) -> usize {
        usize::from(!self.bytes.is_empty())
    }

    fn has_peer(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }
}

impl SendFinished for StreamTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        if !self.flush() || self.is_closed.load(Ordering::Relaxed) {
            return (0, false);
        }
        let (mut slots, mut packets, mut total, mut is_to_be_finished) = (0, 0, 0, false);
        for packet in batch.packets() {
            if packet.offload().is_some() {
                is_to_be_finished = true;
                break;
            }
            if self.bytes.len() >= CHUNK && !self.flush() {
                break;
            }
            let (len, sent) = (packet.len(), len_without_padding(&packet));
            if len > self.longest {
                self.counters.dropped();
            } else {
                self.bytes.extend((sent as u32).to_be_bytes());
                match packet.get(..sent) {
                    Some(frame) => self.bytes.extend_from_slice(frame),
                    None => packet.segments().for_each(|segment| self.bytes.extend_from_slice(segment)),
                }
                packets += 1;
                total += len;
            }
            slots += packet.slots();
        }
        self.flush();
        batch.drop_front(slots);
        self.counters.moved_packets(packets, slots, total);
        (slots, is_to_be_finished)
    }
}

/// Returns the length of a frame without the padding to Ethernet's minimum, which this protocol does not have: passt
/// 2023-03 counts the padding of an acknowledgement as TCP data.
fn len_without_padding(frame: &Packet<'_>) -> usize {
    const SHORTEST: usize = 60;
    let all = frame.len();
    let in_header = |at: usize| Some(usize::from(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?)));
    let len = match frame.get(12..14) {
        Some([0x08, 0x00]) if all == SHORTEST => in_header(16).map(|len| 14 + len),
        Some([0x86, 0xDD]) if all == SHORTEST => in_header(18).map(|len| 54 + len),
        _ => None,
    };
    len.filter(|len| (34..all).contains(len)).unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Opens a port at one end of a socket pair, and returns the other end.
    fn port() -> (UnixStream, linerate::port::Port) {
        let (near, far) = UnixStream::pair().unwrap();
        let [port] = linerate::open([format!("stream:test?fd={}", near.as_raw_fd()).as_str()]).unwrap();
        (far, port)
    }

    #[test]
    fn frames_have_their_lengths_in_front() {
        let (mut far, mut port) = port();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let mut batch = Batch::new();
        for len in [60, 1514] {
            batch.push(port.pool(), &vec![len as u8; len]);
        }
        assert_eq!(tx.send(&mut batch), 2);
        let mut bytes = vec![0; 60 + 1514 + 2 * PREFIX];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes[..4], &bytes[64..68]), (&[0, 0, 0, 60][..], &[0, 0, 0x05, 0xEA][..]));
        // In pieces, as a stream may deliver them.
        for piece in bytes.chunks(7) {
            far.write_all(piece).unwrap();
            rx.recv(&mut batch);
        }
        assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 1514]);
    }

    /// The padding of IP packets is not sent; other frames, and lengths that cannot be, stay as they are.
    #[test]
    fn padding_is_removed() {
        let (mut far, mut port) = port();
        let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
        let frame = |kind: [u8; 2], at: usize, len: u16| {
            let mut frame = [0; 60];
            frame[12..14].copy_from_slice(&kind);
            frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
            frame
        };
        let frames = [(8, 16, 40, 54), (8, 16, 46, 60), (8, 16, 19, 60), (8, 16, 1500, 60), (0x86, 18, 0, 54)];
        for (kind, at, len, sent) in frames.into_iter().chain([(0x86, 18, 7, 60), (9, 16, 40, 60)]) {
            batch.push(port.pool(), &frame([kind, if kind == 0x86 { 0xDD } else { 0 }], at, len));
            assert_eq!(tx.send(&mut batch), 1);
            let mut bytes = vec![0; PREFIX + sent];
            far.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes[..PREFIX], (sent as u32).to_be_bytes(), "{kind} {len}");
        }
    }

    #[test]
    fn a_peer_that_ends_or_lies_is_gone() {
        let (far, mut port) = port();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        drop(far);
        let mut batch = Batch::new();
        assert_eq!((rx.recv(&mut batch), port.link().unwrap_err().kind()), (0, ErrorKind::Gone));
        batch.push(port.pool(), &[0; 60]);
        assert_eq!((tx.send(&mut batch), tx.has_peer()), (0, false));
        let (mut far, mut port) = self::port();
        let mut rx = port.rx(0).unwrap();
        far.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert_eq!((rx.recv(&mut batch), port.link().unwrap_err().kind()), (0, ErrorKind::Gone));
        assert!(linerate::open(["stream:test?fd=1"]).is_err());
    }

    /// A peer that reads nothing: the port accepts what fits into the socket, and the rest later.
    #[test]
    fn a_slow_peer_gets_everything() {
        let (mut far, mut port) = port();
        let (mut tx, pool) = (port.tx(0).unwrap(), port.pool().clone());
        let (mut batch, mut sent, mut received, mut bytes) = (Batch::new(), 0, 0, vec![0; 1 << 20]);
        far.set_nonblocking(true).unwrap();
        while received < 2000 * 1004 {
            while sent + batch.len() < 2000 && batch.push(&pool, &[7; 1000]) {}
            sent += tx.send(&mut batch);
            if batch.is_empty() && sent < 2000 {
                continue;
            }
            received += far.read(&mut bytes).unwrap_or(0);
        }
        assert_eq!((sent, received, tx.unsent()), (2000, 2000 * 1004, 0));
    }
}
