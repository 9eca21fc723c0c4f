//! The metadata in a receive descriptor (7.1.6.2).

use linerate_core::metadata::{Checksum, Hash, HashFields, Metadata, PacketKind};
use linerate_spec::descriptor::receive;

use super::Controller;

/// Returns the metadata in the words of a packet's last descriptor that all packets have.
pub fn metadata<C: Controller>([first, second]: [u64; 2]) -> Metadata {
    let has = |bit: u64| second & bit != 0;
    let checksum = match (has(receive::IPCS), has(receive::L4CS)) {
        _ if has(C::NO_VERDICT) => Checksum::Unknown,
        (true, _) if has(C::IP_ERROR) => Checksum::Bad,
        (_, true) if has(C::L4_ERROR) => Checksum::Bad,
        (_, true) => Checksum::Good,
        (_, false) => Checksum::Unknown,
    };
    let fields = match first & receive::RSS_TYPE_MASK {
        1 => Some(HashFields::TcpIpv4),
        2 => Some(HashFields::Ipv4),
        3 | 6 => Some(HashFields::TcpIpv6),
        4 | 5 => Some(HashFields::Ipv6),
        7 => Some(HashFields::UdpIpv4),
        8 | 9 => Some(HashFields::UdpIpv6),
        _ => None,
    };
    let hash = fields.map(|fields| Hash { value: (first >> receive::RSS_HASH_SHIFT) as u32, fields });
    let headers = (first & receive::TYPE_HEADERS) >> receive::TYPE_SHIFT;
    let kind = (C::HAS_KIND && first & receive::TYPE_ETQF == 0).then_some(PacketKind(headers as u16));
    Metadata { checksum, hash, kind, ..Metadata::default() }
}

/// Returns the index of the flow director's filter that the packet matches, if the descriptor has it.
pub fn filter([first, second]: [u64; 2]) -> Option<u16> {
    let is_reported = second & receive::FLM != 0 && first & receive::RSS_TYPE_MASK == receive::RSS_TYPE_FILTER;
    is_reported.then_some((first >> receive::RSS_HASH_SHIFT) as u16 & receive::FILTER_MASK)
}
