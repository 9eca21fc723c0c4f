//! Requirements of real cards where an earlier model was lenient: packet buffers, links, lasers, pending requests,
//! the end of a queue, and the driver flag for firmware. The driver once got each of these wrong.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate::memory::{Addresses, DeviceAddress, DmaSpace, Mapping, PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::igb::Igb;
use linerate::nic::ixgbe::{Config, Ixgbe};
use linerate::pci::{Bar, Bus, Doorbell, Interrupt};
use linerate::port::{Device, Link, MacAddress, Pause};
use linerate::sim82599::{Cable, Card, CardBar, CardKind, Frame, from_fn};
use linerate::spec::x82576 as igb;
use linerate::spec::x82599::*;
use linerate::traffic::Generator;
use linerate::{Batch, Error, Options};

const KINDS: [CardKind; 4] = [CardKind::X82599Kx4, CardKind::X82599Sfp, CardKind::X540, CardKind::X550];

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 4096, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn config(card: &Card, pool: &Arc<Pool>) -> Config {
    Config::new(card.name(), pool.clone()).with_device(card.kind().device())
}

fn open(card: &Arc<Card>, pool: &Arc<Pool>) -> Ixgbe<CardBar> {
    linerate::drive_model(card, None, config(card, pool)).unwrap()
}

/// Returns a card's registers in addition to its driver's. No test writes an address through them.
fn registers(card: &Arc<Card>) -> CardBar {
    // SAFETY: only the card's one driver writes registers that contain addresses.
    unsafe { card.bar() }
}

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// Returns a card, the queue of frames it has sent, and the queue of frames it will receive.
fn wired(kind: CardKind) -> (Arc<Card>, Frames, Frames) {
    let (sent, coming) = (Frames::default(), Frames::default());
    let (out, into) = (sent.clone(), coming.clone());
    let wire = from_fn(
        move |frame: &Frame| out.lock().unwrap().push_back(frame.bytes.clone()),
        move |frame| into.lock().unwrap().pop_front().map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some(),
    );
    (Card::of_kind(kind, 0, "card", wire), sent, coming)
}

/// Sends a frame and receives one.
#[track_caller]
fn works(device: &mut impl Device, card: &Card, sent: &Frames, coming: &Frames) {
    let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    let mut batch = Batch::new();
    assert!(batch.push(device.pool(), &[7; 60]));
    assert_eq!(tx.send(&mut batch), 1);
    coming.lock().unwrap().push_back(vec![8; 60]);
    card.step(8);
    assert_eq!(sent.lock().unwrap().pop_front(), Some(vec![7; 60]));
    assert_eq!(rx.recv(&mut batch), 1);
}

/// 8.2.3.8.9: the receive packet buffer has 512 KiB in an 82599, and 384 KiB in an X540 or X550. The flow director has 64
/// KiB of it.
#[test]
fn the_packet_buffer_has_the_cards_size() {
    for (kind, kib) in KINDS.into_iter().zip([448, 448, 320, 320]) {
        let (card, sent, coming) = wired(kind);
        let mut device = open(&card, &pool());
        works(&mut device, &card, &sent, &coming);
        assert_eq!(card.register(RXPBSIZE::at(0)) >> RXPBSIZE::KIB_SHIFT, kib, "{kind}");
        assert_eq!(card.breaches(), [], "{kind}");
    }
}

/// 3.7.4 and 10.5.4: the EEPROM holds the link mode, except with an SFP+ cage. Firmware writes the mode too.
#[test]
fn each_kind_gets_its_link() {
    for kind in KINDS {
        let (card, ..) = wired(kind);
        let device = open(&card, &pool());
        assert_eq!(device.link().unwrap(), Link::Up { mbits: 10_000 }, "{kind}");
        assert_eq!(card.breaches(), [], "{kind}");
        assert_eq!(card.register(SW_FW_SYNC::OFFSET), 0, "{kind}: semaphores are released");
    }
}

/// A process that was killed while it held a semaphore does not keep it forever (10.5.4).
#[test]
fn semaphores_of_killed_processes_are_taken_over() {
    let (card, ..) = wired(CardKind::X82599Sfp);
    let bar = registers(&card);
    bar.read(SWSM::OFFSET);
    bar.write(SW_FW_SYNC::OFFSET, SW_FW_SYNC::SW_MAC_CSR_SM | SW_FW_SYNC::SW_PHY_SM0);
    assert_eq!(open(&card, &pool()).link().unwrap(), Link::Up { mbits: 10_000 });
    assert_eq!((card.register(SW_FW_SYNC::OFFSET), card.register(SWSM::OFFSET)), (0, 0));
}

/// 3.7.4 and 4.6.4: Linux turns the laser off when its interface goes down, and no reset turns it on again.
#[test]
fn a_laser_that_the_last_driver_switched_off_is_on_again() {
    let (card, ..) = wired(CardKind::X82599Sfp);
    registers(&card).write(ESDP::OFFSET, ESDP::SDP3 | ESDP::SDP3_IODIR);
    assert_eq!(open(&card, &pool()).link().unwrap(), Link::Up { mbits: 10_000 });
}

/// The PHY of an X540 or X550 keeps its power state across MAC resets.
#[test]
fn a_phy_that_the_last_driver_switched_off_is_on_again() {
    for kind in [CardKind::X540, CardKind::X550] {
        let (card, ..) = wired(kind);
        let bar = registers(&card);
        bar.write(MSRWD::OFFSET, 1 << 11);
        bar.write(MSCA::OFFSET, 30 << MSCA::DEVICE_SHIFT | 1 << MSCA::OP_SHIFT | MSCA::MDICMD);
        assert_eq!(bar.read(LINKS::OFFSET) & LINKS::UP, 0, "{kind}: without power there is no link");
        assert_eq!(open(&card, &pool()).link().unwrap(), Link::Up { mbits: 10_000 }, "{kind}");
        assert_eq!(card.breaches(), []);
    }
}

/// SFF-8472: a module reports its speed, and `AUTOC.LMS` must match it (4.6.4).
#[test]
fn a_module_for_1_gbits_gets_its_link() {
    let (card, ..) = wired(CardKind::X82599Sfp);
    card.set_module(true);
    assert_eq!(open(&card, &pool()).link().unwrap(), Link::Up { mbits: 1_000 });
    card.set_module(false);
    assert_eq!(open(&card, &pool()).link().unwrap(), Link::Up { mbits: 10_000 });
    assert_eq!(card.breaches(), []);
}

/// 5.2.4.3.2: pending requests complete only after receiving has stopped.
#[test]
fn receiving_stops_before_the_wait_for_requests() {
    let (card, sent, coming) = wired(CardKind::X82599Sfp);
    let pool = pool();
    let mut device = open(&card, &pool);
    works(&mut device, &card, &sent, &coming);
    device.reset().unwrap();
    works(&mut device, &card, &sent, &coming);
}

/// 5.2.4.3.2: a request that never completes is cleared by two resets.
#[test]
fn a_card_with_a_pending_request_is_reset_twice() {
    let (card, sent, coming) = wired(CardKind::X82599Sfp);
    card.set_hung();
    let mut device = open(&card, &pool());
    works(&mut device, &card, &sent, &coming);
    card.set_hung();
    device.reset().unwrap();
    works(&mut device, &card, &sent, &coming);
    assert_eq!(card.breaches(), []);
}

/// 4.6.8.2: packets given to the card are sent before their queue is disabled.
#[test]
fn a_transmit_queue_is_empty_when_it_ends() {
    let (card, sent, _) = wired(CardKind::X82599Sfp);
    let pool = pool();
    let mut device = open(&card, &pool);
    let mut tx = device.tx(0).unwrap();
    let mut batch = Batch::new();
    (0..10).for_each(|n| assert!(batch.push(&pool, &[n; 60])));
    assert_eq!(tx.send(&mut batch), 10);
    tx.stop().unwrap();
    assert_eq!(sent.lock().unwrap().drain(..).map(|frame| frame[0]).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    drop(batch);
    assert_eq!(pool.available(), 4096);
    assert_eq!(card.breaches(), []);
}

/// 4.6.8.2: the card may send packets fetched from a queue after the queue was disabled, but never with other packets'
/// bytes.
#[test]
fn frames_of_a_queue_that_ended_without_a_link_never_carry_other_bytes() {
    let (card, sent, _) = wired(CardKind::X82599Sfp);
    let pool = pool();
    let mut device = open(&card, &pool);
    let mut batch = Batch::with_capacity(4096);
    let mut tx = device.tx(0).unwrap();
    card.set_cable(false);
    (0..10).for_each(|_| assert!(batch.push(&pool, &[1; 60])));
    assert_eq!(tx.send(&mut batch), 10);
    let said = tx.stop().unwrap_err().with_hint();
    assert!(said.contains("TDH[0]") && said.contains(TDH::SECTION), "{said}");
    // Fill all free buffers with other bytes.
    while batch.push(&pool, &[2; 60]) {}
    card.set_cable(true);
    card.step(100);
    assert!(sent.lock().unwrap().iter().all(|frame| *frame == [1; 60]), "another packet's bytes were sent");
    assert_eq!(card.breaches(), []);
    // After a reset the buffers are free again.
    drop(batch);
    assert_eq!(pool.available(), 4096 - 10);
    device.reset().unwrap();
    assert_eq!(pool.available(), 4096);
}

/// A recorded step of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Write(u32, u32),
    /// The card is allowed to access memory.
    Master,
}

/// A card's registers and bus; every write is recorded.
#[derive(Clone)]
struct Traced {
    card: Arc<Card>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Bar for Traced {
    type Doorbell = <CardBar as Bar>::Doorbell;

    fn read(&self, offset: u32) -> u32 {
        registers(&self.card).read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.steps.lock().unwrap().push(Step::Write(offset, value));
        registers(&self.card).write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> Self::Doorbell {
        registers(&self.card).doorbell(offset)
    }

    fn wait(&self, time: Duration) {
        registers(&self.card).wait(time);
    }
}

// SAFETY: it passes mappings to the card's bus and does not access memory.
unsafe impl DmaSpace for Traced {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses, Error> {
        self.card.bus().map(memory)
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        // SAFETY: as the caller promises.
        unsafe { self.card.bus().unmap(address) };
    }
}

impl Bus for Traced {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>, Error> {
        self.card.bus().interrupts(count)
    }

    unsafe fn allow_dma(&self) -> Result<(), Error> {
        self.steps.lock().unwrap().push(Step::Master);
        // SAFETY: as the caller promises.
        unsafe { self.card.bus().allow_dma() }
    }
}

/// A card that was left running still has the last program's addresses, so it must be reset before it may access memory
/// (4.6.3).
#[test]
fn a_card_is_reset_before_it_may_reach_memory() {
    let (card, ..) = wired(CardKind::X82599Sfp);
    let traced = Traced { card: card.clone(), steps: Arc::default() };
    let _device = Ixgbe::open(traced.clone(), Arc::new(traced.clone()), config(&card, &pool())).unwrap();
    let steps = traced.steps.lock().unwrap().clone();
    let at = |wanted: &dyn Fn(&Step) -> bool| steps.iter().position(wanted);
    let reset = at(&|step| matches!(step, Step::Write(CTRL::OFFSET, value) if value & CTRL::RST != 0)).unwrap();
    let master = at(&|step| *step == Step::Master).expect("the card is allowed DMA");
    assert!(reset < master, "{steps:?}");
}

/// Returns the names of the written registers in order. Repeated registers, and repeated pairs with an RTT register,
/// are listed once.
fn written(traced: &Traced) -> String {
    let name = |offset: u32| {
        let mut registers = MAP.iter().flat_map(|definition| definition.registers());
        registers.find(|register| register.offset == offset).map_or("?", |register| register.definition.name)
    };
    let mut names: Vec<&str> = Vec::new();
    for step in traced.steps.lock().unwrap().drain(..) {
        let name = match step {
            Step::Write(offset, _) => name(offset),
            Step::Master => "bus-master",
        };
        let repeats = match names[..] {
            [.., last] if last == name => true,
            [.., first, second] if first == name && second.starts_with("RTT") => true,
            _ => false,
        };
        if !repeats {
            names.push(name);
        }
    }
    names.dedup();
    names.join(" ")
}

/// Checks a port's complete life on each kind of card against the datasheet's sequences (4.6.3, 4.6.4, 4.6.7, 4.6.8 and
/// their subsections).
#[test]
fn registers_are_written_in_the_datasheets_order() {
    // Disable interrupts, receiving and requests, then reset (4.6.3); then DMA is allowed.
    const RESET: &str = "EIMC RXCTRL CTRL EIMC bus-master";
    // With the semaphores shared with firmware (10.5.4): the link mode, the module's I2C bus, and the PHY.
    const BACKPLANE: &str = "SWSM SW_FW_SYNC SWSM AUTOC SWSM SW_FW_SYNC SWSM";
    const CAGE: &str = "SWSM SW_FW_SYNC SWSM I2CCTL SWSM SW_FW_SYNC SWSM EERD CORECTL EERD ESDP";
    const COPPER: &str = "SW_FW_SYNC SWSM MSCA SW_FW_SYNC SWSM";
    const RECEIVE: &str =
        "RXCTRL RXPBSIZE HLREG0 RDRXCTL RFCTL MAXFRS HLREG0 MTA PFUTA VFTA FCTRL MRQC CTRL_EXT DCA_RXCTRL";
    // MTQC and the rates are written while the arbiter is disabled. Transmission is enabled last, then the
    // driver-loaded flag is set.
    const TRANSMIT: &str =
        "TXPBSIZE TXPBTHRESH DTXMXSZRQ RTTDCS MTQC RTTDCS RTTDQSEL RTTBCNRC DCA_TXCTRL DTXTCPFLGL DMATXCTL CTRL_EXT";
    for kind in KINDS {
        let (link, table) = match kind {
            CardKind::X82599Kx4 => (BACKPLANE.to_string(), "RETA"),
            CardKind::X82599Sfp => (format!("{CAGE} {BACKPLANE}"), "RETA"),
            CardKind::X540 => (COPPER.to_string(), "RETA"),
            CardKind::X550 => (COPPER.to_string(), "RETA ERETA"),
        };
        // An X550's clock only needs to be enabled.
        let clock = if kind == CardKind::X550 { "TSAUXC" } else { "TIMINCA" };
        let (card, ..) = wired(kind);
        let traced = Traced { card: card.clone(), steps: Arc::default() };
        let mut device = Ixgbe::open(traced.clone(), Arc::new(traced.clone()), config(&card, &pool())).unwrap();
        let rest = format!("RSSRK {table} FCTRL {clock} TSYNCTXCTL");
        assert_eq!(written(&traced), format!("{RESET} {link} {RECEIVE} {TRANSMIT} {rest}"), "{kind}");
        let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        let receive = "RDBAL RDBAH RDLEN SRRCTL RDH RDT RXDCTL RDT SECRXCTRL RXCTRL SECRXCTRL";
        assert_eq!(written(&traced), format!("{receive} TDBAL TDBAH TDLEN TDH TDT TXDCTL"), "{kind}");
        drop((rx, tx));
        assert_eq!(written(&traced), "RXCTRL RXDCTL TXDCTL", "{kind}");
        drop(device);
        assert_eq!(written(&traced), "RXCTRL CTRL CTRL_EXT", "{kind}");
        assert_eq!(card.breaches(), []);
    }
}

/// Coalescing is set up after interrupts, whose throttle bounds its time, and for a queue before it is enabled (4.6.7.2).
#[test]
fn coalescing_is_set_up_before_queues_start() {
    const RECEIVE: &str = "RDBAL RDBAH RDLEN SRRCTL RSCCTL RDH RDT RXDCTL RDT";
    let millisecond = Duration::from_millis(1);
    for (interrupts, set_up, microseconds) in [
        (None, "CTRL_EXT RSCDBU PSRTYPE EITR IVAR RSSRK", 50),
        (Some(Duration::ZERO), "CTRL_EXT GPIE EIAC EIAM EITR IVAR RSCDBU PSRTYPE EITR IVAR RSSRK", 10),
        (Some(millisecond), "CTRL_EXT GPIE EIAC EIAM EITR IVAR RSCDBU PSRTYPE RSSRK", 1000),
    ] {
        let (card, ..) = wired(CardKind::X540);
        let traced = Traced { card: card.clone(), steps: Arc::default() };
        let mut config = config(&card, &pool());
        (config.options.offloads, config.options.interrupts) = (true, interrupts);
        let mut device = Ixgbe::open(traced.clone(), Arc::new(traced.clone()), config).unwrap();
        let steps = written(&traced);
        assert!(steps.contains(set_up), "{interrupts:?}: {steps}");
        let interval = registers(&card).read(EITR::at(0)) >> EITR::INTERVAL_SHIFT & EITR::INTERVAL_MASK;
        assert_eq!(interval * 2, microseconds);
        let rx = device.rx(0).unwrap();
        let steps = written(&traced);
        assert!(steps.starts_with(RECEIVE), "{steps}");
        drop((rx, device));
        assert_eq!(card.breaches(), []);
    }
}

/// 8.2.3.1.3: the driver reports to the firmware when it is loaded and unloaded.
#[test]
fn firmware_is_told_that_the_driver_is_unloaded() {
    let (card, ..) = wired(CardKind::X82599Sfp);
    let device = open(&card, &pool());
    assert_ne!(card.register(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD, 0);
    drop(device);
    assert_eq!(card.register(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD, 0);
}

/// 4.6.7.1.2: no flow may be directed to a stopped queue.
#[test]
fn flows_of_a_stopped_queue_come_to_the_others() {
    let (card, _, coming) = wired(CardKind::X82599Sfp);
    let config = Options { rx_queues: 2, ..Options::default() }.of_port(card.name(), pool()).unwrap();
    let config = config.with_device(card.kind().device());
    let mut device = linerate::drive_model(&card, None, config).unwrap();
    let mut queues = [0, 1].map(|queue| Some(device.rx(queue).unwrap()));
    let arrive = || {
        let mut generator = Generator::new(64, 32);
        for _ in 0..32 {
            let mut bytes = vec![0; generator.frame_len()];
            generator.fill(&mut bytes);
            coming.lock().unwrap().push_back(bytes);
        }
        card.step(64);
    };
    let mut batch = Batch::with_capacity(64);
    for stopped in [1, 0] {
        arrive();
        let both = queues.each_mut().map(|rx| rx.as_mut().unwrap().recv(&mut batch));
        assert!(both.iter().all(|&count| count > 0) && both.iter().sum::<usize>() == 32, "{both:?}");
        batch.clear();
        queues[stopped].take().unwrap().stop().unwrap();
        arrive();
        assert_eq!(queues[1 - stopped].as_mut().unwrap().recv(&mut batch), 32, "without queue {stopped}");
        batch.clear();
        queues[stopped] = Some(device.rx(stopped as u16).unwrap());
    }
    // When all queues are stopped, the card receives nothing, and frames wait for a queue.
    drop(queues);
    assert_eq!(card.register(RXCTRL::OFFSET) & RXCTRL::RXEN, 0);
    arrive();
    let mut queues = [0, 1].map(|queue| device.rx(queue).unwrap());
    card.step(64);
    assert_eq!(queues.each_mut().map(|rx| rx.recv(&mut batch)).iter().sum::<usize>(), 32);
    assert_eq!(device.statistics().unwrap().drops, Default::default());
    assert_eq!(card.breaches(), []);
}

/// An 82576's registers; the registers that a driver polls respond as expected.
#[derive(Clone, Default)]
struct Gigabit {
    registers: Arc<Mutex<HashMap<u32, u32>>>,
    /// Writes to the PHY made without holding its semaphore.
    unguarded: Arc<Mutex<Vec<u32>>>,
}

impl Gigabit {
    fn get(&self, offset: u32) -> u32 {
        self.registers.lock().unwrap().get(&offset).copied().unwrap_or(0)
    }
}

struct NoDoorbell;

impl Doorbell for NoDoorbell {
    fn ring(&self, _: u32) {}
}

impl Bar for Gigabit {
    type Doorbell = NoDoorbell;

    fn read(&self, offset: u32) -> u32 {
        match offset {
            igb::CTRL::OFFSET => self.get(offset) & !igb::CTRL::RST,
            igb::STATUS::OFFSET => 0,
            _ if offset == igb::RAH::at(0) => igb::RAH::AV,
            igb::SWSM::OFFSET => {
                let value = self.get(offset);
                self.registers.lock().unwrap().insert(offset, value | 1);
                value
            }
            _ => self.get(offset),
        }
    }

    fn write(&self, offset: u32, value: u32) {
        let value = match offset {
            igb::MDIC::OFFSET => {
                if self.get(igb::SW_FW_SYNC::OFFSET) & igb::SW_FW_SYNC::SW_PHY_SM0 == 0 {
                    self.unguarded.lock().unwrap().push(value);
                }
                value | igb::MDIC::R
            }
            _ => value,
        };
        self.registers.lock().unwrap().insert(offset, value);
    }

    fn doorbell(&self, _: u32) -> NoDoorbell {
        NoDoorbell
    }

    fn wait(&self, _: Duration) {}
}

/// 82576: firmware also uses the PHY, so its semaphore is needed. A fiber card has no PHY and negotiates in its MAC
/// (8.17.2).
#[test]
fn an_82576_negotiates_over_copper_and_over_fiber() {
    for fiber in [false, true] {
        let bar = Gigabit::default();
        let mode = if fiber { igb::CTRL_EXT::LINK_MODE_SERDES | igb::CTRL_EXT::SDP7_DATA } else { 0 };
        bar.write(igb::CTRL_EXT::OFFSET, mode);
        let bus = Card::new("a bus", Box::new(Cable::unplugged())).bus();
        let device = Igb::open(bar.clone(), bus, Config::new("igb", pool())).unwrap();
        assert!(bar.unguarded.lock().unwrap().is_empty(), "the PHY is shared");
        let negotiates = igb::PCS_LCTL::AN_ENABLE | igb::PCS_LCTL::AN_RESTART;
        assert_eq!(bar.get(igb::PCS_LCTL::OFFSET) & negotiates, if fiber { negotiates } else { 0 });
        assert_eq!(bar.get(igb::PCS_CFG::OFFSET) & igb::PCS_CFG::PCS_EN != 0, fiber);
        assert_eq!(bar.get(igb::CTRL_EXT::OFFSET) & igb::CTRL_EXT::SDP7_DATA, 0, "its power is on");
        assert_eq!(bar.get(igb::MDIC::OFFSET) != 0, !fiber);
        assert_eq!((bar.get(igb::SW_FW_SYNC::OFFSET), bar.get(igb::SWSM::OFFSET)), (0, 0));
        assert_ne!(bar.get(igb::CTRL_EXT::OFFSET) & igb::CTRL_EXT::DRV_LOAD, 0);
        drop(device);
        assert_eq!(bar.get(igb::CTRL_EXT::OFFSET) & igb::CTRL_EXT::DRV_LOAD, 0);
    }
}

/// 8.10.17 to 8.10.20, 8.5: the 82576's tables of filters, and its thresholds for pause frames.
#[test]
fn an_82576_has_filters_and_pauses() {
    let bar = Gigabit::default();
    let bus = Card::new("a bus", Box::new(Cable::unplugged())).bus();
    let mut device = Igb::open(bar.clone(), bus, Config::new("igb", pool())).unwrap();
    let addresses: Vec<MacAddress> = (1..=24).map(|n| MacAddress([2, 0, 0, 0, 7, n])).collect();
    let error = device.set_addresses(&addresses).unwrap_err();
    assert!(error.why().contains("23 unicast addresses") && error.why().contains("24 are given"), "{error}");
    device.set_addresses(&[&addresses[..23], &[MacAddress([1, 0, 0x5E, 0, 0xAB, 0xCD])]].concat()).unwrap();
    // The upper entries are at other offsets.
    for (entry, offset) in [(1, 0x5408), (15, 0x5478), (16, 0x54E0), (23, 0x5518)] {
        assert_eq!((bar.get(offset), bar.get(offset + 4)), (2, igb::RAH::AV | entry << 8 | 7), "{entry}");
    }
    assert_eq!(bar.get(igb::MTA::at(0xCDA / 32)), 1 << (0xCDA % 32));
    device.set_vlans(Some(&[77])).unwrap();
    assert_eq!((bar.get(igb::VFTA::at(2)), bar.get(igb::RCTL::OFFSET) & igb::RCTL::VFE), (1 << 13, igb::RCTL::VFE));
    device.set_promiscuous(false).unwrap();
    device.set_all_multicast(true).unwrap();
    assert_eq!(bar.get(igb::RCTL::OFFSET) & (igb::RCTL::UPE | igb::RCTL::MPE), igb::RCTL::MPE);

    let pauses = || bar.get(igb::CTRL::OFFSET) & (igb::CTRL::RFCE | igb::CTRL::TFCE);
    assert_eq!(pauses(), 0);
    device.set_pause(Pause { receive: true, send: true }).unwrap();
    assert_eq!(pauses(), igb::CTRL::RFCE | igb::CTRL::TFCE);
    let (high, low) = (bar.get(igb::FCRTH0::OFFSET), bar.get(igb::FCRTL0::OFFSET) & igb::FCRTL0::MASK);
    assert!(low > 1518 && high > low && high + 2 * 1518 < 64 * 1024, "{low} {high}");

    device.set_addresses(&[]).unwrap();
    device.set_vlans(None).unwrap();
    device.set_pause(Pause::default()).unwrap();
    assert_eq!((bar.get(0x5518 + 4), bar.get(igb::MTA::at(0xCDA / 32)), bar.get(igb::VFTA::at(2))), (0, 0, 0));
    assert_eq!((bar.get(igb::RCTL::OFFSET) & igb::RCTL::VFE, pauses()), (0, 0));
}

/// Turning a laser off takes the link of the card at the other end down (G4).
#[test]
fn a_laser_that_is_off_leaves_the_other_end_without_link() {
    let (end, other) = Cable::pair();
    let (card, peer) = (Card::new("end", Box::new(end)), Card::new("other", Box::new(other)));
    let pool = pool();
    let device = open(&card, &pool);
    assert_eq!(device.link().unwrap(), Link::Up { mbits: 10_000 });
    for on in [false, true, false] {
        registers(&peer).write(ESDP::OFFSET, if on { 0 } else { ESDP::SDP3 });
        assert_eq!(device.link().unwrap(), if on { Link::Up { mbits: 10_000 } } else { Link::Down });
    }
    registers(&peer).write(ESDP::OFFSET, 0);
    peer.set_cable(false);
    assert_eq!(device.link().unwrap(), Link::Down);
}

/// The PHY advertises the speeds that its driver allows, and both ends agree on one (IEEE 802.3, clauses 28 and 45;
/// G6).
#[test]
fn a_phy_negotiates_an_advertised_speed() {
    for kind in [CardKind::X540, CardKind::X550] {
        let (end, other) = Cable::pair();
        let card = Card::of_kind(kind, 0, "end", Box::new(end));
        let peer = Card::of_kind(kind, 0, "other", Box::new(other));
        let device = open(&card, &pool());
        let bar = registers(&peer);
        let write = |register: u32, value: u32| {
            bar.write(MSRWD::OFFSET, value);
            bar.write(MSCA::OFFSET, register | 7 << MSCA::DEVICE_SHIFT | 1 << MSCA::OP_SHIFT | MSCA::MDICMD);
        };
        // Advertise 10 Gbit/s, 1 Gbit/s, 100 Mbit/s; then negotiate.
        for (bits, mbits) in [([0, 1 << 15, 1 << 8], 1_000), ([0, 0, 1 << 8], 100), ([1 << 12, 0, 0], 10_000)] {
            [0x20, 0xC400, 0x10].into_iter().zip(bits).for_each(|(register, value)| write(register, value));
            write(0, 1 << 12 | 1 << 9);
            assert_eq!(device.link().unwrap(), Link::Up { mbits }, "{kind}");
        }
        write(0x20, 0);
        write(0, 1 << 12 | 1 << 9);
        assert_eq!(device.link().unwrap(), Link::Down, "{kind}: nothing is offered");
    }
}

/// Without flow control, a card that has no descriptors drops frames, and its partner keeps sending (3.7.7).
#[test]
fn a_partner_that_does_not_receive_stalls_no_sender() {
    const COUNT: u64 = 20_000;
    for receives in [false, true] {
        let (end, other) = Cable::pair();
        let (card, peer) = (Card::new("end", Box::new(end)), Card::new("other", Box::new(other)));
        let pool = pool();
        let (mut device, mut far) = (open(&card, &pool), open(&peer, &pool));
        // Either a queue that is not polled, or no queue.
        let _rx = receives.then(|| far.rx(0).unwrap());
        let mut tx = device.tx(0).unwrap();
        let (mut batch, mut sent) = (Batch::new(), 0);
        for _ in 0..COUNT {
            while batch.len() < 32 {
                assert!(batch.push(&pool, &[3; 60]));
            }
            sent += tx.send(&mut batch) as u64;
            card.step(64);
            peer.step(64);
            if sent >= COUNT {
                break;
            }
        }
        assert!(sent >= COUNT, "{sent} of {COUNT} were sent (a queue that is not polled: {receives})");
        assert_eq!(far.statistics().unwrap().drops.no_descriptor > 0, receives);
    }
}
