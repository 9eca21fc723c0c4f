//! Settings that prevent namespaces and interfaces, and how to change them.

use std::fs;
use std::io;

use linerate::{Error, ErrorKind, Remedy};

use super::channel::Step;

impl Step {
    /// Returns what the command has to do without, if this step fails.
    pub fn without(self) -> &'static str {
        match self {
            Step::Processes => "/proc shows the machine's processes, with other numbers",
            Step::Interfaces => "/sys shows the machine's interfaces",
            _ => "the machine's daemons may resolve names",
        }
    }
}

/// A setting of the kernel that forbids namespaces.
struct Setting {
    /// Its name for sysctl(8).
    name: &'static str,
    /// Its value that forbids them, and another that does not.
    values: [&'static str; 2],
    forbidden: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting { name: "kernel.unprivileged_userns_clone", values: ["0", "1"], forbidden: "user namespaces" },
    Setting { name: APPARMOR, values: ["1", "0"], forbidden: "user namespaces" },
    Setting { name: "user.max_user_namespaces", values: ["0", "1000"], forbidden: "user namespaces" },
    Setting { name: "user.max_net_namespaces", values: ["0", "1000"], forbidden: "network namespaces" },
];
const APPARMOR: &str = "kernel.apparmor_restrict_unprivileged_userns";

/// Returns the error of a step that failed, with the setting that forbids it. `has_user`: the command has another user.
pub fn explain(step: Step, error: &io::Error, has_user: bool) -> Error {
    let what = match step {
        Step::UserNamespace => "cannot create a user namespace",
        Step::Namespaces => "cannot create the namespaces",
        // The text is complete.
        Step::Tap => return Error::new(ErrorKind::Unusable, "", error.to_string()),
        Step::Address => "cannot set the addresses",
        Step::Route => "cannot set the default route",
        Step::NameServers => "cannot mount a file over /etc/resolv.conf",
        Step::Processes | Step::Interfaces => step.without(),
        Step::Privileges => "cannot change to the user",
    };
    if !matches!(step, Step::UserNamespace | Step::Namespaces) {
        return Error::new(ErrorKind::Unusable, "", format!("{what}: {error}"));
    }
    let (why, command) = setting().or_else(container).unwrap_or_else(|| {
        let reason = match error.raw_os_error() {
            Some(libc::ENOSPC) => "there are too many namespaces, or they are nested too deeply (user_namespaces(7))",
            Some(libc::EPERM) => "a security module, or a changed root folder (chroot), forbids it",
            Some(libc::EINVAL) => {
                "this kernel is built without namespaces (CONFIG_USER_NS, CONFIG_NET_NS, CONFIG_PID_NS)"
            }
            _ => "see user_namespaces(7)",
        };
        (reason.to_string(), String::new())
    });
    let as_root = if has_user { "" } else { "sudo linerate exec --user \"$USER\" …" };
    let steps =
        [command.as_str(), as_root].into_iter().filter(|step| !step.is_empty()).collect::<Vec<_>>().join("; or: ");
    let refused = Error::new(ErrorKind::Denied, "", format!("{what}: {error}: {why}"));
    if steps.is_empty() { refused } else { refused.with_remedy(Remedy::Step(steps.into())) }
}

/// Returns the setting that forbids namespaces, and the command that changes it.
fn setting() -> Option<(String, String)> {
    let value = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap_or_default();
    let found = SETTINGS.iter().find(|setting| value(setting.name).trim() == setting.values[0]);
    found.map(|Setting { name, values: [_, allows], forbidden }| {
        let why = match *name {
            APPARMOR => format!("AppArmor forbids {forbidden} ({name})"),
            name => format!("the setting {name} forbids {forbidden}"),
        };
        (why, format!("sudo sysctl {name}={allows}"))
    })
}

/// Returns that a filter of system calls is in force, as in a container.
fn container() -> Option<(String, String)> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_filtered = status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    is_filtered.then(|| {
        (
            "a filter of system calls forbids it, as in a container".to_string(),
            "docker run --security-opt seccomp=unconfined --device /dev/net/tun …".to_string(),
        )
    })
}
