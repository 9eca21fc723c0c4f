//! The grammar of port names.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use super::grammar::{count, escaped, is_vale, nearest, unescaped};
use super::kind::{Address, Description, Form, PortClass, PortOption, Value};
use crate::error::{Error, Remedy, Result};

/// A parsed port name: `kind:rest?option=value&option=value`. An option without a value is `on`.
///
/// ```text
/// 0000:03:00.0          a PCI card, by address
/// sim:NAME              a model of the 82599 inside the process
/// vfio-user:PATH        a PCI device that another process serves at a socket
/// vhost:PATH            the card of a virtual machine that connects to a socket; with ?client=on, linerate connects
/// virtio-user:PATH      a card at a vhost-user back end that listens at a socket; with ?server=on, linerate listens
/// memif:PATH            a peer over FD.io's memif that listens at a socket; with ?role=server, linerate listens
/// packet:IF             a kernel interface, over AF_PACKET: receives copies of its packets
/// tap:NAME              a TAP interface; its other end is the kernel's network stack
/// host:, host:NAME      a TAP interface with the MAC address of the other port: Linux continues to use that card
/// xdp:IF, xdp:IF-Q      a kernel interface, or one of its queues, over AF_XDP
/// X{N, X}N              the two ends of pipe N; X is any name
/// X+r, X+t, X+rt        copies of packets that port X of this process receives or sends; X/rt is the same
/// null:                 a port that discards packets sent to it, and never receives
/// link:PORT?delay=20ms  a wrapper that delays packets, and limits their rate
/// faulty:PORT?drop=1%   a wrapper that drops, damages, duplicates and reorders packets
/// recorded:PORT?to=FILE a wrapper that records packets
/// pcap:FILE             a capture file to read; pcap:FILE?write records into it
/// valeS:P               port P of switch S
/// netmap:IF, netmap:IF-Q  netmap's names of xdp:IF and xdp:IF-Q
/// netmap:IF^            the kernel's network stack, detached from the interface
/// sim:0?rate=14.88M&size=64
/// PORT?cluster=N&by=flow  any port, its packets distributed to N consumers by flow
/// packet:lab%3F1        interface `lab?1`: in NAME, PATH, FILE and IF, `%` and two digits are a byte (see [`escaped`])
/// ```
#[derive(Clone)]
pub struct PortName {
    text: String,
    kind: &'static Description,
    rest: String,
    /// `rest` without escapes; `rest` itself for wrappers and monitors.
    address: String,
    /// The name of the inner port, if this port is a wrapper.
    inner: Option<Box<PortName>>,
    options: Vec<(String, String)>,
    /// The kind of the monitored port, if this port is a monitor.
    monitored: Option<&'static Description>,
}

/// The option for the number of consumers that a port's packets are distributed to. Every kind has it.
pub const CLUSTER: PortOption = PortOption {
    name: "cluster",
    value: Value::Number(1, 64),
    default: "",
    help: "the number of consumers that packets are distributed to",
};
/// The option for how a port's packets are distributed to consumers. Every kind has it.
pub const BY: PortOption = PortOption {
    name: "by",
    value: Value::Text("HOW"),
    default: "flow",
    help: "how packets are distributed to consumers: flow, turn and others",
};

/// The error text for an unknown option.
const NO_OPTION: &str = "there is no such option";

impl PortName {
    /// Parses a name. Its kind is the first of `kinds` that it matches.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`](crate::ErrorKind::BadName) for text that is not a port's name,
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) for an option that the kind does not have.
    pub fn parse_among(text: &str, kinds: &[&'static Description]) -> Result<PortName> {
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let mut name = PortName::parse_address(address, kinds)?;
        name.text = text.to_string();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            // An option without a value is `on`.
            let (option, value) = part.split_once('=').unwrap_or((part, "on"));
            if name.option(option).is_some_and(|first| first != value) {
                let first = name.option(option).unwrap_or_default();
                let why = format!("it is also given as {option}={value}; keep one of {first} and {value}");
                return Err(name.bad_option(option, &why));
            }
            name.options.push((option.to_string(), value.to_string()));
            name.check_option(option, value)?;
        }
        if name.inner.is_some() {
            name.inner = Some(Box::new(PortName::parse_among(&name.inner_name(), kinds)?));
        }
        Ok(name)
    }

    /// Parses a name without options.
    fn parse_address(address: &str, kinds: &[&'static Description]) -> Result<PortName> {
        let bad = |why: String| Err(Error::bad_name(address, why));
        let named = |kind, rest: &str, address_of: &str, inner| {
            let (text, rest, address) = (address.to_string(), rest.to_string(), address_of.to_string());
            PortName { text, kind, rest, address, inner, options: Vec::new(), monitored: None }
        };
        if let Some(monitored) = MonitorName::of(address, kinds)
            && let Some(kind) = kinds.iter().find(|kind| matches!(kind.form, Form::Monitor))
        {
            let seen = PortName::parse_address(monitored.port, kinds).ok().map(|port| port.kind);
            return Ok(PortName { monitored: seen, ..named(kind, monitored.port, monitored.port, None) });
        }
        // Wrappers are matched first, because the name of their inner port can match any kind.
        let around = kinds.iter().filter(|kind| matches!(kind.address, Address::Port));
        let Some(kind) = around.chain(kinds).find(|kind| kind.matches(address)) else {
            return Err(no_kind(address, kinds));
        };
        let (prefix, rest) = address.split_once(':').unwrap_or(("", address));
        let Some(meant) = unescaped(rest) else {
            return bad("its escapes (%XX) are not UTF-8; write % itself as %25, and such an interface as its index"
                .to_string());
        };
        match kind.address {
            Address::Interface if meant.is_empty() || meant.contains('/') || meant.contains(char::is_whitespace) => {
                bad("it needs the name of an interface, as xdp:eth0".to_string())
            }
            Address::Socket if rest.is_empty() => bad(format!("it needs the path of a socket: {prefix}:/run/card")),
            Address::File if rest.is_empty() => bad(format!("it needs the path of a file: {}", kind.example)),
            Address::Port if rest.is_empty() => bad(format!("it needs the name of another port: {}", kind.example)),
            Address::Checked(check) => match check(if matches!(kind.form, Form::Prefix) { rest } else { address }) {
                Ok(()) => Ok(named(kind, rest, &meant, None)),
                Err(why) => bad(why.to_string()),
            },
            Address::Port => Ok(named(kind, rest, rest, Some(Box::new(PortName::parse_address(rest, kinds)?)))),
            _ => Ok(named(kind, rest, &meant, None)),
        }
    }

    /// Returns an error if neither the kind nor an inner port has the option, or if its value is not allowed.
    fn check_option(&self, option: &str, value: &str) -> Result<()> {
        let found = self.within().find_map(|name| name.kind.option(option));
        let of_all = || [&CLUSTER, &BY].into_iter().find(|of_all| of_all.name == option);
        let Some(found) = found.or_else(of_all) else {
            return match self.within().all(|name| name.kind.is_built) {
                true => Err(self.bad_option(option, &self.no_option(option))),
                false => Ok(()),
            };
        };
        found.refusal(value).map_or(Ok(()), |why| Err(self.bad_option(option, &why)))
    }

    /// Returns the error text for an option that the port does not have.
    fn no_option(&self, option: &str) -> String {
        let names = |options: &'static [PortOption]| options.iter().map(|option| option.name);
        let innermost = self.innermost().kind;
        let there: Vec<&str> = names(innermost.options).chain([CLUSTER.name, BY.name]).collect();
        let all: Vec<&str> =
            self.within().flat_map(|name| names(name.kind.options)).chain([CLUSTER.name, BY.name]).collect();
        let meant = nearest(option, &all).map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
        let mut why = format!("{NO_OPTION}{meant}; there are {}", there.join(", "));
        for name in self.within().filter(|name| name.inner.is_some()) {
            let its: Vec<&str> = names(name.kind.options).collect();
            why += &format!("; {} has {}", name.kind.prefix, its.join(", "));
        }
        why
    }

    /// Returns whether the port wraps another port.
    pub fn is_wrapper(&self) -> bool {
        self.inner.is_some()
    }

    /// Returns the name and the names of the inner ports, outermost first.
    fn within(&self) -> impl Iterator<Item = &PortName> {
        std::iter::successors(Some(self), |name| name.inner.as_deref())
    }

    /// Returns the name of the innermost port; the name itself if the port is not a wrapper.
    fn innermost(&self) -> &PortName {
        self.within().last().unwrap_or(self)
    }

    /// Returns the name of the inner port, with the options that do not belong to the wrapper.
    pub fn inner_name(&self) -> String {
        with_options(&self.rest, self.options().filter(|(option, _)| !self.is_own_option(option)))
    }

    /// Returns whether an option belongs to this port, not to an inner port.
    fn is_own_option(&self, option: &str) -> bool {
        self.kind.option(option).is_some() || [CLUSTER.name, BY.name].contains(&option)
    }

    /// Returns the kind of port.
    pub fn kind(&self) -> &'static Description {
        self.kind
    }

    /// Returns the category of the innermost port.
    pub fn class(&self) -> PortClass {
        self.innermost().kind.class
    }

    /// Returns the monitored port and direction; `None` if this port is not a monitor.
    pub fn monitored(&self) -> Option<MonitorName<'_>> {
        matches!(self.kind.form, Form::Monitor).then(|| MonitorName::of_marks(self.short(), &['+', '/'])).flatten()
    }

    /// Returns whether another process may serve the monitored port.
    pub fn monitors_served(&self) -> bool {
        self.monitored.is_some_and(|kind| kind.may_be_served)
    }

    /// Returns whether the port is a device outside this process: a PCI card, or one that another process serves.
    pub fn is_device(&self) -> bool {
        self.inner.is_none() && matches!(self.kind.class, PortClass::Card | PortClass::ServedCard)
    }

    /// Returns whether the port is, or wraps, a capture file to read. Such a port drops packets sent to it.
    pub fn is_capture_to_read(&self) -> bool {
        self.class() == PortClass::Capture && matches!(self.option("write"), None | Some("off"))
    }

    /// Returns whether the port is, or wraps, a capture file to write. Such a port never receives.
    pub fn is_capture_to_write(&self) -> bool {
        self.class() == PortClass::Capture && self.option("write") == Some("on")
    }

    /// Returns whether another process may serve the port. True for ports in memory, and for interfaces under netmap's
    /// names.
    pub fn may_be_served(&self) -> bool {
        self.kind.may_be_served
    }

    /// As [`may_be_served`](PortName::may_be_served), for the innermost port.
    pub fn may_lead_to_served(&self) -> bool {
        self.innermost().kind.may_be_served
    }

    /// Returns the name of the model that the port is, or wraps; `None` for other kinds.
    pub fn model(&self) -> Option<&str> {
        (self.class() == PortClass::Model).then(|| self.innermost().rest())
    }

    /// Returns whether the port uses packet sockets on an interface.
    pub fn is_packet(&self) -> bool {
        self.inner.is_none() && self.kind.class == PortClass::Packet
    }

    /// Returns whether the port is, or wraps, an AF_XDP socket on an interface.
    pub fn is_xdp(&self) -> bool {
        self.class() == PortClass::Xdp
    }

    /// Returns the kernel interface that the port uses, with a queue if the name has one (`eth0-3`); `None` for other
    /// ports.
    pub fn interface(&self) -> Option<&str> {
        (self.inner.is_none() && matches!(self.kind.class, PortClass::Xdp | PortClass::Packet))
            .then_some(&*self.address)
    }

    /// Returns the part of the name after the kind, as it was written, without options.
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Returns the part of the name after the kind without [escapes](escaped): the name of the interface, or the path.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the name without options.
    pub fn short(&self) -> &str {
        self.text.split('?').next().unwrap_or(&self.text)
    }

    /// Returns the path of the file or socket of the innermost port.
    pub fn path(&self) -> Option<&Path> {
        let innermost = self.innermost();
        innermost.kind.has_path().then(|| Path::new(&innermost.address))
    }

    /// Returns the name with an absolute file or socket path, for a process with another working directory.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the working directory cannot be determined.
    ///
    /// ```
    ///
    /// let name = linerate::parse("vhost:/run/vm.sock?queues=2")?;
    /// assert_eq!(name.with_absolute_path()?, "vhost:/run/vm.sock?queues=2");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn with_absolute_path(&self) -> Result<String> {
        let Some((kind, behind)) = self.text.split_once(':').filter(|_| self.kind.has_path()) else {
            return Ok(self.text.clone());
        };
        let path = std::path::absolute(&self.address).map_err(|error| Error::system("getcwd", error))?;
        Ok(format!("{kind}:{}{}", escaped(&path.display().to_string()), &behind[self.rest.len()..]))
    }

    /// Adds an option, or replaces its value, and returns the new name.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) for an option or a value that the kind does not have.
    ///
    /// ```
    ///
    /// let name = linerate::parse("netmap:eth0?flow=all")?;
    /// assert_eq!(name.with_option("alone", "on")?.as_str(), "netmap:eth0?flow=all&alone=on");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn with_option(mut self, option: &str, value: &str) -> Result<PortName> {
        self.options.retain(|(there, _)| there != option);
        self.options.push((option.to_string(), value.to_string()));
        self.check_option(option, value)?;
        self.text = with_options(self.short(), self.options());
        if !self.is_own_option(option)
            && let Some(inner) = self.inner.take()
        {
            self.inner = Some(Box::new(inner.with_option(option, value)?));
        }
        Ok(self)
    }

    /// Returns the name with its options, as it was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name without the options in `left`.
    pub fn without(&self, left: &[&PortOption]) -> String {
        with_options(self.short(), self.options().filter(|(option, _)| !left.iter().any(|left| left.name == *option)))
    }

    /// Returns all options, in order.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(option, value)| (&**option, &**value))
    }

    /// Returns an option's value.
    pub fn option(&self, option: &str) -> Option<&str> {
        self.options.iter().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }

    /// Returns the value of an option of the innermost port. A wrapper may have an option of the same name.
    pub fn innermost_option(&self, option: &str) -> Option<&str> {
        self.innermost().option(option)
    }

    /// Returns the minimum size of the port's packet buffers, for frames of the default length. It is larger than 2,048
    /// if the innermost port has an [option that needs large buffers](Description::large_buffers), and it is on.
    pub fn buffer_size(&self) -> usize {
        match self.large_buffers() {
            Some((option, size)) if self.option(option) == Some("on") => size,
            _ => 2048,
        }
    }

    /// Returns the innermost port's [option that needs large buffers](Description::large_buffers), and their size.
    pub fn large_buffers(&self) -> Option<(&'static str, usize)> {
        self.innermost().kind.large_buffers
    }

    /// Returns how many buffers a queue in each direction needs for [packets that it holds](Description::held_buffers).
    /// Wrong options count as 0; opening the port reports them.
    pub fn held_buffers(&self) -> usize {
        let of = |name: &PortName| {
            let options: Vec<(&str, &str)> = name.options().collect();
            name.kind.held_buffers.map_or(0, |count| count(name.class(), &options))
        };
        self.within().map(of).sum()
    }

    /// Parses an option that is `on` or `off`.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) if it is neither.
    pub fn switch(&self, option: &str, default: bool) -> Result<bool> {
        match self.option(option) {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(_) => Err(self.bad_option(option, "it must be on or off")),
        }
    }

    /// Parses an option that is a number; the suffixes are `k` (10^3), `M` (10^6) and `G` (10^9).
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) if it is not a number, or outside `allowed`.
    pub fn number(&self, option: &str, default: usize, allowed: RangeInclusive<usize>) -> Result<usize> {
        let Some(text) = self.option(option) else { return Ok(default) };
        let value = Value::Number(*allowed.start(), *allowed.end());
        match (PortOption { name: "", value, default: "", help: "" }).refusal(text) {
            Some(why) => Err(self.bad_option(option, &why)),
            None => Ok(count(text).map_or(default, |value| value as usize)),
        }
    }

    /// Returns the error for an option of this name with an invalid value.
    pub fn bad_option(&self, option: &str, why: &str) -> Error {
        let value = self.option(option).unwrap_or_default().to_string();
        Error::bad_option(self.short().to_string(), option.to_string(), value, why.to_string())
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

impl fmt::Debug for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl PartialEq for PortName {
    fn eq(&self, other: &PortName) -> bool {
        self.text == other.text
    }
}

impl Eq for PortName {}

/// Appends options to a name without options.
fn with_options<'a>(short: &str, options: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let options: Vec<String> = options.map(|(option, value)| format!("{option}={value}")).collect();
    if options.is_empty() { short.to_string() } else { format!("{short}?{}", options.join("&")) }
}

/// Returns the error for text that is not a port name.
fn no_kind(address: &str, kinds: &[&'static Description]) -> Error {
    let prefix = match address.split_once(':') {
        None | Some(("", _)) => {
            let error = Error::bad_name(address, "it does not begin with a kind, as in kind:name");
            let may_be_interface = (1..=15).contains(&address.len())
                && !address.contains(|c: char| c.is_whitespace() || ":/{}+*^".contains(c));
            let meant = match kinds.iter().find(|kind| kind.prefix == address) {
                Some(kind) => kind.example.to_string(),
                None if may_be_interface && is_vale(address) => format!("{address}:a, a port of the switch"),
                None if may_be_interface => {
                    let name = escaped(address);
                    format!("xdp:{name} or packet:{name}")
                }
                None => return error,
            };
            return error.with_remedy(Remedy::Step(
                format!("did you mean {meant}? `linerate ports` lists those of this machine").into(),
            ));
        }
        Some((prefix, _)) => prefix,
    };
    let all: Vec<&str> = kinds.iter().map(|kind| kind.prefix).collect();
    let meant = nearest(prefix, &all).map_or_else(String::new, |near| format!(" (did you mean {near}:?)"));
    let notations: Vec<String> = kinds.iter().map(|kind| kind.notation()).collect();
    Error::bad_name(address, format!("there is no kind of port '{prefix}:'{meant}; there are {}", notations.join(", ")))
}

/// The monitored port and the directions in a monitor's name.
pub struct MonitorName<'a> {
    pub port: &'a str,
    pub receive: bool,
    pub transmit: bool,
}

impl<'a> MonitorName<'a> {
    /// Parses `X+rt`, or netmap's `X/rt`.
    fn of(address: &'a str, kinds: &[&'static Description]) -> Option<MonitorName<'a>> {
        // A path can end in `/rt`, so names with paths accept only `+`.
        let is_path = |kind: &&Description| {
            let prefix = format!("{}:", kind.prefix);
            kind.has_path() && (address.starts_with(&prefix) || address.contains(&format!(":{prefix}")))
        };
        let has_path = kinds.iter().copied().any(|kind| is_path(&kind));
        MonitorName::of_marks(address, if has_path { &['+'] } else { &['+', '/'] })
    }

    /// As [`of`](Self::of), with the given separators before the directions. A `z` (zero copy) is allowed; `X/z` is
    /// both directions.
    fn of_marks(address: &'a str, marks: &[char]) -> Option<MonitorName<'a>> {
        let (port, how) = address.rsplit_once(marks)?;
        let is_both = how == "z" && address.ends_with("/z");
        let [receive, transmit] = ['r', 't'].map(|direction| is_both || how.contains(direction));
        let is_meant = !port.is_empty() && how.bytes().all(|c| b"rtz".contains(&c)) && (receive || transmit);
        is_meant.then_some(MonitorName { port, receive, transmit })
    }
}
