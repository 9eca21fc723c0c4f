//! Setup of the link between MAC and cable (sections 3.7 and 4.6.4).
//!
//! A MAC reset does not affect the link: if the previous driver switched a laser or PHY off, it stays off.

use linerate_core::error::Result;
use linerate_spec::phy::mdio;
use linerate_spec::x82599::*;

use super::X82599;
use super::module::Module;
use crate::nic::intel::{Hardware, Semaphores};
use crate::pci::Bar;

/// The medium between MAC and cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    /// A backplane: the MACs negotiate, and the EEPROM defines the mode.
    Backplane,
    /// A cage for a module.
    Cage,
    /// A copper PHY on the card, which negotiates by itself.
    Copper,
}

/// Device IDs for backplanes: KX4, combined, XAUI, KX4 on a mezzanine card, KR, FCoE; and for CX4 cables, whose mode is in
/// the EEPROM, too.
const BACKPLANE: [u16; 7] = [0x10F7, 0x10F8, 0x10FC, 0x1514, 0x1517, 0x152A, 0x10F9];
/// Device IDs with a PHY: X540 and X550.
const COPPER: [u16; 4] = [0x1528, 0x1560, 0x1563, 0x15D1];

impl<B: Bar> Hardware<B, X82599> {
    fn media(&self) -> Media {
        match self.config.device {
            device if BACKPLANE.contains(&device) => Media::Backplane,
            device if COPPER.contains(&device) => Media::Copper,
            _ => Media::Cage,
        }
    }

    /// Runs `work` while holding semaphores shared with firmware and the other port (10.5.4).
    pub(super) fn with_shared<T>(&self, bits: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let semaphores = Semaphores { swsm: SWSM.into(), sync: SW_FW_SYNC.into(), has_regsmp: self.is_copper() };
        self.with_semaphore(&semaphores, bits, work)
    }

    /// Returns the semaphore bit of this port's PHY.
    pub(super) fn phy_semaphore(&self) -> u32 {
        SW_FW_SYNC::SW_PHY_SM0 << (self.read(STATUS) >> STATUS::LAN_ID_SHIFT & 1)
    }

    /// Returns whether the card is an X540 or X550.
    pub(super) fn is_copper(&self) -> bool {
        self.media() == Media::Copper
    }

    /// Starts the link (4.6.4); negotiation continues in the background.
    pub(super) fn init_link(&self) -> Result<()> {
        match self.media() {
            Media::Copper => self.power_phy(),
            Media::Backplane => self.restart_link(None),
            Media::Cage => {
                let module = self.identify_module()?;
                self.prepare_for(module)?;
                // 3.7.4: SDP3 high switches the module's laser off.
                self.clear(ESDP, ESDP::SDP3);
                self.restart_link(Some(match module {
                    Module::Gigabit => AUTOC::LMS_1G_AN,
                    _ => AUTOC::LMS_10G_SERIAL,
                }))
            }
        }
    }

    /// Restarts negotiation, in the EEPROM's mode if `mode` is `None` (4.6.4.1 to 4.6.4.3).
    fn restart_link(&self, mode: Option<u32>) -> Result<()> {
        self.with_shared(SW_FW_SYNC::SW_MAC_CSR_SM, || {
            let autoc = self.read(AUTOC);
            let mode = mode.unwrap_or(autoc & AUTOC::LMS_MASK);
            self.write(AUTOC, autoc & !AUTOC::LMS_MASK | mode | AUTOC::RESTART_AN);
            Ok(())
        })
    }

    /// Ends the PHY's low-power mode.
    fn power_phy(&self) -> Result<()> {
        self.with_shared(self.phy_semaphore(), || {
            for phy in 0..32 {
                if matches!(self.read_phy(phy, mdio::PMA, mdio::ID_HIGH)?, 0 | 0xFFFF) {
                    continue;
                }
                let control = self.read_phy(phy, mdio::VENDOR_1, mdio::CONTROL)?;
                if control & mdio::LOW_POWER != 0 {
                    self.write_phy(phy, mdio::VENDOR_1, mdio::CONTROL, control & !mdio::LOW_POWER)?;
                }
                break;
            }
            Ok(())
        })
    }

    fn read_phy(&self, phy: u32, device: u32, register: u32) -> Result<u16> {
        self.mdio(mdio::OP_ADDRESS, phy, device, register)?;
        self.mdio(mdio::OP_READ, phy, device, register)?;
        Ok((self.read(MSRWD) >> MSRWD::READ_SHIFT) as u16)
    }

    fn write_phy(&self, phy: u32, device: u32, register: u32, value: u16) -> Result<()> {
        self.write(MSRWD, value.into());
        self.mdio(mdio::OP_ADDRESS, phy, device, register)?;
        self.mdio(mdio::OP_WRITE, phy, device, register)
    }

    /// Executes one MDIO operation (8.2.3.22.11).
    fn mdio(&self, operation: u32, phy: u32, device: u32, register: u32) -> Result<()> {
        let place = register | device << MSCA::DEVICE_SHIFT | phy << MSCA::PHY_SHIFT;
        self.write(MSCA, place | operation << MSCA::OP_SHIFT | MSCA::MDICMD);
        self.wait_clear(MSCA, MSCA::MDICMD)
    }
}
