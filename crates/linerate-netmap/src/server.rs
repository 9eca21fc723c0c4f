//! The server of ports, where there is no other: a process of its own, which the first program starts and which ends
//! when no program has used it for a while. It outlives that program, since descriptors do.
//!
//! It runs this object: the dynamic loader takes a shared object in a program's place (ld.so(8)), and starts it at its entry.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use linerate::share::netmap_object::own_socket;
use linerate::{Error, Result};

use crate::real::call;

/// How long the server stays when nobody uses it.
const IDLE: Duration = Duration::from_secs(3);
/// How long it may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// What it says when it listens.
const READY: &str = "ready";

// As the C library's own: argc is at the top of the stack, argv behind it, and rdx or x0 is to be called at the end.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl linerate_netmap_start",
    ".hidden linerate_netmap_start",
    "linerate_netmap_start:",
    "xor ebp, ebp",
    "mov r9, rdx",
    "pop rsi",
    "mov rdx, rsp",
    "and rsp, -16",
    "push rax",
    "push rsp",
    "xor r8d, r8d",
    "xor ecx, ecx",
    "lea rdi, [rip + {main}]",
    "call qword ptr [rip + __libc_start_main@GOTPCREL]",
    "hlt",
    main = sym main,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl linerate_netmap_start",
    ".hidden linerate_netmap_start",
    "linerate_netmap_start:",
    "mov x29, #0",
    "mov x30, #0",
    "mov x5, x0",
    "ldr x1, [sp]",
    "add x2, sp, #8",
    "mov x6, sp",
    "adrp x0, {main}",
    "add x0, x0, :lo12:{main}",
    "mov x3, #0",
    "mov x4, #0",
    "bl __libc_start_main",
    "brk #1",
    main = sym main,
);

/// Serves. Its argument is the number of a socket that it says there how it went.
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: as the C library calls it.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count.max(0) as usize) };
    let Some(last) = arguments.last() else { return 2 };
    // SAFETY: an argument is a string.
    let number = unsafe { CStr::from_ptr(*last) }.to_str().ok().and_then(|number| number.parse::<c_int>().ok());
    let Some(number) = number else {
        eprintln!("liblinerate_netmap.so is preloaded: LD_PRELOAD=liblinerate_netmap.so PROGRAM");
        return 2;
    };
    // SAFETY: it was left to this process alone.
    let mut said = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut server = linerate::server();
    let begun = own_socket().and_then(|socket| server.listen(&socket, None, 0o600, None));
    let _ = match &begun {
        Ok(()) => said.write_all(READY.as_bytes()),
        Err(error) => said.write_all(error.with_hint().as_bytes()),
    };
    drop(said);
    if begun.is_err() {
        return 1;
    }
    loop {
        server.wait_until_idle(IDLE);
        server = match server.end_if_idle() {
            Some(server) => server,
            None => return 0,
        };
    }
}

/// Starts a server, or finds that another program has just done so.
///
/// # Errors
/// Why it does not serve.
pub fn start() -> Result<()> {
    let system = |call: &'static str| move |error| Error::System { call, source: error };
    let (mut ours, theirs) = UnixStream::pair().map_err(system("socketpair"))?;
    ours.set_read_timeout(Some(BEGIN)).map_err(system("setsockopt"))?;
    let text = |text: String| CString::new(text).unwrap_or_default();
    let (loader, object) = match (loader(), object()) {
        (Some(loader), Some(object)) => (text(loader), text(object)),
        _ => return Err(failed("it cannot find itself in memory")),
    };
    // The process's own number of the socket; others are closed.
    const SAID: c_int = 3;
    let number = text(SAID.to_string());
    let arguments = [loader.as_ptr(), object.as_ptr(), number.as_ptr(), std::ptr::null()];
    let variables: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != "LD_PRELOAD")
        .filter_map(|(name, value)| CString::new([&name.into_vec()[..], b"=", &value.into_vec()].concat()).ok())
        .collect();
    let mut environment: Vec<*const c_char> = variables.iter().map(|variable| variable.as_ptr()).collect();
    environment.push(std::ptr::null());
    spawn(&Image {
        loader: loader.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        said: theirs.as_raw_fd(),
    })?;
    drop(theirs);
    let mut answer = String::new();
    match ours.read_to_string(&mut answer) {
        Ok(_) if answer == READY => Ok(()),
        // Another program's server was faster.
        Ok(_) if answer.contains("another process serves it") => Ok(()),
        Ok(0) => Err(failed("it has ended at once")),
        Ok(_) => Err(failed(&answer)),
        Err(error) => Err(failed(&error.to_string())),
    }
}

fn failed(why: &str) -> Error {
    let why = format!("no server of ports could be started: {why}\n  to start one: linerate serve");
    Error::Refused { why, errno: libc::ENXIO }
}

/// What a process is to execute.
struct Image {
    loader: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    said: c_int,
}

/// Executes an image in a process that is nobody's child: the program's wait(2) does not find it, nor does a signal tell of
/// it.
fn spawn(image: &Image) -> Result<()> {
    const STACK: usize = 64 << 10;
    let mut stack = vec![MaybeUninit::<u128>::uninit(); STACK / 16];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // No signal comes to the child, which has the program's handlers and memory until it executes.
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset(3) fills the set in.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // No signal at its end, so that an ordinary wait(2) does not see it.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let argument = std::ptr::from_ref(image).cast_mut().cast();
    // SAFETY: the child has a stack of its own, and the parent waits until it has ended (CLONE_VFORK); it makes system calls
    // alone.
    let child = unsafe { libc::clone(child, top, flags, argument) };
    let error = std::io::Error::last_os_error();
    if child > 0 {
        call!(libc::SYS_wait4, child, 0, libc::__WCLONE, 0);
    }
    // SAFETY: the set that there was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    if child < 0 { Err(Error::System { call: "clone", source: error }) } else { Ok(()) }
}

/// The first child: makes the second one, which executes the image when this one has ended.
extern "C" fn child(image: *mut c_void) -> c_int {
    call!(libc::SYS_setsid,);
    // It has the parent's memory; the second one has a copy.
    if call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) == 0 {
        // SAFETY: the parent waits for the first child, and has it until then; this is a copy of its memory.
        execute(unsafe { &*image.cast::<Image>() });
    }
    0
}

fn execute(image: &Image) -> ! {
    call!(libc::SYS_dup3, image.said, 3, 0);
    call!(libc::SYS_close_range, 4, libc::c_uint::MAX, 0);
    for fd in 0..3 {
        call!(libc::SYS_close, fd);
    }
    let flags = libc::O_RDWR;
    // The lowest numbers that are free: 0, 1 and 2.
    call!(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0);
    call!(libc::SYS_dup, 0);
    call!(libc::SYS_dup, 0);
    call!(libc::SYS_chdir, c"/".as_ptr());
    let none = 0u64;
    call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
    call!(libc::SYS_execve, image.loader, image.arguments, image.environment);
    loop {
        call!(libc::SYS_exit_group, 127);
    }
}

/// The dynamic loader's path, as the kernel lists it where it has loaded it.
fn loader() -> Option<String> {
    // SAFETY: asks for a word.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    mapped_at(|from, _| from == base)
}

/// This object's path.
fn object() -> Option<String> {
    let here = object as *const () as u64;
    mapped_at(|from, to| (from..to).contains(&here))
}

/// The file that is mapped where `is_it` says (`/proc/self/maps`, proc(5)).
fn mapped_at(is_it: impl Fn(u64, u64) -> bool) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let bound = |text| u64::from_str_radix(text, 16).ok();
        let path = &rest[rest.find('/')?..];
        is_it(bound(from)?, bound(to)?).then(|| path.to_string())
    })
}
