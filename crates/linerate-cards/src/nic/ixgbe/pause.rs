//! Pause frames (section 3.7.7).

use linerate_core::port::Pause;
use linerate_spec::x82599::*;

use super::X82599;
use crate::nic::intel::Hardware;
use crate::pci::Bar;

/// The time that the card asks for, in units of 512 bit times: 3.3 ms at 10 Gbit/s, the longest.
const TIME: u32 = 0xFFFF;

/// The part of the packet buffer for frames that arrive after the card has asked for a pause, beside the longest frames:
/// 52 µs at 10 Gbit/s. This is the delay of 5 km of fiber in both directions; section 3.7.7.3 asks for 100 m.
const IN_FLIGHT: u32 = 64 << 10;

impl<B: Bar> Hardware<B, X82599> {
    /// Sets the use of pause frames.
    pub(super) fn init_pause(&self, pause: Pause) {
        // Frames that wait for a descriptor fill the packet buffer, which is what the thresholds are about.
        for queue in 0..self.config.options.rx_queues {
            let drop = if self.drops_at_queues() { SRRCTL::DROP_EN } else { 0 };
            self.change(SRRCTL(queue), SRRCTL::DROP_EN, drop);
        }
        // Pause frames themselves are not delivered (8.2.3.22.34).
        let receive = MFLCN::RFCE | MFLCN::DPF;
        self.change(MFLCN, receive, if pause.receive { receive } else { 0 });
        if !pause.send {
            self.change(FCCFG, FCCFG::TFCE_MASK, 0);
            self.write(FCRTH(0), 0);
            return self.write(FCRTL(0), 0);
        }
        // Each end finishes the frame that it is sending, and the card has room for as many again.
        let size = (self.read(RXPBSIZE(0)) >> RXPBSIZE::KIB_SHIFT & 0x3FF) << 10;
        let high = size.saturating_sub(IN_FLIGHT + 4 * (self.longest_written() as u32 + 4));
        let low = high / 2;
        self.write(FCTTV(0), TIME);
        self.write(FCRTV, TIME / 2);
        self.write(FCRTL(0), low & FCRTL::MASK | FCRTL::XONE);
        self.write(FCRTH(0), high & FCRTH::MASK | FCRTH::FCEN);
        self.change(FCCFG, FCCFG::TFCE_MASK, FCCFG::TFCE_LINK);
    }
}
