//! The line rate of a port, requested rates, and the model behind a port.

use std::sync::Arc;

use linerate::port::{Link, Port};
use linerate::sim82599::{self, Card};
use linerate::traffic::Rate;

use crate::grammar::usage;
use crate::terminal::note;

/// Returns the model behind a port, if there is one.
pub fn model(port: &Port) -> Option<Arc<Card>> {
    linerate::parse(port.name()).ok()?.model().and_then(sim82599::named)
}

/// Returns the line rate of a card in bits per second: that of its link, or the card's nominal rate while the link is
/// down. `None` for ports without a line rate.
fn line(port: &Port) -> Option<f64> {
    match port.link() {
        Ok(Link::Up { mbits }) if mbits > 0 => Some(f64::from(mbits) * 1e6),
        Ok(Link::Down) => Some(f64::from(port.info().mbits) * 1e6).filter(|rate| *rate > 0.0),
        _ => None,
    }
}

/// Returns a rate in packets or bits per second: a fraction of the line rate becomes bits.
///
/// # Errors
/// The port has no line rate.
pub fn on_line(rate: Rate, port: &Port) -> Result<Rate, String> {
    match (rate, line(port)) {
        (Rate::Line(_), None) => Err(format!("{} has no line rate; give packets or bits per second", port.name())),
        (rate, line) => Ok(rate.for_line_rate(line.unwrap_or(Rate::TEN_GIGABIT))),
    }
}

/// Returns the line rate if `rate` exceeds it, for frames of `len` bytes on average, without CRC.
pub fn beyond_line(rate: Rate, len: f64, port: &Port) -> Option<Rate> {
    line(port).map(Rate::Bits).filter(|line| rate.packets_per_second(len) > line.packets_per_second(len) * 1.001)
}

/// Prints how a rate is interpreted, unless `is_quiet`, and returns it; `None`, which means full speed, for a rate
/// above the line rate. Frames have `len` bytes on average, without CRC.
pub fn possible(rate: Rate, len: f64, port: &Port, is_quiet: bool) -> Option<Rate> {
    let rate = on_line(rate, port).unwrap_or_else(|why| usage(&why));
    let packets = |rate: Rate| Rate::Packets(rate.packets_per_second(len));
    let size = ((len + 4.0) * 10.0).round() / 10.0;
    match beyond_line(rate, len, port) {
        Some(line) => {
            let line = format!("{line} = {} of {size} bytes", packets(line));
            if !is_quiet {
                note(&format!("note: {rate} is above the line rate ({line}): using full speed"));
            }
            None
        }
        None => {
            if !is_quiet && !matches!(rate, Rate::Packets(_)) {
                let name = port.name().trim_end_matches(':');
                note(&format!("{name}: {rate} = {} of {size} bytes", packets(rate)));
            }
            Some(rate)
        }
    }
}

/// Returns whether a port has a link. An error counts as up, as it is reported elsewhere.
pub fn is_up(device: &Port) -> bool {
    !matches!(device.link(), Ok(Link::Down))
}
