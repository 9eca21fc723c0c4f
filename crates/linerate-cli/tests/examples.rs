//! The library's examples, compared with Linux, which does the same.

mod kit;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::{Folder, Namespace, Process, alone, expect, frames, pair, write_frames};

/// Builds the library's examples, as `cargo test --workspace` does, and returns the path of the given one.
fn example(name: &str) -> PathBuf {
    let of_tests = ["--workspace", "--profile", "test"];
    expect(0, Command::new(env!("CARGO")).args(["build", "--quiet", "--examples"]).args(of_tests));
    Path::new(env!("CARGO_BIN_EXE_linerate")).with_file_name("examples").join(name)
}

fn mac(namespace: &Namespace, interface: &str) -> String {
    namespace.run(&format!("cat /sys/class/net/{interface}/address")).trim().to_string()
}

fn bytes(mac: &str) -> Vec<u8> {
    mac.split(':').map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

/// Turns Linux's forwarding on or off.
fn set_forwarding(namespace: &Namespace, on: bool) {
    let line = format!("echo {} >/proc/sys/net/ipv4/ip_forward", u8::from(on));
    expect(0, Command::new("ip").args(["netns", "exec", &namespace.name, "sh", "-c", &line]));
}

/// Returns a UDP packet to `destination`, with an IP packet of `len` bytes, followed by `padding`.
fn packet(mac: &[u8], destination: [u8; 4], ttl: u8, len: usize, padding: usize) -> Vec<u8> {
    let mut ip = [&[0x45, 0, 0, 0, 0x12, 0x34, 0, 0, ttl, 17, 0, 0, 10, 50, 0, 9][..], &destination].concat();
    ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
    let udp = [&[0x10, 0xE1, 0x10, 0xE1][..], &(len as u16 - 20).to_be_bytes(), &[0, 0]].concat();
    let payload: Vec<u8> = (0..len - 28).map(|n| n as u8).collect();
    [mac, &[2, 0, 0, 0, 0x50, 9, 8, 0], &ip, &udp, &payload, &vec![0xEE; padding]].concat()
}

/// The expected outcome for a frame.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Out(usize),
    Dropped,
}

/// Returns frames for the router with this address, and their expected outcomes.
fn traffic(router: &[u8]) -> Vec<(Vec<u8>, Fate)> {
    use Fate::{Dropped, Out};
    let mut all = Vec::new();
    for (n, len) in [28, 29, 46, 100, 576, 1499, 1500].into_iter().enumerate() {
        for (ttl, host) in [(64, 1), (2, 2), (255, 255)] {
            let padding = 46usize.saturating_sub(len) + if len == 29 || len == 100 { 3 } else { 0 };
            all.push((packet(router, [10, 1, n as u8, host], ttl, len, padding), Out(0)));
            // The longer prefix lies within the shorter one.
            all.push((packet(router, [10, 1, 7, host - u8::from(host == 255)], ttl, len, padding), Out(1)));
            all.push((packet(router, [192, 0, 2, host], ttl, len, padding), Dropped));
        }
    }
    for ttl in [0, 1] {
        all.push((packet(router, [10, 1, 2, 3], ttl, 100, 0), Dropped));
    }
    let mut change = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = packet(router, [10, 1, 2, 3], 64, 100, 0);
        change(&mut frame);
        all.push((frame, Dropped));
    };
    change(&|frame| frame[24] ^= 1); // the checksum
    change(&|frame| frame[5] ^= 1); // another station's MAC address
    change(&|frame| frame[14] = 0x65);
    change(&|frame| frame[12..14].copy_from_slice(&[0x88, 0xB5]));
    change(&|frame| frame.truncate(14 + 99)); // shorter than in its header
    change(&|frame| frame.truncate(14 + 19));
    all.push((packet(router, [10, 1, 2, 3], 64, 100, 0), Out(0)));
    all.push((packet(router, [10, 1, 7, 3], 64, 100, 0), Out(1)));
    all
}

/// Sends the frames to the router, and returns the frames at each of its outputs.
fn routed(
    from: &Namespace,
    outputs: &[Namespace; 2],
    traffic: &[(Vec<u8>, Fate)],
    folder: &Folder,
) -> Vec<Vec<Vec<u8>>> {
    let captures = [0, 1].map(|n| {
        let count = traffic.iter().filter(|(_, fate)| *fate == Fate::Out(n)).count();
        let file = folder.path(&format!("out{n}.pcap"));
        let words = format!("timeout 60 tcpdump -n -i o{n} -Q in -c {count} -w {file} ip");
        let mut process = outputs[n].start(&words);
        process.await_error("listening");
        (process, file)
    });
    let file = folder.path("in.pcap");
    write_frames(&file, &traffic.iter().map(|(frame, _)| frame.clone()).collect::<Vec<_>>());
    from.run(&format!("tcpreplay --quiet --pps 1000 -i i0 {file}"));
    let captured = captures.map(|(process, file)| {
        let (code, said) = process.ended();
        assert_eq!(code, Some(0), "not all packets were forwarded: {said}");
        frames(file)
    });
    captured.into()
}

/// The router forwards exactly the frames that Linux forwards, with the same changes.
#[test]
fn the_router_does_what_linux_does() {
    let _alone = alone();
    let folder = Folder::new("router");
    let (from, router) = (Namespace::new("ri"), Namespace::new("rr"));
    let outputs = ["ro0", "ro1"].map(Namespace::new);
    pair((&router, "m0"), (&from, "i0"), 0);
    let hops = [0, 1].map(|n| {
        pair((&router, ["m1", "m2"][n]), (&outputs[n], ["o0", "o1"][n]), n as u8 + 1);
        mac(&outputs[n], ["o0", "o1"][n])
    });
    for (namespace, interface) in [(&from, "i0"), (&router, "all"), (&outputs[0], "o0"), (&outputs[1], "o1")] {
        namespace.disable_ipv6(interface);
    }
    let traffic = traffic(&bytes(&mac(&router, "m0")));

    for (n, prefix) in ["10.1.0.0/16", "10.1.7.0/24"].into_iter().enumerate() {
        router.run(&format!("ip neighbour add 10.87.{}.2 lladdr {} nud permanent dev m{}", n + 1, hops[n], n + 1));
        router.run(&format!("ip route add {prefix} via 10.87.{}.2", n + 1));
    }
    router.run("ip route add 10.50.0.0/16 via 10.87.0.2");
    set_forwarding(&router, true);
    let by_linux = routed(&from, &outputs, &traffic, &folder);
    set_forwarding(&router, false);
    ["m0", "m1", "m2"].iter().for_each(|interface| _ = router.run(&format!("ip address flush dev {interface}")));

    let words =
        format!("xdp:m0 10.50.0.0/16 02:00:00:00:50:09 xdp:m1 10.1.0.0/16 {} xdp:m2 10.1.7.0/24 {}", hops[0], hops[1]);
    let mut process = Process::start(&mut router.command(&format!("{} {words}", example("router").display())));
    process.await_output("routing");
    let by_us = routed(&from, &outputs, &traffic, &folder);
    assert_eq!(by_linux[0][0].len(), 14 + 28, "the padding is not forwarded");
    for (n, (linux, us)) in by_linux.iter().zip(&by_us).enumerate() {
        for (frame, (linux, us)) in linux.iter().zip(us).enumerate() {
            assert_eq!(linux, us, "output {n}, frame {frame}");
        }
        assert_eq!(linux.len(), us.len(), "output {n}");
    }
}

/// Frames of all lengths, and TCP, pass through a tunnel with the example at one end and Linux at the other.
#[test]
fn the_tunnel_ends_at_linux() {
    let _alone = alone();
    let [left, middle, right] = ["vl", "vm", "vr"].map(Namespace::new);
    pair((&middle, "m0"), (&left, "l0"), 1);
    pair((&middle, "m1"), (&right, "r0"), 2);
    for (namespace, interface) in [(&left, "l0"), (&right, "r0")] {
        // AF_XDP receives packets before a card would insert their checksums.
        namespace.run(&format!("ethtool -K {interface} tx off"));
        namespace.run(&format!("ip address flush dev {interface}"));
    }
    ["m0", "m1"].iter().for_each(|interface| _ = middle.run(&format!("ip address flush dev {interface}")));
    right.run("ip address add 10.9.0.2/24 dev r0");
    right.run(&format!("ip neighbour add 10.9.0.1 lladdr {} nud permanent dev r0", mac(&middle, "m1")));
    right.run("ip link add vx0 type vxlan id 42 local 10.9.0.2 remote 10.9.0.1 dstport 4789 dev r0");
    for (namespace, interface, host) in [(&left, "l0", 1), (&right, "vx0", 2)] {
        namespace.run(&format!("ip address add 10.60.0.{host}/24 dev {interface}"));
        namespace.run(&format!("ip link set {interface} mtu 1450 up"));
    }
    let words = format!("xdp:m0 xdp:m1 42 10.9.0.1 10.9.0.2 {}", mac(&right, "r0"));
    let mut process = Process::start(&mut middle.command(&format!("{} {words}", example("vxlan").display())));
    process.await_output("tunnelling");

    let mut capture = right.start("timeout 60 tcpdump -n -v -i r0 -Q in -c 1 udp port 4789");
    capture.await_error("listening");
    for size in [0, 1, 18, 56, 700, 1421, 1422] {
        left.ping(2, &format!("-M do -s {size} 10.60.0.2"));
        right.ping(1, &format!("-M do -s {size} 10.60.0.1"));
    }
    let (_, said) = capture.ended();
    assert!(said.contains("10.9.0.1.") && said.contains("10.9.0.2.4789") && said.contains("vni 42"), "{said}");
    assert!(!said.contains("bad") && !said.contains("incorrect"), "{said}");
    for (client, server, address) in
        [(&left, &right, Ipv4Addr::new(10, 60, 0, 2)), (&right, &left, Ipv4Addr::new(10, 60, 0, 1))]
    {
        let mut listening = server.start("iperf3 --server --one-off --forceflush");
        listening.await_output("listening");
        client.run(&format!("iperf3 --client {address} --bytes 4M"));
    }
    // Packets of another network are rejected.
    right.run("ip link add vx1 type vxlan id 43 local 10.9.0.2 remote 10.9.0.1 dstport 4789 dev r0");
    right.run("ip address add 10.61.0.2/24 dev vx1");
    right.run("ip link set vx1 up");
    left.run("ip address add 10.61.0.1/24 dev l0");
    expect(1, &mut right.command("ping -q -c 2 -i 0.2 -W 1 10.61.0.1"));
    let neighbours = left.run("ip neighbour show dev l0");
    assert!(neighbours.contains("10.60.0.2 ") && !neighbours.contains("10.61.0.2 "), "{neighbours}");
}
