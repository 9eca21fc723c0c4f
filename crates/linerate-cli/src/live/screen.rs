//! The full screen while a run lasts: entered, drawn, and left; and its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{Shown, State, View};
use super::{Event, NewRate, Request};
use crate::rates::Tick;
use crate::signals::interrupts;
use crate::terminal;

/// How often the thread that reads keys looks for the screen's end.
const LOOK: Duration = Duration::from_millis(50);
/// The part by which a key changes a rate.
const STEP: f64 = 1.1;

/// The full screen of a run. It is left when this is dropped.
pub struct Screen {
    terminal: DefaultTerminal,
    view: View,
    is_over: Arc<AtomicBool>,
    keys: Option<JoinHandle<()>>,
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The next keys are the shell's.
        let _ = self.keys.take().map(JoinHandle::join);
        terminal::leave();
    }
}

impl Screen {
    /// Enters the full screen of a command, and sends its keys; `None` if the terminal cannot show it.
    pub fn enter(title: String, has_rate: bool, keys: Sender<Event>) -> Option<Screen> {
        let terminal = terminal::enter().ok()?;
        let is_over = Arc::<AtomicBool>::default();
        let end = is_over.clone();
        let read = move || {
            while !end.load(Ordering::Relaxed) {
                let event = match event::poll(LOOK) {
                    Ok(true) => event::read(),
                    Ok(false) => continue,
                    // The terminal is gone, and a signal says so.
                    Err(_) => return,
                };
                let event = match event {
                    Ok(event::Event::Key(key)) if key.kind == KeyEventKind::Press => Event::Key(key),
                    Ok(event::Event::Resize(..)) => Event::Resized,
                    Ok(_) => continue,
                    Err(_) => return,
                };
                if keys.send(event).is_err() {
                    return;
                }
                interrupts().wake();
            }
        };
        // Without a thread there are no keys, and signals end the run.
        let keys = std::thread::Builder::new().name("keys".to_string()).spawn(read).ok();
        Some(Screen { terminal, view: View::new(title, has_rate), is_over, keys })
    }

    /// Takes the rates of an interval, which the next drawing shows.
    pub fn tick(&mut self, tick: Tick) {
        self.view.tick(tick);
    }

    /// Draws; a screen that cannot be drawn ends the run, as an output does that cannot be written.
    pub fn draw(&mut self, state: State) {
        if self.terminal.draw(|frame| self.view.draw(frame, &state)).is_err() {
            interrupts().end();
        }
    }

    /// Takes a key, and returns what it asks of the run.
    pub fn key(&mut self, key: KeyEvent, is_paused: bool) -> Option<Request> {
        let with = |rate: f64| Some(Request { rate: Some(NewRate::Times(rate)), ..Request::default() });
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => {
                interrupts().signal();
                None
            }
            KeyCode::Char('z') if is_control => {
                self.suspend();
                None
            }
            _ if is_control => None,
            KeyCode::Char('q') | KeyCode::Esc => Some(Request { stop: true, ..Request::default() }),
            KeyCode::Char('p' | ' ') => Some(Request { pause: Some(!is_paused), ..Request::default() }),
            KeyCode::Char('r') => Some(Request { reset: true, ..Request::default() }),
            KeyCode::Char('+' | '=') | KeyCode::Up => with(STEP),
            KeyCode::Char('-') | KeyCode::Down => with(1.0 / STEP),
            KeyCode::PageUp => with(2.0),
            KeyCode::PageDown => with(0.5),
            KeyCode::Char('v') => self.shows(Shown::Queues),
            KeyCode::Char('?' | 'h') => self.shows(Shown::Keys),
            _ => None,
        }
    }

    /// Shows this part instead of the graphs, or the graphs again.
    fn shows(&mut self, shown: Shown) -> Option<Request> {
        self.view.shown = if self.view.shown == shown { Shown::Graphs } else { shown };
        None
    }

    /// Stops the process as Ctrl-Z does, with the terminal as it was before, until the shell continues it.
    #[allow(unsafe_code)]
    fn suspend(&mut self) {
        terminal::leave();
        // SAFETY: the signal's action is the default one, which stops the process; no handler runs.
        unsafe { libc::raise(libc::SIGTSTP) };
        match terminal::enter() {
            Ok(terminal) => self.terminal = terminal,
            Err(_) => interrupts().end(),
        }
    }
}
