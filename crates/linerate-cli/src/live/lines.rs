//! The full screen in builds without the feature `live`: there is none, and a run prints lines.

use super::{Request, State};
use crate::rates::Tick;
use crate::terminal::note;

/// The full screen, which does not exist.
pub enum Screen {}

impl Screen {
    /// Reports that this build has no full screen.
    pub fn enter(_title: String, _has_rate: bool, _can_pause: bool, _has_link: bool) -> Option<Screen> {
        note(&format!("note: no full-screen view: {}", crate::error::missing("live")));
        None
    }

    pub fn tick(&mut self, _tick: &Tick) {
        match *self {}
    }

    pub fn draw(&mut self, _state: State) {
        match *self {}
    }

    pub fn request(&mut self, _is_paused: bool) -> Option<Request> {
        match *self {}
    }
}
