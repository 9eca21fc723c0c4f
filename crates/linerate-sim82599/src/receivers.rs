//! The receivers of the card's interrupts.

use linerate_core::event::Interrupt;

/// The receivers of the card's interrupts. The bus has them, so that they can change while the card is running.
#[derive(Default)]
pub(super) struct Receivers {
    /// The receivers of MSI-X, by vector.
    vectors: Vec<Option<Interrupt>>,
    /// The receiver of MSI.
    pub message: Option<Interrupt>,
    pub line: Option<Interrupt>,
    /// Set when the line is raised; it is raised again only after the receiver has unmasked it.
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
