//! Virtual functions of the Intel 82599, X540 and X550.
//!
//! Written from Intel's "82599 10 GbE Controller Datasheet" (331520), which section numbers refer to. Linux's ixgbe
//! defines the messages. Everything that is not a register is shared: see [`intel`](super::intel).
//!
//! - [`spec::x82599_vf`](linerate_spec::x82599_vf): the function's registers
//! - this file: reset, queues, link, interrupts and counters, in this order

use std::sync::Mutex;
use std::time::Duration;

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::port::{Drops, Link, Statistics};
use linerate_spec::mailbox::*;
use linerate_spec::x82599_vf::*;
use linerate_spec::{Counter, Register, descriptor};

use super::intel::{Advanced, CardCounters, Controller, Hardware, Mailbox, NoEntries, Virtual, VirtualFunction};
use crate::pci::Bar;

/// An open virtual function.
pub type Ixgbevf<B> = Virtual<B, X82599Vf>;

/// The device ID of the 82599's virtual functions. Only its successors' limit the length of frames.
const X82599: u16 = 0x10ED;

/// The [`Controller`] of a virtual function.
pub struct X82599Vf;

impl Controller for X82599Vf {
    const DRIVER: &'static str = "ixgbevf";
    const MBITS: u32 = 10_000;
    const MAX_QUEUES: u16 = VFRDBAL::COUNT;
    /// One of the 3 vectors (section 9.4.4) is for the mailbox.
    const MAX_INTERRUPTS: u16 = 2;
    const MAX_FRAME: usize = 9728;
    const RX_ERRORS: u64 = descriptor::receive::RXE_82599;
    const IP_ERROR: u64 = descriptor::receive::IPE_82599;
    const L4_ERROR: u64 = descriptor::receive::L4E_82599;
    /// The card needs the length of the MAC header to send packets from one function to another (Linux's ixgbevf).
    const CHECKS_CONTEXT: bool = true;
    const IS_VIRTUAL: bool = true;
    type Format = Advanced;
    type Entries = NoEntries;
    type State = Mutex<Mailbox>;

    /// The limit of the 82599 is that of the physical function, whose interface may have a larger MTU.
    fn longest_written(device: u16, max_frame: usize) -> usize {
        if device == X82599 { Self::MAX_FRAME + 4 } else { max_frame + 4 }
    }

    fn receive_tail(queue: u16) -> Register {
        VFRDT(queue).into()
    }

    fn transmit_tail(queue: u16) -> Register {
        VFTDT(queue).into()
    }

    fn bring_up<B: Bar>(hardware: &Hardware<B, X82599Vf>) -> Result<()> {
        hardware.reset_and_greet()
    }

    fn halt<B: Bar>(hardware: &Hardware<B, X82599Vf>) -> Result<()> {
        hardware.check_alive()?;
        X82599Vf::reset_function(hardware);
        hardware.check_alive()
    }

    /// A function receives as soon as it has queues.
    fn enable_receive<B: Bar>(_: &Hardware<B, X82599Vf>) -> Result<()> {
        Ok(())
    }

    fn disable_receive<B: Bar>(_: &Hardware<B, X82599Vf>) {}

    /// Follows section 4.6.7.1.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(queue);
        hardware.write(VFRDBAL(queue), base as u32);
        hardware.write(VFRDBAH(queue), (base >> 32) as u32);
        hardware.write(VFRDLEN(queue), hardware.config.ring() as u32 * 16);
        // A full queue must not hold up the other functions.
        hardware.write(VFSRRCTL(queue), hardware.buffer_kib() | VFSRRCTL::DESCTYPE_ADVANCED | VFSRRCTL::DROP_EN);
        hardware.write(VFRDH(queue), 0);
        hardware.write(VFRDT(queue), 0);
        let limit = match hardware.config.device {
            X82599 => 0,
            _ => VFRXDCTL::RLPML_EN | (hardware.longest_written() as u32 + 4) & VFRXDCTL::RLPML_MASK,
        };
        let strip = if hardware.strips_tags() { VFRXDCTL::VME } else { 0 };
        hardware.write(VFRXDCTL(queue), limit | strip | VFRXDCTL::ENABLE);
        hardware.wait_set(VFRXDCTL(queue), VFRXDCTL::ENABLE)?;
        hardware.write(VFRDT(queue), hardware.config.ring() as u32 - 1);
        Ok(())
    }

    /// Follows section 4.6.7.1.2.
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) -> Result<()> {
        hardware.clear(VFRXDCTL(queue), VFRXDCTL::ENABLE);
        hardware.wait_clear(VFRXDCTL(queue), VFRXDCTL::ENABLE)?;
        hardware.bar.wait(Duration::from_micros(100));
        Ok(())
    }

    /// Follows section 4.6.8.1.
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) -> Result<()> {
        let (_, _, base) = hardware.ring(hardware.config.options.rx_queues + queue);
        hardware.write(VFTDBAL(queue), base as u32);
        hardware.write(VFTDBAH(queue), (base >> 32) as u32);
        hardware.write(VFTDLEN(queue), hardware.config.ring() as u32 * 16);
        hardware.write(VFTDH(queue), 0);
        hardware.write(VFTDT(queue), 0);
        let thresholds = 32 << VFTXDCTL::PTHRESH_SHIFT | 1 << VFTXDCTL::HTHRESH_SHIFT;
        hardware.write(VFTXDCTL(queue), thresholds | VFTXDCTL::ENABLE);
        hardware.wait_set(VFTXDCTL(queue), VFTXDCTL::ENABLE)
    }

    /// Disables the queue once it is empty, since the card prefetches descriptors (section 4.6.8.2).
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) -> Result<()> {
        let tail = hardware.read(VFTDT(queue));
        let empty = hardware.wait_equal(VFTDH(queue), tail);
        hardware.clear(VFTXDCTL(queue), VFTXDCTL::ENABLE);
        hardware.wait_clear(VFTXDCTL(queue), VFTXDCTL::ENABLE)?;
        empty
    }

    fn link<B: Bar>(hardware: &Hardware<B, X82599Vf>) -> Result<Link> {
        let links = hardware.read_live(VFLINKS)?;
        Ok(match (links & VFLINKS::UP != 0, links & VFLINKS::SPEED_MASK) {
            (true, VFLINKS::SPEED_10G) => Link::Up { mbits: 10_000 },
            (true, VFLINKS::SPEED_1G) => Link::Up { mbits: 1_000 },
            (true, VFLINKS::SPEED_100M) => Link::Up { mbits: 100 },
            _ => Link::Down,
        })
    }

    /// Each queue has a bit, which is set when it starts.
    fn strip_vlan_tags<B: Bar>(_: &Hardware<B, X82599Vf>, _: bool) {}

    /// Maps receive queue n to vector n, which masks itself when raised (section 7.3).
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, X82599Vf>, queues: u16, throttle: Duration) {
        // 8.2.3.5.12: the interval in units of 2 µs has 9 bits.
        let interval = (throttle.as_micros() as u32 / 2).min(VTEITR::INTERVAL_MASK);
        hardware.write(VTEIAC, (1 << queues) - 1);
        hardware.write(VTEIAM, (1 << queues) - 1);
        for queue in 0..queues {
            hardware.write(VTEITR(queue), interval << VTEITR::INTERVAL_SHIFT | VTEITR::CNT_WDIS);
            // 8.3.5.2: two queues share a register; bytes 0 and 2 are for receive.
            let shift = u32::from(queue % 2) * 16;
            hardware.change(VTIVAR(queue / 2), 0xFF << shift, (u32::from(queue) | VTIVAR::VALID) << shift);
        }
    }

    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) {
        hardware.write(VTEIMS, 1 << queue);
    }

    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, X82599Vf>, queue: u16) {
        hardware.write(VTEIMC, 1 << queue);
    }

    /// The card counts CRCs although they are stripped. It does not tell a function what it has dropped.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, X82599Vf>) -> Statistics {
        const CRC: u64 = 4;
        let (rx_packets, rx_octets) = (counters.sum(VFGPRC), counters.wide_sum(VFGORC_LSB, VFGORC_MSB));
        let (tx_packets, tx_octets) = (counters.sum(VFGPTC), counters.wide_sum(VFGOTC_LSB, VFGOTC_MSB));
        Statistics {
            rx_packets,
            rx_bytes: rx_octets.saturating_sub(rx_packets * CRC),
            tx_packets,
            tx_bytes: tx_octets.saturating_sub(tx_packets * CRC),
            drops: Drops::default(),
        }
    }

    fn counters(_: u16) -> Vec<Counter> {
        counters().into()
    }
}

impl VirtualFunction for X82599Vf {
    const CLEAR_ADDRESSES: u32 = x82599::SET_MORE_ADDRESSES;
    const MOST_ADDRESSES: usize = 127;
    const STRIPS_TAGS: bool = true;

    fn mailbox() -> Register {
        VFMAILBOX.into()
    }

    fn message(word: u16) -> Register {
        VFMBMEM(word).into()
    }

    fn add_address(number: u32) -> u32 {
        x82599::SET_MORE_ADDRESSES | number << INFO_SHIFT
    }

    fn reset_function<B: Bar>(hardware: &Hardware<B, X82599Vf>) {
        hardware.write(VTEIMC, (1 << VECTORS) - 1);
        hardware.write(VFCTRL, VFCTRL::RST);
        hardware.bar.wait(Duration::from_millis(1));
    }

    /// Uses the newest version that both know. Since 1.1, the physical function tells how many queues the function has.
    fn negotiate<B: Bar>(hardware: &Hardware<B, X82599Vf>) -> Result<()> {
        let mut newest = x82599::VERSION_1_0;
        for version in (x82599::VERSION_1_1..=x82599::VERSION_1_5).rev() {
            if hardware.ask(&[x82599::NEGOTIATE, version])?[0] & SUCCESS != 0 {
                newest = version;
                break;
            }
        }
        hardware.mailbox().version = newest;
        let [tx, rx] = match newest {
            x82599::VERSION_1_0 => [1, 1],
            _ => {
                let [_, tx, rx, ..] = hardware.request("name the queues", &[x82599::GET_QUEUES])?;
                [tx, rx].map(|queues| queues.clamp(1, Self::MAX_QUEUES.into()) as u16)
            }
        };
        let options = &hardware.config.options;
        let port = || hardware.config.name.clone();
        for (direction, wanted, granted) in [("receive", options.rx_queues, rx), ("transmit", options.tx_queues, tx)] {
            if wanted > granted {
                return Err(Error::too_many_queues(port(), direction, wanted, granted));
            }
        }
        Ok(())
    }

    fn request_modes<B: Bar>(hardware: &Hardware<B, X82599Vf>, [unicast, multicast]: [bool; 2]) -> Result<()> {
        let (mode, since) = match (unicast, multicast) {
            (true, _) => (x82599::MODE_PROMISCUOUS, x82599::VERSION_1_3),
            (false, true) => (x82599::MODE_ALL_MULTICAST, x82599::VERSION_1_2),
            (false, false) => (x82599::MODE_MULTICAST, x82599::VERSION_1_2),
        };
        if hardware.mailbox().version < since {
            let why = "the driver of the physical function is too old to change which packets arrive";
            return Err(Error::new(ErrorKind::Denied, &*hardware.config.name, why));
        }
        hardware.request("receive packets to other addresses", &[x82599::UPDATE_MODE, mode]).map(drop)
    }
}
