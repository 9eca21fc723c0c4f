//! Errors: each states what failed and why; its hint is the command or step that mends it.

use std::time::Duration;

use crate::memory::PageSize;

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// All errors of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A port name that cannot be parsed.
    #[error("cannot understand the port name '{name}': {why}")]
    BadName {
        /// The name as given.
        name: String,
        /// Why it is invalid.
        why: String,
    },

    /// A kind of port that this build of the library lacks.
    #[error("'{name}' needs the cargo feature '{feature}', which this build of linerate lacks")]
    NotBuilt {
        /// The port's name.
        name: String,
        /// The feature.
        feature: &'static str,
    },

    /// A packet without room for more bytes in front.
    #[error("no room for {asked} bytes in front of the packet: its headroom has {room}")]
    NoHeadroom {
        /// Bytes to add.
        asked: usize,
        /// Free bytes of headroom.
        room: usize,
    },

    /// A packet without room for more bytes at its end.
    #[error("no room for {asked} bytes behind the packet: its last buffer has {room}")]
    NoTailroom {
        /// Bytes to add.
        asked: usize,
        /// Free bytes of the last buffer.
        room: usize,
    },

    /// A packet from which fewer bytes can be removed.
    #[error("cannot remove {asked} bytes of the packet: its slot can lose at most {most}")]
    TooShort {
        /// Bytes to remove.
        asked: usize,
        /// The most bytes that can be removed.
        most: usize,
    },

    /// A packet whose segmentation is left to the hardware.
    #[error("the packet must be segmented first")]
    Unfinished,

    /// A port that is already open, and that has only one owner.
    #[error("port '{name}' is open already")]
    PortInUse {
        /// The port's name.
        name: String,
    },

    /// An invalid option of a port name.
    #[error("port '{name}': option {option}={value}: {why}")]
    BadOption {
        /// The port's name.
        name: String,
        /// The option's name.
        option: String,
        /// Its value as given.
        value: String,
        /// Why it is invalid, and what is allowed.
        why: String,
    },

    /// A filter that cannot be parsed.
    #[error("cannot understand the filter '{text}': {why}")]
    BadFilter {
        /// The filter as given.
        text: String,
        /// Why it is invalid.
        why: String,
    },

    /// An interface that does not exist.
    #[error("there is no interface '{name}'; there are {known}")]
    NoInterface {
        /// The name as given.
        name: String,
        /// Existing interfaces.
        known: String,
    },

    /// An interface that no longer exists.
    #[error("interface {name} is gone: it was deleted, renamed or moved to another network namespace")]
    InterfaceGone {
        /// Its name.
        name: String,
    },

    /// An interface that cannot be used in its current state.
    #[error("{name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// The obstacle.
        why: String,
        /// The command or step that mends it.
        mend: String,
    },

    /// A ring size that the card does not support.
    #[error("a ring of {size} descriptors is not possible: it must be a power of two from 64 to 4096")]
    RingSize {
        /// The size requested.
        size: usize,
    },

    /// More queues than the card has.
    #[error("{queues} {direction} queues are not possible: port '{port}' has at most {most}")]
    TooManyQueues {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// The count requested.
        queues: u16,
        /// The most queues.
        most: u16,
    },

    /// A queue that the port was not opened with.
    #[error("port '{port}' has no {direction} queue {queue}: it was opened with {queues}")]
    NoSuchQueue {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// The queue requested.
        queue: u16,
        /// The count of queues.
        queues: u16,
    },

    /// A queue that already has an owner.
    #[error("{direction} queue {queue} of port '{port}' is taken already: a queue has one owner at a time")]
    QueueTaken {
        /// The port.
        port: String,
        /// "receive" or "transmit".
        direction: &'static str,
        /// The queue requested.
        queue: u16,
    },

    /// An operation for which all queues of the port must be dropped first.
    #[error("port '{port}': {queues} of its queues are still in use")]
    QueuesInUse {
        /// The port.
        port: String,
        /// The count of queues in use.
        queues: usize,
    },

    /// An RSS table or key that the card does not support.
    #[error("port '{port}': receive-side scaling: {why}")]
    Rss {
        /// The port.
        port: String,
        /// Why it is invalid.
        why: String,
    },

    /// Buffers too small for the least that the card writes.
    #[error("buffers of {buffer_size} bytes are too small for frames of {frame} bytes on port '{port}': {why}")]
    BufferTooSmall {
        /// The port.
        port: String,
        /// The region's buffer size.
        buffer_size: usize,
        /// The longest frame, in bytes without CRC.
        frame: usize,
        /// The reason, and what to choose.
        why: &'static str,
    },

    /// A frame length that the card does not support.
    #[error("port '{port}': frames of {frame} bytes are not possible: 60 to {most} without CRC")]
    FrameLength {
        /// The port.
        port: String,
        /// The length requested.
        frame: usize,
        /// The longest possible.
        most: usize,
    },

    /// A pool too small for its queues.
    #[error("the pool's {buffers} buffers are too few for all queues: at least {needed} are needed")]
    PoolTooSmall {
        /// The pool's count of buffers.
        buffers: usize,
        /// The count needed.
        needed: usize,
    },

    /// A pool whose buffers are in use.
    #[error("the pool is exhausted: {needed} buffers are needed for the queue's ring, {buffers} are free")]
    PoolExhausted {
        /// Free buffers.
        buffers: usize,
        /// The count needed.
        needed: usize,
    },

    /// An invalid size of a region.
    #[error("a region with {what}={value} is not possible: it must be {allowed}")]
    RegionOptions {
        /// The field.
        what: &'static str,
        /// The size requested.
        value: usize,
        /// The allowed values.
        allowed: &'static str,
    },

    /// Not enough hugepages.
    #[error("{needed} {pages} are needed, {free} are free")]
    NoHugepages {
        /// The page size.
        pages: PageSize,
        /// The count needed.
        needed: usize,
        /// The count free.
        free: usize,
    },

    /// A NUMA node that does not exist.
    #[error("this machine has no NUMA node {node}: {}", if nodes.len() == 1 { format!("it has one node only, {}", nodes[0]) } else { format!("its nodes are {nodes:?}") })]
    NumaNode {
        /// The node requested.
        node: u32,
        /// Online nodes.
        nodes: Vec<u32>,
    },

    /// A port to be monitored that is not open.
    #[error("port '{port}' is not open in this process, so it cannot be monitored")]
    NotOpen {
        /// The port.
        port: String,
    },

    /// Two slots whose buffers cannot be swapped.
    #[error("the buffers are of different regions: their contents must be copied")]
    OtherRegion,

    /// A switch without a free port number.
    #[error("switch '{switch}' has {most} ports, the most possible")]
    SwitchFull {
        /// The switch.
        switch: String,
        /// The most ports of a switch.
        most: usize,
    },

    /// A kernel, or an interface, without AF_XDP.
    #[error("interface {name}: {why}")]
    NoXdp {
        /// The interface.
        name: String,
        /// The missing feature.
        why: String,
    },

    /// A card that cannot be used, or not like this.
    #[error("{card}: {why}")]
    Card {
        /// The card's address.
        card: String,
        /// The obstacle.
        why: String,
        /// The remedy.
        mend: Remedy,
    },

    /// Ordinary pages for a card that uses physical addresses.
    #[error(
        "{card}: without an IOMMU the card needs memory that the kernel does not move, and these are ordinary pages"
    )]
    MovableMemory {
        /// The card's address.
        card: String,
        /// The least count of hugepages that suffices.
        needed: usize,
    },

    /// Memory that the kernel does not lock for this user.
    #[error(
        "{needed} KiB must be locked in memory for the cards, but the limit of user {user} is {limit} KiB (ulimit -l)"
    )]
    MemoryLock {
        /// The limit in KiB.
        limit: u64,
        /// The need in KiB.
        needed: u64,
        /// The user's ID.
        user: u32,
    },

    /// A card that did not respond within the time that the datasheet promises.
    #[error("port '{port}': the card did not answer: {register} (datasheet section {section}) within {waited:?}")]
    Timeout {
        /// The port.
        port: String,
        /// The register and state waited for.
        register: String,
        /// The section of the datasheet.
        section: &'static str,
        /// The time waited.
        waited: Duration,
    },

    /// A card whose registers read all ones: unplugged, powered off, or hung.
    #[error("port '{port}': the card is gone: register {register} reads all ones")]
    CardGone {
        /// The port.
        port: String,
        /// The register that was read.
        register: &'static str,
    },

    /// A card that the system wants back.
    #[error("port '{port}': the card is being unplugged: the system wants it back")]
    CardLeaving {
        /// The port.
        port: String,
    },

    /// An access of the card that the IOMMU stopped: an invalid address in a descriptor, or in the card.
    #[error("port '{port}': the IOMMU stopped the card from {} address {address:#x}, where nothing is mapped; {queue}", if *write { "writing to" } else { "reading from" })]
    DmaFault {
        /// The port.
        port: String,
        /// The address, as the card used it.
        address: u64,
        /// Whether it was a write.
        write: bool,
        /// The queue whose descriptors contain the address.
        queue: String,
    },

    /// A device that needs a reset, as VirtIO devices do after an internal error.
    #[error("port '{port}': the device had an error and needs a reset")]
    NeedsReset {
        /// The port.
        port: String,
    },

    /// A device that violates its specification, or reports invalid values.
    #[error("the device violates its specification: {why}")]
    BadDevice {
        /// The violation.
        why: &'static str,
    },

    /// An operation that this port does not support.
    #[error("port '{port}' has no {what}: {why}")]
    Unsupported {
        /// The port.
        port: String,
        /// The operation.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },

    /// Another process that violates the protocol.
    #[error("the process at the other end violates the protocol: {why}")]
    BadPeer {
        /// The violation.
        why: &'static str,
    },

    /// Code at the other end of a model's cable that has panicked.
    #[error("the code at the other end of the model's cable has panicked: it has no link any more")]
    WirePanicked,

    /// A program that has set a ring's head or cur to an invalid position; both were reset.
    #[error("head or cur of a ring is not between the last head and tail: both were reset (netmap(4))")]
    BadRing,

    /// Shared memory for ports without room.
    #[error("the memory for ports has no {what}")]
    PortMemoryFull {
        /// The missing resource.
        what: &'static str,
    },

    /// A name without a server.
    #[error("no server has '{name}' in {}", folder.display())]
    NoServer {
        /// The name.
        name: String,
        /// The folder of sockets.
        folder: std::path::PathBuf,
    },

    /// A request for a port that is not served in this way.
    #[error("'{name}' is not served: {why}")]
    NotServed {
        /// Its name.
        name: String,
        /// The reason.
        why: &'static str,
    },

    /// A request that a server of ports has refused.
    #[error("{}", split(why).0)]
    Refused {
        /// The server's answer; a second line is the hint.
        why: String,
        /// The errno(3).
        errno: i32,
    },

    /// A socket at which this process cannot listen, or which it cannot connect to.
    #[error("{}: {why}", path.display())]
    Serve {
        /// The socket.
        path: std::path::PathBuf,
        /// The obstacle.
        why: String,
        /// The remedy.
        mend: Remedy,
    },

    /// A capture file that cannot be read.
    #[error("capture file '{file}': {why}")]
    Capture {
        /// Its path.
        file: String,
        /// The reason, with the offset of a malformed record.
        why: String,
    },

    /// A recording that cannot be written.
    #[error("writing '{file}': {why}")]
    Recording {
        /// Its path.
        file: String,
        /// The reason.
        why: String,
    },

    /// A system call that failed.
    #[error("{call} failed: {source}")]
    System {
        /// Its name.
        call: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// The remedy for the obstacle of an error: see [`Error::remedy`]. It is displayed in the library's words; a command knows its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// A command or step of the system.
    Do(String),
    /// Choosing another card.
    Choose,
    /// Taking the card from the kernel.
    Take {
        /// Its address.
        address: String,
    },
    /// Taking the other cards of its IOMMU group from the kernel.
    TakeOthers {
        /// The address of the first.
        first: String,
    },
    /// Taking the card although Linux is using it.
    TakeByForce,
    /// Taking the card over vfio.
    TakeOverVfio,
    /// A step of the system, or taking the card over uio.
    TakeOverUio(&'static str),
    /// A step of the program, or polling instead of interrupts.
    Poll(&'static str),
    /// Serving the card.
    Serve {
        /// The socket.
        path: String,
    },
    /// Serving the ports for other users, too.
    Admit,
    /// Letting programs of different users meet at the server.
    JoinUsers,
}

impl<T: Into<String>> From<T> for Remedy {
    fn from(step: T) -> Remedy {
        Remedy::Do(step.into())
    }
}

impl Remedy {
    /// Returns the step with commands in the place of functions; `None` if it has no function.
    fn command(&self, card: &str) -> Option<String> {
        Some(match self {
            Remedy::Do(_) => return None,
            Remedy::Choose => "linerate ports, which lists the cards".to_string(),
            Remedy::Take { address } => format!("sudo linerate bind {address}"),
            Remedy::TakeOthers { first } => {
                format!("sudo linerate bind {first}, and the others, if you can do without them")
            }
            Remedy::TakeByForce => "linerate bind, with force, if you can do without it".to_string(),
            Remedy::TakeOverVfio => format!("sudo linerate bind {card}, to use it over vfio, without privileges"),
            Remedy::TakeOverUio(step) => format!("{step}, or take it over uio: linerate bind"),
            Remedy::Poll(step) => format!("{step}, or poll"),
            Remedy::Admit => "linerate serve, with another mode or group of its socket".to_string(),
            Remedy::JoinUsers => "linerate serve, and let programs of different users meet".to_string(),
            Remedy::Serve { path } => format!("linerate sim, with {path} as its socket"),
        })
    }
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Remedy::Do(step) => f.write_str(step),
            Remedy::Choose => f.write_str("pci::network_cards, which lists the cards"),
            Remedy::Take { address } => {
                write!(f, "take {address} from the kernel: pci::take as root, or Options::take for one run")
            }
            Remedy::TakeOthers { first } => {
                write!(f, "take {first} from the kernel, and the others, if you can do without them: pci::take")
            }
            Remedy::TakeByForce => f.write_str("take it with force, if you can do without it: Take::force"),
            Remedy::TakeOverVfio => f.write_str("take it over vfio, for which root is not needed: Access::Vfio"),
            Remedy::TakeOverUio(step) => write!(f, "{step}, or take it over uio: Access::Uio"),
            Remedy::Poll(step) => write!(f, "{step}, or poll: Options::interrupts"),
            Remedy::Admit => f.write_str("give its socket another mode or group: Server::listen"),
            Remedy::JoinUsers => f.write_str("let programs of different users meet: Server::join_users"),
            Remedy::Serve { path } => write!(f, "start a server at {path}: vfio_user::Server"),
        }
    }
}

impl Error {
    pub(crate) fn system(call: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::System { call, source: source.into() }
    }

    /// Returns the command or step that mends the error, if known. The command `linerate` prints it behind the error.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::BadName { name, why } if why.starts_with(NO_KIND) && is_like_an_interface(name) => {
                let name = name.split('?').next().unwrap_or(name);
                if name.starts_with("vale") {
                    return Some(format!("did you mean {name}:a, a port of the switch?"));
                }
                format!("did you mean xdp:{name} or packet:{name}? `linerate ports` shows what is here")
            }
            Error::BadName { name, why } if why.starts_with(SWITCH_PORT) => {
                format!("try: vale0:{}", if is_like_an_interface(name) { name } else { "a" })
            }
            Error::BadName { .. } => {
                "try: sim:0 (an 82599 model inside this process), or `linerate ports` for what is here".to_string()
            }
            Error::NotBuilt { feature, .. } => format!("build with it: cargo add linerate --features {feature}"),
            Error::Unfinished => "open the port without offloads".to_string(),
            Error::PortInUse { .. } => "close it first, or choose another name".to_string(),
            Error::BadFilter { .. } => "try: udp:4321, or tcp:80+from:10.0.0.0/8,icmp".to_string(),
            Error::NoInterface { .. } => "see: ip link".to_string(),
            Error::InterfaceGone { .. } => "open the port again when it is back".to_string(),
            Error::Interface { mend, .. } => mend.clone(),
            Error::RingSize { .. } => "512 descriptors are usual".to_string(),
            Error::TooManyQueues { port, queues, .. } => match port.strip_prefix("xdp:") {
                Some(interface) => format!("open it with fewer, or: sudo ethtool -L {interface} combined {queues}"),
                None => "open it with fewer".to_string(),
            },
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
            Error::NotOpen { .. } => "open it first, here or at a server (linerate serve)".to_string(),
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
            Error::CardGone { port, .. } if port.starts_with("vfio-user:") => {
                "the program that serves it has ended; start it again, and open the port again".to_string()
            }
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
            Error::Serve { mend, .. } => mend.to_string(),
            Error::Refused { why, .. } => return split(why).1.map(str::to_string),
            Error::System { source, .. } => match source.raw_os_error() {
                Some(libc::EMFILE) => MORE_DESCRIPTORS.to_string(),
                // A file of memory has a length, too.
                Some(libc::EFBIG) => "try: ulimit -f unlimited".to_string(),
                Some(libc::ENOMEM) => {
                    "close other programs; if the limit is this shell's: ulimit -v unlimited".to_string()
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Returns the error of a capture file again, for others who ask; `None` of other kinds.
    pub(crate) fn again(&self) -> Option<Error> {
        match self {
            Error::Capture { file, why } => Some(Error::Capture { file: file.clone(), why: why.clone() }),
            Error::Recording { file, why } => Some(Error::Recording { file: file.clone(), why: why.clone() }),
            _ => None,
        }
    }

    /// Returns the remedy of an error whose hint a command may want to give in its own words.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Card { mend, .. } | Error::Serve { mend, .. } => Some(mend.clone()),
            // A server's answer is text.
            Error::Refused { why, .. } => split(why).1.map(|step| {
                let words = step.strip_prefix("try: ").unwrap_or(step);
                let address = words.split(' ').nth(1).unwrap_or_default().to_string();
                let (take, others) = (Remedy::Take { address: address.clone() }, Remedy::TakeOthers { first: address });
                let mut known = [Remedy::JoinUsers, Remedy::Choose, take, others].into_iter();
                known.find(|known| known.to_string() == words).unwrap_or(step.into())
            }),
            _ => None,
        }
    }

    /// Returns the error and its [hint](Error::hint), each in one line.
    pub fn with_hint(&self) -> String {
        self.above(self.hint())
    }

    /// Returns [`hint`](Error::hint) for users of a program that has no options of its own for it: commands in the place of
    /// functions.
    pub fn command_hint(&self) -> Option<String> {
        let card = if let Error::Card { card, .. } = self { card } else { "" };
        let command = self.remedy().and_then(|remedy| remedy.command(card));
        command.map(|command| format!("try: {command}")).or_else(|| self.hint())
    }

    /// As [`with_hint`](Error::with_hint), with [`command_hint`](Error::command_hint).
    pub fn with_command_hint(&self) -> String {
        self.above(self.command_hint())
    }

    /// Returns the error, and in the next line a hint.
    fn above(&self, hint: Option<String>) -> String {
        let hint = hint.map(|hint| format!("\n  {hint}"));
        format!("{self}{}", hint.unwrap_or_default())
    }
}

/// The remedy for a process that may open no more files.
pub(crate) const MORE_DESCRIPTORS: &str = "try: ulimit -n 4096";

/// The error of a name without a kind.
pub(crate) const NO_KIND: &str = "it has no kind in front";

/// The error of a name that is not a port of a switch.
pub(crate) const SWITCH_PORT: &str = "a port of a switch is named valeS:P";

/// Returns whether a name without a kind may be that of one of the kernel's interfaces.
fn is_like_an_interface(name: &str) -> bool {
    let name = name.split('?').next().unwrap_or(name);
    (1..=15).contains(&name.len()) && !name.contains(|c: char| c.is_whitespace() || ":/{}+*^".contains(c))
}

/// Splits a server's answer into error and hint.
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
            (refused(&format!("no\n  {}", Remedy::JoinUsers)), "no", Some("Server::join_users")),
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
