//! `linerate link`: forwards between two ports over an emulated link.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use linerate::Error;
use linerate::link::{
    Counters, Direction, Event, LINK, Link, Parameters, Recorder, Recording, Refused, of_direction_or_play, recordings,
    reserved,
};
use linerate::port::{PortClass, Value};
use linerate::traffic::Report;
use serde_json::{Value as JsonValue, json};

use crate::fwd;
use crate::grammar::usage;
use crate::live::VariableLink;
use crate::options::{RunOptions, Wait};
use crate::rates::{per_second, shortened};
use crate::run::{Mode, Run, Sums};
use crate::terminal::note;
use crate::wire::is_tester;

/// Packets from A to B, and from B to A.
pub const WAYS: [Direction; 2] = [Direction::FromPort, Direction::ToPort];

/// `linerate link`.
struct Emulation;

impl Mode for Emulation {
    fn name(&self) -> &'static str {
        "link"
    }

    fn forwards(&self) -> bool {
        true
    }

    fn moves_by_sending(&self, _given: u64) -> bool {
        true
    }
}

/// The options of `link:`, as options of the command: `--delay 20ms`, or `--delay 20ms/5ms` for packets from A to B and
/// from B to A.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    options: Vec<(&'static str, String)>,
}

impl Args for LinkOptions {
    fn augment_args(command: Command) -> Command {
        let arg = |name: &'static str, help| Arg::new(name).long(name).help(help).help_heading("Link");
        LINK.options.iter().fold(command, |command, option| {
            let arg = arg(option.name, option.help);
            command.arg(match option.value {
                Value::Switch => arg.value_name("WORD").value_parser(["on", "off"]),
                Value::Text(value) => arg.value_name(value),
                Value::Number(..) => arg.value_name("N"),
                Value::Word(words) => arg.value_name("WORD").value_parser(words.to_vec()),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        LinkOptions::augment_args(command)
    }
}

impl FromArgMatches for LinkOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<LinkOptions, clap::Error> {
        let value = |name: &'static str| matches.get_one::<String>(name).map(|value| (name, value.clone()));
        Ok(LinkOptions { options: LINK.options.iter().filter_map(|option| value(option.name)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = LinkOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

impl LinkOptions {
    /// Returns the parameters of packets from A to B (`FromPort`), or from B to A, which are received from a port of
    /// this category.
    fn of_direction(
        &self,
        direction: Direction,
        class: PortClass,
        play: Option<Recording>,
    ) -> Result<Parameters, Refused> {
        of_direction_or_play(&self.pairs(), direction, class, play)
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        self.options.iter().map(|(name, value)| (*name, &**value)).collect()
    }

    /// Returns the value of an option.
    fn value(&self, option: &str) -> Option<&str> {
        self.pairs().into_iter().find(|(name, _)| *name == option).map(|(_, value)| value)
    }

    /// Returns a link around a port whose other end is a command's interface. The first values are for packets from the
    /// command, so to the port. Ends the program if an option is wrong.
    pub fn around(&self) -> Link {
        Link::of_options(&LINK, &self.pairs(), PortClass::Peer, Direction::ToPort).unwrap_or_else(|why| wrong(&why))
    }

    /// Returns the options without a number of packets, so that it is computed.
    fn without_packets(&self) -> LinkOptions {
        let options = self.options.iter().filter(|(name, _)| *name != "packets").cloned().collect();
        LinkOptions { options }
    }

    /// Returns a recorder of both directions.
    fn recorder(&self) -> Result<Option<Recorder>, Error> {
        let Some(path) = self.value("record") else { return Ok(None) };
        let name = path.to_string();
        let on_failure = move |why: &str| note(&format!("warning: the recording {name} ends here: {why}"));
        Recorder::create(Path::new(path), on_failure).map(Some).map_err(|error| unwritten(path, &error.to_string()))
    }
}

/// Returns the error for a recording that cannot be written.
fn unwritten(path: &str, why: &str) -> Error {
    Error::new(linerate::ErrorKind::Unusable, path, format!("cannot write it: {why}"))
        .with_remedy("choose another file, or one on another disk")
}

/// Ends the program because of a wrong option.
fn wrong(refused: &Refused) -> ! {
    usage(&format!("--{}: {}", refused.option, refused.why))
}

/// Forwards between two ports over an emulated link until the run ends.
pub fn run(
    [a, b]: [&str; 2],
    asked: &LinkOptions,
    count: Option<u64>,
    options: &RunOptions,
) -> Result<ExitCode, Error> {
    let classes = [linerate::parse(a)?.class(), linerate::parse(b)?.class()];
    // Each port delays the packets that are received from it, so that its thread can sleep until they are due.
    let recordings = recordings(&asked.pairs()).unwrap_or_else(|why| wrong(&why));
    let parameters = WAYS.map(|way| {
        let recording = recordings.as_ref().map(|recordings| recordings[way as usize].clone());
        asked.of_direction(way, classes[way as usize], recording).unwrap_or_else(|why| wrong(&why))
    });
    let recorder = asked.recorder()?;
    let of_way = |way| recorder.as_ref().map(|recorder| recorder.of_way(way as usize));
    let [forward, back] = parameters.map(|parameters| [parameters, Parameters::default()]);
    let links = [
        Link::recorded(forward, [of_way(Direction::FromPort), None]),
        Link::recorded(back, [of_way(Direction::ToPort), None]).numbered(1),
    ];
    let held_buffers = links.iter().map(|link| reserved(&link.parameters()[0])).sum();
    let wait = options.wait.or(Some(Wait::Adaptive));
    let options = &RunOptions { held_buffers, wait, ..options.clone() };
    let mut run = Run::open(&Emulation, &[a, b], count, options)?;
    let devices = std::mem::take(&mut run.ports.devices).into_iter();
    run.ports.devices = devices.zip(&links).map(|(device, link)| device.wrapped(link.clone())).collect();
    let ways = [[a, b], [b, a]];
    for (link, [from, to]) in links.iter().zip(ways) {
        note(&format!("{from} to {to}: {}", describe(&link.parameters()[0])));
    }
    let names = [a, b].map(|name| shortened(name, 12));
    run.live.make_link_variable(Running { asked: RefCell::new(asked.clone()), classes, links: links.clone(), names });
    fwd::start_unchanged(&mut run, options)?;
    let (testers, held) = ([is_tester(a), is_tester(b)], run.threads.held.clone());
    let judge = |reports: &[Option<Report>], _: Sums| fwd::judge(reports, testers);
    run.finish(judge, |measured| {
        let counters = links.each_ref().map(|link| link.counters(Direction::FromPort));
        let sum = |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| count(counters)).sum::<u64>();
        let outcome = &mut measured.outcome;
        outcome.held = held.load(Ordering::Relaxed) + sum(&|counters| counters.get(Event::InFlight));
        outcome.lost = outcome.lost.saturating_sub(sum(&Counters::dropped) + outcome.held);
        let damaged = sum(&|counters| counters.get(Event::Corrupted) + counters.get(Event::Truncated));
        outcome.corrupted = outcome.corrupted.saturating_sub(damaged);
        let (mut parts, mut table) = (Vec::new(), String::new());
        if let (Some(recorder), Some(path)) = (&recorder, asked.value("record"))
            && let Err(why) = recorder.finish()
        {
            measured.failure.get_or_insert_with(|| unwritten(path, &why));
        }
        for (way, (counters, [from, to])) in counters.iter().zip(ways).enumerate() {
            let mut part = json!({ "from": from, "to": to });
            Event::ALL.iter().for_each(|event| part[event.name()] = counters.get(*event).into());
            if let Some(recorder) = &recorder {
                let [written, missing] = recorder.rows(way);
                (part["recorded"], part["not_recorded"]) = (written.into(), missing.into());
                if missing > 0 {
                    note(&format!("warning: {missing} lines about packets from {from} are not in the recording"));
                }
            }
            if Event::ALL.iter().any(|event| counters.get(*event) > 0) {
                table += &format!("{from} to {to}: {}\n", in_words(counters));
            }
            parts.push(part);
        }
        (parts.into(), table)
    })
}

/// Returns how often each event has occurred.
pub fn in_words(counters: &Counters) -> String {
    let seen = Event::ALL.iter().map(|event| (counters.get(*event), event)).filter(|(count, _)| *count > 0);
    let words: Vec<String> = seen.map(|(count, event)| format!("{count} {}", event.phrase())).collect();
    if words.is_empty() { "no packet dropped or changed".to_string() } else { words.join(", ") }
}

/// The packets per second that a link without a rate can still hold after a change: a tenth of what is assumed at the
/// start for ports of the kernel.
const LEAST_RATE: u128 = 200_000;

/// The link of a run, which requests change.
struct Running {
    asked: RefCell<LinkOptions>,
    classes: [PortClass; 2],
    links: [Link; 2],
    /// The first and the second port, for display.
    names: [String; 2],
}

impl Running {
    /// Returns the counters of each direction, with the names of its ports.
    fn directions(&self) -> impl Iterator<Item = (&Arc<Counters>, [&str; 2])> {
        let [a, b] = self.names.each_ref().map(String::as_str);
        self.links.iter().map(|link| link.counters(Direction::FromPort)).zip([[a, b], [b, a]])
    }
}

impl VariableLink for Running {
    fn change(&self, changes: &BTreeMap<String, String>) -> Result<(), String> {
        let mut new = self.asked.borrow().clone();
        if new.value("play").is_some() {
            return Err("the link repeats a recording, which cannot change".to_string());
        }
        for (option, value) in changes {
            let Some(known) = LINK.options.iter().find(|known| known.name == option) else {
                return Err(format!("a link has no option {option}"));
            };
            if ["seed", "packets", "record", "play"].contains(&known.name) {
                return Err(format!("{option} cannot change while the link runs"));
            }
            new.options.retain(|(name, _)| *name != known.name);
            new.options.extend((!value.is_empty()).then(|| (known.name, value.clone())));
        }
        let mut parameters = Vec::new();
        for (way, link) in WAYS.iter().zip(&self.links) {
            let class = self.classes[*way as usize];
            let refused = |refused: Refused| format!("{}: {}", refused.option, refused.why);
            let needed = |options: &LinkOptions| {
                options.without_packets().of_direction(*way, class, None).map_or(0, |new| match new.highest_rate() {
                    Some(_) => new.capacity(),
                    None => (u128::from(new.longest_delay()) * LEAST_RATE / 1_000_000_000) as usize,
                })
            };
            // A user who set fewer packets than the link could need has accepted that it may be full.
            let (needed, there) = (needed(&new), link.parameters()[0].capacity().max(needed(&self.asked.borrow())));
            if needed > there {
                return Err(format!(
                    "the link would hold {needed} packets, and has room for {there}; start it with --packets {needed}"
                ));
            }
            parameters.push(new.of_direction(*way, class, None).map_err(refused)?);
        }
        for (link, parameters) in self.links.iter().zip(parameters) {
            link.set_parameters(Direction::FromPort, parameters);
        }
        *self.asked.borrow_mut() = new;
        Ok(())
    }

    fn value(&self, option: &str) -> Option<String> {
        self.asked.borrow().value(option).map(str::to_string)
    }

    fn lines(&self) -> Vec<String> {
        let lines = |(counters, [from, to]): (&Arc<Counters>, [&str; 2])| {
            let mut parts = vec![format!("delay {}", milliseconds(counters.delay()))];
            if let (Some(rate), Some(wait)) = (counters.rate(), counters.queueing_delay()) {
                let bytes = counters.queued_bytes() as f64;
                parts.insert(0, format!("{}bit/s", per_second(rate as f64)));
                parts.insert(1, format!("queue {}B = {}", per_second(bytes), milliseconds(wait)));
            }
            parts.push(format!("{} held", per_second(counters.held() as f64)));
            let causes: Vec<String> =
                drops(counters).map(|(event, count)| format!("{count} {}", event.name().replace('_', " "))).collect();
            let dropped = (!causes.is_empty()).then(|| format!("  dropped: {}", causes.join(", ")));
            std::iter::once(format!("{from} to {to}: {}", parts.join("  "))).chain(dropped)
        };
        self.directions().flat_map(lines).collect()
    }

    fn json(&self) -> JsonValue {
        let direction = |(counters, [from, to]): (&Arc<Counters>, [&str; 2])| {
            let drops: serde_json::Map<_, _> =
                drops(counters).map(|(event, count)| (event.name().to_string(), count.into())).collect();
            json!({
                "from": from, "to": to, "rate_bits": counters.rate(), "delay_ns": counters.delay(),
                "queue_bytes": counters.queued_bytes(), "queue_ns": counters.queueing_delay(),
                "held": counters.held(), "drops": drops,
            })
        };
        self.directions().map(direction).collect::<Vec<_>>().into()
    }
}

/// Returns the causes of drops that occurred.
fn drops(counters: &Counters) -> impl Iterator<Item = (Event, u64)> {
    let causes = Event::ALL.into_iter().filter(|event| event.is_drop());
    causes.map(|event| (event, counters.get(event))).filter(|(_, count)| *count > 0)
}

/// Returns nanoseconds as milliseconds with three digits.
fn milliseconds(nanoseconds: u64) -> String {
    let ms = nanoseconds as f64 / 1e6;
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..100.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

/// Describes a direction in one line.
fn describe(parameters: &Parameters) -> String {
    let mut parts = Vec::new();
    if let Some(recording) = &parameters.play {
        parts.push(format!("repeats the recorded decisions about {} packets", recording.packets()));
    }
    let ms = |nanoseconds: u64| format!("{} ms", nanoseconds as f64 / 1e6);
    if parameters.delay.mean > 0 || parameters.delay.jitter.is_some() {
        let jitter =
            parameters.delay.jitter.as_ref().map_or_else(String::new, |(jitter, _)| format!(" ± {}", ms(*jitter)));
        parts.push(format!("{}{jitter} of delay", ms(parameters.delay.mean)));
    }
    if let Some(pace) = &parameters.pace {
        parts.push(format!("{} Mbit/s", pace.mean_rate() as f64 / 1e6));
        if let Some(wait) = parameters.longest_wait() {
            parts.push(format!("packets wait at most {:.1} ms in the queue", wait as f64 / 1e6));
        }
    }
    if parameters.schedule.is_some() {
        parts.push("values change by a schedule".to_string());
    }
    if parameters.has_chances() {
        parts.push(format!("seed {}", parameters.seed));
    }
    if parameters.holds_packets() {
        parts.push(format!("holds up to {} packets", parameters.capacity()));
    }
    if parts.is_empty() { "no delay, no rate".to_string() } else { parts.join(", ") }
}
