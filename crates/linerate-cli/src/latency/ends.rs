//! Measures paths between pairs of ports, such as a router: frames are stamped before they are sent at one end, and
//! after they are received at the other. Each port has one thread, which receives and then sends.

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use linerate::memory::Pool;
use linerate::port::{MacAddress, Port, RxQueue, TxQueue};
use linerate::traffic::{Rate, Template};
use linerate::{Batch, Error};

use super::direction::{Direction, LEARNING, Receiver, Sender};
use super::probes::{EVENTS, PTP, Probes, SYNC};
use super::times::Counts;
use super::{Load, Loaded, Sample, Stamps};
use crate::generate::{Mix, Stream};
use crate::grammar::usage;
use crate::host::{HostOptions, Responder};
use crate::line_rate::{beyond_line, possible};
use crate::options::{LONGEST_MTU, RunOptions};
use crate::run::{Moment, Outcome, Run};
use crate::wire::{wire_of, with_option};

/// Measures one load. Each two ports are a pair.
pub(super) fn measure(
    names: &[&str],
    rate: Rate,
    load: &Load,
    options: &RunOptions,
    observer: &mut dyn FnMut(&Moment),
) -> Result<Sample, Error> {
    for name in names {
        if wire_of(&linerate::parse(name)?) == Some("traffic") {
            usage(&format!(
                "{name}: its wire generates frames: give it another wire, or give no wire to both ports, to measure a \
                 forwarder between them"
            ));
        }
    }
    let streams = load.streams();
    // Raise the MTU to fit the frames.
    let longest = streams.iter().filter_map(|stream| Some(stream.size.as_ref()?.largest())).max().unwrap_or_default();
    let mtu = options.mtu.max(longest.saturating_sub(18).min(LONGEST_MTU));
    let options = &RunOptions { mtu, ..options.clone() };
    let is_by_card = load.stamps == Stamps::Card;
    // Without metadata, a card does not note the times of received frames.
    let noting = |name: &&str| if is_by_card { with_option(name, "metadata=on") } else { name.to_string() };
    let opened: Vec<String> = names.iter().map(noting).collect();
    let opened: Vec<&str> = opened.iter().map(String::as_str).collect();
    if let Some(n) = opened.iter().position(|name| is_by_card && linerate::parse(name).is_err()) {
        usage(&format!("{}: --stamps card is for cards with a clock: 82599, X540, X550, 82576 and sim:", names[n]));
    }
    let mut run = Run::open(&Loaded, &opened, None, options)?;
    let clocks = run.ports.devices.iter().filter(|_| is_by_card).map(Port::clock).collect::<Result<Vec<_>, _>>()?;
    let answered = run.threads.answered.clone();
    let (hosts, is_learned) = (load.path.host.of_ports(names.len()), names.len() > 2 || load.path.both);
    let mut ends = Vec::new();
    for ((n, port), host) in run.ports.devices.iter_mut().enumerate().zip(hosts) {
        let sends = n % 2 == 0 || load.path.both;
        let receives = n % 2 == 1 || load.path.both;
        // If several ports send, a switch must tell them apart.
        let mut end = EndOfPath::open(port, names[n], (sends || is_learned, receives), host, &answered)?;
        if let (true, false, Some(tx)) = (is_learned, end.host.is_host(), &mut end.tx) {
            announce(mac_of(n), &end.pool, tx)?;
        }
        ends.push(end);
    }
    let addresses: Vec<_> = ends.iter().map(|end| Some((end.host.first_address()?, end.mac))).collect();
    let mut senders: Vec<Option<Sender>> = names.iter().map(|_| None).collect();
    let mut receivers: Vec<Option<Receiver>> = names.iter().map(|_| None).collect();
    // Packets per second of all senders, and the most that their lines carry of it.
    let (mut directions, mut flows, mut asked, mut most, mut is_beyond) = (Vec::new(), 0..0, Some(0.0), 0.0, false);
    for (n, end) in ends.iter_mut().enumerate().filter(|(n, _)| n % 2 == 0 || load.path.both) {
        // The other port of the pair.
        let other = n ^ 1;
        let macs = (is_learned && !end.host.is_host()).then(|| [mac_of(n), mac_of(other)]);
        let mix = end.mix(&streams, &mut flows, addresses[other], macs)?;
        let frame = if is_by_card { Some(end.probe(&mix, addresses[other])?) } else { None };
        let probes = frame.map(|frame| Probes::new(frame, [n, other].map(|port| clocks[port].clone())));
        let (longest, room) = (mix.longest(), end.pool.region().room());
        if longest > room {
            usage(&format!("the longest frame has {longest} bytes, and a packet here at most {room}"));
        }
        let (port, len) = (&run.ports.devices[n], mix.mean_len());
        let possible = possible(rate, len, port, load.is_quiet || n > 0);
        let per_second = possible.map(|rate| rate.packets_per_second(len));
        let beyond = beyond_line(rate, len, port).map(|line| line.packets_per_second(len));
        asked = asked.zip(per_second).map(|(sum, rate)| sum + rate);
        most += beyond.or(per_second).unwrap_or_default();
        is_beyond |= beyond.is_some();
        let (direction, sender, receiver) = Direction::new(
            n,
            (mix, flows.clone()),
            possible,
            (load, options.batch.packets()),
            (end.pool.clone(), run.clock.thread_end()),
            probes,
        );
        (senders[n], receivers[other]) = (Some(sender), Some(receiver));
        directions.push(direction);
    }
    for ((mut end, mut sender), mut receiver) in ends.into_iter().zip(senders).zip(receivers) {
        let (mut waiter, mut batch) = (run.waiter(), Batch::with_capacity(options.batch.packets()));
        run.threads.spawn(move || {
            let received = match (&mut end.rx, &mut receiver) {
                (Some(rx), Some(receiver)) => receiver.turn(rx, end.responder.as_mut()),
                (Some(rx), None) => end.responder.as_mut().map_or(0, |responder| responder.receive(rx, &mut batch)),
                (None, _) => 0,
            };
            if let Some(tx) = &mut end.tx {
                end.responder.iter_mut().for_each(|responder| responder.send(tx));
                sender.iter_mut().for_each(|sender| sender.turn(tx));
            }
            if let (Some(rx), None) = (&mut end.rx, &sender) {
                waiter.turn(received, &mut [rx]);
            }
            received
        });
    }
    let directions = RefCell::new(directions);
    let measured = run.measure(
        &mut |moment: &Moment| {
            directions.borrow_mut().iter_mut().for_each(|direction| direction.see(moment));
            observer(moment);
        },
        |_, _| {
            let mut outcome = Outcome::default();
            for direction in &*directions.borrow() {
                let ([sent, arrived], report) = (direction.sent_and_arrived(), direction.report());
                outcome.lost += sent.saturating_sub(arrived);
                outcome.corrupted += report.corrupted;
                outcome.duplicated += report.duplicated;
                outcome.changed += report.changed;
            }
            outcome
        },
    )?;
    let (directions, mut pairs) =
        (directions.into_inner(), names.chunks(2).map(|_| Counts::new(load.every)).collect::<Vec<_>>());
    let senders = directions.len() as u64;
    directions.into_iter().for_each(|direction| pairs[direction.from / 2].add(&direction.into_counts()));
    Ok(Sample { measured, asked, line: is_beyond.then_some(most), senders, pairs })
}

/// Returns the MAC address of a port without IP addresses, if several ports send. With different ones, a switch learns where
/// each port is. None is an interface's, so that the kernel does not accept the frames.
fn mac_of(port: usize) -> MacAddress {
    let [high, low] = (port as u16).to_be_bytes();
    MacAddress([0x02, 0x6C, 0x72, 1, high, low])
}

/// Sends a learning frame (RFC 2544, section 23) from a port's MAC address. It is also addressed to it, so that a switch
/// learns the address and forwards nothing.
fn announce(mac: MacAddress, pool: &Arc<Pool>, tx: &mut TxQueue) -> Result<(), Error> {
    let kind = u16::from_be_bytes(LEARNING);
    let mut frames = format!("eth(src={mac},dst={mac},type={kind})/payload").parse::<Template>()?.frames()?;
    let (mut frame, mut batch) = (vec![0; frames.next_len()], Batch::new());
    frames.fill(&mut frame);
    batch.push(pool, &frame);
    tx.send(&mut batch);
    Ok(())
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
        mut host: HostOptions,
        answered: &Arc<AtomicU64>,
    ) -> Result<EndOfPath, Error> {
        let (is_host, pool, mac) = (host.answers(), port.pool().clone(), port.mac());
        let mut rx = if receives || is_host { Some(port.rx(0)?) } else { None };
        let mut tx = if sends || is_host { Some(port.tx(0)?) } else { None };
        if let (true, Some(rx), Some(tx)) = (is_host, &mut rx, &mut tx) {
            host.configure(mac, &pool, name, tx, std::slice::from_mut(rx))?;
        }
        let responder = host.responder(port, answered);
        let mut end = EndOfPath { name: name.to_string(), mac, pool, host, responder, rx, tx };
        if let (Some(responder), Some(rx), Some(tx)) = (&mut end.responder, &mut end.rx, &mut end.tx) {
            end.host.greet_gateways(responder, &end.name, tx, std::slice::from_mut(rx))?;
        }
        Ok(end)
    }

    /// Returns the frames that this port sends, to the other port's address if it has one, or between these MAC
    /// addresses. `flows` are those of the port before; they become this one's.
    fn mix(
        &mut self,
        streams: &[Stream],
        flows: &mut Range<u16>,
        other: Option<(IpAddr, MacAddress)>,
        macs: Option<[MacAddress; 2]>,
    ) -> Result<Mix, Error> {
        *flows = flows.end..flows.end;
        let mut sources = Vec::new();
        for (number, stream) in streams.iter().enumerate() {
            let (mut stream, label) = (stream.clone(), stream.label(number));
            if self.host.is_host() {
                stream.set_addresses(&self.host, other.map(|(address, _)| address));
            } else if let Some([own, other]) = macs {
                stream.set_macs(own, other)?;
            }
            if let Some(packet) = stream.packet.take() {
                stream.packet = Some(self.addressed(packet, other)?);
            }
            let position = if streams.len() > 1 { format!("{label}: ") } else { String::new() };
            let source = stream.sources(1, flows.end, None, &position).pop().expect("there is one for each queue");
            if !source.is_stamped() {
                usage(&format!("{position}the frames need sequence numbers: append /stamp after udp"));
            }
            let end = flows.end.checked_add(stream.flow_count(1));
            flows.end = end.unwrap_or_else(|| usage("the streams of all ports have more than 65535 flows"));
            let share = stream.share(source.mean_len());
            sources.push((source, share));
        }
        Ok(Mix::new(sources))
    }

    /// Returns a frame for [`Probes`]: over UDP from and to hosts, otherwise over Ethernet with the addresses of `mix`.
    fn probe(&mut self, mix: &Mix, other: Option<(IpAddr, MacAddress)>) -> Result<Vec<u8>, Error> {
        let template = match (self.host.is_host(), mix.first_frames().first().map(Vec::as_slice)) {
            (false, Some([a, b, c, d, e, f, g, h, i, j, k, l, ..])) => {
                let [to, from] = [[*a, *b, *c, *d, *e, *f], [*g, *h, *i, *j, *k, *l]].map(MacAddress);
                format!("eth(dst={to},src={from},type={PTP})/payload({SYNC},fill=0)").parse()?
            }
            _ => {
                let ip = if self.host.is_ipv6() { "ip6" } else { "ip" };
                let text = format!("eth/{ip}/udp(sport={EVENTS},dport={EVENTS})/payload({SYNC},fill=0)");
                self.addressed(text.parse()?, other)?
            }
        };
        let mut frames = template.frames()?;
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        Ok(frame)
    }

    /// Completes the frames' addresses, which the text may leave out: those of both ports, and the next hop's MAC
    /// address.
    fn addressed(&mut self, packet: Template, other: Option<(IpAddr, MacAddress)>) -> Result<Template, Error> {
        let packet = match other {
            Some((address, _)) => {
                packet.with_default(if address.is_ipv4() { "ip" } else { "ip6" }, "dst", &address.to_string())?
            }
            None => packet,
        };
        let packet = self.host.complete(packet)?;
        let (Some(responder), Some(rx), Some(tx)) = (&mut self.responder, &mut self.rx, &mut self.tx) else {
            return Ok(packet);
        };
        let resolve = |next_hop| match other {
            // In the same network; it does not answer yet.
            Some((address, mac)) if address == next_hop => Ok(mac.0),
            _ => responder.resolve(next_hop, &self.name, tx, std::slice::from_mut(rx)),
        };
        self.host.with_next_hop(packet, self.mac, resolve)
    }
}
