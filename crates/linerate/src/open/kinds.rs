//! The kinds of ports. A new one is declared in its own room, and has one line here.

use super::card::CARD;
#[allow(unused_imports, reason = "with all features no kind is absent")]
use crate::port::Form;
use crate::port::{FAULTY, PortKind};

/// Lists kinds; one whose feature this build does not have is absent.
macro_rules! kinds {
    ($($kind:path $(, $feature:literal, $prefix:literal $(as $form:expr)?)?;)*) => {
        /// All kinds of ports. Each name fits one of them.
        pub static KINDS: &[&PortKind] = &[$(kinds!(@one $kind $(, $feature, $prefix $(as $form)?)?)),*];
    };
    (@one $kind:path) => { &$kind };
    (@one $kind:path, $feature:literal, $prefix:literal) => { kinds!(@one $kind, $feature, $prefix as Form::Prefix) };
    (@one $kind:path, $feature:literal, $prefix:literal as $form:expr) => {{
        #[cfg(feature = $feature)]
        { &$kind }
        #[cfg(not(feature = $feature))]
        { const ABSENT: PortKind = PortKind::absent($prefix, $form, $feature); &ABSENT }
    }};
}

kinds! {
    super::model::SIM, "model", "sim";
    CARD;
    super::vfio_user::VFIO_USER, "vfio-user", "vfio-user";
    crate::vhost::KIND, "vhost", "vhost";
    crate::virtio_user::KIND, "vhost", "virtio-user";
    crate::memif::KIND, "memif", "memif";
    crate::kernel::XDP, "kernel", "xdp";
    crate::kernel::PACKET, "kernel", "packet";
    crate::kernel::TAP, "kernel", "tap";
    crate::kernel::HOST, "kernel", "host";
    super::memory::VALE, "netmap", "vale" as Form::VALE;
    super::memory::PIPE, "netmap", "pipe" as Form::PIPE;
    super::memory::MONITOR, "netmap", "monitor" as Form::Monitor;
    super::memory::NETMAP, "netmap", "netmap" as Form::NETMAP;
    crate::kernel::STACK, "kernel", "netmap" as Form::STACK;
    crate::netmap::NULL, "netmap", "null";
    crate::capture::CAPTURE, "capture", "pcap";
    crate::capture::RECORDED, "capture", "recorded";
    FAULTY;
}
