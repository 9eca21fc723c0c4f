//! Ports on a veth pair in a network namespace of the test's thread: AF_XDP at one end, AF_PACKET at the other. Random
//! schedules check that every buffer is accounted for at all times.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use linerate::Batch;
use linerate::Options;
use linerate::filter::Filter;
use linerate::kernel::{Interface, PacketPort, Xdp, XdpOptions};
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::offload::cut;
use linerate::port::{Action, Device, Feature, Port, RxQueue, Support, TxQueue};
use linerate::traffic::{Checker, Generator};
use linerate_testkit::Deadline;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs a program in the thread's namespace.
fn run(words: &str) {
    let mut words = words.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The thread's network namespace, deleted at the end of the test.
struct Namespace(String);

impl Namespace {
    fn enter(test: &str) -> Namespace {
        let namespace = Namespace(format!("linerate-{test}-{}", std::process::id()));
        run(&format!("ip netns add {}", namespace.0));
        let file = std::fs::File::open(format!("/run/netns/{}", namespace.0)).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

/// A port, and its queues while they are open.
struct End {
    device: Port,
    rx: Option<RxQueue>,
    tx: Option<TxQueue>,
    batch: Batch,
    /// Generates sent traffic, and checks received traffic.
    generator: Generator,
    checker: Checker,
}

const BUFFERS: usize = 2048;

impl End {
    fn new(device: Port) -> End {
        let (generator, checker) = (Generator::new(128, 1), Checker::default());
        End { device, rx: None, tx: None, batch: Batch::new(), generator, checker }
    }

    fn send(&mut self, pool: &Arc<Pool>, count: usize) {
        let Some(tx) = &mut self.tx else { return };
        let mut bytes = vec![0; self.generator.frame_len()];
        for _ in 0..count {
            self.generator.fill(&mut bytes);
            if !self.batch.push(pool, &bytes) {
                break;
            }
        }
        tx.send(&mut self.batch);
    }

    fn receive(&mut self) {
        let Some(rx) = &mut self.rx else { return };
        self.batch.clear();
        rx.recv(&mut self.batch);
        self.batch.packets().for_each(|packet| self.checker.check(&packet));
        self.batch.clear();
    }

    fn buffers(&self) -> usize {
        let queues = self.rx.as_ref().map_or(0, |rx| rx.buffers()) + self.tx.as_ref().map_or(0, |tx| tx.buffers());
        queues + self.batch.len() + self.batch.cached()
    }
}

/// A step of a schedule, at one of the ends.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Receive,
    Clear,
    TakeRx,
    DropRx,
    TakeTx,
    DropTx,
    /// Sets the interface down and up again.
    Flap,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        40 => (1..40usize).prop_map(Step::Send),
        40 => Just(Step::Receive),
        10 => Just(Step::Clear),
        20 => Just(Step::TakeRx),
        20 => Just(Step::TakeTx),
    ];
    (0..2usize, step)
}

/// Returns a rare step, which takes the kernel longer.
fn rare() -> impl Strategy<Value = (usize, Step)> {
    (0..2usize, prop_oneof![4 => Just(Step::DropRx), 4 => Just(Step::DropTx), 1 => Just(Step::Flap)])
}

#[test]
fn buffers_are_accounted_for_through_ten_thousand_schedules() {
    over_a_pair("schedules", schedules);
}

/// Runs a test over a veth pair, on a thread in a new namespace.
fn over_a_pair(name: &'static str, test: fn()) {
    let inside = move || {
        let _namespace = Namespace::enter(name);
        pair();
        test();
    };
    std::thread::spawn(inside).join().unwrap();
}

/// Makes a veth pair without traffic of the kernel's.
fn pair() {
    run("ip link add v0 type veth peer name v1");
    for interface in ["v0", "v1"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1").unwrap();
        run(&format!("ip link set {interface} up"));
    }
}

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    let options = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None };
    Pool::new(Region::new(&options).unwrap())
}

/// Frames that the kernel has not taken, because the interface is down or has no carrier, are not counted as sent. They
/// wait in the ring, even a full one, and are sent when the interface is up.
#[test]
fn frames_are_counted_as_sent_when_the_kernel_has_taken_them() {
    over_a_pair("untaken", send_while_down);
}

fn send_while_down() {
    const RING: usize = 64;
    let pool = pool();
    let config = |name: &str| Options { ring: Some(RING), ..Options::default() }.of_port(name, pool.clone()).unwrap();
    // The number of sent packets is the tenth in the interface's line (proc_net(5)).
    let in_kernel = || {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("v0:")).unwrap();
        line.split_whitespace().nth(9).unwrap().parse::<u64>().unwrap()
    };
    for (kind, down) in [("packet", "v0"), ("packet", "v1"), ("xdp", "v0")] {
        let interface = Interface::open("v0").unwrap();
        let mut port: Box<dyn Device> = match kind {
            "packet" => Box::new(PacketPort::open(interface, None, config("packet:v0")).unwrap()),
            _ => Box::new(Xdp::open(interface, &XdpOptions::default(), config("xdp:v0")).unwrap()),
        };
        let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
        let before = in_kernel();
        run(&format!("ip link set dev {down} down"));
        let mut taken = 0;
        for _ in 0..RING / 16 + 1 {
            (0..16).for_each(|_| assert!(batch.push(&pool, &[0xFF; 60])));
            taken += tx.send(&mut batch);
            batch.clear();
        }
        assert_eq!((taken, tx.unsent()), (RING, RING), "{kind}, {down} down: the ring is full");
        let sent = |port: &dyn Device| port.statistics().map(|counted| (counted.tx_packets, counted.tx_bytes)).unwrap();
        assert_eq!((sent(&*port), in_kernel()), ((0, 0), before), "{kind}, {down} down");
        // The next owner of a packet socket's queue sends the frames; an AF_XDP socket ends with its queues.
        if kind == "packet" {
            drop(tx);
            tx = port.tx(0).unwrap();
        }
        assert_eq!(tx.unsent(), RING, "{kind}, {down} down");
        run(&format!("ip link set dev {down} up"));
        let deadline = Deadline::begin();
        while tx.unsent() > 0 {
            deadline.check(|| format!("{kind}: {} packets are unsent", tx.unsent()));
            tx.send(&mut batch);
        }
        assert_eq!(sent(&*port), (RING as u64, RING as u64 * 60), "{kind}, {down} up");
        assert_eq!(in_kernel() - before, RING as u64, "{kind}, {down} up");
    }
}

/// A port waits until the XDP program of a port that is being closed is detached.
#[test]
fn a_port_waits_for_the_program_of_one_that_is_being_closed() {
    over_a_pair("leaving", open_while_closing);
}

fn open_while_closing() {
    run("ip link add q0 numrxqueues 2 numtxqueues 2 type veth peer name q1");
    run("ip link set q0 up");
    let open = |name: &str| Options::default().open([name]).map(|[port]| port);
    let first = open("xdp:q0-0?flow=udp:1").unwrap();
    let said = open("xdp:q0-1?flow=udp:2").map(drop).unwrap_err().to_string();
    assert!(said.contains("another XDP program"), "{said}");
    let opener = rustix::thread::gettid().as_raw_nonzero();
    let closing = std::thread::spawn(move || {
        // The opener sleeps between its attempts.
        let call = format!("/proc/self/task/{opener}/syscall");
        let sleep = format!("{} ", libc::SYS_clock_nanosleep);
        linerate_testkit::until("the opener to sleep", || std::fs::read_to_string(&call).unwrap().starts_with(&sleep));
        drop(first);
    });
    assert!(open("xdp:q0-1?flow=udp:2").is_ok());
    closing.join().unwrap();
}

/// Packet sockets deliver only matching packets, with their tags and receive times.
#[test]
fn packet_sockets_filter_and_stamp() {
    over_a_pair("stamps", choose_and_stamp);
}

fn choose_and_stamp() {
    let pool = pool();
    let config = |name: &str| {
        Options { ring: Some(128), timestamps: true, ..Options::default() }.of_port(name, pool.clone()).unwrap()
    };
    let open = |name: &str, flow: Option<&str>| {
        let flow = flow.map(|flow| flow.parse().unwrap());
        PacketPort::open(Interface::open(name).unwrap(), flow, config(name)).unwrap()
    };
    let (mut sender, mut receiver) = (open("v0", None), open("v1", Some("vlan:7+udp,tcp")));
    let (mut tx, mut rx) = (sender.tx(0).unwrap(), receiver.rx(0).unwrap());
    // Every third frame has a matching tag.
    let mut generator = Generator::new(128, 1);
    let mut bytes = vec![0; generator.frame_len()];
    let mut batch = Batch::new();
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let (mut meant, mut came, mut last) = (Vec::new(), Vec::new(), now());
    for n in 0.. {
        if n < 3000 {
            generator.fill(&mut bytes);
            let mut frame = bytes.clone();
            match n % 3 {
                0 => drop(frame.splice(12..12, [0x81, 0, 0, 7])),
                1 => drop(frame.splice(12..12, [0x81, 0, 0, 8])),
                _ => {}
            }
            assert!(batch.push(&pool, &frame));
            if n % 3 == 0 {
                meant.push(frame);
            }
        } else if came.len() == meant.len() {
            break;
        }
        tx.send(&mut batch);
        let mut received = Batch::new();
        rx.recv(&mut received);
        for packet in received.packets() {
            let time = packet.timestamp().expect("it was asked for");
            assert!((last..=now()).contains(&time), "{last} {time}");
            last = time;
            let mut frame = Vec::new();
            packet.append_to(&mut frame);
            came.push(frame);
        }
    }
    assert!(came == meant);
}

/// A reader that pauses while a hundred blocks of one packet each are filled loses none.
#[test]
fn packet_sockets_wait_for_a_reader() {
    over_a_pair("away", wait_for_a_reader);
}

fn wait_for_a_reader() {
    const COUNT: u64 = 100;
    let pool = pool();
    let open = |name: &str| {
        let config = Options { ring: Some(64), ..Options::default() }.of_port(name, pool.clone()).unwrap();
        PacketPort::open(Interface::open(name).unwrap(), None, config).unwrap()
    };
    let (mut sender, mut receiver) = (open("v0"), open("v1"));
    let (mut tx, mut rx) = (sender.tx(0).unwrap(), receiver.rx(0).unwrap());
    let (mut generator, mut batch) = (Generator::new(60, 1), Batch::new());
    let mut bytes = vec![0; generator.frame_len()];
    for _ in 0..COUNT {
        generator.fill(&mut bytes);
        assert!(batch.push(&pool, &bytes));
        tx.send(&mut batch);
        // The kernel closes a block after a millisecond. If it takes longer, there are just fewer blocks.
        let sent = std::time::Instant::now();
        while sent.elapsed().as_micros() < 1100 {
            std::hint::spin_loop();
        }
    }
    let mut checker = Checker::default();
    let deadline = Deadline::begin();
    while checker.report().received < COUNT {
        deadline.check(|| {
            format!("{} of {COUNT} packets were received, {:?}", checker.report().received, receiver.statistics())
        });
        rx.recv(&mut batch);
        batch.packets().for_each(|packet| checker.check(&packet));
        batch.clear();
        assert_eq!(receiver.statistics().unwrap().drops.no_descriptor, 0);
    }
    assert_eq!((checker.report().corrupted, checker.report().reordered), (0, 0));
}

/// Linux may leave segmentation of large UDP sends (`UDP_SEGMENT`, as used by QUIC servers) to the card. The port then
/// receives the same datagrams as if Linux had segmented them, except for the IP identification.
#[test]
fn large_datagrams_of_linux_come_segmented() {
    over_a_pair("segments", receive_segments);
}

fn receive_segments() {
    const SEND: &str = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.83.0.1', 4321)); \
        s.setsockopt(17, 103, 1000); s.sendto(bytes(i % 251 for i in range(5500)), ('10.83.0.2', 9))";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u32>().ok());
    // Linux before 6.2 does not pass such packets to packet sockets.
    let is_left = (numbers.next(), numbers.next()) >= (Some(6), Some(2));
    run("ip addr add 10.83.0.1/24 dev v0");
    run("ip neigh add 10.83.0.2 lladdr 02:00:00:00:00:02 dev v0");
    let pool = pool();
    let mut received = Vec::new();
    for (offloads, most) in [(false, 1), (false, 64), (true, 64)] {
        if most > 1 && !is_left {
            continue;
        }
        run(&format!("ip link set dev v0 gso_max_segs {most}"));
        let config =
            Options { ring: Some(64), offloads, ..Options::default() }.of_port("packet:v1", pool.clone()).unwrap();
        let flow = Some("udp:9".parse().unwrap());
        let mut port = PacketPort::open(Interface::open("v1").unwrap(), flow, config).unwrap();
        let (mut rx, mut batch) = (port.rx(0).unwrap(), Batch::new());
        // With offloads, one large packet is received, and the port that sends it on segments it.
        let next = Options { ring: Some(64), pool: Some(pool.clone()), ..Options::default() };
        let [mut a, mut b] =
            next.open(["sim:segments-a?wire=sim:segments-b", "sim:segments-b?wire=sim:segments-a"]).unwrap();
        let (mut sender, mut receiver, mut large) = (a.tx(0).unwrap(), b.rx(0).unwrap(), Batch::new());
        let sent = Command::new("/usr/bin/python3").args(["-c", SEND]).output().unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        let mut frames = Vec::new();
        let deadline = Deadline::begin();
        while frames.len() < 6 {
            deadline.check(|| format!("{} of 6 frames were received, {:?}", frames.len(), port.statistics()));
            if offloads {
                rx.recv(&mut large);
                sender.send(&mut large);
                receiver.recv(&mut batch);
            } else {
                rx.recv(&mut batch);
            }
            frames.extend(batch.packets().map(|packet| packet.to_vec()));
            batch.clear();
            assert_eq!(port.statistics().unwrap().drops, Default::default());
            assert_eq!(a.statistics().unwrap().drops, Default::default());
        }
        assert_eq!(port.statistics().unwrap().rx_packets, if offloads { 1 } else { 6 });
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1042, 1042, 1042, 1042, 1042, 542]);
        for frame in &mut frames {
            let sum = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
            assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "IP's checksum");
            // Ignore the identification and the header checksum.
            frame[18..20].fill(0);
            frame[24..26].fill(0);
        }
        received.push(frames);
    }
    assert!(received.windows(2).all(|both| both[0] == both[1]));
}

/// A TCP packet leaves a packet socket with any number of segments, also if a rest of it is exactly one segment, which
/// the kernel refuses as a packet to be segmented.
#[test]
fn any_number_of_segments_is_sent() {
    over_a_pair("counts", send_segments);
}

fn send_segments() {
    const SIZE: usize = 1448;
    let pool = pool();
    let options = Options { ring: Some(64), pool: Some(pool.clone()), ..Options::default() };
    let [mut near, mut far] = options.open(["packet:v0", "packet:v1?flow=tcp:4321"]).unwrap();
    let (mut tx, mut rx) = (near.tx(0).unwrap(), far.rx(0).unwrap());
    for payload in (1..=40).map(|count| count * SIZE).chain([100, SIZE - 1, SIZE + 1, 17 * SIZE + 1]) {
        let mut bytes = Vec::new();
        let ip = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
        let payload: Vec<u8> = (0..payload).map(|at| (at / 3) as u8).collect();
        ip.tcp(80, 4321, 7, 1000).write(&mut bytes, &payload).unwrap();
        let (mut batch, mut received, mut frames) = (Batch::new(), Batch::new(), Vec::new());
        assert!(batch.push(&pool, &bytes));
        let mut packet = batch.packets().next().unwrap();
        packet.leave_segments((SIZE as u16).try_into().unwrap()).unwrap();
        let (left, mut expected) = (packet.offload().unwrap(), Vec::new());
        assert!(cut(&bytes, left, |segment| expected.push(segment.to_vec())));
        let deadline = Deadline::begin();
        while frames.len() < expected.len() {
            deadline.check(|| format!("{} of {} segments arrived", frames.len(), expected.len()));
            tx.send(&mut batch);
            rx.recv(&mut received);
            frames.extend(received.packets().map(|packet| packet.to_vec()));
            received.clear();
        }
        assert!(frames == expected, "{} bytes", payload.len());
    }
    assert_eq!(near.statistics().unwrap().drops, Default::default());
}

/// Rules of an AF_XDP port decide about packets from the moment when they are added, and the exchange of the program in
/// the kernel loses no packet.
#[test]
fn rules_change_while_an_interface_receives() {
    over_a_pair("rules", change_rules);
}

fn change_rules() {
    let pool = pool();
    let config = |name: &str| Options { ring: Some(512), ..Options::default() }.of_port(name, pool.clone()).unwrap();
    // UDP from 10.0.0.1 to `port`, of a round.
    let frame = |port: u8, round: u8| {
        let mut frame = [&[2; 12][..], &[0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, port, 0, 26, 0, 0, round]);
        frame.resize(60, 0);
        frame
    };
    let mut port =
        Port::new(Xdp::open(Interface::open("v0").unwrap(), &XdpOptions::default(), config("xdp:v0")).unwrap());
    // Receives what the port leaves to the kernel.
    let kernel = PacketPort::open(Interface::open("v0").unwrap(), Some("udp".parse().unwrap()), config("packet:v0"));
    let mut kernel = Port::new(kernel.unwrap());
    let mut sender = Port::new(PacketPort::open(Interface::open("v1").unwrap(), None, config("packet:v1")).unwrap());
    let (mut rx, mut kernel_rx, mut tx) = (port.rx(0).unwrap(), kernel.rx(0).unwrap(), sender.tx(0).unwrap());
    let mut batch = Batch::new();
    let mut send = |frames: &mut dyn Iterator<Item = Vec<u8>>| {
        let mut batch = Batch::new();
        frames.for_each(|frame| assert!(batch.push(&pool, &frame)));
        tx.send_all(&mut batch, std::time::Duration::from_secs(10));
        assert!(batch.is_empty(), "{} frames were not sent", batch.len());
    };
    let mut receive = |rx: &mut RxQueue, into: &mut Vec<(u8, u8)>| {
        rx.recv(&mut batch);
        into.extend(batch.packets().map(|packet| (packet[37], packet[42])));
        batch.clear();
    };

    let filter = |text: &str| text.parse::<Filter>().unwrap();
    let rules = [
        (filter("udp:1"), Action::Kernel),
        (filter("udp:2"), Action::Drop),
        (filter("from:10.0.0.0/8+udp:1-3"), Action::Queue(0)),
        (filter("from:10.0.0.1"), Action::Drop),
    ];
    // The ports that arrive at the port and in the kernel, after each rule. Each round ends with port 9, which always
    // arrives.
    let expected: [(&[u8], &[u8]); 5] =
        [(&[1, 2, 3, 4], &[]), (&[2, 3, 4], &[1]), (&[3, 4], &[1]), (&[3, 4], &[1]), (&[3], &[1])];
    let always = port.add_rule(&filter("udp:9"), Action::Queue(0)).unwrap();
    let mut ids = Vec::new();
    for (round, (at_port, in_kernel)) in (0..).zip(expected) {
        send(&mut [1, 2, 3, 4, 9].into_iter().map(|port| frame(port, round)));
        let (mut here, mut there, deadline) = (Vec::new(), Vec::new(), Deadline::begin());
        while here.last() != Some(&(9, round)) || there.len() < in_kernel.len() {
            deadline.check(|| format!("round {round}: {at_port:?} and 9 at the port, not {here:?}; {there:?}"));
            receive(&mut rx, &mut here);
            receive(&mut kernel_rx, &mut there);
        }
        let of_round = |ports: &[u8]| ports.iter().map(|port| (*port, round)).collect::<Vec<_>>();
        assert_eq!((here, there), (of_round(&[at_port, &[9][..]].concat()), of_round(in_kernel)));
        if let Some((filter, action)) = rules.get(usize::from(round)) {
            ids.push(port.add_rule(filter, *action).unwrap());
        }
    }
    assert_eq!(port.rules().iter().map(|rule| rule.id).collect::<Vec<_>>(), [&[always][..], &ids].concat());
    ids.into_iter().for_each(|id| port.remove_rule(id).unwrap());

    // 50 exchanges, with frames before and after each.
    let (mut received, deadline) = (Vec::new(), Deadline::begin());
    for round in 0..25 {
        send(&mut (0..8).map(|_| frame(5, round)));
        let id = port.add_rule(&filter("udp:7"), Action::Drop).unwrap();
        send(&mut (0..8).map(|_| frame(5, round)));
        port.remove_rule(id).unwrap();
        while received.len() < (usize::from(round) + 1) * 16 {
            deadline.check(|| format!("{} frames, {:?}", received.len(), port.statistics()));
            receive(&mut rx, &mut received);
        }
    }
    assert_eq!((received.len(), port.statistics().unwrap().drops), (400, Default::default()));
    let mut rest = Vec::new();
    receive(&mut kernel_rx, &mut rest);
    assert_eq!(rest, [], "the kernel got no packet of the port");

    let error = port.add_rule(&filter("inner+udp:1"), Action::Drop).unwrap_err();
    assert!(error.why().contains("inner"), "{error}");
    assert_eq!(port.add_rule(&filter("udp"), Action::Queue(1)).unwrap_err().kind(), linerate::ErrorKind::NotFound);
    assert_eq!(
        port.remove_rule(always).and_then(|()| port.remove_rule(always)).unwrap_err().kind(),
        linerate::ErrorKind::NotFound
    );
}

/// Metadata needs the kernel's types. Without them, opening fails and tells why; it does not fall back to a port
/// without metadata.
#[test]
fn metadata_of_an_interface_needs_a_kernel_with_types() {
    over_a_pair("metadata", open_with_metadata);
}

fn open_with_metadata() {
    const OPTIONS: &str = "xdp:v0?metadata=on";
    let types = "/sys/kernel/btf/vmlinux";
    let opened = linerate::open([OPTIONS]);
    if std::path::Path::new(types).exists() {
        let [port] = opened.unwrap();
        assert_eq!(port.capabilities().of(Feature::ReceiveHash), Support::Offloaded);
    } else {
        let error = opened.err().expect("the kernel has no types");
        assert_eq!(error.kind(), linerate::ErrorKind::Unusable);
        assert!(error.why().contains("metadata=on is not possible") && error.why().contains(types), "{error}");
        let remedy = error.remedy().unwrap().to_string();
        assert!(remedy.contains("CONFIG_DEBUG_INFO_BTF=y") && remedy.contains("without metadata=on"), "{remedy}");
    }
    let [mut plain] = linerate::open(["xdp:v0"]).unwrap();
    assert_eq!(plain.capabilities().of(Feature::ReceiveHash), Support::None);
    let refused = plain.add_rule(&"udp".parse().unwrap(), Action::Mark(7)).unwrap_err();
    assert!(refused.remedy().is_some_and(|remedy| remedy.to_string().contains("metadata=on")), "{refused}");
}

fn schedules() {
    let pool = pool();
    let config = |name: &str| Options { ring: Some(128), ..Options::default() }.of_port(name, pool.clone()).unwrap();
    let flow = Some("udp".parse::<Filter>().unwrap());
    let xdp = Xdp::open(Interface::open("v0").unwrap(), &XdpOptions { flow, ..XdpOptions::default() }, config("v0"));
    let packet = PacketPort::open(Interface::open("v1").unwrap(), None, config("v1"));
    let ends = [End::new(Port::new(xdp.unwrap())), End::new(Port::new(packet.unwrap()))];
    let ends = std::cell::RefCell::new(ends);

    let cases = Cases { cases: 10_000, failure_persistence: None, max_shrink_iters: 0, ..Cases::default() };
    let schedule = (prop::collection::vec(step(), 1..30), prop::option::weighted(0.02, rare()));
    let ran = TestRunner::new(cases).run(&schedule, |(steps, rare)| {
        let ends = &mut *ends.borrow_mut();
        for (end, step) in steps.into_iter().chain(rare) {
            let name = ["v0", "v1"][end];
            let end = &mut ends[end];
            match step {
                Step::Send(count) => end.send(&pool, count),
                Step::Receive => end.receive(),
                Step::Clear => end.batch.clear(),
                Step::TakeRx if end.rx.is_none() => end.rx = Some(end.device.rx(0).unwrap()),
                Step::TakeTx if end.tx.is_none() => end.tx = Some(end.device.tx(0).unwrap()),
                Step::TakeRx | Step::TakeTx => {}
                Step::DropRx => end.rx = None,
                Step::DropTx => end.tx = None,
                Step::Flap => {
                    run(&format!("ip link set {name} down"));
                    end.receive();
                    end.send(&pool, 5);
                    run(&format!("ip link set {name} up"));
                }
            }
        }
        let held: usize = ends.iter().map(End::buffers).sum();
        let there = pool.available() + held;
        // An AF_XDP socket keeps buffers until both queues are open, and after one is dropped while the other is open.
        let kept = if ends[0].rx.is_some() && ends[0].tx.is_some() { 0 } else { 256 };
        prop_assert!((BUFFERS - kept..=BUFFERS).contains(&there), "{} of {} buffers", there, BUFFERS);
        Ok(())
    });
    ran.unwrap();

    let ends = ends.into_inner();
    for end in &ends {
        let report = end.checker.report();
        assert!(report.received > 10_000 && report.corrupted == 0 && report.reordered == 0, "{report:?}");
        let drops = end.device.statistics().unwrap().drops;
        assert_eq!((drops.malformed, drops.tx_too_long), (0, 0), "{drops:?}");
    }
    drop(ends);
    assert_eq!(pool.available(), BUFFERS);
}
