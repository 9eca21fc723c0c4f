//! Tests of the model itself, with a small driver that also does things that the real driver must never do.

mod bench;
mod card;
mod offloads;
mod packets;
mod steering;
mod time;
