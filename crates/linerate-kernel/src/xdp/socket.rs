//! An AF_XDP socket on one queue of an interface: its four rings, with the region as its UMEM.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use linerate_core::error::{Error, Result};
use linerate_core::memory::{Mapping, PageSize, Pool, Reservation};
use linerate_core::port::{Drops, FRAME_HEADERS};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_send_buffer_size_force, set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::ring::{Consumer, Producer};
use super::{KERNEL_HEADROOM, XdpOptions};
use crate::port::Target;
use crate::{capabilities, option};

/// Offsets at which the rings are mapped from the socket (linux/if_xdp.h).
const RECEIVE_OFFSET: u64 = 0;
const SEND_OFFSET: u64 = 0x8000_0000;
const FILL_OFFSET: u64 = 0x1_0000_0000;
const COMPLETION_OFFSET: u64 = 0x1_8000_0000;
/// 64-bit words of a descriptor: an address, and for packets also length and options.
const PACKET: usize = 2;
const ADDRESS: usize = 1;
/// Bytes of metadata before a packet to be sent (`struct xsk_tx_metadata`).
pub const METADATA: usize = 16;
/// The UMEM's packets may have metadata (`XDP_UMEM_TX_METADATA_LEN`).
const HAS_METADATA_LENGTH: u32 = 1 << 2;
// From asm-generic/socket.h.
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// How long the kernel polls for packets when requested, and the maximum number of packets per poll.
const BUSY_MICROSECONDS: libc::c_int = 20;
const BUSY_PACKETS: libc::c_int = 64;

/// Buffers that a card may still write to, because the kernel did not release its queue within [`RELEASE`]. The next
/// socket bound to the queue returns them.
static QUARANTINE: Mutex<Vec<Quarantined>> = Mutex::new(Vec::new());

struct Quarantined {
    at: (u32, u32),
    pool: Arc<Pool>,
    bufs: Vec<u32>,
}

impl Quarantined {
    /// Returns a queue's buffers to their pools; the card no longer uses them.
    fn give_back(at: (u32, u32)) {
        let mut all = QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner);
        for quarantined in all.extract_if(.., |quarantined| quarantined.at == at) {
            // SAFETY: the queue that owned them has ended, and the card has released them.
            unsafe { quarantined.pool.give(&quarantined.bufs) };
        }
    }
}

/// How long to wait for the kernel to release a queue or an XDP hook that a port used until it was closed.
pub(super) const RELEASE: Duration = Duration::from_millis(500);

/// Retries until `until` while the resource is still taken. The kernel does not announce its release.
pub(super) fn retry_until_released<T, E>(
    until: Instant,
    is_taken: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    loop {
        match attempt() {
            Err(error) if is_taken(&error) && Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
}

/// A bound socket, whose two ends belong to queues. It is closed when both are dropped; all buffers lent to the kernel
/// then return to the pool.
pub struct Socket {
    /// `None` only during drop.
    fd: Option<OwnedFd>,
    interface: u32,
    pub queue: u32,
    /// Kernel and card use the region's buffers without copying.
    pub zero_copy: bool,
    /// A frame may consist of several buffers.
    pub chains: bool,
    /// The kernel computes checksums: always in copy mode; in zero-copy mode, support by the driver is unknown.
    pub checksums: bool,
    /// The UMEM was registered with [`METADATA`].
    has_metadata: bool,
    pool: Arc<Pool>,
    receiving: Mutex<Option<Receiving>>,
    sending: Mutex<Option<Sending>>,
    /// Accumulates the socket's drops when it is closed.
    past: Arc<Mutex<Drops>>,
}

/// The receiving end: empty buffers go to the kernel, full buffers return.
pub struct Receiving {
    pub ring: Consumer,
    pub fill: Producer,
    pub lent: Lent,
    _reservation: Reservation,
}

/// The sending end: full buffers go to the kernel, and return when they are sent.
pub struct Sending {
    pub ring: Producer,
    pub completion: Consumer,
    pub lent: Lent,
    pub pending: Pending,
    _reservation: Reservation,
}

/// Packets and bytes in the send ring that the kernel has not taken, in two groups. A packet costs only an addition,
/// and the count lags by at most one group.
#[derive(Default)]
pub struct Pending {
    /// Packets and bytes of the descriptors before `end`.
    first: (usize, usize),
    end: u32,
    later: (usize, usize),
}

impl Pending {
    /// Adds packets and bytes written to the ring. Returns those that the kernel has taken since the last call.
    pub fn add(&mut self, packets: usize, bytes: usize, ring: &Producer) -> (usize, usize) {
        self.later = (self.later.0 + packets, self.later.1 + bytes);
        let (written, waiting) = (ring.written(), ring.waiting());
        if written.wrapping_sub(self.end) < waiting {
            return (0, 0);
        }
        let mut taken = std::mem::replace(&mut self.first, std::mem::take(&mut self.later));
        self.end = written;
        if waiting == 0 {
            let (packets, bytes) = std::mem::take(&mut self.first);
            taken = (taken.0 + packets, taken.1 + bytes);
        }
        taken
    }
}

/// A bit set of the buffers lent to the kernel. Any other buffer that the kernel returns is rejected.
pub struct Lent {
    words: Box<[u64]>,
    count: usize,
}

impl Lent {
    fn new(pool: &Pool) -> Lent {
        Lent { words: vec![0; pool.region().buffers().div_ceil(64)].into(), count: 0 }
    }

    /// Returns the number of buffers.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Records that the buffer was lent to the kernel.
    #[inline(always)]
    pub fn lend(&mut self, buf: u32) {
        self.words[buf as usize / 64] |= 1 << (buf % 64);
        self.count += 1;
    }

    /// Records that the kernel returned the buffer; returns false if it was not lent.
    #[inline(always)]
    pub fn take_back(&mut self, buf: u64) -> bool {
        let Some(word) = self.words.get_mut((buf / 64) as usize) else { return false };
        let bit = 1 << (buf % 64);
        let had = *word & bit != 0;
        *word &= !bit;
        self.count -= usize::from(had);
        had
    }

    fn all(&self) -> Vec<u32> {
        let of_word = |(n, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| n as u32 * 64 + bit)
        };
        self.words.iter().enumerate().flat_map(of_word).collect()
    }
}

/// Open sockets by pool; another socket can share their UMEM.
static SHARING: Mutex<Vec<(Weak<Pool>, Weak<Socket>)>> = Mutex::new(Vec::new());

/// Whether sockets use zero-copy or copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// Zero-copy if the interface and the kernel support it.
    #[default]
    Auto,
    /// Always copy mode.
    Copy,
    /// Always zero-copy mode.
    Never,
}

impl Socket {
    /// Binds to a queue of the interface.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the queue is taken or does not support the mode;
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted),
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System).
    pub fn bind(target: &Target, queue: u32, options: &XdpOptions, past: &Arc<Mutex<Drops>>) -> Result<Arc<Socket>> {
        let (pool, copying) = (&target.config.pool, options.copying);
        // The kernel releases a queue shortly after its last socket was closed.
        let until = Instant::now() + RELEASE;
        let sharing = {
            let mut all = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|(pool, socket)| pool.strong_count() > 0 && socket.strong_count() > 0);
            let other = all.iter().find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(pool)));
            other.and_then(|(_, socket)| socket.upgrade())
        };
        // A shared UMEM is limited to what both interfaces support; a separate UMEM over the same memory may support
        // more.
        let shared = sharing
            .as_ref()
            .filter(|_| copying == Copying::Auto)
            .map(|other| Socket::open(target, queue, Some(other), SocketAddrXdpFlags::XDP_SHARED_UMEM, until, past));
        if let Some(Ok(socket)) = shared {
            return options.busy.then(|| socket.poll_busily(target)).transpose().map(|_| socket);
        }
        let own = |flags: SocketAddrXdpFlags| {
            let flags = flags | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
            Socket::open(target, queue, None, flags, until, past)
        };
        let (copy, never, chains) =
            (SocketAddrXdpFlags::XDP_COPY, SocketAddrXdpFlags::XDP_ZEROCOPY, SocketAddrXdpFlags::XDP_USE_SG);
        // Kernels before 6.6, and some drivers, do not support chains. For such a driver, later kernels fall back to
        // copy mode if chains are requested (`xp_assign_dev`). So if frames need no chain, zero-copy mode is tried
        // first.
        let longest = target.interface.mtu()? + FRAME_HEADERS + KERNEL_HEADROOM;
        let fits = longest <= pool.region().buffer_size();
        let socket = match copying {
            Copying::Copy => own(copy | chains).or_else(|_| own(copy)),
            Copying::Never => own(never | chains).or_else(|_| own(never)),
            Copying::Auto if fits => {
                own(never | chains).or_else(|_| own(never)).or_else(|_| own(copy | chains)).or_else(|_| own(copy))
            }
            Copying::Auto => own(chains).or_else(|_| own(SocketAddrXdpFlags::empty())),
        }?;
        if options.busy {
            socket.poll_busily(target)?;
        }
        let mut all = SHARING.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((Arc::downgrade(pool), Arc::downgrade(&socket)));
        Ok(socket)
    }

    /// Fails on a kernel without AF_XDP.
    pub fn check_kernel(interface: &str) -> Result<()> {
        match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
            Err(Errno::AFNOSUPPORT) => Err(super::no_xdp(interface, "the kernel has no AF_XDP")),
            // Other errors are reported when the socket is used.
            _ => Ok(()),
        }
    }

    /// Makes the driver process packets when polled instead of in interrupts.
    fn poll_busily(&self, target: &Target) -> Result<()> {
        let set = |option, value: libc::c_int| option::set(self.fd(), libc::SOL_SOCKET, option, &value);
        set(SO_PREFER_BUSY_POLL, 1)
            .and_then(|()| set(libc::SO_BUSY_POLL, BUSY_MICROSECONDS))
            .and_then(|()| set(SO_BUSY_POLL_BUDGET, BUSY_PACKETS))
            .map_err(|error| target.interface.refused("enable busy polling (Linux 5.11)", capabilities::XDP, &error))
    }

    fn open(
        target: &Target,
        queue: u32,
        sharing: Option<&Arc<Socket>>,
        flags: SocketAddrXdpFlags,
        until: Instant,
        past: &Arc<Mutex<Drops>>,
    ) -> Result<Arc<Socket>> {
        let Target { interface, config } = target;
        let (pool, ring) = (&config.pool, config.ring());
        let len = ring as u32;
        let refused = |what: &str, error: Errno| interface.refused(what, capabilities::XDP, &error.into());
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(|error| refused("open an AF_XDP socket", error))?;
        let region = pool.region();
        let mut has_metadata = sharing.is_some_and(|other| other.has_metadata);
        if sharing.is_none() {
            let umem = XdpUmemReg {
                // SAFETY: no bytes are read or written.
                addr: unsafe { region.mapping() }.address(),
                len: (region.buffers() * region.buffer_size()) as u64,
                chunk_size: region.buffer_size() as u32,
                headroom: 0,
                flags: XdpUmemRegFlags::from_bits_retain(HAS_METADATA_LENGTH),
                tx_metadata_len: METADATA as u32,
            };
            // Kernels before 6.8 do not support metadata, and kernels before 6.11 do not know this flag.
            let plain = XdpUmemReg { flags: XdpUmemRegFlags::empty(), tx_metadata_len: 0, ..umem };
            let register = || match set_xdp_umem_reg(&fd, umem) {
                Err(Errno::INVAL) => set_xdp_umem_reg(&fd, plain).map(|()| false),
                made => made.map(|()| true),
            };
            // The kernel still counts the memory of a socket that was just closed, such as one that could not be bound
            // without copies.
            let is_counted = |error: &Errno| *error == Errno::NOBUFS && umem.len >> 10 <= memory_lock_limit();
            let made = retry_until_released(until, is_counted, register);
            has_metadata = made.map_err(|error| match error {
                Errno::NOBUFS | Errno::NOMEM => {
                    Error::memory_lock(memory_lock_limit(), (umem.len >> 10).next_multiple_of(4))
                }
                error => refused("register the region as its UMEM", error),
            })?;
        }
        let rings = [
            set_xdp_umem_fill_ring_size(&fd, len),
            set_xdp_umem_completion_ring_size(&fd, len),
            set_xdp_rx_ring_size(&fd, len),
            set_xdp_tx_ring_size(&fd, len),
        ];
        rings
            .into_iter()
            .collect::<std::result::Result<(), Errno>>()
            .map_err(|error| refused("create its rings", error))?;
        // In copy mode, frames in flight count against this limit; frames beyond it would wait for the next wakeup.
        let in_flight = (len as usize * region.buffer_size() * 2).min(1 << 30);
        let _ = set_socket_send_buffer_size_force(&fd, in_flight);
        let offsets = xdp_mmap_offsets(&fd).map_err(|error| refused("map its rings", error))?;
        let mut receiving = Receiving {
            ring: Consumer::map(&fd, RECEIVE_OFFSET, offsets.rx, PACKET, len)?,
            fill: Producer::map(&fd, FILL_OFFSET, offsets.fr, ADDRESS, len)?,
            lent: Lent::new(pool),
            _reservation: pool.reserve(len as usize)?,
        };
        let sending = Sending {
            ring: Producer::map(&fd, SEND_OFFSET, offsets.tx, PACKET, len)?,
            completion: Consumer::map(&fd, COMPLETION_OFFSET, offsets.cr, ADDRESS, len)?,
            lent: Lent::new(pool),
            pending: Pending::default(),
            _reservation: pool.reserve(len as usize)?,
        };
        let bind_once = || {
            let addr = SocketAddrXdp::new(flags, interface.index(), queue);
            match sharing {
                Some(other) => bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: other.fd() }),
                None => bind(&fd, &addr),
            }
        };
        retry_until_released(until, |error| *error == Errno::BUSY, bind_once).map_err(|error| match error {
            Errno::BUSY => Error::interface(
                interface.name().to_string(),
                format!("queue {queue} is bound to another AF_XDP socket already"),
                "end the other program, or take another queue: xdp:IF-Q".to_string(),
            ),
            Errno::INVAL if queue >= interface.queues() => Error::interface(
                interface.name().to_string(),
                format!("it has no queue {queue}; it has {}", interface.queues()),
                format!("use one of those, or add more: sudo ethtool -L {} combined N", interface.name()),
            ),
            error => refused(&format!("bind to queue {queue}"), error),
        })?;
        Quarantined::give_back((interface.index(), queue));
        let zero_copy = xdp_options(&fd).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let chains = sharing.map_or(flags.contains(SocketAddrXdpFlags::XDP_USE_SG), |other| other.chains);

        let buffers = pool.region().buffers();
        let bufs = pool.take(len as usize).ok_or(Error::pool_too_small(buffers, len as usize))?;
        for buf in bufs {
            receiving.lent.lend(buf);
            receiving.fill.push([u64::from(buf) << region.shift()]);
        }
        receiving.fill.submit();
        Ok(Arc::new(Socket {
            fd: Some(fd),
            interface: interface.index(),
            queue,
            zero_copy,
            chains,
            checksums: has_metadata && !zero_copy,
            has_metadata,
            pool: pool.clone(),
            receiving: Mutex::new(Some(receiving)),
            sending: Mutex::new(Some(sending)),
            past: past.clone(),
        }))
    }

    /// Returns the socket's descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is open until it is dropped").as_fd()
    }

    /// Takes the receiving end; `None` if a queue has it.
    pub fn take_receiving(&self) -> Option<Receiving> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the sending end; `None` if a queue has it.
    pub fn take_sending(&self) -> Option<Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn give_receiving(&self, end: Receiving) {
        *self.receiving.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    pub fn give_sending(&self, end: Sending) {
        *self.sending.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Returns the kernel's drops on this socket, without the card's ([`Interface::missed`]).
    pub fn drops(&self) -> Drops {
        let Ok(counted) = xdp_statistics(self.fd()) else { return Drops::default() };
        // `rx_fill_ring_empty_descs` is left out. In copy mode, a packet that finds the fill ring empty is counted in
        // `rx_dropped` as well (net/xdp/xsk.c, `__xsk_rcv`). A zero-copy driver counts each time it finds the fill ring
        // empty, even while its descriptors have buffers (`xp_alloc`).
        let ring_full = counted.rx_ring_full.unwrap_or(0);
        Drops {
            no_descriptor: counted.rx_dropped + ring_full,
            malformed: counted.rx_invalid_descs + counted.tx_invalid_descs,
            ..Drops::default()
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let drops = self.drops();
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        *past += drops;
        // Both ends have been returned. The rings and the socket are closed first. In copy mode, the kernel then holds
        // no buffers. In zero-copy mode, the card holds them until the kernel has released its queue, which closing
        // only schedules (`xp_put_pool`).
        let receiving = self.take_receiving().map(|end| end.lent);
        let sending = self.take_sending().map(|end| end.lent);
        self.fd = None;
        let bufs = receiving.into_iter().chain(sending).flat_map(|lent| lent.all()).collect::<Vec<_>>();
        let at = (self.interface, self.queue);
        if !self.zero_copy || is_released(at, RELEASE) {
            // SAFETY: the buffers were lent to the kernel, whose socket is closed and whose card has released them.
            unsafe { self.pool.give(&bufs) };
        } else {
            let quarantined = Quarantined { at, pool: self.pool.clone(), bufs };
            QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner).push(quarantined);
        }
    }
}

/// Waits at most `longest` for the kernel to release the queue of a closed socket. Returns false if it has not, or if
/// another socket has the queue.
///
/// A successful bind proves the release: a queue has one buffer pool, and is free once the driver has released the last
/// one (`xp_clear_dev`). The probing socket uses copy mode, so that the card gets none of its buffers.
fn is_released((interface, queue): (u32, u32), longest: Duration) -> bool {
    let until = Instant::now() + longest;
    let Ok(memory) = Mapping::new(PROBE as usize * 4096, PageSize::Ordinary, None) else { return false };
    let probed =
        retry_until_released(until, |error| *error == Errno::BUSY, || bind_copying((interface, queue), &memory));
    // Without a device, the interface and the card's queue are gone.
    matches!(probed, Ok(_) | Err(Errno::NODEV))
}

/// The number of buffers, and of descriptors of each ring, of a probing socket.
const PROBE: u32 = 64;

/// Binds a socket in copy mode to an interface's queue.
fn bind_copying((interface, queue): (u32, u32), memory: &Mapping) -> std::result::Result<OwnedFd, Errno> {
    let umem = XdpUmemReg {
        addr: memory.address(),
        len: memory.len() as u64,
        chunk_size: 4096,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_xdp_umem_reg(&fd, umem)?;
    set_xdp_umem_fill_ring_size(&fd, PROBE)?;
    set_xdp_umem_completion_ring_size(&fd, PROBE)?;
    set_xdp_rx_ring_size(&fd, PROBE)?;
    bind(&fd, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, interface, queue))?;
    Ok(fd)
}

/// Returns the limit of locked memory in KiB.
fn memory_lock_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    limit.current.map_or(u64::MAX, |bytes| bytes >> 10)
}

/// Wakes the kernel by an empty send or receive.
pub fn wake(socket: BorrowedFd<'_>, sending: bool) -> io::Result<()> {
    use rustix::net::{RecvFlags, SendFlags, recv, send};
    match sending {
        true => send(socket, &[], SendFlags::DONTWAIT).map(drop)?,
        false => recv(socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT).map(drop)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use linerate_core::batch::Batch;
    use linerate_core::memory::{Pages, Region, RegionOptions};
    use linerate_core::port::{Receive, Rx, Transmit, Tx};
    use linerate_core::slot::Slot;
    use proptest::prelude::*;
    use rustix::net::xdp::XdpRingOffset;

    use super::*;
    use crate::bpf::SocketMap;
    use crate::interface::LongestFrame;
    use crate::xdp::queue::{XdpRx, XdpTx};
    use crate::xdp::{MOST_BUFFERS, Shared};

    const LEN: u32 = 64;
    const BUFFERS: usize = 256;
    const CONSUMER: usize = 64;
    const FLAGS: usize = 128;
    const DESCRIPTORS: usize = 256;

    /// Creates a ring's memory, as the kernel sees it, and the file to map it from.
    fn ring() -> (Mapping, OwnedFd, XdpRingOffset) {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        // SAFETY: the test does not shorten the file while it is mapped.
        let kernel = unsafe { Mapping::of_device(file.try_clone().unwrap(), 0, 8192) }.unwrap();
        let offsets = XdpRingOffset {
            producer: 0,
            consumer: CONSUMER as u64,
            desc: DESCRIPTORS as u64,
            flags: Some(FLAGS as u64),
        };
        (kernel, file, offsets)
    }

    /// Generates descriptors from the kernel, valid or malformed.
    fn said() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let address = prop_oneof![
            4 => (0..BUFFERS as u64, 0..2048u64).prop_map(|(buf, offset)| buf << 11 | offset),
            1 => any::<u64>(),
        ];
        let word = prop_oneof![4 => (0..2500u64, any::<bool>()).prop_map(|(len, more)| len | u64::from(more) << 32), 1 => any::<u64>()];
        prop::collection::vec((address, word), 0..80)
    }

    fn produce(ring: &Mapping, words: usize, said: &[(u64, u64)]) {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let from = ring.word(0).load(Relaxed);
        for (n, (address, word)) in said.iter().enumerate() {
            let at = DESCRIPTORS + (from.wrapping_add(n as u32) % LEN) as usize * words * 8;
            // SAFETY: no slice of this memory is lent.
            #[allow(unsafe_code)]
            let descriptor = unsafe { ring.words(at, words) };
            descriptor[0].store(*address, Relaxed);
            if words > 1 {
                descriptor[1].store(*word, Relaxed);
            }
        }
        ring.word(0).store(from.wrapping_add(said.len() as u32), Release);
    }

    /// Both queues of a socket, with the test as their kernel.
    struct Fake {
        pool: Arc<Pool>,
        received: Mapping,
        completed: Mapping,
        filled: Mapping,
        sent: Mapping,
        rx: Rx<XdpRx>,
        tx: Tx<XdpTx>,
        /// The kernel's end of the socket.
        kernel: OwnedFd,
    }

    impl Fake {
        fn new() -> Fake {
            Fake::with(true, false)
        }

        /// Emulates a kernel with or without chains and checksums.
        fn with(chains: bool, checksums: bool) -> Fake {
            Fake::of(0, false, chains, checksums, 2048)
        }

        /// Emulates an interface in zero-copy or copy mode.
        fn of(interface: u32, zero_copy: bool, chains: bool, checksums: bool, buffer_size: usize) -> Fake {
            let pages = Pages::Only(PageSize::Ordinary);
            let options = RegionOptions { buffers: BUFFERS, buffer_size, pages, numa_node: None };
            let shared = Arc::new(Shared { map: SocketMap::new(1).unwrap(), started: Mutex::new(vec![None]) });
            let pool = Pool::new(Region::new(&options).unwrap());
            let (received, file, offsets) = ring();
            let (filled, fill_file, _) = ring();
            let mut receiving = Receiving {
                ring: Consumer::map(&file, 0, offsets, PACKET, LEN).unwrap(),
                fill: Producer::map(&fill_file, 0, offsets, ADDRESS, LEN).unwrap(),
                lent: Lent::new(&pool),
                _reservation: pool.reserve(LEN as usize).unwrap(),
            };
            pool.take(LEN as usize).unwrap().into_iter().for_each(|buf| receiving.lent.lend(buf));
            let (sent, send_file, _) = ring();
            let (completed, completion_file, _) = ring();
            let sending = Sending {
                ring: Producer::map(&send_file, 0, offsets, PACKET, LEN).unwrap(),
                completion: Consumer::map(&completion_file, 0, offsets, ADDRESS, LEN).unwrap(),
                lent: Lent::new(&pool),
                pending: Pending::default(),
                _reservation: pool.reserve(LEN as usize).unwrap(),
            };
            let (end, kernel) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            let socket = Arc::new(Socket {
                interface,
                fd: Some(end),
                queue: 0,
                zero_copy,
                chains,
                checksums,
                has_metadata: false,
                pool: pool.clone(),
                receiving: Mutex::new(Some(receiving)),
                sending: Mutex::new(Some(sending)),
                past: Arc::default(),
            });
            let rx = XdpRx {
                sockets: vec![(socket.clone(), socket.take_receiving())],
                turn: 0,
                partial: Vec::new(),
                pool: pool.clone(),
                counters: Arc::default(),
                any: None,
                queue: 0,
                busy: false,
                may_lack_checksums: false,
                hints: None,
                shared,
            };
            let tx = XdpTx {
                end: socket.take_sending(),
                socket,
                pool: pool.clone(),
                counters: Arc::default(),
                longest: LongestFrame::any(9000),
            };
            Fake { pool, received, completed, filled, sent, rx: Rx::new(rx), tx: Tx::new(tx), kernel }
        }

        /// Sets whether the kernel must be woken for a ring.
        fn sleeps(&self, ring: &Mapping, yes: bool) {
            ring.word(FLAGS).store(u32::from(yes), std::sync::atomic::Ordering::Relaxed);
        }

        /// Receives; returns whether the kernel was woken: the wakeup consumed a message.
        fn wakes_to_receive(&mut self, batch: &mut Batch) -> bool {
            use rustix::net::{RecvFlags, SendFlags, recv, send};
            send(&self.kernel, &[1], SendFlags::empty()).unwrap();
            self.rx.recv(batch);
            recv(self.rx.sockets[0].0.fd(), &mut [0u8; 1][..], RecvFlags::empty()).is_err()
        }

        /// Returns how often the kernel was woken to send since the last call.
        fn wakes_to_send(&self) -> usize {
            let mut byte = [0u8; 1];
            let next = || rustix::net::recv(&self.kernel, &mut byte[..], rustix::net::RecvFlags::empty()).ok();
            std::iter::from_fn(next).count()
        }
    }

    /// Returns the descriptors that the queue has handed over so far, of `WORDS` words each.
    fn handed_over<const WORDS: usize>(ring: &Mapping) -> Vec<[u64; WORDS]> {
        let count = ring.word(0).load(std::sync::atomic::Ordering::Acquire);
        let word = |at: usize| {
            let mut bytes = [0; 8];
            ring.read(DESCRIPTORS + at * 8, &mut bytes);
            u64::from_ne_bytes(bytes)
        };
        (0..count as usize).map(|n| std::array::from_fn(|at| word(n * WORDS + at))).collect()
    }

    #[test]
    fn the_kernel_is_woken_to_receive_where_it_sleeps() {
        let mut fake = Fake::new();
        let lent: Vec<u32> = fake.rx.sockets[0].1.as_ref().unwrap().lent.all();
        let mut batch = Batch::new();
        assert!(!fake.wakes_to_receive(&mut batch), "it is awake");
        fake.sleeps(&fake.filled, true);
        assert!(fake.wakes_to_receive(&mut batch));
        produce(&fake.received, PACKET, &[(u64::from(lent[0]) << 11, 60)]);
        assert!(fake.wakes_to_receive(&mut batch), "it has a buffer more");
        fake.sleeps(&fake.filled, false);
        produce(&fake.received, PACKET, &[(u64::from(lent[1]) << 11, 60)]);
        assert!(!fake.wakes_to_receive(&mut batch));
        // The packet finds no buffer, so the kernel gets none in return.
        let mut full = Batch::with_capacity(1);
        assert!(full.push(&fake.pool, &[0; 60]));
        produce(&fake.received, PACKET, &[(u64::from(lent[2]) << 11, 60)]);
        fake.sleeps(&fake.filled, true);
        assert!(!fake.wakes_to_receive(&mut full));
        fake.rx.recv(&mut batch);
        // In busy polling, the driver is polled whenever there is no packet.
        fake.sleeps(&fake.filled, false);
        fake.rx.busy = true;
        assert!(fake.wakes_to_receive(&mut batch));
    }

    #[test]
    fn the_kernel_is_woken_to_send_where_it_sleeps() {
        let mut fake = Fake::new();
        let mut batch = Batch::with_capacity(64);
        let mut send = |fake: &mut Fake, count: usize| {
            (0..count).for_each(|_| assert!(batch.push(&fake.pool, &[0; 60])));
            fake.tx.send(&mut batch);
            fake.wakes_to_send()
        };
        assert_eq!(send(&mut fake, 3), 0, "it is awake");
        fake.sleeps(&fake.sent, true);
        // The kernel has not taken the other packets.
        assert_eq!(send(&mut fake, 0), 1);
        assert_eq!(send(&mut fake, 1), 1);
        fake.sent.word(CONSUMER).store(4, std::sync::atomic::Ordering::Release);
        assert_eq!(send(&mut fake, 0), 0, "it has taken all");
        // The kernel sends a limited number per wakeup; the kernel of this test takes none.
        for (count, times) in [(31, 1), (32, 2)] {
            assert_eq!(send(&mut fake, count), times, "{count}");
            let all = fake.sent.word(0).load(std::sync::atomic::Ordering::Relaxed);
            fake.sent.word(CONSUMER).store(all, std::sync::atomic::Ordering::Release);
        }
    }

    /// A queue of several sockets receives from each in turn, and is readable if one of them is readable.
    #[test]
    fn a_queue_of_two_sockets_has_the_packets_of_both() {
        let (mut first, mut second) = (Fake::new(), Fake::new());
        assert!(XdpRx::watch(&first.rx.sockets).unwrap().is_none(), "a socket is waited for itself");
        let ends = [&first, &second].map(|fake| fake.rx.sockets[0].1.as_ref().unwrap().lent.all());
        let (sockets, rx) = (std::mem::take(&mut second.rx.sockets), &mut first.rx);
        rx.sockets.extend(sockets);
        rx.any = XdpRx::watch(&rx.sockets).unwrap();
        let is_readable = |rx: &mut Rx<XdpRx>| {
            let event = rx.arm().unwrap();
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = [rustix::event::PollFd::new(&event, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut events, Some(&now)).unwrap() == 1
        };
        assert!(!is_readable(rx));
        for kernel in [&first.kernel, &second.kernel] {
            rustix::net::send(kernel, &[1], rustix::net::SendFlags::empty()).unwrap();
            assert!(is_readable(rx));
            for (socket, _) in &rx.sockets {
                let _ = rustix::net::recv(socket.fd(), &mut [0u8; 1][..], rustix::net::RecvFlags::empty());
            }
        }
        let mut batch = Batch::with_capacity(4);
        for (received, lent) in [(&first.received, &ends[0]), (&second.received, &ends[1])] {
            let packets: Vec<_> = (0..6).map(|n| (u64::from(lent[n]) << 11, 60 + n as u64)).collect();
            produce(received, PACKET, &packets);
        }
        // A full batch ends within the first socket's packets; the next call continues there, then with the second
        // socket.
        let mut lens = Vec::new();
        while rx.recv(&mut batch) > 0 {
            lens.extend(batch.packets().map(|packet| packet.len()));
            batch.clear();
        }
        assert_eq!(lens, [60, 61, 62, 63, 64, 65, 60, 61, 62, 63, 64, 65]);
        assert_eq!(rx.buffers(), 2 * LEN as usize);
        // While the end of a packet is missing, no other packet is received.
        let at = |lent: &[u32], n: usize| u64::from(lent[n]) << 11;
        rx.turn = 0;
        produce(&first.received, PACKET, &[(at(&ends[0], 6), 2048 | 1 << 32)]);
        produce(&second.received, PACKET, &[(at(&ends[1], 6), 70)]);
        assert_eq!((rx.recv(&mut batch), rx.buffers()), (0, 2 * LEN as usize + 1));
        produce(&first.received, PACKET, &[(at(&ends[0], 7), 10)]);
        assert_eq!(rx.recv(&mut batch), 3);
        assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [2058, 70]);
    }

    /// A slot's offset is at most `Slot::MAX_OFFSET`, although buffers may be longer.
    #[test]
    fn a_packet_that_begins_beyond_a_slot_s_offsets_is_dropped() {
        let mut fake = Fake::of(0, false, true, false, 8192);
        let lent: Vec<u32> = fake.rx.sockets[0].1.as_ref().unwrap().lent.all();
        let packets: Vec<_> =
            [4095, 4096, 4097].iter().zip(lent).map(|(offset, buf)| (u64::from(buf) << 13 | offset, 100)).collect();
        produce(&fake.received, PACKET, &packets);
        let mut batch = Batch::new();
        assert_eq!((fake.rx.recv(&mut batch), fake.rx.counters.drops()), (1, 2));
        assert_eq!(batch.slots()[0].offset(), Slot::MAX_OFFSET);
    }

    #[test]
    fn packets_for_a_batch_of_another_region_are_copied() {
        let Fake { pool, received, mut rx, tx, .. } = Fake::new();
        let other = Fake::new();
        let lent: Vec<u32> = rx.sockets[0].1.as_ref().unwrap().lent.all();
        let mut batch = Batch::with_capacity(3);
        assert!(batch.push(&other.pool, &[9; 60]));
        let packets: Vec<_> = (0..4).map(|n| (u64::from(lent[n]) << 11, 100 + n as u64)).collect();
        produce(&received, PACKET, &packets);
        assert_eq!(rx.recv(&mut batch), 2, "there is room for two");
        assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 100, 101]);
        // The other two packets wait, in buffers of the queue.
        assert_eq!(rx.buffers() + tx.buffers() + pool.available(), BUFFERS);
        batch.clear();
        assert_eq!(rx.recv(&mut batch), 2);
        assert_eq!(rx.buffers() + tx.buffers() + pool.available() + batch.len() + batch.cached(), BUFFERS);
        drop((rx, tx, batch));
        assert_eq!(pool.available(), BUFFERS);
    }

    #[test]
    fn packets_of_another_region_are_copied_and_wait_for_room() {
        let Fake { pool, sent, mut tx, rx, .. } = Fake::new();
        let other = Fake::new();
        let mut own = Batch::with_capacity(64);
        (0..LEN).for_each(|_| assert!(own.push(&pool, &[7; 60])));
        assert_eq!(tx.send(&mut own), LEN as usize);
        let mut batch = Batch::new();
        (0..3).for_each(|_| assert!(batch.push(&other.pool, &[9; 70])));
        // The three packets are accepted, and belong to the queue.
        assert_eq!((tx.send(&mut batch), batch.len(), tx.unsent()), (3, 0, LEN as usize + 3));
        assert_eq!(rx.buffers() + tx.buffers() + pool.available() + own.len() + own.cached(), BUFFERS);
        assert!(tx.buffers() >= LEN as usize + 3);
        sent.word(CONSUMER).store(LEN, std::sync::atomic::Ordering::Release);
        assert_eq!((tx.send(&mut own), tx.unsent()), (0, 3));
        drop((rx, tx, batch, own));
        assert_eq!(pool.available(), BUFFERS);
    }

    #[test]
    fn copies_are_sent_in_order_and_too_long_ones_are_dropped() {
        let Fake { pool, sent, mut tx, .. } = Fake::new();
        let other = Fake::new();
        let mut batch = Batch::with_capacity(128);
        assert!(batch.push(&other.pool, &[7; 9000]) && batch.push(&other.pool, &[7; 9001]));
        (0..LEN as usize).for_each(|n| assert!(batch.push(&other.pool, &vec![7; 100 + n])));
        let all = batch.len();
        assert_eq!((tx.send(&mut batch), batch.len(), tx.counters.drops()), (all, 0, 1));
        // The ring has no room for the last five: they wait as copies, and the queue's own packet waits behind them.
        let mut own = Batch::new();
        assert!(own.push(&pool, &[7; 999]));
        assert_eq!((tx.send(&mut own), own.len(), tx.unsent()), (0, 1, LEN as usize + 5));
        sent.word(CONSUMER).store(LEN, std::sync::atomic::Ordering::Release);
        assert_eq!((tx.send(&mut own), own.len(), tx.unsent()), (1, 0, 6));
        let lens: Vec<u64> = handed_over::<2>(&sent)[..6].iter().map(|[_, word]| *word).collect();
        assert_eq!(lens, [159, 160, 161, 162, 163, 999]);
    }

    #[test]
    fn a_packet_has_as_many_buffers_as_the_kernel_takes() {
        for (count, is_sent) in [(MOST_BUFFERS, true), (MOST_BUFFERS + 1, false)] {
            let Fake { pool, mut tx, .. } = Fake::new();
            tx.longest = LongestFrame::any(60_000);
            let mut batch = Batch::with_capacity(128);
            assert!(batch.push(&pool, &vec![7; count * pool.region().room()]) && batch.len() == count);
            assert_eq!(tx.send(&mut batch), count);
            assert_eq!((tx.unsent(), tx.counters.drops()), if is_sent { (count, 0) } else { (0, 1) });
        }
    }

    /// A card writes to its buffers until the kernel has released its queue, some time after the close.
    #[test]
    fn buffers_of_a_card_are_kept_until_its_queue_is_free() {
        let in_a_network_of_its_own = || {
            // SAFETY: this thread has no file that depends on the shared namespace.
            #[allow(unsafe_code)]
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("root may");
            let lo = 1;
            // Simulates a kernel that has not released the queue: another socket has it.
            let memory = Mapping::new(PROBE as usize * 4096, PageSize::Ordinary, None).unwrap();
            let busy = bind_copying((lo, 0), &memory).expect("the queue is free");
            let fake = Fake::of(lo, true, true, false, 2048);
            let pool = fake.pool.clone();
            drop(fake);
            assert_eq!(pool.available(), BUFFERS - LEN as usize, "they are quarantined");
            drop(busy);
            assert!(is_released((lo, 0), Duration::from_secs(60)));
            Quarantined::give_back((lo, 1));
            assert_eq!(pool.available(), BUFFERS - LEN as usize, "it is another queue that is free");
            Quarantined::give_back((lo, 0));
            assert_eq!(pool.available(), BUFFERS);
            // If the queue is already free, or in copy mode, the buffers return immediately.
            for zero_copy in [true, false] {
                let fake = Fake::of(lo, zero_copy, true, false, 2048);
                let pool = fake.pool.clone();
                drop(fake);
                assert_eq!(pool.available(), BUFFERS);
            }
        };
        std::thread::spawn(in_a_network_of_its_own).join().unwrap();
    }

    #[test]
    fn valid_received_descriptors_become_slots() {
        let Fake { pool, received, filled, mut rx, .. } = Fake::new();
        let lent: Vec<u32> = rx.sockets[0].1.as_ref().unwrap().lent.all();
        let free = pool.take(1).unwrap()[0];
        let at = |n: usize, offset: u64| u64::from(lent[n]) << 11 | offset;
        let more = 1 << 32;
        let packets = [
            (at(0, 256), 100),
            // A packet in two buffers, the first of them full.
            (at(1, 0), 2048 | more),
            (at(2, 128), 50),
            // One packet ends a byte beyond its buffer, one packet has a buffer that was not lent, and one packet ends
            // exactly with its buffer.
            (at(3, 1949), 100),
            (u64::from(free) << 11, 100),
            (at(4, 1948), 100),
        ];
        produce(&received, PACKET, &packets);
        let mut batch = Batch::new();
        assert_eq!(rx.recv(&mut batch), 4);
        let slots: Vec<_> =
            batch.slots().iter().map(|slot| (slot.buf(), slot.offset(), slot.len(), slot.has_more())).collect();
        let expected = [
            (lent[0], 256, 100, false),
            (lent[1], 0, 2048, true),
            (lent[2], 128, 50, false),
            (lent[4], 1948, 100, false),
        ];
        assert_eq!(slots, expected);
        let counters = &rx.counters;
        assert_eq!((counters.packets(), counters.slots(), counters.bytes(), counters.drops()), (3, 4, 2298, 2));
        // For each returned buffer, the kernel got an empty buffer, at offset 0. The kernel still has `lent[3]`.
        let fresh: HashSet<u64> = handed_over::<1>(&filled).into_iter().map(|[address]| address).collect();
        let mine: HashSet<u64> = slots.iter().map(|slot| u64::from(slot.0) << 11).collect();
        assert_eq!((fresh.len(), fresh.intersection(&mine).count()), (4, 0));
        assert!(fresh.iter().all(|address| address % 2048 == 0 && *address != u64::from(free) << 11));
        assert_eq!(rx.buffers(), LEN as usize);
        assert_eq!(rx.recv(&mut batch), 0);
        assert_eq!(rx.counters.no_buffer(), 0);
        // SAFETY: it was taken above, and was not lent to the kernel.
        unsafe { pool.give(&[free]) };
        drop((rx, batch));
        assert_eq!(pool.available(), BUFFERS);
    }

    #[test]
    fn packets_without_buffers_wait_and_are_counted() {
        let Fake { pool, received, tx, mut rx, .. } = Fake::new();
        let lent: Vec<u32> = rx.sockets[0].1.as_ref().unwrap().lent.all();
        produce(&received, PACKET, &[(u64::from(lent[0]) << 11, 100)]);
        let mut taken = Vec::new();
        while let Some(more) = pool.take(1) {
            taken.extend(more);
        }
        let mut batch = Batch::new();
        assert_eq!((rx.recv(&mut batch), rx.counters.no_buffer()), (0, 1));
        // SAFETY: they were taken above.
        unsafe { pool.give(&taken) };
        assert_eq!((rx.recv(&mut batch), rx.counters.no_buffer()), (1, 1));
        // A full batch does not count as a lack of buffers.
        let mut full = Batch::with_capacity(1);
        assert!(full.push(&pool, &[0; 60]));
        produce(&received, PACKET, &[(u64::from(lent[1]) << 11, 100)]);
        assert_eq!((rx.recv(&mut full), rx.counters.no_buffer()), (0, 1));
        drop((rx, tx, batch, full));
        assert_eq!(pool.available(), BUFFERS);
    }

    #[test]
    fn sent_slots_go_to_the_kernel_and_return() {
        let Fake { pool, completed, sent, mut tx, rx, .. } = Fake::new();
        let mut batch = Batch::new();
        let lens = [60, 5000, 9001, 9000];
        lens.iter().for_each(|len| assert!(batch.push(&pool, &vec![7; *len])));
        let mut slots: Vec<_> =
            batch.slots().iter().map(|slot| (slot.buf(), slot.offset(), slot.len(), slot.has_more())).collect();
        let all = slots.len();
        assert_eq!((tx.send(&mut batch), batch.len()), (all, 0));
        // The oversized packet is not among the sent packets.
        let of = |len: usize| len.div_ceil(pool.region().room());
        slots.drain(1 + of(5000)..1 + of(5000) + of(9001));
        let expected: Vec<[u64; 2]> = slots
            .iter()
            .map(|(buf, offset, len, more)| {
                [(u64::from(*buf) << 11) + *offset as u64, *len as u64 | u64::from(*more) << 32]
            })
            .collect();
        assert_eq!(handed_over(&sent), expected);
        assert_eq!((tx.unsent(), tx.buffers()), (slots.len(), slots.len()));
        assert_eq!(tx.counters.packets(), 0, "the kernel has not taken them");
        sent.word(CONSUMER).store(slots.len() as u32, std::sync::atomic::Ordering::Release);
        tx.send(&mut batch);
        let counters = &tx.counters;
        assert_eq!(
            (counters.packets(), counters.slots(), counters.bytes(), counters.drops()),
            (3, all as u64, 14_060, 1)
        );
        // Two buffers are returned, one of them twice, and a buffer that was not lent.
        let back: Vec<_> =
            [slots[0].0, slots[1].0, slots[0].0].iter().map(|buf| (u64::from(*buf) << 11 | 256, 0)).collect();
        produce(&completed, ADDRESS, &back);
        let strange = pool.take(1).unwrap()[0];
        produce(&completed, ADDRESS, &[(u64::from(strange) << 11, 0)]);
        let before = (pool.available(), batch.cached());
        assert_eq!(tx.send(&mut batch), 0);
        assert_eq!(tx.buffers(), slots.len() - 2);
        assert_eq!(completed.word(CONSUMER).load(std::sync::atomic::Ordering::Relaxed), 4, "there is room for others");
        assert_eq!(pool.available() + batch.cached(), before.0 + before.1 + 2);
        // SAFETY: it was taken above, and was not lent to the kernel.
        unsafe { pool.give(&[strange]) };
        drop((rx, tx, batch));
        assert_eq!(pool.available(), BUFFERS);
    }

    #[test]
    fn a_packet_waits_until_the_ring_has_room_for_all_of_it() {
        let Fake { pool, sent, mut tx, rx, .. } = Fake::new();
        let mut batch = Batch::with_capacity(128);
        (0..LEN - 1).for_each(|_| assert!(batch.push(&pool, &[7; 60])));
        assert!(batch.push(&pool, &[7; 3000]) && batch.push(&pool, &[7; 60]));
        assert_eq!((tx.send(&mut batch), batch.len()), (LEN as usize - 1, 3));
        assert_eq!((tx.send(&mut batch), tx.counters.drops()), (0, 0));
        // The kernel has taken one descriptor.
        sent.word(CONSUMER).store(1, std::sync::atomic::Ordering::Release);
        assert_eq!((tx.send(&mut batch), batch.len(), tx.unsent()), (2, 1, LEN as usize));
        // A chain is dropped if the port supports none, or if it has too many buffers.
        let Fake { pool: other, tx: mut plain, rx: unused, .. } = Fake::with(false, false);
        plain.longest = LongestFrame::any(60_000);
        let mut two = Batch::new();
        assert!(two.push(&other, &[7; 60]) && two.push(&other, &[7; 3000]));
        assert_eq!((plain.send(&mut two), plain.unsent(), plain.counters.drops()), (3, 1, 1));
        drop((rx, tx, batch, unused, plain, two));
        assert_eq!((pool.available(), other.available()), (BUFFERS, BUFFERS));
    }

    /// The kernel computes a checksum if it supports this offload (`struct xsk_tx_metadata`); otherwise the queue does.
    #[test]
    fn a_checksum_is_left_to_the_kernel_or_computed() {
        use linerate_core::offload::Offload;
        for has_checksums in [true, false] {
            let Fake { pool, sent, mut tx, rx, .. } = Fake::with(true, has_checksums);
            let mut batch = Batch::new();
            assert!(batch.push(&pool, &[0; 60]) && batch.push(&pool, &[0; 60]));
            // The checksum covers the bytes from 34 on, and is stored 16 bytes after that (virtio_net_hdr).
            batch.set_offload(0, Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]));
            let first = &batch.slots()[0];
            let at = ((first.buf() as usize) << 11) + first.offset();
            assert_eq!(tx.send(&mut batch), 2);
            let words: Vec<u64> = handed_over::<2>(&sent).iter().map(|[_, word]| *word).collect();
            assert_eq!(words, [60 | u64::from(has_checksums) << 33, 60]);
            let (mut metadata, mut checksum) = ([0; METADATA], [0; 2]);
            // SAFETY: the packet belongs to the socket.
            let memory = unsafe { pool.region().mapping() };
            memory.read(at - METADATA, &mut metadata);
            memory.read(at + 50, &mut checksum);
            match has_checksums {
                true => assert_eq!(
                    (metadata[..12].to_vec(), checksum),
                    (vec![2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0], [0; 2])
                ),
                false => assert_eq!(checksum, [0xFF; 2], "of zeros"),
            }
            drop((rx, tx, batch));
        }
    }

    #[test]
    fn the_kernel_gets_only_checksums_that_it_can_compute() {
        use linerate_core::offload::Offload;

        use crate::xdp::queue::is_for_kernel;
        let checksum = |start: u8, place: u8| Offload([1, 0, 0, 0, 0, 0, start, 0, place, 0]);
        // SAFETY: its bytes are not used.
        let slot = |offset: usize| unsafe { Slot::new(1, offset, 60, false) };
        assert!(is_for_kernel(checksum(34, 24), &slot(METADATA)));
        assert!(!is_for_kernel(checksum(34, 24), &slot(METADATA - 1)), "there is no room for metadata");
        assert!(!is_for_kernel(checksum(34, 25), &slot(METADATA)), "it is outside");
        let segments = Offload([1, 1, 54, 0, 100, 0, 34, 0, 16, 0]);
        assert!(!is_for_kernel(segments, &slot(256)), "segments are cut here");
        assert!(!is_for_kernel(Offload([0; 10]), &slot(256)), "nothing is left");
    }

    /// The metadata precedes only the packet's first buffer.
    #[test]
    fn a_chain_s_metadata_precedes_its_first_buffer() {
        use linerate_core::offload::Offload;
        let Fake { pool, sent, mut tx, rx, .. } = Fake::with(true, true);
        let mut batch = Batch::new();
        assert!(batch.push(&pool, &[0; 60]) && batch.push(&pool, &[0; 3000]));
        batch.set_offload(1, Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]));
        let first = &batch.slots()[1];
        let at = ((first.buf() as usize) << 11) + first.offset();
        tx.send(&mut batch);
        let words: Vec<u64> = handed_over::<2>(&sent).iter().map(|[_, word]| *word >> 32).collect();
        assert_eq!(words, [0, 3, 0]);
        let mut metadata = [0; METADATA];
        // SAFETY: the packet belongs to the socket.
        unsafe { pool.region().mapping() }.read(at - METADATA, &mut metadata);
        assert_eq!(metadata[..12], [2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
        drop((rx, tx, batch));
    }

    /// A packet in more buffers than the batch has slots is still delivered.
    #[test]
    fn a_chain_longer_than_a_batch_is_delivered() {
        for capacity in 1..6 {
            let Fake { pool, received, mut rx, .. } = Fake::new();
            let lent: Vec<u32> = rx.sockets[0].1.as_ref().unwrap().lent.all();
            // Four packets of five buffers each, of which the kernel returns the last two later.
            let packets: Vec<_> =
                (0..20).map(|n| (u64::from(lent[n]) << 11 | 128, 100 | u64::from(n % 5 != 4) << 32)).collect();
            let mut batch = Batch::with_capacity(capacity);
            let mut lengths = Vec::new();
            for part in [&packets[..18], &packets[18..]] {
                produce(&received, PACKET, part);
                while rx.recv(&mut batch) > 0 {
                    lengths.extend(batch.packets().map(|packet| packet.len()));
                    batch.clear();
                }
            }
            assert_eq!(lengths, [500; 4], "a batch for {capacity}");
            assert_eq!((rx.counters.packets(), rx.counters.slots(), rx.counters.bytes()), (4, 20, 2000));
            drop((rx, batch));
            assert_eq!(pool.available(), BUFFERS);
        }
    }

    /// For any descriptors from the kernel, no buffer appears twice or outside the region, and none is lost.
    #[test]
    fn malformed_descriptors_of_the_kernel_are_rejected() {
        let cases = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(cases, |(rounds in prop::collection::vec((said(), said()), 1..8))| {
            let Fake { pool, received, completed, mut rx, mut tx, .. } = Fake::new();
            let mut batch = Batch::new();
            for (packets, completions) in rounds {
                produce(&received, PACKET, &packets);
                rx.recv(&mut batch);
                let mut seen = HashSet::new();
                for slot in batch.slots() {
                    prop_assert!((slot.buf() as usize) < BUFFERS && slot.offset() + slot.len() <= 2048);
                    prop_assert!(seen.insert(slot.buf()), "buffer {} is there twice", slot.buf());
                }
                let there = |rx: &Rx<XdpRx>, tx: &Tx<XdpTx>, batch: &Batch| rx.buffers() + tx.buffers() + batch.len() + batch.cached() + pool.available();
                prop_assert_eq!(there(&rx, &tx, &batch), BUFFERS);
                produce(&completed, ADDRESS, &completions);
                tx.send(&mut batch);
                prop_assert_eq!(there(&rx, &tx, &batch), BUFFERS);
                batch.clear();
            }
            drop((rx, tx, batch));
            prop_assert_eq!(pool.available(), BUFFERS);
        });
    }
}
