//! A cable between two cards.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Frame, Wire};

/// Frames that are on their way in one direction before the sender is held back.
const LENGTH: usize = 1024;

/// One end of a cable.
pub struct Cable {
    out: Arc<Mutex<VecDeque<Frame>>>,
    /// The other end's `out`; gone when that end is.
    back: Weak<Mutex<VecDeque<Frame>>>,
}

impl Cable {
    /// Both ends.
    pub fn pair() -> (Cable, Cable) {
        let (a, b) = (Arc::default(), Arc::default());
        let (to_a, to_b) = (Arc::downgrade(&a), Arc::downgrade(&b));
        (Cable { out: a, back: to_b }, Cable { out: b, back: to_a })
    }

    /// An end whose other end is in nothing: no link.
    pub fn unplugged() -> Cable {
        Cable { out: Arc::default(), back: Weak::new() }
    }
}

impl Wire for Cable {
    fn link(&self) -> bool {
        self.back.strong_count() > 0
    }

    fn ready(&mut self) -> bool {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).len() < LENGTH
    }

    fn transmit(&mut self, frame: &Frame) {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).push_back(frame.clone());
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let Some(back) = self.back.upgrade() else { return false };
        let next = back.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.map(|next| *frame = next).is_some()
    }
}
