//! Plays recordings: repeats recorded decisions packet by packet.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use crate::decision::{COLUMNS, Damage, Decision, Row, WAYS};
use crate::file;

/// The longest recording, in bytes: some 20 million packets.
const LONGEST: u64 = 1 << 30;

/// The longest delay of a recorded packet, in the queue or after it: a day.
const LONGEST_DELAY: u64 = 24 * 3600 * 1_000_000_000;

/// The recorded decisions of one direction. Clones share them.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Sorted by packet. A duplicate follows its original.
    rows: Arc<[Row]>,
    /// The longest time of a packet in the link, in nanoseconds.
    longest_delay: u64,
}

/// Recordings are equal if they share their decisions.
impl PartialEq for Recording {
    fn eq(&self, other: &Recording) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows)
    }
}

impl Recording {
    /// Reads a recording, and returns the decisions of both directions.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn read(path: &str) -> Result<[Recording; 2], String> {
        let of_path = |why: String| format!("{path}: {why}");
        let file: File = file::open(path, LONGEST).map_err(of_path)?;
        Recording::parse(BufReader::new(file.take(LONGEST))).map_err(of_path)
    }

    /// Parses a recording; docs/link.md describes the format.
    ///
    /// ```
    /// use linerate_link::Recording;
    ///
    /// let text = "way,packet,time_ns,bytes,fate,queue_ns,delay_ns,notes\n\
    ///             forward,1,1000,60,arrived,0,20000000,\n\
    ///             forward,2,2000,60,lost,0,0,\n";
    /// let [forward, back] = Recording::parse(text.as_bytes())?;
    /// assert_eq!((forward.packets(), back.packets()), (2, 0));
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// The number of a line, and its error.
    pub fn parse(mut text: impl BufRead) -> Result<[Recording; 2], String> {
        let mut rows = [Vec::new(), Vec::new()];
        let (mut line, mut number, mut has_columns) = (String::new(), 0, false);
        while text.read_line(&mut line).map_err(|error| error.to_string())? > 0 {
            number += 1;
            let wrong = |why: &str| format!("line {number}: {why}");
            let row = line.trim();
            match row {
                "" => {}
                _ if row.starts_with('#') => {}
                COLUMNS if !has_columns => has_columns = true,
                _ if !has_columns => return Err(wrong(&format!("it is not a recording, which begins with {COLUMNS}"))),
                _ => {
                    let (way, row) = row.split_once(',').unwrap_or((row, ""));
                    let way = WAYS.iter().position(|name| *name == way);
                    let way = way.ok_or_else(|| wrong("way: it is forward or back"))?;
                    let row =
                        Row::parse(row).map_err(|column| wrong(&format!("{column}: the value is missing or wrong")))?;
                    let is_long = |row: &Row| row.decision.queued.max(row.decision.delay) > LONGEST_DELAY;
                    if row.as_ref().is_some_and(is_long) {
                        return Err(wrong("a delay is longer than a day"));
                    }
                    rows[way].extend(row);
                }
            }
            line.clear();
        }
        if !has_columns {
            return Err("it is empty".to_string());
        }
        let [forward, back] = rows.map(Recording::of_rows);
        Ok([forward?, back?])
    }

    fn of_rows(mut rows: Vec<Row>) -> Result<Recording, String> {
        // Rows are in the order in which decisions were made: a packet in a queue is known later than a lost one.
        rows.sort_by_key(|row| (row.packet, row.is_copy));
        let key = |row: &Row| (row.packet, row.is_copy);
        if let Some([row, _]) = rows.array_windows().find(|[row, next]| key(row) == key(next)) {
            return Err(format!("it has packet {} twice", row.packet));
        }
        let longest_delay = rows.iter().map(|row| row.decision.queued + row.decision.delay).max().unwrap_or(0);
        Ok(Recording { rows: rows.into(), longest_delay })
    }

    /// Returns the number of packets with a decision.
    pub fn packets(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_copy).count()
    }

    /// Returns the longest time of a packet in the link, in nanoseconds.
    pub fn longest_delay(&self) -> u64 {
        self.longest_delay
    }
}

/// The decisions for packets in their order.
pub(crate) struct Player {
    recording: Recording,
    /// The number of the next packet, from 1.
    packet: u64,
    /// The first row of this packet or a later one.
    at: usize,
    /// The decision about the next packet, and about its duplicate.
    current: Decision,
    copy: Option<Decision>,
    is_recorded: bool,
    /// The decision about the last packet that arrived.
    last: Decision,
    /// The packet of the decision has entered, and its duplicate is the next.
    is_original_in: bool,
}

impl Player {
    pub fn new(recording: Recording) -> Player {
        let current = Decision::default();
        Player {
            recording,
            packet: 1,
            at: 0,
            current,
            copy: None,
            is_recorded: false,
            last: current,
            is_original_in: false,
        }
    }

    /// Begins with the next packet. Without a decision in the recording, it takes as long as the last packet that
    /// arrived.
    pub fn begin(&mut self) {
        let find = |is_copy| {
            let rows = self.recording.rows[self.at..].iter().take_while(|row| row.packet == self.packet);
            rows.into_iter().find(|row| row.is_copy == is_copy).map(|row| row.decision)
        };
        let (original, copy) = (find(false), find(true));
        (self.is_recorded, self.is_original_in) = (original.is_some(), false);
        let Decision { queued, delay, .. } = self.last;
        self.current = original.unwrap_or(Decision { queued, delay, ..Decision::default() });
        self.copy = copy;
    }

    /// Returns the decision about the packet.
    pub fn current(&self) -> &Decision {
        &self.current
    }

    /// Returns the decision about the packet, and after that the one about its duplicate.
    pub fn entering(&mut self) -> Decision {
        match std::mem::replace(&mut self.is_original_in, true) {
            false => self.current,
            true => self.copy.unwrap_or(self.current),
        }
    }

    /// Returns whether the packet's bytes are changed, or it is duplicated.
    pub fn changes_packet(&self) -> bool {
        self.is_duplicated() || self.current.damage != Damage::default()
    }

    /// Returns whether the packet is duplicated.
    pub fn is_duplicated(&self) -> bool {
        self.copy.is_some()
    }

    /// Continues with the packet after this one. Returns whether this one is in the recording.
    pub fn advance(&mut self) -> bool {
        if self.current.dropped.is_none() {
            self.last = self.current;
        }
        self.packet += 1;
        let rest = &self.recording.rows[self.at..];
        self.at += rest.iter().take_while(|row| row.packet < self.packet).count();
        self.is_recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rows: &str) -> Result<[Recording; 2], String> {
        Recording::parse(format!("# a comment\n{COLUMNS}\r\n{rows}").as_bytes())
    }

    #[test]
    fn decisions_follow_the_numbers_of_packets() {
        let rows = "forward,3,0,60,arrived,5,6,copy\nforward,1,0,60,lost,0,0,\nback,1,0,0,change,0,0,rate=1bit\n\
                    forward,3,0,60,arrived,1,2,\nback,1,0,60,codel,9,0,\n";
        let [forward, back] = parse(rows).unwrap();
        assert_eq!((forward.packets(), forward.longest_delay(), back.packets()), (2, 11, 1));
        let mut player = Player::new(forward);
        let mut next = || {
            player.begin();
            let (dropped, is_duplicated) = (player.current().dropped.is_some(), player.is_duplicated());
            let times = [player.entering(), player.entering()].map(|decision| (decision.queued, decision.delay));
            (player.advance(), dropped, is_duplicated, times)
        };
        assert_eq!(next(), (true, true, false, [(0, 0); 2]));
        assert_eq!(next(), (false, false, false, [(0, 0); 2]));
        assert_eq!(next(), (true, false, true, [(1, 2), (5, 6)]));
        assert_eq!(next(), (false, false, false, [(1, 2); 2]));
    }

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [
            ("", "empty"),
            ("time,rate\n0,1Mbit\n", "line 1: it is not a recording"),
            (&format!("{COLUMNS}\nup,1,0,60,lost,0,0,\n"), "line 2: way"),
            (&format!("{COLUMNS}\n\nback,1,0,60,lost,0,\n"), "line 3: notes"),
            (&format!("{COLUMNS}\nback,1,0,60,arrived,0,99999999999999999,\n"), "longer than a day"),
            (&format!("{COLUMNS}\nback,1,0,60,lost,0,0,\nback,1,0,60,lost,0,0,\n"), "packet 1 twice"),
        ] {
            let error = Recording::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
