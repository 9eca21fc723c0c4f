//! Errors: their subject, reason and remedy.

mod causes;
mod remedy;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

pub use remedy::Remedy;

/// The result type of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this library: its subject, the reason, and a remedy.
///
/// ```
/// let Err(error) = linerate::open(["eth9"]) else { panic!("no port has this name") };
/// assert_eq!(error.kind(), linerate::ErrorKind::BadName);
/// assert_eq!(error.to_string(), "eth9: no port has this name: it does not begin with a kind, as in kind:name");
/// assert!(error.remedy().unwrap().to_string().starts_with("did you mean xdp:eth9"));
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Error(Box<Cause>);

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Cause {
    kind: ErrorKind,
    subject: String,
    why: Cow<'static, str>,
    remedy: Option<Remedy>,
    #[cfg_attr(feature = "serde", serde(with = "errno"))]
    source: Option<Arc<io::Error>>,
}

/// Serializes the source of an error as its errno(3).
#[cfg(feature = "serde")]
mod errno {
    use std::io;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(source: &Option<Arc<io::Error>>, to: S) -> Result<S::Ok, S::Error> {
        source.as_ref().and_then(|source| source.raw_os_error()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<io::Error>>, D::Error> {
        let number = Option::<i32>::deserialize(from)?;
        Ok(number.map(|number| Arc::new(io::Error::from_raw_os_error(number))))
    }
}

/// The category of an error, for programs that handle some errors differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name that no port, switch or card can have.
    BadName,
    /// An invalid value of an option of a port's name, of `linerate::Options`, or of a call.
    BadOption,
    /// The filter cannot be parsed.
    BadFilter,
    /// This build of the library does not include the kind of port.
    NotBuilt,
    /// The interface, card, queue, or rule does not exist.
    NotFound,
    /// No server has the port, or it is not open in this process.
    NotServed,
    /// The port, card or file is already in use.
    InUse,
    /// The queue already has an owner.
    QueueTaken,
    /// The object already exists.
    Exists,
    /// The card or interface no longer exists.
    Gone,
    /// Too few buffers, hugepages, locked memory, ports of a switch, or entries of a card's table are left.
    Exhausted,
    /// The packet has no room for more bytes, or too few bytes to remove.
    NoRoom,
    /// The packet must be segmented first.
    Unfinished,
    /// The buffers belong to different regions, so their contents must be copied.
    OtherRegion,
    /// The port, card, or kernel does not support the operation.
    Unsupported,
    /// The card, interface or socket cannot be used in its current state.
    Unusable,
    /// The user is not allowed to do this.
    Denied,
    /// The card did not answer within the time that its datasheet specifies.
    Timeout,
    /// The device violates its specification, or the IOMMU has stopped it.
    BadDevice,
    /// The device needs a reset.
    NeedsReset,
    /// Another process violates the protocol.
    BadPeer,
    /// A head or cur of a netmap ring is not between the last head and tail.
    BadRing,
    /// Code at the other end of a model's cable has panicked.
    WirePanicked,
    /// A capture file cannot be read, or a recording cannot be written.
    File,
    /// A system call failed.
    System,
}

impl ErrorKind {
    /// Returns the closest errno(3), for programs that only know errno values.
    fn errno(self) -> i32 {
        match self {
            ErrorKind::InUse | ErrorKind::QueueTaken => libc::EBUSY,
            ErrorKind::NotFound | ErrorKind::NotServed | ErrorKind::Gone => libc::ENXIO,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::Exhausted => libc::ENOMEM,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::Denied => libc::EPERM,
            ErrorKind::System => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

impl Error {
    /// Creates an error about `subject`, such as a port's name; empty if the reason names it. `why` is a sentence
    /// without a full stop.
    ///
    /// ```
    /// use linerate::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unsupported, "echo:0", "it has no statistics").with_remedy("another port");
    /// assert_eq!(error.to_string(), "echo:0: it has no statistics");
    /// assert_eq!(error.with_hint(), "echo:0: it has no statistics\n  try: another port");
    /// ```
    pub fn new(kind: ErrorKind, subject: impl Into<String>, why: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Cause { kind, subject: subject.into(), why: why.into(), remedy: None, source: None }))
    }

    /// Creates the error of a failed system call.
    pub fn system(call: &str, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        let why = format!("{call} failed: {source}");
        let remedy = match source.raw_os_error() {
            Some(libc::EMFILE) => Some(MORE_DESCRIPTORS.into()),
            // The limit of the file size also applies to memfds.
            Some(libc::EFBIG) => Some("ulimit -f unlimited".into()),
            Some(libc::ENOMEM) => {
                Some(Remedy::Step("close other programs; if the limit is this shell's: ulimit -v unlimited".into()))
            }
            _ => None,
        };
        let error = Error::new(ErrorKind::System, "", why).with_source(source);
        remedy.into_iter().fold(error, Error::with_remedy)
    }

    /// Creates the error of a thread that cannot be started.
    pub fn thread(source: io::Error) -> Error {
        Error::system("starting a thread", source)
            .with_remedy(Remedy::Step("the limit of threads may be reached; see: ulimit -u".into()))
    }

    /// Sets the remedy, and replaces an earlier one.
    pub fn with_remedy(mut self, remedy: impl Into<Remedy>) -> Error {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Sets the error that caused this one. [`errno`](Error::errno) then returns the errno(3) of the cause, if it has
    /// one.
    pub fn with_source(mut self, source: impl Into<io::Error>) -> Error {
        self.0.source = Some(Arc::new(source.into()));
        self
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the subject: a port's name, a card's address, a path; empty if the reason names it.
    pub fn subject(&self) -> &str {
        &self.0.subject
    }

    /// Returns the reason.
    pub fn why(&self) -> &str {
        &self.0.why
    }

    /// Returns the remedy, if one is known.
    pub fn remedy(&self) -> Option<&Remedy> {
        self.0.remedy.as_ref()
    }

    /// Returns the I/O error that caused this one, if there is one.
    pub fn io_error(&self) -> Option<&io::Error> {
        self.0.source.as_deref()
    }

    /// Returns the errno(3) of the cause, or the closest one, for programs that only know errno values.
    pub fn errno(&self) -> i32 {
        let source = self.0.source.as_ref().and_then(|source| source.raw_os_error());
        source.unwrap_or_else(|| self.0.kind.errno())
    }

    /// Returns the error and its remedy, on separate lines.
    pub fn with_hint(&self) -> String {
        self.with_line(self.remedy().map(Remedy::to_string))
    }

    /// As [`with_hint`](Error::with_hint), but names commands of `linerate` instead of functions, for users of a
    /// program.
    pub fn with_command_hint(&self) -> String {
        self.with_line(self.remedy().map(Remedy::command))
    }

    fn with_line(&self, hint: Option<String>) -> String {
        let hint = hint.map(|hint| format!("\n  {hint}"));
        format!("{self}{}", hint.unwrap_or_default())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause { subject, why, .. } if subject.is_empty() => f.write_str(why),
            Cause { subject, why, .. } => write!(f, "{subject}: {why}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.io_error().map(|source| source as _)
    }
}

/// The remedy for a process that has reached its limit of open files.
pub const MORE_DESCRIPTORS: &str = "ulimit -n 4096";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_line_and_its_remedy_another() {
        let error = Error::no_such_queue("sim:0", "receive", 3, 1);
        assert_eq!(error.to_string(), "sim:0: it has no receive queue 3: it was opened with 1");
        assert!(error.with_hint().ends_with("\n  open it with more, for example with queues=4 in its name"));
        let plain = Error::new(ErrorKind::BadDevice, "", "no");
        assert_eq!([plain.with_hint(), plain.with_command_hint()], ["no", "no"]);
        let refused = plain.with_remedy(Remedy::JoinUsers);
        assert!(refused.with_hint().ends_with("\n  let programs of different users meet: Server::join_users"));
        assert!(refused.with_command_hint().starts_with("no\n  try: linerate serve, and let programs"));
    }

    #[test]
    fn errors_have_numbers_of_errno() {
        let system = |source: io::Error| Error::system("call", source);
        for (error, number) in [
            (Error::port_in_use("a"), libc::EBUSY),
            (Error::queue_taken("a", "receive", 0), libc::EBUSY),
            (Error::not_open("a"), libc::ENXIO),
            (Error::port_memory_full("room"), libc::ENOMEM),
            (Error::unsupported("a", "mode", "no"), libc::EOPNOTSUPP),
            (Error::bad_peer("no"), libc::EINVAL),
            (system(io::Error::from_raw_os_error(libc::ENFILE)), libc::ENFILE),
            (system(io::Error::other("none of the kernel's")), libc::EIO),
            (Error::bad_peer("no").with_source(io::Error::from_raw_os_error(libc::EXDEV)), libc::EXDEV),
        ] {
            assert_eq!(error.errno(), number, "{error:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn an_error_crosses_a_socket_as_it_is() {
        for error in [
            Error::queue_taken("vale0:a", "receive", 0),
            Error::new(ErrorKind::Denied, "a", "no").with_remedy(Remedy::TakeOthers { first: "b".to_string() }),
            Error::system("call", io::Error::from_raw_os_error(libc::ENOMEM)),
        ] {
            let there: Error = serde_json::from_str(&serde_json::to_string(&error).unwrap()).unwrap();
            assert_eq!(
                (there.kind(), there.subject(), there.why(), there.remedy(), there.errno()),
                (error.kind(), error.subject(), error.why(), error.remedy(), error.errno())
            );
        }
    }
}
