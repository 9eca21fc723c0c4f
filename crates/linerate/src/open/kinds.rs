//! The kinds of ports. A new kind is declared in its own module, and listed here.

use linerate_cards::CARD;

#[allow(unused_imports, reason = "with all features no kind is absent")]
use crate::port::Form;
use crate::port::PortKind;

/// Lists kinds. A kind whose feature is not enabled in this build is listed as absent.
macro_rules! kinds {
    ($($kind:path $(, $feature:literal, $prefix:literal $(as $form:expr)?)?;)*) => {
        /// All kinds of ports. Each name matches exactly one of them.
        pub static KINDS: &[&PortKind] = &[$(kinds!(@one $kind $(, $feature, $prefix $(as $form)?)?)),*];
    };
    (@one $kind:path) => { &$kind };
    (@one $kind:path, $feature:literal, $prefix:literal) => { kinds!(@one $kind, $feature, $prefix as Form::Prefix) };
    (@one $kind:path, $feature:literal, $prefix:literal as $form:expr) => {{
        #[cfg(feature = $feature)]
        { &$kind }
        #[cfg(not(feature = $feature))]
        { const ABSENT: PortKind = PortKind::not_built($prefix, $form, $feature); &ABSENT }
    }};
}

kinds! {
    linerate_sim82599::SIM, "model", "sim";
    CARD;
    linerate_cards::VFIO_USER, "vfio-user", "vfio-user";
    linerate_machines::vhost::KIND, "vhost", "vhost";
    linerate_machines::virtio_user::KIND, "vhost", "virtio-user";
    linerate_machines::stream::KIND, "vhost", "stream";
    linerate_machines::memif::KIND, "memif", "memif";
    linerate_kernel::XDP, "kernel", "xdp";
    linerate_kernel::PACKET, "kernel", "packet";
    linerate_kernel::TAP, "kernel", "tap";
    linerate_kernel::HOST, "kernel", "host";
    linerate_vale::VALE, "netmap", "vale" as Form::VALE;
    linerate_vale::PIPE, "netmap", "pipe" as Form::PIPE;
    linerate_vale::MONITOR, "netmap", "monitor" as Form::Monitor;
    linerate_vale::NETMAP, "netmap", "netmap" as Form::NETMAP;
    linerate_kernel::STACK, "kernel", "netmap" as Form::STACK;
    linerate_vale::netmap::NULL, "netmap", "null";
    linerate_vale::netmap::ECHO, "netmap", "echo";
    linerate_capture::CAPTURE, "capture", "pcap";
    linerate_capture::RECORDED, "capture", "recorded";
    linerate_link::LINK;
    linerate_link::FAULTY;
}
