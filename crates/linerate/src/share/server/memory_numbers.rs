//! The memory of ports by its number (`nr_mem_id`). Programs exchange the buffers of ports whose memory has the same
//! number.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::State;
use crate::error::{Error, Result};
use crate::share::protocol::layout::Plan;
use crate::share::protocol::lock;
use crate::share::server::netmap_memory::NetmapMemory;

/// The number of a process's own memory in that process. For all other processes it has a number of its own, since
/// programs take equal numbers for the same memory.
const OF_PROCESS: u16 = 1;

/// Memory with a number, while a port has it.
#[derive(Default)]
pub struct MemoryNumbers {
    /// The memory, and the user that it belongs to.
    numbered: HashMap<u16, (u32, Weak<NetmapMemory>)>,
    /// By process: its user, the memory's number, and the memory.
    of_process: HashMap<u64, (u32, u16, Weak<NetmapMemory>)>,
    last: u16,
}

impl MemoryNumbers {
    /// Gives memory a number.
    ///
    /// # Errors
    /// [`Error::PortMemoryFull`].
    fn add(&mut self, user: u32, memory: &Arc<NetmapMemory>) -> Result<u16> {
        self.numbered.retain(|_, (_, memory)| memory.strong_count() > 0);
        for _ in 0..u16::MAX {
            self.last = self.last.wrapping_add(1).max(OF_PROCESS + 1);
            if !self.numbered.contains_key(&self.last) {
                self.numbered.insert(self.last, (user, Arc::downgrade(memory)));
                return Ok(self.last);
            }
        }
        Err(Error::PortMemoryFull { what: "numbers left for memory" })
    }
}

impl State {
    /// Makes memory with a number of its own.
    ///
    /// # Errors
    /// [`Error::PortMemoryFull`], and those of [`NetmapMemory::new`].
    pub(super) fn make_memory(&self, user: u32, plan: Plan) -> Result<(u16, Arc<NetmapMemory>)> {
        let memory = Arc::new(NetmapMemory::new(plan)?);
        Ok((lock(&self.memory_numbers).add(user, &memory)?, memory))
    }

    /// Returns the user's memory of this number, with its number. For 0 and 1 it is that of the process, which is made
    /// if it does not exist.
    ///
    /// # Errors
    /// `EINVAL` where there is none, as in netmap.
    pub(super) fn memory(&self, user: u32, process: u64, number: u16) -> Result<(u16, Arc<NetmapMemory>)> {
        let memory_numbers = &mut *lock(&self.memory_numbers);
        if number > OF_PROCESS {
            let found = memory_numbers.numbered.get(&number).filter(|(owner, _)| *owner == user);
            let memory = found.and_then(|(_, memory)| memory.upgrade());
            let why = || format!("there is no memory with number {number}");
            return Ok((number, memory.ok_or_else(|| Error::Refused { why: why(), errno: libc::EINVAL })?));
        }
        memory_numbers.of_process.retain(|_, (.., memory)| memory.strong_count() > 0);
        let found = memory_numbers.of_process.get(&process).filter(|(owner, ..)| *owner == user);
        if let Some((number, memory)) = found.and_then(|(_, number, memory)| Some((*number, memory.upgrade()?))) {
            return Ok((number, memory));
        }
        let memory = Arc::new(NetmapMemory::new(Plan::default())?);
        let number = memory_numbers.add(user, &memory)?;
        memory_numbers.of_process.insert(process, (user, number, Arc::downgrade(&memory)));
        Ok((number, memory))
    }

    /// Returns the plan of the user's memory of this number, as [`memory`](State::memory), and its number in that
    /// process.
    ///
    /// # Errors
    /// As [`memory`](State::memory).
    pub(super) fn plan(&self, user: u32, process: u64, number: u16) -> Result<(u16, Plan)> {
        let (number, memory) = self.memory(user, process, number)?;
        Ok((self.number_in(process, number), memory.plan))
    }

    /// Returns the number of memory in a process.
    pub(super) fn number_in(&self, process: u64, number: u16) -> u16 {
        let memory_numbers = lock(&self.memory_numbers);
        let is_own = memory_numbers.of_process.get(&process).is_some_and(|(_, own, _)| *own == number);
        if is_own { OF_PROCESS } else { number }
    }
}
