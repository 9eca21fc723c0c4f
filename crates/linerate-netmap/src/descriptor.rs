//! What a descriptor of `/dev/netmap` stands for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use linerate::shared::{Client, Server, SharedPort, Wanted, Which, folder};
use linerate::{Error, Result};

use crate::csb::Entries;
use crate::header::flag;

/// A descriptor: free, or bound to a port.
#[derive(Default)]
pub struct Descriptor {
    bound: RwLock<Option<Arc<Bound>>>,
}

/// A port, and how its descriptor waits.
pub struct Bound {
    port: Option<Arc<SharedPort>>,
    /// The process that has opened it; one that it has forked does not close it.
    process: u32,
    /// Waiting for packets sends as well, unless this is set (`NR_NO_TX_POLL`).
    pub no_tx_poll: bool,
    /// Waiting for anything receives as well (`NR_DO_RX_POLL`).
    pub do_rx_poll: bool,
    /// Nobody else has the port.
    pub exclusive: bool,
    /// Where its program keeps head, cur and tail, if not in the rings.
    pub entries: Mutex<Option<Entries>>,
    /// Whether a loop syncs, and shall end.
    pub kloop: AtomicU32,
    /// Syncs since the last look at who serves the port.
    syncs: AtomicU32,
}

/// How many syncs pass between two looks.
const LOOK: u32 = 256;

impl Bound {
    /// With `flags` as in a registration.
    pub fn new(port: Arc<SharedPort>, flags: u64) -> Bound {
        let has = |flag: u64| flags & flag != 0;
        Bound {
            port: Some(port),
            process: std::process::id(),
            no_tx_poll: has(flag::NO_TX_POLL),
            do_rx_poll: has(flag::DO_RX_POLL),
            exclusive: has(flag::EXCLUSIVE),
            entries: Mutex::default(),
            kloop: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
        }
    }

    /// True where head, cur and tail are elsewhere: then only the loop syncs.
    pub fn has_entries(&self) -> bool {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn port(&self) -> &SharedPort {
        self.port.as_deref().unwrap_or_else(|| unreachable!("it goes with this"))
    }

    /// An error if nobody serves the port any more. It is looked after once in a while, and always if it `must`.
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

/// The answer where nobody serves a port any more.
pub fn gone() -> Error {
    Error::Refused { why: "the process that served the port is gone; open it again".to_string(), errno: libc::ENXIO }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.port.take());
        }
    }
}

impl Descriptor {
    pub fn bound(&self) -> Option<Arc<Bound>> {
        self.bound.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Binds it, once.
    pub fn bind(&self, bind: impl FnOnce() -> Result<Bound>) -> Result<Arc<Bound>> {
        let mut place = self.bound.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            let why = "the descriptor is bound to a port already".to_string();
            return Err(Error::Refused { why, errno: libc::EBUSY });
        }
        let bound = Arc::new(bind()?);
        *place = Some(bound.clone());
        Ok(bound)
    }

    pub fn unbind(&self) {
        *self.bound.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// By descriptor. Programs with none pay one look.
static TABLE: RwLock<Vec<Option<Arc<Descriptor>>>> = RwLock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any descriptor is ours.
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// What a descriptor stands for; `None` if it is the kernel's.
pub fn get(fd: c_int) -> Option<Arc<Descriptor>> {
    if !any() {
        return None;
    }
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(usize::try_from(fd).ok()?)?.clone()
}

/// From now on it stands for this; tells what it stood for.
pub fn set(fd: c_int, descriptor: Option<Arc<Descriptor>>) -> Option<Arc<Descriptor>> {
    let place = usize::try_from(fd).ok()?;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if descriptor.is_none() && place >= table.len() {
        return None;
    }
    if place >= table.len() {
        table.resize(place + 1, None);
    }
    let before = std::mem::replace(&mut table[place], descriptor);
    match (before.is_some(), table[place].is_some()) {
        (false, true) => COUNT.fetch_add(1, Ordering::Release),
        (true, false) => COUNT.fetch_sub(1, Ordering::Release),
        _ => 0,
    };
    before
}

/// The ports of this process, by what they were opened as.
static PORTS: Mutex<Vec<Weak<SharedPort>>> = Mutex::new(Vec::new());

/// A port that the process has opened in just this way, and not for itself alone: its descriptors share the rings then, as
/// in netmap. Otherwise a new one.
pub fn shared(wanted: &Wanted, open: impl FnOnce() -> Result<SharedPort>) -> Result<Arc<SharedPort>> {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    ports.retain(|port| port.strong_count() > 0);
    let same = |port: &Arc<SharedPort>| {
        let there = port.wanted();
        (&there.name, there.which, there.exclusive) == (&wanted.name, wanted.which, wanted.exclusive)
            && (there.receive_only, there.transmit_only) == (wanted.receive_only, wanted.transmit_only)
            && (there.monitor_rx, there.monitor_tx) == (wanted.monitor_rx, wanted.monitor_tx)
    };
    let is_alone = wanted.exclusive || wanted.monitor_rx || wanted.monitor_tx || wanted.which == Which::None;
    let there = ports.iter().filter_map(Weak::upgrade).find(same).filter(|port| !is_alone && port.is_served());
    if let Some(port) = there {
        return Ok(port);
    }
    let port = Arc::new(open()?);
    ports.push(Arc::downgrade(&port));
    Ok(port)
}

/// Who serves names that nobody else does: this process, once it is the first to name them.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

/// Who serves a name: another process, or from now on this one, for those with the same user.
pub fn client(name: &str) -> Result<Client> {
    let folder = folder();
    let base = linerate::shared::base(name);
    let mut refused = None;
    // Another process may become the first at the same moment, or go.
    for _ in 0..16 {
        if let Some(client) = Client::find(&folder, name)? {
            return Ok(client);
        }
        let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        refused = server.get_or_insert_with(linerate::server).listen(&folder.join(base), Some(base), 0o600, None).err();
    }
    Err(refused.unwrap_or(Error::NoServer { name: name.to_string(), folder }))
}
