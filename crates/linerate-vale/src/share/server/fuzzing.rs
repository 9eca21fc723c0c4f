//! Entry point of the fuzz target for served ports: hostile clients, their requests, and their writes to their memory.

use std::sync::Arc;

use linerate_core::error::{Error, Result};
use linerate_core::fuzzing::Input;
use linerate_core::port::{Port, is_pipe, is_vale};

use super::request_handler::RequestHandler;
use super::session::Running;
use super::switches::Attached;
use super::{Server, State};
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::{Objects, Offsets, Plan, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::SharedMapping;
use crate::share::protocol::message::{ClusterRequest, MemoryChoice, OpenRequest, Request, RingSelection};
use crate::share::protocol::name::base;
use crate::share::protocol::ring::{RingAt, STATE};

/// Opens a port.
type OpenServed = fn(&str, &RingCounts) -> Result<Port>;

/// These are not interfaces of the machine.
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
/// The number of clients, each with a connection.
const PROGRAMS: usize = 3;
/// The most turns of the server after an operation.
const MOST_TURNS: usize = 64;

/// A client: its connection, and the server's state for it.
struct Program {
    handler: RequestHandler,
    running: Option<Running>,
    theirs: Connection,
}

/// Executes requests of several clients, and their writes to memory between the server's turns. Checks that each
/// request is answered, each turn ends, and all resources of the clients are freed.
pub fn fuzz(open: OpenServed, data: &[u8]) {
    let open_memory = move |name: &str, rings: &RingCounts| {
        if !is_vale(name) && !is_pipe(name) {
            return Err(Error::not_open(name));
        }
        open(name, rings)
    };
    let server = Server::new(Box::new(open_memory));
    let mut programs: Vec<Program> = (0..PROGRAMS).map(|n| program(&server.state, n as u64)).collect();
    let mut input = Input::new(data);
    while !input.is_empty() {
        let operation = input.u8();
        let program = &mut programs[usize::from(operation >> 6) % PROGRAMS];
        program.operate(operation & 0x3F, &mut input);
    }
    programs.iter_mut().for_each(Program::close);
    drop(programs);
    let State { ports, attached, .. } = &*server.state;
    lock(attached).drain(..).for_each(Attached::end);
    lock(&server.state.persistent).clear();
    assert!(lock(ports).values().all(|port| port.strong_count() == 0), "a port without a client");
    assert!(lock(&server.state.pipes).is_empty(), "a pipe without a client");
    assert!(
        lock(&server.state.sessions).iter().all(|session| session.strong_count() == 0),
        "a session without a client"
    );
}

fn program(state: &Arc<State>, number: u64) -> Program {
    // A manager, who may send every request.
    let user = rustix::process::geteuid().as_raw();
    let [ours, theirs] = Connection::pair().expect("sockets");
    let handler =
        RequestHandler { state: state.clone(), connection: Arc::new(ours), number, user, process: 1, only: None };
    Program { handler, running: None, theirs }
}

impl Program {
    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        match operation % 16 {
            0 | 1 => self.open(input),
            2 => self.ask(Request::Pools { number: input.u16() & 0xF, process: u64::from(input.u16() & 1) }),
            3 => self.close(),
            4 => self.ask(Request::Info { name: name(input) }),
            5 => {
                let set = Some(usize::from(input.u8())).filter(|&len| len < 0x80);
                self.ask(Request::Header { name: name(input), set });
            }
            6 => {
                let (name, rings) = (name(input), rings(input));
                let switch = self::name(input);
                // If switches are connected twice, packets circulate forever.
                let is_loop =
                    base(&name) == switch || lock(&self.handler.state.attached).iter().any(|there| there.port != name);
                let request = match input.u8() % 6 {
                    0 => Request::Create { name, rings },
                    1 => Request::Destroy { name },
                    2 if is_loop => Request::List,
                    2 => Request::Attach { switch, port: name, host: input.u8() & 1 != 0, rings },
                    3 => Request::Detach { switch, port: name },
                    4 => Request::Adopt,
                    _ => Request::List,
                };
                self.ask(request);
            }
            // An arbitrary message.
            7 => {
                let len = input.u8().into();
                if let Ok(request) = serde_json::from_slice::<Request>(input.bytes(len)) {
                    self.ask(request);
                }
            }
            8..=11 => self.scribble(input),
            // A packet, as a client would send it.
            12 => self.send(input),
            _ => self.turn(),
        }
    }

    fn ask(&mut self, request: Request) {
        if let Request::Open { wanted, memory } = request {
            // Descriptors that share a session need its thread, which does not exist here.
            let wanted = OpenRequest { shares: false, ..wanted };
            if self.running.is_none() {
                self.running = self.handler.open_for(&wanted, &memory).ok().flatten();
            }
            return;
        }
        let _ = self.handler.answer(request, Vec::new());
    }

    fn close(&mut self) {
        self.running.take().iter_mut().for_each(Running::end);
    }

    fn memory(&self) -> Option<&SharedMapping> {
        Some(&self.running.as_ref()?.session.memory.shared)
    }

    fn open(&mut self, input: &mut Input<'_>) {
        let flags = input.u8();
        let has = |bit: u8| flags & 1 << bit != 0;
        let ring = u16::from(flags >> 6);
        let selection = [
            RingSelection::All,
            RingSelection::Host,
            RingSelection::AllAndHost,
            RingSelection::One(ring),
            RingSelection::OneOfHost(ring),
            RingSelection::None,
        ];
        let wanted = OpenRequest {
            name: name(input),
            selection: if has(0) { input.one_of(&selection) } else { RingSelection::All },
            receive_only: has(1),
            transmit_only: has(2),
            monitor_rx: has(3),
            monitor_tx: has(4),
            exclusive: has(5),
            rings: rings(input),
            zero_copy: has(3) && has(4),
            takes_header: !has(1),
            timestamps: has(1),
            cluster: (has(0) && has(5)).then(|| ClusterRequest { shares: ring + 1, by: "flow".to_string() }),
            shares: false,
            flags: 0,
        };
        let any = input.u8();
        let objects = |input: &mut Input<'_>| Objects { count: input.u16().into(), size: input.u16().into() };
        let plan = (any & 0x40 != 0).then(|| Plan {
            ports: objects(input),
            rings: objects(input),
            buffers: objects(input),
            zones: input.u8().into(),
        });
        let mask = if any & 0x80 == 0 { 0 } else { u64::from(input.u16()) };
        let offsets = Offsets { mask, first: any.into() };
        let memory =
            MemoryChoice { number: u16::from(any & 3), process: 0, plan, extra: u32::from(any >> 2 & 7), offsets };
        self.ask(Request::Open { wanted, memory });
    }

    /// Returns the location of one of the client's rings.
    fn ring(&self, input: &mut Input<'_>) -> Option<RingAt> {
        let opened = &self.running.as_ref()?.session.opened;
        let both = [Some(&opened.layout), opened.other.as_ref()].into_iter().flatten();
        let all: Vec<RingAt> = both.flat_map(|layout| layout.tx.iter().chain(&layout.rx)).copied().flatten().collect();
        all.get(usize::from(input.u8()) % all.len().max(1)).copied()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let Some(SharedMapping { mapping, .. }) = self.memory() else { return };
        mapping.write(at % (mapping.len() - bytes.len()), bytes);
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        let Some(place) = self.ring(input) else { return };
        let kind = input.u8();
        match kind % 4 {
            // The state that client and server exchange.
            0 => {
                let field = input.one_of(&[0, 8, 12, 16, 64, 68, 72, 76, 80]);
                self.write(place.at - STATE + field, &input.u32().to_le_bytes());
            }
            1 => self.write(place.at - STATE, &u32::from(kind >> 2).to_le_bytes()),
            2 => {
                let slot = 256 + 16 * usize::from(kind >> 2);
                let word = u64::from(input.u16()) | u64::from(input.u16()) << 32 | u64::from(input.u8()) << 48;
                self.write(place.at + slot, &word.to_le_bytes());
            }
            _ => {
                let at = place.at - STATE + usize::from(input.u16()) % 1408;
                self.write(at, &input.u64().to_le_bytes());
            }
        }
    }

    /// Fills slots from the client's head on, and releases them.
    fn send(&mut self, input: &mut Input<'_>) {
        let (Some(place), Some(memory)) = (self.ring(input), self.memory()) else { return };
        let mapping = &memory.mapping;
        let (count, len) = (usize::from(input.u8() % 8), input.u16());
        let bytes = input.bytes(60);
        let mut head = [0; 4];
        mapping.read(place.at - STATE, &mut head);
        let slots = place.slots.clamp(2, 64);
        let mut at = u32::from_le_bytes(head) as usize % slots;
        for n in 0..count {
            let mut word = [0; 8];
            let slot = place.at + 256 + 16 * at;
            mapping.read(slot, &mut word);
            let buffer = u64::from_le_bytes(word) as u32;
            let more = if n + 1 < count && len & 0x8000 != 0 { 0x20u64 } else { 0 };
            mapping.write(slot, &(u64::from(buffer) | u64::from(len & 0x7FFF) << 32 | more << 48).to_le_bytes());
            if let Some(buffer) = memory.buffer(buffer) {
                mapping.write(buffer, bytes);
            }
            at = (at + 1) % slots;
        }
        mapping.write(place.at - STATE, &(at as u32).to_le_bytes());
        self.turn();
    }

    fn turn(&mut self) {
        // Neither side may wait for the other to read.
        while self.theirs.next().is_ok() {}
        let Some(Running { session, state, pump: Some(pump), .. }) = &mut self.running else { return };
        for _ in 0..MOST_TURNS {
            if pump.turn(&(&*session, &**state)) == 0 {
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

fn rings(input: &mut Input<'_>) -> RingCounts {
    let few = |byte: u8| u16::from(byte % 4);
    let any = input.u8();
    let slots = if any & 0x80 != 0 { u32::from(input.u16()) } else { 64 };
    RingCounts {
        tx: few(any),
        rx: few(any >> 2),
        host_tx: few(any >> 4),
        host_rx: few(any >> 4),
        tx_slots: slots,
        rx_slots: slots,
    }
}
