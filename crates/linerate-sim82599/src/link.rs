//! The link: negotiation, and drivers' access to a module (I2C) or a PHY (MDIO) (sections 3.7 and 8.2.3.22).

use linerate_spec::Register;
use linerate_spec::phy::mdio::*;
use linerate_spec::x82599::*;

use super::CardKind;
use super::board::Board;
use super::breach::Breach;
use super::mac::Mac;
use super::module::Module;
use super::registers::Registers;

/// The state of the link between MAC and wire.
pub(super) struct Link {
    kind: CardKind,
    module: Module,
    /// For an X540 or X550: the PHY registers that were written, by device and address. A MAC reset keeps them.
    phy: std::collections::HashMap<(u32, u32), u16>,
    /// For an X540 or X550: the speed of the last negotiation, in Mbit/s.
    negotiated: u32,
    /// The card's signal as last reported to the wire, in Mbit/s.
    signal: u32,
}

impl Link {
    pub fn new(kind: CardKind) -> Link {
        Link { kind, module: Module::new(), phy: Default::default(), negotiated: 10_000, signal: 10_000 }
    }

    /// Puts a 1 Gbit/s or 10 Gbit/s module into the cage.
    pub fn set_module(&mut self, gigabit: bool) {
        self.module = if gigabit { Module::gigabit() } else { Module::new() };
    }

    /// Returns the highest speed of the signal that the registers set up, in Mbit/s; 0 if there is no signal.
    fn signal(&self, registers: &Registers) -> u32 {
        let autoc = registers.get(AUTOC::OFFSET);
        let lms = autoc & AUTOC::LMS_MASK;
        match self.kind {
            // 3.7.4: the module's laser is off while SDP3 is high. A module has one speed.
            CardKind::X82599Sfp if registers.get(ESDP::OFFSET) & ESDP::SDP3 != 0 => 0,
            CardKind::X82599Sfp => match (self.module.is_gigabit(), lms) {
                (false, AUTOC::LMS_10G_SERIAL) => 10_000,
                (true, AUTOC::LMS_1G | AUTOC::LMS_1G_AN) => 1_000,
                _ => 0,
            },
            // 3.7.4.2: both ends of a backplane negotiate.
            CardKind::X82599Kx4 => match lms {
                AUTOC::LMS_KX4_KX_KR | AUTOC::LMS_KX4_KX_KR_1G_AN | AUTOC::LMS_KX4_KX_KR_SGMII => {
                    match (autoc & AUTOC::KX4_SUPP != 0, autoc & AUTOC::KX_SUPP != 0) {
                        (true, _) => 10_000,
                        (false, true) => 1_000,
                        _ => 0,
                    }
                }
                _ => 0,
            },
            CardKind::X540 | CardKind::X550 if self.is_powered_down() => 0,
            CardKind::X540 | CardKind::X550 => self.negotiated,
        }
    }

    /// Returns the highest speed that the PHY advertises.
    fn advertised(&self) -> u32 {
        let offers = |register: u32, bit: u16| self.phy_register(AUTO_NEGOTIATION, register, false) & bit != 0;
        match () {
            () if offers(TEN_GIGABIT_CONTROL, ADVERTISE_10G) => 10_000,
            () if offers(VENDOR_PROVISION, ADVERTISE_1G) => 1_000,
            () if offers(ADVERTISEMENT, ADVERTISE_100M) => 100,
            () => 0,
        }
    }

    /// Resets the PHY, as at power-on.
    pub fn power_on(&mut self) {
        self.phy.clear();
        self.negotiated = 10_000;
    }

    fn is_powered_down(&self) -> bool {
        self.phy.get(&(VENDOR_1, CONTROL)).is_some_and(|value| value & LOW_POWER != 0)
    }

    fn module_wires(&self) -> u32 {
        match self.kind {
            CardKind::X82599Sfp => self.module.read(),
            // The wires are not pulled low.
            _ => 0xF,
        }
    }

    /// Executes one MDIO operation (MSCA) immediately (section 8.2.3.22.11). Returns the new value of MSCA.
    fn mdio(&mut self, command: u32, registers: &Registers) -> u32 {
        if command & MSCA::MDICMD == 0 {
            return command;
        }
        let address = command & MSCA::ADDRESS_MASK;
        let device = command >> MSCA::DEVICE_SHIFT & 0x1F;
        let phy = command >> MSCA::PHY_SHIFT & 0x1F;
        let here = self.kind.has_phy() && phy == 0;
        match command >> MSCA::OP_SHIFT & 0x3 {
            OP_READ => {
                let up = registers.get(LINKS::OFFSET) & LINKS::UP != 0;
                let value = if here { self.phy_register(device, address, up) } else { 0xFFFF };
                registers.set(MSRWD::OFFSET, u32::from(value) << MSRWD::READ_SHIFT);
            }
            OP_WRITE if here => {
                let value = registers.get(MSRWD::OFFSET) as u16;
                // Resets and restarts complete immediately.
                let kept = if address == CONTROL { value & !(RESET | RESTART) } else { value };
                self.phy.insert((device, address), kept);
                if (device, address) == (AUTO_NEGOTIATION, CONTROL) && value & RESTART != 0 {
                    self.negotiated = self.advertised();
                }
            }
            // The address cycle of clause 45 has no effect: MSCA has the address in each operation.
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
                if self.kind == CardKind::X550 {
                    0x0223
                } else {
                    0x0200
                }
            }
            // PMA, PCS, PHY XS and auto-negotiation; two vendor-specific devices; each reports that it is present.
            (PMA..=AUTO_NEGOTIATION, DEVICES_LOW) => 1 << 1 | 1 << 3 | 1 << 4 | 1 << 7,
            (PMA..=AUTO_NEGOTIATION, DEVICES_HIGH) => 0xC000,
            (PMA | 3 | 4 | AUTO_NEGOTIATION, STATUS_2) => 0x8000,
            // 10 Gbit/s, 1 Gbit/s, 100 Mbit/s.
            (PMA, SPEED_ABILITY) => 1 << 0 | 1 << 4 | 1 << 5,
            // The same, over twisted pairs.
            (PMA, EXTENDED_ABILITY) => 1 << 2 | 1 << 5 | 1 << 7,
            (AUTO_NEGOTIATION, ADVERTISEMENT) => ADVERTISE_100M | 1,
            (AUTO_NEGOTIATION, TEN_GIGABIT_CONTROL) => ADVERTISE_10G,
            (AUTO_NEGOTIATION, VENDOR_PROVISION) => ADVERTISE_1G,
            (AUTO_NEGOTIATION, STATUS_1) => up << 2 | 1 << 5 | 1 << 3,
            (PMA | 3, STATUS_1) => up << 2,
            // Speed 10 Gbit/s, link up.
            (AUTO_NEGOTIATION, VENDOR_STATUS) => 0x7,
            _ => 0,
        }
    }

    pub fn read(&self, Board { registers, .. }: &Board, register: Register) -> u32 {
        match register.offset {
            I2CCTL::OFFSET => self.module_wires(),
            // The wires are not pulled low.
            X550_I2CCTL::OFFSET => registers.read(register) | X550_I2CCTL::DATA_IN | X550_I2CCTL::CLK_IN,
            _ => registers.read(register),
        }
    }

    pub fn write(&mut self, board: &Board, Register { offset, .. }: Register, value: u32) {
        let registers = &board.registers;
        match offset {
            I2CCTL::OFFSET => {
                registers.set(offset, value);
                self.module.write(value);
            }
            MSCA::OFFSET => {
                let answer = self.mdio(value, registers);
                registers.set(offset, answer);
            }
            _ => {
                if offset == AUTOC::OFFSET {
                    check_semaphore(board, value);
                }
                registers.set(offset, value);
                // Negotiation completes immediately.
                registers.change(AUTOC::OFFSET, AUTOC::RESTART_AN, false);
            }
        }
    }

    /// Updates the link's state. If it has changed, sets the interrupt cause and returns true.
    pub fn update(&mut self, board: &Board, mac: &mut Mac) -> bool {
        let registers = &board.registers;
        let forced = registers.get(AUTOC::OFFSET) & AUTOC::FLU != 0 || registers.get(MACC::OFFSET) & MACC::FLU != 0;
        let disabled = registers.get(AUTOC2::OFFSET) & AUTOC2::LINK_DISABLE != 0;
        let there = mac.cable_in && !board.is_unplugged();
        let signal = if there && !disabled { self.signal(registers) } else { 0 };
        if self.signal != signal {
            self.signal = signal;
            mac.wire.signal(signal);
        }
        // A module has one speed; without a module, both ends negotiate a speed that both support.
        let theirs = if mac.wire.link() { mac.wire.speed() } else { 0 };
        let agreed = match self.kind {
            CardKind::X82599Sfp if theirs != u32::MAX && theirs != signal => 0,
            _ => signal.min(theirs),
        };
        // On a backplane both ends negotiate, which completes immediately.
        let negotiated = if self.kind == CardKind::X82599Kx4 { LINKS::KX_AN_COMP } else { 0 };
        let links = match agreed {
            _ if forced => LINKS::UP | LINKS::SPEED_10G | negotiated,
            10_000.. => LINKS::UP | LINKS::SPEED_10G | negotiated,
            1_000.. => LINKS::UP | LINKS::SPEED_1G | negotiated,
            100.. => LINKS::UP | LINKS::SPEED_100M | negotiated,
            _ => 0,
        };
        let changed = registers.get(LINKS::OFFSET) != links;
        if changed {
            registers.set(LINKS::OFFSET, links);
            registers.change(EICR::OFFSET, EICR::LSC, true);
        }
        changed
    }
}

/// Checks that the semaphore for AUTOC, which firmware also writes, is held to change the link mode or restart
/// negotiation (section 10.5.4). On an X540 or X550 such writes are always a breach: the PHY makes the link.
fn check_semaphore(Board { registers, kind, oracle, .. }: &Board, value: u32) {
    let changes = (value ^ registers.get(AUTOC::OFFSET)) & AUTOC::LMS_MASK != 0 || value & AUTOC::RESTART_AN != 0;
    let held = registers.get(SW_FW_SYNC::OFFSET) & SW_FW_SYNC::SW_MAC_CSR_SM != 0;
    if changes && (kind.has_phy() || !held) {
        oracle.note(Breach::NoSemaphore { register: AUTOC::NAME, section: "10.5.4" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(operation: u32, phy: u32, device: u32, address: u32) -> u32 {
        let place = phy << MSCA::PHY_SHIFT | device << MSCA::DEVICE_SHIFT | address;
        operation << MSCA::OP_SHIFT | place | MSCA::MDICMD
    }

    fn read(state: &mut Link, registers: &Registers, phy: u32, device: u32, address: u32) -> u16 {
        let command = command(OP_READ, phy, device, address);
        assert_eq!(state.mdio(command, registers), command & !MSCA::MDICMD, "the operation is complete");
        (registers.get(MSRWD::OFFSET) >> MSRWD::READ_SHIFT) as u16
    }

    /// The registers of each device that identify the PHY and its abilities (IEEE 802.3, 45.2).
    #[test]
    fn a_phy_identifies_itself() {
        for (kind, id) in [(CardKind::X540, 0x0200), (CardKind::X550, 0x0223)] {
            let (mut state, registers) = (Link::new(kind), Registers::new());
            for is_up in [false, true] {
                registers.set(LINKS::OFFSET, if is_up { LINKS::UP } else { 0 });
                let up = u16::from(is_up) << 2;
                let mut devices: Vec<_> = (0..32).map(|device| (device, STATUS_1, 0)).collect();
                devices[1] = (1, STATUS_1, up);
                devices[3] = (3, STATUS_1, up);
                devices[7] = (7, STATUS_1, up | 0x28);
                let of_each = [(ID_HIGH, 0x0154), (ID_LOW, id), (DEVICES_LOW, 0x9A), (DEVICES_HIGH, 0xC000)];
                for (address, value) in of_each {
                    devices.extend((0..32).map(|n| (n, address, if (1..=7).contains(&n) { value } else { 0 })));
                }
                devices.extend((0..32).map(|n| (n, STATUS_2, if [1, 3, 4, 7].contains(&n) { 0x8000 } else { 0 })));
                devices.extend([(1, SPEED_ABILITY, 0x31), (1, EXTENDED_ABILITY, 0xA4), (3, SPEED_ABILITY, 0)]);
                devices.extend([(7, ADVERTISEMENT, 0x101), (7, TEN_GIGABIT_CONTROL, 0x1000)]);
                devices.extend([
                    (7, VENDOR_PROVISION, 0x8000),
                    (7, VENDOR_STATUS, 7),
                    (7, 0x1234, 0),
                    (30, CONTROL, 0),
                ]);
                for (device, address, value) in devices {
                    assert_eq!(read(&mut state, &registers, 0, device, address), value, "{device}.{address}");
                    assert_eq!(read(&mut state, &registers, 1, device, address), 0xFFFF, "there is one PHY");
                }
            }
        }
        let (mut state, registers) = (Link::new(CardKind::X82599Sfp), Registers::new());
        assert_eq!(read(&mut state, &registers, 0, 1, ID_HIGH), 0xFFFF, "an 82599 has none");
    }

    #[test]
    fn a_phy_keeps_written_bits_except_those_that_clear_themselves() {
        let (mut state, registers) = (Link::new(CardKind::X550), Registers::new());
        let write = |state: &mut Link, phy: u32, device: u32, address: u32, value: u16| {
            registers.set(MSRWD::OFFSET, value.into());
            state.mdio(command(OP_WRITE, phy, device, address), &registers);
        };
        write(&mut state, 0, AUTO_NEGOTIATION, CONTROL, 0xFFFF);
        assert_eq!(
            read(&mut state, &registers, 0, AUTO_NEGOTIATION, CONTROL),
            0x7DFF,
            "a reset and a restart complete at once"
        );
        write(&mut state, 0, AUTO_NEGOTIATION, ADVERTISEMENT, 0xFFFF);
        assert_eq!(read(&mut state, &registers, 0, AUTO_NEGOTIATION, ADVERTISEMENT), 0xFFFF);
        write(&mut state, 1, AUTO_NEGOTIATION, ADVERTISEMENT, 0);
        assert_eq!(read(&mut state, &registers, 0, AUTO_NEGOTIATION, ADVERTISEMENT), 0xFFFF, "another PHY's");
        // A command without MDICMD has no effect, and neither has an address cycle.
        let none = command(OP_WRITE, 0, AUTO_NEGOTIATION, ADVERTISEMENT) & !MSCA::MDICMD;
        registers.set(MSRWD::OFFSET, 0);
        assert_eq!(state.mdio(none, &registers), none);
        state.mdio(command(0, 0, AUTO_NEGOTIATION, ADVERTISEMENT), &registers);
        assert_eq!(read(&mut state, &registers, 0, AUTO_NEGOTIATION, ADVERTISEMENT), 0xFFFF);
        // A changed advertisement takes effect at the next negotiation.
        for (register, speed) in [(TEN_GIGABIT_CONTROL, 1_000), (VENDOR_PROVISION, 100), (ADVERTISEMENT, 0)] {
            let before = state.negotiated;
            write(&mut state, 0, AUTO_NEGOTIATION, register, 0);
            write(&mut state, 0, PMA, CONTROL, RESTART);
            write(&mut state, 0, AUTO_NEGOTIATION, CONTROL, !RESTART);
            assert_eq!(state.negotiated, before);
            write(&mut state, 0, AUTO_NEGOTIATION, CONTROL, RESTART);
            assert_eq!(state.negotiated, speed);
        }
        assert!(!state.is_powered_down());
        write(&mut state, 0, VENDOR_1, CONTROL, !LOW_POWER);
        assert!(!state.is_powered_down());
        write(&mut state, 0, VENDOR_1, CONTROL, LOW_POWER);
        assert!(state.is_powered_down());
        state.power_on();
        assert_eq!((state.is_powered_down(), state.negotiated), (false, 10_000));
    }
}
