//! Any port of this library as the other end: frames that the card sends leave there, and packets received there go
//! to the card.

use std::sync::Arc;

use super::{Frame, Wire};
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;
use crate::port::{Link, RxQueue, TxQueue};

/// A port's first queue each way.
pub struct Port {
    device: crate::port::Port,
    rx: RxQueue,
    tx: TxQueue,
    pool: Arc<Pool>,
    received: Batch,
    /// Packets that the port had no room for yet.
    sending: Batch,
    /// The number of packets of `received` that the card has taken.
    taken: usize,
    count: usize,
}

impl Port {
    /// Connects a card with `device`, whose first queues must be free.
    ///
    /// # Errors
    /// If they are in use.
    pub fn new(mut device: crate::port::Port) -> Result<Port> {
        let (rx, tx) = (device.rx(0)?, device.tx(0)?);
        let pool = device.pool().clone();
        Ok(Port { device, rx, tx, pool, received: Batch::new(), sending: Batch::new(), taken: 0, count: 0 })
    }
}

impl Wire for Port {
    fn link(&self) -> bool {
        matches!(self.device.link(), Ok(Link::Up { .. }))
    }

    fn ready(&mut self) -> bool {
        if self.sending.is_empty() {
            return true;
        }
        self.tx.send(&mut self.sending);
        self.sending.is_empty()
    }

    fn transmit(&mut self, frame: &Frame) {
        // Without a free buffer the frame is lost, as on a wire.
        if self.sending.push(&self.pool, &frame.bytes) {
            self.tx.send(&mut self.sending);
        }
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        if self.taken == self.count {
            self.received.clear();
            self.rx.recv(&mut self.received);
            (self.taken, self.count) = (0, self.received.packets().count());
        }
        let Some(packet) = self.received.packets().nth(self.taken) else { return false };
        self.taken += 1;
        frame.bytes.clear();
        packet.append_to(&mut frame.bytes);
        frame.bad_crc = false;
        true
    }
}
