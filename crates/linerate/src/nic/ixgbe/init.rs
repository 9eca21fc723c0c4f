//! Reset and bring-up, in the order of datasheet section 4.6.3, and starting and stopping queues.

use std::time::Duration;

use super::hardware::Hardware;
use super::registers::*;
use crate::error::Result;
use crate::pci::Bar;

impl<B: Bar> Hardware<B> {
    /// Brings the card from any state to one where queues can be started, with receive disabled.
    pub fn reset_and_init(&self) -> Result<()> {
        // 4.6.3.1: no interrupts before the reset, and none after it.
        self.check_alive()?;
        self.bar.write(EIMC::OFFSET, EIMC::ALL_CAUSES);
        self.halt()?;
        self.bar.write(EIMC::OFFSET, EIMC::ALL_CAUSES);
        self.free_aside();
        self.forget_queues();

        // 4.6.3: the EEPROM's content is in the registers, and the DMA engine is ready.
        self.wait_for(EEC::OFFSET, EEC::ARD, EEC::ARD, "EEC", format_args!(".ARD"), "4.6.3")?;
        let done = RDRXCTL::DMAIDONE;
        self.wait_for(RDRXCTL::OFFSET, done, done, "RDRXCTL", format_args!(".DMAIDONE"), "4.6.3")?;

        self.init_link();
        self.clear_statistics();
        self.init_receive();
        self.init_transmit();
        // Tells firmware that a driver is in charge (8.2.3.1.3).
        self.change(CTRL_EXT::OFFSET, CTRL_EXT::DRV_LOAD, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    /// Stops all DMA, then resets: link and software reset together (4.2.1.6.1, 4.6.3.2).
    pub fn halt(&self) -> Result<()> {
        // 5.2.4.3.2: pending requests end before the reset, so that none is cut in half.
        self.change(CTRL::OFFSET, CTRL::MASTER_DISABLE, CTRL::MASTER_DISABLE);
        let status = STATUS::MASTER_ENABLE_STATUS;
        self.wait_for(STATUS::OFFSET, status, 0, "STATUS", format_args!(".PCIe master enable"), "5.2.4.3.2")?;
        let reset = CTRL::RST | CTRL::LRST;
        self.bar.write(CTRL::OFFSET, reset);
        self.wait_for(CTRL::OFFSET, reset, 0, "CTRL", format_args!(".RST"), "4.6.3.2")?;
        // The EEPROM is read again; the datasheet wants 10 ms before anything else.
        self.bar.wait(Duration::from_millis(10));
        Ok(())
    }

    /// 4.6.4: 10 Gbit/s serial; negotiation goes on while we continue.
    fn init_link(&self) {
        self.change(AUTOC::OFFSET, AUTOC::LMS_MASK, AUTOC::LMS_10G_SERIAL);
        self.change(AUTOC::OFFSET, AUTOC::RESTART_AN, AUTOC::RESTART_AN);
    }

    /// 4.6.7, without DCB and virtualization.
    fn init_receive(&self) {
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, 0);
        // The whole packet buffer for one traffic class (4.6.11.3.4).
        self.bar.write(RXPBSIZE::at(0), 512 << RXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.bar.write(RXPBSIZE::at(class), 0));

        // Both must agree (8.2.3.8.8). Bits 25 and 26 are to be set, RSCFRSTSIZE to be 0.
        let strip = HLREG0::RXCRCSTRP | HLREG0::TXCRCEN | HLREG0::TXPADEN;
        self.change(HLREG0::OFFSET, strip, strip);
        let mask = RDRXCTL::CRC_STRIP | RDRXCTL::RSCFRSTSIZE_MASK | RDRXCTL::BIT_25 | RDRXCTL::BIT_26;
        self.change(RDRXCTL::OFFSET, mask, RDRXCTL::CRC_STRIP | RDRXCTL::BIT_25 | RDRXCTL::BIT_26);
        self.change(RFCTL::OFFSET, RFCTL::RSC_DIS, RFCTL::RSC_DIS);

        // MFS counts the CRC. Without JUMBOEN the card ignores it and takes 1,518 bytes.
        self.bar.write(MAXFRS::OFFSET, (self.config.max_frame as u32 + 4) << MAXFRS::MFS_SHIFT);
        self.change(HLREG0::OFFSET, HLREG0::JUMBOEN, HLREG0::JUMBOEN);

        (0..128).for_each(|n| self.bar.write(MTA::at(n), 0));
        (0..128).for_each(|n| self.bar.write(PFUTA::at(n), 0));
        (0..128).for_each(|n| self.bar.write(VFTA::at(n), 0));
        self.bar.write(FCTRL::OFFSET, FCTRL::BAM);
        self.bar.write(MRQC::OFFSET, 0);

        // The last sentences of 4.6.7.
        self.change(CTRL_EXT::OFFSET, CTRL_EXT::NS_DIS, CTRL_EXT::NS_DIS);
        (0..self.config.rx_queues).for_each(|n| self.change(DCA_RXCTRL::at(n), DCA_RXCTRL::BIT_12, 0));
    }

    /// 4.6.8, without DCB and virtualization.
    fn init_transmit(&self) {
        self.bar.write(TXPBSIZE::at(0), 160 << TXPBSIZE::KIB_SHIFT);
        (1..8).for_each(|class| self.bar.write(TXPBSIZE::at(class), 0));
        // 8.2.3.9.16: the buffer's size less the longest frame, in KiB.
        self.bar.write(TXPBTHRESH::at(0), 0xA0 - (MAXIMUM_FRAME_KIB));
        self.bar.write(DTXMXSZRQ::OFFSET, 0xFFF);
        // 8.2.3.9.15: MTQC may change only while the arbiter is stopped.
        self.change(RTTDCS::OFFSET, RTTDCS::ARBDIS, RTTDCS::ARBDIS);
        self.bar.write(MTQC::OFFSET, 0);
        self.change(RTTDCS::OFFSET, RTTDCS::ARBDIS, 0);
        self.change(DMATXCTL::OFFSET, DMATXCTL::TE, DMATXCTL::TE);
    }

    /// 4.6.7, last step: frames may come in.
    pub fn enable_receive(&self) -> Result<()> {
        self.change(SECRXCTRL::OFFSET, SECRXCTRL::RX_DIS, SECRXCTRL::RX_DIS);
        let ready = SECRXSTAT::SECRX_RDY;
        self.wait_for(SECRXSTAT::OFFSET, ready, ready, "SECRXSTAT", format_args!(".SECRX_RDY"), "4.6.7")?;
        self.change(RXCTRL::OFFSET, RXCTRL::RXEN, RXCTRL::RXEN);
        self.change(SECRXCTRL::OFFSET, SECRXCTRL::RX_DIS, 0);
        Ok(())
    }

    /// 4.6.7.1: starts a receive queue whose descriptors are filled, all but the last the card's.
    pub fn start_receive_queue(&self, queue: u16) -> Result<()> {
        let (_, _, base) = self.ring(queue);
        self.bar.write(RDBAL::at(queue), base as u32);
        self.bar.write(RDBAH::at(queue), (base >> 32) as u32);
        self.bar.write(RDLEN::at(queue), self.config.ring as u32 * 16);
        // With one queue a frame that finds no descriptor waits in the card's packet buffer; with
        // several, one that is full must not hold up the others (8.2.3.8.7).
        let drop = if self.config.rx_queues > 1 { SRRCTL::DROP_EN } else { 0 };
        self.bar.write(SRRCTL::at(queue), self.buffer_kib() | SRRCTL::DESCTYPE_ADVANCED | drop);
        self.bar.write(RDH::at(queue), 0);
        self.bar.write(RDT::at(queue), 0);
        self.change(RXDCTL::at(queue), RXDCTL::ENABLE, RXDCTL::ENABLE);
        self.wait_for(
            RXDCTL::at(queue),
            RXDCTL::ENABLE,
            RXDCTL::ENABLE,
            "RXDCTL",
            format_args!("[{queue}].ENABLE"),
            "4.6.7.1",
        )?;
        // One less than the ring holds: RDT = RDH would mean that the card has none (7.1.9).
        self.bar.write(RDT::at(queue), self.config.ring as u32 - 1);
        Ok(())
    }

    /// 4.6.7.1.2: after this the card does not touch the queue's memory.
    pub fn stop_receive_queue(&self, queue: u16) -> Result<()> {
        self.change(RXDCTL::at(queue), RXDCTL::ENABLE, 0);
        self.wait_for(RXDCTL::at(queue), RXDCTL::ENABLE, 0, "RXDCTL", format_args!("[{queue}].ENABLE=0"), "4.6.7.1.2")?;
        self.bar.wait(Duration::from_micros(100));
        Ok(())
    }

    /// 4.6.8.1: starts an empty transmit queue.
    pub fn start_transmit_queue(&self, queue: u16) -> Result<()> {
        let (_, _, base) = self.ring(self.config.rx_queues + queue);
        self.bar.write(TDBAL::at(queue), base as u32);
        self.bar.write(TDBAH::at(queue), (base >> 32) as u32);
        self.bar.write(TDLEN::at(queue), self.config.ring as u32 * 16);
        self.bar.write(TDH::at(queue), 0);
        self.bar.write(TDT::at(queue), 0);
        // 7.2.3.4.1: fetch in whole cache lines; report each marked descriptor at once (WTHRESH 0),
        // since few are marked.
        let thresholds = 36 << TXDCTL::PTHRESH_SHIFT | 8 << TXDCTL::HTHRESH_SHIFT;
        self.bar.write(TXDCTL::at(queue), thresholds | TXDCTL::ENABLE);
        self.wait_for(
            TXDCTL::at(queue),
            TXDCTL::ENABLE,
            TXDCTL::ENABLE,
            "TXDCTL",
            format_args!("[{queue}].ENABLE"),
            "4.6.8.1",
        )
    }

    /// 4.6.8.2: after this the card does not touch the queue's memory.
    pub fn stop_transmit_queue(&self, queue: u16) -> Result<()> {
        self.change(TXDCTL::at(queue), TXDCTL::ENABLE, 0);
        self.wait_for(TXDCTL::at(queue), TXDCTL::ENABLE, 0, "TXDCTL", format_args!("[{queue}].ENABLE=0"), "4.6.8.2")
    }
}

/// In `TXPBTHRESH`'s unit.
const MAXIMUM_FRAME_KIB: u32 = 10;
