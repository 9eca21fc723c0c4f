//! `linerate gen`: sends packets that a sink can recognise.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use linerate::capture::Reader;
use linerate::memory::Pool;
use linerate::port::{PortName, TxQueue};
use linerate::traffic::{Generator, Pacer, Rate, Report};
use linerate::{Batch, Error};

use crate::limits::End;
use crate::line_rate::possible;
use crate::run::{Outcome, REST, Run, send, wire_of};
use crate::show::note;
use crate::{Common, LONGEST_MTU, packets, usage, whole};

/// Options of the traffic.
#[derive(Args)]
pub struct Traffic {
    /// Bytes of a frame, CRC included: 64 to 9732; default 64
    #[arg(long, value_parser = size, conflicts_with = "template")]
    size: Option<u16>,
    /// Rate in packets (14.88M) or bits (10Gbit) per second, or as a part of the line rate (50%); at full speed by
    /// default
    #[arg(long)]
    rate: Option<Rate>,
    /// Number of packets; with k, M or G
    #[arg(long, value_parser = packets)]
    count: Option<u64>,
    /// UDP flows, which differ in their source port
    #[arg(long, default_value_t = 1, value_parser = whole::<u16>(1, u16::MAX))]
    flows: u16,
    /// Take the first packet of this capture file as the template
    #[arg(long)]
    template: Option<PathBuf>,
}

/// Frames that a paced sender to another process may catch up after time without a processor: a ring.
const RING: usize = 512;

/// One queue's sender.
struct Sender {
    tx: TxQueue,
    pool: Arc<Pool>,
    batch: Batch,
    generator: Generator,
    pacer: Option<Pacer>,
    /// Paced frames are sent in bursts of at least this many.
    least: usize,
    /// How long the thread sleeps when no burst is due: where the other side is a process, it needs the processor.
    rest: Option<Duration>,
    left: u64,
    /// Then it sends nothing more.
    end: End,
    /// Turns in which the port had no room.
    held_back: Arc<AtomicU64>,
}

impl Sender {
    fn turn(&mut self) -> usize {
        if self.end.has_come() {
            self.batch.clear();
        } else if self.batch.is_empty() && self.left > 0 {
            let wanted = (self.batch.capacity() as u64).min(self.left) as usize;
            let allowed = match &mut self.pacer {
                Some(pacer) => pacer.take_some(self.least.min(wanted), wanted),
                None => wanted,
            };
            self.fill(allowed);
            if let (0, Some(rest)) = (allowed, self.rest) {
                std::thread::sleep(rest);
            }
        }
        let chains = self.generator.frame_len() > self.pool.region().room();
        let sent = send(&mut self.tx, &mut self.batch, chains);
        if !self.batch.is_empty() {
            self.held_back.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    fn fill(&mut self, wanted: usize) {
        let len = self.generator.frame_len();
        if len <= self.pool.region().room() {
            self.batch.alloc(&self.pool, wanted, len);
            self.batch.packets().for_each(|mut packet| self.generator.fill(&mut packet));
            self.left -= self.batch.len() as u64;
        } else {
            let mut bytes = vec![0; len];
            for _ in 0..wanted {
                // Checked before the generator counts a frame: every frame made must be sent.
                if self.batch.len() >= self.batch.capacity() {
                    break;
                }
                let before = self.generator.clone();
                self.generator.fill(&mut bytes);
                if !self.batch.push(&self.pool, &bytes) {
                    self.generator = before;
                    break;
                }
                self.left -= 1;
            }
        }
    }
}

/// Runs until its end.
pub fn run(port: &str, traffic: &Traffic, common: &Common) -> Result<ExitCode, Error> {
    let size = traffic.size.unwrap_or(64);
    let common = Common { mtu: common.mtu.max(size - 18).min(LONGEST_MTU), ..common.clone() };
    if PortName::parse(port)?.is_capture_to_read() {
        usage(&format!(
            "{port} is read; to write into it: gen '{port}{}write'",
            if port.contains('?') { '&' } else { '?' }
        ));
    }
    let template = traffic.template.as_deref().map(first_packet).transpose()?;
    let mut run = Run::open("gen", &[port], traffic.count, &common)?;
    let queues = run.queues();
    let len = template.as_ref().map_or(usize::from(size) - 4, Vec::len);
    run.sends_frames_of(len);
    // A chain has at most 64 slots.
    let most = 64 * run.devices()[0].pool().region().room();
    if len > most {
        usage(&format!(
            "the template's first frame has {len} bytes, and a packet here at most {most}; a larger --mtu takes more"
        ));
    }
    let rate = traffic.rate.and_then(|rate| possible(rate, len, &run.devices()[0], false));
    let held_back = run.ask(rate.map(|rate| rate.packets_per_second(len)));
    for queue in 0..queues {
        let device = &mut run.devices()[0];
        let (pool, tx) = (device.pool().clone(), device.tx(queue)?);
        // Each queue has its own flows, at least one.
        let share = |total: u64, n: u16| total * n as u64 / queues as u64;
        let flows = u64::from(traffic.flows.max(queues));
        let flows = share(flows, queue) as u16..share(flows, queue + 1) as u16;
        let generator = match &template {
            Some(template) => Generator::from_template(template, 1),
            None => Generator::new(size.into(), 1),
        };
        if queue == 0 && !generator.is_stamped() {
            note(
                "note: the template is not UDP over IPv4 with 18 bytes of payload: sent as it is, without sequence numbers",
            );
        }
        let rate = rate.map(|rate| rate.times(1.0 / f64::from(queues)));
        // In turn: the sum of queues with few frames each is the rate, too.
        let credit = f64::from(queue) / f64::from(queues);
        let pacer = rate.map(|rate| Pacer::new(rate, generator.frame_len()).with_credit(credit));
        // Each burst costs the other process a wake-up, so the frames of 50 µs are sent together.
        let per_look = rate.map_or(1.0, |rate| rate.packets_per_second(generator.frame_len()) * 50e-6);
        let most = common.batch.packets().min(Pacer::BURST as usize);
        let (least, rest, pacer) = match run.is_served() {
            true => ((per_look as usize).clamp(1, most), Some(REST), pacer.map(|pacer| pacer.with_burst(RING))),
            false => (1, None, pacer),
        };
        let left = traffic.count.map_or(u64::MAX, |count| share(count, queue + 1) - share(count, queue));
        let batch = Batch::with_capacity(common.batch.packets());
        let (generator, held_back, end) = (generator.with_flows(flows), held_back.clone(), run.end());
        let mut sender = Sender { tx, pool, batch, generator, pacer, least, rest, left, end, held_back };
        run.spawn(move || sender.turn());
    }
    let is_stamped = template.is_none_or(|template| Generator::from_template(&template, 1).is_stamped());
    let is_checked = is_checked(port);
    run.finish(|reports, sums| {
        let outcome = judge(reports, is_stamped);
        match reports {
            // Of the last frames a checker misses none.
            [Some(report)] if is_checked => {
                Outcome { lost: outcome.lost.max(sums.moved.saturating_sub(report.arrived())), ..outcome }
            }
            _ => outcome,
        }
    })
}

/// Returns whether a port's other end counts all frames that arrive there.
fn is_checked(name: &str) -> bool {
    PortName::parse(name).is_ok_and(|name| matches!(wire_of(&name), Some("traffic" | "sink")))
}

/// Reads a frame's size.
fn size(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(size @ 64..=9732) => Ok(size),
        Ok(60..=63) => {
            Err(format!("it must be 64 to 9732, CRC included ({text} + 4 = {})", text.parse::<u16>().unwrap_or(0) + 4))
        }
        _ => Err("it must be 64 to 9732, CRC included".to_string()),
    }
}

/// Takes the report of a tester at the port's other end, if there is one. A frame without the stamp that it was sent with is
/// corrupted, and not lost.
fn judge(reports: &[Option<Report>], is_stamped: bool) -> Outcome {
    let arrived = reports.iter().flatten().map(|report| report.by_sender(is_stamped, 0));
    arrived.fold(Outcome::default(), |sum, report| Outcome {
        lost: sum.lost + report.lost,
        corrupted: sum.corrupted + report.corrupted,
        reordered: sum.reordered + report.reordered,
        duplicated: sum.duplicated + report.duplicated,
        ..Outcome::default()
    })
}

fn first_packet(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut reader = Reader::open(path)?;
    match reader.next(&mut bytes)? {
        Some(record) if !bytes.is_empty() => {
            if bytes.len() < record.original_len {
                note(&format!(
                    "note: the template has {} of {} bytes: its end was cut by the capture's snap length",
                    bytes.len(),
                    record.original_len
                ));
            }
            Ok(bytes)
        }
        _ => {
            let skipped = reader.skipped();
            let others = if skipped > 0 { format!("; {skipped} packets are not Ethernet") } else { String::new() };
            let why = format!("it has no packet to take as a template{others}");
            Err(Error::Capture { file: path.display().to_string(), why })
        }
    }
}
