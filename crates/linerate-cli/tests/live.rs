//! `linerate capture` on Linux's interfaces.

mod kit;

use kit::{Folder, Namespace, Process, expect, inside, text, write_frames};
use linerate::capture::Reader;

/// Frames of an experimental ethertype (IEEE 802), each with a number.
fn frames(count: u8) -> Vec<Vec<u8>> {
    let frame = |n| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, n][..], &[0; 45]].concat();
    (0..count).map(frame).collect()
}

/// Creates a veth pair in a namespace, sends frames into its end `there`, and waits until Linux has sent them.
fn replay_into_new_pair(namespace: &Namespace, [here, there]: [&str; 2], file: &str, mut opened: impl FnMut()) {
    namespace.run(&format!("ip link add {here} type veth peer name {there}"));
    [here, there].iter().for_each(|name| drop(namespace.run(&format!("ip link set {name} up"))));
    opened();
    namespace.run(&format!("tcpreplay --topspeed -i {there} {file}"));
}

fn written(path: &str) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path.as_ref()).unwrap();
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    while reader.next(&mut frame).unwrap().is_some() {
        frames.push(frame.clone());
    }
    frames
}

#[test]
fn any_is_all_interfaces_and_those_that_appear_later() {
    let (folder, namespace) = (Folder::new("live-any"), Namespace::new("la"));
    namespace.disable_ipv6("default");
    namespace.run("ip link set lo up");
    let [sent, path] = ["sent.pcap", "out.pcapng"].map(|name| folder.path(name));
    write_frames(&sent, &frames(20));
    let capture = format!("capture any --write {path} --only type:0x88b5,icmp --count 44 --seconds 60 --json");
    let mut capture = Process::start(&mut inside(&namespace, &capture));
    capture.await_error("packet:any: all interfaces, AF_PACKET rings, link up");
    replay_into_new_pair(&namespace, ["a0", "a1"], &sent, || ());
    replay_into_new_pair(&namespace, ["b0", "b1"], &sent, || ());
    // Two requests and two replies on the loopback interface.
    namespace.run("ping -q -c 2 -i 0.01 127.0.0.1");
    let (code, said) = capture.ended();
    let all = written(&path);
    let ours: Vec<Vec<u8>> = all.iter().filter(|frame| frame[12..14] == [0x88, 0xB5]).cloned().collect();
    assert_eq!((code, all.len(), ours), (Some(0), 44, [frames(20), frames(20)].concat()), "{said}");
    let said = text(&expect(1, &mut inside(&namespace, "gen packet:any --count 1 --seconds 9")).stderr);
    assert!(said.contains("it receives from all interfaces; to send, name one"), "{said}");
}
