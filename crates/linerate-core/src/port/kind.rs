//! Kinds of ports as names need them: how the names look, and their options.

use std::fmt;

use super::grammar::{count, is_pipe, is_vale};

/// How the names of a kind look.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `prefix:address`.
    Prefix,
    /// Another form: how it is written in messages, and a function that recognises a name without its options.
    Other(&'static str, fn(&str) -> bool),
    /// `X+r`, `X+t`, `X+rt`: copies of another port's packets.
    Monitor,
}

/// A category of ports, by the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A card on a bus of this machine.
    Card,
    /// A card that another process serves.
    ServedCard,
    /// A model of a card inside this process.
    Model,
    /// An interface of the kernel's, over AF_XDP.
    Xdp,
    /// An interface of the kernel's, over packet sockets.
    Packet,
    /// The kernel's network stack.
    Stack,
    /// Memory of this process, which no other reaches.
    Memory,
    /// A port that another process serves (`linerate::share`).
    Server,
    /// A process at the other end of a socket, which may use fewer queues than the port has.
    Peer,
    /// A capture file. It takes frames of any length, and one that is read ends.
    Capture,
    /// Nothing: it takes frames of any length.
    Nothing,
    /// Whatever the program makes of it.
    Program,
}

/// The part of a name behind the colon.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// Any text.
    Text,
    /// The name of an interface of the kernel's.
    Interface,
    /// The path of a socket, or of a device's file.
    Socket,
    /// The path of a file.
    File,
    /// The name of another port, whose options may be in the name, too.
    Port,
    /// Text that a function checks, or the whole name where that has [another form](Form::Other); it returns what is wrong.
    Checked(fn(&str) -> std::result::Result<(), &'static str>),
}

/// An option of a port's name.
#[derive(Clone, Copy, Debug)]
pub struct PortOption {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub value: Value,
    /// Its value if the name has none; empty if that is something else than a value.
    pub default: &'static str,
    /// Its effect, in one line.
    pub help: &'static str,
}

/// The values of an option.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// `on` or `off`; the option alone is `on`.
    Switch,
    /// A number from the first to the last; `1k`, `1M` and `1e6` are numbers, too.
    Number(usize, usize),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text, which the kind reads itself; how it is written in help.
    Text(&'static str),
}

/// The devices and programs that a kind of port was tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maturity {
    /// With hardware.
    Hardware,
    /// With devices, drivers or programs of other projects.
    Others,
    /// With this project's own models and ports alone.
    Models,
}

/// A name with braces is a pipe's end, whatever its beginning looks like, unless it is that of a port around the pipe's end.
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

/// A kind of port: its names, options and properties.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The text in front of the colon of its names. No name has one that is empty, or that contains a colon or a question mark.
    pub prefix: &'static str,
    /// How its names look.
    pub form: Form,
    /// The part of its names behind the colon.
    pub address: Address,
    /// Its options. Each kind has [`CLUSTER`](super::CLUSTER) and [`BY`](super::BY) besides.
    pub options: &'static [PortOption],
    /// The cargo feature that builds it; empty if every build has it.
    pub feature: &'static str,
    /// An example of a name.
    pub example: &'static str,
    /// A description of the example, in one line.
    pub what: &'static str,
    /// The page of `docs` that has more; empty if there is none.
    pub page: &'static str,
    /// The devices and programs that it was tried with.
    pub maturity: Maturity,
    /// The question to ask while a port has no link.
    pub no_link: &'static str,
    /// The category of its ports.
    pub behind: Behind,
    /// Another process may serve its ports (`linerate::share`).
    pub may_be_served: bool,
    /// It hands packets out to several consumers itself ([`CLUSTER`](super::CLUSTER)).
    pub hands_out: bool,
    /// Its port has the address of the first other port that is opened with it.
    pub has_neighbours_address: bool,
    /// An option that needs larger buffers when it is on, and their size.
    pub large_buffers: Option<(&'static str, usize)>,
    /// This build has it.
    pub is_built: bool,
}

impl Description {
    /// Returns one without options.
    pub const fn new(prefix: &'static str, address: Address) -> Description {
        Description {
            prefix,
            form: Form::Prefix,
            address,
            options: &[],
            feature: "",
            example: "",
            what: "",
            page: "",
            maturity: Maturity::Models,
            no_link: "is the cable plugged in, and the other end up?",
            behind: Behind::Program,
            may_be_served: false,
            hands_out: false,
            has_neighbours_address: false,
            large_buffers: None,
            is_built: true,
        }
    }

    /// Returns how its names look, for messages.
    pub fn looks(&self) -> String {
        let address = match (self.form, self.address) {
            (Form::Other(looks, _), _) => return looks.to_string(),
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

    /// Returns its option of this name.
    pub fn option(&self, name: &str) -> Option<&'static PortOption> {
        self.options.iter().find(|option| option.name == name)
    }

    /// Returns whether an address without options is a name of this kind.
    pub(super) fn fits(&self, address: &str) -> bool {
        match self.form {
            Form::Prefix => {
                let prefix = address.split_once(':').map(|(prefix, _)| prefix);
                let is_around = matches!(self.address, Address::Port);
                prefix.is_some_and(|prefix| !prefix.is_empty() && prefix == self.prefix)
                    && (is_around || !is_pipe(address))
            }
            Form::Other(_, fits) => fits(address),
            Form::Monitor => false,
        }
    }

    /// Returns whether its address is a path.
    pub(super) fn has_path(&self) -> bool {
        matches!(self.address, Address::Socket | Address::File)
    }
}

impl PortOption {
    /// Returns an option that is `off` unless it is given.
    pub const fn switch(name: &'static str, help: &'static str) -> PortOption {
        PortOption { name, value: Value::Switch, default: "off", help }
    }

    /// Returns why a value is none of this option's.
    pub(super) fn refusal(&self, text: &str) -> Option<String> {
        match self.value {
            Value::Switch if !matches!(text, "on" | "off") => Some("it must be on or off".to_string()),
            Value::Number(least, most) => {
                let value = count(text).and_then(|value| usize::try_from(value).ok());
                let is_good = value.is_some_and(|value| (least..=most).contains(&value));
                // Short ranges need no prefix.
                let examples = if most >= 1_000_000 { ", such as 1000, 1k, 1M or 1e6" } else { "" };
                (!is_good).then(|| format!("it must be a number from {least} to {most}{examples}"))
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
    /// Writes it as it stands in a name, with its values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Value::Switch => write!(f, "{}=on|off", self.name),
            Value::Number(..) => write!(f, "{}=N", self.name),
            Value::Word(words) => write!(f, "{}={}", self.name, words.join("|")),
            Value::Text(what) => write!(f, "{}={what}", self.name),
        }
    }
}
