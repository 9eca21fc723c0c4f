//! DPDK's testpmd, which forwards between its ports, or returns the packets of its only port, on one processor.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A process's counters: packets received, and cycles of non-empty turns.
pub struct Counts {
    pub packets: u64,
    pub cycles: u64,
}

/// A running testpmd, which is killed when this value is dropped.
pub struct Testpmd {
    child: Child,
    commands: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Testpmd {
    /// Starts testpmd with a back end and a front end; `None` if it is not installed, or does not start.
    pub fn of_vhost(socket: &str, packed: bool, size: usize) -> Option<Testpmd> {
        let mut testpmd = Testpmd::start(1, 768, &[&format!("net_vhost0,iface={socket}")], "")?;
        let packed = u8::from(packed);
        testpmd.say(&format!(
            "port attach net_virtio_user0,path={socket},packed_vq={packed},mrg_rxbuf=1,in_order=0,queue_size=1024"
        ))?;
        testpmd.until("Port 1 is attached")?;
        testpmd.forward(size)
    }

    /// Starts testpmd with both roles of memif.
    pub fn of_memif(socket: &str, zero_copy: bool, size: usize) -> Option<Testpmd> {
        let role =
            |n: u8, role: &str| format!("net_memif{n},role={role},socket={socket},socket-abstract=no,rsize=10,id=0");
        let client = role(1, "client") + if zero_copy { ",zero-copy=yes" } else { "" };
        Testpmd::start(1, 768, &[&role(0, "server"), &client], "")?.forward(size)
    }

    /// Starts testpmd on a processor, with `memory` MiB of hugepages, devices, and more options.
    pub fn start(processor: usize, memory: usize, devices: &[&str], more: &str) -> Option<Testpmd> {
        let eal = format!(
            "--no-pci --in-memory --single-file-segments --no-telemetry --lcores (0-1)@{processor} -m {memory}"
        );
        let options = "-- -i --nb-cores=1 --total-num-mbufs=16384 --txd=1024 --rxd=1024";
        // stdbuf: otherwise its output to a pipe would be block-buffered.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "dpdk-testpmd"])
            .args(eal.split(' '))
            .args(devices.iter().map(|device| format!("--vdev={device}")))
            .args(options.split(' '))
            .args(more.split_whitespace())
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

    /// Sends the packets in flight, and starts forwarding.
    fn forward(mut self, size: usize) -> Option<Testpmd> {
        // Without CRC.
        let size = size - 4;
        self.say(&format!(
            "port start all\nset portlist 0,1\nset record-core-cycles on\nset txpkts {size}\nset fwd io\nstart tx_first 8"
        ))?;
        self.until("io packet forwarding")?;
        Some(self)
    }

    /// Stops or continues all its threads, which otherwise poll all the time.
    pub fn pause(&self, stops: bool) {
        let signal = if stops { Signal::STOP } else { Signal::CONT };
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn say(&mut self, command: &str) -> Option<()> {
        writeln!(self.commands, "{command}").ok()
    }

    /// Reads up to a line that contains `part`.
    pub fn until(&mut self, part: &str) -> Option<String> {
        let mut line = String::new();
        while self.said.read_line(&mut line).ok()? > 0 {
            if line.contains(part) {
                return Some(line);
            }
            line.clear();
        }
        None
    }

    /// Returns the cycles per packet, measured over a tenth of a second.
    pub fn round(&mut self) -> Option<f64> {
        self.say("clear fwd stats all")?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        self.say("show fwd stats all")?;
        let line = self.until("CPU cycles/packet=")?;
        line.split("CPU cycles/packet=").nth(1)?.split(' ').next()?.parse().ok()
    }

    /// Returns the counters so far. testpmd does not count the cycles of empty polls.
    pub fn counts(&mut self) -> Option<Counts> {
        self.say("show fwd stats all")?;
        // The totals follow the counters of each port.
        self.until("Accumulated")?;
        let packets = self.until("RX-packets:")?;
        let cycles = self.until("total cycles=")?;
        Some(Counts {
            packets: packets.split_whitespace().nth(1)?.parse().ok()?,
            cycles: cycles.split("total cycles=").nth(1)?.split(' ').next()?.parse().ok()?,
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
