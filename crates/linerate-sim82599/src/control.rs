//! Registers that affect all of the card: resets, master disable, receive enable, and registers whose effect another
//! register acknowledges.

use linerate_spec::Register;
use linerate_spec::x82599::*;

use super::board::Board;
use super::breach::Breach;

/// The effect of a write on other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    /// The card is reset.
    Reset,
    /// The physical function starts receiving.
    Receive,
}

pub(super) fn write(board: &Board, Register { offset, .. }: Register, value: u32) -> Effect {
    let registers = &board.registers;
    match offset {
        // The reset bits clear themselves; STATUS acknowledges master disable.
        CTRL::OFFSET if value & (CTRL::RST | CTRL::LRST) != 0 => return Effect::Reset,
        CTRL::OFFSET => {
            registers.set(offset, value);
            board.update_master_status();
        }
        // Linux's self-test writes STATUS, to check that this has no effect.
        STATUS::OFFSET => {}
        RXCTRL::OFFSET => {
            let begins = value & !registers.get(offset) & RXCTRL::RXEN != 0;
            registers.set(offset, value);
            board.update_master_status();
            if begins {
                check_packet_buffers(board);
                return Effect::Receive;
            }
        }
        SECRXCTRL::OFFSET => {
            registers.set(offset, value);
            registers.change(SECRXSTAT::OFFSET, SECRXSTAT::SECRX_RDY, value & SECRXCTRL::RX_DIS != 0);
        }
        SECTXCTRL::OFFSET => {
            registers.set(offset, value);
            registers.change(SECTXSTAT::OFFSET, SECTXSTAT::SECTX_RDY, value & SECTXCTRL::TX_DIS != 0);
        }
        MTQC::OFFSET => {
            if registers.get(RTTDCS::OFFSET) & RTTDCS::ARBDIS == 0 {
                let why = "MTQC may change only while RTTDCS.ARBDIS is set";
                board.oracle.note(Breach::WrongTime { register: MTQC::NAME, queue: 0, why });
            }
            registers.set(offset, value);
        }
        _ => registers.set(offset, value),
    }
    Effect::Nothing
}

/// Checks that traffic classes and flow director together do not use more packet buffer than the card has (sections
/// 8.2.3.8.9 and 8.2.3.21.1).
fn check_packet_buffers(Board { registers, kind, oracle, .. }: &Board) {
    let of_class = |class| registers.get(RXPBSIZE::at(class)) >> RXPBSIZE::KIB_SHIFT & 0x3FF;
    let director = match registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::PBALLOC_MASK {
        0 => 0,
        n => 32 << n,
    };
    let (kib, most) = ((0..8).map(of_class).sum::<u32>() + director, kind.packet_buffer_kib());
    if kib > most {
        oracle.note(Breach::PacketBuffer { kib, most });
    }
}
