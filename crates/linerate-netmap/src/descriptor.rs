//! What a descriptor of `/dev/netmap` stands for.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linerate::share::netmap_object::{SharedPort, is_served};
use linerate::share::{Client, folder};
use linerate::{Error, Result};

use crate::csb::Entries;
use crate::header::flag;
use crate::real::bell;
use crate::server;

/// A port, and how its descriptor waits.
pub struct Bound {
    port: SharedPort,
    /// Waiting for packets sends as well, unless this is set (`NR_NO_TX_POLL`).
    pub no_tx_poll: bool,
    /// Waiting for anything receives as well (`NR_DO_RX_POLL`).
    pub do_rx_poll: bool,
    /// No other descriptor has the port.
    pub exclusive: bool,
    /// Where its program keeps head, cur and tail, if not in the rings.
    pub entries: OnceLock<Entries>,
    /// Whether a loop syncs, and shall end.
    pub kloop: AtomicU32,
    /// The program was told that the server is gone.
    pub is_gone: AtomicBool,
    /// Syncs since the server was last checked.
    syncs: AtomicU32,
}

/// How many syncs pass between two checks of the server.
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

    /// True where head, cur and tail are elsewhere: then only the loop syncs.
    pub fn has_entries(&self) -> bool {
        self.entries.get().is_some()
    }

    pub fn port(&self) -> &SharedPort {
        &self.port
    }

    /// Syncs transmit rings.
    ///
    /// # Errors
    /// Where head or cur cannot be.
    pub fn sync_tx(&self, fd: c_int) -> Result<()> {
        self.port.sync_tx(bell(fd), crate::real::read)
    }

    /// Syncs receive rings.
    ///
    /// # Errors
    /// As [`sync_tx`](Bound::sync_tx).
    pub fn sync_rx(&self, fd: c_int) -> Result<()> {
        self.port.sync_rx(bell(fd))
    }

    /// An error if the server of the port is gone. It is looked after once in a while, and always if it `must`.
    pub fn check(&self, fd: c_int, must: bool) -> Result<()> {
        if !must && !self.syncs.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK) {
            return Ok(());
        }
        match is_served(bell(fd)) {
            true => Ok(()),
            false => Err(gone()),
        }
    }
}

/// The error of a port whose server is gone.
pub fn gone() -> Error {
    Error::Refused { why: "the process that served the port is gone; open it again".to_string(), errno: libc::ENXIO }
}

/// Works with a server: where there is none for the name, one is started.
///
/// # Errors
/// Those of `work`, and [`Error::NoServer`].
pub fn with_server<T>(name: &str, mut work: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // A server that no program uses ends, perhaps at this very moment.
    for _ in 0..4 {
        if let Some(done) = work()? {
            return Ok(done);
        }
        server::start()?;
    }
    Err(Error::NoServer { name: name.to_string(), folder: folder() })
}

/// Connects to the server of a name. Where there is none, one is started.
///
/// # Errors
/// As [`with_server`].
pub fn client(name: &str) -> Result<Client> {
    with_server(name, || Client::find(&folder(), name))
}
