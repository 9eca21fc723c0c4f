//! Memory, tables and logs that a front end changes while queues use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::*;
use crate::vhost::log::Log;
use crate::vhost::memory::GuestMemory;
use crate::vhost::ring::Addresses;
use crate::vhost::session::{Session, Shared, offered};
use crate::vhost::vring::{QueueRing, Vring};

/// A driver changes a packet's header and descriptor while they are read. Whichever version is read, its offload is
/// inside the packet.
#[test]
fn what_changes_while_it_is_read_is_read_once() {
    const ROUNDS: usize = 20_000;
    for longest in [1518, 9018] {
        let mut test = listening(&format!("?offloads=on&mtu={}", longest - 18));
        let mut rx = test.port.rx(0).unwrap();
        let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::CSUM | feature::HOST_TSO4);
        let (address, done) = (front.write(0, &[3; 200]), Arc::new(AtomicBool::new(false)));
        let (memory, is_done) = (front.memory.clone(), done.clone());
        let hostile = std::thread::spawn(move || {
            let (mut n, headers) =
                (0u32, [[0u8; 10], [1, 0, 0, 0, 0, 0, 34, 0, 6, 0], [1, 1, 0, 0, 9, 0, 255, 255, 6, 0]]);
            let deadline = Deadline::begin();
            while !is_done.load(Relaxed) {
                deadline.check(|| "the end of the test");
                n += 1;
                memory.write(BUFFERS, &headers[n as usize % 3]);
                // The lengths of all descriptors of the transmit ring.
                for descriptor in 0..usize::from(SIZE) {
                    memory.write(
                        3 * 4096 + 16 * descriptor + 8,
                        &[72u32, 212, 1, u32::MAX][n as usize % 4].to_le_bytes(),
                    );
                }
            }
            n
        });
        let (mut batch, mut taken, mut unfinished, mut rounds) = (Batch::new(), 0, 0, 0);
        // Until there were packets of both kinds, however rarely the other thread runs.
        while rounds < ROUNDS || unfinished == 0 || taken == unfinished {
            rounds += 1;
            assert!(rounds < 1000 * ROUNDS, "{taken}, {unfinished}");
            if front.rings[1].added.wrapping_sub(front.used(TRANSMITS)) < SIZE {
                let number = front.rings[1].added % SIZE;
                front.describe(TRANSMITS, number, address, 72, 0, 0);
                front.offer(TRANSMITS, number);
            }
            rx.recv(&mut batch);
            for packet in &mut batch {
                let (len, left) = (packet.segments().map(<[u8]>::len).sum::<usize>(), packet.offload());
                assert!(len == 60 || len == 200, "{len}");
                // The checksum must be inside the packet.
                assert!(left.is_none_or(|left| left.checksum_offsets(len).is_some()), "{left:?} in {len}");
                (taken, unfinished) = (taken + 1, unfinished + usize::from(left.is_some()));
            }
            batch.clear();
            // A length beyond the memory invalidates the ring; the next connection continues.
            if test.port.link().unwrap() == Link::Down {
                (front.rings[1].added, front.base) = (0, 0);
                for index in [&front.rings[1].available[1], &front.rings[1].used[1]] {
                    index.store(0, Relaxed);
                }
                front = front.connect_again(&test, feature::VERSION_1 | feature::CSUM | feature::HOST_TSO4);
            }
        }
        done.store(true, Relaxed);
        assert!(hostile.join().unwrap() > 0);
    }
}

/// A front end replaces its memory table repeatedly while a queue polls. Memory that was removed is not accessed after
/// the reply.
#[test]
fn a_queue_that_polls_leaves_memory_that_was_taken_away() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    let done = Arc::new(AtomicBool::new(false));
    let is_done = done.clone();
    let poller = std::thread::spawn(move || {
        let (mut batch, mut count) = (Batch::new(), 0);
        let deadline = Deadline::begin();
        while !is_done.load(Relaxed) {
            deadline.check(|| "the end of the test");
            rx.recv(&mut batch);
            for packet in &mut batch {
                assert!(packet.iter().all(|&byte| byte == 7), "bytes of memory that is not the ring's");
                count += 1;
            }
            batch.clear();
        }
        (rx, count)
    });
    let mut sent = 0;
    for round in 0..200u64 {
        // A second region for buffers, in addition to the rings' memory.
        let file = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        rustix::io::pwrite(&file, &[&[0; HEADER][..], &[7; 60]].concat(), 0).unwrap();
        let guest = GUEST + LEN as u64 + round % 2 * 8192;
        let regions =
            [MemoryRegion::new(GUEST, LEN as u64, USER, 0), MemoryRegion::new(guest, 4096, USER + LEN as u64, 0)];
        let table = MemoryTable::new(2);
        let payload = [table.as_slice(), regions[0].as_slice(), regions[1].as_slice()].concat();
        front.say(Request::SET_MEM_TABLE, &payload, &[front.file.as_fd(), file.as_fd()]);
        front.number(Request::GET_FEATURES); // all earlier messages are processed
        for _ in 0..4 {
            let number = front.rings[1].added % SIZE;
            front.describe(TRANSMITS, number, guest, 72, 0, 0);
            front.offer(TRANSMITS, number);
            sent += 1;
        }
        until(|| front.used(TRANSMITS) == front.rings[1].added);
        // The table without the second region; then its memory is removed.
        front.share();
        front.number(Request::GET_FEATURES);
        ftruncate(&file, 0).unwrap();
    }
    assert_ne!(test.port.link().unwrap(), Link::Down);
    done.store(true, Relaxed);
    let (rx, count) = poller.join().unwrap();
    assert_eq!((count, test.port.statistics().unwrap().drops.malformed), (sent, 0));
    drop(rx);
}

/// Two queues mark pages of the same word while the front end clears it: each mark is seen once.
#[test]
fn no_mark_of_a_log_is_lost_while_it_is_taken() {
    let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 4096).unwrap();
    let log = Log::new(file.try_clone().unwrap(), 8, 0).unwrap();
    // SAFETY: the test does not shorten the file while it is mapped.
    let mapping = Arc::new(unsafe { Mapping::of_device(file, 0, 4096) }.unwrap());
    // SAFETY: this memory is never lent as a slice.
    let word = unsafe { DmaArray::<AtomicU64>::new(&mapping, 0, 1) };
    const PAGES: u64 = 64;
    let (marks, seen) = (2_000, [const { AtomicU64::new(0) }; PAGES as usize]);
    std::thread::scope(|scope| {
        let queues: Vec<_> = [0, PAGES / 2]
            .into_iter()
            .map(|first| {
                let (log, own) = (&log, &seen[first as usize..][..PAGES as usize / 2]);
                scope.spawn(move || {
                    for n in 1..=marks {
                        log.mark(first * 4096, own.len() * 4096);
                        until(|| own.iter().all(|seen| seen.load(Relaxed) >= n));
                    }
                })
            })
            .collect();
        let deadline = Deadline::begin();
        while queues.iter().any(|queue| !queue.is_finished()) {
            deadline.check(|| format!("{marks} marks of each page: {seen:?}"));
            let pages = word[0].swap(0, Acquire);
            seen.iter().enumerate().for_each(|(page, seen)| _ = seen.fetch_add(pages >> page & 1, Relaxed));
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Relaxed) == marks), "{seen:?}");
}

/// A change waits for the poll in progress; only then is the front end told that it is done.
#[test]
fn a_change_waits_for_the_poll_that_is_in_progress() {
    let front = FrontEnd::new(UnixStream::pair().unwrap().0);
    let mut memory = GuestMemory::default();
    let region = MemoryRegion::new(GUEST, LEN as u64, USER, 0);
    memory.add(region.into(), front.file.try_clone().unwrap()).unwrap();
    let vring = Arc::new(Vring::new("vhost:", None).unwrap());
    let changed = vring.change(|setup| {
        (setup.size, setup.is_started, setup.is_enabled) = (SIZE, true, true);
        setup.addresses = Addresses { descriptors: USER, available: USER + 4096, used: USER + 8192 };
        setup.memory = Arc::new(memory);
    });
    changed.unwrap();
    let mut queue_ring = QueueRing::new(vring.clone());
    for _ in 0..100 {
        assert!(queue_ring.enter().is_some());
        assert!(!queue_ring.has_work());
        let has_left = Arc::new(AtomicBool::new(false));
        let (vring, was_left) = (vring.clone(), has_left.clone());
        let changer = std::thread::spawn(move || {
            vring.change(|_| {}).unwrap();
            was_left.load(Acquire)
        });
        until(|| queue_ring.has_work());
        // The setup is changed, and the thread would have time to return.
        (0..100).for_each(|_| std::thread::yield_now());
        has_left.store(true, Release);
        queue_ring.leave();
        assert!(changer.join().unwrap());
    }
}

/// A thread that a signal or a debugger has stopped in a poll does not block front ends. The connection ends, and the
/// next front end is served when the thread continues.
#[test]
fn a_thread_that_is_stopped_in_a_poll_ends_the_connection() {
    let vring = || {
        let mut vring = Vring::new("vhost:", None).unwrap();
        vring.timeout = Duration::from_millis(20);
        Arc::new(vring)
    };
    let shared = Arc::new(Shared {
        name: "vhost:".to_string(),
        vrings: vec![vring(), vring()],
        offered: offered(false, false, false),
        is_connected: AtomicBool::new(false),
        features: AtomicU64::new(0),
        longest: 1518,
    });
    let serve = || {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let (session, stop) = (Session::new(shared.clone(), Connection::new(far)), Interrupt::new().unwrap());
        let (has_ended, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || has_ended.send(session.run(&stop)));
        (FrontEnd::new(near), ended)
    };
    let mut queue_ring = QueueRing::new(shared.receives(0).clone());
    let (mut front, ended) = serve();
    front.set_up(feature::VERSION_1);
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    assert!(queue_ring.enter().is_some());
    front.share();
    front.until_end();
    ended.recv_timeout(TIME_LIMIT).unwrap();
    // The next front end does not wait again for the same thread.
    let (mut next, ended) = serve();
    next.say(Request::SET_FEATURES, feature::VERSION_1.as_bytes(), &[]);
    next.until_end();
    ended.recv_timeout(TIME_LIMIT).unwrap();
    queue_ring.leave();
    assert!(queue_ring.enter().is_none(), "the front end is gone");
    let (mut last, _ended) = serve();
    last.set_up(feature::VERSION_1);
    last.number(Request::GET_FEATURES);
    assert!(queue_ring.enter().is_some());
    queue_ring.leave();
}
