//! The memory of ports by its number (`nr_mem_id`). Programs exchange the buffers of ports whose memory has the same
//! number.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};

use super::State;
use crate::share::protocol::layout::Plan;
use crate::share::protocol::lock;
use crate::share::server::netmap_memory::NetmapMemory;

/// The number of a process's own memory in that process. For all other processes it has a number of its own, since
/// programs take equal numbers for the same memory.
const OF_PROCESS: u16 = 1;

/// The most bytes of one user's memory. A client plans its own, of up to 128 GiB, and the server maps it.
const MOST_OF_USER: usize = 4 << 40;
/// The most bytes of all memory: a quarter of the server's addresses.
const MOST_OF_ALL: usize = 32 << 40;

/// Memory with a number, while a port has it.
#[derive(Default)]
pub struct MemoryNumbers {
    /// The memory, and the user that it belongs to.
    numbered: HashMap<u16, (u32, Weak<NetmapMemory>)>,
    /// By user and process: the memory's number, and the memory. Clients choose the number of their process.
    of_process: HashMap<(u32, u64), (u16, Weak<NetmapMemory>)>,
    last: u16,
}

impl MemoryNumbers {
    /// Makes memory, and gives it a number.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`], also if the user's memory would be too large, and those of
    /// [`NetmapMemory::new`].
    fn make(&mut self, user: u32, plan: Plan) -> Result<(u16, Arc<NetmapMemory>)> {
        self.numbered.retain(|_, (_, memory)| memory.strong_count() > 0);
        // An impossible plan has an error of its own.
        if plan.is_possible() {
            self.check_room(user, plan.len())?;
        }
        let memory = Arc::new(NetmapMemory::new(plan)?);
        Ok((self.add(user, &memory)?, memory))
    }

    /// Refuses more memory than a user, or all of them, may have.
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
            .with_remedy(Remedy::Do("close ports, or ask for fewer buffers".into())))
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
    /// Makes memory with a number of its own.
    ///
    /// # Errors
    /// As [`MemoryNumbers::make`].
    pub(super) fn make_memory(&self, user: u32, plan: Plan) -> Result<(u16, Arc<NetmapMemory>)> {
        lock(&self.memory_numbers).make(user, plan)
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

    /// Returns the plan of the user's memory of this number, as [`memory`](State::memory), and its number in that
    /// process.
    ///
    /// # Errors
    /// As [`memory`](State::memory).
    pub(super) fn plan(&self, user: u32, process: u64, number: u16) -> Result<(u16, Plan)> {
        let (number, memory) = self.memory(user, process, number)?;
        Ok((self.number_in(user, process, number), memory.plan))
    }

    /// Returns the number of memory in a user's process.
    pub(super) fn number_in(&self, user: u32, process: u64, number: u16) -> u16 {
        let memory_numbers = lock(&self.memory_numbers);
        let is_own = memory_numbers.of_process.get(&(user, process)).is_some_and(|(own, _)| *own == number);
        if is_own { OF_PROCESS } else { number }
    }
}
