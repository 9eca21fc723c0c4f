//! The `linerate` command.
//!
//! - `fwd`, `generate`, `sink`, `latency`, `ports`, `bind`: one command each (`fwd` also has `filter`, `bind` has
//!   `unbind`)
//! - `bench`: the ixy paper's evaluation, and its report
//! - `sim`: models as PCI devices, for virtual machines and other programs
//! - `serve`: ports for other processes; `switch`: lists and changes the ports that are served
//! - `run`: shared by the commands above: opened ports, pinned threads, the end of a run
//! - `show`: the live table and the JSON lines; `profile`: a forwarder's cycles by part; `tune`: `--batch auto`

mod bench;
mod bind;
mod fwd;
mod generate;
mod hint;
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
use tracing::Level;
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
        /// Port for packets from A that --only/--drop reject; its replies go back to A. Example: host:
        #[arg(long, value_name = "PORT")]
        rest: Option<String>,
        /// Stop after this many packets
        #[arg(long)]
        count: Option<u64>,
        /// Show the cycles of each part: receive, touch, send
        #[arg(long)]
        profile: bool,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        common: Common,
    },
    /// Let some packets through and drop the others: between two ports, or all packets of one port at full speed
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
    /// Measure the latency of frames: through fwd, from the wire of one model to that of another; or from port to
    /// port
    Latency {
        /// Port where frames enter, for example sim:0
        a: String,
        /// Port where frames leave
        b: String,
        #[command(flatten)]
        load: latency::Load,
        #[command(flatten)]
        common: Common,
    },
    /// Repeat the measurements of the ixy paper, and write a report
    Bench(bench::Bench),
    /// Take cards from the kernel, so that programs can use them
    Bind {
        /// The cards' addresses, for example 0000:03:00.0
        #[arg(required = true)]
        cards: Vec<String>,
        /// Use vfio, behind the IOMMU (the default where there is one)
        #[arg(long, conflicts_with = "uio")]
        vfio: bool,
        /// Use uio, as root and without an IOMMU
        #[arg(long)]
        uio: bool,
        /// Take the card even if Linux is using it
        #[arg(long)]
        force: bool,
    },
    /// Give cards back to their previous drivers
    Unbind {
        /// The cards' addresses
        #[arg(required = true)]
        cards: Vec<String>,
    },
    /// Serve 82599 models as PCI devices, over vfio-user: to virtual machines, or to `vfio-user:PATH`
    Sim {
        /// Socket of a card; repeat it for several cards
        #[arg(long, required = true)]
        socket: Vec<PathBuf>,
        /// Other end of each card's cable, in the order of the sockets: none, sink, traffic?rate=1M&size=64,
        /// tap:NAME, pcap:FILE, sim:NAME (another card, named as its socket's file), or a port such as
        /// 0000:03:00.0. Two cards without a --wire are cabled to each other
        #[arg(long)]
        wire: Vec<String>,
        /// Kind of each card, in the order of the sockets, or one for all: 82599-sfp, 82599-kx4, x540, x550
        #[arg(long)]
        device: Vec<String>,
        /// Virtual functions of each card, served at PATH.vf0, PATH.vf1 and so on
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=32))]
        vfs: u8,
        /// Stop after this many seconds
        #[arg(long, value_parser = seconds)]
        seconds: Option<Duration>,
        /// End with one line of JSON: the summary
        #[arg(long)]
        json: bool,
    },
    /// Serve ports to other processes: switches, interfaces and pipes, under netmap's names
    Serve {
        /// Switches and interfaces to serve, for example vale0, with one socket each; without any, all names at one
        /// socket
        names: Vec<String>,
        /// Permissions of the sockets, in octal
        #[arg(long, default_value = "0600", value_parser = octal)]
        mode: u32,
        /// The sockets' group
        #[arg(long)]
        group: Option<String>,
        /// Let programs of different users have the two ends of a pipe; they then share its memory
        #[arg(long)]
        join_users: bool,
        /// Stop after this many seconds
        #[arg(long, value_parser = seconds)]
        seconds: Option<Duration>,
    },
    /// Manage the ports and switches that are served
    Switch {
        #[command(subcommand)]
        command: Switch,
    },
    /// List the ports that can be opened here, and reasons why others cannot
    Ports {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum Switch {
    /// List ports with their counters
    #[command(visible_alias = "stats")]
    List {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Attach an interface, or a permanent port, to a switch
    Attach {
        /// For example vale0:eth0
        port: String,
        /// Also attach the kernel's network stack behind the interface
        #[arg(long)]
        host: bool,
    },
    /// Detach it again
    Detach {
        /// For example vale0:eth0
        port: String,
    },
    /// Create a permanent port, which stays when no program uses it
    Create {
        /// The port's name, for example v1
        port: String,
    },
    /// Destroy a permanent port
    Destroy {
        /// The port's name
        port: String,
    },
}

/// Options of all commands that move packets.
#[derive(Args, Clone)]
struct Common {
    /// Packets received or sent at a time: 1 to 4096, or auto, where fwd looks for the cheapest size
    #[arg(long, default_value = "32")]
    batch: BatchSize,
    /// Descriptors in each ring, a power of two from 64 to 4096; default 512, or 4096 to receive from another
    /// process
    #[arg(long)]
    ring: Option<u16>,
    /// Queues of each port; each has its own thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The longest payload of a frame; frames longer than a buffer become chains
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(46..=9710))]
    mtu: u16,
    /// Stop after this many seconds
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Processors for the threads, for example 0,2; by default the kernel chooses
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(..1024))]
    cores: Vec<u16>,
    /// Pages for the packets' memory
    #[arg(long, value_enum, default_value_t = Pages::Auto)]
    pages: Pages,
    /// NUMA node of the packets' memory; the card's node is best
    #[arg(long)]
    numa: Option<u32>,
    /// How a thread waits for packets; default poll, or adaptive for a port that another process serves
    #[arg(long, value_enum)]
    wait: Option<Wait>,
    /// Minimum time between two interrupts of a queue, in microseconds (where the card can throttle)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(..8192))]
    throttle: u16,
    /// Take cards from the kernel for this run, and give them back at its end
    #[arg(long)]
    bind: bool,
    /// With --bind: take the card even if Linux is using it
    #[arg(long, requires = "bind")]
    force: bool,
    /// Print one JSON object per second and line instead of a table; the last one is the summary
    #[arg(long)]
    json: bool,
}

/// A number of packets at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    Fixed(u16),
    Auto,
}

impl BatchSize {
    /// Returns the number of packets in the first batches.
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

/// Poll again at once
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// Ask again at once
    Poll,
    /// Sleep until an interrupt announces a packet
    Interrupt,
    /// Poll while packets come, sleep after 100 µs without one
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

/// The library's choices of pages, with names for the command line.
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

/// Shows the library's messages on standard error: warnings, or as many as LINERATE_LOG says (error to trace).
fn show_messages() {
    let level = std::env::var("LINERATE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(Level::WARN);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
}

fn main() -> ExitCode {
    show_messages();
    // clap itself exits with 2 if the usage is wrong.
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
            eprintln!("linerate: {}", hint::with_hint(&error));
            ExitCode::FAILURE
        }
    }
}
