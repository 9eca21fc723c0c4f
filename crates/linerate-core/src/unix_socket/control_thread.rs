//! The thread of a port that handles connections to peers.

use std::thread::JoinHandle;

use super::Peers;
use crate::error::{Error, Result};
use crate::event::Interrupt;

/// A control thread. Dropping this value stops it.
pub struct ControlThread {
    stop: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Starts a thread that runs `meet`, which must return once the event is readable.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if no descriptor or thread can be created.
    pub fn start(
        name: &str,
        peers: Peers,
        meet: impl FnOnce(&Peers, &Interrupt) + Send + 'static,
    ) -> Result<ControlThread> {
        Interrupt::prepare_for_peers();
        let stop = Interrupt::new()?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || meet(&peers, &stopped))
            .map_err(Error::thread)?;
        Ok(ControlThread { stop, thread: Some(thread) })
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
