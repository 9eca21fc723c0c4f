//! The first process of the process namespace: starts the command, reports how it ends, and ends everything that it has
//! left behind. If `linerate exec` ends, this process
//! ends, too, and the kernel ends all others (pid_namespaces(7)).

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Gid, Pid, Uid, setgroups, setresgid, setresuid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, WaitStatus, wait};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities,
};

use super::channel::{Channel, Inherited, Reply, Request, Step, UserIds};
use super::network;
use super::relay::set_ignored;

/// Capabilities in the command's network: to change interfaces and addresses, to capture, and to listen at ports below
/// 1,024.
const OF_COMMAND: [CapabilitySet; 3] =
    [CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW, CapabilitySet::NET_BIND_SERVICE];

/// How long closed connections may wait for their peers without any progress: with data, and with only their end (FIN)
/// to be confirmed.
const LINGER: Duration = Duration::from_secs(3);
const LINGER_FOR_END: Duration = Duration::from_secs(1);
/// How often they are counted.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The command to run.
pub struct Command {
    pub words: Vec<OsString>,
    pub user: Option<UserIds>,
    pub inherited: Inherited,
}

/// Runs the command until it ends.
pub fn init(channel: &Channel, command: Command) -> ! {
    // An error is only that of the socket: the parent has ended.
    let _ = serve(channel, &command);
    process::exit(0)
}

fn serve(channel: &Channel, command: &Command) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(error) = mount("proc", "/proc", "proc", flags, None) {
        channel.send(&Reply::Without(Step::Processes, error.raw_os_error()), &[])?;
    }
    if let Err(error) = take_privileges(command.user.as_ref()) {
        let errno = error.raw_os_error().unwrap_or(0);
        return channel.send(&Reply::Failed(Step::Privileges, errno, error.to_string()), &[]);
    }
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let child = match start(command) {
        Ok(child) => child,
        Err(error) => return channel.send(&Reply::NotStarted(error.raw_os_error().unwrap_or(0)), &[]),
    };
    let status = loop {
        if let Some(status) = reap(channel, child)? {
            break status;
        }
        let mut polled =
            [PollFd::new(channel, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        let [has_request, has_child] = [0, 1].map(|n: usize| !polled[n].revents().is_empty());
        if has_child {
            while signals.read_signal()?.is_some() {}
        }
        if has_request {
            match channel.receive::<Request>()? {
                Some((Request::Signal(number), _)) => signal(child, number),
                Some((Request::Start(_), _)) => {}
                None => return Ok(()),
            }
        }
    };
    // Everything that it has left behind in the namespace.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    let left = linger(channel)?;
    if left > 0 {
        channel.send(&Reply::Unsent(left), &[])?;
    }
    channel.send(&Reply::Ended(status.as_raw()), &[])
}

/// Starts the command as execvp(3) does, so that scripts without `#!` run, too. `std::process::Command` would change its
/// signals and streams.
fn start(command: &Command) -> io::Result<Pid> {
    let words = command.words.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let first = words.first().ok_or(io::ErrorKind::InvalidInput)?;
    let (ours, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    match fork()? {
        ForkResult::Parent { child } => {
            drop(theirs);
            // Nothing is read if the command was started.
            let mut errno = [0; 4];
            match File::from(ours).read_exact(&mut errno) {
                Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                Err(_) => Ok(child),
            }
        }
        ForkResult::Child => {
            let errno = inherit_and_execute(&command.inherited, first, &words);
            let _ = File::from(theirs).write_all(&(errno as i32).to_ne_bytes());
            process::exit(127)
        }
    }
}

/// Forks a process in the namespaces.
#[allow(unsafe_code)]
pub fn fork() -> io::Result<ForkResult> {
    // SAFETY: the processes in the namespaces have a single thread each. So no lock is held in the child.
    Ok(unsafe { nix::unistd::fork() }?)
}

/// Restores what the command inherits, and becomes it. Returns if that fails.
fn inherit_and_execute(inherited: &Inherited, first: &CString, words: &[CString]) -> Errno {
    for (number, is_ignored) in &inherited.actions {
        let _ = Signal::try_from(*number).map(|signal| set_ignored(signal, *is_ignored));
    }
    for stream in &inherited.closed_streams {
        // `/dev/null`, which Rust's runtime has opened.
        let _ = nix::unistd::close(*stream);
    }
    let blocked: SigSet = inherited.blocked.iter().filter_map(|number| Signal::try_from(*number).ok()).collect();
    match blocked.thread_set_mask().and_then(|()| nix::unistd::execvp(first, words)) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

/// Waits for processes that have ended. Returns the command's status, once it has.
fn reap(channel: &Channel, command: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command.as_raw() => match status.stopped() {
                true => channel.send(&Reply::Stopped, &[])?,
                false => return Ok(Some(status)),
            },
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Ok(None),
        }
    }
}

/// Sends a signal to the command; it may have ended, or the number may be that of a real-time signal.
#[allow(unsafe_code)]
fn signal(command: Pid, number: i32) {
    // SAFETY: kill(2) has no requirements; it fails if there is no such process or signal.
    unsafe { libc::kill(command.as_raw(), number) };
}

/// Waits until the peers of closed connections have confirmed their data, which the kernel still sends, as it does for a
/// program that ends outside of a namespace. Returns the number of connections that still have data.
fn linger(channel: &Channel) -> io::Result<usize> {
    let (mut last, mut since) = (network::unsent(), Instant::now());
    while last.0 > 0 && since.elapsed() < if last.1 > last.0 as u64 { LINGER } else { LINGER_FOR_END } {
        let mut polled = [PollFd::new(channel, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut polled, Some(&POLL)))? > 0 {
            // A signal from the user, or the parent's end.
            break;
        }
        let now = network::unsent();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(if last.1 > last.0 as u64 { last.0 } else { 0 })
}

/// Becomes the command's user. It keeps the capabilities for its network and no others, unless it is root.
fn take_privileges(user: Option<&UserIds>) -> io::Result<()> {
    if let Some(UserIds { user, group, groups }) = user {
        set_keep_capabilities(true)?;
        let (user, group) = (Uid::from_raw(*user), Gid::from_raw(*group));
        setgroups(&groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
    }
    if Uid::effective().is_root() {
        return Ok(());
    }
    let has = capabilities(None)?;
    let kept = OF_COMMAND.into_iter().fold(CapabilitySet::empty(), CapabilitySet::union) & has.permitted;
    set_capabilities(None, CapabilitySets { inheritable: kept, effective: has.permitted, ..has })?;
    for capability in OF_COMMAND.into_iter().filter(|one| kept.contains(*one)) {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
