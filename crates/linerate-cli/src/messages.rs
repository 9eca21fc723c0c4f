//! The library's messages on standard error.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal::{Notes, note};

/// The most warnings of one kind.
const MOST: u32 = 20;

/// Shows warnings, or as many messages as LINERATE_LOG says (error to trace).
pub fn show() {
    let asked: Option<Level> = std::env::var("LINERATE_LOG").ok().and_then(|level| level.parse().ok());
    let messages = tracing_subscriber::fmt()
        .with_max_level(asked.unwrap_or(Level::WARN))
        .with_writer(Notes)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        // It would print its own failures, where nothing can be printed.
        .log_internal_errors(false)
        .finish();
    match asked {
        Some(_) => messages.init(),
        None => messages.with(Bounded::default()).init(),
    }
}

/// Lets [`MOST`] messages of one kind pass: a peer that lies can cause any number.
#[derive(Default)]
struct Bounded(Mutex<HashMap<Identifier, u32>>);

impl<S: Subscriber> Layer<S> for Bounded {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(event.metadata().callsite()).or_default();
        *count = count.saturating_add(1);
        if *count == MOST + 1 {
            note("note: more messages of the last kind are not shown; LINERATE_LOG=warn shows all");
        }
        *count <= MOST
    }
}
