//! `linerate ports`: lists the ports that can be opened here, and why others cannot.

use std::collections::BTreeMap;
use std::process::ExitCode;

use linerate::kernel::{Interface, LeftBehind, left_behind};
use linerate::memory::PageSize;
use linerate::nic::{Supported, find_card};
use linerate::pci::{NetworkCard, Taken, default_route, group_peers, in_other_namespace, in_use, network_cards, taken};
use linerate::port::{Feature, Link, Port, escaped};
use linerate::{Error, KINDS, Options};
use serde_json::{Value, json};

use crate::show::print;

/// A card with its notes.
struct Entry {
    card: NetworkCard,
    /// The card's driver, if linerate has one.
    supported: Option<&'static Supported>,
    /// Notes: Linux's use of the card, the rest of its IOMMU group, a process that left it behind.
    notes: Vec<String>,
    /// Whether it can be opened without further steps.
    usable: bool,
}

/// Describes one of the kernel's interfaces.
fn as_value(interface: &Interface, left: &[LeftBehind]) -> Value {
    let of_it = left.iter().filter(|left| left.interface == interface.name());
    let notes: Vec<String> = of_it.map(|left| as_note(left.process, left.rules)).collect();
    let addresses: Vec<String> = interface.addresses().iter().map(ToString::to_string).collect();
    json!({"name": interface.name(), "driver": interface.driver(), "queues": interface.queues(),
           "mtu": interface.mtu().unwrap_or(0), "up": matches!(interface.link(), Ok(Link::Up { .. })),
           "addresses": addresses, "notes": notes})
}

fn as_note(process: u32, rules: usize) -> String {
    format!("the card still has {rules} rules of process {process}, which has ended; the next xdp: port removes them")
}

/// Lists models, cards and interfaces. It only reads.
pub fn run(as_json: bool) -> Result<ExitCode, Error> {
    let taken = taken();
    let entries: Vec<Entry> = network_cards().into_iter().map(|card| describe(card, &taken)).collect();
    let hugepages = PageSize::Huge2M.free();
    let (interfaces, left) = (Interface::all(), left_behind());
    if as_json {
        let cards: Vec<_> = entries
            .iter()
            .map(|Entry { card, supported, notes, usable }| {
                json!({"name": card.address, "vendor": card.vendor, "device": card.device,
                       "what": supported.map(|found| found.name),
                       "supported_by": supported.map(|found| found.driver.to_string()),
                       "tried_on": supported.map(|found| found.tried.word()),
                       "driver": card.driver, "interfaces": card.interfaces, "iommu_group": card.iommu_group,
                       "numa_node": card.numa_node, "usable": usable, "notes": notes})
            })
            .collect();
        print(&format!(
            "{}\n",
            json!({"ports": [{"name": "sim:NAME", "usable": true}], "cards": cards, "free_hugepages": hugepages,
                   "interfaces": interfaces.iter().map(|interface| as_value(interface, &left)).collect::<Vec<_>>()})
        ));
        return Ok(ExitCode::SUCCESS);
    }
    print(
        "sim:NAME       an 82599 model inside the process; any name, any number of them\n               \
         ?wire=traffic (default), sink, none, sim:NAME, or any port: tap:IF, packet:IF,\n               \
         xdp:IF, pcap:FILE, vale0:a, X{1, faulty:PORT, vfio-user:PATH; &record=FILE\n               \
         ?size=64&flows=1&rate=14.88M&count=1M   &queues=4&ring=1024&mtu=9000\n",
    );
    for Entry { card, supported, notes, .. } in &entries {
        let driver = card.driver.as_deref().unwrap_or("no driver");
        let interfaces =
            if card.interfaces.is_empty() { String::new() } else { format!(" ({})", card.interfaces.join(", ")) };
        let group = card.iommu_group.map_or_else(String::new, |group| format!(", IOMMU group {group}"));
        let node = card.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
        let ids = format!("{:04x}:{:04x}", card.vendor, card.device);
        let what = match supported {
            Some(Supported { name, driver, tried, .. }) => format!("{name}, {ids}, driven by {driver} ({tried})"),
            None => format!("{ids}, linerate has no driver for it"),
        };
        print(&format!("{:<14} {what}; bound to {driver}{interfaces}{group}{node}\n", card.address));
        notes.iter().for_each(|note| print(&format!("               {note}\n")));
    }
    for interface in &interfaces {
        let name = escaped(interface.name());
        let link = if matches!(interface.link(), Ok(Link::Up { .. })) { "up" } else { "down" };
        let (queues, mtu) = (interface.queues(), interface.mtu().unwrap_or(0));
        print(&format!(
            "xdp:{name:<10} {} interface, {link}, queues {queues}, MTU {mtu}; or packet:{name}\n",
            interface.driver()
        ));
        for LeftBehind { process, rules, .. } in left.iter().filter(|left| left.interface == interface.name()) {
            print(&format!("               {}\n", as_note(*process, *rules)));
        }
        if let Some(address) = interface.addresses().first() {
            print(&format!(
                "               Linux uses it, with {address}: choose packets by a flow, such as ?flow=udp:4321\n"
            ));
        }
    }
    print("\nAll kinds of ports, with their options: linerate ports --help\n");
    for kind in KINDS {
        let absent = if kind.is_built { String::new() } else { format!("not in this build: feature {}", kind.feature) };
        print(&format!("{:<17} {}{absent}\n", kind.notation(), kind.summary));
    }
    print("PORT?cluster=N    any port, shared by N consumers; &by=flow, inner, addresses or turn\n\n");
    print(&format!("{hugepages} hugepages of 2 MiB are free; models, and cards behind an IOMMU, need none\n"));
    Ok(ExitCode::SUCCESS)
}

/// Opens ports, and prints the features of each.
pub fn show_capabilities(names: &[String], as_json: bool) -> Result<ExitCode, Error> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ports = Options::default().open_all(&names)?;
    let words = |feature: Feature| ports.iter().map(move |port| port.capabilities().of(feature).word());
    if as_json {
        let of = |port: &Port| {
            let features = Feature::ALL.into_iter().map(|one| (one.name(), port.capabilities().of(one).word()));
            json!({"name": port.name(), "driver": port.info().driver, "features": features.collect::<BTreeMap<_, _>>()})
        };
        print(&format!("{}\n", json!({"ports": ports.iter().map(of).collect::<Vec<_>>()})));
        return Ok(ExitCode::SUCCESS);
    }
    let widths: Vec<usize> = names.iter().map(|name| name.chars().count().max(9)).collect();
    let row = |title: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("  {cell:<width$}")).collect();
        format!("{}\n", format!("{title:<17}{}", cells.concat()).trim_end())
    };
    print(&row("feature", &mut names.iter().copied()));
    Feature::ALL.into_iter().for_each(|one| print(&row(&one.name().replace('_', " "), &mut words(one))));
    Ok(ExitCode::SUCCESS)
}

fn describe(card: NetworkCard, taken: &[Taken]) -> Entry {
    let supported = find_card(card.vendor, card.device);
    let driver = card.driver.as_deref();
    let free = matches!(driver, None | Some("vfio-pci" | "uio_pci_generic" | "igb_uio"));
    let mut notes = Vec::new();
    let address = &card.address;
    match taken.iter().find(|taken| taken.address == *address) {
        Some(note) if free => {
            let from = note.driver.as_deref().unwrap_or("no driver");
            notes.push(match note.process {
                Some(process) if note.is_orphaned() => format!(
                    "left behind by process {process}, which has ended; to give it back to {from}: sudo linerate unbind {address}"
                ),
                Some(process) => format!("process {process} is using it, and will give it back to {from}"),
                None => format!("taken from {from}; to give it back: sudo linerate unbind {address}"),
            });
        }
        _ if supported.is_some() && !free => {
            notes.extend(in_use(&card));
            notes.push(match default_route(&card) {
                _ if in_other_namespace(&card).is_some() => {
                    "do not take it from Linux: run linerate ports in that namespace to see how it is used".to_string()
                }
                Some(interface) => format!(
                    "do not take it from Linux: the default route uses {interface}; share it: xdp:{}?flow=udp:4321",
                    escaped(interface)
                ),
                None => format!("to use it: sudo linerate bind {address}"),
            });
        }
        _ => {}
    }
    let others = group_peers(&card);
    if !others.is_empty() {
        notes.push(format!("the IOMMU cannot isolate it from {}", others.join(", ")));
    }
    Entry { supported, notes, usable: supported.is_some() && free, card }
}

#[cfg(test)]
mod tests {
    use linerate::nic::{SUPPORTED, Supported};

    /// The table in docs/cards.md has all cards.
    #[test]
    fn all_cards_are_documented() {
        let page = include_str!("../../../docs/cards.md");
        let rows = SUPPORTED.iter().map(|Supported { vendor, device, name, driver, tried }| {
            format!("| {vendor:04x}:{device:04x} | {name} | {driver} | {tried} |\n")
        });
        let table = rows.collect::<String>();
        assert!(
            page.contains(&format!("|---|---|---|---|\n{table}\n")),
            "the table of docs/cards.md is this:\n{table}"
        );
    }

    /// Each card has one entry, and they are in order.
    #[test]
    fn cards_are_in_order() {
        assert!(SUPPORTED.is_sorted_by(|one, next| (one.vendor, one.device) < (next.vendor, next.device)));
    }
}
