//! Parsing of filters.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{ARP, Filter, IPV4, IPV6, Match, Prefix};
use crate::error::{Error, ErrorKind};

/// The names of ethertypes and of protocols. A protocol has an ethertype if it belongs to one IP version only.
const ETHERTYPES: [(&str, u16); 3] = [("arp", ARP), ("ip", IPV4), ("ip6", IPV6)];
const PROTOCOLS: [(&str, u8, Option<u16>); 5] =
    [("icmp", 1, Some(IPV4)), ("icmp6", 58, Some(IPV6)), ("tcp", 6, None), ("udp", 17, None), ("sctp", 132, None)];

impl FromStr for Filter {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::BadFilter`].
    fn from_str(text: &str) -> Result<Filter, Error> {
        let mut any = Vec::new();
        for one in text.split(',') {
            // `port:` and `host:` match either end, so they turn one alternative into two.
            let mut alternatives = vec![Match::default()];
            for part in one.split('+') {
                alternatives = add(&alternatives, part.trim()).map_err(|why| {
                    Error::new(ErrorKind::BadFilter, text, format!("not a valid filter: {why}"))
                        .with_remedy("udp:4321, or tcp:80+from:10.0.0.0/8,icmp")
                })?;
            }
            any.extend(alternatives);
        }
        let has_inner = any.iter().any(|one| one.inner);
        Ok(Filter { text: text.to_string(), any, has_inner })
    }
}

/// Adds a condition to each alternative.
fn add(alternatives: &[Match], part: &str) -> Result<Vec<Match>, String> {
    let (name, value) = match part.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (part, None),
    };
    let needed = || value.ok_or_else(|| format!("'{name}' needs a value, as in {name}:{}", example(name)));
    let all = |change: &dyn Fn(&mut Match) -> Result<(), String>| {
        let mut changed = alternatives.to_vec();
        changed.iter_mut().try_for_each(change).map(|()| changed)
    };
    if let Some((_, ethertype)) = ETHERTYPES.iter().find(|(known, _)| *known == name).filter(|_| value.is_none()) {
        return all(&|one| set(&mut one.ethertype, *ethertype, "ethertypes"));
    }
    if let Some((_, protocol, ethertype)) = PROTOCOLS.iter().find(|(known, ..)| *known == name) {
        let ports = value.map(ports).transpose()?;
        if ports.is_some() && name.starts_with("icmp") {
            return Err(format!("{name} has no ports"));
        }
        return all(&|one| {
            set(&mut one.protocol, *protocol, "protocols")?;
            if let Some(ethertype) = ethertype {
                set(&mut one.ethertype, *ethertype, "ethertypes")?;
            }
            ports.clone().map_or(Ok(()), |ports| set(&mut one.to_port, ports, "ports"))
        });
    }
    match name {
        "all" if value.is_none() => Ok(alternatives.to_vec()),
        "inner" if value.is_none() => all(&|one| {
            one.inner = true;
            Ok(())
        }),
        "type" => {
            let ethertype = number(needed()?, u16::MAX.into())? as u16;
            all(&|one| set(&mut one.ethertype, ethertype, "ethertypes"))
        }
        "vlan" => {
            let vlan = number(needed()?, 4095)? as u16;
            all(&|one| set(&mut one.vlan, vlan, "VLANs"))
        }
        "proto" => {
            let protocol = number(needed()?, u8::MAX.into())? as u8;
            all(&|one| set(&mut one.protocol, protocol, "protocols"))
        }
        "from-port" | "to-port" | "port" => {
            let ports = ports(needed()?)?;
            let from = || all(&|one| set(&mut one.from_port, ports.clone(), "ports"));
            let to = || all(&|one| set(&mut one.to_port, ports.clone(), "ports"));
            either(name, from, to)
        }
        "from" | "to" | "host" => {
            let prefix = prefix(needed()?)?;
            let ethertype = if prefix.address.is_ipv4() { IPV4 } else { IPV6 };
            let address = |one: &mut Match, is_from: bool| {
                set(&mut one.ethertype, ethertype, "ethertypes")?;
                set(if is_from { &mut one.from } else { &mut one.to }, prefix, "addresses")
            };
            either(name, || all(&|one| address(one, true)), || all(&|one| address(one, false)))
        }
        "" => Err("a part is empty; write a match, such as udp:4321, or all".to_string()),
        _ => Err(format!(
            "there is no '{name}'; use one of all, inner, arp, ip, ip6, icmp, icmp6, tcp, udp, sctp, type:, proto:, vlan:, from:, to:, host:, from-port:, to-port: or port:"
        )),
    }
}

/// Applies a condition to the source, the destination, or either.
fn either(
    name: &str,
    from: impl Fn() -> Result<Vec<Match>, String>,
    to: impl Fn() -> Result<Vec<Match>, String>,
) -> Result<Vec<Match>, String> {
    match name.split('-').next() {
        Some("from") => from(),
        Some("to") => to(),
        _ => {
            // Without this, each repetition of a condition would double the matches.
            let mut each: Vec<Match> = Vec::new();
            for one in [from()?, to()?].concat() {
                if !each.contains(&one) {
                    each.push(one);
                }
            }
            Ok(each)
        }
    }
}

/// Sets a condition. It may be repeated, but only with the same value.
fn set<T: PartialEq>(place: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    match place {
        Some(there) if *there != value => {
            Err(format!("a packet cannot have two {what} at once; separate them by a comma"))
        }
        _ => {
            *place = Some(value);
            Ok(())
        }
    }
}

fn example(name: &str) -> &'static str {
    match name {
        "from" | "to" | "host" => "10.0.0.0/8",
        "type" => "0x88f7",
        "vlan" => "77",
        "proto" => "47",
        _ => "4321",
    }
}

/// Parses a number from 0 to `most`, in hexadecimal after `0x`.
fn number(text: &str, most: u32) -> Result<u32, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    value.filter(|&value| value <= most).ok_or_else(|| format!("'{text}' is not a number from 0 to {most}"))
}

/// Parses a port, or a range of ports.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first, u16::MAX.into())? as u16, number(last, u16::MAX.into())? as u16);
    if first > last {
        return Err(format!("'{text}' begins above its end"));
    }
    Ok(first..=last)
}

/// Parses an address or a network.
fn prefix(text: &str) -> Result<Prefix, String> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| format!("'{address}' is not an address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| number(bits, most))? as u8;
    // Bits after the prefix are ignored, and cleared.
    let address = match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into()),
    };
    Ok(Prefix { address, bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<Match> {
        text.parse::<Filter>().unwrap().any().to_vec()
    }

    #[test]
    fn alternatives_and_conditions() {
        let [one] = &parsed("udp:4321")[..] else { panic!() };
        assert_eq!(*one, Match { protocol: Some(17), to_port: Some(4321..=4321), ..Match::default() });
        let [a, b] = &parsed("tcp:80-90 + vlan:0x4D,icmp")[..] else { panic!() };
        assert_eq!(
            (a.vlan, a.to_port.clone(), b.ethertype, b.protocol),
            (Some(77), Some(80..=90), Some(IPV4), Some(1))
        );
        let [a, b] = &parsed("host:fd00::/8+udp")[..] else { panic!() };
        assert_eq!((a.from, a.to, b.from), (b.to, None, None));
        assert_eq!(a.from.unwrap().bits, 8);
        assert_eq!(parsed("port:53+host:10.1.2.3").len(), 4);
        assert_eq!(parsed("all"), [Match::default()]);
        assert_eq!(parsed("inner"), [Match { inner: true, ..Match::default() }]);
        assert_eq!(parsed("from:10.9.8.7/8")[0].from.unwrap().address.to_string(), "10.0.0.0");
        assert_eq!(parsed("from:10.9.8.7/0")[0].from.unwrap().address.to_string(), "0.0.0.0");
    }

    #[test]
    fn a_repeated_condition_costs_nothing() {
        assert_eq!(parsed(&["port:53"; 64].join("+")).len(), 3, "from, to, and both");
        assert_eq!(parsed(&["host:10.1.2.3+port:1-2"; 64].join("+")).len(), 9);
    }

    #[test]
    fn invalid_filters_are_explained() {
        for (text, why) in [
            ("", "empty"),
            ("udp,", "empty"),
            ("udp:70000", "0 to 65535"),
            ("udp:9-8", "above its end"),
            ("quic", "there is no 'quic'"),
            ("from:10.0.0.300", "not an address"),
            ("from:10.0.0.0/33", "0 to 32"),
            ("from", "from:10.0.0.0/8"),
            ("tcp+udp", "two protocols"),
            ("ip6+from:10.0.0.1", "two ethertypes"),
            ("icmp:8", "no ports"),
            ("vlan:4096", "0 to 4095"),
        ] {
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
