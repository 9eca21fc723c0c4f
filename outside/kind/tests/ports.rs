//! Ports of the kind `unix:`, in one process and in two.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linerate::port::{Link, Port, PortClass, RxQueue, TxQueue, Wait, Waiter};
use linerate::{Batch, Error, ErrorKind, Options};
use tempfile::TempDir;

/// The environment variable with the name of the port that the other process opens.
const ECHO: &str = "OUTSIDE_KIND_ECHO";
/// The longest wait. It detects hangs, because the machine may be busy.
const MOST: Duration = Duration::from_secs(180);

fn options() -> Options {
    Options::default().with_port_kind(&outside_kind::UNIX)
}

fn error(name: &str) -> Error {
    options().open([name]).map(drop).unwrap_err()
}

/// Returns a folder, and the names of two ports whose sockets are in it.
fn names(options: &str) -> (TempDir, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let names = [format!("unix:{a}?peer={b}{options}"), format!("unix:{b}?peer={a}{options}")];
    (folder, names)
}

/// Calls `is_so` until it returns true.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < MOST, "still waiting for {what}");
        std::thread::yield_now();
    }
}

/// Returns packet number `n` with this length.
fn packet(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at) as u8).collect()
}

/// Sends a packet of each length through `tx`, and returns what arrives at `rx`.
fn exchange(port: &Port, tx: &mut TxQueue, rx: &mut RxQueue, lens: &[usize]) -> Vec<Vec<u8>> {
    let (mut sending, mut receiving, mut arrived) = (Batch::new(), Batch::new(), Vec::new());
    let (mut next, begin) = (0, Instant::now());
    while arrived.len() < lens.len() {
        assert!(begin.elapsed() < MOST, "{} of {} packets arrived", arrived.len(), lens.len());
        while next < lens.len() && sending.push(port.pool(), &packet(next, lens[next])) {
            next += 1;
        }
        tx.send(&mut sending);
        rx.recv(&mut receiving);
        for packet in &mut receiving {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            arrived.push(bytes);
        }
        receiving.clear();
    }
    arrived
}

#[test]
fn packets_of_all_lengths_cross_both_ways() {
    // Frames of more than 1,920 bytes are chains of buffers.
    let (_folder, [a, b]) = names("&mtu=9000");
    let [mut a, mut b] = options().open([&a, &b]).unwrap();
    let (mut a_tx, mut a_rx) = (a.tx(0).unwrap(), a.rx(0).unwrap());
    let (mut b_tx, mut b_rx) = (b.tx(0).unwrap(), b.rx(0).unwrap());
    let lens: Vec<usize> = [14, 15, 60, 64, 1500, 1518, 1920, 1921, 4096, 9018, 9022].repeat(30);
    let wanted: Vec<_> = lens.iter().enumerate().map(|(n, &len)| packet(n, len)).collect();
    assert!(exchange(&a, &mut a_tx, &mut b_rx, &lens) == wanted);
    assert!(exchange(&b, &mut b_tx, &mut a_rx, &lens) == wanted);
    let bytes = lens.iter().sum::<usize>() as u64;
    for port in [&a, &b] {
        let statistics = port.statistics().unwrap();
        assert_eq!((statistics.rx_packets, statistics.tx_packets), (330, 330));
        assert_eq!((statistics.rx_bytes, statistics.tx_bytes), (bytes, bytes));
        assert!(statistics.drops.by_cause().iter().all(|(_, count)| *count == 0), "{:?}", statistics.drops);
        assert_eq!((port.link().unwrap(), port.info().class), (Link::Up { mbits: 0 }, PortClass::Peer));
    }
}

#[test]
fn frames_of_a_wrong_length_are_counted() {
    let (folder, [a, b]) = names("");
    let [mut a, mut b] = options().open([&a, &b]).unwrap();
    let (mut tx, mut rx, mut batch) = (a.tx(0).unwrap(), b.rx(0).unwrap(), Batch::new());
    // The longest frame has 1,518 bytes, and 4 more with a VLAN tag.
    for len in [1522, 1523, 60] {
        assert!(batch.push(a.pool(), &packet(0, len)));
    }
    assert_eq!((tx.send(&mut batch), batch.len()), (3, 0));
    assert_eq!((rx.recv(&mut batch), a.statistics().unwrap().drops.tx_too_long), (2, 1));
    batch.clear();
    // A program that is not a port of this kind sends anything.
    let other = UnixDatagram::unbound().unwrap();
    for len in [0, 13, 1523, 60_000, 100] {
        other.send_to(&vec![1; len], folder.path().join("b")).unwrap();
    }
    assert_eq!(rx.recv(&mut batch), 1);
    let drops = b.statistics().unwrap().drops;
    assert_eq!((drops.malformed, drops.oversize), (2, 2));
}

#[test]
fn a_full_peer_keeps_packets_in_the_batch() {
    let (_folder, [a, b]) = names("");
    let [mut a, mut b] = options().open([&a, &b]).unwrap();
    let (mut tx, mut rx, mut batch) = (a.tx(0).unwrap(), b.rx(0).unwrap(), Batch::with_capacity(64));
    let mut sent: u64 = 0;
    // The kernel bounds the queue of a datagram socket (net.unix.max_dgram_qlen, and the sender's buffer).
    until("a full queue", || {
        batch.push(a.pool(), &sent.to_le_bytes().repeat(100));
        sent += tx.send(&mut batch) as u64;
        batch.len() == 64
    });
    assert!(tx.has_peer() && sent > 0);
    assert_eq!(a.statistics().unwrap().tx_packets, sent);
    let (mut arrived, mut received) = (Batch::new(), 0);
    until("all packets", || {
        received += rx.recv(&mut arrived) as u64;
        arrived.clear();
        sent += tx.send(&mut batch) as u64;
        batch.is_empty() && received == sent
    });
}

#[test]
fn a_thread_sleeps_until_a_packet_arrives() {
    let (_folder, [a, b]) = names("");
    let [mut a, mut b] = Options { interrupts: Some(Duration::ZERO), ..options() }.open([&a, &b]).unwrap();
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let receiver = std::thread::spawn(move || {
        let (mut waiter, mut batch, begin) = (Waiter::new(Wait::Interrupt), Batch::new(), Instant::now());
        while batch.is_empty() {
            assert!(begin.elapsed() < MOST, "no packet arrives");
            let received = rx.recv(&mut batch);
            waiter.turn(received, &mut [&mut rx]);
        }
    });
    let mut batch = Batch::new();
    batch.push(a.pool(), &[1; 60]);
    assert_eq!(tx.send(&mut batch), 1);
    receiver.join().unwrap();
}

#[test]
fn bad_names_and_options_are_clear_errors() {
    for (name, kind, why, remedy) in [
        ("unix:", ErrorKind::BadName, "it needs the path of a socket", ""),
        (
            "unix:/tmp/a",
            ErrorKind::BadOption,
            "the path of the peer's socket is missing",
            "unix:/tmp/a?peer=/tmp/a-peer",
        ),
        ("unix:/tmp/a?peer=", ErrorKind::BadOption, "is missing", "?peer="),
        ("unix:/tmp/a?peer=/tmp/a", ErrorKind::BadOption, "the port's own path", "its own path"),
        ("unix:/tmp/a?pear=/tmp/b", ErrorKind::BadOption, "there is no such option (did you mean peer?)", ""),
        ("unix:/tmp/a?peer=/tmp/b&mtu=1", ErrorKind::BadOption, "46 to", ""),
        ("unix:/no/folder?peer=/tmp/b", ErrorKind::Unusable, "there is no folder", "create it"),
        ("unix:/proc?peer=/tmp/b", ErrorKind::Exists, "another file", "another path"),
        ("uni:/tmp/a", ErrorKind::BadName, "did you mean unix:?", ""),
    ] {
        let error = error(name);
        let text = error.with_hint();
        assert!(error.kind() == kind && text.contains(why) && text.contains(remedy), "{name}: {text}");
    }
    let long = "x".repeat(200);
    for name in [format!("unix:/tmp/{long}?peer=/tmp/b"), format!("unix:/tmp/a?peer=/tmp/{long}")] {
        let text = error(&name).with_hint();
        assert!(text.contains("at most 107 bytes") && text.contains("use a shorter path"), "{text}");
    }
    let text = options().with_queues(2).open(["unix:/tmp/a?peer=/tmp/b"]).map(drop).unwrap_err().with_hint();
    assert!(text.contains("2 receive queues are not possible"), "{text}");
}

#[test]
fn a_path_has_one_owner_and_other_files_are_kept() {
    let (folder, [a, _]) = names("");
    let [first] = options().open([&a]).unwrap();
    assert_eq!(error(&a).kind(), ErrorKind::InUse);
    let path = folder.path().join("a");
    drop(first);
    assert!(!path.exists(), "the file stays");
    std::fs::write(&path, "kept").unwrap();
    assert_eq!(error(&a).kind(), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    // A port removes only its own file.
    std::fs::remove_file(&path).unwrap();
    let [second] = options().open([&a]).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "kept").unwrap();
    drop(second);
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

/// The other process of [`a_peer_that_is_killed_can_come_back`]: returns all packets until it is killed. Does nothing
/// in this process.
#[test]
fn echo() {
    let Ok(name) = std::env::var(ECHO) else { return };
    let [mut port] = options().open([&name]).unwrap();
    let (mut rx, mut tx, mut batch) = (port.rx(0).unwrap(), port.tx(0).unwrap(), Batch::new());
    let begin = Instant::now();
    while begin.elapsed() < MOST {
        rx.recv(&mut batch);
        tx.send(&mut batch);
        std::thread::yield_now();
    }
}

/// A process that returns packets. It is killed when this value is dropped.
struct Peer(Child);

impl Peer {
    fn start(name: &str) -> Peer {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "echo"]).env(ECHO, name).stdout(Stdio::null());
        Peer(program.spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_peer_that_is_killed_can_come_back() {
    let (folder, [ours, theirs]) = names("");
    let [mut port] = options().open([&ours]).unwrap();
    let (mut rx, mut tx, mut batch) = (port.rx(0).unwrap(), port.tx(0).unwrap(), Batch::new());
    for round in 0..2 {
        // No peer: no call blocks, and the packet stays in the batch.
        batch.push(port.pool(), &packet(round, 60));
        assert_eq!((tx.send(&mut batch), tx.has_peer(), batch.len()), (0, false, 1));
        assert_eq!((rx.recv(&mut Batch::new()), port.link().unwrap()), (0, Link::Down));
        // The file of a killed peer is replaced.
        assert_eq!(folder.path().join("b").exists(), round > 0);
        let peer = Peer::start(&theirs);
        until("the peer", || port.link().unwrap() != Link::Down);
        until("room", || tx.send(&mut batch) == 1);
        assert!(tx.has_peer());
        until("the packet", || rx.recv(&mut batch) == 1);
        assert_eq!(batch.packets().next().unwrap()[..], packet(round, 60));
        batch.clear();
        drop(peer);
    }
    assert_eq!(port.statistics().unwrap().drops, Default::default());
}
