//! A server for programs that find none. The first program starts it as a separate process, which ends after some time
//! without users. It outlives the program that started it, as descriptors may.
//!
//! The process runs this library: the dynamic loader accepts a shared object in place of a program (ld.so(8)), and
//! starts it at its entry point.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use linerate::share::netmap_object::own_socket;
use linerate::{Error, ErrorKind, Remedy, Result};
use linerate_preload::{call, without_signals};

/// How long the server waits for its first client, and for further clients if its namespace cannot be deleted.
const IDLE: Duration = Duration::from_secs(3);
/// A setting that exists only in the initial network namespace, which is never deleted (Linux's
/// net/core/sysctl_net_core.c, `net_core_table`).
const OF_FIRST_NAMESPACE: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Maximum time for a server to start.
const BEGIN: Duration = Duration::from_secs(10);

/// The server's message once it is listening.
const READY: &str = "ready";

// As in the C library's startup code: argc is at the top of the stack, followed by argv; rdx or x0 is a function to
// call at exit.
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

/// The server's main function. Its argument is the descriptor of the socket for its message.
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: the C library passes `count` arguments.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count.max(0) as usize) };
    let Some(last) = arguments.last() else { return 2 };
    // SAFETY: an argument is a string that ends with a zero.
    let number = unsafe { CStr::from_ptr(*last) }.to_str().ok().and_then(|number| number.parse::<c_int>().ok());
    let Some(number) = number else {
        eprintln!("preload this object: LD_PRELOAD=liblinerate_netmap.so PROGRAM");
        return 2;
    };
    // SAFETY: `spawn` has given this process the descriptor, and only this function uses it.
    let mut reply = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut server = linerate::server();
    let begun = own_socket().and_then(|socket| server.listen(&socket, None, 0o600, None));
    let _ = match &begun {
        Ok(()) => reply.write_all(READY.as_bytes()),
        Err(error) => reply.write_all(error.with_hint().as_bytes()),
    };
    drop(reply);
    if begun.is_err() {
        return 1;
    }
    // Outside the initial namespace, end immediately: the server would keep the namespace and its interfaces alive
    // after `ip netns delete`.
    let again = if std::path::Path::new(OF_FIRST_NAMESPACE).exists() { IDLE } else { Duration::ZERO };
    loop {
        server.wait_until_idle(IDLE, again);
        server = match server.end_if_idle() {
            Some(server) => server,
            None => return 0,
        };
    }
}

/// Starts a server; succeeds also if another program has just started a server.
///
/// # Errors
/// The reason why the server did not start.
pub fn start() -> Result<()> {
    let system = |call: &'static str| move |error| Error::system(call, error);
    let (mut ours, theirs) = UnixStream::pair().map_err(system("socketpair"))?;
    ours.set_read_timeout(Some(BEGIN)).map_err(system("setsockopt"))?;
    let text = |text: String| CString::new(text).unwrap_or_default();
    let (loader, object) = match (loader(), object()) {
        (Some(loader), Some(object)) => (text(loader), text(object)),
        _ => return Err(failed("the object cannot find itself in memory")),
    };
    // The socket's descriptor in the new process, which closes all others.
    const REPLY: c_int = 3;
    let number = text(REPLY.to_string());
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
        reply: theirs.as_raw_fd(),
    })?;
    drop(theirs);
    let mut answer = String::new();
    match ours.read_to_string(&mut answer) {
        Ok(_) if answer == READY => Ok(()),
        // Another program has started a server at the same time.
        Ok(_) if answer.contains("another process serves it") => Ok(()),
        Ok(0) => Err(failed("it ended immediately")),
        Ok(_) => Err(failed(&answer)),
        Err(error) => Err(failed(&error.to_string())),
    }
}

fn failed(why: &str) -> Error {
    Error::new(ErrorKind::NotServed, "", format!("no server of ports could be started: {why}"))
        .with_remedy(Remedy::Step("to start one: linerate serve".into()))
}

/// A program to execute.
struct Image {
    loader: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    reply: c_int,
}

/// Executes an image in a process that is not a child of the program: wait(2) does not find it, and its end sends no
/// signal.
fn spawn(image: &Image) -> Result<()> {
    const STACK: usize = 64 << 10;
    let mut stack = vec![MaybeUninit::<u128>::uninit(); STACK / 16];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // Without an exit signal, so that an ordinary wait(2) does not find the child.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let argument = std::ptr::from_ref(image).cast_mut().cast();
    // The child shares the program's signal handlers and memory until it ends, so it must not get a signal.
    without_signals(|| {
        // SAFETY: the child has its own stack and makes only system calls, and the parent waits for its end
        // (CLONE_VFORK).
        let child = unsafe { libc::clone(child, top, flags, argument) };
        let error = std::io::Error::last_os_error();
        if child < 0 {
            return Err(Error::system("clone", error));
        }
        // SAFETY: the call does not write to memory.
        unsafe { call!(libc::SYS_wait4, child, 0, libc::__WCLONE, 0) };
        Ok(())
    })
}

/// Runs in the first child, which makes the second child and ends immediately. The second child executes the image.
extern "C" fn child(image: *mut c_void) -> c_int {
    // SAFETY: the first child shares the memory of the parent, which waits for it and keeps the image until then. The
    // second child has a copy of the memory.
    unsafe {
        call!(libc::SYS_setsid,);
        if call!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) == 0 {
            execute(&*image.cast::<Image>());
        }
    }
    0
}

fn execute(image: &Image) -> ! {
    let (flags, none) = (libc::O_RDWR, 0u64);
    // SAFETY: this process is new and has only this thread. The paths, arguments and variables end with a zero; the
    // signal set has 8 bytes.
    unsafe {
        call!(libc::SYS_dup3, image.reply, 3, 0);
        call!(libc::SYS_close_range, 4, libc::c_uint::MAX, 0);
        for fd in 0..3 {
            call!(libc::SYS_close, fd);
        }
        // The new descriptors get the lowest free numbers: 0, 1 and 2.
        call!(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0);
        call!(libc::SYS_dup, 0);
        call!(libc::SYS_dup, 0);
        call!(libc::SYS_chdir, c"/".as_ptr());
        call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
        call!(libc::SYS_execve, image.loader, image.arguments, image.environment);
        loop {
            call!(libc::SYS_exit_group, 127);
        }
    }
}

/// Returns the dynamic loader's path, found by the loader's address.
fn loader() -> Option<String> {
    // SAFETY: the function has no requirements.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    mapped_at(|from, _| from == base)
}

/// Returns this library's path.
fn object() -> Option<String> {
    let here = object as *const () as u64;
    mapped_at(|from, to| (from..to).contains(&here))
}

/// Returns the file mapped at the first range for which `is_it` is true (`/proc/self/maps`, proc(5)).
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
