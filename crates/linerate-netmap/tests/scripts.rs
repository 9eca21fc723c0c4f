//! The checks of netmap's scripts 012 to 027 (`utils/tests` in its repository), with this crate's programs. They check
//! which frames copying and zero-copy monitors get, and when. They also check that switch ports, persistent ports,
//! pipes and interfaces pass frames in both directions. For script 024 (veth interfaces), see `interfaces.rs`.
//!
//! As in the scripts, other descriptors keep the ports open, and share their rings with the sending and receiving
//! programs.

use kit::World;
use linerate::share::{Client, RingCounts};

#[allow(dead_code)] // each test uses only a part
mod kit;

/// Frames per test. They fit in a ring, so that none is dropped.
const COUNT: usize = 100;
/// Lengths of frames that take one slot, and several slots.
const LENGTHS: [usize; 2] = [60, 5000];

/// Two ports that receive each other's frames.
struct Pair {
    world: World,
    /// The name of the monitored port on its switch or pipe.
    near: String,
    /// The name of the same port as monitors write it: a persistent port has no switch in its name.
    monitored: String,
    /// The port at the other end.
    far: String,
}

/// Returns three pairs: ephemeral ports of a switch, a persistent and an ephemeral port of a switch, and the ends of a
/// pipe.
fn pairs(test: &str) -> [Pair; 3] {
    let names = [
        (format!("vale{test}e:a"), format!("vale{test}e:a"), format!("vale{test}e:b")),
        (format!("vale{test}p:last{test}"), format!("last{test}"), format!("vale{test}p:b")),
        (format!("{test}{{1"), format!("{test}{{1"), format!("{test}}}1")),
    ];
    names.map(|(near, monitored, far)| {
        let world = World::served(0o600);
        if near != monitored {
            persist(&world, &near);
        }
        Pair { world, near, monitored, far }
    })
}

/// Makes a persistent port and attaches it to its switch.
fn persist(world: &World, name: &str) {
    let (switch, port) = name.split_once(':').unwrap();
    let client = || Client::find(world.folder.path(), switch).unwrap().unwrap();
    client().create(port, RingCounts::default()).unwrap();
    client().attach(switch, port, false, RingCounts::default()).unwrap();
}

fn all() -> String {
    format!("received {COUNT} bad 0 disordered 0 missing 0")
}

impl Pair {
    fn start(&self, words: &str, port: &str, rest: &str) -> kit::Process {
        self.world.start(format!("{words} {port} {rest}").trim_end())
    }

    /// Sends from `from` with a copying monitor that must get all frames before `to` receives them.
    fn is_copied_before_it_is_received(&self, from: &str, to: &str, monitor: &str) {
        for len in LENGTHS {
            let (_from, _to) = (self.start("open", from, ""), self.start("open", to, ""));
            let monitor = self.start("receive", monitor, &format!("{COUNT} poll"));
            let sender = self.start("send", from, &format!("{COUNT} {len} poll"));
            monitor.expect_line(&all());
            self.start("receive", to, &format!("{COUNT} poll")).expect_line(&all());
            sender.expect_line(&format!("sent {COUNT}"));
        }
    }
}

/// Scripts 012, 013, 014.
#[test]
fn a_monitor_copies_frames_that_its_port_has_not_read() {
    for pair in pairs("Sa") {
        pair.is_copied_before_it_is_received(&pair.far, &pair.near, &format!("{}/r", pair.monitored));
    }
}

/// Scripts 018, 019, 020.
#[test]
fn a_monitor_copies_sent_frames_that_their_receiver_has_not_read() {
    for pair in pairs("Sb") {
        pair.is_copied_before_it_is_received(&pair.near, &pair.far, &format!("{}/t", pair.monitored));
    }
}

/// Scripts 015, 016, 017.
#[test]
fn a_zero_copy_monitor_waits_until_its_port_has_read() {
    for pair in pairs("Sc") {
        let _near = pair.start("open", &pair.near, "");
        let holder = pair.start("hold", &pair.monitored, &COUNT.to_string());
        let sender = pair.start("send", &pair.far, &format!("{COUNT} 60 poll"));
        holder.expect_line(&all());
        sender.expect_line(&format!("sent {COUNT}"));
    }
}

/// Scripts 025, 026: a switch copies, so sent slots are free immediately.
#[test]
fn a_zero_copy_monitor_of_a_switch_s_port_does_not_wait_for_a_receiver() {
    for pair in pairs("Sd").into_iter().filter(|pair| pair.near.starts_with("vale")) {
        for len in LENGTHS {
            let (_near, _far) = (pair.start("open", &pair.near, ""), pair.start("open", &pair.far, ""));
            let monitor = pair.start("receive", &format!("{}/z", pair.monitored), &format!("{COUNT} poll"));
            let sender = pair.start("send", &pair.near, &format!("{COUNT} {len} poll"));
            monitor.expect_line(&all());
            sender.expect_line(&format!("sent {COUNT}"));
            pair.start("receive", &pair.far, &format!("{COUNT} poll")).expect_line(&all());
        }
    }
}

/// Script 027: a pipe returns a slot when its receiver has released it.
#[test]
fn a_zero_copy_monitor_of_a_pipe_waits_for_the_other_end() {
    let [_, _, pipe] = pairs("Se");
    for len in LENGTHS {
        let _far = pipe.start("open", &pipe.far, "");
        let mut keeper = pipe.start("keep", &pipe.near, &format!("{COUNT} {len}"));
        assert_eq!(keeper.line(), "blocked", "{}", keeper.end().2);
        pipe.start("receive", &pipe.far, &format!("{COUNT} poll")).expect_line(&all());
        keeper.expect_line(&all());
    }
}

/// Scripts 021, 022.
#[test]
fn every_other_port_of_a_switch_receives_a_broadcast() {
    for is_persistent in [false, true] {
        let world = World::served(0o600);
        let switch = if is_persistent { "valeSfp" } else { "valeSfe" };
        let ports = ["v0", "v1", "v2"].map(|port| format!("{switch}:{port}Sf"));
        if is_persistent {
            ports.iter().for_each(|port| persist(&world, port));
        }
        let _held = ports.each_ref().map(|port| world.start(&format!("open {port}")));
        for sender in [2, 0] {
            let others = ports.iter().enumerate().filter(|(n, _)| *n != sender);
            let receivers: Vec<_> =
                others.map(|(_, port)| world.start(&format!("receive {port} {COUNT} poll"))).collect();
            world.start(&format!("send {} {COUNT} 274 poll", ports[sender])).expect_line(&format!("sent {COUNT}"));
            for receiver in receivers {
                receiver.expect_line(&all());
            }
        }
    }
}

/// Script 023.
#[test]
fn a_pipe_passes_frames_in_both_directions() {
    let [_, _, pipe] = pairs("Sg");
    let _held = (pipe.start("open", &pipe.near, ""), pipe.start("open", &pipe.far, ""));
    for (from, to) in [(&pipe.far, &pipe.near), (&pipe.near, &pipe.far)] {
        for len in LENGTHS {
            let receiver = pipe.start("receive", to, &format!("{COUNT} poll"));
            pipe.start("send", from, &format!("{COUNT} {len} poll")).expect_line(&format!("sent {COUNT}"));
            receiver.expect_line(&all());
        }
    }
}
