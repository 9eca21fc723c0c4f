//! Virtual functions of the Intel 82576.
//!
//! Written from Intel's "82576EB Gigabit Ethernet Controller Datasheet" (revision 2.63), which section numbers refer
//! to. Linux's igb defines the messages. Everything that is not a register is shared: see [`intel`](super::intel).
//!
//! - [`spec::x82576_vf`](linerate_spec::x82576_vf): the function's registers
//! - this file: reset, queues, link, interrupts and counters, in this order

use std::sync::Mutex;
use std::time::Duration;

use linerate_core::error::Result;
use linerate_core::port::{Drops, Link, Statistics};
use linerate_spec::mailbox::*;
use linerate_spec::x82576_vf::*;
use linerate_spec::{Counter, Register, descriptor};

use super::intel::{Advanced, CardCounters, Controller, Hardware, Mailbox, NoEntries, Virtual, VirtualFunction};
use crate::pci::Bar;

/// An open virtual function.
pub type Igbvf<B> = Virtual<B, X82576Vf>;

/// The [`Controller`] of a virtual function.
pub struct X82576Vf;

impl Controller for X82576Vf {
    const DRIVER: &'static str = "igbvf";
    const MBITS: u32 = 1000;
    const MAX_QUEUES: u16 = RDBAL::COUNT;
    /// One of the 3 vectors (section 7.3.1) is for the mailbox.
    const MAX_INTERRUPTS: u16 = 2;
    /// 9.5 KiB with CRC (section 1.3).
    const MAX_FRAME: usize = 9724;
    const RX_ERRORS: u64 = descriptor::receive::RXE_82576;
    const IP_ERROR: u64 = descriptor::receive::IPE_82576;
    const L4_ERROR: u64 = descriptor::receive::L4E_82576;
    const IS_VIRTUAL: bool = true;
    type Format = Advanced;
    type Entries = NoEntries;
    type State = Mutex<Mailbox>;

    fn receive_tail(queue: u16) -> Register {
        RDT(queue).into()
    }

    fn transmit_tail(queue: u16) -> Register {
        TDT(queue).into()
    }

    fn bring_up<B: Bar>(hardware: &Hardware<B, X82576Vf>) -> Result<()> {
        hardware.reset_and_greet()
    }

    fn halt<B: Bar>(hardware: &Hardware<B, X82576Vf>) -> Result<()> {
        hardware.check_alive()?;
        X82576Vf::reset_function(hardware);
        hardware.check_alive()
    }

    /// A function receives as soon as it has queues.
    fn enable_receive<B: Bar>(_: &Hardware<B, X82576Vf>) -> Result<()> {
        Ok(())
    }

    fn disable_receive<B: Bar>(_: &Hardware<B, X82576Vf>) {}

    /// Follows section 4.5.9.1. The physical function limits the length of frames (VMOLR.RLPML), as it was asked to.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(queue);
        // 8.10.3: packets are spread over this many queues, if the physical function uses RSS.
        hardware.write(PSRTYPE, u32::from(hardware.config.options.rx_queues - 1) << PSRTYPE::RQPL_SHIFT);
        hardware.write(RDBAL(queue), base as u32);
        hardware.write(RDBAH(queue), (base >> 32) as u32);
        hardware.write(RDLEN(queue), hardware.config.ring() as u32 * 16);
        // A full queue must not hold up the other functions.
        hardware.write(SRRCTL(queue), hardware.buffer_kib() | SRRCTL::DESCTYPE_ADVANCED | SRRCTL::DROP_EN);
        hardware.write(RXDCTL(queue), 8 << RXDCTL::PTHRESH_SHIFT | 8 << RXDCTL::HTHRESH_SHIFT | RXDCTL::ENABLE);
        hardware.wait_set(RXDCTL(queue), RXDCTL::ENABLE)?;
        hardware.write(RDH(queue), 0);
        hardware.write(RDT(queue), hardware.config.ring() as u32 - 1);
        Ok(())
    }

    /// Follows section 4.5.9.2.
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) -> Result<()> {
        hardware.clear(RXDCTL(queue), RXDCTL::ENABLE);
        hardware.wait_clear(RXDCTL(queue), RXDCTL::ENABLE)?;
        hardware.bar.wait(Duration::from_micros(100));
        Ok(())
    }

    /// Follows section 4.5.10.1.
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(hardware.config.options.rx_queues + queue);
        hardware.write(TDBAL(queue), base as u32);
        hardware.write(TDBAH(queue), (base >> 32) as u32);
        hardware.write(TDLEN(queue), hardware.config.ring() as u32 * 16);
        hardware.write(TDH(queue), 0);
        hardware.write(TDT(queue), 0);
        hardware.write(TXDCTL(queue), 8 << TXDCTL::PTHRESH_SHIFT | 1 << TXDCTL::HTHRESH_SHIFT | TXDCTL::ENABLE);
        hardware.wait_set(TXDCTL(queue), TXDCTL::ENABLE)
    }

    /// Disables the queue once it is empty, since the card prefetches descriptors (section 4.5.10.2).
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) -> Result<()> {
        let tail = hardware.read(TDT(queue));
        let empty = hardware.wait_equal(TDH(queue), tail);
        hardware.clear(TXDCTL(queue), TXDCTL::ENABLE);
        hardware.wait_clear(TXDCTL(queue), TXDCTL::ENABLE)?;
        empty
    }

    fn link<B: Bar>(hardware: &Hardware<B, X82576Vf>) -> Result<Link> {
        let status = hardware.read_live(VTSTATUS)?;
        Ok(match (status & VTSTATUS::LU != 0, status & VTSTATUS::SPEED_MASK) {
            (false, _) => Link::Down,
            (true, VTSTATUS::SPEED_10) => Link::Up { mbits: 10 },
            (true, VTSTATUS::SPEED_100) => Link::Up { mbits: 100 },
            (true, _) => Link::Up { mbits: 1_000 },
        })
    }

    /// The physical function decides about tags.
    fn strip_vlan_tags<B: Bar>(_: &Hardware<B, X82576Vf>, _: bool) {}

    /// Maps receive queue n to vector n, which masks itself when raised (section 7.3).
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, X82576Vf>, queues: u16, throttle: Duration) {
        // 8.8.14: the interval in µs has 13 bits.
        let interval = (throttle.as_micros() as u32).min(VTEITR::INTERVAL_MASK);
        hardware.write(VTEIAC, (1 << queues) - 1);
        hardware.write(VTEIAM, (1 << queues) - 1);
        for queue in 0..queues {
            hardware.write(VTEITR(queue), interval << VTEITR::INTERVAL_SHIFT | VTEITR::CNT_INGR);
            // Bytes 0 and 2 of the register are for receive.
            let shift = u32::from(queue) * 16;
            hardware.change(VTIVAR, 0xFF << shift, (u32::from(queue) | VTIVAR::VALID) << shift);
        }
    }

    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) {
        hardware.write(VTEIMS, 1 << queue);
    }

    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, X82576Vf>, queue: u16) {
        hardware.write(VTEIMC, 1 << queue);
    }

    /// The card counts CRCs although they are stripped.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, X82576Vf>) -> Statistics {
        const CRC: u64 = 4;
        let (rx_packets, rx_octets) = (counters.sum(VFGPRC), counters.sum(VFGORC));
        let (tx_packets, tx_octets) = (counters.sum(VFGPTC), counters.sum(VFGOTC));
        let queues = 0..counters.hardware.config.options.rx_queues;
        let no_descriptor = queues.map(|queue| counters.sum(RQDPC(queue))).sum();
        Statistics {
            rx_packets,
            rx_bytes: rx_octets.saturating_sub(rx_packets * CRC),
            tx_packets,
            tx_bytes: tx_octets.saturating_sub(tx_packets * CRC),
            drops: Drops { no_descriptor, ..Drops::default() },
        }
    }

    fn counters(queues: u16) -> Vec<Counter> {
        counters(queues).collect()
    }
}

impl VirtualFunction for X82576Vf {
    const CLEAR_ADDRESSES: u32 = SET_ADDRESS | x82576::CLEAR_ADDRESSES;
    const MOST_ADDRESSES: usize = 23;
    const STRIPS_TAGS: bool = false;

    fn mailbox() -> Register {
        V2PMAILBOX.into()
    }

    fn message(word: u16) -> Register {
        VMBMEM(word).into()
    }

    fn add_address(_: u32) -> u32 {
        SET_ADDRESS | x82576::ADD_ADDRESS
    }

    fn reset_function<B: Bar>(hardware: &Hardware<B, X82576Vf>) {
        hardware.write(VTEIMC, VTEIMC::ALL_CAUSES);
        hardware.write(VTCTRL, VTCTRL::RST);
        hardware.bar.wait(Duration::from_millis(1));
    }

    /// There is one version of the messages, and each function has two queues.
    fn negotiate<B: Bar>(_: &Hardware<B, X82576Vf>) -> Result<()> {
        Ok(())
    }

    fn request_modes<B: Bar>(hardware: &Hardware<B, X82576Vf>, [unicast, multicast]: [bool; 2]) -> Result<()> {
        let unicast = if unicast { x82576::UNICAST } else { 0 };
        let multicast = if multicast { x82576::MULTICAST } else { 0 };
        let message = x82576::SET_PROMISCUOUS | unicast | multicast;
        hardware.request("receive packets to other addresses", &[message]).map(drop)
    }
}
