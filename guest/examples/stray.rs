//! Runs in a guest: gives a card's driver wrong DMA addresses, to simulate a buggy driver, and prints the library's
//! error.
#![allow(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping, Pool, Region, RegionOptions};
use linerate::nic::igb::Igb;
use linerate::pci::{self, Bus, Fault, Interrupt, NetworkCard};
use linerate::port::Device;
use linerate::{Batch, Error, Options};

/// A bus that returns addresses 1 GiB too high for packet memory.
struct Stray {
    bus: Arc<dyn Bus>,
    packets: Arc<Mapping>,
}

const ASTRAY: DeviceAddress = 1 << 30;

// SAFETY: it only passes `memory` to the bus below, and never reads or writes it.
unsafe impl DmaSpace for Stray {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses, Error> {
        match self.bus.map(memory)? {
            Addresses::Contiguous(Contiguous(start)) if Arc::ptr_eq(memory, &self.packets) => {
                Ok(Addresses::Contiguous(Contiguous(start + ASTRAY)))
            }
            addresses => Ok(addresses),
        }
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        // SAFETY: as the caller promises.
        unsafe { self.bus.unmap(address) };
    }
}

impl Bus for Stray {
    unsafe fn allow_dma(&self) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        unsafe { self.bus.allow_dma() }
    }

    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>, Error> {
        self.bus.interrupts(count)
    }

    fn fault(&self) -> Option<Fault> {
        self.bus.fault()
    }

    fn is_being_removed(&self) -> bool {
        self.bus.is_being_removed()
    }
}

fn main() -> ExitCode {
    let address = std::env::args().nth(1).expect("a card's address");
    match run(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stray: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str) -> Result<(), Error> {
    let card = NetworkCard::find(address)?;
    let (device, _) = pci::open(&card, None)?;
    let pool = Pool::new(Region::new(&RegionOptions::default())?);
    // SAFETY: the mapping is only compared by its pointer; no packet is read or written through it.
    let packets = unsafe { pool.region().mapping() }.clone();
    let bus = Arc::new(Stray { bus: device.clone().bus(), packets });
    let config = Options { tx_queues: 2, ..Options::default() }.of_port(address, pool.clone()).unwrap();
    // SAFETY: no other driver uses the card.
    let bar = unsafe { device.map_bar(0)? };
    let mut port = Igb::open(bar, bus, config)?;
    let mut tx = port.tx(1)?;
    let mut batch = Batch::new();
    batch.push(&pool, &[0x55; 60]);
    tx.send(&mut batch);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        port.statistics()?;
    }
    Ok(())
}
