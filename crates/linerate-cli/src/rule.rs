//! `linerate rule`: adds, removes and lists rules of the ports of a run, at its control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use linerate::filter::Filter;
use linerate::port::Action;
use linerate::{Error, ErrorKind};
use serde_json::{Value, json};

use crate::live::RuleChange;
use crate::show::print;

/// A run answers within milliseconds, unless it is suspended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Subcommand)]
pub enum Rule {
    /// Add a rule to a port of a run: its card, or the kernel, steers or drops the packets of a filter
    Add {
        /// The port, as the run names it
        port: String,
        /// The packets, for example ip+udp:53
        #[arg(value_parser = parsed::<Filter>)]
        filter: Filter,
        /// Their treatment: queue:N, drop, or kernel
        #[arg(value_parser = parsed::<Action>)]
        action: Action,
        #[command(flatten)]
        run: Run,
    },
    /// Remove a rule of a port
    Remove {
        /// The port, as the run names it
        port: String,
        /// The rule's number
        rule: u32,
        #[command(flatten)]
        run: Run,
    },
    /// List the rules of a port, or of all ports of a run, in the order in which they decide
    List {
        /// The port, as the run names it
        port: Option<String>,
        #[command(flatten)]
        run: Run,
    },
}

/// The run, and the form of the output.
#[derive(Args)]
pub struct Run {
    /// The run's socket: the command was started with this option, too
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
    /// Print the run's answer: its state, as one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses an argument, and returns the reason if it is wrong.
fn parsed<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: Error| error.why().to_string())
}

/// Runs one of the subcommands.
pub fn run(command: &Rule) -> Result<ExitCode, Error> {
    let (run, request) = match command {
        Rule::Add { port, filter, action, run } => {
            let change = RuleChange::Add { port: port.clone(), filter: filter.clone(), action: *action };
            (run, json!({ "rule": change.json() }))
        }
        Rule::Remove { port, rule, run } => {
            (run, json!({ "rule": RuleChange::Remove { port: port.clone(), rule: *rule }.json() }))
        }
        Rule::List { run, .. } => (run, json!({})),
    };
    let listed = match command {
        Rule::List { port: Some(port), .. } => Some(linerate::parse(port)?.short().to_string()),
        _ => None,
    };
    let state = ask(&run.control, &request)?;
    if let Some(port) = &listed
        && !ports(&state).any(|known| known["name"] == **port)
    {
        let names: Vec<_> = ports(&state).filter_map(|port| port["name"].as_str()).collect();
        let why = format!("the run has no port with this name; it has {}", names.join(", "));
        return Err(Error::new(ErrorKind::NotFound, port, why));
    }
    match command {
        _ if run.json => print(&format!("{state}\n")),
        Rule::Add { .. } => print(&format!("rule {}\n", state["rule"])),
        Rule::Remove { .. } => {}
        Rule::List { .. } => print(&table(&state, listed.as_deref())),
    }
    Ok(ExitCode::SUCCESS)
}

fn ports(state: &Value) -> impl Iterator<Item = &Value> {
    state["ports"].as_array().into_iter().flatten()
}

/// Returns the rules of a port, or of all.
fn table(state: &Value, port: Option<&str>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let mut rows = vec![["port", "rule", "action", "filter"].map(str::to_string)];
    for known in ports(state).filter(|known| port.is_none_or(|port| known["name"] == port)) {
        for rule in known["rules"].as_array().into_iter().flatten() {
            rows.push([text(&known["name"]), rule["rule"].to_string(), text(&rule["action"]), text(&rule["filter"])]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [name, number, action] = [0, 1, 2].map(width);
    rows.iter()
        .map(|row| format!("{:<name$}  {:>number$}  {:<action$}  {}\n", row[0], row[1], row[2], row[3]))
        .collect()
}

/// Sends a request to a run, and returns its answer.
fn ask(path: &Path, request: &Value) -> Result<Value, Error> {
    let of_socket = |why: String, remedy: &'static str| Error::socket(path, why, remedy);
    let stream = UnixStream::connect(path).map_err(|error| {
        of_socket(format!("no run listens there: {error}"), "linerate fwd A B --control SOCKET, and rule with the same")
    })?;
    let exchange = || {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        (&stream).write_all(format!("{request}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error: std::io::Error| {
        of_socket(format!("the run does not answer: {error}"), "check whether it is suspended")
    })?;
    let answer: Value = serde_json::from_str(&answer)
        .map_err(|_| of_socket("the answer is not that of a run".to_string(), "check the socket's path"))?;
    match answer["error"].as_str() {
        Some(why) => Err(Error::new(ErrorKind::Unusable, "", why.to_string())),
        None => Ok(answer),
    }
}
