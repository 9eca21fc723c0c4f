//! `sim:NAME`: a model of the 82599 in this process, and its driver.

use std::sync::Arc;

use linerate_cards::nic;
use linerate_cards::nic::ixgbe::Ixgbe;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Pool, Region, RegionOptions};
use linerate_core::port::{
    Address, Config, Description, Device, METADATA, MTU, OFFLOADS, Opening, Port, PortClass, PortKind, PortOption,
    QUEUES, RING, VECTORS, Value,
};

use crate::{Card, CardBar, Runner, open_named};

/// Buffers of a port at the other end of a model's cable: a ring of 512 in each direction, and as many packets in
/// flight.
const WIRE_BUFFERS: usize = 2048;
/// The PCI vendor ID of the modelled cards.
const INTEL: u16 = 0x8086;

/// `sim:NAME`
pub static SIM: PortKind = PortKind {
    description: Description {
        large_buffers: nic::LARGE_BUFFERS,
        options: &[
            QUEUES,
            RING,
            MTU,
            OFFLOADS,
            METADATA,
            VECTORS,
            PortOption {
                name: "device",
                value: Value::Text("KIND"),
                default: "82599-sfp",
                help: "the kind of card: 82599-sfp, 82599-kx4, x540 or x550",
            },
            PortOption { name: "vfs", value: Value::Number(0, 32), default: "0", help: "virtual functions" },
            PortOption {
                name: "wire",
                value: Value::Text("WIRE"),
                default: "traffic",
                help: "the other end of the cable: traffic, sink, none, or the name of a port",
            },
            PortOption {
                name: "record",
                value: Value::Text("FILE"),
                default: "",
                help: "record the frames that leave the card",
            },
            PortOption {
                name: "size",
                value: Value::Number(64, 9732),
                default: "64",
                help: "the generator's frames, in bytes with CRC",
            },
            PortOption {
                name: "flows",
                value: Value::Number(1, 65_535),
                default: "1",
                help: "the generator's UDP flows",
            },
            PortOption {
                name: "rate",
                value: Value::Text("RATE"),
                default: "",
                help: "the generator's rate; full speed without it",
            },
            PortOption {
                name: "count",
                value: Value::Number(0, usize::MAX),
                default: "",
                help: "the number of frames; endless without it",
            },
        ],
        feature: "model",
        example: "sim:0",
        summary: "a model of the 82599 in this process; its wire sends and checks frames",
        page: "model.md",
        class: PortClass::Model,
        ..Description::new("sim", Address::Checked(check_name))
    },
    open: &open,
};

fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=64).contains(&name.len()) && name.chars().all(allowed) {
        true => Ok(()),
        false => Err("a model's name has 1 to 64 letters, digits, '-', '_' or '.'"),
    }
}

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let (name, config) = (opening.name, opening.config.clone());
    Ixgbe::<CardBar>::check(&config)?;
    let (card, runner) = open_named(name, &|wire| opening.open_isolated(wire, wire_pool()?).map(Port::of))?;
    let supported = nic::require_card(name.short(), INTEL, card.kind().device())?;
    let config = Config { description: format!("{}, a model inside this process", supported.name), ..config };
    Ok(Box::new(drive(&card, card.claim_alone(runner), config)?))
}

/// Returns memory for a port at the other end of a model's cable. No driver of the model can access it.
pub fn wire_pool() -> Result<Arc<Pool>> {
    Ok(Pool::new(Region::lazy(&RegionOptions { buffers: WIRE_BUFFERS, ..RegionOptions::default() })?))
}

/// Drives a model that the program has created, as the kind of card that it models. `runner` keeps running while the
/// port or one of its queues exists.
///
/// # Errors
/// [`ErrorKind::InUse`](linerate_core::ErrorKind::InUse) if another driver has the card, or it is served; all errors of
/// [`Ixgbe::open`].
pub fn drive_model(card: &Arc<Card>, runner: Option<Arc<Runner>>, config: Config) -> Result<Ixgbe<CardBar>> {
    drive(card, card.claim(runner), config)
}

fn drive(card: &Arc<Card>, bar: Option<CardBar>, config: Config) -> Result<Ixgbe<CardBar>> {
    let bar = bar.ok_or_else(|| Error::port_in_use(&config.name))?;
    Ixgbe::open(bar, card.bus(), Config { device: card.kind().device(), class: PortClass::Model, ..config })
}
