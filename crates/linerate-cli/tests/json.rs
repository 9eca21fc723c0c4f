//! The JSON of each command, validated against its schema (`docs/json.schema.json`) by Debian's jsonschema.

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use kit::{Folder, OutputTimeout, Process, expect, linerate, text};

/// Prints each line of a file that violates the schema, with the reason, and the number of lines.
const CHECK: &str = r#"
import json, sys
from jsonschema import Draft202012Validator

schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
validator, count = Draft202012Validator(schema), 0
for line in open(sys.argv[2]):
    count += 1
    for error in validator.iter_errors(json.loads(line)):
        while error.context:
            error = max(error.context, key=lambda inner: len(inner.absolute_path))
        print(f"{error.json_path}: {error.message[:300]}\n  {line}")
print(count)
"#;

#[test]
fn the_json_of_each_command_is_as_its_schema_says() {
    let folder = Folder::new("json");
    let path = |name: &str| folder.path(name);
    let (streams, captured, written) = (path("streams.toml"), path("in.pcap"), path("a.pcapng"));
    std::fs::write(&streams, "[[stream]]\ncount = 10\n[[stream]]\nname = 'x'\nrate = 1000\ncount = 10").unwrap();
    let edited = path("edited.pcap");
    let (to_capture, socket, report) = (format!("pcap:{captured}?write"), path("socket"), path("report"));
    expect(0, &mut linerate(&["gen", &to_capture, "--rate", "20k", "--count", "200", "--seconds", "60"]));

    let cable = ["sim:j2?wire=sim:j3", "sim:j3?wire=sim:j2"];
    let words: [&[&str]; 22] = [
        &["fwd", "sim:j0?rate=10k", "sim:j1?rate=10k", "--seconds", "1.2"],
        &["fwd", "sim:j0?rate=10k", "sim:j1", "--count", "1000", "--profile", "--seconds", "60"],
        &["link", "sim:j0?rate=10k", "sim:j1?rate=10k", "--loss", "1%", "--delay", "1ms", "--seconds", "0.3"],
        &["filter", "sim:j0?rate=10k", "--only", "udp", "--count", "100", "--seconds", "60"],
        &["gen", "null:", "--streams", &streams, "--seconds", "60"],
        &["gen", "null:", "--count", "10", "--reply", "arp", "--address", "10.0.0.1", "--seconds", "60"],
        &["gen", "null:", "--rate", "1000G", "--seconds", "0.3"],
        &["replay", &captured, "null:", "--seconds", "60"],
        &["replay", &captured, "null:", "--top", "--with", &captured, "--seconds", "60", "--port", "9=10"],
        &["edit", &captured, &edited, "--port", "9=10"],
        &["sink", "sim:j0?rate=10k", "--count", "100", "--reply", "arp", "--address", "10.0.0.1", "--seconds", "60"],
        &["sink", "faulty:sim:j0?rate=100k&drop=10%&seed=1", "--seconds", "0.3"],
        &["capture", "sim:j0?rate=10k", "--count", "100", "--write", &written, "--seconds", "60"],
        &["capture", "sim:j0?rate=10k", "--count", "3", "--seconds", "60"],
        &["latency", "J{0", "J}0", "--rate", "10k,1000G", "--seconds", "0.3"],
        &["latency", "J{0", "J}0", "J{1", "J}1", "--rate", "10k", "--seconds", "0.3"],
        &["latency", cable[0], cable[1], "--stamps", "card", "--rate", "10k", "--seconds", "0.3"],
        &["rfc2544", "J{0", "J}0", "--rate", "10k", "--sizes", "64", "--seconds", "0.1", "--out", &report],
        &["bench", "--quick", "--only", "netmap", "--out", &report],
        &["ports"],
        &["ports", "--capabilities", "sim:j4", "vale0:j"],
        &["sim", "--socket", &socket, "--seconds", "0.3"],
    ];
    let mut lines = String::new();
    for words in words {
        let output = linerate(words).arg("--json").output_in_time().unwrap();
        let shown = text(&output.stdout);
        assert!(shown.lines().count() > 0 && shown.ends_with('\n'), "{words:?}: {shown}{}", text(&output.stderr));
        lines += &shown;
    }
    // A server with a port that a program uses.
    let ports = path("ports");
    let with_ports = |words: &[&str]| {
        let mut command = linerate(words);
        command.env("LINERATE_PORTS", &ports);
        command
    };
    let mut server = Process::start(&mut with_ports(&["serve", "vale0", "--seconds", "60"]));
    server.await_output("vale0");
    let mut sink = Process::start(&mut with_ports(&["sink", "vale0:a", "--seconds", "60", "--json"]));
    sink.await_error("vale0:a");
    lines += &text(&expect(0, &mut with_ports(&["switch", "list", "--json"])).stdout);

    // A run that is controlled, and the answers to requests.
    let control = path("control");
    let words = ["gen", "null:", "--rate", "1k", "--json", "--seconds", "60", "--control", &control];
    let mut run = Process::start(&mut linerate(&words));
    run.await_error("control: ");
    let client = UnixStream::connect(&control).unwrap();
    for request in
        [r#"{"rate":"2k"}"#, r#"{"pause":true,"reset":true}"#, r#"{"rate":"full"}"#, "{1}", r#"{"stop":true}"#]
    {
        (&client).write_all(format!("{request}\n").as_bytes()).unwrap();
        let answer = BufReader::new(&client).lines().next().unwrap().unwrap();
        assert_eq!(answer.contains("error"), request == "{1}", "{answer}");
        lines += &(answer + "\n");
    }
    lines += &run.ended().1;

    // Rules: the answers, and the changes of the summary.
    let mut run =
        Process::start(&mut linerate(&["sink", "sim:j0", "--json", "--seconds", "60", "--control", &control]));
    run.await_error("control: ");
    run.await_output("\"seconds\":");
    for words in [
        &["add", "sim:j0", "from:10.0.0.0/8", "drop"][..],
        &["add", "sim:j0", "arp", "queue:0"],
        &["list"],
        &["remove", "sim:j0", "1"],
    ] {
        let words = [&["rule"][..], words, &["--json", "--control", &control]].concat();
        lines += &text(&expect(0, &mut linerate(&words)).stdout);
    }
    lines += &run.interrupt().1;

    let (script, list) = (path("check.py"), path("lines"));
    std::fs::write(&script, CHECK).unwrap();
    std::fs::write(&list, &lines).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.schema.json");
    let said = text(&expect(0, Command::new("/usr/bin/python3").args([&script, schema, &list])).stdout);
    assert_eq!(said, format!("{}\n", lines.lines().count()));
}

/// The counters in a card's registers are in the summary, and with `--registers` also in the text.
#[test]
fn a_summary_has_the_registers_of_cards() {
    let words = ["gen", "sim:registers?wire=sink", "--count", "1000", "--seconds", "60"];
    let shown = text(&expect(0, linerate(&words).arg("--json")).stdout);
    let summary: serde_json::Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    let registers = &summary["summary"]["ports"][0]["registers"];
    assert_eq!((&registers["GPTC"], &registers["PTC64"]), (&1000.into(), &1000.into()), "{shown}");
    assert!(registers.as_object().unwrap().values().all(|count| count.as_u64() > Some(0)), "{shown}");

    let line = |text: &str| text.lines().find(|line| line.trim_start().starts_with("GPTC ")).map(str::to_string);
    let with = text(&expect(0, linerate(&words).arg("--registers")).stdout);
    assert!(line(&with).is_some_and(|line| line.ends_with(" 1000")), "{with}");
    assert_eq!(line(&text(&expect(0, &mut linerate(&words)).stdout)), None);

    let shown = text(&expect(0, &mut linerate(&["gen", "null:", "--count", "10", "--json", "--seconds", "60"])).stdout);
    assert!(!shown.contains("\"registers\""), "{shown}");
}
