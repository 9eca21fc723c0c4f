//! The option `flow=` of ports on interfaces.

use linerate_core::error::Result;
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
    name.option(FLOW.name).map(str::parse).transpose()
}
