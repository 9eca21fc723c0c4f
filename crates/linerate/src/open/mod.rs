//! Opening ports by name. Kinds of ports are in files by the feature that builds them.

mod card;
#[cfg(feature = "kernel")]
mod kernel;
#[cfg(feature = "netmap")]
mod memory;
#[cfg(feature = "model")]
mod model;
#[cfg(all(test, feature = "memif", feature = "model", feature = "netmap", feature = "vhost"))]
mod tests;
#[cfg(feature = "vfio-user")]
mod vfio_user;

use std::sync::{Arc, Mutex, PoisonError, Weak};

#[cfg(feature = "netmap")]
pub use memory::server;
#[cfg(feature = "model")]
pub use model::drive_model;

#[cfg(feature = "capture")]
use crate::capture::{CapturePort, Recorder};
use crate::error::{Error, Result};
#[cfg(feature = "memif")]
use crate::memif::Memif;
use crate::memory::{Pool, Region, RegionOptions};
#[cfg(feature = "netmap")]
use crate::netmap::{Cluster, cluster_of};
use crate::nic::ixgbe::MAX_FRAME;
use crate::port::{
    CLUSTER, Config, Device, FRAME_HEADERS, Faults, Kind, MAX_QUEUES, NO_OPTION, Options, Port, PortName,
    SHORTEST_MAX_FRAME, Vectors, Wrapped, Wrapper,
};
#[cfg(feature = "vhost")]
use crate::vhost::Vhost;
#[cfg(feature = "vhost")]
use crate::virtio_user::{Forms, VirtioUser};

/// Opens ports by name, in the process's default region: they exchange packets without a copy.
///
/// See [`PortName`] for the names, [`Options`] to choose queues, rings and memory.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// let [a, b] = linerate::open(["sim:left?wire=none", "sim:right?wire=none"])?;
/// assert!(std::sync::Arc::ptr_eq(a.pool(), b.pool()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// An [`Error`] of a name, an option, memory or a card.
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
        let own = self.kinds.names();
        let names = names.iter().map(|name| PortName::parse_among(name, &own)).collect::<Result<Vec<_>>>()?;
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => match names.iter().map(PortName::buffer_size).max() {
                Some(buffer_size @ 2049..) => {
                    Pool::new(Region::new(&RegionOptions { buffer_size, ..RegionOptions::default() })?)
                }
                _ => default_pool()?,
            },
        };
        let open = |name: &PortName| self.open_device(name, &pool).map(Port::of);
        let mut devices = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        // A host: port has the address of the first other port, so that Linux receives that port's packets.
        let is_host = |at: &usize| names[*at].kind() == Kind::Host;
        if let Some(mac) = (0..names.len()).find(|at| !is_host(at)).map(|at| devices[at].mac()) {
            (0..names.len()).filter(is_host).try_for_each(|at| devices[at].set_mac(mac))?;
        }
        Ok(devices)
    }

    fn open_device(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Box<dyn Device>> {
        #[cfg(feature = "netmap")]
        if let Some(device) = memory::find_served(self, name, pool)? {
            return Ok(device);
        }
        if let Some(device) = self.open_cluster(name, pool)? {
            return Ok(device);
        }
        #[allow(unreachable_patterns, reason = "with all features there are no other kinds")]
        match name.kind() {
            Kind::Pci => card::open(name, self.config(name, pool)?),
            Kind::Own => self.open_own(name, self.config(name, pool)?),
            Kind::Faulty => self.wrap(name, pool, Faults::of(name)?),
            #[cfg(feature = "vfio-user")]
            Kind::VfioUser => vfio_user::open(name, self.config(name, pool)?),
            #[cfg(feature = "vhost")]
            Kind::Vhost => {
                let (is_client, has_packed) = (name.switch("client", false)?, name.switch("packed", false)?);
                Ok(Box::new(Vhost::open(name.rest(), is_client, has_packed, self.config(name, pool)?)?))
            }
            #[cfg(feature = "vhost")]
            Kind::VirtioUser => {
                let is_server = name.switch("server", false)?;
                let forms = Forms {
                    packed: name.switch("packed", false)?,
                    in_order: name.switch("in_order", false)?,
                    mergeable: name.switch("mergeable", true)?,
                };
                Ok(Box::new(VirtioUser::open(name.rest(), is_server, forms, self.config(name, pool)?)?))
            }
            #[cfg(feature = "memif")]
            Kind::Memif => Ok(Box::new(Memif::open(name, self.config(name, pool)?)?)),
            #[cfg(feature = "model")]
            Kind::Sim => model::open(self, name, self.config(name, pool)?),
            #[cfg(feature = "kernel")]
            Kind::Packet | Kind::Host | Kind::Tap | Kind::Xdp | Kind::Netmap | Kind::Stack => {
                kernel::open(name, self.config(name, pool)?)
            }
            #[cfg(feature = "netmap")]
            Kind::Null | Kind::Pipe | Kind::Vale | Kind::Monitor { .. } => memory::open(name, self.config(name, pool)?),
            #[cfg(feature = "capture")]
            Kind::Capture => Ok(Box::new(CapturePort::open(name, self.config(name, pool)?)?)),
            #[cfg(feature = "capture")]
            Kind::Recorded => self.wrap(name, pool, Recorder::of(name)?),
            kind => Err(Error::NotBuilt { name: name.to_string(), feature: kind.feature() }),
        }
    }

    /// Opens a port whose packets are handed out, if its name has the options.
    #[cfg(feature = "netmap")]
    fn open_cluster(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Option<Box<dyn Device>>> {
        let Some((consumers, by)) = cluster_of(name)? else { return Ok(None) };
        let inner = PortName::parse_among(&name.without(&CLUSTER), &self.kinds.names())?;
        let (inner, config) = (self.open_device(&inner, pool)?, self.config(name, pool)?);
        Ok(Some(Box::new(Cluster::new(inner, consumers, by, &config)?)))
    }

    #[cfg(not(feature = "netmap"))]
    fn open_cluster(&self, name: &PortName, _: &Arc<Pool>) -> Result<Option<Box<dyn Device>>> {
        match CLUSTER.iter().any(|option| name.option(option).is_some()) {
            true => Err(Error::NotBuilt { name: name.to_string(), feature: "netmap" }),
            false => Ok(None),
        }
    }

    /// Opens a port around another, whose name has the options that are not the wrapper's.
    fn wrap<W: Wrapper + 'static>(&self, name: &PortName, pool: &Arc<Pool>, wrapper: W) -> Result<Box<dyn Device>> {
        let inner = PortName::parse_among(&Wrapped::<W>::inner_name(name), &self.kinds.names())
            .and_then(|inner| self.open_device(&inner, pool))
            .map_err(|error| meant_for::<W>(name, error))?;
        Ok(Box::new(Wrapped::new(name.short(), inner, wrapper)))
    }

    /// Returns the configuration of a port: these options, and those of its name.
    fn config(&self, name: &PortName, pool: &Arc<Pool>) -> Result<Config> {
        let (least, most) = (SHORTEST_MAX_FRAME - FRAME_HEADERS, MAX_FRAME - FRAME_HEADERS);
        let mut options = self.clone();
        if name.option("queues").is_some() {
            options = options.with_queues(name.number("queues", 1, 1..=MAX_QUEUES.into())? as u16);
        }
        if name.option("ring").is_some() {
            options.ring = Some(name.number("ring", 0, 0..=usize::MAX)?);
        }
        if name.option("mtu").is_some() {
            options.max_frame = name.number("mtu", 0, least..=most)? + FRAME_HEADERS;
        }
        options.offloads = name.switch("offloads", self.offloads)?;
        options.timestamps = name.switch("timestamps", self.timestamps)?;
        options.vectors = self.vectors_of(name)?;
        options.of_port(name.short(), pool.clone())
    }

    /// Returns the instructions that the name's option selects, or those of these options.
    fn vectors_of(&self, name: &PortName) -> Result<Vectors> {
        let vectors = match name.option("vectors") {
            None => return Ok(self.vectors),
            Some("best") => Vectors::Best,
            Some("scalar") => Vectors::Scalar,
            Some("avx2") => Vectors::Avx2,
            Some("avx512") => Vectors::Avx512,
            Some(_) => return Err(name.bad_option("vectors", "it must be best, scalar, avx2 or avx512")),
        };
        match vectors.is_there() {
            true => Ok(vectors),
            false => Err(name.bad_option("vectors", "this processor does not have them")),
        }
    }

    fn open_own(&self, name: &PortName, config: Config) -> Result<Box<dyn Device>> {
        let kind = name.short().split(':').next().and_then(|kind| self.kinds.get(kind));
        kind.expect("a name of this kind is parsed only where there is one")(name, config)
    }
}

/// Returns an inner port's error for the name of a wrapper: an option that no port inside has may have been meant for it.
fn meant_for<W: Wrapper>(name: &PortName, error: Error) -> Error {
    match error {
        Error::BadOption { name: inner, option, value, why } if inner == name.rest() && why.starts_with(NO_OPTION) => {
            let kind = name.short().split(':').next().unwrap_or_default();
            let why = format!("{why}; {kind} has {}", W::OPTIONS.join(", "));
            Error::BadOption { name: name.short().to_string(), option, value, why }
        }
        error => error,
    }
}

/// Returns the process's default region: 16,384 buffers of 2 KiB. It is freed with its last port, queue and batch.
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
