//! A device served by another process.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::event::PEER_TIMEOUT;
use linerate_core::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping};
use vfio_bindings::bindings::vfio::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::message::*;
use crate::pci::{self, Bar, Bus, Doorbell, Interrupt, IoPorts, MappedBar, PciDevice, config};

/// A device served at a socket. The server can access only the memory mapped for it.
pub struct VfioUser {
    path: String,
    link: Arc<Link>,
    /// The next free address, and all mappings as address and length.
    maps: Mutex<(DeviceAddress, Vec<(DeviceAddress, u64)>)>,
}

/// The connection, shared with registers.
struct Link {
    connection: Mutex<(Connection, u16)>,
    /// The server is gone or violated the protocol: all registers read all ones, like those of a removed card.
    broken: AtomicBool,
}

/// Shuts the socket down instead of only closing it. A child that another thread just forked may hold the socket until
/// it calls exec; the server still sees the disconnect immediately.
impl Drop for Link {
    fn drop(&mut self) {
        let (connection, _) = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::net::shutdown(connection.socket(), rustix::net::Shutdown::Both);
    }
}

/// Returns the remedy for a failed connection.
fn mend(why: io::ErrorKind, path: &str) -> Remedy {
    match why {
        io::ErrorKind::PermissionDenied => "ask the server's owner for access to the socket".into(),
        _ => Remedy::ServeCard { path: path.to_string() },
    }
}

impl VfioUser {
    /// Connects to the device that is served at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): no server listens there, the device is in use, or
    /// it is not a PCI device.
    pub fn connect(path: &str) -> Result<Arc<VfioUser>> {
        let card = |why: String, mend: Remedy| Error::card(format!("vfio-user:{path}"), why, mend);
        let socket = UnixStream::connect(Path::new(path))
            .map_err(|error| card(format!("no server can be reached there: {error}"), mend(error.kind(), path)))?;
        let patience = |socket: &UnixStream| {
            socket.set_read_timeout(Some(PEER_TIMEOUT))?;
            socket.set_write_timeout(Some(PEER_TIMEOUT))
        };
        patience(&socket).map_err(|e| Error::system("setsockopt", e))?;
        let link = Link { connection: Mutex::new((Connection::new(socket), 0)), broken: AtomicBool::new(false) };
        let ours = Version { major: 0, minor: 1 };
        let json = format!("{{\"capabilities\":{{\"max_msg_fds\":1,\"max_data_xfer_size\":{MOST_DATA}}}}}\0");
        let reply =
            link.call(command::VERSION, &[ours.as_bytes(), json.as_bytes()], &[]).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => card(
                        "the server closed the connection: another client is using the device".to_string(),
                        "stop the other client, or serve another device".into(),
                    ),
                    _ => {
                        card(format!("the server does not answer: {error}"), "the socket of a vfio-user server".into())
                    }
                }
            })?;
        if !Version::read_from_prefix(&reply).is_ok_and(|(version, _)| version.major == 0) {
            return Err(card(
                "the server uses another version of the protocol".to_string(),
                "update the server, or linerate".into(),
            ));
        }
        let device = VfioUser { path: path.to_string(), link: Arc::new(link), maps: Mutex::default() };
        let info: DeviceInfo = device.ask(command::DEVICE_GET_INFO, &DeviceInfo::default())?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(card("it is not a PCI device".to_string(), "serve a PCI device".into()));
        }
        config::enable(&device)?;
        Ok(Arc::new(device))
    }

    /// Returns the vendor and device ID.
    ///
    /// # Errors
    /// As [`PciDevice::read_config`].
    pub fn identity(&self) -> Result<(u16, u16)> {
        Ok((config::read_16(self, 0)?, config::read_16(self, 2)?))
    }

    /// Returns the registers behind a BAR; each access is a message.
    ///
    /// # Errors
    /// If there is no such BAR.
    ///
    /// # Safety
    /// As for [`MappedBar::new`].
    pub unsafe fn bar(&self, bar: u8) -> Result<MessageBar> {
        let asked = RegionInfo { index: bar.into(), ..RegionInfo::default() };
        let info: RegionInfo = self.ask(command::DEVICE_GET_REGION_INFO, &asked)?;
        if info.size == 0 {
            return Err(self.refuse(format!("it has no BAR {bar}")));
        }
        Ok(MessageBar { link: self.link.clone(), region: bar.into() })
    }

    /// Sends a request whose reply has the same type.
    fn ask<T>(&self, command: u16, asked: &T) -> Result<T>
    where
        T: IntoBytes + FromBytes + Immutable + KnownLayout,
    {
        let mut asked = T::read_from_bytes(asked.as_bytes()).expect("its own bytes");
        // Every such message starts with its own size.
        asked.as_mut_bytes()[..4].copy_from_slice(&(size_of::<T>() as u32).to_le_bytes());
        let reply = self.call(command, &[asked.as_bytes()], &[])?;
        T::read_from_prefix(&reply)
            .map(|(value, _)| value)
            .map_err(|_| self.refuse("the server sent a malformed reply".into()))
    }

    fn call(&self, command: u16, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> Result<Vec<u8>> {
        self.link.call(command, parts, descriptors).map_err(|error| self.refuse(format!("the server failed: {error}")))
    }

    fn refuse(&self, why: String) -> Error {
        Error::card(format!("vfio-user:{}", self.path), why, Remedy::ServeCard { path: self.path.clone() })
    }
}

impl Link {
    /// Sends a request, and returns its reply.
    fn call(&self, command: u16, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<Vec<u8>> {
        let mut guard = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, next) = &mut *guard;
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        *next = next.wrapping_add(1);
        let header = Header { id: *next, command, ..Header::default() };
        let reply = connection.send(header, parts, descriptors).and_then(|()| {
            loop {
                if let Some(reply) = connection.receive()? {
                    return Ok(reply);
                }
            }
        });
        let reply = reply.inspect_err(|_| self.broken.store(true, Ordering::Relaxed))?;
        if reply.header.id != *next || reply.header.flags & flag::TYPE != flag::REPLY {
            self.broken.store(true, Ordering::Relaxed);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply does not match the request"));
        }
        if reply.header.flags & flag::ERROR != 0 {
            return Err(io::Error::from_raw_os_error(reply.header.error as i32));
        }
        Ok(reply.payload)
    }

    /// Sends a request without a reply.
    fn post(&self, command: u16, parts: &[&[u8]]) {
        let mut guard = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, next) = &mut *guard;
        *next = next.wrapping_add(1);
        let header = Header { id: *next, command, flags: flag::NO_REPLY, ..Header::default() };
        if !self.broken.load(Ordering::Relaxed) && connection.send(header, parts, &[]).is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    fn read(&self, region: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        let reply = self.call(command::REGION_READ, &[access.as_bytes()], &[])?;
        let data = RegionAccess::read_from_prefix(&reply).ok().map(|(_, data)| data);
        match data.filter(|data| data.len() == bytes.len()) {
            Some(data) => {
                bytes.copy_from_slice(data);
                Ok(())
            }
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "the reply has the wrong length")),
        }
    }
}

// SAFETY: the server acts as a device: it accesses only memory that is mapped for it.
unsafe impl DmaSpace for VfioUser {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        // Gaps between mappings make accesses beyond an end fail.
        const FIRST: DeviceAddress = 1 << 32;
        const GAP: DeviceAddress = 1 << 30;
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, size) = (maps.0.max(FIRST), memory.len() as u64);
        let map = DmaMap { argsz: size_of::<DmaMap>() as u32, flags: MAP_READ | MAP_WRITE, offset: 0, address, size };
        self.call(command::DMA_MAP, &[map.as_bytes()], &[memory.file()])?;
        maps.0 = address + size.next_multiple_of(GAP) + GAP;
        maps.1.push((address, size));
        Ok(Addresses::Contiguous(Contiguous(address)))
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = maps.1.iter().position(|(start, _)| *start == address) {
            let (address, size) = maps.1.remove(at);
            let unmap = DmaUnmap { argsz: size_of::<DmaUnmap>() as u32, flags: 0, address, size };
            let _ = self.call(command::DMA_UNMAP, &[unmap.as_bytes()], &[]);
        }
    }
}

impl Bus for VfioUser {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        let asked = InterruptInfo { index: VFIO_PCI_MSIX_IRQ_INDEX, ..InterruptInfo::default() };
        let info: InterruptInfo = self.ask(command::DEVICE_GET_IRQ_INFO, &asked)?;
        let interrupts = pci::interrupts(&format!("vfio-user:{}", self.path), count, info.count)?;
        for (number, interrupt) in interrupts.iter().enumerate() {
            let set = SetInterrupts {
                argsz: size_of::<SetInterrupts>() as u32,
                flags: VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                index: VFIO_PCI_MSIX_IRQ_INDEX,
                start: number as u32,
                count: 1,
            };
            self.call(command::DEVICE_SET_IRQS, &[set.as_bytes()], &[interrupt.as_fd()])?;
        }
        Ok(interrupts)
    }

    unsafe fn allow_dma(&self) -> Result<()> {
        // SAFETY: the device was reset, as the caller promises.
        unsafe { config::enable_master(self) }
    }

    fn gone_remedy(&self) -> &'static str {
        "the program that serves it has ended; start it again, and open the port again"
    }
}

impl PciDevice for VfioUser {
    fn address(&self) -> &str {
        &self.path
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()> {
        self.link
            .read(VFIO_PCI_CONFIG_REGION_INDEX, offset.into(), bytes)
            .map_err(|error| self.refuse(format!("reading configuration space: {error}")))
    }

    unsafe fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()> {
        let access =
            RegionAccess { offset: offset.into(), region: VFIO_PCI_CONFIG_REGION_INDEX, count: bytes.len() as u32 };
        self.call(command::REGION_WRITE, &[access.as_bytes(), bytes], &[]).map(drop)
    }

    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar> {
        Err(self.refuse(format!("its BAR {bar} cannot be mapped")))
    }

    unsafe fn io_ports(&self, bar: u8) -> Result<IoPorts> {
        Err(self.refuse(format!("its BAR {bar} is not I/O ports")))
    }

    fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
        self
    }
}

/// Registers accessed by messages. Writes are posted, like PCI's: in order, and without a reply.
#[derive(Clone)]
pub struct MessageBar {
    link: Arc<Link>,
    region: u32,
}

impl Bar for MessageBar {
    type Doorbell = MessageDoorbell;

    fn read(&self, offset: u32) -> u32 {
        let mut bytes = [0xFF; 4];
        match self.link.read(self.region, offset.into(), &mut bytes) {
            Ok(()) => u32::from_le_bytes(bytes),
            Err(_) => u32::MAX,
        }
    }

    fn write(&self, offset: u32, value: u32) {
        let access = RegionAccess { offset: offset.into(), region: self.region, count: 4 };
        self.link.post(command::REGION_WRITE, &[access.as_bytes(), &value.to_le_bytes()]);
    }

    fn doorbell(&self, offset: u32) -> MessageDoorbell {
        MessageDoorbell { bar: self.clone(), offset }
    }
}

/// A doorbell of a [`MessageBar`].
pub struct MessageDoorbell {
    bar: MessageBar,
    offset: u32,
}

impl Doorbell for MessageDoorbell {
    fn ring(&self, tail: u32) {
        self.bar.write(self.offset, tail);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use linerate_core::memory::PageSize;

    use super::*;

    /// The requests that a server received: command and payload.
    type Got = Arc<Mutex<Vec<(u16, Vec<u8>)>>>;
    /// Changes the reply to a command before it is sent.
    type Change = Box<dyn Fn(u16, &mut Header) + Send>;

    /// Connects to a server that echoes each request, and reports a device with these flags.
    fn connect(name: &str, flags: u32, change: Change) -> (Result<Arc<VfioUser>>, Got) {
        let path = std::env::temp_dir().join(format!("linerate-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let got = Got::default();
        let notes = got.clone();
        std::thread::spawn(move || {
            let mut connection = Connection::new(listener.accept().unwrap().0);
            // Ends when the client disconnects.
            while let Ok(message) = connection.receive() {
                let Some(Message { header, mut payload, .. }) = message else { continue };
                notes.lock().unwrap().push((header.command, payload.clone()));
                match header.command {
                    command::DEVICE_GET_INFO => {
                        payload = DeviceInfo { flags, ..DeviceInfo::default() }.as_bytes().to_vec();
                    }
                    command::REGION_READ => payload.extend([0; 2]),
                    _ => {}
                }
                let mut reply = Header { flags: flag::REPLY, ..header };
                change(header.command, &mut reply);
                if connection.send(reply, &[&payload], &[]).is_err() {
                    return;
                }
            }
        });
        let device = VfioUser::connect(path.to_str().unwrap());
        std::fs::remove_file(path).unwrap();
        (device, got)
    }

    fn message(result: Result<Arc<VfioUser>>) -> String {
        result.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_hint_depends_on_the_error() {
        assert!(mend(io::ErrorKind::PermissionDenied, "/s").to_string().contains("access"));
        assert_eq!(mend(io::ErrorKind::NotFound, "/s"), Remedy::ServeCard { path: "/s".to_string() });
    }

    #[test]
    fn only_pci_devices_are_driven() {
        let unchanged = || Box::new(|_, _: &mut Header| {});
        for (flags, is_pci) in [(0, false), (1, false), (VFIO_DEVICE_FLAGS_PCI, true), (3, true)] {
            let (device, _) = connect(&format!("pci{flags}"), flags, unchanged());
            match is_pci {
                true => assert!(device.unwrap().address().ends_with(&format!("pci{flags}"))),
                false => assert!(message(device).contains("not a PCI device")),
            }
        }
    }

    #[test]
    fn a_mismatched_reply_ends_the_connection() {
        for name in ["number", "request", "kind"] {
            let change = move |command: u16, header: &mut Header| match name {
                _ if command != command::DEVICE_GET_INFO => {}
                "number" => header.id = header.id.wrapping_add(1),
                "request" => header.flags &= !flag::TYPE,
                _ => header.flags |= 2,
            };
            let (device, _) = connect(name, 3, Box::new(change));
            assert!(message(device).contains("does not match the request"), "{name}");
        }
        // A reply may have the flag for an error: the server refuses the request.
        let (device, _) = connect(
            "error",
            3,
            Box::new(|command, header| {
                if command == command::DEVICE_GET_INFO {
                    (header.flags, header.error) = (header.flags | flag::ERROR, libc::EPERM as u32);
                }
            }),
        );
        assert!(message(device).contains("Operation not permitted"));
    }

    #[test]
    fn each_mapping_has_an_address_of_its_own_with_room_behind_it() {
        let (device, got) = connect("maps", 3, Box::new(|_, _| {}));
        let device = device.unwrap();
        let memory = |pages: usize| Arc::new(Mapping::new(pages * 4096, PageSize::Ordinary, None).unwrap());
        let address = |addresses: Addresses| match addresses {
            Addresses::Contiguous(Contiguous(address)) => address,
            _ => panic!("it is one piece"),
        };
        let [first, second, third] = [3, 1, 2].map(|pages| address(device.map(&memory(pages)).unwrap()));
        assert_eq!([first, second, third], [4 << 30, 6 << 30, 8 << 30]);
        // SAFETY: no device uses the mappings.
        [second, second, 7, first].iter().for_each(|address| unsafe { device.unmap(*address) });
        let of = |command: u16| {
            let got = got.lock().unwrap();
            got.iter().filter(|(it, _)| *it == command).map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>()
        };
        let maps: Vec<_> = of(command::DMA_MAP).iter().map(|bytes| DmaMap::read_from_bytes(bytes).unwrap()).collect();
        let maps: Vec<_> = maps.iter().map(|map| (map.flags, map.offset, map.address, map.size)).collect();
        assert_eq!(maps, [(3, 0, first, 3 * 4096), (3, 0, second, 4096), (3, 0, third, 2 * 4096)]);
        let unmaps = of(command::DMA_UNMAP);
        let unmaps: Vec<_> = unmaps.iter().map(|bytes| DmaUnmap::read_from_bytes(bytes).unwrap()).collect();
        let unmaps: Vec<_> = unmaps.iter().map(|unmap| (unmap.address, unmap.size)).collect();
        assert_eq!(unmaps, [(second, 4096), (first, 3 * 4096)]);
    }
}
