//! The rules of an edit, and their notation.

use std::net::IpAddr;
use std::str::FromStr;

use linerate_core::error::Error;

use crate::template::{Field, Protocol, Values, field_of, parse_mac, split, split_layer};

/// Maps addresses that begin with one prefix to another, or one MAC address to another: `10.0.0.0/8=198.18.0.0/15`.
///
/// The bits after the new prefix keep their values. An address without a length is mapped alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressMap {
    /// The length of the addresses in bytes: 4, 16, or 6 for MAC addresses.
    pub(super) len: usize,
    old: u128,
    old_mask: u128,
    new: u128,
    new_mask: u128,
}

impl FromStr for AddressMap {
    type Err = Error;

    fn from_str(text: &str) -> Result<AddressMap, Error> {
        parse_map(text).map_err(Error::bad_value)
    }
}

fn parse_map(text: &str) -> Result<AddressMap, String> {
    let (old, new) = text.split_once('=').ok_or("it must be OLD=NEW, such as 10.0.0.0/8=198.18.0.0/15".to_string())?;
    let ((len, old, old_mask), (new_len, new, new_mask)) = (prefix(old)?, prefix(new)?);
    if len != new_len {
        return Err(format!("'{text}' maps addresses of one kind to another"));
    }
    Ok(AddressMap { len, old, old_mask, new, new_mask })
}

/// Parses an address with or without a prefix length; returns its length in bytes, its bits and their mask.
fn prefix(text: &str) -> Result<(usize, u128, u128), String> {
    let text = text.trim();
    if let Some(mac) = parse_mac(text) {
        return Ok((6, mac, (1 << 48) - 1));
    }
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let (len, address) = match address.parse() {
        Ok(IpAddr::V4(address)) => (4, u128::from(address.to_bits())),
        Ok(IpAddr::V6(address)) => (16, address.to_bits()),
        Err(_) => return Err(format!("'{address}' is neither an IP address nor a MAC address")),
    };
    let most = len as u32 * 8;
    let bits = bits.map_or(Ok(most), |bits| {
        let number = bits.parse().ok().filter(|bits| *bits <= most);
        number.ok_or_else(|| format!("'{text}': a prefix has 0 to {most} bits"))
    })?;
    let all = u128::MAX >> (128 - most);
    let mask = all & !1u128.checked_shl(most - bits).map_or(u128::MAX, |end| end - 1);
    Ok((len, address & mask, mask))
}

impl AddressMap {
    /// Returns the new address for one of this length, if it is mapped.
    pub(super) fn new_of(&self, address: u128) -> Option<u128> {
        (address & self.old_mask == self.old).then_some(self.new | address & !self.new_mask)
    }
}

/// Maps ports of TCP, UDP and SCTP, on both sides: `80=8080`, `8000-8999=80` (all to one), `8000-8999=9000-9999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMap {
    old: (u16, u16),
    new: (u16, u16),
}

impl FromStr for PortMap {
    type Err = Error;

    fn from_str(text: &str) -> Result<PortMap, Error> {
        let parse = || {
            let (old, new) = text.split_once('=')?;
            let range = |text: &str| {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
            };
            let (old, new) = (range(old)?, range(new)?);
            let (count, new_count) = (old.1.checked_sub(old.0)?, new.1.checked_sub(new.0)?);
            (new_count == 0 || count == new_count).then_some(PortMap { old, new })
        };
        parse().ok_or_else(|| {
            Error::bad_value("it must be OLD=NEW, such as 80=8080, 8000-8999=80 or 8000-8999=9000-9999".to_string())
        })
    }
}

impl PortMap {
    /// Returns the new port for a port, if it is mapped.
    pub(super) fn new_of(&self, port: u16) -> Option<u16> {
        let is_mapped = (self.old.0..=self.old.1).contains(&port);
        let offset = if self.new.0 == self.new.1 { 0 } else { port.wrapping_sub(self.old.0) };
        is_mapped.then(|| self.new.0.wrapping_add(offset))
    }
}

/// Sets fields of headers, in the language of a [`Template`](crate::Template): `ip(ttl=64,dscp=46)/udp(dport=53)`.
///
/// The order of the layers has no meaning: each header of a frame gets the fields that its layer names. A TTL or hop
/// limit can also be changed by a number: `ip(ttl=-1)`, within 1 to 255.
#[derive(Clone, Debug)]
pub struct Fields(pub(super) Vec<SetField>);

#[derive(Clone, Copy, Debug)]
pub(super) struct SetField {
    pub protocol: Protocol,
    pub field: &'static Field,
    pub value: NewValue,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NewValue {
    Constant(u128),
    Change(i16),
}

impl FromStr for Fields {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fields, Error> {
        fields(text).map(Fields).map_err(Error::bad_value)
    }
}

fn fields(text: &str) -> Result<Vec<SetField>, String> {
    let mut all = Vec::new();
    for layer in split(text, '/')? {
        let (protocol, inner) = split_layer(layer.trim())?;
        let name = protocol.name();
        if matches!(protocol, Protocol::Gre | Protocol::Vxlan) || protocol.fields().is_empty() {
            return Err(format!("{name} has no fields that can be set in a frame"));
        }
        for argument in split(inner.unwrap_or_default(), ',')? {
            let Some((field, value)) = argument.split_once('=') else {
                return Err(format!("{name}: '{argument}' has no value; write {name}({}=…)", argument.trim()));
            };
            let field = field_of(protocol, field.trim()).map_err(|why| format!("{name}: {why}"))?;
            let value = new_value(field, value.trim()).map_err(|why| format!("{name}: {}: {why}", field.name))?;
            all.push(SetField { protocol, field, value });
        }
    }
    Ok(all)
}

fn new_value(field: &'static Field, text: &str) -> Result<NewValue, String> {
    if matches!(field.name, "ttl" | "hop") && text.starts_with(['+', '-']) {
        let change = text.parse().ok().filter(|change: &i16| change.unsigned_abs() <= 255);
        return change.map(NewValue::Change).ok_or_else(|| format!("'{text}' is not a number from -255 to +255"));
    }
    match Values::parse(text, field.notation, field.bits)? {
        Values::Constant(value) => Ok(NewValue::Constant(value)),
        _ => Err(format!("'{text}' has several values; an edit sets the same in each frame")),
    }
}

impl SetField {
    /// Returns the value for a field that has `old`.
    pub fn value(&self, old: u128) -> u128 {
        match self.value {
            NewValue::Constant(value) => value,
            NewValue::Change(change) => (old as i32 + i32::from(change)).clamp(1, 255) as u128,
        }
    }

    /// Returns whether it sets a checksum, which then is not corrected.
    pub fn is_checksum(&self) -> bool {
        self.field.name == "checksum"
    }
}

/// A tag to insert after the Ethernet addresses, in the language of a [`Template`](crate::Template): `vlan(id=7,pcp=3)`
/// or `qinq(id=100)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub(super) [u8; 4]);

impl FromStr for Tag {
    type Err = Error;

    fn from_str(text: &str) -> Result<Tag, Error> {
        tag(text).map(Tag).map_err(Error::bad_value)
    }
}

fn tag(text: &str) -> Result<[u8; 4], String> {
    let kind = match split_layer(text.trim())?.0 {
        Protocol::Vlan => 0x8100u16,
        Protocol::Qinq => 0x88A8,
        other => return Err(format!("{} cannot be inserted; vlan(id=7) and qinq(id=7) can", other.name())),
    };
    let mut control = 0u16;
    for set in fields(text)? {
        let NewValue::Constant(value) = set.value else { continue };
        match set.field.name {
            "pcp" => control |= (value as u16) << 13,
            "dei" => control |= (value as u16) << 12,
            "id" => control |= value as u16,
            name => return Err(format!("{name} is that of the frame, and not set")),
        }
    }
    let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
    Ok([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_mapped_by_their_prefixes() {
        let v4 = |text: &str| u128::from(text.parse::<std::net::Ipv4Addr>().unwrap().to_bits());
        let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        for (map, old, new) in [
            ("10.0.0.0/8=198.18.0.0/15", v4("10.255.2.3"), Some(v4("198.19.2.3"))),
            ("10.9.9.9/8=198.18.0.0/15", v4("10.0.2.3"), Some(v4("198.18.2.3"))),
            ("10.0.0.0/24=192.0.2.128/25", v4("10.0.0.200"), Some(v4("192.0.2.200"))),
            ("10.0.0.0/8=198.18.0.0/15", v4("11.0.2.3"), None),
            ("10.0.0.1=10.0.0.2", v4("10.0.0.1"), Some(v4("10.0.0.2"))),
            ("0.0.0.0/0=127.0.0.0/8", v4("1.2.3.4"), Some(v4("127.2.3.4"))),
            ("2001:db8::/32=2001:2::/48", v6("2001:db8:1:2::3"), Some(v6("2001:2:0:2::3"))),
            ("::/0=::/0", v6("2001:db8:1:2::3"), Some(v6("2001:db8:1:2::3"))),
            ("02:00:00:00:00:01=02:00:00:00:00:0a", 0x0200_0000_0001, Some(0x0200_0000_000A)),
            ("02:00:00:00:00:01=02:00:00:00:00:0a", 0x0200_0000_0002, None),
        ] {
            assert_eq!(map.parse::<AddressMap>().unwrap().new_of(old), new, "{map}");
        }
        for (map, why) in [
            ("10.0.0.0/8", "OLD=NEW"),
            ("10.0.0.0/33=1.0.0.0/8", "0 to 32 bits"),
            ("10.0.0.0/8=2001:db8::/32", "one kind to another"),
            ("host=10.0.0.1", "neither an IP address nor a MAC address"),
        ] {
            let said = map.parse::<AddressMap>().unwrap_err().to_string();
            assert!(said.contains(why), "{map}: {said}");
        }
    }

    #[test]
    fn ports_are_mapped_one_by_one_or_to_one() {
        for (map, old, new) in [
            ("80=8080", 80, Some(8080)),
            ("80=8080", 8080, None),
            ("8000-8999=80", 8999, Some(80)),
            ("8000-8999=9000-9999", 8123, Some(9123)),
            ("0-65535=0-65535", 65_535, Some(65_535)),
        ] {
            assert_eq!(map.parse::<PortMap>().unwrap().new_of(old), new, "{map}");
        }
        for map in ["80", "80=x", "9-8=1", "8-9=1-3", "80=70000"] {
            assert!(map.parse::<PortMap>().unwrap_err().to_string().contains("it must be OLD=NEW"), "{map}");
        }
    }

    #[test]
    fn fields_and_tags_are_those_of_templates() {
        assert_eq!("ip(ttl=64,dscp=46)/udp(dport=53)".parse::<Fields>().unwrap().0.len(), 3);
        let ttl = |text: &str, old| text.parse::<Fields>().unwrap().0[0].value(old);
        assert_eq!([ttl("ip(ttl=-1)", 64), ttl("ip6(hop=-64)", 64), ttl("ip(ttl=+255)", 3)], [63, 1, 255]);
        assert_eq!("vlan(id=7,pcp=3)".parse::<Tag>().unwrap().0, [0x81, 0, 0x60, 7]);
        assert_eq!("qinq(id=4095,dei=1)".parse::<Tag>().unwrap().0, [0x88, 0xA8, 0x1F, 0xFF]);
        for (text, why) in [
            ("ip(ttl=1-9)", "several values"),
            ("ip(ttl=-256)", "-255 to +255"),
            ("ip(tt=1)", "'tt' is not a field"),
            ("ip(ttl)", "has no value"),
            ("quic(x=1)", "is not a layer"),
            ("payload(64)", "no fields that can be set"),
            ("udp(dport=70000)", "too large"),
        ] {
            let said = text.parse::<Fields>().unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!("ip(ttl=1)".parse::<Tag>().unwrap_err().to_string().contains("cannot be inserted"));
        assert!("vlan(type=1)".parse::<Tag>().unwrap_err().to_string().contains("type is that of the frame"));
    }
}
