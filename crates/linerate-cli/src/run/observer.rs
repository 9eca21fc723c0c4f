//! Observers of a run: the live view, the metrics, the control socket, and changes of links.

use std::sync::atomic::Ordering;

use linerate::Error;

use super::{Mode, Run};
use crate::line_rate::is_up;
use crate::live::{Control, PendingRequest, Screen, State};
use crate::metrics::{Metrics, Sample, text};
use crate::moved::MovedPackets;
use crate::options::RunOptions;
use crate::rates::{Tick, shortened};
use crate::show::{Show, Shown};
use crate::terminal::is_ours;

/// A moment of a run.
pub struct Moment {
    pub moved: MovedPackets,
    /// The interval that has just ended, for a run that is shown.
    pub tick: Option<Tick>,
}

/// An observer of a run, which may also issue requests, such as those of keys.
pub trait Observer {
    /// Draws the present state. Called before each wait.
    fn draw(&mut self, _run: &Run) {}

    /// Returns the next pending request.
    fn request(&mut self, _run: &Run) -> Option<PendingRequest> {
        None
    }

    /// Called at the beginning, at least every 100 ms, and at the end.
    fn see(&mut self, _run: &Run, _moment: &Moment) {}
}

/// Returns the observers that start when the ports are opened. [`Run::open`] adds the links, and [`Run::measure`] a
/// display.
pub fn observers(mode: &dyn Mode, options: &RunOptions) -> Result<Vec<Box<dyn Observer>>, Error> {
    let mut observers: Vec<Box<dyn Observer>> = Vec::new();
    if let Some(address) = options.metrics {
        observers.push(Box::new(Metrics::serve(address, mode)?));
    }
    if let Some(path) = &options.steering.control {
        observers.push(Box::new(Control::listen(path)?));
    }
    Ok(observers)
}

impl<F: FnMut(&Moment)> Observer for F {
    fn see(&mut self, _run: &Run, moment: &Moment) {
        self(moment);
    }
}

impl Observer for Control {
    fn request(&mut self, _run: &Run) -> Option<PendingRequest> {
        Control::request(self)
    }
}

impl Observer for Metrics {
    /// Uses the last known counters of a port that is gone.
    fn see(&mut self, run: &Run, moment: &Moment) {
        let (statistics, gone) = run.ports.known_statistics();
        let ports = run.ports.devices.iter().zip(statistics.iter().zip(&gone));
        let samples = ports.map(|(device, (statistics, gone))| Sample {
            name: device.name(),
            is_up: !gone && is_up(device),
            statistics,
        });
        let (moved, held) = (&moment.moved, run.threads.held.load(Ordering::Relaxed));
        let samples: Vec<Sample> = samples.collect();
        self.set(text(run.mode, moved.packets, held, moved.cycles_per_packet(), &samples));
    }
}

/// Returns the display of a run, and enters the full-screen view if the run is shown there.
pub fn display(run: &Run) -> Show {
    let json = run.options.json;
    let is_wanted = run.shown == Shown::All && !json && !run.options.steering.plain && is_ours();
    let names: Vec<String> = run.ports.devices.iter().map(|device| shortened(device.name(), 24)).collect();
    let title = format!("linerate {} {}", run.mode.name(), names.join(" "));
    let live = &run.live;
    let screen =
        is_wanted.then(|| Screen::enter(title, live.has_rate(), live.can_pause(), live.link().is_some())).flatten();
    Show::new(&run.options, run.shown, screen)
}

impl Observer for Show {
    fn draw(&mut self, run: &Run) {
        if let Some(screen) = self.screen() {
            screen.draw(State {
                seconds: run.clock.elapsed(),
                of: run.clock.seconds.map(|seconds| seconds.as_secs_f64()),
                is_paused: run.live.is_paused(),
                asked: run.live.asked(),
                link: run.live.link().map_or(Vec::new(), |link| link.lines()),
            });
        }
    }

    fn request(&mut self, run: &Run) -> Option<PendingRequest> {
        let request = self.screen()?.request(run.live.is_paused())?;
        Some(PendingRequest { request, answer: None })
    }

    fn see(&mut self, _run: &Run, moment: &Moment) {
        moment.tick.iter().for_each(|tick| self.tick(tick));
    }
}
