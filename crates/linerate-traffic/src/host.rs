//! A host at a port: it answers requests for its addresses and pings, and asks for the MAC addresses of others.

use std::net::{IpAddr, Ipv4Addr};

use super::checksum::checksum;

/// The addresses of a port, and its replies to requests for them: ARP requests (RFC 826), neighbour solicitations (RFC
/// 4861), and echo requests (RFC 792, RFC 4443). It also makes such requests ([`ask`](Host::ask)). It stores nothing
/// about other hosts: a reply goes to the frame's sender.
///
/// ```
/// use linerate::traffic::{Host, Template};
/// let host = Host::new([2, 0, 0, 0, 0, 9], ["10.0.0.9".parse().unwrap()]);
/// let mut frames = "eth/arp(spa=10.0.0.1,tpa=10.0.0.9)".parse::<Template>().unwrap().frames().unwrap();
/// let mut frame = vec![0; frames.next_len()];
/// frames.fill(&mut frame);
/// assert!(host.answer_arp(&mut frame));
/// assert_eq!((&frame[6..12], frame[21]), (&[2, 0, 0, 0, 0, 9][..], 2)); // from the host, a reply
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    mac: [u8; 6],
    addresses: Vec<IpAddr>,
    /// The VLAN whose frames the host sends and receives; `None`: frames without a tag.
    vlan: Option<u16>,
}

/// The offset of the network header in frames without VLAN tag.
pub(super) const NET: usize = 14;
/// The shortest frame without CRC.
const SHORTEST: usize = 60;
/// The offset of ICMP after IPv4 without options.
const ICMP: usize = NET + 20;
/// The offset of ICMPv6 directly after IPv6.
pub(super) const ICMP6: usize = NET + 40;
/// The offset of a neighbour solicitation's target.
const TARGET: usize = ICMP6 + 8;
/// ff02::1.
const ALL_NODES: [u8; 16] = [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

impl Host {
    /// Creates a host with these addresses.
    pub fn new(mac: [u8; 6], addresses: impl IntoIterator<Item = IpAddr>) -> Host {
        Host { mac, addresses: addresses.into_iter().collect(), vlan: None }
    }

    /// Places the host into a VLAN (IEEE 802.1Q): it only receives frames with this tag, and sends them with it.
    pub fn with_vlan(self, id: u16) -> Host {
        Host { vlan: Some(id & 0xFFF), ..self }
    }

    /// Returns a request for the MAC address of another host: an ARP request, or a neighbour solicitation (RFC 4861,
    /// section 4.3). `None` if this host has no address of the same family.
    ///
    /// ```
    /// use linerate::traffic::Host;
    /// let asking = Host::new([2, 0, 0, 0, 0, 1], ["fd00::1".parse().unwrap()]);
    /// let asked = Host::new([2, 0, 0, 0, 0, 9], ["fd00::9".parse().unwrap()]);
    /// let mut frame = asking.ask("fd00::9".parse().unwrap()).unwrap();
    /// assert!(asked.answer_arp(&mut frame));
    /// assert_eq!(asking.learn(&frame, "fd00::9".parse().unwrap()), Some([2, 0, 0, 0, 0, 9]));
    /// ```
    pub fn ask(&self, target: IpAddr) -> Option<Vec<u8>> {
        let own = self.addresses.iter().find(|own| own.is_ipv4() == target.is_ipv4())?;
        let mut frame = match (own, target) {
            (IpAddr::V4(own), IpAddr::V4(target)) => self.arp_request(own.octets(), target.octets()),
            (IpAddr::V6(own), IpAddr::V6(target)) => self.solicitation(own.octets(), target.octets()),
            _ => return None,
        };
        self.add_tag(&mut frame);
        Some(frame)
    }

    /// Returns the MAC address of `target`, if the frame is its reply to [`ask`](Host::ask).
    pub fn learn(&self, frame: &[u8], target: IpAddr) -> Option<[u8; 6]> {
        let mut frame = frame.to_vec();
        if !self.remove_tag(&mut frame) || frame.get(..6) != Some(&self.mac) {
            return None;
        }
        match target {
            IpAddr::V4(target) => {
                let arp: &[u8; 28] = frame.get(NET..)?.first_chunk()?;
                let is_reply = frame_type(&frame) == [8, 6] && arp[..8] == [0, 1, 8, 0, 6, 4, 0, 2];
                (is_reply && arp[14..18] == target.octets()).then(|| arp[8..].first_chunk().copied())?
            }
            IpAddr::V6(target) => {
                let packet = &frame[..self.end_of_ip6(&frame)?];
                let is_reply = packet[ICMP6] == 136 && packet[NET + 7] == 255 && icmp6_checksum(packet) == 0;
                let is_of_target = packet.get(TARGET..TARGET + 16)? == target.octets();
                // The option "target link-layer address"; without it, the sender's address.
                let option = packet.get(TARGET + 16..TARGET + 24).filter(|option| option[..2] == [2, 1]);
                let mac = option.map_or(&frame[6..12], |option| &option[2..]);
                (is_reply && is_of_target).then(|| mac.first_chunk().copied())?
            }
        }
    }

    /// Returns a probe for whether another host has an address (RFC 5227, section 2.1.1).
    ///
    /// ```
    /// use linerate::traffic::Host;
    /// let [new, old] = [9, 1].map(|last| [2, 0, 0, 0, 0, last]);
    /// let address = [10, 53, 0, 1].into();
    /// let mut frame = Host::new(new, []).probe(address);
    /// assert!(Host::new(old, [address.into()]).answer_arp(&mut frame));
    /// assert_eq!(Host::new(new, []).conflict(&frame, address), Some(old));
    /// ```
    pub fn probe(&self, address: Ipv4Addr) -> Vec<u8> {
        let mut frame = self.arp_request([0; 4], address.octets());
        self.add_tag(&mut frame);
        frame
    }

    /// Returns the MAC address of a host that has this address, or that probes it at the same time and goes first, if
    /// the frame shows one (RFC 5227, section 2.1.1). Of two that probe, the one with the lower MAC address goes first,
    /// so that one of them gets the address.
    pub fn conflict(&self, frame: &[u8], address: Ipv4Addr) -> Option<[u8; 6]> {
        let mut frame = frame.to_vec();
        let arp: &[u8; 28] = self.remove_tag(&mut frame).then(|| frame.get(NET..))??.first_chunk()?;
        let mac: [u8; 6] = *arp[8..].first_chunk()?;
        let is_arp = frame_type(&frame) == [8, 6] && arp[..6] == [0, 1, 8, 0, 6, 4];
        let has = arp[14..18] == address.octets();
        let probes = arp[14..18] == [0; 4] && arp[24..28] == address.octets() && mac < self.mac;
        (is_arp && mac != self.mac && (has || probes)).then_some(mac)
    }

    fn arp_request(&self, own: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut frame = [&[0xFF; 6][..], &self.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &self.mac, &own].concat();
        frame.extend([[0; 6].as_slice(), &target].concat());
        frame.resize(SHORTEST, 0);
        frame
    }

    /// Returns a neighbour solicitation to the target's solicited-node address (RFC 4291, section 2.7.1).
    fn solicitation(&self, own: [u8; 16], target: [u8; 16]) -> Vec<u8> {
        let mut group = [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, 0, 0, 0];
        group[13..].copy_from_slice(&target[13..]);
        let mut frame =
            [&[0x33, 0x33][..], &group[12..], &self.mac, &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 32, 58, 255]].concat();
        frame.extend([&own[..], &group, &[135, 0, 0, 0, 0, 0, 0, 0], &target, &[1, 1], &self.mac].concat());
        let sum = icmp6_checksum(&frame);
        frame[ICMP6 + 2..ICMP6 + 4].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Returns the host's MAC address.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the host's addresses.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Removes the tag of the host's VLAN. Returns false for a frame that is not for this VLAN.
    pub(super) fn remove_tag(&self, frame: &mut Vec<u8>) -> bool {
        match (self.vlan, frame.get(12..16)) {
            (None, _) => true,
            (Some(id), Some(&[0x81, 0, high, low])) if u16::from_be_bytes([high, low]) & 0xFFF == id => {
                frame.drain(12..16);
                true
            }
            (Some(_), _) => false,
        }
    }

    pub(super) fn add_tag(&self, frame: &mut Vec<u8>) {
        if let Some(id) = self.vlan {
            let [high, low] = id.to_be_bytes();
            frame.splice(12..12, [0x81, 0, high, low]);
        }
    }

    /// Calls `answer` with a frame without its tag, and adds the tag again. Leaves frames of other VLANs unchanged.
    fn without_tag(&self, frame: &mut Vec<u8>, answer: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> bool {
        if !self.remove_tag(frame) {
            return false;
        }
        let is_answered = answer(frame).is_some();
        self.add_tag(frame);
        is_answered
    }

    /// Turns a request for the MAC address of one of the host's addresses into its reply, and returns true; leaves any
    /// other frame unchanged. Requests are ARP requests, and IPv6's neighbour solicitations, including duplicate
    /// address detection (RFC 4862, section 5.4).
    pub fn answer_arp(&self, frame: &mut Vec<u8>) -> bool {
        self.without_tag(frame, |frame| self.answer_request(frame).or_else(|| self.answer_solicitation(frame)))
    }

    /// Turns an echo request for one of the host's addresses into its reply, and returns true; leaves any other frame
    /// unchanged. Those include fragments, frames of another VLAN, with IPv4 options or extension headers, and requests
    /// whose source cannot be another host.
    pub fn answer_ping(&self, frame: &mut Vec<u8>) -> bool {
        let is_for_us = frame.get(..6) == Some(&self.mac);
        is_for_us && self.without_tag(frame, |frame| self.answer_echo(frame).or_else(|| self.answer_echo6(frame)))
    }

    fn has(&self, address: impl Into<IpAddr>) -> bool {
        self.addresses.contains(&address.into())
    }

    /// Returns whether an address can belong to another host.
    fn can_be_other_host(&self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        let is_one = match address {
            IpAddr::V4(address) => !address.is_broadcast() && address.octets()[0] != 0,
            IpAddr::V6(_) => !address.is_unspecified(),
        };
        is_one && !address.is_multicast() && !address.is_loopback() && !self.has(address)
    }

    /// Answers an ARP request.
    fn answer_request(&self, frame: &mut [u8]) -> Option<()> {
        let arp: &mut [u8; 28] = frame.get_mut(NET..)?.first_chunk_mut()?;
        // An Ethernet and IPv4 request.
        let is_request = arp[..8] == [0, 1, 8, 0, 6, 4, 0, 1];
        let target: [u8; 4] = *arp.last_chunk()?;
        if !is_request || frame_type(frame) != [8, 6] || !self.has(target) {
            return None;
        }
        let arp = &mut frame[NET..NET + 28];
        let sender: [u8; 10] = *arp[8..].first_chunk()?;
        arp[7] = 2;
        arp[8..14].copy_from_slice(&self.mac);
        arp[14..18].copy_from_slice(&target);
        arp[18..].copy_from_slice(&sender);
        self.address_reply(frame);
        Some(())
    }

    /// Answers a neighbour solicitation by an advertisement (RFC 4861, section 7.2).
    fn answer_solicitation(&self, frame: &mut Vec<u8>) -> Option<()> {
        let end = self.end_of_ip6(frame)?;
        let packet = frame.get(..end)?;
        let source: [u8; 16] = *packet[NET + 8..].first_chunk()?;
        let target: [u8; 16] = *packet.get(TARGET..)?.first_chunk()?;
        // Type 135; hop limit 255 shows that it was not routed.
        if packet[ICMP6] != 135 || packet[NET + 7] != 255 || !self.has(target) || icmp6_checksum(packet) != 0 {
            return None;
        }
        // From an unspecified address, there must be no option with the sender's MAC address (type 1).
        let is_claim = source == [0; 16];
        let options = &packet[TARGET + 16..];
        if is_claim && options.first() == Some(&1) || !is_claim && !self.can_be_other_host(source) {
            return None;
        }
        // Adds the option "target link-layer address" (2), of 8 bytes.
        frame.resize(TARGET + 24, 0);
        frame[NET + 4..NET + 6].copy_from_slice(&32u16.to_be_bytes());
        // A claim is answered to all nodes; other replies are marked as solicited. Both override cached addresses.
        let (to, flags) = if is_claim { (ALL_NODES, 0x20) } else { (source, 0x60) };
        frame[NET + 8..NET + 24].copy_from_slice(&target);
        frame[NET + 24..ICMP6].copy_from_slice(&to);
        frame[ICMP6..TARGET].copy_from_slice(&[136, 0, 0, 0, flags, 0, 0, 0]);
        frame[TARGET + 16..TARGET + 18].copy_from_slice(&[2, 1]);
        frame[TARGET + 18..].copy_from_slice(&self.mac);
        let sum = icmp6_checksum(frame);
        frame[ICMP6 + 2..ICMP6 + 4].copy_from_slice(&sum.to_be_bytes());
        self.address_reply(frame);
        if is_claim {
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        }
        Some(())
    }

    /// Answers an echo request.
    fn answer_echo(&self, frame: &mut [u8]) -> Option<()> {
        let ip = frame.get(NET..ICMP)?;
        let destination: [u8; 4] = *ip.last_chunk()?;
        // IPv4 without options, with ICMP, and not a fragment.
        let source: [u8; 4] = *ip[12..].first_chunk()?;
        let is_plain = frame_type(frame) == [8, 0] && ip[0] == 0x45 && ip[9] == 1 && ip[6] & 0x3F == 0 && ip[7] == 0;
        let end = NET + usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        if !is_plain || checksum(0, ip) != 0 || !self.has(destination) || !self.can_be_other_host(source) {
            return None;
        }
        let icmp = frame.get_mut(ICMP..end)?;
        if icmp.len() < 8 || icmp[0] != 8 || checksum(0, icmp) != 0 {
            return None;
        }
        icmp[0] = 0;
        icmp[2..4].fill(0);
        let sum = checksum(0, icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let ip = &mut frame[NET..ICMP];
        ip.copy_within(12..16, 16);
        ip[12..16].copy_from_slice(&destination);
        // Swapping the addresses changes no sum; the time to live is reset.
        ip[8] = 64;
        ip[10..12].fill(0);
        let sum = checksum(0, ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        self.address_reply(frame);
        Some(())
    }

    /// Answers an IPv6 echo request.
    fn answer_echo6(&self, frame: &mut [u8]) -> Option<()> {
        let end = self.end_of_ip6(frame)?;
        let packet = frame.get_mut(..end)?;
        let source: [u8; 16] = *packet.get(NET + 8..)?.first_chunk()?;
        let destination: [u8; 16] = *packet.get(NET + 24..)?.first_chunk()?;
        let is_request = packet[ICMP6] == 128 && self.has(destination) && self.can_be_other_host(source);
        if !is_request || icmp6_checksum(packet) != 0 {
            return None;
        }
        packet.copy_within(NET + 8..NET + 24, NET + 24);
        packet[NET + 8..NET + 24].copy_from_slice(&destination);
        packet[NET + 7] = 64;
        packet[ICMP6] = 129;
        packet[ICMP6 + 2..ICMP6 + 4].fill(0);
        let sum = icmp6_checksum(packet);
        packet[ICMP6 + 2..ICMP6 + 4].copy_from_slice(&sum.to_be_bytes());
        self.address_reply(frame);
        Some(())
    }

    /// Returns the end of an IPv6 packet with ICMPv6; `None` for any other frame.
    pub(super) fn end_of_ip6(&self, frame: &[u8]) -> Option<usize> {
        let ip = frame.get(NET..ICMP6)?;
        let is_icmp = frame_type(frame) == [0x86, 0xDD] && ip[0] >> 4 == 6 && ip[6] == 58;
        let end = ICMP6 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        (is_icmp && (ICMP6 + 8..=frame.len()).contains(&end)).then_some(end)
    }

    /// Addresses a reply to the frame's sender.
    fn address_reply(&self, frame: &mut [u8]) {
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&self.mac);
    }
}

/// Returns a frame's EtherType; 0 if it has none.
fn frame_type(frame: &[u8]) -> [u8; 2] {
    frame.get(12..14).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or_default()
}

/// Returns the checksum of an ICMPv6 packet and the addresses before it: 0 if its own is right.
pub(super) fn icmp6_checksum(packet: &[u8]) -> u16 {
    checksum(58 + (packet.len() - ICMP6) as u64, &packet[NET + 8..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Template;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn host() -> Host {
        Host::new(MAC, ["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()])
    }

    fn frame(text: &str) -> Vec<u8> {
        let mut frames = text.parse::<Template>().unwrap().frames().unwrap();
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        frame
    }

    /// Each request becomes its answer.
    #[test]
    fn requests_are_answered() {
        let eth = "eth(src=02:00:00:00:00:09,dst=02:00:00:00:00:01)";
        let target = "fd000000000000000000000000000009";
        for (request, answer) in [
            (
                "eth(src=02:00:00:00:00:01)/arp(sha=02:00:00:00:00:01,spa=10.0.0.1,tpa=10.0.0.9)".to_string(),
                "/arp(op=2,sha=02:00:00:00:00:09,spa=10.0.0.9,tha=02:00:00:00:00:01,tpa=10.0.0.1)".to_string(),
            ),
            (
                "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:09)/ip(src=10.0.0.1,dst=10.0.0.9,ttl=3,id=7)/icmp(id=5,seq=6)/payload(33)".into(),
                "/ip(src=10.0.0.9,dst=10.0.0.1,id=7)/icmp(type=0,id=5,seq=6)/payload(33)".into(),
            ),
            (
                "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:09)/ip6(src=fd00::1,dst=fd00::9,hop=3)/icmp6(id=5,seq=6)/payload(33)".into(),
                "/ip6(src=fd00::9,dst=fd00::1)/icmp6(type=129,id=5,seq=6)/payload(33)".into(),
            ),
            (
                format!(
                    "eth(src=02:00:00:00:00:01,dst=33:33:ff:00:00:09)/ip6(src=fd00::1,dst=ff02::1:ff00:9,hop=255)\
                     /icmp6(type=135,id=0,seq=0)/hex({target}0101020000000001)"
                ),
                format!("/ip6(src=fd00::9,dst=fd00::1,hop=255)/icmp6(type=136,id=0x6000,seq=0)/hex({target}0201020000000009)"),
            ),
            // Sent only to the host, without an option.
            (
                format!(
                    "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:09)/ip6(src=fd00::1,dst=fd00::9,hop=255)\
                     /icmp6(type=135,id=0,seq=0)/hex({target})"
                ),
                format!("/ip6(src=fd00::9,dst=fd00::1,hop=255)/icmp6(type=136,id=0x6000,seq=0)/hex({target}0201020000000009)"),
            ),
        ] {
            let mut asked = frame(&request);
            assert!(host().answer_arp(&mut asked) || host().answer_ping(&mut asked), "{request}");
            assert_eq!(asked, frame(&format!("{eth}{answer}")), "{request}");
            // A reply is not a request.
            assert!(!host().answer_arp(&mut asked) && !host().answer_ping(&mut asked));
        }
        // A claim of the address, with a nonce option (RFC 7527), is answered to all nodes.
        for option in ["", "0e01010203040506"] {
            let claim = format!(
                "eth(src=02:00:00:00:00:01,dst=33:33:ff:00:00:09)/ip6(src=::,dst=ff02::1:ff00:9,hop=255)\
                 /icmp6(type=135,id=0,seq=0)/hex({target}{option})"
            );
            let mut asked = frame(&claim);
            assert!(host().answer_arp(&mut asked));
            let answer = format!(
                "eth(src=02:00:00:00:00:09,dst=33:33:00:00:00:01)/ip6(src=fd00::9,dst=ff02::1,hop=255)\
                 /icmp6(type=136,id=0x2000,seq=0)/hex({target}0201020000000009)"
            );
            assert_eq!(asked, frame(&answer));
        }
    }

    /// Two hosts find each other, with and without a VLAN; a host of another VLAN does not answer.
    #[test]
    fn hosts_find_each_other() {
        for vlan in [None, Some(7)] {
            let in_vlan = |host: Host| vlan.map_or(host.clone(), |id| host.with_vlan(id));
            let asking =
                in_vlan(Host::new([2, 0, 0, 0, 0, 1], ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap())));
            let (asked, other) = (in_vlan(host()), host().with_vlan(8));
            for target in ["10.0.0.9", "fd00::9"] {
                let target = target.parse().unwrap();
                let mut frame = asking.ask(target).unwrap();
                assert!(frame.len() >= 60);
                let request = frame.clone();
                assert!(!other.answer_arp(&mut frame) && frame == request);
                assert!(asking.learn(&frame, target).is_none(), "a request is not a reply");
                assert!(asked.answer_arp(&mut frame));
                assert_eq!(asking.learn(&frame, target), Some(MAC));
                assert_eq!(asking.learn(&frame, "10.0.0.8".parse().unwrap()), None);
                assert!((0..42).all(|len| asking.learn(&frame[..len], target).is_none()));
            }
        }
        assert!(Host::new(MAC, ["10.0.0.1".parse().unwrap()]).ask("fd00::1".parse().unwrap()).is_none());
    }

    #[test]
    fn others_are_left_as_they_are() {
        for text in [
            "eth/arp(tpa=10.0.0.8)",
            "eth(dst=02:00:00:00:00:08)/ip(dst=10.0.0.9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.8)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9,mf)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9,offset=1)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9,len=9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9,len=999)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9,checksum=9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9)/icmp(checksum=9)",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9)/icmp(type=0)",
            "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9)/udp",
            "eth(dst=02:00:00:00:00:09)/ip6(dst=fd00::9)/icmp6(checksum=9)",
            "eth(dst=02:00:00:00:00:09)/ip6(dst=fd00::9,len=999)/icmp6",
            "eth(dst=02:00:00:00:00:09)/ip6(dst=fd00::8)/icmp6",
            "eth(dst=02:00:00:00:00:09)/vlan/ip(dst=10.0.0.9)/icmp",
            // The source cannot be another host.
            "eth(dst=02:00:00:00:00:09)/ip(src=0.0.0.0,dst=10.0.0.9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(src=255.255.255.255,dst=10.0.0.9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(src=224.0.0.5,dst=10.0.0.9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip(src=10.0.0.9,dst=10.0.0.9)/icmp",
            "eth(dst=02:00:00:00:00:09)/ip6(src=::,dst=fd00::9)/icmp6",
            "eth(dst=02:00:00:00:00:09)/ip6(src=ff02::1,dst=fd00::9)/icmp6",
            // A claim must have no MAC address option; a routed solicitation has another hop limit.
            "eth/ip6(src=::,dst=ff02::1,hop=255)/icmp6(type=135,id=0,seq=0)/hex(fd0000000000000000000000000000090101020000000001)",
            "eth/ip6(dst=ff02::1,hop=254)/icmp6(type=135,id=0,seq=0)/hex(fd0000000000000000000000000000090101020000000001)",
        ] {
            let (before, mut after) = (frame(text), frame(text));
            assert!(!host().answer_arp(&mut after) && !host().answer_ping(&mut after), "{text}");
            assert_eq!(after, before, "{text}");
        }
    }

    proptest! {
        /// No frame panics, and a frame without a reply is unchanged.
        #[test]
        fn damaged_requests_are_answered_or_left(
            kind in 0..4usize, at in 0..120usize, byte: u8, len in 0..160usize, both: bool,
        ) {
            let text = [
                "eth/arp(tpa=10.0.0.9)",
                "eth(dst=02:00:00:00:00:09)/ip(dst=10.0.0.9)/icmp/payload(33)",
                "eth(dst=02:00:00:00:00:09)/ip6(dst=fd00::9)/icmp6/payload(33)",
                "eth/ip6(dst=ff02::1,hop=255)/icmp6(type=135,id=0,seq=0)/hex(fd0000000000000000000000000000090101020000000001)",
            ][kind];
            let mut bytes = frame(text);
            bytes.truncate(len);
            if let Some(damaged) = bytes.get_mut(at).filter(|_| both) {
                *damaged = byte;
            }
            let before = bytes.clone();
            if !host().answer_arp(&mut bytes) && !host().answer_ping(&mut bytes) {
                prop_assert_eq!(bytes, before);
            }
        }
    }
}
