//! Errors: each says what and why, and its hint the command that mends it.

use std::time::Duration;

use crate::memory::PageSize;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that this library reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A port's name that cannot be understood.
    #[error("cannot understand the port name '{name}': {why}")]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        why: String,
    },

    /// A kind of port that this version does not have.
    #[error("'{name}' names a {kind}: not built yet in this version")]
    NotBuilt {
        /// The name as given.
        name: String,
        /// What it would be.
        kind: &'static str,
    },

    /// A packet that has no room for more bytes in front.
    #[error("no room for {asked} bytes in front of the packet: its headroom has {room}")]
    NoHeadroom {
        /// Bytes to be added.
        asked: usize,
        /// Bytes of headroom.
        room: usize,
    },

    /// A packet that has no room for more bytes at its end.
    #[error("no room for {asked} bytes behind the packet: its last buffer has {room}")]
    NoTailroom {
        /// Bytes to be added.
        asked: usize,
        /// Free bytes of the last buffer.
        room: usize,
    },

    /// A packet of which fewer bytes can be removed.
    #[error("cannot remove {asked} bytes of the packet: its slot can lose at most {most}")]
    TooShort {
        /// Bytes to be removed.
        asked: usize,
        /// The most that can be removed.
        most: usize,
    },

    /// A packet that its sender has left to be cut into segments.
    #[error("the packet is to be cut into segments first")]
    Unfinished,

    /// A port that is open already, and that only one owner can have.
    #[error("port '{name}' is open already")]
    PortInUse {
        /// The port's name.
        name: String,
    },

    /// An option of a port's name that cannot be.
    #[error("port '{name}': option {option}={value}: {why}")]
    BadOption {
        /// The port's name.
        name: String,
        /// The option's name.
        option: String,
        /// Its value as given.
        value: String,
        /// What is wrong, and what is allowed.
        why: String,
    },

    /// A filter that cannot be understood.
    #[error("cannot understand the filter '{text}': {why}")]
    BadFilter {
        /// As given.
        text: String,
        /// What is wrong with it.
        why: String,
    },

    /// An interface that is not there.
    #[error("there is no interface '{name}'; there are {known}")]
    NoInterface {
        /// The name as given.
        name: String,
        /// Those that are there.
        known: String,
    },

    /// An interface that was there.
    #[error("interface {name} is gone: it was deleted, renamed or moved to another network namespace")]
    InterfaceGone {
        /// Its name.
        name: String,
    },

    /// An interface that cannot be used as it is.
    #[error("{name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// What stands in the way.
        why: String,
        /// The command that mends it, or what else to do.
        mend: String,
    },

    /// A ring size that the card cannot have.
    #[error("a ring of {size} descriptors is not possible: it must be a power of two from 64 to 4096")]
    RingSize {
        /// As asked.
        size: usize,
    },

    /// More queues than the card has.
    #[error("{queues} {direction} queues are not possible: port '{port}' has at most {most}")]
    TooManyQueues {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// As asked.
        queues: u16,
        /// What is possible.
        most: u16,
    },

    /// A queue that the port was not opened with.
    #[error("port '{port}' has no {direction} queue {queue}: it was opened with {queues}")]
    NoSuchQueue {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// As asked.
        queue: u16,
        /// How many there are.
        queues: u16,
    },

    /// A queue that was given out already.
    #[error("{direction} queue {queue} of port '{port}' is taken already: a queue has one owner at a time")]
    QueueTaken {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// As asked.
        queue: u16,
    },

    /// Something that needs all queues of the port to be given back first.
    #[error("port '{port}': {queues} of its queues are still in use")]
    QueuesInUse {
        /// The port.
        port: String,
        /// How many are out.
        queues: usize,
    },

    /// An indirection table or key that the card cannot have.
    #[error("port '{port}': receive-side scaling: {why}")]
    Rss {
        /// The port.
        port: String,
        /// What is wrong.
        why: String,
    },

    /// A buffer too small for what the card writes at least.
    #[error("buffers of {buffer_size} bytes are too small for frames of {frame} bytes on port '{port}': {why}")]
    BufferTooSmall {
        /// The port.
        port: String,
        /// Of the region.
        buffer_size: usize,
        /// The longest frame, without CRC.
        frame: usize,
        /// Why, and what to choose.
        why: &'static str,
    },

    /// A frame length that the card cannot be set to.
    #[error("port '{port}': frames of {frame} bytes are not possible: 60 to {most} without CRC")]
    FrameLength {
        /// The port.
        port: String,
        /// As asked.
        frame: usize,
        /// What is possible.
        most: usize,
    },

    /// A pool that cannot feed its queues.
    #[error("the pool's {buffers} buffers cannot feed all queues: they hold {needed} at least")]
    PoolTooSmall {
        /// What it has.
        buffers: usize,
        /// What is needed.
        needed: usize,
    },

    /// A pool whose buffers are elsewhere.
    #[error("the pool is exhausted: {needed} buffers are needed for the queue's ring, {buffers} are free")]
    PoolExhausted {
        /// Free now.
        buffers: usize,
        /// What is needed.
        needed: usize,
    },

    /// Sizes of a region that cannot be.
    #[error("a region with {what}={value} is not possible: it must be {allowed}")]
    RegionOptions {
        /// The field.
        what: &'static str,
        /// As asked.
        value: usize,
        /// What is possible.
        allowed: &'static str,
    },

    /// Not enough hugepages.
    #[error("{needed} {pages} are needed, {free} are free")]
    NoHugepages {
        /// Their size.
        pages: PageSize,
        /// How many.
        needed: usize,
        /// How many there are.
        free: usize,
    },

    /// A NUMA node that is not there.
    #[error("this machine has no NUMA node {node}: {}", if nodes.len() == 1 { format!("it has one node only, {}", nodes[0]) } else { format!("its nodes are {nodes:?}") })]
    NumaNode {
        /// As asked.
        node: u32,
        /// Those that are online.
        nodes: Vec<u32>,
    },

    /// A port cannot be monitored, because it is not open here.
    #[error("port '{port}' is not open in this process, so that it cannot be monitored")]
    NotOpen {
        /// The port.
        port: String,
    },

    /// Two slots whose buffers cannot change places.
    #[error("the buffers are of different regions: what is in one must be copied")]
    OtherRegion,

    /// A switch that has no number left for a port.
    #[error("switch '{switch}' has {most} ports, which is all that it can have")]
    SwitchFull {
        /// The switch.
        switch: String,
        /// How many ports it can have.
        most: usize,
    },

    /// A kernel, or an interface, without AF_XDP.
    #[error("interface {name}: {why}")]
    NoXdp {
        /// The interface.
        name: String,
        /// What is missing.
        why: String,
    },

    /// A card of this machine that cannot be had, or not like this.
    #[error("{card}: {why}")]
    Card {
        /// Its address.
        card: String,
        /// What stands in the way.
        why: String,
        /// The command that mends it, or what else to do.
        mend: String,
    },

    /// Ordinary pages for a card that uses the machine's own addresses.
    #[error(
        "{card}: without an IOMMU the card needs memory that the kernel does not move, and these are ordinary pages"
    )]
    MovableMemory {
        /// The card's address.
        card: String,
        /// How many hugepages would do, at least.
        needed: usize,
    },

    /// Memory that the kernel does not keep in place for this user.
    #[error(
        "{needed} KiB must be kept in memory for the cards, and the limit of user {user} is {limit} KiB (ulimit -l)"
    )]
    MemoryLock {
        /// In KiB.
        limit: u64,
        /// In KiB.
        needed: u64,
        /// The user's number.
        user: u32,
    },

    /// A card that did not do in time what the datasheet promises.
    #[error("port '{port}': the card did not answer: {register} (datasheet section {section}) within {waited:?}")]
    Timeout {
        /// The port.
        port: String,
        /// What was waited for.
        register: String,
        /// Where the datasheet describes it.
        section: &'static str,
        /// For how long.
        waited: Duration,
    },

    /// A card whose registers read all ones: unplugged, powered off, or hung.
    #[error("port '{port}': the card is gone: register {register} reads all ones")]
    CardGone {
        /// The port.
        port: String,
        /// The register that told.
        register: &'static str,
    },

    /// A card that the system wants back.
    #[error("port '{port}': the card is being unplugged: the system wants it back")]
    CardLeaving {
        /// The port.
        port: String,
    },

    /// An access of the card that the IOMMU stopped: a wrong address in a descriptor, or in the card.
    #[error("port '{port}': the IOMMU stopped the card from {} address {address:#x}, which nothing is mapped at; {queue}", if *write { "writing to" } else { "reading from" })]
    DmaFault {
        /// The port.
        port: String,
        /// The address, as the card used it.
        address: u64,
        /// The card wanted to write.
        write: bool,
        /// Whose descriptors name it.
        queue: String,
    },

    /// A device that asks to be reset, as VirtIO devices do after an error of their own.
    #[error("port '{port}': the device has met an error and wants a reset")]
    NeedsReset {
        /// The port.
        port: String,
    },

    /// A device that does not do what its specification promises, or tells what cannot be.
    #[error("the device breaks its specification: {why}")]
    BadDevice {
        /// What it does.
        why: &'static str,
    },

    /// Something that this port cannot do.
    #[error("port '{port}' has no {what}: {why}")]
    Unsupported {
        /// The port.
        port: String,
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },

    /// Another process has sent something invalid.
    #[error("the process at the other end violates the protocol: {why}")]
    BadPeer {
        /// The violation.
        why: &'static str,
    },

    /// A program has set a ring's head or cur outside its slots; both are set back.
    #[error("head or cur of a ring is not between the last head and tail: both were set back (netmap(4))")]
    BadRing,

    /// The memory for other processes' ports has no room.
    #[error("the memory for ports has no {what}")]
    PortMemoryFull {
        /// What is missing.
        what: &'static str,
    },

    /// No server serves ports of this name.
    #[error("no server serves '{name}' in {}", folder.display())]
    NoServer {
        /// The name.
        name: String,
        /// The folder of the sockets.
        folder: std::path::PathBuf,
    },

    /// A request for a port that is not served in this way.
    #[error("'{name}' is not served: {why}")]
    NotServed {
        /// Its name.
        name: String,
        /// Why not.
        why: &'static str,
    },

    /// The server of a port has refused a request.
    #[error("{}", split(why).0)]
    Refused {
        /// Its reply; the hint is in the second line.
        why: String,
        /// The errno(3).
        errno: i32,
    },

    /// A device cannot be served at a socket.
    #[error("{}: a device cannot be served there: {why}", path.display())]
    Serve {
        /// The socket.
        path: std::path::PathBuf,
        /// What stands in the way.
        why: String,
        /// What mends it.
        mend: String,
    },

    /// A TAP interface, capture file or another thing at the model's outside that cannot be had.
    #[error("wire '{wire}': {why}")]
    Wire {
        /// As given.
        wire: String,
        /// What is wrong, and what mends it.
        why: String,
    },

    /// A system call that failed.
    #[error("{call} failed: {source}")]
    System {
        /// Its name.
        call: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::System { call, source: source.into() }
    }

    /// Returns the command or the step that mends it, if one is known. The command `linerate` prints it behind the error.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::BadName { .. } => {
                "try: sim:0 (an 82599 model inside this process), or `linerate ports` for what is here".to_string()
            }
            Error::NotBuilt { .. } => "try: sim:0, an 82599 model inside this process".to_string(),
            Error::Unfinished => "open the port without offloads".to_string(),
            Error::PortInUse { .. } => "close it first, or choose another name".to_string(),
            Error::BadFilter { .. } => "try: udp:4321, or tcp:80+from:10.0.0.0/8,icmp".to_string(),
            Error::NoInterface { .. } => "see: ip link".to_string(),
            Error::InterfaceGone { .. } => "open the port again when it is back".to_string(),
            Error::Interface { mend, .. } => mend.clone(),
            Error::RingSize { .. } => "512 descriptors are usual".to_string(),
            Error::NoSuchQueue { port, queue, .. } => {
                format!("open it with more, for example '{port}?queues={}'", u32::from(*queue) + 1)
            }
            Error::QueueTaken { .. } => "drop the first one, or ask for another queue".to_string(),
            Error::QueuesInUse { .. } => "drop them first, then reset the port".to_string(),
            Error::PoolTooSmall { .. } => "give the region more buffers, or the queues smaller rings".to_string(),
            Error::PoolExhausted { .. } => {
                "clear or drop the batches that hold them, or give the region more".to_string()
            }
            Error::NoHugepages { needed, pages, .. } => format!(
                "try: echo {needed} | sudo tee /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
                pages.bytes() / 1024
            ),
            Error::NotOpen { .. } => "open it first".to_string(),
            Error::OtherRegion => "open both ports in one region, or copy".to_string(),
            Error::SwitchFull { .. } => "close some, or use another switch".to_string(),
            Error::NoXdp { name, .. } => {
                format!("try: packet:{name}, which needs nothing of the driver, and copies each packet")
            }
            Error::Card { mend, .. } => format!("try: {mend}"),
            Error::MovableMemory { needed, .. } => format!("try: echo {needed} | sudo tee /proc/sys/vm/nr_hugepages"),
            Error::MemoryLock { needed, .. } => format!(
                "try: echo 'user-name - memlock {needed}' | sudo tee -a /etc/security/limits.conf, then log in again"
            ),
            Error::Timeout { .. } => "reset the port; if that fails, too, the card needs a power cycle".to_string(),
            Error::CardGone { .. } => {
                "it was unplugged, lost its power, or its bus was reset; open it again when it is back".to_string()
            }
            Error::CardLeaving { .. } => "the port is closed; open it again when it is back".to_string(),
            Error::DmaFault { .. } => {
                "this is a bug of a driver or a fault of the card; no memory was touched".to_string()
            }
            Error::NeedsReset { .. } => "drop its queues and reset the port, or open it again".to_string(),
            Error::PortMemoryFull { .. } => "ask for fewer or shorter rings, or close other ports".to_string(),
            Error::NoServer { .. } => "try: linerate serve".to_string(),
            Error::NotServed { .. } => "try: linerate switch list".to_string(),
            Error::Serve { mend, .. } => mend.clone(),
            Error::Refused { why, .. } => return split(why).1.map(str::to_string),
            _ => return None,
        })
    }

    /// Returns the error and its [hint](Error::hint), in a line each.
    pub fn with_hint(&self) -> String {
        let hint = self.hint().map(|hint| format!("\n  {hint}"));
        format!("{self}{}", hint.unwrap_or_default())
    }
}

/// Splits the answer of a server into its error and its hint.
fn split(answer: &str) -> (&str, Option<&str>) {
    answer.split_once("\n  ").map_or((answer, None), |(error, hint)| (error, Some(hint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_line_and_its_hint_another() {
        let refused = |why: &str| Error::Refused { why: why.to_string(), errno: libc::EPERM };
        let queue = Error::NoSuchQueue { port: "sim:0".to_string(), direction: "receive", queue: 3, queues: 1 };
        for (error, line, hint) in [
            (queue, "port 'sim:0' has no receive queue 3: it was opened with 1", Some("'sim:0?queues=4'")),
            (refused("no\n  try: sudo"), "no", Some("try: sudo")),
            (refused("no"), "no", None),
        ] {
            assert_eq!(error.to_string(), line);
            let found = error.hint();
            assert!(
                found
                    .as_deref()
                    .zip(hint)
                    .map_or(found.is_none() && hint.is_none(), |(found, hint)| found.ends_with(hint))
            );
            assert_eq!(error.with_hint().lines().count(), 1 + usize::from(hint.is_some()));
        }
    }
}
