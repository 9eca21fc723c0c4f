//! Ports served to other processes: a program that overwrites its shared memory does not harm other programs, and no
//! packet is lost or duplicated when programs start and end.
#![allow(unsafe_code)]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linerate::memory::Mapping;
use linerate::share::netmap_object::{MemoryChoice, RingAt, STATE, SharedPort};
use linerate::share::{Client, OpenRequest, RingCounts, RingSelection, Server};
use linerate_testkit::{Deadline, Timely, end_of, until};

/// Returns 64-bit words of memory shared with another process.
fn words(memory: &Mapping, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: there are no slices of memory shared with another process.
    unsafe { memory.words(offset, count) }
}

/// Offsets in a ring (`struct netmap_ring`), in bytes.
const SLOTS: usize = 256;
const SLOT: usize = 16;
/// The offset of the word with the ring's sync lock.
const LOCK: usize = 16;
/// `NS_MOREFRAG`, in the flags of a slot's first word.
const MORE: u64 = 0x20 << 48;

fn serve(folder: &Path) -> Server {
    let mut server = linerate::server();
    server.listen(&folder.join("any"), None, 0o600, None).unwrap();
    server
}

/// A port as a netmap program uses it.
struct End {
    descriptor: OwnedFd,
    port: SharedPort,
    tx: RingAt,
    rx: RingAt,
    heads: [usize; 2],
}

impl End {
    fn open(folder: &Path, name: &str, slots: u32) -> linerate::Result<End> {
        let rings = RingCounts { tx_slots: slots, rx_slots: slots, ..RingCounts::default() };
        let wanted =
            OpenRequest { name: name.to_string(), selection: RingSelection::All, rings, ..OpenRequest::default() };
        let (descriptor, port) =
            Client::find(folder, name)?.expect("it is served").open(wanted, MemoryChoice::default())?;
        let place = |places: &[Option<RingAt>]| places[0].expect("it was asked for");
        let (tx, rx) = (place(&port.layout().tx), place(&port.layout().rx));
        let heads = [false, true].map(|receives| port.indices(receives, 0).0 as usize);
        Ok(End { descriptor, port, tx, rx, heads })
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn sync_tx(&self) -> linerate::Result<()> {
        self.port.sync_tx(self.bell(), |_, _| None)
    }

    fn sync_rx(&self) -> linerate::Result<()> {
        self.port.sync_rx(self.bell())
    }

    /// Checks that each buffer in the rings is in only one slot.
    fn check_buffers(&self) {
        let rings = [self.tx, self.rx].map(|ring| (0..ring.slots).map(move |slot| (ring, slot)));
        let mut all: Vec<u32> =
            rings.into_iter().flatten().map(|(ring, slot)| self.slot(ring, slot).load(Relaxed) as u32).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a buffer is in two slots");
        assert!(all.iter().all(|buffer| self.port.memory().buffer(*buffer).is_some()));
    }

    fn slot(&self, ring: RingAt, slot: usize) -> &AtomicU64 {
        &words(&self.port.memory().mapping, ring.at + SLOTS + slot * SLOT, 1)[0]
    }

    fn buffer(&self, slot: u64) -> &[AtomicU64] {
        let buffers = self.port.memory().buffers;
        words(&self.port.memory().mapping, buffers.at + slot as u32 as usize * buffers.size, buffers.size / 8)
    }

    /// Sends a frame of words in slots of at most `part` words; returns false if there is no room.
    fn send(&mut self, frame: &[u64], part: usize) -> bool {
        self.sync_tx().unwrap();
        let (ring, (_, tail)) = (self.tx, self.port.indices(false, 0));
        let mut head = self.heads[0];
        let parts = frame.len().div_ceil(part);
        if (tail as usize + ring.slots - head) % ring.slots < parts {
            return false;
        }
        for (n, words) in frame.chunks(part).enumerate() {
            let slot = self.slot(ring, head).load(Relaxed);
            for (place, word) in self.buffer(slot).iter().zip(words) {
                place.store(*word, Relaxed);
            }
            let more = if n + 1 < parts { MORE } else { 0 };
            let len = (words.len() * 8) as u64;
            self.slot(ring, head).store(slot & 0xFFFF_FFFF | len << 32 | more, Relaxed);
            head = (head + 1) % ring.slots;
        }
        self.heads[0] = head;
        self.port.set_head(false, 0, head as u32, head as u32);
        self.sync_tx().unwrap();
        true
    }

    /// Receives the next frame.
    fn receive(&mut self) -> Option<Vec<u64>> {
        self.sync_rx().unwrap();
        let (ring, (_, tail)) = (self.rx, self.port.indices(true, 0));
        let (mut head, mut frame) = (self.heads[1], Vec::new());
        while head != tail as usize {
            let slot = self.slot(ring, head).load(Relaxed);
            let words = (slot >> 32) as u16 as usize / 8;
            frame.extend(self.buffer(slot)[..words].iter().map(|word| word.load(Relaxed)));
            head = (head + 1) % ring.slots;
            if slot & MORE == 0 {
                self.heads[1] = head;
                self.port.set_head(true, 0, head as u32, head as u32);
                return Some(frame);
            }
        }
        assert!(frame.is_empty(), "only whole packets are handed over");
        None
    }
}

/// Reproducible random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
}

/// The mark at the beginning of each valid frame.
const MARK: u64 = 0x5EC2_E7F0_0D5E_C2E7;
const SECRET: u64 = 0xDEAD_5EC2_E75E_C2E7;

fn frame(from: u64, number: u64) -> Vec<u64> {
    let mut frame = vec![u64::MAX, from, MARK, number];
    frame.extend((0..20).map(|n| (number + n).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    frame
}

/// Programs that do not receive only fill their own rings; other programs continue to exchange packets.
#[test]
fn programs_that_sleep_do_not_stop_a_switch() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let asleep: Vec<_> = (0..20).map(|n| End::open(folder.path(), &format!("vale6:z{n}"), 1024).unwrap()).collect();
    let (mut from, mut to) =
        (End::open(folder.path(), "vale6:a", 1024).unwrap(), End::open(folder.path(), "vale6:b", 1024).unwrap());
    let (mut sent, mut heard) = (0, 0);
    let deadline = Deadline::begin();
    while heard < 50_000 {
        // Keep no more packets in flight than the receiver has room for.
        while sent < heard + 500 && from.send(&frame(1, sent), 64) {
            sent += 1;
        }
        while let Some(frame) = to.receive() {
            assert_eq!((frame[2], frame[3]), (MARK, heard));
            heard += 1;
        }
        deadline.check(|| format!("{heard} of 50,000 packets were received, {sent} were sent"));
    }
    drop(asleep);
}

/// A process at one end of a pipe sees only the pipe's memory, and no other memory of the process at the other end.
#[test]
fn a_pipes_memory_is_separate() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let wanted = |name: &str| OpenRequest { name: name.to_string(), ..OpenRequest::default() };
    let pool = linerate::memory::Pool::new(linerate::memory::Region::new(&Default::default()).unwrap());
    let config = |name: &str| linerate::nic::Config::new(name, pool.clone());
    let open = |name: &str| {
        let port = linerate::share::ServedPort::find(folder.path(), wanted(name), config(name)).unwrap();
        Box::new(port.expect("it is served")) as Box<dyn linerate::port::Device>
    };
    let (mut private, mut pipe) = (open("vale7:a"), open("secret{1"));
    let (mut secretive, mut public) = (private.tx(0).unwrap(), pipe.tx(0).unwrap());
    let mut batch = linerate::Batch::new();
    for _ in 0..100 {
        batch.push(&pool, &SECRET.to_ne_bytes().repeat(8));
        secretive.send(&mut batch);
        batch.push(&pool, &MARK.to_ne_bytes().repeat(8));
        public.send(&mut batch);
    }
    let joined = End::open(folder.path(), "secret}1", 64).unwrap();
    let mapping = &joined.port.memory().mapping;
    let has = |wanted: u64| words(mapping, 0, mapping.len() / 8).iter().any(|word| word.load(Relaxed) == wanted);
    assert!(has(MARK) && !has(SECRET));
}

/// The offset in `struct netmap_if` of the first extra buffer's index (`ni_bufs_head`).
const BUFS_HEAD: usize = 32;

/// Returns a port's list of extra buffers.
fn chain(port: &SharedPort) -> Vec<u32> {
    let memory = port.memory();
    let word = |at: usize| words(&memory.mapping, at, 1)[0].load(Relaxed) as u32;
    let mut next = word(port.layout().at + BUFS_HEAD);
    let mut chain = Vec::new();
    while let Some(at) = memory.buffer(next) {
        assert!(chain.len() < 1 << 20, "the chain has no end");
        chain.push(next);
        next = word(at);
    }
    assert_eq!(next, 0, "the end of the chain");
    chain
}

/// Replaces a port's list of extra buffers.
fn chain_anew(port: &SharedPort, buffers: &[u32]) {
    let memory = port.memory();
    let places = buffers.iter().map(|buffer| memory.buffer(*buffer).expect("it was in the chain"));
    let places: Vec<usize> = std::iter::once(port.layout().at + BUFS_HEAD).chain(places).collect();
    for (place, next) in places.into_iter().zip(buffers.iter().copied().chain([0])) {
        let word = &words(&memory.mapping, place, 1)[0];
        word.store(word.load(Relaxed) & !0xFFFF_FFFF | u64::from(next), Relaxed);
    }
}

/// Extra buffers are freed when the port is closed, in whatever order the program has left their list.
#[test]
fn extra_buffers_of_a_closed_port_are_usable_again() {
    const EXTRA: u32 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let open = |name: &str, extra: u32| {
        let wanted = OpenRequest { name: name.to_string(), selection: RingSelection::All, ..OpenRequest::default() };
        let memory = MemoryChoice { number: 1, extra, ..MemoryChoice::default() };
        Client::find(folder.path(), name).unwrap().expect("it is served").open(wanted, memory).unwrap()
    };
    // Keep one port open, so that the process keeps its memory.
    let _keeper = open("valeX:keeper", 0);
    for round in 0..6 {
        // Opening a port waits until the previous port of this name is closed.
        for name in ["valeX:a", "extra{1"] {
            let (_descriptor, port) = open(name, EXTRA);
            assert_eq!(port.extra_buffers(), EXTRA, "{name} in round {round}");
            let mut list = chain(&port);
            assert_eq!(list.len(), EXTRA as usize, "{name} in round {round}");
            // Leave the list unchanged, reverse it, or move every second buffer to the end.
            match round % 3 {
                0 => continue,
                1 => list.reverse(),
                _ => list.sort_by_key(|buffer| (buffer % 2, *buffer)),
            }
            chain_anew(&port, &list);
        }
    }
}

/// Every wait for a server, or for the process that holds the folder's lock, has a timeout: the process may be stopped.
#[test]
fn a_server_that_does_not_answer_is_an_error_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any");
    let listen = |path: &Path| {
        let listener =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        listener
    };
    // A server that listens, but neither accepts nor answers.
    let _silent_server = listen(&path);
    let silent = Client::find(folder.path(), "vale0:a").unwrap().unwrap();
    let lock = std::fs::File::create(folder.path().join(".lock")).unwrap();
    lock.lock().unwrap();
    // A server that accepts no connections, with a full backlog.
    let full = tempfile::tempdir().unwrap();
    let path = full.path().join("any");
    let _full_server = listen(&path);
    let _waiting: Vec<_> = (0..4)
        .map_while(|_| {
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).ok().map(|()| socket)
        })
        .collect();
    // Each wait lasts 10 s.
    let messages = std::thread::scope(|scope| {
        let asked = scope.spawn(|| silent.info("vale0:a").unwrap_err().with_hint());
        let locked = scope.spawn(|| {
            linerate::server().listen(&folder.path().join("other"), None, 0o600, None).unwrap_err().with_hint()
        });
        let connected = scope.spawn(|| Client::find(full.path(), "vale0:a").map(drop).unwrap_err().with_hint());
        [asked, locked, connected].map(|thread| thread.join().unwrap())
    });
    assert!(messages[0].contains("has not answered for 10 s"), "{}", messages[0]);
    assert!(messages[1].contains("has held this lock for 10 s"), "{}", messages[1]);
    assert!(messages[2].contains("has accepted no connection for 10 s"), "{}", messages[2]);
}

/// A program overwrites all its writable memory with arbitrary data, ten million times, while the server reads it.
#[test]
fn a_program_that_overwrites_its_memory_harms_no_other() {
    const OPERATIONS: u64 = 10_000_000;
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let folder = folder.path();
    let (mut a, mut b) = (End::open(folder, "valeG:a", 64).unwrap(), End::open(folder, "valeG:b", 64).unwrap());
    // Put secret contents, which are never sent, into buffers beyond those of the rings.
    let memory = a.port.memory().clone();
    let buffers = memory.buffers;
    for buffer in buffers.count - 100..buffers.count {
        let words = self::words(&memory.mapping, buffers.at + buffer * buffers.size, buffers.size / 8);
        words.iter().for_each(|word| word.store(SECRET, Relaxed));
    }
    let (done, is_heard) = (AtomicBool::new(false), AtomicBool::new(false));
    let bad = End::open(folder, "valeF:bad", 64).unwrap();
    // A port on the same switch receives the program's arbitrary frames.
    let mut near = End::open(folder, "valeF:near", 64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scribble(&bad, OPERATIONS);
            // Continue if the server has not been scheduled until now.
            for _ in 0..100 {
                if !is_heard.load(Relaxed) {
                    scribble(&bad, OPERATIONS / 10);
                }
            }
            done.store(true, Relaxed);
        });
        // Two ports on another switch exchange frames undisturbed, one at a time.
        let (mut exchanged, mut heard) = (0, 0);
        let deadline = Deadline::begin();
        while !done.load(Relaxed) || exchanged < 1000 {
            deadline.check(|| {
                format!(
                    "the other thread; {exchanged} frames were exchanged, {heard} of arbitrary frames were received"
                )
            });
            let deadline = Deadline::begin();
            while !a.send(&frame(1, exchanged), 256) {
                deadline.check(|| "room in the ring");
            }
            let there = next(&mut b, &mut near, &mut heard);
            assert_eq!(there, frame(1, exchanged), "no frame is lost or changed");
            let deadline = Deadline::begin();
            while !b.send(&frame(2, exchanged), 100) {
                deadline.check(|| "room in the ring");
            }
            assert_eq!(next(&mut a, &mut near, &mut heard), frame(2, exchanged));
            exchanged += 1;
            is_heard.store(heard > 0, Relaxed);
        }
        println!("{exchanged} frames exchanged, {heard} of arbitrary frames received meanwhile");
        assert!(heard > 0);
    });
    let (mapping, secret) = (&bad.port.memory().mapping, SECRET);
    let found = words(mapping, 0, mapping.len() / 8).iter().any(|word| word.load(Relaxed) == secret);
    assert!(!found, "no byte of another program's memory is read");
    // The overwritten port can be closed and opened again.
    drop(bad);
    let mut again = End::open(folder, "valeF:bad", 64).unwrap();
    let deadline = Deadline::begin();
    while !again.send(&frame(3, 7), 256) {
        deadline.check(|| "room in the ring");
    }
    let deadline = Deadline::begin();
    let got = loop {
        deadline.check(|| "the frame of the port that was opened again");
        match near.receive() {
            Some(got) if got.get(1) == Some(&3) && got.get(2) == Some(&MARK) => break got,
            _ => {}
        }
    };
    assert_eq!(got, frame(3, 7));
}

/// Returns a port's next frame. Meanwhile receives and counts all frames of another port.
fn next(end: &mut End, near: &mut End, heard: &mut u64) -> Vec<u64> {
    let deadline = Deadline::begin();
    loop {
        deadline.check(|| "the next frame");
        while near.receive().is_some() {
            *heard += 1;
        }
        if let Some(frame) = end.receive() {
            return frame;
        }
        std::thread::yield_now();
    }
}

fn scribble(end: &End, operations: u64) {
    let (mapping, (_, seen)) = (&end.port.memory().mapping, end.port.region());
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for operation in 0..operations {
        let ring = if random.next() & 1 == 0 { end.tx } else { end.rx };
        let in_ring = |at: usize| &words(mapping, ring.at - STATE + at, 1)[0];
        let slot = random.below(ring.slots);
        match random.below(16) {
            // Any word of the ring, or of all memory.
            0 => match random.below((STATE + SLOTS) / 8 + ring.slots * 2) * 8 {
                // Not the lock: the program's own syncs would wait for it.
                LOCK => {}
                at => in_ring(at).store(random.next(), Relaxed),
            },
            1 => {
                let word = random.below(seen / 8);
                words(mapping, word * 8, 1)[0].store(random.next(), Relaxed);
            }
            // Nearly valid slots, and chains of them.
            2..=6 => {
                let (buffer, len) = (random.below(270) as u64, random.below(2100) as u64);
                let flags = if random.below(4) == 0 { MORE } else { 0 };
                end.slot(ring, slot).store(buffer | len << 32 | flags, Relaxed);
            }
            // Broadcast packets.
            7..=8 => {
                let buffer = end.buffer(2 + random.below(250) as u64);
                buffer[0].store(u64::MAX, Relaxed);
                buffer[random.below(buffer.len())].store(random.next(), Relaxed);
            }
            // The ring's indices (`nm_csb_atok`), mostly valid ones, and its flag for wake-ups.
            9..=12 => in_ring(0).store(random.below(ring.slots + 1) as u64, Relaxed),
            13 => in_ring(0).store(random.next(), Relaxed),
            14 => in_ring([8, 64, 72, 80][random.below(4)]).store(random.next() & 0xFFF, Relaxed),
            _ => {
                let _ = (end.sync_tx(), end.sync_rx());
            }
        }
        if operation % 4096 == 0 {
            // Let the server run, even on a machine with one processor.
            std::thread::yield_now();
        }
    }
}

/// A worker process: opens, closes, sends and receives on command, and reports the results.
#[test]
fn worker() {
    let Some(folder) = std::env::var_os("LINERATE_TEST_WORKER") else { return };
    let (folder, input) = (Path::new(&folder), std::io::stdin());
    let mut ends: Vec<Option<End>> = (0..3).map(|_| None).collect();
    for line in input.lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let end: usize = words[1].parse().unwrap();
        let answer = match words[0] {
            "open" => {
                ends[end] = Some(End::open(folder, words[2], 16).unwrap());
                "opened".to_string()
            }
            "header" => {
                let client = Client::find(folder, words[2]).unwrap().expect("it is served");
                format!("header {:?}", client.header(words[2], Some(12)).map_err(|error| error.to_string()))
            }
            "close" => {
                ends[end].take().unwrap().check_buffers();
                "closed".to_string()
            }
            "send" => {
                let (first, count): (u64, u64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
                let end = ends[end].as_mut().unwrap();
                let sent = (first..first + count).take_while(|n| end.send(&frame(1, *n), 7)).count();
                format!("sent {sent}")
            }
            // Returns how many sent packets still wait for room in a pipe, after another sync.
            "pending" => {
                let end = ends[end].as_mut().unwrap();
                end.sync_tx().unwrap();
                let (head, tail) = end.port.indices(false, 0);
                format!("pending {}", (head as usize + 2 * end.tx.slots - 1 - tail as usize) % end.tx.slots)
            }
            _ => {
                // Sync, to move a pipe's frames that had to wait for room.
                ends[end].as_mut().unwrap().sync_tx().unwrap();
                let mut numbers = Vec::new();
                while let Some(got) = ends[end].as_mut().unwrap().receive() {
                    assert_eq!(got, frame(1, got[3]));
                    numbers.push(got[3].to_string());
                }
                format!("got {}", numbers.join(" "))
            }
        };
        println!("answer {answer}");
        std::io::stdout().flush().unwrap();
    }
    drop(ends);
    println!("answer done");
}

struct Worker {
    child: std::process::Child,
    output: BufReader<Timely<std::process::ChildStdout>>,
}

impl Worker {
    fn start(folder: &Path) -> Worker {
        Worker::of(Command::new(std::env::current_exe().unwrap()), folder)
    }

    fn of(mut command: Command, folder: &Path) -> Worker {
        command.args(["worker", "--exact", "--nocapture"]).env("LINERATE_TEST_WORKER", folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(Timely(child.stdout.take().unwrap()));
        Worker { child, output }
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the worker has ended");
            // The test harness may print text before the answer.
            if let Some((_, answer)) = line.split_once("answer ") {
                return answer.trim_end().to_string();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.answer()
    }
}

/// Runs 2,000 schedules over pipes and a switch between two processes. Each packet arrives once, intact and in
/// order, whatever is opened and closed meanwhile, and at each end every buffer is in one slot.
#[test]
fn nothing_is_lost_or_doubled_between_processes() {
    const SCHEDULES: u64 = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let mut workers = [Worker::start(folder.path()), Worker::start(folder.path())];
    let mut random = Random(0xFEED_BEEF_1234_5677);
    let (mut exchanged, mut on_switch) = (0u64, 0u64);
    for schedule in 0..SCHEDULES {
        let is_pipe = schedule % 2 == 0;
        let names = match is_pipe {
            true => [format!("p{{{}", schedule % 7), format!("p}}{}", schedule % 7)],
            false => ["valeS:a".to_string(), "valeS:b".to_string()],
        };
        let sender = random.below(2);
        let receiver = 1 - sender;
        let (mut next, mut wanted) = (0u64, 0u64);
        workers[sender].ask(&format!("open 0 {}", names[0]));
        workers[receiver].ask(&format!("open 0 {}", names[1]));
        let mut took = |workers: &mut [Worker; 2], wanted: &mut u64| {
            for number in workers[receiver].ask("receive 0").split(' ').skip(1).filter(|text| !text.is_empty()) {
                let number: u64 = number.parse().unwrap();
                assert!(number >= *wanted, "{number} comes after {wanted}");
                // A pipe loses no packets; a switch drops packets when there is no room.
                assert!(!is_pipe || number == *wanted, "{number} instead of {wanted}");
                *wanted = number + 1;
                exchanged += 1;
                on_switch += u64::from(!is_pipe);
            }
        };
        for _ in 0..random.below(8) {
            match random.below(10) {
                0..=4 => {
                    let sent = workers[sender].ask(&format!("send 0 {next} {}", 1 + random.below(4)));
                    next += sent.strip_prefix("sent ").unwrap().parse::<u64>().unwrap();
                }
                5..=7 => took(&mut workers, &mut wanted),
                // Close and reopen the sender's port. Packets already sent into a pipe are kept.
                8 => {
                    let deadline = Deadline::begin();
                    while is_pipe && workers[sender].ask("pending 0") != "pending 0" {
                        deadline.check(|| "the pipe is empty");
                        took(&mut workers, &mut wanted);
                    }
                    workers[sender].ask("close 0");
                    workers[sender].ask(&format!("open 0 {}", names[0]));
                }
                _ => {
                    took(&mut workers, &mut wanted);
                    workers[receiver].ask("close 0");
                    workers[receiver].ask(&format!("open 0 {}", names[1]));
                }
            }
        }
        // All packets of a pipe arrive, some only when there is room.
        let deadline = Deadline::begin();
        while is_pipe && wanted < next {
            deadline.check(|| format!("{wanted} of {next} packets came through the pipe"));
            took(&mut workers, &mut wanted);
            workers[sender].ask("pending 0");
        }
        workers[sender].ask("close 0");
        workers[receiver].ask("close 0");
    }
    assert!(exchanged > 2_000 && on_switch > 200, "{exchanged} {on_switch}");
    for worker in &mut workers {
        drop(worker.child.stdin.take());
        assert_eq!(worker.answer(), "done");
        assert!(end_of(&mut worker.child).success());
    }
}

#[test]
fn a_port_is_served_in_the_folder_and_nowhere_else() {
    let folder = std::path::Path::new("/ports");
    for (name, socket) in [("vale0:a", "vale0"), ("pipe{1", "pipe"), ("eth0.7^", "eth0.7"), ("vale0", "vale0")] {
        assert_eq!(linerate::share::socket_of(folder, name).unwrap(), folder.join(socket));
    }
    for name in ["", "..", "../up{1", "vale/../../x:a", "/etc/x", "vale0\n:a", "vale\u{7}", ".hidden", "a b", "ä"] {
        let said = linerate::share::socket_of(folder, name).unwrap_err().with_hint();
        assert!(said.contains("without '/'") && !said.contains('\u{7}'), "{said}");
        assert!(Client::find(folder, name).is_err());
    }
}

/// An unprivileged user.
const NOBODY: u32 = 65_534;

#[test]
fn only_the_ports_user_changes_its_header() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut server = linerate::server();
    server.listen(&folder.path().join("any"), None, 0o666, None).unwrap();
    let _end = End::open(folder.path(), "vale6:a", 16).unwrap();
    // Copy the program, since another user may have no access to its folder.
    let program = folder.path().join("worker");
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap().success());
    let mut command = Command::new(program);
    command.current_dir("/").uid(NOBODY).gid(NOBODY);
    let mut stranger = Worker::of(command, folder.path());
    let said = stranger.ask("header 0 vale6:a");
    assert!(said.contains("belongs to another user"), "{said}");
    let client = Client::find(folder.path(), "vale6:a").unwrap().unwrap();
    assert_eq!(client.header("vale6:a", None).unwrap(), 0);
    // The user may change the header of its own port.
    assert_eq!(stranger.ask("open 1 vale6:b"), "opened");
    assert_eq!(stranger.ask("header 1 vale6:b"), "header Ok(12)");
    drop(stranger.child.stdin.take());
    end_of(&mut stranger.child);
}

#[test]
fn ports_of_a_killed_program_are_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    for round in 0..40 {
        let name = ["vale9:a", "p{9"][round % 2];
        let mut worker = Worker::start(folder.path());
        assert_eq!(worker.ask(&format!("open 0 {name}")), "opened");
        worker.child.kill().unwrap();
        worker.child.wait().unwrap();
        if let Err(error) = End::open(folder.path(), name, 64) {
            panic!("round {round}: {error}");
        }
    }
}

#[test]
fn an_exclusive_port_has_one_of_two_concurrent_owners() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    for round in 0..200 {
        // Counts arrivals of both threads, before and after opening the port.
        let arrived = AtomicU64::new(0);
        let had = [(); 2].map(|()| {
            let (folder, arrived) = (folder.path(), &arrived);
            let meet = |count| {
                arrived.fetch_add(1, Relaxed);
                until("the other thread", || arrived.load(Relaxed) >= count);
            };
            move || {
                let wanted = OpenRequest {
                    name: "vale0:a".to_string(),
                    exclusive: true,
                    rings: RingCounts { tx_slots: 16, rx_slots: 16, ..RingCounts::default() },
                    ..OpenRequest::default()
                };
                let client = Client::find(folder, "vale0:a").unwrap().expect("it is served");
                meet(2);
                let port = client.open(wanted, MemoryChoice::default());
                meet(4);
                port.is_ok()
            }
        });
        let count = std::thread::scope(|scope| {
            let both = had.map(|had| scope.spawn(had));
            both.into_iter().filter_map(|thread| thread.join().ok()).filter(|had| *had).count()
        });
        assert_eq!(count, 1, "round {round}");
    }
}
