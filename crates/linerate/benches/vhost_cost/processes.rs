//! Rates between two processes, each on a processor of its own: ours, DPDK's, and one of each. Both sides return what they
//! receive; 256 packets of 64 bytes are on the way.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate::port::Link;
use linerate::{Batch, Options};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::testpmd::Testpmd;
use crate::{BATCH, IN_FLIGHT, ROUNDS};

/// The argument in front of the port that a process of ours has.
pub const FORWARD: &str = "--forward";

/// The rings between both.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Split,
    Packed,
    Memif,
}

impl Kind {
    /// Returns our port, and DPDK's device.
    fn names(self, socket: &str, is_server: bool) -> (String, String) {
        let packed = matches!(self, Kind::Packed);
        let (on, one) = if packed { ("on", 1) } else { ("off", 0) };
        let dpdk_memif = format!("net_memif0,socket={socket},socket-abstract=no,rsize=10,id=0");
        match (self, is_server) {
            (Kind::Memif, true) => (format!("memif:{socket}?role=server"), format!("{dpdk_memif},role=server")),
            (Kind::Memif, false) => {
                (format!("memif:{socket}?ring=1024&zero-copy=on"), format!("{dpdk_memif},role=client,zero-copy=yes"))
            }
            (_, true) => (format!("vhost:{socket}?packed={on}"), format!("net_vhost0,iface={socket}")),
            (_, false) => (
                format!("virtio-user:{socket}?ring=1024&packed={on}"),
                format!("net_virtio_user0,path={socket},packed_vq={one},mrg_rxbuf=1,in_order=0,queue_size=1024"),
            ),
        }
    }
}

/// Prints the rates of all pairs, back end or server first: the best of some rounds of each in turns, and their ratios to that of
/// DPDK with itself.
pub fn compare(folder: &Path, kind: Kind) {
    let sides = [("linerate", "linerate"), ("linerate", "dpdk"), ("dpdk", "linerate"), ("dpdk", "dpdk")];
    let mut pairs = Vec::new();
    for (server, client) in sides {
        let socket = folder.join(format!("{kind:?}-{server}-{client}")).display().to_string();
        let start = |side: &str, is_server: bool| {
            let (ours, theirs) = kind.names(&socket, is_server);
            if side == "dpdk" { Side::dpdk(&theirs, is_server) } else { Side::ours(&ours, is_server) }
        };
        if let Some(server_side) = start(server, true)
            && let Some(client_side) = start(client, false)
        {
            let pair = [server_side, client_side];
            pair.iter().for_each(|side| side.pause(true));
            pairs.push((server, client, pair, Vec::new()));
        }
    }
    for _ in 0..ROUNDS {
        for (_, _, pair, rates) in &mut pairs {
            pair.iter().for_each(|side| side.pause(false));
            rates.extend(rate(&mut pair[1]));
            pair.iter().for_each(|side| side.pause(true));
        }
    }
    let of = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let dpdk = pairs.iter().find(|(server, client, ..)| (*server, *client) == ("dpdk", "dpdk"));
    let dpdk = dpdk.map(|(.., rates)| of(rates)).filter(|rate| *rate > 0.0);
    for (server, client, _, rates) in &pairs {
        let rate = of(rates);
        let ratio = dpdk.map_or_else(|| "dpdk=absent".to_string(), |dpdk| format!("ratio={:.2}", rate / dpdk));
        println!("processes={server},{client} rings={kind:?} size=64 mpps={:.1} {ratio}", rate / 1e6);
    }
}

/// Returns the packets per second that a side receives.
fn rate(side: &mut Side) -> Option<f64> {
    std::thread::sleep(Duration::from_millis(50));
    let (start, before) = (Instant::now(), side.received()?);
    std::thread::sleep(Duration::from_millis(100));
    Some((side.received()? - before) as f64 / start.elapsed().as_secs_f64())
}

/// One process.
enum Side {
    Ours { child: Child, commands: ChildStdin, said: BufReader<ChildStdout> },
    Dpdk(Testpmd),
}

impl Side {
    /// Starts a process of ours on the server's or the client's processor; the client sends the packets.
    fn ours(name: &str, is_server: bool) -> Option<Side> {
        let mut child = Command::new(std::env::current_exe().ok()?)
            .args([FORWARD, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (commands, said) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        pin(Pid::from_child(&child), is_server);
        let mut side = Side::Ours { child, commands, said };
        // It is there once it answers.
        side.received()?;
        if let (Side::Ours { commands, .. }, false) = (&mut side, is_server) {
            // The other side may still lose what comes first.
            std::thread::sleep(Duration::from_millis(500));
            writeln!(commands, "send").ok()?;
        }
        Some(side)
    }

    fn dpdk(device: &str, is_server: bool) -> Option<Side> {
        // A server does not wait for the link; a client does, and sends the packets.
        let (more, start) = if is_server { ("--disable-link-check", "start") } else { ("", "start tx_first 8") };
        let mut testpmd = Testpmd::start(processor(is_server), 192, &[device], more)?;
        testpmd.say(&format!("set txpkts 60\nset fwd io\n{start}"))?;
        testpmd.until("io packet forwarding")?;
        Some(Side::Dpdk(testpmd))
    }

    fn received(&mut self) -> Option<u64> {
        match self {
            Side::Dpdk(testpmd) => testpmd.received(),
            Side::Ours { commands, said, .. } => {
                writeln!(commands, "count").ok()?;
                let mut line = String::new();
                said.read_line(&mut line).ok()?;
                line.trim().parse().ok()
            }
        }
    }

    fn pause(&self, stops: bool) {
        match self {
            Side::Dpdk(testpmd) => testpmd.pause(stops),
            Side::Ours { child, .. } => {
                let _ = kill_process(Pid::from_child(child), if stops { Signal::STOP } else { Signal::CONT });
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Side::Ours { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn processor(is_server: bool) -> usize {
    usize::from(!is_server)
}

/// Keeps a process, and the threads that it starts, on its processor.
fn pin(process: Pid, is_server: bool) {
    let mut processors = CpuSet::new();
    processors.set(processor(is_server));
    sched_setaffinity(Some(process), &processors).expect("a processor");
}

/// A process of ours: returns what its port receives, until it is killed. `send` on its input sends the packets in flight,
/// `count` prints the count of packets received.
pub fn forward(name: &str) {
    let [mut port] = Options::default().open([name]).expect(name);
    let (pool, mut rx, mut tx) = (port.pool().clone(), port.rx(0).expect("a queue"), port.tx(0).expect("a queue"));
    let (received, wanted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counter, asked) = (received.clone(), wanted.clone());
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match &*line {
                "send" => asked.store((IN_FLIGHT / BATCH) as u64, Relaxed),
                _ => println!("{}", counter.load(Relaxed)),
            }
        }
        std::process::exit(0);
    });
    let (mut batch, mut count) = (Batch::with_capacity(BATCH), 0);
    loop {
        count += rx.recv(&mut batch) as u64;
        received.store(count, Relaxed);
        if wanted.load(Relaxed) > 0 && batch.is_empty() && port.link().is_ok_and(|link| link != Link::Down) {
            batch.alloc(&pool, BATCH, 60);
            wanted.fetch_sub(1, Relaxed);
        }
        while !batch.is_empty() {
            tx.send(&mut batch);
        }
    }
}
