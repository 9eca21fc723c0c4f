//! An emulated link: packets are delayed, queued at a rate, lost, damaged, repeated and reordered.
//!
//! - [`Line`]: one direction; holds packets and releases them when they arrive at the other end
//! - [`Parameters`]: what a line does; set by options with units ([`quantity`])
//! - [`delay`]: constant and random delays; [`loss`]: which packets are lost
//! - [`transmitter`]: when the frames of a queue have been sent; [`codel`]: drops frames that wait too long
//! - [`schedule`]: parameters that change over time
//! - [`Recorder`], [`Recording`]: decisions about each packet, written to a file and repeated
//! - [`Link`], [`LinkPort`]: the ports `link:PORT` and `faulty:PORT`, which wrap another port

#![forbid(unsafe_code)]
#![warn(rustdoc::broken_intra_doc_links)]

pub mod codel;
mod counts;
mod decision;
pub mod delay;
mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod line;
pub mod loss;
mod parameters;
mod play;
mod port;
pub mod quantity;
mod record;
pub mod schedule;
mod timer;
pub mod transmitter;

pub use counts::{Counters, Event};
pub use decision::{Damage, Decision, Row, WAYS};
pub use line::Line;
pub use parameters::{OF_CARDS, OF_OTHERS, Overhead, Parameters, Refused};
pub use play::Recording;
pub use port::{Direction, FAULTY, LINK, Link, LinkPort, of_direction, of_direction_or_play, recordings, reserved};
pub use record::Recorder;
pub use schedule::Schedule;
