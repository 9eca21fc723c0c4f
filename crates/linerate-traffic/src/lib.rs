//! Traffic: frames with flows and sequence numbers ([`Generator`]), their check at the other end ([`Checker`]), frames
//! from a text ([`Template`]), pacing ([`Pacer`]), and replies to ARP and ping ([`Host`]). This crate only handles
//! bytes. The model's wire uses it, and the commands `gen`, `sink` and `fwd`.
//!
//! Each frame of a generator carries a stamp in its UDP payload:
//!
//! ```text
//!   byte 0        14         34        42      46     48       49      50      54          60
//!       | Ethernet | IPv4     | UDP     | magic | flow | touched | 0   | check | sequence | pattern ...
//! ```
//!
//! `check` is a hash of all bytes except itself and byte 48, which a forwarder changes. A frame of the smallest size,
//! 64 bytes with CRC, has just enough room.
#![forbid(unsafe_code)]
#![warn(rustdoc::broken_intra_doc_links)]

mod checker;
mod checksum;
mod generator;
mod host;
mod latency;
mod rate;
mod sizes;
mod stamp;
mod template;

pub use checker::{Checker, Report};
pub use generator::Generator;
pub use host::Host;
pub use latency::Latency;
pub use rate::{Gaps, Pacer, Rate};
pub use sizes::Sizes;
pub use stamp::touch;
pub use template::{Template, TemplateFrames};
