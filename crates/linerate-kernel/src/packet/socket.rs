//! A packet socket with its two rings (packet(7), kernel documentation networking/packet_mmap.rst).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use linerate_core::error::{Error, Result};
use linerate_core::memory::Mapping;
use linerate_core::offload::Offload;

use crate::interface::Interface;
use crate::packet_socket::{open, set};
use crate::{capabilities, option};

/// A socket bound to an interface. Its memory contains the receive ring, with blocks of packets of any length, then the
/// send ring, with frames of fixed length.
pub struct Socket {
    fd: OwnedFd,
    pub memory: Mapping,
    pub blocks: usize,
    pub frames: usize,
    /// The length of a frame of the send ring in bytes.
    pub frame: usize,
    /// The offset of the send ring.
    pub sending: usize,
    /// The positions at which dropped queues stopped.
    pub receiving: Mutex<Receiving>,
    pub transmitting: Mutex<Transmitting>,
}

/// The read position in a socket's blocks.
#[derive(Clone, Copy, Default)]
pub struct Receiving {
    pub block: usize,
    /// Packets of the block not yet read, and the offset of the next packet.
    pub left: u32,
    pub next: usize,
}

/// The position in a socket's send ring.
#[derive(Clone, Copy, Default)]
pub struct Transmitting {
    /// The next frame to be written.
    pub next: usize,
    /// The number of frames before `next` that the kernel had not taken when last checked.
    pub pending: usize,
}

/// The length of a block in bytes. A packet never spans blocks, so there must be room for 64 KiB.
pub const BLOCK: usize = 128 << 10;
/// The minimum and maximum time in milliseconds after which the kernel hands over a block that is not full.
const BLOCK_TIMEOUT: (u32, u32) = (1, 8);
/// With slow traffic, a block contains the packets of one timeout, perhaps only one packet. With this many blocks, a
/// reader can pause without loss for an eighth of a second at the minimum timeout, and for a second at the maximum.
const FEWEST_BLOCKS: usize = 128;
/// The fewest blocks of a ring of at least [`LONG`] packets, as used for captures.
const FEWEST_BLOCKS_OF_LONG: usize = 256;
const LONG: usize = 4096;
/// The length of the header before a frame to be sent, `struct tpacket3_hdr`.
pub const HEADER: usize = libc::TPACKET3_HDRLEN - size_of::<libc::sockaddr_ll>();

/// Fanout by flow: all packets of a flow go to the same socket. A group has its own setting for packets that this machine
/// sends, since Linux 5.11.
const BY_FLOW: u32 = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;

impl Socket {
    /// Opens a socket with rings for about `ring` packets each way, and frames of at most `longest` bytes to send. In
    /// slow traffic, packets may wait in the kernel for up to `patience`.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): the operation that the kernel refused.
    pub fn open(interface: &Interface, ring: usize, longest: usize, patience: Duration) -> Result<Socket> {
        let fd = open().map_err(|error| interface.refused("open a packet socket", capabilities::PACKET, &error))?;
        let frame = (HEADER + Offload::LEN + longest).next_power_of_two().max(2048);
        let frames = ring;
        // Room for `ring` packets of 2048 bytes; the kernel packs shorter packets densely.
        let fewest = if ring < LONG { FEWEST_BLOCKS } else { FEWEST_BLOCKS_OF_LONG };
        let blocks = (ring * 2048 / BLOCK).max(fewest);
        let rings = || {
            set(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))?;
            // Each packet is preceded by a header with its offloads.
            set(&fd, libc::PACKET_VNET_HDR, &1)?;
            // Packets sent by this machine are not received.
            set(&fd, libc::PACKET_IGNORE_OUTGOING, &1)?;
            set(&fd, libc::PACKET_QDISC_BYPASS, &1)?;
            let block = BLOCK.max(frame);
            let mut request = libc::tpacket_req3 {
                tp_block_size: BLOCK as u32,
                tp_block_nr: blocks as u32,
                tp_frame_size: 2048,
                tp_frame_nr: (BLOCK / 2048 * blocks) as u32,
                tp_retire_blk_tov: patience.as_millis().clamp(BLOCK_TIMEOUT.0.into(), BLOCK_TIMEOUT.1.into()) as u32,
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
        let to_send = rings().map_err(|error: io::Error| {
            interface.refused("create the rings of a packet socket", capabilities::PACKET, &error)
        })?;
        let sending = blocks * BLOCK;
        let file = fd.as_fd().try_clone_to_owned().map_err(|error| Error::system("dup of a socket", error))?;
        // SAFETY: the kernel keeps a socket's rings as long as they are mapped.
        let memory = unsafe { Mapping::of_device(file, 0, sending + to_send) }?;
        let (receiving, transmitting) = (Mutex::default(), Mutex::default());
        Ok(Socket { fd, memory, blocks, frames, frame, sending, receiving, transmitting })
    }

    /// Wraps blocks that no kernel fills.
    #[cfg(test)]
    pub fn for_test(fd: OwnedFd, memory: Mapping, blocks: usize) -> Socket {
        let (receiving, transmitting) = (Mutex::default(), Mutex::default());
        Socket { fd, memory, blocks, frames: 0, frame: 2048, sending: blocks * BLOCK, receiving, transmitting }
    }

    /// Starts receiving the interface's packets: all of them, or the socket's share of flows in a
    /// [group](Socket::new_group).
    pub fn start(&self, interface: &Interface, group: Option<u16>) -> Result<()> {
        self.bind(interface, libc::ETH_P_ALL as u16)?;
        let joined = match group {
            Some(group) => set(&self.fd, libc::PACKET_FANOUT, &(u32::from(group) | BY_FLOW << 16)),
            None => Ok(()),
        };
        joined.map_err(|error| interface.refused("share packets between sockets", capabilities::PACKET, &error))
    }

    /// Binds the socket to the interface only for sending.
    pub fn bind_for_sending(&self, interface: &Interface) -> Result<()> {
        self.bind(interface, 0)
    }

    fn bind(&self, interface: &Interface, protocol: u16) -> Result<()> {
        // SAFETY: plain data, for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = interface.index() as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel reads one address.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), length) };
        match result {
            0 => Ok(()),
            _ => Err(interface.refused("bind a packet socket", capabilities::PACKET, &io::Error::last_os_error())),
        }
    }

    /// Creates a fanout group with this socket, which must have started, as its first member.
    pub fn new_group(&self, interface: &Interface) -> Result<u16> {
        let begin = || {
            set(&self.fd, libc::PACKET_FANOUT, &((BY_FLOW | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16))?;
            option::get(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, 0u32).map(|group| group as u16)
        };
        begin().map_err(|error| interface.refused("share packets between sockets", capabilities::PACKET, &error))
    }

    /// Returns the number of packets that found no room in the receive ring since the last call.
    pub fn drops(&self) -> u64 {
        let none = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        option::get(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, none)
            .map_or(0, |counted| counted.tp_drops.into())
    }

    /// Sends the frames marked for sending; returns false if one could not be sent. The kernel retries that frame in
    /// the next call, unless it is malformed.
    pub fn push(&self) -> bool {
        rustix::net::send(&self.fd, &[], rustix::net::SendFlags::DONTWAIT).is_ok()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
