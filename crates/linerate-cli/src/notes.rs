//! The ports at a run's end: their counters, and notes on packets that they did not move, with causes and remedies.

use linerate::ErrorKind;
use linerate::port::{
    CaptureCounts, Drops, FRAME_HEADERS, Port, PortClass, PortName, QueueStatistics, Statistics, switch_and_port,
};
use linerate::share::{Client, folder};
use linerate::sim82599::Unsent;
use linerate::traffic::Report;
use serde_json::{Value, json};

use crate::line_rate::{is_up, model};
use crate::run::{Measured, Ports};
use crate::show::{drops, occurred};
use crate::terminal::note;

/// Returns the number of frames that arrived but that the ports did not deliver. `no_buffer` is left out: those packets
/// wait for a buffer and are not lost.
pub fn undelivered(statistics: &[Statistics]) -> u64 {
    let of = |Drops {
                  no_descriptor,
                  no_buffer: _,
                  bad_crc,
                  undersize,
                  oversize,
                  bad_frame,
                  malformed,
                  tx_too_long: _,
                  injected,
                  in_flight,
              }: Drops| {
        no_descriptor + bad_crc + undersize + oversize + bad_frame + malformed + injected + in_flight
    };
    statistics.iter().map(|port| of(port.drops)).sum()
}

/// Returns the number of packets that a port was given but has neither sent nor dropped for a counted cause; `None` if
/// packets may be chains, as then only the number of slots is known.
fn unsent(device: &Port, statistics: &Statistics, may_have_chains: bool) -> Option<u64> {
    let given: u64 = device.queue_statistics().tx_slots.iter().sum();
    let Statistics { tx_packets, drops, .. } = statistics;
    (!may_have_chains).then(|| given.saturating_sub(tx_packets + drops.tx_too_long + drops.injected))
}

/// Returns the ports' parts of a summary. `reports` are the reports of their wires.
pub fn port_summaries(ports: &Ports, measured: &Measured, reports: &[Option<Report>]) -> Vec<Value> {
    let chains = ports.may_have_chains();
    let known = ports.devices.iter().zip(measured.statistics.iter().zip(reports.iter().zip(&measured.is_port_gone)));
    known
        .map(|(device, (counters, (wire, gone)))| port_summary(device, counters, wire.as_ref(), *gone, chains))
        .collect()
}

/// Returns a port's part of a summary. `wire` is the report of its wire.
fn port_summary(
    device: &Port,
    statistics: &Statistics,
    wire: Option<&Report>,
    is_gone: bool,
    may_have_chains: bool,
) -> Value {
    // The server counts the bytes of a served port: they are unknown once the port is gone.
    let bytes = |bytes: u64| (!is_gone).then_some(bytes);
    let QueueStatistics { rx_slots, tx_slots, rx_no_descriptor } = device.queue_statistics();
    let CaptureCounts { not_ethernet, too_short, surplus, snapped } = capture_counts(device, wire);
    let registers = device.register_counters().unwrap_or_default();
    let by_wire = model(device).map(|card| card.unsent_by_wire().by_cause());
    let mut summary = json!({
        "name": device.name(), "rx_slots": rx_slots, "tx_slots": tx_slots,
        "rx_no_descriptor": rx_no_descriptor,
        "rx_packets": statistics.rx_packets, "tx_packets": statistics.tx_packets,
        "rx_bytes": bytes(statistics.rx_bytes), "tx_bytes": bytes(statistics.tx_bytes),
        "unsent": unsent(device, statistics, may_have_chains), "drops": drops(&statistics.drops),
        "undelivered": undelivered(&[*statistics]), "unsent_by_wire": by_wire.map(occurred),
        "capture": {"not_ethernet": not_ethernet, "too_short": too_short, "surplus": surplus, "snapped": snapped},
        "too_long_for_wire": wire.map(|report| report.too_long),
    });
    if !registers.is_empty() {
        summary["registers"] = occurred(registers);
    }
    summary
}

/// The ports of a run and of its models' wires, each with the number of packets that its interface had dropped on
/// transmit when the run began.
pub struct TransmitDrops(Vec<(Option<u64>, PortName)>);

impl TransmitDrops {
    pub fn of(names: &[PortName]) -> TransmitDrops {
        let wire = |name: &PortName| name.model().and(name.option("wire")).and_then(|wire| linerate::parse(wire).ok());
        let all = names.iter().flat_map(|name| [Some(name.clone()), wire(name)]).flatten();
        TransmitDrops(all.map(|name| (tx_dropped_by_interface(&name), name)).collect())
    }

    /// Prints a note for each port whose interface has dropped packets that count as sent.
    pub fn note_dropped(&self) {
        for (before, name) in &self.0 {
            let now = tx_dropped_by_interface(name).zip(*before).map_or(0, |(now, before)| now.saturating_sub(before));
            if now > 0 {
                let name = name.short();
                note(&format!(
                    "note: {name}: the interface dropped {now} packets on transmit, which may count as sent"
                ));
            }
        }
    }
}

/// Returns how many packets the interface of an `xdp:` port has dropped on transmit, after the kernel accepted them.
fn tx_dropped_by_interface(name: &PortName) -> Option<u64> {
    let count = |interface: &str| {
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/statistics/tx_dropped"));
        text.ok()?.trim().parse().ok()
    };
    let name = name.is_xdp().then(|| name.address())?;
    // "eth0-2" is a queue of eth0, unless it is an interface.
    count(name).or_else(|| count(name.rsplit_once('-')?.0))
}

/// Prints notes on the packets that a run did not move. `count` is the requested number of packets.
pub fn note_unmoved(ports: &Ports, count: Option<u64>, measured: &Measured, reports: &[Option<Report>]) {
    let Ports { names, devices, .. } = ports;
    note_captures(devices, reports);
    note_unsent_by_wires(names, devices);
    if count.is_none() {
        note_left_in_cards(devices, reports, &measured.statistics);
    }
    note_refused(devices, &measured.statistics, ports.may_have_chains());
    note_unconnected(devices);
    let filtered = measured.outcome.filtered;
    if filtered > 0 && measured.moved.packets == 0 {
        note(&format!("note: the rules dropped all {filtered} packets"));
    }
    if let undecided @ 1.. = measured.outcome.undecided {
        note(&format!(
            "note: the rules could not decide {undecided} of the packets, which lack a field (later fragments, cut \
             frames, or too many headers): --only drops them, --drop does not"
        ));
    }
}

/// Prints a note for each model whose wire did not send all frames of the card, with the causes.
fn note_unsent_by_wires(names: &[PortName], devices: &[Port]) {
    for (name, device) in names.iter().zip(devices) {
        let Some(unsent) = model(device).map(|card| card.unsent_by_wire()).filter(|unsent| unsent.total() > 0) else {
            continue;
        };
        let wire = name.option("wire").unwrap_or_default();
        // A frame without a VLAN tag has the longest payload.
        let payload = device.info().max_frame.saturating_sub(FRAME_HEADERS - 4);
        note(&format!(
            "note: {}: the card sent {} frames, but the port behind its wire did not: {}",
            device.name(),
            unsent.total(),
            causes(&unsent, wire, payload, is_up(device))
        ));
    }
}

/// Returns why the port behind a wire did not send frames of at most `payload` bytes, with a remedy for each cause.
fn causes(unsent: &Unsent, wire: &str, payload: usize, is_up: bool) -> String {
    let Unsent { too_long, refused, injected, no_buffer, waiting } = *unsent;
    let behind = linerate::parse(&wire.replace(';', "&")).map(|wire| wire.class());
    let is_on_interface = matches!(behind, Ok(PortClass::Packet | PortClass::Xdp));
    let with = |option: String| match wire.contains('?') {
        true => format!("wire={wire};{option}"),
        false => format!("wire={wire}?{option}"),
    };
    let longer = match wire.contains("mtu=") {
        true => format!("open it with mtu={payload}"),
        false => format!("open it with a larger mtu: {}", with(format!("mtu={payload}"))),
    };
    // A TAP interface takes its MTU from the port.
    let interface = if is_on_interface { ", and raise its interface's MTU" } else { "" };
    let is_there = match is_on_interface || matches!(behind, Ok(PortClass::Stack)) {
        true => " (is its interface up, and its MTU large enough?)",
        false => "",
    };
    let wait = if is_up { "it has no room; is its peer slow?" } else { "its link is down" };
    let all = [
        (too_long, format!("too long for this port ({longer}{interface})")),
        (refused, format!("refused by this port{is_there}")),
        (injected, "injected faults".to_string()),
        (no_buffer, format!("without a free buffer ({})", with("ring=256".to_string()) + " needs fewer")),
        (waiting, format!("queued in this port ({wait})")),
    ];
    let all = all.into_iter().filter(|(count, _)| *count > 0);
    all.map(|(count, cause)| format!("{count} {cause}")).collect::<Vec<_>>().join(", ")
}

/// Prints a note for each capture file, of a port or its wire, whose packets were skipped or truncated.
fn note_captures(devices: &[Port], reports: &[Option<Report>]) {
    for (device, report) in devices.iter().zip(reports) {
        let counts = capture_counts(device, report.as_ref());
        defects(&counts).iter().for_each(|defect| note(&format!("note: {}: {defect}", device.name())));
        let too_long = report.map_or(0, |report| report.too_long);
        if too_long > 0 {
            let name = device.name();
            note(&format!(
                "note: {name}: the port behind its wire dropped {too_long} received frames that were too long for it"
            ));
        }
    }
}

/// Returns the counts of a port's capture file, or of the capture file at its wire.
fn capture_counts(device: &Port, wire: Option<&Report>) -> CaptureCounts {
    wire.map_or_else(|| device.capture_counts(), |report| report.capture)
}

/// Returns, as lines, how many packets of a capture were skipped, shortened and truncated.
pub fn defects(counts: &CaptureCounts) -> Vec<String> {
    let mut lines = unread(counts);
    if counts.snapped > 0 {
        let snapped = counts.snapped;
        lines.push(format!(
            "{snapped} frames were cut by the capture's snap length; those with a stamp count as corrupted"
        ));
    }
    lines
}

/// Returns, as lines, how many packets of a capture were skipped and shortened.
pub fn unread(counts: &CaptureCounts) -> Vec<String> {
    let CaptureCounts { not_ethernet, too_short, surplus, .. } = *counts;
    let all = [
        (
            not_ethernet,
            format!(
                "{not_ethernet} packets were skipped: not Ethernet; the option ethernet adds headers where possible"
            ),
        ),
        (too_short, format!("{too_short} packets were skipped: shorter than an Ethernet header")),
        (
            surplus,
            format!("{surplus} frames have more bytes in the file than their length says; these bytes were left out"),
        ),
    ];
    all.into_iter().filter(|(count, _)| *count > 0).map(|(_, line)| line).collect()
}

/// Prints a note for each model that still has frames of its wire in its packet buffer.
fn note_left_in_cards(devices: &[Port], reports: &[Option<Report>], statistics: &[Statistics]) {
    for (device, (report, statistics)) in devices.iter().zip(reports.iter().zip(statistics)) {
        let seen = statistics.rx_packets + undelivered(std::slice::from_ref(statistics));
        let left = report.map_or(0, |report| report.sent.saturating_sub(seen));
        if left > 0 {
            note(&format!(
                "note: {}: {left} frames from its wire are still in the card, which had no free descriptor",
                device.name()
            ));
        }
    }
}

/// Returns the name of a port that does not accept packets, with the reason.
pub fn rejecting_port(device: &Port, statistics: &Statistics) -> Option<String> {
    let name = device.name();
    match device.link() {
        Err(error) if error.kind() == ErrorKind::File => Some(format!("{name}: {error}")),
        _ if statistics.drops.tx_too_long > 0 => Some(format!("{name}, which does not send frames of that length")),
        _ => None,
    }
}

/// Prints notes on packets that ports did not send or did not accept.
fn note_refused(devices: &[Port], statistics: &[Statistics], may_have_chains: bool) {
    for (device, port) in devices.iter().zip(statistics) {
        let Statistics { rx_packets, drops, .. } = port;
        let given: u64 = device.queue_statistics().tx_slots.iter().sum();
        let name = device.name();
        let link = if is_up(device) { "" } else { ": the link is down" };
        if let Some(unsent @ 1..) = unsent(device, port, may_have_chains) {
            note(&format!("note: {name}: {unsent} packets were queued but not sent{link}"));
        }
        let others = match device.info().class {
            PortClass::Xdp => "packets that the kernel accepted and dropped count as sent",
            PortClass::Server => "packets that are queued for the pipe's other end count as sent",
            _ => "",
        };
        if given > 0 && !link.is_empty() && !others.is_empty() {
            note(&format!("note: {name}{link}: {others}"));
        }
        if *rx_packets == 0 && drops.oversize > 0 {
            note(&format!(
                "note: {}: all {} received frames were too long for the port; allow longer ones with --mtu",
                device.name(),
                drops.oversize
            ));
        }
        let is_writable = device.link().is_ok();
        if is_writable && drops.tx_too_long > 0 && statistics.iter().all(|port| port.tx_packets == 0) {
            let name = device.name();
            let parsed = linerate::parse(name).ok();
            let interface = parsed.as_ref().and_then(PortName::interface).map_or_else(String::new, |interface| {
                format!(", and raise the interface's MTU: ip link set dev {interface} mtu MTU")
            });
            note(&format!(
                "note: {name}: none of {} packets could be sent: too long for the port; allow longer ones with --mtu\
                 {interface}",
                drops.tx_too_long
            ));
        }
    }
}

/// Prints a note for each port of a switch, and each end of a pipe, that is in this process's memory and that no other
/// port is connected to.
fn note_unconnected(devices: &[Port]) {
    // The switch, or the pipe.
    let switch_or_pipe = |device: &Port| match device.name().split_once(':') {
        Some((switch, _)) => switch.to_string(),
        None => device.name().replace('}', "{"),
    };
    for (n, device) in devices.iter().enumerate() {
        let name = device.name();
        let is_unconnected_to =
            |(at, other): (usize, &Port)| at == n || switch_or_pipe(other) != switch_or_pipe(device);
        let may_be_served = linerate::parse(name).is_ok_and(|name| name.may_lead_to_served());
        if device.info().class != PortClass::Memory
            || !may_be_served
            || !devices.iter().enumerate().all(is_unconnected_to)
        {
            continue;
        }
        note(&format!(
            "note: {name} exists only in this process, where no other port is connected to it; to share ports: linerate serve"
        ));
    }
}

/// Prints a note if a port of a served switch is the only one on that switch.
pub fn note_unconnected_on_switch(device: &Port) {
    let name = device.name();
    let Some((switch, _)) = switch_and_port(name) else { return };
    let Ok(Some(client)) = Client::find(&folder(), name) else { return };
    let Ok(ports) = client.list() else { return };
    let own = name.split('?').next();
    let is_other = |port: &str| port.split_once(':').is_some_and(|(other, _)| other == switch) && Some(port) != own;
    if device.info().class == PortClass::Server && !ports.iter().any(|port| is_other(&port.name)) {
        note(&format!(
            "note: {name}: no other port is attached to {switch} yet; its packets have no receiver until one is"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_a_wire_does_not_send_have_cause_and_remedy() {
        let long = Unsent { too_long: 7, ..Unsent::default() };
        for (unsent, wire, is_up, parts) in [
            (long, "tap:t0", true, &["7 too long for this port (open it with a larger mtu: wire=tap:t0?mtu=9004)"][..]),
            (long, "packet:h0?flow=all", true, &["wire=packet:h0?flow=all;mtu=9004, and raise its interface's MTU)"]),
            (long, "faulty:xdp:h0?mtu=100", true, &["(open it with mtu=9004, and raise its interface's MTU)"]),
            (
                Unsent { refused: 2, injected: 3, ..Unsent::default() },
                "faulty:tap:t0?drop=1%",
                true,
                &["2 refused by this port (is its interface up, ", "?), 3 injected faults"],
            ),
            (Unsent { refused: 2, ..Unsent::default() }, "pcap:f?write", true, &["2 refused by this port"]),
            (
                Unsent { waiting: 4, ..Unsent::default() },
                "packet:h0",
                false,
                &["4 queued in this port (its link is down)"],
            ),
            (Unsent { waiting: 4, ..Unsent::default() }, "packet:h0", true, &["4 queued in this port (it has no room"]),
            (
                Unsent { no_buffer: 5, ..Unsent::default() },
                "xdp:h0",
                true,
                &["5 without a free buffer (wire=xdp:h0?ring="],
            ),
        ] {
            let said = causes(&unsent, wire, 9004, is_up);
            assert!(parts.iter().all(|part| said.contains(part)), "{wire}: {said}");
            assert!(!said.contains(" 0 ") && !said.starts_with("0 "), "{said}");
        }
    }

    #[test]
    fn defects_of_captures_are_lines() {
        assert_eq!(defects(&CaptureCounts::default()), Vec::<String>::new());
        let lines = defects(&CaptureCounts { not_ethernet: 12, snapped: 3, ..CaptureCounts::default() });
        assert!(lines[0].starts_with("12 packets were skipped: not Ethernet; "), "{lines:?}");
        assert!(lines[1].starts_with("3 frames were cut by the capture's snap length"), "{lines:?}");
    }
}
