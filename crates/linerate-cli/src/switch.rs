//! `linerate switch`: manages switches that are served, as vale-ctl(8) does.

use std::process::ExitCode;

use linerate::Error;
use linerate::share::{Client, RingCounts, folder};
use serde_json::json;

use crate::Switch;

/// Runs one of the subcommands.
pub fn run(command: &Switch) -> Result<ExitCode, Error> {
    match command {
        Switch::List { json } => list(*json)?,
        Switch::Attach { port, host } => {
            let (switch, port) = parts(port)?;
            let number = client(switch)?.attach(switch, port, *host, RingCounts::default())?;
            println!("{switch}:{port} is port {number}");
        }
        Switch::Detach { port } => {
            let (switch, port) = parts(port)?;
            client(switch)?.detach(switch, port)?;
        }
        Switch::Create { port } => client(port)?.create(port, RingCounts::default())?,
        Switch::Destroy { port } => client(port)?.destroy(port)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn client(name: &str) -> Result<Client, Error> {
    let folder = folder();
    Client::find(&folder, name)?.ok_or(Error::NoServer { name: name.to_string(), folder })
}

fn parts(name: &str) -> Result<(&str, &str), Error> {
    let why = || Error::BadName { name: name.to_string(), why: "a port of a switch is named valeS:P".to_string() };
    name.split_once(':').filter(|_| name.starts_with("vale")).ok_or_else(why)
}

fn list(json: bool) -> Result<(), Error> {
    let mut ports = Vec::new();
    for client in Client::all(&folder())? {
        ports.extend(client.list()?);
    }
    if json {
        println!("{}", json!({ "ports": ports }));
        return Ok(());
    }
    println!("{:<24} {:>6} {:>14} {:>14} {:>10}", "port", "number", "to it", "from it", "dropped");
    for port in &ports {
        let (to, from) = (port.rx_packets, port.tx_packets);
        println!("{:<24} {:>6} {to:>14} {from:>14} {:>10}", port.name, port.number, port.drops);
    }
    Ok(())
}
