//! Memory for the ports of this process, by the numbers that netmap's programs know it by (`nr_mem_id`): two ports whose
//! memory has one number exchange packets by exchanging buffers.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, Weak};

use linerate::shared::{Area, Memory, Plan};
use linerate::{Error, Result};

use crate::real::OfProcess;
use crate::table::protect;

/// The memory of all ports that ask for no other.
pub const GLOBAL: u16 = 1;

/// Numbers go on in a child of fork(2): its own memory is not called as its parent's was.
static LAST: AtomicU16 = AtomicU16::new(GLOBAL);
static IS_GLOBAL_TAKEN: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct Areas {
    /// The memory of [`GLOBAL`], and its number where that is another one. It stays as long as the process.
    global: Option<(u16, Arc<Area>)>,
    /// External memory, as long as a port has it.
    external: HashMap<u16, Weak<Area>>,
    /// Of pipes that another process has made.
    foreign: HashMap<u16, Weak<Memory>>,
}

impl Areas {
    /// A number that no memory has.
    fn number(&mut self) -> Result<u16> {
        self.external.retain(|_, area| area.strong_count() > 0);
        self.foreign.retain(|_, memory| memory.strong_count() > 0);
        for _ in 0..u16::MAX {
            // 0 is no number.
            let number = LAST.load(Relaxed).checked_add(1).unwrap_or(GLOBAL + 1);
            LAST.store(number, Relaxed);
            let is_global = self.global.as_ref().is_some_and(|(global, _)| *global == number);
            if !is_global && !self.external.contains_key(&number) && !self.foreign.contains_key(&number) {
                return Ok(number);
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
    AREAS.with(|areas| {
        let is_global = areas.global.as_ref().is_some_and(|(global, _)| *global == number);
        if !is_global && ![0, GLOBAL].contains(&number) {
            let area = areas.external.get(&number).and_then(Weak::upgrade);
            let why = || format!("there is no memory of number {number} in this process");
            return Ok((number, area.ok_or_else(|| Error::Refused { why: why(), errno: libc::EINVAL })?));
        }
        if let Some(global) = &areas.global {
            return Ok(global.clone());
        }
        let area = Arc::new(Area::new(Plan::default())?);
        protect(area.memory.as_fd().as_raw_fd());
        let number = if IS_GLOBAL_TAKEN.swap(true, Relaxed) { areas.number()? } else { GLOBAL };
        Ok(areas.global.insert((number, area)).clone())
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
        if let Some((number, area)) = &areas.global
            && Arc::ptr_eq(&area.memory, memory)
        {
            return Ok(*number);
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
