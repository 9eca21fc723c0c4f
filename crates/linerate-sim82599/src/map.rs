//! The register map: which block handles an access to an offset, and accesses that are not 32 bits wide.

use std::sync::OnceLock;

use linerate_spec::x82599::*;
use linerate_spec::{Definition, Register};

use super::CardKind;
use super::registers::BAR_BYTES;

/// The part of the card that handles reads or writes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// The register file alone, according to the register's [`Access`](linerate_spec::Access).
    File,
    Control,
    Eeprom,
    Firmware,
    Link,
    Interrupts,
    Rss,
    Director,
    Clock,
    Queues,
}

/// A register and its handlers.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub register: Register,
    pub read: Block,
    pub write: Block,
    /// Bits of a written value that the card stores; it ignores the others.
    pub keeps: u32,
}

/// A register handled by a block; the register file handles all others.
struct Handled {
    definition: &'static Definition,
    read: Block,
    write: Block,
    keeps: u32,
}

macro_rules! handled {
    ($($register:ident $read:ident $write:ident $(keeps $keeps:expr)?;)*) => {
        const HANDLED: &[Handled] = &[$(Handled {
            definition: $register::DEFINITION,
            read: Block::$read,
            write: Block::$write,
            keeps: handled!(@keeps $($keeps)?),
        }),*];
    };
    (@keeps) => { u32::MAX };
    (@keeps $keeps:expr) => { $keeps };
}

handled! {
    // Register   Reads       Writes
    CTRL          File        Control;
    STATUS        File        Control;
    RXCTRL        File        Control;
    SECRXCTRL     File        Control;
    SECTXCTRL     File        Control;
    MTQC          File        Control;
    RAH           File        File        keeps RAH::BITS;

    EEC           File        Eeprom;
    EERD          File        Eeprom;
    HICR          File        Firmware;

    LINKS         Link        File;
    I2CCTL        Link        Link;
    X550_I2CCTL   Link        File;
    MSCA          File        Link;
    AUTOC         File        Link;
    AUTOC2        File        Link;
    HLREG0        File        Link;
    MACC          File        Link;
    ESDP          File        Link;

    EICR          Interrupts  Interrupts;
    EICS          Interrupts  Interrupts;
    EIMS          File        Interrupts;
    EIMC          File        Interrupts;
    EICS_EX       File        Interrupts;
    EIMS_EX       Interrupts  Interrupts;
    EIMC_EX       File        Interrupts;

    RSSRK         File        Rss;
    FDIRCTRL      File        Director;
    FDIRCMD       File        Director;
    FTQF          File        Director;
    ETQF          File        Director;
    SYNQF         File        Director;

    SYSTIML       Clock       Clock;
    SYSTIMH       Clock       Clock;
    SYSTIMR       Clock       File;
    FRTIMER       Clock       File;
    RXSTMPH       Clock       File;
    TXSTMPH       Clock       File;
    TIMINCA       File        Clock;
    TIMADJH       File        Clock;
    TSAUXC        File        Clock;

    RDBAL         File        Queues      keeps RDBAL::BITS;
    RDBAH         File        Queues;
    RDLEN         File        Queues      keeps RDLEN::BITS;
    RDH           File        Queues;
    RDT           File        Queues;
    SRRCTL        File        Queues;
    // Bit 26 is reserved in the datasheet, but Intel's driver sets it to flush descriptors, as in TXDCTL.
    RXDCTL        File        Queues      keeps !RXDCTL::SWFLSH;
    TDBAL         File        Queues      keeps TDBAL::BITS;
    TDBAH         File        Queues;
    TDLEN         File        Queues      keeps TDLEN::BITS;
    TDH           File        Queues;
    TDT           File        Queues;
    TXDCTL        File        Queues      keeps !TXDCTL::SWFLSH;
}

impl Line {
    /// Returns the line of the first register of an array.
    fn of(definition: &'static Definition) -> Line {
        let register = Register { offset: definition.offset, number: 0, definition };
        let handled = HANDLED.iter().find(|handled| handled.definition.offset == definition.offset);
        match handled {
            Some(&Handled { read, write, keeps, .. }) => Line { register, read, write, keeps },
            None => Line { register, read: Block::File, write: Block::File, keeps: u32::MAX },
        }
    }
}

/// Returns the register at `offset` of this kind of card. Resolves aliases. Returns `None` if there is no register.
pub(super) fn find(kind: CardKind, offset: u32) -> Option<&'static Line> {
    static INDEX: OnceLock<Vec<Option<Line>>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index = vec![None; (BAR_BYTES / 4) as usize];
        for definition in MAP {
            let line = Line::of(definition);
            for register in definition.registers() {
                index[(register.offset / 4) as usize] = Some(Line { register, ..line });
            }
        }
        for (alias, count, stride, offset, meant) in ALIASES {
            for n in 0..*count {
                index[((alias + n * stride) / 4) as usize] = index[((offset + n * meant) / 4) as usize];
            }
        }
        index
    });
    let line = index.get((offset / 4) as usize).filter(|_| offset.is_multiple_of(4))?.as_ref()?;
    (kind == CardKind::X550 || !line.register.definition.section.starts_with("X550")).then_some(line)
}

/// Reads bytes of BAR 0: part of a register, or several registers. Each register is read once.
pub(super) fn read_bytes(offset: u64, bytes: &mut [u8], mut read: impl FnMut(u32) -> u32) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let value = read(at as u32 & !3).to_le_bytes();
        let part = &value[(at % 4) as usize..];
        let count = part.len().min(bytes.len() - done);
        bytes[done..done + count].copy_from_slice(&part[..count]);
        done += count;
    }
}

/// Writes bytes of BAR 0. Only complete registers can be written (section 8.1); other writes are ignored.
pub(super) fn write_bytes(offset: u64, bytes: &[u8], mut write: impl FnMut(u32, u32)) {
    if offset.is_multiple_of(4) {
        for (n, word) in bytes.chunks_exact(4).enumerate() {
            write(offset as u32 + 4 * n as u32, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_found_by_its_offset_and_its_aliases() {
        let name = |kind, offset| find(kind, offset).map(|line| line.register.to_string());
        assert_eq!(name(CardKind::X82599Sfp, RXDCTL::at(64)), Some("RXDCTL[64]".to_string()));
        assert_eq!(name(CardKind::X82599Sfp, 0x05400), Some("RAL[0]".to_string()));
        assert_eq!(name(CardKind::X550, ERETA::at(5)), Some("ERETA[5]".to_string()));
        assert_eq!(name(CardKind::X540, ERETA::at(5)), None);
        assert_eq!((name(CardKind::X550, RXDCTL::at(3) + 1), name(CardKind::X550, BAR_BYTES)), (None, None));
    }

    #[test]
    fn parts_of_registers_are_read_and_whole_ones_written() {
        let (mut bytes, mut reads) = ([0; 7], Vec::new());
        read_bytes(0x13, &mut bytes, |offset| {
            reads.push(offset);
            offset * 0x0101_0101
        });
        assert_eq!((bytes, reads), ([0x10, 0x14, 0x14, 0x14, 0x14, 0x18, 0x18], vec![0x10, 0x14, 0x18]));
        let mut writes = Vec::new();
        write_bytes(8, &[1, 0, 0, 0, 2, 0, 0, 0, 3], |offset, value| writes.push((offset, value)));
        write_bytes(9, &[1; 8], |offset, value| writes.push((offset, value)));
        assert_eq!(writes, [(8, 1), (12, 2)]);
    }
}
