//! The library's messages on standard error.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal::{Notes, note};

/// The most warnings of one kind about one port in [`TURN`].
const MOST: u32 = 20;
const TURN: Duration = Duration::from_secs(60);

/// Shows warnings, or the messages up to the level in `LINERATE_LOG` (error to trace).
pub fn show() {
    let asked: Option<Level> = std::env::var("LINERATE_LOG").ok().and_then(|level| level.parse().ok());
    let messages = tracing_subscriber::fmt()
        .with_max_level(asked.unwrap_or(Level::WARN))
        .with_writer(Notes)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        // It would report failed writes to the same unwritable standard error.
        .log_internal_errors(false)
        .finish();
    match asked {
        Some(_) => messages.init(),
        None => messages.with(Bounded::default()).init(),
    }
}

/// Limits the messages of one kind about one port to [`MOST`] per [`TURN`]: a malicious peer can cause any number of
/// them, which must not hide messages about other ports.
#[derive(Default)]
struct Bounded(Mutex<HashMap<(Identifier, String), Turn>>);

/// The number of warnings of one kind about one port since a time.
struct Turn {
    begun: Instant,
    count: u32,
}

/// The name of the port that a span is about.
struct PortOf(String);

impl Visit for PortOf {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "name" {
            self.0 = value.to_string();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Bounded {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id).filter(|span| span.name() == "port") {
            let mut port = PortOf(String::new());
            attributes.record(&mut port);
            span.extensions_mut().insert(port);
        }
    }

    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let spans = context.lookup_current().into_iter().flat_map(|span| span.scope());
        let port = spans.filter_map(|span| span.extensions().get::<PortOf>().map(|port| port.0.clone())).next();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Turn { begun: Instant::now(), count: 0 };
        let turn = counts.entry((event.metadata().callsite(), port.unwrap_or_default())).or_insert_with(fresh);
        if turn.begun.elapsed() >= TURN {
            if let hidden @ 1.. = turn.count.saturating_sub(MOST) {
                note(&format!("note: {hidden} messages like the next one were not shown"));
            }
            *turn = fresh();
        }
        turn.count = turn.count.saturating_add(1);
        if turn.count == MOST + 1 {
            note(
                "note: more messages like the last one about this port are not shown for a minute; LINERATE_LOG=warn shows all",
            );
        }
        turn.count <= MOST
    }
}
