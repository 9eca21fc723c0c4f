//! Requests to the kernel over netlink(7), and their answers.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::interface::Interface;

const NLM_F_REQUEST: u16 = 1;
/// The lengths of `struct nlmsghdr`, `struct genlmsghdr` and `struct rtattr`.
pub const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const ATTRIBUTE: usize = 4;

// From linux/genetlink.h and linux/netdev.h.
const CONTROL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;

/// Opens a socket; `None` is NETLINK_ROUTE.
pub fn socket(protocol: Option<Protocol>) -> Option<OwnedFd> {
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol).ok()
}

/// Sends a message of this type, and returns the kernel's answer with its header.
pub fn ask(socket: &OwnedFd, kind: u16, message: &[u8]) -> Option<Vec<u8>> {
    let mut request = Vec::with_capacity(HEADER + message.len());
    request.extend(((HEADER + message.len()) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 8]); // number and sender, which the answer repeats
    request.extend(message);
    send(socket, &request, SendFlags::empty()).ok()?;
    // The kernel has answered when `send` returns.
    let mut answer = vec![0; 8192];
    let (count, _) = recv(socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    answer.truncate(count);
    Some(answer)
}

/// Returns the value of an attribute in an answer of this type, whose attributes begin at byte `at`. Returns `None` if
/// the answer is another, is malformed, or does not have it.
pub fn value_in(answer: &[u8], answer_kind: u16, at: usize, kind: u16) -> Option<&[u8]> {
    let word = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if word(answer, 4)? != answer_kind {
        return None;
    }
    let mut attributes = answer.get(at..)?;
    loop {
        let (len, found) = (usize::from(word(attributes, 0)?), word(attributes, 2)?);
        let value = attributes.get(ATTRIBUTE..len)?;
        if found == kind {
            return Some(value);
        }
        // Attributes begin at multiples of four bytes.
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Returns the metadata that an interface's driver reports to XDP programs (`enum netdev_xdp_rx_metadata`), or `None`
/// if the kernel does not know it (before Linux 6.7).
pub fn xdp_metadata_of(interface: &Interface) -> Option<u64> {
    let socket = socket(Some(netlink::GENERIC))?;
    let request = |command: u8, kind: u16, value: &[u8]| {
        let len = (ATTRIBUTE + value.len()) as u16;
        let mut message = [&[command, 1, 0, 0][..], &len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        message
    };
    let attributes = HEADER + GENERIC_HEADER;
    let answer = ask(&socket, CONTROL, &request(CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0"))?;
    let family = value_in(&answer, CONTROL, attributes, CTRL_ATTR_FAMILY_ID)?;
    let family = u16::from_ne_bytes(*family.first_chunk()?);
    let index = interface.index().to_ne_bytes();
    let answer = ask(&socket, family, &request(NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index))?;
    let features = value_in(&answer, family, attributes, NETDEV_A_DEV_XDP_RX_METADATA_FEATURES)?;
    features.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_answers_have_no_value() {
        let mut answer = vec![0; HEADER + 12];
        answer[4..6].copy_from_slice(&92u16.to_ne_bytes());
        let attribute = |kind: u16, value: &[u8]| {
            let len = (ATTRIBUTE + value.len()) as u16;
            [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
        };
        answer.extend(attribute(9, &[0; 4]));
        answer.extend(attribute(1, &[7; 64]));
        let value = |answer: &[u8]| value_in(answer, 92, HEADER + 12, 1).map(<[u8]>::to_vec);
        assert_eq!(value(&answer), Some(vec![7; 64]));
        (0..answer.len()).for_each(|len| assert_eq!(value(&answer[..len]), None, "{len}"));
        // An attribute without a length would never end.
        answer[HEADER + 12..][..2].fill(0);
        assert_eq!(value(&answer), None);
        answer[4] ^= 1;
        assert_eq!(value(&answer), None);
    }

    /// The loopback interface has no driver with metadata. Kernels before 6.7 do not answer.
    #[test]
    fn the_kernel_tells_which_metadata_a_driver_has() {
        assert!(matches!(xdp_metadata_of(&Interface::open("lo").unwrap()), Some(0) | None));
    }
}
