//! The messages between `linerate exec` and its process in the namespaces: JSON over a socket that keeps their borders,
//! with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::Address;

/// The most interfaces of a namespace, as many as descriptors are passed in one message.
pub const MOST_INTERFACES: usize = 16;
/// The longest message; the command's arguments are not part of one.
const LONGEST: usize = 64 << 10;

/// The first message: the namespaces to create.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// A user namespace is needed, as the user has no privileges.
    pub has_user_namespace: bool,
    /// The interfaces' names, and their MTU.
    pub interfaces: Vec<String>,
    pub mtu: usize,
    pub inherited: Inherited,
}

/// The state that the command inherits, and the processes before it change.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Inherited {
    /// The blocked signals.
    pub blocked: Vec<i32>,
    /// Signals, and whether each is ignored.
    pub actions: Vec<(i32, bool)>,
    pub closed_streams: Vec<i32>,
}

/// A request to the process in the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Configures the network, and starts the command.
    Start(Network),
    /// Sends a signal to the command.
    Signal(i32),
}

/// The addresses of the namespace.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Network {
    /// The addresses of each interface, with the lengths of their prefixes.
    pub addresses: Vec<Vec<(IpAddr, u8)>>,
    /// Default routes, each over the interface with this number.
    pub gateways: Vec<(usize, IpAddr)>,
    /// Name servers, as resolv.conf(5) has them: link-local addresses with their interface.
    pub name_servers: Vec<String>,
    /// The user and the groups of the command, if it has others.
    pub user: Option<UserIds>,
}

/// A user of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserIds {
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
}

/// A reply from the process in the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The namespaces and the interfaces exist; with the interfaces' descriptors.
    Ready,
    /// A step has failed, with an errno(3), or 0, and a message.
    Failed(Step, i32, String),
    /// A step that the command can do without has failed.
    Without(Step, i32),
    /// The command does not start, with the errno(3) of execve(2).
    NotStarted(i32),
    /// The command was stopped by a signal.
    Stopped,
    /// The command has ended, with this status (waitpid(2)); what it started has ended, too.
    Ended(i32),
    /// After the command's end: connections with unsent data are still open, or were given up.
    Unsent(usize),
}

/// A step on the way to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    UserNamespace,
    Namespaces,
    Tap,
    Address,
    Route,
    NameServers,
    Processes,
    Interfaces,
    Privileges,
}

/// One end of the socket.
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends.
    pub fn pair() -> io::Result<[Channel; 2]> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok([Channel(one), Channel(other)])
    }

    /// Returns the end that this process has inherited.
    pub fn inherited(descriptor: OwnedFd) -> io::Result<Channel> {
        fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
        Ok(Channel(descriptor))
    }

    /// Lets the next process that is started inherit this end, and returns its number there.
    pub fn inheritable(&self) -> io::Result<RawFd> {
        fcntl_setfd(&self.0, FdFlags::empty())?;
        Ok(self.0.as_raw_fd())
    }

    /// Closes both directions: the other process receives the end.
    pub fn close(&self) {
        // It fails if the other process has ended.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Sends a message.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_INTERFACES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.0, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a message; `None` after the other process has ended.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut text = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_INTERFACES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut text)];
        let received =
            rustix::io::retry_on_intr(|| recvmsg(&self.0, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC));
        let received = match received {
            Ok(received) if received.bytes == 0 => return Ok(None),
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        Ok(Some((serde_json::from_slice(&text[..received.bytes])?, descriptors)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Network {
    /// Returns the number of the interface that leads to a gateway: the one with an address in the same network, or the
    /// first.
    pub fn interface_to(&self, gateway: IpAddr) -> usize {
        let reaches = |&(own, length): &(IpAddr, u8)| Address::new(own, length).reaches(gateway);
        self.addresses.iter().position(|addresses| addresses.iter().any(reaches)).unwrap_or(0)
    }
}
