//! Runs in a guest: prints what a port with `metadata=on` reports about each packet, and the packet's queue. `PORT COUNT`:
//! receives `COUNT` packets with the default table, then with another table, then with a key that gives both directions of
//! a flow the same hash. A packet's last byte is its number.

use std::time::{Duration, Instant};

use linerate::port::{Port, Rss, RxQueue};
use linerate::{Batch, Error};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, port, count] = &arguments[..] else { panic!("received PORT COUNT") };
    if let Err(error) = run(port, count.parse().expect("a number")) {
        eprintln!("received: {error}");
        std::process::exit(1);
    }
}

fn run(port: &str, count: usize) -> Result<(), Error> {
    let [mut port] = linerate::open([port])?;
    let mut queues = (0..port.info().rx_queues).map(|queue| port.rx(queue)).collect::<Result<Vec<_>, _>>()?;
    let mut print = |what: &str, port: &mut Port, rss: Option<Rss>| {
        rss.map_or(Ok(()), |rss| port.set_rss(&rss))?;
        println!("ready: {what}");
        receive(what, &mut queues, count);
        Ok::<_, Error>(())
    };
    print("evenly", &mut port, None)?;
    print("table", &mut port, Some(Rss { table: vec![1, 1, 0], ..Rss::evenly(2) }))?;
    let mut symmetric = Rss::evenly(2);
    symmetric.key.chunks_mut(2).for_each(|pair| pair.copy_from_slice(&[0x6D, 0x5A]));
    print("symmetric", &mut port, Some(symmetric))
}

/// Prints `count` packets.
fn receive(what: &str, queues: &mut [RxQueue], count: usize) {
    let (mut batch, mut seen, start) = (Batch::new(), 0, Instant::now());
    while seen < count && start.elapsed() < Duration::from_secs(30) {
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.recv(&mut batch);
            for packet in batch.packets() {
                let (metadata, mut bytes) = (packet.metadata(), Vec::new());
                packet.append_to(&mut bytes);
                let hash = metadata.hash.map(|hash| format!("{:08x} {:?}", hash.value, hash.fields));
                let (last, hash) = (bytes[bytes.len() - 1], hash.unwrap_or("none".into()));
                println!("{what} {last}: queue {number}, {:?}, {hash}", metadata.checksum);
                seen += 1;
            }
            batch.clear();
        }
    }
}
