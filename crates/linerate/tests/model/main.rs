//! The model itself, with a small driver that does what each test needs, including what the real driver never does
//! and must not do.

mod bench;
mod card;
mod offloads;
mod packets;
mod steering;
mod time;
