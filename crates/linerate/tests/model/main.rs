//! The model itself, driven by a driver of a few lines that does what each test wants: also what the
//! real driver never does, and what it must not do.

mod bench;
mod card;
mod offloads;
mod packets;
mod steering;
mod time;
