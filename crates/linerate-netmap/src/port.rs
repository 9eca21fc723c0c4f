//! A port of this process, and the threads that wait for it.
//!
//! A ring has one flag that asks for a wakeup, and a port one bell, whatever the number of threads that wait. So the
//! waiting threads are counted, and the last one that leaves clears the flags. The thread that hears the bell wakes the
//! others, each by an eventfd of its own, since the bell may be silent again before they look.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate::shared::SharedPort;

use crate::real::{call, errno, is_readable};
use crate::table::protect;

/// An open port, shared by the descriptors that have opened it in the same way.
pub struct Port {
    shared: Option<SharedPort>,
    /// The process that has opened it; a child of fork(2) does not close it.
    process: u32,
    /// The places of waiting threads. They are kept, so that a sleep makes no eventfd.
    places: Mutex<Vec<Place>>,
}

struct Place {
    event: OwnedFd,
    is_taken: bool,
    send: bool,
    receive: bool,
}

impl Port {
    pub fn new(shared: SharedPort) -> Port {
        for descriptor in [shared.event(), shared.server(), shared.memory().as_fd()] {
            protect(descriptor.as_raw_fd());
        }
        Port { shared: Some(shared), process: std::process::id(), places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the wakeups of all threads that wait.
    fn arm(&self, places: &[Place]) {
        let waits = |what: fn(&Place) -> bool| places.iter().any(|place| place.is_taken && what(place));
        self.shared().arm(waits(|place| place.send), waits(|place| place.receive));
    }

    fn shared(&self) -> &SharedPort {
        self.shared.as_ref().unwrap_or_else(|| unreachable!("it goes with this"))
    }
}

impl Deref for Port {
    type Target = SharedPort;

    fn deref(&self) -> &SharedPort {
        self.shared()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.shared.take());
        }
    }
}

/// A thread's place among those that wait for a port. Dropping it leaves.
pub struct Waiter {
    port: Arc<Port>,
    place: usize,
    event: i32,
}

impl Waiter {
    /// Makes one of [`descriptors`](Waiter::descriptors) readable when there is room to send, or something to receive. The
    /// caller looks once more before it sleeps.
    ///
    /// # Errors
    /// What eventfd(2) answers.
    pub fn new(port: &Arc<Port>, send: bool, receive: bool) -> Result<Waiter, i32> {
        let mut places = port.places();
        let free = places.iter().position(|place| !place.is_taken);
        let place = match free {
            Some(place) => place,
            None => {
                let event = call!(libc::SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as i32;
                if event < 0 {
                    return Err(errno());
                }
                protect(event);
                // SAFETY: it is new, and belongs to nothing else.
                let event = unsafe { OwnedFd::from_raw_fd(event) };
                places.push(Place { event, is_taken: false, send: false, receive: false });
                places.len() - 1
            }
        };
        (places[place].is_taken, places[place].send, places[place].receive) = (true, send, receive);
        port.arm(&places);
        let event = places[place].event.as_raw_fd();
        Ok(Waiter { port: port.clone(), place, event })
    }

    /// Returns the bell, the thread's own eventfd, and the connection, which is readable when the server is gone.
    pub fn descriptors(&self) -> [i32; 3] {
        [self.port.event().as_raw_fd(), self.event, self.port.server().as_raw_fd()]
    }

    /// Wakes the others if this thread is the first to hear the bell, and asks for wakeups again. The caller looks once more
    /// before it sleeps.
    pub fn hear(&self) {
        let places = self.port.places();
        drain(&places[self.place]);
        if is_readable(self.port.event().as_raw_fd()) {
            self.port.disarm();
            let one = 1u64;
            for (_, other) in places.iter().enumerate().filter(|(n, place)| *n != self.place && place.is_taken) {
                call!(libc::SYS_write, other.event.as_raw_fd(), &raw const one, 8);
            }
        }
        self.port.arm(&places);
    }
}

fn drain(place: &Place) {
    let mut count = 0u64;
    call!(libc::SYS_read, place.event.as_raw_fd(), &raw mut count, 8);
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut places = self.port.places();
        places[self.place].is_taken = false;
        drain(&places[self.place]);
        if !places.iter().any(|place| place.is_taken) {
            self.port.disarm();
        }
    }
}
