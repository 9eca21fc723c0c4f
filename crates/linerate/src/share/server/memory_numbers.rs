//! Memory for programs' ports, by the numbers that they know it by (`nr_mem_id`): ports whose memory has one number exchange
//! packets by exchanging buffers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::State;
use crate::error::{Error, Result};
use crate::share::protocol::layout::Plan;
use crate::share::protocol::lock;
use crate::share::server::netmap_memory::Area;

/// The number that the memory of a process's ports has in that process. Everywhere else it has a number that is its alone:
/// programs take memory of equal numbers for the same.
const OF_PROCESS: u16 = 1;

/// Memory, as long as a port has it.
#[derive(Default)]
pub struct Areas {
    /// With the user that it belongs to.
    numbered: HashMap<u16, (u32, Weak<Area>)>,
    /// By process: its user, and the number.
    of_process: HashMap<u64, (u32, u16, Weak<Area>)>,
    last: u16,
}

impl Areas {
    /// Gives memory a number.
    ///
    /// # Errors
    /// [`Error::AreaFull`].
    fn add(&mut self, user: u32, area: &Arc<Area>) -> Result<u16> {
        self.numbered.retain(|_, (_, area)| area.strong_count() > 0);
        for _ in 0..u16::MAX {
            self.last = self.last.wrapping_add(1).max(OF_PROCESS + 1);
            if !self.numbered.contains_key(&self.last) {
                self.numbered.insert(self.last, (user, Arc::downgrade(area)));
                return Ok(self.last);
            }
        }
        Err(Error::AreaFull { what: "numbers left for memory" })
    }
}

impl State {
    /// Makes memory with a number of its own.
    ///
    /// # Errors
    /// [`Error::AreaFull`], and those of [`Area::new`].
    pub(super) fn make_area(&self, user: u32, plan: Plan) -> Result<(u16, Arc<Area>)> {
        let area = Arc::new(Area::new(plan)?);
        Ok((lock(&self.areas).add(user, &area)?, area))
    }

    /// Returns the user's memory of this number, with its number; for 0 and 1 that of the process, which is made if it is not there.
    ///
    /// # Errors
    /// `EINVAL` where there is none, as netmap answers.
    pub(super) fn area(&self, user: u32, process: u64, number: u16) -> Result<(u16, Arc<Area>)> {
        let areas = &mut *lock(&self.areas);
        if number > OF_PROCESS {
            let found = areas.numbered.get(&number).filter(|(owner, _)| *owner == user);
            let area = found.and_then(|(_, area)| area.upgrade());
            let why = || format!("there is no memory of number {number}");
            return Ok((number, area.ok_or_else(|| Error::Refused { why: why(), errno: libc::EINVAL })?));
        }
        areas.of_process.retain(|_, (.., area)| area.strong_count() > 0);
        let found = areas.of_process.get(&process).filter(|(owner, ..)| *owner == user);
        if let Some((number, area)) = found.and_then(|(_, number, area)| Some((*number, area.upgrade()?))) {
            return Ok((number, area));
        }
        let area = Arc::new(Area::new(Plan::default())?);
        let number = areas.add(user, &area)?;
        areas.of_process.insert(process, (user, number, Arc::downgrade(&area)));
        Ok((number, area))
    }

    /// Returns what is in the user's memory of this number, as [`area`](State::area), and its number in that process.
    ///
    /// # Errors
    /// As [`area`](State::area).
    pub(super) fn plan(&self, user: u32, process: u64, number: u16) -> Result<(u16, Plan)> {
        let (number, area) = self.area(user, process, number)?;
        Ok((self.number_in(process, number), area.plan))
    }

    /// Returns the number that memory has in a process.
    pub(super) fn number_in(&self, process: u64, number: u16) -> u16 {
        let areas = lock(&self.areas);
        let is_own = areas.of_process.get(&process).is_some_and(|(_, own, _)| *own == number);
        if is_own { OF_PROCESS } else { number }
    }
}
