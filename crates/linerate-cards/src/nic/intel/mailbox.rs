//! The mailbox of a virtual function: requests to the driver of the physical function, and its answers (82599 section
//! 8.3.5.1.5, 82576 section 8.14).
//!
//! A request and its answer use the same 16 words, one after the other. Bits of the mailbox's register tell whose turn it
//! is.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::port::MacAddress;
use linerate_spec::mailbox::*;

use super::{Hardware, VirtualFunction};
use crate::pci::Bar;

/// The time that an open function gives the driver of the physical function: it may be busy with others.
pub(super) const BOUND: Duration = Duration::from_secs(2);
/// As `BOUND`, for a function that was reset. Whoever asks for the link's state waits for it.
pub(super) const SHORT_BOUND: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_micros(100);

/// The state of a virtual function that its mailbox changes.
pub struct Mailbox {
    /// Bits of the register that a read has cleared, until they are used.
    seen: u32,
    /// The physical function has reset this function, or does not let it send.
    was_reset: bool,
    /// The longest wait for an answer.
    pub(super) bound: Duration,
    /// The function's address.
    pub(in crate::nic) address: MacAddress,
    /// The version of the protocol (a number of [`x82599`]).
    pub(in crate::nic) version: u32,
}

impl Default for Mailbox {
    fn default() -> Mailbox {
        let address = MacAddress::default();
        Mailbox { seen: 0, was_reset: false, bound: BOUND, address, version: x82599::VERSION_1_0 }
    }
}

impl<B: Bar, C: VirtualFunction> Hardware<B, C> {
    /// Returns the state of the mailbox.
    pub(in crate::nic) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the physical function is not being reset, and forgets all earlier messages.
    pub(super) fn open_mailbox(&self) -> Result<()> {
        let mut mailbox = self.mailbox();
        let bound = mailbox.bound;
        self.poll(bound, || Ok((self.read_live(C::mailbox())? & RSTI == 0).then_some(())))?;
        // The read above has cleared the bits of earlier messages.
        (mailbox.seen, mailbox.was_reset) = (0, false);
        Ok(())
    }

    /// Returns whether the physical function has reset this function, or is being reset itself.
    pub(super) fn was_reset(&self) -> Result<bool> {
        let mut mailbox = self.mailbox();
        let bits = self.look(&mut mailbox)?;
        if bits & PFSTS != 0 && bits & (PFU | RSTI) == 0 {
            self.receive(&mut mailbox)?;
        }
        mailbox.was_reset |= bits & (RSTI | RSTD) != 0;
        mailbox.seen &= !RSTD;
        Ok(mailbox.was_reset)
    }

    /// Sends a request, and returns its answer.
    ///
    /// # Errors
    /// The driver of the physical function does not answer, or refuses the request, which is to do `what`.
    pub(in crate::nic) fn request(&self, what: &str, words: &[u32]) -> Result<Message> {
        let answer = self.ask(words)?;
        if answer[0] & FAILURE != 0 {
            let why = format!("the driver of the physical function refuses to {what}");
            return Err(Error::new(ErrorKind::Denied, &*self.config.name, why).with_remedy(Remedy::Step(
                "let the physical function allow it: sudo ip link set dev INTERFACE vf NUMBER trust on".into(),
            )));
        }
        Ok(answer)
    }

    /// As [`request`](Self::request), for a request that may be refused.
    pub(in crate::nic) fn ask(&self, words: &[u32]) -> Result<Message> {
        let mut mailbox = self.mailbox();
        let bound = mailbox.bound;
        self.poll(bound, || {
            self.write(C::mailbox(), VFU);
            Ok((self.look(&mut mailbox)? & VFU != 0).then_some(()))
        })?;
        // The request overwrites a notification.
        if mailbox.seen & PFSTS != 0 {
            let first = self.read(C::message(0));
            mailbox.note(first);
        }
        mailbox.seen = 0;
        for (number, word) in words.iter().enumerate() {
            self.write(C::message(number as u16), *word);
        }
        self.write(C::mailbox(), REQ);
        self.poll(bound, || {
            if self.look(&mut mailbox)? & PFSTS == 0 {
                return Ok(None);
            }
            let message = self.receive(&mut mailbox)?;
            // A notification may come before the answer.
            Ok(Some(message).filter(|message| message[0] & KIND_MASK == words[0] & KIND_MASK))
        })
    }

    /// Reads a message of the physical function, and makes room for the next.
    fn receive(&self, mailbox: &mut Mailbox) -> Result<Message> {
        let message = std::array::from_fn(|number| self.read(C::message(number as u16)));
        mailbox.seen &= !PFSTS;
        self.write(C::mailbox(), ACK);
        mailbox.note(message[0]);
        Ok(message)
    }

    /// Reads the register. Returns its bits, including those that an earlier read has cleared.
    fn look(&self, mailbox: &mut Mailbox) -> Result<u32> {
        let bits = self.read_live(C::mailbox())?;
        mailbox.seen |= bits & (PFSTS | PFACK | RSTD);
        Ok(bits | mailbox.seen)
    }

    /// Tries something until it returns a value.
    fn poll<T>(&self, bound: Duration, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(value) = attempt()? {
                return Ok(value);
            }
            if waited >= bound {
                let why = format!("the driver of the physical function does not answer within {bound:?}");
                return Err(Error::new(ErrorKind::Timeout, &*self.config.name, why).with_remedy(Remedy::Step(
                    "set the interface of the physical function up: sudo ip link set dev INTERFACE up".into(),
                )));
            }
            self.bar.wait(STEP);
            waited += STEP;
        }
    }
}

/// A message: a first word with its kind and outcome, then data.
pub type Message = [u32; WORDS];

impl Mailbox {
    /// Notes what the first word of a message tells about the physical function.
    fn note(&mut self, first: u32) {
        // The answer to a reset cannot have this bit yet.
        if first & (KIND_MASK | CLEAR_TO_SEND) == CONTROL || first & (FAILURE | CLEAR_TO_SEND) == FAILURE {
            self.was_reset |= first & KIND_MASK != RESET;
        }
    }
}
