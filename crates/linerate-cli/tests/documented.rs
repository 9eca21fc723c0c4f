//! Runs the commands of README and docs unchanged, except for a time of half a second each, in a network namespace with
//! the interfaces that they name. Commands that need a card of the machine, or take minutes, are left out.

mod kit;

use std::path::Path;
use std::process::Command;

use kit::{Folder, Namespace, OutputTimeout, Process, alone, expect, pair, text, write_cases};

const PAGES: [(&str, &str); 17] = [
    ("README.md", include_str!("../../../README.md")),
    ("bench.md", include_str!("../../../docs/bench.md")),
    ("capture.md", include_str!("../../../docs/capture.md")),
    ("cards.md", include_str!("../../../docs/cards.md")),
    ("clusters.md", include_str!("../../../docs/clusters.md")),
    ("datapaths.md", include_str!("../../../docs/datapaths.md")),
    ("generate.md", include_str!("../../../docs/generate.md")),
    ("kernel.md", include_str!("../../../docs/kernel.md")),
    ("link.md", include_str!("../../../docs/link.md")),
    ("machines.md", include_str!("../../../docs/machines.md")),
    ("model.md", include_str!("../../../docs/model.md")),
    ("netmap.md", include_str!("../../../docs/netmap.md")),
    ("offloads.md", include_str!("../../../docs/offloads.md")),
    ("replay.md", include_str!("../../../docs/replay.md")),
    ("testing.md", include_str!("../../../docs/testing.md")),
    ("trust.md", include_str!("../../../docs/trust.md")),
    ("wires.md", include_str!("../../../docs/wires.md")),
];

/// Returns the lines of a page's shell examples, without comments. An empty line marks the end of a block.
fn commands(page: &str) -> Vec<String> {
    let (mut lines, mut is_shell) = (Vec::new(), false);
    for line in page.lines() {
        match (line, is_shell) {
            ("```sh", _) => is_shell = true,
            ("```", true) => {
                is_shell = false;
                lines.push(String::new());
            }
            (_, true) => lines.push(line.split("  #").next().unwrap_or(line).trim().to_string()),
            _ => {}
        }
    }
    lines
}

/// Returns whether a line is a command of linerate that can be run on any machine.
fn can_run(line: &str) -> bool {
    let line = line.trim_start_matches("sudo ").trim_start_matches("LINERATE_LOG=debug ");
    // Left out: cards of the machine, measurements of minutes, and a command that the text on bind explains; virtual
    // machines and their peers, which the guests' tests cover; commands at ports, which the tests of exec cover.
    let needs_machine = ["linerate vm ", "virtio-user:", "memif:", "vhost:/run/", "stream:", " -- "]
        .iter()
        .any(|part| line.contains(part));
    line.starts_with("linerate ")
        && !line.contains("0000:")
        && !line.starts_with("linerate bench")
        && (!line.starts_with("linerate rfc2544") || line.contains("--resolution"))
        && !line.contains("bind")
        && !needs_machine
}

/// A namespace with the interfaces of the examples, and a folder for their files.
struct Place {
    here: Namespace,
    _far: Namespace,
    /// Grants addresses to eth0 and eth1.
    _dnsmasq: Process,
    folder: Folder,
}

impl Place {
    fn new() -> Place {
        let (here, far, folder) = (Namespace::new("doc"), Namespace::new("dof"), Folder::new("documented"));
        for (net, name) in ["eth0", "eth1", "veth0", "veth1"].into_iter().enumerate() {
            pair((&here, name), (&far, &format!("f{net}")), net as u8);
            if name != "eth0" {
                here.run(&format!("ip address flush dev {name}"));
            }
        }
        // The way between eth0 and eth1.
        far.script("echo 1 >/proc/sys/net/ipv4/ip_forward");
        far.run("ip -6 address add fd87::2/64 dev f0 nodad");
        let mut dnsmasq = far.start(&format!(
            "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --user=root --pid-file --bind-interfaces \
             --interface=f0 --interface=f1 --log-facility=- --dhcp-leasefile={} --enable-ra \
             --dhcp-range=10.87.0.50,10.87.0.60,255.255.255.0,1h --dhcp-range=10.87.1.50,10.87.1.60,255.255.255.0,1h \
             --dhcp-range=fd87::,ra-only,64,1h",
            folder.path("leases")
        ));
        dnsmasq.await_error("router advertisement on fd87::");
        write_cases(&folder);
        // A capture of `tcpdump -i any`.
        std::fs::rename(folder.path("sll113.pcap"), folder.path("any.pcap")).unwrap();
        std::fs::create_dir(folder.path("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_linerate"), folder.path("bin/linerate")).unwrap();
        Place { here, _far: far, _dnsmasq: dnsmasq, folder }
    }

    /// Returns a line of a page as a command, which ends after a short time unless the line limits it.
    fn command(&self, line: &str) -> Command {
        let line = line.trim_start_matches("sudo ").trim_end_matches('&').trim();
        let runs = ["fwd", "link", "filter", "gen", "replay", "sink", "capture", "latency"]
            .iter()
            .any(|word| line.contains(&format!("linerate {word} ")));
        let time = if runs && !line.contains("--seconds") && !line.contains("--count") { " --seconds 0.5" } else { "" };
        let line = line.strip_prefix("linerate ").map_or(line.to_string(), |rest| format!("exec linerate {rest}"));
        let line = line.replace("/tmp/a", &self.folder.path("a"));
        let place = self.folder.0.display();
        let mut command = self.here.command("sh -c");
        command.arg(format!("cd '{place}'; PATH='{place}/bin':$PATH; {line}{time}"));
        command.env("LINERATE_PORTS", self.folder.path("ports"));
        // Commands install files there.
        command.env("HOME", &self.folder.0).env_remove("XDG_CONFIG_HOME");
        command
    }

    /// Runs a line to its end. It may fail only because of lost packets, due to faults or a busy machine.
    fn run(&self, page: &str, line: &str) {
        // Half a second is enough, and a tenth for each of many trials.
        let seconds = if line.starts_with("linerate rfc2544") { 0.1 } else { 0.5 };
        let line = line.split_once("--seconds ").map_or(line.to_string(), |(command, rest)| {
            let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
            format!("{command}--seconds {seconds} {rest}")
        });
        let output = self.command(&line).output_in_time().unwrap();
        let (shown, said) = (text(&output.stdout), text(&output.stderr));
        let lost =
            || [&shown, &said].iter().any(|text| text.contains("\nlost ") && !text.contains("\nlost 0, corrupted 0"));
        let is_good = output.status.code() == Some(0) || output.status.code() == Some(1) && lost();
        assert!(is_good && !said.contains("panicked"), "{page}: {line}\n{:?}\n{shown}{said}", output.status);
    }
}

#[test]
fn documented_commands_run_as_they_stand() {
    let _alone = alone();
    let place = Place::new();
    let mut count = 0;
    for (page, text) in PAGES {
        // Servers of a block, and other commands that run in the background.
        let mut beside: Vec<Process> = Vec::new();
        for line in commands(text) {
            if line.is_empty() {
                beside.clear();
            } else if can_run(&line) {
                count += 1;
                let socket = place.folder.path("a");
                if line.starts_with("linerate sim ") {
                    let mut process = Process::start(&mut place.command(&line));
                    process.await_error("-device");
                    assert!(Path::new(&socket).exists());
                    beside.push(process);
                } else if line.starts_with("linerate serve") {
                    let mut process = Process::start(&mut place.command(&line));
                    process.await_output("ports/");
                    beside.push(process);
                } else if line.ends_with('&') {
                    let mut process = Process::start(&mut place.command(&line));
                    if line.contains("--control") {
                        process.await_error("control: ");
                    }
                    beside.push(process);
                } else if line.contains("vale") && beside.is_empty() {
                    // The line needs the server of an earlier block.
                    let mut server = Process::start(&mut place.command("linerate serve"));
                    server.await_output("ports/");
                    place.run(page, &line);
                } else {
                    place.run(page, &line);
                }
            }
        }
    }
    assert!(count >= 30, "{count} commands were found");
}

/// Third-party programs that the docs run on linerate's ports.
const PROGRAMS: [&str; 6] = ["tcpdump", "dumpcap", "tcpreplay", "arp-scan", "python3", "tshark"];

/// The docs' lines with other programs run unchanged, with the shared object that they name, or Wireshark's interfaces.
/// Programs that do not end by themselves are stopped after a while.
#[test]
fn documented_programs_run_as_they_stand() {
    let _alone = alone();
    let place = Place::new();
    // At the path in the docs.
    std::fs::create_dir_all(place.folder.path("target/release")).unwrap();
    let object = "liblinerate_pcap.so";
    let built = std::env::current_exe().unwrap().with_file_name(object);
    std::os::unix::fs::symlink(built, place.folder.path(&format!("target/release/{object}"))).unwrap();
    place.run("", "linerate gen pcap:in.pcap?write --count 100");
    let pages = [
        ("README.md", include_str!("../../../README.md")),
        ("pcap.md", include_str!("../../../docs/pcap.md")),
        ("extcap.md", include_str!("../../../docs/extcap.md")),
    ];
    let mut count = 0;
    for (page, block) in pages.iter().flat_map(|(page, text)| {
        let lines = commands(text).join("\n");
        lines.split("\n\n").map(|block| (*page, block.to_string())).collect::<Vec<_>>()
    }) {
        let words_of = |line: &str| line.split(' ').find(|word| !word.contains("PRELOAD")).unwrap_or("").to_string();
        if !block.lines().any(|line| PROGRAMS.contains(&&*words_of(line))) {
            continue;
        }
        let (mut beside, mut exported) = (Vec::new(), String::new());
        if block.contains("vale0") && !block.contains("linerate serve") {
            let mut server = Process::start(&mut place.command("linerate serve"));
            server.await_output("ports/");
            beside.push(server);
        }
        if block.contains("vale0:a+rt") && !block.contains(" vale0:a ") {
            // The program whose port is monitored.
            let mut user = Process::start(&mut place.command("linerate sink vale0:a --seconds 60"));
            user.await_output("s ");
            beside.push(user);
        }
        for line in block.lines() {
            if line.starts_with("export ") {
                exported = format!("{line}; ");
            } else if line.ends_with('&') {
                let is_server = line.starts_with("linerate serve");
                let mut process = Process::start(&mut place.command(&line.replace('&', "--seconds 60")));
                process.await_output(if is_server { "ports/" } else { "s " });
                beside.push(process);
            } else if PROGRAMS.contains(&&*words_of(line)) {
                count += 1;
                let has_end = !line.contains("'udp port 53'");
                // Debian's Python, for which Debian's scapy is installed.
                let line = line.replace("python3", "/usr/bin/python3");
                let line =
                    line.strip_prefix("LD_PRELOAD=").map_or(line.clone(), |rest| format!("env LD_PRELOAD={rest}"));
                // dumpcap's ten seconds.
                let line = line.replace("duration:10", "duration:1");
                let seconds = if has_end { 60 } else { 3 };
                let output = place.command(&format!("{exported}timeout {seconds} {line}")).output_in_time().unwrap();
                let code = if has_end { 0 } else { 124 };
                let said = text(&output.stdout) + &text(&output.stderr);
                // tcpdump succeeds when it is stopped.
                let is_good = output.status.code() == Some(code) || !has_end && output.status.success();
                assert!(is_good, "{page}: {line}\n{:?}\n{said}", output.status);
            } else if line.starts_with("linerate ") {
                place.run(page, line);
            }
        }
    }
    assert!(count >= 12, "{count} commands were found");
}

/// README asks for the version of Rust that Cargo.toml requires.
#[test]
fn readme_names_the_required_rust() {
    let asks = format!("Rust must be {} or newer", env!("CARGO_PKG_RUST_VERSION"));
    assert!(include_str!("../../../README.md").contains(&asks), "{asks}");
}

/// The README's first commands succeed.
#[test]
fn the_first_commands_succeed() {
    let words = ["fwd", "sim:0", "sim:1", "--seconds", "1"];
    expect(0, &mut kit::linerate(&words));
    expect(0, &mut kit::linerate(&["ports"]));
    expect(
        0,
        &mut kit::linerate(&["gen", "sim:0?wire=sink", "--rate", "14.88M", "--flows", "100", "--seconds", "0.5"]),
    );
    expect(
        0,
        &mut kit::linerate(&[
            "latency",
            "sim:0",
            "sim:1",
            "--rate",
            "100k,1M",
            "--wait",
            "adaptive",
            "--seconds",
            "0.5",
        ]),
    );
}
