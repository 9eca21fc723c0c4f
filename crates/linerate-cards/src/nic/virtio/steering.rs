//! Hashes of received packets, and the selection of a receive queue by them (5.1.6.4.3, 5.1.6.5.7).

use linerate_core::error::{Error, Result};
use linerate_core::port::{Rss, Settings};
use linerate_spec::virtio::{control as command, feature};

use super::hardware::{Hardware, State, TABLE};
use super::transport::BY_HASH;

/// The name of the feature in errors.
const SCALING: &str = "receive-side scaling";

impl Hardware {
    /// Enables hashes of a device that reports them and does not select queues by them (5.1.6.5.6.4).
    pub(super) fn configure_hash(&self) -> Result<()> {
        match self.features & BY_HASH {
            // The words of a table would follow.
            feature::HASH_REPORT => {
                self.command(command::MQ_HASH_CONFIG, &self.hash_config([0; 4], &Rss::DEFAULT_KEY), "hash report")
            }
            _ => Ok(()),
        }
    }

    /// Sets the key and the table by which the device selects queues.
    pub(super) fn set_rss(&self, rss: &Rss) -> Result<()> {
        let Settings { rx_queues, .. } = self.config.options;
        rss.check(&self.config.name, rx_queues)?;
        if self.features & feature::RSS == 0 {
            let why = match rx_queues {
                1 => "the port has one receive queue",
                _ => "the device does not offer it; a flow arrives at the queue pair that last sent it",
            };
            return Err(Error::unsupported(&self.config.name, SCALING, why));
        }
        let mut state = self.state();
        state.rss = rss.clone();
        self.steer(&mut state)
    }

    /// Records that a receive queue has started, and enables the queues once all that are needed have started.
    pub(super) fn queue_started(&self, queue: u16) -> Result<()> {
        let mut state = self.state();
        state.started |= 1 << queue;
        self.steer(&mut state)
    }

    /// Directs packets away from a receive queue that is about to stop.
    pub(super) fn queue_stops(&self, queue: u16) {
        let mut state = self.state();
        state.started &= !(1 << queue);
        if state.started == 0 {
            state.is_receiving = false;
        } else if state.is_receiving {
            // A device that does not answer is noticed when the queue is released.
            let _ = self.steer(&mut state);
        }
    }

    /// Tells the device to use the queues of the table (5.1.6.5.7), or all queues (5.1.6.5.6).
    fn steer(&self, state: &mut State) -> Result<()> {
        let Settings { rx_queues, tx_queues, .. } = self.config.options;
        let is_started = |queue: u16| state.started >> queue & 1 != 0;
        let pairs = rx_queues.max(tx_queues);
        if self.features & feature::RSS != 0 {
            if state.is_receiving || state.rss.table.iter().all(|&queue| is_started(queue)) {
                let Rss { key, table } = state.rss.among(state.started);
                let entries = (0..usize::from(TABLE)).map(|entry| table[entry % table.len()]);
                // Packets without a hash arrive as if it were 0, as with Intel's cards.
                let words = [TABLE - 1, table[0]].into_iter().chain(entries).chain([pairs]);
                self.command(command::MQ_RSS_CONFIG, &self.hash_config(words, &key), SCALING)?;
                state.is_receiving = true;
            }
        } else if !state.is_receiving && (0..rx_queues).all(is_started) {
            // Without MQ, the transport has enabled the queue pairs.
            if rx_queues > 1 && self.features & feature::MQ != 0 {
                self.command(command::MQ_VQ_PAIRS_SET, &pairs.to_le_bytes(), "several queues")?;
            }
            state.is_receiving = true;
        }
        Ok(())
    }

    /// Returns a configuration of hashes; the words in the middle select queues.
    fn hash_config(&self, words: impl IntoIterator<Item = u16>, key: &[u8; 40]) -> Vec<u8> {
        let mut bytes = self.hash_types.to_le_bytes().to_vec();
        bytes.extend(words.into_iter().flat_map(u16::to_le_bytes));
        bytes.push(key.len() as u8);
        bytes.extend(key);
        bytes
    }
}
