//! The two queues of a port. Each packet is one datagram.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use linerate::memory::Pool;
use linerate::port::{Config, QueueCounters, Receive, SendFinished, Transmit};
use linerate::{Batch, Error, Result};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketAddrUnix, sendmsg_addr};

use crate::socket::Socket;

/// Bytes of an Ethernet header: shorter datagrams are not frames.
const SHORTEST: usize = 14;
/// Bytes of a VLAN tag, by which a frame may exceed the longest frame.
const VLAN_TAG: usize = 4;

/// The receive queue.
pub struct UnixRx {
    socket: Arc<Socket>,
    pool: Arc<Pool>,
    /// Room for the longest frame, and for one more byte, which shows that a datagram was longer.
    datagram: Box<[u8]>,
    /// The length of a received frame that waits in `datagram` for a free buffer; 0 if there is none.
    waiting: usize,
    counters: Arc<QueueCounters>,
    can_wake: bool,
}

impl UnixRx {
    pub fn new(socket: Arc<Socket>, config: &Config, counters: Arc<QueueCounters>) -> UnixRx {
        UnixRx {
            socket,
            pool: config.pool().clone(),
            datagram: vec![0; config.options().max_frame + VLAN_TAG + 1].into(),
            waiting: 0,
            counters,
            can_wake: config.options().interrupts.is_some(),
        }
    }

    /// Receives a datagram, unless a frame is waiting. Returns false if there is none.
    fn next_datagram(&mut self) -> bool {
        if self.waiting == 0 {
            // Errors are ignored: the next call tries again.
            let Ok(len) = self.socket.socket.recv(&mut self.datagram) else { return false };
            match len {
                ..SHORTEST => self.counters.dropped(),
                _ if len == self.datagram.len() => self.counters.missed(0, 1),
                _ => self.waiting = len,
            }
        }
        true
    }
}

impl Receive for UnixRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        // Bounded, so that a peer that sends only invalid datagrams cannot keep the thread here.
        for _ in 0..batch.capacity() {
            if batch.is_full() || !self.next_datagram() {
                break;
            }
            let len = self.waiting;
            if len == 0 {
                continue;
            }
            let slots = batch.len();
            if batch.push(&self.pool, &self.datagram[..len]) {
                self.counters.moved_packets(1, batch.len() - slots, len);
            } else if batch.can_hold(&self.pool, len) {
                self.counters.found_no_buffer();
                break;
            } else {
                self.counters.missed(0, 1);
            }
            self.waiting = 0;
        }
        batch.len() - before
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.can_wake.then(|| self.socket.socket.as_fd())
    }
}

/// The transmit queue.
pub struct UnixTx {
    socket: Arc<Socket>,
    peer: SocketAddrUnix,
    has_peer: bool,
    longest: usize,
    counters: Arc<QueueCounters>,
}

/// The result of sending one packet.
enum Sent {
    /// The kernel has the packet.
    Done,
    /// The peer's queue is full, or there is no peer: the packet stays in the batch.
    Later,
    /// The packet can never be sent.
    Dropped,
}

impl UnixTx {
    pub fn new(socket: Arc<Socket>, peer: &Path, config: &Config, counters: Arc<QueueCounters>) -> Result<UnixTx> {
        let peer = SocketAddrUnix::new(peer).map_err(|error| Error::system("the peer's address", error))?;
        let longest = config.options().max_frame + VLAN_TAG;
        Ok(UnixTx { socket, peer, has_peer: true, longest, counters })
    }

    fn send_packet(&mut self, bytes: &[IoSlice<'_>]) -> Sent {
        let control = &mut SendAncillaryBuffer::default();
        let sent = sendmsg_addr(&self.socket.socket, &self.peer, bytes, control, SendFlags::DONTWAIT);
        // Without a peer, there is no file at its path, or no process that has bound it.
        self.has_peer = !matches!(sent, Err(Errno::NOENT | Errno::CONNREFUSED));
        match sent {
            Ok(_) => Sent::Done,
            Err(_) if !self.has_peer => Sent::Later,
            Err(error) if error.kind() == ErrorKind::WouldBlock || matches!(error, Errno::NOBUFS | Errno::INTR) => {
                Sent::Later
            }
            Err(_) => Sent::Dropped,
        }
    }
}

impl SendFinished for UnixTx {
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut slots, mut is_to_be_finished) = (0, false);
        for packet in batch.packets() {
            if packet.offload().is_some() {
                is_to_be_finished = true;
                break;
            }
            let sent = match packet.slots() {
                _ if packet.len() > self.longest => Sent::Dropped,
                1 => self.send_packet(&[IoSlice::new(&packet)]),
                _ => self.send_packet(&packet.segments().map(IoSlice::new).collect::<Vec<_>>()),
            };
            match sent {
                Sent::Done => self.counters.moved_packets(1, packet.slots(), packet.len()),
                Sent::Later => break,
                Sent::Dropped => self.counters.dropped(),
            }
            slots += packet.slots();
        }
        batch.drop_front(slots);
        (slots, is_to_be_finished)
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

impl Transmit for UnixTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }

    fn has_peer(&self) -> bool {
        self.has_peer
    }
}
