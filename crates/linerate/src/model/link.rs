//! The link: negotiation, loopback, and what tells drivers of the PHY: a module's I2C, or MDIO (sections 3.7 and
//! 8.2.3.22).

use super::module::Module;
use super::registers::Registers;
use super::{Card, Core, Kind};
use crate::nic::ixgbe::registers::*;

/// What sits between MAC and wire.
pub(super) struct State {
    kind: Kind,
    module: Module,
    /// Of an X540 or X550: the PHY's registers that were written, by device and address.
    phy: std::collections::HashMap<(u32, u32), u16>,
}

// MDIO (IEEE 802.3, clause 45): an operation's code in MSCA, and registers of the PHYs.
const OP_WRITE: u32 = 1;
const OP_READ: u32 = 3;
const PMA: u32 = 1;
const AUTO_NEGOTIATION: u32 = 7;
const CONTROL: u32 = 0;
const STATUS_1: u32 = 1;
const ID_HIGH: u32 = 2;
const ID_LOW: u32 = 3;
const SPEED_ABILITY: u32 = 4;
const DEVICES_LOW: u32 = 5;
const DEVICES_HIGH: u32 = 6;
const STATUS_2: u32 = 8;
const EXTENDED_ABILITY: u32 = 11;
const VENDOR_STATUS: u32 = 0xC800;

impl State {
    pub fn new(kind: Kind) -> State {
        State { kind, module: Module::new(), phy: Default::default() }
    }

    pub fn module_wires(&self) -> u32 {
        match self.kind {
            Kind::X82599Sfp => self.module.read(),
            // Nothing pulls them.
            _ => 0xF,
        }
    }

    pub fn drive_module_wires(&mut self, value: u32) {
        self.module.write(value);
    }

    /// MSCA: one operation, done at once (section 8.2.3.22.11). Returns what the register reads afterwards.
    pub fn mdio(&mut self, command: u32, registers: &Registers) -> u32 {
        if command & MSCA::MDICMD == 0 {
            return command;
        }
        let address = command & MSCA::ADDRESS_MASK;
        let device = command >> MSCA::DEVICE_SHIFT & 0x1F;
        let phy = command >> MSCA::PHY_SHIFT & 0x1F;
        let here = matches!(self.kind, Kind::X540 | Kind::X550) && phy == 0;
        match command >> MSCA::OP_SHIFT & 0x3 {
            OP_READ => {
                let up = registers.get(LINKS::OFFSET) & LINKS::UP != 0;
                let value = if here { self.phy_register(device, address, up) } else { 0xFFFF };
                registers.set(MSRWD::OFFSET, u32::from(value) << MSRWD::READ_SHIFT);
            }
            OP_WRITE if here => {
                let value = registers.get(MSRWD::OFFSET) as u16;
                // Resets and restarts are done at once.
                let value = if address == CONTROL { value & !(1 << 15 | 1 << 9) } else { value };
                self.phy.insert((device, address), value);
            }
            // The address cycle of clause 45; MSCA has the address in each.
            _ => {}
        }
        command & !MSCA::MDICMD
    }

    fn phy_register(&self, device: u32, address: u32, up: bool) -> u16 {
        if let Some(&value) = self.phy.get(&(device, address)) {
            return value;
        }
        let up = u16::from(up);
        match (device, address) {
            (PMA..=AUTO_NEGOTIATION, ID_HIGH) => 0x0154,
            (PMA..=AUTO_NEGOTIATION, ID_LOW) => {
                if self.kind == Kind::X550 {
                    0x0223
                } else {
                    0x0200
                }
            }
            // PMA, PCS, PHY XS, negotiation; two of its vendor's; each says that it is there.
            (PMA..=AUTO_NEGOTIATION, DEVICES_LOW) => 1 << 1 | 1 << 3 | 1 << 4 | 1 << 7,
            (PMA..=AUTO_NEGOTIATION, DEVICES_HIGH) => 0xC000,
            (PMA | 3 | 4 | AUTO_NEGOTIATION, STATUS_2) => 0x8000,
            // 10 Gbit/s, 1 Gbit/s, 100 Mbit/s.
            (PMA, SPEED_ABILITY) => 1 << 0 | 1 << 4 | 1 << 5,
            // The same, over twisted pairs.
            (PMA, EXTENDED_ABILITY) => 1 << 2 | 1 << 5 | 1 << 7,
            (AUTO_NEGOTIATION, STATUS_1) => up << 2 | 1 << 5 | 1 << 3,
            (PMA | 3, STATUS_1) => up << 2,
            // Speed 10 Gbit/s, link up.
            (AUTO_NEGOTIATION, VENDOR_STATUS) => 0x7,
            _ => 0,
        }
    }
}

impl Card {
    /// Finds out whether there is a link, tells drivers, and raises the interrupt if that is new.
    pub(super) fn update_link(&self, core: &mut Core) {
        let registers = &self.registers;
        let forced = registers.get(AUTOC::OFFSET) & AUTOC::FLU != 0 || registers.get(MACC::OFFSET) & MACC::FLU != 0;
        let disabled = registers.get(AUTOC2::OFFSET) & AUTOC2::LINK_DISABLE != 0;
        let up = forced || !disabled && core.cable_in && core.wire.link();
        // On a backplane both ends negotiate, and are done at once.
        let negotiated = if self.kind() == Kind::X82599Kx4 { LINKS::KX_AN_COMP } else { 0 };
        let links = if up { LINKS::UP | LINKS::SPEED_10G | negotiated } else { 0 };
        if registers.get(LINKS::OFFSET) != links {
            registers.set(LINKS::OFFSET, links);
            registers.change(EICR::OFFSET, EICR::LSC, true);
            self.interrupt(core);
            self.tell_all(core);
        }
    }

    /// MAC loopback: what is sent is received (section 3.7.6.2).
    pub(super) fn loops_back(&self) -> bool {
        self.registers.get(HLREG0::OFFSET) & HLREG0::LPBK != 0
    }
}
