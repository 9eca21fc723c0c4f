//! Virtual functions of Intel's cards: a share of a card, with queues and interrupts, whose filters the driver of the
//! physical function controls. Requests to it are in [`mailbox`](super::mailbox).
//!
//! If the physical function is reset, so are the queues of its virtual functions. [`Virtual`] notices when it is asked
//! for the link or the statistics. It brings the function up again, and the queues then start again by themselves.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{
    Capabilities, Device, Feature, Info, Link, MacAddress, QueueStatistics, Receive, Statistics, Transmit,
};
use linerate_spec::mailbox::*;

use super::mailbox::{BOUND, SHORT_BOUND};
use super::{Hardware, VirtualFunction, open};
use crate::nic::Config;
use crate::nic::filters::Filters;
use crate::pci::{Bar, Bus};

/// The features of virtual functions.
const FEATURES: [Feature; 7] = [
    Feature::SendChecksum,
    Feature::SendTcpSegments,
    Feature::SendUdpSegments,
    Feature::ReceiveChecksum,
    Feature::ReceiveKind,
    Feature::AddressFilter,
    Feature::VlanFilter,
];

/// The least time between two attempts to bring up a function whose physical function does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// An open virtual function.
pub struct Virtual<B: Bar, C: VirtualFunction> {
    hardware: Arc<Hardware<B, C>>,
    settings: Mutex<Settings>,
}

/// The settings of the program, which are requested again after a reset.
struct Settings {
    /// The address that the program has set.
    address: Option<MacAddress>,
    filters: Filters,
    /// The filters that the physical function has granted.
    granted: Filters,
    /// The time of the last attempt to bring the function up, if it is not up.
    tried: Option<Instant>,
}

impl<B: Bar, C: VirtualFunction> Virtual<B, C> {
    /// Resets the function with the registers `bar` and brings it up. `bus` is the bus that it is on. It receives all
    /// packets if the physical function grants this, as it does to a trusted function.
    ///
    /// # Errors
    /// An invalid [`Config`], memory that cannot be mapped, or a physical function whose driver does not answer.
    pub fn open(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Virtual<B, C>> {
        let hardware = Arc::new(Hardware::new(bar, bus, config)?);
        let filters = Filters { promiscuous: true, ..Filters::default() };
        let mut settings = Settings { address: None, filters, granted: Filters::default(), tried: None };
        hardware.set_up(&mut settings)?;
        Ok(Virtual { hardware, settings: Mutex::new(settings) })
    }

    /// Brings the function up again if the physical function has reset it. Returns whether it is up.
    fn follow(&self) -> Result<bool> {
        let hardware = &self.hardware;
        hardware.check_alive()?;
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if settings.tried.is_none() && !hardware.was_reset()? {
            return Ok(true);
        }
        if settings.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return Ok(false);
        }
        let port = &hardware.config.name;
        if settings.tried.is_none() {
            tracing::warn!(port, "the physical function was reset, or is down");
        }
        hardware.mailbox().bound = SHORT_BOUND;
        let outcome = hardware.set_up(&mut settings);
        hardware.mailbox().bound = BOUND;
        match outcome {
            Ok(()) => {
                tracing::warn!(port, "the virtual function is up again");
                settings.tried = None;
                hardware.count_reset();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Gone => Err(error),
            Err(error) => {
                tracing::debug!(port, %error, "the virtual function is not up");
                settings.tried = Some(Instant::now());
                Ok(false)
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&Filters) -> Result<Filters>) -> Result<()> {
        self.hardware.check_alive()?;
        let settings = self.settings.get_mut().unwrap_or_else(PoisonError::into_inner);
        let wanted = change(&settings.filters)?;
        self.hardware.request_filters(&settings.granted, &wanted)?;
        (settings.granted, settings.filters) = (wanted.clone(), wanted);
        Ok(())
    }
}

impl<B: Bar, C: VirtualFunction> Hardware<B, C> {
    /// Brings the function up, and requests its settings.
    fn set_up(&self, settings: &mut Settings) -> Result<()> {
        C::bring_up(self)?;
        if let Some(throttle) = self.config.options.interrupts {
            C::set_interrupts(self, self.config.options.rx_queues, throttle);
        }
        if let Some(address) = settings.address {
            self.request_address(address)?;
        }
        settings.granted = settings.filters.clone();
        let mut outcome = self.request_filters(&Filters::default(), &settings.granted);
        // Without all packets, all multicast packets; without these, packets to its addresses and to all stations.
        for all_multicast in [true, false] {
            let Err(error) = &outcome else { break };
            if error.kind() != ErrorKind::Denied || !settings.granted.modes()[1] {
                break;
            }
            tracing::warn!(port = self.config.name, why = error.why(), "only packets to its own address arrive");
            settings.granted = Filters { promiscuous: false, all_multicast, ..settings.filters.clone() };
            outcome = self.request_filters(&Filters::default(), &settings.granted);
        }
        outcome?;
        self.restore_tags();
        self.skip_counts()
    }

    /// Resets the function, and greets the driver of the physical function, which lets it send and receive.
    pub(in crate::nic) fn reset_and_greet(&self) -> Result<()> {
        self.check_alive()?;
        C::reset_function(self);
        self.open_mailbox()?;
        self.free_quarantined();
        self.forget_queues();
        self.allow_dma()?;
        let [outcome, low, high, ..] = self.ask(&[RESET])?;
        let given = MacAddress::from_words(low, high);
        let is_given = outcome & SUCCESS != 0 && given != MacAddress::default() && !given.is_group();
        C::negotiate(self)?;
        // The physical function's driver takes the length with CRC.
        let length = self.config.options.max_frame as u32 + 4;
        if self.ask(&[SET_LENGTH, length])?[0] & FAILURE != 0 {
            let why = format!("the driver of the physical function refuses frames of {} bytes", length - 4);
            let remedy =
                "set the MTU of the physical function's interface first: sudo ip link set dev INTERFACE mtu MTU";
            return Err(
                Error::new(ErrorKind::BadOption, &*self.config.name, why).with_remedy(Remedy::Step(remedy.into()))
            );
        }
        if is_given {
            self.mailbox().address = given;
            return Ok(());
        }
        // The administrator has left the choice to the function. It keeps it after a reset.
        let own = self.mailbox().address;
        self.request_address(if own == MacAddress::default() { random_address() } else { own })
    }

    fn request_address(&self, address: MacAddress) -> Result<()> {
        let (low, high) = address.words();
        self.request("change the address", &[SET_ADDRESS, low, high])?;
        self.mailbox().address = address;
        Ok(())
    }

    /// Requests the differences between `present` and `wanted`.
    fn request_filters(&self, present: &Filters, wanted: &Filters) -> Result<()> {
        if present.unicast != wanted.unicast {
            let (low, high) = MacAddress::default().words();
            self.request("remove addresses", &[C::CLEAR_ADDRESSES, low, high])?;
            for (number, address) in wanted.unicast.iter().flatten().enumerate() {
                let (low, high) = address.words();
                self.request("receive another address", &[C::add_address(number as u32 + 1), low, high])?;
            }
        }
        if present.multicast != wanted.multicast {
            let mut message = [0; WORDS];
            let hashes = wanted.multicast_hashes();
            message[0] = SET_MULTICAST | (hashes.len() as u32) << INFO_SHIFT;
            for (at, hash) in hashes.enumerate() {
                message[1 + at / 2] |= u32::from(hash) << (at % 2 * 16);
            }
            self.request("receive multicast addresses", &message)?;
        }
        let vlans = |filters: &Filters| filters.vlans.clone().unwrap_or_default();
        for (added, vlan) in vlans(present)
            .difference(&vlans(wanted))
            .map(|vlan| (0, *vlan))
            .chain(vlans(wanted).difference(&vlans(present)).map(|vlan| (1, *vlan)))
        {
            self.request("receive another VLAN", &[SET_VLAN | added << INFO_SHIFT, vlan.into()])?;
        }
        match present.modes() == wanted.modes() {
            true => Ok(()),
            false => C::request_modes(self, wanted.modes()),
        }
    }
}

/// Returns a random address: locally administered, unicast. One of the port's name would be that of a function on another
/// machine, too.
fn random_address() -> MacAddress {
    let [a, b, c, d, e, ..] = RandomState::new().hash_one(0).to_be_bytes();
    MacAddress([0x02, a, b, c, d, e])
}

impl<B: Bar, C: VirtualFunction> Device for Virtual<B, C> {
    fn name(&self) -> &str {
        &self.hardware.config.name
    }

    fn info(&self) -> Info {
        let config = &self.hardware.config;
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = if settings.granted == settings.filters { "" } else { ", own address only: it is not trusted" };
        Info {
            driver: C::DRIVER,
            description: format!("{}{limits}", config.description),
            rx_queues: config.options.rx_queues,
            tx_queues: config.options.tx_queues,
            ring: config.ring(),
            max_frame: config.options.max_frame,
            class: config.class,
            mbits: C::MBITS,
            timestamps: false,
            capabilities: Capabilities::default().with(&FEATURES).with_if(C::STRIPS_TAGS, &[Feature::StripVlanTags]),
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
        self.follow()?;
        self.hardware.statistics()
    }

    fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        self.hardware.register_counters()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.hardware.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        match self.follow()? {
            true => C::link(&self.hardware),
            false => Ok(Link::Down),
        }
    }

    fn mac(&self) -> MacAddress {
        self.hardware.mailbox().address
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.request_address(mac)?;
        self.settings.get_mut().unwrap_or_else(PoisonError::into_inner).address = Some(mac);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.change(|filters| Ok(Filters { promiscuous: on, ..filters.clone() }))
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.change(|filters| Ok(Filters { all_multicast: on, ..filters.clone() }))
    }

    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        let name = self.name().to_string();
        self.change(|filters| filters.with_addresses(&name, addresses, C::MOST_ADDRESSES, MOST_MULTICAST))
    }

    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        let name = self.name().to_string();
        self.change(|filters| filters.with_vlans(&name, vlans))
    }

    fn strip_vlan_tags(&mut self, on: bool) -> Result<()> {
        if !C::STRIPS_TAGS {
            return Err(self.has_no("removal of VLAN tags"));
        }
        self.hardware.set_strip_tags(on)
    }

    fn reset(&mut self) -> Result<()> {
        let hardware = &self.hardware;
        hardware.counters.check_free(&hardware.config)?;
        hardware.register_counters()?;
        hardware.set_up(self.settings.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}
