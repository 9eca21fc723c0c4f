//! Models as cards in a guest, served by the test's process.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use linerate::sim82599::{Cable, Card, CardKind, Frame, Function, Runner, Wire};
use linerate::vfio_user::Server;
use tempfile::TempDir;

use crate::machine::Machine;

/// Models, each served at its own socket until this value is dropped.
pub struct Served {
    /// The cards, to read their frame counts and breaches, and to plug the cable.
    pub cards: Vec<Arc<Card>>,
    counted: Vec<Arc<Mutex<[Counted; 2]>>>,
    servers: Vec<Server>,
    _runner: Runner,
    folder: TempDir,
}

/// The traffic in one direction over a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All frames.
    pub frames: u64,
    /// Bytes, CRCs included.
    pub octets: u64,
    /// Multicast frames.
    pub multicast: u64,
    /// Broadcast frames.
    pub broadcast: u64,
}

/// The end of a cable, with a counter in it.
struct Meter {
    end: Cable,
    counted: Arc<Mutex<[Counted; 2]>>,
}

impl Meter {
    fn count(&self, way: usize, frame: &Frame) {
        let counted = &mut self.counted.lock().expect("no thread panics with it")[way];
        counted.frames += 1;
        counted.octets += frame.bytes.len() as u64 + 4;
        let is_broadcast = frame.bytes.starts_with(&[0xFF; 6]);
        counted.broadcast += u64::from(is_broadcast);
        counted.multicast += u64::from(!is_broadcast && frame.bytes[0] & 1 != 0);
    }
}

impl Wire for Meter {
    fn link(&self) -> bool {
        self.end.link()
    }

    fn signal(&mut self, mbits: u32) {
        self.end.signal(mbits);
    }

    fn speed(&self) -> u32 {
        self.end.speed()
    }

    fn ready(&mut self) -> bool {
        self.end.ready()
    }

    fn has_backpressure(&self) -> bool {
        self.end.has_backpressure()
    }

    fn is_lossy_when_idle(&self) -> bool {
        self.end.is_lossy_when_idle()
    }

    fn transmit(&mut self, frame: &Frame) {
        self.count(1, frame);
        self.end.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let came = self.end.receive(frame);
        if came {
            self.count(0, frame);
        }
        came
    }
}

impl Served {
    /// Serves these cards.
    pub fn new(cards: Vec<Arc<Card>>) -> Served {
        let folder = tempfile::Builder::new().prefix("served").tempdir().expect("a temporary folder");
        let runner = Runner::start().expect("a thread");
        let mut served = Served { cards, counted: Vec::new(), servers: Vec::new(), _runner: runner, folder };
        for card in served.cards.clone() {
            served._runner.run(&card);
            served.serve(card.name(), Function::new(card.clone()).expect("the card is free"));
        }
        served
    }

    /// Creates two cards connected by a cable. The first has virtual functions, which are served as well.
    pub fn pair(kind: CardKind, virtual_functions: usize) -> Served {
        let (a, b) = Cable::pair();
        let counted = [Arc::default(), Arc::default()];
        let meter = |end, n: usize| Box::new(Meter { end, counted: Arc::clone(&counted[n]) });
        let a = Card::of_kind(kind, virtual_functions, "a", meter(a, 0));
        let b = Card::of_kind(kind, 0, "b", meter(b, 1));
        let mut served = Served::new(vec![a.clone(), b]);
        served.counted.extend(counted);
        for number in 0..virtual_functions {
            let function = Function::of_virtual(a.clone(), number).expect("there are enough");
            served.serve(&format!("a.vf{number}"), function);
        }
        served
    }

    fn serve(&mut self, name: &str, function: Function) {
        let path = self.folder.path().join(name);
        self.servers.push(Server::start(&path, Box::new(function)).expect("a socket in the test's folder"));
    }

    /// Returns the socket of a card, or of `NAME.vfN`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the traffic to and from a card of a [pair](Served::pair) over its cable.
    pub fn counted(&self, card: usize) -> [Counted; 2] {
        *self.counted[card].lock().expect("no thread panics with it")
    }

    /// Plugs the cards with these names into a machine.
    pub fn plug(&self, machine: &mut Machine, names: &[&str]) {
        names.iter().for_each(|name| machine.served(&self.socket(name)));
    }

    /// Fails if a driver violated the datasheet of a card. Records the registers that the driver used, for
    /// `guest/registers`.
    #[track_caller]
    pub fn assert_no_breaches(&self, driver: &str) {
        let used = self.cards.iter().flat_map(|card| card.used_registers());
        record_registers(driver, used.map(|(register, read, written)| (register.name, read, written)));
        for card in &self.cards {
            let breaches = card.breaches();
            assert!(breaches.is_empty(), "card {}: {} breaches: {breaches:#?}", card.name(), card.breach_count());
        }
    }
}

/// Records the registers that a driver used: the name, whether it was read, and whether it was written.
pub fn record_registers<'a>(driver: &str, used: impl Iterator<Item = (&'a str, bool, bool)>) {
    // Tests run concurrently, and all append to the record.
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guest/registers");
    fs::create_dir_all(folder).expect("the test's folder");
    let file = format!("{folder}/{driver}");
    let mut known: BTreeSet<String> =
        fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_string).collect();
    for (register, read, written) in used {
        known.extend(read.then(|| format!("{register} r")));
        known.extend(written.then(|| format!("{register} w")));
    }
    fs::write(&file, known.into_iter().collect::<Vec<_>>().join("\n")).expect("a file in the test's folder");
}

/// Returns whether `guest/reasons` explains why the library's driver does not write a register that others write.
pub fn has_reason(register: &str) -> bool {
    let reasons = include_str!("../reasons").lines().filter_map(|line| line.split_once(": "));
    reasons.flat_map(|(names, _)| names.split(' ')).any(|name| name == register)
}
