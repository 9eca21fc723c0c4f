//! `linerate gen`: sends packets that a sink can recognise.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use linerate::memory::Pool;
use linerate::port::TxQueue;
use linerate::sim82599::{Frame, Replay, Wire};
use linerate::traffic::{Generator, Pacer, Rate, Report};
use linerate::{Batch, Error};
use std::sync::Arc;

use crate::Common;
use crate::run::{Outcome, Run, send};

/// Options of the traffic.
#[derive(Args)]
pub struct Traffic {
    /// Bytes of a frame, CRC included
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=9732))]
    size: u16,
    /// Rate in packets (14.88M) or bits (10Gbit) per second; at full speed by default
    #[arg(long)]
    rate: Option<Rate>,
    /// Number of packets
    #[arg(long)]
    count: Option<u64>,
    /// UDP flows, which differ in their source port
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
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
    left: u64,
}

impl Sender {
    fn turn(&mut self) -> usize {
        if self.batch.is_empty() && self.left > 0 {
            let wanted = (self.batch.capacity() as u64).min(self.left) as usize;
            let allowed = match &mut self.pacer {
                Some(pacer) => pacer.take_some(self.least.min(wanted), wanted),
                None => wanted,
            };
            self.fill(allowed);
        }
        let chains = self.generator.frame_len() > self.pool.region().room();
        send(&mut self.tx, &mut self.batch, chains)
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
    let common = Common { mtu: common.mtu.max(traffic.size - 18).min(9710), ..common.clone() };
    let template = traffic.template.as_deref().map(first_packet).transpose()?;
    let mut run = Run::open("gen", &[port], &common)?;
    let queues = run.queues();
    for queue in 0..queues {
        let device = &mut run.devices()[0];
        let (pool, tx) = (device.pool().clone(), device.tx(queue)?);
        // Each queue has its own flows, at least one.
        let share = |total: u64, n: u16| total * n as u64 / queues as u64;
        let flows = u64::from(traffic.flows.max(queues));
        let flows = share(flows, queue) as u16..share(flows, queue + 1) as u16;
        let generator = match &template {
            Some(template) => Generator::from_template(template, 1),
            None => Generator::new(traffic.size.into(), 1),
        };
        if queue == 0 && !generator.is_stamped() {
            eprintln!(
                "note: the template is not UDP over IPv4 with 18 bytes of payload: sent as it is, without sequence numbers"
            );
        }
        let rate = traffic.rate.map(|rate| match rate {
            Rate::Packets(value) => Rate::Packets(value / f64::from(queues)),
            Rate::Bits(value) => Rate::Bits(value / f64::from(queues)),
        });
        let pacer = rate.map(|rate| Pacer::new(rate, generator.frame_len()));
        // Each burst costs the other process a wake-up, so the frames of 50 µs are sent together.
        let per_look = rate.map_or(1.0, |rate| rate.packets_per_second(generator.frame_len()) * 50e-6);
        let most = common.batch.packets().min(Pacer::BURST as usize);
        let (least, pacer) = match run.is_served() {
            true => ((per_look as usize).clamp(1, most), pacer.map(|pacer| pacer.with_burst(RING))),
            false => (1, pacer),
        };
        let left = traffic.count.map_or(u64::MAX, |count| share(count, queue + 1) - share(count, queue));
        let batch = Batch::with_capacity(common.batch.packets());
        let mut sender = Sender { tx, pool, batch, generator: generator.with_flows(flows), pacer, least, left };
        run.spawn(move || sender.turn());
    }
    run.finish(|packets| traffic.count.is_some_and(|count| packets >= count), judge)
}

/// Takes the report of a tester at the port's other end, if there is one.
fn judge(reports: &[Option<Report>]) -> Outcome {
    let arrived = reports.iter().flatten();
    arrived.fold(Outcome::default(), |sum, report| Outcome {
        lost: sum.lost + report.lost,
        corrupted: sum.corrupted + report.corrupted,
        reordered: sum.reordered + report.reordered,
        filtered: 0,
    })
}

fn first_packet(path: &Path) -> Result<Vec<u8>, Error> {
    let mut frame = Frame::default();
    if !Replay::open(path)?.receive(&mut frame) || frame.bytes.is_empty() {
        let why = "it has no packet to take as a template".to_string();
        return Err(Error::Wire { wire: format!("pcap:{}", path.display()), why });
    }
    Ok(frame.bytes)
}
