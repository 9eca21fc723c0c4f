//! Declares kinds of ports: their description and the function that opens one. Each kind is declared in its own module;
//! `linerate::KINDS` lists them.

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
/// static QUIET: PortKind = PortKind {
///     description: Description { options: &[RING], ..Description::new("quiet", Address::Text) },
///     open: &open,
/// };
///
/// # fn main() -> linerate::Result<()> {
/// let [quiet] = linerate::Options::default().with_port_kind(&QUIET).open(["quiet:x?ring=64"])?;
/// assert_eq!(quiet.info().ring, 64);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct PortKind {
    /// The kind's names, options and properties.
    pub description: Description,
    /// Opens a port.
    pub open: &'static OpenPort,
}

/// A function that opens a port of a kind.
pub type OpenPort = dyn Fn(Opening<'_>) -> Result<Box<dyn Device>> + Send + Sync;

impl Deref for PortKind {
    type Target = Description;

    fn deref(&self) -> &Description {
        &self.description
    }
}

impl PortKind {
    /// Creates a kind without options that a closure opens. It is leaked: it lives until the process ends.
    pub fn leak(
        prefix: &str,
        open: impl Fn(Opening<'_>) -> Result<Box<dyn Device>> + Send + Sync + 'static,
    ) -> &'static PortKind {
        let prefix = String::leak(prefix.to_string());
        let description = Description::new(prefix, Address::Text);
        Box::leak(Box::new(PortKind { description, open: Box::leak(Box::new(open)) }))
    }

    /// Declares a kind that this build does not include.
    #[allow(dead_code, reason = "with all features there is none")]
    pub const fn not_built(prefix: &'static str, form: Form, feature: &'static str) -> PortKind {
        let description = Description { form, feature, is_built: false, ..Description::new(prefix, Address::Text) };
        PortKind { description, open: &not_built }
    }
}

fn not_built(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name;
    Err(Error::not_built(name.to_string(), name.kind().feature))
}

/// The arguments for opening a port.
#[derive(Clone)]
pub struct Opening<'a> {
    /// The port's name.
    pub name: &'a PortName,
    /// The port's configuration: the program's options, and those of the name.
    pub config: Config,
    /// Opens other ports that this port needs.
    pub opener: &'a dyn PortOpener,
}

/// Opens other ports that a port needs: the port that it wraps, or the wire of a model.
pub trait PortOpener {
    /// Opens a port that uses `pool`, with the program's options.
    fn open(&self, name: &str, pool: &Arc<Pool>) -> Result<Box<dyn Device>>;

    /// Opens a port that uses `pool`, with default options.
    fn open_isolated(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>>;
}

impl Opening<'_> {
    /// Opens another port that shares this port's pool.
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open(&self, name: &str) -> Result<Box<dyn Device>> {
        self.opener.open(name, &self.config.pool)
    }

    /// Opens the inner port. Its name is this port's [address](Address::Port).
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open_inner(&self) -> Result<Box<dyn Device>> {
        self.open(&self.name.inner_name())
    }

    /// Opens another port with a separate pool and default options.
    ///
    /// # Errors
    /// As `linerate::open`.
    pub fn open_isolated(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>> {
        self.opener.open_isolated(name, pool)
    }
}
