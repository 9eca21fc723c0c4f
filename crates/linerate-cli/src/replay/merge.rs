//! Merges several captures into one stream, by time.

use std::path::PathBuf;

use linerate::Error;
use linerate::capture::{FramePoll, Frames};
use linerate::port::CaptureCounts;
use serde_json::{Value, json};

/// Consecutive frames, with their bytes in one buffer.
#[derive(Default)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    pub frames: Vec<Entry>,
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
    /// The next frame: its bytes, its time if it has one, and whether it is truncated.
    bytes: Vec<u8>,
    next: Option<(Option<u64>, bool)>,
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
    /// The files that could not be read to their end.
    failures: Vec<Error>,
}

impl Merge {
    /// Opens the captures. With `adds_headers`, packets of other link types get an Ethernet header.
    pub fn open(paths: &[PathBuf], adds_headers: bool) -> Result<Merge, Error> {
        let lane = |path: &PathBuf| {
            let frames = if adds_headers { Frames::with_headers(path)? } else { Frames::open(path)? };
            let found = Found { name: path.display().to_string(), ..Found::default() };
            Ok(Lane { frames, bytes: Vec::new(), next: None, is_over: false, last: 0, found })
        };
        let lanes = paths.iter().map(lane).collect::<Result<_, Error>>()?;
        Ok(Merge { lanes, begin: None, last: 0, count: 0, failures: Vec::new() })
    }

    /// Appends the next frame to a chunk.
    pub fn read(&mut self, chunk: &mut Chunk) -> Step {
        let mut is_silent = false;
        for lane in self.lanes.iter_mut().filter(|lane| lane.next.is_none() && !lane.is_over) {
            match lane.frames.next(&mut lane.bytes) {
                Ok(FramePoll::Frame { nanoseconds, is_snapped }) => {
                    lane.found.frames += 1;
                    if let Some(time) = nanoseconds {
                        let first = *lane.found.first.get_or_insert(time);
                        lane.found.nanoseconds = lane.found.nanoseconds.max(time.saturating_sub(first));
                        lane.found.earlier += u64::from(time < lane.last);
                        lane.last = time;
                    }
                    lane.next = Some((nanoseconds, is_snapped));
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
        let Some(((time, is_snapped), lane)) = times.min_by_key(|((time, _), _)| *time) else { return Step::End };
        lane.next = None;
        if let Some(time) = time {
            let begin = *self.begin.get_or_insert(time);
            self.last = self.last.max(time.saturating_sub(begin));
        }
        self.count += 1;
        chunk.bytes.extend_from_slice(&lane.bytes);
        chunk.frames.push(Entry { time: self.last, end: chunk.bytes.len(), is_snapped });
        Step::Frame
    }

    /// Returns the time from this pass's first frame to the next pass's first: the last frame is followed by a gap of
    /// average length.
    pub fn period(&self) -> u64 {
        self.last.saturating_add(self.last.checked_div(self.count.saturating_sub(1)).unwrap_or(0))
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the time of the first frame of all captures, and the counts and times of each file.
    pub fn found(&self) -> (Option<u64>, Vec<Found>) {
        (self.begin, self.lanes.iter().map(|lane| lane.found.clone()).collect())
    }

    /// Returns the errors of files that could not be read to their end.
    pub fn take_failures(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.failures)
    }
}
