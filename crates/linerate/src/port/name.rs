//! The grammar of port names.

use std::fmt;
use std::ops::RangeInclusive;

use crate::error::{Error, NO_KIND, Result};

/// A parsed port name: `kind:rest?option=value&option=value`. An option without a value is switched on.
///
/// ```text
/// 0000:03:00.0          a PCI card, by address
/// sim:NAME              an 82599 model inside the process
/// vfio-user:PATH        a PCI device that is served at a socket
/// vhost:PATH            the card of a virtual machine that connects to a socket; ?client=on connects to it
/// virtio-user:PATH      a card at a vhost-user back end that listens at a socket; ?server=on waits for it there
/// memif:PATH            a peer over FD.io's shared memory interface, whose socket is there; ?role=server waits for it
/// packet:IF             an interface of the kernel's, over AF_PACKET: a copy of what it receives
/// tap:NAME              a TAP interface, whose other end is Linux
/// host:, host:NAME      the same, with the address of the port beside it: Linux goes on using that card
/// xdp:IF, xdp:IF-Q      an interface of the kernel's, or one of its queues, over AF_XDP
/// X{N, X}N              the two ends of pipe N; X is any name
/// X+r, X+t, X+rt        copies of what port X, which this process has open, receives or sends; X/rt is the same
/// null:                 a port that discards packets sent to it, and never receives
/// faulty:PORT?drop=1%   a port around another that loses, damages, repeats and reorders packets
/// recorded:PORT?to=FILE a port around another whose packets are recorded
/// pcap:FILE             a capture file that is read; pcap:FILE?write records into it
/// valeS:P               port P of switch S
/// netmap:IF, netmap:IF-Q  netmap's names of xdp:IF and xdp:IF-Q
/// netmap:IF^            the kernel's network stack, detached from the interface
/// sim:0?rate=14.88M&size=64
/// PORT?cluster=N&by=flow  any of them, handed out to N consumers by flow
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    text: String,
    kind: Kind,
    rest: String,
    options: Vec<(String, String)>,
}

/// The kind of port that a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pci,
    Sim,
    VfioUser,
    Vhost,
    VirtioUser,
    Memif,
    Xdp,
    Tap,
    Host,
    Packet,
    Pipe,
    Vale,
    Netmap,
    Stack,
    Null,
    /// A kind that the program has added.
    Own,
    /// Copies of another port's packets.
    Monitor {
        receive: bool,
        transmit: bool,
    },
    Capture,
    /// Ports around another.
    Faulty,
    Recorded,
}

impl Kind {
    /// Returns the cargo feature that builds this kind; empty if every build has it.
    pub fn feature(self) -> &'static str {
        match self {
            Kind::Pci | Kind::Own | Kind::Faulty => "",
            Kind::Sim => "model",
            Kind::VfioUser => "vfio-user",
            Kind::Vhost | Kind::VirtioUser => "vhost",
            Kind::Memif => "memif",
            Kind::Xdp | Kind::Tap | Kind::Host | Kind::Packet | Kind::Netmap | Kind::Stack => "kernel",
            Kind::Pipe | Kind::Vale | Kind::Null | Kind::Monitor { .. } => "netmap",
            Kind::Capture | Kind::Recorded => "capture",
        }
    }
}

/// The error of an unknown option.
pub(crate) const NO_OPTION: &str = "there is no such option";
/// Options that every port takes, and those of `sim:`.
const OPTIONS: [&str; 13] = [
    "queues", "ring", "mtu", "offloads", "vectors", "device", "vfs", "wire", "record", "size", "flows", "rate", "count",
];
/// How many of them a card takes, too.
const CARD: usize = 5;
/// Those of `xdp:`.
const XDP: [&str; 8] = ["queues", "ring", "mtu", "flow", "copy", "busy", "steer", "alone"];
/// Those of `vhost:`.
const VHOST: [&str; 5] = ["queues", "mtu", "offloads", "client", "packed"];
/// Those of `virtio-user:`.
const VIRTIO_USER: [&str; 9] =
    ["queues", "ring", "mtu", "offloads", "vectors", "packed", "server", "in_order", "mergeable"];
/// Those of `memif:`.
const MEMIF: [&str; 7] = ["queues", "ring", "mtu", "role", "id", "secret", "zero-copy"];
/// Those of ports in memory, and of Linux's stack.
const MEMORY: [&str; 4] = ["queues", "ring", "mtu", "offloads"];
/// Those of ports of a switch, and of monitors.
const DELIVERED: [&str; 5] = ["queues", "ring", "mtu", "offloads", "timestamps"];
/// Those of `pcap:`.
const CAPTURE: [&str; 4] = ["write", "loop", "speed", "timestamps"];
/// Those that hand out any port's packets.
pub(crate) const CLUSTER: [&str; 2] = ["cluster", "by"];
/// Those of `packet:`.
const PACKET: [&str; 6] = ["queues", "ring", "mtu", "offloads", "flow", "timestamps"];

impl PortName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`Error::BadName`] for text that is not a port's name, [`Error::BadOption`] for an option that the kind lacks.
    pub fn parse(text: &str) -> Result<PortName> {
        PortName::parse_among(text, &[])
    }

    /// As [`parse`](PortName::parse), with kinds of the program's own.
    pub(crate) fn parse_among(text: &str, own: &[&str]) -> Result<PortName> {
        let bad = |why: String| Error::BadName { name: text.to_string(), why };
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let (prefix, rest) = address.split_once(':').unwrap_or(("", address));
        let monitored = monitored(address);
        let rest = monitored.map_or(rest, |(port, _)| port);
        let kind = match monitored {
            Some((_, kind)) => kind,
            None if own.contains(&prefix) => Kind::Own,
            None => kind_of(address, prefix, own).map_err(bad)?,
        };
        if kind == Kind::Pipe {
            let parts = address.split_once(['{', '}']);
            let is_number = |id: &str| !id.is_empty() && id.len() <= 5 && id.bytes().all(|c| c.is_ascii_digit());
            if !parts.is_some_and(|(parent, id)| !parent.is_empty() && is_number(id)) {
                return Err(bad("an end of a pipe is called X{N or X}N, where N is a number".to_string()));
            }
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if kind == Kind::Sim && (rest.is_empty() || rest.len() > 64 || !rest.chars().all(allowed)) {
            return Err(bad("a model's name has 1 to 64 letters, digits, '-', '_' or '.'".to_string()));
        }
        if matches!(kind, Kind::Xdp | Kind::Netmap | Kind::Stack | Kind::Tap | Kind::Packet)
            && (rest.is_empty() || rest.contains('/') || rest.chars().any(char::is_whitespace))
        {
            return Err(bad("it needs the name of an interface, as xdp:eth0".to_string()));
        }
        if kind == Kind::Capture && rest.is_empty() {
            return Err(bad("it needs the path of a file: pcap:in.pcap".to_string()));
        }
        if matches!(kind, Kind::VfioUser | Kind::Vhost | Kind::VirtioUser | Kind::Memif) && rest.is_empty() {
            return Err(bad(format!("it needs the path of a socket: {prefix}:/run/card")));
        }
        let mut name = PortName { text: text.to_string(), kind, rest: rest.to_string(), options: Vec::new() };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            // An option alone is switched on.
            let (option, value) = part.split_once('=').unwrap_or((part, "on"));
            if name.option(option).is_some_and(|first| first != value) {
                let first = name.option(option).unwrap_or_default();
                return Err(name.bad_option(
                    option,
                    &format!("it is also given as {option}={value}; keep one of {first} and {value}"),
                ));
            }
            name.options.push((option.to_string(), value.to_string()));
            let known = match kind {
                Kind::Sim => &OPTIONS[..],
                Kind::Pci | Kind::VfioUser => &OPTIONS[..CARD],
                Kind::Vhost => &VHOST,
                Kind::VirtioUser => &VIRTIO_USER,
                Kind::Memif => &MEMIF,
                Kind::Xdp | Kind::Netmap => &XDP,
                Kind::Vale | Kind::Monitor { .. } => &DELIVERED,
                Kind::Pipe | Kind::Null | Kind::Tap | Kind::Stack | Kind::Host => &MEMORY,
                Kind::Packet => &PACKET,
                // The program's opener, or the inner port, checks them.
                Kind::Own | Kind::Faulty | Kind::Recorded => continue,
                Kind::Capture => &CAPTURE,
            };
            if !known.contains(&option) && !CLUSTER.contains(&option) {
                let why = format!("{NO_OPTION}; there are {}, {}", known.join(", "), CLUSTER.join(", "));
                return Err(name.bad_option(option, &why));
            }
        }
        Ok(name)
    }

    /// Refuses all options but these; openers of a program's own kinds call it.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub fn allow(&self, options: &[&str]) -> Result<()> {
        let other = self.options.iter().find(|(option, _)| !options.contains(&option.as_str()));
        let why = format!("{NO_OPTION}; there are {}", options.join(", "));
        other.map_or(Ok(()), |(option, _)| Err(self.bad_option(option, &why)))
    }

    /// Returns whether the name denotes a device outside this process: a PCI card, or one that another process serves.
    pub fn is_device(&self) -> bool {
        matches!(self.kind, Kind::Pci | Kind::VfioUser)
    }

    /// Returns whether the port is, or wraps, a capture file that is read: packets sent to it are dropped.
    pub fn is_capture_to_read(&self) -> bool {
        self.innermost().starts_with("pcap:") && matches!(self.option("write"), None | Some("off"))
    }

    /// Returns whether the port is, or wraps, a capture file that is written: it receives nothing.
    pub fn is_capture_to_write(&self) -> bool {
        self.innermost().starts_with("pcap:") && self.option("write") == Some("on")
    }

    /// Returns whether another process may serve the port: one in memory, or an interface under netmap's name.
    pub fn may_be_served(&self) -> bool {
        matches!(self.kind, Kind::Pipe | Kind::Vale | Kind::Netmap)
    }

    /// Returns the name of the port inside all wrappers.
    fn innermost(&self) -> &str {
        let mut name = self.short();
        while let Some(inner) = name.strip_prefix("faulty:").or(name.strip_prefix("recorded:")) {
            name = inner;
        }
        name
    }

    /// Returns the name of the model that the port is, or wraps; `None` for other kinds.
    pub fn model(&self) -> Option<&str> {
        match self.kind {
            Kind::Sim | Kind::Faulty | Kind::Recorded => self.innermost().strip_prefix("sim:"),
            _ => None,
        }
    }

    /// Returns whether the port is packet sockets on an interface.
    pub fn is_packet(&self) -> bool {
        self.kind == Kind::Packet
    }

    /// Returns whether the port is, or wraps, an AF_XDP socket on an interface.
    pub fn is_xdp(&self) -> bool {
        match self.kind {
            Kind::Xdp | Kind::Netmap => true,
            Kind::Faulty | Kind::Recorded => {
                let name = self.innermost();
                name.starts_with("xdp:") || name.starts_with("netmap:")
            }
            _ => false,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the part after the kind, without options.
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Returns the name without options.
    pub fn short(&self) -> &str {
        self.text.split('?').next().unwrap_or(&self.text)
    }

    /// Returns the name with its file's or socket's path made absolute, for a process with another working directory.
    ///
    /// # Errors
    /// [`Error::System`] without a working directory.
    ///
    /// ```
    /// use linerate::port::PortName;
    ///
    /// let name = PortName::parse("vhost:/run/vm.sock?queues=2")?;
    /// assert_eq!(name.with_absolute_path()?, "vhost:/run/vm.sock?queues=2");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn with_absolute_path(&self) -> Result<String> {
        let has_path =
            matches!(self.kind, Kind::VfioUser | Kind::Vhost | Kind::VirtioUser | Kind::Memif | Kind::Capture);
        if !has_path {
            return Ok(self.text.clone());
        }
        let (kind, behind) = self.text.split_once(':').expect("these kinds are written in front of a colon");
        let path = std::path::absolute(&self.rest).map_err(|error| Error::system("getcwd", error))?;
        Ok(format!("{kind}:{}{}", path.display(), &behind[self.rest.len()..]))
    }

    /// Returns the name without some of its options.
    pub(crate) fn without(&self, left: &[&str]) -> String {
        let options = self.options().filter(|(option, _)| !left.contains(option));
        let options: Vec<String> = options.map(|(option, value)| format!("{option}={value}")).collect();
        if options.is_empty() { self.short().to_string() } else { format!("{}?{}", self.short(), options.join("&")) }
    }

    /// Returns all options, in order.
    pub(crate) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(option, value)| (&**option, &**value))
    }

    /// Returns an option's value.
    pub fn option(&self, option: &str) -> Option<&str> {
        self.options.iter().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }

    /// Returns the least buffer size for the port's packets: 4,096 bytes for a client of memif that lends its buffers, also
    /// inside another port; 2,048 for all others with frames of the usual length.
    pub fn buffer_size(&self) -> usize {
        if self.option("zero-copy") == Some("on") { 4096 } else { 2048 }
    }

    /// Reads an option that is `on` or `off`.
    ///
    /// # Errors
    /// [`Error::BadOption`] if it is neither.
    pub fn switch(&self, option: &str, default: bool) -> Result<bool> {
        match self.option(option) {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(_) => Err(self.bad_option(option, "it must be on or off")),
        }
    }

    /// Reads an option that is a number; `k` stands for thousands, `M` for millions, `G` for thousands of millions.
    ///
    /// # Errors
    /// [`Error::BadOption`] if it is none, or outside `allowed`.
    pub fn number(&self, option: &str, default: usize, allowed: RangeInclusive<usize>) -> Result<usize> {
        let Some(text) = self.option(option) else { return Ok(default) };
        let value = count(text).and_then(|value| usize::try_from(value).ok());
        value.filter(|value| allowed.contains(value)).ok_or_else(|| {
            let (first, last) = (allowed.start(), allowed.end());
            // Short ranges need no prefix.
            let examples = if *last >= 1_000_000 { ", such as 1000, 1k, 1M or 1e6" } else { "" };
            self.bad_option(option, &format!("it must be a number from {first} to {last}{examples}"))
        })
    }

    pub(crate) fn bad_option(&self, option: &str, why: &str) -> Error {
        let value = self.option(option).unwrap_or_default().to_string();
        Error::BadOption { name: self.short().to_string(), option: option.to_string(), value, why: why.to_string() }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

/// Reads a count: digits, perhaps with a fraction, and `k` or `K`, `M` or `G`, or an exponent; `None` if it is none, or
/// not whole.
///
/// ```
/// use linerate::port::count;
/// assert_eq!((count("64"), count("1M"), count("1.5k"), count("1.5")), (Some(64), Some(1_000_000), Some(1500), None));
/// assert_eq!((count("1e6"), count("1.5e3"), count("1e-1")), (Some(1_000_000), Some(1500), None));
/// ```
pub fn count(text: &str) -> Option<u64> {
    if text.contains(['e', 'E']) && text.starts_with(|first: char| first.is_ascii_digit()) {
        let value: f64 = text.parse().ok()?;
        return ((0.0..1e19).contains(&value) && value.fract() == 0.0).then_some(value as u64);
    }
    let (digits, zeros) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let rest = 10u64.checked_pow(u32::checked_sub(zeros, fraction.len() as u32)?)?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? * rest };
    whole.parse::<u64>().ok()?.checked_mul(10u64.pow(zeros))?.checked_add(fraction)
}

/// Returns whether a name is that of a pipe's end.
pub(crate) fn is_pipe(name: &str) -> bool {
    name.contains(['{', '}'])
}

/// Returns whether a name is that of a switch, or of a port of one.
pub(crate) fn is_vale(name: &str) -> bool {
    name.starts_with("vale")
}

/// The kinds of ports, for messages.
const KINDS: &str = "PCI addresses, sim:, vfio-user:, vhost:, virtio-user:, memif:, xdp:, packet:, tap:, host:, pcap:, null:, \
    valeS:P, netmap:, X{N, X}N, faulty: and recorded:";

/// Returns the kind of an address without options.
fn kind_of(address: &str, prefix: &str, own: &[&str]) -> std::result::Result<Kind, String> {
    Ok(match prefix {
        _ if is_pci_address(address) => Kind::Pci,
        "faulty" => Kind::Faulty,
        "recorded" => Kind::Recorded,
        _ if is_pipe(address) => Kind::Pipe,
        "sim" => Kind::Sim,
        "vfio-user" => Kind::VfioUser,
        "vhost" => Kind::Vhost,
        "virtio-user" => Kind::VirtioUser,
        "memif" => Kind::Memif,
        "xdp" => Kind::Xdp,
        "packet" => Kind::Packet,
        "tap" => Kind::Tap,
        "host" => Kind::Host,
        "netmap" if address.ends_with('^') => Kind::Stack,
        "netmap" if address.ends_with('*') => {
            return Err("that is two ports: netmap:IF, and netmap:IF^ for the host's stack".to_string());
        }
        "netmap" => Kind::Netmap,
        "pcap" => Kind::Capture,
        "null" => Kind::Null,
        _ if is_vale(prefix) => Kind::Vale,
        "" => return Err(format!("{NO_KIND}, as in kind:name")),
        _ => {
            let own: String = own.iter().map(|kind| format!("{kind}:, ")).collect();
            return Err(format!("there is no kind of port '{prefix}:'; there are {own}{KINDS}"));
        }
    })
}

/// Returns the monitored port and the directions of `X+rt` or netmap's `X/rt`; a `z` (zero copy) is allowed, and `X/z` is both directions.
fn monitored(address: &str) -> Option<(&str, Kind)> {
    // A path may have such an end.
    let has_path = |kind: &&str| address.starts_with(*kind) || address.contains(&format!(":{kind}"));
    let marks: &[char] = if ["vfio-user:", "vhost:", "virtio-user:", "memif:", "pcap:"].iter().any(has_path) {
        &['+']
    } else {
        &['+', '/']
    };
    let (port, how) = address.rsplit_once(marks)?;
    let is_both = how == "z" && address.ends_with("/z");
    let kind = Kind::Monitor { receive: is_both || how.contains('r'), transmit: is_both || how.contains('t') };
    let is_meant =
        !port.is_empty() && how.bytes().all(|c| b"rtz".contains(&c)) && (is_both || how.contains(['r', 't']));
    is_meant.then_some((port, kind))
}

/// `domain:bus:device.function` in hexadecimal, as `0000:03:00.0`; the domain may be left out.
fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|c| c.is_ascii_hexdigit());
    let Some((path, function)) = text.split_once('.') else { return false };
    let parts: Vec<&str> = path.split(':').collect();
    hex(function, 1)
        && match parts[..] {
            [bus, device] => hex(bus, 2) && hex(device, 2),
            [domain, bus, device] => hex(domain, 4) && hex(bus, 2) && hex(device, 2),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart() {
        let name = PortName::parse("sim:a-1?rate=14.88M&size=128&size=128").unwrap();
        assert_eq!((name.kind(), name.rest(), name.short()), (Kind::Sim, "a-1", "sim:a-1"));
        assert_eq!((name.option("rate"), name.option("flows")), (Some("14.88M"), None));
        assert_eq!(name.number("size", 64, 64..=1518).unwrap(), 128);
        for (text, value) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("99999999999999999999", None),
            ("18446744074G", None),
            ("", None),
        ] {
            assert_eq!(count(text), value, "{text}");
        }
        for text in [
            "e6", "1e", "1e999", "1e19", "infinite", "-1e3", "k", "-1", "+1", "1.0001k", "1.k", ".5k", "1kk", "1é", "é",
        ] {
            assert_eq!(count(text), None, "{text}");
        }
        assert_eq!(PortName::parse("sim:0?count=2k").unwrap().number("count", 0, 0..=9999).unwrap(), 2000);
    }

    #[test]
    fn kinds_that_come_later_are_known() {
        assert_eq!(PortName::parse("0000:03:00.0?queues=2").unwrap().kind(), Kind::Pci);
        assert_eq!(PortName::parse("03:00.0").unwrap().short(), "03:00.0");
        assert!(PortName::parse("03:00.0?wire=none").unwrap_err().with_hint().contains("no such option"));
        assert_eq!(PortName::parse("vfio-user:/tmp/x?ring=64").unwrap().rest(), "/tmp/x");
        let xdp = PortName::parse("xdp:eth0-3?flow=udp:1+from:fd00::/8").unwrap();
        assert_eq!((xdp.kind(), xdp.rest(), xdp.option("flow")), (Kind::Xdp, "eth0-3", Some("udp:1+from:fd00::/8")));
        assert_eq!(PortName::parse("netmap:if0^").unwrap().kind(), Kind::Stack);
        let capture = PortName::parse("pcap:x.pcap?write").unwrap();
        assert_eq!((capture.kind(), capture.rest(), capture.option("write")), (Kind::Capture, "x.pcap", Some("on")));
    }

    #[test]
    fn ports_in_memory_have_names() {
        let both = Kind::Monitor { receive: true, transmit: true };
        assert_eq!(PortName::parse("vale0:a/zrt").unwrap().rest(), "vale0:a");
        for text in ["sim:0+rt", "p{1/tr", "vale0:a/z"] {
            assert_eq!(PortName::parse(text).unwrap().kind(), both, "{text}");
        }
        for (text, kind) in
            [("null:", Kind::Null), ("vale0:p", Kind::Vale), ("vale0:p{3", Kind::Pipe), ("a}12?ring=64", Kind::Pipe)]
        {
            assert_eq!(PortName::parse(text).unwrap().kind(), kind, "{text}");
        }
    }

    #[test]
    fn a_wrapped_port_is_known_by_its_inner_name() {
        let wrapped = PortName::parse("faulty:recorded:sim:a?to=x&drop=1%").unwrap();
        assert_eq!((wrapped.kind(), wrapped.rest(), wrapped.model()), (Kind::Faulty, "recorded:sim:a", Some("a")));
        assert!(PortName::parse("faulty:xdp:eth0").unwrap().is_xdp() && !wrapped.is_xdp());
        assert_eq!(PortName::parse("recorded:pcap:/tmp/rt?to=x").unwrap().kind(), Kind::Recorded, "no monitor of /tmp");
        assert_eq!(PortName::parse("faulty:sim:a+rt").unwrap().rest(), "faulty:sim:a");
        assert_eq!(PortName::parse("faulty:sim:a+rt").unwrap().model(), None, "a monitor is no model");
    }

    #[test]
    fn bad_names_are_explained() {
        let bad = [
            ("", "no kind"),
            ("eth0", "no kind"),
            ("eth0", "did you mean xdp:eth0 or packet:eth0?"),
            ("eth0?flow=udp", "did you mean xdp:eth0 or packet:eth0?"),
            ("foo:1", "there are PCI addresses, sim:, "),
            ("sim:", "1 to 64"),
            ("vfio-user:", "path of a socket"),
            ("xdp:", "name of an interface"),
            ("xdp:eth0?wire=none", "no such option"),
            ("vfio-user:/x?wire=none", "no such option"),
            ("sim:a b", "1 to 64"),
            ("foo:1", "no kind of port 'foo:'"),
            ("sim:0?x", "no such option"),
            ("sim:0?size=64&size=128", "option size=64: it is also given as size=128"),
            ("faulty:sim:0?drop=1%&drop=2%", "option drop=1%: it is also given as drop=2%"),
            ("pcap:", "path of a file"),
            ("pcap:x?mtu=1500", "no such option; there are write, loop, speed"),
            ("sim:0?x=1", "no such option"),
            ("x{", "where N is a number"),
            ("{1", "where N is a number"),
            ("x{1}2", "where N is a number"),
            ("x{123456", "where N is a number"),
            ("vale0:p?wire=none", "no such option"),
            ("netmap:if0*", "two ports"),
        ];
        for (name, why) in bad {
            let message = PortName::parse(name).unwrap_err().with_hint();
            assert!(message.contains(why), "{name}: {message}");
        }
        let message = PortName::parse("sim:0?ring=x").unwrap().number("ring", 512, 64..=4096).unwrap_err().with_hint();
        assert!(message.contains("ring=x") && message.contains("64 to 4096"), "{message}");
    }
}
