//! Intel 82599, X540 and X550: 10 Gbit/s, up to 64 queues each way.
//!
//! Written from Intel's "82599 10 GbE Controller Datasheet" (331520), which section numbers refer to.
//! All Intel cards with advanced descriptors share receive and send: see [`intel`](super::intel).
//!
//! - [`spec::x82599`](linerate_spec::x82599): the card's registers
//! - `init`: reset and bring-up in the datasheet's order
//! - `link`: the link between MAC and cable; `module`: the module in a cage
//! - `pause`: pause frames
//! - `rules`: rules in the card's tables of filters
//! - this file: the queues' registers, link, filters, interrupts, clock and statistics

mod init;
mod link;
mod module;
mod pause;
mod rules;

use std::time::Duration;

use linerate_core::error::Result;
use linerate_core::port::{Drops, Link, Pause, Rss, Statistics};
use linerate_spec::x82599::*;
use linerate_spec::{Counter, Register, descriptor};

use super::intel::{Advanced, CardCounters, ClockRegisters, Controller, Hardware, Intel, PTP, PhysicalFunction};
pub use super::{Config, DEFAULT_FRAME};
use crate::pci::Bar;

/// The most queues each way that this driver supports; the card has 128.
pub const MAX_QUEUES: u16 = X82599::MAX_QUEUES;

/// The most queues that RSS can use: entries of the redirection table have 4 bits (section 8.2.3.7.15).
pub const MAX_RSS_QUEUES: u16 = X82599::MAX_RSS_QUEUES;

/// The longest frame that the card can be set to, in bytes without CRC. With CRC it fits `MAXFRS.MFS` (section
/// 8.2.3.22), well below the card's limit of 15.5 KiB.
pub const MAX_FRAME: usize = X82599::MAX_FRAME;

/// An open card.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::memory::{Pool, Region, RegionOptions};
/// use linerate::sim82599::{Card, Cable};
/// use linerate::nic::ixgbe::Config;
/// use linerate::port::Device;
///
/// // This card is a model. For a real card, uio or vfio provides registers and bus; the rest is the same.
/// let card = Card::new("example", Box::new(Cable::unplugged()));
/// let pool = Pool::new(Region::new(&RegionOptions::default())?);
/// let device = linerate::drive_model(&card, None, Config::new("example", pool))?;
/// assert_eq!(device.info().ring, 512);
/// # Ok(()) }
/// ```
pub type Ixgbe<B> = Intel<B, X82599>;

/// Device IDs of the X550.
const X550: [u16; 2] = [0x1563, 0x15D1];

/// The [`Controller`] of the 82599 and its successors.
pub struct X82599;

impl Controller for X82599 {
    const DRIVER: &'static str = "ixgbe";
    const MBITS: u32 = 10_000;
    const MAX_QUEUES: u16 = 64;
    /// `EICR` has one bit for each of 16 vectors (section 8.2.3.5.1).
    const MAX_INTERRUPTS: u16 = 16;
    const MAX_FRAME: usize = 9728;
    const RX_ERRORS: u64 = descriptor::receive::RXE_82599;
    const COALESCES: bool = true;
    const IP_ERROR: u64 = descriptor::receive::IPE_82599;
    const L4_ERROR: u64 = descriptor::receive::L4E_82599;
    type Entries = rules::Tables;
    type State = ();
    type Format = Advanced;

    fn receive_tail(queue: u16) -> Register {
        RDT(queue).into()
    }

    fn transmit_tail(queue: u16) -> Register {
        TDT(queue).into()
    }

    fn bring_up<B: Bar>(hardware: &Hardware<B, X82599>) -> Result<()> {
        hardware.reset_and_init()
    }

    fn halt<B: Bar>(hardware: &Hardware<B, X82599>) -> Result<()> {
        hardware.stop_and_reset()?;
        // Returns control to firmware (8.2.3.1.3).
        hardware.clear(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    fn enable_receive<B: Bar>(hardware: &Hardware<B, X82599>) -> Result<()> {
        hardware.open_receive()
    }

    fn disable_receive<B: Bar>(hardware: &Hardware<B, X82599>) {
        hardware.close_receive();
    }

    /// Starts a receive queue whose descriptors are filled; the card gets all but the last (4.6.7.1).
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(queue);
        hardware.write(RDBAL(queue), base as u32);
        hardware.write(RDBAH(queue), (base >> 32) as u32);
        hardware.write(RDLEN(queue), hardware.config.ring() as u32 * 16);
        let drop = if hardware.drops_at_queues() { SRRCTL::DROP_EN } else { 0 };
        let (coalesced, header) = match (hardware.is_coalescing(), hardware.most_coalesced().ilog2()) {
            (false, _) => (None, 0),
            // 4.6.7.2.1: a header size of 128 bytes, although headers are not split. 8.2.3.8.13: 1, 4, 8 or 16 buffers.
            (true, log) => {
                (Some(RSCCTL::RSCEN | log.saturating_sub(1) << RSCCTL::MAXDESC_SHIFT), SRRCTL::BSIZEHEADER_128)
            }
        };
        hardware.write(SRRCTL(queue), hardware.buffer_kib() | header | SRRCTL::DESCTYPE_ADVANCED | drop);
        coalesced.inspect(|&bits| hardware.write(RSCCTL(queue), bits));
        hardware.write(RDH(queue), 0);
        hardware.write(RDT(queue), 0);
        hardware.set(RXDCTL(queue), RXDCTL::ENABLE);
        hardware.wait_set(RXDCTL(queue), RXDCTL::ENABLE)?;
        // The ring's length minus one: RDT = RDH would mean an empty ring (7.1.9).
        hardware.write(RDT(queue), hardware.config.ring() as u32 - 1);
        Ok(())
    }

    /// Stops a receive queue; the card no longer accesses its memory (4.6.7.1.2).
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) -> Result<()> {
        hardware.clear(RXDCTL(queue), RXDCTL::ENABLE);
        hardware.wait_clear(RXDCTL(queue), RXDCTL::ENABLE)?;
        hardware.bar.wait(Duration::from_micros(100));
        Ok(())
    }

    /// Starts an empty transmit queue (4.6.8.1).
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(hardware.config.options.rx_queues + queue);
        hardware.write(TDBAL(queue), base as u32);
        hardware.write(TDBAH(queue), (base >> 32) as u32);
        hardware.write(TDLEN(queue), hardware.config.ring() as u32 * 16);
        hardware.write(TDH(queue), 0);
        hardware.write(TDT(queue), 0);
        // 7.2.3.4.1: fetch whole cache lines; write back each descriptor with RS immediately (WTHRESH 0), since there
        // are few.
        let thresholds = 36 << TXDCTL::PTHRESH_SHIFT | 8 << TXDCTL::HTHRESH_SHIFT;
        hardware.write(TXDCTL(queue), thresholds | TXDCTL::ENABLE);
        hardware.wait_set(TXDCTL(queue), TXDCTL::ENABLE)
    }

    /// Stops a transmit queue; the card no longer accesses its memory (4.6.8.2). The card prefetches descriptors, so
    /// this waits for the queue to become empty. Fails if it does not, for example without a link.
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) -> Result<()> {
        let tail = hardware.read(TDT(queue));
        let empty = hardware.wait_equal(TDH(queue), tail);
        hardware.clear(TXDCTL(queue), TXDCTL::ENABLE);
        hardware.wait_clear(TXDCTL(queue), TXDCTL::ENABLE)?;
        empty
    }

    fn link<B: Bar>(hardware: &Hardware<B, X82599>) -> Result<Link> {
        let links = hardware.read_live(LINKS)?;
        Ok(match (links & LINKS::UP != 0, links & LINKS::SPEED_MASK) {
            (true, LINKS::SPEED_10G) => Link::Up { mbits: 10_000 },
            (true, LINKS::SPEED_1G) => Link::Up { mbits: 1_000 },
            (true, LINKS::SPEED_100M) => Link::Up { mbits: 100 },
            _ => Link::Down,
        })
    }

    /// Each queue has its bit (section 8.2.3.8.6).
    fn strip_vlan_tags<B: Bar>(hardware: &Hardware<B, X82599>, on: bool) {
        for queue in 0..hardware.config.options.rx_queues {
            hardware.change(RXDCTL(queue), RXDCTL::VME, if on { RXDCTL::VME } else { 0 });
        }
    }

    /// Writes key, table and hash fields (section 7.1.2.8).
    fn set_rss<B: Bar>(hardware: &Hardware<B, X82599>, rss: &Rss) {
        for (register, bytes) in rss.key.chunks_exact(4).enumerate() {
            hardware.write(RSSRK(register as u16), u32::from_le_bytes(bytes.try_into().expect("chunks of 4")));
        }
        X82599::set_table(hardware, rss);
        // With one queue, the hash is only for the metadata.
        if hardware.config.options.rx_queues > 1 || hardware.config.options.metadata {
            // Without PCSD the descriptor contains a checksum instead of the hash.
            hardware.set(RXCSUM, RXCSUM::PCSD);
            let fields = MRQC::IPV4 | MRQC::TCP_IPV4 | MRQC::UDP_IPV4 | MRQC::IPV6 | MRQC::TCP_IPV6 | MRQC::UDP_IPV6;
            hardware.write(MRQC, MRQC::MRQE_RSS | fields);
        }
    }

    /// Writes the table: 128 entries, four to a register; 512 on an X550.
    fn set_table<B: Bar>(hardware: &Hardware<B, X82599>, rss: &Rss) {
        for register in 0..32 {
            hardware.write(RETA(register), rss.register(register));
        }
        if X550.contains(&hardware.config.device) {
            for register in 0..96 {
                hardware.write(ERETA(register), rss.register(32 + register));
            }
        }
    }

    fn set_interrupts<B: Bar>(hardware: &Hardware<B, X82599>, queues: u16, throttle: Duration) {
        hardware.init_interrupts(queues, throttle);
    }

    fn set_coalescing<B: Bar>(hardware: &Hardware<B, X82599>, queues: u16) {
        hardware.init_coalescing(queues);
    }

    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) {
        hardware.write(EIMS, 1 << queue);
    }

    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, X82599>, queue: u16) {
        hardware.write(EIMC, 1 << queue);
        if hardware.has_line() {
            hardware.read(EICR); // releases the interrupt line
        }
    }

    fn clock_registers() -> Option<ClockRegisters> {
        Some(ClockRegisters {
            time: [SYSTIML.into(), SYSTIMH.into()],
            sent: (TSYNCTXCTL.into(), [TXSTMPL.into(), TXSTMPH.into()]),
            received: (TSYNCRXCTL.into(), [RXSTMPL.into(), RXSTMPH.into()]),
            attributes: RXSATRH.into(),
        })
    }

    fn latch_time<B: Bar>(hardware: &Hardware<B, X82599>) {
        match hardware.counts_nanoseconds() {
            true => drop(hardware.read(SYSTIMR)), // latches both halves
            false => hardware.count_ticks(),
        }
    }

    fn nanoseconds<B: Bar>(hardware: &Hardware<B, X82599>, low: u32, high: u32) -> u64 {
        let (low, high) = (u64::from(low), u64::from(high));
        match hardware.counts_nanoseconds() {
            true => high * 1_000_000_000 + low,
            false => (high << 32 | low) / UNITS,
        }
    }

    /// Uses the counters of section 8.2.3.23.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, X82599>) -> Statistics {
        const CRC: u64 = 4;
        // RQSMR stays 0, so the first counter of each kind covers all queues. QPRC counts packets written to memory;
        // GPRC would also count packets without a descriptor. QBRC excludes stripped CRCs.
        let (rx_packets, rx_bytes) = (counters.sum(QPRC(0)), counters.wide_sum(QBRC_L(0), QBRC_H(0)));
        // GOTC includes CRCs. A frame sent between the two reads is in GOTC now and in GPTC next time.
        let (tx_packets, tx_octets) = (counters.sum(GPTC), counters.wide_sum(GOTCL, GOTCH));
        let drops = Drops {
            no_descriptor: counters.sum(RXMPC(0)) + counters.sum(QPRDC(0)),
            bad_crc: counters.sum(CRCERRS),
            undersize: counters.sum(RUC),
            oversize: counters.sum(ROC),
            bad_frame: counters.sum(RLEC) + counters.sum(ILLERRC) + counters.sum(RFC) + counters.sum(RJC),
            ..Drops::default()
        };
        let tx_bytes = tx_octets.saturating_sub(tx_packets * CRC);
        Statistics { rx_packets, rx_bytes, tx_packets, tx_bytes, drops }
    }

    fn counters(_: u16) -> Vec<Counter> {
        counters().collect()
    }
}

impl PhysicalFunction for X82599 {
    const MAX_RSS_QUEUES: u16 = 16;
    const ADDRESSES: u16 = RAL::COUNT;

    /// Without virtualization, `MPSAR` has no effect (section 8.2.3.7.10).
    fn address_registers(entry: u16) -> (Register, Register) {
        (RAL(entry).into(), RAH(entry).into())
    }

    fn multicast_register(number: u16) -> Register {
        MTA(number).into()
    }

    fn vlan_register(number: u16) -> Register {
        VFTA(number).into()
    }

    fn set_promiscuous<B: Bar>(hardware: &Hardware<B, X82599>, unicast: bool, multicast: bool) {
        let bits = if unicast { FCTRL::UPE } else { 0 } | if multicast { FCTRL::MPE } else { 0 };
        hardware.change(FCTRL, FCTRL::UPE | FCTRL::MPE, bits);
    }

    /// `MO` stays 0: the hash is bits 47 to 36 of the address (section 8.2.3.7.3).
    fn use_multicast_table<B: Bar>(hardware: &Hardware<B, X82599>, on: bool) {
        hardware.write(MCSTCTRL, if on { MCSTCTRL::MFE } else { 0 });
    }

    fn use_vlan_table<B: Bar>(hardware: &Hardware<B, X82599>, on: bool) {
        hardware.change(VLNCTRL, VLNCTRL::VFE, if on { VLNCTRL::VFE } else { 0 });
    }

    fn set_pause<B: Bar>(hardware: &Hardware<B, X82599>, pause: Pause) {
        hardware.init_pause(pause);
    }

    fn start_counter<B: Bar>(hardware: &Hardware<B, X82599>) {
        hardware.count_ticks();
    }

    /// Over UDP, `RXMTRL` selects port 319 after a reset. Over Ethernet, a filter must find the ethertype (7.9.5).
    fn find_events<B: Bar>(hardware: &Hardware<B, X82599>) {
        hardware.write(ETQF(rules::ETHERTYPES as u16), ETQF::ENABLE | ETQF::TIME_STAMP | PTP);
    }
}

/// Units of the counter per nanosecond. A tick of 6.4 ns is a whole number of them, so no rounding changes the rate, and
/// the 64 bits last for 117 years.
const UNITS: u64 = 5;
/// Units per tick.
const INCREMENT: u32 = 32;

impl<B: Bar> Hardware<B, X82599> {
    /// Returns whether the counter's high half counts seconds, and the low half nanoseconds.
    fn counts_nanoseconds(&self) -> bool {
        X550.contains(&self.config.device)
    }

    /// Lets the counter run, with ticks of the length that they have at the link's speed (8.2.3.26.12).
    fn count_ticks(&self) {
        if self.counts_nanoseconds() {
            return self.clear(TSAUXC, TSAUXC::DISABLE_SYSTIME);
        }
        let tick = match self.read(LINKS) & LINKS::SPEED_MASK {
            LINKS::SPEED_1G => 10 * INCREMENT,
            LINKS::SPEED_100M => 100 * INCREMENT,
            _ => INCREMENT,
        };
        // An X540 has no period field.
        let period = if self.is_copper() { 0 } else { 1 << TIMINCA::PERIOD_SHIFT };
        if self.read(TIMINCA) != period | tick {
            self.write(TIMINCA, period | tick);
        }
    }
}
