//! Interface names of ports: `linerate-vale0:a`.
//!
//! Wireshark ends a name at a `}` before a `{`, a space or the end of the line, and uses interface names in the names
//! of preferences and files. So all characters except letters, digits and the usual ones of port names are written like
//! `%7D`.

use std::fmt::{self, Write};

/// The interface whose port is given by an option.
pub const GENERAL: &str = "linerate";

/// An interface, as named by Wireshark.
#[derive(Debug, PartialEq, Eq)]
pub enum Interface {
    /// The general interface.
    Any,
    /// The interface of a port.
    Port(String),
}

impl Interface {
    /// Returns the interface of a port.
    pub fn of(port: &str) -> Interface {
        Interface::Port(port.to_string())
    }

    /// Parses the name of an interface.
    pub fn parse(name: &str) -> Result<Interface, String> {
        if name == GENERAL {
            return Ok(Interface::Any);
        }
        let port = name.strip_prefix(GENERAL).and_then(|rest| decoded(rest.strip_prefix('-')?));
        port.filter(|port| !port.is_empty()).map(Interface::Port).ok_or_else(|| {
            format!("there is no interface '{}'\n  try: linerate extcap --extcap-interfaces", name.escape_debug())
        })
    }

    /// Returns the name of its port. `asked` is the port of the general interface.
    pub fn port<'a>(&'a self, asked: &'a str) -> &'a str {
        match self {
            Interface::Any => asked,
            Interface::Port(port) => port,
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interface::Any => f.write_str(GENERAL),
            Interface::Port(port) => write!(f, "{GENERAL}-{}", encoded(port)),
        }
    }
}

/// Encodes a port's name in the characters that are allowed in Wireshark's names.
pub fn encoded(port: &str) -> String {
    let mut encoded = String::new();
    for (at, byte) in port.bytes().enumerate() {
        let is_last_of_value = || !port.as_bytes().get(at + 1).is_some_and(u8::is_ascii_alphanumeric);
        match byte {
            b'}' if is_last_of_value() => encoded.push_str("%7D"),
            byte if byte.is_ascii_alphanumeric() || b":{}+-_.^".contains(&byte) => encoded.push(byte.into()),
            byte => {
                // Writing to a String cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Decodes a port's name; `None` if it is not validly encoded.
fn decoded(encoded: &str) -> Option<String> {
    let mut parts = encoded.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_survive() {
        for (port, interface) in [
            ("vale0:a", "linerate-vale0:a"),
            ("vale0:a+rt", "linerate-vale0:a+rt"),
            ("x{1", "linerate-x{1"),
            ("x}1+rt", "linerate-x}1+rt"),
            ("odd}", "linerate-odd%7D"),
            ("odd}{1", "linerate-odd%7D{1"),
            ("odd} 1", "linerate-odd%7D%201"),
            ("a/b%é\n", "linerate-a%2Fb%25%C3%A9%0A"),
        ] {
            let parsed = Interface::of(port);
            assert_eq!((parsed.to_string().as_str(), Interface::parse(interface)), (interface, Ok(parsed)));
        }
        assert_eq!(Interface::parse("linerate"), Ok(Interface::Any));
        for name in
            ["", "eth0", "linerate-", "linerated", "linerate-a%2", "linerate-a%zz", "linerate-%é", "linerate-%FF"]
        {
            let why = Interface::parse(name).unwrap_err();
            assert!(why.starts_with("there is no interface '") && why.contains("\n  try: "), "{name}: {why}");
        }
    }
}
