//! Physical functions that refuse, stall, lie, and are reset: the driver of a virtual function must end each request, and
//! start its queues again.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate::memory::RegionOptions;
use linerate::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping, PageSize, Pages, Pool, Region};
use linerate::nic::igbvf::Igbvf;
use linerate::nic::ixgbevf::Ixgbevf;
use linerate::pci::{Bar, Bus, Doorbell, Interrupt};
use linerate::port::{Link, MacAddress, Port, Random};
use linerate::spec::mailbox::*;
use linerate::spec::{x82576_vf, x82599_vf};
use linerate::{Batch, ErrorKind, Options, Result};

const BUFFERS: usize = 2048;
const GIVEN: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x42]);

/// The registers that the test needs, of one of the drivers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Function {
    mailbox: u32,
    memory: u32,
    /// The register with the state of the link, and its value if the link is up.
    link: (u32, u32),
    receive_control: u32,
    receive_tail: u32,
    transmit_tail: u32,
    transmit_head: u32,
}

const X82599: Function = Function {
    mailbox: x82599_vf::VFMAILBOX::OFFSET,
    memory: x82599_vf::VFMBMEM::OFFSET,
    link: (x82599_vf::VFLINKS::OFFSET, x82599_vf::VFLINKS::UP | x82599_vf::VFLINKS::SPEED_10G),
    receive_control: x82599_vf::VFRXDCTL::OFFSET,
    receive_tail: x82599_vf::VFRDT::OFFSET,
    transmit_tail: x82599_vf::VFTDT::OFFSET,
    transmit_head: x82599_vf::VFTDH::OFFSET,
};
const X82576: Function = Function {
    mailbox: x82576_vf::V2PMAILBOX::OFFSET,
    memory: x82576_vf::VMBMEM::OFFSET,
    link: (x82576_vf::VTSTATUS::OFFSET, x82576_vf::VTSTATUS::LU),
    receive_control: x82576_vf::RXDCTL::OFFSET,
    receive_tail: x82576_vf::RDT::OFFSET,
    transmit_tail: x82576_vf::TDT::OFFSET,
    transmit_head: x82576_vf::TDH::OFFSET,
};
const FUNCTIONS: [Function; 2] = [X82599, X82576];

/// The driver of the physical function.
enum Physical {
    /// Grants everything, except all packets to a function that is not trusted.
    Honest { trusts: bool },
    /// Does not answer.
    Down,
    /// Answers anything.
    Random(Random),
}

struct State {
    function: Function,
    physical: Physical,
    registers: HashMap<u32, u32>,
    bits: u32,
    /// The address that the physical function gives, or zero.
    given: MacAddress,
    /// The requests that came.
    requests: usize,
}

impl State {
    fn read(&mut self, offset: u32) -> u32 {
        if let Physical::Random(random) = &mut self.physical
            && random.below(4) == 0
            && offset != x82599_vf::VFSTATUS::OFFSET
        {
            // The register of a card that is gone has all ones.
            return random.below(1 << 32) as u32 & !(1 << random.below(32));
        }
        match offset {
            _ if offset == self.function.mailbox => {
                let bits = self.bits;
                self.bits &= !(PFSTS | PFACK | RSTD);
                bits
            }
            _ if offset == self.function.transmit_head => self.registers[&self.function.transmit_tail],
            _ => self.registers.get(&offset).copied().unwrap_or(0),
        }
    }

    fn write(&mut self, offset: u32, value: u32) {
        if offset != self.function.mailbox {
            self.registers.insert(offset, value);
            return;
        }
        self.bits = self.bits & !VFU | value & VFU;
        if value & REQ == 0 {
            return;
        }
        let mut message: [u32; WORDS] = std::array::from_fn(|word| self.read(self.function.memory + 4 * word as u32));
        let kind = message[0] & KIND_MASK;
        self.requests += 1;
        match &mut self.physical {
            Physical::Down => return,
            Physical::Honest { trusts } => {
                let asks_for_all = match self.function == X82599 {
                    true => kind == x82599::UPDATE_MODE && message[1] == x82599::MODE_PROMISCUOUS,
                    false => message[0] & (KIND_MASK | x82576::UNICAST) == x82576::SET_PROMISCUOUS | x82576::UNICAST,
                };
                let is_known = kind != x82599::NEGOTIATE || message[1] <= x82599::VERSION_1_4;
                message[0] |= if asks_for_all && !*trusts || !is_known { FAILURE } else { SUCCESS };
                match kind {
                    RESET => (message[1], message[2]) = self.given.words(),
                    x82599::GET_QUEUES => (message[1], message[2]) = (2, 2),
                    _ => {}
                }
                message[0] |= if kind == RESET { 0 } else { CLEAR_TO_SEND };
            }
            Physical::Random(random) => {
                let word = |random: &mut Random| random.below(1 << 32) as u32;
                let changed = random.below(WORDS as u64 + 1) as usize;
                message.iter_mut().take(changed).for_each(|one| *one = word(random));
                message[0] = match random.below(3) {
                    0 => message[0],
                    1 => kind | [SUCCESS, FAILURE, SUCCESS | CLEAR_TO_SEND][random.below(3) as usize],
                    _ => CONTROL | word(random) & CLEAR_TO_SEND,
                };
            }
        }
        for (at, word) in message.into_iter().enumerate() {
            self.registers.insert(self.function.memory + 4 * at as u32, word);
        }
        self.bits |= PFSTS | PFACK;
    }
}

#[derive(Clone)]
struct FakeBar(Arc<Mutex<State>>);

struct Bell(FakeBar, u32);

impl Doorbell for Bell {
    fn ring(&self, tail: u32) {
        self.0.write(self.1, tail);
    }
}

impl Bar for FakeBar {
    type Doorbell = Bell;

    fn read(&self, offset: u32) -> u32 {
        self.0.lock().unwrap().read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.0.lock().unwrap().write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> Bell {
        Bell(self.clone(), offset)
    }

    /// Time does not pass.
    fn wait(&self, _: Duration) {}
}

/// Device addresses: mapping n begins at (n + 1) << 40.
#[derive(Default)]
struct FakeBus(Mutex<u64>);

// SAFETY: it only assigns addresses, and does not access memory.
unsafe impl DmaSpace for FakeBus {
    fn map(&self, _: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.0.lock().unwrap();
        *maps += 1;
        Ok(Addresses::Contiguous(Contiguous(*maps << 40)))
    }

    unsafe fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for FakeBus {
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    fn interrupts(&self, _: u16) -> Result<Vec<Interrupt>> {
        unreachable!("it is polled")
    }
}

struct Test {
    pool: Arc<Pool>,
    state: Arc<Mutex<State>>,
}

impl Test {
    fn new(function: Function, physical: Physical) -> Test {
        let region = RegionOptions { buffers: BUFFERS, pages: Pages::Only(PageSize::Ordinary), ..Default::default() };
        let registers = HashMap::from([function.link]);
        let state = State { function, physical, registers, bits: 0, given: GIVEN, requests: 0 };
        Test { pool: Pool::new(Region::new(&region).unwrap()), state: Arc::new(Mutex::new(state)) }
    }

    fn open(&self, options: &Options) -> Result<Port> {
        let config = options.clone().of_port("function", self.pool.clone())?;
        let (bar, bus) = (FakeBar(self.state.clone()), Arc::new(FakeBus::default()));
        let function = self.state.lock().unwrap().function;
        Ok(match function == X82599 {
            true => Port::new(Ixgbevf::open(bar, bus, config)?),
            false => Port::new(Igbvf::open(bar, bus, config)?),
        })
    }

    fn change(&self, physical: Physical) {
        self.state.lock().unwrap().physical = physical;
    }

    /// Resets the physical function, and with it the queues of the virtual function.
    fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        let link = state.function.link;
        state.registers = HashMap::from([link]);
        state.bits |= RSTD;
    }

    fn register(&self, offset: u32) -> u32 {
        self.state.lock().unwrap().registers.get(&offset).copied().unwrap_or(0)
    }
}

const TRUSTED: Physical = Physical::Honest { trusts: true };

#[test]
fn a_function_that_is_not_trusted_receives_its_own_packets() {
    for function in FUNCTIONS {
        let test = Test::new(function, TRUSTED);
        let port = test.open(&Options::default()).unwrap();
        assert_eq!(port.mac(), GIVEN);
        assert!(!port.info().description.contains("own address"));
        drop(port);
        test.change(Physical::Honest { trusts: false });
        let mut port = test.open(&Options::default()).unwrap();
        assert!(port.info().description.ends_with("own address only: it is not trusted"));
        let error = port.set_promiscuous(true).unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.with_hint().contains("trust on"), "{}", error.with_hint());
        port.set_promiscuous(false).unwrap();
        assert!(!port.info().description.contains("not trusted"));
    }
}

#[test]
fn a_silent_physical_function_is_an_error() {
    for function in FUNCTIONS {
        let test = Test::new(function, Physical::Down);
        let error = test.open(&Options::default()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.with_hint().contains("does not answer within 2s") && error.with_hint().contains("ip link set"));
        assert_eq!(test.pool.available(), BUFFERS);
    }
}

/// Without an address of the physical function, a function chooses one at random, and keeps it after a reset.
#[test]
fn a_function_without_an_address_chooses_one() {
    for function in FUNCTIONS {
        let test = Test::new(function, TRUSTED);
        test.state.lock().unwrap().given = MacAddress::default();
        let port = test.open(&Options::default()).unwrap();
        let chosen = port.mac();
        assert!(chosen.0[0] == 2, "{chosen}");
        test.reset();
        assert!(matches!(port.link(), Ok(Link::Up { .. })));
        assert_eq!(port.mac(), chosen);
        drop(port);
        assert_ne!(test.open(&Options::default()).unwrap().mac(), chosen);
    }
}

/// A port asks for no more queues than it was granted.
#[test]
fn queues_are_granted() {
    let test = Test::new(X82599, TRUSTED);
    assert!(test.open(&Options::default().with_queues(2)).is_ok());
    let error = test.open(&Options::default().with_queues(3)).map(drop).unwrap_err();
    assert!(error.why().contains('2') && error.why().contains('3'), "{}", error.why());
}

/// After a reset of the physical function, the queues start again with all their buffers, whatever they did before.
#[test]
fn queues_start_again_after_a_reset() {
    for function in FUNCTIONS {
        let test = Test::new(function, TRUSTED);
        let mut port = test.open(&Options::default()).unwrap();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let ring = port.info().ring as u32;
        let (mut batch, mut lost) = (Batch::new(), 0);
        for round in 0..5 {
            assert!(matches!(port.link(), Ok(Link::Up { .. })));
            assert_ne!(test.register(function.receive_control) & x82599_vf::VFRXDCTL::ENABLE, 0, "round {round}");
            assert_eq!(test.register(function.receive_tail), ring - 1);
            // The card does not send them.
            while batch.alloc(&test.pool, 32, 60) == 32 && tx.send(&mut batch) > 0 {}
            batch.clear();
            lost += tx.buffers() as u64;
            assert!(lost > 0 && test.register(function.transmit_tail) > 0);

            test.reset();
            test.change(Physical::Down);
            assert_eq!(port.link().unwrap(), Link::Down);
            test.change(TRUSTED);
            // The next attempt is a second after the last.
            linerate_testkit::until("the function is up again", || port.link().unwrap() != Link::Down);
            assert_eq!(rx.recv(&mut batch), 0);
            batch.alloc(&test.pool, 1, 60);
            assert_eq!(tx.send(&mut batch), 1, "round {round}");
            assert_eq!(port.statistics().unwrap().drops.in_flight, lost);
            let held = rx.buffers() + tx.buffers() + batch.len() + batch.cached();
            assert_eq!(held + test.pool.available(), BUFFERS);
        }
        drop((rx, tx, port, batch));
        assert_eq!(test.pool.available(), BUFFERS);
    }
}

/// Whatever the physical function answers, each call ends, with an error or without.
#[test]
fn random_answers_break_nothing() {
    let (mut opened, mut requests) = (0, 0);
    for (seed, function) in (0..60).flat_map(|seed| FUNCTIONS.map(|function| (seed, function))) {
        let test = Test::new(function, Physical::Random(Random::new(seed, 1)));
        // Some are honest until the port is open.
        if seed % 2 == 1 {
            test.change(TRUSTED);
        }
        if let Ok(mut port) = test.open(&Options::default()) {
            opened += 1;
            test.change(Physical::Random(Random::new(seed, 1)));
            let mut batch = Batch::new();
            let (mut rx, mut tx) = (port.rx(0).ok(), port.tx(0).ok());
            for round in 0..10 {
                let _ = (port.link(), port.statistics(), port.register_counters(), port.mac());
                let _ = (port.set_promiscuous(round % 2 == 0), port.set_vlans(Some(&[1, round])));
                let _ = (port.set_mac(GIVEN), port.set_addresses(&[MacAddress([2, 0, 0, 0, 1, round as u8])]));
                rx.iter_mut().for_each(|rx| assert_eq!(rx.recv(&mut batch), 0));
                batch.alloc(&test.pool, 32, 60);
                tx.iter_mut().for_each(|tx| {
                    tx.send(&mut batch);
                });
                batch.clear();
            }
        }
        // A reset that cannot be confirmed leaks memory instead of freeing it.
        assert!(test.pool.available() <= BUFFERS);
        requests += test.state.lock().unwrap().requests;
    }
    assert!(opened >= 60 && requests > 1000, "{opened} opened, {requests} requests");
}
