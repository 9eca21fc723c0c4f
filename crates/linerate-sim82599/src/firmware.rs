//! The firmware of an X540 or X550, as far as drivers use it through the host interface. It has the commands that
//! Intel's drivers use.

use linerate_spec::x82599::*;

use super::board::Board;
use super::eeprom::Eeprom;

/// Commands, in the first byte.
const READ_EEPROM: u8 = 0x31;
const DRIVER_INFORMATION: u8 = 0xDD;
/// Disables receive; an X550's driver uses this instead of writing `RXCTRL`.
const DISABLE_RECEIVE: u8 = 0xDE;
/// The status, in the third byte of the answer.
const DONE: u8 = 0x01;
const UNKNOWN: u8 = 0x80;
/// The register at which words of the EEPROM begin, two to a register, and the most words that fit.
const DATA: u16 = 3;
const MOST_WORDS: u16 = 512;

/// Reports the firmware as ready after a reset.
pub(super) fn start(board: &Board) {
    if board.kind.has_phy() {
        board.registers.set(HICR::OFFSET, HICR::EN);
    }
}

/// Executes the command in FLEX_MNG immediately when HICR is written.
pub(super) fn command(board: &Board, eeprom: &Eeprom, value: u32) {
    let registers = &board.registers;
    if registers.get(HICR::OFFSET) & HICR::EN == 0 || value & HICR::C == 0 {
        return;
    }
    let [command, ..] = registers.get(FLEX_MNG::at(0)).to_le_bytes();
    let status = match command {
        READ_EEPROM => {
            // An address in bytes and a length, in network byte order.
            let first = registers.get(FLEX_MNG::at(1)).swap_bytes() as usize / 2;
            let words = (registers.get(FLEX_MNG::at(2)) as u16).swap_bytes() / 2;
            let word = |n: u16| u32::from(eeprom.word(first + usize::from(n)));
            for n in (0..words.min(MOST_WORDS)).step_by(2) {
                registers.set(FLEX_MNG::at(DATA + n / 2), word(n) | word(n + 1) << 16);
            }
            DONE
        }
        DRIVER_INFORMATION => DONE,
        DISABLE_RECEIVE => {
            registers.change(RXCTRL::OFFSET, RXCTRL::RXEN, false);
            board.update_master_status();
            DONE
        }
        _ => UNKNOWN,
    };
    // The answer contains no further bytes.
    registers.set(FLEX_MNG::at(0), u32::from_le_bytes([command, 0, status, 0]));
    registers.set(HICR::OFFSET, HICR::EN | HICR::SV);
}

#[cfg(test)]
mod tests {
    use linerate_cards::pci::Bar;

    use super::super::{Cable, Card, CardKind};
    use super::*;

    /// Linux's X550 driver disables receive this way, and then waits for the last request (section 5.2.4.3.2).
    #[test]
    fn firmware_stops_receiving_when_asked() {
        let card = Card::of_kind(CardKind::X550, 0, "firmware", Box::new(Cable::unplugged()));
        // SAFETY: no memory is mapped for the card.
        #[allow(unsafe_code)]
        let bar = unsafe { card.bar() };
        bar.write(RXCTRL::OFFSET, RXCTRL::RXEN);
        bar.write(CTRL::OFFSET, CTRL::MASTER_DISABLE);
        assert_ne!(bar.read(STATUS::OFFSET) & STATUS::MASTER_ENABLE_STATUS, 0, "frames make requests");
        bar.write(FLEX_MNG::at(0), DISABLE_RECEIVE.into());
        bar.write(HICR::OFFSET, HICR::EN | HICR::C);
        assert_eq!(bar.read(RXCTRL::OFFSET) & RXCTRL::RXEN, 0);
        assert_eq!(bar.read(STATUS::OFFSET) & STATUS::MASTER_ENABLE_STATUS, 0);
        assert_eq!(card.breaches(), []);
    }
}
