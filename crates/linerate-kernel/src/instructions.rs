//! BPF instructions (RFC 9669), and an assembler with labels as jump targets.

/// One instruction in the kernel's format.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register: 0 holds results, 1 to 5 arguments (lost in calls), 6 to 9 are preserved, 10 is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R(pub u8);

/// The width of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Byte,
    Half,
    Word,
}

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A jump's condition; numbers are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum If {
    Equal,
    NotEqual,
    Greater,
    Less,
}

// RFC 9669, sections 3 to 5: classes, sources and codes.
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const MEMORY: u8 = 0x60;
const REGISTER: u8 = 0x08;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const SHIFT_LEFT: u8 = 0x60;
const MOVE: u8 = 0xB0;
const TO_NETWORK: u8 = 0xD0;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// A 64-bit load in two instructions, and the source that turns a descriptor into a map.
const LOAD_64: u8 = 0x18;
const IS_MAP: u8 = 1;
/// `BPF_PSEUDO_KFUNC_CALL`: the source of a call by the function's number in the kernel's types.
const BY_TYPE: u8 = 2;

impl Width {
    fn code(self) -> u8 {
        match self {
            Width::Word => 0x00,
            Width::Half => 0x08,
            Width::Byte => 0x10,
        }
    }
}

impl If {
    fn code(self) -> u8 {
        match self {
            If::Equal => 0x10,
            If::Greater => 0x20,
            If::NotEqual => 0x50,
            If::Less => 0xA0,
        }
    }
}

/// A program under construction.
#[derive(Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// The position of each label, once placed.
    places: Vec<Option<usize>>,
    /// The positions of jumps, and their labels.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: R, from: R, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: to.0 | from.0 << 4, offset, immediate });
    }

    /// Creates a label without a position.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places the label here.
    pub fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.instructions.len());
    }

    /// `to = value`
    pub fn set(&mut self, to: R, value: i32) {
        self.push(ALU64 | MOVE, to, R(0), 0, value);
    }

    /// `to = from`
    pub fn copy(&mut self, to: R, from: R) {
        self.push(ALU64 | MOVE | REGISTER, to, from, 0, 0);
    }

    /// `to += value`
    pub fn add(&mut self, to: R, value: i32) {
        self.push(ALU64 | ADD, to, R(0), 0, value);
    }

    /// `to += from`
    pub fn add_register(&mut self, to: R, from: R) {
        self.push(ALU64 | ADD | REGISTER, to, from, 0, 0);
    }

    /// `to &= value` on the lower 32 bits; the upper bits become 0.
    pub fn and(&mut self, to: R, value: u32) {
        self.push(ALU | AND, to, R(0), 0, value as i32);
    }

    /// `to <<= by`
    pub fn shift_left(&mut self, to: R, by: i32) {
        self.push(ALU64 | SHIFT_LEFT, to, R(0), 0, by);
    }

    /// Converts 16 bits from network byte order.
    pub fn swap_network_16(&mut self, to: R) {
        self.push(ALU | TO_NETWORK | REGISTER, to, R(0), 0, 16);
    }

    /// `to = *(base + offset)`
    pub fn load(&mut self, width: Width, to: R, base: R, offset: i16) {
        self.push(LDX | MEMORY | width.code(), to, base, offset, 0);
    }

    /// `*(base + offset) = from`
    pub fn store(&mut self, width: Width, base: R, offset: i16, from: R) {
        self.push(STX | MEMORY | width.code(), base, from, offset, 0);
    }

    /// `to = the map`
    pub fn load_map(&mut self, to: R, descriptor: i32) {
        self.push(LOAD_64, to, R(IS_MAP), 0, descriptor);
        self.push(0, R(0), R(0), 0, 0);
    }

    /// Jumps to a label.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP, R(0), R(0), 0, 0);
    }

    /// Jumps if the comparison of the lower 32 bits of `a` with `b` holds.
    pub fn jump_if(&mut self, when: If, a: R, b: u32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP32 | when.code(), a, R(0), 0, b as i32);
    }

    /// Jumps if the comparison of `a` with `b` holds; both may be pointers.
    pub fn jump_if_register(&mut self, when: If, a: R, b: R, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP | when.code() | REGISTER, a, b, 0, 0);
    }

    /// Calls one of the kernel's functions.
    pub fn call(&mut self, function: i32) {
        self.push(JMP | CALL, R(0), R(0), 0, function);
    }

    /// Calls the kernel's function with this number in its types (`crate::btf`).
    pub fn call_by_type(&mut self, function: u32) {
        self.push(JMP | CALL, R(0), R(BY_TYPE), 0, function as i32);
    }

    /// Returns the value of register 0.
    pub fn exit(&mut self) {
        self.push(JMP | EXIT, R(0), R(0), 0, 0);
    }

    /// Returns the program; `None` if a jump is too long for an instruction.
    pub fn finish(mut self) -> Option<Vec<Instruction>> {
        for (at, label) in self.jumps {
            let to = self.places[label.0]?;
            self.instructions[at].offset = i16::try_from(to as i64 - at as i64 - 1).ok()?;
        }
        Some(self.instructions)
    }
}
