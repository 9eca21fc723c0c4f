//! The command line's grammar: the commands' arguments, with examples and completions, and usage errors.

use std::ffi::OsString;
use std::io::{self, Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command, CommandFactory, FromArgMatches};

use crate::terminal::unwritable;
use crate::{Cli, examples, port_arg};

/// The file name under which the program acts as an extcap program: its arguments are those of `linerate extcap`.
pub const PROGRAM: &str = "linerate-extcap";

/// Returns the command line. For a program named [`PROGRAM`] the command `extcap` is inserted.
fn arguments() -> Vec<OsString> {
    let mut all: Vec<OsString> = std::env::args_os().collect();
    if all.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == PROGRAM)) {
        all.insert(1, "extcap".into());
    }
    all
}

/// Returns the command line's grammar. Negative numbers are parsed as values, so that each option can refuse them with
/// its own message.
pub fn grammar() -> Command {
    let with_numbers = |arg: clap::Arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.is_positional() => arg.allow_negative_numbers(true),
        _ => arg,
    };
    let mut grammar = examples::add_to(
        Cli::command().mut_subcommands(|command| command.mut_args(with_numbers).mut_args(port_arg::completed)),
    );
    grammar.build();
    grammar
}

/// Parses the command line. If it is invalid, or asks for help, prints the error or the help and returns the exit code.
pub fn read() -> Result<Cli, ExitCode> {
    let matches = grammar().try_get_matches_from(arguments());
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| explain(&with_tip(error)))
}

/// Ends the process with a usage error, and shows the usage of the subcommand.
pub fn usage(why: &str) -> ! {
    let mut grammar = grammar();
    let words = arguments();
    let mut command = &mut grammar;
    for word in words.iter().skip(1).map_while(|word| word.to_str()) {
        match command.find_subcommand(word).is_some() {
            true => command = command.find_subcommand_mut(word).expect("it was there"),
            false => break,
        }
    }
    command.error(ErrorKind::ArgumentConflict, why).exit()
}

/// Adds a tip to the error of an option that this command lacks: `gen` has it, and so has a model's wire. Of several
/// options that contradict another, keeps the given ones.
fn with_tip(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(all)) = error.get(ContextKind::PriorArg) {
        // As `--seconds <SECONDS>`.
        let name = |arg: &str| arg.split(' ').next().unwrap_or_default().to_string();
        let words: Vec<String> = arguments().into_iter().filter_map(|word| word.into_string().ok()).collect();
        let is_given = |arg: &&String| words.iter().any(|word| word.split('=').next() == Some(&*name(arg)));
        let given: Vec<String> = all.iter().filter(is_given).map(|arg| name(arg)).collect();
        if !given.is_empty() {
            error.insert(ContextKind::PriorArg, ContextValue::String(given.join(", ")));
        }
    }
    let tip = match error.get(ContextKind::InvalidArg).map(ToString::to_string).as_deref() {
        Some("--rate") => "sim:0?rate=1M",
        Some("--size") => "sim:0?size=128",
        Some("--flows") => "sim:0?flows=8",
        _ => return error,
    };
    if error.kind() == ErrorKind::UnknownArgument {
        let tip = format!("gen has this option, and so has a model's wire: {tip}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Prints help, the version, or the usage error; returns the exit code.
fn explain(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| stdout().flush());
    match printed {
        Err(why) if !error.use_stderr() && why.kind() != io::ErrorKind::BrokenPipe => unwritable(&why),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// The words of command lines: commands, options, values and port names. Nothing is opened.
    const WORDS: &str = "\
        fwd filter gen replay sink capture latency bench bind unbind sim serve switch list attach \
        detach create destroy ports help --rest --count --profile --only --drop --batch --ring --queues \
        --mtu --seconds --cores --pages --numa --wait --throttle --bind --force --strict --json --size \
        --rate --flows --template --with --speed --top --exact --loop --every --write --snaplen \
        --file-size --files --memory --quick --out --vfio --uio --socket --wire --device --vfs --mode \
        --group --join-users --host --help --version -h -- -1 0 1M 10G 50% 1e6 auto 0-3  é \
        sim:0?size=64 null: x{1 vale0:a udp:9+from:::/0 99999999999999999999";

    /// A small generator of random numbers (xorshift).
    fn random(state: &mut u64, below: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % below as u64) as usize
    }

    /// Random command lines are parsed or refused without a panic, by the grammar and by the parser of port names.
    #[test]
    fn random_command_lines_are_understood_or_refused() {
        let (mut state, mut understood, mut refused) = (0x2545_F491_4F6C_DD1D, 0, 0);
        let (grammar, words) = (grammar(), WORDS.split(' ').collect::<Vec<_>>());
        for _ in 0..2000 {
            let count = random(&mut state, 9);
            // Most lines begin with a command, so that its options are reached.
            let mut line = vec!["linerate", words[random(&mut state, 20)]];
            line.extend((0..count).map(|_| words[random(&mut state, words.len())]));
            match grammar.clone().try_get_matches_from(&line).and_then(|matches| Cli::from_arg_matches(&matches)) {
                Ok(_) => understood += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty(), "{line:?}");
                    assert!(matches!(error.exit_code(), 0 | 2), "{line:?}");
                    refused += 1;
                }
            }
            for word in &line {
                let _ = linerate::parse(word);
            }
        }
        assert!(understood > 20 && refused > 20, "{understood} understood, {refused} refused");
    }

    /// Random port names are parsed or refused without a panic.
    #[test]
    fn random_names_are_understood_or_refused() {
        let parts: Vec<&str> =
            "sim: 0 null: faulty: recorded: pcap: x { } 1 vale0 : ? & = size rate 10G drop % wire netmap: ^ +rt /z é"
                .split(' ')
                .collect();
        let mut state = 0x9E37_79B9_7F4A_7C15;
        let mut understood = 0;
        for _ in 0..20_000 {
            let count = 1 + random(&mut state, 8);
            let name: String = (0..count).map(|_| parts[random(&mut state, parts.len())]).collect();
            match linerate::parse(&name) {
                Ok(parsed) => understood += usize::from(!parsed.short().is_empty()),
                Err(error) => assert!(!error.with_hint().is_empty()),
            }
        }
        assert!(understood > 100, "{understood}");
    }

    /// Each command has examples in its help. All of them can be parsed, and so can the example names of ports.
    #[test]
    fn examples_are_understood() {
        fn check(command: &clap::Command) {
            for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
                assert!(command.get_after_help().is_some(), "{}", command.get_name());
                check(command);
            }
        }
        check(&grammar());
        for line in examples::EXAMPLES.iter().flat_map(|(_, lines)| *lines) {
            let line = line.split("  #").next().unwrap_or(line).replace('\'', "");
            if let Err(error) = grammar().try_get_matches_from(line.split_whitespace()) {
                panic!("{line}: {error}");
            }
        }
        for name in linerate::KINDS.iter().map(|kind| kind.example).chain(examples::NAMES.map(|(name, _)| name)) {
            linerate::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn the_grammar_is_consistent() {
        grammar().debug_assert();
    }

    /// The commands in the docs can be parsed, including those for cards.
    #[test]
    fn documented_commands_are_understood() {
        let pages = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/bench.md"),
            include_str!("../../../docs/capture.md"),
            include_str!("../../../docs/cards.md"),
            include_str!("../../../docs/exec.md"),
            include_str!("../../../docs/extcap.md"),
            include_str!("../../../docs/generate.md"),
            include_str!("../../../docs/kernel.md"),
            include_str!("../../../docs/link.md"),
            include_str!("../../../docs/netmap.md"),
            include_str!("../../../docs/offloads.md"),
            include_str!("../../../docs/packages.md"),
            include_str!("../../../docs/replay.md"),
            include_str!("../../../docs/wires.md"),
        ];
        let mut count = 0;
        // The shell examples are between "```sh" and "```".
        let examples =
            pages.iter().flat_map(|page| page.split("```sh\n").skip(1)).filter_map(|rest| rest.split("```").next());
        for line in examples.flat_map(str::lines) {
            let line = line.split("  #").next().unwrap_or(line).trim().trim_start_matches("sudo ");
            if !line.starts_with("linerate ") || line.contains('…') {
                continue;
            }
            // No word contains a space. A line may end with "&", or continue with another command.
            let words = line.split([';', '|', '\u{a0}']).next().unwrap_or(line).split(" && ").next().unwrap_or(line);
            let words = if line.contains('\'') && !line.contains('|') { line } else { words };
            let words: Vec<String> =
                words.split_whitespace().filter(|word| *word != "&").map(|word| word.replace('\'', "")).collect();
            // The processors of an example need not exist here.
            let words: Vec<&str> = words.iter().map(|word| if *word == "2,3,4,5" { "0" } else { word }).collect();
            if let Err(error) = grammar().try_get_matches_from(&words) {
                panic!("{line}: {error}");
            }
            // The words of a command that linerate runs are not ports.
            for name in words[2..].iter().take_while(|word| **word != "--").filter(|word| {
                // Not packets, rules or addresses.
                let is_address = |part: &str| {
                    part.parse::<std::net::IpAddr>().is_ok() || part.parse::<std::net::SocketAddr>().is_ok()
                };
                word.contains(':')
                    && !["udp", "tcp", "from", "eth"].iter().any(|kind| word.starts_with(kind))
                    && !word.split(',').all(is_address)
            }) {
                if !matches!(words[1], "sim" | "switch" | "rule") {
                    linerate::parse(name).unwrap_or_else(|error| panic!("{line}: {error}"));
                }
            }
            count += 1;
        }
        assert!(count > 30, "{count}");
    }
}
