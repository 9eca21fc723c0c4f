//! A card served over vfio-user, with clients that send malformed messages, overwrite memory, and die.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use linerate::pci::{Bar, Bus, PciDevice};
use linerate::sim82599::{Cable, Card, Function, Runner, Traffic};
use linerate::spec::x82599::*;
use linerate::vfio_user::{Server, VfioUser};
use linerate::{Batch, Options};
use linerate_testkit::{Deadline, until};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;

/// A served card.
struct Bench {
    card: Arc<Card>,
    path: PathBuf,
    _runner: Option<Runner>,
    _server: Server,
    _folder: TempDir,
}

impl Bench {
    fn new(wire: Box<dyn linerate::sim82599::Wire>, runs: bool) -> Bench {
        let card = Card::of_kind(Default::default(), 1, "served", wire);
        let runner = runs.then(|| Runner::start().unwrap());
        if let Some(runner) = &runner {
            runner.run(&card);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let server = Server::start(&path, Box::new(Function::new(card.clone()).unwrap())).unwrap();
        Bench { card, path, _runner: runner, _server: server, _folder: folder }
    }

    fn connect(&self) -> Arc<VfioUser> {
        VfioUser::connect(self.path.to_str().unwrap()).unwrap()
    }

    fn stranger(&self) -> Stranger {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(linerate_testkit::TIME_LIMIT)).unwrap();
        Stranger { socket, id: 0 }
    }

    /// Checks that the server still works: a correct client finds the card in its power-on state.
    fn assert_serves(&self) {
        let client = self.connect();
        assert_eq!(client.identity().unwrap(), (0x8086, 0x10FB));
        // SAFETY: no memory is mapped for the card.
        let bar = unsafe { client.bar(0) }.unwrap();
        assert_eq!((bar.read(CTRL::OFFSET), bar.read(RXDCTL::at(0)), bar.read(VLNCTRL::OFFSET)), (0, 0, 0x8100));
    }
}

/// A client that sends raw protocol messages.
struct Stranger {
    socket: UnixStream,
    id: u16,
}

/// A reply: its error, and the bytes after its header.
type Reply = (u32, Vec<u8>);

impl Stranger {
    fn raw(
        &mut self,
        command: u16,
        flags: u32,
        size: Option<u32>,
        payload: &[u8],
        descriptor: Option<&OwnedFd>,
    ) -> bool {
        self.id = self.id.wrapping_add(1);
        let mut bytes = Vec::new();
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend(size.unwrap_or(16 + payload.len() as u32).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(payload);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let slices = [std::io::IoSlice::new(&bytes)];
        sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL).is_ok_and(|sent| sent == bytes.len())
    }

    /// Returns the reply; `None` once the server has closed the connection.
    fn reply(&mut self) -> Option<Reply> {
        let mut header = [0; 16];
        self.socket.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut payload).ok()?;
        assert_eq!(word(0) as u16, self.id, "a reply to another message");
        Some((if word(8) & 1 << 5 != 0 { word(12) } else { 0 }, payload))
    }

    fn call(&mut self, command: u16, payload: &[u8], descriptor: Option<&OwnedFd>) -> Reply {
        assert!(self.raw(command, 0, None, payload, descriptor));
        self.reply().expect("a reply")
    }

    fn greet(&mut self) {
        let (error, reply) = self.call(1, b"\0\0\x01\0{\"capabilities\":{}}\0", None);
        assert_eq!((error, &reply[..4]), (0, &b"\0\0\x01\0"[..]));
        assert!(reply.ends_with(b"}\0"));
    }

    /// Disconnects this client, and connects the next one.
    fn replaced(self, bench: &Bench) -> Stranger {
        drop(self);
        let mut next = bench.stranger();
        next.greet();
        next
    }

    fn map(&mut self, address: u64, size: u64, offset: u64, flags: u32, file: &OwnedFd) -> u32 {
        let mut payload = Vec::new();
        payload.extend(32u32.to_le_bytes());
        payload.extend(flags.to_le_bytes());
        [offset, address, size].iter().for_each(|value| payload.extend(value.to_le_bytes()));
        self.call(2, &payload, Some(file)).0
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) -> u32 {
        let mut payload = Vec::new();
        payload.extend(offset.to_le_bytes());
        payload.extend(region.to_le_bytes());
        payload.extend((bytes.len() as u32).to_le_bytes());
        payload.extend(bytes);
        self.call(10, &payload, None).0
    }
}

/// Makes a client's shared memory.
fn memory(pages: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, pages * 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    file
}

const EINVAL: u32 = 22;

#[test]
fn the_driver_forwards_over_vfio_user() {
    let traffic = || Box::new(Traffic::new(Default::default(), None, Some(5_000)));
    let (a, b) = (Bench::new(traffic(), true), Bench::new(traffic(), true));
    let names = [&a, &b].map(|bench| format!("vfio-user:{}", bench.path.display()));
    let [mut left, mut right] = Options::default().open([&*names[0], &*names[1]]).unwrap();
    assert!(left.info().description.contains("82599") && left.info().description.contains("vfio-user"));
    let mut ways = [(left.rx(0).unwrap(), right.tx(0).unwrap()), (right.rx(0).unwrap(), left.tx(0).unwrap())];
    let mut batch = Batch::new();
    let done = |bench: &Bench| bench.card.wire_report().unwrap().received == 5_000;
    let deadline = Deadline::begin();
    while !(done(&a) && done(&b)) {
        deadline.check(|| {
            let reports = [&a, &b].map(|bench| (bench.card.frames(), bench.card.wire_report(), bench.card.breaches()));
            format!("5,000 frames at each wire: {reports:?}")
        });
        for (rx, tx) in &mut ways {
            rx.recv(&mut batch);
            let deadline = Deadline::begin();
            while !batch.is_empty() {
                deadline.check(|| format!("{} packets cannot be sent", batch.len()));
                tx.send(&mut batch);
            }
        }
    }
    for bench in [&a, &b] {
        let report = bench.card.wire_report().unwrap();
        assert_eq!((report.lost, report.corrupted, report.reordered), (0, 0, 0));
        assert_eq!(bench.card.breaches(), []);
    }
}

#[test]
fn a_card_in_use_is_refused_and_free_again_afterwards() {
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let first = bench.connect();
    let message = VfioUser::connect(bench.path.to_str().unwrap()).map(drop).unwrap_err().with_hint();
    assert!(message.contains("another client is using the device"), "{message}");
    // SAFETY: no memory is mapped for the card.
    unsafe { first.bar(0) }.unwrap().write(VLNCTRL::OFFSET, 0x1234);
    drop(first);
    bench.assert_serves();
}

/// Connections that send nothing, or only part of a message, do not keep a client from connecting.
#[test]
fn silent_connections_keep_no_client_out() {
    use std::io::Write;
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut socket = std::os::unix::net::UnixStream::connect(&bench.path).unwrap();
        socket.write_all(&[0, 0, 1, 0, 64][..n % 2 * 5]).unwrap();
        silent.push(socket);
    }
    bench.assert_serves();
}

/// The next client finds pins that only a power cycle resets, and a card that was unplugged, in their power-on state.
#[test]
fn the_next_client_finds_a_card_as_after_power_on() {
    let bench = Bench::new(Box::new(Cable::pair().0), false);
    let client = bench.connect();
    // SAFETY: no memory is mapped for the card.
    let bar = unsafe { client.bar(0) }.unwrap();
    bar.write(ESDP::OFFSET, 0x0808);
    assert_eq!(bar.read(ESDP::OFFSET) & 0x0808, 0x0808);
    bar.write(CTRL::OFFSET, CTRL::RST);
    assert_eq!(bar.read(ESDP::OFFSET) & 0x0808, 0x0808, "a reset does not change it");
    bench.card.unplug();
    drop((bar, client));
    bench.assert_serves();
    let client = bench.connect();
    // SAFETY: as above.
    let bar = unsafe { client.bar(0) }.unwrap();
    assert_eq!(bar.read(ESDP::OFFSET), 0);
}

#[test]
fn invalid_socket_paths_are_explained() {
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let function = || Box::new(Function::new(bench.card.clone()).unwrap());
    let message = Server::start(&bench.path, function()).map(drop).unwrap_err().with_hint();
    assert!(message.contains("a server is listening there already"), "{message}");
    let message = Server::start("/proc/nothing/here".as_ref(), function()).map(drop).unwrap_err().with_hint();
    assert!(message.contains("choose a path"), "{message}");
    // A socket left by a killed server is replaced.
    let old = bench.path.with_file_name("old");
    drop(std::os::unix::net::UnixListener::bind(&old).unwrap());
    Server::start(&old, function()).map(drop).unwrap();
    assert!(!old.exists(), "it is removed with its server");
    let message = VfioUser::connect("/nowhere").map(drop).unwrap_err().with_hint();
    assert!(
        message.contains("no server can be reached") && message.contains("start a server at /nowhere"),
        "{message}"
    );
}

#[test]
fn registers_read_as_ones_after_the_server_ends() {
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let client = bench.connect();
    // SAFETY: no memory is mapped for the card.
    let bar = unsafe { client.bar(0) }.unwrap();
    assert_eq!(bar.read(STATUS::OFFSET), 0x0008_0000);
    drop(bench);
    assert_eq!(bar.read(STATUS::OFFSET), u32::MAX);
    bar.write(CTRL::OFFSET, 0);
    assert!(client.identity().unwrap_err().with_hint().contains("start a server"));
}

/// Configuration space works as PCI requires: function-level reset, bus mastering, BAR sizes, capabilities.
#[test]
fn configuration_space_matches_a_card() {
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let client = bench.connect();
    let read = |offset: u16| {
        let mut bytes = [0; 4];
        client.read_config(offset, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    for (bar, size) in [(0x10, 512u32 << 10), (0x20, 16 << 10)] {
        // SAFETY: no memory is mapped for the card.
        unsafe { client.write_config(bar, &u32::MAX.to_le_bytes()) }.unwrap();
        assert_eq!(!(read(bar) & !0xF) + 1, size);
    }
    let (mut at, mut ids) = (read(0x34) & 0xFF, Vec::new());
    while at != 0 {
        let header = read(at as u16);
        ids.push(header as u8);
        at = header >> 8 & 0xFF;
    }
    assert_eq!(ids, [0x01, 0x05, 0x11, 0x10], "power management, MSI, MSI-X, PCI Express");
    assert_eq!((read(0x100) & 0xFFFF, read(0x140) & 0xFFFF), (1, 3), "errors, serial number");
    // After a function-level reset, everything is in its power-on state and must be configured again.
    // SAFETY: no memory is mapped for the card.
    let registers = unsafe { client.bar(0) }.unwrap();
    registers.write(VLNCTRL::OFFSET, 0x1234);
    // SAFETY: as above.
    unsafe { client.write_config(0xA8, &0x8000u16.to_le_bytes()) }.unwrap();
    assert_eq!((registers.read(VLNCTRL::OFFSET), read(0x04) & 0x7), (0x8100, 0));
    // SAFETY: as above.
    let message = unsafe { client.map_bar(0) }.map(drop).unwrap_err().with_hint();
    assert!(message.contains("cannot be mapped"), "{message}");
    assert!(client.interrupts(65).is_err() && client.interrupts(64).is_ok());
}

#[test]
fn malformed_messages_get_errors_and_later_ones_replies() {
    let bench = Bench::new(Box::new(Cable::unplugged()), false);
    let mut stranger = bench.stranger();
    assert_eq!(stranger.call(4, &[0; 16], None).0, EINVAL, "no command before the version");
    assert_eq!(stranger.call(1, b"\x07\0\0\0{}\0", None).0, EINVAL, "another version");
    stranger.greet();
    let file = memory(4);
    for (name, error) in [
        ("short", stranger.call(2, &[0; 8], None).0),
        ("no page", stranger.map(0x1001, 4096, 0, 3, &file)),
        ("beyond the file", stranger.map(0x1000, 5 * 4096, 0, 3, &file)),
        ("beyond the file by its offset", stranger.map(0x1000, 4096, 4 * 4096, 3, &file)),
        ("an end that overflows", stranger.map(u64::MAX - 4095, 4096, 0, 3, &file)),
        ("empty", stranger.map(0x1000, 0, 0, 3, &file)),
        ("unknown flags", stranger.map(0x1000, 4096, 0, 0x80, &file)),
        ("a region that is absent", stranger.write(1, 0, &[0; 4])),
        ("an invalid region", stranger.write(99, 0, &[0; 4])),
        ("beyond the region", stranger.write(0, (512 << 10) - 2, &[0; 4])),
        ("an offset that overflows", stranger.write(0, u64::MAX - 1, &[0; 4])),
        ("interrupts beyond the last", {
            let mut payload = Vec::new();
            [20u32, 0x24, 2, 60, 10].iter().for_each(|word| payload.extend(word.to_le_bytes()));
            stranger.call(8, &payload, None).0
        }),
    ] {
        assert_eq!(error, EINVAL, "{name}");
    }
    assert_ne!(stranger.call(77, &[], None).0, 0, "an unknown command");
    // Shrinkable memory could crash the server, so it is rejected.
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&open, 1 << 20).unwrap();
    assert_eq!(stranger.map(0x1000, 4096, 0, 3, &open), EINVAL);
    // Overlapping maps, and unmaps that would split a map, are rejected.
    assert_eq!(stranger.map(0x10000, 8192, 0, 3, &file), 0);
    assert_eq!(stranger.map(0x11000, 8192, 0, 3, &file), EINVAL);
    let mut part = Vec::new();
    part.extend([24u32.to_le_bytes(), 0u32.to_le_bytes()].concat());
    part.extend([0x10000u64.to_le_bytes(), 4096u64.to_le_bytes()].concat());
    assert_eq!(stranger.call(3, &part, None).0, EINVAL);
    // A message with an excessive length ends only its connection.
    assert!(stranger.raw(9, 0, Some(u32::MAX), &[], None));
    assert!(stranger.reply().is_none());
    bench.assert_serves();
}

#[test]
fn a_client_that_dies_at_any_byte_leaves_a_free_card() {
    let bench = Bench::new(Box::new(Cable::unplugged()), true);
    let mut message = Vec::new();
    message.extend([1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(b"\0\0\x01\0{}\0");
    message[4] = message.len() as u8;
    for len in 0..=message.len() {
        let mut socket = UnixStream::connect(&bench.path).unwrap();
        socket.write_all(&message[..len]).unwrap();
        drop(socket);
        if len % 8 == 0 {
            bench.assert_serves();
        }
    }
    bench.assert_serves();
}

/// The model reports buffers in memory that was never mapped, and a ring that is unmapped while frames are in flight.
/// The card keeps working.
#[test]
fn removed_maps_are_noted() {
    let bench = Bench::new(Box::new(Traffic::new(Default::default(), None, None)), true);
    let mut stranger = bench.stranger();
    stranger.greet();
    let file = memory(64);
    assert_eq!(stranger.map(0x10_0000, 64 * 4096, 0, 3, &file), 0);
    let set = |stranger: &mut Stranger, offset: u32, value: u32| {
        assert_eq!(stranger.write(0, offset.into(), &value.to_le_bytes()), 0);
    };
    assert_eq!(stranger.write(7, 4, &6u16.to_le_bytes()), 0);
    for (offset, value) in [
        (HLREG0::OFFSET, HLREG0::RXCRCSTRP | HLREG0::JUMBOEN),
        (MAXFRS::OFFSET, 1518 << MAXFRS::MFS_SHIFT),
        (FCTRL::OFFSET, FCTRL::UPE | FCTRL::MPE | FCTRL::BAM),
        (SRRCTL::at(0), 2 | SRRCTL::DESCTYPE_ADVANCED),
        (RDBAL::at(0), 0x10_0000),
        (RDLEN::at(0), 256 * 16),
        (RXDCTL::at(0), RXDCTL::ENABLE),
        (RXCTRL::OFFSET, RXCTRL::RXEN),
    ] {
        set(&mut stranger, offset, value);
    }
    // All descriptors are zero, so frames go to address 0, which is not mapped.
    set(&mut stranger, RDT::at(0), 200);
    let noted = |name: &str| bench.card.breaches().iter().any(|breach| breach.to_string().starts_with(name));
    until("unmapped memory", || noted("Unmapped {"));
    let mut all = Vec::new();
    all.extend([24u32.to_le_bytes(), 4u32.to_le_bytes()].concat());
    all.extend([0; 16]);
    assert_eq!(stranger.call(3, &all, None).0, 0);
    set(&mut stranger, RDT::at(0), 100);
    until("the unmapped ring", || noted("UnmappedInUse"));
    drop(stranger);
    bench.assert_serves();
}

/// The card does not block when raising an interrupt would block: the event's counter is full, since the client does
/// not read it.
#[test]
fn a_full_receiver_does_not_block_the_card() {
    let bench = Bench::new(Box::new(Cable::unplugged()), true);
    let mut stranger = bench.stranger();
    stranger.greet();
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    // Vector 0 of MSI-X (index 2), by descriptor.
    let set = [20u32, 1 << 2 | 1 << 5, 2, 0, 1].map(u32::to_le_bytes).concat();
    // Other files are rejected, since raising an interrupt would write to them.
    let (_reader, writer) = std::io::pipe().unwrap();
    assert_eq!(stranger.call(8, &set, Some(&OwnedFd::from(writer))).0, EINVAL);
    assert_eq!(stranger.call(8, &set, Some(&full)).0, 0);
    assert_eq!(stranger.write(7, 4, &6u16.to_le_bytes()), 0);
    for (offset, value) in [
        (GPIE::OFFSET, GPIE::MULTIPLE_MSIX),
        (EIMS::OFFSET, 1),
        (EICS::OFFSET, 1),
        (EICR::OFFSET, 1),
        (EICS::OFFSET, 1),
    ] {
        assert_eq!(stranger.write(0, offset.into(), &value.to_le_bytes()), 0);
    }
    drop(stranger);
    bench.assert_serves();
}

/// Sends 200,000 messages of all kinds, most of them nearly valid. Meanwhile clients connect and disconnect with
/// their memory and interrupts, and the card runs with whatever they set up.
#[test]
fn random_messages_harm_no_other_client() {
    const MESSAGES: u32 = 200_000;
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let bench = Bench::new(Box::new(Traffic::new(Default::default(), None, None)), true);
    let file = memory(256);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let mut stranger = bench.stranger();
    stranger.greet();
    let (mut sent, mut connections) = (0, 1);
    let offsets: Vec<u32> = MAP.iter().map(|register| register.offset).collect();
    let deadline = Deadline::begin();
    while sent < MESSAGES {
        deadline.check(|| format!("{sent} of {MESSAGES} messages were answered"));
        let kind = random() % 100;
        let no_reply = if random().is_multiple_of(2) { 1 << 4 } else { 0 };
        let mut payload = Vec::new();
        let mut descriptor = None;
        let mut size = None;
        let command = match kind {
            // Important registers with any value.
            0..60 => {
                let n = (random() % 4) as u32;
                let (offset, value) = match random() % 8 {
                    0 => (RDT::OFFSET + 0x40 * n, random() as u32 % 600),
                    1 => (TDT::OFFSET + 0x40 * n, random() as u32 % 600),
                    2 => (RDBAL::OFFSET + 0x40 * n, (random() as u32 % 300) * 4096),
                    3 => (TDBAL::OFFSET + 0x40 * n, (random() as u32 % 300) * 4096),
                    4 => (RXDCTL::OFFSET + 0x40 * n, RXDCTL::ENABLE & random() as u32),
                    5 => (TXDCTL::OFFSET + 0x40 * n, TXDCTL::ENABLE & random() as u32),
                    6 => (RDLEN::OFFSET + 0x40 * n, 1 << (random() % 20)),
                    _ => (offsets[random() as usize % offsets.len()] + 4 * n, random() as u32),
                };
                // An occasional reset is enough.
                let value = if offset == CTRL::OFFSET && !random().is_multiple_of(50) { 0 } else { value };
                payload.extend(u64::from(offset).to_le_bytes());
                payload.extend(0u32.to_le_bytes());
                payload.extend(4u32.to_le_bytes());
                payload.extend(value.to_le_bytes());
                10
            }
            60..75 => {
                payload.extend((random() % (600 << 10)).to_le_bytes());
                payload.extend((random() as u32 % 10).to_le_bytes());
                payload.extend((random() as u32 % 5000).to_le_bytes());
                9
            }
            75..80 => {
                let place = |random: &mut dyn FnMut() -> u64| (random() % 300) * 4096;
                payload.extend(32u32.to_le_bytes());
                payload.extend((random() as u32 % 4).to_le_bytes());
                for _ in 0..3 {
                    payload.extend(place(&mut random).to_le_bytes());
                }
                descriptor = Some(&file);
                2
            }
            80..85 => {
                payload.extend(24u32.to_le_bytes());
                payload.extend(((random() as u32 % 2) * 4).to_le_bytes());
                payload.extend(((random() % 300) * 4096).to_le_bytes());
                payload.extend(((random() % 300) * 4096).to_le_bytes());
                3
            }
            85..90 => {
                let words = [20, 1 << (random() % 6), random() as u32 % 6, random() as u32 % 70, random() as u32 % 70];
                words.iter().for_each(|word| payload.extend(word.to_le_bytes()));
                descriptor = random().is_multiple_of(2).then_some(&event);
                8
            }
            90..97 => {
                let len = random() as usize % 64;
                payload.extend((0..len).map(|_| random() as u8));
                (random() % 20) as u16
            }
            97 => {
                size = Some(random() as u32 % 8192);
                9
            }
            98 => 13,
            _ => {
                stranger = stranger.replaced(&bench);
                connections += 1;
                continue;
            }
        };
        sent += 1;
        let alive = stranger.raw(command, no_reply, size, &payload, descriptor)
            && (no_reply != 0 || size.is_some() || stranger.reply().is_some());
        // A message with a false length makes the connection unusable.
        if !alive || size.is_some() {
            stranger = stranger.replaced(&bench);
            connections += 1;
        }
    }
    drop(stranger);
    println!("{sent} messages in {connections} connections, {} breaches noted", bench.card.breach_count());
    bench.assert_serves();
    // The card must still move frames.
    let [mut port] = Options::default().open([&*format!("vfio-user:{}", bench.path.display())]).unwrap();
    let (mut rx, mut batch, mut received) = (port.rx(0).unwrap(), Batch::new(), 0);
    let deadline = Deadline::begin();
    while received < 10_000 {
        deadline.check(|| format!("{received} of 10,000 frames were received, {:?}", port.statistics()));
        received += rx.recv(&mut batch);
        batch.clear();
    }
}

/// Runs in a separate process, which uses up its descriptors.
#[test]
fn a_client_that_comes_when_descriptors_run_out_is_served_later() {
    const OF_ITS_OWN: &str = "LINERATE_FEW_DESCRIPTORS";
    if std::env::var_os(OF_ITS_OWN).is_none() {
        let this = "a_client_that_comes_when_descriptors_run_out_is_served_later";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", this]).env(OF_ITS_OWN, "1").output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    }
    let bench = Bench::new(Box::new(Cable::pair().0), false);
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut all: Vec<OwnedFd> = std::iter::from_fn(|| socket.try_clone().ok()).collect();
    rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&bench.path).unwrap()).unwrap();
    let mut stranger = Stranger { socket: UnixStream::from(socket), id: 0 };
    assert!(stranger.raw(1, 0, None, b"\0\0\x01\0{\"capabilities\":{}}\0", None));
    stranger.socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let used = || {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: there is room for the result, for which all zeros are valid.
        let (result, usage) = unsafe { (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), usage.assume_init()) };
        assert_eq!(result, 0);
        [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum::<i64>()
    };
    let before = used();
    assert_eq!(stranger.reply(), None, "there is no descriptor for it");
    assert!(used() - before < 500_000, "the server polls for it all the time");
    all.truncate(all.len() - 8);
    stranger.socket.set_read_timeout(Some(linerate_testkit::TIME_LIMIT)).unwrap();
    assert_eq!(stranger.reply().expect("it is served").0, 0);
}
