//! The features of a port, beyond moving packets.

/// A feature of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// [`Packet::leave_checksum`](crate::Packet::leave_checksum).
    SendChecksum,
    /// [`Packet::leave_segments`](crate::Packet::leave_segments) of TCP.
    SendTcpSegments,
    /// [`Packet::leave_segments`](crate::Packet::leave_segments) of UDP.
    SendUdpSegments,
    /// [`Metadata::checksum`](crate::metadata::Metadata::checksum), with `?metadata=on`.
    ReceiveChecksum,
    /// [`Metadata::hash`](crate::metadata::Metadata::hash), with `?metadata=on`.
    ReceiveHash,
    /// [`Metadata::kind`](crate::metadata::Metadata::kind), with `?metadata=on`.
    ReceiveKind,
    /// [`Port::strip_vlan_tags`](super::Port::strip_vlan_tags).
    StripVlanTags,
    /// Received TCP segments arrive coalesced, as packets that are still to be segmented, with `?offloads=on`.
    ReceiveSegments,
    /// [`Port::set_rss`](super::Port::set_rss).
    Rss,
    /// [`Action::Queue`](super::Action::Queue).
    RuleToQueue,
    /// [`Action::Drop`](super::Action::Drop).
    RuleToDrop,
    /// [`Action::Kernel`](super::Action::Kernel).
    RuleToKernel,
    /// [`Action::Mark`](super::Action::Mark).
    RuleToMark,
    /// [`Port::clock`](super::Port::clock).
    Clock,
    /// [`Port::set_addresses`](super::Port::set_addresses): the card drops packets to other addresses.
    AddressFilter,
    /// [`Port::set_vlans`](super::Port::set_vlans).
    VlanFilter,
    /// [`Port::set_pause`](super::Port::set_pause).
    Pause,
}

/// How a port has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// The port does not have it.
    None,
    /// The library does the work in software.
    Software,
    /// The card does the work, or the kernel, or the receiver of the packets.
    Offloaded,
}

impl Support {
    /// Returns a word: `no`, `software` or `offloaded`.
    pub fn word(self) -> &'static str {
        match self {
            Support::None => "no",
            Support::Software => "software",
            Support::Offloaded => "offloaded",
        }
    }
}

impl Feature {
    /// All features, in the order of this page.
    pub const ALL: [Feature; 17] = [
        Feature::SendChecksum,
        Feature::SendTcpSegments,
        Feature::SendUdpSegments,
        Feature::ReceiveChecksum,
        Feature::ReceiveHash,
        Feature::ReceiveKind,
        Feature::StripVlanTags,
        Feature::ReceiveSegments,
        Feature::Rss,
        Feature::RuleToQueue,
        Feature::RuleToDrop,
        Feature::RuleToKernel,
        Feature::RuleToMark,
        Feature::Clock,
        Feature::AddressFilter,
        Feature::VlanFilter,
        Feature::Pause,
    ];

    /// The features of sending.
    pub const SENDING: [Feature; 3] = [Feature::SendChecksum, Feature::SendTcpSegments, Feature::SendUdpSegments];

    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Feature::SendChecksum => "send_checksum",
            Feature::SendTcpSegments => "send_tcp_segments",
            Feature::SendUdpSegments => "send_udp_segments",
            Feature::ReceiveChecksum => "receive_checksum",
            Feature::ReceiveHash => "receive_hash",
            Feature::ReceiveKind => "receive_kind",
            Feature::StripVlanTags => "strip_vlan_tags",
            Feature::ReceiveSegments => "receive_segments",
            Feature::Rss => "rss",
            Feature::RuleToQueue => "rule_to_queue",
            Feature::RuleToDrop => "rule_to_drop",
            Feature::RuleToKernel => "rule_to_kernel",
            Feature::RuleToMark => "rule_to_mark",
            Feature::Clock => "clock",
            Feature::AddressFilter => "address_filter",
            Feature::VlanFilter => "vlan_filter",
            Feature::Pause => "pause",
        }
    }
}

/// The features of a port ([`Port::capabilities`](super::Port::capabilities)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The offloaded features, one bit each.
    offloaded: u32,
}

impl Capabilities {
    /// Adds features that are offloaded.
    pub const fn with(mut self, features: &[Feature]) -> Capabilities {
        let mut n = 0;
        while n < features.len() {
            self.offloaded |= 1 << features[n] as u32;
            n += 1;
        }
        self
    }

    /// As [`with`](Capabilities::with), under a condition.
    pub const fn with_if(self, condition: bool, features: &[Feature]) -> Capabilities {
        if condition { self.with(features) } else { self }
    }

    /// Returns how the port has a feature.
    pub fn of(self, feature: Feature) -> Support {
        match feature {
            _ if self.offloaded & 1 << feature as u32 != 0 => Support::Offloaded,
            Feature::SendChecksum | Feature::SendTcpSegments | Feature::SendUdpSegments => Support::Software,
            _ => Support::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_separate() {
        for feature in Feature::ALL {
            let capabilities = Capabilities::default().with(&[feature]);
            let offloaded = Feature::ALL.into_iter().filter(|other| capabilities.of(*other) == Support::Offloaded);
            assert_eq!(offloaded.collect::<Vec<_>>(), [feature]);
        }
        let software = Feature::ALL.into_iter().filter(|one| Capabilities::default().of(*one) == Support::Software);
        assert_eq!(software.collect::<Vec<_>>(), Feature::SENDING);
    }
}
