//! A hostile back end of `virtio-user:`: malformed replies and disconnects. The property tests in
//! `virtio_user/tests.rs` of `linerate-machines` cover its writes into the driver's memory.
#![no_main]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use linerate::{Batch, Options};
use peer::{BUFFERS, Input, Peer, place, pool, turn};

mod peer;

/// Requests whose reply is a number: features, protocol features, queue count, a ring's base, status.
const NUMBERS: [u32; 5] = [1, 15, 17, 11, 40];

/// Answers requests until the connection ends, or the input makes the back end disconnect.
fn answer(peer: &Peer, input: &mut Input) {
    while let Some(header) = peer.receive(12) {
        let word = |n: usize| u32::from_le_bytes(std::array::from_fn(|byte| header.get(n * 4 + byte).copied().unwrap_or(0)));
        let (request, flags, size) = (word(0), word(1), word(2) as usize);
        if size > 0 && peer.receive(size.min(4096)).is_none() {
            return;
        }
        let is_asked = NUMBERS.contains(&request) || flags & 8 != 0;
        if !is_asked && input.u8() != 255 {
            continue;
        }
        // Most inputs give the reply of a correct back end.
        let (number, len, tag) = match input.u8() {
            choice @ 240.. if input.0.is_empty() => (u64::from(choice), 8, flags),
            240..=247 => (input.u64(), 8, flags),
            248..=251 => (input.u64(), usize::from(input.u8() % 20), input.u8().into()),
            252..=255 => return,
            choice => match request {
                1 => (1 << 32 | 1 << 30 | u64::from(choice & 3) << 34 | 1 << 15 | 1 << 29 | 1 << 22 | 1 << 3, 8, 0),
                15 => (1 | 1 << 3 | 1 << 4 | u64::from(choice & 2) << 15, 8, 0),
                17 => (4, 8, 0),
                _ => (0, 8, 0),
            },
        };
        let mut bytes = [request, tag | 5, len as u32].map(u32::to_le_bytes).concat();
        bytes.extend(number.to_le_bytes().into_iter().cycle().take(len));
        if !peer.send(&bytes, &[]) {
            return;
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let packed = input.u8() & 1 != 0;
    let turns = input.u8() % 4;
    let (path, pool) = (place(), pool());
    let listener = UnixListener::bind(&path).expect("a place");
    let text = input.0.to_vec();
    let back_end = std::thread::spawn(move || {
        let mut input = Input(&text);
        let (socket, _) = listener.accept().expect("the port connects");
        answer(&Peer::of(OwnedFd::from(socket)), &mut input);
    });
    let options = if packed { "?packed=on&queues=2&in_order=on" } else { "?ring=64&in_order=on" };
    let name = format!("virtio-user:{}{options}", path.display());
    let opened = Options { pool: Some(pool.clone()), ..Options::default() }.open([&*name]);
    if let Ok([mut port]) = opened
        && let (Ok(mut rx), Ok(mut tx)) = (port.rx(0), port.tx(0))
    {
        let mut batch = Batch::with_capacity(32);
        (0..turns).for_each(|n| turn(&mut rx, &mut tx, &mut batch, n * 9));
    }
    back_end.join().expect("the back end");
    assert_eq!(pool.available(), BUFFERS, "buffers are lost");
});
