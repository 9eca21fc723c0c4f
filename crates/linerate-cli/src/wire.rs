//! Options in port names, above all the wires of models.

use linerate::Error;
use linerate::port::PortName;
use linerate::traffic::Rate;

/// Returns the wire of a model; `None` for other ports.
pub fn wire_of(name: &PortName) -> Option<&str> {
    name.model().map(|_| name.option("wire").unwrap_or("traffic"))
}

/// Returns the requested rate of a model's wire, and its frames' length without CRC.
pub fn wire_rate(name: &PortName) -> Option<(Rate, f64)> {
    let wire = wire_of(name)?;
    let size = name.number("size", 64, 64..=9732).ok()?;
    let rate = name.innermost_option("rate")?.parse().ok()?;
    (wire == "traffic").then_some((rate, (size - 4) as f64))
}

/// Returns whether the port is a model whose wire sends only stamped frames.
pub fn is_tester(name: &str) -> bool {
    linerate::parse(name).is_ok_and(|name| wire_of(&name) == Some("traffic"))
}

/// Returns whether a port's other end counts all frames that arrive there.
pub fn is_checked(name: &str) -> bool {
    linerate::parse(name).is_ok_and(|name| matches!(wire_of(&name), Some("traffic" | "sink")))
}

/// Adds an option to a port's name.
pub fn with_option(name: &str, option: &str) -> String {
    format!("{name}{}{option}", if name.contains('?') { '&' } else { '?' })
}

/// Checks the cables between models: each end must name the other.
///
/// # Errors
/// [`ErrorKind::BadOption`].
pub fn check_cables(wires: &[(&str, &str)]) -> Result<(), Error> {
    for (name, wire) in wires {
        let Ok(wire_name) = linerate::parse(wire) else { continue };
        // A wire such as `faulty:sim:0`, around a model, is not a cable.
        let Some(other) = wire_name.model().filter(|other| wire_name.rest() == *other) else { continue };
        let back = format!("sim:{name}");
        if !wires.iter().any(|(name, wire)| *name == other && *wire == back) {
            let why = format!("the cable's other end does not name this one; open it as sim:{other}?wire={back}");
            return Err(Error::bad_option(back, "wire".to_string(), wire.to_string(), why));
        }
    }
    Ok(())
}
