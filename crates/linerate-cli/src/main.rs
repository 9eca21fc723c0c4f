//! The `linerate` command.
//!
//! - `fwd`, `generate`, `replay`, `edit`, `sink`, `capture`, `latency`, `ports`, `bind`: one command each (`fwd` also has
//!   `filter`, `bind` has `unbind`)
//! - `link`: emulated links; `exec`: a command whose interfaces are ports
//! - `bench`: the ixy paper's evaluation; `rfc2544`: throughput, latency, loss and bursts of the device between two
//!   ports
//! - `report`: the pages of `bench` and `rfc2544`; `chart`: their pictures
//! - `sim`: models as PCI devices, for virtual machines and other programs
//! - `serve`: ports for other processes; `switch`: lists and changes served ports
//! - `extcap`: ports as interfaces of Wireshark and tshark
//! - `vm`: starts QEMU with cards at ports
//! - `grammar`: the command line and its usage errors; `port_arg`: port names as arguments; `examples`: examples in
//!   each command's help; `manual`: manual pages and shell completions
//! - `run`: opened ports and threads of a run, for the commands above; `limits`: its end; `options`: common options;
//!   `processors`: the processors that threads use
//! - `moved`: the packets that a run's threads moved; `shortfall`: rates and counts that were not reached; `notes`:
//!   packets that ports did not move, and why; `error`: an error with its remedy and exit code
//! - `line_rate`: the line rate of a port; `wire`: the wires of models
//! - `metrics`: the counters of a run for Prometheus
//! - `host`: the addresses of testers' ports: replies to ARP and ping, and the next hop
//! - `live`: requests from keys and the control socket, and the full-screen view
//! - `rule`: rules of a run's ports, at its control socket
//! - `rates`: an interval of a run; `show`: intervals and the summary as lines; `terminal`: notes, held back during the
//!   full-screen view
//! - `inherited`: streams and signals that the process has inherited
//! - `messages`: the library's messages on stderr; `signals`: the signals that end a run
//! - `quantiles`: quantiles of times; `profile`: a forwarder's cycles by part; `tune`: `--batch auto`; `user`: giving up root's
//!   privileges

mod bench;
mod bind;
mod capture;
mod chart;
mod edit;
mod error;
mod examples;
mod exec;
mod extcap;
mod fwd;
mod generate;
mod grammar;
mod host;
mod inherited;
mod latency;
mod limits;
mod line_rate;
mod link;
mod live;
mod manual;
mod messages;
mod metrics;
mod moved;
mod notes;
mod options;
mod port_arg;
mod ports;
mod processors;
mod profile;
mod quantiles;
mod rates;
mod replay;
mod report;
mod rfc2544;
mod rule;
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
mod user;
mod vm;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use linerate::Error;
use live::Steering;
use options::{RunOptions, packets};

/// User-space packet I/O: forward, generate, receive and check packets without the kernel.
#[derive(Parser)]
#[command(name = "linerate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Forward packets between two ports in both directions, touching one byte of each
    Fwd {
        /// The first port, for example sim:0
        a: String,
        /// The second port
        b: String,
        /// Port for packets from A that --only/--drop reject; its replies go back to A. Example: host:
        #[arg(long, value_name = "PORT", requires = "Rules")]
        rest: Option<String>,
        /// Stop after exactly this many packets; accepts k, M or G
        #[arg(long, value_parser = packets)]
        count: Option<u64>,
        /// Show the cycles per packet of each part: receive, touch, send
        #[arg(long)]
        profile: bool,
        /// Leave checksums and segmentation pending between the ports, as with offloads=on for both
        #[arg(long)]
        offloads: bool,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Forward packets between two ports over an emulated link: delay, rate with a queue, loss, and other faults
    Link {
        /// The first port, for example tap:t0
        #[arg(required_unless_present = "COMMAND", conflicts_with = "COMMAND")]
        a: Option<String>,
        /// The second port
        #[arg(required_unless_present = "COMMAND", conflicts_with = "COMMAND")]
        b: Option<String>,
        /// Stop after exactly this many packets; accepts k, M or G
        #[arg(long, value_parser = packets, conflicts_with = "COMMAND")]
        count: Option<u64>,
        /// With a command: the port at the far end of its link; by default, passt connects it to the network around it
        #[arg(long, value_name = "PORT", requires = "COMMAND")]
        port: Option<String>,
        /// With a command: print its address, its packets and what the link did with them, on standard error
        #[arg(long, short, requires = "COMMAND")]
        verbose: bool,
        #[command(flatten)]
        link: link::LinkOptions,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        options: Box<RunOptions>,
        /// Run this command, whose network is at the far end of the link
        #[arg(last = true, id = "COMMAND", value_name = "COMMAND", conflicts_with_all = ["RunOptions", "Steering"])]
        command: Vec<OsString>,
    },
    /// Run a command whose network interfaces are ports, without root
    Exec(Box<exec::Exec>),
    /// Forward only matching packets between two ports, or count and drop all packets of one port at full speed
    Filter {
        /// The first port, for example xdp:eth0
        a: String,
        /// The second port
        b: Option<String>,
        /// Stop after exactly this many packets; accepts k, M or G
        #[arg(long, value_parser = packets)]
        count: Option<u64>,
        #[command(flatten)]
        rules: fwd::Rules,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        options: RunOptions,
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
        options: RunOptions,
    },
    /// Send the frames of captures with their original or another timing, and report its accuracy
    Replay {
        /// The capture, pcap or pcapng: a file, a pipe, or - for standard input
        file: PathBuf,
        /// The port to send to; or two ports, between which --split divides the frames
        #[arg(required = true, num_args = 1..=2, value_name = "PORT")]
        ports: Vec<String>,
        #[command(flatten)]
        replay: Box<replay::ReplayOptions>,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Edit the frames of a capture file: addresses, ports, VLAN tags, header fields and lengths; checksums follow
    Edit(Box<edit::Edit>),
    /// Receive packets, check their sequence numbers, report loss and reordering
    Sink {
        /// The port to receive from
        port: String,
        #[command(flatten)]
        sink: sink::SinkOptions,
        #[command(flatten)]
        steering: Steering,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Capture packets from ports into files for Wireshark and tcpdump, or print one line per packet
    Capture {
        /// The ports to capture from, for example sim:0, or vale0:a+rt for copies of another port's packets
        #[arg(required = true, value_name = "PORT")]
        ports: Vec<String>,
        #[command(flatten)]
        capture: Box<capture::CaptureOptions>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the latency of frames: through fwd, from one model's wire to the other's; or from port to port
    Latency {
        /// Pairs of ports: those where frames enter, for example sim:0, and those where they leave
        #[arg(required = true, num_args = 2.., value_name = "PORT")]
        ports: Vec<String>,
        #[command(flatten)]
        load: latency::Load,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Run the RFC 2544 benchmarks on the device between two ports, or between pairs of ports: throughput, latency,
    /// frame loss rate, back-to-back frames; --seconds sets the duration of a trial, 60 by default
    Rfc2544 {
        /// Pairs of ports: the port that sends, and the port that receives
        #[arg(required = true, num_args = 2.., value_name = "PORT")]
        ports: Vec<String>,
        #[command(flatten)]
        what: Box<rfc2544::Benchmarks>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Repeat the measurements of the ixy paper and write a report
    Bench(bench::Bench),
    /// Bind cards to vfio or uio, so that programs can use them
    Bind {
        /// The cards' addresses, for example 0000:03:00.0
        #[arg(required = true)]
        cards: Vec<String>,
        /// Use vfio, with the IOMMU (the default where there is one)
        #[arg(long, conflicts_with = "uio")]
        vfio: bool,
        /// Use uio, which needs root and works without an IOMMU
        #[arg(long)]
        uio: bool,
        /// Bind the card even if Linux is using it
        #[arg(long)]
        force: bool,
    },
    /// Give cards back to their previous drivers
    Unbind {
        /// The cards' addresses
        #[arg(required = true)]
        cards: Vec<String>,
    },
    /// Serve 82599 models as PCI devices over vfio-user: to virtual machines, or to `vfio-user:PATH`
    Sim(sim::Models),
    /// Serve ports to other processes: switches, interfaces and pipes, under netmap's names
    Serve(serve::Service),
    /// Manage served ports and switches
    Switch {
        #[command(subcommand)]
        command: Switch,
    },
    /// Change the rules of a run's ports: packets that a card or the kernel steers or drops
    Rule {
        #[command(subcommand)]
        command: rule::Rule,
    },
    /// Print the command that starts QEMU with a card at each port, or run it
    Vm(vm::Machine),
    /// Offer ports as interfaces in Wireshark and tshark, without root: --install once, then `tshark -D` lists them
    Extcap(extcap::Extcap),
    /// List the ports of this machine, and what prevents their use
    #[command(after_help = examples::kinds(false), after_long_help = examples::kinds(true))]
    Ports {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
        /// Open these ports, and print which features each has: offloaded to the card, the kernel or the receiver, or in
        /// software
        #[arg(long, value_name = "PORT", num_args = 1..)]
        capabilities: Vec<String>,
    },
    /// Write the manual pages: one for linerate and one for each command
    Man {
        /// The folder, for example ~/.local/share/man/man1; created if it does not exist
        folder: PathBuf,
    },
    /// Print completions for a shell, for example: eval "$(linerate completions bash)"
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum Switch {
    /// List the switches' ports with their counters; a pipe's packets are counted only by the programs at its ends
    #[command(visible_alias = "stats")]
    List {
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Attach an interface, or a permanent port, to a switch
    Attach {
        /// The switch and the port, for example vale0:eth0
        port: String,
        /// Name on the switch, instead of the interface's name or the socket's file name
        #[arg(long)]
        name: Option<String>,
        /// Also attach the kernel's network stack behind the interface
        #[arg(long)]
        host: bool,
    },
    /// Detach a port from its switch
    Detach {
        /// The switch and the port, for example vale0:eth0
        port: String,
    },
    /// Create a permanent port, which remains when no program uses it
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

impl Command {
    /// Returns whether linerate runs another program, which gets its signals.
    fn has_command(&self) -> bool {
        match self {
            Command::Exec(_) => true,
            Command::Link { command, .. } => !command.is_empty(),
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    if let Some(code) = exec::inside::run() {
        return code;
    }
    messages::show();
    let cli = match grammar::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if !cli.command.has_command() {
        signals::catch();
    }
    show::exit_code(execute(cli.command).unwrap_or_else(|error| error::report(&error)))
}

fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Fwd { a, b, rest, count, profile, offloads, rules, steering, options } => {
            let options = RunOptions { offloads, ..options.steered(steering) };
            fwd::run(&fwd::Forward, [&a, &b], rest.as_deref(), count, profile, &rules, &options)
        }
        Command::Link { link, port, verbose, command, .. } if !command.is_empty() => {
            Ok(exec::run_over(link.around(), port.as_deref(), verbose, &command))
        }
        Command::Link { a, b, count, link, steering, options, .. } => {
            let [a, b] = [a, b].map(Option::unwrap_or_default);
            link::run([&a, &b], &link, count, &options.steered(steering))
        }
        Command::Exec(exec) => Ok(exec::run(&exec)),
        Command::Filter { a, b, count, rules, steering, options } => {
            let options = options.steered(steering);
            match b {
                Some(b) => fwd::run(&fwd::Filter, [&a, &b], None, count, false, &rules, &options),
                None => fwd::discard(&a, count, &rules, &options),
            }
        }
        Command::Gen { port, traffic, steering, options } => generate::run(&port, &traffic, &options.steered(steering)),
        Command::Replay { file, ports, replay, steering, options } => {
            let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
            replay::run(&file, &ports, &replay, &options.steered(steering))
        }
        Command::Edit(asked) => edit::run(&asked),
        Command::Sink { port, sink, steering, options } => sink::run(&port, &sink, &options.steered(steering)),
        Command::Capture { ports, capture, options } => {
            capture::run(&ports.iter().map(String::as_str).collect::<Vec<_>>(), &capture, &options)
        }
        Command::Latency { ports, load, options } => {
            latency::run(&ports.iter().map(String::as_str).collect::<Vec<_>>(), &load, &options)
        }
        Command::Rfc2544 { ports, what, options } => {
            rfc2544::run(&ports.iter().map(String::as_str).collect::<Vec<_>>(), &what, &options)
        }
        Command::Bench(bench) => bench::run(&bench),
        Command::Bind { cards, vfio, uio, force } => bind::bind(&cards, vfio, uio, force),
        Command::Unbind { cards } => bind::unbind(&cards),
        Command::Sim(models) => sim::run(&models),
        Command::Serve(service) => serve::run(&service),
        Command::Switch { command } => switch::run(&command),
        Command::Rule { command } => rule::run(&command),
        Command::Vm(machine) => vm::run(&machine),
        Command::Extcap(asked) => Ok(extcap::run(&asked)),
        Command::Ports { json, capabilities } if !capabilities.is_empty() => {
            ports::show_capabilities(&capabilities, json)
        }
        Command::Ports { json, .. } => ports::run(json),
        Command::Man { folder } => Ok(manual::write_pages(Cli::command(), &folder)),
        Command::Completions { shell } => Ok(manual::print_completions(grammar::grammar(), shell)),
    }
}
