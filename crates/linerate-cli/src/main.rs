//! The `linerate` command.
//!
//! - `fwd`, `generate`, `sink`, `latency`, `ports`, `bind`: a command each (`bind` has `unbind`, too)
//! - `bench`: the ixy paper's evaluation, and its report
//! - `sim`: models as PCI devices, for virtual machines and other programs
//! - `serve`: ports for other processes; `switch`: what is served, and attached to switches
//! - `run`: what those share: opened ports, pinned threads, the end of a run
//! - `show`: the live table and the JSON lines; `profile`: where a forwarder's cycles go;
//!   `tune`: `--batch auto`

mod bench;
mod bind;
mod fwd;
mod generate;
mod latency;
mod ports;
mod profile;
mod run;
mod serve;
mod show;
mod sim;
mod sink;
mod switch;
mod tune;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use linerate::memory::{self, PageSize};
use linerate::port;
use tune::Tuner;

/// User-space packet I/O: forward, generate, receive and check packets without the kernel.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Forward between two ports, both ways, touching one byte of each packet
    Fwd {
        /// The first port, for example sim:0
        a: String,
        /// The second port
        b: String,
        /// A port for what comes in at the first and is not forwarded, and for what that answers, for example host:
        #[arg(long, value_name = "PORT")]
        rest: Option<String>,
        /// Stop after this many packets
        #[arg(long)]
        count: Option<u64>,
        /// Show where the cycles go: receive, touch, send
        #[arg(long)]
        profile: bool,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        common: Common,
    },
    /// Let some packets through and drop the others: between two ports, or all of one port as fast as it can
    Filter {
        /// The first port, for example xdp:eth0
        a: String,
        /// The second port
        b: Option<String>,
        /// Stop after this many packets
        #[arg(long)]
        count: Option<u64>,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        common: Common,
    },
    /// Send packets with flows and sequence numbers
    Gen {
        /// The port to send to
        port: String,
        #[command(flatten)]
        traffic: generate::Traffic,
        #[command(flatten)]
        common: Common,
    },
    /// Receive packets, check their sequence numbers, report loss and reordering
    Sink {
        /// The port to receive from
        port: String,
        /// Stop after this many packets
        #[arg(long)]
        count: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Measure how long frames take: through fwd, from the wire of one model to that of another; or from a port to another
    Latency {
        /// Where frames enter, for example sim:0
        a: String,
        /// Where they leave
        b: String,
        #[command(flatten)]
        load: latency::Load,
        #[command(flatten)]
        common: Common,
    },
    /// Measure what the ixy paper measured, and write a report
    Bench(bench::Bench),
    /// Take cards from the kernel, for programs to use
    Bind {
        /// The cards' addresses, for example 0000:03:00.0
        #[arg(required = true)]
        cards: Vec<String>,
        /// Over vfio, behind the IOMMU (the default where there is one)
        #[arg(long, conflicts_with = "uio")]
        vfio: bool,
        /// Over uio, as root and without an IOMMU
        #[arg(long)]
        uio: bool,
        /// Even if Linux is using the card
        #[arg(long)]
        force: bool,
    },
    /// Give cards back to the drivers that they came from
    Unbind {
        /// The cards' addresses
        #[arg(required = true)]
        cards: Vec<String>,
    },
    /// Serve 82599 models as PCI devices, over vfio-user: to virtual machines, or to `vfio-user:PATH`
    Sim {
        /// Where a card is served; several times for several cards
        #[arg(long, required = true)]
        socket: Vec<PathBuf>,
        /// What is at each card's outside, in the order of the sockets: none, sink, traffic?rate=1M&size=64,
        /// tap:NAME, pcap:FILE, sim:NAME (another card, named as its socket's file), or a port, as 0000:03:00.0.
        /// Two cards without are connected with each other
        #[arg(long)]
        wire: Vec<String>,
        /// Which card each is, in the order of the sockets; one is for all: 82599-sfp, 82599-kx4, x540, x550
        #[arg(long)]
        device: Vec<String>,
        /// Virtual functions of each card, served at PATH.vf0, PATH.vf1 and so on
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=32))]
        vfs: u8,
        /// Stop after this many seconds
        #[arg(long, value_parser = seconds)]
        seconds: Option<Duration>,
        /// The last line is a JSON object: the summary
        #[arg(long)]
        json: bool,
    },
    /// Serve ports to other processes: switches, interfaces and pipes, under netmap's names
    Serve {
        /// Switches and interfaces, for example vale0; a socket each. All names if left out, at one socket
        names: Vec<String>,
        /// Who may use them: the sockets' permissions, in octal
        #[arg(long, default_value = "0600", value_parser = octal)]
        mode: u32,
        /// The sockets' group
        #[arg(long)]
        group: Option<String>,
        /// Let the two ends of a pipe be programs of different users, which share its memory
        #[arg(long)]
        join_users: bool,
        /// Stop after this many seconds
        #[arg(long, value_parser = seconds)]
        seconds: Option<Duration>,
    },
    /// Manage what is served
    Switch {
        #[command(subcommand)]
        command: Switch,
    },
    /// List what can be opened here, and what stands in the way
    Ports {
        /// One JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum Switch {
    /// Ports, and what has passed
    #[command(visible_alias = "stats")]
    List {
        /// One JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Attach an interface, or a port that lasts, to a switch
    Attach {
        /// As vale0:eth0
        port: String,
        /// The host's stack behind the interface, too
        #[arg(long)]
        host: bool,
    },
    /// Take it off again
    Detach {
        /// As vale0:eth0
        port: String,
    },
    /// Make a port that lasts: it stays when no program has it
    Create {
        /// Its name, as v1
        port: String,
    },
    /// Take it away
    Destroy {
        /// Its name
        port: String,
    },
}

/// What all commands that move packets take.
#[derive(Args, Clone)]
struct Common {
    /// Packets that are received or sent at a time: 1 to 4096, or auto, where fwd looks for what costs least
    #[arg(long, default_value = "32")]
    batch: BatchSize,
    /// Descriptors in each ring, a power of two from 64 to 4096; 512 if left out, 2048 to receive from another process
    #[arg(long)]
    ring: Option<u16>,
    /// Queues of each port, each served by a thread of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The longest payload of a frame; longer than a buffer, frames become chains
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(46..=9710))]
    mtu: u16,
    /// Stop after this many seconds
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Processors for the threads, for example 0,2; without it the kernel chooses
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(..1024))]
    cores: Vec<u16>,
    /// What packets' memory is made of
    #[arg(long, value_enum, default_value_t = Pages::Auto)]
    pages: Pages,
    /// The NUMA node of packets' memory; near the card is best
    #[arg(long)]
    numa: Option<u32>,
    /// How a thread waits while no packets come: poll, but adaptive for a port that another process serves
    #[arg(long, value_enum)]
    wait: Option<Wait>,
    /// Between two interrupts of a queue pass at least so many microseconds, if the card can
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(..8192))]
    throttle: u16,
    /// Take cards from the kernel for this run, and give them back at its end
    #[arg(long)]
    bind: bool,
    /// With --bind: even if Linux is using the card
    #[arg(long, requires = "bind")]
    force: bool,
    /// One JSON object per second and line instead of a table; the last is the summary
    #[arg(long)]
    json: bool,
}

/// How many packets at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    Fixed(u16),
    Auto,
}

impl BatchSize {
    /// To begin with.
    fn packets(self) -> usize {
        match self {
            BatchSize::Fixed(packets) => packets.into(),
            BatchSize::Auto => Tuner::default().size(),
        }
    }
}

impl FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchSize, String> {
        match text.parse() {
            Ok(packets @ 1..=4096) => Ok(BatchSize::Fixed(packets)),
            _ if text == "auto" => Ok(BatchSize::Auto),
            _ => Err("it must be 1 to 4096, or auto".to_string()),
        }
    }
}

/// The library's ways to wait, with names for people.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// Ask again at once
    Poll,
    /// Sleep until a packet interrupts
    Interrupt,
    /// Poll while packets come, sleep once none has come for 100 µs
    Adaptive,
}

impl From<Wait> for port::Wait {
    fn from(wait: Wait) -> port::Wait {
        match wait {
            Wait::Poll => port::Wait::Poll,
            Wait::Interrupt => port::Wait::Interrupt,
            Wait::Adaptive => port::Wait::Adaptive,
        }
    }
}

/// The library's choice of pages, with names for people.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pages {
    /// 2 MiB hugepages where enough are free, otherwise ordinary pages
    Auto,
    /// Ordinary pages
    Ordinary,
    /// Hugepages of 2 MiB
    #[value(name = "2M")]
    Huge2M,
    /// Hugepages of 1 GiB
    #[value(name = "1G")]
    Huge1G,
}

impl From<Pages> for memory::Pages {
    fn from(pages: Pages) -> memory::Pages {
        match pages {
            Pages::Auto => memory::Pages::Auto,
            Pages::Ordinary => memory::Pages::Only(PageSize::Ordinary),
            Pages::Huge2M => memory::Pages::Only(PageSize::Huge2M),
            Pages::Huge1G => memory::Pages::Only(PageSize::Huge1G),
        }
    }
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it must be octal, as 0660".to_string())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "it must be a number".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    // clap ends with 2 by itself where the usage is wrong.
    let outcome = match Cli::parse().command {
        Command::Fwd { a, b, rest, count, profile, rules, common } => {
            fwd::run([&a, &b], rest.as_deref(), count, profile, &rules, &common)
        }
        Command::Filter { a, b: Some(b), count, rules, common } => {
            fwd::run([&a, &b], None, count, false, &rules, &common)
        }
        Command::Filter { a, b: None, count, rules, common } => fwd::discard(&a, count, &rules, &common),
        Command::Gen { port, traffic, common } => generate::run(&port, &traffic, &common),
        Command::Sink { port, count, common } => sink::run(&port, count, &common),
        Command::Latency { a, b, load, common } => latency::run([&a, &b], &load, &common),
        Command::Bench(bench) => bench::run(&bench),
        Command::Bind { cards, vfio, uio, force } => bind::bind(&cards, vfio, uio, force),
        Command::Unbind { cards } => bind::unbind(&cards),
        Command::Sim { socket, wire, device, vfs, seconds, json } => {
            sim::run(&socket, &wire, &device, vfs, seconds, json)
        }
        Command::Serve { names, mode, group, join_users, seconds } => {
            serve::run(&names, mode, group.as_deref(), join_users, seconds)
        }
        Command::Switch { command } => switch::run(&command),
        Command::Ports { json } => ports::run(json),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("linerate: {}", error.with_hint());
            ExitCode::FAILURE
        }
    }
}
