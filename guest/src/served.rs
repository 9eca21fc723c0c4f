//! Cards of ours in a guest: models that this process serves.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use linerate::model::{Cable, Card, Function, Kind, Runner};
use linerate::pci::vfio_user::Server;
use tempfile::TempDir;

use crate::machine::Machine;

/// Models, each at a socket of its own, until this is dropped.
pub struct Served {
    /// The cards, for what only they know: frames, breaches, the cable.
    pub cards: Vec<Arc<Card>>,
    servers: Vec<Server>,
    _runner: Runner,
    folder: TempDir,
}

impl Served {
    /// Serves these.
    pub fn new(cards: Vec<Arc<Card>>) -> Served {
        let folder = tempfile::Builder::new().prefix("served").tempdir().expect("a temporary folder");
        let runner = Runner::start(None).expect("a thread");
        let mut served = Served { cards, servers: Vec::new(), _runner: runner, folder };
        for card in served.cards.clone() {
            served._runner.run(&card);
            served.serve(card.name(), Function::new(card.clone()));
        }
        served
    }

    /// Two cards with a cable between them; the first has virtual functions, which are served, too.
    pub fn pair(kind: Kind, virtual_functions: usize) -> Served {
        let (a, b) = Cable::pair();
        let a = Card::of_kind(kind, virtual_functions, "a", Box::new(a));
        let b = Card::of_kind(kind, 0, "b", Box::new(b));
        let mut served = Served::new(vec![a.clone(), b]);
        for number in 0..virtual_functions {
            let function = Function::of_virtual(a.clone(), number).expect("it has so many");
            served.serve(&format!("a.vf{number}"), function);
        }
        served
    }

    fn serve(&mut self, name: &str, function: Function) {
        let path = self.folder.path().join(name);
        self.servers.push(Server::start(&path, Box::new(function)).expect("a socket in a folder of ours"));
    }

    /// Where a card, or `NAME.vfN`, is served.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Plugs them into a machine, by name.
    pub fn plug(&self, machine: &mut Machine, names: &[&str]) {
        names.iter().for_each(|name| machine.served(&self.socket(name)));
    }

    /// Fails if a driver broke a card's contract; and writes down which registers it has used, for `guest/registers`.
    #[track_caller]
    pub fn assert_silent(&self, driver: &str) {
        self.write_down(driver);
        for card in &self.cards {
            let breaches = card.breaches();
            assert!(breaches.is_empty(), "card {}: {} breaches: {breaches:#?}", card.name(), card.breach_count());
        }
    }

    fn write_down(&self, driver: &str) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guest/registers");
        fs::create_dir_all(folder).expect("a folder of ours");
        let file = format!("{folder}/{driver}");
        let mut known: BTreeSet<String> =
            fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_string).collect();
        for (register, read, written) in self.cards.iter().flat_map(|card| card.used_registers()) {
            known.extend(read.then(|| format!("{} r", register.name)));
            known.extend(written.then(|| format!("{} w", register.name)));
        }
        // Tests run beside each other; a file that is replaced whole is never half.
        let new = format!("{file}.{:?}", std::thread::current().id());
        fs::write(&new, known.into_iter().collect::<Vec<_>>().join("\n")).expect("a file in a folder of ours");
        fs::rename(&new, &file).expect("a file in a folder of ours");
    }
}
