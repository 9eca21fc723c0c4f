//! A port that another process serves, in this one: its rings, in memory that both have.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::area::{Area, Lent, Offsets, Placed, Rings};
use super::forward::forward;
use super::indirect::Fetched;
use super::lock;
use super::memory::Memory;
use super::message::{Bell, Connection, PortState, Reply, Request, Wanted, Which};
use super::ring::{self, MAX_FRAGS, NR_TIMESTAMP, NS_BUF_CHANGED, NS_MOREFRAG, Place, Producer, Program, Ring, Slot};
use super::server::{base, connect_to};
use super::shadow::Copier;
use crate::error::{Error, Result};
use crate::port::MacAddress;

/// The folder of the sockets: `$LINERATE_PORTS`, or `/run/linerate/ports` for root, or a folder of the user's.
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("LINERATE_PORTS") {
        return folder.into();
    }
    match (rustix::process::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR")) {
        (true, _) => "/run/linerate/ports".into(),
        (false, Some(folder)) => Path::new(&folder).join("linerate/ports"),
        (false, None) => format!("/tmp/linerate-{}/ports", rustix::process::geteuid().as_raw()).into(),
    }
}

/// The socket of all names that have none of their own.
pub const ANY: &str = "any";

/// Where to ask for a port of this name: who serves its switch or interface, or all of them.
fn sockets(folder: &Path, name: &str) -> [PathBuf; 2] {
    [folder.join(base(name)), folder.join(ANY)]
}

/// A connection to who serves ports.
pub struct Client {
    connection: Connection,
    /// One asks at a time.
    asking: Mutex<()>,
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        Client { connection: Connection::new(socket), asking: Mutex::default() }
    }

    /// Connects to who serves ports of this name; `None` if nobody does.
    ///
    /// # Errors
    /// [`Error::Serve`] if it does not let us in.
    pub fn find(folder: &Path, name: &str) -> Result<Option<Client>> {
        for socket in sockets(folder, name) {
            if let Some(socket) = connect_to(&socket)? {
                return Ok(Some(Client::new(socket)));
            }
        }
        Ok(None)
    }

    /// All who serve ports there.
    ///
    /// # Errors
    /// [`Error::Serve`] if one does not let us in.
    pub fn all(folder: &Path) -> Result<Vec<Client>> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
        let mut clients = Vec::new();
        for entry in entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            clients.extend(connect_to(&entry.path())?.map(Client::new));
        }
        Ok(clients)
    }

    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>)> {
        let _asking = lock(&self.asking);
        let gone = |error| Error::System { call: "asking who serves the port", source: error };
        self.connection.send(request, descriptors).map_err(gone)?;
        match self.connection.receive::<Reply>().map_err(gone)? {
            (Reply::Refused { why, errno }, _) => Err(Error::Refused { why, errno }),
            answer => Ok(answer),
        }
    }

    fn done(&self, request: &Request) -> Result<u32> {
        match self.ask(request, &[])?.0 {
            Reply::Done { number } => Ok(number),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// How many rings a port has.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn info(&self, name: &str) -> Result<Rings> {
        match self.ask(&Request::Info { name: name.to_string() }, &[])?.0 {
            Reply::Info { rings } => Ok(rings),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// How long the header of virtio-net's is in front of a port's packets; sets it first, if wanted.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        self.done(&Request::Header { name: name.to_string(), set })
    }

    /// Attaches a port of the machine to a switch, with its host's stack if wanted; tells its number.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn attach(&self, switch: &str, port: &str, host: bool, rings: Rings) -> Result<u32> {
        self.done(&Request::Attach { switch: switch.to_string(), port: port.to_string(), host, rings })
    }

    /// Takes it off again.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn detach(&self, switch: &str, port: &str) -> Result<u32> {
        self.done(&Request::Detach { switch: switch.to_string(), port: port.to_string() })
    }

    /// Makes a port that stays when nobody has it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn create(&self, name: &str, rings: Rings) -> Result<()> {
        self.done(&Request::Create { name: name.to_string(), rings }).map(drop)
    }

    /// Takes it away.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.done(&Request::Destroy { name: name.to_string() }).map(drop)
    }

    /// All ports that it serves.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn list(&self) -> Result<Vec<PortState>> {
        match self.ask(&Request::List, &[])?.0 {
            Reply::List(list) => Ok(list),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// Opens a port, in memory of this process, or of the other end's if it is a pipe that is there.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::AreaFull`].
    pub fn open(self, wanted: Wanted, area: &Arc<Area>, offsets: Offsets) -> Result<SharedPort> {
        let missing = || Error::BadPeer { why: "a descriptor is missing" };
        let (reply, mut descriptors) = self.ask(&Request::Open(wanted.clone()), &[])?;
        let (name, which) = (wanted.full_name(), wanted.which);
        let lease = |placed: Vec<Placed>| Some(Lease { area: area.clone(), placed });
        let buffers = area.memory.buffers;
        let mut start = |request: &Request| {
            descriptors = self.ask(request, &[area.memory.as_fd()])?.1;
            Ok::<_, Error>(area.memory.clone())
        };
        let (rings, mac, memory, placed, other, lease) = match reply {
            Reply::Opened { rings, first_of_pipe: false, mac } => {
                let monitors = wanted.monitor_rx || wanted.monitor_tx;
                let placed = area.place(
                    &name,
                    &rings,
                    |n| which.has(n, rings.tx) && !wanted.receive_only && !monitors,
                    |n| which.has(n, rings.rx) && !wanted.transmit_only,
                    offsets,
                )?;
                let lease = lease(vec![placed.clone()]);
                let memory = start(&Request::Start { buffers, placed: placed.clone() })?;
                (rings, mac, memory, placed, None, lease)
            }
            Reply::Opened { rings, mac, .. } => {
                let card = |n: u16| n < rings.tx;
                let mine = area.place(&name, &rings, card, card, offsets)?;
                let mut lease = lease(vec![mine.clone()]);
                let other = area.place(&other_end(&name), &rings, card, card, offsets)?;
                lease.iter_mut().for_each(|lease| lease.placed.push(other.clone()));
                let (master, slave) = if name.contains('{') { (&mine, &other) } else { (&other, &mine) };
                let (master, slave) = (master.clone(), slave.clone());
                let memory = start(&Request::StartPipe { buffers, master, slave })?;
                (rings, mac, memory, mine, Some(other), lease)
            }
            Reply::Joined { mine, .. } if offsets.mask != 0 && offsets.mask != mine.offset_mask => {
                let why = "the pipe's other end has packets begin elsewhere".to_string();
                return Err(Error::Refused { why, errno: libc::EINVAL });
            }
            Reply::Joined { rings, buffers, mine, other } => {
                let memory = if descriptors.is_empty() { None } else { Some(descriptors.remove(0)) };
                let memory = Memory::of_peer(memory.ok_or_else(missing)?, buffers)?;
                (rings, [0; 6], memory, mine, Some(other), None)
            }
            _ => return Err(Error::BadPeer { why: "its answer is another's" }),
        };
        let bell = Bell::new(descriptors.pop().ok_or_else(missing)?);
        let sides = Sides::new(&memory, &placed, other.as_ref())?;
        let mac = MacAddress(mac);
        Ok(SharedPort { client: Some(self), wanted, rings, mac, memory, placed, lease, sides, bell })
    }
}

/// The name of a pipe's other end.
fn other_end(name: &str) -> String {
    match name.contains('}') {
        true => name.replace('}', "{"),
        false => name.replace('{', "}"),
    }
}

/// What a port has of an area; it is free when this is dropped.
struct Lease {
    area: Arc<Area>,
    placed: Vec<Placed>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.placed.iter().for_each(|placed| self.area.remove(placed));
    }
}

/// A port that another process serves.
pub struct SharedPort {
    /// Who serves it; nobody a port to ask about.
    client: Option<Client>,
    wanted: Wanted,
    rings: Rings,
    mac: MacAddress,
    memory: Arc<Memory>,
    placed: Placed,
    lease: Option<Lease>,
    sides: Sides,
    bell: Bell,
}

/// Its rings, of the card and then of the host.
struct Sides {
    tx: Vec<Option<Mutex<Transmit>>>,
    rx: Vec<Option<Mutex<Program>>>,
}

/// A transmit ring; that of a pipe ends in the other end's receive ring.
struct Transmit {
    program: Program,
    pipe: Option<Through>,
    fetched: Fetched,
}

/// How far a pipe's transmit ring is moved into the other end's receive ring.
struct Through {
    other: Producer,
    done: usize,
    /// Slots that were moved of a packet whose end was not.
    beginning: usize,
    /// Which shadow the pipe has, as was last seen, and where copies go then.
    shadow: u32,
    copier: Option<Copier>,
}

impl Sides {
    fn new(memory: &Arc<Memory>, mine: &Placed, other: Option<&Placed>) -> Result<Sides> {
        let ring = |place: &Place| {
            let offset_mask = mine.offset_mask;
            Ring::new(memory, *place).map(|ring| Ring { offset_mask, ..ring })
        };
        let transmit = |(n, place): (usize, &Option<Place>)| {
            let Some(place) = place else { return Ok(None) };
            let pipe = match other {
                None => None,
                Some(other) => {
                    let place = other.rx.get(n).and_then(Option::as_ref);
                    let place = place.ok_or(Error::BadPeer { why: "its pipe has no other end" })?;
                    Some(Through { other: Producer::new(ring(place)?), done: 0, beginning: 0, shadow: 0, copier: None })
                }
            };
            let mut transmit = Transmit { program: Program::new(ring(place)?), pipe, fetched: Fetched::default() };
            if let Some(pipe) = &mut transmit.pipe {
                // All of the ring is free: nobody else knows how far it was.
                pipe.done = transmit.program.head();
                transmit.program.all_free();
            }
            Ok(Some(Mutex::new(transmit)))
        };
        let receive =
            |place: &Option<Place>| place.as_ref().map(|place| Ok(Mutex::new(Program::new(ring(place)?)))).transpose();
        Ok(Sides {
            tx: mine.tx.iter().enumerate().map(transmit).collect::<Result<_>>()?,
            rx: mine.rx.iter().map(receive).collect::<Result<_>>()?,
        })
    }
}

impl Transmit {
    /// Hands over what the program has released, and wakes who takes it.
    ///
    /// # Errors
    /// [`Error::BadRing`].
    #[inline(always)]
    fn hand_over(&mut self, bell: &Bell) -> Result<()> {
        let moved = self.program.tell()?;
        let must_wake = match &mut self.pipe {
            Some(pipe) => pipe.swap(&mut self.program) && pipe.other.ring.must_wake_program(),
            None => moved && self.program.must_ring(),
        };
        if must_wake {
            bell.ring();
        }
        Ok(())
    }
}

/// Gives back what the program has released of a receive ring, and wakes who waits for it.
///
/// # Errors
/// [`Error::BadRing`].
#[inline(always)]
fn give_back(program: &mut Program, bell: &Bell) -> Result<()> {
    if program.tell()? && program.must_ring() {
        bell.ring();
    }
    Ok(())
}

impl Through {
    /// Exchanges the buffers of what the program has released for free ones of the other end, which is told of whole packets;
    /// tells whether there were any.
    #[inline(always)]
    fn swap(&mut self, program: &mut Program) -> bool {
        let (mut free, ring) = (self.other.free(), &program.ring);
        let (mut at, mut moved) = (self.other.tail(), 0);
        while self.done != program.head() && free > 0 {
            let (mut ours, mut theirs) = (ring.slot(self.done), self.other.ring.slot(at));
            // What the other process has put there is no buffer, perhaps; nor what the program has.
            if ring.memory.buffer(theirs.buffer).is_some() && ring.bytes(self.done, ours).is_some() {
                if let Some(copier) = &mut self.copier {
                    copier.copy(ring, self.done, ours);
                }
                std::mem::swap(&mut ours.buffer, &mut theirs.buffer);
                let there = Slot { buffer: theirs.buffer, len: ours.len, flags: ours.flags | NS_BUF_CHANGED };
                self.other.ring.set_slot(at, there);
                if ring.offset_mask != 0 {
                    self.other.ring.set_offset(at, ring.offset(self.done));
                }
                ring.set_slot(self.done, Slot { flags: NS_BUF_CHANGED, ..ours });
                at = self.other.ring.next(at);
                (free, moved) = (free - 1, moved + 1);
                self.beginning = if there.has_more() { self.beginning + 1 } else { 0 };
            }
            self.done = ring.next(self.done);
        }
        self.other.pass(moved);
        // A packet that fills the other end's ring alone is told of in parts, or it would never pass.
        let is_all = self.beginning + 1 >= self.other.ring.place.slots;
        self.beginning = if is_all { 0 } else { self.beginning };
        if moved > 0 {
            self.other.tell_but(self.beginning);
        }
        if let Some(copier) = &mut self.copier {
            copier.hand_over();
        }
        program.done(self.done);
        moved > 0
    }
}

impl SharedPort {
    /// A port that nobody serves, and that has no rings: what it has is memory (`NR_REG_NULL`).
    ///
    /// # Errors
    /// [`Error::AreaFull`].
    pub fn null(wanted: Wanted, area: &Arc<Area>) -> Result<SharedPort> {
        let rings = Rings { host_tx: 0, host_rx: 0, ..wanted.rings };
        let placed = area.place(&wanted.name, &rings, |_| false, |_| false, Offsets::default())?;
        let lease = Some(Lease { area: area.clone(), placed: vec![placed.clone()] });
        let [bell, _] = Bell::pair().map_err(|error| Error::system("socketpair", error))?;
        let (memory, mac) = (area.memory.clone(), MacAddress::default());
        let sides = Sides::new(&memory, &placed, None)?;
        Ok(SharedPort { client: None, wanted, rings, mac, memory, placed, lease, sides, bell })
    }

    /// What it was opened as.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// How many rings the port has; not all of them are here, perhaps.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Its address.
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Where the rings and packets are.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where its description is.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Chains buffers that are in no ring; tells how many there were.
    pub fn extra_buffers(&self, count: u32) -> u32 {
        self.lease.as_ref().map_or(0, |lease| lease.area.extra(&self.placed, count))
    }

    /// Hands over what the program has released of its transmit rings, and learns what is free (`NIOCTXSYNC`).
    ///
    /// # Errors
    /// [`Error::BadRing`] if the program has set head or cur where they cannot be.
    pub fn sync_tx(&self) -> Result<()> {
        let mut result = Ok(());
        for (number, transmit) in self.sides.tx.iter().enumerate() {
            let Some(transmit) = transmit else { continue };
            let transmit = &mut *lock(transmit);
            self.look_for_monitors(number, transmit);
            result = transmit.hand_over(&self.bell).and(result);
            let program = &mut transmit.program;
            program.learn();
            transmit.fetched.put_back(program);
            stamp(&program.ring);
        }
        result
    }

    /// A pipe that has monitors, or none any more, is another one from now on.
    #[inline(always)]
    fn look_for_monitors(&self, number: usize, transmit: &mut Transmit) {
        let Some(pipe) = &mut transmit.pipe else { return };
        let shadow = transmit.program.ring.shadow();
        if shadow != pipe.shadow {
            pipe.shadow = shadow;
            pipe.copier = self.shadow(number).ok().flatten();
            pipe.copier.iter_mut().filter(|_| pipe.beginning > 0).for_each(Copier::skip);
        }
    }

    #[cold]
    fn shadow(&self, number: usize) -> Result<Option<Copier>> {
        let Some(client) = &self.client else { return Ok(None) };
        let (Reply::Shadow { buffers, places }, descriptors) = client.ask(&Request::Shadow, &[])? else {
            return Err(Error::BadPeer { why: "its answer is another's" });
        };
        match (<[OwnedFd; 2]>::try_from(descriptors), places.get(number)) {
            (Ok([memory, bell]), Some(place)) => Copier::new(memory, bell, buffers, *place).map(Some),
            _ => Ok(None),
        }
    }

    /// Fetches packets that are not in their buffers (`NS_INDIRECT`), of what the program has released of its transmit rings
    /// since the last sync: `read` copies from an address of the program's.
    pub fn fetch(&self, mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>) {
        let Some(lease) = &self.lease else { return };
        for transmit in self.sides.tx.iter().flatten() {
            let Transmit { program, fetched, .. } = &mut *lock(transmit);
            fetched.fetch(program, &lease.area, &mut read);
        }
    }

    /// What is marked of the packets that the program has released passes between the card and the host's stack, if both
    /// are open here.
    fn forward(&self) {
        if self.wanted.which != Which::AllAndHost {
            return;
        }
        let (cards, hosts) = (usize::from(self.rings.rx), self.rings.tx.into());
        for (number, program) in self.sides.rx.iter().enumerate() {
            // Ring by ring, to the rings of the other that there are.
            let targets = if number < cards { hosts..self.sides.tx.len() } else { 0..hosts };
            let target = targets.start + (number % cards) % targets.len().max(1);
            let (Some(program), Some(Some(transmit))) = (program, self.sides.tx.get(target)) else { continue };
            let transmit = &mut *lock(transmit);
            transmit.program.learn();
            if forward(&lock(program), &transmit.program) {
                // It is where it can be, between head and tail.
                let _ = transmit.hand_over(&self.bell);
            }
        }
    }

    /// Gives back what the program has released of its receive rings, and learns what has come (`NIOCRXSYNC`).
    ///
    /// # Errors
    /// As [`sync_tx`](SharedPort::sync_tx).
    pub fn sync_rx(&self) -> Result<()> {
        let mut result = Ok(());
        self.forward();
        for program in self.sides.rx.iter().flatten() {
            let program = &mut *lock(program);
            result = give_back(program, &self.bell).and(result);
            program.learn();
            stamp(&program.ring);
        }
        result
    }

    /// Hands over what has come on a receive ring, packet by packet, each as where its parts are, until `each` has no room
    /// for one; tells how many it took.
    pub(super) fn take(&self, number: usize, mut each: impl FnMut(&Memory, &[(usize, usize)]) -> bool) -> usize {
        let Some(program) = self.sides.rx.get(number).and_then(Option::as_ref) else { return 0 };
        let program = &mut *lock(program);
        program.learn();
        let (mut taken, mut parts) = (0, Vec::new());
        let (mut at, mut head) = (program.head(), program.head());
        while at != program.tail() {
            let slot = program.ring.slot(at);
            parts.extend(program.ring.bytes(at, slot));
            at = program.ring.next(at);
            if slot.has_more() {
                continue;
            }
            if !each(&self.memory, &parts) {
                break;
            }
            parts.clear();
            (head, taken) = (at, taken + 1);
        }
        if taken > 0 {
            program.set(head as u32, head as u32);
            // It is where it can be, between head and tail.
            let _ = give_back(program, &self.bell);
        }
        taken
    }

    /// Puts packets on a transmit ring, one after the other: `next` is called with how many bytes there is room for, and
    /// fills in the next packet, or has none that fits. Tells how many there were.
    pub(super) fn put(
        &self,
        number: usize,
        bytes: &mut Vec<u8>,
        mut next: impl FnMut(usize, &mut Vec<u8>) -> bool,
    ) -> usize {
        let Some(transmit) = self.sides.tx.get(number).and_then(Option::as_ref) else { return 0 };
        let transmit = &mut *lock(transmit);
        self.look_for_monitors(number, transmit);
        let program = &mut transmit.program;
        program.learn();
        let size = self.memory.buffers.size;
        let (mut head, mut put) = (program.head(), 0);
        loop {
            let free = program.ring.distance(head, program.tail());
            bytes.clear();
            if !next(free.min(MAX_FRAGS) * size, bytes) {
                break;
            }
            let count = bytes.len().div_ceil(size);
            for (n, part) in bytes.chunks(size).enumerate() {
                let buffer = program.ring.slot(head).buffer;
                if let Some(at) = self.memory.buffer(buffer) {
                    self.memory.mapping.write(at, part);
                }
                let flags = if n + 1 < count { NS_MOREFRAG } else { 0 };
                program.ring.set_slot(head, Slot { buffer, len: part.len() as u16, flags });
                head = program.ring.next(head);
            }
            put += 1;
        }
        program.set(head as u32, head as u32);
        // It is where it can be, between head and tail.
        let _ = transmit.hand_over(&self.bell);
        put
    }

    /// Slots of a pipe's transmit ring that found no room at the other end yet; they are lost if the port is closed now.
    pub(super) fn unsent(&self, number: usize) -> usize {
        let Some(transmit) = self.sides.tx.get(number).and_then(Option::as_ref) else { return 0 };
        let Transmit { program, pipe, .. } = &*lock(transmit);
        pipe.as_ref().map_or(0, |pipe| program.ring.distance(pipe.done, program.head()))
    }

    /// Head and tail of a ring that is there, as they were at the last sync.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn indices(&self, receives: bool, number: usize) -> (u32, u32) {
        self.with(receives, number, |program| (program.head() as u32, program.tail() as u32))
    }

    /// Sets head and cur of a ring that is there, as its program would.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn set_head(&self, receives: bool, number: usize, head: u32, cur: u32) {
        self.with(receives, number, |program| program.set(head, cur));
    }

    #[track_caller]
    fn with<T>(&self, receives: bool, number: usize, work: impl FnOnce(&mut Program) -> T) -> T {
        let absent = "the ring is there";
        match receives {
            true => work(&mut lock(self.sides.rx[number].as_ref().expect(absent))),
            false => work(&mut lock(self.sides.tx[number].as_ref().expect(absent)).program),
        }
    }

    /// True if a transmit ring has room behind cur.
    pub fn can_send(&self) -> bool {
        self.sides.tx.iter().flatten().any(|transmit| lock(transmit).program.is_ready())
    }

    /// True if a receive ring has something behind cur.
    pub fn can_receive(&self) -> bool {
        self.sides.rx.iter().flatten().any(|program| lock(program).is_ready())
    }

    /// From now on [`event`](SharedPort::event) becomes readable when there is room to send, or something to receive; sync
    /// and look once more before you sleep.
    pub fn arm(&self, send: bool, receive: bool) {
        for transmit in self.sides.tx.iter().flatten() {
            let transmit = lock(transmit);
            match &transmit.pipe {
                // What does not fit is moved on when there is room, even if nobody waits for that.
                Some(pipe) if send || pipe.done != transmit.program.head() => pipe.other.ring.wait_for_program(),
                None if send => transmit.program.wait(),
                _ => {}
            }
        }
        if receive {
            self.sides.rx.iter().flatten().for_each(|program| lock(program).wait());
        }
    }

    /// Takes it back.
    pub fn disarm(&self) {
        self.sides.tx.iter().flatten().for_each(|transmit| lock(transmit).program.wait_no_more());
        self.sides.rx.iter().flatten().for_each(|program| lock(program).wait_no_more());
        self.bell.silence();
    }

    /// Becomes readable when something has happened.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// False once who serves the port is gone.
    pub fn is_served(&self) -> bool {
        self.client.as_ref().is_none_or(|client| !client.connection.has_ended())
    }

    /// Becomes readable when who serves the port is gone.
    pub fn server(&self) -> BorrowedFd<'_> {
        self.client.as_ref().map_or(self.bell.as_fd(), |client| client.connection.as_fd())
    }
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        // Nobody writes into its buffers once the answer is here.
        let Some(client) = self.client.take() else { return };
        let answer = client.ask(&Request::Close, &[]);
        for transmit in self.sides.tx.iter().flatten() {
            let Transmit { program, fetched, .. } = &mut *lock(transmit);
            self.lease.iter().for_each(|lease| fetched.end(program, &lease.area));
        }
        let is_pipe = self.sides.tx.iter().flatten().any(|transmit| lock(transmit).pipe.is_some());
        let is_used = match answer {
            Ok((Reply::Closed { still_used }, _)) => still_used,
            _ => is_pipe,
        };
        if is_used && let Some(mut lease) = self.lease.take() {
            // The other end of a pipe goes on with it.
            let placed = std::mem::take(&mut lease.placed);
            lease.area.lend(Lent { connection: client.connection, placed });
        }
    }
}

/// When the last sync was, for who wants to know.
#[inline(always)]
fn stamp(ring: &Ring) {
    if ring.word(ring::FLAGS).load(std::sync::atomic::Ordering::Relaxed) & NR_TIMESTAMP != 0 {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let words = ring.memory.mapping.words(ring.place.at + ring::TS, 2);
        words[0].store(now.as_secs(), std::sync::atomic::Ordering::Relaxed);
        words[1].store(now.subsec_micros().into(), std::sync::atomic::Ordering::Relaxed);
    }
}
