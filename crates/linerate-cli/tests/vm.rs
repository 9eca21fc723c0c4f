//! `linerate vm`: the command that starts QEMU, with the options of the installed QEMU's version.

mod kit;

use std::os::unix::fs::PermissionsExt;

use kit::{Folder, Process, expect, linerate, summary, text, with_mounts};

/// Returns a program that claims to be QEMU of that version, and prints its other arguments, one per line.
fn qemu(folder: &Folder, version: &str) -> String {
    let path = folder.path(version);
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version {version} (Debian)'; else printf '%s\\n' \"$@\"; fi\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_line_has_the_words_of_the_qemu_that_is_there() {
    let folder = Folder::new("vm");
    for (version, again) in [
        ("7.2.22", "reconnect=1"),
        ("9.1.0", "reconnect=1"),
        ("9.2.0", "reconnect-ms=20"),
        ("11.1.3", "reconnect-ms=20"),
    ] {
        let qemu = qemu(&folder, version);
        let line = text(&expect(0, &mut linerate(&["vm", "vhost:/tmp/a,b", "--qemu", &qemu])).stdout);
        let socket = format!("-chardev socket,id=socket0,path=/tmp/a,,b,{again} ");
        assert!(line.starts_with(&qemu) && line.contains(&socket), "{line}");
        assert!(line.contains("size=512M,share=on") && line.contains("memory-backend=memory"), "{line}");
        // QEMU 7.2 without KVM crashes at an MSI-X interrupt of such a card.
        assert_eq!(line.contains(",vectors=0"), version.starts_with("7.") && line.contains("accel=tcg"), "{line}");
    }
}

#[test]
fn the_card_has_the_options_of_its_port() {
    let folder = Folder::new("vmo");
    let qemu = qemu(&folder, "10.0.13");
    let ports = ["vhost:/tmp/s?queues=4&packed=on&mtu=9000", "vhost:/tmp/t?client=on"];
    let options = ["--memory", "2048", "--processors", "4", "--qemu", &qemu, "--run", "--", "-append", "a b"];
    let given = text(&expect(0, &mut linerate(&[&["vm"], &ports[..], &options].concat())).stdout);
    for word in [
        "2048M",
        "4",
        "vhost-user,id=net0,chardev=socket0,queues=4",
        ",mq=on,vectors=10,packed=on,host_mtu=9000",
        "socket,id=socket1,path=/tmp/t,server=on,wait=off",
        "virtio-net-pci,netdev=net1,mac=02:",
        "a b",
    ] {
        assert!(given.lines().any(|line| line.contains(word)), "{word}: {given}");
    }
    // Linux uses no more queues than processors.
    let line = text(&expect(0, &mut linerate(&["vm", ports[0], ports[1], "--qemu", &qemu, "--no-kvm"])).stdout);
    assert!(line.contains(" -smp 4 ") && line.contains("accel=tcg"), "{line}");
    let macs: Vec<_> = given.lines().filter_map(|line| line.split("mac=").nth(1)?.get(..17)).collect();
    assert!(macs.len() == 2 && macs[0] != macs[1], "{given}");
    let line = text(&expect(0, &mut linerate(&["vm", ports[1], "--qemu", &qemu, "--", "-append", "a b"])).stdout);
    assert!(line.trim_end().ends_with("-append 'a b'") && !line.contains("status="), "{line}");
    let line = text(&expect(0, &mut linerate(&["vm", ports[1], "--qemu", &qemu, "--no-link-state"])).stdout);
    assert!(line.contains(",status=off"), "{line}");
}

#[test]
fn what_is_no_port_of_a_machine_is_refused() {
    let folder = Folder::new("vmr");
    let qemu = qemu(&folder, "10.0.13");
    for (code, arguments, why) in [
        (2, &["vm", "sim:0", "--qemu", &qemu][..], "cannot be the port of a machine: use vhost:PATH"),
        (2, &["vm", "vhost:/tmp/s?queues=65", "--qemu", &qemu], "queues"),
        (2, &["vm", "vhost:/tmp/s?packed=ON", "--qemu", &qemu], "on or off"),
        (2, &["vm", "vhost:/tmp/s?mtu=20000", "--qemu", &qemu], "to 9710"),
        (2, &["vm", "vhost:/tmp/s?mtu=50", "--qemu", &qemu], "from 68 to 9710"),
        (2, &["vm"], "required"),
        (2, &["vm", "vhost:/tmp/s", "vhost:/tmp/s?packed=on", "--qemu", &qemu], "given twice"),
        (2, &["vm", "sim:0", "--qemu", "/nowhere/qemu"], "cannot be the port of a machine: use vhost:PATH"),
        (2, &["vm", "vhost:/tmp/s", "--memory", "4"], "from 16 to"),
        (1, &["vm", "vhost:/tmp/s", "--qemu", "/nowhere/qemu"], "sudo apt install qemu-system-x86"),
        (2, &["vm", "vhost:/tmp/s", "--qemu", "true"], "does not print QEMU's version"),
    ] {
        let said = text(&expect(code, &mut linerate(arguments)).stderr);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
}

/// In a private `/dev`: KVM that cannot create a machine, that cannot be opened, or that is absent.
#[test]
fn a_broken_kvm_is_not_used() {
    let folder = Folder::new("vmk");
    let dev = folder.path("dev");
    std::fs::create_dir(&dev).unwrap();
    let qemu = qemu(&folder, "7.2.22");
    for (kvm, why) in [
        ("cp -a /dev/null $d/kvm", "/dev/kvm cannot create a virtual machine with a processor: Inappropriate ioctl"),
        ("mkdir $d/kvm", "cannot open /dev/kvm: Is a directory"),
        ("true", ""),
    ] {
        let script = format!(
            "d=$1; shift; mount -t tmpfs tmpfs $d && cp -a /dev/null $d/ && {kvm} && mount --bind $d /dev && exec \"$@\""
        );
        for run in [&[][..], &["--run"]] {
            let words = [&[&*dev, env!("CARGO_BIN_EXE_linerate"), "vm", "vhost:/tmp/s", "--qemu", &qemu][..], run];
            let output = expect(0, with_mounts(&script).args(words.concat()));
            let (given, said) = (text(&output.stdout), text(&output.stderr));
            assert!(given.contains("accel=tcg,") && given.contains(",vectors=0"), "{given}");
            match why {
                "" => assert_eq!(said, ""),
                why => assert!(said.contains(why) && said.contains("QEMU emulates the processors"), "{said}"),
            }
        }
        let output = expect(
            0,
            with_mounts(&script)
                .args([&*dev, env!("CARGO_BIN_EXE_linerate"), "vm", "vhost:/tmp/s", "--no-kvm"])
                .args(["--qemu", &qemu]),
        );
        assert_eq!(text(&output.stderr), "", "not asked for");
    }
}

fn start(words: &str) -> Process {
    Process::start(&mut linerate(&words.split(' ').collect::<Vec<_>>()))
}

fn count(value: &serde_json::Value) -> u64 {
    value.as_u64().unwrap()
}

/// A machine whose driver uses fewer queues than its port has gets all packets on the queues that it uses. Once it is
/// gone, packets are dropped and counted immediately.
#[test]
fn packets_come_by_the_queues_that_a_machine_uses() {
    const COUNT: u64 = 3000;
    let folder = Folder::new("fewer");
    let [a, b] = ["a", "b"].map(|name| folder.path(name));
    let ports = format!("vhost:{a}?queues=2 vhost:{b}?queues=2");
    let mut forwarder = start(&format!("fwd {ports} --queues 2 --wait adaptive --seconds 60 --json"));
    forwarder.await_error("waiting for the link");
    let mut sink = start(&format!("sink virtio-user:{b} --count {COUNT} --seconds 60 --json --wait interrupt"));
    sink.await_output("ports");
    let generator = format!("gen virtio-user:{a}?queues=2 --queues 2 --flows 8 --count {COUNT} --rate 1k --seconds 60");
    let generate = || expect(0, &mut linerate(&generator.split(' ').collect::<Vec<_>>()));
    generate();
    // By two threads, each with half of the flows.
    let (_, said) = sink.ended();
    assert_eq!(count(&summary(said.as_bytes())["packets"]), COUNT, "{said}");
    forwarder.await_error(&format!("{b}: the link is down"));
    generate();
    forwarder.await_error(": it has not accepted any for 1 s; its peer is absent or down");
    forwarder.await_output(&format!("\"held\":{COUNT}"));
    let (_, said) = forwarder.interrupt();
    let forwarded = summary(said.as_bytes());
    let [received, sent] =
        [(0, "rx_packets"), (1, "tx_packets")].map(|(port, key)| count(&forwarded["ports"][port][key]));
    assert_eq!((received, sent, count(&forwarded["held"])), (2 * COUNT, COUNT, COUNT), "{forwarded}");
}

/// A thread that sleeps when idle does not sleep while it drops packets, so the sender is as fast as before.
#[test]
fn packets_to_a_machine_that_is_not_there_do_not_hold_their_sender_up() {
    const COUNT: u64 = 100_000;
    let folder = Folder::new("absent");
    let [a, b] = ["a", "b"].map(|name| folder.path(name));
    let mut forwarder = start(&format!("fwd vhost:{a} vhost:{b} --wait interrupt --seconds 120 --json"));
    forwarder.await_error("waiting for the link");
    let mut generate = linerate(&["gen", &format!("virtio-user:{a}"), "--count", "100k", "--seconds", "60"]);
    let machine = start(&format!("sink virtio-user:{b} --count 1000 --seconds 60"));
    let generator = Process::start(&mut generate);
    assert_eq!(machine.ended().0, Some(0));
    assert_eq!(generator.ended().0, Some(0));
    // A sleep for each batch would take minutes.
    expect(0, &mut generate);
    forwarder.await_output("\"held\":1");
    let (_, said) = forwarder.interrupt();
    let forwarded = summary(said.as_bytes());
    let [received, sent] =
        [(0, "rx_packets"), (1, "tx_packets")].map(|(port, key)| count(&forwarded["ports"][port][key]));
    assert_eq!((received, sent + count(&forwarded["held"])), (2 * COUNT, 2 * COUNT), "{forwarded}");
}

/// Packets to a connected machine that accepts none are queued, which is noted. If there is a third port, they are
/// dropped.
#[test]
fn a_machine_that_takes_nothing_does_not_stop_a_third_port() {
    const COUNT: u64 = 3000;
    let folder = Folder::new("third");
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.path(name));
    let generate = |count: u64| {
        let packet = "eth/ip/udp(dport=9-10)/payload(20)";
        let words = format!("gen virtio-user:{a} --packet {packet} --count {count} --rate 1k --seconds 60");
        expect(0, &mut linerate(&words.split(' ').collect::<Vec<_>>()));
    };
    // It sends a packet, and has no buffers to receive.
    let busy = || start(&format!("gen virtio-user:{b} --rate 0.01 --seconds 60"));

    let mut forwarder = start(&format!("fwd vhost:{a} vhost:{b} --wait adaptive --seconds 60"));
    forwarder.await_error("waiting for the link");
    let _machine = busy();
    generate(10);
    forwarder.await_error("has not accepted packets for 1 s; packets are queued until it does");
    forwarder.interrupt();

    let rule = format!("--only udp:9 --rest vhost:{c}");
    let mut forwarder = start(&format!("fwd vhost:{a} vhost:{b} {rule} --wait adaptive --seconds 60 --json"));
    forwarder.await_error("waiting for the link");
    let third = COUNT / 2;
    let mut sink = start(&format!("sink virtio-user:{c} --count {third} --seconds 60 --json --wait interrupt"));
    sink.await_output("ports");
    generate(COUNT);
    let (_, said) = sink.ended();
    assert_eq!(count(&summary(said.as_bytes())["packets"]), third, "{said}");
    forwarder.await_output(&format!("\"held\":{}", COUNT - third));
    forwarder.interrupt();
}

/// Packets in the rings of a peer that ends before it receives them are lost, which is reported.
#[test]
fn packets_that_a_memif_peer_had_not_taken_are_said() {
    let folder = Folder::new("untaken");
    let path = folder.path("m");
    let mut server = start(&format!("sink memif:{path}?role=server --seconds 60 --json"));
    server.await_error("waiting for the link");
    let mut generator = start(&format!("gen memif:{path} --rate 1k --seconds 60 --json"));
    server.await_output("ports");
    server.pause(true);
    // From here on it receives none.
    generator.await_output("ports");
    generator.await_output("ports");
    drop(server);
    generator.await_error("descriptors with packets unread: they are lost");
    generator.interrupt();
}

/// A run with a wrong secret does not wait: it ends with the server's message, before its link is up or in the middle.
#[test]
fn a_server_that_refuses_the_secret_ends_the_run() {
    let folder = Folder::new("secret");
    let path = folder.path("m");
    let serve = |secret: &str| {
        let mut server = start(&format!("sink memif:{path}?role=server&secret={secret} --seconds 600 --json"));
        server.await_error("waiting for the link");
        server
    };
    let server = serve("right");
    // If it is not refused it runs for ten minutes, and `timeout` ends it with 137.
    let mut client = std::process::Command::new("timeout");
    client.args(["--signal=KILL", "100", env!("CARGO_BIN_EXE_linerate"), "gen", &format!("memif:{path}?secret=wrong")]);
    let said = text(&expect(1, client.args(["--rate", "1k", "--seconds", "600"])).stderr);
    assert!(said.contains("the secret is wrong") && said.contains("give both sides the same secret"), "{said}");
    let mut running = start(&format!("gen memif:{path}?secret=right --rate 1k --seconds 600 --json"));
    running.await_output("ports");
    drop(server);
    let _other = serve("another");
    running.await_error("give both sides the same secret");
    assert_eq!(running.ended().0, Some(1));
}

/// Ports with different numbers of queues are refused before the wait for a machine, and leave no socket.
#[test]
fn different_numbers_of_queues_are_refused_at_once() {
    let folder = Folder::new("differ");
    let [a, b] = ["a", "b"].map(|name| folder.path(name));
    let ports = [format!("vhost:{a}?queues=2"), format!("vhost:{b}?queues=4")];
    let said = text(&expect(2, &mut linerate(&["fwd", &ports[0], &ports[1], "--queues", "4"])).stderr);
    assert!(said.contains("give both the same number") && !said.contains("waiting for the link"), "{said}");
    assert!(![a, b].iter().any(|path| std::fs::exists(path).unwrap()));
}
