//! Runs in a guest and tests a card's control functions. Counts frames by their destination, first in promiscuous mode,
//! then for the card's own address and broadcast only, then for a custom address, then with filters of addresses and
//! VLANs. Then resets the card and counts once more. If the card strips tags, it strips one. If it has a clock, notes
//! the times of a sent frame and of a received one.

use std::time::{Duration, Instant};

use linerate::port::{Clock, Link, MacAddress, Port, RxQueue};
use linerate::{Batch, Error, ErrorKind};

fn main() {
    let address = std::env::args().nth(1).expect("a card's address");
    if let Err(error) = run(&address) {
        eprintln!("control: {error}");
        std::process::exit(1);
    }
}

fn run(address: &str) -> Result<(), Error> {
    let [mut port] = linerate::open([address])?;
    match linerate::open([address]) {
        Ok([_]) => println!("opened twice"),
        Err(error) => println!("again: {}", error.why()),
    }
    let mut rx = port.rx(0)?;
    while port.link()? == Link::Down {
        std::thread::yield_now();
    }
    println!("address {}", port.mac());
    count("promiscuous", &mut rx);
    port.set_promiscuous(false)?;
    count("own address", &mut rx);
    port.set_mac(MacAddress([2, 0, 0, 0, 0, 0x77]))?;
    count("another address", &mut rx);
    assert_eq!(port.mac().to_string(), "02:00:00:00:00:77");
    let (unicast, group) = (MacAddress([6, 0, 0, 0, 0, 4]), MacAddress([1, 0, 0x5E, 0, 0, 5]));
    match port.set_addresses(&[unicast, group]) {
        Err(error) if error.kind() == ErrorKind::Exhausted => port.set_addresses(&[group])?,
        outcome => outcome?,
    }
    port.set_vlans(Some(&[7]))?;
    count("filters", &mut rx);
    drop(rx);
    port.reset()?;
    rx = port.rx(0)?;
    while port.link()? == Link::Down {
        std::thread::yield_now();
    }
    count("filters after a reset", &mut rx);
    port.set_vlans(None)?;
    port.set_promiscuous(true)?;
    count("after a reset", &mut rx);
    drop(rx);
    let strips = port.strip_vlan_tags(true).is_ok();
    rx = port.rx(0)?;
    if strips {
        println!("ready: tag");
        let mut batch = Batch::new();
        wait_for_one(&mut rx, &mut batch);
        for packet in batch.packets() {
            println!("tag {:?} before {} bytes, at 12: {:x?}", packet.metadata().vlan, packet.len(), &packet[12..14]);
        }
    }
    match port.clock() {
        Ok(clock) => note_times(&mut port, &clock, &mut rx),
        Err(_) => Ok(()),
    }
}

/// Checks the times of a sent frame, and of a received Sync of IEEE 1588: they are between two readings of the clock.
fn note_times(port: &mut Port, clock: &Clock, rx: &mut RxQueue) -> Result<(), Error> {
    let (mut tx, mut batch, start) = (port.tx(0)?, Batch::new(), Instant::now());
    let before = clock.now()?;
    batch.push(port.pool(), &[7; 60]);
    batch.packets().for_each(|mut packet| packet.request_timestamp());
    tx.send_all(&mut batch, Duration::from_secs(30));
    let sent = loop {
        match clock.sent()? {
            Some(time) => break Some(time),
            None if start.elapsed() > Duration::from_secs(30) => break None,
            None => std::thread::yield_now(),
        }
    };
    let between = clock.now()?;
    println!("sent at {sent:?}: {}", sent.is_some_and(|time| (before..=between).contains(&time)));
    println!("ready: time");
    wait_for_one(rx, &mut batch);
    let received = batch.packets().next().and_then(|packet| packet.timestamp());
    let range = between..=clock.now()?;
    println!("received at {received:?}: {}", received.is_some_and(|time| range.contains(&time)));
    Ok(())
}

/// Receives a packet, or none after 30 s.
fn wait_for_one(rx: &mut RxQueue, batch: &mut Batch) {
    let start = Instant::now();
    while rx.recv(batch) == 0 && start.elapsed() < Duration::from_secs(30) {}
}

/// Counts frames until one whose last byte marks the end.
fn count(what: &str, rx: &mut RxQueue) {
    println!("ready: {what}");
    let (mut batch, mut seen) = (Batch::new(), Vec::new());
    let start = Instant::now();
    while seen.last() != Some(&0xFF) && start.elapsed() < Duration::from_secs(30) {
        rx.recv(&mut batch);
        seen.extend((&mut batch).into_iter().map(|bytes| bytes[59]));
        batch.clear();
    }
    println!("{what}: {seen:02x?}");
}
