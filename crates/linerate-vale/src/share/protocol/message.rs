//! Requests and replies between a client and its server, each of which is one message of JSON with descriptors beside
//! it.

use linerate_core::error::Error;
use serde::{Deserialize, Serialize};

use super::layout::{Offsets, Plan, PortLayout, RingCounts};
use super::mapping::Buffers;
use super::ring::RingAt;

/// Which rings of a port a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingSelection {
    /// The card's.
    #[default]
    All,
    /// The host stack's.
    Host,
    /// Both.
    AllAndHost,
    /// One pair of the card's.
    One(u16),
    /// One pair of the host stack's.
    OneOfHost(u16),
    /// None: the port is opened for its information only.
    None,
    /// No port either: memory alone.
    Memory,
}

impl RingSelection {
    /// Returns whether ring `number` is selected, where the first `card` rings are the card's and the others the host
    /// stack's.
    pub fn has(self, number: u16, card: u16) -> bool {
        match self {
            RingSelection::All => number < card,
            RingSelection::Host => number >= card,
            RingSelection::AllAndHost => true,
            RingSelection::One(one) => number < card && number == one,
            RingSelection::OneOfHost(one) => number >= card && number - card == one,
            RingSelection::None | RingSelection::Memory => false,
        }
    }

    /// Returns whether a ring of the host's stack is selected.
    pub fn has_host(self) -> bool {
        matches!(self, RingSelection::Host | RingSelection::AllAndHost | RingSelection::OneOfHost(_))
    }
}

/// A request to open a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The port's name in netmap's grammar, without `netmap:` and without suffix.
    pub name: String,
    /// Its rings, or some of them.
    pub which: RingSelection,
    /// Only the receive rings.
    pub receive_only: bool,
    /// Only the transmit rings.
    pub transmit_only: bool,
    /// A monitor of received packets.
    pub monitor_rx: bool,
    /// A monitor of sent packets.
    pub monitor_tx: bool,
    /// A monitor of both, which gets the port's own buffers when the port is done with them.
    pub zero_copy: bool,
    /// No other descriptor may open the port meanwhile.
    pub exclusive: bool,
    /// Numbers of rings and slots; 0: the default.
    pub rings: RingCounts,
    /// The client understands a virtio-net header in front of each packet.
    pub takes_header: bool,
    /// Another descriptor of the same user may share the rings, if it opens the port in the same way.
    pub shares: bool,
    /// The client is one of several, to which the port's packets are handed out. It gets the next free share.
    pub cluster: Option<ClusterRequest>,
    /// The client reads when each packet came from the pointers of received slots.
    pub timestamps: bool,
    /// The client's own flags for the descriptor. The server keeps them for processes that the descriptor is passed to.
    pub flags: u64,
}

/// How a port's packets are handed out to several clients. All of them must ask for the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRequest {
    /// The number of shares.
    pub shares: u16,
    /// The name of a [`By`](crate::netmap::By).
    pub by: String,
}

/// The memory for a port's rings and buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryChoice {
    /// The number of existing memory; 1: that of the process; 0: the port's own memory, or for an interface, that of
    /// the process.
    pub number: u16,
    /// A number that identifies the process's memory; 0: the process's own number. A program that forks keeps the
    /// number in the child, which has mapped the same memory.
    pub process: u64,
    /// Makes new memory by this plan instead.
    pub plan: Option<Plan>,
    /// Number of buffers outside all rings.
    pub extra: u32,
    /// Where packets begin in their buffers.
    pub offsets: Offsets,
}

/// A port that was opened. Its memory comes with this message, as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The request that has opened it.
    pub wanted: OpenRequest,
    /// The port's number of rings.
    pub rings: RingCounts,
    /// The port's address.
    pub mac: [u8; 6],
    /// The memory's number.
    pub number: u16,
    /// Bytes of the memory that the program maps.
    pub len: usize,
    /// Where the buffers are.
    pub buffers: Buffers,
    /// Where the rings are.
    pub placed: PortLayout,
    /// Where the rings of a pipe's other end are.
    pub other: Option<PortLayout>,
    /// The number of buffers outside all rings; the first of their chain is in the port's description.
    pub extra: u32,
}

impl OpenRequest {
    /// Returns whether it asks for a monitor of a port.
    pub fn is_monitor(&self) -> bool {
        self.monitor_rx || self.monitor_tx || self.zero_copy
    }

    /// Returns the port's name, with the suffix of a monitor.
    pub fn full_name(&self) -> String {
        let flag = |is_set: bool, flag: &'static str| if is_set { flag } else { "" };
        let (z, r, t) = (flag(self.zero_copy, "z"), flag(self.monitor_rx, "r"), flag(self.monitor_tx, "t"));
        match self.is_monitor() {
            true => format!("{}/{z}{r}{t}", self.name),
            false => self.name.clone(),
        }
    }
}

/// A port of a switch, or a persistent port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Its name, such as `vale0:a`.
    pub name: String,
    /// Its number on the switch.
    pub number: u8,
    /// Packets that it has received.
    pub rx_packets: u64,
    /// Packets that it has sent.
    pub tx_packets: u64,
    /// Packets that were dropped because it had no room for them, or because they were too long.
    pub drops: u64,
}

/// A client's request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Opens a port, whose descriptor the connection becomes.
    Open {
        wanted: OpenRequest,
        memory: MemoryChoice,
    },
    /// Describes the port of the descriptor that comes with this.
    Adopt,
    /// Asks where to put copies of packets that the descriptor beside it sends into a pipe, for the pipe's monitors.
    Shadow,
    /// Describes memory, by number and process as in [`MemoryChoice`].
    Pools {
        number: u16,
        process: u64,
    },
    /// Asks for a port's number of rings.
    Info {
        name: String,
    },
    /// Asks for the length of the virtio-net header in front of a port's packets, or sets it.
    Header {
        name: String,
        set: Option<usize>,
    },
    /// Attaches a port of this machine, and its host's stack with `host`, to a switch.
    Attach {
        switch: String,
        port: String,
        host: bool,
        rings: RingCounts,
    },
    /// Detaches it.
    Detach {
        switch: String,
        port: String,
    },
    /// Makes or removes a persistent port.
    Create {
        name: String,
        rings: RingCounts,
    },
    Destroy {
        name: String,
    },
    /// Lists all ports.
    List,
}

/// The server's reply.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The port is open; its memory comes with this message.
    Opened(Box<Opened>),
    /// The ring for copies of each transmit ring; its memory comes with this message. No places: there are no monitors.
    Shadow { buffers: Buffers, places: Vec<RingAt> },
    /// The memory's number and plan.
    Pools { number: u16, plan: Plan },
    /// The port's number of rings.
    Info { rings: RingCounts },
    /// The request was executed; the port's number, or the length of its header.
    Done { number: u32 },
    /// All ports.
    List(Vec<PortState>),
    /// The request was refused.
    Refused(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_the_card_come_before_those_of_the_host() {
        // Three rings are the card's, two the host's.
        let has = |which: RingSelection| (0..5).filter(|number| which.has(*number, 3)).collect::<Vec<_>>();
        assert_eq!(has(RingSelection::All), [0, 1, 2]);
        assert_eq!(has(RingSelection::Host), [3, 4]);
        assert_eq!(has(RingSelection::AllAndHost), [0, 1, 2, 3, 4]);
        assert_eq!([0, 2, 3].map(|n| has(RingSelection::One(n))), [vec![0], vec![2], vec![]]);
        assert_eq!([0, 1, 2].map(|n| has(RingSelection::OneOfHost(n))), [vec![3], vec![4], vec![]]);
        assert!(has(RingSelection::None).is_empty());
        let all = [
            RingSelection::All,
            RingSelection::Host,
            RingSelection::AllAndHost,
            RingSelection::One(0),
            RingSelection::OneOfHost(0),
            RingSelection::None,
        ];
        assert_eq!(all.map(RingSelection::has_host), [false, true, true, false, true, false]);
    }

    #[test]
    fn a_monitor_s_name_has_its_directions() {
        let name = |monitor_rx: bool, monitor_tx: bool| {
            OpenRequest { name: "a".to_string(), monitor_rx, monitor_tx, ..OpenRequest::default() }.full_name()
        };
        assert_eq!(
            [name(false, false), name(true, false), name(false, true), name(true, true)],
            ["a", "a/r", "a/t", "a/rt"]
        );
    }
}
