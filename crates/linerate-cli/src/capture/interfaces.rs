//! The interfaces of a capture: the ports, and those on which a port on all interfaces receives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use linerate::kernel::Interface;

/// The interfaces, in the order of their numbers in the file. The first are the ports.
pub struct Interfaces(Mutex<Vec<Entry>>);

struct Entry {
    name: String,
    /// The number of its port.
    port: u32,
    /// The kernel's index, of an interface of a port on all interfaces.
    index: Option<u32>,
}

impl Interfaces {
    /// Creates the interfaces of ports with these names.
    pub fn new(ports: Vec<String>) -> Arc<Interfaces> {
        let entries = (0..).zip(ports).map(|(port, name)| Entry { name, port, index: None });
        Arc::new(Interfaces(Mutex::new(entries.collect())))
    }

    /// Returns the names and the ports of the interfaces from number `first` on.
    pub fn from(&self, first: usize) -> (Vec<String>, Vec<usize>) {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().skip(first).map(|entry| (entry.name.clone(), entry.port as usize)).unzip()
    }

    /// Returns the number of the interface with this index, on which a port has received a packet.
    fn number(&self, port: u32, index: u32) -> u32 {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = entries.iter().position(|entry| (entry.port, entry.index) == (port, Some(index)));
        let number = known.unwrap_or_else(|| {
            let name = Interface::name_of(index).unwrap_or_else(|| format!("interface {index}"));
            entries.push(Entry { name, port, index: Some(index) });
            entries.len() - 1
        });
        number as u32
    }
}

/// The numbers of the interfaces of a port, as its thread knows them.
pub struct Numbers {
    pub port: u32,
    all: Arc<Interfaces>,
    known: HashMap<u32, u32>,
}

impl Numbers {
    pub fn new(port: u32, all: Arc<Interfaces>) -> Numbers {
        Numbers { port, all, known: HashMap::new() }
    }

    /// Returns the number of the interface with this index.
    pub fn of(&mut self, index: u32) -> u32 {
        *self.known.entry(index).or_insert_with(|| self.all.number(self.port, index))
    }
}
