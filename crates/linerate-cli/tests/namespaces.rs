//! Real traffic: two Linux network namespaces, each with a TAP interface as the wire of a model, and `linerate fwd`
//! between the models.

mod kit;

use std::io::Write;
use std::process::Command;

use kit::{Folder, Namespace, Process, expect, frames, linerate, summary, text, write_frames};

/// `linerate fwd` between the namespaces, with addresses on both sides.
struct Link {
    left: Namespace,
    right: Namespace,
    /// The names of the TAP interfaces, which must be short.
    taps: [String; 2],
    forwarder: Process,
}

impl Link {
    fn up(test: &str, options: &[&str]) -> Link {
        let (left, right) = (Namespace::new(&format!("{test}l")), Namespace::new(&format!("{test}r")));
        let taps = ["l", "r"].map(|side| format!("lr{test}{side}{}", std::process::id() % 100_000));
        let [a, b] = [("l", &taps[0]), ("r", &taps[1])].map(|(side, tap)| format!("sim:{side}?wire=tap:{tap}"));
        let mut command = linerate(&["fwd", &a, &b, "--seconds", "180", "--json"]);
        let mut forwarder = Process::start(command.args(options));
        // The first line is printed once both TAPs exist and forwarding has begun.
        forwarder.await_output("ports");
        left.move_interface(&taps[0], &["10.82.0.1/24", "fd82::1/64"]);
        right.move_interface(&taps[1], &["10.82.0.2/24", "fd82::2/64"]);
        Link { left, right, taps, forwarder }
    }

    /// Sends Ctrl-C and checks the summary.
    fn down(self) {
        let (code, output) = self.forwarder.interrupt();
        assert_eq!(code, Some(0), "{output}");
        let summary = summary(output.as_bytes());
        assert_eq!((&summary["lost"], &summary["corrupted"], &summary["breaches"]), (&0.into(), &0.into(), &0.into()));
        for port in summary["ports"].as_array().unwrap() {
            assert!(port["rx_packets"].as_u64().unwrap() > 0 && port["tx_packets"].as_u64().unwrap() > 0);
            assert_eq!(port["drops"], serde_json::json!({}), "{summary}");
        }
    }
}

/// Returns incompressible bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns a frame with a VLAN tag after its addresses.
fn tag(mut generator: linerate::traffic::Generator) -> Vec<u8> {
    let mut frame = vec![0; generator.frame_len()];
    generator.fill(&mut frame);
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    frame
}

#[test]
fn ping_iperf_and_http_cross_two_models() {
    let link = Link::up("t", &[]);
    for size in [0, 18, 56, 700, 1400, 1472] {
        link.left.ping(5, &format!("-M do -s {size} 10.82.0.2"));
    }
    link.right.ping(5, "-s 1452 fd82::1");

    // TCP for ten seconds, with progress in each second.
    let mut server = link.right.start("iperf3 --server --one-off --forceflush");
    server.await_output("Server listening");
    let result = link.left.run("iperf3 --client 10.82.0.2 --time 10 --json");
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    let intervals = result["intervals"].as_array().unwrap();
    assert_eq!(intervals.len(), 10);
    for interval in intervals {
        assert!(interval["sum"]["bytes"].as_u64().unwrap() > 0, "a stall: {interval}");
    }

    // The download must equal the offered file.
    let folder = Folder::new("http");
    std::fs::File::create(folder.path("file")).unwrap().write_all(&noise(20 << 20)).unwrap();
    let _server = link.right.start(&format!("busybox httpd -f -p 80 -h {}", folder.0.display()));
    let target = folder.path("copy");
    link.left.run(&format!(
        "curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 -o {target} http://10.82.0.2/file"
    ));
    assert!(std::fs::read(&target).unwrap() == noise(20 << 20), "the download is not the file");
    link.down();
}

#[test]
fn a_capture_of_real_protocols_replayed_comes_out_byte_for_byte() {
    let folder = Folder::new("capture");
    let files = ["left", "right"].map(|side| folder.path(&format!("{side}.pcap")));
    let link = Link::up("c", &[]);
    // Captures of arriving frames on each side, as frames that leave are not padded yet.
    let mut captures: Vec<Process> = [(&link.left, 0), (&link.right, 1)]
        .into_iter()
        .map(|(side, n)| {
            side.start(&format!(
                "tcpdump -i {} -Q in -U -s 0 --immediate-mode -B 16384 -Z root -w {}",
                link.taps[n], files[n]
            ))
        })
        .collect();
    captures.iter_mut().for_each(|capture| drop(capture.await_error("listening on")));

    // The kernel may lack VLAN interfaces, but tcpreplay can send tagged frames anyway.
    let tagged = folder.path("tagged.pcap");
    write_frames(&tagged, &[64, 700, 1518].map(|size| tag(linerate::traffic::Generator::new(size, 1))));
    for (side, tap) in [(&link.left, &link.taps[0]), (&link.right, &link.taps[1])] {
        side.run(&format!("tcpreplay --quiet --intf1={tap} {tagged}"));
    }
    link.left.ping(5, "10.82.0.2");
    link.left.ping(5, "-s 1400 fd82::2");
    let _names = link.right.start(
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --bind-interfaces --user=root --pid-file \
         --listen-address=10.82.0.2 --address=/linerate.test/10.82.0.99",
    );
    let answer = link.left.run("dig +short +tries=20 +time=1 @10.82.0.2 linerate.test A");
    assert!(answer.contains("10.82.0.99"), "{answer}");
    std::fs::write(folder.path("page"), noise(50_000)).unwrap();
    let _pages = link.right.start(&format!("busybox httpd -f -p 80 -h {}", folder.0.display()));
    link.left.run("curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null http://10.82.0.2/page");
    captures.into_iter().for_each(|capture| drop(capture.interrupt()));
    link.down();

    for file in &files {
        let sent = frames(file);
        let has = |what: &str, test: &dyn Fn(&[u8]) -> bool| {
            assert!(sent.iter().any(|frame| test(frame)), "{what} is not among the {} frames of {file}", sent.len());
        };
        has("ARP", &|frame| frame[12..14] == [0x08, 0x06]);
        has("IPv4", &|frame| frame[12..14] == [0x08, 0x00]);
        has("IPv6", &|frame| frame[12..14] == [0x86, 0xDD]);
        has("VLAN", &|frame| frame[12..14] == [0x81, 0x00] && frame.len() == 1518);
        has("TCP", &|frame| frame[12..14] == [0x08, 0x00] && frame[23] == 6);
        // The captures have DNS packets: questions on one side, answers on the other.
        has("DNS", &|frame| frame[23] == 17 && (frame[34..36] == [0, 53] || frame[36..38] == [0, 53]));
        let out = folder.path("out.pcap");
        let (from, to) = (format!("sim:0?wire=pcap:{file}"), format!("sim:1?wire=sink&record={out}"));
        let count = sent.len().to_string();
        let output = expect(0, &mut linerate(&["fwd", &from, &to, "--count", &count, "--seconds", "60", "--json"]));
        assert_eq!(summary(&output.stdout)["ports"][1]["tx_packets"], sent.len(), "{}", text(&output.stdout));
        assert!(frames(&out) == sent, "{file} did not come out as it went in");
        // tcpdump accepts the recording, too.
        let listing = expect(0, Command::new("tcpdump").args(["-n", "-r", &out]));
        assert_eq!(
            text(&listing.stdout).lines().filter(|line| line.contains(" > ") || line.contains("ARP")).count(),
            sent.len()
        );
    }
}
