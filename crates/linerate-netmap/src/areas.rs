//! Memory for the ports of this process, by the numbers that netmap's programs know it by (`nr_mem_id`): two ports whose
//! memory has one number exchange packets by exchanging buffers.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

use linerate::shared::{Area, Memory, Plan};
use linerate::{Error, Result};

use crate::real::OfProcess;
use crate::table::protect;

/// All ports are in this one, unless something else is asked for.
pub const GLOBAL: u16 = 1;

#[derive(Default)]
struct Areas {
    /// Stays as long as the process.
    global: Option<Arc<Area>>,
    /// External memory, as long as a port has it.
    external: HashMap<u16, Weak<Area>>,
    /// Of pipes that another process has made.
    foreign: HashMap<u16, Weak<Memory>>,
    last: u16,
}

impl Areas {
    /// A number that no memory has.
    fn number(&mut self) -> Result<u16> {
        self.external.retain(|_, area| area.strong_count() > 0);
        self.foreign.retain(|_, memory| memory.strong_count() > 0);
        for _ in 0..u16::MAX {
            // 0 is no number, and GLOBAL is taken.
            self.last = self.last.checked_add(1).unwrap_or_default().max(GLOBAL + 1);
            if !self.external.contains_key(&self.last) && !self.foreign.contains_key(&self.last) {
                return Ok(self.last);
            }
        }
        Err(Error::Refused { why: "the process has no number left for memory".to_string(), errno: libc::ENOMEM })
    }
}

static AREAS: OfProcess<Areas> = OfProcess::new();

/// The memory of this number, or for 0 that of all ports.
///
/// # Errors
/// `EINVAL` where there is none, as netmap answers.
pub fn area(number: u16) -> Result<(u16, Arc<Area>)> {
    let number = if number == 0 { GLOBAL } else { number };
    AREAS.with(|areas| {
        if number != GLOBAL {
            let area = areas.external.get(&number).and_then(Weak::upgrade);
            let why = || format!("there is no memory of number {number} in this process");
            return Ok((number, area.ok_or_else(|| Error::Refused { why: why(), errno: libc::EINVAL })?));
        }
        let area = match &areas.global {
            Some(area) => area.clone(),
            None => {
                let area = Area::new(Plan::default())?;
                protect(area.memory.as_fd().as_raw_fd());
                areas.global.insert(Arc::new(area)).clone()
            }
        };
        Ok((GLOBAL, area))
    })
}

/// Gives memory of its own a number, for as long as it is used.
///
/// # Errors
/// `ENOMEM`.
pub fn add(area: Area) -> Result<(u16, Arc<Area>)> {
    let area = Arc::new(area);
    AREAS.with(|areas| {
        let number = areas.number()?;
        areas.external.insert(number, Arc::downgrade(&area));
        Ok((number, area))
    })
}

/// The number of a port's memory.
///
/// # Errors
/// `ENOMEM`.
pub fn number_of(memory: &Arc<Memory>) -> Result<u16> {
    // What is upgraded here is dropped after the lock.
    let mut looked_at = Vec::new();
    AREAS.with(|areas| {
        if areas.global.as_ref().is_some_and(|area| Arc::ptr_eq(&area.memory, memory)) {
            return Ok(GLOBAL);
        }
        for (number, area) in &areas.external {
            let Some(area) = area.upgrade() else { continue };
            if Arc::ptr_eq(&area.memory, memory) {
                return Ok(*number);
            }
            looked_at.push(area);
        }
        let is_it = |there: &Weak<Memory>| std::ptr::eq(there.as_ptr(), Arc::as_ptr(memory));
        if let Some((number, _)) = areas.foreign.iter().find(|(_, there)| is_it(there)) {
            return Ok(*number);
        }
        let number = areas.number()?;
        areas.foreign.insert(number, Arc::downgrade(memory));
        Ok(number)
    })
}
