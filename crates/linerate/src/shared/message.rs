//! What goes over the socket between a program and who serves its ports: a request and an answer, each one message of
//! JSON (`SOCK_SEQPACKET`, unix(7)), with memory and bells as descriptors beside it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::area::{Placed, Rings};
use super::memory::Buffers;
use super::ring::Place;

/// Which rings of a port are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Which {
    /// Those of the card.
    #[default]
    All,
    /// Those of the host's stack.
    Host,
    /// Both.
    AllAndHost,
    /// One pair of the card.
    One(u16),
    /// One pair of the host's stack.
    OneOfHost(u16),
    /// None: a port to ask about.
    None,
}

impl Which {
    /// Whether ring `number` is one of them, if those of the card are `card` and the host's come after them.
    pub fn has(self, number: u16, card: u16) -> bool {
        match self {
            Which::All => number < card,
            Which::Host => number >= card,
            Which::AllAndHost => true,
            Which::One(one) => number < card && number == one,
            Which::OneOfHost(one) => number >= card && number - card == one,
            Which::None => false,
        }
    }

    /// Whether one of them is the host's.
    pub fn has_host(self) -> bool {
        matches!(self, Which::Host | Which::AllAndHost | Which::OneOfHost(_))
    }
}

/// What a port is to be opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// In netmap's grammar, without `netmap:`, and without suffix.
    pub name: String,
    /// Its rings, or some of them.
    pub which: Which,
    /// Of those only the ones that receive.
    pub receive_only: bool,
    /// Of those only the ones that send.
    pub transmit_only: bool,
    /// A monitor of what the port receives.
    pub monitor_rx: bool,
    /// A monitor of what it sends.
    pub monitor_tx: bool,
    /// Nobody else may have the port meanwhile.
    pub exclusive: bool,
    /// How many rings, of how many slots; 0: as usual.
    pub rings: Rings,
    /// The program can deal with a header of virtio-net's in front of each packet.
    pub takes_header: bool,
}

impl Wanted {
    /// The port's name, a monitor's with its suffix.
    pub fn full_name(&self) -> String {
        let (r, t) = (if self.monitor_rx { "r" } else { "" }, if self.monitor_tx { "t" } else { "" });
        match self.monitor_rx || self.monitor_tx {
            true => format!("{}/{r}{t}", self.name),
            false => self.name.clone(),
        }
    }
}

/// A port of a switch, or a port that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// As `vale0:a`.
    pub name: String,
    /// Its number on the switch.
    pub number: u8,
    /// Packets that came to it.
    pub rx_packets: u64,
    /// Packets that it has sent.
    pub tx_packets: u64,
    /// Packets that it had no room for, or that were too long for it.
    pub drops: u64,
}

/// What a program asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Open a port.
    Open(Wanted),
    /// Here are its rings, and with this message the memory.
    Start {
        buffers: Buffers,
        placed: Placed,
    },
    /// Here are both ends of a pipe, and with this message the memory.
    StartPipe {
        buffers: Buffers,
        master: Placed,
        slave: Placed,
    },
    /// Where copies of what it sends into a pipe go, for the pipe's monitors.
    Shadow,
    /// The port is not needed any more.
    Close,
    /// How many rings a port has.
    Info {
        name: String,
    },
    /// How long the header of virtio-net's is in front of a port's packets, or shall be.
    Header {
        name: String,
        set: Option<usize>,
    },
    /// Attach a port of this machine, and perhaps its host's stack, to a switch.
    Attach {
        switch: String,
        port: String,
        host: bool,
        rings: Rings,
    },
    /// Take it off again.
    Detach {
        switch: String,
        port: String,
    },
    /// Make a port that lasts, or take it away.
    Create {
        name: String,
        rings: Rings,
    },
    Destroy {
        name: String,
    },
    /// What there is.
    List,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The port is there, with so many rings; where it is a pipe's first end, both ends are to be made.
    Opened { rings: Rings, first_of_pipe: bool, mac: [u8; 6] },
    /// It begins; with this message comes a bell.
    Started,
    /// The pipe was there already: with this message come its memory and a bell.
    Joined { rings: Rings, buffers: Buffers, mine: Placed, other: Placed },
    /// By transmit ring, the ring for copies; with this message come its memory and a bell. None: nobody wants them.
    Shadow { buffers: Buffers, places: Vec<Place> },
    /// The port is closed; its memory is used on by a pipe's other end, or by nobody.
    Closed { still_used: bool },
    /// How many rings it has.
    Info { rings: Rings },
    /// It is done; the port has this number, or its header this length.
    Done { number: u32 },
    /// All there is.
    List(Vec<PortState>),
    /// It was refused.
    Refused { why: String, errno: i32 },
}

/// How long the other side may take: to answer, to accept, to make room for a message.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The longest message.
const LONGEST: usize = 128 << 10;
/// The most descriptors that come with one.
const DESCRIPTORS: usize = 4;

/// One end of a connection.
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Connection {
        Connection { socket }
    }

    /// Both ends, within this process.
    ///
    /// # Errors
    /// What socketpair(2) answers.
    pub fn pair() -> io::Result<[Connection; 2]> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok([Connection { socket: a }, Connection { socket: b }])
    }

    /// # Errors
    /// What sendmsg(2) answers.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// # Errors
    /// `UnexpectedEof` if the other end is gone, `InvalidData` if what it says is nonsense, and what recvmsg(2) answers.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let part = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.socket, part, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((serde_json::from_slice(&bytes[..received.bytes])?, descriptors))
    }
}

impl Connection {
    /// Sends a request and waits for its answer, at most [`PATIENCE`] for each.
    ///
    /// # Errors
    /// `TimedOut`, and what [`send`](Connection::send) and [`receive`](Connection::receive) answer.
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        self.wait(PollFlags::OUT)?;
        let sent = self.send(request, descriptors);
        // A server that refuses a connection may have said why before it was asked.
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
            sent?;
        }
        self.wait(PollFlags::IN)?;
        match self.receive() {
            // It has closed the connection without reading the request; what it has said before is still here.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.receive(),
            answer => answer,
        }
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(self, events)], Some(&timeout)) {
                Ok(0) => {
                    let why = format!("it has not answered for {} s: is it stopped?", PATIENCE.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection for both sides.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Whose process is at the other end.
    ///
    /// # Errors
    /// What getsockopt(2) answers.
    pub fn user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.socket)?.uid.as_raw())
    }

    /// True once the other end is gone.
    pub fn has_ended(&self) -> bool {
        is_there(self, PollFlags::RDHUP)
    }

    /// True once the other end is gone, or has something to say.
    pub fn has_news(&self) -> bool {
        is_there(self, PollFlags::IN)
    }
}

/// Tells whether one of the events has come, without waiting for it.
fn is_there(socket: &impl AsFd, events: PollFlags) -> bool {
    let mut event = [PollFd::new(socket, events)];
    poll(&mut event, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What wakes the other side, and is woken by it. It is a pair of sockets rather than of eventfds: on those, who shares
/// one can make the other's write wait for ever.
pub struct Bell {
    socket: OwnedFd,
}

impl Bell {
    /// Both ends.
    ///
    /// # Errors
    /// What socketpair(2) answers.
    pub fn pair() -> io::Result<[Bell; 2]> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok([Bell { socket: a }, Bell { socket: b }])
    }

    pub fn new(socket: OwnedFd) -> Bell {
        Bell { socket }
    }

    /// Wakes the other side. If it has not heard the last times yet, it will.
    pub fn ring(&self) {
        let _ = rustix::net::send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Was heard.
    pub fn silence(&self) {
        // Who rings without end is not waited for.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut [0; 8][..], RecvFlags::DONTWAIT) {
                Ok((_, count)) if count > 0 => {}
                _ => break,
            }
        }
    }

    /// Tells whether the other side has rung since this was asked last.
    #[cfg(test)]
    pub fn was_rung(&self) -> bool {
        let rung = is_there(self, PollFlags::IN);
        self.silence();
        rung
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Bell {
    /// Its socket, for another process.
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_the_card_come_before_those_of_the_host() {
        // Three of the card, two of the host.
        let has = |which: Which| (0..5).filter(|number| which.has(*number, 3)).collect::<Vec<_>>();
        assert_eq!(has(Which::All), [0, 1, 2]);
        assert_eq!(has(Which::Host), [3, 4]);
        assert_eq!(has(Which::AllAndHost), [0, 1, 2, 3, 4]);
        assert_eq!([0, 2, 3].map(|n| has(Which::One(n))), [vec![0], vec![2], vec![]]);
        assert_eq!([0, 1, 2].map(|n| has(Which::OneOfHost(n))), [vec![3], vec![4], vec![]]);
        assert!(has(Which::None).is_empty());
        let all = [Which::All, Which::Host, Which::AllAndHost, Which::One(0), Which::OneOfHost(0), Which::None];
        assert_eq!(all.map(Which::has_host), [false, true, true, false, true, false]);
    }

    #[test]
    fn a_monitor_s_name_says_what_it_sees() {
        let name = |monitor_rx: bool, monitor_tx: bool| {
            Wanted { name: "a".to_string(), monitor_rx, monitor_tx, ..Wanted::default() }.full_name()
        };
        assert_eq!(
            [name(false, false), name(true, false), name(false, true), name(true, true)],
            ["a", "a/r", "a/t", "a/rt"]
        );
    }

    #[test]
    fn news_and_the_end_of_a_connection_are_seen() {
        let [ours, theirs] = Connection::pair().unwrap();
        assert!(!ours.has_news() && !ours.has_ended());
        theirs.send(&1, &[]).unwrap();
        assert!(ours.has_news() && !ours.has_ended());
        let (one, _) = ours.receive::<u32>().unwrap();
        assert_eq!(one, 1);
        assert!(!ours.has_news());
        theirs.end();
        assert!(ours.has_news() && ours.has_ended());
        assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn more_descriptors_than_a_message_takes_are_not_sent() {
        let [ours, theirs] = Connection::pair().unwrap();
        ours.send(&1, &[theirs.as_fd(); DESCRIPTORS]).unwrap();
        assert_eq!(theirs.receive::<u32>().unwrap().1.len(), DESCRIPTORS);
        let error = ours.send(&1, &[theirs.as_fd(); 2 * DESCRIPTORS]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// What a server that refuses a connection has said before it was asked is read; and nothing more is waited for.
    #[test]
    fn an_answer_that_came_before_the_end_counts() {
        let [ours, theirs] = Connection::pair().unwrap();
        theirs.send(&"no", &[]).unwrap();
        drop(theirs);
        assert_eq!(ours.ask::<String>(&1, &[]).unwrap().0, "no");
        assert!(ours.ask::<String>(&1, &[]).is_err());
        // A request that was not read makes the kernel reset the connection, before or after it looks for the answer.
        for _ in 0..100 {
            let [ours, theirs] = Connection::pair().unwrap();
            let server = std::thread::spawn(move || {
                theirs.wait(PollFlags::IN).unwrap();
                theirs.send(&"no", &[]).unwrap();
            });
            assert_eq!(ours.ask::<String>(&1, &[]).unwrap().0, "no");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_bell_that_is_rung_without_end_is_heard_and_silenced() {
        let [ours, theirs] = Bell::pair().unwrap();
        let rings = || is_there(&ours, PollFlags::IN);
        assert!(!rings());
        // It does not wait for the other side.
        (0..10_000).for_each(|_| theirs.ring());
        while rings() {
            ours.silence();
        }
        theirs.ring();
        assert!(rings());
        ours.silence();
        assert!(!rings());
        drop(ours);
        theirs.ring();
    }
}
