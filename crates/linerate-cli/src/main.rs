//! The `linerate` command.
//!
//! - `fwd`, `generate`, `replay`, `sink`, `capture`, `latency`, `ports`, `bind`: one command each (`fwd` also has `filter`, `bind`
//!   has `unbind`)
//! - `bench`: the ixy paper's evaluation; `rfc2544`: throughput, latency, loss and bursts of what is between two ports; `report`: the
//!   pages of both, and `chart` their pictures
//! - `sim`: models as PCI devices, for virtual machines and other programs
//! - `serve`: ports for other processes; `switch`: lists and changes the ports that are served
//! - `extcap`: ports as interfaces of Wireshark and tshark
//! - `vm`: starts QEMU with cards at ports
//! - `manual`: pages of the manual, and completions for shells; `port_arg`: arguments that are names of ports; `examples`: below
//!   each command's help
//! - `run`: shared by the commands above: opened ports, threads, the end of a run (`limits`); `processors`: those that they
//!   use
//! - `moved`: the packets of a run's threads; `shortfall`: what was asked and not reached; `notes`: what the ports did not
//!   move, and why; `hint`: what mends an error
//! - `metrics`: the counters of a run for Prometheus
//! - `reply`: answers of `gen` and `sink` to ARP and pings
//! - `live`: what keys and a control socket ask of a run, and the full screen
//! - `rates`: an interval of a run; `show`: it and the summary, as lines; `terminal`: notes, and the full screen that holds them
//! - `quantiles`: of times; `profile`: a forwarder's cycles by part; `tune`: `--batch auto`

mod bench;
mod bind;
mod capture;
mod chart;
mod examples;
mod extcap;
mod fwd;
mod generate;
mod hint;
mod latency;
mod limits;
mod line_rate;
mod live;
mod manual;
mod messages;
mod metrics;
mod moved;
mod notes;
mod port_arg;
mod ports;
mod processors;
mod profile;
mod quantiles;
mod rates;
mod replay;
mod reply;
mod report;
mod rfc2544;
mod run;
mod serve;
mod shortfall;
mod show;
mod signals;
mod sim;
mod sink;
mod switch;
mod terminal;
mod tune;
mod vm;

use std::fmt::Display;
use std::io::{self, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use linerate::memory::{self, PageSize};
use linerate::{Error, Remedy, port};
use live::Steering;
use tune::Tuner;

/// User-space packet I/O: forward, generate, receive and check packets without the kernel.
#[derive(Parser)]
#[command(name = "linerate", version, arg_required_else_help = true)]
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
        #[arg(long, value_name = "PORT", requires = "Rules")]
        rest: Option<String>,
        /// Stop after exactly this many packets; with k, M or G
        #[arg(long, value_parser = packets)]
        count: Option<u64>,
        /// Show the cycles of each part: receive, touch, send
        #[arg(long)]
        profile: bool,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        common: Common,
    },
    /// Let some packets through and drop the others: between two ports, or all packets of one port at full speed
    Filter {
        /// The first port, for example xdp:eth0
        a: String,
        /// The second port
        b: Option<String>,
        /// Stop after exactly this many packets; with k, M or G
        #[arg(long, value_parser = packets)]
        count: Option<u64>,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        common: Common,
    },
    /// Send packets with flows and sequence numbers
    Gen {
        /// The port to send to
        port: String,
        #[command(flatten)]
        traffic: Box<generate::Traffic>,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        common: Common,
    },
    /// Send the frames of captures at their own times, or at others, and report how exactly that was done
    Replay {
        /// The capture, pcap or pcapng: a file or a pipe
        file: PathBuf,
        /// The port to send to
        port: String,
        #[command(flatten)]
        how: replay::How,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        common: Common,
    },
    /// Receive packets, check their sequence numbers, report loss and reordering
    Sink {
        /// The port to receive from
        port: String,
        /// Stop after exactly this many packets; with k, M or G
        #[arg(long, value_parser = packets)]
        count: Option<u64>,
        #[command(flatten)]
        reply: reply::Reply,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        common: Common,
    },
    /// Capture the packets of ports into files that Wireshark and tcpdump read, or print a line of each
    Capture {
        /// The ports to receive from, for example sim:0, or vale0:a+rt for copies of another port's packets
        #[arg(required = true, value_name = "PORT")]
        ports: Vec<String>,
        #[command(flatten)]
        what: Box<capture::What>,
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
    /// Measure what is between two ports as RFC 2544 says: throughput, latency, frame loss rate, back-to-back frames; --seconds
    /// is the time of a trial, 60 by default
    Rfc2544 {
        /// Port that sends
        a: String,
        /// Port that receives
        b: String,
        #[command(flatten)]
        what: Box<rfc2544::Benchmarks>,
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
        /// Other end of each card's cable, in the order of the sockets: none (the default), sink,
        /// traffic?rate=1M&size=64&flows=1&count=1M, sim:NAME (another card, named as its socket's file), or any port:
        /// tap:NAME, packet:IF, xdp:IF, pcap:FILE, vale0:a, X{1, faulty:PORT, 0000:03:00.0, vfio-user:PATH.
        /// &record=FILE records what leaves the card. Two cards without a --wire are cabled to each other
        #[arg(long)]
        wire: Vec<String>,
        /// Kind of each card, in the order of the sockets, or one for all: 82599-sfp, 82599-kx4, x540, x550
        #[arg(long)]
        device: Vec<String>,
        /// Virtual functions of each card, served at PATH.vf0, PATH.vf1 and so on
        #[arg(long, default_value_t = 0, value_parser = whole::<u8>(0, 32))]
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
    /// Print the line that starts QEMU with a card at each port, or start it
    Vm(vm::Machine),
    /// Make ports interfaces of Wireshark and tshark, without root: install it once, then see `tshark -D`
    Extcap(extcap::Extcap),
    /// List the ports that can be opened here, and reasons why others cannot
    Ports {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Write the manual's pages: one of linerate, and one of each command
    Man {
        /// The folder, for example ~/.local/share/man/man1; it is made if it is not there
        folder: PathBuf,
    },
    /// Print the completions for a shell, for example: eval "$(linerate completions bash)"
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum Switch {
    /// List the switches' ports with their counters; a pipe's packets are counted by the programs at its ends
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
        /// Its name on the switch, in place of the interface's or the socket's file
        #[arg(long)]
        name: Option<String>,
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
/// The longest payload that ports take: `--mtu` and the option `mtu`.
const LONGEST_MTU: u16 = 9710;

#[derive(Args, Clone)]
struct Common {
    /// Packets received or sent at a time: 1 to 4096, or auto, where fwd looks for the cheapest size
    #[arg(long, default_value = "32")]
    batch: BatchSize,
    /// Descriptors in each ring, a power of two from 64 to 4096; default 512, 4096 for capture, or 8192 to receive from another
    /// process
    #[arg(long)]
    ring: Option<u16>,
    /// Queues of each port; each has its own thread
    #[arg(long, default_value_t = 1, value_parser = whole::<u16>(1, 64))]
    queues: u16,
    /// The longest payload of a frame, at least that of gen's --size; frames longer than a buffer become chains
    #[arg(long, default_value_t = 1500, value_parser = whole::<u16>(46, LONGEST_MTU))]
    mtu: u16,
    /// Stop this many seconds after the links are up, for which a run waits at most 10 s
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Processors for the threads, for example 0,2 or 0-3; by default the kernel chooses
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cores: Option<Cores>,
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
    #[arg(long, default_value_t = 10, value_parser = whole::<u16>(0, 8191))]
    throttle: u16,
    /// Take cards from the kernel for this run, and give them back at its end
    #[arg(long)]
    bind: bool,
    /// With --bind: take the card even if Linux is using it
    #[arg(long, requires = "bind")]
    force: bool,
    /// Fail, with exit code 1, if a rate that was asked for is not reached
    #[arg(long)]
    strict: bool,
    /// Serve the run's counters to Prometheus while it lasts, at a port of loopback or an address: 9500, 0.0.0.0:9500
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<metrics::Address>,
    /// Print one JSON object per second and line instead of a table; the last one is the summary
    #[arg(long)]
    json: bool,
    /// Of commands that can be steered
    #[arg(skip)]
    steering: Steering,
}

impl Common {
    fn steered(self, steering: Steering) -> Common {
        Common { steering, ..self }
    }
}

/// Processors, in the order in which threads get them.
type Cores = Vec<u16>;

fn cores(text: &str) -> Result<Cores, String> {
    let parts = text.split(',').map(processors::parse).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat())
}

/// Returns a reader of whole numbers from `least` to `most`.
fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64> + PartialOrd + Copy + Display,
{
    move |text| {
        let number = port::count(text).and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// Reads a number of packets.
fn packets(text: &str) -> Result<u64, String> {
    match port::count(text) {
        Some(0) => Err("it must be at least 1".to_string()),
        Some(count) => Ok(count),
        None => Err("it must be a whole number of packets, such as 1000 or 1M".to_string()),
    }
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

/// How a thread waits for packets.
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
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| !seconds.is_zero());
    seconds.ok_or_else(|| "it must be a number of seconds above 0, such as 2 or 0.5".to_string())
}

/// Returns the command line's grammar. Negative numbers are values, which each option refuses in its own words.
fn grammar() -> clap::Command {
    let with_numbers = |arg: clap::Arg| match arg.get_action() {
        clap::ArgAction::Set | clap::ArgAction::Append if !arg.is_positional() => arg.allow_negative_numbers(true),
        _ => arg,
    };
    let mut grammar = examples::add_to(Cli::command().mut_subcommands(|command| {
        let is_of_ports = !matches!(command.get_name(), "extcap" | "switch");
        let command = command.mut_args(with_numbers);
        if is_of_ports { command.mut_args(port_arg::completed) } else { command }
    }));
    grammar.build();
    grammar
}

/// Ends the command because of wrong usage, and shows that of the subcommand.
fn usage(why: &str) -> ! {
    let mut grammar = grammar();
    let words = extcap::arguments();
    let mut command = &mut grammar;
    for word in words.iter().skip(1).map_while(|word| word.to_str()) {
        match command.find_subcommand(word).is_some() {
            true => command = command.find_subcommand_mut(word).expect("it was there"),
            false => break,
        }
    }
    command.error(ErrorKind::ArgumentConflict, why).exit()
}

/// Returns the exit code of an error: 2 for wrong names, options and values, 1 for all that failed.
fn code(error: &Error) -> ExitCode {
    use linerate::ErrorKind;
    match error.kind() {
        ErrorKind::BadName | ErrorKind::BadOption | ErrorKind::BadFilter | ErrorKind::NotFound => ExitCode::from(2),
        _ if error.remedy() == Some(&Remedy::ChooseCard) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Tells where an option is that this command has not: what `gen` can choose, the wire of a model has as well.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let tip = match error.get(ContextKind::InvalidArg).map(ToString::to_string).as_deref() {
        Some("--rate") => "sim:0?rate=1M",
        Some("--size") => "sim:0?size=128",
        Some("--flows") => "sim:0?flows=8",
        _ => return error,
    };
    if error.kind() == ErrorKind::UnknownArgument {
        let tip = format!("it is an option of gen, and of a model's wire: {tip}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Prints help, the version, or what is wrong with the usage; returns the exit code.
fn explain(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| stdout().flush());
    match printed {
        Err(why) if !error.use_stderr() && why.kind() != io::ErrorKind::BrokenPipe => {
            terminal::note(&format!("linerate: cannot write to standard output: {why}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(error.exit_code() as u8),
    }
}

fn main() -> ExitCode {
    messages::show();
    let matches = grammar().try_get_matches_from(extcap::arguments());
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain(&with_tip(error)),
    };
    run::catch_signals();
    let outcome = execute(cli.command);
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            terminal::note(&format!("linerate: {}", hint::with_hint(&error)));
            code(&error)
        }
    };
    match show::unwritten() {
        Some(why) => {
            terminal::note(&format!("linerate: cannot write to standard output: {why}"));
            ExitCode::FAILURE
        }
        None => code,
    }
}

fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Fwd { a, b, rest, count, profile, rules, steering, common } => {
            fwd::run("fwd", [&a, &b], rest.as_deref(), count, profile, &rules, &common.steered(steering))
        }
        Command::Filter { a, b, count, rules, steering, common } => {
            let common = common.steered(steering);
            match b {
                Some(b) => fwd::run("filter", [&a, &b], None, count, false, &rules, &common),
                None => fwd::discard(&a, count, &rules, &common),
            }
        }
        Command::Gen { port, traffic, steering, common } => generate::run(&port, &traffic, &common.steered(steering)),
        Command::Replay { file, port, how, steering, common } => {
            replay::run(file, &port, &how, &common.steered(steering))
        }
        Command::Sink { port, count, reply, steering, common } => {
            sink::run(&port, count, &reply, &common.steered(steering))
        }
        Command::Capture { ports, what, common } => {
            capture::run(&ports.iter().map(String::as_str).collect::<Vec<_>>(), &what, &common)
        }
        Command::Latency { a, b, load, common } => latency::run([&a, &b], &load, &common),
        Command::Rfc2544 { a, b, what, common } => rfc2544::run([&a, &b], &what, &common),
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
        Command::Vm(machine) => vm::run(&machine),
        Command::Extcap(asked) => Ok(extcap::run(&asked)),
        Command::Ports { json } => ports::run(json),
        Command::Man { folder } => Ok(manual::write_pages(examples::add_to(Cli::command()), &folder)),
        Command::Completions { shell } => Ok(manual::print_completions(grammar(), shell)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of command lines: commands, options, values and names of ports that open nothing.
    const WORDS: [&str; 86] = [
        "fwd",
        "filter",
        "gen",
        "replay",
        "sink",
        "capture",
        "latency",
        "bench",
        "bind",
        "unbind",
        "sim",
        "serve",
        "switch",
        "list",
        "attach",
        "detach",
        "create",
        "destroy",
        "ports",
        "help",
        "--rest",
        "--count",
        "--profile",
        "--only",
        "--drop",
        "--batch",
        "--ring",
        "--queues",
        "--mtu",
        "--seconds",
        "--cores",
        "--pages",
        "--numa",
        "--wait",
        "--throttle",
        "--bind",
        "--force",
        "--strict",
        "--json",
        "--size",
        "--rate",
        "--flows",
        "--template",
        "--with",
        "--speed",
        "--top",
        "--exact",
        "--loop",
        "--every",
        "--write",
        "--snaplen",
        "--file-size",
        "--files",
        "--memory",
        "--quick",
        "--out",
        "--vfio",
        "--uio",
        "--socket",
        "--wire",
        "--device",
        "--vfs",
        "--mode",
        "--group",
        "--join-users",
        "--host",
        "--help",
        "--version",
        "-h",
        "--",
        "-1",
        "0",
        "1M",
        "10G",
        "50%",
        "1e6",
        "auto",
        "0-3",
        "",
        "é",
        "sim:0?size=64",
        "null:",
        "x{1",
        "vale0:a",
        "udp:9+from:::/0",
        "99999999999999999999",
    ];

    /// A small generator of random numbers (xorshift).
    fn random(state: &mut u64, below: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % below as u64) as usize
    }

    /// Two thousand random command lines are understood or refused, by the grammar and then by the names' grammar.
    #[test]
    fn random_command_lines_are_understood_or_refused() {
        let (mut state, mut understood, mut refused) = (0x2545_F491_4F6C_DD1D, 0, 0);
        let grammar = grammar();
        for _ in 0..2000 {
            let count = random(&mut state, 9);
            // Most begin with a command, so that its options are reached.
            let mut line = vec!["linerate", WORDS[random(&mut state, 20)]];
            line.extend((0..count).map(|_| WORDS[random(&mut state, WORDS.len())]));
            match grammar.clone().try_get_matches_from(&line).and_then(|matches| Cli::from_arg_matches(&matches)) {
                Ok(_) => understood += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty(), "{line:?}");
                    assert!(matches!(error.exit_code(), 0 | 2), "{line:?}");
                    refused += 1;
                }
            }
            for word in &line {
                let _ = port::PortName::parse(word);
            }
        }
        assert!(understood > 20 && refused > 20, "{understood} understood, {refused} refused");
    }

    /// Random names of ports, and names with one character changed.
    #[test]
    fn random_names_are_understood_or_refused() {
        const PARTS: [&str; 26] = [
            "sim:",
            "0",
            "null:",
            "faulty:",
            "recorded:",
            "pcap:",
            "x",
            "{",
            "}",
            "1",
            "vale0",
            ":",
            "?",
            "&",
            "=",
            "size",
            "rate",
            "10G",
            "drop",
            "%",
            "wire",
            "netmap:",
            "^",
            "+rt",
            "/z",
            "é",
        ];
        let mut state = 0x9E37_79B9_7F4A_7C15;
        let mut understood = 0;
        for _ in 0..20_000 {
            let count = 1 + random(&mut state, 8);
            let name: String = (0..count).map(|_| PARTS[random(&mut state, PARTS.len())]).collect();
            match port::PortName::parse(&name) {
                Ok(parsed) => understood += usize::from(!parsed.short().is_empty()),
                Err(error) => assert!(!error.with_hint().is_empty()),
            }
        }
        assert!(understood > 100, "{understood}");
    }

    /// Each command has examples below its help, which are understood; so are those of ports.
    #[test]
    fn examples_are_understood() {
        fn check(command: &clap::Command) {
            for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
                let is_shown = command.get_after_help().is_some();
                assert!(is_shown || matches!(command.get_name(), "man" | "completions"), "{}", command.get_name());
                check(command);
            }
        }
        check(&grammar());
        for line in examples::EXAMPLES.iter().flat_map(|(_, lines)| *lines) {
            let line = line.split("  #").next().unwrap_or(line).replace('\'', "");
            if let Err(error) = grammar().try_get_matches_from(line.split_whitespace()) {
                panic!("{line}: {error}");
            }
        }
        for name in linerate::KINDS.iter().map(|kind| kind.example).chain(examples::NAMES.map(|(name, _)| name)) {
            port::PortName::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn the_grammar_is_consistent() {
        grammar().debug_assert();
    }

    /// Commands of the docs, also those for cards, are understood.
    #[test]
    fn documented_commands_are_understood() {
        let pages = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/bench.md"),
            include_str!("../../../docs/capture.md"),
            include_str!("../../../docs/cards.md"),
            include_str!("../../../docs/extcap.md"),
            include_str!("../../../docs/generate.md"),
            include_str!("../../../docs/kernel.md"),
            include_str!("../../../docs/netmap.md"),
            include_str!("../../../docs/packages.md"),
            include_str!("../../../docs/replay.md"),
            include_str!("../../../docs/wires.md"),
        ];
        let mut count = 0;
        // The shell examples are between "```sh" and "```".
        let examples =
            pages.iter().flat_map(|page| page.split("```sh\n").skip(1)).filter_map(|rest| rest.split("```").next());
        for line in examples.flat_map(str::lines) {
            let line = line.split("  #").next().unwrap_or(line).trim().trim_start_matches("sudo ");
            if !line.starts_with("linerate ") || line.contains('…') {
                continue;
            }
            // No word of them has a space in it; a line may end with "&", or go on with the next command.
            let words = line.split([';', '|', '\u{a0}']).next().unwrap_or(line).split(" && ").next().unwrap_or(line);
            let words = if line.contains('\'') && !line.contains('|') { line } else { words };
            let words: Vec<String> =
                words.split_whitespace().filter(|word| *word != "&").map(|word| word.replace('\'', "")).collect();
            // The processors of an example need not exist here.
            let words: Vec<&str> = words.iter().map(|word| if *word == "2,3,4,5" { "0" } else { word }).collect();
            if let Err(error) = grammar().try_get_matches_from(&words) {
                panic!("{line}: {error}");
            }
            for name in words[2..].iter().filter(|word| {
                // Neither packets and rules nor a port's addresses.
                let is_address = |part: &str| {
                    part.parse::<std::net::IpAddr>().is_ok() || part.parse::<std::net::SocketAddr>().is_ok()
                };
                word.contains(':')
                    && !["udp", "tcp", "from", "eth"].iter().any(|kind| word.starts_with(kind))
                    && !word.split(',').all(is_address)
            }) {
                if !matches!(words[1], "sim" | "switch") {
                    port::PortName::parse(name).unwrap_or_else(|error| panic!("{line}: {error}"));
                }
            }
            count += 1;
        }
        assert!(count > 30, "{count}");
    }
}
