//! A hostile front end of `vhost:`: its messages, file descriptors, rings, and truncated memory.
#![no_main]

use std::os::fd::AsFd;

use linerate::{Batch, Options};
use peer::{BUFFERS, Descriptors, Input, LEN, Peer, memory, place, pool, turn, write};
use rustix::net::SocketType;

mod peer;

/// The guest address of the front end's memory.
const GUEST: u64 = 1 << 20;
/// The distance between the two rings in this memory.
const RING: usize = 0x4000;

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [request, flags | 1, payload.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend_from_slice(payload);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let options = input.u8();
    let (packed, offloads) = (options & 1 != 0, options & 2 != 0);
    let text = match (packed, offloads) {
        (false, false) => "",
        (true, false) => "?packed=on",
        (false, true) => "?offloads=on&mtu=9000",
        (true, true) => "?packed=on&offloads=on&mtu=9000",
    };
    let (path, pool) = (place(), pool());
    let name = format!("vhost:{}{text}", path.display());
    let [mut port] = Options { pool: Some(pool.clone()), ..Options::default() }.open([&*name]).expect("a port");
    let (mut rx, mut tx) = (port.rx(0).expect("a queue"), port.tx(0).expect("a queue"));
    let mut batch = Batch::with_capacity(1 + usize::from(input.u8() % 64));
    let mut front = Peer::connect(&path, SocketType::STREAM);
    let memory = memory();
    let descriptors = Descriptors::new(&memory);
    while !input.0.is_empty() {
        match input.u8() % 8 {
            0 => {
                let (request, flags, choice) = (input.u8() % 48, input.u8() & 0xC, input.u8());
                front.send(&message(request.into(), flags.into(), &input.bytes(64)), &descriptors.choose(choice));
            }
            // Arbitrary bytes, possibly an incomplete message, and then the end of the connection.
            1 => {
                let bytes = input.bytes(40);
                front.send(&bytes, &[]);
                drop(front);
                front = Peer::connect(&path, SocketType::STREAM);
            }
            // A front end's complete setup, with sizes and features from the input.
            2 => {
                let (features, size, base) = (input.u64(), u64::from(input.u16()), u64::from(input.u16()));
                let say = |request, payload: &[u64]| front.send(&message(request, 0, &words(payload)), &[]);
                say(3, &[]);
                say(2, &[features | 1 << 32 | u64::from(packed) << 34]);
                front.send(&message(5, 0, &words(&[1, GUEST, LEN as u64, GUEST, 0])), &[memory.as_fd()]);
                for ring in 0..2u64 {
                    let at = GUEST + ring * RING as u64;
                    say(8, &[ring | (size % 1025) << 32]);
                    say(10, &[ring | base << 32]);
                    front.send(&message(9, 0, &words(&[ring, at, at + 0x2000, at + 0x1000, at + 0x2000])), &[]);
                    front.send(&message(13, 0, &words(&[ring])), &[descriptors.event()]);
                    front.send(&message(12, 0, &words(&[ring])), &[descriptors.event()]);
                    say(18, &[ring | 1 << 32]);
                }
            }
            // A descriptor in a table, or in a packed ring.
            3 => {
                let (ring, number) = (usize::from(input.u8() % 2), usize::from(input.u16() % 64));
                let places = [GUEST + 0x10_000, GUEST, GUEST + LEN as u64 - 100, 0, u64::MAX - 50];
                let address = places[usize::from(input.u8()) % 5].wrapping_add(input.u8().into());
                let rest = u64::from(input.u32() % 70_000) | u64::from(input.u16()) << 32 | u64::from(input.u16()) << 48;
                write(&memory, ring * RING + number * 16, &words(&[address, rest]));
            }
            // Arbitrary bytes in the rings and the packets.
            4 => {
                let (at, bytes) = (input.u16(), input.bytes(16));
                write(&memory, usize::from(at) * 4, &bytes);
            }
            5 => turn(&mut rx, &mut tx, &mut batch, input.u8()),
            // A reply shows that the port has handled all earlier messages. If the connection has ended, connects
            // again.
            6 => {
                if !front.send(&message(1, 0, &[]), &[]) || front.receive(4096).is_none() {
                    front = Peer::connect(&path, SocketType::STREAM);
                }
            }
            // The memory is truncated, and then extended with zeros.
            _ => {
                let _ = rustix::fs::ftruncate(&memory, u64::from(input.u16()) * 16);
                turn(&mut rx, &mut tx, &mut batch, 1);
                let _ = rustix::fs::ftruncate(&memory, LEN as u64);
            }
        }
    }
    turn(&mut rx, &mut tx, &mut batch, 3);
    drop((front, rx, tx, batch, port));
    assert_eq!(pool.available(), BUFFERS, "buffers are lost");
});
