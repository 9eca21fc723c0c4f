//! Memory for programs' ports, by the numbers that they know it by (`nr_mem_id`): ports whose memory has one number exchange
//! packets by exchanging buffers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::State;
use crate::error::{Error, Result};
use crate::shared::area::{Area, Plan};
use crate::shared::lock;

/// The number of the memory that the ports of a process have together.
const OF_PROCESS: u16 = 1;

/// Memory, as long as a port has it.
#[derive(Default)]
pub struct Areas {
    numbered: HashMap<u16, (u32, Weak<Area>)>,
    /// By process, and with its user.
    of_process: HashMap<u32, (u32, Weak<Area>)>,
    last: u16,
}

impl State {
    /// Makes memory with a number of its own.
    ///
    /// # Errors
    /// [`Error::AreaFull`], and those of [`Area::new`].
    pub(super) fn make_area(&self, user: u32, plan: Plan) -> Result<(u16, Arc<Area>)> {
        let area = Arc::new(Area::new(plan)?);
        let areas = &mut *lock(&self.areas);
        areas.numbered.retain(|_, (_, area)| area.strong_count() > 0);
        for _ in 0..u16::MAX {
            areas.last = areas.last.wrapping_add(1).max(OF_PROCESS + 1);
            if !areas.numbered.contains_key(&areas.last) {
                areas.numbered.insert(areas.last, (user, Arc::downgrade(&area)));
                return Ok((areas.last, area));
            }
        }
        Err(Error::AreaFull { what: "numbers left for memory" })
    }

    /// Returns the user's memory of this number; for 0 and 1 that of the process, which is made if it is not there.
    ///
    /// # Errors
    /// `EINVAL` where there is none, as netmap answers.
    pub(super) fn area(&self, user: u32, process: u32, number: u16) -> Result<(u16, Arc<Area>)> {
        let areas = &mut *lock(&self.areas);
        if number > OF_PROCESS {
            let found = areas.numbered.get(&number).filter(|(owner, _)| *owner == user);
            let area = found.and_then(|(_, area)| area.upgrade());
            let why = || format!("there is no memory of number {number}");
            return Ok((number, area.ok_or_else(|| Error::Refused { why: why(), errno: libc::EINVAL })?));
        }
        areas.of_process.retain(|_, (_, area)| area.strong_count() > 0);
        let found = areas.of_process.get(&process).filter(|(owner, _)| *owner == user);
        if let Some(area) = found.and_then(|(_, area)| area.upgrade()) {
            return Ok((OF_PROCESS, area));
        }
        let area = Arc::new(Area::new(Plan::default())?);
        areas.of_process.insert(process, (user, Arc::downgrade(&area)));
        Ok((OF_PROCESS, area))
    }
}
