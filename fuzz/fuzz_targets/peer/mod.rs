//! Common parts of the socket targets: the input, a socket that passes descriptors, and shared memory.
#![allow(dead_code)] // each target uses its part

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{RxQueue, TxQueue};
use linerate::Batch;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with, sockopt,
};

/// The number of buffers in the port's pool.
pub const BUFFERS: usize = 512;
/// The size of the peer's memory, in bytes.
pub const LEN: usize = 1 << 18;

/// The remaining input. After its end, all values are 0.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = usize::from(self.u8()) % (most + 1);
        (0..len).map(|_| self.u8()).collect()
    }
}

/// Returns this thread's pool, which is created once.
pub fn pool() -> Arc<Pool> {
    thread_local! {
        static POOL: Arc<Pool> = {
            let pages = Pages::Only(PageSize::Ordinary);
            let options = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None };
            Pool::new(Region::new(&options).expect("memory"))
        };
    }
    POOL.with(Arc::clone)
}

/// Returns the path of a socket in a folder of this process, and removes the files of the previous run.
pub fn place() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("linerate-fuzz-{}", std::process::id()));
    let _ = std::fs::create_dir(&folder);
    let path = folder.join("socket");
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(folder.join("socket.rings")));
    path
}

/// Creates memory that the port can map, and that can be truncated.
pub fn memory() -> OwnedFd {
    let file = memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file of memory");
    ftruncate(&file, LEN as u64).expect("a length");
    file
}

/// Writes into the memory, up to its end.
pub fn write(memory: &OwnedFd, at: usize, bytes: &[u8]) {
    let at = at % LEN;
    let _ = rustix::io::pwrite(memory, &bytes[..bytes.len().min(LEN - at)], at as u64);
}

/// Descriptors that a peer may send: none, an event, the memory, another file, several.
pub struct Descriptors {
    memory: OwnedFd,
    event: OwnedFd,
    other: OwnedFd,
}

impl Descriptors {
    pub fn new(memory: &OwnedFd) -> Descriptors {
        Descriptors {
            memory: memory.try_clone().expect("a descriptor"),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event"),
            other: std::fs::File::open("/dev/null").expect("a file").into(),
        }
    }

    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub fn choose(&self, choice: u8) -> Vec<BorrowedFd<'_>> {
        let (memory, event, other) = (self.memory.as_fd(), self.event.as_fd(), self.other.as_fd());
        match choice % 8 {
            0 | 1 => vec![event],
            2 | 3 => vec![memory],
            4 => vec![other],
            5 => vec![memory; 8],
            6 => vec![event, memory],
            _ => Vec::new(),
        }
    }
}

/// A connection to the port.
pub struct Peer(pub OwnedFd);

impl Peer {
    pub fn connect(path: &std::path::Path, kind: SocketType) -> Peer {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        connect(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("the port listens");
        Peer::of(socket)
    }

    pub fn of(socket: OwnedFd) -> Peer {
        let patience = Some(std::time::Duration::from_secs(5));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience).expect("a timeout");
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, patience).expect("a timeout");
        Peer(socket)
    }

    /// Sends bytes with descriptors. Returns false if the port has closed the connection.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) == Ok(bytes.len())
    }

    /// Receives at most `most` bytes, and closes descriptors that arrive with them. Returns `None` at the end.
    pub fn receive(&self, most: usize) -> Option<Vec<u8>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let (mut ancillary, mut bytes) = (RecvAncillaryBuffer::new(&mut space), vec![0; most]);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let len = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => panic!("the port does not answer"),
            Err(_) => 0,
        };
        ancillary.drain().for_each(drop);
        bytes.truncate(len);
        (len > 0).then_some(bytes)
    }
}

/// Receives once through the port, and sends the packets with up to seven new ones.
pub fn turn(rx: &mut RxQueue, tx: &mut TxQueue, batch: &mut Batch, own: u8) {
    rx.recv(batch);
    for packet in batch.packets() {
        assert!(packet.len() <= 65_553, "{} bytes", packet.len());
    }
    for _ in 0..own % 8 {
        batch.push(&pool(), &[0x55; 3000][..usize::from(own) * 11]);
    }
    tx.send(batch);
    batch.clear();
}
