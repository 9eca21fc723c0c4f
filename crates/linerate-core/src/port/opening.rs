//! Kinds of ports: what is known of them, and how one is opened. Each kind is declared in its own room, and `linerate::KINDS` lists
//! them.

use std::ops::Deref;
use std::sync::Arc;

use super::config::Config;
use super::device::Device;
use super::kind::{Address, Description, Form};
use super::name::PortName;
use crate::error::{Error, Result};
use crate::memory::Pool;

/// A kind of port.
///
/// ```
/// use linerate::netmap::Null;
/// use linerate::port::{Address, Description, Device, Opening, PortKind, RING};
///
/// fn open(opening: Opening<'_>) -> linerate::Result<Box<dyn Device>> {
///     Ok(Box::new(Null::open(opening.config)?))
/// }
///
/// static QUIET: PortKind =
///     PortKind { about: Description { options: &[RING], ..Description::new("quiet", Address::Text) }, open: &open };
///
/// # fn main() -> linerate::Result<()> {
/// let [quiet] = linerate::Options::default().with_port_kind(&QUIET).open(["quiet:x?ring=64"])?;
/// assert_eq!(quiet.info().ring, 64);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct PortKind {
    /// Its names, options and properties.
    pub about: Description,
    /// Opens a port.
    pub open: &'static OpenPort,
}

/// A function that opens a port of a kind.
pub type OpenPort = dyn Fn(Opening<'_>) -> Result<Box<dyn Device>> + Send + Sync;

impl Deref for PortKind {
    type Target = Description;

    fn deref(&self) -> &Description {
        &self.about
    }
}

impl PortKind {
    /// Returns a kind without options whose function is a closure. It stays for the rest of the process.
    pub fn leak(
        prefix: &str,
        open: impl Fn(Opening<'_>) -> Result<Box<dyn Device>> + Send + Sync + 'static,
    ) -> &'static PortKind {
        let prefix = String::leak(prefix.to_string());
        let about = Description::new(prefix, Address::Text);
        Box::leak(Box::new(PortKind { about, open: Box::leak(Box::new(open)) }))
    }

    /// Returns a kind that this build does not have.
    #[allow(dead_code, reason = "with all features there is none")]
    pub const fn absent(prefix: &'static str, form: Form, feature: &'static str) -> PortKind {
        let about = Description { form, feature, is_built: false, ..Description::new(prefix, Address::Text) };
        PortKind { about, open: &not_built }
    }
}

fn not_built(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    Err(Error::not_built(name.to_string(), name.kind().feature))
}

/// A port that is to be opened.
#[derive(Clone)]
pub struct Opening<'a> {
    /// Its name.
    pub name: &'a PortName,
    /// Its configuration: the program's options, and those of the name.
    pub config: Config,
    /// Opens the ports that this one needs.
    pub others: &'a dyn Others,
}

/// Opens the ports that a port needs: those inside it, and those at its outside.
pub trait Others {
    /// Opens a port in this memory.
    fn open(&self, name: &str, pool: &Arc<Pool>) -> Result<Box<dyn Device>>;

    /// Opens a port with options of its own.
    fn open_apart(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>>;
}

impl Opening<'_> {
    /// Opens another port in the same memory.
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open(&self, name: &str) -> Result<Box<dyn Device>> {
        self.others.open(name, &self.config.pool)
    }

    /// Opens the port inside this one, whose name is this one's [address](Address::Port).
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open_inner(&self) -> Result<Box<dyn Device>> {
        self.open(&self.name.inner_name())
    }

    /// Opens another port with memory and options of its own.
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open_apart(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>> {
        self.others.open_apart(name, pool)
    }
}
