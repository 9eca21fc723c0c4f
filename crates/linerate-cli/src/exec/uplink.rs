//! The network that this process is in, for a command without a port: passt(1) connects it to the command's interface,
//! with sockets of this user. The kernel's NAT would need root.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use linerate::{Error, ErrorKind, Remedy};
use rustix::io::{FdFlags, fcntl_setfd};

/// A passt, which ends when its socket is closed.
pub struct Uplink {
    pub passt: Child,
    /// Our end of its socket, which the port duplicates.
    pub socket: UnixStream,
}

impl Uplink {
    /// Starts passt.
    ///
    /// # Errors
    /// It is not installed.
    pub fn start(verbose: bool) -> Result<Uplink, Error> {
        let failed = |error: io::Error| {
            let why = format!("passt, which connects a command to the network without root, does not start: {error}");
            let remedy = "sudo apt install passt; or give a port: --port PORT";
            Error::new(ErrorKind::Unusable, "", why).with_remedy(Remedy::Step(remedy.into()))
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        let passt = Command::new("passt")
            .args(["--foreground", "--quiet", "--no-map-gw", "--fd", &theirs.as_raw_fd().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(if verbose { Stdio::inherit() } else { Stdio::null() })
            // Signals of the terminal are for the command.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Uplink { passt, socket: ours })
    }

    /// Returns the name of a port at it.
    pub fn port(&self) -> String {
        format!("stream:passt?fd={}", self.socket.as_raw_fd())
    }
}
