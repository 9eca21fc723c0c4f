//! The common part of Intel's cards since the 82574: advanced descriptors, or the similar extended ones, and their rings.
//!
//! A card's own module ([`ixgbe`](super::ixgbe), [`igb`](super::igb), [`e1000e`](super::e1000e)) implements [`Controller`] with its registers;
//! everything that moves packets is here.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - [`spec::descriptor`](linerate_spec::descriptor): the words of a descriptor
//! - `format`: where the formats of transmit descriptors differ
//! - `offload`: sending packets whose checksum or segmentation the card does; `context`: their descriptors
//! - `described`: receive queues that note checksums, hashes and headers; `metadata`: these in a descriptor
//! - `coalesced`: receive queues of cards that coalesce TCP segments; `chains`: the beginnings of their packets
//! - `clock`: the card's clock, and the times of packets
//! - `ring`: descriptors in memory, and the buffer of each
//! - `vector`: the loops of `queue` with vector instructions
//! - `start`: starting and stopping a queue, and its buffers; `open`: the queues of programs
//! - `rules`: the entries of rules in a card's tables of filters
//! - `filters`: the card's filters by address and VLAN
//! - `semaphore`: resources shared with firmware
//! - `counters`: the card's counters, by register and as statistics
//! - `hardware`: registers, bounded waits, the state that queues share
//! - `virtual_function`: the control side of a virtual function, [`Virtual`]; `mailbox`: its requests
//! - this file: the control side, [`Intel`]

mod chains;
mod clock;
mod coalesced;
mod context;
mod counters;
mod described;
mod filters;
mod format;
mod hardware;
mod mailbox;
mod metadata;
mod offload;
mod open;
mod queue;
mod ring;
mod rules;
mod semaphore;
mod start;
mod vector;
mod virtual_function;

use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use clock::{ClockRegisters, PTP};
pub use counters::CardCounters;
pub use format::{Advanced, TransmitFormat};
pub use hardware::Hardware;
use linerate_core::error::Result;
use linerate_core::filter::{Filter, Match};
use linerate_core::memory::Pool;
use linerate_core::port::{
    Action, Capabilities, Clock, Device, Feature, Info, Link, MacAddress, Pause, QueueStatistics, Receive, Rss, Rule,
    RuleId, Rules, Statistics, Transmit,
};
use linerate_spec::descriptor::receive;
use linerate_spec::{Counter, Register};
pub use mailbox::Mailbox;
pub use rules::{NoEntries, Refused};
pub(super) use semaphore::Semaphores;
pub use virtual_function::Virtual;

use super::Config;
use super::filters::Filters;
use crate::pci::{Bar, Bus};

/// The controller-specific part of a driver: registers, and the order in which they are written.
pub trait Controller: Sized + Send + Sync + 'static {
    /// The driver's name.
    const DRIVER: &'static str;
    /// The speed of the fastest link.
    const MBITS: u32;
    /// The features of the card, without rules.
    const FEATURES: &'static [Feature] = &FEATURES;
    /// The most queues each way.
    const MAX_QUEUES: u16;
    /// The most queues with an interrupt each.
    const MAX_INTERRUPTS: u16;
    /// The longest frame, in bytes without CRC.
    const MAX_FRAME: usize;
    /// Bits of a receive descriptor's word 1 for a MAC error.
    const RX_ERRORS: u64;
    /// The card can coalesce received TCP segments.
    const COALESCES: bool = false;
    /// The card checks a context for each packet that it sends.
    const CHECKS_CONTEXT: bool = false;
    /// A physical function may reset the queues. They then start again.
    const IS_VIRTUAL: bool = false;
    /// The bit of word 1 for a wrong IPv4 header checksum.
    const IP_ERROR: u64;
    /// The bit of word 1 for a wrong layer-4 checksum.
    const L4_ERROR: u64;
    /// The bit of word 1 of a packet whose checksums the card did not verify, whatever other bits say; 0 without.
    const NO_VERDICT: u64 = 0;
    /// The bits of word 1 with which a packet may have a mark or a time.
    const RARE_METADATA: u64 = receive::FLM | receive::TS;
    /// A receive descriptor has the packet's type.
    const HAS_KIND: bool = true;
    /// The card cannot receive while queue 0 is stopped: it cannot drop the packets for it.
    const NEEDS_QUEUE_0: bool = false;
    /// The format of transmit descriptors.
    type Format: TransmitFormat;
    /// The entries of rules in the card's tables of filters.
    type Entries: Entries<Self>;
    /// The state of the driver beside that of [`Hardware`].
    type State: Default + Send + Sync;

    /// Returns the most queues each way of the card with this PCI device ID.
    fn most_queues(_device: u16) -> u16 {
        Self::MAX_QUEUES
    }
    /// Returns the most bytes that the card with this PCI device ID writes for a frame if the longest frame is `max_frame`.
    /// The MAC accepts a VLAN tag in addition to `MAXFRS` (82599 section 8.2.3.22).
    fn longest_written(_device: u16, max_frame: usize) -> usize {
        max_frame + hardware::TAG
    }

    /// Returns the tail register of a receive queue.
    fn receive_tail(queue: u16) -> Register;
    /// Returns the tail register of a transmit queue.
    fn transmit_tail(queue: u16) -> Register;

    /// Brings the card up from any state, until queues can be started. Receive stays disabled.
    fn bring_up<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Stops all DMA and resets the card, so that it holds no addresses.
    fn halt<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Enables receive.
    fn enable_receive<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Disables receive.
    fn disable_receive<B: Bar>(hardware: &Hardware<B, Self>);

    /// Starts a receive queue whose descriptors are filled; the card gets all but the last.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// Stops a receive queue; the card no longer accesses its memory.
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// Starts an empty transmit queue.
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// Stops a transmit queue; the card no longer accesses its memory.
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;

    /// Returns the current state of the link.
    fn link<B: Bar>(hardware: &Hardware<B, Self>) -> Result<Link>;
    /// Sets whether the card removes VLAN tags from received packets.
    fn strip_vlan_tags<B: Bar>(hardware: &Hardware<B, Self>, on: bool);
    /// Writes the RSS key and table; the caller has validated the queues. A virtual function has no table.
    fn set_rss<B: Bar>(_hardware: &Hardware<B, Self>, _rss: &Rss) {}
    /// Writes the RSS table alone.
    fn set_table<B: Bar>(_hardware: &Hardware<B, Self>, _rss: &Rss) {}

    /// Gives each receive queue its own interrupt, throttled; all are masked.
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, Self>, queues: u16, throttle: Duration);
    /// Lets the card coalesce segments for the first `queues` queues, each packet for a short time. With interrupts, they
    /// are already [set](Controller::set_interrupts).
    fn set_coalescing<B: Bar>(_hardware: &Hardware<B, Self>, _queues: u16) {}
    /// Unmasks a queue's interrupt once. If a packet has already arrived, the card raises the interrupt immediately.
    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, Self>, queue: u16);
    /// Masks a queue's interrupt.
    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, Self>, queue: u16);

    /// Returns the registers of the card's clock; `None` if it has no clock.
    fn clock_registers() -> Option<ClockRegisters> {
        None
    }
    /// Prepares the counter for reading.
    fn latch_time<B: Bar>(_hardware: &Hardware<B, Self>) {}
    /// Returns the nanoseconds of the halves of the counter, or of a packet's time.
    fn nanoseconds<B: Bar>(_hardware: &Hardware<B, Self>, low: u32, high: u32) -> u64 {
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns the card's statistics since it was opened, from the sums of its counters.
    fn count<B: Bar>(counters: &mut CardCounters<'_, B, Self>) -> Statistics;
    /// Returns the counters of the card, and of its receive queues below `queues`.
    fn counters(queues: u16) -> Vec<Counter>;
}

/// A card, or its physical function: filters, pause frames and clock are under the driver's control.
pub trait PhysicalFunction: Controller {
    /// The most queues that receive-side scaling can reach.
    const MAX_RSS_QUEUES: u16;
    /// The entries of the table of unicast addresses.
    const ADDRESSES: u16;

    /// Returns the registers of an entry of the table of unicast addresses, low and high. Entry 0 is the card's own
    /// address.
    fn address_registers(entry: u16) -> (Register, Register);
    /// Returns a register of the multicast table.
    fn multicast_register(number: u16) -> Register;
    /// Returns a register of the table of VLANs.
    fn vlan_register(number: u16) -> Register;
    /// Sets whether the card accepts all unicast packets, and all multicast packets. Otherwise it accepts the addresses
    /// of its tables, and broadcast.
    fn set_promiscuous<B: Bar>(hardware: &Hardware<B, Self>, unicast: bool, multicast: bool);
    /// Sets whether the multicast table is in effect.
    fn use_multicast_table<B: Bar>(hardware: &Hardware<B, Self>, on: bool);
    /// Sets whether the table of VLANs is in effect.
    fn use_vlan_table<B: Bar>(hardware: &Hardware<B, Self>, on: bool);
    /// Sets the use of pause frames. Queues may have started.
    fn set_pause<B: Bar>(hardware: &Hardware<B, Self>, pause: Pause);

    /// Starts the card's counter, if it has a clock.
    fn start_counter<B: Bar>(_hardware: &Hardware<B, Self>) {}
    /// Lets the card find the received events of IEEE 1588.
    fn find_events<B: Bar>(_hardware: &Hardware<B, Self>) {}
}

/// A virtual function: the driver of its physical function controls the filters, and answers requests in a mailbox.
pub trait VirtualFunction: Controller<State = Mutex<Mailbox>> {
    /// The message that removes all addresses beside the function's own.
    const CLEAR_ADDRESSES: u32;
    /// The most addresses beside the function's own. The physical function may allow fewer.
    const MOST_ADDRESSES: usize;
    /// The function can remove VLAN tags.
    const STRIPS_TAGS: bool;

    /// Returns the register of the mailbox.
    fn mailbox() -> Register;
    /// Returns a register of the mailbox's memory.
    fn message(word: u16) -> Register;
    /// Returns the first word of the message that adds an address, which has this number, from 1.
    fn add_address(number: u32) -> u32;
    /// Masks all interrupts, and resets the function.
    fn reset_function<B: Bar>(hardware: &Hardware<B, Self>);
    /// Agrees on a version of the messages, and learns which queues the function has.
    fn negotiate<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Requests all unicast packets, and all multicast packets, or only packets to the function's addresses.
    fn request_modes<B: Bar>(hardware: &Hardware<B, Self>, modes: [bool; 2]) -> Result<()>;
}

/// The entries of rules in a card's tables. A value is the state of the tables; [`write`](Entries::write) brings the
/// card from one state to another.
pub trait Entries<C: Controller>: Clone + Default + Send {
    /// The driver has rules.
    const EXIST: bool = true;
    /// The number of filters that can have a mark.
    const MARKS: usize;

    /// Adds the entries for an alternative of a rule's filter. Entries of earlier rules decide first.
    ///
    /// # Errors
    /// Why the card cannot express this. The value is then undefined.
    fn add(&mut self, rule: RuleId, one: &Match, action: Action) -> std::result::Result<(), Refused>;

    /// Removes the entries of a rule.
    fn remove(&mut self, rule: RuleId);

    /// Returns the entries that do not need a queue, or one of these.
    fn with_queues(&self, is_started: impl Fn(u16) -> bool) -> Self;

    /// Writes the differences between `present`, the card's state, and these entries.
    ///
    /// # Errors
    /// The card does not answer.
    fn write<B: Bar>(&self, present: &Self, hardware: &Hardware<B, C>) -> Result<()>;
}

/// The features of most cards, and more features of cards with rules.
const FEATURES: [Feature; 12] = [
    Feature::SendChecksum,
    Feature::SendTcpSegments,
    Feature::SendUdpSegments,
    Feature::ReceiveChecksum,
    Feature::ReceiveHash,
    Feature::ReceiveKind,
    Feature::StripVlanTags,
    Feature::Rss,
    Feature::Clock,
    Feature::AddressFilter,
    Feature::VlanFilter,
    Feature::Pause,
];
const RULES: [Feature; 3] = [Feature::RuleToQueue, Feature::RuleToDrop, Feature::RuleToMark];

/// An open card.
pub struct Intel<B: Bar, C: PhysicalFunction> {
    hardware: Arc<Hardware<B, C>>,
    rss: Rss,
    filters: Filters,
    rules: Rules,
}

impl<B: Bar, C: PhysicalFunction> Intel<B, C> {
    /// Resets the card with the registers `bar` and brings it up. `bus` is the bus that it is on.
    ///
    /// # Errors
    /// An invalid [`Config`], memory that cannot be mapped, or a card that does not answer.
    pub fn open(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Intel<B, C>> {
        let rss = Rss::evenly(config.options.rx_queues.min(C::MAX_RSS_QUEUES));
        let hardware = Arc::new(Hardware::new(bar, bus, config)?);
        let (filters, rules) = (Filters::default(), Rules::default());
        let mut device = Intel { hardware, rss, filters, rules };
        device.filters.promiscuous = true;
        device.bring_up()?;
        Ok(device)
    }

    /// Checks the configuration for a card of this kind.
    ///
    /// # Errors
    /// A setting is not possible; the message gives the valid range.
    pub fn check(config: &Config) -> Result<()> {
        hardware::check::<C>(config)
    }

    fn bring_up(&mut self) -> Result<()> {
        C::bring_up(&self.hardware)?;
        if let Some(throttle) = self.hardware.config.options.interrupts {
            C::set_interrupts(&self.hardware, self.hardware.config.options.rx_queues, throttle);
        }
        if self.hardware.is_coalescing() {
            C::set_coalescing(&self.hardware, self.hardware.config.options.rx_queues);
        }
        let rss = self.rss.clone();
        self.set_rss(&rss)?;
        self.hardware.write_filters(&Filters::default(), &self.filters);
        self.hardware.restore_tags();
        self.hardware.restore_pause();
        self.hardware.start_clock()?;
        self.hardware.restore_entries()
    }

    /// Changes the filters by address and VLAN.
    fn change_filters(&mut self, wanted: Filters) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.write_filters(&self.filters, &wanted);
        self.filters = wanted;
        Ok(())
    }
}

impl<B: Bar, C: PhysicalFunction> Device for Intel<B, C> {
    fn name(&self) -> &str {
        &self.hardware.config.name
    }

    fn info(&self) -> Info {
        let config = &self.hardware.config;
        Info {
            driver: C::DRIVER,
            description: config.description.clone(),
            rx_queues: config.options.rx_queues,
            tx_queues: config.options.tx_queues,
            ring: config.ring(),
            max_frame: config.options.max_frame,
            class: config.class,
            mbits: C::MBITS,
            timestamps: false,
            capabilities: Capabilities::default()
                .with(C::FEATURES)
                .with_if(C::Entries::EXIST, &RULES)
                .with_if(self.hardware.is_coalescing(), &[Feature::ReceiveSegments]),
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.hardware.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        open::rx(&self.hardware, queue)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        open::tx(&self.hardware, queue)
    }

    fn statistics(&self) -> Result<Statistics> {
        self.hardware.statistics()
    }

    fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        self.hardware.register_counters()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.hardware.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.hardware.check_alive()?;
        C::link(&self.hardware)
    }

    fn mac(&self) -> MacAddress {
        let (low, high) = C::address_registers(0);
        MacAddress::from_words(self.hardware.read(low), self.hardware.read(high))
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.write_address(0, mac);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.change_filters(Filters { promiscuous: on, ..self.filters.clone() })
    }

    fn strip_vlan_tags(&mut self, on: bool) -> Result<()> {
        self.hardware.set_strip_tags(on)
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.change_filters(Filters { all_multicast: on, ..self.filters.clone() })
    }

    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        let most = usize::from(C::ADDRESSES - 1);
        self.change_filters(self.filters.with_addresses(self.name(), addresses, most, usize::MAX)?)
    }

    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        self.change_filters(self.filters.with_vlans(self.name(), vlans)?)
    }

    fn set_pause(&mut self, pause: Pause) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_pause(pause);
        Ok(())
    }

    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        rss.check(self.name(), self.hardware.config.options.rx_queues.min(C::MAX_RSS_QUEUES))?;
        self.hardware.check_alive()?;
        self.rss = rss.clone();
        self.hardware.apply_rss(rss)
    }

    fn add_rule(&mut self, filter: &Filter, action: Action) -> Result<RuleId> {
        let rule = self.rules.numbered(filter, action);
        self.hardware.add_rule(&rule)?;
        let id = rule.id;
        self.rules.push(rule);
        Ok(id)
    }

    fn remove_rule(&mut self, id: RuleId) -> Result<()> {
        let name = self.hardware.config.name.clone();
        self.rules.remove(&name, id)?;
        self.hardware.remove_rule(id)
    }

    fn rules(&self) -> Vec<Rule> {
        self.rules.list().to_vec()
    }

    fn clock(&self) -> Result<Clock> {
        C::clock_registers().ok_or_else(|| self.has_no("clock"))?;
        Ok(Clock::new(self.hardware.clone()))
    }

    fn reset(&mut self) -> Result<()> {
        let hardware = &self.hardware;
        hardware.counters.check_free(&hardware.config)?;
        // Save the counters before the reset clears them.
        hardware.register_counters()?;
        self.bring_up()
    }
}
