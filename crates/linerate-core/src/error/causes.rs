//! Constructors of errors that several modules report. Errors of a single module are created there.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use super::{Error, ErrorKind, Remedy};

impl Error {
    /// Returns the error for text that is not a port name.
    pub fn bad_name(name: impl Into<String>, why: impl std::fmt::Display) -> Error {
        let remedy = "sim:0 (an 82599 model inside this process), or `linerate ports` for those of this machine";
        Error::new(ErrorKind::BadName, name, format!("no port has this name: {why}")).with_remedy(remedy)
    }

    /// Returns the error for text that cannot be parsed as a value.
    pub fn bad_value(why: String) -> Error {
        Error::new(ErrorKind::BadOption, "", why)
    }

    /// Returns the error for an invalid option of a port's name.
    pub fn bad_option(
        port: impl Into<String>,
        option: impl std::fmt::Display,
        value: impl std::fmt::Display,
        why: impl std::fmt::Display,
    ) -> Error {
        Error::new(ErrorKind::BadOption, port, format!("option {option}={value}: {why}"))
    }

    /// Returns the error for a port that needs a disabled cargo feature.
    pub fn not_built(port: impl Into<String>, feature: &'static str) -> Error {
        let why = format!("it needs the cargo feature '{feature}', which this build of linerate lacks");
        Error::new(ErrorKind::NotBuilt, port, why).with_remedy(Remedy::Build { feature: feature.into() })
    }

    /// Returns the error for a port that is already open.
    pub fn port_in_use(port: impl Into<String>) -> Error {
        Error::new(ErrorKind::InUse, port, "the port is open already")
            .with_remedy(Remedy::Step("close it first, or choose another name".into()))
    }

    /// Returns the error for an invalid ring size.
    pub fn ring_size(port: impl Into<String>, size: usize) -> Error {
        let why = format!("a ring of {size} descriptors is not possible: it must be a power of two from 64 to 4096");
        Error::new(ErrorKind::BadOption, port, why).with_remedy(Remedy::Step("the default is 512".into()))
    }

    /// Returns the error for more queues than a port can have. `direction` is "receive" or "transmit".
    pub fn too_many_queues(
        port: impl Into<String>,
        direction: &str,
        queues: impl std::fmt::Display,
        most: impl std::fmt::Display,
    ) -> Error {
        let why = format!("{queues} {direction} queues are not possible: it has at most {most}");
        Error::new(ErrorKind::BadOption, port, why).with_remedy(Remedy::Step("open it with fewer".into()))
    }

    /// Returns the error for a queue number that is too large for the port's count of queues.
    pub fn no_such_queue(port: impl Into<String>, direction: &str, queue: u16, queues: u16) -> Error {
        let remedy = format!("open it with more, for example with queues={} in its name", u32::from(queue) + 1);
        let why = format!("it has no {direction} queue {queue}: it was opened with {queues}");
        Error::new(ErrorKind::NotFound, port, why).with_remedy(Remedy::Step(remedy.into()))
    }

    /// Returns the error for a queue that already has an owner. `direction` is "receive" or "transmit".
    pub fn queue_taken(port: impl Into<String>, direction: &str, queue: u16) -> Error {
        let why = format!("{direction} queue {queue} is taken already: a queue has one owner at a time");
        Error::new(ErrorKind::QueueTaken, port, why).with_remedy(Remedy::ChooseQueue)
    }

    /// Returns the error for a rule of which the port cannot express a part. `part` names the part, and why.
    pub fn rule_part(
        port: impl Into<String>,
        filter: impl std::fmt::Display,
        action: impl std::fmt::Display,
        part: impl std::fmt::Display,
    ) -> Error {
        Error::new(ErrorKind::Unsupported, port, format!("the rule '{filter} {action}' is not possible: {part}"))
    }

    /// Returns the error for a full table of rules. A filter may need several entries.
    pub fn rules_full(port: impl Into<String>, table: &str, entries: usize) -> Error {
        Error::new(ErrorKind::Exhausted, port, format!("the table of {table} is full: it has {entries} entries"))
            .with_remedy(Remedy::Step("remove a rule first".into()))
    }

    /// Returns the error for a rule that the port does not have.
    pub fn no_such_rule(port: impl Into<String>, id: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::NotFound, port, format!("it has no rule {id}"))
    }

    /// Returns the error for resetting a port while queues have owners.
    pub fn queues_in_use(port: impl Into<String>, queues: usize) -> Error {
        Error::new(ErrorKind::InUse, port, format!("{queues} of its queues are still in use"))
            .with_remedy(Remedy::Step("drop them first".into()))
    }

    /// Returns the error for an operation that needs the packets' metadata.
    pub fn needs_metadata(port: impl Into<String>, why: &str) -> Error {
        Error::new(ErrorKind::BadOption, port, format!("it was opened without metadata: {why}"))
            .with_remedy(Remedy::Step("add metadata=on to the port's options".into()))
    }

    /// Returns the error for an operation that a port does not support.
    pub fn unsupported(port: impl Into<String>, what: &str, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unsupported, port, format!("it has no {what}: {why}"))
    }

    /// Returns the error for a pool with fewer buffers than all queues need together.
    pub fn pool_too_small(buffers: usize, needed: usize) -> Error {
        let why = format!("the pool's {buffers} buffers are too few for all queues: at least {needed} are needed");
        Error::new(ErrorKind::Exhausted, "", why)
            .with_remedy(Remedy::Step("give the region more buffers, or the queues smaller rings".into()))
    }

    /// Returns the error for a pool with too few free buffers to fill a ring.
    pub fn pool_exhausted(buffers: usize, needed: usize) -> Error {
        let why =
            format!("the pool is exhausted: {needed} buffers are needed for the queue's ring, {buffers} are free");
        Error::new(ErrorKind::Exhausted, "", why)
            .with_remedy(Remedy::Step("clear or drop the batches that hold them, or give the region more".into()))
    }

    /// Returns the error for buffers that are too small for frames of `frame` bytes without CRC.
    pub fn buffer_too_small(
        port: impl Into<String>,
        buffer_size: usize,
        frame: usize,
        why: &str,
        remedy: &'static str,
    ) -> Error {
        let why = format!("buffers of {buffer_size} bytes are too small for frames of {frame} bytes: {why}");
        Error::new(ErrorKind::BadOption, port, why).with_remedy(Remedy::Step(remedy.into()))
    }

    /// Returns the error for memory that the kernel does not lock for this user. Sizes are in KiB.
    pub fn memory_lock(limit: u64, needed: u64) -> Error {
        let user = rustix::process::getuid().as_raw();
        let why = format!(
            "{needed} KiB must be locked in memory for the cards, but the limit of user {user} is {limit} KiB (ulimit -l)"
        );
        let remedy = format!(
            "echo 'user-name - memlock {needed}' | sudo tee -a /etc/security/limits.conf, then log in again; in a \
             container: --ulimit memlock={} or --cap-add IPC_LOCK; or use shorter rings (ring=)",
            needed.saturating_mul(1024)
        );
        Error::new(ErrorKind::Exhausted, "", why).with_remedy(remedy)
    }

    /// Returns the error for a server or client whose memory for ports is full.
    pub fn port_memory_full(what: &str) -> Error {
        Error::new(ErrorKind::Exhausted, "", format!("the memory for ports has no {what}"))
            .with_remedy(Remedy::Step("ask for fewer or shorter rings, or close other ports".into()))
    }

    /// Returns the error for a card that cannot be used, or not in this way. `card` is its address.
    pub fn card(card: impl Into<String>, why: impl Into<Cow<'static, str>>, remedy: impl Into<Remedy>) -> Error {
        Error::new(ErrorKind::Unusable, card, why).with_remedy(remedy)
    }

    /// Returns the error for a card whose registers read all ones.
    pub fn card_gone(port: impl Into<String>, register: &str, remedy: &'static str) -> Error {
        Error::new(ErrorKind::Gone, port, format!("the card is gone: register {register} reads all ones"))
            .with_remedy(Remedy::Step(remedy.into()))
    }

    /// Returns the error for a card that did not answer. `section` is a section of the datasheet.
    pub fn timeout(
        port: impl Into<String>,
        register: impl std::fmt::Display,
        section: &str,
        waited: Duration,
    ) -> Error {
        let why = format!("the card did not answer: {register} (datasheet section {section}) within {waited:?}");
        Error::new(ErrorKind::Timeout, port, why)
            .with_remedy(Remedy::Step("reset the port; if that fails, too, the card needs a power cycle".into()))
    }

    /// Returns the error for a device that reports that it needs a reset.
    pub fn needs_reset(port: impl Into<String>) -> Error {
        Error::new(ErrorKind::NeedsReset, port, "the device had an error and needs a reset")
            .with_remedy(Remedy::Step("drop its queues and reset the port, or open it again".into()))
    }

    /// Returns the error for a device that violates its specification.
    pub fn bad_device(why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::BadDevice, "", format!("the device violates its specification: {why}"))
    }

    /// Returns the error for another process that violates the protocol.
    pub fn bad_peer(why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::BadPeer, "", format!("the process at the other end violates the protocol: {why}"))
    }

    /// Returns the error for an interface that cannot be used in its current state.
    pub fn interface(
        name: impl Into<String>,
        why: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error::new(ErrorKind::Unusable, name, why).with_remedy(Remedy::Step(remedy.into()))
    }

    /// Returns the error for a kernel interface that no longer exists.
    pub fn interface_gone(name: impl Into<String>) -> Error {
        let why = "the interface is gone: it was deleted, renamed or moved to another network namespace";
        Error::new(ErrorKind::Gone, name, why).with_remedy(Remedy::Step("open the port again when it is back".into()))
    }

    /// Returns the error for a port that cannot be monitored, because it is not open in this process.
    pub fn not_open(port: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotServed, port, "it is not open in this process, so it cannot be monitored")
            .with_remedy(Remedy::Step("open it first, here or at a server (linerate serve)".into()))
    }

    /// Returns the error for a name without a server in the folder of sockets.
    pub fn no_server(name: impl Into<String>, folder: &Path) -> Error {
        Error::new(ErrorKind::NotServed, name, format!("no server in {} has it", folder.display()))
            .with_remedy("linerate serve")
    }

    /// Returns the error for a port that no server has, or not in the requested form.
    pub fn not_served(name: impl Into<String>, why: &str) -> Error {
        Error::new(ErrorKind::NotServed, name, format!("it is not served: {why}")).with_remedy("linerate switch list")
    }

    /// Returns the error for a socket at which this process cannot listen, or to which it cannot connect.
    pub fn socket(path: &Path, why: impl Into<Cow<'static, str>>, remedy: impl Into<Remedy>) -> Error {
        Error::new(ErrorKind::Unusable, path.display().to_string(), why).with_remedy(remedy)
    }

    /// Returns the error for a capture file that cannot be read, or a recording that cannot be written.
    pub fn file(path: impl Into<String>, why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::File, path, why)
    }
}
