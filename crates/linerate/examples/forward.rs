//! The library's first example: forwards from one port to another, with a byte of each packet changed.
//!
//! `cargo run --release --example forward`, or with the names of two ports.

use linerate::Batch;

fn main() -> linerate::Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let names = names.iter().map(String::as_str).collect::<Vec<_>>();
    let [a, b] = names[..] else {
        return forward("sim:0", "sim:1?wire=sink");
    };
    forward(a, b)
}

fn forward(a: &str, b: &str) -> linerate::Result<()> {
    let [mut a, mut b] = linerate::open([a, b])?;
    let (mut rx, mut tx) = (a.rx(0)?, b.tx(0)?);
    let mut batch = Batch::new();
    while a.statistics()?.rx_packets < 10_000_000 {
        for _ in 0..1000 {
            rx.recv(&mut batch); // up to 32 slots, never blocks
            for mut packet in &mut batch {
                packet[22] ^= 1; // plain bytes
            }
            tx.send(&mut batch); // takes from the front what fits
            batch.clear(); // the rest goes back to the pool
        }
    }
    println!("{:?}", b.statistics()?);
    Ok(())
}
