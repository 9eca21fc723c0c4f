//! Parses the text of a template into layers with their arguments.

use super::protocol::{Field, Protocol};
use super::values::{Notation, Values, hex, parse_uint};

/// A layer of a template.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub protocol: Protocol,
    /// The fields given in the text, each at most once.
    pub given: Vec<(&'static Field, Values)>,
    /// The bytes of options, `hex` or `text`.
    pub bytes: Vec<u8>,
    /// The length of a payload, if given.
    pub len: Option<usize>,
    /// The bytes of a payload, unless they increment.
    pub fill: Option<Fill>,
    /// GRE has a checksum only if requested (RFC 2784).
    pub has_checksum: bool,
}

/// The bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Byte(u8),
    /// Random bytes, the same in every frame.
    Random,
}

/// The longest payload: the maximum of an IPv4 packet.
const LONGEST: u64 = 65_535;

/// Parses the layers of a template.
pub(super) fn layers(text: &str) -> Result<Vec<Layer>, String> {
    let parts = split(text, '/')?;
    let mut layers = parts.iter().map(|part| layer(part.trim())).collect::<Result<Vec<_>, _>>()?;
    let last = layers.len() - 1;
    for layer in &mut layers[..last] {
        layer.become_bytes();
    }
    for (at, layer) in layers.iter().enumerate() {
        let next = layers.get(at + 1).map(|layer| layer.protocol);
        let names_next = layer.protocol.next_field().is_some_and(|name| layer.has(name));
        if !names_next && layer.protocol.number_of(next).is_none() {
            return Err(misfit(layer.protocol, next));
        }
        if matches!(layer.protocol, Protocol::Payload | Protocol::Stamp) && next.is_some() {
            return Err(misfit(layer.protocol, next));
        }
    }
    let first = layers[0].protocol;
    if !matches!(first, Protocol::Eth | Protocol::Hex) {
        return Err(format!("a frame begins with eth, or with its bytes as hex(…), not with {}", first.name()));
    }
    Ok(layers)
}

impl Layer {
    /// Converts a payload with a length, which precedes other layers, to bytes like those of `hex`.
    fn become_bytes(&mut self) {
        let Some(len) = self.len else { return };
        match self.fill {
            None => self.bytes = (0..len).map(|n| n as u8).collect(),
            Some(Fill::Byte(byte)) => self.bytes = vec![byte; len],
            Some(Fill::Random) => return,
        }
        (self.protocol, self.len) = (Protocol::Hex, None);
    }

    /// Sets a field, from `NAME=VALUES`.
    pub fn set(&mut self, argument: &str) -> Result<(), String> {
        read(self, argument)
    }

    /// Returns whether a field is given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(field, _)| field.name == name)
    }
}

/// Returns the error for layers that do not fit together.
fn misfit(layer: Protocol, next: Option<Protocol>) -> String {
    let (name, next) = (layer.name(), next.map_or("nothing", Protocol::name));
    match layer.next_field() {
        Some(field) => format!("{name} has no number for {next}; give one, as {name}({field}=…), if it is meant"),
        None => format!("{next} cannot follow {name}"),
    }
}

/// Returns the beginning of a text, for messages.
fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Splits a text at the separators outside of parentheses.
pub(crate) fn split(text: &str, separator: char) -> Result<Vec<&str>, String> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1).ok_or_else(|| format!("'{text}' closes a parenthesis that is not open"))?
            }
            _ if letter == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(format!("'{}' does not close a parenthesis", short(text)));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

/// Splits `NAME` or `NAME(ARGUMENT,…)` into its protocol and its arguments.
pub(crate) fn split_layer(text: &str) -> Result<(Protocol, Option<&str>), String> {
    let (name, inner) = match text.split_once('(') {
        Some((name, rest)) => {
            let inner =
                rest.strip_suffix(')').ok_or_else(|| format!("'{}' has text after its parenthesis", short(text)))?;
            (name.trim(), Some(inner))
        }
        None => (text, None),
    };
    match Protocol::ALL.into_iter().find(|protocol| protocol.name() == name) {
        Some(protocol) => Ok((protocol, inner)),
        None => {
            let names: Vec<_> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
            Err(format!("'{}' is not a layer; there are {}", short(name), names.join(", ")))
        }
    }
}

/// Finds a field of a protocol by its name.
pub(crate) fn field_of(protocol: Protocol, name: &str) -> Result<&'static Field, String> {
    protocol.fields().iter().find(|field| field.name == name).ok_or_else(|| {
        let mut names: Vec<_> = protocol.fields().iter().map(|field| field.name).collect();
        if matches!(protocol, Protocol::Ip | Protocol::Tcp) {
            names.push("options");
        }
        format!("'{}' is not a field; there are {}", short(name), names.join(", "))
    })
}

/// Parses `NAME` or `NAME(ARGUMENT,…)`.
fn layer(text: &str) -> Result<Layer, String> {
    let (protocol, inner) = split_layer(text)?;
    let name = protocol.name();
    let mut layer =
        Layer { protocol, given: Vec::new(), bytes: Vec::new(), len: None, fill: None, has_checksum: false };
    match protocol {
        Protocol::Hex => layer.bytes = hex(inner.unwrap_or_default()).map_err(|why| format!("hex: {why}"))?,
        Protocol::Text => match inner {
            Some(inner) if !inner.is_empty() => layer.bytes = inner.as_bytes().to_vec(),
            _ => return Err("text: it has no text; write text(hello)".to_string()),
        },
        _ => {
            let inner = inner.filter(|inner| !inner.trim().is_empty());
            let arguments = inner.map_or(Ok(Vec::new()), |inner| split(inner, ','))?;
            for argument in arguments.iter().map(|argument| argument.trim()) {
                read(&mut layer, argument).map_err(|why| format!("{name}: {why}"))?;
            }
        }
    }
    Ok(layer)
}

/// Parses an argument into its layer.
fn read(layer: &mut Layer, argument: &str) -> Result<(), String> {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (argument, None),
    };
    match (layer.protocol, name, value) {
        (Protocol::Payload | Protocol::Stamp, _, _) => return read_payload(layer, name, value),
        (Protocol::Ip | Protocol::Tcp, "options", Some(value)) => {
            layer.bytes = hex(value).map_err(|why| format!("options: {why}"))?;
            return match layer.bytes.len() {
                len if len % 4 == 0 && len <= 40 => Ok(()),
                len => Err(format!("options: their length must be a multiple of 4 bytes, at most 40, not {len}")),
            };
        }
        (Protocol::Gre, "checksum", None) => {
            layer.has_checksum = true;
            return Ok(());
        }
        _ => {}
    }
    let field = field_of(layer.protocol, name)?;
    if layer.has(name) {
        return Err(format!("{name} is given twice"));
    }
    let clash = |other: &&(&'static Field, Values)| {
        other.0.bit < field.bit + usize::from(field.bits) && field.bit < other.0.bit + usize::from(other.0.bits)
    };
    if let Some((other, _)) = layer.given.iter().find(clash) {
        return Err(format!("{name} and {} overlap", other.name));
    }
    let values = match value {
        Some(value) => Values::parse(value, field.notation, field.bits).map_err(|why| format!("{name}: {why}"))?,
        // A flag is set by its name alone.
        None if field.bits == 1 => Values::Constant(1),
        None => return Err(format!("{name} has no value; write {name}={}", example(field.notation))),
    };
    layer.given.push((field, values));
    Ok(())
}

/// Returns an example of a value.
fn example(notation: Notation) -> &'static str {
    match notation {
        Notation::Number => "1, or a range 1-9",
        Notation::Mac => "02:00:00:00:00:01",
        Notation::Ip4 => "10.0.0.1, or a range 10.0.0.0/24",
        Notation::Ip6 => "2001:2::1",
        Notation::Flags => "SA",
    }
}

/// Parses an argument of a payload: its length, or its bytes.
fn read_payload(layer: &mut Layer, name: &str, value: Option<&str>) -> Result<(), String> {
    match (name, value) {
        ("random", None) if layer.protocol == Protocol::Payload => layer.fill = Some(Fill::Random),
        ("fill", Some(value)) if layer.protocol == Protocol::Payload => {
            layer.fill =
                Some(Fill::Byte(parse_uint(value, 255, "a number").map_err(|why| format!("fill: {why}"))? as u8));
        }
        (len, None) if layer.protocol == Protocol::Payload => {
            layer.len = Some(parse_uint(len, LONGEST, "a number").map_err(|_| {
                format!("'{len}' is neither a length of at most {LONGEST} bytes, nor random, nor fill=BYTE")
            })? as usize);
        }
        _ => return Err(format!("'{name}' is not an argument of {}", layer.protocol.name())),
    }
    Ok(())
}
