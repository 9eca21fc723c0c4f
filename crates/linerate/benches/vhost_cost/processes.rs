//! Rates and cost between two processes on separate processors: linerate's, DPDK's, and one of each. Both sides return
//! the packets they receive; 256 packets of 64 bytes are in flight. The cost is that of both sides in TSC cycles per
//! packet, without empty polls.

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

use crate::testpmd::{Counts, Testpmd};
use crate::{BATCH, IN_FLIGHT, ROUNDS};

/// The argument before the port's name, for a process of linerate.
pub const FORWARD: &str = "--forward";

/// The kind of rings between the processes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Split,
    Packed,
    Memif,
}

impl Kind {
    /// Returns linerate's port name, and DPDK's device.
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

/// Prints the rates and costs of all pairs, back end or server first: the best of alternating rounds, and their ratios
/// to those of two DPDK processes.
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
            pairs.push(Pair { names: (server, client), sides: pair, rate: 0.0, cycles: [f64::MAX; 2] });
        }
    }
    for _ in 0..ROUNDS {
        for pair in &mut pairs {
            pair.sides.iter().for_each(|side| side.pause(false));
            pair.round();
            pair.sides.iter().for_each(|side| side.pause(true));
        }
    }
    let dpdk = pairs.iter().find(|pair| pair.names == ("dpdk", "dpdk")).filter(|pair| pair.rate > 0.0);
    let dpdk = dpdk.map(|pair| (pair.rate, pair.cost()));
    for pair in &pairs {
        let ((server, client), rate, cost) = (pair.names, pair.rate, pair.cost());
        let (of_rate, of_cost) = match dpdk {
            Some((dpdk, its_cost)) => (format!("ratio={:.2}", rate / dpdk), format!("ratio={:.2}", cost / its_cost)),
            None => ("dpdk=absent".into(), String::new()),
        };
        let mpps = rate / 1e6;
        println!(
            "processes={server},{client} rings={kind:?} size=64 mpps={mpps:.1} {of_rate} cycles={cost:.1} {of_cost}"
        );
    }
}

/// Two processes: the server, and the client.
struct Pair {
    names: (&'static str, &'static str),
    sides: [Side; 2],
    /// The best results so far: packets per second, and cycles per packet of each side.
    rate: f64,
    cycles: [f64; 2],
}

impl Pair {
    /// Measures for a tenth of a second.
    fn round(&mut self) -> Option<()> {
        std::thread::sleep(Duration::from_millis(50));
        let (start, before) = (Instant::now(), self.counts()?);
        std::thread::sleep(Duration::from_millis(100));
        let (after, time) = (self.counts()?, start.elapsed().as_secs_f64());
        let packets = |side: usize| (after[side].packets - before[side].packets) as f64;
        self.rate = self.rate.max(packets(1) / time);
        for side in [0, 1] {
            let cycles = (after[side].cycles - before[side].cycles) as f64 / packets(side);
            self.cycles[side] = self.cycles[side].min(cycles);
        }
        Some(())
    }

    fn counts(&mut self) -> Option<[Counts; 2]> {
        let [server, client] = &mut self.sides;
        Some([server.counts()?, client.counts()?])
    }

    /// Returns the cycles per packet of both sides together.
    fn cost(&self) -> f64 {
        self.cycles.iter().sum()
    }
}

/// One process.
enum Side {
    Ours { child: Child, commands: ChildStdin, said: BufReader<ChildStdout> },
    Dpdk(Testpmd),
}

impl Side {
    /// Starts a process of linerate on the server's or the client's processor; the client sends the packets.
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
        // Once it answers, it is ready.
        side.counts()?;
        if let (Side::Ours { commands, .. }, false) = (&mut side, is_server) {
            // The other side may still lose the first packets.
            std::thread::sleep(Duration::from_millis(500));
            writeln!(commands, "send").ok()?;
        }
        Some(side)
    }

    fn dpdk(device: &str, is_server: bool) -> Option<Side> {
        // A server does not wait for the link; a client does, and then sends the packets.
        let (more, start) = if is_server { ("--disable-link-check", "start") } else { ("", "start tx_first 8") };
        let mut testpmd = Testpmd::start(processor(is_server), 192, &[device], more)?;
        testpmd.say(&format!("set record-core-cycles on\nset txpkts 60\nset fwd io\n{start}"))?;
        testpmd.until("io packet forwarding")?;
        Some(Side::Dpdk(testpmd))
    }

    fn counts(&mut self) -> Option<Counts> {
        match self {
            Side::Dpdk(testpmd) => testpmd.counts(),
            Side::Ours { commands, said, .. } => {
                writeln!(commands, "count").ok()?;
                let mut line = String::new();
                said.read_line(&mut line).ok()?;
                let (packets, cycles) = line.trim().split_once(' ')?;
                Some(Counts { packets: packets.parse().ok()?, cycles: cycles.parse().ok()? })
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

/// Pins a process, and the threads that it starts, to its processor.
fn pin(process: Pid, is_server: bool) {
    let mut processors = CpuSet::new();
    processors.set(processor(is_server));
    sched_setaffinity(Some(process), &processors).expect("a processor");
}

/// The main function of a linerate process, which returns the packets that its port receives, until it is killed. The
/// command `send` on its input sends the packets in flight; `count` prints the number of received packets, and the
/// cycles of non-empty turns.
pub fn forward(name: &str) {
    let [mut port] = Options::default().open([name]).expect(name);
    let (pool, mut rx, mut tx) = (port.pool().clone(), port.rx(0).expect("a queue"), port.tx(0).expect("a queue"));
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let shown = counts.clone();
    std::thread::spawn(move || {
        let [received, cycles, wanted] = &*shown;
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match &*line {
                "send" => wanted.store((IN_FLIGHT / BATCH) as u64, Relaxed),
                _ => println!("{} {}", received.load(Relaxed), cycles.load(Relaxed)),
            }
        }
        std::process::exit(0);
    });
    let [received, cycles, wanted] = &*counts;
    let (mut batch, clock) = (Batch::with_capacity(BATCH), quanta::Clock::new());
    let (mut count, mut spent) = (0, 0);
    loop {
        let start = clock.raw();
        let found = rx.recv(&mut batch) as u64;
        if wanted.load(Relaxed) > 0 && batch.is_empty() && port.link().is_ok_and(|link| link != Link::Down) {
            batch.alloc(&pool, BATCH, 60);
            wanted.fetch_sub(1, Relaxed);
        }
        while !batch.is_empty() {
            tx.send(&mut batch);
        }
        if found > 0 {
            (count, spent) = (count + found, spent + clock.raw() - start);
            received.store(count, Relaxed);
            cycles.store(spent, Relaxed);
        }
    }
}
