//! The port of a libpcap handle when this process has packet sockets or other handles on the same port: a member of
//! their link.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use linerate::memory::Pool;
use linerate::port::{Device, Drops, Info, MacAddress, Port, Receive, Statistics, Transmit};
use linerate::{Batch, Error, Result};

use super::frame::ALL;
use super::link::{Link, is_exclusive, join, open_link};
use super::member::{Member, Settings, Taken};
use super::{mover, names};

/// A port that is a member of a link.
struct Shared {
    name: String,
    pool: Arc<Pool>,
    sent: Arc<AtomicU64>,
    dropped: AtomicU64,
    // Dropped in this order: the link then notices that its member has ended.
    member: Arc<Member>,
    link: Settled,
}

/// A link whose drop waits until the link has noticed the end of its member. After the last member, the port is closed
/// then.
struct Settled(Arc<Link>);

impl Drop for Settled {
    fn drop(&mut self) {
        self.0.settle();
    }
}

struct Queue {
    pool: Arc<Pool>,
    member: Arc<Member>,
    sent: Arc<AtomicU64>,
    frame: Vec<u8>,
    max_frame: usize,
}

/// Returns a port on the link of this name; `None` if this process has no packet socket or other handle on it.
///
/// # Errors
/// Errors of [`join`] and of `pool`.
pub fn port(name: &str, pool: impl FnOnce() -> Result<Arc<Pool>>) -> Result<Option<Port>> {
    let Some(name) = names::of_handle(name) else { return Ok(None) };
    if open_link(&name).is_none() && !is_exclusive(&name.text) {
        return Ok(None);
    }
    let settings = Arc::new(Settings::new(false, ALL));
    let (link, end) = join(&name, &settings, true, mover::run)?;
    Ok(Some(port_on(&link, end, settings, pool()?)))
}

/// Returns a port on a link. `end` is the program's end of the pair of the member with these settings.
pub fn port_on(link: &Arc<Link>, end: OwnedFd, settings: Arc<Settings>, pool: Arc<Pool>) -> Port {
    let (name, sent, dropped) = (link.name.text.clone(), Arc::default(), AtomicU64::default());
    let member = Arc::new(Member::new(end, settings));
    Port::new(Shared { name, pool, link: Settled(link.clone()), member, sent, dropped })
}

impl Device for Shared {
    fn name(&self) -> &str {
        &self.name
    }
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
    fn info(&self) -> Info {
        Info { max_frame: self.link.0.properties.max_frame, ..Info::default() }
    }
    fn mac(&self) -> MacAddress {
        MacAddress(self.link.0.properties.address)
    }
    fn rx(&mut self, _: u16) -> Result<Box<dyn Receive>> {
        Ok(Box::new(self.queue()))
    }
    fn tx(&mut self, _: u16) -> Result<Box<dyn Transmit>> {
        if self.link.0.properties.can_send {
            return Ok(Box::new(self.queue()));
        }
        Err(Error::unsupported(&self.name, "transmit queue", "it only receives"))
    }
    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.member.settings.is_promiscuous.store(on, Relaxed);
        self.link.0.wake();
        Ok(())
    }
    fn statistics(&self) -> Result<Statistics> {
        // This also waits until all sent frames are on the wire.
        let (_, dropped) = self.link.0.statistics(&self.member.settings);
        let no_descriptor = self.dropped.fetch_add(dropped, Relaxed) + dropped;
        let drops = Drops { no_descriptor, ..Drops::default() };
        Ok(Statistics { tx_packets: self.sent.load(Relaxed), drops, ..Statistics::default() })
    }
}

impl Shared {
    fn queue(&self) -> Queue {
        let (pool, member, sent) = (self.pool.clone(), self.member.clone(), self.sent.clone());
        Queue { pool, member, sent, frame: Vec::new(), max_frame: self.link.0.properties.max_frame }
    }
}

impl Receive for Queue {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        self.frame.resize(self.max_frame, 0);
        while batch.len() < batch.capacity() {
            match self.member.take(&mut self.frame) {
                Taken::Frame(len) => {
                    batch.push(&self.pool, &self.frame[..len.min(self.frame.len())]);
                }
                Taken::NoFrame | Taken::End => break,
            }
        }
        batch.len() - before
    }
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.member.end().as_fd())
    }
}

impl Transmit for Queue {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        while let Some(mut taken) = batch.take() {
            self.frame.clear();
            taken.packet().append_to(&mut self.frame);
            let (fd, flags): (&OwnedFd, _) = (self.member.end(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            // SAFETY: the frame has this length.
            if unsafe { libc::send(fd.as_raw_fd(), self.frame.as_ptr().cast(), self.frame.len(), flags) } < 0 {
                taken.put_back();
                break;
            }
            self.sent.fetch_add(1, Relaxed);
        }
        before - batch.len()
    }
}
