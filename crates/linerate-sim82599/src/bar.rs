//! A card's registers, for a driver in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linerate_cards::pci::{Bar, Doorbell};

use super::{Card, FREE, Runner};

/// The maximum number of frames that a card moves in each direction while its driver waits.
const WHILE_WAITING: usize = 64;

/// A model's registers.
#[derive(Clone)]
pub struct CardBar {
    pub(super) card: Arc<Card>,
    pub(super) claim: Option<Arc<Claim>>,
}

/// A driver's claim on a card's registers; it ends when the last clone of them is dropped.
pub(super) struct Claim {
    pub card: Arc<Card>,
    /// The thread that runs the card; the claim keeps it running.
    pub runner: Option<Arc<Runner>>,
    /// The card belongs to this driver alone, and ends with it.
    pub ends_card: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.card.used.store(FREE, Ordering::SeqCst);
        if let Some(runner) = &self.runner
            && self.ends_card
        {
            runner.forget(&self.card);
        }
    }
}

impl Bar for CardBar {
    type Doorbell = CardDoorbell;

    fn read(&self, offset: u32) -> u32 {
        self.card.read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.card.write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> CardDoorbell {
        CardDoorbell { bar: self.clone(), offset }
    }

    /// Steps the card while its driver waits. Without a runner no other thread steps it, so a yield would only give
    /// away the rest of the time slice: on a busy machine, milliseconds for each of a bring-up's thousand waits.
    fn wait(&self, _: Duration) {
        self.card.step(WHILE_WAITING);
        if self.claim.as_ref().is_some_and(|claim| claim.runner.is_some()) {
            std::thread::yield_now();
        }
    }
}

/// A doorbell of a model.
pub struct CardDoorbell {
    bar: CardBar,
    offset: u32,
}

impl Doorbell for CardDoorbell {
    #[inline]
    fn ring(&self, tail: u32) {
        let card = &self.bar.card;
        if card.board.is_strict() {
            card.write(self.offset, tail);
        } else {
            card.board.registers.set(self.offset, tail);
        }
    }
}
