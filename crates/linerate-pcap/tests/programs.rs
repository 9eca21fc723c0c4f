//! Programs that use libpcap, on ports: tcpdump, and a test program of all calls, compared with the system's libpcap.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use linerate::Batch;
use rustix::process::{Pid, Signal, kill_process};

mod kit;
use kit::{Deadline, Namespace, OutputTimeout, Process, World, capture, folder, port, program, send};

/// tcpdump with this library on a port prints and writes the same as with the system's libpcap on the port's interface,
/// for the same frames.
#[test]
fn tcpdump_shows_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("tcpdump");
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    capture(&frames, 40);
    let written = [scratch.path().join("0.pcap"), scratch.path().join("1.pcap")];
    for arguments in [
        &["-e", "-xx"][..],
        &["-s", "50", "-xx", "-vv"],
        &["--immediate-mode", "udp src port 1025"],
        &["-Q", "in", "-c", "3", "len <= 124 and ip[8] > 1"],
        &["--time-stamp-precision=nano", "-w", "FILE"],
    ] {
        let mut both = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
            let mut command = namespace.command("tcpdump", is_ours);
            // As root, tcpdump would drop its privileges and could not write to this folder.
            command.args(["-Z", "root", "-i", device, "-nn", "-t"]);
            if !arguments.contains(&"-c") {
                command.args(["-c", if arguments.iter().any(|word| word.contains("1025")) { "10" } else { "40" }]);
            }
            let file = written[usize::from(is_ours)].display().to_string();
            command.args(arguments.iter().map(|&word| if word == "FILE" { &*file } else { word }));
            Process::start(&mut command)
        });
        for running in &mut both {
            running.await_error("listening on");
        }
        let mut send = namespace.command("tcpreplay", false);
        let sent = send.args(["-q", "-i", "v0", "--pps", "2000"]).arg(&frames).output_in_time();
        assert!(sent.expect("tcpreplay is there").status.success());
        let [theirs, ours] = both.map(Process::stdout_of_success);
        assert_eq!(ours, theirs, "{arguments:?}");
        assert!(arguments.contains(&"-w") || theirs.lines().count() >= 3, "{theirs}");
    }
    let print = |file: &PathBuf| {
        let output = Command::new("tcpdump").args(["-nn", "-t", "-e", "-xx", "-r"]).arg(file).output_in_time().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let [theirs, ours] = [print(&written[0]), print(&written[1])];
    assert_eq!(ours, theirs);
    assert_eq!(ours.matches("198.18.0").count(), 40, "{ours}");
}

/// All calls, in all states of a handle, return the same on a port as on its interface.
#[test]
fn calls_return_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("calls");
    // The program sends frames of this length and longer ones.
    namespace.set_mtu("v1", 500);
    let program = program().display().to_string();
    let [theirs, ours] = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
        let mut command = namespace.command(&program, is_ours);
        Process::start(command.args(["api", device])).stdout_of_success().replace(device, "v1")
    });
    assert_eq!(ours, theirs);
    assert!(theirs.lines().count() > 50, "{theirs}");
}

/// The error of a port that captures only one direction names the port for the other one.
#[test]
fn a_refused_direction_has_an_alternative() {
    let said = World::new().start(&["outgoing", "vale64:a"]).stdout_of_success();
    assert_eq!(said, "-1 this port captures what it receives; to capture what it sends: vale64:a+t\n");
    let namespace = Namespace::new("direction");
    let outgoing = |device: &str, is_ours| {
        let mut command = namespace.command(&program().display().to_string(), is_ours);
        Process::start(command.args(["outgoing", device])).stdout_of_success()
    };
    let said = outgoing("packet:v0?ring=64", true);
    assert_eq!(said, "-1 this port captures what it receives; what the interface sends: capture from v0\n");
    assert_eq!(outgoing("v0", true), "0 \n");
}

/// A port on an interface with a large MTU captures all frames.
#[test]
fn frames_of_a_larger_mtu_are_captured() {
    let namespace = Namespace::new("jumbo");
    ["v0", "v1"].iter().for_each(|name| namespace.set_mtu(name, 9000));
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    let mut writer = linerate::capture::Writer::create(&frames).unwrap();
    for len in [60, 1514, 1515, 1519, 4000, 9014] {
        writer.write(0, &[&[2; 12][..], &[0x88, 0xB5], &vec![3; len - 14]].concat()).unwrap();
    }
    drop(writer);
    let mut both = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
        let mut command = namespace.command("tcpdump", is_ours);
        Process::start(command.args(["-i", device, "-nn", "-t", "-e", "-x", "-c", "6"]))
    });
    for running in &mut both {
        running.await_error("listening on");
    }
    let sent = namespace.command("tcpreplay", false).args(["-q", "-i", "v0"]).arg(&frames).output_in_time();
    assert!(sent.expect("tcpreplay is there").status.success());
    let [theirs, ours] = both.map(Process::stdout_of_success);
    assert_eq!(ours, theirs);
    assert!(theirs.contains("length 9014"), "{theirs}");
}

/// A descriptor is readable while there are frames, and not for frames that the program has already read.
#[test]
fn a_descriptor_wakes_a_program_for_frames_alone() {
    let world = World::new();
    let said = world.start(&["wakes", "sim:wakes?rate=20k", "20000"]).stdout_of_success();
    let numbers: Vec<u64> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [frames, in_vain] = numbers[..] else { panic!("{said}") };
    assert!(frames >= 20_000 && in_vain <= frames, "{said}");
}

/// A child, which has none of its parent's threads, can close a handle, and the parent continues.
#[test]
fn a_child_closes_its_parent_s_handle() {
    let world = World::new();
    for device in ["sim:child?rate=20k", "faulty:sim:child2?rate=20k&drop=1%"] {
        assert_eq!(world.start(&["child", device, "30"]).stdout_of_success(), "90 frames\n", "{device}");
    }
}

/// A child can open another port and capture from it, although fork(2) leaves it without its parent's threads.
#[test]
fn a_child_captures_from_a_port_of_its_own() {
    let said = World::new().start(&["opens", "sim:parent?rate=20k", "sim:own?rate=20k", "60"]).stdout_of_success();
    assert_eq!(said, "180 frames\n");
}

/// A child and its parent send through the parent's handle on an interface at the same time. Each frame arrives once.
#[test]
fn a_child_sends_beside_its_parent() {
    let namespace = Namespace::new("both");
    let program = program().display().to_string();
    let mut tcpdump = namespace.command("tcpdump", false);
    let mut tcpdump = Process::start(tcpdump.args(["-i", "v1", "-nn", "-t", "-x", "-c", "401"]));
    tcpdump.await_error("listening on");
    let mut both = namespace.command(&program, true);
    assert_eq!(Process::start(both.args(["both", "packet:v0", "200"])).stdout_of_success(), "sent\n");
    let all = tcpdump.stdout_of_success();
    let frames = all.split("\n\t0x0000:").skip(1);
    let mut marks: Vec<&str> = frames.map(|frame| &frame[17..21]).collect();
    marks.sort_unstable();
    let expected = (0..=200u16).chain(257..=456).map(|mark| format!("{mark:04x}"));
    assert_eq!(marks, expected.collect::<Vec<_>>(), "{all}");
}

/// A child gets statistics while a thread that exists only in the parent holds the port's lock.
#[test]
fn a_child_waits_for_no_thread_of_its_parent() {
    assert_eq!(World::new().start(&["asks", "asked{1"]).stdout_of_success(), "asked\n");
}

/// A child does not write to the ring of a served port while its parent runs. Once the parent has ended, the child owns
/// the ring.
#[test]
fn a_daemon_sends_when_its_parent_has_ended() {
    let world = World::new();
    let mut receiver = port("vale87:receiver");
    let mut rx = receiver.rx(0).unwrap();
    let said = world.start(&["daemon", "vale87:daemon"]).stdout_of_success();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("-1 ") && lines[0].contains("open the port in this process"), "{said}");
    assert_eq!(lines[1], "60", "{said}");
    let (mut batch, deadline) = (Batch::new(), Deadline::begin());
    while batch.len() < 2 {
        deadline.check(|| format!("{} of 2 frames came, {:?}", batch.len(), receiver.statistics()));
        rx.recv(&mut batch);
    }
    assert_eq!(batch.len(), 2);
}

/// For a program slower than the traffic, received and reported dropped frames add up to all sent frames.
#[test]
fn received_and_dropped_are_all_that_was_sent() {
    const SENT: usize = 60_000;
    let world = World::new();
    let mut slow = world.start(&["loop", "vale91:slow", "1"]);
    assert_eq!(slow.line(), "ready");
    let mut other = port("vale91:sender");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, SENT);
    slow.stop();
    let said = slow.stdout_of_success();
    let numbers: Vec<u64> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [frames, received, dropped, disorder] = numbers[..] else { panic!("{said}") };
    assert_eq!((frames, disorder), (received, 0), "{said}");
    assert_eq!(received + dropped, SENT as u64, "{said}");
    assert!(dropped > 0 && received > 8000, "{said}");
}

/// Statistics count the frames that pass the filter, and frames of one batch have distinct, increasing timestamps.
#[test]
fn a_filter_decides_what_is_counted() {
    let world = World::new();
    let mut loops = world.start(&["loop", "vale92:a", "0", "udp src port 1025"]);
    assert_eq!(loops.line(), "ready");
    let mut other = port("vale92:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 4000);
    loops.stop();
    assert_eq!(loops.stdout_of_success(), "1000 frames, 1000 received, 0 dropped, 0 times not in order\n");
}

/// A frame's timestamp is the time at which its sender passed it to the switch, however late the program receives it.
#[test]
fn frames_have_the_time_of_their_sending() {
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let world = World::new();
    let mut program = world.start(&["times", "vale89:a", "100"]);
    assert_eq!(program.line(), "ready");
    let mut other = port("vale89:b");
    let mut tx = other.tx(0).unwrap();
    kill_process(Pid::from_child(&program.child), Signal::STOP).unwrap();
    let before = now();
    send(&other, &mut tx, 100);
    let after = now() + 100;
    while now() < after + 5_000_000 {}
    kill_process(Pid::from_child(&program.child), Signal::CONT).unwrap();
    let times: Vec<u64> = program.stdout_of_success().lines().map(|line| line.parse().unwrap()).collect();
    assert!(times.len() == 100 && times.is_sorted_by(|a, b| a < b), "{times:?}");
    assert!(before <= times[0] && times[99] <= after, "{before} <= {times:?} <= {after}");
}

/// A new filter also applies to unread frames, each of which is delivered once.
#[test]
fn a_new_filter_decides_about_frames_that_wait() {
    let world = World::new();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("frames.pcap");
    capture(&file, 64);
    let (status, said, errors) =
        world.start(&["narrow", &format!("pcap:{}", file.display()), "udp src port 1025"]).end();
    assert!(status.success(), "{said}{errors}");
    // Three frames before the filter, one of them from UDP port 1025, and the other 15 from this UDP port.
    assert_eq!(said, "18 frames, 18 received, 0 dropped, 0 times not in order\n");
}

/// Programs can wait for the descriptor by select(2) and poll(2), with each way to read frames.
#[test]
fn programs_wait_for_the_descriptor() {
    let world = World::new();
    for how in ["select", "poll", "next"] {
        let mut waits = world.start(&[how, "vale93:a", "500"]);
        assert_eq!(waits.line(), "ready");
        let mut other = port("vale93:b");
        let mut tx = other.tx(0).unwrap();
        // Single frames and bursts.
        for count in [1, 1, 98, 400] {
            send(&other, &mut tx, count);
        }
        assert_eq!(waits.stdout_of_success(), "500 frames, 500 received, 0 dropped, 0 times not in order\n", "{how}");
    }
}

/// A descriptor is not readable without frames: neither for a new handle, nor when another handle begins to share the
/// port. It is readable for a frame that arrived before the program asked for the descriptor.
#[test]
fn a_descriptor_without_frames_is_not_readable() {
    let world = World::new();
    let mut command = Command::new(program());
    command.args(["quiet", "vale65:a"]).env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", world.folder.path());
    let mut quiet = Process::with_input(&mut command, Stdio::piped());
    let said: Vec<String> = (0..6).map(|_| quiet.line()).collect();
    let nothing = ["is_readable(pcap, 0): 0", "is_readable(pcap, 0): 0", "is_readable(other, 0): 0"];
    assert_eq!(said[..3], nothing);
    assert_eq!(said[3..], ["pcap_setdirection(other, 1): 0", nothing[2], "ready"]);
    let mut other = port("vale65:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 1);
    drop(quiet.child.stdin.take());
    assert_eq!(quiet.stdout_of_success(), "is_readable(pcap, 20000): 1\npcap_dispatch(pcap, -1, each, NULL): 1\n");
}

/// A blocking call waits for a frame that passes the filter, even if the program has the descriptor. If the descriptor
/// has woken the program for other frames, the call returns instead.
#[test]
fn calls_wait_for_frames_that_pass_the_filter() {
    let world = World::new();
    let mut other = port("vale66:b");
    let mut tx = other.tx(0).unwrap();
    let (pool, mut batch) = (other.pool().clone(), Batch::new());
    for how in ["next", "poll"] {
        let mut waits = world.start(&["refuse", "vale66:a", how]);
        assert_eq!([waits.line(), waits.line()], ["is_readable(pcap, 0): 0", "ready"], "{how}");
        for _ in 0..20 {
            waits.wait_for_sleep();
            assert!(batch.push(&pool, &[&[255; 6][..], &[2; 54]].concat()));
            let deadline = Deadline::begin();
            while !batch.is_empty() || tx.unsent() > 0 {
                deadline.check(|| "a frame was not sent".to_string());
                tx.send(&mut batch);
            }
            if how == "poll" {
                assert_eq!(waits.line(), "pcap_next_ex: 0");
            }
        }
        waits.wait_for_sleep();
        send(&other, &mut tx, 1);
        assert_eq!(waits.stdout_of_success(), "pcap_next_ex: 1\n", "{how}");
    }
}

/// A monitor captures a port that another program uses, and served ports are listed.
#[test]
fn a_monitor_shows_what_another_program_sends() {
    let world = World::new();
    let running = ["vale94:a", "vale94:a+rt", "vale94:a/r"].map(|name| {
        let mut one = world.start(&["poll", name, "300"]);
        assert_eq!(one.line(), "ready");
        one
    });
    let list = world.start(&["list"]).stdout_of_success();
    assert!(list.lines().any(|name| name == "vale94:a"), "{list}");
    let mut other = port("vale94:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 300);
    for one in running {
        assert_eq!(one.stdout_of_success(), "300 frames, 300 received, 0 dropped, 0 times not in order\n");
    }
}

/// Injected frames arrive; a frame that is too long is rejected as by the kernel.
#[test]
fn programs_send() {
    let world = World::new();
    let mut other = port("vale95:b");
    let mut rx = other.rx(0).unwrap();
    let said = world.start(&["send", "vale95:a", "500"]).stdout_of_success();
    assert_eq!(said, "too long: -1 send: Message too long\nsent\n");
    let (mut batch, mut numbers) = (Batch::new(), Vec::new());
    let deadline = Deadline::begin();
    while numbers.len() < 500 {
        deadline.check(|| format!("{} of 500 frames came, {:?}", numbers.len(), other.statistics()));
        rx.recv(&mut batch);
        numbers.extend(batch.packets().map(|packet| u16::from_be_bytes([packet[20], packet[21]])));
        batch.clear();
    }
    assert_eq!(numbers, (0..500).collect::<Vec<u16>>());
}

/// Loops can be ended by another thread, by a signal handler, by their callback, and by longjmp(3).
#[test]
fn loops_end_in_every_way() {
    let world = World::new();
    let mut breaks = world.start(&["break", "vale96:a"]);
    let said: Vec<String> = (0..3).map(|_| breaks.line()).collect();
    assert_eq!(said[0], "pcap_loop(pcap, -1, each, NULL): -2");
    assert_eq!(said[1], "pcap_dispatch(pcap, -1, each, NULL): -2");
    assert_eq!(said[2], "ready");
    let mut other = port("vale96:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 12);
    let ends =
        ["pcap_loop(pcap, -1, leave_early, NULL): -2", "count: 5", "count: 3", "pcap_loop(pcap, 4, each, NULL): 0"];
    assert_eq!(breaks.stdout_of_success(), format!("{}\ncount: 7\n", ends.join("\n")));
}

/// Calls for statistics, sending, descriptors and filters do not wait for a thread that waits for frames. Signal
/// handlers may make them.
#[test]
fn calls_beside_a_waiting_thread_succeed() {
    let world = World::new();
    let mut beside = world.start(&["beside", "vale99:a"]);
    let said: Vec<String> = (0..3).map(|_| beside.line()).collect();
    assert_eq!(said, ["1000 sent, 0 failed", "0 failed in a handler", "ready"], "{}", beside.end().2);
    let mut other = port("vale99:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 1);
    let (status, said, errors) = beside.end();
    assert!(status.success(), "{status}: {errors}");
    assert_eq!((&*said, &*errors), ("answer: -2\n0 failed while sending\n", ""));
}

/// A truncated capture file ends with an error after its last complete frame, as with the system's libpcap.
#[test]
fn a_cut_capture_ends_with_an_error() {
    let world = World::new();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("cut.pcap");
    capture(&file, 5);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 10]).unwrap();
    let name = format!("pcap:{}", file.display());
    for arguments in [&["loop", &*name, "0"][..], &["poll", &*name, "5"], &["next", &*name, "5"]] {
        let (status, said, errors) = world.start(arguments).end();
        assert!(!status.success(), "{said}");
        let call = if arguments[0] == "loop" { "pcap_loop: " } else { "pcap_dispatch: " };
        assert!(said.contains(call) && said.contains("it is cut after frame 4"), "{said}{errors}");
    }
    let mut tcpdump = world.command("tcpdump");
    let (status, said, errors) = Process::start(tcpdump.args(["-Z", "root", "-nn", "-i", &name])).end();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 4), "{said}{errors}");
    assert!(errors.contains("it is cut after frame 4"), "{errors}");
}

/// A program that was asleep and stopped when its server ended still receives the frames in its ring.
#[test]
fn frames_that_came_before_the_server_s_end_are_received() {
    let world = World::new();
    let mut port = port("vale71:a");
    let mut tx = port.tx(0).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = world.command("tcpdump");
    let mut tcpdump = Process::start(command.args(["-Z", "root", "-i", "vale71:b", "-w"]).arg(file.path()));
    tcpdump.await_error("listening on");
    tcpdump.wait_for_sleep();
    tcpdump.pause(true);
    send(&port, &mut tx, 500);
    drop(world);
    // Long enough that it checks its link as soon as it continues.
    let stopped = std::time::Instant::now();
    while stopped.elapsed().as_millis() < 300 {
        std::thread::yield_now();
    }
    tcpdump.pause(false);
    let (_, _, errors) = tcpdump.end();
    assert!(errors.contains("is gone") && errors.contains("500 packets captured"), "{errors}");
}

/// A program that continues after the error sleeps until the error is returned again.
#[test]
fn a_loop_on_a_port_that_is_gone_sleeps() {
    let world = World::new();
    let mut again = world.start(&["again", "vale72:a"]);
    assert_eq!(again.line(), "ready");
    drop(world);
    for _ in 0..2 {
        assert_eq!(again.line(), "vale72:a: the process that served it is gone; open it again");
        again.wait_for_sleep();
    }
    again.stop();
    assert!(again.end().0.success());
}

/// Random calls return and leak no descriptors. `LINERATE_CALLS` sets their number.
#[test]
fn random_calls_leave_nothing_behind() {
    let world = World::new();
    let _sender = port("vale97:b");
    let calls = std::env::var("LINERATE_CALLS").unwrap_or("1000".to_string());
    for (device, seed) in [("vale97:a", "1"), ("vale97:b+rt", "2")] {
        assert_eq!(world.start(&["churn", device, &calls, seed]).stdout_of_success(), "0 descriptors more\n");
    }
}

/// A loop without frames sleeps, and ends with an error when the server of its port is gone.
#[test]
fn a_loop_sleeps_and_ends_with_its_port() {
    let world = World::new();
    let mut waits = world.start(&["loop", "vale98:a", "0"]);
    assert_eq!(waits.line(), "ready");
    // This program is non-blocking, and waits for the descriptor.
    let mut polls = world.start(&["poll", "vale98:b", "1"]);
    assert_eq!(polls.line(), "ready");
    waits.wait_for_sleep();
    drop(world);
    assert_eq!(waits.end().1, "pcap_loop: vale98:a: the process that served it is gone; open it again\n");
    assert_eq!(polls.end().1, "pcap_dispatch: vale98:b: the process that served it is gone; open it again\n");
}

/// A name that is not a port's gets the error of the system's libpcap; a port that cannot be opened reports why.
#[test]
fn names_that_cannot_be_opened_are_explained() {
    let world = World::new();
    let refused = |device: &str| world.start(&["api", device]).stdout_of_success();
    let said = world.start(&["loop", "sim:x?sise=64", "0"]).end().1;
    assert!(said.contains("sise=64: there is no such option (did you mean size?); there are"), "{said}");
    let said = world.start(&["loop", "nosuch0", "0"]).end().1;
    assert!(said.starts_with("pcap_activate: "), "{said}");
    // A handle would read only one queue and lose the other queues' packets.
    for option in ["queues", "cluster"] {
        let said = world.start(&["loop", &format!("sim:x?{option}=2"), "0"]).end().1;
        assert!(said.contains("has no capture of several receive queues"), "{said}");
    }
    // The error must list the kernel's interfaces, without the port names that this library adds from the arguments.
    let said = world.start(&["loop", "xdp:nosuch0", "0"]).end().1;
    assert!(
        said.contains("nosuch0: there is no such interface; there are lo") && !said.contains("xdp:nosuch0;"),
        "{said}"
    );
    let said = world.start(&["loop", "ffff:ff:1f.7", "0"]).end().1;
    assert!(said.contains("try: linerate ports"), "{said}");
    let said = refused("sim:x?wire=none");
    assert!(said.contains("pcap_activate(a): 0") && said.contains("pcap_setdirection(a, 0): 0"), "{said}");
}

/// A thread can be cancelled in each call that waits, asleep or at any moment, and in its callback. The handle still
/// works afterwards.
#[test]
fn threads_are_cancelled_in_every_call() {
    let world = World::new();
    // Asleep: six calls, two cancellation types, twice.
    assert_eq!(world.start(&["cancel", "vale73:a", "0"]).stdout_of_success(), "24 cancelled\n");
    // At any moment, while frames arrive.
    assert_eq!(world.start(&["cancel", "sim:cancel?rate=50k", "40"]).stdout_of_success(), "560 cancelled\n");
}

/// Without the system's libpcap, the functions that return texts return no null pointer, since programs print them
/// unchecked. Only libpcap's file is hidden from the program.
#[test]
fn texts_are_there_without_the_system_s_libpcap() {
    let world = World::new();
    let hidden = "for file in /usr/lib/*-linux-gnu/libpcap.so.*.*.*; do mount --bind /dev/null \"$file\" || exit; done; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", hidden, "sh"]).arg(program()).args(["texts", ""]);
    let said = Process::start(command.env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", world.folder.path()))
        .stdout_of_success();
    assert!(said.starts_with("linerate's libpcap") && said.matches("apt install libpcap0.8").count() == 2, "{said}");
    let theirs = Process::start(Command::new(program()).args(["texts", ""])).stdout_of_success();
    assert!(theirs.starts_with("libpcap version") && !theirs.contains("apt install"), "{theirs}");
}

/// Programs that cancel their capturing thread end at Ctrl-C. iftop's thread waits in a call, ettercap's is cancelled
/// anywhere.
#[test]
fn programs_that_cancel_threads_end_at_ctrl_c() {
    let world = World::new();
    // The second port has its own thread. It delivers few frames: ettercap's callback may be cancelled within
    // malloc(3), and then ettercap hangs with any libpcap.
    for (device, threads) in [("vale74:a", 2), ("sim:ctrl?rate=1", 3)] {
        let mut iftop = world.command("/usr/sbin/iftop");
        let iftop = Process::start(iftop.args(["-t", "-n", "-i", device]));
        iftop.wait_for_threads(threads);
        iftop.stop();
        iftop.must_end("Ctrl-C");
        let mut ettercap = world.command("ettercap");
        let ettercap = ettercap.args(["-T", "-q", "-u", "-z", "-i", device]);
        let mut ettercap = Process::with_input(ettercap, std::process::Stdio::piped());
        ettercap.await_output("for inline help");
        // Do not interrupt it while it prints: its handler takes a lock that the printing thread holds.
        ettercap.wait_for_main_sleep();
        ettercap.stop();
        ettercap.must_end("Ctrl-C");
    }
}

/// Each of a program's handles on one port receives every frame. The first one keeps the frames that it had before.
#[test]
fn several_handles_share_a_port() {
    let world = World::new();
    for (device, sender) in [("vale75:a", "vale75:b"), ("vale76:a?ring=512", "vale76:b")] {
        let mut several = world.start(&["several", device]);
        assert_eq!(several.line(), "ready", "{device}");
        let mut other = port(sender);
        let mut tx = other.tx(0).unwrap();
        send(&other, &mut tx, 10);
        assert_eq!(several.line(), "ready", "{device}");
        send(&other, &mut tx, 100);
        let said = several.stdout_of_success();
        let frames = |line: &str| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
        let counts: Vec<u64> = said.lines().map(frames).collect();
        assert_eq!(said.matches(" frames, 0 dropped").count(), 3, "{device}: {said}");
        assert!(counts[0] == 110 && counts[1..].iter().all(|count| (100..=107).contains(count)), "{device}: {said}");
    }
}

/// Returns the system calls that these rows of docs/pcap.md list.
fn calls_of(rows: &[&str]) -> String {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pcap.md")).unwrap();
    let row = |begin: &&str| {
        let line = docs.lines().find(|line| line.starts_with(&format!("| {begin} |"))).expect("the row is there");
        line.rsplit('`').nth(1).unwrap().to_string()
    };
    rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

/// A program that limits itself to the documented system calls (seccomp(2)) can open a port, send and receive. It adds
/// a filter before each of the three.
#[test]
fn programs_that_filter_their_system_calls_capture() {
    const ALL: &str = "`pcap_activate`, of each port";
    const FRAMES: &str = "frames, statistics, sending";
    let world = World::new();
    // A program's filters apply together, so each list contains the later ones.
    let lists = |to_activate: &str, to_send: &[&str]| {
        [&[&[ALL, to_activate], to_send, &[FRAMES]].concat()[..], &[to_send, &[FRAMES]].concat(), &[FRAMES]]
            .map(calls_of)
    };
    let started = |mut command: Command, device: &str, lists: [String; 3]| {
        let mut filtered = Process::start(command.args(["filtered", device]).args(lists));
        let said = filtered.line();
        assert_eq!(said, "ready", "{device}: {}", filtered.end().2);
        filtered
    };
    let own = || {
        let mut command = Command::new(program());
        command.env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", world.folder.path());
        command
    };
    let filtered = started(own(), "sim:filtered?rate=1k", lists("and of `sim:`", &[]));
    assert_eq!(filtered.stdout_of_success(), "3 frames\n");

    let namespace = Namespace::new("filtered");
    let inside = || namespace.command(&program().display().to_string(), true);
    let filtered = started(inside(), "packet:v0", lists("and of `packet:IF`", &[]));
    assert_eq!(Process::start(inside().args(["both", "packet:v1", "10"])).stdout_of_success(), "sent\n");
    assert_eq!(filtered.stdout_of_success(), "3 frames\n");

    let first = "the first frame that is sent at a served port";
    let filtered = started(own(), "vale69:a", lists("and of a served port", &[first]));
    let mut other = port("vale69:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 3);
    assert_eq!(filtered.stdout_of_success(), "3 frames\n");
}

/// A program that drops its privileges or its file system after it has opened a port can send and receive.
#[test]
fn programs_that_restrict_themselves_send() {
    let world = World::new();
    let mut other = port("vale68:b");
    let (mut rx, mut tx) = (other.rx(0).unwrap(), other.tx(0).unwrap());
    for how in ["setuid", "chroot"] {
        // Until it sends, a capturing program leaves the transmit queue to other programs.
        for device in ["vale68:a", "faulty:vale68:a"] {
            let mut restricted = world.start(&["restricted", device, how]);
            let said = restricted.line();
            assert_eq!(said, "sent", "{device}, {how}");
            let (mut batch, deadline) = (Batch::new(), Deadline::begin());
            while batch.len() < 3 {
                deadline.check(|| format!("{} of 3 frames came, {:?}", batch.len(), other.statistics()));
                rx.recv(&mut batch);
            }
            send(&other, &mut tx, 3);
            assert_eq!(restricted.stdout_of_success(), "3 frames\n", "{device}, {how}");
        }
    }
}

/// Creating a handle loads the system's libpcap, which filters need: later, the program may forbid opening files
/// (seccomp(2)).
#[test]
fn the_system_s_libpcap_is_loaded_with_the_first_handle() {
    assert_eq!(World::new().start(&["early", "vale77:a"]).stdout_of_success(), "is_there: 1\n");
}
