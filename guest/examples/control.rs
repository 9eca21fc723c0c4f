//! Runs in a guest and tests a card's control functions. Counts frames by their destination, first in promiscuous mode,
//! then for the card's own address and broadcast only, then for a custom address. Then resets the card and counts once
//! more.

use std::time::{Duration, Instant};

use linerate::port::{Link, MacAddress, RxQueue};
use linerate::{Batch, Error};

fn main() {
    let address = std::env::args().nth(1).expect("a card's address");
    if let Err(error) = run(&address) {
        eprintln!("control: {error}");
        std::process::exit(1);
    }
}

fn run(address: &str) -> Result<(), Error> {
    let [mut port] = linerate::open([address])?;
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
    drop(rx);
    port.reset()?;
    rx = port.rx(0)?;
    while port.link()? == Link::Down {
        std::thread::yield_now();
    }
    port.set_promiscuous(true)?;
    count("after a reset", &mut rx);
    Ok(())
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
