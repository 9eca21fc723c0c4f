//! `linerate serve` and `linerate switch`: ports of one process in other processes.

use std::process::Command;

use kit::{
    Deadline, Namespace, OutputTimeout, Process, expect, inside, linerate, pair, summary, text, until, write_frames,
};

mod kit;

/// A folder of sockets, and its server.
struct World {
    folder: tempfile::TempDir,
    server: Option<Process>,
}

impl World {
    fn serving(arguments: &str) -> World {
        let mut world = World { folder: tempfile::tempdir().unwrap(), server: None };
        let mut server = Process::start(&mut world.command(&format!("serve{arguments}")));
        server.await_output(world.folder.path().to_str().unwrap());
        world.server = Some(server);
        world
    }

    fn command(&self, words: &str) -> Command {
        let mut command = linerate(&words.split(' ').collect::<Vec<_>>());
        command.env("LINERATE_PORTS", self.folder.path());
        command
    }

    fn fails(&self, words: &str) -> String {
        text(&expect(1, &mut self.command(words)).stderr)
    }

    /// Returns the error text of a command that is refused for its usage.
    fn is_usage(&self, words: &str) -> String {
        text(&expect(2, &mut self.command(words)).stderr)
    }

    fn succeeds(&self, words: &str) -> String {
        text(&expect(0, &mut self.command(words)).stdout)
    }
}

const COUNT: u64 = 20_000;

/// Waits until a command has opened its port. The first end of a pipe to be opened has no link yet.
fn await_open(process: &mut Process, port: &str) {
    match port.ends_with("}1") {
        true => {
            process.await_error(&format!("{port}: waiting for the link, at most 10 s; is the pipe's other end open?"))
        }
        false => process.await_output("ports"),
    };
}

/// A packet of several slots counts once.
#[test]
fn chains_of_other_processes_are_packets() {
    let world = World::serving("");
    let long = world.folder.path().join("long.pcap").display().to_string();
    write_frames(&long, &vec![vec![0x55; 5000]; 40]);
    let mut fwd = world.command("fwd vale0:b?mtu=9000 null: --count 40 --seconds 60 --json");
    let mut fwd = Process::start(&mut fwd);
    fwd.await_output("ports");
    let sent =
        summary(world.succeeds(&format!("fwd pcap:{long} vale0:a?mtu=9000 --count 40 --seconds 60 --json")).as_bytes());
    assert_eq!(sent["packets"], 40, "{sent}");
    let (code, said) = fwd.ended();
    let forwarded = summary(said.as_bytes());
    let port = &forwarded["ports"][0];
    assert_eq!((code, &forwarded["packets"], &port["rx_packets"]), (Some(0), &40.into(), &40.into()), "{forwarded}");
    assert_eq!(port["rx_slots"][0], 120, "they are chains: {forwarded}");
}

/// A name is the same port in all processes: a switch copies packets, a pipe loses none.
#[test]
fn commands_meet_at_served_ports() {
    let world = World::serving("");
    for (from, to, wait) in
        [("vale0:a", "vale0:b", "interrupt"), ("p{1", "p}1", "poll"), ("vale0:c?queues=1", "vale0:d", "adaptive")]
    {
        // The ring has room for a fifth of a second, so that the switch need not drop packets.
        let sink = format!("sink {to} --count {COUNT} --seconds 30 --json --ring 4096 --wait {wait}");
        let mut sink = Process::start(&mut world.command(&sink));
        await_open(&mut sink, to);
        world.succeeds(&format!("gen {from} --count {COUNT} --rate 20k --size 300 --ring 4096 --seconds 30"));
        let (code, said) = sink.ended();
        let sink = summary(said.as_bytes());
        let got =
            (code, sink["ports"][0]["rx_packets"].as_u64(), sink["reordered"].as_u64(), sink["corrupted"].as_u64());
        assert_eq!(got, (Some(0), Some(COUNT), Some(0), Some(0)), "{sink}");
    }
}

/// Monitors of the packets that other processes send and receive; a monitor itself sends nothing.
#[test]
fn ports_of_other_processes_are_monitored() {
    let world = World::serving("");
    for (from, to, seen) in [("vale0:a", "vale0:b", "vale0:a/t"), ("p{1", "p}1", "p}1+r")] {
        let started = |words: String| {
            let mut started = Process::start(&mut world.command(&words));
            await_open(&mut started, words.split(' ').nth(1).unwrap());
            started
        };
        let _sink = started(format!("sink {to} --seconds 60 --json"));
        // The port must exist before it can be monitored.
        let _port = from.starts_with("vale").then(|| started(format!("sink {from} --queues 1 --seconds 60 --json")));
        let monitor = started(format!("sink {seen} --count {COUNT} --seconds 30 --json --ring 4096"));
        world.succeeds(&format!("gen {from} --count {COUNT} --rate 20k --ring 4096 --seconds 30"));
        let (code, said) = monitor.ended();
        let got = summary(said.as_bytes());
        let got = (code, got["ports"][0]["rx_packets"].as_u64(), got["reordered"].as_u64());
        assert_eq!(got, (Some(0), Some(COUNT), Some(0)), "{seen}: {said}");
        assert!(world.fails(&format!("gen {seen} --count 1")).contains("a monitor only receives"));
    }
    assert!(world.fails("sink vale0:absent/r --seconds 1").contains("not open"));
}

/// Each packet that is sent to a receiver is received, or counted by cause at the receiver.
#[test]
fn packets_that_a_slow_program_misses_are_its_drops() {
    let world = World::serving("");
    let longer = world.folder.path().join("longer.pcap").display().to_string();
    write_frames(&longer, &vec![vec![0x55; 3000]; 7]);
    // One of 8,192 slots always stays empty, and each long packet uses two.
    const RECEIVED: u64 = 8191 - 7 * 2;
    let sink = format!("sink vale0:b --count {RECEIVED} --seconds 60 --json");
    let mut sink = Process::start(&mut world.command(&sink));
    sink.await_output("ports");
    // A monitor of the packets that the sink receives.
    let mut monitor = Process::start(&mut world.command("sink vale0:b/r --seconds 60 --json"));
    monitor.await_output("ports");
    monitor.pause(true);
    sink.pause(true);
    let sent = world.succeeds(&format!("fwd pcap:{longer} vale0:a?mtu=9000 --count 7 --seconds 30 --json"));
    assert_eq!(summary(sent.as_bytes())["packets"], 7, "{sent}");
    world.succeeds(&format!("gen vale0:a --count {COUNT} --seconds 30"));
    sink.pause(false);
    let (code, said) = sink.ended();
    let got = summary(said.as_bytes());
    let port = &got["ports"][0];
    let drops = serde_json::json!({"no_descriptor": COUNT - RECEIVED, "oversize": 7});
    assert_eq!((&port["rx_packets"], &port["drops"]), (&RECEIVED.into(), &drops), "{code:?} {got}");
    // The monitored port is closed: packets that the monitor has not received yet are still counted.
    monitor.pause(false);
    let (code, said) = monitor.ended();
    let got = summary(said.as_bytes());
    let port = &got["ports"][0];
    let seen = port["rx_packets"].as_u64().zip(port["drops"]["no_descriptor"].as_u64());
    let counts_all = seen.is_some_and(|(seen, dropped)| dropped > 0 && seen + dropped == RECEIVED);
    assert!(counts_all && code != Some(0), "{code:?} {got}");
}

#[test]
fn served_ports_are_listed_and_managed() {
    let world = World::serving("");
    let _sink = {
        let mut sink = Process::start(&mut world.command("sink vale0:b --seconds 60 --json"));
        sink.await_output("ports");
        sink
    };
    let said = world.fails("sink vale0:b --seconds 1");
    assert!(
        said.contains("vale0:b: receive queue 0 is taken already: a queue has one owner at a time\n  end the program that has it, or choose "),
        "{said}"
    );
    world.succeeds("gen vale0:a --count 1000 --seconds 30");
    let listed = || {
        let listed: serde_json::Value = serde_json::from_str(&world.succeeds("switch list --json")).unwrap();
        listed["ports"].as_array().unwrap().iter().find(|port| port["name"] == "vale0:b").unwrap().clone()
    };
    let counted = |port: &serde_json::Value| port["rx_packets"].as_u64().unwrap() + port["drops"].as_u64().unwrap();
    // Packets that wait for a program without a processor are neither received nor dropped yet.
    assert!((0..200).any(|_| counted(&listed()) == 1000), "{}", listed());
    assert!(world.succeeds("switch list").contains("vale0:b"));

    // A permanent port that no program uses.
    world.succeeds("switch create v1");
    assert!(world.fails("switch create v1").contains("exists already"));
    assert!(world.fails("sink netmap:v1 --seconds 1").contains("not attached to a switch"));
    assert!(world.succeeds("switch attach vale0:v1").contains("vale0:v1 is port"));
    assert!(world.fails("switch attach vale0:v1").contains("open already"));
    // It can be attached to several switches; its own name refers to the first.
    world.succeeds("switch attach vale1:v1");
    world.succeeds("switch detach vale1:v1");
    assert!(
        world
            .fails("switch destroy v1")
            .contains("attached to vale0\n  detach it first: linerate switch detach vale0:v1")
    );
    let mut last = Process::start(&mut world.command("sink netmap:v1 --count 100 --seconds 60 --json"));
    last.await_output("ports");
    assert!(world.fails("switch detach vale0:v1").contains("open already"));
    world.succeeds("gen vale0:x --count 100 --seconds 30");
    assert_eq!(last.ended().0, Some(0));
    assert!(world.succeeds("switch list").contains("vale0:v1"));
    world.succeeds("switch detach vale0:v1");
    world.succeeds("switch destroy v1");
    assert!(world.fails("switch destroy v1").contains("no such persistent port"));
    assert!(world.fails("switch detach vale0:v1").contains("not attached"));
    assert!(world.is_usage("switch attach vale0:nothing0").contains("no such interface"));
    assert!(text(&expect(2, &mut world.command("switch attach nothing")).stderr).contains("valeS:P"));
}

/// Sockets with the same file name need different port names. Each listed name can be detached.
#[test]
fn a_port_of_a_machine_may_have_a_name_of_its_own() {
    let world = World::serving("");
    let folder = |name: &str| {
        let path = world.folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path.join("net.sock").display().to_string()
    };
    let [a, b, c] = ["a", "b", "with-a.longer-name"].map(folder);
    world.succeeds(&format!("switch attach vale2:vhost:{a}"));
    assert!(world.fails(&format!("switch attach vale2:vhost:{b}")).contains("open already"));
    world.succeeds(&format!("switch attach vale2:vhost:{b} --name vm_b"));
    let long = c.replace("net.sock", "a-socket.of_a-long-name");
    world.succeeds(&format!("switch attach vale2:vhost:{long}"));
    for (name, why) in [("a:b", "letters, digits"), ("", "letters, digits"), ("sixteen_letters_", "at most 15")] {
        let mut command = world.command("switch attach");
        let said = text(&expect(2, command.arg(format!("vale2:vhost:{c}")).args(["--name", name])).stderr);
        assert!(said.contains(why), "{said}");
    }
    assert!(
        world
            .is_usage(&format!("switch attach vale2:vhost:{c} --host"))
            .contains("only an interface has the kernel's stack")
    );
    let listed = world.succeeds("switch list");
    // A machine sends 8 frames to the switch, which count as coming from its port.
    let sent = "gen virtio-user:SOCKET --count 8 --rate 1k --seconds 60".replace("SOCKET", &b);
    world.succeeds(&sent);
    for name in ["vale2:net_sock", "vale2:vm_b", "vale2:_of_a_long_name"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    let listed = world.succeeds("switch list");
    let line = |name: &str| -> Vec<String> {
        let line = listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {listed}"));
        line[name.len()..].split_whitespace().map(str::to_string).collect()
    };
    // Number, to the port, from the port, dropped.
    assert_eq!(line("vale2:vm_b")[1..], ["0", "8", "0"], "{listed}");
    assert_eq!(line(&format!("vhost:{b}"))[1..], ["0", "8", "0"], "{listed}");
    // Frames that are too long for the machine are counted as drops in its port's line.
    let mut machine = Process::start(&mut world.command(&format!("sink virtio-user:{a} --seconds 60 --json")));
    machine.await_output("ports");
    let dropped = || -> u64 {
        let listed = world.succeeds("switch list");
        let line = listed.lines().find(|line| line.starts_with(&format!("vhost:{a}"))).unwrap();
        line.split_whitespace().next_back().unwrap().parse().unwrap()
    };
    let before = dropped();
    world.succeeds("gen vale2:c --size 3000 --mtu 9000 --count 8 --rate 1k --seconds 60");
    until("the frames are counted", || dropped() == before + 8);
    drop(machine);
    assert!(world.fails("switch detach vale2:vmb").contains("not attached"));
    world.succeeds("switch detach vale2:vm_b");
    world.succeeds("switch detach vale2:a-socket.of_a-long-name");
    world.succeeds(&format!("switch detach vale2:vhost:{a}"));
    assert!(!world.succeeds("switch list").contains("vale2"));
}

/// Cards of virtual machines, here driven by virtio-user, are ports of a switch, and each packet is accounted for.
#[test]
fn machines_are_ports_of_a_switch() {
    let world = World::serving("");
    let [near, far] = ["near", "far"].map(|name| world.folder.path().join(name).display().to_string());
    for socket in [&near, &far] {
        assert!(world.succeeds(&format!("switch attach vale0:vhost:{socket}")).contains(" is port"));
    }
    let mut sink = Process::start(&mut world.command(&format!("sink virtio-user:{far} --seconds 60 --json")));
    sink.await_output("ports");
    world.succeeds(&format!("gen virtio-user:{near} --count {COUNT} --rate 20k --seconds 30"));
    let ports = || -> Vec<serde_json::Value> {
        let list: serde_json::Value = serde_json::from_str(&world.succeeds("switch list --json")).unwrap();
        list["ports"].as_array().unwrap().clone()
    };
    let counted = |name: &str| {
        let port = ports().into_iter().find(|port| port["name"] == name).unwrap();
        ["rx_packets", "tx_packets", "drops"].map(|key| port[key].as_u64().unwrap())
    };
    let dropped = || ports().iter().map(|port| port["drops"].as_u64().unwrap()).sum::<u64>();
    let (near, far) = (format!("vhost:{near}"), format!("vhost:{far}"));
    // Wait for the last packets in flight. Each machine's port is joined to a port of the switch, and both may drop
    // some.
    let deadline = Deadline::begin();
    while counted(&near)[0] < COUNT || counted(&far)[1] + dropped() < COUNT {
        deadline.check(|| format!("{COUNT} packets: {}", world.succeeds("switch list --json")));
        std::thread::yield_now();
    }
    let (code, said) = sink.interrupt();
    let got = summary(said.as_bytes());
    assert_eq!(got["packets"].as_u64(), Some(counted(&far)[1]), "{code:?} {got}");
    // The sink cannot notice that the last packets are missing, so `lost` may be less.
    assert!(got["lost"].as_u64() <= Some(dropped()), "{got}");
    // Paths are relative to the client's working directory, which differs from the server's.
    for command in ["attach", "detach"] {
        let command = format!("switch {command} vale0:vhost:third");
        expect(0, world.command(&command).current_dir(world.folder.path()));
        assert_eq!(world.folder.path().join("third").exists(), command.contains("attach"), "{command}");
    }
}

/// The switch receives from all queues of a machine's port, and sends to the first one.
#[test]
fn all_queues_of_a_machine_reach_the_switch() {
    let world = World::serving("");
    let socket = world.folder.path().join("queues").display().to_string();
    world.succeeds(&format!("switch attach vale3:vhost:{socket}?queues=3"));
    let mut machine = Process::start(
        &mut world.command(&format!("sink virtio-user:{socket}?queues=3 --queues 3 --seconds 60 --json")),
    );
    machine.await_output("ports");
    world.succeeds(&format!("gen vale3:a --flows 8 --count {COUNT} --rate 20k --ring 4096 --seconds 30"));
    let counted = |key: &str| -> u64 {
        let list: serde_json::Value = serde_json::from_str(&world.succeeds("switch list --json")).unwrap();
        let ports = list["ports"].as_array().unwrap().iter().filter(|port| port["name"] == "vale3:queues");
        ports.map(|port| port[key].as_u64().unwrap()).sum()
    };
    let until = |passed: &dyn Fn() -> u64, count: u64| {
        let deadline = Deadline::begin();
        while passed() < count {
            deadline.check(|| format!("{count} packets: {}", world.succeeds("switch list --json")));
        }
    };
    // The machine drops packets if it is too slow.
    until(&|| counted("rx_packets") + counted("drops"), COUNT);
    let (_, said) = machine.interrupt();
    let machine = summary(said.as_bytes());
    assert!(machine["ports"][0]["rx_packets"].as_u64() > Some(0), "{machine}");
    let from_machine = || counted("tx_packets") + counted("drops");
    let (before, generator) = (from_machine(), format!("gen virtio-user:{socket}?queues=3 --queues 3 --flows 9"));
    world.succeeds(&format!("{generator} --count {COUNT} --rate 20k --seconds 30"));
    until(&from_machine, before + COUNT);
}

/// A card that is attached to a switch can be reached only through the switch.
#[test]
fn cards_are_ports_of_a_switch() {
    let world = World::serving("");
    // Rings with room for a fifth of a second, too.
    for port in ["vale0:sim:0?wire=sim:1&ring=4096", "vale1:sim:1?wire=sim:0&ring=4096"] {
        assert!(world.succeeds(&format!("switch attach {port}")).contains(" is port"));
    }
    let sink = format!("sink vale1:b --count {COUNT} --seconds 30 --json --ring 4096");
    let mut sink = Process::start(&mut world.command(&sink));
    sink.await_output("ports");
    // Sends more than the sink counts, as some may be dropped on a busy machine.
    let generator = Process::start(&mut world.command("gen vale0:a --rate 20k --ring 4096 --seconds 30"));
    let got = summary(sink.ended().1.as_bytes());
    generator.interrupt();
    let counts = ["reordered", "duplicated", "corrupted"].map(|count| got[count].as_u64());
    assert_eq!((got["ports"][0]["rx_packets"].as_u64(), counts), (Some(COUNT), [Some(0); 3]), "{got}");
    let list = world.succeeds("switch list");
    assert!(list.contains("vale0:sim_0") && list.contains("vale1:sim_1"), "{list}");
    assert!(world.fails("switch attach vale1:sim:0").contains("open already"));
    assert!(world.is_usage("switch attach vale1:nothing:0").contains("no kind of port"));
    // An endless flow from the card's wire blocks neither other programs nor the end of a program.
    world.succeeds("switch attach vale2:sim:2?wire=traffic");
    let flood = summary(&world.command("sink vale2:b --seconds 1 --json").output_in_time().unwrap().stdout);
    assert!(flood["ports"][0]["rx_packets"].as_u64() > Some(0), "{flood}");
    world.succeeds("switch detach vale2:sim:2");
    world.succeeds("switch attach vale2:sim:2?wire=none");
    // Its listed name can be used, too.
    assert!(world.succeeds("switch list").contains("vale2:sim_2"));
    world.succeeds("switch detach vale2:sim_2");
    assert!(!world.succeeds("switch list").contains("vale2:sim_2"));
}

/// A user of a switch cannot make the server use its privileges.
#[test]
fn only_root_and_the_servers_user_manage() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let world = World::serving(" --mode 0666");
    std::fs::set_permissions(world.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // An unprivileged user may have no access to the build folder.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::set_permissions(elsewhere.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = elsewhere.path().join("linerate");
    // Copied by a separate process: a file that this process writes may still be open in another test's child when
    // it is run.
    expect(0, Command::new("cp").arg(env!("CARGO_BIN_EXE_linerate")).arg(&program));
    let as_nobody = |code: i32, words: &str| {
        let mut command = Command::new(&program);
        command.args(words.split(' ')).env("LINERATE_PORTS", world.folder.path());
        command.current_dir("/").uid(65_534).gid(65_534);
        expect(code, &mut command)
    };
    as_nobody(0, "gen vale0:a --count 10 --seconds 30 --pages ordinary");
    as_nobody(0, "switch list");
    for words in ["switch create v1", "switch destroy v1", "switch attach vale0:lo", "switch detach vale0:lo"] {
        let said = text(&as_nobody(1, words).stderr);
        assert!(said.contains("only root and the server's own user"), "{words}: {said}");
    }
}

/// Each switch's socket has its own permissions, and serves only this switch.
#[test]
fn each_switch_has_a_socket() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::serving(" vale1 vale2 --mode 0640");
    let mode = |name: &str| std::fs::metadata(world.folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("vale1"), mode("vale2")), (0o640, 0o640));
    world.succeeds("gen vale1:a --count 10 --seconds 30");
    // These switches have no server: they exist only in the process.
    world.succeeds("gen vale3:a --count 10 --seconds 30");
    assert!(world.fails("switch create v1").contains("linerate serve"));
    assert!(world.fails("serve vale1").contains("another process serves it"));
    let refused = expect(2, &mut world.command("serve vale9 --group no_such_group"));
    assert!(kit::text(&refused.stderr).contains("getent group"));
    assert_eq!(expect(2, &mut world.command("serve --mode 9")).status.code(), Some(2));
    // The socket `any` serves all names, also if it is named explicitly.
    let world = World::serving(" any");
    world.succeeds("switch create v1");
}

#[test]
fn the_end_of_the_server_ends_its_users() {
    let mut world = World::serving("");
    let mut sink = Process::start(&mut world.command("sink vale0:b --seconds 60 --json"));
    sink.await_output("ports");
    assert_eq!(world.server.take().unwrap().interrupt().0, Some(0));
    sink.await_error("the process that served it is gone");
    assert_eq!(sink.ended().0, Some(1));
    // The server's sockets are removed, too, so names are local to each process again.
    assert_eq!(
        std::fs::read_dir(world.folder.path()).unwrap().flatten().filter(|entry| entry.file_name() != ".lock").count(),
        0
    );
}

/// The packets of a switch's port, and of an interface, are divided between two programs by flow. One is killed, and
/// the next program gets its share.
#[test]
fn a_served_port_is_handed_out_to_several_programs() {
    let [here, there] = ["handed", "hander"].map(Namespace::new);
    [&here, &there].iter().for_each(|namespace| namespace.disable_ipv6("default"));
    pair((&here, "v0"), (&there, "v1"), 11);
    // Linux does not use it.
    here.run("ip address flush dev v0");
    let folder = tempfile::tempdir().unwrap();
    let command = |words: &str| {
        let mut command = inside(&here, words);
        command.env("LINERATE_PORTS", folder.path());
        command
    };
    let mut server = Process::start(&mut command("serve"));
    server.await_output(folder.path().to_str().unwrap());
    for port in ["vale0:a", "netmap:v0"] {
        let sink = || {
            let mut sink = Process::start(&mut command(&format!("sink {port}?cluster=2&by=flow --seconds 60 --json")));
            sink.await_output("ports");
            sink
        };
        let (first, second) = (sink(), sink());
        let refused = |options: &str, code: i32, why: &str| {
            let said = text(&expect(code, &mut command(&format!("sink {port}{options} --seconds 1"))).stderr);
            assert!(said.contains(why), "{port}{options}: {said}");
        };
        refused("?cluster=2&by=flow", 1, "are taken, with cluster=2");
        refused("?cluster=3&by=flow", 1, "is distributed with cluster=2&by=flow");
        refused("?cluster=2&by=turn", 1, "is distributed with cluster=2&by=flow");
        refused("", 1, "is distributed with cluster=2&by=flow");
        // Killed, instead of ended.
        drop(first);
        let third = sink();
        let mut sender = match port {
            "vale0:a" => command("gen vale0:b --flows 64 --rate 20k --count 4000 --seconds 60 --json"),
            _ => inside(&there, "gen packet:v1 --flows 64 --rate 20k --count 4000 --seconds 60 --json"),
        };
        expect(0, &mut sender);
        let counts = [second, third].map(|sink| {
            // Frames that it was too slow to receive are counted.
            let said = summary(sink.interrupt().1.as_bytes());
            let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
            assert_eq!(
                (&said["reordered"], &said["corrupted"], &said["duplicated"]),
                (&0.into(), &0.into(), &0.into())
            );
            [number(&said["packets"]), number(&said["ports"][0]["drops"]["no_descriptor"])]
        });
        let sum: u64 = counts.iter().flatten().sum();
        assert_eq!(sum, 4000, "{port}: {counts:?}");
        assert!(counts.iter().all(|[received, _]| *received > 0), "{port}: {counts:?}");
    }
}
