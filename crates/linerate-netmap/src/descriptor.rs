//! What a descriptor of `/dev/netmap` stands for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use linerate::shared::{Client, Server, SharedPort, Wanted, Which, folder};
use linerate::{Error, Result};

use crate::csb::Entries;
use crate::header::flag;
use crate::port::Port;
use crate::real::{OfProcess, without_signals};

/// A port, and how its descriptor waits.
pub struct Bound {
    port: Arc<Port>,
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
    /// Syncs since the server was last checked.
    syncs: AtomicU32,
}

/// How many syncs pass between two checks of the server.
const LOOK: u32 = 256;

impl Bound {
    /// With `flags` as in a registration.
    pub fn new(port: Arc<Port>, flags: u64) -> Bound {
        let has = |flag: u64| flags & flag != 0;
        Bound {
            port,
            no_tx_poll: has(flag::NO_TX_POLL),
            do_rx_poll: has(flag::DO_RX_POLL),
            exclusive: has(flag::EXCLUSIVE),
            entries: OnceLock::new(),
            kloop: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
        }
    }

    /// True where head, cur and tail are elsewhere: then only the loop syncs.
    pub fn has_entries(&self) -> bool {
        self.entries.get().is_some()
    }

    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// An error if the server of the port is gone. It is looked after once in a while, and always if it `must`.
    pub fn check(&self, must: bool) -> Result<()> {
        if !must && !self.syncs.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK) {
            return Ok(());
        }
        match self.port().is_served() {
            true => Ok(()),
            false => Err(gone()),
        }
    }
}

/// The error of a port whose server is gone.
pub fn gone() -> Error {
    Error::Refused { why: "the process that served the port is gone; open it again".to_string(), errno: libc::ENXIO }
}

/// The ports of this process, by what they were opened as.
static PORTS: OfProcess<Vec<Weak<Port>>> = OfProcess::new();
/// Held while a port is opened: one at a time. close(2) takes no lock, so that descriptors may be dropped under this one.
static OPENING: Mutex<()> = Mutex::new(());

/// A port that the process has opened in just this way, and not for itself alone: its descriptors share the rings then, as
/// in netmap. Otherwise a new one.
pub fn shared(wanted: &Wanted, open: impl FnOnce() -> Result<SharedPort>) -> Result<Arc<Port>> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |port: &Port| {
        let there = port.wanted();
        (&there.name, there.which, there.exclusive) == (&wanted.name, wanted.which, wanted.exclusive)
            && (there.receive_only, there.transmit_only) == (wanted.receive_only, wanted.transmit_only)
            && (there.monitor_rx, there.monitor_tx) == (wanted.monitor_rx, wanted.monitor_tx)
    };
    let is_alone = wanted.exclusive || wanted.monitor_rx || wanted.monitor_tx || wanted.which == Which::None;
    if !is_alone {
        // A port may be closed here that another thread has had until now: after the lock.
        let there: Vec<Arc<Port>> = PORTS.with(|ports| ports.iter().filter_map(Weak::upgrade).collect());
        if let Some(port) = there.iter().find(|port| same(port) && port.is_served()) {
            return Ok(port.clone());
        }
    }
    let port = Arc::new(Port::new(open()?));
    PORTS.with(|ports| {
        ports.retain(|port| port.strong_count() > 0);
        ports.push(Arc::downgrade(&port));
    });
    Ok(port)
}

/// The server of names that no other process serves: this process, once it is the first to name them. Locked as `OPENING`.
static SERVER: OfProcess<Option<Server>> = OfProcess::new();

/// Connects to the server of a name: another process, or from now on this one, for those with the same user.
pub fn client(name: &str) -> Result<Client> {
    let folder = folder();
    let (base, socket) = (linerate::shared::base(name), linerate::shared::socket_of(&folder, name)?);
    let mut refused = None;
    // Another process may become the first at the same moment, or go.
    for _ in 0..16 {
        if let Some(client) = Client::find(&folder, name)? {
            return Ok(client);
        }
        refused = SERVER.with(|server| {
            let server = server.get_or_insert_with(linerate::server);
            // All threads of the server descend from the one that starts here.
            without_signals(|| server.listen(&socket, Some(base), 0o600, None)).err()
        });
    }
    Err(refused.unwrap_or(Error::NoServer { name: name.to_string(), folder }))
}
