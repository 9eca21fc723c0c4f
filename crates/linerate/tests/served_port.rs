//! Served ports behave like any other: transfers, counters, drops and errors.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Config, Device, Link, Receive, SoftwarePort, Transmit};
use linerate::share::netmap_object::{MemoryChoice, SharedPort};
use linerate::share::{Client, ClusterRequest, OpenRequest, RingSelection, ServedPort, Server};
use linerate::{Batch, ErrorKind, Options};
use linerate_testkit::{Deadline, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn serve(folder: &Path) -> Server {
    let mut server = linerate::server();
    server.listen(&folder.join("any"), None, 0o600, None).unwrap();
    server
}

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

/// Opens a port with its own pool and one queue per direction, unless `change` sets others.
fn open(folder: &Path, wanted: OpenRequest, change: impl FnOnce(&mut Options)) -> SoftwarePort<ServedPort> {
    let mut options = Options { ring: Some(64), ..Options::default() };
    change(&mut options);
    let pool = options.pool.take().unwrap_or_else(|| pool(512));
    let config = options.of_port(&wanted.name, pool).unwrap();
    ServedPort::find(folder, wanted, config).unwrap().expect("it is served")
}

fn named(name: &str) -> OpenRequest {
    OpenRequest { name: name.to_string(), ..OpenRequest::default() }
}

/// Opens both ends of a pipe, in which packets arrive immediately. Frames may have 9,000 bytes.
fn pipe(folder: &Path, change: impl Fn(&str, &mut Options)) -> [SoftwarePort<ServedPort>; 2] {
    ["pipe{1", "pipe}1"].map(|name| {
        open(folder, named(name), |options| {
            options.max_frame = 9000;
            change(name, options);
        })
    })
}

/// Returns a packet whose bytes encode its length and number.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 13 + len) as u8).collect()
}

/// Sends packets of these lengths; returns how many were not accepted.
fn send(tx: &mut dyn Transmit, pool: &Arc<Pool>, lens: &[usize]) -> usize {
    let mut batch = Batch::with_capacity(256);
    for (number, len) in lens.iter().enumerate() {
        assert!(batch.push(pool, &packet(number, *len)));
    }
    tx.send(&mut batch);
    batch.packets().count()
}

/// Checks all bytes; returns the number and length of each packet.
fn received(batch: &mut Batch) -> Vec<(usize, usize)> {
    let mut packets = Vec::new();
    for one in batch.packets() {
        let (mut bytes, len) = (Vec::new(), one.len());
        one.append_to(&mut bytes);
        let number = (0..256).find(|number| bytes == packet(*number, len));
        packets.push((number.expect("a packet that was sent"), len));
    }
    packets
}

fn receive(rx: &mut dyn Receive) -> Vec<(usize, usize)> {
    let mut batch = Batch::with_capacity(256);
    rx.recv(&mut batch);
    received(&mut batch)
}

#[test]
fn packets_arrive_whole_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut a, mut b] = pipe(folder.path(), |_, _| {});
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let lens = [60, 1514, 1, 9000, 61];
    let pool = a.pool().clone();
    assert_eq!(send(&mut *tx, &pool, &lens), 0);
    // A packet that needs several buffers has as many slots, and all its bytes arrive.
    let expected: Vec<_> = lens.iter().copied().enumerate().collect();
    let mut batch = Batch::with_capacity(256);
    let slots = rx.recv(&mut batch);
    assert_eq!((received(&mut batch), slots), (expected, batch.len()));
    assert!(slots > lens.len());
    let (sent, come) = (a.statistics().unwrap(), b.statistics().unwrap());
    let bytes = lens.iter().sum::<usize>() as u64;
    assert_eq!((sent.tx_packets, sent.tx_bytes, sent.rx_packets), (5, bytes, 0));
    assert_eq!((come.rx_packets, come.rx_bytes, come.tx_packets), (5, bytes, 0));
    assert_eq!(b.queue_statistics().rx_slots, [slots as u64]);
    assert_eq!(a.queue_statistics().tx_slots, [slots as u64]);
    assert_eq!(come.drops.by_cause().map(|(_, count)| count).iter().sum::<u64>(), 0);
    assert_eq!((rx.buffers(), tx.buffers()), (0, 0));
}

#[test]
fn packets_that_are_too_long_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let mut ports = pipe(folder.path(), |name, options| options.max_frame = if name == "pipe{1" { 3000 } else { 100 });
    let pool = ports[0].pool().clone();
    let [a, b] = &mut ports;
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    assert_eq!(send(&mut *tx, &pool, &[60, 3001, 3000, 100, 101, 99]), 0);
    let lens: Vec<_> = receive(&mut *rx).iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [60, 100, 99]);
    let (sent, come) = (a.statistics().unwrap(), b.statistics().unwrap());
    assert_eq!((sent.tx_packets, sent.tx_bytes, sent.drops.tx_too_long), (5, 60 + 3000 + 100 + 101 + 99, 1));
    assert_eq!((come.rx_packets, come.rx_bytes, come.drops.oversize), (3, 259, 2));
    // A single packet that is too long is dropped, even if there is no room.
    assert_eq!(send(&mut *tx, &pool, &[3001]), 0);
    assert_eq!((receive(&mut *rx).len(), a.statistics().unwrap().drops.tx_too_long), (0, 2));
    let deadline = Deadline::begin();
    while send(&mut *tx, &pool, &[60; 60]) == 0 {
        deadline.check(|| "the pipe is full");
    }
    assert_eq!((send(&mut *tx, &pool, &[3001]), a.statistics().unwrap().drops.tx_too_long), (0, 3));
}

#[test]
fn packets_without_room_wait_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut a, mut b] = pipe(folder.path(), |_, _| {});
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let pool = a.pool().clone();
    // A batch of capacity four receives four.
    assert_eq!(send(&mut *tx, &pool, &[60; 10]), 0);
    let mut batch = Batch::with_capacity(4);
    for (turn, count) in [4, 4, 2, 0].into_iter().enumerate() {
        assert_eq!(rx.recv(&mut batch), count);
        let expected: Vec<_> = (0..count).map(|n| (turn * 4 + n, 60)).collect();
        assert_eq!(received(&mut batch), expected);
        batch.clear();
    }
    assert_eq!(b.statistics().unwrap().drops.no_buffer, 0, "a full batch is no lack of buffers");
    // A pipe of 64 slots has room for 63; the rest stays in the batch.
    assert_eq!(send(&mut *tx, &pool, &[60; 200]), 200 - 63);
    assert_eq!((receive(&mut *rx).len(), receive(&mut *rx).len()), (63, 0));
    // A packet that fills the last slot completely is accepted.
    assert_eq!(send(&mut *tx, &pool, &[60; 62]), 0);
    assert_eq!((send(&mut *tx, &pool, &[2048]), send(&mut *tx, &pool, &[1])), (0, 1));
    assert_eq!(receive(&mut *rx).len(), 63);
    // A packet of several slots is not split while it waits.
    let mut batch = Batch::with_capacity(256);
    let mut sent = 0;
    while batch.push(&pool, &packet(sent, 9000)) {
        tx.send(&mut batch);
        sent += 1 - batch.packets().count();
        if !batch.is_empty() {
            break;
        }
    }
    let mut come = Vec::new();
    while come.len() <= sent {
        let more = receive(&mut *rx);
        assert!(!more.is_empty(), "{} of {sent}", come.len());
        come.extend(more);
        tx.send(&mut batch);
    }
    assert_eq!(come, (0..=sent).map(|number| (number, 9000)).collect::<Vec<_>>());
    assert!(batch.is_empty() && receive(&mut *rx).is_empty());
}

#[test]
fn a_receiver_without_buffers_lets_packets_wait_and_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut a, mut b] =
        pipe(folder.path(), |name, options| options.pool = Some(pool(if name == "pipe}1" { 64 } else { 512 })));
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let (own, theirs) = (a.pool().clone(), b.pool().clone());
    assert_eq!(send(&mut *tx, &own, &[60; 2]), 0);
    let mut all = Batch::with_capacity(64);
    assert_eq!(all.alloc(&theirs, 64, 60), 64);
    let mut batch = Batch::with_capacity(64);
    assert_eq!((rx.recv(&mut batch), b.statistics().unwrap().drops.no_buffer), (0, 1));
    all.clear();
    drop(all);
    assert_eq!((rx.recv(&mut batch), b.statistics().unwrap().rx_packets), (2, 2));
    assert_eq!(received(&mut batch), [(0, 60), (1, 60)]);
    drop(batch);
    // A packet that needs more buffers than the pool has is dropped, and the next one arrives.
    let [mut a, mut b] = ["big{1", "big}1"].map(|name| {
        open(folder.path(), named(name), |options| {
            (options.max_frame, options.ring) = (20_000, Some(64));
            options.pool = (name == "big}1").then(|| pool(4));
        })
    });
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    assert_eq!(send(&mut *tx, a.pool(), &[20_000, 61]), 0);
    let mut batch = Batch::with_capacity(64);
    while rx.recv(&mut batch) > 0 {}
    assert_eq!(received(&mut batch), [(1, 61)]);
    let statistics = b.statistics().unwrap();
    assert_eq!((statistics.drops.malformed, statistics.drops.no_buffer), (1, 0));
}

fn is_readable(event: std::os::fd::BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_queue_wakes_its_program_if_interrupts_are_on() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut a, mut b] =
        pipe(folder.path(), |name, options| options.interrupts = (name == "pipe}1").then_some(Duration::ZERO));
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let pool = a.pool().clone();
    assert!(a.rx(0).unwrap().arm().is_none());
    // A polling queue gets no notifications.
    send(&mut *tx, &pool, &[60]);
    assert_eq!(receive(&mut *rx).len(), 1);
    assert!(!is_readable(rx.arm().expect("it can wake")));
    send(&mut *tx, &pool, &[60]);
    // A packet wakes the armed queue.
    let ten_seconds = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&rx.arm().unwrap(), PollFlags::IN)], Some(&ten_seconds)), Ok(1));
    rx.disarm();
    assert_eq!(receive(&mut *rx).len(), 1);
    assert!(!is_readable(rx.arm().unwrap()), "a token is read when it is waited for again");
    rx.disarm();
}

/// As in netmap, packets that the far end has not received yet occupy the sender's ring.
#[test]
fn a_pipe_takes_a_ring_of_packets() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut a, mut b] = pipe(folder.path(), |_, _| {});
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    let pool = a.pool().clone();
    assert_eq!((send(&mut *tx, &pool, &[60; 20]), tx.unsent()), (0, 0));
    assert_eq!((send(&mut *tx, &pool, &[60; 60]), tx.unsent()), (80 - 63, 0));
    assert_eq!(send(&mut *tx, &pool, &[60]), 1);
    assert_eq!(receive(&mut *rx).len(), 63);
    assert_eq!((send(&mut *tx, &pool, &[60]), receive(&mut *rx).len()), (0, 1));
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    for ring in [0, 3, 100, 100_000] {
        let options = Options { ring: Some(ring), ..Options::default() };
        let config = options.of_port("vale9:a", pool(512)).unwrap();
        let refused = ServedPort::find(folder.path(), named("vale9:a"), config).map(drop);
        let error = refused.map(drop).unwrap_err();
        assert!(error.why().starts_with(&format!("a ring of {ring} descriptors")), "{ring}: {error}");
    }
}

#[test]
fn rings_and_addresses_are_the_servers_choice() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let two = |options: &mut Options| (options.rx_queues, options.tx_queues) = (2, 2);
    let mut a = open(folder.path(), named("vale8:a"), two);
    let mut b = open(folder.path(), named("vale8:b"), |_| {});
    let info = a.info();
    assert_eq!((info.driver, info.rx_queues, info.tx_queues, info.ring), ("served", 2, 2, 64));
    assert_eq!((b.info().rx_queues, b.info().tx_queues), (1, 1));
    assert_ne!(a.mac(), b.mac());
    assert_eq!(a.mac().0[0] & 3, 2, "locally administered, and its own");
    let said = a.set_mac(b.mac()).unwrap_err().with_hint();
    assert!(said.contains("vale8:a") && said.contains("its server chooses the address"), "{said}");
    assert!(a.rx(2).is_err_and(|error| error.kind() == linerate::ErrorKind::NotFound));
    assert!(a.rx(u16::MAX).map(drop).unwrap_err().with_hint().contains("queues=65536"));
    assert_eq!(a.link().unwrap(), Link::Up { mbits: 0 });
    // Each queue sends independently.
    let [mut a0, mut a1] = [0, 1].map(|queue| a.tx(queue).unwrap());
    let mut rx = b.rx(0).unwrap();
    let own = a.pool().clone();
    send(&mut *a0, &own, &[60]);
    send(&mut *a1, &own, &[61, 62]);
    let mut lens = Vec::new();
    let deadline = Deadline::begin();
    while lens.len() < 3 {
        deadline.check(|| format!("three packets, {lens:?} came, {:?}", b.statistics()));
        lens.extend(receive(&mut *rx).iter().map(|(_, len)| *len));
    }
    lens.sort();
    assert_eq!(lens, [60, 61, 62]);
    assert_eq!(a.queue_statistics().tx_slots, [1, 2]);
    // The server ends.
    drop(server);
    let said = [&a, &b].map(|port| port.link().unwrap_err().with_hint());
    assert!(said.iter().all(|said| said.contains("the process that served it is gone")), "{said:?}");
    // The counters remain available.
    assert_eq!(b.statistics().unwrap().rx_packets, 3);
    assert!(ServedPort::find(folder.path(), named("vale8:a"), Config::new("vale8:a", pool(64))).unwrap().is_none());
}

/// A prepared port can send even when the server's path is gone. Until it sends, other programs can use its transmit
/// queue.
#[test]
fn a_prepared_port_needs_no_path_to_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut first, mut second, mut receiver] =
        ["vale8:a", "vale8:a", "vale8:b"].map(|name| open(folder.path(), named(name), |_| {}));
    let mut rx = receiver.rx(0).unwrap();
    first.prepare_tx().unwrap();
    let taken = second.tx(0).unwrap();
    std::fs::remove_file(folder.path().join("any")).unwrap();
    // After a failure, the connection is kept for the next attempt.
    assert_eq!(first.tx(0).map(drop).unwrap_err().kind(), ErrorKind::QueueTaken);
    drop(taken);
    let mut tx = first.tx(0).unwrap();
    assert_eq!(send(&mut *tx, first.pool(), &[60; 5]), 0);
    let mut lens = Vec::new();
    until("five packets", || {
        lens.extend(receive(&mut *rx));
        lens.len() == 5
    });
    assert_eq!(second.tx(0).map(drop).unwrap_err().kind(), ErrorKind::NotServed);
}

#[test]
fn a_monitor_receives_and_does_not_send() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    // Use a unique name: all servers of a process share its pipes.
    let [mut a, mut b] =
        ["heard{1", "heard}1"].map(|name| open(folder.path(), named(name), |options| options.max_frame = 9000));
    let monitor = |monitor_rx, monitor_tx| {
        let monitor = OpenRequest { monitor_rx, monitor_tx, ..named("heard{1") };
        let mut monitor = open(folder.path(), monitor, |options| options.max_frame = 9000);
        let refused = monitor.tx(0).map(drop).unwrap_err().with_hint();
        assert!(refused.contains("a monitor only receives"), "{refused}");
        monitor
    };
    drop((monitor(true, false), monitor(false, true)));
    let mut monitor = monitor(true, true);
    let mut heard = monitor.rx(0).unwrap();
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    assert_eq!(send(&mut *tx, a.pool(), &[60, 5000]), 0);
    assert_eq!(receive(&mut *rx).len(), 2);
    let (deadline, mut packets) = (Deadline::begin(), Vec::new());
    while packets.len() < 2 {
        deadline.check(|| format!("{} of 2 packets were received, {:?}", packets.len(), monitor.statistics()));
        packets.extend(receive(&mut *heard));
    }
    assert_eq!(packets, [(0, 60), (1, 5000)]);
}

/// Tests monitors of a switch port and of a pipe.
#[test]
fn a_monitor_of_one_ring_hears_that_ring() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let queues = |options: &mut Options| (options.rx_queues, options.tx_queues) = (3, 3);
    for [near, far] in [["vale9:near", "vale9:far"], ["ring{1", "ring}1"]] {
        let mut sender = open(folder.path(), named(near), queues);
        let mut receiver = open(folder.path(), named(far), queues);
        let monitor = |wanted: OpenRequest| {
            let client = Client::find(folder.path(), &wanted.name).unwrap().expect("it is served");
            client.open(wanted, MemoryChoice::default()).unwrap()
        };
        let one = |n: u16| monitor(OpenRequest { monitor_tx: true, selection: RingSelection::One(n), ..named(near) });
        let monitors = [one(0), one(2), monitor(OpenRequest { monitor_rx: true, ..named(far) })];
        let _rx: Vec<_> = (0..3).map(|n| receiver.rx(n).unwrap()).collect();
        // Each ring sends a different number of frames, which stay in the monitors' rings.
        let mut tx: Vec<_> = (0..3).map(|n| sender.tx(n).unwrap()).collect();
        for (n, tx) in tx.iter_mut().enumerate() {
            assert_eq!(send(&mut **tx, sender.pool(), &[60, 60, 60][..=n]), 0, "{near}");
        }
        let heard = || {
            let frames = |(descriptor, port): &(OwnedFd, SharedPort)| {
                port.sync_rx(descriptor.as_fd()).unwrap();
                let has = |n: &usize| port.layout().rx[*n].is_some();
                (0..3).filter(has).map(|n| port.indices(true, n).1).collect::<Vec<_>>()
            };
            monitors.each_ref().map(frames)
        };
        let deadline = Deadline::begin();
        while heard().iter().flatten().sum::<u32>() < 1 + 3 + 6 {
            deadline.check(|| format!("{near}: the monitors have heard {:?}", heard()));
        }
        assert_eq!(heard(), [vec![1], vec![3], vec![1, 2, 3]], "{near}");
    }
}

#[test]
fn a_monitor_ends_with_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let watched = open(folder.path(), named("vale16:a"), |_| {});
    let mut monitor = open(folder.path(), OpenRequest { monitor_rx: true, ..named("vale16:a") }, |_| {});
    let rx = monitor.rx(0).unwrap();
    assert!(monitor.link().is_ok());
    drop(watched);
    until("the end of the monitor", || monitor.link().is_err());
    let said = monitor.link().unwrap_err().to_string();
    assert!(said.contains("vale16:a: the port of the monitor is closed"), "{said}");
    drop(rx);
    // The port and its monitor can be opened again.
    let _watched = open(folder.path(), named("vale16:a"), |_| {});
    let monitor = open(folder.path(), OpenRequest { monitor_rx: true, ..named("vale16:a") }, |_| {});
    assert!(monitor.link().is_ok());
}

/// Copies made before the port was closed are in the monitor's ring, wait at the server, or were dropped for lack of
/// room.
#[test]
fn a_monitor_of_a_closed_port_receives_what_is_left() {
    const SENT: usize = 600;
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let [mut sender, mut watched] = ["vale32:b", "vale32:a"].map(|name| open(folder.path(), named(name), |_| {}));
    let mut monitor = open(folder.path(), OpenRequest { monitor_rx: true, ..named("vale32:a") }, |_| {});
    let mut heard = monitor.rx(0).unwrap();
    let (mut tx, mut rx) = (sender.tx(0).unwrap(), watched.rx(0).unwrap());
    let (deadline, pool) = (Deadline::begin(), sender.pool().clone());
    let (mut sent, mut batch, mut taken) = (0, Batch::with_capacity(256), Batch::with_capacity(256));
    let counted = |port: &SoftwarePort<ServedPort>| {
        let now = port.statistics().unwrap();
        (now.rx_packets + now.drops.no_descriptor) as usize
    };
    while counted(&watched) < SENT {
        deadline.check(|| format!("{sent} of {SENT} packets were sent, {:?}", watched.statistics()));
        while batch.len() < 32 && sent < SENT {
            assert!(batch.push(&pool, &[0xff; 60]));
            sent += 1;
        }
        tx.send(&mut batch);
        rx.recv(&mut taken);
        taken.clear();
    }
    // Packets that the port itself dropped for lack of room are not copied.
    let received = watched.statistics().unwrap().rx_packets as usize;
    drop((rx, watched));
    until("the end of the monitor", || monitor.link().is_err());
    let deadline = Deadline::begin();
    while counted(&monitor) < received {
        deadline.check(|| format!("{received} copies, {:?}", monitor.statistics()));
        heard.recv(&mut taken);
        taken.clear();
    }
    let now = monitor.statistics().unwrap();
    assert!(now.rx_packets > 0 && now.drops.no_descriptor > 0 && counted(&monitor) == received, "{now:?}");
}

/// Receives `count` packets; returns their timestamps.
fn times(rx: &mut dyn Receive, count: usize) -> Vec<Option<u64>> {
    let (deadline, mut times, mut batch) = (Deadline::begin(), Vec::new(), Batch::with_capacity(256));
    while times.len() < count {
        deadline.check(|| format!("{} of {count} packets were received", times.len()));
        rx.recv(&mut batch);
        times.extend(batch.packets().map(|packet| packet.timestamp()));
        batch.clear();
    }
    times
}

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// Tests a switch port, whose senders copy directly into the client's ring, and a cluster share and a monitor, whose
/// packets the server moves.
#[test]
fn the_server_notes_when_packets_come() {
    let folder = tempfile::tempdir().unwrap();
    let _server = serve(folder.path());
    let timed = |wanted: OpenRequest| {
        open(folder.path(), OpenRequest { timestamps: true, ..wanted }, |options| options.max_frame = 9000)
    };
    let mut b = timed(named("vale15:b"));
    let mut c =
        timed(OpenRequest { cluster: Some(ClusterRequest { shares: 1, by: "flow".to_string() }), ..named("vale15:c") });
    let mut untimed = open(folder.path(), named("vale15:d"), |options| options.max_frame = 9000);
    let mut a = open(folder.path(), named("vale15:a"), |_| {});
    let mut monitor = timed(OpenRequest { monitor_rx: true, ..named("vale15:b") });
    let [mut b, mut c, mut monitor] = [&mut b, &mut c, &mut monitor].map(|port| port.rx(0).unwrap());
    let (mut untimed, mut tx) = (untimed.rx(0).unwrap(), a.tx(0).unwrap());
    let mut last = [0; 3];
    for count in [1, 2, 40, 1] {
        let mut batch = Batch::with_capacity(256);
        (0..count).for_each(|n| assert!(batch.push(a.pool(), &vec![0xFF; [60, 1514][n % 2]])));
        let before = now();
        tx.send(&mut batch);
        let came = [times(&mut *b, count), times(&mut *c, count), times(&mut *monitor, count)];
        let after = now() + count as u64;
        for (last, came) in last.iter_mut().zip(came) {
            for time in came {
                let time = time.expect("a time");
                assert!(
                    (before..=after).contains(&time) && time > *last,
                    "{before} <= {time} <= {after}, after {last}"
                );
                *last = time;
            }
        }
        assert!(times(&mut *untimed, count).iter().all(Option::is_none), "it has not asked for times");
    }
}
