//! The command's words for what mends an error.

use linerate::{Error, KINDS, Remedy};

/// Returns the error and its hint, each in one line. The library's hint names functions and options of the library; here
/// it names commands and flags.
pub fn with_hint(error: &Error) -> String {
    if let Error::BadName { name, .. } = error
        && let Some(example) = KINDS.iter().find(|kind| kind.prefix == name).map(|kind| kind.example)
    {
        return format!("{error}\n  did you mean {example}? `linerate ports` shows what is here");
    }
    if let Error::QueueTaken { .. } = error {
        return format!("{error}\n  name each port once");
    }
    let card = if let Error::Card { card, .. } = error { card } else { "" };
    // Those with flags of the command's; the library has the others.
    let mend = match error.remedy() {
        Some(Remedy::Take { address }) => {
            format!("sudo linerate bind {address}, or --bind to take it for this run only")
        }
        Some(Remedy::TakeByForce) => format!("sudo linerate bind --force {card}, if you can do without it"),
        Some(Remedy::TakeOverUio(step)) => format!("{step}, or: sudo linerate bind --uio {card}"),
        Some(Remedy::Poll(step)) => format!("{step}, or --wait poll"),
        Some(Remedy::Admit) => "linerate serve --mode 0666, or --group GROUP".to_string(),
        Some(Remedy::JoinUsers) => "linerate serve --join-users".to_string(),
        Some(Remedy::Serve { path }) => format!("linerate sim --socket {path}"),
        _ => return error.with_command_hint(),
    };
    format!("{error}\n  try: {mend}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_answer_has_the_commands_words() {
        let why = format!("no\n  {}", Remedy::JoinUsers);
        assert_eq!(with_hint(&Error::Refused { why, errno: 1 }), "no\n  try: linerate serve --join-users");
        for (mend, words) in [
            (Remedy::Choose, "linerate ports, which lists the cards"),
            (Remedy::Take { address: "0000:03:00.0".to_string() }, "sudo linerate bind 0000:03:00.0, or --bind"),
            (
                Remedy::TakeOthers { first: "0000:03:00.0".to_string() },
                "sudo linerate bind 0000:03:00.0, and the others",
            ),
        ] {
            let why = Error::Card { card: "0000:03:00.0".to_string(), why: "no".to_string(), mend }.with_hint();
            let hint = with_hint(&Error::Refused { why, errno: 1 });
            assert!(hint.contains(&format!("\n  try: {words}")), "{hint}");
        }
        let why = "no\n  try: sudo".to_string();
        assert_eq!(with_hint(&Error::Refused { why, errno: 1 }), "no\n  try: sudo");
        let taken = Error::QueueTaken { port: "x{1".to_string(), direction: "receive", queue: 0 };
        assert!(with_hint(&taken).ends_with("\n  name each port once"));
    }

    #[test]
    fn a_hint_of_the_command_names_its_flags_and_nothing_of_the_library() {
        let card = || "0000:03:00.0".to_string();
        for (mend, words) in [
            (Remedy::Choose, "linerate ports"),
            (Remedy::Take { address: card() }, "sudo linerate bind 0000:03:00.0, or --bind"),
            (Remedy::TakeOthers { first: "0000:04:02.0".to_string() }, "sudo linerate bind 0000:04:02.0"),
            (Remedy::TakeByForce, "bind --force 0000:03:00.0"),
            (Remedy::TakeOverVfio, "sudo linerate bind 0000:03:00.0, to use it over vfio"),
            (Remedy::TakeOverUio("boot"), "boot, or: sudo linerate bind --uio 0000:03:00.0"),
            (Remedy::Poll("use fewer queues"), "use fewer queues, or --wait poll"),
            (Remedy::Serve { path: "/s".to_string() }, "linerate sim --socket /s"),
            (Remedy::Admit, "linerate serve --mode 0666, or --group GROUP"),
            (Remedy::JoinUsers, "linerate serve --join-users"),
            ("sudo modprobe vfio-pci".into(), "try: sudo modprobe vfio-pci"),
        ] {
            let is_ours = !matches!(mend, Remedy::Do(_));
            let error = Error::Card { card: card(), why: "it is not free".to_string(), mend };
            let (line, hint) = (error.to_string(), with_hint(&error));
            assert!(hint.starts_with(&line) && hint.contains(words) && !hint.contains("::"), "{hint}");
            assert_eq!(
                is_ours,
                !error.with_hint().contains("--") && error.with_hint() != hint,
                "{}",
                error.with_hint()
            );
        }
    }
}
