//! `linerate ports`: what can be opened here.

use std::process::ExitCode;

use linerate::Error;
use linerate::memory::PageSize;
use linerate::pci::{NetworkCard, network_cards};
use serde_json::json;

/// Lists models and cards. Reading only: no card is touched.
pub fn run(as_json: bool) -> Result<ExitCode, Error> {
    let cards = network_cards();
    let hugepages = PageSize::Huge2M.free();
    if as_json {
        let cards: Vec<_> = cards
            .iter()
            .map(|card| {
                json!({"name": card.address, "vendor": card.vendor, "device": card.device,
                       "driver": card.driver, "interfaces": card.interfaces, "usable": false})
            })
            .collect();
        println!(
            "{}",
            json!({"ports": [{"name": "sim:NAME", "usable": true}], "cards": cards, "free_hugepages": hugepages})
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("sim:NAME       an 82599 model inside the process; any name, as many as you like");
    println!("               ?wire=traffic (default), sink, none, tap:IF, pcap:FILE, sim:NAME   &record=FILE");
    println!("               ?size=64&flows=1&rate=14.88M&count=1M   &queues=4&ring=1024&mtu=9000");
    for NetworkCard { address, vendor, device, driver, interfaces } in &cards {
        let driver = driver.as_deref().unwrap_or("no driver");
        let interfaces = if interfaces.is_empty() { String::new() } else { format!(", {}", interfaces.join(", ")) };
        println!(
            "{address:<14} {vendor:04x}:{device:04x}, {driver}{interfaces}: real cards are not built yet in this version"
        );
    }
    println!("\n{hugepages} hugepages of 2 MiB are free; models do without");
    Ok(ExitCode::SUCCESS)
}
