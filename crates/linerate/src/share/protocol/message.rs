//! Requests and replies between a client and its server, each of which is one message of JSON with descriptors beside it.

use serde::{Deserialize, Serialize};

use super::layout::{Offsets, Plan, PortLayout, RingCounts};
use super::mapping::Buffers;
use super::ring::RingAt;

/// Which rings of a port are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingSelection {
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
    /// No port either: memory alone.
    Memory,
}

impl RingSelection {
    /// Whether ring `number` is one of them, if those of the card are `card` and the host's come after them.
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

    /// Whether one of them is the host's.
    pub fn has_host(self) -> bool {
        matches!(self, RingSelection::Host | RingSelection::AllAndHost | RingSelection::OneOfHost(_))
    }
}

/// What a port is to be opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// In netmap's grammar, without `netmap:`, and without suffix.
    pub name: String,
    /// Its rings, or some of them.
    pub which: RingSelection,
    /// Of those only the ones that receive.
    pub receive_only: bool,
    /// Of those only the ones that send.
    pub transmit_only: bool,
    /// A monitor of what the port receives.
    pub monitor_rx: bool,
    /// A monitor of what it sends.
    pub monitor_tx: bool,
    /// A monitor of both that gets the port's own buffers, when the port is done with them.
    pub zero_copy: bool,
    /// No other descriptor may have the port meanwhile.
    pub exclusive: bool,
    /// How many rings, of how many slots; 0: as usual.
    pub rings: RingCounts,
    /// The program can deal with a header of virtio-net's in front of each packet.
    pub takes_header: bool,
    /// Another descriptor of this user's that has opened the port in the same way may share its rings.
    pub shares: bool,
    /// The program's own flags for the descriptor. The server keeps them for processes that the descriptor is passed to.
    pub flags: u64,
}

/// Where a port's rings and buffers are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryChoice {
    /// The number of memory that is there; 1: that of the process; 0: memory of the port's own, or for an interface, that of the
    /// process.
    pub number: u16,
    /// By which the process tells its memory from other processes'; 0: by the process's own number. A program that forks
    /// remembers in the child which memory it has mapped, and so both have one.
    pub process: u64,
    /// New memory by this plan, instead.
    pub plan: Option<Plan>,
    /// Buffers that are in no ring.
    pub extra: u32,
    /// Where in their buffers packets begin.
    pub offsets: Offsets,
}

/// A port's rings in memory that comes with this as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// What it was opened as.
    pub wanted: OpenRequest,
    /// How many rings the port has.
    pub rings: RingCounts,
    /// Its address.
    pub mac: [u8; 6],
    /// The number of the memory.
    pub number: u16,
    /// How much of the memory the program sees, in bytes.
    pub len: usize,
    /// Where the buffers are.
    pub buffers: Buffers,
    /// Where the rings are.
    pub placed: PortLayout,
    /// Those of a pipe's other end.
    pub other: Option<PortLayout>,
    /// Buffers in no ring, as runs: a first buffer, and how many there are.
    pub extra: Vec<(u32, u32)>,
}

impl OpenRequest {
    /// Returns whether it monitors another port.
    pub fn is_monitor(&self) -> bool {
        self.monitor_rx || self.monitor_tx || self.zero_copy
    }

    /// The port's name, a monitor's with its suffix.
    pub fn full_name(&self) -> String {
        let flag = |is_set: bool, flag: &'static str| if is_set { flag } else { "" };
        let (z, r, t) = (flag(self.zero_copy, "z"), flag(self.monitor_rx, "r"), flag(self.monitor_tx, "t"));
        match self.is_monitor() {
            true => format!("{}/{z}{r}{t}", self.name),
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
    /// Open a port; the connection is its descriptor from then on.
    Open {
        wanted: OpenRequest,
        memory: MemoryChoice,
    },
    /// Describe the port of the descriptor that comes with this.
    Adopt,
    /// Where copies of what the descriptor that comes with this sends into a pipe go, for the pipe's monitors.
    Shadow,
    /// Describe memory; 0: that of the process, as in [`MemoryChoice`].
    Pools {
        number: u16,
        process: u64,
    },
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
        rings: RingCounts,
    },
    /// Take it off again.
    Detach {
        switch: String,
        port: String,
    },
    /// Make a port that lasts, or take it away.
    Create {
        name: String,
        rings: RingCounts,
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
    /// The port is there; with this message comes its memory.
    Opened(Box<Opened>),
    /// By transmit ring, the ring for copies; with this message comes its memory. None: there are no monitors.
    Shadow { buffers: Buffers, places: Vec<RingAt> },
    /// The memory's number, and what is in it.
    Pools { number: u16, plan: Plan },
    /// How many rings it has.
    Info { rings: RingCounts },
    /// It is done; the port has this number, or its header this length.
    Done { number: u32 },
    /// All there is.
    List(Vec<PortState>),
    /// It was refused.
    Refused { why: String, errno: i32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_the_card_come_before_those_of_the_host() {
        // Three of the card, two of the host.
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
    fn a_monitor_s_name_says_what_it_sees() {
        let name = |monitor_rx: bool, monitor_tx: bool| {
            OpenRequest { name: "a".to_string(), monitor_rx, monitor_tx, ..OpenRequest::default() }.full_name()
        };
        assert_eq!(
            [name(false, false), name(true, false), name(false, true), name(true, true)],
            ["a", "a/r", "a/t", "a/rt"]
        );
    }
}
