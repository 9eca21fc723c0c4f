//! A recorder around any port: `recorded:PORT?to=FILE`.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::packet::now;
use linerate_core::port::{
    Address, Description, Device, Info, Maturity, Opening, PortKind, PortName, PortOption, Receive, RxWrapper,
    Transmit, TxWrapper, Value, Wrapped, Wrapper, rx_around, tx_around,
};

use super::{TryWriter, Writer};

/// A port whose received and sent packets are recorded, with the times at which the program receives or sends them.
///
/// The packets of all queues are in one file, `to=FILE`. If it cannot be written, packets still pass, and
/// [`Port::link`](linerate_core::port::Port::link) fails from then on.
pub type Recorded = Wrapped<Recorder>;

/// `recorded:PORT`
pub static RECORDED: PortKind = PortKind {
    description: Description {
        options: &[PortOption { name: "to", value: Value::Text("FILE"), default: "", help: "the file" }],
        feature: "capture",
        example: "recorded:sim:0?to=a.pcap",
        summary: "any port, whose packets are recorded",
        page: "capture.md",
        maturity: Maturity::Others,
        ..Description::new("recorded", Address::Port)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    Ok(Box::new(Recorded::open(&opening, Recorder::of(opening.name)?)?))
}

/// The file of a [`Recorded`] port.
pub struct Recorder(Arc<Shared>);

struct Shared {
    path: String,
    file: Mutex<TryWriter>,
}

impl Recorder {
    /// Creates the file given in a name.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption) without a file,
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written.
    pub fn of(name: &PortName) -> Result<Recorder> {
        let Some(path) = name.option("to") else {
            return Err(name.bad_option("to", "it must name the file: recorded:PORT?to=FILE"));
        };
        let file = Mutex::new(TryWriter::create(Path::new(path))?);
        Ok(Recorder(Arc::new(Shared { path: path.to_string(), file })))
    }
}

impl Shared {
    /// Locks the file.
    fn file(&self) -> MutexGuard<'_, TryWriter> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records packets; `bytes` is a buffer for one packet.
    fn record<'a>(&self, packets: impl Iterator<Item = linerate_core::Packet<'a>>, bytes: &mut Vec<u8>) {
        self.file().try_write(|writer| {
            let first = now();
            for (packet, time) in packets.zip(first..) {
                bytes.clear();
                packet.append_to(bytes);
                writer.write(packet.timestamp().unwrap_or(time), bytes)?;
            }
            Ok(())
        });
    }
}

impl Wrapper for Recorder {
    fn info(&self, inner: Info) -> Info {
        Info { description: format!("{}, recorded to {}", inner.description, self.0.path), ..inner }
    }

    fn rx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Receive>> {
        let inner = inner.rx(queue)?;
        self.0.file().try_write(Writer::begin);
        Ok(rx_around(inner, RecordedRx { shared: self.0.clone(), bytes: Vec::new() }))
    }

    fn tx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Transmit>> {
        let inner = inner.tx(queue)?;
        self.0.file().try_write(Writer::begin);
        Ok(tx_around(inner, RecordedTx { shared: self.0.clone() }))
    }

    fn check(&self) -> Result<()> {
        let mut file = self.0.file();
        file.try_write(Writer::flush);
        file.check()
    }
}

/// Records a receive queue.
struct RecordedRx {
    shared: Arc<Shared>,
    bytes: Vec<u8>,
}

impl RxWrapper for RecordedRx {
    fn recv(&mut self, inner: &mut dyn Receive, batch: &mut Batch) -> usize {
        let before = batch.packets().count();
        let received = inner.recv(batch);
        if received > 0 {
            self.shared.record(batch.packets().skip(before), &mut self.bytes);
        }
        received
    }
}

/// Records a transmit queue.
struct RecordedTx {
    shared: Arc<Shared>,
}

impl TxWrapper for RecordedTx {
    /// Packets are copied before they are sent, since the port owns them afterwards. Only accepted packets are
    /// recorded.
    fn send(&mut self, inner: &mut dyn Transmit, batch: &mut Batch) -> usize {
        let mut frames: Vec<(usize, Vec<u8>)> = Vec::new();
        for packet in batch.packets() {
            let mut bytes = Vec::with_capacity(packet.len());
            packet.append_to(&mut bytes);
            frames.push((packet.slots(), bytes));
        }
        let sent = inner.send(batch);
        let mut left = sent;
        self.shared.file().try_write(|writer| {
            let first = now();
            for ((slots, bytes), time) in frames.iter().zip(first..) {
                if *slots > left {
                    break;
                }
                left -= slots;
                writer.write(time, bytes)?;
            }
            Ok(())
        });
        sent
    }
}
