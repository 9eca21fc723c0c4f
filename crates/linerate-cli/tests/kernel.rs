//! Ports on the kernel's interfaces, between namespaces: Linux is at both ends, and keeps the rest of the traffic.

mod kit;

use std::io::Write;

use kit::{
    Folder, Namespace, OutputTimeout, Process, alone, expect, frames, inside, pair, summary, text, write_frames,
};
use linerate::traffic::Generator;
use serde_json::Value;

/// Writes a file with one frame like the generator's, but addressed to a kernel interface: its MAC address, 10.87.0.1,
/// and port 4321.
fn template(folder: &Folder, namespace: &Namespace, interface: &str) -> String {
    let mut frame = vec![0; 60];
    Generator::new(64, 1).fill(&mut frame);
    let mac = namespace.run(&format!("cat /sys/class/net/{interface}/address"));
    for (byte, digits) in frame.iter_mut().zip(mac.trim().split(':')) {
        *byte = u8::from_str_radix(digits, 16).unwrap();
    }
    frame[26..34].copy_from_slice(&[10, 87, 0, 2, 10, 87, 0, 1]);
    frame[36..38].copy_from_slice(&4321u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    frame[24..26].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
    let file = folder.path("template.pcap");
    write_frames(&file, &[frame]);
    file
}

/// Returns a counter of the kernel (`nstat`).
fn counter(namespace: &Namespace, protocol: &str, name: &str) -> u64 {
    let text = namespace.run("cat /proc/net/snmp");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{protocol}:"))).collect();
    let (names, values) = (lines[0].split_whitespace(), lines[1].split_whitespace());
    let found = names.zip(values).find(|(of, _)| *of == name).unwrap_or_else(|| panic!("no {name}"));
    found.1.parse().unwrap()
}

/// 400,000 packets of a flow are received while ping, TCP and a download continue.
#[test]
fn a_flow_is_received_and_the_rest_stays_with_the_kernel() {
    let _alone = alone();
    const COUNT: u64 = 400_000;
    let (host, far) = (Namespace::new("xh"), Namespace::new("xf"));
    pair((&host, "h0"), (&far, "f0"), 0);
    let folder = Folder::new("flow");
    let template = template(&folder, &host, "h0");
    std::fs::File::create(folder.path("file")).unwrap().write_all(&vec![0x5A; 4 << 20]).unwrap();

    // With a queueing discipline, the pair makes the sender wait instead of dropping packets (since Linux 6.16).
    far.run("tc qdisc add dev f0 root pfifo");
    let count = format!("--count {COUNT} --seconds 40 --json");
    let mut sink = Process::start(&mut inside(&host, &format!("sink xdp:h0?flow=udp:4321&ring=4096 {count}")));
    sink.await_error("link up");
    let generator = format!("gen xdp:f0 --template {template} --flows 4 --rate 100k {count}");
    let generator = Process::start(&mut inside(&far, &generator));

    // Other traffic is paced, as the kernel would drop bursts that exceed the pair's queue of 256.
    far.ping(5, "10.87.0.1");
    let mut server = host.start("iperf3 --server --one-off --forceflush");
    server.await_output("Server listening");
    let result: Value =
        serde_json::from_str(&far.run("iperf3 --client 10.87.0.1 --bytes 20M --bitrate 200M --json")).unwrap();
    assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(20 << 20), "{result}");
    let _web = host.start(&format!("busybox httpd -f -p 80 -h {}", folder.0.display()));
    let copy = folder.path("copy");
    let fetch = "curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 --limit-rate 10M";
    far.run(&format!("{fetch} -o {copy} http://10.87.0.1/file"));
    assert!(std::fs::read(&copy).unwrap() == vec![0x5A; 4 << 20], "the download is not the file");

    let (code, said) = generator.ended();
    assert_eq!(code, Some(0), "{said}");
    let (_, said) = sink.ended();
    let sink = summary(said.as_bytes());
    // The only losses are the drops counted by the pair, and by the port when its thread lacked a processor.
    let dropped: u64 = far.run("cat /sys/class/net/f0/statistics/tx_dropped").trim().parse().unwrap();
    let port = &sink["ports"][0];
    let of_port = port["drops"]["no_descriptor"].as_u64().unwrap_or(0);
    println!("the pair has dropped {dropped}, the port {of_port}");
    assert_eq!(port["rx_packets"].as_u64(), Some(COUNT - dropped - of_port), "{sink}");
    assert!(of_port < COUNT / 4, "{sink}");
    assert_eq!((&sink["corrupted"], &sink["reordered"]), (&0.into(), &0.into()));
    // UDP port 4321 is not open, so the kernel would have counted any packet that reached it.
    assert_eq!(counter(&host, "Udp", "NoPorts"), 0);
    // No XDP program is left attached.
    assert!(!host.run("ip -d link show h0").contains("xdp"));
}

/// Two Linux namespaces, and one between them whose two interfaces are joined by `linerate fwd`.
struct Between {
    left: Namespace,
    right: Namespace,
    _middle: Namespace,
    forwarder: Process,
}

impl Between {
    /// Uses veth pairs. `ports` are the names in the middle, whose interfaces are m0 and m1.
    fn with_veth(test: &str, mtu: usize, ports: &str) -> Between {
        let [left, middle, right] = ["l", "m", "r"].map(|side| Namespace::new(&format!("{test}{side}")));
        for (here, there, outer) in [("m0", "l0", &left), ("m1", "r0", &right)] {
            pair((&middle, here), (outer, there), 1);
            middle.run(&format!("ip address flush dev {here}"));
            middle.run(&format!("ip link set {here} mtu {mtu}"));
        }
        let forwarder = Process::start(&mut inside(&middle, &forward(mtu, ports)));
        Between { left, right, _middle: middle, forwarder }.connected(["l0", "r0"], mtu)
    }

    /// Uses TAP interfaces l0 and r0, which `ports` create.
    fn with_taps(test: &str, mtu: usize, ports: &str) -> Between {
        let [left, middle, right] = ["l", "m", "r"].map(|side| Namespace::new(&format!("{test}{side}")));
        let forwarder = Process::start(&mut inside(&middle, &forward(mtu, ports)));
        let mut between = Between { left, right, _middle: middle, forwarder };
        between.forwarder.await_output("ports");
        for (tap, outer) in [("l0", &between.left), ("r0", &between.right)] {
            between._middle.run(&format!("ip link set {tap} netns {}", outer.name));
        }
        between.addressed(["l0", "r0"], mtu)
    }

    /// Waits for the forwarder.
    fn connected(mut self, interfaces: [&str; 2], mtu: usize) -> Between {
        self.forwarder.await_output("ports");
        self.addressed(interfaces, mtu)
    }

    /// Gives both ends addresses of one network.
    fn addressed(self, interfaces: [&str; 2], mtu: usize) -> Between {
        for (namespace, interface, host) in [(&self.left, interfaces[0], 1), (&self.right, interfaces[1], 2)] {
            namespace.run("ip link set lo up");
            namespace.run(&format!("ip address flush dev {interface}"));
            namespace.run(&format!("ip link set {interface} mtu {mtu} up"));
            namespace.run(&format!("ip address add 10.88.0.{host}/24 dev {interface}"));
            namespace.run(&format!("ip address add fd88::{host}/64 dev {interface} nodad"));
        }
        self
    }

    /// Sends 55 datagrams as one, which Linux leaves to the card to segment (`UDP_SEGMENT`), if the interface can.
    fn carries_large_datagrams(&self) {
        const RECEIVE: &str = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
            s.setsockopt(1, 8, 200000); s.bind(('10.88.0.2', 4433)); s.settimeout(20); print('ready', flush=True); \
            all = [s.recv(2000) for n in range(55)]; assert [len(one) for one in all] == [1000] * 54 + [500], all; \
            assert b''.join(all) == bytes(i % 251 for i in range(54500))";
        const SEND: &str = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
            s.setsockopt(17, 103, 1000); s.sendto(bytes(i % 251 for i in range(54500)), ('10.88.0.2', 4433))";
        let mut receiver = Process::start(self.right.command("/usr/bin/python3 -c").arg(RECEIVE));
        receiver.await_output("ready");
        expect(0, self.left.command("/usr/bin/python3 -c").arg(SEND));
        assert_eq!(receiver.ended().0, Some(0), "datagrams are missing, or wrong");
    }

    /// Sends pings of many sizes, TCP in both directions, and UDP, and ends the forwarder.
    fn carries_all(self, mtu: usize) {
        for size in [0, 1, 18, 56, 700, 1472, 1473, 1900, 4000, 8972].into_iter().filter(|size| size + 28 <= mtu) {
            self.left.ping(3, &format!("-M do -s {size} 10.88.0.2"));
        }
        self.right.ping(3, &format!("-s {} fd88::1", mtu - 48));
        // The sockets have room for all data, as far as Linux allows, so that a late receiver loses nothing.
        let most = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap();
        let window = ["rmem_max", "wmem_max"].map(|name| most(name).trim().parse::<u64>().unwrap());
        let datagrams = format!("--udp --bitrate 20M --bytes 2M --window {}", window[0].min(window[1]).min(2_000_000));
        for (to, options) in [
            ("10.88.0.2", "--bytes 20M"),
            ("10.88.0.2", "--bytes 20M --reverse"),
            ("fd88::2", "--bytes 5M"),
            ("10.88.0.2", &datagrams),
        ] {
            // One server per test, as a server briefly stops listening between two tests.
            let mut server = self.right.start("iperf3 --server --one-off --forceflush");
            server.await_output("Server listening");
            let result = self.left.run(&format!("iperf3 --client {to} {options} --json --connect-timeout 5000"));
            let result: Value = serde_json::from_str(&result).unwrap();
            let end = &result["end"];
            let sent = end["sum_sent"]["bytes"].as_u64().or(end["sum"]["bytes"].as_u64());
            assert!(sent >= Some(2_000_000), "{options}: {result}");
            if options.contains("udp") {
                // Datagrams for which the receiver's socket had no room were not lost in transit.
                let unread = counter(&self.right, "Udp", "RcvbufErrors");
                assert_eq!(end["sum"]["lost_packets"], 0, "{unread} at the receiver's socket: {result}");
            }
        }
        self.carries_large_datagrams();
        let (code, said) = self.forwarder.interrupt();
        assert_eq!(code, Some(0), "{said}");
        let summary = summary(said.as_bytes());
        assert!(summary["ports"][0]["rx_packets"].as_u64() > Some(100), "{summary}");
    }
}

fn forward(mtu: usize, ports: &str) -> String {
    format!("fwd {ports} --seconds 180 --json --mtu {mtu} --ring 4096")
}

#[test]
fn traffic_crosses_two_xdp_ports() {
    let _alone = alone();
    let between = Between::with_veth("x", 1500, "xdp:m0 xdp:m1");
    between.carries_all(1500);
}

#[test]
fn long_frames_cross_two_xdp_ports_that_sleep() {
    let _alone = alone();
    let between = Between::with_veth("j", 9000, "xdp:m0 xdp:m1 --wait interrupt");
    between.carries_all(9000);
}

#[test]
fn traffic_crosses_two_packet_ports() {
    let _alone = alone();
    let between = Between::with_veth("p", 1500, "packet:m0 packet:m1");
    between.carries_all(1500);
}

/// Checksums and segmentation that a sender leaves to the card are passed on, or done by the port.
#[test]
fn pending_offloads_are_done_or_passed_on() {
    let _alone = alone();
    for (test, ports) in [
        ("q", "packet:m0 packet:m1"),
        ("h", "packet:m0?offloads=on packet:m1"),
        ("o", "packet:m0?offloads=on packet:m1?offloads=on --wait interrupt"),
    ] {
        let between = Between::with_veth(test, 9000, ports);
        between.left.run("ethtool -K l0 tx on tso on gso on");
        between.right.run("ethtool -K r0 tx on tso on gso on");
        between.carries_all(9000);
    }
}

/// Tags and every byte of frames of all sizes are preserved between ports of all kinds.
#[test]
fn frames_cross_byte_for_byte() {
    let _alone = alone();
    let folder = Folder::new("bytes");
    let mut sent = Vec::new();
    for size in (60..=1514).step_by(97).chain((1515..=9014).step_by(833)) {
        let mut frame: Vec<u8> = (0..size).map(|n| (n * 31 + size) as u8).collect();
        // An address that Linux ignores, and a protocol to which it does not reply.
        frame[..14].copy_from_slice(&[0x02, 1, 1, 1, 1, 1, 0x02, 2, 2, 2, 2, 2, 0x88, 0xB5]);
        sent.push(frame.clone());
        if size < 9010 {
            frame.splice(12..12, [0x81, 0x00, 0xA0, 0x07]);
            sent.push(frame);
        }
    }
    let file = folder.path("sent.pcap");
    write_frames(&file, &sent);
    for ports in ["xdp:m0 xdp:m1", "packet:m0 packet:m1", "packet:m0 xdp:m1", "xdp:m0 packet:m1"] {
        let between = Between::with_veth("b", 9000, ports);
        let capture = folder.path("came.pcap");
        let filter = "ether proto 0x88b5 or (vlan and ether proto 0x88b5)";
        // Each slot of tcpdump's ring has room for an uncut packet: its usual 2 MiB are 32 frames, too few on a busy
        // machine.
        let options = "-Q in -U -s 0 --immediate-mode -B 16384 -Z root";
        let dump = format!("tcpdump -i r0 {options} -c {} -w {capture}", sent.len());
        let mut dump = Process::start(between.right.command(&dump).arg(filter));
        dump.await_error("listening on");
        between.left.run(&format!("tcpreplay --quiet --pps 1000 --intf1 l0 {file}"));
        assert_eq!(dump.ended().0, Some(0));
        let came = frames(&capture);
        assert_eq!(came.len(), sent.len(), "{ports}");
        for (came, sent) in came.iter().zip(&sent) {
            assert!(came == sent, "{ports}: {} and {} bytes: {came:x?}, {sent:x?}", came.len(), sent.len());
        }
        between.forwarder.interrupt();
    }
}

#[test]
fn traffic_crosses_ports_of_different_kinds() {
    let _alone = alone();
    let between = Between::with_veth("y", 1500, "xdp:m0 packet:m1 --wait interrupt");
    between.carries_all(1500);
}

#[test]
fn traffic_crosses_two_taps() {
    let _alone = alone();
    let between = Between::with_taps("t", 1500, "tap:l0 tap:r0");
    between.carries_all(1500);
}

/// Checksums and segmentation are left to the other end's kernel, on several queues.
#[test]
fn packets_cross_two_taps_uncut() {
    let _alone = alone();
    let between = Between::with_taps("u", 9000, "tap:l0 tap:r0 --offloads --queues 2 --wait adaptive");
    assert!(between.left.run("ethtool -k l0").contains("tcp-segmentation-offload: on"));
    between.carries_all(9000);
}

/// Checksums and segmentation that Linux leaves to a port are done before a port that cannot do them: a card, here a
/// model.
#[test]
fn a_port_without_offloads_segments() {
    let _alone = alone();
    let between = Between::with_taps("s", 1500, "tap:l0?offloads=on sim:cut?wire=tap:r0?offloads=on");
    for (namespace, tap) in [(&between.left, "l0"), (&between.right, "r0")] {
        assert!(namespace.run(&format!("ethtool -k {tap}")).contains("tcp-segmentation-offload: on"));
    }
    between.carries_all(1500);
}

/// A card driven by linerate, here a model, appears as a Linux interface with its address.
#[test]
fn linux_uses_a_card_through_its_twin() {
    let _alone = alone();
    let [outside, inside_of] = ["co", "ci"].map(Namespace::new);
    let command = forward(1500, "sim:card?wire=tap:w0 host:twin");
    let mut forwarder = Process::start(&mut inside(&inside_of, &command));
    // A model's MAC address is derived from its name, and begins with these bytes.
    assert!(forwarder.await_error("host:twin").contains(" 02:82:59:"));
    forwarder.await_output("ports");
    inside_of.run(&format!("ip link set w0 netns {}", outside.name));
    let between = Between { left: outside, right: inside_of, _middle: Namespace::new("cm"), forwarder };
    let between = between.addressed(["w0", "twin"], 1500);
    between.carries_all(1500);
}

/// One flow of the packets that a card receives is forwarded to a port, and Linux gets the rest.
#[test]
fn a_flow_is_forwarded_and_linux_gets_the_rest() {
    let _alone = alone();
    const COUNT: u64 = 2_000;
    let folder = Folder::new("rest");
    let [outside, linux, flow] = ["ro", "rl", "rf"].map(Namespace::new);
    let command =
        "fwd sim:rest?wire=tap:w0 tap:flow0 --only udp:4321 --rest host:twin --wait interrupt --seconds 60 --json";
    let mut forwarder = Process::start(&mut inside(&linux, command));
    forwarder.await_output("ports");
    linux.run(&format!("ip link set w0 netns {}", outside.name));
    linux.run(&format!("ip link set flow0 netns {}", flow.name));
    outside.run("ip link set w0 up");
    flow.run("ip link set flow0 up");
    outside.run("ip address add 10.87.0.2/24 dev w0");
    linux.run("ip link set lo up");
    linux.run("ip address add 10.87.0.1/24 dev twin");
    let template = template(&folder, &linux, "twin");

    let mut sink = Process::start(&mut inside(
        &flow,
        &format!("sink packet:flow0?flow=udp:4321 --count {COUNT} --seconds 20 --json"),
    ));
    sink.await_error("link up");
    let generator = format!("gen packet:w0 --template {template} --count {COUNT} --rate 10k --seconds 20");
    let generator = Process::start(&mut inside(&outside, &generator));
    outside.ping(20, "10.87.0.1");
    assert_eq!(generator.ended().0, Some(0));
    let (code, said) = sink.ended();
    let sink = summary(said.as_bytes());
    assert_eq!(
        (code, sink["ports"][0]["rx_packets"].as_u64(), sink["reordered"].as_u64()),
        (Some(0), Some(COUNT), Some(0)),
        "{sink}"
    );
    // Packets that the flow's port receives are not forwarded.
    assert_eq!(counter(&linux, "Udp", "NoPorts"), 0);
    let (_, said) = forwarder.interrupt();
    let summary = summary(said.as_bytes());
    assert!(summary["ports"][2]["tx_packets"].as_u64() >= Some(20), "{summary}");
    assert!(summary["filtered"].as_u64() >= summary["ports"][2]["tx_packets"].as_u64(), "{summary}");
}

/// A checksum that Linux leaves to one port is left to Linux at the other.
#[test]
fn a_checksum_is_left_to_the_kernel() {
    let _alone = alone();
    let [left, middle, right] = ["kl", "km", "kr"].map(Namespace::new);
    pair((&middle, "m1"), (&right, "r0"), 1);
    middle.run("ip address flush dev m1");
    let mut forwarder = Process::start(&mut inside(&middle, "fwd tap:l0?offloads=on xdp:m1 --seconds 60 --json"));
    forwarder.await_output("ports");
    middle.run(&format!("ip link set l0 netns {}", left.name));
    left.run("ip link set l0 up");
    left.run("ip address add 10.87.1.1/24 dev l0");
    left.run("ethtool -K l0 tso off");
    left.run("ping -q -c 1 10.87.1.2");
    // A veth pair inserts no checksums unless its offload is off; then the kernel inserts them.
    for (offload, expected) in [("on", "bad udp cksum"), ("off", "udp sum ok")] {
        middle.run(&format!("ethtool -K m1 tx {offload}"));
        let mut dump = Process::start(right.command("tcpdump -i r0 -vv -n -l --immediate-mode -c 1").arg("udp port 9"));
        dump.await_error("listening on");
        left.command("bash -c").arg("echo something >/dev/udp/10.87.1.2/9").output_in_time().unwrap();
        let said = dump.ended().1;
        assert!(said.contains(expected), "{offload}: {said}");
    }
    forwarder.interrupt();
}

/// Busy polling: the program's own thread drives the ports.
#[test]
fn traffic_crosses_ports_that_are_polled_busily() {
    let _alone = alone();
    let mut between = Between::with_veth("z", 1500, "xdp:m0?busy=on xdp:m1?busy=on");
    assert!(between.forwarder.await_error("xdp:m0").contains("busy polling"));
    between.carries_all(1500);
}

/// Traffic crosses between any two of the four kinds. Features that one of them lacks are emulated.
#[test]
fn traffic_crosses_from_a_tap() {
    let _alone = alone();
    for (test, port) in [("a", "xdp:m1"), ("c", "packet:m1")] {
        let [left, middle, right] = ["l", "m", "r"].map(|side| Namespace::new(&format!("{test}{side}")));
        pair((&middle, "m1"), (&right, "r0"), 1);
        middle.run("ip address flush dev m1");
        let forwarder = Process::start(&mut inside(&middle, &forward(1500, &format!("tap:l0 {port} --wait adaptive"))));
        let mut between = Between { left, right, _middle: middle, forwarder };
        between.forwarder.await_output("ports");
        between._middle.run(&format!("ip link set l0 netns {}", between.left.name));
        between.addressed(["l0", "r0"], 1500).carries_all(1500);
    }
}

/// Traffic crosses between a Linux interface and a card driven by linerate.
#[test]
fn traffic_crosses_between_an_interface_and_a_card() {
    let _alone = alone();
    let [left, middle, right] = ["dl", "dm", "dr"].map(Namespace::new);
    pair((&middle, "m0"), (&left, "l0"), 1);
    middle.run("ip address flush dev m0");
    let forwarder = Process::start(&mut inside(&middle, &forward(1500, "xdp:m0 sim:between?wire=tap:r0")));
    let mut between = Between { left, right, _middle: middle, forwarder };
    between.forwarder.await_output("ports");
    between._middle.run(&format!("ip link set r0 netns {}", between.right.name));
    between.addressed(["l0", "r0"], 1500).carries_all(1500);
}

/// Traffic crosses several queues, each with a thread and its own flows.
#[test]
fn flows_are_spread_over_queues() {
    let _alone = alone();
    const COUNT: u64 = 20_000;
    let (host, far) = (Namespace::new("uh"), Namespace::new("uf"));
    let names = ["link", "add", "h0", "numrxqueues", "2", "numtxqueues", "2", "type", "veth", "peer", "name", "f0"];
    let names = names.into_iter().chain(["numrxqueues", "2", "numtxqueues", "2", "netns", &far.name]);
    expect(0, std::process::Command::new("ip").args(["-n", &host.name]).args(names));
    for (namespace, interface) in [(&host, "h0"), (&far, "f0")] {
        namespace.disable_ipv6(interface);
        namespace.run(&format!("ip link set {interface} up"));
    }
    far.run("tc qdisc add dev f0 root mq");
    for port in ["xdp:h0", "packet:h0"] {
        let run = format!("--queues 2 --count {COUNT} --seconds 40 --json");
        let mut sink = Process::start(&mut inside(&host, &format!("sink {port} --ring 4096 {run}")));
        sink.await_error("link up");
        let generator = Process::start(&mut inside(&far, &format!("gen xdp:f0 --flows 16 --rate 50k {run}")));
        assert_eq!(generator.ended().0, Some(0));
        let (_, said) = sink.ended();
        let summary = summary(said.as_bytes());
        let queues: Vec<u64> =
            summary["ports"][0]["rx_slots"].as_array().unwrap().iter().flat_map(Value::as_u64).collect();
        assert!(queues.len() == 2 && queues.iter().all(|slots| *slots > COUNT / 10), "{port}: {queues:?}");
        // The pair's sender counts the frames for which it had no room, and so does the port.
        let lost = far.run("cat /sys/class/net/f0/statistics/tx_dropped").trim().parse::<u64>().unwrap();
        let drops = summary["ports"][0]["drops"].as_object().unwrap().values().flat_map(Value::as_u64);
        assert_eq!(queues.iter().sum::<u64>() + lost + drops.sum::<u64>(), COUNT, "{summary}");
        assert_eq!(summary["reordered"], 0, "{summary}");
    }
}

/// Packets that Linux cannot queue for the program are counted, also while the interface shows another count.
#[test]
fn the_queue_of_a_tap_overflows_visibly() {
    let _alone = alone();
    let host = Namespace::new("vh");
    // An interface that exists before has a count.
    host.script("ip tuntap add b0 mode tap && ip link set b0 txqueuelen 10 && ip address add 10.7.0.1/24 dev b0");
    host.disable_ipv6("b0");
    host.run("ip neighbour add 10.7.0.2 lladdr 02:00:00:00:00:02 nud permanent dev b0");
    let dropped = || host.run("cat /sys/class/net/b0/statistics/tx_dropped").trim().parse::<u64>().unwrap();
    let burst = || host.of(["bash", "-c", "for n in {1..50}; do echo $n >/dev/udp/10.7.0.2/9; done"]);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let before = dropped();
        let mut sink = Process::start(&mut inside(&host, "sink tap:b0 --seconds 40 --count 10 --json"));
        sink.await_error("link up");
        sink.wait_for_threads(2);
        sink.pause(true);
        expect(0, &mut burst());
        sink.pause(false);
        let (code, said) = sink.ended();
        let summary = summary(said.as_bytes());
        let counted = summary["ports"][0]["drops"]["no_descriptor"].as_u64().unwrap_or_else(|| panic!("{said}"));
        assert_eq!((code, counted), (Some(0), dropped() - before), "{said}");
        counts.push(counted);
    }
    assert!(counts.iter().all(|count| *count >= 30), "{counts:?}");
}

/// Frames beyond an interface's MTU are not passed to the kernel, which would try to send them again and again.
#[test]
fn a_frame_beyond_the_mtu_holds_nothing_up() {
    let _alone = alone();
    let (host, far) = (Namespace::new("oh"), Namespace::new("of"));
    pair((&host, "h0"), (&far, "f0"), 1);
    let statistic = |name: &str| host.run(&format!("cat /sys/class/net/h0/statistics/{name}")).trim().parse::<u64>();
    for port in ["packet:h0", "xdp:h0"] {
        let before = statistic("tx_dropped").unwrap();
        // 1,518 bytes with CRC correspond to an MTU of 1,500.
        for (size, sent) in [(1519, 0), (1518, 5)] {
            let run = format!("gen {port} --mtu 3000 --count 5 --size {size} --seconds 20 --json");
            let summary = summary(&inside(&host, &run).output_in_time().unwrap().stdout);
            assert_eq!(summary["ports"][0]["tx_packets"], sent, "{summary}");
            assert_eq!(summary["ports"][0]["drops"]["tx_too_long"].as_u64().unwrap_or(0), 5 - sent, "{summary}");
        }
        assert_eq!(statistic("tx_dropped").unwrap(), before, "{port}");
    }
}

/// Linux counts the frames that are sent through each name as `linerate ports` prints it. It accepts no `%` in names.
#[test]
fn every_interface_name_is_a_port() {
    const NAMES: [&str; 11] = ["a?b", "c&d", "e{f", "g}h", "i+r", "j;k", "l^", "ö", "o=p,q", "r*", "s-1"];
    let namespace = Namespace::new("kn");
    namespace.disable_ipv6("default");
    for (n, name) in NAMES.iter().enumerate() {
        let peer = format!("peer{n}");
        expect(0, &mut namespace.of(["ip", "link", "add", name, "type", "veth", "peer", "name", &peer]));
        [name, &*peer].iter().for_each(|name| drop(expect(0, &mut namespace.of(["ip", "link", "set", name, "up"]))));
    }
    let sent = |name: &str| -> u64 {
        let said = text(&expect(0, &mut namespace.of(["ip", "-j", "-s", "link", "show", "dev", name])).stdout);
        serde_json::from_str::<Value>(&said).unwrap()[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
    };
    let command = |words: &[&str]| namespace.of([&[env!("CARGO_BIN_EXE_linerate")], words].concat());
    let listed = text(&expect(0, &mut command(&["ports"])).stdout);
    let ports: Vec<&str> = listed.lines().filter_map(|line| line.split_once("; or ").map(|(_, port)| port)).collect();
    for (n, name) in NAMES.iter().enumerate() {
        let before = sent(name);
        let gen_to = |port: &str| drop(expect(0, &mut command(&["gen", port, "--count", "5", "--seconds", "20"])));
        let port = ports.iter().find(|port| linerate::parse(port).unwrap().interface() == Some(name));
        let port = port.unwrap_or_else(|| panic!("{name}: {listed}"));
        gen_to(port);
        assert_eq!(sent(name) - before, 5, "{port}");
        if n < 6 {
            // As the wire of a model, and with an option.
            gen_to(&format!("sim:0?wire={port}?flow=udp"));
            assert_eq!(sent(name) - before, 10, "{port}");
        }
    }
    let said = text(&expect(2, &mut command(&["gen", "packet:none", "--count", "1"])).stderr);
    assert!(said.contains("a%3Fb, ") && said.contains("i%2Br"), "{said}");
}

/// The server reports that a deleted interface is detached, and the next interface of that name can be attached.
#[test]
fn a_deleted_interface_is_detached_with_a_message() {
    let namespace = Namespace::new("kd");
    let folder = Folder::new("kd");
    let command = |words: &str| {
        let mut command = inside(&namespace, words);
        command.env("LINERATE_PORTS", &folder.0);
        command
    };
    let mut server = Process::start(&mut command("serve"));
    server.await_output("any");
    for _ in 0..2 {
        namespace.run("ip link add k0 type veth peer name k1");
        expect(0, &mut command("switch attach valeK:k0"));
        namespace.run("ip link delete k0");
        server.await_error("k0 is gone: it is detached from valeK");
    }
}
