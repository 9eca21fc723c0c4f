//! The card: its registers and memory, bounded waits, reset and bring-up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate_cards::pci::{Bar, Bus};
use linerate_core::memory::{Addresses, Descriptors, DeviceAddress, DmaMap, DmaSpace, Placement};
use linerate_core::port::Config;
use linerate_core::{Error, ErrorKind, Result};
use linerate_spec::Register;
use linerate_spec::x82599::*;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// Bytes that the card writes beyond the longest frame: the MAC accepts a VLAN tag in addition (8.2.3.22).
const VLAN_TAG: usize = 4;
/// The longest frame, in bytes without CRC, of linerate's own driver for this card.
const MAX_FRAME: usize = 9728;

/// One card, shared by its driver and its queues. Dropping the last reference stops the card before its memory is
/// unmapped.
pub struct Card<B: Bar> {
    pub bar: B,
    pub config: Config,
    /// The receive ring, then the transmit ring. The memory belongs to no region, so that no packet is in it.
    rings: DmaMap,
    packets: DmaMap,
    /// Buffers of queues that did not stop. The card may write to them until it is reset.
    quarantined: Mutex<Vec<u32>>,
    /// Dropped last: this may return the card to the kernel.
    bus: Arc<dyn Bus>,
}

impl<B: Bar> Card<B> {
    /// Maps the memory, resets the card and brings it up.
    pub fn open(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Card<B>> {
        config.check_ring()?;
        for (direction, queues) in [("receive", config.options.rx_queues), ("transmit", config.options.tx_queues)] {
            if queues != 1 {
                return Err(Error::too_many_queues(&config.name, direction, queues, 1));
            }
        }
        let (region, frame) = (config.pool.region(), config.options.max_frame);
        if frame > MAX_FRAME {
            let why =
                format!("frames of {frame} bytes are not possible: the card sends at most {MAX_FRAME} without CRC");
            return Err(Error::new(ErrorKind::BadOption, &config.name, why).with_remedy("a lower MTU"));
        }
        if Placement::new(region, frame + VLAN_TAG).room() < frame + VLAN_TAG {
            let remedy = "open the port with a lower MTU, or give the region larger buffers";
            let (size, why) = (region.buffer_size(), "each frame must fit a buffer");
            return Err(Error::buffer_too_small(&config.name, size, frame, why, remedy));
        }
        let space: Arc<dyn DmaSpace> = bus.clone();
        let rings = DmaMap::of_rings(&space, 2 * config.ring() * DESCRIPTOR, region.pages())?;
        // SAFETY: only the mapping's device addresses are used. The program reads and writes packets through slots.
        let packets = DmaMap::new(&space, unsafe { region.mapping() })?;
        let card = Card { bar, config, rings, packets, quarantined: Mutex::default(), bus };
        card.bring_up()?;
        Ok(card)
    }

    /// Returns the descriptors of a ring, and the ring's device address. Ring 0 receives, ring 1 transmits.
    pub fn ring(&self, ring: usize) -> (Descriptors, DeviceAddress) {
        let offset = ring * self.config.ring() * DESCRIPTOR;
        // SAFETY: there are no slices of this memory: only descriptors are made of it, and they are atomics.
        let descriptors = unsafe { Descriptors::new(self.rings.memory(), offset, self.config.ring()) };
        (descriptors, self.rings.addresses().at(offset))
    }

    /// Returns the device addresses of the region's bytes.
    pub fn addresses(&self) -> &Addresses {
        self.packets.addresses()
    }

    /// Returns the most bytes that the card writes for a frame, or sends.
    pub fn longest(&self) -> usize {
        self.config.options.max_frame + VLAN_TAG
    }

    /// Returns where the card writes in a buffer.
    pub fn placement(&self) -> Placement {
        Placement::new(self.config.pool.region(), self.longest())
    }

    /// Returns a buffer's size for `SRRCTL.BSIZEPACKET`, in KiB, rounded up (8.2.3.8.7). The card drops longer frames,
    /// so it does not write beyond the buffer.
    pub fn buffer_kib(&self) -> u32 {
        self.longest().div_ceil(1024) as u32
    }

    pub fn read(&self, register: impl Into<Register>) -> u32 {
        self.bar.read(register.into().offset)
    }

    pub fn write(&self, register: impl Into<Register>, value: u32) {
        self.bar.write(register.into().offset, value);
    }

    pub fn set(&self, register: impl Into<Register>, bits: u32) {
        self.change(register, bits, bits);
    }

    pub fn clear(&self, register: impl Into<Register>, bits: u32) {
        self.change(register, bits, 0);
    }

    /// Replaces the bits in `mask` with the bits of `value`.
    fn change(&self, register: impl Into<Register>, mask: u32, value: u32) {
        let register = register.into();
        self.write(register, self.read(register) & !mask | value);
    }

    /// Reads a register; fails if it reads all ones, as registers of a card do that is gone.
    pub fn read_live(&self, register: impl Into<Register>) -> Result<u32> {
        let register = register.into();
        match self.read(register) {
            u32::MAX => Err(Error::card_gone(&self.config.name, register.definition.name, self.bus.gone_remedy())),
            value => Ok(value),
        }
    }

    /// Waits until the bits in `mask` equal `wanted`, at most 200 ms.
    pub fn wait(&self, register: impl Into<Register>, mask: u32, wanted: u32) -> Result<()> {
        const STEP: Duration = Duration::from_micros(100);
        const LONGEST: Duration = Duration::from_millis(200);
        let (register, mut waited) = (register.into(), Duration::ZERO);
        while self.read_live(register)? & mask != wanted {
            if waited >= LONGEST {
                let what = format!("{register} & {mask:#x} = {wanted:#x}");
                return Err(Error::timeout(&self.config.name, what, register.definition.section, waited));
            }
            self.bar.wait(STEP);
            waited += STEP;
        }
        Ok(())
    }

    /// Brings the card up from any state, until queues can be started (4.6.3). Receive stays disabled.
    pub fn bring_up(&self) -> Result<()> {
        self.read_live(STATUS)?;
        self.reset()?;
        self.free_quarantined();
        // SAFETY: the card was reset above, so it has no addresses of an earlier driver.
        unsafe { self.bus.allow_dma()? };
        self.wait(EEC, EEC::ARD, EEC::ARD)?;
        self.wait(RDRXCTL, RDRXCTL::DMAIDONE, RDRXCTL::DMAIDONE)?;
        // A reset does not switch the module's laser on (3.7.4). The EEPROM has set the link's mode.
        self.clear(ESDP, ESDP::SDP3);
        for counter in statistics() {
            self.read(counter); // a read clears it
        }
        self.set_up_receive();
        self.set_up_transmit();
        self.set(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    /// Masks interrupts, stops DMA and resets the card (4.6.3.1, 5.2.4.3.2). Then it holds no addresses.
    fn reset(&self) -> Result<()> {
        self.write(EIMC, EIMC::ALL_CAUSES);
        self.clear(RXCTRL, RXCTRL::RXEN);
        self.set(CTRL, CTRL::MASTER_DISABLE);
        self.wait(STATUS, STATUS::MASTER_ENABLE_STATUS, 0)?;
        self.write(CTRL, CTRL::RST | CTRL::LRST);
        self.wait(CTRL, CTRL::RST | CTRL::LRST, 0)?;
        // The EEPROM is read again (4.6.3.2).
        self.bar.wait(Duration::from_millis(10));
        self.write(EIMC, EIMC::ALL_CAUSES);
        Ok(())
    }

    /// Sets up receive, without filters, DCB and virtualization (4.6.7).
    fn set_up_receive(&self) {
        self.write(RXPBSIZE(0), PACKET_BUFFER_KIB << RXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.write(RXPBSIZE(class), 0));
        self.set(HLREG0, HLREG0::RXCRCSTRP | HLREG0::TXCRCEN | HLREG0::TXPADEN | HLREG0::JUMBOEN);
        // CRC stripping as in HLREG0; bits 25 and 26 must be 1 (8.2.3.8.8).
        let (bits, mask) = (RDRXCTL::CRC_STRIP | RDRXCTL::BIT_25 | RDRXCTL::BIT_26, RDRXCTL::RSCFRSTSIZE_MASK);
        self.change(RDRXCTL, mask | bits, bits);
        self.set(RFCTL, RFCTL::RSC_DIS);
        // The longest frame, with its CRC.
        self.write(MAXFRS, (self.config.options.max_frame as u32 + 4) << MAXFRS::MFS_SHIFT);
        for n in 0..128 {
            self.write(MTA(n), 0);
            self.write(PFUTA(n), 0);
            self.write(VFTA(n), 0);
        }
        self.write(MRQC, 0);
        self.write(FCTRL, FCTRL::BAM);
        self.set_promiscuous(true);
        self.set(CTRL_EXT, CTRL_EXT::NS_DIS);
        self.clear(DCA_RXCTRL(0), DCA_RXCTRL::BIT_12);
    }

    /// Sets up transmit, without DCB and virtualization (4.6.8).
    fn set_up_transmit(&self) {
        self.write(TXPBSIZE(0), 160 << TXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.write(TXPBSIZE(class), 0));
        // The buffer's size minus the longest frame, in KiB (8.2.3.9.16).
        self.write(TXPBTHRESH(0), 160 - 10);
        self.write(DTXMXSZRQ, 0xFFF);
        // MTQC may change only while the arbiter is disabled (8.2.3.9.15).
        self.set(RTTDCS, RTTDCS::ARBDIS);
        self.write(MTQC, 0);
        self.clear(RTTDCS, RTTDCS::ARBDIS);
        // Without relaxed ordering, the card writes a descriptor back only after it has read the data (8.2.3.11.2).
        self.clear(DCA_TXCTRL(0), DCA_TXCTRL::DESC_WRO_EN);
        self.set(DMATXCTL, DMATXCTL::TE);
    }

    /// Receives all frames, or only broadcasts and frames to the card's own address.
    pub fn set_promiscuous(&self, on: bool) {
        self.change(FCTRL, FCTRL::UPE | FCTRL::MPE, if on { FCTRL::UPE | FCTRL::MPE } else { 0 });
    }

    /// Returns the buffers of a queue to the pool; quarantines them if the queue did not stop.
    ///
    /// # Safety
    /// The queue owned the buffers, which are of the card's pool, and does not use them again. If `stopped` is `Ok`,
    /// the card does not access them any more.
    pub unsafe fn release(&self, stopped: Result<()>, bufs: &[u32]) -> Result<()> {
        match stopped {
            // SAFETY: as the caller promises.
            Ok(()) => unsafe { self.config.pool.give(bufs) },
            Err(_) => self.quarantined.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bufs),
        }
        stopped
    }

    /// Returns quarantined buffers to the pool. The card must have been reset.
    fn free_quarantined(&self) {
        let bufs = std::mem::take(&mut *self.quarantined.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: their queues are gone, and the card holds no addresses since its reset.
        unsafe { self.config.pool.give(&bufs) };
    }
}

impl<B: Bar> Drop for Card<B> {
    fn drop(&mut self) {
        if self.reset().is_ok() {
            self.free_quarantined();
            self.clear(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        } else {
            // A card that does not answer may still write: its memory is leaked rather than freed.
            std::mem::forget((self.rings.memory().clone(), self.packets.memory().clone()));
        }
    }
}
