//! A cable between two cards.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Frame, Wire};

/// Frames in one direction before the sender must wait. The other card receives or drops them when it is stepped.
const LENGTH: usize = 1024;

/// One direction of a cable.
struct Lane {
    frames: Mutex<VecDeque<Frame>>,
    /// The sender's signal, in Mbit/s; 0 if there is none.
    signal: AtomicU32,
}

/// One end of a cable.
pub struct Cable {
    out: Arc<Lane>,
    /// The other end's `out`; it is gone once that end is dropped.
    back: Weak<Lane>,
}

impl Lane {
    fn new() -> Arc<Lane> {
        Arc::new(Lane { frames: Mutex::default(), signal: AtomicU32::new(u32::MAX) })
    }
}

impl Cable {
    /// Creates both ends of a cable.
    pub fn pair() -> (Cable, Cable) {
        let (a, b) = (Lane::new(), Lane::new());
        let (to_a, to_b) = (Arc::downgrade(&a), Arc::downgrade(&b));
        (Cable { out: a, back: to_b }, Cable { out: b, back: to_a })
    }

    /// Creates a cable whose other end is not plugged in: it has no link.
    pub fn unplugged() -> Cable {
        Cable { out: Lane::new(), back: Weak::new() }
    }
}

impl Wire for Cable {
    fn link(&self) -> bool {
        self.speed() > 0
    }

    fn signal(&mut self, mbits: u32) {
        self.out.signal.store(mbits, Ordering::Relaxed);
    }

    fn speed(&self) -> u32 {
        self.back.upgrade().map_or(0, |lane| lane.signal.load(Ordering::Relaxed))
    }

    fn ready(&mut self) -> bool {
        self.out.frames.lock().unwrap_or_else(PoisonError::into_inner).len() < LENGTH
    }

    fn transmit(&mut self, frame: &Frame) {
        self.out.frames.lock().unwrap_or_else(PoisonError::into_inner).push_back(frame.clone());
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let Some(back) = self.back.upgrade() else { return false };
        let next = back.frames.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.map(|next| *frame = next).is_some()
    }

    fn is_lossy_when_idle(&self) -> bool {
        true
    }

    /// The card at the other end only waits if it receives pause frames (section 3.7.7).
    fn has_backpressure(&self) -> bool {
        false
    }
}
