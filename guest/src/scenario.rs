//! The checks that every card must pass, with every frame verified.

use std::time::Instant;

use linerate_testkit::{Process, mebibytes};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::traffic::{check_flow_forwarding, check_forwarding, expect_generated, send_frames};
use crate::wire::Wire;

/// The first card's address.
pub const A: &str = "0000:01:00.0";
/// The second card's address.
pub const B: &str = "0000:02:00.0";
/// Frames in each direction.
const COUNT: usize = 10_000;
/// The longest frame that an MTU of 1,500 allows, without a VLAN tag.
const LONGEST: usize = 1514;

/// Runs `gen`, `sink` and `fwd` on the first two cards, with every frame and the cards' counters checked.
#[track_caller]
pub fn check_traffic(guest: &mut Guest, a: &Wire, b: &Wire) {
    let generator = guest.start_linerate(&format!("gen {A} --count {COUNT} --size 128"), 1);
    expect_generated(a, COUNT, 128);
    let summary = guest.wait(generator).summary();
    assert_eq!(summary["ports"][0]["tx_packets"], json!(COUNT));
    adds_up(&summary["ports"][0]["tx_bytes"], COUNT * 124);

    let sink = guest.start_linerate(&format!("sink {B} --count {COUNT}"), 1);
    send_frames(b, COUNT, 256);
    let summary = guest.wait(sink).summary();
    assert_eq!(summary["ports"][0]["rx_packets"], json!(COUNT));
    adds_up(&summary["ports"][0]["rx_bytes"], COUNT * 252);
    assert_eq!((&summary["lost"], &summary["reordered"]), (&json!(0), &json!(0)));

    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    check_forwarding(a, b, COUNT, LONGEST);
    check_forwarding(b, a, COUNT, LONGEST);
    let summary = guest.interrupt(forwarder).summary();
    for port in summary["ports"].as_array().unwrap() {
        assert_eq!((&port["rx_packets"], &port["tx_packets"]), (&json!(COUNT), &json!(COUNT)), "{summary}");
        assert_eq!(port["drops"], json!({}));
    }
}

/// Checks a byte counter with tolerance. QEMU's 82576 loses the bytes that it counts between the reads of a counter's
/// two halves. The loss grows with the load of the host.
#[track_caller]
fn adds_up(counted: &Value, bytes: usize) {
    let (counted, bytes) = (counted.as_u64().unwrap_or(0), bytes as u64);
    assert!(counted <= bytes && counted > bytes / 2, "{counted} bytes were counted of {bytes}");
}

/// Runs `fwd` with frames that are longer than a buffer and become chains of slots.
#[track_caller]
pub fn check_forwarded_chains(guest: &mut Guest, a: &Wire, b: &Wire) {
    // Intel's cards then use buffers of 1 KiB, so the frames in flight need a large ring.
    let forwarder = guest.start_linerate(&format!("fwd '{A}?mtu=9000&ring=4096' '{B}?mtu=9000&ring=4096'"), 2);
    check_forwarding(a, b, COUNT, 9014);
    let summary = guest.interrupt(forwarder).summary();
    let (frames, slots) = (&summary["ports"][0]["rx_packets"], &summary["ports"][0]["rx_slots"][0]);
    assert!(frames == &json!(COUNT) && slots.as_u64() > Some(2 * COUNT as u64), "{summary}");
}

/// The abilities of a card that [`check_control`] checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abilities {
    /// It strips VLAN tags.
    pub strips: bool,
    /// It has a clock.
    pub has_clock: bool,
    /// It can filter unicast addresses beside its own.
    pub filters_unicast: bool,
}

/// Checks address filters, a custom address, promiscuous mode and a reset on the first card.
#[track_caller]
pub fn check_control(guest: &mut Guest, a: &Wire, abilities: Abilities) {
    let Abilities { strips, has_clock, filters_unicast } = abilities;
    let filtered = if filters_unicast { "[04, 05, 07, ff]" } else { "[05, 07, ff]" };
    let own = [0x52, 0x54, 0, 0, 0, 0];
    let other = [2, 0, 0, 0, 0, 0x77];
    let metadata = if strips { "?metadata=on" } else { "" };
    let program = guest.start(&format!("control '{A}{metadata}'"));
    let send = |number: u8, mac: [u8; 6], vlan: Option<u8>| {
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&mac);
        vlan.into_iter().for_each(|vlan| frame[12..16].copy_from_slice(&[0x81, 0x00, 0, vlan]));
        frame[59] = number;
        a.send(&frame);
    };
    let modes = ["promiscuous", "own address", "another address", "filters", "filters after a reset", "after a reset"];
    for what in modes {
        guest.wait_for(&program, &format!("ready: {what}"));
        if what.starts_with("filters") {
            // The groups have different hashes.
            send(4, [6, 0, 0, 0, 0, 4], None);
            send(5, [1, 0, 0x5E, 0, 0, 5], None);
            send(6, [1, 0, 0x5E, 0, 0, 6], None);
            send(7, [0xFF; 6], Some(7));
            send(8, [0xFF; 6], Some(8));
            send(9, [6, 0, 0, 0, 0, 4], Some(8));
        } else {
            send(1, own, None);
            send(2, other, None);
        }
        send(3, [4, 0, 0, 0, 0, 1], None);
        send(0xFF, [0xFF; 6], None);
    }
    if strips {
        guest.wait_for(&program, "ready: tag");
        let mut frame = [0; 64];
        frame[..16].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 77]);
        frame[16..18].copy_from_slice(&[0x12, 0x34]);
        a.send(&frame);
    }
    if has_clock {
        guest.wait_for(&program, "ready: time");
        // Sync, of version 2.
        let mut frame = [0; 60];
        frame[..16].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0, 0, 1, 0x88, 0xF7, 0, 2]);
        a.send(&frame);
    }
    let output = guest.wait(program).output;
    // Over vfio "this program already has it open", over uio "another process has it open".
    let is_refused = |line: &str| line.starts_with("again: ") && line.ends_with(" has it open");
    assert!(output.lines().any(is_refused), "a second port is refused, which is not in:\n{output}");
    if strips {
        let tag = "tag Some(24653) before 60 bytes, at 12: [12, 34]";
        assert!(output.lines().any(|line| line == tag), "{tag} is not in:\n{output}");
    }
    for what in ["sent at Some(", "received at Some("].iter().filter(|_| has_clock) {
        let is_right = |line: &str| line.starts_with(what) && line.ends_with("): true");
        assert!(output.lines().any(is_right), "{what} with a right time is not in:\n{output}");
    }
    for line in [
        "address 52:54:00:00:00:00",
        "promiscuous: [01, 02, 03, ff]",
        "own address: [01, ff]",
        "another address: [02, ff]",
        &format!("filters: {filtered}"),
        &format!("filters after a reset: {filtered}"),
        "after a reset: [01, 02, 03, ff]",
    ] {
        assert!(output.lines().any(|said| said == line), "{line} is not in:\n{output}");
    }
}

/// Runs `fwd` with this number of queues.
#[track_caller]
pub fn check_forwarded_flows(guest: &mut Guest, a: &Wire, b: &Wire, queues: u16) {
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --queues {queues}"), 2);
    check_flow_forwarding(a, b, COUNT, LONGEST);
    check_flow_forwarding(b, a, COUNT, LONGEST);
    let summary = guest.interrupt(forwarder).summary();
    for port in summary["ports"].as_array().unwrap() {
        assert_eq!((&port["rx_packets"], &port["tx_packets"]), (&json!(COUNT), &json!(COUNT)), "{summary}");
        let by_queue = port["rx_slots"].as_array().unwrap();
        assert_eq!(by_queue.len(), usize::from(queues));
        assert!(by_queue.iter().all(|slots| slots.as_u64() > Some(0)), "a queue got nothing: {summary}");
    }
}

/// Exchanges data between the guest and a server at this address ([`exchange`](linerate_testkit::exchange)), and compares
/// SHA-256 sums.
#[track_caller]
pub fn check_exchange(guest: &mut Guest, address: &str, server: Process) {
    let begin = Instant::now();
    // The data is larger than the machine's memory with `LINERATE_MIB=1024`, so it is not stored.
    let client = guest.start(&format!(
        "rm -f /tmp/copy /tmp/over; mkfifo /tmp/copy; sha256sum </tmp/copy >/tmp/to & head -c {} /dev/urandom \
         | tee /tmp/copy | nc {address} 7000 | sha256sum >/tmp/from; wait; touch /tmp/over; cat /tmp/from /tmp/to",
        mebibytes() << 20
    ));
    // Up to 20 s for each MiB.
    let wait = "n=0; until [ -e /tmp/over ] || [ $n = 2000 ]; do usleep 10000; n=$((n+1)); done; [ -e /tmp/over ]";
    let is_over = (0..mebibytes()).any(|_| guest.attempt(wait).status == 0);
    assert!(is_over, "the exchange does not end");
    let sums = guest.wait(client).output.replace("  -", "");
    let (status, others, errors) = server.end();
    assert!(status.success() && sums == others && sums.lines().count() == 2, "{sums}{others}{errors}");
    println!("{} MiB in each direction in {:?}: {sums}", mebibytes(), begin.elapsed());
}
