//! Serves a PCI function to QEMU, to [`VfioUser`](super::VfioUser), or to any other client of the protocol.
//!
//! A client is untrusted: its messages are validated before use, and its errors affect only its own connection. When it
//! disconnects, the function is reset and the next client may connect.
// The server calls `Function::write` and `Function::map` for its client.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use linerate_core::error::{Error, Result};
use linerate_core::event::Interrupt;
use linerate_core::memory::{MOST_PEER_BYTES, Mapping};
use linerate_core::unix_socket::{FirstMessage, Lobby, MOST_DESCRIPTORS, RETRY_INTERVAL, SocketFile, listen};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vfio_bindings::bindings::vfio::*;
use zerocopy::IntoBytes;

use super::message::*;

/// A PCI function that can be served. Regions are numbered as in vfio: BARs 0 to 5, the ROM 6, and configuration space
/// 7.
///
/// [`write`](Function::write) and [`map`](Function::map), which give the function addresses, are `unsafe` to call. The
/// server calls both on behalf of its client, with the client's memory.
pub trait Function: Send {
    /// Returns the length of a region in bytes; 0 if it does not exist.
    fn region(&self, region: u32) -> u64;

    /// Reads a region; the range is valid.
    fn read(&mut self, region: u32, offset: u64, bytes: &mut [u8]);

    /// Writes a region; the range is valid.
    ///
    /// # Safety
    /// A register write may make the function write to any memory mapped for it. No slice to that memory may exist
    /// while the function can access it.
    unsafe fn write(&mut self, region: u32, offset: u64, bytes: &[u8]);

    /// Returns the number of interrupts of a kind.
    fn interrupts(&self, kind: InterruptKind) -> u32;

    /// Sets the receiver of an interrupt. `number` is valid.
    fn set_receiver(&mut self, kind: InterruptKind, number: u32, receiver: Option<Interrupt>);

    /// Masks or unmasks the line.
    fn mask_line(&mut self, masked: bool);

    /// Maps memory for the function. Returns false if it cannot: the range overlaps a mapping, or is not made of whole
    /// pages.
    ///
    /// # Safety
    /// As for [`write`](Function::write), until the memory is unmapped.
    unsafe fn map(&mut self, address: u64, len: u64, memory: Arc<Mapping>, offset: u64, writable: bool) -> bool;

    /// Unmaps memory; the function no longer accesses it. Returns the number of bytes unmapped; `None` if the range
    /// contains only part of a mapping.
    fn unmap(&mut self, address: u64, len: u64) -> Option<u64>;

    /// Resets the function like a function-level reset: mappings and receivers stay.
    fn reset(&mut self);

    /// Ends the client's use: resets the function, and removes mappings and receivers.
    fn disconnect(&mut self);
}

/// The kinds of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptKind {
    /// The legacy interrupt line (INTx).
    Line,
    /// MSI.
    Message,
    /// MSI-X.
    Vector,
}

/// The number of interrupt kinds in vfio.
const INTERRUPT_KINDS: u32 = VFIO_PCI_NUM_IRQS;

impl InterruptKind {
    fn of(index: u32) -> Option<InterruptKind> {
        match index {
            VFIO_PCI_INTX_IRQ_INDEX => Some(InterruptKind::Line),
            VFIO_PCI_MSI_IRQ_INDEX => Some(InterruptKind::Message),
            VFIO_PCI_MSIX_IRQ_INDEX => Some(InterruptKind::Vector),
            _ => None,
        }
    }
}

/// A socket that serves a function until this value is dropped.
pub struct Server {
    _file: SocketFile,
    stop: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `function` at a socket, which is created at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) if there can be no socket at the path,
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if a server already listens there, or a socket
    /// cannot be created.
    pub fn start(path: &Path, function: Box<dyn Function>) -> Result<Server> {
        let lobby = Lobby::new(listen(path)?, FirstMessage::of_client::<Header>());
        Interrupt::prepare_for_peers();
        let stop = Interrupt::new()?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("vfio-user".to_string())
            .spawn(move || Service { function, memories: Vec::new(), negotiated: false }.run(lobby, &stopped))
            .map_err(Error::thread)?;
        Ok(Server { _file: SocketFile::at(path), stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the server's thread.
struct Service {
    function: Box<dyn Function>,
    /// The client's memory, by file identity: a guest behind an IOMMU sends many mappings of a few files.
    memories: Vec<((u64, u64), Weak<Mapping>)>,
    negotiated: bool,
}

/// The answer to a request: the reply's payload, or an error.
type Answer = std::result::Result<Vec<u8>, Errno>;

impl Service {
    /// Serves one client after another.
    fn run(mut self, mut lobby: Lobby, stop: &Interrupt) {
        while let Some(socket) = lobby.next(stop) {
            tracing::debug!("a client has connected");
            // Clients that connected at the same time are refused, like all that connect later.
            lobby.clear();
            let is_stopped = self.serve(Connection::new(socket), lobby.listener(), stop);
            tracing::debug!("the client is gone: its memory is unmapped");
            self.negotiated = false;
            self.function.disconnect();
            self.memories.clear();
            if is_stopped {
                return;
            }
        }
        self.function.disconnect();
    }

    /// Serves a client until it disconnects, and refuses all others. Returns true if `stop` is readable.
    fn serve(&mut self, mut client: Connection, listener: &UnixListener, stop: &Interrupt) -> bool {
        // Without a free descriptor, a new client stays in the queue; it is refused on a later attempt.
        let mut accepts = true;
        loop {
            let listening = if accepts { PollFlags::IN } else { PollFlags::empty() };
            let mut events = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(listener, listening),
                PollFd::new(client.socket(), PollFlags::IN),
            ];
            let again = (!accepts).then_some(&RETRY_INTERVAL);
            if poll(&mut events, again).is_err() {
                continue; // a signal
            }
            accepts = true;
            let [stopped, has_connection, has_message] = events.map(|event| !event.revents().is_empty());
            if stopped {
                return true;
            }
            // The client's messages are handled first: if they show that the client has left, the new client need not
            // be refused.
            if has_message {
                if !self.receive(&mut client) {
                    return false;
                }
            } else if has_connection {
                accepts = listener.accept().is_ok();
            }
        }
    }

    /// Handles received messages; returns false once the connection is unusable.
    fn receive(&mut self, connection: &mut Connection) -> bool {
        match connection.receive() {
            Ok(None) => true,
            Ok(Some(message)) => self.handle(connection, message).is_ok(),
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Handles one message, and sends the reply.
    fn handle(&mut self, connection: &Connection, mut message: Message) -> io::Result<()> {
        let Header { id, command, flags, .. } = message.header;
        if flags & flag::TYPE != 0 {
            return Ok(()); // an unexpected reply
        }
        let descriptors = std::mem::take(&mut message.descriptors);
        let answer = self.answer(command, &message, descriptors);
        if flags & flag::NO_REPLY != 0 {
            return Ok(());
        }
        let header = Header { id, command, flags: flag::REPLY, ..Header::default() };
        match answer {
            Ok(payload) => connection.send(header, &[&payload], &[]),
            Err(error) => {
                let header = Header { flags: flag::REPLY | flag::ERROR, error: error.raw_os_error() as u32, ..header };
                connection.send(header, &[], &[])
            }
        }
    }

    fn answer(&mut self, command: u16, message: &Message, descriptors: Vec<OwnedFd>) -> Answer {
        if !self.negotiated && command != command::VERSION {
            return Err(Errno::INVAL);
        }
        match command {
            command::VERSION => self.version(message),
            command::DMA_MAP => self.map(message, descriptors),
            command::DMA_UNMAP => self.unmap(message),
            command::DEVICE_GET_INFO => Ok(DeviceInfo {
                argsz: size_of::<DeviceInfo>() as u32,
                flags: VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
                regions: VFIO_PCI_NUM_REGIONS,
                interrupts: INTERRUPT_KINDS,
            }
            .as_bytes()
            .to_vec()),
            command::DEVICE_GET_REGION_INFO => self.region_info(message),
            command::DEVICE_GET_IRQ_INFO => self.interrupt_info(message),
            command::DEVICE_SET_IRQS => self.set_interrupts(message, descriptors),
            command::REGION_READ => self.read(message),
            command::REGION_WRITE => self.write(message),
            command::DEVICE_RESET => {
                self.function.reset();
                Ok(Vec::new())
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Negotiates version 0.x. Of the capabilities, only the server's limits matter.
    fn version(&mut self, message: &Message) -> Answer {
        let (version, _) = message.parse::<Version>().ok_or(Errno::INVAL)?;
        if version.major != 0 {
            return Err(Errno::INVAL);
        }
        self.negotiated = true;
        let ours = Version { major: 0, minor: version.minor.min(1) };
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MOST_DESCRIPTORS},\"max_data_xfer_size\":{MOST_DATA},\"pgsizes\":4096}}}}\0"
        );
        Ok([ours.as_bytes(), capabilities.as_bytes()].concat())
    }

    fn map(&mut self, message: &Message, mut descriptors: Vec<OwnedFd>) -> Answer {
        let (map, _) = message.parse::<DmaMap>().ok_or(Errno::INVAL)?;
        if map.flags & !(MAP_READ | MAP_WRITE) != 0 || descriptors.len() > 1 {
            return Err(Errno::INVAL);
        }
        // Memory without a file is private to the client (ROMs, say): the function cannot access it.
        let Some(file) = descriptors.pop() else { return Ok(Vec::new()) };
        let memory = self.memory(file)?;
        let writable = map.flags & MAP_WRITE != 0;
        // SAFETY: this is the client's memory, which is only accessed by copying (`Mapping::of_peer`).
        let is_mapped = unsafe { self.function.map(map.address, map.size, memory, map.offset, writable) };
        match is_mapped {
            true => Ok(Vec::new()),
            false => Err(Errno::INVAL),
        }
    }

    /// Returns the mapping of a file. A file is mapped only once, even if it is sent several times.
    fn memory(&mut self, file: OwnedFd) -> std::result::Result<Arc<Mapping>, Errno> {
        let status = rustix::fs::fstat(&file)?;
        let key = (status.st_dev, status.st_ino);
        self.memories.retain(|(_, memory)| memory.strong_count() > 0);
        if let Some(memory) =
            self.memories.iter().find(|(known, _)| *known == key).and_then(|(_, known)| known.upgrade())
        {
            return Ok(memory);
        }
        let memory = Arc::new(Mapping::of_peer(file).map_err(|_| Errno::INVAL)?);
        let others = self.memories.iter().filter_map(|(_, memory)| memory.upgrade());
        let all: u64 = others.chain([memory.clone()]).map(|memory| memory.len() as u64).sum();
        if all > MOST_PEER_BYTES {
            return Err(Errno::NOMEM);
        }
        self.memories.push((key, Arc::downgrade(&memory)));
        Ok(memory)
    }

    fn unmap(&mut self, message: &Message) -> Answer {
        let (unmap, _) = message.parse::<DmaUnmap>().ok_or(Errno::INVAL)?;
        if unmap.flags & !UNMAP_ALL != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (address, len) = if unmap.flags & UNMAP_ALL != 0 { (0, u64::MAX) } else { (unmap.address, unmap.size) };
        self.function.unmap(address, len).ok_or(Errno::INVAL)?;
        Ok(unmap.as_bytes().to_vec())
    }

    fn region_info(&mut self, message: &Message) -> Answer {
        let (asked, _) = message.parse::<RegionInfo>().ok_or(Errno::INVAL)?;
        if asked.index >= VFIO_PCI_NUM_REGIONS {
            return Err(Errno::INVAL);
        }
        let size = self.function.region(asked.index);
        let flags = if size > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
        let argsz = size_of::<RegionInfo>() as u32;
        Ok(RegionInfo { argsz, flags, index: asked.index, size, ..RegionInfo::default() }.as_bytes().to_vec())
    }

    fn interrupt_info(&mut self, message: &Message) -> Answer {
        let (asked, _) = message.parse::<InterruptInfo>().ok_or(Errno::INVAL)?;
        if asked.index >= INTERRUPT_KINDS {
            return Err(Errno::INVAL);
        }
        let kind = InterruptKind::of(asked.index);
        // QEMU requests one interrupt of the error kind, and never uses it.
        let count =
            kind.map_or(u32::from(asked.index == VFIO_PCI_ERR_IRQ_INDEX), |kind| self.function.interrupts(kind));
        let flags = VFIO_IRQ_INFO_EVENTFD
            | match kind {
                Some(InterruptKind::Line) => VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED,
                _ => VFIO_IRQ_INFO_NORESIZE,
            };
        let argsz = size_of::<InterruptInfo>() as u32;
        Ok(InterruptInfo { argsz, flags, index: asked.index, count }.as_bytes().to_vec())
    }

    fn set_interrupts(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> Answer {
        let (set, data) = message.parse::<SetInterrupts>().ok_or(Errno::INVAL)?;
        let SetInterrupts { flags, index, start, count, .. } = set;
        let Some(kind) = InterruptKind::of(index) else {
            return if index < INTERRUPT_KINDS { Ok(Vec::new()) } else { Err(Errno::INVAL) };
        };
        let most = self.function.interrupts(kind);
        let end = start.checked_add(count).filter(|&end| end <= most).ok_or(Errno::INVAL)?;
        let chosen = |n: u32| match flags & VFIO_IRQ_SET_DATA_TYPE_MASK {
            VFIO_IRQ_SET_DATA_BOOL => data.get((n - start) as usize).is_some_and(|&yes| yes != 0),
            _ => true,
        };
        match flags & VFIO_IRQ_SET_ACTION_TYPE_MASK {
            VFIO_IRQ_SET_ACTION_TRIGGER => match flags & VFIO_IRQ_SET_DATA_TYPE_MASK {
                // No data and no interrupts: disable this kind.
                VFIO_IRQ_SET_DATA_NONE if count == 0 => {
                    (0..most).for_each(|number| self.function.set_receiver(kind, number, None));
                }
                VFIO_IRQ_SET_DATA_EVENTFD => {
                    // Interrupts without a descriptor lose their receiver.
                    let receivers = descriptors.into_iter().map(Interrupt::of_peer);
                    let mut receivers = receivers.collect::<std::result::Result<Vec<_>, Errno>>()?.into_iter();
                    (start..end).for_each(|number| self.function.set_receiver(kind, number, receivers.next()));
                }
                // Raising an interrupt on request is for testing receivers; no client uses it.
                _ => return Err(Errno::OPNOTSUPP),
            },
            VFIO_IRQ_SET_ACTION_MASK if kind == InterruptKind::Line && (start..end).any(chosen) => {
                self.function.mask_line(true)
            }
            VFIO_IRQ_SET_ACTION_UNMASK if kind == InterruptKind::Line && (start..end).any(chosen) => {
                self.function.mask_line(false);
            }
            // QEMU masks vectors itself.
            VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_ACTION_UNMASK => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(Vec::new())
    }

    /// Returns the access if it is inside its region.
    fn access(&self, message: &Message) -> std::result::Result<RegionAccess, Errno> {
        let (access, _) = message.parse::<RegionAccess>().ok_or(Errno::INVAL)?;
        let size = if access.region < VFIO_PCI_NUM_REGIONS { self.function.region(access.region) } else { 0 };
        let inside = access.offset.checked_add(access.count.into()).is_some_and(|end| end <= size);
        if inside && access.count as usize <= MOST_DATA { Ok(access) } else { Err(Errno::INVAL) }
    }

    fn read(&mut self, message: &Message) -> Answer {
        let access = self.access(message)?;
        let mut bytes = vec![0; access.count as usize];
        self.function.read(access.region, access.offset, &mut bytes);
        Ok([access.as_bytes(), &bytes].concat())
    }

    fn write(&mut self, message: &Message) -> Answer {
        let access = self.access(message)?;
        let (_, data) = message.parse::<RegionAccess>().ok_or(Errno::INVAL)?;
        let data = data.get(..access.count as usize).ok_or(Errno::INVAL)?;
        // SAFETY: only the client's memory is mapped, as above.
        unsafe { self.function.write(access.region, access.offset, data) };
        Ok(access.as_bytes().to_vec())
    }
}

/// A server without a thread, for the fuzz target. The caller makes it handle messages.
#[cfg(fuzzing)]
pub struct InLine(Service);

#[cfg(fuzzing)]
impl InLine {
    /// Creates a server of this function.
    pub fn new(function: Box<dyn Function>) -> InLine {
        InLine(Service { function, memories: Vec::new(), negotiated: false })
    }

    /// Handles received messages; returns false once the connection is unusable.
    pub fn receive(&mut self, connection: &mut Connection) -> bool {
        self.0.receive(connection)
    }

    /// Answers one complete message.
    pub fn answer(&mut self, command: u16, payload: Vec<u8>, descriptors: Vec<OwnedFd>) -> Answer {
        let message = Message { payload, ..Message::default() };
        self.0.answer(command, &message, descriptors)
    }

    /// Ends the client's use.
    pub fn end(&mut self) {
        self.0.negotiated = false;
        self.0.function.disconnect();
        self.0.memories.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use linerate_core::memory::PageSize;
    use zerocopy::{FromBytes, Immutable, KnownLayout};

    use super::*;

    /// The calls that a function received.
    type Calls = Arc<Mutex<Vec<String>>>;

    /// A function with one page in BAR 0, a line, two messages and three vectors; it rejects memory below 4 GiB.
    struct CallRecorder(Calls);

    impl CallRecorder {
        fn record(&self, call: String) {
            self.0.lock().unwrap().push(call);
        }
    }

    impl Function for CallRecorder {
        fn region(&self, region: u32) -> u64 {
            if region == 0 { 4096 } else { 0 }
        }

        fn read(&mut self, region: u32, offset: u64, bytes: &mut [u8]) {
            bytes.fill(7);
            self.record(format!("read {region} {offset} {}", bytes.len()));
        }

        unsafe fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
            self.record(format!("write {region} {offset} {bytes:?}"));
        }

        fn interrupts(&self, kind: InterruptKind) -> u32 {
            match kind {
                InterruptKind::Line => 1,
                InterruptKind::Message => 2,
                InterruptKind::Vector => 3,
            }
        }

        fn set_receiver(&mut self, kind: InterruptKind, number: u32, receiver: Option<Interrupt>) {
            self.record(format!("{kind:?} {number} {}", receiver.is_some()));
        }

        fn mask_line(&mut self, masked: bool) {
            self.record(format!("mask {masked}"));
        }

        unsafe fn map(&mut self, address: u64, len: u64, _: Arc<Mapping>, offset: u64, writable: bool) -> bool {
            self.record(format!("map {address} {len} {offset} {writable}"));
            address >= 1 << 32
        }

        fn unmap(&mut self, address: u64, len: u64) -> Option<u64> {
            self.record(format!("unmap {address} {len}"));
            (len > 4096).then_some(len)
        }

        fn reset(&mut self) {
            self.record("reset".to_string());
        }

        fn disconnect(&mut self) {}
    }

    struct Bench {
        service: Service,
        calls: Calls,
    }

    impl Bench {
        fn new() -> Bench {
            let calls = Calls::default();
            let service =
                Service { function: Box::new(CallRecorder(calls.clone())), memories: Vec::new(), negotiated: true };
            Bench { service, calls }
        }

        fn answer(&mut self, command: u16, payload: &[&[u8]], descriptors: Vec<OwnedFd>) -> Answer {
            self.service.answer(command, &Message { payload: payload.concat(), ..Message::default() }, descriptors)
        }

        /// Returns the reply to a request for information.
        fn description<T: FromBytes + KnownLayout + Immutable>(
            &mut self,
            command: u16,
            asked: &[u8],
        ) -> std::result::Result<T, Errno> {
            let answer = self.answer(command, &[asked], Vec::new())?;
            Ok(Message { payload: answer, ..Message::default() }.parse().expect("a whole description").0)
        }

        fn calls(&self) -> Vec<String> {
            std::mem::take(&mut *self.calls.lock().unwrap())
        }
    }

    const INVALID: Answer = Err(Errno::INVAL);

    #[test]
    fn requests_before_a_common_version_are_rejected() {
        let mut bench = Bench::new();
        bench.service.negotiated = false;
        assert_eq!(bench.answer(command::DEVICE_RESET, &[], Vec::new()), INVALID);
        assert_eq!(bench.answer(command::VERSION, &[&[0; 3]], Vec::new()), INVALID, "too short");
        assert_eq!(bench.answer(command::VERSION, &[&[1, 0, 0, 0]], Vec::new()), INVALID, "major version 1");
        assert_eq!(bench.answer(command::DEVICE_RESET, &[], Vec::new()), INVALID);
        for (theirs, ours) in [(0, 0), (1, 1), (9, 1)] {
            let answer = bench.answer(command::VERSION, &[&[0, 0, theirs, 0]], Vec::new()).unwrap();
            assert_eq!(answer[..4], [0, 0, ours, 0]);
            assert!(answer[4..].starts_with(b"{") && answer.ends_with(b"}\0"));
        }
        assert!(bench.calls().is_empty());
        assert_eq!(bench.answer(command::DEVICE_RESET, &[], Vec::new()), Ok(Vec::new()));
        assert_eq!(bench.calls(), ["reset"]);
        for unknown in [0, 6, 11, 12, 14, u16::MAX] {
            assert_eq!(bench.answer(unknown, &[&[0; 64]], Vec::new()), Err(Errno::OPNOTSUPP), "{unknown}");
        }
    }

    #[test]
    fn accesses_beyond_a_region_or_a_message_are_rejected() {
        let mut bench = Bench::new();
        let access = |offset: u64, region: u32, count: u32| RegionAccess { offset, region, count };
        let data = [1; MOST_DATA];
        for (offset, count) in [(0, 4096), (4092, 4), (4096, 0), (0, 0)] {
            let (access, data) = (access(offset, 0, count), &data[..count as usize]);
            let read = bench.answer(command::REGION_READ, &[access.as_bytes()], Vec::new()).unwrap();
            assert_eq!(read, [access.as_bytes(), &vec![7; count as usize]].concat());
            let written = bench.answer(command::REGION_WRITE, &[access.as_bytes(), data], Vec::new());
            assert_eq!(written, Ok(access.as_bytes().to_vec()));
            let [read, written] = [format!("read 0 {offset} {count}"), format!("write 0 {offset} {data:?}")];
            assert_eq!(bench.calls(), [read, written]);
        }
        for (offset, region, count) in [
            (4093, 0, 4),
            (4097, 0, 0),
            (u64::MAX, 0, 1),
            (u64::MAX - 3, 0, 4),
            (0, 0, 4097),
            (0, 1, 1),
            (0, VFIO_PCI_NUM_REGIONS, 0),
            (0, VFIO_PCI_NUM_REGIONS, 1),
            (0, u32::MAX, 1),
        ] {
            let access = access(offset, region, count);
            let what = format!("{count} at {offset} of {region}");
            // Reading no bytes from an absent region is neither an error nor useful.
            if (offset, count) != (0, 0) {
                assert_eq!(bench.answer(command::REGION_READ, &[access.as_bytes()], Vec::new()), INVALID, "{what}");
                let written = bench.answer(command::REGION_WRITE, &[access.as_bytes(), &data, &data], Vec::new());
                assert_eq!(written, INVALID, "{what}");
            }
        }
        let short = access(0, 0, 8);
        assert_eq!(bench.answer(command::REGION_WRITE, &[short.as_bytes(), &data[..7]], Vec::new()), INVALID);
        assert_eq!(bench.answer(command::REGION_READ, &[&short.as_bytes()[..15]], Vec::new()), INVALID);
        assert!(bench.calls().is_empty());
    }

    /// A region longer than a message is read in parts.
    #[test]
    fn an_access_is_at_most_as_long_as_a_message() {
        struct Long(CallRecorder);
        impl Function for Long {
            fn region(&self, _: u32) -> u64 {
                1 << 20
            }
            fn read(&mut self, region: u32, offset: u64, bytes: &mut [u8]) {
                self.0.read(region, offset, bytes);
            }
            unsafe fn write(&mut self, _: u32, _: u64, _: &[u8]) {}
            fn interrupts(&self, _: InterruptKind) -> u32 {
                0
            }
            fn set_receiver(&mut self, _: InterruptKind, _: u32, _: Option<Interrupt>) {}
            fn mask_line(&mut self, _: bool) {}
            unsafe fn map(&mut self, _: u64, _: u64, _: Arc<Mapping>, _: u64, _: bool) -> bool {
                false
            }
            fn unmap(&mut self, _: u64, _: u64) -> Option<u64> {
                None
            }
            fn reset(&mut self) {}
            fn disconnect(&mut self) {}
        }
        let mut bench = Bench::new();
        bench.service.function = Box::new(Long(CallRecorder(bench.calls.clone())));
        let mut read = |region: u32, count: usize| {
            let access = RegionAccess { offset: 0, region, count: count as u32 };
            bench.answer(command::REGION_READ, &[access.as_bytes()], Vec::new()).is_ok()
        };
        assert!(read(0, MOST_DATA) && !read(0, MOST_DATA + 1));
        assert!(read(VFIO_PCI_NUM_REGIONS - 1, 1) && !read(VFIO_PCI_NUM_REGIONS, 1));
    }

    fn memory() -> OwnedFd {
        Mapping::new(1 << 16, PageSize::Ordinary, None).unwrap().file().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_file_is_mapped_once_however_often_it_is_sent() {
        let mut bench = Bench::new();
        let map = |flags: u32, address: u64| DmaMap { argsz: 32, flags, offset: 4096, address, size: 8192 };
        let file = memory();
        let file = || file.try_clone().unwrap();
        let high = 1 << 32;
        let mut ask = |map: DmaMap, files: Vec<OwnedFd>| bench.answer(command::DMA_MAP, &[map.as_bytes()], files);
        assert_eq!(ask(map(4, high), vec![file()]), INVALID, "a flag that is not known");
        assert_eq!(ask(map(3, high), vec![file(), file()]), INVALID, "two files");
        assert_eq!(ask(map(3, 0), vec![file()]), INVALID, "the function refuses it");
        let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 1 << 16).unwrap();
        assert_eq!(ask(map(3, high), vec![plain]), INVALID, "it can be truncated");
        assert_eq!(ask(map(3, high), Vec::new()), Ok(Vec::new()), "the client's own");
        assert_eq!(ask(map(3, high), vec![file()]), Ok(Vec::new()));
        assert_eq!(ask(map(1, high), vec![file()]), Ok(Vec::new()));
        let calls = ["map 0 8192 4096 true", "map 4294967296 8192 4096 true", "map 4294967296 8192 4096 false"];
        assert_eq!(bench.calls(), calls);

        bench.service.memories.clear();
        let first = bench.service.memory(file()).unwrap();
        assert!(Arc::ptr_eq(&first, &bench.service.memory(file()).unwrap()));
        let other = bench.service.memory(memory()).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
        drop(first);
        assert!(Arc::ptr_eq(&other, &bench.service.memories[1].1.upgrade().unwrap()));
        bench.service.memory(file()).unwrap();
        assert_eq!(bench.service.memories.len(), 2, "unused mappings are removed");

        // Sparse files of 2 TiB. Two of them, and the mappings above, exceed the limit per client.
        let sparse = || {
            let file = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, MOST_PEER_BYTES / 2).unwrap();
            rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
            file
        };
        let _half = bench.service.memory(sparse()).unwrap();
        assert_eq!(bench.service.memory(sparse()).map(drop), Err(Errno::NOMEM));
    }

    #[test]
    fn memory_is_unmapped_by_its_range_or_all_of_it() {
        let mut bench = Bench::new();
        let mut ask = |flags: u32, size: u64| {
            let unmap = DmaUnmap { argsz: 24, flags, address: 8192, size };
            (bench.answer(command::DMA_UNMAP, &[unmap.as_bytes()], Vec::new()), unmap.as_bytes().to_vec())
        };
        assert_eq!(ask(1, 8192).0, Err(Errno::OPNOTSUPP));
        assert_eq!(ask(UNMAP_ALL | 1, 8192).0, Err(Errno::OPNOTSUPP));
        assert_eq!(ask(0, 4096).0, INVALID, "only parts of a mapping");
        for flags in [0, UNMAP_ALL] {
            let (answer, unmap) = ask(flags, 8192);
            assert_eq!(answer, Ok(unmap));
        }
        assert_eq!(
            bench.calls(),
            ["unmap 8192 4096".to_string(), "unmap 8192 8192".to_string(), format!("unmap 0 {}", u64::MAX)]
        );
    }

    #[test]
    fn regions_and_interrupts_are_described_and_no_others() {
        let mut bench = Bench::new();
        let mut region = |index: u32| {
            let asked = RegionInfo { index, ..RegionInfo::default() };
            let info: RegionInfo = bench.description(command::DEVICE_GET_REGION_INFO, asked.as_bytes())?;
            Ok::<_, Errno>((info.argsz as usize, info.index, info.flags, info.size))
        };
        let len = size_of::<RegionInfo>();
        assert_eq!(region(0), Ok((len, 0, VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE, 4096)));
        assert_eq!(region(VFIO_PCI_NUM_REGIONS - 1), Ok((len, VFIO_PCI_NUM_REGIONS - 1, 0, 0)));
        assert_eq!(region(VFIO_PCI_NUM_REGIONS), Err(Errno::INVAL));
        let mut interrupt = |index: u32| {
            let asked = InterruptInfo { index, ..InterruptInfo::default() };
            let info: InterruptInfo = bench.description(command::DEVICE_GET_IRQ_INFO, asked.as_bytes())?;
            assert_eq!(info.argsz as usize, size_of::<InterruptInfo>());
            Ok::<_, Errno>((info.index, info.flags, info.count))
        };
        let line = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED;
        let other = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE;
        let expected = [(line, 1), (other, 2), (other, 3), (other, 1), (other, 0)];
        for (index, (flags, count)) in expected.into_iter().enumerate() {
            assert_eq!(interrupt(index as u32), Ok((index as u32, flags, count)));
        }
        assert_eq!(interrupt(INTERRUPT_KINDS), Err(Errno::INVAL));
        let info: DeviceInfo = bench.description(command::DEVICE_GET_INFO, &[]).unwrap();
        assert_eq!(info.flags, VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET);
        assert_eq!((info.argsz as usize, info.regions, info.interrupts), (size_of::<DeviceInfo>(), 9, 5));
    }

    #[test]
    fn interrupts_beyond_the_last_are_rejected() {
        let mut bench = Bench::new();
        let mut set = |flags: u32, index: u32, start: u32, count: u32, data: &[u8], events: usize| {
            let set = SetInterrupts { argsz: 20, flags, index, start, count };
            let events = (0..events).map(|_| Interrupt::new().unwrap().as_fd().try_clone_to_owned().unwrap());
            let answer = bench.answer(command::DEVICE_SET_IRQS, &[set.as_bytes(), data], events.collect());
            (answer.map(|bytes| bytes.len()), bench.calls())
        };
        const EVENTS: u32 = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
        const NONE: u32 = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_NONE;
        const MASK: u32 = VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_DATA_NONE;
        const MASK_SOME: u32 = VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_DATA_BOOL;
        const UNMASK: u32 = VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_DATA_NONE;
        const UNMASK_SOME: u32 = VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_DATA_BOOL;
        let (invalid, nothing) = ((Err(Errno::INVAL), vec![]), (Ok(0), vec![]));
        let done = |calls: &[&str]| (Ok(0), calls.iter().map(|call| call.to_string()).collect::<Vec<_>>());
        // There are vectors 0 to 2.
        assert_eq!(set(EVENTS, 2, 0, 3, &[], 3), done(&["Vector 0 true", "Vector 1 true", "Vector 2 true"]));
        assert_eq!(set(EVENTS, 2, 1, 2, &[], 1), done(&["Vector 1 true", "Vector 2 false"]), "a descriptor less");
        assert_eq!(set(EVENTS, 2, 3, 0, &[], 0), nothing);
        for (start, count) in [(0, 4), (3, 1), (2, 2), (4, 0), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(set(EVENTS, 2, start, count, &[], 0), invalid, "{count} from {start}");
        }
        assert_eq!(set(NONE, 2, 0, 0, &[], 0), done(&["Vector 0 false", "Vector 1 false", "Vector 2 false"]));
        assert_eq!(set(NONE, 2, 0, 1, &[], 0), (Err(Errno::OPNOTSUPP), vec![]), "by hand");
        // Error and request interrupts are never raised; there are no kinds beyond them.
        assert_eq!([3, 4].map(|index| set(EVENTS, index, 0, 1, &[], 1)), [nothing.clone(), nothing.clone()]);
        assert_eq!(set(EVENTS, INTERRUPT_KINDS, 0, 0, &[], 0), invalid);
        // Only the line can be masked, if it is selected.
        assert_eq!(set(MASK, 0, 0, 1, &[], 0), done(&["mask true"]));
        assert_eq!(set(UNMASK, 0, 0, 1, &[], 0), done(&["mask false"]));
        assert_eq!(set(MASK_SOME, 0, 0, 1, &[1], 0), done(&["mask true"]));
        assert_eq!(set(UNMASK_SOME, 0, 0, 1, &[2], 0), done(&["mask false"]));
        for data in [&[][..], &[0], &[0, 1]] {
            assert_eq!(set(MASK_SOME, 0, 0, 1, data, 0), nothing);
            assert_eq!(set(UNMASK_SOME, 0, 0, 1, data, 0), nothing);
        }
        assert_eq!([MASK, UNMASK].map(|flags| set(flags, 0, 0, 0, &[], 0)), [nothing.clone(), nothing.clone()]);
        assert_eq!([MASK, UNMASK].map(|flags| set(flags, 2, 0, 1, &[], 0)), [nothing.clone(), nothing.clone()]);
        assert_eq!(set(VFIO_IRQ_SET_DATA_NONE, 0, 0, 1, &[], 0), invalid, "no action");
    }

    #[test]
    fn replies_have_their_request_s_id_and_are_sent_if_wanted() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (server, mut client) = (Connection::new(ours), Connection::new(theirs));
        let mut bench = Bench::new();
        let mut handle = |command: u16, flags: u32| {
            let header = Header { id: 77, command, flags, ..Header::default() };
            bench.service.handle(&server, Message { header, ..Message::default() }).unwrap();
            bench.calls().len()
        };
        assert_eq!(handle(command::DEVICE_RESET, flag::REPLY), 0, "a reply is no request");
        assert_eq!(handle(command::DEVICE_RESET, flag::NO_REPLY), 1);
        assert_eq!(handle(command::DEVICE_RESET, 0), 1);
        assert_eq!(handle(99, 0), 0);
        let mut reply = || client.receive().unwrap().unwrap().header;
        let (good, bad) = (reply(), reply());
        assert_eq!((good.id, good.command, good.flags, good.error), (77, command::DEVICE_RESET, flag::REPLY, 0));
        assert_eq!((bad.id, bad.command, bad.flags), (77, 99, flag::REPLY | flag::ERROR));
        assert_eq!(bad.error, Errno::OPNOTSUPP.raw_os_error() as u32);
    }
}
