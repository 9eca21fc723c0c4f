//! The `Debug` format of a slot.

use super::Slot;

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Slot {{ buf: {}, offset: {}, len: {}{}{} }}",
            self.buf(),
            self.offset(),
            self.len(),
            if self.has_more() { ", more" } else { "" },
            if self.is_unfinished() { ", unfinished" } else { "" }
        )
    }
}
