//! Runs in a guest: leaves received datagrams in the kernel's socket buffer, and checks them when a file appears.
//!
//! ```text
//!   stored PORT FILE
//! ```
//!
//! A datagram begins with its number and its hash ([`hash_of`]). Unread datagrams stay in the pages that the card
//! wrote, so after a live migration they show what was copied. After each check the program removes the file and lets
//! the next datagrams accumulate. If the file contains the word `end`, the program ends.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::time::Duration;

use linerate_guest::hash_of;

/// More datagrams than a socket's buffer holds.
const MOST: usize = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, port, file] = &arguments[..] else { panic!("stored PORT FILE") };
    let socket = UdpSocket::bind(format!("0.0.0.0:{port}")).expect("a free port");
    println!("stores");
    socket.set_nonblocking(true).expect("a socket");
    let (mut datagram, mut numbers, mut stored, mut corrupted, mut repeated) = ([0; 2048], HashSet::new(), 0, 0, 0);
    for turn in 1.. {
        while !std::fs::exists(file).expect("a folder") {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Bounded: new datagrams arrive while these are read.
        for _ in 0..MOST {
            let Ok(len) = socket.recv(&mut datagram) else { break };
            let datagram = &datagram[..len];
            let [number, claimed] = [0, 8].map(|at| datagram.get(at..)?.first_chunk().copied().map(u64::from_le_bytes));
            stored += 1;
            if number.is_none() || len < 16 || claimed != Some(hash_of(datagram)) {
                corrupted += 1;
            } else if !numbers.insert(number) {
                repeated += 1;
            }
        }
        if std::fs::read_to_string(file).is_ok_and(|word| word.trim() == "end") {
            break;
        }
        std::fs::remove_file(file).expect("a folder");
        println!("turn {turn} is checked");
    }
    println!("{{\"summary\":{{\"stored\":{stored},\"corrupted\":{corrupted},\"repeated\":{repeated}}}}}");
}
