//! Examples in the help of each command, and the kinds of ports in the help of `ports`.

use clap::Command;
use linerate::KINDS;

/// The examples of each command; a subcommand has the name of its command in front. Each line is a command, optionally
/// followed by two spaces, a # and a description.
pub const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "linerate",
        &[
            "linerate ports                                          # list ports, and what prevents their use",
            "linerate fwd sim:0 sim:1 --seconds 5                    # needs no card and no privileges",
            "linerate gen vale0:a --rate 1M --seconds 5",
        ],
    ),
    (
        "fwd",
        &[
            "linerate fwd sim:0 sim:1 --seconds 5                    # between two models that send and check packets",
            "linerate fwd 0000:03:00.0 0000:03:00.1 --queues 4       # between two cards",
            "linerate fwd xdp:eth0 host: --only udp:53               # some packets only",
        ],
    ),
    (
        "link",
        &[
            "linerate link tap:t0 tap:t1 --delay 20ms --rate 50Mbit --queue 100kB",
            "linerate link sim:0 sim:1 --delay 10ms/1ms --loss 1% --burst 4 --seconds 2",
            "linerate link --rate 12Mbit --queue 100kB --delay 40ms -- curl https://example.com/",
        ],
    ),
    (
        "exec",
        &[
            "linerate exec --port vale0:a --net -- iperf3 -s &        # the first free address: 10.53.0.1",
            "linerate exec --port vale0:b --net -- iperf3 -c 10.53.0.1",
            "linerate exec --port xdp:eth1 --address dhcp -- bash    # a shell in the network of eth1",
        ],
    ),
    (
        "filter",
        &[
            "linerate filter xdp:eth0 xdp:eth1 --drop tcp:23",
            "linerate filter 'sim:0?rate=1M' --only udp --seconds 2  # count matching packets",
            "linerate filter pcap:in.pcap 'pcap:dns.pcap?write' --only udp:53  # keeps times, lengths and comments",
        ],
    ),
    (
        "gen",
        &[
            "linerate gen 'sim:0?wire=sink' --rate 14.88M --seconds 5",
            "linerate gen packet:eth0 --packet 'eth/ip(src=10.0.0.0/24)/udp(dport=53)/payload(64)' --rate 10k",
            "linerate gen null: --size imix --rate 1Gbit --gaps poisson --seconds 2",
            "linerate gen vale0:a --streams streams.toml             # docs/generate.md",
            "linerate gen null: --rate 1M --control /tmp/gen.socket  # docs/wires.md: change the rate while it runs",
        ],
    ),
    (
        "replay",
        &[
            "linerate replay in.pcap packet:eth0 --exact             # with its original timing",
            "linerate replay in.pcap null: --top --loop 0 --seconds 1",
            "linerate replay in.pcap packet:eth0 packet:eth1 --split first-syn",
        ],
    ),
    (
        "edit",
        &[
            "linerate edit in.pcap out.pcap --map 10.0.0.0/8=198.18.0.0/15 --port 80=8080",
            "linerate edit in.pcap out.pcap --set 'ip(ttl=-1)' --push 'vlan(id=7)'",
        ],
    ),
    (
        "sink",
        &[
            "linerate sink 'sim:0?size=1518&rate=10Gbit' --seconds 5",
            "linerate sink packet:eth0 --address 10.0.1.2/24 --gateway 10.0.1.1   # behind a router",
        ],
    ),
    (
        "capture",
        &[
            "linerate capture 'sim:0?rate=100k' --write a.pcapng --seconds 1",
            "linerate capture xdp:eth0 --only udp:53                 # one line per packet",
            "linerate capture any --user daemon                      # all interfaces; without root once it has begun",
        ],
    ),
    (
        "latency",
        &[
            "linerate latency sim:0 sim:1 --rate 100k,1M             # of fwd, from wire to wire",
            "linerate latency packet:eth0 packet:eth1 --rate 10k     # of the path between two ports",
            "linerate latency packet:eth0 packet:eth1 --address dhcp,dhcp --both   # through a router",
        ],
    ),
    (
        "rfc2544",
        &[
            "linerate rfc2544 0000:03:00.0 0000:03:00.1              # trials of 60 s",
            "linerate rfc2544 packet:eth0 packet:eth1 --rate 100k --sizes 64,1518 --seconds 2 --only throughput,latency",
            "linerate rfc2544 packet:eth0 packet:eth1 packet:eth2 packet:eth3 --rate 100k --both   # two pairs",
        ],
    ),
    ("bench", &["linerate bench --quick", "linerate bench --only batch,parts --out report"]),
    ("bind", &["linerate bind 0000:03:00.0", "linerate bind 0000:03:00.0 --uio"]),
    ("unbind", &["linerate unbind 0000:03:00.0"]),
    ("sim", &["linerate sim --socket /tmp/a --wire 'traffic?rate=1M'", "linerate sim --socket /tmp/a --socket /tmp/b"]),
    ("serve", &["linerate serve", "linerate serve vale0 --mode 0660 --group users"]),
    ("switch", &["linerate switch list", "linerate switch attach vale0:eth0"]),
    ("switch list", &["linerate switch list --json"]),
    ("switch attach", &["linerate switch attach vale0:eth0 --host", "linerate switch attach vale0:sim:0"]),
    ("switch detach", &["linerate switch detach vale0:eth0"]),
    ("switch create", &["linerate switch create v1"]),
    ("switch destroy", &["linerate switch destroy v1"]),
    (
        "rule",
        &[
            "linerate fwd 0000:03:00.0 0000:03:00.1 --queues 4 --control /tmp/fwd.socket",
            "linerate rule add 0000:03:00.0 ip+udp:53 queue:3 --control /tmp/fwd.socket",
        ],
    ),
    (
        "rule add",
        &[
            "linerate rule add 0000:03:00.0 ip+udp:53 queue:3 --control /tmp/fwd.socket",
            "linerate rule add 0000:03:00.0 from:192.0.2.0/24 drop --control /tmp/fwd.socket",
        ],
    ),
    ("rule remove", &["linerate rule remove 0000:03:00.0 0 --control /tmp/fwd.socket"]),
    ("rule list", &["linerate rule list --control /tmp/fwd.socket"]),
    ("vm", &["linerate vm vhost:/tmp/vm", "linerate vm vhost:/tmp/vm --run -- -nographic disk.qcow2"]),
    ("extcap", &["linerate extcap --install"]),
    ("man", &["linerate man ~/.local/share/man/man1"]),
    ("completions", &["linerate completions fish"]),
];

/// Examples of names that [`KINDS`] lacks, with descriptions.
pub const NAMES: [(&str, &str); 2] = [
    ("sim:0?wire=tap:t0", "a model with another port as its wire"),
    ("sim:0?cluster=2&by=flow", "any port, shared by several consumers"),
];

/// Lists the kinds of ports with an example each, and on request with their options.
pub fn kinds(with_options: bool) -> String {
    let mut text =
        "Kinds of ports, with examples (quote names with ?, & or { for the shell;\nwrite such a character of an \
                    interface or a path as in URLs, as packet:lab%3F1):\n"
            .to_string();
    for kind in KINDS {
        text += &format!("  {:27}  {}\n", kind.example, kind.summary);
        for option in kind.options.iter().filter(|_| with_options) {
            let default =
                if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
            text += &format!("      {:32} {}{default}\n", option.to_string(), option.help);
        }
    }
    NAMES.iter().for_each(|(example, what)| text += &format!("  {example:27}  {what}\n"));
    text.trim_end().to_string()
}

/// Adds the examples to the help of all commands.
pub fn add_to(grammar: Command) -> Command {
    add_below("", grammar)
}

fn add_below(parent: &str, grammar: Command) -> Command {
    grammar.mut_subcommands(|command| {
        let name = format!("{parent} {}", command.get_name()).trim_start().to_string();
        let examples = EXAMPLES.iter().find(|(of, _)| *of == name);
        let command = match examples {
            Some((_, lines)) => command.after_help(format!("Examples:\n  {}", lines.join("\n  "))),
            None => command,
        };
        add_below(&name, command)
    })
}

#[cfg(test)]
mod tests {
    use linerate::port::Address;

    use super::*;

    /// The table in docs/wires.md matches the declared kinds.
    #[test]
    fn the_table_of_names_is_that_of_the_kinds() {
        let page = include_str!("../../../docs/wires.md");
        let row = |kind: &&linerate::port::PortKind| {
            // A page lists the options of a kind with many.
            let (shown, more) = if kind.options.len() > 20 { (6, " …") } else { (20, "") };
            let options: Vec<String> =
                kind.options.iter().take(shown).map(|option| format!("`{}`", option.name)).collect();
            let of_port = if matches!(kind.address, Address::Port) { ", and those of the port" } else { "" };
            let name = kind.example.split('?').next().unwrap_or_default();
            let see = match kind.page {
                "wires.md" => "here".to_string(),
                page => format!("[{page}]({page})"),
            };
            format!(
                "| {}, as `{name}` | {} | {}{more}{of_port} | {see} |\n",
                kind.notation(),
                kind.summary,
                options.join(", ")
            )
        };
        let table: String = KINDS.iter().map(row).collect();
        assert!(page.contains(&table), "the table of docs/wires.md is this:\n{table}");
    }
}
