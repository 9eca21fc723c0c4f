//! Programs that use packet sockets, on ports: a test program of all calls, compared with the kernel's packet sockets;
//! and Debian's tcpreplay, scapy, arp-scan and arping.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate::Batch;
use linerate::capture::Writer;
use linerate::port::RxQueue;

mod kit;
use kit::{
    Deadline, Debian, Namespace, OutputTimeout, Process, Timely, World, capture, compiled, end_of, object, port, send,
};

/// Returns the path of the program that uses packet sockets.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("socket"))
}

/// Returns the command that runs the program in a namespace. If `is_ours`, the program uses the port `packet:v1`
/// through the preloaded library; otherwise it uses the interface `v1` through the kernel.
fn inside(namespace: &Namespace, arguments: &[&str], is_ours: bool) -> Command {
    let mut command = namespace.command(&program().display().to_string(), false);
    command.arg(arguments[0]).arg(if is_ours { "packet:v1" } else { "v1" }).args(&arguments[1..]);
    if is_ours {
        command.env("LD_PRELOAD", object());
    }
    command
}

/// Receives until `count` frames or a frame that `is_last` have arrived; returns their bytes.
fn received(rx: &mut RxQueue, count: usize, is_last: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let (mut batch, mut frames) = (Batch::new(), Vec::new());
    let deadline = Deadline::begin();
    while frames.len() < count && !frames.last().is_some_and(|frame: &Vec<u8>| is_last(frame)) {
        rx.recv(&mut batch);
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            frames.push(bytes);
        }
        batch.clear();
        deadline.check(|| format!("{} of {count} frames came", frames.len()));
        std::thread::yield_now();
    }
    frames
}

/// All calls return the same on a port as on its interface.
#[test]
fn calls_return_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("sockets");
    let [theirs, ours] =
        [false, true].map(|is_ours| Process::start(&mut inside(&namespace, &["calls"], is_ours)).stdout_of_success());
    assert_eq!(ours.replace("packet:v1", "v1"), theirs);
    assert!(theirs.lines().count() > 75 && theirs.contains("own: 18 bytes, family 17, protocol 0003"), "{theirs}");
}

/// Every way to receive returns the same frames, addresses and auxiliary data on a port as on its interface.
#[test]
fn frames_are_received_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("receive");
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    let mut writer = Writer::create(&frames).unwrap();
    let mut at = 0;
    for kind in [[0x88, 0xb5], [8, 6], [8, 0], [0, 0x10]] {
        for to in [[2, 0, 0, 0, 0, 1], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            for len in [60, 114, 1514] {
                at += 1;
                let mut frame = [&to[..], &[2, 0, 0, 0, 0, 2], &kind].concat();
                frame.extend((0..len - 14).map(|n: usize| if n == 0 { at as u8 } else { (n * at) as u8 }));
                writer.write(at as u64 * 1000, &frame).unwrap();
            }
        }
    }
    // The last frame for each socket.
    for kind in [[8, 6], [0x88, 0xb5]] {
        let last = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, &[0xff; 46]].concat();
        writer.write(1_000_000, &last).unwrap();
    }
    drop(writer);
    for arguments in [
        &["receive", "raw", "88b5"][..],
        &["receive", "cooked", "88b5"],
        &["receive", "cooked", "0806"],
        &["receive", "raw", "3"],
        &["receive", "cooked", "3"],
        &["receive", "raw", "3", "65535"],
        &["receive", "raw", "3", "50"],
        &["receive", "cooked", "88b5", "30"],
    ] {
        let mut both = [false, true].map(|is_ours| Process::start(&mut inside(&namespace, arguments, is_ours)));
        let mut said = both.each_mut().map(|running| {
            let mut said = String::new();
            while !said.ends_with("ready\n") {
                let line = running.line();
                assert!(!line.is_empty(), "it ended before it was ready: {said}");
                said += &(line + "\n");
            }
            said
        });
        let mut sender = namespace.command("tcpreplay", false);
        let sent = sender.args(["-q", "-i", "v0", "--pps", "5000"]).arg(&frames).output_in_time();
        assert!(sent.expect("tcpreplay is there: apt install tcpreplay").status.success());
        for (said, running) in said.iter_mut().zip(both) {
            *said += &running.stdout_of_success();
        }
        // Both programs end at the first last frame. Ignore the counters: another frame may have arrived.
        let [theirs, ours] = said.map(|said| {
            let lines = said.lines().filter(|line| !line.ends_with(" packets, 0 dropped")).collect::<Vec<_>>();
            lines.join("\n")
        });
        assert_eq!(ours, theirs, "{arguments:?}");
        assert!(theirs.lines().count() >= 15, "{theirs}");
    }
}

/// Frames sent in every way arrive, even though the program ends right after sending.
#[test]
fn frames_arrive_that_are_sent_in_every_way() {
    const COUNT: usize = 7 * 300;
    let world = World::new();
    let mut other = port("vale111:b?ring=4096");
    let mut rx = other.rx(0).unwrap();
    let sender = Process::start(world.command(program()).args(["send", "vale111:a", &COUNT.to_string()]));
    let frames = received(&mut rx, COUNT, |_| false);
    assert_eq!(sender.stdout_of_success(), "");
    let number = |frame: &[u8]| usize::from(u16::from_be_bytes([frame[14], frame[15]]));
    for frame in &frames {
        assert_eq!((frame.len(), &frame[..6], &frame[12..14]), (60, &[2, 0, 0, 0, 0, 1][..], &[0x88, 0xb5][..]));
    }
    // Each socket's frames are in order.
    for socket in [&[0, 1, 2, 3, 4][..], &[5], &[6]] {
        let numbers = |frames: &mut dyn Iterator<Item = usize>| {
            frames.filter(|number| socket.contains(&(number % 7))).collect::<Vec<usize>>()
        };
        assert_eq!(numbers(&mut frames.iter().map(|frame| number(frame))), numbers(&mut (0..COUNT)));
    }
}

/// tcpreplay replays a capture file into a port, frame for frame, and into another capture file.
#[test]
fn tcpreplay_replays_a_capture() {
    let world = World::new();
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    capture(&frames, 1000);
    let [mut read] = linerate::Options::default().open([&format!("pcap:{}", frames.display())]).unwrap();
    let expected = received(&mut read.rx(0).unwrap(), 1000, |_| false);
    let mut other = port("vale112:b?ring=4096");
    let mut rx = other.rx(0).unwrap();
    let replay = |name: &str| {
        let mut command = world.command("tcpreplay");
        Process::start(command.args(["-i", name, "-t"]).arg(&frames).current_dir(&scratch))
    };
    let running = replay("vale112:a");
    assert!(received(&mut rx, 1000, |_| false) == expected);
    let said = running.stdout_of_success();
    assert!(
        said.contains("Successful packets:        1000") && said.contains("Failed packets:            0"),
        "{said}"
    );
    let said = replay("pcap:o?write").stdout_of_success();
    assert!(said.contains("Successful packets:        1000"), "{said}");
    let [mut read] = linerate::Options::default().open([&format!("pcap:{}/o", scratch.path().display())]).unwrap();
    assert!(received(&mut read.rx(0).unwrap(), 1000, |_| false) == expected);
    let said = replay("sim:0").stdout_of_success();
    assert!(said.contains("Successful packets:        1000"), "{said}");
}

/// Answers ARP requests for addresses that end with an even number, while `work` runs.
fn with_responder<T>(name: &str, work: impl FnOnce() -> T) -> T {
    /// Ends the thread, even if the work fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut port = port(name);
    let (mut rx, mut tx, pool) = (port.rx(0).unwrap(), port.tx(0).unwrap(), port.pool().clone());
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut batch, mut answers) = (Batch::new(), Batch::new());
            while !is_over.load(Ordering::Relaxed) {
                rx.recv(&mut batch);
                for packet in batch.packets() {
                    let is_request = packet.len() >= 42 && packet[12..14] == [8, 6] && packet[21] == 1;
                    if is_request && packet[41].is_multiple_of(2) {
                        let own = [2, 0, 0, 0, 0, 0x99];
                        let target = &packet[38..42];
                        let (asker, address) = (&packet[22..28], &packet[28..32]);
                        let mut answer =
                            [asker, &own[..], &packet[12..21], &[2], &own, target, asker, address].concat();
                        answer.resize(60, 0);
                        assert!(answers.push(&pool, &answer));
                    }
                }
                batch.clear();
                let deadline = Deadline::begin();
                while !answers.is_empty() || tx.unsent() > 0 {
                    deadline.check(|| format!("{} answers are unsent", tx.unsent()));
                    tx.send(&mut answers);
                }
                std::thread::yield_now();
            }
        });
        let _over = Over(is_over);
        work()
    })
}

/// scapy works in its default mode: srp sends and gets answers, sniff filters, sendp sends.
#[test]
fn scapy_sends_and_sniffs() {
    Debian::all().into_iter().for_each(scapy_sends_and_sniffs_of);
}

fn scapy_sends_and_sniffs_of(debian: Debian) {
    let world = World::new();
    let script = r#"
import sys
from scapy.all import *
port = sys.argv[1]
request = Ether(dst="ff:ff:ff:ff:ff:ff")/ARP(pdst=["10.0.0.2", "10.0.0.4"], psrc="10.0.0.9")
answered, unanswered = srp(request, iface=port, timeout=180, verbose=0)
print([r[ARP].psrc + " " + r.src for s, r in answered], [s.pdst for s in unanswered])
# No host has this address, so that this waits for as long as it is told.
request[ARP].pdst = "10.0.0.3"
answered, unanswered = srp(request, iface=port, timeout=1, verbose=0)
print(len(answered), [s[ARP].pdst for s in unanswered])
sniffer = AsyncSniffer(iface=port, filter="arp[6:2] = 2", count=2, timeout=180, started_callback=lambda:
    sendp([Ether(src="02:00:00:00:00:01")/ARP(hwsrc="02:00:00:00:00:01", pdst="10.0.0.%d" % n) for n in range(4)],
        iface=port, verbose=0))
sniffer.start()
sniffer.join()
print([p[ARP].psrc for p in sniffer.results], get_if_hwaddr(port))
"#;
    let said = with_responder("vale113:r", || {
        Process::start(world.command_of(debian, "/usr/bin/python3").args(["-c", script, "vale113:s"]))
            .stdout_of_success()
    });
    let address = said.trim_end().rsplit(' ').next().unwrap().to_string();
    let expected =
        "['10.0.0.2 02:00:00:00:00:99', '10.0.0.4 02:00:00:00:00:99'] []\n0 ['10.0.0.3']\n['10.0.0.0', '10.0.0.2']";
    assert_eq!(said, format!("{expected} {address}\n"));
    assert!(address.starts_with("02:") && address.len() == 17, "{address}");
}

/// arp-scan, which queries the address through a packet socket and sends through libpcap, and arping find hosts.
#[test]
fn arp_scan_and_arping_find_hosts() {
    let world = World::new();
    with_responder("vale114:r", || {
        let scan = ["-I", "vale114:s", "--arpspa=10.0.0.9", "--plain", "10.0.0.1-10.0.0.6"];
        let said = Process::start(world.command("/usr/sbin/arp-scan").args(scan)).stdout_of_success();
        let hosts: Vec<&str> = said.lines().map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(hosts, ["10.0.0.2", "10.0.0.4", "10.0.0.6"], "{said}");
        // On a port private to the program, the socket queries the address while the handle has the port.
        for port in ["p114{1", "sim:114", "vale114:o"] {
            let scan = ["-I", port, "--arpspa=10.0.0.9", "-r", "1", "10.0.0.1-10.0.0.3"];
            let said = Process::start(world.command("/usr/sbin/arp-scan").args(scan)).stdout_of_success();
            assert!(said.contains(&format!("Interface: {port}, type: EN10MB, MAC: 02:")), "{said}");
        }
        let ping = ["-I", "vale114:p", "-S", "10.0.0.9", "-c", "2", "10.0.0.8"];
        let said = Process::start(world.command("/usr/sbin/arping").args(ping)).stdout_of_success();
        assert!(said.contains("2 packets transmitted, 2 packets received"), "{said}");
    });
}

/// A handle's descriptor and its duplicates accept interface requests, as on the port's interface.
#[test]
fn descriptors_of_handles_accept_requests_about_interfaces() {
    let namespace = Namespace::new("asks");
    let [theirs, ours] =
        [false, true].map(|is_ours| Process::start(&mut inside(&namespace, &["asks"], is_ours)).stdout_of_success());
    assert_eq!(ours, theirs);
    assert!(theirs.lines().count() == 85 && theirs.contains("SIOCGIFHWADDR, &request): 0"), "{theirs}");
}

/// A dump of links by rtnetlink(7) contains the ports and all interfaces, with every way to ask and to receive. A dump
/// of addresses contains no ports.
#[test]
fn dumps_of_links_contain_ports() {
    let world = World::new();
    let [theirs, ours] = [("lo", false), ("vale123:a", true)].map(|(name, is_ours)| {
        let mut command = if is_ours { world.command(program()) } else { Command::new(program()) };
        Process::start(command.args(["links", name])).stdout_of_success()
    });
    let port = "vale123:a 1 11043 1500 02";
    for (theirs, ours) in theirs.lines().zip(ours.lines()) {
        let without = ours.replace(&format!(" {port}"), "");
        assert_eq!(without, theirs);
        assert_eq!(ours.matches(port).count(), usize::from(ours.contains("links by")), "{ours}");
    }
    assert_eq!((theirs.lines().count(), ours.lines().count()), (6, 6), "{theirs}{ours}");
}

/// A program may overwrite its arguments before it lists the interfaces, as dhcpcd does.
#[test]
fn ports_in_overwritten_arguments_are_listed() {
    let world = World::new();
    let found = Process::start(world.command(program()).args(["renames", "vale123:a"])).stdout_of_success();
    assert_eq!(found, "found\n");
}

/// Sockets survive child processes, duplicates, cancelled threads, and a full descriptor table.
#[test]
fn sockets_survive_hostile_programs() {
    let world = World::new();
    let mut other = port("vale115:b");
    let mut rx = other.rx(0).unwrap();
    let said = Process::start(world.command(program()).args(["hostile", "vale115:a"])).stdout_of_success();
    let expected = [
        "waitpid(child, &status, 0) == child: 1",
        "status: 0",
        "waitpid(child, &status, 0) == child: 1",
        "status: 0",
        "send(other, frame, 60, 0): 60",
        "close(fd): 0",
        "write(other, frame, 60): 60",
        "dup2(other, fd) == fd: 1",
        "close(other): 0",
        "sendto(fd, frame, 60, 0, NULL, 0): 60",
        "dup2(other, fd) == fd: 1",
        "write(fd, frame, 5): 5",
        "syscall(SYS_dup2, other, fd) == fd: 1",
        "write(fd, frame, 30): 30",
        "recv(fd, frame + 30, 30, 0): -1 Socket operation on non-socket",
        "syscall(SYS_dup2, other, fd) == fd: 1",
        "write(fd, frame, 30): 30",
        "read(fd, frame + 30, 30): -1 Bad file descriptor",
        "status: 0",
        "send(fd, frame, 1, 0): -1 Invalid argument",
        "bind(fd, (struct sockaddr *)&address, sizeof address): 0",
        "send(other, frame, 60, 0): 60",
        "pthread_cancel(thread): 0",
        "pthread_join(thread, NULL): 0",
        "poll(&event, 1, 50) <= 1: 1",
        "send(fd, frame, 60, 0): -1 Bad file descriptor",
        "setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring): 0",
        "bind(fd, (struct sockaddr *)&address, sizeof address): -1 Operation not supported",
        "setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &(struct tpacket_req){ 0, 0, 0, 0 }, sizeof ring): 0",
        "bind(fd, (struct sockaddr *)&address, sizeof address): 0",
        "setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring): -1 Protocol not available",
        "setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter): 0",
        "bind(fd, (struct sockaddr *)&address, sizeof address): -1 Operation not supported",
        "setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &filter, sizeof filter): 0",
        "bind(fd, (struct sockaddr *)&address, sizeof address): 0",
        "setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter): -1 Invalid argument",
        "why == EMFILE: 1",
        "errors of bind",
        "send(fd, frame, 60, 0): 60",
        "close(fd): 0",
        "pipe(ends): 0",
        "read(ends[0], &is_down, 1): 1",
        "is_down: 1",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let frames = received(&mut rx, 100, |frame| frame[14] == 0xff);
    assert_eq!(frames.iter().map(|frame| frame[14]).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 0xff]);
}

/// A port that goes away looks like an interface that is down; a port that another program uses is busy.
#[test]
fn ports_that_cannot_be_used_are_errors() {
    let world = World::new();
    let _other = port("vale118:taken");
    let said = Process::start(world.command(program()).args(["send", "vale118:taken", "1"])).end().1;
    assert_eq!(said, "bind: Device or resource busy\n");
    let mut waits = Process::start(world.command(program()).args(["gone", "vale118:a"]));
    assert_eq!(waits.line(), "ready");
    waits.wait_for_sleep();
    drop(world);
    let expected = [
        "recv(fd, bytes, sizeof bytes, 0): -1 Network is down",
        "read(cooked, bytes, sizeof bytes): -1 Network is down",
        "write(fd, bytes, sizeof bytes): -1 Network is down",
        "poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1): 1",
        "close(fd): 0",
    ];
    let (_, said, errors) = waits.end();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert_eq!(errors, "linerate: vale118:a: the process that served it is gone\n  open it again\n");
}

/// If another program has one side of a port, the port is busy for a packet socket, and the report names the side. If
/// it is the sending side, tcpdump can still capture.
#[test]
fn ports_with_one_side_taken_are_busy() {
    if let Ok(side) = std::env::var("LINERATE_TAKEN") {
        // This is the other program: the test starts itself in another process.
        let [mut port] = linerate::Options::default().open(["vale119:a"]).unwrap();
        let _queues = (side == "receive").then(|| port.rx(0).unwrap());
        let _queues = (side == "transmit").then(|| port.tx(0).unwrap());
        println!("it is taken");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    for side in ["transmit", "receive"] {
        let world = World::new();
        let mut taken = world.command(std::env::current_exe().unwrap());
        taken.env_remove("LD_PRELOAD").env("LINERATE_TAKEN", side);
        taken.args(["ports_with_one_side_taken_are_busy", "--exact", "--nocapture"]);
        let mut taken = taken.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(Timely(taken.stdout.take().unwrap())));
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("it is taken")));
        let (_, said, errors) = Process::start(world.command(program()).args(["send", "vale119:a", "1"])).end();
        let mut tcpdump = world.command("tcpdump");
        let mut tcpdump = Process::start(tcpdump.args(["-Z", "root", "-nn", "-i", "vale119:a"]));
        let shown = tcpdump.await_error(if side == "transmit" { "listening on" } else { "receive queue" });
        drop(tcpdump);
        drop(taken.stdin.take());
        lines.for_each(drop);
        assert!(end_of(&mut taken).success());
        assert_eq!(said, "bind: Device or resource busy\n", "{errors}");
        assert!(errors.contains(&format!("vale119:a: {side} queue 0 is taken")), "{errors}");
        assert_eq!(errors.matches("vale119:a").count(), 1, "{errors}");
        assert!(!shown.contains("panicked"), "{shown}");
    }
}

/// When tcpreplay truncates a name that is too long for an interface, it does not send through the port of the shorter
/// name.
#[test]
fn names_that_were_cut_are_refused() {
    let world = World::new();
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    capture(&frames, 10);
    let replay = |name: &str| {
        let mut command = world.command("tcpreplay");
        Process::start(command.args(["-t", "-i", name]).arg(&frames)).end()
    };
    for name in ["vale121:averyverylongportname", "vale121:averyve"] {
        let mut other = port("vale121:b");
        let mut rx = other.rx(0).unwrap();
        let (status, said, errors) = replay(name);
        assert_eq!(status.success(), name.len() <= 15, "{name}: {said}{errors}");
        let (is_reported, report) = (name.len() > 15, format!("linerate: {name}: the name is too long"));
        assert_eq!(errors.contains(&report), is_reported, "{errors}");
        match is_reported {
            true => assert_eq!(rx.recv(&mut Batch::new()), 0),
            false => assert_eq!(received(&mut rx, 10, |_| false).len(), 10),
        }
    }
}

/// A switch port that no process serves is private to the program, which is reported once.
#[test]
fn ports_of_one_process_are_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command.args(["calls", "vale120:a"]).env("LD_PRELOAD", object()).env("LINERATE_PORTS", scratch.path());
    let (_, _, errors) = Process::start(&mut command).end();
    let report = "linerate: vale120:a exists only in this process; to share ports between processes: linerate serve";
    assert_eq!(errors.lines().filter(|line| *line == report).count(), 1, "{errors}");
}

/// For a program that pauses, received and dropped frames add up to all sent frames.
#[test]
fn received_and_dropped_are_all_that_was_sent() {
    const SENT: usize = 60_000;
    let world = World::new();
    let mut command = world.command(program());
    command.args(["count", "vale116:slow", &SENT.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut slow = command.spawn().unwrap();
    let mut output = std::io::BufReader::new(Timely(slow.stdout.take().unwrap()));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut other = port("vale116:sender");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, SENT);
    drop(slow.stdin.take());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut output, &mut said).unwrap();
    assert!(end_of(&mut slow).success());
    let numbers: Vec<usize> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [frames, packets, dropped] = numbers[..] else { panic!("{said}") };
    assert_eq!((packets, frames + dropped), (SENT, SENT), "{said}");
    assert!(frames > 1000 && dropped > 0, "{said}");
}

/// Random calls return and leak no descriptors or threads. `LINERATE_CALLS` sets their number.
#[test]
fn random_calls_leave_nothing_behind() {
    let world = World::new();
    let _sender = port("vale117:b");
    let calls = std::env::var("LINERATE_CALLS").unwrap_or("2000".to_string());
    for (name, seed) in [("vale117:a", "1"), ("null:", "2"), ("vale117:c", "3")] {
        let said = Process::start(world.command(program()).args(["churn", name, &calls, seed])).stdout_of_success();
        assert_eq!(said, "0 descriptors and 0 threads more\n");
    }
}

/// A user without the right to open kernel packet sockets can use packet sockets on ports.
#[test]
fn ports_need_no_privileges() {
    let scratch = tempfile::tempdir().unwrap();
    let at = scratch.path();
    std::fs::copy(object(), at.join("object.so")).unwrap();
    std::fs::copy(program(), at.join("program")).unwrap();
    for path in [at.to_path_buf(), at.join("object.so"), at.join("program")] {
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let start = |interface: &str| {
        let mut command = Command::new(at.join("program"));
        command.args(["send", interface, "700"]).env("LD_PRELOAD", at.join("object.so"));
        Process::start(command.env("LINERATE_PORTS", at).current_dir(at).uid(65534).gid(65534))
    };
    assert_eq!(start("pcap:o?write").stdout_of_success(), "");
    let [mut read] = linerate::Options::default().open([&format!("pcap:{}/o", at.display())]).unwrap();
    let mut numbers: Vec<u16> = received(&mut read.rx(0).unwrap(), 700, |_| false)
        .iter()
        .map(|frame| u16::from_be_bytes([frame[14], frame[15]]))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..700).collect::<Vec<u16>>());
    assert_eq!(start("lo").end().1, "bind: Operation not permitted\n");
    // A port on a packet socket of the kernel's still needs privileges, and reports that.
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-i", "packet:lo"]).env("LD_PRELOAD", at.join("object.so")).uid(65534).gid(65534).current_dir(at);
    let (status, _, errors) = Process::start(&mut tcpdump).end();
    assert!(!status.success() && errors.contains("Operation not permitted"), "{errors}");
}

/// A thread can be cancelled at any moment in each call that waits or sends, while frames arrive. Its socket still
/// works afterwards.
#[test]
fn threads_are_cancelled_in_every_call() {
    let world = World::new();
    let said = Process::start(world.command(program()).args(["cancel", "sim:c?rate=20k", "30"])).stdout_of_success();
    assert_eq!(said, "1800 cancelled\n");
}

/// When a socket is bound to a port that a libpcap handle of the program has, both get all frames.
#[test]
fn a_socket_shares_the_port_of_an_open_handle() {
    let world = World::new();
    let mut shares = Process::start(world.command(program()).args(["shares", "vale122:a"]));
    assert_eq!(shares.line(), "ready");
    let mut other = port("vale122:b");
    let (mut rx, mut tx) = (other.rx(0).unwrap(), other.tx(0).unwrap());
    send(&other, &mut tx, 100);
    assert_eq!(shares.stdout_of_success(), "100 frames of the socket, 100 of the handle\n");
    assert_eq!(received(&mut rx, 2, |_| false).len(), 2);
}
