//! The port that a descriptor of `/dev/netmap` is bound to.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linerate::share::netmap_object::{SharedPort, is_served};
use linerate::share::{Client, folder};
use linerate::{Error, ErrorKind, Result};
use linerate_preload::memory::read_all;

use crate::entries::Entries;
use crate::header::flag;
use crate::real::borrow;
use crate::server;

/// A port, and the options of its descriptor.
pub struct Bound {
    port: SharedPort,
    /// Do not sync transmit rings when waiting only for packets (`NR_NO_TX_POLL`).
    pub no_tx_poll: bool,
    /// Always sync receive rings when waiting (`NR_DO_RX_POLL`).
    pub do_rx_poll: bool,
    /// No other descriptor can bind the port (`NR_EXCLUSIVE`).
    pub exclusive: bool,
    /// The entries for head, cur and tail of a program in CSB mode.
    pub entries: OnceLock<Entries>,
    /// Flags of the sync loop: it is running; it must stop.
    pub kloop: AtomicU32,
    /// The loss of the server has been reported.
    pub is_gone: AtomicBool,
    /// Syncs since the server was last checked.
    syncs: AtomicU32,
}

/// Syncs between two checks of the server.
const CHECK_INTERVAL: u32 = 256;

impl Bound {
    pub fn new(port: SharedPort) -> Bound {
        let has = |flag: u64| port.request().flags & flag != 0;
        Bound {
            no_tx_poll: has(flag::NO_TX_POLL),
            do_rx_poll: has(flag::DO_RX_POLL),
            exclusive: has(flag::EXCLUSIVE),
            entries: OnceLock::new(),
            kloop: AtomicU32::new(0),
            is_gone: AtomicBool::new(false),
            syncs: AtomicU32::new(0),
            port,
        }
    }

    /// Returns whether the program is in CSB mode, in which only the loop syncs.
    pub fn has_entries(&self) -> bool {
        self.entries.get().is_some()
    }

    pub fn port(&self) -> &SharedPort {
        &self.port
    }

    /// Syncs transmit rings.
    ///
    /// # Errors
    /// [`ErrorKind::BadRing`] if head or cur is invalid.
    pub fn sync_tx(&self, fd: c_int) -> Result<()> {
        self.port.sync_tx(borrow(fd), |address, len| read_all(address as *const u8, len).ok())
    }

    /// Syncs receive rings.
    ///
    /// # Errors
    /// As [`sync_tx`](Bound::sync_tx).
    pub fn sync_rx(&self, fd: c_int) -> Result<()> {
        self.port.sync_rx(borrow(fd))
    }

    /// Checks that the server still serves the port: at every `CHECK_INTERVAL`th call, or always with `must`.
    ///
    /// # Errors
    /// [`gone`].
    pub fn check(&self, fd: c_int, must: bool) -> Result<()> {
        if !must && !self.syncs.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_INTERVAL) {
            return Ok(());
        }
        match is_served(borrow(fd)) {
            true => Ok(()),
            false => Err(gone()),
        }
    }
}

/// Returns the error of a port that has ended: a monitor ends with its port, an interface's port with its interface,
/// every port with its server.
pub fn gone() -> Error {
    let why = "the interface is deleted or renamed, the port of a monitor is closed, or the process that served the port is gone; open it again";
    Error::new(ErrorKind::Gone, "", why)
}

/// Calls `work` until it finds a server. Starts a missing server.
///
/// # Errors
/// Errors of `work`, and [`ErrorKind::NotServed`].
pub fn with_server<T>(name: &str, mut work: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // Retry: an unused server ends by itself, perhaps at this moment.
    for _ in 0..4 {
        if let Some(done) = work()? {
            return Ok(done);
        }
        server::start()?;
    }
    Err(Error::no_server(name, &folder()))
}

/// Connects to the server of a name. Starts a missing server.
///
/// # Errors
/// As [`with_server`].
pub fn client(name: &str) -> Result<Client> {
    with_server(name, || Client::find(&folder(), name))
}
