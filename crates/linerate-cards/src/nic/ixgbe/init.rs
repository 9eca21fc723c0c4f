//! Reset and bring-up, in the order of datasheet section 4.6.3, and interrupts.

use std::time::Duration;

use linerate_core::error::{ErrorKind, Result};
use linerate_spec::x82599::*;

use super::X82599;
use super::rules::DIRECTOR_KIB;
use crate::nic::intel::{Controller, Hardware};
use crate::pci::Bar;

impl<B: Bar> Hardware<B, X82599> {
    /// Brings the card up from any state, until queues can be started. Receive stays disabled.
    pub(super) fn reset_and_init(&self) -> Result<()> {
        // 4.6.3.1: mask interrupts before and after the reset.
        self.check_alive()?;
        self.write(EIMC, EIMC::ALL_CAUSES);
        self.stop_and_reset()?;
        self.write(EIMC, EIMC::ALL_CAUSES);
        self.free_quarantined();
        self.forget_queues();
        self.allow_dma()?;

        // 4.6.3: wait until the EEPROM is loaded and the DMA engine is ready.
        self.wait_set(EEC, EEC::ARD)?;
        self.wait_set(RDRXCTL, RDRXCTL::DMAIDONE)?;

        self.init_link()?;
        self.clear_statistics();
        self.init_receive();
        self.init_transmit();
        // Tells firmware that a driver is loaded (8.2.3.1.3).
        self.set(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    /// Stops all DMA, then resets.
    pub(super) fn stop_and_reset(&self) -> Result<()> {
        // 5.2.4.3.2: let pending requests complete before the reset. Without RXEN, frames cause no new requests.
        self.clear(RXCTRL, RXCTRL::RXEN);
        self.set(CTRL, CTRL::MASTER_DISABLE);
        match self.wait_clear(STATUS, STATUS::MASTER_ENABLE_STATUS) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                // A request did not complete. The datasheet's remedy: clear the card's buffers while loopback keeps
                // frames from leaving, then reset twice.
                self.set(HLREG0, HLREG0::LPBK);
                self.set(GCR_EXT, GCR_EXT::BUFFERS_CLEAR_FUNC);
                self.bar.wait(Duration::from_micros(20));
                self.clear(GCR_EXT, GCR_EXT::BUFFERS_CLEAR_FUNC);
                self.clear(HLREG0, HLREG0::LPBK);
                self.reset_once()?;
            }
            other => other?,
        }
        self.reset_once()
    }

    /// Resets link and software together (4.2.1.6.1, 4.6.3.2).
    fn reset_once(&self) -> Result<()> {
        self.write(CTRL, CTRL::RST | CTRL::LRST);
        self.wait_clear(CTRL, CTRL::RST | CTRL::LRST)?;
        // The EEPROM is reloaded; the datasheet requires a pause of 10 ms.
        self.bar.wait(Duration::from_millis(10));
        Ok(())
    }

    /// Initializes receive, without DCB and virtualization (4.6.7).
    fn init_receive(&self) {
        self.clear(RXCTRL, RXCTRL::RXEN);
        // One traffic class gets the whole packet buffer (4.6.11.3.4), except what the flow director needs for rules:
        // the size may change only while the card does not receive (8.2.3.8.9).
        let kib = if self.is_copper() { X540_PACKET_BUFFER_KIB } else { PACKET_BUFFER_KIB };
        self.write(RXPBSIZE(0), (kib - DIRECTOR_KIB) << RXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.write(RXPBSIZE(class), 0));

        // HLREG0 and RDRXCTL must agree on CRC stripping (8.2.3.8.8). Bits 25 and 26 must be 1, RSCFRSTSIZE must be 0.
        let strip = HLREG0::RXCRCSTRP | HLREG0::TXCRCEN | HLREG0::TXPADEN;
        self.set(HLREG0, strip);
        let mask = RDRXCTL::CRC_STRIP | RDRXCTL::RSCFRSTSIZE_MASK | RDRXCTL::BIT_25 | RDRXCTL::BIT_26;
        self.change(RDRXCTL, mask, RDRXCTL::CRC_STRIP | RDRXCTL::BIT_25 | RDRXCTL::BIT_26);
        match self.is_coalescing() {
            false => self.set(RFCTL, RFCTL::RSC_DIS),
            // Also for packets of NFS (4.6.7.2.1).
            true => self.clear(RFCTL, RFCTL::RSC_DIS | RFCTL::NFSW_DIS | RFCTL::NFSR_DIS),
        }

        // MFS includes the CRC. Without JUMBOEN the card ignores it and accepts 1,518 bytes.
        self.write(MAXFRS, (self.config.options.max_frame as u32 + 4) << MAXFRS::MFS_SHIFT);
        self.set(HLREG0, HLREG0::JUMBOEN);

        (0..128).for_each(|n| self.write(MTA(n), 0));
        (0..128).for_each(|n| self.write(PFUTA(n), 0));
        (0..128).for_each(|n| self.write(VFTA(n), 0));
        self.write(FCTRL, FCTRL::BAM);
        self.write(MRQC, 0);

        // Required by the last sentences of 4.6.7.
        self.set(CTRL_EXT, CTRL_EXT::NS_DIS);
        (0..self.config.options.rx_queues).for_each(|n| self.clear(DCA_RXCTRL(n), DCA_RXCTRL::BIT_12));
    }

    /// Initializes transmit, without DCB and virtualization (4.6.8).
    fn init_transmit(&self) {
        self.write(TXPBSIZE(0), 160 << TXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.write(TXPBSIZE(class), 0));
        // 8.2.3.9.16: the buffer's size minus the longest frame, in KiB.
        self.write(TXPBTHRESH(0), 0xA0 - MAXIMUM_FRAME_KIB);
        self.write(DTXMXSZRQ, 0xFFF);
        // 8.2.3.9.15: MTQC may change only while the arbiter is disabled.
        self.set(RTTDCS, RTTDCS::ARBDIS);
        self.write(MTQC, 0);
        self.clear(RTTDCS, RTTDCS::ARBDIS);
        // Clear all rate limits: a reset does not clear their memory, which two registers access (8.2.3.10.12,
        // 8.2.3.10.16).
        for queue in 0..128 {
            self.write(RTTDQSEL, queue);
            self.write(RTTBCNRC, 0);
        }
        // Without relaxed ordering, the card writes back a descriptor only after reading its data (8.2.3.11.2).
        (0..self.config.options.tx_queues).for_each(|n| self.clear(DCA_TXCTRL(n), DCA_TXCTRL::DESC_WRO_EN));
        // Only the first segment keeps CWR, and only the last keeps FIN and PSH (RFC 3168).
        self.write(DTXTCPFLGL, DTXTCPFLGL::FIRST_SEGMENT | DTXTCPFLGL::MIDDLE_SEGMENTS);
        self.set(DMATXCTL, DMATXCTL::TE);
    }

    /// Enables receive: the last step of 4.6.7.
    pub(super) fn open_receive(&self) -> Result<()> {
        self.set(SECRXCTRL, SECRXCTRL::RX_DIS);
        self.wait_set(SECRXSTAT, SECRXSTAT::SECRX_RDY)?;
        self.set(RXCTRL, RXCTRL::RXEN);
        self.clear(SECRXCTRL, SECRXCTRL::RX_DIS);
        Ok(())
    }

    /// Disables receive (4.6.7).
    pub(super) fn close_receive(&self) {
        self.clear(RXCTRL, RXCTRL::RXEN);
    }

    /// Clears the counters by reading them (4.6.5).
    fn clear_statistics(&self) {
        for register in statistics() {
            self.read(register);
        }
    }

    /// Maps receive queue n to vector n, which masks itself when raised (4.6.3.1.2, 7.3.4).
    pub(super) fn init_interrupts(&self, queues: u16, throttle: Duration) {
        // Over uio there is one interrupt line for one queue, raised by the same causes.
        if !self.has_line() {
            self.write(GPIE, GPIE::MULTIPLE_MSIX | GPIE::EIAME | GPIE::PBA_SUPPORT);
            // Causes clear and mask themselves when the message is sent.
            self.write(EIAC, (1 << queues) - 1);
            self.write(EIAM, (1 << queues) - 1);
        }
        self.map_queues(queues, throttle);
    }

    /// Lets the card coalesce TCP segments, and bounds the time for which it holds a packet (4.6.7.2, 7.3.2.1.1): the
    /// throttle of the queue's interrupt completes it, also while the interrupt is masked.
    pub(super) fn init_coalescing(&self, queues: u16) {
        // Without payload, segments are acknowledgements, whose number matters to the sender.
        self.set(RSCDBU, RSCDBU::RSCACKDIS);
        (0..queues).for_each(|queue| self.write(PSRTYPE(queue), PSRTYPE::TCPHDR));
        match self.config.options.interrupts {
            Some(throttle) if throttle >= SHORTEST_HOLD => {}
            Some(_) => self.map_queues(queues, SHORTEST_HOLD),
            None => self.map_queues(queues, HOLD),
        }
    }

    /// Maps receive queue n to vector n, modulo their count, with this interval between interrupts.
    fn map_queues(&self, queues: u16, throttle: Duration) {
        // 8.2.3.5.12: the interval, in units of 2 µs at 10 Gbit/s, has 9 bits.
        let interval = (throttle.as_nanos() as u64).div_ceil(2_000).min(EITR::INTERVAL_MASK.into()) as u32;
        for queue in 0..queues {
            let vector = queue % X82599::MAX_INTERRUPTS;
            self.write(EITR(vector), interval << EITR::INTERVAL_SHIFT | EITR::CNT_WDIS);
            // Two queues share a register; the low byte of each half is for receive.
            let shift = u32::from(queue % 2) * 16;
            self.change(IVAR(queue / 2), 0xFF << shift, (u32::from(vector) | IVAR::VALID) << shift);
        }
    }
}

/// How long the card holds a coalesced packet without interrupts. At 10 Gbit/s, 62,500 bytes arrive in this time, which
/// is nearly the longest packet.
const HOLD: Duration = Duration::from_micros(50);

/// The shortest interval with coalescing. It must exceed the RSC delay, 4 µs after a reset (7.3.2.1.1).
const SHORTEST_HOLD: Duration = Duration::from_micros(10);

/// The longest frame in KiB, the unit of `TXPBTHRESH`.
const MAXIMUM_FRAME_KIB: u32 = 10;
