//! Runs in a guest: prints the metadata of each packet that a port receives, until it is ended. `PORT [FILTER]` marks the
//! packets that match the filter.

use linerate::port::{Action, Wait, Waiter};
use linerate::{Batch, Error};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (port, filter) = match &arguments[..] {
        [_, port] => (port, None),
        [_, port, filter] => (port, Some(filter)),
        _ => panic!("described PORT [FILTER]"),
    };
    if let Err(error) = run(port, filter.map(String::as_str)) {
        let remedy = error.remedy().map(ToString::to_string).unwrap_or_default();
        eprintln!("described: {error}; {remedy}");
        std::process::exit(1);
    }
}

fn run(port: &str, filter: Option<&str>) -> Result<(), Error> {
    let [mut port] = linerate::open([port])?;
    if let Some(filter) = filter {
        port.add_rule(&filter.parse()?, Action::Mark(7))?;
    }
    let (mut rx, mut batch, mut waiter) = (port.rx(0)?, Batch::new(), Waiter::new(Wait::Interrupt));
    println!("ready");
    loop {
        let received = rx.recv(&mut batch);
        for packet in batch.packets() {
            let (metadata, mut bytes) = (packet.metadata(), Vec::new());
            packet.append_to(&mut bytes);
            let start: String = bytes.iter().skip(12).take(6).map(|byte| format!("{byte:02x}")).collect();
            let hash = metadata.hash.map_or("no hash".to_string(), |hash| format!("hash {:?}", hash.fields));
            let (len, vlan, mark, time) = (bytes.len(), metadata.vlan, metadata.mark, packet.timestamp());
            println!("{len} bytes, {start}: {hash}, tag {vlan:?}, mark {mark:?}, time {time:?}");
        }
        batch.clear();
        waiter.turn(received, &mut [&mut rx]);
    }
}
