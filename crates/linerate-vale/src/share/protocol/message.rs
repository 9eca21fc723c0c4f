//! Requests and replies between a client and its server. Each is one JSON message with optional file descriptors.

use linerate_core::error::Error;
use serde::{Deserialize, Serialize};

use super::layout::{Offsets, Plan, PortLayout, RingCounts};
use super::mapping::Buffers;
use super::ring::RingAt;

/// Selects which rings of a port a client opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingSelection {
    /// The card's rings.
    #[default]
    All,
    /// The host stack's rings.
    Host,
    /// The rings of both.
    AllAndHost,
    /// One pair of the card's rings.
    One(u16),
    /// One pair of the host stack's rings.
    OneOfHost(u16),
    /// No rings: the port is opened only to get its information.
    None,
    /// No rings and no port: only memory.
    Memory,
}

impl RingSelection {
    /// Returns whether ring `number` is selected. The first `card` rings are the card's, the other rings the host
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
    /// The port's name in netmap's grammar, without `netmap:` and suffix.
    pub name: String,
    /// Which of its rings to open.
    #[serde(rename = "which")]
    pub selection: RingSelection,
    /// Open only the receive rings.
    pub receive_only: bool,
    /// Open only the transmit rings.
    pub transmit_only: bool,
    /// Open a monitor of received packets.
    pub monitor_rx: bool,
    /// Open a monitor of sent packets.
    pub monitor_tx: bool,
    /// Open a zero-copy monitor, which gets the port's own buffers once the port is done with them.
    pub zero_copy: bool,
    /// No other descriptor may open the port at the same time.
    pub exclusive: bool,
    /// The number of rings and slots; 0: the default.
    pub rings: RingCounts,
    /// The client understands a virtio-net header in front of each packet.
    pub takes_header: bool,
    /// Other descriptors of the same user may share the rings if they open the port in the same way.
    pub shares: bool,
    /// The client is one of several among which the port's packets are distributed. The client gets the next free
    /// share.
    pub cluster: Option<ClusterRequest>,
    /// The client reads arrival times from the pointers of received slots.
    pub timestamps: bool,
    /// The client's own flags for the descriptor. The server stores them for processes that receive the descriptor.
    pub flags: u64,
}

/// How a port's packets are distributed among several clients. All clients must request the same distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRequest {
    /// The number of shares.
    pub shares: u16,
    /// The name of a [`Distribution`](crate::netmap::Distribution).
    pub by: String,
}

/// The memory for a port's rings and buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryChoice {
    /// The number of existing memory; 1: the process's memory; 0: the port's own memory, or for an interface, the
    /// process's.
    pub number: u16,
    /// A number that identifies the process's memory; 0: the process ID. A child created by fork(2) keeps its parent's
    /// number, because it maps the same memory.
    pub process: u64,
    /// Create new memory from this plan instead.
    pub plan: Option<Plan>,
    /// The number of buffers outside all rings.
    pub extra: u32,
    /// Where packets start in their buffers.
    pub offsets: Offsets,
}

/// An opened port. The message also carries a descriptor of the port's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The request that opened the port.
    #[serde(rename = "wanted")]
    pub request: OpenRequest,
    /// The port's number of rings.
    pub rings: RingCounts,
    /// The port's address.
    pub mac: [u8; 6],
    /// The memory's number.
    pub number: u16,
    /// The length in bytes of the memory that the program maps.
    pub len: usize,
    /// Where the buffers are.
    pub buffers: Buffers,
    /// Where the rings are.
    #[serde(rename = "placed")]
    pub layout: PortLayout,
    /// Where the rings of a pipe's other end are.
    pub other: Option<PortLayout>,
    /// The number of buffers outside all rings. The port's description holds the first of their list.
    pub extra: u32,
}

impl OpenRequest {
    /// Returns whether this requests a monitor of a port.
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
    /// The port's name, such as `vale0:a`.
    pub name: String,
    /// The port's number on the switch.
    pub number: u8,
    /// Packets that the port received.
    pub rx_packets: u64,
    /// Packets that the port sent.
    pub tx_packets: u64,
    /// Packets dropped because they did not fit, or because they were too long.
    pub drops: u64,
}

/// A client's request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Opens a port. The connection becomes the port's descriptor.
    Open {
        wanted: OpenRequest,
        memory: MemoryChoice,
    },
    /// Describes the port of the descriptor that accompanies this request.
    Adopt,
    /// Asks where to put copies, for a pipe's monitors, of packets that the accompanying descriptor sends into the
    /// pipe.
    Shadow,
    /// Describes memory, by number and process as in [`MemoryChoice`].
    Pools {
        number: u16,
        process: u64,
    },
    /// Asks for the number of a port's rings.
    Info {
        name: String,
    },
    /// Gets or sets the length of the virtio-net header in front of a port's packets.
    Header {
        name: String,
        set: Option<usize>,
    },
    /// Attaches a port of this machine to a switch; with `host`, also its host stack.
    Attach {
        switch: String,
        port: String,
        host: bool,
        rings: RingCounts,
    },
    /// Detaches an attached port.
    Detach {
        switch: String,
        port: String,
    },
    /// Creates or removes a persistent port.
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
    /// The port is open. The message also carries its memory.
    Opened(Box<Opened>),
    /// The ring for the copies of each transmit ring. The message also carries its memory. Empty `places`: there are no
    /// monitors.
    Shadow { buffers: Buffers, places: Vec<RingAt> },
    /// The memory's number and plan.
    Pools { number: u16, plan: Plan },
    /// The number of the port's rings.
    Info { rings: RingCounts },
    /// The request succeeded. Returns the port's number, or the length of its header.
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
        // Three rings belong to the card, two to the host.
        let has = |selection: RingSelection| (0..5).filter(|number| selection.has(*number, 3)).collect::<Vec<_>>();
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
