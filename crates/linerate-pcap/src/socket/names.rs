//! The interface indexes of ports.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use linerate::ErrorKind;
use linerate::port::{Port, PortClass};
use linerate::share::{Client, folder};
use linerate_preload::{keeping_errno, report};

use super::system::next;

/// The first index of a port. The kernel numbers its interfaces from 1.
const FIRST: u32 = 0x4000_0000;
/// Maximum length of an interface name (`IFNAMSIZ`), without the terminating zero.
const LONGEST: usize = libc::IFNAMSIZ - 1;

/// The name of a port that has an interface index.
pub struct Name {
    pub text: String,
    pub index: u32,
    properties: OnceLock<PortProperties>,
}

/// The properties of a port that programs query.
#[derive(Clone, Copy)]
pub struct PortProperties {
    pub address: [u8; 6],
    /// Maximum frame length, with a VLAN tag, without CRC.
    pub max_frame: usize,
    pub can_send: bool,
}

impl PortProperties {
    /// Returns the properties of an open port. A port without an address, such as a served pipe, gets one derived from
    /// its name, since programs reject interfaces without an address.
    pub fn of(port: &Port, max_frame: usize, can_send: bool) -> PortProperties {
        let mut address = port.mac().0;
        if address == [0; 6] {
            // FNV-1a hash; the address is locally administered and unicast.
            let hash = port
                .name()
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            let [_, _, _, tail @ ..] = hash.to_be_bytes();
            address[1..].copy_from_slice(&tail);
            address[0] = 0x02;
        }
        PortProperties { address, max_frame, can_send }
    }

    /// Returns the maximum payload of a frame.
    pub fn mtu(&self) -> usize {
        self.max_frame.saturating_sub(linerate::port::FRAME_HEADERS)
    }
}

impl Name {
    /// Returns the properties of the port; `None` if it was never opened.
    pub fn properties(&self) -> Option<PortProperties> {
        self.properties.get().copied()
    }

    /// Returns whether the name is short enough for an interface.
    pub fn is_interface(&self) -> bool {
        self.text.len() <= LONGEST
    }

    /// Stores the properties of the port, unless they are already known.
    pub fn set_properties(&self, properties: PortProperties) {
        let _ = self.properties.set(properties);
    }
}

/// All names that have an index, in index order. They are never removed.
type Names = Vec<Arc<Name>>;

static NAMES: Mutex<Names> = Mutex::new(Vec::new());

/// Locks the names.
pub fn lock() -> MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the kernel has an interface of this name. Keeps errno(3).
pub fn is_interface(name: &CStr) -> bool {
    keeping_errno(|| next!(if_nametoindex(name.as_ptr()) | 0) != 0)
}

/// Returns the port of this name, with an index assigned. `None` if the name is not a port's, belongs to a kernel
/// interface, or is too long for an interface.
pub fn of_text(text: &str) -> Option<Arc<Name>> {
    if text.len() > LONGEST || is_truncated(text) {
        return None;
    }
    of_handle(text)
}

/// As [`of_text`], for the name of a libpcap handle, which may be longer. The index of a longer name is not visible to
/// the program.
pub fn of_handle(text: &str) -> Option<Arc<Name>> {
    if let Some(name) = lock().iter().find(|name| name.text == text) {
        return Some(name.clone());
    }
    let is_port = linerate::parse(text).map_or_else(|error| error.kind() == ErrorKind::BadOption, |_| true);
    if !is_port || is_interface(&CString::new(text).ok()?) {
        return None;
    }
    let mut names = lock();
    if let Some(name) = names.iter().find(|name| name.text == text) {
        return Some(name.clone());
    }
    let index = FIRST + names.len() as u32;
    names.push(Arc::new(Name { text: text.to_string(), index, properties: OnceLock::new() }));
    names.last().cloned()
}

/// Returns whether a name is the truncated beginning of a longer name in the program's arguments. It then denotes
/// another port than the user meant. Reports that once.
fn is_truncated(text: &str) -> bool {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if text.len() < LONGEST {
        return false;
    }
    let names = of_arguments();
    let Some(whole) = names.iter().find(|name| name.len() > LONGEST && name.starts_with(text)) else { return false };
    if names.iter().any(|name| name == text) {
        return false;
    }
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        report(&format!(
            "{whole}: the name is too long for a packet socket, which has {LONGEST} characters; choose a shorter one"
        ));
    }
    true
}

/// As [`of_text`], for the program's text, which ends with a zero or after `IFNAMSIZ` bytes.
///
/// # Safety
/// `text` is null, or as above.
pub unsafe fn of_pointer(text: *const c_char) -> Option<Arc<Name>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller promises; bytes after the zero are not read.
    let len = (0..=LONGEST).find(|&at| unsafe { text.add(at).read() } == 0)?;
    // SAFETY: these bytes were read above.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    of_text(std::str::from_utf8(bytes).ok()?)
}

/// Returns the port that has this index.
pub fn of_index(index: u32) -> Option<Arc<Name>> {
    lock().get(index.checked_sub(FIRST)? as usize).filter(|name| name.is_interface()).cloned()
}

/// Reports once that a port in memory, which no other process serves, is reachable only from this process.
pub fn report_private_port(port: &Port) {
    static IS_NOTED: AtomicBool = AtomicBool::new(false);
    let may_be_served = linerate::parse(port.name()).is_ok_and(|name| name.may_lead_to_served());
    if port.info().class == PortClass::Memory && may_be_served && !IS_NOTED.swap(true, Ordering::Relaxed) {
        report(&format!(
            "{} exists only in this process; to share ports between processes: linerate serve",
            port.name()
        ));
    }
}

/// Returns the ports that appear in lists of interfaces: served ports, ports named in the program's arguments, and
/// ports that the program has queried.
pub fn listed() -> Vec<Arc<Name>> {
    for name in served().iter().chain(&in_arguments()) {
        of_text(name);
    }
    lock().iter().filter(|name| name.is_interface()).cloned().collect()
}

/// Returns the names of the ports that other processes serve.
pub fn served() -> BTreeSet<String> {
    Client::names(&folder())
}

/// Returns the names of ports in the program's arguments that no other process serves. They must be listed, since
/// programs such as tcpreplay accept only listed interfaces.
pub fn in_arguments() -> Vec<String> {
    let (mut names, served) = (of_arguments(), served());
    names.retain(|name| !served.contains(name));
    names
}

/// The program's arguments, each with a zero byte at its end.
static ARGUMENTS: OnceLock<Vec<u8>> = OnceLock::new();

/// Keeps the program's arguments, which it may overwrite to change its name, as dhcpcd does.
pub fn keep_arguments() -> &'static [u8] {
    ARGUMENTS.get_or_init(|| std::fs::read("/proc/self/cmdline").unwrap_or_default())
}

/// Returns the names of ports in the program's arguments.
fn of_arguments() -> Vec<String> {
    let arguments = keep_arguments();
    let mut names = Vec::new();
    for argument in arguments.split(|&byte| byte == 0).skip(1) {
        for name in std::str::from_utf8(argument).map(names_in).unwrap_or_default() {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_string());
            }
        }
    }
    names
}

/// Returns the names of ports in an argument: `NAME`, `-iNAME`, `--option=NAME`, and quoted names, as in `python3 -c`.
fn names_in(argument: &str) -> Vec<&str> {
    let whole = match argument.strip_prefix("--") {
        Some(option) => option.split_once('=').map_or("", |(_, value)| value),
        None => argument.strip_prefix("-i").unwrap_or(argument),
    };
    let quoted = argument.split(['"', '\'']).skip(1).step_by(2);
    [whole].into_iter().chain(quoted).filter(|name| linerate::parse(name).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::names_in;

    #[test]
    fn arguments_name_ports() {
        for (argument, names) in [
            ("vale0:a", &["vale0:a"][..]),
            ("-isim:0?rate=1k", &["sim:0?rate=1k"]),
            ("--interface=x{1", &["x{1"]),
            ("sendp(IP()/UDP(), iface=\"vale0:a\"); sniff(iface='vale0:b', filter='udp')", &["vale0:a", "vale0:b"]),
            ("--verbose", &[]),
            ("eth0", &[]),
        ] {
            assert_eq!(names_in(argument), names, "{argument}");
        }
    }
}
