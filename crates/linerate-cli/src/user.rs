//! A user of this machine (`--user`), and giving up root's privileges once the ports are open.

use std::ffi::CString;
use std::io;
use std::str::FromStr;

use linerate::Error;
use linerate::port::{PortClass, PortName};
use nix::unistd::{self, geteuid, initgroups, setresgid, setresuid};

/// A user of this machine.
#[derive(Clone)]
pub struct User(unistd::User);

impl FromStr for User {
    type Err = String;

    fn from_str(name: &str) -> Result<User, String> {
        let found = unistd::User::from_name(name).map_err(|error| error.to_string())?;
        found.map(User).ok_or_else(|| "there is no such user; see: getent passwd".to_string())
    }
}

impl User {
    /// Returns the user's number.
    pub fn id(&self) -> u32 {
        self.0.uid.as_raw()
    }

    /// Returns the number of the user's group.
    pub fn group(&self) -> u32 {
        self.0.gid.as_raw()
    }

    /// Returns the numbers of all groups of the user.
    pub fn groups(&self) -> Vec<u32> {
        let name = CString::new(self.0.name.as_str()).unwrap_or_default();
        let all = unistd::getgrouplist(&name, self.0.gid).unwrap_or_default();
        all.into_iter().map(|group| group.as_raw()).collect()
    }

    /// Changes all threads to the user, with its groups and without capabilities, for good.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate::ErrorKind::System): only root may.
    pub fn assume(&self) -> Result<(), Error> {
        let User(user) = self;
        if geteuid() == user.uid {
            return Ok(());
        }
        let name = CString::new(user.name.as_str()).unwrap_or_default();
        let changed = initgroups(&name, user.gid)
            .and_then(|()| setresgid(user.gid, user.gid, user.gid))
            .and_then(|()| setresuid(user.uid, user.uid, user.uid));
        let what = "changing to the user of --user (only root can; otherwise leave it out)";
        changed.map_err(|error| Error::system(what, io::Error::from(error)))
    }
}

/// Returns whether closing the port changes an interface or card back, which needs root.
pub fn needs_root_to_close(name: &PortName, has_bound: bool) -> bool {
    let is = |option: &str, value: &str| name.option(option) == Some(value);
    match name.class() {
        PortClass::Card => has_bound,
        PortClass::Xdp => is("alone", "on") || name.option("flow").is_some() && !is("steer", "off"),
        _ => false,
    }
}
