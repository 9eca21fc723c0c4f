//! Containers: cards whose interfaces are in other network namespaces, capabilities and limits.

mod kit;

use kit::{Namespace, OutputTimeout, Process, alone, expect, linerate, pair, summary, text, with_mounts};
use serde_json::Value;

/// Makes a folder of sysfs for an 82599 with Linux's driver, in place of the machine's; `$1` is the name of its
/// interface, or empty if sysfs shows none, and `$2` to `$4` are the interface's index, address and flags. Nothing of
/// the machine's can be bound or unbound, as the rest of sysfs is hidden.
const SYSFS: &str = "mount -t tmpfs none /sys && mount -t tmpfs none /run && \
    card=/sys/bus/pci/devices/0000:03:00.0 && mkdir -p $card/net /sys/bus/pci/drivers/ixgbe /sys/class/net && \
    echo 0x020000 > $card/class && echo 0x8086 > $card/vendor && echo 0x10fb > $card/device && \
    ln -s /sys/bus/pci/drivers/ixgbe $card/driver && \
    if [ \"$1\" ]; then mkdir $card/net/$1 /sys/class/net/$1 && cd /sys/class/net/$1 && \
        echo $2 > ifindex && echo $3 > address && echo $4 > flags; fi && cd / && shift 4 && exec \"$@\"";

/// Returns exit code and output of a command in a namespace, with a card whose interface is as in [`SYSFS`].
fn with_card(namespace: &Namespace, interface: [&str; 4], arguments: &str) -> (Option<i32>, String) {
    let script = with_mounts(SYSFS);
    let mut command = namespace.of([script.get_program()].into_iter().chain(script.get_args()));
    command.args(interface).arg(env!("CARGO_BIN_EXE_linerate")).args(arguments.split(' '));
    let output = command.output_in_time().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

const CARD: &str = "0000:03:00.0";
const HIDDEN: [&str; 4] = [""; 4];

/// Linux uses a card whose interface this process cannot see.
#[test]
fn a_card_of_another_namespace_is_in_use() {
    let container = Namespace::new("cn");
    container.run("ip link add c0 address 02:00:00:00:00:c0 type veth peer name c1");
    let index = container.run("cat /sys/class/net/c0/ifindex");
    let own = ["c0", index.trim(), "02:00:00:00:00:c0", "0x1002"];
    // The interface is not in sysfs, or sysfs is that of another namespace, whose interface has the same name.
    let of_others = [
        (HIDDEN, "ixgbe has bound it, and its interface is not in this network namespace"),
        (["h0", "2", "02:00:00:00:00:01", "0x1002"], "its interface h0 is in another network namespace"),
        ([own[0], own[1], "02:00:00:00:00:01", own[3]], "its interface c0 is in another network namespace"),
        ([own[0], "4711", own[2], own[3]], "its interface c0 is in another network namespace"),
    ];
    for (interface, reason) in of_others {
        let (code, said) = with_card(&container, interface, "ports");
        assert!(code == Some(0) && said.contains(reason) && said.contains("do not take it from Linux"), "{said}");
        assert!(!said.contains("linerate bind"), "{said}");
        for command in [format!("bind {CARD}"), format!("fwd {CARD} null: --bind --seconds 1")] {
            let (code, said) = with_card(&container, interface, &command);
            assert!(code == Some(1) && said.contains("Linux is using it") && said.contains("--force"), "{said}");
            assert!(said.contains(reason), "{said}");
        }
        let (code, said) = with_card(&container, interface, &format!("fwd {CARD} null: --seconds 1"));
        assert!(code == Some(1) && said.contains(reason) && said.contains("run it in that namespace"), "{said}");
        let (code, said) = with_card(&container, interface, &format!("bind --force {CARD}"));
        assert!(code == Some(0) && said.contains(CARD), "{said}");
    }
    // An interface of this namespace that Linux does not use.
    let (code, said) = with_card(&container, own, "ports");
    assert!(code == Some(0) && said.contains("to use it: sudo linerate bind 0000:03:00.0"), "{said}");
    assert!(!said.contains("network namespace"), "{said}");
    assert_eq!(with_card(&container, own, &format!("bind {CARD}")).0, Some(0));
}

/// The machine's own cards, as Linux shows them in another namespace. The test only reads.
#[test]
fn the_machine_s_cards_are_in_use_in_every_namespace() {
    let cards = |command: &mut std::process::Command| {
        let ports: Value = serde_json::from_str(&text(&expect(0, command).stdout)).unwrap();
        ports["cards"].as_array().unwrap().clone()
    };
    let container = Namespace::new("cm");
    let binary = env!("CARGO_BIN_EXE_linerate");
    let with_sysfs_of_namespace = cards(&mut container.command(&format!("{binary} ports --json")));
    let path = format!("--net=/run/netns/{}", container.name);
    let with_sysfs_of_machine = cards(std::process::Command::new("nsenter").args([&path, binary, "ports", "--json"]));
    for (n, card) in cards(&mut linerate(&["ports", "--json"])).iter().enumerate() {
        // Cards without a driver of linerate's have no notes.
        if card["what"].is_null() || card["interfaces"].as_array().unwrap().is_empty() {
            continue;
        }
        assert!(!card["notes"].to_string().contains("network namespace"), "{card}");
        for card in [&with_sysfs_of_namespace[n], &with_sysfs_of_machine[n]] {
            assert!(card["notes"].to_string().contains("network namespace"), "{card}");
            assert!(!card["notes"].to_string().contains("linerate bind"), "{card}");
        }
    }
}

/// Returns a command in a namespace with the capabilities and the limit of a container's options.
fn contained(namespace: &Namespace, options: &[&str], port: &str) -> std::process::Command {
    let after = |option: &str| {
        let pairs = options.windows(2).filter(move |pair| pair[0] == option);
        pairs.map(|pair| pair[1].to_string()).collect::<Vec<_>>()
    };
    let capabilities: String = after("--cap-add").iter().map(|one| format!(",+{}", one.to_lowercase())).collect();
    // The limit of a container without the option.
    let limit = after("--ulimit").pop().unwrap_or("memlock=65536".to_string());
    let mut command = namespace.command("setpriv --inh-caps=-all");
    command.arg(format!("--bounding-set=-all{capabilities}"));
    command.args(["prlimit", &format!("--{limit}")]);
    command.args([env!("CARGO_BIN_EXE_linerate"), "sink", port, "--count", "1", "--seconds", "20", "--json"]);
    command
}

/// The command in docs/packages.md works with exactly its options; without any of them, the error names the option.
#[test]
fn the_documented_container_receives_with_af_xdp() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ch"), Namespace::new("cf"));
    pair((&host, "eth0"), (&far, "f0"), 3);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/packages.md")).unwrap();
    let (_, rest) = page.split_once("### AF_XDP in a container\n\n```sh\n").expect("the documented command");
    let command = rest.split_once("```").unwrap().0.replace("\\\n", " ");
    let (options, rest) = command.split_once(" linerate sink ").unwrap();
    let port = rest.trim().trim_matches('\'').replace("udp:4321", "icmp");
    let options: Vec<&str> = options.split_whitespace().collect();
    let given: Vec<usize> = (0..options.len()).filter(|n| matches!(options[*n], "--cap-add" | "--ulimit")).collect();
    assert_eq!(given.len(), 5, "{options:?}");
    for without in given {
        let fewer = [&options[..without], &options[without + 2..]].concat();
        let output = contained(&host, &fewer, &port).output_in_time().unwrap();
        let (missing, said) = (options[without..without + 2].join(" "), text(&output.stderr));
        assert!(output.status.code() == Some(1) && said.contains(&missing), "without {missing}: {said}");
    }
    // The default rings need more memory than the limit.
    let output = contained(&host, &options, "xdp:eth0?flow=icmp").output_in_time().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("32768 KiB must be locked") && said.contains("--ulimit memlock=33554432"), "{said}");
    let mut sink = Process::start(&mut contained(&host, &options, &port));
    sink.await_error("link up");
    drop(far.command("ping -q -c 10 -i 0.2 -W 1 10.87.3.1").output_in_time().unwrap());
    let (code, said) = sink.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(summary(said.as_bytes())["ports"][0]["rx_packets"].as_u64() >= Some(1), "{said}");
}
