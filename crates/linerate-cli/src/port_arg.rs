//! Arguments that are port names: any text; shells complete the prefix.

use std::ffi::OsStr;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use linerate::KINDS;
use linerate::port::Form;

/// Parses a port's name as text. The library reports invalid names when it opens the port.
#[derive(Clone)]
struct PortArg;

impl TypedValueParser for PortArg {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        if value.to_str().is_none() {
            let value = value.to_string_lossy();
            let why = format!(
                "'{value}' is not UTF-8: give an interface with such a name by its index, as packet:7 (see: ip link)\n"
            );
            return Err(Error::raw(ErrorKind::InvalidUtf8, why).with_cmd(command));
        }
        NonEmptyStringValueParser::new().parse_ref(command, arg, value)
    }

    /// For completions only: help hides them, as `linerate ports --help` lists the kinds.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let beginnings = KINDS.iter().filter(|kind| matches!(kind.form, Form::Prefix) && !kind.prefix.is_empty());
        Some(Box::new(beginnings.map(|kind| PossibleValue::new(format!("{}:", kind.prefix)).help(kind.summary))))
    }
}

/// Lets shells complete an argument that is a port's name. `--port` of Wireshark's calls is left out, as it may be
/// empty.
pub fn completed(arg: Arg) -> Arg {
    match (arg.get_id().as_str(), arg.is_positional()) {
        ("a" | "b" | "port" | "ports", true) | ("rest", false) => arg.value_parser(PortArg).hide_possible_values(true),
        _ => arg,
    }
}
