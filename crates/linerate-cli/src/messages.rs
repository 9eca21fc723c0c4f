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

/// The most warnings of one kind about one port in [`WINDOW`].
const LIMIT: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

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
        None => messages.with(RateLimited::default()).init(),
    }
}

/// Limits the messages of one kind about one port to [`LIMIT`] per [`WINDOW`]: a malicious peer can cause any number of
/// them, which must not hide messages about other ports.
#[derive(Default)]
struct RateLimited(Mutex<HashMap<(Identifier, String), Window>>);

/// The number of warnings of one kind about one port since a time.
struct Window {
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

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RateLimited {
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
        let fresh = || Window { begun: Instant::now(), count: 0 };
        let window = counts.entry((event.metadata().callsite(), port.unwrap_or_default())).or_insert_with(fresh);
        if window.begun.elapsed() >= WINDOW {
            if let hidden @ 1.. = window.count.saturating_sub(LIMIT) {
                note(&format!("note: {hidden} messages like the next one were not shown"));
            }
            *window = fresh();
        }
        window.count = window.count.saturating_add(1);
        if window.count == LIMIT + 1 {
            note(
                "note: more messages like the last one about this port are not shown for a minute; LINERATE_LOG=warn shows all",
            );
        }
        window.count <= LIMIT
    }
}
