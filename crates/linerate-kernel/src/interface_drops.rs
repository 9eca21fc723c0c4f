//! Packets that an interface of Linux dropped instead of sending them (rtnetlink(7), `RTM_GETSTATS`).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::interface::Interface;
use super::netlink;

// From linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
const IFLA_STATS_LINK_64: u16 = 1;
/// The length of `struct if_stats_msg`.
const STATS_MESSAGE: usize = 12;
/// The number of the field `tx_dropped` in `struct rtnl_link_stats64`.
const TX_DROPPED: usize = 7;

/// The packets that an interface has dropped on transmit since it was opened.
///
/// The socket belongs to the network namespace in which the interface was opened, also if the process has joined
/// another one since, and `/sys` shows that one's interfaces.
pub struct TransmitDrops {
    socket: Option<OwnedFd>,
    at_start: u64,
    /// The last known count, for an interface that was removed or moved to another namespace.
    last: AtomicU64,
}

impl TransmitDrops {
    /// Starts at the present count. Without a socket, the count stays 0.
    pub fn new(interface: &Interface) -> TransmitDrops {
        let socket = netlink::socket(None);
        let at_start = socket.as_ref().and_then(|socket| tx_dropped(socket, interface)).unwrap_or(0);
        TransmitDrops { socket, at_start, last: AtomicU64::new(at_start) }
    }

    /// Counts nothing: the interface is in another namespace.
    pub fn unknown() -> TransmitDrops {
        TransmitDrops { socket: None, at_start: 0, last: AtomicU64::new(0) }
    }

    /// Returns the count since the interface was opened.
    pub fn count(&self, interface: &Interface) -> u64 {
        let now = self.socket.as_ref().filter(|_| interface.check().is_ok());
        if let Some(now) = now.and_then(|socket| tx_dropped(socket, interface)) {
            self.last.store(now, Ordering::Relaxed);
        }
        self.last.load(Ordering::Relaxed).saturating_sub(self.at_start)
    }
}

/// Asks the kernel for the count.
fn tx_dropped(socket: &OwnedFd, interface: &Interface) -> Option<u64> {
    let mut message = Vec::with_capacity(STATS_MESSAGE);
    message.extend([0; 4]); // no address family
    message.extend(interface.index().to_ne_bytes());
    message.extend((1u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
    let answer = netlink::ask(socket, RTM_GETSTATS, &message)?;
    let statistics = netlink::value_in(&answer, RTM_NEWSTATS, netlink::HEADER + STATS_MESSAGE, IFLA_STATS_LINK_64)?;
    statistics.get(8 * TX_DROPPED..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}
