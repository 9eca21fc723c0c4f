//! Hashes of received packets, and the selection of a receive queue by them (5.1.6.4.3, 5.1.6.5.7).

use linerate_core::error::{Error, Result};
use linerate_core::port::Rss;
use linerate_spec::virtio::{config, control as command, feature, hash};

use super::hardware::Hardware;
use super::transport::Transport;

/// The types of hashes that this driver uses: those that Intel's cards also have.
const USED: u32 =
    1 << hash::IPV4 | 1 << hash::TCPV4 | 1 << hash::UDPV4 | 1 << hash::IPV6 | 1 << hash::TCPV6 | 1 << hash::UDPV6;

/// Returns the types of hashes that the device computes with these features, and that this driver uses.
///
/// # Errors
/// The device's limits violate the specification (5.1.4.1).
pub(super) fn hash_types(transport: &dyn Transport, features: u64) -> Result<u32> {
    if features & feature::HASH_REPORT == 0 {
        return Ok(0);
    }
    let key = transport.config_8(config::RSS_MAX_KEY_SIZE);
    if usize::from(key) < Rss::DEFAULT_KEY.len() {
        return Err(Error::bad_device(format!("its rss_max_key_size is {key}, and must be at least 40")));
    }
    match transport.config_32(config::SUPPORTED_HASH_TYPES) & USED {
        0 => Err(Error::bad_device("it offers hashes, and its supported_hash_types has none for IP, TCP or UDP")),
        types => Ok(types),
    }
}

impl Hardware {
    /// Enables hashes of a device that reports them and does not use them to select queues (5.1.6.5.6.1).
    pub(super) fn configure_hash(&self) -> Result<()> {
        match self.features & feature::HASH_REPORT {
            0 => Ok(()),
            _ => self.command(command::MQ_HASH_CONFIG, &self.hash_config(&[0; 4], &Rss::DEFAULT_KEY), "hash report"),
        }
    }

    /// Returns a configuration of hashes; the words in the middle select queues.
    fn hash_config(&self, queues: &[u16], key: &[u8; 40]) -> Vec<u8> {
        let mut bytes = self.hash_types.to_le_bytes().to_vec();
        bytes.extend(queues.iter().flat_map(|word| word.to_le_bytes()));
        bytes.push(key.len() as u8);
        bytes.extend(key);
        bytes
    }
}
