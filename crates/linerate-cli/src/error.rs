//! The error that ends the command: its remedy in terms of the command's flags, and its exit code.

use std::process::ExitCode;

use linerate::{Error, ErrorKind, Remedy};

use crate::terminal::note;

/// Returns the error and its remedy, one line each.
pub fn with_hint(error: &Error) -> String {
    let remedy = match error.remedy() {
        Some(Remedy::ChooseQueue) => "name each port once".to_string(),
        Some(Remedy::Take { address }) => {
            format!("try: sudo linerate bind {address}, or --bind to take it for this run only")
        }
        Some(Remedy::TakeByForce { address }) => {
            format!("try: sudo linerate bind --force {address}, if you can do without it")
        }
        Some(Remedy::TakeOverUio { address, step }) => format!("try: {step}, or: sudo linerate bind --uio {address}"),
        Some(Remedy::Poll(step)) => format!("try: {step}, or --wait poll"),
        Some(Remedy::AddHeaders) => {
            "try: replay --ethernet, or pcap:FILE?ethernet=on, which adds Ethernet headers".to_string()
        }
        Some(Remedy::ServeCard { path }) => format!("try: linerate sim --socket {path}"),
        Some(Remedy::Admit) => "try: linerate serve --mode 0666, or --group GROUP".to_string(),
        Some(Remedy::JoinUsers) => "try: linerate serve --join-users".to_string(),
        Some(Remedy::Build { feature }) => with_feature(feature),
        _ => return error.with_command_hint(),
    };
    format!("{error}\n  {remedy}")
}

/// Returns that this build lacks a cargo feature of the command, and how to add it.
pub fn missing(feature: &str) -> String {
    format!("this build of linerate lacks the cargo feature '{feature}'; {}", with_feature(feature))
}

/// Returns how to build the command with a cargo feature.
fn with_feature(feature: &str) -> String {
    format!("build with it: cargo build --release --features {feature}")
}

/// Prints an error with its remedy, and returns its exit code: 2 for wrong names, options and values, 1 for failures.
pub fn report(error: &Error) -> ExitCode {
    note(&format!("linerate: {}", with_hint(error)));
    match error.kind() {
        ErrorKind::BadName | ErrorKind::BadOption | ErrorKind::BadFilter | ErrorKind::NotFound => ExitCode::from(2),
        _ if error.remedy() == Some(&Remedy::ChooseCard) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_of_the_command_names_its_flags_and_nothing_of_the_library() {
        let card = || "0000:03:00.0".to_string();
        for (remedy, words) in [
            (Remedy::ChooseCard, "try: linerate ports, which lists the cards"),
            (Remedy::ChooseQueue, "name each port once"),
            (Remedy::Take { address: card() }, "try: sudo linerate bind 0000:03:00.0, or --bind"),
            (Remedy::TakeOthers { first: card() }, "try: sudo linerate bind 0000:03:00.0, and the others"),
            (Remedy::TakeByForce { address: card() }, "try: sudo linerate bind --force 0000:03:00.0"),
            (Remedy::TakeOverVfio { address: card() }, "try: sudo linerate bind 0000:03:00.0, to use it over vfio"),
            (
                Remedy::TakeOverUio { address: card(), step: "boot".into() },
                "try: boot, or: sudo linerate bind --uio 0000:03:00.0",
            ),
            (Remedy::Poll("use fewer queues".into()), "try: use fewer queues, or --wait poll"),
            (Remedy::AddHeaders, "try: replay --ethernet, or pcap:FILE?ethernet=on"),
            (Remedy::ServeCard { path: "/s".to_string() }, "try: linerate sim --socket /s"),
            (Remedy::Admit, "try: linerate serve --mode 0666, or --group GROUP"),
            (Remedy::JoinUsers, "try: linerate serve --join-users"),
            (Remedy::Build { feature: "f".into() }, "build with it: cargo build --release --features f"),
            ("sudo modprobe vfio-pci".into(), "try: sudo modprobe vfio-pci"),
            (Remedy::Step("close it first".into()), "close it first"),
        ] {
            let error = Error::new(ErrorKind::Unusable, card(), "it is not free").with_remedy(remedy);
            let hint = with_hint(&error);
            assert!(hint.starts_with(&format!("{error}\n  {words}")) && !hint.contains("::"), "{hint}");
        }
        let error = Error::new(ErrorKind::Unusable, "a", "no");
        assert_eq!(with_hint(&error), "a: no");
    }
}
