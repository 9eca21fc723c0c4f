//! Events between threads and processes, and waiting for them.
//!
//! - `interrupt`: [`Interrupt`], an event (eventfd(2)) of a card, a peer or a thread; `shared`: raises events that are
//!   shared with another process, without sleeping
//! - `armed`: [`ArmedEvent`], which wakes a receiver that sleeps until packets are sent to it
//! - `handover`: [`Handover`], a value that a control thread changes and queues use
//! - `waker`: [`Waker`], which ends another thread's sleep
//! - `yield_wait`: [`YieldWait`], waiting without sleeping

mod armed;
mod handover;
mod interrupt;
mod shared;
mod waker;
mod yield_wait;

use std::time::Duration;

pub use armed::ArmedEvent;
pub use handover::{Handover, Seen};
pub use interrupt::Interrupt;
pub use waker::Waker;
pub use yield_wait::YieldWait;
pub use yield_wait::run_soon_when_woken;

/// The longest wait for a peer, another process or another thread: for a complete message, a reply, an accepted
/// connection, or room for a message. A stopped peer blocks a thread at most this long.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(10);
