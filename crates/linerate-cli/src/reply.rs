//! `--reply`: answers ARP requests and pings at a port while packets are sent or received.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use linerate::Batch;
use linerate::memory::Pool;
use linerate::port::{Port, TxQueue};
use linerate::traffic::Host;

/// Options of replies.
#[derive(Args)]
pub struct Reply {
    /// Answer these requests for --address: arp, ping (both for IPv6, too)
    #[arg(long, value_enum, value_delimiter = ',', requires = "address")]
    reply: Vec<Request>,
    /// The port's addresses for --reply, for example 10.0.0.9,fd00::9
    #[arg(long, value_delimiter = ',', requires = "reply", value_parser = host_address)]
    address: Vec<IpAddr>,
}

/// Parses an address that a host on a network can have (RFC 1122, section 3.2.1.3; RFC 4291).
fn host_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "it is not an IPv4 or IPv6 address".to_string())?;
    let is_broadcast = address == IpAddr::from([255; 4]);
    match address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast {
        true => Err("a host on a network cannot have this address".to_string()),
        false => Ok(address),
    }
}

/// Requests that a port answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Request {
    /// ARP requests, and IPv6's neighbour solicitations
    Arp,
    /// Echo requests
    Ping,
}

impl Reply {
    /// Returns whether requests are answered.
    pub fn is_on(&self) -> bool {
        !self.reply.is_empty()
    }

    /// Returns a queue's responder, which counts its answers in `answered`; `None` without `--reply`.
    pub fn responder(&self, port: &Port, answered: &Arc<AtomicU64>) -> Option<Responder> {
        let has = |request: Request| self.reply.contains(&request);
        self.is_on().then(|| Responder {
            host: Host::new(port.mac().0, self.address.iter().copied()),
            arp: has(Request::Arp),
            ping: has(Request::Ping),
            pool: port.pool().clone(),
            answers: Batch::new(),
            bytes: Vec::new(),
            answered: answered.clone(),
        })
    }
}

/// Answers the requests of one receive queue.
pub struct Responder {
    host: Host,
    arp: bool,
    ping: bool,
    pool: Arc<Pool>,
    answers: Batch,
    bytes: Vec<u8>,
    answered: Arc<AtomicU64>,
}

impl Responder {
    /// Answers a frame if it is a request, and returns whether it did. The answer is queued for
    /// [`send`](Responder::send). If the queue is full, the request is treated as an ordinary frame.
    pub fn answers(&mut self, frame: &[u8]) -> bool {
        // Check this first, as most frames are not requests.
        let is_request = matches!(frame.get(12..14), Some([8, 6] | [8, 0] | [0x86, 0xDD]));
        if !is_request || self.answers.len() == self.answers.capacity() {
            return false;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(frame);
        let is_answered =
            self.arp && self.host.answer_arp(&mut self.bytes) || self.ping && self.host.answer_ping(&mut self.bytes);
        is_answered && self.answers.push(&self.pool, &self.bytes)
    }

    /// Sends the queued answers; those for which the port has no room remain queued.
    pub fn send(&mut self, tx: &mut TxQueue) {
        if !self.answers.is_empty() {
            let before = self.answers.packets().count();
            tx.send(&mut self.answers);
            let sent = before - self.answers.packets().count();
            self.answered.fetch_add(sent as u64, Ordering::Relaxed);
        }
    }
}
