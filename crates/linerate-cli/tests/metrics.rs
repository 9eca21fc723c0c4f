//! `--metrics`, read by Debian's prometheus and by misbehaving clients.

mod kit;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kit::{Folder, Process, Timely, expect, linerate, output_of, summary, text, until};

/// Returns one of prometheus' programs, which `./test` unpacks.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/prometheus/usr/bin").join(name);
    assert!(path.exists(), "{} is missing: ./test unpacks it", path.display());
    path
}

/// Starts a run with metrics, and returns its address.
fn start(words: &[&str]) -> (Process, String) {
    let mut process = Process::start(linerate(words).args(["--metrics", "0", "--json"]));
    let line = process.await_error("metrics: ");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    (process, address)
}

/// Sends a request, and returns the answer's head and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = Timely(TcpStream::connect(address).unwrap());
    stream.0.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head.to_string(), body.to_string())
}

fn scrape(address: &str) -> String {
    ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").1
}

/// Returns the value of a sample.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok())
}

#[test]
fn counters_are_those_of_the_run_and_its_ports() {
    let (process, address) = start(&["sink", "sim:m?rate=50k", "--seconds", "100"]);
    let sample = "linerate_port_receive_packets_total{port=\"sim:m\"}";
    until("packets are received", || value(&scrape(&address), sample).is_some_and(|packets| packets > 1000.0));
    let now = scrape(&address);
    assert_eq!(value(&now, "linerate_port_up{port=\"sim:m\"}"), Some(1.0), "{now}");
    assert_eq!(
        value(&now, "linerate_port_dropped_packets_total{port=\"sim:m\",cause=\"bad_crc\"}"),
        Some(0.0),
        "{now}"
    );
    let moved = "linerate_packets_total{command=\"sink\"}";
    let before = value(&now, moved).unwrap();
    until("they grow", || value(&scrape(&address), moved).unwrap() > before);
    let (code, output) = process.interrupt();
    let last = summary(output.as_bytes());
    assert!(code == Some(0) && last["packets"].as_f64().unwrap() >= before, "{output}");

    // Commands that open ports several times serve at one address.
    let (mut process, address) = start(&["latency", "M{0", "M}0", "--rate", "10k,20k", "--seconds", "1"]);
    process.await_output("asked_mpps");
    until("the second load moves", || {
        value(&scrape(&address), "linerate_packets_total{command=\"latency\"}").is_some()
    });
    assert_eq!(process.ended().0, Some(0));
}

/// Other requests are answered, and a client that sends nothing, too much, or only part of a request does not block
/// others.
#[test]
fn clients_that_misbehave_keep_no_other_from_its_answer() {
    let (process, address) = start(&["sink", "sim:c?rate=1k", "--seconds", "200"]);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("HEAD /metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics?a=b HTTP/1.1\r\n\r\n", "200"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "405"),
        ("\r\n\r\n\r\n", "405"),
        ("GET\r\n\r\n", "405"),
    ] {
        let (head, body) = ask(&address, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {head}");
        assert_eq!(body.is_empty(), request.starts_with("HEAD"), "{request:?}: {body}");
    }
    // More clients than it serves at a time; two seconds for each would take minutes.
    let mut held: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    held[1].write_all(b"GET /metrics").unwrap();
    let _ = held[2].write_all(&vec![b'x'; 100_000]);
    let before = std::time::Instant::now();
    assert!(scrape(&address).contains("linerate_info"));
    assert!(before.elapsed().as_secs() < 60);
    // Idle clients are dropped after a time.
    let (mut last, mut rest) = (held.pop().unwrap(), Vec::new());
    last.read_to_end(&mut rest).unwrap();
    drop(held);
    assert!(scrape(&address).contains("linerate_info"));
    assert_eq!(process.interrupt().0, Some(0));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = text(&expect(1, &mut linerate(&["sink", "sim:c", "--metrics", &port])).stderr);
    let why = format!("127.0.0.1:{port}: cannot serve metrics there: ");
    assert!(said.contains(&why) && said.contains("in use") && said.contains("choose another port"), "{said}");
    let said = text(&expect(2, &mut linerate(&["sink", "sim:c", "--metrics", "localhost"])).stderr);
    assert!(said.contains("0.0.0.0:9500"), "{said}");
}

/// promtool reports no problem, and prometheus reads the counters.
#[test]
fn prometheus_reads_the_counters() {
    let (process, address) = start(&["fwd", "sim:p0?rate=10k", "sim:p1?rate=10k", "--seconds", "200"]);
    until("packets are forwarded", || {
        value(&scrape(&address), "linerate_packets_total{command=\"fwd\"}").is_some_and(|packets| packets > 100.0)
    });
    let mut promtool = Command::new(program("promtool"));
    let mut child = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(scrape(&address).as_bytes()).unwrap();
    let output = output_of(child);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));

    let folder = Folder::new("prometheus");
    let config = folder.path("prometheus.yml");
    let scraped = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: linerate\n  static_configs: [{{targets: ['{address}']}}]\n"
    );
    std::fs::write(&config, scraped).unwrap();
    // A port that is free now, as prometheus does not print a port that the system chose.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut prometheus = Command::new(program("prometheus"));
    prometheus.args(["--config.file", &config, "--storage.tsdb.path", &folder.path("data")]);
    prometheus.args(["--web.listen-address", &free, "--log.level=error"]);
    let prometheus = Process::start(&mut prometheus);
    let query =
        format!("GET /api/v1/query?query=linerate_packets_total HTTP/1.1\r\nHost: {free}\r\nConnection: close\r\n\r\n");
    until("prometheus has them", || {
        let Ok(stream) = TcpStream::connect(&free) else { return false };
        let mut stream = Timely(stream);
        let mut answer = String::new();
        let is_asked = stream.0.write_all(query.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_ok();
        is_asked && answer.contains("\"command\":\"fwd\"") && answer.contains("\"job\":\"linerate\"")
    });
    drop(prometheus);
    assert_eq!(process.interrupt().0, Some(0));
}
