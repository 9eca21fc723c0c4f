//! Traffic that can be recognised again: frames with flows and sequence numbers, their check at the
//! other end, and pacing. It knows bytes only; the model's [wire](crate::model) uses it, and the
//! commands `gen`, `sink` and `fwd`.
//!
//! Each frame carries a stamp in its UDP payload:
//!
//! ```text
//!   byte 0        14         34        42      46     48       49      50      54          60
//!       | Ethernet | IPv4     | UDP     | magic | flow | touched | 0   | check | sequence | pattern ...
//! ```
//!
//! `check` is a hash of all bytes but itself and byte 48, the one that a forwarder touches. A frame
//! of the smallest size, 64 bytes with CRC, has room for exactly that.

mod checker;
mod generator;
mod latency;
mod rate;
mod stamp;

pub use checker::{Checker, Report};
pub use generator::Generator;
pub use latency::Latency;
pub use rate::{Pacer, Rate};
pub use stamp::touch;
