//! The measuring commands: `fwd --profile`, `latency`, `bench`, `rfc2544`. Their results depend on the machine, but the
//! format of the output and of the files does not.

mod kit;

use std::sync::atomic::{AtomicBool, Ordering};

use kit::{Namespace, OutputTimeout, Process, alone, expect, inside, linerate, summary, text, with_mounts};
use serde_json::Value;

/// Returns a number, which must be positive.
#[track_caller]
fn positive(value: &Value) -> f64 {
    let number = value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"));
    assert!(number > 0.0, "{number}");
    number
}

#[test]
fn a_profile_shows_the_cycles_of_each_part() {
    let output = expect(0, &mut linerate(&["fwd", "sim:p0", "sim:p1", "--count", "500000", "--profile", "--json"]));
    let profile = &summary(&output.stdout)["profile"];
    for part in ["receive", "touch", "send"] {
        positive(&profile[part]);
    }
    let output = expect(0, &mut linerate(&["fwd", "sim:p0", "sim:p1", "--count", "500000", "--profile"]));
    assert!(text(&output.stdout).contains("cycles/packet: receive "));
}

/// Checks that the quantiles of each load increase.
#[track_caller]
fn check_loads(output: &[u8], loads: usize) {
    let found = summary(output)["loads"].as_array().unwrap().clone();
    assert_eq!(found.len(), loads);
    for load in found {
        assert!(load["looked_at"].as_u64() > Some(100) && load["corrupted"] == 0, "{load}");
        let times = ["min", "median", "p90", "p99", "p99_9", "p99_99", "max"];
        let times = times.map(|name| load["microseconds"][name].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{load}");
    }
}

#[test]
fn latency_of_a_forwarder_is_measured_from_wire_to_wire() {
    let arguments = ["latency", "sim:l0", "sim:l1", "--rate", "20k,10Mbit", "--seconds", "0.5", "--json"];
    check_loads(&expect(0, &mut linerate(&arguments)).stdout, 2);
    let text = text(&expect(0, &mut linerate(&arguments[..7])).stdout);
    assert!(text.contains("through fwd") && text.contains("p99.99"), "{text}");
}

#[test]
fn latency_of_the_path_between_other_ports_is_measured() {
    for ports in [["L{0", "L}0"], ["valelat:a", "valelat:b"], ["sim:c0?wire=sim:c1", "sim:c1?wire=sim:c0"]] {
        let rest = ["--rate", "20k", "--size", "128", "--every", "2", "--seconds", "0.5", "--json"];
        let arguments = [&["latency"][..], &ports, &rest].concat();
        check_loads(&expect(0, &mut linerate(&arguments)).stdout, 1);
    }
}

/// The cards time frames over Ethernet, and over UDP between hosts; frames of the load are checked as usual.
#[test]
fn cards_time_the_frames_between_them() {
    let ports = ["sim:card0?wire=sim:card1", "sim:card1?wire=sim:card0"];
    let hosts = ["--address", "fd00::1/64,fd00::2/64", "--vlan", "7"];
    for more in [&["--both"][..], &hosts] {
        let rest = ["--stamps", "card", "--rate", "20k", "--size", "128", "--seconds", "1", "--json"];
        let output = expect(0, &mut linerate(&[&["latency"][..], &ports, &rest, more].concat()));
        let load = &summary(&output.stdout)["loads"][0];
        let timed = &load["by_card"];
        // On a busy machine, a thread may wait longer than a probe does.
        let completed = positive(&timed["sent"]) - timed["lost"].as_f64().unwrap();
        assert!(positive(&load["looked_at"]) <= completed && timed["unnoted"] == 0, "{load}");
        assert!(load["unstamped"] == 0 && positive(&load["arrived"]) > 100.0, "{load}");
        // It may be below the error of the clocks' comparison, and then be 0.
        assert!(load["microseconds"]["min"].as_f64() < load["microseconds"]["max"].as_f64(), "{load}");
    }
    for (ports, why) in [
        (["valelat:c", "valelat:d"], "valelat:c: --stamps card is for cards with a clock"),
        (["sim:card0", "sim:card1"], "wires of models note the times themselves"),
    ] {
        let said = text(&expect(2, &mut linerate(&[&["latency"][..], &ports, &["--stamps", "card"]].concat())).stderr);
        assert!(said.contains(why), "{said}");
    }
}

/// The histogram of each rate is written to a separate file, which is created before anything is measured.
#[test]
fn latency_writes_histograms_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.hgrm").display().to_string();
    let plot = folder.path().join("times.svg").display().to_string();
    let rest = ["--seconds", "1", "--json", "--histogram", &file, "--plot", &plot];
    let looked_at = |summary: &Value, n: usize| summary["loads"][n]["looked_at"].as_u64().unwrap();
    for rates in ["20k", "10k,20k"] {
        let arguments = [&["latency", "H{0", "H}0", "--rate", rates][..], &rest].concat();
        let summary = summary(&expect(0, &mut linerate(&arguments)).stdout);
        let names = if rates == "20k" { vec!["times.hgrm"] } else { vec!["times.1.hgrm", "times.2.hgrm"] };
        for (n, name) in names.into_iter().enumerate() {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.trim_start().starts_with("Value     Percentile TotalCount 1/(1-Percentile)"), "{text}");
            let total = text.split("Total count    =").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
            assert_eq!(total.trim().parse::<u64>().unwrap(), looked_at(&summary, n), "{text}");
        }
        // One line for each rate.
        let svg = std::fs::read_to_string(&plot).unwrap();
        assert_eq!(svg.matches("k packets/s").count(), rates.split(',').count(), "{svg}");
        assert!(svg.contains("99.9 %") && svg.contains("latency, µs"), "{svg}");
    }
    let said = text(&expect(1, &mut linerate(&["latency", "H{0", "H}0", "--histogram", "/nowhere/a.hgrm"])).stderr);
    assert!(said.contains("/nowhere/a.hgrm") && said.contains("No such file"), "{said}");
    // The results are printed even if the disk is full.
    let full = ["latency", "H{0", "H}0", "--rate", "20k", "--seconds", "1", "--json"];
    let output = expect(1, linerate(&full).args(["--histogram", "/dev/full", "--plot", "/dev/full"]));
    assert!(looked_at(&summary(&output.stdout), 0) > 0);
    let said = text(&output.stderr);
    assert!(said.contains("/dev/full: No space left"), "{said}");
    // A pipe without a reader.
    let pipe = folder.path().join("pipe").display().to_string();
    expect(0, std::process::Command::new("mkfifo").arg(&pipe));
    for option in ["--histogram", "--plot"] {
        let said = text(&expect(1, linerate(&full).args([option, &pipe])).stderr);
        assert!(said.contains("start its reader first"), "{said}");
    }
}

#[test]
fn latency_between_unconnected_ports_is_a_failure() {
    let arguments = ["latency", "null:", "vale7:n", "--seconds", "0.2", "--json"];
    let output = expect(1, &mut linerate(&arguments));
    assert_eq!(summary(&output.stdout)["loads"][0]["looked_at"], 0);
}

#[test]
fn a_report_has_tables_pictures_and_published_figures() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let arguments =
        ["bench", "--quick", "--only", "batch,parts,iommu,netmap", "--json", "--out", out.to_str().unwrap()];
    let output = expect(0, &mut linerate(&arguments));
    let report = summary(&output.stdout);
    let experiments = report["experiments"].as_array().unwrap();
    let names: Vec<_> = experiments.iter().map(|experiment| experiment["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["batch", "iommu", "parts", "netmap"]);
    let rows = experiments[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        positive(&row["packets/s"]);
        positive(&row["one processor, cycles/packet"]);
        positive(&row["cycles/packet"]);
        positive(&row["ixy, cycles/packet (published)"]);
    }
    assert_eq!(experiments[1]["rows"], Value::Array(Vec::new()), "an experiment without a result has no figures");
    assert!(experiments[1]["missing"].as_str().is_some_and(|why| why.contains("models have no IOMMU")));
    for row in experiments[3]["rows"].as_array().unwrap() {
        assert!(positive(&row["ns/packet"]) < 1e6, "packets arrive: {row}");
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(read("batch.csv").lines().count(), 10);
    assert!(read("batch.svg").starts_with("<svg") && read("bench.json").contains("\"machine\""));
    let page = read("index.html");
    for part in
        ["<svg", "figure 6", "table 2", "Not measured here", "ixy on two 82599", "ixy, 82599, 1.2 GHz (published)"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(!out.join("iommu.csv").exists(), "no file without figures");
    // The driver is compared with a bare loop of the same run.
    let parts = experiments[2]["rows"].as_array().unwrap();
    let sum = |name: &str| {
        let row = parts.iter().find(|row| row["cycles/packet"].as_str().is_some_and(|text| text.starts_with(name)));
        positive(&row.unwrap_or_else(|| panic!("{name}: {parts:?}"))["sum"])
    };
    for name in ["one processor, rounds", "a bare loop", "ixy", "DPDK"] {
        sum(name);
    }
    // Published figures are labelled.
    let ports = parts.iter().map(|row| row["cycles/packet"].as_str().unwrap());
    assert_eq!(ports.filter(|name| name.contains("1.2 GHz") && name.ends_with("(published)")).count(), 2);
    // The card compares figures of this run only, and has the machine, its state and the date.
    let card = read("share.svg");
    for part in ["viewBox=\"0 0 1200 ", "a bare loop over the descriptors", "driver on the model", "Linux", " machine"]
    {
        assert!(card.contains(part), "{part}: {card}");
    }
    assert!(!card.contains("ixy") && !card.contains("DPDK"), "{card}");
}

/// A machine whose processors other programs use is visible in the picture, on the page and in the text.
#[test]
fn a_busy_machine_is_visible_in_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..4 * processors {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let ended = linerate(&["bench", "--quick", "--only", "parts", "--out", &out]).output();
        is_over.store(true, Ordering::Relaxed);
        ended.unwrap()
    });
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    let warning = "processors were taken away: a thread waited for one for";
    assert!(said.contains(&format!("note: {warning}")), "{said}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("index.html").contains(&format!("Note: {warning}")));
    let card = read("share.svg");
    assert!(card.contains("Busy machine: ") && !card.contains("was quiet"), "{card}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    // It fails immediately; all experiments would take minutes.
    let output = expect(1, &mut linerate(&["bench", "--out", file.to_str().unwrap(), "--json"]));
    assert!(text(&output.stderr).contains("--out") && output.stdout.is_empty(), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("batch"), "{}", text(&output.stderr));
    // A separate disk for the process, on which files can be created but not written.
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=16k tmpfs $1; cat /dev/zero >$1/full 2>/dev/null; \
                  \"$2\" bench --only iommu --out $1/report; code=$?; ls -A $1/report >&2; exit $code";
    let output = expect(1, with_mounts(script).arg(&disk).arg(env!("CARGO_BIN_EXE_linerate")));
    let said = text(&output.stderr);
    assert!(said.contains("No space left") && said.lines().count() == 1, "the folder has a file: {said}");
    let output = expect(2, &mut linerate(&["bench", "--only", "batch,colour"]));
    assert!(text(&output.stderr).contains("'colour'") && text(&output.stderr).contains("imbalance"));
}

#[test]
fn a_batch_size_is_found_or_refused() {
    expect(0, &mut linerate(&["fwd", "sim:b0", "sim:b1", "--count", "2000000", "--batch", "auto", "--json"]));
    for size in ["0", "4097", "automatic"] {
        let output = expect(2, &mut linerate(&["fwd", "sim:b0", "sim:b1", "--batch", size]));
        assert!(text(&output.stderr).contains("1 to 4096, or auto"));
    }
}

/// A model at full speed exceeds the line rate, but the offered rate is at most the line rate.
#[test]
fn rfc2544_offers_no_more_than_the_line_carries() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report").display().to_string();
    let rest = ["--rate", "5M", "--sizes", "1518", "--only", "throughput", "--seconds", "0.3", "--json", "--out", &out];
    let report =
        summary(&linerate(&[&["rfc2544", "sim:l0", "sim:l1"][..], &rest].concat()).output_in_time().unwrap().stdout);
    assert!(positive(&report["experiments"][0]["rows"][0]["offered, packets/s"]) <= 812_750.0, "{report}");
}

/// All benchmarks of RFC 2544 over a cable between two models, which loses nothing at these rates, and between ports
/// that are not connected.
#[test]
fn rfc2544_measures_what_is_between_two_ports() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report").display().to_string();
    let rest = ["--rate", "20k", "--sizes", "64,1518", "--seconds", "0.3", "--json", "--out", &out];
    let arguments = [&["rfc2544", "sim:r0?wire=sim:r1", "sim:r1?wire=sim:r0"][..], &rest].concat();
    let report = summary(&expect(0, &mut linerate(&arguments)).stdout);
    let experiments = report["experiments"].as_array().unwrap();
    let names: Vec<_> = experiments.iter().map(|experiment| experiment["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["throughput", "latency", "variation", "loss", "back-to-back"]);
    for (n, size) in [64, 1518].into_iter().enumerate() {
        // The loss test ends after two rows, as two successive rates lose nothing.
        let rows = [n, n, n, 2 * n, n]
            .iter()
            .zip(experiments)
            .map(|(n, experiment)| &experiment["rows"][*n])
            .collect::<Vec<_>>();
        assert!(rows.iter().all(|row| row["bytes"] == size), "{report}");
        assert!(positive(&rows[0]["packets/s"]) <= 20_100.0 && rows[0]["% of the offered rate"] == 100.0, "{report}");
        assert!(positive(&rows[1]["min, µs"]) <= positive(&rows[1]["max, µs"]), "{report}");
        let [least, median, most] =
            ["min", "median", "max"].map(|name| rows[2][format!("IPDV {name}, µs")].as_f64().unwrap());
        assert!(
            rows[2]["PDV, µs"].as_f64().unwrap() >= 0.0 && least < 0.0 && least <= median && median <= most,
            "{report}"
        );
        assert!(rows[3]["% of the offered rate"] == 100 && rows[3]["lost, %"] == 0.0, "{report}");
        let next = &experiments[3]["rows"][2 * n + 1];
        assert!(next["% of the offered rate"] == 90 && next["lost, %"] == 0.0 && next["bytes"] == size, "{report}");
        assert!(rows[4]["frames"] == rows[4]["tried"] && positive(&rows[4]["frames"]) <= 40_200.0, "{report}");
    }
    for file in ["index.html", "rfc2544.json", "throughput.svg", "loss.csv"] {
        assert!(folder.path().join("report").join(file).exists(), "{file}");
    }
    let rest = ["--only", "throughput", "--resolution", "50%", "--rate", "1k", "--sizes", "64", "--seconds", "0.1"];
    let arguments = [&["rfc2544", "null:", "vale7:n", "--out", &out][..], &rest].concat();
    let output = expect(1, &mut linerate(&arguments));
    assert!(text(&output.stdout).contains("Throughput (RFC 2544, section 26.1)"));
    assert!(text(&output.stderr).contains("no frame of 64 bytes arrived: is null: linked to vale7:n?"));
}

/// An interrupted trial is not part of the report.
#[test]
fn rfc2544_that_is_interrupted_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let words = ["rfc2544", "I{0", "I}0", "--sizes", "64", "--rate", "1k", "--seconds", "100", "--json", "--out", &out];
    let mut process = Process::start(&mut linerate(&words));
    process.await_error("trials of 100 s");
    let (code, output) = process.interrupt();
    let report = summary(output.as_bytes());
    assert_eq!((code, &report["interrupted"]), (Some(1), &Value::from("frames of 64 bytes")), "{output}");
    let experiments = report["experiments"].as_array().unwrap();
    assert!(experiments.iter().all(|experiment| experiment["rows"].as_array().unwrap().is_empty()), "{report}");
    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert!(page.contains("Interrupted in frames of 64 bytes: that and what follows are missing."), "{page}");
}

/// The throughput of a Linux bridge is the rate of the token bucket filter behind it.
#[test]
fn rfc2544_finds_a_known_limit() {
    let _alone = alone();
    let namespace = Namespace::new("rfc");
    namespace.run("ip link add br0 type bridge");
    for (ours, bridged) in [("a0", "a1"), ("b0", "b1")] {
        namespace.run(&format!("ip link add {ours} type veth peer name {bridged}"));
        namespace.run(&format!("ip link set {bridged} master br0"));
        [ours, bridged].iter().for_each(|interface| namespace.disable_ipv6(interface));
        [ours, bridged].iter().for_each(|interface| drop(namespace.run(&format!("ip link set {interface} up"))));
    }
    namespace.disable_ipv6("br0");
    namespace.run("ip link set br0 up");
    // 60 bytes per frame make 20,833 frames per second. The queue has room for 20 ms of them, 1 % of a trial, as on a
    // busy machine frames come late and then in a burst.
    namespace.run("tc qdisc add dev b1 root tbf rate 10mbit burst 2kb limit 25kb");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let words = format!(
        "rfc2544 packet:a0 packet:b0 --only throughput --sizes 64 --rate 25k --resolution 0.5% --seconds 2 --json --out {out}"
    );
    let known = 10.0 / 480.0;
    // The filter never passes more. It passes less if frames come even later: then the report says that the machine was
    // busy.
    let mut is_busy = false;
    for _ in 0..5 {
        let report = summary(&expect(0, &mut inside(&namespace, &words)).stdout);
        let found = positive(&report["experiments"][0]["rows"][0]["packets/s"]) / 1e6;
        println!("found {found} of {known}: {:+.2} %", (found / known - 1.0) * 100.0);
        assert!(found < known * 1.03, "{found} of {known}: {report}");
        if found > known * 0.97 {
            return;
        }
        is_busy = report["experiments"][0]["warnings"].to_string().contains("processors were taken away");
    }
    assert!(is_busy, "never within 3 % of the limit");
}
