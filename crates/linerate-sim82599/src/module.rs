//! The SFP+ module in the card's cage, and its two-wire interface: bit-banged I2C through `I2CCTL` (section 3.7.3),
//! with the contents defined by SFF-8472.

use linerate_spec::phy::sff;
use linerate_spec::x82599::I2CCTL;

/// The module's two I2C devices: 0xA0 has its description, 0xA2 its measurements.
pub(super) struct Module {
    /// Whether this is a 1 Gbit/s module.
    gigabit: bool,
    clock: bool,
    data: bool,
    /// The module is pulling the data wire low.
    pulls: bool,
    state: State,
    address: usize,
    offset: u8,
}

/// The state of a transfer, with the count of bits transferred.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Idle,
    /// The device's address and the direction.
    Device {
        bits: u8,
        byte: u8,
    },
    /// The offset in the device's memory.
    Offset {
        bits: u8,
        byte: u8,
    },
    /// Bytes written to the device, which are ignored.
    Write {
        bits: u8,
    },
    Read {
        bits: u8,
        byte: u8,
    },
}

impl Module {
    pub fn new() -> Module {
        Module { gigabit: false, clock: true, data: true, pulls: false, state: State::Idle, address: 0, offset: 0 }
    }

    /// Creates a 1 Gbit/s module.
    pub fn gigabit() -> Module {
        Module { gigabit: true, ..Module::new() }
    }

    pub fn is_gigabit(&self) -> bool {
        self.gigabit
    }

    /// Sets the wires to the levels that the driver writes.
    pub fn write(&mut self, value: u32) {
        let (clock, data) = (value & I2CCTL::CLK_OUT != 0, value & I2CCTL::DATA_OUT != 0);
        let (old_clock, old_data) =
            (std::mem::replace(&mut self.clock, clock), std::mem::replace(&mut self.data, data));
        if clock && old_clock && data != old_data {
            // Data changes while the clock is high: a falling edge begins a transfer, a rising edge ends it.
            self.state = if data { State::Idle } else { State::Device { bits: 0, byte: 0 } };
            self.pulls = false;
        } else if clock && !old_clock {
            self.clock_rise(data);
        } else if !clock && old_clock {
            self.clock_fall();
        }
    }

    /// Returns the levels of the wires.
    pub fn read(&self) -> u32 {
        let mut value = 0;
        if self.clock {
            value |= I2CCTL::CLK_IN | I2CCTL::CLK_OUT;
        }
        if self.data && !self.pulls {
            value |= I2CCTL::DATA_IN;
        }
        if self.data {
            value |= I2CCTL::DATA_OUT;
        }
        value
    }

    /// Handles a rising clock: the data wire has a bit from the driver, or its acknowledgement of a byte.
    fn clock_rise(&mut self, data: bool) {
        self.state = match self.state {
            State::Device { bits, byte } if bits < 8 => {
                State::Device { bits: bits + 1, byte: byte << 1 | u8::from(data) }
            }
            State::Offset { bits, byte } if bits < 8 => {
                State::Offset { bits: bits + 1, byte: byte << 1 | u8::from(data) }
            }
            State::Write { bits } if bits < 8 => State::Write { bits: bits + 1 },
            State::Read { bits, byte } if bits < 8 => State::Read { bits: bits + 1, byte },
            // The ninth bit.
            State::Device { bits: 8, byte } => State::Device { bits: 9, byte },
            State::Offset { bits: 8, byte } => State::Offset { bits: 9, byte },
            State::Write { bits: 8 } => State::Write { bits: 9 },
            // Not acknowledged: the driver reads no more bytes.
            State::Read { bits: 8, .. } if data => State::Idle,
            State::Read { bits: 8, byte } => State::Read { bits: 9, byte },
            other => other,
        };
    }

    /// Handles a falling clock: the module drives its bit, or releases the wire.
    fn clock_fall(&mut self) {
        self.pulls = false;
        match self.state {
            State::Device { bits: 8, byte } | State::Offset { bits: 8, byte } => {
                let known = !matches!(self.state, State::Device { .. })
                    || matches!(byte & 0xFE, sff::DESCRIPTION | sff::MEASUREMENTS);
                if known { self.pulls = true } else { self.state = State::Idle }
            }
            State::Write { bits: 8 } => self.pulls = true,
            State::Device { bits: 9, byte } => {
                self.address = usize::from(byte & 0xFE == sff::MEASUREMENTS);
                self.state = match byte & 1 {
                    0 => State::Offset { bits: 0, byte: 0 },
                    _ => self.next_byte(),
                };
            }
            State::Offset { bits: 9, byte } => {
                self.offset = byte;
                self.state = State::Write { bits: 0 };
            }
            State::Write { bits: 9 } => self.state = State::Write { bits: 0 },
            State::Read { bits: 9, .. } => self.state = self.next_byte(),
            _ => {}
        }
        if let State::Read { bits, byte } = self.state
            && bits < 8
        {
            self.pulls = byte >> (7 - bits) & 1 == 0;
        }
    }

    fn next_byte(&mut self) -> State {
        let byte = memory(self.gigabit, self.address, self.offset);
        self.offset = self.offset.wrapping_add(1);
        State::Read { bits: 0, byte }
    }
}

/// Returns a byte of the memory of a 10GBASE-SR or 1000BASE-SX module (SFF-8472, table 3-1).
fn memory(gigabit: bool, address: usize, offset: u8) -> u8 {
    const MOST: usize = 96;
    const fn description(gigabit: bool) -> [u8; MOST] {
        let mut bytes = [0; MOST];
        bytes[sff::IDENTIFIER as usize] = 0x03; // SFP or SFP+
        bytes[sff::EXTENDED_IDENTIFIER as usize] = 0x04;
        bytes[sff::CONNECTOR as usize] = 0x07; // LC
        let (compliance, code, rate) = if gigabit {
            (sff::GIGABIT, 0x01, 13) // 1000BASE-SX
        } else {
            (sff::TEN_GIGABIT, 0x10, 103) // 10GBASE-SR
        };
        bytes[compliance as usize] = code;
        bytes[sff::BIT_RATE as usize] = rate;
        let mut n = 0;
        let name = b"LINERATE        ";
        while n < 16 {
            bytes[sff::VENDOR_NAME as usize + n] = name[n];
            bytes[sff::VENDOR_PART as usize + n] = name[n];
            bytes[sff::VENDOR_SERIAL as usize + n] = b' ';
            n += 1;
        }
        // Intel's OUI, the only OUI that Intel's drivers accept without a warning.
        let oui = sff::VENDOR_OUI as usize;
        (bytes[oui], bytes[oui + 1], bytes[oui + 2]) = (0x00, 0x1B, 0x21);
        let (mut from, mut ends) = (0, [sff::CHECK_BASE as usize, sff::CHECK_EXTENDED as usize].as_slice());
        while let [end, rest @ ..] = ends {
            let mut sum = 0u8;
            while from < *end {
                sum = sum.wrapping_add(bytes[from]);
                from += 1;
            }
            bytes[*end] = sum;
            (from, ends) = (*end + 1, rest);
        }
        bytes
    }
    static DESCRIPTIONS: [[u8; MOST]; 2] = [description(false), description(true)];
    match address {
        0 => DESCRIPTIONS[usize::from(gigabit)].get(usize::from(offset)).copied().unwrap_or(0),
        _ => 0,
    }
}
