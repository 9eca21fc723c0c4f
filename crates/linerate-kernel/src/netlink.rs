//! Requests to the kernel over netlink(7), and their answers.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NLM_F_REQUEST: u16 = 1;
/// The lengths of `struct nlmsghdr` and `struct rtattr`.
pub const HEADER: usize = 16;
pub const ATTRIBUTE: usize = 4;

/// Opens a socket of NETLINK_ROUTE.
pub fn socket() -> Option<OwnedFd> {
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).ok()
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
}
