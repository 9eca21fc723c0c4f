//! A hostile peer of `memif:`, as client and as server: its messages, file descriptors, rings, and truncated memory.
#![no_main]

use std::os::fd::AsFd;

use linerate::{Batch, Options};
use peer::{BUFFERS, Descriptors, Input, LEN, Peer, memory, place, pool, turn, write};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};

mod peer;

/// The length of each message.
const MESSAGE: usize = 128;
const RING: usize = 0x1000;

fn message(kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(parts.concat());
    bytes.resize(MESSAGE, 0);
    bytes
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let first = input.u8();
    let (is_server, lends) = (first & 1 == 0, first & 2 == 0);
    let (path, pool) = (place(), pool());
    let socket = |kind| socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    let listener = (!is_server).then(|| {
        let listener = socket(SocketType::SEQPACKET);
        bind(&listener, &SocketAddrUnix::new(&path).expect("a path")).expect("a place");
        listen(&listener, 4).expect("a listener");
        listener
    });
    let role = match (is_server, lends) {
        (true, _) => "server",
        (false, true) => "client&zero-copy=on",
        (false, false) => "client",
    };
    let name = format!("memif:{}?role={role}&ring=64", path.display());
    let [mut port] = Options { pool: Some(pool.clone()), ..Options::default() }.open([&*name]).expect("a port");
    let (mut rx, mut tx) = (port.rx(0).expect("a queue"), port.tx(0).expect("a queue"));
    let mut batch = Batch::with_capacity(1 + usize::from(input.u8() % 64));
    let connection = || match &listener {
        Some(listener) => Peer::of(accept(listener).expect("the port connects")),
        None => Peer::connect(&path, SocketType::SEQPACKET),
    };
    let mut peer = connection();
    let memory = memory();
    let descriptors = Descriptors::new(&memory);
    while !input.0.is_empty() {
        match input.u8() % 8 {
            0 => {
                let (kind, choice) = (input.u8() % 10, input.u8());
                peer.send(&message(kind.into(), &[&input.bytes(100)]), &descriptors.choose(choice));
            }
            // A client's complete handshake: INIT, a region, the rings, CONNECT.
            1 => {
                let log2 = input.u8() % 16;
                peer.send(&message(3, &[&[0, 2], &[0; 4], &[0]]), &[]);
                peer.send(&message(4, &[&[0, 0], &(LEN as u64).to_le_bytes()]), &[memory.as_fd()]);
                for ring in 0..2u16 {
                    let at = u32::from(ring) * RING as u32 + u32::from(input.u8() % 4) * 16;
                    let parts: [&[u8]; 6] =
                        [&(1 - ring).to_le_bytes(), &[0, 0], &[0, 0], &at.to_le_bytes(), &[log2], &[0, 0]];
                    peer.send(&message(5, &parts), &[descriptors.event()]);
                    write(&memory, at as usize, &0x3E3_1F20u32.to_le_bytes());
                }
                peer.send(&message(6, &[]), &[]);
            }
            // A server's complete handshake: HELLO, acknowledgements, CONNECTED.
            2 => {
                let text = [0u8; 32];
                peer.send(&message(2, &[&text, &[0, 2, 0, 2], &[255, 0, 0, 0, 0, 0], &[14]]), &[]);
                // For the client's INIT, its regions and its two rings.
                for _ in 0..4 + u8::from(lends) {
                    peer.send(&message(1, &[]), &[]);
                }
                peer.send(&message(7, &[]), &[]);
            }
            // A descriptor: flags, region, length, offset.
            3 => {
                let (ring, number) = (usize::from(input.u8() % 2), usize::from(input.u8() % 64));
                let (flags, region) = (input.u8() % 4, input.u8() % 3);
                let (len, offset) = (u32::from(input.u16()), u32::from(input.u16()) * 8);
                let mut bytes = vec![flags, 0, region, 0];
                bytes.extend([len.to_le_bytes(), offset.to_le_bytes()].concat());
                write(&memory, ring * RING + 128 + number * 16, &bytes);
            }
            // A ring's head and tail.
            4 => {
                let (ring, head, tail) = (usize::from(input.u8() % 2), input.u16() % 256, input.u16() % 256);
                write(&memory, ring * RING + 6, &head.to_le_bytes());
                write(&memory, ring * RING + 64, &tail.to_le_bytes());
            }
            5 => turn(&mut rx, &mut tx, &mut batch, input.u8()),
            // Receives a message from the port. If the connection has ended, connects again.
            6 => {
                if !peer.send(&message(input.u8().into(), &[]), &[]) || peer.receive(MESSAGE).is_none() {
                    // A client that lends its buffers connects again only after the previous connection is closed.
                    drop(peer);
                    peer = connection();
                }
            }
            _ => {
                let _ = rustix::fs::ftruncate(&memory, u64::from(input.u16()) * 16);
                turn(&mut rx, &mut tx, &mut batch, 1);
                let _ = rustix::fs::ftruncate(&memory, LEN as u64);
            }
        }
    }
    turn(&mut rx, &mut tx, &mut batch, 3);
    drop((peer, listener, rx, tx, batch, port));
    assert_eq!(pool.available(), BUFFERS, "buffers are lost");
});
