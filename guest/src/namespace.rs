//! A network namespace for one test, on the host side of the cards: interfaces, Linux's programs, and sockets that see
//! every byte. It is separate from the host's network.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::wire::Wire;

/// A network namespace, removed on drop.
pub struct Namespace(linerate_testkit::Namespace);

impl Namespace {
    /// Creates a namespace where all interfaces are down and IPv6 is disabled, so that Linux sends no packets by
    /// itself.
    pub fn new(name: &str) -> Namespace {
        let namespace = linerate_testkit::Namespace::new(name);
        namespace.disable_ipv6("all");
        Namespace(namespace)
    }

    /// Returns the namespace's name, for `ip netns`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs a command in the namespace, and returns its output. The command must succeed.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        self.0.script(command)
    }

    /// Creates a TAP interface for a card with `queues` queues, and sets it up.
    pub fn tap(&self, name: &str, queues: u16) {
        let several = if queues > 1 { "multi_queue" } else { "" };
        self.run(&format!("ip tuntap add dev {name} mode tap vnet_hdr {several} && ip link set {name} up"));
    }

    /// Returns a [`Wire`] that sees all frames the interface receives and sends.
    pub fn wire(&self, interface: &str) -> Wire {
        Wire::of_socket(self.inside(|| packet_socket(interface)))
    }

    /// Runs `work` on a thread in the namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        // A thread that enters a namespace stays in it, so this uses a temporary thread.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let namespace = File::open(format!("/run/netns/{}", self.0.name)).expect("the namespace");
                rustix::thread::move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    Some(rustix::thread::LinkNameSpaceType::Network),
                )
                .expect("root may enter it");
                work()
            });
            thread.join().expect("it does not panic")
        })
    }
}

/// Opens a packet(7) socket for all frames of one interface.
fn packet_socket(interface: &str) -> OwnedFd {
    const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
    let name = std::ffi::CString::new(interface).expect("a name");
    // SAFETY: `len` is the size of `address`, `name` ends with a NUL byte, all zeros is a valid `sockaddr_ll`, and the
    // new descriptor has no other owner.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(ALL));
        assert!(socket >= 0, "packet(7): {}", std::io::Error::last_os_error());
        let socket_fd = OwnedFd::from_raw_fd(socket);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ALL;
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let len = size_of_val(&address) as u32;
        let bound = libc::bind(socket, (&raw const address).cast(), len);
        assert_eq!(bound, 0, "bind to {interface}: {}", std::io::Error::last_os_error());
        socket_fd
    }
}
