//! Reset and bring-up, in the order of datasheet section 4.6.3, and interrupts.

use std::time::Duration;

use super::X82599;
use super::registers::*;
use crate::error::{Error, Result};
use crate::nic::intel::Hardware;
use crate::pci::Bar;

impl<B: Bar> Hardware<B, X82599> {
    /// Brings the card from any state to one in which queues can be started, with receive disabled.
    pub(super) fn reset_and_init(&self) -> Result<()> {
        // 4.6.3.1: interrupts are masked before and after the reset.
        self.check_alive()?;
        self.bar.write(EIMC::OFFSET, EIMC::ALL_CAUSES);
        self.stop_and_reset()?;
        self.bar.write(EIMC::OFFSET, EIMC::ALL_CAUSES);
        self.free_quarantined();
        self.forget_queues();
        self.allow_dma()?;

        // 4.6.3: the registers are loaded from EEPROM, and the DMA engine is ready.
        self.wait_for(EEC::OFFSET, EEC::ARD, EEC::ARD, "EEC", format_args!(".ARD"), "4.6.3")?;
        let done = RDRXCTL::DMAIDONE;
        self.wait_for(RDRXCTL::OFFSET, done, done, "RDRXCTL", format_args!(".DMAIDONE"), "4.6.3")?;

        self.init_link()?;
        self.clear_statistics();
        self.init_receive();
        self.init_transmit();
        // Tells firmware that a driver is loaded (8.2.3.1.3).
        self.change(CTRL_EXT::OFFSET, CTRL_EXT::DRV_LOAD, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    /// Stops all DMA, then resets.
    pub(super) fn stop_and_reset(&self) -> Result<()> {
        // 5.2.4.3.2: pending requests complete before the reset. Without RXEN, frames cause no new ones.
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, 0);
        self.change(CTRL::OFFSET, CTRL::MASTER_DISABLE, CTRL::MASTER_DISABLE);
        let status = STATUS::MASTER_ENABLE_STATUS;
        match self.wait_for(STATUS::OFFSET, status, 0, "STATUS", format_args!(".PCIe master enable"), "5.2.4.3.2") {
            Err(Error::Timeout { .. }) => {
                // A request is never completed. The datasheet's remedy: clear the card's buffers while loopback keeps
                // frames from leaving, then reset twice.
                self.change(HLREG0::OFFSET, HLREG0::LPBK, HLREG0::LPBK);
                self.change(GCR_EXT::OFFSET, GCR_EXT::BUFFERS_CLEAR_FUNC, GCR_EXT::BUFFERS_CLEAR_FUNC);
                self.bar.wait(Duration::from_micros(20));
                self.change(GCR_EXT::OFFSET, GCR_EXT::BUFFERS_CLEAR_FUNC, 0);
                self.change(HLREG0::OFFSET, HLREG0::LPBK, 0);
                self.reset_once()?;
            }
            other => other?,
        }
        self.reset_once()
    }

    /// Resets link and software together (4.2.1.6.1, 4.6.3.2).
    fn reset_once(&self) -> Result<()> {
        let reset = CTRL::RST | CTRL::LRST;
        self.bar.write(CTRL::OFFSET, reset);
        self.wait_for(CTRL::OFFSET, reset, 0, "CTRL", format_args!(".RST"), "4.6.3.2")?;
        // The EEPROM is reloaded; the datasheet demands a pause of 10 ms.
        self.bar.wait(Duration::from_millis(10));
        Ok(())
    }

    /// Initializes receive, without DCB and virtualization (4.6.7).
    fn init_receive(&self) {
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, 0);
        // One traffic class gets the whole packet buffer (4.6.11.3.4).
        let kib = if self.is_copper() { X540_PACKET_BUFFER_KIB } else { PACKET_BUFFER_KIB };
        self.bar.write(RXPBSIZE::at(0), kib << RXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.bar.write(RXPBSIZE::at(class), 0));

        // Both registers must agree (8.2.3.8.8). Bits 25 and 26 must be 1, RSCFRSTSIZE must be 0.
        let strip = HLREG0::RXCRCSTRP | HLREG0::TXCRCEN | HLREG0::TXPADEN;
        self.change(HLREG0::OFFSET, strip, strip);
        let mask = RDRXCTL::CRC_STRIP | RDRXCTL::RSCFRSTSIZE_MASK | RDRXCTL::BIT_25 | RDRXCTL::BIT_26;
        self.change(RDRXCTL::OFFSET, mask, RDRXCTL::CRC_STRIP | RDRXCTL::BIT_25 | RDRXCTL::BIT_26);
        self.change(RFCTL::OFFSET, RFCTL::RSC_DIS, RFCTL::RSC_DIS);

        // MFS includes the CRC. Without JUMBOEN the card ignores it and accepts 1,518 bytes.
        self.bar.write(MAXFRS::OFFSET, (self.config.options.max_frame as u32 + 4) << MAXFRS::MFS_SHIFT);
        self.change(HLREG0::OFFSET, HLREG0::JUMBOEN, HLREG0::JUMBOEN);

        (0..128).for_each(|n| self.bar.write(MTA::at(n), 0));
        (0..128).for_each(|n| self.bar.write(PFUTA::at(n), 0));
        (0..128).for_each(|n| self.bar.write(VFTA::at(n), 0));
        self.bar.write(FCTRL::OFFSET, FCTRL::BAM);
        self.bar.write(MRQC::OFFSET, 0);

        // 4.6.7, the last sentences.
        self.change(CTRL_EXT::OFFSET, CTRL_EXT::NS_DIS, CTRL_EXT::NS_DIS);
        (0..self.config.options.rx_queues).for_each(|n| self.change(DCA_RXCTRL::at(n), DCA_RXCTRL::BIT_12, 0));
    }

    /// Initializes transmit, without DCB and virtualization (4.6.8).
    fn init_transmit(&self) {
        self.bar.write(TXPBSIZE::at(0), 160 << TXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.bar.write(TXPBSIZE::at(class), 0));
        // 8.2.3.9.16: the buffer's size minus the longest frame, in KiB.
        self.bar.write(TXPBTHRESH::at(0), 0xA0 - (MAXIMUM_FRAME_KIB));
        self.bar.write(DTXMXSZRQ::OFFSET, 0xFFF);
        // 8.2.3.9.15: MTQC may change only while the arbiter is disabled.
        self.change(RTTDCS::OFFSET, RTTDCS::ARBDIS, RTTDCS::ARBDIS);
        self.bar.write(MTQC::OFFSET, 0);
        self.change(RTTDCS::OFFSET, RTTDCS::ARBDIS, 0);
        // No queue has a rate limit. The limits lie in memory behind two registers, which a reset does not clear
        // (8.2.3.10.12, 8.2.3.10.16).
        for queue in 0..128 {
            self.bar.write(RTTDQSEL::OFFSET, queue);
            self.bar.write(RTTBCNRC::OFFSET, 0);
        }
        // A descriptor is not written back before its data was read (8.2.3.11.2).
        (0..self.config.options.tx_queues).for_each(|n| self.change(DCA_TXCTRL::at(n), DCA_TXCTRL::DESC_WRO_EN, 0));
        self.change(DMATXCTL::OFFSET, DMATXCTL::TE, DMATXCTL::TE);
    }

    /// Enables receive: the last step of 4.6.7.
    pub(super) fn open_receive(&self) -> Result<()> {
        self.change(SECRXCTRL::OFFSET, SECRXCTRL::RX_DIS, SECRXCTRL::RX_DIS);
        let ready = SECRXSTAT::SECRX_RDY;
        self.wait_for(SECRXSTAT::OFFSET, ready, ready, "SECRXSTAT", format_args!(".SECRX_RDY"), "4.6.7")?;
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, RXCTRL::RXEN);
        self.change(SECRXCTRL::OFFSET, SECRXCTRL::RX_DIS, 0);
        Ok(())
    }

    /// Disables receive (4.6.7).
    pub(super) fn close_receive(&self) {
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, 0);
    }

    /// Discards what was counted before the reset (4.6.5).
    fn clear_statistics(&self) {
        for register in MAP.iter().filter(|register| register.access == Access::RC) {
            for n in 0..register.count {
                self.bar.read(register.offset + n * register.stride);
            }
        }
    }

    /// Lets receive queue n raise vector n, which masks itself when raised (4.6.3.1.2, 7.3.4).
    pub(super) fn init_interrupts(&self, queues: u16, throttle: Duration) {
        // Over uio, one interrupt line serves one queue; the same causes raise it.
        if !self.has_line() {
            self.bar.write(GPIE::OFFSET, GPIE::MULTIPLE_MSIX | GPIE::EIAME | GPIE::PBA_SUPPORT);
            // Causes clear and mask themselves when the message is sent.
            self.bar.write(EIAC::OFFSET, (1 << queues) - 1);
            self.bar.write(EIAM::OFFSET, (1 << queues) - 1);
        }
        // 8.2.3.5.12: the interval, in units of 2 µs at 10 Gbit/s, has 9 bits.
        let interval = (throttle.as_nanos() as u64).div_ceil(2_000).min(0x1FF) as u32;
        for queue in 0..queues {
            self.bar.write(EITR::at(queue), interval << EITR::INTERVAL_SHIFT | EITR::CNT_WDIS);
            // Two queues share a register; the low byte of each half is for receive.
            let shift = u32::from(queue % 2) * 16;
            let vector = (u32::from(queue) | IVAR::VALID) << shift;
            self.change(IVAR::at(queue / 2), 0xFF << shift, vector);
        }
    }
}

/// The receive packet buffer (8.2.3.8.9). An X540 and X550 have less (X540 datasheet, 8.2.4.9.9).
const PACKET_BUFFER_KIB: u32 = 512;
const X540_PACKET_BUFFER_KIB: u32 = 384;

/// In the unit of `TXPBTHRESH`.
const MAXIMUM_FRAME_KIB: u32 = 10;
