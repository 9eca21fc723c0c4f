//! Fuzzes requests of netmap programs in memory with arbitrary contents: `NIOCCTRL` with options, and `NIOCREGIF` and
//! `NIOCGINFO` of the older API. The target compiles the shared object's files, without its replacements for functions
//! of the C library.
#![no_main]
#![allow(dead_code, unused_imports, unused_macros)]

#[path = "../../crates/linerate-netmap/src/control.rs"]
mod control;
#[path = "../../crates/linerate-netmap/src/csb.rs"]
mod csb;
#[path = "../../crates/linerate-netmap/src/descriptor.rs"]
mod descriptor;
#[path = "../../crates/linerate-netmap/src/entries.rs"]
mod entries;
#[path = "../../crates/linerate-netmap/src/header.rs"]
mod header;
#[path = "../../crates/linerate-netmap/src/legacy.rs"]
mod legacy;
#[path = "../../crates/linerate-netmap/src/real.rs"]
mod real;
#[path = "../../crates/linerate-netmap/src/request.rs"]
mod request;
#[path = "../../crates/linerate-netmap/src/table.rs"]
mod table;

/// Replaces the module that starts a server: here the server runs in this process.
mod server {
    pub fn start() -> linerate::Result<()> {
        Ok(())
    }
}

use header::mode;

/// The parts of the program's memory: an arena for requests, an inaccessible page, and memory for ports.
const ARENA: usize = 64 << 10;
const GAP: usize = 4096;
const EXTERNAL: usize = 4 << 20;

const NAMES: [&str; 12] = [
    "vale0:a",
    "vale0:b",
    "vale1:a",
    "vale0:a{1",
    "vale0:a}1",
    "fuzz{2",
    "fuzz}2",
    "vale0",
    "vale0:",
    "fuzz",
    "",
    "vale0:qa",
];

/// Returns whether descriptors are bound to ports, as `LINERATE_FUZZ_PORTS=1` requests. Otherwise they are bound to
/// memory without rings.
fn has_ports() -> bool {
    static PORTS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *PORTS.get_or_init(|| std::env::var_os("LINERATE_FUZZ_PORTS").is_some())
}

/// Returns the address of the program's memory.
fn memory() -> usize {
    static MEMORY: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *MEMORY.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("linerate-fuzz-{}", std::process::id()));
        let (folder, mode) =
            (folder.to_str().unwrap().to_string(), std::os::unix::fs::PermissionsExt::from_mode(0o700));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, mode).unwrap();
        // SAFETY: no other thread reads the environment yet.
        unsafe { std::env::set_var("LINERATE_PORTS", &folder) };
        let mut server = linerate::server();
        server.listen(&std::path::Path::new(&folder).join("any"), None, 0o600, None).unwrap();
        std::mem::forget(server);
        linerate_preload::start();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses an unused address.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), ARENA + GAP + EXTERNAL, protection, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED);
        // SAFETY: the page is part of the new mapping, and no reference points into it.
        assert_eq!(unsafe { libc::mprotect(at.add(ARENA), GAP, libc::PROT_NONE) }, 0);
        at as usize
    })
}

fn put(offset: usize, bytes: &[u8]) {
    let offset = offset % (ARENA - 256);
    let bytes = &bytes[..bytes.len().min(256)];
    // SAFETY: at most 256 bytes before the arena's end, and no reference points into the arena.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (memory() + offset) as *mut u8, bytes.len()) };
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    /// Returns an address in the arena, at its end, beyond its end, or zero.
    fn address(&mut self) -> u64 {
        let offset = self.u16();
        match offset {
            0 => 0,
            0xFF00.. => memory() as u64 + ARENA as u64 - u64::from(offset & 0x3F),
            0xFE00.. => memory() as u64 + (ARENA + 8) as u64,
            0xFD00.. => u64::MAX - u64::from(offset & 0xFF),
            _ => memory() as u64 + u64::from(offset),
        }
    }

    /// Returns an address for a request's body. Without ports, the body extends into the inaccessible page.
    fn request(&mut self) -> u64 {
        match self.address() {
            any if has_ports() => any,
            offset => memory() as u64 + ARENA as u64 - (offset & 0x1F),
        }
    }

    /// Returns a port name that never names one of the host's interfaces: the part of a random name after the colon
    /// begins with `q`.
    fn name(&mut self) -> String {
        match self.u8() {
            long @ 0xE0.. => {
                let raw = String::from_utf8_lossy(self.bytes(usize::from(long & 0x1F) * 2)).replace([':', '\0'], "_");
                format!("vale{}:q{raw}", long & 1)
            }
            known => NAMES[usize::from(known) % NAMES.len()].to_string(),
        }
    }
}

/// Writes a list of options into the arena. Links usually point to the next option, sometimes elsewhere.
fn options(input: &mut Input<'_>) -> u64 {
    let mut first = 0;
    for n in (0..input.u8() % 4).rev() {
        let at = 0x4000 + usize::from(n) * 0x100;
        let kind = u32::from(input.u8() % 7);
        let next = if input.u8() == 0xFF { input.address() } else { first };
        let size = u64::from(input.u16());
        let mut option = [next.to_le_bytes().as_slice(), &kind.to_le_bytes(), &[0xAA; 4], &size.to_le_bytes()].concat();
        match kind {
            header::option::EXTMEM => {
                IS_EXTERNAL_TAKEN.store(true, std::sync::atomic::Ordering::Relaxed);
                let pages = u64::from(input.u8());
                // Without ports, the inaccessible page must stay, since requests for ports point into it.
                let at = if pages & 1 == 0 || !has_ports() { memory() + ARENA + GAP } else { memory() + ARENA };
                // Limited to the program's memory, because the fuzzer's memory follows.
                let most = EXTERNAL as u64;
                let len = (u64::from(input.u16()) << 7).min(most);
                option.extend((at as u64 + u64::from(pages == 2)).to_le_bytes());
                option.extend(len.to_le_bytes());
                option.extend([0; 8]);
                for _ in 0..3 {
                    option.extend([0; 8]);
                    let (count, size) = (u32::from(input.u16()), u32::from(input.u16()) * 4);
                    option.extend(count.to_le_bytes());
                    option.extend(size.to_le_bytes());
                }
            }
            header::option::CSB => {
                option.extend(input.address().to_le_bytes());
                option.extend(input.address().to_le_bytes());
            }
            header::option::OFFSETS => {
                option.extend(u64::from(input.u32()).to_le_bytes());
                option.extend(u64::from(input.u16()).to_le_bytes());
                option.extend(u32::from(input.u8()).to_le_bytes());
                option.extend(u32::from(input.u8()).to_le_bytes());
                option.extend([0; 8]);
            }
            _ => option.extend(input.bytes(16)),
        }
        put(at, &option);
        first = (memory() + at) as u64;
    }
    first
}

/// Sends a `NIOCCTRL` request.
fn ask(descriptor: &table::DescriptorRef, input: &mut Input<'_>) {
    let (version, kind) = (input.u8(), u16::from(input.u8() % 18));
    let version = if version < 0xF0 { 14 } else { u16::from(version & 0xF) + 8 };
    let mut name = input.name();
    let options = options(input);
    if kind == header::request::PORT_INFO_GET && !has_ports() {
        name.clear();
    }
    let is_start = kind == header::request::SYNC_KLOOP_START;
    // As in netmap, the loop runs until it is stopped, so request the stop first.
    if is_start && control_of(descriptor, header::request::SYNC_KLOOP_STOP, 14, "", 0, 0) != Some(true) {
        return;
    }
    let body = if input.u8() == 0xFF {
        input.request()
    } else {
        let mut bytes = input.bytes(72).to_vec();
        bytes.resize(72, 0);
        if kind == header::request::REGISTER {
            // Limit the rings and slots: large ports exhaust the process's memory, which is slow but not a bug.
            bytes[16..24].iter_mut().enumerate().for_each(|(n, byte)| *byte &= if n % 4 == 0 { 0x7F } else { 0 });
            bytes[24..32].iter_mut().enumerate().for_each(|(n, byte)| *byte &= if n % 2 == 0 { 3 } else { 0 });
            bytes[45..48].fill(0);
            bytes[37..40].fill(0);
            bytes[36] = if has_ports() { bytes[36] % 10 } else { 7 + bytes[36] % 2 * 2 };
        }
        put(0x2000, &bytes);
        (memory() + 0x2000) as u64
    };
    control_of(descriptor, kind, version, &name, options, body);
}

/// Sends a request from the arena. Returns whether it succeeded.
fn control_of(
    descriptor: &table::DescriptorRef,
    kind: u16,
    version: u16,
    name: &str,
    options: u64,
    body: u64,
) -> Option<bool> {
    let mut header = [version.to_le_bytes(), kind.to_le_bytes(), [0; 2], [0; 2]].concat();
    let mut text = name.as_bytes()[..name.len().min(64)].to_vec();
    text.resize(64, 0);
    header.extend(text);
    header.extend(options.to_le_bytes());
    header.extend(body.to_le_bytes());
    put(0x1000, &header);
    Some(control::answer_at(descriptor, (memory() + 0x1000) as u64).is_ok())
}

fn operate(descriptor: &table::DescriptorRef, input: &mut Input<'_>) {
    match input.u8() % 8 {
        0..=2 => ask(descriptor, input),
        // The older API: a name of 16 bytes, then numbers.
        3 => {
            let mut nmreq = input.name().into_bytes();
            nmreq.resize(16, 0);
            nmreq.extend(if input.u8() == 0xFF { input.u32() } else { 11 }.to_le_bytes());
            let mut numbers = input.bytes(40).to_vec();
            numbers.resize(40, 0);
            numbers[8..16].iter_mut().enumerate().for_each(|(n, byte)| *byte &= if n % 4 == 0 { 0x7F } else { 0 });
            numbers[16..20].iter_mut().enumerate().for_each(|(n, byte)| *byte &= if n % 2 == 0 { 3 } else { 0 });
            numbers[29..32].fill(0);
            let is_info = input.u8() & 1 != 0;
            if !has_ports() {
                let is_list = is_info && numbers[22..24] == [4, 0];
                nmreq[..if is_list { 0 } else { 16 }].fill(0);
                numbers[32] = mode::NULL as u8;
            }
            nmreq.extend(numbers);
            put(0x3000, &nmreq);
            let at = if input.u8() == 0xFF { input.request() } else { (memory() + 0x3000) as u64 };
            let _ = legacy::answer_at(at, |nmreq| match is_info {
                true => legacy::info(descriptor, nmreq),
                false => legacy::register(descriptor, nmreq),
            });
        }
        4 => {
            let at = usize::from(input.u16());
            let len = input.u8().into();
            put(at, input.bytes(len));
        }
        // The program writes into its rings.
        5 => {
            let Some(bound) = descriptor.bound() else { return };
            let layout = bound.port().layout();
            let rings: Vec<_> = layout.tx.iter().chain(&layout.rx).flatten().collect();
            let Some(ring) = rings.get(usize::from(input.u8()) % rings.len().max(1)) else { return };
            let at = ring.at as u64 + u64::from(input.u16() % 1280);
            let bytes = input.bytes(16);
            let bytes = if input.u8() & 1 == 0 { bytes.to_vec() } else { input.address().to_le_bytes().to_vec() };
            let mapping = &bound.port().memory().mapping;
            for (n, bytes) in bytes.chunks_exact(8).enumerate() {
                let at = (at as usize / 8 + n).min(mapping.len() / 8 - 1) * 8;
                // SAFETY: memory that another process can write is never lent as a slice.
                let word = unsafe { &mapping.words(at, 1)[0] };
                word.store(u64::from_le_bytes(bytes.try_into().unwrap()), std::sync::atomic::Ordering::Relaxed);
            }
        }
        6 => {
            let Some(bound) = descriptor.bound().filter(|bound| !bound.has_entries()) else { return };
            let _ = bound.sync_tx(descriptor.fd);
            let _ = bound.check(descriptor.fd, false);
        }
        _ => {
            let Some(bound) = descriptor.bound().filter(|bound| !bound.has_entries()) else { return };
            let _ = bound.sync_rx(descriptor.fd);
        }
    }
}

/// Whether a port may be using the memory for ports.
static IS_EXTERNAL_TAKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let at = memory();
    // SAFETY: the ranges are in the program's memory, and no reference points into it between two executions.
    unsafe {
        std::ptr::write_bytes(at as *mut u8, 0, 0x5000);
        if IS_EXTERNAL_TAKEN.swap(false, std::sync::atomic::Ordering::Relaxed) {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // Also restore the inaccessible page, which a port's memory may have replaced.
            let behind = (at + ARENA) as *mut libc::c_void;
            assert!(libc::mmap(behind, GAP + EXTERNAL, protection, flags | libc::MAP_FIXED, -1, 0) == behind);
            assert_eq!(libc::mprotect(behind, GAP, libc::PROT_NONE), 0);
        }
    }
    let fds: Vec<i32> = (0..2).filter_map(|_| table::open(true)).collect();
    let mut input = Input(data);
    while !input.0.is_empty() {
        let fd = fds[usize::from(input.u8() & 1)];
        let descriptor = table::TABLE.get(fd).expect("it was opened");
        operate(&descriptor, &mut input);
    }
    for fd in fds {
        drop(table::TABLE.forget(fd));
        // SAFETY: the descriptor belongs to this function.
        unsafe { libc::close(fd) };
    }
});
