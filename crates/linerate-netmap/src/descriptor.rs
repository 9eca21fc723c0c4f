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
    /// A wait for packets does not send (`NR_NO_TX_POLL`).
    pub no_tx_poll: bool,
    /// Every wait receives (`NR_DO_RX_POLL`).
    pub do_rx_poll: bool,
    /// No other descriptor has the port.
    pub exclusive: bool,
    /// The entries of a program in CSB mode, which has head, cur and tail there.
    pub entries: OnceLock<Entries>,
    /// Whether a loop syncs, and whether it must end.
    pub kloop: AtomicU32,
    /// The loss of the server was reported.
    pub is_gone: AtomicBool,
    /// Syncs since the server was last checked.
    syncs: AtomicU32,
}

/// Syncs between two checks of the server.
const LOOK: u32 = 256;

impl Bound {
    pub fn new(port: SharedPort) -> Bound {
        let has = |flag: u64| port.wanted().flags & flag != 0;
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

    /// Returns whether the program is in CSB mode, where only the loop syncs.
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

    /// Checks that the server is there: at every [`LOOK`]th call, or always with `must`.
    ///
    /// # Errors
    /// Those of [`gone`].
    pub fn check(&self, fd: c_int, must: bool) -> Result<()> {
        if !must && !self.syncs.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK) {
            return Ok(());
        }
        match is_served(borrow(fd)) {
            true => Ok(()),
            false => Err(gone()),
        }
    }
}

/// Returns the error of a port that its server has ended: a monitor ends with its port, an interface's port with that, all others with
/// their server.
pub fn gone() -> Error {
    let why = "the interface is deleted or renamed, the port of a monitor is closed, or the process that served the port is gone; open it again";
    Error::new(ErrorKind::Gone, "", why)
}

/// Calls `work` until it finds a server. A missing server is started.
///
/// # Errors
/// Those of `work`, and [`ErrorKind::NotServed`].
pub fn with_server<T>(name: &str, mut work: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // An unused server ends, perhaps at this moment.
    for _ in 0..4 {
        if let Some(done) = work()? {
            return Ok(done);
        }
        server::start()?;
    }
    Err(Error::no_server(name, &folder()))
}

/// Connects to the server of a name. A missing server is started.
///
/// # Errors
/// As [`with_server`].
pub fn client(name: &str) -> Result<Client> {
    with_server(name, || Client::find(&folder(), name))
}
