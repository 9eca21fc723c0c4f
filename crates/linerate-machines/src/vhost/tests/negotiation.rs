//! Feature negotiation, arbitrary messages, and the start positions of rings.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use linerate_core::offload::{Offload, cut};

use super::*;

/// A port offers exactly what its options select; for example, no front end gets a control queue.
#[test]
fn a_port_offers_what_its_options_say() {
    let always = feature::VERSION_1
        | feature::ANY_LAYOUT
        | feature::MRG_RXBUF
        | feature::INDIRECT_DESC
        | feature::EVENT_IDX
        | feature::IN_ORDER
        | feature::STATUS
        | feature::MTU
        | feature::GUEST_ANNOUNCE
        | LOG_ALL
        | PROTOCOL_FEATURES;
    let guest = feature::GUEST_CSUM
        | feature::GUEST_TSO4
        | feature::GUEST_TSO6
        | feature::GUEST_ECN
        | feature::GUEST_USO4
        | feature::GUEST_USO6;
    let host = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_ECN | feature::HOST_USO;
    for (options, more, pairs) in [
        ("", 0, 1),
        ("?packed=on", feature::RING_PACKED, 1),
        ("?queues=3", feature::MQ, 3),
        ("?offloads=on", guest | host, 1),
        ("?offloads=on&queues=2&packed=on", guest | host | feature::MQ | feature::RING_PACKED, 2),
    ] {
        let test = listening(options);
        let mut front = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
        assert_eq!(front.number(Request::GET_FEATURES), always | more, "{options}");
        assert_eq!(front.number(Request::GET_QUEUE_NUM), pairs, "{options}");
    }
}

/// A driver may use only some of the queue pairs; the others carry no packets, and block nothing.
#[test]
fn a_front_end_may_start_fewer_pairs_than_there_are() {
    let mut test = listening("?queues=4");
    let mut queues: Vec<_> = (0..4).map(|n| (test.port.rx(n).unwrap(), test.port.tx(n).unwrap())).collect();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1 | feature::MQ);
    front.describe(RECEIVES, 0, GUEST + BUFFERS as u64 + 65536, 2000, WRITE, 0);
    front.offer(RECEIVES, 0);
    let mut batch = Batch::new();
    for (rx, tx) in &mut queues[1..] {
        assert_eq!((rx.recv(&mut batch), send(tx, &test.pool, &[1; 60]), tx.has_peer()), (0, 0, false));
    }
    front.transmit(&frames(3));
    let (rx, tx) = &mut queues[0];
    assert_eq!((receive(rx, 3), send(tx, &test.pool, &[1; 60]), tx.has_peer()), (frames(3), 1, true));
    // A queue without room still has a peer; a disabled queue has none.
    assert_eq!((send(tx, &test.pool, &[1; 60]), tx.has_peer()), (0, true));
    front.say(Request::SET_VRING_ENABLE, VringState::new(RECEIVES, 0).as_slice(), &[]);
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    assert_eq!((send(tx, &test.pool, &[1; 60]), tx.has_peer()), (0, false));
}

/// A front end may still change a ring between its description and its start: the position is read at the first poll
/// after the start.
#[test]
fn a_split_ring_begins_where_it_is_used_when_it_starts() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::new(UnixStream::connect(&test.path).unwrap());
    front.set_features(feature::VERSION_1);
    front.share();
    [RECEIVES, TRANSMITS].iter().for_each(|&ring| front.describe_ring(ring));
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    assert_eq!(rx.recv(&mut Batch::new()), 0);
    let driver = &mut front.rings[TRANSMITS as usize];
    driver.used[1].store(5, Relaxed);
    driver.available[1].store(5, Relaxed);
    driver.added = 5;
    front.transmit(&frames(2));
    [RECEIVES, TRANSMITS].iter().for_each(|&ring| front.kick(ring));
    assert_eq!((receive(&mut rx, 2), front.used(TRANSMITS)), (frames(2), 7));
}

/// Like [`packed_rings_go_on_after_a_kill`], but a split ring's memory contains its position, whatever the base.
#[test]
fn split_rings_go_on_after_a_kill() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    for round in 0..20u16 {
        front.transmit(&frames(5));
        assert_eq!(receive(&mut rx, 5), frames(5));
        front.transmit(&frames(3));
        let TestPort { port, folder, .. } = test;
        drop((rx, port));
        test = listening_in(folder, "");
        rx = test.port.rx(0).unwrap();
        front = front.connect_again(&test, feature::VERSION_1);
        assert_eq!(receive(&mut rx, 3), frames(3));
        // Each chain came back once, in order.
        assert_eq!(front.used(TRANSMITS), (round + 1) * 8);
        for n in round * 8..(round + 1) * 8 {
            let [id, _] = &front.rings[TRANSMITS as usize].used_ring[usize::from(n % SIZE)];
            assert_eq!(id.load(Relaxed), u32::from(n % SIZE));
        }
    }
}

/// Event suppression of the driver in a split ring (VIRTIO 1.2, 2.7.7 and 2.7.10).
#[test]
fn a_split_ring_s_driver_chooses_its_interrupts() {
    for has_event_idx in [true, false] {
        let mut test = listening("");
        let mut rx = test.port.rx(0).unwrap();
        let features = feature::VERSION_1 | if has_event_idx { feature::EVENT_IDX } else { 0 };
        let mut front = FrontEnd::connect(&test, features);
        front.number(Request::GET_FEATURES); // all earlier messages are processed
        assert_eq!(rx.recv(&mut Batch::new()), 0);
        front.rings[1].call.clear(); // raised at the connection's start
        let mut exchange = |flags: u16, event: u16, count: usize| {
            front.rings[1].available[0].store(flags, Relaxed);
            front.rings[1].available[2 + usize::from(SIZE)].store(event, Relaxed);
            front.transmit(&frames(count));
            assert_eq!(receive(&mut rx, count), frames(count));
            let is_raised = is_raised(&front.rings[1].call);
            front.rings[1].call.clear();
            is_raised
        };
        if has_event_idx {
            // The flags are ignored.
            assert!(exchange(1, 1, 2) && !exchange(0, 1, 2)); // 4 are used
            assert!(exchange(0, 5, 2) && exchange(0, 6, 2)); // 8
            assert!(!exchange(0, 20, 2) && !exchange(0, 9, 4) && exchange(0, 14, 1)); // 15
        } else {
            assert!(exchange(0, 9, 2) && !exchange(1, 9, 2) && exchange(0, 0, 2));
        }
    }
}

/// A notification before its ring is enabled wakes a sleeping queue, which then receives the packets.
#[test]
fn a_kick_before_the_ring_is_enabled_is_not_lost() {
    let folder = TempDir::new().unwrap();
    let (path, pool) = (folder.path().join("socket"), pool());
    let ports = Options { pool: Some(pool.clone()), interrupts: Some(Duration::ZERO), ..Options::default() };
    let [mut port] = ports.open([&*format!("vhost:{}", path.display())]).unwrap();
    let mut rx = port.rx(0).unwrap();
    let mut front = FrontEnd::new(UnixStream::connect(&path).unwrap());
    front.set_up(feature::VERSION_1 | PROTOCOL_FEATURES);
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    // The sleeping thread polls, finds no packet, and sleeps.
    let mut batch = Batch::new();
    let clear = |rx: &mut RxQueue| {
        rx.disarm();
        assert!(!is_raised(&rx.arm().unwrap()));
    };
    rx.arm();
    assert_eq!(rx.recv(&mut batch), 0);
    clear(&mut rx);
    let quiet = || front.rings[1].used[0].load(Acquire);
    assert_eq!(quiet(), 0, "it wants to be notified");
    for number in [RECEIVES, TRANSMITS] {
        front.say(Request::SET_VRING_ENABLE, VringState::new(number, 0).as_slice(), &[]);
    }
    front.number(Request::GET_FEATURES);
    clear(&mut rx);
    front.transmit(&frames(3));
    front.rings[1].kick.raise();
    assert!(is_raised(&rx.arm().unwrap()), "by the notification");
    for number in [RECEIVES, TRANSMITS] {
        front.say(Request::SET_VRING_ENABLE, VringState::new(number, 1).as_slice(), &[]);
    }
    front.number(Request::GET_FEATURES);
    assert!(is_raised(&rx.arm().unwrap()));
    assert_eq!(receive(&mut rx, 3), frames(3));
    // From then on, every notification wakes the queue.
    for _ in 0..3 {
        clear(&mut rx);
        assert_eq!(rx.recv(&mut batch), 0);
        front.transmit(&frames(2));
        front.rings[1].kick.raise();
        assert!(is_raised(&rx.arm().unwrap()));
        assert_eq!(receive(&mut rx, 2), frames(2));
    }
    rx.disarm();
    assert_eq!(front.rings[1].used[0].load(Acquire), 1, "it polls");
}

/// A client that ends leaves no idle connection at its server.
#[test]
fn a_client_that_ends_does_not_connect_once_more() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    for _ in 0..20 {
        let ports = Options { pool: Some(pool()), ..Options::default() };
        let [port] = ports.open([&*format!("vhost:{}?client=on", path.display())]).unwrap();
        let mut front = FrontEnd::new(accepted(&listener));
        front.set_up(feature::VERSION_1);
        drop(port);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        listener.set_nonblocking(false).unwrap();
    }
}

/// Only the first segment of a TCP packet has CWR set (RFC 3168, 6.1.2); a driver without GUEST_ECN gets segments.
#[test]
fn congestion_is_reported_to_drivers_that_know_it() {
    let mut bytes = Vec::new();
    let ip = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    ip.tcp(80, 4321, 1, 1000).cwr().write(&mut bytes, &[7; 3000]).unwrap();
    let todo = Offload([1, 0x81, 0, 0, 0xA8, 5, 34, 0, 16, 0]);
    let mut segments = Vec::new();
    assert!(cut(&bytes, todo, |segment| segments.push(segment.to_vec())));
    let known = feature::VERSION_1 | feature::MRG_RXBUF | feature::GUEST_CSUM | feature::GUEST_TSO4;
    for (features, expected) in [(known, segments.clone()), (known | feature::GUEST_ECN, vec![bytes.clone()])] {
        let mut test = listening("?offloads=on");
        let mut tx = test.port.tx(0).unwrap();
        let mut front = FrontEnd::connect(&test, features);
        for n in 0..SIZE {
            front.offer_buffer(n, GUEST + (BUFFERS + usize::from(n) * 8192) as u64, 4096, features);
        }
        let mut batch = Batch::new();
        assert!(batch.push_parts(&test.pool, bytes.len(), [&bytes[..]].into_iter(), Some(todo)));
        until(|| {
            tx.send(&mut batch);
            usize::from(front.used(RECEIVES)) == expected.len()
        });
        for (n, frame) in expected.iter().enumerate() {
            let header = front.read(n * 8192, HEADER);
            assert_eq!(header[..2], if expected.len() == 1 { [1, 0x81] } else { [0, 0] });
            assert!(front.read(n * 8192 + HEADER, frame.len()) == *frame, "{n} of {}", expected.len());
        }
    }
}

/// A message that names a virtqueue which does not exist ends the connection.
#[test]
fn messages_about_no_virtqueue_end_their_connection() {
    let test = listening("");
    for index in [2, 200, u32::MAX] {
        let state = VringState::new(index, 1);
        let address = VringAddr { index, ..VringAddr::default() };
        for (request, payload) in [
            (Request::SET_VRING_NUM, state.as_slice()),
            (Request::SET_VRING_BASE, state.as_slice()),
            (Request::GET_VRING_BASE, state.as_slice()),
            (Request::SET_VRING_ENABLE, state.as_slice()),
            (Request::SET_VRING_ADDR, address.as_slice()),
            (Request::SET_VRING_KICK, u64::from(index & 0xFF | NO_DESCRIPTOR as u32).as_bytes()),
            (Request::SET_VRING_CALL, u64::from(index & 0xFF | NO_DESCRIPTOR as u32).as_bytes()),
        ] {
            let mut front = FrontEnd::connect(&test, feature::VERSION_1);
            front.say(request, payload, &[]);
            front.until_end();
        }
    }
}

/// A ring that is not completely inside the memory is rejected, and the front end may describe it again.
#[test]
fn rings_outside_the_memory_are_none() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    type Change = fn(&mut VringAddr);
    let changes: [(&str, Change); 9] = [
        ("descriptors in front", |at| at.descriptor = USER - 16),
        ("descriptors across the end", |at| at.descriptor = USER + LEN as u64 - 16 * u64::from(SIZE) + 16),
        ("descriptors that wrap around", |at| at.descriptor = u64::MAX - 15),
        ("descriptors that are not aligned", |at| at.descriptor += 8),
        ("an available ring behind", |at| at.available = USER + LEN as u64),
        ("an available ring across the end", |at| at.available = USER + LEN as u64 - 6 - 2 * u64::from(SIZE) + 2),
        ("an available ring that is not aligned", |at| at.available += 1),
        ("a used ring across the end", |at| at.used = USER + LEN as u64 - 6 - 8 * u64::from(SIZE) + 4),
        ("a used ring that is not aligned", |at| at.used += 2),
    ];
    let mut batch = Batch::new();
    for (what, change) in changes {
        front.transmit(&frames(2));
        assert_eq!(receive(&mut rx, 2), frames(2), "{what}");
        front.stop(TRANSMITS);
        front.transmit(&frames(3));
        front.describe_ring_as(TRANSMITS, change);
        front.kick(TRANSMITS);
        front.number(Request::GET_FEATURES); // all earlier messages are processed
        assert_eq!((rx.recv(&mut batch), test.port.link().unwrap()), (0, Link::Down), "{what}");
        front.stop(TRANSMITS);
        front.start(TRANSMITS);
        assert_eq!(receive(&mut rx, 3), frames(3), "{what}");
    }
}

/// QEMU 7.2 adds and removes each region once per queue pair. Another file at the same address is another region.
#[test]
fn a_region_is_there_until_it_is_removed_as_often_as_it_was_added() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    let [more, other] = ["more", "other"].map(|name| {
        let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        rustix::io::pwrite(&file, &[&[0; HEADER][..], &[7; 60]].concat(), 0).unwrap();
        file
    });
    let single = SingleRegion::new(GUEST + LEN as u64, 4096, USER + LEN as u64, 0);
    for _ in 0..3 {
        front.say(Request::ADD_MEM_REG, single.as_slice(), &[more.as_fd()]);
    }
    for left in [2, 1, 0] {
        front.number(Request::GET_FEATURES); // all earlier messages are processed
        let number = front.rings[1].added % SIZE;
        front.describe(TRANSMITS, number, single.guest_phys_addr, 72, 0, 0);
        front.offer(TRANSMITS, number);
        assert_eq!(receive(&mut rx, 1), [vec![7; 60]], "{left}");
        front.say(Request::REM_MEM_REG, single.as_slice(), &[]);
    }
    front.say(Request::ADD_MEM_REG, single.as_slice(), &[more.as_fd()]);
    front.number(Request::GET_FEATURES);
    front.say(Request::ADD_MEM_REG, single.as_slice(), &[other.as_fd()]);
    front.until_end();
}

/// Descriptors that a message does not need, and replaced descriptors, are closed.
#[test]
fn descriptors_of_messages_are_not_kept() {
    let test = listening("");
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    let before = open_files();
    for _ in 0..100 {
        let call = front.rings[1].call.try_clone().unwrap();
        let many = [call.as_fd(); 8];
        front.say(Request::SET_OWNER, &[], &many);
        front.say(Request::SET_VRING_KICK, (u64::from(TRANSMITS) | NO_DESCRIPTOR).as_bytes(), &many);
        front.say(Request::SET_VRING_CALL, u64::from(TRANSMITS).as_bytes(), &many);
        front.say(Request::SET_VRING_ERR, u64::from(TRANSMITS).as_bytes(), &many);
        front.log(&new_log(), (LOG_LEN, LOG_AT), feature::VERSION_1);
        front.share();
    }
    front.number(Request::GET_FEATURES); // all earlier messages are processed
    // Other tests may open files at the same time.
    until(|| open_files() <= before + 50);
}

/// Chains shorter than the header, in one or several parts, are dropped and returned. A chain with parts of both
/// directions is invalid.
#[test]
fn chains_shorter_than_their_header_are_dropped() {
    let mut test = listening("");
    let mut rx = test.port.rx(0).unwrap();
    let mut front = FrontEnd::connect(&test, feature::VERSION_1);
    let mut batch = Batch::new();
    for len in 0..HEADER as u32 + 14 {
        for first in [0, 1.min(len), len / 2, len] {
            let head = (front.rings[1].added % SIZE) & !1;
            let address = front.write(0, &[7; 60]);
            front.describe(TRANSMITS, head, address, first, NEXT, head + 1);
            front.describe(TRANSMITS, head + 1, address + u64::from(first), len - first, 0, 0);
            front.offer(TRANSMITS, head);
            until(|| {
                assert_eq!(rx.recv(&mut batch), 0, "{len}");
                front.used(TRANSMITS) == front.rings[1].added
            });
        }
    }
    assert_eq!(test.port.statistics().unwrap().drops.malformed, 4 * (HEADER as u64 + 14));
    front.transmit(&frames(2));
    assert_eq!(receive(&mut rx, 2), frames(2));
    let address = front.write(0, &[7; 60]);
    front.describe(TRANSMITS, 0, address, 5, NEXT, 1);
    front.describe(TRANSMITS, 1, address + 5, 67, WRITE, 0);
    front.offer(TRANSMITS, 0);
    until(|| {
        assert_eq!(rx.recv(&mut batch), 0);
        test.port.link().unwrap() == Link::Down
    });
}
