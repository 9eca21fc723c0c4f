//! Memory for the ports of this process, by the numbers that netmap's programs know it by (`nr_mem_id`): two ports whose
//! memory has one number exchange packets by exchanging buffers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use linerate::shared::{Area, Memory, Plan};
use linerate::{Error, Result};

/// All ports are in this one, unless something else is asked for.
pub const GLOBAL: u16 = 1;

struct Areas {
    by_number: HashMap<u16, Arc<Area>>,
    /// Of pipes that another process has made.
    foreign: Vec<(u16, std::sync::Weak<Memory>)>,
    next: u16,
}

static AREAS: Mutex<Option<Areas>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Areas) -> T) -> T {
    let mut areas = AREAS.lock().unwrap_or_else(PoisonError::into_inner);
    work(areas.get_or_insert_with(|| Areas { by_number: HashMap::new(), foreign: Vec::new(), next: GLOBAL + 1 }))
}

/// The memory of this number, or for 0 that of all ports.
///
/// # Errors
/// `EINVAL` where there is none, as netmap answers.
pub fn area(number: u16) -> Result<(u16, Arc<Area>)> {
    let number = if number == 0 { GLOBAL } else { number };
    with(|areas| {
        if let Some(area) = areas.by_number.get(&number) {
            return Ok((number, area.clone()));
        }
        if number != GLOBAL {
            let why = format!("there is no memory of number {number} in this process");
            return Err(Error::Refused { why, errno: libc::EINVAL });
        }
        let area = Arc::new(Area::new(Plan::default())?);
        areas.by_number.insert(GLOBAL, area.clone());
        Ok((GLOBAL, area))
    })
}

/// Gives memory of its own a number.
pub fn add(area: Area) -> (u16, Arc<Area>) {
    with(|areas| {
        let (number, area) = (areas.next, Arc::new(area));
        areas.next += 1;
        areas.by_number.insert(number, area.clone());
        (number, area)
    })
}

/// The number of a port's memory.
pub fn number_of(memory: &Arc<Memory>) -> u16 {
    with(|areas| {
        let own = areas.by_number.iter().find(|(_, area)| Arc::ptr_eq(&area.memory, memory));
        if let Some((number, _)) = own {
            return *number;
        }
        areas.foreign.retain(|(_, memory)| memory.strong_count() > 0);
        let known = areas.foreign.iter().find(|(_, there)| std::ptr::eq(there.as_ptr(), Arc::as_ptr(memory)));
        if let Some((number, _)) = known {
            return *number;
        }
        areas.foreign.push((areas.next, Arc::downgrade(memory)));
        areas.next += 1;
        areas.next - 1
    })
}
