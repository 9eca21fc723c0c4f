//! Traffic: frames with flows and sequence numbers ([`Generator`]), their check at the other end ([`Checker`]), frames
//! from a text ([`Template`]), pacing ([`Pacer`]), edits of captured frames ([`Editor`]), replies to ARP and ping
//! ([`Host`]), DHCP ([`DhcpClient`]), and
//! IPv6's autoconfiguration. This crate only handles bytes. The model's wire uses it, and the commands `gen`, `sink`, `fwd`, `replay`
//! and `edit`.
//!
//! Each frame of a generator has a stamp at the beginning of its UDP payload: a flow, a sequence number, and a check of
//! the payload. Routers may change the headers before it. A frame of the smallest size, 64 bytes with CRC, has just
//! enough room. `stamp` describes the bytes, and `changes` compares headers.
#![forbid(unsafe_code)]
#![warn(rustdoc::broken_intra_doc_links)]

mod autoconf;
mod changes;
mod checker;
mod checksum;
mod dhcp;
mod edit;
mod generator;
mod host;
mod latency;
mod rate;
mod sizes;
mod stamp;
mod template;

pub use autoconf::AdvertisedNetwork;
pub use changes::{Changes, HeaderField};
pub use checker::{Checker, Report};
pub use dhcp::{DhcpClient, DhcpLease, DhcpReply};
pub use edit::{AddressMap, EditCounts, EditRules, Editor, Ends, Fields, Fit, PortMap, Tag};
pub use generator::Generator;
pub use host::Host;
pub use latency::{FrameTime, Latency};
pub use rate::{Gaps, Pacer, Rate};
pub use sizes::Sizes;
pub use stamp::touch;
pub use template::{Template, TemplateFrames};
