//! The wire of a card after the code of its previous wire has panicked.

use linerate_core::error::{Error, ErrorKind, Result};

use super::{Frame, Wire};

/// A wire without a link; its check reports the reason.
pub(crate) struct Broken;

impl Wire for Broken {
    fn link(&self) -> bool {
        false
    }

    fn transmit(&mut self, _: &Frame) {}

    fn receive(&mut self, _: &mut Frame) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        let why = "the code at the other end of the model's cable has panicked: its link is down";
        Err(Error::new(ErrorKind::WirePanicked, "", why))
    }
}
