//! The driver of the 82574 on registers and rings that the test writes: what it programs, and a hostile card.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate::memory::{
    Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping, PageSize, Pages, Pool, Region, RegionOptions,
};
use linerate::metadata::Checksum;
use linerate::nic::e1000e::E1000e;
use linerate::pci::{Bar, Bus, Doorbell, Interrupt};
use linerate::port::{Device, Feature, Link, MacAddress, Pause, Rss, Support};
use linerate::spec::descriptor::{extended, receive, transmit};
use linerate::spec::x82574::*;
use linerate::{Batch, ErrorKind, Options, Result};
use proptest::prelude::*;

const RING: usize = 64;
const BUFFERS: usize = 1024;

/// Registers that store what is written; the registers that the driver polls respond as expected.
#[derive(Clone, Default)]
struct Registers {
    values: Arc<Mutex<HashMap<u32, u32>>>,
    /// Reads return these values, in turn, from the first to the last.
    hostile: Arc<Mutex<Vec<u32>>>,
    /// All reads return ones.
    is_gone: Arc<Mutex<bool>>,
    /// Writes to the PHY by a driver that does not own it.
    unguarded: Arc<Mutex<Vec<u32>>>,
}

impl Registers {
    fn get(&self, offset: u32) -> u32 {
        self.values.lock().unwrap().get(&offset).copied().unwrap_or(0)
    }
}

struct Stored(Registers, u32);

impl Doorbell for Stored {
    fn ring(&self, value: u32) {
        self.0.write(self.1, value);
    }
}

impl Bar for Registers {
    type Doorbell = Stored;

    fn read(&self, offset: u32) -> u32 {
        let mut hostile = self.hostile.lock().unwrap();
        if !hostile.is_empty() {
            hostile.rotate_left(1);
            return hostile[0];
        }
        match offset {
            _ if *self.is_gone.lock().unwrap() => u32::MAX,
            CTRL::OFFSET => self.get(offset) & !CTRL::RST,
            STATUS::OFFSET => STATUS::LU | STATUS::SPEED_100,
            EECD::OFFSET => EECD::AUTO_RD,
            _ if offset == RAH::at(0) => RAH::AV,
            // All packets have been sent.
            _ if offset == TDH::at(0) || offset == TDH::at(1) => self.get(offset - TDH::OFFSET + TDT::OFFSET),
            _ => self.get(offset),
        }
    }

    fn write(&self, offset: u32, value: u32) {
        if offset == MDIC::OFFSET && self.get(EXTCNF_CTRL::OFFSET) & EXTCNF_CTRL::MDIO_SW_OWNERSHIP == 0 {
            self.unguarded.lock().unwrap().push(value);
        }
        let value = if offset == MDIC::OFFSET { value | MDIC::R } else { value };
        self.values.lock().unwrap().insert(offset, value);
    }

    fn doorbell(&self, offset: u32) -> Stored {
        Stored(self.clone(), offset)
    }

    fn wait(&self, _: Duration) {}
}

/// Remembers mappings: the rings, then the packets.
#[derive(Default)]
struct Maps(Mutex<Vec<Arc<Mapping>>>);

// SAFETY: it only assigns addresses, and does not access memory.
unsafe impl DmaSpace for Maps {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.0.lock().unwrap();
        maps.push(memory.clone());
        Ok(Addresses::Contiguous(Contiguous((maps.len() as u64) << 40)))
    }

    unsafe fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for Maps {
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    fn interrupts(&self, _: u16) -> Result<Vec<Interrupt>> {
        unreachable!("it is polled")
    }
}

struct Fixture {
    registers: Registers,
    maps: Arc<Maps>,
    pool: Arc<Pool>,
}

impl Fixture {
    fn new() -> Fixture {
        let pages = Pages::Only(PageSize::Ordinary);
        let region = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None };
        Fixture {
            registers: Registers::default(),
            maps: Arc::default(),
            pool: Pool::new(Region::new(&region).unwrap()),
        }
    }

    fn open(&self, options: Options) -> Result<E1000e<Registers>> {
        let config = Options { ring: Some(RING), ..options }.of_port("82574", self.pool.clone())?;
        E1000e::open(self.registers.clone(), self.maps.clone(), config.with_device(0x10D3))
    }

    /// Returns the words of a ring: receive queues', then transmit queues'.
    fn ring(&self, number: usize) -> Vec<AtomicWord> {
        let rings = self.maps.0.lock().unwrap()[0].clone();
        (0..RING * 2).map(|word| AtomicWord(rings.clone(), (number * RING * 2 + word) * 8)).collect()
    }

    /// Writes back a descriptor of receive queue 0, as the card does.
    fn receive(&self, at: usize, first: u64, second: u64) {
        let ring = self.ring(0);
        ring[2 * at].word().store(first, Relaxed);
        ring[2 * at + 1].word().store(second, Relaxed);
    }
}

/// A word of shared memory.
struct AtomicWord(Arc<Mapping>, usize);

impl AtomicWord {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the memory holds rings, so there are no slices of it.
        unsafe { &self.0.words(self.1, 1)[0] }
    }
}

const WHOLE: u64 = receive::DD | receive::EOP;

fn of_length(length: u64) -> u64 {
    length << receive::LENGTH_SHIFT
}

#[test]
fn the_card_is_programmed_as_configured() {
    let fixture = Fixture::new();
    let registers = &fixture.registers;
    let mut device = fixture.open(Options::default().with_queues(2)).unwrap();
    assert!(registers.unguarded.lock().unwrap().is_empty(), "the PHY is shared with firmware");
    assert_eq!(registers.get(EXTCNF_CTRL::OFFSET), 0);
    assert_eq!(device.link().unwrap(), Link::Up { mbits: 100 });
    assert_ne!(registers.get(RFCTL::OFFSET) & RFCTL::EXSTEN, 0);
    // Buffers of 2 KiB are long enough for all frames without LPE.
    assert_eq!(
        registers.get(RCTL::OFFSET) & (0xF << RCTL::FLXBUF_SHIFT | RCTL::LPE | RCTL::EN),
        2 << RCTL::FLXBUF_SHIFT
    );
    assert_ne!(registers.get(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD, 0);
    device.set_rss(&Rss { table: vec![1, 0, 0], ..Rss::evenly(2) }).unwrap();
    assert_eq!((registers.get(RETA::at(0)), registers.get(RETA::at(1))), (0x8000_0080, 0x0080_0000));
    assert_eq!(registers.get(MRQC::OFFSET) & 0b11, MRQC::RSS);

    let addresses: Vec<MacAddress> = (1..=15).map(|n| MacAddress([2, 0, 0, 0, 7, n])).collect();
    assert!(device.set_addresses(&addresses).unwrap_err().why().contains("14 unicast"));
    device.set_addresses(&[&addresses[..14], &[MacAddress([1, 0, 0x5E, 0, 0xAB, 0xCD])]].concat()).unwrap();
    assert_eq!((registers.get(RAL::at(14)), registers.get(RAH::at(14))), (2, RAH::AV | 14 << 8 | 7));
    assert_eq!(registers.get(MTA::at(0xCDA / 32)), 1 << (0xCDA % 32));
    device.set_vlans(Some(&[77])).unwrap();
    assert_eq!((registers.get(VFTA::at(2)), registers.get(RCTL::OFFSET) & RCTL::VFE), (1 << 13, RCTL::VFE));
    device.set_pause(Pause { receive: true, send: true }).unwrap();
    let (high, low) = (registers.get(FCRTH::OFFSET), registers.get(FCRTL::OFFSET) & FCRTL::MASK);
    assert!(low > 1518 && high > low && high + 2 * 1518 < 20 * 1024, "{low} {high}");
    let capabilities = device.info().capabilities;
    assert_eq!(capabilities.of(Feature::Clock), Support::None);
    assert_eq!(capabilities.of(Feature::SendTcpSegments), Support::Software);
    assert_eq!(device.clock().map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(device);
    assert_eq!(registers.get(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD, 0);
}

/// An 82583V has one queue.
#[test]
fn impossible_settings_are_refused() {
    let fixture = Fixture::new();
    let open = |device, options: Options| {
        let config = options.of_port("82583V", fixture.pool.clone()).unwrap().with_device(device);
        E1000e::open(fixture.registers.clone(), fixture.maps.clone(), config).map(drop)
    };
    assert!(open(0x150C, Options::default()).is_ok() && open(0x150C, Options::default().with_queues(2)).is_err());
    assert!(open(0x10D3, Options::default().with_queues(2)).is_ok());
    assert!(open(0x10D3, Options::default().with_queues(3)).is_err());
    assert!(open(0x10D3, Options { max_frame: 9231, ..Options::default() }).is_err());
    // The card could write 1522 bytes, and its buffers are multiples of 1 KiB.
    let pages = Pages::Only(PageSize::Ordinary);
    let small = RegionOptions { buffers: BUFFERS, buffer_size: 1024, pages, numa_node: None };
    let pool = Pool::new(Region::new(&small).unwrap());
    let config = Options { max_frame: 500, ..Options::default() }.of_port("82574", pool).unwrap();
    assert!(E1000e::open(fixture.registers.clone(), fixture.maps.clone(), config).is_err());
}

/// The card cannot drop packets of a stopped queue, so it receives only while queue 0 is started.
#[test]
fn the_card_receives_while_queue_0_is_started() {
    let fixture = Fixture::new();
    let registers = &fixture.registers;
    let mut device = fixture.open(Options::default().with_queues(2)).unwrap();
    let receives = || registers.get(RCTL::OFFSET) & RCTL::EN != 0;
    let mut queues = [0, 1].map(|queue| Some(device.rx(queue).unwrap()));
    assert!(receives());
    queues[1].take().unwrap().stop().unwrap();
    assert!(receives(), "queue 0 continues");
    assert_eq!((registers.get(RETA::at(0)), registers.get(RDLEN::at(1))), (0, 0));
    queues[1] = Some(device.rx(1).unwrap());
    assert!(receives());
    assert_eq!((registers.get(RETA::at(0)), registers.get(RDT::at(1))), (0x8000_8000, RING as u32 - 1));
    queues[0].take().unwrap().stop().unwrap();
    assert!(!receives(), "its packets would hold up queue 1");
    queues[0] = Some(device.rx(0).unwrap());
    assert!(receives());
    drop(queues);
    assert!(!receives());
    assert_eq!(fixture.pool.available(), BUFFERS);
}

/// With `RCTL.LPE`, the card receives frames that are longer than the port's longest, here in chains of 1 KiB.
#[test]
fn frames_longer_than_the_port_allows_are_dropped_and_counted() {
    for max_frame in [500, 4000] {
        let fixture = Fixture::new();
        let mut device = fixture.open(Options { max_frame, ..Options::default() }).unwrap();
        let mut rx = device.rx(0).unwrap();
        let mut batch = Batch::new();
        let mut at = 0;
        let mut arrive = |mut length: usize| {
            while length > 1024 {
                fixture.receive(at, 0, receive::DD | of_length(1024));
                (at, length) = (at + 1, length - 1024);
            }
            fixture.receive(at, 0, WHOLE | of_length(length as u64));
            at += 1;
        };
        for length in [max_frame + 4, max_frame + 5, max_frame + 1030, 60] {
            arrive(length);
        }
        rx.recv(&mut batch);
        let lengths: Vec<usize> = batch.packets().map(|packet| packet.len()).collect();
        assert_eq!(lengths, [max_frame + 4, 60]);
        let drops = device.statistics().unwrap().drops;
        assert_eq!((drops.oversize, drops.malformed), (2, 0));
    }
}

#[test]
fn errors_are_counted_and_verdicts_are_those_of_the_card() {
    let fixture = Fixture::new();
    let mut device = fixture.open(Options { metadata: true, ..Options::default() }).unwrap();
    let mut rx = device.rx(0).unwrap();
    let mut batch = Batch::new();
    let verified = receive::IPCS | receive::L4CS;
    let verdicts = [
        (verified, Checksum::Good),
        (verified | extended::TCPE, Checksum::Bad),
        (verified | extended::IPE, Checksum::Bad),
        (verified | extended::IXSM, Checksum::Unknown),
        (receive::IPCS, Checksum::Unknown),
    ];
    for (at, (bits, _)) in verdicts.iter().enumerate() {
        // Bits 12 to 8 are the queue: not a packet's kind.
        fixture.receive(at, 0x1234_5678 << 32 | 1 << 8 | 1, WHOLE | bits | of_length(60));
    }
    rx.recv(&mut batch);
    let metadata: Vec<_> = batch.packets().map(|packet| packet.metadata()).collect();
    assert_eq!(
        metadata.iter().map(|metadata| metadata.checksum).collect::<Vec<_>>(),
        verdicts.map(|(_, verdict)| verdict)
    );
    assert!(metadata.iter().all(|metadata| metadata.kind.is_none() && metadata.hash.unwrap().value == 0x1234_5678));
    for (n, error) in [24, 25, 26, 28, 31].into_iter().enumerate() {
        fixture.receive(verdicts.len() + n, 0, WHOLE | 1 << error | of_length(60));
    }
    batch.clear();
    assert_eq!(rx.recv(&mut batch), 0);
    assert_eq!(device.statistics().unwrap().drops.malformed, 5);
}

/// Extended data descriptors have no PAYLEN, and a context for checksums.
#[test]
fn descriptors_are_extended() {
    let fixture = Fixture::new();
    let mut device = fixture.open(Options::default()).unwrap();
    let mut tx = device.tx(0).unwrap();
    let mut batch = Batch::new();
    let mut udp = vec![0; 100];
    udp[12..15].copy_from_slice(&[8, 0, 0x45]);
    (udp[17], udp[23], udp[39]) = (86, 17, 66);
    for _ in 0..9 {
        batch.push(&fixture.pool, &udp);
    }
    batch.packets().next().unwrap().leave_checksum().unwrap();
    assert_eq!(tx.send(&mut batch), 9);
    let words: Vec<u64> = fixture.ring(1).iter().map(|word| word.word().load(Relaxed)).collect();
    assert_eq!(words[..2], [34 << 32 | 40 << 40, transmit::DEXT]);
    let command = transmit::DEXT | transmit::EOP | transmit::IFCS | 1 << 20 | 100;
    assert_eq!(words[3], command | transmit::TXSM);
    assert!((2..10).all(|n| words[2 * n + 1] == command), "{words:x?}");
}

/// A card that is gone keeps the buffers: they are not reused.
#[test]
fn a_card_that_is_gone_is_reported() {
    let fixture = Fixture::new();
    let mut device = fixture.open(Options::default()).unwrap();
    let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
    *fixture.registers.is_gone.lock().unwrap() = true;
    for error in [device.link().map(drop), device.statistics().map(drop), rx.stop(), tx.stop()] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Gone);
    }
    assert_eq!(fixture.pool.available(), BUFFERS - RING);
    assert_eq!(device.reset().unwrap_err().kind(), ErrorKind::Gone);
    *fixture.registers.is_gone.lock().unwrap() = false;
    device.reset().unwrap();
    assert_eq!(fixture.pool.available(), BUFFERS);
}

#[derive(Clone, Debug)]
enum Op {
    /// The card writes these words to `count` descriptors, beginning with `at`; true selects the receive ring.
    Write(bool, usize, usize, [u64; 2]),
    /// All registers read as these values, in turn.
    Registers(Vec<u32>),
    Receive,
    Send,
    Clear,
    Control,
}

fn ops() -> impl Strategy<Value = Op> {
    let length = prop_oneof![0u64..=70, 1000u64..=1700, 0u64..=65_535];
    let word = (length, 0u64..4, prop::bool::weighted(0.2))
        .prop_map(|(length, flags, error)| of_length(length) | flags | if error { 1 << 31 } else { 0 });
    let word = prop_oneof![6 => word, 2 => Just(receive::DD), 1 => any::<u64>()];
    let written = (any::<bool>(), 0..RING, 1usize..50, any::<u64>(), word);
    prop_oneof![
        6 => written.prop_map(|(rx, at, count, first, second)| Op::Write(rx, at, count, [first, second])),
        1 => prop::collection::vec(prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)], 0..5).prop_map(Op::Registers),
        3 => Just(Op::Receive),
        3 => Just(Op::Send),
        1 => Just(Op::Clear),
        1 => Just(Op::Control),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A hostile card writes random registers and descriptors: nothing panics, and no buffer is lost, duplicated, or
    /// exceeded.
    #[test]
    fn random_registers_and_descriptors_break_nothing(
        ops in prop::collection::vec(ops(), 1..60),
        opening in prop::collection::vec(any::<u32>(), 0..4),
        max_frame in prop_oneof![Just(1518usize), Just(9018), 60usize..9230],
        metadata in any::<bool>(),
    ) {
        let fixture = Fixture::new();
        let options = Options { max_frame, metadata, ..Options::default() };
        *fixture.registers.hostile.lock().unwrap() = opening;
        drop(fixture.open(options.clone()));
        fixture.registers.hostile.lock().unwrap().clear();
        let fixture = Fixture::new();
        let mut device = fixture.open(options).unwrap();
        let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        let mut batch = Batch::new();
        for op in ops {
            match op {
                Op::Write(is_rx, at, count, words) => {
                    let ring = fixture.ring(usize::from(!is_rx));
                    for n in 0..count {
                        let at = (at + n) % RING * 2;
                        ring[at].word().store(words[0], Relaxed);
                        ring[at + 1].word().store(words[1], Relaxed);
                    }
                }
                Op::Registers(values) => *fixture.registers.hostile.lock().unwrap() = values,
                Op::Receive => {
                    rx.recv(&mut batch);
                    // At 1518, the card limits frames itself, and this one does not.
                    for packet in batch.packets().filter(|_| max_frame != 1518) {
                        prop_assert!(packet.len() <= max_frame + 4);
                    }
                    for bytes in batch.slots_mut() {
                        prop_assert!(bytes.len() <= fixture.pool.region().room());
                        bytes.fill(0xFF);
                    }
                }
                Op::Send => {
                    tx.send(&mut batch);
                }
                Op::Clear => batch.clear(),
                Op::Control => {
                    let _ = device.link();
                    let _ = device.statistics();
                    let _ = device.register_counters();
                    let _ = device.set_promiscuous(false);
                    let _ = device.set_pause(Pause { receive: true, send: true });
                }
            }
            let held = rx.buffers() + tx.buffers() + batch.len() + batch.cached();
            prop_assert_eq!(held + fixture.pool.available(), BUFFERS);
        }
        drop(batch);
        fixture.registers.hostile.lock().unwrap().clear();
        drop((rx, tx, device));
        prop_assert_eq!(fixture.pool.available(), BUFFERS);
    }
}
