//! The ports of a run, and their counters.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate::kernel::Interface;
use linerate::memory::{PageSize, Pool, Region, RegionOptions};
use linerate::port::{
    Access, FRAME_HEADERS, Feature, OFFLOADS, Port, PortClass, PortName, QueueStatistics, Statistics, Support,
    TakeFromKernel,
};
use linerate::sim82599::Card;
use linerate::traffic::Report;
use linerate::{Error, ErrorKind, Options};

use super::Mode;
use crate::error::with_hint;
use crate::grammar::usage;
use crate::line_rate::{is_up, model, possible};
use crate::options::{RunOptions, Wait};
use crate::rates::{Counters, Rates};
use crate::terminal::note;
use crate::wire::{check_cables, wire_rate};

/// How long packets with recorded arrival times may wait in the kernel.
const MAX_KERNEL_DELAY: Duration = Duration::from_millis(8);

/// Opened ports.
pub struct Ports {
    /// The names with their options.
    pub names: Vec<PortName>,
    pub devices: Vec<Port>,
    /// The counters when they were last read, for ports that are gone.
    last: RefCell<Vec<Statistics>>,
    /// When the cards' counters were last read by register.
    registers_read: Cell<Instant>,
    /// A link was down for some time.
    pub was_down: Cell<bool>,
    /// The run sends frames as chains.
    sends_chains: bool,
}

impl Ports {
    /// Opens ports on one pool that is large enough for all their queues.
    pub fn open(mode: &dyn Mode, names: &[&str], options: &RunOptions) -> Result<Ports, Error> {
        let parsed = names.iter().map(|name| linerate::parse(name)).collect::<Result<Vec<_>, Error>>()?;
        check_standard_output(&parsed);
        check_cables(
            &parsed.iter().filter_map(|name| Some((name.model()?, name.option("wire")?))).collect::<Vec<_>>(),
        )?;
        let of_ports = port_options(&parsed, options, pool(&parsed, options)?);
        let devices = of_ports.open_all(names).inspect_err(|error| {
            let name = error.subject();
            if error.kind() == ErrorKind::InUse && parsed.iter().filter(|other| other.short() == name).count() > 1 {
                usage(&format!("'{name}' is given twice; choose another port"))
            }
        })?;
        if let Some(why) = differing_queues(&devices).filter(|_| mode.forwards()) {
            drop(devices);
            usage(&why);
        }
        for (device, _) in devices.iter().zip(&parsed).filter(|(_, name)| name.is_xdp()) {
            let info = device.info();
            if info.class == PortClass::Packet {
                note(&format!("note: {} falls back to packet sockets: {}", device.name(), info.description));
            }
        }
        let (last, registers_read, was_down) = (RefCell::default(), Cell::new(Instant::now()), Cell::default());
        Ok(Ports { names: parsed, devices, last, registers_read, was_down, sends_chains: false })
    }

    /// Returns whether one of the ports is served by another process.
    pub fn are_served(&self) -> bool {
        self.devices.iter().any(|device| device.info().class == PortClass::Server)
    }

    /// Returns the number of queues of each port; a port's own option has priority over `--queues`.
    pub fn queues(&self) -> u16 {
        self.devices.first().map_or(1, |device| device.info().rx_queues)
    }

    /// Records the length of frames that the run sends through a port.
    pub fn sends_frames_of(&mut self, len: usize) {
        self.sends_chains |= len > self.devices[0].pool().region().room();
    }

    /// Returns whether packets may be chains of slots, which count once.
    pub fn may_have_chains(&self) -> bool {
        // A capture file may have frames of any length.
        let is_capture = |name: &PortName| name.is_capture_to_read();
        self.sends_chains
            || self.names.iter().any(is_capture)
            || self.devices.iter().any(|device| {
                device.capabilities().of(Feature::ReceiveSegments) != Support::None
                    || device.info().max_frame > device.pool().region().room()
            })
    }

    /// Returns the models among the ports.
    pub fn models(&self) -> Vec<Arc<Card>> {
        self.devices.iter().filter_map(model).collect()
    }

    /// Returns the report of each port's wire, if the port is a model with a wire that counts.
    pub fn reports(&self) -> Vec<Option<Report>> {
        self.devices.iter().map(|device| model(device)?.wire_report()).collect()
    }

    /// Returns the requested packets per second of each model's wire; `None` for wires with a count. Prints how the
    /// rates are interpreted, unless `is_quiet`.
    pub fn asked_of_wires(&self, is_quiet: bool) -> Vec<Option<f64>> {
        let ports = self.names.iter().zip(&self.devices);
        ports
            .map(|(name, device)| {
                let (rate, len) = wire_rate(name)?;
                let rate = possible(rate, len, device, is_quiet)?;
                name.option("count").is_none().then(|| rate.packets_per_second(len))
            })
            .collect()
    }

    /// Reads the counters of all ports.
    ///
    /// # Errors
    /// A port, or the port behind a model's wire, is gone. A capture file that has failed is reported at the end.
    pub fn statistics(&self) -> Result<Vec<Statistics>, Error> {
        let of_wires = self.models().into_iter().filter_map(|card| card.check_wire().err());
        match of_wires.filter(|error| !is_of_file(error)).chain(self.devices.iter().filter_map(gone)).next() {
            Some(error) => Err(error),
            None => self.devices.iter().map(|device| device.statistics()).collect(),
        }
    }

    /// Reads the counters of all ports, with those of their queues.
    pub fn counters(&self) -> Result<Vec<Counters>, Error> {
        let ports = self.statistics()?.into_iter().zip(&self.devices);
        Ok(ports.map(|(port, device)| Counters { port, queues: device.queue_statistics() }).collect())
    }

    /// Saves the counters, in case that a port is gone later.
    pub fn remember(&self, counters: &[Counters]) {
        *self.last.borrow_mut() = counters.iter().map(|counters| counters.port).collect();
    }

    /// Reads the cards' counters by register from time to time, so that none reaches its maximum: the 32 bits of most
    /// last for 288 s at 10 Gbit/s. The statistics of each second do not need all of these registers.
    pub fn read_registers_if_due(&self) {
        const INTERVAL: Duration = Duration::from_secs(120);
        if self.registers_read.get().elapsed() >= INTERVAL {
            self.registers_read.set(Instant::now());
            self.devices.iter().for_each(|device| drop(device.register_counters()));
        }
    }

    /// Returns the ports' counters, and whether each port is gone. For a card that is gone, these are the last counters
    /// that were read, with the number of packets that its queues have moved.
    pub fn known_statistics(&self) -> (Vec<Statistics>, Vec<bool>) {
        let last = self.last.borrow();
        let known = self.devices.iter().enumerate().map(|(n, device)| match device.statistics() {
            Ok(statistics) => (statistics, gone(device).is_some()),
            Err(_) => {
                let mut known = last.get(n).copied().unwrap_or_default();
                if !self.may_have_chains() {
                    let QueueStatistics { rx_slots, tx_slots, .. } = device.queue_statistics();
                    (known.rx_packets, known.tx_packets) = (rx_slots.iter().sum(), tx_slots.iter().sum());
                }
                (known, true)
            }
        });
        known.unzip()
    }

    /// Returns the ports' rates from `before` to `now`.
    pub fn rates(&self, zero: &[Counters], before: &[Counters], now: &[Counters], seconds: f64) -> Vec<Rates> {
        let ports = self.devices.iter().zip(zero.iter().zip(before).zip(now));
        ports
            .map(|(device, ((zero, before), now))| {
                Rates::new(device.name(), is_up(device), [zero, before, now], seconds)
            })
            .collect()
    }

    /// Returns whether reading or writing has failed for a port that is a capture file.
    pub fn has_failed(&self) -> bool {
        let is_broken = |device: &Port| device.link().is_err_and(|error| is_of_file(&error));
        self.devices.iter().any(|device| device.info().class == PortClass::Capture && is_broken(device))
    }

    /// Returns the failures of files of ports and their wires, as one text each.
    pub fn cut_captures(&self) -> Vec<String> {
        let of = |device: &Port| {
            let of_wire = model(device).and_then(|card| card.check_wire().err());
            let errors = device.link().err().into_iter().chain(of_wire).filter(is_of_file);
            errors.map(|error| format!("{}: {}", device.name(), with_hint(&error))).collect::<Vec<_>>()
        };
        self.devices.iter().flat_map(of).collect()
    }

    /// Prints the failures of files of ports and their wires. Returns whether there are any.
    pub fn note_cut_captures(&self) -> bool {
        let failures = self.cut_captures();
        failures.iter().for_each(|failure| note(&format!("error: {failure}")));
        !failures.is_empty()
    }

    /// Prints the first breaches of the datasheet of each model. Returns their number.
    pub fn note_breaches(&self) -> u64 {
        let cards = self.models();
        for card in &cards {
            card.breaches().iter().take(5).for_each(|breach| note(&format!("sim:{}: breach: {breach}", card.name())));
        }
        cards.iter().map(|card| card.breach_count()).sum()
    }
}

/// Returns the number of buffers: twice what the rings of all ports hold. AF_XDP locks all of them in memory, so rings
/// chosen by the user bound it; otherwise there are at least as many as a region has by default.
fn buffer_count(names: &[PortName], options: &RunOptions) -> usize {
    /// For batches, caches and short rings.
    const LEAST: usize = 1024;
    let queues = u32::from(options.queues).max(xdp_queues(names)) as usize;
    let chosen = |name: &PortName| match name.option("ring") {
        Some(_) => name.number("ring", 512, 64..=4096).ok(),
        None => options.ring.map(usize::from),
    };
    let rings: usize = names.iter().map(|name| chosen(name).unwrap_or(512) * queues * 2).sum();
    let mut xdp = names.iter().filter(|name| name.is_xdp()).peekable();
    let is_bounded = xdp.peek().is_some() && xdp.all(|name| chosen(name).is_some());
    let least = if is_bounded { LEAST } else { RegionOptions::default().buffers };
    let held = options.held_buffers + names.iter().map(PortName::held_buffers).sum::<usize>();
    least.max(2 * rings).next_power_of_two().min(1 << 20) + held * queues
}

/// Allocates memory for the ports' queues, with buffers for the longest frame.
fn pool(names: &[PortName], options: &RunOptions) -> Result<Arc<Pool>, Error> {
    // Room for the longest frame after the headroom; 1,500 bytes fit 2 KiB.
    let size = if options.mtu <= 1500 { 2048 } else { (options.mtu + 1024).next_power_of_two() };
    // AF_XDP buffers are at most one page; longer frames become chains.
    let size = if names.iter().any(PortName::is_xdp) { size.min(4096) } else { size };
    // `--offloads` is the option of all ports.
    let is_on = |(option, _): &(&str, usize)| options.offloads && *option == OFFLOADS.name;
    let large = names.iter().filter_map(PortName::large_buffers).filter(is_on).map(|(_, size)| size);
    let buffer_size = names.iter().map(PortName::buffer_size).chain(large).fold(size.into(), usize::max);
    let buffers = buffer_count(names, options);
    let memory = RegionOptions { buffers, buffer_size, pages: options.pages.into(), numa_node: options.numa };
    let pool = Pool::new(Region::new(&memory)?);
    static NOTED: AtomicBool = AtomicBool::new(false);
    let is_card = |name: &PortName| name.class() == PortClass::Card;
    let is_ordinary = pool.region().pages() == PageSize::Ordinary;
    if is_ordinary && names.iter().any(is_card) && !NOTED.swap(true, Ordering::Relaxed) {
        let needed = (buffers * buffer_size).div_ceil(PageSize::Huge2M.bytes()) + names.len();
        note(&format!(
            "note: {} MiB of ordinary pages are in use; a card without an IOMMU needs hugepages:\n  echo {needed} | \
             sudo tee /proc/sys/vm/nr_hugepages",
            (buffers * buffer_size) >> 20
        ));
    }
    Ok(pool)
}

/// Returns the options that all ports are opened with.
fn port_options(names: &[PortName], options: &RunOptions, pool: Arc<Pool>) -> Options {
    Options {
        ring: options.ring.map(Into::into),
        max_frame: usize::from(options.mtu) + FRAME_HEADERS,
        pool: Some(pool),
        interrupts: match options.wait {
            // Packets have arrival times, so they may wait in the ring, which then bridges a longer pause.
            _ if options.timestamps && names.iter().all(PortName::is_packet) => Some(MAX_KERNEL_DELAY),
            Some(Wait::Poll) => None,
            // A port served by another process can wake a thread; a card is polled by default.
            None if !names.iter().any(PortName::may_be_served) => None,
            _ => Some(Duration::from_micros(options.throttle.into())),
        },
        timestamps: options.timestamps,
        metadata: options.metadata,
        offloads: options.offloads,
        take: options.bind.then_some(TakeFromKernel { access: Access::Either, force: options.force }),
        ..Options::default().with_queues(options.queues)
    }
}

/// Returns an error message if the numbers of queues differ: packets could arrive at queues that no thread forwards.
fn differing_queues(devices: &[Port]) -> Option<String> {
    let queues = |device: &Port| device.info().rx_queues;
    let first = devices.first()?;
    let other = devices.iter().find(|device| queues(device) != queues(first))?;
    Some(format!(
        "{} has {} receive queues and {} has {}: give both the same number, for example with --queues 1, or queues=N in a name",
        first.name(),
        queues(first),
        other.name(),
        queues(other)
    ))
}

/// Refuses to write a capture to standard output, where the statistics are printed.
pub fn check_standard_output(names: &[PortName]) {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino(), file.is_file()));
    let output = file(Path::new("/proc/self/fd/1"));
    for name in names.iter().filter(|name| name.is_capture_to_write()) {
        let Some(path) = name.path().filter(|path| *path != Path::new("/dev/null")) else { continue };
        if output.is_some() && file(path) == output {
            usage(&format!(
                "{name}: the statistics are printed there, too; write to a pipe: mkfifo p; cat p & … pcap:p?write"
            ));
        }
    }
}

/// Returns the highest number of queues of the ports' AF_XDP interfaces; 0 without such a port.
pub fn xdp_queues(names: &[PortName]) -> u32 {
    let xdp = names.iter().filter(|name| name.is_xdp()).filter_map(|name| name.interface());
    let queues = xdp.filter_map(|name| Interface::open_queue(name).ok()).map(|(interface, queue)| match queue {
        Some(_) => 1,
        None => interface.queues(),
    });
    queues.max().unwrap_or(0)
}

/// Returns the kernel's interface that a port is on.
pub fn interface(name: &PortName) -> Option<Interface> {
    Interface::open_queue(name.interface()?).ok().map(|(interface, _)| interface)
}

/// Returns why a port is gone. A failed capture file does not count as gone.
pub fn gone(device: &Port) -> Option<Error> {
    device.link().err().filter(|error| !is_of_file(error))
}

/// Returns whether an error is that of a capture file.
fn is_of_file(error: &Error) -> bool {
    error.kind() == ErrorKind::File
}
