//! `linerate serve`: ports for other processes.

use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use linerate::Error;
use linerate::share::{ANY, base, folder, socket_of};

/// Serves until Ctrl-C, or for the time given.
pub fn run(
    names: &[String],
    mode: u32,
    group: Option<&str>,
    join_users: bool,
    time: Option<Duration>,
) -> Result<ExitCode, Error> {
    let group = group.map(group_number).transpose()?;
    raise_descriptors();
    let folder = folder();
    let mut server = linerate::server();
    if join_users {
        server.join_users();
    }
    let sockets: Vec<_> = names.iter().map(|name| socket_of(&folder, name)).collect::<Result<_, Error>>()?;
    for (name, socket) in names.iter().zip(&sockets) {
        server.listen(socket, (name != ANY).then(|| base(name)), mode, group)?;
    }
    sockets.iter().for_each(|socket| println!("{}", socket.display()));
    if names.is_empty() {
        server.listen(&folder.join(ANY), None, mode, group)?;
        println!("{}", folder.join(ANY).display());
    }
    let (sender, stopped) = channel();
    let handler = move || {
        let _ = sender.send(());
    };
    ctrlc::set_handler(handler)
        .map_err(|error| Error::System { call: "sigaction", source: std::io::Error::other(error) })?;
    match time {
        Some(time) => drop(stopped.recv_timeout(time)),
        None => drop(stopped.recv()),
    }
    drop(server);
    Ok(ExitCode::SUCCESS)
}

/// Raises the limit of descriptors to its maximum: each connection takes several.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised it stays: the server reports when it is reached.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Returns a group's number, by its name or number (group(5)).
fn group_number(group: &str) -> Result<u32, Error> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == group);
    let number = found.and_then(|fields| fields.get(2)?.parse().ok());
    number.ok_or_else(|| Error::System {
        call: "looking for the group",
        source: std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("there is no group '{group}'; see: getent group"),
        ),
    })
}
