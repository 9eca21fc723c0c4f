//! Entry points of the fuzz targets: frame headers, and a hostile client of a served card.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use linerate_cards::vfio_user::{
    Connection, DmaMap, DmaUnmap, InLine, MAP_READ, MAP_WRITE, RegionAccess, SetInterrupts, UNMAP_ALL, Version, command,
};
use linerate_core::fuzzing::Input;
use linerate_core::memory::Mapping;
use linerate_core::port::Rss;
use linerate_spec::x82599::*;
use zerocopy::IntoBytes;

use super::headers::Headers;
use super::offload::{Context, Wanted};
use super::rss::Toeplitz;
use super::wire::Frame;
use super::{Card, Function, checksum, from_fn, offload};

/// Registers that the target sets: the filters' registers, with their counts.
const FILTERS: [(u32, u16); 19] = [
    (ETQF::OFFSET, 8),
    (SYNQF::OFFSET, 1),
    (FTQF::OFFSET, 128),
    (SAQF::OFFSET, 128),
    (DAQF::OFFSET, 128),
    (SDPQF::OFFSET, 128),
    (L34TIMIR::OFFSET, 128),
    (FDIRCTRL::OFFSET, 1),
    (FDIRHASH::OFFSET, 1),
    (FDIRIPSA::OFFSET, 1),
    (FDIRIPDA::OFFSET, 1),
    (FDIRPORT::OFFSET, 1),
    (FDIRVLAN::OFFSET, 1),
    (FDIRCMD::OFFSET, 1),
    (FDIRM::OFFSET, 1),
    (FDIRSIP4M::OFFSET, 1),
    (FDIRDIP4M::OFFSET, 1),
    (FDIRTCPM::OFFSET, 1),
    (FDIRUDPM::OFFSET, 1),
];

thread_local! {
    static CARD: Arc<Card> = Card::new("fuzzed", from_fn(|_| (), |_| false));
    static TOEPLITZ: Toeplitz = Toeplitz::new(&Rss::DEFAULT_KEY);
}

/// Tests filter registers, a context descriptor and a frame. Parsed headers must be inside the frame, the hash must
/// match its definition, and segments must contain the payload exactly once.
pub fn headers(data: &[u8]) {
    let mut input = Input::new(data);
    let count = input.u8() % 8;
    let set: Vec<(u32, u32)> = (0..count)
        .map(|_| {
            let (offset, count) = input.one_of(&FILTERS);
            (offset + 4 * u32::from(u16::from(input.u8()) % count), input.u32())
        })
        .collect();
    let (mrqc, flags, masks) = (input.u32(), input.u8(), input.u32().to_le_bytes());
    let context = Context::parse([input.u64(), input.u64()]);
    let anywhere = (flags & 8 != 0).then_some((usize::from(masks[2]), usize::from(masks[3])));
    let frame = input.rest();

    let headers = Headers::parse(frame);
    assert!(headers.end <= frame.len().max(headers.network + 40));
    assert!(headers.transport.is_none_or(|at| at + 8 <= frame.len()));
    let _ = (headers.addresses(frame), headers.ports(frame), checksum::check(frame, &headers));
    if let Some((_, bytes, len)) = headers.hash_input(frame, mrqc) {
        let hash = TOEPLITZ.with(|toeplitz| toeplitz.hash(&bytes[..len]));
        assert_eq!(hash, toeplitz(&Rss::DEFAULT_KEY, &bytes[..len]));
    }
    CARD.with(|card| {
        set.iter().for_each(|&(offset, value)| card.write(offset, value));
        let _ = card.blocks().director.direct(&card.board.registers, frame, &headers);
        set.iter().for_each(|&(offset, _)| card.write(offset, 0));
    });

    let wanted = Wanted {
        context,
        ip_checksum: flags & 1 != 0,
        transport_checksum: flags & 2 != 0,
        segments: flags & 4 != 0,
        flags: [masks[0], masks[1], masks[2]],
        anywhere,
    };
    let mut finished = frame.to_vec();
    if offload::insert_checksums(&mut finished, &wanted).is_ok() {
        let most = if wanted.ip_checksum { 2 } else { 0 } + if anywhere.is_some() { 2 } else { 0 } + 4;
        assert!(finished.iter().zip(frame).filter(|(a, b)| a != b).count() <= most);
    }
    let (mut segment, mut payload) = (Frame::default(), 0);
    let plain = Wanted { anywhere: None, ..wanted };
    let cut = offload::cut(frame, &plain, &mut segment, |segment| {
        assert!(segment.bytes.len() > context.headers() && segment.bytes.len() <= context.headers() + context.mss);
        payload += segment.bytes.len() - context.headers();
    });
    if cut.is_ok() {
        assert_eq!(payload, frame.len() - context.headers());
    }
    offload::insert_tag(&mut finished, mrqc as u16, flags.into());
}

/// Computes the hash bit by bit, according to its definition.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], n: usize| bytes.get(n / 8).is_some_and(|byte| byte & 0x80 >> (n % 8) != 0);
    let window = |at: usize| (0..32).fold(0, |word, n| word << 1 | u32::from(bit(key, at + n)));
    (0..input.len() * 8).filter(|&n| bit(input, n)).fold(0, |hash, n| hash ^ window(n))
}

/// The guest's memory in bytes, and vfio's region numbers.
const GUEST: usize = 64 << 10;
const REGISTERS: u32 = 0;
const CONFIG: u32 = 7;
/// The most frames waiting on the wire, which returns the card's frames to it.
const MOST_FRAMES: usize = 32;
const BUDGET: usize = 64;

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

struct Served {
    card: Arc<Card>,
    server: InLine,
    guest: Mapping,
    frames: Frames,
}

fn lock(frames: &Frames) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
    frames.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Served {
    fn new() -> Served {
        let frames = Frames::default();
        let (sent, come) = (frames.clone(), frames.clone());
        let transmit = move |frame: &Frame| {
            let mut frames = lock(&sent);
            if frames.len() < MOST_FRAMES {
                frames.push_back(frame.bytes.clone());
            }
        };
        let receive = move |frame: &mut Frame| match lock(&come).pop_front() {
            Some(bytes) => {
                *frame = Frame { bytes, bad_crc: false };
                true
            }
            None => false,
        };
        let card = Card::of_kind(super::CardKind::default(), 2, "served", from_fn(transmit, receive));
        let server = InLine::new(Box::new(Function::new(card.clone()).unwrap()));
        let guest = Mapping::lazy(GUEST).expect("memory");
        Served { card, server, guest, frames }
    }
}

thread_local! {
    static SERVED: std::cell::RefCell<Served> = std::cell::RefCell::new(Served::new());
}

/// The client's end. Messages are passed to the server directly; bytes that may be malformed go through a socket.
struct Client<'a> {
    sockets: Option<(Connection, Connection)>,
    served: &'a mut Served,
}

impl Client<'_> {
    /// Sends a message, and receives the reply.
    fn ask(&mut self, command: u16, parts: &[&[u8]], descriptors: Vec<OwnedFd>) {
        if let Ok(reply) = self.served.server.answer(command, parts.concat(), descriptors) {
            assert!(reply.len() <= 8192);
        }
    }

    /// Sends bytes that may be malformed. Returns false once the connection is closed.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let (own, theirs) = self.sockets.get_or_insert_with(|| {
            let (own, theirs) = UnixStream::pair().expect("sockets");
            own.set_nonblocking(true).and(theirs.set_nonblocking(true)).expect("sockets");
            (Connection::new(own), Connection::new(theirs))
        });
        if !bytes.is_empty() {
            let _ = rustix::net::send(own.socket(), bytes, rustix::net::SendFlags::NOSIGNAL);
        }
        let mut turns = 0;
        while has_news(theirs) {
            turns += 1;
            assert!(turns < 1 << 16, "the server never reads everything");
            if !self.served.server.receive(theirs) {
                return false;
            }
        }
        while has_news(own) {
            if let Ok(Some(reply)) = own.receive() {
                assert!(reply.payload.len() <= 8192 && reply.descriptors.is_empty());
            }
        }
        true
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        self.ask(command::REGION_WRITE, &[access.as_bytes(), bytes], Vec::new());
    }

    /// Returns the guest's memory as a file.
    fn guest(&self) -> OwnedFd {
        self.served.guest.file().try_clone_to_owned().expect("a descriptor")
    }

    /// Starts the card as a driver does: maps memory at 0, and enables the first queue each way.
    fn bring_up(&mut self) {
        let map = DmaMap { argsz: 32, flags: MAP_READ | MAP_WRITE, offset: 0, address: 0, size: GUEST as u64 };
        self.ask(command::DMA_MAP, &[map.as_bytes()], vec![self.guest()]);
        self.write(CONFIG, 4, &[0x06, 0x04]);
        for (offset, value) in [
            (FCTRL::OFFSET, FCTRL::UPE | FCTRL::MPE | FCTRL::BAM),
            (RDBAL::at(0), 0x1000),
            (RDLEN::at(0), 1024),
            (SRRCTL::at(0), SRRCTL::DESCTYPE_ADVANCED | 2),
            (RXDCTL::at(0), RXDCTL::ENABLE),
            (RXCTRL::OFFSET, RXCTRL::RXEN),
            (DMATXCTL::OFFSET, DMATXCTL::TE | 0x8100_0000),
            (TDBAL::at(0), 0x2000),
            (TDLEN::at(0), 1024),
            (TXDCTL::at(0), TXDCTL::ENABLE),
        ] {
            self.write(REGISTERS, offset.into(), &value.to_le_bytes());
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) -> bool {
        match input.u8() % 10 {
            0 => {
                let (offset, value) = (u64::from(input.u16()) * 4, input.u32());
                self.write(REGISTERS, offset, &value.to_le_bytes());
            }
            // Writes guest memory: packets, and descriptors of its rings.
            1 => {
                let (at, len) = (usize::from(input.u16()) % GUEST, usize::from(input.u8()));
                self.served.guest.write(at, input.bytes(len.min(GUEST - at)));
            }
            2 => {
                let len = usize::from(input.u8());
                lock(&self.served.frames).push_back(input.bytes(len).to_vec());
            }
            3 => {
                let (region, offset, count) = (input.u8().into(), input.u32().into(), input.u16().into());
                let access = RegionAccess { region, offset, count };
                let (command, len) = (input.one_of(&[command::REGION_READ, command::REGION_WRITE]), input.u8().into());
                self.ask(command, &[access.as_bytes(), input.bytes(len)], Vec::new());
            }
            4 => {
                let map = DmaMap {
                    argsz: 32,
                    flags: input.u8().into(),
                    offset: u64::from(input.u8()) << 10,
                    address: input.u64(),
                    size: u64::from(input.u8()) << 10,
                };
                let files = match input.u8() % 8 {
                    0 => Vec::new(),
                    1 => vec![std::fs::File::open("/dev/null").expect("a file").into()],
                    2 => vec![self.guest(), self.guest()],
                    _ => vec![self.guest()],
                };
                self.ask(command::DMA_MAP, &[map.as_bytes()], files);
            }
            5 => {
                let flags = if input.u8() == 0 { UNMAP_ALL } else { 0 };
                let unmap = DmaUnmap { argsz: 24, flags, address: input.u64(), size: input.u64() };
                self.ask(command::DMA_UNMAP, &[unmap.as_bytes()], Vec::new());
            }
            6 => {
                let (flags, index, start, count) = (input.u8().into(), input.u8().into(), input.u32(), input.u32());
                let set = SetInterrupts { argsz: 20, flags, index, start, count };
                let event = || {
                    linerate_core::event::Interrupt::new()
                        .and_then(|event| {
                            event.as_fd().try_clone_to_owned().map_err(|e| linerate_core::Error::system("dup", e))
                        })
                        .expect("an eventfd")
                };
                let files = match input.u8() % 4 {
                    0 => Vec::new(),
                    1 => vec![self.guest()],
                    _ => vec![event(), event()],
                };
                let len = input.u8().into();
                self.ask(command::DEVICE_SET_IRQS, &[set.as_bytes(), input.bytes(len)], files);
            }
            7 => {
                let (command, len) = (input.u8().into(), input.u8().into());
                self.ask(command, &[input.bytes(len)], Vec::new());
            }
            8 => {
                let len = input.u8().into();
                return self.send(input.bytes(len));
            }
            _ => {
                let moved = self.served.card.step(BUDGET);
                assert!(moved <= 2 * BUDGET, "{moved} frames in one step");
            }
        }
        true
    }
}

fn has_news(connection: &Connection) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut event = [PollFd::new(connection.socket(), PollFlags::IN)];
    poll(&mut event, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

/// Runs a client's messages, its concurrent writes to its memory, and frames from the wire. Each message must be
/// answered in bounded time, and no memory may stay mapped after the client has disconnected.
pub fn vfio_user(data: &[u8]) {
    let mut input = Input::new(data);
    SERVED.with_borrow_mut(|served| {
        served.guest.write(0, &[0; GUEST]);
        let mut client = Client { sockets: None, served };
        let start = input.u8();
        if start & 1 == 0 {
            client.ask(command::VERSION, &[Version { major: 0, minor: 1 }.as_bytes()], Vec::new());
        }
        if start & 2 == 0 {
            client.bring_up();
        }
        while !input.is_empty() && client.operate(&mut input) {}
        client.served.card.step(BUDGET);
        served.server.end();
        lock(&served.frames).clear();
        assert!(!served.card.board.dma.maps().covers(0, 1), "memory of a client that is gone");
    });
}
