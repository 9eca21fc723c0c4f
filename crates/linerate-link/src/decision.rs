//! Decisions of a link about single packets, and their text form in recordings.

use std::fmt;

use crate::counts::Event;

/// The first line of a recording.
pub const COLUMNS: &str = "way,packet,time_ns,bytes,fate,queue_ns,delay_ns,notes";

/// The names of the directions in a recording: packets from A to B or from a port, and packets in the other direction.
pub const WAYS: [&str; 2] = ["forward", "back"];

/// The decision about one packet. The default lets it arrive immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The cause for which the packet is dropped; `None` if it arrives.
    pub dropped: Option<Event>,
    /// Nanoseconds from the packet's arrival at the link until it was sent completely, or was dropped.
    pub queued: u64,
    /// Nanoseconds that the packet travels after that. It arrives later if it keeps the order of packets.
    pub delay: u64,
    /// The damage to the packet's bytes.
    pub damage: Damage,
    /// CoDel marks the packet.
    pub is_marked: bool,
    /// The packet waits until the next one has overtaken it.
    pub is_overtaken: bool,
    /// The packet may arrive before packets that entered earlier.
    pub is_unordered: bool,
}

/// Damage to a packet's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The offset of the byte with an inverted bit, and the bit's number.
    pub corrupted: Option<(u32, u8)>,
    /// The length to which the packet is cut.
    pub truncated: Option<u32>,
}

/// A line of a recording: a packet, and the decision about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The packet's number in its direction, from 1. A duplicate has its original's number.
    pub packet: u64,
    /// Whether the packet is a duplicate.
    pub is_copy: bool,
    /// Nanoseconds from the start until the packet entered the link.
    pub time: u64,
    /// The packet's length when it entered.
    pub bytes: u32,
    /// The decision.
    pub decision: Decision,
}

/// Writes the row without its direction.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { packet, is_copy, time, bytes, decision } = self;
        let Decision { dropped, queued, delay, damage, is_marked, is_overtaken, is_unordered } = decision;
        let fate = dropped.map_or("arrived", Event::name);
        write!(f, "{packet},{time},{bytes},{fate},{queued},{delay},")?;
        let mut gap = "";
        let mut note = |is_set: bool, note: fmt::Arguments<'_>| match is_set {
            true => write!(f, "{}{note}", std::mem::replace(&mut gap, " ")),
            false => Ok(()),
        };
        if let Some((at, bit)) = damage.corrupted {
            note(true, format_args!("corrupted={at}.{bit}"))?;
        }
        if let Some(len) = damage.truncated {
            note(true, format_args!("truncated={len}"))?;
        }
        note(*is_copy, format_args!("copy"))?;
        note(*is_marked, format_args!("marked"))?;
        note(*is_overtaken, format_args!("overtaken"))?;
        note(*is_unordered, format_args!("unordered"))
    }
}

impl Row {
    /// Parses a row without its direction; `None` for one that is not about a packet.
    ///
    /// # Errors
    /// The column whose value cannot be used.
    pub fn parse(text: &str) -> Result<Option<Row>, &'static str> {
        let mut cells = text.split(',').map(str::trim);
        let mut cell = |name: &'static str| cells.next().ok_or(name);
        let (packet, time, bytes, fate) = (cell("packet")?, cell("time_ns")?, cell("bytes")?, cell("fate")?);
        let (queued, delay, notes) = (cell("queue_ns")?, cell("delay_ns")?, cell("notes")?);
        let dropped = match fate {
            "change" => return Ok(None),
            "arrived" => None,
            name => Some(Event::ALL.into_iter().find(|event| event.is_drop() && event.name() == name).ok_or("fate")?),
        };
        let number = |text: &str, column| text.parse::<u64>().map_err(|_| column);
        let mut row = Row {
            packet: number(packet, "packet")?,
            is_copy: false,
            time: number(time, "time_ns")?,
            bytes: bytes.parse().map_err(|_| "bytes")?,
            decision: Decision {
                dropped,
                queued: number(queued, "queue_ns")?,
                delay: number(delay, "delay_ns")?,
                ..Decision::default()
            },
        };
        for note in notes.split_whitespace() {
            match note.split_once('=') {
                None => *row.flag(note).ok_or("notes")? = true,
                Some(("corrupted", at)) => {
                    let bit = at.split_once('.').and_then(|(at, bit)| Some((at.parse().ok()?, bit.parse().ok()?)));
                    row.decision.damage.corrupted = Some(bit.filter(|(_, bit)| *bit < 8).ok_or("notes")?);
                }
                Some(("truncated", len)) => {
                    row.decision.damage.truncated = Some(len.parse().ok().filter(|len| *len > 0).ok_or("notes")?);
                }
                Some(_) => return Err("notes"),
            }
        }
        if row.packet == 0 {
            return Err("packet");
        }
        Ok(Some(row))
    }

    fn flag(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "copy" => Some(&mut self.is_copy),
            "marked" => Some(&mut self.decision.is_marked),
            "overtaken" => Some(&mut self.decision.is_overtaken),
            "unordered" => Some(&mut self.decision.is_unordered),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parsed_as_they_are_written() {
        let plain = Row { packet: 1, is_copy: false, time: 5, bytes: 60, decision: Decision::default() };
        let damage = Damage { corrupted: Some((59, 7)), truncated: Some(1) };
        let flags = Decision { is_marked: true, is_overtaken: true, is_unordered: true, ..Decision::default() };
        let rows = [
            plain,
            Row { is_copy: true, decision: Decision { queued: 1, delay: u64::MAX, damage, ..flags }, ..plain },
            Row { decision: Decision { dropped: Some(Event::Codel), queued: 7, ..Decision::default() }, ..plain },
        ];
        for row in rows {
            assert_eq!(Row::parse(&row.to_string()), Ok(Some(row)), "{row}");
        }
        assert_eq!(rows[1].to_string().split(',').count(), COLUMNS.split(',').count() - 1);
        assert_eq!(Row::parse("0,5,0,change,0,0,rate=5bit"), Ok(None));
        for (text, column) in [
            ("", "packet"),
            ("1,2,3", "fate"),
            ("0,5,60,arrived,0,0,", "packet"),
            ("1,-5,60,arrived,0,0,", "time_ns"),
            ("1,5,60,stalled,0,0,", "fate"),
            ("1,5,60,arrived,1.5,0,", "queue_ns"),
            ("1,5,60,arrived,0,0", "notes"),
            ("1,5,60,arrived,0,0,copied", "notes"),
            ("1,5,60,arrived,0,0,corrupted=3.8", "notes"),
            ("1,5,60,arrived,0,0,truncated=0", "notes"),
        ] {
            assert!(Row::parse(text) == Err(column) || text.is_empty() && Row::parse(text).is_err(), "{text}");
        }
    }
}
