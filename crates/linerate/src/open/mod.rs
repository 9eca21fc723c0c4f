//! Opens ports by name. `kinds` lists the kinds of ports, which are declared in their own crates.

mod kinds;
#[cfg(all(test, feature = "memif", feature = "model", feature = "netmap", feature = "vhost"))]
mod names;

use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use kinds::KINDS;
use linerate_core::error::Result;
#[cfg(feature = "netmap")]
use linerate_vale::netmap::open_cluster;

use crate::memory::{Pool, Region, RegionOptions};
use crate::port::{Description, Device, Opening, Options, Port, PortKind, PortName, PortOpener, QUEUES};

/// Opens ports by name in the process's default region, so that they exchange packets without a copy.
///
/// [`PortName`] describes the names; [`Options`] sets queues, rings and memory.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// let [a, b] = linerate::open(["sim:left?wire=none", "sim:right?wire=none"])?;
/// assert!(std::sync::Arc::ptr_eq(a.pool(), b.pool()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// An [`Error`](crate::Error) in a name, an option, memory or a card.
pub fn open<const N: usize>(names: [&str; N]) -> Result<[Port; N]> {
    Options::default().open(names)
}

impl Options {
    /// Opens ports with these options.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open<const N: usize>(&self, names: [&str; N]) -> Result<[Port; N]> {
        let devices = self.open_all(&names)?;
        Ok(devices.try_into().unwrap_or_else(|_| unreachable!("one device a name")))
    }

    /// As [`open`](Options::open), for any number of names.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open_all(&self, names: &[&str]) -> Result<Vec<Port>> {
        let names = names.iter().map(|name| self.parse(name)).collect::<Result<Vec<_>>>()?;
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => self.pool_for(&names)?,
        };
        // A port can be monitored once it is a `Port`, also by the following names.
        let open = |name: &PortName| self.open_device(name, &pool).map(Port::of);
        let mut ports = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        // A host: port gets the other port's address, so that Linux accepts that port's packets.
        let is_host = |at: &usize| names[*at].kind().copies_peer_mac;
        if let Some(mac) = (0..names.len()).find(|at| !is_host(at)).map(|at| ports[at].mac()) {
            (0..names.len()).filter(is_host).try_for_each(|at| ports[at].set_mac(mac))?;
        }
        // Only now that all are open: a port that is refused must not cost others their packets.
        ports.iter_mut().try_for_each(Port::start)?;
        Ok(ports)
    }

    /// Returns the default pool if it suits the ports, otherwise a new one.
    fn pool_for(&self, names: &[PortName]) -> Result<Arc<Pool>> {
        let buffer_size = names.iter().map(PortName::buffer_size).fold(2048, usize::max);
        let mut held = 0;
        for name in names {
            let default = self.rx_queues.max(self.tx_queues).into();
            let queues =
                if name.option(QUEUES.name).is_some() { name.number(QUEUES.name, 1, 1..=64)? } else { default };
            held += queues * name.held_buffers();
        }
        if (buffer_size, held) == (2048, 0) {
            return default_pool();
        }
        let default = RegionOptions::default();
        let buffers = default.buffers + held;
        Ok(Pool::new(Region::new(&RegionOptions { buffers, buffer_size, ..default })?))
    }

    /// Parses a port's name, which may be of the library's kinds or of the kinds in these options.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`](crate::ErrorKind::BadName), [`ErrorKind::BadOption`](crate::ErrorKind::BadOption).
    pub fn parse(&self, name: &str) -> Result<PortName> {
        let kinds: Vec<&'static Description> = self.all_kinds().map(|kind| &kind.description).collect();
        PortName::parse_among(name, &kinds)
    }

    /// Returns the program's kinds, followed by the library's.
    fn all_kinds(&self) -> impl Iterator<Item = &'static PortKind> {
        self.kinds.iter().chain(KINDS).copied()
    }

    fn open_device(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Box<dyn Device>> {
        let opening = Opening { name, config: self.clone().of_name(name, pool.clone())?, opener: self };
        if !name.kind().distributes
            && let Some(device) = open_cluster(&opening)?
        {
            return Ok(device);
        }
        let kind = self.all_kinds().find(|kind| std::ptr::eq(&kind.description, name.kind()));
        (kind.expect("the name is of one of these").open)(opening)
    }
}

#[cfg(feature = "model")]
impl Options {
    /// Opens the port at the other end of a model's cable, in its own memory, which no driver of the model can reach.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open_wire_port(&self, name: &str) -> Result<Port> {
        Ok(Port::of(PortOpener::open_isolated(self, name, linerate_sim82599::wire_pool()?)?))
    }
}

impl PortOpener for Options {
    fn open(&self, name: &str, pool: &Arc<Pool>) -> Result<Box<dyn Device>> {
        let mut device = self.open_device(&self.parse(name)?, pool)?;
        device.start()?;
        Ok(device)
    }

    fn open_isolated(&self, name: &str, pool: Arc<Pool>) -> Result<Box<dyn Device>> {
        let options = Options { kinds: self.kinds.clone(), local: self.local, ..Options::default() };
        PortOpener::open(&options, name, &pool)
    }
}

/// Parses a port's name, of one of the library's kinds.
///
/// ```
/// let name = linerate::parse("sim:0?rate=1M")?;
/// assert_eq!((name.short(), name.option("rate")), ("sim:0", Some("1M")));
/// # Ok::<(), linerate::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::BadName`](crate::ErrorKind::BadName) if the text is not a port's name,
/// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption) if the kind does not have an option.
pub fn parse(name: &str) -> Result<PortName> {
    Options::default().parse(name)
}

/// Returns an error if the name has options for a cluster, which this build does not have.
#[cfg(not(feature = "netmap"))]
fn open_cluster(opening: &Opening<'_>) -> Result<Option<Box<dyn Device>>> {
    use crate::port::{BY, CLUSTER};
    let name = opening.name;
    match [CLUSTER, BY].iter().any(|option| name.option(option.name).is_some()) {
        true => Err(crate::Error::not_built(name.to_string(), "netmap")),
        false => Ok(None),
    }
}

/// Returns the process's default region: 16,384 buffers of 2 KiB. It is freed with the last port, queue and batch that
/// use it.
fn default_pool() -> Result<Arc<Pool>> {
    static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pool.upgrade() {
        return Ok(pool);
    }
    let new = Pool::new(Region::new(&RegionOptions::default())?);
    *pool = Arc::downgrade(&new);
    Ok(new)
}
