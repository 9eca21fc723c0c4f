//! Runs a program that only uses netmap's interface (`program.c`) with the shared object, in separate processes; this
//! process is the server.

use kit::{Process, World};

#[allow(dead_code)] // each test uses only a part
mod kit;

#[test]
fn packets_pass_pipes_without_copies_however_a_program_waits() {
    let world = World::served(0o600);
    for (how, len, count) in
        [("poll", 60, 200_000), ("select", 1500, 100_000), ("epoll", 9000, 20_000), ("busy", 60, 200_000)]
    {
        // A pipe uses the memory of the process that opens it. "@1" puts both pipes in one memory, so that buffers can
        // be swapped.
        let bridge = world.start(&format!("bridge x}}1@1 y{{1@1 {count} {how}"));
        let receiver = world.start(&format!("receive y}}1 {count} {how}"));
        let sender = world.start(&format!("send x{{1 {count} {len} {how}"));
        sender.expect_line(&format!("sent {count}"));
        bridge.expect_line(&format!("moved {count} swapped 1"));
        receiver.expect_line(&format!("received {count} bad 0 disordered 0 missing 0"));
    }
}

#[test]
fn packets_pass_a_switch_whole_and_in_order() {
    let world = World::served(0o600);
    for (how, len) in [("poll", 60), ("select", 1514), ("epoll", 5000)] {
        // A switch drops packets when there is no room, so the sender sends more than are received. Each round has its
        // own switch, without packets of the previous sender.
        let receiver = world.start(&format!("receive valeT{how}:b 50000 {how}"));
        let _sender = world.start(&format!("send valeT{how}:a 100000000 {len} {how}"));
        let (code, said) = receiver.ended();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.starts_with("received ") && said.contains(" bad 0 disordered 0 "), "{said}");
    }
}

#[test]
fn the_first_program_starts_a_missing_server() {
    let world = World::new();
    let receiver = world.start("receive valeT2:b 20000 poll");
    let _sender = world.start("fill valeT2:a");
    assert_eq!(receiver.ended().0, Some(0));
}

#[test]
fn the_older_api_is_answered_as_well() {
    let world = World::served(0o600);
    let receiver = world.start("receive old:x}5 10000 poll");
    let sender = world.start("send old:x{5 10000 300 poll");
    sender.expect_line("sent 10000");
    receiver.expect_line("received 10000 bad 0 disordered 0 missing 0");
}

#[test]
fn rings_are_opened_one_by_one_and_by_direction() {
    let world = World::served(0o600);
    // "#" requests two ring pairs; packets arrive at the ring with the same number.
    let second = world.start("receive valeT4:b-1# 1000 poll");
    let _other = world.start("open valeT4:b-0");
    let _sender = world.start("send valeT4:a-1# 100000000 60 poll");
    assert_eq!(second.ended().0, Some(0));
    let receiver = world.start("receive valeU4:b/R 1000 poll");
    let _opposite = world.start("open valeU4:b/T");
    // An equal request shares the rings; requests that overlap otherwise are rejected.
    let _same = world.start("open valeU4:b/R");
    assert!(world.refused("open valeU4:b").contains("taken already"));
    let _sender = world.start("send valeU4:a/T 100000000 60 poll");
    assert_eq!(receiver.ended().0, Some(0));
    assert!(world.refused("open valeU4:b-7").contains("no such rings"));
    assert!(world.refused("open valeU4:b^").contains("no such rings"));
}

#[test]
fn a_monitor_gets_sent_and_received_packets() {
    let world = World::served(0o600);
    let _port = world.start("fill valeT5:a");
    let _other = world.start("receive valeT5:b 100000000 poll");
    for monitor in ["valeT5:a/t", "valeT5:a/zrt", "valeT5:b/r"] {
        let (code, said) = world.start(&format!("receive {monitor} 5000 poll")).ended();
        assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{monitor}: {said}");
    }
    assert!(world.refused("open valeT5:none/r").contains("not open"));
}

/// The server sees the packets of a pipe between two processes only while the pipe has monitors.
#[test]
fn a_pipe_between_processes_has_monitors() {
    let world = World::served(0o600);
    assert!(world.refused("open seen{7/t").contains("not open"));
    let other = world.start("open seen}7");
    assert!(world.refused("open seen{7/t").contains("not open"), "only its other end is");
    drop(other);
    {
        let _receiver = world.start("receive seen}7 100000000 poll");
        let _sender = world.start("fill seen{7");
        for monitor in ["seen{7/t", "seen}7/zrt", "seen}7/r", "seen{7/rt"] {
            let (code, said) = world.start(&format!("receive {monitor} 5000 poll")).ended();
            assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{monitor}: {said}");
        }
    }
    // Monitors that are idle, or that start and stop, lose copies; the pipe loses no packets.
    for len in [60, 5000] {
        let receiver = world.start("receive seen}8 100000 poll");
        let _idle = world.start("open seen}8/r");
        let sender = world.start(&format!("send seen{{8 100000 {len} poll"));
        for _ in 0..3 {
            // The sender may already have ended and closed its port.
            let mut monitor = Process::start(&mut world.command("open seen{8/rt"));
            assert!(monitor.line() == "ready" || monitor.end().2.contains("not open"));
        }
        sender.expect_line("sent 100000");
        receiver.expect_line("received 100000 bad 0 disordered 0 missing 0");
    }
}

#[test]
fn an_exclusive_port_is_refused_to_others() {
    let world = World::served(0o600);
    let alone = world.start("open valeT6:a/x");
    assert!(world.refused("open valeT6:a").contains("taken already"));
    drop(alone);
    let _shared = world.start_soon("open valeT6:a/T");
    assert!(world.refused("open valeT6:a/xT").contains("taken already"));
    let _other_ring = world.start("open valeT6:a/xR");
    let _pipe = world.start("open p{1");
    assert!(world.refused("open p{1/x").contains("open already"));
    let _same = world.start("open p{1");
    assert!(world.refused("open p{1-0").contains("open already"));
}

#[test]
fn a_process_that_is_killed_leaves_its_ports_to_others() {
    let world = World::served(0o600);
    let receiver = world.start("receive valeT7:c 200000 poll");
    for round in 0..20 {
        // Kill the sender at an arbitrary moment.
        let mut victim = world.start_soon("fill valeT7:a");
        let pipe = world.start_soon("fill x{1");
        for _ in 0..round {
            std::thread::yield_now();
        }
        victim.child.kill().unwrap();
        drop(pipe);
    }
    let _last = world.start_soon("fill valeT7:a");
    let (code, said) = receiver.ended();
    // Each sender begins with frame 0, so the frames are not in order.
    assert!(code == Some(1) && said.contains(" bad 0 "), "{said}");
}

#[test]
fn the_end_of_the_server_is_an_error() {
    let mut world = World::served(0o600);
    let waiting = world.start("receive valeT8x:b 1 poll");
    let mut selecting = world.start("receive valeT8x:c 1 select");
    let busy = world.start("fill valeT8:a");
    let busy_on_a_pipe = world.start("fill x{1");
    world.server = None;
    for (process, what) in [(waiting, "poll"), (busy, "gone"), (busy_on_a_pipe, "gone")] {
        let (status, _, errors) = process.end();
        assert!(status.code() == Some(1) && errors.contains(what), "{errors}");
    }
    // select(2) reports an error as a ready descriptor, so the receiver retries forever.
    selecting.child.kill().unwrap();
}

#[test]
fn the_socket_s_permissions_admit_users() {
    let world = World::served(0o600);
    let mut process = Process::start(&mut world.command_of_nobody("open valeT9:a"));
    assert_eq!(process.line(), "");
    let errors = process.end().2;
    assert!(errors.contains("Permission denied") && errors.contains("another mode or group"), "{errors}");

    let world = World::served(0o666);
    assert_eq!(Process::start(&mut world.command_of_nobody("open valeT9:a")).line(), "ready");
}

#[test]
fn invalid_names_are_refused() {
    let world = World::served(0o600);
    for (name, why) in [
        ("valeT10:", "letters, digits"),
        ("valeT10:a%b", "letters, digits"),
        ("valeT10:longer_than_possible", "15 characters each"),
        ("nothing0", "no such interface"),
    ] {
        let said = world.refused(&format!("open {name}"));
        assert!(said.contains(why), "{name}: {said}");
    }
}

/// `NS_NO_LEARN` and `NS_INDIRECT`.
#[test]
fn flags_of_slots_count_on_a_switch() {
    let world = World::served(0o600);
    let mut listeners = ["b", "c"].map(|port| world.start(&format!("hear valeFl:{port}")));
    let mut hear = |what: &str| listeners.iter_mut().for_each(|listener| assert_eq!(listener.line(), what));
    let _no_learn_and_indirect = world.start("say valeFl:d ff 11 18");
    hear("11 to ff");
    // The switch has not learned address 11, so all ports receive the frame.
    let _other = world.start("say valeFl:e 11 22 0");
    hear("22 to 11");
    let _learned = world.start("say valeFl:f ff 33 0");
    hear("33 to ff");
    // A frame for address 33 goes only to its port; the next frame that all ports receive is from address 55.
    let _to_one = world.start("say valeFl:g 33 44 0");
    let _to_all = world.start("say valeFl:h ff 55 0");
    hear("55 to ff");
}

/// `NS_INDIRECT`, up to 65,535 bytes, the maximum of a slot.
#[test]
fn packets_outside_buffers_can_be_long() {
    let world = World::served(0o600);
    for len in [60, 2048, 2049, 65_535] {
        let receiver = world.start("receive valeIn:b 300 poll");
        // A switch drops packets when there is no room, so more are sent than received.
        let sender = world.start(&format!("indirect valeIn:a 3000 {len}"));
        sender.expect_line("sent 3000");
        let (code, said) = receiver.ended();
        assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{len}: {said}");
    }
}
