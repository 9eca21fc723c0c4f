//! The parts of a port that other threads and signal handlers use while a thread receives: its counters and its sending side.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use linerate::port::{Behind, Drops, FRAME_HEADERS, Port, TxQueue};
use linerate::{Batch, Error, Options};
use rustix::fs::{FlockOperation, MemfdFlags, fcntl_lock, memfd_create};

use crate::socket::frame::fits;
use crate::socket::link::Queues;

/// How long a program's frame may wait for room, and for its way to the wire when the handle is closed.
const ROOM: Duration = Duration::from_secs(1);

/// Frames of a child's own ring.
const RING_OF_CHILD: usize = 64;

/// The use that a child process (fork(2)) has for a port of its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InChild {
    /// It opens the port once more.
    Again,
    /// It has the parent's queue once that has ended.
    TakenOver,
    /// Each read and write is the parent's and the child's alike.
    Same,
    /// The port's threads are not there.
    Nothing,
}

impl InChild {
    pub fn of(port: &Port) -> InChild {
        match port.info().behind {
            Behind::Packet => InChild::Again,
            Behind::Server | Behind::Xdp => InChild::TakenOver,
            Behind::Stack => InChild::Same,
            Behind::Capture if linerate::parse(port.name()).is_ok_and(|name| name.is_capture_to_read()) => {
                InChild::Same
            }
            _ => InChild::Nothing,
        }
    }
}

/// Returns the error of a system call.
pub fn system(call: &'static str, error: rustix::io::Errno) -> Error {
    Error::system(call, error)
}

/// A handle's port without its receiving side.
pub struct Side {
    // Dropped in this order: the queue before its port.
    tx: Option<TxQueue>,
    pub port: Port,
    /// A child's own port to send by: its parent writes the rings that both have mapped.
    of_child: Option<Port>,
    /// The process whose queue `tx` is.
    process: u32,
    /// A file that this process has locked, where a child could use its queue.
    claim: Option<OwnedFd>,
    /// Another process has it.
    is_refused: bool,
    batch: Batch,
    /// The longest frame to send, with a VLAN tag.
    longest: usize,
    /// Frames that were sent.
    sent: u64,
    /// The drops of the port before the handle shared it: for want of room, and refused ones.
    before: (u64, u64),
}

impl Side {
    pub fn new(port: Port, longest: usize) -> Side {
        let process = std::process::id();
        let can_pass_on = InChild::of(&port) == InChild::TakenOver;
        let claim = can_pass_on.then(|| memfd_create(c"linerate", MemfdFlags::CLOEXEC).ok()).flatten();
        let claim = claim.filter(|claim| fcntl_lock(claim, FlockOperation::NonBlockingLockExclusive).is_ok());
        Side {
            tx: None,
            port,
            of_child: None,
            process,
            claim,
            is_refused: false,
            batch: Batch::new(),
            longest,
            sent: 0,
            before: (0, 0),
        }
    }

    /// Gives the port and its transmit queue up to the link of a port that this process shares. Returns also the count of frames that were
    /// sent, and a function that makes it the side of a port at the link.
    pub fn give_up(self) -> (Queues, impl FnOnce(Port) -> Side) {
        let drops = self.drops().unwrap_or_default();
        let Side { tx, mut port, longest, sent, .. } = self;
        let tx = tx.or_else(|| port.tx(0).ok());
        (Queues { rx: None, tx, port, sent }, move |port| Side { before: drops, ..Side::new(port, longest) })
    }

    /// Returns the longest frame to send.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the count of frames that the port has dropped because the program was too slow, and of those that it has
    /// refused.
    ///
    /// # Errors
    /// Those of the port.
    pub fn drops(&self) -> Result<(u64, u64), Error> {
        let Drops { no_descriptor, bad_crc, undersize, oversize, bad_frame, malformed, .. } =
            self.port.statistics()?.drops;
        let (slow, refused) = self.before;
        Ok((slow + no_descriptor, refused + bad_crc + undersize + oversize + bad_frame + malformed))
    }

    /// Sends a frame. Returns false if there was no room for it for a second.
    ///
    /// # Errors
    /// Those of the port; a frame that is too long.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        if !fits(bytes, bytes.len(), self.longest.saturating_sub(FRAME_HEADERS)) {
            return Err(system("send", rustix::io::Errno::MSGSIZE));
        }
        if self.process != std::process::id() {
            match InChild::of(&self.port) {
                InChild::Again => self.open_for_child()?,
                InChild::Same => {}
                InChild::TakenOver | InChild::Nothing => self.take_over()?,
            }
        }
        let Side { tx, port, of_child, batch, sent, .. } = self;
        let port = of_child.as_mut().unwrap_or(port);
        batch.clear();
        if !batch.push(port.pool(), bytes) {
            return Ok(false);
        }
        let tx = match tx {
            Some(tx) => tx,
            None => tx.insert(port.tx(0)?),
        };
        let begin = Instant::now();
        loop {
            tx.send(batch);
            if batch.is_empty() && tx.unsent() == 0 {
                *sent += 1;
                return Ok(true);
            }
            if begin.elapsed() > ROOM {
                let is_accepted = batch.is_empty();
                batch.clear();
                port.link()?;
                return Ok(is_accepted);
            }
            std::thread::yield_now();
        }
    }

    /// Opens the interface once more, for this process.
    fn open_for_child(&mut self) -> Result<(), Error> {
        let options = Options { ring: Some(RING_OF_CHILD), max_frame: self.longest, ..Options::default() };
        let [own] = options.open([self.port.name()])?;
        self.tx = None;
        (self.of_child, self.process, self.sent) = (Some(own), std::process::id(), 0);
        Ok(())
    }

    /// Takes a queue over whose process has ended, as that of a program that becomes a daemon does at once: two processes would write
    /// to the same ring. The lock is the first one's that asks (fcntl(2): a child does not inherit it).
    fn take_over(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let is_ours = || match &self.claim {
            Some(claim) => fcntl_lock(claim, FlockOperation::NonBlockingLockExclusive).is_ok(),
            None => false,
        };
        // One that was refused has had its time.
        let longest = if self.is_refused { ROOM / 100 } else { ROOM };
        while !is_ours() {
            if begin.elapsed() > longest {
                self.is_refused = true;
                return Err(Error::unsupported(
                    self.port.name().to_string(),
                    "sending by a parent's handle",
                    "its queue is another process's as long as that runs; open the port in this process",
                ));
            }
            std::thread::yield_now();
        }
        self.process = std::process::id();
        Ok(())
    }

    /// Lets sent frames reach the wire: closing a card forgets those in its ring.
    pub fn finish(&mut self) {
        let (begin, port) = (Instant::now(), self.of_child.as_ref().unwrap_or(&self.port));
        while self.tx.is_some()
            && port.link().is_ok()
            && port.statistics().is_ok_and(|statistics| statistics.tx_packets < self.sent)
            && begin.elapsed() < ROOM
        {
            std::thread::yield_now();
        }
    }
}
