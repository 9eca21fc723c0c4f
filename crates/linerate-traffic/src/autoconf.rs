//! Stateless address autoconfiguration of IPv6 (RFC 4862): a host asks for a router, and forms its address from the
//! advertised prefix.

use std::net::{IpAddr, Ipv6Addr};

use super::host::{Host, ICMP6, NET, icmp6_checksum};

/// A router advertisement, and the address that the host forms with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedNetwork {
    /// The host's address: the prefix, and an identifier from its MAC address (RFC 4291, appendix A).
    pub address: Ipv6Addr,
    /// The length of the prefix.
    pub prefix_length: u8,
    /// The router's link-local address, if it is a default router.
    pub router: Option<Ipv6Addr>,
    /// The first name servers (RFC 8106, section 5.1), as many as a resolver uses (resolv.conf(5)).
    pub name_servers: [Option<Ipv6Addr>; 3],
}

/// ff02::2.
const ALL_ROUTERS: [u8; 16] = [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// The offset of an advertisement's options.
const OPTIONS: usize = ICMP6 + 16;
/// The option "prefix information" (RFC 4861, section 4.6.2): 32 bytes.
const PREFIX: u8 = 3;
/// The option "recursive DNS server" (RFC 8106, section 5.1).
const NAME_SERVERS: u8 = 25;
/// The flag of a prefix: hosts may form addresses with this prefix.
const AUTONOMOUS: u8 = 0x40;
/// The only length of a prefix with which an identifier of 64 bits makes an address.
const LENGTH: u8 = 64;

impl Host {
    /// Creates a host with a link-local address, which it forms from its MAC address.
    pub fn link_local(mac: [u8; 6]) -> Host {
        Host::new(mac, [IpAddr::V6(address([0xFE, 0x80, 0, 0, 0, 0, 0, 0], mac))])
    }

    /// Returns a router solicitation (RFC 4861, section 4.1). `None` if the host has no IPv6 address.
    ///
    /// ```
    /// use linerate::traffic::Host;
    /// let host = Host::link_local([2, 0, 0, 0, 0, 9]);
    /// let frame = host.ask_router().unwrap();
    /// assert_eq!((frame[54], host.learn_router(&frame)), (133, None));
    /// ```
    pub fn ask_router(&self) -> Option<Vec<u8>> {
        let own = self.addresses().iter().find_map(|own| match own {
            IpAddr::V6(own) => Some(own.octets()),
            IpAddr::V4(_) => None,
        })?;
        let mac = self.mac();
        let mut frame = [&[0x33, 0x33, 0, 0, 0, 2][..], &mac, &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 16, 58, 255]].concat();
        frame.extend([&own[..], &ALL_ROUTERS, &[SOLICITATION, 0, 0, 0, 0, 0, 0, 0, 1, 1], &mac].concat());
        let sum = icmp6_checksum(&frame);
        frame[ICMP6 + 2..ICMP6 + 4].copy_from_slice(&sum.to_be_bytes());
        self.add_tag(&mut frame);
        Some(frame)
    }

    /// Returns the network of a router advertisement. `None` for any other frame, and for an advertisement without a
    /// prefix from which hosts may form addresses.
    pub fn learn_router(&self, frame: &[u8]) -> Option<AdvertisedNetwork> {
        let mut frame = frame.to_vec();
        if !self.remove_tag(&mut frame) {
            return None;
        }
        let packet = frame.get(..self.end_of_ip6(&frame)?)?;
        let source = Ipv6Addr::from(*packet[NET + 8..].first_chunk::<16>()?);
        // From a router of this link; it was not routed itself (section 6.1.2).
        let is_valid = packet[ICMP6..ICMP6 + 2] == [ADVERTISEMENT, 0]
            && packet[NET + 7] == 255
            && source.is_unicast_link_local()
            && icmp6_checksum(packet) == 0;
        let mut options = packet.get(OPTIONS..).filter(|_| is_valid)?;
        let lifetime = u16::from_be_bytes(*packet[ICMP6 + 6..].first_chunk()?);
        let router = (lifetime > 0).then_some(source);
        let (mut network, mut name_servers) = (None, Vec::new());
        while !options.is_empty() {
            let (option, rest) = options.split_at_checked(usize::from(*options.get(1)?) * 8)?;
            // A length of 0 has no end.
            options = (!option.is_empty()).then_some(rest)?;
            if option[0] == NAME_SERVERS && option[4..8] != [0; 4] {
                name_servers.extend(option[8..].as_chunks().0.iter().map(|octets| Ipv6Addr::from(*octets)));
            }
            let is_first = network.is_none();
            let prefix = option.first_chunk::<32>().filter(|option| is_first && option[0] == PREFIX);
            let Some(option) = prefix else { continue };
            let (prefix, valid): (&[u8; 8], &[u8]) = (option[16..].first_chunk()?, &option[4..8]);
            let is_usable = option[2] == LENGTH && option[3] & AUTONOMOUS != 0 && valid != [0; 4];
            let address = address(*prefix, self.mac());
            if is_usable && !address.is_unicast_link_local() && !address.is_multicast() {
                network = Some(address);
            }
        }
        let mut name_servers = name_servers.into_iter();
        let name_servers = std::array::from_fn(|_| name_servers.next());
        Some(AdvertisedNetwork { address: network?, prefix_length: LENGTH, router, name_servers })
    }
}

/// Returns the address with this prefix and the identifier of a MAC address.
fn address(prefix: [u8; 8], [a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&prefix);
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0xFF, 0xFE, d, e, f]);
    Ipv6Addr::from(octets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Template;

    const MAC: [u8; 6] = [0, 0, 0x5E, 0, 0x53, 9];

    /// Returns an advertisement with these options in hexadecimal.
    fn advertisement(hop: u8, lifetime: u16, options: &str) -> Vec<u8> {
        let text = format!(
            "eth/ip6(src=fe80::1,dst=ff02::1,hop={hop})/icmp6(type=134,id=0x4000,seq={lifetime})/hex(0000000000000000{options})"
        );
        let mut frames = text.parse::<Template>().unwrap().frames().unwrap();
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        frame
    }

    fn prefix(length: u8, flags: u8, valid: u32) -> String {
        format!("0304{length:02x}{flags:02x}{valid:08x}0000000000000000fd000000000000070000000000000000")
    }

    #[test]
    fn an_address_is_formed_from_an_advertised_prefix() {
        let host = Host::link_local(MAC);
        let learn = |hop, lifetime, options: &str| host.learn_router(&advertisement(hop, lifetime, options));
        let usable = prefix(64, 0xC0, 3600);
        let network = AdvertisedNetwork {
            address: "fd00:0:0:7:200:5eff:fe00:5309".parse().unwrap(),
            prefix_length: 64,
            router: Some("fe80::1".parse().unwrap()),
            name_servers: [None; 3],
        };
        assert_eq!(learn(255, 1800, &usable), Some(network));
        let servers = format!("{usable}1903000000000e10fd000000000000000000000000000053");
        let name_servers = [Some("fd00::53".parse().unwrap()), None, None];
        assert_eq!(learn(255, 1800, &servers), Some(AdvertisedNetwork { name_servers, ..network }));
        // After the option "MTU", and an unusable prefix.
        let after = format!("05010000000005dc{}{usable}", prefix(64, 0x80, 3600));
        assert_eq!(learn(255, 0, &after), Some(AdvertisedNetwork { router: None, ..network }));
        for (hop, options) in [
            (254, usable.clone()),
            (255, String::new()),
            (255, prefix(64, 0x80, 3600)),
            (255, prefix(63, 0xC0, 3600)),
            (255, prefix(64, 0xC0, 0)),
            (255, format!("0500{usable}")),
            (255, usable[..60].to_string()),
        ] {
            assert_eq!(learn(hop, 1800, &options), None, "{options}");
        }
    }

    proptest! {
        #[test]
        fn hostile_advertisements_do_not_panic(options in proptest::collection::vec(any::<u8>(), 0..80), len in 0..200usize) {
            let hex: String = options.iter().map(|byte| format!("{byte:02x}")).collect();
            let frame = advertisement(255, 1, &hex);
            let _ = Host::link_local(MAC).learn_router(&frame[..len.min(frame.len())]);
            let _ = Host::link_local(MAC).learn_router(&frame);
        }
    }
}
