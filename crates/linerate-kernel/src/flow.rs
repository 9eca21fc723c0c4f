//! The option `flow=` of ports on interfaces.

use linerate_core::error::{Error, Result};
use linerate_core::filter::Filter;
use linerate_core::port::{PortName, PortOption, Value};

/// The packets that a port receives.
pub(super) const FLOW: PortOption = PortOption {
    name: "flow",
    value: Value::Text("FILTER"),
    default: "",
    help: "take these packets only, such as udp:4321",
};

/// Reads the option.
pub(super) fn flow_of(name: &PortName) -> Result<Option<Filter>> {
    let Some(text) = name.option(FLOW.name) else { return Ok(None) };
    text.parse().map(Some).map_err(|error: Error| {
        let why = format!("option {}={text}: {}", FLOW.name, error.why());
        let named = Error::new(error.kind(), name.short(), why);
        error.remedy().into_iter().fold(named, |named, remedy| named.with_remedy(remedy.clone()))
    })
}
