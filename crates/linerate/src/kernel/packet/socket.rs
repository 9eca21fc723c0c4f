//! A packet socket with its two rings (packet(7), kernel documentation networking/packet_mmap.rst).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use super::queue::Receiving;
use crate::error::{Error, Result};
use crate::kernel::interface::Interface;
use crate::kernel::option;
use crate::memory::Mapping;
use crate::offload::Offload;

/// A socket that is bound to an interface. Its memory has the receive ring first: blocks of packets of any length, then
/// the send ring: frames of one length.
pub struct Socket {
    fd: OwnedFd,
    pub memory: Mapping,
    pub blocks: usize,
    pub frames: usize,
    /// Bytes of a frame of the send ring.
    pub frame: usize,
    /// Where the send ring begins.
    pub sending: usize,
    /// How far queues that are gone have come.
    pub receiving: Mutex<Receiving>,
    pub next: Mutex<usize>,
}

/// Bytes of a block. A packet is in one, so it has room for 64 KiB.
pub const BLOCK: usize = 128 << 10;
/// How long the kernel waits for a block to become full before it hands it over as it is: the shortest there is.
const PATIENCE_MILLISECONDS: u32 = 1;
/// Of slow traffic a block has what came within that time, be it one packet: with so many a reader that shares its
/// processor may be away for an eighth of a second, and nothing is lost.
const FEWEST_BLOCKS: usize = 128;
/// In front of a frame to be sent: `struct tpacket3_hdr`.
pub const HEADER: usize = libc::TPACKET3_HDRLEN - size_of::<libc::sockaddr_ll>();

/// Which of several sockets a packet comes to: the same one for a flow.
const BY_FLOW: u32 = libc::PACKET_FANOUT_HASH;

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    option::set(fd, libc::SOL_PACKET, option, value)
}

/// A socket that receives nothing before it is bound.
fn open() -> io::Result<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Frames for others are received, too, until what this returns is dropped.
pub fn promiscuous(interface: &Interface) -> Result<OwnedFd> {
    let join = || {
        let socket = open()?;
        let all = libc::packet_mreq {
            mr_ifindex: interface.index() as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&socket, libc::PACKET_ADD_MEMBERSHIP, &all).map(|()| socket)
    };
    join().map_err(|error| interface.refused("receive frames for others", &error))
}

impl Socket {
    /// Opens one, with rings for about so many packets, each way of at most `longest` bytes to send.
    ///
    /// # Errors
    /// [`Error::Interface`]: what the kernel does not let us do.
    pub fn open(interface: &Interface, ring: usize, longest: usize) -> Result<Socket> {
        let fd = open().map_err(|error| interface.refused("open a packet socket", &error))?;
        let frame = (HEADER + Offload::LEN + longest).next_power_of_two().max(2048);
        let frames = ring;
        // As many bytes as the ring's packets have if they are short; blocks are filled to the end.
        let blocks = (ring * 2048 / BLOCK).max(FEWEST_BLOCKS);
        let rings = || {
            set(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))?;
            // In front of each packet, what is left to do.
            set(&fd, libc::PACKET_VNET_HDR, &1)?;
            // What this machine sends is not received.
            set(&fd, libc::PACKET_IGNORE_OUTGOING, &1)?;
            set(&fd, libc::PACKET_QDISC_BYPASS, &1)?;
            let block = BLOCK.max(frame);
            let mut request = libc::tpacket_req3 {
                tp_block_size: BLOCK as u32,
                tp_block_nr: blocks as u32,
                tp_frame_size: 2048,
                tp_frame_nr: (BLOCK / 2048 * blocks) as u32,
                tp_retire_blk_tov: PATIENCE_MILLISECONDS,
                tp_sizeof_priv: 0,
                tp_feature_req_word: 0,
            };
            set(&fd, libc::PACKET_RX_RING, &request)?;
            let per_block = block / frame;
            request.tp_block_size = block as u32;
            request.tp_block_nr = frames.div_ceil(per_block) as u32;
            request.tp_frame_size = frame as u32;
            request.tp_frame_nr = (frames.div_ceil(per_block) * per_block) as u32;
            request.tp_retire_blk_tov = 0;
            set(&fd, libc::PACKET_TX_RING, &request)?;
            Ok(request.tp_frame_nr as usize * frame)
        };
        let to_send =
            rings().map_err(|error: io::Error| interface.refused("make the rings of a packet socket", &error))?;
        let sending = blocks * BLOCK;
        let file = fd.as_fd().try_clone_to_owned().map_err(|error| Error::system("dup of a socket", error))?;
        let memory = Mapping::of_device(file, 0, sending + to_send)?;
        let (receiving, next) = (Mutex::default(), Mutex::default());
        Ok(Socket { fd, memory, blocks, frames, frame, sending, receiving, next })
    }

    /// Over blocks that no kernel fills.
    #[cfg(test)]
    pub fn over(fd: OwnedFd, memory: Mapping, blocks: usize) -> Socket {
        let (receiving, next) = (Mutex::default(), Mutex::default());
        Socket { fd, memory, blocks, frames: 0, frame: 2048, sending: blocks * BLOCK, receiving, next }
    }

    /// Packets of the interface come from now on: all of them, or with others of the same [group](Socket::new_group) each
    /// its flows.
    pub fn start(&self, interface: &Interface, group: Option<u16>) -> Result<()> {
        self.bind(interface, libc::ETH_P_ALL as u16)?;
        let joined = match group {
            Some(group) => set(&self.fd, libc::PACKET_FANOUT, &(u32::from(group) | BY_FLOW << 16)),
            None => Ok(()),
        };
        joined.map_err(|error| interface.refused("share packets between sockets", &error))
    }

    /// It sends to the interface, and receives nothing, or nothing yet.
    pub fn aim(&self, interface: &Interface) -> Result<()> {
        self.bind(interface, 0)
    }

    fn bind(&self, interface: &Interface, protocol: u16) -> Result<()> {
        // SAFETY: plain data, of which zeros are a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = interface.index() as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel reads one address.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), length) };
        match result {
            0 => Ok(()),
            _ => Err(interface.refused("bind a packet socket", &io::Error::last_os_error())),
        }
    }

    /// Makes a group, of this socket, which has started, for now.
    pub fn new_group(&self, interface: &Interface) -> Result<u16> {
        let begin = || {
            set(&self.fd, libc::PACKET_FANOUT, &((BY_FLOW | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16))?;
            option::get(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, 0u32).map(|group| group as u16)
        };
        begin().map_err(|error| interface.refused("share packets between sockets", &error))
    }

    /// Packets that found no room in the receive ring since the last time.
    pub fn drops(&self) -> u64 {
        let none = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        option::get(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, none)
            .map_or(0, |counted| counted.tp_drops.into())
    }

    /// Sends what is marked.
    pub fn push(&self) {
        // An error is of a frame, which is marked; or the interface is down, and the next call tries again.
        let _ = rustix::net::send(&self.fd, &[], rustix::net::SendFlags::DONTWAIT);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
