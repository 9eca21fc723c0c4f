//! Models by name, opened as `sim:NAME`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use linerate_core::error::{Error, Result};
use linerate_core::port::PortName;
use linerate_traffic::{Generator, Rate};

use super::{Cable, Card, CardKind, PortWire, Record, Runner, Traffic, Wire};

/// The process's models, and the thread that runs them all.
#[derive(Default)]
struct Models {
    cards: HashMap<String, Weak<Card>>,
    /// Cable ends for models that are not open yet, by the names of both models.
    cables: HashMap<String, Cable>,
    runner: Weak<Runner>,
}

fn models() -> &'static Mutex<Models> {
    static MODELS: std::sync::LazyLock<Mutex<Models>> = std::sync::LazyLock::new(Mutex::default);
    &MODELS
}

/// Returns the model that is open as `sim:NAME`.
pub fn named(name: &str) -> Option<Arc<Card>> {
    models().lock().unwrap_or_else(PoisonError::into_inner).cards.get(name)?.upgrade()
}

/// Opens the port named by a wire's option.
pub type OpenWire<'a> = &'a dyn Fn(&str) -> Result<linerate_core::port::Port>;

/// Creates the model described by a port's name, and runs it. `open` opens the port at the other end of its wire.
///
/// # Errors
/// [`ErrorKind::InUse`](linerate_core::ErrorKind::InUse) for a name that is open,
/// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption), and the errors of its wire.
pub fn open_named(port: &PortName, open: OpenWire<'_>) -> Result<(Arc<Card>, Arc<Runner>)> {
    models().lock().unwrap_or_else(PoisonError::into_inner).check_free(port)?;
    // The lock is not held, since the wire's port may also be a model.
    let wire = make_wire(port, open)?;
    let mut models = models().lock().unwrap_or_else(PoisonError::into_inner);
    models.check_free(port)?;
    models.make(port, wire)
}

impl Models {
    fn check_free(&self, port: &PortName) -> Result<()> {
        match self.cards.get(port.rest()) {
            Some(card) if card.strong_count() > 0 => Err(Error::port_in_use(port.to_string())),
            _ => Ok(()),
        }
    }

    fn make(&mut self, port: &PortName, wire: Box<dyn Wire>) -> Result<(Arc<Card>, Arc<Runner>)> {
        let kind = match port.option("device") {
            Some(text) => text.parse().map_err(|error: linerate_core::Error| port.bad_option("device", error.why()))?,
            None => CardKind::default(),
        };
        let runner = match self.runner.upgrade().filter(|runner| runner.is_of_this_process()) {
            Some(runner) => runner,
            // Not pinned to a processor: several programs on one machine could choose the same processor.
            None => Arc::new(Runner::start()?),
        };
        self.runner = Arc::downgrade(&runner);
        let functions = port.number("vfs", 0, 0..=32)?;
        let card = Card::of_kind(kind, functions, port.rest(), wire);
        runner.run(&card);
        self.cards.insert(port.rest().to_string(), Arc::downgrade(&card));
        Ok((card, runner))
    }
}

/// Creates the wire of the option `wire=`. The default is a generator at full speed with a checking sink.
fn make_wire(port: &PortName, open: OpenWire<'_>) -> Result<Box<dyn Wire>> {
    let wire = port.option("wire").unwrap_or("traffic");
    let inner: Box<dyn Wire> = match wire.split_once(':').unwrap_or((wire, "")) {
        ("traffic", "") => Box::new(traffic(port)?),
        ("sink", "") => Box::new(Traffic::sink()),
        ("none", "") => Box::new(Cable::unplugged()),
        ("sim", other) if other == port.rest() => {
            return Err(port.bad_option("wire", "a cable leads to another model, not to this one"));
        }
        ("sim", other) => Box::new(cable(port.rest(), other)),
        // In this option, semicolons separate the options of the wire's port.
        (_, "") if !wire.contains([':', '{', '}']) => {
            let why = "it must be traffic, sink, none, or the name of a port, such as tap:NAME, pcap:FILE or sim:NAME";
            return Err(port.bad_option("wire", why));
        }
        _ => Box::new(PortWire::new(open(&wire.replace(';', "&"))?)),
    };
    match port.option("record") {
        Some(path) => Ok(Box::new(Record::create(Path::new(path), inner)?)),
        None => Ok(inner),
    }
}

/// Returns this model's end of the cable to another. The first model opened creates the cable, the other takes its end.
fn cable(this: &str, other: &str) -> Cable {
    let cables = &mut models().lock().unwrap_or_else(PoisonError::into_inner).cables;
    cables.remove(&format!("{other}>{this}")).unwrap_or_else(|| {
        let (ours, theirs) = Cable::pair();
        cables.insert(format!("{this}>{other}"), theirs);
        ours
    })
}

fn traffic(port: &PortName) -> Result<Traffic> {
    let size = port.number("size", 64, 64..=9732)?;
    let flows = port.number("flows", 1, 1..=65_535)? as u16;
    let count = match port.option("count") {
        Some(_) => Some(port.number("count", 0, 0..=usize::MAX)? as u64),
        None => None,
    };
    let rate = match port.option("rate") {
        Some(text) => Some(text.parse::<Rate>().map_err(|error| port.bad_option("rate", error.why()))?),
        None => None,
    };
    // A rate above line rate means full speed: frames wait instead of being lost.
    let line = Rate::Bits(Rate::TEN_GIGABIT).packets_per_second((size - 4) as f64);
    let rate = rate.filter(|rate| rate.packets_per_second((size - 4) as f64) <= line * 1.001);
    Ok(Traffic::new(Generator::new(size, flows), rate, count))
}
