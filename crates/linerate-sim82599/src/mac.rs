//! The MAC: the wire that it is connected to, pause frames (section 3.7.7), and frame counters (8.2.3.23).

use std::time::{Duration, Instant};

use linerate_spec::x82599::*;

use super::board::Board;
use super::filter;
use super::headers::word;
use super::wire::{Cable, Frame, Wire};

/// The MAC's state.
pub(super) struct Mac {
    pub wire: Box<dyn Wire>,
    pub cable_in: bool,
    /// Frames from the wire and to it, since power-on.
    pub frames: (u64, u64),
    /// When the pause requested by the partner ends.
    paused_until: Option<Instant>,
    /// When the partner was last told to pause.
    paused: Option<Instant>,
    pub received: Received,
    pub sent: Sent,
}

/// Frames received since the counters were written.
#[derive(Default)]
pub(super) struct Received {
    packets: u64,
    octets: u64,
    good: u64,
    good_octets: u64,
    multicast: u64,
    broadcast: u64,
    sizes: [u64; 6],
}

/// Frames sent since the counters were written.
#[derive(Default)]
pub(super) struct Sent {
    packets: u64,
    pub octets: u64,
    multicast: u64,
    broadcast: u64,
    sizes: [u64; 6],
}

/// Pause frames between MACs (IEEE 802.3, annex 31B): destination, ethertype and opcode.
const PAUSE_ADDRESS: [u8; 6] = [0x01, 0x80, 0xC2, 0x00, 0x00, 0x01];
pub(super) const MAC_CONTROL: u16 = 0x8808;
const PAUSE: u16 = 1;
/// Pause times are in units of 512 bit times.
const PAUSE_UNIT: Duration = Duration::from_nanos(51);

/// Returns the index of the size counter for a frame of `len` bytes, CRC included.
fn size_class(len: usize) -> usize {
    match len {
        ..65 => 0,
        65..128 => 1,
        128..256 => 2,
        256..512 => 3,
        512..1024 => 4,
        _ => 5,
    }
}

impl Mac {
    pub fn new(wire: Box<dyn Wire>) -> Mac {
        Mac {
            wire,
            cable_in: true,
            frames: (0, 0),
            paused_until: None,
            paused: None,
            received: Received::default(),
            sent: Sent::default(),
        }
    }

    /// Replaces the wire by the result of `change`.
    pub fn rewire(&mut self, change: impl FnOnce(Box<dyn Wire>) -> Box<dyn Wire>) {
        let old = std::mem::replace(&mut self.wire, Box::new(Cable::unplugged()));
        self.wire = change(old);
    }

    /// Reads the wire's next frame into `frame`; returns false if there is none.
    pub fn receive(&mut self, frame: &mut Frame) -> bool {
        let came = self.wire.receive(frame);
        self.frames.0 += u64::from(came);
        came
    }

    /// Sends a frame to the wire.
    pub fn transmit(&mut self, frame: &Frame) {
        self.frames.1 += 1;
        self.wire.transmit(frame);
    }

    /// Returns whether a pause requested by the partner is in effect.
    pub fn is_paused(&mut self) -> bool {
        self.paused_until = self.paused_until.filter(|&until| Instant::now() < until);
        self.paused_until.is_some()
    }

    pub fn end_pause(&mut self) {
        self.paused_until = None;
    }

    /// Handles a MAC control frame: a pause (section 3.7.7.3). Returns true if the frame is not to be delivered
    /// (8.2.3.22.34).
    pub fn take_control(&mut self, Board { registers, .. }: &Board, frame: &Frame, destination: [u8; 6]) -> bool {
        let control = registers.get(MFLCN::OFFSET);
        let ours = destination == PAUSE_ADDRESS || filter::accepts(registers, destination);
        if ours && word(&frame.bytes, 14) == Some(PAUSE) && control & MFLCN::RFCE != 0 {
            let quanta = word(&frame.bytes, 16).unwrap_or(0);
            registers.count(if quanta == 0 { LXONRXCNT::OFFSET } else { LXOFFRXCNT::OFFSET }, 1);
            self.paused_until = (quanta > 0).then(|| Instant::now() + PAUSE_UNIT * u32::from(quanta));
            return control & MFLCN::DPF != 0;
        }
        control & MFLCN::PMCF == 0
    }

    /// Tells the partner to pause while too many bytes wait in the packet buffer, and then to continue (section
    /// 3.7.7.4).
    pub fn control_flow(&mut self, board: &Board, waiting: u32) {
        let registers = &board.registers;
        let high = registers.get(FCRTH::at(0));
        if registers.get(FCCFG::OFFSET) & FCCFG::TFCE_MASK != FCCFG::TFCE_LINK || high & FCRTH::FCEN == 0 {
            return;
        }
        let time = registers.get(FCTTV::at(0)) as u16;
        let low = registers.get(FCRTL::at(0));
        let again = self.paused.is_none_or(|since| since.elapsed() > PAUSE_UNIT * u32::from(time) / 2);
        if waiting > high & FCRTH::MASK && again {
            self.paused = Some(Instant::now());
            registers.count(LXOFFTXC::OFFSET, 1);
            self.send_pause(board, time);
        } else if self.paused.is_some() && waiting <= low & FCRTL::MASK {
            self.paused = None;
            if low & FCRTL::XONE != 0 {
                registers.count(LXONTXC::OFFSET, 1);
                self.send_pause(board, 0);
            }
        }
    }

    fn send_pause(&mut self, Board { registers, .. }: &Board, time: u16) {
        let mut bytes = vec![0; 60];
        bytes[..6].copy_from_slice(&PAUSE_ADDRESS);
        let (low, high) = (registers.get(RAL::at(0)), registers.get(RAH::at(0)));
        bytes[6..10].copy_from_slice(&low.to_le_bytes());
        bytes[10..12].copy_from_slice(&high.to_le_bytes()[..2]);
        bytes[12..14].copy_from_slice(&MAC_CONTROL.to_be_bytes());
        bytes[14..16].copy_from_slice(&PAUSE.to_be_bytes());
        bytes[16..18].copy_from_slice(&time.to_be_bytes());
        self.sent.add(&bytes);
        self.transmit(&Frame { bytes, bad_crc: false });
    }

    /// Adds the frames received since the last call to the counters.
    pub fn count_received(&mut self, Board { registers, .. }: &Board) {
        let received = std::mem::take(&mut self.received);
        let Received { packets, octets, good, good_octets, multicast, broadcast, sizes } = received;
        registers.count(TPR::OFFSET, packets);
        registers.count_wide(TORL::OFFSET, TORH::OFFSET, octets);
        registers.count(GPRC::OFFSET, good);
        registers.count_wide(GORCL::OFFSET, GORCH::OFFSET, good_octets);
        registers.count(MPRC::OFFSET, multicast);
        registers.count(BPRC::OFFSET, broadcast);
        (0..6).for_each(|n| registers.count(PRC::at(n), sizes[n as usize]));
    }

    /// Adds the frames sent since the last call to the counters, including pause frames.
    pub fn count_sent(&mut self, Board { registers, .. }: &Board) {
        let Sent { packets, octets, multicast, broadcast, sizes } = std::mem::take(&mut self.sent);
        if packets == 0 {
            return;
        }
        registers.count(GPTC::OFFSET, packets);
        registers.count(TPT::OFFSET, packets);
        registers.count(TXDGPC::OFFSET, packets);
        registers.count_wide(TXDGBCL::OFFSET, TXDGBCH::OFFSET, octets);
        registers.count_wide(GOTCL::OFFSET, GOTCH::OFFSET, octets);
        registers.count(MPTC::OFFSET, multicast);
        registers.count(BPTC::OFFSET, broadcast);
        (0..6).for_each(|n| registers.count(PTC::at(n), sizes[n as usize]));
    }
}

impl Received {
    /// Counts a frame of `len` bytes, CRC included.
    pub fn add(&mut self, len: usize) {
        self.packets += 1;
        self.octets += len as u64;
    }

    /// Counts a frame of `len` bytes that the filters accepted.
    #[inline]
    pub fn add_good(&mut self, len: usize, frame: &[u8]) {
        self.good += 1;
        self.good_octets += len as u64;
        self.sizes[size_class(len)] += 1;
        count_group(frame, &mut self.multicast, &mut self.broadcast);
    }
}

impl Sent {
    /// Counts a frame, without its CRC.
    pub fn add(&mut self, frame: &[u8]) {
        self.packets += 1;
        self.octets += frame.len() as u64 + 4;
        self.sizes[size_class(frame.len() + 4)] += 1;
        count_group(frame, &mut self.multicast, &mut self.broadcast);
    }
}

/// Counts the frame if it is multicast or broadcast.
#[inline]
fn count_group(frame: &[u8], multicast: &mut u64, broadcast: &mut u64) {
    if frame.first().is_some_and(|first| first & 1 != 0) {
        *(if frame.starts_with(&[0xFF; 6]) { broadcast } else { multicast }) += 1;
    }
}
