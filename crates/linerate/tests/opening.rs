//! Tests that every kind of port sends packets that must be finished or segmented.

use std::sync::Arc;

use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Link, Port, PortName, RxQueue};
use linerate_core::batch::Batch;
use linerate_core::offload::{Offload, cut};
use linerate_testkit::until;

const BUFFERS: usize = 2048;

/// The order of the kinds does not matter, and each kind's example is of that kind.
#[test]
fn each_name_fits_one_kind() {
    for kind in linerate::KINDS {
        let name = linerate::parse(kind.example).unwrap();
        assert!(std::ptr::eq(name.kind(), &kind.description), "{}", kind.example);
        let others = linerate::KINDS.iter().rev().map(|kind| &kind.description).collect::<Vec<_>>();
        let reversed = PortName::parse_among(kind.example, &others).unwrap();
        assert!(std::ptr::eq(reversed.kind(), &kind.description), "{}", kind.example);
        if name.monitored().is_some() {
            continue; // A monitor of a wrapped port is not a wrapper around a monitor.
        }
        let inside = linerate::parse(&format!("recorded:{}", kind.example)).unwrap();
        assert_eq!((inside.kind().prefix, inside.class()), ("recorded", name.class()), "{}", kind.example);
    }
}

/// A model's wire may be any kind of port, also one without text after the colon.
#[test]
fn each_name_of_a_port_is_a_wire() {
    for wire in ["echo:", "echo:x", "null:", "X{9", "vale9:w"] {
        linerate::open([&*format!("sim:wired?wire={wire}")]).unwrap();
    }
    for wire in ["eth0", "", "sim:wired"] {
        assert!(linerate::open([&*format!("sim:wired?wire={wire}")]).is_err(), "{wire}");
    }
}

fn pool() -> Arc<Pool> {
    pool_of(2048)
}

fn pool_of(buffer_size: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size, pages, numa_node: None }).unwrap())
}

fn open(pool: &Arc<Pool>, name: &str) -> Port {
    let [port] = Options { pool: Some(pool.clone()), ..Options::default() }.open([name]).unwrap();
    port
}

/// Packets, each with its remaining offload, and the packets that they become on a wire.
type Sent = (Vec<(Vec<u8>, Option<Offload>)>, Vec<Vec<u8>>);

/// Returns packets whose segments fill a small ring several times, mixed with other packets.
fn packets() -> Sent {
    let (mut packets, mut wire) = (Vec::new(), Vec::new());
    for n in 0..40u8 {
        let payload: Vec<u8> = (0..20_500 + usize::from(n)).map(|at| (at / 3) as u8 ^ n).collect();
        let ip = || etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
        let mut bytes = Vec::new();
        let left = match n % 4 {
            0 if n % 8 == 4 => {
                let ip = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 9);
                ip.tcp(80, 4321, u32::from(n) << 24, 1000).cwr().psh().write(&mut bytes, &payload).unwrap();
                Some(Offload([1, 0x84, 0, 0, 0xA0, 5, 54, 0, 16, 0]))
            }
            0 if n % 16 == 8 => {
                ip().tcp(80, 4321, u32::from(n) << 24, 1000).cwr().write(&mut bytes, &payload).unwrap();
                Some(Offload([1, 0x81, 0, 0, 0xA8, 5, 34, 0, 16, 0]))
            }
            0 => {
                ip().tcp(80, 4321, u32::from(n) << 24, 1000).psh().write(&mut bytes, &payload).unwrap();
                Some(Offload([1, 1, 0, 0, 0xA8, 5, 34, 0, 16, 0]))
            }
            1 => {
                ip().udp(443, 4321).write(&mut bytes, &payload).unwrap();
                Some(Offload([1, 5, 0, 0, 0xE8, 3, 34, 0, 6, 0]))
            }
            2 => {
                ip().tcp(80, 4321, 5, 1000).write(&mut bytes, &payload[..1000]).unwrap();
                Some(Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]))
            }
            _ => {
                ip().udp(443, 4321).write(&mut bytes, &payload[..100]).unwrap();
                None
            }
        };
        match left {
            Some(left) if left.0[1] > 0 => assert!(cut(&bytes, left, |segment| wire.push(segment.to_vec()))),
            Some(_) => {
                wire.push(bytes.clone());
                // Linux leaves the sum of the pseudo header there.
                let len = (bytes.len() - 34) as u32;
                let words = [0x0A00, 1, 0x0A00, 2, 6, len];
                let sum = words.iter().sum::<u32>() as u16;
                bytes[50..52].copy_from_slice(&sum.to_be_bytes());
            }
            None => wire.push(bytes.clone()),
        }
        packets.push((bytes, left));
    }
    (packets, wire)
}

/// Receives packets, and finishes unfinished ones. Returns the number of unfinished packets.
fn receive(rx: &mut RxQueue, all: &mut Vec<Vec<u8>>) -> usize {
    let mut batch = Batch::new();
    rx.recv(&mut batch);
    let mut unfinished = 0;
    for packet in batch.packets() {
        let mut bytes = Vec::new();
        packet.append_to(&mut bytes);
        let Some(left) = packet.offload() else {
            all.push(bytes);
            continue;
        };
        unfinished += 1;
        if !cut(&bytes, left, |segment| all.push(segment.to_vec())) {
            assert!(left.finish_bytes(&mut bytes));
            all.push(bytes);
        }
    }
    unfinished
}

/// Sends the packets from one port to another, which may use another region. A monitor of a model also receives what is
/// sent. Returns the number of packets that arrive unfinished.
fn cross(from: &mut Port, to: &mut Port, is_other_region: bool) -> usize {
    let theirs = if is_other_region { pool() } else { from.pool().clone() };
    let (packets, wire) = packets();
    let (mut tx, mut rx) = (from.tx(0).unwrap(), to.rx(0).unwrap());
    let name = from.name().to_string();
    let is_model = name.starts_with("sim:");
    let mut monitor = is_model.then(|| open(&pool(), &format!("{name}/t?ring=2048")));
    let mut seen_by_monitor = monitor.as_mut().map(|monitor| monitor.rx(0).unwrap());
    let (mut batch, mut sent, mut arrived, mut seen, mut unfinished) = (Batch::new(), 0, Vec::new(), Vec::new(), 0);
    until(format!("all {} frames to arrive from {name}", wire.len()), || {
        while let Some((bytes, left)) = packets.get(sent)
            && batch.push_parts(&theirs, bytes.len(), [&bytes[..]].into_iter(), *left)
        {
            sent += 1;
        }
        tx.send(&mut batch);
        unfinished += receive(&mut rx, &mut arrived);
        seen_by_monitor.iter_mut().for_each(|rx| _ = receive(rx, &mut seen));
        arrived.len() >= wire.len()
    });
    for (n, (one, other)) in arrived.iter().zip(&wire).enumerate() {
        let at = one.iter().zip(other).position(|(a, b)| a != b);
        assert!(one == other, "{name}: frame {n}, {} and {} bytes, at {at:?}", one.len(), other.len());
    }
    assert_eq!(arrived.len(), wire.len(), "{name}");
    if let (Some(monitor), Some(rx)) = (&monitor, &mut seen_by_monitor) {
        until("the monitor to have no more frames", || {
            let before = seen.len();
            receive(rx, &mut seen);
            seen.len() == before
        });
        // The monitor misses segments of a packet that was not sent in one call; they are counted.
        let missing = monitor.statistics().unwrap().drops.no_descriptor as usize;
        assert_eq!(seen.len() + missing, wire.len(), "{name}");
        assert!(seen.len() > wire.len() / 2, "{name}: {} of {}", seen.len(), wire.len());
        let mut all = wire.iter();
        assert!(seen.iter().all(|frame| all.any(|one| one == frame)), "{name}: they are in order");
    }
    assert_eq!(from.statistics().unwrap().drops, linerate::port::Drops::default(), "{name}");
    drop((tx, rx, batch));
    until("the sender's buffers to be free", || theirs.available() == BUFFERS || !is_other_region);
    unfinished
}

/// Each port sends the packets as valid frames, in order, through a smaller ring. If the other end can finish them,
/// they are sent unchanged.
#[test]
fn every_port_segments_what_it_cannot_leave_to_its_other_end() {
    let folder = tempfile::tempdir().unwrap();
    let [vhost, memif, copies, uncut, half, single] =
        [0, 1, 2, 3, 4, 5].map(|n| folder.path().join(n.to_string()).display().to_string());
    let pairs = [
        ["sim:finish-a?ring=64&wire=sim:finish-b".to_string(), "sim:finish-b?wire=sim:finish-a".to_string()],
        [format!("vhost:{vhost}"), format!("virtio-user:{vhost}?ring=64")],
        [format!("memif:{memif}?role=server"), format!("memif:{memif}?ring=64&zero-copy=on")],
        [format!("memif:{copies}?role=server"), format!("memif:{copies}?ring=64")],
        [format!("vhost:{uncut}?offloads=on&packed=on"), format!("virtio-user:{uncut}?ring=64&offloads=on&packed=on")],
        [format!("vhost:{half}?offloads=on"), format!("virtio-user:{half}?ring=64")],
        [format!("vhost:{single}?offloads=on"), format!("virtio-user:{single}?offloads=on&mergeable=off")],
    ];
    for names in pairs {
        let pools = names.each_ref().map(|name| pool_of(linerate::parse(name).unwrap().buffer_size()));
        let mut n = 0;
        let mut ports = names.map(|name| {
            n += 1;
            open(&pools[n - 1], &name)
        });
        let is_up = |port: &Port| port.link().unwrap() != Link::Down;
        ports.iter().for_each(|port| until(format!("the link of {}", port.name()), || is_up(port)));
        let [near, far] = &mut ports;
        for is_other_region in [false, true] {
            let is_uncut = near.name().contains(&uncut);
            // Without mergeable buffers, the front end sends unfinished packets, but receives only those with checksums
            // left to do.
            let expected = if is_uncut { [30; 2] } else { [0, 0] };
            let unfinished = [cross(near, far, is_other_region), cross(far, near, is_other_region)];
            match near.name().contains(&single) {
                false => assert_eq!(unfinished, expected, "{}", near.name()),
                true => assert_eq!(unfinished[1], 30, "{}", near.name()),
            }
        }
        drop(ports);
        until("all buffers to be free", || pools.iter().all(|pool| pool.available() == BUFFERS));
    }
}
