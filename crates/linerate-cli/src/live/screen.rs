//! The full screen of a run: entering, drawing and leaving it; and its keys.

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::view::{LinkKeys, Panel, View};
use super::{LINK_KEYS, NewRate, Request, State};
use crate::rates::Tick;
use crate::signals::interrupts;
use crate::terminal;

/// How often the thread that reads keys checks whether the screen is closed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The factor by which a key changes a rate.
const STEP: f64 = 1.1;

/// The full screen of a run. It is left when this is dropped.
pub struct Screen {
    /// Not dropped: [`terminal::leave`] shows the cursor. The destructor would print its failure to do so, which
    /// panics if the terminal is gone.
    terminal: ManuallyDrop<DefaultTerminal>,
    view: View,
    is_over: Arc<AtomicBool>,
    /// Disconnected when the thread that reads keys ends.
    keys: Receiver<KeyEvent>,
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wait for the thread, as the next keys are for the shell. If it is stuck because the terminal is gone, it ends
        // with the process.
        while self.keys.recv_timeout(4 * POLL_INTERVAL).is_ok() {}
        terminal::leave();
    }
}

/// Returns whether a key is Ctrl and this letter.
fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Waits for an event; returns an error if the terminal is gone, when crossterm's own wait would spin.
fn has_event() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let time = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.as_nanos() as i64 };
    match poll(&mut polled, Some(&time)) {
        Ok(_) if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        // A resize is no input: crossterm gets it by a signal.
        Ok(_) | Err(Errno::INTR) => event::poll(Duration::ZERO),
        Err(error) => Err(error.into()),
    }
}

impl Screen {
    /// Enters the full screen of a command; `None` if the terminal cannot show it.
    pub fn enter(title: String, has_rate: bool, can_pause: bool, has_link: bool) -> Option<Screen> {
        let terminal = ManuallyDrop::new(terminal::enter().ok()?);
        let is_over = Arc::<AtomicBool>::default();
        let end = is_over.clone();
        let (sender, keys) = channel();
        let read = move || {
            while !end.load(Ordering::Relaxed) {
                let event = match has_event() {
                    Ok(true) => event::read(),
                    Ok(false) => continue,
                    // The terminal is gone: SIGHUP ends the run.
                    Err(_) => return,
                };
                match event {
                    // Handled here, even while the run ends: the second one ends the process.
                    Ok(event::Event::Key(key)) if is_control(&key, 'c') => {
                        interrupts().signal();
                    }
                    Ok(event::Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        if sender.send(key).is_err() {
                            return;
                        }
                        interrupts().wake();
                    }
                    Ok(event::Event::Resize(..)) => interrupts().wake(),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        };
        // If the thread cannot start, there are no keys, but signals still end the run.
        let _ = std::thread::Builder::new().name("keys".to_string()).spawn(read);
        Some(Screen { terminal, view: View::new(title, has_rate, can_pause, has_link), is_over, keys })
    }

    /// Stores the rates of an interval for the next drawing.
    pub fn tick(&mut self, tick: &Tick) {
        self.view.tick(tick);
    }

    /// Draws the screen. A failure ends the run, as for standard output.
    pub fn draw(&mut self, state: State) {
        if self.terminal.draw(|frame| self.view.draw(frame, &state)).is_err() {
            interrupts().end();
        }
    }

    /// Returns the next request of the keys.
    pub fn request(&mut self, is_paused: bool) -> Option<Request> {
        while let Ok(key) = self.keys.try_recv() {
            let request = self.key(key, is_paused);
            if request.is_some() {
                return request;
            }
        }
        None
    }

    /// Handles a key, and returns its request to the run.
    fn key(&mut self, key: KeyEvent, is_paused: bool) -> Option<Request> {
        let selected = self.view.link.as_ref().map(|link| LINK_KEYS[link.selected]);
        let with = |factor: f64| match selected {
            Some(option) => Some(Request { link_times: Some((option, factor)), ..Request::default() }),
            None => Some(Request { rate: Some(NewRate::Times(factor)), ..Request::default() }),
        };
        if let Some(link) = self.view.link.as_mut().filter(|link| link.typed.is_some()) {
            return type_options(link, &key);
        }
        match key.code {
            _ if is_control(&key, 'z') => {
                self.suspend();
                Some(Request { was_suspended: true, ..Request::default() })
            }
            _ if key.modifiers.contains(KeyModifiers::CONTROL) => None,
            KeyCode::Char('q') => Some(Request { stop: true, ..Request::default() }),
            KeyCode::Char('p' | ' ') => Some(Request { pause: Some(!is_paused), ..Request::default() }),
            KeyCode::Char('r') => Some(Request { reset: true, ..Request::default() }),
            KeyCode::Char('+' | '=') | KeyCode::Up => with(STEP),
            KeyCode::Char('-') | KeyCode::Down => with(1.0 / STEP),
            KeyCode::PageUp => with(2.0),
            KeyCode::PageDown => with(0.5),
            KeyCode::Tab | KeyCode::BackTab => {
                let step = if key.code == KeyCode::Tab { 1 } else { LINK_KEYS.len() - 1 };
                self.view.link.iter_mut().for_each(|link| link.selected = (link.selected + step) % LINK_KEYS.len());
                None
            }
            KeyCode::Char('e') => {
                self.view.link.iter_mut().for_each(|link| link.typed = Some(String::new()));
                None
            }
            KeyCode::Char('v') => self.toggle(Panel::Queues),
            KeyCode::Char('?' | 'h') => self.toggle(Panel::Keys),
            _ => None,
        }
    }

    /// Toggles between this part and the graphs.
    fn toggle(&mut self, panel: Panel) -> Option<Request> {
        self.view.panel = if self.view.panel == panel { Panel::Graphs } else { panel };
        None
    }

    /// Restores the terminal and stops the process as Ctrl-Z does, until the shell continues it.
    #[allow(unsafe_code)]
    fn suspend(&mut self) {
        terminal::leave();
        // SAFETY: SIGTSTP has its default action, which stops the process; no handler runs.
        unsafe { libc::raise(libc::SIGTSTP) };
        match terminal::enter() {
            Ok(terminal) => self.terminal = ManuallyDrop::new(terminal),
            Err(_) => interrupts().end(),
        }
    }
}

/// The longest line of options that is typed.
const LONGEST_LINE: usize = 1024;

/// Handles a key while options of the link are typed.
fn type_options(link: &mut LinkKeys, key: &KeyEvent) -> Option<Request> {
    let typed = link.typed.as_mut()?;
    match key.code {
        KeyCode::Enter => {
            let line = link.typed.take()?;
            let words = line.split([' ', '&']).filter(|word| !word.is_empty());
            // A word without a value is the name of an option that is removed.
            let pairs = words.map(|word| word.split_once('=').unwrap_or((word, "")));
            let changes: BTreeMap<String, String> =
                pairs.map(|(option, value)| (option.to_string(), value.to_string())).collect();
            return (!changes.is_empty()).then(|| Request { link: Some(changes), ..Request::default() });
        }
        KeyCode::Esc => link.typed = None,
        KeyCode::Backspace => drop(typed.pop()),
        KeyCode::Char(c) if !key.modifiers.contains(KeyModifiers::CONTROL) && typed.len() < LONGEST_LINE => {
            typed.push(c)
        }
        _ => {}
    }
    None
}
