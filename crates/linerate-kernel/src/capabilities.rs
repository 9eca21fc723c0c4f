//! The capabilities that the kernel requires for ports on its interfaces (capabilities(7)).

use rustix::thread::{CapabilitySet, capabilities};

/// For packet sockets.
pub const PACKET: CapabilitySet = CapabilitySet::NET_RAW;
/// For changing an interface.
pub const INTERFACE: CapabilitySet = CapabilitySet::NET_ADMIN;
/// For programs at the interface's traffic.
pub const TRAFFIC: CapabilitySet = INTERFACE.union(CapabilitySet::BPF);
/// For AF_XDP: a raw socket, a map of sockets, and a program that the verifier lets compare pointers.
pub const XDP: CapabilitySet = TRAFFIC.union(PACKET).union(CapabilitySet::PERFMON);

const NAMES: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::NET_RAW, "NET_RAW"),
    (CapabilitySet::NET_ADMIN, "NET_ADMIN"),
    (CapabilitySet::BPF, "BPF"),
    (CapabilitySet::PERFMON, "PERFMON"),
    (CapabilitySet::SYS_ADMIN, "SYS_ADMIN"),
];

/// Returns the remedy for an operation that the kernel refused and that needs these capabilities: it names those that
/// the process does not have, and a container's options that add them.
pub fn remedy(needed: CapabilitySet) -> String {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok();
    missing(on_kernel(needed, last.and_then(|number| number.trim().parse().ok())), has)
}

/// Replaces the capabilities that kernels before 5.8 do not have; `last` is the number of the kernel's last one.
fn on_kernel(needed: CapabilitySet, last: Option<u32>) -> CapabilitySet {
    let new = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let has_new = last.is_none_or(|last| last >= CapabilitySet::BPF.bits().trailing_zeros());
    if has_new || !needed.intersects(new) { needed } else { needed.difference(new) | CapabilitySet::SYS_ADMIN }
}

fn missing(needed: CapabilitySet, has: CapabilitySet) -> String {
    let missing = NAMES.iter().filter(|(one, _)| needed.difference(has).contains(*one));
    let (names, options): (Vec<_>, Vec<_>) =
        missing.map(|(_, name)| (format!("CAP_{name}"), format!("--cap-add {name}"))).unzip();
    if names.is_empty() {
        return "it has the capabilities, but only in its user namespace (as in a rootless container), or seccomp or a \
                security module forbids it: run it as the machine's root"
            .to_string();
    }
    format!("run it as root, or with {}; in a container: {}", names.join(" and "), options.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_capabilities_are_named() {
        let said = missing(XDP, PACKET | CapabilitySet::PERFMON);
        assert_eq!(
            said,
            "run it as root, or with CAP_NET_ADMIN and CAP_BPF; in a container: --cap-add NET_ADMIN --cap-add BPF"
        );
        assert!(missing(XDP, CapabilitySet::all()).contains("user namespace"));
        // CAP_PERFMON is 38 and CAP_BPF 39 (linux/capability.h); Linux 5.4 ends with 37, Linux 5.8 with 39.
        assert_eq!(on_kernel(XDP, Some(37)), PACKET | INTERFACE | CapabilitySet::SYS_ADMIN);
        assert_eq!(on_kernel(PACKET, Some(37)), PACKET);
        for last in [Some(39), Some(40), None] {
            assert_eq!(on_kernel(XDP, last), XDP);
        }
    }
}
