//! Runs in a guest: prints what a port with `metadata=on` reports about each packet, and the packet's queue. `PORT COUNT`
//! receives `COUNT` packets in each phase: with the default table, with another table, with a key that gives both
//! directions of a flow the same hash, and after queue 1 has stopped and started again. A packet's last byte is its
//! number.

use std::time::{Duration, Instant};

use linerate::port::{Link, Rss, RxQueue};
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
    while port.link()? == Link::Down {
        std::thread::yield_now();
    }
    receive("evenly", &mut queues, count);
    port.set_rss(&Rss { table: vec![1, 1, 0], ..Rss::evenly(2) })?;
    receive("table", &mut queues, count);
    let mut symmetric = Rss::evenly(2);
    symmetric.key.chunks_mut(2).for_each(|pair| pair.copy_from_slice(&[0x6D, 0x5A]));
    port.set_rss(&symmetric)?;
    receive("symmetric", &mut queues, count);
    port.set_rss(&Rss::evenly(2))?;
    let (last, before) = (queues.pop().expect("two queues"), port.pool().available());
    let held = last.buffers();
    last.stop()?;
    println!("returned {} of {held} buffers", port.pool().available() - before);
    queues.push(port.rx(1)?);
    receive("restarted", &mut queues, count);
    Ok(())
}

/// Prints `count` packets.
fn receive(what: &str, queues: &mut [RxQueue], count: usize) {
    println!("ready: {what}");
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
