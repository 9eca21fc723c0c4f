//! How commands end: by signals, with outputs that cannot be written, and without threads.

mod kit;

use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kit::{Folder, OutputTimeout, Process, Timely, end_of, ended_with, expect, linerate, output_of, text};
use rustix::process::{Pid, Signal, kill_process};

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn a_full_standard_output_is_a_failure_in_one_line() {
    for arguments in [
        &["fwd", "sim:0", "sim:1", "--seconds", "1.2"][..],
        &["gen", "null:", "--count", "10", "--json"],
        &["gen", "null:", "--rate", "10k", "--count", "1M", "--seconds", "60"],
        &["latency", "L{0", "L}0", "--seconds", "0.1", "--rate", "1k,2k"],
        &["ports"],
        &["ports", "--json"],
        &["--help"],
        &["--version"],
        &["gen", "--help"],
        &["serve", "--seconds", "60"],
        &["bench", "--only", "iommu", "--json", "--out", "/tmp/linerate-bench-of-a-test"],
    ] {
        let output = ended_with(
            1,
            linerate(arguments)
                .env("LINERATE_PORTS", "/tmp/linerate-ports-of-a-test")
                .stdout(full())
                .stderr(Stdio::piped()),
        );
        let said = text(&output.stderr);
        let line = "linerate: cannot write to standard output: No space left on device";
        assert_eq!(said.lines().filter(|said| said.starts_with(line)).count(), 1, "{arguments:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("interrupt"), "{said}");
        let end = match arguments[0] {
            "latency" => "linerate: ended at 1k packets/s; 2k packets/s not measured",
            "gen" if arguments.contains(&"1M") => "bounded by standard output, which cannot be written any more",
            _ => "",
        };
        assert!(said.contains(end), "{said}");
    }
    let _ = std::fs::remove_dir_all("/tmp/linerate-bench-of-a-test");
}

/// Rust's runtime opens /dev/null in place of a closed output, so that all output would vanish.
#[test]
fn a_standard_output_that_is_not_open_is_a_failure() {
    for arguments in ["fwd sim:0 sim:1 --seconds 60", "gen null: --count 10 --json", "ports"] {
        let mut shell = std::process::Command::new("sh");
        let output =
            expect(1, shell.args(["-c", &format!("exec \"$0\" {arguments} >&-"), env!("CARGO_BIN_EXE_linerate")]));
        let said = text(&output.stderr);
        assert!(said.contains("linerate: cannot write to standard output: it is closed"), "{arguments}: {said}");
    }
    ended_with(0, linerate(&["ports"]).stdout(Stdio::null()).stderr(Stdio::piped()));
}

/// Errors, notes and messages that cannot be printed do not change the exit code.
#[test]
fn a_full_standard_error_is_no_panic() {
    for (code, arguments) in [
        (0, &["fwd", "faulty:sim:0", "null:", "--seconds", "0.2"][..]),
        (0, &["gen", "null:", "--rate", "999M", "--seconds", "0.3"]),
        (2, &["fwd", "eth0", "sim:1"]),
        (2, &["fwd"]),
        (1, &["sink", "pcap:/nowhere"]),
        (1, &["switch", "list"]),
    ] {
        let mut command = linerate(arguments);
        command.env("LINERATE_PORTS", "/nowhere").env("LINERATE_LOG", "trace");
        let status = end_of(&mut command.stdout(Stdio::null()).stderr(full()).spawn().unwrap());
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

/// `linerate … | head -1`: the reader is gone, and the run ends as after Ctrl-C.
#[test]
fn a_closed_standard_output_ends_the_run() {
    let mut command = linerate(&["fwd", "sim:0", "sim:1", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = Timely(child.stdout.take().unwrap());
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let output = output_of(child);
    assert_eq!((output.status.code(), text(&output.stderr).contains("panicked")), (Some(0), false));
}

/// A process that cannot create threads prints an error and its hint, and does not panic.
#[test]
fn threads_that_cannot_be_made_are_an_error() {
    for limit in 0..6 {
        for arguments in [
            "fwd sim:0 sim:1 --seconds 0.2",
            "fwd sim:0 sim:1 --queues 8 --seconds 0.2",
            "gen null: --queues 4 --seconds 0.2",
            "latency L{0 L}0 --seconds 0.2",
        ] {
            // The limit counts all threads of the user, so the test needs a user without any.
            let words = format!("prlimit --nproc={limit} setpriv --reuid 64123 --regid 64123 --clear-groups");
            let mut words = words.split(' ');
            let mut command = std::process::Command::new(words.next().unwrap());
            command.args(words).arg(copied()).args(arguments.split(' '));
            let output = command.output_in_time().unwrap();
            let said = text(&output.stderr);
            assert!(!said.contains("panicked"), "{arguments} with {limit}: {said}");
            match output.status.code() {
                Some(0) => {}
                // It started, but the machine was busy.
                Some(1) if said.contains("no frame was timed") => {}
                Some(1) => {
                    assert!(
                        said.contains("thread failed: Resource temporarily unavailable") && said.contains("ulimit -u"),
                        "{said}"
                    );
                    let printed = text(&output.stdout);
                    assert!(!printed.contains("reordered"), "a run that has not begun has no summary: {printed}");
                }
                code => panic!("{arguments} with {limit}: {code:?} {said}"),
            }
        }
    }
}

/// A process that cannot open more files reports this, and not missing hugepages.
#[test]
fn too_few_descriptors_are_an_error_of_that_name() {
    let (mut failed, mut worked) = (0, 0);
    for limit in 4..12 {
        for arguments in ["sink sim:0 --count 1", "gen sim:0 --count 1 --pages 2M", "gen tap:d0 --count 1"] {
            let words = format!("ulimit -n {limit}; exec \"$0\" {arguments} --seconds 60");
            let mut command = std::process::Command::new("unshare");
            let output =
                command.args(["-n", "sh", "-c", &words, env!("CARGO_BIN_EXE_linerate")]).output_in_time().unwrap();
            let said = text(&output.stderr);
            match output.status.code() {
                Some(0) => worked += 1,
                Some(1) if said.contains("Too many open files") => {
                    assert!(said.contains("\n  try: ulimit -n 4096"), "{arguments} with {limit}: {said}");
                    failed += 1;
                }
                // A machine without hugepages.
                Some(1) if said.contains("16 2 MiB hugepages are needed") => {}
                code => panic!("{arguments} with {limit}: {code:?} {said}"),
            }
        }
    }
    assert!(failed > 0 && worked > 0, "{failed} failed, {worked} worked");
}

/// Returns the path of the command in a folder where all users may run it.
fn copied() -> String {
    use std::os::unix::fs::PermissionsExt;
    static COPY: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let folder = COPY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        expect(
            0,
            std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_linerate")).arg(folder.path().join("linerate")),
        );
        folder
    });
    folder.path().join("linerate").display().to_string()
}

/// A pipe without data does not prevent the end of a command.
#[test]
fn a_template_comes_through_a_pipe() {
    let folder = Folder::new("template-pipe");
    let (pipe, file) = (folder.path("pipe"), folder.path("one.pcap"));
    expect(0, std::process::Command::new("mkfifo").arg(&pipe));
    let words = ["gen", "null:", "--template", &pipe, "--count", "5", "--json"];
    let mut waiting = Process::start(&mut linerate(&words));
    let tasks = format!("/proc/{}/task", waiting.id());
    let names = || std::fs::read_dir(&tasks).unwrap().flatten().map(|task| task.path().join("comm"));
    kit::until("a thread reads the pipe", || {
        names().any(|name| std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "capture"))
    });
    waiting.stop();
    waiting.await_error("no packet arrived");
    assert_eq!(waiting.ended().0, Some(1));

    expect(0, &mut linerate(&["gen", &format!("pcap:{file}?write"), "--count", "1"]));
    let waiting = Process::start(&mut linerate(&words));
    std::fs::copy(&file, &pipe).unwrap();
    let (code, shown) = waiting.ended();
    let summary = kit::summary(shown.as_bytes());
    assert_eq!(
        (code, &summary["packets"], &summary["ports"][0]["tx_bytes"]),
        (Some(0), &5.into(), &300.into()),
        "{summary}"
    );
}

/// A recording on a full disk ends the run immediately, and its packets do not count as lost.
#[test]
fn a_recording_that_cannot_be_written_ends_the_run() {
    let begin = Instant::now();
    let output =
        expect(1, &mut linerate(&["gen", "pcap:/dev/full?write", "--count", "1M", "--seconds", "100", "--json"]));
    let summary = kit::summary(&output.stdout);
    assert_eq!(summary["lost"], 0, "{summary}");
    let said = text(&output.stderr);
    assert!(said.contains("No space left") && said.contains("; it has 0 complete frames"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(50), "it does not wait for its time");
}

/// If a recording reaches the limit of the file size, the error has the number of frames in the file, without those
/// that were not yet written.
#[test]
fn a_recording_that_may_not_grow_ends_the_run() {
    let folder = Folder::new("limit");
    let file = folder.path("out.pcap");
    // The limit applies to the packet memory, too, which has 32 MiB.
    let mut command = std::process::Command::new("prlimit");
    command.args(["--fsize=40000000", env!("CARGO_BIN_EXE_linerate"), "gen", &format!("pcap:{file}?write")]);
    let output = expect(1, command.args(["--size", "1000", "--count", "1M", "--seconds", "100", "--json"]));
    let said = text(&output.stderr);
    let summary = kit::summary(&output.stdout);
    assert_eq!(summary["lost"], 0, "{said}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 40_000_000);
    // A record has a header of 16 bytes, and the frame without its CRC.
    let whole = (40_000_000 - 24) / (16 + 996);
    // Packets that the port got afterwards, or had not yet written, do not count as sent.
    let port = &summary["ports"][0];
    assert_eq!((&summary["packets"], &port["tx_packets"]), (&whole.into(), &whole.into()), "{summary}");
    assert_eq!(port["tx_bytes"], whole * 996, "{summary}");
    assert!(
        said.contains(&format!("cannot write it: File too large (os error 27); it has {whole} complete frames")),
        "{said}"
    );
}

#[test]
fn memory_that_may_not_be_as_long_is_an_error() {
    let mut command = std::process::Command::new("prlimit");
    let output = expect(1, command.args(["--fsize=1000000", env!("CARGO_BIN_EXE_linerate"), "gen", "null:"]));
    let said = text(&output.stderr);
    assert!(said.contains("File too large") && said.contains("\n  try: ulimit -f unlimited"), "{said}");
}

/// A card of another process continues after the end: its later frames are neither waited for nor lost, and the table
/// and the total are consistent.
#[test]
fn a_sender_that_does_not_stop_is_not_waited_for() {
    let folder = Folder::new("goes-on");
    let socket = folder.path("card");
    let mut server = Process::start(&mut linerate(&["sim", "--socket", &socket, "--wire", "traffic?rate=100k"]));
    server.await_error("-device");
    let port = format!("faulty:vfio-user:{socket}?drop=10%");
    let output = expect(1, &mut linerate(&["sink", &port, "--seconds", "1", "--json"]));
    let summary = kit::summary(&output.stdout);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let (received, lost) = (number(&summary["packets"]), number(&summary["lost"]));
    let table = number(&summary["ports"][0]["rx_packets"]);
    assert!(received > 0 && lost > 0, "{summary}");
    // A wait for missing frames would take five seconds, in which more arrive.
    let [active, seconds] = ["active_seconds", "seconds"].map(|key| summary[key].as_f64().unwrap());
    assert!(active < seconds + 2.5, "{summary}");
    // The ring and the port may hold frames that no thread has received, and the loss of the last dropped frames cannot
    // be noticed.
    let [injected, in_flight, no_descriptor] =
        ["injected", "in_flight", "no_descriptor"].map(|drop| summary["ports"][0]["drops"][drop].as_u64().unwrap_or(0));
    // While a thread waits for a processor, the card runs out of descriptors.
    assert!(lost <= injected + no_descriptor, "{summary}");
    assert!(table >= received && table <= received + injected + in_flight + 512, "{summary}");

    let output = expect(0, &mut linerate(&["gen", "null:", "--seconds", "0.3", "--json"]));
    let summary = kit::summary(&output.stdout);
    assert_eq!(summary["packets"], summary["ports"][0]["tx_packets"], "{summary}");
}

/// When the server of a card ends, the summary is shown, and then the error.
#[test]
fn a_card_that_goes_leaves_a_summary() {
    let folder = Folder::new("goes");
    let socket = folder.path("card");
    let mut server = Process::start(&mut linerate(&["sim", "--socket", &socket, "--wire", "traffic?rate=10k"]));
    server.await_error("-device");
    let mut sink = linerate(&["sink", &format!("vfio-user:{socket}"), "--seconds", "60", "--json"]);
    let mut sink = Process::start(&mut sink);
    // Wait for one second with packets.
    sink.await_output("\"ports\"");
    sink.await_output("\"ports\"");
    drop(server);
    sink.await_error("linerate: ");
    sink.await_error("the program that serves it has ended");
    let (code, shown) = sink.ended();
    let summary = kit::summary(shown.as_bytes());
    assert_eq!(code, Some(1));
    assert!(summary["packets"].as_u64() > Some(0), "{summary}");
    assert_eq!(summary["ports"][0]["rx_packets"], summary["packets"], "one number: {summary}");
    assert_eq!(summary["bounded_by"], format!("the end of vfio-user:{socket}"), "{summary}");
}

/// When the server of a port ends, the port's row and the total are equal, and its end is given as the reason.
#[test]
fn a_served_port_that_goes_leaves_one_number() {
    let folder = Folder::new("server-goes");
    let start = |arguments: &[&str]| Process::start(linerate(arguments).env("LINERATE_PORTS", folder.path("ports")));
    let mut server = start(&["serve"]);
    server.await_output("ports");
    let mut sender = start(&["gen", "vale0:a", "--rate", "99G", "--seconds", "60", "--json"]);
    // Wait for one second with packets.
    sender.await_output("\"ports\"");
    assert_eq!(server.interrupt().0, Some(0));
    let said = sender.await_error("the rate: ");
    let (code, shown) = sender.ended();
    let summary = kit::summary(shown.as_bytes());
    assert_eq!(code, Some(1), "{summary}");
    assert!(summary["packets"].as_u64() > Some(0), "{summary}");
    assert_eq!(summary["ports"][0]["tx_packets"], summary["packets"], "{summary}");
    assert_eq!(summary["bounded_by"], "the end of vale0:a", "{summary}");
    assert!(said.contains("bounded by the end of vale0:a"), "{said}");
}

/// An interrupted `latency` waits for frames in flight, and names the rates that were not measured.
#[test]
fn an_interrupted_latency_is_marked() {
    for rates in ["30", "10,20", "30,20,3"] {
        let rates: Vec<String> = rates.split(',').map(|rate| format!("{rate}Mbit")).collect();
        let mut command = linerate(&["latency", "sim:0", "sim:1", "--seconds", "60", "--json"]);
        command.args(["--rate", &rates.join(",")]);
        let mut latency = Process::start(&mut command);
        latency.await_error("packets/s of 64 bytes");
        // Wait until frames are in flight.
        std::thread::park_timeout(Duration::from_millis(300));
        latency.stop();
        let said = latency.await_error("interrupted at ");
        let (code, shown) = latency.ended();
        let summary = kit::summary(shown.as_bytes());
        assert_eq!((code, &summary["interrupted"]), (Some(1), &true.into()), "{summary}");
        let [first, rest @ ..] = &rates[..] else { unreachable!() };
        let first = first.replace("Mbit", " Mbit/s");
        assert!(said.contains(&format!("interrupted at {first}")), "{said}");
        assert_eq!(said.matches("not measured").count(), rest.len(), "{said}");
        assert_eq!(summary["unmeasured"].as_array().unwrap().len(), rest.len(), "{summary}");
        let [load] = &summary["loads"].as_array().unwrap()[..] else { panic!("{summary}") };
        assert_eq!((&load["lost"], &load["interrupted"]), (&0.into(), &true.into()), "{summary}");
    }
}

/// `bench` can be interrupted at any point, and its report is marked.
#[test]
fn an_interrupted_bench_is_marked() {
    for (number, name) in ["parts", "cores", "latency", "netmap", "imbalance"].into_iter().enumerate() {
        let folder = Folder::new(&format!("interrupted{number}"));
        let out = folder.path("report");
        let mut bench = Process::start(&mut linerate(&["bench", "--only", &format!("iommu,{name}"), "--out", &out]));
        bench.await_output("figure 9");
        // At different times of the next experiment, each of whose points takes six seconds.
        std::thread::park_timeout(Duration::from_millis(250 * number as u64));
        let begin = Instant::now();
        let (code, _) = bench.interrupt();
        // It takes one second on a machine with a free processor.
        assert!(begin.elapsed() < Duration::from_secs(20), "{name}: {:?}", begin.elapsed());
        assert_eq!(code, Some(1), "{name}");
        let read = |file: &str| std::fs::read_to_string(std::path::Path::new(&out).join(file)).unwrap();
        let report: serde_json::Value = serde_json::from_str(&read("bench.json")).unwrap();
        let report = &report["summary"];
        let names: Vec<_> = report["experiments"].as_array().unwrap().iter().map(|section| &section["name"]).collect();
        assert_eq!((&report["interrupted"], names), (&name.into(), vec![&"iommu".into()]), "{report}");
        assert!(read("index.html").contains(&format!("Interrupted in {name}: that and what follows are missing.")));
        assert!(!std::path::Path::new(&out).join(format!("{name}.csv")).exists(), "nothing is written as if measured");
    }
}

/// timeout(1) signals its child, and its process group right after: this counts as one signal, and the run prints its
/// summary.
#[test]
fn signals_at_once_are_one() {
    let mut process = Process::start(&mut linerate(&["fwd", "null:", "null:", "--json"]));
    process.await_error("link up");
    let pid = Pid::from_raw(process.id() as i32).unwrap();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let _ = kill_process(pid, signal);
    }
    let (code, shown) = process.ended();
    assert_eq!((code, &kit::summary(shown.as_bytes())["interrupted"]), (Some(0), &true.into()), "{shown}");
}

/// The second Ctrl-C ends a command that is still ending after the first.
#[test]
fn the_second_signal_ends_a_command_at_once() {
    // The end of the run waits two seconds for packets that are never sent.
    let mut process = Process::start(&mut linerate(&["gen", "sim:0?wire=none", "--json"]));
    process.await_output("ports");
    let pid = Pid::from_raw(process.id() as i32).unwrap();
    // Signals within the first 100 ms count as one.
    for _ in 0..30 {
        let _ = kill_process(pid, Signal::INT);
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(process.ended().0, Some(130));
}

/// A recording that fails at the wire of a served card is reported at the server's end.
#[test]
fn a_served_card_says_that_its_recording_failed() {
    let folder = Folder::new("recording-served");
    let socket = folder.path("card");
    let mut server =
        Process::start(&mut linerate(&["sim", "--socket", &socket, "--wire", "sink?record=/dev/full", "--json"]));
    server.await_error("-device");
    expect(0, &mut linerate(&["gen", &format!("vfio-user:{socket}"), "--count", "1000", "--seconds", "60"]));
    server.stop();
    server.await_error("cannot write it: No space left on device");
    assert_eq!(server.ended().0, Some(1));
}
