//! Registers and descriptors of network cards, with the names, bits and section numbers of the datasheets.
//!
//! linerate's drivers and its model of the 82599 name registers only through this crate, which does not depend on them.
//! Other drivers and models can use it, too.
//!
//! - [`x82599`]: registers of the 82599, X540 and X550; [`x82599_vf`]: registers of their virtual functions
//! - [`x82576`]: registers of the 82576; [`x82576_vf`]: registers of its virtual functions
//! - [`mailbox`]: messages between a virtual function's driver and its physical function's
//! - [`x82574`]: registers of the 82574
//! - [`descriptor`]: the words of descriptors, which all these cards share
//! - [`phy`]: between a card and its cable: PHYs over MDIO, modules over I2C; [`eeprom`]: words of the 82599's EEPROM
//! - [`virtio`]: VirtIO network devices; [`vmxnet3`]: VMware's paravirtual card
//! - this module: the definition of a register, and the macro that defines one register per line
//!
//! Each register is a type. `RXDCTL::ENABLE` is one of its bits. `RXDCTL(3)` is the register of queue 3, which converts
//! to a [`Register`], and `RXDCTL::at(3)` is its offset.
#![forbid(unsafe_code)]
#![warn(rustdoc::broken_intra_doc_links)]
#![allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)] // the datasheets document registers

pub mod descriptor;
pub mod eeprom;
pub mod mailbox;
pub mod phy;
pub mod virtio;
pub mod vmxnet3;
pub mod x82574;
pub mod x82576;
pub mod x82576_vf;
pub mod x82599;
pub mod x82599_vf;

use std::fmt;

/// The effect of reading and writing a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    RW,
    /// Read only; writes are ignored.
    RO,
    /// Read to clear: statistics.
    RC,
    /// Write 1 to clear; a read also clears.
    W1C,
    /// Write only; reads as 0.
    WO,
    /// Read to set: a read acquires a semaphore, bit 0, by setting it.
    RS,
}

/// The definition of a register, or of an array of registers.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    /// The offset of register 0 in BAR 0.
    pub offset: u32,
    /// Returns the offset of register n, for n below `count`.
    pub at: fn(u16) -> u32,
    pub count: u16,
    /// The number of bytes from one register to the next.
    pub stride: u32,
    pub access: Access,
    pub reset: u32,
    /// Bits that a driver may change. All other bits must be written as they were read.
    pub writable: u32,
    /// The datasheet's section.
    pub section: &'static str,
    /// Names of bits, masks, shifts and values.
    pub bits: &'static [(&'static str, u32)],
}

impl Definition {
    /// Returns all registers of the array.
    pub fn registers(&'static self) -> impl Iterator<Item = Register> {
        (0..self.count).map(move |number| Register { offset: (self.at)(number), number, definition: self })
    }
}

/// One register of a card.
#[derive(Clone, Copy)]
pub struct Register {
    /// The register's offset in BAR 0.
    pub offset: u32,
    /// The register's index in its array; 0 for a single register.
    pub number: u16,
    pub definition: &'static Definition,
}

impl Register {
    /// Returns a readable name for the bits `mask` of this register, for example `RXDCTL[3].ENABLE`.
    pub fn with_bits(&self, mask: u32) -> String {
        let mut names = self.definition.bits.iter().filter(|(name, _)| !name.ends_with("_SHIFT"));
        match names.find(|(_, value)| *value == mask) {
            Some((bit, _)) => format!("{self}.{bit}"),
            None => {
                let single = |(name, value): &&(&str, u32)| {
                    !name.ends_with("_SHIFT") && value.is_power_of_two() && mask & value != 0
                };
                let bits: Vec<_> = self.definition.bits.iter().filter(single).map(|(name, _)| *name).collect();
                format!("{self}.{}", bits.join("|"))
            }
        }
    }
}

/// A counter of a card: a register that a read clears, or two of them.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The register, or the one with the low half. A read of it latches the high half.
    pub low: Register,
    /// The register with the high half, if the counter has two.
    pub high: Option<Register>,
}

impl Counter {
    /// The last parts of the names of counters by length, for example `PRC64`.
    const SIZES: [&str; 6] = ["64", "127", "255", "511", "1023", "1522"];

    /// Returns the counters of all registers of a map for which `is_counter` returns true. Registers whose names differ
    /// in the last letter, L and H, are one counter.
    fn all(map: &'static [&'static Definition], is_counter: fn(&Definition) -> bool) -> impl Iterator<Item = Counter> {
        let other_half = move |definition: &Definition, from: char, to: &str| {
            let name = format!("{}{to}", definition.name.strip_suffix(from)?);
            map.iter().find(|other| other.access == Access::RC && other.name == name)
        };
        let counters = map.iter().filter(move |definition| definition.access == Access::RC && is_counter(definition));
        let counters = counters.filter(move |definition| other_half(definition, 'H', "L").is_none());
        counters.flat_map(move |definition| {
            let mut high = other_half(definition, 'L', "H").into_iter().flat_map(|definition| definition.registers());
            definition.registers().map(move |low| Counter { low, high: high.next() })
        })
    }

    /// Returns whether the counter is one of several by the length of a packet.
    fn is_by_length(&self) -> bool {
        ["PRC", "PTC"].contains(&self.low.definition.name)
    }
}

/// The datasheet's name, for example `GPRC`, `PRC64` or `QPRDC[3]`; for two registers, the part that their names share.
impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Register { number, definition, .. } = self.low;
        if self.is_by_length() {
            return write!(f, "{}{}", definition.name, Counter::SIZES[usize::from(number)]);
        }
        let name = self.high.map_or(definition.name, |_| {
            definition.name.trim_end_matches("_LSB").trim_end_matches('L').trim_end_matches('_')
        });
        f.write_str(name)?;
        if definition.count > 1 { write!(f, "[{number}]") } else { Ok(()) }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.definition.name)?;
        if self.definition.count > 1 { write!(f, "[{}]", self.number) } else { Ok(()) }
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} at {:#07x}", self.offset)
    }
}

/// Defines registers, one per line:
///
/// ```text
/// NAME offset [count x stride then count at offset] access reset value writable BITS "section" "title" { bit = value };
/// ```
///
/// Without brackets there is one register; `then` gives the second range of an array that has two. Without `reset` the
/// register is 0 after a reset. Without `writable` a driver may change all bits. `MAP` lists all definitions.
macro_rules! registers {
    ($($name:ident $offset:literal $([$($array:tt)*])? $access:ident $(reset $reset:literal)? $(writable $writable:ident)?
       $section:literal $title:literal $({ $($bit:ident = $value:expr),* })?;)*) => {
        $(
            $crate::registers!(@type $name $offset [$($($array)*)?] concat!($title, " (section ", $section, ")."));

            impl $name {
                /// The offset of register 0 in BAR 0.
                pub const OFFSET: u32 = $offset;
                pub const NAME: &'static str = stringify!($name);
                pub const SECTION: &'static str = $section;
                pub const DEFINITION: &'static $crate::Definition = &$crate::Definition {
                    name: $name::NAME,
                    offset: $offset,
                    at: $name::at,
                    count: $name::COUNT,
                    stride: $name::STRIDE,
                    access: $crate::Access::$access,
                    reset: 0 $(| $reset)?,
                    writable: $crate::registers!(@writable $($writable)?),
                    section: $section,
                    bits: &[$($((stringify!($bit), $value)),*)?],
                };

                $($(pub const $bit: u32 = $value;)*)?
            }
        )*

        /// The definitions of all registers.
        pub static MAP: &[&$crate::Definition] = &[$($name::DEFINITION),*];
    };

    (@writable) => { u32::MAX };
    (@writable $writable:ident) => { $writable };

    (@type $name:ident $offset:literal [] $doc:expr) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub struct $name;

        impl $name {
            pub const COUNT: u16 = 1;
            pub const STRIDE: u32 = 0;

            const fn at(_: u16) -> u32 {
                $offset
            }
        }

        impl From<$name> for $crate::Register {
            #[inline(always)]
            fn from(_: $name) -> $crate::Register {
                $crate::Register { offset: $offset, number: 0, definition: $name::DEFINITION }
            }
        }
    };

    (@type $name:ident $offset:literal [$count:literal x $stride:literal $(then $more:literal at $upper:literal)?] $doc:expr) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub struct $name(pub u16);

        impl $name {
            pub const COUNT: u16 = $count $(+ $more)?;
            /// The number of bytes from one register to the next.
            pub const STRIDE: u32 = $stride;

            /// Returns the offset of register `n`.
            #[inline(always)]
            pub const fn at(n: u16) -> u32 {
                $(if n >= $count {
                    assert!(n < $count + $more);
                    return $upper + (n - $count) as u32 * $stride;
                })?
                assert!(n < $name::COUNT);
                $offset + n as u32 * $stride
            }
        }

        impl From<$name> for $crate::Register {
            #[inline(always)]
            fn from($name(number): $name) -> $crate::Register {
                $crate::Register { offset: $name::at(number), number, definition: $name::DEFINITION }
            }
        }
    };
}
use registers;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn check(map: &'static [&'static Definition], bytes: u32) -> HashMap<u32, &'static str> {
        let mut seen = HashMap::new();
        for register in map.iter().flat_map(|definition| definition.registers()) {
            let Register { offset, definition, .. } = register;
            if let Some(other) = seen.insert(offset, definition.name) {
                panic!("{register} and {other} are both at {offset:#x}");
            }
            assert!(offset % 4 == 0 && offset < bytes, "{register}");
        }
        seen
    }

    #[test]
    fn no_two_registers_share_an_offset() {
        check(x82574::MAP, 0x20000);
        check(x82576::MAP, 0x20000);
        check(x82576_vf::MAP, 0x4000);
        check(x82599_vf::MAP, 0x4000);
        check(vmxnet3::pt::MAP, 0x1000);
        check(vmxnet3::vd::MAP, 0x1000);
        let mut seen = check(x82599::MAP, 0x20000);
        for (offset, count, stride, ..) in x82599::ALIASES {
            for offset in (0..*count).map(|n| offset + n * stride) {
                if let Some(other) = seen.insert(offset, "an alias") {
                    panic!("an alias and {other} are both at {offset:#x}");
                }
            }
        }
    }

    #[test]
    fn a_register_of_two_ranges_continues_in_the_second() {
        use x82599::RXDCTL;
        assert_eq!([0, 63, 64, 127].map(RXDCTL::at), [0x01028, 0x01FE8, 0x0D028, 0x0DFE8]);
        assert_eq!(RXDCTL::DEFINITION.registers().count(), 128);
    }

    #[test]
    fn bits_are_named_as_in_the_datasheet() {
        use x82599::{CTRL, RXDCTL};
        assert_eq!(Register::from(RXDCTL(3)).with_bits(RXDCTL::ENABLE), "RXDCTL[3].ENABLE");
        assert_eq!(Register::from(CTRL).with_bits(CTRL::RST | CTRL::LRST), "CTRL.LRST|RST");
    }
}
