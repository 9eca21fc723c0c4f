//! Adds a port's name to log messages.

use tracing::Span;

/// Returns a span that names the port; an empty one if the current span already does. Programs can filter or group
/// messages by it.
pub fn span_of(port: &str) -> Span {
    match Span::current().metadata() {
        Some(outer) if outer.name() == "port" => Span::none(),
        _ => tracing::error_span!("port", name = port),
    }
}
