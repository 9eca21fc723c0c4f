//! Entry of the fuzz target of served ports: hostile programs, their requests, and what they write into their memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::{Server, Session, State, base};
use crate::error::{Error, Result};
use crate::fuzzing::Input;
use crate::port::Device;
use crate::shared::area::{Area, Objects, Offsets, Placed, Plan, Rings};
use crate::shared::lock;
use crate::shared::message::{Connection, Reply, Request, Wanted, Which};
use crate::shared::ring::Place;

/// How ports are opened.
type OpenServed = fn(&str, &Rings) -> Result<Box<dyn Device>>;

/// No interface of the machine is among them.
const NAMES: [&str; 12] = [
    "vale0:a",
    "vale0:b",
    "vale1:a",
    "fuzz{1",
    "fuzz}1",
    "vale0:a{2",
    "vale0:a}2",
    "lasting",
    "vale0",
    "vale0:",
    "",
    "x:y",
];
/// Programs, each with a connection.
const PROGRAMS: usize = 3;
/// Turns of the server after an operation.
const MOST_TURNS: usize = 64;

thread_local! {
    /// Memory of programs that are gone.
    static FREE: std::cell::RefCell<Vec<Area>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A program: its memory, what it has been told of it, and its session.
struct Program<'a> {
    session: Session<'a>,
    area: Area,
    rings: Rings,
    placed: Vec<Placed>,
    _connection: Connection,
}

fn plan() -> Plan {
    let usual = Plan::default();
    let objects = |count, objects: Objects| Objects { count, ..objects };
    Plan { ports: objects(4, usual.ports), rings: objects(8, usual.rings), buffers: objects(1024, usual.buffers) }
}

/// Requests of several programs, and what they write into their memory between the server's turns: each request is
/// answered, each turn ends, and when all programs are gone the buffers are in their pools again.
pub(crate) fn fuzz(open: OpenServed, data: &[u8]) {
    let open_memory = move |name: &str, rings: &Rings| {
        if !name.starts_with("vale") && !name.contains(['{', '}']) {
            return Err(Error::NotOpen { port: name.to_string() });
        }
        open(name, rings)
    };
    let server = Server::new(Box::new(open_memory));
    let connections: Vec<_> = (0..PROGRAMS)
        .map(|_| {
            let [ours, theirs] = Connection::pair().expect("sockets");
            (Arc::new(ours), theirs)
        })
        .collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = connections.into_iter().unzip();
    let mut programs: Vec<Program<'_>> =
        ours.iter().zip(theirs).map(|(ours, theirs)| program(&server.state, ours, theirs)).collect();
    let mut input = Input::new(data);
    while !input.is_empty() {
        let operation = input.u8();
        let program = &mut programs[usize::from(operation >> 6) % PROGRAMS];
        program.operate(operation & 0x3F, &mut input);
    }
    for Program { mut session, area, placed, .. } in programs {
        session.close();
        drop(session);
        // As it was, but for what is in buffers.
        area.memory.mapping.write(0, &[0; 0x2000]);
        for place in placed.iter().flat_map(|placed| placed.tx.iter().chain(&placed.rx)).flatten() {
            area.memory.mapping.write(place.at % (area.plan.rings_at() + area.plan.rings.size), &[0; 256]);
        }
        area.reset();
        FREE.with_borrow_mut(|free| free.push(area));
    }
    let State { ports, attached, .. } = &*server.state;
    lock(attached).drain(..).for_each(super::Attached::end);
    lock(&server.state.lasting).clear();
    assert!(lock(ports).values().all(|port| port.strong_count() == 0), "a port that no program has");
    assert!(lock(&server.state.pipes).is_empty(), "a pipe that no program has");
}

fn program<'a>(state: &'a State, connection: &'a Arc<Connection>, theirs: Connection) -> Program<'a> {
    // A manager: it may ask for everything.
    let user = rustix::process::geteuid().as_raw();
    let session = Session { state, connection, user, only: None, work: None, served: None, pipe: None, shadow: None };
    let area = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Area::new(plan()).expect("memory"));
    Program { session, area, rings: Rings::default(), placed: Vec::new(), _connection: theirs }
}

impl Program<'_> {
    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        match operation % 16 {
            0 | 1 => self.open(input),
            2 => self.start(input),
            3 => self.ask(Request::Close, Vec::new()),
            4 => self.ask(Request::Info { name: name(input) }, Vec::new()),
            5 => {
                let set = Some(usize::from(input.u8())).filter(|&len| len < 0x80);
                self.ask(Request::Header { name: name(input), set }, Vec::new());
            }
            6 => {
                let (name, rings) = (name(input), rings(input));
                let switch = self::name(input);
                // Packets go round for ever where switches are connected twice.
                let is_loop =
                    base(&name) == switch || lock(&self.session.state.attached).iter().any(|there| there.port != name);
                let request = match input.u8() % 6 {
                    0 => Request::Create { name, rings },
                    1 => Request::Destroy { name },
                    2 if is_loop => Request::List,
                    2 => Request::Attach { switch, port: name, host: input.u8() & 1 != 0, rings },
                    3 => Request::Detach { switch, port: name },
                    4 => Request::Shadow,
                    _ => Request::List,
                };
                self.ask(request, Vec::new());
            }
            // A message as it comes, with memory or without.
            7 => {
                let len = input.u8().into();
                let descriptors = if input.u8() & 1 == 0 { Vec::new() } else { vec![self.memory()] };
                if let Ok(request) = serde_json::from_slice::<Request>(input.bytes(len)) {
                    self.ask(request, descriptors);
                }
            }
            8..=11 => self.scribble(input),
            // A packet, as a program sends it.
            12 => self.send(input),
            _ => self.turn(),
        }
    }

    fn ask(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        // A pipe that another one is making is waited for: here nobody makes it meanwhile.
        let is_coming = |name: &str| {
            let pipes = lock(&self.session.state.pipes);
            matches!(pipes.get(&super::pipe_of(name).0), Some(super::Pipe::Coming))
        };
        if matches!(&request, Request::Open(wanted) if is_coming(&wanted.name)) {
            return;
        }
        if let Ok((reply, _)) = self.session.answer(request, descriptors)
            && let Reply::Opened { rings, .. } | Reply::Joined { rings, .. } = reply
        {
            self.rings = rings;
        }
    }

    fn memory(&self) -> OwnedFd {
        self.area.memory.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    fn open(&mut self, input: &mut Input<'_>) {
        let flags = input.u8();
        let has = |bit: u8| flags & 1 << bit != 0;
        let ring = u16::from(flags >> 6);
        let which = [Which::All, Which::Host, Which::AllAndHost, Which::One(ring), Which::OneOfHost(ring), Which::None];
        let wanted = Wanted {
            name: name(input),
            which: if has(0) { input.one_of(&which) } else { Which::All },
            receive_only: has(1),
            transmit_only: has(2),
            monitor_rx: has(3),
            monitor_tx: has(4),
            exclusive: has(5),
            rings: rings(input),
            takes_header: !has(1),
        };
        self.ask(Request::Open(wanted), Vec::new());
    }

    /// Hands over rings: as a program places them, or any.
    fn start(&mut self, input: &mut Input<'_>) {
        let (flags, plain) = (input.u8(), self.area.memory.buffers);
        let rings = Rings { tx: self.rings.tx.min(2), rx: self.rings.rx.min(2), ..self.rings };
        let (tx_slots, rx_slots) = (rings.tx_slots.clamp(2, 64), rings.rx_slots.clamp(2, 64));
        let rings = Rings { host_tx: 0, host_rx: 0, tx_slots, rx_slots, ..rings };
        let mask = if flags & 1 == 0 { 0 } else { u64::from(input.u16()) };
        let offsets = Offsets { mask, first: u64::from(flags) };
        let place = || self.area.place("fuzzed", &rings, |_| true, |_| true, offsets);
        let Ok(mut placed) = place() else { return };
        let mut other = place().unwrap_or_else(|_| placed.clone());
        let mut buffers = plain;
        if flags & 2 != 0 {
            let any = Place { at: input.u32() as usize, slots: input.u16().into() };
            let target = if flags & 4 != 0 { &mut placed } else { &mut other };
            target.tx.push(Some(any));
            target.rx.insert(0, Some(any));
        }
        if flags & 8 != 0 {
            buffers.at = input.u32() as usize;
            buffers.size = input.u32() as usize;
            buffers.count = input.u16().into();
        }
        self.placed.extend([placed.clone(), other.clone()]);
        let descriptors = if flags & 16 == 0 { vec![self.memory()] } else { Vec::new() };
        let request = match self.session.pipe.is_some() ^ (flags & 32 != 0) {
            true => Request::StartPipe { buffers, master: placed, slave: other },
            false => Request::Start { buffers, placed },
        };
        self.ask(request, descriptors);
    }

    /// Where a ring of the program's is.
    fn ring(&self, input: &mut Input<'_>) -> Option<Place> {
        let all: Vec<Place> =
            self.placed.iter().flat_map(|placed| placed.tx.iter().chain(&placed.rx)).copied().flatten().collect();
        let place = *all.get(usize::from(input.u8()) % all.len().max(1))?;
        (place.at + 256 + 16 * 64 <= self.area.memory.mapping.len()).then_some(place)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let mapping = &self.area.memory.mapping;
        mapping.write(at % (mapping.len() - bytes.len()), bytes);
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        let Some(place) = self.ring(input) else { return };
        let kind = input.u8();
        match kind % 4 {
            // What the two sides tell each other.
            0 => {
                let field = input.one_of(&[128, 132, 136, 140, 192, 196, 200, 204]);
                self.write(place.at + field, &input.u32().to_le_bytes());
            }
            1 => self.write(place.at + 128, &u32::from(kind >> 2).to_le_bytes()),
            2 => {
                let slot = 256 + 16 * usize::from(kind >> 2);
                let word = u64::from(input.u16()) | u64::from(input.u16()) << 32 | u64::from(input.u8()) << 48;
                self.write(place.at + slot, &word.to_le_bytes());
            }
            _ => {
                let at = place.at + usize::from(input.u16()) % 1280;
                self.write(at, &input.u64().to_le_bytes());
            }
        }
    }

    /// Fills slots from the program's head on, and releases them.
    fn send(&mut self, input: &mut Input<'_>) {
        let Some(place) = self.ring(input) else { return };
        let mapping = &self.area.memory.mapping;
        let (count, len) = (usize::from(input.u8() % 8), input.u16());
        let bytes = input.bytes(60);
        let mut head = [0; 4];
        mapping.read(place.at + 128, &mut head);
        let slots = place.slots.clamp(2, 64);
        let mut at = u32::from_le_bytes(head) as usize % slots;
        for n in 0..count {
            let mut word = [0; 8];
            let slot = place.at + 256 + 16 * at;
            mapping.read(slot, &mut word);
            let buffer = u64::from_le_bytes(word) as u32;
            let more = if n + 1 < count && len & 0x8000 != 0 { 0x20u64 } else { 0 };
            mapping.write(slot, &(u64::from(buffer) | u64::from(len & 0x7FFF) << 32 | more << 48).to_le_bytes());
            if let Some(buffer) = self.area.memory.buffer(buffer) {
                mapping.write(buffer, bytes);
            }
            at = (at + 1) % slots;
        }
        mapping.write(place.at + 128, &(at as u32).to_le_bytes());
        self.turn();
    }

    fn turn(&mut self) {
        let Some(work) = &mut self.session.work else { return };
        for _ in 0..MOST_TURNS {
            if work.turn() == 0 {
                break;
            }
        }
    }
}

fn name(input: &mut Input<'_>) -> String {
    match input.u8() {
        any @ 0xF0.. => String::from_utf8_lossy(input.bytes(usize::from(any & 0xF))).into_owned(),
        known => NAMES[usize::from(known) % NAMES.len()].to_string(),
    }
}

fn rings(input: &mut Input<'_>) -> Rings {
    let few = |byte: u8| u16::from(byte % 4);
    let any = input.u8();
    let slots = if any & 0x80 != 0 { u32::from(input.u16()) } else { 64 };
    Rings {
        tx: few(any),
        rx: few(any >> 2),
        host_tx: few(any >> 4),
        host_rx: few(any >> 4),
        tx_slots: slots,
        rx_slots: slots,
    }
}
