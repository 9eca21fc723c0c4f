//! `linerate bind` and `linerate unbind`: take cards from the kernel's drivers and give them back.

use std::process::ExitCode;

use linerate::Error;
use linerate::nic::require_card;
use linerate::pci::{NetworkCard, give_back, group_peers, take};
use linerate::port::Access;

use crate::show::print;
use crate::terminal::note;

/// Takes cards from the kernel's drivers, until `unbind` gives them back.
pub fn bind(cards: &[String], vfio: bool, uio: bool, force: bool) -> Result<ExitCode, Error> {
    let access = match (vfio, uio) {
        (true, _) => Access::Vfio,
        (_, true) => Access::Uio,
        _ => Access::Either,
    };
    for address in cards {
        let card = NetworkCard::find(address)?;
        // Refuse a card that linerate has no driver for: Linux would lose it for no use.
        require_card(&card.address, card.vendor, card.device)?;
        let others = group_peers(&card);
        if !others.is_empty() {
            note(&format!(
                "note: the IOMMU cannot isolate {} from {}: other programs cannot use those meanwhile",
                card.address,
                others.join(", ")
            ));
        }
        take(&card, access, force)?;
        let now = NetworkCard::find(address)?;
        let driver = now.driver.as_deref().unwrap_or("no driver");
        print(&format!("{}: {} -> {driver}\n", card.address, card.driver.as_deref().unwrap_or("no driver")));
        if let Some(group) = now.iommu_group.filter(|_| driver == "vfio-pci") {
            print(&format!("  to use it without root: sudo chown $USER /dev/vfio/{group}\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives cards back to their previous drivers.
pub fn unbind(cards: &[String]) -> Result<ExitCode, Error> {
    for address in cards {
        let card = NetworkCard::find(address)?;
        give_back(&card.address)?;
        let now = NetworkCard::find(address)?;
        print(&format!(
            "{}: {} -> {}\n",
            card.address,
            card.driver.as_deref().unwrap_or("no driver"),
            now.driver.as_deref().unwrap_or("no driver")
        ));
    }
    Ok(ExitCode::SUCCESS)
}
