//! Measures a path between two ports, such as a router: frames are stamped before they are sent at one end, and after
//! they are received at the other. Each port has one thread, which receives and then sends.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate::memory::Pool;
use linerate::port::{MacAddress, Port, RxQueue, TxQueue};
use linerate::traffic::{Checker, Generator, Latency, Pacer, Rate, Report, Template};
use linerate::{Batch, Error};

use super::{Load, Loaded, Sample, warmed_up};
use crate::generate::Source;
use crate::grammar::usage;
use crate::host::{HostOptions, Responder};
use crate::limits::End;
use crate::line_rate::{beyond_line, possible};
use crate::options::RunOptions;
use crate::run::{Moment, Outcome, Run};
use crate::wire::wire_of;

/// Measures one load.
pub(super) fn measure(
    names: [&str; 2],
    rate: Rate,
    load: &Load,
    options: &RunOptions,
    latency: &Arc<Latency>,
) -> Result<Sample, Error> {
    for name in names {
        if wire_of(&linerate::parse(name)?) == Some("traffic") {
            usage(&format!(
                "{name}: its wire generates frames: give it another wire, or give no wire to both ports, to measure a \
                 forwarder between them"
            ));
        }
    }
    let mut run = Run::open(&Loaded, &names, None, options)?;
    let len = f64::from(load.size) - 4.0;
    let possible = possible(rate, len, &run.ports.devices[0], load.is_quiet);
    let directions = if load.path.both { 2.0 } else { 1.0 };
    let in_all = |rate: Rate| rate.packets_per_second(len) * directions;
    let (asked, line) = (possible.map(in_all), beyond_line(rate, len, &run.ports.devices[0]).map(in_all));
    let (sent, report) = (Arc::<AtomicU64>::default(), [Arc::<Mutex<Report>>::default(), Arc::default()]);
    let answered = run.threads.answered.clone();
    let [a, b] = &mut run.ports.devices[..] else { unreachable!("two ports were opened") };
    let mut ends = Vec::new();
    for ((n, port), host) in [a, b].into_iter().enumerate().zip(load.path.host.of_two_ports()) {
        ends.push(EndOfPath::open(port, names[n], (n == 0, n == 1 || load.path.both), host, &answered)?);
    }
    let addresses = [0, 1].map(|n| ends[n].host.first_address());
    let mut sources = Vec::new();
    for (n, end) in ends.iter_mut().enumerate() {
        let is_sender = n == 0 || load.path.both;
        sources.push(if is_sender { Some(end.source(load, n as u16, addresses[1 - n])?) } else { None });
    }
    let end = run.clock.thread_end();
    for ((mut port, source), report) in ends.into_iter().zip(sources).zip(&report) {
        let is_sender = source.is_some();
        let mut sender = source.map(|source| Sender {
            pacer: possible.map(|rate| Pacer::new(rate, source.mean_len())),
            source,
            pool: port.pool.clone(),
            batch: Batch::with_capacity(options.batch.packets()),
            left: load.count.unwrap_or(u64::MAX),
            sent: sent.clone(),
            end: end.clone(),
        });
        let mut receiver = Receiver {
            batch: Batch::with_capacity(options.batch.packets()),
            checker: Checker::default(),
            report: report.clone(),
        };
        let (latency, mut waiter) = (latency.clone(), run.waiter());
        run.threads.spawn(move || {
            let received = port.rx.as_mut().map_or(0, |rx| receiver.turn(rx, &latency, port.responder.as_mut()));
            if let Some(tx) = &mut port.tx {
                port.responder.iter_mut().for_each(|responder| responder.send(tx));
                sender.iter_mut().for_each(|sender| sender.turn(tx, &latency));
            }
            if let (Some(rx), false) = (&mut port.rx, is_sender) {
                waiter.turn(received, &mut [rx]);
            }
            received
        });
    }
    let (mut in_time, mut warm) = ([0; 2], warmed_up(latency));
    let report = || {
        let mut sum = Report::default();
        report.iter().for_each(|report| sum += *report.lock().unwrap_or_else(PoisonError::into_inner));
        sum
    };
    let arrived = |report: Report| report.arrived() - report.foreign;
    let measured = run.measure(
        &mut |moment: &Moment| {
            warm(moment);
            in_time = [sent.load(Ordering::SeqCst), arrived(report())];
        },
        |_, _| {
            let report = report();
            Outcome {
                lost: sent.load(Ordering::SeqCst).saturating_sub(arrived(report)),
                corrupted: report.corrupted,
                changed: report.changed,
                duplicated: report.duplicated,
                ..Outcome::default()
            }
        },
    )?;
    let (total, unstamped) = ([sent.load(Ordering::SeqCst), arrived(report())], report().foreign);
    let [sent, arrived] = in_time;
    Ok(Sample { measured, asked, line, sent, arrived, total, unstamped })
}

/// A port at an end of the path.
struct EndOfPath {
    name: String,
    mac: MacAddress,
    pool: Arc<Pool>,
    host: HostOptions,
    /// Answers requests, if the port has addresses.
    responder: Option<Responder>,
    rx: Option<RxQueue>,
    tx: Option<TxQueue>,
}

impl EndOfPath {
    /// Takes the queues that the port needs. With an address, it has found its gateway.
    fn open(
        port: &mut Port,
        name: &str,
        (sends, receives): (bool, bool),
        host: HostOptions,
        answered: &Arc<AtomicU64>,
    ) -> Result<EndOfPath, Error> {
        let responder = host.responder(port, answered);
        let (is_host, pool, mac) = (responder.is_some(), port.pool().clone(), port.mac());
        let rx = if receives || is_host { Some(port.rx(0)?) } else { None };
        let tx = if sends || is_host { Some(port.tx(0)?) } else { None };
        let mut end = EndOfPath { name: name.to_string(), mac, pool, host, responder, rx, tx };
        if let (Some(responder), Some(rx), Some(tx)) = (&mut end.responder, &mut end.rx, &mut end.tx) {
            end.host.greet_gateways(responder, &end.name, tx, std::slice::from_mut(rx))?;
        }
        Ok(end)
    }

    /// Returns the frames that this port sends, to the other port's address if it has one.
    fn source(&mut self, load: &Load, flow: u16, other: Option<IpAddr>) -> Result<Source, Error> {
        let packet = match (&load.path.packet, other) {
            (Some(packet), _) if !packet.is_stamped() => {
                usage("--packet: the frames need sequence numbers: append /stamp after udp")
            }
            (Some(packet), _) => packet.clone(),
            (None, Some(other)) => {
                let ip = if other.is_ipv4() { "ip" } else { "ip6" };
                format!("eth/{ip}(dst={other})/udp/stamp").parse()?
            }
            (None, None) => return Ok(Generator::new(load.size.into(), 1).with_flows(flow..flow + 1).into()),
        };
        let packet = self.addressed(packet)?.with_flow(flow).with_sizes(load.size.to_string().parse()?)?;
        Ok(packet.frames()?.into())
    }

    /// Completes the frames' addresses, which the text may leave out: the port's, and the next hop's MAC address.
    fn addressed(&mut self, packet: Template) -> Result<Template, Error> {
        let packet = self.host.complete(packet)?;
        let (Some(responder), Some(rx), Some(tx)) = (&mut self.responder, &mut self.rx, &mut self.tx) else {
            return Ok(packet);
        };
        let resolve = |next_hop| responder.resolve(next_hop, &self.name, tx, std::slice::from_mut(rx));
        self.host.with_next_hop(packet, self.mac, resolve)
    }
}

/// The frames that arrive at a port.
struct Receiver {
    batch: Batch,
    checker: Checker,
    report: Arc<Mutex<Report>>,
}

impl Receiver {
    /// Receives, and returns the number of packets, without answered requests.
    fn turn(&mut self, rx: &mut RxQueue, latency: &Latency, mut responder: Option<&mut Responder>) -> usize {
        rx.recv(&mut self.batch);
        let mut packets = 0;
        for packet in self.batch.packets() {
            latency.record_arrival(&packet);
            packets += 1;
            if !responder.as_mut().is_some_and(|responder| responder.answers(&packet)) {
                self.checker.check(&packet);
            }
        }
        self.batch.clear();
        if packets > 0 {
            *self.report.lock().unwrap_or_else(PoisonError::into_inner) = self.checker.report();
        }
        packets
    }
}

/// The frames that a port sends.
struct Sender {
    source: Source,
    pacer: Option<Pacer>,
    pool: Arc<Pool>,
    batch: Batch,
    left: u64,
    sent: Arc<AtomicU64>,
    end: End,
}

impl Sender {
    fn turn(&mut self, tx: &mut TxQueue, latency: &Latency) {
        let Sender { source, pacer, pool, batch, left, sent, end } = self;
        // Count frames before sending them, and before checking for the end again: once all counted frames have arrived
        // after the end, no others will be sent.
        if end.is_reached() {
            sent.fetch_sub(batch.len() as u64, Ordering::SeqCst);
            batch.clear();
        } else if batch.is_empty() {
            let most = (batch.capacity() as u64).min(*left) as usize;
            let allowed = (0..most).take_while(|_| pacer.as_mut().is_none_or(Pacer::take)).count();
            sent.fetch_add(allowed as u64, Ordering::SeqCst);
            if !end.is_reached() {
                batch.alloc(pool, allowed, source.longest());
                batch.packets().for_each(|mut packet| source.fill(&mut packet));
                batch.packets().for_each(|packet| latency.record_departure(&packet));
            }
            sent.fetch_sub((allowed - batch.len()) as u64, Ordering::SeqCst);
            *left -= batch.len() as u64;
        }
        tx.send(batch);
    }
}
