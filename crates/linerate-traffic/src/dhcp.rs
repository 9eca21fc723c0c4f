//! A DHCP client (RFC 2131): a port takes its address, prefix length and router from a server. It only handles frames;
//! the caller sends them, waits, and repeats them.
//!
//! The wire format is written here: the crates for it bring dozens of others, and a client needs four messages with
//! fixed fields.

use std::net::Ipv4Addr;

use super::checksum::checksum;
use super::host::{Host, NET};

/// Asks DHCP servers for an address.
///
/// ```
/// use linerate::traffic::{DhcpClient, Host};
/// let mut client = DhcpClient::new(Host::new([2, 0, 0, 0, 0, 9], []), 1);
/// let discover = client.request();
/// assert_eq!(discover[..6], [0xFF; 6]);
/// // Its own message is not a reply.
/// assert!(client.receive(&discover).is_none());
/// ```
#[derive(Clone, Debug)]
pub struct DhcpClient {
    host: Host,
    /// The number that replies have, too.
    transaction: u32,
    /// The accepted offer: the address and the server.
    offer: Option<(Ipv4Addr, Ipv4Addr)>,
}

/// A server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpReply {
    /// An offer, which the next [request](DhcpClient::request) accepts.
    Offer,
    /// The server has granted an address.
    Lease(DhcpLease),
    /// The server has refused the request; the client begins again.
    Refused,
    /// The server's reply has no usable address, for this reason.
    Unusable(&'static str),
}

/// An address that a server has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpLease {
    /// The address.
    pub address: Ipv4Addr,
    /// The length of the network's prefix; at most 32.
    pub prefix_length: u8,
    /// The router, if the server named one.
    pub router: Option<Ipv4Addr>,
    /// The first name servers, as many as a resolver uses (resolv.conf(5)).
    pub name_servers: [Option<Ipv4Addr>; 3],
    /// The server.
    pub server: Ipv4Addr,
    /// The time for which the address is granted, in seconds; `None`: without an end.
    pub seconds: Option<u32>,
}

/// UDP ports of the server and the client.
const SERVER: u16 = 67;
const CLIENT: u16 = 68;
/// The offset of a message's options: after 236 bytes of fields, and the cookie.
const OPTIONS: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The least length of a message: some servers and relays drop shorter ones (RFC 1542, section 2.1).
const SHORTEST: usize = 300;

/// Options (RFC 2132).
mod option {
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const CLIENT: u8 = 61;
    pub const END: u8 = 255;
}

/// Values of the option "message type".
mod message {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
}

impl DhcpClient {
    /// Creates a client for a host without an address. `transaction` distinguishes its messages from others; use a
    /// random number.
    pub fn new(host: Host, transaction: u32) -> DhcpClient {
        DhcpClient { host, transaction, offer: None }
    }

    /// Returns the server whose offer the client has accepted, and the offered address.
    pub fn offer(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        self.offer.map(|(address, server)| (server, address))
    }

    /// Returns the frame to send now, and again if it is not answered: DHCPDISCOVER, or, after an offer, DHCPREQUEST.
    pub fn request(&self) -> Vec<u8> {
        let mac = self.host.mac();
        // The client has no address yet, so replies are to be broadcast: flag 0x8000.
        let mut bytes = vec![1, 1, 6, 0];
        bytes.extend(self.transaction.to_be_bytes());
        bytes.extend([0, 0, 0x80, 0]);
        bytes.resize(28, 0);
        bytes.extend(mac);
        bytes.resize(OPTIONS - 4, 0);
        bytes.extend(COOKIE);
        let mut add = |option: u8, value: &[u8]| {
            bytes.extend([option, value.len() as u8]);
            bytes.extend(value);
        };
        // An identifier of its own: a lease of the kernel on the same interface stays separate.
        add(option::CLIENT, &[b"\0linerate".as_slice(), &mac].concat());
        add(option::PARAMETERS, &[option::SUBNET_MASK, option::ROUTER, option::NAME_SERVERS, option::LEASE_TIME]);
        match self.offer {
            None => add(option::MESSAGE_TYPE, &[message::DISCOVER]),
            Some((address, server)) => {
                add(option::MESSAGE_TYPE, &[message::REQUEST]);
                add(option::REQUESTED_ADDRESS, &address.octets());
                add(option::SERVER, &server.octets());
            }
        }
        bytes.push(option::END);
        bytes.resize(bytes.len().max(SHORTEST), option::PAD);
        self.frame(&bytes)
    }

    /// Returns a broadcast frame with a message.
    fn frame(&self, message: &[u8]) -> Vec<u8> {
        let mut frame = [&[0xFF; 6][..], &self.host.mac(), &[8, 0]].concat();
        let len = (message.len() + 28) as u16;
        let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        let sum = checksum(0, &ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        // A UDP checksum of 0 means none.
        for field in [CLIENT, SERVER, len - 20, 0] {
            frame.extend(field.to_be_bytes());
        }
        frame.extend(message);
        self.host.add_tag(&mut frame);
        frame
    }

    /// Processes a frame that arrived. Returns `None` if it is not a server's reply to this client.
    pub fn receive(&mut self, frame: &[u8]) -> Option<DhcpReply> {
        let mut frame = frame.to_vec();
        if !self.host.remove_tag(&mut frame) {
            return None;
        }
        let reply = Reply::of(&frame)?;
        if reply.fixed.first_chunk::<3>() != Some(&[2, 1, 6])
            || reply.fixed[4..8] != self.transaction.to_be_bytes()
            || reply.fixed[28..34] != self.host.mac()
        {
            return None;
        }
        let server = reply.address(option::SERVER);
        match (reply.option(option::MESSAGE_TYPE)?, self.offer) {
            ([message::OFFER], None) => {
                // Without its address, the server cannot be told that its offer is accepted.
                let Some(server) = server else { return Some(DhcpReply::Unusable("an offer without a server")) };
                if !is_host(reply.own_address()) {
                    return Some(DhcpReply::Unusable("an offer without an address"));
                }
                self.offer = Some((reply.own_address(), server));
                Some(DhcpReply::Offer)
            }
            ([message::ACK], Some((_, accepted))) if server.is_none_or(|server| server == accepted) => {
                Some(reply.lease(accepted).map_or_else(DhcpReply::Unusable, DhcpReply::Lease))
            }
            ([message::NAK], Some((_, accepted))) if server.is_none_or(|server| server == accepted) => {
                self.offer = None;
                Some(DhcpReply::Refused)
            }
            _ => None,
        }
    }
}

/// Returns whether a host can have this address.
fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast() || address.is_loopback())
}

/// A message to a client. Its contents are untrusted.
struct Reply<'a> {
    /// At least the fields and the cookie.
    fixed: &'a [u8],
    options: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Finds the message in a frame: IPv4 that is not a fragment, and UDP to the client's port.
    fn of(frame: &'a [u8]) -> Option<Reply<'a>> {
        let ip = frame.get(NET..)?;
        let fixed: &[u8; 20] = ip.first_chunk()?;
        let header = usize::from(fixed[0] & 0xF) * 4;
        let len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        let is_whole = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3FFF == 0;
        let is_plain = frame[12..14] == [8, 0] && fixed[0] >> 4 == 4 && header >= 20 && fixed[9] == 17 && is_whole;
        if !is_plain || checksum(0, ip.get(..header)?) != 0 {
            return None;
        }
        let udp = ip.get(header..len)?;
        let [source, destination, length, sum] =
            udp.first_chunk::<8>().map(|udp| [0, 2, 4, 6].map(|at| u16::from_be_bytes([udp[at], udp[at + 1]])))?;
        let udp = udp.get(..length.into())?;
        let pseudo: u64 = fixed[12..].chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let is_intact = sum == 0 || checksum(pseudo + 17 + u64::from(length), udp) == 0;
        let message = udp.get(8..)?;
        let is_reply = (source, destination) == (SERVER, CLIENT) && message.get(OPTIONS - 4..OPTIONS)? == COOKIE;
        (is_reply && is_intact).then(|| Reply { fixed: message, options: &message[OPTIONS..] })
    }

    /// Returns an option's value; `None` if it is absent or incomplete. Options may continue in the fields `file` and
    /// `sname` (RFC 2131, section 4.1), in which no server puts those of this client.
    fn option(&self, wanted: u8) -> Option<&'a [u8]> {
        let mut rest = self.options;
        loop {
            match rest {
                [option::PAD, after @ ..] => rest = after,
                [option::END, ..] | [] | [_] => return None,
                [code, len, after @ ..] => {
                    let (value, after) = after.split_at_checked((*len).into())?;
                    if *code == wanted {
                        return Some(value);
                    }
                    rest = after;
                }
            }
        }
    }

    /// Returns the first address of an option.
    fn address(&self, option: u8) -> Option<Ipv4Addr> {
        let address: [u8; 4] = *self.option(option)?.first_chunk()?;
        Some(Ipv4Addr::from(address)).filter(|address| is_host(*address))
    }

    /// Returns the client's address: the field `yiaddr`.
    fn own_address(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = self.fixed[..20] else { return Ipv4Addr::UNSPECIFIED };
        Ipv4Addr::new(a, b, c, d)
    }

    /// Returns the lease that an acknowledgement grants.
    fn lease(&self, server: Ipv4Addr) -> Result<DhcpLease, &'static str> {
        let address = self.own_address();
        if !is_host(address) {
            return Err("an acknowledgement without an address");
        }
        let mask = match self.option(option::SUBNET_MASK) {
            Some(mask) => mask.try_into().map(u32::from_be_bytes).map_err(|_| "a netmask of another length than 4")?,
            None if self.option(option::OVERLOAD).is_some() => return Err("options in the fields of file names"),
            // That of the address's class, as before there were prefixes.
            None => match address.octets()[0] {
                0..128 => 0xFF00_0000,
                128..192 => 0xFFFF_0000,
                _ => 0xFFFF_FF00,
            },
        };
        let prefix_length = mask.leading_ones() as u8;
        if mask.count_ones() != mask.leading_ones() {
            return Err("a netmask with a gap");
        }
        let seconds = self.option(option::LEASE_TIME).and_then(|time| Some(u32::from_be_bytes(time.try_into().ok()?)));
        // RFC 2131, section 3.3: all ones is infinity.
        let seconds = seconds.filter(|seconds| *seconds != u32::MAX);
        let all = self.option(option::NAME_SERVERS).unwrap_or_default().as_chunks().0;
        let mut all = all.iter().map(|octets| Ipv4Addr::from(*octets)).filter(|address| is_host(*address));
        let name_servers = std::array::from_fn(|_| all.next());
        Ok(DhcpLease { address, prefix_length, router: self.address(option::ROUTER), name_servers, server, seconds })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Template;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    /// The offset of the DHCP message: after IPv4 without options, and UDP.
    const MESSAGE: usize = NET + 28;

    fn client() -> DhcpClient {
        DhcpClient::new(Host::new(MAC, []), 0x0102_0304)
    }

    /// Returns a server's message, made by a template: `options` in hexadecimal.
    fn reply(own: [u8; 4], options: &str) -> Vec<u8> {
        let mut message = vec![2, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0x80, 0, 0, 0, 0, 0];
        message.extend(own);
        message.resize(28, 0);
        message.extend(MAC);
        message.resize(236, 0);
        message.extend(COOKIE);
        let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("eth(dst=ff:ff:ff:ff:ff:ff)/ip(src=10.0.0.1)/udp(sport=67,dport=68)/hex({hex}{options})");
        let mut frames = text.parse::<Template>().unwrap().frames().unwrap();
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        frame
    }

    const OFFER: &str = "350102 36040a000001 ff";
    const ACK: &str =
        "00 350105 36040a000001 0104ffffff00 0308 0a000001 0a000002 0608 00000000 0a000035 330400000e10 ff";

    #[test]
    fn an_address_is_offered_requested_and_granted() {
        let mut client = client();
        let discover = client.request();
        // The options are after the cookie: the message's type is the last of three.
        assert!(discover.windows(3).any(|option| option == [53, 1, message::DISCOVER]));
        assert_eq!(client.receive(&reply([10, 0, 0, 50], ACK)), None, "nothing was requested yet");
        assert_eq!(client.receive(&reply([10, 0, 0, 50], OFFER)), Some(DhcpReply::Offer));
        let offer = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 50));
        assert_eq!(client.offer(), Some(offer));
        let request = client.request();
        for option in [&[53, 1, message::REQUEST][..], &[50, 4, 10, 0, 0, 50], &[54, 4, 10, 0, 0, 1]] {
            assert!(request.windows(option.len()).any(|bytes| bytes == option), "{option:?}");
        }
        assert_eq!(client.receive(&reply([10, 0, 0, 51], OFFER)), None, "another server's offer");
        let lease = DhcpLease {
            address: Ipv4Addr::new(10, 0, 0, 50),
            prefix_length: 24,
            router: Some(Ipv4Addr::new(10, 0, 0, 1)),
            name_servers: [Some(Ipv4Addr::new(10, 0, 0, 53)), None, None],
            server: Ipv4Addr::new(10, 0, 0, 1),
            seconds: Some(3600),
        };
        assert_eq!(client.receive(&reply([10, 0, 0, 50], ACK)), Some(DhcpReply::Lease(lease)));
        assert_eq!(client.receive(&reply([10, 0, 0, 50], "350106 36040a000001 ff")), Some(DhcpReply::Refused));
        assert_eq!(client.offer(), None);
    }

    #[test]
    fn replies_without_a_usable_address_are_refused_with_a_reason() {
        for (own, options, why) in [
            ([10, 0, 0, 50], "350105 0104ff00ff00 ff", "a netmask with a gap"),
            ([10, 0, 0, 50], "350105 0103ffff00 ff", "a netmask of another length than 4"),
            ([0, 0, 0, 0], "350105 ff", "an acknowledgement without an address"),
            ([224, 0, 0, 5], "350105 ff", "an acknowledgement without an address"),
        ] {
            let mut client = client();
            client.receive(&reply([10, 0, 0, 50], OFFER)).unwrap();
            assert_eq!(client.receive(&reply(own, options)), Some(DhcpReply::Unusable(why)));
        }
        assert_eq!(
            client().receive(&reply([10, 0, 0, 50], "350102 ff")),
            Some(DhcpReply::Unusable("an offer without a server"))
        );
        // Not to this client: another transaction, card or server; or damaged.
        for at in [MESSAGE, MESSAGE + 4, MESSAGE + 28, NET + 20, NET + 9, MESSAGE + 236, MESSAGE + 100] {
            let mut frame = reply([10, 0, 0, 50], OFFER);
            frame[at] ^= 1;
            assert_eq!(client().receive(&frame), None, "byte {at}");
        }
    }

    /// In a VLAN, only tagged replies are read.
    #[test]
    fn replies_have_the_tag_of_the_vlan() {
        let mut client = DhcpClient::new(Host::new(MAC, []).with_vlan(7), 0x0102_0304);
        assert_eq!(client.request()[12..16], [0x81, 0, 0, 7]);
        let mut frame = reply([10, 0, 0, 50], OFFER);
        assert_eq!(client.receive(&frame), None);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(client.receive(&frame), Some(DhcpReply::Offer));
    }

    proptest! {
        /// No reply panics; a lease is that of a host.
        #[test]
        fn hostile_replies_do_not_panic(
            len in 0..400usize, options in proptest::collection::vec(any::<u8>(), 0..64), at in 0..330usize, byte: u8, is_damaged: bool,
        ) {
            let hex: String = options.iter().map(|byte| format!("{byte:02x}")).collect();
            for start in ["350102 36040a000001", "350105", "350106", ""] {
                let mut client = client();
                for _ in 0..2 {
                    let mut frame = reply([10, 0, 0, 50], &format!("{start} {hex}ff"));
                    if let Some(damaged) = frame.get_mut(at).filter(|_| is_damaged) {
                        *damaged = byte;
                    }
                    frame.truncate(len.max(frame.len() * usize::from(len % 2 == 0)));
                    if let Some(DhcpReply::Lease(lease)) = client.receive(&frame) {
                        prop_assert!(is_host(lease.address) && lease.prefix_length <= 32);
                    }
                    client.offer = client.offer.or(Some((Ipv4Addr::new(10, 0, 0, 50), Ipv4Addr::new(10, 0, 0, 1))));
                }
            }
        }
    }
}
