//! Options of the commands that move packets.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches, ValueEnum};
use linerate::memory::{self, PageSize};
use linerate::port;

use crate::live::Steering;
use crate::tune::Tuner;
use crate::{metrics, processors};

/// The largest `--mtu`, and the largest value of the ports' option `mtu`.
pub const LONGEST_MTU: u16 = 9710;

/// Options of all commands that move packets.
#[derive(Args, Clone)]
pub struct RunOptions {
    /// Packets per batch: 1 to 4096, or auto, with which fwd finds the cheapest size
    #[arg(long, default_value = "32")]
    pub batch: BatchSize,
    /// Descriptors per ring, a power of two from 64 to 4096; default 512, 4096 for capture, or 8192 to receive from
    /// another process
    #[arg(long)]
    pub ring: Option<u16>,
    /// Queues per port; each has its own thread
    #[arg(long, default_value_t = 1, value_parser = whole::<u16>(1, 64))]
    pub queues: u16,
    /// The longest payload of a frame, raised to fit gen's --size; frames longer than a buffer become chains
    #[arg(long, default_value_t = 1500, value_parser = whole::<u16>(46, LONGEST_MTU))]
    pub mtu: u16,
    /// Stop this many seconds after the links are up; a run waits at most 10 s for them
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Processors for the threads, for example 0,2 or 0-3; by default the kernel chooses
    #[arg(long, value_name = "CORES", value_parser = cores)]
    pub cores: Option<Cores>,
    /// Page size of the packet memory
    #[arg(long, value_enum, default_value_t = Pages::Auto)]
    pub pages: Pages,
    /// NUMA node of the packet memory; the card's node is best
    #[arg(long)]
    pub numa: Option<u32>,
    /// How a thread waits for packets; default poll, or adaptive for a port served by another process
    #[arg(long, value_enum)]
    pub wait: Option<Wait>,
    /// Minimum time between two interrupts of a queue, in microseconds (where the card can throttle)
    #[arg(long, default_value_t = 10, value_parser = whole::<u16>(0, 8191))]
    pub throttle: u16,
    /// Bind cards for this run only, and give them back to their drivers at its end
    #[arg(long)]
    pub bind: bool,
    /// With --bind: bind the card even if Linux is using it
    #[arg(long, requires = "bind")]
    pub force: bool,
    /// Exit with code 1 if a requested rate or count is not reached
    #[arg(long)]
    pub strict: bool,
    /// Serve the run's counters to Prometheus, at a loopback port or an address: 9500, 0.0.0.0:9500
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<metrics::Address>,
    /// Print one JSON object per line each second instead of a table; the last is the summary
    #[arg(long)]
    pub json: bool,
    /// At the end, also print the counters in the cards' registers, under the datasheet's names
    #[arg(long)]
    pub registers: bool,
    /// Record the arrival times of packets
    #[arg(skip)]
    pub timestamps: bool,
    /// Note what the ports found out about packets
    #[arg(skip)]
    pub metadata: bool,
    /// Options of commands that can be controlled while they run
    #[arg(skip)]
    pub steering: Steering,
    /// Buffers for packets that the command holds
    #[arg(skip)]
    pub held_buffers: usize,
    /// Leave checksums and segmentation to the packets' destination, where the ports can
    #[arg(skip)]
    pub offloads: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        let matches = RunOptions::augment_args(Command::new("")).get_matches_from([""]);
        RunOptions::from_arg_matches(&matches).expect("each option has a default")
    }
}

impl RunOptions {
    pub fn steered(self, steering: Steering) -> RunOptions {
        RunOptions { steering, ..self }
    }
}

/// Processors, in the order in which they are assigned to threads.
pub type Cores = Vec<u16>;

fn cores(text: &str) -> Result<Cores, String> {
    let parts = text.split(',').map(processors::parse).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat())
}

/// Returns a parser of whole numbers from `least` to `most`.
pub fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64> + PartialOrd + Copy + Display,
{
    move |text| {
        let number = port::count(text).and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// Parses a number of packets.
pub fn packets(text: &str) -> Result<u64, String> {
    match port::count(text) {
        Some(0) => Err("it must be at least 1".to_string()),
        Some(count) => Ok(count),
        None => Err("it must be a whole number of packets, such as 1000 or 1M".to_string()),
    }
}

/// The number of packets per batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    Fixed(u16),
    Auto,
}

impl BatchSize {
    /// Returns the number of packets in the first batches.
    pub fn packets(self) -> usize {
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
pub enum Wait {
    /// Poll without pause
    Poll,
    /// Sleep until an interrupt signals a packet
    Interrupt,
    /// Poll while packets arrive, sleep after 100 µs without any
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

/// The library's page sizes, with names for the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pages {
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

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| !seconds.is_zero());
    seconds.ok_or_else(|| "it must be a number of seconds above 0, such as 2 or 0.5".to_string())
}
