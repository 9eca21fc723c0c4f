//! `linerate rule`: changes the rules of the ports of a run.

mod kit;

use kit::{Deadline, Folder, Namespace, Process, expect, inside, linerate, pair, summary, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Runs `linerate rule`, and returns its output.
fn rule(socket: &str, words: &[&str]) -> String {
    text(&expect(0, &mut linerate(&[&["rule"], words, &["--control", socket]].concat())).stdout)
}

/// Returns the error of `linerate rule`.
fn refused(code: i32, socket: &str, words: &[&str]) -> String {
    text(&expect(code, &mut linerate(&[&["rule"], words, &["--control", socket]].concat())).stderr)
}

/// Returns the count of packets that the run's port has received.
fn received(socket: &str) -> u64 {
    let state: Value = serde_json::from_str(&rule(socket, &["list", "--json"])).unwrap();
    state["ports"][0]["rx"]["packets"].as_u64().unwrap()
}

/// Waits until the run receives packets, or none.
fn until_receiving(socket: &str, expected: bool) {
    let (deadline, mut before) = (Deadline::begin(), received(socket));
    loop {
        let now = received(socket);
        if (now > before) == expected {
            return;
        }
        deadline.check(|| format!("a run that {} packets: {now}", if expected { "receives" } else { "drops" }));
        before = now;
    }
}

#[test]
fn rules_of_a_run_are_added_listed_and_removed() {
    let folder = Folder::new("rules");
    let socket = folder.path("socket");
    let words = ["sink", "sim:0?rate=100k", "--queues", "2", "--seconds", "100", "--json", "--control", &socket];
    let mut run = Process::start(&mut linerate(&words));
    run.await_output("\"seconds\":");
    until_receiving(&socket, true);
    assert_eq!(rule(&socket, &["list"]), "port  rule  action  filter\n");

    assert_eq!(rule(&socket, &["add", "sim:0", "arp", "queue:1"]), "rule 0\n");
    // The name may have the options with which the run opened the port.
    assert_eq!(rule(&socket, &["add", "sim:0?rate=100k", "ip+udp", "drop"]), "rule 1\n");
    until_receiving(&socket, false);
    let list = "port   rule  action   filter\nsim:0     0  queue:1  arp\nsim:0     1  drop     ip+udp\n";
    assert_eq!((rule(&socket, &["list"]), rule(&socket, &["list", "sim:0"])), (list.to_string(), list.to_string()));
    assert_eq!(rule(&socket, &["remove", "sim:0", "1"]), "");
    until_receiving(&socket, true);

    for (code, words, why) in [
        (1, &["add", "sim:0", "udp:53", "drop"][..], "IPv6, which the filter includes"),
        (1, &["add", "sim:0", "ip+udp:1-2", "drop"], "port ranges"),
        (1, &["add", "sim:0", "ip+udp", "kernel"], "not shared with Linux"),
        (1, &["add", "sim:0", "arp", "queue:2"], "it has no receive queue 2"),
        (1, &["add", "sim:1", "arp", "queue:1"], "the run has no port sim:1; it has sim:0"),
        (1, &["remove", "sim:0", "1"], "it has no rule 1"),
        (2, &["list", "sim:1"], "it has sim:0"),
        (2, &["add", "sim:0", "quic", "drop"], "there is no 'quic'"),
        (2, &["add", "sim:0", "arp", "eat"], "write queue:3, drop, kernel or mark:7"),
    ] {
        let said = refused(code, &socket, words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert!(rule(&socket, &["list"]).ends_with("queue:1  arp\n"), "a rule that is refused changes nothing");

    let (_, rest) = run.interrupt();
    let changes = summary(rest.as_bytes())["changes"].clone();
    let kinds: Vec<&Value> = changes.as_array().unwrap().iter().map(|change| &change["rule"]).collect();
    let add = |port, filter, action| json!({ "add": { "port": port, "filter": filter, "action": action } });
    let asked = [
        add("sim:0", "arp", "queue:1"),
        add("sim:0?rate=100k", "ip+udp", "drop"),
        json!({ "remove": { "port": "sim:0", "rule": 1 } }),
    ];
    assert_eq!(kinds, asked.iter().collect::<Vec<_>>());
    assert!(refused(1, &socket, &["list"]).contains("no run listens there"));
}

#[test]
fn a_port_without_rules_refuses_them() {
    let folder = Folder::new("no-rules");
    let socket = folder.path("socket");
    let words = ["fwd", "sim:0", "echo:", "--seconds", "100", "--json", "--control", &socket];
    let mut run = Process::start(&mut linerate(&words));
    run.await_output("\"seconds\":");
    let said = refused(1, &socket, &["add", "echo:", "arp", "drop"]);
    assert!(said.contains("this kind of port cannot do that"), "{said}");
    assert_eq!(rule(&socket, &["add", "sim:0", "ip+udp", "queue:0"]), "rule 0\n");
    drop(run);
}

/// The kernel applies rules of an AF_XDP port, and they end with the process, also if it is killed.
#[test]
fn rules_of_an_interface_end_with_the_process() {
    let (here, far) = (Namespace::new("rul"), Namespace::new("rof"));
    pair((&here, "eth0"), (&far, "far0"), 0);
    let folder = Folder::new("rules-xdp");
    let socket = folder.path("socket");
    let words = format!("sink xdp:eth0?flow=udp:9 --seconds 100 --json --control {socket}");
    let mut run = Process::start(&mut inside(&here, &words));
    run.await_output("\"seconds\":");
    let answers = || far.command("ping -c 1 -W 1 10.87.0.1").output().unwrap().status.success();
    far.ping(1, "10.87.0.1");
    assert_eq!(rule(&socket, &["add", "xdp:eth0", "icmp", "kernel"]), "rule 0\n");
    assert_eq!(rule(&socket, &["add", "xdp:eth0", "icmp", "drop"]), "rule 1\n");
    far.ping(1, "10.87.0.1");
    rule(&socket, &["remove", "xdp:eth0", "0"]);
    assert!(!answers(), "the kernel drops what the rule matches");
    assert!(refused(1, &socket, &["add", "xdp:eth0", "inner+udp", "drop"]).contains("inner"));
    kill_process(Pid::from_raw(run.id() as i32).unwrap(), Signal::KILL).unwrap();
    run.end();
    far.ping(1, "10.87.0.1");
}
