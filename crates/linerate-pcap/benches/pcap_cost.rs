//! What libpcap's interface costs: a counting `pcap_dispatch` loop over that of the bare port; and tcpdump on a port beside the
//! same tcpdump on a veth pair (as root, with tcpdump).
//!
//! `cargo bench -p linerate-pcap --bench pcap_cost`
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linerate::capture::Writer;
use linerate::port::RxQueue;
use linerate::traffic::Generator;
use linerate::{Batch, Options};

/// Packets of a round, and rounds of each kind, in turns.
const ROUND: usize = 20_000;
const ROUNDS: usize = 301;
/// Frames that tcpdump counts.
const FRAMES: usize = 2_000_000;

fn main() {
    let object = build();
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("frames.pcap");
    write_frames(&file);
    let name = format!("pcap:{}?loop=0", file.display());
    dispatch(&object, &name);
    tcpdump(&object, &name);
}

/// Builds the shared object as this bench.
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
    // SAFETY: every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

type Callback = extern "C" fn(*mut u8, *const c_void, *const u8);

extern "C" fn count(user: *mut u8, _: *const c_void, _: *const u8) {
    // SAFETY: the counter that `dispatch` hands over.
    unsafe { *user.cast::<usize>() += 1 };
}

/// Compares a loop that counts packets of the bare port with one of `pcap_dispatch`.
fn dispatch(object: &Path, name: &str) {
    let path = CString::new(object.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: the object that was just built.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "the object can be opened");
    // SAFETY: an open library.
    let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: libpcap's functions, of these signatures.
    let (open_live, dispatch) = unsafe {
        (
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char, c_int, c_int, c_int, *mut c_char) -> *mut c_void,
            >(find(c"pcap_open_live")),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, c_int, Callback, *mut u8) -> c_int>(
                find(c"pcap_dispatch"),
            ),
        )
    };
    let (device, mut error) = (CString::new(name).expect("a name"), [0; 256]);
    // SAFETY: as pcap_open_live(3) says.
    let pcap = unsafe { open_live(device.as_ptr(), 262_144, 1, 0, error.as_mut_ptr()) };
    assert!(!pcap.is_null(), "the port opens");
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
            // SAFETY: an open handle; the counter outlives the call.
            let status = unsafe { dispatch(pcap, -1, count, (&raw mut counted).cast()) };
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

/// Times tcpdump on a port in memory, and on a veth pair whose other end sends as fast as it can.
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

/// Sends into the veth pair until it is over.
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
