//! `linerate switch`: manages served switches, as vale-ctl(8) does.

use std::process::ExitCode;

use linerate::port::{is_vale, switch_and_port};
use linerate::share::{Client, RingCounts, folder};
use linerate::{Error, ErrorKind};
use serde_json::json;

use crate::Switch;
use crate::show::print;
use crate::terminal::note;

/// Runs one of the subcommands.
pub fn run(command: &Switch) -> Result<ExitCode, Error> {
    match command {
        Switch::List { json } => return list(*json),
        Switch::Attach { port, name, host } => {
            let (switch, port) = parts(port)?;
            let named = name.as_ref().map_or_else(|| switch.to_string(), |name| format!("{switch}:{name}"));
            let number = client(switch)?.attach(&named, &port, *host, RingCounts::default())?;
            print(&format!("{switch}:{port} is port {number}\n"));
        }
        Switch::Detach { port } => {
            let (switch, port) = parts(port)?;
            client(switch)?.detach(switch, &port)?;
        }
        Switch::Create { port } => client(port)?.create(port, RingCounts::default())?,
        Switch::Destroy { port } => client(port)?.destroy(port)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn client(name: &str) -> Result<Client, Error> {
    let folder = folder();
    Client::find(&folder, name)?.ok_or_else(|| Error::no_server(name, &folder))
}

/// Splits a name into switch and port. Paths become absolute, as the server may have another working directory.
fn parts(name: &str) -> Result<(&str, String), Error> {
    let why = || {
        let port = if linerate::parse(name).is_err() && name.chars().all(char::is_alphanumeric) { name } else { "a" };
        Error::new(ErrorKind::BadName, name, "a port of a switch is named valeS:P").with_remedy(format!("vale0:{port}"))
    };
    let (switch, port) = switch_and_port(name).ok_or_else(why)?;
    let port = match linerate::parse(port) {
        Ok(port) => port.with_absolute_path()?,
        // A name that only the server can resolve.
        Err(_) => port.to_string(),
    };
    Ok((switch, port))
}

fn list(json: bool) -> Result<ExitCode, Error> {
    let folder = folder();
    let clients = Client::all(&folder)?;
    if clients.is_empty() {
        note(&format!("linerate: no server in {}\n  try: linerate serve", folder.display()));
        return Ok(ExitCode::FAILURE);
    }
    let ports = Client::list_all(&clients)?;
    if json {
        print(&format!("{}\n", json!({ "ports": ports })));
        return Ok(ExitCode::SUCCESS);
    }
    let room = ports.iter().map(|port| port.name.chars().count()).max().unwrap_or(0).max(24);
    print(&format!("{:<room$} {:>6} {:>14} {:>14} {:>10}\n", "port", "number", "to port", "from port", "dropped"));
    for port in &ports {
        // The server receives what comes from an attached port.
        let (to, from) = match is_vale(&port.name) {
            true => (port.rx_packets, port.tx_packets),
            false => (port.tx_packets, port.rx_packets),
        };
        print(&format!("{:<room$} {:>6} {to:>14} {from:>14} {:>10}\n", port.name, port.number, port.drops));
    }
    Ok(ExitCode::SUCCESS)
}
