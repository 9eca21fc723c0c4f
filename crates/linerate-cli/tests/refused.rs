//! What stands in the way of ports on the kernel's interfaces, and what each says of it; which privileges suffice; what
//! happens while nothing happens.

mod kit;

use kit::{Namespace, Process, alone, expect, inside, pair, summary, text};
use serde_json::Value;

/// What stands in the way is named, with the command that mends it.
#[test]
fn what_cannot_be_opened_is_explained() {
    let _alone = alone();
    let (host, far) = (Namespace::new("eh"), Namespace::new("ef"));
    pair((&host, "h0"), (&far, "f0"), 3);
    let fails = |command: &str| {
        let output = inside(&host, &format!("sink {command} --seconds 5")).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {}", text(&output.stdout));
        text(&output.stderr)
    };
    let says = |command: &str, parts: &[&str]| {
        let said = fails(command);
        assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
    };
    says("xdp:nothing", &["no interface 'nothing'", "lo, h0", "ip link"]);
    says("xdp:h0-7", &["no queue 7", "it has 1"]);
    says("xdp:h0?flow=quic", &["no 'quic'", "udp:4321"]);
    says("xdp:h0?queues=2", &["2 queues are wanted", "ethtool -L h0"]);
    says("xdp:h0?copy=off", &["cannot bind to queue 0"]);
    says("packet:nothing", &["no interface 'nothing'"]);
    says("tap:a-name-that-is-too-long", &["cannot open it as a TAP interface", "up to 15 characters"]);
    says("tap:h0", &["cannot open it as a TAP interface"]);
    let ports = text(&expect(0, &mut inside(&host, "ports --json")).stdout);
    let ports: Value = serde_json::from_str(&ports).unwrap();
    let h0 = ports["interfaces"].as_array().unwrap().iter().find(|interface| interface["name"] == "h0").unwrap();
    assert_eq!((&h0["driver"], &h0["queues"], &h0["addresses"][0]), (&"veth".into(), &1.into(), &"10.87.3.1".into()));
    says("xdp:h0", &["with the address 10.87.3.1", "all its packets", "flow=all"]);
    // Another has the queue.
    let mut first = Process::start(&mut inside(&host, "sink xdp:h0?flow=all --seconds 60"));
    first.await_error("link up");
    says("xdp:h0", &["queue 0 is bound to another", "end the other program"]);
    first.interrupt();
    assert!(!host.run("ip link show h0").contains("xdp"));

    // Without privileges, and with those that suffice.
    let unprivileged = format!("setpriv --reuid 1000 --regid 1000 --clear-groups {}", env!("CARGO_BIN_EXE_linerate"));
    let output = host.command(&format!("{unprivileged} sink xdp:h0 --seconds 1")).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("CAP_NET_ADMIN") && said.contains("Operation not permitted"), "{said}");

    // Memory that the kernel may not keep in place for us.
    let limited = "prlimit --memlock=65536 setpriv --bounding-set -ipc_lock";
    let command = format!("{limited} {} sink xdp:h0?flow=udp:1 --seconds 1", env!("CARGO_BIN_EXE_linerate"));
    let said = text(&host.command(&command).output().unwrap().stderr);
    assert!(said.contains("32768 KiB must be kept in memory") && said.contains("limits.conf"), "{said}");
    // Frames for others are received only while all are ours.
    assert!(host.run("ip -d link show h0").contains("promiscuity 0 "));

    // It goes while it is used.
    let mut sink = Process::start(&mut inside(&host, "sink xdp:h0?flow=udp:1 --seconds 60 --json"));
    sink.await_error("link up");
    far.run("ip link delete f0");
    let said = sink.await_error("interface h0 is gone");
    assert!(!said.is_empty());
    assert_eq!(sink.ended().0, Some(1));
}
