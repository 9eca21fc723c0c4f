//! A member of a link: this library's end of a socket pair. The other end is the program's packet socket.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use super::frame::{ALL, HEADER, protocol};
use crate::abi::Instruction;
use crate::filter;

/// The settings of a packet socket, and its counters.
#[derive(Default)]
pub struct Settings {
    /// `SOCK_DGRAM`: the program sees no Ethernet headers.
    pub is_dgram: bool,
    /// The protocol to receive; 0: none.
    pub protocol: AtomicU16,
    pub is_promiscuous: AtomicBool,
    /// The socket has a kernel ring, which does not work with a port.
    pub has_ring: AtomicBool,
    /// The socket has a filter that only the kernel can run.
    pub has_kernel_filter: AtomicBool,
    /// `SO_LOCK_FILTER`: the filter cannot be changed.
    pub is_locked: AtomicBool,
    /// `PACKET_AUXDATA`.
    pub has_auxiliary: AtomicBool,
    filter: Mutex<Option<Arc<[Instruction]>>>,
    /// Frames delivered to the socket since the last `PACKET_STATISTICS`, and frames dropped for lack of room.
    pub received: AtomicU64,
    pub dropped: AtomicU64,
    /// The port's drop counter at the last `PACKET_STATISTICS`, or when the socket joined.
    pub dropped_before: AtomicU64,
}

impl Settings {
    pub fn new(is_dgram: bool, protocol: u16) -> Settings {
        Settings { is_dgram, protocol: protocol.into(), ..Settings::default() }
    }

    /// Sets the filter; without a filter all frames pass.
    pub fn set_filter(&self, filter: Option<Arc<[Instruction]>>) {
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = filter;
    }

    pub fn filter(&self) -> Option<Arc<[Instruction]>> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The link's end of a packet socket's pair.
pub struct Member {
    end: OwnedFd,
    pub settings: Arc<Settings>,
}

/// The outcome of an attempt to take a frame that the program has sent.
pub enum Taken {
    /// The frame's length. The frame is in the buffer, truncated to its size.
    Frame(usize),
    NoFrame,
    /// The program has closed the socket, and all its frames have been taken.
    End,
}

impl Member {
    pub fn new(end: OwnedFd, settings: Arc<Settings>) -> Member {
        Member { end, settings }
    }

    pub fn end(&self) -> &OwnedFd {
        &self.end
    }

    /// Takes the next frame that the program has sent.
    pub fn take(&self, buffer: &mut [u8]) -> Taken {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the buffer has this length.
        let len = unsafe { libc::recv(self.end.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        match usize::try_from(len) {
            Ok(0) => Taken::End,
            Ok(len) => Taken::Frame(len),
            Err(_) => match std::io::Error::last_os_error().kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Taken::NoFrame,
                _ => Taken::End,
            },
        }
    }

    /// Passes a received frame to the program, if the socket wants it and has room.
    pub fn deliver(&self, frame: &[u8], filter: Option<&[Instruction]>) {
        let wanted = self.settings.protocol.load(Relaxed);
        if wanted != ALL && (wanted == 0 || wanted != protocol(frame)) {
            return;
        }
        // The filter of a `SOCK_DGRAM` socket starts after the Ethernet header.
        let skipped = if self.settings.is_dgram { HEADER.min(frame.len()) } else { 0 };
        let seen = &frame[skipped..];
        let kept = match filter {
            None => seen.len(),
            // SAFETY: the length is the slice's.
            Some(filter) => match unsafe { filter::run(filter, seen.as_ptr(), seen.len() as u32) } as usize {
                0 => return,
                kept => kept.min(seen.len()),
            },
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let len = skipped + kept;
        // SAFETY: the frame has at least this length.
        let sent = unsafe { libc::send(self.end.as_raw_fd(), frame.as_ptr().cast(), len, flags) };
        if sent >= 0 {
            self.settings.received.fetch_add(1, Relaxed);
        } else {
            self.settings.dropped.fetch_add(1, Relaxed);
        }
    }
}
