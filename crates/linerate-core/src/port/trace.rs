//! The name of the port in messages about it.

use tracing::Span;

/// Returns a span that names the port, unless one around it does. Programs may bound or sort messages by it.
pub fn span_of(port: &str) -> Span {
    match Span::current().metadata() {
        Some(outer) if outer.name() == "port" => Span::none(),
        _ => tracing::error_span!("port", name = port),
    }
}
