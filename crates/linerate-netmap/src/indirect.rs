//! Packets that are not in netmap's buffers but somewhere in the program's memory (`NS_INDIRECT`), on ports of switches.

use linerate::Result;

use crate::descriptor::Bound;
use crate::real::read;

/// Syncs transmit rings, with what is elsewhere fetched first.
pub fn sync_tx(bound: &Bound) -> Result<()> {
    if bound.port().wanted().name.starts_with("vale") {
        bound.port().fetch(read);
    }
    bound.port().sync_tx()
}
