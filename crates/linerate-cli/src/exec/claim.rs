//! A free address of a small private network (RFC 5227).

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use linerate::memory::Pool;
use linerate::port::{MacAddress, RxQueue, TxQueue};
use linerate::traffic::Host;
use linerate::{Error, ErrorKind, Remedy};

use crate::host::Responder;

/// The probes for each address, and the time to wait after each: shorter than RFC 5227's, whose 7 s are for networks of
/// bridges that start.
const PROBES: usize = 3;
const WAIT: Duration = Duration::from_millis(200);

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    network: u32,
    length: u8,
}

impl Default for Subnet {
    /// 10.53.0.0/24
    fn default() -> Subnet {
        Subnet { network: Ipv4Addr::new(10, 53, 0, 0).to_bits(), length: 24 }
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let wrong = || "it must be an IPv4 network with 8 to 30 bits, such as 10.53.0.0/24".to_string();
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let (address, length) = (address.parse::<Ipv4Addr>().ok(), length.parse::<u8>().ok());
        match (address, length) {
            (Some(address), Some(length @ 8..=30)) if !address.is_multicast() && !address.is_loopback() => {
                Ok(Subnet { network: address.to_bits() & u32::MAX << (32 - length), length })
            }
            _ => Err(wrong()),
        }
    }
}

impl Subnet {
    /// Takes the first address that no other host of the port's network has or is about to take. Probes and their replies
    /// take `delay` longer than on a cable.
    ///
    /// # Errors
    /// All are taken.
    pub fn claim(
        &self,
        mac: MacAddress,
        pool: &Arc<Pool>,
        (port, delay): (&str, Duration),
        tx: &mut TxQueue,
        rx: &mut [RxQueue],
    ) -> Result<(IpAddr, u8), Error> {
        let mut responder = Responder::new(Host::new(mac.0, []), pool.clone(), Arc::default());
        let hosts = (1 << (32 - self.length)) - 1;
        for number in 1..hosts {
            let address = Ipv4Addr::from_bits(self.network + number);
            let mut is_taken = false;
            for _ in 0..PROBES {
                let taken = |host: &Host, frame: &[u8]| host.conflict(frame, address);
                let probe = Host::new(mac.0, []).probe(address);
                is_taken = responder
                    .exchange(&probe, WAIT + delay, (port, "a free address"), (&mut *tx, &mut *rx), taken)?
                    .is_some();
                if is_taken {
                    break;
                }
            }
            if !is_taken {
                return Ok((address.into(), self.length));
            }
        }
        let why = format!("all addresses of {}/{} are taken", Ipv4Addr::from_bits(self.network), self.length);
        Err(Error::new(ErrorKind::Exhausted, port, why)
            .with_remedy(Remedy::Step("choose a larger network: --net=10.53.0.0/16".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_parsed() {
        let net: Subnet = "192.168.7.9/29".parse().unwrap();
        assert_eq!((Ipv4Addr::from_bits(net.network), net.length), (Ipv4Addr::new(192, 168, 7, 8), 29));
        for wrong in ["", "10.0.0.0", "10.0.0.0/7", "10.0.0.0/31", "127.0.0.0/8", "224.0.0.0/24", "fd00::/64", "a/24"] {
            assert!(wrong.parse::<Subnet>().is_err(), "{wrong}");
        }
    }
}
