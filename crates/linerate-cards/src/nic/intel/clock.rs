//! The card's clock, and the times of packets that the card has noted (82599 datasheet, section 7.9).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use linerate_core::error::{Error, Result};
use linerate_core::packet::now;
use linerate_core::port::{CardClock, Scale};
use linerate_spec::Register;
use linerate_spec::descriptor::receive;
use linerate_spec::x82599::{TSYNCRXCTL, TSYNCTXCTL};

use super::{Controller, Hardware, PhysicalFunction};
use crate::pci::Bar;

/// The registers of a card's clock. The bits of TSYNCTXCTL and TSYNCRXCTL are the same on all cards.
pub struct ClockRegisters {
    /// The counter (SYSTIM), low half first.
    pub time: [Register; 2],
    /// The register that tells whether a sent packet's time was noted (TSYNCTXCTL), and that time (TXSTMP).
    pub sent: (Register, [Register; 2]),
    /// As `sent`, for received packets (TSYNCRXCTL, RXSTMP).
    pub received: (Register, [Register; 2]),
    /// The register of the noted packet's attributes; reading the last of these registers frees all of them.
    pub attributes: Register,
}

/// The ethertype of IEEE 1588.
pub const PTP: u32 = 0x88F7;

impl<B: Bar, C: PhysicalFunction> Hardware<B, C> {
    /// Starts the clock with the system's time, if the card has one.
    pub(super) fn start_clock(&self) -> Result<()> {
        let Some(ClockRegisters { sent, received, .. }) = C::clock_registers() else { return Ok(()) };
        C::start_counter(self);
        self.write(sent.0, TSYNCTXCTL::ENABLE);
        if self.config.options.metadata {
            C::find_events(self);
            // Events of version 2.
            self.write(received.0, TSYNCRXCTL::TYPE_EVENTS | TSYNCRXCTL::ENABLE);
            self.take_received();
        }
        let mut scale = self.scale.lock().unwrap_or_else(PoisonError::into_inner);
        *scale = Scale::default();
        scale.set(self.count()?, now());
        Ok(())
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Returns the time of the received packet with this word 1 of its descriptor, if the card has noted it.
    #[inline(always)]
    pub(super) fn time_of(&self, word: u64) -> Option<u64> {
        if word & receive::TS != 0 { self.received_time() } else { None }
    }

    /// Returns the time of the received packet that the card has noted.
    #[cold]
    fn received_time(&self) -> Option<u64> {
        let scale = self.scale.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_time_stale.store(false, Relaxed);
        self.take_received().map(|count| scale.time(count))
    }

    /// Frees the registers of a received packet's time if the packet was dropped: otherwise the card would note no
    /// other. Called twice, it finds the same state at both calls then.
    pub(super) fn free_stale_time(&self) {
        let Some(registers) = C::clock_registers().filter(|_| self.config.options.metadata) else { return };
        let is_noted = self.read(registers.received.0) & TSYNCRXCTL::VALID != 0;
        if self.is_time_stale.swap(is_noted, Relaxed) && is_noted {
            self.received_time();
        }
    }

    fn take_received(&self) -> Option<u64> {
        let registers = C::clock_registers()?;
        let count = self.take_noted(&registers.received);
        self.read(registers.attributes);
        count
    }

    fn take_noted(&self, (control, time): &(Register, [Register; 2])) -> Option<u64> {
        (self.read(*control) & TSYNCTXCTL::VALID != 0).then(|| self.nanoseconds(time))
    }

    /// Reads a time. The high half is second: reading it frees the registers, and reading the low half latches it.
    fn nanoseconds(&self, [low, high]: &[Register; 2]) -> u64 {
        let low = self.read(*low);
        C::nanoseconds(self, low, self.read(*high))
    }

    /// Returns the clock's registers.
    ///
    /// # Errors
    /// The card has no clock.
    fn registers(&self) -> Result<ClockRegisters> {
        C::clock_registers().ok_or_else(|| Error::unsupported(self.config.name.clone(), "clock", "this card has none"))
    }
}

impl<B: Bar, C: Controller> CardClock for Hardware<B, C> {
    fn count(&self) -> Result<u64> {
        self.check_alive()?;
        C::latch_time(self);
        Ok(self.nanoseconds(&self.registers()?.time))
    }

    fn take_sent(&self) -> Result<Option<u64>> {
        self.check_alive()?;
        Ok(self.take_noted(&self.registers()?.sent))
    }

    fn scale(&self) -> &Mutex<Scale> {
        &self.scale
    }
}
