//! The cost of libpcap's interface:
//!
//! - a `pcap_dispatch` loop that counts packets, compared with the same loop on the bare port
//! - the nanoseconds between the sending of a frame by another process and the frame's timestamp
//! - tcpdump on a port compared with tcpdump on a veth pair (needs root and tcpdump)
//!
//! `cargo bench -p linerate-pcap --bench pcap_cost`
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linerate::capture::Writer;
use linerate::port::RxQueue;
use linerate::traffic::Generator;
use linerate::{Batch, Options};

/// Packets per round, and rounds of each kind, run alternately.
const ROUND: usize = 20_000;
const ROUNDS: usize = 301;
/// Frames that tcpdump counts.
const FRAMES: usize = 2_000_000;

/// Number of frames whose times are compared, and the interval between them.
const PACED: usize = 50_000;
const PACE: Duration = Duration::from_micros(20);
/// The time in a frame that ends the capture.
const LAST: u64 = 0;
/// The argument of the capturing process.
const CAPTURES: &str = "captures";

fn main() {
    let object = build();
    if std::env::args().any(|argument| argument == CAPTURES) {
        return capture_times(&Libpcap::open(&object));
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("frames.pcap");
    write_frames(&file);
    let name = format!("pcap:{}?loop=0", file.display());
    dispatch(&Libpcap::open(&object), &name);
    times();
    tcpdump(&object, &name);
}

/// Builds the shared object with the bench's profile.
fn build() -> PathBuf {
    let exe = std::env::current_exe().expect("a path");
    let target = exe.ancestors().nth(3).expect("the target's folder");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "-p", "linerate-pcap", "--target-dir"]).arg(target);
    assert!(build.status().expect("cargo runs").success());
    target.join("release/liblinerate_pcap.so")
}

fn write_frames(path: &Path) {
    let (mut generator, mut writer) = (Generator::new(64, 16), Writer::create(path).expect("a file"));
    for n in 0..100_000 {
        let mut frame = [0; 60];
        generator.fill(&mut frame);
        writer.write(n * 100, &frame).expect("room for a file");
    }
}

/// Reads the processor's cycle counter.
fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

type Callback = extern "C" fn(*mut u8, *const c_void, *const u8);

extern "C" fn count(user: *mut u8, _: *const c_void, _: *const u8) {
    // SAFETY: `dispatch` passes a pointer to its counter.
    unsafe { *user.cast::<usize>() += 1 };
}

type Create = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Activate = unsafe extern "C" fn(*mut c_void) -> c_int;
type Dispatch = unsafe extern "C" fn(*mut c_void, c_int, Callback, *mut u8) -> c_int;

/// Functions of the shared object.
struct Libpcap {
    create: Create,
    set_precision: Set,
    activate: Activate,
    dispatch: Dispatch,
}

impl Libpcap {
    fn open(object: &Path) -> Libpcap {
        let path = CString::new(object.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the path ends with a zero; this bench has just built the library.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "the object can be opened");
        // SAFETY: the library is open, and the name ends with a zero.
        let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: libpcap's functions have these signatures.
        unsafe {
            Libpcap {
                create: std::mem::transmute::<*mut c_void, Create>(find(c"pcap_create")),
                set_precision: std::mem::transmute::<*mut c_void, Set>(find(c"pcap_set_tstamp_precision")),
                activate: std::mem::transmute::<*mut c_void, Activate>(find(c"pcap_activate")),
                dispatch: std::mem::transmute::<*mut c_void, Dispatch>(find(c"pcap_dispatch")),
            }
        }
    }

    /// Opens a port, with timestamps in nanoseconds.
    fn port(&self, name: &str) -> *mut c_void {
        let (device, mut error) = (CString::new(name).expect("a name"), [0; 256]);
        // SAFETY: the calls follow pcap_create(3), pcap_set_tstamp_precision(3) and pcap_activate(3).
        unsafe {
            let pcap = (self.create)(device.as_ptr(), error.as_mut_ptr());
            assert!(!pcap.is_null(), "the port opens");
            assert_eq!(((self.set_precision)(pcap, 1), (self.activate)(pcap)), (0, 0), "the port opens");
            pcap
        }
    }
}

/// Compares a loop that counts packets on the bare port with one over `pcap_dispatch`.
fn dispatch(libpcap: &Libpcap, name: &str) {
    let pcap = libpcap.port(name);
    let [mut port] = Options::default().open([name]).expect("the port opens");
    let mut rx = port.rx(0).expect("its queue");
    let mut batch = Batch::with_capacity(64);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = cycles();
        let bare = bare(&mut rx, &mut batch);
        let middle = cycles();
        let mut counted = 0;
        while counted < ROUND {
            // SAFETY: the handle is open, and the counter outlives the call.
            let status = unsafe { (libpcap.dispatch)(pcap, -1, count, (&raw mut counted).cast()) };
            assert!(status >= 0, "pcap_dispatch: {status}");
        }
        let end = cycles();
        rounds.push([(middle - begin) as f64 / bare as f64, (end - middle) as f64 / counted as f64]);
    }
    let quartiles = |cost: fn(&[f64; 2]) -> f64| {
        let mut costs: Vec<f64> = rounds.iter().map(cost).collect();
        costs.sort_by(f64::total_cmp);
        [1, 2, 3].map(|quarter| costs[quarter * ROUNDS / 4])
    };
    println!("cycles per packet, quartiles of {ROUNDS} rounds in turns, {ROUND} packets each:");
    for (what, [low, median, high]) in [
        ("a loop that counts, bare port    ", quartiles(|[bare, _]| *bare)),
        ("a loop that counts, pcap_dispatch", quartiles(|[_, pcap]| *pcap)),
        ("libpcap's interface: the differences", quartiles(|[bare, pcap]| pcap - bare)),
    ] {
        println!("  {what:36} {low:7.1} {median:7.1} {high:7.1}");
    }
    println!("  (asked: at most 15)");
}

fn bare(rx: &mut RxQueue, batch: &mut Batch) -> usize {
    let mut counted = 0;
    while counted < ROUND {
        rx.recv(batch);
        counted += batch.packets().count();
        batch.clear();
    }
    counted
}

/// Returns the time in nanoseconds since 1970.
fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later").as_nanos() as u64
}

/// Sends frames that contain their sending time, one by one, to another process that captures them.
fn times() {
    let ports = tempfile::tempdir().expect("a folder");
    let mut server = linerate::server();
    server.listen(&ports.path().join("any"), None, 0o600, None).expect("a socket");
    let [mut port] = Options::default().open(["vale90:generator"]).expect("a port of a switch");
    let (mut tx, mut batch) = (port.tx(0).expect("its queue"), Batch::new());
    let exe = std::env::current_exe().expect("a path");
    let mut child = Command::new(exe);
    let mut child =
        child.arg(CAPTURES).env("LINERATE_PORTS", ports.path()).stdout(Stdio::piped()).spawn().expect("a process");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    said.next().expect("it is ready").expect("it is ready");
    let mut send = |time: fn() -> u64| {
        batch.alloc(port.pool(), 1, 60);
        batch.packets().for_each(|mut frame| {
            frame.fill(0xFF);
            frame[14..22].copy_from_slice(&time().to_ne_bytes());
        });
        tx.send(&mut batch);
    };
    let begin = Instant::now();
    for n in 0..PACED as u32 {
        while begin.elapsed() < PACE * n {
            std::hint::spin_loop();
        }
        send(now);
    }
    while child.try_wait().expect("a process of ours").is_none() {
        send(|| LAST);
    }
    said.for_each(|line| println!("{}", line.expect("a line")));
}

/// `struct pcap_pkthdr`, with nanoseconds.
#[repr(C)]
struct Header {
    seconds: i64,
    nanoseconds: i64,
    lens: [u32; 2],
}

/// The differences between sending times and timestamps, in nanoseconds.
struct Late {
    times: Vec<i64>,
    is_over: bool,
}

extern "C" fn compare(user: *mut u8, header: *const c_void, bytes: *const u8) {
    // SAFETY: `capture_times` passes its `Late`, libpcap a header and a frame, which `times` has sent with 60 bytes.
    let (late, header, sent) =
        unsafe { (&mut *user.cast::<Late>(), &*header.cast::<Header>(), bytes.add(14).cast::<u64>().read_unaligned()) };
    match sent {
        LAST => late.is_over = true,
        _ => late.times.push(header.seconds * 1_000_000_000 + header.nanoseconds - sent as i64),
    }
}

/// Captures the generator's frames, and prints the delay of their timestamps.
fn capture_times(libpcap: &Libpcap) {
    let pcap = libpcap.port("vale90:captures");
    println!("ready");
    let mut late = Late { times: Vec::with_capacity(PACED), is_over: false };
    while !late.is_over {
        // SAFETY: the handle is open, and `late` outlives the call.
        let status = unsafe { (libpcap.dispatch)(pcap, -1, compare, (&raw mut late).cast()) };
        assert!(status >= 0, "pcap_dispatch: {status}");
    }
    let mut times = late.times;
    times.sort_unstable();
    let [least, median, most] = [1, 50, 99].map(|percent| times[times.len() * percent / 100]);
    println!(
        "nanoseconds from a frame's sending to its time here, {} frames, one each {} µs:",
        times.len(),
        PACE.as_micros()
    );
    println!("  1 % {least}, median {median}, 99 % {most}   (asked: a median of at most 200)");
}

/// Times tcpdump on a port in memory, and on a veth pair whose other end sends at full speed.
fn tcpdump(object: &Path, name: &str) {
    let namespace = format!("linerate-pcap-cost-{}", std::process::id());
    let ip = |words: &str| {
        let words = words.replace("NS", &namespace);
        Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let made = ip("netns add NS")
        && ip("-n NS link add v0 type veth peer name v1")
        && ip("-n NS link set v0 up")
        && ip("-n NS link set v1 up");
    if !made {
        return println!("tcpdump beside a veth pair: only as root, with iproute2");
    }
    let seconds = |device: &str, is_ours: bool| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace, "tcpdump", "-Z", "root", "-w", "/dev/null", "-i", device]);
        command.args(["-c", &FRAMES.to_string()]).stderr(Stdio::null());
        if is_ours {
            command.env("LD_PRELOAD", object);
        }
        let begin = Instant::now();
        assert!(command.status().expect("tcpdump is there").success());
        begin.elapsed()
    };
    let file = std::fs::File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (mut port, mut veth) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        is_over.store(false, std::sync::atomic::Ordering::Relaxed);
        port = port.min(seconds(name, true));
        std::thread::scope(|scope| {
            scope.spawn(|| flood(&file, &is_over));
            veth = veth.min(seconds("v1", false));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
    ip("netns delete NS");
    let rate = |time: Duration| FRAMES as f64 / time.as_secs_f64() / 1e6;
    println!("tcpdump -w /dev/null, {FRAMES} frames of 60 bytes, the best of 3:");
    println!("  {:22} {:6.2} Mpps", "a port in memory", rate(port));
    println!("  {:22} {:6.2} Mpps", "a veth pair", rate(veth));
    println!("  ratio {:.1}   (asked: at least 3)", rate(port) / rate(veth));
}

/// Sends into the veth pair until `is_over`.
fn flood(namespace: &std::fs::File, is_over: &std::sync::atomic::AtomicBool) {
    use std::os::fd::AsFd;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network))
        .expect("root may");
    let [mut port] = Options::default().open(["packet:v0"]).expect("the veth's end");
    let (mut tx, mut batch, mut generator) = (port.tx(0).expect("its queue"), Batch::new(), Generator::new(64, 16));
    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
        batch.alloc(port.pool(), 32, 60);
        batch.packets().for_each(|mut packet| generator.fill(&mut packet));
        while !batch.is_empty() && !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            tx.send(&mut batch);
        }
        batch.clear();
    }
}
