//! `linerate bind` and `linerate unbind`: taking cards from the kernel, and giving them back.

use std::process::ExitCode;

use linerate::Error;
use linerate::nic::known;
use linerate::pci::{Access, NetworkCard, companions, give_back, take};

/// Takes cards, until `unbind` gives them back.
pub fn bind(cards: &[String], vfio: bool, uio: bool, force: bool) -> Result<ExitCode, Error> {
    let access = match (vfio, uio) {
        (true, _) => Access::Vfio,
        (_, true) => Access::Uio,
        _ => Access::Either,
    };
    for address in cards {
        let card = NetworkCard::find(address)?;
        // Linux would lose a card that nobody here can use.
        known(&card.address, card.vendor, card.device)?;
        let others = companions(&card);
        if !others.is_empty() {
            eprintln!(
                "note: the IOMMU cannot keep {} apart from {}: nobody else can use those meanwhile",
                card.address,
                others.join(", ")
            );
        }
        take(&card, access, force)?;
        let now = NetworkCard::find(address)?;
        let driver = now.driver.as_deref().unwrap_or("no driver");
        println!("{}: {} -> {driver}", card.address, card.driver.as_deref().unwrap_or("no driver"));
        if let Some(group) = now.iommu_group.filter(|_| driver == "vfio-pci") {
            println!("  for yourself, without root: sudo chown $USER /dev/vfio/{group}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives cards back.
pub fn unbind(cards: &[String]) -> Result<ExitCode, Error> {
    for address in cards {
        let card = NetworkCard::find(address)?;
        give_back(&card.address)?;
        let now = NetworkCard::find(address)?;
        println!(
            "{}: {} -> {}",
            card.address,
            card.driver.as_deref().unwrap_or("no driver"),
            now.driver.as_deref().unwrap_or("no driver")
        );
    }
    Ok(ExitCode::SUCCESS)
}
