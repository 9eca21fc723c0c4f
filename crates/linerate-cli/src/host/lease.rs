//! Addresses that the network grants: by DHCP, or by an IPv6 router's advertisement.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate::memory::Pool;
use linerate::port::{MacAddress, RxQueue, TxQueue};
use linerate::traffic::{AdvertisedNetwork, DhcpClient, DhcpLease, DhcpReply, Host};
use linerate::{Error, ErrorKind, Remedy};

use super::{Address, AddressSource, HostOptions, Responder};
use crate::terminal::note;

/// The times to wait for a reply to each DHCP message in turn (RFC 2131, section 4.1, begins with 4 s; a server that
/// checks an address by ping takes up to 3 s).
const DHCP_WAITS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];
/// How often a client begins again after the server has refused an address.
const REFUSALS: u32 = 3;
/// The number of router solicitations, and the time to wait for an advertisement after each (RFC 4861, section 10).
const SOLICITATIONS: u32 = 3;
const ROUTER_WAIT: Duration = Duration::from_secs(4);

/// Addresses that the network has granted to the ports of this process. They are used again when a port is opened again.
#[derive(Clone, Default)]
pub struct Granted(Arc<Mutex<BTreeMap<(String, bool), Grant>>>);

/// An address that the network has granted.
#[derive(Clone, Copy)]
struct Grant {
    address: Address,
    gateway: Option<IpAddr>,
    name_servers: [Option<IpAddr>; 3],
    /// When to ask again.
    until: Option<Instant>,
}

impl HostOptions {
    /// Replaces `dhcp` and `auto` by the addresses that the network grants, with its router unless a gateway is given.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`] if there is no usable reply.
    pub fn configure(
        &mut self,
        mac: MacAddress,
        pool: &Arc<Pool>,
        name: &str,
        tx: &mut TxQueue,
        rx: &mut [RxQueue],
    ) -> Result<(), Error> {
        let own = (mac.0, pool);
        for n in 0..self.address.len() {
            let source = self.address[n];
            if matches!(source, AddressSource::Fixed(_)) {
                continue;
            }
            let is_ipv4 = source.is_ipv4();
            let granted = self.granted.clone();
            let mut granted = granted.0.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (name.to_string(), is_ipv4);
            let known = granted.get(&key).filter(|grant| grant.until.is_none_or(|until| Instant::now() < until));
            let grant = match known {
                Some(grant) => *grant,
                None => {
                    let queues = (&mut *tx, &mut *rx);
                    let grant =
                        if is_ipv4 { self.ask_dhcp(own, name, queues)? } else { self.ask_router(own, name, queues)? };
                    granted.insert(key, grant);
                    grant
                }
            };
            self.address[n] = AddressSource::Fixed(grant.address);
            self.name_servers.extend(grant.name_servers.into_iter().flatten());
            if !self.gateway.iter().any(|gateway| gateway.is_ipv4() == is_ipv4) {
                self.gateway.extend(grant.gateway);
            }
        }
        Ok(())
    }

    fn ask_dhcp(
        &self,
        (mac, pool): ([u8; 6], &Arc<Pool>),
        name: &str,
        (tx, rx): (&mut TxQueue, &mut [RxQueue]),
    ) -> Result<Grant, Error> {
        let host = self.tagged(Host::new(mac, []));
        let mut client = DhcpClient::new(host.clone(), RandomState::new().build_hasher().finish() as u32);
        let mut responder = Responder::new(host, pool.clone(), Arc::<AtomicU64>::default());
        let mut refusals = 0;
        loop {
            let (offer, request) = (client.offer(), client.request());
            let mut reply = None;
            for wait in DHCP_WAITS {
                let receive = |_: &Host, frame: &[u8]| client.receive(frame);
                reply = responder.exchange(&request, wait, (name, "a DHCP server"), (&mut *tx, &mut *rx), receive)?;
                if reply.is_some() {
                    break;
                }
            }
            let failed = |why: String| Error::new(ErrorKind::Unusable, name, why);
            match (reply, offer) {
                (Some(DhcpReply::Offer), _) => {}
                (Some(DhcpReply::Lease(lease)), _) => return Ok(self.granted_by_dhcp(name, lease)),
                (Some(DhcpReply::Refused), Some((server, address))) => {
                    refusals += 1;
                    if refusals > REFUSALS {
                        let times = REFUSALS + 1;
                        return Err(failed(format!(
                            "the DHCP server {server} refused {address} {times} times (DHCPNAK)"
                        )));
                    }
                }
                (Some(DhcpReply::Unusable(why)), _) => {
                    return Err(failed(format!("the DHCP server's reply cannot be used: {why}")));
                }
                (_, Some((server, address))) => {
                    let count = DHCP_WAITS.len();
                    let why = format!(
                        "the DHCP server {server} offered {address}, but did not answer {count} DHCPREQUEST messages"
                    );
                    return Err(failed(why));
                }
                (_, None) => {
                    let (count, seconds) = (DHCP_WAITS.len(), DHCP_WAITS.iter().sum::<Duration>().as_secs());
                    let why = format!("no DHCP server answered {count} DHCPDISCOVER messages in {seconds} s");
                    let remedy = "check the server, the cable and the VLAN, or give an address: --address 10.0.0.2/24";
                    return Err(failed(why).with_remedy(Remedy::Step(remedy.into())));
                }
            }
        }
    }

    fn ask_router(
        &self,
        (mac, pool): ([u8; 6], &Arc<Pool>),
        name: &str,
        (tx, rx): (&mut TxQueue, &mut [RxQueue]),
    ) -> Result<Grant, Error> {
        let host = self.tagged(Host::link_local(mac));
        let request = host.ask_router().expect("it has an IPv6 address");
        let mut responder = Responder::new(host, pool.clone(), Arc::<AtomicU64>::default());
        for _ in 0..SOLICITATIONS {
            let waiting = (name, "a router advertisement");
            let found = responder.exchange(&request, ROUTER_WAIT, waiting, (&mut *tx, &mut *rx), Host::learn_router)?;
            if let Some(AdvertisedNetwork { address, prefix_length, router, name_servers }) = found {
                let by = router.map_or("without a router".to_string(), |router| format!("router {router}"));
                self.say(&format!("{name}: {address}/{prefix_length} by router advertisement, {by}"));
                let address = Address { address: address.into(), length: Some(prefix_length) };
                let name_servers = name_servers.map(|server| server.map(IpAddr::from));
                return Ok(Grant { address, gateway: router.map(IpAddr::from), name_servers, until: None });
            }
        }
        let why = format!("no router advertised a prefix for addresses after {SOLICITATIONS} solicitations");
        let remedy = "check the router, the cable and the VLAN, or give an address: --address fd00::2/64";
        Err(Error::new(ErrorKind::Unusable, name, why).with_remedy(Remedy::Step(remedy.into())))
    }

    /// Says what was granted, unless another program has standard error.
    fn say(&self, text: &str) {
        if !self.is_quiet {
            note(text);
        }
    }

    fn granted_by_dhcp(&self, name: &str, lease: DhcpLease) -> Grant {
        let DhcpLease { address, prefix_length, router, name_servers, server, seconds } = lease;
        let by = router.map_or("without a router".to_string(), |router| format!("router {router}"));
        let time = seconds.map_or(String::new(), |seconds| format!(" for {seconds} s"));
        self.say(&format!("{name}: {address}/{prefix_length} from DHCP server {server}{time}, {by}"));
        // RFC 2131, section 4.4.5: half of the time has passed. It is not renewed while packets are sent.
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(u64::from(seconds) / 2));
        let address = Address { address: address.into(), length: Some(prefix_length) };
        let name_servers = name_servers.map(|server| server.map(IpAddr::from));
        Grant { address, gateway: router.map(IpAddr::from), name_servers, until }
    }
}
