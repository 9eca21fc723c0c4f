//! Intel 82574 and 82583: 1 Gbit/s, two queues each way; QEMU's `e1000e`.
//!
//! Written from Intel's "82574 GbE Controller Family Datasheet" (revision 3.4), which section numbers refer to, and from
//! the errata that Linux's driver works around (`e1000_initialize_hw_bits_82571`). The card is older than the others,
//! but its *extended* descriptors became their advanced ones. So receive and send are those of [`intel`](super::intel).
//!
//! The card has neither of two things that its successors have:
//!
//! - A bit that starts or stops one queue. So a queue starts and stops while the card receives or sends nothing, at most
//!   11 ms.
//! - A bit that drops the packets of a queue without descriptors. Such packets hold up the other queue. Packets without
//!   a hash are for queue 0, so the card receives only while queue 0 is started.
//!
//! Files:
//!
//! - [`spec::x82574`](linerate_spec::x82574): the card's registers
//! - `queue`: the transmit descriptors
//! - this file: bring-up, queues, link, filters, interrupts and statistics, in this order

mod queue;

use std::time::Duration;

use linerate_core::error::{ErrorKind, Result};
use linerate_core::port::{Drops, Feature, Link, Pause, Rss, Statistics};
use linerate_spec::x82574::*;
use linerate_spec::{Counter, Register, descriptor};
use queue::Extended;

use super::intel::{CardCounters, Controller, Hardware, Intel, NoEntries, PhysicalFunction};
pub use super::{Config, DEFAULT_FRAME};
use crate::pci::Bar;

/// An open card; its queues work like those of every [`Intel`] card.
pub type E1000e<B> = Intel<B, X82574>;

/// The 82574's [`Controller`].
pub struct X82574;

/// The device ID of the 82583V.
const X82583V: u16 = 0x150C;

/// The longest frame that the card receives without `RCTL.LPE`, in bytes without CRC.
const LONGEST_SHORT: usize = 1518;

/// Time for transfers in progress to end after receive or transmit was disabled. The datasheet has no confirmation; Linux
/// waits as long (`e1000e_down`). A packet needs 75 µs.
const DRAIN: Duration = Duration::from_millis(10);

impl Controller for X82574 {
    const DRIVER: &'static str = "e1000e";
    const MBITS: u32 = 1000;
    const FEATURES: &'static [Feature] = &[
        Feature::SendChecksum,
        Feature::ReceiveChecksum,
        Feature::ReceiveHash,
        Feature::StripVlanTags,
        Feature::Rss,
        Feature::AddressFilter,
        Feature::VlanFilter,
        Feature::Pause,
    ];
    const MAX_QUEUES: u16 = RDT::COUNT;
    const MAX_INTERRUPTS: u16 = RDT::COUNT;
    /// As in Linux; jumbo frames of the datasheet have 9 KB.
    const MAX_FRAME: usize = 9230;
    const RX_ERRORS: u64 = descriptor::extended::MAC_ERRORS;
    const IP_ERROR: u64 = descriptor::extended::IPE;
    const L4_ERROR: u64 = descriptor::extended::TCPE;
    const NO_VERDICT: u64 = descriptor::extended::IXSM;
    const RARE_METADATA: u64 = 0;
    const HAS_KIND: bool = false;
    const NEEDS_QUEUE_0: bool = true;
    type Format = Extended;
    type Entries = NoEntries;
    type State = ();

    /// The 82583V has no RSS.
    fn most_queues(device: u16) -> u16 {
        if device == X82583V { 1 } else { Self::MAX_QUEUES }
    }

    /// There is no register for the longest frame, only `RCTL.LPE`. With it, the card receives up to 16 KiB.
    fn longest_written(_: u16, max_frame: usize) -> usize {
        if max_frame <= LONGEST_SHORT { LONGEST_SHORT + 4 } else { 16 << 10 }
    }

    fn receive_tail(queue: u16) -> Register {
        RDT(queue).into()
    }

    fn transmit_tail(queue: u16) -> Register {
        TDT(queue).into()
    }

    /// Follows section 4.6, "Software Initialization Sequence". Writes every register that it relies on: QEMU's card
    /// before 8.0 keeps them in a reset.
    fn bring_up<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
        hardware.check_alive()?;
        mask_interrupts(hardware);
        stop_and_reset(hardware)?;
        mask_interrupts(hardware);
        hardware.free_quarantined();
        hardware.forget_queues();
        for queue in 0..RDT::COUNT {
            empty_receive_ring(hardware, queue);
            empty_transmit_ring(hardware, queue);
        }
        hardware.allow_dma()?;

        // A valid address means that the EEPROM has been reloaded.
        hardware.wait_set(RAH(0), RAH::AV)?;
        work_around_errata(hardware);
        // The PHY negotiates, and with SLU the MAC follows the result.
        let forced = CTRL::GIO_MASTER_DISABLE | CTRL::FRCSPD | CTRL::FRCDPLX;
        hardware.change(CTRL, forced | CTRL::RFCE | CTRL::TFCE | CTRL::VME | CTRL::SLU, CTRL::SLU);
        negotiate(hardware)?;
        // Clear the counters by reading them.
        for register in statistics() {
            hardware.read(register);
        }

        // 4.6.5: clear the filter tables, select extended descriptors, set the buffers' size, strip CRCs.
        (0..128).for_each(|n| hardware.write(MTA(n), 0));
        (0..128).for_each(|n| hardware.write(VFTA(n), 0));
        (1..RAH::COUNT).for_each(|n| hardware.write(RAH(n), 0));
        hardware.write(RFCTL, RFCTL::EXSTEN | RFCTL::NFSW_DIS | RFCTL::NFSR_DIS);
        hardware.write(RDTR, 0);
        hardware.write(MRQC, 0);
        // QEMU's card has 0 after a reset.
        hardware.write(VET, 0x8100);
        // Descriptors contain the hash instead of a checksum.
        hardware.write(RXCSUM, RXCSUM::IPOFL | RXCSUM::TUOFL | RXCSUM::PCSD);
        let long = if hardware.config.options.max_frame > LONGEST_SHORT { RCTL::LPE } else { 0 };
        let size = hardware.buffer_kib().min(15) << RCTL::FLXBUF_SHIFT;
        hardware.write(RCTL, RCTL::BAM | RCTL::SECRC | size | long);
        // 4.6.6: short frames are padded. The collision parameters are for half duplex.
        hardware.write(TCTL, TCTL::PSP | 0xF << TCTL::CT_SHIFT | 0x3F << TCTL::COLD_SHIFT);
        // Tells firmware that a driver is loaded.
        hardware.set(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    fn halt<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
        stop_and_reset(hardware)?;
        // Returns control to firmware.
        hardware.clear(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    /// Also gives the card the descriptors of queues that have started: QEMU's card drops a waiting frame if a tail is
    /// written while receive is disabled. Until then, such a queue has a base, but no length.
    fn enable_receive<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
        let has_started = |queue: u16| hardware.read(RDBAL(queue)) != 0 || hardware.read(RDBAH(queue)) != 0;
        let queues = 0..hardware.config.options.rx_queues;
        let waiting: Vec<u16> =
            queues.filter(|&queue| hardware.read(RDLEN(queue)) == 0 && has_started(queue)).collect();
        waiting.iter().for_each(|&queue| hardware.write(RDLEN(queue), hardware.config.ring() as u32 * 16));
        hardware.set(RCTL, RCTL::EN);
        // The ring's length minus one: RDT = RDH means an empty ring (7.1.8).
        waiting.iter().for_each(|&queue| hardware.write(RDT(queue), hardware.config.ring() as u32 - 1));
        Ok(())
    }

    fn disable_receive<B: Bar>(hardware: &Hardware<B, X82574>) {
        hardware.clear(RCTL, RCTL::EN);
    }

    /// Head and tail are 0 since the reset, or since the queue stopped. They are not written here, because QEMU's card drops
    /// a waiting frame then.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(queue);
        without_receive(hardware, || {
            hardware.write(RDBAL(queue), base as u32);
            hardware.write(RDBAH(queue), (base >> 32) as u32);
            // The card writes back each descriptor immediately. Thresholds are in descriptors (GRAN).
            let thresholds = 8 << RXDCTL::PTHRESH_SHIFT | 8 << RXDCTL::HTHRESH_SHIFT;
            hardware.write(RXDCTL(queue), thresholds | RXDCTL::GRAN);
        })
    }

    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) -> Result<()> {
        // Packets in the card's buffer that were assigned to this queue would hold up the other.
        hardware.bar.wait(Duration::from_millis(1));
        without_receive(hardware, || empty_receive_ring(hardware, queue))
    }

    /// The head may be written only while transmit is disabled (4.6.6).
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(hardware.config.options.rx_queues + queue);
        without_transmit(hardware, || {
            hardware.write(TDBAL(queue), base as u32);
            hardware.write(TDBAH(queue), (base >> 32) as u32);
            hardware.write(TDH(queue), 0);
            hardware.write(TDT(queue), 0);
            hardware.write(TDLEN(queue), hardware.config.ring() as u32 * 16);
        })
    }

    /// Stops the queue once it is empty, since the card prefetches descriptors.
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) -> Result<()> {
        let tail = hardware.read(TDT(queue));
        hardware.wait_equal(TDH(queue), tail)?;
        without_transmit(hardware, || empty_transmit_ring(hardware, queue))
    }

    fn link<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<Link> {
        let status = hardware.read_live(STATUS)?;
        Ok(match (status & STATUS::LU != 0, status & STATUS::SPEED_MASK) {
            (false, _) => Link::Down,
            (true, STATUS::SPEED_10) => Link::Up { mbits: 10 },
            (true, STATUS::SPEED_100) => Link::Up { mbits: 100 },
            (true, _) => Link::Up { mbits: 1_000 },
        })
    }

    /// One bit is for both queues.
    fn strip_vlan_tags<B: Bar>(hardware: &Hardware<B, X82574>, on: bool) {
        hardware.change(CTRL, CTRL::VME, if on { CTRL::VME } else { 0 });
    }

    /// Writes key, table (128 entries, four to a register) and hash fields (7.1.11). There is no hash of UDP ports.
    fn set_rss<B: Bar>(hardware: &Hardware<B, X82574>, rss: &Rss) {
        for (register, bytes) in rss.key.chunks_exact(4).enumerate() {
            hardware.write(RSSRK(register as u16), u32::from_le_bytes(bytes.try_into().expect("chunks of 4")));
        }
        X82574::set_table(hardware, rss);
        // With one queue, the hash is only for the metadata.
        if hardware.config.options.rx_queues > 1 || hardware.config.options.metadata {
            hardware.write(MRQC, MRQC::RSS | MRQC::TCP_IPV4 | MRQC::IPV4 | MRQC::TCP_IPV6 | MRQC::IPV6);
        }
    }

    /// The queue is the highest bit of an entry.
    fn set_table<B: Bar>(hardware: &Hardware<B, X82574>, rss: &Rss) {
        (0..32).for_each(|register| hardware.write(RETA(register), rss.register(register) << RETA::QUEUE_SHIFT));
    }

    /// Maps receive queue n to vector n, whose cause clears and masks itself when the message is sent (7.4). Over uio there
    /// is one interrupt line for one queue.
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, X82574>, queues: u16, throttle: Duration) {
        // Units of 256 ns.
        let interval = (throttle.as_nanos() / 256).min(ITR::INTERVAL_MASK.into()) as u32;
        if hardware.has_line() {
            return hardware.write(ITR, interval);
        }
        let causes = (0..queues).map(cause).fold(0, |all, cause| all | cause);
        let automatic = CTRL_EXT::EIAME | CTRL_EXT::PBA_SUPPORT;
        hardware.change(CTRL_EXT, CTRL_EXT::IAME | automatic, automatic);
        hardware.write(EIAC, causes);
        hardware.write(IAM, causes);
        // Four bits for each queue.
        hardware.write(IVAR, (0..queues).fold(0, |all, queue| all | (u32::from(queue) | IVAR::VALID) << (4 * queue)));
        (0..queues).for_each(|queue| hardware.write(EITR(queue), interval));
    }

    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) {
        hardware.write(IMS, if hardware.has_line() { ICR::RXT0 } else { cause(queue) });
    }

    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) {
        if hardware.has_line() {
            hardware.write(IMC, ICR::RXT0);
            hardware.read(ICR); // releases the interrupt line
        } else {
            hardware.write(IMC, cause(queue));
        }
    }

    /// `GORC` counts CRCs although they are stripped.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, X82574>) -> Statistics {
        const CRC: u64 = 4;
        let (rx_packets, rx_octets) = (counters.sum(GPRC), counters.wide_sum(GORCL, GORCH));
        let (tx_packets, tx_octets) = (counters.sum(GPTC), counters.wide_sum(GOTCL, GOTCH));
        let bad: [Register; 5] = [ALGNERRC.into(), RXERRC.into(), RLEC.into(), RFC.into(), RJC.into()];
        let drops = Drops {
            no_descriptor: counters.sum(MPC),
            bad_crc: counters.sum(CRCERRS),
            undersize: counters.sum(RUC),
            oversize: counters.sum(ROC),
            bad_frame: bad.into_iter().map(|register| counters.sum(register)).sum(),
            ..Drops::default()
        };
        Statistics {
            rx_packets,
            rx_bytes: rx_octets.saturating_sub(rx_packets * CRC),
            tx_packets,
            tx_bytes: tx_octets.saturating_sub(tx_packets * CRC),
            drops,
        }
    }

    fn counters(_: u16) -> Vec<Counter> {
        counters().collect()
    }
}

impl PhysicalFunction for X82574 {
    const MAX_RSS_QUEUES: u16 = RDT::COUNT;
    /// As in Linux, which leaves entry 15 unused.
    const ADDRESSES: u16 = RAL::COUNT;

    fn address_registers(entry: u16) -> (Register, Register) {
        (RAL(entry).into(), RAH(entry).into())
    }

    fn multicast_register(number: u16) -> Register {
        MTA(number).into()
    }

    fn vlan_register(number: u16) -> Register {
        VFTA(number).into()
    }

    fn set_promiscuous<B: Bar>(hardware: &Hardware<B, X82574>, unicast: bool, multicast: bool) {
        let bits = if unicast { RCTL::UPE } else { 0 } | if multicast { RCTL::MPE } else { 0 };
        hardware.exclusively(|_| hardware.change(RCTL, RCTL::UPE | RCTL::MPE, bits));
    }

    /// The table is always in effect. `RCTL.MO` stays 0: the hash is bits 47 to 36 of the address.
    fn use_multicast_table<B: Bar>(_: &Hardware<B, X82574>, _: bool) {}

    fn use_vlan_table<B: Bar>(hardware: &Hardware<B, X82574>, on: bool) {
        hardware.exclusively(|_| hardware.change(RCTL, RCTL::VFE, if on { RCTL::VFE } else { 0 }));
    }

    /// The receive packet buffer has its size after a reset, 20 KiB.
    fn set_pause<B: Bar>(hardware: &Hardware<B, X82574>, pause: Pause) {
        const BUFFER: u32 = 20 << 10;
        // Asks for the longest time, in units of 512 bit times, and asks again after half of it.
        const TIME: u32 = 0xFFFF;
        if pause.send {
            // The address 01:80:c2:00:00:01 and the ethertype of pause frames (IEEE 802.3, annex 31B).
            hardware.write(FCAL, 0x00C2_8001);
            hardware.write(FCAH, 0x0100);
            hardware.write(FCT, 0x8808);
            // Each end finishes the frame that it is sending.
            let high = BUFFER - 2 * (hardware.longest_frame() as u32 + 4);
            hardware.write(FCTTV, TIME);
            hardware.write(FCRTV, TIME / 2);
            let low = high / 2;
            hardware.write(FCRTL, low & FCRTL::MASK | FCRTL::XONE);
            hardware.write(FCRTH, high & FCRTH::MASK);
        }
        let bits = if pause.receive { CTRL::RFCE } else { 0 } | if pause.send { CTRL::TFCE } else { 0 };
        hardware.change(CTRL, CTRL::RFCE | CTRL::TFCE, bits);
    }
}

/// Returns the cause of a receive queue's interrupt, if there are vectors.
fn cause(queue: u16) -> u32 {
    ICR::RXQ0 << queue
}

/// Runs `work` while the card does not receive.
fn without_receive<B: Bar>(hardware: &Hardware<B, X82574>, work: impl FnOnce()) -> Result<()> {
    hardware.exclusively(|is_receiving| {
        hardware.clear(RCTL, RCTL::EN);
        hardware.bar.wait(DRAIN);
        hardware.wait_clear(RCTL, RCTL::EN)?;
        work();
        if is_receiving {
            X82574::enable_receive(hardware)?;
        }
        hardware.check_alive()
    })
}

/// Runs `work` while the card does not send.
fn without_transmit<B: Bar>(hardware: &Hardware<B, X82574>, work: impl FnOnce()) -> Result<()> {
    hardware.exclusively(|_| {
        hardware.clear(TCTL, TCTL::EN);
        hardware.bar.wait(DRAIN);
        hardware.wait_clear(TCTL, TCTL::EN)?;
        work();
        hardware.set(TCTL, TCTL::EN);
        hardware.check_alive()
    })
}

fn empty_receive_ring<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) {
    hardware.write(RDT(queue), 0);
    hardware.write(RDH(queue), 0);
    hardware.write(RDLEN(queue), 0);
    hardware.write(RDBAL(queue), 0);
    hardware.write(RDBAH(queue), 0);
}

fn empty_transmit_ring<B: Bar>(hardware: &Hardware<B, X82574>, queue: u16) {
    hardware.write(TDT(queue), 0);
    hardware.write(TDH(queue), 0);
    hardware.write(TDLEN(queue), 0);
}

/// Stops all DMA and resets the card.
fn stop_and_reset<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
    // Frames received or sent from now on would cause new requests.
    hardware.clear(RCTL, RCTL::EN);
    hardware.clear(TCTL, TCTL::EN);
    hardware.set(CTRL, CTRL::GIO_MASTER_DISABLE);
    match hardware.wait_clear(STATUS, STATUS::GIO_MASTER_ENABLE) {
        // The reset also ends a request that never completes.
        Err(gone) if gone.kind() != ErrorKind::Timeout => return Err(gone),
        _ => {}
    }
    // Firmware must not use the PHY during the reset. If it keeps the PHY, only the reset helps.
    let owned = own_phy(hardware);
    hardware.set(CTRL, CTRL::RST);
    // The EEPROM is reloaded; no access for 3 ms.
    hardware.bar.wait(Duration::from_millis(3));
    if owned.is_ok() {
        hardware.clear(EXTCNF_CTRL, EXTCNF_CTRL::MDIO_SW_OWNERSHIP);
    }
    hardware.wait_clear(CTRL, CTRL::RST)?;
    hardware.wait_set(EECD, EECD::AUTO_RD)?;
    // Then the card configures the PHY, which must not be accessed for 25 ms (Linux's `e1000_reset_hw_82571`).
    hardware.bar.wait(Duration::from_millis(25));
    Ok(())
}

/// Sets the bits that Linux's driver sets for this card. `GCR` and `GCR2` prevent transmit timeouts with ASPM, whose L0s
/// and L1 Linux also turns off in the configuration space.
fn work_around_errata<B: Bar>(hardware: &Hardware<B, X82574>) {
    for queue in 0..TXDCTL::COUNT {
        // Bit 22 must be 1. The card writes back each descriptor with RS immediately.
        let thresholds = 31 << TXDCTL::PTHRESH_SHIFT | 1 << TXDCTL::HTHRESH_SHIFT | 1 << TXDCTL::WTHRESH_SHIFT;
        hardware.write(TXDCTL(queue), thresholds | TXDCTL::GRAN | 1 << 22);
        hardware.set(TARC(queue), TARC::ENABLE);
    }
    hardware.change(TARC(0), 0xF << 27 | 1 << 26, 1 << 26);
    hardware.clear(CTRL, 1 << 29);
    hardware.change(CTRL_EXT, 0b11 << 22, 0b01 << 22);
    hardware.set(GCR, 1 << 22 | 1 << 27);
    hardware.set(GCR2, 1);
}

/// Restarts the PHY's auto-negotiation (IEEE 802.3, 22.2.4.1 defines PHY register 0).
fn negotiate<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
    const CONTROL: u32 = 0;
    const NEGOTIATE: u32 = 1 << 12 | 1 << 9; // enable and restart auto-negotiation
    own_phy(hardware)?;
    let command = NEGOTIATE | CONTROL << MDIC::REGADD_SHIFT | 1 << MDIC::PHYADD_SHIFT | MDIC::OP_WRITE;
    hardware.write(MDIC, command);
    let written = hardware.wait_set(MDIC, MDIC::R);
    hardware.clear(EXTCNF_CTRL, EXTCNF_CTRL::MDIO_SW_OWNERSHIP);
    written
}

/// Takes the PHY, which firmware also uses. The bit can only be set while firmware does not.
fn own_phy<B: Bar>(hardware: &Hardware<B, X82574>) -> Result<()> {
    const ATTEMPTS: usize = 20;
    for _ in 0..ATTEMPTS {
        hardware.set(EXTCNF_CTRL, EXTCNF_CTRL::MDIO_SW_OWNERSHIP);
        if hardware.read_live(EXTCNF_CTRL)? & EXTCNF_CTRL::MDIO_SW_OWNERSHIP != 0 {
            return Ok(());
        }
        hardware.bar.wait(Duration::from_millis(2));
    }
    hardware.wait_set(EXTCNF_CTRL, EXTCNF_CTRL::MDIO_SW_OWNERSHIP)
}

fn mask_interrupts<B: Bar>(hardware: &Hardware<B, X82574>) {
    hardware.write(IMC, IMC::ALL_CAUSES);
    hardware.read(ICR);
}
