//! The receivers of the card's interrupts.

use linerate_core::event::Interrupt;

/// The receivers of interrupts; the bus has them, so that they can change while the card is at work.
#[derive(Default)]
pub(super) struct Receivers {
    /// Of MSI-X.
    vectors: Vec<Option<Interrupt>>,
    /// Of MSI.
    pub message: Option<Interrupt>,
    pub line: Option<Interrupt>,
    /// A line that was raised is raised again only after its receiver has unmasked it.
    pub line_is_masked: bool,
}

impl Receivers {
    /// Sets the receiver of the messages of `vector`.
    pub fn set_vector(&mut self, vector: usize, receiver: Option<Interrupt>) {
        if self.vectors.len() <= vector {
            self.vectors.resize_with(vector + 1, || None);
        }
        self.vectors[vector] = receiver;
    }

    /// Returns the receiver of the messages of `vector`.
    pub fn vector(&self, vector: usize) -> Option<&Interrupt> {
        self.vectors.get(vector)?.as_ref()
    }

    /// Sets the receiver of the line.
    pub fn set_line(&mut self, receiver: Option<Interrupt>) {
        (self.line, self.line_is_masked) = (receiver, false);
    }
}
