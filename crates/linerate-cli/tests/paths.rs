//! Testers of networks: several pairs of ports, streams, addresses that the network grants, IPv6, and resets. The
//! networks are Linux's routers and bridges in namespaces; dnsmasq and busybox's udhcpd grant addresses. The rates are so
//! low that the tests may run at the same time.

mod kit;

use kit::{Folder, Namespace, OutputTimeout, Process, expect, frames, inside, linerate, pair, summary, text};
use serde_json::Value;

/// A tester with the ports t0, t1 and so on, and a router between them. Port N is in the network 10.87.N.0/24, or
/// fd87:N::/64, in which the router has the address 1.
struct Routed {
    tester: Namespace,
    router: Namespace,
}

impl Routed {
    fn new(name: &str, ports: u8) -> Routed {
        let net = Routed { tester: Namespace::new(&format!("{name}t")), router: Namespace::new(&format!("{name}r")) };
        for n in 0..ports {
            pair((&net.router, &format!("r{n}")), (&net.tester, &format!("t{n}")), n);
            net.tester.run(&format!("ip address flush dev t{n}"));
            net.tester.disable_ipv6(&format!("t{n}"));
            net.router.run(&format!("ip -6 address add fd87:{n}::1/64 dev r{n} nodad"));
        }
        net.router.script("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
        net
    }

    /// Drops every tenth UDP packet to this port.
    fn drop_tenth(&self, port: u8) {
        self.router.script(&format!(
            "nft add table ip t && nft 'add chain ip t f {{ type filter hook forward priority 0; }}' && \
             nft add rule ip t f oifname r{port} ip protocol udp numgen inc mod 10 0 drop"
        ));
    }

    fn run(&self, arguments: &str) -> (Option<i32>, Value, String) {
        let output = inside(&self.tester, arguments).output_in_time().unwrap();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(!out.is_empty(), "{arguments}: {errors}");
        (output.status.code(), summary(out.as_bytes()), errors)
    }

    /// Runs a command that must fail with this error.
    #[track_caller]
    fn refuse(&self, arguments: &str, why: &str) {
        let output = inside(&self.tester, arguments).output_in_time().unwrap();
        let errors = text(&output.stderr);
        assert!(!output.status.success() && errors.contains(why), "{arguments}: {errors}");
    }
}

/// The options for `count` ports of a [`Routed`] tester.
fn addresses(count: u8) -> String {
    let of = |last: &str| (0..count).map(|n| format!("10.87.{n}.{last}")).collect::<Vec<_>>().join(",");
    let ports = (0..count).map(|n| format!("packet:t{n} ")).collect::<String>();
    format!("{ports}--address {} --gateway {}", of("2/24"), of("1"))
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a count: {value}"))
}

/// Returns the packets of a load or of a pair that were sent at any time.
fn total_sent(counts: &Value) -> u64 {
    count(&counts["sent"]) + count(&counts["after_end"]["sent"])
}

/// Counts are kept for each pair, and summed; a rate passes only if it passes for each pair, and the report names the
/// worst one.
#[test]
fn several_pairs_are_measured_together() {
    let net = Routed::new("pairs", 4);
    net.drop_tenth(3);
    let ports = addresses(4);
    for both in ["", "--both"] {
        let (code, found, errors) = net.run(&format!("latency {ports} {both} --rate 500 --seconds 1 --json"));
        let load = &found["loads"][0];
        assert_eq!(code, Some(0), "{load} {errors}");
        let pairs = load["pairs"].as_array().unwrap();
        let arrow = if both.is_empty() { "->" } else { "<->" };
        let names: Vec<_> = pairs.iter().map(|pair| pair["pair"].as_str().unwrap()).collect();
        assert_eq!(names, [0, 2].map(|n| format!("packet:t{n} {arrow} packet:t{}", n + 1)));
        let sent = total_sent(&pairs[1]) / if both.is_empty() { 1 } else { 2 };
        let lost = count(&pairs[1]["lost"]);
        assert_eq!(pairs[0]["lost"], 0, "{load}");
        // The directions of a pair may differ by a few packets. The router's counter continues.
        assert!(sent > 100 && lost.abs_diff(sent / 10) <= 2, "{load}");
        for key in ["sent", "arrived", "lost", "looked_at"] {
            assert_eq!(count(&load[key]), pairs.iter().map(|pair| count(&pair[key])).sum::<u64>(), "{key}: {load}");
        }
        for pair in pairs {
            // Also of the shortest frames, the changed fields are known.
            let (changed, arrived) = (&pair["changed"], count(&pair["arrived"]) + count(&pair["after_end"]["arrived"]));
            assert_eq!((&changed["fields"]["ttl"], &changed["unknown"]), (&arrived.into(), &0.into()), "{load}");
            assert!(pair["variation"]["pdv"].as_f64() >= Some(0.0), "{load}");
        }
    }
    let folder = Folder::new("pairs");
    let out = folder.0.display().to_string();
    let rfc = format!("rfc2544 {ports} --sizes 64 --rate 500 --seconds 0.5 --resolution 50% --json --out {out}");
    let row = |only: &str| {
        let (code, found, errors) = net.run(&format!("{rfc} --only {only}"));
        assert_eq!(code, Some(0), "{errors}");
        found["experiments"][0]["rows"][0].clone()
    };
    let found = row("throughput");
    assert!(found["packets/s"].is_null() && found["worst pair"] == "packet:t2 -> packet:t3", "{found}");
    // Both pairs together lose 5 %.
    assert!(row("throughput --loss 7%")["packets/s"].is_null());
    let found = row("throughput --loss 20%");
    assert!(found["packets/s"] == found["offered, packets/s"] && found["packets/s"].as_f64() > Some(800.0), "{found}");
    let found = row("loss");
    assert_eq!(found["worst pair"], "packet:t2 -> packet:t3", "{found}");
    assert!((found["lost, %"].as_f64().unwrap() - 5.0).abs() < 1.0, "of both pairs: {found}");
    net.refuse("latency packet:t0 packet:t1 packet:t2", "packet:t2 has no other end");
    net.refuse(
        "rfc2544 packet:t0 packet:t1 packet:t2 packet:t3 --address 10.87.0.2/24",
        "4 ports have 4 addresses: --address 10.0.0.2/24,10.0.1.2/24,10.0.2.2/24,10.0.3.2/24",
    );
}

/// A bridge with the ports b0 to b3, which lead to the tester's ports a0 to a3.
fn bridge(name: &str) -> Namespace {
    let namespace = Namespace::new(name);
    namespace.disable_ipv6("all");
    // With snooping, the bridge itself sends frames.
    namespace.run("ip link add br0 type bridge mcast_snooping 0");
    for n in 0..4 {
        namespace.run(&format!("ip link add a{n} type veth peer name b{n}"));
        namespace.run(&format!("ip link set b{n} master br0 up"));
        namespace.run(&format!("ip link set a{n} up"));
    }
    namespace.run("ip link set br0 up");
    namespace
}

const FOUR: &str = "latency packet:a0 packet:a1 packet:a2 packet:a3 --rate 500 --seconds 1 --json";

/// A bridge that learns nothing sends all frames to all ports. Copies at the port of another pair do not replace lost
/// frames.
#[test]
fn frames_of_another_pair_are_not_counted() {
    let namespace = bridge("flood");
    (0..4).for_each(|n| drop(namespace.run(&format!("bridge link set dev b{n} learning off"))));
    // No frame is flooded to the end of the first pair.
    namespace.run("bridge link set dev b1 flood off");
    let output = expect(1, &mut inside(&namespace, FOUR));
    let load = summary(&output.stdout)["loads"][0].clone();
    let (first, second) = (&load["pairs"][0], &load["pairs"][1]);
    assert!(total_sent(first) > 100 && first["arrived"] == 0, "{load}");
    assert_eq!(count(&first["lost"]), total_sent(first), "{load}");
    assert_eq!((&second["lost"], count(&second["misdelivered"])), (&0.into(), total_sent(first)), "{load}");
    assert_eq!(second["looked_at"].as_u64().map(|timed| timed <= total_sent(second)), Some(true), "{load}");
}

/// A switch knows the ports before the first frame, so it does not flood.
#[test]
fn a_switch_learns_the_ports_of_all_pairs() {
    let (namespace, folder) = (bridge("learn"), Folder::new("learn"));
    let streams = folder.path("streams.toml");
    std::fs::write(&streams, "[[stream]]\nflows = 3\n[[stream]]\npacket = 'eth/ip/udp/stamp'\n").unwrap();
    for more in ["", "--both", &format!("--streams {streams}")] {
        let output = expect(0, &mut inside(&namespace, &format!("{FOUR} {more}")));
        let load = summary(&output.stdout)["loads"][0].clone();
        assert!(total_sent(&load) > 200 && load["lost"] == 0, "{load}");
        // A frame may be sent before the bridge has learned a port.
        assert!(count(&load["misdelivered"]) < total_sent(&load) / 10, "{load}");
        assert_eq!(load["changed"]["frames"], 0, "{load}");
    }
}

/// Over cables, learning frames arrive at the other port, and are not counted.
#[test]
fn learning_frames_are_not_counted() {
    let arguments = "latency Q{0 Q}0 Q{1 Q}1 --both --rate 2k --seconds 0.5 --json";
    let output = expect(0, &mut linerate(&arguments.split(' ').collect::<Vec<_>>()));
    let load = summary(&output.stdout)["loads"][0].clone();
    assert_eq!((&load["lost"], &load["unstamped"], &load["misdelivered"]), (&0.into(), &0.into(), &0.into()), "{load}");
    assert!(load["pairs"].as_array().unwrap().iter().all(|pair| total_sent(pair) > 500), "{load}");
}

/// The streams of a file share the rate.
#[test]
fn streams_share_the_rate() {
    let (namespace, folder) = (Namespace::new("mix"), Folder::new("mix"));
    namespace.disable_ipv6("all");
    namespace.run("ip link add v0 type veth peer name v1");
    ["v0", "v1"].iter().for_each(|interface| drop(namespace.run(&format!("ip link set {interface} up"))));
    let (file, capture) = (folder.path("streams.toml"), folder.path("sent.pcap"));
    let streams =
        "[[stream]]\nrate = 3\npacket = 'eth/ip(dscp=46)/udp/stamp'\n[[stream]]\nrate = 1\nsize = 594\nflows = 2\n";
    std::fs::write(&file, streams).unwrap();
    let mut tcpdump =
        namespace.start(&format!("tcpdump -i v1 -Q in -U -s 0 --immediate-mode -B 16384 -Z root -w {capture} udp"));
    tcpdump.await_error("listening on");
    let output = expect(
        0,
        &mut inside(&namespace, &format!("latency packet:v0 packet:v1 --streams {file} --rate 1k --seconds 1 --json")),
    );
    tcpdump.interrupt();
    let load = summary(&output.stdout)["loads"][0].clone();
    assert_eq!((&load["lost"], &load["changed"]["frames"]), (&0.into(), &0.into()), "{load}");
    let sent = frames(&capture);
    assert_eq!(sent.len() as u64, total_sent(&load), "{load}");
    let with_len = |len: usize| sent.iter().filter(|frame| frame.len() == len).count();
    assert!(with_len(590) > 50 && with_len(60).abs_diff(3 * with_len(590)) <= 4, "{}", with_len(60));
    assert!(sent.iter().filter(|frame| frame.len() == 60).all(|frame| frame[15] == 46 << 2));
    for (text, why) in [
        ("[[stream]]\ncount = 5\n", "stream 1: a measurement sets the load: leave out count"),
        ("[[stream]]\nrate = 5\n[[stream]]\nrate = '1Gbit'\n", "stream 2: the streams' rates are shares"),
        ("[[stream]]\npacket = 'eth/ip/tcp'\n", "the frames need sequence numbers: append /stamp after udp"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output =
            inside(&namespace, &format!("latency packet:v0 packet:v1 --streams {file}")).output_in_time().unwrap();
        assert!(!output.status.success() && text_has(&output.stderr, why), "{text}: {}", kit::text(&output.stderr));
    }
    std::fs::write(&file, "[[stream]]\nsize = 64\n").unwrap();
    let output = expect(2, &mut inside(&namespace, &format!("rfc2544 packet:v0 packet:v1 --streams {file}")));
    assert!(text_has(&output.stderr, "stream 1: rfc2544 sets the sizes"), "{}", text(&output.stderr));
}

fn text_has(bytes: &[u8], part: &str) -> bool {
    text(bytes).contains(part)
}

const DNSMASQ: &str = "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --user=root --pid-file \
                       --bind-interfaces --interface=r0 --interface=r1 --log-facility=-";

/// Addresses, prefixes and routers come from dnsmasq, by DHCP and by router advertisements.
#[test]
fn a_network_grants_addresses() {
    let (net, folder) = (Routed::new("dhcp", 2), Folder::new("dhcp"));
    let leases = folder.path("leases");
    let mut server = net.router.start(&format!(
        "{DNSMASQ} --dhcp-leasefile={leases} --dhcp-range=10.87.0.50,10.87.0.59,255.255.255.0,1h \
         --dhcp-range=10.87.1.50,10.87.1.59,255.255.255.0,1h --enable-ra --dhcp-range=fd87:0::,ra-only,64,1h \
         --dhcp-range=fd87:1::,ra-only,64,1h"
    ));
    server.await_error("router advertisement on fd87:1::");
    for (source, said) in [
        ("dhcp", ["packet:t0: 10.87.0.5", "/24 from DHCP server 10.87.0.1 for 3600 s, router 10.87.0.1"]),
        ("auto", ["packet:t0: fd87::", "/64 by router advertisement, router fe80::"]),
    ] {
        let arguments = "packet:t0 packet:t1 --both --rate 500 --size 128 --seconds 1 --json";
        let (code, found, errors) = net.run(&format!("latency {arguments} --address {source},{source}"));
        let load = &found["loads"][0];
        assert!(code == Some(0) && count(&load["arrived"]) > 100 && load["lost"] == 0, "{load} {errors}");
        assert_eq!(count(&load["changed"]["fields"]["ttl"]), total_sent(load), "through the router: {load}");
        assert!(said.iter().all(|part| errors.contains(part)), "{errors}");
        // Once for each port, also if it is opened again.
        let (_, _, errors) = net.run(&format!("latency {arguments} --address {source},{source} --rate 100,200"));
        assert_eq!(errors.matches("packet:t1: ").count(), 1, "{errors}");
    }
    // The client's identifier: type 0, and "linerate".
    assert!(std::fs::read_to_string(&leases).unwrap().contains("00:6c:69:6e:65:72:61:74:65:"), "{leases}");
    // The kernel of the router pings the granted address; the default destination is behind the router.
    let mut sink = Process::start(&mut inside(&net.tester, "sink packet:t1 --address dhcp --seconds 120 --json"));
    let said = sink.await_error("from DHCP server");
    let address = said.split_whitespace().nth(1).and_then(|address| address.split('/').next()).unwrap();
    sink.await_output("ports");
    net.router.ping(3, address);
    let gen_ = format!("gen packet:t0 --address dhcp --to {address} --size 200 --rate 500 --count 200 --json");
    let (code, found, errors) = net.run(&gen_);
    assert!(code == Some(0) && found["packets"] == 200, "{found} {errors}");
    let (code, output) = sink.interrupt();
    let found = summary(output.as_bytes());
    assert!(code == Some(0) && found["lost"] == 0 && found["changed"]["fields"]["ttl"] == 200, "{found}");
}

/// Without a server, the error names the message that was not answered.
#[test]
fn silence_is_an_error() {
    let net = Routed::new("silence", 2);
    // At the same time, because both wait long.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let why = "no DHCP server answered 4 DHCPDISCOVER messages in 15 s";
            net.refuse("gen packet:t0 --address dhcp --count 1", why);
        });
        let why = "no router advertised a prefix for addresses after 3";
        net.refuse("gen packet:t1 --address auto --count 1", why);
    });
}

/// busybox's server, which probes an address before it offers it.
#[test]
fn another_server_grants_an_address() {
    let (net, folder) = (Routed::new("udhcpd", 1), Folder::new("udhcpd"));
    let (leases, file) = (folder.path("leases"), folder.path("conf"));
    std::fs::write(&leases, "").unwrap();
    let lines = format!(
        "start 10.87.0.50\nend 10.87.0.60\ninterface r0\nlease_file {leases}\npidfile {}\noption subnet 255.255.255.0\n\
         option router 10.87.0.1\noption lease 600\n",
        folder.path("pid")
    );
    std::fs::write(&file, lines).unwrap();
    let mut server = net.router.start(&format!("busybox udhcpd -f {file}"));
    server.await_error("started");
    let output =
        expect(0, &mut inside(&net.tester, "gen packet:t0 --address dhcp --to 10.87.0.1 --rate 500 --count 20"));
    let errors = text(&output.stderr);
    assert!(errors.contains("/24 from DHCP server 10.87.0.1 for 600 s, router 10.87.0.1"), "{errors}");
}

/// Over IPv6, the smallest frame has 84 bytes.
#[test]
fn rfc2544_crosses_an_ipv6_router() {
    let (net, folder) = (Routed::new("six", 4), Folder::new("six"));
    let out = folder.0.display().to_string();
    let (code, found, errors) = net.run(&format!(
        "rfc2544 packet:t0 packet:t1 --address fd87:0::2/64,fd87:1::2/64 --gateway fd87:0::1,fd87:1::1 --both \
         --only throughput,latency --rate 300 --seconds 0.4 --loss 10% --json --out {out}"
    ));
    assert_eq!(code, Some(0), "{found} {errors}");
    for experiment in found["experiments"].as_array().unwrap() {
        let rows = experiment["rows"].as_array().unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| count(&row["bytes"])).collect();
        assert_eq!(sizes, [84, 128, 256, 512, 1024, 1280, 1518], "{experiment}");
        // Both directions together, and not twice that.
        assert!(rows.iter().all(|row| row["packets/s"].as_f64() > Some(0.0)), "{experiment}");
        assert!(rows.iter().all(|row| row["packets/s"].as_f64() <= Some(606.0)), "{experiment}");
    }
    // IPv4 and IPv6 together.
    let (code, found, errors) = net.run(&format!(
        "rfc2544 packet:t0 packet:t1 packet:t2 packet:t3 --only latency --rate 300 --seconds 0.4 --loss 10% --json --out {out} \
         --address 10.87.0.2/24,10.87.1.2/24,fd87:2::2/64,fd87:3::2/64 --gateway 10.87.0.1,10.87.1.1,fd87:2::1,fd87:3::1"
    ));
    let rows = found["experiments"][0]["rows"].as_array().unwrap();
    assert!(code == Some(0) && rows.len() == 7 && rows[0]["bytes"] == 84, "{found} {errors}");
    assert!(rows.iter().all(|row| row["99.9 %, µs"].as_f64() > Some(0.0)), "{found}");
}

/// The router stops forwarding for a known time.
#[test]
fn a_reset_takes_its_known_time() {
    let (net, folder) = (Routed::new("reset", 2), Folder::new("reset"));
    let (out, script, times) = (folder.0.display().to_string(), folder.path("script"), folder.path("times"));
    let rfc = format!("rfc2544 {} --only reset --sizes 64 --rate 1k --json --out {out}", addresses(2));
    let run = |seconds: &str, lines: &str| {
        std::fs::write(&script, lines).unwrap();
        let command = format!("ip netns exec {} sh {script}", net.router.name);
        let words = rfc.split(' ').chain(["--seconds", seconds, "--reset-command", &command]);
        let output =
            net.tester.of(std::iter::once(env!("CARGO_BIN_EXE_linerate")).chain(words)).output_in_time().unwrap();
        let found = summary(&output.stdout);
        (output.status.code(), found["experiments"][0].clone(), text(&output.stderr))
    };
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let mut is_busy = false;
    let is_good = (0..5).any(|_| {
        let (code, found, errors) = run(
            "3",
            &format!(
                "cut -d' ' -f1 /proc/uptime >{times}; echo 0 >{forward}; sleep 0.7; echo 1 >{forward}; \
                 cut -d' ' -f1 /proc/uptime >>{times}"
            ),
        );
        assert_eq!(code, Some(0), "{found} {errors}");
        let lines = std::fs::read_to_string(&times).unwrap();
        let at: Vec<f64> = lines.lines().map(|line| line.parse().unwrap()).collect();
        let (row, known) = (&found["rows"][0], at[1] - at[0]);
        let [by_loss, by_time] = ["by loss, s", "by time, s"].map(|name| row[name].as_f64().unwrap());
        println!("reset for {known:.3} s: by loss {by_loss}, by time {by_time}");
        let (lost, rate) = (count(&row["lost"]), row["sent, packets/s"].as_f64().unwrap());
        assert!(lost > 0 && (by_loss - lost as f64 / rate).abs() < 1e-3, "{found}");
        is_busy |= found["warnings"].to_string().contains("processors were taken away");
        (by_loss - known).abs() < 0.1 && (by_time - known).abs() < 0.1
    });
    assert!(is_good || is_busy, "never within 0.1 s of the time");
    // While the link is down, frames cannot be sent; the interfaces of the router keep their addresses.
    let (code, found, errors) = run("3", "ip link set r0 down; sleep 1.5; ip link set r0 up");
    let warnings = found["warnings"].to_string();
    assert!(
        code == Some(0) && warnings.contains("by loss lacks the frames that could not be sent"),
        "{found} {errors}"
    );
    let (code, found, errors) = run("1", "true");
    let warnings = found["warnings"].to_string();
    assert!(code == Some(0) && warnings.contains("no frame was lost: was the device reset?"), "{found} {errors}");
    let (code, found, errors) = run("1", "exit 3");
    assert!(code == Some(1) && errors.contains("the reset command failed: exit status: 3"), "{found} {errors}");
    let (code, found, errors) = run("1", &format!("echo 0 >{forward}"));
    assert!(code == Some(1) && errors.contains("no frame arrived again after the reset"), "{errors}");
    assert!(found["rows"][0]["by time, s"].is_null(), "{found}");
    net.refuse("rfc2544 packet:t0 packet:t1 --only loss --reset-command true", "add it to --only");
    net.refuse(
        "rfc2544 packet:t0 packet:t1 --sizes 64 --packet eth/ip6/udp/stamp",
        "--sizes: a frame of 64 bytes, CRC included, has no room for the headers; the smallest has 84",
    );
    net.refuse("rfc2544 sim:0 sim:1 --only reset", "the test reset needs a device between the ports");
}

/// A separate sink knows the headers of short frames from their layers.
#[test]
fn a_sink_knows_the_headers_of_short_frames() {
    let net = Routed::new("known", 2);
    let mac = |namespace: &Namespace, interface: &str| {
        namespace.run(&format!("cat /sys/class/net/{interface}/address")).trim().to_string()
    };
    let layers = format!(
        "eth(src={},dst={})/ip(src=10.87.0.2,dst=10.87.1.2,ttl=9)/udp(sport=5,dport=7)/stamp",
        mac(&net.tester, "t0"),
        mac(&net.router, "r0")
    );
    for (known, unknown) in [(format!("--packet {layers}"), 0), (String::new(), 200)] {
        let sink = format!("sink packet:t1 --address 10.87.1.2/24 --gateway 10.87.1.1 --seconds 120 --json {known}");
        let mut sink = Process::start(&mut inside(&net.tester, &sink));
        sink.await_output("ports");
        expect(0, &mut inside(&net.tester, &format!("gen packet:t0 --packet {layers} --rate 500 --count 200")));
        let (code, output) = sink.interrupt();
        let changed = &summary(output.as_bytes())["changed"];
        assert_eq!(code, Some(0), "{output}");
        let ttl = changed["fields"]["ttl"].as_u64().unwrap_or(0);
        assert_eq!((ttl, count(&changed["unknown"])), (200 - unknown, unknown), "{changed}");
    }
    net.refuse("sink packet:t1 --packet eth/ip/udp", "append /stamp after udp");
}
