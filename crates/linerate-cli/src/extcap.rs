//! `linerate extcap`: ports as interfaces in Wireshark and tshark, which call the program as defined in extcap(4).
//!
//! - `names`: interface names of ports
//! - `capture`: writes packets to Wireshark's pipe
//! - `install`: the link by which Wireshark finds the program
//!
//! All failures exit with 1 and one line on standard error, which Wireshark shows.

mod capture;
mod install;
mod names;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use linerate::capture::SNAPLEN;
use linerate::filter::Filter;
use linerate::share::{Client, folder};

use self::names::{GENERAL, Interface};
use crate::error::with_hint;
use crate::grammar::usage;
use crate::options::whole;
use crate::show::print;
use crate::terminal::note;

/// The port of the general interface, unless another is given.
const PORT: &str = "sim:0";

const CALLS: &str = "Wireshark's calls";

/// The options of the command.
#[derive(Args)]
pub struct Extcap {
    /// Link this program into FOLDER; by default into the folders where Wireshark looks for this user's extcap programs
    #[arg(long, value_name = "FOLDER", num_args = 0..=1)]
    install: Option<Option<PathBuf>>,
    /// Remove the link
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, conflicts_with = "install")]
    uninstall: Option<Option<PathBuf>>,
    /// List the interfaces: the served ports, and one for any port
    #[arg(long, help_heading = CALLS)]
    extcap_interfaces: bool,
    /// Version of Wireshark
    #[arg(long, value_name = "VERSION", help_heading = CALLS)]
    extcap_version: Option<String>,
    /// The interface to which the other options apply
    #[arg(long, value_name = "INTERFACE", help_heading = CALLS)]
    extcap_interface: Option<String>,
    /// Print the link type of the interface
    #[arg(long, requires = "extcap_interface", help_heading = CALLS)]
    extcap_dlts: bool,
    /// Print the options of the interface
    #[arg(long, requires = "extcap_interface", help_heading = CALLS)]
    extcap_config: bool,
    /// Capture from the interface
    #[arg(long, requires = "extcap_interface", requires = "fifo", help_heading = CALLS)]
    capture: bool,
    /// Pipe to write the packets to
    #[arg(long, value_name = "FILE", help_heading = CALLS)]
    fifo: Option<PathBuf>,
    /// Capture only these packets, for example udp:4321 or tcp:80+from:10.0.0.0/8,icmp; alone, check this filter
    #[arg(long, value_name = "FILTER", allow_hyphen_values = true, help_heading = CALLS)]
    extcap_capture_filter: Option<String>,
    /// The port of the general interface
    #[arg(long, default_value = PORT, allow_hyphen_values = true, help_heading = CALLS)]
    port: String,
    /// Capture at most this many bytes of each frame
    #[arg(long, default_value_t = SNAPLEN, value_parser = whole::<u32>(1, SNAPLEN), help_heading = CALLS)]
    snaplen: u32,
}

/// Executes the command.
pub fn run(asked: &Extcap) -> ExitCode {
    match answer(asked) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            note(&format!("linerate: {}", one_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn answer(asked: &Extcap) -> Result<(), String> {
    if let Some(folder) = &asked.install {
        return install::install(folder.as_deref());
    }
    if let Some(folder) = &asked.uninstall {
        return install::uninstall(folder.as_deref());
    }
    if asked.extcap_interfaces {
        list();
        return Ok(());
    }
    let filter = asked.extcap_capture_filter.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let filter = filter.map(|text| text.parse::<Filter>().map_err(|error| with_hint(&error))).transpose();
    let interface = asked.extcap_interface.as_deref().map(Interface::parse).transpose();
    if let Some(fifo) = asked.fifo.as_deref().filter(|_| asked.capture) {
        // Open the pipe even if there is an error: its reader would wait for a writer for ever.
        return match (capture::open_pipe(fifo)?, interface?) {
            (Some(pipe), Some(interface)) => {
                capture::capture(interface.port(&asked.port), filter?.as_ref(), asked.snaplen, pipe)
            }
            _ => Ok(()),
        };
    }
    match interface? {
        Some(_) if asked.extcap_dlts => print("dlt {number=1}{name=EN10MB}{display=Ethernet}\n"),
        Some(interface) if asked.extcap_config => print(&config(&interface)),
        // Wireshark reads the error of a filter from standard output, and expects exit code 0.
        _ if asked.extcap_capture_filter.is_some() => {
            if let Err(why) = filter {
                print(&format!("{}\n", one_line(&why)));
            }
        }
        _ => usage("nothing to do: --install makes the ports interfaces in Wireshark and tshark"),
    }
    Ok(())
}

/// Returns an error and its remedy as one line.
fn one_line(why: &str) -> String {
    why.replace("\n  ", "; ")
}

/// Prints the interfaces. The ports of a server that does not answer are left out.
fn list() {
    print(&format!("extcap {{version={}}}{{display=linerate}}\n", env!("CARGO_PKG_VERSION")));
    let line = |value: &str, display: &str| print(&format!("interface {{value={value}}}{{display={display}}}\n"));
    line(GENERAL, "linerate: any port");
    for port in Client::names(&folder()) {
        let of = |port: &str| Interface::of(port).to_string();
        let shown = names::encoded(&port);
        line(&of(&format!("{port}+rt")), &format!("linerate {shown}: copies of its packets"));
        line(&of(&port), &format!("linerate {shown}: the port itself"));
    }
}

/// Returns the options of an interface.
fn config(interface: &Interface) -> String {
    let port = match interface {
        Interface::Any => format!(
            "arg {{number=0}}{{call=--port}}{{display=Port}}{{type=string}}{{default={PORT}}}{{tooltip=A port's name, for \
             example sim:0, vale0:a or xdp:eth0; the command linerate ports lists more}}\n"
        ),
        Interface::Port(_) => String::new(),
    };
    format!(
        "{port}arg {{number=1}}{{call=--snaplen}}{{display=Snap length}}{{type=unsigned}}{{default={SNAPLEN}}}\
         {{range=1,{SNAPLEN}}}{{tooltip=Capture at most this many bytes of each frame}}\n"
    )
}
