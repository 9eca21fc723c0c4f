//! A port's sending side and counters, which other threads and signal handlers may use while a thread receives.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use linerate::port::{Drops, FRAME_HEADERS, Port, PortClass, TxQueue};
use linerate::{Batch, Error, Options};
use rustix::fs::{FlockOperation, MemfdFlags, fcntl_lock, memfd_create};

use crate::socket::frame::fits;
use crate::socket::link::Queues;

/// How long a frame may wait for room, and closing a handle for sent frames to reach the wire.
const ROOM: Duration = Duration::from_secs(1);

/// Slots of a child's own ring.
const RING_OF_CHILD: usize = 64;

/// How a child process (fork(2)) can use its parent's port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ChildUse {
    /// The child opens the port once more.
    Reopen,
    /// The child takes over the parent's queue once the parent has ended.
    TakeOver,
    /// Parent and child share the open file: each may read and write.
    Shared,
    /// Not at all: the port's threads do not exist in the child.
    Unusable,
}

impl ChildUse {
    pub fn of(port: &Port) -> ChildUse {
        match port.info().class {
            PortClass::Packet => ChildUse::Reopen,
            PortClass::Server | PortClass::Xdp => ChildUse::TakeOver,
            PortClass::Stack => ChildUse::Shared,
            PortClass::Capture if linerate::parse(port.name()).is_ok_and(|name| name.is_capture_to_read()) => {
                ChildUse::Shared
            }
            _ => ChildUse::Unusable,
        }
    }
}

/// Makes the error of a system call.
pub fn system(call: &'static str, error: rustix::io::Errno) -> Error {
    Error::system(call, error)
}

/// A handle's port without its receiving side.
pub struct SendingSide {
    // Dropped in this order: the queue before its port.
    tx: Option<TxQueue>,
    pub port: Port,
    /// A child's own port for sending: the parent still writes the rings that both have mapped.
    of_child: Option<Port>,
    /// The process that owns `tx`.
    process: u32,
    /// A file locked by the owner of the queue, where a child could take the queue over.
    claim: Option<OwnedFd>,
    /// An attempt to lock `claim` has failed: another process has the queue.
    is_refused: bool,
    batch: Batch,
    /// Maximum length of a frame to send, with a VLAN tag.
    longest: usize,
    /// Frames sent so far.
    sent: u64,
    /// The port's drops before the handle shared it: for lack of room, and rejected frames.
    before: (u64, u64),
}

impl SendingSide {
    pub fn new(port: Port, longest: usize) -> SendingSide {
        let process = std::process::id();
        let can_pass_on = ChildUse::of(&port) == ChildUse::TakeOver;
        let claim = can_pass_on.then(|| memfd_create(c"linerate", MemfdFlags::CLOEXEC).ok()).flatten();
        let claim = claim.filter(|claim| fcntl_lock(claim, FlockOperation::NonBlockingLockExclusive).is_ok());
        SendingSide {
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

    /// Returns the port, its transmit queue and the count of sent frames, for the link of a shared port. Also returns a
    /// function that creates the new `SendingSide` from a port on that link.
    pub fn give_up(self) -> (Queues, impl FnOnce(Port) -> SendingSide) {
        let drops = self.drops().unwrap_or_default();
        let SendingSide { tx, mut port, longest, sent, .. } = self;
        let tx = tx.or_else(|| port.tx(0).ok());
        (Queues { rx: None, tx, port, sent }, move |port| SendingSide {
            before: drops,
            ..SendingSide::new(port, longest)
        })
    }

    /// Returns the maximum length of a frame to send.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns how many frames the port has dropped because the program was too slow, and how many it has rejected.
    ///
    /// # Errors
    /// The port's errors.
    pub fn drops(&self) -> Result<(u64, u64), Error> {
        let Drops { no_descriptor, bad_crc, undersize, oversize, bad_frame, malformed, .. } =
            self.port.statistics()?.drops;
        let (slow, refused) = self.before;
        Ok((slow + no_descriptor, refused + bad_crc + undersize + oversize + bad_frame + malformed))
    }

    /// Sends a frame. Returns false if there was no room for it within a second.
    ///
    /// # Errors
    /// The port's errors; a frame that is too long.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        if !fits(bytes, bytes.len(), self.longest.saturating_sub(FRAME_HEADERS)) {
            return Err(system("send", rustix::io::Errno::MSGSIZE));
        }
        if self.process != std::process::id() {
            match ChildUse::of(&self.port) {
                ChildUse::Reopen => self.open_for_child()?,
                ChildUse::Shared => {}
                ChildUse::TakeOver | ChildUse::Unusable => self.take_over()?,
            }
        }
        let SendingSide { tx, port, of_child, batch, sent, .. } = self;
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

    /// Takes over the queue of a process that has ended, as the parent does when a program becomes a daemon. Until then
    /// both processes would write to the same ring. The lock goes to the first that asks (fcntl(2): a child does not
    /// inherit it).
    fn take_over(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let is_ours = || match &self.claim {
            Some(claim) => fcntl_lock(claim, FlockOperation::NonBlockingLockExclusive).is_ok(),
            None => false,
        };
        // After one failure there is no need to wait as long again.
        let longest = if self.is_refused { ROOM / 100 } else { ROOM };
        while !is_ours() {
            if begin.elapsed() > longest {
                self.is_refused = true;
                return Err(Error::unsupported(
                    self.port.name().to_string(),
                    "sending by a parent's handle",
                    "another process is using its queue; open the port in this process",
                ));
            }
            std::thread::yield_now();
        }
        self.process = std::process::id();
        Ok(())
    }

    /// Waits until sent frames are on the wire: closing a card discards the frames in its ring.
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
