//! Packets that an interface of Linux dropped instead of sending them (rtnetlink(7), `RTM_GETSTATS`).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::interface::Interface;

// From linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
const NLM_F_REQUEST: u16 = 1;
const IFLA_STATS_LINK_64: u16 = 1;
/// The lengths of `struct nlmsghdr`, `struct if_stats_msg` and `struct rtattr`.
const HEADER: usize = 16;
const STATS_MESSAGE: usize = 12;
const ATTRIBUTE: usize = 4;
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
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).ok();
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
    let mut request = Vec::with_capacity(HEADER + STATS_MESSAGE);
    request.extend(((HEADER + STATS_MESSAGE) as u32).to_ne_bytes());
    request.extend(RTM_GETSTATS.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]); // number and sender, which the answer repeats
    request.extend([0; 4]); // no address family
    request.extend(interface.index().to_ne_bytes());
    request.extend((1u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
    send(socket, &request, SendFlags::empty()).ok()?;
    // The kernel has answered when `send` returns.
    let mut answer = [0; 1024];
    let (count, _) = recv(socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    tx_dropped_of(&answer[..count])
}

/// Finds the count in an answer.
fn tx_dropped_of(answer: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if word(answer, 4)? != RTM_NEWSTATS {
        return None;
    }
    let mut attributes = answer.get(HEADER + STATS_MESSAGE..)?;
    loop {
        let (len, kind) = (usize::from(word(attributes, 0)?), word(attributes, 2)?);
        let value = attributes.get(ATTRIBUTE..len)?;
        if kind == IFLA_STATS_LINK_64 {
            return value.get(8 * TX_DROPPED..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        }
        // Attributes begin at multiples of four bytes.
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_answers_have_no_count() {
        let mut answer = vec![0; HEADER + STATS_MESSAGE];
        answer[4..6].copy_from_slice(&RTM_NEWSTATS.to_ne_bytes());
        let attribute = |kind: u16, value: &[u8]| {
            let len = (ATTRIBUTE + value.len()) as u16;
            [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
        };
        let mut statistics = [0; 64];
        statistics[8 * TX_DROPPED..].copy_from_slice(&7u64.to_ne_bytes());
        answer.extend(attribute(9, &[0; 4]));
        answer.extend(attribute(IFLA_STATS_LINK_64, &statistics));
        assert_eq!(tx_dropped_of(&answer), Some(7));
        (0..answer.len()).for_each(|len| assert_eq!(tx_dropped_of(&answer[..len]), None, "{len}"));
        // An attribute without a length would never end.
        answer[HEADER + STATS_MESSAGE..][..2].fill(0);
        assert_eq!(tx_dropped_of(&answer), None);
        answer[4] ^= 1;
        assert_eq!(tx_dropped_of(&answer), None);
    }
}
