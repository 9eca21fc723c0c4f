//! The cost of one crossing between `virtio-user:` and `vhost:`, both sides together, beside DPDK's: in one process and on one
//! thread, 256 packets in flight each way, at most 32 at a time. TSC cycles per packet, the median of some rounds of each in
//! turns. `cargo bench --bench vhost_cost`; DPDK's testpmd does the same with its own ports, if it is installed, and 500 free
//! hugepages of 2 MiB are there for it. Then the same between both roles of `memif:`, and DPDK's.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Link, Port, RxQueue, TxQueue};
use linerate::{Batch, Options};
use rustix::process::{Pid, Signal, kill_process};

const BATCH: usize = 32;
/// Packets in flight each way: testpmd's `start tx_first 8`.
const IN_FLIGHT: usize = 8 * BATCH;
/// Turns of one round: two batches each.
const TURNS: usize = 20_000;
const ROUNDS: usize = 5;

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    for ring in ["split", "packed"] {
        for size in [64, 1500] {
            let socket = folder.path().join(format!("{ring}{size}"));
            let mut ours = Crossing::of_vhost(&socket.display().to_string(), ring == "packed", size);
            let theirs = Testpmd::of_vhost(&format!("{}-dpdk", socket.display()), ring == "packed", size);
            compare(&format!("ring={ring} size={size}"), &mut ours, theirs);
        }
    }
    for size in [64, 1500] {
        let socket = folder.path().join(format!("memif{size}"));
        let mut ours = Crossing::of_memif(&socket.display().to_string(), size);
        let theirs = Testpmd::of_memif(&format!("{}-dpdk", socket.display()), size);
        compare(&format!("memif size={size}"), &mut ours, theirs);
    }
}

/// Prints the cycles of both, and their ratio.
fn compare(what: &str, ours: &mut Crossing, mut theirs: Option<Testpmd>) {
    let (mut own, mut dpdk) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.iter().for_each(|theirs| theirs.pause(true));
        own.push(ours.round());
        theirs.iter().for_each(|theirs| theirs.pause(false));
        dpdk.extend(theirs.as_mut().and_then(Testpmd::round));
    }
    let own = median(own);
    let beside = match dpdk.is_empty() {
        true => "dpdk=absent".to_string(),
        false => format!("dpdk={:.1} ratio={:.2}", median(dpdk.clone()), own / median(dpdk)),
    };
    println!("{what} cycles={own:.1} {beside}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Our ports, and the queues from each to the other.
struct Crossing {
    ways: [(RxQueue, TxQueue); 2],
    batch: Batch,
    clock: quanta::Clock,
    _ports: [Port; 2],
}

impl Crossing {
    fn of_vhost(socket: &str, packed: bool, size: usize) -> Crossing {
        let packed = if packed { "on" } else { "off" };
        let names =
            [format!("vhost:{socket}?packed={packed}"), format!("virtio-user:{socket}?ring=1024&packed={packed}")];
        let crossing = Crossing::new(names, size);
        assert!(packed == "off" || crossing._ports[1].info().description.contains("packed queues"));
        crossing
    }

    fn of_memif(socket: &str, size: usize) -> Crossing {
        Crossing::new([format!("memif:{socket}?role=server"), format!("memif:{socket}?ring=1024")], size)
    }

    /// Opens both ports, and sends the packets in flight; each waits until the other end is there.
    fn new(names: [String; 2], size: usize) -> Crossing {
        let region = Region::new(&RegionOptions { buffers: 16_384, ..RegionOptions::default() }).expect("memory");
        let pool = Pool::new(region);
        let open = |name: &str| {
            let [port] = Options { pool: Some(pool.clone()), ..Options::default() }.open([name]).expect(name);
            port
        };
        let [mut back, mut front] = names.each_ref().map(|name| open(name));
        let mut ways = [
            (back.rx(0).expect("a queue"), front.tx(0).expect("a queue")),
            (front.rx(0).expect("a queue"), back.tx(0).expect("a queue")),
        ];
        let mut batch = Batch::with_capacity(BATCH);
        // A client of memif hands its buffers over at its first poll.
        while [&back, &front].iter().any(|port| port.link().is_ok_and(|link| link == Link::Down)) {}
        ways.iter_mut().for_each(|(rx, _)| _ = rx.recv(&mut batch));
        for (_, tx) in &mut ways {
            for _ in 0..IN_FLIGHT / BATCH {
                // Without CRC.
                batch.alloc(&pool, BATCH, size - 4);
                while !batch.is_empty() {
                    tx.send(&mut batch);
                }
            }
        }
        Crossing { ways, batch, clock: quanta::Clock::new(), _ports: [back, front] }
    }

    /// Forwards from each port to the other; what is sent at one arrives at the other.
    fn round(&mut self) -> f64 {
        let (start, mut packets) = (self.clock.raw(), 0);
        for _ in 0..TURNS {
            for (rx, tx) in &mut self.ways {
                packets += rx.recv(&mut self.batch);
                while !self.batch.is_empty() {
                    tx.send(&mut self.batch);
                }
            }
        }
        (self.clock.raw() - start) as f64 / packets as f64
    }
}

/// DPDK's two ports in one testpmd, which forwards from each to the other on one processor.
struct Testpmd {
    child: Child,
    commands: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Testpmd {
    /// Starts it with a back end and a front end; `None` if it is not installed, or does not start.
    fn of_vhost(socket: &str, packed: bool, size: usize) -> Option<Testpmd> {
        let mut testpmd = Testpmd::start(&[&format!("--vdev=net_vhost0,iface={socket}")])?;
        let packed = u8::from(packed);
        testpmd.say(&format!(
            "port attach net_virtio_user0,path={socket},packed_vq={packed},mrg_rxbuf=1,in_order=0,queue_size=1024"
        ))?;
        testpmd.until("Port 1 is attached")?;
        testpmd.forward(size)
    }

    /// Starts it with both roles of memif.
    fn of_memif(socket: &str, size: usize) -> Option<Testpmd> {
        let role = |n: u8, role: &str| {
            format!("--vdev=net_memif{n},role={role},socket={socket},socket-abstract=no,rsize=10,id=0")
        };
        Testpmd::start(&[&role(0, "server"), &role(1, "client")])?.forward(size)
    }

    fn start(devices: &[&str]) -> Option<Testpmd> {
        let eal = "--no-pci --in-memory --single-file-segments --no-telemetry --lcores (0-1)@1 -m 768";
        let options = "-- -i --nb-cores=1 --total-num-mbufs=16384 --txd=1024 --rxd=1024";
        // It would print in blocks into a pipe.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "dpdk-testpmd"])
            .args(eal.split(' '))
            .args(devices)
            .args(options.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (commands, said) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut testpmd = Testpmd { child, commands, said };
        testpmd.until("Done")?;
        Some(testpmd)
    }

    /// Sends the packets in flight, and forwards them from then on.
    fn forward(mut self, size: usize) -> Option<Testpmd> {
        // Without CRC.
        let size = size - 4;
        self.say(&format!(
            "port start all\nset portlist 0,1\nset record-core-cycles on\nset txpkts {size}\nset fwd io\nstart tx_first 8"
        ))?;
        self.until("io packet forwarding")?;
        Some(self)
    }

    /// Stops all of its threads, which poll without end, or lets them go on.
    fn pause(&self, stops: bool) {
        let signal = if stops { Signal::STOP } else { Signal::CONT };
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    fn say(&mut self, command: &str) -> Option<()> {
        writeln!(self.commands, "{command}").ok()
    }

    /// Reads up to a line with `part` in it.
    fn until(&mut self, part: &str) -> Option<String> {
        let mut line = String::new();
        while self.said.read_line(&mut line).ok()? > 0 {
            if line.contains(part) {
                return Some(line);
            }
            line.clear();
        }
        None
    }

    /// Returns the cycles per packet of half a second.
    fn round(&mut self) -> Option<f64> {
        self.say("clear fwd stats all")?;
        std::thread::sleep(std::time::Duration::from_millis(500));
        self.say("show fwd stats all")?;
        let line = self.until("CPU cycles/packet=")?;
        line.split("CPU cycles/packet=").nth(1)?.split(' ').next()?.parse().ok()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
