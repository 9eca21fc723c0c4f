//! Merges several captures into one stream, by time.

use std::path::PathBuf;

use linerate::Error;
use linerate::capture::{FramePoll, Frames};
use linerate::port::CaptureCounts;
use linerate::traffic::{EditCounts, EditRules, Editor};
use serde_json::{Value, json};

use super::schedule::Position;
use super::split::{Split, Splitter};

/// The preparation of frames before they are due.
#[derive(Clone, Default)]
pub struct Preparation {
    /// Packets of other link types get an Ethernet header.
    pub adds_headers: bool,
    pub rules: EditRules,
    /// The longest gap between two frames, and the gap between two passes, in nanoseconds of the captures' time.
    pub max_gap: Option<u64>,
    pub loop_pause: Option<u64>,
    /// The rule by which frames go to two ports.
    pub split: Option<Split>,
}

/// The shortest frame without CRC; a card pads shorter frames.
const SHORTEST: usize = 60;

/// Consecutive frames, with their bytes in one buffer.
#[derive(Clone, Default)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    pub frames: Vec<Entry>,
    /// The positions of these frames among those of all ports, if there are several.
    pub positions: Vec<Position>,
}

impl Chunk {
    /// Appends a frame of `len` bytes, which has the first of them, padded as by a card. `position` is its position, and
    /// becomes that of the next frame.
    fn push(&mut self, time: u64, bytes: &[u8], len: usize, position: Option<&mut Position>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().max(start + SHORTEST), 0);
        self.frames.push(Entry { time, end: self.bytes.len(), is_snapped: bytes.len() < len });
        if let Some(position) = position {
            self.positions.push(*position);
            position.advance(self.bytes.len() - start);
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        self.positions.clear();
    }

    /// Returns the lengths of the frames.
    pub fn lens(&self) -> impl Iterator<Item = usize> {
        let begins = std::iter::once(0).chain(self.frames.iter().map(|frame| frame.end));
        self.frames.iter().zip(begins).map(|(frame, begin)| frame.end - begin)
    }
}

/// A frame of a chunk.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Nanoseconds since the first frame of all captures; never less than that of the frame before.
    pub time: u64,
    /// The offset at which its bytes end, and the next frame's begin.
    pub end: usize,
    /// The capture has truncated it.
    pub is_snapped: bool,
}

/// The counts and times of one file's frames.
#[derive(Clone, Default)]
pub struct Found {
    pub name: String,
    pub frames: u64,
    /// The time of its first frame that has one, in nanoseconds since 1970, and the time from there to its latest
    /// frame.
    pub first: Option<u64>,
    pub nanoseconds: u64,
    /// Packets that were skipped or shortened.
    pub defects: CaptureCounts,
    /// Frames with an earlier time than the frame before.
    pub earlier: u64,
}

impl Found {
    /// Returns its part of the summary. `begin` is the time of the first frame of all captures.
    pub fn json(&self, begin: Option<u64>) -> Value {
        let Found { name, frames, nanoseconds, earlier, .. } = self;
        let CaptureCounts { not_ethernet, too_short, surplus, .. } = self.defects;
        json!({
            "name": name, "frames": frames, "begins": self.begins(begin), "seconds": *nanoseconds as f64 / 1e9,
            "not_ethernet": not_ethernet, "too_short": too_short, "surplus": surplus, "earlier": earlier,
        })
    }

    /// Returns how many seconds after the first frame of all captures it begins.
    pub fn begins(&self, begin: Option<u64>) -> Option<f64> {
        Some(self.first?.saturating_sub(begin?) as f64 / 1e9)
    }
}

/// One of the captures.
struct Lane {
    frames: Frames,
    /// The next frame: its captured bytes, its time if it has one, and its length before it was cut.
    bytes: Vec<u8>,
    next: Option<(Option<u64>, usize)>,
    is_over: bool,
    /// The time of its last frame.
    last: u64,
    found: Found,
}

/// The result of [`Merge::read`].
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Frame,
    /// A pipe has no data yet.
    NoData,
    End,
}

/// Captures that are read in parallel, once.
pub struct Merge {
    lanes: Vec<Lane>,
    /// The time of the first frame that has one.
    begin: Option<u64>,
    /// The time of the last frame, since then, and the number of frames.
    last: u64,
    count: u64,
    /// By how much gaps were shortened, and how many.
    removed: u64,
    shortened: u64,
    editor: Option<Editor>,
    splitter: Option<Splitter>,
    /// The position of the next frame, if there are several ports.
    position: Position,
    max_gap: u64,
    loop_pause: Option<u64>,
    /// The files that could not be read to their end.
    failures: Vec<Error>,
}

impl Merge {
    /// Opens the captures for pass number `pass`, from 0.
    pub fn open(paths: &[PathBuf], preparation: &Preparation, pass: u32) -> Result<Merge, Error> {
        let adds_headers = preparation.adds_headers;
        let lane = |path: &PathBuf| {
            let frames = if adds_headers { Frames::with_headers(path)? } else { Frames::open(path)? };
            let found = Found { name: path.display().to_string(), ..Found::default() };
            Ok(Lane { frames, bytes: Vec::new(), next: None, is_over: false, last: 0, found })
        };
        let lanes = paths.iter().map(lane).collect::<Result<_, Error>>()?;
        let mut editor = (!preparation.rules.is_empty()).then(|| Editor::new(preparation.rules.clone()));
        editor.iter_mut().for_each(|editor| editor.begin_pass(pass));
        Ok(Merge {
            lanes,
            begin: None,
            last: 0,
            count: 0,
            removed: 0,
            shortened: 0,
            editor,
            splitter: preparation.split.as_ref().map(Splitter::new),
            position: Position::default(),
            max_gap: preparation.max_gap.unwrap_or(u64::MAX),
            loop_pause: preparation.loop_pause,
            failures: Vec::new(),
        })
    }

    /// Appends the next frame to the chunk of its port, edited.
    pub fn read(&mut self, chunks: &mut [Chunk]) -> Step {
        let mut is_silent = false;
        for lane in self.lanes.iter_mut().filter(|lane| lane.next.is_none() && !lane.is_over) {
            match lane.frames.next(&mut lane.bytes) {
                Ok(FramePoll::Frame { nanoseconds, captured_len, original_len }) => {
                    lane.found.frames += 1;
                    if let Some(time) = nanoseconds {
                        let first = *lane.found.first.get_or_insert(time);
                        lane.found.nanoseconds = lane.found.nanoseconds.max(time.saturating_sub(first));
                        lane.found.earlier += u64::from(time < lane.last);
                        lane.last = time;
                    }
                    lane.bytes.truncate(captured_len);
                    lane.next = Some((nanoseconds, original_len));
                }
                // Its next frame may be the earliest of all captures, so the others have to wait.
                Ok(FramePoll::Pending) => is_silent = true,
                Ok(FramePoll::End) => lane.is_over = true,
                Err(error) => {
                    lane.is_over = true;
                    self.failures.push(error);
                }
            }
            lane.found.defects = lane.frames.defects();
        }
        if is_silent {
            return Step::NoData;
        }
        let times = self.lanes.iter_mut().filter_map(|lane| Some((lane.next?, lane)));
        // Of equal times, the first file's frame. A frame without a time is due right after the frame before it.
        let Some(((time, original_len), lane)) = times.min_by_key(|((time, _), _)| *time) else { return Step::End };
        lane.next = None;
        if let Some(time) = time {
            let begin = *self.begin.get_or_insert(time);
            let gap = time.saturating_sub(begin).saturating_sub(self.removed).saturating_sub(self.last);
            let kept = gap.min(self.max_gap);
            self.last += kept;
            self.removed += gap - kept;
            self.shortened += u64::from(kept < gap);
        }
        self.count += 1;
        let port = self.splitter.as_mut().map_or(0, |splitter| splitter.port(&lane.bytes));
        let (chunk, time) = (&mut chunks[port], self.last);
        let mut position = self.splitter.is_some().then_some(&mut self.position);
        let mut push = |bytes: &[u8], len| chunk.push(time, bytes, len, position.as_deref_mut());
        match &mut self.editor {
            Some(editor) => editor.edit(&mut lane.bytes, original_len, push),
            None => push(&lane.bytes, original_len),
        }
        Step::Frame
    }

    /// Returns the time from this pass's first frame to the next pass's first: the last frame is followed by the pause
    /// between passes, or by a gap of average length.
    pub fn period(&self) -> u64 {
        if let Some(pause) = self.loop_pause {
            return self.last.saturating_add(pause);
        }
        self.last.saturating_add(self.last.checked_div(self.count.saturating_sub(1)).unwrap_or(0))
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the position after the last frame, if there are several ports.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Continues at the position where the pass before this one ended.
    pub fn continue_at(&mut self, position: Position) {
        self.position = position;
    }

    /// Returns the time of the first frame of all captures, and the counts and times of each file.
    pub fn found(&self) -> (Option<u64>, Vec<Found>) {
        (self.begin, self.lanes.iter().map(|lane| lane.found.clone()).collect())
    }

    /// Returns the counts of edited frames, and the number of shortened gaps.
    pub fn changed(&self) -> (Option<EditCounts>, u64) {
        (self.editor.as_ref().map(Editor::counts), self.shortened)
    }

    /// Returns the errors of files that could not be read to their end.
    pub fn take_failures(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.failures)
    }
}
