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
    path: &'static str,
    forbids: fn(&str) -> bool,
    command: &'static str,
    why: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        path: "/proc/sys/kernel/unprivileged_userns_clone",
        forbids: |value| value == "0",
        command: "sudo sysctl kernel.unprivileged_userns_clone=1",
        why: "the setting kernel.unprivileged_userns_clone forbids user namespaces",
    },
    Setting {
        path: "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        forbids: |value| value == "1",
        command: "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        why: "AppArmor forbids user namespaces (kernel.apparmor_restrict_unprivileged_userns)",
    },
    Setting {
        path: "/proc/sys/user/max_user_namespaces",
        forbids: |value| value == "0",
        command: "sudo sysctl user.max_user_namespaces=1000",
        why: "the setting user.max_user_namespaces forbids user namespaces",
    },
    Setting {
        path: "/proc/sys/user/max_net_namespaces",
        forbids: |value| value == "0",
        command: "sudo sysctl user.max_net_namespaces=1000",
        why: "the setting user.max_net_namespaces forbids network namespaces",
    },
];

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
    let value = |path| fs::read_to_string(path).unwrap_or_default();
    let found = SETTINGS.iter().find(|setting| (setting.forbids)(value(setting.path).trim()));
    found.map(|setting| (setting.why.to_string(), setting.command.to_string()))
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
