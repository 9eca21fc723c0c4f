//! `linerate latency`: the latency of frames from one port to another, by load.
//!
//! Two models are the two sides of a forwarder: frames enter at the first model's wire and leave at the other's,
//! and the wires record the times, as cards with hardware timestamps do. Any other two ports are the two sides of
//! the path between them: frames are stamped in software, before they are sent at the first and after they are
//! received at the second.

use std::cell::Cell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use hdrhistogram::Histogram;
use linerate::port::PortName;
use linerate::sim82599::Timed;
use linerate::traffic::{Checker, Generator, Latency, Pacer, Rate};
use linerate::{Batch, Error};
use serde_json::{Value, json};

use crate::Common;
use crate::fwd::{self, Rules};
use crate::run::{Outcome, Run, model};
use crate::show::print;

/// Options of the load.
#[derive(Args, Clone)]
pub struct Load {
    /// Rate in packets (1M) or bits (1Gbit) per second; several rates are measured in turn
    #[arg(long, value_delimiter = ',', default_value = "100k")]
    pub rate: Vec<Rate>,
    /// Bytes of a frame, CRC included
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1518))]
    pub size: u16,
    /// Time one frame out of this many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
}

/// Latencies at one load.
pub struct Times {
    /// Packets per second that were offered, and that arrived.
    pub offered: f64,
    pub arrived: f64,
    pub lost: u64,
    pub corrupted: u64,
    /// In nanoseconds.
    pub histogram: Histogram<u64>,
}

/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 7] =
    [("min", 0.0), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999), ("max", 1.0)];

impl Times {
    /// Returns the nanoseconds within which this part of all frames arrived.
    pub fn quantile(&self, part: f64) -> u64 {
        match part {
            0.0 => self.histogram.min(),
            part => self.histogram.value_at_quantile(part),
        }
    }

    fn json(&self) -> Value {
        let times = QUANTILES.map(|(name, part)| (name.to_string(), json!(self.quantile(part) as f64 / 1000.0)));
        json!({
            "offered_mpps": self.offered / 1e6, "arrived_mpps": (self.arrived / 1e3).round() / 1e3,
            "lost": self.lost, "corrupted": self.corrupted, "looked_at": self.histogram.len(),
            "microseconds": times.into_iter().collect::<serde_json::Map<_, _>>(),
        })
    }

    fn line(&self) -> String {
        let times = QUANTILES.map(|(_, part)| format!("{:>9.2}", self.quantile(part) as f64 / 1000.0)).concat();
        format!("{:>9.3} {:>9.3} {:>9} {times}\n", self.offered / 1e6, self.arrived / 1e6, self.lost)
    }
}

/// The default time of each load.
const SECONDS: Duration = Duration::from_secs(2);

/// Runs all loads.
pub fn run(names: [&str; 2], load: &Load, common: &Common) -> Result<ExitCode, Error> {
    let common = Common { seconds: Some(common.seconds.unwrap_or(SECONDS)), ..common.clone() };
    if !common.json {
        let through =
            if are_sides_of_a_forwarder(names)? { "through fwd, from wire to wire" } else { "from port to port" };
        let titles = QUANTILES.map(|(name, _)| format!("{:>9}", name.replace('_', "."))).concat();
        print(&format!("microseconds {through}\n  Mpps in  Mpps out      lost {titles}\n"));
    }
    let (mut all, mut good) = (Vec::new(), true);
    for &rate in &load.rate {
        let times = measure(names, rate, load, &common)?;
        good &= !times.histogram.is_empty() && times.corrupted == 0;
        if common.json {
            print(&format!("{}\n", times.json()));
        } else {
            print(&times.line());
        }
        all.push(times.json());
    }
    if common.json {
        print(&format!("{}\n", json!({"summary": {"command": "latency", "loads": all}})));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// True for two models whose wires are not given in their names.
fn are_sides_of_a_forwarder(names: [&str; 2]) -> Result<bool, Error> {
    let is_side = |name: &str| -> Result<bool, Error> {
        let name = PortName::parse(name)?;
        Ok(name.model().is_some() && name.option("wire").is_none())
    };
    Ok(is_side(names[0])? && is_side(names[1])?)
}

/// Measures one load.
pub fn measure(names: [&str; 2], rate: Rate, load: &Load, common: &Common) -> Result<Times, Error> {
    let latency = Latency::new(load.every);
    let offered = rate.packets_per_second(usize::from(load.size) - 4);
    let measured = match are_sides_of_a_forwarder(names)? {
        true => through_a_forwarder(names, rate, load, common, &latency)?,
        false => from_port_to_port(names, rate, load, common, &latency)?,
    };
    let mut histogram = Histogram::new(3).expect("three digits are possible");
    latency.take().into_iter().for_each(|time| histogram.record(time).expect("it grows with what comes"));
    let Outcome { lost, corrupted, .. } = measured.outcome;
    Ok(Times { offered, arrived: measured.packets as f64 / measured.seconds, lost, corrupted, histogram })
}

/// Discards times up to the first check: frames waited while the threads started.
fn warmed_up(latency: &Arc<Latency>) -> impl Fn(u64) -> bool + use<> {
    let (latency, warm) = (latency.clone(), Cell::new(false));
    move |packets| {
        if packets > 0 && !warm.replace(true) {
            latency.take();
        }
        false
    }
}

fn through_a_forwarder(
    [a, b]: [&str; 2],
    rate: Rate,
    load: &Load,
    common: &Common,
    latency: &Arc<Latency>,
) -> Result<crate::run::Measured, Error> {
    let rate = match rate {
        Rate::Packets(packets) => packets.to_string(),
        Rate::Bits(bits) => format!("{bits}bit"),
    };
    let with = |name: &str, options: &str| format!("{name}{}{options}", if name.contains('?') { '&' } else { '?' });
    let names = [with(a, &format!("rate={rate}&size={}", load.size)), with(b, "wire=sink")];
    let mut run = Run::open("latency", &names.each_ref().map(String::as_str), common)?;
    for device in run.devices() {
        if let Some(card) = model(device) {
            card.rewire(|wire| Box::new(Timed::new(wire, latency.clone())));
        }
    }
    fwd::start(&mut run, false, &Rules::default(), common)?;
    run.measure(warmed_up(latency), fwd::judge, None)
}

fn from_port_to_port(
    names: [&str; 2],
    rate: Rate,
    load: &Load,
    common: &Common,
    latency: &Arc<Latency>,
) -> Result<crate::run::Measured, Error> {
    let mut run = Run::open("latency", &names, common)?;
    let [a, b] = run.devices() else { unreachable!("two ports were opened") };
    let (pool, mut tx, mut rx) = (a.pool().clone(), a.tx(0)?, b.rx(0)?);
    let [sent, received, corrupted] = [(); 3].map(|()| Arc::<AtomicU64>::default());
    let (mut batch, stamps, mut waiter) = (Batch::with_capacity(common.batch.packets()), latency.clone(), run.waiter());
    let (count, bad, mut checker) = (received.clone(), corrupted.clone(), Checker::default());
    run.spawn(move || {
        rx.recv(&mut batch);
        let packets = batch.len();
        batch.packets().for_each(|packet| stamps.arrives(&packet));
        batch.packets().for_each(|packet| checker.check(&packet));
        batch.clear();
        if packets > 0 {
            let report = checker.report();
            count.store(report.received - report.foreign, Ordering::Relaxed);
            bad.store(report.corrupted, Ordering::Relaxed);
        }
        waiter.turn(packets, &mut [&mut rx]);
        packets
    });
    let mut generator = Generator::new(load.size.into(), 1);
    let mut pacer = Pacer::new(rate, generator.frame_len());
    let (mut batch, stamps, count) = (Batch::with_capacity(common.batch.packets()), latency.clone(), sent.clone());
    let end = common.seconds.and_then(|seconds| std::time::Instant::now().checked_add(seconds));
    run.spawn(move || {
        if batch.is_empty() && end.is_none_or(|end| std::time::Instant::now() < end) {
            let allowed = (0..batch.capacity()).take_while(|_| pacer.take()).count();
            batch.alloc(&pool, allowed, generator.frame_len());
            batch.packets().for_each(|mut packet| generator.fill(&mut packet));
            batch.packets().for_each(|packet| stamps.leaves(&packet));
        }
        count.fetch_add(tx.send(&mut batch) as u64, Ordering::Relaxed);
        0
    });
    run.measure(
        warmed_up(latency),
        |_| Outcome {
            lost: sent.load(Ordering::Relaxed).saturating_sub(received.load(Ordering::Relaxed)),
            corrupted: corrupted.load(Ordering::Relaxed),
            ..Outcome::default()
        },
        None,
    )
}
