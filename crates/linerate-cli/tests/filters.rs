//! `--only` and `--drop` on frames with extension headers, fragments, tags and tunnels, compared with tshark.

mod kit;

use std::process::Command;

use kit::{Folder, expect, frames, linerate, summary, text, write_frames};

/// A frame of at least the least length, without which the port pads it.
fn ethernet(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &ethertype.to_be_bytes(), rest].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An IPv6 packet in a frame.
fn ip6(next: u8, rest: &[u8]) -> Vec<u8> {
    let address = |last: u8| [0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let header = [0x60, 0, 0, 0, 0, rest.len() as u8, next, 64];
    ethernet(0x86DD, &[&header[..], &address(1), &address(2), rest].concat())
}

/// An IPv4 packet, without a frame.
fn ip4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let [high, low] = fragment.to_be_bytes();
    let header = [0x45, 0, 0, 20 + rest.len() as u8, 0, 7, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header[..], rest].concat()
}

/// UDP from port 1234 to `port`.
fn udp(port: u16, rest: &[u8]) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    [&[0x04, 0xD2, high, low, 0, 8 + rest.len() as u8, 0, 0][..], rest].concat()
}

/// Hop-by-hop or destination options with padding.
fn options(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

fn fragment(next: u8, offset: u8, more: u8) -> [u8; 8] {
    [next, 0, 0, offset << 3 | more, 0, 0, 0, 77]
}

/// Nine frames: UDP after extension headers, fragments, and no transport header.
fn extended() -> Vec<Vec<u8>> {
    let udp = udp(53, &[0; 20]);
    let after = |headers: &[&[u8]]| [&headers.concat()[..], &udp].concat();
    let routing: [u8; 8] = [60, 0, 4, 0, 0, 0, 0, 0];
    let authentication = [&[17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 12]].concat();
    vec![
        ip6(17, &udp),
        ip6(0, &after(&[&options(17)])),
        ip6(0, &after(&[&options(43), &routing, &options(17)])),
        ip6(44, &after(&[&fragment(17, 0, 1)])),
        ip6(44, &[&fragment(17, 4, 0)[..], &[0; 24]].concat()),
        ip6(44, &after(&[&fragment(17, 0, 0)])),
        ip6(51, &after(&[&authentication])),
        ip6(60, &after(&[&options(60).repeat(8), &options(17)])),
        ip6(59, &[]),
    ]
}

/// Returns the frames that `linerate capture` writes, and the counts `filtered` and `undecided`.
fn selected(folder: &Folder, sent: &[Vec<u8>], rules: &[&str]) -> (Vec<Vec<u8>>, [u64; 2]) {
    let [input, output] = ["in.pcap", "out.pcap"].map(|name| folder.path(name));
    write_frames(&input, sent);
    let port = format!("pcap:{input}");
    let command = [&["capture", &port, "--write", &output, "--json"][..], rules].concat();
    let summary = summary(&expect(0, &mut linerate(&command)).stdout);
    (frames(&output), ["filtered", "undecided"].map(|count| summary[count].as_u64().unwrap()))
}

/// Returns the frames that tshark selects, without reassembly.
fn selected_by_tshark(folder: &Folder, sent: &[Vec<u8>], filter: &str) -> Vec<Vec<u8>> {
    let [input, output] = ["all.pcap", "some.pcap"].map(|name| folder.path(name));
    write_frames(&input, sent);
    let whole = ["-o", "ipv6.defragment:FALSE", "-o", "ip.defragment:FALSE"];
    expect(0, Command::new("tshark").args(["-r", &input, "-w", &output, "-F", "pcap", "-Y", filter]).args(whole));
    frames(&output)
}

#[test]
fn filters_see_through_extension_headers() {
    let (folder, sent) = (Folder::new("filters-extended"), extended());
    // tshark stops at the routing header, whose segments are missing.
    for (rules, tshark, counts) in [
        // Fragments have the packet's protocol.
        (["--only", "udp"], "udp || ipv6.fraghdr.nxt == 17 || ipv6.routing", [1, 0]),
        (["--drop", "udp"], "!udp && !ipv6.fraghdr && !ipv6.routing", [8, 0]),
        // The later fragment has no ports.
        (["--only", "udp:53"], "udp.dstport == 53 || ipv6.routing", [2, 1]),
        (["--drop", "udp:53"], "!(udp.dstport == 53) && !ipv6.routing", [7, 1]),
        (["--only", "udp:54"], "udp.dstport == 54", [9, 1]),
        (["--only", "proto:44"], "ipv6.fraghdr", [6, 0]),
        (["--only", "proto:51"], "ah", [8, 0]),
        (["--only", "from:2001:db8::1+proto:59"], "ipv6.nxt == 59", [8, 0]),
    ] {
        let (frames, counted) = selected(&folder, &sent, &rules);
        assert_eq!((frames, counted), (selected_by_tshark(&folder, &sent, tshark), counts), "{rules:?}");
    }
}

/// Fields after too many headers, in another fragment, or cut off.
#[test]
fn undecided_packets_are_counted_and_explained() {
    let folder = Folder::new("filters-undecided");
    let many = |count: usize| {
        let mut chain = options(60).repeat(count);
        chain[(count - 1) * 8] = 17;
        ip6(60, &[chain, udp(53, &[])].concat())
    };
    let behind_options = ip6(44, &[&fragment(60, 4, 0)[..], &[0; 24]].concat());
    let sent = [many(16), many(17), behind_options, many(2)[..60].to_vec()];
    assert_eq!(selected(&folder, &sent, &["--only", "udp:53"]), (sent[..1].to_vec(), [3, 3]));
    assert_eq!(selected(&folder, &sent, &["--drop", "udp"]), (sent[1..].to_vec(), [1, 3]));
    assert_eq!(selected(&folder, &sent, &["--drop", "udp+ip"]), (sent.to_vec(), [0, 0]));
    assert_eq!(selected(&folder, &sent, &["--drop", "ip6,udp"]), (vec![], [4, 0]));
    assert_eq!(selected(&folder, &sent, &["--only", "udp", "--drop", "from:2001:db8::1"]), (vec![], [4, 0]));
    let port = format!("pcap:{}", folder.path("in.pcap"));
    let output = expect(0, &mut linerate(&["filter", &port, "--only", "udp"]));
    assert!(text(&output.stdout).contains("filtered 3, undecided 3"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("note: the rules could not decide 3 of the packets, which lack a field"));
}

#[test]
fn filters_see_through_tags() {
    let folder = Folder::new("filters-tags");
    let tagged = |tags: &[(u16, u16)]| {
        let packet = [&[8, 0][..], &ip4(17, 0, &udp(9, &[0; 46]))].concat();
        let words = tags.iter().flat_map(|(_, tag)| [*tag]).zip(tags.iter().skip(1).map(|(kind, _)| *kind));
        let mut rest: Vec<u8> =
            words.flat_map(|(tag, kind)| [tag.to_be_bytes(), kind.to_be_bytes()].concat()).collect();
        rest.extend(tags.last().unwrap().1.to_be_bytes());
        ethernet(tags[0].0, &[rest, packet].concat())
    };
    let sent = [
        tagged(&[(0x8100, 7)]),
        tagged(&[(0x88A8, 100), (0x8100, 7)]),
        tagged(&[(0x8100, 1), (0x8100, 2)]),
        tagged(&[(0x8100, 0)]),
        tagged(&[(0x9100, 5), (0x8100, 6)]),
        tagged(&[(0x8100, 0xEFFF)]),
    ];
    for (only, tshark) in [
        ("udp:9", "udp.dstport == 9"),
        ("vlan:7", "vlan.id == 7 || ieee8021ad.id == 7"),
        ("vlan:100+ip", "ieee8021ad.id == 100"),
        ("vlan:2", "vlan.id == 2"),
        ("vlan:4095+from:10.0.0.1", "vlan.id == 4095"),
        ("vlan:6", "vlan.id == 6"),
        ("tcp", "tcp"),
    ] {
        let (frames, counts) = selected(&folder, &sent, &["--only", only]);
        assert_eq!(frames, selected_by_tshark(&folder, &sent, tshark), "{only}");
        assert_eq!(counts, [6 - frames.len() as u64, 0], "{only}");
    }
    // A third tag is not skipped.
    let sent = [tagged(&[(0x8100, 1), (0x8100, 2), (0x8100, 3)])];
    assert_eq!(selected(&folder, &sent, &["--only", "udp"]), (vec![], [1, 1]));
    assert_eq!(selected(&folder, &sent, &["--only", "vlan:2"]), (sent.to_vec(), [0, 0]));
}

#[test]
fn filters_see_into_tunnels_on_request() {
    let folder = Folder::new("filters-tunnels");
    let inner = ip4(17, 0, &udp(53, &[0; 20]));
    let gtp = [&[0x30, 0xFF, 0, inner.len() as u8, 0, 0, 0, 9][..], &inner].concat();
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &ethernet(0x0800, &inner)].concat();
    let gre = [&[0, 0, 8, 0][..], &inner].concat();
    let sent = [
        ethernet(0x0800, &inner),
        ethernet(0x0800, &ip4(4, 0, &inner)),
        ethernet(0x0800, &ip4(47, 0, &gre)),
        ethernet(0x0800, &ip4(17, 0, &udp(4789, &vxlan))),
        ethernet(0x0800, &ip4(17, 0, &udp(2152, &gtp))),
        ip6(60, &[&options(47)[..], &gre].concat()),
        // Later fragments of what may be a tunnel's packet, and of what is none.
        ethernet(0x0800, &ip4(47, 9, &gre)),
        ethernet(0x0800, &ip4(17, 9, &udp(4789, &vxlan))),
        ethernet(0x0800, &ip4(6, 9, &[0; 20])),
        ethernet(0x0806, &[0; 46]),
    ];
    let tunnels = selected_by_tshark(&folder, &sent, "udp.dstport == 53 && (gtp || vxlan || gre || ip.proto == 4)");
    assert_eq!(tunnels.len(), 5);
    assert_eq!(selected(&folder, &sent, &["--only", "inner+udp:53"]), (tunnels, [5, 2]));
    assert_eq!(selected(&folder, &sent, &["--only", "udp:53"]).0, sent[..1], "without the word, the outer headers");
    assert_eq!(selected(&folder, &sent, &["--only", "inner+tcp"]), (vec![], [10, 2]));
    assert_eq!(selected(&folder, &sent, &["--drop", "inner,ip6,arp,ip"]), (vec![], [10, 0]));
}
