//! The description of a kind of port: the form of its names, its options and properties.

use std::fmt;

use super::grammar::{count, is_pipe, is_vale};

/// The form of a kind's names.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `prefix:address`.
    Prefix,
    /// Another form: its notation for messages, and a function that recognises a name without options.
    Other(&'static str, fn(&str) -> bool),
    /// `X+r`, `X+t`, `X+rt`: copies of another port's packets.
    Monitor,
}

/// A category of ports, by what the port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClass {
    /// A card on a bus of this machine.
    Card,
    /// A card that another process serves.
    ServedCard,
    /// A model of a card inside this process.
    Model,
    /// A kernel interface, over AF_XDP.
    Xdp,
    /// A kernel interface, over packet sockets.
    Packet,
    /// The kernel's network stack.
    Stack,
    /// Memory that only this process can access.
    Memory,
    /// A port that another process serves (`linerate::share`).
    Server,
    /// A process at the other end of a socket. It may use fewer queues than the port has.
    Peer,
    /// A capture file. It accepts frames of any length; when read, it ends.
    Capture,
    /// Nothing. It accepts frames of any length.
    Nothing,
    /// A kind of port that the program defines.
    Program,
}

/// The part of a name after the colon.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// Any text.
    Text,
    /// The name of a kernel interface.
    Interface,
    /// The path of a socket, or of a device's file.
    Socket,
    /// The path of a file.
    File,
    /// The name of another port. The name may also contain that port's options.
    Port,
    /// Text that a function checks; it returns what is wrong. For [another form](Form::Other) it checks the full name.
    Checked(fn(&str) -> std::result::Result<(), &'static str>),
}

/// An option of a port's name.
#[derive(Clone, Copy, Debug)]
pub struct PortOption {
    /// The option's name.
    pub name: &'static str,
    /// The option's values.
    pub value: Value,
    /// The default value; empty if the default is not a fixed value.
    pub default: &'static str,
    /// The option's effect, in one line.
    pub help: &'static str,
}

/// The values of an option.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// `on` or `off`; an option without a value is `on`.
    Switch,
    /// A number between a minimum and a maximum; `1k`, `1M` and `1e6` are also numbers.
    Number(usize, usize),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text that the kind parses itself; holds the placeholder for help texts.
    Text(&'static str),
}

/// The devices and programs that a kind of port was tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maturity {
    /// Hardware.
    Hardware,
    /// Devices, drivers or programs of other projects.
    Others,
    /// Only this project's models and ports.
    Models,
}

/// A name with braces is a pipe's end, whatever it starts with, unless it names a port that wraps the pipe's end.
impl Form {
    /// `X{N` and `X}N`
    pub const PIPE: Form = Form::Other("X{N, X}N", is_pipe);
    /// `valeS:P`
    pub const VALE: Form = Form::Other("valeS:P", |name| is_vale(name) && name.contains(':') && !is_pipe(name));
    /// `netmap:IF`
    pub const NETMAP: Form =
        Form::Other("netmap:IF", |name| name.starts_with("netmap:") && !name.ends_with('^') && !is_pipe(name));
    /// `netmap:IF^`
    pub const STACK: Form =
        Form::Other("netmap:IF^", |name| name.starts_with("netmap:") && name.ends_with('^') && !is_pipe(name));
}

/// Counts buffers from the category of the innermost port and the options of the name.
pub type HeldBuffers = fn(PortClass, &[(&str, &str)]) -> usize;

/// A kind of port: its names, options and properties.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The part of names before the colon. If it is empty or contains a colon or a question mark, no name matches it.
    pub prefix: &'static str,
    /// The form of names.
    pub form: Form,
    /// The part of names after the colon.
    pub address: Address,
    /// The kind's options. Every kind also has [`CLUSTER`](super::CLUSTER) and [`BY`](super::BY).
    pub options: &'static [PortOption],
    /// The cargo feature that includes the kind; empty if every build has it.
    pub feature: &'static str,
    /// An example of a name.
    pub example: &'static str,
    /// A description of the example, in one line.
    pub summary: &'static str,
    /// The page of `docs` with details; empty if there is none.
    pub page: &'static str,
    /// The devices and programs that the kind was tested with.
    pub maturity: Maturity,
    /// The question to display while a port has no link.
    pub no_link: &'static str,
    /// The category of the kind's ports.
    pub class: PortClass,
    /// Whether another process may serve ports of this kind (`linerate::share`).
    pub may_be_served: bool,
    /// Whether the kind itself distributes packets to several consumers ([`CLUSTER`](super::CLUSTER)).
    pub distributes: bool,
    /// Whether a port gets the MAC address of the first other port that is opened together with it.
    pub copies_peer_mac: bool,
    /// An option that needs larger buffers when it is on, and their size.
    pub large_buffers: Option<(&'static str, usize)>,
    /// Returns how many buffers a queue in each direction needs for packets that it holds.
    pub held_buffers: Option<HeldBuffers>,
    /// Whether this build includes the kind.
    pub is_built: bool,
}

impl Description {
    /// Creates a description without options.
    pub const fn new(prefix: &'static str, address: Address) -> Description {
        Description {
            prefix,
            form: Form::Prefix,
            address,
            options: &[],
            feature: "",
            example: "",
            summary: "",
            page: "",
            maturity: Maturity::Models,
            no_link: "is the cable plugged in, and the other end up?",
            class: PortClass::Program,
            may_be_served: false,
            distributes: false,
            copies_peer_mac: false,
            large_buffers: None,
            held_buffers: None,
            is_built: true,
        }
    }

    /// Returns the notation of the kind's names, for messages.
    pub fn notation(&self) -> String {
        let address = match (self.form, self.address) {
            (Form::Other(notation, _), _) => return notation.to_string(),
            (Form::Monitor, _) => return "X+rt".to_string(),
            (Form::Prefix, Address::Text) => "",
            (Form::Prefix, Address::Interface) => "IF",
            (Form::Prefix, Address::Socket) => "PATH",
            (Form::Prefix, Address::File) => "FILE",
            (Form::Prefix, Address::Port) => "PORT",
            (Form::Prefix, Address::Checked(_)) => "NAME",
        };
        format!("{}:{address}", self.prefix)
    }

    /// Returns the kind's option of this name.
    pub fn option(&self, name: &str) -> Option<&'static PortOption> {
        self.options.iter().find(|option| option.name == name)
    }

    /// Returns whether a name without options is of this kind.
    pub(super) fn matches(&self, address: &str) -> bool {
        match self.form {
            Form::Prefix => {
                let prefix = address.split_once(':').map(|(prefix, _)| prefix);
                let is_around = matches!(self.address, Address::Port);
                prefix.is_some_and(|prefix| !prefix.is_empty() && prefix == self.prefix)
                    && (is_around || !is_pipe(address))
            }
            Form::Other(_, matches) => matches(address),
            Form::Monitor => false,
        }
    }

    /// Returns whether the address of names is a path.
    pub(super) fn has_path(&self) -> bool {
        matches!(self.address, Address::Socket | Address::File)
    }
}

impl PortOption {
    /// Creates an option that is `off` by default.
    pub const fn switch(name: &'static str, help: &'static str) -> PortOption {
        PortOption { name, value: Value::Switch, default: "off", help }
    }

    /// Returns why a value is not allowed for this option; `None` if it is.
    pub(super) fn refusal(&self, text: &str) -> Option<String> {
        match self.value {
            Value::Switch if !matches!(text, "on" | "off") => Some("it must be on or off".to_string()),
            Value::Number(least, most) => {
                let value = count(text).and_then(|value| usize::try_from(value).ok());
                let is_good = value.is_some_and(|value| (least..=most).contains(&value));
                // Small ranges need no examples with units.
                let examples = if most >= 1_000_000 { ", such as 1000, 1k, 1M or 1e6" } else { "" };
                let range = match (least, most) {
                    (0, usize::MAX) => String::new(),
                    (_, usize::MAX) => format!(" of at least {least}"),
                    _ => format!(" from {least} to {most}"),
                };
                (!is_good).then(|| format!("it must be a number{range}{examples}"))
            }
            Value::Word(words) if !words.contains(&text) => {
                let (last, first) = words.split_last()?;
                Some(format!("it must be {} or {last}", first.join(", ")))
            }
            _ => None,
        }
    }
}

impl fmt::Display for PortOption {
    /// Writes the option as it is used in names, with its values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Value::Switch => write!(f, "{}=on|off", self.name),
            Value::Number(..) => write!(f, "{}=N", self.name),
            Value::Word(words) => write!(f, "{}={}", self.name, words.join("|")),
            Value::Text(what) => write!(f, "{}={what}", self.name),
        }
    }
}
