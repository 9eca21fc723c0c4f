//! `--control`: a program controls a run.

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use kit::{Deadline, Folder, OutputTimeout, Process, Timely, expect, linerate, summary, text};
use serde_json::{Value, json};

/// A client of a run's control socket.
struct Client(BufReader<Timely<UnixStream>>);

impl Client {
    fn connect(path: &str) -> Client {
        Client(BufReader::new(Timely(UnixStream::connect(path).unwrap())))
    }

    /// Sends a request, and returns the answer.
    fn ask(&mut self, line: &str) -> Value {
        self.0.get_mut().0.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.answer().unwrap_or_else(|| panic!("no answer to {line}"))
    }

    /// Returns the next answer; `None` at the end of the connection.
    fn answer(&mut self) -> Option<Value> {
        let mut answer = String::new();
        let count = self.0.read_line(&mut answer).unwrap_or_else(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => panic!("no answer: {error}"),
            _ => 0,
        });
        (count > 0).then(|| serde_json::from_str(&answer).unwrap_or_else(|why| panic!("{answer}: {why}")))
    }

    /// Asks for the state until it is as expected.
    #[track_caller]
    fn until(&mut self, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        let deadline = Deadline::begin();
        loop {
            let state = self.ask("{}");
            deadline.check(|| format!("another state than {state}"));
            if is_so(&state) {
                return state;
            }
        }
    }
}

/// Starts a command with a control socket, and waits until it listens there.
fn start(words: &[&str], socket: &str) -> Process {
    let mut run = Process::start(linerate(words).args(["--seconds", "100", "--json", "--control", socket]));
    run.await_error("control: ");
    run
}

fn sent(state: &Value) -> u64 {
    state["ports"][0]["tx"]["packets"].as_u64().unwrap()
}

#[test]
fn a_generator_takes_other_rates_pauses_and_ends() {
    let folder = Folder::new("control");
    let socket = folder.path("socket");
    let mut run = start(&["gen", "sim:0?wire=sink", "--rate", "1000"], &socket);
    let mut client = Client::connect(&socket);
    let state = client.ask("{}");
    assert_eq!((&state["asked_mpps"], &state["paused"]), (&json!(0.001), &json!(false)), "{state}");
    run.await_output("\"seconds\":");

    // A hundred times as many.
    let state = client.ask(r#"{"rate":"100k"}"#);
    assert_eq!(state["asked_mpps"], json!(0.1), "{state}");
    let before = sent(&state);
    client.until(|state| sent(state) > before + 20_000);

    let state = client.ask(r#"{"pause":true,"reset":true}"#);
    assert_eq!(state["paused"], json!(true), "{state}");
    assert!(sent(&state) < 1000, "the counters began at zero: {state}");
    // Frames in the ring are still sent; then the count does not change.
    let mut last = client.ask("{}");
    run.await_output("\"cycles_per_packet\":null");
    let still = client.until(|state| {
        let is_still = sent(state) == sent(&last);
        last = state.clone();
        is_still
    });
    let mut other = Client::connect(&socket);
    assert_eq!(sent(&other.ask("{}")), sent(&still), "paused");
    other.ask(r#"{"pause":false}"#);
    client.until(|state| sent(state) > sent(&still));

    // To full speed, and from there to a rate again.
    assert_eq!(client.ask(r#"{"rate":"full"}"#)["asked_mpps"], Value::Null);
    let half = client.ask(r#"{"rate":"50%"}"#)["asked_mpps"].clone();
    assert!((half.as_f64().unwrap() - 7.440476).abs() < 1e-5, "of 10 Gbit/s: {half}");
    assert_eq!(client.ask(r#"{"rate":"100Gbit"}"#)["asked_mpps"], Value::Null, "beyond the line");

    for (line, why) in [
        ("", "a JSON object"),
        ("null", "a JSON object on one line, with any of the fields pause, rate, link, rule, reset and stop"),
        ("{", "the line ends before the object does"),
        (r#"{"pause":maybe}"#, "it is not JSON from column 10 on"),
        (r#"{"rule":{}}"#, "the value at column 10 has another form"),
        (r#"{"rule":1}"#, "has another form"),
        ("pause", "a JSON object"),
        ("[]", "a JSON object"),
        (r#"{"pause":true,"speed":1}"#, "unknown field `speed`"),
        (r#"{"pause":true,"pause":false}"#, "duplicate field `pause`"),
        (r#"{"pause":null}"#, "invalid type: null"),
        (r#"[true]"#, "a JSON object"),
        (r#"{"rate":"0"}"#, "a rate is positive"),
        (r#"{"rate":"1M"} {"rate":"2M"}"#, "it is not JSON from column 15 on"),
    ] {
        let said = client.ask(line);
        assert!(
            said["error"].as_str().is_some_and(|said| said.contains(why) && !said.contains("struct")),
            "{line}: {said}"
        );
    }
    assert_eq!(client.ask("{}")["paused"], json!(false), "of a bad request nothing is done");
    let mut long = Client::connect(&socket);
    long.0.get_mut().0.write_all(&[b' '; 5000]).unwrap();
    assert!(long.answer().unwrap()["error"].as_str().unwrap().contains("at most 4096 bytes"));
    assert_eq!(long.answer(), None, "and its connection ends");

    client.ask(r#"{"stop":true}"#);
    let (code, rest) = run.ended();
    assert_eq!(code, Some(0), "{rest}");
    let summary = kit::summary(rest.as_bytes());
    let changes = summary["summary"]["changes"].as_array().or(summary["changes"].as_array()).unwrap();
    let kinds: Vec<Value> = changes
        .iter()
        .map(|change| {
            let mut change = change.clone();
            assert!(change["seconds"].is_number());
            change.as_object_mut().unwrap().remove("seconds");
            change
        })
        .collect();
    let asked = [
        json!({"rate_mpps": 0.1}),
        json!({"pause": true, "reset": true}),
        json!({"pause": false}),
        json!({"rate_mpps": "full"}),
        json!({"rate_mpps": half}),
        json!({"rate_mpps": "full"}),
        json!({"stop": true}),
    ];
    assert_eq!(kinds, asked);
    assert_eq!((&summary["unreached"], &summary["interrupted"]), (&json!([]), &json!(false)));
    assert!(!Path::new(&socket).exists(), "the socket is removed");
}

/// Streams keep their shares of the rate; other commands have no rate.
#[test]
fn only_senders_have_a_rate() {
    let folder = Folder::new("control-rate");
    let (socket, streams) = (folder.path("socket"), folder.path("streams.toml"));
    std::fs::write(&streams, "[[stream]]\nrate = 1000\n[[stream]]\nrate = 3000\nsize = 128").unwrap();
    let run = start(&["gen", "null:", "--streams", &streams], &socket);
    let mut client = Client::connect(&socket);
    client.ask(r#"{"rate":"10k"}"#);
    client.until(|state| sent(state) > 5000);
    let (_, rest) = run.interrupt();
    let streams = kit::summary(rest.as_bytes())["gen"]["streams"].clone();
    let [few, many] = [0, 1].map(|n| streams[n]["packets"].as_f64().unwrap());
    // A thread that lacks a processor drops more frames of the faster stream.
    assert!((2.0..4.0).contains(&(many / few)), "{streams}");

    // After a request that changes nothing, a shortfall is still reported.
    let run = start(&["gen", "sim:0?wire=none", "--rate", "100k"], &socket);
    let mut client = Client::connect(&socket);
    client.ask(r#"{"rate":"100k","pause":false}"#);
    // Wait until more frames are due than fit into the ring of the card, which has no link.
    client.until(|state| state["seconds"].as_f64() > Some(1.0));
    let (_, rest) = run.interrupt();
    assert_eq!(kit::summary(rest.as_bytes())["unreached"].as_array().unwrap().len(), 1, "{rest}");

    let run = start(&["fwd", "sim:0", "sim:1"], &socket);
    let mut client = Client::connect(&socket);
    let said = client.ask(r#"{"rate":"1M","pause":true}"#);
    assert_eq!(said["error"], "fwd has no rate that can change; gen has");
    assert_eq!(client.ask("{}")["paused"], json!(false), "nothing of a request that is refused is done");
    // A run that is paused when it ends forwards the frames in flight, and loses none.
    client.ask(r#"{"pause":true}"#);
    let (code, rest) = run.interrupt();
    assert_eq!((code, &kit::summary(rest.as_bytes())["lost"]), (Some(0), &json!(0)), "{rest}");
}

/// Requests at the end of a run are answered, too.
#[test]
fn all_requests_to_end_are_answered() {
    let folder = Folder::new("control-ends");
    let socket = folder.path("socket");
    for _ in 0..20 {
        let run = start(&["gen", "null:", "--rate", "1k"], &socket);
        let mut clients = [(); 4].map(|()| Client::connect(&socket));
        clients.iter_mut().for_each(|client| drop(client.ask("{}")));
        // A request after the end fails to be written.
        let has_come = clients.each_mut().map(|client| client.0.get_mut().0.write_all(b"{\"stop\":true}\n").is_ok());
        for (client, _) in clients.iter_mut().zip(has_come).filter(|(_, has_come)| *has_come) {
            let answer = client.answer().expect("an answer");
            let is_late = answer["error"] == json!("the run has ended");
            assert!(is_late || answer["ports"].is_array(), "{answer}");
        }
        assert_eq!(run.ended().0, Some(0));
    }
}

#[test]
fn a_socket_belongs_to_one_run_and_its_user() {
    let folder = Folder::new("control-socket");
    let socket = folder.path("socket");
    // A socket that was left behind is replaced.
    drop(UnixListener::bind(&socket).unwrap());
    let run = start(&["sink", "sim:0?rate=1k"], &socket);
    let second = linerate(&["sink", "sim:1", "--control", &socket]).output_in_time().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another run already listens there"), "{}", text(&second.stderr));
    let file = folder.path("file");
    std::fs::write(&file, "kept").unwrap();
    let refused = text(&expect(2, &mut linerate(&["sink", "sim:1", "--control", &file])).stderr);
    assert!(refused.contains("a file that is not a socket exists there"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let nowhere = folder.path("none/socket");
    let refused = text(&expect(1, &mut linerate(&["sink", "sim:1", "--control", &nowhere])).stderr);
    assert!(refused.contains("an existing folder"), "{refused}");

    // Another user is refused, even if the socket's permissions allow access.
    let ask = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{socket}'); print(s.makefile().readline())"
    );
    let as_other = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", &ask]);
        command.output_in_time().unwrap()
    };
    let output = as_other();
    assert!(text(&output.stderr).contains("Permission denied"), "{}", text(&output.stderr));
    for path in [&socket, &folder.path("")] {
        expect(0, Command::new("chmod").args(["o+rwx", path]));
    }
    let output = as_other();
    assert!(
        text(&output.stdout).contains("the run belongs to another user"),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert_eq!(Client::connect(&socket).ask("{}")["paused"], json!(false));
    // A file that replaces the socket is not removed.
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "kept").unwrap();
    assert_eq!(run.interrupt().0, Some(0));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "kept");
}

/// A note reports packets that a back end did not receive.
#[test]
fn packets_that_a_back_end_does_not_take_are_not_sent() {
    let folder = Folder::new("untaken");
    let (path, socket) = (folder.path("vhost"), folder.path("control"));
    let sink = start(&["sink", &format!("vhost:{path}")], &socket);
    let mut client = Client::connect(&socket);
    assert_eq!(client.ask(r#"{"pause":true}"#)["paused"], json!(true));
    let name = format!("virtio-user:{path}");
    let output =
        expect(0, &mut linerate(&["gen", &name, "--count", "200", "--rate", "50k", "--seconds", "2", "--json"]));
    let (said, port) = (text(&output.stderr), &summary(&output.stdout)["ports"][0]);
    assert_eq!((&port["tx_packets"], &port["unsent"]), (&json!(0), &json!(200)), "{said}");
    assert!(said.contains("200 packets were queued but not sent"), "{said}");
    assert_eq!(summary(&output.stdout)["packets"], json!(0));
    sink.interrupt();
}

/// The bottleneck is the back end, whose queue is full, although it disconnects during the final wait for packets.
#[test]
fn a_link_that_goes_after_the_end_is_no_bound() {
    let folder = Folder::new("after-end");
    let (path, socket) = (folder.path("vhost"), folder.path("control"));
    // On a busy machine the back end may be gone earlier.
    let bound = || {
        let sink = start(&["sink", &format!("vhost:{path}")], &socket);
        let mut client = Client::connect(&socket);
        client.ask(r#"{"pause":true}"#);
        let words = ["gen", &format!("virtio-user:{path}"), "--rate", "50k", "--seconds", "1", "--json"];
        let mut generator = Process::start(&mut linerate(&words));
        generator.await_output("\"seconds\":1.");
        client.ask(r#"{"stop":true}"#);
        sink.ended();
        summary(generator.ended().1.as_bytes())["unreached"][0]["bounded_by"].clone()
    };
    let mut bounds = Vec::new();
    let is_right = (0..5).any(|_| {
        bounds.push(bound());
        bounds.last().and_then(Value::as_str).is_some_and(|bound| bound.starts_with("the port, which has no room"))
    });
    assert!(is_right, "{bounds:?}");
}

#[test]
fn a_run_that_waits_for_its_link_answers() {
    let folder = Folder::new("control-waits");
    let socket = folder.path("socket");
    let run = start(&["sink", &format!("vhost:{}", folder.path("vhost"))], &socket);
    let mut client = Client::connect(&socket);
    let state = client.ask("{}");
    assert_eq!((&state["seconds"], &state["ports"][0]["rx"]["packets"]), (&json!(0.0), &json!(0)), "{state}");
    let why = "the run is waiting for its links: the rate can change once it has started";
    assert_eq!(client.ask(r#"{"rate":"1M"}"#)["error"], why);
    assert_eq!(client.ask(r#"{"pause":true}"#)["paused"], json!(true));
    assert_eq!(client.ask(r#"{"stop":true}"#)["paused"], json!(true));
    let (code, rest) = run.ended();
    assert_eq!((code, &kit::summary(rest.as_bytes())["packets"]), (Some(0), &json!(0)), "{rest}");
}
