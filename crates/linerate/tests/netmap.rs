//! Ports in memory: pipes and the switch, as netmap(4) and vale(4) define them.

use std::sync::Arc;

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::netmap::{Destination, Forward, Frames, NetmapPort, Switch, ValePort, swap};
use linerate::port::{Link, Port, RxQueue, TxQueue, Wait, Waiter};
use linerate::traffic::{Checker, Generator};
use linerate::{Batch, Options};
use linerate_testkit::Deadline;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn options(pool: &Arc<Pool>) -> Options {
    Options { pool: Some(pool.clone()), ring: Some(64), local: true, ..Options::default() }
}

/// A port with its queues.
struct End {
    device: Port,
    rx: RxQueue,
    tx: TxQueue,
}

impl End {
    fn new(mut device: Port) -> End {
        let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        End { device, rx, tx }
    }

    fn open(name: &str, pool: &Arc<Pool>) -> End {
        let [device] = options(pool).open([name]).unwrap();
        End::new(device)
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> usize {
        let pool = self.device.pool().clone();
        let mut batch = Batch::with_capacity(256);
        frames.iter().for_each(|frame| assert!(batch.push(&pool, frame)));
        self.tx.send(&mut batch);
        frames.len() - batch.packets().count()
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let (mut batch, mut frames) = (Batch::with_capacity(256), Vec::new());
        self.rx.recv(&mut batch);
        for packet in batch.packets() {
            frames.push(Vec::new());
            packet.append_to(frames.last_mut().unwrap());
        }
        frames
    }
}

/// Returns a frame from one host to another; host 255 is broadcast.
fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|n| n as u8 ^ from).collect();
    let address = |host: u8| if host == 255 { [0xFF; 6] } else { [2, 0, 0, 0, 0, host] };
    frame[..6].copy_from_slice(&address(to));
    frame[6..12].copy_from_slice(&address(from));
    frame
}

#[test]
fn a_pipe_carries_both_ways_without_copies() {
    let pool = pool(1024);
    let (mut a, mut b) = (End::open("p{1", &pool), End::open("p}1", &pool));
    let frames: Vec<_> = [60, 1514, 1, 9000, 61].into_iter().map(|len| vec![len as u8; len]).collect();
    assert_eq!((a.send(&frames), b.send(&frames[..2])), (5, 2));
    assert_eq!((b.receive(), a.receive()), (frames.clone(), frames[..2].to_vec()));
    // The buffers themselves move.
    let mut batch = Batch::new();
    batch.push(&pool, &[7; 60]);
    let place = (&mut batch).into_iter().next().unwrap().as_ptr();
    a.tx.send(&mut batch);
    b.rx.recv(&mut batch);
    assert_eq!((&mut batch).into_iter().next().unwrap().as_ptr(), place);
    let statistics = (a.device.statistics().unwrap(), b.device.statistics().unwrap());
    assert_eq!((statistics.0.tx_packets, statistics.1.rx_packets, statistics.0.rx_bytes), (6, 6, 1574));
}

#[test]
fn a_full_pipe_takes_whole_packets_only() {
    let pool = pool(1024);
    let (mut a, mut b) = (End::open("full{1", &pool), End::open("full}1", &pool));
    let short = vec![vec![1; 60]; 62];
    assert_eq!(a.send(&short), 62);
    // Two slots are free, and five buffers are needed.
    assert_eq!(a.send(&[vec![2; 9000]]), 0);
    assert_eq!(a.send(&[vec![3; 60], vec![2; 9000], vec![4; 60]]), 1);
    assert_eq!(b.receive().len(), 63);
    assert_eq!(a.send(&[vec![2; 9000]]), 1);
    assert_eq!(b.receive(), [vec![2; 9000]]);
}

#[test]
fn ends_of_a_pipe_come_and_go() {
    let pool = pool(1024);
    let mut a = End::open("gone{1", &pool);
    assert_eq!(a.device.link().unwrap(), Link::Down);
    let error = options(&pool).open(["gone{1"]).map(drop).unwrap_err().with_hint();
    assert!(error.contains("open already"), "{error}");
    let error = options(&pool).open(["gone}1?queues=2"]).map(drop).unwrap_err().with_hint();
    assert!(error.contains("at most 1") || error.contains("2"), "{error}");
    // Sent packets wait until the other end is opened.
    assert_eq!(a.send(&[vec![1; 100]]), 1);
    let mut b = End::open("gone}1", &pool);
    assert_eq!(a.device.link().unwrap(), Link::Up { mbits: 0 });
    assert_eq!(b.receive(), [vec![1; 100]]);
    drop(b);
    assert_eq!((a.device.link().unwrap(), a.send(&vec![vec![1; 60]; 100])), (Link::Down, 64));
    drop(a);
    assert_eq!(pool.available(), 1024);
}

#[test]
fn a_pipe_of_another_region_copies() {
    let (ours, theirs) = (pool(256), pool(256));
    let (mut a, mut b) = (End::open("apart{1", &ours), End::open("apart}1", &ours));
    let mut batch = Batch::new();
    batch.push(&theirs, &[5; 1400]);
    assert_eq!(a.tx.send(&mut batch), 1);
    batch.push(&theirs, &[6; 60]);
    assert_eq!(b.rx.recv(&mut batch), 1);
    let lengths: Vec<usize> = batch.packets().map(|packet| packet.len()).collect();
    assert_eq!(lengths, [60, 1400]);
    drop((a, b, batch));
    assert_eq!((ours.available(), theirs.available()), (256, 256));
}

/// A packet that could not be copied into a full batch of another region is the first that the next batch gets,
/// whatever its region.
#[test]
fn copies_without_room_are_sent_next() {
    for again in [false, true] {
        let (ours, theirs) = (pool(256), pool(256));
        let (mut a, mut b) = (End::open("next{1", &ours), End::open("next}1", &ours));
        let mut batch = Batch::new();
        (0..3).for_each(|n| assert!(batch.push(&ours, &vec![5; 60 + n])));
        assert_eq!(a.tx.send(&mut batch), 3);
        let mut small = Batch::with_capacity(2);
        assert!(small.push(&theirs, &[6; 50]));
        assert_eq!(b.rx.recv(&mut small), 1);
        small.clear();
        if again {
            assert!(small.push(&theirs, &[6; 50]));
        }
        a.send(&[vec![7; 70]]);
        let mut lengths = Vec::new();
        while b.rx.recv(&mut small) > 0 {
            lengths.extend(small.packets().map(|packet| packet.len()).filter(|len| *len > 50));
            small.clear();
        }
        assert_eq!(lengths, [61, 62, 70]);
        drop((a, b, batch, small));
        assert_eq!((ours.available(), theirs.available()), (256, 256));
    }
}

/// A monitor gets complete copies, in order, of all accepted packets in both directions, and does not affect the port.
#[test]
fn a_monitor_copies_packets_of_both_directions() {
    let (pool, theirs) = (pool(1024), pool(512));
    assert!(options(&pool).open(["seen{1+r"]).map(drop).unwrap_err().with_hint().contains("not open in this process"));
    let (mut a, mut b) = (End::open("seen{1", &pool), End::open("seen}1", &pool));
    let monitor = |name: &str| {
        let [mut device] = Options { max_frame: 9018, ..options(&theirs) }.open([name]).unwrap();
        let rx = device.rx(0).unwrap();
        (device, rx)
    };
    let receive = |rx: &mut RxQueue| {
        let (mut batch, mut frames) = (Batch::with_capacity(256), Vec::new());
        rx.recv(&mut batch);
        for packet in batch.packets() {
            frames.push(Vec::new());
            packet.append_to(frames.last_mut().unwrap());
        }
        frames
    };
    let (mut device, mut both) = monitor("seen{1+rt");
    let (_sends, mut sends) = monitor("seen{1/t");
    assert!(device.tx(0).map(drop).unwrap_err().with_hint().contains("only receives"));
    let forth = [vec![1; 60], vec![2; 9000], vec![3; 1514]];
    let back = [vec![4; 61], vec![5; 62]];
    assert_eq!((a.send(&forth), b.send(&back)), (3, 2));
    assert_eq!((a.receive().len(), b.receive().len()), (2, 3));
    assert_eq!(receive(&mut both), [&forth[..], &back].concat());
    assert_eq!(receive(&mut sends), forth);
    // Packets that were not accepted are not copied.
    let many: Vec<_> = (0..100).map(|n| vec![n; 60]).collect();
    assert_eq!((a.send(&many), receive(&mut sends).len()), (64, 64));
    assert_eq!((a.send(&many[64..]), receive(&mut sends).len()), (0, 0));
    // A monitor that is not polled misses packets when its ring is full; the port continues.
    assert_eq!(b.receive(), many[..64]);
    for part in many.chunks(50) {
        assert_eq!(a.send(part), 50);
        assert_eq!(b.receive(), part);
    }
    assert_eq!(receive(&mut both), many[..64]);
    assert_eq!(device.statistics().unwrap().drops.no_descriptor, 100);
    drop((both, device));
    assert_eq!(a.send(&many[..5]), 5);
    drop((a, b, sends, _sends));
    assert_eq!((pool.available(), theirs.available()), (1024, 512));
}

#[test]
fn a_monitor_says_that_its_port_is_closed() {
    let pool = pool(512);
    let [watched] = options(&pool).open(["vale17:a"]).unwrap();
    let mut watched = End::new(watched);
    let [first, mut second] = options(&pool).open(["vale17:a+rt", "vale17:a/r"]).unwrap();
    assert!(first.link().is_ok() && second.link().is_ok());
    let rx = second.rx(0).unwrap();
    drop(first);
    assert_eq!(watched.send(&[frame(255, 1, 60)]), 1);
    assert!(second.link().is_ok());
    drop(watched);
    let said = second.link().unwrap_err().to_string();
    assert!(said.contains("vale17:a: the port of the monitor is closed"), "{said}");
    // A new port of the same name has separate monitors.
    let [_again, new] = options(&pool).open(["vale17:a", "vale17:a+rt"]).unwrap();
    assert!(second.link().is_err() && new.link().is_ok());
    drop((second, rx));
    assert!(new.link().is_ok());
}

#[test]
fn null_discards_packets() {
    let pool = pool(64);
    let mut null = End::open("null:", &pool);
    assert_eq!((null.send(&[vec![1; 60], vec![2; 5000]]), null.receive().len()), (2, 0));
    let statistics = null.device.statistics().unwrap();
    assert_eq!((statistics.tx_packets, statistics.tx_bytes, pool.available()), (2, 5060, 64));
}

#[test]
fn a_sleeping_receiver_is_woken() {
    let pool = pool(256);
    let sleepy = || Options { interrupts: Some(std::time::Duration::ZERO), ..options(&pool) };
    for (name, other) in [("sleep{1", "sleep}1"), ("vale9:a", "vale9:b")] {
        let [mut a, mut b] = sleepy().open([name, other]).unwrap();
        let (mut a_tx, mut a_rx) = (a.tx(0).unwrap(), a.rx(0).unwrap());
        let (mut b_tx, mut b_rx) = (b.tx(0).unwrap(), b.rx(0).unwrap());
        let echo = std::thread::spawn(move || {
            let (mut batch, mut waiter) = (Batch::new(), Waiter::new(Wait::Interrupt));
            let mut echoed = 0;
            let deadline = Deadline::begin();
            while echoed < 200 {
                deadline.check(|| format!("{echoed} of 200 packets were returned"));
                let received = b_rx.recv(&mut batch);
                echoed += b_tx.send(&mut batch);
                waiter.turn(received, &mut [&mut b_rx]);
            }
        });
        let (mut batch, mut waiter) = (Batch::new(), Waiter::new(Wait::Interrupt));
        for _ in 0..200 {
            batch.push(&pool, &frame(255, 1, 60));
            a_tx.send(&mut batch);
            let mut received = 0;
            let deadline = Deadline::begin();
            while received == 0 {
                deadline.check(|| "the packet that comes back");
                received = a_rx.recv(&mut batch);
                waiter.turn(received, &mut [&mut a_rx]);
            }
            batch.clear();
        }
        echo.join().unwrap();
    }
}

#[test]
fn a_switch_learns_and_floods() {
    let pool = pool(1024);
    let mut ports: Vec<End> = ["a", "b", "c"].iter().map(|name| End::open(&format!("vale1:{name}"), &pool)).collect();
    // An unknown destination is flooded to all other ports.
    assert_eq!(ports[0].send(&[frame(2, 1, 60)]), 1);
    assert_eq!((ports[1].receive().len(), ports[2].receive().len(), ports[0].receive().len()), (1, 1, 0));
    // The reply goes only to the port of the request.
    ports[1].send(&[frame(1, 2, 100), frame(1, 2, 1514)]);
    assert_eq!(ports[0].receive(), [frame(1, 2, 100), frame(1, 2, 1514)]);
    assert!(ports[2].receive().is_empty());
    // Broadcast and multicast go to all ports, in order with the other packets.
    let mut multicast = frame(1, 1, 77);
    multicast[0] = 1;
    let sent = [frame(2, 1, 60), frame(255, 1, 61), frame(2, 1, 62), multicast, frame(2, 1, 64)];
    ports[0].send(&sent);
    assert_eq!(ports[1].receive(), sent);
    assert_eq!(ports[2].receive(), [sent[1].clone(), sent[3].clone()]);
    // A frame for a host at the sender's own port is not forwarded.
    ports[0].send(&[frame(3, 4, 60), frame(4, 3, 60)]);
    ports.iter_mut().for_each(|port| drop(port.receive()));
    ports[0].send(&[frame(3, 4, 60)]);
    assert!(ports.iter_mut().all(|port| port.receive().is_empty()));
    // A host moves to another port.
    ports[2].send(&[frame(255, 2, 60)]);
    ports.iter_mut().for_each(|port| drop(port.receive()));
    ports[0].send(&[frame(2, 1, 60)]);
    assert_eq!((ports[1].receive().len(), ports[2].receive().len()), (0, 1));
    // When a port is closed, its addresses are forgotten.
    drop(ports.pop());
    ports[0].send(&[frame(2, 1, 60)]);
    assert_eq!(ports[1].receive().len(), 1);
    // Packets shorter than an Ethernet header are dropped.
    ports[0].send(&[vec![0xFF; 13]]);
    assert!(ports[1].receive().is_empty());
}

#[test]
fn a_slow_port_does_not_block_others() {
    let pool = pool(1024);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| End::open(&format!("vale2:{name}"), &pool));
    let storm: Vec<_> = (0..200).map(|n| frame(255, 1, 60 + n)).collect();
    for part in storm.chunks(40) {
        assert_eq!(a.send(part), 40);
        assert_eq!(c.receive(), part);
    }
    assert_eq!(b.receive(), storm[..64], "as many as its ring holds");
    assert_eq!(b.device.statistics().unwrap().drops.no_descriptor, 200 - 64);
    assert_eq!(c.device.statistics().unwrap().drops.no_descriptor, 0);
    // A frame may be too long for one port, but not for another.
    let [mut jumbo] =
        Options { max_frame: 9018, ..options(&pool) }.open(["vale2:j"]).map(|devices| devices.map(End::new)).unwrap();
    a.send(&[frame(255, 1, 9000), frame(255, 1, 1518)]);
    assert_eq!((b.receive(), jumbo.receive().len()), (vec![frame(255, 1, 1518)], 2));
    assert_eq!(b.device.statistics().unwrap().drops.oversize, 1);
    drop((a, b, c, jumbo));
    assert_eq!(pool.available(), 1024);
}

/// Small batches are copied one packet at a time, but delivered and counted like large ones.
#[test]
fn few_packets_are_delivered_and_counted_as_many() {
    let frames: Vec<_> = (0..100u8).map(|n| frame(255, n, [60, 300, 1518, 1600][usize::from(n) % 4])).collect();
    for chunk in [1, 2, 3, 4, 40] {
        let (pool, theirs) = (pool(1024), self::pool(1024));
        let (mut a, mut b) = (End::open("vale9:a", &pool), End::open("vale9:b", &theirs));
        frames.chunks(chunk).for_each(|part| assert_eq!(a.send(part), part.len()));
        let drops = b.device.statistics().unwrap().drops;
        assert_eq!((drops.oversize, drops.no_descriptor), (25, 75 - 64), "{chunk} at a time");
        let taken: Vec<_> = frames.iter().filter(|frame| frame.len() <= 1518).take(64).cloned().collect();
        assert_eq!(b.receive(), taken, "{chunk} at a time");
        // Without buffers for copies: a program keeps all of them.
        let mut kept = Batch::with_capacity(1024);
        kept.alloc(&theirs, 1024, 60);
        let free = b.rx.buffers();
        frames[..3].chunks(chunk).for_each(|part| assert_eq!(a.send(part), part.len()));
        let more = b.device.statistics().unwrap().drops.no_descriptor - drops.no_descriptor;
        assert_eq!((b.receive().len(), more), (free.min(3), 3 - free.min(3) as u64), "{chunk} at a time");
        drop((a, b, kept));
        assert_eq!((pool.available(), theirs.available()), (1024, 1024));
    }
}

/// Receives packets; returns their timestamps.
fn times(rx: &mut RxQueue) -> Vec<Option<u64>> {
    let mut batch = Batch::with_capacity(256);
    rx.recv(&mut batch);
    batch.packets().map(|packet| packet.timestamp()).collect()
}

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

#[test]
fn a_switch_and_its_monitors_note_when_packets_come() {
    let (pool, theirs) = (pool(1024), pool(1024));
    let timed = |name: &str, pool: &Arc<Pool>| {
        let options = Options { timestamps: true, max_frame: 9018, ..options(pool) };
        let [device] = options.open([name]).unwrap();
        device
    };
    let mut a = End::open("vale13:a", &pool);
    let (mut b, mut c) = (End::new(timed("vale13:b", &theirs)), End::open("vale13:c", &theirs));
    let mut monitors = ["vale13:b+r", "vale13:a+t"].map(|name| timed(name, &theirs));
    let mut monitored = monitors.each_mut().map(|monitor| monitor.rx(0).unwrap());
    let (mut last, mut monitored_last) = (0, 0);
    for count in [1, 2, 20, 3, 1] {
        let frames: Vec<_> = (0..count).map(|n| frame(255, 1, [60, 4000][n % 2])).collect();
        let before = now();
        assert_eq!(a.send(&frames), count);
        let after = now() + count as u64;
        // Wait, so that the timestamp cannot be the time of receiving.
        let deadline = Deadline::begin();
        while now() < after + 1_000_000 {
            deadline.check(|| "a millisecond");
        }
        let came = times(&mut b.rx);
        assert_eq!(came.len(), count);
        for time in came.iter().flatten() {
            assert!((before..=after).contains(time) && *time > last, "{before} <= {time} <= {after}, after {last}");
            last = *time;
        }
        assert!(came.iter().all(Option::is_some));
        let [received, sent] = monitored.each_mut().map(times);
        assert_eq!(received, came, "a copy has the time of its packet");
        assert_eq!(sent.len(), count);
        for time in sent {
            let time = time.expect("a time");
            assert!((before..=after).contains(&time) && time > monitored_last);
            monitored_last = time;
        }
        assert!(times(&mut c.rx).iter().all(Option::is_none), "it has not asked for times");
    }
}

#[test]
fn a_batch_of_another_region_keeps_times() {
    let (pool, theirs) = (pool(256), pool(256));
    let options = Options { timestamps: true, ..options(&pool) };
    let [mut a, mut b] = options.open(["vale14:a", "vale14:b"]).unwrap();
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let mut batch = Batch::new();
    assert!(batch.push(&pool, &frame(255, 1, 60)) && batch.push(&pool, &frame(255, 1, 70)));
    let before = now();
    tx.send(&mut batch);
    let after = now() + 2;
    let mut other = Batch::new();
    assert!(other.push(&theirs, &[0; 60]));
    rx.recv(&mut other);
    let times: Vec<_> = other.packets().map(|packet| packet.timestamp()).collect();
    assert_eq!((times.len(), times[0]), (3, None));
    assert!(times[1..].iter().all(|time| time.is_some_and(|time| (before..=after).contains(&time))), "{times:?}");
}

/// A packet shorter than an Ethernet header has no destination.
#[test]
fn packets_too_short_for_a_switch_are_counted_at_their_port() {
    let pool = pool(256);
    let [mut a, mut b] = ["a", "b"].map(|name| End::open(&format!("vale8:{name}"), &pool));
    a.send(&[13, 14, 1, 60].map(|len| vec![0xFF; len]));
    assert_eq!(b.receive().iter().map(Vec::len).collect::<Vec<_>>(), [14, 60]);
    let drops = |end: &End| end.device.statistics().unwrap().drops;
    assert_eq!((drops(&a).undersize, drops(&b).undersize), (2, 0));
}

/// With three cables between two switches, a broadcast circulates and multiplies. Packets that find no room are dropped
/// and counted, other ports of the same switches continue, and the storm ends when the loop is removed.
#[test]
fn a_storm_ends_with_its_loop() {
    let pool = pool(4096);
    let open = |name: String| End::open(&name, &pool);
    let [mut a, mut b, mut far] = ["vale6:a", "vale6:b", "vale7:far"].map(|name| open(name.to_string()));
    // Learn the host before there is a loop: in a storm, hosts seem to move.
    b.send(&[frame(1, 2, 60)]);
    let mut cables: Vec<_> = (0..3).map(|n| [6, 7].map(|switch| open(format!("vale{switch}:cable{n}")))).collect();
    a.send(&[frame(255, 9, 60)]);
    let mut heard = 0;
    for _ in 0..100 {
        for [near, far] in &mut cables {
            far.send(&near.receive());
            near.send(&far.receive());
        }
        heard += far.receive().len();
        b.receive();
        a.send(&[frame(2, 1, 99)]);
        assert_eq!(b.receive(), [frame(2, 1, 99)]);
    }
    assert!(heard > 1000, "{heard}");
    let dropped = |end: &End| end.device.statistics().unwrap().drops.no_descriptor;
    assert!(cables.iter().flatten().all(|end| dropped(end) > 0));
    drop(cables);
    [&mut a, &mut b, &mut far].into_iter().for_each(|end| while !end.receive().is_empty() {});
    a.send(&[frame(255, 9, 60)]);
    assert_eq!((b.receive().len(), far.receive().len()), (1, 0));
    drop((a, b, far));
    assert_eq!(pool.available(), 4096);
}

#[test]
fn names_and_numbers_have_limits() {
    let pool = pool(1024);
    let opened = |name: &str| options(&pool).open([name]).map(drop).unwrap_err().with_hint();
    let _a = End::open("vale3:a", &pool);
    assert!(opened("vale3:a").contains("open already"));
    assert!(opened("vale3:").contains("letters, digits"));
    assert!(opened("vale3:a-b").contains("letters, digits"));
    assert!(opened("vale 3:a").contains("letters, digits"));
    assert!(opened("vale3:a_name_that_is_too_long").contains("15 characters each"));
    // Create one port less than the maximum; "vale3:a" is open too.
    let small = |n: usize| {
        ValePort::open(
            "vale3",
            &format!("p{n}"),
            Options { ring: Some(64), ..Options::default() }.of_port("", pool.clone()).unwrap(),
        )
    };
    let mut ports: Vec<_> = (1..254).map(|n| small(n).unwrap()).collect();
    assert_eq!(ports[0].kind().switch().ports().len(), 254);
    let error = small(999).map(drop).unwrap_err().with_hint();
    assert!(error.contains("254 ports"), "{error}");
    ports.swap_remove(100);
    small(999).unwrap();
}

/// A program's forwarding function decides where packets go.
#[test]
fn a_program_decides_where_packets_go() {
    let pool = pool(1024);
    let mut ports: Vec<End> = ["a", "b", "c"].iter().map(|name| End::open(&format!("vale4:{name}"), &pool)).collect();
    let by_length = |source: u8, packets: &Frames<'_>, to: &mut [Destination]| {
        for (packet, to) in packets.iter().zip(to) {
            *to = match packet.len() {
                61 => Destination::Port(source + 1),
                62 => Destination::Broadcast,
                63 => Destination::Port(200),
                64 => Destination::Port(source),
                65 => Destination::Group(4000),
                66 => Destination::Group(7),
                _ => Destination::Drop,
            };
        }
    };
    let switch = Switch::named("vale4");
    switch.set_forward(Arc::new(by_length));
    let sent: Vec<_> = (60..68).map(|len| frame(2, 1, len)).collect();
    // A group may contain the source and ports that do not exist.
    switch.set_group(4000, &[0, 2, 1, 99]);
    ports[0].send(&sent);
    assert_eq!(
        (ports[0].receive().len(), ports[1].receive(), ports[2].receive()),
        (0, [&sent[1..3], &sent[5..6]].concat(), vec![sent[2].clone(), sent[5].clone()])
    );
    switch.set_group(4000, &[]);
    ports[0].send(&sent[5..]);
    assert!(ports[1].receive().is_empty() && ports[2].receive().is_empty());
    switch.set_forward(Arc::new(linerate::netmap::Learning::new()) as Arc<dyn Forward>);
    ports[0].send(&sent[..1]);
    assert_eq!(ports[2].receive(), sent[..1]);
}

/// A program forwards between ports' rings by swapping buffers, as netmap's bridge does.
#[test]
fn rings_forward_by_swapping() {
    let pool = pool(1024);
    let rings = |name: &str| {
        let [device] = options(&pool).open([name]).unwrap();
        NetmapPort::new(device).unwrap()
    };
    let (mut left, mut a, mut b, mut right) =
        (rings("l{1"), rings("l}1"), rings("vale7:b"), End::open("vale7:r", &pool));
    let mut sent = Vec::new();
    for round in 0..50usize {
        // Long packets are chains of slots.
        let tx = &mut left.tx[0];
        let frames: Vec<_> = (0..7).map(|n| frame(255, 1, 60 + (round * 7 + n) * 13)).collect();
        for frame in &frames {
            let count = frame.len().div_ceil(1000);
            for (n, part) in frame.chunks(1000).enumerate() {
                let slot = tx.ring.head();
                tx.ring.set_len(slot, part.len(), n + 1 < count);
                tx.ring.bytes_mut(slot).copy_from_slice(part);
                tx.ring.advance(1);
            }
        }
        tx.sync();
        sent.extend(frames);
        assert!(!tx.is_pending());

        a.rx[0].sync();
        let (from, to) = (&mut a.rx[0].ring, &mut b.tx[0].ring);
        let count = from.space().min(to.space());
        for _ in 0..count {
            let (one, other) = (from.head(), to.head());
            let place = from.bytes(one).as_ptr();
            swap(from, one, to, other).unwrap();
            assert_eq!(to.bytes(other).as_ptr(), place);
            from.advance(1);
            to.advance(1);
        }
        b.tx[0].sync();
        assert!(b.tx[0].ring.time() > std::time::SystemTime::UNIX_EPOCH);
    }
    // The receiving port does not accept frames longer than 1,518 bytes.
    sent.retain(|frame| frame.len() <= 1518);
    let mut came = Vec::new();
    loop {
        let more = right.receive();
        if more.is_empty() {
            break;
        }
        came.extend(more);
    }
    assert_eq!(came.len(), sent.len().min(64));
    assert!(came.iter().zip(&sent).all(|(came, sent)| came == sent));
    drop((left, a, b, right));
    assert_eq!(pool.available(), 1024);
}

#[test]
fn a_ring_keeps_slots_between_head_and_cur() {
    let pool = pool(1024);
    let mut a = End::open("ahead{1", &pool);
    let [device] = options(&pool).open(["ahead}1"]).unwrap();
    let mut b = NetmapPort::new(device).unwrap();
    let frames: Vec<_> = (0..10).map(|n| frame(2, n, 60)).collect();
    a.send(&frames[..4]);
    assert!(b.poll(false, std::time::Duration::ZERO));
    b.rx[0].ring.set_wakeup(4);
    assert!(!b.poll(false, std::time::Duration::ZERO), "all slots are behind cur");
    a.send(&frames[4..]);
    assert!(b.poll(false, std::time::Duration::from_secs(5)));
    let ring = &mut b.rx[0].ring;
    assert_eq!((ring.space(), ring.cur(), ring.head()), (10, 4, 0));
    assert!((0..10).all(|slot| ring.bytes(slot) == frames[slot]));
    // Keep one packet in an extra buffer.
    let mut extra = b.extra_buffers(2);
    let ring = &mut b.rx[0].ring;
    ring.exchange(3, &mut extra[0]).unwrap();
    ring.advance(10);
    b.rx[0].sync();
    assert_eq!((b.rx[0].ring.space(), extra[0].bytes()), (0, &frames[3][..]));
    // Rings wrap around, and their space never exceeds the packets sent.
    for n in 0..500 {
        assert_eq!(a.send(&frames), 10);
        b.rx[0].sync();
        let ring = &mut b.rx[0].ring;
        assert_eq!(ring.space(), 10, "{n}");
        let last = (ring.tail() + ring.slots() - 1) % ring.slots();
        assert_eq!(ring.bytes(last), frames[9]);
        ring.advance(10);
    }
    // Buffers of another region are refused.
    let other = self::pool(256);
    let [device] = options(&other).open(["elsewhere{1"]).unwrap();
    let mut elsewhere = NetmapPort::new(device).unwrap();
    let error = elsewhere.tx[0].ring.exchange(0, &mut extra[1]).unwrap_err().with_hint();
    assert!(error.contains("different regions"), "{error}");
    drop((a, b, extra));
    assert_eq!(pool.available(), 1024);
}

#[test]
#[should_panic(expected = "not from head")]
fn a_slot_outside_head_to_tail_is_refused() {
    let [device] = options(&pool(256)).open(["theirs{1"]).unwrap();
    let rings = NetmapPort::new(device).unwrap();
    rings.rx[0].ring.bytes(0);
}

/// A step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Port, number of packets, length, destination host.
    Send(usize, usize, usize, u8),
    Receive(usize),
    /// Closes the port, or opens it again.
    Toggle(usize),
}

const PORTS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let host = prop_oneof![Just(255u8), 0..PORTS as u8];
    prop_oneof![
        5 => (0..PORTS, prop_oneof![1..4usize, 1..80usize], prop_oneof![60..1514usize, 1515..6000usize], host)
            .prop_map(|(port, count, len, to)| Step::Send(port, count, len, to)),
        6 => (0..PORTS).prop_map(Step::Receive),
        1 => (0..PORTS).prop_map(Step::Toggle),
    ]
}

/// Over a pipe and a switch whose ports have different regions, every buffer is accounted for, and every packet is
/// intact and in order.
#[test]
fn schedules_lose_no_buffer_and_no_order() {
    let pools: Vec<_> = (0..PORTS).map(|_| pool(2048)).collect();
    let names = ["vale5:a", "vale5:b", "q{1", "q}1"];
    let open = |n: usize| {
        // Both ends of a pipe use one region.
        let pool = &pools[if n == 3 { 2 } else { n }];
        let [device] = Options { max_frame: 6018, ..options(pool) }.open([names[n]]).unwrap();
        End::new(device)
    };
    let cases = Cases { cases: 10_000, failure_persistence: None, max_shrink_iters: 0, ..Cases::default() };
    TestRunner::new(cases)
        .run(&prop::collection::vec(step(), 1..25), |steps| {
            let mut ends: Vec<Option<End>> = (0..PORTS).map(|n| Some(open(n))).collect();
            let mut next = 0u32;
            let mut last = [[0u32; PORTS]; PORTS];
            for step in steps {
                match step {
                    Step::Send(port, count, len, to) => {
                        let Some(end) = &mut ends[port] else { continue };
                        let frames: Vec<_> = (0..count)
                            .map(|_| {
                                let mut frame = frame(to, port as u8, len);
                                next += 1;
                                frame[14..18].copy_from_slice(&next.to_be_bytes());
                                frame
                            })
                            .collect();
                        for part in frames.chunks(40) {
                            end.send(part);
                        }
                    }
                    Step::Receive(port) => {
                        let Some(end) = &mut ends[port] else { continue };
                        for received in end.receive() {
                            let from = received[11] as usize;
                            let number = u32::from_be_bytes(received[14..18].try_into().unwrap());
                            prop_assert!(number > last[port][from], "{} after {}", number, last[port][from]);
                            last[port][from] = number;
                            let mut expected = frame(0, from as u8, received.len());
                            expected[14..18].copy_from_slice(&number.to_be_bytes());
                            prop_assert!(expected[6..] == received[6..]);
                        }
                    }
                    Step::Toggle(port) => match ends[port].take() {
                        Some(_) => {}
                        None => ends[port] = Some(open(port)),
                    },
                }
                for (n, pool) in pools.iter().enumerate() {
                    let of_pool = ends.iter().flatten().filter(|end| Arc::ptr_eq(end.device.pool(), pool));
                    let held: usize = of_pool.map(|end| end.rx.buffers() + end.tx.buffers()).sum();
                    // When one end of a pipe is closed, packets for it stay in the pipe.
                    let hidden = if n == 2 && ends[2..].iter().flatten().count() == 1 { 64 } else { 0 };
                    let there = held + pool.available();
                    prop_assert!((2048 - hidden..=2048).contains(&there), "{} of region {}", there, n);
                }
            }
            drop(ends);
            prop_assert!(pools.iter().all(|pool| pool.available() == 2048));
            Ok(())
        })
        .unwrap();
}

/// Two threads per port, one sending and one receiving, use several ports concurrently.
#[test]
fn threads_share_a_switch() {
    const COUNT: u64 = 20_000;
    let pool = pool(8192);
    let names = ["vale6:a", "vale6:b", "vale6:c"];
    let ends: Vec<End> = names.iter().map(|name| End::open(name, &pool)).collect();
    let (mut txs, mut rxs, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for End { device, rx, tx } in ends {
        devices.push(device);
        rxs.push(rx);
        txs.push(tx);
    }
    std::thread::scope(|scope| {
        for (flow, mut tx) in txs.into_iter().enumerate() {
            let pool = &pool;
            scope.spawn(move || {
                let mut generator = Generator::new(128, 3).with_flows(flow as u16..flow as u16 + 1);
                let (mut bytes, mut batch) = (vec![0; generator.frame_len()], Batch::new());
                for _ in 0..COUNT {
                    generator.fill(&mut bytes);
                    bytes[..6].fill(0xFF);
                    let deadline = Deadline::begin();
                    while !batch.push(pool, &bytes) {
                        deadline.check(|| "a free buffer");
                        std::thread::yield_now();
                    }
                    tx.send(&mut batch);
                }
            });
        }
        for (mut rx, device) in rxs.into_iter().zip(devices) {
            scope.spawn(move || {
                let (mut batch, mut checker, mut received) = (Batch::new(), Checker::default(), 0);
                // Each packet from the other two ports arrives, or is counted as dropped here.
                let deadline = Deadline::begin();
                while received + device.statistics().unwrap().drops.no_descriptor < 2 * COUNT {
                    deadline.check(|| {
                        format!("{received} of {} packets were received, {:?}", 2 * COUNT, device.statistics())
                    });
                    rx.recv(&mut batch);
                    for bytes in &mut batch {
                        checker.check(&bytes);
                        received += 1;
                    }
                    batch.clear();
                    std::thread::yield_now();
                }
                let report = checker.report();
                assert_eq!(report.reordered, 0, "{report:?}");
            });
        }
    });
    assert_eq!(pool.available(), 8192);
}
