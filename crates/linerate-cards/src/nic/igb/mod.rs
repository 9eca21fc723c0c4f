//! Intel 82576: 1 Gbit/s, 16 queues each way.
//!
//! Written from Intel's "82576EB Gigabit Ethernet Controller Datasheet" (revision 2.63), which section numbers refer
//! to. All Intel cards with advanced descriptors share receive and send: see [`intel`](super::intel).
//! `docs/driver.md` explains this file step by step.
//!
//! - [`spec::x82576`](linerate_spec::x82576): the card's registers
//! - this file: bring-up, queues, link, filters, interrupts, clock and statistics, in this order

use std::time::Duration;

use linerate_core::error::{ErrorKind, Result};
use linerate_core::port::{Drops, Link, Pause, Rss, Statistics};
use linerate_spec::x82576::*;
use linerate_spec::{Counter, Register, descriptor};

use super::intel::{
    Advanced, CardCounters, ClockRegisters, Controller, Hardware, Intel, NoEntries, PTP, PhysicalFunction, Semaphores,
};
pub use super::{Config, DEFAULT_FRAME};
use crate::pci::Bar;

/// The message Sync of IEEE 1588.
const SYNC: u32 = 0;

/// An open card; its queues work like those of every [`Intel`] card.
pub type Igb<B> = Intel<B, X82576>;

/// The 82576's [`Controller`].
pub struct X82576;

impl Controller for X82576 {
    const DRIVER: &'static str = "igb";
    const MBITS: u32 = 1000;
    const MAX_QUEUES: u16 = 16;
    /// Causes 0 to 24 of `EICR` are vectors: enough for 16 queues and the link (section 8.8.1).
    const MAX_INTERRUPTS: u16 = 16;
    /// 9.5 KiB with CRC (section 1.3).
    const MAX_FRAME: usize = 9724;
    const RX_ERRORS: u64 = descriptor::receive::RXE_82576;
    const IP_ERROR: u64 = descriptor::receive::IPE_82576;
    const L4_ERROR: u64 = descriptor::receive::L4E_82576;
    type Entries = NoEntries;
    type State = ();
    type Format = Advanced;

    fn receive_tail(queue: u16) -> Register {
        RDT(queue).into()
    }

    fn transmit_tail(queue: u16) -> Register {
        TDT(queue).into()
    }

    /// Follows section 4.5, "Software Initialization Sequence".
    fn bring_up<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<()> {
        hardware.check_alive()?;
        mask_interrupts(hardware);
        stop_and_reset(hardware)?;
        mask_interrupts(hardware);
        hardware.free_quarantined();
        hardware.forget_queues();
        hardware.allow_dma()?;

        // 4.3.1: a valid MAC address means that the EEPROM has been reloaded.
        hardware.wait_set(RAH(0), RAH::AV)?;
        // 4.5.7: the PHY or SerDes negotiates, and with SLU the MAC follows the result.
        hardware.change(CTRL, CTRL::SLU | CTRL::FRCSPD | CTRL::FRCDPLX, CTRL::SLU);
        match hardware.read_live(CTRL_EXT)? & CTRL_EXT::LINK_MODE_MASK {
            CTRL_EXT::LINK_MODE_COPPER => negotiate(hardware)?,
            CTRL_EXT::LINK_MODE_SERDES => negotiate_serdes(hardware),
            _ => {}
        }
        // 4.5.8: clear the counters by reading them.
        for register in statistics() {
            hardware.read(register);
        }

        // 4.5.9: clear the filter tables, set the frame length, strip CRCs.
        (0..128).for_each(|n| hardware.write(MTA(n), 0));
        (0..128).for_each(|n| hardware.write(UTA(n), 0));
        (0..128).for_each(|n| hardware.write(VFTA(n), 0));
        hardware.write(RLPML, hardware.longest_written() as u32 + 4);
        hardware.write(RCTL, RCTL::LPE | RCTL::BAM | RCTL::SECRC);
        hardware.write(MRQC, 0);
        // 4.5.10: transmit; short frames are padded. Only the first segment of a packet keeps CWR, and only the last
        // keeps FIN and PSH (RFC 3168).
        hardware.write(DTXTCPFLGL, DTXTCPFLGL::FIRST_SEGMENT | DTXTCPFLGL::MIDDLE_SEGMENTS);
        hardware.set(TCTL, TCTL::EN | TCTL::PSP);
        // Tells firmware that a driver is loaded (8.2.3).
        hardware.set(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    fn halt<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<()> {
        stop_and_reset(hardware)?;
        // Returns control to firmware (8.2.3).
        hardware.clear(CTRL_EXT, CTRL_EXT::DRV_LOAD);
        Ok(())
    }

    fn enable_receive<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<()> {
        hardware.set(RCTL, RCTL::RXEN);
        Ok(())
    }

    fn disable_receive<B: Bar>(hardware: &Hardware<B, X82576>) {
        hardware.clear(RCTL, RCTL::RXEN);
    }

    /// Follows section 4.5.9.1.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(queue);
        hardware.write(RDBAL(queue), base as u32);
        hardware.write(RDBAH(queue), (base >> 32) as u32);
        hardware.write(RDLEN(queue), hardware.config.ring() as u32 * 16);
        let drop = if hardware.drops_at_queues() { SRRCTL::DROP_EN } else { 0 };
        hardware.write(SRRCTL(queue), hardware.buffer_kib() | SRRCTL::DESCTYPE_ADVANCED | drop);
        // The card writes back each descriptor immediately (WTHRESH 1 would do the same; 8.10.10).
        hardware.write(RXDCTL(queue), 8 << RXDCTL::PTHRESH_SHIFT | 8 << RXDCTL::HTHRESH_SHIFT | RXDCTL::ENABLE);
        hardware.wait_set(RXDCTL(queue), RXDCTL::ENABLE)?;
        // The head is 0 after a reset, and after enabling the queue. The tail is the ring's length minus one: RDT =
        // RDH would mean an empty ring (7.1.8).
        hardware.write(RDH(queue), 0);
        hardware.write(RDT(queue), hardware.config.ring() as u32 - 1);
        Ok(())
    }

    /// Follows section 4.5.9.2.
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) -> Result<()> {
        hardware.clear(RXDCTL(queue), RXDCTL::ENABLE);
        hardware.wait_clear(RXDCTL(queue), RXDCTL::ENABLE)?;
        hardware.bar.wait(Duration::from_micros(100));
        Ok(())
    }

    /// Follows section 4.5.10.1.
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(hardware.config.options.rx_queues + queue);
        hardware.write(TDBAL(queue), base as u32);
        hardware.write(TDBAH(queue), (base >> 32) as u32);
        hardware.write(TDLEN(queue), hardware.config.ring() as u32 * 16);
        hardware.write(TDH(queue), 0);
        hardware.write(TDT(queue), 0);
        // 7.2.2.3: the card writes back descriptors with RS immediately; there are few.
        hardware.write(TXDCTL(queue), 8 << TXDCTL::PTHRESH_SHIFT | 1 << TXDCTL::HTHRESH_SHIFT | TXDCTL::ENABLE);
        hardware.wait_set(TXDCTL(queue), TXDCTL::ENABLE)
    }

    /// Disables the queue once it is empty, since the card prefetches descriptors (section 4.5.10.2).
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) -> Result<()> {
        let tail = hardware.read(TDT(queue));
        let empty = hardware.wait_equal(TDH(queue), tail);
        hardware.clear(TXDCTL(queue), TXDCTL::ENABLE);
        hardware.wait_clear(TXDCTL(queue), TXDCTL::ENABLE)?;
        empty
    }

    fn link<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<Link> {
        let status = hardware.read_live(STATUS)?;
        Ok(match (status & STATUS::LU != 0, status & STATUS::SPEED_MASK) {
            (false, _) => Link::Down,
            (true, STATUS::SPEED_10) => Link::Up { mbits: 10 },
            (true, STATUS::SPEED_100) => Link::Up { mbits: 100 },
            (true, _) => Link::Up { mbits: 1_000 },
        })
    }

    /// One bit is for all queues (section 8.2.1).
    fn strip_vlan_tags<B: Bar>(hardware: &Hardware<B, X82576>, on: bool) {
        hardware.change(CTRL, CTRL::VME, if on { CTRL::VME } else { 0 });
    }

    /// Writes key, table (128 entries, four to a register) and hash fields (section 7.1.1.7).
    fn set_rss<B: Bar>(hardware: &Hardware<B, X82576>, rss: &Rss) {
        for (register, bytes) in rss.key.chunks_exact(4).enumerate() {
            hardware.write(RSSRK(register as u16), u32::from_le_bytes(bytes.try_into().expect("chunks of 4")));
        }
        X82576::set_table(hardware, rss);
        // With one queue, the hash is only for the metadata.
        if hardware.config.options.rx_queues > 1 || hardware.config.options.metadata {
            // Without PCSD the descriptor contains a checksum instead of the hash.
            hardware.set(RXCSUM, RXCSUM::PCSD);
            let fields = MRQC::IPV4 | MRQC::TCP_IPV4 | MRQC::UDP_IPV4 | MRQC::IPV6 | MRQC::TCP_IPV6 | MRQC::UDP_IPV6;
            hardware.write(MRQC, MRQC::RSS | fields);
        }
    }

    fn set_table<B: Bar>(hardware: &Hardware<B, X82576>, rss: &Rss) {
        (0..32).for_each(|register| hardware.write(RETA(register), rss.register(register)));
    }

    /// Maps receive queue n to vector n, which masks itself when raised (section 7.3). Over uio there is one interrupt
    /// line for one queue, which uses the legacy causes of `ICR`.
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, X82576>, queues: u16, throttle: Duration) {
        // 8.8.14: the interval in µs has 13 bits.
        let interval = (throttle.as_micros() as u32).min(EITR::INTERVAL_MASK);
        if hardware.has_line() {
            hardware.write(GPIE, GPIE::NSICR);
            return hardware.write(EITR(0), interval << EITR::INTERVAL_SHIFT | EITR::CNT_INGR);
        }
        hardware.write(GPIE, GPIE::NSICR | GPIE::MULTIPLE_MSIX | GPIE::EIAME | GPIE::PBA_SUPPORT);
        hardware.write(EIAC, (1 << queues) - 1);
        hardware.write(EIAM, (1 << queues) - 1);
        for queue in 0..queues {
            hardware.write(EITR(queue), interval << EITR::INTERVAL_SHIFT | EITR::CNT_INGR);
            // 7.3.1.2: queues n and n + 8 share a register; bytes 0 and 2 are for receive.
            let shift = u32::from(queue / 8) * 16;
            hardware.change(IVAR(queue % 8), 0xFF << shift, (u32::from(queue) | IVAR::VALID) << shift);
        }
    }

    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) {
        match hardware.has_line() {
            true => hardware.write(IMS, ICR::RXDW),
            false => hardware.write(EIMS, 1 << queue),
        }
    }

    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, X82576>, queue: u16) {
        if hardware.has_line() {
            hardware.write(IMC, ICR::RXDW);
            hardware.read(ICR); // releases the interrupt line
        } else {
            hardware.write(EIMC, 1 << queue);
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

    /// Uses the counters of section 8.18. `GORC` counts CRCs although they are stripped.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, X82576>) -> Statistics {
        const CRC: u64 = 4;
        let (rx_packets, rx_octets) = (counters.sum(GPRC), counters.wide_sum(GORCL, GORCH));
        let (tx_packets, tx_octets) = (counters.sum(GPTC), counters.wide_sum(GOTCL, GOTCH));
        let queues = 0..counters.hardware.config.options.rx_queues;
        let drops = Drops {
            no_descriptor: counters.sum(MPC) + queues.map(|queue| counters.sum(RQDPC(queue))).sum::<u64>(),
            bad_crc: counters.sum(CRCERRS),
            undersize: counters.sum(RUC),
            oversize: counters.sum(ROC),
            bad_frame: counters.sum(RXERRC) + counters.sum(RLEC) + counters.sum(RFC) + counters.sum(RJC),
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

    fn counters(queues: u16) -> Vec<Counter> {
        counters(queues).collect()
    }
}

impl PhysicalFunction for X82576 {
    /// Entries of the redirection table have 4 bits (section 8.10.23).
    const MAX_RSS_QUEUES: u16 = 16;
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

    fn set_promiscuous<B: Bar>(hardware: &Hardware<B, X82576>, unicast: bool, multicast: bool) {
        let bits = if unicast { RCTL::UPE } else { 0 } | if multicast { RCTL::MPE } else { 0 };
        hardware.change(RCTL, RCTL::UPE | RCTL::MPE, bits);
    }

    /// The table is always in effect. `RCTL.MO` stays 0: the hash is bits 47 to 36 of the address (section 8.10.17).
    fn use_multicast_table<B: Bar>(_: &Hardware<B, X82576>, _: bool) {}

    fn use_vlan_table<B: Bar>(hardware: &Hardware<B, X82576>, on: bool) {
        hardware.change(RCTL, RCTL::VFE, if on { RCTL::VFE } else { 0 });
    }

    /// Uses the registers of section 8.5. The receive packet buffer has its size after a reset, 64 KiB.
    fn set_pause<B: Bar>(hardware: &Hardware<B, X82576>, pause: Pause) {
        const BUFFER: u32 = 64 << 10;
        // Asks for the longest time, in units of 512 bit times, and asks again after half of it.
        const TIME: u32 = 0xFFFF;
        for queue in 0..hardware.config.options.rx_queues {
            let drop = if hardware.drops_at_queues() { SRRCTL::DROP_EN } else { 0 };
            hardware.change(SRRCTL(queue), SRRCTL::DROP_EN, drop);
        }
        if pause.send {
            // Each end finishes the frame that it is sending; 4 KiB arrive in the time that 3 km of fiber need.
            let high = BUFFER - 2 * (hardware.longest_written() as u32 + 4) - 4096;
            let low = high / 2;
            hardware.write(FCTTV, TIME);
            hardware.write(FCRTV, TIME / 2);
            hardware.write(FCRTL0, low & FCRTL0::MASK | FCRTL0::XONE);
            hardware.write(FCRTH0, high & FCRTH0::MASK);
        }
        let bits = if pause.receive { CTRL::RFCE } else { 0 } | if pause.send { CTRL::TFCE } else { 0 };
        hardware.change(CTRL, CTRL::RFCE | CTRL::TFCE, bits);
    }

    /// A tick is 16 ns, whatever the link's speed.
    fn start_counter<B: Bar>(hardware: &Hardware<B, X82576>) {
        hardware.write(TIMINCA, 1 << TIMINCA::PERIOD_SHIFT | 16);
    }

    /// Only over Ethernet: over UDP, the card also compares the source port.
    fn find_events<B: Bar>(hardware: &Hardware<B, X82576>) {
        hardware.write(ETQF(0), ETQF::ENABLE | ETQF::TIME_STAMP | PTP);
        hardware.write(TSYNCRXCFG, SYNC << TSYNCRXCFG::MESSAGE_SHIFT);
    }
}

/// Stops all DMA (section 5.2.3.3) and resets (4.3.1).
fn stop_and_reset<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<()> {
    // Frames received from now on would cause new requests.
    hardware.clear(RCTL, RCTL::RXEN);
    hardware.set(CTRL, CTRL::GIO_MASTER_DISABLE);
    match hardware.wait_clear(STATUS, STATUS::GIO_MASTER_ENABLE) {
        // The reset also ends a request that never completes.
        Err(gone) if gone.kind() != ErrorKind::Timeout => return Err(gone),
        _ => {}
    }
    hardware.set(CTRL, CTRL::RST);
    // 4.3.1: the EEPROM is reloaded; no access for 3 ms.
    hardware.bar.wait(Duration::from_millis(3));
    // 8.2.1: the bit clears itself. (STATUS.PF_RST_DONE would also work, but QEMU's card lacks it.)
    hardware.wait_clear(CTRL, CTRL::RST)
}

/// Restarts the PHY's auto-negotiation (8.2.4; IEEE 802.3, 22.2.4.1 defines PHY register 0). Holds a semaphore, since
/// firmware also uses the PHY.
fn negotiate<B: Bar>(hardware: &Hardware<B, X82576>) -> Result<()> {
    const CONTROL: u32 = 0;
    const NEGOTIATE: u32 = 1 << 12 | 1 << 9; // enable and restart auto-negotiation
    let semaphores = Semaphores { swsm: SWSM.into(), sync: SW_FW_SYNC.into(), has_regsmp: false };
    // 8.6.16: ports 0 to 3 have bits 1, 2, 10 and 11.
    let port = hardware.read(STATUS) >> STATUS::LAN_ID_SHIFT & 0x3;
    let phy = SW_FW_SYNC::SW_PHY_SM0 << [0, 1, 9, 10][port as usize];
    hardware.with_semaphore(&semaphores, phy, || {
        let command = NEGOTIATE | CONTROL << MDIC::REGADD_SHIFT | 1 << MDIC::PHYADD_SHIFT | MDIC::OP_WRITE;
        hardware.write(MDIC, command);
        hardware.wait_set(MDIC, MDIC::R)
    })
}

/// Starts auto-negotiation on fiber and backplane cards (4.5.7.2): powers the part controlled by the SDP7 pin, and
/// restarts the MAC's negotiation (IEEE 802.3, clause 37).
fn negotiate_serdes<B: Bar>(hardware: &Hardware<B, X82576>) {
    hardware.clear(CTRL_EXT, CTRL_EXT::SDP7_DATA);
    hardware.set(PCS_CFG, PCS_CFG::PCS_EN);
    let negotiate = PCS_LCTL::AN_ENABLE | PCS_LCTL::AN_RESTART;
    hardware.change(PCS_LCTL, PCS_LCTL::FORCE_LINK | PCS_LCTL::AN_TIMEOUT_EN | negotiate, negotiate);
}

fn mask_interrupts<B: Bar>(hardware: &Hardware<B, X82576>) {
    hardware.write(EIMC, EIMC::ALL_CAUSES);
    hardware.write(IMC, IMC::ALL_CAUSES);
    hardware.read(ICR);
}
