//! `linerate sim`: serves models as PCI devices.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use linerate::sim82599::{self, Card, CardKind, Function, Runner};
use linerate::vfio_user::Server;
use linerate::{Error, Options};
use serde_json::json;

use crate::error::with_hint;
use crate::grammar::usage;
use crate::notes::defects;
use crate::options::{seconds, whole};
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;
use crate::wire::check_cables;

/// The most breaches of a card that are printed individually.
const SHOWN: usize = 20;

/// A card with its servers and its thread. Fields are dropped in this order: serving ends before the card stops.
struct Served {
    _servers: Vec<Server>,
    _runner: Arc<Runner>,
    card: Arc<Card>,
}

/// The cards.
#[derive(Args)]
pub struct Models {
    /// Socket of a card; repeat for several cards
    #[arg(long, required = true)]
    socket: Vec<PathBuf>,
    /// Other end of each card's cable, in the order of the sockets: none (the default), sink,
    /// traffic?rate=1M&size=64&flows=1&count=1M, sim:NAME (another card, named as its socket's file), or any port:
    /// tap:NAME, packet:IF, xdp:IF, pcap:FILE, vale0:a, X{1, faulty:PORT, 0000:03:00.0, vfio-user:PATH.
    /// &record=FILE records what leaves the card. Two cards without a --wire are cabled to each other
    #[arg(long)]
    wire: Vec<String>,
    /// Kind of each card, in the order of the sockets, or one for all: 82599-sfp, 82599-kx4, x540, x550
    #[arg(long)]
    device: Vec<String>,
    /// Virtual functions of each card, served at PATH.vf0, PATH.vf1 and so on
    #[arg(long, default_value_t = 0, value_parser = whole::<u8>(0, 32))]
    vfs: u8,
    /// Stop after this many seconds
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Serves until Ctrl-C, or for the given time.
pub fn run(
    Models { socket: sockets, wire: wires, device: devices, vfs, seconds, json }: &Models,
) -> Result<ExitCode, Error> {
    let names: Vec<String> = sockets.iter().map(|socket| name(socket)).collect();
    if wires.len() > sockets.len() {
        usage(&format!(
            "{} wires are given for {} sockets: each --wire is for the card of the --socket at the same position",
            wires.len(),
            sockets.len()
        ));
    }
    let mut served = Vec::new();
    let wire_of = |n: usize| match (wires.get(n), wires.is_empty() && names.len() == 2) {
        (Some(wire), _) => wire.clone(),
        (None, true) => format!("sim:{}", names[1 - n]),
        (None, false) => "none".to_string(),
    };
    let all: Vec<String> = (0..names.len()).map(wire_of).collect();
    check_cables(&names.iter().map(String::as_str).zip(all.iter().map(String::as_str)).collect::<Vec<_>>())?;
    for (n, socket) in sockets.iter().enumerate() {
        let device = devices.get(n).or(devices.first().filter(|_| devices.len() == 1));
        let device = device.cloned().unwrap_or_else(|| CardKind::default().to_string());
        served.push(serve(socket, &names[n], &all[n], &device, *vfs)?);
        note(&format!("{}: {} {}, wire {}", socket.display(), served[n].card.kind(), served[n].card.mac(), all[n]));
    }
    note(&format!("-device {}", argument(&sockets[0])));

    interrupts().wait_for_end(*seconds);
    let (mut cards, mut is_good) = (Vec::new(), true);
    for (Served { card, .. }, socket) in served.iter().zip(sockets) {
        card.finish_wire();
        let (from_wire, to_wire) = card.frames();
        if !json {
            print(&format!("{}: {from_wire} frames from the wire, {to_wire} to it\n", socket.display()));
        }
        let capture = card.wire_report().unwrap_or_default().capture;
        defects(&capture).iter().for_each(|defect| note(&format!("note: {}: {defect}", socket.display())));
        if let Err(error) = card.check_wire() {
            note(&format!("error: {}: {}", socket.display(), with_hint(&error)));
            is_good = false;
        }
        for breach in card.breaches().iter().take(SHOWN) {
            note(&format!("{}: breach: {breach}", socket.display()));
        }
        if card.breach_count() > SHOWN as u64 {
            let kinds = card.breaches_by_kind().into_iter().map(|(kind, count)| format!("{count} {kind}"));
            note(&format!("{}: total breaches: {}", socket.display(), kinds.collect::<Vec<_>>().join(", ")));
        }
        cards.push(json!({
            "socket": socket, "from_wire": from_wire, "to_wire": to_wire, "breaches": card.breach_count(),
        }));
    }
    let breaches: u64 = served.iter().map(|served| served.card.breach_count()).sum();
    if *json {
        print(&format!("{}\n", json!({"summary": {"command": "sim", "cards": cards, "breaches": breaches}})));
    } else {
        print(&format!("sim: breaches {breaches}\n"));
    }
    Ok(if is_good && breaches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a card's name: that of its socket's file, with characters that are not allowed in names replaced.
fn name(socket: &Path) -> String {
    let name = socket.file_stem().unwrap_or_default().to_string_lossy();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).take(64).collect()
}

fn serve(socket: &Path, name: &str, wire: &str, device: &str, functions: u8) -> Result<Served, Error> {
    // Options of the model's own wires and of its recording belong to its name, those of a port to the wire's name.
    let (wire, options) = wire.split_once('?').unwrap_or((wire, ""));
    let is_model =
        |option: &&str| ["record", "size", "flows", "rate", "count"].iter().any(|own| option.starts_with(own));
    let (models, ports): (Vec<&str>, Vec<&str>) =
        options.split('&').filter(|option| !option.is_empty()).partition(is_model);
    let wire = if ports.is_empty() { wire.to_string() } else { format!("{wire}?{}", ports.join(";")) };
    let text = format!("sim:{name}?device={device}&vfs={functions}&wire={wire}&{}", models.join("&"));
    let (card, runner) =
        sim82599::open_named(&linerate::parse(&text)?, &|wire| Options::default().open_wire_port(wire))?;
    let mut servers = vec![Server::start(socket, Box::new(Function::new(card.clone())?))?];
    for number in 0..functions {
        let path = PathBuf::from(format!("{}.vf{number}", socket.display()));
        servers.push(Server::start(&path, Box::new(Function::of_virtual(card.clone(), number.into())?))?);
    }
    Ok(Served { _servers: servers, _runner: runner, card })
}

/// Returns QEMU's option for the card, ready to be copied.
fn argument(socket: &Path) -> String {
    format!("'{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{}\"}}}}'", socket.display())
}
