//! One line of text per packet.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use etherparse::{ArpHardwareId, EtherType, Icmpv4Type, Icmpv6Type, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use linerate::capture::{Format, ParsedRecord};

/// Returns one line per packet of complete records. The line has the interface's name if there are several `names`.
pub fn lines(format: Format, records: &[u8], names: &[String]) -> String {
    let mut text = String::new();
    for found in format.records(records) {
        text += &time_of_day(found.nanoseconds);
        if let Some(name) = names.get(found.interface as usize).filter(|_| names.len() > 1) {
            let _ = write!(text, " {name}");
        }
        let _ = writeln!(text, " {}, {} bytes{}", described(found.frame), found.original, cut(&found));
    }
    text
}

/// Returns the same as JSON lines.
pub fn json_lines(format: Format, records: &[u8], names: &[String]) -> String {
    let mut text = String::new();
    for found in format.records(records) {
        let packet = serde_json::json!({
            "nanoseconds": found.nanoseconds, "port": names.get(found.interface as usize), "bytes": found.original,
            "captured": found.frame.len(), "text": described(found.frame),
        });
        let _ = writeln!(text, "{}", serde_json::json!({ "packet": packet }));
    }
    text
}

fn cut(found: &ParsedRecord<'_>) -> String {
    let captured = found.frame.len();
    if captured < found.original { format!(" ({captured} captured)") } else { String::new() }
}

/// Returns the time of day in UTC, to the nanosecond.
fn time_of_day(nanoseconds: u64) -> String {
    let time = humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(nanoseconds)).to_string();
    time.split(['T', 'Z']).nth(1).unwrap_or_default().to_string()
}

/// Describes a frame: its addresses and the innermost known protocol.
pub fn described(frame: &[u8]) -> String {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else {
        return format!("{} bytes without an Ethernet header", frame.len());
    };
    let mut text = String::new();
    for tag in packet.vlan_ids() {
        let _ = write!(text, "vlan {}, ", tag.value());
    }
    match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let (from, to) = (header.source_addr().into(), header.destination_addr().into());
            text += &of_ip(from, to, &packet);
            if ip.payload().fragmented {
                let _ = write!(text, ", fragment at {}", header.fragments_offset().byte_offset());
            }
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let (from, to) = (ip.header().source_addr().into(), ip.header().destination_addr().into());
            text += &of_ip(from, to, &packet);
            if ip.payload().fragmented {
                text += ", fragment";
            }
        }
        Some(LaxNetSlice::Arp(arp)) => {
            let address = |bytes: &[u8]| match *bytes {
                [a, b, c, d] => IpAddr::from([a, b, c, d]).to_string(),
                _ => "?".to_string(),
            };
            let [from, to] = [arp.sender_protocol_addr(), arp.target_protocol_addr()].map(address);
            let is_ethernet = arp.hw_addr_type() == ArpHardwareId::ETHERNET;
            text += &match arp.operation().0 {
                1 => format!("ARP who has {to}? tell {from}"),
                2 if is_ethernet => format!("ARP {from} is at {}", hex(arp.sender_hw_addr())),
                other => format!("ARP operation {other}, {from} to {to}"),
            };
        }
        None => {
            let [to, from] = [0, 6].map(|at| frame.get(at..at + 6).map(hex).unwrap_or_default());
            let _ = write!(text, "{from} > {to}, {}", ethertype(&packet));
        }
    }
    text
}

/// Returns addresses and ports, and the fields of the transport header.
fn of_ip(from: IpAddr, to: IpAddr, packet: &LaxSlicedPacket<'_>) -> String {
    let ends = |source: u16, destination: u16| match from {
        IpAddr::V4(_) => format!("{from}:{source} > {to}:{destination}"),
        IpAddr::V6(_) => format!("[{from}]:{source} > [{to}]:{destination}"),
    };
    match &packet.transport {
        Some(TransportSlice::Udp(udp)) => {
            let payload = usize::from(udp.length()).saturating_sub(8);
            format!("{} UDP, {payload} of payload", ends(udp.source_port(), udp.destination_port()))
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let flags = [
                (tcp.syn(), "SYN"),
                (tcp.fin(), "FIN"),
                (tcp.rst(), "RST"),
                (tcp.psh(), "PSH"),
                (tcp.ack(), "ACK"),
                (tcp.urg(), "URG"),
            ];
            let flags: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
            format!(
                "{} TCP {} seq {} ack {} win {}",
                ends(tcp.source_port(), tcp.destination_port()),
                flags.join(" "),
                tcp.sequence_number(),
                tcp.acknowledgment_number(),
                tcp.window_size()
            )
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            let what = match icmp.icmp_type() {
                Icmpv4Type::EchoRequest(echo) => format!("echo request, id {}, seq {}", echo.id, echo.seq),
                Icmpv4Type::EchoReply(echo) => format!("echo reply, id {}, seq {}", echo.id, echo.seq),
                Icmpv4Type::DestinationUnreachable(_) => format!("destination unreachable, code {}", icmp.code_u8()),
                Icmpv4Type::TimeExceeded(_) => "time exceeded".to_string(),
                _ => format!("type {}, code {}", icmp.type_u8(), icmp.code_u8()),
            };
            format!("{from} > {to} ICMP {what}")
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let what = match icmp.icmp_type() {
                Icmpv6Type::EchoRequest(echo) => format!("echo request, id {}, seq {}", echo.id, echo.seq),
                Icmpv6Type::EchoReply(echo) => format!("echo reply, id {}, seq {}", echo.id, echo.seq),
                _ => match icmp.type_u8() {
                    1 => format!("destination unreachable, code {}", icmp.code_u8()),
                    2 => "packet too big".to_string(),
                    3 => "time exceeded".to_string(),
                    133 => "router solicitation".to_string(),
                    134 => "router advertisement".to_string(),
                    135 => "neighbor solicitation".to_string(),
                    136 => "neighbor advertisement".to_string(),
                    143 => "multicast listener report".to_string(),
                    other => format!("type {other}, code {}", icmp.code_u8()),
                },
            };
            format!("{from} > {to} ICMPv6 {what}")
        }
        Some(TransportSlice::Igmp(_)) | None => match packet.net.as_ref().and_then(LaxNetSlice::ip_payload_ref) {
            Some(payload) => match payload.ip_number.keyword_str() {
                Some(name) => format!("{from} > {to} {name}"),
                None => format!("{from} > {to} protocol {}", payload.ip_number.0),
            },
            None => format!("{from} > {to}"),
        },
    }
}

/// Returns the name or the number of the Ethernet header's type.
fn ethertype(packet: &LaxSlicedPacket<'_>) -> String {
    let Some(payload) = packet.ether_payload() else { return "unknown".to_string() };
    match payload.ether_type {
        EtherType::IPV4 => "cut IPv4".to_string(),
        EtherType::IPV6 => "cut IPv6".to_string(),
        EtherType::ARP => "cut ARP".to_string(),
        EtherType(length) if length < 0x600 => format!("802.3 of {length} bytes"),
        EtherType(number) => format!("ethertype 0x{number:04x}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}
