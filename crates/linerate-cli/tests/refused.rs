//! Ports on the kernel's interfaces: error messages of obstacles, required privileges, and behaviour without traffic.

mod kit;

use std::process::Command;

use kit::{Folder, Namespace, OutputTimeout, POLL, Process, alone, expect, inside, pair, summary, text, until};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde_json::Value;

/// Returns the command, run by another user with only these capabilities.
fn unprivileged(namespace: &Namespace, capabilities: &[&str], arguments: &str) -> Command {
    let list = capabilities.iter().map(|one| format!(",+{one}")).collect::<String>();
    let mut command = namespace.command("setpriv --reuid 1000 --regid 1000 --clear-groups");
    command.args([format!("--inh-caps=-all{list}"), format!("--ambient-caps=-all{list}")]);
    command.arg(env!("CARGO_BIN_EXE_linerate")).args(arguments.split(' '));
    command
}

/// Exactly the named capabilities are needed.
#[test]
fn some_capabilities_suffice() {
    let _alone = alone();
    let (host, far) = (Namespace::new("vh"), Namespace::new("vf"));
    pair((&host, "h0"), (&far, "f0"), 3);
    for (port, needed) in [
        ("xdp:h0?flow=icmp", &["net_admin", "net_raw", "bpf", "perfmon", "ipc_lock"][..]),
        ("packet:h0", &["net_raw"]),
        ("tap:t0", &["net_admin"]),
    ] {
        let command = format!("sink {port} --count 1 --seconds 20 --json");
        for without in needed {
            // Locking memory may also be allowed by a resource limit; see below.
            let fewer: Vec<&str> = needed.iter().copied().filter(|one| one != without).collect();
            if *without != "ipc_lock" {
                let output = unprivileged(&host, &fewer, &command).output_in_time().unwrap();
                let said = text(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{port} without {without}: {said}");
                let mended = format!("CAP_{}", without.to_uppercase());
                assert!(
                    said.contains("ermission denied") || said.contains("not permitted"),
                    "{port} without {without}: {said}"
                );
                assert!(said.contains(&mended), "{port} without {without}: {said}");
            }
        }
        let mut sink = Process::start(&mut unprivileged(&host, needed, &command));
        sink.await_error("link up");
        match port {
            "tap:t0" => drop(host.run("ip address add 10.99.0.1/24 dev t0")),
            // The pings arrive here and not in Linux, so they are not answered. A busy machine may miss the first ones.
            _ => drop(far.command("ping -q -c 10 -i 0.2 -W 1 10.87.3.1").output_in_time().unwrap()),
        }
        let (code, said) = sink.ended();
        assert_eq!(code, Some(0), "{port}: {said}");
        assert!(summary(said.as_bytes())["ports"][0]["rx_packets"].as_u64() >= Some(1), "{port}: {said}");
    }
}

#[test]
fn metrics_at_a_privileged_port_need_a_capability() {
    let host = Namespace::new("mp");
    let output = unprivileged(&host, &[], "gen null: --metrics 80 --count 1").output_in_time().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("127.0.0.1:80: cannot serve metrics there: Permission denied"), "{said}");
    assert!(said.contains("choose a port from 1024 with --metrics"), "{said}");
}

/// Starts a command whose system calls with this number and first argument fail.
fn without_call(number: libc::c_long, argument: u64, error: i32, mut command: Command) -> Process {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, argument).unwrap();
    let filter = SeccompFilter::new(
        [(number, vec![SeccompRule::new(vec![condition]).unwrap()])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(error as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    // The filter applies to the thread, and its children inherit it.
    std::thread::spawn(move || {
        seccompiler::apply_filter(&filter).unwrap();
        Process::start(&mut command)
    })
    .join()
    .unwrap()
}

/// Attaching a program resets the queues of some cards. So a port that is refused has never tried to attach one: here,
/// attaching fails with its own error.
#[test]
fn a_refused_port_has_not_attached_its_program() {
    /// `BPF_LINK_CREATE`
    const LINK_CREATE: u64 = 28;
    let _alone = alone();
    let (host, far) = (Namespace::new("rh"), Namespace::new("rf"));
    pair((&host, "h0"), (&far, "f0"), 3);
    host.run("ip link add p0 numrxqueues 2 numtxqueues 2 type veth peer name p1");
    let binary = env!("CARGO_BIN_EXE_linerate");
    let say = |command: &str| without_call(libc::SYS_bpf, LINK_CREATE, libc::EDQUOT, host.command(command)).end().2;
    let refusals = [
        ("sink xdp:h0", "with the address 10.87.3.1"),
        ("fwd xdp:h0 null:", "with the address 10.87.3.1"),
        ("fwd null: xdp:h0?busy=on", "with the address 10.87.3.1"),
        ("sink xdp:h0?flow=all&copy=off", "cannot bind to queue 0"),
        ("sink xdp:h0?flow=all&queues=2", "2 receive queues are not possible"),
        ("sink xdp:p0?flow=ip+udp:1&steer=on", "the card cannot steer the flow"),
        ("sink xdp:p0?alone=on&copy=off", "cannot bind to queue 0"),
        // The first port is in order.
        ("fwd xdp:p0 xdp:h0?flow=all&copy=off", "cannot bind to queue 0"),
        ("fwd xdp:h0?flow=all xdp:nothing0", "no such interface"),
        ("fwd xdp:h0?flow=all&alone=on packet:nothing0", "no such interface"),
    ];
    let mut monitor = host.start("timeout 300 ip -oneline monitor link");
    for (command, why) in refusals {
        let said = say(&format!("{binary} {command} --seconds 5"));
        assert!(said.contains(why), "{command}: {said}");
    }
    let said = say(&format!("prlimit --memlock=65536 setpriv --bounding-set -ipc_lock {binary} sink xdp:h0?flow=all"));
    assert!(said.contains("must be locked in memory"), "{said}");
    host.run("ip link set h0 mtu 60000");
    let said = say(&format!("{binary} sink xdp:h0?flow=all"));
    assert!(said.contains("its MTU of 60000"), "{said}");
    host.run("ip link set h0 mtu 1500");
    // Other ports attach, unless they only send and the kernel copies.
    for port in ["xdp:h0?flow=udp:1", "xdp:h0?flow=all", "xdp:p0"] {
        let said = say(&format!("{binary} sink {port} --seconds 5"));
        assert!(said.contains("cannot attach a program to it: Disk quota exceeded"), "{port}: {said}");
    }
    let said = say(&format!("{binary} gen xdp:h0 --count 1"));
    assert!(!said.contains("error"), "{said}");
    // The interface that is down was not set up, not even for a moment.
    host.run("ip link set p0 mtu 1400");
    let mut line = String::new();
    while !line.contains("mtu 1400") {
        line = monitor.line();
        assert!(!line.is_empty(), "ip monitor ended without the last change");
        assert!(!line.contains(" p0@") || !line.contains("UP"), "{line}");
        assert!(!line.contains("prog/xdp"), "{line}");
    }
}

/// A kernel without AF_XDP is simulated by a filter of system calls.
#[test]
fn packet_sockets_replace_a_missing_af_xdp() {
    let _alone = alone();
    let (host, far) = (Namespace::new("nh"), Namespace::new("nf"));
    pair((&host, "h0"), (&far, "f0"), 3);
    let say =
        |command: &str| without_call(libc::SYS_socket, libc::AF_XDP as u64, libc::EAFNOSUPPORT, inside(&host, command));
    let mut sink = say("sink xdp:h0?flow=icmp --count 3 --seconds 20 --json");
    let note = sink.await_error("falls back");
    assert!(note.contains("no AF_XDP") && note.contains("each packet is copied, and Linux receives it, too"), "{note}");
    sink.await_error("link up");
    far.run("ping -q -c 3 -i 0.05 10.87.3.1");
    let (code, said) = sink.ended();
    assert_eq!((code, &summary(said.as_bytes())["ports"][0]["rx_packets"]), (Some(0), &3.into()), "{said}");
    // Packet sockets are no fallback if an option needs AF_XDP.
    for port in ["xdp:h0-0?flow=icmp", "xdp:h0?flow=icmp&copy=off", "xdp:h0?flow=icmp&busy=on"] {
        say(&format!("sink {port} --seconds 1")).await_error("the kernel has no AF_XDP");
    }
}

/// Checks that a program sleeps in more than `most` of 1,000 samples, or that it never sleeps. On a busy machine, it
/// often waits for a processor instead.
#[track_caller]
fn check_sleep(sleeps: bool, most: usize, program: &str, is_asleep: impl Fn() -> bool) {
    let round = || (0..1000).filter(|_| is_asleep()).count();
    match sleeps {
        true => until(format_args!("{program} sleeps"), || round() > most),
        false => assert!((0..4).all(|_| round() == 0), "{program} sleeps"),
    }
}

/// A waiting thread is in poll(2) while there is no traffic, and a packet wakes it.
#[test]
fn a_thread_without_work_sleeps_in_poll() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ph"), Namespace::new("pf"));
    // IPv6 would also send frames about the TAP interface.
    host.disable_ipv6("default");
    pair((&host, "h0"), (&far, "f0"), 3);
    for (namespace, interface) in [(&host, "h0"), (&far, "f0")] {
        // Linux itself then sends no frames.
        namespace.run(&format!("ip address flush dev {interface}"));
        namespace.run(&format!("ip link set {interface} multicast off arp off"));
        namespace.disable_ipv6(interface);
    }
    for port in ["xdp:h0", "packet:h0", "tap:t0"] {
        for (wait, sleeps) in [("interrupt", true), ("adaptive", true), ("poll", false)] {
            let sink = format!("sink {port} --wait {wait} --count 1 --seconds 60 --json");
            let mut sink = Process::start(&mut inside(&host, &sink));
            sink.await_output("ports");
            // A sleeping thread wakes occasionally to check for its end, and may then wait for a processor. A polling
            // thread is never in poll(2).
            check_sleep(sleeps, 900, &format!("sink {port} --wait {wait}"), || sink.is_in_poll());
            if port == "tap:t0" {
                sink.interrupt();
                continue;
            }
            far.run(&format!("{} gen packet:f0 --count 1 --seconds 20", env!("CARGO_BIN_EXE_linerate")));
            assert_eq!(sink.ended().0, Some(0));
        }
    }
    // Together with a port that never receives, too.
    let folder = Folder::new("sleeps");
    for port in ["null:", &format!("pcap:{}?write", folder.path("out.pcap"))] {
        let mut forwarder = Process::start(&mut inside(&host, &format!("fwd tap:t1 {port} --wait interrupt --json")));
        forwarder.await_output("ports");
        check_sleep(true, 900, &format!("fwd to {port}"), || forwarder.are_in(&POLL));
        forwarder.interrupt();
    }
    // A thread that only sends has no interrupt to wait for: it sleeps between frames.
    for (wait, sleeps) in [("interrupt", true), ("adaptive", true), ("poll", false)] {
        let generator = format!("gen null: --rate 10pps --wait {wait} --json");
        let mut generator = Process::start(&mut inside(&host, &generator));
        generator.await_output("ports");
        check_sleep(sleeps, 500, &format!("gen --wait {wait}"), || generator.are_in(&[libc::SYS_clock_nanosleep]));
        generator.interrupt();
    }
}

/// Each error names the obstacle and the command that removes it.
#[test]
fn ports_that_cannot_be_opened_are_explained() {
    let _alone = alone();
    let (host, far) = (Namespace::new("eh"), Namespace::new("ef"));
    pair((&host, "h0"), (&far, "f0"), 3);
    let fails = |command: &str| {
        let output = inside(&host, &format!("sink {command} --seconds 5")).output_in_time().unwrap();
        let said = text(&output.stderr);
        // A wrong option, filter or interface is a usage error.
        let usage =
            [": option ", "not a valid filter", "no such interface", "no port has this name", "are not possible"];
        let code = if usage.iter().any(|part| said.contains(part)) { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        said
    };
    let says = |command: &str, parts: &[&str]| {
        let said = fails(command);
        assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
    };
    says("xdp:nothing", &["nothing: there is no such interface", "lo, h0", "ip link"]);
    says("xdp:h0-7", &["no queue 7", "its queues are 0 to 0"]);
    says("xdp:h0?flow=quic", &["xdp:h0: option flow=quic: ", "no 'quic'", "udp:4321"]);
    says("xdp:h0?queues=2", &["2 receive queues are not possible", "ethtool -L h0"]);
    says("xdp:h0?copy=off", &["cannot bind to queue 0"]);
    says("xdp:h0?timestamps=on", &["option timestamps=on", "busy"]);
    says("packet:nothing", &["nothing: there is no such interface"]);
    says("tap:a-name-that-is-too-long", &["no port has this name", "up to 15 bytes"]);
    says("tap:h0", &["cannot open it as a TAP interface"]);
    let ports = text(&expect(0, &mut inside(&host, "ports --json")).stdout);
    let ports: Value = serde_json::from_str(&ports).unwrap();
    let h0 = ports["interfaces"].as_array().unwrap().iter().find(|interface| interface["name"] == "h0").unwrap();
    assert_eq!((&h0["driver"], &h0["queues"], &h0["addresses"][0]), (&"veth".into(), &1.into(), &"10.87.3.1".into()));
    says("xdp:h0", &["with the address 10.87.3.1", "all its packets", "flow=all"]);
    // Another program uses the queue.
    let mut first = Process::start(&mut inside(&host, "sink xdp:h0?flow=all --seconds 60"));
    first.await_error("link up");
    says("xdp:h0", &["queue 0 is bound to another", "end the other program"]);
    first.interrupt();
    assert!(!host.run("ip link show h0").contains("xdp"));

    // Another program has attached its own XDP program to the interface; with two queues, another linerate has.
    host.run("ip link add p0 numrxqueues 2 numtxqueues 2 type veth peer name p1");
    host.run("ip link set p0 up");
    let first = Process::start(&mut inside(&host, "sink xdp:p0-0?flow=udp:1 --seconds 60 --json"));
    until("p0 has an XDP program", || host.run("ip -d link show p0").contains("prog/xdp"));
    says("xdp:p0-1?flow=udp:2", &["another XDP program is attached", "bpftool net", "sudo ip link set dev p0 xdp off"]);
    assert!(host.run("ip -d link show p0").contains("prog/xdp"), "it was detached");
    drop(first);
    host.run("ip link delete p0");

    // The kernel does not allow an unprivileged user to lock this much memory.
    let limited = "prlimit --memlock=65536 setpriv --bounding-set -ipc_lock";
    let command = format!("{limited} {} sink xdp:h0?flow=udp:1 --seconds 1", env!("CARGO_BIN_EXE_linerate"));
    let said = text(&host.command(&command).output_in_time().unwrap().stderr);
    assert!(said.contains("32768 KiB must be locked in memory") && said.contains("limits.conf"), "{said}");
    // Promiscuous mode is set only while a port receives all packets.
    assert!(host.run("ip -d link show h0").contains("promiscuity 0 "));

    // Frames are too long for any chain.
    for namespace in [(&host, "h0"), (&far, "f0")] {
        namespace.0.run(&format!("ip link set {} mtu 60000", namespace.1));
    }
    says("xdp:h0?flow=udp:1", &["its MTU of 60000", "sudo ip link set dev h0 mtu 30"]);
    for namespace in [(&host, "h0"), (&far, "f0")] {
        namespace.0.run(&format!("ip link set {} mtu 1500", namespace.1));
    }
    // An interface that is down is reported; once it is up, packets arrive.
    host.run("ip link set h0 down");
    let mut sink = Process::start(&mut inside(&host, "sink xdp:h0?flow=icmp --count 1 --seconds 60 --json"));
    let said = sink.await_error("h0");
    assert!(said.contains("h0 up"), "{said}");
    drop(sink);
    host.run("ip link set h0 up");

    // The interface is deleted while it is used.
    let mut sink = Process::start(&mut inside(&host, "sink xdp:h0?flow=udp:1 --seconds 60 --json"));
    sink.await_error("link up");
    far.run("ip link delete f0");
    let said = sink.await_error("h0: the interface is gone");
    assert!(!said.is_empty());
    assert_eq!(sink.ended().0, Some(1));
}

/// The interface behind a model's wire is deleted while it is used.
#[test]
fn a_wire_that_goes_ends_the_run() {
    let _alone = alone();
    let host = Namespace::new("wh");
    let mut fwd = Process::start(&mut inside(&host, "fwd sim:0?wire=tap:t0 sim:1 --seconds 60 --json"));
    fwd.await_output("ports");
    host.run("ip link delete t0");
    fwd.await_error("t0: the interface is gone");
    assert_eq!(fwd.ended().0, Some(1));

    let folder = Folder::new("wire-gone");
    let mut sim = Process::start(&mut inside(&host, &format!("sim --socket {} --wire tap:t1", folder.path("card"))));
    sim.await_error("-device");
    host.run("ip link delete t1");
    sim.stop();
    sim.await_error("t1: the interface is gone");
    assert_eq!(sim.ended().0, Some(1));
}
