//! Finds the memory of ports by its number (`nr_mem_id`). Programs may swap buffers between ports whose memory has the
//! same number.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};

use super::State;
use crate::share::protocol::layout::Plan;
use crate::share::protocol::lock;
use crate::share::server::netmap_memory::NetmapMemory;

/// The number by which a process knows its own memory. Other processes know that memory by its unique number, because
/// programs assume that equal numbers mean the same memory.
const OF_PROCESS: u16 = 1;

/// The most bytes of one user's memory. A client plans its own memory, up to 128 GiB, and the server maps it.
const MOST_OF_USER: usize = 4 << 40;
/// The most bytes of all memory: a quarter of the server's address space.
const MOST_OF_ALL: usize = 32 << 40;

/// Memory by number, while a port uses it.
#[derive(Default)]
pub struct MemoryNumbers {
    /// The memory and its user.
    numbered: HashMap<u16, (u32, Weak<NetmapMemory>)>,
    /// For each user and process: the memory's number, and the memory. Clients choose the process number.
    of_process: HashMap<(u32, u64), (u16, Weak<NetmapMemory>)>,
    last: u16,
}

impl MemoryNumbers {
    /// Creates memory with a new number.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`], including if the user's memory would be too large, and those of [`NetmapMemory::new`].
    fn make(&mut self, user: u32, plan: Plan) -> Result<(u16, Arc<NetmapMemory>)> {
        self.numbered.retain(|_, (_, memory)| memory.strong_count() > 0);
        // An invalid plan has its own error.
        if plan.is_possible() {
            self.check_room(user, plan.len())?;
        }
        let memory = Arc::new(NetmapMemory::new(plan)?);
        Ok((self.add(user, &memory)?, memory))
    }

    /// Refuses memory beyond the limit per user, or the limit for all users.
    fn check_room(&self, user: u32, more: usize) -> Result<()> {
        let (mut all, mut of_user) = (0, 0);
        for (owner, memory) in self.numbered.values() {
            let len = memory.upgrade().map_or(0, |memory| memory.plan.len());
            all += len;
            of_user += if *owner == user { len } else { 0 };
        }
        let (whose, most) = match (of_user + more > MOST_OF_USER, all + more > MOST_OF_ALL) {
            (false, false) => return Ok(()),
            (true, _) => (format!("the ports of user {user}"), MOST_OF_USER),
            (false, true) => ("all ports".to_string(), MOST_OF_ALL),
        };
        let why = format!("the memory of {whose} would have more than {} TiB", most >> 40);
        Err(Error::new(ErrorKind::Exhausted, "", why)
            .with_remedy(Remedy::Step("close ports, or ask for fewer buffers".into())))
    }

    fn add(&mut self, user: u32, memory: &Arc<NetmapMemory>) -> Result<u16> {
        for _ in 0..u16::MAX {
            self.last = self.last.wrapping_add(1).max(OF_PROCESS + 1);
            if !self.numbered.contains_key(&self.last) {
                self.numbered.insert(self.last, (user, Arc::downgrade(memory)));
                return Ok(self.last);
            }
        }
        Err(Error::port_memory_full("numbers left for memory"))
    }
}

impl State {
    /// Creates memory with a unique number.
    ///
    /// # Errors
    /// As [`MemoryNumbers::make`].
    pub(super) fn make_memory(&self, user: u32, plan: Plan) -> Result<(u16, Arc<NetmapMemory>)> {
        lock(&self.memory_numbers).make(user, plan)
    }

    /// Returns the user's memory with this number, and the number. 0 and 1 mean the process's memory, which is created
    /// if it does not exist.
    ///
    /// # Errors
    /// `EINVAL` if there is no such memory, as in netmap.
    pub(super) fn memory(&self, user: u32, process: u64, number: u16) -> Result<(u16, Arc<NetmapMemory>)> {
        let memory_numbers = &mut *lock(&self.memory_numbers);
        if number > OF_PROCESS {
            let found = memory_numbers.numbered.get(&number).filter(|(owner, _)| *owner == user);
            let memory = found.and_then(|(_, memory)| memory.upgrade());
            let why = || format!("there is no memory with number {number}");
            return Ok((number, memory.ok_or_else(|| Error::new(ErrorKind::BadOption, "", why()))?));
        }
        memory_numbers.of_process.retain(|_, (_, memory)| memory.strong_count() > 0);
        let found = memory_numbers.of_process.get(&(user, process));
        if let Some((number, memory)) = found.and_then(|(number, memory)| Some((*number, memory.upgrade()?))) {
            return Ok((number, memory));
        }
        let (number, memory) = memory_numbers.make(user, Plan::default())?;
        memory_numbers.of_process.insert((user, process), (number, Arc::downgrade(&memory)));
        Ok((number, memory))
    }

    /// Returns the plan of the user's memory with this number, as in [`memory`](State::memory), and its number in that
    /// process.
    ///
    /// # Errors
    /// As [`memory`](State::memory).
    pub(super) fn plan(&self, user: u32, process: u64, number: u16) -> Result<(u16, Plan)> {
        let (number, memory) = self.memory(user, process, number)?;
        Ok((self.number_in(user, process, number), memory.plan))
    }

    /// Returns the number by which a user's process knows memory.
    pub(super) fn number_in(&self, user: u32, process: u64, number: u16) -> u16 {
        let memory_numbers = lock(&self.memory_numbers);
        let is_own = memory_numbers.of_process.get(&(user, process)).is_some_and(|(own, _)| *own == number);
        if is_own { OF_PROCESS } else { number }
    }
}
