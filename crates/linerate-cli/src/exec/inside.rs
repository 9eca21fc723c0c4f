//! The process in the namespaces. `linerate exec` starts its own program again under the name [`PROGRAM`]; that creates
//! the namespaces and the interfaces, and sends their descriptors back. It then starts the first process of the process
//! namespace ([`init`](super::init)), with whose end everything in the namespaces ends.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use linerate::kernel::Tap;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::ForkResult;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{WaitOptions, getgid, getuid, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::channel::{Channel, Reply, Request, Setup, Step};
use super::init::{Command, fork, init};
use super::network;
use super::relay::set_ignored;

/// The name under which the program starts itself.
pub const PROGRAM: &str = "linerate-exec";

/// Acts as the process in the namespaces, if it was started as one.
pub fn run() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    arguments.next().filter(|name| Path::new(name) == Path::new(PROGRAM))?;
    let channel = arguments.next().and_then(|number| inherited(&number.into_string().ok()?));
    let Some(channel) = channel else {
        eprintln!("{PROGRAM}: it is a part of linerate exec");
        return Some(ExitCode::from(super::FAILED));
    };
    let command: Vec<OsString> = arguments.collect();
    // An error is only that of the socket: the parent has ended.
    Some(serve(channel, command).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

#[allow(unsafe_code)]
fn inherited(number: &str) -> Option<Channel> {
    let number = number.parse().ok().filter(|number| *number > 2)?;
    // SAFETY: the process has just begun, so nothing in it uses a descriptor other than the standard streams. If this
    // one is not open, each use of it fails.
    Channel::inherited(unsafe { OwnedFd::from_raw_fd(number) }).ok()
}

fn serve(channel: Channel, command: Vec<OsString>) -> io::Result<()> {
    // Children are awaited, whatever the process has inherited.
    set_ignored(Signal::SIGCHLD, false);
    // Signals of the terminal are for the command; the parent's end is the end of the channel.
    SigSet::all().thread_block()?;
    let Some((setup, _)) = channel.receive::<Setup>()? else { return Ok(()) };
    let taps = match enter(&setup) {
        Ok(taps) => taps,
        Err((step, error)) => return channel.send(&failure(step, &error), &[]),
    };
    channel.send(&Reply::Ready, &taps.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    drop(taps);
    let network = loop {
        match channel.receive::<Request>()? {
            Some((Request::Start(network), _)) => break network,
            Some((Request::Signal(_), _)) => {}
            None => return Ok(()),
        }
    };
    if let Err((step, error)) = network::configure(&network, &setup.interfaces) {
        return channel.send(&failure(step, &error), &[]);
    }
    if let Err(error) = network::set_name_servers(&network.name_servers) {
        let step = Step::NameServers;
        if !network.name_servers.is_empty() {
            return channel.send(&failure(step, &error), &[]);
        }
        channel.send(&Reply::Without(step, errno(&error)), &[])?;
    }
    if let Err(error) = network::show_interfaces() {
        channel.send(&Reply::Without(Step::Interfaces, errno(&error)), &[])?;
    }
    let command = Command { words: command, user: network.user, inherited: setup.inherited };
    match fork()? {
        ForkResult::Child => init(&channel, command),
        ForkResult::Parent { child } => {
            drop(channel);
            let child = rustix::process::Pid::from_raw(child.as_raw());
            rustix::io::retry_on_intr(|| waitpid(child, WaitOptions::empty()))?;
        }
    }
    Ok(())
}

/// Creates the namespaces and the interfaces, and returns their descriptors.
fn enter(setup: &Setup) -> Result<Vec<OwnedFd>, (Step, io::Error)> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let others = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    if setup.has_user_namespace {
        unshare(UnshareFlags::NEWUSER).map_err(|error| (Step::UserNamespace, error))?;
        // Without it, an unprivileged user may not map a group (user_namespaces(7)).
        let mapped = fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| fs::write("/proc/self/uid_map", format!("{user} {user} 1")))
            .and_then(|()| fs::write("/proc/self/gid_map", format!("{group} {group} 1")));
        mapped.map_err(|error| (Step::UserNamespace, error))?;
    }
    unshare(others).map_err(|error| (Step::Namespaces, error))?;
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).map_err(|error| (Step::Namespaces, error.into()))?;
    let other = |error: linerate::Error| io::Error::other(error.with_command_hint());
    // Pings without a capability, as passt sends them; fails where /proc cannot be written.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"));
    network::set_up("lo", None).map_err(|error| (Step::Namespaces, other(error)))?;
    let open = |name: &String| {
        let tap = Tap::create(name)?;
        network::set_up(name, Some(setup.mtu))?;
        Ok(tap)
    };
    setup.interfaces.iter().map(open).collect::<Result<_, _>>().map_err(|error| (Step::Tap, other(error)))
}

#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: without FILES, the threads' descriptors remain shared; there is one thread anyway.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn failure(step: Step, error: &io::Error) -> Reply {
    Reply::Failed(step, errno(error), error.to_string())
}
