//! `linerate serve`: serves ports to other processes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use linerate::kernel::Interface;
use linerate::netmap::LONGEST_NAME;
use linerate::port::is_vale;
use linerate::share::{ANY, base, folder, socket_of};
use linerate::{Error, ErrorKind};

use crate::grammar::usage;
use crate::options::seconds;
use crate::show::print;
use crate::signals::interrupts;

/// Parses the permissions of a file.
fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "it must be octal, such as 0660".to_string())
}

/// The served names, and who may use them.
#[derive(Args)]
pub struct Service {
    /// Switches and interfaces to serve, for example vale0, with one socket each; by default all names at one socket
    names: Vec<String>,
    /// Permissions of the sockets, in octal
    #[arg(long, default_value = "0600", value_parser = octal)]
    mode: u32,
    /// Group of the sockets
    #[arg(long)]
    group: Option<String>,
    /// Let programs of different users open the two ends of a pipe; they then share its memory
    #[arg(long)]
    join_users: bool,
    /// Stop after this many seconds
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
}

/// Serves until Ctrl-C, or for the given time.
pub fn run(Service { names, mode, group, join_users, seconds }: &Service) -> Result<ExitCode, Error> {
    for name in names {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = !name.is_empty() && !name.starts_with(['.', '-']) && name.chars().all(allowed);
        if !is_name {
            let port = match linerate::parse(name) {
                Ok(_) if !is_vale(name) && name.contains(':') => {
                    format!("; to attach a port to a switch: linerate switch attach vale0:{name}")
                }
                _ => String::new(),
            };
            usage(&format!(
                "'{name}' is not a valid name: use letters, digits, '-', '_' and '.' for a switch or an interface{port}"
            ));
        }
        check(name);
    }
    let group = group.as_deref().map(group_number);
    raise_descriptors();
    let folder = folder();
    let mut server = linerate::server();
    if *join_users {
        server.join_users();
    }
    let sockets: Vec<_> = names.iter().map(|name| socket_of(&folder, name)).collect::<Result<_, Error>>()?;
    for (name, socket) in names.iter().zip(&sockets) {
        server.listen(socket, (name != ANY).then(|| base(name)), *mode, group)?;
    }
    sockets.iter().for_each(|socket| print(&format!("{}\n", socket.display())));
    if names.is_empty() {
        server.listen(&folder.join(ANY), None, *mode, group)?;
        print(&format!("{}\n", folder.join(ANY).display()));
    }
    interrupts().wait_for_end(*seconds);
    drop(server);
    Ok(ExitCode::SUCCESS)
}

/// Refuses a name that belongs neither to a switch nor to an interface.
fn check(name: &str) {
    if is_vale(name) {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.len() > LONGEST_NAME || !name.chars().all(plain) {
            usage(&format!("'{name}' is not a switch: its name has at most {LONGEST_NAME} letters, digits and '_'"));
        }
    } else if name != ANY
        && let Err(error) = Interface::open(name)
        && error.kind() == ErrorKind::NotFound
    {
        let why = error.why();
        usage(&format!("'{name}' is not a switch, as vale0, and {why}; to serve pipes of any name: linerate serve"));
    }
}

/// Raises the limit of descriptors to its maximum, as each connection uses several.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A failure is ignored: the server reports when the limit is reached.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Returns a group's number, given its name or number (group(5)).
fn group_number(group: &str) -> u32 {
    if let Ok(number) = group.parse() {
        return number;
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == group);
    let number = found.and_then(|fields| fields.get(2)?.parse().ok());
    number.unwrap_or_else(|| usage(&format!("there is no group '{group}'; see: getent group")))
}
